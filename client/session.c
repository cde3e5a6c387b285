/* SPDX-License-Identifier: Apache-2.0 */
#include "client/session.h"

#include "base/clock.h"
#include "base/status.h"
#include "client/error.h"
#include "client/wait.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

int client_session_check_fork(const struct hvd_session *session, const char *what)
{
    if (!session)
        return client_error(HVD_ERR_INVALID, "%s: session is NULL", what);
    if (*session->alive_page)
        return HVD_OK;
    return client_error(HVD_ERR_FORKED,
                        "%s: this session belongs to the parent process; call hvd_open in this "
                        "process after fork",
                        what);
}

int client_session_enter(struct hvd_session *session, const char *what)
{
    int rc = client_session_check_fork(session, what);
    if (rc != HVD_OK)
        return rc;
    pthread_mutex_lock(&session->mutex);
    return HVD_OK;
}

/* The slow half of client_session_leave: the callback runs on copies, under no lock. */
static void leave_and_log(struct hvd_session *session)
{
    struct client_log_line lines[CLIENT_LOG_LINES];
    uint32_t count = session->log_count;
    memcpy(lines, session->log_lines, count * sizeof(lines[0]));
    session->log_count = 0;
    pthread_mutex_unlock(&session->mutex);
    for (uint32_t i = 0; i < count; i++)
        session->log(session->log_user, lines[i].level, lines[i].text);
}

void client_session_leave(struct hvd_session *session)
{
    if (session->log_count > 0)
        leave_and_log(session);
    else
        pthread_mutex_unlock(&session->mutex);
}

int client_session_usable(struct hvd_session *session, const char *what)
{
    if (session->end_status == HVD_OK)
        return HVD_OK;
    return client_error(session->end_status, "%s: %s", what, session->end_text);
}

void client_session_end(struct hvd_session *session, int status, const char *format, ...)
{
    va_list arguments;
    if (session->end_status != HVD_OK)
        return;
    va_start(arguments, format);
    vsnprintf(session->end_text, sizeof(session->end_text), format, arguments);
    va_end(arguments);
    session->end_status = status < 0 ? status : HVD_ERR_PROTOCOL;
    client_session_log(session, HVD_LOG_ERROR, session->end_text);
    shutdown(session->socket_fd, SHUT_RDWR);
    client_wait_fail_all(session);
}

void client_session_log(struct hvd_session *session, enum hvd_log_level level, const char *text)
{
    if (!session->log || session->log_count == CLIENT_LOG_LINES)
        return;
    struct client_log_line *line = &session->log_lines[session->log_count++];
    line->level = level;
    snprintf(line->text, sizeof(line->text), "%s", text);
}
