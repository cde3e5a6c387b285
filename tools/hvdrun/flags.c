/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/hvdrun/flags.h"

#include "tools/hvdrun/options.h"

#include <string.h>

#define HELP_COLUMN 30u /* blanks before the help of an option */
#define HELP_WIDTH  96u
#define NAMES_BYTES 1024u

#define AT(of)         offsetof(struct run_options, of), NULL
#define TO(name)       RUN_FLAG_NO_MEMBER, name
#define BOTH(of, name) offsetof(struct run_options, of), name
#define NOWHERE        RUN_FLAG_NO_MEMBER, NULL
#define RUN_GROUP(title)                                                                           \
    {NULL, "", NULL, RUN_FLAG_GROUP, RUN_FLAG_WORKS, NOWHERE, "", title, false},
#define RUN_FLAG(other, name, arg, kind, effect, goes, key, text)                                  \
    {other, name, arg, RUN_FLAG_##kind, RUN_FLAG_##effect, goes, key, text, false},
#define RUN_OWN(other, name, arg, kind, effect, goes, key, text)                                   \
    {other, name, arg, RUN_FLAG_##kind, RUN_FLAG_##effect, goes, key, text, true},
const struct run_flag run_flags[] = {
#include "tools/hvdrun/flags.def"
};
#undef RUN_OWN
#undef RUN_FLAG
#undef RUN_GROUP

const size_t run_flag_count = sizeof run_flags / sizeof run_flags[0];

const struct run_flag *run_flag_of_key(const char *key, const char *value, bool *known_p)
{
    const size_t length = strlen(key);
    *known_p = false;
    for (size_t i = 0; i < run_flag_count; i++) {
        const struct run_flag *flag = &run_flags[i];
        if (strncmp(flag->key, key, length) != 0 || length == 0)
            continue;
        const char *wanted = flag->key + length;
        if (*wanted != '\0' && *wanted != '=')
            continue;
        *known_p = true;
        if (*wanted == '\0' || strcmp(wanted + 1, value) == 0)
            return flag;
    }
    return NULL;
}

static bool begins_like(const struct run_flag *flag, const char *begin, size_t length)
{
    return strncmp(flag->name, begin, length) == 0 ||
           (flag->other != NULL && strncmp(flag->other, begin, length) == 0);
}

const struct run_flag *run_flag_of_horovods(const char *word)
{
    const char *begin = word + strspn(word, "-");
    const size_t length = strcspn(begin, "=");
    const struct run_flag *found = NULL;
    for (size_t i = 0; i < run_flag_count; i++) {
        const struct run_flag *flag = &run_flags[i];
        if (flag->kind == RUN_FLAG_GROUP || flag->own || !begins_like(flag, begin, length))
            continue;
        if (found != NULL)
            return NULL;
        found = flag;
    }
    return found;
}

/* ---- help ---- */

/* The names of a row, or of all rows that have the same effect for the same reason, in front of it:
 * "-np, --num-proc N". False if an earlier row has named this one. */
static bool list_names(size_t row, const char *mark, const char *arg_mark, char *text_p,
                       size_t size)
{
    const struct run_flag *first = &run_flags[row];
    FILE *out = fmemopen(text_p, size, "w");
    bool begun = false;
    for (size_t i = 0; i < run_flag_count && out != NULL; i++) {
        const struct run_flag *flag = &run_flags[i];
        const bool same = flag->effect == first->effect && strcmp(flag->text, first->text) == 0;
        if (i != row && (first->effect < RUN_FLAG_IDLE || !same))
            continue;
        if (i < row)
            break;
        if (flag->other != NULL)
            fprintf(out, "%s%s-%s%s", begun ? ", " : "", mark, flag->other, mark);
        begun |= flag->other != NULL;
        fprintf(out, "%s%s--%s%s", begun ? ", " : "", mark, flag->name, mark);
        if (flag->arg != NULL)
            fprintf(out, " %s%s%s", arg_mark, flag->arg, arg_mark);
        begun = true;
    }
    if (out != NULL)
        fclose(out);
    return begun;
}

/* Breaks `text` at blanks; continued lines begin at `indent`, where the cursor is now. */
static void print_wrapped(FILE *out, const char *text, size_t indent)
{
    size_t column = indent;
    while (*text != '\0') {
        const size_t word = strcspn(text, " ");
        if (column > indent && column + 1 + word > HELP_WIDTH) {
            fprintf(out, "\n%*s", (int)indent, "");
            column = indent;
        } else if (column > indent) {
            putc(' ', out);
            column++;
        }
        fprintf(out, "%.*s", (int)word, text);
        column += word;
        text += word + strspn(text + word, " ");
    }
    putc('\n', out);
}

static void print_flag(FILE *out, size_t row)
{
    char names[NAMES_BYTES];
    if (!list_names(row, "", "", names, sizeof names))
        return;
    fputs("  ", out);
    if (strlen(names) + 3 <= HELP_COLUMN) {
        fprintf(out, "%-*s", (int)HELP_COLUMN - 2, names);
    } else {
        print_wrapped(out, names, 2);
        fprintf(out, "%*s", (int)HELP_COLUMN, "");
    }
    print_wrapped(out, run_flags[row].text, HELP_COLUMN);
}

void run_flags_help(FILE *out, const char *program)
{
    fprintf(
        out,
        "Usage: %s -np N [options] command...\n\n"
        "Starts N processes of a job, on this machine or on the hosts that are named, with a\n"
        "private hvdd on each unless one is named. Other hosts are reached by ssh.\n"
        "Options stand before the command; everything after it belongs to the command. They take\n"
        "one dash or two, and may be abbreviated.\n",
        program);
    for (size_t i = 0; i < run_flag_count; i++) {
        if (run_flags[i].kind == RUN_FLAG_GROUP)
            fprintf(out, "\n%s:\n", run_flags[i].text);
        else
            print_flag(out, i);
    }
    fputs(
        "\nWhen a process fails the others get SIGTERM, and after the grace time SIGKILL; hvdrun\n"
        "returns the first failing exit code (128 + signal for a signal). SIGINT, SIGTERM,\n"
        "SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are passed on to every process and what it has\n"
        "started; a second SIGINT or SIGTERM kills, 200 ms later or more. Rank 0 has hvdrun's\n"
        "standard input.\n"
        "Exit status of hvdrun itself: 2 usage, 126 and 127 as in a shell, 128 + signal for one "
        "that\n"
        "interrupted the start, 1 otherwise.\n",
        out);
}

/* ---- man page ---- */

/* scdoc would take these for markup. */
static void print_escaped(FILE *out, const char *text)
{
    for (; *text != '\0'; text++) {
        if (strchr("*_\\<>#", *text) != NULL)
            putc('\\', out);
        putc(*text, out);
    }
}

static void print_flag_man(FILE *out, size_t row)
{
    char names[NAMES_BYTES];
    const struct run_flag *flag = &run_flags[row];
    if (!list_names(row, "*", "_", names, sizeof names))
        return;
    fprintf(out, "%s\n\t", names);
    print_escaped(out, flag->text);
    if (flag->variable != NULL && flag->effect == RUN_FLAG_WORKS) {
        fputs(" (HOROVOD\\_", out);
        print_escaped(out, flag->variable);
        putc(')', out);
    }
    fputs(".\n\n", out);
}

void run_flags_help_man(FILE *out)
{
    for (size_t i = 0; i < run_flag_count; i++) {
        if (run_flags[i].kind == RUN_FLAG_GROUP)
            fprintf(out, "## %s\n\n", run_flags[i].text);
        else
            print_flag_man(out, i);
    }
}
