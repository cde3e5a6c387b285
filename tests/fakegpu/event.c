/* SPDX-License-Identifier: Apache-2.0
 * Events: a page that another process may map. A wait captures the latest record at the call; an event that was never recorded
 * counts as complete (section 2.1). One that processes share has no timing (cuda.h). Only probes use them. */
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
    double us;
};

struct fake_event {
    struct record *record;
    int fd;
    unsigned flags;
};

struct handle {
    int pid, fd;
};

struct work {
    struct record *record;
    uint64_t number;
};

static int make_event(fake_event *event_p, int fd, unsigned flags)
{
    struct fake_event *event = calloc(1, sizeof(*event));
    void *map = mmap(NULL, sizeof(struct record), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (event == NULL || map == MAP_FAILED)
        return HVI_CU_OUT_OF_MEMORY;
    *event = (struct fake_event){.record = map, .fd = fd, .flags = flags};
    *event_p = event;
    return HVI_CU_OK;
}

int cu_event_create(fake_event *event_p, unsigned flags)
{
    const int error = fake_ready();
    int fd = error == HVI_CU_OK ? memfd_create("fakegpu event", MFD_CLOEXEC) : -1;

    if (fd < 0 || ftruncate(fd, sizeof(struct record)) < 0)
        return error != HVI_CU_OK ? error : HVI_CU_OUT_OF_MEMORY;
    return make_event(event_p, fd, flags);
}

int cu_event_destroy(fake_event event)
{
    munmap(event->record, sizeof(*event->record));
    close(event->fd);
    free(event);
    return fake_ready();
}

static void run_record(void *data)
{
    struct work *work = data;

    work->record->us = (double)fake_now_ns() / 1e3;
    atomic_store(&work->record->done, work->number);
}

static void run_wait(void *data)
{
    struct work *work = data;
    const uint64_t since = fake_now_ns();

    while (atomic_load(&work->record->done) < work->number)
        fake_nap(since);
}

int cu_event_record(fake_event event, hvi_cu_stream stream)
{
    struct work work = {event->record, atomic_fetch_add(&event->record->asked, 1) + 1};

    return fake_enqueue(stream, run_record, &work, sizeof(work), NULL, 0);
}

int cu_stream_wait_event(hvi_cu_stream stream, fake_event event, unsigned flags)
{
    struct work work = {event->record, atomic_load(&event->record->asked)};

    if (flags != 0)
        return HVI_CU_INVALID_VALUE;
    return fake_enqueue(stream, run_wait, &work, sizeof(work), NULL, 0);
}

int cu_event_elapsed(float *ms_p, fake_event begin, fake_event end)
{
    if ((begin->flags | end->flags) & FAKE_EVENT_NO_TIMING)
        return FAKE_INVALID_HANDLE;
    if (atomic_load(&begin->record->done) == 0 || atomic_load(&end->record->done) == 0)
        return HVI_CU_NOT_READY;
    *ms_p = (float)((end->record->us - begin->record->us) / 1e3);
    return fake_ready();
}

int cu_event_ipc_get(struct hvi_cu_ipc *handle_p, fake_event event)
{
    struct handle handle = {getpid(), event->fd};

    if (event->flags != (FAKE_EVENT_IPC | FAKE_EVENT_NO_TIMING))
        return FAKE_INVALID_HANDLE;
    *handle_p = (struct hvi_cu_ipc){{0}};
    memcpy(handle_p, &handle, sizeof(handle));
    return fake_ready();
}

int cu_event_ipc_open(fake_event *event_p, struct hvi_cu_ipc ipc)
{
    struct handle handle;
    char path[64];

    memcpy(&handle, &ipc, sizeof(handle));
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", handle.pid, handle.fd);
    int fd = handle.pid == getpid() ? -1 : open(path, O_RDWR | O_CLOEXEC);
    return fd < 0 ? HVI_CU_INVALID_CONTEXT : make_event(event_p, fd, FAKE_EVENT_NO_TIMING);
}
