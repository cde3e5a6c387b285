/* SPDX-License-Identifier: Apache-2.0
 * A connection from its accept to the engine that owns it:
 *
 *   accepted --AttachRequest--> handed over --EngineSession--> closed here, the engine has it
 *      |  \                         |
 *      |   EngineHello: to link.c   +--engine ended: once more from the start (it may have ended by
 * itself just |                            |  before it was asked), then refused
 *      +--silent, garbage, refused  +--engine silent: refused
 *
 * Until the engine has answered we keep our copy of the client's socket, to be able to say why an
 * attach failed. From then on the connection is the engine's alone, and its death is an end-of-file
 * at the client.
 *
 * A rank that comes back at once may meet its own former self: the engine takes up to 20 ms to find out how a process
 * ended. So an attach is first preceded by a look at what the job's engines have said, and one that seems to be a
 * duplicate is held for up to 500 ms and decided again whenever a rank goes.
 *
 * A hvdd that was killed has left engines, which say hello to the next one within 250 ms. Until they had their time, a rank
 * that finds no engine is held as well: it would get an engine beside the one at which its peers are.
 *
 * A refusal is sent only after the client's message was read: closing a UNIX socket with unread
 * data resets it, and the reset would overtake our reply. */
#include "daemon/node/node.h"

#include "base/fate.h"
#include "base/status.h"
#include "base/uid.h"
#include "shm/abi.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utlist.h>

#define DROPS_AT_ONCE 16
#define HOLD_NS       (500 * (int64_t)HVI_NS_MS)

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 /* Linux 6.5 */
#endif

static void pending_free(struct node_pending *pending)
{
    struct node *node = pending->node;

    DL_DELETE(node->pendings, pending);
    node->pending_count--;
    sd_event_source_disable_unref(pending->io);
    sd_event_source_disable_unref(pending->timer);
    if (pending->fd >= 0)
        hvi_discard(&node->discard, pending->fd, pending->generation != NULL);
    if (pending->pidfd >= 0)
        close(pending->pidfd);
    free(pending->bytes);
    free(pending);
    node_stop_check(node);
}

static void log_gone(const struct node_peer *peer)
{
    HVI_LOG(HVI_LOG_DEBUG, "attach", "attach-gone",
            "a connection was closed before it was attached", "pid=%d uid=%u", (int)peer->pid,
            (unsigned)peer->uid);
}

static void pending_gone(struct node_pending *pending)
{
    log_gone(&pending->peer);
    pending_free(pending);
}

static bool has_hung_up(int fd)
{
    struct pollfd poll_fd = {.fd = fd};
    return poll(&poll_fd, 1, 0) != 0 && (poll_fd.revents & (POLLHUP | POLLERR)) != 0;
}

/* What waits, up to the first with a descriptor. */
static void drop_messages(struct node *node, int fd)
{
    bool has_fds;

    for (int i = 0; i < DROPS_AT_ONCE; i++) {
        int status = hvi_packet_peek(fd, &node->packet, &has_fds);
        if (status == HVI_ERR_TIMEOUT || status == HVI_ERR_CLOSED || has_fds)
            return;
        hvi_packet_drop(fd);
    }
}

/* Best effort: a client that does not take its answer gets none. Nothing may arrive behind our back
 * any more, because a socket that is closed with something unread resets the answer away. */
static void send_refusal(struct node *node, int fd, int status, const char *text)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_ATTACH_REPLY};
    size_t length;

    shutdown(fd, SHUT_RD);
    drop_messages(node, fd);
    msg.attach_reply.status = status;
    msg.attach_reply.protocol_version = HVI_PROTOCOL_VERSION;
    msg.attach_reply.abi_version = HVI_ABI_VERSION;
    snprintf(msg.attach_reply.text, sizeof(msg.attach_reply.text), "%s", text);
    if (hvi_packet_msg_encode(&msg, node->encoded, sizeof(node->encoded), &length) == HVI_OK)
        hvi_packet_send(fd, node->encoded, length, NULL, 0, 0);
}

static void log_refusal(const struct node_peer *peer, int status, const char *text)
{
    bool hostile =
        status == HVI_ERR_REFUSED || status == HVI_ERR_PROTOCOL || status == HVI_ERR_DAEMON_LIMIT;

    HVI_LOG_OF(peer->uid, hostile ? HVI_LOG_WARN : HVI_LOG_INFO, "attach", "attach-refused", text,
               "pid=%d uid=%u status=%s", (int)peer->pid, (unsigned)peer->uid,
               hvi_status_name(status));
}

/* The one way out for a connection that will not be attached. */
static void pending_refuse(struct node_pending *pending, int status, const char *text)
{
    pending->node->counters.refused++;
    log_refusal(&pending->peer, status, text);
    send_refusal(pending->node, pending->fd, status, text);
    pending_free(pending);
}

/* ---- handing over
 * ------------------------------------------------------------------------------------------------
 */

static int send_adopt(struct node_pending *pending, uint64_t session)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_ENGINE_ADOPT};
    int fds[2] = {pending->fd, pending->pidfd};

    msg.engine_adopt.session = session;
    msg.engine_adopt.attach = pending->bytes;
    msg.engine_adopt.attach_bytes = pending->length;
    msg.engine_adopt.pid = pending->peer.pid;
    msg.engine_adopt.uid = pending->peer.uid;
    msg.engine_adopt.gid = pending->peer.gid;
    return node_link_send(pending->generation->engine, &msg, fds, 2);
}

static void hand_over(struct node_pending *pending, struct node_generation *generation,
                      const struct hvi_attach_request *request)
{
    struct node *node = pending->node;
    uint64_t session = node->next_session++;
    int32_t rank = request->rank;

    pending->generation = generation;
    pending->rank = rank;
    if (generation->engine
            ->back) /* perhaps of an older version, which does not let regions in by itself */
        hvi_packet_let_fds(pending->fd, true);
    sd_event_source_set_enabled(pending->io, SD_EVENT_OFF);
    sd_event_source_set_time_relative(pending->timer, (uint64_t)node->config.attach_timeout / 1000);
    sd_event_source_set_enabled(pending->timer, SD_EVENT_ONESHOT);
    node_slot_claim(generation, node_attach_seat(request), rank, (pid_t)request->own_pid);
    node_slot_set(&node->jobs, generation, rank, NODE_SLOT_ATTACHING, pending->peer.pid, session,
                  "attach accepted");
    node_link_presence(generation->engine);
    if (send_adopt(pending, session) == HVI_ERR_INVALID) {
        node_slot_set(&node->jobs, generation, rank, NODE_SLOT_ABSENT, 0, 0, "attach too large");
        node_link_presence(generation->engine);
        pending_refuse(pending, HVI_ERR_PROTOCOL, "the AttachRequest is too large to be passed on");
    }
    /* A broken link: its engine ends, and node_attach_engine_gone goes on from there. */
}

static struct node_start *start_of(struct node *node, uid_t uid)
{
    struct node_start *oldest = &node->starts[0];

    for (size_t i = 0; i < NODE_STARTS; i++) {
        struct node_start *start = &node->starts[i];
        if (start->paid_ns != 0 && start->uid == uid)
            return start;
        if (start->paid_ns < oldest->paid_ns)
            oldest = start;
    }
    *oldest = (struct node_start){.uid = uid, .paid_ns = oldest->paid_ns};
    return oldest;
}

/* An engine costs the machine some milliseconds, wherever the stranger's own processes may run. */
static bool may_start(struct node *node, uid_t uid, struct node_decision *decision)
{
    uint64_t rate = (uint64_t)node->config.start_rate_per_user, wait_ns;

    if (node->private_mode)
        return true;
    wait_ns = hvi_rate_take(&start_of(node, uid)->paid_ns, hvi_clock_ns(), HVI_NS_SEC / rate,
                            (uint64_t)node->config.max_jobs_per_user);
    if (wait_ns == 0)
        return true;
    snprintf(decision->text, sizeof(decision->text),
             "uid %u starts jobs faster than one user may (start-rate-per-user = %llu a second); "
             "try again in %llu ms",
             (unsigned)uid, (unsigned long long)rate,
             (unsigned long long)(wait_ns / HVI_NS_MS + 1));
    return false;
}

/* A generation and its engine for a rank that finds none. */
static int make_generation(const struct node_pending *pending,
                           const struct hvi_attach_request *request, struct node_decision *decision)
{
    struct node *node = pending->node;
    char digest[HVI_DIGEST_TEXT];
    int status;

    if (!may_start(node, pending->peer.uid, decision))
        return HVI_ERR_DAEMON_LIMIT;
    hvi_digest_text(request->job_key, digest);
    status =
        node_generation_new(&node->jobs, request->job, pending->peer.uid, digest, request->size,
                            node_attach_seats(request), 0, &decision->generation);
    if (status != HVI_OK) {
        snprintf(decision->text, sizeof(decision->text), "hvdd is out of memory");
        return HVI_ERR_DAEMON;
    }
    decision->generation->seats = node_attach_seats(request);
    status = node_spawn_engine(node, decision->generation, pending->fd, decision->text,
                               sizeof(decision->text));
    if (status == HVI_OK)
        node_gate_event(node, HVI_EVENT_GENERATION_BEGAN, decision->generation, -1, 0,
                        "its first rank has attached");
    else
        node_generation_end(&node->jobs, decision->generation, "its engine could not be started");
    return status;
}

static void poll_engines(struct node *node, uid_t uid, const char *id)
{
    const struct node_job *job = node_job_find(&node->jobs, uid, id);
    struct node_generation *generation;

    if (job == NULL)
        return;
    DL_FOREACH(job->generations, generation)
    {
        node_link_poll(generation->engine);
    }
}

/* True: it seems to be a duplicate, or its engine may not have said hello yet, and there is still time to find out. */
static bool hold(struct node_pending *pending, const struct node_decision *decision)
{
    uint64_t until_ns = pending->node->hellos_until_ns;

    if (decision->status == HVI_ERR_DUPLICATE_RANK) {
        if (pending->duplicate_until_ns == 0)
            pending->duplicate_until_ns = hvi_deadline_after(HOLD_NS);
        until_ns = pending->duplicate_until_ns;
    } else if (decision->status != HVI_OK || decision->generation != NULL) {
        return false;
    }
    if (hvi_deadline_passed(until_ns))
        return false;
    pending->held = true;
    sd_event_source_set_enabled(pending->io, SD_EVENT_OFF);
    return sd_event_source_set_time_relative(pending->timer,
                                             hvi_deadline_left(until_ns) / 1000 + 1) >= 0;
}

void node_attach_wake_held(struct node *node)
{
    struct node_pending *pending;

    DL_FOREACH(node->pendings, pending)
    {
        if (pending->held && pending->generation == NULL && pending->timeline == 0)
            sd_event_source_set_time_relative(pending->timer, 0);
    }
}

/* What the kernel cannot tell of a peer in other namespaces, and nobody else is asked. */
static int check_namespaces(const struct node_pending *pending, char *text_p, size_t size)
{
    if (!hvi_uid_is_known(pending->peer.uid)) {
        snprintf(text_p, size,
                 "hvdd's user namespace has no number for your user, who reads as uid %u there as "
                 "others do; run hvdd outside of it, or as your user",
                 (unsigned)pending->peer.uid);
        return HVI_ERR_REFUSED;
    }
    if (pending->pidfd < 0) {
        snprintf(
            text_p, size,
            "hvdd does not see your process, which is in another pid namespace, and this kernel "
            "has no SO_PEERPIDFD (Linux 6.5) by which hvdd could watch it; run hvdd in the "
            "machine's pid namespace");
        return HVI_ERR_REFUSED;
    }
    return HVI_OK;
}

static void handle_attach(struct node_pending *pending, const struct hvi_attach_request *request)
{
    struct node *node = pending->node;
    struct node_decision decision = {.generation = NULL};

    decision.status = check_namespaces(pending, decision.text, sizeof(decision.text));
    if (decision.status != HVI_OK) {
        pending_refuse(pending, decision.status, decision.text);
        return;
    }
    poll_engines(node, pending->peer.uid, request->job);
    node_attach_decide(node, &pending->peer, request, &decision);
    if (hold(pending, &decision))
        return;
    if (has_hung_up(pending->fd)) {
        pending_gone(pending);
        return;
    }
    if (decision.status == HVI_OK && decision.generation == NULL)
        decision.status = make_generation(pending, request, &decision);
    if (decision.status != HVI_OK)
        pending_refuse(pending, decision.status, decision.text);
    else
        hand_over(pending, decision.generation, request);
}

/* ---- the first message
 * ------------------------------------------------------------------------------------------- */

/* Started by a hvdd of this service: it has its user still, or has become that of its job. */
static bool is_engine(const struct node_pending *pending, const struct hvi_engine_hello *hello)
{
    if (pending->peer.uid == pending->node->uid)
        return true;
    return pending->peer.uid == hello->uid && !pending->node->private_mode &&
           node_listen_peer_is_service(pending->fd);
}

static void handle_hello(struct node_pending *pending, const struct hvi_engine_hello *hello)
{
    if (!is_engine(pending, hello)) {
        pending_refuse(pending, HVI_ERR_REFUSED,
                       "only engines that a hvdd of this service has started may say hello, each "
                       "for its own user's job");
        return;
    }
    pending->io = sd_event_source_disable_unref(pending->io); /* a descriptor can be watched once */
    hvi_packet_let_fds(pending->fd, true);                    /* EngineFences */
    if (node_link_hello(pending->node, &pending->peer, hello, pending->fd, pending->pidfd) ==
        HVI_OK)
        pending->fd = pending->pidfd = -1;
    pending_free(pending);
}

/* One that is taken gets no answer but its beats. Whatever becomes of it, its engines have it as before. */
static void handle_return(struct node_pending *pending, const struct hvi_gpu_return *said)
{
    char text[HVI_TEXT_MAX + 1];
    const char *why;

    if (pending->peer.uid != pending->node->uid) {
        pending_refuse(pending, HVI_ERR_REFUSED,
                       "only workers that a hvdd of this service has started may come back");
        return;
    }
    pending->io = sd_event_source_disable_unref(pending->io);
    int status =
        node_link_return(pending->node, &pending->peer, said, pending->fd, pending->pidfd, &why);
    if (status != HVI_OK) {
        snprintf(text, sizeof(text), "a worker for a GPU of job '%s' is not taken back: %s",
                 said->job, why);
        pending_refuse(pending, status, text);
        return;
    }
    pending->fd = pending->pidfd = -1;
    pending_free(pending);
}

/* ---- timelines: libhvdadmin hands over a file that it has opened ----
 *
 * Admin messages travel over a byte stream (ZMTP), whose clients pass no descriptors; this socket does, once hvdd has looked
 * at the request without the file. */

static void send_ack(const struct node_pending *pending, int status, const char *text)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_ACK};
    size_t length;

    msg.ack.status = status;
    snprintf(msg.ack.text, sizeof(msg.ack.text), "%s", text);
    if (hvi_packet_msg_encode(&msg, pending->node->encoded, sizeof(pending->node->encoded),
                              &length) == HVI_OK)
        hvi_packet_send(pending->fd, pending->node->encoded, length, NULL, 0, 0);
}

/* The verdict, and the end of the connection. */
static void timeline_answer(struct node_pending *pending, int status, const char *text)
{
    send_ack(pending, status, text);
    pending_free(pending);
}

/* HVI_OK, or why not with a sentence. */
static int timeline_check(const struct node_pending *pending,
                          const struct hvi_timeline_request *request, struct node_job **job_p,
                          char *text_p, size_t size)
{
    if (request->protocol_version != HVI_PROTOCOL_VERSION) {
        snprintf(text_p, size,
                 "this libhvdadmin or hvdctl speaks protocol %u, hvdd %s speaks protocol %u",
                 request->protocol_version, HVD_VERSION_TEXT, HVI_PROTOCOL_VERSION);
        return HVI_ERR_VERSION;
    }
    if (!request->start && pending->has_file) {
        snprintf(text_p, size, "a TimelineRequest with a descriptor that nobody asked for");
        return HVI_ERR_PROTOCOL;
    }
    return node_decide_job(pending->node, pending->peer.uid,
                           request->of_owner ? &request->owner : NULL, request->job, job_p, text_p,
                           size);
}

static void timeline_failed(void *user, uint64_t number)
{
    struct node *node = user;
    struct node_pending *pending;

    DL_SEARCH_SCALAR(node->pendings, pending, timeline, number);
    if (pending != NULL)
        timeline_answer(pending, HVI_ERR_PROTOCOL,
                        "the TimelineRequest with its file could not be passed on to the engine");
}

/* A helper takes the file and passes it on, because it has to be closed after that. */
static int timeline_pass_on(struct node_pending *pending, struct node_engine *engine,
                            const struct hvi_packet_msg *msg)
{
    struct node *node = pending->node;
    int kept[] = {pending->fd, engine->link_fd}, file_fd;
    size_t length;
    pid_t pid;

    if (engine->link_fd < 0 ||
        hvi_packet_msg_encode(msg, node->encoded, sizeof(node->encoded), &length) != HVI_OK)
        return HVI_ERR_ENGINE_LOST;
    pid = hvi_discard_fork(&node->discard, kept, 2, pending->peer.uid, timeline_failed, node,
                           pending->timeline);
    if (pid != 0)
        return pid > 0 ? HVI_OK : HVI_ERR_DAEMON;
    if (hvi_packet_receive(pending->fd, &node->packet, 0) != HVI_OK || node->packet.fd_count != 1)
        _exit(1);
    file_fd = node->packet.fds[0];
    _exit(hvi_packet_send(engine->link_fd, node->encoded, length, &file_fd, 1,
                          hvi_deadline_after(HVI_NS_SEC)) == HVI_OK
              ? 0
              : 1);
}

/* The request comes again, with its file. */
static void timeline_want_file(struct node_pending *pending)
{
    free(pending->bytes);
    pending->bytes = NULL;
    hvi_packet_let_fds(pending->fd, true);
    send_ack(pending, HVI_INPROGRESS, "");
}

static void handle_timeline(struct node_pending *pending,
                            const struct hvi_timeline_request *request)
{
    struct node *node = pending->node;
    struct node_job *job;
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_ENGINE_TIMELINE};
    char text[HVI_TEXT_MAX + 1];
    int status = timeline_check(pending, request, &job, text, sizeof(text));

    if (status == HVI_OK && request->start && !pending->has_file) {
        timeline_want_file(pending);
        return;
    }
    if (status == HVI_OK) {
        struct node_engine *engine = node_job_newest(job)->engine;
        pending->timeline = msg.engine_timeline.request = node->next_query++;
        pending->timeline_engine = engine;
        msg.engine_timeline.start = request->start;
        msg.engine_timeline.mark_cycles = request->mark_cycles;
        memcpy(msg.engine_timeline.path, request->path, sizeof(msg.engine_timeline.path));
        status = request->start ? timeline_pass_on(pending, engine, &msg)
                                : node_link_send(engine, &msg, NULL, 0);
        if (status == HVI_ERR_DAEMON)
            snprintf(
                text, sizeof(text),
                "hvdd cannot fork a helper that passes the file on, or this user's helpers all "
                "wait for files that do not answer");
        else
            snprintf(text, sizeof(text), "job '%s' has just ended", request->job);
    }
    if (status != HVI_OK) {
        timeline_answer(pending, status, text);
        return;
    }
    /* What it says now is of no interest; it has attach-timeout to wait. */
    sd_event_source_set_enabled(pending->io, SD_EVENT_OFF);
    sd_event_source_set_time_relative(pending->timer, (uint64_t)node->config.attach_timeout / 1000);
    sd_event_source_set_enabled(pending->timer, SD_EVENT_ONESHOT);
}

void node_attach_timeline_done(struct node *node, const struct node_engine *engine,
                               const struct hvi_ack *ack)
{
    struct node_pending *pending;

    DL_FOREACH(node->pendings, pending)
    {
        if (pending->timeline_engine == engine && pending->timeline == ack->request) {
            timeline_answer(pending, ack->status, ack->text);
            return;
        }
    }
}

/* pending->bytes is a whole message: from the socket, or kept for a second try. */
static void handle_message(struct node_pending *pending)
{
    struct hvi_packet_msg msg;
    char text[256] = "", sentence[320];
    int status = hvi_packet_msg_decode(pending->bytes, pending->length, &msg, text, sizeof(text));

    if (status == HVI_ERR_NO_MEMORY) {
        pending_refuse(pending, HVI_ERR_DAEMON, "hvdd is out of memory");
        return;
    }
    if (status != HVI_OK) {
        snprintf(sentence, sizeof(sentence), "the first message is no valid AttachRequest: %s",
                 text);
        pending_refuse(pending, HVI_ERR_PROTOCOL, sentence);
        return;
    }
    if (msg.kind == HVI_PACKET_TIMELINE_REQUEST)
        handle_timeline(pending, &msg.timeline_request);
    else if (pending->has_file)
        pending_refuse(pending, HVI_ERR_PROTOCOL, "the first message has a descriptor");
    else if (msg.kind == HVI_PACKET_ATTACH_REQUEST)
        handle_attach(pending, &msg.attach_request);
    else if (msg.kind == HVI_PACKET_ENGINE_HELLO)
        handle_hello(pending, &msg.engine_hello);
    else if (msg.kind == HVI_PACKET_GPU_RETURN)
        handle_return(pending, &msg.gpu_return);
    else
        pending_refuse(pending, HVI_ERR_PROTOCOL, "the first message must be an AttachRequest");
    hvi_packet_msg_free(&msg);
}

static void read_message(struct node_pending *pending)
{
    struct hvi_packet *packet = &pending->node->packet;
    int status = hvi_packet_peek(pending->fd, packet, &pending->has_file);

    if (status == HVI_ERR_TIMEOUT)
        return;
    if (status == HVI_ERR_CLOSED) {
        HVI_LOG(HVI_LOG_DEBUG, "attach", "attach-gone",
                "a connection was closed before it asked for anything", "pid=%d uid=%u",
                (int)pending->peer.pid, (unsigned)pending->peer.uid);
        pending_free(pending);
        return;
    }
    if (!pending->has_file)
        hvi_packet_drop(pending->fd);
    if (status != HVI_OK) {
        pending_refuse(
            pending, HVI_ERR_PROTOCOL,
            "the first message must be an AttachRequest of at most 128 KiB without descriptors");
        return;
    }
    pending->bytes = malloc(packet->length);
    if (pending->bytes == NULL) {
        pending_refuse(pending, HVI_ERR_DAEMON, "hvdd is out of memory");
        return;
    }
    memcpy(pending->bytes, packet->bytes, packet->length);
    pending->length = packet->length;
    handle_message(pending);
}

static int on_readable(sd_event_source *source, int fd, uint32_t events, void *user)
{
    (void)source, (void)fd, (void)events;
    read_message(user);
    return 0;
}

static int on_deadline(sd_event_source *source, uint64_t usec, void *user)
{
    struct node_pending *pending = user;
    struct node_generation *generation = pending->generation;
    char text[256];

    (void)source, (void)usec;
    if (pending->timeline != 0) {
        snprintf(text, sizeof(text), "the engine (pid %d) did not answer in time",
                 (int)pending->timeline_engine->pid);
        timeline_answer(pending, HVI_ERR_DAEMON, text);
        return 0;
    }
    if (generation == NULL && pending->bytes != NULL) { /* held */
        sd_event_source_set_enabled(source, SD_EVENT_ONESHOT);
        handle_message(pending);
        return 0;
    }
    if (generation == NULL) {
        pending_refuse(pending, HVI_ERR_ATTACH_TIMEOUT,
                       "hvdd waited too long for the AttachRequest");
        return 0;
    }
    /* The engine may still take it up: the client is gone by then, which it will notice. */
    node_slot_set(&pending->node->jobs, generation, pending->rank, NODE_SLOT_LOST, 0, 0,
                  "the engine did not take the rank over in time");
    node_link_presence(generation->engine);
    snprintf(text, sizeof(text), "the engine of job '%s' (pid %d) did not answer in time",
             generation->job->name.id, (int)generation->engine->pid);
    pending_refuse(pending, HVI_ERR_DAEMON, text);
    return 0;
}

/* ---- accept
 * -------------------------------------------------------------------------------------------------------
 */

/* A pidfd of the process that connected; -1 with errno: ESRCH or EINVAL when it is gone. */
static int peer_pidfd(int fd, pid_t pid)
{
    int pidfd;
    socklen_t size = sizeof(pidfd);

    if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &size) == 0)
        return pidfd;
    pidfd = hvi_pidfd_open(pid);
    /* The pid could be somebody else's by now; not while its connection still stands. */
    if (pidfd >= 0 && has_hung_up(fd)) {
        close(pidfd);
        errno = ESRCH;
        return -1;
    }
    return pidfd;
}

static void watch_and_read(struct node_pending *pending)
{
    struct node *node = pending->node;

    if (sd_event_add_io(node->event, &pending->io, pending->fd, EPOLLIN, on_readable, pending) <
            0 ||
        sd_event_add_time_relative(node->event, &pending->timer, CLOCK_MONOTONIC,
                                   (uint64_t)node->config.attach_timeout / 1000, 1, on_deadline,
                                   pending) < 0)
        pending_refuse(pending, HVI_ERR_DAEMON_LIMIT, "hvdd is out of memory or descriptors");
    else
        read_message(pending); /* usually it is there already */
}

/* For a connection that there is no room to keep. */
static void refuse_at_once(struct node *node, int fd, const struct node_peer *peer,
                           const char *text)
{
    node->counters.refused++;
    log_refusal(peer, HVI_ERR_DAEMON_LIMIT, text);
    send_refusal(node, fd, HVI_ERR_DAEMON_LIMIT, text);
    hvi_discard(&node->discard, fd, false);
}

static int64_t least(int64_t a, uint64_t b)
{
    return (uint64_t)a < b ? a : (int64_t)b;
}

uint32_t node_attach_pending_of(const struct node *node, uid_t uid)
{
    const struct node_pending *pending;
    uint32_t count = 0;

    DL_FOREACH(node->pendings, pending)
    {
        count += pending->peer.uid == uid;
    }
    return count;
}

/* A connection that waits costs two descriptors. So that one user's leave some to the others, and all together some to
 * the jobs, the limits are also shares of the descriptors that hvdd may have. */
int64_t node_attach_pending_most(const struct node *node, bool of_user)
{
    return of_user ? least(node->config.max_pending_per_user, node->descriptors / 8)
                   : least(node->config.max_pending, node->descriptors / 4);
}

/* Of the user that has most, more than `count`: its oldest connection that has said nothing. NULL: there is none. */
static struct node_pending *find_greediest(const struct node *node, uint32_t count)
{
    struct node_pending *pending, *found = NULL;
    uid_t last = (uid_t)-1;

    DL_FOREACH(node->pendings, pending)
    {
        bool silent = pending->bytes == NULL && pending->generation == NULL;
        if (!silent || pending->peer.uid == last)
            continue;
        last = pending->peer.uid;
        uint32_t of_user = node_attach_pending_of(node, last);
        if (of_user <= count)
            continue;
        count = of_user;
        found = pending;
    }
    return found;
}

static bool has_room_of_own(const struct node *node, const struct node_peer *peer, uint32_t own,
                            char *text_p, size_t size)
{
    int64_t each = node_attach_pending_most(node, true);

    if (own < each)
        return true;
    snprintf(text_p, size,
             "%lld connections of uid %u wait to be attached, which is the most for one user "
             "(max-pending-per-user, and an eighth of hvdd's descriptors); try again",
             (long long)each, (unsigned)peer->uid);
    return false;
}

/* Where all places are taken, the greediest user gives one of its own up. */
static bool make_room(struct node *node, const struct node_peer *peer, char *text_p, size_t size)
{
    uint32_t own = node_attach_pending_of(node, peer->uid);
    struct node_pending *greediest;

    if (!has_room_of_own(node, peer, own, text_p, size))
        return false;
    if (node->pending_count < node_attach_pending_most(node, false))
        return true;
    snprintf(text_p, size,
             "%u connections wait to be attached, which is the most (max-pending, and a quarter of "
             "hvdd's descriptors), and this user has as many of them as anybody; try again",
             node->pending_count);
    greediest = find_greediest(node, own);
    if (greediest == NULL)
        return false;
    pending_refuse(greediest, HVI_ERR_DAEMON_LIMIT,
                   "more connections wait to be attached than may (max-pending), and this is the "
                   "oldest silent one of the user that has most; try again");
    return true;
}

/* Ranks may be held until an engine of the hvdd before us has said hello, so it does not wait behind them. */
static bool may_say_hello(const struct node *node, int fd, const struct node_peer *peer)
{
    if (node->pending_count >= node->descriptors / 2)
        return false;
    return peer->uid == node->uid ? !hvi_deadline_passed(node->hellos_until_ns)
                                  : !node->private_mode && node_listen_peer_is_service(fd);
}

void node_attach_accept(struct node *node, int fd)
{
    struct node_pending *pending;
    struct node_peer peer;
    char text[256];
    int error;

    if (!node_listen_peer(fd, &peer)) {
        hvi_discard(&node->discard, fd, false);
        return;
    }
    if (has_hung_up(
            fd)) { /* nothing is spent on those of a flood, nor a helper on what they have said */
        log_gone(&peer);
        drop_messages(node, fd);
        hvi_discard(&node->discard, fd, false);
        return;
    }
    if (!may_say_hello(node, fd, &peer) && !make_room(node, &peer, text, sizeof(text))) {
        refuse_at_once(node, fd, &peer, text);
        return;
    }
    pending = calloc(1, sizeof(*pending));
    if (pending == NULL) {
        refuse_at_once(node, fd, &peer, "hvdd is out of memory");
        return;
    }
    pending->node = node;
    pending->fd = fd;
    pending->peer = peer;
    pending->pidfd = peer_pidfd(fd, peer.pid);
    error = errno;
    DL_APPEND(node->pendings, pending);
    node->pending_count++;
    if (pending->pidfd >= 0 || peer.pid <= 0) /* without a pidfd it is refused when it has asked */
        watch_and_read(pending);
    else if (error == ESRCH || error == EINVAL)
        pending_gone(pending);
    else
        pending_refuse(pending, HVI_ERR_DAEMON_LIMIT, "hvdd is out of descriptors");
}

/* ---- what the engine did
 * ------------------------------------------------------------------------------------------ */

void node_attach_adopted(struct node *node, struct node_generation *generation, int32_t rank)
{
    struct node_pending *pending, *spare;

    DL_FOREACH_SAFE(node->pendings, pending, spare)
    {
        if (pending->generation == generation && pending->rank == rank)
            pending_free(pending);
    }
}

/* `pending` was with an engine that ended before it answered. */
static void try_again(struct node_pending *pending, bool clean, const char *fate)
{
    char text[256];

    if (!clean || pending->retried) {
        snprintf(text, sizeof(text),
                 "the engine of the job ended before it took this rank over: it %s", fate);
        pending_refuse(pending, HVI_ERR_DAEMON, text);
        return;
    }
    pending->retried = true;
    handle_message(pending);
}

static struct node_pending *first_with(struct node *node, const struct node_generation *generation)
{
    struct node_pending *pending;

    DL_FOREACH(node->pendings, pending)
    {
        if (pending->generation == generation)
            return pending;
    }
    return NULL;
}

void node_attach_engine_gone(struct node *node, struct node_generation *generation, bool clean,
                             const char *fate)
{
    struct node_pending *pending, *spare;

    DL_FOREACH_SAFE(node->pendings, pending, spare)
    {
        if (pending->timeline != 0 && pending->timeline_engine->generation == generation)
            timeline_answer(pending, HVI_ERR_NOT_FOUND, "the job has just ended");
    }
    /* A second try may free other entries of the list, so it is searched anew each time. */
    while ((pending = first_with(node, generation)) != NULL) {
        pending->generation = NULL;
        try_again(pending, clean, fate);
    }
}

void node_attach_close_all(struct node *node, int status, const char *text)
{
    struct node_pending *pending, *spare;

    DL_FOREACH_SAFE(node->pendings, pending, spare)
    {
        if (pending->generation !=
            NULL) { /* what it says now is for its engine, and the answer comes from there */
            pending_free(pending);
            continue;
        }
        pending_refuse(pending, status, text);
    }
}
