/* SPDX-License-Identifier: Apache-2.0
 * The limits that keep users of one hvdd apart, as limits.def lists them. Constants; any thread. */
#ifndef HVI_BASE_LIMITS_H
#define HVI_BASE_LIMITS_H

#include <stdbool.h>
#include <stdint.h>

enum hvi_limit {
#define HVI_LIMIT(member, ...)       HVI_LIMIT_##member,
#define HVI_LIMIT_FIXED(member, ...) HVI_LIMIT_##member,
#include "base/limits.def"
#undef HVI_LIMIT
#undef HVI_LIMIT_FIXED
    HVI_LIMITS
};

/* Those that are no option. */
enum {
#define HVI_LIMIT(member, ...)
#define HVI_LIMIT_FIXED(member, name, value, ...) HVI_LIMIT_VALUE_##member = (value),
#include "base/limits.def"
#undef HVI_LIMIT
#undef HVI_LIMIT_FIXED
};

enum hvi_limit_of { HVI_LIMIT_OF_ALL, HVI_LIMIT_OF_USER, HVI_LIMIT_OF_JOB, HVI_LIMIT_OF_SESSION };
enum hvi_limit_by { HVI_LIMIT_BY_NODE, HVI_LIMIT_BY_GATE, HVI_LIMIT_BY_ENGINE };

struct hvi_limit_fact {
    const char *name;
    enum hvi_limit_of of;
    enum hvi_limit_by by;
    uint64_t fixed; /* 0: it is an option */
    bool bytes;
    const char *help;
};
extern const struct hvi_limit_fact hvi_limit_facts[HVI_LIMITS];

/* The row of that name, or NULL. */
const struct hvi_limit_fact *hvi_limit_find(const char *name);
/* "all", "user", "job", "session"; "hvdd", "its gate", "the engine". */
const char *hvi_limit_of_text(enum hvi_limit_of of);
const char *hvi_limit_by_text(enum hvi_limit_by by);

#endif
