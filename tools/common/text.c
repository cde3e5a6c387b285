/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/text.h"

#include "base/clock.h"
#include "base/fate.h"
#include "base/utf8.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

void text_bytes(uint64_t bytes, char *text_p, size_t size)
{
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    if (bytes < 1024) {
        snprintf(text_p, size, "%" PRIu64 " B", bytes);
        return;
    }
    double value = (double)bytes / 1024.0;
    size_t unit = 0;
    while (value >= 1023.95 && unit + 1 < sizeof units / sizeof units[0]) {
        value /= 1024.0;
        unit++;
    }
    snprintf(text_p, size, "%.1f %s", value, units[unit]);
}

void text_duration(uint64_t ns, char *text_p, size_t size)
{
    const uint64_t seconds = ns / HVI_NS_SEC;
    if (ns < 1000)
        snprintf(text_p, size, "%" PRIu64 " ns", ns);
    else if (ns < HVI_NS_MS)
        snprintf(text_p, size, "%.1f µs", (double)ns / 1e3);
    else if (ns < HVI_NS_SEC)
        snprintf(text_p, size, "%.1f ms", (double)ns / 1e6);
    else if (seconds < 60)
        snprintf(text_p, size, "%.1f s", (double)ns / 1e9);
    else if (seconds < 3600)
        snprintf(text_p, size, "%" PRIu64 " min %" PRIu64 " s", seconds / 60, seconds % 60);
    else if (seconds < 86400)
        snprintf(text_p, size, "%" PRIu64 " h %" PRIu64 " min", seconds / 3600,
                 seconds % 3600 / 60);
    else
        snprintf(text_p, size, "%" PRIu64 " d %" PRIu64 " h", seconds / 86400,
                 seconds % 86400 / 3600);
}

void text_count(uint64_t count, char *text_p, size_t size)
{
    char digits[24];
    char grouped[32];
    const int length = snprintf(digits, sizeof digits, "%" PRIu64, count);
    size_t used = 0;
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0)
            grouped[used++] = ',';
        grouped[used++] = digits[i];
    }
    grouped[used] = '\0';
    snprintf(text_p, size, "%s", grouped);
}

void text_cuda_version(uint32_t number, char *text_p, size_t size)
{
    if (number == 0)
        snprintf(text_p, size, "-");
    else
        snprintf(text_p, size, "%u.%u", number / 1000, number % 1000 / 10);
}

void text_nccl_version(uint32_t number, char *text_p, size_t size)
{
    if (number == 0)
        snprintf(text_p, size, "-");
    else
        snprintf(text_p, size, "%u.%u.%u", number / 10000, number % 10000 / 100, number % 100);
}

void text_process(const char *process, char *text_p, size_t size)
{
    if (process[0] != '\0' && process[1] == '\0' && strchr("RSDTtZXI", process[0]) != NULL) {
        snprintf(text_p, size, "%s (%c)", hvi_process_state_text(process[0]), process[0]);
        return;
    }
    text_safe(process, text_p, size);
}

void text_safe(const char *text, char *text_p, size_t size)
{
    size_t left = strlen(text), used = 0;
    while (left > 0) {
        char part[8];
        uint32_t code;
        size_t bytes = hvi_utf8_character(text, left, &code), length = bytes;
        if (bytes == 0)
            length = (size_t)snprintf(part, sizeof part, "\\x%02x", (unsigned char)*text);
        else if (hvi_utf8_is_plain(code))
            memcpy(part, text, bytes);
        else
            length =
                (size_t)snprintf(part, sizeof part, code < 0x100 ? "\\x%02x" : "\\u%04x", code);
        if (used + length >= size)
            break;
        memcpy(text_p + used, part, length);
        used += length;
        text += bytes > 0 ? bytes : 1;
        left -= bytes > 0 ? bytes : 1;
    }
    if (size > 0)
        text_p[used] = '\0';
}

size_t text_width(const char *text)
{
    size_t width = 0;
    for (; *text != '\0'; text++)
        width += ((unsigned char)*text & 0xc0) != 0x80;
    return width;
}

int text_parse_size(const char *text, uint64_t *bytes_p)
{
    static const char letters[] = "KMGT";
    char *end;
    errno = 0;
    if (text[0] < '0' || text[0] > '9')
        return -1;
    const unsigned long long number = strtoull(text, &end, 10);
    if (errno != 0)
        return -1;
    unsigned shift = 0;
    if (*end != '\0' && *end != 'B') {
        const char *letter = strchr(letters, *end & ~0x20);
        if (letter == NULL || *letter == '\0')
            return -1;
        shift = 10 * (unsigned)(letter - letters + 1);
        end++;
    }
    if (*end != '\0' && strcasecmp(end, "iB") != 0 && strcasecmp(end, "B") != 0)
        return -1;
    if (number > UINT64_MAX >> shift)
        return -1;
    *bytes_p = (uint64_t)number << shift;
    return 0;
}

int text_parse_seconds(const char *text, uint64_t *ns_p)
{
    char *end;
    errno = 0;
    const double seconds = strtod(text, &end);
    if (end == text || *end != '\0' || errno != 0 || !(seconds >= 0) || seconds > 366 * 86400.0)
        return -1;
    *ns_p = (uint64_t)llround(seconds * 1e9);
    return 0;
}

int text_parse_int(const char *text, long min, long max, long *number_p)
{
    char *end;
    errno = 0;
    const long number = strtol(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || number < min || number > max)
        return -1;
    *number_p = number;
    return 0;
}
