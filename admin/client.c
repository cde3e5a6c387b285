/* SPDX-License-Identifier: Apache-2.0
 * A DEALER with the empty delimiter frame that a REQ socket would send: hvdd's ROUTER sees a normal
 * request, while we may give up on an answer and ask again, which REQ forbids. An answer to a
 * question that was given up is recognised by its number and dropped.
 *
 * A connection that ends takes its question along: hvdd's gate was restarted. libzmq connects again
 * by itself and tells `monitor`, and the question is asked again; every request may be. Where nothing
 * listens any more, hvdd has gone. A queue of connections that is full has somebody who listens, and whose it is was
 * looked at before there was a client. */
#include "admin/client.h"

#include "admin/address.h"
#include "base/clock.h"
#include "base/status.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>
#include <zmq.h>

#define REPLY_BYTES_MAX (64 * 1024 * 1024)
#define DESCRIPTORS     16 /* that libzmq takes for our sockets, and some more */

/* libzmq cannot wait for its turn in a queue that somebody floods. It tries, and whoever tries seldom comes too late. So
 * connect_in_turn waits for a place in the queue, and lets libzmq try when places are free: hvdd accepts many
 * connections at once (base/pace.h). */
#define RECONNECT_MS     1
#define RECONNECT_MAX_MS 10
#define TURNS_NS         HVI_NS_SEC        /* then libzmq is left to itself */
#define TRY_MS           20                /* so long it may take to try */
#define LOOK_NS          (100 * HVI_NS_MS) /* so often it is looked whether hvdd is there */

struct admin_client {
    void *context;
    void *socket;
    void *monitor; /* of disconnections */
    uint64_t next_request;
    uint64_t next_look_ns;
    char dir[ADDRESS_DIR_MAX + 1];
};

#define MONITOR "inproc://monitor"

static int set_options(void *socket)
{
    const int linger_ms = 0, again_ms = RECONNECT_MS, again_max_ms = RECONNECT_MAX_MS;
    const int64_t bytes_max = REPLY_BYTES_MAX;
    if (zmq_setsockopt(socket, ZMQ_LINGER, &linger_ms, sizeof linger_ms) != 0 ||
        zmq_setsockopt(socket, ZMQ_RECONNECT_IVL, &again_ms, sizeof again_ms) != 0 ||
        zmq_setsockopt(socket, ZMQ_RECONNECT_IVL_MAX, &again_max_ms, sizeof again_max_ms) != 0 ||
        zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &bytes_max, sizeof bytes_max) != 0)
        return -1;
    return 0;
}

static int from_errno(int error)
{
    return error == EMFILE || error == ENFILE ? HVI_ERR_LIMIT : HVI_ERR_NO_MEMORY;
}

/* The last frame of the next message: the delimiter before it carries nothing. */
static int receive_body(void *socket, zmq_msg_t *body)
{
    do {
        if (zmq_msg_recv(body, socket, ZMQ_DONTWAIT) < 0)
            return errno == EAGAIN || errno == EINTR ? HVI_INPROGRESS : HVI_ERR_NO_MEMORY;
    } while (zmq_msg_more(body));
    return HVI_OK;
}

/* The monitor's next event; 0: it has nothing more to say. */
static uint16_t take_event(struct admin_client *client)
{
    unsigned char bytes[6];
    uint16_t event = 0;
    zmq_msg_t rest;

    if (zmq_recv(client->monitor, bytes, sizeof bytes, ZMQ_DONTWAIT) == (int)sizeof bytes)
        memcpy(&event, bytes, sizeof event);
    zmq_msg_init(&rest);
    if (event != 0)
        (void)receive_body(client->monitor, &rest);
    zmq_msg_close(&rest);
    return event;
}

/* False: libzmq has found the queue full, or no hvdd. */
static bool has_connected(struct admin_client *client)
{
    zmq_pollitem_t item = {.socket = client->monitor, .events = ZMQ_POLLIN};
    bool connected = false;

    if (zmq_poll(&item, 1, TRY_MS) <= 0)
        return false;
    for (uint16_t event = take_event(client); event != 0; event = take_event(client))
        connected = event == ZMQ_EVENT_CONNECTED;
    return connected;
}

/* Until a try succeeds, no hvdd is there, or TURNS_NS are over; then libzmq goes on by itself. */
static int connect_in_turn(struct admin_client *client, const char *endpoint)
{
    const uint64_t deadline_ns = hvi_deadline_after(TURNS_NS);
    int error;

    do {
        while (take_event(client) != 0)
            ; /* of the last try */
        if (zmq_connect(client->socket, endpoint) != 0)
            return from_errno(errno);
        if (has_connected(client))
            return HVI_OK;
        (void)zmq_disconnect(client->socket, endpoint);
        error = address_probe(client->dir, deadline_ns);
    } while ((error == 0 || error == EAGAIN) && !hvi_deadline_passed(deadline_ns));
    return zmq_connect(client->socket, endpoint) == 0 ? HVI_OK : from_errno(errno);
}

/* Nobody floods root.sock. */
static int connect_to(struct admin_client *client, bool of_root)
{
    char endpoint[ADDRESS_DIR_MAX + 32];

    snprintf(endpoint, sizeof endpoint, "ipc://%s/%s.sock", client->dir,
             of_root ? "root" : "admin");
    if (!of_root)
        return connect_in_turn(client, endpoint);
    return zmq_connect(client->socket, endpoint) == 0 ? HVI_OK : from_errno(errno);
}

static int open_socket(struct admin_client *client)
{
    client->context = zmq_ctx_new();
    if (client->context == NULL)
        return from_errno(errno);
    client->socket = zmq_socket(client->context, ZMQ_DEALER);
    client->monitor = zmq_socket(client->context, ZMQ_PAIR);
    if (client->socket == NULL || client->monitor == NULL || set_options(client->socket) != 0 ||
        zmq_socket_monitor(client->socket, MONITOR,
                           ZMQ_EVENT_CONNECTED | ZMQ_EVENT_DISCONNECTED |
                               ZMQ_EVENT_CONNECT_RETRIED) != 0 ||
        zmq_connect(client->monitor, MONITOR) != 0)
        return from_errno(errno);
    return connect_to(client, address_is_of_root(client->dir));
}

/* libzmq ends the process where it gets no descriptor for its threads. */
static bool has_descriptors(void)
{
    int fds[DESCRIPTORS];
    int count = 0;
    while (count < DESCRIPTORS && (fds[count] = epoll_create1(EPOLL_CLOEXEC)) >= 0)
        count++;
    for (int i = 0; i < count; i++)
        close(fds[i]);
    return count == DESCRIPTORS;
}

int admin_client_open(const char *dir, struct admin_client **client_p)
{
    const int error = address_probe(dir, 0);
    const bool is_there = error == 0 || error == EAGAIN;
    if (error == EMFILE || error == ENFILE || (is_there && !has_descriptors()))
        return HVI_ERR_LIMIT;
    if (!is_there)
        return error == ENAMETOOLONG ? HVI_ERR_INVALID : HVI_ERR_NO_DAEMON;
    struct admin_client *client = calloc(1, sizeof *client);
    if (client == NULL)
        return HVI_ERR_NO_MEMORY;
    snprintf(client->dir, sizeof client->dir, "%s", dir);
    const int status = open_socket(client);
    if (status != HVI_OK) {
        admin_client_close(client);
        return status;
    }
    *client_p = client;
    return HVI_OK;
}

void admin_client_close(struct admin_client *client)
{
    if (client == NULL)
        return;
    if (client->socket != NULL)
        zmq_close(client->socket);
    if (client->monitor != NULL)
        zmq_close(client->monitor);
    if (client->context != NULL)
        zmq_ctx_term(client->context);
    free(client);
}

/* Waits until the socket can do `event`. */
static int wait_for(struct admin_client *client, short event, uint64_t deadline_ns)
{
    for (;;) {
        zmq_pollitem_t item = {.socket = client->socket, .events = event};
        const int ready = zmq_poll(&item, 1, hvi_deadline_poll_ms(deadline_ns));
        if (ready > 0)
            return HVI_OK;
        if (ready < 0 && errno != EINTR)
            return HVI_ERR_NO_MEMORY;
        if (hvi_deadline_passed(deadline_ns))
            return HVI_ERR_TIMEOUT;
    }
}

static int send_request(struct admin_client *client, const struct hvi_admin_request *request,
                        uint64_t deadline_ns)
{
    unsigned char *bytes;
    size_t length;
    int status = hvi_admin_request_encode(request, &bytes, &length);
    if (status != HVI_OK)
        return status;
    status = wait_for(client, ZMQ_POLLOUT, deadline_ns);
    if (status == HVI_OK && (zmq_send(client->socket, "", 0, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0 ||
                             zmq_send(client->socket, bytes, length, ZMQ_DONTWAIT) < 0))
        status = HVI_ERR_TIMEOUT;
    free(bytes);
    return status;
}

static int receive_any(struct admin_client *client, struct hvi_admin_reply *reply_p, char *text_p,
                       size_t text_size)
{
    zmq_msg_t body;
    zmq_msg_init(&body);
    int status = receive_body(client->socket, &body);
    if (status == HVI_OK)
        status = hvi_admin_reply_decode(zmq_msg_data(&body), zmq_msg_size(&body), reply_p, text_p,
                                        text_size);
    zmq_msg_close(&body);
    return status;
}

static int receive_reply(struct admin_client *client, uint64_t request,
                         struct hvi_admin_reply *reply_p, char *text_p, size_t text_size)
{
    const int status = receive_any(client, reply_p, text_p, text_size);
    if (status == HVI_OK && reply_p->request != request && reply_p->request != 0) {
        hvi_admin_reply_free(reply_p);
        return HVI_INPROGRESS;
    }
    return status;
}

/* Nobody listens, or somebody else. What this process lacks, and a queue that is full, say nothing of it. */
static bool has_gone(struct admin_client *client)
{
    const uint64_t now_ns = hvi_clock_ns();
    if (now_ns < client->next_look_ns)
        return false;
    const int error = address_probe(client->dir, 0);
    if (error != 0 && error != EAGAIN && error != EMFILE && error != ENFILE && error != ENOMEM)
        return true;
    client->next_look_ns = now_ns + LOOK_NS;
    return false;
}

/* Reads all that the monitor has said; a connection that finds nobody makes an event each time. HVI_INPROGRESS: ask
 * again; HVI_ERR_NO_DAEMON; HVI_OK: nothing of interest. */
static int read_events(struct admin_client *client)
{
    bool ended = false;
    for (uint16_t event = take_event(client); event != 0; event = take_event(client))
        ended |= event == ZMQ_EVENT_DISCONNECTED;
    if (has_gone(client))
        return HVI_ERR_NO_DAEMON;
    return ended ? HVI_INPROGRESS : HVI_OK;
}

/* HVI_OK: something has come; HVI_INPROGRESS: the connection has ended; or an error. */
static int wait_for_reply(struct admin_client *client, uint64_t deadline_ns)
{
    for (;;) {
        zmq_pollitem_t items[] = {{.socket = client->socket, .events = ZMQ_POLLIN},
                                  {.socket = client->monitor, .events = ZMQ_POLLIN}};
        const int ready = zmq_poll(items, 2, hvi_deadline_poll_ms(deadline_ns));
        if (ready < 0 && errno != EINTR)
            return HVI_ERR_NO_MEMORY;
        if (ready > 0 && items[0].revents != 0)
            return HVI_OK;
        const int status = ready > 0 ? read_events(client) : HVI_OK;
        if (status != HVI_OK)
            return status;
        if (hvi_deadline_passed(deadline_ns))
            return HVI_ERR_TIMEOUT;
    }
}

int admin_client_send(struct admin_client *client, struct hvi_admin_request *request,
                      uint64_t deadline_ns)
{
    request->protocol_version = HVI_PROTOCOL_VERSION;
    request->request = ++client->next_request;
    return send_request(client, request, deadline_ns);
}

int admin_client_call(struct admin_client *client, struct hvi_admin_request *request,
                      uint64_t deadline_ns, struct hvi_admin_reply *reply_p, char *text_p,
                      size_t text_size)
{
    int status = admin_client_send(client, request, deadline_ns);
    if (status != HVI_OK)
        return status;
    do {
        status = wait_for_reply(client, deadline_ns);
        if (status == HVI_INPROGRESS)
            status = send_request(client, request, deadline_ns) == HVI_OK ? HVI_INPROGRESS
                                                                          : HVI_ERR_TIMEOUT;
        else if (status == HVI_OK)
            status = receive_reply(client, request->request, reply_p, text_p, text_size);
    } while (status == HVI_INPROGRESS);
    return status;
}

/* ---- events ---- */

int admin_client_watch(struct admin_client *client, int epoll_fd)
{
    void *const sockets[] = {client->socket, client->monitor};
    for (size_t i = 0; i < 2; i++) {
        int fd;
        size_t size = sizeof fd;
        struct epoll_event event = {.events = EPOLLIN};
        if (zmq_getsockopt(sockets[i], ZMQ_FD, &fd, &size) != 0 ||
            epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0)
            return HVI_ERR_LIMIT;
    }
    return HVI_OK;
}

static bool has_message(void *socket)
{
    int events = 0;
    size_t size = sizeof events;
    return zmq_getsockopt(socket, ZMQ_EVENTS, &events, &size) == 0 && (events & ZMQ_POLLIN) != 0;
}

/* Both are looked at: that is what makes their descriptors tell of the next change. */
bool admin_client_is_ready(struct admin_client *client)
{
    const bool has_reply = has_message(client->socket);
    const bool has_news = has_message(client->monitor);
    return has_reply || has_news;
}

/* HVI_INPROGRESS: the answer to the request for events itself, which says that they will come. */
static int sort_reply(struct hvi_admin_reply *reply, char *text_p, size_t text_size)
{
    if (reply->status == HVI_OK && reply->request == 0)
        return HVI_OK;
    const int status = reply->status != HVI_OK ? reply->status : HVI_INPROGRESS;
    snprintf(text_p, text_size, "%s", reply->text);
    hvi_admin_reply_free(reply);
    return status;
}

int admin_client_next(struct admin_client *client, uint64_t deadline_ns,
                      struct hvi_admin_reply *reply_p, char *text_p, size_t text_size)
{
    for (;;) {
        int status = wait_for_reply(client, deadline_ns);
        if (status != HVI_OK)
            return status;
        status = receive_any(client, reply_p, text_p, text_size);
        if (status == HVI_OK)
            status = sort_reply(reply_p, text_p, text_size);
        if (status != HVI_INPROGRESS)
            return status;
    }
}
