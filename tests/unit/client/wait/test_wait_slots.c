/* SPDX-License-Identifier: Apache-2.0
 * Waiting for ops that stand in slots: rank 0 of two, whose peer never comes. The test is the engine. */
#include "base/clock.h"
#include "base/status.h"
#include "client/session/session.h"
#include "shm/slots.h"
#include "tests/unit/client/fake.h"
#include "tests/unit/hvt_main.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>

#define SLOT 5u /* of "b"; the next is "c"'s */

static struct hvi_slots job;
static struct hvt_fake *fake;
static struct hvd_session *session;
static struct hvt_fake_session *engine;

static struct hvd_op *barrier(const char *name)
{
    struct hvd_op *op = NULL;

    ck_assert_msg(hvd_barrier_async(session, name, NULL, &op) == HVD_OK, "%s", hvd_last_error());
    return op;
}

/* The next op like this may use the slot. */
static void end_with_grant(struct hvd_op *op, uint32_t slot, bool medium)
{
    hvt_fake_completion(engine,
                        (struct hvi_completion){.cookie = hvt_fake_take(engine).cookie,
                                                .kind = HVI_COMPLETE_DONE,
                                                .text_cell = HVI_TEXT_NONE,
                                                .text_turn = hvi_slot_open(&job, slot, medium),
                                                .culprit = -1,
                                                .grant = slot + 1});
    ck_assert_int_eq(hvd_wait(op, 10 * HVI_NS_SEC), HVD_OK);
    hvd_op_free(op);
}

static void grant(const char *name, uint32_t slot)
{
    end_with_grant(barrier(name), slot, false);
}

static void set_up(void)
{
    ck_assert_int_eq(hvi_slots_create(2, &job), HVI_OK);
    hvi_slots_seat(&job, 0, 0);
    hvi_slots_seat(&job, 1, 1);
    struct hvt_fake_script script = {.manual = true, .slots_fd = job.region.fd};
    fake = hvt_fake_start(&script);
    session = hvt_fake_open_as(fake, 0, 2);
    engine = hvt_fake_session(fake, 0);
    grant("b", SLOT);
    grant("c", SLOT + 1);
}

static void tear_down(void)
{
    hvd_close(session);
    hvt_fake_stop(fake);
    hvi_slots_fini(&job);
}

static struct hvd_op *stand(void)
{
    struct hvd_op *op = barrier("b");

    ck_assert_uint_eq(hvi_slot_view(&job, SLOT).waiting, 1u);
    ck_assert(hvt_fake_is_idle(engine));
    return op;
}

/* The engine takes the op that stands there, and ends it. */
static void take_over(void)
{
    uint64_t cookie = atomic_load(&hvi_slot_part(&job, SLOT, 0)->cookie);
    uint32_t arrived = 0;

    ck_assert(hvi_slot_revoke(&job, SLOT, &arrived));
    ck_assert_uint_eq(arrived, 1u);
    hvt_fake_done(engine, cookie, HVD_OK, NULL, -1);
}

START_TEST(an_op_in_a_slot_is_in_progress_until_the_engine_has_taken_it_over)
{
    struct hvd_op *op = stand();

    ck_assert_int_eq(hvd_test(op), HVD_INPROGRESS);
    ck_assert_int_eq(hvd_wait(op, 0), HVD_ERR_TIMEOUT);
    ck_assert_int_eq(hvd_wait(op, 30 * (int64_t)HVI_NS_MS), HVD_ERR_TIMEOUT);
    take_over();
    ck_assert_int_eq(hvd_wait(op, 10 * HVI_NS_SEC), HVD_OK);
    hvd_op_free(op);
}
END_TEST

/* An engine that takes over what it is called for, once `submits` others have been submitted. */
struct server {
    bool submits;
    struct hvd_op *op; /* that was submitted while the other one was handed over */
};

static void *serve(void *user)
{
    struct server *server = user;
    uint64_t deadline_ns = hvi_deadline_after(HVI_NS_SEC);

    atomic_store(&job.head->watch, 0);
    while (atomic_load(&job.head->watch) == 0 && !hvi_deadline_passed(deadline_ns))
        sched_yield();
    if (server->submits)
        server->op = barrier("c");
    take_over();
    return NULL;
}

static void start(pthread_t *thread, struct server *server)
{
    ck_assert_int_eq(pthread_create(thread, NULL, serve, server), 0);
}

START_TEST(the_event_descriptor_hands_over_what_stands_and_nothing_goes_into_a_slot_meanwhile)
{
    struct server server = {.submits = true};
    struct hvd_op *op = stand();
    pthread_t thread;
    int fd;

    start(&thread, &server);
    ck_assert_int_eq(hvd_event_fd(session, &fd), HVD_OK);
    pthread_join(thread, NULL);
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    ck_assert_int_eq(poll(&ready, 1, 1000), 1);
    ck_assert_int_eq(hvd_test(op), HVD_OK);
    ck_assert_uint_eq(hvi_slot_view(&job, SLOT + 1).waiting, 0u);
    hvt_fake_done(engine, hvt_fake_take(engine).cookie, HVD_OK, NULL, -1);
    ck_assert_int_eq(hvd_wait(server.op, 10 * HVI_NS_SEC), HVD_OK);
    hvd_op_free(op);
    hvd_op_free(server.op);
}
END_TEST

START_TEST(an_event_descriptor_is_had_although_the_engine_stands_still)
{
    struct hvd_op *op = stand();
    int fd;

    ck_assert_int_eq(hvd_event_fd(session, &fd), HVD_OK);
    ck_assert_int_eq(hvd_test(op), HVD_INPROGRESS);
    take_over();
    ck_assert_int_eq(hvd_wait(op, 10 * HVI_NS_SEC), HVD_OK);
    hvd_op_free(op);
}
END_TEST

/* Each by itself would take 100 ms: 2 s for all. */
START_TEST(an_event_descriptor_waits_for_all_ops_in_slots_together)
{
    struct hvd_op *ops[20];
    char name[16];
    int fd;

    for (uint32_t i = 0; i < 20; i++) {
        snprintf(name, sizeof name, "n%u", i);
        grant(name, SLOT + 2 + i);
        ops[i] = barrier(name);
    }
    ck_assert(hvt_fake_is_idle(engine));
    uint64_t start_ns = hvi_clock_ns();
    ck_assert_int_eq(hvd_event_fd(session, &fd), HVD_OK);
    ck_assert_uint_lt(hvi_clock_ns() - start_ns, 1500 * HVI_NS_MS);
    for (uint32_t i = 0; i < 20; i++) {
        ck_assert_uint_ne(atomic_load(&job.slots[SLOT + 2 + i].called), 0);
        hvd_op_free(ops[i]);
    }
}
END_TEST

/* An engine at which a peer waits for the memory of an allgather, and comes to the slot after that. */
static void *serve_output(void *user)
{
    const uint64_t *cookie = user;

    hvt_fake_sized(engine, *cookie, 2, 8);
    ck_assert_uint_eq(hvt_fake_take(engine).kind, HVI_SUBMIT_OUTPUT);
    uint64_t deadline_ns = hvi_deadline_after(10 * HVI_NS_SEC);
    while (atomic_load(&job.slots[SLOT].called) == 0 && !hvi_deadline_passed(deadline_ns))
        sched_yield();
    take_over();
    return NULL;
}

START_TEST(who_waits_in_a_slot_gives_memory_to_other_ops_and_hears_the_bell)
{
    float value = 1;
    struct hvd_tensor in = hvd_tensor_1d(&value, HVD_FLOAT32, 1);
    struct hvd_op *gather, *op;
    pthread_t thread;

    ck_assert_int_eq(hvd_allgather_async(session, "ids", &in, NULL, NULL, &gather), HVD_OK);
    uint64_t cookie = hvt_fake_take(engine).cookie;
    op = stand();
    atomic_store(&job.slots[SLOT].called, 0);
    ck_assert_int_eq(pthread_create(&thread, NULL, serve_output, &cookie), 0);
    ck_assert_int_eq(hvd_wait(op, 5 * (int64_t)HVI_NS_SEC), HVD_OK);
    pthread_join(thread, NULL);
    hvt_fake_done_rows(engine, cookie, 2, 8);
    ck_assert_int_eq(hvd_wait(gather, 10 * HVI_NS_SEC), HVD_OK);
    hvd_op_free(op);
    hvd_op_free(gather);
}
END_TEST

START_TEST(who_waits_for_one_of_several_hands_over_the_one_in_a_slot)
{
    struct server server = {.submits = false};
    struct hvd_op *ops[2] = {stand(), barrier("d")};
    uint64_t cookie = hvt_fake_take(engine).cookie;
    pthread_t thread;
    int index = -1;

    start(&thread, &server);
    ck_assert_int_eq(hvd_wait_any(ops, 2, 10 * HVI_NS_SEC, &index), HVD_OK);
    ck_assert_int_eq(index, 0);
    pthread_join(thread, NULL);
    hvt_fake_done(engine, cookie, HVD_OK, NULL, -1);
    ck_assert_int_eq(hvd_wait_all(ops, 2, 10 * HVI_NS_SEC), HVD_OK);
    hvd_op_free(ops[0]);
    hvd_op_free(ops[1]);
}
END_TEST

/* The only rank of its job, which is prompt as a rule: no engine is called for the op. */
START_TEST(polls_do_the_chunks_of_a_medium_op)
{
    const int64_t count = 4 * 16384;
    struct hvd_op *op;
    void *memory;
    int rc, polls = 0, index;

    ck_assert_int_eq(hvi_slots_create(1, &job), HVI_OK);
    hvi_slots_seat(&job, 0, 0);
    struct hvt_fake_script script = {.manual = true, .slots_fd = job.region.fd};
    fake = hvt_fake_start(&script);
    session = hvt_fake_open(fake);
    engine = hvt_fake_session(fake, 0);
    ck_assert_int_eq(hvd_alloc(session, (size_t)count * 4, &memory), HVD_OK);
    struct hvd_tensor tensor = hvd_tensor_1d(memory, HVD_FLOAT32, count);
    ck_assert_int_eq(hvd_allreduce_async(session, "m", &tensor, &tensor, HVD_SUM, NULL, &op),
                     HVD_OK);
    end_with_grant(op, SLOT, true);
    session->slots.prompt = true;
    ck_assert_int_eq(hvd_allreduce_async(session, "m", &tensor, &tensor, HVD_SUM, NULL, &op),
                     HVD_OK);
    ck_assert(hvt_fake_is_idle(engine));
    do
        rc = _i == 0 ? hvd_wait_any(&op, 1, 0, &index) : hvd_wait_all(&op, 1, 0);
    while (rc == HVD_ERR_TIMEOUT && ++polls < 1000);
    ck_assert_msg(rc == HVD_OK, "%s", hvd_last_error());
    hvd_op_free(op);
    tear_down();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client/wait_slots");
    TCase *tcase = tcase_create("wait_slots");

    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_test(tcase, an_op_in_a_slot_is_in_progress_until_the_engine_has_taken_it_over);
    tcase_add_test(
        tcase, the_event_descriptor_hands_over_what_stands_and_nothing_goes_into_a_slot_meanwhile);
    tcase_add_test(tcase, an_event_descriptor_is_had_although_the_engine_stands_still);
    tcase_add_test(tcase, an_event_descriptor_waits_for_all_ops_in_slots_together);
    tcase_add_test(tcase, who_waits_in_a_slot_gives_memory_to_other_ops_and_hears_the_bell);
    tcase_add_test(tcase, who_waits_for_one_of_several_hands_over_the_one_in_a_slot);
    suite_add_tcase(suite, tcase);
    tcase = tcase_create("medium");
    tcase_add_loop_test(tcase, polls_do_the_chunks_of_a_medium_op, 0, 2);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
