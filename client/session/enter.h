/* SPDX-License-Identifier: Apache-2.0
 * How a call gets into a session and out of it again. */
#ifndef HVD_CLIENT_ENTER_H
#define HVD_CLIENT_ENTER_H

struct hvd_op;
struct hvd_session;

/* Checks `session` and that this is not a forked child, and locks. `what` names the public
 * function. On an error nothing is locked and the last error is set. */
int client_session_enter(struct hvd_session *session, const char *what);
/* Unlocks, then hands waiting log lines to the user's callback. */
void client_session_leave(struct hvd_session *session);
/* HVD_OK, or sets the last error to HVD_ERR_FORKED's. No lock needed. */
int client_session_check_fork(const struct hvd_session *session, const char *what);
/* Locks the session of `op`, which must be one that the caller still has; `what` names the public
 * function. On an error nothing is locked and the last error is set. */
int client_op_enter(const struct hvd_op *op, const char *what);

#endif
