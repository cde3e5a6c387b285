/* SPDX-License-Identifier: Apache-2.0 */
#include "base/uid.h"

#include "base/file.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define OVERFLOW_UID 65534u

static uid_t overflow_uid(void)
{
    char text[16];

    if (hvi_file_read("/proc/sys/kernel/overflowuid", text, sizeof(text)) <= 0)
        return OVERFLOW_UID;
    return (uid_t)strtoul(text, NULL, 10);
}

/* One line of the map has all users: "0 0 4294967295". */
static bool has_every_user(void)
{
    char text[64];
    unsigned long long inside, outside, count;

    return hvi_file_read("/proc/self/uid_map", text, sizeof(text)) > 0 &&
           sscanf(text, "%llu %llu %llu", &inside, &outside, &count) == 3 && count >= UINT32_MAX;
}

bool hvi_uid_is_known(uid_t uid)
{
    return uid != overflow_uid() || has_every_user();
}
