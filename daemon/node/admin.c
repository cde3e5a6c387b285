/* SPDX-License-Identifier: Apache-2.0
 * admin.sock, where ZeroMQ's clients (hvdctl, hvdrun) ask. hvdd accepts and speaks ZMTP itself
 * (zmtp.c): libzmq accepts every connection, and ends the process when accept finds no descriptor
 * (ADR 0013). Here a user has a number of connections, and the other users have theirs.
 *
 *   accepted --greeting, READY--> idle --request--> asked --reply--> sending --all sent--> idle
 *      |                                                               |
 *      +--2 s without a handshake: closed                              +--10 s unread: closed
 *
 * A connection has one request under way. What the peer sends meanwhile stays in the kernel, so a
 * peer that does not read its replies makes only itself wait. Each turn of the loop takes up one
 * request per connection, from a deferred source. Where a connection ends below a function that
 * still uses it, it is marked as broken; the handlers of the event loop free it. */
#include "daemon/node/node.h"

#include "base/status.h"
#include "daemon/node/zmtp.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utlist.h>

/* Connections; also shares of hvdd's descriptors, which attaches and jobs need. */
#define CONNECTIONS_MAX      256u
#define CONNECTIONS_PER_USER 64u
#define SHARE                8u
#define SHARE_PER_USER       16u

#define HANDSHAKE_US 2000000u
#define SENDING_US   10000000u

struct connection {
    struct node *node;
    struct connection *prev, *next;
    uint64_t number;
    int fd;
    struct node_peer peer;
    sd_event_source *io, *timer;
    struct node_zmtp zmtp;
    bool asked;  /* its request has no reply yet */
    bool broken; /* to be freed */
    /* The reply that is being sent; NULL: none. */
    unsigned char *body;
    unsigned char head[NODE_ZMTP_HEAD_MAX];
    size_t head_bytes, body_bytes, sent;
};

struct node_admin {
    int fd; /* listening, -1 */
    struct node_acceptor acceptor;
    sd_event_source *again;
    struct connection *connections;
    uint32_t count;
    uint64_t last_number;
    uint64_t limit_logged_ns, limit_refused;
};

static void look_again(struct node_admin *admin)
{
    sd_event_source_set_enabled(admin->again, SD_EVENT_ONESHOT);
}

/* ---- a connection ---- */

static void connection_free(struct connection *connection)
{
    struct node_admin *admin = connection->node->admin;

    DL_DELETE(admin->connections, connection);
    admin->count--;
    sd_event_source_disable_unref(connection->io);
    sd_event_source_disable_unref(connection->timer);
    node_zmtp_fini(&connection->zmtp);
    free(connection->body);
    close(connection->fd);
    free(connection);
}

/* What the loop waits for: the end of the connection in any case. */
static void watch(struct connection *connection)
{
    uint32_t events = connection->body != NULL ? EPOLLOUT : connection->asked ? 0 : EPOLLIN;

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

void node_admin_send(struct node *node, const struct node_asker *asker,
                     struct hvi_admin_reply *reply)
{
    struct connection *connection = NULL;
    unsigned char *bytes = NULL;
    size_t length;

    if (node->admin != NULL)
        DL_SEARCH_SCALAR(node->admin->connections, connection, number, asker->connection);
    if (connection == NULL)
        return;
    reply->protocol_version = HVI_PROTOCOL_VERSION;
    reply->request = asker->request;
    connection->asked = false;
    look_again(node->admin);
    if (hvi_admin_reply_encode(reply, &bytes, &length) != HVI_OK) {
        HVI_LOG(HVI_LOG_ERROR, "admin", "no-reply", "an admin reply could not be written",
                "request=%llu", (unsigned long long)asker->request);
        return;
    }
    connection->body = bytes;
    connection->body_bytes = length;
    connection->head_bytes = node_zmtp_head(asker->delimiter, length, connection->head);
    connection->sent = 0;
    set_deadline(connection, SENDING_US);
    send_on(connection);
}

/* ---- requests ---- */

static void handle(struct node *node, struct node_asker *asker,
                   const struct node_zmtp_message *message)
{
    struct hvi_admin_request request;
    char text[200] = "it is not one frame", sentence[300];

    if (!message->whole || hvi_admin_request_decode(message->body, message->length, &request, text,
                                                    sizeof(text)) != HVI_OK) {
        HVI_LOG(HVI_LOG_WARN, "admin", "bad-request", "an admin request cannot be read",
                "uid=%u error=\"%s\"", (unsigned)asker->uid, text);
        snprintf(sentence, sizeof(sentence), "hvdd cannot read this request: %s", text);
        node_answer_text(node, asker, HVI_ERR_PROTOCOL, sentence);
        return;
    }
    asker->request = request.request;
    if (request.protocol_version != HVI_PROTOCOL_VERSION) {
        snprintf(sentence, sizeof(sentence),
                 "this tool speaks protocol %u, hvdd %s speaks protocol %u",
                 request.protocol_version, HVD_VERSION_TEXT, HVI_PROTOCOL_VERSION);
        node_answer_text(node, asker, HVI_ERR_VERSION, sentence);
        return;
    }
    if (node->private_mode && asker->uid != node->uid) {
        HVI_LOG(HVI_LOG_WARN, "admin", "admin-refused", "another user asked a private hvdd",
                "uid=%u", (unsigned)asker->uid);
        node_answer_text(node, asker, HVI_ERR_REFUSED, "this hvdd is private to another user");
        return;
    }
    node_answer_request(node, asker, &request);
}

/* Takes up the next request, if it has come and the last one has its reply. */
static void serve(struct connection *connection)
{
    bool greeted = connection->zmtp.stage == NODE_ZMTP_MESSAGES;
    struct node_zmtp_message message;
    int status;

    if (connection->asked || connection->body != NULL || connection->broken)
        return;
    status = node_zmtp_next(&connection->zmtp, &message);
    if (status == HVI_ERR_PROTOCOL) {
        HVI_LOG(HVI_LOG_DEBUG, "admin", "admin-garbage",
                "a connection to admin.sock was closed: what came is no ZeroMQ 3", "pid=%d uid=%u",
                (int)connection->peer.pid, (unsigned)connection->peer.uid);
        connection->broken = true;
        return;
    }
    if (!greeted && connection->zmtp.stage == NODE_ZMTP_MESSAGES)
        sd_event_source_set_enabled(connection->timer, SD_EVENT_OFF);
    if (status != HVI_OK)
        return;
    struct node_asker asker = {.connection = connection->number,
                               .delimiter = message.delimiter,
                               .uid = connection->peer.uid};
    connection->asked = true;
    handle(connection->node, &asker, &message);
    look_again(connection->node->admin);
}

static void serve_and_settle(struct connection *connection)
{
    serve(connection);
    if (connection->broken)
        connection_free(connection);
    else
        watch(connection);
}

static int on_again(sd_event_source *source, void *user)
{
    struct node *node = user;
    struct connection *connection, *spare;

    (void)source;
    DL_FOREACH_SAFE(node->admin->connections, connection, spare)
    {
        serve_and_settle(connection);
    }
    return 0;
}

static void read_on(struct connection *connection)
{
    size_t room;
    unsigned char *bytes = node_zmtp_room(&connection->zmtp, &room);
    ssize_t length = bytes == NULL ? 0 : recv(connection->fd, bytes, room, MSG_DONTWAIT);

    if (length > 0)
        node_zmtp_filled(&connection->zmtp, (size_t)length);
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
    HVI_LOG(HVI_LOG_DEBUG, "admin", "admin-silent",
            connection->body != NULL ? "a connection to admin.sock was closed: it does not read"
                                     : "a connection to admin.sock was closed: it says nothing",
            "pid=%d uid=%u", (int)connection->peer.pid, (unsigned)connection->peer.uid);
    connection_free(connection);
    return 0;
}

/* ---- accept ---- */

static uint32_t at_most(uint32_t limit, uint64_t share)
{
    return share < limit ? (uint32_t)share : limit;
}

static bool has_hung_up(int fd)
{
    struct pollfd poll_fd = {.fd = fd};
    return poll(&poll_fd, 1, 0) != 0 && (poll_fd.revents & (POLLHUP | POLLERR)) != 0;
}

/* Connections of a user, without those that are over and that the loop has not come to yet. */
static uint32_t count_of(struct node_admin *admin, uid_t uid)
{
    struct connection *connection, *spare;
    uint32_t count = 0;

    DL_FOREACH_SAFE(admin->connections, connection, spare)
    {
        if (connection->peer.uid != uid)
            continue;
        if (has_hung_up(connection->fd))
            connection_free(connection);
        else
            count++;
    }
    return count;
}

static bool has_room(struct node *node, uid_t uid)
{
    struct node_admin *admin = node->admin;
    uint32_t own = count_of(admin, uid);

    return own < at_most(CONNECTIONS_PER_USER, node->descriptors / SHARE_PER_USER) &&
           admin->count < at_most(CONNECTIONS_MAX, node->descriptors / SHARE);
}

/* One line a second, whatever comes. */
static void log_limit(struct node_admin *admin, uid_t uid)
{
    uint64_t now = hvi_clock_ns();

    admin->limit_refused++;
    if (admin->limit_logged_ns != 0 && now - admin->limit_logged_ns < HVI_NS_SEC)
        return;
    HVI_LOG(HVI_LOG_WARN, "admin", "admin-limit",
            "a connection to admin.sock was closed: its user, or all together, have as many as "
            "they may",
            "uid=%u refused=%llu", (unsigned)uid, (unsigned long long)admin->limit_refused);
    admin->limit_logged_ns = now;
    admin->limit_refused = 0;
}

/* False: out of memory or descriptors. */
static bool start(struct connection *connection)
{
    sd_event *event = connection->node->event;

    return sd_event_add_io(event, &connection->io, connection->fd, EPOLLIN, on_io, connection) >=
               0 &&
           sd_event_add_time_relative(event, &connection->timer, CLOCK_MONOTONIC, HANDSHAKE_US, 0,
                                      on_deadline, connection) >= 0 &&
           send(connection->fd, node_zmtp_hello, node_zmtp_hello_bytes,
                MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)node_zmtp_hello_bytes;
}

static void take(struct node *node, int fd)
{
    struct node_admin *admin = node->admin;
    struct connection *connection;
    struct node_peer peer;

    if (!node_listen_peer(fd, &peer)) {
        close(fd);
        return;
    }
    if (!has_room(node, peer.uid)) {
        log_limit(admin, peer.uid);
        close(fd);
        return;
    }
    connection = calloc(1, sizeof(*connection));
    if (connection == NULL) {
        close(fd);
        return;
    }
    connection->node = node;
    connection->fd = fd;
    connection->peer = peer;
    connection->number = ++admin->last_number;
    DL_APPEND(admin->connections, connection);
    admin->count++;
    if (!start(connection))
        connection_free(connection);
}

/* ---- life ---- */

/* The listening socket: systemd's or our own; -1 after logging. */
static int listening_fd(struct node *node)
{
    if (node->admin_inherited_fd >= 0)
        return node->admin_inherited_fd;
    if (node_rundir_socket_path(&node->rundir, "admin.sock", node->admin_path,
                                sizeof(node->admin_path)))
        return node_listen_bind(node->admin_path, SOCK_STREAM,
                                node->private_mode ? 0600 : (mode_t)node->config.admin_mode);
    HVI_LOG(HVI_LOG_ERROR, "admin", "no-admin", "the admin socket's path is too long", "dir=%s",
            node->rundir.path);
    return -1;
}

int node_admin_open(struct node *node)
{
    struct node_admin *admin = calloc(1, sizeof(*admin));

    if (admin == NULL)
        return HVI_ERR_DAEMON;
    node->admin = admin;
    admin->fd = listening_fd(node);
    if (admin->fd >= 0 && sd_event_add_defer(node->event, &admin->again, on_again, node) >= 0 &&
        node_acceptor_open(&admin->acceptor, node, admin->fd, take) == HVI_OK)
        return HVI_OK;
    node_admin_close(node);
    return HVI_ERR_DAEMON;
}

void node_admin_close(struct node *node)
{
    struct node_admin *admin = node->admin;

    node_answer_close(node);
    if (admin == NULL)
        return;
    node_acceptor_close(&admin->acceptor);
    sd_event_source_disable_unref(admin->again);
    while (admin->connections != NULL)
        connection_free(admin->connections);
    if (admin->fd >= 0)
        close(admin->fd);
    if (admin->fd >= 0 && node->admin_inherited_fd < 0)
        unlink(node->admin_path);
    node->admin = NULL;
    free(admin);
}
