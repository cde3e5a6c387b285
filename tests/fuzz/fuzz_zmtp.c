/* SPDX-License-Identifier: Apache-2.0
 * What a peer of admin.sock sends, arbitrary bytes in pieces: the messages that come of it do not depend on where the
 * pieces are cut, lie in what was fed, and what is held stays within one frame. */
#include "fuzz.h"

#include "base/status.h"
#include "daemon/gate/zmtp.h"

#include <string.h>

#define HELD_MAX (9u + GATE_ZMTP_BODY_MAX)

struct outcome {
    unsigned messages;
    uint64_t digest;
    int status;
};

static void note(struct outcome *outcome, const struct gate_zmtp_message *message)
{
    HVT_FUZZ_REQUIRE(message->length <= GATE_ZMTP_BODY_MAX);
    HVT_FUZZ_REQUIRE(message->whole || message->length == 0);
    outcome->messages++;
    outcome->digest = outcome->digest * 31 + message->delimiter * 2u + message->whole;
    for (size_t i = 0; i < message->length; i++)
        outcome->digest = outcome->digest * 31 + message->body[i];
}

static struct outcome talk(enum gate_zmtp_stage stage, const uint8_t *data, size_t size,
                           size_t piece)
{
    struct gate_zmtp zmtp = {.stage = stage};
    struct gate_zmtp_message message;
    struct outcome outcome = {.status = HVI_INPROGRESS};

    while (size > 0 && outcome.status == HVI_INPROGRESS) {
        size_t room, now = size < piece ? size : piece;
        unsigned char *into = gate_zmtp_room(&zmtp, &room);
        HVT_FUZZ_REQUIRE(into != NULL && room > 0 && zmtp.room <= HELD_MAX);
        if (now > room)
            now = room;
        memcpy(into, data, now);
        gate_zmtp_filled(&zmtp, now);
        data += now;
        size -= now;
        while ((outcome.status = gate_zmtp_next(&zmtp, &message)) == HVI_OK)
            note(&outcome, &message);
    }
    HVT_FUZZ_REQUIRE(outcome.status == HVI_INPROGRESS || outcome.status == HVI_ERR_PROTOCOL);
    gate_zmtp_fini(&zmtp);
    return outcome;
}

/* The first byte says how far the peer has come. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    enum gate_zmtp_stage stage = data[0] % 3;
    struct outcome whole = talk(stage, data + 1, size - 1, size);
    struct outcome pieces = talk(stage, data + 1, size - 1, size % 97 + 1);

    HVT_FUZZ_REQUIRE(whole.messages == pieces.messages && whole.digest == pieces.digest &&
                     whole.status == pieces.status);
    return 0;
}

size_t hvt_fuzz_seed(unsigned index, uint8_t *bytes_p, size_t room)
{
    static const char frames[] =
        "\x02\x01\x00\x00\x03one\x00\x03two\x03\0\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x05three"
        "\x04\x05\x04PING\x01\x01x\x00\x01y";

    HVT_FUZZ_REQUIRE(gate_zmtp_hello_bytes < room && sizeof(frames) < room);
    if (index == 0) {
        bytes_p[0] = GATE_ZMTP_GREETING;
        memcpy(bytes_p + 1, gate_zmtp_hello, gate_zmtp_hello_bytes);
        return 1 + gate_zmtp_hello_bytes;
    }
    memcpy(bytes_p, frames, sizeof(frames) - 1);
    return index == 1 ? sizeof(frames) - 1 : 0;
}
