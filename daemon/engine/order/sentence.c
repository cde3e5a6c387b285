/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/engine/order/sentence.h"

#include <stdarg.h>
#include <stdio.h>

void engine_sentence_append(struct engine_sentence *sentence, const char *format, ...)
{
    va_list arguments;

    if (sentence->used >= sentence->size)
        return;
    va_start(arguments, format);
    int length = vsnprintf(sentence->text + sentence->used, sentence->size - sentence->used, format,
                           arguments);
    va_end(arguments);
    sentence->used += length > 0 ? (size_t)length : 0;
}
