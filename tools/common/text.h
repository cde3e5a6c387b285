/* SPDX-License-Identifier: Apache-2.0
 * Numbers and foreign text as a person reads them. Pure functions, any thread; every output is
 * NUL-terminated and cut to `size` bytes. */
#ifndef HVI_TOOLS_COMMON_TEXT_H
#define HVI_TOOLS_COMMON_TEXT_H

#include <stddef.h>
#include <stdint.h>

/* "512 B", "1.5 KiB", "64.0 MiB". */
void text_bytes(uint64_t bytes, char *text_p, size_t size);
/* "850 ns", "12.3 µs", "4.0 ms", "3.2 s", "2 min 5 s", "3 h 12 min", "5 d 3 h". */
void text_duration(uint64_t ns, char *text_p, size_t size);
/* "1,234,567". */
void text_count(uint64_t count, char *text_p, size_t size);
/* CUDA's number of a version, 13000: "13.0"; NCCL's, 22809: "2.28.9". 0: "-". */
void text_cuda_version(uint32_t number, char *text_p, size_t size);
void text_nccl_version(uint32_t number, char *text_p, size_t size);
/* The state letter of /proc/PID/stat with its meaning, "stopped (T)"; longer words ("absent") stay
 * as they are. */
void text_process(const char *process, char *text_p, size_t size);
/* Copies text of foreign origin so that a terminal cannot be fooled: control characters and bytes that are not
 * UTF-8 become \xNN, characters that change the direction of text \uNNNN. */
void text_safe(const char *text, char *text_p, size_t size);
/* Columns that UTF-8 text takes, one per character. */
size_t text_width(const char *text);
/* Parses "4", "64K", "1M", "2G" (powers of 1024, also "64KiB"). 0 on success, -1 for anything else.
 */
int text_parse_size(const char *text, uint64_t *bytes_p);
/* Parses "5", "0.25" as seconds. 0 on success, -1 for anything else (negative, junk, more than a
 * year). */
int text_parse_seconds(const char *text, uint64_t *ns_p);
/* Parses a whole decimal number in min..max. 0 on success, -1 for anything else. */
int text_parse_int(const char *text, long min, long max, long *number_p);

#endif
