/* SPDX-License-Identifier: Apache-2.0
 * Private to the tables of proto/wire_*.c: shorthands for their rows. */
#ifndef HVI_PROTO_WIRE_ROWS_H
#define HVI_PROTO_WIRE_ROWS_H

#include "proto/wire_internal.h"

/* Each takes the protobuf field number, then the plain struct and its member. */
#define KIND_OF(s, m)                                                                              \
    _Generic(((struct s *)0)->m, int32_t                                                           \
             : WIRE_I32, uint32_t                                                                  \
             : WIRE_U32, uint64_t                                                                  \
             : WIRE_U64, bool                                                                      \
             : WIRE_BOOL)
#define NUMBER_OR(n, s, m, least, most, if_absent)                                                 \
    {                                                                                              \
        .number = (n), .kind = KIND_OF(s, m), .offset = offsetof(struct s, m), .low = (least),     \
        .high = (most), .absent = (if_absent)                                                      \
    }
#define NUMBER(n, s, m, least, most) NUMBER_OR(n, s, m, least, most, 0)
#define U32(n, s, m)                 NUMBER(n, s, m, 0, UINT32_MAX)
#define U64(n, s, m)                 NUMBER(n, s, m, 0, UINT64_MAX)
#define FLAG(n, s, m)                NUMBER(n, s, m, 0, 1)
#define RANK(n, s, m)                NUMBER(n, s, m, 0, INT32_MAX)
#define PID(n, s, m)                 NUMBER(n, s, m, 0, INT32_MAX)
#define STATUS(n, s, m)              NUMBER(n, s, m, STATUS_LEAST, 1)
#define SIZE(n, s, m)                NUMBER(n, s, m, 1, SIZE_MOST)
#define TEXT(n, s, m, r)                                                                           \
    {                                                                                              \
        .number = (n), .kind = WIRE_TEXT, .rule = WIRE_RULE_##r, .offset = offsetof(struct s, m),  \
        .room = sizeof(((struct s *)0)->m)                                                         \
    }
#define FIXED(n, s, m)                                                                             \
    {                                                                                              \
        .number = (n), .kind = WIRE_FIXED, .offset = offsetof(struct s, m),                        \
        .room = sizeof(((struct s *)0)->m)                                                         \
    }
/* One embedded struct; `h` says whether it is there. */
#define PART(n, s, m, h, t)                                                                        \
    {                                                                                              \
        .number = (n), .kind = WIRE_PART, .offset = offsetof(struct s, m),                         \
        .count_offset = offsetof(struct s, h), .rows = (t)                                         \
    }
/* One that is always there. */
#define WHOLE(n, s, m, t)                                                                          \
    {                                                                                              \
        .number = (n), .kind = WIRE_WHOLE, .offset = offsetof(struct s, m), .rows = (t)            \
    }
#define LIST(n, s, m, c, k, most, t)                                                               \
    {                                                                                              \
        .number = (n), .kind = (k), .offset = offsetof(struct s, m),                               \
        .count_offset = offsetof(struct s, c), .room = sizeof(*((struct s *)0)->m), .low = 1,      \
        .high = (most), .rows = (t)                                                                \
    }
#define TABLE(s, f, versions)                                                                      \
    {                                                                                              \
        .descriptor = &hvd__##s##__descriptor, .fields = (f), .field_count = COUNT(f),             \
        .version_fields = (versions)                                                               \
    }
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

#define STATUS_LEAST (-999)
/* Bytes of their own memory, `least` to `most` of them. */
#define BYTES(n, s, m, c, least, most)                                                             \
    {                                                                                              \
        .number = (n), .kind = WIRE_BYTES, .offset = offsetof(struct s, m),                        \
        .count_offset = offsetof(struct s, c), .low = (least), .high = (most)                      \
    }

#endif
