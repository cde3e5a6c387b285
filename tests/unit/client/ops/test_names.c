/* SPDX-License-Identifier: Apache-2.0
 * Names and ids: reuse, the least recently used one goes, held ones stay, memory is bounded; and the inline cells. */
#include "client/ops/names.h"

#include "client/memory/inline.h"
#include "hvd/hvd.h"
#include "tests/unit/hvt_main.h"

#include <malloc.h>
#include <stdio.h>
#include <string.h>

static struct client_names names;

static void set_up(void)
{
    memset(&names, 0, sizeof names);
}

static void tear_down(void)
{
    client_names_fini(&names);
}

static struct client_name *claim(const char *name)
{
    struct client_name *entry = NULL;
    int rc = client_names_claim(&names, 0, name, &entry);
    ck_assert_msg(rc == HVD_OK, "'%s': %s", name, hvd_status_name(rc));
    return entry;
}

static void release(struct client_name *entry)
{
    client_names_landed(entry);
    client_names_put(entry);
}

/* Claims and releases; returns the id. */
static uint32_t use(const char *name)
{
    struct client_name *entry = claim(name);
    uint32_t id = entry->id;
    entry->defined = true;
    release(entry);
    return id;
}

START_TEST(a_name_keeps_its_id)
{
    uint32_t a = use("a");
    uint32_t b = use("b");
    ck_assert_uint_ne(a, b);
    ck_assert_uint_eq(use("a"), a);
    ck_assert_uint_eq(use("a"), a);
    ck_assert_uint_eq(use("b"), b);
}
END_TEST

START_TEST(a_name_is_defined_once)
{
    struct client_name *entry = claim("w");
    ck_assert(!entry->defined);
    entry->defined = true;
    release(entry);
    entry = claim("w");
    ck_assert(entry->defined);
    ck_assert_str_eq(entry->text, "w");
    ck_assert_uint_eq(entry->bytes, 1);
}
END_TEST

START_TEST(a_name_in_flight_cannot_be_claimed_and_can_right_after)
{
    struct client_name *entry = claim("w");
    struct client_name *again = NULL;
    ck_assert_int_eq(client_names_claim(&names, 0, "w", &again), HVD_ERR_DUPLICATE_NAME);
    ck_assert_ptr_null(again);
    client_names_landed(entry); /* complete, the op is not released yet */
    ck_assert_int_eq(client_names_claim(&names, 0, "w", &again), HVD_OK);
    ck_assert_ptr_eq(again, entry);
}
END_TEST

START_TEST(names_that_are_none_are_refused)
{
    static char long_name[HVD_NAME_MAX + 2];
    struct client_name *entry;
    memset(long_name, 'x', HVD_NAME_MAX + 1);
    ck_assert_int_eq(client_names_claim(&names, 0, "", &entry), HVD_ERR_INVALID);
    ck_assert_int_eq(client_names_claim(&names, 0, "\xff", &entry), HVD_ERR_INVALID);
    ck_assert_int_eq(client_names_claim(&names, 0, "\xc3", &entry), HVD_ERR_INVALID);
    ck_assert_int_eq(client_names_claim(&names, 0, long_name, &entry), HVD_ERR_INVALID);
    ck_assert_uint_eq(names.count, 0);
    ck_assert_uint_eq(claim(long_name + 1)->bytes, HVD_NAME_MAX);
}
END_TEST

START_TEST(a_name_that_begins_like_another_is_another)
{
    uint32_t a = use("layer");
    ck_assert_uint_ne(use("layer1"), a);
    ck_assert_uint_ne(use("laye"), a);
    ck_assert_uint_eq(use("layer"), a);
}
END_TEST

static void fill(uint32_t from, uint32_t count)
{
    char name[32];
    for (uint32_t i = from; i < from + count; i++) {
        snprintf(name, sizeof name, "tensor.%u", i);
        use(name);
    }
}

START_TEST(a_name_means_something_else_in_every_process_set)
{
    struct client_name *entries[3];
    for (int set = 0; set < 3; set++) {
        ck_assert_int_eq(client_names_claim(&names, set, "w", &entries[set]), HVD_OK);
        ck_assert_str_eq(entries[set]->text, "w");
        ck_assert_uint_eq(entries[set]->bytes, 1);
        entries[set]->defined = true;
    }
    ck_assert_ptr_ne(entries[0], entries[1]);
    ck_assert_uint_ne(entries[1]->id, entries[2]->id);
    client_names_forget_set(&names, 1);
    ck_assert(entries[0]->defined);
    ck_assert(!entries[1]->defined);
    ck_assert(entries[2]->defined);
    for (int set = 0; set < 3; set++)
        release(entries[set]);
}
END_TEST

START_TEST(the_least_recently_used_name_goes)
{
    fill(0, HVI_TENSOR_IDS);
    uint32_t first = use("tensor.0"); /* now tensor.1 is the oldest */
    uint32_t fresh = use("new");
    ck_assert_uint_eq(fresh, 1);
    ck_assert_uint_eq(use("tensor.0"), first);
    struct client_name *entry = claim("tensor.1"); /* forgotten: must be defined again */
    ck_assert(!entry->defined);
    ck_assert_uint_eq(entry->id, 2);
}
END_TEST

START_TEST(a_held_name_is_not_given_away)
{
    struct client_name *held = claim("tensor.0");
    client_names_landed(held); /* finished, but hvd_op_name still points at it */
    fill(1, 2 * HVI_TENSOR_IDS);
    ck_assert_str_eq(held->text, "tensor.0");
    struct client_name *again = claim("tensor.0");
    ck_assert_ptr_eq(again, held);
}
END_TEST

START_TEST(a_hundred_thousand_names_use_constant_memory)
{
    fill(0, 30000);
    size_t before = mallinfo2().uordblks;
    fill(30000, 100000);
    size_t after = mallinfo2().uordblks;
    ck_assert_uint_le(names.count, HVI_TENSOR_IDS);
    ck_assert_msg(after < before + 512 * 1024, "%zu bytes became %zu", before, after);
}
END_TEST

START_TEST(inline_cells_are_taken_once_and_given_back)
{
    struct client_inline area = {0};
    uint32_t cells[HVI_INLINE_BYTES / HVI_INLINE_CELL];
    uint32_t cell, count;
    uint32_t taken = 0;
    while (client_inline_take(&area, HVI_INLINE_CELL, &cell, &count)) {
        ck_assert_uint_eq(count, 1);
        cells[taken++] = cell;
    }
    ck_assert_uint_eq(taken, HVI_INLINE_BYTES / HVI_INLINE_CELL);
    ck_assert(!client_inline_take(&area, 1, &cell, &count));
    for (uint32_t i = 0; i < taken; i++)
        client_inline_put(&area, cells[i], 1);
    for (uint32_t i = 0; i < CLIENT_INLINE_WORDS; i++)
        ck_assert(area.used[i] == 0);
}
END_TEST

START_TEST(runs_of_inline_cells_do_not_overlap)
{
    static unsigned char owner[HVI_INLINE_BYTES / HVI_INLINE_CELL];
    struct client_inline area = {0};
    uint32_t cell, count;
    for (uint64_t bytes = 1; bytes <= CLIENT_INLINE_MAX; bytes += 123) {
        if (!client_inline_take(&area, bytes, &cell, &count))
            break;
        ck_assert_uint_ge(count * HVI_INLINE_CELL, bytes);
        ck_assert_uint_lt((count - 1) * HVI_INLINE_CELL, bytes);
        for (uint32_t i = 0; i < count; i++)
            ck_assert_uint_eq(owner[cell + i]++, 0);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client names");
    TCase *tcase = tcase_create("names");
    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_test(tcase, a_name_keeps_its_id);
    tcase_add_test(tcase, a_name_is_defined_once);
    tcase_add_test(tcase, a_name_in_flight_cannot_be_claimed_and_can_right_after);
    tcase_add_test(tcase, names_that_are_none_are_refused);
    tcase_add_test(tcase, a_name_that_begins_like_another_is_another);
    tcase_add_test(tcase, a_name_means_something_else_in_every_process_set);
    tcase_add_test(tcase, the_least_recently_used_name_goes);
    tcase_add_test(tcase, a_held_name_is_not_given_away);
    tcase_add_test(tcase, a_hundred_thousand_names_use_constant_memory);
    tcase_add_test(tcase, inline_cells_are_taken_once_and_given_back);
    tcase_add_test(tcase, runs_of_inline_cells_do_not_overlap);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
