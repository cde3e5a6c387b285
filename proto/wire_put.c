/* SPDX-License-Identifier: Apache-2.0
 * plain struct -> protobuf: the mirror of wire_get.c. The tree of protobuf messages lives in the
 * context's memory and points into the plain struct; it is packed before the caller returns. */
#include "proto/wire_internal.h"

#include "base/assert.h"
#include "base/status.h"

#include <string.h>

static uint64_t load(const struct wire_field *field, const void *plain_at)
{
    switch ((enum wire_kind)field->kind) {
    case WIRE_I32:
        return (uint64_t)(int64_t) * (const int32_t *)plain_at;
    case WIRE_U32:
        return *(const uint32_t *)plain_at;
    case WIRE_BOOL:
        return *(const bool *)plain_at;
    default:
        HVI_ASSERT(field->kind == WIRE_U64);
        return *(const uint64_t *)plain_at;
    }
}

static int put_number(struct wire_context *context, const struct wire_field *field,
                      const ProtobufCFieldDescriptor *descriptor, const void *plain_at, char *base)
{
    uint64_t value = load(field, plain_at);
    int status = hvi_wire_check_number(context, descriptor->name, field, value);
    if (status != HVI_OK)
        return status;
    if (descriptor->label == PROTOBUF_C_LABEL_OPTIONAL) {
        if (value == (uint64_t)field->absent)
            return HVI_OK;
        *(protobuf_c_boolean *)(void *)(base + descriptor->quantifier_offset) = 1;
    }
    void *at = base + descriptor->offset;
    if (descriptor->type == PROTOBUF_C_TYPE_UINT64)
        *(uint64_t *)at = value;
    else if (descriptor->type == PROTOBUF_C_TYPE_BOOL)
        *(protobuf_c_boolean *)at = value != 0;
    else
        *(uint32_t *)at = (uint32_t)value;
    return HVI_OK;
}

static int put_text(struct wire_context *context, const struct wire_field *field,
                    const ProtobufCFieldDescriptor *descriptor, const char *text, char *base)
{
    size_t bytes = strnlen(text, field->room);
    int status = hvi_wire_check_text(context, descriptor->name, field, text, bytes);
    if (status != HVI_OK)
        return status;
    if (bytes > 0 || descriptor->label == PROTOBUF_C_LABEL_REQUIRED)
        *(const char **)(void *)(base + descriptor->offset) = text;
    return HVI_OK;
}

/* The pointer and count of a list; a list that claims rows must have them. */
static int load_list(struct wire_context *context, const struct wire_field *field,
                     const ProtobufCFieldDescriptor *descriptor, const void *plain,
                     const void **list_p, size_t *count_p)
{
    const void *list;
    memcpy(&list, (const char *)plain + field->offset, sizeof list);
    size_t count = *(const size_t *)(const void *)((const char *)plain + field->count_offset);
    int status = hvi_wire_check_count(context, descriptor->name, field, count);
    if (status != HVI_OK)
        return status;
    if (count > 0 && !list)
        return hvi_wire_refuse(context, descriptor->name, "%zu rows at NULL", count);
    *list_p = list;
    *count_p = count;
    return HVI_OK;
}

/* Optional ones that are none are left out. */
static int put_bytes(struct wire_context *context, const struct wire_field *field,
                     const ProtobufCFieldDescriptor *descriptor, const void *plain, char *base)
{
    const void *list = NULL;
    size_t count = 0;
    int status = load_list(context, field, descriptor, plain, &list, &count);
    if (status != HVI_OK)
        return status;
    if (descriptor->label == PROTOBUF_C_LABEL_OPTIONAL) {
        if (count == 0)
            return HVI_OK;
        *(protobuf_c_boolean *)(void *)(base + descriptor->quantifier_offset) = 1;
    }
    ProtobufCBinaryData *data = (void *)(base + descriptor->offset);
    data->len = count;
    memcpy(&data->data, &list, sizeof list);
    return HVI_OK;
}

/* An optional one that is all zeros is left out. */
static int put_fixed(const struct wire_field *field, const ProtobufCFieldDescriptor *descriptor,
                     const unsigned char *bytes, char *base)
{
    ProtobufCBinaryData *data = (void *)(base + descriptor->offset);
    if (descriptor->label == PROTOBUF_C_LABEL_OPTIONAL) {
        if (bytes[0] == 0 && memcmp(bytes, bytes + 1, field->room - 1) == 0)
            return HVI_OK;
        *(protobuf_c_boolean *)(void *)(base + descriptor->quantifier_offset) = 1;
    }
    data->len = field->room;
    memcpy(&data->data, &bytes, sizeof bytes);
    return HVI_OK;
}

static int put_ints(struct wire_context *context, const ProtobufCFieldDescriptor *descriptor,
                    const int32_t *ints, size_t count, char *base)
{
    static const struct wire_field element = {.kind = WIRE_I32, .low = 0, .high = INT32_MAX};
    for (size_t i = 0; i < count; i++) {
        int status =
            hvi_wire_check_number(context, descriptor->name, &element, (uint64_t)(int64_t)ints[i]);
        if (status != HVI_OK)
            return status;
    }
    memcpy(base + descriptor->offset, &ints, sizeof ints);
    return HVI_OK;
}

static void put_longs(const ProtobufCFieldDescriptor *descriptor, const void *longs, char *base)
{
    memcpy(base + descriptor->offset, &longs, sizeof longs);
}

static int put_rows(struct wire_context *context, const struct wire_field *field,
                    const ProtobufCFieldDescriptor *descriptor, const char *rows, size_t count,
                    char *base)
{
    ProtobufCMessage **list = hvi_wire_memory_get(&context->memory, count * sizeof *list);
    if (!list)
        return HVI_ERR_NO_MEMORY;
    for (size_t i = 0; i < count; i++) {
        hvi_wire_enter(context, descriptor->name, (int64_t)i);
        int status = hvi_wire_put(context, field->rows, rows + i * field->room, &list[i]);
        hvi_wire_leave(context);
        if (status != HVI_OK)
            return status;
    }
    memcpy(base + descriptor->offset, &list, sizeof list);
    return HVI_OK;
}

static int put_repeated(struct wire_context *context, const struct wire_field *field,
                        const ProtobufCFieldDescriptor *descriptor, const void *plain, char *base)
{
    const void *list = NULL;
    size_t count = 0;
    int status = load_list(context, field, descriptor, plain, &list, &count);
    if (status != HVI_OK || count == 0)
        return status;
    if (field->kind == WIRE_INTS)
        status = put_ints(context, descriptor, list, count, base);
    else if (field->kind == WIRE_LONGS)
        put_longs(descriptor, list, base);
    else
        status = put_rows(context, field, descriptor, list, count, base);
    if (status == HVI_OK)
        *(size_t *)(void *)(base + descriptor->quantifier_offset) = count;
    return status;
}

static int put_part(struct wire_context *context, const struct wire_field *field,
                    const ProtobufCFieldDescriptor *descriptor, const void *plain, char *base)
{
    if (field->kind == WIRE_PART && !*(const bool *)((const char *)plain + field->count_offset))
        return HVI_OK;
    ProtobufCMessage *part;
    hvi_wire_enter(context, descriptor->name, -1);
    int status = hvi_wire_put(context, field->rows, (const char *)plain + field->offset, &part);
    hvi_wire_leave(context);
    if (status == HVI_OK)
        memcpy(base + descriptor->offset, &part, sizeof part);
    return status;
}

static int put_field(struct wire_context *context, const struct wire_table *table,
                     const struct wire_field *field, const void *plain, char *base)
{
    const ProtobufCFieldDescriptor *descriptor = hvi_wire_descriptor(table, field);
    const char *at = (const char *)plain + field->offset;
    switch ((enum wire_kind)field->kind) {
    case WIRE_TEXT:
        return put_text(context, field, descriptor, at, base);
    case WIRE_BYTES:
        return put_bytes(context, field, descriptor, plain, base);
    case WIRE_FIXED:
        return put_fixed(field, descriptor, (const unsigned char *)at, base);
    case WIRE_INTS:
    case WIRE_LONGS:
    case WIRE_ROWS:
        return put_repeated(context, field, descriptor, plain, base);
    case WIRE_PART:
    case WIRE_WHOLE:
        return put_part(context, field, descriptor, plain, base);
    default:
        return put_number(context, field, descriptor, at, base);
    }
}

int hvi_wire_put(struct wire_context *context, const struct wire_table *table, const void *plain,
                 ProtobufCMessage **message_p)
{
    ProtobufCMessage *message =
        hvi_wire_memory_get(&context->memory, table->descriptor->sizeof_message);
    if (!message)
        return HVI_ERR_NO_MEMORY;
    protobuf_c_message_init(table->descriptor, message);
    uint64_t version = HVI_PROTOCOL_VERSION;
    if (table->version_fields)
        version = load(&table->fields[0], (const char *)plain + table->fields[0].offset);
    uint32_t count = hvi_wire_fields(table, version);
    for (uint32_t i = 0; i < count; i++) {
        int status = put_field(context, table, &table->fields[i], plain, (char *)message);
        if (status != HVI_OK)
            return status;
    }
    *message_p = message;
    return HVI_OK;
}
