/* SPDX-License-Identifier: Apache-2.0 */
#include "client/memory/peer.h"

#include "base/clock.h"
#include "base/pages.h"
#include "client/link/control.h"
#include "client/link/link.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define QUIET_NAP_NS 20000l
#define ANSWER_NS    HVI_NS_SEC /* the engine's time to answer */

static struct client_peer **bucket_of(struct client_peers *peers, int32_t rank, uint32_t region)
{
    return &peers->buckets[(region * 31u + (uint32_t)rank) % CLIENT_PEER_BUCKETS];
}

static struct client_peer *find(struct client_peers *peers, int32_t rank, uint32_t region)
{
    struct client_peer *peer = *bucket_of(peers, rank, region);
    while (peer && (peer->rank != rank || peer->region != region || peer->gone))
        peer = peer->next;
    return peer;
}

static void free_peer(struct client_peer *peer)
{
    hvi_region_fini(&peer->map);
    free(peer);
}

static void sweep_bucket(struct client_peers *peers, struct client_peer **link)
{
    while (*link) {
        struct client_peer *peer = *link;
        if (!peer->gone) {
            link = &peer->next;
            continue;
        }
        *link = peer->next;
        peers->count--;
        free_peer(peer);
    }
}

/* Once no thread works anywhere. */
static void sweep(struct client_peers *peers)
{
    /* Acquire: what they did there is done. */
    if (!peers->gone || atomic_load_explicit(&peers->working, memory_order_acquire) > 0)
        return;
    peers->gone = false;
    for (uint32_t i = 0; i < CLIENT_PEER_BUCKETS; i++)
        sweep_bucket(peers, &peers->buckets[i]);
}

/* Those that are not to be had, and those whose answers are overdue. */
static void drop_empty(struct client_peers *peers, uint64_t now_ns)
{
    for (uint32_t i = 0; i < CLIENT_PEER_BUCKETS; i++) {
        for (struct client_peer *peer = peers->buckets[i]; peer; peer = peer->next) {
            if (peer->map.base || peer->gone || now_ns - peer->asked_ns < ANSWER_NS)
                continue;
            peers->asked -= peer->asked_ns != 0;
            peer->asked_ns = 0;
            peer->gone = true;
            peers->gone = true;
        }
    }
    sweep(peers);
}

static void ask(struct client_peers *peers, int32_t rank, uint32_t region)
{
    struct client_peer **bucket = bucket_of(peers, rank, region);
    if (peers->count >= CLIENT_PEERS_MAX)
        drop_empty(peers, hvi_clock_ns());
    struct client_peer *peer = peers->count < CLIENT_PEERS_MAX ? calloc(1, sizeof(*peer)) : NULL;
    if (!peer)
        return; /* the engine does it */
    if (!client_control_peer_ask(peers->link, rank, region)) {
        free(peer);
        return;
    }
    *peer = (struct client_peer){.next = *bucket,
                                 .rank = rank,
                                 .region = region,
                                 .asked_ns = hvi_clock_ns(),
                                 .map = HVI_REGION_INIT};
    *bucket = peer;
    peers->asked++;
    peers->count++;
}

const struct hvi_region *client_peers_find(struct client_peers *peers, int32_t rank,
                                           uint32_t region)
{
    sweep(peers);
    struct client_peer *peer = find(peers, rank, region);
    if (peer && peer->asked_ns != 0 && hvi_clock_ns() - peer->asked_ns >= ANSWER_NS) {
        drop_empty(peers, hvi_clock_ns());
        peer = NULL;
    }
    if (!peer)
        ask(peers, rank, region);
    return peer && peer->map.base ? &peer->map : NULL;
}

void client_peers_told(struct client_peers *peers, const struct hvi_peer_region *told, int fd)
{
    struct client_peer *peer = find(peers, told->rank, told->region);
    bool answer = peer && peer->asked_ns != 0;
    if (answer && fd >= 0 && !peers->watched) {
        hvi_pages_open();
        peers->watched = true;
    }
    if (answer && fd >= 0 && hvi_region_map_guarded(fd, told->bytes, &peer->map) == HVD_OK) {
        (void)madvise(peer->map.base, peer->map.bytes, MADV_DONTFORK);
        hvi_region_close_fd(&peer->map);
        fd = -1;
    }
    if (fd >= 0)
        close(fd);
    if (answer) {
        peers->asked--;
        peer->asked_ns = 0;
    } else if (peer && told->bytes == 0) {
        peer->gone = true;
        peers->gone = true;
    }
    sweep(peers);
}

bool client_peers_wait_quiet(struct client_peers *peers)
{
    const struct timespec nap = {.tv_nsec = QUIET_NAP_NS};
    uint64_t deadline_ns = hvi_deadline_after(HVI_NS_SEC);
    /* Acquire, as in sweep. */
    while (atomic_load_explicit(&peers->working, memory_order_acquire) > 0) {
        if (hvi_deadline_passed(deadline_ns))
            return false;
        pthread_mutex_unlock(&peers->link->mutex);
        nanosleep(&nap, NULL);
        pthread_mutex_lock(&peers->link->mutex);
    }
    return true;
}

void client_peers_ask_again(struct client_peers *peers)
{
    drop_empty(peers, UINT64_MAX);
}

void client_peers_fini(struct client_peers *peers)
{
    if (peers->watched)
        hvi_pages_close();
    peers->watched = false;
    for (uint32_t i = 0; i < CLIENT_PEER_BUCKETS; i++) {
        while (peers->buckets[i]) {
            struct client_peer *peer = peers->buckets[i];
            peers->buckets[i] = peer->next;
            free_peer(peer);
        }
    }
}
