/* SPDX-License-Identifier: Apache-2.0
 * Legacy IPC handles: {pid, descriptor, bytes, device}, opened through /proc. So memory outlives its exporter while somebody maps it
 * (section 1.5; P3), and the bytes of a handle repeat after a free and an allocation (LMCache, section 1.3; P2).
 *
 * Rules. A handle opens in another process only: 201 where the pid is the same (section 1.1; UCX #11603). Flags must be LAZY_PEER
 * (cuda.h). A second open of equal bytes is the first mapping, whatever the exporter has done since; it is closed as often as
 * opened (cuda.h; section 1.3). Only the base of an allocation of cuMemAlloc has a handle (section 1.1). */
#include "tests/fakegpu/table.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

struct handle {
    int pid, fd, device, zero; /* no byte is left to chance: handles are compared */
    uint64_t bytes;
    uint64_t number; /* with handles=new */
};
_Static_assert(sizeof(struct handle) <= sizeof(struct hvi_cu_ipc), "fits");

int cu_ipc_get(struct hvi_cu_ipc *handle_p, hvi_cu_ptr base)
{
    const int error = fake_ready();
    struct range *range = fake_range_find(base, RANGE_ALLOCATED);

    if (error != HVI_CU_OK || range == NULL || (uintptr_t)range->base != base)
        return error != HVI_CU_OK ? error : HVI_CU_INVALID_VALUE;
    struct handle handle = {getpid(), range->fd,    range->device,
                            0,        range->bytes, fake_says("handles", "new") ? range->id : 0};
    *handle_p = (struct hvi_cu_ipc){{0}};
    memcpy(handle_p, &handle, sizeof(handle));
    range->is_shared = true;
    if (fake_fault_now("exporter-exit"))
        fake_doom();
    return HVI_CU_OK;
}

/* The exporter's memory, held against its freeing; -1: it is gone, or not for us. */
int fake_open_exported(int pid, int fd)
{
    char path[64];

    snprintf(path, sizeof(path), "/proc/%d/fd/%d", pid, fd);
    int own = open(path, O_RDWR | O_CLOEXEC);
    if (own >= 0)
        flock(own, LOCK_SH);
    return own;
}

static struct range *find_open(const struct hvi_cu_ipc *ipc)
{
    struct range *range = NULL;

    while ((range = fake_range_next(range, RANGE_IMPORTED)) != NULL) {
        if (memcmp(&range->handle, ipc, sizeof(*ipc)) == 0)
            return range;
    }
    return NULL;
}

static int open_first(hvi_cu_ptr *address_p, const struct hvi_cu_ipc *ipc,
                      const struct handle *handle)
{
    int fd = fake_open_exported(handle->pid, handle->fd);
    void *base = fd < 0 || fake_memfd_device(fd, "memory") != handle->device
                     ? NULL
                     : fake_map(fd, handle->bytes);

    if (base == NULL) {
        close(fd);
        return FAKE_MAP_FAILED;
    }
    struct range *range = fake_range_add(RANGE_IMPORTED, base, handle->bytes, fd, handle->device);
    range->handle = *ipc;
    *address_p = (uintptr_t)base;
    return HVI_CU_OK;
}

int cu_ipc_open(hvi_cu_ptr *address_p, struct hvi_cu_ipc ipc, unsigned flags)
{
    const int error = fake_ready(), slow_ms = fake_fault("slow-open");
    struct handle handle;

    memcpy(&handle, &ipc, sizeof(handle));
    if (error != HVI_CU_OK || flags != HVI_CU_IPC_LAZY_PEER)
        return error != HVI_CU_OK ? error : HVI_CU_INVALID_VALUE;
    if (slow_ms > 0)
        nanosleep(&(struct timespec){slow_ms / 1000, slow_ms % 1000 * 1000000L}, NULL);
    fake_may_synchronize("open");
    if (fake_fault_now("broken-open"))
        return HVI_CU_ILLEGAL_ADDRESS;
    if (handle.pid == getpid())
        return HVI_CU_INVALID_CONTEXT;
    struct range *range = find_open(&ipc);
    if (range != NULL) {
        range->references++;
        *address_p = (uintptr_t)range->base;
        return HVI_CU_OK;
    }
    if (handle.device != fake_context()->physical &&
        !fake_linked(fake_context()->physical, handle.device))
        return FAKE_PEERS_UNSUPPORTED;
    if (fake_fault_from_now("no-memory"))
        return HVI_CU_OUT_OF_MEMORY;
    return open_first(address_p, &ipc, &handle);
}

int cu_ipc_close(hvi_cu_ptr address)
{
    const int error = fake_ready();
    struct range *range = fake_range_find(address, RANGE_IMPORTED);

    if (error != HVI_CU_OK || range == NULL || (uintptr_t)range->base != address)
        return error != HVI_CU_OK ? error : HVI_CU_INVALID_VALUE;
    if (range->references == 1)
        fake_check_unused(range, "cuIpcCloseMemHandle");
    fake_close_waits();
    if (--range->references > 0)
        return HVI_CU_OK;
    const struct range was = fake_range_drop(range, "cuIpcCloseMemHandle", false);
    munmap(was.base, was.bytes);
    close(was.fd);
    return HVI_CU_OK;
}
