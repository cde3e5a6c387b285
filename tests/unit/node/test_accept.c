/* SPDX-License-Identifier: Apache-2.0
 * Who finds a place among the connections that wait. hvdd's own code, with sockets that nobody listens to. */
#include "base/clock.h"
#include "base/status.h"
#include "daemon/node/node.h"
#include "tests/unit/hvt_main.h"

#include <sys/socket.h>
#include <unistd.h>

static struct node node;

static void set_up(void)
{
    ck_assert_int_ge(sd_event_new(&node.event), 0);
    node.discard.event = node.event;
    node.uid = getuid();
    node.private_mode = true;
    node.descriptors = 100;
    node.config.max_pending = node.config.max_pending_per_user = 1;
    node.config.attach_timeout = 60 * (int64_t)HVI_NS_SEC;
}

static void tear_down(void)
{
    node_attach_close_all(&node, HVI_ERR_DAEMON, "the test is over");
    ck_assert_uint_eq(node.pending_count, 0);
    sd_event_unref(node.event);
}

/* Somebody connects; our end. */
static int come(const char *bytes, size_t length, bool stays)
{
    int pair[2];

    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair),
                     0);
    for (size_t i = 0; i < length; i++)
        ck_assert_int_eq(send(pair[0], bytes + i, 1, 0), 1);
    if (!stays) {
        close(pair[0]);
        pair[0] = -1;
    }
    node_attach_accept(&node, pair[1]);
    return pair[0];
}

START_TEST(an_engine_that_comes_back_is_not_refused_for_the_ranks_that_wait_for_it)
{
    int fds[3];

    node.hellos_until_ns = hvi_deadline_after(60 * (int64_t)HVI_NS_SEC);
    for (int i = 0; i < 2; i++)
        fds[i] = come(NULL, 0, true);
    ck_assert_uint_eq(node.pending_count, 2);
    ck_assert_uint_eq(node.counters.refused, 0);
    node.hellos_until_ns = 0;
    fds[2] = come(NULL, 0, true);
    ck_assert_uint_eq(node.pending_count, 2);
    ck_assert_uint_eq(node.counters.refused, 1);
    for (int i = 0; i < 3; i++)
        close(fds[i]);
}
END_TEST

START_TEST(they_are_a_share_of_the_descriptors_all_the_same)
{
    int fds[60];

    node.hellos_until_ns = hvi_deadline_after(60 * (int64_t)HVI_NS_SEC);
    for (int i = 0; i < 60; i++)
        fds[i] = come(NULL, 0, true);
    ck_assert_uint_eq(node.pending_count, 50);
    for (int i = 0; i < 60; i++)
        close(fds[i]);
}
END_TEST

START_TEST(who_says_something_and_hangs_up_costs_no_helper)
{
    for (int i = 0; i < 100; i++)
        come("abc", (size_t)i % 4, false);
    ck_assert_uint_eq(node.discard.count, 0);
    ck_assert_uint_eq(node.discard.helper_count, 0);
    ck_assert_uint_eq(node.pending_count, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("node_accept");
    TCase *tcase = tcase_create("accept");

    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_test(tcase, an_engine_that_comes_back_is_not_refused_for_the_ranks_that_wait_for_it);
    tcase_add_test(tcase, they_are_a_share_of_the_descriptors_all_the_same);
    tcase_add_test(tcase, who_says_something_and_hangs_up_costs_no_helper);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
