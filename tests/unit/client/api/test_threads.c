/* SPDX-License-Identifier: Apache-2.0
 * One session, many threads: submitting, waiting for each other's ops, making and dropping memory at once. Means most
 * under ThreadSanitizer. */
#include "base/clock.h"
#include "client/session/session.h"
#include "tests/unit/client/fake.h"
#include "tests/unit/hvt_main.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define THREADS 4
#define ROUNDS  (HVT_SLOW ? 100 : 400)

#ifdef HVD_SANITIZE
#define HVT_SLOW 1
#else
#define HVT_SLOW 0
#endif

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
    ck_assert_uint_eq(session->ops.in_flight, 0);
    ck_assert_uint_eq(session->ops.unseen, 0);
    hvd_close(session);
    hvt_fake_stop(fake);
}

static void run(void *(*body)(void *))
{
    pthread_t threads[THREADS];
    for (intptr_t i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, body, (void *)i), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}

/* Blocking ops of every size, each thread under names of its own. */
static void *reduce(void *argument)
{
    static const int64_t counts[] = {1, 100, 1000, 3000, 20000};
    static _Thread_local float data[20000];
    char name[32];
    for (int i = 0; i < ROUNDS; i++) {
        int64_t count = counts[i % 5];
        struct hvd_tensor t = hvd_tensor_1d(data, HVD_FLOAT32, count);
        for (int64_t k = 0; k < count; k++)
            data[k] = (float)(i + k);
        snprintf(name, sizeof name, "t%d.%d", (int)(intptr_t)argument, i % 7);
        ck_assert_msg(hvd_allreduce(session, name, &t, &t, HVD_SUM) == HVD_OK, "%s",
                      hvd_last_error());
        int64_t wrong = 0; /* an assertion per element would take minutes */
        for (int64_t k = 0; k < count; k++)
            wrong += data[k] != (float)(i + k);
        ck_assert_int_eq(wrong, 0);
    }
    return NULL;
}

START_TEST(threads_reduce_on_one_session)
{
    run(reduce);
}
END_TEST

/* A queue of ops from submitters to waiters. */
static pthread_mutex_t queue_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct hvd_op *queue[THREADS * 1000];
static int queue_head, queue_tail, submitters;

static void *submit_or_wait(void *argument)
{
    bool submits = (intptr_t)argument % 2 == 0;
    float x = 1;
    struct hvd_tensor t = hvd_tensor_1d(&x, HVD_FLOAT32, 1);
    for (int i = 0; submits && i < ROUNDS; i++) {
        struct hvd_op *op;
        struct hvd_tensor out = t;
        static float results[THREADS][1000];
        out.data = &results[(intptr_t)argument][i];
        ck_assert_int_eq(hvd_allreduce_async(session, NULL, &t, &out, HVD_SUM, NULL, &op), HVD_OK);
        pthread_mutex_lock(&queue_mutex);
        queue[queue_tail++] = op;
        pthread_mutex_unlock(&queue_mutex);
    }
    while (!submits) {
        struct hvd_op *op = NULL;
        pthread_mutex_lock(&queue_mutex);
        bool last = submitters == 0 && queue_head == queue_tail;
        if (queue_head < queue_tail)
            op = queue[queue_head++];
        pthread_mutex_unlock(&queue_mutex);
        if (last)
            return NULL;
        if (op)
            ck_assert_int_eq(hvd_wait(op, 10000000000), HVD_OK);
        hvd_op_free(op);
    }
    pthread_mutex_lock(&queue_mutex);
    submitters--;
    pthread_mutex_unlock(&queue_mutex);
    return NULL;
}

START_TEST(one_thread_submits_and_another_waits)
{
    queue_head = queue_tail = 0;
    submitters = THREADS / 2;
    run(submit_or_wait);
}
END_TEST

static struct hvd_op *shared_op;

static void *wait_shared(void *unused)
{
    (void)unused;
    ck_assert_int_eq(hvd_wait(shared_op, 10000000000), HVD_OK);
    return NULL;
}

START_TEST(several_threads_wait_for_one_op)
{
    static float data[100000];
    struct hvd_tensor t = hvd_tensor_1d(data, HVD_FLOAT32, 100000);
    for (int i = 0; i < 20; i++) {
        data[99999] = (float)i;
        ck_assert_int_eq(hvd_allreduce_async(session, "s", &t, &t, HVD_SUM, NULL, &shared_op),
                         HVD_OK);
        run(wait_shared);
        ck_assert(data[99999] == (float)i);
        hvd_op_free(shared_op);
    }
}
END_TEST

static void *juggle(void *argument)
{
    static char own[THREADS][65536];
    char *registered = own[(intptr_t)argument];
    for (int i = 0; i < ROUNDS / 10; i++) {
        void *memory;
        struct hvd_op *op;
        ck_assert_msg(hvd_alloc(session, 4096 + (size_t)i * 100, &memory) == HVD_OK, "%s",
                      hvd_last_error());
        ck_assert_msg(hvd_register(session, registered, sizeof own[0]) == HVD_OK, "%s",
                      hvd_last_error());
        struct hvd_tensor a = hvd_tensor_1d(registered, HVD_UINT8, 4096);
        struct hvd_tensor b = hvd_tensor_1d(memory, HVD_UINT8, 4096);
        ck_assert_int_eq(hvd_allreduce_async(session, NULL, &a, &b, HVD_SUM, NULL, &op), HVD_OK);
        int rc = hvd_free(session, memory);
        ck_assert(rc == HVD_OK || rc == HVD_ERR_BUSY);
        ck_assert_int_eq(hvd_wait(op, 10000000000), HVD_OK);
        hvd_op_free(op);
        if (rc == HVD_ERR_BUSY)
            ck_assert_int_eq(hvd_free(session, memory), HVD_OK);
        ck_assert_int_eq(hvd_deregister(session, registered), HVD_OK);
    }
    return NULL;
}

START_TEST(threads_make_and_drop_memory_at_once)
{
    run(juggle);
    ck_assert_uint_eq(session->memory.table.count, 0);
}
END_TEST

static void *gather(void *unused)
{
    (void)unused;
    static float in[500];
    struct hvd_tensor t = hvd_tensor_1d(in, HVD_FLOAT32, 500);
    for (int i = 0; i < ROUNDS; i++) {
        struct hvd_tensor result;
        ck_assert_msg(hvd_allgather(session, NULL, &t, &result) == HVD_OK, "%s", hvd_last_error());
        ck_assert_int_eq(result.dims[0], 500);
        free(result.data);
    }
    return NULL;
}

START_TEST(threads_gather_into_memory_of_the_library)
{
    run(gather);
}
END_TEST

/* Groups, plural waits and cancels; every thread has memory of its own. */
static void *mingle(void *unused)
{
    float data[3][700];
    struct hvd_tensor tensors[3];
    struct hvd_op *ops[6];
    (void)unused;
    for (int i = 0; i < 3; i++)
        tensors[i] = hvd_tensor_1d(data[i], HVD_FLOAT32, i == 2 ? 700 : 7);
    for (int i = 0; i < ROUNDS / 4; i++) {
        int index;
        ck_assert_int_eq(
            hvd_grouped_allreduce_async(session, NULL, tensors, tensors, 3, HVD_SUM, NULL, ops),
            HVD_OK);
        ck_assert_int_eq(hvd_alltoall_async(session, NULL, &tensors[2], NULL, NULL, NULL, &ops[3]),
                         HVD_OK);
        ck_assert_int_eq(
            hvd_reducescatter_async(session, NULL, &tensors[0], NULL, HVD_SUM, NULL, &ops[4]),
            HVD_OK);
        ck_assert_int_eq(hvd_barrier_async(session, NULL, NULL, &ops[5]), HVD_OK);
        ck_assert_int_eq(hvd_cancel(ops[5]), HVD_OK);
        ck_assert_int_eq(hvd_wait_any(ops, 6, 10000000000, &index), HVD_OK);
        ck_assert_msg(hvd_wait_all(ops, 6, 10000000000) == HVD_OK, "%s", hvd_last_error());
        for (int k = 0; k < 6; k++)
            hvd_op_free(ops[k]);
    }
    return NULL;
}

START_TEST(threads_submit_groups_and_wait_for_many)
{
    run(mingle);
}
END_TEST

static void *die_together(void *argument)
{
    struct hvd_op *op;
    if ((intptr_t)argument == 0) {
        hvt_fake_die(hvt_fake_session(fake, 0));
        return NULL;
    }
    for (int i = 0; i < 100000; i++) {
        int rc = hvd_barrier_async(session, NULL, NULL, &op);
        if (rc == HVD_OK) {
            rc = hvd_wait(op, 10000000000);
            hvd_op_free(op);
        }
        if (rc != HVD_OK) {
            ck_assert_msg(rc == HVD_ERR_ENGINE_LOST, "%s", hvd_last_error());
            return NULL;
        }
    }
    ck_abort_msg("the engine's death was never noticed");
}

START_TEST(all_threads_learn_of_the_end)
{
    run(die_together);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client threads");
    TCase *tcase = tcase_create("threads");
    tcase_set_timeout(tcase, 100);
    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_test(tcase, threads_reduce_on_one_session);
    tcase_add_test(tcase, one_thread_submits_and_another_waits);
    tcase_add_test(tcase, several_threads_wait_for_one_op);
    tcase_add_test(tcase, threads_make_and_drop_memory_at_once);
    tcase_add_test(tcase, threads_gather_into_memory_of_the_library);
    tcase_add_test(tcase, threads_submit_groups_and_wait_for_many);
    tcase_add_test(tcase, all_threads_learn_of_the_end);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
