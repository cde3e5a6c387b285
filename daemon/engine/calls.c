/* SPDX-License-Identifier: Apache-2.0
 * What the rooms below call: order/ hands over answers and tells what became of ops, exec/ tells what it
 * starts and what it could not reach, slots/ hands over what ranks brought there, sessions/ and
 * watch/ tell hvdd, sessions/ starts the timeline. Here is who listens. */
#include "base/log.h"
#include "base/status.h"
#include "base/types.h"
#include "daemon/engine/engine.h"
#include "daemon/engine/exec/gpu.h"
#include "daemon/engine/report.h"
#include "daemon/engine/sessions/complete.h"
#include "daemon/engine/sessions/device.h"
#include "daemon/engine/sessions/fence.h"
#include "daemon/engine/sessions/intake.h"
#include "daemon/engine/sessions/liveness.h"
#include "daemon/engine/sessions/missing.h"
#include "daemon/engine/sessions/remote.h"
#include "daemon/engine/watch/stall.h"
#include "daemon/engine/watch/timeline.h"
#include "daemon/engine/watch/trace.h"

#include <stdio.h>
#include <string.h>

static struct engine_op *new_op(void *user)
{
    const struct engine *engine = user;

    return engine_task_new((int32_t)engine->roster.seats);
}

const struct engine_order_sink engine_calls_sink = {
    .answer = engine_complete_part,
    .ask_output = engine_complete_sized,
    .drop = engine_complete_drop,
    .new_op = new_op,
    .free_op = engine_task_free,
};

/* ---- what becomes of ops ---- */

static void op_waits(void *user)
{
    struct engine *engine = user;

    engine_stall_arm(&engine->watch);
}

static void part_came(void *user, struct engine_part *part)
{
    struct engine *engine = user;

    if (engine->watch.timeline)
        engine_timeline_part(&engine->watch, part);
}

static void op_complete(void *user, struct engine_op *op)
{
    struct engine *engine = user;

    engine_lag_op(&engine->stats, op);
}

static void op_ready(void *user, struct engine_op *op)
{
    struct engine *engine = user;

    engine_task_prepare(op);
    if (engine->slots.lacking != 0)
        engine_missing_mark(op, (engine_seat){(uint16_t)(engine->slots.lacking - 1)});
    if (engine->watch.timeline)
        engine_timeline_ready(&engine->watch, op);
}

static void op_succeeds(void *user, struct engine_op *op)
{
    struct engine *engine = user;

    engine_stats_op(&engine->stats, op);
    engine_slots_grant(&engine->slots, op);
    if (op->kind == HVI_KIND_ALLTOALL)
        engine_complete_splits(op);
}

static void op_over(void *user, struct engine_op *op, int status)
{
    struct engine *engine = user;

    if (engine->watch.timeline)
        engine_timeline_over(&engine->watch, op, status);
}

static void op_returns(void *user, struct engine_op *op)
{
    struct engine *engine = user;

    if (engine->watch.timeline)
        engine_timeline_returns(&engine->watch, op);
}

static void set_ends(void *user, struct engine_set *set)
{
    struct engine *engine = user;

    engine_slots_revoke_set(&engine->slots, set);
}

static void set_gone(void *user, struct engine_set *set)
{
    struct engine *engine = user;

    engine_slots_release_set(&engine->slots, set);
}

const struct engine_order_observer engine_calls_observer = {
    .op_waits = op_waits,
    .part_came = part_came,
    .op_complete = op_complete,
    .op_ready = op_ready,
    .op_succeeds = op_succeeds,
    .op_over = op_over,
    .set_ends = set_ends,
    .set_gone = set_gone,
    .op_returns = op_returns,
};

/* ---- what executes ---- */

static void started(void *user, struct engine_op *op)
{
    struct engine *engine = user;

    if (engine->sessions.fenced > 0)
        engine_fence_started(op);

    if (engine->watch.timeline)
        engine_timeline_started(&engine->watch, op);
}

static void fault(void *user, struct engine_op *op, int status, const struct engine_fault *fault)
{
    struct engine *engine = user;

    engine_remote_failed(&engine->sessions, op, status, fault);
}

static void missing(void *user, struct engine_op *op, uint64_t address)
{
    struct engine *engine = user;

    engine_missing_failed(&engine->sessions, op, address);
}

static void lane_wanted(void *user, uint32_t node, uint32_t lane)
{
    engine_nodes_connect(user, node, lane);
}

static void unexplained(void *user)
{
    engine_nodes_puzzled(user);
}

/* "rank 3": those that have their memory on this worker's GPU. */
static void name_ranks(const struct engine *engine, const struct engine_work *work, uint16_t worker,
                       char text_p[ENGINE_DEVICE_WHOSE])
{
    const struct engine_set *set = engine_sets_find(&engine->order.sets, work->set);
    int32_t ranks[HVI_DEVICE_MEMBERS];
    uint32_t count = 0;

    for (uint32_t i = 0; set && i < work->ranks && count < HVI_DEVICE_MEMBERS; i++) {
        if (engine_gpu_worker_of(work, i) == worker)
            ranks[count++] = engine_set_rank_at(set, i);
    }
    engine_ranks_text(ranks, count, text_p, ENGINE_DEVICE_WHOSE);
}

static void comm_wanted(void *user, const struct engine_gpu_comm *comm)
{
    struct engine *engine = user;
    char whose[ENGINE_GPU_WORKERS][ENGINE_DEVICE_WHOSE];
    const struct engine_device_join join = {
        .comm = comm->number,
        .count = comm->count,
        .workers = comm->workers,
        .rank = comm->rank,
        .ranks = comm->ranks,
        .instances = comm->instances,
        .nodes = comm->nodes,
        .here = engine->roster.here,
        .registered = comm->registered,
        .set = comm->work->set,
        .whose = (const char(*)[ENGINE_DEVICE_WHOSE])whose,
    };
    for (uint32_t i = 0; i < comm->count; i++)
        name_ranks(engine, comm->work, comm->workers[i], whose[i]);
    int status = engine_device_join(&engine->device, &join);

    if (status != HVI_OK)
        engine_dispatch_comm(&engine->exec, comm->number, status, hvi_status_text(status));
}

static bool registers(void *user, uint32_t import)
{
    struct engine *engine = user;

    return engine_device_registers(&engine->device, import);
}

static bool is_registered(void *user, uint32_t comm, uint32_t import)
{
    struct engine *engine = user;

    return engine_device_is_registered(&engine->device, comm, import);
}

static void tell_gpus(void *user, const struct engine_gpu_comm *comm, uint32_t node,
                      const struct engine_gpu_news *news)
{
    static const uint32_t whats[] = {[ENGINE_GPU_STARTED] = HVI_MESH_GPU_STARTED,
                                     [ENGINE_GPU_BEGUN] = HVI_MESH_GPU_BEGUN,
                                     [ENGINE_GPU_OVER] = HVI_MESH_GPU_OVER};
    struct hvi_mesh_gpu gpu = {
        .what = whats[news->word],
        .instances = (uint64_t *)(uintptr_t)comm->instances,
        .instance_count = comm->ranks,
        .sequence = news->sequence,
        .status = news->status,
    };

    snprintf(gpu.text, sizeof gpu.text, "%s", news->text);
    engine_nodes_tell_gpus(user, node, &gpu);
}

static void comm_over(void *user, uint32_t comm, int status, const char *text)
{
    struct engine *engine = user;

    engine_device_leave(&engine->device, comm, status, text);
}

static void worker_stuck(void *user, uint32_t worker, const char *text)
{
    struct engine *engine = user;

    engine_device_end(&engine->device, worker, text);
}

static bool is_timed(void *user)
{
    const struct engine *engine = user;

    return engine_trace_wants_times(&engine->watch);
}

static void took(void *user, struct engine_op *op, const struct engine_gpu_time *time)
{
    struct engine *engine = user;
    const struct engine_device_worker *worker = &engine->device.workers[time->worker];
    char name[sizeof worker->uuid_text + sizeof worker->name + 4];

    for (uint32_t i = 0; i < op->set->places; i++) {
        struct engine_part *part = op->parts[i];
        if (part && part->memory == HVI_MEMORY_DEVICE && part->instance == worker->instance)
            part->device_ns = time->took_ns;
    }
    if (!engine->watch.timeline || time->works == 0)
        return;
    snprintf(name, sizeof name, "%s (%s)", worker->uuid_text, worker->name);
    engine_timeline_took(&engine->watch, op, time, name);
}

const struct engine_exec_calls engine_calls_exec = {
    .started = started,
    .fault = fault,
    .missing = missing,
    .lane_wanted = lane_wanted,
    .unexplained = unexplained,
    .comm_wanted = comm_wanted,
    .registers = registers,
    .is_registered = is_registered,
    .tell_gpus = tell_gpus,
    .comm_over = comm_over,
    .worker_stuck = worker_stuck,
    .is_timed = is_timed,
    .took = took,
};

/* ---- what comes out of slots ---- */

/* The seat's rank has a session: slots/ has seen that. */
static struct engine_session *session_of(void *user, engine_seat seat)
{
    const struct engine *engine = user;

    return engine_rank_at(&engine->sessions, seat)->session;
}

static void inject(void *user, engine_seat seat, const struct hvi_submission *copy,
                   const struct engine_operands *operands, struct engine_set *set,
                   struct engine_tensor *tensor)
{
    engine_intake_inject(session_of(user, seat), copy, operands, set, tensor);
}

static void violation(void *user, engine_seat seat, const char *reason)
{
    engine_session_violation(session_of(user, seat), reason);
}

static void doom(void *user, engine_seat seat, const char *reason)
{
    struct engine *engine = user;

    session_of(user, seat)->doom = reason;
    engine->sessions.doomed = true;
}

static void ring(void *user, engine_seat seat)
{
    engine_complete_ring_event(session_of(user, seat));
}

static void waited(void *user)
{
    struct engine *engine = user;

    engine_liveness_watch(&engine->sessions);
    engine_stall_look_at_held(&engine->watch, engine->order.now_ns);
}

const struct engine_slots_calls engine_calls_slots = {
    .inject = inject,
    .violation = violation,
    .doom = doom,
    .ring = ring,
    .waited = waited,
};

/* ---- what concerns hvdd, settings and the timeline ---- */

static int send_hvdd(void *user, const struct hvi_packet_msg *msg)
{
    return engine_link_send(user, msg);
}

static void describe_node(void *user, uint32_t node, char *text_p, size_t size)
{
    const struct engine *engine = user;

    engine_nodes_describe(&engine->nodes, node, text_p, size);
}

const struct engine_watch_calls engine_calls_watch = {.send = send_hvdd,
                                                      .describe_node = describe_node};

static void tell(void *user, engine_seat seat)
{
    engine_link_tell(user, seat);
    engine_rendezvous_tell(user);
}

static void broken(void *user, int status, int32_t culprit, const char *text)
{
    engine_nodes_break(user, status, culprit, text);
}

static void settings(void *user, int32_t rank, const struct hvi_setting *settings, size_t count)
{
    engine_settings_take(user, rank, settings, count);
}

static void timeline_start(void *user, const struct engine_asker *asker, int fd, const char *path,
                           bool mark_cycles)
{
    struct engine *engine = user;

    engine_timeline_start(&engine->watch, asker, fd, path, mark_cycles);
}

static void timeline_stop(void *user, const struct engine_asker *asker)
{
    struct engine *engine = user;

    engine_timeline_stop(&engine->watch, asker);
}

static void fences(void *user, engine_seat seat)
{
    engine_link_tell_fences(user, seat);
}

/* Where the link takes nothing, the claim's time passes. */
static void regions_wanted(void *user, uint64_t request, uint64_t bytes)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_ENGINE_REGIONS};

    msg.engine_regions.request = request;
    msg.engine_regions.bytes = bytes;
    engine_link_send(user, &msg);
}

const struct engine_sessions_calls engine_calls_sessions = {
    .tell = tell,
    .broken = broken,
    .settings = settings,
    .timeline_start = timeline_start,
    .timeline_stop = timeline_stop,
    .fences = fences,
    .regions_wanted = regions_wanted,
};

/* ---- what hvdd asks of all nodes ---- */

static void fill_part(void *user, const struct hvi_engine_query *query,
                      struct hvi_engine_report *report_p)
{
    engine_report_fill_part(user, query, report_p);
}

static void name_node(void *user, uint32_t node, struct hvi_span_row *span_p)
{
    engine_report_name(user, node, span_p);
}

static int send_report(void *user, struct hvi_packet_msg *msg)
{
    return engine_report_send(user, msg);
}

static void await_room(void *user)
{
    engine_link_await_room(user);
}

const struct engine_gather_calls engine_calls_gather = {
    .fill = fill_part,
    .name = name_node,
    .send = send_report,
    .await_room = await_room,
};

/* ---- workers of GPUs ---- */

static int worker_wanted(void *user, uint64_t request, const unsigned char uuid[HVI_UUID_BYTES])
{
    struct engine *engine = user;
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_GPU_WANTED};

    msg.gpu_wanted.request = request;
    memcpy(msg.gpu_wanted.uuid, uuid, HVI_UUID_BYTES);
    msg.gpu_wanted.settings = engine->nccl.settings;
    msg.gpu_wanted.setting_count = engine->nccl.count;
    engine_nccl_tell(engine, false);
    return engine_link_send(engine, &msg);
}

static void worker_end(void *user, uint64_t instance, const char *reason)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_GPU_END};

    msg.gpu_end.instance = instance;
    snprintf(msg.gpu_end.reason, sizeof msg.gpu_end.reason, "%s", reason);
    engine_link_send(user, &msg);
}

static void worker_linked(void *user, uint32_t number)
{
    struct engine *engine = user;
    struct engine_device_worker *worker = &engine->device.workers[number];
    char label[ENGINE_DEVICE_LABEL];

    engine_device_label(&engine->device, number, label);
    engine_dispatch_worker(&engine->exec, number, &worker->channel, worker->event_fd, label);
}

/* Ops between GPUs cannot go on, and no worker is replaced within a generation. The first reason stays. */
static void worker_lost(void *user, uint32_t worker, const char *text)
{
    struct engine *engine = user;

    HVI_LOG(HVI_LOG_WARN, "device", "worker-lost", text, "job=%s generation=%llu",
            engine->start.job, (unsigned long long)engine->start.generation);
    engine_dispatch_worker_lost(&engine->exec, worker, text);
    if (engine->order.broken_status != HVI_OK)
        return;
    engine_link_tell_broken(engine, HVI_ERR_WORKER_LOST, -1, text, true);
    engine_sessions_break(&engine->sessions, HVI_ERR_WORKER_LOST, -1, text);
    engine_nodes_break(engine, HVI_ERR_WORKER_LOST, -1, text);
}

static void imported(void *user, uint64_t ticket, int status, const char *text)
{
    struct engine *engine = user;

    engine_device_imported(&engine->sessions, ticket, status, text);
}

static void answered(void *user, uint64_t ticket, int status, const char *text)
{
    struct engine *engine = user;

    engine_device_answered(&engine->sessions, ticket, status, text);
}

static void joined(void *user, uint32_t comm, int status, const char *text)
{
    struct engine *engine = user;

    engine_nccl_tell(engine, true);
    engine_dispatch_comm(&engine->exec, comm, status, text);
}

static void tell_node(void *user, uint32_t node, const struct hvi_mesh_gpu *gpu)
{
    const struct engine *engine = user;
    struct hvi_mesh_gpu told = *gpu;

    told.says_settings = told.what == HVI_MESH_GPU_READY;
    if (told.says_settings) {
        told.settings = engine->nccl.settings;
        told.setting_count = engine->nccl.count;
    }
    engine_nodes_tell_gpus(user, node, &told);
}

static void name_of_node(void *user, uint32_t node, char text_p[ENGINE_DEVICE_NODE])
{
    struct engine *engine = user;

    snprintf(text_p, ENGINE_DEVICE_NODE, "node %u (%.*s)", node, (int)HVI_WIRE_NODE_NAME,
             engine->nodes.rows[node].name);
}

const struct engine_device_calls engine_calls_device = {
    .want = worker_wanted,
    .end = worker_end,
    .linked = worker_linked,
    .lost = worker_lost,
    .imported = imported,
    .released = answered,
    .paged = answered,
    .joined = joined,
    .tell = tell_node,
    .name = name_of_node,
};
