/* SPDX-License-Identifier: Apache-2.0
 * What a peer of the admin socket sends, byte by byte: ZMTP 3 (rfc.zeromq.org/spec/23), mechanism NULL, of which the gate
 * is the ROUTER. No descriptor, no event loop, no limit of time. One thread. A peer may send anything at all. */
#ifndef HVD_GATE_ZMTP_H
#define HVD_GATE_ZMTP_H

#include <stdbool.h>
#include <stddef.h>

#define GATE_ZMTP_BODY_MAX (64u * 1024u) /* bytes of a frame */

enum gate_zmtp_stage { GATE_ZMTP_GREETING, GATE_ZMTP_HANDSHAKE, GATE_ZMTP_MESSAGES };

struct gate_zmtp {
    unsigned char
        *bytes; /* NULL, or `room` of them: up to `at` done with, up to `used` from the peer */
    size_t at, used, room;
    enum gate_zmtp_stage stage;
    bool delimiter,
        several; /* of the message whose end has not come: an empty frame first, more than one body */
};

/* One message. [""][body] is what a REQ socket sends, [body] a DEALER. */
struct gate_zmtp_message {
    const unsigned char *body; /* valid until gate_zmtp_room */
    size_t length;
    bool delimiter; /* an empty frame came first, and an answer has one too */
    bool whole;     /* it had one body; otherwise `length` is 0 */
};

/* All zero is a connection that has sent nothing. Releases what it holds. */
void gate_zmtp_fini(struct gate_zmtp *zmtp);
/* Where the next bytes of the peer may be written, at least one; NULL: out of memory. */
unsigned char *gate_zmtp_room(struct gate_zmtp *zmtp, size_t *room_p);
/* So many were written there. */
void gate_zmtp_filled(struct gate_zmtp *zmtp, size_t length);
/* HVI_OK: a message; HVI_INPROGRESS: more bytes are needed; HVI_ERR_PROTOCOL: the peer speaks something else. */
int gate_zmtp_next(struct gate_zmtp *zmtp, struct gate_zmtp_message *message_p);

/* What the gate says first, before it has heard anything: greeting and READY. */
extern const unsigned char gate_zmtp_hello[];
extern const size_t gate_zmtp_hello_bytes;
/* Writes what precedes a body of `length` bytes; returns its size, at most GATE_ZMTP_HEAD_MAX. */
#define GATE_ZMTP_HEAD_MAX 11
size_t gate_zmtp_head(bool delimiter, size_t length, unsigned char *bytes_p);

#endif
