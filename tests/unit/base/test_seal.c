/* SPDX-License-Identifier: Apache-2.0
 * Sealed records: what was sealed is opened, in its order and by its own key alone. */
#include "base/seal.h"

#include "base/status.h"
#include "tests/unit/hvt_main.h"

#include <string.h>

static const unsigned char key[HVI_SEAL_KEY_BYTES] = "a key for one direction";
static unsigned char plain[HVI_SEAL_PLAIN_MAX], opened[HVI_SEAL_PLAIN_MAX];
static unsigned char records[3][HVI_SEAL_RECORD_MAX];
static struct hvi_seal out, in;

static void set_up(void)
{
    for (size_t i = 0; i < sizeof plain; i++)
        plain[i] = (unsigned char)(i * 7 + i / 256);
    ck_assert_int_eq(hvi_seal_init(&out, key, true), HVI_OK);
    ck_assert_int_eq(hvi_seal_init(&in, key, false), HVI_OK);
}

static void tear_down(void)
{
    hvi_seal_fini(&out);
    hvi_seal_fini(&in);
    hvi_seal_fini(&in); /* harmless */
}

static void close_one(uint32_t bytes, unsigned char *record_p)
{
    ck_assert(hvi_seal_close(&out, plain, bytes, record_p));
    ck_assert(hvi_seal_next(&out));
}

static void expect_opened(const unsigned char *record, uint32_t expected)
{
    uint32_t bytes;

    ck_assert(hvi_seal_length(record, &bytes));
    ck_assert_uint_eq(bytes, expected);
    memset(opened, 0, sizeof opened);
    ck_assert(hvi_seal_open(&in, record, opened));
    ck_assert(hvi_seal_next(&in));
    ck_assert_mem_eq(opened, plain, bytes);
}

START_TEST(records_of_all_sizes_are_opened_in_their_order)
{
    static const uint32_t sizes[] = {
        1, 15, 16, 17, 48, 4096, HVI_SEAL_PLAIN_MAX - 1, HVI_SEAL_PLAIN_MAX};

    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        close_one(sizes[i], records[0]);
        if (sizes[i] >= 16)
            ck_assert_mem_ne(records[0] + HVI_SEAL_HEAD_BYTES, plain, 16);
        expect_opened(records[0], sizes[i]);
    }
}
END_TEST

START_TEST(the_same_text_never_gives_the_same_record)
{
    close_one(64, records[0]);
    close_one(64, records[1]);
    ck_assert_mem_ne(records[0] + HVI_SEAL_HEAD_BYTES, records[1] + HVI_SEAL_HEAD_BYTES, 64);
}
END_TEST

START_TEST(no_bit_of_a_record_may_change)
{
    const uint32_t bytes = 33, all = bytes + HVI_SEAL_EXTRA_BYTES;
    uint32_t length;

    close_one(bytes, records[0]);
    for (uint32_t bit = 0; bit < 8 * all; bit++) {
        memset(records[1], 0, sizeof records[1]);
        memcpy(records[1], records[0], all);
        records[1][bit / 8] ^= (unsigned char)(1u << bit % 8);
        bool good = hvi_seal_length(records[1], &length) && hvi_seal_open(&in, records[1], opened);
        ck_assert_msg(!good, "bit %u", bit);
    }
    expect_opened(records[0], bytes); /* a record that was refused does no harm to the right one */
}
END_TEST

START_TEST(a_record_is_opened_once_and_in_its_turn)
{
    for (size_t i = 0; i < 3; i++)
        close_one(100, records[i]);
    ck_assert(!hvi_seal_open(&in, records[1], opened));
    expect_opened(records[0], 100);
    ck_assert(!hvi_seal_open(&in, records[0], opened));
    ck_assert(!hvi_seal_open(&in, records[2], opened));
    expect_opened(records[1], 100);
    expect_opened(records[2], 100);
}
END_TEST

START_TEST(another_key_opens_nothing)
{
    unsigned char other[HVI_SEAL_KEY_BYTES];
    struct hvi_seal stranger;

    memcpy(other, key, sizeof other);
    other[31] ^= 0x80;
    close_one(100, records[0]);
    ck_assert_int_eq(hvi_seal_init(&stranger, other, false), HVI_OK);
    ck_assert(!hvi_seal_open(&stranger, records[0], opened));
    hvi_seal_fini(&stranger);
}
END_TEST

START_TEST(lengths_have_bounds)
{
    const unsigned char none[] = {0, 0, 0, 0}, more[] = {1, 0x40, 0, 0}, most[] = {0, 0x40, 0, 0},
                        huge[] = {1, 0, 0, 0x80};
    uint32_t bytes;

    ck_assert(!hvi_seal_length(none, &bytes));
    ck_assert(!hvi_seal_length(more, &bytes));
    ck_assert(!hvi_seal_length(huge, &bytes));
    ck_assert(hvi_seal_length(most, &bytes));
    ck_assert_uint_eq(bytes, HVI_SEAL_PLAIN_MAX);
}
END_TEST

/* As if so many records had gone. */
START_TEST(the_key_changes_for_both_after_2_to_the_20_records)
{
    out.count = in.count = HVI_SEAL_KEY_RECORDS - 1;
    close_one(100, records[0]);
    close_one(100, records[1]);
    ck_assert_mem_ne(out.key, key, sizeof key);
    expect_opened(records[0], 100);
    expect_opened(records[1], 100);
    ck_assert_mem_eq(out.key, in.key, sizeof key);
    struct hvi_seal old;
    ck_assert_int_eq(hvi_seal_init(&old, key, false), HVI_OK);
    old.count = HVI_SEAL_KEY_RECORDS;
    ck_assert(!hvi_seal_open(&old, records[1], opened));
    hvi_seal_fini(&old);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("base/seal");
    TCase *tcase = tcase_create("seal");

    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_test(tcase, records_of_all_sizes_are_opened_in_their_order);
    tcase_add_test(tcase, the_same_text_never_gives_the_same_record);
    tcase_add_test(tcase, no_bit_of_a_record_may_change);
    tcase_add_test(tcase, a_record_is_opened_once_and_in_its_turn);
    tcase_add_test(tcase, another_key_opens_nothing);
    tcase_add_test(tcase, lengths_have_bounds);
    tcase_add_test(tcase, the_key_changes_for_both_after_2_to_the_20_records);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
