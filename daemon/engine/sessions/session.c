/* SPDX-License-Identifier: Apache-2.0
 * Sessions: how a rank comes and goes.
 *
 * A rank's slot is filled once. What an attached rank owns is its session: socket, pidfd, eventfd,
 * channel, regions, tensor table, requests. The pictures of both stand in sessions.h.
 *
 * A session does not end in one step, because workers and peers may use the rank's memory at that
 * moment, and the rank may reuse that memory as soon as it knows that its session is over. The
 * session closes first. Peers and hvdd learn that at once: the first rank that goes decides the rest
 * of the generation, what waits fails, what comes fails, with its sentence. The loop goes on. Each
 * request of the session holds a reference (.in_flight) until its op is over, which the engine
 * thread learns when it reaps the batch. With the last reference the rank is told. Its memory is
 * unmapped after that, from the loop, so no caller on the way up has a dangling pointer. */
#include "daemon/engine/sessions/sessions.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/digest.h"
#include "base/log.h"
#include "base/status.h"
#include "base/utf8.h"
#include "daemon/engine/event/event.h"
#include "daemon/engine/exec/exec.h"
#include "daemon/engine/order/negotiate.h"
#include "daemon/engine/sessions/complete.h"
#include "daemon/engine/sessions/control.h"
#include "daemon/engine/sessions/device.h"
#include "daemon/engine/sessions/fence.h"
#include "daemon/engine/sessions/intake.h"
#include "daemon/engine/sessions/liveness.h"
#include "daemon/engine/sessions/peer.h"
#include "daemon/engine/sessions/quota.h"
#include "daemon/engine/sessions/remote.h"
#include "daemon/engine/stats/stats.h"
#include "shm/bell.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define REASON_MAX 800        /* bytes of a reason that fit beside the longest job id */
#define CLOSING_NS HVI_NS_SEC /* what uses a rank's memory should end within this */

/* ---- a rank's state ---- */

static const char *const state_texts[ENGINE_RANK_STATES] = {"absent", "attached", "dying",
                                                            "left",   "lost",     "ended"};

const char *engine_rank_state_text(enum engine_rank_state state)
{
    return state_texts[state];
}

bool engine_rank_edge(enum engine_rank_state from, enum engine_rank_state to)
{
#define BIT(state) (1u << ENGINE_RANK_##state)
    static const unsigned next[ENGINE_RANK_STATES] = {
        [ENGINE_RANK_ABSENT] = BIT(ATTACHED) | BIT(LOST) | BIT(ENDED),
        [ENGINE_RANK_ATTACHED] = BIT(DYING) | BIT(LEFT) | BIT(LOST) | BIT(ENDED),
        [ENGINE_RANK_DYING] = BIT(LEFT) | BIT(LOST) | BIT(ENDED),
    };
#undef BIT
    return (next[from] >> to & 1u) != 0;
}

static void set_state(struct engine_sessions *sessions, engine_seat seat,
                      enum engine_rank_state state, const char *cause)
{
    struct engine_rank *slot = engine_rank_at(sessions, seat);

    HVI_ASSERT(engine_rank_edge(slot->state, state));
    HVI_LOG(HVI_LOG_DEBUG, "session", "rank-state", cause, "job=%s rank=%d pid=%d %s -> %s",
            sessions->start->job, slot->rank, (int)slot->pid, state_texts[slot->state],
            state_texts[state]);
    if (slot->state == ENGINE_RANK_ABSENT)
        sessions->come++;
    if (state == ENGINE_RANK_ATTACHED)
        sessions->attached++;
    else if (slot->state != ENGINE_RANK_ABSENT && state != ENGINE_RANK_DYING)
        sessions->attached--;
    slot->state = state;
    if (state >= ENGINE_RANK_LEFT)
        snprintf(slot->text, sizeof slot->text, "%s", cause);
}

/* ---- a session's state ---- */

bool engine_session_edge(enum engine_session_state from, enum engine_session_state to)
{
    return (from == ENGINE_SESSION_OPEN && to == ENGINE_SESSION_CLOSING) ||
           (from == ENGINE_SESSION_CLOSING && to == ENGINE_SESSION_OVER);
}

static void set_session_state(struct engine_session *session, enum engine_session_state state,
                              const char *cause)
{
    static const char *const texts[ENGINE_SESSION_STATES] = {"open", "closing", "over"};

    HVI_ASSERT(engine_session_edge(session->state, state));
    HVI_LOG(HVI_LOG_DEBUG, "session", "session-state", cause, "job=%s rank=%d %s -> %s",
            session->sessions->start->job, session->rank, texts[session->state], texts[state]);
    session->state = state;
}

/* ---- the whole ---- */

int engine_sessions_init(struct engine_sessions *sessions)
{
    sessions->ranks = calloc(sessions->seats, sizeof *sessions->ranks);
    if (!sessions->ranks)
        return HVI_ERR_NO_MEMORY;
    for (uint32_t seat = 0; seat < sessions->seats; seat++)
        sessions->ranks[seat].rank = engine_sessions_span(sessions) ? -1 : (int32_t)seat;
    return HVI_OK;
}

struct engine_rank *engine_rank_find(const struct engine_sessions *sessions, int32_t rank)
{
    for (uint32_t seat = 0; rank >= 0 && seat < sessions->seats; seat++) {
        if (sessions->ranks[seat].rank == rank)
            return &sessions->ranks[seat];
    }
    return NULL;
}

void engine_sessions_fini(struct engine_sessions *sessions)
{
    HVI_ASSERT(!sessions->closing);
    sessions->linger_source = sd_event_source_disable_unref(sessions->linger_source);
    sessions->quota.late = sd_event_source_disable_unref(sessions->quota.late);
    free(sessions->ranks);
    sessions->ranks = NULL;
}

void engine_rank_label(const struct engine_session *session, char *text_p, size_t size)
{
    const struct engine_sessions *sessions = session->sessions;
    const struct engine_rank *slot = engine_rank_at(sessions, session->seat);
    const char *node = sessions->node;
    char process[HVI_PROCESS_TEXT];

    hvi_process_describe(slot->pid, slot->own_pid, process);
    snprintf(text_p, size, "rank %d%s%s (%s)", session->rank, node[0] != '\0' ? " on " : "", node,
             process);
}

int engine_sessions_send(struct engine_sessions *sessions, int socket_fd,
                         const struct hvi_packet_msg *msg, const int *fds, uint32_t fd_count)
{
    size_t length = 0;
    int status =
        hvi_packet_msg_encode(msg, sessions->send_bytes, sizeof sessions->send_bytes, &length);

    if (status != HVI_OK)
        return status;
    return hvi_packet_send(socket_fd, sessions->send_bytes, length, fds, fd_count, 0);
}

/* ---- what the others learn ---- */

static void notify(struct engine_session *session, int status, const char *text, int32_t rank,
                   pid_t pid, bool ended)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_NOTICE};

    msg.notice.status = status;
    snprintf(msg.notice.text, sizeof msg.notice.text, "%s", text);
    msg.notice.rank = rank;
    msg.notice.pid = pid;
    msg.notice.session_ended = ended;
    /* A client that does not read its socket gets the same from its ops. */
    int sent = engine_sessions_send(session->sessions, session->socket_fd, &msg, NULL, 0);
    if (sent != HVI_OK)
        HVI_LOG(HVI_LOG_DEBUG, "session", "notice-lost", hvi_status_text(sent), "rank=%d pid=%d",
                session->rank, (int)engine_rank_at(session->sessions, session->seat)->pid);
}

static void notify_others(struct engine_sessions *sessions, int status, const char *text,
                          int32_t rank, pid_t pid)
{
    for (uint32_t i = 0; i < sessions->seats; i++) {
        struct engine_session *session = sessions->ranks[i].session;
        if (session && session->rank != rank)
            notify(session, status, text, rank, pid, false);
    }
}

/* No op can finish any more. */
static void fail_waiting(struct engine_sessions *sessions, int status, int32_t culprit,
                         const char *text)
{
    engine_order_break(sessions->order, status, culprit, text);
    sessions->order->now_ns = hvi_clock_ns();
    engine_slots_revoke_all(sessions->slots);
    engine_negotiate_fail_all(sessions->order, status, text, culprit);
    engine_fence_fail_held(sessions, status, text, culprit);
    engine_remote_settle(sessions);
    engine_complete_ring(sessions);
}

void engine_sessions_break(struct engine_sessions *sessions, int status, int32_t culprit,
                           const char *text)
{
    fail_waiting(sessions, status, culprit, text);
    notify_others(sessions, status, text, culprit, 0);
}

static void log_gone(const struct engine_sessions *sessions, const struct engine_rank *slot,
                     enum engine_rank_state state, const char *text)
{
    HVI_LOG(state == ENGINE_RANK_LEFT ? HVI_LOG_INFO : HVI_LOG_WARN, "session",
            state == ENGINE_RANK_LEFT   ? "rank-left"
            : state == ENGINE_RANK_LOST ? "rank-lost"
                                        : "rank-ended",
            text, "job=%s generation=%llu rank=%d pid=%d", sessions->start->job,
            (unsigned long long)sessions->start->generation, slot->rank, (int)slot->pid);
}

/* The rank is gone for good: fails what waits for it and tells everybody. */
static void lose(struct engine_sessions *sessions, engine_seat seat, enum engine_rank_state state,
                 const char *text)
{
    const struct engine_rank *slot = engine_rank_at(sessions, seat);
    int status = state == ENGINE_RANK_LEFT ? HVI_ERR_RANK_LEFT : HVI_ERR_RANK_LOST;

    set_state(sessions, seat, state, text);
    log_gone(sessions, slot, state, text);
    if (sessions->held) { /* there is no job yet, and this was its last chance */
        sessions->calls->tell(sessions->user, seat);
        engine_sessions_fail(sessions, status, text);
        return;
    }
    fail_waiting(sessions, status, slot->rank, text);
    notify_others(sessions, status, text, slot->rank, slot->pid);
    sessions->calls->tell(sessions->user, seat);
    sessions->calls->broken(sessions->user, status, slot->rank, text);
    engine_liveness_check_empty(sessions);
}

/* ---- coming ---- */

static void session_free(struct engine_session *session)
{
    struct engine_tensors *tensors = &session->order->tensors;

    sd_event_source_disable_unref(session->closing_source);
    if (session->socket_fd >= 0)
        close(session->socket_fd);
    if (session->pid_fd >= 0)
        close(session->pid_fd);
    if (session->event_fd >= 0)
        close(session->event_fd);
    for (uint32_t i = 0; session->tensors && i < HVI_TENSOR_IDS; i++) {
        if (session->tensors[i])
            engine_tensor_put(tensors, session->tensors[i]);
    }
    engine_slots_forget(session->sessions->slots, session->seat);
    engine_device_let_go(session);
    engine_fence_fini(session);
    engine_regions_fini(&session->regions);
    if (session->channel.header)
        hvi_channel_fini(&session->channel);
    free(session->tensors);
    free(session->requests);
    free(session);
}

/* Everything a session needs, or nothing. The descriptors are the session's on success only. */
static int session_new(struct engine_sessions *sessions, engine_seat seat, uint64_t id,
                       int socket_fd, int pid_fd, struct engine_session **session_p)
{
    struct engine_session *session = calloc(1, sizeof *session);
    int status = HVI_ERR_NO_MEMORY;

    if (!session)
        return status;
    session->sessions = sessions;
    session->order = sessions->order;
    session->rank = engine_rank_at(sessions, seat)->rank;
    session->seat = seat;
    session->id = id;
    session->next_seq = 1;
    session->attached_ns = hvi_clock_ns();
    session->socket_fd = session->pid_fd = session->event_fd = -1;
    session->requests = calloc(HVI_CQ_SLOTS, sizeof *session->requests);
    session->tensors = calloc(HVI_TENSOR_IDS, sizeof *session->tensors);
    if (!session->requests || !session->tensors)
        goto failed;
    status = hvi_channel_create(seat.n, id, &session->channel);
    if (status != HVI_OK)
        goto failed;
    engine_regions_init(&session->regions, session->channel.inline_base);
    status = HVI_ERR_LIMIT;
    session->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (session->event_fd < 0)
        goto failed;
    session->socket_fd = socket_fd;
    session->pid_fd = pid_fd;
    session->process.pid = engine_rank_at(sessions, seat)->pid;
    session->process.pid_fd = pid_fd;
    engine_remote_offer(session);
    engine_device_offer(session);
    status = engine_liveness_open(session);
    if (status != HVI_OK)
        goto failed_watch;
    /* Release, pairs with the client's acquire when it looks whether the session is over. */
    atomic_store_explicit(&session->channel.header->session_state, HVI_SESSION_OPEN,
                          memory_order_release);
    *session_p = session;
    return HVI_OK;

failed_watch:
    session->socket_fd = session->pid_fd = -1;
failed:
    session_free(session);
    return status;
}

static int reply(struct engine_sessions *sessions, int socket_fd, int status, const char *text,
                 const struct engine_session *session)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_ATTACH_REPLY};
    int fds[5];

    msg.attach_reply.status = status;
    snprintf(msg.attach_reply.text, sizeof msg.attach_reply.text, "%s", text);
    msg.attach_reply.protocol_version = HVI_PROTOCOL_VERSION;
    msg.attach_reply.abi_version = HVI_ABI_VERSION;
    msg.attach_reply.generation = sessions->start->generation;
    msg.attach_reply.engine_pid = getpid();
    if (!session)
        return engine_sessions_send(sessions, socket_fd, &msg, NULL, 0);
    msg.attach_reply.session = session->id;
    msg.attach_reply.fabric = (session->channel.features & HVI_FEATURE_DEVICE) != 0;
    fds[0] = session->channel.region.fd;
    fds[1] = sessions->bell_fd;
    fds[2] = sessions->wake_fd;
    fds[3] = session->event_fd;
    fds[4] = sessions->slots->map.region.fd;
    return engine_sessions_send(sessions, socket_fd, &msg, fds, sessions->slots->on ? 5 : 4);
}

/* The rank's own number on this node, where others are elsewhere. */
static engine_seat seat_of(const struct engine_sessions *sessions,
                           const struct hvi_attach_request *request)
{
    int32_t number = engine_sessions_span(sessions) ? request->local_rank : request->rank;

    return (engine_seat){(uint16_t)number};
}

/* Of a job with ranks on other nodes. */
static int check_seat(const struct engine_sessions *sessions,
                      const struct hvi_attach_request *request, char *text_p, size_t text_size)
{
    const struct engine_rank *mine = engine_rank_find(sessions, request->rank), *slot;

    if (request->local_size != (int32_t)sessions->seats) {
        snprintf(text_p, text_size, "%u ranks of job '%s' are on this node, this rank says %d",
                 sessions->seats, sessions->start->job, request->local_size);
        return HVI_ERR_BAD_SIZE;
    }
    if (request->local_rank < 0 || request->local_rank >= request->local_size) {
        snprintf(text_p, text_size,
                 "there is no local rank %d among the %d ranks of job '%s' on this node",
                 request->local_rank, request->local_size, sessions->start->job);
        return HVI_ERR_BAD_RANK;
    }
    slot = engine_rank_at(sessions, seat_of(sessions, request));
    if (mine == slot || (!mine && slot->state == ENGINE_RANK_ABSENT))
        return HVI_OK;
    if (!mine)
        mine = slot;
    snprintf(text_p, text_size,
             "this process says that it is rank %d of job '%s', local rank %d; pid %d is rank %d, "
             "local rank %d",
             request->rank, sessions->start->job, request->local_rank, (int)mine->pid, mine->rank,
             (int)(mine - sessions->ranks));
    return HVI_ERR_DUPLICATE_RANK;
}

/* What hvdd has checked already, and what only the engine knows. */
static int check_attach(const struct engine_sessions *sessions,
                        const struct hvi_attach_request *request, char *text_p, size_t text_size)
{
    if (request->protocol_version != HVI_PROTOCOL_VERSION ||
        request->abi_version != HVI_ABI_VERSION) {
        snprintf(
            text_p, text_size, "the client speaks protocol %u and ABI %u, the engine %u and %u",
            request->protocol_version, request->abi_version, HVI_PROTOCOL_VERSION, HVI_ABI_VERSION);
        return HVI_ERR_VERSION;
    }
    if (request->size != sessions->start->size) {
        snprintf(text_p, text_size, "job '%s' has %d ranks, this rank says %d",
                 sessions->start->job, sessions->start->size, request->size);
        return HVI_ERR_BAD_SIZE;
    }
    if (request->rank < 0 || request->rank >= sessions->start->size) {
        snprintf(text_p, text_size, "there is no rank %d in job '%s' with %d ranks", request->rank,
                 sessions->start->job, sessions->start->size);
        return HVI_ERR_BAD_RANK;
    }
    int status =
        engine_sessions_span(sessions) ? check_seat(sessions, request, text_p, text_size) : HVI_OK;
    if (status != HVI_OK)
        return status;
    if (sessions->stopping) {
        snprintf(text_p, text_size, "%s",
                 sessions->order->broken_status != HVI_OK ? sessions->order->broken_text
                                                          : "the job is over");
        return HVI_ERR_JOB_STOPPED;
    }
    const struct engine_rank *slot = engine_rank_at(sessions, seat_of(sessions, request));
    if (slot->state != ENGINE_RANK_ABSENT) {
        char process[HVI_PROCESS_TEXT];
        hvi_process_describe(slot->pid, slot->own_pid, process);
        snprintf(text_p, text_size, "rank %d of job '%s' is taken: %s, %s", slot->rank,
                 sessions->start->job, process, state_texts[slot->state]);
        return HVI_ERR_DUPLICATE_RANK;
    }
    return HVI_OK;
}

static void fill_slot(struct engine_rank *slot, const struct hvi_engine_adopt *adopt,
                      const struct hvi_attach_request *request)
{
    slot->rank = request->rank;
    slot->pid = adopt->pid;
    slot->own_pid = request->own_pid;
    slot->uid = adopt->uid;
    snprintf(slot->origin, sizeof slot->origin, "%s", request->origin);
}

static void take_job_settings(struct engine_sessions *sessions,
                              const struct hvi_attach_request *request)
{
    if (sessions->come == 0)
        hvi_digest_text(request->job_key, sessions->key_digest);
    sessions->calls->settings(sessions->user, request->rank, request->settings,
                              request->setting_count);
}

/* The slot was promised to this client by hvdd and cannot be filled any more. */
static void refuse_promised(struct engine_sessions *sessions, engine_seat seat, int socket_fd,
                            int status)
{
    const struct engine_rank *slot = engine_rank_at(sessions, seat);
    char why[160], text[512], process[HVI_PROCESS_TEXT];

    snprintf(why, sizeof why, "%s",
             status == HVI_ERR_LIMIT ? "out of file descriptors (LimitNOFILE=, ulimit -n), or the "
                                       "size of a file is limited (LimitFSIZE=, ulimit -f)"
                                     : hvi_status_text(status));
    snprintf(text, sizeof text, "the engine of job '%s' (pid %d) cannot take rank %d: %s",
             sessions->start->job, (int)getpid(), slot->rank, why);
    reply(sessions, socket_fd, status, text, NULL);
    hvi_process_describe(slot->pid, slot->own_pid, process);
    snprintf(text, sizeof text, "rank %d (%s) could not be attached: %s", slot->rank, process, why);
    engine_slots_leave(sessions->slots, seat);
    lose(sessions, seat, ENGINE_RANK_ENDED, text);
}

/* A rank that comes late learns what has happened to the job. */
static void tell_broken(struct engine_session *session)
{
    const struct engine_order *order = session->order;
    const struct engine_rank *culprit = engine_rank_find(session->sessions, order->broken_culprit);

    if (order->broken_status != HVI_OK)
        notify(session, order->broken_status, order->broken_text, order->broken_culprit,
               culprit ? culprit->pid : 0, false);
}

/* True: the session owns the descriptors now. */
static bool adopt_rank(struct engine_sessions *sessions, const struct hvi_engine_adopt *adopt,
                       const struct hvi_attach_request *request, int socket_fd, int pid_fd)
{
    engine_seat seat = seat_of(sessions, request);
    struct engine_rank *slot = engine_rank_at(sessions, seat);
    struct engine_session *session = NULL;

    fill_slot(slot, adopt, request);
    engine_stats_add_rank(sessions->stats, seat);
    take_job_settings(sessions, request);
    int status = session_new(sessions, seat, adopt->session, socket_fd, pid_fd, &session);
    if (status != HVI_OK) {
        refuse_promised(sessions, seat, socket_fd, status);
        return false;
    }
    status = reply(sessions, socket_fd, HVI_OK, "", session);
    if (status != HVI_OK && status != HVI_ERR_CLOSED) {
        engine_liveness_close(session);
        session->socket_fd = session->pid_fd = -1;
        session_free(session);
        refuse_promised(sessions, seat, socket_fd, status);
        return false;
    }
    /* The client has its copy, or is gone and its end of file is on the socket. */
    hvi_region_close_fd(&session->channel.region);
    slot->session = session;
    engine_slots_come(sessions->slots, seat, slot->rank, &session->regions, adopt->pid, pid_fd);
    set_state(sessions, seat, ENGINE_RANK_ATTACHED, "attach");
    HVI_LOG(HVI_LOG_INFO, "session", "rank-attached", "a rank has come",
            "job=%s generation=%llu rank=%d pid=%d uid=%u origin=%s", sessions->start->job,
            (unsigned long long)sessions->start->generation, request->rank, adopt->pid, adopt->uid,
            request->origin);
    tell_broken(session);
    engine_liveness_check_empty(sessions);
    sessions->calls->tell(sessions->user, seat);
    return true;
}

void engine_session_adopt(struct engine_sessions *sessions, const struct hvi_engine_adopt *adopt,
                          int socket_fd, int pid_fd)
{
    struct hvi_packet_msg msg;
    char text[HVI_TEXT_MAX + 1];
    bool taken = false;
    int status = hvi_packet_msg_decode(adopt->attach, adopt->attach_bytes, &msg, text, sizeof text);
    bool decoded = status == HVI_OK;

    if (decoded && msg.kind != HVI_PACKET_ATTACH_REQUEST) {
        status = HVI_ERR_PROTOCOL;
        snprintf(text, sizeof text, "the first message is no AttachRequest");
    }
    if (status == HVI_OK)
        status = check_attach(sessions, &msg.attach_request, text, sizeof text);
    if (status == HVI_OK) {
        hvi_packet_let_fds(socket_fd, true); /* regions, and what else a trainer hands over */
        taken = adopt_rank(sessions, adopt, &msg.attach_request, socket_fd, pid_fd);
    } else {
        HVI_LOG(HVI_LOG_WARN, "session", "attach-refused", text, "job=%s pid=%d status=%s",
                sessions->start->job, adopt->pid, hvi_status_name(status));
        reply(sessions, socket_fd, status, text, NULL);
    }
    if (decoded)
        hvi_packet_msg_free(&msg);
    if (!taken) {
        close(socket_fd);
        if (pid_fd >= 0)
            close(pid_fd);
    }
}

/* ---- going ---- */

/* Of a job on several nodes no seat is the rank's before it has come. */
static void lose_unseated(struct engine_sessions *sessions, const char *text)
{
    if (!sessions->held || sessions->come == sessions->seats)
        return;
    HVI_LOG(HVI_LOG_WARN, "session", "rank-lost", text, "job=%s generation=%llu",
            sessions->start->job, (unsigned long long)sessions->start->generation);
    engine_sessions_fail(sessions, HVI_ERR_RANK_LOST, text);
}

void engine_sessions_miss(struct engine_sessions *sessions, int32_t rank, pid_t pid,
                          struct hvi_fate fate)
{
    struct engine_rank *slot = engine_rank_find(sessions, rank);
    char how[128], text[HVI_TEXT_MAX + 1];

    if (sessions->stopping)
        return;
    hvi_fate_describe(fate, how, sizeof how);
    snprintf(text, sizeof text,
             "rank %d (pid %d) %s before it had called hvd.init (hvd_open): job '%s' cannot go on "
             "without it",
             rank, (int)pid, how, sessions->start->job);
    if (!slot) {
        lose_unseated(sessions, text);
        return;
    }
    const engine_seat seat = {(uint16_t)(slot - sessions->ranks)};
    slot->pid = slot->own_pid = pid;
    engine_slots_leave(sessions->slots, seat);
    lose(sessions, seat, ENGINE_RANK_LOST, text);
}

void engine_session_dying(struct engine_session *session)
{
    struct engine_sessions *sessions = session->sessions;

    if (!engine_session_is_open(session) ||
        engine_rank_at(sessions, session->seat)->state != ENGINE_RANK_ATTACHED)
        return;
    /* What was submitted before counts: if nobody is missing any more, the others get a result. */
    engine_intake_drain_all(sessions);
    if (!engine_session_is_open(session))
        return;
    set_state(sessions, session->seat, ENGINE_RANK_DYING, "its socket or process has gone");
    engine_liveness_ask(session);
}

static void drop_owed(struct engine_session *session)
{
    while (session->owed_first) {
        struct engine_request *request = session->owed_first;
        session->owed_first = request->next;
        session->sessions->owed--;
        request->owed = false;
        if (!request->slots.share.part.op)
            engine_request_free(request);
    }
    session->owed_last = NULL;
}

/* A medium op in a slot does not say whose memory its chunks need: every session waits for all. */
static bool is_used(const struct engine_session *session)
{
    return session->in_flight > 0 || session->sessions->slots->closing > 0;
}

/* The session has been closing for CLOSING_NS. Batches end by themselves. A peer that holds a chunk may be
 * stopped for ever: a rank that broke the protocol, or whose job is stopped, is told without it. */
static int on_late(sd_event_source *source, uint64_t usec, void *user)
{
    struct engine_session *session = user;
    struct engine_slots *slots = session->sessions->slots;

    (void)source, (void)usec;
    if (!is_used(session))
        return 0;
    HVI_LOG(HVI_LOG_INFO, "session", "session-closes-slowly",
            "the rank is told later, because its memory is still in use",
            "job=%s rank=%d ops=%u slots=%u", session->sessions->start->job, session->rank,
            session->in_flight, slots->closing);
    if (session->end_status != HVI_OK)
        engine_slots_give_up(slots);
    return 0;
}

/* From now on the session takes nothing, and no transfer of its process' memory begins. */
static void close_session(struct engine_session *session, int status, bool process_over,
                          const char *cause)
{
    struct engine_sessions *sessions = session->sessions;

    set_session_state(session, ENGINE_SESSION_CLOSING, cause);
    session->end_status = status;
    engine_process_forbid(&session->process);
    engine_slots_leave(sessions->slots, session->seat);
    engine_liveness_close(session);
    drop_owed(session);
    /* engine_fence_close cancels batches that wait for this rank's streams. It does not see ready ops that are no batch yet. */
    if (sessions->exec->order->ready_count > 0)
        engine_dispatch_ready(sessions->exec);
    engine_fence_close(session, process_over);
    engine_device_close_session(session);
    engine_group_drop(sessions->order, &session->grouped);
    engine_rank_at(sessions, session->seat)->session = NULL;
    session->closing_next = sessions->closing;
    sessions->closing = session;
    engine_quota_close_session(session); /* what it has registered counts no more */
    /* Without memory for the timer, only what uses the rank's memory decides. */
    sd_event_add_time_relative(sessions->event, &session->closing_source, CLOCK_MONOTONIC,
                               CLOSING_NS / 1000, 1000, on_late, session);
}

/* Closes the session, fails what waits for the rank, and tells the others. */
static void end(struct engine_session *session, enum engine_rank_state state, int status,
                const char *text)
{
    struct engine_sessions *sessions = session->sessions;

    engine_slots_finish(sessions->slots);
    if (!engine_session_is_open(session))
        return;
    close_session(session, status, state == ENGINE_RANK_LOST, text);
    lose(sessions, session->seat, state, text);
    engine_dispatch_watch(sessions->exec);
}

void engine_session_end(struct engine_session *session, enum engine_rank_state state,
                        const char *text)
{
    if (engine_session_is_open(session))
        end(session, state, HVI_OK, text);
}

void engine_session_violation(struct engine_session *session, const char *reason)
{
    struct engine_sessions *sessions = session->sessions;
    char label[ENGINE_RANK_LABEL], text[HVI_TEXT_MAX + 1];

    if (!engine_session_is_open(session))
        return;
    engine_rank_label(session, label, sizeof label);
    snprintf(text, sizeof text, "%s broke the protocol: %.800s", label, reason);
    engine_process_forbid(&session->process);
    engine_slots_revoke_all(sessions->slots); /* what ranks have brought there counts */
    end(session, ENGINE_RANK_ENDED, HVI_ERR_PROTOCOL, text);
}

void engine_sessions_end_doomed(struct engine_sessions *sessions)
{
    sessions->doomed = false;
    for (uint32_t seat = 0; seat < sessions->seats; seat++) {
        struct engine_session *session = sessions->ranks[seat].session;
        if (session && session->doom)
            engine_session_violation(session, session->doom);
    }
}

void engine_sessions_stop(struct engine_sessions *sessions, const char *reason)
{
    const char *node = sessions->node;
    char text[HVI_TEXT_MAX + 1];
    int kept = (int)hvi_utf8_cut(reason, strlen(reason), REASON_MAX);

    if (sessions->order->broken_status == HVI_ERR_JOB_STOPPED)
        return;
    snprintf(text, sizeof text, "job '%s' was stopped%s%s: %.*s", sessions->start->job,
             node[0] != '\0' ? " on " : "", node, kept, reason);
    HVI_LOG(HVI_LOG_INFO, "session", "job-stopped", text, "job=%s generation=%llu attached=%u",
            sessions->start->job, (unsigned long long)sessions->start->generation,
            sessions->attached);
    engine_sessions_fail(sessions, HVI_ERR_JOB_STOPPED, text);
}

void engine_sessions_fail(struct engine_sessions *sessions, int status, const char *text)
{
    sessions->stopping = true;
    engine_order_break(sessions->order, status, -1, text);
    sessions->order->now_ns = hvi_clock_ns();
    engine_intake_drain_all(sessions); /* what was submitted before gets the same answer */
    engine_dispatch_drop(sessions->exec, status, text);
    engine_slots_revoke_all(sessions->slots);
    engine_negotiate_fail_all(sessions->order, status, text, -1);
    engine_fence_fail_held(sessions, status, text, -1);
    engine_complete_ring(sessions);
    for (uint16_t i = 0; i < sessions->seats; i++) {
        if (!sessions->ranks[i].session)
            continue;
        close_session(sessions->ranks[i].session, status, false, text);
        set_state(sessions, (engine_seat){i}, ENGINE_RANK_ENDED, text);
    }
    engine_remote_settle(sessions);
    engine_dispatch_watch(sessions->exec);
    sessions->calls->broken(sessions->user, status, -1, text);
}

/* The rank learns that its session is over: it may do what it likes with its memory. */
static void tell_over(struct engine_session *session)
{
    const struct engine_rank *slot = engine_rank_at(session->sessions, session->seat);
    struct hvi_channel_header *header = session->channel.header;
    bool broke = session->end_status == HVI_ERR_PROTOCOL;

    set_session_state(session, ENGINE_SESSION_OVER, "no op uses its memory any more");
    engine_fence_poison(session);
    engine_control_farewell(session);
    if (session->end_status != HVI_OK)
        notify(session, session->end_status, slot->text, broke ? session->rank : -1,
               broke ? slot->pid : 0, true);
    /* Release, pairs with the client's acquire load when it looks whether the session is over. */
    atomic_store_explicit(&header->session_state, HVI_SESSION_ENDED, memory_order_release);
    hvi_bell_ring_client(header);
    engine_control_hang_up(session);
}

bool engine_sessions_reap(struct engine_sessions *sessions)
{
    struct engine_session **over = NULL;

    for (struct engine_session **link = &sessions->closing; *link; link = &(*link)->closing_next) {
        if ((*link)->state == ENGINE_SESSION_CLOSING && !is_used(*link))
            tell_over(*link);
        if ((*link)->state == ENGINE_SESSION_OVER && !(*link)->bell_due)
            over = link;
    }
    if (!over)
        return false;
    struct engine_session *session = *over;
    *over = session->closing_next;
    engine_peer_forget_all(session);
    session_free(session);
    return true;
}

bool engine_sessions_ready_memory(struct engine_sessions *sessions)
{
    if (!sessions->fresh_regions)
        return false;
    for (uint32_t seat = 0; seat < sessions->seats; seat++) {
        struct engine_session *session = sessions->ranks[seat].session;
        if (session && engine_regions_ready(&session->regions))
            return true;
    }
    sessions->fresh_regions = false;
    return false;
}

/* ---- rows ---- */

static void fill_row(const struct engine_sessions *sessions, engine_seat seat,
                     struct hvi_rank_row *row)
{
    const struct engine_rank *slot = engine_rank_at(sessions, seat);
    enum engine_rank_state state = slot->state;

    row->rank = slot->rank;
    row->seat = seat.n;
    row->pid = slot->pid;
    row->own_pid = slot->own_pid;
    row->uid = (uint32_t)slot->uid;
    if (state == ENGINE_RANK_DYING)
        state = ENGINE_RANK_ATTACHED;
    snprintf(row->state, sizeof row->state, "%s", state_texts[state]);
    if (slot->session) {
        row->process[0] = hvi_process_state(slot->pid);
        row->memory = slot->session->memory;
    }
    row->in_flight = slot->session ? slot->session->in_flight : 0;
    engine_stats_fill(sessions->stats, seat, row);
    if (slot->session)
        row->region_bytes = slot->session->regions.bytes + slot->session->regions.process_bytes;
    snprintf(row->origin, sizeof row->origin, "%s", slot->origin);
    snprintf(row->text, sizeof row->text, "%.*s",
             (int)hvi_utf8_cut(slot->text, strlen(slot->text), sizeof row->text - 1), slot->text);
}

int engine_rank_rows(struct engine_sessions *sessions, struct hvi_rank_row **rows_p,
                     size_t *count_p)
{
    struct hvi_rank_row *rows = calloc(sessions->seats, sizeof *rows);
    size_t count = 0;

    if (!rows)
        return HVI_ERR_NO_MEMORY;
    engine_slots_fold(sessions->slots);
    for (uint16_t i = 0; i < sessions->seats; i++) {
        if (sessions->ranks[i].rank >= 0)
            fill_row(sessions, (engine_seat){i}, &rows[count++]);
    }
    *rows_p = rows;
    *count_p = count;
    return HVI_OK;
}
