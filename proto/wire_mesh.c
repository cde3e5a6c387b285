/* SPDX-License-Identifier: Apache-2.0
 * Every message of mesh.proto as a table, as in wire_tables.c. What depends on the job (which node
 * has which ranks, how many members a set has) is for the receiver to check. */
#include "proto/mesh.h"
#include "proto/wire_rows.h"

#include "base/status.h"

#include <stdlib.h>
#include <string.h>

#include "mesh.pb-c.h"

#define RANK_OR_NONE(n, s, m) NUMBER_OR(n, s, m, -1, HVI_MESH_RANKS_MAX - 1, -1)
#define OUTCOME(n, s, m)      NUMBER(n, s, m, STATUS_LEAST, 0)
#define NODE(n, s, m)         NUMBER(n, s, m, 0, HVI_MESH_NODES_MAX - 1)
#define WHAT(n, s, m)         NUMBER(n, s, m, HVI_MESH_BROUGHT, HVI_MESH_RESUMES)

#define ROWS_MOST (64u * HVI_MESH_RANKS_MAX) /* alltoall: a row for each pair, as far as they fit */

static const struct wire_field name_fields[] = {
    BYTES(1, hvi_mesh_name, name, name_bytes, 0, HVI_NAME_MAX),
    U32(2, hvi_mesh_name, kind),
    U64(3, hvi_mesh_name, number),
};
static const struct wire_table name_table = TABLE(mesh_name, name_fields, 0);

static const struct wire_field said_fields[] = {
    U32(1, hvi_mesh_said, kind),
    U32(2, hvi_mesh_said, dtype),
    U32(3, hvi_mesh_said, reduce_op),
    NUMBER(4, hvi_mesh_said, root, INT32_MIN, INT32_MAX),
    U64(5, hvi_mesh_said, prescale),
    U64(6, hvi_mesh_said, postscale),
    LIST(7, hvi_mesh_said, dims, ndim, WIRE_LONGS, HVI_DIMS_MAX, NULL),
    U32(8, hvi_mesh_said, group_size),
    U32(9, hvi_mesh_said, group_index),
    PART(10, hvi_mesh_said, leader, has_leader, &name_table),
    LIST(11, hvi_mesh_said, integers, integer_count, WIRE_LONGS, HVI_MESH_RANKS_MAX, NULL),
    LIST(12, hvi_mesh_said, places, place_count, WIRE_INTS, HVI_RANKS_MAX, NULL),
    LIST(13, hvi_mesh_said, instances, instance_count, WIRE_LONGS, HVI_RANKS_MAX, NULL),
    U32(15, hvi_mesh_said, memory),
};
static const struct wire_table said_table = TABLE(mesh_said, said_fields, 0);

static const struct wire_field pair_fields[] = {
    NUMBER(1, hvi_mesh_pair, from, 0, HVI_MESH_RANKS_MAX - 1),
    NUMBER(2, hvi_mesh_pair, to, 0, HVI_MESH_RANKS_MAX - 1),
    U64(3, hvi_mesh_pair, id),
};
static const struct wire_table pair_table = TABLE(mesh_pair, pair_fields, 0);

static const struct wire_field report_fields[] = {
    WHAT(1, hvi_mesh_report, what),
    U64(2, hvi_mesh_report, seen),
    U32(3, hvi_mesh_report, set),
    U64(4, hvi_mesh_report, serial),
    U32(5, hvi_mesh_report, kind),
    PART(6, hvi_mesh_report, tensor, has_tensor, &name_table),
    LIST(7, hvi_mesh_report, said, said_count, WIRE_ROWS, HVI_RANKS_MAX, &said_table),
    U64(8, hvi_mesh_report, room),
    FLAG(9, hvi_mesh_report, more),
    RANK_OR_NONE(10, hvi_mesh_report, last),
    OUTCOME(11, hvi_mesh_report, status),
    RANK_OR_NONE(12, hvi_mesh_report, culprit),
    TEXT(13, hvi_mesh_report, text, ANY),
    PART(48, hvi_mesh_report, pair, has_pair, &pair_table),
    U64(49, hvi_mesh_report, id),
    U64(32, hvi_mesh_report, sequence),
};
static const struct wire_table report_table = TABLE(mesh_report, report_fields, 0);

static const struct wire_field verdict_fields[] = {
    WHAT(1, hvi_mesh_verdict, what),
    U64(2, hvi_mesh_verdict, number),
    U64(3, hvi_mesh_verdict, sequence),
    U32(4, hvi_mesh_verdict, set),
    U64(5, hvi_mesh_verdict, serial),
    U32(6, hvi_mesh_verdict, kind),
    PART(7, hvi_mesh_verdict, tensor, has_tensor, &name_table),
    LIST(8, hvi_mesh_verdict, joined, joined_count, WIRE_INTS, HVI_MESH_RANKS_MAX, NULL),
    LIST(9, hvi_mesh_verdict, rows, row_count, WIRE_LONGS, ROWS_MOST, NULL),
    RANK_OR_NONE(10, hvi_mesh_verdict, last),
    OUTCOME(11, hvi_mesh_verdict, status),
    RANK_OR_NONE(12, hvi_mesh_verdict, culprit),
    TEXT(13, hvi_mesh_verdict, text, ANY),
    PART(48, hvi_mesh_verdict, pair, has_pair, &pair_table),
    U64(49, hvi_mesh_verdict, id),
    PART(50, hvi_mesh_verdict, said, has_said, &said_table),
    U32(51, hvi_mesh_verdict, new_set),
    U64(52, hvi_mesh_verdict, new_serial),
    LIST(53, hvi_mesh_verdict, instances, instance_count, WIRE_LONGS, HVI_MESH_RANKS_MAX, NULL),
    U64(32, hvi_mesh_verdict, least),
    U32(33, hvi_mesh_verdict, count),
};
static const struct wire_table verdict_table = TABLE(mesh_verdict, verdict_fields, 0);

static const struct wire_field broken_fields[] = {
    OUTCOME(1, hvi_mesh_broken, status),
    RANK_OR_NONE(2, hvi_mesh_broken, culprit),
    TEXT(3, hvi_mesh_broken, text, ANY),
};
static const struct wire_table broken_table = TABLE(mesh_broken, broken_fields, 0);

static const struct wire_field ask_fields[] = {
    U64(1, hvi_mesh_ask, number),
    BYTES(2, hvi_mesh_ask, query, query_bytes, 0, HVI_MESH_PART_MAX),
};
static const struct wire_table ask_table = TABLE(mesh_ask, ask_fields, 0);

static const struct wire_field answer_fields[] = {
    U64(1, hvi_mesh_answer, number),
    U64(2, hvi_mesh_answer, heard_ns),
    U64(3, hvi_mesh_answer, said_ns),
    BYTES(4, hvi_mesh_answer, report, report_bytes, 0, HVI_MESH_PART_MAX),
};
static const struct wire_table answer_table = TABLE(mesh_answer, answer_fields, 0);

/* A newer node may know names that this one does not. */
static const struct wire_field gpu_setting_fields[] = {
    TEXT(1, hvi_setting, name, FILLED),
    TEXT(2, hvi_setting, value, ANY),
};
static const struct wire_table gpu_setting = TABLE(setting, gpu_setting_fields, 0);

static const struct wire_field gpu_fields[] = {
    NUMBER(1, hvi_mesh_gpu, what, HVI_MESH_GPU_READY, HVI_MESH_GPU_STARTED),
    LIST(2, hvi_mesh_gpu, instances, instance_count, WIRE_LONGS, HVI_MESH_GPUS_MAX, NULL),
    FIXED(3, hvi_mesh_gpu, id),
    U32(4, hvi_mesh_gpu, nccl_version),
    OUTCOME(5, hvi_mesh_gpu, status),
    TEXT(6, hvi_mesh_gpu, text, ANY),
    U64(7, hvi_mesh_gpu, sequence),
    LIST(8, hvi_mesh_gpu, settings, setting_count, WIRE_ROWS, HVI_WIRE_SETTINGS_MAX, &gpu_setting),
    FLAG(9, hvi_mesh_gpu, says_settings),
};
static const struct wire_table gpu_table = TABLE(mesh_gpu, gpu_fields, 0);

static const struct wire_field packet_fields[] = {
    NODE(1, hvi_mesh_packet, from),
    NODE(2, hvi_mesh_packet, to),
    FLAG(6, hvi_mesh_packet, all),
    FLAG(7, hvi_mesh_packet, below),
    PART(3, hvi_mesh_packet, report, has_report, &report_table),
    PART(4, hvi_mesh_packet, verdict, has_verdict, &verdict_table),
    PART(5, hvi_mesh_packet, broken, has_broken, &broken_table),
    PART(64, hvi_mesh_packet, ask, has_ask, &ask_table),
    PART(65, hvi_mesh_packet, answer, has_answer, &answer_table),
    PART(66, hvi_mesh_packet, gpu, has_gpu, &gpu_table),
};
static const struct wire_table packet_table = TABLE(mesh_packet, packet_fields, 0);

static int bodies(const struct hvi_mesh_packet *packet)
{
    return packet->has_report + packet->has_verdict + packet->has_broken + packet->has_ask +
           packet->has_answer + packet->has_gpu;
}

static bool is_whole(const struct hvi_mesh_packet *packet)
{
    return bodies(packet) == 1 && packet->report.has_tensor == packet->has_report &&
           packet->verdict.has_tensor == packet->has_verdict;
}

static int pack(const ProtobufCMessage *message, unsigned char **bytes_p, size_t *length_p)
{
    size_t length = protobuf_c_message_get_packed_size(message);

    if (length > HVI_MESH_BYTES_MAX)
        return HVI_ERR_LIMIT;
    unsigned char *bytes = malloc(length ? length : 1);
    if (!bytes)
        return HVI_ERR_NO_MEMORY;
    *length_p = protobuf_c_message_pack(message, bytes);
    *bytes_p = bytes;
    return HVI_OK;
}

int hvi_mesh_encode(const struct hvi_mesh_packet *packet, unsigned char **bytes_p, size_t *length_p)
{
    struct wire_context context;
    ProtobufCMessage *message;

    if (!is_whole(packet))
        return HVI_ERR_INVALID;
    hvi_wire_context_init(&context, NULL, 0);
    int status = hvi_wire_put(&context, &packet_table, packet, &message);
    if (status == HVI_OK)
        status = pack(message, bytes_p, length_p);
    hvi_wire_context_fini(&context);
    return status == HVI_ERR_PROTOCOL ? HVI_ERR_INVALID : status;
}

static int decode(struct wire_context *context, const unsigned char *bytes, size_t length,
                  struct hvi_mesh_packet *packet)
{
    int status = HVI_OK;

    if (length > HVI_MESH_BYTES_MAX)
        return hvi_wire_refuse(context, "mesh_packet", "%zu bytes, at most %u", length,
                               HVI_MESH_BYTES_MAX);
    const ProtobufCMessage *message =
        hvi_wire_unpack(context, packet_table.descriptor, bytes, length, &status);
    if (!message)
        return status;
    status = hvi_wire_get(context, &packet_table, message, packet);
    if (status == HVI_OK && bodies(packet) != 1)
        status =
            hvi_wire_refuse(context, "mesh_packet", "%d bodies instead of one", bodies(packet));
    if (status != HVI_OK)
        hvi_mesh_free(packet);
    return status;
}

int hvi_mesh_decode(const unsigned char *bytes, size_t length, struct hvi_mesh_packet *packet_p,
                    char *text_p, size_t text_size)
{
    struct wire_context context;

    memset(packet_p, 0, sizeof *packet_p);
    hvi_wire_context_init(&context, text_p, text_size);
    int status = decode(&context, bytes, length, packet_p);
    hvi_wire_context_fini(&context);
    return status;
}

void hvi_mesh_free(struct hvi_mesh_packet *packet)
{
    hvi_wire_release(&packet_table, packet);
}
