/* SPDX-License-Identifier: Apache-2.0
 * From completion to caller: hvd_test and hvd_wait.
 *
 * A thread that takes the lock to look at its own op drains the whole ring and so also finishes the
 * ops of other threads; these see it when their bell slice ends or at once, because the bell word they
 * read before their last look has moved (a completion that another thread drained after that look was
 * published after it, and the bell comes after publishing).
 *
 * A dead engine shows on the socket only. It is looked at whenever a waiter's slice (<= 50 ms) ends
 * and at least every CLIENT_LOOK_NS when completions keep coming or a caller polls with hvd_test.
 *
 * The event descriptor is a level: readable while a finished op has not been looked at. hvd_test
 * and hvd_wait set it right: clear, drain what came before the clearing, set again when something
 * is still unseen. */
#include "client/wait/wait.h"

#include "base/clock.h"
#include "base/copy.h"
#include "client/error.h"
#include "client/link/control.h"
#include "client/session/enter.h"
#include "client/session/session.h"
#include "client/slots/medium.h"
#include "client/slots/slots.h"
#include "client/slots/watch.h"
#include "client/submit/output.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

#define COPY_LOCKED_MAX  32768u /* larger results are copied without the lock */
#define HAND_OVER_NS     (100 * HVI_NS_MS)
#define HAND_OVER_NAP_NS 20000l
#define COPYING_NAP_NS   (50ull * 1000ull)  /* another thread copies the result we wait for */
#define FEED_NS          (100ull * 1000ull) /* in a slot, while the bell may ring for another op */

static bool session_state_says_ended(const struct hvd_session *session)
{
    return atomic_load_explicit(&session->link.channel.header->session_state,
                                memory_order_relaxed) == HVI_SESSION_ENDED;
}

void client_wait_progress(struct hvd_session *session, bool look)
{
    client_complete_drain(&session->complete);
    if (look || session->link.epoll_fd >= 0 || session->memory.peers.asked > 0 ||
        session_state_says_ended(session) ||
        hvi_clock_ns() - session->link.looked_ns >= CLIENT_LOOK_NS) {
        session->link.looked_ns = hvi_clock_ns();
        session->link.look_due = false;
        client_control_look(&session->link);
        client_fence_look(session->memory.device);
    }
    if (session->ops.sized_first)
        client_output_feed(&session->ops, &session->ring);
}

/* See the top. */
void client_wait_sync_event(struct hvd_session *session)
{
    uint64_t value;
    ssize_t rc;
    if (session->link.epoll_fd < 0)
        return;
    rc = read(session->link.client_event_fd, &value, sizeof(value));
    client_complete_drain(&session->complete);
    if (session->slots_left) /* whose ends are in no ring */
        session->slots_left = client_slots_look_all(&session->slots);
    value = 1;
    if (session->ops.unseen > 0 || session->ops.sized_first)
        rc = write(session->link.client_event_fd, &value, sizeof(value));
    (void)rc; /* EAGAIN both times: nothing to clear, or set already */
}

static bool still_waits(struct hvd_session *session, struct hvd_op *op, uint32_t generation)
{
    if (op->generation != generation || op->state != CLIENT_OP_IN_FLIGHT || !op->slot.active)
        return false;
    client_slots_look(&session->slots, op);
    return op->generation == generation && op->state == CLIENT_OP_IN_FLIGHT && op->slot.active;
}

static void hand_over(struct hvd_session *session, struct hvd_op *op, uint64_t deadline_ns)
{
    const struct timespec nap = {.tv_nsec = HAND_OVER_NAP_NS};
    uint32_t generation = op->generation;
    while (still_waits(session, op, generation) && session->link.end_status == HVD_OK) {
        client_slots_call(&session->slots, op);
        pthread_mutex_unlock(&session->link.mutex);
        nanosleep(&nap, NULL);
        pthread_mutex_lock(&session->link.mutex);
        client_wait_progress(session, true);
        if (hvi_deadline_passed(deadline_ns))
            return; /* a stopped engine: the op ends when it goes on, or by its death */
    }
}

static void hand_over_all(struct hvd_session *session, uint64_t deadline_ns)
{
    struct client_ops *ops = &session->ops;
    for (uint32_t i = 0; i < ops->fresh; i++) {
        if (ops->slots[i].slot.active)
            client_slots_call(&session->slots, &ops->slots[i]);
    }
    for (uint32_t i = 0; i < ops->fresh && !hvi_deadline_passed(deadline_ns); i++) {
        if (ops->slots[i].slot.active)
            hand_over(session, &ops->slots[i], deadline_ns);
    }
}

void client_wait_hand_over(struct hvd_session *session, struct hvd_op *op, uint64_t deadline_ns)
{
    uint64_t most_ns = hvi_clock_ns() + HAND_OVER_NS;
    if (deadline_ns > most_ns)
        deadline_ns = most_ns;
    if (!op)
        hand_over_all(session, deadline_ns);
    else if (op->slot.active)
        hand_over(session, op, deadline_ns);
}

static void copy_out(struct hvd_session *session, struct hvd_op *op)
{
    bool locked = op->out_bytes <= COPY_LOCKED_MAX;
    session->ops.unseen--;
    if (locked) {
        hvi_copy(op->copy_to, op->out.shared, op->out_bytes);
        client_op_set_state(&session->ops, op, CLIENT_OP_FINISHED);
    } else {
        client_op_set_state(&session->ops, op, CLIENT_OP_COPYING);
        pthread_mutex_unlock(&session->link.mutex);
        hvi_copy(op->copy_to, op->out.shared, op->out_bytes);
        pthread_mutex_lock(&session->link.mutex);
        client_op_set_state(&session->ops, op, CLIENT_OP_FINISHED);
    }
    client_memory_put(&session->memory, &op->out);
}

/* The same to a device's memory. */
static void stage_out(struct hvd_session *session, struct hvd_op *op)
{
    client_op_set_state(&session->ops, op, CLIENT_OP_COPYING);
    if (op->out.block && op->out_bytes > 0)
        client_staging_pin(&session->memory.staging, op->out.block, op->out.device);
    pthread_mutex_unlock(&session->link.mutex);
    int rc = op->out_bytes == 0 ? HVD_OK
                                : client_device_copy_out(op->out.device, "hvd_wait", op->stage_to,
                                                         op->out.shared, op->out_bytes);
    pthread_mutex_lock(&session->link.mutex);
    if (rc != HVD_OK) {
        op->status = rc;
        op->error_owned = strdup(hvd_last_error());
        op->error = op->error_owned ? op->error_owned : "the copy to the device has failed";
    }
    client_op_set_state(&session->ops, op, CLIENT_OP_FINISHED);
}

int client_wait_look_at(struct hvd_session *session, struct hvd_op *op)
{
    if (op->slot.active)
        client_slots_look(&session->slots, op);
    if (op->state == CLIENT_OP_DONE && op->copy_to && op->out_bytes > 0) {
        copy_out(session, op);
    } else if (op->state == CLIENT_OP_DONE) {
        session->ops.unseen--;
        if (op->stage_to)
            stage_out(session, op);
        else
            client_op_set_state(&session->ops, op, CLIENT_OP_FINISHED);
        if (!client_op_owns_result(op))
            client_memory_put(&session->memory, &op->out);
    }
    if (op->state != CLIENT_OP_FINISHED)
        return HVD_INPROGRESS;
    int status = op->status;
    if (status != HVD_OK)
        client_error_copy(status, op->error);
    if (op->abandoned) /* released by another thread while we copied */
        client_op_release(&session->ops, op);
    return status;
}

/* A medium op in its slot: where all ranks only poll, the calls that poll run its chunks. */
static int test_again(struct hvd_session *session, struct hvd_op *op,
                      const struct client_watch *watch)
{
    if (client_medium_help(&session->slots, op, watch, 1) == 0)
        return HVD_INPROGRESS;
    int rc = client_op_enter(op, "hvd_test");
    if (rc != HVD_OK)
        return rc;
    session->slots.prompt = false;
    rc = client_wait_look_at(session, op);
    client_wait_sync_event(session);
    client_session_leave(session);
    return rc;
}

int hvd_test(struct hvd_op *op)
{
    int rc = client_op_enter(op, "hvd_test");
    if (rc != HVD_OK)
        return rc;
    struct hvd_session *session = op->session;
    client_wait_progress(session, false);
    rc = client_wait_look_at(session, op);
    client_wait_sync_event(session);
    client_slots_polled(&session->slots, op);
    bool stands = rc == HVD_INPROGRESS && op->slot.active;
    struct client_watch watch = client_watch_of(op);
    client_session_leave(session);
    return stands ? test_again(session, op, &watch) : rc;
}

bool client_wait_sleep(struct hvd_session *session, bool copying, bool fenced, uint32_t seen,
                       uint64_t deadline_ns)
{
    struct hvi_wait_policy policy = session->policy;

    if (copying) {
        struct timespec nap = {.tv_nsec = COPYING_NAP_NS};
        nanosleep(&nap, NULL);
        return false;
    }
    if (fenced)
        policy.spins = 0;
    return !hvi_bell_wait(session->link.channel.header, seen, &policy, deadline_ns);
}

int client_wait_timed_out(const struct hvd_op *op, const char *what, int64_t timeout_ns)
{
    char text[HVI_TEXT_MAX / 2];
    client_op_describe(op, text, sizeof(text));
    return client_error(HVD_ERR_TIMEOUT,
                        "%s: %s is not finished after %.3f s; it goes on, and 'hvdctl stalls' "
                        "shows which ranks are missing",
                        what, text, (double)timeout_ns / 1e9);
}

/* A thread in hvd_wait. */
struct waiter {
    struct hvd_op *op;
    int64_t timeout_ns;
    uint64_t deadline_ns;
    bool look;   /* at the socket */
    bool helped; /* with a medium op, although it was late */
    bool noted;  /* how prompt it was */
    /* What the last look has seen. */
    bool in_slot, copying, fenced;
    bool feeds; /* an op of this rank may want memory for its result: no slot says so */
    uint32_t seen;
    struct client_watch watch;
};

/* With the lock. It is too late; waits of no length are a way to poll. */
static int look_late(struct waiter *waiter)
{
    struct hvd_op *op = waiter->op;
    int rc = HVD_INPROGRESS;
    if (op->slot.active) {
        client_wait_progress(op->session, false);
        client_slots_polled(&op->session->slots, op);
        rc = client_wait_look_at(op->session, op);
    }
    return rc == HVD_INPROGRESS ? client_wait_timed_out(op, "hvd_wait", waiter->timeout_ns) : rc;
}

/* With the lock. HVD_INPROGRESS, or how the call ends. */
static int look_once(struct waiter *waiter)
{
    struct hvd_op *op = waiter->op;
    struct hvd_session *session = op->session;
    waiter->seen = hvi_bell_read(session->link.channel.header);
    if (waiter->look || !op->slot.active || session->ops.own_outputs > 0)
        client_wait_progress(session, waiter->look);
    int rc = client_wait_look_at(session, op);
    bool helps = op->slot.medium && op->slot.active && !waiter->helped;
    if (rc == HVD_INPROGRESS && !helps && hvi_deadline_passed(waiter->deadline_ns))
        rc = look_late(waiter);
    if (rc != HVD_INPROGRESS && session->link.look_due)
        client_wait_progress(session, true);
    if (rc != HVD_INPROGRESS)
        client_wait_sync_event(session);
    return rc;
}

/* Without the lock. Another op of ours may want memory for its result, and the peers that this one waits for may wait for
 * that. The engine says so by the bell, which a rank that sleeps on a slot does not hear: the engine gets the op. */
static void rest_and_feed(struct waiter *waiter, struct hvd_session *session)
{
    uint64_t end_ns = hvi_clock_ns() + FEED_NS;
    if (waiter->deadline_ns < end_ns)
        end_ns = waiter->deadline_ns;
    client_watch_wait(&session->slots, &waiter->watch, end_ns);
    waiter->look = false; /* each round looks at the ring, and at the socket when it is time */
    if (waiter->watch.sight != HVI_SLOT_WAITS || client_op_enter(waiter->op, "hvd_wait") != HVD_OK)
        return;
    client_wait_hand_over(session, waiter->op, waiter->deadline_ns);
    client_session_leave(session);
}

/* Without the lock. */
static void rest(struct waiter *waiter, struct hvd_session *session)
{
    bool late = waiter->watch.medium && hvi_deadline_passed(waiter->deadline_ns);
    waiter->helped = late;
    if (client_medium_help(&session->slots, waiter->op, &waiter->watch, late ? 1 : UINT32_MAX) >
            0 ||
        late)
        return;
    if (waiter->in_slot && waiter->feeds)
        rest_and_feed(waiter, session);
    else if (waiter->in_slot)
        waiter->look = client_watch_wait(&session->slots, &waiter->watch, waiter->deadline_ns);
    else
        waiter->look = client_wait_sleep(session, waiter->copying, waiter->fenced, waiter->seen,
                                         waiter->deadline_ns);
}

int hvd_wait(struct hvd_op *op, int64_t timeout_ns)
{
    struct waiter waiter = {.op = op,
                            .timeout_ns = timeout_ns,
                            .deadline_ns =
                                timeout_ns < 0 ? HVI_NEVER : hvi_deadline_after(timeout_ns)};
    for (;;) {
        int rc = client_op_enter(op, "hvd_wait");
        if (rc != HVD_OK)
            return rc;
        struct hvd_session *session = op->session;
        bool was_in_slot = op->slot.active;
        rc = look_once(&waiter);
        waiter.copying = op->state == CLIENT_OP_COPYING;
        waiter.in_slot = op->slot.active;
        waiter.fenced = op->fence.cell != 0;
        waiter.feeds = session->ops.own_outputs > 0;
        waiter.watch = client_watch_of(op);
        if (rc == HVD_INPROGRESS && waiter.in_slot && !waiter.noted)
            client_watch_note_promptness(&session->slots, op);
        waiter.noted = true;
        client_session_leave(session);
        if (rc != HVD_INPROGRESS)
            return rc;
        if (was_in_slot && !waiter.in_slot)
            continue; /* the engine's now: its completion may be there already */
        rest(&waiter, session);
    }
}
