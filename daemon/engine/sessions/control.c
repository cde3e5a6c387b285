/* SPDX-License-Identifier: Apache-2.0
 * Control: what a client says over its socket. Everything it submitted before it said it is taken
 * in first, so that "remove this region" and "I am leaving" come after the ops they follow. */
#include "daemon/engine/sessions/control.h"

#include "base/log.h"
#include "base/status.h"
#include "daemon/engine/sessions/device.h"
#include "daemon/engine/sessions/fence.h"
#include "daemon/engine/sessions/intake.h"
#include "daemon/engine/sessions/peer.h"
#include "daemon/engine/sessions/quota.h"

#include <inttypes.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#define MESSAGES_AT_ONCE 16 /* others have to live too */

void engine_control_ack(struct engine_session *session, uint64_t request, int status,
                        const char *text)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_ACK};

    msg.ack.request = request;
    msg.ack.status = status;
    snprintf(msg.ack.text, sizeof msg.ack.text, "%s", text);
    /* A client that is gone does not matter; one that does not read gives up by its own deadline.
     */
    int sent = engine_sessions_send(session->sessions, session->socket_fd, &msg, NULL, 0);
    if (sent != HVI_OK)
        HVI_LOG(HVI_LOG_DEBUG, "control", "ack-lost", hvi_status_text(sent), "rank=%d",
                session->rank);
}

void engine_control_answer(struct engine_sessions *sessions, const struct engine_asker *asker,
                           int status, const char *text)
{
    const struct engine_rank *slot = engine_rank_find(sessions, asker->rank);
    struct engine_session *session = slot ? slot->session : NULL;

    if (session && session->id == asker->session)
        engine_control_ack(session, asker->request, status, text);
}

uint64_t engine_control_region_bytes(const struct engine_sessions *sessions, bool process_memory)
{
    uint64_t bytes = 0;

    for (uint32_t seat = 0; seat < sessions->seats; seat++) {
        const struct engine_session *session = sessions->ranks[seat].session;
        if (session)
            bytes += process_memory ? session->regions.process_bytes : session->regions.bytes;
    }
    return bytes;
}

int engine_control_check_id(const struct engine_session *session, uint32_t region, uint32_t waiting,
                            char *text_p, size_t text_size)
{
    const struct hvi_engine_start *start = session->sessions->start;

    if (region == HVI_REGION_INLINE || region == HVI_REGION_NONE || region == HVI_REGION_PROCESS ||
        engine_regions_find(&session->regions, region)) {
        snprintf(text_p, text_size, "region id %u is taken", region);
        return HVI_ERR_INVALID;
    }
    if (session->regions.count + waiting < start->regions_max)
        return HVI_OK;
    snprintf(text_p, text_size,
             "this session has %u regions, the limit is %u (regions-per-session)",
             session->regions.count, start->regions_max);
    return HVI_ERR_LIMIT;
}

static int check_region(const struct engine_session *session, const struct hvi_region_add *add,
                        char *text_p, size_t text_size)
{
    const struct hvi_engine_start *start = session->sessions->start;
    uint64_t used = engine_control_region_bytes(session->sessions, add->process_memory);
    int status = engine_control_check_id(session, add->region, 0, text_p, text_size);

    if (status != HVI_OK)
        return status;
    if (used > start->region_bytes_max || add->bytes > start->region_bytes_max - used) {
        snprintf(text_p, text_size,
                 "%" PRIu64 " bytes more than the %" PRIu64 " that job '%s' has registered exceed "
                 "the limit of %" PRIu64 " (region-limit)",
                 add->bytes, used, start->job, start->region_bytes_max);
        return HVI_ERR_LIMIT;
    }
    return HVI_OK;
}

static void answer_region(struct engine_session *session, const struct hvi_region_add *add,
                          int status, const char *text)
{
    if (status != HVI_OK)
        HVI_LOG(HVI_LOG_WARN, "control", "region-refused", text, "job=%s rank=%d pid=%d bytes=%llu",
                session->sessions->start->job, session->rank,
                (int)engine_rank_at(session->sessions, session->seat)->pid,
                (unsigned long long)add->bytes);
    engine_control_ack(session, add->request, status, text);
}

/* The region was checked. `status` HVI_OK: it is taken in. */
static void take_region(struct engine_session *session, const struct hvi_region_add *add, int fd,
                        int status, const char *text)
{
    if (status == HVI_OK) {
        status = engine_regions_add(&session->regions, add, fd);
        session->sessions->fresh_regions = true;
        if (status == HVI_OK)
            fd = -1; /* the region's, and closed by now */
        else
            text = status == HVI_ERR_PROTOCOL
                       ? "the descriptor is no sealed memfd of the size that was said"
                       : hvi_status_text(status);
    }
    if (fd >= 0)
        close(fd);
    answer_region(session, add, status, text);
}

void engine_control_settle(struct engine_session *session, const struct hvi_region_add *add, int fd,
                           int status, const char *text)
{
    char why[HVI_TEXT_MAX + 1];

    snprintf(why, sizeof why, "%s", text);
    if (status == HVI_OK) /* others may have come first */
        status = check_region(session, add, why, sizeof why);
    take_region(session, add, fd, status, why);
}

static void add_region(struct engine_session *session, const struct hvi_region_add *add)
{
    struct hvi_packet *packet = &session->sessions->packet;
    char text[HVI_TEXT_MAX + 1] = "";

    if (packet->fd_count != 1) {
        engine_session_violation(session, "a RegionAdd without its descriptor");
        return;
    }
    int fd = hvi_packet_take_fd(packet, 0);
    int status = check_region(session, add, text, sizeof text);
    if (status == HVI_OK && !engine_quota_has(session->sessions, add->bytes)) {
        status = engine_quota_ask(session, add, fd);
        if (status == HVI_INPROGRESS)
            return;
        snprintf(text, sizeof text, "%s",
                 status == HVI_ERR_LIMIT ? "too many regions of this session wait for hvdd "
                                           "(regions-per-session)"
                                         : hvi_status_text(status));
    }
    take_region(session, add, fd, status, text);
}

static void remove_region(struct engine_session *session, const struct hvi_region_remove *remove)
{
    if (engine_device_remove(session, remove) || engine_quota_remove(session, remove))
        return;

    char text[128];
    const struct engine_region *region = engine_regions_find(&session->regions, remove->region);
    int status = region && engine_intake_holds(session, remove->region) ? HVI_ERR_BUSY : HVI_OK;

    if (status == HVI_OK && region && region->users == 0)
        engine_peer_forget(session, region);
    if (status == HVI_OK)
        status = engine_regions_remove(&session->regions, remove->region);

    text[0] = '\0';
    if (status == HVI_ERR_NOT_FOUND)
        snprintf(text, sizeof text, "there is no region %u", remove->region);
    if (status == HVI_ERR_BUSY)
        snprintf(text, sizeof text, "region %u is in use by an op in flight", remove->region);
    engine_control_ack(session, remove->request, status, text);
}

/* The Ack comes last (engine_control_farewell): by then hvdd has been told, so that a rank that comes
 * again at once is not taken for its former self, and no op writes to memory that stays the process's. */
static void let_go(struct engine_session *session)
{
    char label[ENGINE_RANK_LABEL], text[sizeof label + 32];

    engine_rank_label(session, label, sizeof label);
    snprintf(text, sizeof text, "%s closed its session", label);
    engine_session_end(session, ENGINE_RANK_LEFT, text);
}

static void detach(struct engine_session *session, const struct hvi_detach *detach)
{
    if (session->detached) {
        engine_session_violation(session, "a second Detach");
        return;
    }
    engine_intake_drain_all(
        session->sessions); /* nobody's finished op shall fail because we leave */
    if (!engine_session_is_open(session))
        return;
    session->detached = true;
    session->detach_request = detach->request;
    if (!session->sessions->held)
        let_go(session);
}

void engine_control_let_go(struct engine_sessions *sessions)
{
    for (uint32_t seat = 0; seat < sessions->seats; seat++) {
        struct engine_session *session = sessions->ranks[seat].session;
        if (session && session->detached && engine_session_is_open(session))
            let_go(session);
    }
}

void engine_control_farewell(struct engine_session *session)
{
    if (session->detached)
        engine_control_ack(session, session->detach_request, HVI_OK, "");
}

void engine_control_hang_up(struct engine_session *session)
{
    char unread;

    shutdown(session->socket_fd, SHUT_RD); /* nothing more can come */
    while (recv(session->socket_fd, &unread, sizeof unread, MSG_DONTWAIT | MSG_TRUNC) > 0) {
    }
    close(session->socket_fd);
    session->socket_fd = -1;
}

static void start_timeline(struct engine_session *session, const struct hvi_timeline_start *start)
{
    const struct engine_asker asker = {session->rank, session->id, start->request};
    int fd = hvi_packet_take_fd(&session->sessions->packet, 0);

    if (fd < 0)
        engine_session_violation(session, "a TimelineStart without its descriptor");
    else
        session->sessions->calls->timeline_start(session->sessions->user, &asker, fd, start->path,
                                                 start->mark_cycles);
}

static void stop_timeline(struct engine_session *session, const struct hvi_timeline_stop *stop)
{
    const struct engine_asker asker = {session->rank, session->id, stop->request};

    engine_intake_drain_all(session->sessions);
    session->sessions->calls->timeline_stop(session->sessions->user, &asker);
}

static void serve(struct engine_session *session, const struct hvi_packet_msg *msg)
{
    if (msg->kind != HVI_PACKET_REGION_ADD && msg->kind != HVI_PACKET_TIMELINE_START &&
        msg->kind != HVI_PACKET_DEVICE_ADD && msg->kind != HVI_PACKET_FENCE_ADD &&
        session->sessions->packet.fd_count > 0) {
        engine_session_violation(session, "descriptors that nobody asked for");
        return;
    }
    switch (msg->kind) {
    case HVI_PACKET_REGION_ADD:
        add_region(session, &msg->region_add);
        return;
    case HVI_PACKET_REGION_REMOVE:
        remove_region(session, &msg->region_remove);
        return;
    case HVI_PACKET_DEVICE_ADD:
        engine_device_take(session, &msg->device_add);
        return;
    case HVI_PACKET_FENCE_ADD:
        engine_device_take_page(session, msg->fence_add.request);
        return;
    case HVI_PACKET_TIMELINE_START:
        start_timeline(session, &msg->timeline_start);
        return;
    case HVI_PACKET_TIMELINE_STOP:
        stop_timeline(session, &msg->timeline_stop);
        return;
    case HVI_PACKET_PEER_ASK:
        engine_peer_show(session, &msg->peer_ask);
        return;
    case HVI_PACKET_DETACH:
        detach(session, &msg->detach);
        return;
    default:
        engine_session_violation(session, "a message that is not a client's");
    }
}

static void handle(struct engine_session *session)
{
    struct hvi_packet *packet = &session->sessions->packet;
    struct hvi_packet_msg msg;
    char why[256], reason[320];

    engine_intake_drain(session);
    if (!engine_session_is_open(session))
        return;
    int status = hvi_packet_msg_decode(packet->bytes, packet->length, &msg, why, sizeof why);
    if (status != HVI_OK) {
        snprintf(reason, sizeof reason, "a message that cannot be read: %s",
                 status == HVI_ERR_PROTOCOL ? why : hvi_status_text(status));
        engine_session_violation(session, reason);
        return;
    }
    serve(session, &msg);
    hvi_packet_msg_free(&msg);
}

bool engine_control_read(struct engine_session *session)
{
    struct hvi_packet *packet = &session->sessions->packet;

    for (int i = 0; i < MESSAGES_AT_ONCE && engine_session_is_open(session); i++) {
        int status = hvi_packet_receive(session->socket_fd, packet, 0);
        if (status == HVI_ERR_TIMEOUT)
            return true;
        if (status == HVI_OK) {
            handle(session);
            hvi_packet_close_fds(packet);
        } else if (status == HVI_ERR_PROTOCOL) {
            engine_session_violation(session,
                                     "a message that is too long or has too many descriptors");
        } else if (status == HVI_ERR_LIMIT) {
            engine_session_violation(
                session, "its descriptor could not be received: the engine is out of descriptors");
        } else {
            return false;
        }
    }
    return true;
}
