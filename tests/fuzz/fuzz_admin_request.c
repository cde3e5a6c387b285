/* SPDX-License-Identifier: Apache-2.0
 * hvi_admin_request_decode on arbitrary bytes; the property is that of fuzz_packet_msg.c. */
#include "fuzz.h"

#include "base/status.h"
#include "tests/unit/proto/wire_samples.h"

#include <string.h>

static void check_round_trip(const struct hvi_admin_request *request)
{
    struct hvi_admin_request again;
    unsigned char *first = NULL, *second = NULL;
    size_t length = 0, again_length = 0;
    HVT_FUZZ_REQUIRE(hvi_admin_request_encode(request, &first, &length) == HVI_OK);
    HVT_FUZZ_REQUIRE(hvi_admin_request_decode(first, length, &again, NULL, 0) == HVI_OK);
    HVT_FUZZ_REQUIRE(hvi_admin_request_encode(&again, &second, &again_length) == HVI_OK);
    HVT_FUZZ_REQUIRE(length == again_length && memcmp(first, second, length) == 0);
    free(first);
    free(second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hvi_admin_request request;
    char text[128] = "";
    int status = hvi_admin_request_decode(data, size, &request, text, sizeof text);
    if (status == HVI_OK) {
        check_round_trip(&request);
        return 0;
    }
    HVT_FUZZ_REQUIRE(status == HVI_ERR_PROTOCOL || status == HVI_ERR_NO_MEMORY);
    HVT_FUZZ_REQUIRE(status != HVI_ERR_PROTOCOL || text[0] != '\0');
    return 0;
}

size_t hvt_fuzz_seed(unsigned index, uint8_t *bytes_p, size_t room)
{
    if (index >= HVT_REQUEST_SAMPLES)
        return 0;
    struct hvi_admin_request request;
    unsigned char *bytes = NULL;
    size_t length = 0;
    hvt_request_sample(index, &request);
    HVT_FUZZ_REQUIRE(hvi_admin_request_encode(&request, &bytes, &length) == HVI_OK);
    HVT_FUZZ_REQUIRE(length <= room);
    memcpy(bytes_p, bytes, length);
    free(bytes);
    return length;
}
