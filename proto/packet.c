/* SPDX-License-Identifier: Apache-2.0
 * One message with its descriptors over a UNIX SOCK_SEQPACKET socket.
 *
 * Each call first tries without waiting and polls only when the kernel says "again", so the usual
 * case is one system call. The receiving control buffer has room for as many descriptors as the
 * kernel can send (253): a peer that sends too many is then told apart from a kernel that could
 * not install them, and in both cases every descriptor that did arrive is seen and closed.
 *
 * A peer that closes with a message of ours unread resets the connection: the kernel reports that once
 * before it gives the messages that the peer had sent. Receiving goes on after it, so that the peer's
 * last words are read. */
#include "proto/packet.h"

#include "base/clock.h"
#include "base/status.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define KERNEL_FDS_MAX 253 /* SCM_MAX_FD */

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83 /* Linux 6.16 */
#endif

union send_control {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(HVI_PACKET_FDS_MAX * sizeof(int))];
};

union receive_control {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(KERNEL_FDS_MAX * sizeof(int)) + CMSG_SPACE(sizeof(struct ucred))];
};

static int status_from_errno(int error)
{
    switch (error) {
    case EPIPE:
    case ECONNRESET:
    case ENOTCONN:
    case ECONNREFUSED:
        return HVI_ERR_CLOSED;
    case EMFILE:
    case ENFILE:
    case ETOOMANYREFS:
    case ENOBUFS:
    case ENOMEM:
        return HVI_ERR_LIMIT;
    case EPERM:
        return HVI_ERR_REFUSED;
    default:
        return HVI_ERR_INVALID;
    }
}

/* Waits until the socket is ready for `events`, or broken. HVI_OK or HVI_ERR_TIMEOUT. */
static int wait_ready(int socket_fd, short events, uint64_t deadline_ns)
{
    while (deadline_ns > 0) {
        struct pollfd pollfd = {.fd = socket_fd, .events = events};
        int ready = poll(&pollfd, 1, hvi_deadline_poll_ms(deadline_ns));
        if (ready > 0)
            return HVI_OK;
        if (ready < 0 && errno != EINTR)
            return status_from_errno(errno);
        if (ready == 0 && hvi_deadline_passed(deadline_ns))
            break;
    }
    return HVI_ERR_TIMEOUT;
}

static bool would_block(int error)
{
    return error == EAGAIN || error == EWOULDBLOCK;
}

static void attach_fds(struct msghdr *header, union send_control *control, const int *fds,
                       uint32_t fd_count)
{
    size_t bytes = fd_count * sizeof(int);
    memset(control, 0, sizeof *control);
    header->msg_control = control->bytes;
    header->msg_controllen = CMSG_SPACE(bytes);
    struct cmsghdr *cmsg = CMSG_FIRSTHDR(header);
    cmsg->cmsg_level = SOL_SOCKET;
    cmsg->cmsg_type = SCM_RIGHTS;
    cmsg->cmsg_len = CMSG_LEN(bytes);
    memcpy(CMSG_DATA(cmsg), fds, bytes);
}

int hvi_packet_send(int socket_fd, const void *bytes, size_t length, const int *fds,
                    uint32_t fd_count, uint64_t deadline_ns)
{
    /* An empty message cannot be told from an end of file. */
    if (length == 0 || length > HVI_PACKET_BYTES_MAX || fd_count > HVI_PACKET_FDS_MAX)
        return HVI_ERR_INVALID;
    struct iovec iov = {.iov_len = length};
    memcpy(&iov.iov_base, &bytes, sizeof bytes);
    struct msghdr header = {.msg_iov = &iov, .msg_iovlen = 1};
    union send_control control;
    if (fd_count > 0)
        attach_fds(&header, &control, fds, fd_count);
    for (;;) {
        if (sendmsg(socket_fd, &header, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0)
            return HVI_OK;
        if (errno == EINTR)
            continue;
        if (!would_block(errno))
            return status_from_errno(errno);
        int status = wait_ready(socket_fd, POLLOUT, deadline_ns);
        if (status != HVI_OK)
            return status;
    }
}

void hvi_packet_let_fds(int socket_fd, bool in)
{
    const int on = in;

    (void)setsockopt(socket_fd, SOL_SOCKET, SO_PASSRIGHTS, &on, sizeof on);
}

/* Takes the descriptors of one control message; those that do not fit are closed. */
static bool take_fds(struct hvi_packet *packet, struct cmsghdr *cmsg)
{
    size_t count = (cmsg->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    bool fits = true;
    for (size_t i = 0; i < count; i++) {
        int fd;
        memcpy(&fd, CMSG_DATA(cmsg) + i * sizeof(int), sizeof fd);
        if (packet->fd_count < HVI_PACKET_FDS_MAX) {
            packet->fds[packet->fd_count++] = fd;
        } else {
            close(fd);
            fits = false;
        }
    }
    return fits;
}

static void take_sender(struct hvi_packet *packet, struct cmsghdr *cmsg)
{
    struct ucred sender;

    memcpy(&sender, CMSG_DATA(cmsg), sizeof sender);
    packet->sender_pid = sender.pid;
    packet->sender_uid = sender.uid;
}

static int take_message(struct hvi_packet *packet, struct msghdr *header, size_t length)
{
    bool fits = true;
    for (struct cmsghdr *cmsg = CMSG_FIRSTHDR(header); cmsg; cmsg = CMSG_NXTHDR(header, cmsg)) {
        if (cmsg->cmsg_level == SOL_SOCKET && cmsg->cmsg_type == SCM_RIGHTS)
            fits = take_fds(packet, cmsg) && fits;
        if (cmsg->cmsg_level == SOL_SOCKET && cmsg->cmsg_type == SCM_CREDENTIALS)
            take_sender(packet, cmsg);
    }
    int status = HVI_OK;
    if (length == 0)
        status = HVI_ERR_CLOSED;
    else if (header->msg_flags & MSG_CTRUNC)
        status = HVI_ERR_LIMIT;
    else if ((header->msg_flags & MSG_TRUNC) || !fits)
        status = HVI_ERR_PROTOCOL;
    if (status != HVI_OK) {
        hvi_packet_close_fds(packet);
        return status;
    }
    packet->length = length;
    return HVI_OK;
}

int hvi_packet_receive(int socket_fd, struct hvi_packet *packet_p, uint64_t deadline_ns)
{
    packet_p->length = 0;
    packet_p->fd_count = 0;
    packet_p->sender_pid = 0;
    for (bool reset = false;;) {
        union receive_control control;
        struct iovec iov = {.iov_base = packet_p->bytes, .iov_len = sizeof packet_p->bytes};
        struct msghdr header = {
            .msg_iov = &iov,
            .msg_iovlen = 1,
            .msg_control = control.bytes,
            .msg_controllen = sizeof control.bytes,
        };
        ssize_t length = recvmsg(socket_fd, &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
        if (length >= 0)
            return take_message(packet_p, &header, (size_t)length);
        if (errno == EINTR || (errno == ECONNRESET && !reset)) {
            reset = errno == ECONNRESET;
            continue;
        }
        if (!would_block(errno))
            return status_from_errno(errno);
        int status = wait_ready(socket_fd, POLLIN, deadline_ns);
        if (status != HVI_OK)
            return status;
    }
}

int hvi_packet_peek(int socket_fd, struct hvi_packet *packet_p, bool *has_fds_p)
{
    packet_p->length = 0;
    packet_p->fd_count = 0;
    packet_p->sender_pid = 0;
    *has_fds_p = false;
    for (bool reset = false;;) {
        struct iovec iov = {.iov_base = packet_p->bytes, .iov_len = sizeof packet_p->bytes};
        struct msghdr header = {.msg_iov = &iov, .msg_iovlen = 1};
        ssize_t length = recvmsg(socket_fd, &header, MSG_PEEK | MSG_DONTWAIT);
        if (length < 0 && (errno == EINTR || (errno == ECONNRESET && !reset))) {
            reset = errno == ECONNRESET;
            continue;
        }
        if (length < 0)
            return would_block(errno) ? HVI_ERR_TIMEOUT : status_from_errno(errno);
        *has_fds_p = (header.msg_flags & MSG_CTRUNC) != 0; /* there was no room for any */
        packet_p->length = (size_t)length;
        if (length == 0)
            return *has_fds_p ? HVI_ERR_PROTOCOL : HVI_ERR_CLOSED;
        return (header.msg_flags & MSG_TRUNC) != 0 ? HVI_ERR_PROTOCOL : HVI_OK;
    }
}

void hvi_packet_drop(int socket_fd)
{
    char byte;
    (void)recv(socket_fd, &byte, 1, MSG_DONTWAIT | MSG_TRUNC);
}

void hvi_packet_close_fds(struct hvi_packet *packet)
{
    for (uint32_t i = 0; i < packet->fd_count; i++) {
        if (packet->fds[i] >= 0)
            close(packet->fds[i]);
    }
    packet->fd_count = 0;
}

int hvi_packet_take_fd(struct hvi_packet *packet, uint32_t index)
{
    if (index >= packet->fd_count)
        return -1;
    int fd = packet->fds[index];
    packet->fds[index] = -1;
    return fd;
}
