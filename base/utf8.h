/* SPDX-License-Identifier: Apache-2.0
 * UTF-8 checks for text that came from outside. Any thread. */
#ifndef HVI_BASE_UTF8_H
#define HVI_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>

/* Well-formed UTF-8 (no overlong forms, no surrogates, <= U+10FFFF) without a NUL byte. */
bool hvi_utf8_valid(const char *text, size_t bytes);
/* The largest length <= limit that does not cut a character. */
size_t hvi_utf8_cut(const char *text, size_t bytes, size_t limit);

#endif
