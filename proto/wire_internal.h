/* SPDX-License-Identifier: Apache-2.0
 * Private to proto/wire*.c: the tables that tie plain structs to protobuf messages, and the
 * walkers that follow them. A table row names a protobuf field by its number and says where the
 * value lives in the plain struct and which values are legal; type, label and place on the
 * protobuf side come from the generated descriptor. Nothing here blocks or logs. */
#ifndef HVI_PROTO_WIRE_INTERNAL_H
#define HVI_PROTO_WIRE_INTERNAL_H

#include "proto/wire.h"

#include <protobuf-c/protobuf-c.h>

/* Kind of a plain value. */
enum wire_kind {
    WIRE_I32,
    WIRE_U32,
    WIRE_U64,
    WIRE_BOOL,
    WIRE_TEXT,  /* char[room], NUL-terminated */
    WIRE_BYTES, /* unsigned char *, size_t */
    WIRE_FIXED, /* unsigned char[room], exactly so many; optional and absent: zeros */
    WIRE_INTS,  /* int32_t *, size_t */
    WIRE_LONGS, /* int64_t * or uint64_t *, size_t; any value */
    WIRE_ROWS,  /* struct *, size_t */
    WIRE_PART,  /* one embedded struct, bool: is it there */
    WIRE_WHOLE, /* one embedded struct, always there */
};

/* What a text must be beyond UTF-8 that fits its room. */
enum wire_rule {
    WIRE_RULE_ANY,
    WIRE_RULE_FILLED,       /* not empty */
    WIRE_RULE_JOB,          /* a job id */
    WIRE_RULE_JOB_OR_EMPTY, /* a job id, or none */
    WIRE_RULE_SETTING_NAME, /* HVD_* or HOROVOD_*, or as the next */
    WIRE_RULE_NCCL_NAME,    /* hvi_nccl_is_allowed */
};

struct wire_table;

struct wire_field {
    uint16_t number;       /* in the protobuf message */
    uint8_t kind;          /* enum wire_kind */
    uint8_t rule;          /* enum wire_rule */
    uint32_t offset;       /* of the value or pointer in the plain struct */
    uint32_t count_offset; /* of the size_t or, for a part, of the bool */
    uint32_t room;         /* bytes of a text's array; bytes of one row or part */
    int64_t low;           /* legal numbers; fewest bytes */
    uint64_t high;         /* legal numbers; most rows or bytes */
    int64_t absent;        /* what an absent optional number means */
    const struct wire_table *rows;
};

struct wire_table {
    const ProtobufCMessageDescriptor *descriptor;
    const struct wire_field *fields;
    uint32_t field_count;
    /* Not 0: field 0 is the protocol version, and of a foreign version only this many are read. */
    uint32_t version_fields;
};

/* One alternative of a oneof. */
struct wire_body {
    const char *name;
    const struct wire_table *table;
};

extern const struct wire_body hvi_wire_packet_bodies[HVI_PACKET_KIND_END];
extern const struct wire_body hvi_wire_admin_bodies[HVI_ADMIN_KIND_END];
extern const struct wire_table hvi_wire_nccl_setting;
extern const struct wire_table hvi_wire_device_memory;
extern const struct wire_table hvi_wire_gpu_row;
extern const struct wire_table hvi_wire_admin_request;
extern const struct wire_table hvi_wire_admin_reply;
extern const struct wire_table hvi_wire_attach_request_probe;
extern const struct wire_table hvi_wire_engine_hello_probe;
extern const struct wire_table hvi_wire_admin_request_probe;

/* Memory of one encode or decode: released at once, bounded, and it remembers each block's size. */
struct wire_block;
struct wire_memory {
    struct wire_block *blocks;
    size_t left;
    bool refused; /* the bound was hit */
    bool failed;  /* malloc said no */
};

#define WIRE_DEPTH 4

struct wire_context {
    struct wire_memory memory;
    char *text; /* the sentence goes here; may be NULL */
    size_t text_size;
    uint32_t depth;
    struct {
        const char *name;
        int64_t index; /* -1: not a row */
    } path[WIRE_DEPTH];
};

void hvi_wire_memory_init(struct wire_memory *memory);
void hvi_wire_memory_fini(struct wire_memory *memory);
/* Zeroed; NULL when out of memory or over the bound. */
void *hvi_wire_memory_get(struct wire_memory *memory, size_t bytes);
/* The size that was asked for. */
size_t hvi_wire_memory_size(const void *block);

void hvi_wire_context_init(struct wire_context *context, char *text, size_t text_size);
void hvi_wire_context_fini(struct wire_context *context);
void hvi_wire_enter(struct wire_context *context, const char *name, int64_t index);
void hvi_wire_leave(struct wire_context *context);

/* Writes "path.name: sentence" (without `name` when it is NULL) and returns HVI_ERR_PROTOCOL. */
int hvi_wire_refuse(struct wire_context *context, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The legality of one value, the same for both directions. HVI_OK or HVI_ERR_PROTOCOL. `value` of
 * a signed field is sign-extended. */
int hvi_wire_check_number(struct wire_context *context, const char *name,
                          const struct wire_field *field, uint64_t value);
int hvi_wire_check_text(struct wire_context *context, const char *name,
                        const struct wire_field *field, const char *text, size_t bytes);
int hvi_wire_check_count(struct wire_context *context, const char *name,
                         const struct wire_field *field, size_t count);

/* How many leading fields count: all, or version_fields when `version` is foreign. */
uint32_t hvi_wire_fields(const struct wire_table *table, uint64_t version);
/* The protobuf side of a row. */
const ProtobufCFieldDescriptor *hvi_wire_descriptor(const struct wire_table *table,
                                                    const struct wire_field *field);

/* Unpacks; NULL with a sentence and *error_p set. */
ProtobufCMessage *hvi_wire_unpack(struct wire_context *context,
                                  const ProtobufCMessageDescriptor *descriptor,
                                  const unsigned char *bytes, size_t length, int *error_p);
/* protobuf -> plain. `plain` was zeroed; after an error hvi_wire_release cleans it up. HVI_OK,
 * HVI_ERR_PROTOCOL, HVI_ERR_NO_MEMORY. */
int hvi_wire_get(struct wire_context *context, const struct wire_table *table,
                 const ProtobufCMessage *message, void *plain);
/* plain -> protobuf, in the context's memory. Errors as above. */
int hvi_wire_put(struct wire_context *context, const struct wire_table *table, const void *plain,
                 ProtobufCMessage **message_p);
/* Frees what hvi_wire_get allocated in `plain` and zeroes those pointers and counts. */
void hvi_wire_release(const struct wire_table *table, void *plain);

#endif
