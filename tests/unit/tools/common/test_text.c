/* SPDX-License-Identifier: Apache-2.0
 * What people read is short and right, also at the borders between units. */
#include "tools/common/text.h"

#include "tests/unit/hvt_main.h"

#define EXPECT(function, number, expected)                                                         \
    do {                                                                                           \
        char text[64];                                                                             \
        function((number), text, sizeof text);                                                     \
        ck_assert_str_eq(text, (expected));                                                        \
    } while (0)

START_TEST(bytes_have_binary_units)
{
    EXPECT(text_bytes, 0, "0 B");
    EXPECT(text_bytes, 1023, "1023 B");
    EXPECT(text_bytes, 1024, "1.0 KiB");
    EXPECT(text_bytes, 1536, "1.5 KiB");
    EXPECT(text_bytes, 1024 * 1024 - 1, "1.0 MiB");
    EXPECT(text_bytes, 64ull << 20, "64.0 MiB");
    EXPECT(text_bytes, UINT64_MAX, "16.0 EiB");
}
END_TEST

START_TEST(durations_grow_from_ns_to_days)
{
    EXPECT(text_duration, 0, "0 ns");
    EXPECT(text_duration, 999, "999 ns");
    EXPECT(text_duration, 12345, "12.3 µs");
    EXPECT(text_duration, 4000000, "4.0 ms");
    EXPECT(text_duration, 3200000000ull, "3.2 s");
    EXPECT(text_duration, 125 * 1000000000ull, "2 min 5 s");
    EXPECT(text_duration, (3 * 3600 + 12 * 60) * 1000000000ull, "3 h 12 min");
    EXPECT(text_duration, (5 * 24 + 3) * 3600 * 1000000000ull, "5 d 3 h");
}
END_TEST

START_TEST(counts_are_grouped_by_thousands)
{
    EXPECT(text_count, 0, "0");
    EXPECT(text_count, 999, "999");
    EXPECT(text_count, 1000, "1,000");
    EXPECT(text_count, 1234567, "1,234,567");
    EXPECT(text_count, UINT64_MAX, "18,446,744,073,709,551,615");
}
END_TEST

START_TEST(versions_are_numbers_with_dots)
{
    EXPECT(text_cuda_version, 12040, "12.4");
    EXPECT(text_cuda_version, 13000, "13.0");
    EXPECT(text_cuda_version, 0, "-");
    EXPECT(text_nccl_version, 21805, "2.18.5");
    EXPECT(text_nccl_version, 22809, "2.28.9");
    EXPECT(text_nccl_version, 0, "-");
}
END_TEST

START_TEST(process_letters_are_explained)
{
    EXPECT(text_process, "T", "stopped (T)");
    EXPECT(text_process, "S", "sleeping (S)");
    EXPECT(text_process, "Z", "zombie (Z)");
    EXPECT(text_process, "Q", "Q");
    EXPECT(text_process, "absent", "absent");
    EXPECT(text_process, "", "");
}
END_TEST

START_TEST(control_characters_are_shown_not_sent)
{
    EXPECT(text_safe, "plain", "plain");
    EXPECT(text_safe, "a\033[2Jb", "a\\x1b[2Jb");
    EXPECT(text_safe, "a\nb\177", "a\\x0ab\\x7f");
    EXPECT(text_safe,
           "\xc2\x9b"
           "2J",
           "\\x9b2J"); /* CSI in one character */
    EXPECT(text_safe, "µ → ü", "µ → ü");
    EXPECT(text_safe, "a\xe2\x80\xae-\xe2\x81\xa9",
           "a\\u202e-\\u2069"); /* right to left, and its end */
    EXPECT(text_safe, "\xff\xe2\x80", "\\xff\\xe2\\x80");
}
END_TEST

START_TEST(safe_text_is_cut_to_its_room)
{
    char text[8];
    text_safe("abcdefghijkl", text, sizeof text);
    ck_assert_str_eq(text, "abcdefg");
    text_safe("abcde\xe2\x82\xac", text, sizeof text);
    ck_assert_str_eq(text, "abcde");
    text_safe("\1\1\1\1", text, sizeof text);
    ck_assert_str_eq(text, "\\x01");
}
END_TEST

START_TEST(width_counts_characters)
{
    ck_assert_uint_eq(text_width(""), 0);
    ck_assert_uint_eq(text_width("12.3 µs"), 7);
}
END_TEST

START_TEST(sizes_are_parsed_with_their_unit)
{
    uint64_t bytes = 1;
    ck_assert_int_eq(text_parse_size("4", &bytes), 0);
    ck_assert_uint_eq(bytes, 4);
    ck_assert_int_eq(text_parse_size("64K", &bytes), 0);
    ck_assert_uint_eq(bytes, 65536);
    ck_assert_int_eq(text_parse_size("1m", &bytes), 0);
    ck_assert_uint_eq(bytes, 1 << 20);
    ck_assert_int_eq(text_parse_size("2GiB", &bytes), 0);
    ck_assert_uint_eq(bytes, 2ull << 30);
    ck_assert_int_eq(text_parse_size("7B", &bytes), 0);
    ck_assert_uint_eq(bytes, 7);
}
END_TEST

START_TEST(what_is_no_size_is_refused)
{
    static const char *const bad[] = {"",
                                      "K",
                                      "-1",
                                      "1.5M",
                                      "1X",
                                      "1KK",
                                      " 1",
                                      "1 K",
                                      "0x10",
                                      "99999999999G",
                                      "18446744073709551616"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        uint64_t bytes = 77;
        ck_assert_msg(text_parse_size(bad[i], &bytes) == -1, "'%s' was taken", bad[i]);
        ck_assert_uint_eq(bytes, 77);
    }
}
END_TEST

START_TEST(seconds_may_have_a_fraction)
{
    uint64_t ns = 1;
    ck_assert_int_eq(text_parse_seconds("0.25", &ns), 0);
    ck_assert_uint_eq(ns, 250000000);
    ck_assert_int_eq(text_parse_seconds("5", &ns), 0);
    ck_assert_uint_eq(ns, 5000000000ull);
    ck_assert_int_eq(text_parse_seconds("0", &ns), 0);
    ck_assert_uint_eq(ns, 0);
    static const char *const bad[] = {"", "x", "-1", "nan", "inf", "1s", "1e99"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        ck_assert_msg(text_parse_seconds(bad[i], &ns) == -1, "'%s' was taken", bad[i]);
}
END_TEST

START_TEST(whole_numbers_have_a_range)
{
    long number = 9;
    ck_assert_int_eq(text_parse_int("4", 1, 4, &number), 0);
    ck_assert_int_eq(number, 4);
    ck_assert_int_eq(text_parse_int("0", 1, 4, &number), -1);
    ck_assert_int_eq(text_parse_int("5", 1, 4, &number), -1);
    ck_assert_int_eq(text_parse_int("4x", 1, 4, &number), -1);
    ck_assert_int_eq(text_parse_int("", 0, 4, &number), -1);
    ck_assert_int_eq(text_parse_int("99999999999999999999", 1, 4, &number), -1);
    ck_assert_int_eq(number, 4);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tools/common/text");
    TCase *tests = tcase_create("text");
    tcase_add_test(tests, bytes_have_binary_units);
    tcase_add_test(tests, durations_grow_from_ns_to_days);
    tcase_add_test(tests, counts_are_grouped_by_thousands);
    tcase_add_test(tests, versions_are_numbers_with_dots);
    tcase_add_test(tests, process_letters_are_explained);
    tcase_add_test(tests, control_characters_are_shown_not_sent);
    tcase_add_test(tests, safe_text_is_cut_to_its_room);
    tcase_add_test(tests, width_counts_characters);
    tcase_add_test(tests, sizes_are_parsed_with_their_unit);
    tcase_add_test(tests, what_is_no_size_is_refused);
    tcase_add_test(tests, seconds_may_have_a_fraction);
    tcase_add_test(tests, whole_numbers_have_a_range);
    suite_add_tcase(suite, tests);
    return hvt_run_suite(suite);
}
