/* SPDX-License-Identifier: Apache-2.0
 * Helpers, and what they leave to others. */
#include "base/discard.h"

#include "tests/unit/hvt_main.h"

#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static struct hvi_discard discard;
static pid_t helpers[64];
static int helper_count;

static void set_up(void)
{
    sigset_t child;

    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    sigprocmask(SIG_BLOCK, &child, NULL);
    discard = (struct hvi_discard){.event = NULL};
    helper_count = 0;
    ck_assert_int_ge(sd_event_new(&discard.event), 0);
}

static void tear_down(void)
{
    while (helper_count > 0)
        kill(helpers[--helper_count], SIGKILL);
    hvi_discard_close(&discard);
    sd_event_unref(discard.event);
    while (waitpid(-1, NULL, 0) > 0) {
    }
}

static void failed(void *user, uint64_t number)
{
    (void)user, (void)number;
}

/* A helper that never ends, as with a file that does not answer. */
static bool stuck_helper(uint32_t uid)
{
    int kept[] = {STDIN_FILENO};
    pid_t pid = hvi_discard_fork(&discard, kept, 1, uid, failed, NULL, 0);

    while (pid == 0)
        pause();
    if (pid > 0)
        helpers[helper_count++] = pid;
    return pid > 0;
}

START_TEST(helpers_of_one_user_leave_some_to_others_and_all_users_some_to_the_end_of_connections)
{
    int pair[2], first = 0;

    while (stuck_helper(1))
        first++;
    ck_assert_int_eq(first, 8);
    for (uint32_t uid = 2; stuck_helper(uid); uid++)
        ck_assert_uint_lt(uid, 64);
    ck_assert_int_eq(helper_count, 32);
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    ck_assert_int_eq(send(pair[1], "x", 1, 0), 1);
    hvi_discard_stream(&discard, pair[0]);
    ck_assert_uint_eq(discard.helper_count, 33);
    ck_assert_uint_eq(discard.count, 0);
    close(pair[1]);
}
END_TEST

START_TEST(a_stream_in_which_nothing_is_left_needs_no_helper)
{
    int pair[2];

    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    hvi_discard_stream(&discard, pair[0]);
    ck_assert_uint_eq(discard.helper_count + discard.count, 0);
    ck_assert_int_eq(send(pair[1], "x", 1, MSG_NOSIGNAL), -1);
    close(pair[1]);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("base/discard");
    TCase *tcase = tcase_create("discard");

    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_test(
        tcase,
        helpers_of_one_user_leave_some_to_others_and_all_users_some_to_the_end_of_connections);
    tcase_add_test(tcase, a_stream_in_which_nothing_is_left_needs_no_helper);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
