/* SPDX-License-Identifier: Apache-2.0
 * An engine that was started and cannot be watched, and one that cannot be killed. The first is made so by an event loop
 * that is over: that fails in every version of sd-event, where a lack of descriptors fails in some. */
#include "base/fate.h"
#include "base/status.h"
#include "daemon/node/node.h"
#include "tests/unit/hvt_main.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static struct node node;
static int link_fd; /* our end of the link that is about to be made */
static int kills;
static bool link_was_open, may_signal = true;

/* Stands before the C library's, for this program's hvdd code. */
int kill(pid_t pid, int signal_number)
{
    kills++;
    link_was_open = fcntl(link_fd, F_GETFD) >= 0;
    return (int)syscall(SYS_kill, pid, signal_number);
}

int pidfd_send_signal(int pidfd, int signal_number, siginfo_t *info, unsigned int flags)
{
    if (may_signal)
        return (int)syscall(SYS_pidfd_send_signal, pidfd, signal_number, info, flags);
    errno = EPERM;
    return -1;
}

static int lowest_free_fd(void)
{
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

    ck_assert_int_ge(fd, 0);
    close(fd);
    return fd;
}

static void make_node(void)
{
    ck_assert_int_ge(sd_event_new(&node.event), 0);
    ck_assert_int_ge(sd_event_exit(node.event, 0), 0);
    ck_assert_int_ge(sd_event_loop(node.event), 0);
    snprintf(node.engine_path, sizeof(node.engine_path), "%s/tests/hvt_fake_engine",
             getenv("HVD_BUILD_DIR"));
}

START_TEST(an_engine_that_cannot_be_watched_is_killed_before_its_link_ends)
{
    struct node_generation *generation;
    char text[256];

    make_node();
    ck_assert_int_eq(node_generation_new(&node.jobs, "a", 1000, "", 1, 1, 0, &generation), HVI_OK);
    link_fd = lowest_free_fd();
    ck_assert_int_eq(node_spawn_engine(&node, generation, -1, text, sizeof(text)), HVI_ERR_DAEMON);
    ck_assert_int_eq(kills, 1);
    ck_assert_msg(link_was_open, "the engine could have complained");
    ck_assert_msg(strstr(text, "(watch: Stale file handle)") != NULL, "%s", text);
    ck_assert_int_eq(lowest_free_fd(), link_fd); /* and nothing is left open */
    node_generation_end(&node.jobs, generation, "test");
    sd_event_unref(node.event);
}
END_TEST

/* A user's engine, where hvdd has no CAP_KILL. */
START_TEST(an_engine_that_hvdd_may_not_kill_is_forgotten_so_that_a_drain_ends)
{
    struct node_generation *generation;
    struct node_engine *engine;
    int link[2];
    pid_t pid = fork();

    if (pid == 0) {
        pause();
        _exit(0);
    }
    ck_assert_int_ge(sd_event_new(&node.event), 0);
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, link), 0);
    ck_assert_int_eq(node_generation_new(&node.jobs, "a", 1000, "", 1, 1, 0, &generation), HVI_OK);
    engine = node_link_new(&node, generation, link[0], pid, hvi_pidfd_open(pid), false);
    ck_assert_ptr_nonnull(engine);
    may_signal = false;
    node_spawn_kill(engine, "the test wants it");
    node_spawn_kill(engine, "the test wants it again");
    ck_assert_ptr_nonnull(engine->forget);
    ck_assert_int_ge(sd_event_source_set_time_relative(engine->forget, 0), 0);
    ck_assert_int_gt(sd_event_run(node.event, 5000000), 0);
    ck_assert_ptr_null(node.engines);
    ck_assert_uint_eq(node.jobs.job_count, 0);
    close(link[1]);
    node_beat_close(&node);
    sd_event_unref(node.event);
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("node_spawn");
    TCase *tcase = tcase_create("spawn");

    tcase_add_test(tcase, an_engine_that_cannot_be_watched_is_killed_before_its_link_ends);
    tcase_add_test(tcase, an_engine_that_hvdd_may_not_kill_is_forgotten_so_that_a_drain_ends);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
