/* SPDX-License-Identifier: Apache-2.0
 * A program that is started for one answer on its standard output. Any thread; blocks. */
#ifndef HVI_TOOLS_COMMON_ASK_H
#define HVI_TOOLS_COMMON_ASK_H

#include <stddef.h>
#include <stdint.h>

/* Runs argv[0], looked for in PATH, with /dev/null for standard input and the caller's stderr, and kills it after `wait_ns`. What
 * it has said, as far as that fits. NULL: it has ended well; else why there is no answer, valid until the next call. */
const char *ask_program(char *const argv[], uint64_t wait_ns, char *answer_p, size_t size);
/* As that, of the installation's hvdd-gpu, with one option. */
const char *ask_worker(const char *option, uint64_t wait_ns, char *answer_p, size_t size);
/* The number behind a word at the beginning of a line, "<word> <number> ..."; 0 without such a line. *rest_p, if it is wanted: what
 * follows the number, up to the end of the answer. */
uint64_t ask_number(const char *answer, const char *word, const char **rest_p);

#endif
