/* SPDX-License-Identifier: Apache-2.0 */
#include "client/session/enter.h"

#include "client/error.h"
#include "client/session/session.h"

#include <string.h>

int client_session_check_fork(const struct hvd_session *session, const char *what)
{
    if (!session)
        return client_error(HVD_ERR_INVALID, "%s: session is NULL", what);
    if (*session->link.alive_page)
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
    pthread_mutex_lock(&session->link.mutex);
    return HVD_OK;
}

/* The slow half of client_session_leave: the callback runs on copies, under no lock. */
static void leave_and_log(struct hvd_session *session)
{
    struct client_log_line lines[CLIENT_LOG_LINES];
    const hvd_log_fn log = session->link.log; /* NULL by now: hvd_close_at_exit was called */
    void *const user = session->link.log_user;
    uint32_t count = log ? session->link.log_count : 0;
    memcpy(lines, session->link.log_lines, count * sizeof(lines[0]));
    session->link.log_count = 0;
    pthread_mutex_unlock(&session->link.mutex);
    for (uint32_t i = 0; i < count; i++)
        log(user, lines[i].level, lines[i].text);
}

void client_session_leave(struct hvd_session *session)
{
    if (session->link.log_count > 0)
        leave_and_log(session);
    else
        pthread_mutex_unlock(&session->link.mutex);
}

int client_op_enter(const struct hvd_op *op, const char *what)
{
    if (!op)
        return client_error(HVD_ERR_INVALID, "%s: op is NULL", what);
    if (!op->session)
        return client_error(HVD_ERR_INVALID, "%s: this op was never submitted", what);
    int rc = client_session_enter(op->session, what);
    if (rc != HVD_OK)
        return rc;
    if (op->state != CLIENT_OP_FREE && !op->abandoned)
        return HVD_OK;
    client_session_leave(op->session);
    return client_error(HVD_ERR_INVALID, "%s: this op was released by hvd_op_free", what);
}
