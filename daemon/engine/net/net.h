/* SPDX-License-Identifier: Apache-2.0
 * Connections between the engines of a job. It knows sockets, keys and node numbers, and nothing of ops.
 * Main thread; nothing blocks. Of two nodes the lower number connects. A connection is handed over once
 * both sides have proved that they know the epoch's key (handshake.h); until then nothing that comes on
 * it is interpreted, and it costs at most a descriptor and 5 s. */
#ifndef ENGINE_NET_NET_H
#define ENGINE_NET_NET_H

#include "base/pace.h"
#include "base/seal.h"
#include "daemon/engine/event/event.h"
#include "daemon/engine/net/handshake.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#define ENGINE_NET_TEXT         512u /* room that a reason needs */
#define ENGINE_NET_NAME         64u
#define ENGINE_NET_ADDRESS_TEXT 80u
#define ENGINE_NET_PACE_NAME    16u /* as the kernel has it */
#define ENGINE_NET_HANDSHAKE_NS                                                                    \
    (5 * UINT64_C(1000000000))      /* for a handshake, and a connect before it */
#define ENGINE_NET_WAITING_MAX 256u /* accepted connections that have not proved themselves */
#define ENGINE_NET_PER_ADDRESS 64u  /* of them from one address; of IPv6, one /64 */

/* Called from the event loop only. They may call engine_net_connect and engine_net_gone. */
struct engine_net_calls {
    /* A non-blocking TCP socket, the receiver's from now on. One that comes for the same node, purpose
     * and lane again replaces the older, which its other end has given up. `keys`: the receiver has to seal
     * what it sends with them, and copies them; NULL: bytes go as they are. */
    void (*connected)(void *user, uint32_t node, enum engine_net_purpose purpose, uint32_t lane,
                      int fd, const struct hvi_seal_keys *keys);
    /* The deadline has passed. The text is a sentence with both addresses. */
    void (*failed)(void *user, uint32_t node, enum engine_net_purpose purpose, uint32_t lane,
                   const char *text);
};

/* All of it is copied. */
struct engine_net_peer {
    const char *address; /* numeric */
    uint16_t port;
    const char *name; /* for people */
};
struct engine_net_config {
    const char *job;
    uint64_t epoch;
    const unsigned char *key;            /* [ENGINE_NET_KEY_BYTES], of this epoch */
    uint32_t node, nodes;                /* ours; of the job */
    bool encrypts;                       /* DATA connections; the same on all nodes */
    const struct engine_net_peer *peers; /* [nodes], ours too */
    const struct engine_net_calls *calls;
    void *user;
};

struct engine_net_node;
struct engine_net_stranger;
struct engine_net_wish;

struct engine_net {
    sd_event *event;
    int fd;
    sd_event_source *listening, *pause;
    struct engine_net_stranger *strangers;
    uint32_t waiting;
    uint64_t logged_ns; /* when a refusal was last logged, and how many have come since */
    uint32_t unlogged;
    uint64_t paused_ns; /* when a lack of descriptors was last logged */
    struct hvi_pace accepts;
    char
        paced[ENGINE_NET_PACE_NAME]; /* the system's congestion control, where it is not ours; "" */
    struct engine_net_identity identity;
    struct engine_net_node *nodes; /* [identity.nodes]; NULL: not started */
    struct engine_net_wish *wishes;
    const struct engine_net_calls *calls;
    void *user;
};

/* Listens on the last port of the range that is free; address: numeric, NULL: on all, IPv4 and IPv6.
 * 0 to 0: any port. Connections wait for engine_net_start. HVI_OK; HVI_ERR_INVALID: no such address;
 * HVI_ERR_LIMIT: no port, or the system refuses; HVI_ERR_NO_MEMORY; HVI_ERR_DAEMON. Then the text says
 * why and nothing is left open. */
int engine_net_listen(struct engine_net *net, sd_event *event, const char *address,
                      uint16_t port_first, uint16_t port_last, uint16_t *port_p,
                      char text_p[ENGINE_NET_TEXT]);
/* Once: the roster is there. HVI_OK; HVI_ERR_INVALID: an address or port cannot be used;
 * HVI_ERR_NO_MEMORY. Then the text says why, and nothing has changed. */
int engine_net_start(struct engine_net *net, const struct engine_net_config *config,
                     char text_p[ENGINE_NET_TEXT]);
/* connected or failed follows. To a lower node this waits for that node to connect. Nothing happens while
 * one is wanted, or one has been handed over that has not been reported by engine_net_gone. HVI_OK or
 * HVI_ERR_NO_MEMORY. */
int engine_net_connect(struct engine_net *net, uint32_t node, enum engine_net_purpose purpose,
                       uint32_t lane, uint64_t deadline_ns);
/* The receiver has closed this connection: engine_net_connect brings another. */
void engine_net_gone(struct engine_net *net, uint32_t node, enum engine_net_purpose purpose,
                     uint32_t lane);
/* "node 1 (h2)" */
void engine_net_describe(const struct engine_net *net, uint32_t node, char text_p[ENGINE_NET_TEXT]);
/* Closes everything that has not been handed over, and forgets the key. */
void engine_net_close(struct engine_net *net);

#endif
