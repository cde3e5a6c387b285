/* SPDX-License-Identifier: Apache-2.0
 * protobuf -> plain struct: follows a table, checks each value, copies it. */
#include "proto/wire_internal.h"

#include "base/assert.h"
#include "base/status.h"

#include <stdlib.h>
#include <string.h>

static void *arena_alloc(void *memory, size_t bytes)
{
    return hvi_wire_memory_get(memory, bytes);
}

/* Everything goes at once in hvi_wire_memory_fini. */
static void arena_free(void *memory, void *block)
{
    (void)memory;
    (void)block;
}

ProtobufCMessage *hvi_wire_unpack(struct wire_context *context,
                                  const ProtobufCMessageDescriptor *descriptor,
                                  const unsigned char *bytes, size_t length, int *error_p)
{
    static const unsigned char nothing[1];
    ProtobufCAllocator allocator = {arena_alloc, arena_free, &context->memory};
    ProtobufCMessage *message =
        protobuf_c_message_unpack(descriptor, &allocator, length, bytes ? bytes : nothing);
    if (message)
        return message;
    if (context->memory.failed)
        *error_p = HVI_ERR_NO_MEMORY;
    else if (context->memory.refused)
        *error_p = hvi_wire_refuse(context, descriptor->short_name, "too many parts");
    else
        *error_p = hvi_wire_refuse(context, descriptor->short_name,
                                   "malformed, cut short, or a required field is missing");
    return NULL;
}

const ProtobufCFieldDescriptor *hvi_wire_descriptor(const struct wire_table *table,
                                                    const struct wire_field *field)
{
    const ProtobufCFieldDescriptor *descriptor =
        protobuf_c_message_descriptor_get_field(table->descriptor, field->number);
    HVI_ASSERT(descriptor != NULL);
    return descriptor;
}

uint32_t hvi_wire_fields(const struct wire_table *table, uint64_t version)
{
    if (table->version_fields && version != HVI_PROTOCOL_VERSION)
        return table->version_fields;
    return table->field_count;
}

/* The protobuf side's number, sign-extended; false when it is absent. */
static bool load(const ProtobufCMessage *message, const ProtobufCFieldDescriptor *descriptor,
                 uint64_t *value_p)
{
    const char *base = (const char *)message;
    const void *at = base + descriptor->offset;
    if (descriptor->label == PROTOBUF_C_LABEL_OPTIONAL &&
        !*(const protobuf_c_boolean *)(const void *)(base + descriptor->quantifier_offset))
        return false;
    switch (descriptor->type) {
    case PROTOBUF_C_TYPE_INT32:
        *value_p = (uint64_t)(int64_t) * (const int32_t *)at;
        return true;
    case PROTOBUF_C_TYPE_UINT32:
        *value_p = *(const uint32_t *)at;
        return true;
    case PROTOBUF_C_TYPE_BOOL:
        *value_p = *(const protobuf_c_boolean *)at != 0;
        return true;
    default:
        HVI_ASSERT(descriptor->type == PROTOBUF_C_TYPE_UINT64);
        *value_p = *(const uint64_t *)at;
        return true;
    }
}

static int get_number(struct wire_context *context, const struct wire_field *field,
                      const ProtobufCFieldDescriptor *descriptor, const ProtobufCMessage *message,
                      void *plain_at)
{
    uint64_t value = (uint64_t)field->absent;
    if (load(message, descriptor, &value)) {
        int status = hvi_wire_check_number(context, descriptor->name, field, value);
        if (status != HVI_OK)
            return status;
    }
    if (field->kind == WIRE_U64)
        *(uint64_t *)plain_at = value;
    else if (field->kind == WIRE_BOOL)
        *(bool *)plain_at = value != 0;
    else
        *(uint32_t *)plain_at = (uint32_t)value;
    return HVI_OK;
}

static int get_text(struct wire_context *context, const struct wire_field *field,
                    const ProtobufCFieldDescriptor *descriptor, const ProtobufCMessage *message,
                    char *plain_at)
{
    const char *text = *(char *const *)(const void *)((const char *)message + descriptor->offset);
    if (!text)
        return HVI_OK; /* optional and absent: stays "" */
    size_t bytes = hvi_wire_memory_size(text) - 1;
    int status = hvi_wire_check_text(context, descriptor->name, field, text, bytes);
    if (status != HVI_OK)
        return status;
    memcpy(plain_at, text, bytes + 1);
    return HVI_OK;
}

/* A private copy of `count` elements; the plain struct owns it as soon as it exists. */
static int adopt(const struct wire_field *field, void *plain, size_t count, size_t element_bytes,
                 void **copy_p)
{
    void *copy = calloc(count, element_bytes);
    if (!copy)
        return HVI_ERR_NO_MEMORY;
    memcpy((char *)plain + field->offset, &copy, sizeof copy);
    *(size_t *)(void *)((char *)plain + field->count_offset) = count;
    *copy_p = copy;
    return HVI_OK;
}

static int get_bytes(struct wire_context *context, const struct wire_field *field,
                     const ProtobufCFieldDescriptor *descriptor, const ProtobufCMessage *message,
                     void *plain)
{
    const ProtobufCBinaryData *data = (const void *)((const char *)message + descriptor->offset);
    int status = hvi_wire_check_count(context, descriptor->name, field, data->len);
    if (status != HVI_OK || data->len == 0)
        return status;
    void *copy;
    status = adopt(field, plain, data->len, 1, &copy);
    if (status != HVI_OK)
        return status;
    memcpy(copy, data->data, data->len);
    return HVI_OK;
}

static int get_fixed(struct wire_context *context, const struct wire_field *field,
                     const ProtobufCFieldDescriptor *descriptor, const ProtobufCMessage *message,
                     void *plain_at)
{
    const char *base = (const char *)message;
    const ProtobufCBinaryData *data = (const void *)(base + descriptor->offset);
    if (descriptor->label == PROTOBUF_C_LABEL_OPTIONAL &&
        !*(const protobuf_c_boolean *)(const void *)(base + descriptor->quantifier_offset))
        return HVI_OK;
    if (data->len != field->room)
        return hvi_wire_refuse(context, descriptor->name, "%zu bytes, must be %u", data->len,
                               field->room);
    memcpy(plain_at, data->data, field->room);
    return HVI_OK;
}

static int get_ints(struct wire_context *context, const struct wire_field *field,
                    const ProtobufCFieldDescriptor *descriptor, const int32_t *ints, size_t count,
                    void *plain)
{
    static const struct wire_field element = {.kind = WIRE_I32, .low = 0, .high = INT32_MAX};
    for (size_t i = 0; i < count; i++) {
        int status =
            hvi_wire_check_number(context, descriptor->name, &element, (uint64_t)(int64_t)ints[i]);
        if (status != HVI_OK)
            return status;
    }
    void *copy;
    int status = adopt(field, plain, count, sizeof *ints, &copy);
    if (status != HVI_OK)
        return status;
    memcpy(copy, ints, count * sizeof *ints);
    return HVI_OK;
}

static int get_longs(const struct wire_field *field, const int64_t *longs, size_t count,
                     void *plain)
{
    void *copy;
    int status = adopt(field, plain, count, sizeof *longs, &copy);
    if (status != HVI_OK)
        return status;
    memcpy(copy, longs, count * sizeof *longs);
    return HVI_OK;
}

static int get_rows(struct wire_context *context, const struct wire_field *field,
                    const ProtobufCFieldDescriptor *descriptor, ProtobufCMessage *const *rows,
                    size_t count, void *plain)
{
    void *copy;
    int status = adopt(field, plain, count, field->room, &copy);
    for (size_t i = 0; i < count && status == HVI_OK; i++) {
        hvi_wire_enter(context, descriptor->name, (int64_t)i);
        status = hvi_wire_get(context, field->rows, rows[i], (char *)copy + i * field->room);
        hvi_wire_leave(context);
    }
    return status;
}

static int get_repeated(struct wire_context *context, const struct wire_field *field,
                        const ProtobufCFieldDescriptor *descriptor, const ProtobufCMessage *message,
                        void *plain)
{
    const char *base = (const char *)message;
    size_t count = *(const size_t *)(const void *)(base + descriptor->quantifier_offset);
    const void *list = *(void *const *)(const void *)(base + descriptor->offset);
    int status = hvi_wire_check_count(context, descriptor->name, field, count);
    if (status != HVI_OK || count == 0)
        return status;
    if (field->kind == WIRE_INTS)
        return get_ints(context, field, descriptor, list, count, plain);
    if (field->kind == WIRE_LONGS)
        return get_longs(field, list, count, plain);
    return get_rows(context, field, descriptor, list, count, plain);
}

static int get_part(struct wire_context *context, const struct wire_field *field,
                    const ProtobufCFieldDescriptor *descriptor, const ProtobufCMessage *message,
                    void *plain)
{
    const ProtobufCMessage *part =
        *(ProtobufCMessage *const *)(const void *)((const char *)message + descriptor->offset);
    if (!part)
        return HVI_OK;
    if (field->kind == WIRE_PART)
        *(bool *)((char *)plain + field->count_offset) = true;
    hvi_wire_enter(context, descriptor->name, -1);
    int status = hvi_wire_get(context, field->rows, part, (char *)plain + field->offset);
    hvi_wire_leave(context);
    return status;
}

static int get_field(struct wire_context *context, const struct wire_table *table,
                     const struct wire_field *field, const ProtobufCMessage *message, void *plain)
{
    const ProtobufCFieldDescriptor *descriptor = hvi_wire_descriptor(table, field);
    char *at = (char *)plain + field->offset;
    switch ((enum wire_kind)field->kind) {
    case WIRE_TEXT:
        return get_text(context, field, descriptor, message, at);
    case WIRE_BYTES:
        return get_bytes(context, field, descriptor, message, plain);
    case WIRE_FIXED:
        return get_fixed(context, field, descriptor, message, at);
    case WIRE_INTS:
    case WIRE_LONGS:
    case WIRE_ROWS:
        return get_repeated(context, field, descriptor, message, plain);
    case WIRE_PART:
    case WIRE_WHOLE:
        return get_part(context, field, descriptor, message, plain);
    default:
        return get_number(context, field, descriptor, message, at);
    }
}

int hvi_wire_get(struct wire_context *context, const struct wire_table *table,
                 const ProtobufCMessage *message, void *plain)
{
    uint64_t version = HVI_PROTOCOL_VERSION;
    if (table->version_fields)
        load(message, hvi_wire_descriptor(table, &table->fields[0]), &version);
    uint32_t count = hvi_wire_fields(table, version);
    for (uint32_t i = 0; i < count; i++) {
        int status = get_field(context, table, &table->fields[i], message, plain);
        if (status != HVI_OK)
            return status;
    }
    return HVI_OK;
}

static void release_rows(const struct wire_field *field, char *rows, size_t count)
{
    for (size_t i = 0; rows && i < count; i++)
        hvi_wire_release(field->rows, rows + i * field->room);
}

static bool is_list(uint8_t kind)
{
    return kind == WIRE_BYTES || kind == WIRE_INTS || kind == WIRE_LONGS || kind == WIRE_ROWS;
}

void hvi_wire_release(const struct wire_table *table, void *plain)
{
    for (uint32_t i = 0; i < table->field_count; i++) {
        const struct wire_field *field = &table->fields[i];
        if (field->kind == WIRE_PART || field->kind == WIRE_WHOLE)
            hvi_wire_release(field->rows, (char *)plain + field->offset);
        if (!is_list(field->kind))
            continue;
        void *list;
        size_t *count = (void *)((char *)plain + field->count_offset);
        memcpy(&list, (char *)plain + field->offset, sizeof list);
        if (field->kind == WIRE_ROWS)
            release_rows(field, list, *count);
        free(list);
        memset((char *)plain + field->offset, 0, sizeof list);
        *count = 0;
    }
}
