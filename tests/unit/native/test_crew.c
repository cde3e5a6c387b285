/* SPDX-License-Identifier: Apache-2.0
 * What ends a kernel that waits, and many kernels at once: crew.c, step.c, done.c and flight.c over a real hvdd. */
#include "fake_tensorflow.h"
#include "hvt_job.h"
#include "python/native/crew.h"
#include "python/native/done.h"
#include "python/native/step.h"
#include "tests/unit/hvt_main.h"
#include "tests/unit/hvt_process.h"

#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FOR_S (60ll * 1000 * 1000 * 1000)
#define MANY  3000 /* more than a session can have in flight */

static struct hvt_job job;
static struct hvt_kernel *kernels[MANY]; /* which live on, as TensorFlow's do */
static int kernel_count;

static struct hvt_call *start(const char *name, int64_t count)
{
    const struct hvt_attr attrs[] = {
        {.name = "reduce_op", .number = HVD_SUM},  {.name = "prescale_factor", .factor = 1},
        {.name = "postscale_factor", .factor = 1}, {.name = "process_set_id"},
        {.name = "tensor_name", .text = name},     {.name = NULL}};
    TF_Tensor *input = hvt_vector_new(TF_FLOAT, count, HVT_ORDINARY);
    struct hvt_kernel *kernel = kernels[kernel_count++] = hvt_kernel_new("HvdAllreduce", attrs);

    ((float *)TF_TensorData(input))[0] = 1;
    struct hvt_call *call = hvt_call_new(kernel, &input, 1);
    hvt_call_run(call);
    return call;
}

/* Ends with `code`; its text says so. */
static void ends(struct hvt_call *call, TF_Code code, const char *text)
{
    ck_assert(hvt_call_wait(call));
    ck_assert_msg(hvt_call_code(call) == code && strstr(hvt_call_text(call), text), "%d %s",
                  hvt_call_code(call), hvt_call_text(call));
    hvt_call_free(call);
}

/* Takes part in "the end", and stays until rank 0 has left. */
static void peer_waits(struct hvd_session *session, int number)
{
    static const char *const names[] = {"the end", "never"};
    static float data[2] = {1, 1};
    static struct hvd_op *ops[2];
    (void)number;

    for (int i = 0; i < 2; i++) {
        struct hvd_tensor tensor = hvd_tensor_1d(&data[i], HVD_FLOAT32, 1);
        hvd_allreduce_async(session, names[i], &tensor, &tensor, HVD_SUM, NULL, &ops[i]);
    }
    if (hvd_wait_all(ops, 2, FOR_S) == HVD_ERR_TIMEOUT)
        exit(97);
}

static void open_with_a_peer(int number)
{
    hvd_tf_cancellation(hvt_tf_params_offset, hvt_tf_manager_offset);
    hvt_job_start(&job);
    hvt_job_open(&job, 2, "waits", number);
}

static void close_job(void)
{
    ck_assert(hvt_job_close(&job));
    hvt_job_join(&job);
    ck_assert_int_eq(hvt_tf_tensors(), 0);
    ck_assert_uint_eq(hvt_tf_spoiled(), 0);
    hvt_job_stop(&job);
}

START_TEST(a_cancelled_step_ends_its_kernel_and_no_other)
{
    open_with_a_peer(1);
    struct hvt_call *lonely = start("lonely", 100), *other = start("the end", 1);
    ck_assert(hvt_call_wait(other));
    ck_assert(!hvt_call_has_ended(lonely));
    struct hvt_call *second = start("second", 100);
    hvt_call_cancel(lonely);
    ends(lonely, TF_CANCELLED, "HorovodAllreduce 'lonely': ");
    ck_assert(!hvt_call_has_ended(second));
    ends(other, TF_OK, "");
    ck_assert(hvt_job_close(&job));
    ends(second, TF_UNKNOWN, "Horovod has been shut down while this op was in flight");
    close_job();
}
END_TEST

static atomic_int heard;

static void on_interrupt(int number)
{
    (void)number;
    atomic_fetch_add(&heard, 1);
}

START_TEST(an_interrupt_is_held_until_the_kernels_have_ended)
{
    signal(SIGINT, on_interrupt);
    hvd_tf_watch_interrupts();
    hvd_tf_watch_interrupts(); /* once is enough */
    raise(SIGINT);             /* no kernel is under way: at once */
    ck_assert_int_eq(atomic_load(&heard), 1);
    open_with_a_peer(2);
    struct hvt_call *lonely = start("lonely", 100);
    raise(SIGINT);
    ends(lonely, TF_CANCELLED, "interrupted by SIGINT");
    if (atomic_load(&heard) == 1) /* it is passed on by itself after a while, too */
        ends(start("later", 100), TF_CANCELLED, "interrupted by SIGINT");
    hvd_tf_deliver_interrupt();
    ck_assert_int_eq(atomic_load(&heard), 2);
    hvd_tf_deliver_interrupt();
    ck_assert_int_eq(atomic_load(&heard), 2);
    close_job();
    ck_assert_int_eq(step_interrupts(), 2);
}
END_TEST

START_TEST(an_interrupt_that_no_error_brings_is_passed_on)
{
    signal(SIGINT, on_interrupt);
    hvd_tf_watch_interrupts();
    open_with_a_peer(3);
    struct hvt_call *other = start("the end", 1);
    ends(other, TF_OK, "");
    struct hvt_call *lonely = start("lonely", 1); /* now there is a thread */
    raise(SIGINT);
    ends(lonely, TF_CANCELLED, "interrupted");
    uint64_t deadline_ns = hvi_deadline_after(FOR_S);
    while (atomic_load(&heard) == 0 && !hvi_deadline_passed(deadline_ns))
        poll(NULL, 0, 1);
    ck_assert_int_eq(atomic_load(&heard), 1);
    close_job();
}
END_TEST

/* The same thousands of ops, the other way round. */
static void peer_of_many(struct hvd_session *session, int number)
{
    static float data[MANY];
    static struct hvd_op *ops[MANY];
    char name[16];
    (void)number;

    for (int i = MANY - 1; i >= 0; i--) {
        struct hvd_tensor tensor = hvd_tensor_1d(&data[i], HVD_FLOAT32, 1);
        data[i] = 1;
        snprintf(name, sizeof name, "op %d", i);
        int rc;
        while ((rc = hvd_allreduce_async(session, name, &tensor, &tensor, HVD_SUM, NULL,
                                         &ops[i])) == HVD_ERR_RING_FULL ||
               rc == HVD_ERR_LIMIT)
            poll(NULL, 0, 1);
        if (rc != HVD_OK)
            exit(96);
    }
    if (hvd_wait_all(ops, MANY, FOR_S) != HVD_OK)
        exit(97);
}

START_TEST(more_kernels_than_fit_wait_for_room)
{
    static struct hvt_call *calls[MANY];
    char name[16];

    hvt_job_start(&job);
    hvt_job_open(&job, 2, "many", 4);
    for (int i = 0; i < MANY; i++) {
        snprintf(name, sizeof name, "op %d", i);
        calls[i] = start(name, 1);
    }
    for (int i = 0; i < MANY; i++) {
        ck_assert(hvt_call_wait(calls[i]));
        if (hvt_call_code(calls[i]) == TF_OK)
            ck_assert(*(float *)TF_TensorData(hvt_call_output(calls[i], 0)) == 2);
        ends(calls[i], TF_OK, "");
    }
    close_job();
}
END_TEST

START_TEST(the_next_session_takes_kernels_again)
{
    hvt_job_start(&job);
    for (int i = 0; i < 3; i++) {
        hvt_job_open(&job, 2, "waits", 10 + i);
        struct hvt_call *lonely = start("lonely", 50000);
        ck_assert(!hvt_call_has_ended(lonely));
        ends(start("the end", 1), TF_OK, "");
        ck_assert(hvt_job_close(&job));
        ends(lonely, TF_UNKNOWN, "shut down");
        ends(start("after", 1), TF_FAILED_PRECONDITION, "has not been initialized");
        hvt_job_join(&job);
    }
    ck_assert_int_eq(hvt_tf_tensors(), 0);
    ck_assert_uint_eq(hvt_tf_spoiled(), 0);
    hvt_job_stop(&job);
}
END_TEST

static int in_child(void)
{
    struct hvt_call *call = start("child", 1);
    bool good = hvt_call_has_ended(call) && hvt_call_code(call) == TF_FAILED_PRECONDITION;
    hvd_tf_park();
    hvd_tf_detach(true);
    return good ? 0 : 1;
}

START_TEST(a_forked_child_has_no_session_and_harms_none)
{
    open_with_a_peer(5);
    struct hvt_call *lonely = start("lonely", 100);
    pid_t child = fork();
    if (child == 0)
        _exit(in_child());
    ck_assert_int_eq(hvt_wait_child(child), 0);
    ends(start("the end", 1), TF_OK, "");
    ck_assert(hvt_job_close(&job));
    ends(lonely, TF_UNKNOWN, "shut down");
    close_job();
}
END_TEST

START_TEST(every_status_has_a_class_of_tensorflows)
{
    ck_assert_int_eq(flight_code_of(HVD_ERR_MISMATCH), TF_FAILED_PRECONDITION);
    ck_assert_int_eq(flight_code_of(HVD_ERR_INVALID), TF_INVALID_ARGUMENT);
    ck_assert_int_eq(flight_code_of(HVD_ERR_CANCELLED), TF_CANCELLED);
    ck_assert_int_eq(flight_code_of(HVD_ERR_STALLED), TF_DEADLINE_EXCEEDED);
    ck_assert_int_eq(flight_code_of(HVD_ERR_NO_MEMORY), TF_RESOURCE_EXHAUSTED);
    ck_assert_int_eq(flight_code_of(HVD_ERR_UNSUPPORTED), TF_UNIMPLEMENTED);
    ck_assert_int_eq(flight_code_of(HVD_ERR_RANK_LOST), TF_UNKNOWN);
    ck_assert_int_eq(flight_code_of(HVD_ERR_ENGINE_LOST), TF_UNKNOWN);
}
END_TEST

int main(int argc, char **argv)
{
    static const struct hvt_script scripts[] = {{"waits", peer_waits}, {"many", peer_of_many}};

    hvt_job_peer(argc, argv, scripts, 2);
    Suite *suite = suite_create("native/crew");
    TCase *tcase = tcase_create("crew");
    tcase_set_timeout(tcase, 120);
    tcase_add_test(tcase, a_cancelled_step_ends_its_kernel_and_no_other);
    tcase_add_test(tcase, an_interrupt_is_held_until_the_kernels_have_ended);
    tcase_add_test(tcase, an_interrupt_that_no_error_brings_is_passed_on);
    tcase_add_test(tcase, more_kernels_than_fit_wait_for_room);
    tcase_add_test(tcase, the_next_session_takes_kernels_again);
    tcase_add_test(tcase, a_forked_child_has_no_session_and_harms_none);
    tcase_add_test(tcase, every_status_has_a_class_of_tensorflows);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
