/* SPDX-License-Identifier: Apache-2.0
 * The messages of gate.proto: their tables, and both directions of each. */
#include "proto/gate.h"

#include "base/log.h"
#include "base/status.h"
#include "proto/wire_rows.h"

#include <string.h>

#include "gate.pb-c.h"

/* ---- between hvdd and its gate --------------------------------------------------------------- */

static const struct wire_field gate_start_fields[] = {
    FLAG(1, hvi_gate_start, private_mode),
    U32(2, hvi_gate_start, uid),
    NUMBER(3, hvi_gate_start, log_level, HVI_LOG_ERROR, HVI_LOG_TRACE),
    U64(4, hvi_gate_start, node),
    TEXT(5, hvi_gate_start, name, ANY),
    TEXT(6, hvi_gate_start, mesh_listen, ANY),
    TEXT(7, hvi_gate_start, mesh_join, ANY),
    TEXT(8, hvi_gate_start, mesh_key, ANY),
    TEXT(9, hvi_gate_start, interface, ANY),
    NUMBER(10, hvi_gate_start, port_first, 0, UINT16_MAX),
    NUMBER(11, hvi_gate_start, port_last, 0, UINT16_MAX),
    U64(12, hvi_gate_start, start_timeout_ns),
    U32(13, hvi_gate_start, max_admin),
    U32(14, hvi_gate_start, max_admin_per_user),
    U32(15, hvi_gate_start, admin_rate_per_user),
    TEXT(16, hvi_gate_start, mesh_seeds, ANY),
    FLAG(17, hvi_gate_start, one_job),
};
static const struct wire_table gate_start = TABLE(gate_start, gate_start_fields, 0);

static const struct wire_field gate_ask_fields[] = {
    U64(1, hvi_gate_ask, ticket),
    U32(2, hvi_gate_ask, uid),
    BYTES(3, hvi_gate_ask, request, request_bytes, 1, HVI_GATE_REQUEST_MAX),
};
static const struct wire_table gate_ask = TABLE(gate_ask, gate_ask_fields, 0);

static const struct wire_field gate_reply_fields[] = {
    U64(1, hvi_gate_reply, ticket),
    BYTES(2, hvi_gate_reply, part, part_bytes, 0, HVI_GATE_PART_MAX),
    FLAG(3, hvi_gate_reply, more),
};
static const struct wire_table gate_reply = TABLE(gate_reply, gate_reply_fields, 0);

static const struct wire_field gate_beat_fields[] = {
    U64(1, hvi_gate_beat, number),
};
static const struct wire_table gate_beat = TABLE(gate_beat, gate_beat_fields, 0);

static const struct wire_field gate_state_fields[] = {
    STATUS(1, hvi_gate_state, status),
    TEXT(2, hvi_gate_state, text, ANY),
    NUMBER(3, hvi_gate_state, port, 0, UINT16_MAX),
    FLAG(4, hvi_gate_state, joined),
};
static const struct wire_table gate_state = TABLE(gate_state, gate_state_fields, 0);

static const struct wire_field node_register_fields[] = {
    TEXT(1, hvi_node_register, job, JOB),
    U32(2, hvi_node_register, uid),
    U64(3, hvi_node_register, registration),
    TEXT(4, hvi_node_register, key_digest, ANY),
    BYTES(5, hvi_node_register, node, node_bytes, 1, HVI_MESH_PACKET_MAX),
};
static const struct wire_table node_register = TABLE(node_register, node_register_fields, 0);

static const struct wire_field node_withdraw_fields[] = {
    TEXT(1, hvi_node_withdraw, job, JOB),
    U32(2, hvi_node_withdraw, uid),
    U64(3, hvi_node_withdraw, registration),
    STATUS(4, hvi_node_withdraw, status),
    TEXT(5, hvi_node_withdraw, text, ANY),
    NUMBER_OR(6, hvi_node_withdraw, rank, -1, INT32_MAX, -1),
};
static const struct wire_table node_withdraw = TABLE(node_withdraw, node_withdraw_fields, 0);

static const struct wire_field node_roster_fields[] = {
    TEXT(1, hvi_node_roster, job, JOB),
    U32(2, hvi_node_roster, uid),
    U64(3, hvi_node_roster, registration),
    BYTES(4, hvi_node_roster, roster, roster_bytes, 1, HVI_MESH_PACKET_MAX),
};
static const struct wire_table node_roster = TABLE(node_roster, node_roster_fields, 0);

static const struct wire_field gate_event_fields[] = {
    U32(1, hvi_gate_event, uid),
    BYTES(2, hvi_gate_event, reply, reply_bytes, 1, HVI_GATE_PART_MAX),
};
static const struct wire_table gate_event = TABLE(gate_event, gate_event_fields, 0);

static const struct wire_body gate_bodies[HVI_GATE_KIND_END] = {
    [HVI_GATE_START] = {"start", &gate_start},
    [HVI_GATE_ASK] = {"ask", &gate_ask},
    [HVI_GATE_REPLY] = {"reply", &gate_reply},
    [HVI_GATE_BEAT] = {"beat", &gate_beat},
    [HVI_GATE_STATE] = {"state", &gate_state},
    [HVI_GATE_NODE_REGISTER] = {"node_register", &node_register},
    [HVI_GATE_NODE_WITHDRAW] = {"node_withdraw", &node_withdraw},
    [HVI_GATE_NODE_ROSTER] = {"node_roster", &node_roster},
    [HVI_GATE_EVENT] = {"event", &gate_event},
};

static const struct wire_body *gate_body(unsigned kind)
{
    if (kind < HVI_GATE_START || kind >= HVI_GATE_KIND_END)
        return NULL;
    return &gate_bodies[kind];
}

static int as_encode_error(int status)
{
    return status == HVI_ERR_PROTOCOL ? HVI_ERR_INVALID : status;
}

static int pack(const ProtobufCMessage *message, unsigned char *buffer, size_t size,
                size_t *length_p)
{
    size_t length = protobuf_c_message_get_packed_size(message);

    if (length > size)
        return HVI_ERR_LIMIT;
    *length_p = protobuf_c_message_pack(message, buffer);
    return HVI_OK;
}

int hvi_gate_msg_encode(const struct hvi_gate_msg *msg, unsigned char *buffer, size_t size,
                        size_t *length_p)
{
    const struct wire_body *body = gate_body(msg->kind);
    Hvd__GateMessage message = HVD__GATE_MESSAGE__INIT;
    struct wire_context context;
    ProtobufCMessage *part;
    int status;

    if (body == NULL)
        return HVI_ERR_INVALID;
    hvi_wire_context_init(&context, NULL, 0);
    status = hvi_wire_put(&context, body->table, &msg->start, &part);
    if (status == HVI_OK) {
        message.body_case = (Hvd__GateMessage__BodyCase)msg->kind;
        message.start = (void *)part; /* every alternative of the union is a message pointer */
        status = pack(&message.base, buffer, size, length_p);
    }
    hvi_wire_context_fini(&context);
    return as_encode_error(status);
}

static int get_gate_msg(struct wire_context *context, const unsigned char *bytes, size_t length,
                        struct hvi_gate_msg *msg)
{
    const struct wire_body *body;
    Hvd__GateMessage *message;
    int status = HVI_OK;

    if (length > HVI_PACKET_BYTES_MAX)
        return hvi_wire_refuse(context, "gate_message", "%zu bytes, at most %u", length,
                               HVI_PACKET_BYTES_MAX);
    message =
        (void *)hvi_wire_unpack(context, &hvd__gate_message__descriptor, bytes, length, &status);
    if (message == NULL)
        return status;
    body = gate_body(message->body_case);
    if (body == NULL)
        return hvi_wire_refuse(context, "gate_message", "no body, or one that is not known here");
    msg->kind = (enum hvi_gate_kind)message->body_case;
    hvi_wire_enter(context, body->name, -1);
    status = hvi_wire_get(context, body->table, &message->start->base, &msg->start);
    if (status != HVI_OK)
        hvi_wire_release(body->table, &msg->start);
    return status;
}

int hvi_gate_msg_decode(const unsigned char *bytes, size_t length, struct hvi_gate_msg *msg_p,
                        char *text_p, size_t text_size)
{
    struct wire_context context;
    struct hvi_gate_msg msg;
    int status;

    memset(&msg, 0, sizeof(msg));
    hvi_wire_context_init(&context, text_p, text_size);
    status = get_gate_msg(&context, bytes, length, &msg);
    if (status == HVI_OK)
        *msg_p = msg;
    hvi_wire_context_fini(&context);
    return status;
}

void hvi_gate_msg_free(struct hvi_gate_msg *msg)
{
    const struct wire_body *body = gate_body(msg->kind);

    if (body != NULL)
        hvi_wire_release(body->table, &msg->start);
}

/* ---- between the gates of two nodes ---------------------------------------------------------- */

static const struct wire_field mesh_hello_fields[] = {
    TEXT(1, hvi_mesh_hello, name, FILLED),
    TEXT(2, hvi_mesh_hello, announced, ANY),
    TEXT(3, hvi_mesh_hello, dialed, ANY),
    TEXT(4, hvi_mesh_hello, version, ANY),
};
static const struct wire_table mesh_hello = TABLE(mesh_hello, mesh_hello_fields, 0);

static const struct wire_field mesh_question_fields[] = {
    U64(1, hvi_mesh_question, ticket),
    U64(2, hvi_mesh_question, request),
    U32(3, hvi_mesh_question, what),
};
static const struct wire_table mesh_question = TABLE(mesh_question, mesh_question_fields, 0);

static const struct wire_field mesh_reply_fields[] = {
    U64(1, hvi_mesh_reply, ticket),
    BYTES(2, hvi_mesh_reply, part, part_bytes, 0, HVI_GATE_PART_MAX),
    FLAG(3, hvi_mesh_reply, more),
};
static const struct wire_table mesh_reply = TABLE(mesh_reply, mesh_reply_fields, 0);

static const struct wire_field mesh_host_fields[] = {
    U64(1, hvi_mesh_host, node),
    TEXT(2, hvi_mesh_host, name, FILLED),
    TEXT(3, hvi_mesh_host, text, ANY),
    FLAG(4, hvi_mesh_host, gone),
};
static const struct wire_table mesh_host = TABLE(mesh_host, mesh_host_fields, 0);

static const struct wire_field mesh_hosts_fields[] = {
    LIST(1, hvi_mesh_hosts, hosts, host_count, WIRE_ROWS, HVI_MESH_HOSTS_MAX, &mesh_host),
    FLAG(2, hvi_mesh_hosts, anew),
};
static const struct wire_table mesh_hosts = TABLE(mesh_hosts, mesh_hosts_fields, 0);

static const struct wire_body mesh_bodies[HVI_MESH_KIND_END] = {
    [HVI_MESH_HELLO] = {"hello", &mesh_hello},
    [HVI_MESH_NODE_REGISTER] = {"node_register", &node_register},
    [HVI_MESH_NODE_WITHDRAW] = {"node_withdraw", &node_withdraw},
    [HVI_MESH_NODE_ROSTER] = {"node_roster", &node_roster},
    [HVI_MESH_QUESTION] = {"question", &mesh_question},
    [HVI_MESH_REPLY] = {"reply", &mesh_reply},
    [HVI_MESH_HOSTS] = {"hosts", &mesh_hosts},
};

static const struct wire_field mesh_message_fields[] = {
    U32(1, hvi_mesh_msg, oldest),        U32(2, hvi_mesh_msg, newest),
    U64(3, hvi_mesh_msg, node),          U64(4, hvi_mesh_msg, talk),
    U64(5, hvi_mesh_msg, peer_talk),     U64(6, hvi_mesh_msg, number),
    U64(7, hvi_mesh_msg, heard),         STATUS(8, hvi_mesh_msg, status),
    TEXT(9, hvi_mesh_msg, text, ANY),    U64(10, hvi_mesh_msg, hvdd_silent_ns),
    FLAG(11, hvi_mesh_msg, others_wait), U64(12, hvi_mesh_msg, company),
};
static const struct wire_table mesh_message = TABLE(mesh_message, mesh_message_fields, 0);

static const struct wire_body *mesh_body(unsigned kind)
{
    if (kind < HVI_MESH_HELLO || kind >= HVI_MESH_KIND_END)
        return NULL;
    return &mesh_bodies[kind];
}

static int put_mesh_msg(struct wire_context *context, const struct hvi_mesh_msg *msg,
                        Hvd__MeshMessage **message_p)
{
    const struct wire_body *body = mesh_body(msg->kind);
    ProtobufCMessage *message, *part;
    int status = hvi_wire_put(context, &mesh_message, msg, &message);

    if (status != HVI_OK)
        return status;
    *message_p = (void *)message;
    if (msg->kind == HVI_MESH_NONE)
        return HVI_OK;
    if (body == NULL)
        return HVI_ERR_INVALID;
    status = hvi_wire_put(context, body->table, &msg->hello, &part);
    if (status != HVI_OK)
        return status;
    (*message_p)->body_case = (Hvd__MeshMessage__BodyCase)msg->kind;
    (*message_p)->hello = (void *)part;
    return HVI_OK;
}

int hvi_mesh_msg_encode(const struct hvi_mesh_msg *msg, unsigned char *buffer, size_t size,
                        size_t *length_p)
{
    struct wire_context context;
    Hvd__MeshMessage *message;
    int status;

    hvi_wire_context_init(&context, NULL, 0);
    status = put_mesh_msg(&context, msg, &message);
    if (status == HVI_OK)
        status = pack(&message->base, buffer, size, length_p);
    hvi_wire_context_fini(&context);
    return as_encode_error(status);
}

static int get_mesh_msg(struct wire_context *context, const unsigned char *bytes, size_t length,
                        struct hvi_mesh_msg *msg)
{
    const struct wire_body *body;
    Hvd__MeshMessage *message;
    int status = HVI_OK;

    if (length > HVI_MESH_BYTES_MAX)
        return hvi_wire_refuse(context, "mesh_message", "%zu bytes, at most %u", length,
                               HVI_MESH_BYTES_MAX);
    message =
        (void *)hvi_wire_unpack(context, &hvd__mesh_message__descriptor, bytes, length, &status);
    if (message == NULL)
        return status;
    status = hvi_wire_get(context, &mesh_message, &message->base, msg);
    body = mesh_body(message->body_case);
    if (status != HVI_OK || body == NULL)
        return status; /* of a body that is not known here only the rest is read */
    msg->kind = (enum hvi_mesh_kind)message->body_case;
    hvi_wire_enter(context, body->name, -1);
    status = hvi_wire_get(context, body->table, &message->hello->base, &msg->hello);
    if (status != HVI_OK)
        hvi_wire_release(body->table, &msg->hello);
    return status;
}

int hvi_mesh_msg_decode(const unsigned char *bytes, size_t length, struct hvi_mesh_msg *msg_p,
                        char *text_p, size_t text_size)
{
    struct wire_context context;
    struct hvi_mesh_msg msg;
    int status;

    memset(&msg, 0, sizeof(msg));
    hvi_wire_context_init(&context, text_p, text_size);
    status = get_mesh_msg(&context, bytes, length, &msg);
    if (status == HVI_OK)
        *msg_p = msg;
    hvi_wire_context_fini(&context);
    return status;
}

void hvi_mesh_msg_free(struct hvi_mesh_msg *msg)
{
    const struct wire_body *body = mesh_body(msg->kind);

    if (body != NULL)
        hvi_wire_release(body->table, &msg->hello);
}
