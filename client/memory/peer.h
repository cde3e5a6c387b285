/* SPDX-License-Identifier: Apache-2.0
 * The peers' regions that this rank has mapped, to do medium ops with (client/slots/medium.h): each is asked
 * for when it is first needed, lies between pages that no thread may touch, and is unmapped when the
 * engine says that it is gone. Needs the session's lock where it does not say otherwise. */
#ifndef HVD_CLIENT_PEER_H
#define HVD_CLIENT_PEER_H

#include "proto/wire.h"
#include "shm/region.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define CLIENT_PEER_BUCKETS 64u
#define CLIENT_PEERS_MAX    2048u /* each takes up to three of the process' mappings */

struct client_link;

struct client_peer {
    struct client_peer *next; /* in the bucket */
    int32_t rank;
    uint32_t region;
    uint64_t asked_ns;     /* since when the answer is to come; 0: it has */
    bool gone;             /* unmapped as soon as no thread works there */
    struct hvi_region map; /* .base NULL: not there (yet) */
};

struct client_peers {
    struct client_link *link;
    struct client_peer *buckets[CLIENT_PEER_BUCKETS];
    uint32_t count; /* of all */
    uint32_t asked; /* answers to come */
    bool gone;      /* some have .gone */
    bool watched;   /* hvi_pages_open was called */
    /* Threads that work in what is mapped. Up under the lock, down without: release, pairs with the
     * acquire before unmapping. */
    _Atomic uint32_t working;
};

/* The mapping of another rank's region; valid while .working is counted up. NULL: not known yet (it has
 * been asked for), or not to be had. */
const struct hvi_region *client_peers_find(struct client_peers *peers, int32_t rank,
                                           uint32_t region);
/* The engine's word. `fd`, -1 for none, is ours. */
void client_peers_told(struct client_peers *peers, const struct hvi_peer_region *told, int fd);
/* Waits until no thread of this rank works on chunks, a second at most. Gives up the lock. */
bool client_peers_wait_quiet(struct client_peers *peers);
/* An answer may have been lost. */
void client_peers_ask_again(struct client_peers *peers);
/* Unmaps everything; no thread works any more. */
void client_peers_fini(struct client_peers *peers);

#endif
