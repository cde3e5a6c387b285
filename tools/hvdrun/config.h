/* SPDX-License-Identifier: Apache-2.0
 * hvdrun's configuration file: YAML, two levels deep ("key: value" and "section: {key: value}"), as
 * horovodrun's is. What keys mean is not known here. Main thread. */
#ifndef HVI_TOOLS_HVDRUN_CONFIG_H
#define HVI_TOOLS_HVDRUN_CONFIG_H

#include <stddef.h>

/* One scalar of the file. */
struct run_config_entry {
    const char *key;   /* "section.key", or "key" */
    const char *value; /* every spelling of a YAML truth value is "true" or "false" */
    const char *path;
    size_t line; /* of the key, from 1 */
};

/* 0, or -1 with a sentence in text_p. The entry lasts as long as the call. */
typedef int run_config_take(void *context, const struct run_config_entry *entry, char *text_p,
                            size_t text_size);

/* Hands every entry with a value to `take`, in the order of the file, until it returns -1. 0, or -1
 * with a sentence that begins with file and line. Empty values count as not there. */
int run_config_read(const char *path, run_config_take *take, void *context, char *text_p,
                    size_t text_size);

#endif
