/* SPDX-License-Identifier: Apache-2.0
 * Workers of GPUs, as hvdd sees them: real processes, which do what the name of their job says (fake_worker.c), and the real
 * hvdd-gpu on a machine without a driver. */
#include "base/fate.h"
#include "base/status.h"
#include "base/uuid.h"
#include "daemon/node/gpu_room.h"
#include "daemon/node/node.h"
#include "proto/packet.h"
#include "shm/fence.h"
#include "tests/unit/hvt_log.h"
#include "tests/unit/hvt_main.h"
#include "tests/unit/hvt_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define PATIENCE_NS (20 * HVI_NS_SEC)
#define ENGINES     4

struct answer {
    struct node_engine *engine;
    struct hvi_gpu_worker said;
    int fd;
};

static sd_event *event;
static struct node_config config;
static struct node_gpu gpu;
static struct answer answers[32];
static int answer_count, empties, fds_before;
static char engines[ENGINES]; /* only their addresses count */
static unsigned char uuid[HVI_UUID_BYTES];

static struct node_engine *engine_at(int index)
{
    return (struct node_engine *)(void *)&engines[index];
}

static void on_tell(struct node_engine *engine, const struct hvi_gpu_worker *worker, int fd)
{
    ck_assert_int_lt(answer_count, 32);
    answers[answer_count++] = (struct answer){engine, *worker, fd < 0 ? -1 : dup(fd)};
}

static void on_empty(void *user)
{
    ck_assert_ptr_eq(user, &gpu);
    empties++;
}

static const struct node_gpu_calls calls = {
    .tell = on_tell, .spawn = node_spawn_program, .empty = on_empty};

static void open_gpu(const char *program)
{
    char path[400];

    snprintf(path, sizeof(path), "%s/%s", getenv("HVD_BUILD_DIR"), program);
    node_gpu_open(&gpu, event, &config, &calls, &gpu, path, "/run/hvdd/attach.sock");
}

static void setup(void)
{
    sigset_t set;

    hvt_log_open();
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    node_config_defaults(&config);
    fds_before = hvt_count_fds();
    ck_assert_int_ge(sd_event_new(&event), 0);
    uuid[0] = 0xab;
    open_gpu("tests/hvt_fake_worker");
}

static bool no_worker(void)
{
    return gpu.workers == NULL;
}

/* Turns the loop until that is so. */
static void run_until(bool (*is_so)(void), const char *what)
{
    uint64_t end = hvi_deadline_after(PATIENCE_NS);

    while (!is_so()) {
        ck_assert_msg(!hvi_deadline_passed(end), "never: %s", what);
        ck_assert_int_ge(sd_event_run(event, 100000), 0);
    }
}

/* Nothing stays: no process, no descriptor. */
static void teardown(void)
{
    node_gpu_stop_all(&gpu, "the test is over");
    run_until(no_worker, "no worker");
    node_gpu_close(&gpu);
    sd_event_unref(event);
    for (int i = 0; i < answer_count; i++) {
        if (answers[i].fd >= 0)
            close(answers[i].fd);
    }
    ck_assert_int_eq(hvt_count_fds(), fds_before);
    ck_assert_int_eq(waitpid(-1, NULL, WNOHANG), -1);
}

static struct node_gpu_asker asker_of(int index, const char *job)
{
    return (struct node_gpu_asker){
        .engine = engine_at(index), .job = job, .uid = 1000, .generation = 3, .pid = 100 + index};
}

static void want(int index, const char *job, uint64_t request)
{
    struct node_gpu_asker asker = asker_of(index, job);
    struct hvi_gpu_wanted wanted = {.request = request};

    memcpy(wanted.uuid, uuid, sizeof(uuid));
    node_gpu_want(&gpu, &asker, &wanted);
}

static int awaited;
static bool has_answers(void)
{
    return answer_count >= awaited;
}

/* The answer of that number, from 0. */
static const struct answer *answer(int number)
{
    awaited = number + 1;
    run_until(has_answers, "an answer");
    return &answers[number];
}

static const struct answer *expect(int number, int engine, uint64_t request, int status)
{
    const struct answer *got = answer(number);

    ck_assert_ptr_eq(got->engine, engine_at(engine));
    ck_assert_uint_eq(got->said.request, request);
    ck_assert_msg(got->said.status == status, "%s: %s", hvi_status_name(got->said.status),
                  got->said.text);
    ck_assert_mem_eq(got->said.uuid, uuid, sizeof(uuid));
    ck_assert_int_eq(got->fd >= 0, status == HVI_OK);
    return got;
}

static void expect_text(const struct answer *got, const char *part)
{
    ck_assert_msg(strstr(got->said.text, part) != NULL, "\"%s\" is not in \"%s\"", part,
                  got->said.text);
}

static const char *state_of_first(void)
{
    static struct hvi_gpu_row row;
    struct hvi_admin_reply reply = {.status = HVI_OK};

    ck_assert_int_eq(node_gpu_rows(&gpu, &reply), HVI_OK);
    ck_assert_uint_ge(reply.gpu_count, 1);
    row = reply.gpus[0];
    hvi_admin_reply_free(&reply);
    return row.state;
}

/* The other end is a worker: it says "w". */
static void expect_worker(const struct answer *got)
{
    struct pollfd poll_fd = {.fd = got->fd, .events = POLLIN};
    char byte = 0;

    ck_assert_int_eq(poll(&poll_fd, 1, 20000), 1);
    ck_assert_int_eq(read(got->fd, &byte, 1), 1);
    ck_assert_int_eq(byte, 'w');
}

START_TEST(engines_of_a_job_share_a_worker_and_other_jobs_have_their_own)
{
    want(0, "up", 1);
    want(1, "up", 2);
    const struct answer *first = expect(0, 0, 1, HVI_OK), *second = expect(1, 1, 2, HVI_OK);
    expect_worker(first);
    expect_worker(second);
    ck_assert_uint_eq(first->said.instance, second->said.instance);
    ck_assert_int_eq(first->said.pid, second->said.pid);
    want(2, "up2", 3);
    ck_assert_uint_ne(expect(2, 2, 3, HVI_OK)->said.instance, first->said.instance);
    uuid[1] = 1; /* another GPU */
    want(0, "up", 4);
    ck_assert_uint_ne(expect(3, 0, 4, HVI_OK)->said.instance, first->said.instance);
    ck_assert_uint_eq(gpu.worker_count, 3);
    want(0, "up", 5); /* it is up: at once */
    expect(4, 0, 5, HVI_OK);
    for (uint64_t i = 0; i < 3; i++) { /* an engine has one socket to a worker, the last */
        want(0, "up", 6 + i);
        expect(5 + (int)i, 0, 6 + i, HVI_OK);
    }
    ck_assert_ptr_null(gpu.workers->prev->wants->next);
    ck_assert_str_eq(state_of_first(), "up");
    ck_assert_int_eq(hvt_log_count("worker-started"), 3);
    ck_assert_int_eq(hvt_log_count("worker-up"), 3);
}
END_TEST

START_TEST(a_worker_without_a_driver_is_an_answer_with_its_sentence)
{
    want(0, "fails", 1);
    want(1, "fails", 2);
    for (int i = 0; i < 2; i++)
        ck_assert_str_eq(expect(i, i, (uint64_t)i + 1, HVI_ERR_UNSUPPORTED)->said.text,
                         "GPU-ab000000-0000-0000-0000-000000000000: no NVIDIA driver");
    run_until(no_worker, "its end");
    ck_assert_int_eq(empties, 1);
    want(0, "fails", 3); /* asked again, tried again */
    expect(2, 0, 3, HVI_ERR_UNSUPPORTED);
}
END_TEST

START_TEST(the_real_worker_says_that_there_is_no_driver)
{
    node_gpu_close(&gpu);
    open_gpu("libexec/hvdd/hvdd-gpu");
    want(0, "train", 1);
    const struct answer *got = expect(0, 0, 1, HVI_ERR_UNSUPPORTED);
    expect_text(got, "GPU-ab000000-0000-0000-0000-000000000000: no NVIDIA driver: libcuda.so.1");
    expect_text(got, "hvdd needs an NVIDIA driver for CUDA 12.0 or newer");
}
END_TEST

START_TEST(a_worker_gets_its_options)
{
    snprintf(config.gpu_kernels, sizeof(config.gpu_kernels), "/kernels");
    snprintf(config.gpu_library_path, sizeof(config.gpu_library_path), "/a:/b");
    config.gpu_comm_timeout = 7;
    config.gpu_import_limit = 8;
    want(0, "options", 1);
    expect(0, 0, 1, HVI_OK);
}
END_TEST

START_TEST(a_program_that_is_not_there_is_an_answer)
{
    node_gpu_close(&gpu);
    open_gpu("libexec/hvdd/no-such-program");
    want(0, "up", 1);
    expect_text(expect(0, 0, 1, HVI_ERR_UNSUPPORTED), "no-such-program: No such file");
    ck_assert_ptr_null(gpu.workers);
}
END_TEST

START_TEST(nothing_is_started_where_the_option_says_no)
{
    config.gpu = 0;
    want(0, "up", 1);
    expect_text(expect(0, 0, 1, HVI_ERR_UNSUPPORTED), "gpu = no");
    ck_assert_ptr_null(gpu.workers);
}
END_TEST

START_TEST(limits_count_all_workers_and_those_of_a_user)
{
    config.gpu_workers_per_user = 1;
    want(0, "up", 1);
    expect(0, 0, 1, HVI_OK);
    want(1, "up2", 2);
    expect_text(expect(1, 1, 2, HVI_ERR_DAEMON_LIMIT), "gpu-workers-per-user");
    config.gpu_workers_per_user = 2;
    config.gpu_workers = 1;
    want(1, "up2", 3);
    expect_text(expect(2, 1, 3, HVI_ERR_DAEMON_LIMIT), "(gpu-workers)");
    want(1, "up", 4); /* one that is there */
    expect(3, 1, 4, HVI_OK);
}
END_TEST

/* All have been idle for long. */
static void let_rest(void)
{
    for (struct node_worker *worker = gpu.workers; worker != NULL; worker = worker->next)
        worker->idle_ns = 0;
}

START_TEST(an_idle_worker_gives_its_place_up)
{
    config.gpu_workers_per_user = 1;
    want(0, "up", 1);
    expect(0, 0, 1, HVI_OK);
    node_gpu_engine_gone(&gpu, engine_at(0));
    let_rest();
    uuid[1] = 1; /* another GPU: it cannot pass */
    want(1, "up2", 2);
    expect(1, 1, 2, HVI_OK);
    config.gpu_workers = 1;
    node_gpu_engine_gone(&gpu, engine_at(1));
    uuid[1] = 0;
    want(0, "up", 3);
    expect(2, 0, 3, HVI_OK);
    ck_assert_int_eq(hvt_log_count("worker-passed"), 0);
}
END_TEST

START_TEST(a_worker_that_dies_is_told_to_each_of_its_engines_once)
{
    want(0, "dies", 1);
    const struct answer *got = expect(0, 0, 1, HVI_OK);
    uint64_t instance = got->said.instance;
    got = expect(1, 0, 0, HVI_ERR_WORKER_LOST);
    ck_assert_uint_eq(got->said.instance, instance);
    expect_text(got, "exited with code 7");
    run_until(no_worker, "its end");
    ck_assert_int_eq(answer_count, 2);
}
END_TEST

START_TEST(a_worker_that_is_killed_is_named_with_pid_and_signal)
{
    char part[100];
    want(0, "up", 1);
    pid_t pid = expect(0, 0, 1, HVI_OK)->said.pid;
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    snprintf(part, sizeof(part), "its worker (pid %d) was killed by signal 9", (int)pid);
    expect_text(expect(1, 0, 0, HVI_ERR_WORKER_LOST), part);
}
END_TEST

START_TEST(a_worker_that_stands_still_is_killed_with_the_reason)
{
    config.gpu_silence = HVI_NS_SEC;
    want(0, "deaf", 1);
    expect(0, 0, 1, HVI_OK);
    expect_text(expect(1, 0, 0, HVI_ERR_WORKER_LOST), "has not answered for gpu-silence");
    ck_assert_int_eq(hvt_log_count("worker-killed"), 1);
}
END_TEST

START_TEST(a_worker_that_does_not_start_is_killed_and_its_last_step_named)
{
    config.gpu_start = (int64_t)hvt_patience(300 * HVI_NS_MS);
    want(0, "late", 1);
    want(1, "late", 2);
    expect_text(expect(0, 0, 1, HVI_ERR_WORKER_LOST), "last step: cuInit");
    expect(1, 1, 2, HVI_ERR_WORKER_LOST);
}
END_TEST

START_TEST(a_worker_that_breaks_the_protocol_is_killed)
{
    want(0, "garbage", 1);
    expect(0, 0, 1, HVI_OK);
    expect_text(expect(1, 0, 0, HVI_ERR_WORKER_LOST), "broke the protocol");
}
END_TEST

START_TEST(an_engine_ends_a_worker_of_its_own_job_alone)
{
    struct node_gpu_asker own = asker_of(0, "up"), other = asker_of(1, "up2");
    struct hvi_gpu_end end = {.reason = "batch 7 does not move"};

    want(0, "up", 1);
    end.instance = expect(0, 0, 1, HVI_OK)->said.instance;
    node_gpu_end(&gpu, &other, &end);
    ck_assert_str_eq(state_of_first(), "up");
    node_gpu_end(&gpu, &own, &end);
    ck_assert_str_eq(state_of_first(), "ending");
    want(1, "up", 2); /* while the old one ends: a new one */
    answer(2);
    const int lost = answers[1].engine == engine_at(0) ? 1 : 2; /* either may come first */
    expect_text(expect(lost, 0, 0, HVI_ERR_WORKER_LOST),
                "was ended by hvdd: batch 7 does not move");
    ck_assert_uint_ne(expect(3 - lost, 1, 2, HVI_OK)->said.instance, end.instance);
}
END_TEST

START_TEST(a_worker_waits_idle_for_the_next_generation)
{
    want(0, "up", 1);
    uint64_t instance = expect(0, 0, 1, HVI_OK)->said.instance;
    node_gpu_engine_gone(&gpu, engine_at(0));
    ck_assert_str_eq(state_of_first(), "idle");
    want(1, "up", 2);
    ck_assert_uint_eq(expect(1, 1, 2, HVI_OK)->said.instance, instance);
    ck_assert_str_eq(state_of_first(), "up");
    config.gpu_idle = 50 * HVI_NS_MS;
    node_gpu_engine_gone(&gpu, engine_at(1));
    run_until(no_worker, "its end");
    ck_assert_int_eq(answer_count, 2); /* nobody had it */
    ck_assert_int_ge(hvt_log_count("no engine of its job has used it for gpu-idle"), 1);
}
END_TEST

/* Though it is not to be idle for long: such a GPU may be one that its job may not use. */
START_TEST(a_worker_that_has_opened_no_memory_ends_with_its_engines)
{
    want(0, "unused", 1);
    want(1, "unused", 2);
    const uint64_t instance = expect(0, 0, 1, HVI_OK)->said.instance;
    expect(1, 1, 2, HVI_OK);
    node_gpu_engine_gone(&gpu, engine_at(0));
    ck_assert_str_eq(state_of_first(), "up");
    node_gpu_engine_gone(&gpu, engine_at(1));
    ck_assert_str_eq(state_of_first(), "ending");
    want(0, "unused", 3);
    ck_assert_uint_ne(expect(2, 0, 3, HVI_OK)->said.instance, instance);
}
END_TEST

START_TEST(what_a_worker_has_said_of_memory_counts_before_it_is_read)
{
    want(0, "opens", 1);
    expect_worker(expect(0, 0, 1, HVI_OK)); /* it has opened memory before */
    node_gpu_engine_gone(&gpu, engine_at(0));
    ck_assert_str_eq(state_of_first(), "idle");
}
END_TEST

/* 0: that may be idle no time; 1: that has opened no memory. */
START_TEST(an_engine_that_goes_before_its_worker_is_up_hears_nothing)
{
    config.gpu_idle = _i == 0 ? 0 : config.gpu_idle;
    want(0, _i == 0 ? "up" : "unused", 1);
    node_gpu_engine_gone(&gpu, engine_at(0));
    run_until(no_worker, "its end");
    ck_assert_int_eq(answer_count, 0);
}
END_TEST

/* ---- the next job ---- */

static void run_for_ms(int64_t ms)
{
    const uint64_t end = hvi_deadline_after(ms * (int64_t)HVI_NS_MS);

    while (!hvi_deadline_passed(end))
        ck_assert_int_ge(sd_event_run(event, 1000), 0);
}

static uint64_t done_word(const struct hvi_fence_page *page)
{
    return atomic_load(&page->cells[1].done);
}

/* One of job "up" on the GPU at hand, which no engine has had for long. */
static struct hvi_gpu_worker make_idle(void)
{
    const int number = answer_count;

    want(0, "up", 1);
    const struct hvi_gpu_worker said = expect(number, 0, 1, HVI_OK)->said;
    node_gpu_engine_gone(&gpu, engine_at(0));
    ck_assert_str_eq(state_of_first(), "idle");
    let_rest();
    return said;
}

static const char *first_state;
static bool is_in_state(void)
{
    return strcmp(state_of_first(), first_state) == 0;
}

static void await_state(const char *state)
{
    first_state = state;
    run_until(is_in_state, state);
}

START_TEST(an_idle_worker_passes_to_the_next_job_of_its_user)
{
    const struct hvi_gpu_worker before = make_idle();
    const struct node_gpu_asker old = asker_of(0, "up");
    const struct hvi_gpu_end end = {.instance = before.instance, .reason = "not its any more"};

    config.gpu_workers = config.gpu_workers_per_user = 1; /* it keeps its place */
    want(1, "next", 2);
    ck_assert_str_eq(state_of_first(), "passing");
    const struct answer *got = expect(1, 1, 2, HVI_OK);
    expect_worker(got);
    ck_assert_int_eq(got->said.pid, before.pid);
    ck_assert_uint_eq(got->said.instance, before.instance);
    ck_assert_str_eq(state_of_first(), "up");
    ck_assert_str_eq(gpu.workers->job, "next");
    ck_assert_int_eq(hvt_log_count("worker-started"), 1);
    ck_assert_int_eq(hvt_log_count("worker-passed"), 1);
    node_gpu_end(&gpu, &old, &end);
    ck_assert_str_eq(state_of_first(), "up");
}
END_TEST

START_TEST(a_worker_does_not_pass_to_a_job)
{
    struct hvi_setting settings[] = {{"NCCL_DEBUG", "INFO"}, {"NCCL_P2P_DISABLE", "1"}};
    struct node_gpu_asker asker = asker_of(1, "next");
    struct hvi_gpu_wanted wanted = {.request = 2};
    const pid_t before = make_idle().pid;

    if (_i == 0)
        asker.uid++;
    else if (_i == 1)
        uuid[1] = 1;
    else if (_i == 2) {
        wanted.settings = settings;
        wanted.setting_count = 1;
    } else if (_i == 3)
        config.gpu_comm_timeout++;
    else if (_i == 4)
        snprintf(config.gpu_kernels, sizeof(config.gpu_kernels), "/others");
    else if (_i == 5)
        want(0, "up", 3); /* it has an engine again */
    else if (_i == 6)
        config.gpu_idle = 0;
    else if (_i == 7)
        gpu.workers->silent_ns = HVI_NS_SEC;
    else { /* its job is between two generations */
        want(0, "up", 3);
        node_gpu_engine_gone(&gpu, engine_at(0));
        ck_assert_str_eq(state_of_first(), "idle");
    }
    memcpy(wanted.uuid, uuid, sizeof(uuid));
    node_gpu_want(&gpu, &asker, &wanted);
    const int number = _i == 5 || _i == 8 ? 2 : 1;
    ck_assert_int_ne(expect(number, 1, 2, HVI_OK)->said.pid, before);
    ck_assert_int_eq(hvt_log_count("worker-passed"), 0);
}
END_TEST

START_TEST(a_worker_passes_with_the_settings_that_it_was_told)
{
    struct hvi_setting settings[] = {{"NCCL_DEBUG", "INFO"}, {"NCCL_P2P_DISABLE", "1"}};
    struct hvi_setting turned[] = {settings[1], settings[0]};
    struct node_gpu_asker asker = asker_of(0, "up");
    struct hvi_gpu_wanted wanted = {.request = 1, .settings = settings, .setting_count = 2};

    memcpy(wanted.uuid, uuid, sizeof(uuid));
    node_gpu_want(&gpu, &asker, &wanted);
    const pid_t pid = expect(0, 0, 1, HVI_OK)->said.pid;
    node_gpu_engine_gone(&gpu, engine_at(0));
    let_rest();
    asker = asker_of(1, "next");
    wanted.settings = turned; /* an environment has no order */
    node_gpu_want(&gpu, &asker, &wanted);
    ck_assert_int_eq(expect(1, 1, 1, HVI_OK)->said.pid, pid);
    node_gpu_engine_gone(&gpu, engine_at(1));
    let_rest();
    asker = asker_of(2, "third");
    snprintf(turned[0].value, sizeof(turned[0].value), "0");
    node_gpu_want(&gpu, &asker, &wanted);
    ck_assert_int_ne(expect(2, 2, 1, HVI_OK)->said.pid, pid);
}
END_TEST

/* Two workers of job "up", of which engine 0 has the second where it `keeps` that. */
static void make_two(struct hvi_gpu_worker *said_p, bool keeps)
{
    for (int i = 0; i < 2; i++) {
        uuid[1] = (unsigned char)i;
        want(i, "up", 1);
        said_p[i] = expect(i, i, 1, HVI_OK)->said;
    }
    node_gpu_engine_gone(&gpu, engine_at(0));
    if (!keeps)
        node_gpu_engine_gone(&gpu, engine_at(1));
    let_rest();
}

static bool is_second_idle(void)
{
    return gpu.workers->next->state == NODE_WORKER_IDLE;
}

START_TEST(workers_of_a_job_pass_together_and_keep_their_numbers)
{
    struct hvi_gpu_worker before[2];
    const struct node_worker *second;

    make_two(before, false);
    uuid[1] = 0;
    want(2, "next", 2);
    second = gpu.workers->next;
    ck_assert_uint_eq(expect(2, 2, 2, HVI_OK)->said.instance, before[0].instance);
    const uint64_t idle_end_ns = second->idle_end_ns;
    ck_assert_str_eq(second->job, "next");
    run_until(is_second_idle, "the worker that no engine has asked for");
    ck_assert_uint_eq(second->idle_end_ns, idle_end_ns);
    uuid[1] = 1;
    want(2, "next", 3);
    ck_assert_uint_eq(expect(3, 2, 3, HVI_OK)->said.instance, before[1].instance);
}
END_TEST

/* 0: the other worker of its job stays there; 1: the next job has a worker already. */
START_TEST(a_worker_that_passes_alone_gets_another_number)
{
    struct hvi_gpu_worker before[2];

    make_two(before, _i == 0);
    uuid[1] = 2;
    if (_i == 1)
        want(2, "next", 1);
    if (_i == 1)
        expect(2, 2, 1, HVI_OK);
    uuid[1] = 0;
    want(2, "next", 2);
    const struct answer *got = expect(2 + _i, 2, 2, HVI_OK);
    ck_assert_int_eq(got->said.pid, before[0].pid);
    ck_assert_uint_ne(got->said.instance, before[0].instance);
    ck_assert_str_eq(gpu.workers->next->job, "up");
}
END_TEST

/* Two engines wait; each gets one answer, a worker's that is new. */
START_TEST(engines_of_a_worker_that_cannot_pass_get_a_new_one)
{
    static const char *const jobs[] = {"stays", "lies", "ends", "killed"};
    const pid_t before = make_idle().pid;
    const uint64_t began_ns = hvi_clock_ns();

    if (_i == 3)
        ck_assert_int_eq(kill(before, SIGSTOP), 0);
    want(1, jobs[_i], 2);
    ck_assert_str_eq(state_of_first(), "passing");
    want(2, jobs[_i], 3);
    if (_i == 3)
        ck_assert_int_eq(kill(before, SIGKILL), 0);
    const pid_t pid = answer(1)->said.pid;
    ck_assert_int_ne(answer(2)->said.pid, before);
    ck_assert_int_eq(answers[1].said.status, HVI_OK);
    ck_assert_int_eq(answers[2].said.pid, pid);
    ck_assert_uint_lt(hvi_clock_ns() - began_ns, hvt_patience(4 * HVI_NS_SEC));
    run_for_ms(20);
    ck_assert_int_eq(answer_count, 3);
}
END_TEST

START_TEST(a_worker_whose_engine_goes_while_it_passes_is_idle)
{
    make_idle();
    want(1, "next", 2);
    node_gpu_engine_gone(&gpu, engine_at(1));
    await_state("idle");
    ck_assert_str_eq(gpu.workers->job, "next");
    ck_assert_uint_ne(gpu.workers->idle_ns, 0); /* "next" has its second, too */
    let_rest();
    want(1, "stays", 3);
    node_gpu_stop_idle(&gpu, "MPS has ended"); /* and with it what it has on its GPU */
    expect(1, 1, 3, HVI_OK);
    ck_assert_int_eq(hvt_log_count("worker-started"), 2);
}
END_TEST

START_TEST(hvdd_stops_while_a_worker_passes)
{
    make_idle();
    want(1, "stays", 2);
    node_gpu_stop_all(&gpu, "hvdd shuts down");
    expect(1, 1, 2, HVI_ERR_DRAINING);
}
END_TEST

START_TEST(a_worker_that_has_passed_has_nothing_of_the_engines_before)
{
    struct hvi_fence_page page;

    ck_assert_int_eq(hvi_fence_create(&page), HVI_OK);
    want(0, "up", 1);
    expect(0, 0, 1, HVI_OK);
    ck_assert(node_gpu_fences(&gpu, engine_at(0), 5, 1, dup(page.map.fd)));
    node_gpu_engine_gone(&gpu, engine_at(0));
    ck_assert_uint_eq(done_word(&page), 0);
    let_rest();
    want(1, "next", 2);
    expect(1, 1, 2, HVI_OK);
    ck_assert_uint_eq(done_word(&page), HVI_FENCE_POISON);
    ck_assert_ptr_null(gpu.rests);
    hvi_fence_fini(&page);
}
END_TEST

static bool has_one_ended(void)
{
    return hvt_log_count("worker-ended") == 1;
}

/* It dies before it has said that it has nothing of them. 0: it passes with all of its job; 1: alone, with another number. */
START_TEST(a_worker_that_dies_while_it_passes_has_nothing_of_the_engines_before)
{
    struct hvi_fence_page page;

    ck_assert_int_eq(hvi_fence_create(&page), HVI_OK);
    for (int i = 0; i <= _i; i++) {
        uuid[1] = (unsigned char)i;
        want(i, "up", 1);
        expect(i, i, 1, HVI_OK);
    }
    uuid[1] = 0;
    ck_assert(node_gpu_fences(&gpu, engine_at(0), 5, 1, dup(page.map.fd)));
    node_gpu_engine_gone(&gpu, engine_at(0));
    let_rest();
    want(2, "ends", 2);
    ck_assert_str_eq(state_of_first(), "passing");
    ck_assert_uint_eq(done_word(&page), 0);
    run_until(has_one_ended, "its end");
    ck_assert_uint_eq(done_word(&page), HVI_FENCE_POISON);
    ck_assert_ptr_null(gpu.rests);
    expect(_i + 1, 2, 2, HVI_OK);
    hvi_fence_fini(&page);
}
END_TEST

/* ---- workers of an earlier hvdd ---- */

static int32_t serving[] = {100, 101};

static struct hvi_gpu_return said_by(void)
{
    struct hvi_gpu_return said = {.protocol_version = HVI_PROTOCOL_VERSION,
                                  .job = "old",
                                  .uid = 1000,
                                  .instance = 4242,
                                  .engines = serving,
                                  .engine_count = 2};

    memcpy(said.uuid, uuid, sizeof(uuid));
    return said;
}

struct stranger {
    pid_t pid;
    int fd; /* its end of the link */
};

static int come_back_status;
static const char *refusal;

/* A process that another one has started. True: hvdd has taken it back. */
static bool come_back(const struct hvi_gpu_return *said, struct stranger *stranger_p)
{
    int ends[2];

    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends),
                     0);
    *stranger_p = (struct stranger){.pid = fork(), .fd = ends[1]};
    if (stranger_p->pid == 0) {
        pause();
        _exit(0);
    }
    const int pidfd = hvi_pidfd_open(stranger_p->pid);
    ck_assert_int_ge(pidfd, 0);
    come_back_status = node_gpu_return(&gpu, said, stranger_p->pid, ends[0], pidfd, &refusal);
    if (come_back_status == HVI_OK)
        return true;
    close(ends[0]);
    close(pidfd);
    return false;
}

static void end_stranger(const struct stranger *stranger)
{
    kill(stranger->pid, SIGKILL);
    close(stranger->fd);
    ck_assert_int_eq(waitpid(stranger->pid, NULL, 0), stranger->pid);
}

static void engine_back(int index)
{
    const struct node_gpu_asker asker = asker_of(index, "old");

    node_gpu_engine_back(&gpu, &asker);
}

/* Its engines have had their time. */
static void end_patience(void)
{
    ck_assert_int_ge(sd_event_source_set_time_relative(gpu.workers->timer, 0), 0);
}

START_TEST(a_worker_that_comes_back_is_watched_and_belongs_to_its_engines)
{
    const struct hvi_gpu_return said = said_by();
    struct stranger stranger;

    ck_assert(come_back(&said, &stranger));
    ck_assert_str_eq(state_of_first(), "up");
    ck_assert_uint_eq(node_gpu_count(&gpu, NULL), 1);
    engine_back(0);
    engine_back(2); /* of that job, and not one of its */
    end_stranger(&stranger);
    run_until(no_worker, "its end");
    ck_assert_int_eq(answer_count, 1);
    expect_text(expect(0, 0, 0, HVI_ERR_WORKER_LOST), "its worker (pid ");
    ck_assert_uint_eq(answers[0].said.instance, 4242);
}
END_TEST

START_TEST(a_worker_whose_engines_do_not_come_back_is_idle_and_then_ends)
{
    const struct hvi_gpu_return said = said_by();
    struct stranger stranger;

    config.gpu_idle = 30 * (int64_t)HVI_NS_MS;
    ck_assert(come_back(&said, &stranger));
    end_patience();
    first_state = "ending";
    run_until(is_in_state, "it is to end");
    end_stranger(&stranger);
    ck_assert_int_eq(answer_count, 0);
}
END_TEST

START_TEST(a_worker_that_may_not_be_idle_waits_for_its_engines_all_the_same)
{
    const struct hvi_gpu_return said = said_by();
    struct stranger stranger;

    config.gpu_idle = 0;
    ck_assert(come_back(&said, &stranger));
    run_for_ms(100);
    ck_assert_str_eq(state_of_first(), "up");
    engine_back(0);
    engine_back(1);
    end_patience();
    run_for_ms(10);
    ck_assert_str_eq(state_of_first(), "up");
    node_gpu_engine_gone(&gpu, engine_at(0));
    ck_assert_str_eq(state_of_first(), "up");
    node_gpu_engine_gone(&gpu, engine_at(1));
    first_state = "ending";
    run_until(is_in_state, "it is to end");
    end_stranger(&stranger);
    ck_assert_int_eq(answer_count, 0);
}
END_TEST

START_TEST(a_worker_that_came_back_serves_the_next_engine)
{
    const struct hvi_gpu_return said = said_by();
    struct stranger stranger;

    ck_assert(come_back(&said, &stranger));
    engine_back(0);
    want(1, "old", 9);
    ck_assert_uint_eq(expect(0, 1, 9, HVI_OK)->said.instance, 4242);
    node_gpu_engine_gone(&gpu, engine_at(0));
    node_gpu_engine_gone(&gpu, engine_at(1));
    end_patience(); /* engine 101 does not come */
    ck_assert_int_ge(sd_event_run(event, 1000), 0);
    let_rest();
    want(2, "next", 10); /* it passes to no other job */
    ck_assert_uint_ne(expect(1, 2, 10, HVI_OK)->said.instance, 4242);
    end_stranger(&stranger);
}
END_TEST

START_TEST(a_worker_is_not_taken_back_that)
{
    static const struct {
        int status;
        const char *why;
    } due[] = {
        {HVI_ERR_VERSION, "it speaks another protocol version"},
        {HVI_ERR_REFUSED, "its job has another worker for its GPU already"},
        {HVI_ERR_REFUSED, "hvdd has as many workers for GPUs as it may (gpu-workers)"},
        {HVI_ERR_REFUSED, "its user has as many workers for GPUs as it may (gpu-workers-per-user)"},
        {HVI_ERR_REFUSED, "hvdd has no workers for GPUs (gpu = no)"},
        {HVI_ERR_DRAINING, "hvdd is stopping"},
    };
    struct hvi_gpu_return said = said_by();
    struct stranger first, second;

    ck_assert(come_back(&said, &first));
    if (_i == 0)
        said.protocol_version++;
    if (_i == 2)
        config.gpu_workers = 1;
    if (_i == 3)
        config.gpu_workers_per_user = 1;
    if (_i == 4)
        config.gpu = 0;
    if (_i == 5)
        gpu.stopping = true;
    said.uuid[15] ^= _i >= 2;
    ck_assert(!come_back(&said, &second));
    ck_assert_int_eq(come_back_status, due[_i].status);
    ck_assert_str_eq(refusal, due[_i].why);
    ck_assert_uint_eq(gpu.worker_count, 1);
    end_stranger(&second);
    end_stranger(&first);
    run_until(no_worker, "its end");
}
END_TEST

/* ---- started by a unit ---- */

/* hvdd asks for a worker of job "up" at the socket of a unit, which is the test: the end of the unit's program. */
static int start_by_unit(void)
{
    const int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char folder[] = "/tmp/hvt-unit-XXXXXX";

    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(address.sun_path, sizeof(address.sun_path), "%s/gpu.sock", folder);
    snprintf(config.gpu_socket, sizeof(config.gpu_socket), "%s", address.sun_path);
    ck_assert_int_eq(bind(listener, (struct sockaddr *)&address, sizeof(address)), 0);
    ck_assert_int_eq(listen(listener, 1), 0);
    want(0, "up", 1);
    const int program_fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    ck_assert_int_ge(program_fd, 0);
    close(listener);
    unlink(address.sun_path);
    rmdir(folder);
    return program_fd;
}

static void introduce(int program_fd, uint32_t protocol)
{
    char text[64];
    const int length = snprintf(text, sizeof(text), "hvdd-gpu, protocol %u", protocol);

    ck_assert_int_eq(hvi_packet_send(program_fd, text, (size_t)length, NULL, 0, 0), HVI_OK);
}

/* When gpu-start is over, hvdd has not read yet: 0: the word of another program; 1: the end of the link; 2: nothing has come. */
START_TEST(a_unit_that_has_started_no_worker_in_time_is_an_answer_that_says_where_to_look)
{
    const int program_fd = start_by_unit();

    ck_assert_int_ge(sd_event_source_set_priority(gpu.workers->io, SD_EVENT_PRIORITY_IDLE), 0);
    if (_i == 0)
        introduce(program_fd, HVI_PROTOCOL_VERSION + 1);
    if (_i == 1)
        shutdown(program_fd, SHUT_RDWR);
    ck_assert_int_ge(sd_event_source_set_time_relative(gpu.workers->timer, 0), 0);
    expect_text(expect(0, 0, 1, HVI_ERR_WORKER_LOST),
                "its worker did not start (`journalctl -u hvdd-gpu.socket");
    ck_assert_ptr_null(gpu.workers);
    ck_assert_int_eq(empties, 1);
    ck_assert_int_eq(hvt_log_count("bad-gpu-unit"), _i == 0);
    close(program_fd);
}
END_TEST

START_TEST(hvdd_stops_before_it_has_heard_of_a_units_worker)
{
    const int program_fd = start_by_unit();

    introduce(program_fd, HVI_PROTOCOL_VERSION);
    node_gpu_stop_all(&gpu, "hvdd shuts down");
    expect_text(expect(0, 0, 1, HVI_ERR_WORKER_LOST),
                "its worker was ended by hvdd: hvdd shuts down");
    ck_assert_ptr_null(gpu.workers);
    ck_assert_int_eq(empties, 1);
    ck_assert_int_eq(hvt_log_count("bad-gpu-unit"), 0); /* its unit is a good one */
    close(program_fd);
}
END_TEST

START_TEST(hvdd_ends_all_workers_and_starts_no_more)
{
    want(0, "up", 1);
    expect(0, 0, 1, HVI_OK);
    want(1, "late", 2);
    node_gpu_stop_all(&gpu, "hvdd shuts down");
    node_gpu_stop_all(&gpu, "hvdd shuts down");
    run_until(no_worker, "their end");
    ck_assert_int_eq(empties, 1);
    ck_assert_int_eq(answer_count, 3); /* both engines were told */
    want(0, "up", 3);
    expect(3, 0, 3, HVI_ERR_DRAINING);
}
END_TEST

START_TEST(fences_are_poisoned_with_their_engine)
{
    struct hvi_fence_page page[2];
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(hvi_fence_create(&page[i]), HVI_OK);
        int fd = dup(page[i].map.fd);
        ck_assert(node_gpu_fences(&gpu, engine_at(i), 5, 1, fd));
    }
    node_gpu_engine_gone(&gpu, engine_at(0));
    ck_assert(hvi_fence_is_ready(&page[0], 1, 1));
    ck_assert_uint_eq(atomic_load(&page[0].cells[HVI_FENCE_CELLS - 1].done), HVI_FENCE_POISON);
    ck_assert_uint_eq(atomic_load(&page[1].cells[1].done), 0);
    int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    ck_assert(!node_gpu_fences(&gpu, engine_at(1), 6, 2, fd));
    close(fd);                /* it stayed ours */
    fd = dup(page[1].map.fd); /* of a second rank, where it has one */
    ck_assert(!node_gpu_fences(&gpu, engine_at(1), 6, 1, fd));
    close(fd);
    for (int i = 0; i < 2; i++)
        hvi_fence_fini(&page[i]);
}
END_TEST

/* Its worker may still write the memory of the ranks. 0: then it dies; 1: then it is killed. */
START_TEST(the_words_of_an_engine_that_has_gone_wait_for_its_worker)
{
    struct hvi_fence_page page;

    ck_assert_int_eq(hvi_fence_create(&page), HVI_OK);
    want(0, "up", 1);
    pid_t pid = expect(0, 0, 1, HVI_OK)->said.pid;
    ck_assert(node_gpu_fences(&gpu, engine_at(0), 5, 1, dup(page.map.fd)));
    node_gpu_engine_gone(&gpu, engine_at(0));
    ck_assert(!hvi_fence_is_ready(&page, 1, 1)); /* the worker's to open */
    ck_assert_uint_eq(done_word(&page), 0);
    if (_i == 0)
        node_gpu_stop_all(&gpu, "the test says so");
    else
        kill(pid, SIGKILL);
    run_until(no_worker, "its end");
    ck_assert_uint_eq(done_word(&page), HVI_FENCE_POISON);
    ck_assert(hvi_fence_is_ready(&page, 1, 1));
    ck_assert_ptr_null(gpu.rests);
    hvi_fence_fini(&page);
}
END_TEST

START_TEST(states_have_these_edges_and_no_others)
{
    static const char *const expected[NODE_WORKER_STATES] = {"010011", "001011", "010111",
                                                             "011011", "000001", "000000"};
    for (int from = 0; from < NODE_WORKER_STATES; from++) {
        for (int to = 0; to < NODE_WORKER_STATES; to++)
            ck_assert_msg(
                node_worker_edge((enum node_worker_state)from, (enum node_worker_state)to) ==
                    (expected[from][to] == '1'),
                "%d -> %d", from, to);
    }
}
END_TEST

START_TEST(a_gpu_has_a_name_that_can_be_read_back)
{
    char text[HVI_UUID_TEXT];
    unsigned char again[HVI_UUID_BYTES];
    for (unsigned i = 0; i < HVI_UUID_BYTES; i++)
        uuid[i] = (unsigned char)(i * 17);
    hvi_uuid_format(uuid, text);
    ck_assert_str_eq(text, "GPU-00112233-4455-6677-8899-aabbccddeeff");
    ck_assert(hvi_uuid_parse(text, again));
    ck_assert_mem_eq(again, uuid, sizeof(uuid));
    ck_assert(!hvi_uuid_parse("GPU-00112233-4455-6677-8899-aabbccddeefg", again));
    ck_assert(hvi_uuid_parse("MIG-00112233-4455-6677-8899-aabbccddee00", again));
    ck_assert_int_eq(again[15], 0);
    ck_assert(!hvi_uuid_parse("MIX-00112233-4455-6677-8899-aabbccddeeff", again));
    memset(uuid, 0, sizeof(uuid));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("node_gpu");
    TCase *tcase = tcase_create("workers"), *words = tcase_create("words");

    tcase_set_tags(
        tcase, "programs"); /* which nothing runs where the processor is emulated: scripts/arm.sh */
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, engines_of_a_job_share_a_worker_and_other_jobs_have_their_own);
    tcase_add_test(tcase, a_worker_without_a_driver_is_an_answer_with_its_sentence);
    tcase_add_test(tcase, the_real_worker_says_that_there_is_no_driver);
    tcase_add_test(tcase, a_worker_gets_its_options);
    tcase_add_test(tcase, a_program_that_is_not_there_is_an_answer);
    tcase_add_test(tcase, nothing_is_started_where_the_option_says_no);
    tcase_add_test(tcase, limits_count_all_workers_and_those_of_a_user);
    tcase_add_test(tcase, an_idle_worker_gives_its_place_up);
    tcase_add_test(tcase, a_worker_that_dies_is_told_to_each_of_its_engines_once);
    tcase_add_test(tcase, a_worker_that_is_killed_is_named_with_pid_and_signal);
    tcase_add_test(tcase, a_worker_that_stands_still_is_killed_with_the_reason);
    tcase_add_test(tcase, a_worker_that_does_not_start_is_killed_and_its_last_step_named);
    tcase_add_test(tcase, a_worker_that_breaks_the_protocol_is_killed);
    tcase_add_test(tcase, an_engine_ends_a_worker_of_its_own_job_alone);
    tcase_add_test(tcase, a_worker_waits_idle_for_the_next_generation);
    tcase_add_test(tcase, a_worker_that_has_opened_no_memory_ends_with_its_engines);
    tcase_add_test(tcase, what_a_worker_has_said_of_memory_counts_before_it_is_read);
    tcase_add_loop_test(tcase, an_engine_that_goes_before_its_worker_is_up_hears_nothing, 0, 2);
    tcase_add_test(tcase, an_idle_worker_passes_to_the_next_job_of_its_user);
    tcase_add_loop_test(tcase, a_worker_does_not_pass_to_a_job, 0, 9);
    tcase_add_test(tcase, a_worker_passes_with_the_settings_that_it_was_told);
    tcase_add_test(tcase, workers_of_a_job_pass_together_and_keep_their_numbers);
    tcase_add_loop_test(tcase, a_worker_that_passes_alone_gets_another_number, 0, 2);
    tcase_add_loop_test(tcase, engines_of_a_worker_that_cannot_pass_get_a_new_one, 0, 4);
    tcase_add_test(tcase, a_worker_whose_engine_goes_while_it_passes_is_idle);
    tcase_add_test(tcase, hvdd_stops_while_a_worker_passes);
    tcase_add_test(tcase, a_worker_that_has_passed_has_nothing_of_the_engines_before);
    tcase_add_loop_test(tcase, a_worker_that_dies_while_it_passes_has_nothing_of_the_engines_before,
                        0, 2);
    tcase_add_test(tcase, a_worker_that_comes_back_is_watched_and_belongs_to_its_engines);
    tcase_add_test(tcase, a_worker_whose_engines_do_not_come_back_is_idle_and_then_ends);
    tcase_add_test(tcase, a_worker_that_may_not_be_idle_waits_for_its_engines_all_the_same);
    tcase_add_test(tcase, a_worker_that_came_back_serves_the_next_engine);
    tcase_add_loop_test(tcase, a_worker_is_not_taken_back_that, 0, 6);
    tcase_add_loop_test(
        tcase, a_unit_that_has_started_no_worker_in_time_is_an_answer_that_says_where_to_look, 0,
        3);
    tcase_add_test(tcase, hvdd_stops_before_it_has_heard_of_a_units_worker);
    tcase_add_test(tcase, hvdd_ends_all_workers_and_starts_no_more);
    tcase_add_test(tcase, fences_are_poisoned_with_their_engine);
    tcase_add_loop_test(tcase, the_words_of_an_engine_that_has_gone_wait_for_its_worker, 0, 2);
    suite_add_tcase(suite, tcase);
    tcase_add_test(words, states_have_these_edges_and_no_others);
    tcase_add_test(words, a_gpu_has_a_name_that_can_be_read_back);
    suite_add_tcase(suite, words);
    return hvt_run_suite(suite);
}
