/* SPDX-License-Identifier: Apache-2.0
 * The guard holds the reading end of a pipe whose only writer is hvdrun. Messages say what there is
 * to clean up; end of file without a MESSAGE_BYE means that hvdrun is dead. The guard has a process
 * group of its own, keeps hvdrun's signals blocked and none of its descriptors, so nobody waits for
 * end of file because of it. Neither its name nor its command line has hvdrun's words in it: pkill -9
 * with one of these does not meet it. */
#include "tools/hvdrun/guard.h"

#include "base/clock.h"
#include "base/fate.h"
#include "base/types.h"
#include "tools/hvdrun/daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NAME      "hvd-guard"
#define DAEMON_NS (8 * HVI_NS_SEC) /* how long a private hvdd may take to follow us */

enum message_kind { MESSAGE_ADD, MESSAGE_DROP, MESSAGE_DIR, MESSAGE_DAEMON, MESSAGE_BYE };

struct message {
    enum message_kind kind;
    pid_t pid;
    char dir[HVD_ADMIN_DIR_MAX + 1];
};

struct duty {
    pid_t groups[HVI_RANKS_MAX];
    size_t count;
    pid_t daemon;
    char dir[HVD_ADMIN_DIR_MAX + 1];
};

/* ---- the guard's side ---- */

static void learn(struct duty *duty, const struct message *message)
{
    switch (message->kind) {
    case MESSAGE_ADD:
        if (duty->count < HVI_RANKS_MAX)
            duty->groups[duty->count++] = message->pid;
        break;
    case MESSAGE_DROP:
        for (size_t i = 0; i < duty->count; i++)
            if (duty->groups[i] == message->pid)
                duty->groups[i--] = duty->groups[--duty->count];
        break;
    case MESSAGE_DAEMON:
        duty->daemon = message->pid;
        break;
    case MESSAGE_DIR:
        memcpy(duty->dir, message->dir, sizeof duty->dir);
        break;
    case MESSAGE_BYE:
        _exit(0);
    }
}

static bool daemon_is_gone(pid_t daemon)
{
    const char letter = hvi_process_state(daemon);
    return letter == 'X' || letter == 'Z';
}

static void clean_up(const struct duty *duty)
{
    const struct timespec pause = {.tv_nsec = 20 * 1000 * 1000};
    for (size_t i = 0; i < duty->count; i++)
        kill(-duty->groups[i], SIGKILL);
    const uint64_t deadline_ns = hvi_deadline_after((int64_t)DAEMON_NS);
    while (duty->daemon != 0 && !daemon_is_gone(duty->daemon) && !hvi_deadline_passed(deadline_ns))
        nanosleep(&pause, NULL);
    if (duty->daemon != 0 && !daemon_is_gone(duty->daemon))
        kill(-duty->daemon, SIGKILL);
    if (duty->dir[0] != '\0')
        run_daemon_remove_dir(duty->dir);
}

static char *words; /* of hvdrun's command line, in its one place */
static size_t words_bytes;

void run_guard_keep_words(int argc, char **argv)
{
    words = argv[0];
    words_bytes = argc > 0 ? (size_t)(argv[argc - 1] + strlen(argv[argc - 1]) + 1 - argv[0]) : 0;
}

static void take_name(void)
{
    prctl(PR_SET_NAME, NAME);
    if (words_bytes < sizeof NAME)
        return;
    memset(words, 0, words_bytes);
    memcpy(words, NAME, sizeof NAME);
}

static void drop_descriptors(int keep)
{
    const int null_fd = open("/dev/null", O_RDWR);
    for (int fd = 0; fd < 3 && null_fd >= 0; fd++)
        dup2(null_fd, fd);
    if (keep > 3)
        close_range(3, (unsigned)keep - 1, 0);
    close_range((unsigned)keep + 1, ~0u, 0);
}

_Noreturn static void guard_main(int fd)
{
    static struct duty duty;
    struct message message;
    ssize_t length;
    setpgid(0, 0);
    take_name();
    drop_descriptors(fd);
    do {
        length = read(fd, &message, sizeof message);
        if (length == (ssize_t)sizeof message)
            learn(&duty, &message);
    } while (length > 0 || (length < 0 && errno == EINTR));
    clean_up(&duty);
    _exit(0);
}

/* ---- hvdrun's side ---- */

int run_guard_start(struct run_guard *guard_p)
{
    int fds[2];
    *guard_p = (struct run_guard){.fd = -1};
    if (pipe2(fds, O_CLOEXEC) != 0)
        return errno;
    const pid_t pid = fork();
    if (pid == 0) {
        close(fds[1]);
        guard_main(fds[0]);
    }
    close(fds[0]);
    if (pid < 0) {
        close(fds[1]);
        return errno;
    }
    *guard_p = (struct run_guard){.pid = pid, .fd = fds[1]};
    return 0;
}

static void tell(struct run_guard *guard, enum message_kind kind, pid_t pid, const char *dir)
{
    struct message message = {.kind = kind, .pid = pid};
    if (guard->fd < 0)
        return;
    snprintf(message.dir, sizeof message.dir, "%s", dir);
    if (write(guard->fd, &message, sizeof message) < 0) { /* somebody killed it: do without */
        close(guard->fd);
        guard->fd = -1;
    }
}

void run_guard_add(struct run_guard *guard, pid_t group)
{
    tell(guard, MESSAGE_ADD, group, "");
}

void run_guard_drop(struct run_guard *guard, pid_t group)
{
    tell(guard, MESSAGE_DROP, group, "");
}

void run_guard_watch_dir(struct run_guard *guard, const char *dir)
{
    tell(guard, MESSAGE_DIR, 0, dir);
}

void run_guard_watch_daemon(struct run_guard *guard, pid_t daemon)
{
    tell(guard, MESSAGE_DAEMON, daemon, "");
}

void run_guard_stop(struct run_guard *guard)
{
    if (guard->pid == 0)
        return;
    tell(guard, MESSAGE_BYE, 0, "");
    if (guard->fd >= 0)
        close(guard->fd);
    kill(guard->pid, SIGKILL); /* it may be stopped, and has nothing to do any more */
    waitpid(guard->pid, NULL, 0);
    *guard = (struct run_guard){.fd = -1};
}
