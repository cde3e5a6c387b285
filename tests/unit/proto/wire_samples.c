/* SPDX-License-Identifier: Apache-2.0
 * The two samples of each kind. A sample encodes to the largest legal message only where that
 * still fits a packet: reports take fewer rows than the row limit allows. */
#include "wire_samples.h"

#include "base/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILL(array, wide) hvt_fill((array), sizeof(array) - 1, (wide))

void hvt_fill(char *text_p, size_t bytes, bool wide)
{
    size_t used = 0;
    for (; wide && used + 2 <= bytes; used += 2)
        memcpy(text_p + used, "\xc3\xa4", 2);
    memset(text_p + used, 'x', bytes - used);
    text_p[bytes] = '\0';
}

static void *zeroed(size_t count, size_t bytes)
{
    void *memory = calloc(count, bytes);
    if (!memory)
        abort();
    return memory;
}

static void fill_rank_row(struct hvi_rank_row *row, int32_t rank, bool full)
{
    *row = (struct hvi_rank_row){.rank = rank, .state = "attached"};
    if (!full)
        return;
    row->pid = INT32_MAX;
    row->uid = UINT32_MAX;
    row->ops = row->bytes = row->in_flight = UINT64_MAX;
    row->lag_mean_ns = row->lag_max_ns = row->region_bytes = UINT64_MAX;
    row->lag_p50_ns = row->lag_p99_ns = row->lag_sum_ns = UINT64_MAX;
    row->lag_ops = row->last_ops = row->negotiated = row->replayed = row->express = UINT64_MAX;
    row->seat = HVI_RANKS_MAX - 1;
    row->node = HVI_WIRE_NODES_MAX - 1;
    row->own_pid = INT32_MAX;
    row->memory = UINT32_MAX;
    FILL(row->state, true);
    FILL(row->process, false);
    FILL(row->origin, true);
    FILL(row->text, true);
}

static struct hvi_rank_row *rank_rows(size_t count, bool full)
{
    struct hvi_rank_row *rows = zeroed(count, sizeof *rows);
    for (size_t i = 0; i < count; i++)
        fill_rank_row(&rows[i], i == 0 ? INT32_MAX : (int32_t)i, full);
    return rows;
}

static void fill_stall_row(struct hvi_stall_row *row, size_t ranks)
{
    FILL(row->tensor, true);
    FILL(row->op, false);
    FILL(row->job, false);
    row->age_ns = UINT64_MAX;
    row->ready = zeroed(ranks, sizeof *row->ready);
    row->missing = zeroed(ranks, sizeof *row->missing);
    row->ready_count = row->missing_count = ranks;
    for (size_t i = 0; i < ranks; i++) {
        row->ready[i] = (int32_t)i;
        row->missing[i] = (struct hvi_missing_rank){.rank = (int32_t)i, .process = "absent"};
    }
    if (ranks) {
        row->ready[0] = INT32_MAX;
        row->process_set = row->uid = UINT32_MAX;
        FILL(row->missing[0].waits_in, true);
    }
}

static struct hvi_trace_row *trace_rows(size_t count)
{
    struct hvi_trace_row *rows = zeroed(count, sizeof *rows);
    for (size_t i = 0; i < count; i++) {
        rows[i] = (struct hvi_trace_row){
            .rank = (int32_t)i, .op = "barrier", .tensor = "t", .device_ns = UINT64_MAX};
        if (i % 2)
            continue;
        rows[i].status = 1;
        rows[i].process_set = UINT32_MAX;
        rows[i].number = rows[i].bytes = rows[i].submit_ns = UINT64_MAX;
        rows[i].ready_ns = rows[i].done_ns = UINT64_MAX;
        FILL(rows[i].tensor, true);
        FILL(rows[i].op, true);
        FILL(rows[i].dtype, true);
    }
    return rows;
}

static struct hvi_stall_row *stall_rows(size_t count, size_t ranks)
{
    struct hvi_stall_row *rows = zeroed(count, sizeof *rows);
    for (size_t i = 0; i < count; i++) {
        fill_stall_row(&rows[i], ranks);
        if (i % 2)
            rows[i].job[0] = '\0';
    }
    return rows;
}

static void fill_span(struct hvi_span_row *span, bool full)
{
    *span = (struct hvi_span_row){.name = "n", .address = "10.0.0.1", .port = 1};
    if (!full)
        return;
    *span = (struct hvi_span_row){.node = HVI_WIRE_NODES_MAX - 1,
                                  .port = UINT16_MAX,
                                  .here = true,
                                  .uid = UINT32_MAX,
                                  .rank_count = 3,
                                  .link_count = 2,
                                  .standing_count = 2,
                                  .ahead_ns = UINT64_MAX,
                                  .ahead_error_ns = UINT64_MAX};
    FILL(span->job, false);
    FILL(span->name, true);
    FILL(span->address, false);
    FILL(span->text, true);
    span->ranks = zeroed(3, sizeof *span->ranks);
    span->ranks[2] = INT32_MAX;
    span->links = zeroed(2, sizeof *span->links);
    span->links[0].purpose = HVI_LINK_CONTROL;
    span->links[1] = (struct hvi_link_row){HVI_WIRE_NODES_MAX - 1,
                                           HVI_LINK_DATA,
                                           UINT32_MAX,
                                           UINT64_MAX,
                                           UINT64_MAX,
                                           UINT64_MAX,
                                           UINT64_MAX,
                                           UINT64_MAX,
                                           UINT64_MAX,
                                           ""};
    FILL(span->links[1].transport, false);
    span->standing = zeroed(2, sizeof *span->standing);
    for (int i = 0; i < 2; i++)
        span->standing[i] = (struct hvi_missing_rank){.rank = i, .process = "R"};
    FILL(span->standing[1].waits_in, true);
}

static void fill_attach_request(struct hvi_attach_request *request, bool full)
{
    *request = (struct hvi_attach_request){
        .protocol_version = HVI_PROTOCOL_VERSION,
        .job = "j",
        .rank = -1,
        .size = 1,
        .local_rank = -1,
        .local_size = 1,
        .cross_rank = -1,
        .cross_size = 1,
    };
    if (!full)
        return;
    request->abi_version = UINT32_MAX;
    request->rank = request->local_rank = request->cross_rank = INT32_MAX;
    request->size = request->cross_size = 1048576;
    request->local_size = HVI_RANKS_MAX;
    request->own_pid = INT32_MAX;
    FILL(request->job, false);
    memcpy(request->job, "AZaz09._:@-", 11);
    FILL(request->job_key, true);
    FILL(request->origin, true);
    FILL(request->client_version, false);
    request->setting_count = HVI_WIRE_SETTINGS_MAX;
    request->settings = zeroed(HVI_WIRE_SETTINGS_MAX, sizeof *request->settings);
    for (size_t i = 0; i < HVI_WIRE_SETTINGS_MAX; i++) {
        FILL(request->settings[i].name, true);
        memcpy(request->settings[i].name, i % 2 ? "HVD_XXXX" : "HOROVOD_", 8);
        FILL(request->settings[i].value, true);
    }
    snprintf(request->settings[2].name, sizeof request->settings[2].name, "NCCL_SOCKET_IFNAME");
    request->settings[1].value[0] = '\0';
}

static void fill_gpu_row(struct hvi_gpu_row *row, bool full)
{
    *row = (struct hvi_gpu_row){.uuid = "GPU-0", .state = "free"};
    if (!full)
        return;
    *row = (struct hvi_gpu_row){.uid = UINT32_MAX,
                                .pid = INT32_MAX,
                                .import_bytes = UINT64_MAX,
                                .staging_bytes = UINT64_MAX,
                                .own_bytes = UINT64_MAX,
                                .free_bytes = UINT64_MAX,
                                .imports = UINT32_MAX,
                                .comms = UINT32_MAX,
                                .batches = UINT64_MAX,
                                .driver_version = UINT32_MAX,
                                .nccl_version = UINT32_MAX};
    FILL(row->uuid, false);
    FILL(row->name, true);
    FILL(row->job, false);
    FILL(row->state, false);
    FILL(row->links, true);
}

static void fill_uuid(unsigned char uuid_p[HVI_UUID_BYTES])
{
    for (unsigned i = 0; i < HVI_UUID_BYTES; i++)
        uuid_p[i] = (unsigned char)(255 - i);
}

static void fill_device_add(struct hvi_device_add *add, bool full)
{
    *add = (struct hvi_device_add){
        .region = 1, .memory = {.bytes = 1, .kind = full ? HVI_DEVICE_FABRIC : HVI_DEVICE_LEGACY}};
    if (!full)
        return;
    add->request = UINT64_MAX;
    add->region = 0xfffffffe;
    add->more = true;
    add->memory.address = add->memory.bytes = add->memory.buffer_id = UINT64_MAX;
    fill_uuid(add->memory.uuid);
    memset(add->memory.handle, 0xab, sizeof add->memory.handle);
    add->memory.chunk_count = HVI_WIRE_CHUNKS_MAX;
    add->memory.chunks = zeroed(HVI_WIRE_CHUNKS_MAX, sizeof *add->memory.chunks);
    add->memory.chunks[HVI_WIRE_CHUNKS_MAX - 1] = UINT64_MAX;
    add->memory.fabric_bytes = HVI_WIRE_CHUNKS_MAX * HVI_WIRE_GPU_HANDLE;
    add->memory.fabric = zeroed(add->memory.fabric_bytes, 1);
    add->memory.fabric[add->memory.fabric_bytes - 1] = 0xcd;
}

static void fill_gpu_wanted(struct hvi_gpu_wanted *wanted, bool full)
{
    if (!full)
        return;
    wanted->request = UINT64_MAX;
    fill_uuid(wanted->uuid);
    wanted->setting_count = HVI_WIRE_SETTINGS_MAX;
    wanted->settings = zeroed(HVI_WIRE_SETTINGS_MAX, sizeof *wanted->settings);
    for (size_t i = 0; i < HVI_WIRE_SETTINGS_MAX; i++) {
        memcpy(wanted->settings[i].name, "NCCL_DEBUG", sizeof "NCCL_DEBUG");
        FILL(wanted->settings[i].value, true);
    }
}

static void fill_gpu_worker(struct hvi_gpu_worker *worker, bool full)
{
    if (!full)
        return;
    *worker = (struct hvi_gpu_worker){.request = UINT64_MAX,
                                      .status = HVI_ERR_UNSUPPORTED,
                                      .instance = UINT64_MAX,
                                      .pid = INT32_MAX};
    fill_uuid(worker->uuid);
    FILL(worker->text, true);
}

static void fill_gpu_return(struct hvi_gpu_return *again, bool full)
{
    *again = (struct hvi_gpu_return){.protocol_version = HVI_PROTOCOL_VERSION, .job = "j"};
    if (!full)
        return;
    FILL(again->job, false);
    again->uid = UINT32_MAX;
    fill_uuid(again->uuid);
    again->instance = UINT64_MAX;
    again->has_row = true;
    fill_gpu_row(&again->row, true);
    again->engine_count = 2;
    again->engines = zeroed(2, sizeof *again->engines);
    again->engines[0] = INT32_MAX;
}

static void fill_gpu_packet(struct hvi_packet_msg *msg, bool full)
{
    if (msg->kind == HVI_PACKET_DEVICE_ADD) {
        fill_device_add(&msg->device_add, full);
    } else if (msg->kind == HVI_PACKET_FENCE_ADD) {
        msg->fence_add.request = full ? UINT64_MAX : 0;
    } else if (msg->kind == HVI_PACKET_GPU_WANTED) {
        fill_gpu_wanted(&msg->gpu_wanted, full);
    } else if (msg->kind == HVI_PACKET_GPU_WORKER) {
        fill_gpu_worker(&msg->gpu_worker, full);
    } else if (msg->kind == HVI_PACKET_GPU_END) {
        msg->gpu_end = (struct hvi_gpu_end){full ? UINT64_MAX : 0, "it is stuck"};
    } else if (msg->kind == HVI_PACKET_ENGINE_FENCES) {
        msg->engine_fences.rank = full ? INT32_MAX : 0;
    } else if (msg->kind == HVI_PACKET_ENGINE_REGIONS) {
        if (!full)
            return;
        msg->engine_regions = (struct hvi_engine_regions){UINT64_MAX, UINT64_MAX, ""};
        FILL(msg->engine_regions.text, true);
    } else {
        fill_gpu_return(&msg->gpu_return, full);
    }
}

static void fill_session_packet(struct hvi_packet_msg *msg, bool full)
{
    if (msg->kind == HVI_PACKET_ATTACH_REQUEST) {
        fill_attach_request(&msg->attach_request, full);
    } else if (msg->kind == HVI_PACKET_ATTACH_REPLY && full) {
        msg->attach_reply = (struct hvi_attach_reply){
            -999, "", UINT32_MAX, UINT32_MAX, UINT64_MAX, UINT64_MAX, INT32_MAX, true};
        FILL(msg->attach_reply.text, true);
    } else if (msg->kind == HVI_PACKET_REGION_ADD) {
        msg->region_add = (struct hvi_region_add){0, 1, 1, 0};
        if (full)
            msg->region_add = (struct hvi_region_add){UINT64_MAX, 0xfffffffe, UINT64_MAX, 1};
    } else if (msg->kind == HVI_PACKET_REGION_REMOVE) {
        msg->region_remove = (struct hvi_region_remove){full ? UINT64_MAX : 0, 1};
    } else if (msg->kind == HVI_PACKET_ACK && full) {
        msg->ack = (struct hvi_ack){UINT64_MAX, 1, ""};
        FILL(msg->ack.text, false);
    } else if (msg->kind == HVI_PACKET_DETACH && full) {
        msg->detach.request = UINT64_MAX;
    } else if (msg->kind == HVI_PACKET_NOTICE) {
        msg->notice.rank = -1;
        if (full) {
            msg->notice = (struct hvi_notice){-999, "", INT32_MAX, INT32_MAX, true};
            FILL(msg->notice.text, true);
        }
    }
}

static void fill_engine_start(struct hvi_engine_start *start, bool full)
{
    *start = (struct hvi_engine_start){.job = "j", .size = 1, .attach_path = "/"};
    if (!full)
        return;
    *start = (struct hvi_engine_start){
        .generation = UINT64_MAX,
        .size = 1048576,
        .uid = UINT32_MAX,
        .threads = 4096,
        .regions_max = UINT32_MAX,
        .region_bytes_max = UINT64_MAX,
        .stall_warn_ns = UINT64_MAX,
        .log_level = 4,
        .linger_ns = UINT64_MAX,
        .silence_ns = UINT64_MAX,
        .seats = HVI_RANKS_MAX,
        .port_first = UINT16_MAX,
        .port_last = UINT16_MAX,
        .net_lanes = HVI_WIRE_LANES_MAX,
        .gpu = true,
        .encrypt = true,
        .region_asks = true,
        .one_job = true,
    };
    FILL(start->job, false);
    FILL(start->attach_path, true);
    FILL(start->net_transport, false);
    FILL(start->trusted_networks, true);
}

static void fill_engine_adopt(struct hvi_engine_adopt *adopt, bool full)
{
    adopt->attach_bytes = full ? 131072 - 128 : 1;
    adopt->attach = zeroed(adopt->attach_bytes, 1);
    for (size_t i = 0; i < adopt->attach_bytes; i++)
        adopt->attach[i] = (unsigned char)(i * 7);
    if (!full)
        return;
    adopt->session = UINT64_MAX;
    adopt->pid = INT32_MAX;
    adopt->uid = adopt->gid = UINT32_MAX;
}

static void fill_engine_hello(struct hvi_engine_hello *hello, bool full)
{
    *hello =
        (struct hvi_engine_hello){.protocol_version = HVI_PROTOCOL_VERSION, .job = "j", .size = 1};
    if (!full)
        return;
    FILL(hello->job, false);
    FILL(hello->job_key_digest, false);
    hello->beats = true;
    hello->seats = HVI_RANKS_MAX;
    hello->generation = hello->started_ns = hello->regions_granted = UINT64_MAX;
    hello->size = 1048576;
    hello->uid = UINT32_MAX;
    hello->pid = INT32_MAX;
    hello->rank_count = HVI_WIRE_ROWS_MAX;
    hello->ranks = rank_rows(HVI_WIRE_ROWS_MAX, false);
}

static void fill_engine_report(struct hvi_engine_report *report, bool full)
{
    if (!full)
        return;
    report->request = report->rows_left_out = UINT64_MAX;
    report->rank_count = 80;
    report->ranks = rank_rows(report->rank_count, true);
    report->stall_count = 7;
    report->stalls = stall_rows(report->stall_count, HVI_RANKS_MAX / 2);
    report->trace_count = 16;
    report->traces = trace_rows(report->trace_count);
    report->has_span = report->more = true;
    report->region_bytes = UINT64_MAX;
    report->regions = report->process_sets = UINT32_MAX;
    report->regions_granted = UINT64_MAX;
    fill_span(&report->span, true);
}

static void fill_engine_packet(struct hvi_packet_msg *msg, bool full)
{
    if (msg->kind == HVI_PACKET_ENGINE_START) {
        fill_engine_start(&msg->engine_start, full);
    } else if (msg->kind == HVI_PACKET_ENGINE_ADOPT) {
        fill_engine_adopt(&msg->engine_adopt, full);
    } else if (msg->kind == HVI_PACKET_ENGINE_SESSION) {
        msg->engine_session =
            (struct hvi_engine_session){full ? INT32_MAX : -1, 0, full ? 4 : 1, ""};
        FILL(msg->engine_session.text, full);
    } else if (msg->kind == HVI_PACKET_ENGINE_QUERY) {
        msg->engine_query = (struct hvi_engine_query){.what = full ? 3 : 1, .rank = -1};
        if (full)
            msg->engine_query.min_age_ns = msg->engine_query.before = UINT64_MAX;
    } else if (msg->kind == HVI_PACKET_ENGINE_REPORT) {
        fill_engine_report(&msg->engine_report, full);
    } else if (msg->kind == HVI_PACKET_ENGINE_STOP && full) {
        FILL(msg->engine_stop.reason, true);
    } else if (msg->kind == HVI_PACKET_ENGINE_FATE && full) {
        msg->engine_fate = (struct hvi_engine_fate){INT32_MAX, INT32_MAX, true, 255};
    } else if (msg->kind == HVI_PACKET_ENGINE_HELLO) {
        fill_engine_hello(&msg->engine_hello, full);
    }
}

static void fill_peer_packet(struct hvi_packet_msg *msg, bool full)
{
    if (msg->kind == HVI_PACKET_PEER_ASK)
        msg->peer_ask = (struct hvi_peer_ask){full ? INT32_MAX : 0, full ? 0xfffffffe : 1};
    else
        msg->peer_region = (struct hvi_peer_region){full ? INT32_MAX : 0, full ? 0xfffffffe : 1,
                                                    full ? UINT64_MAX : 0};
}

static int32_t *seat_ranks(size_t count)
{
    int32_t *ranks = zeroed(count, sizeof *ranks);
    for (size_t i = 0; i < count; i++)
        ranks[i] = INT32_MAX;
    return ranks;
}

static void fill_roster(struct hvi_engine_roster *roster, bool full)
{
    if (!full)
        return;
    roster->status = HVI_ERR_BAD_SIZE;
    FILL(roster->text, true);
    roster->epoch = UINT64_MAX;
    roster->key_bytes = HVI_WIRE_EPOCH_KEY;
    roster->key = zeroed(HVI_WIRE_EPOCH_KEY, 1);
    roster->node = HVI_WIRE_NODES_MAX - 1;
    roster->node_count = 64;
    roster->nodes = zeroed(roster->node_count, sizeof *roster->nodes);
    for (size_t i = 0; i < roster->node_count; i++) {
        FILL(roster->nodes[i].name, true);
        FILL(roster->nodes[i].address, true);
        roster->nodes[i].port = UINT16_MAX;
        roster->nodes[i].rank_count = 8;
        roster->nodes[i].ranks = seat_ranks(8);
    }
    roster->wire = UINT32_MAX;
}

static void fill_node_packet(struct hvi_packet_msg *msg, bool full)
{
    if (msg->kind == HVI_PACKET_ENGINE_ROSTER) {
        fill_roster(&msg->engine_roster, full);
        return;
    }
    msg->engine_node =
        (struct hvi_engine_node){.size = full ? 1048576 : 1,
                                 .rank_count = full ? HVI_RANKS_MAX : 0,
                                 .port = full ? UINT16_MAX : 1,
                                 .lanes = full ? HVI_WIRE_LANES_MAX : 0,
                                 .encrypt = full,
                                 .start_timeout_ns = full ? HVI_START_TIMEOUT_MAX : 0};
    msg->engine_node.wire_oldest = msg->engine_node.wire_newest = full ? UINT32_MAX : 0;
    if (full)
        FILL(msg->engine_node.transport, false);
    msg->engine_node.ranks = seat_ranks(msg->engine_node.rank_count);
}

static void fill_timeline_packet(struct hvi_packet_msg *msg, bool full)
{
    if (msg->kind == HVI_PACKET_TIMELINE_START && full) {
        msg->timeline_start = (struct hvi_timeline_start){UINT64_MAX, true, ""};
        FILL(msg->timeline_start.path, true);
    } else if (msg->kind == HVI_PACKET_TIMELINE_STOP && full) {
        msg->timeline_stop.request = UINT64_MAX;
    } else if (msg->kind == HVI_PACKET_TIMELINE_REQUEST) {
        msg->timeline_request =
            (struct hvi_timeline_request){.protocol_version = HVI_PROTOCOL_VERSION,
                                          .job = "j",
                                          .of_owner = full,
                                          .owner = full ? UINT32_MAX : 0,
                                          .start = full,
                                          .mark_cycles = full};
        FILL(msg->timeline_request.path, full);
    } else if (msg->kind == HVI_PACKET_ENGINE_TIMELINE && full) {
        msg->engine_timeline = (struct hvi_engine_timeline){UINT64_MAX, true, true, "", true};
        FILL(msg->engine_timeline.path, true);
    }
}

void hvt_packet_sample(unsigned index, struct hvi_packet_msg *msg_p)
{
    memset(msg_p, 0, sizeof *msg_p);
    msg_p->kind = (enum hvi_packet_kind)(index / 2 + 1);
    if (msg_p->kind < HVI_PACKET_ENGINE_START)
        fill_session_packet(msg_p, index % 2);
    else if (msg_p->kind >= HVI_PACKET_DEVICE_ADD)
        fill_gpu_packet(msg_p, index % 2);
    else if (msg_p->kind >= HVI_PACKET_ENGINE_NODE)
        fill_node_packet(msg_p, index % 2);
    else if (msg_p->kind >= HVI_PACKET_PEER_ASK)
        fill_peer_packet(msg_p, index % 2);
    else if (msg_p->kind >= HVI_PACKET_TIMELINE_START)
        fill_timeline_packet(msg_p, index % 2);
    else
        fill_engine_packet(msg_p, index % 2);
}

void hvt_request_sample(unsigned index, struct hvi_admin_request *request_p)
{
    bool full = index % 2;
    memset(request_p, 0, sizeof *request_p);
    request_p->protocol_version = HVI_PROTOCOL_VERSION;
    request_p->kind = (enum hvi_admin_kind)(HVI_ADMIN_STATUS + index / 2);
    bool about_job = request_p->kind >= HVI_ADMIN_RANKS && request_p->kind < HVI_ADMIN_NODES;
    if (about_job && request_p->kind != HVI_ADMIN_STALLS)
        request_p->job[0] = 'j';
    if (!full)
        return;
    request_p->request = UINT64_MAX;
    if (about_job)
        FILL(request_p->job, false);
    if (about_job && request_p->kind != HVI_ADMIN_PROCESS_EXITED) {
        request_p->of_owner = true;
        request_p->owner = UINT32_MAX;
    }
    if (request_p->kind == HVI_ADMIN_LIMITS) {
        request_p->of_gate = request_p->of_owner = true;
        request_p->owner = UINT32_MAX;
    }
    request_p->of_mesh = request_p->kind == HVI_ADMIN_JOBS;
    if (request_p->kind == HVI_ADMIN_STALLS)
        request_p->min_age_ns = UINT64_MAX;
    if (request_p->kind == HVI_ADMIN_TRACE) {
        request_p->rank = INT32_MAX;
        request_p->limit = UINT32_MAX;
        request_p->before = UINT64_MAX;
    }
    if (request_p->kind == HVI_ADMIN_JOB_STOP)
        FILL(request_p->reason, true);
    if (request_p->kind == HVI_ADMIN_PROCESS_EXITED) {
        request_p->rank = request_p->pid = INT32_MAX;
        request_p->code = 255;
        request_p->signaled = true;
    }
}

static void fill_daemon(struct hvi_daemon_status *daemon)
{
    *daemon = (struct hvi_daemon_status){
        .pid = INT32_MAX,
        .uid = UINT32_MAX,
        .uptime_ns = UINT64_MAX,
        .jobs = UINT32_MAX,
        .sessions = UINT32_MAX,
        .attaches = UINT64_MAX,
        .refused = UINT64_MAX,
        .ranks_lost = UINT64_MAX,
        .log_lost = UINT64_MAX,
    };
    FILL(daemon->version, false);
    FILL(daemon->runtime_dir, true);
    FILL(daemon->state, true);
    FILL(daemon->gpu_program, true);
    FILL(daemon->gpu_library_path, false);
    FILL(daemon->gpu_mps, true);
}

static struct hvi_job_row *job_rows(size_t count)
{
    struct hvi_job_row *rows = zeroed(count, sizeof *rows);
    for (size_t i = 0; i < count; i++) {
        rows[i] = (struct hvi_job_row){.size = 1, .state = "forming"};
        FILL(rows[i].job, false);
        if (i % 2)
            continue;
        rows[i].generation = rows[i].age_ns = rows[i].ops = rows[i].bytes = UINT64_MAX;
        rows[i].uid = UINT32_MAX;
        rows[i].size = rows[i].attached = 1048576;
        rows[i].nodes = HVI_WIRE_NODES_MAX;
        rows[i].withheld = true;
        rows[i].engine_pid = INT32_MAX;
        FILL(rows[i].state, true);
        FILL(rows[i].node, true);
    }
    return rows;
}

static struct hvi_limit_row *limit_rows(size_t count)
{
    struct hvi_limit_row *rows = zeroed(count, sizeof *rows);
    for (size_t i = 0; i < count; i++) {
        FILL(rows[i].limit, true);
        FILL(rows[i].of, true);
        FILL(rows[i].job, false);
        rows[i].uid = UINT32_MAX;
        rows[i].counted = true;
        rows[i].used = rows[i].most = UINT64_MAX;
    }
    return rows;
}

static struct hvi_mesh_row *mesh_rows(size_t count)
{
    struct hvi_mesh_row *rows = zeroed(count, sizeof *rows);
    for (size_t i = 0; i < count; i++) {
        rows[i].port = UINT16_MAX;
        rows[i].heard_ns = UINT64_MAX;
        FILL(rows[i].node, true);
        FILL(rows[i].name, true);
        FILL(rows[i].address, false);
        FILL(rows[i].state, true);
        FILL(rows[i].jobs, true);
        FILL(rows[i].version, true);
        rows[i].joined_ns = UINT64_MAX;
    }
    return rows;
}

static struct hvi_event_host *event_hosts(size_t count)
{
    struct hvi_event_host *hosts = zeroed(count, sizeof *hosts);
    for (size_t i = 0; i < count; i++)
        FILL(hosts[i].name, true);
    return hosts;
}

static struct hvi_event_row *event_rows(size_t count)
{
    struct hvi_event_row *rows = zeroed(count, sizeof *rows);
    for (size_t i = 0; i < count; i++) {
        rows[i] = (struct hvi_event_row){.kind = HVI_EVENT_LOST, .rank = -1};
        if (i % 2)
            continue;
        rows[i].kind = rows[i].uid = UINT32_MAX;
        rows[i].at_ns = rows[i].generation = rows[i].count = UINT64_MAX;
        rows[i].rank = rows[i].pid = INT32_MAX;
        FILL(rows[i].job, false);
        FILL(rows[i].node, true);
        FILL(rows[i].text, true);
        rows[i].added = event_hosts(rows[i].added_count = 2);
        rows[i].removed = event_hosts(rows[i].removed_count = i == 0 ? HVI_EVENT_HOSTS_MAX : 1);
    }
    return rows;
}

void hvt_reply_sample(unsigned index, struct hvi_admin_reply *reply_p)
{
    memset(reply_p, 0, sizeof *reply_p);
    reply_p->protocol_version = HVI_PROTOCOL_VERSION;
    if (index == 0)
        return;
    reply_p->request = reply_p->rows_left_out = UINT64_MAX;
    reply_p->status = -999;
    FILL(reply_p->text, true);
    reply_p->has_daemon = true;
    fill_daemon(&reply_p->daemon);
    bool huge = index == 2;
    reply_p->job_count = huge ? HVI_WIRE_ROWS_MAX : 2;
    reply_p->jobs = job_rows(reply_p->job_count);
    reply_p->rank_count = huge ? HVI_WIRE_ROWS_MAX : 2;
    reply_p->ranks = rank_rows(reply_p->rank_count, true);
    reply_p->stall_count = huge ? HVI_WIRE_STALLS_MAX : 2;
    reply_p->stalls = stall_rows(reply_p->stall_count, huge ? HVI_RANKS_MAX : 3);
    reply_p->trace_count = huge ? HVI_WIRE_TRACES_MAX : 2;
    reply_p->traces = trace_rows(reply_p->trace_count);
    reply_p->node_count = huge ? HVI_WIRE_ROWS_MAX : 2;
    reply_p->nodes = mesh_rows(reply_p->node_count);
    reply_p->span_count = huge ? HVI_WIRE_ROWS_MAX : 2;
    reply_p->spans = zeroed(reply_p->span_count, sizeof *reply_p->spans);
    for (size_t i = 0; i < reply_p->span_count; i++)
        fill_span(&reply_p->spans[i], i % 2 == 0);
    reply_p->gpu_count = huge ? HVI_WIRE_ROWS_MAX : 2;
    reply_p->gpus = zeroed(reply_p->gpu_count, sizeof *reply_p->gpus);
    for (size_t i = 0; i < reply_p->gpu_count; i++)
        fill_gpu_row(&reply_p->gpus[i], i % 2 == 0);
    reply_p->event_count = huge ? HVI_WIRE_ROWS_MAX : 2;
    reply_p->events = event_rows(reply_p->event_count);
    reply_p->limit_count = huge ? HVI_WIRE_ROWS_MAX : 2;
    reply_p->limits = limit_rows(reply_p->limit_count);
}
