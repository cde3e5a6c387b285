/* SPDX-License-Identifier: Apache-2.0
 * What comes to a GPU's worker and from it. What decodes must encode, and from there on decoding and encoding reproduce
 * the same bytes. */
#include "fuzz.h"

#include "base/status.h"
#include "tests/unit/proto/gpu_samples.h"

#include <string.h>

static unsigned char first[4 * HVT_FUZZ_BYTES], second[4 * HVT_FUZZ_BYTES];

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hvi_gpu_msg msg, again;
    char text[128] = "";
    size_t length = 0, again_length = 0;
    int status = hvi_gpu_msg_decode(data, size, &msg, text, sizeof(text));

    if (status != HVI_OK) {
        HVT_FUZZ_REQUIRE(status == HVI_ERR_NO_MEMORY || text[0] != '\0');
        return 0;
    }
    HVT_FUZZ_REQUIRE(hvi_gpu_msg_encode(&msg, first, sizeof(first), &length) == HVI_OK);
    if (length <= HVI_PACKET_BYTES_MAX) {
        HVT_FUZZ_REQUIRE(hvi_gpu_msg_decode(first, length, &again, NULL, 0) == HVI_OK);
        HVT_FUZZ_REQUIRE(again.kind == msg.kind);
        HVT_FUZZ_REQUIRE(hvi_gpu_msg_encode(&again, second, sizeof(second), &again_length) ==
                         HVI_OK);
        HVT_FUZZ_REQUIRE(length == again_length && memcmp(first, second, length) == 0);
        hvi_gpu_msg_free(&again);
    }
    hvi_gpu_msg_free(&msg);
    return 0;
}

size_t hvt_fuzz_seed(unsigned index, uint8_t *bytes_p, size_t room)
{
    struct hvi_gpu_msg msg;
    size_t length = 0;

    if (index >= HVI_GPU_KIND_END - HVI_GPU_START)
        return 0;
    hvt_gpu_sample((enum hvi_gpu_kind)(HVI_GPU_START + index), &msg);
    HVT_FUZZ_REQUIRE(hvi_gpu_msg_encode(&msg, bytes_p, room, &length) == HVI_OK);
    return length;
}
