/* SPDX-License-Identifier: Apache-2.0 */
#include "client/link/control.h"

#include "base/assert.h"
#include "base/status.h"
#include "base/utf8.h"
#include "client/error.h"
#include "client/link/link.h"
#include "client/link/liveness.h"
#include "client/link/patience.h"

#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <utlist.h>

#define CONTROL_BYTES    1024u /* the largest request */
#define CONTROL_SLICE_MS 5     /* another thread may have received our acknowledgement */
#define CONTROL_PER_LOOK 64u   /* messages handled at once; an engine does not send more */

/* A request that waits for its Ack; lives on the waiter's stack. */
struct client_pending {
    uint64_t request;
    bool done;
    struct hvi_ack ack; /* once it is done */
    struct client_pending *next;
};

static void handle_notice(struct client_link *link, const struct hvi_notice *notice)
{
    /* A rank that leaves in good order is no news to those that need nothing more of it; the ops of
     * the others say so themselves. */
    enum hvd_log_level level = notice->status == HVD_ERR_RANK_LEFT ? HVD_LOG_INFO : HVD_LOG_WARN;
    if (notice->session_ended) {
        link->calls->drain(link->complete); /* what was finished before stays finished */
        link->told_over = true;
        client_link_end(link, notice->status, "%s", notice->text);
        return;
    }
    client_link_log(link, level, notice->text);
    if (link->job_status != HVD_OK || notice->status >= 0)
        return;
    link->job_status = notice->status;
    memcpy(link->job_text, notice->text, sizeof(link->job_text));
}

static void handle_ack(struct client_link *link, const struct hvi_ack *ack)
{
    struct client_pending *pending;
    if (link->farewell.said && ack->request == link->farewell.request)
        link->farewell.done = link->told_over = true;
    LL_SEARCH_SCALAR(link->pending, pending, request, ack->request);
    if (!pending) /* given up, or never waited for */
        return;
    pending->done = true;
    pending->ack = *ack;
}

/* hvdd's: the engine has answered the attach, and was lost before it could tell hvdd so. */
static void handle_refusal(struct client_link *link, const struct hvi_attach_reply *reply)
{
    link->calls->drain(link->complete);
    client_link_end(link, HVD_ERR_ENGINE_LOST, "%s; close this session and open a new one",
                    reply->text);
}

static void handle(struct client_link *link)
{
    struct hvi_packet_msg msg;
    char why[HVI_TEXT_MAX + 1];
    int rc = hvi_packet_msg_decode(link->packet.bytes, link->packet.length, &msg, why, sizeof(why));
    if (rc == HVD_ERR_NO_MEMORY) /* lost one message; an acknowledgement times out */
        return;
    if (rc != HVD_OK) {
        client_link_end(link, HVD_ERR_PROTOCOL, "the engine (pid %d) sent nonsense: %s",
                        link->engine_pid, why);
        return;
    }
    if (msg.kind == HVI_PACKET_ACK)
        handle_ack(link, &msg.ack);
    else if (msg.kind == HVI_PACKET_NOTICE)
        handle_notice(link, &msg.notice);
    else if (msg.kind == HVI_PACKET_ATTACH_REPLY && msg.attach_reply.status != HVD_OK)
        handle_refusal(link, &msg.attach_reply);
    else if (msg.kind == HVI_PACKET_PEER_REGION)
        link->calls->peer_region(link->peers, &msg.peer_region,
                                 hvi_packet_take_fd(&link->packet, 0));
    else
        client_link_end(link, HVD_ERR_PROTOCOL,
                        "the engine (pid %d) sent a message of kind %d that is not for clients",
                        link->engine_pid, (int)msg.kind);
    hvi_packet_msg_free(&msg);
}

void client_control_look(struct client_link *link)
{
    for (unsigned i = 0; i < CONTROL_PER_LOOK; i++) {
        if (link->end_status != HVD_OK)
            return;
        int rc = hvi_packet_receive(link->socket_fd, &link->packet, 0);
        if (rc == HVD_OK) {
            handle(link);
            hvi_packet_close_fds(&link->packet);
        } else if (rc == HVD_ERR_CLOSED) {
            client_liveness_gone(link);
        } else if (rc == HVD_ERR_LIMIT) { /* a descriptor that this process has no room for */
            link->calls->message_lost(link->peers);
        } else if (rc == HVD_ERR_PROTOCOL) {
            client_link_end(link, rc, "the engine (pid %d) sent a message that is too long",
                            link->engine_pid);
        } else {
            client_liveness_look(link);
            return;
        }
    }
}

/* Sleeps without the lock until the socket may be `events`-ready; looks at it afterwards. */
static void pause_for(struct client_link *link, short events)
{
    struct pollfd pollfd = {.fd = link->socket_fd, .events = events};
    pthread_mutex_unlock(&link->mutex);
    poll(&pollfd, 1, CONTROL_SLICE_MS);
    pthread_mutex_lock(&link->mutex);
    client_control_look(link);
}

/* A request with its descriptors. */
struct request {
    const struct hvi_packet_msg *msg;
    const int *fds;
    uint32_t fd_count;
};

/* The kernel lets a user have so many descriptors on their way (RLIMIT_NOFILE): those of many chunks may have to wait for the engine. */
static int send_request(struct client_link *link, const struct request *request,
                        struct client_patience *patience)
{
    unsigned char bytes[CONTROL_BYTES];
    size_t length = 0;
    int rc = hvi_packet_msg_encode(request->msg, bytes, sizeof(bytes), &length);
    HVI_ASSERT(rc == HVD_OK);
    for (;;) {
        rc = hvi_packet_send(link->socket_fd, bytes, length, request->fds, request->fd_count, 0);
        bool crowded = rc == HVD_ERR_LIMIT && request->msg->kind == HVI_PACKET_DEVICE_ADD;
        if ((rc != HVD_ERR_TIMEOUT && !crowded) || client_patience_is_over(patience))
            return rc;
        pause_for(link, crowded ? POLLIN : POLLOUT | POLLIN);
        if (link->end_status != HVD_OK)
            return HVD_ERR_CLOSED;
    }
}

/* Sends a request (whose number is pending->request) and waits for its Ack, which pending->ack is
 * when HVD_OK is returned; the engine's verdict is in there. */
static int call(struct client_link *link, const struct request *request, uint64_t timeout_ns,
                struct client_pending *pending)
{
    struct client_patience patience = client_patience_of(timeout_ns);
    pending->done = false;
    LL_PREPEND(link->pending, pending);
    int rc = send_request(link, request, &patience);
    while (rc == HVD_OK && !pending->done) {
        if (link->end_status != HVD_OK)
            rc = HVD_ERR_CLOSED;
        else if (client_patience_is_over(&patience))
            rc = HVD_ERR_TIMEOUT;
        else
            pause_for(link, POLLIN);
    }
    if (pending->done)
        rc = HVD_OK;
    LL_DELETE(link->pending, pending);
    return rc;
}

/* The engine's word on a request that it may refuse; sets the last error. `told` says what the engine
 * was told, `refused` what it refuses. */
static int ask_for(struct client_link *link, const struct request *request, uint64_t timeout_ns,
                   const char *what, const char *told, const char *refused,
                   struct client_pending *pending)
{
    const struct hvi_ack *ack = &pending->ack;
    int rc = client_link_usable(link, what);
    if (rc != HVD_OK)
        return rc;
    rc = call(link, request, timeout_ns, pending);
    if (rc == HVD_ERR_CLOSED) {
        client_control_look(link);
        if (link->end_status != HVD_OK)
            return client_link_usable(link, what);
    }
    if (rc != HVD_OK)
        return client_error(rc, "%s: the engine (pid %d) %sdid not answer: %s", what,
                            link->engine_pid, told, hvi_status_text(rc));
    if (ack->status != HVD_OK)
        return client_error(ack->status < 0 ? ack->status : HVD_ERR_PROTOCOL, "%s: %s%s", what,
                            refused, ack->text[0] ? ack->text : hvi_status_text(ack->status));
    return HVD_OK;
}

static int ask(struct client_link *link, const struct hvi_packet_msg *msg, int fd, const char *what,
               const char *told, const char *refused, struct client_pending *pending)
{
    struct request request = {msg, &fd, fd >= 0 ? 1 : 0};
    return ask_for(link, &request, CLIENT_ACK_NS, what, told, refused, pending);
}

int client_control_region_add(struct client_link *link, const struct hvi_region *region,
                              bool process_memory, const char *what, uint32_t *region_id_p)
{
    struct client_pending pending = {.request = ++link->last_request};
    uint32_t region_id = ++link->last_region;
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_REGION_ADD};
    char told[96], refused[96];
    msg.region_add.request = pending.request;
    msg.region_add.region = region_id;
    msg.region_add.bytes = region->bytes;
    msg.region_add.process_memory = process_memory;
    snprintf(told, sizeof(told), "was told of %" PRIu64 " bytes of memory and ", region->bytes);
    snprintf(refused, sizeof(refused),
             "the engine refused %" PRIu64 " bytes of memory: ", region->bytes);
    int rc = ask(link, &msg, region->fd, what, told, refused, &pending);
    if (rc == HVD_OK)
        *region_id_p = region_id;
    else if (!pending.done)
        client_control_region_forget(link, region_id);
    return rc;
}

uint32_t client_control_new_region(struct client_link *link)
{
    return ++link->last_region;
}

/* What the engine does not answer. */
static int send_more(struct client_link *link, const struct request *request, const char *what)
{
    struct client_patience patience = client_patience_of(CLIENT_ACK_NS);
    int rc = client_link_usable(link, what);
    if (rc == HVD_OK && (rc = send_request(link, request, &patience)) != HVD_OK)
        rc = client_error(rc, "%s: the engine (pid %d) takes no messages: %s", what,
                          link->engine_pid, hvi_status_text(rc));
    return rc;
}

int client_control_device_add(struct client_link *link, uint32_t region_id,
                              const struct hvi_device_memory *memory, const int *fds,
                              uint32_t fd_count, bool more, uint64_t timeout_ns, const char *what)
{
    struct client_pending pending = {.request = ++link->last_request};
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_DEVICE_ADD};
    struct request request = {&msg, fds, fd_count};
    char told[96], refused[192];
    msg.device_add = (struct hvi_device_add){
        .request = pending.request, .region = region_id, .memory = *memory, .more = more};
    snprintf(told, sizeof(told),
             "was told of %" PRIu64 " bytes of device memory at %#" PRIx64 " and ", memory->bytes,
             memory->address);
    snprintf(refused, sizeof(refused),
             "the engine refused %" PRIu64 " bytes of device memory at %#" PRIx64
             ", which HVD_GPU=staged copies through the host for ops without a stream: ",
             memory->bytes, memory->address);
    int rc = more ? send_more(link, &request, what)
                  : ask_for(link, &request, timeout_ns, what, told, refused, &pending);
    if (rc != HVD_OK && !pending.done)
        client_control_region_forget(link, region_id);
    return rc;
}

int client_control_check_devices(const struct client_link *link, const char *what, const char *gpu)
{
    if (link->channel.features & HVI_FEATURE_DEVICE)
        return HVD_OK;
    return client_error(HVD_ERR_UNSUPPORTED,
                        "%s: the tensor lies in memory of %s, and the engine of job '%s' (pid %d) "
                        "has no worker for GPUs; 'hvdctl doctor' says what hvdd misses; until then "
                        "copy the tensor to memory of the host before the call, or set "
                        "HVD_GPU=staged, which does so for ops without a stream",
                        what, gpu, link->identity.job, link->engine_pid);
}

void client_control_say_unsent(struct client_link *link)
{
    char text[HVI_TEXT_MAX + 1];
    if (!link->unsent[0])
        return;
    snprintf(text, sizeof(text),
             "variables of NCCL that are set here and do not reach the workers of GPUs: %s; a "
             "worker has these from the environment of hvdd alone",
             link->unsent);
    link->unsent[0] = '\0';
    client_link_log(link, HVD_LOG_WARN, text);
}

bool client_control_takes_fabric(const struct client_link *link)
{
    return link->takes_fabric;
}

void client_control_lock(struct client_link *link)
{
    pthread_mutex_lock(&link->mutex);
}

void client_control_unlock(struct client_link *link)
{
    pthread_mutex_unlock(&link->mutex);
}

int client_control_fence_add(struct client_link *link, int fd, const char *what)
{
    struct client_pending pending = {.request = ++link->last_request};
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_FENCE_ADD};
    struct request request = {&msg, &fd, 1};
    msg.fence_add.request = pending.request;
    return ask_for(link, &request, CLIENT_WORKER_NS, what, "was handed the session's fences and ",
                   "the engine refused the session's fences: ", &pending);
}

static struct hvi_packet_msg remove_msg(uint64_t request, uint32_t region_id)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_REGION_REMOVE};
    msg.region_remove.request = request;
    msg.region_remove.region = region_id;
    return msg;
}

/* False: the engine has not let go of the region, because an op of ours is only just over, and may be asked again. */
static bool remove_once(struct client_link *link, uint32_t region_id, uint64_t timeout_ns,
                        bool *has_gone_p)
{
    struct client_pending pending = {.request = ++link->last_request};
    struct hvi_packet_msg msg = remove_msg(pending.request, region_id);
    struct request request = {.msg = &msg};
    call(link, &request, timeout_ns, &pending);
    bool refused = pending.done && pending.ack.status == HVD_ERR_BUSY;
    *has_gone_p = pending.done && !refused;
    return !refused;
}

bool client_control_region_remove(struct client_link *link, uint32_t region_id)
{
    struct client_patience patience = client_patience_of(CLIENT_ACK_NS);
    bool has_gone = false;
    while (link->end_status == HVD_OK &&
           !remove_once(link, region_id, patience.limit_ns - patience.given_ns, &has_gone) &&
           !client_patience_is_over(&patience))
        pause_for(link, POLLIN);
    return has_gone;
}

void client_control_region_forget(struct client_link *link, uint32_t region_id)
{
    struct hvi_packet_msg msg = remove_msg(++link->last_request, region_id);
    struct request request = {.msg = &msg};
    struct client_patience none = {0};
    if (link->end_status == HVD_OK)
        send_request(link, &request, &none);
}

/* The engine lets nobody go before the nodes have met. Once an op has ended they have. */
static uint64_t detach_ns(const struct client_link *link)
{
    bool spans = client_identity_seats(&link->identity) < link->identity.size;

    return spans && link->channel.cq.own == 0 ? CLIENT_MEET_NS : CLIENT_DETACH_NS;
}

static void say_farewell(struct client_link *link)
{
    struct client_farewell *farewell = &link->farewell;
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_DETACH};
    struct request request = {.msg = &msg};
    struct client_patience none = {0};
    if (farewell->request == 0) {
        farewell->request = ++link->last_request;
        farewell->patience = client_patience_of(detach_ns(link));
    }
    msg.detach.request = farewell->request;
    farewell->said = farewell->said || send_request(link, &request, &none) == HVD_OK;
}

int client_control_detach(struct client_link *link, uint64_t wait_ns)
{
    uint64_t end_ns = hvi_deadline_after((int64_t)wait_ns);
    for (;;) {
        if (link->end_status == HVD_OK)
            say_farewell(link);
        if (link->farewell.done)
            return HVD_OK;
        if (link->end_status != HVD_OK)
            return link->engine_remains ? HVD_ERR_TIMEOUT : HVD_OK;
        if (client_patience_is_over(&link->farewell.patience))
            return HVD_ERR_TIMEOUT;
        if (hvi_deadline_passed(end_ns))
            return HVD_INPROGRESS;
        pause_for(link, link->farewell.said ? POLLIN : POLLOUT | POLLIN);
    }
}

int client_control_timeline_start(struct client_link *link, int fd, const char *path,
                                  bool mark_cycles)
{
    struct client_pending pending = {.request = ++link->last_request};
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_TIMELINE_START};
    char *shown = msg.timeline_start.path;
    size_t room = sizeof(msg.timeline_start.path) - 1;
    size_t kept = hvi_utf8_cut(path, strlen(path), room);
    msg.timeline_start.request = pending.request;
    msg.timeline_start.mark_cycles = mark_cycles;
    if (hvi_utf8_valid(path, kept)) /* a file's name need not be text */
        memcpy(shown, path, kept);
    return ask(link, &msg, fd, "hvd_timeline_start", "", "", &pending);
}

int client_control_timeline_stop(struct client_link *link)
{
    struct client_pending pending = {.request = ++link->last_request};
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_TIMELINE_STOP};
    msg.timeline_stop.request = pending.request;
    return ask(link, &msg, -1, "hvd_timeline_stop", "", "", &pending);
}

bool client_control_peer_ask(struct client_link *link, int32_t rank, uint32_t region)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_PEER_ASK};
    struct request request = {.msg = &msg};
    struct client_patience none = {0};
    msg.peer_ask = (struct hvi_peer_ask){.rank = rank, .region = region};
    return send_request(link, &request, &none) == HVD_OK;
}
