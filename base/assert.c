/* SPDX-License-Identifier: Apache-2.0
 * Where a failed HVI_ASSERT ends. Uses neither the heap nor log.c: this also runs inside trainers.
 */
#include "base/assert.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

void hvi_assert_failed(const char *expression, const char *file, int line)
{
    char text[512];
    int bytes = snprintf(text, sizeof(text), "%s:%d: internal invariant broken: %s\n", file, line,
                         expression);
    if (bytes >= (int)sizeof(text))
        bytes = (int)sizeof(text) - 1;
    if (bytes > 0) {
        ssize_t written = write(STDERR_FILENO, text, (size_t)bytes);
        (void)written;
    }
    abort();
}
