/* SPDX-License-Identifier: Apache-2.0
 * hvd_wait_any, hvd_wait_all and hvd_cancel. */
#include "base/clock.h"
#include "base/types.h"
#include "tests/unit/client/fake.h"
#include "tests/unit/hvt_main.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define OPS 8

static struct hvt_fake *fake;
static struct hvd_session *session;
static struct hvt_fake_session *engine;
static struct hvd_op *ops[OPS];
static uint64_t cookies[OPS];

static void set_up(void)
{
    struct hvt_fake_script script = {.manual = true};
    fake = hvt_fake_start(&script);
    session = hvt_fake_open(fake);
    engine = hvt_fake_session(fake, 0);
    for (int i = 0; i < OPS; i++) {
        ck_assert_int_eq(hvd_barrier_async(session, NULL, NULL, &ops[i]), HVD_OK);
        cookies[i] = hvt_fake_take(engine).cookie;
    }
}

static void tear_down(void)
{
    hvd_close(session);
    hvt_fake_stop(fake);
}

static void done(int i, int status)
{
    hvt_fake_done(engine, cookies[i], status, status == HVD_OK ? NULL : "it went wrong", 0);
}

/* What another thread does while the test waits. */
struct later {
    pthread_t thread;
    int i, status;
};

static void *finish_later(void *argument)
{
    struct later *later = argument;
    struct timespec while_asleep = {.tv_nsec = 20000000};
    nanosleep(&while_asleep, NULL); /* not needed for the result: the waiter may sleep already */
    done(later->i, later->status);
    return NULL;
}

static void start_later(struct later *later, int i, int status)
{
    later->i = i;
    later->status = status;
    ck_assert_int_eq(pthread_create(&later->thread, NULL, finish_later, later), 0);
}

START_TEST(any_returns_the_finished_one_and_its_status)
{
    int index = 77;
    done(5, HVD_OK);
    ck_assert_int_eq(hvd_wait_any(ops, OPS, 0, &index), HVD_OK);
    ck_assert_int_eq(index, 5);
    done(2, HVD_ERR_MISMATCH);
    ck_assert_int_eq(hvd_wait_any(ops, OPS, 0, &index), HVD_ERR_MISMATCH);
    ck_assert_int_eq(index, 2);
    ck_assert_str_eq(hvd_last_error(), "it went wrong");
    ops[2] = NULL;
    ck_assert_int_eq(hvd_wait_any(ops, OPS, 0, &index), HVD_OK);
    ck_assert_int_eq(index, 5);
    ops[5] = NULL;
    ck_assert_int_eq(hvd_wait_any(ops, OPS, 1000, &index), HVD_ERR_TIMEOUT);
    ck_assert_int_eq(index, -1);
    ck_assert_ptr_nonnull(strstr(hvd_last_error(), "barrier.noname.1"));
}
END_TEST

START_TEST(any_sleeps_until_one_is_finished)
{
    struct later later;
    int index;
    start_later(&later, 6, HVD_OK);
    ck_assert_int_eq(hvd_wait_any(ops, OPS, 10000000000, &index), HVD_OK);
    ck_assert_int_eq(index, 6);
    pthread_join(later.thread, NULL);
}
END_TEST

START_TEST(any_of_nothing_is_refused)
{
    struct hvd_op *none[2] = {NULL, NULL};
    int index = 77;
    ck_assert_int_eq(hvd_wait_any(none, 2, -1, &index), HVD_ERR_INVALID);
    ck_assert_int_eq(index, -1);
    ck_assert_int_eq(hvd_wait_any(NULL, 0, -1, &index), HVD_ERR_INVALID);
    ck_assert_int_eq(hvd_wait_any(NULL, 3, -1, &index), HVD_ERR_INVALID);
    ck_assert_int_eq(hvd_wait_any(ops, -1, -1, &index), HVD_ERR_INVALID);
    ck_assert_int_eq(hvd_wait_any(ops, OPS, -1, NULL), HVD_ERR_INVALID);
}
END_TEST

START_TEST(all_returns_the_first_error_after_everything_is_finished)
{
    struct later later;
    for (int i = 0; i < OPS; i++) {
        if (i != 1)
            done(i, i == 4 ? HVD_ERR_MISMATCH : i == 6 ? HVD_ERR_TOO_SMALL : HVD_OK);
    }
    ck_assert_int_eq(hvd_wait_all(ops, OPS, 1000), HVD_ERR_TIMEOUT);
    ck_assert_ptr_nonnull(strstr(hvd_last_error(), "barrier.noname.2"));
    start_later(&later, 1, HVD_OK);
    ck_assert_int_eq(hvd_wait_all(ops, OPS, 10000000000), HVD_ERR_MISMATCH);
    ck_assert_str_eq(hvd_last_error(), "it went wrong");
    pthread_join(later.thread, NULL);
    ops[4] = NULL;
    ops[6] = NULL;
    ck_assert_int_eq(hvd_wait_all(ops, OPS, 0), HVD_OK);
}
END_TEST

START_TEST(all_of_nothing_is_done)
{
    struct hvd_op *none[2] = {NULL, NULL};
    ck_assert_int_eq(hvd_wait_all(none, 2, -1), HVD_OK);
    ck_assert_int_eq(hvd_wait_all(NULL, 0, -1), HVD_OK);
    ck_assert_int_eq(hvd_wait_all(NULL, 1, -1), HVD_ERR_INVALID);
}
END_TEST

START_TEST(released_ops_are_told)
{
    int index;
    for (int i = 0; i < OPS; i++)
        done(i, HVD_OK);
    hvd_op_free(ops[3]);
    ck_assert_int_eq(hvd_wait_all(ops, OPS, 1000000000), HVD_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(hvd_last_error(), "hvd_op_free"));
    ck_assert_int_eq(hvd_wait_any(&ops[3], 1, 1000000000, &index), HVD_ERR_INVALID);
    ck_assert_int_eq(index, -1);
}
END_TEST

START_TEST(a_dead_engine_ends_both)
{
    int index;
    hvt_fake_die(engine);
    ck_assert_int_eq(hvd_wait_any(ops, OPS, 10000000000, &index), HVD_ERR_ENGINE_LOST);
    ck_assert_int_eq(index, 0);
    ck_assert_int_eq(hvd_wait_all(ops, OPS, 10000000000), HVD_ERR_ENGINE_LOST);
}
END_TEST

START_TEST(sessions_may_be_mixed)
{
    struct hvd_session *other = hvt_fake_open(fake);
    struct hvt_fake_session *other_engine = hvt_fake_session(fake, 1);
    struct hvd_op *mixed[4] = {ops[0], NULL, ops[1], NULL};
    struct later later;
    int index;
    ck_assert_int_eq(hvd_barrier_async(other, NULL, NULL, &mixed[1]), HVD_OK);
    ck_assert_int_eq(hvd_barrier_async(other, NULL, NULL, &mixed[3]), HVD_OK);
    ck_assert_int_eq(hvd_wait_any(mixed, 4, 1000000, &index), HVD_ERR_TIMEOUT);
    start_later(&later, 1, HVD_OK);
    ck_assert_int_eq(hvd_wait_any(mixed, 4, 10000000000, &index), HVD_OK);
    ck_assert_int_eq(index, 2);
    pthread_join(later.thread, NULL);
    hvt_fake_done(other_engine, hvt_fake_take(other_engine).cookie, HVD_OK, NULL, -1);
    ck_assert_int_eq(hvd_wait_all(mixed, 4, 1000000), HVD_ERR_TIMEOUT);
    hvt_fake_done(other_engine, hvt_fake_take(other_engine).cookie, HVD_ERR_MISMATCH, "no", 0);
    start_later(&later, 0, HVD_OK);
    ck_assert_int_eq(hvd_wait_all(mixed, 4, 10000000000), HVD_ERR_MISMATCH);
    pthread_join(later.thread, NULL);
    hvd_close(other);
}
END_TEST

START_TEST(waiting_for_all_feeds_allgathers_of_every_session)
{
    struct hvd_session *other = hvt_fake_open(fake);
    struct hvt_fake_session *other_engine = hvt_fake_session(fake, 1);
    float value = 1;
    struct hvd_tensor in = hvd_tensor_1d(&value, HVD_FLOAT32, 1);
    struct hvd_op *mixed[2] = {ops[0], NULL};
    ck_assert_int_eq(hvd_allgather_async(other, "g", &in, NULL, NULL, &mixed[1]), HVD_OK);
    hvt_fake_sized(other_engine, hvt_fake_take(other_engine).cookie, 2, 8);
    ck_assert_int_eq(hvd_wait_all(mixed, 2, 1000000), HVD_ERR_TIMEOUT);
    ck_assert_uint_eq(hvt_fake_take(other_engine).kind, HVI_SUBMIT_OUTPUT);
    hvd_close(other);
}
END_TEST

/* ---- cancel ---- */

START_TEST(a_cancel_names_its_op_and_waits_for_the_verdict)
{
    ck_assert_int_eq(hvd_cancel(ops[2]), HVD_OK);
    struct hvi_submission slot = hvt_fake_take(engine);
    ck_assert_uint_eq(slot.kind, HVI_SUBMIT_CANCEL);
    ck_assert_uint_eq(slot.cookie, cookies[2]);
    ck_assert_uint_eq(slot.seq, OPS + 1);
    ck_assert_int_eq(hvd_test(ops[2]), HVD_INPROGRESS);
    done(2, HVD_ERR_CANCELLED);
    ck_assert_int_eq(hvd_wait(ops[2], 1000000000), HVD_ERR_CANCELLED);
}
END_TEST

START_TEST(a_finished_op_is_not_cancelled)
{
    done(2, HVD_OK);
    ck_assert_int_eq(hvd_cancel(ops[2]), HVD_OK);
    ck_assert(hvt_fake_is_idle(engine));
    ck_assert_int_eq(hvd_test(ops[2]), HVD_OK);
    ck_assert_int_eq(hvd_cancel(ops[2]), HVD_OK);
    hvd_op_free(ops[2]);
    ck_assert_int_eq(hvd_cancel(ops[2]), HVD_ERR_INVALID);
    ck_assert_int_eq(hvd_cancel(NULL), HVD_ERR_INVALID);
    ck_assert(hvt_fake_is_idle(engine));
}
END_TEST

START_TEST(a_cancel_needs_room_in_the_ring)
{
    struct hvd_op *op;
    int rc;
    do {
        rc = hvd_barrier_async(session, NULL, NULL, &op);
    } while (rc == HVD_OK);
    ck_assert_int_eq(rc, HVD_ERR_RING_FULL);
    ck_assert_int_eq(hvd_cancel(ops[0]), HVD_ERR_RING_FULL);
}
END_TEST

START_TEST(a_cancelled_name_is_free_again)
{
    float value = 1;
    struct hvd_tensor t = hvd_tensor_1d(&value, HVD_FLOAT32, 1);
    struct hvd_op *op;
    struct hvd_op *again;
    ck_assert_int_eq(hvd_allreduce_async(session, "w", &t, &t, HVD_SUM, NULL, &op), HVD_OK);
    uint64_t cookie = hvt_fake_take(engine).cookie;
    ck_assert_int_eq(hvd_cancel(op), HVD_OK);
    ck_assert_int_eq(hvd_allreduce_async(session, "w", &t, &t, HVD_SUM, NULL, &again),
                     HVD_ERR_DUPLICATE_NAME);
    hvt_fake_take(engine);
    hvt_fake_done(engine, cookie, HVD_ERR_CANCELLED, "taken back", -1);
    ck_assert_int_eq(hvd_allreduce_async(session, "w", &t, &t, HVD_SUM, NULL, &again), HVD_OK);
    ck_assert_int_eq(hvd_wait(op, 1000000000), HVD_ERR_CANCELLED);
    ck_assert(value == 1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client wait many");
    TCase *tcase = tcase_create("many");
    tcase_set_timeout(tcase, 60);
    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_test(tcase, any_returns_the_finished_one_and_its_status);
    tcase_add_test(tcase, any_sleeps_until_one_is_finished);
    tcase_add_test(tcase, any_of_nothing_is_refused);
    tcase_add_test(tcase, all_returns_the_first_error_after_everything_is_finished);
    tcase_add_test(tcase, all_of_nothing_is_done);
    tcase_add_test(tcase, released_ops_are_told);
    tcase_add_test(tcase, a_dead_engine_ends_both);
    tcase_add_test(tcase, sessions_may_be_mixed);
    tcase_add_test(tcase, waiting_for_all_feeds_allgathers_of_every_session);
    tcase_add_test(tcase, a_cancel_names_its_op_and_waits_for_the_verdict);
    tcase_add_test(tcase, a_finished_op_is_not_cancelled);
    tcase_add_test(tcase, a_cancel_needs_room_in_the_ring);
    tcase_add_test(tcase, a_cancelled_name_is_free_again);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
