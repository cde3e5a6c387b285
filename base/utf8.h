/* SPDX-License-Identifier: Apache-2.0
 * UTF-8 checks for text that came from outside. Any thread. */
#ifndef HVI_BASE_UTF8_H
#define HVI_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Well-formed UTF-8 (no overlong forms, no surrogates, <= U+10FFFF) without a NUL byte. */
bool hvi_utf8_valid(const char *text, size_t bytes);
/* The character at `text`, of `bytes` >= 1 bytes: how many of them it takes, with its code in *code_p; 0 where none
 * that is well-formed begins there. */
size_t hvi_utf8_character(const char *text, size_t bytes, uint32_t *code_p);
/* May be shown as it is. Others are escaped where text of others is printed: control characters (C0, DEL, C1), with
 * which a terminal can be commanded, and those that begin a line or change the direction of what stands beside them. */
bool hvi_utf8_is_plain(uint32_t code);
/* The largest length <= limit that does not cut a character. */
size_t hvi_utf8_cut(const char *text, size_t bytes, size_t limit);

#endif
