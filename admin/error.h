/* SPDX-License-Identifier: Apache-2.0
 * The calling thread's last error sentence (hvd_admin_last_error). Any thread; never blocks or allocates. */
#ifndef HVI_ADMIN_ERROR_H
#define HVI_ADMIN_ERROR_H

#include <stdint.h>

/* Formats the sentence of a failure and returns `status`. */
int admin_error(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The same for what admin_client_* of the hvdd in `dir` returned; `text` is what it wrote. */
int admin_error_explain(int status, const char *dir, int64_t timeout_ns, const char *text);

#endif
