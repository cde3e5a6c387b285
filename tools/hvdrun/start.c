/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/hvdrun/start.h"

#include "base/mps.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define SETTINGS_MAX     (40 + 2 * RUN_EXPORTS_MAX + RUN_VARIABLES_MAX + RUN_VARIABLES_OURS)
#define PIPE_BYTES       (256 * 1024)
#define PIPE_BYTES_RANKS 32 /* with more ranks, large pipes would use up the user's pipe budget */
#define CONNECTIONS_VAR  "CUDA_DEVICE_MAX_CONNECTIONS"
#define CONNECTIONS      "8"

struct settings {
    char texts[SETTINGS_MAX][256];
    char *list[SETTINGS_MAX + 1];
    size_t count;
};

static void set(struct settings *settings, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void set(struct settings *settings, const char *format, ...)
{
    va_list args;
    char *text = settings->texts[settings->count];
    va_start(args, format);
    vsnprintf(text, sizeof settings->texts[0], format, args);
    va_end(args);
    settings->list[settings->count++] = text;
}

static void identity(const struct run_node_plan *plan, int index, struct settings *settings)
{
    static const char *const families[] = {"HVD", "HOROVOD"};
    const struct run_place *place = &plan->places[index];
    for (size_t i = 0; i < 2; i++) {
        set(settings, "%s_RANK=%d", families[i], place->rank);
        set(settings, "%s_SIZE=%d", families[i], plan->size);
        set(settings, "%s_LOCAL_RANK=%d", families[i], index);
        set(settings, "%s_LOCAL_SIZE=%d", families[i], plan->options->ranks);
        set(settings, "%s_CROSS_RANK=%d", families[i], place->cross_rank);
        set(settings, "%s_CROSS_SIZE=%d", families[i], place->cross_size);
    }
}

int run_start_free_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {.s_addr = htonl(INADDR_ANY)}};
    socklen_t bytes = sizeof address;
    int port = 0;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return 0;
    if (bind(fd, (struct sockaddr *)&address, sizeof address) == 0 &&
        getsockname(fd, (struct sockaddr *)&address, &bytes) == 0)
        port = ntohs(address.sin_port);
    close(fd);
    return port;
}

/* What torch.distributed's "env://" reads, so that its programs run as under torchrun. Horovod sets none of it, and libraries
 * (accelerate, WebDataset) take it for a word that torch.distributed is to be used. */
static void identity_for_torch(const struct run_node_plan *plan, int index,
                               struct settings *settings)
{
    if (plan->options->compat)
        return;
    set(settings, "RANK=%d", plan->places[index].rank);
    set(settings, "WORLD_SIZE=%d", plan->size);
    set(settings, "LOCAL_RANK=%d", index);
    set(settings, "LOCAL_WORLD_SIZE=%d", plan->options->ranks);
    if (plan->master_port == 0) /* the user's own MASTER_PORT stays what it is */
        return;
    set(settings, "MASTER_ADDR=%s", plan->master_address);
    set(settings, "MASTER_PORT=%d", plan->master_port);
}

/* Where the hvdd has an MPS of its own, ranks have to be in it, as its workers are, also while it is started again. A client of MPS gets 2 connections to a
 * GPU unless it asks for more, and streams that wait would share them. CUDA gives CONNECTIONS without MPS; all clients share
 * one pool, so it is no more here. */
static void place_for_mps(const struct run_node *node, struct settings *settings)
{
    char path[HVD_ADMIN_DIR_MAX + 32];
    snprintf(path, sizeof path, "%s/" HVI_MPS_PID, node->address);
    if (access(path, F_OK) != 0)
        return;
    set(settings, HVI_MPS_PIPE_VAR "=%s/" HVI_MPS_PIPES, node->address);
    if (getenv(CONNECTIONS_VAR) == NULL)
        set(settings, CONNECTIONS_VAR "=" CONNECTIONS);
}

/* What was asked for on the command line wins over an HVD_X that was inherited. */
static void options_of(const struct run_options *options, struct settings *settings)
{
    for (size_t i = 0; i < options->export_count; i++) {
        const char *name = strchr(options->exports[i], '_');
        set(settings, "HVD%.*s", (int)strcspn(name, "="), name);
        settings->list[settings->count++] = options->exports[i];
    }
    if (options->tcp)
        set(settings, RUN_VARIABLE_TCP);
    for (size_t i = 0; i < options->variable_count; i++)
        settings->list[settings->count++] = options->variables[i];
}

/* The name that the user has given the host; without one, horovodrun's ranks get Horovod's word for it. */
static void set_host(const struct run_node_plan *plan, struct settings *settings)
{
    char host[HOST_NAME_MAX + 1] = "localhost";
    if (!plan->options->compat)
        gethostname(host, sizeof host - 1);
    set(settings, "HOROVOD_HOSTNAME=%.240s", plan->host != NULL ? plan->host : host);
}

static void make_settings(const struct run_node *node, int index, int result_fd,
                          struct settings *settings_p)
{
    const struct run_node_plan *plan = node->plan;
    memset(settings_p, 0, sizeof *settings_p);
    identity(plan, index, settings_p);
    identity_for_torch(plan, index, settings_p);
    set_host(plan, settings_p);
    if (plan->options->compat) {
        set(settings_p, "HOROVOD_CONTROLLER=gloo");
        set(settings_p, "HOROVOD_CPU_OPERATIONS=gloo");
    }
    set(settings_p, "HVD_ADDRESS=%s", node->address);
    set(settings_p, "HVD_JOB_ID=%s", plan->job);
    set(settings_p, "HVD_JOB_KEY=%s", plan->key);
    set(settings_p, "PYTHONUNBUFFERED=1");
    if (plan->results != NULL) {
        set(settings_p, "HVD_RUN_CALL=/proc/self/fd/%d", plan->call_fd);
        set(settings_p, "HVD_RUN_RESULT=%d", result_fd);
    }
    place_for_mps(node, settings_p);
    options_of(plan->options, settings_p);
}

/* 1 + the rank's core with --bind-to core: those that hvdrun may use, in turn. 0: any. */
static int core_of(const struct run_node *node, int index)
{
    cpu_set_t usable;
    if (!node->plan->options->bind_to_core || sched_getaffinity(0, sizeof usable, &usable) != 0)
        return 0;
    int skip = index % CPU_COUNT(&usable);
    for (int core = 0; core < CPU_SETSIZE; core++)
        if (CPU_ISSET((size_t)core, &usable) && skip-- == 0)
            return core + 1;
    return 0;
}

/* ---- processes ---- */

static void close_all(int ends[3])
{
    for (int i = 0; i < 3; i++)
        if (ends[i] >= 0)
            close(ends[i]);
}

static int open_pipe(struct run_stream *stream, bool large, int *end_p)
{
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) != 0)
        return errno;
    if (large)
        fcntl(fds[1], F_SETPIPE_SZ, PIPE_BYTES);
    stream->fd = fds[0];
    *end_p = fds[1];
    return 0;
}

/* Pipes for stdout, stderr and a result; write ends in ends_p, for close_all. */
static int open_pipes(struct run_node *node, int index, int ends_p[3])
{
    const bool large = node->plan->options->ranks <= PIPE_BYTES_RANKS;
    int error = open_pipe(&node->plan->streams[2 * index], large, &ends_p[0]);
    if (error == 0)
        error = open_pipe(&node->plan->streams[2 * index + 1], large, &ends_p[1]);
    if (error == 0 && node->plan->results != NULL)
        error = open_pipe(&node->plan->results[index], large, &ends_p[2]);
    return error;
}

static int start_process(struct run_node *node, int index, int input_fd, const int ends[3])
{
    struct settings settings;
    const int keep[] = {ends[2], node->plan->call_fd, -1};
    make_settings(node, index, ends[2], &settings);
    char **env = run_env_make(environ, settings.list);
    if (env == NULL)
        return ENOMEM;
    const struct run_spawn plan = {
        .argv = node->plan->options->command,
        .envp = env,
        .stdin_fd = input_fd,
        .stdout_fd = ends[0],
        .stderr_fd = ends[1],
        .keep_fds = node->plan->results != NULL ? keep : NULL,
        .death_signal = SIGKILL,
        .core = core_of(node, index),
        .heritage = node->plan->heritage,
        .announce = run_guard_add,
        .guard = &node->guard,
    };
    const int error = run_proc_start(&plan, &node->ranks[index].proc);
    run_env_free(env);
    return error;
}

static int start_rank(struct run_node *node, int index, int input_fd, char *text_p, size_t size)
{
    int ends[3] = {-1, -1, -1};
    const int rank = node->plan->places[index].rank;
    const char *command = node->plan->options->command[0];
    int error = open_pipes(node, index, ends);
    if (error == 0)
        error = start_process(node, index, input_fd, ends);
    close_all(ends);
    if (error != 0) {
        snprintf(text_p, size, "cannot start rank %d: %s: %s%s", rank, command,
                 error == ENOENT ? "command not found" : strerror(error),
                 error == EMFILE ? "; raise their limit (ulimit -n)" : "");
        return error == ENOENT ? 127 : error == EACCES || error == ENOEXEC ? 126 : 1;
    }
    node->alive++;
    if (node->plan->options->verbose) {
        snprintf(text_p, size, "rank %d is pid %d: %s", rank, (int)node->ranks[index].proc.pid,
                 command);
        node->plan->calls.say(node->plan->calls.context, text_p);
    }
    return 0;
}

int run_start_ranks(struct run_node *node, int input_fd, char *text_p, size_t text_size)
{
    int code = 0;
    const int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (null_fd < 0) {
        snprintf(text_p, text_size, "cannot open /dev/null: %s", strerror(errno));
        return 1;
    }
    for (int i = 0; i < node->plan->options->ranks && code == 0; i++)
        code = start_rank(node, i, node->plan->places[i].rank == 0 ? input_fd : null_fd, text_p,
                          text_size);
    close(null_fd);
    return code;
}
