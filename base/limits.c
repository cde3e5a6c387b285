/* SPDX-License-Identifier: Apache-2.0 */
#include "base/limits.h"

#include <stddef.h>
#include <string.h>

#define IS_COUNT false
#define IS_BYTES true

const struct hvi_limit_fact hvi_limit_facts[HVI_LIMITS] = {
#define HVI_LIMIT(member, name_, type, standard, apply, smallest, largest, argument, of_, by_,     \
                  help_)                                                                           \
    {.name = (name_),                                                                              \
     .of = HVI_LIMIT_OF_##of_,                                                                     \
     .by = HVI_LIMIT_BY_##by_,                                                                     \
     .bytes = IS_##type,                                                                           \
     .help = (help_)},
#define HVI_LIMIT_FIXED(member, name_, value_, of_, by_, help_)                                    \
    {.name = (name_),                                                                              \
     .of = HVI_LIMIT_OF_##of_,                                                                     \
     .by = HVI_LIMIT_BY_##by_,                                                                     \
     .fixed = (value_),                                                                            \
     .help = (help_)},
#include "base/limits.def"
#undef HVI_LIMIT
#undef HVI_LIMIT_FIXED
};

const struct hvi_limit_fact *hvi_limit_find(const char *name)
{
    for (int i = 0; i < HVI_LIMITS; i++)
        if (strcmp(hvi_limit_facts[i].name, name) == 0)
            return &hvi_limit_facts[i];
    return NULL;
}

const char *hvi_limit_of_text(enum hvi_limit_of of)
{
    static const char *const texts[] = {"all", "user", "job", "session"};
    return texts[of];
}

const char *hvi_limit_by_text(enum hvi_limit_by by)
{
    static const char *const texts[] = {"hvdd", "its gate", "the engine"};
    return texts[by];
}
