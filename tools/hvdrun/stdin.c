/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/hvdrun/stdin.h"

#include "base/clock.h"
#include "base/status.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#define BACKGROUND_NS (500 * HVI_NS_MS)

int run_stdin_init(struct run_stdin *input_p)
{
    int fds[2];
    *input_p = (struct run_stdin){.child_fd = STDIN_FILENO, .pipe_fd = -1};
    if (!isatty(STDIN_FILENO))
        return 0;
    if (pipe2(fds, O_CLOEXEC) != 0)
        return errno;
    fcntl(fds[1], F_SETFL, O_NONBLOCK);
    input_p->child_fd = fds[0];
    input_p->pipe_fd = fds[1];
    return 0;
}

/* O_NONBLOCK would be everybody's: see output.c. A file is not opened again, for its offset is everybody's, too. */
int run_stdin_reopen(const struct run_stdin *input)
{
    char path[64];
    struct stat st;
    int again = -1;
    snprintf(path, sizeof path, "/proc/self/fd/%d", input->child_fd);
    if (fstat(input->child_fd, &st) == 0 && S_ISFIFO(st.st_mode))
        again = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    return again >= 0 ? again : fcntl(input->child_fd, F_DUPFD_CLOEXEC, 3);
}

/* A terminal that another has read meanwhile is waited for like any other. */
struct pollfd run_stdin_poll(struct run_stdin *input, uint64_t now_ns)
{
    if (now_ns >= input->retry_ns)
        input->retry_ns = 0;
    if (input->pipe_fd < 0 || input->retry_ns != 0)
        return (struct pollfd){.fd = -1};
    if (input->pending.used > 0)
        return (struct pollfd){.fd = input->pipe_fd, .events = POLLOUT};
    return (struct pollfd){.fd = STDIN_FILENO, .events = POLLIN};
}

static void stop(struct run_stdin *input)
{
    if (input->pipe_fd >= 0)
        close(input->pipe_fd);
    input->pipe_fd = -1;
}

static void pass_on(struct run_stdin *input)
{
    const ssize_t written =
        write(input->pipe_fd, input->pending.data + input->pending.start, input->pending.used);
    if (written > 0)
        run_buffer_consume(&input->pending, (size_t)written);
    else if (written < 0 && errno != EAGAIN && errno != EINTR)
        stop(input);
}

void run_stdin_handle(struct run_stdin *input)
{
    char bytes[4096];
    if (input->pending.used > 0) {
        pass_on(input);
        return;
    }
    if (tcgetpgrp(STDIN_FILENO) != getpgrp()) { /* reading now would stop hvdrun */
        input->retry_ns = hvi_deadline_after((int64_t)BACKGROUND_NS);
        return;
    }
    input->retry_ns = 0;
    const ssize_t length = read(STDIN_FILENO, bytes, sizeof bytes);
    if (length > 0 && run_buffer_append(&input->pending, bytes, (size_t)length) == HVI_OK)
        pass_on(input);
    else if (length == 0 || (errno != EINTR && errno != EAGAIN))
        stop(input);
}

void run_stdin_fini(struct run_stdin *input)
{
    stop(input);
    run_buffer_fini(&input->pending);
}
