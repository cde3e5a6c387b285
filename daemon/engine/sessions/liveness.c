/* SPDX-License-Identifier: Apache-2.0
 * Liveness: who notices that a trainer is gone, and how it ended.
 *
 * Two witnesses per session: end of file on its socket, and its pidfd (a forked child may keep the
 * socket open). Either makes the rank "dying". The kernel closes a dying process' sockets a moment
 * before it becomes a zombie, so "how did it end" is asked again every millisecond for up to 20 ms
 * while the answer is "alive" or "nobody can tell"; hvdrun, which waits for its children, may tell
 * through hvdd in the meantime. Then the rank is lost with the best answer there is.
 *
 * Both witnesses speak only when the kernel has taken the process' memory apart, at some 70 ms a
 * GiB. So while ops wait, a third one is asked every 20 ms: /proc, which knows at once that a
 * process is on its way out. */
#include "daemon/engine/sessions/liveness.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "daemon/engine/event/event.h"
#include "daemon/engine/sessions/control.h"

#include <stdio.h>
#include <sys/epoll.h>

#define WATCHED_AT_ONCE 16               /* ranks; one look costs some 15 us */
#define LINGER_NS       (2 * HVI_NS_SEC) /* with nobody attached, while some may still come */
#define FATE_STEP_NS    (1 * HVI_NS_MS)

static int on_socket(sd_event_source *source, int fd, uint32_t events, void *user)
{
    struct engine_session *session = user;

    (void)source, (void)fd, (void)events;
    if (!engine_control_read(session))
        engine_session_dying(session);
    return 0;
}

static int on_process(sd_event_source *source, int fd, uint32_t events, void *user)
{
    (void)source, (void)fd, (void)events;
    engine_session_dying(user);
    return 0;
}

static int on_ask(sd_event_source *source, uint64_t usec, void *user)
{
    (void)source, (void)usec;
    engine_liveness_ask(user);
    return 0;
}

int engine_liveness_open(struct engine_session *session)
{
    sd_event *event = session->sessions->event;

    if (sd_event_add_io(event, &session->socket_source, session->socket_fd, EPOLLIN, on_socket,
                        session) < 0 ||
        (session->pid_fd >= 0 && sd_event_add_io(event, &session->pid_source, session->pid_fd,
                                                 EPOLLIN, on_process, session) < 0)) {
        engine_liveness_close(session);
        return HVI_ERR_LIMIT;
    }
    return HVI_OK;
}

void engine_liveness_close(struct engine_session *session)
{
    session->socket_source = sd_event_source_disable_unref(session->socket_source);
    session->pid_source = sd_event_source_disable_unref(session->pid_source);
    session->fate_source = sd_event_source_disable_unref(session->fate_source);
}

/* It has said Detach, and was kept because the nodes have not met. */
static bool has_left(const struct engine_session *session, struct hvi_fate fate)
{
    return session->detached && fate.kind != HVI_FATE_SIGNALED &&
           !(fate.kind == HVI_FATE_EXITED && fate.code != 0);
}

static void conclude(struct engine_session *session, struct hvi_fate fate)
{
    char how[128], label[ENGINE_RANK_LABEL], text[sizeof how + sizeof label];
    const bool left = has_left(session, fate);

    hvi_fate_describe(fate, how, sizeof how);
    engine_rank_label(session, label, sizeof label);
    snprintf(text, sizeof text, "%s %s", label, left ? "closed its session" : how);
    engine_session_end(session, left ? ENGINE_RANK_LEFT : ENGINE_RANK_LOST, text);
}

static bool is_final(struct hvi_fate fate)
{
    return fate.kind == HVI_FATE_EXITED || fate.kind == HVI_FATE_SIGNALED;
}

/* Once more at least, however long the kernel keeps this process waiting. */
static bool ask_later(struct engine_session *session)
{
    if (session->dying_ns == 0)
        session->dying_ns = hvi_clock_ns();
    else if (hvi_clock_ns() - session->dying_ns >= ENGINE_FATE_NS)
        return false;
    return engine_event_after(session->sessions->event, &session->fate_source, FATE_STEP_NS / 1000,
                              1, on_ask, session) >= 0;
}

void engine_liveness_ask(struct engine_session *session)
{
    const struct engine_rank *slot = engine_rank_at(session->sessions, session->seat);
    struct hvi_fate fate = slot->fate_told ? slot->fate : hvi_fate_look(slot->pid, session->pid_fd);
    struct hvi_fate ending;

    /* Its memory goes first, and may take long: whoever reads from it learns of the end before. */
    if (!is_final(fate) && hvi_fate_is_ending(slot->pid, session->pid_fd, &ending))
        fate = ending;
    /* Both stay readable: not again. */
    session->socket_source = sd_event_source_disable_unref(session->socket_source);
    session->pid_source = sd_event_source_disable_unref(session->pid_source);
    if (is_final(fate) || !ask_later(session))
        conclude(session, fate);
}

static void watch(struct engine_session *session)
{
    struct engine_sessions *sessions = session->sessions;
    struct engine_rank *slot = engine_rank_at(sessions, session->seat);
    struct hvi_fate fate;

    if (slot->state != ENGINE_RANK_ATTACHED ||
        !hvi_fate_is_ending(slot->pid, session->pid_fd, &fate))
        return;
    /* What it said before counts: a Detach, for one. */
    engine_control_read(session);
    if (slot->session != session || slot->state != ENGINE_RANK_ATTACHED)
        return;
    if (!slot->fate_told) {
        slot->fate_told = true;
        slot->fate = fate;
    }
    engine_session_dying(session);
}

void engine_liveness_watch(struct engine_sessions *sessions)
{
    uint32_t seats = sessions->seats;
    uint32_t count = seats < WATCHED_AT_ONCE ? seats : WATCHED_AT_ONCE;

    bool waits = sessions->order->waiting_first &&
                 hvi_clock_ns() - sessions->order->waiting_first->first_ns >= ENGINE_WATCH_NS;
    if (!waits && !sessions->slots->soon) /* ranks may hold units there */
        return;
    for (uint32_t i = 0; i < count; i++) {
        sessions->watch_next = (sessions->watch_next + 1) % seats;
        if (sessions->ranks[sessions->watch_next].session)
            watch(sessions->ranks[sessions->watch_next].session);
    }
}

void engine_liveness_told(struct engine_sessions *sessions, const struct hvi_engine_fate *told)
{
    const struct hvi_fate fate = {.kind = told->signaled ? HVI_FATE_SIGNALED : HVI_FATE_EXITED,
                                  .code = told->code};
    struct engine_rank *slot = engine_rank_find(sessions, told->rank);

    if (!slot || slot->state == ENGINE_RANK_ABSENT) {
        engine_sessions_miss(sessions, told->rank, (pid_t)told->pid, fate);
        return;
    }
    /* hvdrun may name it by the pid that the rank has in its own namespace. */
    if (slot->pid != told->pid && slot->own_pid != told->pid)
        return;
    slot->fate_told = true;
    slot->fate = fate;
    if (slot->state == ENGINE_RANK_DYING)
        engine_liveness_ask(slot->session);
}

/* ---- the engine's own end ---- */

/* A rank that has left may be in the next generation already, and the ranks that are still to come
 * begin with this one. */
static bool one_that_left_lives(const struct engine_sessions *sessions)
{
    bool lives = false;

    for (uint32_t seat = 0; seat < sessions->seats; seat++) {
        const struct engine_rank *slot = &sessions->ranks[seat];
        if (slot->state == ENGINE_RANK_LOST || slot->state == ENGINE_RANK_ENDED)
            return false; /* nobody comes to this one any more */
        lives = lives || (slot->state == ENGINE_RANK_LEFT && hvi_process_lives(slot->pid));
    }
    return lives;
}

static int on_linger(sd_event_source *source, uint64_t usec, void *user)
{
    struct engine_sessions *sessions = user;

    (void)source, (void)usec;
    if (one_that_left_lives(sessions)) {
        sessions->linger_source = sd_event_source_disable_unref(sessions->linger_source);
        engine_liveness_check_empty(sessions);
        return 0;
    }
    HVI_LOG(HVI_LOG_INFO, "liveness", "nobody-came", "nobody is attached any more",
            "job=%s generation=%llu", sessions->start->job,
            (unsigned long long)sessions->start->generation);
    sessions->stopping = true;
    return 0;
}

void engine_liveness_check_empty(struct engine_sessions *sessions)
{
    if (sessions->attached > 0) {
        sessions->linger_source = sd_event_source_disable_unref(sessions->linger_source);
        return;
    }
    if (sessions->come == sessions->seats || sessions->alone) {
        sessions->stopping = true;
        return;
    }
    uint64_t linger_ns = sessions->start->linger_ns ? sessions->start->linger_ns : LINGER_NS;
    if (!sessions->linger_source &&
        sd_event_add_time_relative(sessions->event, &sessions->linger_source, CLOCK_MONOTONIC,
                                   linger_ns / 1000, 1, on_linger, sessions) < 0)
        sessions->stopping = true;
}
