/* SPDX-License-Identifier: Apache-2.0
 *   greeting (64 bytes) --> READY command --> frames: flags, length (1 or 8 bytes), body
 *
 * A body matters only as the last frame of its message, so no message is put together: frames are looked at one by one
 * and forgotten, and what a peer can make the gate hold is one frame. Commands after READY (PING, of peers that speak 3.1
 * with each other) mean nothing to a 3.0 peer. */
#include "daemon/gate/zmtp.h"

#include "base/status.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define GREETING_BYTES 64u
#define MECHANISM_AT   12u
#define HEADER_MAX     9u
#define ROOM_LEAST     1024u
#define ROOM_MOST      (HEADER_MAX + GATE_ZMTP_BODY_MAX)

#define FLAG_MORE    1u
#define FLAG_LONG    2u
#define FLAG_COMMAND 4u

static const unsigned char mechanism[20] = "NULL";
static const unsigned char ready[] = {5, 'R', 'E', 'A', 'D', 'Y'};

/* Signature, version 3.0, mechanism, no server role, filler; then READY with Socket-Type. */
const unsigned char gate_zmtp_hello[] = "\xff\0\0\0\0\0\0\0\0\x7f"             /* signature */
                                        "\x03\x00"                             /* version */
                                        "NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0" /* mechanism */
                                        "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"     /* client, filler */
                                        "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"
                                        "\x04\x1c\x05READY\x0bSocket-Type\0\0\0\x06ROUTER";
const size_t gate_zmtp_hello_bytes = sizeof(gate_zmtp_hello) - 1;
_Static_assert(sizeof(gate_zmtp_hello) == GREETING_BYTES + 2 + 28 + 1, "the greeting has 64 bytes");

struct frame {
    unsigned flags;
    const unsigned char *body;
    size_t length;
};

void gate_zmtp_fini(struct gate_zmtp *zmtp)
{
    free(zmtp->bytes);
    memset(zmtp, 0, sizeof(*zmtp));
}

/* Forgets what is done with; an idle connection holds no memory. */
static void compact(struct gate_zmtp *zmtp)
{
    zmtp->used -= zmtp->at;
    if (zmtp->used > 0) {
        memmove(zmtp->bytes, zmtp->bytes + zmtp->at, zmtp->used);
    } else {
        free(zmtp->bytes);
        zmtp->bytes = NULL;
        zmtp->room = 0;
    }
    zmtp->at = 0;
}

unsigned char *gate_zmtp_room(struct gate_zmtp *zmtp, size_t *room_p)
{
    compact(zmtp);
    if (zmtp->used == zmtp->room) {
        size_t room = zmtp->room > 0 ? zmtp->room * 2 : ROOM_LEAST;
        if (room > ROOM_MOST)
            room = ROOM_MOST;
        unsigned char *bytes = room > zmtp->used ? realloc(zmtp->bytes, room) : NULL;
        if (bytes == NULL)
            return NULL;
        zmtp->bytes = bytes;
        zmtp->room = room;
    }
    *room_p = zmtp->room - zmtp->used;
    return zmtp->bytes + zmtp->used;
}

void gate_zmtp_filled(struct gate_zmtp *zmtp, size_t length)
{
    zmtp->used += length;
}

static int take_greeting(struct gate_zmtp *zmtp)
{
    const unsigned char *bytes = zmtp->bytes;

    if (zmtp->used > 0 && bytes[0] != 0xff)
        return HVI_ERR_PROTOCOL;
    if (zmtp->used < GREETING_BYTES)
        return HVI_INPROGRESS;
    if ((bytes[9] & 1) == 0 || bytes[10] < 3 ||
        memcmp(bytes + MECHANISM_AT, mechanism, sizeof(mechanism)) != 0)
        return HVI_ERR_PROTOCOL;
    zmtp->at = GREETING_BYTES;
    zmtp->stage = GATE_ZMTP_HANDSHAKE;
    return HVI_OK;
}

static size_t read_length(const unsigned char *bytes)
{
    uint64_t length = 0;

    for (int i = 0; i < 8; i++)
        length = length << 8 | bytes[i];
    return length > GATE_ZMTP_BODY_MAX ? GATE_ZMTP_BODY_MAX + 1u : (size_t)length;
}

static int take_frame(struct gate_zmtp *zmtp, struct frame *frame_p)
{
    const unsigned char *bytes = zmtp->bytes + zmtp->at;
    size_t left = zmtp->used - zmtp->at, header, length;

    if (left == 0)
        return HVI_INPROGRESS;
    if ((bytes[0] & ~(FLAG_MORE | FLAG_LONG | FLAG_COMMAND)) != 0)
        return HVI_ERR_PROTOCOL;
    header = (bytes[0] & FLAG_LONG) != 0 ? HEADER_MAX : 2;
    if (left < header)
        return HVI_INPROGRESS;
    length = header == 2 ? bytes[1] : read_length(bytes + 1);
    if (length > GATE_ZMTP_BODY_MAX)
        return HVI_ERR_PROTOCOL;
    if (left < header + length)
        return HVI_INPROGRESS;
    *frame_p = (struct frame){.flags = bytes[0], .body = bytes + header, .length = length};
    zmtp->at += header + length;
    return HVI_OK;
}

static int take_ready(struct gate_zmtp *zmtp, const struct frame *frame)
{
    if ((frame->flags & FLAG_COMMAND) == 0 || frame->length < sizeof(ready) ||
        memcmp(frame->body, ready, sizeof(ready)) != 0)
        return HVI_ERR_PROTOCOL;
    zmtp->stage = GATE_ZMTP_MESSAGES;
    return HVI_INPROGRESS;
}

/* HVI_OK when the frame ends a message. */
static int take_part(struct gate_zmtp *zmtp, const struct frame *frame,
                     struct gate_zmtp_message *message_p)
{
    bool more = (frame->flags & FLAG_MORE) != 0;

    if ((frame->flags & FLAG_COMMAND) != 0)
        return HVI_INPROGRESS;
    if (!zmtp->several && !zmtp->delimiter && frame->length == 0 && more) {
        zmtp->delimiter = true;
        return HVI_INPROGRESS;
    }
    if (more) {
        zmtp->several = true;
        return HVI_INPROGRESS;
    }
    *message_p = (struct gate_zmtp_message){.body = frame->body,
                                            .length = zmtp->several ? 0 : frame->length,
                                            .delimiter = zmtp->delimiter,
                                            .whole = !zmtp->several};
    zmtp->several = false;
    zmtp->delimiter = false;
    return HVI_OK;
}

int gate_zmtp_next(struct gate_zmtp *zmtp, struct gate_zmtp_message *message_p)
{
    struct frame frame;
    int status = HVI_INPROGRESS;

    if (zmtp->stage == GATE_ZMTP_GREETING && (status = take_greeting(zmtp)) != HVI_OK)
        return status;
    do {
        status = take_frame(zmtp, &frame);
        if (status != HVI_OK)
            return status;
        status = zmtp->stage == GATE_ZMTP_HANDSHAKE ? take_ready(zmtp, &frame)
                                                    : take_part(zmtp, &frame, message_p);
    } while (status == HVI_INPROGRESS);
    return status;
}

size_t gate_zmtp_head(bool delimiter, size_t length, unsigned char *bytes_p)
{
    size_t at = 0;

    if (delimiter) {
        bytes_p[at++] = FLAG_MORE;
        bytes_p[at++] = 0;
    }
    bytes_p[at++] = FLAG_LONG;
    for (int shift = 56; shift >= 0; shift -= 8)
        bytes_p[at++] = (unsigned char)((uint64_t)length >> shift);
    return at;
}
