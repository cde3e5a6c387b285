/* SPDX-License-Identifier: Apache-2.0
 * The stall table: who is missing, what its process does, how old; and the settings. */
#include "base/status.h"
#include "base/utf8.h"
#include "daemon/engine/sessions/intake.h"
#include "daemon/engine/watch/stall.h"
#include "tests/unit/engine/hvt_ops.h"
#include "tests/unit/hvt_log.h"
#include "tests/unit/hvt_main.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static struct hvt_bench bench;

static void submit(int32_t rank, const char *name)
{
    struct hvi_submission op =
        hvt_peer_op(&bench.peers[rank], HVI_KIND_ALLREDUCE, HVI_DTYPE_FLOAT32, 1, 0);

    hvt_peer_name(&bench.peers[rank], &op, (uint32_t)(unsigned char)name[0], name);
    hvt_peer_submit(&bench.peers[rank], &op);
    hvt_bench_turn(&bench);
}

START_TEST(a_waiting_op_lists_who_is_there_and_who_is_not)
{
    struct hvi_stall_row *rows;
    uint64_t left_out;
    size_t count;

    hvt_bench_init(&bench, 3);
    submit(1, "w1");
    ck_assert_int_eq(engine_stall_rows(&bench.engine->watch, 0, 10, &rows, &count, &left_out),
                     HVI_OK);
    ck_assert_uint_eq(count, 1);
    ck_assert_uint_eq(left_out, 0);
    ck_assert_str_eq(rows[0].tensor, "w1");
    ck_assert_str_eq(rows[0].op, "allreduce");
    ck_assert_str_eq(rows[0].job, HVT_JOB);
    ck_assert_uint_gt(rows[0].age_ns, 0);
    ck_assert_uint_eq(rows[0].ready_count, 1);
    ck_assert_int_eq(rows[0].ready[0], 1);
    ck_assert_uint_eq(rows[0].missing_count, 2);
    ck_assert_int_eq(rows[0].missing[0].rank, 0);
    ck_assert_int_eq(rows[0].missing[0].pid, getpid());
    ck_assert_ptr_nonnull(strstr("RS", rows[0].missing[0].process));
    ck_assert_int_eq(rows[0].missing[1].rank, 2);
    engine_stall_rows_free(rows, count);
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(rows_come_oldest_first_and_the_rest_is_counted)
{
    struct hvi_stall_row *rows;
    uint64_t left_out;
    size_t count;

    hvt_bench_init(&bench, 2);
    submit(0, "a");
    submit(1, "b");
    submit(0, "c");
    ck_assert_int_eq(engine_stall_rows(&bench.engine->watch, 0, 2, &rows, &count, &left_out),
                     HVI_OK);
    ck_assert_uint_eq(count, 2);
    ck_assert_uint_eq(left_out, 1);
    ck_assert_str_eq(rows[0].tensor, "a");
    ck_assert_str_eq(rows[1].tensor, "b");
    ck_assert_uint_ge(rows[0].age_ns, rows[1].age_ns);
    engine_stall_rows_free(rows, count);
    ck_assert_int_eq(
        engine_stall_rows(&bench.engine->watch, HVI_NS_SEC * 1000, 2, &rows, &count, &left_out),
        HVI_OK);
    ck_assert_uint_eq(count + left_out, 0);
    engine_stall_rows_free(rows, count);
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(a_finished_op_is_in_no_row)
{
    struct hvi_stall_row *rows;
    uint64_t left_out;
    size_t count;

    hvt_bench_init(&bench, 2);
    submit(0, "a");
    submit(1, "a");
    ck_assert_int_eq(engine_stall_rows(&bench.engine->watch, 0, 2, &rows, &count, &left_out),
                     HVI_OK);
    ck_assert_uint_eq(count, 0);
    engine_stall_rows_free(rows, count);
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(a_rank_that_never_came_is_absent)
{
    struct hvi_stall_row *rows;
    uint64_t left_out;
    size_t count;

    hvt_bench_init_empty(&bench, 2);
    ck_assert_int_eq(hvt_bench_attach(&bench, 0), HVI_OK);
    submit(0, "a");
    ck_assert_int_eq(engine_stall_rows(&bench.engine->watch, 0, 2, &rows, &count, &left_out),
                     HVI_OK);
    ck_assert_int_eq(rows[0].missing[0].pid, 0);
    ck_assert_str_eq(rows[0].missing[0].process, "absent");
    engine_stall_rows_free(rows, count);
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(an_allgather_that_waits_for_an_output_says_whose)
{
    struct hvi_stall_row *rows;
    uint64_t left_out;
    size_t count;

    hvt_bench_init(&bench, 2);
    for (int32_t rank = 0; rank < 2; rank++) {
        struct hvi_submission op =
            hvt_peer_op(&bench.peers[rank], HVI_KIND_ALLGATHER, HVI_DTYPE_FLOAT32, 1, 0);
        hvt_peer_name(&bench.peers[rank], &op, 1, "g");
        op.out_region = rank == 0 ? 0 : HVI_REGION_NONE;
        op.out_offset = 4096;
        op.out_capacity = rank == 0 ? 64 : 0;
        hvt_peer_submit(&bench.peers[rank], &op);
    }
    hvt_bench_turn(&bench);
    ck_assert_int_eq(engine_stall_rows(&bench.engine->watch, 0, 2, &rows, &count, &left_out),
                     HVI_OK);
    ck_assert_uint_eq(count, 1);
    ck_assert_uint_eq(rows[0].missing_count, 1);
    ck_assert_int_eq(rows[0].missing[0].rank, 1);
    engine_stall_rows_free(rows, count);
    hvt_bench_fini(&bench);
}
END_TEST

/* ---- warnings and policies ---- */

static void set_policy(enum engine_stall_policy policy)
{
    bench.engine->watch.stall_warn_ns = HVI_NS_SEC;
    bench.engine->watch.stall_act_ns = 10 * HVI_NS_SEC;
    bench.engine->watch.stall_policy = policy;
}

/* As if the op had waited for so many seconds. */
static void look_after(double seconds)
{
    uint64_t first_ns = bench.engine->order.waiting_first->first_ns;

    engine_stall_look(&bench.engine->watch, first_ns + (uint64_t)(seconds * (double)HVI_NS_SEC));
}

static void expect_notice(int32_t rank, const char *text)
{
    struct hvi_packet_msg msg;

    ck_assert(hvt_peer_expect(&bench.peers[rank], HVI_PACKET_NOTICE, &msg));
    ck_assert_int_eq(msg.notice.status, HVI_INPROGRESS);
    ck_assert(!msg.notice.session_ended);
    ck_assert_msg(strstr(msg.notice.text, text) != NULL, "%s", msg.notice.text);
    hvi_packet_msg_free(&msg);
}

static int notices_to_hvdd(void)
{
    static struct hvi_packet packet;
    struct hvi_packet_msg msg;
    int count = 0;

    while (hvi_packet_receive(bench.link, &packet, 0) == HVI_OK) {
        ck_assert_int_eq(hvi_packet_msg_decode(packet.bytes, packet.length, &msg, NULL, 0), HVI_OK);
        count += msg.kind == HVI_PACKET_NOTICE;
        hvi_packet_msg_free(&msg);
        hvi_packet_close_fds(&packet);
    }
    return count;
}

START_TEST(every_rank_is_told_of_a_stalled_op_again_and_again_and_hvdd_once)
{
    char expected[64];

    hvt_bench_init(&bench, 3);
    set_policy(ENGINE_STALL_WARN);
    bench.engine->watch.stall_warn_ns = HVI_NS_SEC;
    submit(1, "w1");
    look_after(0.9);
    ck_assert(!hvt_peer_has_message(&bench.peers[0]));
    for (int i = 1; i <= 3; i++) {
        look_after(i + 0.01 * i);
        snprintf(expected, sizeof expected, "\n0: [w1] (pid %d, ", (int)getpid());
        for (int32_t rank = 0; rank < 3; rank++)
            expect_notice(rank, expected);
        look_after(i + 0.01 * i + 0.5);
        ck_assert(!hvt_peer_has_message(&bench.peers[0]));
    }
    look_after(1000);
    expect_notice(2, "One or more tensors were submitted to be reduced, gathered or broadcasted by "
                     "subset of ranks and are waiting for remainder of ranks for more than 1 "
                     "seconds. This may indicate that");
    ck_assert_int_eq(notices_to_hvdd(), 1);
    ck_assert_uint_eq(bench.engine->order.waiting_first->parts_present, 1);
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(a_crowd_of_stalled_ops_fits_one_notice)
{
    char name[600];
    struct hvi_packet_msg msg;

    hvt_bench_init(&bench, 2);
    set_policy(ENGINE_STALL_WARN);
    for (int i = 0; i < 100; i++) {
        struct hvi_submission op =
            hvt_peer_op(&bench.peers[0], HVI_KIND_ALLREDUCE, HVI_DTYPE_FLOAT32, 1, 0);
        snprintf(name, sizeof name, "%03d_", i);
        for (size_t j = 4; j + 2 < sizeof name; j += 2)
            memcpy(name + j, "\xc3\xa4", 3);
        hvt_peer_name(&bench.peers[0], &op, (uint32_t)i, name);
        hvt_peer_submit(&bench.peers[0], &op);
        hvt_bench_turn(&bench);
    }
    engine_stall_look(&bench.engine->watch, hvi_clock_ns() + HVI_NS_SEC);
    ck_assert(hvt_peer_expect(&bench.peers[1], HVI_PACKET_NOTICE, &msg));
    ck_assert_ptr_nonnull(strstr(msg.notice.text, "\n1: [000_"));
    hvi_packet_msg_free(&msg);
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(more_ops_than_one_round_tells_are_counted)
{
    char name[8];

    hvt_log_open();
    hvt_bench_init(&bench, 2);
    set_policy(ENGINE_STALL_WARN);
    for (uint32_t i = 0; i < 70; i++) {
        snprintf(name, sizeof name, "%u", i);
        hvt_op_run(&bench, 0, HVI_KIND_ALLREDUCE, 1, name, 0);
    }
    engine_stall_look(&bench.engine->watch, hvi_clock_ns() + 2 * HVI_NS_SEC);
    ck_assert_int_eq(hvt_log_count("stall op-stalled: "), 64);
    ck_assert_int_eq(hvt_log_count("and more ops wait as long job=test-job count=6\n"), 1);
    expect_notice(1, "\n1: [0, 1, 2, 3, 4, 5, ...] (pid ");
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(a_notice_that_is_too_long_ends_with_a_whole_character)
{
    struct hvi_packet_msg msg;
    char name[600];

    hvt_bench_init(&bench, 8);
    set_policy(ENGINE_STALL_WARN);
    for (int i = 0; i < 6; i++) {
        snprintf(name, sizeof name, "%d%.*s", i, i == 0 ? _i : 0,
                 "xx"); /* any byte of a character may be the last */
        for (size_t j = strlen(name); j + 3 < sizeof name; j += 3)
            memcpy(name + j, "\xe2\x82\xac", 4);
        hvt_op_run(&bench, 0, HVI_KIND_ALLREDUCE, 1, name, 0);
    }
    engine_stall_look(&bench.engine->watch, hvi_clock_ns() + 2 * HVI_NS_SEC);
    ck_assert(hvt_peer_expect(&bench.peers[7], HVI_PACKET_NOTICE, &msg));
    ck_assert_uint_gt(strlen(msg.notice.text), HVI_TEXT_MAX - 3);
    ck_assert(hvi_utf8_valid(msg.notice.text, strlen(msg.notice.text)));
    hvi_packet_msg_free(&msg);
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(missing_ranks_that_do_not_fit_a_sentence_are_counted)
{
    char text[HVI_TEXT_MAX + 1];

    hvt_bench_init(&bench, HVT_BENCH_RANKS);
    set_policy(ENGINE_STALL_FAIL_OP);
    submit(0, "w");
    look_after(11);
    ck_assert_int_eq(hvt_peer_complete(&bench.peers[0], text, sizeof text).status, HVI_ERR_STALLED);
    ck_assert_msg(strstr(text, "for rank 1 (pid ") != NULL, "%s", text);
    ck_assert_msg(strstr(text, " more: more than the 10 s that ") != NULL, "%s", text);
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(a_rank_that_has_never_come_is_said_to_be_not_attached)
{
    char text[HVI_TEXT_MAX + 1];

    hvt_bench_init_empty(&bench, 2);
    ck_assert_int_eq(hvt_bench_attach(&bench, 0), HVI_OK);
    set_policy(ENGINE_STALL_FAIL_OP);
    submit(0, "w");
    look_after(2);
    expect_notice(0, "\n1: [w] (not attached)");
    look_after(11);
    ck_assert_int_eq(hvt_peer_complete(&bench.peers[0], text, sizeof text).status, HVI_ERR_STALLED);
    ck_assert_msg(strstr(text, "for rank 1 (not attached): more") != NULL, "%s", text);
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(fail_op_fails_the_old_op_and_no_other)
{
    char text[1024], expected[64];
    struct hvi_completion completion;

    hvt_bench_init(&bench, 2);
    set_policy(ENGINE_STALL_FAIL_OP);
    submit(1, "old");
    submit(0, "young");
    bench.engine->order.waiting_last->first_ns += HVI_NS_SEC;
    look_after(9.9);
    ck_assert(!hvt_peer_has_completion(&bench.peers[1]));
    look_after(10.2);
    completion = hvt_peer_complete(&bench.peers[1], text, sizeof text);
    ck_assert_int_eq(completion.status, HVI_ERR_STALLED);
    ck_assert_int_eq(completion.culprit, 0);
    snprintf(expected, sizeof expected, "allreduce 'old' has waited 10.2 s for rank 0 (pid %d, ",
             (int)getpid());
    ck_assert_msg(strncmp(text, expected, strlen(expected)) == 0, "%s", text);
    ck_assert(!hvt_peer_has_completion(&bench.peers[0]));
    submit(1, "young");
    completion = hvt_peer_complete(&bench.peers[0], text, sizeof text);
    ck_assert_int_eq(completion.status, HVI_OK);
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(stop_job_ends_the_job_with_the_reason)
{
    char text[1024];

    hvt_bench_init(&bench, 2);
    set_policy(ENGINE_STALL_STOP_JOB);
    submit(1, "w");
    look_after(11);
    ck_assert(bench.engine->sessions.stopping);
    struct hvi_completion completion = hvt_peer_complete(&bench.peers[1], text, sizeof text);
    ck_assert_int_eq(completion.status, HVI_ERR_JOB_STOPPED);
    ck_assert_ptr_nonnull(strstr(text, "allreduce 'w' has waited 11.0 s for rank 0 (pid "));
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(what_has_come_already_is_not_missing)
{
    hvt_bench_init(&bench, 2);
    set_policy(ENGINE_STALL_FAIL_OP);
    submit(1, "w");
    uint64_t first_ns = bench.engine->order.waiting_first->first_ns;
    struct hvi_submission op =
        hvt_peer_op(&bench.peers[0], HVI_KIND_ALLREDUCE, HVI_DTYPE_FLOAT32, 1, 0);
    hvt_peer_name(&bench.peers[0], &op, 'w', "w");
    hvt_peer_submit(&bench.peers[0], &op); /* in the ring */
    engine_stall_look(&bench.engine->watch, first_ns + 20 * HVI_NS_SEC);
    hvt_bench_turn(&bench);
    ck_assert_int_eq(hvt_peer_complete(&bench.peers[0], NULL, 0).status, HVI_OK);
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(a_missing_rank_that_waits_for_another_op_says_for_which)
{
    struct hvi_stall_row *rows;
    uint64_t left_out;
    size_t count;

    hvt_bench_init(&bench, 2);
    submit(0, "a");
    submit(1, "b");
    ck_assert_int_eq(engine_stall_rows(&bench.engine->watch, 0, 9, &rows, &count, &left_out),
                     HVI_OK);
    ck_assert_uint_eq(count, 2);
    ck_assert_str_eq(rows[0].missing[0].waits_in, "allreduce 'b'");
    ck_assert_str_eq(rows[1].missing[0].waits_in, "allreduce 'a'");
    ck_assert_uint_eq(rows[0].process_set, 0);
    engine_stall_rows_free(rows, count);
    hvt_bench_fini(&bench);
}
END_TEST

static const struct engine_watch *policy_of(const char *name, const char *value, const char *name2,
                                            const char *value2)
{
    static struct engine engine;
    struct hvi_setting settings[2] = {0};

    snprintf(settings[0].name, sizeof settings[0].name, "%s", name);
    snprintf(settings[0].value, sizeof settings[0].value, "%s", value);
    snprintf(settings[1].name, sizeof settings[1].name, "%s", name2);
    snprintf(settings[1].value, sizeof settings[1].value, "%s", value2);
    engine.start.stall_warn_ns = 60 * HVI_NS_SEC;
    engine.watch.exec = &engine.exec;
    engine.settings_rank = INT32_MAX;
    engine_settings_take(&engine, 0, settings, 2);
    return &engine.watch;
}

START_TEST(a_shutdown_time_means_stop_job_unless_something_else_is_said)
{
    const char *time = "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", *policy = "HVD_STALL_POLICY";

    ck_assert_int_eq(policy_of("A", "", "B", "")->stall_policy, ENGINE_STALL_WARN);
    ck_assert_int_eq(policy_of(time, "90", "B", "")->stall_policy, ENGINE_STALL_STOP_JOB);
    ck_assert_uint_eq(policy_of(time, "90", "B", "")->stall_act_ns, 90 * HVI_NS_SEC);
    ck_assert_int_eq(policy_of(time, "0", "B", "")->stall_policy, ENGINE_STALL_WARN);
    ck_assert_int_eq(policy_of(time, "59", "B", "")->stall_policy, ENGINE_STALL_WARN);
    ck_assert_int_eq(policy_of(time, "90", policy, "warn")->stall_policy, ENGINE_STALL_WARN);
    ck_assert_int_eq(policy_of(time, "90", policy, "fail-op")->stall_policy, ENGINE_STALL_FAIL_OP);
    ck_assert_int_eq(policy_of(time, "90", policy, "explode")->stall_policy, ENGINE_STALL_STOP_JOB);
    ck_assert_int_eq(policy_of("A", "", policy, "fail-op")->stall_policy, ENGINE_STALL_FAIL_OP);
    ck_assert_uint_eq(policy_of("A", "", policy, "stop-job")->stall_act_ns, 60 * HVI_NS_SEC);
}
END_TEST

static uint64_t configured(const char *name, const char *value, const char *name2,
                           const char *value2)
{
    static struct engine engine;
    struct hvi_setting settings[2];

    snprintf(settings[0].name, sizeof settings[0].name, "%s", name);
    snprintf(settings[0].value, sizeof settings[0].value, "%s", value);
    snprintf(settings[1].name, sizeof settings[1].name, "%s", name2);
    snprintf(settings[1].value, sizeof settings[1].value, "%s", value2);
    engine.start.stall_warn_ns = 77;
    engine.watch.exec = &engine.exec;
    engine.settings_rank = INT32_MAX;
    engine_settings_take(&engine, 0, settings, 2);
    return engine.watch.stall_warn_ns;
}

/* It may be about to wait for memory. */
START_TEST(the_timer_stays_on_between_an_ops_last_part_and_its_start)
{
    uint64_t deadline_ns = hvi_deadline_after(HVT_DEADLINE_NS);
    int enabled = SD_EVENT_OFF;

    hvt_bench_init(&bench, 2);
    struct engine *engine = bench.engine;
    struct hvi_submission op = hvt_op(&bench, 0, HVI_KIND_ALLREDUCE, 4, "w", 0);
    hvt_peer_submit(&bench.peers[0], &op);
    engine_intake_drain_all(&engine->sessions);
    op = hvt_op(&bench, 1, HVI_KIND_ALLREDUCE, 4, "w", 0);
    hvt_peer_submit(&bench.peers[1], &op);
    engine->watch.stall_looked_ns = 0; /* long ago: the timer drains the rings */
    while (engine->watch.stall_looked_ns == 0) {
        ck_assert(!hvi_deadline_passed(deadline_ns));
        sd_event_run(engine->event, 10000);
    }
    ck_assert_uint_eq(engine->order.ready_count, 1);
    ck_assert_int_ge(sd_event_source_get_enabled(engine->watch.stall_source, &enabled), 0);
    ck_assert_int_ne(enabled, SD_EVENT_OFF);
    hvt_bench_turn(&bench);
    hvt_op_expect_all(&bench, 0, 1, HVI_OK, "");
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(settings_of_the_job_override_the_daemons)
{
    ck_assert_uint_eq(configured("HVD_LOG_LEVEL", "x", "A", "b"), 77);
    ck_assert_uint_eq(configured("HVD_STALL_CHECK_TIME_SECONDS", "2.5", "A", "b"),
                      2500 * HVI_NS_MS);
    ck_assert_uint_eq(
        configured("HOROVOD_STALL_CHECK_TIME_SECONDS", "9", "HVD_STALL_CHECK_TIME_SECONDS", "3"),
        3 * HVI_NS_SEC);
    ck_assert_uint_eq(configured("HOROVOD_STALL_CHECK_TIME_SECONDS", "9", "A", "b"),
                      9 * HVI_NS_SEC);
    ck_assert_uint_eq(configured("HOROVOD_STALL_CHECK_DISABLE", "1", "A", "b"), 0);
    ck_assert_uint_eq(configured("HVD_STALL_CHECK_DISABLE", "0", "A", "b"), 77);
    ck_assert_uint_eq(configured("HVD_STALL_CHECK_TIME_SECONDS", "soon", "A", "b"), 77);
    ck_assert_uint_eq(configured("HVD_STALL_CHECK_TIME_SECONDS", "-1", "A", "b"), 77);
    ck_assert_uint_eq(configured("HVD_STALL_CHECK_TIME_SECONDS", "nan", "A", "b"), 77);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine/stall");
    TCase *tcase = tcase_create("stall");

    tcase_add_test(tcase, a_waiting_op_lists_who_is_there_and_who_is_not);
    tcase_add_test(tcase, rows_come_oldest_first_and_the_rest_is_counted);
    tcase_add_test(tcase, a_finished_op_is_in_no_row);
    tcase_add_test(tcase, a_rank_that_never_came_is_absent);
    tcase_add_test(tcase, an_allgather_that_waits_for_an_output_says_whose);
    tcase_add_test(tcase, a_missing_rank_that_waits_for_another_op_says_for_which);
    tcase_add_test(tcase, every_rank_is_told_of_a_stalled_op_again_and_again_and_hvdd_once);
    tcase_add_test(tcase, a_crowd_of_stalled_ops_fits_one_notice);
    tcase_add_test(tcase, more_ops_than_one_round_tells_are_counted);
    tcase_add_loop_test(tcase, a_notice_that_is_too_long_ends_with_a_whole_character, 0, 3);
    tcase_add_test(tcase, missing_ranks_that_do_not_fit_a_sentence_are_counted);
    tcase_add_test(tcase, a_rank_that_has_never_come_is_said_to_be_not_attached);
    tcase_add_test(tcase, fail_op_fails_the_old_op_and_no_other);
    tcase_add_test(tcase, stop_job_ends_the_job_with_the_reason);
    tcase_add_test(tcase, what_has_come_already_is_not_missing);
    tcase_add_test(tcase, a_shutdown_time_means_stop_job_unless_something_else_is_said);
    tcase_add_test(tcase, the_timer_stays_on_between_an_ops_last_part_and_its_start);
    tcase_add_test(tcase, settings_of_the_job_override_the_daemons);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
