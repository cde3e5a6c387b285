/* SPDX-License-Identifier: Apache-2.0 */
#include "client/error.h"

#include "base/status.h"
#include "base/types.h"
#include "base/utf8.h"
#include "hvd/hvd.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char last_error[HVI_TEXT_MAX + 1];

int client_error(int status, const char *format, ...)
{
    char text[2 * HVI_TEXT_MAX + 2];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    return client_error_copy(status, text);
}

int client_error_copy(int status, const char *text)
{
    size_t bytes = strlen(text);
    if (bytes > HVI_TEXT_MAX)
        bytes = hvi_utf8_cut(text, bytes, HVI_TEXT_MAX);
    memmove(last_error, text, bytes);
    last_error[bytes] = '\0';
    return status;
}

const char *hvd_last_error(void)
{
    return last_error;
}

/* Names with their HVD_ prefix, from the one table. */
const char *hvd_status_name(int status)
{
    switch (status) {
#define HVI_ROW(name, number, text)                                                                \
    case number:                                                                                   \
        return "HVD_" #name;
#include "base/status.def"
#undef HVI_ROW
    default:
        return "HVD_ERR_UNKNOWN";
    }
}

const char *hvd_version(void)
{
    return HVD_VERSION_TEXT;
}

size_t hvd_dtype_size(enum hvd_dtype dtype)
{
    return hvi_dtype_bytes((uint32_t)dtype);
}
