/* SPDX-License-Identifier: Apache-2.0
 *   net      a connection is there      CONTROL: to the link    DATA: to the backend
 *            none can be made           the node is lost
 *   link     all edges are up           the rendezvous is over, and what ranks have submitted is taken in, once a
 *                                       timeline that rank 0 has begun already is begun on all nodes
 *            a message                  to the mesh
 *            a node is lost             mesh tells the root, backends fail its works
 *   mesh     the job is broken          every rank is told
 *
 * A work that has started goes on when the job is broken: a rank that is gone has brought its part. But a node
 * may have failed the op just before it was told to start it, and brings nothing then. So GRACE_NS after the loss
 * of a rank or a node what still executes is cancelled. A rank that left in order waited for no op,
 * but its node may have started fewer works than others: those that are tentative are cancelled, too.
 *
 * The other way round, a data connection may end before the control links have brought the reason. A work that
 * fails by that waits for REASON_NS, so that it ends with the job's reason on every rank. Of two nodes that do not hear
 * each other, one may find out a beat (300 ms) later than the other, and than all that the other tells.
 *
 * When nothing has moved for STILL_NS while a step is replayed (order/schedule.h), something does not come, and
 * the root is asked to negotiate. */
#include "daemon/engine/nodes.h"

#include "base/clock.h"
#include "base/interface.h"
#include "base/log.h"
#include "base/status.h"
#include "daemon/engine/engine.h"
#include "daemon/engine/order/schedule.h"
#include "daemon/engine/watch/stall.h"
#include "daemon/engine/watch/timeline.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GRACE_NS  (500 * HVI_NS_MS)
#define REASON_NS (500 * HVI_NS_MS) /* for the reason of a failure to come */
#define STILL_NS  (150 * HVI_NS_MS)
#define REACH_NS  (10 * HVI_NS_SEC) /* for all connections of this node */

_Static_assert(ENGINE_WIRE_LANES_MAX == HVI_WIRE_LANES_MAX, "a roster's lanes");

/* ---- the job is broken ---- */

static void cancel_spans(struct engine *engine)
{
    engine_device_leave_nodes(&engine->device, engine->order.broken_text);
    engine_dispatch_cancel_spans(&engine->exec);
}

static int on_grace(sd_event_source *source, uint64_t usec, void *user)
{
    (void)source, (void)usec;
    cancel_spans(user);
    return 0;
}

static int on_left(sd_event_source *source, uint64_t usec, void *user)
{
    struct engine *engine = user;

    (void)source, (void)usec;
    engine_dispatch_cancel_tentative(&engine->exec);
    return 0;
}

static void begin_grace(struct engine *engine, int status)
{
    if (!engine->nodes.linked)
        return;
    if (status == HVI_ERR_RANK_LEFT)
        engine_mesh_link_let_leave(&engine->nodes.link);
    if (status == HVI_ERR_RANK_LEFT && !engine->nodes.left &&
        sd_event_add_time_relative(engine->event, &engine->nodes.left, CLOCK_MONOTONIC,
                                   GRACE_NS / 1000, 1000, on_left, engine) < 0)
        engine_dispatch_cancel_tentative(&engine->exec);
    if (status == HVI_ERR_RANK_LEFT || engine->nodes.grace)
        return;
    if (sd_event_add_time_relative(engine->event, &engine->nodes.grace, CLOCK_MONOTONIC,
                                   GRACE_NS / 1000, 1000, on_grace, engine) < 0)
        cancel_spans(engine);
}

static int on_patience(sd_event_source *source, uint64_t usec, void *user)
{
    struct engine *engine = user;

    (void)source, (void)usec;
    engine->nodes.patience = sd_event_source_disable_unref(engine->nodes.patience);
    engine_dispatch_explain(&engine->exec);
    return 0;
}

/* An engine that stood still meanwhile has the reason in a socket, or finds out by another timer: all that comes first. */
void engine_nodes_puzzled(struct engine *engine)
{
    if (engine->nodes.patience)
        return;
    if (sd_event_add_time_relative(engine->event, &engine->nodes.patience, CLOCK_MONOTONIC,
                                   REASON_NS / 1000, 1000, on_patience, engine) < 0 ||
        sd_event_source_set_priority(engine->nodes.patience, SD_EVENT_PRIORITY_IDLE) < 0)
        engine_dispatch_explain(&engine->exec);
}

static void broken(void *user, int status, int32_t culprit, const char *text)
{
    struct engine *engine = user;

    if (status != HVI_ERR_RANK_LEFT)
        engine_link_tell_broken(engine, status, culprit, text, engine->nodes.mesh.broken_here);
    /* A rank of a node that is connected already may leave; the others still meet. */
    if (engine->sessions.held && status != HVI_ERR_RANK_LEFT)
        engine_rendezvous_failed(engine, status, text);
    else if (status == HVI_ERR_JOB_STOPPED)
        engine_sessions_fail(&engine->sessions, status, text);
    else
        engine_sessions_break(&engine->sessions, status, culprit, text);
    engine_dispatch_explain(&engine->exec);
    begin_grace(engine, status);
}

void engine_nodes_break(struct engine *engine, int status, int32_t culprit, const char *text)
{
    if (!engine->nodes.linked)
        return;
    engine_mesh_break(&engine->nodes.mesh, status, culprit, text);
    engine_dispatch_explain(&engine->exec);
    begin_grace(engine, status);
}

static void withdraw(void *user, uint64_t least, uint64_t top)
{
    struct engine *engine = user;

    engine_dispatch_withdraw(&engine->exec, least, top);
}

static void asked(void *user, uint32_t from, const struct hvi_mesh_ask *ask)
{
    struct engine *engine = user;

    if (!engine_timeline_asked(&engine->watch, from, ask))
        engine_gather_asked(&engine->gathers, from, ask);
}

static void answered(void *user, uint32_t from, const struct hvi_mesh_answer *answer)
{
    struct engine *engine = user;

    if (!engine_timeline_answered(&engine->watch, from, answer))
        engine_gather_answered(&engine->gathers, from, answer);
}

/* Else it is of the communicator itself. */
static bool is_of_works(uint32_t what, enum engine_gpu_word *word_p)
{
    switch (what) {
    case HVI_MESH_GPU_STARTED:
        *word_p = ENGINE_GPU_STARTED;
        return true;
    case HVI_MESH_GPU_BEGUN:
        *word_p = ENGINE_GPU_BEGUN;
        return true;
    case HVI_MESH_GPU_OVER:
        *word_p = ENGINE_GPU_OVER;
        return true;
    default:
        return false;
    }
}

static void heard_of_gpus(void *user, uint32_t from, const struct hvi_mesh_gpu *gpu)
{
    struct engine *engine = user;

    if (gpu->what == HVI_MESH_GPU_READY)
        engine_nccl_heard(engine, from, gpu);
    struct engine_gpu_news news = {
        .sequence = gpu->sequence, .status = gpu->status, .text = gpu->text};

    if (is_of_works(gpu->what, &news.word))
        engine_dispatch_gpus_heard(&engine->exec, gpu->instances, (uint32_t)gpu->instance_count,
                                   from, &news);
    else
        engine_device_heard(&engine->device, from, gpu);
}

static const struct engine_mesh_calls mesh_calls = {.broken = broken,
                                                    .withdraw = withdraw,
                                                    .asked = asked,
                                                    .answered = answered,
                                                    .gpu = heard_of_gpus};

void engine_nodes_tell_gpus(struct engine *engine, uint32_t node, const struct hvi_mesh_gpu *gpu)
{
    if (!engine->nodes.linked)
        return;
    int status = engine_mesh_gpu(&engine->nodes.mesh, node, gpu);
    if (status != HVI_OK && status != HVI_ERR_NODE_LOST) /* then the communicator is late */
        HVI_LOG(HVI_LOG_WARN, "nodes", "gpus-not-told", hvi_status_text(status),
                "job=%s node=%u what=%u", engine->start.job, node, gpu->what);
}

/* ---- a step is replayed ---- */

static void watch_schedule(struct engine *engine);

static int on_still(sd_event_source *source, uint64_t usec, void *user)
{
    struct engine *engine = user;
    const struct engine_schedule *schedule = &engine->order.schedule;

    (void)source, (void)usec;
    engine->nodes.watches = false;
    if (!engine_schedule_waits(schedule))
        return 0;
    engine->order.now_ns = hvi_clock_ns();
    if (schedule->progress == engine->nodes.progress &&
        (!schedule->first || engine_dispatch_is_tentative(&engine->exec, schedule->first)))
        engine_schedule_halt(&engine->order);
    else
        watch_schedule(engine);
    return 0;
}

static void watch_schedule(struct engine *engine)
{
    struct engine_nodes *nodes = &engine->nodes;
    int error =
        engine_event_after(engine->event, &nodes->still, STILL_NS / 1000, 1000, on_still, engine);

    nodes->progress = engine->order.schedule.progress;
    nodes->watches = error >= 0;
    if (error < 0) /* without a clock there is no waiting */
        engine_schedule_halt(&engine->order);
}

/* ---- reports of nodes behind this one ---- */

static int on_tick(sd_event_source *source, uint64_t usec, void *user)
{
    struct engine *engine = user;

    (void)source, (void)usec;
    engine->nodes.ticks = false;
    engine->order.now_ns = hvi_clock_ns();
    engine_mesh_tick(&engine->nodes.mesh);
    return 0;
}

static void tick_later(struct engine *engine)
{
    struct engine_nodes *nodes = &engine->nodes;
    int error = engine_event_after(engine->event, &nodes->tick, ENGINE_MESH_TICK_NS / 1000, 1000,
                                   on_tick, engine);

    nodes->ticks = error >= 0;
    for (int i = 0; i < 2 && error < 0; i++) /* without a clock there is no waiting */
        engine_mesh_tick(&nodes->mesh);
}

/* ---- control links ---- */

/* At once, as a rule. */
static void tell_rendezvous(struct engine *engine)
{
    engine->nodes.ready = engine_timeline_begins(&engine->watch);
    if (!engine->nodes.ready)
        engine_rendezvous_met(engine);
}

static void ready(void *user)
{
    struct engine *engine = user;

    engine_timeline_met(&engine->watch);
    tell_rendezvous(engine);
}

static void message(void *user, uint32_t node, const unsigned char *bytes, size_t length)
{
    struct engine *engine = user;

    engine->order.now_ns = hvi_clock_ns();
    engine_mesh_message(&engine->nodes.mesh, node, bytes, length);
    if (engine->nodes.mesh.root.first) /* it waits, perhaps for our ranks */
        engine_stall_arm(&engine->watch);
}

static void node_left(void *user, uint32_t node)
{
    struct engine *engine = user;

    engine_timeline_node_gone(&engine->watch, node);
    HVI_LOG(HVI_LOG_DEBUG, "nodes", "node-left", "a node of the job has ended in order",
            "job=%s node=%u", engine->start.job, node);
}

static void node_lost(void *user, uint32_t node, const char *text)
{
    struct engine *engine = user;

    engine->order.now_ns = hvi_clock_ns();
    engine_mesh_node_lost(&engine->nodes.mesh, node, text);
    if (engine->sessions.held) /* the job was broken before, and now it cannot meet */
        engine_rendezvous_failed(engine, HVI_ERR_NODE_LOST, text);
    engine_dispatch_lost(&engine->exec, node, text);
    engine_timeline_node_gone(&engine->watch, node);
}

static const struct engine_mesh_link_calls link_calls = {
    .ready = ready, .message = message, .node_left = node_left, .node_lost = node_lost};

static int send_to(void *user, uint32_t node, const unsigned char *bytes, size_t length)
{
    struct engine_nodes *nodes = user;

    return nodes->linked ? engine_mesh_send(&nodes->link, node, bytes, length) : HVI_ERR_NODE_LOST;
}

static const struct engine_mesh_way way = {send_to};

/* ---- connections ---- */

static void connected(void *user, uint32_t node, enum engine_net_purpose purpose, uint32_t lane,
                      int fd, const struct hvi_seal_keys *keys)
{
    struct engine *engine = user;
    char name[ENGINE_NET_TEXT];

    engine_net_describe(&engine->nodes.net, node, name);
    if (purpose == ENGINE_NET_CONTROL)
        engine_mesh_link_connected(&engine->nodes.link, node, fd);
    else
        engine_dispatch_lane(&engine->exec, node, lane, fd, keys, name);
}

static void failed(void *user, uint32_t node, enum engine_net_purpose purpose, uint32_t lane,
                   const char *text)
{
    struct engine *engine = user;

    (void)lane;
    if (purpose == ENGINE_NET_CONTROL)
        engine_mesh_link_failed(&engine->nodes.link, node, text);
    else
        node_lost(engine, node, text);
}

static const struct engine_net_calls net_calls = {.connected = connected, .failed = failed};

void engine_nodes_connect(struct engine *engine, uint32_t node, uint32_t lane)
{
    const bool waits = node < engine->nodes.net.identity.node;

    /* The lower of two nodes connects, and reports a failure. It may start the work much later than the higher one, which waits. */
    if (engine_mesh_link_use(&engine->nodes.link, node) != HVI_OK ||
        engine_net_connect(&engine->nodes.net, node, ENGINE_NET_DATA, lane,
                           waits ? HVI_NEVER : hvi_deadline_after(REACH_NS)) != HVI_OK)
        engine_dispatch_lost(&engine->exec, node, "the engine is out of memory");
}

int engine_nodes_open(struct engine *engine, uint16_t *port_p, char text_p[ENGINE_NET_TEXT])
{
    int status = engine_net_listen(&engine->nodes.net, engine->event, NULL,
                                   (uint16_t)engine->start.port_first,
                                   (uint16_t)engine->start.port_last, port_p, text_p);

    engine->nodes.listens = status == HVI_OK;
    return status;
}

/* ---- the roster ---- */

static int set_nodes(struct engine *engine, const struct hvi_engine_roster *roster)
{
    struct engine_node *nodes = calloc(roster->node_count, sizeof *nodes);

    if (!nodes)
        return HVI_ERR_NO_MEMORY;
    for (size_t i = 0; i < roster->node_count; i++)
        nodes[i] =
            (struct engine_node){roster->nodes[i].ranks, (uint32_t)roster->nodes[i].rank_count};
    int status =
        engine_roster_set_nodes(&engine->roster, nodes, (uint32_t)roster->node_count, roster->node);
    free(nodes);
    return status;
}

static int keep_rows(struct engine_nodes *nodes, const struct hvi_engine_roster *roster)
{
    nodes->rows = calloc(roster->node_count, sizeof *nodes->rows);
    if (!nodes->rows)
        return HVI_ERR_NO_MEMORY;
    for (size_t i = 0; i < roster->node_count; i++) {
        struct engine_nodes_row *row = &nodes->rows[i];
        snprintf(row->name, sizeof row->name, "%s", roster->nodes[i].name);
        snprintf(row->address, sizeof row->address, "%s", roster->nodes[i].address);
        row->port = roster->nodes[i].port;
    }
    return HVI_OK;
}

void engine_nodes_describe(const struct engine_nodes *nodes, uint32_t node, char *text_p,
                           size_t size)
{
    if (nodes->rows && nodes->rows[node].name[0] != '\0')
        snprintf(text_p, size, "node %u (%s)", node, nodes->rows[node].name);
    else
        snprintf(text_p, size, "node %u", node);
}

static int start_net(struct engine *engine, const struct hvi_engine_roster *roster, char *text_p)
{
    struct engine_net_config config = {.job = engine->start.job,
                                       .epoch = roster->epoch,
                                       .key = roster->key,
                                       .node = roster->node,
                                       .nodes = (uint32_t)roster->node_count,
                                       .encrypts = engine->start.encrypt,
                                       .calls = &net_calls,
                                       .user = engine};
    struct engine_net_peer *peers = calloc(roster->node_count, sizeof *peers);

    if (!peers)
        return HVI_ERR_NO_MEMORY;
    for (size_t i = 0; i < roster->node_count; i++)
        peers[i] = (struct engine_net_peer){.address = roster->nodes[i].address,
                                            .port = (uint16_t)roster->nodes[i].port,
                                            .name = roster->nodes[i].name};
    config.peers = peers;
    int status = engine_net_start(&engine->nodes.net, &config, text_p);
    free(peers);
    if (status == HVI_OK && config.encrypts)
        HVI_LOG(
            HVI_LOG_INFO, "nodes", "encrypted",
            "data connections to the job's other nodes are encrypted; what GPUs send each other "
            "by NCCL is not",
            "job=%s", engine->start.job);
    return status;
}

/* HVI_OK, or a sentence: a transport that authenticates and encrypts nothing would be reached by strangers. */
static int check_trust(const struct engine *engine, const struct hvi_engine_roster *roster,
                       char text_p[ENGINE_NET_TEXT])
{
    const char *networks = engine->start.trusted_networks;
    char why[192] = "it is empty";

    if (engine->start.encrypt) {
        snprintf(text_p, ENGINE_NET_TEXT,
                 "net-transport is %.16s, which encrypts nothing, and this node (%.64s) is to "
                 "encrypt: set net-transport to tcp, or encrypt (HVD_ENCRYPT) to no",
                 engine->start.net_transport, engine->nodes.name);
        return HVI_ERR_REFUSED;
    }
    int status =
        networks[0] == '\0'
            ? HVI_ERR_REFUSED
            : hvi_networks_cover(networks, roster->nodes[roster->node].address, why, sizeof why);
    for (size_t i = 0; i < roster->node_count && status == HVI_OK; i++) {
        if (hvi_networks_have(networks, roster->nodes[i].address))
            continue;
        snprintf(why, sizeof why, "node %.64s has the address %.64s, which is in none of them",
                 roster->nodes[i].name, roster->nodes[i].address);
        status = HVI_ERR_REFUSED;
    }
    if (status == HVI_OK)
        return status;
    snprintf(
        text_p, ENGINE_NET_TEXT,
        "net-transport is %.16s, which authenticates nobody, and this node (%.64s) may use it only "
        "within trusted-networks (HVD_TRUSTED_NETWORKS): %s; list the networks that no "
        "stranger reaches, as 10.0.0.0/24, or set net-transport to tcp",
        engine->start.net_transport, engine->nodes.name, why);
    return HVI_ERR_REFUSED;
}

static int set_transport(struct engine *engine, const struct hvi_engine_roster *roster,
                         char text_p[ENGINE_NET_TEXT])
{
    const char *name = engine->start.net_transport;
    char why[ENGINE_TEXT_BYTES];

    if (name[0] == '\0' || strcmp(name, "tcp") == 0)
        return HVI_OK;
    int status = check_trust(engine, roster, text_p);
    if (status != HVI_OK)
        return status;
    status = engine_dispatch_set_transport(&engine->exec, name, roster->nodes[roster->node].address,
                                           why);
    if (status != HVI_OK)
        snprintf(text_p, ENGINE_NET_TEXT, "on node %.64s: %.400s", engine->nodes.name, why);
    return status;
}

static int open_link(struct engine *engine, const struct hvi_engine_roster *roster)
{
    const struct engine_mesh_link_config config = {.event = engine->event,
                                                   .net = &engine->nodes.net,
                                                   .node = roster->node,
                                                   .nodes = (uint32_t)roster->node_count,
                                                   .deadline_ns = hvi_deadline_after(REACH_NS),
                                                   .calls = &link_calls,
                                                   .user = engine};
    int status = engine_mesh_link_open(&engine->nodes.link, &config);

    engine->nodes.linked = status == HVI_OK;
    return status;
}

static void init_gathers(struct engine *engine)
{
    struct engine_gathers *gathers = &engine->gathers;

    gathers->event = engine->event;
    gathers->mesh = &engine->nodes.mesh;
    gathers->roster = &engine->roster;
    gathers->job = engine->start.job;
    gathers->calls = &engine_calls_gather;
    gathers->user = engine;
}

int engine_nodes_start(struct engine *engine, const struct hvi_engine_roster *roster,
                       char text_p[ENGINE_NET_TEXT])
{
    struct engine_nodes *nodes = &engine->nodes;
    int status = set_nodes(engine, roster);

    snprintf(text_p, ENGINE_NET_TEXT, "the engine of job '%s' cannot follow the list of its nodes",
             engine->start.job);
    snprintf(nodes->name, sizeof nodes->name, "%s", roster->nodes[roster->node].name);
    engine_dispatch_set_lanes(&engine->exec, roster->lanes);
    nodes->mesh.order = &engine->order;
    nodes->mesh.roster = &engine->roster;
    nodes->mesh.way = &way;
    nodes->mesh.way_user = nodes;
    nodes->mesh.calls = &mesh_calls;
    nodes->mesh.user = engine;
    init_gathers(engine);
    if (status == HVI_OK)
        status = keep_rows(nodes, roster);
    if (status == HVI_OK)
        status = engine_mesh_open(&nodes->mesh);
    if (status == HVI_OK)
        engine->watch.mesh = &nodes->mesh;
    if (status == HVI_OK)
        status = set_transport(engine, roster, text_p);
    if (status == HVI_OK)
        status = start_net(engine, roster, text_p);
    return status == HVI_OK ? open_link(engine, roster) : status;
}

bool engine_nodes_run(struct engine *engine)
{
    if (!engine->nodes.linked)
        return false;
    if (engine->nodes.ready)
        tell_rendezvous(engine);
    if (!engine->nodes.watches && engine_schedule_waits(&engine->order.schedule) &&
        !engine->order.schedule.asked)
        watch_schedule(engine);
    bool moved = engine_mesh_run(&engine->nodes.mesh);
    if (!engine->nodes.ticks && engine_mesh_keeps(&engine->nodes.mesh))
        tick_later(engine);
    return moved;
}

bool engine_nodes_await(const struct engine *engine)
{
    return engine->nodes.linked && engine->order.waiting_first;
}

void engine_nodes_hang_up(struct engine_nodes *nodes)
{
    nodes->grace = sd_event_source_disable_unref(nodes->grace);
    nodes->left = sd_event_source_disable_unref(nodes->left);
    nodes->still = sd_event_source_disable_unref(nodes->still);
    nodes->patience = sd_event_source_disable_unref(nodes->patience);
    nodes->tick = sd_event_source_disable_unref(nodes->tick);
    if (nodes->linked)
        engine_mesh_link_close(&nodes->link);
    if (nodes->listens)
        engine_net_close(&nodes->net);
    nodes->linked = nodes->listens = false;
}

void engine_nodes_close(struct engine_nodes *nodes)
{
    engine_mesh_close(&nodes->mesh);
    free(nodes->rows);
    nodes->rows = NULL;
}
