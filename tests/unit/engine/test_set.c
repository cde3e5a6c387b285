/* SPDX-License-Identifier: Apache-2.0
 * Process sets: the table, and their life as ops of set 0. */
#include "daemon/engine/order/set.h"

#include "base/status.h"
#include "tests/unit/engine/hvt_ops.h"
#include "tests/unit/hvt_main.h"

#include <stdio.h>
#include <string.h>

/* ---- the table ---- */

static struct engine_roster roster;
static struct engine_sets sets;

/* One node has the whole job. */
static void begin(int32_t size)
{
    ck_assert_int_eq(engine_roster_init(&roster, size, NULL, (uint32_t)size), HVI_OK);
    ck_assert_int_eq(engine_sets_init(&sets, &roster), HVI_OK);
}

static void end(void)
{
    engine_sets_fini(&sets);
    engine_roster_fini(&roster);
}

static uint32_t add(const int64_t *ranks, uint32_t count)
{
    struct engine_set *set = NULL;

    ck_assert_int_eq(engine_sets_add(&sets, ranks, count, &set), HVI_OK);
    return set->id;
}

START_TEST(freed_ids_are_reused_oldest_first)
{
    static const int64_t pairs[5][2] = {{0, 1}, {0, 2}, {0, 3}, {1, 2}, {1, 3}};

    begin(4);
    ck_assert_uint_eq(engine_sets_find(&sets, 0)->size, 4);
    for (uint32_t i = 0; i < 3; i++)
        ck_assert_uint_eq(add(pairs[i], 2), i + 1);
    engine_sets_remove(&sets, engine_sets_find(&sets, 2));
    engine_sets_remove(&sets, engine_sets_find(&sets, 1));
    ck_assert_ptr_null(engine_sets_find(&sets, 1));
    ck_assert_uint_eq(add(pairs[3], 2), 2);
    ck_assert_uint_eq(add(pairs[0], 2), 1);
    ck_assert_uint_eq(add(pairs[4], 2), 4);
    end();
}
END_TEST

START_TEST(a_set_knows_its_ranks_and_is_found_by_them)
{
    static const int64_t ranks[] = {1, 3}, others[] = {1, 2}, all[] = {0, 1, 2, 3};

    begin(4);
    struct engine_set *set = engine_sets_find(&sets, add(ranks, 2));
    ck_assert_int_eq(engine_set_rank(set, 3), 1);
    ck_assert_int_eq(engine_set_rank(set, 2), -1);
    ck_assert_ptr_eq(engine_sets_find_ranks(&sets, ranks, 2), set);
    ck_assert_ptr_null(engine_sets_find_ranks(&sets, others, 2));
    ck_assert_ptr_null(engine_sets_find_ranks(&sets, ranks, 1));
    ck_assert_ptr_eq(engine_sets_find_ranks(&sets, all, 4), engine_sets_find(&sets, 0));
    ck_assert_ptr_null(engine_sets_find(&sets, UINT32_MAX));
    end();
}
END_TEST

START_TEST(there_is_a_limit_to_sets)
{
    struct engine_set *set;

    begin(64);
    for (int64_t i = 0; i < ENGINE_SETS_MAX - 1; i++) {
        int64_t ranks[2] = {i % 32, 32 + i / 32};
        add(ranks, 2);
    }
    ck_assert_int_eq(engine_sets_add(&sets, (int64_t[]){5}, 1, &set), HVI_ERR_LIMIT);
    engine_sets_remove(&sets, engine_sets_find(&sets, 700));
    ck_assert_uint_eq(add((int64_t[]){5}, 1), 700);
    end();
}
END_TEST

START_TEST(many_ranks_are_written_as_ranges_and_cut_cleanly)
{
    int32_t ranks[20];
    char text[64], tiny[8];

    for (int32_t i = 0; i < 20; i++)
        ranks[i] = i < 18 ? i : i + 5;
    engine_ranks_text(ranks, 1, text, sizeof text);
    ck_assert_str_eq(text, "rank 0");
    engine_ranks_text(ranks, 3, text, sizeof text);
    ck_assert_str_eq(text, "ranks 0,1,2");
    engine_ranks_text(ranks, 20, text, sizeof text);
    ck_assert_str_eq(text, "ranks 0-17,23-24");
    ck_assert_uint_eq(engine_ranks_text(ranks, 20, tiny, sizeof tiny), strlen(text));
    ck_assert_str_eq(tiny, "ranks 0");
}
END_TEST

/* ---- as ops ---- */

static struct hvt_bench bench;

static void submit_add(int32_t rank, const int64_t *ranks, uint32_t count)
{
    struct hvi_submission op = hvt_op(&bench, rank, HVI_KIND_SET_ADD, 0, "add", 0);

    hvt_op_integers(&bench, rank, &op, ranks, count);
    hvt_op_submit(&bench, rank, op);
}

START_TEST(a_set_is_added_when_every_rank_of_the_job_asks_in_any_order)
{
    hvt_bench_init(&bench, 3);
    submit_add(0, (int64_t[]){2, 0}, 2);
    submit_add(1, (int64_t[]){0, 2}, 2);
    hvt_op_expect_nothing(&bench, 0, 2);
    submit_add(2, (int64_t[]){0, 2}, 2);
    for (int32_t rank = 0; rank < 3; rank++)
        ck_assert_int_eq(hvt_op_expect(&bench, rank, HVI_OK, "").rows, 1);
    hvt_op_memory(&bench, 0)[0] = 4;
    hvt_op_memory(&bench, 2)[0] = 8;
    hvt_op_run(&bench, 2, HVI_KIND_ALLREDUCE, 1, "w", 1);
    hvt_op_expect_nothing(&bench, 0, 2);
    hvt_op_run(&bench, 0, HVI_KIND_ALLREDUCE, 1, "w", 1);
    hvt_op_expect(&bench, 0, HVI_OK, "");
    hvt_op_expect(&bench, 2, HVI_OK, "");
    ck_assert_float_eq(hvt_op_memory(&bench, 2)[0], 12);
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(what_makes_no_set_fails_on_every_rank)
{
    static const struct {
        int64_t ranks[3];
        uint32_t count;
        int status;
        const char *sentence;
    } rows[] = {
        {{0, 1},
         2,
         HVI_ERR_EXISTS,
         "process_set_add 'add': process set 1 has exactly these ranks already (ranks 0,1)"},
        {{0, 1, 2},
         3,
         HVI_ERR_EXISTS,
         "process_set_add 'add': process set 0 has exactly these ranks already (ranks 0,1,2)"},
        {{1, 1}, 2, HVI_ERR_INVALID, "process_set_add 'add': rank 1 stands there twice"},
        {{1, 3}, 2, HVI_ERR_INVALID, "process_set_add 'add': there is no rank 3 in a job of 3"},
        {{-1}, 1, HVI_ERR_INVALID, "process_set_add 'add': there is no rank -1 in a job of 3"},
        {{0}, 0, HVI_ERR_INVALID, "process_set_add 'add': a process set needs at least one rank"},
    };

    hvt_bench_init(&bench, 3);
    ck_assert_uint_eq(hvt_op_add_set(&bench, (int64_t[]){0, 1}, 2), 1);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        for (int32_t rank = 0; rank < 3; rank++)
            submit_add(rank, rows[i].ranks, rows[i].count);
        hvt_op_expect_all(&bench, 0, 2, rows[i].status, rows[i].sentence);
    }
    for (int32_t rank = 0; rank < 3; rank++)
        submit_add(rank, (int64_t[]){0, rank == 1}, 2);
    hvt_op_expect_all(&bench, 0, 2, HVI_ERR_MISMATCH,
                      "process_set_add 'add': ranks disagree on ranks: ranks 0,2 said [0, 0]; rank "
                      "1 said [0, 1]");
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(one_name_means_another_tensor_in_another_set)
{
    hvt_bench_init(&bench, 3);
    uint32_t pair = hvt_op_add_set(&bench, (int64_t[]){0, 1}, 2);
    hvt_op_run(&bench, 0, HVI_KIND_ALLREDUCE, 1, "w", 0); /* waits */
    hvt_op_run(&bench, 0, HVI_KIND_ALLREDUCE, 7, "w", pair);
    hvt_op_run(&bench, 1, HVI_KIND_ALLREDUCE, 7, "w", pair);
    ck_assert_uint_eq(hvt_op_expect(&bench, 0, HVI_OK, "").bytes, 28);
    ck_assert_uint_eq(hvt_op_expect(&bench, 1, HVI_OK, "").bytes, 28);
    hvt_op_expect_nothing(&bench, 0, 2);
    /* The same id, without its name, in another set: the name stays, the tensor changes. */
    struct hvi_submission op = hvt_op(&bench, 1, HVI_KIND_ALLREDUCE, 1, "w", pair);
    op.process_set = 0;
    op.flags = 0;
    hvt_op_submit(&bench, 1, op);
    hvt_op_run(&bench, 2, HVI_KIND_ALLREDUCE, 1, "w", 0);
    hvt_op_expect_all(&bench, 0, 2, HVI_OK, "");
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(who_may_not_submit_is_told_at_once_and_delays_nobody)
{
    hvt_bench_init(&bench, 4);
    uint32_t pair = hvt_op_add_set(&bench, (int64_t[]){0, 1}, 2);
    hvt_op_run(&bench, 3, HVI_KIND_ALLREDUCE, 1, "x", pair);
    hvt_op_expect(&bench, 3, HVI_ERR_INVALID,
                  "allreduce 'x': rank 3 is not a member of process set 1 (ranks 0,1)");
    hvt_op_run(&bench, 3, HVI_KIND_BARRIER, 0, "x", 77);
    hvt_op_expect(&bench, 3, HVI_ERR_NOT_FOUND, "barrier 'x': process set 77 does not exist");
    hvt_op_run(&bench, 3, HVI_KIND_BARRIER, 0, "x", UINT32_MAX);
    hvt_op_expect(&bench, 3, HVI_ERR_NOT_FOUND, NULL);
    hvt_op_run(&bench, 0, HVI_KIND_ALLREDUCE, 1, "x", pair);
    hvt_op_run(&bench, 1, HVI_KIND_ALLREDUCE, 1, "x", pair);
    hvt_op_expect_all(&bench, 0, 1, HVI_OK, "");
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(the_root_is_a_rank_of_the_job_and_has_to_be_a_member)
{
    hvt_bench_init(&bench, 4);
    uint32_t pair = hvt_op_add_set(&bench, (int64_t[]){1, 3}, 2);
    for (int32_t root = 2; root <= 3; root++) {
        for (int32_t rank = 1; rank <= 3; rank += 2) {
            struct hvi_submission op = hvt_op(&bench, rank, HVI_KIND_BROADCAST, 1, "b", pair);
            op.root = root;
            hvt_op_memory(&bench, rank)[0] = (float)rank;
            hvt_op_submit(&bench, rank, op);
        }
        for (int32_t rank = 1; rank <= 3; rank += 2)
            hvt_op_expect(&bench, rank, root == 3 ? HVI_OK : HVI_ERR_INVALID,
                          root == 3 ? ""
                                    : "broadcast 'b': root rank 2 is not a member of process set 1 "
                                      "(ranks 1,3)");
    }
    ck_assert_float_eq(hvt_op_memory(&bench, 1)[0], 3);
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(a_removed_set_fails_what_waits_in_it_and_takes_nothing_more)
{
    hvt_bench_init(&bench, 3);
    uint32_t pair = hvt_op_add_set(&bench, (int64_t[]){0, 1}, 2);
    hvt_op_run(&bench, 0, HVI_KIND_ALLREDUCE, 1, "x", pair);
    hvt_op_run(&bench, 1, HVI_KIND_JOIN, 0, "j", pair);
    hvt_op_expect(&bench, 0, HVI_OK, ""); /* the other has joined */
    hvt_op_remove_set(&bench, pair);
    hvt_op_expect(&bench, 1, HVI_ERR_NOT_FOUND,
                  "join 'j': process set 1 was removed while the op waited");
    hvt_op_expect_all(&bench, 0, 2, HVI_OK, "");
    hvt_op_run(&bench, 0, HVI_KIND_ALLREDUCE, 1, "x", pair);
    hvt_op_expect(&bench, 0, HVI_ERR_NOT_FOUND, "allreduce 'x': process set 1 does not exist");
    hvt_op_remove_set(&bench, pair);
    hvt_op_expect_all(&bench, 0, 2, HVI_ERR_NOT_FOUND,
                      "process_set_remove 'remove': process set 1 does not exist");
    hvt_op_remove_set(&bench, 0);
    hvt_op_expect_all(&bench, 0, 2, HVI_ERR_INVALID,
                      "process_set_remove 'remove': process set 0 has every rank and stays");
    ck_assert_uint_eq(hvt_op_add_set(&bench, (int64_t[]){1, 2}, 2), pair);
    hvt_op_run(&bench, 1, HVI_KIND_ALLREDUCE, 5, "x", pair); /* nothing is left of the old one */
    hvt_op_run(&bench, 2, HVI_KIND_ALLREDUCE, 5, "x", pair);
    hvt_op_expect_all(&bench, 1, 2, HVI_OK, "");
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(ranks_that_remove_different_sets_disagree)
{
    hvt_bench_init(&bench, 2);
    hvt_op_add_set(&bench, (int64_t[]){0}, 1);
    hvt_op_add_set(&bench, (int64_t[]){1}, 1);
    for (int32_t rank = 0; rank < 2; rank++) {
        struct hvi_submission op = hvt_op(&bench, rank, HVI_KIND_SET_REMOVE, 0, "remove", 0);
        op.root = rank + 1;
        hvt_op_submit(&bench, rank, op);
    }
    hvt_op_expect_all(&bench, 0, 1, HVI_ERR_MISMATCH,
                      "process_set_remove 'remove': ranks disagree on process set: rank 0 said 1; "
                      "rank 1 said 2");
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(ranks_are_named_by_their_rank_in_the_job)
{
    hvt_bench_init(&bench, 6);
    uint32_t odd = hvt_op_add_set(&bench, (int64_t[]){1, 3, 5}, 3);
    for (int32_t rank = 1; rank < 6; rank += 2)
        hvt_op_run(&bench, rank, HVI_KIND_ALLREDUCE, rank == 3 ? 2 : 1, "w", odd);
    for (int32_t rank = 1; rank < 6; rank += 2)
        hvt_op_expect(
            &bench, rank, HVI_ERR_MISMATCH,
            "allreduce 'w': ranks disagree on shape: ranks 1,5 said [1]; rank 3 said [2]");
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(thousands_of_ops_of_one_ranks_own_sets_are_ready_at_once)
{
    hvt_bench_init(&bench, 2);
    uint32_t mine[2] = {hvt_op_add_set(&bench, (int64_t[]){0}, 1),
                        hvt_op_add_set(&bench, (int64_t[]){1}, 1)};
    char name[16];

    for (int i = 0; i < 1000; i++) {
        snprintf(name, sizeof name, "n%d", i);
        for (int32_t rank = 0; rank < 2; rank++) {
            struct hvi_submission op = hvt_op(&bench, rank, HVI_KIND_BARRIER, 0, name, mine[rank]);
            hvt_peer_submit(&bench.peers[rank], &op);
        }
    }
    hvt_bench_turn(&bench);
    for (int i = 0; i < 1000; i++)
        hvt_op_expect_all(&bench, 0, 1, HVI_OK, "");
    hvt_bench_fini(&bench);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine/set");
    TCase *tcase = tcase_create("set");

    tcase_add_test(tcase, freed_ids_are_reused_oldest_first);
    tcase_add_test(tcase, a_set_knows_its_ranks_and_is_found_by_them);
    tcase_add_test(tcase, there_is_a_limit_to_sets);
    tcase_add_test(tcase, many_ranks_are_written_as_ranges_and_cut_cleanly);
    tcase_add_test(tcase, a_set_is_added_when_every_rank_of_the_job_asks_in_any_order);
    tcase_add_test(tcase, what_makes_no_set_fails_on_every_rank);
    tcase_add_test(tcase, one_name_means_another_tensor_in_another_set);
    tcase_add_test(tcase, who_may_not_submit_is_told_at_once_and_delays_nobody);
    tcase_add_test(tcase, the_root_is_a_rank_of_the_job_and_has_to_be_a_member);
    tcase_add_test(tcase, a_removed_set_fails_what_waits_in_it_and_takes_nothing_more);
    tcase_add_test(tcase, ranks_that_remove_different_sets_disagree);
    tcase_add_test(tcase, ranks_are_named_by_their_rank_in_the_job);
    tcase_add_test(tcase, thousands_of_ops_of_one_ranks_own_sets_are_ready_at_once);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
