/* SPDX-License-Identifier: Apache-2.0
 * The link to hvdd: a socketpair made by it, descriptor 3 at start.
 *
 * When hvdd dies, the job goes on: every 250 ms the engine connects to the attach socket and
 * introduces itself with EngineHello, until a restarted hvdd takes it; where hvdd's queue of connections is full, it
 * tries again at once, because ranks are held no longer than half a second. With nobody attached there
 * is nothing to go on with, and it exits. */
#include "base/clock.h"
#include "base/listener.h"
#include "base/log.h"
#include "base/status.h"
#include "daemon/engine/engine.h"
#include "daemon/engine/report.h"
#include "daemon/engine/sessions/fence.h"
#include "daemon/engine/sessions/liveness.h"
#include "daemon/engine/sessions/quota.h"
#include "daemon/engine/watch/timeline.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define MESSAGES_AT_ONCE 16
#define RETRY_NS         (250 * HVI_NS_MS) /* between attempts to reach a restarted hvdd */
#define QUEUE_NS         (2 * HVI_NS_MS)   /* where its queue is full */
#define QUEUE_TURNS      8                 /* engines try in so many turns of a millisecond */

int engine_link_send(struct engine *engine, const struct hvi_packet_msg *msg)
{
    if (engine->link_fd < 0)
        return HVI_ERR_CLOSED;
    return engine_sessions_send(&engine->sessions, engine->link_fd, msg, NULL, 0);
}

/* Where it is lost, the log has it. */
void engine_link_tell_broken(struct engine *engine, int status, int32_t culprit, const char *text,
                             bool own)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_NOTICE};

    msg.notice.status = status;
    msg.notice.rank = culprit;
    msg.notice.session_ended = own && engine->sessions.held;
    snprintf(msg.notice.text, sizeof msg.notice.text, "%s", text);
    engine_link_send(engine, &msg);
}

/* ---- what becomes of ranks ---- */

static enum hvi_session_state wire_state(enum engine_rank_state state)
{
    switch (state) {
    case ENGINE_RANK_LEFT:
        return HVI_SESSION_STATE_LEFT;
    case ENGINE_RANK_LOST:
        return HVI_SESSION_STATE_LOST;
    case ENGINE_RANK_ENDED:
        return HVI_SESSION_STATE_ENDED;
    default:
        return HVI_SESSION_STATE_ATTACHED;
    }
}

static int send_state(struct engine *engine, const struct engine_rank *slot)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_ENGINE_SESSION};

    msg.engine_session.rank = slot->rank;
    msg.engine_session.pid = slot->pid;
    msg.engine_session.state = wire_state(slot->state);
    snprintf(msg.engine_session.text, sizeof msg.engine_session.text, "%s", slot->text);
    return engine_link_send(engine, &msg);
}

static int send_fences(struct engine *engine, const struct engine_rank *slot)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_ENGINE_FENCES};
    const struct engine_fences *fences = slot->session ? slot->session->fences : NULL;

    if (!fences)
        return HVI_OK;
    if (engine->link_fd < 0)
        return HVI_ERR_CLOSED;
    msg.engine_fences.rank = slot->rank;
    return engine_sessions_send(&engine->sessions, engine->link_fd, &msg, &fences->page.map.fd, 1);
}

static void retry_later(struct engine *engine);

static void listen_for(struct engine *engine, uint32_t events)
{
    if (engine->link_source)
        sd_event_source_set_io_events(engine->link_source, events);
}

void engine_link_await_room(struct engine *engine)
{
    listen_for(engine, EPOLLIN | EPOLLOUT);
}

/* A link that could take more has room: it would tell of that again and again. */
bool engine_link_try_later(struct engine *engine, int status)
{
    if (status == HVI_ERR_TIMEOUT) {
        engine_link_await_room(engine);
    } else if (status == HVI_ERR_LIMIT) {
        listen_for(engine, EPOLLIN);
        retry_later(engine);
    }
    return status == HVI_ERR_TIMEOUT || status == HVI_ERR_LIMIT;
}

void engine_link_tell(struct engine *engine, engine_seat seat)
{
    struct engine_rank *slot = engine_rank_at(&engine->sessions, seat);

    if (engine->link_fd < 0 || slot->untold)
        return;
    int status = send_state(engine, slot);
    slot->untold = engine_link_try_later(engine, status);
    if (!slot->untold && status != HVI_OK && status != HVI_ERR_CLOSED)
        HVI_LOG(HVI_LOG_WARN, "link", "message-lost", hvi_status_text(status), "job=%s rank=%d",
                engine->start.job, slot->rank);
}

/* The send's status. */
static int tell_fences(struct engine *engine, struct engine_rank *slot)
{
    int status = send_fences(engine, slot);

    slot->fences_untold = status == HVI_ERR_TIMEOUT || status == HVI_ERR_REFUSED;
    if (status == HVI_ERR_TIMEOUT)
        engine_link_await_room(engine);
    else if (status == HVI_ERR_REFUSED) /* hvdd has not read the EngineHello */
        retry_later(engine);
    else if (status != HVI_OK && status != HVI_ERR_CLOSED)
        HVI_LOG(HVI_LOG_WARN, "link", "message-lost", hvi_status_text(status), "job=%s rank=%d",
                engine->start.job, slot->rank);
    return status;
}

void engine_link_tell_fences(struct engine *engine, engine_seat seat)
{
    tell_fences(engine, engine_rank_at(&engine->sessions, seat));
}

/* hvdd reads again, or takes descriptors by now. */
static void tell_untold(struct engine *engine)
{
    for (uint32_t seat = 0; seat < engine->sessions.seats; seat++) {
        struct engine_rank *slot = &engine->sessions.ranks[seat];
        if (slot->fences_untold && tell_fences(engine, slot) == HVI_ERR_TIMEOUT)
            return;
        if (!slot->untold)
            continue;
        if (engine_link_try_later(engine, send_state(engine, slot)))
            return;
        slot->untold = false;
    }
    if (engine->rendezvous.untold)
        engine_rendezvous_tell(engine);
    if (engine->rendezvous.untold || !engine_gather_flush(&engine->gathers))
        return;
    listen_for(engine, EPOLLIN);
}

/* A new hvdd has been told everything but the fence pages. */
static void forget_untold(struct engine *engine)
{
    for (uint16_t seat = 0; seat < engine->sessions.seats; seat++) {
        engine->sessions.ranks[seat].untold = false;
        engine_link_tell_fences(engine, (engine_seat){seat});
    }
}

/* ---- questions ---- */

static void answer(struct engine *engine, const struct hvi_engine_query *query)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_ENGINE_REPORT};

    if (query->what == HVI_QUERY_ALIVE) {
        /* relaxed, pairs with the load in client/link/liveness.c */
        atomic_store_explicit(&engine->bell->silence_ns, query->silence_ns, memory_order_relaxed);
        engine_rendezvous_asked(engine, query->silence_ns != 0);
    }
    if (query->what != HVI_QUERY_ALIVE && engine->nodes.linked && !engine->sessions.held) {
        engine_gather_start(&engine->gathers, query);
        return;
    }
    engine_report_fill(engine, query, &msg.engine_report);
    int status = engine_report_send(engine, &msg);
    if (status != HVI_OK && status != HVI_ERR_CLOSED)
        HVI_LOG(HVI_LOG_WARN, "link", "report-lost", hvi_status_text(status), "job=%s",
                engine->start.job);
    hvi_packet_msg_free(&msg);
}

/* ---- messages ---- */

static void adopt(struct engine *engine, const struct hvi_engine_adopt *adopt)
{
    int socket_fd = hvi_packet_take_fd(&engine->packet, 0);
    int pid_fd = hvi_packet_take_fd(&engine->packet, 1);

    if (socket_fd < 0) {
        HVI_LOG(HVI_LOG_ERROR, "link", "bad-adopt", "EngineAdopt came without a socket", "job=%s",
                engine->start.job);
        return;
    }
    if (engine->sessions
            .stopping) { /* hvdd has kept copies, and asks another engine when this one has ended */
        close(socket_fd);
        if (pid_fd >= 0)
            close(pid_fd);
        return;
    }
    engine_add_cores(engine, adopt->pid, pid_fd); /* refused or not, it is the job's user's */
    engine_session_adopt(&engine->sessions, adopt, socket_fd, pid_fd);
}

static void timeline(struct engine *engine, const struct hvi_engine_timeline *wanted)
{
    const struct engine_asker asker = {.rank = -1, .request = wanted->request};
    int fd = hvi_packet_take_fd(&engine->packet, 0);

    if (wanted->start && fd >= 0)
        engine_timeline_start(&engine->watch, &asker, fd, wanted->path, wanted->mark_cycles);
    else if (!wanted->start && fd < 0)
        engine_timeline_stop(&engine->watch, &asker);
    else
        HVI_LOG(HVI_LOG_ERROR, "link", "bad-message", "EngineTimeline with the wrong descriptors",
                "job=%s", engine->start.job);
}

static void serve(struct engine *engine, const struct hvi_packet_msg *msg)
{
    switch (msg->kind) {
    case HVI_PACKET_ENGINE_ADOPT:
        adopt(engine, &msg->engine_adopt);
        return;
    case HVI_PACKET_ENGINE_QUERY:
        answer(engine, &msg->engine_query);
        return;
    case HVI_PACKET_ENGINE_TIMELINE:
        timeline(engine, &msg->engine_timeline);
        return;
    case HVI_PACKET_ENGINE_STOP:
        engine_sessions_stop(&engine->sessions, msg->engine_stop.reason);
        return;
    case HVI_PACKET_ENGINE_ROSTER:
        engine_rendezvous_roster(engine, &msg->engine_roster);
        return;
    case HVI_PACKET_GPU_WORKER:
        engine_device_told(&engine->device, &msg->gpu_worker,
                           hvi_packet_take_fd(&engine->packet, 0));
        return;
    case HVI_PACKET_ENGINE_FATE:
        engine_liveness_told(&engine->sessions, &msg->engine_fate);
        return;
    case HVI_PACKET_ENGINE_REGIONS:
        engine_quota_told(&engine->sessions, &msg->engine_regions);
        return;
    default:
        HVI_LOG(HVI_LOG_ERROR, "link", "bad-message", "hvdd sent a message that is not for engines",
                "job=%s kind=%d", engine->start.job, (int)msg->kind);
    }
}

static void handle(struct engine *engine)
{
    struct hvi_packet_msg msg;
    char why[256];

    engine_rendezvous_heard(engine);
    int status =
        hvi_packet_msg_decode(engine->packet.bytes, engine->packet.length, &msg, why, sizeof why);

    if (status != HVI_OK) {
        HVI_LOG(HVI_LOG_ERROR, "link", "bad-message", "hvdd sent a message that cannot be read",
                "job=%s why=%s", engine->start.job,
                status == HVI_ERR_PROTOCOL ? why : hvi_status_text(status));
        return;
    }
    serve(engine, &msg);
    hvi_packet_msg_free(&msg);
}

/* ---- hvdd comes and goes ---- */

static int on_link(sd_event_source *source, int fd, uint32_t events, void *user);
static int on_retry(sd_event_source *source, uint64_t usec, void *user);

static void retry_after(struct engine *engine, uint64_t delay_ns)
{
    engine_event_after(engine->event, &engine->retry_source, delay_ns / 1000, 1000, on_retry,
                       engine);
}

static void retry_later(struct engine *engine)
{
    retry_after(engine, RETRY_NS);
}

/* The engines of all jobs come back at the same time. */
static uint64_t turn_ns(void)
{
    return QUEUE_NS + (uint64_t)(getpid() % QUEUE_TURNS) * HVI_NS_MS;
}

static void hang_up(struct engine *engine)
{
    engine->link_source = sd_event_source_disable_unref(engine->link_source);
    if (engine->link_fd >= 0)
        close(engine->link_fd);
    engine->link_fd = -1;
    engine->sessions.alone = true;
}

static void lose_link(struct engine *engine)
{
    HVI_LOG(HVI_LOG_DEBUG, "link", "hvdd-gone", "hvdd has gone; the job goes on",
            "job=%s attached=%u", engine->start.job, engine->sessions.attached);
    hang_up(engine);
    engine_quota_alone(&engine->sessions);
    engine_rendezvous_alone(engine, hvi_clock_ns());
    engine_liveness_check_empty(&engine->sessions);
    retry_later(engine);
}

static int on_link(sd_event_source *source, int fd, uint32_t events, void *user)
{
    struct engine *engine = user;

    (void)source, (void)fd;
    if (events & EPOLLOUT)
        tell_untold(engine);
    for (int i = 0; i < MESSAGES_AT_ONCE; i++) {
        int status = hvi_packet_receive(engine->link_fd, &engine->packet, 0);
        if (status == HVI_ERR_TIMEOUT)
            return 0;
        if (status == HVI_OK) {
            handle(engine);
            hvi_packet_close_fds(&engine->packet);
        } else if (status == HVI_ERR_LIMIT || status == HVI_ERR_PROTOCOL) {
            /* The client that came with it sees its socket close. */
            HVI_LOG(HVI_LOG_ERROR, "link", "message-lost", hvi_status_text(status), "job=%s",
                    engine->start.job);
        } else {
            lose_link(engine);
            return 0;
        }
    }
    return 0;
}

int engine_link_open(struct engine *engine)
{
    if (sd_event_add_io(engine->event, &engine->link_source, engine->link_fd, EPOLLIN, on_link,
                        engine) < 0)
        return HVI_ERR_NO_MEMORY;
    return HVI_OK;
}

void engine_link_close(struct engine *engine)
{
    hang_up(engine);
    engine->retry_source = sd_event_source_disable_unref(engine->retry_source);
}

/* Root's service manager, or hvdd's user listens. The job's own user does not count: the engine may be his by now. */
static bool is_hvdd(const struct engine *engine, int fd)
{
    uid_t uid;

    return hvi_listener_uid(fd, &uid) && (uid == 0 || uid == engine->hvdd_uid);
}

/* -1: not now; *full_p: because too many wait before us. */
static int connect_hvdd(const struct engine *engine, bool *full_p)
{
    int fd = hvi_listener_try(engine->start.attach_path);

    *full_p = fd == -EAGAIN;
    if (fd < 0 || is_hvdd(engine, fd))
        return fd < 0 ? -1 : fd;
    close(fd);
    return -1;
}

/* Ranks that have come, without the texts: hvdd only needs to know who holds which slot. */
static int hello_rows(struct engine *engine, struct hvi_rank_row **rows_p, size_t *count_p)
{
    struct hvi_rank_row *rows = NULL;
    size_t all = 0, count = 0;
    int status = engine_rank_rows(&engine->sessions, &rows, &all);

    if (status != HVI_OK)
        return status;
    for (size_t i = 0; i < all; i++) {
        if (engine_rank_find(&engine->sessions, rows[i].rank)->state == ENGINE_RANK_ABSENT)
            continue;
        rows[count] = rows[i];
        rows[count].text[0] = '\0';
        rows[count].origin[0] = '\0';
        count++;
    }
    *rows_p = rows;
    *count_p = count;
    return HVI_OK;
}

static int say_hello(struct engine *engine)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_ENGINE_HELLO};
    struct hvi_engine_hello *hello = &msg.engine_hello;
    int status = hello_rows(engine, &hello->ranks, &hello->rank_count);

    if (status != HVI_OK)
        return status;
    hello->protocol_version = HVI_PROTOCOL_VERSION;
    snprintf(hello->job, sizeof hello->job, "%s", engine->start.job);
    hello->generation = engine->start.generation;
    hello->size = engine->start.size;
    hello->uid = engine->start.uid;
    hello->pid = getpid();
    snprintf(hello->job_key_digest, sizeof hello->job_key_digest, "%s",
             engine->sessions.key_digest);
    hello->started_ns = engine->started_ns;
    hello->beats = true;
    hello->seats = engine->start.seats;
    hello->regions_granted = engine_quota_keep(&engine->sessions);
    status = engine_link_send(engine, &msg);
    free(hello->ranks);
    return status;
}

static int on_retry(sd_event_source *source, uint64_t usec, void *user)
{
    struct engine *engine = user;
    bool full;

    (void)source, (void)usec;
    if (engine->link_fd >= 0)
        tell_untold(engine);
    if (engine->link_fd >= 0 || engine->sessions.stopping)
        return 0;
    engine->link_fd = connect_hvdd(engine, &full);
    if (engine->link_fd < 0) {
        retry_after(engine, full ? turn_ns() : RETRY_NS);
        return 0;
    }
    if (say_hello(engine) != HVI_OK || engine_link_open(engine) != HVI_OK) {
        hang_up(engine);
        retry_later(engine);
        return 0;
    }
    engine->sessions.alone = false;
    engine_rendezvous_heard(engine);
    engine_rendezvous_asked(engine, false); /* it has not yet, and need not */
    forget_untold(engine);
    engine_device_ask_again(&engine->device);
    engine_rendezvous_tell(engine);
    HVI_LOG(HVI_LOG_DEBUG, "link", "hvdd-back", "introduced itself to hvdd", "job=%s",
            engine->start.job);
    return 0;
}
