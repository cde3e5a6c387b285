/* SPDX-License-Identifier: Apache-2.0
 * An MPS control daemon (NVIDIA's nvidia-cuda-mps-control) of hvdd's own, where gpu-mps asks for it (ADR 0028):
 *
 *   none ── node_mps_open ──► running ── its process ends ──► waiting ── back-off ──► running
 *                                └──── node_mps_stop: "quit", SIGKILL after 3.5 s, 1 s more at most ──► none
 *
 * CUDA looks for it once, when a process makes its first call, and goes on without it where it is not there. So hvdd waits for
 * its socket before it is ready itself: the ranks of a hvdrun find it, and so do workers. One that does not listen in time is
 * ended, and jobs run without it. The file mps.pid is there as long as hvdd's environment names the folders: hvdrun goes by it, so
 * ranks and workers are told the same.
 *
 * It has a session of its own, and outlives a hvdd that is killed, as workers do, which would lose their GPU with it. The
 * next hvdd finds it by that file, and keeps it even if it wants none itself: then one that ends is not started again. The
 * servers that it starts are in its session, and are killed with what is left of it. The end of one is the end of every CUDA
 * context that it serves: hvdd says so, and ends the workers that have nothing to do, which would not notice. */
#include "daemon/node/mps.h"

#include "base/clock.h"
#include "base/fate.h"
#include "base/log.h"
#include "base/mps.h"
#include "daemon/node/backoff.h"
#include "daemon/node/spawn.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define READY_NS      (3 * HVI_NS_SEC) /* for its socket to be there */
#define READY_LOOK_MS 5
#define QUIT          "quit -t 1\n" /* clients that are left get 1 s */
#define QUIT_NS       (3500 * HVI_NS_MS)
#define KILL_NS       HVI_NS_SEC /* for SIGKILL to end it */
#define REAP_MS       100        /* for each process in node_mps_close, which blocks */
#define SOCKET        HVI_MPS_PIPES "/control"
#define LONGEST       HVI_MPS_PIPES "/nvidia-cuda-mps-control.lock" /* no name of its is longer */
#define OUTPUT        HVI_MPS_LOGS "/output"
#define DEVICES_VAR   "CUDA_VISIBLE_DEVICES"

static int start(struct node_mps *mps);
static const char *obstacle(struct node_mps *mps);

/* ---- its files ---- */

static void file_path(const struct node_mps *mps, const char *name, char path_p[HVI_WIRE_PATH * 2])
{
    snprintf(path_p, HVI_WIRE_PATH * 2, "%s/%s", mps->rundir->path, name);
}

static bool listens(const struct node_mps *mps)
{
    char path[HVI_WIRE_PATH * 2];

    file_path(mps, SOCKET, path);
    return access(path, F_OK) == 0;
}

static bool write_pid(const struct node_mps *mps)
{
    char path[HVI_WIRE_PATH * 2];
    FILE *file;

    file_path(mps, HVI_MPS_PID, path);
    file = fopen(path, "we");
    if (file == NULL)
        return false;
    fprintf(file, "%d\n", (int)mps->pid);
    return fclose(file) == 0;
}

/* The last line of a file as it can stand in quotes; "": it has none. */
static void last_line(const char *path, char *line_p, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = -1;
    struct stat info;
    char *newline;

    if (fd >= 0 && fstat(fd, &info) == 0)
        length = pread(fd, line_p, size - 1,
                       info.st_size >= (off_t)size ? info.st_size - (off_t)size + 1 : 0);
    if (fd >= 0)
        close(fd);
    while (length > 0 && line_p[length - 1] == '\n')
        length--;
    line_p[length > 0 ? length : 0] = '\0';
    newline = strrchr(line_p, '\n');
    if (newline != NULL)
        memmove(line_p, newline + 1, strlen(newline));
    for (char *at = line_p; *at != '\0'; at++)
        *at = *at == '"' || iscntrl((unsigned char)*at) || !isascii(*at) ? ' ' : *at;
}

/* What it has said last, in its log or else as a program. */
static void last_words(const struct node_mps *mps, char *words_p, size_t size)
{
    const char *logs = getenv(HVI_MPS_LOG_VAR);
    char path[PATH_MAX];

    snprintf(path, sizeof(path), "%s/control.log", logs != NULL ? logs : "");
    last_line(path, words_p, size);
    file_path(mps, OUTPUT, path);
    if (words_p[0] == '\0')
        last_line(path, words_p, size);
}

/* ---- its variables ---- */

static bool remember(const char *name, char **before_p)
{
    const char *value = getenv(name);

    *before_p = value == NULL ? NULL : strdup(value);
    return value == NULL || *before_p != NULL;
}

/* For all that hvdd starts. Who has named a folder for its log wants to keep that. */
static bool set_variables(struct node_mps *mps)
{
    char pipes[HVI_WIRE_PATH * 2], logs[HVI_WIRE_PATH * 2];

    file_path(mps, HVI_MPS_PIPES, pipes);
    file_path(mps, HVI_MPS_LOGS, logs);
    mps->named = remember(HVI_MPS_PIPE_VAR, &mps->pipes_before) &&
                 remember(HVI_MPS_LOG_VAR, &mps->logs_before);
    return mps->named && setenv(HVI_MPS_PIPE_VAR, pipes, 1) == 0 &&
           setenv(HVI_MPS_LOG_VAR, logs, 0) == 0;
}

static void restore(const char *name, char *before)
{
    if (before != NULL)
        setenv(name, before, 1);
    else
        unsetenv(name);
    free(before);
}

/* The user's own MPS, if hvdd was told of one, serves again. */
static void restore_variables(struct node_mps *mps)
{
    if (!mps->named)
        return;
    restore(HVI_MPS_PIPE_VAR, mps->pipes_before);
    restore(HVI_MPS_LOG_VAR, mps->logs_before);
    mps->pipes_before = mps->logs_before = NULL;
    mps->named = false;
}

/* ---- its end ---- */

static void forget(struct node_mps *mps)
{
    char path[HVI_WIRE_PATH * 2];

    mps->exit = sd_event_source_disable_unref(mps->exit);
    mps->late = sd_event_source_disable_unref(mps->late);
    if (mps->pidfd >= 0)
        close(mps->pidfd);
    mps->pidfd = -1;
    mps->pid = 0;
    file_path(mps, SOCKET, path);
    unlink(path); /* nothing listens there */
}

static int on_again(sd_event_source *source, uint64_t usec, void *user)
{
    struct node_mps *mps = user;

    (void)source, (void)usec;
    mps->again = sd_event_source_disable_unref(mps->again);
    start(mps);
    return 0;
}

static void start_later(struct node_mps *mps)
{
    const uint64_t delay_ns = node_backoff_next(&mps->backoff_ns, mps->started_ns);

    if (sd_event_add_time_relative(mps->event, &mps->again, CLOCK_MONOTONIC, delay_ns / 1000, 1,
                                   on_again, mps) < 0)
        HVI_LOG(HVI_LOG_ERROR, "mps", "no-mps", "MPS is not started again: no memory for a timer",
                "");
}

/* There is none any more, and none is started again. */
static void drop(struct node_mps *mps)
{
    restore_variables(mps);
    hvi_mps_remove(mps->rundir->path);
    mps->on = false;
}

static void describe_end(const struct node_mps *mps, const char *fate, bool again, char *text_p,
                         size_t size)
{
    const char *next = again ? " and is started again" : " and is not started again";

    if (mps->ending)
        snprintf(text_p, size, "MPS %s", fate);
    else
        snprintf(text_p, size, "MPS %s%s; CUDA fails in every process that was in it", fate, next);
}

static void gone(struct node_mps *mps, const char *fate)
{
    const char *why = mps->config->gpu_mps > 0 ? obstacle(mps) : "";
    char sentence[300], words[200];

    last_words(mps, words, sizeof(words));
    describe_end(mps, fate, why == NULL, sentence, sizeof(sentence));
    HVI_LOG(mps->ending ? HVI_LOG_INFO : HVI_LOG_WARN, "mps", "mps-ended", sentence,
            "pid=%d said=\"%s\"", (int)mps->pid, words);
    forget(mps);
    if (mps->ending) {
        mps->ended(mps->user);
        return;
    }
    snprintf(mps->why, sizeof(mps->why), "%s", why != NULL ? why : "");
    if (why == NULL)
        start_later(mps);
    else
        drop(mps);
    mps->lost(mps->user);
}

static int on_exit_of_child(sd_event_source *source, const siginfo_t *info, void *user)
{
    struct node_mps *mps = user;
    char text[128];

    (void)source;
    kill(-mps->pid, SIGKILL); /* its servers; the number is its own until it is waited for */
    hvi_fate_describe(hvi_fate_from_child(info), text, sizeof(text));
    gone(mps, text);
    return 0;
}

static int on_exit_of_stranger(sd_event_source *source, int fd, uint32_t events, void *user)
{
    struct node_mps *mps = user;
    char text[128];

    (void)source, (void)events;
    hvi_fate_describe(hvi_fate_of_gone(mps->pid, fd), text, sizeof(text));
    hvi_mps_kill(mps->rundir->path, mps->pid); /* its servers */
    gone(mps, text);
    return 0;
}

static void abandon(struct node_mps *mps)
{
    HVI_LOG(HVI_LOG_ERROR, "mps", "mps-stuck",
            "MPS does not end by SIGKILL; hvdd waits no longer. It hangs in the driver: see the "
            "kernel's log",
            "pid=%d", (int)mps->pid);
    forget(mps);
    mps->ended(mps->user);
}

static int on_stuck(sd_event_source *source, uint64_t usec, void *user)
{
    (void)source, (void)usec;
    abandon(user);
    return 0;
}

/* With its servers. */
static void kill_all(const struct node_mps *mps)
{
    pidfd_send_signal(mps->pidfd, SIGKILL, NULL, 0);
    if (mps->child)
        kill(-mps->pid, SIGKILL); /* the number is its own until it is waited for */
    hvi_mps_kill(mps->rundir->path, mps->pid);
}

static void kill_and_wait(struct node_mps *mps)
{
    kill_all(mps);
    mps->late = sd_event_source_disable_unref(mps->late);
    if (sd_event_add_time_relative(mps->event, &mps->late, CLOCK_MONOTONIC, KILL_NS / 1000, 1,
                                   on_stuck, mps) < 0)
        abandon(mps);
}

static int on_late(sd_event_source *source, uint64_t usec, void *user)
{
    struct node_mps *mps = user;

    (void)source, (void)usec;
    HVI_LOG(HVI_LOG_WARN, "mps", "mps-killed", "MPS has not ended 3.5 s after \"quit\"", "pid=%d",
            (int)mps->pid);
    kill_and_wait(mps);
    return 0;
}

static int on_quit(sd_event_source *source, const siginfo_t *info, void *user)
{
    struct node_mps *mps = user;

    (void)source, (void)info;
    mps->quit = sd_event_source_disable_unref(mps->quit);
    mps->quitting = 0;
    return 0;
}

/* The program without options sends what it reads to the daemon. False: it cannot be told. */
static bool tell_to_quit(struct node_mps *mps)
{
    char *argv[] = {(char *)(uintptr_t)HVI_MPS_PROGRAM, NULL};
    struct node_spawn_io io = {.out_fd = open("/dev/null", O_WRONLY | O_CLOEXEC), .link_fd = -1};
    int error = EIO;

    io.in_fd = memfd_create("hvdd-mps-quit", MFD_CLOEXEC);
    if (io.in_fd >= 0 && write(io.in_fd, QUIT, strlen(QUIT)) == (ssize_t)strlen(QUIT) &&
        lseek(io.in_fd, 0, SEEK_SET) == 0)
        error = node_spawn_start(mps->program, argv, &io, NULL, &mps->quitting);
    if (io.in_fd >= 0)
        close(io.in_fd);
    if (io.out_fd >= 0)
        close(io.out_fd);
    return error == 0 &&
           sd_event_add_child(mps->event, &mps->quit, mps->quitting, WEXITED, on_quit, mps) >= 0;
}

bool node_mps_stop(struct node_mps *mps)
{
    mps->again = sd_event_source_disable_unref(mps->again);
    if (mps->pid == 0)
        return false;
    if (mps->ending)
        return true;
    mps->ending = true;
    if (!tell_to_quit(mps) || sd_event_add_time_relative(mps->event, &mps->late, CLOCK_MONOTONIC,
                                                         QUIT_NS / 1000, 1, on_late, mps) < 0)
        kill_and_wait(mps);
    return true;
}

/* One that hangs, or is an earlier hvdd's, is not ours to wait for: init reaps it. */
static void reap(int pidfd)
{
    poll(&(struct pollfd){.fd = pidfd, .events = POLLIN}, 1, REAP_MS);
    waitid(P_PIDFD, (id_t)pidfd, &(siginfo_t){0}, WEXITED | WNOHANG);
}

/* The process that says "quit" has ended before the folders are removed: else it might make its log anew there. */
static void end_quitting(struct node_mps *mps)
{
    const int pidfd = mps->quitting > 0 ? hvi_pidfd_open(mps->quitting) : -1;

    mps->quitting = 0;
    if (pidfd < 0)
        return;
    pidfd_send_signal(pidfd, SIGKILL, NULL, 0);
    reap(pidfd);
    close(pidfd);
}

void node_mps_close(struct node_mps *mps)
{
    if (!mps->on)
        return;
    mps->again = sd_event_source_disable_unref(mps->again);
    mps->quit = sd_event_source_disable_unref(mps->quit);
    end_quitting(mps);
    if (mps->pid != 0) {
        kill_all(mps);
        reap(mps->pidfd);
        forget(mps);
    }
    drop(mps);
}

/* ---- its start ---- */

static int watch(struct node_mps *mps)
{
    mps->pidfd = hvi_pidfd_open(mps->pid);
    if (mps->pidfd < 0)
        return -errno;
    if (mps->child)
        return sd_event_add_child_pidfd(mps->event, &mps->exit, mps->pidfd, WEXITED,
                                        on_exit_of_child, mps);
    return sd_event_add_io(mps->event, &mps->exit, mps->pidfd, EPOLLIN, on_exit_of_stranger, mps);
}

/* A server renumbers the GPUs that it sees, and its clients would count again: so numbers are for clients alone. UUIDs mean the
 * same to both. */
static const char *hidden_variable(void)
{
    const char *devices = getenv(DEVICES_VAR);

    return devices != NULL && isdigit((unsigned char)devices[0]) ? DEVICES_VAR : NULL;
}

static int spawn(struct node_mps *mps)
{
    char *argv[] = {(char *)(uintptr_t)HVI_MPS_PROGRAM, (char *)(uintptr_t) "-f", NULL};
    struct node_spawn_io io = {.in_fd = -1, .link_fd = -1, .session = true};
    char path[HVI_WIRE_PATH * 2];
    int error;

    file_path(mps, OUTPUT, path);
    io.out_fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (io.out_fd < 0)
        return -errno;
    error = node_spawn_start(mps->program, argv, &io, hidden_variable(), &mps->pid);
    close(io.out_fd);
    if (error != 0)
        mps->pid = 0;
    return -error;
}

/* 0, or a negative errno after logging; then it is tried again later. A hvdd that is killed before it has written the pid
 * leaves a daemon that no hvdd knows. */
static int start(struct node_mps *mps)
{
    int r;

    mps->started_ns = hvi_clock_ns();
    mps->child = true;
    r = spawn(mps);
    if (r == 0) {
        (void)write_pid(mps); /* else the next hvdd starts another one */
        r = watch(mps);
    }
    if (r >= 0) {
        HVI_LOG(HVI_LOG_INFO, "mps", "mps-started", "MPS was started",
                "pid=%d program=%s dir=%s/%s", (int)mps->pid, mps->program, mps->rundir->path,
                HVI_MPS_PIPES);
        return 0;
    }
    HVI_LOG(HVI_LOG_ERROR, "mps", "no-mps", "cannot start MPS", "path=%s error=\"%s\"",
            mps->program, strerror(-r));
    if (mps->pid > 0) {
        kill(-mps->pid, SIGKILL);
        waitpid(mps->pid, NULL, 0);
    }
    forget(mps);
    start_later(mps);
    return r;
}

/* False: it has ended, or does not listen within READY_NS; with mps->why. Before hvdd's loop runs. */
static bool await_socket(struct node_mps *mps)
{
    struct pollfd ended = {.fd = mps->pidfd, .events = POLLIN};
    uint64_t deadline_ns = hvi_deadline_after(READY_NS);
    char words[200];

    while (!listens(mps) && !hvi_deadline_passed(deadline_ns))
        if (poll(&ended, 1, READY_LOOK_MS) != 0)
            break;
    const bool has_ended = poll(&ended, 1, 0) != 0;
    if (!has_ended && listens(mps))
        return true;
    last_words(mps, words, sizeof(words));
    snprintf(mps->why, sizeof(mps->why), "%s %s%s%s", mps->program,
             has_ended ? "has ended at its start" : "does not listen after 3 s, and was ended",
             words[0] != '\0' ? ": " : "", words);
    return false;
}

/* ---- whether there may be one ---- */

static bool is_program(const char *folder, size_t length, char *path_p, size_t size)
{
    struct stat info;

    if (length == 0 || folder[0] != '/' ||
        snprintf(path_p, size, "%.*s/%s", (int)length, folder, HVI_MPS_PROGRAM) >= (int)size)
        return false;
    return stat(path_p, &info) == 0 && S_ISREG(info.st_mode) && access(path_p, X_OK) == 0;
}

static bool find_program(char *path_p, size_t size)
{
    static const char *const folders[] = {"/usr/bin", "/usr/local/nvidia/bin"};
    const char *at = getenv("PATH");

    for (size_t length; at != NULL && *at != '\0'; at += length + (at[length] == ':')) {
        length = strcspn(at, ":");
        if (is_program(at, length, path_p, size))
            return true;
    }
    for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]); i++)
        if (is_program(folders[i], strlen(folders[i]), path_p, size))
            return true;
    return false;
}

/* Why there can be none; NULL: nothing stands against it. */
static const char *obstacle(struct node_mps *mps)
{
    char path[HVI_WIRE_PATH];

    if (!mps->private_mode)
        return "this hvdd serves several users, and an MPS server one at a time; a private hvdd "
               "may have one, as hvdrun starts it";
    if (mps->config->gpu == 0)
        return "hvdd starts no workers for GPUs (gpu = no)";
    if (mps->config->gpu_socket[0] != '\0')
        return "workers are started by their unit (gpu-socket), which hvdd cannot tell where MPS "
               "is; leave gpu-socket out";
    if (!node_rundir_socket_path(mps->rundir, LONGEST, path, sizeof(path)))
        return "the path of its sockets would be too long; choose a shorter runtime-dir";
    if (!find_program(mps->program, sizeof(mps->program)))
        return HVI_MPS_PROGRAM
            " is neither in PATH nor in /usr/bin nor in /usr/local/nvidia/bin; "
            "install what NVIDIA's driver has it in, or put its folder into PATH";
    return NULL;
}

static bool is_taken(const char *path)
{
    const bool is_there = access(path, F_OK) == 0;

    if (is_there)
        errno = EEXIST;
    return is_there;
}

/* The file of the pid says whose the folders are (base/mps.h), so it is there first, and no longer than they. False, with
 * mps->why. */
static bool make_folders(struct node_mps *mps)
{
    char pipes[HVI_WIRE_PATH * 2], logs[HVI_WIRE_PATH * 2];

    file_path(mps, HVI_MPS_PIPES, pipes);
    file_path(mps, HVI_MPS_LOGS, logs);
    const bool is_free = !is_taken(pipes) && !is_taken(logs);
    if (is_free && write_pid(mps) && mkdir(pipes, 0700) == 0 && mkdir(logs, 0700) == 0 &&
        set_variables(mps))
        return true;
    snprintf(mps->why, sizeof(mps->why),
             "cannot make the folders " HVI_MPS_PIPES " and " HVI_MPS_LOGS " in %s: %s",
             mps->rundir->path, strerror(errno));
    if (is_free)
        drop(mps);
    return false;
}

/* That of a hvdd which was killed: its workers may live. Without the program it cannot be told to quit, and is killed in the
 * end. */
static bool take_over(struct node_mps *mps)
{
    mps->pid = hvi_mps_find(mps->rundir->path);
    mps->on = mps->pid != 0 && watch(mps) >= 0 && set_variables(mps);
    if (mps->on) {
        (void)find_program(mps->program, sizeof(mps->program));
        HVI_LOG(HVI_LOG_INFO, "mps", "mps-kept", "MPS of an earlier hvdd goes on",
                "pid=%d dir=%s/%s", (int)mps->pid, mps->rundir->path, HVI_MPS_PIPES);
        return true;
    }
    if (mps->pid != 0)
        forget(mps);
    drop(mps);
    return false;
}

void node_mps_open(struct node_mps *mps)
{
    const char *why;

    mps->pidfd = -1;
    if ((mps->private_mode && take_over(mps)) || mps->config->gpu_mps <= 0)
        return;
    why = obstacle(mps);
    snprintf(mps->why, sizeof(mps->why), "%s", why != NULL ? why : "");
    if (why == NULL && make_folders(mps)) {
        mps->on = true;
        if (start(mps) != 0)
            snprintf(mps->why, sizeof(mps->why), "%s cannot be started", mps->program);
        else if (await_socket(mps))
            return;
        node_mps_close(mps);
    }
    HVI_LOG(HVI_LOG_WARN, "mps", "no-mps", "gpu-mps: there is no MPS, and jobs run without it",
            "why=\"%s\"", mps->why);
}

void node_mps_describe(const struct node_mps *mps, char *text_p, size_t text_size)
{
    if (mps->pid != 0)
        snprintf(text_p, text_size, "pid %d, in %s/%s", (int)mps->pid, mps->rundir->path,
                 HVI_MPS_PIPES);
    else if (mps->on)
        snprintf(text_p, text_size, "none: it has ended, and is about to be started again");
    else
        snprintf(text_p, text_size, "%s%s", mps->why[0] != '\0' ? "none: " : "", mps->why);
}
