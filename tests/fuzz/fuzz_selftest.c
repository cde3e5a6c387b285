/* SPDX-License-Identifier: Apache-2.0
 * A target with a planted bug: the replay driver must find it and say which input it was. */
#include "fuzz.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    HVT_FUZZ_REQUIRE(!(size >= 4 && data[0] == 'a' && data[1] != 'b' && data[2] == 'c'));
    return 0;
}

size_t hvt_fuzz_seed(unsigned index, uint8_t *bytes_p, size_t room)
{
    if (index > 0 || room < 4)
        return 0;
    memcpy(bytes_p, "abcd", 4);
    return 4;
}
