/* SPDX-License-Identifier: Apache-2.0
 * A sentence that is put together from pieces; what does not fit is cut. Any thread. */
#ifndef ENGINE_SENTENCE_H
#define ENGINE_SENTENCE_H

#include <stddef.h>

struct engine_sentence {
    char *text;
    size_t size, used; /* .used may exceed .size: it is what was wanted */
};

void engine_sentence_append(struct engine_sentence *sentence, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
