/* SPDX-License-Identifier: Apache-2.0
 * admin.sock: a ZeroMQ ROUTER, and the only file that sees zmq.h.
 *
 * ZMQ_FD is edge-triggered: it becomes readable when the socket's state *may* have changed, and
 * stays silent for messages that are there already. So after every wake we go on until ZMQ_EVENTS
 * has no POLLIN, and because a send also processes that state (and may swallow the edge of a
 * message that came meanwhile), every send is followed by another look, from a deferred source.
 *
 * The listening socket is ours (ZMQ_USE_FD): it then has its file mode from the first moment, and
 * one from systemd works the same way. Who asks is told by the "Peer-Address" property, which
 * libzmq makes for ipc from SO_PEERCRED as
 * "<host>:<uid>:<gid>:<pid>" and which a peer cannot overwrite. A peer without it (an old protocol
 * version) is served as far as reading goes, for which the file mode is the gate, and refused
 * everything else. */
#include "daemon/node/node.h"

#include "base/status.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <zmq.h>

#define MESSAGES_PER_WAKE 64
#define MESSAGE_BYTES_MAX (64 * 1024)

struct node_admin {
    void *context, *socket;
    sd_event_source *io, *again;
};

/* ---- who
 * ----------------------------------------------------------------------------------------------------------
 */

/* The uid out of "<host>:<uid>:<gid>:<pid>". */
static bool parse_peer(const char *address, uid_t *uid_p)
{
    const char *end = address + strlen(address);
    char *rest;
    long uid;

    for (int colons = 0; colons < 3; colons++) {
        do {
            if (end == address)
                return false;
            end--;
        } while (*end != ':');
    }
    errno = 0;
    uid = strtol(end + 1, &rest, 10);
    if (errno != 0 || rest == end + 1 || *rest != ':')
        return false;
    *uid_p = (uid_t)uid;
    return true;
}

static void identify(const struct node *node, zmq_msg_t *frame, struct node_asker *asker)
{
    const char *address = zmq_msg_gets(frame, "Peer-Address");

    (void)node;
    asker->known = address != NULL && parse_peer(address, &asker->uid);
}

/* ---- receiving
 * ----------------------------------------------------------------------------------------------------
 */

/* The next frame into `frame`; false when there is none. */
static bool next_frame(struct node_admin *admin, zmq_msg_t *frame)
{
    int rc;
    do {
        rc = zmq_msg_recv(frame, admin->socket, ZMQ_DONTWAIT);
    } while (rc < 0 && errno == EINTR);
    return rc >= 0;
}

/* One message: [identity][""][payload] or [identity][payload]; what is more is thrown away. False:
 * nothing there. On true `*whole_p` says whether it had that form. */
static bool receive(struct node *node, zmq_msg_t *frame, struct node_asker *asker, bool *whole_p)
{
    struct node_admin *admin = node->admin;

    memset(asker, 0, sizeof(*asker));
    if (!next_frame(admin, frame))
        return false;
    asker->identity_bytes = zmq_msg_size(frame);
    *whole_p = asker->identity_bytes <= sizeof(asker->identity) && zmq_msg_more(frame);
    if (asker->identity_bytes <= sizeof(asker->identity))
        memcpy(asker->identity, zmq_msg_data(frame), asker->identity_bytes);
    if (zmq_msg_more(frame) && next_frame(admin, frame) && zmq_msg_size(frame) == 0 &&
        zmq_msg_more(frame)) {
        asker->delimiter = true;
        next_frame(admin, frame);
    }
    identify(node, frame, asker);
    while (zmq_msg_more(frame)) {
        *whole_p = false;
        if (!next_frame(admin, frame))
            break;
    }
    return true;
}

static void handle(struct node *node, zmq_msg_t *frame, struct node_asker *asker, bool whole)
{
    struct hvi_admin_request request;
    char text[200] = "it is not one frame", sentence[300];

    if (!whole || hvi_admin_request_decode(zmq_msg_data(frame), zmq_msg_size(frame), &request, text,
                                           sizeof(text)) != HVI_OK) {
        HVI_LOG(HVI_LOG_WARN, "admin", "bad-request", "an admin request cannot be read",
                "uid=%d error=\"%s\"", asker->known ? (int)asker->uid : -1, text);
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
    if (node->private_mode && (!asker->known || asker->uid != node->uid)) {
        HVI_LOG(HVI_LOG_WARN, "admin", "admin-refused", "another user asked a private hvdd",
                "uid=%d", asker->known ? (int)asker->uid : -1);
        node_answer_text(node, asker, HVI_ERR_REFUSED, "this hvdd is private to another user");
        return;
    }
    node_answer_request(node, asker, &request);
}

static void look_again(struct node_admin *admin)
{
    sd_event_source_set_enabled(admin->again, SD_EVENT_ONESHOT);
}

static void drain(struct node *node)
{
    struct node_admin *admin = node->admin;
    struct node_asker asker;
    zmq_msg_t frame;
    bool whole;

    zmq_msg_init(&frame);
    for (int i = 0; i < MESSAGES_PER_WAKE; i++) {
        int events = 0;
        size_t size = sizeof(events);
        if (zmq_getsockopt(admin->socket, ZMQ_EVENTS, &events, &size) != 0 ||
            (events & ZMQ_POLLIN) == 0)
            goto done;
        if (receive(node, &frame, &asker, &whole))
            handle(node, &frame, &asker, whole);
    }
    look_again(admin); /* others have their turn first */
done:
    zmq_msg_close(&frame);
}

static int on_edge(sd_event_source *source, int fd, uint32_t events, void *user)
{
    (void)source, (void)fd, (void)events;
    drain(user);
    return 0;
}

static int on_again(sd_event_source *source, void *user)
{
    (void)source;
    drain(user);
    return 0;
}

/* ---- sending
 * ------------------------------------------------------------------------------------------------------
 */

void node_admin_send(struct node *node, const struct node_asker *asker,
                     struct hvi_admin_reply *reply)
{
    struct node_admin *admin = node->admin;
    unsigned char *bytes = NULL;
    size_t length;

    reply->protocol_version = HVI_PROTOCOL_VERSION;
    reply->request = asker->request;
    if (admin == NULL || hvi_admin_reply_encode(reply, &bytes, &length) != HVI_OK) {
        HVI_LOG(HVI_LOG_ERROR, "admin", "no-reply", "an admin reply could not be written",
                "request=%llu", (unsigned long long)asker->request);
        return;
    }
    /* A ROUTER drops what it cannot route or queue; after a failed first frame no other may follow.
     */
    if (zmq_send(admin->socket, asker->identity, asker->identity_bytes,
                 ZMQ_SNDMORE | ZMQ_DONTWAIT) >= 0 &&
        (!asker->delimiter || zmq_send(admin->socket, "", 0, ZMQ_SNDMORE | ZMQ_DONTWAIT) >= 0))
        zmq_send(admin->socket, bytes, length, ZMQ_DONTWAIT);
    free(bytes);
    look_again(admin);
}

/* ---- life
 * ---------------------------------------------------------------------------------------------------------
 */

static bool set_option(void *socket, int option, int value)
{
    return zmq_setsockopt(socket, option, &value, sizeof(value)) == 0;
}

/* Gives the listening descriptor to libzmq, which closes it in the end. False with errno. */
static bool bind_socket(struct node *node, void *socket)
{
    const int64_t message_max = MESSAGE_BYTES_MAX;
    char endpoint[HVI_WIRE_PATH + 8];
    int fd = node->admin_inherited_fd;

    snprintf(endpoint, sizeof(endpoint), "ipc://%s", node->admin_path);
    if (fd < 0)
        fd = node_listen_bind(node->admin_path, SOCK_STREAM,
                              node->private_mode ? 0600 : (mode_t)node->config.admin_mode);
    if (fd < 0)
        return false;
    if (set_option(socket, ZMQ_LINGER, 200) && set_option(socket, ZMQ_RCVHWM, 256) &&
        set_option(socket, ZMQ_SNDHWM, 256) && set_option(socket, ZMQ_HANDSHAKE_IVL, 2000) &&
        zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &message_max, sizeof(message_max)) == 0 &&
        set_option(socket, ZMQ_USE_FD, fd) && zmq_bind(socket, endpoint) == 0)
        return true;
    close(fd);
    return false;
}

static bool watch_socket(struct node *node)
{
    struct node_admin *admin = node->admin;
    int fd;
    size_t size = sizeof(fd);

    return zmq_getsockopt(admin->socket, ZMQ_FD, &fd, &size) == 0 &&
           sd_event_add_io(node->event, &admin->io, fd, EPOLLIN, on_edge, node) >= 0 &&
           sd_event_add_defer(node->event, &admin->again, on_again, node) >= 0;
}

int node_admin_open(struct node *node)
{
    struct node_admin *admin = calloc(1, sizeof(*admin));
    int error = ENOMEM;

    if (admin == NULL)
        goto failed;
    node->admin = admin;
    if (node->admin_inherited_fd < 0 &&
        !node_rundir_socket_path(&node->rundir, "admin.sock", node->admin_path,
                                 sizeof(node->admin_path))) {
        error = ENAMETOOLONG;
        goto failed;
    }
    admin->context = zmq_ctx_new();
    if (admin->context != NULL)
        admin->socket = zmq_socket(admin->context, ZMQ_ROUTER);
    if (admin->socket != NULL && bind_socket(node, admin->socket) && watch_socket(node))
        return HVI_OK;
    error = errno;
failed:
    HVI_LOG(HVI_LOG_ERROR, "admin", "no-admin", "cannot open the admin socket",
            "path=%s error=\"%s\"", node->admin_path, zmq_strerror(error));
    node_admin_close(node);
    return HVI_ERR_DAEMON;
}

void node_admin_close(struct node *node)
{
    struct node_admin *admin = node->admin;

    node_answer_close(node);
    if (admin == NULL)
        return;
    node->admin = NULL;
    sd_event_source_disable_unref(admin->io);
    sd_event_source_disable_unref(admin->again);
    if (admin->socket != NULL)
        zmq_close(admin->socket);
    if (admin->context != NULL)
        zmq_ctx_term(admin->context); /* at most ZMQ_LINGER */
    if (node->admin_path[0] != '\0' && node->admin_inherited_fd < 0)
        unlink(node->admin_path);
    free(admin);
}
