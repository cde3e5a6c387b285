/* SPDX-License-Identifier: Apache-2.0
 * Sessions: how a rank comes and goes.
 *
 * A rank's slot is filled once (the picture stands at struct engine_rank). What an attached rank
 * owns is its session: socket, pidfd, eventfd, channel, regions, tensor table, requests. Ending it
 * happens in two steps, because memory may be under a reduction at that moment: everything that
 * talks (descriptors, event sources) goes at once and .over is set; the memory goes when the last
 * op that uses it is over, from the loop, so nobody holds a dangling pointer on the way up.
 *
 * The first rank that goes decides the rest of the generation: what waits fails, what comes fails,
 * with its sentence. */
#include "daemon/engine/sessions/session.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/digest.h"
#include "base/log.h"
#include "base/status.h"
#include "base/utf8.h"
#include "daemon/engine/engine.h"
#include "daemon/engine/order/negotiate.h"
#include "daemon/engine/sessions/complete.h"
#include "daemon/engine/sessions/control.h"
#include "daemon/engine/sessions/intake.h"
#include "daemon/engine/sessions/liveness.h"
#include "daemon/engine/sessions/peer.h"
#include "daemon/engine/sessions/remote.h"
#include "shm/bell.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define REASON_MAX 800 /* bytes of a reason that fit beside the longest job id */

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

static void set_state(struct engine *engine, int32_t rank, enum engine_rank_state state,
                      const char *cause)
{
    struct engine_rank *slot = &engine->ranks[rank];

    HVI_ASSERT(engine_rank_edge(slot->state, state));
    HVI_LOG(HVI_LOG_DEBUG, "session", "rank-state", cause, "job=%s rank=%d pid=%d %s -> %s",
            engine->start.job, rank, (int)slot->pid, state_texts[slot->state], state_texts[state]);
    if (slot->state == ENGINE_RANK_ABSENT)
        engine->come++;
    if (state == ENGINE_RANK_ATTACHED)
        engine->attached++;
    else if (slot->state != ENGINE_RANK_ABSENT && state != ENGINE_RANK_DYING)
        engine->attached--;
    slot->state = state;
    if (state >= ENGINE_RANK_LEFT)
        snprintf(slot->text, sizeof slot->text, "%s", cause);
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
    int sent = engine_send(session->engine, session->socket_fd, &msg, NULL, 0);
    if (sent != HVI_OK)
        HVI_LOG(HVI_LOG_DEBUG, "session", "notice-lost", hvi_status_text(sent), "rank=%d pid=%d",
                session->rank, (int)session->engine->ranks[session->rank].pid);
}

static void notify_others(struct engine *engine, int status, const char *text, int32_t rank)
{
    for (int32_t i = 0; i < engine->start.size; i++) {
        struct engine_session *session = engine->ranks[i].session;
        if (session && !session->over && i != rank)
            notify(session, status, text, rank, engine->ranks[rank].pid, false);
    }
}

static void log_gone(struct engine *engine, int32_t rank, enum engine_rank_state state,
                     const char *text)
{
    HVI_LOG(state == ENGINE_RANK_LEFT ? HVI_LOG_INFO : HVI_LOG_WARN, "session",
            state == ENGINE_RANK_LEFT   ? "rank-left"
            : state == ENGINE_RANK_LOST ? "rank-lost"
                                        : "rank-ended",
            text, "job=%s generation=%llu rank=%d pid=%d", engine->start.job,
            (unsigned long long)engine->start.generation, rank, (int)engine->ranks[rank].pid);
}

/* The rank is gone for good: fails what waits for it and tells everybody. */
static void lose(struct engine *engine, int32_t rank, enum engine_rank_state state,
                 const char *text)
{
    int status = state == ENGINE_RANK_LEFT ? HVI_ERR_RANK_LEFT : HVI_ERR_RANK_LOST;

    set_state(engine, rank, state, text);
    log_gone(engine, rank, state, text);
    engine_order_break(&engine->order, status, rank, text);
    engine->order.now_ns = hvi_clock_ns();
    engine_express_seize_all(&engine->express);
    engine_negotiate_fail_all(&engine->order, status, text, rank);
    engine_remote_settle(engine);
    engine_complete_ring(engine);
    notify_others(engine, status, text, rank);
    engine_link_tell(engine, rank);
    engine_liveness_check_empty(engine);
}

/* ---- coming ---- */

static void session_free(struct engine_session *session)
{
    struct engine_tensors *tensors = &session->engine->order.tensors;

    engine_control_farewell(session);
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
    engine_express_forget(&session->engine->express, session->rank);
    engine_regions_fini(&session->regions);
    if (session->channel.header)
        hvi_channel_fini(&session->channel);
    free(session->tensors);
    free(session->requests);
    free(session);
}

/* Everything a session needs, or nothing. The descriptors are the session's on success only. */
static int session_new(struct engine *engine, int32_t rank, uint64_t id, int socket_fd, int pid_fd,
                       struct engine_session **session_p)
{
    struct engine_session *session = calloc(1, sizeof *session);
    int status = HVI_ERR_NO_MEMORY;

    if (!session)
        return status;
    session->engine = engine;
    session->rank = rank;
    session->id = id;
    session->next_seq = 1;
    session->attached_ns = hvi_clock_ns();
    session->socket_fd = session->pid_fd = session->event_fd = session->farewell_fd = -1;
    session->requests = calloc(HVI_CQ_SLOTS, sizeof *session->requests);
    session->tensors = calloc(HVI_TENSOR_IDS, sizeof *session->tensors);
    if (!session->requests || !session->tensors)
        goto failed;
    status = hvi_channel_create((uint32_t)rank, id, &session->channel);
    if (status != HVI_OK)
        goto failed;
    engine_regions_init(&session->regions, session->channel.inline_base);
    status = HVI_ERR_LIMIT;
    session->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (session->event_fd < 0)
        goto failed;
    session->socket_fd = socket_fd;
    session->pid_fd = pid_fd;
    session->process.pid = engine->ranks[rank].pid;
    session->process.pid_fd = pid_fd;
    engine_remote_offer(session);
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

static int reply(struct engine *engine, int socket_fd, int status, const char *text,
                 const struct engine_session *session)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_ATTACH_REPLY};
    int fds[5];

    msg.attach_reply.status = status;
    snprintf(msg.attach_reply.text, sizeof msg.attach_reply.text, "%s", text);
    msg.attach_reply.protocol_version = HVI_PROTOCOL_VERSION;
    msg.attach_reply.abi_version = HVI_ABI_VERSION;
    msg.attach_reply.generation = engine->start.generation;
    msg.attach_reply.engine_pid = getpid();
    if (!session)
        return engine_send(engine, socket_fd, &msg, NULL, 0);
    msg.attach_reply.session = session->id;
    fds[0] = session->channel.region.fd;
    fds[1] = engine->bell_region.fd;
    fds[2] = engine->engine_fd;
    fds[3] = session->event_fd;
    fds[4] = engine->express.map.region.fd;
    return engine_send(engine, socket_fd, &msg, fds, engine->express.on ? 5 : 4);
}

/* What hvdd has checked already, and what only the engine knows. */
static int check_attach(const struct engine *engine, const struct hvi_attach_request *request,
                        char *text_p, size_t text_size)
{
    if (request->protocol_version != HVI_PROTOCOL_VERSION ||
        request->abi_version != HVI_ABI_VERSION) {
        snprintf(
            text_p, text_size, "the client speaks protocol %u and ABI %u, the engine %u and %u",
            request->protocol_version, request->abi_version, HVI_PROTOCOL_VERSION, HVI_ABI_VERSION);
        return HVI_ERR_VERSION;
    }
    if (request->size != engine->start.size) {
        snprintf(text_p, text_size, "job '%s' has %d ranks, this rank says %d", engine->start.job,
                 engine->start.size, request->size);
        return HVI_ERR_BAD_SIZE;
    }
    if (request->rank < 0 || request->rank >= engine->start.size) {
        snprintf(text_p, text_size, "there is no rank %d in job '%s' with %d ranks", request->rank,
                 engine->start.job, engine->start.size);
        return HVI_ERR_BAD_RANK;
    }
    const struct engine_rank *slot = &engine->ranks[request->rank];
    if (slot->state != ENGINE_RANK_ABSENT) {
        snprintf(text_p, text_size, "rank %d of job '%s' is taken: pid %d, %s", request->rank,
                 engine->start.job, (int)slot->pid, state_texts[slot->state]);
        return HVI_ERR_DUPLICATE_RANK;
    }
    return HVI_OK;
}

static void fill_slot(struct engine_rank *slot, const struct hvi_engine_adopt *adopt,
                      const struct hvi_attach_request *request)
{
    slot->pid = adopt->pid;
    slot->uid = adopt->uid;
    snprintf(slot->origin, sizeof slot->origin, "%s", request->origin);
}

static void take_job_settings(struct engine *engine, const struct hvi_attach_request *request)
{
    if (engine->come == 0)
        hvi_digest_text(request->job_key, engine->key_digest);
    engine_settings_take(engine, request->rank, request->settings, request->setting_count);
}

/* The slot was promised to this client by hvdd and cannot be filled any more. */
static void refuse_promised(struct engine *engine, int32_t rank, int socket_fd, int status)
{
    char why[160], text[512];

    snprintf(why, sizeof why, "%s",
             status == HVI_ERR_LIMIT ? "out of file descriptors: raise LimitNOFILE"
                                     : hvi_status_text(status));
    snprintf(text, sizeof text, "the engine of job '%s' (pid %d) cannot take rank %d: %s",
             engine->start.job, (int)getpid(), rank, why);
    reply(engine, socket_fd, status, text, NULL);
    snprintf(text, sizeof text, "rank %d (pid %d) could not be attached: %s", rank,
             (int)engine->ranks[rank].pid, why);
    engine_express_leave(&engine->express, rank);
    lose(engine, rank, ENGINE_RANK_ENDED, text);
}

/* True: the session owns the descriptors now. */
static bool adopt_rank(struct engine *engine, const struct hvi_engine_adopt *adopt,
                       const struct hvi_attach_request *request, int socket_fd, int pid_fd)
{
    struct engine_rank *slot = &engine->ranks[request->rank];
    struct engine_session *session = NULL;

    fill_slot(slot, adopt, request);
    engine_stats_add_rank(&engine->stats, request->rank);
    take_job_settings(engine, request);
    int status = session_new(engine, request->rank, adopt->session, socket_fd, pid_fd, &session);
    if (status != HVI_OK) {
        refuse_promised(engine, request->rank, socket_fd, status);
        return false;
    }
    status = reply(engine, socket_fd, HVI_OK, "", session);
    if (status != HVI_OK && status != HVI_ERR_CLOSED) {
        engine_liveness_close(session);
        session->socket_fd = session->pid_fd = -1;
        session_free(session);
        refuse_promised(engine, request->rank, socket_fd, status);
        return false;
    }
    /* The client has its copy, or is gone and its end of file is on the socket. */
    hvi_region_close_fd(&session->channel.region);
    slot->session = session;
    engine_express_come(&engine->express, request->rank, &session->regions, adopt->pid, pid_fd);
    set_state(engine, request->rank, ENGINE_RANK_ATTACHED, "attach");
    HVI_LOG(HVI_LOG_INFO, "session", "rank-attached", "a rank has come",
            "job=%s generation=%llu rank=%d pid=%d uid=%u origin=%s", engine->start.job,
            (unsigned long long)engine->start.generation, request->rank, adopt->pid, adopt->uid,
            request->origin);
    engine_link_tell(engine, request->rank);
    if (engine->order.broken_status != HVI_OK)
        notify(session, engine->order.broken_status, engine->order.broken_text,
               engine->order.broken_culprit,
               engine->order.broken_culprit >= 0 ? engine->ranks[engine->order.broken_culprit].pid
                                                 : 0,
               false);
    engine_liveness_check_empty(engine);
    return true;
}

void engine_session_adopt(struct engine *engine, const struct hvi_engine_adopt *adopt,
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
        status = check_attach(engine, &msg.attach_request, text, sizeof text);
    if (status == HVI_OK) {
        taken = adopt_rank(engine, adopt, &msg.attach_request, socket_fd, pid_fd);
    } else {
        HVI_LOG(HVI_LOG_WARN, "session", "attach-refused", text, "job=%s pid=%d status=%s",
                engine->start.job, adopt->pid, hvi_status_name(status));
        reply(engine, socket_fd, status, text, NULL);
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

void engine_session_dying(struct engine_session *session)
{
    struct engine *engine = session->engine;

    if (session->over || engine->ranks[session->rank].state != ENGINE_RANK_ATTACHED)
        return;
    /* What was submitted before counts: if nobody is missing any more, the others get a result. */
    engine_intake_drain_all(engine);
    if (session->over)
        return;
    set_state(engine, session->rank, ENGINE_RANK_DYING, "its socket or process has gone");
    session->dying_ns = hvi_clock_ns();
    engine_liveness_ask(session);
}

static void drop_owed(struct engine_session *session)
{
    while (session->owed_first) {
        struct engine_request *request = session->owed_first;
        session->owed_first = request->next;
        session->engine->owed--;
        request->owed = false;
        if (!request->express.share.part.op)
            engine_request_free(request);
    }
    session->owed_last = NULL;
}

/* Everything that talks. */
static void hang_up(struct engine_session *session)
{
    struct engine *engine = session->engine;
    struct hvi_channel_header *header = session->channel.header;

    session->over = true;
    engine_express_leave(&engine->express, session->rank);
    engine_liveness_close(session);
    engine_process_end(&session->engine->exec, &session->process);
    /* Release, pairs with the client's acquire load when it looks whether the session is over. */
    atomic_store_explicit(&header->session_state, HVI_SESSION_ENDED, memory_order_release);
    hvi_bell_ring_client(header);
    if (session->socket_fd >= 0)
        close(session->socket_fd);
    close(session->event_fd);
    session->socket_fd = session->event_fd = -1; /* the pidfd is asked until its ops are over */
    drop_owed(session);
    engine_group_drop(&engine->order, &session->grouped);
    engine->ranks[session->rank].session = NULL;
    session->gone_next = engine->gone;
    engine->gone = session;
}

void engine_session_end(struct engine_session *session, enum engine_rank_state state,
                        const char *text)
{
    if (session->over)
        return;
    engine_express_finish(&session->engine->express);
    if (session->over)
        return;
    hang_up(session);
    lose(session->engine, session->rank, state, text);
}

/* Nobody works on an op any more, neither backends nor ranks, as far as these come to an end within a second: whoever is
 * told that his session is over may use his memory for something else. */
static void quiesce(struct engine *engine)
{
    engine_express_seize_all(&engine->express);
    engine_dispatch_settle(&engine->exec);
    engine_express_settle(&engine->express);
}

void engine_session_violation(struct engine_session *session, const char *reason)
{
    struct engine *engine = session->engine;
    pid_t pid = engine->ranks[session->rank].pid;
    char text[HVI_TEXT_MAX + 1];

    if (session->over)
        return;
    snprintf(text, sizeof text, "rank %d (pid %d) broke the protocol: %.800s", session->rank,
             (int)pid, reason);
    engine_process_end(&session->engine->exec, &session->process);
    quiesce(engine);
    notify(session, HVI_ERR_PROTOCOL, text, session->rank, pid, true);
    engine_session_end(session, ENGINE_RANK_ENDED, text);
}

void engine_sessions_stop(struct engine *engine, const char *reason)
{
    char text[HVI_TEXT_MAX + 1];
    int kept = (int)hvi_utf8_cut(reason, strlen(reason), REASON_MAX);

    snprintf(text, sizeof text, "job '%s' was stopped: %.*s", engine->start.job, kept, reason);
    HVI_LOG(HVI_LOG_INFO, "session", "job-stopped", text, "job=%s generation=%llu attached=%d",
            engine->start.job, (unsigned long long)engine->start.generation, engine->attached);
    engine->stopping = true;
    engine_order_break(&engine->order, HVI_ERR_JOB_STOPPED, -1, text);
    engine->order.now_ns = hvi_clock_ns();
    engine_intake_drain_all(engine); /* what was submitted before gets the same answer */
    engine_dispatch_drop(&engine->exec, HVI_ERR_JOB_STOPPED, text);
    quiesce(engine);
    engine_negotiate_fail_all(&engine->order, HVI_ERR_JOB_STOPPED, text, -1);
    engine_complete_ring(engine);
    for (int32_t rank = 0; rank < engine->start.size; rank++) {
        struct engine_session *session = engine->ranks[rank].session;
        if (!session)
            continue;
        engine_process_end(&session->engine->exec, &session->process);
        notify(session, HVI_ERR_JOB_STOPPED, text, -1, 0, true);
        hang_up(session);
        set_state(engine, rank, ENGINE_RANK_ENDED, text);
    }
    engine_remote_settle(engine);
}

bool engine_sessions_reap(struct engine *engine)
{
    struct engine_session **link = &engine->gone;

    while (*link) {
        struct engine_session *session = *link;
        if (session->in_flight > 0 || session->bell_due || engine->express.closing > 0) {
            link = &session->gone_next;
            continue;
        }
        *link = session->gone_next;
        engine_peer_forget_all(session);
        session_free(session);
        return true;
    }
    return false;
}

bool engine_sessions_ready_memory(struct engine *engine)
{
    if (!engine->fresh_regions)
        return false;
    for (int32_t rank = 0; rank < engine->start.size; rank++) {
        struct engine_session *session = engine->ranks[rank].session;
        if (session && engine_regions_ready(&session->regions))
            return true;
    }
    engine->fresh_regions = false;
    return false;
}

/* ---- rows ---- */

static void fill_row(const struct engine *engine, int32_t rank, struct hvi_rank_row *row)
{
    const struct engine_rank *slot = &engine->ranks[rank];
    enum engine_rank_state state = slot->state;

    row->rank = rank;
    row->pid = slot->pid;
    row->uid = (uint32_t)slot->uid;
    if (state == ENGINE_RANK_DYING)
        state = ENGINE_RANK_ATTACHED;
    snprintf(row->state, sizeof row->state, "%s", state_texts[state]);
    if (slot->session)
        row->process[0] = hvi_process_state(slot->pid);
    row->in_flight = slot->session ? slot->session->in_flight : 0;
    engine_stats_fill(&engine->stats, rank, row);
    if (slot->session)
        row->region_bytes = slot->session->regions.bytes + slot->session->regions.lasting_bytes;
    snprintf(row->origin, sizeof row->origin, "%s", slot->origin);
    snprintf(row->text, sizeof row->text, "%.*s",
             (int)hvi_utf8_cut(slot->text, strlen(slot->text), sizeof row->text - 1), slot->text);
}

int engine_rank_rows(struct engine *engine, struct hvi_rank_row **rows_p)
{
    struct hvi_rank_row *rows = calloc((size_t)engine->start.size, sizeof *rows);

    if (!rows)
        return HVI_ERR_NO_MEMORY;
    engine_express_fold(&engine->express);
    for (int32_t rank = 0; rank < engine->start.size; rank++)
        fill_row(engine, rank, &rows[rank]);
    *rows_p = rows;
    return HVI_OK;
}
