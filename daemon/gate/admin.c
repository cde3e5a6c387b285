/* SPDX-License-Identifier: Apache-2.0
 * admin.sock, where ZeroMQ's clients (hvdctl, hvdrun) ask. The gate accepts and speaks ZMTP itself
 * (zmtp.c): libzmq accepts every connection, and ends the process when accept finds no descriptor
 * (ADR 0013). Here a user has a number of connections, and the other users have theirs. The
 * listening socket is hvdd's: connections that come while there is no gate wait in it.
 *
 *   accepted --greeting, READY--> idle --request--> asked --hvdd's reply--> sending --all sent--> idle
 *      |                                              |                        |
 *      |                                              +--too often: held 100 ms, then refused
 *      +--2 s without a handshake: closed                                      +--10 s unread: closed
 *
 * A connection that has asked for events gets one reply more for each, while no other is under way
 * (events.c). It may read them as late as it likes: those that do not fit are lost, and it is told so.
 *
 * Connections are accepted at a pace (base/pace.h), where they may be a stranger's. Those of root and of hvdd's user come
 * by root.sock, which only they may open, so that no stranger stands before them in its queue. A user who asks too
 * often is refused after a while and not at once: otherwise a flood of requests would be one of refusals.
 *
 * A connection has one request under way. What the peer sends meanwhile stays in the kernel, so a
 * peer that does not read its replies makes only itself wait. Each turn of the loop takes up one
 * request per connection, from a deferred source. Where a connection ends below a function that
 * still uses it, it is marked as broken; the handlers of the event loop free it. A connection's
 * number is the ticket of its request, and differs from those of an earlier gate. */
#include "daemon/gate/gate.h"

#include "base/discard.h"
#include "base/limits.h"
#include "base/pace.h"
#include "base/status.h"
#include "daemon/gate/events.h"
#include "daemon/gate/users.h"
#include "daemon/gate/zmtp.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utlist.h>

/* Shares of the gate's descriptors that connections may have, whatever the limits say. */
#define SHARE          8u
#define SHARE_PER_USER 16u
#define KEPT           16u /* one of so many connections is kept for root and hvdd's user */

#define HANDSHAKE_US 2000000u
#define HOLD_US      100000u
#define SLACK_US     1000u /* 0 would mean 250 ms to sd-event */
#define SWEEP_NS     (10 * HVI_NS_MS)
#define SENDING_US   10000000u
#define PAUSE_US     100000u /* without descriptors */

#define ACCEPTS_PER_WAKE 32
#define REPLY_BYTES_MAX  (32u * 1024u * 1024u)

struct connection {
    struct gate *gate;
    struct connection *prev, *next;
    uint64_t number;
    int fd;
    struct ucred peer; /* from the kernel */
    struct gate_user *user;
    sd_event_source *io, *timer;
    struct gate_zmtp zmtp;
    bool asked; /* its request has no whole reply yet */
    bool held;  /* asked too often: refused when the timer is due */
    uint64_t held_request;
    bool delimiter; /* the request came with the empty frame of a REQ socket */
    bool broken;    /* to be freed */
    bool subscribed;
    struct gate_events events;
    /* The reply that is being gathered (asked) or sent; NULL: none. */
    unsigned char *body;
    unsigned char head[GATE_ZMTP_HEAD_MAX];
    size_t head_bytes, body_bytes, sent;
};

struct gate_admin {
    int fds[2];                        /* listening: admin.sock, root.sock */
    sd_event_source *accept, *of_root; /* the same; NULL: there is none */
    sd_event_source *resume;
    uint64_t pause_logged_ns;
    struct hvi_pace pace;
    sd_event_source *again;
    struct connection *connections; /* oldest first */
    uint32_t count;
    struct gate_users users;
    uint64_t last_number;
    uint64_t limit_logged_ns, limit_refused;
    struct hvi_discard discard;
};

static void look_again(struct gate_admin *admin)
{
    sd_event_source_set_enabled(admin->again, SD_EVENT_ONESHOT);
}

/* ---- a connection ---- */

static void connection_free(struct connection *connection)
{
    struct gate_admin *admin = connection->gate->admin;

    DL_DELETE(admin->connections, connection);
    admin->count--;
    connection->user->connections--;
    sd_event_source_disable_unref(connection->io);
    sd_event_source_disable_unref(connection->timer);
    gate_zmtp_fini(&connection->zmtp);
    gate_events_fini(&connection->events);
    free(connection->body);
    hvi_discard_stream(&admin->discard, connection->fd);
    free(connection);
}

/* What the loop waits for: the end of the connection in any case. */
static void watch(struct connection *connection)
{
    uint32_t events = connection->asked ? 0 : connection->body != NULL ? EPOLLOUT : EPOLLIN;

    sd_event_source_set_io_events(connection->io, events);
}

static void set_deadline(struct connection *connection, uint64_t usec)
{
    sd_event_source_set_time_relative(connection->timer, usec);
    sd_event_source_set_enabled(connection->timer, SD_EVENT_ONESHOT);
}

/* Sends what the kernel takes of the reply. */
static void send_on(struct connection *connection)
{
    size_t in_head =
        connection->sent < connection->head_bytes ? connection->head_bytes - connection->sent : 0;
    size_t in_body = connection->sent - (connection->head_bytes - in_head);
    struct iovec parts[] = {
        {.iov_base = connection->head + connection->head_bytes - in_head, .iov_len = in_head},
        {.iov_base = connection->body + in_body, .iov_len = connection->body_bytes - in_body}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    ssize_t sent = sendmsg(connection->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);

    if (sent < 0 && errno != EAGAIN && errno != EINTR)
        connection->broken = true;
    if (sent > 0)
        connection->sent += (size_t)sent;
    if (connection->sent < connection->head_bytes + connection->body_bytes)
        return;
    free(connection->body);
    connection->body = NULL;
    sd_event_source_set_enabled(connection->timer, SD_EVENT_OFF);
}

/* A reply for each event, as long as the kernel takes them. */
static void send_events(struct connection *connection)
{
    while (connection->subscribed && !connection->asked && connection->body == NULL &&
           !connection->broken) {
        connection->body = gate_events_take(&connection->events, &connection->body_bytes);
        if (connection->body == NULL)
            return;
        connection->head_bytes =
            gate_zmtp_head(connection->delimiter, connection->body_bytes, connection->head);
        connection->sent = 0;
        send_on(connection);
    }
}

/* The reply is whole: sends it. A reply that was lost (NULL) leaves the connection as it was. */
static void finish_reply(struct connection *connection)
{
    connection->asked = false;
    look_again(connection->gate->admin);
    if (connection->body == NULL || connection->broken)
        return;
    connection->head_bytes =
        gate_zmtp_head(connection->delimiter, connection->body_bytes, connection->head);
    connection->sent = 0;
    set_deadline(connection, SENDING_US);
    send_on(connection);
}

static void append(struct connection *connection, const unsigned char *bytes, size_t length)
{
    size_t whole = connection->body_bytes + length;
    unsigned char *body = whole <= REPLY_BYTES_MAX ? realloc(connection->body, whole + 1) : NULL;

    if (body == NULL) {
        connection->broken = true;
        return;
    }
    memcpy(body + connection->body_bytes, bytes, length);
    connection->body = body;
    connection->body_bytes = whole;
}

/* NULL: it has gone. */
static struct connection *find_asked(const struct gate *gate, uint64_t number)
{
    struct connection *connection = NULL;

    if (gate->admin != NULL)
        DL_SEARCH_SCALAR(gate->admin->connections, connection, number, number);
    return connection != NULL && connection->asked ? connection : NULL;
}

void gate_admin_anew(struct gate *gate, uint64_t number)
{
    struct connection *connection = find_asked(gate, number);

    if (connection != NULL)
        connection->body_bytes = 0;
}

void gate_admin_answer(struct gate *gate, struct hvi_gate_reply *reply)
{
    struct connection *connection = find_asked(gate, reply->ticket);

    if (connection == NULL)
        return;
    append(connection, reply->part, reply->part_bytes);
    if (!reply->more)
        finish_reply(connection);
    look_again(gate->admin); /* frees it where it is broken */
}

/* An answer of the gate itself. */
static void answer(struct connection *connection, uint64_t request, struct hvi_admin_reply *reply)
{
    unsigned char *bytes = NULL;
    size_t length;

    reply->protocol_version = HVI_PROTOCOL_VERSION;
    reply->request = request;
    if (hvi_admin_reply_encode(reply, &bytes, &length) == HVI_OK)
        append(connection, bytes, length);
    free(bytes);
    finish_reply(connection);
}

static void answer_text(struct connection *connection, uint64_t request, int status,
                        const char *text)
{
    struct hvi_admin_reply reply = {.status = status};

    snprintf(reply.text, sizeof(reply.text), "%s", text);
    answer(connection, request, &reply);
}

static void answer_nodes(struct connection *connection, uint64_t request)
{
    struct hvi_admin_reply reply = {.status = HVI_OK};

    if (gate_mesh_ask(connection->gate, connection->number, request, HVI_ADMIN_NODES) == HVI_OK)
        return;
    gate_mesh_rows(connection->gate, &reply);
    answer(connection, request, &reply);
    hvi_admin_reply_free(&reply);
}

static void answer_mesh_jobs(struct connection *connection, uint64_t request)
{
    int status = gate_mesh_ask(connection->gate, connection->number, request, HVI_ADMIN_JOBS);

    if (status == HVI_ERR_UNSUPPORTED)
        answer_text(connection, request, status,
                    "this hvdd is in no mesh with other nodes (mesh-seeds in hvdd.conf)");
    else if (status != HVI_OK)
        answer_text(
            connection, request, status,
            "the nodes of the mesh are asked for their jobs too often; try again in a second");
}

/* ---- events ---- */

static bool is_operator(const struct gate *gate, uid_t uid)
{
    return uid == 0 || uid == gate->start.uid;
}

/* `uid` NULL: everybody may. */
static bool may_know(const struct connection *connection, const uint32_t *uid)
{
    const uid_t asker = connection->peer.uid;

    return uid == NULL || is_operator(connection->gate, asker) || asker == *uid;
}

static void tell(struct gate *gate, const uint32_t *uid, const unsigned char *reply, size_t length)
{
    struct connection *connection;

    if (gate->admin == NULL)
        return;
    DL_FOREACH(gate->admin->connections, connection)
    {
        if (!connection->subscribed || !may_know(connection, uid))
            continue;
        gate_events_add(&connection->events, reply, length);
        send_events(connection); /* many may come in one turn of the loop, more than wait */
    }
    look_again(gate->admin);
}

void gate_admin_event(struct gate *gate, const struct hvi_gate_event *event)
{
    tell(gate, &event->uid, event->reply, event->reply_bytes);
}

void gate_admin_mesh_event(struct gate *gate, struct hvi_event_row *row)
{
    unsigned char *bytes = NULL;
    size_t length;

    row->at_ns = hvi_clock_ns();
    row->rank = -1;
    if (hvi_event_encode(row, &bytes, &length) == HVI_OK)
        tell(gate, NULL, bytes, length);
    free(bytes);
}

/* ---- limits ---- */

static uint32_t at_most(uint32_t limit, uint64_t share)
{
    return share < limit ? (uint32_t)share : limit;
}

static uint32_t connections_most(const struct gate *gate, bool of_user)
{
    return of_user ? at_most(gate->start.max_admin_per_user, gate->descriptors / SHARE_PER_USER)
                   : at_most(gate->start.max_admin, gate->descriptors / SHARE);
}

static void add_limit(struct hvi_admin_reply *reply, enum hvi_limit limit, uid_t uid, uint64_t most,
                      uint64_t used)
{
    struct hvi_limit_row *row = hvi_limit_row_add(reply, limit, most);

    if (row == NULL)
        return;
    row->uid = uid;
    row->counted = true;
    row->used = used;
}

/* The gate's own limits; of users those whom the asker may ask about. */
static void answer_limits(struct connection *connection, const struct hvi_admin_request *request)
{
    struct gate *gate = connection->gate;
    const uid_t asker = connection->peer.uid;
    const bool all = is_operator(gate, asker);
    struct hvi_admin_reply reply = {.limits = calloc(HVI_WIRE_ROWS_MAX, sizeof(*reply.limits))};
    struct gate_user *user = gate->admin->users.all;

    if (reply.limits == NULL) {
        answer_text(connection, request->request, HVI_ERR_DAEMON, "the gate is out of memory");
        return;
    }
    add_limit(&reply, HVI_LIMIT_max_admin, 0, connections_most(gate, false), gate->admin->count);
    for (; user != NULL; user = user->next) {
        if ((!all && user->uid != asker) || (request->of_owner && user->uid != request->owner))
            continue;
        add_limit(&reply, HVI_LIMIT_max_admin_per_user, user->uid, connections_most(gate, true),
                  user->connections);
        if (!gate->start.private_mode)
            add_limit(&reply, HVI_LIMIT_admin_rate_per_user, user->uid,
                      gate->start.admin_rate_per_user, gate_user_asked(user, hvi_clock_ns()));
    }
    answer(connection, request->request, &reply);
    hvi_admin_reply_free(&reply);
}

/* ---- requests ---- */

/* Written anew, so that hvdd reads what the gate has understood and nothing of the stranger's. */
static void pass_on(struct connection *connection, const struct hvi_admin_request *request)
{
    struct hvi_gate_msg msg = {.kind = HVI_GATE_ASK};

    msg.ask.ticket = connection->number;
    msg.ask.uid = connection->peer.uid;
    if (hvi_admin_request_encode(request, &msg.ask.request, &msg.ask.request_bytes) != HVI_OK) {
        connection->broken = true;
        return;
    }
    gate_link_send(connection->gate, &msg);
    free(msg.ask.request);
}

static bool asks_too_often(struct connection *connection)
{
    const struct hvi_gate_start *start = &connection->gate->start;

    return !start->private_mode &&
           gate_user_ask(connection->user, hvi_clock_ns(), start->admin_rate_per_user) != 0;
}

static void refuse_held(struct connection *connection)
{
    const uint32_t rate = connection->gate->start.admin_rate_per_user;
    uint64_t wait_ms = gate_user_wait(connection->user, hvi_clock_ns(), rate) / HVI_NS_MS + 1;
    char text[200];

    connection->held = false;
    snprintf(text, sizeof(text),
             "uid %u asks hvdd more often than one user may (admin-rate-per-user = %u a second); "
             "ask again in %llu ms",
             (unsigned)connection->peer.uid, rate, (unsigned long long)wait_ms);
    answer_text(connection, connection->held_request, HVI_ERR_DAEMON_LIMIT, text);
}

static void handle(struct connection *connection, const struct gate_zmtp_message *message)
{
    const struct hvi_gate_start *start = &connection->gate->start;
    struct hvi_admin_request request;
    char text[200] = "it is not one frame", sentence[300];
    bool good = message->whole && hvi_admin_request_decode(message->body, message->length, &request,
                                                           text, sizeof(text)) == HVI_OK;

    if (asks_too_often(connection)) {
        connection->held = true;
        connection->held_request = good ? request.request : 0;
        set_deadline(connection, HOLD_US);
    } else if (!good) {
        HVI_LOG_OF(connection->peer.uid, HVI_LOG_WARN, "admin", "bad-request",
                   "an admin request cannot be read", "uid=%u error=\"%s\"",
                   (unsigned)connection->peer.uid, text);
        snprintf(sentence, sizeof(sentence), "hvdd cannot read this request: %s", text);
        answer_text(connection, 0, HVI_ERR_PROTOCOL, sentence);
    } else if (request.protocol_version != HVI_PROTOCOL_VERSION) {
        snprintf(sentence, sizeof(sentence),
                 "this tool speaks protocol %u, hvdd %s speaks protocol %u",
                 request.protocol_version, HVD_VERSION_TEXT, HVI_PROTOCOL_VERSION);
        answer_text(connection, request.request, HVI_ERR_VERSION, sentence);
    } else if (start->private_mode && connection->peer.uid != start->uid) {
        HVI_LOG_OF(connection->peer.uid, HVI_LOG_WARN, "admin", "admin-refused",
                   "another user asked a private hvdd", "uid=%u", (unsigned)connection->peer.uid);
        answer_text(connection, request.request, HVI_ERR_REFUSED,
                    "this hvdd is private to another user");
    } else if (request.kind == HVI_ADMIN_NODES) {
        answer_nodes(connection, request.request);
    } else if (request.kind == HVI_ADMIN_JOBS && request.of_mesh) {
        answer_mesh_jobs(connection, request.request);
    } else if (request.kind == HVI_ADMIN_EVENTS) {
        connection->subscribed = true;
        answer_text(connection, request.request, HVI_OK, "");
    } else if (request.kind == HVI_ADMIN_LIMITS && request.of_gate) {
        answer_limits(connection, &request);
    } else {
        pass_on(connection, &request);
    }
}

/* Takes up the next request, if it has come and the last one has its reply. */
static void serve(struct connection *connection)
{
    bool greeted = connection->zmtp.stage == GATE_ZMTP_MESSAGES;
    struct gate_zmtp_message message;
    int status;

    if (connection->asked || connection->body != NULL || connection->broken)
        return;
    status = gate_zmtp_next(&connection->zmtp, &message);
    if (status == HVI_ERR_PROTOCOL) {
        HVI_LOG(HVI_LOG_DEBUG, "admin", "admin-garbage",
                "a connection to admin.sock was closed: what came is no ZeroMQ 3", "pid=%d uid=%u",
                (int)connection->peer.pid, (unsigned)connection->peer.uid);
        connection->broken = true;
        return;
    }
    if (!greeted && connection->zmtp.stage == GATE_ZMTP_MESSAGES)
        sd_event_source_set_enabled(connection->timer, SD_EVENT_OFF);
    if (status != HVI_OK)
        return;
    connection->asked = true;
    connection->delimiter = message.delimiter;
    connection->body_bytes = 0;
    handle(connection, &message);
    look_again(connection->gate->admin);
}

static void serve_and_settle(struct connection *connection)
{
    serve(connection);
    send_events(connection);
    if (connection->broken)
        connection_free(connection);
    else
        watch(connection);
}

static int on_again(sd_event_source *source, void *user)
{
    struct gate *gate = user;
    struct connection *connection, *spare;

    (void)source;
    DL_FOREACH_SAFE(gate->admin->connections, connection, spare)
    {
        serve_and_settle(connection);
    }
    return 0;
}

/* How many bytes come before the first descriptor that a peer has sent; 0: one comes first. ZeroMQ sends none. Where a
 * message with one were received, the gate would have to close it (base/discard.h). Negative: as recv(2). */
static ssize_t look(int fd, unsigned char *bytes, size_t room)
{
    struct iovec iov = {.iov_base = bytes, .iov_len = room};
    struct msghdr header = {.msg_iov = &iov, .msg_iovlen = 1};
    ssize_t length = recvmsg(fd, &header, MSG_PEEK | MSG_DONTWAIT);

    return length > 0 && (header.msg_flags & MSG_CTRUNC) != 0 ? 0 : length;
}

static void read_on(struct connection *connection)
{
    size_t room;
    unsigned char *bytes = gate_zmtp_room(&connection->zmtp, &room);
    ssize_t length = bytes == NULL ? 0 : look(connection->fd, bytes, room);

    if (length > 0)
        length = recv(connection->fd, bytes, (size_t)length, MSG_DONTWAIT);
    if (length > 0)
        gate_zmtp_filled(&connection->zmtp, (size_t)length);
    else if (length == 0 || (errno != EAGAIN && errno != EINTR))
        connection->broken = true;
}

static int on_io(sd_event_source *source, int fd, uint32_t events, void *user)
{
    struct connection *connection = user;

    (void)source, (void)fd;
    if ((events & EPOLLIN) != 0)
        read_on(connection);
    else if ((events & (EPOLLHUP | EPOLLERR)) != 0)
        connection->broken = true;
    else if (connection->body != NULL)
        send_on(connection);
    serve_and_settle(connection);
    return 0;
}

static int on_deadline(sd_event_source *source, uint64_t usec, void *user)
{
    struct connection *connection = user;

    (void)source, (void)usec;
    if (connection->held) {
        refuse_held(connection);
        return 0;
    }
    HVI_LOG(HVI_LOG_DEBUG, "admin", "admin-silent",
            connection->body != NULL ? "a connection to admin.sock was closed: it does not read"
                                     : "a connection to admin.sock was closed: it says nothing",
            "pid=%d uid=%u", (int)connection->peer.pid, (unsigned)connection->peer.uid);
    connection_free(connection);
    return 0;
}

/* ---- accept ---- */

static bool has_hung_up(int fd)
{
    struct pollfd poll_fd = {.fd = fd};
    return poll(&poll_fd, 1, 0) != 0 && (poll_fd.revents & (POLLHUP | POLLERR)) != 0;
}

/* Frees connections of a user that are over and that the loop has not come to yet; now and then, as it looks at each. */
static void sweep(struct gate_admin *admin, struct gate_user *user)
{
    struct connection *connection, *spare;
    uint64_t now_ns = hvi_clock_ns();

    if (now_ns - user->swept_ns < SWEEP_NS)
        return;
    user->swept_ns = now_ns;
    DL_FOREACH_SAFE(admin->connections, connection, spare)
    {
        if (connection->user == user && has_hung_up(connection->fd))
            connection_free(connection);
    }
}

/* Of the user that has most, more than `count`: its oldest connection that has no request under way. NULL: there is none. */
static struct connection *find_greediest(const struct gate_admin *admin, uint32_t count)
{
    struct connection *connection, *found = NULL;

    DL_FOREACH(admin->connections, connection)
    {
        if (connection->asked || connection->body != NULL || connection->user->connections <= count)
            continue;
        count = connection->user->connections;
        found = connection;
    }
    return found;
}

/* Where all places are taken, the greediest user gives one of its own up. */
static bool make_room(struct gate *gate, struct gate_user *user)
{
    struct gate_admin *admin = gate->admin;
    struct connection *greediest;
    uint32_t most = connections_most(gate, false);

    if (!is_operator(gate, user->uid))
        most -= most / KEPT;
    if (user->connections >= connections_most(gate, true))
        sweep(admin, user);
    if (user->connections >= connections_most(gate, true))
        return false;
    if (admin->count < most)
        return true;
    greediest = find_greediest(admin, user->connections);
    if (greediest == NULL)
        return false;
    HVI_LOG_OF(greediest->peer.uid, HVI_LOG_WARN, "admin", "admin-limit",
               "a connection to admin.sock was closed: there are as many as there may be "
               "(max-admin), and its user has most",
               "uid=%u", (unsigned)greediest->peer.uid);
    connection_free(greediest);
    return true;
}

/* One line a second, whatever comes. */
static void log_limit(struct gate_admin *admin, uid_t uid)
{
    uint64_t now = hvi_clock_ns();

    admin->limit_refused++;
    if (admin->limit_logged_ns != 0 && now - admin->limit_logged_ns < HVI_NS_SEC)
        return;
    HVI_LOG(HVI_LOG_WARN, "admin", "admin-limit",
            "a connection to admin.sock was closed: its user (max-admin-per-user), or all together "
            "(max-admin), have as many as they may",
            "uid=%u refused=%llu", (unsigned)uid, (unsigned long long)admin->limit_refused);
    admin->limit_logged_ns = now;
    admin->limit_refused = 0;
}

/* False: out of memory or descriptors. */
static bool start(struct connection *connection)
{
    sd_event *event = connection->gate->event;

    return sd_event_add_io(event, &connection->io, connection->fd, EPOLLIN, on_io, connection) >=
               0 &&
           sd_event_add_time_relative(event, &connection->timer, CLOCK_MONOTONIC, HANDSHAKE_US,
                                      SLACK_US, on_deadline, connection) >= 0 &&
           send(connection->fd, gate_zmtp_hello, gate_zmtp_hello_bytes,
                MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)gate_zmtp_hello_bytes;
}

static struct connection *connection_new(struct gate *gate, int fd, const struct ucred *peer,
                                         struct gate_user *user)
{
    struct connection *connection = calloc(1, sizeof(*connection));

    if (connection == NULL)
        return NULL;
    connection->gate = gate;
    connection->fd = fd;
    connection->peer = *peer;
    connection->user = user;
    user->connections++;
    connection->number = ++gate->admin->last_number;
    DL_APPEND(gate->admin->connections, connection);
    gate->admin->count++;
    return connection;
}

static void take(struct gate *gate, int fd)
{
    struct connection *connection;
    struct gate_user *user;
    struct ucred peer;
    socklen_t size = sizeof(peer);

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
        close(fd);
        return;
    }
    user = gate_users_get(&gate->admin->users, peer.uid, hvi_clock_ns());
    if (user == NULL || !make_room(gate, user)) {
        log_limit(gate->admin, peer.uid);
        close(fd);
        return;
    }
    connection = connection_new(gate, fd, &peer, user);
    if (connection == NULL)
        close(fd);
    else if (!start(connection))
        connection_free(connection);
}

static int on_resume(sd_event_source *source, uint64_t usec, void *user)
{
    struct gate_admin *admin = user;

    (void)source, (void)usec;
    sd_event_source_set_enabled(admin->accept, SD_EVENT_ON);
    if (admin->of_root != NULL)
        sd_event_source_set_enabled(admin->of_root, SD_EVENT_ON);
    return 0;
}

static void rest(struct gate_admin *admin, uint64_t usec)
{
    sd_event_source_set_enabled(admin->accept, SD_EVENT_OFF);
    sd_event_source_set_time_relative(admin->resume, usec);
    sd_event_source_set_enabled(admin->resume, SD_EVENT_ONESHOT);
}

/* A socket that cannot be accepted from stays readable: the loop would spin. */
static void pause_accepting(struct gate_admin *admin, int error)
{
    uint64_t now = hvi_clock_ns();

    if (admin->pause_logged_ns == 0 || now - admin->pause_logged_ns >= HVI_NS_SEC)
        HVI_LOG(HVI_LOG_WARN, "admin", "cannot-accept",
                "a connection to admin.sock waits because it cannot be accepted", "error=\"%s\"",
                strerror(error));
    admin->pause_logged_ns = now;
    rest(admin, PAUSE_US);
    if (admin->of_root != NULL)
        sd_event_source_set_enabled(admin->of_root, SD_EVENT_OFF);
}

static bool is_lacking(int error)
{
    return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

static int on_root(sd_event_source *source, int fd, uint32_t events, void *user)
{
    struct gate *gate = user;
    int peer = accept4(fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

    (void)source, (void)events;
    if (peer >= 0)
        take(gate, peer);
    else if (is_lacking(errno))
        pause_accepting(gate->admin, errno);
    return 0;
}

static int on_connection(sd_event_source *source, int fd, uint32_t events, void *user)
{
    struct gate *gate = user;

    (void)source, (void)events;
    for (int i = 0; i < ACCEPTS_PER_WAKE; i++) {
        int peer = accept4(fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (peer >= 0) {
            take(gate, peer);
            if (gate->start.private_mode || !hvi_pace_accepted(&gate->admin->pace, hvi_clock_ns()))
                continue;
            rest(gate->admin, HVI_PACE_REST_NS / 1000);
            break;
        }
        if (is_lacking(errno))
            pause_accepting(gate->admin, errno);
        else if (hvi_pace_empty(&gate->admin->pace))
            rest(gate->admin, HVI_PACE_REST_NS / 1000);
        break;
    }
    return 0;
}

/* ---- life ---- */

static void close_both(const int fds[2])
{
    for (size_t i = 0; i < 2; i++) {
        if (fds[i] >= 0)
            close(fds[i]);
    }
}

int gate_admin_open(struct gate *gate, int listen_fd, int root_fd)
{
    struct gate_admin *admin = calloc(1, sizeof(*admin));

    if (admin == NULL) {
        close_both((const int[]){listen_fd, root_fd});
        return HVI_ERR_NO_MEMORY;
    }
    gate->admin = admin;
    admin->fds[0] = listen_fd;
    admin->fds[1] = root_fd;
    admin->discard.event = gate->event;
    admin->last_number = hvi_clock_ns();
    if (sd_event_add_defer(gate->event, &admin->again, on_again, gate) >= 0 &&
        sd_event_add_time_relative(gate->event, &admin->resume, CLOCK_MONOTONIC, 0, SLACK_US,
                                   on_resume, admin) >= 0 &&
        sd_event_add_io(gate->event, &admin->accept, listen_fd, EPOLLIN, on_connection, gate) >=
            0 &&
        (root_fd < 0 ||
         sd_event_add_io(gate->event, &admin->of_root, root_fd, EPOLLIN, on_root, gate) >= 0))
        return HVI_OK;
    HVI_LOG(HVI_LOG_ERROR, "admin", "no-event", "the gate cannot watch admin.sock", "");
    gate_admin_close(gate);
    return HVI_ERR_NO_MEMORY;
}

void gate_admin_close(struct gate *gate)
{
    struct gate_admin *admin = gate->admin;

    if (admin == NULL)
        return;
    sd_event_source_disable_unref(admin->accept);
    sd_event_source_disable_unref(admin->of_root);
    sd_event_source_disable_unref(admin->resume);
    sd_event_source_disable_unref(admin->again);
    while (admin->connections != NULL)
        connection_free(admin->connections);
    hvi_discard_close(&admin->discard);
    gate_users_fini(&admin->users);
    close_both(admin->fds);
    gate->admin = NULL;
    free(admin);
}
