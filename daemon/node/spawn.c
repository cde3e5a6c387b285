/* SPDX-License-Identifier: Apache-2.0
 * Engine processes, and how the gate is started; both where no unit does that (unit.c).
 * posix_spawn (vfork underneath) keeps the start cheap. The engine gets
 * descriptors 0..3 and no other: /dev/null, our stdout and stderr, and its end of the link. It is a
 * process group of its own, so that a Ctrl-C in the terminal reaches hvdd alone, and nothing ties its
 * life to ours: jobs outlive hvdd.
 *
 * It stays in our session, which is that of the ranks where hvdrun or one of them has started us: the kernel
 * shares cores among sessions, unless it is told otherwise (sched_autogroup_enabled), and a yield (base/yield.h)
 * gives the core to threads of the same session alone. Gradients of ResNet-50 of two ranks on two cores take 8.1 ms so, and took
 * 9.7 with a session for each process (docs/measurements/2026-11-27-sessions.md). */
#include "daemon/node/spawn.h"
#include "daemon/node/node.h"
#include "daemon/node/unit.h"

#include "base/beside.h"
#include "base/fate.h"
#include "base/status.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define LINK_FD 3 /* in the engine */

extern char **environ;

static void beside_engine(const struct node *node, const char *name, char *path_p, size_t path_size)
{
    const char *slash = strrchr(node->engine_path, '/');
    int folder = slash == NULL ? 0 : (int)(slash + 1 - node->engine_path);

    snprintf(path_p, path_size, "%.*s%s", folder < HVI_WIRE_PATH ? folder : HVI_WIRE_PATH,
             node->engine_path, name);
}

/* `given`: by an option, or "". */
static void choose_path(const struct node *node, const char *given, const char *name, char *path_p,
                        size_t path_size)
{
    if (given[0] != '\0')
        snprintf(path_p, path_size, "%s", given);
    else
        hvi_beside_find(name, path_p, path_size);
    if (given[0] == '\0' && access(path_p, X_OK) != 0)
        beside_engine(node, name, path_p, path_size);
}

static void choose_paths(struct node *node)
{
    if (node->config.engine[0] != '\0')
        snprintf(node->engine_path, sizeof(node->engine_path), "%s", node->config.engine);
    else
        hvi_beside_find("hvdd-engine", node->engine_path, sizeof(node->engine_path));
    choose_path(node, node->config.gate, "hvdd-gate", node->gate.path, sizeof(node->gate.path));
    choose_path(node, node->config.gpu_program, "hvdd-gpu", node->gpu_path, sizeof(node->gpu_path));
}

/* Opens a program for all of hvdd's life; -1 after logging. */
static int open_program(const char *path, const char *name)
{
    char sentence[100];
    int fd = open(path, O_PATH | O_CLOEXEC);

    if (fd >= 0 && access(path, X_OK) == 0)
        return fd;
    snprintf(sentence, sizeof(sentence), "cannot run hvdd-%s; give its path with --%s", name, name);
    HVI_LOG(HVI_LOG_ERROR, "spawn", "no-program", sentence, "path=%s error=\"%s\"", path,
            strerror(errno));
    if (fd >= 0)
        close(fd);
    return -1;
}

int node_spawn_find(struct node *node)
{
    const struct node_config *config = &node->config;

    choose_paths(node);
    node->engine_fd = node->gate.program_fd = -1;
    if (config->engine_socket[0] == '\0') {
        node->engine_fd = open_program(node->engine_path, "engine");
        if (node->engine_fd < 0)
            return HVI_ERR_DAEMON;
    }
    if (config->gate_socket[0] == '\0') {
        node->gate.program_fd = open_program(node->gate.path, "gate");
        if (node->gate.program_fd < 0)
            return HVI_ERR_DAEMON;
    }
    return HVI_OK;
}

/* Our environment without what systemd told to us alone, and without `unset`, a name, if it is not NULL. Free the array
 * only. */
static char **child_environment(const char *unset)
{
    const char *const ours[] = {"NOTIFY_SOCKET", "LISTEN_FDS",   "LISTEN_PID", "LISTEN_FDNAMES",
                                "WATCHDOG_USEC", "WATCHDOG_PID", unset};
    size_t count = 0, kept = 0;
    char **copy;

    while (environ[count] != NULL)
        count++;
    copy = calloc(count + 1, sizeof(*copy));
    for (size_t i = 0; copy != NULL && i < count; i++) {
        size_t length = strcspn(environ[i], "=");
        bool is_ours = false;
        for (size_t k = 0; k < sizeof(ours) / sizeof(ours[0]) && ours[k] != NULL; k++)
            is_ours =
                is_ours || (strlen(ours[k]) == length && strncmp(environ[i], ours[k], length) == 0);
        if (!is_ours)
            copy[kept++] = environ[i];
    }
    return copy;
}

/* A process group or a session of its own, no signal blocked, and all at their default but two, which we ignore (stop.c):
 *
 *   SIGHUP   The kernel sends it and SIGCONT when we die, to a process of our session that is stopped.
 *   SIGTTOU  It would stop a process that writes its log to a terminal with `stty tostop`. */
static int set_attributes(posix_spawnattr_t *attributes, bool session)
{
    sigset_t all, none;

    sigfillset(&all);
    sigdelset(&all, SIGHUP);
    sigdelset(&all, SIGTTOU);
    sigemptyset(&none);
    posix_spawnattr_setsigdefault(attributes, &all);
    posix_spawnattr_setsigmask(attributes, &none);
    const int apart = session ? POSIX_SPAWN_SETSID : POSIX_SPAWN_SETPGROUP;
    return posix_spawnattr_setflags(
        attributes, (short)(POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK | apart));
}

static int set_descriptors(posix_spawn_file_actions_t *actions, const struct node_spawn_io *io)
{
    int error = io->in_fd >= 0
                    ? posix_spawn_file_actions_adddup2(actions, io->in_fd, 0)
                    : posix_spawn_file_actions_addopen(actions, 0, "/dev/null", O_RDONLY, 0);

    for (int fd = 1; fd <= 2 && error == 0 && io->out_fd >= 0; fd++)
        error = posix_spawn_file_actions_adddup2(actions, io->out_fd, fd);
    if (error == 0 && io->link_fd >= 0)
        error = posix_spawn_file_actions_adddup2(actions, io->link_fd, LINK_FD);
    if (error == 0)
        error = posix_spawn_file_actions_addclosefrom_np(actions, LINK_FD + (io->link_fd >= 0));
    return error;
}

int node_spawn_start(const char *path, char *const argv[], const struct node_spawn_io *io,
                     const char *unset, pid_t *pid_p)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    char **environment = child_environment(unset);
    int error = ENOMEM;

    if (environment == NULL)
        return ENOMEM;
    if (posix_spawn_file_actions_init(&actions) != 0)
        goto no_actions;
    if (posix_spawnattr_init(&attributes) != 0)
        goto no_attributes;
    error = set_descriptors(&actions, io);
    if (error == 0)
        error = set_attributes(&attributes, io->session);
    if (error == 0)
        error = posix_spawn(pid_p, path, &actions, &attributes, argv, environment);
    posix_spawnattr_destroy(&attributes);
no_attributes:
    posix_spawn_file_actions_destroy(&actions);
no_actions:
    free(environment);
    return error;
}

int node_spawn_program(const char *path, int program_fd, const char *name, int link_fd,
                       pid_t *pid_p)
{
    const struct node_spawn_io io = {.in_fd = -1, .out_fd = -1, .link_fd = link_fd};
    char opened[64], *argv[] = {(char *)(uintptr_t)name, NULL};
    int error = node_spawn_start(path, argv, &io, NULL, pid_p);

    if (error != ENOENT)
        return error;
    snprintf(opened, sizeof(opened), "/proc/%d/fd/%d", (int)getpid(), program_fd);
    return node_spawn_start(opened, argv, &io, NULL, pid_p);
}

uint64_t node_spawn_region_limit(const struct node *node)
{
    if (node->config.region_limit != 0)
        return (uint64_t)node->config.region_limit;
    return (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGE_SIZE) / 2;
}

/* The engine takes from `trainer_fd` as whose it runs; -1: it stays hvdd's user's. */
static int send_start(struct node *node, struct node_engine *engine, int trainer_fd)
{
    const struct node_generation *generation = engine->generation;
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_ENGINE_START};
    struct hvi_engine_start *start = &msg.engine_start;

    snprintf(start->job, sizeof(start->job), "%s", generation->job->name.id);
    start->generation = generation->number;
    start->size = generation->size;
    start->uid = generation->job->name.uid;
    start->threads = (uint32_t)node->config.threads;
    start->regions_max = (uint32_t)node->config.regions_per_session;
    start->region_bytes_max = node_spawn_region_limit(node);
    start->stall_warn_ns = (uint64_t)node->config.stall_warn;
    snprintf(start->attach_path, sizeof(start->attach_path), "%s", node->attach_path);
    start->log_level = (int32_t)hvi_log_level();
    start->linger_ns = (uint64_t)node->config.engine_linger; /* 0: link.c tells it at once */
    start->silence_ns = (uint64_t)node->config.engine_silence;
    start->seats = node_generation_spans(generation) ? generation->seats : 0;
    start->gpu = node->config.gpu != 0;
    start->region_asks = !node->private_mode;
    node_mesh_fill_engine(node, start);
    node_mesh_engine_new(engine);
    return node_link_send(engine, &msg, &trainer_fd, trainer_fd >= 0 ? 1 : 0);
}

static int engine_ended(sd_event_source *source, const siginfo_t *info, void *user)
{
    struct node_engine *engine = user;
    struct hvi_fate fate = hvi_fate_from_child(info);
    char text[128];

    (void)source;
    hvi_fate_describe(fate, text, sizeof(text));
    node_link_end(engine, fate.kind == HVI_FATE_EXITED && fate.code == 0, text);
    return 0;
}

static int stranger_ended(sd_event_source *source, int fd, uint32_t events, void *user)
{
    struct node_engine *engine = user;
    struct hvi_fate fate = hvi_fate_of_gone(engine->pid, fd);
    char text[128];

    (void)source, (void)events;
    hvi_fate_describe(fate, text, sizeof(text));
    node_link_end(engine, fate.kind != HVI_FATE_SIGNALED && fate.code == 0, text);
    return 0;
}

int node_spawn_watch(struct node_engine *engine)
{
    sd_event *event = engine->node->event;

    if (engine->child)
        return sd_event_add_child_pidfd(event, &engine->exit, engine->pidfd, WEXITED, engine_ended,
                                        engine);
    return sd_event_add_io(event, &engine->exit, engine->pidfd, EPOLLIN, stranger_ended, engine);
}

/* A child that nobody will watch. */
static void discard_child(pid_t pid, int pidfd)
{
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0); /* a killed process that has just been started ends at once */
    if (pidfd >= 0)
        close(pidfd);
}

static int fail_spawn(const struct node_generation *generation, const char *step, int error,
                      char *text_p, size_t text_size)
{
    snprintf(text_p, text_size,
             "hvdd could not start the engine of job '%s' (%s: %s); see hvdd's log",
             generation->job->name.id, step, strerror(error));
    HVI_LOG(HVI_LOG_ERROR, "spawn", "no-engine", "cannot start the job's engine",
            "job=%s step=%s error=\"%s\"", generation->job->name.id, step, strerror(error));
    return HVI_ERR_DAEMON;
}

void node_spawn_log_started(const struct node_engine *engine)
{
    HVI_LOG_OF(engine->generation->job->name.uid, HVI_LOG_INFO, "spawn", "engine-started",
               "an engine was started", "job=%s generation=%llu pid=%d",
               engine->generation->job->name.id, (unsigned long long)engine->generation->number,
               (int)engine->pid);
}

static int ask_unit(struct node *node, struct node_generation *generation, int trainer_fd,
                    char *text_p, size_t text_size)
{
    const char *path = node->config.engine_socket;
    int fd = node_unit_connect(path);
    struct node_engine *engine = fd < 0 ? NULL : node_link_new(node, generation, fd, 0, -1, false);

    if (engine == NULL) {
        int error = errno;
        if (fd >= 0)
            close(fd);
        return fail_spawn(generation, path, error, text_p, text_size);
    }
    if (send_start(node, engine, trainer_fd) != HVI_OK)
        node_spawn_kill(engine, "it could not be told what to do");
    return HVI_OK;
}

int node_spawn_engine(struct node *node, struct node_generation *generation, int trainer_fd,
                      char *text_p, size_t text_size)
{
    struct node_engine *engine;
    int link[2], pidfd, error;
    pid_t pid;

    if (node->config.engine_socket[0] != '\0')
        return ask_unit(node, generation, trainer_fd, text_p, text_size);
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, link) != 0)
        return fail_spawn(generation, "socketpair", errno, text_p, text_size);
    error = node_spawn_program(node->engine_path, node->engine_fd, "hvdd-engine", link[1], &pid);
    close(link[1]);
    if (error != 0) {
        close(link[0]);
        return fail_spawn(generation, node->engine_path, error, text_p, text_size);
    }
    pidfd = hvi_pidfd_open(pid);
    engine = pidfd < 0 ? NULL : node_link_new(node, generation, link[0], pid, pidfd, true);
    if (engine == NULL) {
        error = errno;
        discard_child(pid, pidfd); /* first: an engine that sees its link end logs an error */
        close(link[0]);
        return fail_spawn(generation, "watch", error, text_p, text_size);
    }
    node_spawn_log_started(engine);
    if (send_start(node, engine, trainer_fd) != HVI_OK)
        node_spawn_kill(engine, "it could not be told what to do");
    return HVI_OK;
}

void node_spawn_kill(struct node_engine *engine, const char *why)
{
    engine->generation->stopping = true;
    HVI_LOG(HVI_LOG_ERROR, "spawn", "engine-killed", why, "job=%s generation=%llu pid=%d",
            engine->generation->job->name.id, (unsigned long long)engine->generation->number,
            (int)engine->pid);
    if (engine->pidfd < 0) {
        if (engine->link_fd >= 0)
            shutdown(engine->link_fd, SHUT_RDWR); /* link.c sees it end, and its program too */
        return;
    }
    if (pidfd_send_signal(engine->pidfd, SIGKILL, NULL, 0) == 0 || errno == ESRCH)
        return;
    HVI_LOG(HVI_LOG_ERROR, "spawn", "cannot-kill",
            "the engine could not be killed, and is forgotten if it does not end; where engines "
            "become users, hvdd needs CAP_KILL (ENGINES AS USERS in hvdd(8))",
            "pid=%d error=\"%s\"", (int)engine->pid, strerror(errno));
    node_link_give_up(engine);
}
