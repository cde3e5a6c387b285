/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/ask.h"

#include "base/beside.h"
#include "base/clock.h"
#include "base/status.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* Starts it with our stderr, because what it complains about helps. An errno, or 0. */
static int start(char *const argv[], int answer_fd, pid_t *pid_p)
{
    posix_spawn_file_actions_t actions;
    int error = posix_spawn_file_actions_init(&actions);
    if (error != 0)
        return error;
    error = posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    if (error == 0)
        error = posix_spawn_file_actions_adddup2(&actions, answer_fd, STDOUT_FILENO);
    if (error == 0)
        error = posix_spawnp(pid_p, argv[0], &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    return error;
}

/* Until end of file. False if that does not come in time; the rest of a long answer is dropped. */
static bool read_answer(int fd, uint64_t wait_ns, char *answer_p, size_t size)
{
    const uint64_t deadline_ns = hvi_deadline_after((int64_t)wait_ns);
    char surplus[256];
    size_t used = 0;
    for (;;) {
        struct pollfd item = {.fd = fd, .events = POLLIN};
        const int ready = poll(&item, 1, hvi_deadline_poll_ms(deadline_ns));
        if (ready < 0 && errno == EINTR)
            continue;
        if (ready <= 0)
            return false;
        const bool full = used + 1 == size;
        const ssize_t length =
            read(fd, full ? surplus : answer_p + used, full ? sizeof surplus : size - 1 - used);
        if (length <= 0)
            break;
        used += full ? 0 : (size_t)length;
    }
    answer_p[used] = '\0';
    return true;
}

const char *ask_program(char *const argv[], uint64_t wait_ns, char *answer_p, size_t size)
{
    int fds[2];
    int status = 0;
    pid_t pid;
    if (pipe2(fds, O_CLOEXEC) != 0)
        return strerror(errno);
    const int error = start(argv, fds[1], &pid);
    close(fds[1]);
    const bool answered = error == 0 && read_answer(fds[0], wait_ns, answer_p, size);
    close(fds[0]);
    if (error != 0)
        return strerror(error);
    if (!answered)
        kill(pid, SIGKILL);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        continue;
    if (!answered)
        return "it did not answer in time";
    return status == 0 ? NULL : "it failed";
}

const char *ask_worker(const char *option, uint64_t wait_ns, char *answer_p, size_t size)
{
    char path[PATH_MAX + 64];
    if (hvi_beside_find("hvdd-gpu", path, sizeof path) != HVI_OK)
        return "this program's folder is not known";
    char *const argv[] = {path, (char *)(uintptr_t)option, NULL};
    return ask_program(argv, wait_ns, answer_p, size);
}

uint64_t ask_number(const char *answer, const char *word, const char **rest_p)
{
    const size_t length = strlen(word);
    for (const char *line = answer; line != NULL && *line != '\0'; line = strchr(line, '\n')) {
        char *end;
        line += *line == '\n';
        if (strncmp(line, word, length) != 0 || line[length] != ' ')
            continue;
        const uint64_t number = strtoull(line + length, &end, 10);
        if (rest_p != NULL)
            *rest_p = end + strspn(end, " ");
        return number;
    }
    return 0;
}
