/* SPDX-License-Identifier: Apache-2.0
 * hvd_wait_any and hvd_wait_all.
 *
 * Ops of one session are waited for by its bell, all at once: the bell word is read before the last
 * look, so nothing can finish unseen in between. Ops of several sessions have several bells; then
 * the caller sleeps on one of them in short slices and looks at all sessions in turn. That look is
 * needed anyway: an allgather of one session may wait for memory that only a look at another session
 * gives (client_wait_progress). */
#include "base/clock.h"
#include "client/error.h"
#include "client/session/enter.h"
#include "client/session/session.h"
#include "client/slots/large.h"
#include "client/slots/watch.h"
#include "client/wait/wait.h"

#include <sched.h>
#include <stdbool.h>

#define MIXED_SLICE_NS (1ull * HVI_NS_MS)
#define SLOT_ROUNDS    200u

struct crowd {
    struct hvd_op *const *ops;
    int count;
    const char *what;
    int first;           /* the first op that is not known to be finished */
    bool mixed;          /* several sessions */
    bool copying;        /* another thread copies a result of ours */
    bool look;           /* at the socket */
    struct hvd_op *slot; /* an op of ours that waits in an express slot, where no bell rings */
    struct client_watch watch; /* what it was when it was looked at */
    uint32_t slots_seen;       /* rounds with such an op */
    bool noted;                /* how prompt we were */
    uint32_t seen;             /* the bell word of `bell` before the last look */
    struct hvd_session *bell;
};

/* Skips NULLs from `i` on. */
static int next_op(const struct crowd *crowd, int i)
{
    while (i < crowd->count && !crowd->ops[i])
        i++;
    return i;
}

static int init(struct crowd *crowd, struct hvd_op *const *ops, int count, const char *what)
{
    *crowd = (struct crowd){.ops = ops, .count = count, .what = what};
    if (count < 0 || (count > 0 && !ops))
        return client_error(HVD_ERR_INVALID, "%s: %d ops at %p", what, count, (const void *)ops);
    crowd->first = next_op(crowd, 0);
    for (int i = crowd->first; i < count; i = next_op(crowd, i + 1))
        crowd->mixed |= ops[i]->session != ops[crowd->first]->session;
    return HVD_OK;
}

/* Enters the session of op `i` and makes progress there. */
static int enter(struct crowd *crowd, int i)
{
    struct hvd_op *op = crowd->ops[i];
    int rc = client_op_enter(op, crowd->what);
    if (rc != HVD_OK)
        return rc;
    crowd->bell = op->session;
    crowd->seen = hvi_bell_read(op->session->link.channel.header);
    client_wait_progress(op->session, crowd->look);
    return HVD_OK;
}

static int look_at(struct crowd *crowd, int i)
{
    struct hvd_op *op = crowd->ops[i];
    if (op->state == CLIENT_OP_FREE || op->abandoned)
        return client_error(HVD_ERR_INVALID, "%s: ops[%d] was released by hvd_op_free", crowd->what,
                            i);
    int rc = client_wait_look_at(op->session, op);
    if (rc == HVD_INPROGRESS && op->state == CLIENT_OP_COPYING)
        crowd->copying = true;
    if (rc == HVD_INPROGRESS && op->express.active) {
        crowd->slot = op;
        crowd->watch = client_watch_of(op);
        if (!crowd->noted)
            client_watch_note_promptness(&op->session->slots, op);
        crowd->noted = true;
    }
    return rc;
}

static void leave(struct hvd_session *session)
{
    client_wait_sync_event(session);
    client_session_leave(session);
}

/* Looks at ops from `i` on as long as they are of one session and unfinished. *i_p becomes the one
 * that is finished, or the first of another session. */
static int look_along(struct crowd *crowd, int *i_p)
{
    int i = *i_p;
    int rc = enter(crowd, i);
    if (rc != HVD_OK)
        return rc;
    struct hvd_session *session = crowd->ops[i]->session;
    rc = HVD_INPROGRESS;
    while (i < crowd->count && crowd->ops[i]->session == session) {
        rc = look_at(crowd, i);
        if (rc != HVD_INPROGRESS)
            break;
        i = next_op(crowd, i + 1);
    }
    leave(session);
    *i_p = i;
    return rc;
}

/* Peers that are about to come are waited for awake; after that the engine gets the op, so that the
 * bell rings for it. */
static void rest_awake(struct crowd *crowd, uint64_t deadline_ns)
{
    struct hvd_op *op = crowd->slot;
    crowd->slot = NULL;
    if (client_large_help(&op->session->slots, op, &crowd->watch, UINT32_MAX) > 0)
        return;
    if (crowd->watch.large && client_watch_runs(&op->session->slots, &crowd->watch)) {
        uint64_t slice_ns = hvi_clock_ns() + MIXED_SLICE_NS;
        crowd->look = client_watch_wait(&op->session->slots, &crowd->watch,
                                        slice_ns < deadline_ns ? slice_ns : deadline_ns);
        return;
    }
    sched_yield();
    if (++crowd->slots_seen < SLOT_ROUNDS || client_op_enter(op, crowd->what) != HVD_OK)
        return;
    client_wait_settle(op->session, op);
    client_session_leave(op->session);
}

/* Another round is needed: sleeps. */
static void rest(struct crowd *crowd, uint64_t deadline_ns)
{
    if (crowd->slot) {
        rest_awake(crowd, deadline_ns);
        return;
    }
    uint64_t until_ns = deadline_ns;
    if (crowd->mixed) {
        uint64_t slice_ns = hvi_clock_ns() + MIXED_SLICE_NS;
        until_ns = slice_ns < deadline_ns ? slice_ns : deadline_ns;
    }
    crowd->look = client_wait_sleep(crowd->bell, crowd->copying, crowd->seen, until_ns);
    crowd->look &= !crowd->mixed; /* its slices are short; progress looks when it is time */
    crowd->copying = false;
}

static int timed_out(const struct crowd *crowd, int i, int64_t timeout_ns)
{
    char text[HVI_TEXT_MAX / 2];
    int rc = client_op_enter(crowd->ops[i], crowd->what);
    if (rc != HVD_OK)
        return rc;
    client_op_describe(crowd->ops[i], text, sizeof(text));
    client_session_leave(crowd->ops[i]->session);
    return client_error(HVD_ERR_TIMEOUT,
                        "%s: %s is not finished after %.3f s; it goes on, and 'hvdctl stalls' "
                        "shows which ranks are missing",
                        crowd->what, text, (double)timeout_ns / 1e9);
}

static int wait_any(struct crowd *crowd, int64_t timeout_ns, int *index_p)
{
    uint64_t deadline_ns = timeout_ns < 0 ? HVI_NEVER : hvi_deadline_after(timeout_ns);
    for (;;) {
        bool late = hvi_deadline_passed(deadline_ns);
        for (int i = crowd->first; i < crowd->count;) {
            int rc = look_along(crowd, &i);
            if (rc == HVD_INPROGRESS)
                continue;
            *index_p = i;
            return rc;
        }
        if (late)
            return timed_out(crowd, crowd->first, timeout_ns);
        rest(crowd, deadline_ns);
    }
}

int hvd_wait_any(struct hvd_op *const *ops, int count, int64_t timeout_ns, int *index_p)
{
    struct crowd crowd;
    int index = -1;
    if (index_p)
        *index_p = -1;
    int rc = init(&crowd, ops, count, "hvd_wait_any");
    if (rc != HVD_OK)
        return rc;
    if (!index_p || crowd.first == count)
        return client_error(HVD_ERR_INVALID, "hvd_wait_any: %s",
                            index_p ? "there is no op to wait for" : "index_p is NULL");
    rc = wait_any(&crowd, timeout_ns, &index);
    *index_p = index;
    return rc;
}

/* Moves crowd->first past finished ops of one session; *failed_p is the first one that failed. */
static int advance(struct crowd *crowd, int *failed_p)
{
    int i = crowd->first;
    int rc = enter(crowd, i);
    if (rc != HVD_OK)
        return rc;
    struct hvd_session *session = crowd->ops[i]->session;
    while (i < crowd->count && crowd->ops[i]->session == session) {
        rc = look_at(crowd, i);
        if (rc == HVD_INPROGRESS)
            break;
        if (rc != HVD_OK && *failed_p < 0)
            *failed_p = i;
        i = next_op(crowd, i + 1);
    }
    leave(session);
    bool moved = i != crowd->first;
    if (moved)
        crowd->slots_seen = 0;
    crowd->first = i;
    return moved ? HVD_OK : HVD_INPROGRESS;
}

/* Lets every session that still has ops here go on. */
static int look_everywhere(struct crowd *crowd)
{
    for (int i = crowd->first; i < crowd->count;) {
        struct hvd_session *session = crowd->ops[i]->session;
        int rc = enter(crowd, i);
        if (rc != HVD_OK)
            return rc;
        leave(session);
        while (i < crowd->count && crowd->ops[i]->session == session)
            i = next_op(crowd, i + 1);
    }
    return HVD_OK;
}

/* Until all are finished. */
static int wait_all(struct crowd *crowd, int64_t timeout_ns, int *failed_p)
{
    uint64_t deadline_ns = timeout_ns < 0 ? HVI_NEVER : hvi_deadline_after(timeout_ns);
    while (crowd->first < crowd->count) {
        bool late = hvi_deadline_passed(deadline_ns);
        int rc = crowd->mixed ? look_everywhere(crowd) : HVD_OK;
        if (rc == HVD_OK)
            rc = advance(crowd, failed_p);
        if (rc == HVD_OK)
            continue;
        if (rc != HVD_INPROGRESS)
            return rc;
        if (late)
            return timed_out(crowd, crowd->first, timeout_ns);
        rest(crowd, deadline_ns);
    }
    return HVD_OK;
}

int hvd_wait_all(struct hvd_op *const *ops, int count, int64_t timeout_ns)
{
    struct crowd crowd;
    int failed = -1;
    int rc = init(&crowd, ops, count, "hvd_wait_all");
    if (rc == HVD_OK)
        rc = wait_all(&crowd, timeout_ns, &failed);
    if (rc != HVD_OK || failed < 0)
        return rc;
    return hvd_test(ops[failed]); /* its sentence becomes the last error */
}
