/* SPDX-License-Identifier: Apache-2.0
 * hvdctl: questions to a running hvdd, and a look at the machine. `commands` below has one row per
 * command, from which parsing and help follow. Exit codes: enum ctl_exit. */
#include "base/clock.h"
#include "base/status.h"
#include "proto/wire.h"
#include "tools/common/text.h"
#include "tools/hvdctl/ctl.h"

#include <errno.h>
#include <getopt.h>
#include <pwd.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

struct command {
    const char *noun, *verb; /* verb NULL: the noun alone */
    const char *args;        /* for help */
    int args_min, args_max;
    int (*run)(const struct ctl *ctl, char **args, int count);
    const char *help;
};

void ctl_complain(const struct ctl *ctl, int status, const char *format, ...)
{
    char raw[2048];
    char safe[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(raw, sizeof raw, format, args);
    va_end(args);
    text_safe(raw, safe, sizeof safe);
    fprintf(stderr, "hvdctl: %s\n", safe);
    if (ctl->json)
        ctl_json_error(ctl, status, raw);
}

void ctl_done(const struct ctl *ctl, const char *text)
{
    char safe[HVI_TEXT_MAX + 1];
    text_safe(text, safe, sizeof safe);
    if (ctl->json)
        ctl_json_done(ctl, safe);
    else
        fprintf(ctl->out, "%s\n", safe);
}

/* ---- asking the daemon ---- */

static int no_daemon(const struct ctl *ctl, const struct hvd_admin_place *place)
{
    const char *tried = strstr(place->tried, "), ") != NULL ? "Tried, in this order" : "Tried";
    if (strstr(place->tried, strerror(EACCES)) != NULL)
        ctl_complain(ctl, HVI_ERR_NO_DAEMON,
                     "no hvdd that this user may ask. %s: %s. A socket that refuses permission may "
                     "be another user's hvdd, or one whose admin socket is kept for a group "
                     "(admin-mode); name another directory with --address or HVD_ADDRESS.",
                     tried, place->tried);
    else
        ctl_complain(ctl, HVI_ERR_NO_DAEMON,
                     "no hvdd is running. %s: %s. Start one (hvdd, or systemctl start hvdd), or "
                     "name its directory with --address or HVD_ADDRESS.",
                     tried, place->tried);
    return CTL_NO_DAEMON;
}

int ctl_explain(const struct ctl *ctl, int status)
{
    struct hvd_admin_place place;
    char waited[32];
    switch (status) {
    case HVI_ERR_NO_DAEMON:
        if (hvd_admin_find(ctl->address, &place) == HVI_OK) /* it was there a moment ago */
            snprintf(place.tried, sizeof place.tried, "%.200s (%s)", place.dir,
                     strerror(ECONNREFUSED));
        return no_daemon(ctl, &place);
    case HVI_ERR_TIMEOUT:
        hvd_admin_find(ctl->address, &place);
        text_duration(ctl->timeout_ns, waited, sizeof waited);
        ctl_complain(ctl, status,
                     "the hvdd in %s did not answer within %s. It may be stopped or stuck: look "
                     "at its process and log, or wait longer with --timeout.",
                     place.dir, waited);
        return CTL_NO_DAEMON;
    default:
        ctl_complain(ctl, status, "%s", hvd_admin_last_error());
        return CTL_REFUSED;
    }
}

struct hvd_admin_request ctl_request(enum hvd_admin_kind kind)
{
    struct hvd_admin_request request;
    hvd_admin_request_init(&request, kind);
    return request;
}

int ctl_open(const struct ctl *ctl, struct hvd_admin **admin_p)
{
    const int status = hvd_admin_open(ctl->address, admin_p);
    if (status == HVI_ERR_INVALID) {
        ctl_complain(ctl, status, "%s", hvd_admin_last_error());
        return CTL_USAGE;
    }
    return status == HVI_OK ? CTL_OK : ctl_explain(ctl, status);
}

int ctl_ask(const struct ctl *ctl, const struct hvd_admin_request *request,
            struct hvd_admin_answer **reply_p)
{
    struct hvd_admin *admin = NULL;
    int code = ctl_open(ctl, &admin);
    if (code != CTL_OK)
        return code;
    const int status = hvd_admin_ask(admin, request, (int64_t)ctl->timeout_ns, reply_p);
    code = status == HVI_OK ? CTL_OK : ctl_explain(ctl, status);
    hvd_admin_close(admin);
    return code;
}

/* True for what is not the daemon's own word. */
static bool is_unanswered(int status)
{
    return status == HVI_ERR_NO_DAEMON || status == HVI_ERR_TIMEOUT || status == HVI_ERR_PROTOCOL ||
           status == HVI_ERR_NO_MEMORY || status == HVI_ERR_LIMIT;
}

bool ctl_ask_daemon(const struct ctl *ctl, struct hvd_admin_answer **reply_p, char *why_p,
                    size_t why_size)
{
    const struct hvd_admin_request request = ctl_request(HVD_ADMIN_STATUS);
    const uint64_t wait_ns = ctl->timeout_ns < HVI_NS_SEC ? ctl->timeout_ns : HVI_NS_SEC;
    struct hvd_admin_place place;
    struct hvd_admin *admin;
    *reply_p = NULL;
    const int found = hvd_admin_find(ctl->address, &place);
    snprintf(why_p, why_size, "%s", place.tried);
    if (found != HVI_OK || hvd_admin_open(place.dir, &admin) != HVI_OK)
        return false;
    const int status = hvd_admin_ask(admin, &request, (int64_t)wait_ns, reply_p);
    hvd_admin_close(admin);
    if (is_unanswered(status))
        snprintf(why_p, why_size, "%s (%s)", place.dir,
                 status == HVI_ERR_TIMEOUT ? "it does not answer" : hvi_status_text(status));
    else if (status != HVI_OK)
        snprintf(why_p, why_size, "%s", hvd_admin_last_error());
    return !is_unanswered(status);
}

void ctl_say_silent(const struct ctl *ctl, const struct hvd_admin_answer *reply)
{
    bool said = false;
    if (ctl->json)
        return;
    for (size_t i = 0; i < reply->span_count; i++) {
        if (reply->spans[i]->text[0] == '\0')
            continue;
        ctl_complain(ctl, HVI_OK, "job '%s': %s", reply->spans[i]->job, reply->spans[i]->text);
        said = true;
    }
    if (!said && reply->text[0] != '\0')
        ctl_complain(ctl, HVI_OK, "%s", reply->text);
}

int ctl_copy_job(const struct ctl *ctl, const char *job, struct hvd_admin_request *request_p)
{
    if (!hvi_job_id_valid(job)) {
        ctl_complain(ctl, HVI_ERR_INVALID,
                     "'%s' is no job id: 1 to %d letters, digits or any of . _ : @ -", job,
                     HVI_JOB_ID_MAX);
        return CTL_USAGE;
    }
    request_p->job = job;
    request_p->owner = ctl->of_owner ? (int64_t)ctl->owner : HVD_ADMIN_ANY;
    return CTL_OK;
}

/* ---- the commands ---- */

/* Asks, and prints the answer by one of the two functions. */
static int ask_and_print(const struct ctl *ctl, const struct hvd_admin_request *request,
                         void (*json)(const struct ctl *ctl, const struct hvd_admin_answer *reply),
                         void (*show)(const struct ctl *ctl, const struct hvd_admin_answer *reply))
{
    struct hvd_admin_answer *reply;
    const int code = ctl_ask(ctl, request, &reply);
    if (code != CTL_OK)
        return code;
    ctl_say_silent(ctl, reply);
    (ctl->json ? json : show)(ctl, reply);
    hvd_admin_answer_free(reply);
    return CTL_OK;
}

static int run_status(const struct ctl *ctl, char **args, int count)
{
    const struct hvd_admin_request request = ctl_request(HVD_ADMIN_STATUS);
    (void)args, (void)count;
    return ask_and_print(ctl, &request, ctl_json_status, ctl_show_status);
}

static int run_jobs(const struct ctl *ctl, char **args, int count)
{
    struct hvd_admin_request request = ctl_request(HVD_ADMIN_JOBS);
    (void)args, (void)count;
    request.of_mesh = ctl->of_mesh;
    return ask_and_print(ctl, &request, ctl_json_jobs, ctl_show_jobs);
}

static int run_ranks(const struct ctl *ctl, char **args, int count)
{
    struct hvd_admin_request request = ctl_request(HVD_ADMIN_RANKS);
    struct hvd_admin_answer *reply;
    (void)count;
    int code = ctl_copy_job(ctl, args[0], &request);
    if (code == CTL_OK)
        code = ctl_ask(ctl, &request, &reply);
    if (code != CTL_OK)
        return code;
    ctl_say_silent(ctl, reply);
    (ctl->json ? ctl_json_ranks : ctl_show_ranks)(ctl, args[0], reply);
    hvd_admin_answer_free(reply);
    return CTL_OK;
}

static int run_stalls(const struct ctl *ctl, char **args, int count)
{
    struct hvd_admin_request request = ctl_request(HVD_ADMIN_STALLS);
    request.min_age_ns = ctl->min_age_ns;
    const int code = count > 0 ? ctl_copy_job(ctl, args[0], &request) : CTL_OK;
    return code != CTL_OK ? code : ask_and_print(ctl, &request, ctl_json_stalls, ctl_show_stalls);
}

static int run_nodes(const struct ctl *ctl, char **args, int count)
{
    struct hvd_admin_request request = ctl_request(HVD_ADMIN_NODES);
    struct hvd_admin_request jobs_request = ctl_request(HVD_ADMIN_JOBS);
    struct hvd_admin_answer *reply, *jobs;
    (void)args, (void)count;
    int code = ctl_ask(ctl, &request, &reply);
    if (code != CTL_OK)
        return code;
    code = ctl_ask(ctl, &jobs_request, &jobs);
    if (code == CTL_OK) {
        ctl_say_silent(ctl, jobs);
        if (ctl->json)
            ctl_json_nodes(ctl, reply, jobs);
        else
            ctl_show_nodes(ctl, reply);
        if (!ctl->json)
            ctl_show_links(ctl, jobs);
        hvd_admin_answer_free(jobs);
    }
    hvd_admin_answer_free(reply);
    return code;
}

static int run_gpus(const struct ctl *ctl, char **args, int count)
{
    struct hvd_admin_request request = ctl_request(HVD_ADMIN_GPUS);
    struct hvd_admin_answer *reply;
    (void)args, (void)count;
    const int code = ctl_ask(ctl, &request, &reply);
    if (code != CTL_OK)
        return code;
    struct hvd_admin_gpu *gpus = ctl_gpus_ask(reply);
    (ctl->json ? ctl_json_gpus : ctl_show_gpus)(ctl, reply, gpus);
    free(gpus);
    hvd_admin_answer_free(reply);
    return CTL_OK;
}

static int run_limits(const struct ctl *ctl, char **args, int count)
{
    struct hvd_admin_request request = ctl_request(HVD_ADMIN_LIMITS);
    (void)args, (void)count;
    if (ctl->of_owner)
        request.owner = (int64_t)ctl->owner;
    return ask_and_print(ctl, &request, ctl_json_limits, ctl_show_limits);
}

static int run_job_stop(const struct ctl *ctl, char **args, int count)
{
    struct hvd_admin_request request = ctl_request(HVD_ADMIN_JOB_STOP);
    struct hvd_admin_answer *reply;
    (void)count;
    int code = ctl_copy_job(ctl, args[0], &request);
    request.reason = ctl->reason;
    if (code == CTL_OK)
        code = ctl_ask(ctl, &request, &reply);
    if (code != CTL_OK)
        return code;
    char text[HVI_TEXT_MAX + 1];
    snprintf(text, sizeof text, "job %s is being stopped", args[0]);
    ctl_done(ctl, reply->text[0] != '\0' ? reply->text : text);
    hvd_admin_answer_free(reply);
    return CTL_OK;
}

static int run_doctor(const struct ctl *ctl, char **args, int count)
{
    (void)args, (void)count;
    return ctl->peer_server ? ctl_peer_serve(ctl) : ctl_doctor(ctl);
}

static int run_doctor_gpu(const struct ctl *ctl, char **args, int count)
{
    (void)args, (void)count;
    return ctl_doctor_gpu(ctl);
}

static int run_version(const struct ctl *ctl, char **args, int count)
{
    struct hvd_admin_answer *reply;
    char why[512];
    (void)args, (void)count;
    const bool there = ctl_ask_daemon(ctl, &reply, why, sizeof why);
    const bool known = there && reply != NULL && reply->daemon != NULL;
    if (ctl->json)
        ctl_json_version(ctl, known ? reply->daemon->version : NULL);
    else
        fprintf(ctl->out, "hvdctl %s\nhvdd %s\n", HVD_VERSION_TEXT,
                known ? reply->daemon->version : "(none running)");
    hvd_admin_answer_free(reply);
    return CTL_OK;
}

static int run_help(const struct ctl *ctl, char **args, int count);

static const struct command commands[] = {
    {"status", NULL, "", 0, 0, run_status, "the daemon: version, uptime, jobs, sessions"},
    {"jobs", NULL, "", 0, 0, run_jobs, "the jobs it knows; --mesh: those of every node"},
    {"job", "list", "", 0, 0, run_jobs, "the same"},
    {"ranks", NULL, "JOB", 1, 1, run_ranks, "a job's ranks: process, state, ops, arrival lag"},
    {"job", "ranks", "JOB", 1, 1, run_ranks, "the same"},
    {"stalls", NULL, "[JOB]", 0, 1, run_stalls, "ops that wait, and for whom (--min-age S)"},
    {"top", NULL, "[JOB]", 0, 1, ctl_top,
     "ops/s, bytes/s and lag per rank, live (--interval S, --once)"},
    {"events", NULL, "", 0, 0, ctl_events,
     "what happens from now on, a line for each: ranks, jobs, nodes"},
    {"trace", NULL, "JOB", 1, 1, ctl_trace,
     "the last ops of its ranks, dead ones too (--rank R, --last N)"},
    {"timeline", NULL, "JOB start FILE", 0, 3, ctl_timeline,
     "write a Chrome trace of a running job (--mark-cycles); JOB stop"},
    {"job", "stop", "JOB", 1, 1, run_job_stop,
     "end a job with an error on its ranks (--reason TEXT)"},
    {"nodes", NULL, "", 0, 0, run_nodes, "the nodes of the mesh, and their jobs"},
    {"gpus", NULL, "", 0, 0, run_gpus, "the workers that have GPUs for jobs, and their memory"},
    {"limits", NULL, "", 0, 0, run_limits,
     "what users may have, and how much of it they use (--user USER)"},
    {"key", "new", "PREFIX", 0, 1, ctl_key_new,
     "make PREFIX.server and PREFIX.client, keys for jobs on several nodes"},
    {"key", "new", "--node [NAME]", 0, 1, ctl_key_new,
     "make this node's key and an allow-list (--dir DIR)"},
    {"key", "show", "", 0, 0, ctl_key_show, "the key of this node, for other nodes' allow-lists"},
    {"key", "allow", "NAME KEY", 2, 2, ctl_key_allow,
     "let a node into the mesh, as NAME; KEY -: from standard input"},
    {"doctor", "gpu", "", 0, 0, run_doctor_gpu,
     "whether trainers and workers take turns on a GPU, and what that costs (seconds)"},
    {"doctor", NULL, "", 0, 0, run_doctor,
     "what this machine allows, and what to do about the rest (--peer HOST)"},
    {"version", NULL, "", 0, 0, run_version, "versions of hvdctl and of the running hvdd"},
    {"help", NULL, "[COMMAND]", 0, 2, run_help, "this text"},
};

static const char options_text[] =
    "\nOptions:\n"
    "  --address DIR   directory with hvdd's sockets. Default: HVD_ADDRESS, else\n"
    "                  the first with a live daemon of $XDG_RUNTIME_DIR/hvdd,\n"
    "                  /run/hvdd, /tmp/hvdd-UID\n"
    "  --json          one JSON document with raw numbers (ns, bytes)\n"
    "  --timeout S     how long to wait for the daemon (5)\n"
    "  --user USER     whose JOB: several users may have one of that name; limits: of\n"
    "                  this user alone\n"
    "  --min-age S     stalls: only ops that have waited at least this long\n"
    "  --reason TEXT   job stop: what its ranks are told\n"
    "  --rank R        trace: only this rank\n"
    "  --last N        trace: ops per rank, the newest (20; 1024 are kept)\n"
    "  --interval S    top: seconds between two looks (1)\n"
    "  --mark-cycles   timeline: also every pass of the engine that found work\n"
    "  --once          top: one table, over one interval; --json implies it\n"
    "  --peer HOST[:PORT]  doctor: the way to another machine\n"
    "  --peer-server   doctor: measures with a doctor --peer of another machine, which\n"
    "                  is given the key that this one prints\n"
    "  --mesh          jobs: of every node of the mesh\n"
    "  --dir DIR       key: the folder of this node's keys (/etc/hvdd/keys)\n"
    "\nExit status: 0 ok, 1 refused or a problem found, 2 usage, 3 no daemon.\n";

static void print_command(FILE *out, const struct command *row)
{
    char words[64];
    snprintf(words, sizeof words, "%s%s%s%s%s", row->noun, row->verb != NULL ? " " : "",
             row->verb != NULL ? row->verb : "", row->args[0] != '\0' ? " " : "", row->args);
    fprintf(out, "  %-16s %s\n", words, row->help);
}

static int run_help(const struct ctl *ctl, char **args, int count)
{
    size_t found = 0;
    if (count == 0)
        fputs("Usage: hvdctl [options] command\n\nCommands:\n", ctl->out);
    for (size_t i = 0; i < COUNT(commands); i++) {
        if (count > 0 && strcmp(args[0], commands[i].noun) != 0)
            continue;
        print_command(ctl->out, &commands[i]);
        found++;
    }
    if (found == 0) {
        ctl_complain(ctl, HVI_ERR_NOT_FOUND, "no such command: %s. See hvdctl help.", args[0]);
        return CTL_USAGE;
    }
    fputs(options_text, ctl->out);
    return CTL_OK;
}

/* ---- command line ---- */

static const struct option long_options[] = {
    {"address", required_argument, NULL, 'a'},
    {"json", no_argument, NULL, 'j'},
    {"timeout", required_argument, NULL, 't'},
    {"user", required_argument, NULL, 'u'},
    {"min-age", required_argument, NULL, 'm'},
    {"reason", required_argument, NULL, 'r'},
    {"rank", required_argument, NULL, 'R'},
    {"last", required_argument, NULL, 'l'},
    {"interval", required_argument, NULL, 'i'},
    {"once", no_argument, NULL, 'o'},
    {"mark-cycles", no_argument, NULL, 'c'},
    {"help", no_argument, NULL, 'h'},
    {"version", no_argument, NULL, 'v'},
    {"peer", required_argument, NULL, 'p'},
    {"peer-server", no_argument, NULL, 'P'},
    {"node", no_argument, NULL, 'n'},
    {"dir", required_argument, NULL, 'd'},
    {"mesh", no_argument, NULL, 'M'},
    {NULL, 0, NULL, 0},
};

static int seconds_option(const struct ctl *ctl, const char *name, uint64_t *ns_p)
{
    if (text_parse_seconds(optarg, ns_p) == 0)
        return CTL_OK;
    ctl_complain(ctl, HVI_ERR_INVALID, "%s takes a number of seconds, not '%s'", name, optarg);
    return CTL_USAGE;
}

static int number_option(const struct ctl *ctl, const char *name, long min, long max,
                         long *number_p)
{
    if (text_parse_int(optarg, min, max, number_p) == 0)
        return CTL_OK;
    ctl_complain(ctl, HVI_ERR_INVALID, "%s takes a number from %ld to %ld, not '%s'", name, min,
                 max, optarg);
    return CTL_USAGE;
}

/* A name or a number. */
static int user_option(struct ctl *ctl)
{
    const struct passwd *user = getpwnam(optarg);
    long number = 0;
    if (user != NULL)
        number = user->pw_uid;
    else if (text_parse_int(optarg, 0, UINT32_MAX - 1, &number) != 0) {
        ctl_complain(ctl, HVI_ERR_INVALID, "--user takes a user's name or number, not '%s'",
                     optarg);
        return CTL_USAGE;
    }
    ctl->of_owner = true;
    ctl->owner = (uint32_t)number;
    return CTL_OK;
}

/* Options of one command only. */
static int take_special(struct ctl *ctl, int letter)
{
    long number = 0;
    int code = CTL_OK;
    switch (letter) {
    case 'R':
        code = number_option(ctl, "--rank", 0, HVI_JOB_RANKS_MAX - 1, &number);
        ctl->rank = (int32_t)number;
        return code;
    case 'l':
        code = number_option(ctl, "--last", 1, 1024, &number);
        ctl->last = (uint32_t)number;
        return code;
    case 'i':
        code = seconds_option(ctl, "--interval", &ctl->interval_ns);
        if (code == CTL_OK && ctl->interval_ns < 10 * HVI_NS_MS)
            ctl->interval_ns = 10 * HVI_NS_MS;
        return code;
    case 'o':
        ctl->once = true;
        return CTL_OK;
    case 'c':
        ctl->mark_cycles = true;
        return CTL_OK;
    case 'p':
        ctl->peer = optarg;
        return CTL_OK;
    case 'P':
        ctl->peer_server = true;
        return CTL_OK;
    case 'n':
        ctl->of_node = true;
        return CTL_OK;
    case 'd':
        ctl->dir = optarg;
        return CTL_OK;
    case 'M':
        ctl->of_mesh = true;
        return CTL_OK;
    default:
        return CTL_USAGE; /* there is no such option */
    }
}

/* One option; CTL_OK or CTL_USAGE after a complaint. */
static int take_option(struct ctl *ctl, int letter, const char **instead_p)
{
    switch (letter) {
    case 'a':
        ctl->address = optarg;
        return CTL_OK;
    case 'j':
        ctl->json = true;
        return CTL_OK;
    case 't':
        return seconds_option(ctl, "--timeout", &ctl->timeout_ns);
    case 'u':
        return user_option(ctl);
    case 'm':
        return seconds_option(ctl, "--min-age", &ctl->min_age_ns);
    case 'r':
        ctl->reason = optarg;
        return CTL_OK;
    case 'h':
        *instead_p = "help";
        return CTL_OK;
    case 'v':
        *instead_p = "version";
        return CTL_OK;
    default:
        return take_special(ctl, letter);
    }
}

static int complain_option(const struct ctl *ctl, int letter, const char *word)
{
    if (letter == ':')
        ctl_complain(ctl, HVI_ERR_INVALID, "option '%s' requires an argument", word);
    else if (optopt != 0 && word[1] != '-')
        ctl_complain(ctl, HVI_ERR_INVALID, "unrecognized option '-%c'", optopt);
    else
        ctl_complain(ctl, HVI_ERR_INVALID, "unrecognized option '%s'", word);
    return CTL_USAGE;
}

/* "-": words stay where they are, as the second look needs them. */
static bool wants_json(int argc, char **argv)
{
    bool wanted = false;
    int letter;
    opterr = 0; /* for the second look, too */
    while ((letter = getopt_long(argc, argv, "-:hj", long_options, NULL)) != -1)
        wanted = wanted || letter == 'j';
    optind = 0; /* from the beginning */
    return wanted;
}

/* CTL_OK, or CTL_USAGE after a complaint, for which --json may stand behind the option that is wrong. */
static int take_options(struct ctl *ctl, int argc, char **argv, const char **instead_p)
{
    int letter, code = CTL_OK;
    ctl->json = wants_json(argc, argv);
    while (code == CTL_OK && (letter = getopt_long(argc, argv, ":hj", long_options, NULL)) != -1) {
        const bool bad = letter == ':' || letter == '?';
        code = bad ? complain_option(ctl, letter, argv[optind - 1])
                   : take_option(ctl, letter, instead_p);
    }
    return code;
}

/* The row for these words; *used_p: how many of them are its name. */
static const struct command *find_command(char **words, int count, int *used_p)
{
    for (size_t i = 0; i < COUNT(commands); i++) {
        const struct command *row = &commands[i];
        const int used = row->verb != NULL ? 2 : 1;
        if (count < used || strcmp(words[0], row->noun) != 0)
            continue;
        if (row->verb != NULL && strcmp(words[1], row->verb) != 0)
            continue;
        *used_p = used;
        return row;
    }
    return NULL;
}

static bool is_noun(const char *word)
{
    for (size_t i = 0; i < COUNT(commands); i++) {
        if (strcmp(commands[i].noun, word) == 0)
            return true;
    }
    return false;
}

static int dispatch(const struct ctl *ctl, char **words, int count)
{
    int used = 0;
    if (count == 0) {
        ctl_complain(ctl, HVI_ERR_INVALID, "which command? See hvdctl help.");
        return CTL_USAGE;
    }
    const struct command *row = find_command(words, count, &used);
    if (row == NULL) {
        const bool known = is_noun(words[0]);
        ctl_complain(ctl, HVI_ERR_INVALID, "no such command: %s%s%s. See hvdctl help%s%s.",
                     words[0], count > 1 ? " " : "", count > 1 ? words[1] : "", known ? " " : "",
                     known ? words[0] : "");
        return CTL_USAGE;
    }
    count -= used;
    if (count < row->args_min || count > row->args_max) {
        ctl_complain(ctl, HVI_ERR_INVALID, "usage: hvdctl %s%s%s%s%s", row->noun,
                     row->verb != NULL ? " " : "", row->verb != NULL ? row->verb : "",
                     row->args[0] != '\0' ? " " : "", row->args);
        return CTL_USAGE;
    }
    return row->run(ctl, words + used, count);
}

int main(int argc, char **argv)
{
    struct ctl ctl = {.timeout_ns = 5 * HVI_NS_SEC,
                      .rank = -1,
                      .last = 20,
                      .interval_ns = HVI_NS_SEC,
                      .out = stdout};
    const char *instead = NULL;
    if (take_options(&ctl, argc, argv, &instead) != CTL_OK)
        return CTL_USAGE;
    const char *no_color = getenv("NO_COLOR");
    ctl.colours = !ctl.json && isatty(STDOUT_FILENO) && (no_color == NULL || no_color[0] == '\0');
    int code;
    if (instead != NULL) {
        char *word = strdup(instead);
        code = dispatch(&ctl, &word, 1);
        free(word);
    } else {
        code = dispatch(&ctl, argv + optind, argc - optind);
    }
    /* What an earlier flush could not write, as that of top, is in the stream's error alone. */
    if ((fflush(stdout) != 0 || ferror(stdout)) && code == CTL_OK)
        code = CTL_REFUSED;
    return code;
}
