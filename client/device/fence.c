/* SPDX-License-Identifier: Apache-2.0
 * Fences of a session's ops (shm/fence.h).
 *
 *   free ──take──► of an op: turn + 1 ──put──► free, used again once .ready has come to the turn
 *                                       ├─retire──► never used again
 *                                       └─take_back──► free, with the turn before: no stream writes this one
 *
 * A stream writes its turn late. Were the cell used again before, the late write would lower the word of
 * the next op. So a cell waits in the ring of free ones until the CPU sees its turn, and one that a worker
 * may still write to is not used again.
 *
 * When the engine is lost its worker may still write outputs, and only the worker or hvdd sees when not. They
 * store .done then, and the client does so later than that: for the case that they are dead too. A session that is closed
 * before the engine has said that it is over ends alike: the engine, which may stand still, stores both words when it goes on.
 *
 * The client poisons no .ready, whatever has happened. The one that opens a gate is the one that has told the kernels behind it
 * to write nothing (shm/fence.h): the engine, the worker, or hvdd after both. The turns of ops that were submitted come by their
 * streams.
 *
 * The page is registered with the driver when a stream needs it first; without streams CPUs alone write. */
#include "client/device/device.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/status.h"
#include "client/error.h"
#include "hvd/hvd.h"

#include <stdlib.h>
#include <sys/mman.h>

#define CELLS_LOOKED_AT 64u               /* of free ones, for one whose stream has come */
#define LOST_NS         (10 * HVI_NS_SEC) /* hvdd's own bound: hvd.h */

struct client_device *client_device_new(struct client_link *link)
{
    struct client_device *device = calloc(1, sizeof(*device));
    if (!device)
        return NULL;
    device->link = link;
    device->page.map = (struct hvi_region)HVI_REGION_INIT;
    device->fresh = 1; /* cell 0 is the head */
    pthread_mutex_init(&device->making, NULL);
    return device;
}

/* Pages that streams were told of, for ever: one that has not come to its wait or write yet will use the
 * page then, and nothing says when the last one has. 512 KiB of each session that used streams. */
struct left_page {
    struct hvi_fence_page page;
    uint64_t poison_ns; /* HVI_NEVER: it is, or others do it */
};
static struct left_page *left;
static size_t left_count;
static pthread_mutex_t leaving = PTHREAD_MUTEX_INITIALIZER;
static _Atomic uint64_t left_ns = HVI_NEVER; /* the first of them */

/* With the lock. */
static void set_left_ns(void)
{
    uint64_t first_ns = HVI_NEVER;
    for (size_t i = 0; i < left_count; i++) {
        if (left[i].poison_ns < first_ns)
            first_ns = left[i].poison_ns;
    }
    atomic_store(&left_ns, first_ns);
}

static void leave_behind(const struct client_device *device)
{
    pthread_mutex_lock(&leaving);
    struct left_page *more = realloc(left, (left_count + 1) * sizeof(left[0]));
    if (more) {
        left = more;
        left[left_count++] = (struct left_page){
            .page = device->page,
            .poison_ns = device->poisoned ? HVI_NEVER : device->lost_ns,
        };
        set_left_ns();
    }
    pthread_mutex_unlock(&leaving);
}

static void poison_left(void)
{
    pthread_mutex_lock(&leaving);
    for (size_t i = 0; i < left_count; i++) {
        if (!hvi_deadline_passed(left[i].poison_ns))
            continue;
        hvi_fence_poison_done(&left[i].page);
        left[i].poison_ns = HVI_NEVER;
    }
    set_left_ns();
    pthread_mutex_unlock(&leaving);
}

void client_device_free(struct client_device *device)
{
    if (!device)
        return;
    if (device->lost_ns == 0)
        client_fence_poison(device);
    if (device->address != 0)
        leave_behind(device);
    else
        hvi_fence_fini(&device->page);
    pthread_mutex_destroy(&device->making);
    free(device);
}

void client_fence_poison(struct client_device *device)
{
    if (!device || device->poisoned)
        return;
    device->poisoned = true;
    if (device->page.cells)
        hvi_fence_poison_done(&device->page);
}

void client_fence_lost(struct client_device *device, uint64_t still_ns)
{
    if (!device || device->poisoned || device->lost_ns != 0)
        return;
    device->lost_ns = still_ns < INT64_MAX - LOST_NS
                          ? hvi_deadline_after((int64_t)(LOST_NS + still_ns))
                          : HVI_NEVER;
}

void client_fence_look(struct client_device *device)
{
    if (device && device->lost_ns != 0 && hvi_deadline_passed(device->lost_ns))
        client_fence_poison(device);
    if (hvi_deadline_passed(atomic_load_explicit(&left_ns, memory_order_relaxed)))
        poison_left();
}

/* ---- cells ---- */

static uint32_t pop(struct client_device *device)
{
    uint32_t cell = device->free_cells[device->free_first];
    device->free_first = (device->free_first + 1) % HVI_FENCE_CELLS;
    device->free_count--;
    return cell;
}

static void push(struct client_device *device, uint32_t cell)
{
    uint32_t at = (device->free_first + device->free_count) % HVI_FENCE_CELLS;
    device->free_cells[at] = (uint16_t)cell;
    device->free_count++;
}

/* 0: none. */
static uint32_t find_cell(struct client_device *device)
{
    uint32_t looks = device->free_count < CELLS_LOOKED_AT ? device->free_count : CELLS_LOOKED_AT;
    for (uint32_t i = 0; i < looks; i++) {
        uint32_t cell = pop(device);
        if (hvi_fence_is_ready(&device->page, cell, device->turns[cell]))
            return cell;
        push(device, cell);
    }
    return device->fresh < HVI_FENCE_CELLS ? device->fresh++ : 0;
}

int client_fence_take(struct client_device *device, const char *what, struct client_fence *fence_p)
{
    uint32_t cell = find_cell(device);
    if (cell == 0 && device->retired == HVI_FENCE_CELLS - 1)
        return client_error(HVD_ERR_LIMIT,
                            "%s: too many ops on device memory have failed in this session; close "
                            "it and open a new one",
                            what);
    if (cell == 0)
        return client_error(HVD_ERR_LIMIT,
                            "%s: all %u fences are of ops that are not over, or whose streams have "
                            "not come to them yet; let the streams go on and submit again",
                            what, HVI_FENCE_CELLS - 1 - device->retired);
    *fence_p = (struct client_fence){.cell = cell, .turn = ++device->turns[cell]};
    return HVD_OK;
}

void client_fence_put(struct client_device *device, struct client_fence *fence, bool retire)
{
    if (fence->cell == 0)
        return;
    if (retire)
        device->retired++;
    else
        push(device, fence->cell);
    fence->cell = 0;
}

void client_fence_take_back(struct client_device *device, struct client_fence *fence)
{
    device->turns[fence->cell]--;
    client_fence_put(device, fence, false);
}

/* ---- streams ---- */

static int refuse(const struct hvi_cuda *cuda, int error, const char *what, const char *call)
{
    char text[64];
    hvi_cuda_describe(cuda, error, text, sizeof(text));
    return client_error(error == HVI_CU_OUT_OF_MEMORY ? HVD_ERR_NO_MEMORY : HVD_ERR_UNSUPPORTED,
                        "%s: %s: %s", what, call, text);
}

/* With .making. */
static int register_page(struct client_device *device, const struct hvi_cuda *cuda,
                         const char *what)
{
    hvi_cu_ptr address = 0;
    int error = client_host_register(cuda, device->page.map.base, HVI_FENCE_BYTES,
                                     HVI_CU_HOST_PORTABLE | HVI_CU_HOST_DEVICEMAP);
    if (error != HVI_CU_OK)
        return refuse(cuda, error, what, "the session's fences (cuMemHostRegister)");
    error = cuda->host_pointer(&address, device->page.map.base, 0);
    if (error != HVI_CU_OK) {
        client_host_unregister(cuda, device->page.map.base);
        return refuse(cuda, error, what, "the session's fences (cuMemHostGetDevicePointer)");
    }
    device->address = address;
    return HVD_OK;
}

/* Within the scope of the stream. */
static int prepare(struct client_device *device, const struct hvi_cuda *cuda, int ordinal,
                   void *stream, const char *what)
{
    hvi_cu_device number;
    int possible = 0, capturing = 0;
    int error = cuda->stream_capturing(stream, &capturing);
    if (error != HVI_CU_OK)
        return refuse(cuda, error, what, "the stream (cuStreamIsCapturing)");
    if (capturing)
        return client_error(HVD_ERR_UNSUPPORTED,
                            "%s: the stream is being captured into a CUDA graph; submit outside of "
                            "the capture",
                            what);
    pthread_mutex_lock(&device->making);
    int rc = HVD_OK;
    if (device->address == 0) {
        error = ordinal == CLIENT_DEVICE_ANY ? cuda->context_device(&number)
                                             : cuda->device_get(&number, ordinal);
        if (error == HVI_CU_OK)
            error = cuda->device_attribute(&possible, HVI_CU_DEVICE_MEMOPS_64, number);
        if (error != HVI_CU_OK || !possible)
            rc = client_error(HVD_ERR_UNSUPPORTED,
                              "%s: the GPU's streams have no 64-bit memory operations, by which "
                              "they would wait for the op; let the stream finish before the call "
                              "and give NULL",
                              what);
        else
            rc = register_page(device, cuda, what);
    }
    pthread_mutex_unlock(&device->making);
    return rc;
}

static int enter(int ordinal, void *stream, const char *what, struct client_driver_scope *scope_p)
{
    int error = client_driver_enter_stream(ordinal, stream, scope_p);
    if (error == HVI_CU_INVALID_VALUE)
        return client_error(HVD_ERR_INVALID,
                            "%s: the stream is one of another device than the tensors", what);
    return error == HVI_CU_OK ? HVD_OK : refuse(scope_p->cuda, error, what, "the stream's context");
}

int client_fence_ready(struct client_device *device, const struct client_fence *fence, int ordinal,
                       void *stream, const char *what)
{
    struct client_driver_scope scope;
    if (!stream) {
        hvi_fence_store_ready(&device->page, fence->cell, fence->turn);
        return HVD_OK;
    }
    int rc = enter(ordinal, stream, what, &scope);
    if (rc != HVD_OK)
        return rc;
    rc = prepare(device, scope.cuda, ordinal, stream, what);
    if (rc == HVD_OK) {
        hvi_cu_ptr word = device->address + fence->cell * sizeof(struct hvi_fence) +
                          offsetof(struct hvi_fence, ready);
        int error = scope.cuda->write64(stream, word, fence->turn, 0);
        if (error != HVI_CU_OK)
            rc = refuse(scope.cuda, error, what, "cuStreamWriteValue64");
    }
    client_driver_leave(&scope);
    return rc;
}

int client_fence_wait(struct client_device *device, const struct client_fence *fence, int ordinal,
                      void *stream, const char *what)
{
    struct client_driver_scope scope;
    int rc = enter(ordinal, stream, what, &scope);
    if (rc != HVD_OK)
        return rc;
    rc = prepare(device, scope.cuda, ordinal, stream, what);
    if (rc == HVD_OK) {
        hvi_cu_ptr word = device->address + fence->cell * sizeof(struct hvi_fence) +
                          offsetof(struct hvi_fence, done);
        int error = scope.cuda->wait64(stream, word, fence->turn, 0);
        if (error != HVI_CU_OK)
            rc = refuse(scope.cuda, error, what, "cuStreamWaitValue64");
    }
    client_driver_leave(&scope);
    return rc;
}
