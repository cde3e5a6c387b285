/* SPDX-License-Identifier: Apache-2.0
 * Waiting: deadlines, a dead engine, notices, the event descriptor and engines that lie in the ring. */
#include "base/clock.h"
#include "base/types.h"
#include "shm/bell.h"
#include "tests/unit/client/fake.h"
#include "tests/unit/hvt_main.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static struct hvt_fake *fake;
static struct hvd_session *session;
static struct hvt_fake_session *engine;

static void set_up(void)
{
    struct hvt_fake_script script = {.manual = true};
    fake = hvt_fake_start(&script);
    session = hvt_fake_open(fake);
    engine = hvt_fake_session(fake, 0);
}

static void tear_down(void)
{
    hvd_close(session);
    hvt_fake_stop(fake);
}

static struct hvd_op *barrier(uint64_t *cookie_p)
{
    struct hvd_op *op = NULL;
    ck_assert_msg(hvd_barrier_async(session, NULL, NULL, &op) == HVD_OK, "%s", hvd_last_error());
    uint64_t cookie = hvt_fake_take(engine).cookie;
    if (cookie_p)
        *cookie_p = cookie;
    return op;
}

START_TEST(a_timeout_is_kept_and_the_op_goes_on)
{
    uint64_t cookie;
    struct hvd_op *op = barrier(&cookie);
    uint64_t start_ns = hvi_clock_ns();
    ck_assert_int_eq(hvd_wait(op, 120 * 1000 * 1000), HVD_ERR_TIMEOUT);
    uint64_t took_ns = hvi_clock_ns() - start_ns;
    ck_assert_uint_ge(took_ns, 120 * HVI_NS_MS);
    ck_assert_uint_lt(took_ns, hvt_patience(1000 * HVI_NS_MS));
    ck_assert_ptr_nonnull(strstr(hvd_last_error(), "barrier.noname.1 is not finished after 0.120"));
    ck_assert_int_eq(hvd_wait(op, 0), HVD_ERR_TIMEOUT);
    ck_assert_int_eq(hvd_test(op), HVD_INPROGRESS);
    hvt_fake_done(engine, cookie, HVD_OK, NULL, -1);
    ck_assert_int_eq(hvd_wait(op, 0), HVD_OK);
    hvd_op_free(op);
}
END_TEST

START_TEST(hvdds_word_that_the_engine_was_lost_may_follow_the_engines_own_answer)
{
    struct hvd_op *op = barrier(NULL);
    hvt_fake_reply_again(engine, _i ? HVD_OK : HVD_ERR_DAEMON, "the engine has ended");
    ck_assert_int_eq(hvd_wait(op, HVI_NS_SEC), _i ? HVD_ERR_PROTOCOL : HVD_ERR_ENGINE_LOST);
    ck_assert_ptr_nonnull(
        strstr(hvd_last_error(), _i ? "not for clients" : "the engine has ended; close"));
    hvd_op_free(op);
}
END_TEST

/* Does something to the engine's end after a while. */
struct later {
    void (*what)(uint64_t cookie);
    uint64_t cookie;
    uint64_t done_ns;
};

static void *run_later(void *argument)
{
    struct later *later = argument;
    usleep(60000);
    later->done_ns = hvi_clock_ns();
    later->what(later->cookie);
    return NULL;
}

static void die(uint64_t cookie)
{
    (void)cookie;
    hvt_fake_die(engine);
}

static void end_with_reason(uint64_t cookie)
{
    (void)cookie;
    hvt_fake_notice(engine, HVD_ERR_JOB_STOPPED, "the job was stopped by root: maintenance", true);
    hvt_fake_die(engine);
}

static void complete_and_die(uint64_t cookie)
{
    hvt_fake_done(engine, cookie, HVD_OK, NULL, -1);
    hvt_fake_die(engine);
}

/* Waits for a barrier while `what` happens; returns the status, and how long after it in *late_ns_p. */
static int wait_while(void (*what)(uint64_t cookie), struct hvd_op **op_p, uint64_t *late_ns_p)
{
    struct later later = {.what = what};
    pthread_t thread;
    *op_p = barrier(&later.cookie);
    ck_assert_int_eq(pthread_create(&thread, NULL, run_later, &later), 0);
    int rc = hvd_wait(*op_p, 5000000000);
    uint64_t now_ns = hvi_clock_ns();
    pthread_join(thread, NULL);
    *late_ns_p = now_ns - later.done_ns;
    return rc;
}

START_TEST(a_dead_engine_is_noticed_within_100_ms)
{
    struct hvd_op *op, *other;
    uint64_t late_ns;
    ck_assert_int_eq(wait_while(die, &op, &late_ns), HVD_ERR_ENGINE_LOST);
    ck_assert_uint_lt(late_ns, hvt_patience(100 * HVI_NS_MS));
    ck_assert_ptr_nonnull(strstr(hvd_op_error(op), "the engine of job 'fake' (pid "));
    ck_assert_str_eq(hvd_last_error(), hvd_op_error(op));
    ck_assert_int_eq(hvd_session_status(session), HVD_ERR_ENGINE_LOST);
    ck_assert_int_eq(hvd_barrier_async(session, NULL, NULL, &other), HVD_ERR_ENGINE_LOST);
    hvd_op_free(op);
}
END_TEST

START_TEST(the_reason_given_before_the_end_wins)
{
    struct hvd_op *op;
    uint64_t late_ns;
    ck_assert_int_eq(wait_while(end_with_reason, &op, &late_ns), HVD_ERR_JOB_STOPPED);
    ck_assert_uint_lt(late_ns, hvt_patience(100 * HVI_NS_MS));
    ck_assert_str_eq(hvd_op_error(op), "the job was stopped by root: maintenance");
    ck_assert_int_eq(hvd_session_status(session), HVD_ERR_JOB_STOPPED);
    hvd_op_free(op);
}
END_TEST

START_TEST(what_was_completed_before_the_end_stays_complete)
{
    struct hvd_op *op;
    uint64_t late_ns;
    ck_assert_int_eq(wait_while(complete_and_die, &op, &late_ns), HVD_OK);
    hvd_op_free(op);
    ck_assert_int_eq(hvd_session_status(session), HVD_ERR_ENGINE_LOST);
}
END_TEST

START_TEST(what_was_completed_before_the_stop_stays_complete)
{
    uint64_t cookie;
    struct hvd_op *op = barrier(&cookie);
    struct hvd_op *other;
    hvt_fake_done(engine, cookie, HVD_OK, NULL, -1);
    hvt_fake_notice(engine, HVD_ERR_JOB_STOPPED, "the job was stopped", true);
    atomic_store(&hvt_fake_header(engine)->session_state, HVI_SESSION_ENDED);
    ck_assert_int_eq(hvd_barrier_async(session, NULL, NULL, &other), HVD_ERR_JOB_STOPPED);
    ck_assert_int_eq(hvd_test(op), HVD_OK);
    hvd_op_free(op);
}
END_TEST

START_TEST(polling_with_test_notices_a_dead_engine_too)
{
    struct hvd_op *op = barrier(NULL);
    hvt_fake_die(engine);
    uint64_t deadline_ns = hvi_deadline_after(1000000000);
    uint64_t start_ns = hvi_clock_ns();
    int rc;
    do
        rc = hvd_test(op);
    while (rc == HVD_INPROGRESS && !hvi_deadline_passed(deadline_ns));
    ck_assert_int_eq(rc, HVD_ERR_ENGINE_LOST);
    ck_assert_uint_lt(hvi_clock_ns() - start_ns, hvt_patience(100 * HVI_NS_MS));
    hvd_op_free(op);
}
END_TEST

START_TEST(every_op_in_flight_fails_with_the_engine)
{
    struct hvd_op *ops[50];
    for (int i = 0; i < 50; i++)
        ops[i] = barrier(NULL);
    hvt_fake_die(engine);
    for (int i = 0; i < 50; i++) {
        ck_assert_int_eq(hvd_wait(ops[i], 1000000000), HVD_ERR_ENGINE_LOST);
        ck_assert_ptr_nonnull(strstr(hvd_op_error(ops[i]), "engine"));
        hvd_op_free(ops[i]);
    }
}
END_TEST

static int log_calls;
static enum hvd_log_level log_level;
static char log_text[2000];

static void log_line(void *user, enum hvd_log_level level, const char *text)
{
    ck_assert_ptr_eq(user, &log_calls);
    log_calls++;
    log_level = level;
    snprintf(log_text, sizeof log_text, "%s", text);
}

START_TEST(a_lost_rank_shows_in_the_status_and_ops_still_go_to_the_engine)
{
    struct hvd_session *logged;
    struct hvd_options options;
    hvd_options_init(&options);
    options.address = hvt_fake_dir(fake);
    options.rank = 0;
    options.size = 2;
    options.log = log_line;
    options.log_user = &log_calls;
    ck_assert_int_eq(hvd_open(&options, &logged), HVD_OK);
    struct hvt_fake_session *second = hvt_fake_session(fake, 1);
    hvt_fake_notice(second, HVD_ERR_RANK_LOST, "rank 1 (pid 5) exited with code 3", false);
    ck_assert_int_eq(hvd_session_status(logged), HVD_ERR_RANK_LOST);
    ck_assert_int_eq(log_level, HVD_LOG_WARN);
    hvt_fake_notice(second, HVD_ERR_RANK_LEFT, "rank 2 left", false);
    ck_assert_int_eq(hvd_session_status(logged), HVD_ERR_RANK_LOST); /* the first */
    ck_assert_str_eq(hvd_last_error(), "rank 1 (pid 5) exited with code 3");
    ck_assert_int_eq(log_calls, 2);
    ck_assert_int_eq(log_level, HVD_LOG_INFO);
    ck_assert_str_eq(log_text, "rank 2 left");
    struct hvd_op *op;
    ck_assert_int_eq(hvd_barrier_async(logged, NULL, NULL, &op), HVD_OK);
    hvt_fake_done(second, hvt_fake_take(second).cookie, HVD_ERR_RANK_LOST,
                  "rank 1 (pid 5) exited with code 3", 1);
    ck_assert_int_eq(hvd_wait(op, -1), HVD_ERR_RANK_LOST);
    ck_assert_int_eq(hvd_op_culprit(op), 1);
    hvt_fake_die(second);
    ck_assert_int_eq(hvd_session_status(logged), HVD_ERR_ENGINE_LOST);
    ck_assert_int_eq(log_calls, 3);
    ck_assert_int_eq(log_level, HVD_LOG_ERROR);
    hvd_close(logged);
}
END_TEST

START_TEST(a_submitter_that_never_waits_learns_the_end)
{
    struct hvd_op *op;
    hvt_fake_notice(engine, HVD_ERR_PROTOCOL, "rank 0 broke the protocol: seq 9", true);
    atomic_store(&hvt_fake_header(engine)->session_state, HVI_SESSION_ENDED);
    ck_assert_int_eq(hvd_barrier_async(session, NULL, NULL, &op), HVD_ERR_PROTOCOL);
    ck_assert_ptr_nonnull(strstr(hvd_last_error(), "seq 9"));
}
END_TEST

static bool is_readable(int fd, int timeout_ms)
{
    struct pollfd pollfd = {.fd = fd, .events = POLLIN};
    return poll(&pollfd, 1, timeout_ms) > 0;
}

START_TEST(the_event_descriptor_follows_completions)
{
    uint64_t first, second;
    struct hvd_op *a = barrier(&first);
    struct hvd_op *b = barrier(&second);
    int fd, again;
    ck_assert_int_eq(hvd_event_fd(session, &fd), HVD_OK);
    ck_assert_int_eq(hvd_event_fd(session, &again), HVD_OK);
    ck_assert_int_eq(fd, again);
    ck_assert(!is_readable(fd, 0));
    hvt_fake_done(engine, first, HVD_OK, NULL, -1);
    ck_assert(is_readable(fd, 1000));
    ck_assert_int_eq(hvd_test(b), HVD_INPROGRESS);
    ck_assert_msg(is_readable(fd, 0), "a is finished and nobody has looked at it");
    ck_assert_int_eq(hvd_test(a), HVD_OK);
    ck_assert(!is_readable(fd, 0));
    hvt_fake_done(engine, second, HVD_OK, NULL, -1);
    ck_assert(is_readable(fd, 1000));
    hvd_op_free(b);
    ck_assert(hvd_session_status(session) == HVD_OK);
    ck_assert(!is_readable(fd, 0));
    hvd_op_free(a);
}
END_TEST

START_TEST(an_event_descriptor_made_late_is_readable_at_once)
{
    uint64_t cookie;
    struct hvd_op *op = barrier(&cookie);
    int fd;
    hvt_fake_done(engine, cookie, HVD_OK, NULL, -1);
    ck_assert_int_eq(hvd_event_fd(session, &fd), HVD_OK);
    ck_assert(is_readable(fd, 0));
    ck_assert_int_eq(hvd_test(op), HVD_OK);
    ck_assert(!is_readable(fd, 0));
    hvd_op_free(op);
}
END_TEST

START_TEST(the_event_descriptor_tells_the_end)
{
    struct hvd_op *op = barrier(NULL);
    int fd;
    ck_assert_int_eq(hvd_event_fd(session, &fd), HVD_OK);
    hvt_fake_die(engine);
    ck_assert(is_readable(fd, 1000));
    ck_assert_int_eq(hvd_test(op), HVD_ERR_ENGINE_LOST);
    ck_assert_msg(is_readable(fd, 0), "an ended session stays readable");
    hvd_op_free(op);
}
END_TEST

START_TEST(a_notice_does_not_keep_the_event_descriptor_readable)
{
    struct hvd_op *op = barrier(NULL);
    int fd;
    ck_assert_int_eq(hvd_event_fd(session, &fd), HVD_OK);
    hvt_fake_notice(engine, HVD_ERR_RANK_LEFT, "rank 1 left", false);
    ck_assert(is_readable(fd, 1000));
    ck_assert_int_eq(hvd_test(op), HVD_INPROGRESS);
    ck_assert(!is_readable(fd, 0));
    hvd_op_free(op);
}
END_TEST

/* Completions that no engine would write. */
struct lie {
    const char *title;
    uint64_t seq;
    uint64_t cookie_xor;
    int status;
    uint32_t kind;
};

static const struct lie lies[] = {
    {"a seq from the future", 2, 0, HVD_OK, HVI_COMPLETE_DONE},
    {"an index beyond the pool", 0, 0xffffff, HVD_OK, HVI_COMPLETE_DONE},
    {"another generation", 0, UINT64_C(1) << 40, HVD_OK, HVI_COMPLETE_DONE},
    {"in progress as a result", 0, 0, HVD_INPROGRESS, HVI_COMPLETE_DONE},
    {"no kind", 0, 0, HVD_OK, 0},
    {"the size of a barrier", 0, 0, HVD_OK, HVI_COMPLETE_SIZED},
};

START_TEST(impossible_completions_end_the_session)
{
    uint64_t cookie;
    struct hvd_op *op = barrier(&cookie);
    struct hvi_completion completion = {.seq = lies[_i].seq,
                                        .cookie = cookie ^ lies[_i].cookie_xor,
                                        .status = lies[_i].status,
                                        .kind = lies[_i].kind,
                                        .text_cell = HVI_TEXT_NONE};
    hvt_fake_completion(engine, completion);
    ck_assert_msg(hvd_wait(op, 1000000000) == HVD_ERR_PROTOCOL, "%s", lies[_i].title);
    hvd_op_free(op);
}
END_TEST

START_TEST(a_completion_that_comes_twice_ends_the_session)
{
    uint64_t cookie;
    struct hvd_op *op = barrier(&cookie);
    hvt_fake_done(engine, cookie, HVD_OK, NULL, -1);
    hvt_fake_done(engine, cookie, HVD_OK, NULL, -1);
    ck_assert_int_eq(hvd_wait(op, 1000000000), HVD_OK);
    ck_assert_int_eq(hvd_session_status(session), HVD_ERR_PROTOCOL);
    hvd_op_free(op);
}
END_TEST

START_TEST(impossible_ring_indices_end_the_session)
{
    struct hvd_op *op = barrier(NULL);
    struct hvd_op *other;
    if (_i == 0) {
        atomic_store(&hvt_fake_header(engine)->cq_tail, 999999);
        ck_assert_int_eq(hvd_wait(op, 1000000000), HVD_ERR_PROTOCOL);
    } else {
        atomic_store(&hvt_fake_header(engine)->sq_head, 999999);
        ck_assert_int_eq(hvd_barrier_async(session, NULL, NULL, &other), HVD_ERR_PROTOCOL);
    }
    ck_assert_int_eq(hvd_session_status(session), HVD_ERR_PROTOCOL);
    hvd_op_free(op);
}
END_TEST

START_TEST(a_culprit_or_text_out_of_range_does_no_harm)
{
    uint64_t cookie;
    struct hvd_op *op = barrier(&cookie);
    hvt_fake_completion(engine, (struct hvi_completion){.cookie = cookie,
                                                        .status = -301,
                                                        .kind = HVI_COMPLETE_DONE,
                                                        .text_cell = 4000000000u,
                                                        .text_turn = 5,
                                                        .culprit = -77});
    ck_assert_int_eq(hvd_wait(op, 1000000000), HVD_ERR_RANK_LEFT);
    ck_assert_str_eq(hvd_op_error(op), "a rank closed its session");
    hvd_op_free(op);
}
END_TEST

#define SILENT_NS (3 * HVI_NS_SEC) /* of these 2 s so that hvdd sees it first */

static void set_up_silent(void)
{
    struct hvt_fake_script script = {.manual = true, .silence_ns = HVI_NS_SEC};
    fake = hvt_fake_start(&script);
    session = hvt_fake_open(fake);
    engine = hvt_fake_session(fake, 0);
}

START_TEST(an_engine_that_stands_still_and_cannot_be_killed_ends_the_session)
{
    struct hvd_op *op = barrier(NULL);
    uint64_t start_ns = hvi_clock_ns();
    ck_assert_int_eq(hvd_wait(op, 60 * (int64_t)HVI_NS_SEC), HVD_ERR_ENGINE_LOST);
    uint64_t took_ns = hvi_clock_ns() - start_ns;
    ck_assert_uint_ge(took_ns, SILENT_NS);
    ck_assert_uint_lt(took_ns, SILENT_NS + hvt_patience(1000 * HVI_NS_MS));
    ck_assert_ptr_nonnull(strstr(hvd_last_error(), "has not moved for 3 s"));
    ck_assert_ptr_nonnull(strstr(hvd_last_error(), "cannot kill it"));
    hvd_op_free(op);
    ck_assert_int_eq(hvd_close(session), HVD_ERR_TIMEOUT);
    hvt_fake_stop(fake);
}
END_TEST

/* An engine with nothing to do: moves when it is rung. */
static void *move_when_rung(void *argument)
{
    _Atomic int *rung = argument;
    struct hvi_bell_page *bell = hvt_fake_bell(fake);
    while (atomic_load(rung) >= 0) {
        if (hvi_bell_take(bell, 0) != 0) {
            atomic_fetch_add(&bell->beat, 1);
            atomic_fetch_add(rung, 1);
        }
        usleep(1000);
    }
    return NULL;
}

START_TEST(an_engine_that_moves_when_it_is_rung_is_not_lost)
{
    pthread_t thread;
    _Atomic int rung = 0;
    struct hvd_op *op = barrier(NULL);
    ck_assert_int_eq(pthread_create(&thread, NULL, move_when_rung, &rung), 0);
    ck_assert_int_eq(hvd_wait(op, 5 * (int64_t)HVI_NS_SEC), HVD_ERR_TIMEOUT);
    ck_assert_int_eq(hvd_session_status(session), HVD_OK);
    ck_assert_int_ge(atomic_load(&rung), 2);
    ck_assert_int_lt(atomic_load(&rung), 10); /* one that lives is left alone */
    atomic_store(&rung, -1);
    pthread_join(thread, NULL);
    hvt_fake_die(engine);
    ck_assert_int_eq(hvd_wait(op, HVI_NS_SEC), HVD_ERR_ENGINE_LOST);
    ck_assert_ptr_null(strstr(hvd_last_error(), "moved"));
    hvd_op_free(op);
    ck_assert_int_eq(hvd_close(session), HVD_OK);
    hvt_fake_stop(fake);
}
END_TEST

/* ---- a result that another thread copies ---- */

#define COUNT 65536 /* a result that is copied without the lock */

static char *last_page; /* of an output: the copy stands still there until `go` */
static atomic_bool stands, go;

static void on_fault(int number, siginfo_t *info, void *context)
{
    const char *at = info->si_addr;
    (void)number, (void)context;
    if (at < last_page || at >= last_page + HVI_PAGE)
        abort();
    atomic_store(&stands, true);
    while (!atomic_load(&go))
        sched_yield();
    mprotect(last_page, HVI_PAGE, PROT_READ | PROT_WRITE);
}

static float *slow_output(void)
{
    const size_t bytes = COUNT * sizeof(float);
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    char *output = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(output, MAP_FAILED);
    last_page = output + bytes - HVI_PAGE;
    ck_assert_int_eq(mprotect(last_page, HVI_PAGE, PROT_NONE), 0);
    ck_assert_int_eq(sigaction(SIGSEGV, &action, NULL), 0);
    return (float *)(void *)output;
}

static void *wait_for_it(void *op)
{
    return (void *)(intptr_t)hvd_wait(op, -1);
}

/* 0: the others wait for it; 1: one of them releases it. */
START_TEST(a_result_that_one_thread_copies_is_not_finished_for_the_others)
{
    static float in[COUNT];
    float *out = slow_output();
    struct hvd_tensor from = hvd_tensor_1d(in, HVD_FLOAT32, COUNT);
    struct hvd_tensor to = hvd_tensor_1d(out, HVD_FLOAT32, COUNT);
    struct hvd_op *op = NULL;
    pthread_t thread;
    void *rc;
    int index;
    ck_assert_int_eq(hvd_allreduce_async(session, "w", &from, &to, HVD_SUM, NULL, &op), HVD_OK);
    struct hvi_submission slot = hvt_fake_take(engine);
    ((float *)hvt_fake_memory(engine, slot.out_region, slot.out_offset))[COUNT - 1] = 7;
    hvt_fake_done(engine, slot.cookie, HVD_OK, NULL, -1);
    ck_assert_int_eq(pthread_create(&thread, NULL, wait_for_it, op), 0);
    while (!atomic_load(&stands))
        sched_yield();
    ck_assert_int_eq(hvd_test(op), HVD_INPROGRESS);
    ck_assert_int_eq(hvd_wait(op, 5 * (int64_t)HVI_NS_MS), HVD_ERR_TIMEOUT);
    ck_assert_int_eq(hvd_wait_any(&op, 1, 5 * (int64_t)HVI_NS_MS, &index), HVD_ERR_TIMEOUT);
    if (_i == 1)
        hvd_op_free(op);
    atomic_store(&go, true);
    pthread_join(thread, &rc);
    ck_assert_int_eq((int)(intptr_t)rc, HVD_OK);
    ck_assert_float_eq(out[COUNT - 1], 7);
    ck_assert_int_eq(hvd_wait(op, 0), _i == 1 ? HVD_ERR_INVALID : HVD_OK);
    hvd_op_free(op);
    munmap(out, COUNT * sizeof(float));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client wait");
    TCase *tcase = tcase_create("wait");
    tcase_set_timeout(tcase, 60);
    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_test(tcase, a_timeout_is_kept_and_the_op_goes_on);
    tcase_add_loop_test(
        tcase, hvdds_word_that_the_engine_was_lost_may_follow_the_engines_own_answer, 0, 2);
    tcase_add_loop_test(tcase, a_result_that_one_thread_copies_is_not_finished_for_the_others, 0,
                        2);
    tcase_add_test(tcase, a_dead_engine_is_noticed_within_100_ms);
    tcase_add_test(tcase, the_reason_given_before_the_end_wins);
    tcase_add_test(tcase, what_was_completed_before_the_end_stays_complete);
    tcase_add_test(tcase, what_was_completed_before_the_stop_stays_complete);
    tcase_add_test(tcase, polling_with_test_notices_a_dead_engine_too);
    tcase_add_test(tcase, every_op_in_flight_fails_with_the_engine);
    tcase_add_test(tcase, a_lost_rank_shows_in_the_status_and_ops_still_go_to_the_engine);
    tcase_add_test(tcase, a_submitter_that_never_waits_learns_the_end);
    tcase_add_test(tcase, the_event_descriptor_follows_completions);
    tcase_add_test(tcase, an_event_descriptor_made_late_is_readable_at_once);
    tcase_add_test(tcase, the_event_descriptor_tells_the_end);
    tcase_add_test(tcase, a_notice_does_not_keep_the_event_descriptor_readable);
    tcase_add_loop_test(tcase, impossible_completions_end_the_session, 0,
                        (int)(sizeof lies / sizeof lies[0]));
    tcase_add_test(tcase, a_completion_that_comes_twice_ends_the_session);
    tcase_add_loop_test(tcase, impossible_ring_indices_end_the_session, 0, 2);
    tcase_add_test(tcase, a_culprit_or_text_out_of_range_does_no_harm);
    suite_add_tcase(suite, tcase);
    tcase = tcase_create("silence");
    tcase_set_timeout(tcase, 60);
    tcase_add_checked_fixture(tcase, set_up_silent, NULL);
    tcase_add_test(tcase, an_engine_that_stands_still_and_cannot_be_killed_ends_the_session);
    tcase_add_test(tcase, an_engine_that_moves_when_it_is_rung_is_not_lost);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
