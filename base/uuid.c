/* SPDX-License-Identifier: Apache-2.0 */
#include "base/uuid.h"

#include <stdio.h>
#include <string.h>

/* A dash stands before these bytes. */
static bool has_dash(unsigned at)
{
    return at == 4 || at == 6 || at == 8 || at == 10;
}

void hvi_uuid_format(const unsigned char bytes[HVI_UUID_BYTES], char text_p[HVI_UUID_TEXT])
{
    int length = snprintf(text_p, HVI_UUID_TEXT, "GPU-");

    for (unsigned i = 0; i < HVI_UUID_BYTES; i++)
        length += snprintf(text_p + length, HVI_UUID_TEXT - (size_t)length, "%s%02x",
                           has_dash(i) ? "-" : "", bytes[i]);
}

static int digit(char c)
{
    static const char digits[] = "0123456789abcdef";
    const char lower = c >= 'A' && c <= 'F' ? (char)(c - 'A' + 'a') : c;
    const char *at = c == '\0' ? NULL : strchr(digits, lower);

    return at == NULL ? -1 : (int)(at - digits);
}

bool hvi_uuid_parse(const char *text, unsigned char bytes_p[HVI_UUID_BYTES])
{
    unsigned char bytes[HVI_UUID_BYTES];

    if (strlen(text) != HVI_UUID_TEXT - 1 ||
        (strncmp(text, "GPU-", 4) != 0 && strncmp(text, "MIG-", 4) != 0))
        return false;
    text += 4;
    for (unsigned i = 0; i < HVI_UUID_BYTES; i++) {
        if (has_dash(i) && *text++ != '-')
            return false;
        const int high = digit(text[0]), low = high < 0 ? -1 : digit(text[1]);
        if (low < 0)
            return false;
        bytes[i] = (unsigned char)(high << 4 | low);
        text += 2;
    }
    memcpy(bytes_p, bytes, sizeof(bytes));
    return true;
}
