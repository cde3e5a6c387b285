/* SPDX-License-Identifier: Apache-2.0
 * Sessions whose process' own memory the engine may reach (process_vm_readv and _writev), and what is
 * said when it could not.
 *
 * It is offered at attach, after a try: reading an address that cannot be mapped fails with EFAULT
 * where the kernel lets us at the process, with EPERM where it does not (another user, Yama).
 *
 * A worker may be the first to learn that a trainer is gone. Its op then waits, bereaved, until it
 * is known how the rank ended, so that every rank hears the same sentence from all its ops. */
#include "daemon/engine/sessions/remote.h"

#include "base/clock.h"
#include "base/fate.h"
#include "base/file.h"
#include "base/log.h"
#include "base/status.h"
#include "daemon/engine/exec/task.h"
#include "daemon/engine/sessions/control.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>

#define NOWHERE 8 /* below any address that can be mapped */

static bool is_in_other_user_namespace(pid_t pid)
{
    char path[64], ours[256], theirs[256];

    snprintf(path, sizeof path, "/proc/%d/uid_map", (int)pid);
    return hvi_file_read("/proc/self/uid_map", ours, sizeof ours) > 0 &&
           hvi_file_read(path, theirs, sizeof theirs) > 0 && strcmp(ours, theirs) != 0;
}

void engine_remote_offer(struct engine_session *session)
{
    pid_t pid = engine_rank_at(session->sessions, session->seat)->pid;
    char byte;
    struct iovec ours = {.iov_base = &byte, .iov_len = 1};
    struct iovec theirs = {.iov_base = (void *)NOWHERE, .iov_len = 1};

    session->memory = HVI_MEMORY_HIDDEN;
    if (pid <= 0 || session->pid_fd < 0)
        return;
    if (process_vm_readv(pid, &ours, 1, &theirs, 1, 0) >= 0 || errno != EFAULT) {
        HVI_LOG(HVI_LOG_DEBUG, "foreign", "not-offered", strerror(errno), "rank=%d pid=%d",
                session->rank, (int)pid);
        session->memory =
            is_in_other_user_namespace(pid) ? HVI_MEMORY_OTHER_USER : HVI_MEMORY_REFUSED;
        return;
    }
    session->memory = HVI_MEMORY_BY_ADDRESS;
    session->regions.process_offered = true;
    hvi_channel_offer(&session->channel, HVI_FEATURE_PROCESS);
}

/* ---- faults ---- */

static bool is_settled(const struct engine_rank *slot)
{
    return slot->state >= ENGINE_RANK_LEFT;
}

void engine_remote_settle(struct engine_sessions *sessions)
{
    struct engine_op **link = &sessions->bereaved;

    while (*link) {
        struct engine_op *op = *link;
        int32_t rank = engine_task_of(op)->lost_rank;
        const struct engine_rank *slot = engine_rank_find(sessions, rank);
        if (!is_settled(slot)) {
            link = &op->next;
            continue;
        }
        *link = op->next;
        engine_op_done(sessions->order, op,
                       slot->state == ENGINE_RANK_LEFT ? HVI_ERR_RANK_LEFT : HVI_ERR_RANK_LOST,
                       slot->text, rank);
    }
}

/* The process is gone, or about to be. What it said before counts: a Detach, for one. */
static void bereave(struct engine_sessions *sessions, struct engine_op *op,
                    const struct engine_rank *slot)
{
    engine_task_of(op)->lost_rank = slot->rank;
    op->next = sessions->bereaved;
    sessions->bereaved = op;
    if (!is_settled(slot))
        engine_control_read(slot->session);
    if (!is_settled(slot))
        engine_session_dying(slot->session);
    engine_remote_settle(sessions);
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

static void describe(const struct engine_op *op, const struct engine_fault *fault,
                     const struct engine_rank *slot, char *text_p, size_t size)
{
    char label[ENGINE_LABEL], why[160], process[HVI_PROCESS_TEXT];

    if (fault->error == ETIMEDOUT)
        snprintf(
            why, sizeof why,
            "its memory has not answered for %.1f s (HVD_MEMORY_TIMEOUT_SECONDS); a userfaultfd, "
            "a file on FUSE or a slow disk may be behind it",
            (double)fault->waited_ns / (double)HVI_NS_SEC);
    else
        snprintf(why, sizeof why, "%s; memory must stay as it is until the op is finished",
                 strerror(fault->error));
    engine_tensor_label(op->tensor, label);
    hvi_process_describe(slot->pid, slot->own_pid, process);
    snprintf(text_p, size,
             "%s '%s': the %s of rank %d (%s) could not be %s at address 0x%" PRIx64 ": %s",
             hvi_kind_text(op->kind), label, fault->writing ? "output" : "input", slot->rank,
             process, fault->writing ? "written" : "read", fault->address, why);
}

void engine_remote_failed(struct engine_sessions *sessions, struct engine_op *op, int status,
                          const struct engine_fault *fault)
{
    const struct engine_request *request = engine_request_of(op->parts[fault->rank]);
    int32_t rank = request->session->rank;
    struct engine_rank *slot = engine_rank_at(sessions, request->session->seat);
    char text[HVI_TEXT_MAX + 1];

    if (is_gone(slot, request->session, fault->error)) {
        bereave(sessions, op, slot);
        return;
    }
    describe(op, fault, slot, text, sizeof text);
    HVI_LOG(HVI_LOG_WARN, "foreign", fault->error == ETIMEDOUT ? "memory-silent" : "memory-gone",
            text, "job=%s rank=%d", sessions->start->job, rank);
    engine_op_done(sessions->order, op, status, text, rank);
}
