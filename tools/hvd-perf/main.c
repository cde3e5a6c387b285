/* SPDX-License-Identifier: Apache-2.0
 * hvd-perf: how fast collective ops are. Started by itself it becomes `hvdrun -np N hvd-perf ...`,
 * which gives it a private daemon unless one is named; started by a launcher it is one rank. It sees
 * of hvdd what every trainer sees: hvd.h. */
#include "tools/hvd-perf/perf.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RANKS_DEFAULT 2

/* hvdrun beside this program, else the one in PATH. */
static void find_hvdrun(const char *self, char *path_p, size_t size)
{
    const char *slash = strrchr(self, '/');
    snprintf(path_p, size, "%.*s/hvdrun", slash != NULL ? (int)(slash - self) : 0, self);
    if (slash == NULL || access(path_p, X_OK) != 0)
        snprintf(path_p, size, "hvdrun");
}

/* Does not return on success. */
static int become_hvdrun(const struct perf_options *options, int argc, char **argv)
{
    char self[PATH_MAX - 16];
    char hvdrun[PATH_MAX];
    char ranks[16];
    char no_prefix[] = "--no-prefix";
    char np[] = "-np";
    char address[] = "--address";
    char hosts[] = "-H";
    char here[32];
    const int count = options->ranks > 0 ? options->ranks : RANKS_DEFAULT;
    int used = 0;
    const ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    char **list = calloc((size_t)argc + 10, sizeof *list);
    if (list == NULL || length < 0)
        return 1;
    self[length] = '\0';
    snprintf(here, sizeof here, "localhost:%d", count);
    find_hvdrun(self, hvdrun, sizeof hvdrun);
    snprintf(ranks, sizeof ranks, "%d", count);
    list[used++] = hvdrun;
    list[used++] = np;
    list[used++] = ranks;
    list[used++] = hosts;
    list[used++] = here;
    list[used++] = no_prefix;
    if (options->address != NULL) {
        list[used++] = address;
        list[used++] = (char *)(uintptr_t)options->address;
    }
    list[used++] = self;
    for (int i = 1; i < argc; i++)
        list[used++] = argv[i];
    execvp(hvdrun, list);
    fprintf(stderr, "hvd-perf: cannot start %s: %s\n", hvdrun, strerror(errno));
    free(list);
    return 1;
}

static int be_rank(const struct perf_options *options)
{
    struct hvd_options open_options;
    struct hvd_session *session;
    hvd_options_init(&open_options);
    if (options->address != NULL)
        open_options.address = options->address;
    if (options->attach > 0)
        return perf_attach(&open_options, options);
    const int status = hvd_open(&open_options, &session);
    if (status != HVD_OK) {
        fprintf(stderr, "hvd-perf: %s: %s\n", hvd_status_name(status), hvd_last_error());
        return 1;
    }
    int code = options->idle_ns > 0 ? perf_idle(session, options) : perf_measure(session, options);
    if (code == 0 && perf_barrier(session, options, "perf.end") != HVD_OK)
        code = 1;
    hvd_close(session);
    return code;
}

/* Whether stdout is closed. The next descriptor would be that one, and rows would go into a socket: it
 * becomes one to which nothing can be written. */
static bool hold_stdout(void)
{
    if (fcntl(STDOUT_FILENO, F_GETFD) >= 0)
        return false;
    const int none = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (none >= 0 && none != STDOUT_FILENO) {
        dup2(none, STDOUT_FILENO);
        close(none);
    }
    return true;
}

static int complain_of_stdout(void)
{
    fputs("hvd-perf: not everything could be written to standard output\n", stderr);
    return 1;
}

/* hvdrun is content with a closed stdout. */
static int run(const struct perf_options *options, bool closed, int argc, char **argv)
{
    const struct perf_launcher *launcher = perf_launcher();
    if (launcher == NULL)
        return closed ? complain_of_stdout() : become_hvdrun(options, argc, argv);
    perf_launcher_warn(launcher, options->ranks);
    signal(SIGPIPE, SIG_IGN); /* a pipe that nobody reads is an error, which the end tells */
    return be_rank(options);
}

int main(int argc, char **argv)
{
    struct perf_options options;
    char text[512];
    if (perf_options_parse(argc, argv, &options, text, sizeof text) != 0) {
        fprintf(stderr, "hvd-perf: %s\nTry hvd-perf --help.\n", text);
        return 2;
    }
    int code = 0;
    const bool closed = hold_stdout();
    if (options.help)
        perf_options_help(stdout);
    else if (options.version)
        printf("hvd-perf %s\n", hvd_version());
    else
        code = run(&options, closed, argc, argv);
    return fflush(stdout) == 0 && !ferror(stdout) ? code : complain_of_stdout();
}
