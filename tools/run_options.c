/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/run_options.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/types.h"
#include "tools/text.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

enum option_kind {
    OPT_RANKS,
    OPT_LEVEL,
    OPT_BINDING,
    OPT_TEXT,    /* const char * */
    OPT_SECONDS, /* uint64_t, in ns */
    OPT_SWITCH,  /* bool */
    OPT_REFUSED, /* .help says why */
};

struct row {
    const char *names[3]; /* all accepted with one dash or two, the last one is the proper one */
    const char *arg;      /* NULL: none */
    enum option_kind kind;
    size_t offset; /* of the member in struct run_options */
    const char *help;
};

#define AT(member) offsetof(struct run_options, member)

#define HELP_COLUMN 28 /* blanks before the help of an option */

#define NO_REMOTE  "hvdrun starts processes on this machine only; many machines come later"
#define NO_ELASTIC "elastic jobs come later"
#define NO_TUNING  "hvdd has no such knob; leave it out"

static const struct row rows[] = {
    {{"np", "num-proc"}, "N", OPT_RANKS, AT(ranks), "how many processes (ranks) to start"},
    {{"H", "hosts"}, "localhost:N", OPT_TEXT, AT(hosts), "only this machine, with N slots"},
    {{"bind-to"},
     "core|none",
     OPT_BINDING,
     0,
     "core: each rank on one core, in turn; for more ranks than cores (none)"},
    {{"address"},
     "DIR",
     OPT_TEXT,
     AT(address),
     "use the hvdd there (or HVD_ADDRESS) instead of a private one"},
    {{"hvdd"}, "PATH", OPT_TEXT, AT(hvdd), "the hvdd program to start privately"},
    {{"output-filename"},
     "DIR",
     OPT_TEXT,
     AT(output_dir),
     "also keep output, unprefixed, in DIR/rank.<r>/stdout and stderr"},
    {{"prefix-timestamp", "prefix-output-with-timestamp"},
     NULL,
     OPT_SWITCH,
     AT(timestamps),
     "date and time before each line"},
    {{"disable-prefix", "no-prefix"}, NULL, OPT_SWITCH, AT(no_prefix), "output lines as they are"},
    {{"start-timeout"},
     "S",
     OPT_SECONDS,
     AT(start_timeout_ns),
     "time for the private hvdd to start (30)"},
    {{"grace"},
     "S",
     OPT_SECONDS,
     AT(grace_ns),
     "time between SIGTERM and SIGKILL for the rest (5)"},
    {{"stall-check-warning-time-seconds"},
     "S",
     OPT_SECONDS,
     AT(stall_warn_ns),
     "warn about an op that has waited that long (60)"},
    {{"no-stall-check"}, NULL, OPT_SWITCH, AT(no_stall_check), "never warn about ops that wait"},
    {{"log-level"},
     "LEVEL",
     OPT_LEVEL,
     AT(log_level),
     "trace, debug, info, warning or error, for ranks and the private hvdd"},
    {{"verbose"}, NULL, OPT_SWITCH, AT(verbose), "say what is started and how it ends"},
    {{"cb", "check-build"}, NULL, OPT_SWITCH, AT(check_build), "what this build can do"},
    {{"v", "version"}, NULL, OPT_SWITCH, AT(version), "version"},
    {{"h", "help"}, NULL, OPT_SWITCH, AT(help), "this text"},

    {{"hostfile"}, "F", OPT_REFUSED, 0, NO_REMOTE},
    {{"host-discovery-script"}, "F", OPT_REFUSED, 0, NO_REMOTE},
    {{"p", "ssh-port"}, "N", OPT_REFUSED, 0, NO_REMOTE},
    {{"i", "ssh-identity-file"}, "F", OPT_REFUSED, 0, NO_REMOTE},
    {{"network-interfaces", "network-interface"}, "L", OPT_REFUSED, 0, NO_REMOTE},
    {{"min-np", "min-num-proc"}, "N", OPT_REFUSED, 0, NO_ELASTIC},
    {{"max-np", "max-num-proc"}, "N", OPT_REFUSED, 0, NO_ELASTIC},
    {{"reset-limit"}, "N", OPT_REFUSED, 0, NO_ELASTIC},
    {{"timeline-filename"}, "F", OPT_REFUSED, 0, "timelines come later"},
    {{"config-file"}, "F", OPT_REFUSED, 0, "hvdrun reads no configuration file; use the options"},
    {{"mpi"}, NULL, OPT_REFUSED, 0, "there is no MPI here; leave it out"},
    {{"gloo"}, NULL, OPT_REFUSED, 0, "there is no Gloo here; leave it out"},
    {{"fusion-threshold-mb"}, "N", OPT_REFUSED, 0, NO_TUNING},
    {{"cycle-time-ms"}, "N", OPT_REFUSED, 0, NO_TUNING},
    {{"cache-capacity"}, "N", OPT_REFUSED, 0, NO_TUNING},
    {{"autotune"}, NULL, OPT_REFUSED, 0, NO_TUNING},
};

#define GETOPT_ROWS (3 * COUNT(rows) + 1)

/* getopt's `val` is the index of our row plus 1. */
static void build_getopt(struct option *out)
{
    size_t used = 0;
    for (size_t i = 0; i < COUNT(rows); i++)
        for (size_t n = 0; n < COUNT(rows[i].names) && rows[i].names[n] != NULL; n++)
            out[used++] = (struct option){
                .name = rows[i].names[n],
                .has_arg = rows[i].arg != NULL ? required_argument : no_argument,
                .val = (int)i + 1,
            };
    out[used] = (struct option){.name = NULL};
}

static int seconds(const char *name, const char *value, uint64_t *ns_p, char *text_p, size_t size)
{
    if (text_parse_seconds(value, ns_p) == 0)
        return 0;
    snprintf(text_p, size, "--%s takes a number of seconds, not '%s'", name, value);
    return -1;
}

static int set_ranks(struct run_options *options, const char *value, char *text_p, size_t size)
{
    long number;
    if (text_parse_int(value, 1, HVI_RANKS_MAX, &number) != 0) {
        snprintf(text_p, size, "-np takes a number of processes from 1 to %d, not '%s'",
                 HVI_RANKS_MAX, value);
        return -1;
    }
    options->ranks = (int)number;
    return 0;
}

static int set_binding(struct run_options *options, const char *value, char *text_p, size_t size)
{
    options->bind_to_core = strcmp(value, "core") == 0;
    if (options->bind_to_core || strcmp(value, "none") == 0)
        return 0;
    snprintf(text_p, size, "--bind-to takes core or none, not '%s'", value);
    return -1;
}

static int set_log_level(struct run_options *options, const char *value, char *text_p, size_t size)
{
    if (hvi_log_level_parse(value) < 0) {
        snprintf(text_p, size, "--log-level takes trace, debug, info, warning or error, not '%s'",
                 value);
        return -1;
    }
    options->log_level = value;
    return 0;
}

static int refuse(const struct row *row, char *text_p, size_t size)
{
    const char *name = row->names[1] != NULL ? row->names[1] : row->names[0];
    snprintf(text_p, size, "--%s is not available: %s", name, row->help);
    return -1;
}

static int take(struct run_options *options, const struct row *row, const char *value, char *text_p,
                size_t size)
{
    void *member = (char *)options + row->offset;
    switch (row->kind) {
    case OPT_RANKS:
        return set_ranks(options, value, text_p, size);
    case OPT_LEVEL:
        return set_log_level(options, value, text_p, size);
    case OPT_BINDING:
        return set_binding(options, value, text_p, size);
    case OPT_TEXT:
        *(const char **)member = value;
        return 0;
    case OPT_SECONDS:
        return seconds(row->names[0], value, member, text_p, size);
    case OPT_SWITCH:
        *(bool *)member = true;
        return 0;
    case OPT_REFUSED:
        return refuse(row, text_p, size);
    }
    return -1;
}

static bool is_this_machine(const char *host, size_t length)
{
    char name[256] = "";
    gethostname(name, sizeof name - 1);
    const char *const ours[] = {"localhost", "127.0.0.1", name};
    for (size_t i = 0; i < COUNT(ours); i++)
        if (strlen(ours[i]) == length && strncmp(ours[i], host, length) == 0)
            return true;
    return false;
}

/* "localhost:4": its slots are the number of ranks unless -np says less. */
static int check_hosts(struct run_options *options, char *text_p, size_t size)
{
    long slots;
    const char *colon = strrchr(options->hosts, ':');
    const size_t length = colon != NULL ? (size_t)(colon - options->hosts) : strlen(options->hosts);
    if (strchr(options->hosts, ',') != NULL || !is_this_machine(options->hosts, length)) {
        snprintf(text_p, size, "-H %s: %s (use localhost:N)", options->hosts, NO_REMOTE);
        return -1;
    }
    if (colon == NULL || text_parse_int(colon + 1, 1, HVI_RANKS_MAX, &slots) != 0) {
        snprintf(text_p, size, "-H takes localhost:N, not '%s'", options->hosts);
        return -1;
    }
    if (options->ranks == 0)
        options->ranks = (int)slots;
    if (options->ranks > slots) {
        snprintf(text_p, size, "requested more processes (%d) than there are available slots (%ld)",
                 options->ranks, slots);
        return -1;
    }
    return 0;
}

static int check_whole(struct run_options *options, char *text_p, size_t size)
{
    if (options->help || options->version || options->check_build)
        return 0;
    if (options->hosts != NULL && check_hosts(options, text_p, size) != 0)
        return -1;
    if (options->ranks == 0) {
        snprintf(text_p, size, "how many processes? Give -np N");
        return -1;
    }
    if (options->command[0] == NULL) {
        snprintf(text_p, size, "which command? hvdrun -np %d command...", options->ranks);
        return -1;
    }
    return 0;
}

int run_options_parse(int argc, char **argv, struct run_options *options_p, char *text_p,
                      size_t text_size)
{
    struct option table[GETOPT_ROWS];
    struct run_options options = {.start_timeout_ns = 30 * HVI_NS_SEC, .grace_ns = 5 * HVI_NS_SEC};
    build_getopt(table);
    optind = 0; /* start anew: tests parse many lines */
    opterr = 0;
    for (;;) {
        const int at = optind > 0 ? optind : 1;
        const int found = getopt_long_only(argc, argv, "+:", table, NULL);
        if (found == -1)
            break;
        if (found == ':') {
            snprintf(text_p, text_size, "%s needs a value", argv[at]);
            return -1;
        }
        if (found == '?') {
            snprintf(text_p, text_size, "unknown or ambiguous option %s", argv[at]);
            return -1;
        }
        if (take(&options, &rows[found - 1], optarg, text_p, text_size) != 0)
            return -1;
    }
    options.command = argv + optind;
    if (check_whole(&options, text_p, text_size) != 0)
        return -1;
    *options_p = options;
    return 0;
}

void run_options_help(FILE *out)
{
    fputs("Usage: hvdrun -np N [options] command...\n\n"
          "Starts N processes of a job on this machine, with a private hvdd unless one is named.\n"
          "Options stand before the command; everything after it belongs to the command.\n\n",
          out);
    for (size_t i = 0; i < COUNT(rows); i++) {
        char words[80];
        const struct row *row = &rows[i];
        const char *longer = row->names[1] != NULL ? row->names[1] : row->names[0];
        if (row->kind == OPT_REFUSED)
            continue;
        snprintf(words, sizeof words, "%s%s%s--%s%s%s", row->names[1] != NULL ? "-" : "",
                 row->names[1] != NULL ? row->names[0] : "", row->names[1] != NULL ? ", " : "",
                 longer, row->arg != NULL ? " " : "", row->arg != NULL ? row->arg : "");
        if (strlen(words) > HELP_COLUMN)
            fprintf(out, "  %s\n  %*s %s\n", words, HELP_COLUMN, "", row->help);
        else
            fprintf(out, "  %-*s %s\n", HELP_COLUMN, words, row->help);
    }
    fputs(
        "\nWhen a process fails the others get SIGTERM, and after the grace time SIGKILL; hvdrun\n"
        "returns the first failing exit code (128 + signal for a signal). SIGINT, SIGTERM,\n"
        "SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are passed on to every process and what it has\n"
        "started; a second SIGINT or SIGTERM kills. Rank 0 has hvdrun's standard input.\n"
        "Exit status of hvdrun itself: 2 usage, 126 and 127 as in a shell, 1 otherwise.\n",
        out);
}

void run_options_check_build(FILE *out)
{
    fputs("hvdd v" HVD_VERSION_TEXT ":\n"
          "\n"
          "Available Frameworks:\n"
          "    [X] C\n"
          "    [ ] TensorFlow\n"
          "    [ ] PyTorch\n"
          "    [ ] MXNet\n"
          "\n"
          "Available Controllers:\n"
          "    [X] hvdd\n"
          "    [ ] MPI\n"
          "    [ ] Gloo\n"
          "\n"
          "Available Tensor Operations:\n"
          "    [X] hvdd (host memory, one machine)\n"
          "    [ ] NCCL\n"
          "    [ ] DDL\n"
          "    [ ] CCL\n"
          "    [ ] MPI\n"
          "    [ ] Gloo\n",
          out);
}
