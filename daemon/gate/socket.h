/* SPDX-License-Identifier: Apache-2.0
 * The mesh's ZeroMQ socket: a ROUTER that listens as a CURVE server with an allow-list, or a DEALER that
 * joins one. The only file that sees libzmq. One thread of ours and libzmq's own two. */
#ifndef HVD_GATE_SOCKET_H
#define HVD_GATE_SOCKET_H

#include "daemon/gate/keys.h"
#include "proto/wire.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GATE_ROUTE_TEXT 17 /* a peer's routing id, 16 letters, with its end */

struct gate_socket;
typedef struct sd_event sd_event; /* as in sd-event.h */

/* Where a message comes from. */
struct gate_sender {
    const char *route;
    const char *key;     /* checked */
    const char *address; /* numeric */
    int connection;      /* its number, until it ends */
};

struct gate_socket_calls {
    /* A message to a socket that joins, where `from` is NULL, or to one that listens. */
    void (*received)(void *user, const struct gate_sender *from, const unsigned char *bytes,
                     size_t length);
    /* To a socket that listens: a connection has ended. */
    void (*disconnected)(void *user, int connection);
    /* A socket that joins has a new connection to `address`; "": that one can be used now. */
    void (*connected)(void *user, const char *address);
    /* A socket that joins cannot talk: why. `known`: that much is sure; else it may be a consequence of
     * what was told before. */
    void (*failed)(void *user, const char *text, bool known);
};

/* The public key of a secret one; false: it is none. */
bool gate_socket_public(const char *secret, char public_p[GATE_KEY_TEXT]);
/* Listens at tcp://ADDRESS:PORT; port 0: the first free one of first..last. HVI_OK, or an error with a
 * sentence. `keys` must stay. */
int gate_socket_listen(sd_event *event, const struct gate_keys *keys, const char *endpoint,
                       uint32_t first, uint32_t last, const struct gate_socket_calls *calls,
                       void *user, struct gate_socket **socket_p, uint32_t *port_p, char *text_p,
                       size_t text_size);
/* Connects to HOST:PORT, and again whenever that fails. `route` is our routing id there. */
int gate_socket_join(sd_event *event, const struct gate_keys *keys, const char *endpoint,
                     const char *route, const struct gate_socket_calls *calls, void *user,
                     struct gate_socket **socket_p, char *text_p, size_t text_size);
/* What the socket does not take is lost. `route` is for a socket that listens. */
void gate_socket_send(struct gate_socket *socket, const char *route, const unsigned char *bytes,
                      size_t length);
/* Each 100 ms or so. */
void gate_socket_tick(struct gate_socket *socket, uint64_t now_ns);
void gate_socket_close(struct gate_socket *socket);

#endif
