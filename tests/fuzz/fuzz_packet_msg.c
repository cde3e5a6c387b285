/* SPDX-License-Identifier: Apache-2.0
 * hvi_packet_msg_decode on arbitrary bytes. What decodes must encode, and from there on decoding
 * and encoding reproduce the same bytes. */
#include "fuzz.h"

#include "base/status.h"
#include "proto/packet.h"
#include "tests/unit/proto/wire_samples.h"

#include <string.h>

/* A list that came packed is written unpacked, so an encoding may be longer than its source. */
static unsigned char first[4 * HVT_FUZZ_BYTES], second[4 * HVT_FUZZ_BYTES];

static void check_round_trip(const struct hvi_packet_msg *msg)
{
    struct hvi_packet_msg again;
    size_t length = 0, again_length = 0;
    HVT_FUZZ_REQUIRE(hvi_packet_msg_encode(msg, first, sizeof first, &length) == HVI_OK);
    if (length > HVI_PACKET_BYTES_MAX)
        return;
    HVT_FUZZ_REQUIRE(hvi_packet_msg_decode(first, length, &again, NULL, 0) == HVI_OK);
    HVT_FUZZ_REQUIRE(again.kind == msg->kind);
    HVT_FUZZ_REQUIRE(hvi_packet_msg_encode(&again, second, sizeof second, &again_length) == HVI_OK);
    HVT_FUZZ_REQUIRE(length == again_length && memcmp(first, second, length) == 0);
    hvi_packet_msg_free(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hvi_packet_msg msg;
    char text[128] = "";
    int status = hvi_packet_msg_decode(data, size, &msg, text, sizeof text);
    if (status == HVI_OK) {
        check_round_trip(&msg);
        hvi_packet_msg_free(&msg);
        return 0;
    }
    HVT_FUZZ_REQUIRE(status == HVI_ERR_PROTOCOL || status == HVI_ERR_NO_MEMORY);
    HVT_FUZZ_REQUIRE(status != HVI_ERR_PROTOCOL || text[0] != '\0');
    return 0;
}

size_t hvt_fuzz_seed(unsigned index, uint8_t *bytes_p, size_t room)
{
    if (index >= HVT_PACKET_SAMPLES)
        return 0;
    struct hvi_packet_msg msg;
    size_t length = 0;
    hvt_packet_sample(index, &msg);
    HVT_FUZZ_REQUIRE(hvi_packet_msg_encode(&msg, bytes_p, room, &length) == HVI_OK);
    hvi_packet_msg_free(&msg);
    return length;
}
