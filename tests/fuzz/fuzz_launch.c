/* SPDX-License-Identifier: Apache-2.0
 * hvi_launch_decode on arbitrary bytes; the property is that of fuzz_packet_msg.c, and lists of
 * words can be cut into strings. */
#include "fuzz.h"

#include "base/status.h"
#include "tests/unit/proto/launch_samples.h"

#include <string.h>

static void check_words(const unsigned char *bytes, size_t length)
{
    HVT_FUZZ_REQUIRE(length == 0 || (bytes != NULL && bytes[length - 1] == '\0'));
}

static void check_meaning(const struct hvi_launch_msg *msg)
{
    if (msg->kind != HVI_LAUNCH_START)
        return;
    HVT_FUZZ_REQUIRE(msg->start.rank_count > 0 && msg->start.command_bytes > 1);
    check_words(msg->start.command, msg->start.command_bytes);
    check_words(msg->start.environment, msg->start.environment_bytes);
    check_words(msg->start.settings, msg->start.settings_bytes);
}

static void check_round_trip(const struct hvi_launch_msg *msg)
{
    struct hvi_launch_msg again;
    unsigned char *first = NULL, *second = NULL;
    size_t length = 0, again_length = 0;
    HVT_FUZZ_REQUIRE(hvi_launch_encode(msg, &first, &length) == HVI_OK);
    HVT_FUZZ_REQUIRE(hvi_launch_decode(first + HVI_LAUNCH_FRAME_HEAD,
                                       length - HVI_LAUNCH_FRAME_HEAD, &again, NULL, 0) == HVI_OK);
    HVT_FUZZ_REQUIRE(hvi_launch_encode(&again, &second, &again_length) == HVI_OK);
    HVT_FUZZ_REQUIRE(length == again_length && memcmp(first, second, length) == 0);
    hvi_launch_msg_free(&again);
    free(first);
    free(second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hvi_launch_msg msg;
    char text[128] = "";
    const int status = hvi_launch_decode(data, size, &msg, text, sizeof text);
    if (status == HVI_OK) {
        check_meaning(&msg);
        check_round_trip(&msg);
        hvi_launch_msg_free(&msg);
        return 0;
    }
    HVT_FUZZ_REQUIRE(status == HVI_ERR_PROTOCOL || status == HVI_ERR_NO_MEMORY);
    HVT_FUZZ_REQUIRE(status != HVI_ERR_PROTOCOL || text[0] != '\0');
    return 0;
}

size_t hvt_fuzz_seed(unsigned index, uint8_t *bytes_p, size_t room)
{
    if (index >= HVT_LAUNCH_SAMPLES)
        return 0;
    struct hvi_launch_msg msg;
    unsigned char *frame = NULL;
    size_t bytes = 0;
    hvt_launch_sample(index, &msg);
    HVT_FUZZ_REQUIRE(hvi_launch_encode(&msg, &frame, &bytes) == HVI_OK);
    HVT_FUZZ_REQUIRE(bytes - HVI_LAUNCH_FRAME_HEAD <= room);
    memcpy(bytes_p, frame + HVI_LAUNCH_FRAME_HEAD, bytes - HVI_LAUNCH_FRAME_HEAD);
    free(frame);
    return bytes - HVI_LAUNCH_FRAME_HEAD;
}
