/* SPDX-License-Identifier: Apache-2.0
 * The supervisor: arguments, the run of the first role under a deadline, the report. probe.h describes the processes.
 *
 * How a run ended is decided here, in this order: hung (the deadline passed), crashed (a signal ended the first role),
 * refused, failed, measured. The first variant decides the probe's outcome; how a later one ended, if not
 * well, is an answer "<variant>_outcome". */
#include "probe.h"

#include "probe_report.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static struct probe_options options = {.deadline_s = 40, .variant = ""};
static const char *role_name, *json_path;
static volatile sig_atomic_t stopped;

static void on_signal(int number)
{
    stopped = number;
}

/* Takes what is in the pipe, waiting at most wait_ms; the unfinished last line stays in `held`. */
static int read_records(struct report *r, int fd, int wait_ms)
{
    static char held[8192];
    static size_t used;
    struct pollfd p = {.fd = fd, .events = POLLIN};
    if (poll(&p, 1, wait_ms) <= 0)
        return 0;
    ssize_t n = read(fd, held + used, sizeof held - used - 1);
    if (n <= 0) {
        used = 0;
        return 0;
    }
    used += (size_t)n;
    held[used] = 0;
    char *line = held, *end;
    while ((end = strchr(line, '\n'))) {
        *end = 0;
        if (end - line >= 2)
            report_take(r, line);
        line = end + 1;
    }
    used = strlen(line);
    memmove(held, line, used + 1);
    if (used == sizeof held - 1)
        used = 0;
    return 1;
}

/* The command line of a role; valid until the next call. */
static int build_argv(char *argv[], const char *role)
{
    static char exe[] = "/proc/self/exe", role_option[] = "--role", device_option[] = "--device";
    static char variant_option[] = "--variant", quick_option[] = "--quick",
                check_option[] = "--check";
    static char role_text[64], device_text[16], variant_text[64];
    int n = 0;
    snprintf(role_text, sizeof role_text, "%s", role);
    snprintf(device_text, sizeof device_text, "%d", options.device);
    snprintf(variant_text, sizeof variant_text, "%s", options.variant);
    argv[n++] = exe;
    argv[n++] = role_option;
    argv[n++] = role_text;
    argv[n++] = device_option;
    argv[n++] = device_text;
    argv[n++] = variant_option;
    argv[n++] = variant_text;
    if (options.is_quick)
        argv[n++] = quick_option;
    if (options.is_check)
        argv[n++] = check_option;
    argv[n] = NULL;
    return n;
}

struct probe_peer probe_start(const char *role)
{
    char *argv[16];
    int count = build_argv(argv, role);
    return probe_start_program(argv, count);
}

/* The first role, in a process group of its own, so that all roles can be ended at once. */
static pid_t start_first(int report)
{
    char *argv[16];
    pid_t pid;
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;

    build_argv(argv, probe.roles[0].name);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, report, PROBE_REPORT_FD);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, 2,
                                     1); /* nothing but the report goes to standard output */
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
    posix_spawnattr_setpgroup(&attributes, 0);
    int error = posix_spawn(&pid, argv[0], &actions, &attributes, argv, environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    if (error) {
        fprintf(stderr, "probe%d: cannot start myself again: %s\n", probe.number, strerror(error));
        exit(PROBE_FAILED);
    }
    return pid;
}

static const char *step_of(const struct report *r)
{
    return r->step[0] ? r->step : "the start";
}

static void decide(struct report *r, int status)
{
    if (r->outcome == HUNG)
        return;
    if (WIFSIGNALED(status)) {
        r->outcome = CRASHED;
        snprintf(r->reason, sizeof r->reason, "%s in: %s", strsignal(WTERMSIG(status)), step_of(r));
    } else if (WEXITSTATUS(status) != 0 && !r->is_error_known) {
        r->outcome = FAILED;
        snprintf(r->reason, sizeof r->reason, "exit status %d in: %s", WEXITSTATUS(status),
                 step_of(r));
    } else if (WEXITSTATUS(status) == 0 && r->outcome != MEASURED) {
        r->outcome = MEASURED; /* a helper failed, and the first role knew what to do without it */
        report_add(r, 'N', "", r->reason, "");
        r->reason[0] = 0;
    }
}

/* Ends what is left of the roles and takes their last records. */
static void end_roles(struct report *r, pid_t pid, int fd)
{
    kill(-pid, SIGKILL);
    double end = probe_now_us() + 2e6;
    while (read_records(r, fd, 0) && probe_now_us() < end)
        ;
}

static void run_once(struct report *r, double end_us, double began_us)
{
    int pipe_fds[2], status = 0;
    if (pipe2(pipe_fds, O_CLOEXEC) < 0) {
        perror("pipe");
        exit(PROBE_FAILED);
    }
    int report = fcntl(pipe_fds[1], F_DUPFD_CLOEXEC, 10);
    pid_t pid = start_first(report);
    close(report);
    close(pipe_fds[1]);
    fcntl(pipe_fds[0], F_SETFL, O_NONBLOCK);
    while (waitpid(pid, &status, WNOHANG) == 0) {
        read_records(r, pipe_fds[0], 20);
        if (!stopped && probe_now_us() < end_us)
            continue;
        r->outcome = HUNG;
        snprintf(r->reason, sizeof r->reason, "%safter %.0f s in: %s",
                 stopped ? "stopped from outside " : "", (probe_now_us() - began_us) / 1e6,
                 step_of(r));
        kill(-pid, SIGKILL);
        /* A process stuck in the driver may take its time; it must not hold the report. */
        for (int i = 0; i < 300 && waitpid(pid, &status, WNOHANG) == 0; i++)
            probe_sleep_us(10e3);
        break;
    }
    end_roles(r, pid, pipe_fds[0]);
    close(pipe_fds[0]);
    decide(r, status);
}

static void take_variant(struct report *r, const char *name)
{
    options.variant = name;
    r->prefix[0] = 0;
    if (strcmp(name, "plain") != 0)
        snprintf(r->prefix, sizeof r->prefix, "%s_", name);
}

/* Runs one more variant into the same report. */
static void run_variant(struct report *r, const char *name, double end_us)
{
    enum outcome outcome = r->outcome;
    char reason[sizeof r->reason];
    memcpy(reason, r->reason, sizeof reason);
    double began_us = probe_now_us();
    r->outcome = MEASURED;
    r->reason[0] = r->step[0] = 0;
    r->is_error_known = 0;
    take_variant(r, name);
    const char *why_not = strcmp(name, "mps") == 0 ? probe_mps_start() : NULL;
    if (why_not) {
        r->outcome = REFUSED;
        snprintf(r->reason, sizeof r->reason, "%s", why_not);
    } else {
        run_once(r, end_us, began_us);
    }
    probe_mps_stop();
    char text[600];
    snprintf(text, sizeof text, "%s%s%s", report_outcome(r), r->reason[0] ? ": " : "", r->reason);
    report_add(r, 'A', "outcome", text, "");
    r->outcome = outcome;
    memcpy(r->reason, reason, sizeof reason);
}

static int is_worth_more(const struct report *r, double end_us)
{
    return r->outcome != REFUSED && !options.is_check && !stopped && probe_now_us() < end_us;
}

static int supervise(void)
{
    static struct report r;
    double began = probe_now_us(), end = began + options.deadline_s * 1e6;
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
    probe_mps_avoid();
    if (probe.variants)
        take_variant(&r, probe.variants[0]);
    run_once(&r, end, began);
    for (int i = 1; probe.variants && probe.variants[i] && is_worth_more(&r, end); i++)
        run_variant(&r, probe.variants[i], end);
    probe_mps_stop();
    double seconds = (probe_now_us() - began) / 1e6;
    if (r.outcome == REFUSED)
        fprintf(stderr, "probe%d: %s\n", probe.number, r.reason);
    else if (r.outcome != MEASURED)
        fprintf(stderr, "probe%d: %s: %s\n", probe.number, report_outcome(&r), r.reason);
    FILE *f = json_path ? fopen(json_path, "w") : NULL;
    if (json_path && !f) {
        fprintf(stderr, "probe%d: cannot write %s: %s\n", probe.number, json_path, strerror(errno));
        return PROBE_FAILED;
    }
    if (f) {
        report_json(f, &r, options.is_quick, seconds);
        fclose(f);
    }
    printf("outcome %s%s%s\n", report_outcome(&r), r.reason[0] ? ": " : "", r.reason);
    report_json(stdout, &r, options.is_quick, seconds);
    return r.outcome == MEASURED ? PROBE_OK : r.outcome == REFUSED ? PROBE_REFUSED : PROBE_FAILED;
}

static int run_role(void)
{
    for (const struct probe_role *role = probe.roles; role->name; role++) {
        if (strcmp(role->name, role_name) == 0) {
            probe_role_begin();
            role->run(&options);
            _exit(PROBE_OK); /* no destructor of a driver may change how this ends */
        }
    }
    fprintf(stderr, "probe%d: no role \"%s\"\n", probe.number, role_name);
    return PROBE_USAGE;
}

static void help(FILE *f)
{
    fprintf(f,
            "Usage: probe%d [OPTION]...\n"
            "%s\n\n"
            "  --check         only say whether a probe can run here, and on what\n"
            "  --deadline S    end, and say where it hung, after S seconds (%g)\n"
            "  --device N      the N-th visible GPU (0)\n"
            "  --json FILE     also write the JSON object there\n"
            "  --quick         smaller sizes, fewer repetitions\n"
            "  --help          this text\n\n"
            "Exit status: 0 measured; 1 failed, crashed or hung; 2 wrong usage; 77 cannot be asked "
            "here (no NVIDIA driver, "
            "...).\nWhat is asked, and what the answer changes: docs/design/gpu-facts.md\n",
            probe.number, probe.title, options.deadline_s);
}

static int usage(const char *what, const char *text, const char *why)
{
    fprintf(stderr, "probe%d: %s%s%s\nTry --help.\n", probe.number, what, text, why);
    return PROBE_USAGE;
}

static int take_number(const char *text, double least, double most, double *value_p)
{
    char *end;
    errno = 0;
    double value = strtod(text, &end);
    if (errno || end == text || *end || !(value >= least && value <= most))
        return 0;
    *value_p = value;
    return 1;
}

static const struct option long_options[] = {
    {"check", no_argument, NULL, 'c'},        {"deadline", required_argument, NULL, 't'},
    {"device", required_argument, NULL, 'd'}, {"json", required_argument, NULL, 'j'},
    {"quick", no_argument, NULL, 'q'},        {"help", no_argument, NULL, 'h'},
    {"role", required_argument, NULL, 'r'},   {"variant", required_argument, NULL, 'v'},
    {"fd", required_argument, NULL, 'f'},     {0},
};

/* -1: go on; else exit with this. */
static int take_option(int c, const char *text)
{
    double number;
    switch (c) {
    case 't':
        return take_number(text, 0.01, 86400, &options.deadline_s)
                   ? -1
                   : usage("--deadline ", text, ": not a number of seconds");
    case 'd':
        if (!take_number(text, 0, 1023, &number) || number != (int)number)
            return usage("--device ", text, ": not a device number");
        options.device = (int)number;
        return -1;
    case 'j':
        json_path = text;
        return -1;
    case 'q':
        options.is_quick = 1;
        return -1;
    case 'c':
        options.is_check = 1;
        return -1;
    case 'r':
        role_name = text;
        return -1;
    case 'v':
        options.variant = text;
        return -1;
    case 'f':
        return -1;
    case 'h':
        help(stdout);
        return PROBE_OK;
    default:
        return usage("wrong option", "", "");
    }
}

int main(int argc, char **argv)
{
    int c, status;
    while ((c = getopt_long(argc, argv, "", long_options, NULL)) >= 0) {
        status = take_option(c, optarg);
        if (status >= 0)
            return status;
    }
    if (optind < argc)
        return usage("unexpected argument: ", argv[optind], "");
    return role_name ? run_role() : supervise();
}
