/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/engine/rendezvous.h"

#include "base/bits.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "daemon/engine/engine.h"
#include "daemon/engine/sessions/control.h"
#include "daemon/engine/sessions/intake.h"
#include "daemon/engine/watch/timeline.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The rendezvous knows which nodes are missing, and the gate whether there is one: their answers, 5 s after the time
 * that they count from the node's last rank on, have this much longer. */
#define GRACE_NS (7 * HVI_NS_SEC)
/* For a new hvdd, which a service has within a second; for one that stands still. */
#define ALONE_NS (10 * HVI_NS_SEC)
#define LOOK_NS  HVI_NS_SEC /* the timer comes so often, where hvdd asks */
#define LATE_NS  HVI_NS_SEC /* so late: this process stood still */

static bool waits(const struct engine *engine)
{
    return engine->sessions.held && !engine->sessions.stopping && !engine->rendezvous.met;
}

static bool all_are_here(const struct engine *engine)
{
    return engine->sessions.attached == engine->sessions.seats;
}

/* ---- what is said ---- */

/* "nodes: ...", "local ranks 1,3 of this node". */
static void describe(const struct engine *engine, char *text_p, size_t size)
{
    const struct engine_sessions *sessions = &engine->sessions;
    int32_t missing[ENGINE_SEATS_MAX];
    uint32_t count = 0;

    if (engine->rendezvous.met) {
        snprintf(text_p, size, "connections to the engines of its other nodes");
        return;
    }
    for (uint32_t seat = 0; seat < sessions->seats; seat++) {
        if (sessions->ranks[seat].state == ENGINE_RANK_ABSENT)
            missing[count++] = (int32_t)seat;
    }
    if (count == 0) {
        snprintf(
            text_p, size, "nodes: all %u ranks of this one are here, the other %d of %d are not",
            sessions->seats, engine->start.size - (int32_t)sessions->seats, engine->start.size);
        return;
    }
    size_t used = (size_t)snprintf(text_p, size, "local ");
    used += engine_ranks_text(missing, count, text_p + used, size - used);
    if (used < size)
        snprintf(text_p + used, size - used, " of this node, on which %u of %d ranks are",
                 sessions->seats, engine->start.size);
}

int engine_rendezvous_row(const struct engine *engine, struct hvi_stall_row *row_p)
{
    const struct engine_sessions *sessions = &engine->sessions;
    char what[256];

    row_p->ready = calloc(sessions->seats, sizeof *row_p->ready);
    if (!row_p->ready)
        return HVI_ERR_NO_MEMORY;
    for (uint32_t seat = 0; seat < sessions->seats; seat++) {
        if (sessions->ranks[seat].session)
            row_p->ready[row_p->ready_count++] = sessions->ranks[seat].rank;
    }
    describe(engine, what, sizeof what);
    snprintf(row_p->tensor, sizeof row_p->tensor, "waits for %s", what);
    snprintf(row_p->op, sizeof row_p->op, "start");
    snprintf(row_p->job, sizeof row_p->job, "%s", engine->start.job);
    row_p->age_ns = hvi_clock_ns() - engine->started_ns;
    return HVI_OK;
}

static void fail(struct engine *engine, int status, const char *text)
{
    HVI_LOG(HVI_LOG_ERROR, "rendezvous", "no-job", text, "job=%s generation=%llu status=%s",
            engine->start.job, (unsigned long long)engine->start.generation,
            hvi_status_name(status));
    engine_link_tell_broken(engine, status, -1, text, true);
    engine_sessions_fail(&engine->sessions, status, text);
}

/* ---- the clock ---- */

/* Once all are here the rendezvous counts, from when it was told, and names who is missing: it speaks first. */
static uint64_t deadline_ns(const struct engine *engine)
{
    const struct engine_rendezvous *rendezvous = &engine->rendezvous;

    if (!all_are_here(engine))
        return engine->started_ns + rendezvous->timeout_ns;
    return (rendezvous->told_ns != 0 ? rendezvous->told_ns : engine->started_ns) +
           rendezvous->timeout_ns + GRACE_NS;
}

static uint64_t alone_until_ns(const struct engine *engine)
{
    return engine->rendezvous.alone_ns + (engine->start.one_job ? 0 : ALONE_NS);
}

static bool is_alone_for_good(const struct engine *engine, uint64_t now_ns)
{
    return engine->sessions.alone && now_ns >= alone_until_ns(engine);
}

/* hvdd asks each second whether the engine lives, where it was not told not to. */
static uint64_t still_until_ns(const struct engine *engine)
{
    return engine->sessions.alone || !engine->rendezvous.asked
               ? UINT64_MAX
               : engine->rendezvous.heard_ns + ALONE_NS;
}

static void fail_still(struct engine *engine, const char *what)
{
    char text[HVI_TEXT_MAX + 1], node[HVI_WIRE_NODE_NAME] = "";

    gethostname(node, sizeof node - 1);
    snprintf(
        text, sizeof text,
        "hvdd on %s has said nothing for %u s, and job '%s' still waits for %s: it was stopped, "
        "or is stuck; end it, and start the job again",
        node, (unsigned)(ALONE_NS / HVI_NS_SEC), engine->start.job, what);
    fail(engine, HVI_ERR_JOB_STOPPED, text);
}

static void fail_alone(struct engine *engine, const char *what)
{
    char text[HVI_TEXT_MAX + 1], node[HVI_WIRE_NODE_NAME] = "";

    gethostname(node, sizeof node - 1);
    if (engine->start.one_job)
        snprintf(text, sizeof text,
                 "the private hvdd of node %s has ended, and job '%s' still waits for %s; start it "
                 "again",
                 node, engine->start.job, what);
    else
        snprintf(text, sizeof text,
                 "hvdd on %s has been gone for %u s, and job '%s' still waits for %s; start it "
                 "again",
                 node, (unsigned)(ALONE_NS / HVI_NS_SEC), engine->start.job, what);
    fail(engine, HVI_ERR_JOB_STOPPED, text);
}

static void arm(struct engine *engine)
{
    uint64_t now_ns = hvi_clock_ns(), due_ns = deadline_ns(engine);
    uint64_t warn_ns = engine->watch.stall_warn_ns;

    if (warn_ns > 0 && engine->rendezvous.warned_ns + warn_ns < due_ns)
        due_ns = engine->rendezvous.warned_ns + warn_ns;
    if (engine->sessions.alone && alone_until_ns(engine) < due_ns)
        due_ns = alone_until_ns(engine);
    if (still_until_ns(engine) < due_ns)
        due_ns = still_until_ns(engine);
    if (engine->rendezvous.asked && now_ns + LOOK_NS < due_ns)
        due_ns = now_ns + LOOK_NS; /* so that it is seen when this process stands still */
    engine->rendezvous.due_ns = due_ns;
    sd_event_source_set_time_relative(engine->rendezvous.timer,
                                      due_ns > now_ns ? (due_ns - now_ns) / 1000 + 1 : 0);
    sd_event_source_set_enabled(engine->rendezvous.timer, SD_EVENT_ONESHOT);
}

static void warn(struct engine *engine, const char *what, uint64_t now_ns)
{
    char text[HVI_TEXT_MAX + 1];

    snprintf(text, sizeof text, "the job waits for %s", what);
    engine->rendezvous.warned_ns = now_ns;
    HVI_LOG(HVI_LOG_WARN, "rendezvous", "waits-for-nodes", text, "job=%s age_ms=%llu",
            engine->start.job, (unsigned long long)((now_ns - engine->started_ns) / HVI_NS_MS));
}

static int on_timer(sd_event_source *source, uint64_t usec, void *user)
{
    struct engine *engine = user;
    uint64_t now_ns = hvi_clock_ns(), warn_ns = engine->watch.stall_warn_ns;
    char what[256], text[HVI_TEXT_MAX + 1];

    (void)source, (void)usec;
    if (!waits(engine))
        return 0;
    describe(engine, what, sizeof what);
    if (now_ns > engine->rendezvous.due_ns + LATE_NS)
        engine->rendezvous.heard_ns = now_ns; /* what hvdd has said meanwhile is not read yet */
    if (now_ns >= still_until_ns(engine)) {
        fail_still(engine, what);
        return 0;
    }
    if (is_alone_for_good(engine, now_ns)) {
        fail_alone(engine, what);
        return 0;
    }
    if (hvi_deadline_passed(deadline_ns(engine))) {
        snprintf(text, sizeof text, "job '%s' has waited %g s (HVD_START_TIMEOUT) for %s",
                 engine->start.job, (double)engine->rendezvous.timeout_ns / (double)HVI_NS_SEC,
                 what);
        fail(engine, HVI_ERR_NODE_LOST, text);
        return 0;
    }
    if (warn_ns > 0 && now_ns >= engine->rendezvous.warned_ns + warn_ns)
        warn(engine, what, now_ns);
    arm(engine);
    return 0;
}

int engine_rendezvous_open(struct engine *engine)
{
    struct engine_rendezvous *rendezvous = &engine->rendezvous;

    rendezvous->timeout_ns = ENGINE_START_NS;
    rendezvous->warned_ns = engine->started_ns;
    rendezvous->heard_ns = hvi_clock_ns();
    rendezvous->asked = engine->start.silence_ns != 0;
    if (sd_event_add_time_relative(engine->event, &rendezvous->timer, CLOCK_MONOTONIC, 0, 1000,
                                   on_timer, engine) < 0)
        return HVI_ERR_NO_MEMORY;
    engine->sessions.held = true;
    arm(engine);
    return HVI_OK;
}

void engine_rendezvous_close(struct engine *engine)
{
    engine->rendezvous.timer = sd_event_source_disable_unref(engine->rendezvous.timer);
}

void engine_rendezvous_configure(struct engine *engine, const char *text)
{
    char *end = NULL;

    if (!waits(engine))
        return;
    double seconds = text ? strtod(text, &end) : 0;
    engine->rendezvous.timeout_ns = ENGINE_START_NS;
    engine->rendezvous.said_ns = 0;
    if (text && end != text && *end == '\0' && seconds > 0 && seconds <= 1e9)
        engine->rendezvous.timeout_ns = engine->rendezvous.said_ns =
            (uint64_t)(seconds * (double)HVI_NS_SEC);
    else if (text)
        HVI_LOG(HVI_LOG_WARN, "rendezvous", "bad-setting",
                "START_TIMEOUT is no number of seconds above 0, and is ignored", "value=%s", text);
    arm(engine);
}

/* ---- EngineNode ---- */

static bool listens(struct engine *engine)
{
    struct engine_rendezvous *rendezvous = &engine->rendezvous;
    char text[HVI_TEXT_MAX + 1], why[ENGINE_NET_TEXT];

    if (rendezvous->port != 0 || engine_nodes_open(engine, &rendezvous->port, why) == HVI_OK)
        return true;
    snprintf(text, sizeof text,
             "the engine of job '%s' (pid %d) cannot listen for the job's other nodes: %s",
             engine->start.job, (int)getpid(), why);
    fail(engine, HVI_ERR_LIMIT, text);
    return false;
}

void engine_rendezvous_tell(struct engine *engine)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_ENGINE_NODE};
    int32_t ranks[ENGINE_SEATS_MAX];

    if (!waits(engine) || !all_are_here(engine) || !listens(engine))
        return;
    for (uint32_t seat = 0; seat < engine->sessions.seats; seat++)
        ranks[seat] = engine->sessions.ranks[seat].rank;
    msg.engine_node = (struct hvi_engine_node){
        .size = engine->start.size,
        .ranks = ranks,
        .rank_count = engine->sessions.seats,
        .port = engine->rendezvous.port,
        .wire_oldest = ENGINE_NODES_WIRE_OLDEST,
        .wire_newest = ENGINE_NODES_WIRE_NEWEST,
        .lanes = engine->start.net_lanes > 0 ? engine->start.net_lanes : ENGINE_WIRE_LANES,
        .encrypt = engine->start.encrypt,
        .start_timeout_ns = engine->rendezvous.said_ns};
    snprintf(msg.engine_node.transport, sizeof msg.engine_node.transport, "%s",
             engine->start.net_transport);
    int status = engine_link_send(engine, &msg);
    engine->rendezvous.untold = engine_link_try_later(engine, status);
    if (engine->rendezvous.told_ns == 0)
        engine->rendezvous.told_ns = hvi_clock_ns();
    if (!engine->rendezvous.untold && status != HVI_OK && status != HVI_ERR_CLOSED)
        HVI_LOG(HVI_LOG_WARN, "rendezvous", "message-lost", hvi_status_text(status), "job=%s",
                engine->start.job);
    arm(engine);
}

/* ---- EngineRoster ---- */

/* Every rank once, each node's lowest above that of the node before. `seen` has a bit per rank. */
static int check_nodes(const struct hvi_engine_roster *roster, int32_t size, uint64_t *seen,
                       char *text_p, size_t text_size)
{
    int32_t found = 0, before = -1;

    for (size_t n = 0; n < roster->node_count; n++) {
        const struct hvi_node_row *row = &roster->nodes[n];
        int32_t lowest = INT32_MAX;
        for (size_t i = 0; i < row->rank_count; i++) {
            int32_t rank = row->ranks[i];
            if (rank < 0 || rank >= size || (seen[rank / 64] >> (rank % 64) & 1) != 0) {
                snprintf(text_p, text_size, "rank %d of node %s is no rank of %d, or on two nodes",
                         rank, row->name, size);
                return HVI_ERR_PROTOCOL;
            }
            seen[rank / 64] |= 1ull << (rank % 64);
            lowest = rank < lowest ? rank : lowest;
            found++;
        }
        if (row->rank_count == 0 || lowest < before) {
            snprintf(text_p, text_size, "node %s has no rank, or not the number of its lowest",
                     row->name);
            return HVI_ERR_PROTOCOL;
        }
        before = lowest;
    }
    if (found == size)
        return HVI_OK;
    snprintf(text_p, text_size, "it has %d of %d ranks", found, size);
    return HVI_ERR_PROTOCOL;
}

int engine_rendezvous_check(const struct hvi_engine_roster *roster, int32_t size,
                            const int32_t *ranks, uint32_t seats, char *text_p, size_t text_size)
{
    const struct hvi_node_row *here =
        roster->node < roster->node_count ? &roster->nodes[roster->node] : NULL;

    if (roster->key_bytes != HVI_WIRE_EPOCH_KEY) {
        snprintf(text_p, text_size, "its key has %zu bytes instead of %d", roster->key_bytes,
                 HVI_WIRE_EPOCH_KEY);
        return HVI_ERR_PROTOCOL;
    }
    if (roster->wire < ENGINE_NODES_WIRE_OLDEST || roster->wire > ENGINE_NODES_WIRE_NEWEST) {
        snprintf(text_p, text_size, "engines are to speak version %u, this one speaks %u to %u",
                 roster->wire, ENGINE_NODES_WIRE_OLDEST, ENGINE_NODES_WIRE_NEWEST);
        return HVI_ERR_PROTOCOL;
    }
    if (!here || here->rank_count != seats ||
        memcmp(here->ranks, ranks, seats * sizeof *ranks) != 0) {
        snprintf(text_p, text_size, "node %u of its %zu has not the ranks of this one",
                 roster->node, roster->node_count);
        return HVI_ERR_PROTOCOL;
    }
    uint64_t *seen = calloc((size_t)size / 64 + 1, sizeof *seen);
    int status = seen ? check_nodes(roster, size, seen, text_p, text_size) : HVI_ERR_NO_MEMORY;
    free(seen);
    return status;
}

/* Why there is no job; HVI_OK: there is one. */
static int refusal(const struct hvi_engine_roster *roster, char *text_p, size_t text_size)
{
    if (roster->status == HVI_OK)
        return HVI_OK;
    snprintf(text_p, text_size, "%s",
             roster->text[0] != '\0' ? roster->text : hvi_status_text(roster->status));
    /* A broken protocol would be the rank's own. */
    return roster->status < 0 && roster->status != HVI_ERR_PROTOCOL ? roster->status
                                                                    : HVI_ERR_DAEMON;
}

/* Between hvdd and here nothing is lost or changed, so a roster that cannot be is somebody's bug. */
static int check(const struct engine *engine, const struct hvi_engine_roster *roster,
                 const int32_t *ranks, char *text_p, size_t text_size)
{
    char why[256] = "out of memory";
    int status = refusal(roster, text_p, text_size);

    if (status != HVI_OK)
        return status;
    if (all_are_here(engine) &&
        engine_rendezvous_check(roster, engine->start.size, ranks, engine->sessions.seats, why,
                                sizeof why) == HVI_OK)
        return HVI_OK;
    snprintf(text_p, text_size, "the list of nodes that job '%s' was given cannot be: %s",
             engine->start.job, all_are_here(engine) ? why : "this node has not asked for one");
    return HVI_ERR_DAEMON;
}

void engine_rendezvous_roster(struct engine *engine, const struct hvi_engine_roster *roster)
{
    char text[HVI_TEXT_MAX + 1];
    int32_t ranks[ENGINE_SEATS_MAX];

    if (engine->sessions.held && engine->rendezvous.met && roster->status != HVI_OK) {
        int why = refusal(roster, text, sizeof text);
        engine_rendezvous_failed(engine, why, text);
        return;
    }
    if (!waits(engine)) {
        HVI_LOG(HVI_LOG_DEBUG, "rendezvous", "late-roster", "a roster that is not waited for",
                "job=%s", engine->start.job);
        return;
    }
    for (uint32_t seat = 0; seat < engine->sessions.seats; seat++)
        ranks[seat] = engine->sessions.ranks[seat].rank;
    int status = check(engine, roster, ranks, text, sizeof text);
    if (status == HVI_OK) {
        status = engine_open_order(engine, ranks);
        snprintf(text, sizeof text, "the engine of job '%s' is out of memory", engine->start.job);
    }
    if (status == HVI_OK) {
        engine->rendezvous.met = true;
        status = engine_nodes_start(engine, roster, text);
    }
    if (status != HVI_OK) {
        fail(engine, status, text);
        return;
    }
    HVI_LOG(HVI_LOG_INFO, "rendezvous", "nodes-met", "all nodes of the job are there",
            "job=%s generation=%llu epoch=%" PRIu64 " nodes=%zu node=%u", engine->start.job,
            (unsigned long long)engine->start.generation, roster->epoch, roster->node_count,
            roster->node);
    engine_rendezvous_close(engine);
}

void engine_rendezvous_heard(struct engine *engine)
{
    engine->rendezvous.heard_ns = hvi_clock_ns();
}

void engine_rendezvous_asked(struct engine *engine, bool asked)
{
    const bool news = asked && !engine->rendezvous.asked;

    engine->rendezvous.asked = asked;
    if (news && waits(engine))
        arm(engine);
}

void engine_rendezvous_alone(struct engine *engine, uint64_t since_ns)
{
    engine->rendezvous.alone_ns = since_ns;
    if (waits(engine))
        arm(engine);
}

void engine_rendezvous_met(struct engine *engine)
{
    if (!engine->sessions.held || engine->sessions.stopping)
        return;
    HVI_LOG(HVI_LOG_INFO, "rendezvous", "nodes-connected", "the job's engines are connected",
            "job=%s generation=%llu", engine->start.job,
            (unsigned long long)engine->start.generation);
    engine->sessions.held = false;
    if (engine_intake_drain_all(&engine->sessions) && engine->watch.timeline)
        engine_timeline_cycle(&engine->watch);
    engine_control_let_go(&engine->sessions);
}

void engine_rendezvous_failed(struct engine *engine, int status, const char *text)
{
    if (!engine->sessions.stopping)
        fail(engine, status, text);
}
