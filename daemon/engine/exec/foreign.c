/* SPDX-License-Identifier: Apache-2.0
 * Foreign operands: memory that only the trainer has mapped. The backend moves it with
 * process_vm_readv and _writev; here is who may use that, when, and what is said when it fails.
 *
 * It is offered at attach, after a try: reading an address that cannot be mapped fails with EFAULT
 * where the kernel lets us at the process, with EPERM where it does not (another user, Yama).
 *
 * Whose memory: a pid alone could be somebody else's by now, so the backend asks before each
 * transfer whether the pidfd of the session still stands for a living process. Until when: a
 * trainer whose session is over may do with its memory what it likes, so the end of a session first
 * forbids further transfers, then waits for those under way, and only then tells the client.
 *
 * A worker may be the first to learn that a trainer is gone. Its op then waits, bereaved, until it
 * is known how the rank ended, so that every rank hears the same sentence from all its ops. */
#include "base/fate.h"
#include "base/log.h"
#include "base/status.h"
#include "daemon/engine/engine.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>

#define NOWHERE 8 /* below any address that can be mapped */

void engine_foreign_offer(struct engine_session *session)
{
    pid_t pid = session->engine->ranks[session->rank].pid;
    char byte;
    struct iovec ours = {.iov_base = &byte, .iov_len = 1};
    struct iovec theirs = {.iov_base = (void *)NOWHERE, .iov_len = 1};

    if (pid <= 0 || session->pid_fd < 0)
        return;
    if (process_vm_readv(pid, &ours, 1, &theirs, 1, 0) >= 0 || errno != EFAULT) {
        HVI_LOG(HVI_LOG_DEBUG, "foreign", "not-offered", strerror(errno), "rank=%d pid=%d",
                session->rank, (int)pid);
        return;
    }
    session->regions.foreign_offered = true;
    session->channel.header->features |= HVI_FEATURE_FOREIGN;
}

static bool lies_there(const struct engine_region *region)
{
    return region && region->id == HVI_REGION_FOREIGN;
}

static bool uses(const struct engine_part *part)
{
    return part && (lies_there(part->in) || lies_there(part->out));
}

bool engine_foreign_is_used(const struct engine_op *op)
{
    for (uint32_t i = 0; i < op->set->size; i++) {
        if (uses(op->parts[i]))
            return true;
    }
    return false;
}

/* Any thread. The parts stay as they are while the op executes. */
static bool is_alive(void *user, uint32_t set_rank)
{
    const struct engine_op *op = user;
    struct engine_session *session = op->parts[set_rank]->session;
    struct pollfd process = {.fd = session->pid_fd, .events = POLLIN};

    /* Acquire, pairs with the release store in engine_foreign_end. */
    return !atomic_load_explicit(&session->foreign_over, memory_order_acquire) &&
           poll(&process, 1, 0) == 0;
}

void engine_foreign_resolve(struct engine_op *op)
{
    if (!engine_foreign_is_used(op))
        return;
    for (uint32_t i = 0; i < op->set->size; i++) {
        const struct engine_part *part = op->parts[i];
        pid_t pid = part ? part->session->engine->ranks[part->session->rank].pid : 0;
        op->in_pids[i] = part && lies_there(part->in) ? pid : 0;
        op->out_pids[i] = part && lies_there(part->out) ? pid : 0;
    }
    op->work.in_pid = op->in_pids;
    op->work.out_pid = op->out_pids;
    op->work.alive = is_alive;
    op->work.alive_user = op;
}

void engine_foreign_start(const struct engine_op *op)
{
    for (uint32_t i = 0; i < op->set->size; i++) {
        if (uses(op->parts[i]))
            atomic_fetch_add_explicit(&op->parts[i]->session->foreign_running, 1,
                                      memory_order_relaxed);
    }
}

void engine_foreign_stop(const struct engine_op *op)
{
    for (uint32_t i = 0; i < op->set->size; i++) {
        /* Release, pairs with the acquire load in engine_foreign_end. */
        if (uses(op->parts[i]))
            atomic_fetch_sub_explicit(&op->parts[i]->session->foreign_running, 1,
                                      memory_order_release);
    }
}

/* What is left of a work then fails piece by piece without touching memory, so this is short. */
void engine_foreign_end(struct engine_session *session)
{
    /* Release, pairs with the acquire load in is_alive. */
    atomic_store_explicit(&session->foreign_over, true, memory_order_release);
    /* Acquire, pairs with the release in engine_foreign_stop. */
    while (atomic_load_explicit(&session->foreign_running, memory_order_acquire) > 0) {
        if (!engine_dispatch_help(session->engine))
            sched_yield();
    }
}

/* ---- faults ---- */

static bool is_settled(const struct engine *engine, int32_t rank)
{
    return engine->ranks[rank].state >= ENGINE_RANK_LEFT;
}

void engine_foreign_settle(struct engine *engine)
{
    struct engine_op **link = &engine->bereaved;

    while (*link) {
        struct engine_op *op = *link;
        const struct engine_rank *slot = &engine->ranks[op->lost_rank];
        if (!is_settled(engine, op->lost_rank)) {
            link = &op->next;
            continue;
        }
        *link = op->next;
        engine_op_done(engine, op,
                       slot->state == ENGINE_RANK_LEFT ? HVI_ERR_RANK_LEFT : HVI_ERR_RANK_LOST,
                       slot->text, op->lost_rank);
    }
}

/* The process is gone, or about to be. What it said before counts: a Detach, for one. */
static void bereave(struct engine *engine, struct engine_op *op, int32_t rank)
{
    op->lost_rank = rank;
    op->next = engine->bereaved;
    engine->bereaved = op;
    if (!is_settled(engine, rank))
        engine_control_read(engine->ranks[rank].session);
    if (!is_settled(engine, rank))
        engine_session_dying(engine->ranks[rank].session);
    engine_foreign_settle(engine);
}

static bool is_gone(struct engine_rank *slot, const struct engine_session *session, int error)
{
    struct hvi_fate fate;

    if (slot->state != ENGINE_RANK_ATTACHED || error == ESRCH)
        return true;
    if (!hvi_fate_is_ending(slot->pid, session->pid_fd, &fate))
        return false;
    if (!slot->fate_told)
        slot->fate = fate;
    slot->fate_told = true;
    return true;
}

void engine_foreign_failed(struct engine *engine, struct engine_op *op, int status,
                           const struct engine_fault *fault)
{
    const struct engine_session *session = op->parts[fault->rank]->session;
    struct engine_rank *slot = &engine->ranks[session->rank];
    char text[HVI_TEXT_MAX + 1], label[ENGINE_LABEL];

    if (is_gone(slot, session, fault->error)) {
        bereave(engine, op, session->rank);
        return;
    }
    engine_tensor_label(op->tensor, label);
    snprintf(text, sizeof text,
             "%s '%s': the %s of rank %d (pid %d) could not be %s at address 0x%" PRIx64
             ": %s; memory must stay as it is until the op is finished",
             hvi_kind_text(op->kind), label, fault->writing ? "output" : "input", session->rank,
             (int)slot->pid, fault->writing ? "written" : "read", fault->address,
             strerror(fault->error));
    HVI_LOG(HVI_LOG_WARN, "foreign", "memory-gone", text, "job=%s rank=%d", engine->start.job,
            session->rank);
    engine_op_done(engine, op, status, text, session->rank);
}
