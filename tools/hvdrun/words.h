/* SPDX-License-Identifier: Apache-2.0
 * Lists of strings as launch messages carry them (each with its zero byte, one after the other), and
 * which variables travel to other hosts. Any thread. */
#ifndef HVI_TOOLS_HVDRUN_WORDS_H
#define HVI_TOOLS_HVDRUN_WORDS_H

#include "tools/hvdrun/output.h"

/* True for "NAME=value" that every rank has as hvdrun has it. As in Horovod everything is, except
 * BASH_FUNC_*, OLDPWD, *CUDA_VISIBLE_DEVICES and _HOROVOD_SECRET_KEY; nor is what describes a login
 * or a machine and would be wrong on another: the user's name, home and shell, the session's
 * sockets and displays, the host's name, ssh's own variables. */
bool run_words_travel(const char *entry);

/* Appends those for which `chosen` is true; NULL: all. HVI_OK or HVI_ERR_NO_MEMORY. */
int run_words_pack(char *const *list, bool (*chosen)(const char *entry), struct run_buffer *out);
/* Pointers into `bytes`, which ends with a zero byte, and a NULL. For free; NULL without memory. */
char **run_words_unpack(unsigned char *bytes, size_t length);

#endif
