/* SPDX-License-Identifier: Apache-2.0
 * The timeline that the environment asks for. */
#ifndef HVD_CLIENT_TIMELINE_H
#define HVD_CLIENT_TIMELINE_H

struct hvd_session;

/* For rank 0 at the end of hvd_open: starts a timeline if HVD_TIMELINE or HOROVOD_TIMELINE names a
 * file. A failure is a line in the user's log and nothing more, as in Horovod. Takes the session's
 * lock. */
void client_timeline_from_environment(struct hvd_session *session);

#endif
