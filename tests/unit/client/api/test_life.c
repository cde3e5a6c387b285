/* SPDX-License-Identifier: Apache-2.0
 * A long life: a hundred thousand ops of every kind leave memory, descriptors and mappings as they
 * were; and the event descriptor speaks for all of them. */
#include "base/types.h"
#include "tests/unit/client/count.h"
#include "tests/unit/client/fake.h"
#include "tests/unit/hvt_main.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OPS_PER_ROUND 20

static struct hvt_fake *fake;
static struct hvd_session *session;
static float data[3000];
static struct hvd_tensor tensors[2];

static void set_up(void)
{
    struct hvt_fake_script script = {0};
    fake = hvt_fake_start(&script);
    session = hvt_fake_open(fake);
    tensors[0] = hvd_tensor_1d(data, HVD_FLOAT32, 8);
    tensors[1] = hvd_tensor_1d(data + 8, HVD_FLOAT32, 2000); /* goes through a staging block */
}

static void tear_down(void)
{
    hvd_close(session);
    hvt_fake_stop(fake);
}

static void ok(int rc)
{
    ck_assert_msg(rc == HVD_OK, "%s: %s", hvd_status_name(rc), hvd_last_error());
}

/* One of each kind; `ops` has room for OPS_PER_ROUND. Returns how many. */
static int submit_all(int round, struct hvd_op **ops)
{
    struct hvd_tensor *small = &tensors[0];
    struct hvd_tensor *large = &tensors[1];
    struct hvd_op **at = ops;
    char name[32];
    snprintf(name, sizeof name, "step.%d", round % 5000);
    ok(hvd_allreduce_async(session, name, small, small, HVD_SUM, NULL, at++));
    ok(hvd_allreduce_async(session, "large", large, large, HVD_SUM, NULL, at++));
    ok(hvd_allgather_async(session, NULL, large, NULL, NULL, at++));
    ok(hvd_broadcast_async(session, NULL, small, small, 0, NULL, at++));
    ok(hvd_reducescatter_async(session, NULL, large, NULL, HVD_SUM, NULL, at++));
    ok(hvd_alltoall_async(session, NULL, small, NULL, NULL, NULL, at++));
    ok(hvd_barrier_async(session, NULL, NULL, at++));
    ok(hvd_grouped_allreduce_async(session, "grouped", tensors, tensors, 2, HVD_SUM, NULL, at));
    at += 2;
    ok(hvd_grouped_allgather_async(session, NULL, tensors, NULL, 2, NULL, at));
    at += 2;
    ok(hvd_cancel(ops[0]));
    ok(hvd_join_async(session, NULL, at++));
    return (int)(at - ops);
}

static int one_round(int round)
{
    struct hvd_op *ops[OPS_PER_ROUND];
    int count = submit_all(round, ops);
    ck_assert_int_le(count, OPS_PER_ROUND);
    if (round % 3)
        ok(hvd_wait_all(ops, count, 10000000000));
    for (int i = 0; i < count; i++) {
        if (round % 3 == 0)
            ok(hvd_wait(ops[i], 10000000000));
        hvd_op_free(ops[i]);
    }
    return count;
}

START_TEST(a_hundred_thousand_ops_leave_everything_as_it_was)
{
    struct hvt_count before = {0};
    int done = 0;
    int round = 0;
    for (; done < 20000 || round < 5000; round++) /* until every name has come once */
        done += one_round(round);
    before = hvt_count_take();
    for (done = 0; done < 100000; round++)
        done += one_round(round);
    struct hvt_count now = hvt_count_take();
    ck_assert_int_eq(now.fds, before.fds);
    ck_assert_int_eq(now.shared_mappings, before.shared_mappings);
    ck_assert_msg(now.heap_bytes <= before.heap_bytes + 4096, "%zu bytes became %zu",
                  before.heap_bytes, now.heap_bytes);
}
END_TEST

static bool readable(int fd, int timeout_ms)
{
    struct pollfd set = {.fd = fd, .events = POLLIN};
    return poll(&set, 1, timeout_ms) == 1;
}

START_TEST(the_event_descriptor_speaks_for_every_kind)
{
    struct hvd_op *ops[OPS_PER_ROUND];
    int fd;
    ok(hvd_event_fd(session, &fd));
    ck_assert(!readable(fd, 0));
    int left = submit_all(1, ops);
    int count = left;
    while (left > 0) {
        ck_assert(readable(fd, 10000));
        for (int i = 0; i < count; i++) {
            if (!ops[i] || hvd_test(ops[i]) == HVD_INPROGRESS)
                continue;
            hvd_op_free(ops[i]);
            ops[i] = NULL;
            left--;
        }
    }
    ck_assert(!readable(fd, 0));
}
END_TEST

START_TEST(ops_seen_by_the_plural_waits_are_seen)
{
    struct hvd_op *ops[OPS_PER_ROUND];
    int index;
    int fd;
    ok(hvd_event_fd(session, &fd));
    int count = submit_all(1, ops);
    ok(hvd_wait_any(ops, count, 10000000000, &index));
    ok(hvd_wait_all(ops, count, 10000000000));
    ck_assert(!readable(fd, 0));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client life");
    TCase *tcase = tcase_create("life");
    tcase_set_timeout(tcase, 120);
    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_test(tcase, a_hundred_thousand_ops_leave_everything_as_it_was);
    tcase_add_test(tcase, the_event_descriptor_speaks_for_every_kind);
    tcase_add_test(tcase, ops_seen_by_the_plural_waits_are_seen);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
