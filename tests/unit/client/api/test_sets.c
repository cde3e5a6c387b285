/* SPDX-License-Identifier: Apache-2.0
 * Process sets and joins as one rank sees them: what it knows, what it refuses, what it sends. */
#include "base/types.h"
#include "tests/unit/client/fake.h"
#include "tests/unit/hvt_main.h"

#include <stdlib.h>
#include <string.h>

#define RANK 1
#define SIZE 4

static struct hvt_fake *fake;
static struct hvd_session *session; /* rank 1 of 4 */
static struct hvt_fake_session *engine;
static float data[8];
static struct hvd_tensor tensor;
static struct hvd_op_options options;

static void set_up(void)
{
    struct hvt_fake_script script = {.manual = true};
    fake = hvt_fake_start(&script);
    session = hvt_fake_open_as(fake, RANK, SIZE);
    engine = hvt_fake_session(fake, 0);
    tensor = hvd_tensor_1d(data, HVD_FLOAT32, 8);
    hvd_op_options_init(&options);
}

static void tear_down(void)
{
    hvd_close(session);
    hvt_fake_stop(fake);
}

static void expect(int rc, int status, const char *words)
{
    ck_assert_msg(rc == status, "%s: %s", hvd_status_name(rc), hvd_last_error());
    ck_assert_msg(strstr(hvd_last_error(), words) != NULL, "'%s' is not in '%s'", words,
                  hvd_last_error());
}

static int allreduce(const char *name, int set, struct hvd_op **op_p)
{
    options.process_set = set;
    return hvd_allreduce_async(session, name, &tensor, &tensor, HVD_SUM, &options, op_p);
}

/* A set that the engine gives `id`. */
static void add(const int *ranks, int count, int id)
{
    struct hvd_op *op;
    ck_assert_msg(hvd_process_set_add_async(session, ranks, count, &op) == HVD_OK, "%s",
                  hvd_last_error());
    hvt_fake_done_rows(engine, hvt_fake_take(engine).cookie, id, 0);
    ck_assert_int_eq(hvd_wait(op, 1000000000), HVD_OK);
    ck_assert_int_eq(hvd_op_process_set(op), id);
    hvd_op_free(op);
}

static void remove_set(int id)
{
    struct hvd_op *op;
    ck_assert_int_eq(hvd_process_set_remove_async(session, id, &op), HVD_OK);
    struct hvi_submission slot = hvt_fake_take(engine);
    ck_assert_uint_eq(slot.kind, HVI_KIND_SET_REMOVE);
    ck_assert_int_eq(slot.root, id);
    ck_assert_uint_eq(slot.process_set, 0);
    hvt_fake_done(engine, slot.cookie, HVD_OK, NULL, -1);
    ck_assert_int_eq(hvd_wait(op, 1000000000), HVD_OK);
    hvd_op_free(op);
}

START_TEST(an_addition_sends_its_ranks_in_order)
{
    struct hvd_op *op;
    const int ranks[] = {3, 0, 1};
    ck_assert_int_eq(hvd_process_set_add_async(session, ranks, 3, &op), HVD_OK);
    struct hvi_submission slot = hvt_fake_take(engine);
    ck_assert_uint_eq(slot.kind, HVI_KIND_SET_ADD);
    ck_assert_uint_eq(slot.process_set, 0);
    ck_assert_uint_eq(slot.flags, HVI_SUBMIT_ANON);
    ck_assert_uint_eq(slot.aux_count, 3);
    const int64_t *sent = hvt_fake_memory(engine, slot.aux_region, slot.aux_offset);
    ck_assert(sent[0] == 0 && sent[1] == 1 && sent[2] == 3);
    ck_assert_int_eq(hvd_op_process_set(op), -1);
    hvt_fake_done_rows(engine, slot.cookie, 5, 0);
    ck_assert_int_eq(hvd_wait(op, 1000000000), HVD_OK);
    ck_assert_int_eq(hvd_op_process_set(op), 5);
    hvd_op_free(op);
}
END_TEST

START_TEST(a_rank_knows_the_sets_and_its_place_in_them)
{
    int ids[4] = {-7, -7, -7, -7};
    int ranks[4] = {-7, -7, -7, -7};
    add((const int[]){3, 1}, 2, 2);
    add((const int[]){0, 2}, 2, 1);
    ck_assert_int_eq(hvd_process_set_ids(session, ids, 2), 3);
    ck_assert(ids[0] == 0 && ids[1] == 1 && ids[2] == -7);
    ck_assert_int_eq(hvd_process_set_ids(session, ids, 4), 3);
    ck_assert_int_eq(ids[2], 2);
    ck_assert_int_eq(hvd_process_set_size(session, 0), SIZE);
    ck_assert_int_eq(hvd_process_set_rank(session, 0), RANK);
    ck_assert_int_eq(hvd_process_set_size(session, 2), 2);
    ck_assert_int_eq(hvd_process_set_rank(session, 2), 0);
    ck_assert_int_eq(hvd_process_set_rank(session, 1), -1);
    ck_assert_int_eq(hvd_process_set_ranks(session, 2, ranks, 4), 2);
    ck_assert(ranks[0] == 1 && ranks[1] == 3 && ranks[2] == -7);
    ck_assert_int_eq(hvd_process_set_ranks(session, 2, NULL, 0), 2);
    expect(hvd_process_set_rank(session, 9), HVD_ERR_NOT_FOUND, "no process set 9");
    expect(hvd_process_set_size(session, -1), HVD_ERR_NOT_FOUND, "no process set -1");
    expect(hvd_process_set_ranks(session, 9, ranks, 4), HVD_ERR_NOT_FOUND, "no process set 9");
}
END_TEST

START_TEST(nonsense_is_refused_at_once)
{
    struct hvd_op *op;
    int id;
    const int twice[] = {1, 3, 1};
    const int stranger[] = {0, 4};
    const int all[] = {3, 2, 1, 0};
    expect(hvd_process_set_add_async(session, twice, 3, &op), HVD_ERR_INVALID,
           "rank 1 is given twice");
    expect(hvd_process_set_add_async(session, stranger, 2, &op), HVD_ERR_INVALID, "no rank 4");
    expect(hvd_process_set_add_async(session, all, 4, &op), HVD_ERR_EXISTS, "process set 0");
    expect(hvd_process_set_add_async(session, all, 0, &op), HVD_ERR_INVALID, "at least one");
    expect(hvd_process_set_add_async(session, NULL, 2, &op), HVD_ERR_INVALID, "at least one");
    expect(hvd_process_set_add_async(session, all, 5, &op), HVD_ERR_INVALID, "the job has 4");
    expect(hvd_process_set_add_async(session, stranger, 1, NULL), HVD_ERR_INVALID, "NULL");
    expect(hvd_process_set_add(session, all, 1, NULL), HVD_ERR_INVALID, "id_p is NULL");
    expect(hvd_process_set_add(session, twice, 3, &id), HVD_ERR_INVALID, "twice");
    expect(hvd_process_set_remove_async(session, 0, &op), HVD_ERR_INVALID, "cannot be removed");
    expect(hvd_process_set_remove_async(session, 3, &op), HVD_ERR_NOT_FOUND, "no process set 3");
    expect(hvd_process_set_remove(session, -3), HVD_ERR_NOT_FOUND, "no process set -3");
    ck_assert(hvt_fake_is_idle(engine));
}
END_TEST

START_TEST(only_members_submit_on_a_set)
{
    struct hvd_op *op;
    add((const int[]){0, 2}, 2, 1);
    add((const int[]){1, 2}, 2, 2);
    expect(allreduce("x", 1, &op), HVD_ERR_INVALID,
           "hvd_allreduce_async('x'): rank 1 is not a member of process set 1 (ranks 0,2)");
    expect(allreduce("x", 7, &op), HVD_ERR_NOT_FOUND,
           "hvd_allreduce_async('x'): there is no process set 7 that rank 1 knows");
    expect(allreduce("x", -1, &op), HVD_ERR_NOT_FOUND, "no process set -1");
    ck_assert(hvt_fake_is_idle(engine));
    ck_assert_int_eq(allreduce("x", 2, &op), HVD_OK);
    ck_assert_uint_eq(hvt_fake_take(engine).process_set, 2);
}
END_TEST

START_TEST(roots_are_global_ranks_of_the_set)
{
    struct hvd_op *op;
    add((const int[]){1, 2}, 2, 1);
    options.process_set = 1;
    expect(hvd_broadcast_async(session, "x", &tensor, &tensor, 0, &options, &op), HVD_ERR_INVALID,
           "root is rank 0, which is not a member of process set 1 (ranks 1,2)");
    ck_assert_int_eq(hvd_broadcast_async(session, "x", &tensor, &tensor, 2, &options, &op), HVD_OK);
    ck_assert_int_eq(hvt_fake_take(engine).root, 2);
}
END_TEST

START_TEST(a_name_may_be_in_flight_once_per_set)
{
    struct hvd_op *ops[3];
    add((const int[]){1, 2}, 2, 1);
    ck_assert_int_eq(allreduce("x", 0, &ops[0]), HVD_OK);
    ck_assert_int_eq(allreduce("x", 1, &ops[1]), HVD_OK);
    ck_assert_int_eq(allreduce("x", 1, &ops[2]), HVD_ERR_DUPLICATE_NAME);
    ck_assert_int_eq(allreduce("x", 0, &ops[2]), HVD_ERR_DUPLICATE_NAME);
    struct hvi_submission a = hvt_fake_take(engine);
    struct hvi_submission b = hvt_fake_take(engine);
    ck_assert_uint_ne(a.tensor_id, b.tensor_id);
    ck_assert_uint_eq(b.flags, HVI_SUBMIT_NAMED);
    ck_assert_str_eq(hvd_op_name(ops[1]), "x");
}
END_TEST

START_TEST(unnamed_ops_are_counted_per_set)
{
    struct hvd_op *op;
    add((const int[]){1, 2}, 2, 1);
    ck_assert_int_eq(allreduce(NULL, 0, &op), HVD_OK);
    ck_assert_int_eq(allreduce(NULL, 0, &op), HVD_OK);
    ck_assert_int_eq(allreduce(NULL, 1, &op), HVD_OK);
    ck_assert_uint_eq(hvt_fake_take(engine).anon_seq, 1);
    ck_assert_uint_eq(hvt_fake_take(engine).anon_seq, 2);
    ck_assert_uint_eq(hvt_fake_take(engine).anon_seq, 1);
}
END_TEST

START_TEST(a_removed_set_is_gone_and_its_id_starts_afresh)
{
    struct hvd_op *op;
    add((const int[]){1, 2}, 2, 1);
    ck_assert_int_eq(allreduce("x", 1, &op), HVD_OK);
    hvt_fake_done(engine, hvt_fake_take(engine).cookie, HVD_OK, NULL, -1);
    ck_assert_int_eq(hvd_wait(op, 1000000000), HVD_OK);
    hvd_op_free(op);
    remove_set(1);
    expect(allreduce("x", 1, &op), HVD_ERR_NOT_FOUND, "no process set 1");
    ck_assert_int_eq(hvd_process_set_ids(session, NULL, 0), 1);
    add((const int[]){1, 3}, 2, 1);
    ck_assert_int_eq(allreduce("x", 1, &op), HVD_OK);
    ck_assert_uint_eq(hvt_fake_take(engine).flags, HVI_SUBMIT_NAMED); /* the engine forgot */
}
END_TEST

START_TEST(a_set_that_is_being_removed_takes_no_ops_but_stays_if_that_fails)
{
    struct hvd_op *removal;
    struct hvd_op *op;
    add((const int[]){1, 2}, 2, 1);
    ck_assert_int_eq(hvd_process_set_remove_async(session, 1, &removal), HVD_OK);
    expect(allreduce("x", 1, &op), HVD_ERR_NOT_FOUND, "is being removed");
    expect(hvd_process_set_remove_async(session, 1, &op), HVD_ERR_NOT_FOUND, "is being removed");
    hvt_fake_done(engine, hvt_fake_take(engine).cookie, HVD_ERR_MISMATCH, "ranks disagree", 0);
    ck_assert_int_eq(hvd_wait(removal, 1000000000), HVD_ERR_MISMATCH);
    ck_assert_int_eq(allreduce("x", 1, &op), HVD_OK);
}
END_TEST

START_TEST(a_failed_addition_leaves_nothing)
{
    struct hvd_op *op;
    ck_assert_int_eq(hvd_process_set_add_async(session, (const int[]){1, 2}, 2, &op), HVD_OK);
    hvt_fake_done(engine, hvt_fake_take(engine).cookie, HVD_ERR_EXISTS, "it is set 1", 0);
    ck_assert_int_eq(hvd_wait(op, 1000000000), HVD_ERR_EXISTS);
    ck_assert_int_eq(hvd_op_process_set(op), -1);
    hvd_op_free(op);
    ck_assert_int_eq(hvd_process_set_ids(session, NULL, 0), 1);
}
END_TEST

START_TEST(several_additions_may_be_in_flight)
{
    struct hvd_op *ops[3];
    uint64_t cookies[3];
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(hvd_process_set_add_async(session, (const int[]){i, 3}, 2, &ops[i]),
                         HVD_OK);
        cookies[i] = hvt_fake_take(engine).cookie;
    }
    for (int i = 0; i < 3; i++)
        hvt_fake_done_rows(engine, cookies[i], i + 1, 0);
    ck_assert_int_eq(hvd_wait_all(ops, 3, 1000000000), HVD_OK);
    for (int i = 0; i < 3; i++) {
        int ranks[2];
        ck_assert_int_eq(hvd_op_process_set(ops[i]), i + 1);
        ck_assert_int_eq(hvd_process_set_ranks(session, i + 1, ranks, 2), 2);
        ck_assert_int_eq(ranks[0], i);
    }
}
END_TEST

static void open_set(const int *ranks, int count, int id)
{
    struct hvd_op *op;
    ck_assert_msg(hvd_process_set_open_async(session, ranks, count, 9, &op) == HVD_OK, "%s",
                  hvd_last_error());
    hvt_fake_done_rows(engine, hvt_fake_take(engine).cookie, id, 0);
    ck_assert_int_eq(hvd_wait(op, 1000000000), HVD_OK);
    ck_assert_int_eq(hvd_op_process_set(op), id);
    hvd_op_free(op);
}

START_TEST(an_opening_sends_its_ranks_in_order_and_its_tag)
{
    struct hvd_op *op;
    ck_assert_int_eq(hvd_process_set_open_async(session, (const int[]){3, 1}, 2, 9, &op), HVD_OK);
    struct hvi_submission slot = hvt_fake_take(engine);
    ck_assert_uint_eq(slot.kind, HVI_KIND_SET_OPEN);
    ck_assert_uint_eq(slot.process_set, 0);
    ck_assert_uint_eq(slot.anon_seq, 9);
    ck_assert_uint_eq(slot.aux_count, 2);
    const int64_t *sent = hvt_fake_memory(engine, slot.aux_region, slot.aux_offset);
    ck_assert(sent[0] == 1 && sent[1] == 3);
    hvt_fake_done_rows(engine, slot.cookie, 5, 0);
    ck_assert_int_eq(hvd_wait(op, 1000000000), HVD_OK);
    ck_assert_int_eq(hvd_process_set_rank(session, 5), 0);
    hvd_op_free(op);
}
END_TEST

START_TEST(sets_with_the_same_ranks_may_be_open_together)
{
    struct hvd_op *op;
    const int all[] = {0, 1, 2, 3};
    open_set(all, SIZE, 1); /* also of all ranks */
    open_set(all, SIZE, 2);
    ck_assert_int_eq(hvd_process_set_size(session, 2), SIZE);
    ck_assert_int_eq(allreduce("x", 1, &op), HVD_OK);
    ck_assert_uint_eq(hvt_fake_take(engine).process_set, 1);
    ck_assert_int_eq(allreduce("x", 2, &op), HVD_OK);
    ck_assert_uint_eq(hvt_fake_take(engine).process_set, 2);
}
END_TEST

START_TEST(an_opening_without_this_rank_or_with_a_negative_tag_is_refused_at_once)
{
    struct hvd_op *op;
    expect(hvd_process_set_open_async(session, (const int[]){0, 3}, 2, 9, &op), HVD_ERR_INVALID,
           "rank 1, this one, is not among the ranks");
    expect(hvd_process_set_open_async(session, (const int[]){0, 1}, 2, -1, &op), HVD_ERR_INVALID,
           "tag -1 is negative");
    expect(hvd_process_set_open_async(session, (const int[]){1, 1}, 2, 9, &op), HVD_ERR_INVALID,
           "rank 1 is given twice");
    ck_assert(hvt_fake_is_idle(engine));
}
END_TEST

START_TEST(a_set_is_ended_in_the_way_in_which_it_was_made)
{
    struct hvd_op *op;
    add((const int[]){1, 2}, 2, 1);
    open_set((const int[]){1, 3}, 2, 5);
    expect(hvd_process_set_close_async(session, 1, &op), HVD_ERR_INVALID,
           "process set 1 was not opened by its members alone");
    expect(hvd_process_set_remove_async(session, 5, &op), HVD_ERR_INVALID,
           "process set 5 was opened by its members");
    ck_assert(hvt_fake_is_idle(engine));
}
END_TEST

START_TEST(a_set_takes_no_ops_from_its_closing_on)
{
    struct hvd_op *closing, *op;
    open_set((const int[]){1, 3}, 2, 5);
    ck_assert_int_eq(hvd_process_set_close_async(session, 5, &closing), HVD_OK);
    struct hvi_submission slot = hvt_fake_take(engine);
    ck_assert_uint_eq(slot.kind, HVI_KIND_SET_CLOSE);
    ck_assert_uint_eq(slot.process_set, 5);
    expect(allreduce("x", 5, &op), HVD_ERR_NOT_FOUND, "is being removed");
    hvt_fake_done_rows(engine, slot.cookie, 5, 0);
    ck_assert_int_eq(hvd_wait(closing, 1000000000), HVD_OK);
    hvd_op_free(closing);
    expect(hvd_process_set_rank(session, 5), HVD_ERR_NOT_FOUND, "no process set 5");
    expect(hvd_process_set_close_async(session, 5, &op), HVD_ERR_NOT_FOUND, "no process set 5");
}
END_TEST

START_TEST(an_addition_that_nobody_waits_for_counts)
{
    struct hvd_op *op;
    ck_assert_int_eq(hvd_process_set_add_async(session, (const int[]){1, 2}, 2, &op), HVD_OK);
    hvd_op_free(op);
    hvt_fake_done_rows(engine, hvt_fake_take(engine).cookie, 1, 0);
    ck_assert_int_eq(allreduce("x", 1, &op), HVD_OK); /* reads completions before it refuses */
}
END_TEST

START_TEST(an_engine_that_gives_an_id_twice_ends_the_session)
{
    struct hvd_op *op;
    add((const int[]){1, 2}, 2, 1);
    ck_assert_int_eq(hvd_process_set_add_async(session, (const int[]){1, 3}, 2, &op), HVD_OK);
    hvt_fake_done_rows(engine, hvt_fake_take(engine).cookie, 1, 0);
    ck_assert_int_eq(hvd_wait(op, 1000000000), HVD_ERR_PROTOCOL);
}
END_TEST

/* ---- join ---- */

START_TEST(a_joined_rank_submits_nothing_until_all_have)
{
    struct hvd_op *join;
    struct hvd_op *op;
    add((const int[]){1, 2}, 2, 1);
    ck_assert_int_eq(hvd_join_async(session, NULL, &join), HVD_OK);
    struct hvi_submission slot = hvt_fake_take(engine);
    ck_assert_uint_eq(slot.kind, HVI_KIND_JOIN);
    ck_assert_uint_eq(slot.process_set, 0);
    ck_assert_int_eq(hvd_op_joined_rank(join), -1);
    expect(allreduce("x", 0, &op), HVD_ERR_INVALID, "rank 1 has joined process set 0");
    expect(hvd_join_async(session, NULL, &op), HVD_ERR_INVALID, "rank 1 has joined");
    expect(hvd_process_set_add_async(session, (const int[]){0, 1}, 2, &op), HVD_ERR_INVALID,
           "rank 1 has joined");
    ck_assert_int_eq(allreduce("x", 1, &op), HVD_OK); /* another set */
    hvt_fake_done_rows(engine, slot.cookie, 3, 0);
    ck_assert_int_eq(allreduce("x", 0, &op), HVD_OK);
    ck_assert_int_eq(hvd_wait(join, 1000000000), HVD_OK);
    ck_assert_int_eq(hvd_op_joined_rank(join), 3);
}
END_TEST

START_TEST(a_join_of_a_set_is_about_that_set)
{
    struct hvd_op *join;
    struct hvd_op *op;
    add((const int[]){1, 2}, 2, 1);
    options.process_set = 1;
    ck_assert_int_eq(hvd_join_async(session, &options, &join), HVD_OK);
    struct hvi_submission slot = hvt_fake_take(engine);
    ck_assert_uint_eq(slot.process_set, 1);
    expect(allreduce("x", 1, &op), HVD_ERR_INVALID, "has joined process set 1 (ranks 1,2)");
    ck_assert_int_eq(allreduce("x", 0, &op), HVD_OK);
    hvt_fake_done(engine, slot.cookie, HVD_ERR_CANCELLED, "taken back", -1);
    ck_assert_int_eq(hvd_wait(join, 1000000000), HVD_ERR_CANCELLED);
    ck_assert_int_eq(hvd_op_joined_rank(join), -1);
    ck_assert_int_eq(allreduce("x", 1, &op), HVD_OK);
}
END_TEST

/* Ranks that joined early have brought fewer than the others. */
START_TEST(unnamed_ops_are_counted_afresh_after_a_join_but_not_after_a_cancelled_one)
{
    struct hvd_op *join;
    struct hvd_op *op;
    ck_assert_int_eq(allreduce(NULL, 0, &op), HVD_OK);
    hvt_fake_take(engine);
    ck_assert_int_eq(hvd_join_async(session, NULL, &join), HVD_OK);
    hvt_fake_done(engine, hvt_fake_take(engine).cookie, HVD_ERR_CANCELLED, "taken back", -1);
    ck_assert_int_eq(hvd_wait(join, 1000000000), HVD_ERR_CANCELLED);
    ck_assert_int_eq(allreduce(NULL, 0, &op), HVD_OK);
    ck_assert_uint_eq(hvt_fake_take(engine).anon_seq, 2);
    ck_assert_int_eq(hvd_join_async(session, NULL, &join), HVD_OK);
    hvt_fake_done_rows(engine, hvt_fake_take(engine).cookie, 3, 0);
    ck_assert_int_eq(hvd_wait(join, 1000000000), HVD_OK);
    ck_assert_int_eq(allreduce(NULL, 0, &op), HVD_OK);
    ck_assert_uint_eq(hvt_fake_take(engine).anon_seq, 1);
}
END_TEST

START_TEST(a_last_rank_that_does_not_exist_ends_the_session)
{
    struct hvd_op *join;
    ck_assert_int_eq(hvd_join_async(session, NULL, &join), HVD_OK);
    hvt_fake_done_rows(engine, hvt_fake_take(engine).cookie, SIZE, 0);
    ck_assert_int_eq(hvd_wait(join, 1000000000), HVD_ERR_PROTOCOL);
}
END_TEST

START_TEST(a_session_may_end_with_everything_in_flight)
{
    struct hvd_op *ops[3];
    add((const int[]){1, 2}, 2, 1);
    ck_assert_int_eq(hvd_process_set_add_async(session, (const int[]){1, 3}, 2, &ops[0]), HVD_OK);
    ck_assert_int_eq(hvd_process_set_remove_async(session, 1, &ops[1]), HVD_OK);
    ck_assert_int_eq(hvd_join_async(session, NULL, &ops[2]), HVD_OK);
    hvt_fake_die(engine);
    ck_assert_int_eq(hvd_wait_all(ops, 3, 5000000000), HVD_ERR_ENGINE_LOST);
    ck_assert_int_eq(hvd_process_set_size(session, 1), 2);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client sets");
    TCase *tcase = tcase_create("sets");
    tcase_set_timeout(tcase, 60);
    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_test(tcase, an_addition_sends_its_ranks_in_order);
    tcase_add_test(tcase, a_rank_knows_the_sets_and_its_place_in_them);
    tcase_add_test(tcase, nonsense_is_refused_at_once);
    tcase_add_test(tcase, only_members_submit_on_a_set);
    tcase_add_test(tcase, roots_are_global_ranks_of_the_set);
    tcase_add_test(tcase, a_name_may_be_in_flight_once_per_set);
    tcase_add_test(tcase, unnamed_ops_are_counted_per_set);
    tcase_add_test(tcase, a_removed_set_is_gone_and_its_id_starts_afresh);
    tcase_add_test(tcase, a_set_that_is_being_removed_takes_no_ops_but_stays_if_that_fails);
    tcase_add_test(tcase, a_failed_addition_leaves_nothing);
    tcase_add_test(tcase, several_additions_may_be_in_flight);
    tcase_add_test(tcase, an_opening_sends_its_ranks_in_order_and_its_tag);
    tcase_add_test(tcase, sets_with_the_same_ranks_may_be_open_together);
    tcase_add_test(tcase, an_opening_without_this_rank_or_with_a_negative_tag_is_refused_at_once);
    tcase_add_test(tcase, a_set_is_ended_in_the_way_in_which_it_was_made);
    tcase_add_test(tcase, a_set_takes_no_ops_from_its_closing_on);
    tcase_add_test(tcase, an_addition_that_nobody_waits_for_counts);
    tcase_add_test(tcase, an_engine_that_gives_an_id_twice_ends_the_session);
    tcase_add_test(tcase, a_joined_rank_submits_nothing_until_all_have);
    tcase_add_test(tcase, a_join_of_a_set_is_about_that_set);
    tcase_add_test(tcase,
                   unnamed_ops_are_counted_afresh_after_a_join_but_not_after_a_cancelled_one);
    tcase_add_test(tcase, a_last_rank_that_does_not_exist_ends_the_session);
    tcase_add_test(tcase, a_session_may_end_with_everything_in_flight);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
