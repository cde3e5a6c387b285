/* SPDX-License-Identifier: Apache-2.0
 * `hvdctl timeline`: opens the file with the rights of who asks and hands it to the job's engine.
 * The admin socket carries no descriptors, so this one request goes over hvdd's attach socket. */
#include "base/clock.h"
#include "base/listener.h"
#include "base/status.h"
#include "base/utf8.h"
#include "proto/packet.h"
#include "tools/hvdctl/ctl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static int connect_hvdd(const char *dir, uint64_t deadline_ns)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const size_t room = sizeof address.sun_path;
    if ((size_t)snprintf(address.sun_path, room, "%s/attach.sock", dir) >= room)
        return -1;
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    uid_t uid;
    int error = hvi_listener_connect(fd, &address, deadline_ns);
    if (error == 0 && !hvi_listener_may_serve(fd, dir, &uid))
        error = EPERM;
    if (error != 0) {
        close(fd);
        errno = error;
        return -1;
    }
    return fd;
}

/* HVI_OK with hvdd's verdict in *status_p and text_p. */
static int receive(int socket_fd, uint64_t deadline_ns, int *status_p, char *text_p, size_t size)
{
    struct hvi_packet *packet = malloc(sizeof *packet);
    struct hvi_packet_msg msg;
    if (packet == NULL)
        return HVI_ERR_NO_MEMORY;
    int status = hvi_packet_receive(socket_fd, packet, deadline_ns);
    if (status == HVI_OK) {
        hvi_packet_close_fds(packet);
        status = hvi_packet_msg_decode(packet->bytes, packet->length, &msg, NULL, 0);
    }
    free(packet);
    if (status != HVI_OK)
        return status;
    if (msg.kind == HVI_PACKET_ACK) {
        *status_p = msg.ack.status;
        snprintf(text_p, size, "%s", msg.ack.text);
    } else if (msg.kind == HVI_PACKET_ATTACH_REPLY) { /* hvdd is going, or full */
        *status_p = msg.attach_reply.status;
        snprintf(text_p, size, "%s", msg.attach_reply.text);
    } else {
        status = HVI_ERR_PROTOCOL;
    }
    hvi_packet_msg_free(&msg);
    return status;
}

static int exchange(int socket_fd, const struct hvi_packet_msg *msg, int fd, uint64_t deadline_ns,
                    int *status_p, char *text_p, size_t size)
{
    unsigned char bytes[1024];
    size_t length = 0;
    int status = hvi_packet_msg_encode(msg, bytes, sizeof bytes, &length);
    if (status == HVI_OK)
        status = hvi_packet_send(socket_fd, bytes, length, &fd, fd >= 0 ? 1 : 0, deadline_ns);
    return status == HVI_OK ? receive(socket_fd, deadline_ns, status_p, text_p, size) : status;
}

/* A file goes along when hvdd has looked at the request without it and asks for it. */
static int request(int socket_fd, const struct hvi_packet_msg *msg, int fd, uint64_t deadline_ns,
                   int *status_p, char *text_p, size_t size)
{
    int status = exchange(socket_fd, msg, -1, deadline_ns, status_p, text_p, size);
    if (status != HVI_OK || fd < 0)
        return status;
    if (*status_p == HVI_OK)
        return HVI_ERR_PROTOCOL;
    if (*status_p == HVI_INPROGRESS)
        status = exchange(socket_fd, msg, fd, deadline_ns, status_p, text_p, size);
    return status;
}

/* An older hvdd wants the file with the request. */
static int request_of_old(const char *dir, const struct hvi_packet_msg *msg, int fd,
                          uint64_t deadline_ns, int *status_p, char *text_p, size_t size)
{
    const int socket_fd = connect_hvdd(dir, deadline_ns);
    if (socket_fd < 0)
        return HVI_ERR_CLOSED;
    const int status = exchange(socket_fd, msg, fd, deadline_ns, status_p, text_p, size);
    close(socket_fd);
    return status;
}

static const char *explain(int error)
{
    switch (error) {
    case EPERM:
        return "what listens there is another user's, so not trusted";
    case EAGAIN:
        return "its queue of connections stays full; wait longer with --timeout";
    default:
        return strerror(error);
    }
}

static int ask_hvdd(const struct ctl *ctl, const struct hvi_packet_msg *msg, int fd)
{
    struct hvd_admin_place place;
    char text[HVI_TEXT_MAX + 1] = "";
    int verdict = HVI_OK;
    if (hvd_admin_find(ctl->address, &place) == HVI_ERR_INVALID) {
        ctl_complain(ctl, HVI_ERR_INVALID, "%s", hvd_admin_last_error());
        return CTL_USAGE;
    }
    const uint64_t deadline_ns = hvi_deadline_after((int64_t)ctl->timeout_ns);
    const int socket_fd = connect_hvdd(place.dir, deadline_ns);
    if (socket_fd < 0) {
        ctl_complain(ctl, HVI_ERR_NO_DAEMON, "no hvdd answers in %s: %s", place.dir,
                     explain(errno));
        return CTL_NO_DAEMON;
    }
    int status = request(socket_fd, msg, fd, deadline_ns, &verdict, text, sizeof text);
    close(socket_fd);
    if (status == HVI_OK && verdict == HVI_ERR_PROTOCOL && fd >= 0)
        status = request_of_old(place.dir, msg, fd, deadline_ns, &verdict, text, sizeof text);
    if (status != HVI_OK) {
        ctl_complain(ctl, status, "the hvdd in %s did not answer: %s", place.dir,
                     hvi_status_text(status));
        return status == HVI_ERR_TIMEOUT || status == HVI_ERR_CLOSED ? CTL_NO_DAEMON : CTL_REFUSED;
    }
    if (verdict != HVI_OK) {
        ctl_complain(ctl, verdict, "%s", text[0] != '\0' ? text : hvi_status_text(verdict));
        return CTL_REFUSED;
    }
    return CTL_OK;
}

static int done(const struct ctl *ctl, const char *job, const char *what, const char *path)
{
    char text[1024];
    snprintf(text, sizeof text, "the timeline of job %s %s%s%.600s", job, what,
             path[0] != '\0' ? " in " : "", path);
    ctl_done(ctl, text);
    return CTL_OK;
}

static int start(const struct ctl *ctl, struct hvi_packet_msg *msg, const char *path)
{
    const size_t kept = hvi_utf8_cut(path, strlen(path), sizeof msg->timeline_request.path - 1);
    /* Not blocking: a FIFO nobody reads is an error and not a wait. */
    const int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0666);
    if (fd < 0) {
        ctl_complain(ctl, HVI_ERR_INVALID, "cannot open %s: %s", path, strerror(errno));
        return CTL_REFUSED;
    }
    msg->timeline_request.start = true;
    msg->timeline_request.mark_cycles = ctl->mark_cycles;
    if (hvi_utf8_valid(path, kept))
        memcpy(msg->timeline_request.path, path, kept);
    const int code = ask_hvdd(ctl, msg, fd);
    close(fd);
    return code;
}

int ctl_timeline(const struct ctl *ctl, char **args, int count)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_TIMELINE_REQUEST};
    struct hvd_admin_request checked;
    const bool starts = count == 3 && strcmp(args[1], "start") == 0;
    const bool stops = count == 2 && strcmp(args[1], "stop") == 0;
    if (!starts && !stops) {
        ctl_complain(ctl, HVI_ERR_INVALID, "usage: hvdctl timeline JOB start FILE, or JOB stop");
        return CTL_USAGE;
    }
    int code = ctl_copy_job(ctl, args[0], &checked);
    if (code != CTL_OK)
        return code;
    msg.timeline_request.protocol_version = HVI_PROTOCOL_VERSION;
    snprintf(msg.timeline_request.job, sizeof msg.timeline_request.job, "%s", args[0]);
    msg.timeline_request.of_owner = ctl->of_owner;
    msg.timeline_request.owner = ctl->owner;
    code = starts ? start(ctl, &msg, args[2]) : ask_hvdd(ctl, &msg, -1);
    if (code != CTL_OK)
        return code;
    return done(ctl, args[0], starts ? "is being written" : "is complete", starts ? args[2] : "");
}
