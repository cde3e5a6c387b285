/* SPDX-License-Identifier: Apache-2.0
 * hvi_admin_reply_decode on arbitrary bytes; the property is that of fuzz_packet_msg.c. */
#include "fuzz.h"

#include "base/status.h"
#include "tests/unit/proto/wire_samples.h"

#include <string.h>

static void check_round_trip(const struct hvi_admin_reply *reply)
{
    struct hvi_admin_reply again;
    unsigned char *first = NULL, *second = NULL;
    size_t length = 0, again_length = 0;
    HVT_FUZZ_REQUIRE(hvi_admin_reply_encode(reply, &first, &length) == HVI_OK);
    HVT_FUZZ_REQUIRE(hvi_admin_reply_decode(first, length, &again, NULL, 0) == HVI_OK);
    HVT_FUZZ_REQUIRE(hvi_admin_reply_encode(&again, &second, &again_length) == HVI_OK);
    HVT_FUZZ_REQUIRE(length == again_length && memcmp(first, second, length) == 0);
    hvi_admin_reply_free(&again);
    free(first);
    free(second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hvi_admin_reply reply;
    char text[128] = "";
    int status = hvi_admin_reply_decode(data, size, &reply, text, sizeof text);
    if (status == HVI_OK) {
        check_round_trip(&reply);
        hvi_admin_reply_free(&reply);
        return 0;
    }
    HVT_FUZZ_REQUIRE(status == HVI_ERR_PROTOCOL || status == HVI_ERR_NO_MEMORY);
    HVT_FUZZ_REQUIRE(status != HVI_ERR_PROTOCOL || text[0] != '\0');
    return 0;
}

size_t hvt_fuzz_seed(unsigned index, uint8_t *bytes_p, size_t room)
{
    if (index >= HVT_REPLY_SAMPLES - 1) /* the last one is larger than an input */
        return 0;
    struct hvi_admin_reply reply;
    unsigned char *bytes = NULL;
    size_t length = 0;
    hvt_reply_sample(index, &reply);
    HVT_FUZZ_REQUIRE(hvi_admin_reply_encode(&reply, &bytes, &length) == HVI_OK);
    HVT_FUZZ_REQUIRE(length <= room);
    memcpy(bytes_p, bytes, length);
    free(bytes);
    hvi_admin_reply_free(&reply);
    return length;
}
