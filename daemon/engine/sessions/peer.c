/* SPDX-License-Identifier: Apache-2.0
 * Peers: the regions that ranks of a job show each other so that they can do medium ops in slots
 * themselves (docs/adr/0011). A region that is large enough keeps its descriptor for that; a rank that
 * needs it asks, and is told when it goes. A session that leaves much unread gets no answer, and asks
 * again after a second (client/memory/peer.c). */
#include "daemon/engine/sessions/peer.h"

#include "base/log.h"
#include "base/status.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>

/* What a session may leave unread. The kernel bounds the descriptors that one user's processes have sent and that are not
 * received, and engines of several users' jobs may be one user's processes. */
#define UNREAD_MAX (64 * 1024)

static bool has_much_unread(const struct engine_session *session)
{
    int unread = 0;

    return ioctl(session->socket_fd, SIOCOUTQ, &unread) == 0 && unread > UNREAD_MAX;
}

static int answer(const struct engine_session *asker, int32_t rank, uint32_t region, uint64_t bytes,
                  int fd)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_PEER_REGION};

    msg.peer_region = (struct hvi_peer_region){.rank = rank, .region = region, .bytes = bytes};
    return engine_sessions_send(asker->sessions, asker->socket_fd, &msg, &fd, fd >= 0 ? 1 : 0);
}

void engine_peer_show(struct engine_session *session, const struct hvi_peer_ask *ask)
{
    if (has_much_unread(session))
        return;
    struct engine_sessions *sessions = session->sessions;
    const struct engine_rank *peer = engine_rank_find(sessions, ask->rank);
    const struct engine_session *owner = peer ? peer->session : NULL;
    struct engine_region *region = owner ? engine_regions_find(&owner->regions, ask->region) : NULL;
    bool there = !sessions->slots->apart && region && region->map.fd >= 0 &&
                 session->seat.n < HVI_SLOT_RANKS;
    int sent = answer(session, ask->rank, ask->region, there ? region->map.bytes : 0,
                      there ? region->map.fd : -1);

    if (sent == HVI_OK && there)
        region->shown |= 1u << session->seat.n;
    else if (sent != HVI_OK)
        HVI_LOG(HVI_LOG_DEBUG, "peer", "answer-lost", hvi_status_text(sent), "rank=%d peer=%d",
                session->rank, ask->rank);
}

/* Whoever does not read its socket keeps the pages until its session ends. */
void engine_peer_forget(const struct engine_session *owner, const struct engine_region *region)
{
    const struct engine_sessions *sessions = owner->sessions;

    for (uint32_t seat = 0; region->shown != 0 && seat < sessions->seats && seat < HVI_SLOT_RANKS;
         seat++) {
        const struct engine_session *peer = sessions->ranks[seat].session;
        if (peer && (region->shown >> seat & 1u) != 0)
            answer(peer, owner->rank, region->id, 0, -1);
    }
}

void engine_peer_forget_all(const struct engine_session *owner)
{
    for (uint32_t i = 0; i < ENGINE_REGION_BUCKETS; i++) {
        for (const struct engine_region *region = owner->regions.buckets[i]; region;
             region = region->next)
            engine_peer_forget(owner, region);
    }
}
