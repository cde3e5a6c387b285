/* SPDX-License-Identifier: Apache-2.0
 * The messages of gpu.proto: their tables, and both directions of each. */
#include "proto/gpu.h"

#include "base/log.h"
#include "base/status.h"
#include "proto/wire_rows.h"

#include <string.h>

#include "gpu.pb-c.h"

/* Ids of imports, pages and communicators: 0 means none. */
#define ID(n, s, m) NUMBER(n, s, m, 1, UINT32_MAX)

static const struct wire_field start_fields[] = {
    U32(1, hvi_gpu_start, protocol_version),
    TEXT(2, hvi_gpu_start, job, JOB),
    U32(3, hvi_gpu_start, uid),
    FIXED(4, hvi_gpu_start, uuid),
    U64(5, hvi_gpu_start, instance),
    TEXT(6, hvi_gpu_start, attach_path, FILLED),
    NUMBER_OR(7, hvi_gpu_start, log_level, HVI_LOG_ERROR, HVI_LOG_TRACE, HVI_LOG_INFO),
    LIST(8, hvi_gpu_start, settings, setting_count, WIRE_ROWS, HVI_WIRE_SETTINGS_MAX,
         &hvi_wire_nccl_setting),
    TEXT(9, hvi_gpu_start, kernels, ANY),
    U64(10, hvi_gpu_start, call_ns),
    U64(11, hvi_gpu_start, comm_ns),
    U64(12, hvi_gpu_start, import_bytes_max),
    TEXT(13, hvi_gpu_start, library_path, ANY),
};
static const struct wire_table start = TABLE(gpu_start, start_fields, 1);

static const struct wire_field beat_fields[] = {
    U64(1, hvi_gpu_beat, number),
};
static const struct wire_table beat = TABLE(gpu_beat, beat_fields, 0);

static const struct wire_field engine_fields[] = {
    U64(1, hvi_gpu_engine, generation),
    PID(2, hvi_gpu_engine, engine_pid),
    LIST(3, hvi_gpu_engine, instances, instance_count, WIRE_LONGS, HVI_GPU_COMM_RANKS_MAX, NULL),
};
static const struct wire_table engine = TABLE(gpu_engine, engine_fields, 0);

static const struct wire_field stop_fields[] = {
    TEXT(1, hvi_gpu_stop, reason, ANY),
};
static const struct wire_table stop = TABLE(gpu_stop, stop_fields, 0);

static const struct wire_field state_fields[] = {
    NUMBER(1, hvi_gpu_state, state, HVI_GPU_UP, HVI_GPU_STARTING),
    TEXT(2, hvi_gpu_state, text, ANY),
    PART(3, hvi_gpu_state, row, has_row, &hvi_wire_gpu_row),
};
static const struct wire_table state = TABLE(gpu_state, state_fields, 0);

static const struct wire_field hello_fields[] = {
    U32(1, hvi_gpu_hello, abi_version),  U64(2, hvi_gpu_hello, instance),
    TEXT(3, hvi_gpu_hello, name, ANY),   TEXT(4, hvi_gpu_hello, uuid, FILLED),
    U32(5, hvi_gpu_hello, nccl_version), TEXT(6, hvi_gpu_hello, nccl_text, ANY),
    U64(7, hvi_gpu_hello, comm_ns),      FLAG(8, hvi_gpu_hello, registers),
    FLAG(9, hvi_gpu_hello, fabric),
};
static const struct wire_table hello = TABLE(gpu_hello, hello_fields, 0);

static const struct wire_field welcome_fields[] = {
    U64(1, hvi_gpu_welcome, generation),
};
static const struct wire_table welcome = TABLE(gpu_welcome, welcome_fields, 0);

static const struct wire_field import_fields[] = {
    U64(1, hvi_gpu_import, request),
    ID(2, hvi_gpu_import, import),
    WHOLE(3, hvi_gpu_import, memory, &hvi_wire_device_memory),
    PID(4, hvi_gpu_import, pid),
    U64(5, hvi_gpu_import, process_start),
    FLAG(6, hvi_gpu_import, more),
};
static const struct wire_table import = TABLE(gpu_import, import_fields, 0);

static const struct wire_field release_fields[] = {
    U64(1, hvi_gpu_release, request),
    ID(2, hvi_gpu_release, import),
};
static const struct wire_table release = TABLE(gpu_release, release_fields, 0);

static const struct wire_field page_fields[] = {
    U64(1, hvi_gpu_page, request),
    ID(2, hvi_gpu_page, page),
};
static const struct wire_table page = TABLE(gpu_page, page_fields, 0);

static const struct wire_field session_end_fields[] = {
    ID(1, hvi_gpu_session_end, page),
    FLAG(2, hvi_gpu_session_end, process_over),
};
static const struct wire_table session_end = TABLE(gpu_session_end, session_end_fields, 0);

static const struct wire_field ack_fields[] = {
    U64(1, hvi_gpu_ack, request),
    STATUS(2, hvi_gpu_ack, status),
    TEXT(3, hvi_gpu_ack, text, ANY),
};
static const struct wire_table ack = TABLE(gpu_ack, ack_fields, 0);

static const struct wire_field comm_id_fields[] = {
    U64(1, hvi_gpu_comm_id, request),
    FIXED(2, hvi_gpu_comm_id, id),
    TEXT(3, hvi_gpu_comm_id, text, ANY),
    FLAG(4, hvi_gpu_comm_id, check),
    LIST(5, hvi_gpu_comm_id, instances, instance_count, WIRE_LONGS, HVI_GPU_COMM_RANKS_MAX, NULL),
    FLAG(6, hvi_gpu_comm_id, fresh),
    STATUS(7, hvi_gpu_comm_id, status),
    FLAG(8, hvi_gpu_comm_id, registered),
};
static const struct wire_table comm_id = TABLE(gpu_comm_id, comm_id_fields, 0);

static const struct wire_field comm_join_fields[] = {
    U64(1, hvi_gpu_comm_join, request),
    ID(2, hvi_gpu_comm_join, comm),
    FIXED(3, hvi_gpu_comm_join, id),
    NUMBER(4, hvi_gpu_comm_join, rank, 0, HVI_GPU_COMM_RANKS_MAX - 1),
    LIST(5, hvi_gpu_comm_join, instances, instance_count, WIRE_LONGS, HVI_GPU_COMM_RANKS_MAX, NULL),
    FLAG(6, hvi_gpu_comm_join, fresh),
};
static const struct wire_table comm_join = TABLE(gpu_comm_join, comm_join_fields, 0);

static const struct wire_field comm_drop_fields[] = {
    ID(1, hvi_gpu_comm_drop, comm),
    FLAG(2, hvi_gpu_comm_drop, abort),
};
static const struct wire_table comm_drop = TABLE(gpu_comm_drop, comm_drop_fields, 0);

static const struct wire_field job_fields[] = {
    TEXT(1, hvi_gpu_job, job, JOB),
    U64(2, hvi_gpu_job, instance),
};
static const struct wire_table job = TABLE(gpu_job, job_fields, 0);

static const struct wire_field register_fields[] = {
    U64(1, hvi_gpu_register, request),
    ID(2, hvi_gpu_register, comm),
    ID(3, hvi_gpu_register, import),
};
static const struct wire_table registering = TABLE(gpu_register, register_fields, 0);

static const struct wire_body bodies[HVI_GPU_KIND_END] = {
    [HVI_GPU_START] = {"start", &start},
    [HVI_GPU_BEAT] = {"beat", &beat},
    [HVI_GPU_ENGINE] = {"engine", &engine},
    [HVI_GPU_STOP] = {"stop", &stop},
    [HVI_GPU_STATE] = {"state", &state},
    [HVI_GPU_HELLO] = {"hello", &hello},
    [HVI_GPU_WELCOME] = {"welcome", &welcome},
    [HVI_GPU_IMPORT] = {"import", &import},
    [HVI_GPU_RELEASE] = {"release", &release},
    [HVI_GPU_PAGE] = {"page", &page},
    [HVI_GPU_SESSION_END] = {"session_end", &session_end},
    [HVI_GPU_ACK] = {"ack", &ack},
    [HVI_GPU_COMM_ID] = {"comm_id", &comm_id},
    [HVI_GPU_COMM_JOIN] = {"comm_join", &comm_join},
    [HVI_GPU_COMM_DROP] = {"comm_drop", &comm_drop},
    [HVI_GPU_JOB] = {"job", &job},
    [HVI_GPU_REGISTER] = {"registering", &registering},
};

static const struct wire_body *body_of(unsigned kind)
{
    if (kind < HVI_GPU_START || kind >= HVI_GPU_KIND_END)
        return NULL;
    return &bodies[kind];
}

static int pack(const struct hvi_gpu_msg *msg, ProtobufCMessage *part, unsigned char *buffer,
                size_t size, size_t *length_p)
{
    Hvd__GpuPacket packet = HVD__GPU_PACKET__INIT;

    packet.body_case = (Hvd__GpuPacket__BodyCase)msg->kind;
    packet.start = (void *)part; /* every alternative of the union is a message pointer */
    size_t length = protobuf_c_message_get_packed_size(&packet.base);
    if (length > size)
        return HVI_ERR_LIMIT;
    *length_p = protobuf_c_message_pack(&packet.base, buffer);
    return HVI_OK;
}

int hvi_gpu_msg_encode(const struct hvi_gpu_msg *msg, unsigned char *buffer, size_t size,
                       size_t *length_p)
{
    const struct wire_body *body = body_of(msg->kind);
    struct wire_context context;
    ProtobufCMessage *part;

    if (body == NULL)
        return HVI_ERR_INVALID;
    hvi_wire_context_init(&context, NULL, 0);
    int status = hvi_wire_put(&context, body->table, &msg->start, &part);
    if (status == HVI_OK)
        status = pack(msg, part, buffer, size, length_p);
    hvi_wire_context_fini(&context);
    return status == HVI_ERR_PROTOCOL ? HVI_ERR_INVALID : status;
}

static int get(struct wire_context *context, const unsigned char *bytes, size_t length,
               struct hvi_gpu_msg *msg)
{
    int status = HVI_OK;

    if (length > HVI_PACKET_BYTES_MAX)
        return hvi_wire_refuse(context, "gpu_packet", "%zu bytes, at most %u", length,
                               HVI_PACKET_BYTES_MAX);
    const Hvd__GpuPacket *packet =
        (void *)hvi_wire_unpack(context, &hvd__gpu_packet__descriptor, bytes, length, &status);
    if (packet == NULL)
        return status;
    const struct wire_body *body = body_of(packet->body_case);
    if (body == NULL)
        return hvi_wire_refuse(context, "gpu_packet", "no body, or one that is not known here");
    msg->kind = (enum hvi_gpu_kind)packet->body_case;
    hvi_wire_enter(context, body->name, -1);
    status = hvi_wire_get(context, body->table, &packet->start->base, &msg->start);
    if (status != HVI_OK)
        hvi_wire_release(body->table, &msg->start);
    return status;
}

int hvi_gpu_msg_decode(const unsigned char *bytes, size_t length, struct hvi_gpu_msg *msg_p,
                       char *text_p, size_t text_size)
{
    struct wire_context context;
    struct hvi_gpu_msg msg;

    memset(&msg, 0, sizeof(msg));
    hvi_wire_context_init(&context, text_p, text_size);
    int status = get(&context, bytes, length, &msg);
    if (status == HVI_OK)
        *msg_p = msg;
    hvi_wire_context_fini(&context);
    return status;
}

void hvi_gpu_msg_free(struct hvi_gpu_msg *msg)
{
    const struct wire_body *body = body_of(msg->kind);

    if (body != NULL)
        hvi_wire_release(body->table, &msg->start);
}
