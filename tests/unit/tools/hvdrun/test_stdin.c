/* SPDX-License-Identifier: Apache-2.0
 * The terminal that is read for rank 0. That of a test is not the terminal of the test's session: hvdrun takes itself for a
 * job in the background. */
#include "tools/hvdrun/stdin.h"

#include "tests/unit/hvt_main.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static struct run_stdin input;
static int master_fd, terminal_fd;

static void setup(void)
{
    master_fd = posix_openpt(O_RDWR | O_NOCTTY);
    ck_assert(master_fd >= 0 && grantpt(master_fd) == 0 && unlockpt(master_fd) == 0);
    terminal_fd = open(ptsname(master_fd), O_RDWR | O_NOCTTY);
    ck_assert_int_eq(dup2(terminal_fd, STDIN_FILENO), STDIN_FILENO);
    ck_assert_int_eq(run_stdin_init(&input), 0);
    ck_assert_int_ge(input.pipe_fd, 0);
}

static void teardown(void)
{
    close(input.child_fd);
    run_stdin_fini(&input);
    close(master_fd);
    close(terminal_fd);
}

START_TEST(the_terminal_is_left_alone_in_the_background)
{
    ck_assert_int_eq(run_stdin_poll(&input, 1).fd, STDIN_FILENO);
    ck_assert_int_eq(write(master_fd, "x\n", 2), 2);
    run_stdin_handle(&input);
    ck_assert_uint_ne(input.retry_ns, 0);
    ck_assert_uint_eq(input.pending.used, 0);
    ck_assert_int_eq(run_stdin_poll(&input, input.retry_ns - 1).fd, -1);
}
END_TEST

/* The shell reads what was typed: nothing is ready when hvdrun looks again, and it must sleep on. */
START_TEST(a_terminal_that_another_has_read_is_waited_for_without_an_end)
{
    char bytes[8];

    ck_assert_int_eq(write(master_fd, "x\n", 2), 2);
    run_stdin_handle(&input);
    ck_assert_int_eq(read(terminal_fd, bytes, sizeof bytes), 2);
    ck_assert_int_eq(run_stdin_poll(&input, input.retry_ns).fd, STDIN_FILENO);
    ck_assert_uint_eq(input.retry_ns, 0);
}
END_TEST

/* The terminal becomes this process's own, which only a process that leads no group can have. */
static int pass_on_a_line(void)
{
    char bytes[8];

    if (setsid() < 0 || ioctl(terminal_fd, TIOCSCTTY, 0) != 0 || write(master_fd, "x\n", 2) != 2)
        return 1;
    run_stdin_handle(&input);
    if (read(input.child_fd, bytes, sizeof bytes) != 2 || memcmp(bytes, "x\n", 2) != 0)
        return 2;
    if (write(master_fd, "\4", 1) != 1) /* Ctrl-D */
        return 3;
    run_stdin_handle(&input);
    return run_stdin_poll(&input, 1).fd == -1 && input.pipe_fd == -1 ? 0 : 4;
}

START_TEST(a_line_in_the_foreground_is_passed_on_and_the_end_too)
{
    int status;
    const pid_t pid = fork();

    if (pid == 0)
        exit(pass_on_a_line());
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %d", status);
}
END_TEST

START_TEST(a_pipe_that_another_process_reads_too_does_not_block)
{
    char bytes[8];
    const int fd = run_stdin_reopen(&input);

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(read(fd, bytes, sizeof bytes), -1);
    ck_assert_int_eq(errno, EAGAIN);
    ck_assert_int_eq(fcntl(input.child_fd, F_GETFL) & O_NONBLOCK, 0);
    ck_assert_int_eq(write(input.pipe_fd, "x\n", 2), 2);
    ck_assert_int_eq(read(fd, bytes, sizeof bytes), 2);
    close(fd);
}
END_TEST

START_TEST(a_file_is_read_from_where_its_reader_is)
{
    char byte;
    struct run_stdin file = {.child_fd = memfd_create("hvt-stdin", MFD_CLOEXEC)};

    ck_assert_int_eq(pwrite(file.child_fd, "ab", 2, 0), 2);
    const int fd = run_stdin_reopen(&file);
    ck_assert_int_eq(read(file.child_fd, &byte, 1), 1);
    ck_assert_int_eq(read(fd, &byte, 1), 1);
    ck_assert_int_eq(byte, 'b');
    close(fd);
    close(file.child_fd);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tools/hvdrun/stdin");
    TCase *tests = tcase_create("background");
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, the_terminal_is_left_alone_in_the_background);
    tcase_add_test(tests, a_terminal_that_another_has_read_is_waited_for_without_an_end);
    tcase_add_test(tests, a_line_in_the_foreground_is_passed_on_and_the_end_too);
    tcase_add_test(tests, a_pipe_that_another_process_reads_too_does_not_block);
    tcase_add_test(tests, a_file_is_read_from_where_its_reader_is);
    suite_add_tcase(suite, tests);
    return hvt_run_suite(suite);
}
