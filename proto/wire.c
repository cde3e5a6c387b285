/* SPDX-License-Identifier: Apache-2.0
 * The messages of hvd.proto as plain structs.
 *
 *   bytes --unpack--> protobuf message --wire_get.c--> plain struct      (decode)
 *   plain struct --wire_put.c--> protobuf message --pack--> bytes        (encode)
 *
 * Both directions walk the tables of wire_tables.c and check every value in wire_check.c, so a
 * message that can be encoded is one that decodes. protobuf messages live in a bounded memory
 * (wire_memory.c) for the time of one call.
 *
 * A first message of a foreign protocol version must be answered with both numbers, however
 * little else of it is understood: its version fields are read with the small probe messages when
 * the full schema does not fit, and nothing else of it is looked at. */
#include "proto/wire_internal.h"

#include "base/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hvd.pb-c.h"

#define ADMIN_BYTES_MAX (32u * 1024u * 1024u)

/* Encoders report what would not decode as the caller's mistake. */
static int as_encode_error(int status)
{
    return status == HVI_ERR_PROTOCOL ? HVI_ERR_INVALID : status;
}

/* ---- packets --------------------------------------------------------------------------------- */

static const struct wire_body *packet_body(unsigned kind)
{
    if (kind < HVI_PACKET_ATTACH_REQUEST || kind >= HVI_PACKET_KIND_END)
        return NULL;
    return &hvi_wire_packet_bodies[kind];
}

static int pack_packet(const struct hvi_packet_msg *msg, ProtobufCMessage *body,
                       unsigned char *buffer, size_t size, size_t *length_p)
{
    Hvd__Packet packet = HVD__PACKET__INIT;
    packet.body_case = (Hvd__Packet__BodyCase)msg->kind;
    packet.attach_request = (void *)body; /* every alternative of the union is a message pointer */
    size_t length = protobuf_c_message_get_packed_size(&packet.base);
    if (length > size)
        return HVI_ERR_LIMIT;
    *length_p = protobuf_c_message_pack(&packet.base, buffer);
    return HVI_OK;
}

int hvi_packet_msg_encode(const struct hvi_packet_msg *msg, unsigned char *buffer, size_t size,
                          size_t *length_p)
{
    const struct wire_body *body = packet_body(msg->kind);
    if (!body)
        return HVI_ERR_INVALID;
    struct wire_context context;
    ProtobufCMessage *message;
    hvi_wire_context_init(&context, NULL, 0);
    int status = hvi_wire_put(&context, body->table, &msg->attach_request, &message);
    if (status == HVI_OK)
        status = pack_packet(msg, message, buffer, size, length_p);
    hvi_wire_context_fini(&context);
    return as_encode_error(status);
}

/* Reads the versions of a first message that did not unpack; false when it is not a foreign one.
 * The context keeps the sentence of the unpacking that failed. */
static bool probe_packet(struct wire_context *context, const unsigned char *bytes, size_t length,
                         struct hvi_packet_msg *msg)
{
    int ignored;
    context->text_size = 0;
    Hvd__PacketProbe *probe =
        (void *)hvi_wire_unpack(context, &hvd__packet_probe__descriptor, bytes, length, &ignored);
    if (!probe)
        return false;
    msg->kind = (enum hvi_packet_kind)probe->body_case;
    if (msg->kind == HVI_PACKET_ATTACH_REQUEST) {
        struct hvi_attach_request *request = &msg->attach_request;
        return hvi_wire_get(context, &hvi_wire_attach_request_probe, &probe->attach_request->base,
                            request) == HVI_OK &&
               request->protocol_version != HVI_PROTOCOL_VERSION;
    }
    if (msg->kind == HVI_PACKET_ENGINE_HELLO) {
        struct hvi_engine_hello *hello = &msg->engine_hello;
        return hvi_wire_get(context, &hvi_wire_engine_hello_probe, &probe->engine_hello->base,
                            hello) == HVI_OK &&
               hello->protocol_version != HVI_PROTOCOL_VERSION;
    }
    return false;
}

static int decode_packet(struct wire_context *context, const unsigned char *bytes, size_t length,
                         struct hvi_packet_msg *msg)
{
    if (length > HVI_PACKET_BYTES_MAX)
        return hvi_wire_refuse(context, "packet", "%zu bytes, at most %u", length,
                               HVI_PACKET_BYTES_MAX);
    int error = HVI_OK;
    Hvd__Packet *packet =
        (void *)hvi_wire_unpack(context, &hvd__packet__descriptor, bytes, length, &error);
    if (!packet)
        return probe_packet(context, bytes, length, msg) ? HVI_OK : error;
    const struct wire_body *body = packet_body(packet->body_case);
    if (!body)
        return hvi_wire_refuse(context, "packet", "no body, or one that is not known here");
    msg->kind = (enum hvi_packet_kind)packet->body_case;
    hvi_wire_enter(context, body->name, -1);
    error = hvi_wire_get(context, body->table, &packet->attach_request->base, &msg->attach_request);
    if (error != HVI_OK)
        hvi_wire_release(body->table, &msg->attach_request);
    return error;
}

int hvi_packet_msg_decode(const unsigned char *bytes, size_t length, struct hvi_packet_msg *msg_p,
                          char *text_p, size_t text_size)
{
    struct wire_context context;
    struct hvi_packet_msg msg;
    memset(&msg, 0, sizeof msg);
    hvi_wire_context_init(&context, text_p, text_size);
    int status = decode_packet(&context, bytes, length, &msg);
    if (status == HVI_OK)
        *msg_p = msg;
    hvi_wire_context_fini(&context);
    return status;
}

void hvi_packet_msg_free(struct hvi_packet_msg *msg)
{
    const struct wire_body *body = packet_body(msg->kind);
    if (body)
        hvi_wire_release(body->table, &msg->attach_request);
}

static uint32_t fds_of(const struct hvi_device_memory *memory)
{
    if (memory->kind == HVI_DEVICE_VMM)
        return (uint32_t)memory->chunk_count;
    return memory->kind == HVI_DEVICE_POOL ? 1 : 0;
}

bool hvi_device_memory_has_handles(const struct hvi_device_memory *memory, uint32_t fd_count,
                                   bool more)
{
    size_t fabric = memory->kind == HVI_DEVICE_FABRIC ? memory->chunk_count : 0;
    return fd_count == fds_of(memory) && memory->fabric_bytes == fabric * HVI_WIRE_GPU_HANDLE &&
           (hvi_device_has_chunks(memory->kind) ? memory->chunk_count > 0 : !more);
}

/* ---- admin ----------------------------------------------------------------------------------- */

static const struct wire_body *admin_body(unsigned kind)
{
    if (kind < HVI_ADMIN_STATUS || kind >= HVI_ADMIN_KIND_END)
        return NULL;
    return &hvi_wire_admin_bodies[kind];
}

static int pack_allocated(const ProtobufCMessage *message, unsigned char **bytes_p,
                          size_t *length_p)
{
    size_t length = protobuf_c_message_get_packed_size(message);
    if (length > ADMIN_BYTES_MAX)
        return HVI_ERR_LIMIT;
    unsigned char *bytes = malloc(length ? length : 1);
    if (!bytes)
        return HVI_ERR_NO_MEMORY;
    *length_p = protobuf_c_message_pack(message, bytes);
    *bytes_p = bytes;
    return HVI_OK;
}

static int put_admin_request(struct wire_context *context, const struct hvi_admin_request *request,
                             ProtobufCMessage **message_p)
{
    int status = hvi_wire_put(context, &hvi_wire_admin_request, request, message_p);
    if (status != HVI_OK || request->protocol_version != HVI_PROTOCOL_VERSION)
        return status;
    const struct wire_body *body = admin_body(request->kind);
    if (!body)
        return HVI_ERR_INVALID;
    ProtobufCMessage *part;
    status = hvi_wire_put(context, body->table, request, &part);
    if (status != HVI_OK)
        return status;
    Hvd__AdminRequest *message = (void *)*message_p;
    message->body_case = (Hvd__AdminRequest__BodyCase)request->kind;
    message->status = (void *)part;
    return HVI_OK;
}

int hvi_admin_request_encode(const struct hvi_admin_request *request, unsigned char **bytes_p,
                             size_t *length_p)
{
    struct wire_context context;
    ProtobufCMessage *message;
    hvi_wire_context_init(&context, NULL, 0);
    int status = put_admin_request(&context, request, &message);
    if (status == HVI_OK)
        status = pack_allocated(message, bytes_p, length_p);
    hvi_wire_context_fini(&context);
    return as_encode_error(status);
}

static bool probe_admin_request(struct wire_context *context, const unsigned char *bytes,
                                size_t length, struct hvi_admin_request *request)
{
    int ignored;
    context->text_size = 0;
    ProtobufCMessage *probe =
        hvi_wire_unpack(context, &hvd__admin_request_probe__descriptor, bytes, length, &ignored);
    return probe &&
           hvi_wire_get(context, &hvi_wire_admin_request_probe, probe, request) == HVI_OK &&
           request->protocol_version != HVI_PROTOCOL_VERSION;
}

static int get_admin_body(struct wire_context *context, const Hvd__AdminRequest *message,
                          struct hvi_admin_request *request)
{
    const struct wire_body *body = admin_body(message->body_case);
    if (!body)
        return hvi_wire_refuse(context, "admin_request", "no body, or one that is not known here");
    request->kind = (enum hvi_admin_kind)message->body_case;
    hvi_wire_enter(context, body->name, -1);
    return hvi_wire_get(context, body->table, &message->status->base, request);
}

static int decode_admin_request(struct wire_context *context, const unsigned char *bytes,
                                size_t length, struct hvi_admin_request *request)
{
    if (length > HVI_PACKET_BYTES_MAX)
        return hvi_wire_refuse(context, "admin_request", "%zu bytes, at most %u", length,
                               HVI_PACKET_BYTES_MAX);
    int error = HVI_OK;
    ProtobufCMessage *message =
        hvi_wire_unpack(context, &hvd__admin_request__descriptor, bytes, length, &error);
    if (!message)
        return probe_admin_request(context, bytes, length, request) ? HVI_OK : error;
    error = hvi_wire_get(context, &hvi_wire_admin_request, message, request);
    if (error != HVI_OK || request->protocol_version != HVI_PROTOCOL_VERSION)
        return error;
    return get_admin_body(context, (const void *)message, request);
}

int hvi_admin_request_decode(const unsigned char *bytes, size_t length,
                             struct hvi_admin_request *request_p, char *text_p, size_t text_size)
{
    struct wire_context context;
    struct hvi_admin_request request;
    memset(&request, 0, sizeof request);
    hvi_wire_context_init(&context, text_p, text_size);
    int status = decode_admin_request(&context, bytes, length, &request);
    if (status == HVI_OK)
        *request_p = request;
    hvi_wire_context_fini(&context);
    return status;
}

int hvi_admin_reply_encode(const struct hvi_admin_reply *reply, unsigned char **bytes_p,
                           size_t *length_p)
{
    struct wire_context context;
    ProtobufCMessage *message;
    hvi_wire_context_init(&context, NULL, 0);
    int status = hvi_wire_put(&context, &hvi_wire_admin_reply, reply, &message);
    if (status == HVI_OK)
        status = pack_allocated(message, bytes_p, length_p);
    hvi_wire_context_fini(&context);
    return as_encode_error(status);
}

int hvi_event_encode(struct hvi_event_row *row, unsigned char **bytes_p, size_t *length_p)
{
    const struct hvi_admin_reply reply = {
        .protocol_version = HVI_PROTOCOL_VERSION, .events = row, .event_count = 1};
    return hvi_admin_reply_encode(&reply, bytes_p, length_p);
}

struct hvi_limit_row *hvi_limit_row_add(struct hvi_admin_reply *reply, enum hvi_limit limit,
                                        uint64_t most)
{
    const struct hvi_limit_fact *fact = &hvi_limit_facts[limit];
    if (reply->limit_count == HVI_WIRE_ROWS_MAX) {
        reply->rows_left_out++;
        return NULL;
    }
    struct hvi_limit_row *row = &reply->limits[reply->limit_count++];
    *row = (struct hvi_limit_row){.most = most};
    snprintf(row->limit, sizeof row->limit, "%s", fact->name);
    snprintf(row->of, sizeof row->of, "%s", hvi_limit_of_text(fact->of));
    return row;
}

static int decode_admin_reply(struct wire_context *context, const unsigned char *bytes,
                              size_t length, struct hvi_admin_reply *reply)
{
    if (length > ADMIN_BYTES_MAX)
        return hvi_wire_refuse(context, "admin_reply", "%zu bytes, at most %u", length,
                               ADMIN_BYTES_MAX);
    int error = HVI_OK;
    ProtobufCMessage *message =
        hvi_wire_unpack(context, &hvd__admin_reply__descriptor, bytes, length, &error);
    if (!message)
        return error;
    hvi_wire_enter(context, "admin_reply", -1);
    error = hvi_wire_get(context, &hvi_wire_admin_reply, message, reply);
    if (error != HVI_OK)
        hvi_wire_release(&hvi_wire_admin_reply, reply);
    return error;
}

int hvi_admin_reply_decode(const unsigned char *bytes, size_t length,
                           struct hvi_admin_reply *reply_p, char *text_p, size_t text_size)
{
    struct wire_context context;
    struct hvi_admin_reply reply;
    memset(&reply, 0, sizeof reply);
    hvi_wire_context_init(&context, text_p, text_size);
    int status = decode_admin_reply(&context, bytes, length, &reply);
    if (status == HVI_OK)
        *reply_p = reply;
    hvi_wire_context_fini(&context);
    return status;
}

void hvi_admin_reply_free(struct hvi_admin_reply *reply)
{
    hvi_wire_release(&hvi_wire_admin_reply, reply);
}
