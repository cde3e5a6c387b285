/* SPDX-License-Identifier: Apache-2.0
 * After fork(2) in the child: an error on every call, no crash, no deadlock, and the parent goes on. */
#include "tests/unit/client/fake.h"
#include "tests/unit/hvt_main.h"
#include "tests/unit/hvt_process.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

static struct hvt_fake *fake;
static struct hvd_session *session;

static void set_up(void)
{
    struct hvt_fake_script script = {0};
    fake = hvt_fake_start(&script);
    session = hvt_fake_open(fake);
}

static void tear_down(void)
{
    hvd_close(session);
    hvt_fake_stop(fake);
}

#define EXPECT_FORKED(call)                                                                        \
    do {                                                                                           \
        if ((call) != HVD_ERR_FORKED || !strstr(hvd_last_error(), "parent"))                       \
            return __LINE__ % 200 + 1;                                                             \
    } while (0)

static int use_everything(struct hvd_op *op)
{
    float x = 0;
    struct hvd_tensor t = hvd_tensor_1d(&x, HVD_FLOAT32, 1);
    struct hvd_op *other;
    void *memory;
    int fd;
    EXPECT_FORKED(hvd_rank(session));
    EXPECT_FORKED(hvd_size(session));
    EXPECT_FORKED(hvd_cross_size(session));
    EXPECT_FORKED(hvd_session_status(session));
    EXPECT_FORKED(hvd_allreduce(session, "a", &t, &t, HVD_SUM));
    EXPECT_FORKED(hvd_broadcast(session, "a", &t, &t, 0));
    EXPECT_FORKED(hvd_barrier(session, "a"));
    EXPECT_FORKED(hvd_allgather(session, "a", &t, &t));
    EXPECT_FORKED(hvd_allreduce_async(session, "a", &t, &t, HVD_SUM, NULL, &other));
    EXPECT_FORKED(hvd_alloc(session, 10, &memory));
    EXPECT_FORKED(hvd_free(session, &x));
    EXPECT_FORKED(hvd_register(session, &x, 4));
    EXPECT_FORKED(hvd_deregister(session, &x));
    EXPECT_FORKED(hvd_device_forget(session, &x));
    EXPECT_FORKED(hvd_event_fd(session, &fd));
    EXPECT_FORKED(hvd_test(op));
    EXPECT_FORKED(hvd_wait(op, -1));
    EXPECT_FORKED(hvd_op_result(op, &t));
    EXPECT_FORKED(hvd_wait_any(&op, 1, -1, &fd));
    EXPECT_FORKED(hvd_wait_all(&op, 1, -1));
    EXPECT_FORKED(hvd_cancel(op));
    EXPECT_FORKED(hvd_join(session, NULL));
    EXPECT_FORKED(hvd_process_set_add(session, &fd, 1, &fd));
    EXPECT_FORKED(hvd_process_set_remove(session, 1));
    EXPECT_FORKED(hvd_process_set_ids(session, NULL, 0));
    EXPECT_FORKED(hvd_alltoall_async(session, "a", &t, NULL, NULL, NULL, &other));
    EXPECT_FORKED(hvd_reducescatter_async(session, "a", &t, NULL, HVD_SUM, NULL, &other));
    EXPECT_FORKED(hvd_grouped_allreduce_async(session, "a", &t, &t, 1, HVD_SUM, NULL, &other));
    if (strcmp(hvd_job(session), "fake") != 0 || strcmp(hvd_op_error(op), "") != 0)
        return 250;
    hvd_op_free(op);
    EXPECT_FORKED(hvd_close_at_exit(session));
    EXPECT_FORKED(hvd_close_wait(session, 0));
    EXPECT_FORKED(hvd_close(session));
    return 0;
}

START_TEST(every_call_is_an_error_in_the_child)
{
    struct hvd_op *op;
    ck_assert_int_eq(hvd_barrier_async(session, "b", NULL, &op), HVD_OK);
    pid_t pid = fork();
    if (pid == 0)
        _exit(use_everything(op));
    ck_assert_int_eq(hvt_wait_child(pid), 0);
    ck_assert_int_eq(hvd_wait(op, 1000000000), HVD_OK);
    hvd_op_free(op);
    ck_assert_int_eq(hvd_barrier(session, "after"), HVD_OK);
    ck_assert_int_eq(hvd_session_status(session), HVD_OK);
}
END_TEST

static atomic_bool stop;

static void *keep_busy(void *unused)
{
    (void)unused;
    while (!atomic_load(&stop))
        ck_assert_int_eq(hvd_session_status(session), HVD_OK);
    return NULL;
}

START_TEST(a_fork_while_another_thread_holds_the_lock_does_not_hang_the_child)
{
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, keep_busy, NULL), 0);
    for (int i = 0; i < 50; i++) {
        pid_t pid = fork();
        if (pid == 0)
            _exit(hvd_barrier(session, "x") == HVD_ERR_FORKED &&
                          hvd_close(session) == HVD_ERR_FORKED
                      ? 0
                      : 1);
        ck_assert_int_eq(hvt_wait_child(pid), 0);
    }
    atomic_store(&stop, true);
    pthread_join(thread, NULL);
}
END_TEST

START_TEST(the_child_may_open_its_own)
{
    pid_t pid = fork();
    if (pid == 0) {
        struct hvd_session *own = hvt_fake_open(fake); /* the parent's thread serves it */
        int rc = hvd_barrier(own, "mine");
        _exit(rc == HVD_OK && hvd_close(own) == HVD_OK ? 0 : 1);
    }
    ck_assert_int_eq(hvt_wait_child(pid), 0);
    ck_assert_int_eq(hvd_barrier(session, "after"), HVD_OK);
}
END_TEST

START_TEST(a_child_that_closes_does_not_end_the_parents_session)
{
    pid_t pid = fork();
    if (pid == 0)
        _exit(hvd_close(session) == HVD_ERR_FORKED ? 0 : 1);
    ck_assert_int_eq(hvt_wait_child(pid), 0);
    for (int i = 0; i < 100; i++)
        ck_assert_int_eq(hvd_barrier(session, "after"), HVD_OK);
    ck_assert(!hvt_fake_detached(hvt_fake_session(fake, 0)));
}
END_TEST

START_TEST(memory_of_the_parent_can_still_be_read)
{
    float *memory;
    ck_assert_int_eq(hvd_alloc(session, 4096, (void **)&memory), HVD_OK);
    memory[5] = 42;
    pid_t pid = fork();
    if (pid == 0)
        _exit(memory[5] == 42 ? 0 : 1);
    ck_assert_int_eq(hvt_wait_child(pid), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client fork");
    TCase *tcase = tcase_create("fork");
    tcase_set_timeout(tcase, 60);
    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_test(tcase, every_call_is_an_error_in_the_child);
    tcase_add_test(tcase, a_fork_while_another_thread_holds_the_lock_does_not_hang_the_child);
    tcase_add_test(tcase, the_child_may_open_its_own);
    tcase_add_test(tcase, a_child_that_closes_does_not_end_the_parents_session);
    tcase_add_test(tcase, memory_of_the_parent_can_still_be_read);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
