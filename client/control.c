/* SPDX-License-Identifier: Apache-2.0 */
#include "client/control.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/fate.h"
#include "base/status.h"
#include "base/utf8.h"
#include "client/error.h"
#include "client/session.h"
#include "client/wait.h"

#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#define CONTROL_ENGINE_NAME "hvdd-engine"
#define CONTROL_BYTES       1024u /* the largest request */
#define CONTROL_SLICE_MS    5     /* another thread may have received our acknowledgement */
#define CONTROL_PER_LOOK    64u   /* messages handled at once; an engine does not send more */
#define CONTROL_STEP_NS     (100 * HVI_NS_MS)

static void handle_notice(struct hvd_session *session, const struct hvi_notice *notice)
{
    /* A rank that leaves in good order is no news to those who need nothing more of it; the ops of
     * the others say so themselves. */
    enum hvd_log_level level = notice->status == HVD_ERR_RANK_LEFT ? HVD_LOG_INFO : HVD_LOG_WARN;
    if (notice->session_ended) {
        client_wait_drain(session); /* what was finished before stays finished */
        client_session_end(session, notice->status, "%s", notice->text);
        return;
    }
    client_session_log(session, level, notice->text);
    if (session->job_status != HVD_OK || notice->status >= 0)
        return;
    session->job_status = notice->status;
    memcpy(session->job_text, notice->text, sizeof(session->job_text));
}

static void handle_ack(struct hvd_session *session, const struct hvi_ack *ack)
{
    struct client_pending *pending = session->pending;
    while (pending && pending->request != ack->request)
        pending = pending->next;
    if (!pending) /* given up, or never waited for */
        return;
    pending->done = true;
    pending->status = ack->status;
    memcpy(pending->text, ack->text, sizeof(pending->text));
}

static void handle(struct hvd_session *session)
{
    struct hvi_packet_msg msg;
    char why[HVI_TEXT_MAX + 1];
    int rc = hvi_packet_msg_decode(session->packet->bytes, session->packet->length, &msg, why,
                                   sizeof(why));
    if (rc == HVD_ERR_NO_MEMORY) /* lost one message; an acknowledgement times out */
        return;
    if (rc != HVD_OK) {
        client_session_end(session, HVD_ERR_PROTOCOL, "the engine (pid %d) sent nonsense: %s",
                           session->engine_pid, why);
        return;
    }
    if (msg.kind == HVI_PACKET_ACK)
        handle_ack(session, &msg.ack);
    else if (msg.kind == HVI_PACKET_NOTICE)
        handle_notice(session, &msg.notice);
    else if (msg.kind == HVI_PACKET_PEER_REGION)
        client_peers_told(session, &msg.peer_region, hvi_packet_take_fd(session->packet, 0));
    else
        client_session_end(session, HVD_ERR_PROTOCOL,
                           "the engine (pid %d) sent a message of kind %d that is not for clients",
                           session->engine_pid, (int)msg.kind);
    hvi_packet_msg_free(&msg);
}

/* End of file: what the engine finished before it died is still in the ring. How it died is rarely to be seen from
 * here, and a process that is just ending still looks alive. */
static void engine_gone(struct hvd_session *session, struct hvi_fate fate)
{
    char how[128] = "is gone";
    client_wait_drain(session);
    if (fate.kind == HVI_FATE_EXITED || fate.kind == HVI_FATE_SIGNALED)
        hvi_fate_describe(fate, how, sizeof(how));
    client_session_end(session, HVD_ERR_ENGINE_LOST,
                       "the engine of job '%s' (pid %d) %s; hvdd's log says more; close this "
                       "session and open a new one",
                       session->identity.job, session->engine_pid, how);
}

/* The kernel unmaps a dying engine's regions, 40 ms per GiB, before it closes its sockets. A pid from
 * another pid namespace may be anybody's here, hence the name. */
static void look_for_dying_engine(struct hvd_session *session)
{
    struct hvi_fate fate;
    uint64_t now_ns = hvi_clock_ns();
    if (now_ns - session->engine_looked_ns < CLIENT_LOOK_NS)
        return;
    session->engine_looked_ns = now_ns;
    if (hvi_fate_is_ending(session->engine_pid, -1, &fate) &&
        hvi_process_is_called(session->engine_pid, CONTROL_ENGINE_NAME))
        engine_gone(session, fate);
}

void client_control_look(struct hvd_session *session)
{
    for (unsigned i = 0; i < CONTROL_PER_LOOK; i++) {
        if (session->end_status != HVD_OK)
            return;
        int rc = hvi_packet_receive(session->socket_fd, session->packet, 0);
        if (rc == HVD_OK) {
            handle(session);
            hvi_packet_close_fds(session->packet);
        } else if (rc == HVD_ERR_CLOSED) {
            engine_gone(session, hvi_fate_look(session->engine_pid, -1));
        } else if (rc == HVD_ERR_LIMIT) { /* a descriptor that this process has no room for */
            client_peers_ask_again(&session->peers);
        } else if (rc == HVD_ERR_PROTOCOL) {
            client_session_end(session, rc, "the engine (pid %d) sent a message that is too long",
                               session->engine_pid);
        } else {
            look_for_dying_engine(session);
            return;
        }
    }
}

/* Sleeps without the lock until the socket may be `events`-ready; looks at it afterwards. */
static void pause_for(struct hvd_session *session, short events)
{
    struct pollfd pollfd = {.fd = session->socket_fd, .events = events};
    pthread_mutex_unlock(&session->mutex);
    poll(&pollfd, 1, CONTROL_SLICE_MS);
    pthread_mutex_lock(&session->mutex);
    client_control_look(session);
}

/* How long the engine has been given. A process that stood still for a minute, because somebody stopped
 * it or a host its virtual machine, learns nothing about the engine from that minute: each look
 * counts for a step at most. */
struct patience {
    uint64_t looked_ns, given_ns, limit_ns;
};

static struct patience patience_of(uint64_t limit_ns)
{
    return (struct patience){.looked_ns = hvi_clock_ns(), .limit_ns = limit_ns};
}

static bool is_over(struct patience *patience)
{
    uint64_t now_ns = hvi_clock_ns();
    uint64_t step_ns = now_ns - patience->looked_ns;
    patience->looked_ns = now_ns;
    patience->given_ns += step_ns < CONTROL_STEP_NS ? step_ns : CONTROL_STEP_NS;
    return patience->given_ns >= patience->limit_ns;
}

static int send_request(struct hvd_session *session, const struct hvi_packet_msg *msg, int fd,
                        struct patience *patience)
{
    unsigned char bytes[CONTROL_BYTES];
    size_t length = 0;
    int rc = hvi_packet_msg_encode(msg, bytes, sizeof(bytes), &length);
    HVI_ASSERT(rc == HVD_OK);
    for (;;) {
        rc = hvi_packet_send(session->socket_fd, bytes, length, &fd, fd >= 0 ? 1 : 0, 0);
        if (rc != HVD_ERR_TIMEOUT || is_over(patience))
            return rc;
        pause_for(session, POLLOUT | POLLIN);
        if (session->end_status != HVD_OK)
            return HVD_ERR_CLOSED;
    }
}

static void unlink_pending(struct hvd_session *session, struct client_pending *pending)
{
    struct client_pending **link = &session->pending;
    while (*link != pending)
        link = &(*link)->next;
    *link = pending->next;
}

/* Sends msg (whose request number is pending->request) and waits for its Ack. pending->status and
 * text are set when HVD_OK is returned; the engine's verdict is in there. */
static int call(struct hvd_session *session, const struct hvi_packet_msg *msg, int fd,
                uint64_t timeout_ns, struct client_pending *pending)
{
    struct patience patience = patience_of(timeout_ns);
    pending->done = false;
    pending->next = session->pending;
    session->pending = pending;
    int rc = send_request(session, msg, fd, &patience);
    while (rc == HVD_OK && !pending->done) {
        if (session->end_status != HVD_OK)
            rc = HVD_ERR_CLOSED;
        else if (is_over(&patience))
            rc = HVD_ERR_TIMEOUT;
        else
            pause_for(session, POLLIN);
    }
    if (pending->done)
        rc = HVD_OK;
    unlink_pending(session, pending);
    return rc;
}

int client_control_region_add(struct hvd_session *session, const struct hvi_region *region,
                              bool lasting, const char *what, uint32_t *region_id_p)
{
    struct client_pending pending = {.request = ++session->last_request};
    uint32_t region_id = ++session->last_region;
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_REGION_ADD};
    msg.region_add.request = pending.request;
    msg.region_add.region = region_id;
    msg.region_add.bytes = region->bytes;
    msg.region_add.lasting = lasting;
    int rc = call(session, &msg, region->fd, CLIENT_ACK_NS, &pending);
    if (rc == HVD_ERR_CLOSED) {
        client_control_look(session);
        if (session->end_status != HVD_OK)
            return client_session_usable(session, what);
    }
    if (rc != HVD_OK) {
        client_control_region_forget(session, region_id);
        return client_error(rc,
                            "%s: the engine (pid %d) was told of %" PRIu64
                            " bytes of memory and did not answer: %s",
                            what, session->engine_pid, region->bytes, hvi_status_text(rc));
    }
    if (pending.status != HVD_OK)
        return client_error(pending.status < 0 ? pending.status : HVD_ERR_PROTOCOL,
                            "%s: the engine refused %" PRIu64 " bytes of memory: %s", what,
                            region->bytes,
                            pending.text[0] ? pending.text : hvi_status_text(pending.status));
    *region_id_p = region_id;
    return HVD_OK;
}

static struct hvi_packet_msg remove_msg(uint64_t request, uint32_t region_id)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_REGION_REMOVE};
    msg.region_remove.request = request;
    msg.region_remove.region = region_id;
    return msg;
}

void client_control_region_remove(struct hvd_session *session, uint32_t region_id)
{
    struct client_pending pending = {.request = ++session->last_request};
    struct hvi_packet_msg msg = remove_msg(pending.request, region_id);
    if (session->end_status == HVD_OK)
        call(session, &msg, -1, CLIENT_ACK_NS, &pending);
}

void client_control_region_forget(struct hvd_session *session, uint32_t region_id)
{
    struct hvi_packet_msg msg = remove_msg(++session->last_request, region_id);
    struct patience none = {0};
    if (session->end_status == HVD_OK)
        send_request(session, &msg, -1, &none);
}

bool client_control_detach(struct hvd_session *session)
{
    struct client_pending pending = {.request = ++session->last_request};
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_DETACH};
    msg.detach.request = pending.request;
    return session->end_status != HVD_OK ||
           call(session, &msg, -1, CLIENT_DETACH_NS, &pending) != HVD_ERR_TIMEOUT;
}

/* The engine's word on a request that it may refuse; sets the last error. */
static int ask(struct hvd_session *session, const struct hvi_packet_msg *msg, int fd,
               const char *what, struct client_pending *pending)
{
    int rc = call(session, msg, fd, CLIENT_ACK_NS, pending);
    if (rc == HVD_ERR_CLOSED) {
        client_control_look(session);
        if (session->end_status != HVD_OK)
            return client_session_usable(session, what);
    }
    if (rc != HVD_OK)
        return client_error(rc, "%s: the engine (pid %d) did not answer: %s", what,
                            session->engine_pid, hvi_status_text(rc));
    if (pending->status != HVD_OK)
        return client_error(pending->status < 0 ? pending->status : HVD_ERR_PROTOCOL, "%s: %s",
                            what,
                            pending->text[0] ? pending->text : hvi_status_text(pending->status));
    return HVD_OK;
}

int client_control_timeline_start(struct hvd_session *session, int fd, const char *path,
                                  bool mark_cycles)
{
    struct client_pending pending = {.request = ++session->last_request};
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_TIMELINE_START};
    char *shown = msg.timeline_start.path;
    size_t room = sizeof(msg.timeline_start.path) - 1;
    size_t kept = hvi_utf8_cut(path, strlen(path), room);
    msg.timeline_start.request = pending.request;
    msg.timeline_start.mark_cycles = mark_cycles;
    if (hvi_utf8_valid(path, kept)) /* a file's name need not be text */
        memcpy(shown, path, kept);
    return ask(session, &msg, fd, "hvd_timeline_start", &pending);
}

int client_control_timeline_stop(struct hvd_session *session)
{
    struct client_pending pending = {.request = ++session->last_request};
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_TIMELINE_STOP};
    msg.timeline_stop.request = pending.request;
    return ask(session, &msg, -1, "hvd_timeline_stop", &pending);
}

bool client_control_peer_ask(struct hvd_session *session, int32_t rank, uint32_t region)
{
    unsigned char bytes[CONTROL_BYTES];
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_PEER_ASK};
    size_t length = 0;
    msg.peer_ask = (struct hvi_peer_ask){.rank = rank, .region = region};
    int rc = hvi_packet_msg_encode(&msg, bytes, sizeof(bytes), &length);
    return rc == HVD_OK && hvi_packet_send(session->socket_fd, bytes, length, NULL, 0, 0) == HVD_OK;
}
