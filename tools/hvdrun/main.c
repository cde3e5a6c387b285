/* SPDX-License-Identifier: Apache-2.0
 * hvdrun: starts the ranks of a job on this machine, shows what they print, and ends them together.
 *
 *   flags.def  every option          options.c what the command line says
 *   hosts.c    which machine         config.c  what a configuration file says
 *   daemon.c   the private hvdd      procs.c   processes and their groups
 *   start.c    a rank's environment  output.c  prefixes, lines, our stdout
 *   end.c      who failed, what next loop.c    the event loop
 *   build.c    --check-build         guard.c   cleans up if hvdrun is SIGKILLed
 *
 * One thread of our own (libzmq adds its two once the ranks run). Order of birth: guard, hvdd,
 * ranks, admin client: so every fork happens before a second thread exists. Each rank leads a
 * process group; signals from outside are passed on to the groups. Nothing that was started is left
 * when hvdrun returns. */
#include "base/clock.h"
#include "base/status.h"
#include "base/types.h"
#include "tools/hvdrun/build.h"
#include "tools/hvdrun/flags.h"
#include "tools/hvdrun/run.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#define FDS_PER_RANK 5u
#define FDS_SPARE    64u

/* 0, 1 and 2 must be taken, or a pipe of ours would become the child's stdin. */
static void fill_standard_fds(void)
{
    int fd;
    do {
        fd = open("/dev/null", O_RDWR);
    } while (fd >= 0 && fd <= 2);
    if (fd > 2)
        close(fd);
}

/* Signals come through a descriptor. Those that were ignored at our start (nohup) stay so. */
static int open_signals(struct run_heritage *heritage)
{
    static const int handled[] = {SIGINT,  SIGTERM, SIGHUP,  SIGQUIT,
                                  SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT};
    sigset_t set;
    struct sigaction action;
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof handled / sizeof handled[0]; i++)
        if (sigaction(handled[i], NULL, &action) == 0 && action.sa_handler != SIG_IGN)
            sigaddset(&set, handled[i]);
    sigprocmask(SIG_BLOCK, &set, &heritage->mask);
    memset(&action, 0, sizeof action);
    action.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &action, &heritage->pipe_action);
    return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

static void raise_fd_limit(struct run *run)
{
    struct rlimit limit;
    const rlim_t wanted = FDS_PER_RANK * (rlim_t)run->options.ranks + FDS_SPARE;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return;
    run->heritage.nofile_soft = limit.rlim_cur;
    if (limit.rlim_cur >= wanted)
        return;
    limit.rlim_cur = limit.rlim_max < wanted ? limit.rlim_max : wanted;
    setrlimit(RLIMIT_NOFILE, &limit);
}

/* Hexadecimal digits from the kernel's random source. */
static void random_hex(char *text_p, size_t length)
{
    unsigned char bytes[32];
    size_t have = 0;
    while (have < sizeof bytes) {
        const ssize_t got = getrandom(bytes + have, sizeof bytes - have, 0);
        if (got > 0)
            have += (size_t)got;
    }
    for (size_t i = 0; i < length; i++)
        text_p[i] = "0123456789abcdef"[bytes[i % sizeof bytes] >> (i / sizeof bytes * 4) & 15];
    text_p[length] = '\0';
}

static bool same_file(int a, int b)
{
    struct stat one;
    struct stat two;
    return fstat(a, &one) == 0 && fstat(b, &two) == 0 && one.st_dev == two.st_dev &&
           one.st_ino == two.st_ino;
}

static void open_output(struct run *run)
{
    run_sink_init(&run->sinks[0], STDOUT_FILENO);
    run->out = &run->sinks[0];
    if (same_file(STDOUT_FILENO, STDERR_FILENO)) {
        run->err = run->out;
        return;
    }
    run_sink_init(&run->sinks[1], STDERR_FILENO);
    run->err = &run->sinks[1];
}

static bool init_ranks(struct run *run)
{
    static const char *const names[] = {"stdout", "stderr"};
    const struct run_options *options = &run->options;
    run->ranks = calloc((size_t)options->ranks, sizeof *run->ranks);
    if (run->ranks == NULL)
        return false;
    for (int i = 0; i < options->ranks; i++) {
        run->ranks[i].proc.pidfd = -1;
        for (int s = 0; s < 2; s++) {
            struct run_stream *stream = &run->ranks[i].streams[s];
            run_stream_init(stream, -1, s == 0 ? run->out : run->err);
            run_prefix_init(&stream->prefix, i, names[s], !options->no_prefix, options->timestamps);
        }
    }
    return true;
}

/* Finds or starts the daemon. False after a complaint. */
static bool find_daemon(struct run *run)
{
    char text[2048];
    struct address address;
    run_stream_init(&run->daemon_log, -1, run->err);
    if (address_is_configured(run->options.address)) {
        const int status = address_find(run->options.address, &address);
        snprintf(run->address, sizeof run->address, "%s", address.dir);
        if (status != HVI_OK)
            run_say(run,
                    "no hvdd answers at %s; start one, or leave out --address and HVD_ADDRESS to "
                    "get a private one",
                    address.why);
        return status == HVI_OK;
    }
    const struct run_daemon_plan plan = {
        .options = &run->options,
        .heritage = &run->heritage,
        .guard = &run->guard,
        .signal_fd = run->signal_fd,
    };
    if (run_daemon_start(&plan, &run->daemon, text, sizeof text) != HVI_OK) {
        run_say(run, "%s", text);
        return false;
    }
    run->daemon_log.fd = run->daemon.stderr_fd;
    run->daemon.stderr_fd = -1;
    snprintf(run->address, sizeof run->address, "%s", run->daemon.dir);
    if (run->options.verbose)
        run_say(run, "private hvdd: pid %d in %s", (int)run->daemon.proc.pid, run->daemon.dir);
    return true;
}

static bool prepare(struct run *run)
{
    run->first_failed = -1;
    run->daemon = (struct run_daemon){.parent_fd = -1, .stderr_fd = -1, .proc = {.pidfd = -1}};
    raise_fd_limit(run);
    run->signal_fd = open_signals(&run->heritage);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    open_output(run);
    random_hex(run->key, 32);
    memcpy(run->job, "hvdrun-", 7);
    random_hex(run->job + 7, 16);
    int error = run->signal_fd < 0 ? errno : run_guard_start(&run->guard);
    if (error == 0)
        error = run_stdin_init(&run->input);
    if (error == 0 && !init_ranks(run))
        error = ENOMEM;
    if (error != 0)
        run_say(run, "cannot start: %s", strerror(error));
    return error == 0;
}

/* What went to files or was dropped deserves a word. */
static void report_output(struct run *run)
{
    for (int i = 0; i < 2 * run->options.ranks; i++) {
        const struct run_stream *stream = &run->ranks[i / 2].streams[i % 2];
        if (stream->file_error != 0)
            run_say(run, "the file with %s of rank %d is not complete: %s",
                    i % 2 == 0 ? "stdout" : "stderr", i / 2, strerror(stream->file_error));
        if (stream->file_error != 0 && run->exit_code == 0)
            run->exit_code = 1;
    }
    if (run->out->error != 0 && !run->out->gone && run->exit_code == 0)
        run->exit_code = 1;
}

static void write_report(FILE *out, const struct run *run)
{
    const bool failed = run->first_failed >= 0;
    if ((failed && run->options.ranks > 1) || run->options.verbose) {
        fputs("hvdrun: summary:\n", out);
        run_end_summary(out, run->ranks, run->options.ranks, run->first_failed);
    }
    if (failed && run->stop_signal == 0)
        run_end_verdict(out, run->options.compat ? "Horovod" : "hvdrun", run->first_failed,
                        run->exit_code);
}

static void report(struct run *run)
{
    char *text = NULL;
    size_t size = 0;
    FILE *stream = open_memstream(&text, &size);
    if (stream != NULL) {
        write_report(stream, run);
        fclose(stream);
    }
    if (size > 0) {
        text[size - 1] = '\0'; /* run_sink_say adds the newline */
        run_sink_say(run->err, text);
    }
    free(text);
    report_output(run);
}

static void start_and_wait(struct run *run)
{
    run->exit_code = run_start_ranks(run);
    if (run->exit_code != 0 && run->alive > 0)
        run_end_all(run);
    if (run->alive > 0) {
        if (admin_client_open(run->address, &run->admin) != HVI_OK)
            run->daemon_silent = true;
        run_loop(run);
        report(run);
    }
}

static void finish(struct run *run)
{
    admin_client_close(run->admin);
    run_daemon_stop(&run->daemon);
    for (int i = 0; run->ranks != NULL && i < 2 * run->options.ranks; i++)
        run_stream_fini(&run->ranks[i / 2].streams[i % 2]);
    if (run->daemon_log.fd >= 0)
        run_stream_read(&run->daemon_log);
    run_stream_fini(&run->daemon_log);
    run_guard_stop(&run->guard);
    run_stdin_fini(&run->input);
    run_sink_flush(run->out);
    run_sink_flush(run->err);
    run_sink_fini(run->out);
    if (run->err != run->out)
        run_sink_fini(run->err);
    free(run->ranks);
}

static int launch(const struct run_options *options)
{
    static struct run run;
    run.options = *options;
    run.exit_code = 1;
    if (prepare(&run) && find_daemon(&run))
        start_and_wait(&run);
    finish(&run);
    return run.exit_code;
}

/* horovodrun comes from a Python package that says which release of Horovod it stands for. */
static const char *shown_version(const struct run_options *options)
{
    const char *said = options->compat ? getenv("HVDRUN_VERSION") : NULL;
    return said != NULL && said[0] != '\0' ? said : HVD_VERSION_TEXT;
}

/* Nobody who starts hvdrun alone has said which Python counts; the compatible format is for stdout
 * alone. */
static void check_build(const struct run_options *options)
{
    char text[1024];
    struct run_build build;
    if (run_build_ask(&build, text, sizeof text) != 0)
        fprintf(stderr, "hvdrun: %s\n", text);
    else if (getenv("HVDRUN_PYTHON") == NULL)
        fprintf(stderr, "hvdrun: the frameworks are those of %s (HVDRUN_PYTHON names another)\n",
                build.python);
    run_build_print(stdout, options->compat ? "Horovod" : "hvd", shown_version(options), &build);
}

/* What is asked for instead of a launch. */
static bool print_instead(const struct run_options *options)
{
    if (options->help)
        run_flags_help(stdout, run_options_program(options));
    else if (options->help_man)
        run_flags_help_man(stdout);
    else if (options->version)
        printf("%s%s\n", options->compat ? "" : "hvdrun ", shown_version(options));
    else if (options->check_build)
        check_build(options);
    else
        return false;
    return true;
}

int main(int argc, char **argv)
{
    struct run_options options;
    char text[1024];
    fill_standard_fds();
    if (run_options_parse(argc, argv, &options, text, sizeof text) != 0) {
        fprintf(stderr, "hvdrun: %s\nTry hvdrun --help.\n", text);
        return 2;
    }
    int code = 0;
    if (!print_instead(&options)) {
        run_options_tell_idle(&options, stderr);
        code = launch(&options);
    }
    run_options_fini(&options);
    return fflush(stdout) == 0 ? code : 1;
}
