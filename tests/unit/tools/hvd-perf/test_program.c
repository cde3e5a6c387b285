/* SPDX-License-Identifier: Apache-2.0
 * hvd-perf as its ranks run it, beside a real hvdd that all tests share: which rows come, that results are checked, and what
 * it says where nothing can be measured. How long anything takes is not looked at. */
#include "tests/unit/hvt_main.h"
#include "tests/unit/hvt_process.h"

#include <cjson/cJSON.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#define READY_MS  30000
#define RANKS_MAX 4
#define WORDS_MAX 32
#define IN_FILE   (-2)

static char root[64], address[80];
static pid_t hvdd;
static char out[65536], err[8192]; /* of all ranks */
static int elsewhere = IN_FILE;    /* their standard output; -1: closed */

static const char *in_root(const char *name)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", root, name);
    return path;
}

/* ---- hvdd ---- */

static void run_hvdd(int ready)
{
    char path[512], runtime[128], fd[32];
    snprintf(path, sizeof path, "%s/bin/hvdd", getenv("HVD_BUILD_DIR"));
    snprintf(runtime, sizeof runtime, "--runtime-dir=%s", address);
    snprintf(fd, sizeof fd, "--ready-fd=%d", ready);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    /* Nothing here is about time: an engine may be slow on a busy machine. */
    execl(path, "hvdd", runtime, "--private=yes", "--log-level=error", "--config=/dev/null",
          "--attach-timeout=60s", "--engine-silence=60s", fd, (char *)NULL);
    _exit(127);
}

static void start_hvdd(void)
{
    int ends[2];
    char byte;
    snprintf(root, sizeof root, "/tmp/hvt-perf-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(root));
    snprintf(address, sizeof address, "%s/run", root);
    ck_assert_int_eq(pipe(ends), 0);
    fcntl(ends[0], F_SETFD, FD_CLOEXEC);
    hvdd = fork();
    if (hvdd == 0)
        run_hvdd(ends[1]);
    close(ends[1]);
    struct pollfd ready = {.fd = ends[0], .events = POLLIN};
    ck_assert(poll(&ready, 1, READY_MS) == 1 && read(ends[0], &byte, 1) == 1);
    close(ends[0]);
}

static void stop_hvdd(void)
{
    static const char *const files[] = {"out", "err", "sizes"};
    kill(hvdd, SIGTERM);
    ck_assert_int_eq(hvt_wait_child(hvdd), 0);
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
        unlink(in_root(files[i]));
    ck_assert_int_eq(rmdir(root), 0);
}

/* ---- hvd-perf ---- */

static void set_number(const char *name, int number)
{
    char text[16];
    snprintf(text, sizeof text, "%d", number);
    setenv(name, text, 1);
}

/* rank < 0: as a user starts it. */
static pid_t start(const char *words, int rank, int size)
{
    static char line[1024];
    char program[512], job[32], *rest, *argv[WORDS_MAX + 1] = {(char[]){"hvd-perf"}};
    int argc = 1;
    const pid_t pid = fork();
    if (pid != 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    snprintf(job, sizeof job, "perf-%d", (int)getppid());
    setenv("HVD_JOB_ID", job, 1);
    if (rank >= 0) {
        set_number("HVD_RANK", rank);
        set_number("HVD_SIZE", size);
    }
    dup2(open(in_root("out"), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600), STDOUT_FILENO);
    if (elsewhere == -1)
        close(STDOUT_FILENO);
    else if (elsewhere >= 0)
        dup2(elsewhere, STDOUT_FILENO);
    dup2(open(in_root("err"), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600), STDERR_FILENO);
    snprintf(line, sizeof line, "%s", words);
    for (char *word = strtok_r(line, " ", &rest); word != NULL && argc < WORDS_MAX;
         word = strtok_r(NULL, " ", &rest))
        argv[argc++] = word;
    snprintf(program, sizeof program, "%s/bin/hvd-perf", getenv("HVD_BUILD_DIR"));
    execv(program, argv);
    _exit(127);
}

static void read_text(const char *name, char *text_p, size_t size)
{
    FILE *file = fopen(in_root(name), "re");
    ck_assert_ptr_nonnull(file);
    const size_t length = fread(text_p, 1, size - 1, file);
    fclose(file);
    text_p[length] = '\0';
}

/* The exit status of the ranks that run, which is the same; of `size`. */
static int run(const char *words, int ranks, int size)
{
    pid_t pids[RANKS_MAX];
    int code = -1;
    unlink(in_root("out"));
    unlink(in_root("err"));
    for (int rank = 0; rank < ranks; rank++)
        pids[rank] = start(words, size > 0 ? rank : -1, size);
    for (int rank = 0; rank < ranks; rank++) {
        const int status = hvt_wait_child(pids[rank]);
        ck_assert(WIFEXITED(status));
        ck_assert(code < 0 || code == WEXITSTATUS(status));
        code = WEXITSTATUS(status);
    }
    read_text("out", out, sizeof out);
    read_text("err", err, sizeof err);
    return code;
}

/* Runs it with two ranks, which have to end well and say nothing but their rows. */
static void measure(const char *words)
{
    const int code = run(words, 2, 2);
    ck_assert_msg(code == 0, "%s: exit status %d: %s", words, code, err);
    ck_assert_str_eq(err, "");
}

/* The row of that number, to be deleted by the caller; NULL: there are fewer. */
static cJSON *row(int number)
{
    const char *line = out;
    while (number-- > 0 && line[0] != '\0')
        line += strcspn(line, "\n") + 1;
    return line[0] == '\0' ? NULL : cJSON_ParseWithOpts(line, NULL, 0);
}

static double number_of(const cJSON *object, const char *name)
{
    return cJSON_GetNumberValue(cJSON_GetObjectItem(object, name));
}

/* Fails unless that row is there, is of that op and size, and its results, which a barrier has not,
 * were right. */
static void expect_row(int number, const char *op, int bytes, int iterations)
{
    cJSON *object = row(number);
    ck_assert_msg(object != NULL, "no row %d: %s", number, out);
    ck_assert_str_eq(cJSON_GetStringValue(cJSON_GetObjectItem(object, "op")), op);
    ck_assert_int_eq((int)number_of(object, "np"), 2);
    ck_assert_int_eq((int)number_of(object, "bytes"), bytes);
    if (strcmp(op, "barrier") == 0)
        ck_assert(cJSON_IsNull(cJSON_GetObjectItem(object, "errors")));
    else
        ck_assert_int_eq((int)number_of(object, "errors"), 0);
    if (iterations > 0)
        ck_assert_int_eq((int)number_of(object, "iterations"), iterations);
    ck_assert(number_of(object, "time_us_min") <= number_of(object, "time_us"));
    ck_assert(number_of(object, "time_us") <= number_of(object, "time_us_p99"));
    cJSON_Delete(object);
}

static void expect_rows(int count)
{
    cJSON *object = row(count);
    ck_assert_msg(object == NULL, "more than %d rows: %s", count, out);
    cJSON_Delete(object);
}

static const struct {
    const char *op, *words;
} ops[] = {
    {"allreduce", "--memory shared --reduce-op average"},
    {"allgather", "--memory malloc --dtype int32"},
    {"broadcast", "--memory registered --out-of-place"},
    {"alltoall", "--memory adopted --dtype float64 --unnamed"},
    {"reducescatter", "--memory malloc --reduce-op max"},
};

START_TEST(each_op_has_a_row_for_each_size_and_right_results)
{
    char words[256];
    snprintf(words, sizeof words, "-o %s %s -b 64 -e 64K -f 32 -w 1 -i 3 -c --json", ops[_i].op,
             ops[_i].words);
    measure(words);
    expect_row(0, ops[_i].op, 64, 3);
    expect_row(1, ops[_i].op, 2048, 3);
    expect_row(2, ops[_i].op, 65536, 3);
    expect_rows(3);
}
END_TEST

START_TEST(a_barrier_has_one_row_and_nothing_that_is_checked)
{
    measure("-o barrier -w 0 -i 2 -c --json");
    expect_row(0, "barrier", 0, 2);
    expect_rows(1);
}
END_TEST

START_TEST(many_ops_in_flight_with_names_of_their_own_are_right)
{
    measure("-b 512 -e 512 --outstanding 40 -w 1 -i 2 -c --json --new-names --no-barrier");
    expect_row(0, "allreduce", 512, 2);
    cJSON *object = row(0);
    ck_assert_int_eq((int)number_of(object, "outstanding"), 40);
    ck_assert_int_eq((int)number_of(object, "nodes"), 1);
    ck_assert_int_eq((int)number_of(object, "warmup"), 1);
    ck_assert(cJSON_IsFalse(cJSON_GetObjectItem(object, "barrier")));
    ck_assert(cJSON_IsFalse(cJSON_GetObjectItem(object, "out_of_place")));
    ck_assert_str_eq(cJSON_GetStringValue(cJSON_GetObjectItem(object, "names")), "new");
    cJSON_Delete(object);
}
END_TEST

START_TEST(ranks_agree_on_a_number_of_iterations)
{
    measure("-b 4 -e 4 -w 0 --seconds 0.001 -c --json");
    expect_row(0, "allreduce", 4, 0);
    cJSON *object = row(0);
    ck_assert_int_ge((int)number_of(object, "iterations"), 5);
    cJSON_Delete(object);
}
END_TEST

START_TEST(tensors_of_a_file_are_one_row)
{
    char words[256];
    FILE *file = fopen(in_root("sizes"), "we");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs("100 first\n7\n5000 last\n", file), 0);
    ck_assert_int_eq(fclose(file), 0);
    snprintf(words, sizeof words, "-o gradients --sizes %s -w 1 -i 2 -c --json --memory %s",
             in_root("sizes"), _i == 0 ? "malloc" : "shared");
    measure(words);
    expect_row(0, "gradients", 5107 * 4, 2);
    expect_rows(1);
}
END_TEST

START_TEST(without_json_there_is_a_table)
{
    measure("-b 8 -e 8 -w 0 -i 1 -c");
    ck_assert_ptr_nonnull(strstr(out, "\n allreduce"));
    ck_assert_ptr_nonnull(strstr(out, "hvd-perf"));
}
END_TEST

START_TEST(cycles_of_open_and_close_leave_no_descriptor)
{
    measure("--attach 3 --json");
    cJSON *object = row(0);
    ck_assert_str_eq(cJSON_GetStringValue(cJSON_GetObjectItem(object, "op")), "attach");
    ck_assert_int_eq((int)number_of(object, "np"), 2);
    ck_assert_int_eq((int)number_of(object, "iterations"), 3);
    ck_assert_int_eq((int)number_of(object, "errors"), 0);
    ck_assert(number_of(object, "fds_before") == number_of(object, "fds_after"));
    cJSON_Delete(object);
    measure("--attach 1");
    ck_assert_ptr_nonnull(strstr(out, "# attach, 2 ranks, 1 cycles"));
    ck_assert_ptr_nonnull(strstr(out, "left open on all ranks: 0\n"));
}
END_TEST

START_TEST(idle_ranks_say_once_that_all_are_there)
{
    measure("--idle 0.001");
    ck_assert_str_eq(out, "idle\n");
    measure("--idle 0.001 --json");
    cJSON *object = row(0);
    ck_assert_str_eq(cJSON_GetStringValue(cJSON_GetObjectItem(object, "op")), "idle");
    ck_assert_int_eq((int)number_of(object, "np"), 2);
    cJSON_Delete(object);
    expect_rows(1);
}
END_TEST

/* ---- where it cannot ---- */

static const struct {
    const char *words, *sentence;
} waits[] = {
    {"-b 8 -w 0 -i 1 --no-barrier", "HVD_ERR_TIMEOUT: hvd_wait: allreduce 'perf.0.0'"},
    {"-b 8 -w 0 -i 1", "barrier: HVD_ERR_TIMEOUT: hvd_wait: barrier 'perf.barrier'"},
    {"--idle 1", "barrier: HVD_ERR_TIMEOUT: hvd_wait: barrier 'perf.idle'"},
    {"--attach 1", "barrier: HVD_ERR_TIMEOUT: hvd_wait: barrier 'perf.attached'"},
};

START_TEST(a_rank_that_does_not_come_is_waited_for_once_until_the_timeout)
{
    char words[128], sentence[256];
    snprintf(words, sizeof words, "%s --timeout 0.02", waits[_i].words);
    snprintf(sentence, sizeof sentence, "hvd-perf: rank 0: %s", waits[_i].sentence);
    ck_assert_int_eq(run(words, 1, 2), 1);
    ck_assert_msg(strstr(err, sentence) == err, "%s: %s", words, err);
    ck_assert_msg(strchr(err, '\n') == err + strlen(err) - 1, "more than a sentence: %s", err);
}
END_TEST

START_TEST(a_file_of_sizes_that_is_not_there_is_told_by_each_rank)
{
    ck_assert_int_eq(run("-o gradients --sizes /nonexistent/sizes", 2, 2), 1);
    for (int rank = 0; rank < 2; rank++) {
        char text[128];
        snprintf(text, sizeof text, "rank %d: cannot read /nonexistent/sizes: No such file", rank);
        ck_assert_msg(strstr(err, text) != NULL, "%s", err);
    }
}
END_TEST

START_TEST(without_a_hvdd_there_is_a_sentence)
{
    static const char *const ways[] = {"--address /nonexistent",
                                       "--address /nonexistent --attach 1"};
    ck_assert_int_eq(run(ways[_i], 1, 1), 1);
    ck_assert_msg(strstr(err, "HVD_ERR_NO_DAEMON: ") != NULL, "%s", err);
    ck_assert_str_eq(out, "");
}
END_TEST

START_TEST(help_and_version_need_no_hvdd_and_nonsense_is_refused)
{
    ck_assert_int_eq(run("--help", 1, 0), 0);
    ck_assert_ptr_eq(strstr(out, "Usage: hvd-perf [options]\n"), out);
    ck_assert_int_eq(run("--version", 1, 0), 0);
    ck_assert_str_eq(out, "hvd-perf " HVD_VERSION_TEXT "\n");
    ck_assert_int_eq(run("-o dance", 1, 0), 2);
    ck_assert_ptr_nonnull(strstr(err, "not 'dance'\nTry hvd-perf --help.\n"));
}
END_TEST

START_TEST(started_by_a_user_it_starts_ranks_with_hvdrun)
{
    char words[256];
    setenv("RANK", "", 1); /* as good as unset */
    snprintf(words, sizeof words, "-n 2 --address %s -b 8 -e 8 -w 0 -i 1 -c --json", address);
    const int code = run(words, 1, 0);
    ck_assert_msg(code == 0, "exit status %d: %s", code, err);
    expect_row(0, "allreduce", 8, 1);
    expect_rows(1);
}
END_TEST

START_TEST(ranks_of_a_launcher_say_that_another_number_has_no_effect)
{
    ck_assert_int_eq(run("-n 3 -o barrier -w 0 -i 1 --json", 2, 2), 0);
    expect_row(0, "barrier", 0, 1);
    ck_assert_str_eq(err,
                     "hvd-perf: -n 3 has no effect: HVD_RANK=0 says that this process is a rank "
                     "of a launcher; unset it to start ranks here\n");
    measure("-n 2 -o barrier -w 0 -i 1 --json");
}
END_TEST

static const char *const unwritten[] = {"-b 8 -e 8 -w 0 -i 1", "--attach 1 --json", "--idle 0.001"};

static void expect_unwritten(const char *words, int size)
{
    ck_assert_msg(run(words, 1, size) == 1, "%s", words);
    ck_assert_str_eq(err, "hvd-perf: not everything could be written to standard output\n");
}

START_TEST(output_that_cannot_be_written_is_an_error)
{
    int ends[2];
    ck_assert_int_eq(pipe(ends), 0);
    close(ends[0]);
    const int targets[] = {open("/dev/full", O_WRONLY | O_CLOEXEC), ends[1], -1};
    for (size_t i = 0; i < sizeof targets / sizeof targets[0]; i++) {
        elsewhere = targets[i];
        expect_unwritten(unwritten[_i], 1);
    }
}
END_TEST

START_TEST(no_ranks_are_started_whose_rows_nobody_would_see)
{
    elsewhere = -1;
    expect_unwritten("-n 2", 0);
}
END_TEST

static void set_up(void)
{
    setenv("HVD_ADDRESS", address, 1);
}

int main(void)
{
    Suite *suite = suite_create("tools/hvd-perf/program");
    TCase *tests = tcase_create("program");
    tcase_add_unchecked_fixture(tests, start_hvdd, stop_hvdd);
    tcase_add_checked_fixture(tests, set_up, NULL);
    tcase_add_loop_test(tests, each_op_has_a_row_for_each_size_and_right_results, 0,
                        sizeof ops / sizeof ops[0]);
    tcase_add_test(tests, a_barrier_has_one_row_and_nothing_that_is_checked);
    tcase_add_test(tests, many_ops_in_flight_with_names_of_their_own_are_right);
    tcase_add_test(tests, ranks_agree_on_a_number_of_iterations);
    tcase_add_loop_test(tests, tensors_of_a_file_are_one_row, 0, 2);
    tcase_add_test(tests, without_json_there_is_a_table);
    tcase_add_test(tests, cycles_of_open_and_close_leave_no_descriptor);
    tcase_add_test(tests, idle_ranks_say_once_that_all_are_there);
    tcase_add_loop_test(tests, a_rank_that_does_not_come_is_waited_for_once_until_the_timeout, 0,
                        sizeof waits / sizeof waits[0]);
    tcase_add_test(tests, a_file_of_sizes_that_is_not_there_is_told_by_each_rank);
    tcase_add_loop_test(tests, without_a_hvdd_there_is_a_sentence, 0, 2);
    tcase_add_test(tests, help_and_version_need_no_hvdd_and_nonsense_is_refused);
    tcase_add_test(tests, started_by_a_user_it_starts_ranks_with_hvdrun);
    tcase_add_test(tests, ranks_of_a_launcher_say_that_another_number_has_no_effect);
    tcase_add_loop_test(tests, output_that_cannot_be_written_is_an_error, 0,
                        sizeof unwritten / sizeof unwritten[0]);
    tcase_add_test(tests, no_ranks_are_started_whose_rows_nobody_would_see);
    suite_add_tcase(suite, tests);
    return hvt_run_suite(suite);
}
