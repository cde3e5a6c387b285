/* SPDX-License-Identifier: Apache-2.0
 * UTF-8, against an independent decoder over every sequence of up to three bytes, and chosen longer
 * ones. */
#include "base/utf8.h"
#include "tests/unit/hvt_main.h"

#include <stdint.h>
#include <string.h>

/* One character by the definition: decode, then ask whether the shortest encoding of the result has
 * this length. */
static bool is_one_character(const unsigned char *text, size_t bytes)
{
    static const uint32_t smallest[] = {0, 1, 0x80, 0x800, 0x10000};
    static const unsigned char marks[] = {0, 0x00, 0xc0, 0xe0, 0xf0};
    static const unsigned char masks[] = {0, 0x80, 0xe0, 0xf0, 0xf8};
    if ((text[0] & masks[bytes]) != marks[bytes])
        return false;
    uint32_t character = text[0] & (unsigned char)~masks[bytes];
    for (size_t i = 1; i < bytes; i++) {
        if ((text[i] & 0xc0) != 0x80)
            return false;
        character = character << 6 | (text[i] & 0x3f);
    }
    bool surrogate = character >= 0xd800 && character <= 0xdfff;
    return character >= smallest[bytes] && character <= 0x10ffff && !surrogate;
}

static bool is_valid(const unsigned char *text, size_t bytes)
{
    if (bytes == 0)
        return true;
    for (size_t first = 1; first <= bytes && first <= 4; first++) {
        if (is_one_character(text, first) && is_valid(text + first, bytes - first))
            return true;
    }
    return false;
}

static void compare(const unsigned char *text, size_t bytes)
{
    bool expected = is_valid(text, bytes);
    if (hvi_utf8_valid((const char *)text, bytes) != expected)
        ck_abort_msg("%02x %02x %02x %02x (%zu bytes): expected %d", text[0], text[1], text[2],
                     text[3], bytes, expected);
}

START_TEST(every_sequence_of_up_to_three_bytes_is_judged_right)
{
    for (uint32_t i = 0; i < 1u << 24; i++) {
        const unsigned char text[4] = {(unsigned char)(i >> 16), (unsigned char)(i >> 8),
                                       (unsigned char)i};
        /* Sequences that start with ASCII teach nothing new beyond two bytes. */
        if (text[0] < 0x80 && (i & 0xff) != 0)
            continue;
        compare(text, 1);
        compare(text, 2);
        compare(text, 3);
    }
}
END_TEST

START_TEST(four_byte_sequences_are_judged_right)
{
    const unsigned char tails[] = {0x00, 0x7f, 0x80, 0xbf, 0xc0, 0xff};
    for (uint32_t i = 0; i < 16u * 256 * 36; i++) {
        const unsigned char text[4] = {(unsigned char)(0xf0 + i % 16), (unsigned char)(i / 16),
                                       tails[i / 4096 % 6], tails[i / 4096 / 6]};
        compare(text, 4);
    }
}
END_TEST

START_TEST(a_nul_or_a_cut_character_is_not_valid)
{
    ck_assert(hvi_utf8_valid("", 0));
    ck_assert(hvi_utf8_valid("layer/ä€😀", strlen("layer/ä€😀")));
    ck_assert(!hvi_utf8_valid("a\0b", 3));
    ck_assert(!hvi_utf8_valid("ä", 1));
    ck_assert(!hvi_utf8_valid("€", 2));
    ck_assert(!hvi_utf8_valid("😀", 3));
}
END_TEST

START_TEST(a_character_has_its_length_and_its_code)
{
    static const struct {
        const char *text;
        size_t bytes;
        uint32_t code;
    } rows[] = {{"a", 1, 'a'}, {"ä", 2, 0xe4}, {"€x", 3, 0x20ac}, {"😀", 4, 0x1f600}};
    uint32_t code;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        ck_assert_uint_eq(hvi_utf8_character(rows[i].text, strlen(rows[i].text), &code),
                          rows[i].bytes);
        ck_assert_uint_eq(code, rows[i].code);
        ck_assert(hvi_utf8_is_plain(code));
        ck_assert_uint_eq(hvi_utf8_character(rows[i].text, rows[i].bytes - 1 + (i == 0), &code),
                          i == 0 ? 1 : 0);
    }
    ck_assert_uint_eq(hvi_utf8_character("\x80", 1, &code), 0);
}
END_TEST

START_TEST(what_commands_a_terminal_or_turns_text_around_is_not_plain)
{
    static const uint32_t others[] = {0,      0x1b,   '\n',   0x7f,   0x9b,   0x9f,   0x61c,
                                      0x200e, 0x200f, 0x2028, 0x202a, 0x202e, 0x2066, 0x2069};
    static const uint32_t plain[] = {' ', '~', 0xa0, 0x200d, 0x2027, 0x202f, 0x2065, 0x206a};

    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        ck_assert_msg(!hvi_utf8_is_plain(others[i]), "U+%04X", others[i]);
    for (size_t i = 0; i < sizeof(plain) / sizeof(plain[0]); i++)
        ck_assert_msg(hvi_utf8_is_plain(plain[i]), "U+%04X", plain[i]);
}
END_TEST

START_TEST(a_cut_keeps_whole_characters_and_as_many_as_fit)
{
    const char *text = "aä€😀z";
    const size_t borders[] = {0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10, 11, 11, 11};
    for (size_t limit = 0; limit < sizeof(borders) / sizeof(borders[0]); limit++)
        ck_assert_uint_eq(hvi_utf8_cut(text, strlen(text), limit), borders[limit]);
}
END_TEST

START_TEST(a_cut_of_broken_text_stays_inside_the_limit)
{
    const char broken[] = "\x80\x80\x80\x80\x80\x80\x80\x80";
    for (size_t limit = 0; limit < 8; limit++)
        ck_assert_uint_le(hvi_utf8_cut(broken, 8, limit), limit);
    ck_assert_uint_eq(hvi_utf8_cut(broken, 8, 6), 6);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("base/utf8");
    TCase *tcase = tcase_create("utf8");
    tcase_add_test(tcase, every_sequence_of_up_to_three_bytes_is_judged_right);
    tcase_add_test(tcase, four_byte_sequences_are_judged_right);
    tcase_add_test(tcase, a_nul_or_a_cut_character_is_not_valid);
    tcase_add_test(tcase, a_character_has_its_length_and_its_code);
    tcase_add_test(tcase, what_commands_a_terminal_or_turns_text_around_is_not_plain);
    tcase_add_test(tcase, a_cut_keeps_whole_characters_and_as_many_as_fit);
    tcase_add_test(tcase, a_cut_of_broken_text_stays_inside_the_limit);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
