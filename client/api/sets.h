/* SPDX-License-Identifier: Apache-2.0
 * Process sets for the public functions that block, and for those that do not. */
#ifndef HVD_CLIENT_API_SETS_H
#define HVD_CLIENT_API_SETS_H

struct hvd_op;
struct hvd_session;

/* `what` names the public function. They take the lock themselves. */
int client_api_add_set(struct hvd_session *session, const char *what, const int *ranks, int count,
                       struct hvd_op **op_p);
int client_api_remove_set(struct hvd_session *session, const char *what, int id,
                          struct hvd_op **op_p);

#endif
