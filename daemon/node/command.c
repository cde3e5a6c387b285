/* SPDX-License-Identifier: Apache-2.0
 * The command line of hvdd: argp(3) options made from config.def. Values are kept as text, so that
 * a reload can put them on top of the file once more. */
#include "base/assert.h"
#include "daemon/node/config.h"

#include <argp.h>
#include <stdlib.h>
#include <string.h>

#define ROWS_MAX  64
#define KEY_ROW   0x100 /* + row index */
#define KEY_FILE  0x1000
#define KEY_PRINT 0x1001
#define KEY_MAN   0x1002

static void print_version(FILE *out, struct argp_state *state)
{
    (void)state;
    fprintf(out, "hvdd %s\n", HVD_VERSION_TEXT);
}

static void add_override(struct node_command *command, const struct node_config_row *row,
                         const char *value, struct argp_state *state)
{
    struct node_config scratch;
    char text[NODE_CONFIG_ERROR];

    node_config_defaults(&scratch);
    if (command->override_count == NODE_OVERRIDES_MAX)
        argp_error(state, "more than %d options", NODE_OVERRIDES_MAX);
    if (node_config_set(&scratch, row, value, text, sizeof(text)) != 0)
        argp_error(state, "--%s", text);
    command->overrides[command->override_count].row = row;
    command->overrides[command->override_count].value = value;
    command->override_count++;
}

static error_t parse_option(int key, char *argument, struct argp_state *state)
{
    struct node_command *command = state->input;

    if (key >= KEY_ROW && key < KEY_ROW + ROWS_MAX) {
        add_override(command, &node_config_rows[key - KEY_ROW], argument == NULL ? "yes" : argument,
                     state);
        return 0;
    }
    switch (key) {
    case KEY_FILE:
        command->file = argument;
        return 0;
    case KEY_PRINT:
        command->print_config = true;
        return 0;
    case KEY_MAN:
        command->help_man = argument == NULL;
        command->help_limits = argument != NULL;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "\"%s\" is not an option", argument);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* The rows as argp options; the help text gets its default. */
static void fill_options(struct argp_option *options, char helps[][512])
{
    size_t i;

    HVI_ASSERT(node_config_row_count <= ROWS_MAX);
    for (i = 0; i < node_config_row_count; i++) {
        const struct node_config_row *row = &node_config_rows[i];
        bool shown = row->standard[0] != '\0' && row->apply != NODE_APPLY_COMMAND;
        snprintf(helps[i], sizeof(helps[i]), "%s%s%s%s", row->help, shown ? " (default " : "",
                 shown ? row->standard : "", shown ? ")" : "");
        options[i] =
            (struct argp_option){.name = row->name,
                                 .key = KEY_ROW + (int)i,
                                 .arg = row->argument,
                                 .flags = row->type == NODE_TYPE_SWITCH ? OPTION_ARG_OPTIONAL : 0,
                                 .doc = helps[i]};
    }
    options[i++] = (struct argp_option){.name = "config",
                                        .key = KEY_FILE,
                                        .arg = "FILE",
                                        .doc = "Configuration file (default " NODE_CONFIG_FILE ")"};
    options[i++] = (struct argp_option){.name = "print-config",
                                        .key = KEY_PRINT,
                                        .doc = "Print the configuration as a file and exit"};
    options[i++] = (struct argp_option){.name = "help-man",
                                        .key = KEY_MAN,
                                        .arg = "limits",
                                        .flags = OPTION_HIDDEN | OPTION_ARG_OPTIONAL,
                                        .doc = "Print the options, or the limits, as scdoc source "
                                               "and exit"};
    options[i] = (struct argp_option){0};
}

void node_config_command(int argc, char **argv, struct node_command *command_p)
{
    static struct argp_option options[ROWS_MAX + 4];
    static char helps[ROWS_MAX][512];
    struct argp argp = {
        .options = options,
        .parser = parse_option,
        .doc = "The node daemon of hvdd: attaches training processes to the engine of their job."
               "\vEvery option can also stand in the configuration file as \"name = value\"."};

    *command_p = (struct node_command){.standard = NODE_CONFIG_FILE};
    fill_options(options, helps);
    argp_program_version_hook = print_version;
    argp_err_exit_status = 2;
    argp_parse(&argp, argc, argv, 0, NULL, command_p);
}
