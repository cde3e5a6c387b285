/* SPDX-License-Identifier: Apache-2.0
 * Options from config.def. The file is read whole (it is small) and taken line by line from
 * memory, so that the same code can be fuzzed. inih has no room for four names of hosts in a line, and takes an
 * indented line for more of the value above it. */
#include "daemon/node/config.h"

#include "base/limits.h"
#include "base/status.h"
#include "daemon/node/rundir.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FILE_BYTES_MAX (64u * 1024u)
#define LINE_BYTES_MAX 1024u

const struct node_config_row node_config_rows[] = {
#define NODE_OPTION(member, name_, type_, standard_, apply_, smallest_, largest_, argument_,       \
                    help_)                                                                         \
    {.name = (name_),                                                                              \
     .type = NODE_TYPE_##type_,                                                                    \
     .apply = NODE_APPLY_##apply_,                                                                 \
     .offset = offsetof(struct node_config, member),                                               \
     .standard = (standard_),                                                                      \
     .smallest = (int64_t)(smallest_),                                                             \
     .largest = (int64_t)(largest_),                                                               \
     .argument = (argument_),                                                                      \
     .help = (help_)},
#include "daemon/node/config.def"
#undef NODE_OPTION
};
const size_t node_config_row_count = sizeof(node_config_rows) / sizeof(node_config_rows[0]);

struct unit {
    const char *name;
    int64_t factor;
};
/* Largest first: formatting takes the first that divides the value. */
static const struct unit time_units[] = {
    {"h", 3600 * (int64_t)HVI_NS_SEC},
    {"m", 60 * (int64_t)HVI_NS_SEC},
    {"s", (int64_t)HVI_NS_SEC},
    {"ms", (int64_t)HVI_NS_MS},
    {"us", 1000},
    {"ns", 1},
    {NULL, 0},
};
static const struct unit byte_units[] = {
    {"T", 1ll << 40}, {"G", 1ll << 30}, {"M", 1ll << 20}, {"K", 1ll << 10}, {"", 1}, {NULL, 0},
};

static void *member_at(struct node_config *config, const struct node_config_row *row)
{
    return (char *)config + row->offset;
}

static int64_t number_of(const struct node_config *config, const struct node_config_row *row)
{
    int64_t number;
    memcpy(&number, (const char *)config + row->offset, sizeof(number));
    return number;
}

const struct node_config_row *node_config_find(const char *name)
{
    for (size_t i = 0; i < node_config_row_count; i++) {
        const char *row = node_config_rows[i].name, *at = name;
        while (*row != '\0' && (*row == *at || (*row == '-' && *at == '_')))
            row++, at++;
        if (*row == '\0' && *at == '\0')
            return &node_config_rows[i];
    }
    return NULL;
}

/* "1.5G" with the given units; `bare` is the factor of a number without one. */
static bool parse_scaled(const char *text, const struct unit *units, int64_t bare,
                         int64_t *number_p)
{
    char *end;
    int64_t factor = 0;
    double value;

    if (*text < '0' || *text > '9')
        return false;
    errno = 0;
    int64_t whole = strtoll(text, &end, 10);
    bool is_whole = *end != '.';
    value = is_whole ? 0 : strtod(text, &end);
    if (errno != 0)
        return false;
    while (*end == ' ')
        end++;
    if (*end == '\0')
        factor = bare;
    for (; factor == 0 && units->name != NULL; units++)
        if (strcmp(end, units->name) == 0)
            factor = units->factor;
    if (factor == 0)
        return false;
    if (is_whole)
        return !__builtin_mul_overflow(whole, factor, number_p);
    value *= (double)factor;
    if (!(value < 9.2e18))
        return false;
    *number_p = (int64_t)(value + 0.5);
    return true;
}

static bool parse_bytes(const char *text, int64_t *number_p)
{
    char plain[64];
    size_t length = strlen(text);

    if (length >= sizeof(plain))
        return false;
    memcpy(plain, text, length + 1);
    if (length > 1 && plain[length - 1] == 'B')
        plain[--length] = '\0';
    if (length > 1 && plain[length - 1] == 'i')
        plain[--length] = '\0';
    if (length > 0 && plain[length - 1] >= 'a' && plain[length - 1] <= 'z')
        plain[length - 1] = (char)(plain[length - 1] - 'a' + 'A');
    return parse_scaled(plain, byte_units, 1, number_p);
}

static bool parse_integer(const char *text, int base, int64_t *number_p)
{
    char *end;
    errno = 0;
    int64_t number = strtoll(text, &end, base);
    if (errno != 0 || end == text || *end != '\0' || *text == ' ' || *text == '+')
        return false;
    *number_p = number;
    return true;
}

static bool parse_switch(const char *text, int64_t *number_p)
{
    static const struct {
        const char *word;
        int64_t number;
    } words[] = {{"yes", 1}, {"no", 0}, {"true", 1}, {"false", 0}, {"on", 1},
                 {"off", 0}, {"1", 1},  {"0", 0},    {"auto", -1}};
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if (strcmp(text, words[i].word) == 0) {
            *number_p = words[i].number;
            return true;
        }
    }
    return false;
}

static bool parse_number(enum node_config_type type, const char *text, int64_t *number_p)
{
    switch (type) {
    case NODE_TYPE_COUNT:
    case NODE_TYPE_FD:
        return parse_integer(text, 10, number_p);
    case NODE_TYPE_MODE:
        return parse_integer(text, 8, number_p);
    case NODE_TYPE_TIME:
        return parse_scaled(text, time_units, (int64_t)HVI_NS_SEC, number_p);
    case NODE_TYPE_BYTES:
        return parse_bytes(text, number_p);
    case NODE_TYPE_SWITCH:
        return parse_switch(text, number_p);
    case NODE_TYPE_LEVEL:
        *number_p = hvi_log_level_parse(text);
        return *number_p >= 0;
    case NODE_TYPE_TEXT:
        break;
    }
    return false;
}

static void format_scaled(int64_t number, const struct unit *units, char *text_p, size_t text_size)
{
    while (units[1].name != NULL && (number % units->factor != 0 || number == 0))
        units++;
    snprintf(text_p, text_size, "%lld%s", (long long)(number / units->factor),
             number == 0 ? "" : units->name);
}

static void format_number(enum node_config_type type, int64_t number, char *text_p,
                          size_t text_size)
{
    switch (type) {
    case NODE_TYPE_TIME:
        format_scaled(number, time_units, text_p, text_size);
        break;
    case NODE_TYPE_BYTES:
        format_scaled(number, byte_units, text_p, text_size);
        break;
    case NODE_TYPE_MODE:
        snprintf(text_p, text_size, "%04llo", (unsigned long long)number);
        break;
    case NODE_TYPE_SWITCH:
        snprintf(text_p, text_size, "%s", number < 0 ? "auto" : number > 0 ? "yes" : "no");
        break;
    case NODE_TYPE_LEVEL:
        snprintf(text_p, text_size, "%s", hvi_log_level_text((enum hvi_log_level)number));
        break;
    default:
        snprintf(text_p, text_size, "%lld", (long long)number);
    }
}

void node_config_format(const struct node_config *config, const struct node_config_row *row,
                        char *text_p, size_t text_size)
{
    if (row->type == NODE_TYPE_TEXT)
        snprintf(text_p, text_size, "%s", (const char *)config + row->offset);
    else
        format_number(row->type, number_of(config, row), text_p, text_size);
}

/* "a time between 10ms and 1h", for errors and the man page. */
static void describe_range(const struct node_config_row *row, char *text_p, size_t text_size)
{
    static const char *const kinds[] = {
        [NODE_TYPE_COUNT] = "a number",
        [NODE_TYPE_TIME] = "a time (ms, s, m, h)",
        [NODE_TYPE_BYTES] = "a size (K, M, G, T)",
        [NODE_TYPE_FD] = "a descriptor number",
        [NODE_TYPE_MODE] = "an octal file mode",
    };
    char smallest[32], largest[32];

    if (row->type == NODE_TYPE_SWITCH) {
        snprintf(text_p, text_size, row->smallest < 0 ? "yes, no or auto" : "yes or no");
    } else if (row->type == NODE_TYPE_LEVEL) {
        snprintf(text_p, text_size, "error, warning, info, debug or trace");
    } else if (row->type == NODE_TYPE_TEXT) {
        snprintf(text_p, text_size, "at most %d bytes of text", HVI_WIRE_PATH - 1);
    } else {
        format_number(row->type, row->smallest, smallest, sizeof(smallest));
        format_number(row->type, row->largest, largest, sizeof(largest));
        if (row->largest == INT64_MAX)
            snprintf(text_p, text_size, "%s, at least %s", kinds[row->type], smallest);
        else
            snprintf(text_p, text_size, "%s between %s and %s", kinds[row->type], smallest,
                     largest);
    }
}

int node_config_set(struct node_config *config, const struct node_config_row *row,
                    const char *value, char *text_p, size_t text_size)
{
    char range[160];
    int64_t number = 0;
    bool good;

    if (row->type == NODE_TYPE_TEXT)
        good = strlen(value) < HVI_WIRE_PATH;
    else
        good = parse_number(row->type, value, &number) && number >= row->smallest &&
               number <= row->largest;
    if (!good) {
        describe_range(row, range, sizeof(range));
        snprintf(text_p, text_size, "%s: \"%.64s\" is not %s", row->name, value, range);
        return HVI_ERR_INVALID;
    }
    if (row->type == NODE_TYPE_TEXT)
        strcpy(member_at(config, row), value);
    else
        memcpy(member_at(config, row), &number, sizeof(number));
    return HVI_OK;
}

void node_config_defaults(struct node_config *config_p)
{
    char text[NODE_CONFIG_ERROR];

    memset(config_p, 0, sizeof(*config_p));
    for (size_t i = 0; i < node_config_row_count; i++)
        node_config_set(config_p, &node_config_rows[i], node_config_rows[i].standard, text,
                        sizeof(text));
}

bool node_config_differs(const struct node_config_row *row, const struct node_config *a,
                         const struct node_config *b)
{
    if (row->type == NODE_TYPE_TEXT)
        return strcmp((const char *)a + row->offset, (const char *)b + row->offset) != 0;
    return number_of(a, row) != number_of(b, row);
}

void node_config_copy(const struct node_config_row *row, const struct node_config *from,
                      struct node_config *to)
{
    size_t bytes = row->type == NODE_TYPE_TEXT ? HVI_WIRE_PATH : sizeof(int64_t);
    memcpy((char *)to + row->offset, (const char *)from + row->offset, bytes);
}

/* ---- the file
 * ----------------------------------------------------------------------------------------------------
 */

struct reading {
    struct node_config *config;
    const char *file;
    unsigned line;
    bool private_mode; /* of the service's file */
    bool failed;
    char *text_p;
    size_t text_size;
};

static void reading_fail(struct reading *reading, const char *sentence)
{
    reading->failed = true;
    snprintf(reading->text_p, reading->text_size, "%s:%u: %s", reading->file, reading->line,
             sentence);
}

/* Where the service is, its programs, its part in a mesh and how long it lives. A private hvdd has these of its
 * user's command line and environment, or the defaults. */
static const char *const services_own[] = {
    "runtime-dir",   "private",     "engine",     "gate",       "gpu-program", "gpu-kernels",
    "engine-socket", "gate-socket", "gpu-socket", "admin-mode", "idle-exit",   "mesh-seeds",
    "mesh-listen",   "mesh-join",   "mesh-key",   "rendezvous",
};

/* What holds for all jobs of the machine, but for a user who says otherwise by a variable. */
static const struct {
    const char *name, *variable, *horovods;
} for_all[] = {
    {"encrypt", "HVD_ENCRYPT", NULL},
    {"interface", "HVD_INTERFACE", "HOROVOD_GLOO_IFACE"},
    {"net-lanes", "HVD_NET_LANES", NULL},
    {"net-transport", "HVD_NET_TRANSPORT", NULL},
    {"port-range", "HVD_PORT_RANGE", NULL},
    {"start-timeout", "HVD_START_TIMEOUT", "HOROVOD_START_TIMEOUT"},
    {"trusted-networks", "HVD_TRUSTED_NETWORKS", NULL},
};

static bool is_services_own(const struct node_config_row *row)
{
    for (size_t i = 0; i < sizeof(services_own) / sizeof(services_own[0]); i++)
        if (strcmp(row->name, services_own[i]) == 0)
            return true;
    return false;
}

/* NULL: there is none. */
static const char *variable_before(const struct node_config_row *row)
{
    for (size_t i = 0; i < sizeof(for_all) / sizeof(for_all[0]); i++)
        if (strcmp(row->name, for_all[i].name) == 0)
            return for_all[i].variable;
    return NULL;
}

static bool is_said(const char *variable)
{
    const char *value = variable == NULL ? NULL : getenv(variable);
    return value != NULL && value[0] != '\0';
}

/* Whether a private hvdd leaves it out of the service's file. */
static bool is_left_out(const struct node_config_row *row)
{
    for (size_t i = 0; i < sizeof(for_all) / sizeof(for_all[0]); i++)
        if (strcmp(row->name, for_all[i].name) == 0)
            return is_said(for_all[i].variable) || is_said(for_all[i].horovods);
    return is_services_own(row);
}

static void set_from_file(struct reading *reading, const char *name, const char *value)
{
    const struct node_config_row *row = node_config_find(name);
    char sentence[NODE_CONFIG_ERROR / 2];

    if (row == NULL && reading->private_mode)
        return; /* the service may be of another version */
    if (row == NULL) {
        snprintf(sentence, sizeof(sentence), "\"%.64s\" is no option of hvdd; see hvdd --help",
                 name);
        reading_fail(reading, sentence);
    } else if (row->apply == NODE_APPLY_COMMAND) {
        snprintf(sentence, sizeof(sentence), "%s works on the command line only", row->name);
        reading_fail(reading, sentence);
    } else if (reading->private_mode && is_left_out(row)) {
        return;
    } else if (node_config_set(reading->config, row, value, sentence, sizeof(sentence)) != HVI_OK) {
        reading_fail(reading, sentence);
    }
}

/* Cuts the blanks at both ends. */
static char *trim(char *text)
{
    size_t length;

    while (isspace((unsigned char)*text))
        text++;
    length = strlen(text);
    while (length > 0 && isspace((unsigned char)text[length - 1]))
        text[--length] = '\0';
    return text;
}

/* A ';' after a blank begins one. */
static void cut_comment(char *line)
{
    char *comment = line;

    do {
        comment = strchr(comment + 1, ';');
    } while (comment != NULL && !isspace((unsigned char)comment[-1]));
    if (comment != NULL)
        *comment = '\0';
}

static void take_section(struct reading *reading, const char *name)
{
    const int length = (int)strcspn(name, "]");
    char sentence[NODE_CONFIG_ERROR / 2];

    if (name[length] == ']' && (length == 0 || (length == 4 && strncmp(name, "hvdd", 4) == 0)))
        return;
    snprintf(sentence, sizeof(sentence), "section [%.*s] is not known; options stand in [hvdd]",
             length < 40 ? length : 40, name);
    reading_fail(reading, sentence);
}

static void take_line(struct reading *reading, char *line)
{
    line = trim(line);
    if (*line == '\0' || *line == '#' || *line == ';')
        return;
    cut_comment(line);
    if (*line == '[') {
        take_section(reading, line + 1);
        return;
    }
    char *value = strpbrk(line, "=:");
    if (value == NULL) {
        reading_fail(reading, "neither \"name = value\" nor [section]");
        return;
    }
    *value++ = '\0';
    set_from_file(reading, trim(line), trim(value));
}

static int parse(struct node_config *config, const char *file, bool private_mode,
                 const char *contents, size_t length, char *text_p, size_t text_size)
{
    struct reading reading = {.config = config,
                              .file = file,
                              .private_mode = private_mode,
                              .text_p = text_p,
                              .text_size = text_size};
    char line[LINE_BYTES_MAX];

    if (length >= 3 && memcmp(contents, "\xEF\xBB\xBF", 3) == 0) { /* a byte order mark */
        contents += 3;
        length -= 3;
    }
    while (length > 0 && !reading.failed) {
        const char *newline = memchr(contents, '\n', length);
        const size_t bytes = newline == NULL ? length : (size_t)(newline - contents);
        reading.line++;
        snprintf(line, sizeof(line), "%.*s", (int)bytes, contents);
        if (bytes >= sizeof(line))
            reading_fail(&reading, "the line is too long");
        else if (strlen(line) != bytes)
            reading_fail(&reading, "the line has a NUL byte");
        else
            take_line(&reading, line);
        length -= newline == NULL ? bytes : bytes + 1;
        contents += newline == NULL ? bytes : bytes + 1;
    }
    return reading.failed ? HVI_ERR_INVALID : HVI_OK;
}

int node_config_parse(struct node_config *config, const char *file, const char *contents,
                      size_t length, char *text_p, size_t text_size)
{
    return parse(config, file, false, contents, length, text_p, text_size);
}

/* `private_mode`: it is the service's, and a private hvdd reads it. */
static int load_file(const char *file, bool must_exist, bool private_mode,
                     struct node_config *config, char *text_p, size_t text_size)
{
    static char contents[FILE_BYTES_MAX];
    FILE *in = fopen(file, "re");
    size_t length;

    if (in == NULL) {
        if ((errno == ENOENT && !must_exist) || (errno == EACCES && private_mode))
            return HVI_OK;
        snprintf(text_p, text_size, "cannot read %s: %s", file, strerror(errno));
        return HVI_ERR_INVALID;
    }
    length = fread(contents, 1, sizeof(contents), in);
    bool failed = ferror(in) != 0;
    fclose(in);
    if (failed || length == sizeof(contents)) {
        snprintf(text_p, text_size, "cannot read %s: %s", file,
                 failed ? strerror(errno) : "longer than 64 KiB");
        return HVI_ERR_INVALID;
    }
    return parse(config, file, private_mode, contents, length, text_p, text_size);
}

static int apply_overrides(const struct node_command *command, struct node_config *config,
                           char *text_p, size_t text_size)
{
    char sentence[NODE_CONFIG_ERROR - 8];
    int status = HVI_OK;

    for (size_t i = 0; status == HVI_OK && i < command->override_count; i++) {
        status = node_config_set(config, command->overrides[i].row, command->overrides[i].value,
                                 sentence, sizeof(sentence));
        if (status != HVI_OK)
            snprintf(text_p, text_size, "--%s", sentence);
    }
    return status;
}

static int load_standard(const struct node_command *command, struct node_config *config,
                         char *text_p, size_t text_size)
{
    struct node_config said;

    if (command->standard == NULL)
        return HVI_OK;
    node_config_defaults(&said);
    int status = apply_overrides(command, &said, text_p, text_size);
    if (status != HVI_OK)
        return status;
    return load_file(command->standard, false, node_rundir_is_private(said.private_mode, geteuid()),
                     config, text_p, text_size);
}

int node_config_load(const struct node_command *command, struct node_config *config_p, char *text_p,
                     size_t text_size)
{
    struct node_config config;
    int status;

    node_config_defaults(&config);
    if (command->file != NULL)
        status = load_file(command->file, true, false, &config, text_p, text_size);
    else
        status = load_standard(command, &config, text_p, text_size);
    if (status == HVI_OK)
        status = apply_overrides(command, &config, text_p, text_size);
    if (status == HVI_OK)
        *config_p = config;
    return status;
}

/* ---- printing
 * ----------------------------------------------------------------------------------------------------
 */

void node_config_print(const struct node_config *config, FILE *out)
{
    static const char *const applies[] = {
        "counts after a reload (SIGHUP)",
        "counts after a reload (SIGHUP), for engines that start later",
        "counts after a reload (SIGHUP); engines that run already keep what they were started with",
        "needs a restart", ""};
    char value[HVI_WIRE_PATH];

    fprintf(out, "[hvdd]\n");
    for (size_t i = 0; i < node_config_row_count; i++) {
        const struct node_config_row *row = &node_config_rows[i];
        if (row->apply == NODE_APPLY_COMMAND)
            continue;
        node_config_format(config, row, value, sizeof(value));
        fprintf(out, "# %s.\n# A change %s.\n%s = %s\n", row->help, applies[row->apply], row->name,
                value);
    }
}

/* scdoc gives '_' and '*' a meaning. */
static void print_escaped(const char *text, FILE *out)
{
    for (; *text != '\0'; text++) {
        if (strchr("_*\\~<>", *text) != NULL)
            fputc('\\', out);
        fputc(*text, out);
    }
}

void node_config_print_man(FILE *out)
{
    static const char *const applies[] = {
        "Reloaded on SIGHUP.", "Reloaded on SIGHUP, for engines that start later.",
        "Reloaded on SIGHUP; engines that run already keep what they were started with.",
        "A change needs a restart.", "Command line only."};
    char range[160];

    for (size_t i = 0; i < node_config_row_count; i++) {
        const struct node_config_row *row = &node_config_rows[i];
        if (row->type == NODE_TYPE_SWITCH)
            fprintf(out, "*--%s*[=_%s_]\n\t", row->name, row->argument);
        else
            fprintf(out, "*--%s* _%s_\n\t", row->name, row->argument);
        print_escaped(row->help, out);
        describe_range(row, range, sizeof(range));
        fprintf(out, ". Takes ");
        print_escaped(range, out);
        if (row->standard[0] != '\0' && row->apply != NODE_APPLY_COMMAND)
            fprintf(out, "; default %s", row->standard);
        fprintf(out, ". %s%s", applies[row->apply],
                is_services_own(row) ? " A private hvdd leaves it out of the service's file." : "");
        if (variable_before(row) != NULL)
            fprintf(out, " In a private hvdd *%s* comes before the service's file.",
                    variable_before(row));
        fprintf(out, "\n\n");
    }
}

/* Whose share each is and who counts it; what is no option, in words. */
void node_config_print_limits(FILE *out)
{
    fprintf(out, "[[ *limit*\n:[ *of*\n:[ *counted by*\n:[ *default*\n");
    for (int i = 0; i < HVI_LIMITS; i++) {
        const struct hvi_limit_fact *fact = &hvi_limit_facts[i];
        fprintf(out, "|  %s\n:  %s\n:  %s\n", fact->name, hvi_limit_of_text(fact->of),
                hvi_limit_by_text(fact->by));
        if (fact->fixed != 0)
            fprintf(out, ":  %llu, fixed\n", (unsigned long long)fact->fixed);
        else
            fprintf(out, ":  %s\n", node_config_find(fact->name)->standard);
    }
    for (int i = 0; i < HVI_LIMITS; i++) {
        if (hvi_limit_facts[i].fixed == 0)
            continue;
        fprintf(out, "\n*%s*\n\t", hvi_limit_facts[i].name);
        print_escaped(hvi_limit_facts[i].help, out);
        fprintf(out, ".\n");
    }
}
