/* SPDX-License-Identifier: Apache-2.0
 * The environment of a rank, its files and its process. */
#include "tools/hvdrun/run.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define SETTINGS_MAX     (40 + 2 * RUN_EXPORTS_MAX)
#define PIPE_BYTES       (256 * 1024)
#define PIPE_BYTES_RANKS 32 /* with more ranks, large pipes would use up the user's pipe budget */

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

static void identity(const struct run *run, int rank, struct settings *settings)
{
    static const char *const families[] = {"HVD", "HOROVOD"};
    const int size = run->options.ranks;
    for (size_t i = 0; i < 2; i++) {
        set(settings, "%s_RANK=%d", families[i], rank);
        set(settings, "%s_SIZE=%d", families[i], size);
        set(settings, "%s_LOCAL_RANK=%d", families[i], rank);
        set(settings, "%s_LOCAL_SIZE=%d", families[i], size);
        set(settings, "%s_CROSS_RANK=0", families[i]);
        set(settings, "%s_CROSS_SIZE=1", families[i]);
    }
}

/* A TCP port on which nobody listens, or 0: the user's MASTER_PORT then stays what it is. */
static int free_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
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

/* What torch.distributed's "env://" reads, so that its programs run as under torchrun. */
static void identity_for_torch(const struct run *run, int rank, struct settings *settings)
{
    set(settings, "RANK=%d", rank);
    set(settings, "WORLD_SIZE=%d", run->options.ranks);
    set(settings, "LOCAL_RANK=%d", rank);
    set(settings, "LOCAL_WORLD_SIZE=%d", run->options.ranks);
    if (run->torch_port == 0)
        return;
    set(settings, "MASTER_ADDR=127.0.0.1");
    set(settings, "MASTER_PORT=%d", run->torch_port);
}

/* What was asked for on the command line wins over an HVD_X that was inherited. */
static void options_of(const struct run *run, struct settings *settings)
{
    const struct run_options *options = &run->options;
    for (size_t i = 0; i < options->export_count; i++) {
        const char *name = strchr(options->exports[i], '_');
        set(settings, "HVD%.*s", (int)strcspn(name, "="), name);
        settings->list[settings->count++] = options->exports[i];
    }
}

static void make_settings(const struct run *run, int rank, struct settings *settings_p)
{
    char host[HOST_NAME_MAX + 1] = "localhost";
    memset(settings_p, 0, sizeof *settings_p);
    gethostname(host, sizeof host - 1);
    identity(run, rank, settings_p);
    identity_for_torch(run, rank, settings_p);
    set(settings_p, "HOROVOD_HOSTNAME=%s", host);
    set(settings_p, "HVD_ADDRESS=%s", run->address);
    set(settings_p, "HVD_JOB_ID=%s", run->job);
    set(settings_p, "HVD_JOB_KEY=%s", run->key);
    set(settings_p, "PYTHONUNBUFFERED=1");
    options_of(run, settings_p);
}

/* 1 + the rank's core with --bind-to core: those that hvdrun may use, in turn. 0: any. */
static int core_of(const struct run *run, int rank)
{
    cpu_set_t usable;
    if (!run->options.bind_to_core || sched_getaffinity(0, sizeof usable, &usable) != 0)
        return 0;
    int skip = rank % CPU_COUNT(&usable);
    for (int core = 0; core < CPU_SETSIZE; core++)
        if (CPU_ISSET((size_t)core, &usable) && skip-- == 0)
            return core + 1;
    return 0;
}

/* ---- files ---- */

static int make_parents(const char *path)
{
    char part[PATH_MAX];
    const int length = snprintf(part, sizeof part, "%s", path);
    if (length < 0 || (size_t)length >= sizeof part)
        return ENAMETOOLONG;
    for (char *slash = strchr(part + 1, '/');; slash = strchr(slash + 1, '/')) {
        if (slash != NULL)
            *slash = '\0';
        if (mkdir(part, 0777) != 0 && errno != EEXIST)
            return errno;
        if (slash == NULL)
            return 0;
        *slash = '/';
    }
}

static int digits(int number)
{
    int count = 1;
    for (; number >= 10; number /= 10)
        count++;
    return count;
}

/* DIR/rank.03/stdout and stderr. False after a complaint. */
static bool open_files(struct run *run, int rank)
{
    static const char *const names[] = {"stdout", "stderr"};
    char dir[PATH_MAX - 16];
    char path[PATH_MAX];
    if (run->options.output_dir == NULL)
        return true;
    const int length = snprintf(dir, sizeof dir, "%s/rank.%0*d", run->options.output_dir,
                                digits(run->options.ranks - 1), rank);
    int error = length >= (int)sizeof dir ? ENAMETOOLONG : make_parents(dir);
    for (int i = 0; i < 2 && error == 0; i++) {
        struct run_stream *stream = &run->ranks[rank].streams[i];
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        stream->file_fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
        if (stream->file_fd < 0)
            error = errno;
    }
    if (error != 0)
        run_say(run, "cannot keep the output of rank %d in %s: %s", rank, dir, strerror(error));
    return error == 0;
}

/* ---- processes ---- */

/* Pipes for stdout and stderr; write ends in ends_p. */
static int open_pipes(struct run *run, int rank, int ends_p[2])
{
    for (int i = 0; i < 2; i++) {
        int fds[2];
        if (pipe2(fds, O_CLOEXEC) != 0) {
            const int error = errno;
            if (i == 1)
                close(ends_p[0]);
            return error;
        }
        if (run->options.ranks <= PIPE_BYTES_RANKS)
            fcntl(fds[1], F_SETPIPE_SZ, PIPE_BYTES);
        run->ranks[rank].streams[i].fd = fds[0];
        ends_p[i] = fds[1];
    }
    return 0;
}

static int start_process(struct run *run, int rank, int input_fd, const int ends[2])
{
    struct settings settings;
    make_settings(run, rank, &settings);
    char **env = run_env_make(environ, settings.list);
    if (env == NULL)
        return ENOMEM;
    const struct run_spawn plan = {
        .argv = run->options.command,
        .envp = env,
        .stdin_fd = input_fd,
        .stdout_fd = ends[0],
        .stderr_fd = ends[1],
        .death_signal = SIGKILL,
        .core = core_of(run, rank),
        .heritage = &run->heritage,
        .announce = run_guard_add,
        .guard = &run->guard,
    };
    const int error = run_proc_start(&plan, &run->ranks[rank].proc);
    run_env_free(env);
    return error;
}

static int start_rank(struct run *run, int rank, int null_fd)
{
    int ends[2];
    if (!open_files(run, rank))
        return 1;
    int error = open_pipes(run, rank, ends);
    if (error == 0) {
        error = start_process(run, rank, rank == 0 ? run->input.child_fd : null_fd, ends);
        close(ends[0]);
        close(ends[1]);
    }
    if (error != 0) {
        run_say(run, "cannot start rank %d: %s: %s", rank, run->options.command[0],
                error == ENOENT ? "command not found" : strerror(error));
        return error == ENOENT ? 127 : error == EACCES || error == ENOEXEC ? 126 : 1;
    }
    run->alive++;
    if (run->options.verbose)
        run_say(run, "rank %d is pid %d: %s", rank, (int)run->ranks[rank].proc.pid,
                run->options.command[0]);
    return 0;
}

int run_start_ranks(struct run *run)
{
    int code = 0;
    const int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (null_fd < 0) {
        run_say(run, "cannot open /dev/null: %s", strerror(errno));
        return 1;
    }
    run->torch_port = free_port();
    for (int i = 0; i < run->options.ranks && code == 0; i++)
        code = start_rank(run, i, null_fd);
    close(null_fd);
    if (run->input.child_fd != STDIN_FILENO)
        close(run->input.child_fd);
    return code;
}
