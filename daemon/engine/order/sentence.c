/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/engine/order/sentence.h"

#include "base/status.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

static void __attribute__((format(printf, 2, 0)))
append(struct engine_sentence *sentence, const char *format, va_list arguments)
{
    if (sentence->used >= sentence->size)
        return;
    int length = vsnprintf(sentence->text + sentence->used, sentence->size - sentence->used, format,
                           arguments);
    sentence->used += length > 0 ? (size_t)length : 0;
}

void engine_sentence_append(struct engine_sentence *sentence, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    append(sentence, format, arguments);
    va_end(arguments);
}

int engine_sentence_bad_verdict(char *text_p, size_t text_size, uint64_t number, const char *format,
                                ...)
{
    struct engine_sentence sentence = {text_p, text_size, 0};
    va_list arguments;

    engine_sentence_append(&sentence, "verdict %" PRIu64 ": ", number);
    va_start(arguments, format);
    append(&sentence, format, arguments);
    va_end(arguments);
    return HVI_ERR_PROTOCOL;
}

int engine_sentence_bad_report(char *text_p, size_t text_size, uint32_t node, const char *format,
                               ...)
{
    struct engine_sentence sentence = {text_p, text_size, 0};
    va_list arguments;

    engine_sentence_append(&sentence, "node %u: report: ", node);
    va_start(arguments, format);
    append(&sentence, format, arguments);
    va_end(arguments);
    return HVI_ERR_PROTOCOL;
}
