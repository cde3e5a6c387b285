/* SPDX-License-Identifier: Apache-2.0
 * UTF-8 by the table of well-formed byte sequences (Unicode, table 3-7): only the second byte has
 * ranges of its own. */
#include "base/utf8.h"

/* Length of the sequence that starts with text[0], 0 when it is not well-formed. `left` >= 1. */
static size_t sequence(const unsigned char *text, size_t left)
{
    unsigned char lead = text[0];
    size_t bytes = lead < 0x80   ? 1
                   : lead < 0xc2 ? 0
                   : lead < 0xe0 ? 2
                   : lead < 0xf0 ? 3
                   : lead < 0xf5 ? 4
                                 : 0;
    if (bytes < 2 || bytes > left)
        return bytes == 1 ? 1 : 0;
    unsigned char low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    unsigned char high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    if (text[1] < low || text[1] > high)
        return 0;
    for (size_t i = 2; i < bytes; i++) {
        if ((text[i] & 0xc0) != 0x80)
            return 0;
    }
    return bytes;
}

bool hvi_utf8_valid(const char *text, size_t bytes)
{
    const unsigned char *at = (const unsigned char *)text;
    size_t left = bytes;
    while (left > 0) {
        size_t step = *at != 0 ? sequence(at, left) : 0;
        if (step == 0)
            return false;
        at += step;
        left -= step;
    }
    return true;
}

size_t hvi_utf8_character(const char *text, size_t bytes, uint32_t *code_p)
{
    static const unsigned char lead_bits[] = {0, 0x7f, 0x1f, 0x0f, 0x07};
    const unsigned char *at = (const unsigned char *)text;
    size_t length = sequence(at, bytes);
    uint32_t code = at[0] & lead_bits[length];

    for (size_t i = 1; i < length; i++)
        code = code << 6 | (at[i] & 0x3fu);
    *code_p = code;
    return length;
}

bool hvi_utf8_is_plain(uint32_t code)
{
    static const struct {
        uint32_t first, last;
    } others[] = {
        {0, 0x1f},        {0x7f, 0x9f}, {0x61c, 0x61c}, /* Arabic letter mark */
        {0x200e, 0x200f},                               /* left-to-right and right-to-left mark */
        {0x2028, 0x202e}, /* line and paragraph separator; embeddings and overrides */
        {0x2066, 0x2069}, /* isolates */
    };

    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        if (code >= others[i].first && code <= others[i].last)
            return false;
    }
    return true;
}

size_t hvi_utf8_cut(const char *text, size_t bytes, size_t limit)
{
    if (bytes <= limit)
        return bytes;
    /* A character has at most three continuation bytes; more of them is not UTF-8, and then any cut
     * is as good. */
    size_t cut = limit;
    while (cut > 0 && limit - cut < 3 && ((unsigned char)text[cut] & 0xc0) == 0x80)
        cut--;
    return ((unsigned char)text[cut] & 0xc0) == 0x80 ? limit : cut;
}
