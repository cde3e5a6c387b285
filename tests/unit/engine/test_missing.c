/* SPDX-License-Identifier: Apache-2.0
 * An op that lacks a page of somebody's memory: what its ranks are told. */
#include "base/status.h"
#include "daemon/engine/sessions/missing.h"
#include "tests/unit/engine/hvt_ops.h"
#include "tests/unit/hvt_main.h"

#include <stdio.h>

static struct hvt_bench bench;

static void set_up(void)
{
    hvt_bench_init(&bench, 3);
}

static void tear_down(void)
{
    hvt_bench_fini(&bench);
}

/* An op of ranks 0 and 1, that has said so in the slots for this seat. */
static void run_lacking(int32_t seat)
{
    hvt_op_run(&bench, 0, HVI_KIND_ALLREDUCE, 1, "w", 0);
    bench.engine->slots.lacking = seat + 1;
    hvt_op_run(&bench, 1, HVI_KIND_ALLREDUCE, 1, "w", 0);
    hvt_op_run(&bench, 2, HVI_KIND_ALLREDUCE, 1, "w", 0);
    bench.engine->slots.lacking = 0;
}

static void expect_sentence(int32_t first, int32_t last, const char *whose)
{
    char text[HVI_TEXT_MAX + 1];

    snprintf(text, sizeof text,
             "allreduce 'w': a page of the memory of %s could not be had; look at the limits of "
             "memory there ('hvdctl doctor') and at what has changed that memory since it was "
             "allocated",
             whose);
    hvt_op_expect_all(&bench, first, last, HVI_ERR_NO_MEMORY, text);
}

START_TEST(the_rank_whose_page_could_not_be_had_is_named)
{
    char whose[64];

    snprintf(whose, sizeof whose, "rank %d (pid %d)", _i, (int)getpid());
    run_lacking(_i);
    expect_sentence(0, 2, whose);
    for (int32_t rank = 0; rank < 3; rank++) /* that op alone */
        hvt_op_run(&bench, rank, HVI_KIND_ALLREDUCE, 1, "w", 0);
    hvt_op_expect_all(&bench, 0, 2, HVI_OK, "");
}
END_TEST

START_TEST(a_page_of_no_member_is_the_engines)
{
    run_lacking(7);
    expect_sentence(0, 2, "the engine");
}
END_TEST

static void fail_waiting(const void *address)
{
    hvt_op_run(&bench, 1, HVI_KIND_ALLREDUCE, 1, "w", 0);
    engine_missing_failed(&bench.engine->sessions, bench.engine->order.waiting_first,
                          (uint64_t)(uintptr_t)address);
}

START_TEST(an_op_for_which_others_have_not_come_ends_for_who_has)
{
    fail_waiting(bench.engine->slots.region.map.base);
    expect_sentence(1, 1, "the engine");
    fail_waiting(NULL);
    expect_sentence(1, 1, "the engine");
    hvt_op_expect_nothing(&bench, 0, 0);
    hvt_op_expect_nothing(&bench, 2, 2);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine/missing");
    TCase *tcase = tcase_create("missing");

    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_loop_test(tcase, the_rank_whose_page_could_not_be_had_is_named, 0, 3);
    tcase_add_test(tcase, a_page_of_no_member_is_the_engines);
    tcase_add_test(tcase, an_op_for_which_others_have_not_come_ends_for_who_has);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
