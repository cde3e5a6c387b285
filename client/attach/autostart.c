/* SPDX-License-Identifier: Apache-2.0
 * The private hvdd must outlive this process and must not be its child: a library has no business
 * in its host's SIGCHLD handling. So posix_spawn (no atfork handlers of the host run, no copy of
 * its memory) starts a shell that starts hvdd in the background of a process group of its own and ends at
 * once. The session is ours, as the kernel may share a machine's cores among sessions (daemon/node/spawn.c).
 * hvdd inherits no descriptor but the readiness pipe, no signal mask, and none of the
 * variables by which a service manager speaks to the host. It says "ready" on the pipe; end of file
 * means that it ended. It goes away by itself when it was not used for a while.
 *
 * Its log goes to the file that $HVDD_LOG names, else to memory (see /proc/PID/fd/2), so that
 * nothing stays behind; when it does not get ready, the end of the log is part of our sentence.
 *
 * The lock is on the directory itself, so no lock file stays behind; a directory that was removed
 * and made anew while we waited is noticed by its inode. */
#include "client/attach/autostart.h"

#include "base/clock.h"
#include "client/error.h"
#include "hvd/hvd.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define READY_FD    3
#define IDLE_EXIT   "10s"
#define LOCK_NAP_NS 2000000

/* ---- finding the program ---- */

static bool usable(const char *path, char *program_p)
{
    char resolved[PATH_MAX];
    struct stat st;
    if (!realpath(path, resolved) || stat(resolved, &st) != 0 || !S_ISREG(st.st_mode) ||
        access(resolved, X_OK) != 0)
        return false;
    memcpy(program_p, resolved, strlen(resolved) + 1);
    return true;
}

/* Beside this library (or the program it is linked into): PREFIX/lib and PREFIX/lib/<triplet> are
 * both common. */
static bool find_beside_us(char *program_p)
{
    static const char *const places[] = {"../bin/hvdd", "../../bin/hvdd", "hvdd"};
    char self[PATH_MAX];
    char path[PATH_MAX + 32];
    Dl_info info;
    if (!dladdr((const void *)&hvd_open, &info) || !info.dli_fname ||
        !realpath(info.dli_fname, self))
        return false;
    *strrchr(self, '/') = '\0';
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        snprintf(path, sizeof(path), "%s/%s", self, places[i]);
        if (usable(path, program_p))
            return true;
    }
    return false;
}

static bool find_in_path(char *program_p)
{
    char path[PATH_MAX];
    const char *at = getenv("PATH");
    while (at && *at) {
        size_t length = strcspn(at, ":");
        if (length > 0 && length < sizeof(path) - sizeof("/hvdd")) {
            snprintf(path, sizeof(path), "%.*s/hvdd", (int)length, at);
            if (usable(path, program_p))
                return true;
        }
        at += length + (at[length] == ':');
    }
    return false;
}

static int find_program(char *program_p)
{
    const char *wanted = getenv("HVDD_PROGRAM");
    if (wanted && wanted[0]) {
        if (usable(wanted, program_p))
            return HVD_OK;
        return client_error(HVD_ERR_NO_DAEMON,
                            "hvd_open: HVDD_PROGRAM is '%s', which is no executable file", wanted);
    }
    if (find_beside_us(program_p) || find_in_path(program_p))
        return HVD_OK;
    return client_error(HVD_ERR_NO_DAEMON,
                        "hvd_open: no hvdd runs and no hvdd program was found to start a private "
                        "one; start one with 'systemctl start hvdd', run under hvdrun, or set "
                        "HVD_ADDRESS or HVDD_PROGRAM");
}

/* ---- starting it ---- */

static bool belongs_to_host(const char *assignment)
{
    static const char *const prefixes[] = {"NOTIFY_SOCKET=", "LISTEN_", "WATCHDOG_",
                                           "JOURNAL_STREAM=", "HVD_JOB_KEY="};
    for (size_t i = 0; i < sizeof(prefixes) / sizeof(prefixes[0]); i++)
        if (strncmp(assignment, prefixes[i], strlen(prefixes[i])) == 0)
            return true;
    return false;
}

/* The environment without what is meant for this process alone; strings are shared, free(3) the
 * array. */
static char **make_environment(void)
{
    size_t count = 0;
    size_t kept = 0;
    while (environ && environ[count])
        count++;
    char **environment = malloc((count + 1) * sizeof(environment[0]));
    if (!environment)
        return NULL;
    for (size_t i = 0; i < count; i++)
        if (!belongs_to_host(environ[i]))
            environment[kept++] = environ[i];
    environment[kept] = NULL;
    return environment;
}

/* What it gets from us; all close-on-exec and above READY_FD. */
struct gifts {
    int ready_fd, log_fd;
};

static int set_actions(posix_spawn_file_actions_t *actions, const struct gifts *gifts)
{
    int error = posix_spawn_file_actions_addopen(actions, 0, "/dev/null", O_RDONLY, 0);
    if (!error)
        error = posix_spawn_file_actions_addopen(actions, 1, "/dev/null", O_WRONLY, 0);
    if (!error)
        error = posix_spawn_file_actions_adddup2(actions, gifts->log_fd, 2);
    if (!error)
        error = posix_spawn_file_actions_adddup2(actions, gifts->ready_fd, READY_FD);
    if (!error)
        error = posix_spawn_file_actions_addclosefrom_np(actions, READY_FD + 1);
    if (!error)
        error = posix_spawn_file_actions_addchdir_np(actions, "/");
    return error;
}

static int set_attributes(posix_spawnattr_t *attributes)
{
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    int error = posix_spawnattr_setsigmask(attributes, &none);
    if (!error)
        error = posix_spawnattr_setsigdefault(attributes, &all);
    if (!error)
        error = posix_spawnattr_setflags(
            attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    return error;
}

/* Moves a descriptor above those that spawn sets up. -1 and errno on failure; closes `fd` in any
 * case. */
static int lift(int fd)
{
    int lifted = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, READY_FD + 1);
    int error = errno;
    if (fd >= 0)
        close(fd);
    errno = error;
    return lifted;
}

static int open_log(void)
{
    const char *path = getenv("HVDD_LOG");
    if (path && path[0])
        return lift(open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    return lift(memfd_create("hvdd-log", MFD_CLOEXEC));
}

/* *ready_p becomes our end of the readiness pipe. */
static int make_gifts(struct gifts *gifts_p, int *ready_p)
{
    int ends[2];
    struct gifts gifts = {.ready_fd = -1, .log_fd = open_log()};
    if (gifts.log_fd < 0)
        return client_error(HVD_ERR_LIMIT, "hvd_open: no log for the private hvdd (HVDD_LOG): %s",
                            strerror(errno));
    if (pipe2(ends, O_CLOEXEC) == 0) {
        gifts.ready_fd = lift(ends[1]);
        if (gifts.ready_fd < 0)
            close(ends[0]);
    }
    if (gifts.ready_fd < 0) {
        close(gifts.log_fd);
        return client_error(HVD_ERR_LIMIT, "hvd_open: no pipe: %s", strerror(errno));
    }
    *ready_p = ends[0];
    *gifts_p = gifts;
    return HVD_OK;
}

/* 0 or errno; *pid_p is the shell, which ends at once. */
static int spawn(char *program, char *directory, const struct client_mesh *mesh,
                 const struct gifts *gifts, pid_t *pid_p)
{
    static char script[] =
        "\"$0\" --private --runtime-dir \"$1\" --idle-exit " IDLE_EXIT " --ready-fd 3 "
        "${2:+--rendezvous \"$2\" --mesh-key \"$3\"} </dev/null &";
    char *arguments[] = {
        "sh", "-c", script, program, directory, mesh ? mesh->place : NULL, mesh ? mesh->key : NULL,
        NULL};
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    char **environment = make_environment();
    if (!environment)
        return ENOMEM;
    int error = posix_spawn_file_actions_init(&actions);
    if (error)
        goto out_environment;
    error = posix_spawnattr_init(&attributes);
    if (error)
        goto out_actions;
    error = set_actions(&actions, gifts);
    if (!error)
        error = set_attributes(&attributes);
    if (!error)
        error = posix_spawn(pid_p, "/bin/sh", &actions, &attributes, arguments, environment);
    posix_spawnattr_destroy(&attributes);
out_actions:
    posix_spawn_file_actions_destroy(&actions);
out_environment:
    free(environment);
    return error;
}

/* Reaps the shell. ECHILD (the host ignores or reaps its children) is as good. */
static void reap(pid_t pid)
{
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ;
}

/* The last line of the log. */
static void read_last_words(int log_fd, char *text_p, size_t text_size)
{
    struct stat st;
    size_t length = 0;
    if (fstat(log_fd, &st) == 0) {
        off_t room = (off_t)text_size - 1;
        off_t from = st.st_size > room ? st.st_size - room : 0;
        ssize_t got = pread(log_fd, text_p, (size_t)room, from);
        length = got > 0 ? (size_t)got : 0;
    }
    while (length > 0 && text_p[length - 1] == '\n')
        length--;
    text_p[length] = '\0';
    char *line = strrchr(text_p, '\n');
    if (line)
        memmove(text_p, line + 1, strlen(line + 1) + 1);
}

/* What of the environment it was given: "HVD_RENDEZVOUS is 'n1', HVD_KEY_FILE is '...': ". */
static void describe_mesh(const struct client_mesh *mesh, char *text_p, size_t text_size)
{
    text_p[0] = '\0';
    if (mesh)
        snprintf(text_p, text_size,
                 "HVD_RENDEZVOUS is '%.100s', HVD_KEY_FILE is '%.200s': ", mesh->place, mesh->key);
}

static int not_ready(int status, const char *given, const char *program, const char *what,
                     int log_fd)
{
    char words[512];
    read_last_words(log_fd, words, sizeof(words));
    return client_error(status, "hvd_open: %sthe private hvdd (%s) %s%s%s", given, program, what,
                        words[0] ? "; its last words: " : "", words);
}

static int await_ready(int ready_fd, int log_fd, const char *given, const char *program,
                       uint64_t deadline_ns)
{
    struct pollfd pollfd = {.fd = ready_fd, .events = POLLIN};
    char byte;
    for (;;) {
        int ready = poll(&pollfd, 1, hvi_deadline_poll_ms(deadline_ns));
        if (ready > 0)
            break;
        if (ready == 0 || errno != EINTR)
            return not_ready(HVD_ERR_ATTACH_TIMEOUT, given, program, "did not get ready in time",
                             log_fd);
    }
    if (read(ready_fd, &byte, 1) == 1)
        return HVD_OK;
    return not_ready(HVD_ERR_NO_DAEMON, given, program, "ended before it was ready", log_fd);
}

static int start(const char *directory, const struct client_mesh *mesh, uint64_t deadline_ns)
{
    char program[PATH_MAX];
    char path[PATH_MAX];
    char given[400];
    struct gifts gifts = {-1, -1};
    int ready_fd = -1;
    pid_t pid;
    int rc = find_program(program);
    if (rc != HVD_OK)
        return rc;
    if (!realpath(directory, path))
        return client_error(HVD_ERR_NO_DAEMON, "hvd_open: %s: %s", directory, strerror(errno));
    rc = make_gifts(&gifts, &ready_fd);
    if (rc != HVD_OK)
        return rc;
    int error = spawn(program, path, mesh, &gifts, &pid);
    close(gifts.ready_fd);
    if (error) {
        rc = client_error(HVD_ERR_NO_DAEMON, "hvd_open: cannot start %s: %s", program,
                          strerror(error));
    } else {
        reap(pid);
        describe_mesh(mesh, given, sizeof(given));
        rc = await_ready(ready_fd, gifts.log_fd, given, program, deadline_ns);
    }
    close(gifts.log_fd);
    close(ready_fd);
    return rc;
}

/* ---- one of many ---- */

static bool same_directory(int fd, const char *directory)
{
    struct stat locked, named;
    return fstat(fd, &locked) == 0 && stat(directory, &named) == 0 &&
           locked.st_ino == named.st_ino && locked.st_dev == named.st_dev;
}

/* Locks the directory; *fd_p is to be closed. */
static int lock(const char *directory, uint64_t deadline_ns, int *fd_p)
{
    struct timespec nap = {.tv_nsec = LOCK_NAP_NS};
    for (;;) {
        if (mkdir(directory, 0700) != 0 && errno != EEXIST)
            return client_error(HVD_ERR_NO_DAEMON, "hvd_open: mkdir %s: %s", directory,
                                strerror(errno));
        int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        if (fd < 0 && errno != ENOENT)
            return client_error(errno == EMFILE ? HVD_ERR_LIMIT : HVD_ERR_NO_DAEMON,
                                "hvd_open: %s: %s", directory, strerror(errno));
        if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0 && same_directory(fd, directory)) {
            *fd_p = fd;
            return HVD_OK;
        }
        if (fd >= 0)
            close(fd);
        if (hvi_deadline_passed(deadline_ns))
            return client_error(HVD_ERR_ATTACH_TIMEOUT,
                                "hvd_open: another process is starting a private hvdd in %s and "
                                "does not finish",
                                directory);
        nanosleep(&nap, NULL);
    }
}

/* Another process has started it while we waited for the lock. */
static bool listens(const char *directory)
{
    struct sockaddr_un path = {.sun_family = AF_UNIX};
    int length = snprintf(path.sun_path, sizeof(path.sun_path), "%s/attach.sock", directory);
    if (length < 0 || (size_t)length >= sizeof(path.sun_path))
        return false;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return false;
    bool connected =
        connect(fd, (const struct sockaddr *)&path, sizeof(path)) == 0 || errno == EAGAIN;
    close(fd);
    return connected;
}

int client_autostart(const char *directory, const struct client_mesh *mesh, uint64_t deadline_ns,
                     bool *started_p)
{
    int lock_fd = -1;
    int rc = lock(directory, deadline_ns, &lock_fd);
    if (rc != HVD_OK)
        return rc;
    bool running = listens(directory);
    if (!running)
        rc = start(directory, mesh, deadline_ns);
    close(lock_fd);
    if (rc == HVD_OK)
        *started_p = !running;
    return rc;
}
