/* SPDX-License-Identifier: Apache-2.0
 * What a port does whose bytes are sealed: records (base/seal.h) between what is posted and the socket. Each
 * piece that is posted begins a record, so that the records of a body are opened right where the body belongs.
 * One thread, the net thread; nothing blocks. */
#ifndef ENGINE_WIRE_SEAL_H
#define ENGINE_WIRE_SEAL_H

#include "base/seal.h"
#include "daemon/engine/exec/net_port.h"

#include <sys/uio.h>

struct engine_wire_seal;

/* The keys are copied. NULL without memory. */
struct engine_wire_seal *engine_wire_seal_new(const struct hvi_seal_keys *keys);
/* Harmless on NULL. */
void engine_wire_seal_free(struct engine_wire_seal *seal);
/* Whether sealed bytes wait for the socket. */
bool engine_wire_seal_unsent(const struct engine_wire_seal *seal);
/* As the transport's send, of these pieces, which move on. *writable_p: as epoll has said; false: the socket is full. */
int engine_wire_seal_send(struct engine_wire_seal *seal, int fd, struct iovec *pieces, int count,
                          bool *writable_p);
/* As the transport's receive, of *wanted_p bytes to *to_p, which move on. `closing`: the other end has said so.
 * -EBADMSG: what has come is not what the other end has sent. */
int engine_wire_seal_receive(struct engine_wire_seal *seal, int fd, unsigned char **to_p,
                             uint64_t *wanted_p, bool *readable_p, bool closing);

#endif
