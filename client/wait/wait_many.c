/* SPDX-License-Identifier: Apache-2.0
 * hvd_wait_any and hvd_wait_all.
 *
 * Ops of one session are waited for by its bell, all at once: the bell word is read before the last
 * look, so nothing can finish unseen in between. Ops of several sessions have several bells; then
 * the caller sleeps on one of them in short slices and looks at all sessions in turn. That look is
 * needed anyway: an allgather of one session may wait for memory that only a look at another session
 * gives (client_wait_progress). */
#include "base/clock.h"
#include "base/yield.h"
#include "client/error.h"
#include "client/session/enter.h"
#include "client/session/session.h"
#include "client/slots/medium.h"
#include "client/slots/slots.h"
#include "client/slots/watch.h"
#include "client/wait/wait.h"

#include <stdbool.h>

#define MIXED_SLICE_NS (1ull * HVI_NS_MS)
#define SLOT_ROUNDS    200u

struct wait_set {
    struct hvd_op *const *ops;
    int count;
    const char *what;
    int first;                 /* the first op that is not known to be finished */
    int failed;                /* the first one that has failed, -1: none */
    bool refused;              /* an op is none that can be waited for */
    bool mixed;                /* several sessions */
    bool copying;              /* another thread copies a result of ours */
    bool fenced;               /* an op of ours is one on device memory */
    bool look;                 /* at the socket */
    struct hvd_op *slot;       /* an op of ours that waits in a slot, where no bell rings */
    struct client_watch watch; /* what it was when it was looked at */
    uint32_t slots_seen;       /* rounds with such an op */
    bool noted;                /* how prompt we were */
    bool helped;               /* with a medium op, although it was late */
    uint32_t seen;             /* the bell word of `bell` before the last look */
    struct hvd_session *bell;
};

/* Skips NULLs from `i` on. */
static int next_op(const struct wait_set *set, int i)
{
    while (i < set->count && !set->ops[i])
        i++;
    return i;
}

static int init(struct wait_set *set, struct hvd_op *const *ops, int count, const char *what)
{
    *set = (struct wait_set){.ops = ops, .count = count, .what = what, .failed = -1};
    if (count < 0 || (count > 0 && !ops))
        return client_error(HVD_ERR_INVALID, "%s: %d ops at %p", what, count, (const void *)ops);
    set->first = next_op(set, 0);
    for (int i = set->first; i < count; i = next_op(set, i + 1))
        set->mixed |= ops[i]->session != ops[set->first]->session;
    return HVD_OK;
}

/* Enters the session of op `i` and makes progress there. */
static int enter(struct wait_set *set, int i)
{
    struct hvd_op *op = set->ops[i];
    int rc = client_op_enter(op, set->what);
    set->refused = rc != HVD_OK;
    if (set->refused)
        return rc;
    set->bell = op->session;
    set->seen = hvi_bell_read(op->session->link.channel.header);
    client_wait_progress(op->session, set->look);
    return HVD_OK;
}

static int look_at(struct wait_set *set, int i)
{
    struct hvd_op *op = set->ops[i];
    set->refused = op->state == CLIENT_OP_FREE || op->abandoned;
    if (set->refused)
        return client_error(HVD_ERR_INVALID, "%s: ops[%d] was released by hvd_op_free", set->what,
                            i);
    int rc = client_wait_look_at(op->session, op);
    if (rc == HVD_INPROGRESS && op->state == CLIENT_OP_COPYING)
        set->copying = true;
    if (rc == HVD_INPROGRESS && op->fence.cell != 0)
        set->fenced = true;
    if (rc == HVD_INPROGRESS && op->slot.active && (!set->slot || op->slot.medium)) {
        set->slot = op;
        set->watch = client_watch_of(op);
        if (!set->noted)
            client_watch_note_promptness(&op->session->slots, op);
        set->noted = true;
    }
    return rc;
}

static void leave(struct hvd_session *session)
{
    client_wait_sync_event(session);
    client_session_leave(session);
}

/* Looks at ops from `i` on as long as they are of one session and finished, or as long as they are not.
 * *i_p becomes the one that ends this. Returns what that one says; HVD_INPROGRESS if it is of another
 * session. */
static int look_along(struct wait_set *set, bool finished, int *i_p)
{
    int i = *i_p;
    int rc = enter(set, i);
    if (rc != HVD_OK)
        return rc;
    struct hvd_session *session = set->ops[i]->session;
    rc = HVD_INPROGRESS;
    while (i < set->count && set->ops[i]->session == session) {
        rc = look_at(set, i);
        if (finished == (rc == HVD_INPROGRESS))
            break;
        if (finished && rc != HVD_OK && set->failed < 0)
            set->failed = i;
        i = next_op(set, i + 1);
        rc = HVD_INPROGRESS;
    }
    leave(session);
    *i_p = i;
    return rc;
}

static uint64_t end_of_slice(uint64_t deadline_ns)
{
    uint64_t end_ns = hvi_clock_ns() + MIXED_SLICE_NS;
    return end_ns < deadline_ns ? end_ns : deadline_ns;
}

/* Peers that are about to come are waited for awake; after that the engine gets the op, so that the
 * bell rings for it. */
static void rest_awake(struct wait_set *set, uint64_t deadline_ns)
{
    struct hvd_op *op = set->slot;
    if (client_medium_help(&op->session->slots, op, &set->watch, UINT32_MAX) > 0)
        return;
    if (set->watch.medium && client_watch_runs(&op->session->slots, &set->watch)) {
        set->look = client_watch_wait(&op->session->slots, &set->watch, end_of_slice(deadline_ns));
        return;
    }
    if (hvi_yield() && ++set->slots_seen < SLOT_ROUNDS)
        return;
    if (client_op_enter(op, set->what) != HVD_OK)
        return;
    client_wait_hand_over(op->session, op, deadline_ns);
    client_session_leave(op->session);
}

/* Another round is needed: sleeps. */
static void rest(struct wait_set *set, uint64_t deadline_ns)
{
    if (set->slot) {
        rest_awake(set, deadline_ns);
        return;
    }
    set->look = client_wait_sleep(set->bell, set->copying, set->fenced, set->seen,
                                  set->mixed ? end_of_slice(deadline_ns) : deadline_ns);
    set->look &= !set->mixed; /* its slices are short; progress looks when it is time */
    set->copying = set->fenced = false;
}

/* It is too late; waits of no length are a way to poll. True: look once more. */
static bool help_late(struct wait_set *set)
{
    struct hvd_op *op = set->slot;
    if (!op || client_op_enter(op, set->what) != HVD_OK)
        return false;
    client_slots_polled(&op->session->slots, op);
    client_session_leave(op->session);
    if (!set->watch.medium || set->helped)
        return false;
    set->helped = true;
    return client_medium_help(&op->session->slots, op, &set->watch, 1) > 0;
}

static int timed_out(const struct wait_set *set, int64_t timeout_ns)
{
    struct hvd_op *op = set->ops[set->first];
    int rc = client_op_enter(op, set->what);
    if (rc != HVD_OK)
        return rc;
    rc = client_wait_timed_out(op, set->what, timeout_ns);
    client_session_leave(op->session);
    return rc;
}

static int wait_any(struct wait_set *set, int64_t timeout_ns, int *index_p)
{
    uint64_t deadline_ns = timeout_ns < 0 ? HVI_NEVER : hvi_deadline_after(timeout_ns);
    for (;;) {
        bool late = hvi_deadline_passed(deadline_ns);
        set->slot = NULL;
        for (int i = set->first; i < set->count;) {
            int rc = look_along(set, false, &i);
            if (rc == HVD_INPROGRESS)
                continue;
            *index_p = set->refused ? -1 : i;
            return rc;
        }
        if (!late)
            rest(set, deadline_ns);
        else if (!help_late(set))
            return timed_out(set, timeout_ns);
    }
}

int hvd_wait_any(struct hvd_op *const *ops, int count, int64_t timeout_ns, int *index_p)
{
    struct wait_set set;
    int index = -1;
    if (index_p)
        *index_p = -1;
    int rc = init(&set, ops, count, "hvd_wait_any");
    if (rc != HVD_OK)
        return rc;
    if (!index_p || set.first == count)
        return client_error(HVD_ERR_INVALID, "hvd_wait_any: %s",
                            index_p ? "there is no op to wait for" : "index_p is NULL");
    rc = wait_any(&set, timeout_ns, &index);
    *index_p = index;
    return rc;
}

/* Lets every session that still has ops here go on. */
static int look_everywhere(struct wait_set *set)
{
    for (int i = set->first; i < set->count;) {
        struct hvd_session *session = set->ops[i]->session;
        int rc = enter(set, i);
        if (rc != HVD_OK)
            return rc;
        leave(session);
        while (i < set->count && set->ops[i]->session == session)
            i = next_op(set, i + 1);
    }
    return HVD_OK;
}

/* Until all are finished. */
static int wait_all(struct wait_set *set, int64_t timeout_ns)
{
    uint64_t deadline_ns = timeout_ns < 0 ? HVI_NEVER : hvi_deadline_after(timeout_ns);
    while (set->first < set->count) {
        bool late = hvi_deadline_passed(deadline_ns);
        set->slot = NULL;
        int first = set->first;
        int rc = set->mixed ? look_everywhere(set) : HVD_OK;
        if (rc == HVD_OK)
            rc = look_along(set, true, &set->first);
        if (rc != HVD_INPROGRESS)
            return rc;
        if (set->first != first)
            set->slots_seen = 0;
        else if (!late)
            rest(set, deadline_ns);
        else if (!help_late(set))
            return timed_out(set, timeout_ns);
    }
    return HVD_OK;
}

int hvd_wait_all(struct hvd_op *const *ops, int count, int64_t timeout_ns)
{
    struct wait_set set;
    int rc = init(&set, ops, count, "hvd_wait_all");
    if (rc == HVD_OK)
        rc = wait_all(&set, timeout_ns);
    if (rc != HVD_OK || set.failed < 0)
        return rc;
    return hvd_test(ops[set.failed]); /* its sentence becomes the last error */
}
