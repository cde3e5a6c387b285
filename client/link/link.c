/* SPDX-License-Identifier: Apache-2.0 */
#include "client/link/link.h"

#include "client/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <sys/socket.h>

int client_link_usable(struct client_link *link, const char *what)
{
    if (link->end_status == HVD_OK)
        return HVD_OK;
    return client_error(link->end_status, "%s: %s", what, link->end_text);
}

void client_link_end(struct client_link *link, int status, const char *format, ...)
{
    va_list arguments;
    if (link->end_status != HVD_OK)
        return;
    va_start(arguments, format);
    vsnprintf(link->end_text, sizeof(link->end_text), format, arguments);
    va_end(arguments);
    link->end_status = status < 0 ? status : HVD_ERR_PROTOCOL;
    client_link_log(link, HVD_LOG_ERROR, link->end_text);
    shutdown(link->socket_fd, SHUT_RDWR);
    link->calls->ended(link->complete);
}

void client_link_log(struct client_link *link, enum hvd_log_level level, const char *text)
{
    if (!link->log || link->log_count == CLIENT_LOG_LINES)
        return;
    struct client_log_line *line = &link->log_lines[link->log_count++];
    line->level = level;
    snprintf(line->text, sizeof(line->text), "%s", text);
}
