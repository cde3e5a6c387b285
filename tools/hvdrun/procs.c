/* SPDX-License-Identifier: Apache-2.0
 * Starting: a close-on-exec pipe tells the parent exec's errno; end of file means that the program
 * runs.
 *
 * Ending: a child that has ended stays a zombie until hvdd has been told how it ended
 * (run_proc_look does not reap). A zombie also keeps its process group's number from being reused,
 * so signals to the group are safe until then. */
#include "tools/hvdrun/procs.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- in the child, between fork and exec: async-signal-safe calls only ---- */

static void restore_heritage(const struct run_heritage *heritage)
{
    struct rlimit limit;
    sigaction(SIGPIPE, &heritage->pipe_action, NULL);
    sigaction(SIGCHLD, &heritage->child_action, NULL);
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != heritage->nofile_soft) {
        limit.rlim_cur = (rlim_t)heritage->nofile_soft;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
    sigprocmask(SIG_SETMASK, &heritage->mask, NULL);
}

static void bind_to_core(int core)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)core - 1, &set);
    sched_setaffinity(0, sizeof set, &set); /* slower, not wrong, if it does not work */
}

static void keep_descriptors(const int *fds)
{
    for (; fds != NULL && *fds >= 0; fds++)
        fcntl(*fds, F_SETFD, 0);
}

/* dup2 leaves close-on-exec set when both numbers are the same. */
static int place(int fd, int at)
{
    if (fd == at)
        return fcntl(fd, F_SETFD, 0);
    return dup2(fd, at);
}

_Noreturn static void child(const struct run_spawn *spawn, pid_t parent, int error_fd)
{
    setpgid(0, 0);
    if (spawn->death_signal != 0) {
        prctl(PR_SET_PDEATHSIG, spawn->death_signal);
        if (getppid() != parent) /* it died before the line above */
            _exit(1);
    }
    if (spawn->announce != NULL)
        spawn->announce(spawn->guard, getpid());
    if (place(spawn->stdin_fd, 0) >= 0 && place(spawn->stdout_fd, 1) >= 0 &&
        place(spawn->stderr_fd, 2) >= 0) {
        keep_descriptors(spawn->keep_fds);
        restore_heritage(spawn->heritage);
        if (spawn->core > 0)
            bind_to_core(spawn->core);
        environ = spawn->envp; /* whose PATH counts */
        execvp(spawn->argv[0], spawn->argv);
    }
    const int error = errno;
    const ssize_t written = write(error_fd, &error, sizeof error);
    _exit(written == (ssize_t)sizeof error ? 127 : 126);
}

/* ---- in hvdrun ---- */

static int exec_error(int fd)
{
    int error = 0;
    ssize_t length;
    do {
        length = read(fd, &error, sizeof error);
    } while (length < 0 && errno == EINTR);
    return length == (ssize_t)sizeof error ? error : 0;
}

/* What was started and not reaped. */
static pid_t *started;
static size_t started_count;

static bool make_room(void)
{
    pid_t *more = realloc(started, (started_count + 1) * sizeof *started);
    if (more != NULL)
        started = more;
    return more != NULL;
}

static void forget(pid_t pid)
{
    for (size_t i = 0; i < started_count; i++) {
        if (started[i] == pid)
            started[i--] = started[--started_count];
    }
}

bool run_proc_is_started(pid_t pid)
{
    bool is = false;
    for (size_t i = 0; i < started_count; i++)
        is |= started[i] == pid;
    return is;
}

int run_proc_start(const struct run_spawn *spawn, struct run_proc *proc_p)
{
    int pipe_fds[2];
    if (!make_room())
        return ENOMEM;
    if (pipe2(pipe_fds, O_CLOEXEC) != 0)
        return errno;
    const pid_t parent = getpid();
    const pid_t pid = fork();
    if (pid == 0)
        child(spawn, parent, pipe_fds[1]);
    int error = pid < 0 ? errno : 0;
    close(pipe_fds[1]);
    if (error == 0) {
        setpgid(pid, pid); /* so that the group exists whoever runs first */
        error = exec_error(pipe_fds[0]);
    }
    close(pipe_fds[0]);
    const int pidfd = error == 0 ? hvi_pidfd_open(pid) : -1;
    if (error == 0 && pidfd < 0)
        error = errno;
    if (error != 0) {
        if (pid > 0) {
            kill(-pid, SIGKILL);
            waitpid(pid, NULL, 0);
        }
        return error;
    }
    started[started_count++] = pid;
    *proc_p = (struct run_proc){.pid = pid, .pidfd = pidfd, .fate = {.kind = HVI_FATE_ALIVE}};
    return 0;
}

static void close_pairs(int pairs[3][2])
{
    for (int i = 0; i < 3; i++)
        for (int side = 0; side < 2; side++)
            if (pairs[i][side] >= 0)
                close(pairs[i][side]);
}

int run_proc_start_piped(struct run_spawn *spawn, int fds_p[3], struct run_proc *proc_p)
{
    int pairs[3][2] = {{-1, -1}, {-1, -1}, {-1, -1}};
    int error = 0;
    for (int i = 0; i < 3 && error == 0; i++)
        error = pipe2(pairs[i], O_CLOEXEC) != 0 ? errno : 0;
    spawn->stdin_fd = pairs[0][0];
    spawn->stdout_fd = pairs[1][1];
    spawn->stderr_fd = pairs[2][1];
    if (error == 0)
        error = run_proc_start(spawn, proc_p);
    for (int i = 0; i < 3 && error == 0; i++) {
        const int ours = i == 0 ? 1 : 0;
        fds_p[i] = pairs[i][ours];
        pairs[i][ours] = -1;
    }
    close_pairs(pairs);
    if (error != 0)
        return error;
    fcntl(fds_p[1], F_SETFL, O_NONBLOCK);
    fcntl(fds_p[2], F_SETFL, O_NONBLOCK);
    return 0;
}

void run_proc_signal(const struct run_proc *proc, int signal_number)
{
    if (proc->pid > 0 && !proc->reaped)
        kill(-proc->pid, signal_number);
}

bool run_proc_look(struct run_proc *proc)
{
    siginfo_t info = {0};
    if (waitid(P_PID, (id_t)proc->pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0)
        return false;
    proc->fate = hvi_fate_from_child(&info);
    return true;
}

void run_proc_reap(struct run_proc *proc)
{
    if (proc->pid <= 0 || proc->reaped)
        return;
    waitpid(proc->pid, NULL, 0);
    forget(proc->pid);
    proc->reaped = true;
    if (proc->pidfd >= 0)
        close(proc->pidfd);
    proc->pidfd = -1;
}

/* ---- environment ---- */

static bool same_name(const char *a, const char *b)
{
    const size_t length = strcspn(a, "=");
    return strncmp(a, b, length) == 0 && (b[length] == '=' || b[length] == '\0');
}

static bool is_replaced(const char *entry, char *const *settings)
{
    for (; *settings != NULL; settings++)
        if (same_name(*settings, entry))
            return true;
    return false;
}

static size_t count_entries(char *const *list)
{
    size_t count = 0;
    while (list[count] != NULL)
        count++;
    return count;
}

char **run_env_make(char **base, char *const *settings)
{
    char **env = calloc(count_entries(base) + count_entries(settings) + 1, sizeof *env);
    size_t used = 0;
    if (env == NULL)
        return NULL;
    for (; *base != NULL; base++)
        if (!is_replaced(*base, settings) && (env[used++] = strdup(*base)) == NULL)
            goto out_of_memory;
    for (; *settings != NULL; settings++) {
        const bool unset = (*settings)[strcspn(*settings, "=")] == '\0'; /* "NAME": remove it */
        if (!unset && !is_replaced(*settings, settings + 1) &&
            (env[used++] = strdup(*settings)) == NULL)
            goto out_of_memory;
    }
    return env;
out_of_memory:
    run_env_free(env);
    return NULL;
}

void run_env_free(char **env)
{
    if (env == NULL)
        return;
    for (char **entry = env; *entry != NULL; entry++)
        free(*entry);
    free(env);
}
