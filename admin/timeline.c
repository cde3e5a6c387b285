/* SPDX-License-Identifier: Apache-2.0
 * Timelines: opens the file with the rights of who asks and hands it to the job's engine. The admin socket carries no
 * descriptors, so these requests go over hvdd's attach socket, by a connection each. */
#include "admin/api.h"
#include "admin/error.h"
#include "hvd/hvd_admin.h"

#include "base/clock.h"
#include "base/listener.h"
#include "base/status.h"
#include "base/utf8.h"
#include "proto/packet.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

/* A request under way, and hvdd's verdict. */
struct asked {
    const char *dir;
    uint64_t deadline_ns;
    const struct hvi_packet_msg *msg;
    int verdict;
    char text[HVI_TEXT_MAX + 1];
};

/* ---- one connection ---- */

/* A descriptor, or -1 with errno. */
static int connect_hvdd(const struct asked *asked)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const size_t room = sizeof address.sun_path;
    uid_t uid;
    if ((size_t)snprintf(address.sun_path, room, "%s/attach.sock", asked->dir) >= room) {
        errno = ENAMETOOLONG;
        return -1;
    }
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    int error = hvi_listener_connect(fd, &address, asked->deadline_ns);
    if (error == 0 && !hvi_listener_may_serve(fd, asked->dir, &uid))
        error = EPERM;
    if (error != 0) {
        close(fd);
        errno = error;
        return -1;
    }
    return fd;
}

/* HVI_OK: with the verdict. */
static int take_verdict(struct asked *asked, struct hvi_packet_msg *msg)
{
    int status = HVI_OK;
    if (msg->kind == HVI_PACKET_ACK) {
        asked->verdict = msg->ack.status;
        snprintf(asked->text, sizeof asked->text, "%s", msg->ack.text);
    } else if (msg->kind == HVI_PACKET_ATTACH_REPLY) { /* hvdd is going, or full */
        asked->verdict = msg->attach_reply.status;
        snprintf(asked->text, sizeof asked->text, "%s", msg->attach_reply.text);
    } else {
        status = HVI_ERR_PROTOCOL;
    }
    hvi_packet_msg_free(msg);
    return status;
}

static int receive(struct asked *asked, int socket_fd)
{
    struct hvi_packet *packet = malloc(sizeof *packet);
    struct hvi_packet_msg msg;
    if (packet == NULL)
        return HVI_ERR_NO_MEMORY;
    int status = hvi_packet_receive(socket_fd, packet, asked->deadline_ns);
    if (status == HVI_OK) {
        hvi_packet_close_fds(packet);
        status = hvi_packet_msg_decode(packet->bytes, packet->length, &msg, NULL, 0);
    }
    free(packet);
    return status == HVI_OK ? take_verdict(asked, &msg) : status;
}

static int exchange(struct asked *asked, int socket_fd, int fd)
{
    unsigned char bytes[1024];
    size_t length = 0;
    int status = hvi_packet_msg_encode(asked->msg, bytes, sizeof bytes, &length);
    if (status == HVI_OK)
        status =
            hvi_packet_send(socket_fd, bytes, length, &fd, fd >= 0 ? 1 : 0, asked->deadline_ns);
    return status == HVI_OK ? receive(asked, socket_fd) : status;
}

/* A file goes along when hvdd has looked at the request without it and asks for it. */
static int request(struct asked *asked, int socket_fd, int fd)
{
    int status = exchange(asked, socket_fd, -1);
    if (status != HVI_OK)
        return status;
    if (asked->verdict == (fd < 0 ? HVI_INPROGRESS : HVI_OK))
        return HVI_ERR_PROTOCOL;
    if (fd < 0)
        return HVI_OK;
    if (asked->verdict == HVI_INPROGRESS)
        status = exchange(asked, socket_fd, fd);
    return status == HVI_OK && asked->verdict == HVI_INPROGRESS ? HVI_ERR_PROTOCOL : status;
}

/* An older hvdd wants the file with the request. */
static int request_of_old(struct asked *asked, int fd)
{
    const int socket_fd = connect_hvdd(asked);
    if (socket_fd < 0)
        return HVI_ERR_CLOSED;
    const int status = exchange(asked, socket_fd, fd);
    close(socket_fd);
    return status;
}

/* ---- what the caller is told ---- */

static int explain_errno(const struct asked *asked, int error)
{
    switch (error) {
    case EPERM:
        return admin_error(
            HVI_ERR_NO_DAEMON,
            "no hvdd answers in %s: what listens there is another user's, so not trusted",
            asked->dir);
    case EAGAIN:
        return admin_error(
            HVI_ERR_TIMEOUT,
            "no hvdd answers in %s: its queue of connections stays full; wait longer", asked->dir);
    default:
        return admin_error(error == EMFILE || error == ENFILE ? HVI_ERR_LIMIT : HVI_ERR_NO_DAEMON,
                           "no hvdd answers in %s: %s", asked->dir, strerror(error));
    }
}

/* A timeout is the caller's; of another one hvdd has told. */
static int explain(const struct asked *asked, int status)
{
    if (status == HVI_OK && asked->verdict == HVI_OK)
        return HVI_OK;
    if (status == HVI_OK)
        return admin_error(asked->verdict == HVI_ERR_TIMEOUT ? HVI_ERR_DAEMON : asked->verdict,
                           "%s",
                           asked->text[0] != '\0' ? asked->text : hvi_status_text(asked->verdict));
    return admin_error(status == HVI_ERR_CLOSED ? HVI_ERR_NO_DAEMON : status,
                       "the hvdd in %s did not answer: %s", asked->dir, hvi_status_text(status));
}

/* The hvdd may be one whose admin socket is kept for others: its directory is tried all the same. */
static int ask(const char *address, const struct hvi_packet_msg *msg, int fd, int64_t timeout_ns)
{
    struct hvd_admin_place place;
    struct asked asked = {.dir = place.dir, .msg = msg};
    if (hvd_admin_find(address, &place) == HVI_ERR_INVALID)
        return HVI_ERR_INVALID;
    asked.deadline_ns = hvi_deadline_after(timeout_ns);
    const int socket_fd = connect_hvdd(&asked);
    if (socket_fd < 0)
        return explain_errno(&asked, errno);
    int status = request(&asked, socket_fd, fd);
    close(socket_fd);
    if (status == HVI_OK && asked.verdict == HVI_ERR_PROTOCOL && fd >= 0)
        status = request_of_old(&asked, fd);
    return explain(&asked, status);
}

/* ---- hvd_admin.h ---- */

static int prepare(const char *job, int64_t owner, struct hvi_packet_msg *msg_p)
{
    const int status = admin_check_job(job);
    if (status != HVI_OK)
        return status;
    *msg_p = (struct hvi_packet_msg){.kind = HVI_PACKET_TIMELINE_REQUEST};
    msg_p->timeline_request.protocol_version = HVI_PROTOCOL_VERSION;
    msg_p->timeline_request.of_owner = owner >= 0;
    msg_p->timeline_request.owner = owner >= 0 ? (uint32_t)owner : 0;
    snprintf(msg_p->timeline_request.job, sizeof msg_p->timeline_request.job, "%s", job);
    return HVI_OK;
}

/* The engine's log and its refusals show the path, as far as it is text and fits. */
static void put_path(struct hvi_packet_msg *msg, const char *path)
{
    const size_t kept = hvi_utf8_cut(path, strlen(path), sizeof msg->timeline_request.path - 1);
    if (hvi_utf8_valid(path, kept))
        memcpy(msg->timeline_request.path, path, kept);
}

/* Not blocking: a FIFO nobody reads is an error and not a wait. *made_p: there was none. */
static int open_file(const char *path, bool *made_p)
{
    const int flags = O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
    const int fd = open(path, flags | O_EXCL, 0666);
    *made_p = fd >= 0;
    return fd < 0 && errno == EEXIST ? open(path, flags, 0666) : fd;
}

static bool is_empty(int fd)
{
    struct stat info;
    return fstat(fd, &info) == 0 && info.st_size == 0;
}

int hvd_admin_timeline_start(const char *address, const char *job, int64_t owner, const char *path,
                             int mark_cycles, int64_t timeout_ns)
{
    struct hvi_packet_msg msg;
    int status = prepare(job, owner, &msg);
    if (status != HVI_OK)
        return status;
    if (path == NULL || path[0] == '\0')
        return admin_error(HVI_ERR_INVALID, "the path of the timeline is %s",
                           path == NULL ? "NULL" : "empty");
    bool made;
    const int fd = open_file(path, &made);
    if (fd < 0)
        return admin_error(HVI_ERR_INVALID, "cannot open %.800s: %s", path, strerror(errno));
    msg.timeline_request.start = true;
    msg.timeline_request.mark_cycles = mark_cycles != 0;
    put_path(&msg, path);
    status = ask(address, &msg, fd, timeout_ns);
    if (made && status != HVI_OK && status != HVI_ERR_TIMEOUT && is_empty(fd))
        unlink(path);
    close(fd);
    return status;
}

int hvd_admin_timeline_stop(const char *address, const char *job, int64_t owner, int64_t timeout_ns)
{
    struct hvi_packet_msg msg;
    const int status = prepare(job, owner, &msg);
    return status == HVI_OK ? ask(address, &msg, -1, timeout_ns) : status;
}
