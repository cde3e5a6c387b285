/* SPDX-License-Identifier: Apache-2.0
 * Small files of the kernel's: /proc and /sys. */
#ifndef HVI_BASE_FILE_H
#define HVI_BASE_FILE_H

#include <stddef.h>

/* The beginning of a file as a string, by one read. Returns its bytes, or -errno and "". Any thread. */
int hvi_file_read(const char *path, char *text_p, size_t size);

#endif
