/* SPDX-License-Identifier: Apache-2.0
 * The messages of gate.proto as plain structs; proto/wire.h says what decoding guarantees. Any thread; nothing blocks or
 * logs. */
#ifndef HVI_PROTO_GATE_H
#define HVI_PROTO_GATE_H

#include "proto/packet.h"
#include "proto/wire.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- between hvdd and its gate: packets of at most HVI_PACKET_BYTES_MAX bytes ---- */

#define HVI_GATE_REQUEST_MAX (64u * 1024u) /* bytes of an AdminRequest */
#define HVI_GATE_PART_MAX    (96u * 1024u) /* bytes of an AdminReply in one message */

struct hvi_gate_start {
    bool private_mode;
    uint32_t uid;
    int32_t log_level;
};
struct hvi_gate_ask {
    uint64_t ticket;
    uint32_t uid;
    unsigned char *request; /* allocated by decode */
    size_t request_bytes;
};
struct hvi_gate_reply {
    uint64_t ticket;
    unsigned char *part; /* allocated by decode */
    size_t part_bytes;
    bool more;
};
struct hvi_gate_beat {
    uint64_t number;
};

/* Numbers equal the field numbers of GateMessage.body. */
enum hvi_gate_kind {
    HVI_GATE_START = 1,
    HVI_GATE_ASK,
    HVI_GATE_REPLY,
    HVI_GATE_BEAT,
};
#define HVI_GATE_KIND_END (HVI_GATE_BEAT + 1)

struct hvi_gate_msg {
    enum hvi_gate_kind kind;
    union {
        struct hvi_gate_start start;
        struct hvi_gate_ask ask;
        struct hvi_gate_reply reply;
        struct hvi_gate_beat beat;
    };
};

/* As hvi_packet_msg_encode, hvi_packet_msg_decode and hvi_packet_msg_free. */
int hvi_gate_msg_encode(const struct hvi_gate_msg *msg, unsigned char *buffer, size_t size,
                        size_t *length_p);
int hvi_gate_msg_decode(const unsigned char *bytes, size_t length, struct hvi_gate_msg *msg_p,
                        char *text_p, size_t text_size);
void hvi_gate_msg_free(struct hvi_gate_msg *msg);

#endif
