/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/hvdrun/options.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/types.h"
#include "proto/launch.h"
#include "tools/common/text.h"
#include "tools/hvdrun/config.h"
#include "tools/hvdrun/flags.h"
#include "tools/hvdrun/hosts.h"
#include "tools/hvdrun/lsf.h"

#include <getopt.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define FLAGS_MAX 128 /* rows */
#define LETTERS   "n:p:i:H:"
#define MANY      1000000000000L

/* Where a value goes, and where to complain. */
struct taking {
    struct run_options *options;
    const struct run_flag *flag;
    const char *value; /* NULL for switches */
    char *text;
    size_t text_size;
};

__attribute__((format(printf, 2, 3))) static int complain(const struct taking *taking,
                                                          const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(taking->text, taking->text_size, format, arguments);
    va_end(arguments);
    return -1;
}

/* ---- values ---- */

/* cycle_time_ms: the name in Horovod's own words about a value. */
static int complain_range(const struct taking *taking, const char *range)
{
    char name[64];
    snprintf(name, sizeof name, "%s", taking->flag->name);
    for (char *dash = name; (dash = strchr(dash, '-')) != NULL;)
        *dash = '_';
    return complain(taking, "%s=%s must be %s", name, taking->value, range);
}

static int check_number(const struct taking *taking, double *number_p)
{
    char *end;
    const double number = strtod(taking->value, &end);
    if (end == taking->value || *end != '\0' || !isfinite(number))
        return complain(taking, "--%s takes a number, not '%s'", taking->flag->name, taking->value);
    if (taking->flag->kind == RUN_FLAG_FRACTION && !(number >= 0 && number <= 1))
        return complain_range(taking, "in [0, 1]");
    if (number < 0)
        return complain_range(taking, ">= 0");
    *number_p = number;
    return 0;
}

static int check_count(const struct taking *taking, long max, long *count_p)
{
    if (text_parse_int(taking->value, -MANY, max, count_p) != 0)
        return complain(taking, "--%s takes a whole number up to %ld, not '%s'", taking->flag->name,
                        max, taking->value);
    return *count_p < 0 ? complain_range(taking, ">= 0") : 0;
}

static int check_seconds(const struct taking *taking, uint64_t *ns_p)
{
    double number;
    if (check_number(taking, &number) != 0)
        return -1;
    if (text_parse_seconds(taking->value, ns_p) != 0)
        return complain(taking, "--%s takes a number of seconds up to a year, not '%s'",
                        taking->flag->name, taking->value);
    return 0;
}

static int set_ranks(const struct taking *taking)
{
    long number;
    if (text_parse_int(taking->value, 1, HVI_LAUNCH_SIZE_MAX, &number) != 0)
        return complain(taking, "-np takes a number of processes from 1 to %d, not '%s'",
                        HVI_LAUNCH_SIZE_MAX, taking->value);
    taking->options->ranks = (int)number;
    return 0;
}

/* NAME=value, or NAME for the value that it has here. */
static int add_variable(const struct taking *taking)
{
    struct run_options *options = taking->options;
    const char *value = taking->value;
    const char *inherited = strchr(value, '=') == NULL ? getenv(value) : NULL;
    char *text;
    if (value[0] == '\0' || value[0] == '=')
        return complain(taking, "-x takes NAME or NAME=VALUE, not '%s'", value);
    if (strchr(value, '=') == NULL && inherited == NULL)
        return complain(taking, "-x %s: there is no such variable; give -x %s=VALUE", value, value);
    if (options->variable_count == RUN_VARIABLES_MAX)
        return complain(taking, "-x: at most %d variables", RUN_VARIABLES_MAX);
    if (asprintf(&text, "%s%s%s", value, inherited != NULL ? "=" : "",
                 inherited != NULL ? inherited : "") < 0)
        return complain(taking, "out of memory");
    options->variables[options->variable_count++] = text;
    return 0;
}

static int set_binding(const struct taking *taking)
{
    taking->options->bind_to_core = strcmp(taking->value, "core") == 0;
    taking->options->bind_to_nothing = strcmp(taking->value, "none") == 0;
    if (taking->options->bind_to_core || taking->options->bind_to_nothing ||
        strcmp(taking->value, "host") == 0)
        return 0;
    return complain(taking, "--bind-to takes core, host or none, not '%s'", taking->value);
}

static int set_level(const struct taking *taking)
{
    const int level = hvi_log_level_parse(taking->value);
    if (level < 0)
        return complain(taking,
                        "--log-level takes trace, debug, info, warning, error or fatal, not '%s'",
                        taking->value);
    taking->options->log_level = hvi_log_level_text((enum hvi_log_level)level);
    return 0;
}

static int add_to_list(const struct taking *taking, char **list)
{
    char *longer;
    if (*list == NULL ? (longer = strdup(taking->value)) == NULL
                      : asprintf(&longer, "%s,%s", *list, taking->value) < 0)
        return complain(taking, "out of memory");
    free(*list);
    *list = longer;
    return 0;
}

/* Checks the value and sets the member, if there is one. *export_p is what the ranks are told;
 * `room` is for a value that is not handed on as it is. */
static int set_member(const struct taking *taking, char room[32], const char **export_p)
{
    const struct run_flag *flag = taking->flag;
    const bool has_member = flag->member != RUN_FLAG_NO_MEMBER;
    void *member = has_member ? (char *)taking->options + flag->member : NULL;
    double number;
    long count;
    uint64_t ns;
    *export_p = taking->value;
    switch (flag->kind) {
    case RUN_FLAG_GROUP:
        break;
    case RUN_FLAG_ON:
    case RUN_FLAG_OFF:
        *export_p = flag->kind == RUN_FLAG_ON ? "1" : "0";
        if (has_member)
            *(bool *)member = flag->kind == RUN_FLAG_ON;
        return 0;
    case RUN_FLAG_TEXT:
        if (has_member)
            *(const char **)member = taking->value;
        return 0;
    case RUN_FLAG_SECONDS:
        return check_seconds(taking, has_member ? member : &ns);
    case RUN_FLAG_COUNT:
        if (has_member)
            *(const char **)member = taking->value;
        return check_count(taking, MANY, &count);
    case RUN_FLAG_NUMBER:
    case RUN_FLAG_FRACTION:
        return check_number(taking, &number);
    case RUN_FLAG_MEGABYTES:
        if (check_count(taking, MANY >> 20, &count) != 0)
            return -1;
        snprintf(room, 32, "%ld", count << 20);
        *export_p = room;
        return 0;
    case RUN_FLAG_RANKS:
        return set_ranks(taking);
    case RUN_FLAG_LEVEL:
        return set_level(taking);
    case RUN_FLAG_BINDING:
        return set_binding(taking);
    case RUN_FLAG_VARIABLE:
        return add_variable(taking);
    case RUN_FLAG_LIST:
        return has_member ? add_to_list(taking, member) : 0;
    }
    return -1;
}

static void drop_export(struct run_options *options, size_t index)
{
    free(options->exports[index]);
    options->exports[index] = options->exports[--options->export_count];
}

static int set_export(const struct taking *taking, const char *value)
{
    struct run_options *options = taking->options;
    char *text;
    if (asprintf(&text, "HOROVOD_%s=%s", taking->flag->variable, value) < 0)
        return complain(taking, "out of memory");
    const size_t length = strcspn(text, "=") + 1;
    for (size_t i = 0; i < options->export_count; i++)
        if (strncmp(options->exports[i], text, length) == 0)
            drop_export(options, i--);
    if (options->export_count == RUN_EXPORTS_MAX) {
        free(text);
        return complain(taking, "too many settings for the ranks");
    }
    options->exports[options->export_count++] = text;
    return 0;
}

/* A switch and its opposite are rows with the same variable: the later one counts. */
static void note_idle(struct run_options *options, const struct run_flag *flag)
{
    size_t kept = 0;
    for (size_t i = 0; i < options->idle_count; i++) {
        const struct run_flag *other = options->idle[i];
        const bool replaced = other == flag || (other->variable != NULL && flag->variable != NULL &&
                                                strcmp(other->variable, flag->variable) == 0);
        if (!replaced)
            options->idle[kept++] = other;
    }
    if (flag->kind != RUN_FLAG_OFF && kept < RUN_IDLE_MAX)
        options->idle[kept++] = flag;
    options->idle_count = kept;
}

static int take(const struct taking *taking)
{
    char room[32];
    const char *value;
    const struct run_flag *flag = taking->flag;
    if (flag->effect == RUN_FLAG_REFUSED)
        return complain(taking, "--%s is not available: %s", flag->name, flag->text);
    if (set_member(taking, room, &value) != 0)
        return -1;
    if (flag->effect == RUN_FLAG_IDLE || flag->effect == RUN_FLAG_SPREAD)
        note_idle(taking->options, flag);
    return flag->variable != NULL ? set_export(taking, value) : 0;
}

/* ---- the command line ---- */

/* getopt's `val` of a row: beyond the characters, of which ':' and '?' mean something. */
enum { OPTION_FIRST = 256, OPTION_HELP_MAN = OPTION_FIRST + FLAGS_MAX, OPTION_CALL_DIR };

static void build_getopt(struct option *out)
{
    for (size_t i = 0; i < run_flag_count; i++) {
        const struct run_flag *flag = &run_flags[i];
        const char *const names[] = {flag->name, flag->other};
        for (size_t n = 0; n < 2 && flag->kind != RUN_FLAG_GROUP && names[n] != NULL; n++)
            *out++ = (struct option){
                .name = names[n],
                .has_arg = flag->arg != NULL ? required_argument : no_argument,
                .val = OPTION_FIRST + (int)i,
            };
    }
    *out++ = (struct option){.name = "help-man", .val = OPTION_HELP_MAN};
    *out++ =
        (struct option){.name = "call-dir", .has_arg = required_argument, .val = OPTION_CALL_DIR};
    *out = (struct option){.name = NULL};
}

/* The row of an option of one letter, whose value may follow at once: -p2222. -n is what argparse takes for -np. */
static const struct run_flag *flag_of_letter(int letter)
{
    const char name[] = {(char)letter, '\0'};
    for (size_t i = 0; i < run_flag_count; i++)
        if (run_flags[i].other != NULL &&
            strcmp(run_flags[i].other, letter == 'n' ? "np" : name) == 0)
            return &run_flags[i];
    return NULL;
}

/* The word that getopt does not know may be the beginning of an option of horovodrun's and of some
 * of hvdrun's own: then horovodrun's is meant. -1 after a complaint. */
static int take_beginning(int argc, char **argv, int at, struct taking *taking)
{
    const char *equals = strchr(argv[at], '=');
    taking->flag = run_flag_of_horovods(argv[at]);
    if (taking->flag == NULL || (taking->flag->arg == NULL && equals != NULL))
        return complain(taking, "unknown or ambiguous option %s", argv[at]);
    taking->value = equals != NULL ? equals + 1 : NULL;
    if (taking->flag->arg != NULL && equals == NULL) {
        if (optind >= argc)
            return complain(taking, "%s needs a value", argv[at]);
        taking->value = argv[optind++];
    }
    return take(taking);
}

/* Horovod's shell takes the words NAME=VALUE before a command for its environment. */
static bool is_assignment(const char *word)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_0123456789";
    const size_t length = strspn(word, letters);
    return length > 0 && word[length] == '=' && (word[0] < '0' || word[0] > '9');
}

/* -1 after a complaint. */
static int take_command(char **words, struct taking *taking)
{
    for (; taking->options->compat && *words != NULL && is_assignment(*words); words++) {
        taking->value = *words;
        if (add_variable(taking) != 0)
            return -1;
    }
    taking->options->command = words;
    return 0;
}

/* -1 after a complaint. */
static int parse_line(int argc, char **argv, struct taking *taking)
{
    struct option table[2 * FLAGS_MAX + 3];
    HVI_ASSERT(run_flag_count <= FLAGS_MAX);
    build_getopt(table);
    optind = 0; /* start anew */
    opterr = 0;
    for (;;) {
        const int at = optind > 0 ? optind : 1;
        const int found = getopt_long_only(argc, argv, "+:" LETTERS, table, NULL);
        if (found == -1)
            break;
        if (found == ':')
            return complain(taking, "%s needs a value", argv[at]);
        if (found == '?') {
            if (take_beginning(argc, argv, at, taking) != 0)
                return -1;
            continue;
        }
        if (found == OPTION_HELP_MAN) {
            taking->options->help_man = true;
            continue;
        }
        if (found == OPTION_CALL_DIR) {
            taking->options->call_dir = optarg;
            continue;
        }
        taking->flag =
            found < OPTION_FIRST ? flag_of_letter(found) : &run_flags[found - OPTION_FIRST];
        taking->value = optarg;
        if (take(taking) != 0)
            return -1;
    }
    return take_command(argv + optind, taking);
}

/* ---- the configuration file ---- */

static void note_unknown(struct run_options *options, const struct run_config_entry *entry)
{
    const size_t used = strlen(options->unknown);
    snprintf(options->unknown + used, sizeof options->unknown - used, "%s%s (line %zu)",
             used > 0 ? ", " : "", entry->key, entry->line);
}

/* A key is another spelling of an option. */
static int take_entry(void *context, const struct run_config_entry *entry, char *text_p,
                      size_t text_size)
{
    const struct taking *whole = context;
    bool known;
    const struct taking taking = {
        .options = whole->options,
        .flag = run_flag_of_key(entry->key, entry->value, &known),
        .value = entry->value,
        .text = text_p,
        .text_size = text_size,
    };
    if (taking.flag != NULL)
        return take(&taking);
    if (known)
        return complain(&taking, "%s cannot be '%s'", entry->key, entry->value);
    note_unknown(whole->options, entry);
    return 0;
}

/* ---- the whole ---- */

static int read_hosts(const struct taking *taking)
{
    struct run_options *options = taking->options;
    if (options->hosts != NULL && options->hostfile != NULL)
        return complain(taking, "--hosts and --hostfile exclude each other: give one of them");
    if (options->hosts != NULL)
        return run_hosts_parse(options->hosts, &options->places, taking->text, taking->text_size);
    if (options->hostfile != NULL)
        return run_hosts_read(options->hostfile, &options->places, taking->text, taking->text_size);
    return 0;
}

/* A job of LSF on several hosts is not started on this one alone unless that is asked for. */
static bool needs_hosts(const struct taking *taking)
{
    const struct run_options *options = taking->options;
    return options->hosts == NULL && options->hostfile == NULL && options->ranks != 1 &&
           run_lsf_has_hosts(options->ranks, taking->text, taking->text_size);
}

/* Every host serves so many ranks at most. */
static int check_hosts(const struct taking *taking)
{
    struct run_options *options = taking->options;
    if (read_hosts(taking) != 0)
        return -1;
    const long slots = run_hosts_slots(&options->places);
    if (options->ranks == 0 && slots <= HVI_LAUNCH_SIZE_MAX)
        options->ranks = (int)slots;
    if ((options->hosts != NULL || options->hostfile != NULL) && options->ranks > slots)
        return complain(taking,
                        "Requested more processes (%d) than there are available slots (%ld)",
                        options->ranks, slots);
    run_hosts_fill(&options->places, options->ranks);
    for (size_t i = 0; i < options->places.count; i++)
        if (options->places.list[i].ranks > HVI_RANKS_MAX)
            return complain(taking, "one host has 1 to %d processes, and %s would have %d",
                            HVI_RANKS_MAX, options->places.list[i].name,
                            options->places.list[i].ranks);
    if (options->places.count == 0 && options->ranks > HVI_RANKS_MAX)
        return complain(taking, "-np takes a number of processes from 1 to %d on one host, not %d",
                        HVI_RANKS_MAX, options->ranks);
    return 0;
}

static int check_whole(const struct taking *taking)
{
    const struct run_options *options = taking->options;
    if (options->help || options->help_man || options->version || options->check_build)
        return 0;
    if (needs_hosts(taking) || check_hosts(taking) != 0)
        return -1;
    if (options->ranks == 0)
        return complain(taking, "how many processes? Give -np N");
    if (options->command[0] == NULL)
        return complain(taking, "which command? %s -np %d command...", run_options_program(options),
                        options->ranks);
    return 0;
}

/* The time for the start that the environment gives, if any. */
static int take_environment(struct taking *taking)
{
    static const char *const names[] = {"HVD_START_TIMEOUT", "HOROVOD_START_TIMEOUT"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *text = getenv(names[i]);
        if (text == NULL || text[0] == '\0')
            continue;
        if (text_parse_seconds(text, &taking->options->start_timeout_ns) == 0)
            return 0;
        return complain(taking, "%s is no number of seconds: '%s'", names[i], text);
    }
    return 0;
}

/* How autotuning is to work is of no interest unless it is on. */
static void drop_tuning(struct run_options *options)
{
    for (size_t i = 0; i < options->export_count && !options->autotune; i++)
        if (strncmp(options->exports[i], "HOROVOD_AUTOTUNE_", 17) == 0)
            drop_export(options, i--);
}

static void set_defaults(struct run_options *options_p, const char *program)
{
    const char *slash = strrchr(program, '/');
    *options_p = (struct run_options){
        .start_timeout_ns = 30 * HVI_NS_SEC,
        .report_ns = HVI_NS_SEC,
        .grace_ns = 5 * HVI_NS_SEC,
        .silence_ns = 30 * HVI_NS_SEC,
        .compat = strcmp(slash != NULL ? slash + 1 : program, "horovodrun") == 0,
    };
}

/* Options from a file come first, so that those on the command line, wherever --config-file stands
 * there, are taken over them: the command line is parsed once to find the file, and again. */
static int parse(int argc, char **argv, struct taking *taking)
{
    struct run_options *options = taking->options;
    set_defaults(options, argv[0]);
    if (take_environment(taking) != 0 || parse_line(argc, argv, taking) != 0)
        return -1;
    const char *file = options->config_file;
    if (options->gloo + options->mpi + options->jsrun > 1)
        return complain(taking, "--gloo, --mpi and --jsrun exclude each other: give one of them");
    if (file != NULL) {
        run_options_fini(options);
        set_defaults(options, argv[0]);
        if (take_environment(taking) != 0 ||
            run_config_read(file, take_entry, taking, taking->text, taking->text_size) != 0 ||
            parse_line(argc, argv, taking) != 0)
            return -1;
    }
    drop_tuning(options);
    return check_whole(taking);
}

int run_options_parse(int argc, char **argv, struct run_options *options_p, char *text_p,
                      size_t text_size)
{
    struct run_options options;
    struct taking taking = {.options = &options, .text = text_p, .text_size = text_size};
    if (parse(argc, argv, &taking) != 0) {
        run_options_fini(&options);
        return -1;
    }
    *options_p = options;
    return 0;
}

void run_options_fini(struct run_options *options)
{
    for (size_t i = 0; i < options->export_count; i++)
        free(options->exports[i]);
    for (size_t i = 0; i < options->variable_count; i++)
        free(options->variables[i]);
    options->export_count = 0;
    options->variable_count = 0;
    free(options->interfaces);
    options->interfaces = NULL;
    run_hosts_fini(&options->places);
}

const char *run_options_program(const struct run_options *options)
{
    return options->compat ? "horovodrun" : "hvdrun";
}

/* ---- what is printed ---- */

/* Why it has no effect in this job; NULL: it has one. */
static const char *why_idle(const struct run_options *options, const struct run_flag *flag)
{
    if (flag->effect == RUN_FLAG_IDLE)
        return flag->text;
    return run_hosts_are_spread(&options->places) ? NULL : "every process runs on this machine";
}

void run_options_tell_idle(const struct run_options *options, FILE *out)
{
    bool told[RUN_IDLE_MAX] = {false};
    if (options->unknown[0] != '\0')
        fprintf(out, "hvdrun: %s has what means nothing to hvdrun and is ignored: %s\n",
                options->config_file, options->unknown);
    for (size_t i = 0; i < options->idle_count; i++) {
        const char *why = why_idle(options, options->idle[i]);
        if (told[i] || why == NULL)
            continue;
        fputs("hvdrun: ", out);
        for (size_t other = i; other < options->idle_count; other++) {
            const char *its = why_idle(options, options->idle[other]);
            if (its == NULL || strcmp(its, why) != 0)
                continue;
            fprintf(out, "%s--%s", other > i ? ", " : "", options->idle[other]->name);
            told[other] = true;
        }
        fprintf(out, ": accepted without effect: %s\n", why);
    }
}
