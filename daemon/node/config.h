/* SPDX-License-Identifier: Apache-2.0
 * hvdd's options: one row each in config.def, from which the configuration file, the command line,
 * --help,
 * --print-config, the man page and the reload follow. Precedence: defaults < file < command line.
 * Main thread; nothing here logs, errors come back as a sentence with name, value and range. */
#ifndef HVD_NODE_CONFIG_H
#define HVD_NODE_CONFIG_H

#include "base/clock.h"
#include "base/log.h"
#include "proto/wire.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define NODE_CONFIG_FILE  "/etc/hvdd/hvdd.conf"
#define NODE_CONFIG_ERROR 512 /* bytes that hold any sentence of this file */

#define NODE_MEMBER_TEXT(name)   char name[HVI_WIRE_PATH];
#define NODE_MEMBER_COUNT(name)  int64_t name;
#define NODE_MEMBER_TIME(name)   int64_t name; /* nanoseconds */
#define NODE_MEMBER_BYTES(name)  int64_t name;
#define NODE_MEMBER_SWITCH(name) int64_t name; /* -1 auto, 0 no, 1 yes */
#define NODE_MEMBER_FD(name)     int64_t name;
#define NODE_MEMBER_LEVEL(name)  int64_t name;
#define NODE_MEMBER_MODE(name)   int64_t name;

struct node_config {
#define NODE_OPTION(member, name, type, ...) NODE_MEMBER_##type(member)
#include "daemon/node/config.def"
#undef NODE_OPTION
};

enum node_config_type {
    NODE_TYPE_TEXT,
    NODE_TYPE_COUNT,
    NODE_TYPE_TIME,
    NODE_TYPE_BYTES,
    NODE_TYPE_SWITCH,
    NODE_TYPE_FD,
    NODE_TYPE_LEVEL,
    NODE_TYPE_MODE,
};

enum node_config_apply {
    NODE_APPLY_RELOAD,
    NODE_APPLY_LATER,  /* likewise, for engines that start later */
    NODE_APPLY_PARTLY, /* likewise; what hvdd itself does by it changes at once */
    NODE_APPLY_RESTART,
    NODE_APPLY_COMMAND
};

struct node_config_row {
    const char *name;
    enum node_config_type type;
    enum node_config_apply apply;
    size_t offset; /* of the member in struct node_config */
    const char *standard;
    int64_t smallest, largest;
    const char *argument, *help;
};

extern const struct node_config_row node_config_rows[];
extern const size_t node_config_row_count;

/* What the command line said. The strings are argv's. */
#define NODE_OVERRIDES_MAX 128
struct node_command {
    const char *file;     /* --config, or NULL */
    const char *standard; /* without it; the service's */
    struct {
        const struct node_config_row *row;
        const char *value;
    } overrides[NODE_OVERRIDES_MAX];
    size_t override_count;
    bool print_config, help_man, help_limits;
};

/* Reads argv with argp(3). --help, --version and usage errors (exit code 2) end the process. */
void node_config_command(int argc, char **argv, struct node_command *command_p);

/* Defaults, then the file, then the command line. A missing standard file is fine, a missing --config is not. A private
 * hvdd reads the standard one if it may. It leaves out what the service alone is told there, `encrypt` where HVD_ENCRYPT is
 * set, and what it does not know. HVI_OK, or HVI_ERR_INVALID with a sentence in `text_p`. */
int node_config_load(const struct node_command *command, struct node_config *config_p, char *text_p,
                     size_t text_size);
void node_config_defaults(struct node_config *config_p);
/* Parses the contents of a configuration file on top of `config`, whatever they are; `file` names
 * it in errors. HVI_OK; HVI_ERR_INVALID with "FILE:LINE: sentence", and then `config` is partly
 * changed. */
int node_config_parse(struct node_config *config, const char *file, const char *contents,
                      size_t length, char *text_p, size_t text_size);
/* NULL when there is no such option. '_' may stand for '-'. */
const struct node_config_row *node_config_find(const char *name);
/* Sets one option from text. HVI_OK or HVI_ERR_INVALID with a sentence that names option, value and
 * range. */
int node_config_set(struct node_config *config, const struct node_config_row *row,
                    const char *value, char *text_p, size_t text_size);

/* The value as it could stand in the file. */
void node_config_format(const struct node_config *config, const struct node_config_row *row,
                        char *text_p, size_t text_size);
bool node_config_differs(const struct node_config_row *row, const struct node_config *a,
                         const struct node_config *b);
/* Copies one option. */
void node_config_copy(const struct node_config_row *row, const struct node_config *from,
                      struct node_config *to);

/* A file that gives this configuration; the rows, and base/limits.def, as scdoc(5) source. */
void node_config_print(const struct node_config *config, FILE *out);
void node_config_print_man(FILE *out);
void node_config_print_limits(FILE *out);

#endif
