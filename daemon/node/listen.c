/* SPDX-License-Identifier: Apache-2.0
 * Accepting, and attach.sock. A flood of connections is accepted at a pace (base/pace.h), where it may be a stranger's.
 * As long as engines of a killed hvdd may say hello, the queue is long: each needs a place in it. Not that of a socket
 * unit, whose credentials clients see: who listens anew puts his own there.
 *
 * Nobody sends a descriptor to a connection before hvdd has let them in: where the kernel cannot refuse them, base/discard.h.
 *
 * A listening socket that cannot be accepted from (out of descriptors) stays readable, so the event loop would spin:
 * accepting pauses for 100 ms then, and the log gets one line a second. */
#include "daemon/node/node.h"

#include "base/status.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define ACCEPTS_PER_WAKE 32
#define HELLOS_NS        (500 * (int64_t)HVI_NS_MS) /* twice RETRY_NS of daemon/engine/link.c */
#define HELLOS_BACKLOG   1024
#define PAUSE_US         100000
#define SLACK_US         1000 /* 0 would mean 250 ms to sd-event */

int node_listen_bind(const char *path, int type, mode_t mode)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const char *step = "make";
    mode_t mask;
    int fd, failed;

    if (strlen(path) >= sizeof(address.sun_path)) {
        HVI_LOG(HVI_LOG_ERROR, "listen", "path-too-long",
                "the socket's path is longer than the kernel takes", "path=%s longest=%zu", path,
                sizeof(address.sun_path) - 1);
        return -1;
    }
    strcpy(address.sun_path, path);
    fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        goto failed;
    step = "remove";
    if (unlink(path) != 0 && errno != ENOENT)
        goto failed;
    step = "bind";
    mask = umask(0777 & ~mode);
    failed = bind(fd, (struct sockaddr *)&address, sizeof(address));
    umask(mask);
    if (failed != 0)
        goto failed;
    step = "listen on";
    if (listen(fd, HVI_PACE_BACKLOG) != 0)
        goto failed;
    return fd;
failed:
    HVI_LOG(HVI_LOG_ERROR, "listen", "no-socket", "cannot set up a socket",
            "step=\"%s\" path=%s error=\"%s\"", step, path, strerror(errno));
    if (fd >= 0)
        close(fd);
    return -1;
}

static int accept_again(sd_event_source *source, uint64_t usec, void *user)
{
    struct node_acceptor *acceptor = user;

    (void)source, (void)usec;
    acceptor->again = sd_event_source_disable_unref(acceptor->again);
    sd_event_source_set_enabled(acceptor->io, SD_EVENT_ON);
    return 0;
}

static void rest(struct node_acceptor *acceptor, uint64_t usec)
{
    if (acceptor->again == NULL &&
        sd_event_add_time_relative(acceptor->node->event, &acceptor->again, CLOCK_MONOTONIC, usec,
                                   SLACK_US, accept_again, acceptor) >= 0)
        sd_event_source_set_enabled(acceptor->io, SD_EVENT_OFF);
}

static void pause_accepting(struct node_acceptor *acceptor, int error)
{
    uint64_t now = hvi_clock_ns();

    if (acceptor->logged_ns == 0 || now - acceptor->logged_ns >= HVI_NS_SEC) {
        acceptor->logged_ns = now;
        HVI_LOG(
            HVI_LOG_WARN, "listen", "cannot-accept",
            "a connection waits because it cannot be accepted; raise LimitNOFILE= if this goes on",
            "error=\"%s\"", strerror(error));
    }
    rest(acceptor, PAUSE_US);
}

static int on_readable(sd_event_source *source, int fd, uint32_t events, void *user)
{
    struct node_acceptor *acceptor = user;

    (void)source, (void)events;
    for (int i = 0; i < ACCEPTS_PER_WAKE; i++) {
        int peer = accept4(fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (peer >= 0) {
            acceptor->take(acceptor->node, peer);
            if (acceptor->node->private_mode || !hvi_pace_accepted(&acceptor->pace, hvi_clock_ns()))
                continue;
            rest(acceptor, HVI_PACE_REST_NS / 1000);
            break;
        }
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
            pause_accepting(acceptor, errno);
        else if (hvi_pace_empty(&acceptor->pace))
            rest(acceptor, HVI_PACE_REST_NS / 1000);
        break;
    }
    return 0;
}

int node_acceptor_open(struct node_acceptor *acceptor, struct node *node, int fd,
                       void (*take)(struct node *node, int fd))
{
    int r;

    acceptor->node = node;
    acceptor->take = take;
    r = sd_event_add_io(node->event, &acceptor->io, fd, EPOLLIN, on_readable, acceptor);
    if (r >= 0)
        return HVI_OK;
    HVI_LOG(HVI_LOG_ERROR, "listen", "no-event", "cannot watch a socket", "error=\"%s\"",
            strerror(-r));
    return HVI_ERR_DAEMON;
}

void node_acceptor_close(struct node_acceptor *acceptor)
{
    acceptor->io = sd_event_source_disable_unref(acceptor->io);
    acceptor->again = sd_event_source_disable_unref(acceptor->again);
}

bool node_listen_peer(int fd, struct node_peer *peer_p)
{
    struct ucred credentials;
    socklen_t size = sizeof(credentials);

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0)
        return false;
    *peer_p =
        (struct node_peer){.pid = credentials.pid, .uid = credentials.uid, .gid = credentials.gid};
    return true;
}

bool node_listen_peer_is_service(int fd)
{
    gid_t group;
    socklen_t size = sizeof(group);

    return getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, &group, &size) == 0 && size == sizeof(group) &&
           group == getegid() && group != 0;
}

static int on_hellos_over(sd_event_source *source, uint64_t usec, void *user)
{
    struct node *node = user;

    (void)source, (void)usec;
    node->hellos_over = sd_event_source_disable_unref(node->hellos_over);
    hvi_packet_let_fds(node->attach_fd, false);
    if (!node->attach_inherited)
        listen(node->attach_fd, HVI_PACE_BACKLOG);
    return 0;
}

/* The hvdd before us was killed: ranks that find no engine are held (attach.c) until its engines had time to say hello. Those of
 * an older version send a descriptor right after it, so until then all are let in (base/discard.h). */
static void await_hellos(struct node *node)
{
    node->hellos_until_ns = hvi_deadline_after(HELLOS_NS);
    if (sd_event_add_time_relative(node->event, &node->hellos_over, CLOCK_MONOTONIC,
                                   hvi_deadline_left(node->hellos_until_ns) / 1000, SLACK_US,
                                   on_hellos_over, node) < 0)
        return;
    hvi_packet_let_fds(node->attach_fd, true);
    if (!node->attach_inherited)
        listen(node->attach_fd, HELLOS_BACKLOG);
}

int node_listen_open(struct node *node)
{
    if (node->attach_fd < 0) {
        if (!node_rundir_socket_path(&node->rundir, "attach.sock", node->attach_path,
                                     sizeof(node->attach_path))) {
            HVI_LOG(HVI_LOG_ERROR, "listen", "path-too-long",
                    "the runtime directory's path is too long for a socket; use a shorter "
                    "--runtime-dir",
                    "dir=%s", node->rundir.path);
            return HVI_ERR_INVALID;
        }
        node->attach_fd =
            node_listen_bind(node->attach_path, SOCK_SEQPACKET, node->private_mode ? 0600 : 0666);
        if (node->attach_fd < 0)
            return HVI_ERR_DAEMON;
    }
    hvi_packet_let_fds(node->attach_fd, false);
    if (node->rundir.left)
        await_hellos(node);
    return node_acceptor_open(&node->attach_acceptor, node, node->attach_fd, node_attach_accept);
}

/* Those who have connected already get an answer. Who comes to a socket unit's socket is the next
 * hvdd's. */
static void answer_backlog(struct node *node)
{
    int peer;

    while ((peer = accept4(node->attach_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0)
        node_attach_accept(node, peer);
}

void node_listen_close(struct node *node)
{
    node_acceptor_close(&node->attach_acceptor);
    node->hellos_over = sd_event_source_disable_unref(node->hellos_over);
    if (node->attach_fd < 0)
        return;
    if (!node->attach_inherited) {
        unlink(node->attach_path);
        answer_backlog(node);
    }
    hvi_packet_let_fds(node->attach_fd, true); /* the next hvdd may be an older one, which cannot */
    close(node->attach_fd);
    node->attach_fd = -1;
}
