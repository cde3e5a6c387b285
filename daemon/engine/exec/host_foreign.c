/* SPDX-License-Identifier: Apache-2.0
 * Operands in the trainer's own memory. The kernel copies between two processes' pages; what is not
 * there gives an error, never a signal. A transfer may be cut short where a bad page begins: what
 * is left is tried again, which then says why.
 *
 * A pid is only a number, and the kernel may give it to another process at any time once its owner has
 * been reaped. So the owner is asked for before and after each transfer: what was read from somebody
 * else is never used, and an op whose result may have gone to somebody else fails.
 *
 * The owner may have anything mapped there, a userfaultfd or a FUSE file too: then the transfer
 * waits for the owner's pager, and ends with the owner. Trust between members of a job allows
 * that; it is their op that waits. While the main thread itself waits so, the engine is silent, and hvdd
 * kills it in the end. */
#include "daemon/engine/exec/host.h"

#include "base/status.h"

#include <errno.h>
#include <sys/uio.h>

static int status_of(int error)
{
    if (error == ESRCH)
        return HVI_ERR_RANK_LOST;
    return error == ENOMEM ? HVI_ERR_NO_MEMORY : HVI_ERR_INVALID;
}

static bool is_owners(const struct engine_work *work, uint32_t rank)
{
    return !work->alive || work->alive(work->alive_user, rank);
}

static int transfer(const struct engine_work *work, uint32_t rank, bool writing, pid_t pid,
                    uint64_t address, void *local, uint64_t bytes, struct engine_fault *fault_p)
{
    int error = 0;

    while (bytes > 0 && error == 0) {
        struct iovec here = {.iov_base = local, .iov_len = bytes};
        struct iovec there = {.iov_base = (void *)(uintptr_t)address, .iov_len = bytes};
        ssize_t moved = -1;
        if (!is_owners(work, rank)) {
            error = ESRCH;
            break;
        }
        if (writing)
            moved = process_vm_writev(pid, &here, 1, &there, 1, 0);
        else
            moved = process_vm_readv(pid, &here, 1, &there, 1, 0);
        if (moved <= 0) {
            error = moved == 0 ? EIO : errno;
            break;
        }
        if (!is_owners(work, rank)) {
            error = ESRCH;
            break;
        }
        local = (char *)local + moved;
        address += (uint64_t)moved;
        bytes -= (uint64_t)moved;
    }
    if (error == 0)
        return HVI_OK;
    *fault_p = (struct engine_fault){
        .rank = (int32_t)rank, .error = error, .writing = writing, .address = address};
    return status_of(error);
}

int engine_host_read(const struct engine_work *work, uint32_t rank, uint64_t at, void *to_p,
                     uint64_t bytes, struct engine_fault *fault_p)
{
    uint64_t address = (uint64_t)(uintptr_t)work->in[rank] + at;

    return transfer(work, rank, false, work->in_pid[rank], address, to_p, bytes, fault_p);
}

int engine_host_write(const struct engine_work *work, uint32_t rank, uint64_t at, const void *from,
                      uint64_t bytes, struct engine_fault *fault_p)
{
    uint64_t address = (uint64_t)(uintptr_t)work->out[rank] + at;

    return transfer(work, rank, true, work->out_pid[rank], address, (void *)(uintptr_t)from, bytes,
                    fault_p);
}
