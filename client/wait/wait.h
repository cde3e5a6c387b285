/* SPDX-License-Identifier: Apache-2.0
 * The steps of waiting. They need the session's lock where they do not say otherwise. */
#ifndef HVD_CLIENT_WAIT_H
#define HVD_CLIENT_WAIT_H

#include <stdbool.h>
#include <stdint.h>

struct hvd_op;
struct hvd_session;

/* A step of waiting, for the locked session: reads completions, gives memory to ops that want it,
 * and looks at the socket when `look` or when it is time. May give up the lock meanwhile. */
void client_wait_progress(struct hvd_session *session, bool look);
/* The op's status for the caller: HVD_INPROGRESS, or final with the last error set. Copies the
 * result out, and gives up the lock for a large one. */
int client_wait_look_at(struct hvd_session *session, struct hvd_op *op);
/* Sets the event descriptor right after ops have been looked at. */
void client_wait_sync_event(struct hvd_session *session);
/* Asks the engine to take over what is in a slot, and waits until each such op is done or the engine's,
 * until the deadline and 100 ms at most: for a caller that is going to sleep on something that only the engine
 * rings. `op` NULL: all, 100 ms together. Gives up the lock; the session may have ended. */
void client_wait_hand_over(struct hvd_session *session, struct hvd_op *op, uint64_t deadline_ns);
/* HVD_ERR_TIMEOUT, with the last error set for the public function `what`. */
int client_wait_timed_out(const struct hvd_op *op, const char *what, int64_t timeout_ns);
/* Without the lock: nothing was to be seen after the bell read `seen`. Sleeps a slice at most; a
 * short nap if `copying`: another thread copies a result, and no bell rings for that. `fenced`: an op on
 * device memory is waited for, which other threads have to do: it yields at once. True when the socket
 * should be looked at. */
bool client_wait_sleep(struct hvd_session *session, bool copying, bool fenced, uint32_t seen,
                       uint64_t deadline_ns);

#endif
