/* SPDX-License-Identifier: Apache-2.0
 * hvd_admin.h against a real hvdd and its real gate, in a process that has ranks of its own through hvd.h: the two
 * libraries stand beside each other. */
#include "base/clock.h"
#include "tests/unit/hvt_main.h"
#include "tests/unit/hvt_process.h"

#include <hvd/hvd.h>
#include <hvd/hvd_admin.h>

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#define SOON_NS (20 * (int64_t)HVI_NS_SEC)

static struct {
    pid_t pid;
    char folder[64], address[80];
} node;

/* ---- hvdd ---- */

static void run_hvdd(int ready)
{
    char program[4200], runtime[128], fd[32];

    snprintf(program, sizeof program, "%s/bin/hvdd", getenv("HVD_BUILD_DIR"));
    snprintf(runtime, sizeof runtime, "--runtime-dir=%s", node.address);
    snprintf(fd, sizeof fd, "--ready-fd=%d", ready);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    execl(program, "hvdd", runtime, "--private=yes", "--log-level=error", "--config=/dev/null",
          "--stall-warn=100ms", fd, (char *)NULL);
    _exit(127);
}

static bool start_hvdd(void)
{
    int ends[2];
    char byte;

    snprintf(node.folder, sizeof node.folder, "/tmp/hvt-admin-XXXXXX");
    if (mkdtemp(node.folder) == NULL || pipe(ends) != 0)
        return false;
    snprintf(node.address, sizeof node.address, "%s/run", node.folder);
    setenv("HVD_ADDRESS", node.address, 1);
    node.pid = fork();
    if (node.pid == 0) {
        close(ends[0]);
        run_hvdd(ends[1]);
    }
    close(ends[1]);
    struct pollfd ready = {.fd = ends[0], .events = POLLIN};
    const bool is_ready = poll(&ready, 1, 20000) == 1 && read(ends[0], &byte, 1) == 1;
    close(ends[0]);
    return is_ready;
}

static bool stop_hvdd(void)
{
    kill(node.pid, SIGTERM);
    const int status = hvt_wait_child(node.pid);
    rmdir(node.address);
    return rmdir(node.folder) == 0 && status == 0;
}

/* ---- ranks ---- */

#define RANKS 2

static struct hvd_session *sessions[RANKS];
static float numbers[RANKS][4];

static void open_rank(const char *job, int rank)
{
    struct hvd_options options;
    hvd_options_init(&options);
    options.job = job;
    options.rank = options.local_rank = rank;
    options.size = options.local_size = RANKS;
    options.cross_rank = 0;
    options.cross_size = 1;
    ck_assert_msg(hvd_open(&options, &sessions[rank]) == HVD_OK, "%s", hvd_last_error());
}

static void open_ranks(const char *job)
{
    for (int rank = 0; rank < RANKS; rank++)
        open_rank(job, rank);
}

static void close_ranks(void)
{
    for (int rank = 0; rank < RANKS; rank++)
        hvd_close(sessions[rank]);
}

static struct hvd_op *submit(int rank, const char *name)
{
    const struct hvd_tensor tensor = hvd_tensor_1d(numbers[rank], HVD_FLOAT32, 4);
    struct hvd_op *op = NULL;
    ck_assert_int_eq(
        hvd_allreduce_async(sessions[rank], name, &tensor, &tensor, HVD_SUM, NULL, &op), HVD_OK);
    return op;
}

static void reduce_once(const char *name)
{
    struct hvd_op *ops[RANKS] = {submit(0, name), submit(1, name)};
    ck_assert_int_eq(hvd_wait_all(ops, RANKS, SOON_NS), HVD_OK);
    for (int rank = 0; rank < RANKS; rank++)
        hvd_op_free(ops[rank]);
}

/* ---- questions ---- */

static struct hvd_admin *admin;
static struct hvd_admin_request request;
static struct hvd_admin_answer *answer;

static void set_up(void)
{
    ck_assert_msg(hvd_admin_open(NULL, &admin) == HVD_OK, "%s", hvd_admin_last_error());
    answer = NULL;
}

static void tear_down(void)
{
    hvd_admin_answer_free(answer);
    hvd_admin_close(admin);
}

static int try_ask(enum hvd_admin_kind kind, const char *job, int64_t timeout_ns)
{
    hvd_admin_answer_free(answer);
    answer = NULL;
    hvd_admin_request_init(&request, kind);
    request.job = job;
    return hvd_admin_ask(admin, &request, timeout_ns, &answer);
}

static void ask(enum hvd_admin_kind kind, const char *job)
{
    ck_assert_msg(try_ask(kind, job, SOON_NS) == HVD_OK, "%s", hvd_admin_last_error());
}

static void expect(int status, const char *words)
{
    ck_assert_ptr_null(answer);
    ck_assert_msg(strstr(hvd_admin_last_error(), words) != NULL, "%d: \"%s\" has no \"%s\"", status,
                  hvd_admin_last_error(), words);
}

START_TEST(status_is_of_the_hvdd_that_was_found)
{
    ask(HVD_ADMIN_STATUS, NULL);
    ck_assert_str_eq(hvd_admin_address(admin), node.address);
    ck_assert_int_eq(answer->daemon->pid, node.pid);
    ck_assert_str_eq(answer->daemon->version, hvd_admin_version());
    ck_assert_str_eq(answer->daemon->runtime_dir, node.address);
    ck_assert_str_eq(answer->daemon->state, "running");
    ck_assert_uint_gt(answer->daemon->uptime_ns, 0);
    ck_assert_uint_eq(answer->job_count + answer->rank_count + answer->stall_count, 0);
}
END_TEST

START_TEST(a_running_job_is_seen_with_its_ranks_and_ops)
{
    open_ranks("seen");
    reduce_once("grad");
    ask(HVD_ADMIN_JOBS, NULL);
    ck_assert_uint_eq(answer->job_count, 1);
    ck_assert_str_eq(answer->jobs[0]->job, "seen");
    ck_assert_str_eq(answer->jobs[0]->state, "running");
    ck_assert_uint_eq(answer->jobs[0]->uid, getuid());
    ck_assert_int_eq(answer->jobs[0]->attached, RANKS);
    ck_assert_uint_eq(answer->jobs[0]->nodes, 1);
    ck_assert_int_eq(answer->jobs[0]->withheld, 0);

    ask(HVD_ADMIN_RANKS, "seen");
    ck_assert_uint_eq(answer->rank_count, RANKS);
    for (int rank = 0; rank < RANKS; rank++) {
        ck_assert_int_eq(answer->ranks[rank]->rank, rank);
        ck_assert_int_eq(answer->ranks[rank]->pid, getpid());
        ck_assert_str_eq(answer->ranks[rank]->state, "attached");
        ck_assert_uint_eq(answer->ranks[rank]->ops, 1);
    }

    ask(HVD_ADMIN_TRACE, "seen");
    ck_assert_uint_eq(answer->trace_count, RANKS);
    ck_assert_str_eq(answer->traces[0]->tensor, "grad");
    ck_assert_str_eq(answer->traces[0]->op, "allreduce");
    ck_assert_int_eq(answer->traces[0]->status, HVD_OK);
    ck_assert_uint_ge(answer->traces[0]->done_ns, answer->traces[0]->submit_ns);
    close_ranks();
}
END_TEST

/* How long the file is. */
static long file_bytes(const char *path)
{
    struct stat status;
    ck_assert_int_eq(stat(path, &status), 0);
    return (long)status.st_size;
}

START_TEST(a_timeline_is_written_into_the_callers_file)
{
    char path[128];
    snprintf(path, sizeof path, "%s/timeline.json", node.folder);
    open_ranks("drawn");
    ck_assert_msg(hvd_admin_timeline_start(NULL, "drawn", HVD_ADMIN_ANY, path, 0, SOON_NS) ==
                      HVD_OK,
                  "%s", hvd_admin_last_error());
    ck_assert_int_eq(hvd_admin_timeline_start(NULL, "drawn", getuid(), path, 0, SOON_NS),
                     HVD_ERR_EXISTS);
    expect(HVD_ERR_EXISTS, "already");
    reduce_once("grad");
    ck_assert_int_eq(hvd_admin_timeline_stop(node.address, "drawn", HVD_ADMIN_ANY, SOON_NS),
                     HVD_OK);
    const long drawn = file_bytes(path);
    ck_assert_int_gt(drawn, 100);
    reduce_once("grad");
    ck_assert_int_eq(hvd_admin_timeline_stop(node.address, "drawn", HVD_ADMIN_ANY, SOON_NS),
                     HVD_OK);
    ck_assert_int_eq(file_bytes(path), drawn);
    close_ranks();
    unlink(path);
}
END_TEST

START_TEST(a_timeline_that_cannot_be_is_an_error_with_a_sentence)
{
    ck_assert_int_eq(
        hvd_admin_timeline_start(NULL, "no/job", HVD_ADMIN_ANY, "/dev/null", 0, SOON_NS),
        HVD_ERR_INVALID);
    expect(HVD_ERR_INVALID, "'no/job' is no job id");
    ck_assert_int_eq(
        hvd_admin_timeline_start(NULL, "nobody", HVD_ADMIN_ANY, "/no/where", 0, SOON_NS),
        HVD_ERR_INVALID);
    expect(HVD_ERR_INVALID, "cannot open /no/where");
    ck_assert_int_eq(hvd_admin_timeline_start(NULL, "nobody", HVD_ADMIN_ANY, NULL, 0, SOON_NS),
                     HVD_ERR_INVALID);
    ck_assert_int_eq(
        hvd_admin_timeline_start(NULL, "nobody", HVD_ADMIN_ANY, "/dev/null", 0, SOON_NS),
        HVD_ERR_NOT_FOUND);
    ck_assert_int_eq(hvd_admin_timeline_stop(node.address, NULL, HVD_ADMIN_ANY, SOON_NS),
                     HVD_ERR_INVALID);
    ck_assert_int_eq(hvd_admin_timeline_stop(node.address, "nobody", HVD_ADMIN_ANY, SOON_NS),
                     HVD_ERR_NOT_FOUND);
}
END_TEST

START_TEST(an_answer_outlives_its_handle)
{
    open_ranks("kept");
    ask(HVD_ADMIN_RANKS, "kept");
    hvd_admin_close(admin);
    admin = NULL;
    ck_assert_str_eq(answer->ranks[1]->state, "attached");
    close_ranks();
}
END_TEST

START_TEST(a_stall_names_who_is_missing)
{
    open_ranks("stalled");
    struct hvd_op *op = submit(0, "lonely");
    do {
        ask(HVD_ADMIN_STALLS, "stalled");
    } while (answer->stall_count == 0); /* until the engine has taken it; the test has a deadline */
    const struct hvd_admin_stall *stall = answer->stalls[0];
    ck_assert_str_eq(stall->tensor, "lonely");
    ck_assert_str_eq(stall->job, "stalled");
    ck_assert_uint_eq(stall->ready_count, 1);
    ck_assert_int_eq(stall->ready[0], 0);
    ck_assert_uint_eq(stall->missing_count, 1);
    ck_assert_int_eq(stall->missing[0]->rank, 1);
    ck_assert_int_eq(stall->missing[0]->pid, getpid());
    hvd_op_free(op);
    close_ranks();
}
END_TEST

START_TEST(a_job_that_is_stopped_tells_its_ranks_why)
{
    open_ranks("stopped");
    struct hvd_op *op = submit(0, "lonely");
    hvd_admin_request_init(&request, HVD_ADMIN_JOB_STOP);
    request.job = "stopped";
    request.reason = "the machine goes down";
    ck_assert_int_eq(hvd_admin_ask(admin, &request, SOON_NS, &answer), HVD_OK);
    ck_assert_ptr_nonnull(strstr(answer->text, "job 'stopped' is being stopped"));
    ck_assert_int_eq(hvd_wait(op, SOON_NS), HVD_ERR_JOB_STOPPED);
    ck_assert_ptr_nonnull(strstr(hvd_op_error(op), "the machine goes down"));
    hvd_op_free(op);
    close_ranks();
}
END_TEST

START_TEST(a_long_reason_is_cut_between_characters)
{
    char reason[4096];
    for (int lead = 0; lead < 2; lead++) {
        memset(reason, 'x', sizeof reason);
        for (size_t i = (size_t)lead; i + 2 < sizeof reason; i += 2)
            memcpy(reason + i, "\xc3\xa9", 2);
        reason[sizeof reason - 1] = '\0';
        hvd_admin_request_init(&request, HVD_ADMIN_JOB_STOP);
        request.job = "nobody";
        request.reason = reason;
        ck_assert_int_eq(hvd_admin_ask(admin, &request, SOON_NS, &answer), HVD_ERR_NOT_FOUND);
    }
}
END_TEST

START_TEST(the_gate_itself_answers_about_nodes_and_nobody_has_a_gpu)
{
    ask(HVD_ADMIN_NODES, NULL);
    ck_assert_uint_eq(answer->node_count, 0);
    ck_assert_str_ne(answer->text, "");
    ask(HVD_ADMIN_GPUS, NULL);
    ck_assert_uint_eq(answer->gpu_count, 0);
}
END_TEST

static const struct hvd_admin_limit *limit_of(const char *name)
{
    for (size_t i = 0; i < answer->limit_count; i++)
        if (strcmp(answer->limits[i]->limit, name) == 0)
            return answer->limits[i];
    ck_abort_msg("no limit %s among %zu", name, answer->limit_count);
}

START_TEST(limits_are_those_of_hvdd_and_of_its_gate)
{
    ask(HVD_ADMIN_LIMITS, NULL);
    ck_assert_str_eq(limit_of("max-jobs")->of, "all");
    ck_assert_uint_eq(limit_of("max-jobs")->most, 256);
    ck_assert_str_eq(limit_of("max-sessions-per-user")->of, "user");
    ck_assert_uint_eq(limit_of("max-sessions-per-user")->uid, geteuid());
    ck_assert(!limit_of("log-rate")->counted);
    ck_assert(limit_of("max-admin")->counted);
    ck_assert_uint_ge(limit_of("max-admin")->used, 1);
    hvd_admin_answer_free(answer);
    hvd_admin_request_init(&request, HVD_ADMIN_LIMITS);
    request.owner = (int64_t)geteuid() + 1; /* who has asked nothing */
    ck_assert_int_eq(hvd_admin_ask(admin, &request, SOON_NS, &answer), HVD_OK);
    ck_assert_uint_eq(limit_of("max-sessions-per-user")->uid, geteuid() + 1);
    ck_assert_str_eq(limit_of("max-admin")->job, "");
    for (size_t i = 0; i < answer->limit_count; i++)
        if (strcmp(answer->limits[i]->of, "user") == 0)
            ck_assert_uint_eq(answer->limits[i]->uid, geteuid() + 1);
}
END_TEST

START_TEST(what_cannot_be_is_an_error_with_a_sentence)
{
    ck_assert_int_eq(try_ask(HVD_ADMIN_RANKS, "nobody", SOON_NS), HVD_ERR_NOT_FOUND);
    expect(HVD_ERR_NOT_FOUND, "nobody");
    ck_assert_int_eq(try_ask(HVD_ADMIN_RANKS, "no/job", SOON_NS), HVD_ERR_INVALID);
    expect(HVD_ERR_INVALID, "'no/job' is no job id");
    ck_assert_int_eq(try_ask((enum hvd_admin_kind)99, NULL, SOON_NS), HVD_ERR_INVALID);
    expect(HVD_ERR_INVALID, "99 is no kind of request");
    ck_assert_int_eq(try_ask((enum hvd_admin_kind)12, NULL, SOON_NS), HVD_ERR_INVALID);
    expect(HVD_ERR_INVALID, "12 is no kind of request"); /* of the wire: events */
    ck_assert_int_eq(try_ask(HVD_ADMIN_RANKS, NULL, SOON_NS), HVD_ERR_INVALID);
    hvd_admin_request_init(&request, HVD_ADMIN_STATUS);
    request.struct_size = 8;
    ck_assert_int_eq(hvd_admin_ask(admin, &request, SOON_NS, &answer), HVD_ERR_INVALID);
    expect(HVD_ERR_INVALID, "a request of 8 bytes");
    ask(HVD_ADMIN_STATUS, NULL); /* the handle is as it was */
}
END_TEST

/* As of programs that were built against a later hvd_admin.h, and of 0.1's. */
START_TEST(a_request_of_another_version_is_understood_or_refused)
{
    struct {
        struct hvd_admin_request request;
        uint64_t later[2];
    } other = {.later = {0, 0}};
    hvd_admin_request_init(&other.request, HVD_ADMIN_STATUS);
    ck_assert_uint_ge(sizeof other.request, 80);
    other.request.struct_size = 80;
    ck_assert_int_eq(hvd_admin_ask(admin, &other.request, SOON_NS, &answer), HVD_OK);
    hvd_admin_answer_free(answer);
    answer = NULL;
    other.request.struct_size = sizeof other;
    ck_assert_int_eq(hvd_admin_ask(admin, &other.request, SOON_NS, &answer), HVD_OK);
    hvd_admin_answer_free(answer);
    answer = NULL;
    other.later[1] = 1;
    ck_assert_int_eq(hvd_admin_ask(admin, &other.request, SOON_NS, &answer), HVD_ERR_INVALID);
    expect(HVD_ERR_INVALID, "build against this version's hvd_admin.h");
    other.request.struct_size = 79;
    ck_assert_int_eq(hvd_admin_ask(admin, &other.request, SOON_NS, &answer), HVD_ERR_INVALID);
    other.request.struct_size = SIZE_MAX;
    ck_assert_int_eq(hvd_admin_ask(admin, &other.request, SOON_NS, &answer), HVD_ERR_INVALID);
}
END_TEST

START_TEST(a_place_without_hvdd_is_named)
{
    struct hvd_admin *other = NULL;
    struct hvd_admin_place place;
    ck_assert_int_eq(hvd_admin_open("/nonexistent/hvdd", &other), HVD_ERR_NO_DAEMON);
    ck_assert_ptr_null(other);
    expect(HVD_ERR_NO_DAEMON, "/nonexistent/hvdd (nothing there)");
    ck_assert_int_eq(hvd_admin_find("/nonexistent/hvdd", &place), HVD_ERR_NO_DAEMON);
    ck_assert_str_eq(place.dir, "/nonexistent/hvdd");
    ck_assert_int_eq(hvd_admin_find(NULL, &place), HVD_OK);
    ck_assert_str_eq(place.dir, node.address);
    ck_assert_str_eq(place.tried, "");
    ck_assert_str_eq(hvd_admin_address(NULL), "");
}
END_TEST

START_TEST(a_hvdd_that_stands_still_is_a_timeout_and_a_late_answer_is_dropped)
{
    const uint64_t before_ns = hvi_clock_ns();
    kill(node.pid, SIGSTOP);
    const int status = try_ask(HVD_ADMIN_STATUS, NULL, 100 * (int64_t)HVI_NS_MS);
    kill(node.pid, SIGCONT);
    ck_assert_int_eq(status, HVD_ERR_TIMEOUT);
    expect(status, "did not answer within 0.1 s");
    ck_assert_uint_lt(hvi_clock_ns() - before_ns, hvt_patience(2 * HVI_NS_SEC));
    ask(HVD_ADMIN_JOBS, NULL);
    ck_assert_ptr_null(answer->daemon);
}
END_TEST

/* hvdd's only child here. */
static pid_t gate_pid(void)
{
    char path[64];
    int pid = 0;
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)node.pid, (int)node.pid);
    FILE *file = fopen(path, "re");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fscanf(file, "%d", &pid), 1);
    fclose(file);
    return pid;
}

START_TEST(a_question_is_asked_again_when_the_gate_dies)
{
    ask(HVD_ADMIN_STATUS, NULL);
    const pid_t gate = gate_pid();
    kill(gate, SIGSTOP); /* so that it has the question and no answer */
    pid_t killer = fork();
    if (killer == 0) {
        usleep(50000);
        kill(gate, SIGKILL);
        _exit(0);
    }
    ask(HVD_ADMIN_STATUS, NULL);
    ck_assert_int_eq(answer->daemon->pid, node.pid);
    ck_assert_int_eq(hvt_wait_child(killer), 0);
    ck_assert_int_ne(gate_pid(), gate);
}
END_TEST

/* ---- events ---- */

static struct hvd_admin_events *events;

static void subscribe(void)
{
    ck_assert_msg(hvd_admin_subscribe(admin, SOON_NS, &events) == HVD_OK, "%s",
                  hvd_admin_last_error());
}

/* The next event of this kind, of this job or of none (""); jobs of other tests may still be ending. */
static const struct hvd_admin_event *await_event(enum hvd_admin_event_kind kind, const char *job)
{
    const struct hvd_admin_event *event;
    do {
        ck_assert_msg(hvd_admin_events_next(events, SOON_NS, &event) == HVD_OK, "no %d: %s",
                      (int)kind, hvd_admin_last_error());
    } while (event->kind != kind || strcmp(event->job, job) != 0);
    return event;
}

/* A process that is this rank of the job, and waits. It is killed with us. */
static pid_t start_rank(const char *job, int rank)
{
    int ends[2];
    char byte;
    ck_assert_int_eq(pipe(ends), 0);
    const pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        open_rank(job, rank);
        if (write(ends[1], "", 1) == 1)
            pause();
        _exit(1);
    }
    close(ends[1]);
    ck_assert_int_eq(read(ends[0], &byte, 1), 1);
    close(ends[0]);
    return pid;
}

START_TEST(a_rank_that_is_killed_is_an_event)
{
    subscribe();
    const uint64_t before_ns = hvi_clock_ns();
    const pid_t pids[RANKS] = {start_rank("killed", 0), start_rank("killed", 1)};
    const struct hvd_admin_event *event = await_event(HVD_ADMIN_EVENT_GENERATION_BEGAN, "killed");
    ck_assert_uint_eq(event->generation, 1);
    kill(pids[1], SIGKILL);
    event = await_event(HVD_ADMIN_EVENT_RANK_LOST, "killed");
    ck_assert_uint_eq(event->uid, getuid());
    ck_assert_int_eq(event->rank, 1);
    ck_assert_int_eq(event->pid, pids[1]);
    ck_assert_ptr_nonnull(strstr(event->text, "SIGKILL"));
    ck_assert_uint_gt(event->at_ns, before_ns);
    ck_assert_uint_lt(event->at_ns, hvi_clock_ns());
    kill(pids[0], SIGKILL);
    await_event(HVD_ADMIN_EVENT_GENERATION_ENDED, "killed");
    ck_assert_int_ne(hvt_wait_child(pids[0]), 0);
    ck_assert_int_ne(hvt_wait_child(pids[1]), 0);
    hvd_admin_events_close(events);
}
END_TEST

static pid_t engine_of(const char *job)
{
    ask(HVD_ADMIN_JOBS, NULL);
    for (size_t i = 0; i < answer->job_count; i++)
        if (strcmp(answer->jobs[i]->job, job) == 0)
            return answer->jobs[i]->engine_pid;
    ck_abort_msg("no job %s among %zu", job, answer->job_count);
}

START_TEST(an_engine_that_is_killed_is_an_event_and_its_generation_ends)
{
    subscribe();
    open_ranks("killed-engine");
    const pid_t engine = engine_of("killed-engine");
    ck_assert_int_gt(engine, 0);
    kill(engine, SIGKILL);
    const struct hvd_admin_event *event = await_event(HVD_ADMIN_EVENT_ENGINE_LOST, "killed-engine");
    ck_assert_int_eq(event->pid, engine);
    ck_assert_uint_eq(event->uid, getuid());
    ck_assert_int_eq(event->rank, HVD_ADMIN_ANY);
    ck_assert_ptr_nonnull(strstr(event->text, "SIGKILL"));
    await_event(HVD_ADMIN_EVENT_GENERATION_ENDED, "killed-engine");
    close_ranks();
    hvd_admin_events_close(events);
}
END_TEST

START_TEST(an_op_that_waits_too_long_is_an_event)
{
    subscribe();
    open_ranks("late");
    struct hvd_op *op = submit(0, "lonely");
    const struct hvd_admin_event *event = await_event(HVD_ADMIN_EVENT_STALL, "late");
    ck_assert_int_eq(event->rank, HVD_ADMIN_ANY);
    ck_assert_ptr_nonnull(strstr(event->text, "tensor 'lonely': allreduce waits for rank 1"));
    hvd_op_free(op);
    close_ranks();
    hvd_admin_events_close(events);
}
END_TEST

/* Whether the descriptor becomes readable within that time. */
static bool is_readable(int timeout_ms)
{
    struct pollfd item = {.fd = hvd_admin_events_fd(events), .events = POLLIN};
    return poll(&item, 1, timeout_ms) == 1;
}

/* Reads what waits until the descriptor says that there is nothing; now and then it is readable for nothing. */
static void come_to_rest(void)
{
    const uint64_t deadline_ns = hvi_deadline_after(SOON_NS);
    const struct hvd_admin_event *event;
    do {
        ck_assert(!hvi_deadline_passed(deadline_ns));
        const int status = hvd_admin_events_next(events, 0, &event);
        ck_assert(status == HVD_OK || status == HVD_ERR_TIMEOUT);
    } while (is_readable(0));
    ck_assert_int_eq(hvd_admin_events_next(events, 0, &event), HVD_ERR_TIMEOUT);
    ck_assert_ptr_nonnull(strstr(hvd_admin_last_error(), "nothing has happened"));
}

START_TEST(the_descriptor_is_readable_as_long_as_an_event_waits)
{
    subscribe();
    come_to_rest();
    open_ranks("polled");
    close_ranks(); /* it began, and it ends */
    const struct hvd_admin_event *event = await_event(HVD_ADMIN_EVENT_GENERATION_BEGAN, "polled");
    do {
        ck_assert(is_readable(20000));
        ck_assert(is_readable(0)); /* nothing was read */
        hvd_admin_events_next(events, 0, &event);
    } while (event->kind != HVD_ADMIN_EVENT_GENERATION_ENDED || strcmp(event->job, "polled") != 0);
    come_to_rest();
    hvd_admin_events_close(events);
}
END_TEST

START_TEST(a_gate_that_dies_costs_events_and_the_subscription_goes_on)
{
    subscribe();
    kill(gate_pid(), SIGKILL);
    const struct hvd_admin_event *event = await_event(HVD_ADMIN_EVENT_LOST, "");
    ck_assert_uint_eq(event->count, 0); /* not known */
    ask(HVD_ADMIN_STATUS, NULL);        /* the next gate is there */
    do {
        open_ranks("again");
        close_ranks();
    } while (hvd_admin_events_next(events, 200 * (int64_t)HVI_NS_MS, &event) != HVD_OK ||
             strcmp(event->job, "again") != 0);
    hvd_admin_events_close(events);
}
END_TEST

START_TEST(a_forked_child_is_told_to_open_its_own)
{
    const pid_t child = fork();
    if (child == 0) {
        struct hvd_admin *own = NULL;
        struct hvd_admin_events *theirs = NULL;
        int code = try_ask(HVD_ADMIN_STATUS, NULL, SOON_NS) == HVD_ERR_FORKED &&
                           hvd_admin_subscribe(admin, SOON_NS, &theirs) == HVD_ERR_FORKED
                       ? 0
                       : 1;
        hvd_admin_close(admin);
        if (HVT_SANITIZED) /* no thread may be started after such a fork */
            _exit(code);
        if (hvd_admin_open(NULL, &own) != HVD_OK)
            code = 2;
        admin = own;
        if (code == 0 && try_ask(HVD_ADMIN_STATUS, NULL, SOON_NS) != HVD_OK)
            code = 3;
        _exit(code);
    }
    ck_assert_int_eq(hvt_wait_child(child), 0);
    ask(HVD_ADMIN_STATUS, NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("contract/admin");
    TCase *tests = tcase_create("admin");
    if (!start_hvdd()) {
        fputs("hvdd does not start\n", stderr);
        return EXIT_FAILURE;
    }
    tcase_add_checked_fixture(tests, set_up, tear_down);
    tcase_add_test(tests, status_is_of_the_hvdd_that_was_found);
    tcase_add_test(tests, a_running_job_is_seen_with_its_ranks_and_ops);
    tcase_add_test(tests, a_timeline_is_written_into_the_callers_file);
    tcase_add_test(tests, a_timeline_that_cannot_be_is_an_error_with_a_sentence);
    tcase_add_test(tests, an_answer_outlives_its_handle);
    tcase_add_test(tests, a_stall_names_who_is_missing);
    tcase_add_test(tests, a_job_that_is_stopped_tells_its_ranks_why);
    tcase_add_test(tests, a_long_reason_is_cut_between_characters);
    tcase_add_test(tests, the_gate_itself_answers_about_nodes_and_nobody_has_a_gpu);
    tcase_add_test(tests, limits_are_those_of_hvdd_and_of_its_gate);
    tcase_add_test(tests, what_cannot_be_is_an_error_with_a_sentence);
    tcase_add_test(tests, a_request_of_another_version_is_understood_or_refused);
    tcase_add_test(tests, a_place_without_hvdd_is_named);
    tcase_add_test(tests, a_hvdd_that_stands_still_is_a_timeout_and_a_late_answer_is_dropped);
    tcase_add_test(tests, a_question_is_asked_again_when_the_gate_dies);
    tcase_add_test(tests, a_rank_that_is_killed_is_an_event);
    tcase_add_test(tests, an_engine_that_is_killed_is_an_event_and_its_generation_ends);
    tcase_add_test(tests, an_op_that_waits_too_long_is_an_event);
    tcase_add_test(tests, the_descriptor_is_readable_as_long_as_an_event_waits);
    tcase_add_test(tests, a_gate_that_dies_costs_events_and_the_subscription_goes_on);
    tcase_add_test(tests, a_forked_child_is_told_to_open_its_own);
    suite_add_tcase(suite, tests);
    const int result = hvt_run_suite(suite);
    return stop_hvdd() ? result : EXIT_FAILURE;
}
