/* SPDX-License-Identifier: Apache-2.0
 * The calling thread's last error sentence (hvd_last_error). Any thread; never blocks or allocates.
 */
#ifndef HVD_CLIENT_ERROR_H
#define HVD_CLIENT_ERROR_H

/* Formats the sentence of a failure and returns `status`, so that callers write `return
 * client_error(...)`. A sentence longer than HVI_TEXT_MAX is cut at a character. */
int client_error(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* As above for a finished sentence, which may be the last error itself. */
int client_error_copy(int status, const char *text);

#endif
