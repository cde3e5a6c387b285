/* SPDX-License-Identifier: Apache-2.0
 * Every message of hvd.proto as a table: which field, where in the plain struct, which values.
 * This file is what to read to learn what a decoded message guarantees. */
#include "proto/wire_rows.h"

#include "base/log.h"

#include "hvd.pb-c.h"

#define SIZE_MOST     HVI_JOB_RANKS_MAX
#define REGION_MOST   0xfffffffeu /* the last id means "no region" */
#define THREADS_MOST  4096
#define NODE(n, s, m) NUMBER(n, s, m, 0, HVI_WIRE_NODES_MAX - 1)
/* An adopted attach travels inside another packet, with some room for the rest. */
#define ATTACH_MOST (HVI_PACKET_BYTES_MAX - 128)

/* ---- rows ------------------------------------------------------------------------------------ */

static const struct wire_field setting_fields[] = {
    TEXT(1, hvi_setting, name, SETTING_NAME),
    TEXT(2, hvi_setting, value, ANY),
};
static const struct wire_table setting = TABLE(setting, setting_fields, 0);

static const struct wire_field nccl_setting_fields[] = {
    TEXT(1, hvi_setting, name, NCCL_NAME),
    TEXT(2, hvi_setting, value, ANY),
};
const struct wire_table hvi_wire_nccl_setting = TABLE(setting, nccl_setting_fields, 0);

static const struct wire_field rank_row_fields[] = {
    RANK(1, hvi_rank_row, rank),
    PID(2, hvi_rank_row, pid),
    U32(3, hvi_rank_row, uid),
    TEXT(4, hvi_rank_row, state, FILLED),
    TEXT(5, hvi_rank_row, process, ANY),
    U64(6, hvi_rank_row, ops),
    U64(7, hvi_rank_row, bytes),
    U64(8, hvi_rank_row, in_flight),
    U64(9, hvi_rank_row, lag_mean_ns),
    U64(10, hvi_rank_row, lag_max_ns),
    U64(11, hvi_rank_row, region_bytes),
    TEXT(12, hvi_rank_row, origin, ANY),
    TEXT(13, hvi_rank_row, text, ANY),
    U64(14, hvi_rank_row, lag_p50_ns),
    U64(15, hvi_rank_row, lag_p99_ns),
    U64(16, hvi_rank_row, lag_ops),
    U64(17, hvi_rank_row, last_ops),
    U64(18, hvi_rank_row, lag_sum_ns),
    U64(19, hvi_rank_row, negotiated),
    U64(20, hvi_rank_row, replayed),
    U64(21, hvi_rank_row, express),
    NUMBER(22, hvi_rank_row, seat, 0, HVI_RANKS_MAX - 1),
    NODE(43, hvi_rank_row, node),
    PID(44, hvi_rank_row, own_pid),
    NUMBER(45, hvi_rank_row, memory, 0, UINT32_MAX),
};
static const struct wire_table rank_row = TABLE(rank_row, rank_row_fields, 0);

static const struct wire_field missing_rank_fields[] = {
    RANK(1, hvi_missing_rank, rank),
    PID(2, hvi_missing_rank, pid),
    TEXT(3, hvi_missing_rank, process, FILLED),
    TEXT(4, hvi_missing_rank, waits_in, ANY),
};
static const struct wire_table missing_rank = TABLE(missing_rank, missing_rank_fields, 0);

static const struct wire_field stall_row_fields[] = {
    TEXT(1, hvi_stall_row, tensor, FILLED),
    TEXT(2, hvi_stall_row, op, FILLED),
    U64(3, hvi_stall_row, age_ns),
    LIST(4, hvi_stall_row, ready, ready_count, WIRE_INTS, HVI_RANKS_MAX, NULL),
    LIST(5, hvi_stall_row, missing, missing_count, WIRE_ROWS, HVI_RANKS_MAX, &missing_rank),
    TEXT(6, hvi_stall_row, job, JOB_OR_EMPTY),
    U32(7, hvi_stall_row, process_set),
    U32(8, hvi_stall_row, uid),
};
static const struct wire_table stall_row = TABLE(stall_row, stall_row_fields, 0);

static const struct wire_field trace_row_fields[] = {
    RANK(1, hvi_trace_row, rank),           U64(2, hvi_trace_row, number),
    TEXT(3, hvi_trace_row, tensor, FILLED), TEXT(4, hvi_trace_row, op, FILLED),
    TEXT(5, hvi_trace_row, dtype, ANY),     U64(6, hvi_trace_row, bytes),
    U32(7, hvi_trace_row, process_set),     U64(8, hvi_trace_row, submit_ns),
    U64(9, hvi_trace_row, ready_ns),        U64(10, hvi_trace_row, done_ns),
    STATUS(11, hvi_trace_row, status),      U64(12, hvi_trace_row, device_ns),
};
static const struct wire_table trace_row = TABLE(trace_row, trace_row_fields, 0);

static const struct wire_field link_row_fields[] = {
    NODE(1, hvi_link_row, to),
    NUMBER(2, hvi_link_row, purpose, HVI_LINK_CONTROL, HVI_LINK_DATA),
    U32(3, hvi_link_row, lane),
    U64(4, hvi_link_row, bytes_sent),
    U64(5, hvi_link_row, bytes_received),
    U64(6, hvi_link_row, messages_sent),
    U64(7, hvi_link_row, messages_received),
    U64(8, hvi_link_row, retransmits),
    U64(9, hvi_link_row, rtt_ns),
    TEXT(10, hvi_link_row, transport, ANY),
};
static const struct wire_table link_row = TABLE(link_row, link_row_fields, 0);

static const struct wire_field span_row_fields[] = {
    NODE(1, hvi_span_row, node),
    TEXT(2, hvi_span_row, name, FILLED),
    TEXT(3, hvi_span_row, address, FILLED),
    NUMBER(4, hvi_span_row, port, 1, UINT16_MAX),
    TEXT(5, hvi_span_row, text, ANY),
    LIST(6, hvi_span_row, ranks, rank_count, WIRE_INTS, HVI_RANKS_MAX, NULL),
    LIST(7, hvi_span_row, links, link_count, WIRE_ROWS, HVI_WIRE_ROWS_MAX, &link_row),
    LIST(8, hvi_span_row, standing, standing_count, WIRE_ROWS, HVI_RANKS_MAX, &missing_rank),
    U64(9, hvi_span_row, ahead_ns),
    U64(10, hvi_span_row, ahead_error_ns),
    TEXT(11, hvi_span_row, job, JOB_OR_EMPTY),
    FLAG(12, hvi_span_row, here),
    U32(13, hvi_span_row, uid),
};
static const struct wire_table span_row = TABLE(span_row, span_row_fields, 0);

static const struct wire_field mesh_row_fields[] = {
    TEXT(1, hvi_mesh_row, node, ANY),     TEXT(2, hvi_mesh_row, name, FILLED),
    TEXT(3, hvi_mesh_row, address, ANY),  NUMBER(4, hvi_mesh_row, port, 0, UINT16_MAX),
    TEXT(5, hvi_mesh_row, state, FILLED), U64(6, hvi_mesh_row, heard_ns),
    TEXT(7, hvi_mesh_row, jobs, ANY),     TEXT(8, hvi_mesh_row, version, ANY),
    U64(9, hvi_mesh_row, joined_ns),
};
static const struct wire_table mesh_row = TABLE(mesh_row, mesh_row_fields, 0);

static const struct wire_field event_host_fields[] = {
    TEXT(1, hvi_event_host, name, FILLED),
};
static const struct wire_table event_host = TABLE(event_host, event_host_fields, 0);

static const struct wire_field event_row_fields[] = {
    NUMBER(1, hvi_event_row, kind, 1, UINT32_MAX),
    U64(2, hvi_event_row, at_ns),
    TEXT(3, hvi_event_row, job, JOB_OR_EMPTY),
    U32(4, hvi_event_row, uid),
    U64(5, hvi_event_row, generation),
    NUMBER_OR(6, hvi_event_row, rank, -1, INT32_MAX, -1),
    PID(7, hvi_event_row, pid),
    TEXT(8, hvi_event_row, node, ANY),
    TEXT(9, hvi_event_row, text, ANY),
    U64(10, hvi_event_row, count),
    LIST(11, hvi_event_row, added, added_count, WIRE_ROWS, HVI_EVENT_HOSTS_MAX, &event_host),
    LIST(12, hvi_event_row, removed, removed_count, WIRE_ROWS, HVI_EVENT_HOSTS_MAX, &event_host),
};
static const struct wire_table event_row = TABLE(event_row, event_row_fields, 0);

static const struct wire_field job_row_fields[] = {
    TEXT(1, hvi_job_row, job, JOB),
    U64(2, hvi_job_row, generation),
    U32(3, hvi_job_row, uid),
    SIZE(4, hvi_job_row, size),
    NUMBER(5, hvi_job_row, attached, 0, SIZE_MOST),
    TEXT(6, hvi_job_row, state, FILLED),
    PID(7, hvi_job_row, engine_pid),
    U64(8, hvi_job_row, age_ns),
    U64(9, hvi_job_row, ops),
    U64(10, hvi_job_row, bytes),
    NUMBER(31, hvi_job_row, nodes, 0, HVI_WIRE_NODES_MAX),
    FLAG(32, hvi_job_row, withheld),
    TEXT(33, hvi_job_row, node, ANY),
};
static const struct wire_table job_row = TABLE(job_row, job_row_fields, 0);

static const struct wire_field gpu_row_fields[] = {
    TEXT(1, hvi_gpu_row, uuid, FILLED),
    TEXT(2, hvi_gpu_row, name, ANY),
    TEXT(3, hvi_gpu_row, job, JOB_OR_EMPTY),
    U32(4, hvi_gpu_row, uid),
    PID(5, hvi_gpu_row, pid),
    TEXT(6, hvi_gpu_row, state, FILLED),
    U64(7, hvi_gpu_row, import_bytes),
    U64(8, hvi_gpu_row, staging_bytes),
    U64(9, hvi_gpu_row, own_bytes),
    U64(10, hvi_gpu_row, free_bytes),
    U32(11, hvi_gpu_row, imports),
    U32(12, hvi_gpu_row, comms),
    U64(13, hvi_gpu_row, batches),
    U32(14, hvi_gpu_row, driver_version),
    U32(15, hvi_gpu_row, nccl_version),
    TEXT(16, hvi_gpu_row, links, ANY),
};
const struct wire_table hvi_wire_gpu_row = TABLE(gpu_row, gpu_row_fields, 0);

static const struct wire_field limit_row_fields[] = {
    TEXT(1, hvi_limit_row, limit, FILLED),
    TEXT(2, hvi_limit_row, of, FILLED),
    U32(3, hvi_limit_row, uid),
    TEXT(4, hvi_limit_row, job, JOB_OR_EMPTY),
    FLAG(5, hvi_limit_row, counted),
    U64(6, hvi_limit_row, used),
    U64(7, hvi_limit_row, most),
};
static const struct wire_table limit_row = TABLE(limit_row, limit_row_fields, 0);

static const struct wire_field device_memory_fields[] = {
    FIXED(1, hvi_device_memory, uuid),
    U64(2, hvi_device_memory, address),
    NUMBER(3, hvi_device_memory, bytes, 1, UINT64_MAX),
    U64(4, hvi_device_memory, buffer_id),
    NUMBER(5, hvi_device_memory, kind, HVI_DEVICE_LEGACY, HVI_DEVICE_FABRIC),
    FIXED(6, hvi_device_memory, handle),
    LIST(7, hvi_device_memory, chunks, chunk_count, WIRE_LONGS, HVI_WIRE_CHUNKS_MAX, NULL),
    FLAG(8, hvi_device_memory, registers),
    BYTES(9, hvi_device_memory, fabric, fabric_bytes, 0, HVI_WIRE_CHUNKS_MAX *HVI_WIRE_GPU_HANDLE),
};
const struct wire_table hvi_wire_device_memory = TABLE(device_memory, device_memory_fields, 0);

/* ---- packets --------------------------------------------------------------------------------- */

static const struct wire_field attach_request_fields[] = {
    U32(1, hvi_attach_request, protocol_version),
    U32(2, hvi_attach_request, abi_version),
    TEXT(3, hvi_attach_request, job, JOB),
    TEXT(4, hvi_attach_request, job_key, ANY),
    NUMBER(5, hvi_attach_request, rank, -1, INT32_MAX), /* hvdd answers BAD_RANK */
    SIZE(6, hvi_attach_request, size),
    NUMBER(7, hvi_attach_request, local_rank, -1, INT32_MAX),
    NUMBER(8, hvi_attach_request, local_size, 1, HVI_RANKS_MAX),
    NUMBER(9, hvi_attach_request, cross_rank, -1, INT32_MAX),
    SIZE(10, hvi_attach_request, cross_size),
    TEXT(11, hvi_attach_request, origin, ANY),
    TEXT(12, hvi_attach_request, client_version, ANY),
    LIST(13, hvi_attach_request, settings, setting_count, WIRE_ROWS, HVI_WIRE_SETTINGS_MAX,
         &setting),
    PID(14, hvi_attach_request, own_pid),
};
static const struct wire_table attach_request = TABLE(attach_request, attach_request_fields, 2);
/* The same first fields, from a message of which nothing else is understood. */
const struct wire_table hvi_wire_attach_request_probe = {
    .descriptor = &hvd__attach_request_probe__descriptor,
    .fields = attach_request_fields,
    .field_count = 2,
    .version_fields = 2,
};

static const struct wire_field attach_reply_fields[] = {
    STATUS(1, hvi_attach_reply, status),        TEXT(2, hvi_attach_reply, text, ANY),
    U32(3, hvi_attach_reply, protocol_version), U32(4, hvi_attach_reply, abi_version),
    U64(5, hvi_attach_reply, session),          U64(6, hvi_attach_reply, generation),
    PID(7, hvi_attach_reply, engine_pid),       FLAG(8, hvi_attach_reply, fabric),
};
static const struct wire_table attach_reply = TABLE(attach_reply, attach_reply_fields, 0);

static const struct wire_field region_add_fields[] = {
    U64(1, hvi_region_add, request),
    NUMBER(2, hvi_region_add, region, 1, REGION_MOST),
    NUMBER(3, hvi_region_add, bytes, 1, UINT64_MAX),
    FLAG(4, hvi_region_add, process_memory),
};
static const struct wire_table region_add = TABLE(region_add, region_add_fields, 0);

static const struct wire_field region_remove_fields[] = {
    U64(1, hvi_region_remove, request),
    NUMBER(2, hvi_region_remove, region, 1, REGION_MOST),
};
static const struct wire_table region_remove = TABLE(region_remove, region_remove_fields, 0);

static const struct wire_field device_add_fields[] = {
    U64(1, hvi_device_add, request),
    NUMBER(2, hvi_device_add, region, 1, REGION_MOST),
    WHOLE(3, hvi_device_add, memory, &hvi_wire_device_memory),
    FLAG(4, hvi_device_add, more),
};
static const struct wire_table device_add = TABLE(device_add, device_add_fields, 0);

static const struct wire_field fence_add_fields[] = {
    U64(1, hvi_fence_add, request),
};
static const struct wire_table fence_add = TABLE(fence_add, fence_add_fields, 0);

static const struct wire_field ack_fields[] = {
    U64(1, hvi_ack, request),
    STATUS(2, hvi_ack, status),
    TEXT(3, hvi_ack, text, ANY),
};
static const struct wire_table ack = TABLE(ack, ack_fields, 0);

static const struct wire_field detach_fields[] = {
    U64(1, hvi_detach, request),
};
static const struct wire_table detach = TABLE(detach, detach_fields, 0);

static const struct wire_field timeline_start_fields[] = {
    U64(1, hvi_timeline_start, request),
    FLAG(2, hvi_timeline_start, mark_cycles),
    TEXT(3, hvi_timeline_start, path, ANY),
};
static const struct wire_table timeline_start = TABLE(timeline_start, timeline_start_fields, 0);

static const struct wire_field timeline_stop_fields[] = {
    U64(1, hvi_timeline_stop, request),
};
static const struct wire_table timeline_stop = TABLE(timeline_stop, timeline_stop_fields, 0);

static const struct wire_field peer_ask_fields[] = {
    RANK(1, hvi_peer_ask, rank),
    NUMBER(2, hvi_peer_ask, region, 1, REGION_MOST),
};
static const struct wire_table peer_ask = TABLE(peer_ask, peer_ask_fields, 0);

static const struct wire_field peer_region_fields[] = {
    RANK(1, hvi_peer_region, rank),
    NUMBER(2, hvi_peer_region, region, 1, REGION_MOST),
    U64(3, hvi_peer_region, bytes),
};
static const struct wire_table peer_region = TABLE(peer_region, peer_region_fields, 0);

static const struct wire_field notice_fields[] = {
    STATUS(1, hvi_notice, status),
    TEXT(2, hvi_notice, text, ANY),
    NUMBER_OR(3, hvi_notice, rank, -1, INT32_MAX, -1),
    PID(4, hvi_notice, pid),
    FLAG(5, hvi_notice, session_ended),
};
static const struct wire_table notice = TABLE(notice, notice_fields, 0);

static const struct wire_field engine_start_fields[] = {
    TEXT(1, hvi_engine_start, job, JOB),
    U64(2, hvi_engine_start, generation),
    SIZE(3, hvi_engine_start, size),
    U32(4, hvi_engine_start, uid),
    NUMBER(5, hvi_engine_start, threads, 0, THREADS_MOST),
    U32(6, hvi_engine_start, regions_max),
    U64(7, hvi_engine_start, region_bytes_max),
    U64(8, hvi_engine_start, stall_warn_ns),
    TEXT(9, hvi_engine_start, attach_path, FILLED),
    NUMBER_OR(10, hvi_engine_start, log_level, HVI_LOG_ERROR, HVI_LOG_TRACE, HVI_LOG_INFO),
    U64(11, hvi_engine_start, linger_ns),
    U64(12, hvi_engine_start, silence_ns),
    NUMBER(13, hvi_engine_start, seats, 0, HVI_RANKS_MAX),
    NUMBER(74, hvi_engine_start, port_first, 0, UINT16_MAX),
    NUMBER(75, hvi_engine_start, port_last, 0, UINT16_MAX),
    NUMBER(76, hvi_engine_start, net_lanes, 0, HVI_WIRE_LANES_MAX),
    FLAG(77, hvi_engine_start, gpu),
    FLAG(78, hvi_engine_start, encrypt),
    FLAG(79, hvi_engine_start, region_asks),
    TEXT(80, hvi_engine_start, net_transport, ANY),
    TEXT(81, hvi_engine_start, trusted_networks, ANY),
    FLAG(82, hvi_engine_start, one_job),
};
static const struct wire_table engine_start = TABLE(engine_start, engine_start_fields, 0);

static const struct wire_field engine_adopt_fields[] = {
    U64(1, hvi_engine_adopt, session),
    LIST(2, hvi_engine_adopt, attach, attach_bytes, WIRE_BYTES, ATTACH_MOST, NULL),
    PID(3, hvi_engine_adopt, pid),
    U32(4, hvi_engine_adopt, uid),
    U32(5, hvi_engine_adopt, gid),
};
static const struct wire_table engine_adopt = TABLE(engine_adopt, engine_adopt_fields, 0);

static const struct wire_field engine_session_fields[] = {
    NUMBER(1, hvi_engine_session, rank, -1, INT32_MAX), /* as the client claimed it */
    PID(2, hvi_engine_session, pid),
    NUMBER(3, hvi_engine_session, state, HVI_SESSION_STATE_ATTACHED, HVI_SESSION_STATE_ENDED),
    TEXT(4, hvi_engine_session, text, ANY),
};
static const struct wire_table engine_session = TABLE(engine_session, engine_session_fields, 0);

static const struct wire_field engine_query_fields[] = {
    U64(1, hvi_engine_query, request),
    NUMBER(2, hvi_engine_query, what, HVI_QUERY_RANKS, HVI_QUERY_ALIVE),
    U64(3, hvi_engine_query, min_age_ns),
    NUMBER_OR(4, hvi_engine_query, rank, -1, INT32_MAX, -1),
    U32(5, hvi_engine_query, limit),
    U64(6, hvi_engine_query, before),
    U64(7, hvi_engine_query, silence_ns),
};
static const struct wire_table engine_query = TABLE(engine_query, engine_query_fields, 0);

static const struct wire_field engine_report_fields[] = {
    U64(1, hvi_engine_report, request),
    LIST(2, hvi_engine_report, ranks, rank_count, WIRE_ROWS, HVI_WIRE_ROWS_MAX, &rank_row),
    LIST(3, hvi_engine_report, stalls, stall_count, WIRE_ROWS, HVI_WIRE_STALLS_MAX, &stall_row),
    U64(4, hvi_engine_report, rows_left_out),
    LIST(5, hvi_engine_report, traces, trace_count, WIRE_ROWS, HVI_WIRE_TRACES_MAX, &trace_row),
    PART(26, hvi_engine_report, span, has_span, &span_row),
    FLAG(27, hvi_engine_report, more),
    U64(28, hvi_engine_report, region_bytes),
    U32(29, hvi_engine_report, regions),
    U32(30, hvi_engine_report, process_sets),
    U64(31, hvi_engine_report, regions_granted),
};
static const struct wire_table engine_report = TABLE(engine_report, engine_report_fields, 0);

static const struct wire_field engine_stop_fields[] = {
    TEXT(1, hvi_engine_stop, reason, ANY),
};
static const struct wire_table engine_stop = TABLE(engine_stop, engine_stop_fields, 0);

static const struct wire_field engine_fate_fields[] = {
    RANK(1, hvi_engine_fate, rank),
    PID(2, hvi_engine_fate, pid),
    FLAG(3, hvi_engine_fate, signaled),
    NUMBER(4, hvi_engine_fate, code, 0, 255),
};
static const struct wire_table engine_fate = TABLE(engine_fate, engine_fate_fields, 0);

static const struct wire_field engine_hello_fields[] = {
    U32(1, hvi_engine_hello, protocol_version),
    TEXT(2, hvi_engine_hello, job, JOB),
    U64(3, hvi_engine_hello, generation),
    SIZE(4, hvi_engine_hello, size),
    U32(5, hvi_engine_hello, uid),
    PID(6, hvi_engine_hello, pid),
    LIST(7, hvi_engine_hello, ranks, rank_count, WIRE_ROWS, HVI_WIRE_ROWS_MAX, &rank_row),
    TEXT(8, hvi_engine_hello, job_key_digest, ANY),
    U64(9, hvi_engine_hello, started_ns),
    FLAG(10, hvi_engine_hello, beats),
    NUMBER(11, hvi_engine_hello, seats, 0, HVI_RANKS_MAX),
    U64(12, hvi_engine_hello, regions_granted),
};
static const struct wire_table engine_hello = TABLE(engine_hello, engine_hello_fields, 1);
const struct wire_table hvi_wire_engine_hello_probe = {
    .descriptor = &hvd__engine_hello_probe__descriptor,
    .fields = engine_hello_fields,
    .field_count = 1,
    .version_fields = 1,
};

static const struct wire_field engine_node_fields[] = {
    SIZE(1, hvi_engine_node, size),
    LIST(2, hvi_engine_node, ranks, rank_count, WIRE_INTS, HVI_RANKS_MAX, NULL),
    NUMBER(3, hvi_engine_node, port, 1, UINT16_MAX),
    U32(4, hvi_engine_node, wire_oldest),
    U32(5, hvi_engine_node, wire_newest),
    NUMBER(66, hvi_engine_node, lanes, 0, HVI_WIRE_LANES_MAX),
    FLAG(67, hvi_engine_node, encrypt),
    TEXT(68, hvi_engine_node, transport, ANY),
    NUMBER(69, hvi_engine_node, start_timeout_ns, 0, HVI_START_TIMEOUT_MAX),
};
static const struct wire_table engine_node = TABLE(engine_node, engine_node_fields, 0);

static const struct wire_field node_row_fields[] = {
    TEXT(1, hvi_node_row, name, FILLED),
    TEXT(2, hvi_node_row, address, FILLED),
    NUMBER(3, hvi_node_row, port, 1, UINT16_MAX),
    LIST(4, hvi_node_row, ranks, rank_count, WIRE_INTS, HVI_RANKS_MAX, NULL),
};
static const struct wire_table node_row = TABLE(node_row, node_row_fields, 0);

static const struct wire_field engine_roster_fields[] = {
    STATUS(1, hvi_engine_roster, status),
    TEXT(2, hvi_engine_roster, text, ANY),
    U64(3, hvi_engine_roster, epoch),
    {.number = 4, /* none with a status */
     .kind = WIRE_BYTES,
     .offset = offsetof(struct hvi_engine_roster, key),
     .count_offset = offsetof(struct hvi_engine_roster, key_bytes),
     .high = HVI_WIRE_EPOCH_KEY},
    NUMBER(5, hvi_engine_roster, node, 0, HVI_WIRE_NODES_MAX - 1),
    LIST(6, hvi_engine_roster, nodes, node_count, WIRE_ROWS, HVI_WIRE_NODES_MAX, &node_row),
    U32(7, hvi_engine_roster, wire),
    NUMBER(68, hvi_engine_roster, lanes, 0, HVI_WIRE_LANES_MAX),
};
static const struct wire_table engine_roster = TABLE(engine_roster, engine_roster_fields, 0);

static const struct wire_field timeline_request_fields[] = {
    U32(1, hvi_timeline_request, protocol_version),
    TEXT(2, hvi_timeline_request, job, JOB),
    FLAG(3, hvi_timeline_request, start),
    FLAG(4, hvi_timeline_request, mark_cycles),
    TEXT(5, hvi_timeline_request, path, ANY),
    FLAG(6, hvi_timeline_request, of_owner),
    U32(7, hvi_timeline_request, owner),
};
static const struct wire_table timeline_request =
    TABLE(timeline_request, timeline_request_fields, 1);

static const struct wire_field engine_timeline_fields[] = {
    U64(1, hvi_engine_timeline, request),      FLAG(2, hvi_engine_timeline, start),
    FLAG(3, hvi_engine_timeline, mark_cycles), TEXT(4, hvi_engine_timeline, path, ANY),
    FLAG(5, hvi_engine_timeline, gpus),
};
static const struct wire_table engine_timeline = TABLE(engine_timeline, engine_timeline_fields, 0);

static const struct wire_field gpu_wanted_fields[] = {
    U64(1, hvi_gpu_wanted, request),
    FIXED(2, hvi_gpu_wanted, uuid),
    LIST(3, hvi_gpu_wanted, settings, setting_count, WIRE_ROWS, HVI_WIRE_SETTINGS_MAX,
         &hvi_wire_nccl_setting),
};
static const struct wire_table gpu_wanted = TABLE(gpu_wanted, gpu_wanted_fields, 0);

static const struct wire_field gpu_worker_fields[] = {
    U64(1, hvi_gpu_worker, request),    STATUS(2, hvi_gpu_worker, status),
    TEXT(3, hvi_gpu_worker, text, ANY), FIXED(4, hvi_gpu_worker, uuid),
    U64(5, hvi_gpu_worker, instance),   PID(6, hvi_gpu_worker, pid),
};
static const struct wire_table gpu_worker = TABLE(gpu_worker, gpu_worker_fields, 0);

static const struct wire_field gpu_end_fields[] = {
    U64(1, hvi_gpu_end, instance),
    TEXT(2, hvi_gpu_end, reason, FILLED),
};
static const struct wire_table gpu_end = TABLE(gpu_end, gpu_end_fields, 0);

static const struct wire_field engine_fences_fields[] = {
    RANK(1, hvi_engine_fences, rank),
};
static const struct wire_table engine_fences = TABLE(engine_fences, engine_fences_fields, 0);

static const struct wire_field engine_regions_fields[] = {
    U64(1, hvi_engine_regions, request),
    U64(2, hvi_engine_regions, bytes),
    TEXT(3, hvi_engine_regions, text, ANY),
};
static const struct wire_table engine_regions = TABLE(engine_regions, engine_regions_fields, 0);

static const struct wire_field gpu_return_fields[] = {
    U32(1, hvi_gpu_return, protocol_version),
    TEXT(2, hvi_gpu_return, job, JOB),
    U32(3, hvi_gpu_return, uid),
    FIXED(4, hvi_gpu_return, uuid),
    U64(5, hvi_gpu_return, instance),
    PART(6, hvi_gpu_return, row, has_row, &hvi_wire_gpu_row),
    LIST(7, hvi_gpu_return, engines, engine_count, WIRE_INTS, HVI_WIRE_ROWS_MAX, NULL),
};
static const struct wire_table gpu_return = TABLE(gpu_return, gpu_return_fields, 1);

const struct wire_body hvi_wire_packet_bodies[] = {
    [HVI_PACKET_ATTACH_REQUEST] = {"attach_request", &attach_request},
    [HVI_PACKET_ATTACH_REPLY] = {"attach_reply", &attach_reply},
    [HVI_PACKET_REGION_ADD] = {"region_add", &region_add},
    [HVI_PACKET_REGION_REMOVE] = {"region_remove", &region_remove},
    [HVI_PACKET_ACK] = {"ack", &ack},
    [HVI_PACKET_DETACH] = {"detach", &detach},
    [HVI_PACKET_NOTICE] = {"notice", &notice},
    [HVI_PACKET_ENGINE_START] = {"engine_start", &engine_start},
    [HVI_PACKET_ENGINE_ADOPT] = {"engine_adopt", &engine_adopt},
    [HVI_PACKET_ENGINE_SESSION] = {"engine_session", &engine_session},
    [HVI_PACKET_ENGINE_QUERY] = {"engine_query", &engine_query},
    [HVI_PACKET_ENGINE_REPORT] = {"engine_report", &engine_report},
    [HVI_PACKET_ENGINE_STOP] = {"engine_stop", &engine_stop},
    [HVI_PACKET_ENGINE_FATE] = {"engine_fate", &engine_fate},
    [HVI_PACKET_ENGINE_HELLO] = {"engine_hello", &engine_hello},
    [HVI_PACKET_TIMELINE_START] = {"timeline_start", &timeline_start},
    [HVI_PACKET_TIMELINE_STOP] = {"timeline_stop", &timeline_stop},
    [HVI_PACKET_TIMELINE_REQUEST] = {"timeline_request", &timeline_request},
    [HVI_PACKET_ENGINE_TIMELINE] = {"engine_timeline", &engine_timeline},
    [HVI_PACKET_PEER_ASK] = {"peer_ask", &peer_ask},
    [HVI_PACKET_PEER_REGION] = {"peer_region", &peer_region},
    [HVI_PACKET_ENGINE_NODE] = {"engine_node", &engine_node},
    [HVI_PACKET_ENGINE_ROSTER] = {"engine_roster", &engine_roster},
    [HVI_PACKET_DEVICE_ADD] = {"device_add", &device_add},
    [HVI_PACKET_FENCE_ADD] = {"fence_add", &fence_add},
    [HVI_PACKET_GPU_WANTED] = {"gpu_wanted", &gpu_wanted},
    [HVI_PACKET_GPU_WORKER] = {"gpu_worker", &gpu_worker},
    [HVI_PACKET_GPU_END] = {"gpu_end", &gpu_end},
    [HVI_PACKET_ENGINE_FENCES] = {"engine_fences", &engine_fences},
    [HVI_PACKET_GPU_RETURN] = {"gpu_return", &gpu_return},
    [HVI_PACKET_ENGINE_REGIONS] = {"engine_regions", &engine_regions},
};

/* ---- admin ----------------------------------------------------------------------------------- */

static const struct wire_table status_request = {.descriptor = &hvd__status_request__descriptor};

static const struct wire_field jobs_request_fields[] = {FLAG(1, hvi_admin_request, of_mesh)};
static const struct wire_table jobs_request = TABLE(jobs_request, jobs_request_fields, 0);

static const struct wire_table nodes_request = {.descriptor = &hvd__nodes_request__descriptor};
static const struct wire_table gpus_request = {.descriptor = &hvd__gpus_request__descriptor};
static const struct wire_table events_request = {.descriptor = &hvd__events_request__descriptor};

/* Whose job of that id is meant. */
#define OWNER FLAG(30, hvi_admin_request, of_owner), U32(31, hvi_admin_request, owner)

static const struct wire_field limits_request_fields[] = {
    FLAG(1, hvi_admin_request, of_gate),
    OWNER,
};
static const struct wire_table limits_request = TABLE(limits_request, limits_request_fields, 0);

static const struct wire_field ranks_request_fields[] = {
    TEXT(1, hvi_admin_request, job, JOB),
    OWNER,
};
static const struct wire_table ranks_request = TABLE(ranks_request, ranks_request_fields, 0);

static const struct wire_field stalls_request_fields[] = {
    TEXT(1, hvi_admin_request, job, JOB_OR_EMPTY),
    U64(2, hvi_admin_request, min_age_ns),
    OWNER,
};
static const struct wire_table stalls_request = TABLE(stalls_request, stalls_request_fields, 0);

static const struct wire_field job_stop_fields[] = {
    TEXT(1, hvi_admin_request, job, JOB),
    TEXT(2, hvi_admin_request, reason, ANY),
    OWNER,
};
static const struct wire_table job_stop = TABLE(job_stop_request, job_stop_fields, 0);

static const struct wire_field process_exited_fields[] = {
    TEXT(1, hvi_admin_request, job, JOB),
    RANK(2, hvi_admin_request, rank),
    PID(3, hvi_admin_request, pid),
    FLAG(4, hvi_admin_request, signaled),
    NUMBER(5, hvi_admin_request, code, 0, 255),
};
static const struct wire_table process_exited = TABLE(process_exited, process_exited_fields, 0);

static const struct wire_field trace_request_fields[] = {
    TEXT(1, hvi_admin_request, job, JOB),
    NUMBER_OR(2, hvi_admin_request, rank, -1, INT32_MAX, -1),
    U32(3, hvi_admin_request, limit),
    U64(4, hvi_admin_request, before),
    OWNER,
};
static const struct wire_table trace_request = TABLE(trace_request, trace_request_fields, 0);

const struct wire_body hvi_wire_admin_bodies[] = {
    [HVI_ADMIN_STATUS] = {"status", &status_request},
    [HVI_ADMIN_JOBS] = {"jobs", &jobs_request},
    [HVI_ADMIN_RANKS] = {"ranks", &ranks_request},
    [HVI_ADMIN_STALLS] = {"stalls", &stalls_request},
    [HVI_ADMIN_JOB_STOP] = {"job_stop", &job_stop},
    [HVI_ADMIN_PROCESS_EXITED] = {"process_exited", &process_exited},
    [HVI_ADMIN_TRACE] = {"trace", &trace_request},
    [HVI_ADMIN_NODES] = {"nodes", &nodes_request},
    [HVI_ADMIN_GPUS] = {"gpus", &gpus_request},
    [HVI_ADMIN_EVENTS] = {"events", &events_request},
    [HVI_ADMIN_LIMITS] = {"limits", &limits_request},
};

static const struct wire_field admin_request_fields[] = {
    U32(1, hvi_admin_request, protocol_version),
    U64(2, hvi_admin_request, request),
};
const struct wire_table hvi_wire_admin_request = TABLE(admin_request, admin_request_fields, 2);
const struct wire_table hvi_wire_admin_request_probe =
    TABLE(admin_request_probe, admin_request_fields, 2);

static const struct wire_field daemon_fields[] = {
    TEXT(1, hvi_daemon_status, version, FILLED),
    PID(2, hvi_daemon_status, pid),
    U32(3, hvi_daemon_status, uid),
    U64(4, hvi_daemon_status, uptime_ns),
    TEXT(5, hvi_daemon_status, runtime_dir, FILLED),
    TEXT(6, hvi_daemon_status, state, FILLED),
    U32(7, hvi_daemon_status, jobs),
    U32(8, hvi_daemon_status, sessions),
    U64(9, hvi_daemon_status, attaches),
    U64(10, hvi_daemon_status, refused),
    U64(11, hvi_daemon_status, ranks_lost),
    U64(12, hvi_daemon_status, log_lost),
    NUMBER(30, hvi_daemon_status, mesh_port, 0, UINT16_MAX),
    TEXT(31, hvi_daemon_status, gpu_program, ANY),
    TEXT(32, hvi_daemon_status, gpu_kernels, ANY),
    TEXT(33, hvi_daemon_status, gpu_library_path, ANY),
    TEXT(34, hvi_daemon_status, gpu_mps, ANY),
};
static const struct wire_table daemon_status = TABLE(status_reply, daemon_fields, 0);

static const struct wire_field admin_reply_fields[] = {
    U32(1, hvi_admin_reply, protocol_version),
    U64(2, hvi_admin_reply, request),
    STATUS(3, hvi_admin_reply, status),
    TEXT(4, hvi_admin_reply, text, ANY),
    PART(5, hvi_admin_reply, daemon, has_daemon, &daemon_status),
    LIST(6, hvi_admin_reply, jobs, job_count, WIRE_ROWS, HVI_WIRE_ROWS_MAX, &job_row),
    LIST(7, hvi_admin_reply, ranks, rank_count, WIRE_ROWS, HVI_WIRE_ROWS_MAX, &rank_row),
    LIST(8, hvi_admin_reply, stalls, stall_count, WIRE_ROWS, HVI_WIRE_STALLS_MAX, &stall_row),
    U64(9, hvi_admin_reply, rows_left_out),
    LIST(10, hvi_admin_reply, traces, trace_count, WIRE_ROWS, HVI_WIRE_TRACES_MAX, &trace_row),
    LIST(30, hvi_admin_reply, nodes, node_count, WIRE_ROWS, HVI_WIRE_ROWS_MAX, &mesh_row),
    LIST(31, hvi_admin_reply, spans, span_count, WIRE_ROWS, HVI_WIRE_ROWS_MAX, &span_row),
    LIST(32, hvi_admin_reply, gpus, gpu_count, WIRE_ROWS, HVI_WIRE_ROWS_MAX, &hvi_wire_gpu_row),
    LIST(33, hvi_admin_reply, events, event_count, WIRE_ROWS, HVI_WIRE_ROWS_MAX, &event_row),
    LIST(34, hvi_admin_reply, limits, limit_count, WIRE_ROWS, HVI_WIRE_ROWS_MAX, &limit_row),
};
const struct wire_table hvi_wire_admin_reply = TABLE(admin_reply, admin_reply_fields, 0);
