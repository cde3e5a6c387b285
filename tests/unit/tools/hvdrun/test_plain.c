/* SPDX-License-Identifier: Apache-2.0
 * A job on this machine: what is shown and kept of it, what it reads, and how it ends. */
#include "base/clock.h"
#include "base/fate.h"
#include "tests/unit/hvt_main.h"
#include "tests/unit/tools/hvdrun/hvt_job.h"

#include <signal.h>
#include <sys/stat.h>

#define HERE "--address @ --report-time 0.1 "

static struct hvt_job job;

static void setup(void)
{
    hvt_job_setup(&job);
}

static void teardown(void)
{
    hvt_job_teardown(&job);
}

#define EXPECT_OUT(part) hvt_job_expect(&job, job.out, (part))
#define EXPECT_ERR(part) hvt_job_expect(&job, job.err, (part))

static void expect_end(int code)
{
    ck_assert_msg(job.code == code, "exit code %d after: %s%s", job.code, job.out, job.err);
}

START_TEST(ranks_have_what_torch_and_horovod_read)
{
    hvt_job_run(&job, "-np 2 " HERE,
                "test $HVD_RANK = 0 || exit 0; echo $HOROVOD_SIZE $LOCAL_WORLD_SIZE $MASTER_ADDR "
                "$HVD_ADDRESS; test $MASTER_PORT -gt 0 && echo port; echo $HOROVOD_HOSTNAME | wc "
                "-w");
    char wanted[128];
    expect_end(0);
    snprintf(wanted, sizeof wanted, "[0]<stdout>:2 2 127.0.0.1 %s\n", job.root);
    EXPECT_OUT(wanted);
    EXPECT_OUT("[0]<stdout>:port\n");
    EXPECT_OUT("[0]<stdout>:1\n");
    ck_assert_str_eq(job.err, "");
}
END_TEST

START_TEST(with_tcp_nccl_of_ranks_leaves_infiniband_alone_unless_x_says_otherwise)
{
    hvt_job_run(&job, "-np 1 --tcp " HERE, "echo $NCCL_IB_DISABLE");
    EXPECT_OUT("[0]<stdout>:1\n");
    hvt_job_run(&job, "-np 1 -x NCCL_IB_DISABLE=0 --tcp " HERE, "echo $NCCL_IB_DISABLE");
    EXPECT_OUT("[0]<stdout>:0\n");
}
END_TEST

START_TEST(rank_0_has_hvdruns_own_input)
{
    hvt_job_start(&job, "-np 2 " HERE, "cat; echo end");
    hvt_job_type(&job, "typed\n");
    hvt_job_await(&job, "[0]<stdout>:typed\n");
    hvt_job_await(&job, "[1]<stdout>:end\n"); /* which reads nothing */
    hvt_job_end(&job);
    expect_end(0);
}
END_TEST

static void expect_file(const char *name, const char *content)
{
    char path[128], found[64] = "";
    snprintf(path, sizeof path, "%s/kept/%s", job.root, name);
    FILE *file = fopen(path, "re");
    ck_assert_msg(file != NULL, "no file %s", path);
    ck_assert_uint_lt(fread(found, 1, sizeof found - 1, file), sizeof found - 1);
    fclose(file);
    ck_assert_str_eq(found, content);
    unlink(path);
}

START_TEST(output_is_kept_in_files_without_prefixes)
{
    char path[128];
    hvt_job_run(&job, "-np 11 --output-filename @/kept " HERE,
                "test $HVD_RANK = 10 && echo e >&2; echo o $HVD_RANK; printf unfinished");
    expect_end(0);
    EXPECT_OUT("[10]<stdout>:o 10\n");
    expect_file("rank.00/stdout", "o 0\nunfinished");
    expect_file("rank.00/stderr", "");
    expect_file("rank.10/stderr", "e\n");
    expect_file("rank.10/stdout", "o 10\nunfinished");
    for (int rank = 0; rank < 11; rank++) {
        snprintf(path, sizeof path, "%s/kept/rank.%02d/stdout", job.root, rank);
        unlink(path);
        snprintf(path, sizeof path, "%s/kept/rank.%02d/stderr", job.root, rank);
        unlink(path);
        snprintf(path, sizeof path, "%s/kept/rank.%02d", job.root, rank);
        ck_assert_int_eq(rmdir(path), 0);
    }
    snprintf(path, sizeof path, "%s/kept", job.root);
    ck_assert_int_eq(rmdir(path), 0); /* one folder for each rank, and no more */
}
END_TEST

START_TEST(output_that_cannot_be_kept_is_told_before_anything_runs)
{
    char wanted[256];
    hvt_job_write(&job, "file", "");
    hvt_job_run(&job, "-np 1 --output-filename @/file " HERE, "echo never");
    expect_end(1);
    ck_assert_str_eq(job.out, "");
    snprintf(wanted, sizeof wanted,
             "hvdrun: cannot keep the output of rank 0 in %s/file/rank.0: Not a directory\n",
             job.root);
    ck_assert_str_eq(job.err, wanted);
}
END_TEST

START_TEST(a_failure_ends_the_others_and_has_a_summary)
{
    hvt_job_run(&job, "-np 3 " HERE, "test $HVD_RANK = 1 && kill -9 $$; sleep 100");
    expect_end(128 + SIGKILL);
    EXPECT_ERR("hvdrun:   rank 1: was killed by signal 9 (SIGKILL), the first to fail\n");
    EXPECT_ERR("hvdrun:   ranks 0,2: ended by hvdrun (SIGTERM)\n");
}
END_TEST

START_TEST(what_ignores_the_end_is_killed_after_the_grace_time)
{
    hvt_job_run(&job, "-np 2 --grace 0.1 " HERE,
                "test $HVD_RANK = 1 && { sleep 0.2; exit 4; }; trap '' TERM; echo on; "
                "while :; do sleep 1; done");
    expect_end(4);
    EXPECT_OUT("[0]<stdout>:on\n");
    EXPECT_ERR("hvdrun:   rank 0: killed by hvdrun (SIGKILL)\n");
}
END_TEST

START_TEST(a_command_that_cannot_run_has_the_shells_exit_codes)
{
    hvt_job_run(&job, "-np 2 " HERE "/nonexistent/train", "true");
    expect_end(127);
    ck_assert_str_eq(job.err,
                     "hvdrun: cannot start rank 0: /nonexistent/train: command not found\n");
    hvt_job_run(&job, "-np 2 " HERE "/etc/passwd", "true");
    expect_end(126);
    ck_assert_str_eq(job.err, "hvdrun: cannot start rank 0: /etc/passwd: Permission denied\n");
}
END_TEST

START_TEST(without_hvdd_nothing_runs)
{
    hvt_job_run(&job, "-np 1 --address /nonexistent/hvdd", "echo never");
    expect_end(1);
    ck_assert_str_eq(job.out, "");
    EXPECT_ERR("hvdrun: no hvdd answers at /nonexistent/hvdd (nothing there); start one, or leave "
               "out --address and HVD_ADDRESS to get a private one\n");
}
END_TEST

START_TEST(an_interrupt_reaches_the_ranks_and_decides_the_exit_code)
{
    hvt_job_start(&job, "-np 2 " HERE "--verbose", "echo on; exec sleep 100");
    hvt_job_await(&job, "[0]<stdout>:on\n");
    hvt_job_await(&job, "[1]<stdout>:on\n");
    hvt_job_await(&job, "rank 1 is pid");
    kill(job.pid, SIGTERM);
    hvt_job_end(&job);
    expect_end(128 + SIGTERM);
}
END_TEST

START_TEST(a_reader_that_goes_ends_the_writers_as_a_pipe_does)
{
    signal(SIGPIPE, SIG_DFL); /* which ranks inherit */
    hvt_job_start(&job, "-np 1 " HERE, "echo on; while echo x; do sleep 0.01; done");
    hvt_job_await(&job, "[0]<stdout>:on\n");
    close(job.out_fd);
    job.out_fd = -1;
    hvt_job_end(&job);
    expect_end(128 + SIGPIPE);
    EXPECT_ERR(") was killed by signal 13 (SIGPIPE)\n");
}
END_TEST

START_TEST(a_reader_that_has_gone_when_hvdrun_itself_writes_ends_the_writers_too)
{
    signal(SIGPIPE, SIG_DFL);
    hvt_job_start(&job, "-np 1 " HERE,
                  "trap '' INT; trap 'while echo x >&2; do sleep 0.01; done' USR1; echo on; "
                  "while :; do sleep 0.01; done");
    hvt_job_await(&job, "[0]<stdout>:on\n");
    close(job.err_fd);
    job.err_fd = -1;
    kill(job.pid, SIGINT); /* of which hvdrun says something */
    kill(job.pid, SIGUSR1);
    hvt_job_end(&job);
    expect_end(128 + SIGPIPE);
}
END_TEST

START_TEST(what_is_left_running_may_finish_its_words)
{
    hvt_job_run(&job, "-np 1 " HERE, "echo soon; (sleep 0.1; echo late) &");
    expect_end(0);
    EXPECT_OUT("[0]<stdout>:soon\n[0]<stdout>:late\n");
}
END_TEST

START_TEST(what_still_runs_when_all_have_ended_well_is_ended_with_a_word)
{
    hvt_job_run(&job, "-np 2 " HERE, "sleep 100 >/dev/null 2>&1 &");
    expect_end(0);
    EXPECT_ERR("hvdrun: ended what rank 0 and 1 other left running; setsid lets a process go on\n");
    hvt_job_run(&job, "-np 2 " HERE, "test $HVD_RANK = 0 || sleep 100 >/dev/null 2>&1 &");
    expect_end(0);
    EXPECT_ERR("hvdrun: ended what rank 1 left running; setsid lets a process go on\n");
}
END_TEST

START_TEST(what_ranks_have_left_ends_with_hvdrun)
{
    const uint64_t deadline_ns = hvi_deadline_after(20 * (int64_t)HVI_NS_SEC);
    hvt_job_start(&job, "-np 1 --grace 100 " HERE,
                  "sh -c 'trap \"\" TERM; echo $$; exec >/dev/null 2>&1; "
                  "while :; do sleep 1; done' &");
    hvt_job_await(&job, "[0]<stdout>:");
    hvt_job_await(&job, "hvdrun: ended what rank 0 left running");
    const pid_t left = (pid_t)strtol(strchr(job.out, ':') + 1, NULL, 10);
    ck_assert_int_ne(hvi_process_state(left), 'X');
    kill(job.pid, SIGKILL);
    hvt_job_end(&job);
    while (hvi_process_state(left) != 'X' && hvi_process_state(left) != 'Z') {
        ck_assert_msg(!hvi_deadline_passed(deadline_ns), "%d is left", (int)left);
        usleep(1000);
    }
}
END_TEST

START_TEST(a_private_hvdd_is_ended_with_the_job)
{
    hvt_job_write(&job, "hvdd-script",
                  "#!/bin/sh\nfor word; do case $last in --ready-fd) ready=$word;; "
                  "--parent-fd) parent=$word;; esac; last=$word; done\n"
                  "echo its own words >&2\necho >/proc/self/fd/$ready\n"
                  "exec cat /proc/self/fd/$parent\n");
    hvt_job_run(&job, "-np 1 --hvdd @/hvdd-script", "ls -d $HVD_ADDRESS");
    expect_end(0);
    EXPECT_OUT("/hvdrun-");
    EXPECT_ERR("its own words\n");
    hvt_job_run(&job, "-np 1 --hvdd @/none", "echo never");
    expect_end(1);
    EXPECT_ERR("/none: No such file or directory (name it with --hvdd");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tools/hvdrun/plain");
    TCase *tests = tcase_create("plain");
    tcase_set_timeout(tests, 60);
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, ranks_have_what_torch_and_horovod_read);
    tcase_add_test(tests, with_tcp_nccl_of_ranks_leaves_infiniband_alone_unless_x_says_otherwise);
    tcase_add_test(tests, rank_0_has_hvdruns_own_input);
    tcase_add_test(tests, output_is_kept_in_files_without_prefixes);
    tcase_add_test(tests, output_that_cannot_be_kept_is_told_before_anything_runs);
    tcase_add_test(tests, a_failure_ends_the_others_and_has_a_summary);
    tcase_add_test(tests, what_ignores_the_end_is_killed_after_the_grace_time);
    tcase_add_test(tests, a_command_that_cannot_run_has_the_shells_exit_codes);
    tcase_add_test(tests, without_hvdd_nothing_runs);
    tcase_add_test(tests, an_interrupt_reaches_the_ranks_and_decides_the_exit_code);
    tcase_add_test(tests, a_reader_that_goes_ends_the_writers_as_a_pipe_does);
    tcase_add_test(tests, a_reader_that_has_gone_when_hvdrun_itself_writes_ends_the_writers_too);
    tcase_add_test(tests, what_is_left_running_may_finish_its_words);
    tcase_add_test(tests, what_still_runs_when_all_have_ended_well_is_ended_with_a_word);
    tcase_add_test(tests, what_ranks_have_left_ends_with_hvdrun);
    tcase_add_test(tests, a_private_hvdd_is_ended_with_the_job);
    suite_add_tcase(suite, tests);
    return hvt_run_suite(suite);
}
