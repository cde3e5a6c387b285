/* SPDX-License-Identifier: Apache-2.0
 * From completion to caller: hvd_test, hvd_wait, hvd_op_result and the end of an op's life.
 *
 * Whoever takes the lock to look at its own op drains the whole ring and so also finishes the ops
 * of other threads; these see it when their bell slice ends or at once, because the bell word they
 * read before their last look has moved (a completion that somebody drained after that look was
 * published after it, and the bell comes after publishing).
 *
 * A dead engine shows on the socket only. It is looked at whenever a waiter's slice (<= 50 ms) ends
 * and at least every CLIENT_LOOK_NS when completions keep coming or a caller polls with hvd_test.
 *
 * The event descriptor is a level: readable while a finished op has not been looked at. hvd_test
 * and hvd_wait set it right: clear, drain what came before the clearing, set again when something
 * is still unseen. */
#include "client/wait.h"

#include "base/bits.h"
#include "base/clock.h"
#include "base/status.h"
#include "client/error.h"
#include "client/link/control.h"
#include "client/ops/land.h"
#include "client/output.h"
#include "client/session/enter.h"
#include "client/session/session.h"
#include "client/slots/large.h"
#include "client/slots/slots.h"
#include "client/slots/tickets.h"
#include "client/slots/watch.h"
#include "client/submit.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#define COPY_LOCKED_MAX 32768u /* larger results are copied without the lock */
#define SETTLE_NS       (100 * HVI_NS_MS)
#define SETTLE_NAP_NS   20000l
#define COPYING_NAP_NS  (50ull * 1000ull) /* another thread copies the result we wait for */

static void land(struct hvd_session *session, struct hvd_op *op)
{
    if (op->express.brought)
        client_slots_landed(&session->slots, op);
    client_op_land(&session->ops, op);
}

/* An engine that lives sees to it itself that ranks leave the operands alone. */
static void close_large(struct hvd_session *session, struct hvd_op *op)
{
    if (session->link.end_status == HVD_ERR_ENGINE_LOST && op->state == CLIENT_OP_IN_FLIGHT &&
        op->express.brought && op->express.large)
        client_large_close(&session->slots, op);
}

void client_wait_fail_all(struct hvd_session *session)
{
    for (uint32_t i = 0; i < session->ops.fresh; i++) {
        struct hvd_op *op = &session->ops.slots[i];
        close_large(session, op);
        if (op->state != CLIENT_OP_IN_FLIGHT && op->state != CLIENT_OP_SIZED)
            continue;
        op->status = session->link.end_status;
        op->error = session->link.end_text;
        op->copy_to = NULL;
        land(session, op);
    }
}

static void take_text(struct hvd_session *session, struct hvd_op *op,
                      const struct hvi_completion *completion)
{
    char text[HVI_TEXT_MAX + 1];
    op->error = hvi_status_text(op->status);
    if (completion->text_cell == HVI_TEXT_NONE ||
        !hvi_channel_read_text(&session->link.channel, completion->text_cell, completion->text_turn,
                               text, sizeof(text)) ||
        !text[0])
        return;
    op->error_owned = strdup(text);
    if (op->error_owned)
        op->error = op->error_owned;
}

/* Whether the engine's numbers for a result make sense. One that has no place yet is only a size. */
static bool rows_fit(const struct hvd_op *op, const struct hvi_completion *completion)
{
    uint64_t bytes;
    return completion->rows >= 0 &&
           hvi_mul_checked((uint64_t)completion->rows, op->row_bytes, &bytes) &&
           bytes == completion->bytes;
}

/* Whether an engine could say that this op has succeeded so. One that still waits for its memory
 * cannot have a result. */
static bool result_fits(struct hvd_session *session, const struct hvd_op *op,
                        const struct hvi_completion *completion)
{
    if (completion->status != HVD_OK)
        return true;
    if (op->kind == HVI_KIND_JOIN)
        return completion->rows >= 0 && completion->rows < session->link.identity.size;
    if (op->kind == HVI_KIND_RECV)
        return completion->rows >= 0 && completion->rows < session->link.identity.size &&
               (op->peer < 0 || completion->rows == op->peer);
    if (client_kind_makes_set(op->kind))
        return completion->rows > 0 && completion->rows <= INT_MAX &&
               !client_sets_find(&session->ops.sets, (int)completion->rows);
    if (!client_kind_sizes_late(op->kind))
        return true;
    return op->state != CLIENT_OP_SIZED && rows_fit(op, completion) &&
           completion->bytes <= op->out_bytes;
}

static void complete_done(struct hvd_session *session, struct hvd_op *op,
                          const struct hvi_completion *completion)
{
    op->status = completion->status;
    op->culprit = completion->culprit;
    op->number = completion->rows;
    if (op->status != HVD_OK) {
        take_text(session, op, completion);
        op->copy_to = NULL;
    } else if (client_kind_sizes_late(op->kind)) {
        op->out_bytes = completion->bytes;
        op->result.dims[0] = completion->rows;
    }
    client_slots_take_back(op);
    if (session->slots.on)
        client_ticket_take(&session->ops, op, completion);
    land(session, op);
}

static void complete_sized(struct hvd_session *session, struct hvd_op *op,
                           const struct hvi_completion *completion)
{
    op->out_bytes = completion->bytes;
    op->wants_output = false;
    client_op_set_state(&session->ops, op, CLIENT_OP_SIZED);
    client_ops_queue(&session->ops, op);
}

/* False when an engine would never send this. */
static bool complete(struct hvd_session *session, const struct hvi_completion *completion)
{
    struct hvd_op *op = client_ops_find(&session->ops, completion->cookie);
    if (completion->seq != session->complete_seq + 1 || !op)
        return false;
    session->complete_seq++;
    if (completion->kind == HVI_COMPLETE_SIZED) {
        if (!op->wants_output || !rows_fit(op, completion))
            return false;
        complete_sized(session, op, completion);
        return true;
    }
    if (completion->kind != HVI_COMPLETE_DONE || completion->status > 0 ||
        !result_fits(session, op, completion))
        return false;
    complete_done(session, op, completion);
    return true;
}

void client_wait_drain(struct hvd_session *session)
{
    struct hvi_completion completion;
    uint32_t available = 0;
    if (session->link.end_status != HVD_OK)
        return;
    bool sane = hvi_ring_available(&session->link.channel.cq, &available) == HVD_OK;
    for (uint32_t i = 0; sane && i < available; i++) {
        hvi_ring_copy(&session->link.channel.cq, i, &completion);
        sane = complete(session, &completion);
    }
    if (available > 0)
        hvi_ring_release(&session->link.channel.cq, available);
    if (!sane)
        client_link_end(&session->link, HVD_ERR_PROTOCOL,
                        "the engine of job '%s' (pid %d) wrote an impossible completion; close "
                        "this session and open a new one",
                        session->link.identity.job, session->link.engine_pid);
    else if (session->ops.orphans > 0)
        client_slots_look_all(&session->slots);
}

static bool session_state_says_ended(const struct hvd_session *session)
{
    return atomic_load_explicit(&session->link.channel.header->session_state,
                                memory_order_relaxed) == HVI_SESSION_ENDED;
}

void client_wait_progress(struct hvd_session *session, bool look)
{
    client_wait_drain(session);
    if (!look && session->link.epoll_fd < 0 && session->memory.peers.asked == 0 &&
        !session_state_says_ended(session) &&
        hvi_clock_ns() - session->link.looked_ns < CLIENT_LOOK_NS) {
        if (session->ops.sized_first)
            client_output_feed(session);
        return;
    }
    session->link.looked_ns = hvi_clock_ns();
    session->link.look_due = false;
    client_control_look(&session->link);
    if (session->ops.sized_first)
        client_output_feed(session);
}

/* See the top. */
void client_wait_sync_event(struct hvd_session *session)
{
    uint64_t value;
    ssize_t rc;
    if (session->link.epoll_fd < 0)
        return;
    rc = read(session->link.client_event_fd, &value, sizeof(value));
    client_wait_drain(session);
    if (session->slots_left) /* whose ends are in no ring */
        session->slots_left = client_slots_look_all(&session->slots);
    value = 1;
    if (session->ops.unseen > 0 || session->ops.sized_first)
        rc = write(session->link.client_event_fd, &value, sizeof(value));
    (void)rc; /* EAGAIN both times: nothing to clear, or set already */
}

static bool still_waits(struct hvd_session *session, struct hvd_op *op, uint32_t generation)
{
    if (op->generation != generation || op->state != CLIENT_OP_IN_FLIGHT || !op->express.active)
        return false;
    client_slots_look(&session->slots, op);
    return op->generation == generation && op->state == CLIENT_OP_IN_FLIGHT && op->express.active;
}

static void settle(struct hvd_session *session, struct hvd_op *op)
{
    const struct timespec nap = {.tv_nsec = SETTLE_NAP_NS};
    uint64_t deadline_ns = hvi_clock_ns() + SETTLE_NS;
    uint32_t generation = op->generation;
    while (still_waits(session, op, generation) && session->link.end_status == HVD_OK) {
        client_slots_call(&session->slots, op);
        pthread_mutex_unlock(&session->link.mutex);
        nanosleep(&nap, NULL);
        pthread_mutex_lock(&session->link.mutex);
        client_wait_drain(session);
        client_control_look(&session->link);
        if (hvi_deadline_passed(deadline_ns))
            return; /* a stopped engine: the op ends when it goes on, or by its death */
    }
}

void client_wait_settle(struct hvd_session *session, struct hvd_op *op)
{
    if (op && op->express.active)
        settle(session, op);
    for (uint32_t i = 0; !op && i < session->ops.fresh; i++) {
        if (session->ops.slots[i].express.active)
            settle(session, &session->ops.slots[i]);
    }
}

static void copy_out(struct hvd_session *session, struct hvd_op *op)
{
    bool locked = op->out_bytes <= COPY_LOCKED_MAX;
    session->ops.unseen--;
    if (locked) {
        memcpy(op->copy_to, op->out.shared, op->out_bytes);
        client_op_set_state(&session->ops, op, CLIENT_OP_FINISHED);
    } else {
        client_op_set_state(&session->ops, op, CLIENT_OP_COPYING);
        pthread_mutex_unlock(&session->link.mutex);
        memcpy(op->copy_to, op->out.shared, op->out_bytes);
        pthread_mutex_lock(&session->link.mutex);
        client_op_set_state(&session->ops, op, CLIENT_OP_FINISHED);
    }
    client_memory_put(&session->memory, &op->out);
}

int client_wait_look_at(struct hvd_session *session, struct hvd_op *op)
{
    if (op->express.active)
        client_slots_look(&session->slots, op);
    if (op->state == CLIENT_OP_DONE && op->copy_to && op->out_bytes > 0) {
        copy_out(session, op);
    } else if (op->state == CLIENT_OP_DONE) {
        session->ops.unseen--;
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

int client_op_enter(const struct hvd_op *op, const char *what)
{
    if (!op)
        return client_error(HVD_ERR_INVALID, "%s: op is NULL", what);
    if (!op->session)
        return client_error(HVD_ERR_INVALID, "%s: this op was never submitted", what);
    int rc = client_session_enter(op->session, what);
    if (rc != HVD_OK)
        return rc;
    if (op->state != CLIENT_OP_FREE && !op->abandoned)
        return HVD_OK;
    client_session_leave(op->session);
    return client_error(HVD_ERR_INVALID, "%s: this op was released by hvd_op_free", what);
}

/* A large op in its slot: where all ranks only poll, nobody else does it. */
static int test_again(struct hvd_session *session, struct hvd_op *op,
                      const struct client_watch *watch)
{
    if (client_large_help(&session->slots, op, watch, 1) == 0)
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
    bool stands = rc == HVD_INPROGRESS && op->express.active;
    struct client_watch watch = client_watch_of(op);
    client_session_leave(session);
    return stands ? test_again(session, op, &watch) : rc;
}

bool client_wait_sleep(struct hvd_session *session, bool copying, uint32_t seen,
                       uint64_t deadline_ns)
{
    if (copying) {
        struct timespec nap = {.tv_nsec = COPYING_NAP_NS};
        nanosleep(&nap, NULL);
        return false;
    }
    return !hvi_bell_wait(session->link.channel.header, seen, &session->policy, deadline_ns);
}

static int timed_out(const struct hvd_op *op, int64_t timeout_ns)
{
    char text[HVI_TEXT_MAX / 2];
    client_op_describe(op, text, sizeof(text));
    return client_error(HVD_ERR_TIMEOUT,
                        "hvd_wait: %s is not finished after %.3f s; it goes on, and 'hvdctl "
                        "stalls' shows which ranks are missing",
                        text, (double)timeout_ns / 1e9);
}

/* A thread in hvd_wait. */
struct waiter {
    struct hvd_op *op;
    int64_t timeout_ns;
    uint64_t deadline_ns;
    bool look;   /* at the socket */
    bool helped; /* with a large op, although it was late */
    bool noted;  /* how prompt it was */
    /* What the last look has seen. */
    bool express, copying;
    uint32_t seen;
    struct client_watch watch;
};

/* With the lock. It is too late; waits of no length are a way to poll. */
static int look_late(struct waiter *waiter)
{
    struct hvd_op *op = waiter->op;
    int rc = HVD_INPROGRESS;
    if (op->express.active) {
        client_wait_progress(op->session, false);
        client_slots_polled(&op->session->slots, op);
        rc = client_wait_look_at(op->session, op);
    }
    return rc == HVD_INPROGRESS ? timed_out(op, waiter->timeout_ns) : rc;
}

/* With the lock. HVD_INPROGRESS, or how the call ends. */
static int look_once(struct waiter *waiter)
{
    struct hvd_op *op = waiter->op;
    struct hvd_session *session = op->session;
    waiter->seen = hvi_bell_read(session->link.channel.header);
    if (waiter->look || !op->express.active)
        client_wait_progress(session, waiter->look);
    int rc = client_wait_look_at(session, op);
    bool helps = op->express.large && op->express.active && !waiter->helped;
    if (rc == HVD_INPROGRESS && !helps && hvi_deadline_passed(waiter->deadline_ns))
        rc = look_late(waiter);
    if (rc != HVD_INPROGRESS && session->link.look_due)
        client_wait_progress(session, true);
    if (rc != HVD_INPROGRESS)
        client_wait_sync_event(session);
    return rc;
}

/* Without the lock. */
static void rest(struct waiter *waiter, struct hvd_session *session)
{
    bool late = waiter->watch.large && hvi_deadline_passed(waiter->deadline_ns);
    waiter->helped = late;
    if (client_large_help(&session->slots, waiter->op, &waiter->watch, late ? 1 : UINT32_MAX) > 0 ||
        late)
        return;
    if (waiter->express)
        waiter->look = client_watch_wait(&session->slots, &waiter->watch, waiter->deadline_ns);
    else
        waiter->look =
            client_wait_sleep(session, waiter->copying, waiter->seen, waiter->deadline_ns);
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
        bool was_express = op->express.active;
        rc = look_once(&waiter);
        waiter.copying = op->state == CLIENT_OP_COPYING;
        waiter.express = op->express.active;
        waiter.watch = client_watch_of(op);
        if (rc == HVD_INPROGRESS && waiter.express && !waiter.noted)
            client_watch_note_promptness(&session->slots, op);
        waiter.noted = true;
        client_session_leave(session);
        if (rc != HVD_INPROGRESS)
            return rc;
        if (was_express && !waiter.express)
            continue; /* the engine's now: its completion may be there already */
        rest(&waiter, session);
    }
}

int hvd_op_result(const struct hvd_op *op, struct hvd_tensor *result_p)
{
    int rc = client_op_enter(op, "hvd_op_result");
    if (rc != HVD_OK)
        return rc;
    if (op->state != CLIENT_OP_FINISHED)
        rc = HVD_INPROGRESS;
    else if (op->status != HVD_OK)
        rc = client_error_copy(op->status, op->error);
    else if (!result_p)
        rc = client_error(HVD_ERR_INVALID, "hvd_op_result: result_p is NULL");
    else
        *result_p = op->result;
    client_session_leave(op->session);
    return rc;
}

const char *hvd_op_name(const struct hvd_op *op)
{
    if (client_op_enter(op, "hvd_op_name") != HVD_OK)
        return "";
    struct hvd_op *mutable = &op->session->ops.slots[op->index];
    const char *text = mutable->anon_text;
    if (op->name)
        text = client_names_text(op->name);
    else if (!mutable->anon_text[0])
        client_op_describe(op, mutable->anon_text, sizeof(mutable->anon_text));
    client_session_leave(op->session);
    return text;
}

const char *hvd_op_error(const struct hvd_op *op)
{
    const char *text = "";
    if (client_op_enter(op, "hvd_op_error") != HVD_OK)
        return text;
    if (op->state == CLIENT_OP_FINISHED)
        text = op->error;
    client_session_leave(op->session);
    return text;
}

int hvd_op_culprit(const struct hvd_op *op)
{
    int culprit = -1;
    if (client_op_enter(op, "hvd_op_culprit") != HVD_OK)
        return culprit;
    if (op->state == CLIENT_OP_FINISHED && op->status != HVD_OK)
        culprit = op->culprit;
    client_session_leave(op->session);
    return culprit;
}

int hvd_op_joined_rank(const struct hvd_op *op)
{
    int rank = -1;
    if (client_op_enter(op, "hvd_op_joined_rank") != HVD_OK)
        return rank;
    if (op->state == CLIENT_OP_FINISHED && op->status == HVD_OK && op->kind == HVI_KIND_JOIN)
        rank = (int)op->number;
    client_session_leave(op->session);
    return rank;
}

int hvd_op_process_set(const struct hvd_op *op)
{
    int id = -1;
    if (client_op_enter(op, "hvd_op_process_set") != HVD_OK)
        return id;
    if (op->state == CLIENT_OP_FINISHED && op->status == HVD_OK && client_kind_makes_set(op->kind))
        id = (int)op->number;
    client_session_leave(op->session);
    return id;
}

int hvd_op_source(const struct hvd_op *op)
{
    int rank = -1;
    if (client_op_enter(op, "hvd_op_source") != HVD_OK)
        return rank;
    if (op->state == CLIENT_OP_FINISHED && op->status == HVD_OK && op->kind == HVI_KIND_RECV)
        rank = (int)op->number;
    client_session_leave(op->session);
    return rank;
}

static int received_splits(const struct hvd_op *op, int64_t *splits_p, int count)
{
    char text[HVI_TEXT_MAX / 2];
    client_op_describe(op, text, sizeof(text));
    if (op->kind != HVI_KIND_ALLTOALL)
        return client_error(HVD_ERR_INVALID, "hvd_op_received_splits: %s is no alltoall", text);
    if (!splits_p || count != op->members)
        return client_error(HVD_ERR_INVALID,
                            "hvd_op_received_splits: room for %d numbers was given, and %s has %d "
                            "members",
                            splits_p ? count : 0, text, op->members);
    if (op->state != CLIENT_OP_FINISHED)
        return HVD_INPROGRESS;
    if (op->status != HVD_OK)
        return client_error_copy(op->status, op->error);
    memcpy(splits_p, (const int64_t *)op->aux.shared + op->members,
           (size_t)op->members * sizeof(*splits_p));
    return HVD_OK;
}

int hvd_op_received_splits(const struct hvd_op *op, int64_t *splits_p, int count)
{
    int rc = client_op_enter(op, "hvd_op_received_splits");
    if (rc != HVD_OK)
        return rc;
    rc = received_splits(op, splits_p, count);
    client_session_leave(op->session);
    return rc;
}

int hvd_cancel(struct hvd_op *op)
{
    int rc = client_op_enter(op, "hvd_cancel");
    if (rc != HVD_OK)
        return rc;
    struct hvd_session *session = op->session;
    client_wait_drain(session);
    if (op->express.active) /* still waiting in its slot: the engine looks there */
        client_slots_look(&session->slots, op);
    if (op->state == CLIENT_OP_IN_FLIGHT || op->state == CLIENT_OP_SIZED)
        rc = client_submit_cancel(session, op, "hvd_cancel");
    client_session_leave(session);
    return rc;
}

void hvd_op_free(struct hvd_op *op)
{
    if (!op || client_op_enter(op, "hvd_op_free") != HVD_OK)
        return;
    struct hvd_session *session = op->session;
    if (op->state == CLIENT_OP_DONE || op->state == CLIENT_OP_FINISHED) {
        client_op_release(&session->ops, op);
        client_wait_sync_event(session);
    } else {
        op->abandoned = true;
        client_slots_abandoned(&session->slots, op);
    }
    client_session_leave(session);
}

int hvd_session_status(struct hvd_session *session)
{
    int rc = client_session_enter(session, "hvd_session_status");
    if (rc != HVD_OK)
        return rc;
    client_wait_progress(session, true);
    rc = client_link_usable(&session->link, "hvd_session_status");
    if (rc == HVD_OK && session->link.job_status != HVD_OK)
        rc = client_error_copy(session->link.job_status, session->link.job_text);
    client_wait_sync_event(session);
    client_session_leave(session);
    return rc;
}

static int make_epoll(struct hvd_session *session)
{
    struct epoll_event event = {.events = EPOLLIN};
    int fd = epoll_create1(EPOLL_CLOEXEC);
    if (fd >= 0 && epoll_ctl(fd, EPOLL_CTL_ADD, session->link.client_event_fd, &event) == 0 &&
        epoll_ctl(fd, EPOLL_CTL_ADD, session->link.socket_fd, &event) == 0) {
        session->link.epoll_fd = fd;
        atomic_store(&session->link.channel.header->client_event_armed, 1);
        client_wait_sync_event(session);
        return HVD_OK;
    }
    int status = errno == EMFILE || errno == ENFILE ? HVD_ERR_LIMIT : HVD_ERR_NO_MEMORY;
    client_error(status, "hvd_event_fd: epoll: %s", strerror(errno));
    if (fd >= 0)
        close(fd);
    return status;
}

int hvd_event_fd(struct hvd_session *session, int *fd_p)
{
    int rc = client_session_enter(session, "hvd_event_fd");
    if (rc != HVD_OK)
        return rc;
    if (!fd_p)
        rc = client_error(HVD_ERR_INVALID, "hvd_event_fd: fd_p is NULL");
    else if (session->link.epoll_fd < 0)
        rc = make_epoll(session);
    if (rc == HVD_OK) {
        /* From now on the engine ends every op, or rings, if ranks still are at one. */
        client_wait_settle(session, NULL);
        session->slots_left = true;
        client_wait_sync_event(session); /* some may have ended just now */
        *fd_p = session->link.epoll_fd;
    }
    client_session_leave(session);
    return rc;
}
