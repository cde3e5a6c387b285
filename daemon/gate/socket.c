/* SPDX-License-Identifier: Apache-2.0
 * libzmq signals each socket by a descriptor that tells of changes, not of states: after every call on a
 * socket there may be something to read although the descriptor is silent. So whatever is done ends
 * with pump(), which reads all three sockets until nothing is left:
 *
 *   zap      asks whether a key may come in; libzmq's own thread waits for the answer, up to 2 s
 *   main     messages
 *   monitor  connections that come, go and fail
 *
 * A connection that has not shaken hands within 2 s is closed. libzmq does not bound how many there are: their
 * descriptors are counted here. A connection is a stranger until a message comes from it. While strangers take more than half of
 * their room, an address has 64 of them, and what comes beyond is cut off: nodes that come from there in a crowd try again.
 * With too many strangers of all addresses the socket stops listening until half of them have gone or spoken. Nodes stay for
 * the time of their jobs, and take no room from those that are still to come.
 *
 * libzmq does not connect again after a peer has refused the key or has said what is no ZMTP. It does after any other end of a
 * connection, and says so at once. Where it does not say so, the socket that joins starts anew after two seconds.
 *
 * Of a name with addresses of both families libzmq tries the first IPv6 one alone, for ever. So a socket that joins by a name, and
 * has no connection for a second, is opened anew for the other family, and so on. One that had a connection waits ten
 * seconds: the node there may be starting anew.
 *
 * A node that connects again, because its gate was killed or its connection cut, takes its routing id along
 * (ZMQ_ROUTER_HANDOVER). If something of the older connection, which has ended, is still unread, libzmq gives that another
 * id, a zero and four bytes of a counter, and it comes under this one. It is no fault, and is dropped: the node says everything
 * again. A peer that has chosen no id has one of that form as well. A message tells which one its peer has chosen. */
#include "daemon/gate/socket.h"

#include "base/place.h"
#include "base/status.h"
#include "daemon/gate/gate.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <zmq.h>

#ifndef ZMQ_ZAP_ENFORCE_DOMAIN
#define ZMQ_ZAP_ENFORCE_DOMAIN 93 /* in libzmq 4.3, in its header only with drafts */
#endif

#define DOMAIN           "hvdd"
#define ZAP_ENDPOINT     "inproc://zeromq.zap.01"
#define MESSAGES_AT_ONCE 256
#define QUEUE_MESSAGES   256
#define STRANGERS_MAX    512u
#define STRANGERS_EACH   64u /* of one address, while there are many */
#define CONNECTIONS_MAX  (HVI_WIRE_NODES_MAX + STRANGERS_MAX)
#define HANDSHAKE_MS     2000
#define HANDSHAKE_NS     (HANDSHAKE_MS * HVI_NS_MS)
#define REJOIN_NS        (2 * HVI_NS_SEC)
#define FAMILY_NS        HVI_NS_SEC /* for an address of one family, where the other may have one, too */
#define LOST_NS          (10 * HVI_NS_SEC)
#define ADDRESS_ROOM     INET6_ADDRSTRLEN
#define ENDPOINT_ROOM    (HVI_WIRE_PATH + 16)

/* CUT: libzmq is about to find it at its end. */
enum connection { NO_CONNECTION, STRANGER, NODE, CUT };

struct gate_socket {
    sd_event *event;
    const struct gate_keys *keys;
    const struct gate_socket_calls *calls;
    void *user;
    bool listens;
    void *context, *zap, *main, *monitor;
    sd_event_source *sources[3], *again;
    char endpoint[ENDPOINT_ROOM]; /* tcp://... */
    char route[GATE_ROUTE_TEXT];
    unsigned char connections[GATE_DESCRIPTORS_MAX];    /* enum connection, by descriptor */
    char strangers[GATE_DESCRIPTORS_MAX][ADDRESS_ROOM]; /* their addresses; "": not known */
    uint32_t counts[CUT + 1];                           /* of each kind of connection */
    bool deaf;                                          /* unbound: too many connections */
    unsigned rounds;                                    /* how often the sockets were opened */
    bool named;                                         /* joins a host by its name */
    bool ipv4;           /* its addresses of IPv4 alone are tried now */
    bool connected;      /* one of this family was */
    uint64_t family_ns;  /* not 0: there is no connection; when to try the other family */
    uint64_t dialed_ns;  /* when the last connection was made */
    uint64_t rejoin_ns;  /* not 0: libzmq tries no more; when to start anew */
    uint64_t logged_ns;  /* of refusals */
    uint32_t not_logged; /* since then */
    uint32_t
        ending; /* connections whose key was refused, which is logged, and that libzmq closes */
};

/* ---- options ---- */

static bool set_int(void *zmq, int option, int value)
{
    return zmq_setsockopt(zmq, option, &value, sizeof(value)) == 0;
}

static bool set_text(void *zmq, int option, const char *text)
{
    return zmq_setsockopt(zmq, option, text, strlen(text)) == 0;
}

static bool set_common(void *zmq, bool ipv6)
{
    const int64_t bytes_max = HVI_MESH_BYTES_MAX;

    return zmq_setsockopt(zmq, ZMQ_MAXMSGSIZE, &bytes_max, sizeof(bytes_max)) == 0 &&
           set_int(zmq, ZMQ_LINGER, 0) && set_int(zmq, ZMQ_IPV6, ipv6) &&
           set_int(zmq, ZMQ_SNDHWM, QUEUE_MESSAGES) && set_int(zmq, ZMQ_RCVHWM, QUEUE_MESSAGES) &&
           set_int(zmq, ZMQ_HANDSHAKE_IVL, HANDSHAKE_MS) && set_int(zmq, ZMQ_HEARTBEAT_IVL, 300) &&
           set_int(zmq, ZMQ_HEARTBEAT_TIMEOUT, 1000) && set_int(zmq, ZMQ_HEARTBEAT_TTL, 1000);
}

static bool set_server(void *zmq, const struct gate_keys *keys)
{
    return set_common(zmq, true) && set_int(zmq, ZMQ_CURVE_SERVER, 1) &&
           set_text(zmq, ZMQ_CURVE_SECRETKEY, keys->secret) &&
           set_text(zmq, ZMQ_ZAP_DOMAIN, DOMAIN) && set_int(zmq, ZMQ_ZAP_ENFORCE_DOMAIN, 1) &&
           set_int(zmq, ZMQ_ROUTER_HANDOVER, 1) && set_int(zmq, ZMQ_ROUTER_MANDATORY, 1) &&
           set_int(zmq, ZMQ_BACKLOG, 128);
}

static bool set_client(const struct gate_socket *socket, const char *public)
{
    void *zmq = socket->main;

    return set_common(zmq, !socket->ipv4) &&
           set_text(zmq, ZMQ_CURVE_SERVERKEY, socket->keys->server) &&
           set_text(zmq, ZMQ_CURVE_PUBLICKEY, public) &&
           set_text(zmq, ZMQ_CURVE_SECRETKEY, socket->keys->secret) &&
           set_text(zmq, ZMQ_ROUTING_ID, socket->route) && set_int(zmq, ZMQ_IMMEDIATE, 1) &&
           set_int(zmq, ZMQ_RECONNECT_IVL, 100) && set_int(zmq, ZMQ_RECONNECT_IVL_MAX, 300) &&
           set_int(zmq, ZMQ_CONNECT_TIMEOUT, 1000);
}

/* ---- refusals ---- */

/* One line a second, whatever comes. */
static void log_refused(struct gate_socket *socket, const char *why, const char *address)
{
    uint64_t now = hvi_clock_ns();

    socket->not_logged++;
    if (socket->logged_ns != 0 && now - socket->logged_ns < HVI_NS_SEC)
        return;
    HVI_LOG(HVI_LOG_WARN, "mesh", "mesh-refused", why, "address=%s refused=%u", address,
            (unsigned)socket->not_logged);
    socket->logged_ns = now;
    socket->not_logged = 0;
}

/* ---- who may come in (ZAP, rfc.zeromq.org/spec/27) ---- */

#define ZAP_FRAMES 7 /* version, request, domain, address, routing id, mechanism, key */
#define ZAP_ROOM   256

struct zap_request {
    char frames[ZAP_FRAMES][ZAP_ROOM];
    size_t lengths[ZAP_FRAMES];
};

/* False: nothing has come. A request of another form has a count that is not ZAP_FRAMES. */
static bool zap_receive(void *zap, struct zap_request *request_p, int *count_p)
{
    int more = 1;
    size_t size = sizeof(more);

    for (*count_p = 0; more; (*count_p)++) {
        char frame[ZAP_ROOM];
        int length = zmq_recv(zap, frame, sizeof(frame), ZMQ_DONTWAIT);
        if (length < 0)
            return false;
        if (*count_p < ZAP_FRAMES) {
            size_t kept = length < ZAP_ROOM ? (size_t)length : ZAP_ROOM - 1;
            memcpy(request_p->frames[*count_p], frame, kept);
            request_p->frames[*count_p][kept] = '\0';
            request_p->lengths[*count_p] = kept;
        }
        zmq_getsockopt(zap, ZMQ_RCVMORE, &more, &size);
    }
    return true;
}

static bool is_allowed(const struct gate_socket *socket, const struct zap_request *request,
                       char key_p[GATE_KEY_TEXT])
{
    if (strcmp(request->frames[5], "CURVE") != 0 || strcmp(request->frames[2], DOMAIN) != 0 ||
        request->lengths[6] != 32 ||
        zmq_z85_encode(key_p, (const uint8_t *)request->frames[6], 32) == NULL)
        return false;
    for (size_t i = 0; i < socket->keys->client_count; i++)
        if (strcmp(key_p, socket->keys->clients[i]) == 0)
            return true;
    return false;
}

static void log_stranger(struct gate_socket *socket, const char *key, const char *address)
{
    char text[256];

    snprintf(text, sizeof(text),
             "a node whose key is not in the allow-list was refused; if it is one of yours, say "
             "here: hvdctl key allow NAME '%s'",
             key);
    log_refused(socket,
                socket->keys->of_node && key[0] != '\0'
                    ? text
                    : "a node whose key is not in the mesh key file was refused",
                address);
}

static bool zap_serve(struct gate_socket *socket)
{
    struct zap_request request;
    char key[GATE_KEY_TEXT] = "";
    bool allowed;
    int count;

    if (!zap_receive(socket->zap, &request, &count))
        return false;
    allowed = count == ZAP_FRAMES && is_allowed(socket, &request, key);
    if (!allowed) {
        log_stranger(socket, key, count == ZAP_FRAMES ? request.frames[3] : "");
        socket->ending++;
    }
    zmq_send(socket->zap, "1.0", 3, ZMQ_SNDMORE);
    zmq_send(socket->zap, request.frames[1], request.lengths[1], ZMQ_SNDMORE);
    zmq_send(socket->zap, allowed ? "200" : "400", 3, ZMQ_SNDMORE);
    zmq_send(socket->zap, "", 0, ZMQ_SNDMORE);
    zmq_send(socket->zap, allowed ? key : "", allowed ? strlen(key) : 0, ZMQ_SNDMORE);
    zmq_send(socket->zap, "", 0, 0);
    return true;
}

/* ---- how many there are ---- */

static void count_connection(struct gate_socket *socket, int fd, enum connection is)
{
    if (fd < 0 || fd >= (int)GATE_DESCRIPTORS_MAX)
        return;
    socket->counts[socket->connections[fd]]--;
    socket->counts[is]++;
    socket->connections[fd] = (unsigned char)is;
}

static bool is_stranger(const struct gate_socket *socket, int fd)
{
    return fd >= 0 && fd < (int)GATE_DESCRIPTORS_MAX && socket->connections[fd] == STRANGER;
}

/* For so many more strangers. */
static bool has_room(const struct gate_socket *socket, uint32_t more)
{
    return socket->counts[STRANGER] + more <= STRANGERS_MAX &&
           socket->counts[STRANGER] + socket->counts[CUT] + socket->counts[NODE] + more <=
               CONNECTIONS_MAX;
}

/* ---- messages ---- */

/* The last frame, with the number of frames before it; the first of these in `route_p`. */
static bool receive_frames(struct gate_socket *socket, zmq_msg_t *body,
                           char route_p[GATE_ROUTE_TEXT], int *before_p)
{
    route_p[0] = '\0';
    for (*before_p = 0;; (*before_p)++) {
        if (zmq_msg_recv(body, socket->main, ZMQ_DONTWAIT) < 0)
            return false;
        if (!zmq_msg_more(body))
            return true;
        if (*before_p == 0 && zmq_msg_size(body) == GATE_ROUTE_TEXT - 1)
            snprintf(route_p, GATE_ROUTE_TEXT, "%.*s", GATE_ROUTE_TEXT - 1,
                     (const char *)zmq_msg_data(body));
    }
}

/* An IPv4 address that came over an IPv6 socket is written as one. */
static const char *unmapped(const char *address)
{
    static const char mapped[] = "::ffff:";

    return strncmp(address, mapped, sizeof(mapped) - 1) == 0 && strchr(address, '.') != NULL
               ? address + sizeof(mapped) - 1
               : address;
}

static const char *gets_or_none(zmq_msg_t *msg, const char *name)
{
    const char *text = zmq_msg_gets(msg, name);

    return text == NULL ? "" : text;
}

static bool is_well_formed(const struct gate_socket *socket, const char *route, int before)
{
    return before == (socket->listens ? 1 : 0) && (!socket->listens || route[0] != '\0');
}

/* Of a connection whose routing id a newer one has. */
static bool is_replaced(const struct gate_socket *socket, const char *route, const char *chosen,
                        int before)
{
    return socket->listens && before == 1 && route[0] == '\0' &&
           strlen(chosen) == GATE_ROUTE_TEXT - 1;
}

static bool message_receive(struct gate_socket *socket)
{
    char route[GATE_ROUTE_TEXT];
    zmq_msg_t body;
    int before;

    zmq_msg_init(&body);
    if (!receive_frames(socket, &body, route, &before)) {
        zmq_msg_close(&body);
        return false;
    }
    const struct gate_sender from = {.route = route,
                                     .key = gets_or_none(&body, "User-Id"),
                                     .address = unmapped(gets_or_none(&body, "Peer-Address")),
                                     .connection = zmq_msg_get(&body, ZMQ_SRCFD)};
    if (is_stranger(socket, from.connection))
        count_connection(socket, from.connection, NODE);
    if (is_well_formed(socket, route, before))
        socket->calls->received(socket->user, socket->listens ? &from : NULL, zmq_msg_data(&body),
                                zmq_msg_size(&body));
    else if (!is_replaced(socket, route, gets_or_none(&body, "Identity"), before))
        log_refused(socket, "a message of the mesh has the wrong form", from.address);
    zmq_msg_close(&body);
    return true;
}

static bool has_input(void *zmq)
{
    int events = 0;
    size_t size = sizeof(events);

    return zmq != NULL && zmq_getsockopt(zmq, ZMQ_EVENTS, &events, &size) == 0 &&
           (events & ZMQ_POLLIN) != 0;
}

void gate_socket_send(struct gate_socket *socket, const char *route, const unsigned char *bytes,
                      size_t length)
{
    if (socket->main == NULL)
        return;
    /* libzmq learns of a new connection here. Sending would do that, too, but at most each millisecond: what is said at
     * once would be lost, and repeated after 500 ms. There may be something to read by now, of which no descriptor tells. */
    (void)has_input(socket->main);
    sd_event_source_set_enabled(socket->again, SD_EVENT_ONESHOT);
    if (socket->listens &&
        zmq_send(socket->main, route, strlen(route), ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0)
        return;
    zmq_send(socket->main, bytes, length, ZMQ_DONTWAIT);
}

/* ---- connections ---- */

/* The descriptor is libzmq's and may be closed by now: then there is no address. */
static void read_address(int fd, char address_p[HVI_WIRE_NODE_ADDRESS])
{
    struct sockaddr_storage peer;
    socklen_t size = sizeof(peer);

    address_p[0] = '\0';
    if (getpeername(fd, (struct sockaddr *)&peer, &size) == 0)
        getnameinfo((struct sockaddr *)&peer, size, address_p, HVI_WIRE_NODE_ADDRESS, NULL, 0,
                    NI_NUMERICHOST);
}

/* As it is kept in .strangers; "": not known. */
static void read_stranger(int fd, char address_p[ADDRESS_ROOM])
{
    char address[HVI_WIRE_NODE_ADDRESS];

    read_address(fd, address);
    snprintf(address_p, ADDRESS_ROOM, "%.*s", ADDRESS_ROOM - 1, unmapped(address));
}

/* How many strangers there are of an address. */
static uint32_t count_strangers(const struct gate_socket *socket, const char *address)
{
    uint32_t count = 0;

    for (int fd = 0; fd < (int)GATE_DESCRIPTORS_MAX; fd++)
        count += socket->connections[fd] == STRANGER && strcmp(socket->strangers[fd], address) == 0;
    return count;
}

/* A stranger has come. */
static void cut_surplus(struct gate_socket *socket, int fd)
{
    char now[ADDRESS_ROOM];
    const char *address;

    if (!is_stranger(socket, fd) || socket->counts[STRANGER] <= STRANGERS_MAX / 2)
        return;
    address = socket->strangers[fd];
    if (address[0] == '\0' || count_strangers(socket, address) <= STRANGERS_EACH)
        return;
    log_refused(socket, "an address has too many connections to the mesh that say nothing",
                address);
    /* libzmq may have closed it, and the descriptor may be another connection's by now. */
    read_stranger(fd, now);
    if (strcmp(now, address) == 0)
        shutdown(fd, SHUT_RDWR);
    count_connection(socket, fd, CUT);
}

static void log_end(struct gate_socket *socket, int fd)
{
    if (!is_stranger(socket, fd))
        return;
    if (socket->ending > 0)
        socket->ending--;
    else
        log_refused(socket, "a connection to the mesh ended without a message of a node",
                    socket->strangers[fd]);
}

static void accept_or_end(struct gate_socket *socket, uint16_t event, int32_t fd)
{
    if (event != ZMQ_EVENT_ACCEPTED)
        log_end(socket, fd);
    else if (fd >= 0 && fd < (int)GATE_DESCRIPTORS_MAX)
        read_stranger(fd, socket->strangers[fd]);
    count_connection(socket, fd, event == ZMQ_EVENT_ACCEPTED ? STRANGER : NO_CONNECTION);
    cut_surplus(socket, fd);
    if (!socket->deaf && !has_room(socket, 1) && zmq_unbind(socket->main, socket->endpoint) == 0) {
        socket->deaf = true;
        log_refused(socket, "the mesh does not listen for now: it has too many connections", "");
    }
}

static void tell_connected(struct gate_socket *socket, int fd)
{
    char address[HVI_WIRE_NODE_ADDRESS];

    read_address(fd, address);
    if (address[0] != '\0') /* else it has ended by now */
        socket->calls->connected(socket->user, unmapped(address));
}

/* The other side does not know our key, or has another one than we think. */
static const char *why_refused(const struct gate_socket *socket, bool by_it)
{
    if (socket->keys->of_node)
        return by_it ? "it does not allow this node's key; say there: hvdctl key allow NAME KEY, "
                       "with the KEY that `hvdctl key show` prints here"
                     : "it is no hvdd of this mesh, or has another key than the one that is "
                       "allowed here; compare with what `hvdctl key show` prints there";
    return by_it ? "it does not know our key: the two mesh key files are not of one pair"
                 : "it is no hvdd of this mesh, or has another server key: the two mesh key files "
                   "are not of one pair";
}

/* Whether a handshake failed because its time was over, here or there. A peer that has another key ends it at once. */
static bool is_late(const struct gate_socket *socket, int32_t error)
{
    const bool is_ended = error == EPIPE || error == ECONNRESET; /* by the peer */

    return !is_ended || hvi_clock_ns() - socket->dialed_ns >= HANDSHAKE_NS - 100 * HVI_NS_MS;
}

/* libzmq tells after the end of a connection that it tries again, or it does not try. */
static void note_end(struct gate_socket *socket, uint16_t event)
{
    if (event == ZMQ_EVENT_DISCONNECTED)
        socket->rejoin_ns = hvi_clock_ns() + REJOIN_NS;
    else if (event == ZMQ_EVENT_CONNECT_RETRIED || event == ZMQ_EVENT_CONNECTED)
        socket->rejoin_ns = 0;
}

static void handle_event(struct gate_socket *socket, uint16_t event, int32_t value)
{
    if (event == ZMQ_EVENT_ACCEPTED || event == ZMQ_EVENT_DISCONNECTED)
        accept_or_end(socket, event, value);
    if (socket->listens) {
        if (event == ZMQ_EVENT_DISCONNECTED)
            socket->calls->disconnected(socket->user, value);
        return;
    }
    note_end(socket, event);
    if (event == ZMQ_EVENT_CONNECTED) {
        socket->connected = true;
        socket->dialed_ns = hvi_clock_ns();
        socket->family_ns = 0;
        tell_connected(socket, value);
    } else if (event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED) {
        socket->calls->connected(socket->user, "");
    } else if (event == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH) {
        socket->calls->failed(socket->user, why_refused(socket, true), true);
    } else if (event == ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL && is_late(socket, value)) {
        socket->calls->failed(socket->user, "it does not answer: it stands still, or is no hvdd",
                              false);
    } else if (event == ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL ||
               event == ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL) {
        socket->calls->failed(socket->user, why_refused(socket, false), true);
    } else {
        if (socket->named && socket->family_ns == 0)
            socket->family_ns = hvi_clock_ns() + (socket->connected ? LOST_NS : FAMILY_NS);
        socket->calls->failed(socket->user,
                              event == ZMQ_EVENT_DISCONNECTED ? "the connection was lost"
                                                              : "no connection can be made",
                              false);
    }
}

static bool event_receive(struct gate_socket *socket)
{
    unsigned char bytes[6];
    char endpoint[ENDPOINT_ROOM];
    uint16_t event;
    int32_t value;

    if (zmq_recv(socket->monitor, bytes, sizeof(bytes), ZMQ_DONTWAIT) != (int)sizeof(bytes))
        return false;
    zmq_recv(socket->monitor, endpoint, sizeof(endpoint), ZMQ_DONTWAIT);
    memcpy(&event, bytes, sizeof(event));
    memcpy(&value, bytes + sizeof(event), sizeof(value));
    handle_event(socket, event, value);
    return true;
}

/* ---- the loop ---- */

/* The ends of connections come before messages: their numbers are used again. A connection is counted, and cut where there are too
 * many, before it is let in: else what it says at once would be lost. libzmq tells the monitor of it before it asks for its key. */
static void pump(struct gate_socket *socket)
{
    for (int i = 0; i < MESSAGES_AT_ONCE; i++) {
        const bool is_asked = has_input(socket->zap);
        bool any = false;
        while (has_input(socket->monitor) && event_receive(socket))
            any = true;
        if (is_asked)
            any = zap_serve(socket) || any;
        if (has_input(socket->main))
            any = message_receive(socket) || any;
        if (!any)
            return;
    }
    sd_event_source_set_enabled(socket->again, SD_EVENT_ONESHOT);
}

static int on_signal(sd_event_source *source, int fd, uint32_t events, void *user)
{
    (void)source, (void)fd, (void)events;
    pump(user);
    return 0;
}

static int on_again(sd_event_source *source, void *user)
{
    (void)source;
    pump(user);
    return 0;
}

static bool watch(struct gate_socket *socket, size_t place, void *zmq)
{
    size_t size = sizeof(int);
    int fd;

    return zmq_getsockopt(zmq, ZMQ_FD, &fd, &size) == 0 &&
           sd_event_add_io(socket->event, &socket->sources[place], fd, EPOLLIN, on_signal,
                           socket) >= 0;
}

/* ---- opening ---- */

/* libzmq's thread would wait for ever where it tells the end of a connection to a monitor that nobody reads any more. */
static void close_sockets(struct gate_socket *socket)
{
    if (socket->main != NULL)
        zmq_socket_monitor(socket->main, NULL, 0);
    for (size_t i = 0; i < 3; i++)
        socket->sources[i] = sd_event_source_disable_unref(socket->sources[i]);
    if (socket->main != NULL)
        zmq_close(socket->main);
    if (socket->monitor != NULL)
        zmq_close(socket->monitor);
    if (socket->zap != NULL)
        zmq_close(socket->zap);
    socket->main = socket->monitor = socket->zap = NULL;
}

void gate_socket_close(struct gate_socket *socket)
{
    if (socket == NULL)
        return;
    close_sockets(socket);
    sd_event_source_disable_unref(socket->again);
    if (socket->context != NULL)
        zmq_ctx_term(socket->context);
    free(socket);
}

static struct gate_socket *socket_new(sd_event *event, const struct gate_keys *keys, bool listens,
                                      const struct gate_socket_calls *calls, void *user)
{
    struct gate_socket *socket = calloc(1, sizeof(*socket));

    if (socket == NULL)
        return NULL;
    socket->event = event;
    socket->keys = keys;
    socket->calls = calls;
    socket->user = user;
    socket->listens = listens;
    socket->context = zmq_ctx_new();
    if (socket->context != NULL && sd_event_add_defer(event, &socket->again, on_again, socket) >= 0)
        return socket;
    gate_socket_close(socket);
    return NULL;
}

static bool open_monitor(struct gate_socket *socket)
{
    const int events = ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_CONNECTED |
                       ZMQ_EVENT_CONNECT_RETRIED | ZMQ_EVENT_CLOSED |
                       ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH |
                       ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL;

    char endpoint[64];

    /* A name of its own: libzmq closes the last one at its leisure. */
    snprintf(endpoint, sizeof(endpoint), "inproc://mesh.monitor.%u", ++socket->rounds);
    socket->monitor = zmq_socket(socket->context, ZMQ_PAIR);
    return socket->monitor != NULL && set_int(socket->monitor, ZMQ_LINGER, 0) &&
           zmq_socket_monitor(socket->main, endpoint, events) == 0 &&
           zmq_connect(socket->monitor, endpoint) == 0;
}

/* The handler is there before the socket listens: without one nobody gets in, but those that come
 * first would not be asked about. */
static bool open_server(struct gate_socket *socket)
{
    socket->zap = zmq_socket(socket->context, ZMQ_REP);
    socket->main = zmq_socket(socket->context, ZMQ_ROUTER);
    return socket->zap != NULL && socket->main != NULL && set_int(socket->zap, ZMQ_LINGER, 0) &&
           zmq_bind(socket->zap, ZAP_ENDPOINT) == 0 && set_server(socket->main, socket->keys) &&
           open_monitor(socket) && watch(socket, 0, socket->zap) &&
           watch(socket, 1, socket->monitor) && watch(socket, 2, socket->main);
}

static bool open_client(struct gate_socket *socket)
{
    char public[GATE_KEY_TEXT];

    socket->main = zmq_socket(socket->context, ZMQ_DEALER);
    return socket->main != NULL && zmq_curve_public(public, socket->keys->secret) == 0 &&
           set_client(socket, public) && open_monitor(socket) &&
           watch(socket, 1, socket->monitor) && watch(socket, 2, socket->main) &&
           zmq_connect(socket->main, socket->endpoint) == 0;
}

/* ADDRESS:PORT into its parts. */
static bool split(const char *endpoint, char *address_p, size_t address_size, uint32_t *port_p)
{
    *port_p = UINT32_MAX; /* none */
    return hvi_place_split(endpoint, address_p, address_size, port_p) && *port_p <= UINT16_MAX;
}

/* An address, and no name that may stand for several. */
static bool is_number(const char *host)
{
    struct in_addr four;

    return strchr(host, ':') != NULL || inet_pton(AF_INET, host, &four) == 1;
}

/* As libzmq writes it. */
static void set_endpoint(struct gate_socket *socket, const char *address, uint32_t port)
{
    snprintf(socket->endpoint, sizeof(socket->endpoint),
             strchr(address, ':') != NULL ? "tcp://[%.200s]:%u" : "tcp://%.200s:%u", address,
             (unsigned)port);
}

static bool bind_one(struct gate_socket *socket, const char *address, uint32_t port)
{
    set_endpoint(socket, address, port);
    return zmq_bind(socket->main, socket->endpoint) == 0;
}

static bool bind_any(struct gate_socket *socket, const char *address, uint32_t first, uint32_t last,
                     uint32_t *port_p)
{
    for (uint32_t port = first; port <= last; port++) {
        if (bind_one(socket, address, port)) {
            *port_p = port;
            return true;
        }
        if (errno != EADDRINUSE && errno != EACCES)
            return false;
    }
    return false;
}

static bool check_secret(const struct gate_keys *keys, bool listens)
{
    char public[GATE_KEY_TEXT];

    if (zmq_curve_public(public, keys->secret) != 0)
        return false;
    if (listens)
        return strcmp(public, keys->server) == 0;
    if (keys->of_node)
        return true;
    for (size_t i = 0; i < keys->client_count; i++)
        if (strcmp(public, keys->clients[i]) == 0)
            return true;
    return false;
}

bool gate_socket_public(const char *secret, char public_p[GATE_KEY_TEXT])
{
    return zmq_curve_public(public_p, secret) == 0;
}

int gate_socket_listen(sd_event *event, const struct gate_keys *keys, const char *endpoint,
                       uint32_t first, uint32_t last, const struct gate_socket_calls *calls,
                       void *user, struct gate_socket **socket_p, uint32_t *port_p, char *text_p,
                       size_t text_size)
{
    struct gate_socket *socket = NULL;
    char address[HVI_WIRE_PATH];
    uint32_t port;

    if (!split(endpoint, address, sizeof(address), &port)) {
        snprintf(text_p, text_size, "mesh-listen: \"%s\" is no ADDRESS:PORT", endpoint);
        return HVI_ERR_INVALID;
    }
    if (!check_secret(keys, true)) {
        snprintf(text_p, text_size,
                 "the mesh key file has not the secret of its server key: the node "
                 "that listens needs the file PREFIX.server");
        return HVI_ERR_REFUSED;
    }
    socket = socket_new(event, keys, true, calls, user);
    if (socket == NULL || !open_server(socket)) {
        snprintf(text_p, text_size, "the mesh cannot be set up: %s", zmq_strerror(errno));
        goto failed;
    }
    if (!bind_any(socket, address, port != 0 ? port : first, port != 0 ? port : last, port_p)) {
        snprintf(text_p, text_size, "the mesh cannot listen at %s, port %u to %u: %s", address,
                 (unsigned)(port != 0 ? port : first), (unsigned)(port != 0 ? port : last),
                 zmq_strerror(errno));
        goto failed;
    }
    *socket_p = socket;
    return HVI_OK;
failed:
    gate_socket_close(socket);
    return HVI_ERR_DAEMON;
}

int gate_socket_join(sd_event *event, const struct gate_keys *keys, const char *endpoint,
                     const char *route, const struct gate_socket_calls *calls, void *user,
                     struct gate_socket **socket_p, char *text_p, size_t text_size)
{
    struct gate_socket *socket = NULL;
    char host[HVI_WIRE_PATH];
    uint32_t port;

    if (!split(endpoint, host, sizeof(host), &port) || port == 0) {
        snprintf(text_p, text_size, "mesh-join: \"%s\" is no HOST:PORT", endpoint);
        return HVI_ERR_INVALID;
    }
    if (!check_secret(keys, false)) {
        snprintf(text_p, text_size,
                 "the mesh key file has not the secret of a client key: a node that "
                 "joins needs the file PREFIX.client");
        return HVI_ERR_REFUSED;
    }
    socket = socket_new(event, keys, false, calls, user);
    if (socket != NULL) {
        snprintf(socket->route, sizeof(socket->route), "%s", route);
        socket->named = !is_number(host);
        set_endpoint(socket, host, port);
    }
    if (socket == NULL || !open_client(socket)) {
        snprintf(text_p, text_size, "the mesh cannot be set up: %s", zmq_strerror(errno));
        gate_socket_close(socket);
        return HVI_ERR_DAEMON;
    }
    *socket_p = socket;
    return HVI_OK;
}

static void rejoin(struct gate_socket *socket, uint64_t now_ns)
{
    socket->rejoin_ns = 0;
    close_sockets(socket);
    if (!open_client(socket))
        socket->rejoin_ns = now_ns + REJOIN_NS;
}

void gate_socket_tick(struct gate_socket *socket, uint64_t now_ns)
{
    if (socket->deaf && has_room(socket, STRANGERS_MAX / 2) &&
        zmq_bind(socket->main, socket->endpoint) == 0)
        socket->deaf = false;
    pump(socket); /* what has come meanwhile counts */
    if (socket->family_ns != 0 && now_ns >= socket->family_ns) {
        socket->ipv4 = !socket->ipv4;
        socket->connected = false;
        socket->family_ns = 0;
        rejoin(socket, now_ns);
    }
    if (socket->rejoin_ns != 0 && now_ns >= socket->rejoin_ns)
        rejoin(socket, now_ns);
    pump(socket);
}
