/* SPDX-License-Identifier: Apache-2.0
 * Questions to hvdd over its admin socket (ZeroMQ, hvd.proto AdminRequest/AdminReply). One thread
 * per client. Every function that waits has a deadline. */
#ifndef HVI_ADMIN_CLIENT_H
#define HVI_ADMIN_CLIENT_H

#include "proto/wire.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct admin_client;

/* Does not wait, so it cannot see whose the listener is where its queue is full: address_find has found `dir` before.
 * HVI_OK, HVI_ERR_NO_DAEMON (nobody listens in `dir`, or another user), HVI_ERR_INVALID (path too long),
 * HVI_ERR_NO_MEMORY, HVI_ERR_LIMIT (descriptors). */
int admin_client_open(const char *dir, struct admin_client **client_p);
/* NULL is fine. Unsent requests are dropped. */
void admin_client_close(struct admin_client *client);

/* Sends `request` (its version and number are filled in here) and waits for the answer that carries
 * its number; asks again when the connection ends. HVI_OK: an answer came; reply_p->status says what hvdd thinks of the request, and the
 * caller frees it with hvi_admin_reply_free. HVI_ERR_TIMEOUT: no answer by `deadline_ns`.
 * HVI_ERR_NO_DAEMON: hvdd has gone meanwhile.
 * HVI_ERR_PROTOCOL: an answer that does not decode, with a sentence in text_p. HVI_ERR_INVALID: the
 * request does not encode. HVI_ERR_NO_MEMORY. */
int admin_client_call(struct admin_client *client, struct hvi_admin_request *request,
                      uint64_t deadline_ns, struct hvi_admin_reply *reply_p, char *text_p,
                      size_t text_size);

/* ---- a client that has asked for events, with nothing else under way ---- */

/* Adds the descriptors that tell of its connection to an epoll. They tell of changes, not of states: after each other
 * call admin_client_is_ready says whether something waits. HVI_OK, HVI_ERR_LIMIT. */
int admin_client_watch(struct admin_client *client, int epoll_fd);
bool admin_client_is_ready(struct admin_client *client);
/* The next reply of request 0, as in admin_client_call. HVI_INPROGRESS: the connection has ended; events may be lost, and
 * have to be asked for again. A refusal of that request is an error with the sentence in text_p. HVI_ERR_TIMEOUT,
 * HVI_ERR_NO_DAEMON, HVI_ERR_PROTOCOL, HVI_ERR_NO_MEMORY. */
int admin_client_next(struct admin_client *client, uint64_t deadline_ns,
                      struct hvi_admin_reply *reply_p, char *text_p, size_t text_size);
/* Sends the request and waits for no answer. */
int admin_client_send(struct admin_client *client, struct hvi_admin_request *request,
                      uint64_t deadline_ns);

#endif
