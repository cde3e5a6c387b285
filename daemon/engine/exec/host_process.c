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
 * waits for the owner's pager, perhaps for ever, and no signal brings the thread back (the kernel's wait is
 * killable, and killing a thread is killing its process). So only workers move such memory, and each
 * says what it waits for. A transfer that takes too long is given up by the main thread
 * (host_pool.c): whichever of the two changes .since_ns first has the batch. A worker that comes back
 * too late touches nothing any more and ends here. Its buffer has been made inaccessible by then, so the
 * kernel, too, moves nothing; only what it reads straight into the mapped output of the same rank
 * still arrives there. */
#include "daemon/engine/exec/host.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/status.h"

#include <errno.h>
#include <poll.h>
#include <sys/uio.h>

#define PAGE_BYTES 4096u

static int status_of(int error)
{
    if (error == ESRCH)
        return HVI_ERR_RANK_LOST;
    return error == ENOMEM ? HVI_ERR_NO_MEMORY : HVI_ERR_INVALID;
}

bool engine_host_process_lives(const struct engine_process *process)
{
    struct pollfd ended = {.fd = process->pid_fd, .events = POLLIN};

    /* Acquire, pairs with the release store in engine_process_forbid. */
    return !atomic_load_explicit(&process->over, memory_order_acquire) && poll(&ended, 1, 0) == 0;
}

/* The kernel says EFAULT for either side of a transfer. If a page is missing on ours, looking at it ends
 * the unit (base/pages.h): the fault is not the owner's of the other side. */
static void look_at(const volatile unsigned char *local, uint64_t bytes)
{
    for (uint64_t at = 0; at < bytes; at += PAGE_BYTES)
        (void)local[at];
    (void)local[bytes - 1];
}

/* One end of a transfer, or what is left of it. */
struct stretch {
    uint32_t rank;
    bool writing;
    const struct engine_process *process; /* not looked at while the transfer may be given up */
    pid_t pid;
    uint64_t address;
    char *local;
    uint64_t bytes;
};

static uint64_t begin(struct engine_host_transfer *transfer, const struct stretch *stretch)
{
    uint64_t now_ns = hvi_clock_ns();

    atomic_store_explicit(&transfer->rank, stretch->rank, memory_order_relaxed);
    atomic_store_explicit(&transfer->writing, stretch->writing, memory_order_relaxed);
    atomic_store_explicit(&transfer->address, stretch->address, memory_order_relaxed);
    atomic_store_explicit(&transfer->local, stretch->local, memory_order_relaxed);
    /* Release, pairs with the acquire in host_pool.c's watch. */
    atomic_store_explicit(&transfer->since_ns, now_ns, memory_order_release);
    return now_ns;
}

/* Does not return if the transfer was given up. */
static void end(struct engine_host_transfer *transfer, uint64_t since_ns)
{
    /* Its partner is the compare-and-swap in host_pool.c: only one of the two succeeds. */
    if (atomic_compare_exchange_strong_explicit(&transfer->since_ns, &since_ns, 0,
                                                memory_order_acq_rel, memory_order_acquire))
        return;
    siglongjmp(transfer->leave, 1);
}

/* Bytes that were moved, or -errno. */
static ssize_t move(struct engine_host_transfer *transfer, const struct stretch *stretch)
{
    struct iovec here = {.iov_base = stretch->local, .iov_len = stretch->bytes};
    struct iovec there = {.iov_base = (void *)(uintptr_t)stretch->address,
                          .iov_len = stretch->bytes};
    uint64_t since_ns = begin(transfer, stretch);
    ssize_t moved = stretch->writing ? process_vm_writev(stretch->pid, &here, 1, &there, 1, 0)
                                     : process_vm_readv(stretch->pid, &here, 1, &there, 1, 0);

    if (moved < 0)
        moved = -errno;
    end(transfer, since_ns);
    return moved != 0 ? moved : -EIO;
}

static int transfer(const struct engine_host_thread *thread, struct stretch stretch,
                    struct engine_fault *fault_p)
{
    int error = 0;

    HVI_ASSERT(thread->transfer);
    while (stretch.bytes > 0 && error == 0) {
        ssize_t moved =
            engine_host_process_lives(stretch.process) ? move(thread->transfer, &stretch) : -ESRCH;
        if (moved < 0) {
            error = (int)-moved;
            if (error == EFAULT)
                look_at((unsigned char *)stretch.local, stretch.bytes);
            break;
        }
        if (!engine_host_process_lives(stretch.process)) {
            error = ESRCH;
            break;
        }
        stretch.local += moved;
        stretch.address += (uint64_t)moved;
        stretch.bytes -= (uint64_t)moved;
    }
    if (error == 0)
        return HVI_OK;
    *fault_p = (struct engine_fault){.rank = (int32_t)stretch.rank,
                                     .error = error,
                                     .writing = stretch.writing,
                                     .address = stretch.address};
    return status_of(error);
}

int engine_host_read(const struct engine_host_thread *thread, const struct engine_work *work,
                     uint32_t rank, uint64_t at, void *to_p, uint64_t bytes,
                     struct engine_fault *fault_p)
{
    const struct stretch stretch = {.rank = rank,
                                    .process = work->in[rank].process,
                                    .pid = work->in[rank].process->pid,
                                    .address = (uint64_t)(uintptr_t)work->in[rank].address + at,
                                    .local = to_p,
                                    .bytes = bytes};

    return transfer(thread, stretch, fault_p);
}

int engine_host_write(const struct engine_host_thread *thread, const struct engine_work *work,
                      uint32_t rank, uint64_t at, const void *from, uint64_t bytes,
                      struct engine_fault *fault_p)
{
    const struct stretch stretch = {.rank = rank,
                                    .writing = true,
                                    .process = work->out[rank].process,
                                    .pid = work->out[rank].process->pid,
                                    .address = (uint64_t)(uintptr_t)work->out[rank].address + at,
                                    .local = (char *)(uintptr_t)from,
                                    .bytes = bytes};

    return transfer(thread, stretch, fault_p);
}
