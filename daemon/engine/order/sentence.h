/* SPDX-License-Identifier: Apache-2.0
 * A sentence that is put together from pieces; what does not fit is cut. Any thread. */
#ifndef ENGINE_SENTENCE_H
#define ENGINE_SENTENCE_H

#include <stddef.h>
#include <stdint.h>

struct engine_sentence {
    char *text;
    size_t size, used; /* .used may exceed .size: it is what was wanted */
};

void engine_sentence_append(struct engine_sentence *sentence, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Why a message of another node is not believed: "verdict 7: ...", "node 2: report: ...". HVI_ERR_PROTOCOL. */
int engine_sentence_bad_verdict(char *text_p, size_t text_size, uint64_t number, const char *format,
                                ...) __attribute__((format(printf, 4, 5)));
int engine_sentence_bad_report(char *text_p, size_t text_size, uint32_t node, const char *format,
                               ...) __attribute__((format(printf, 4, 5)));

#endif
