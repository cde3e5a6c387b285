/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/hvdrun/daemon.h"

#include "base/clock.h"
#include "base/interface.h"
#include "base/mps.h"
#include "base/runtime.h"
#include "base/status.h"
#include "base/types.h"
#include "base/utf8.h"
#include "tools/common/mesh_key.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define STOP_NS        (7 * HVI_NS_SEC) /* hvdd itself gives an engine 5 s */
#define NAME_TRIES     100
#define FIRST_WORDS    1024 /* of a daemon that fails to start */
#define ARGUMENTS_MAX  24
#define ARGUMENT_BYTES 64

static const char *find_parent(void)
{
    const char *runtime = hvi_runtime_dir(geteuid());
    return runtime != NULL && strlen(runtime) + 16 <= HVD_ADMIN_DIR_MAX ? runtime : "/tmp";
}

/* mkdtemp would make the directory before the guard can know its name. */
static int make_dir(struct run_guard *guard, struct run_daemon *daemon, char *text_p, size_t size)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789";
    unsigned char random[6];
    char name[sizeof random + 1] = "";
    const char *parent = find_parent();
    int error = EIO;
    for (int tries = 0; tries < NAME_TRIES; tries++) {
        if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
            continue;
        for (size_t i = 0; i < sizeof random; i++)
            name[i] = letters[random[i] % (sizeof letters - 1)];
        snprintf(daemon->dir, sizeof daemon->dir, "%.80s/hvdrun-%s", parent, name);
        if (access(daemon->dir, F_OK) == 0)
            continue;
        run_guard_watch_dir(guard, daemon->dir);
        if (mkdir(daemon->dir, 0700) == 0)
            return HVI_OK;
        error = errno;
    }
    snprintf(text_p, size, "cannot make a directory in %s: %s", parent, strerror(error));
    daemon->dir[0] = '\0';
    run_guard_watch_dir(guard, "");
    return HVI_ERR_LIMIT;
}

/* Flat, but for what a hvdd that was killed leaves of its MPS. Anything else than our own name is left alone. */
void run_daemon_remove_dir(const char *dir)
{
    if (strstr(dir, "/hvdrun-") == NULL)
        return;
    DIR *stream = opendir(dir);
    if (stream == NULL)
        return;
    hvi_mps_remove(dir);
    const struct dirent *entry;
    while ((entry = readdir(stream)) != NULL)
        if (entry->d_name[0] != '.' || strlen(entry->d_name) > 2)
            unlinkat(dirfd(stream), entry->d_name, 0);
    closedir(stream);
    rmdir(dir);
}

/* --hvdd, else hvdd beside this program, else the one in PATH. */
static void find_program(const struct run_options *options, char *path_p, size_t size)
{
    char self[PATH_MAX - 8];
    if (options->hvdd != NULL) {
        snprintf(path_p, size, "%s", options->hvdd);
        return;
    }
    const ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    self[length > 0 ? length : 0] = '\0';
    char *slash = strrchr(self, '/');
    if (slash != NULL) {
        *slash = '\0';
        snprintf(path_p, size, "%s/hvdd", self);
        if (access(path_p, X_OK) == 0)
            return;
    }
    snprintf(path_p, size, "hvdd");
}

struct arguments {
    char *list[ARGUMENTS_MAX];
    size_t count;
    char numbers[2][ARGUMENT_BYTES];
};

static void add(struct arguments *arguments, const char *name, const char *value)
{
    arguments->list[arguments->count++] = (char *)(uintptr_t)name;
    if (value != NULL)
        arguments->list[arguments->count++] = (char *)(uintptr_t)value;
}

static void make_arguments(const struct run_daemon_plan *how, const char *program, const char *dir,
                           int ready_fd, int parent_fd, struct arguments *out)
{
    const struct run_options *options = how->options;
    memset(out, 0, sizeof *out);
    snprintf(out->numbers[0], ARGUMENT_BYTES, "%d", ready_fd);
    snprintf(out->numbers[1], ARGUMENT_BYTES, "%d", parent_fd);
    add(out, program, NULL);
    add(out, "--private=yes", NULL);
    add(out, "--runtime-dir", dir);
    add(out, "--ready-fd", out->numbers[0]);
    add(out, "--parent-fd", out->numbers[1]);
    add(out, "--log-level", options->log_level != NULL ? options->log_level : "warning");
    if (options->gpu_mps)
        add(out, "--gpu-mps=yes", NULL);
    if (how->mesh.listen != NULL)
        add(out, "--mesh-listen", how->mesh.listen);
    if (how->mesh.join != NULL)
        add(out, "--mesh-join", how->mesh.join);
}

/* hvdd finds it by its name. */
static int write_key(const char *dir, const char *key, char *text_p, size_t size)
{
    char path[HVD_ADMIN_DIR_MAX + 16];
    snprintf(path, sizeof path, "%s/mesh.key", dir);
    if (key == NULL || mesh_key_write(path, key) == 0)
        return HVI_OK;
    snprintf(text_p, size, "cannot write %s: %s", path, strerror(errno));
    return HVI_ERR_LIMIT;
}

uint32_t run_daemon_mesh_port(const struct run_daemon *daemon)
{
    char path[HVD_ADMIN_DIR_MAX + 16];
    unsigned port = 0;
    snprintf(path, sizeof path, "%s/mesh.port", daemon->dir);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return 0;
    if (fscanf(file, "%5u", &port) != 1)
        port = 0;
    fclose(file);
    return port;
}

/* A daemon of ours must not take hvdrun's own service manager for its own. */
static char *const daemon_settings[] = {
    "NOTIFY_SOCKET",  "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS",
    "LISTEN_FDNAMES", "LISTEN_PID",    "HVD_ADDRESS",  NULL};

static int spawn(const struct run_daemon_plan *how, struct run_daemon *daemon, const int ready[2],
                 const int parent[2], const int log[2], char *text_p, size_t size)
{
    char program[PATH_MAX];
    struct arguments arguments;
    const int keep[] = {ready[1], parent[0], -1};
    const int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    find_program(how->options, program, sizeof program);
    make_arguments(how, program, daemon->dir, ready[1], parent[0], &arguments);
    char **env = run_env_make(environ, daemon_settings);
    const struct run_spawn plan = {
        .argv = arguments.list,
        .envp = env,
        .stdin_fd = null_fd,
        .stdout_fd = null_fd,
        .stderr_fd = log[1],
        .keep_fds = keep,
        .heritage = how->heritage,
        .announce = run_guard_watch_daemon,
        .guard = how->guard,
    };
    const int error = null_fd < 0 || env == NULL ? ENOMEM : run_proc_start(&plan, &daemon->proc);
    run_env_free(env);
    if (null_fd >= 0)
        close(null_fd);
    if (error == 0)
        return HVI_OK;
    snprintf(text_p, size, "cannot start %s: %s%s", program, strerror(error),
             error == ENOENT ? " (name it with --hvdd, or use a running one with --address)" : "");
    return HVI_ERR_NO_DAEMON;
}

/* What a daemon that failed has written so far, in one line: the sentence may be that of one host of many. */
static void read_words(int fd, char *words, size_t size)
{
    struct pollfd item = {.fd = fd, .events = POLLIN};
    size_t used = 0;
    while (used + 1 < size && poll(&item, 1, 50) > 0) {
        const ssize_t length = read(fd, words + used, size - 1 - used);
        if (length <= 0)
            break;
        used += (size_t)length;
    }
    words[used] = '\0';
    while (used > 0 && words[used - 1] == '\n')
        words[--used] = '\0';
    for (size_t i = 0; i < used; i++)
        if (words[i] == '\n')
            words[i] = ' ';
}

static void say_not_reached(const char *place, const char *words, char *text_p, size_t size)
{
    char own[64];
    hvi_interface_from(place, own, sizeof own);
    snprintf(text_p, size,
             "its hvdd has not reached that of the first host at %s%s%s in time; is there a "
             "firewall between the two? The ports of HVD_PORT_RANGE (9600-9631) have to be "
             "open%s%s",
             place, own[0] != '\0' ? " from " : "", own, words[0] != '\0' ? ": " : "", words);
}

/* Waits for the byte on ready_fd. HVI_OK, or an error with a sentence. */
static int wait_ready(const struct run_daemon_plan *plan, const struct run_daemon *daemon,
                      int ready_fd, char *text_p, size_t size)
{
    char words[FIRST_WORDS];
    char byte;
    const char *story = "did not get ready in time";
    const uint64_t deadline_ns = hvi_deadline_after((int64_t)plan->options->start_timeout_ns);
    struct pollfd items[] = {{.fd = ready_fd, .events = POLLIN},
                             {.fd = plan->signal_fd, .events = POLLIN}};
    int found;
    do {
        found = poll(items, 2, hvi_deadline_poll_ms(deadline_ns));
    } while (found < 0 && errno == EINTR);
    if (found > 0 && items[0].revents != 0) {
        if (read(ready_fd, &byte, 1) == 1)
            return HVI_OK;
        story = "failed to start";
    } else if (found > 0) {
        snprintf(text_p, size, "interrupted while hvdd was starting");
        return HVI_ERR_CANCELLED;
    }
    read_words(daemon->stderr_fd, words, sizeof words);
    if (found == 0 && plan->mesh.join != NULL)
        say_not_reached(plan->mesh.join, words, text_p, size);
    else
        snprintf(text_p, size, "the private hvdd %s%s%s", story, words[0] != '\0' ? ": " : "",
                 words);
    return HVI_ERR_NO_DAEMON;
}

static void close_pair(int pair[2])
{
    for (int i = 0; i < 2; i++)
        if (pair[i] >= 0)
            close(pair[i]);
}

static int start(const struct run_daemon_plan *plan, struct run_daemon *daemon, char *text_p,
                 size_t size)
{
    int ready[2] = {-1, -1};
    int parent[2] = {-1, -1};
    int log[2] = {-1, -1};
    int status = HVI_ERR_LIMIT;
    if (pipe2(ready, O_CLOEXEC) != 0 || pipe2(parent, O_CLOEXEC) != 0 || pipe2(log, O_CLOEXEC) != 0)
        snprintf(text_p, size, "cannot make a pipe: %s", strerror(errno));
    else
        status = spawn(plan, daemon, ready, parent, log, text_p, size);
    if (status != HVI_OK) {
        close_pair(parent);
        close_pair(log);
        close_pair(ready);
        return status;
    }
    close(ready[1]);
    close(parent[0]);
    close(log[1]);
    daemon->parent_fd = parent[1];
    fcntl(daemon->parent_fd, F_SETFL, O_WRONLY | O_NONBLOCK);
    daemon->stderr_fd = log[0];
    status = wait_ready(plan, daemon, ready[0], text_p, size);
    close(ready[0]);
    return status;
}

int run_daemon_start(const struct run_daemon_plan *plan, struct run_daemon *daemon_p, char *text_p,
                     size_t text_size)
{
    *daemon_p = (struct run_daemon){.parent_fd = -1, .stderr_fd = -1, .proc = {.pidfd = -1}};
    int status = make_dir(plan->guard, daemon_p, text_p, text_size);
    if (status == HVI_OK)
        status = write_key(daemon_p->dir, plan->mesh.key, text_p, text_size);
    if (status == HVI_OK)
        status = start(plan, daemon_p, text_p, text_size);
    if (status != HVI_OK)
        run_daemon_stop(daemon_p);
    return status;
}

void run_daemon_tell_lost(const struct run_daemon *daemon, const char *how)
{
    char line[HVI_TEXT_MAX + 1];
    const int length = (int)hvi_utf8_cut(how, strlen(how), sizeof line - 2);
    if (daemon->parent_fd < 0)
        return;
    snprintf(line, sizeof line, "%.*s\n", length, how);
    /* One that is full is read by nobody; a line is written whole. */
    while (write(daemon->parent_fd, line, strlen(line)) < 0 && errno == EINTR)
        continue;
}

static void wait_end(struct run_daemon *daemon, uint64_t deadline_ns)
{
    struct pollfd item = {.fd = daemon->proc.pidfd, .events = POLLIN};
    while (!run_proc_look(&daemon->proc)) {
        if (hvi_deadline_passed(deadline_ns))
            return;
        poll(&item, 1, hvi_deadline_poll_ms(deadline_ns));
    }
}

void run_daemon_stop(struct run_daemon *daemon)
{
    if (daemon->parent_fd >= 0)
        close(daemon->parent_fd);
    daemon->parent_fd = -1;
    if (daemon->proc.pid > 0 && !daemon->proc.reaped) {
        kill(daemon->proc.pid, SIGTERM);
        wait_end(daemon, hvi_deadline_after((int64_t)STOP_NS));
        run_proc_signal(&daemon->proc, SIGKILL); /* if it would not go, or left something behind */
        run_proc_reap(&daemon->proc);
    }
    if (daemon->stderr_fd >= 0)
        close(daemon->stderr_fd);
    daemon->stderr_fd = -1;
    if (daemon->dir[0] != '\0')
        run_daemon_remove_dir(daemon->dir);
    daemon->dir[0] = '\0';
}
