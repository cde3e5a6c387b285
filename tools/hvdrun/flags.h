/* SPDX-License-Identifier: Apache-2.0
 * hvdrun's options as rows, made from flags.def, and what is printed of them. Read-only. */
#ifndef HVI_TOOLS_HVDRUN_FLAGS_H
#define HVI_TOOLS_HVDRUN_FLAGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum run_flag_kind {
    RUN_FLAG_GROUP, /* no option: `text` is the title of the rows that follow */
    RUN_FLAG_ON,
    RUN_FLAG_OFF,
    RUN_FLAG_TEXT,
    RUN_FLAG_SECONDS,
    RUN_FLAG_COUNT,
    RUN_FLAG_NUMBER,
    RUN_FLAG_FRACTION,
    RUN_FLAG_MEGABYTES,
    RUN_FLAG_RANKS,
    RUN_FLAG_LEVEL,
    RUN_FLAG_BINDING,
    RUN_FLAG_VARIABLE,
    RUN_FLAG_LIST,
};

enum run_flag_effect { RUN_FLAG_WORKS, RUN_FLAG_SPREAD, RUN_FLAG_IDLE, RUN_FLAG_REFUSED };

#define RUN_FLAG_NO_MEMBER ((size_t)-1)

struct run_flag {
    const char *other; /* NULL: none. Both names are taken with one dash or two */
    const char *name;
    const char *arg; /* NULL: takes no value */
    enum run_flag_kind kind;
    enum run_flag_effect effect;
    size_t member;        /* offset in struct run_options: bool of ON and OFF, uint64_t in ns of
                             SECONDS, char * on the heap of LIST, const char * otherwise; or RUN_FLAG_NO_MEMBER */
    const char *variable; /* without HOROVOD_; NULL: none */
    const char *key;      /* in a configuration file; "" for none */
    const char *text;
    bool own; /* horovodrun has no such option */
};

extern const struct run_flag run_flags[];
extern const size_t run_flag_count;

/* The row that `key: value` of a configuration file means, NULL for none; *known_p says whether
 * there is such a key at all. `value` counts for the rows of switches only. */
const struct run_flag *run_flag_of_key(const char *key, const char *value, bool *known_p);
/* The row that horovodrun takes the word "--begi" or "--begi=value" for; NULL: for none, or it would not know for which. */
const struct run_flag *run_flag_of_horovods(const char *word);
/* For people; a line of usage first, for `program`. */
void run_flags_help(FILE *out, const char *program);
/* For the man page: scdoc's source of the options. */
void run_flags_help_man(FILE *out);

#endif
