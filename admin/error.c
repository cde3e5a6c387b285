/* SPDX-License-Identifier: Apache-2.0 */
#include "admin/error.h"

#include "base/clock.h"
#include "base/status.h"
#include "base/types.h"
#include "hvd/hvd_admin.h"

#include <stdarg.h>
#include <stdio.h>

static _Thread_local char last_error[HVI_TEXT_MAX + 1];

int admin_error(int status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(last_error, sizeof last_error, format, arguments);
    va_end(arguments);
    return status;
}

int admin_error_explain(int status, const char *dir, int64_t timeout_ns, const char *text)
{
    switch (status) {
    case HVI_ERR_NO_DAEMON:
        return admin_error(status, "the hvdd in %s has gone", dir);
    case HVI_ERR_TIMEOUT:
        return admin_error(status,
                           "the hvdd in %s did not answer within %.3g s. It may be stopped or "
                           "stuck: look at its process and log, or wait longer.",
                           dir, (double)timeout_ns / (double)HVI_NS_SEC);
    case HVI_ERR_PROTOCOL:
        return admin_error(status, "the answer of the hvdd in %s makes no sense: %s", dir, text);
    default:
        return admin_error(status, "%s", hvi_status_text(status));
    }
}

const char *hvd_admin_last_error(void)
{
    return last_error;
}
