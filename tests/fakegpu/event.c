/* SPDX-License-Identifier: Apache-2.0
 * Events. A wait captures the latest record at the call; an event that was never recorded counts as complete there (section 2.1),
 * and is none for cuEventElapsedTime, which is not ready before both are complete (cuda.h). One that processes share is a page,
 * and has no timing (cuda.h). Event and stream are of one context (cuda.h). */
#include "tests/fakegpu/stream.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct record {
    _Atomic uint64_t asked, done;
    _Atomic uint64_t ns; /* of the last one that is done */
};

struct hvi_cu_event {
    struct hvi_cu_context *context;
    struct record *record;
    int fd; /* -1: it is no other process' */
    unsigned flags;
};

struct handle {
    int pid, fd;
};

struct work {
    struct record *record;
    uint64_t number;
};

static int make_event(hvi_cu_event *event_p, int fd, unsigned flags)
{
    struct hvi_cu_event *event = calloc(1, sizeof(*event));
    void *map = mmap(NULL, sizeof(struct record), PROT_READ | PROT_WRITE,
                     fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, fd, 0);

    if (event == NULL || map == MAP_FAILED)
        return HVI_CU_OUT_OF_MEMORY;
    *event =
        (struct hvi_cu_event){.context = fake_context(), .record = map, .fd = fd, .flags = flags};
    *event_p = event;
    return HVI_CU_OK;
}

int cu_event_create(hvi_cu_event *event_p, unsigned flags)
{
    const unsigned all = 1 | FAKE_EVENT_NO_TIMING | FAKE_EVENT_IPC;
    const int error = fake_ready();

    if (error != HVI_CU_OK)
        return error;
    if ((flags & ~all) != 0 || (flags & (FAKE_EVENT_IPC | FAKE_EVENT_NO_TIMING)) == FAKE_EVENT_IPC)
        return HVI_CU_INVALID_VALUE;
    if ((flags & FAKE_EVENT_IPC) == 0)
        return make_event(event_p, -1, flags);
    int fd = memfd_create("fakegpu event", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, sizeof(struct record)) < 0)
        return HVI_CU_OUT_OF_MEMORY;
    return make_event(event_p, fd, flags);
}

int cu_event_destroy(hvi_cu_event event)
{
    munmap(event->record, sizeof(*event->record));
    if (event->fd >= 0)
        close(event->fd);
    free(event);
    return fake_ready();
}

static void run_record(void *data)
{
    struct work *work = data;

    atomic_store(&work->record->ns, fake_now_ns());
    atomic_store(&work->record->done, work->number);
}

static void run_wait(void *data)
{
    struct work *work = data;
    const uint64_t since = fake_now_ns();

    while (atomic_load(&work->record->done) < work->number)
        fake_nap(since);
}

int cu_event_record(hvi_cu_event event, hvi_cu_stream handle)
{
    struct hvi_cu_stream *stream;
    const int error = fake_stream_find(handle, &stream);

    if (error != HVI_CU_OK || stream->context != event->context)
        return error != HVI_CU_OK ? error : FAKE_INVALID_HANDLE;
    struct work work = {event->record, atomic_fetch_add(&event->record->asked, 1) + 1};
    return fake_enqueue(handle, run_record, &work, sizeof(work), NULL, 0);
}

int cu_stream_wait_event(hvi_cu_stream stream, hvi_cu_event event, unsigned flags)
{
    struct work work = {event->record, atomic_load(&event->record->asked)};

    if (flags != 0)
        return HVI_CU_INVALID_VALUE;
    return fake_enqueue(stream, run_wait, &work, sizeof(work), NULL, 0);
}

static bool is_over(const struct hvi_cu_event *event)
{
    return atomic_load(&event->record->done) == atomic_load(&event->record->asked);
}

int cu_event_elapsed(float *ms_p, hvi_cu_event begin, hvi_cu_event end)
{
    const int error = fake_ready();

    if (error != HVI_CU_OK)
        return error;
    if (((begin->flags | end->flags) & FAKE_EVENT_NO_TIMING) != 0 ||
        atomic_load(&begin->record->asked) == 0 || atomic_load(&end->record->asked) == 0)
        return FAKE_INVALID_HANDLE;
    if (!is_over(begin) || !is_over(end))
        return HVI_CU_NOT_READY;
    const int64_t ns = (int64_t)(atomic_load(&end->record->ns) - atomic_load(&begin->record->ns));
    *ms_p = (float)((double)ns / 1e6);
    return HVI_CU_OK;
}

int cu_event_elapsed_2(float *ms_p, hvi_cu_event begin, hvi_cu_event end)
{
    return cu_event_elapsed(ms_p, begin, end);
}

int cu_event_ipc_get(struct hvi_cu_ipc *handle_p, hvi_cu_event event)
{
    struct handle handle = {getpid(), event->fd};

    if (event->flags != (FAKE_EVENT_IPC | FAKE_EVENT_NO_TIMING))
        return FAKE_INVALID_HANDLE;
    *handle_p = (struct hvi_cu_ipc){{0}};
    memcpy(handle_p, &handle, sizeof(handle));
    return fake_ready();
}

int cu_event_ipc_open(hvi_cu_event *event_p, struct hvi_cu_ipc ipc)
{
    struct handle handle;
    char path[64];

    memcpy(&handle, &ipc, sizeof(handle));
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", handle.pid, handle.fd);
    int fd = handle.pid == getpid() ? -1 : open(path, O_RDWR | O_CLOEXEC);
    return fd < 0 ? HVI_CU_INVALID_CONTEXT : make_event(event_p, fd, FAKE_EVENT_NO_TIMING);
}
