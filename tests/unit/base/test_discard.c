/* SPDX-License-Identifier: Apache-2.0
 * Helpers, and what they leave to others. */
#include "base/discard.h"

#include "tests/unit/hvt_log.h"
#include "tests/unit/hvt_main.h"
#include "tests/unit/hvt_process.h"

#include <errno.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static struct hvi_discard discard;
static pid_t helpers[64];
static int helper_count;
static uint64_t failures; /* a bit for each number that failed */

static void set_up(void)
{
    sigset_t child;

    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    sigprocmask(SIG_BLOCK, &child, NULL);
    discard = (struct hvi_discard){.event = NULL};
    helper_count = 0;
    failures = 0;
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
    ck_assert_ptr_eq(user, NULL);
    failures |= UINT64_C(1) << number;
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

/* Turns the loop until that is so. */
static void run_until(bool (*is_so)(void))
{
    const uint64_t deadline_ns = hvi_deadline_after(20 * (int64_t)HVI_NS_SEC);

    while (!is_so()) {
        ck_assert(!hvi_deadline_passed(deadline_ns));
        ck_assert_int_ge(sd_event_run(discard.event, 100000), 0);
    }
}

static bool no_helper(void)
{
    return discard.helper_count == 0;
}

static void start_helper(const char *command, uint64_t number)
{
    int kept[] = {STDIN_FILENO};
    pid_t pid = hvi_discard_fork(&discard, kept, 1, 1, failed, NULL, number);

    if (pid == 0) {
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
    ck_assert_int_gt(pid, 0);
}

START_TEST(helpers_that_do_not_end_with_0_are_told)
{
    start_helper("exit 0", 1);
    start_helper("exit 3", 2);
    start_helper("kill -KILL $$", 3);
    run_until(no_helper);
    ck_assert_uint_eq(failures, 1 << 2 | 1 << 3);
}
END_TEST

START_TEST(a_helper_has_what_it_is_for_and_the_standard_streams_alone)
{
    int fds[8], ends[2];
    bool is_open[64] = {false};

    for (int i = 0; i < 8; i++)
        fds[i] = dup(STDIN_FILENO);
    ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
    int kept[] = {fds[6], ends[1], fds[2]};
    pid_t pid = hvi_discard_fork(&discard, kept, 3, 1, failed, NULL, 0);
    if (pid == 0) {
        for (int fd = 0; fd < 64; fd++)
            is_open[fd] = fcntl(fd, F_GETFD) >= 0;
        if (write(ends[1], is_open, sizeof is_open) == (ssize_t)sizeof is_open)
            execl("/bin/true", "true", (char *)NULL);
        _exit(1);
    }
    ck_assert_int_eq(read(ends[0], is_open, sizeof is_open), (ssize_t)sizeof is_open);
    for (int fd = 0; fd < 64; fd++)
        ck_assert_msg(is_open[fd] == (fd < 3 || fd == fds[6] || fd == ends[1] || fd == fds[2]),
                      "descriptor %d", fd);
    run_until(no_helper);
    ck_assert_uint_eq(failures, 0);
    for (int i = 0; i < 8; i++)
        close(fds[i]);
    close(ends[0]);
    close(ends[1]);
}
END_TEST

static void discard_stream(int *peer_p)
{
    int pair[2];

    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    ck_assert_int_eq(send(pair[1], "x", 1, 0), 1);
    hvi_discard_stream(&discard, pair[0]);
    *peer_p = pair[1];
}

static bool all_released(void)
{
    return discard.count == 0;
}

/* The helper may not have closed it yet. */
static void expect_closed(int peer)
{
    const struct timeval patience = {.tv_sec = 20};
    char byte;

    setsockopt(peer, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    const ssize_t length = recv(peer, &byte, 1, 0);
    ck_assert(length == 0 || (length < 0 && errno == ECONNRESET));
    close(peer);
}

START_TEST(connections_that_come_soon_after_others_are_closed_soon_too)
{
    int peers[6];

    for (int i = 0; i < 6; i++) {
        discard_stream(&peers[i]);
        if (i % 2 == 0)
            run_until(all_released);
    }
    run_until(all_released);
    for (int i = 0; i < 6; i++)
        expect_closed(peers[i]);
    run_until(no_helper);
}
END_TEST

START_TEST(where_no_helper_can_be_forked_one_more_than_can_be_kept_is_closed_and_said)
{
    int ends[HVI_DISCARDS_MAX + 2], peers[HVI_DISCARDS_MAX + 2];
    const struct rlimit many = {.rlim_cur = 1024, .rlim_max = 1024};

    hvt_log_open();
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &many), 0);
    for (uint32_t i = 0; i < HVI_DISCARDS_MAX + 2; i++) {
        int pair[2];
        ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
        ck_assert_int_eq(send(pair[1], "x", 1, 0), 1);
        ends[i] = pair[0];
        peers[i] = pair[1];
    }
    const struct rlimit old = hvt_forbid_fds();
    for (uint32_t i = 0; i < HVI_DISCARDS_MAX; i++)
        hvi_discard_stream(&discard, ends[i]);
    ck_assert_uint_eq(discard.count, HVI_DISCARDS_MAX);
    ck_assert_int_eq(hvt_log_count("no-helper"), 0);
    hvi_discard_stream(&discard, ends[HVI_DISCARDS_MAX]);
    ck_assert_int_eq(hvt_log_count("no-helper"), 1);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &old), 0);
    hvi_discard_stream(&discard, ends[HVI_DISCARDS_MAX + 1]); /* and with it those before */
    for (uint32_t i = 0; i < HVI_DISCARDS_MAX + 1; i++)
        expect_closed(peers[i]);
    hvi_discard_close(&discard);
    expect_closed(peers[HVI_DISCARDS_MAX + 1]);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("base/discard");
    TCase *tcase = tcase_create("discard"), *programs = tcase_create("programs");

    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_test(
        tcase,
        helpers_of_one_user_leave_some_to_others_and_all_users_some_to_the_end_of_connections);
    tcase_add_test(tcase, a_stream_in_which_nothing_is_left_needs_no_helper);
    tcase_add_test(tcase, connections_that_come_soon_after_others_are_closed_soon_too);
    tcase_add_test(tcase,
                   where_no_helper_can_be_forked_one_more_than_can_be_kept_is_closed_and_said);
    suite_add_tcase(suite, tcase);
    tcase_set_tags(programs, "programs");
    tcase_add_checked_fixture(programs, set_up, tear_down);
    tcase_add_test(programs, helpers_that_do_not_end_with_0_are_told);
    tcase_add_test(programs, a_helper_has_what_it_is_for_and_the_standard_streams_alone);
    suite_add_tcase(suite, programs);
    return hvt_run_suite(suite);
}
