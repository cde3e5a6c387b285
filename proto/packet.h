/* SPDX-License-Identifier: Apache-2.0
 * One message with its descriptors over a UNIX SOCK_SEQPACKET socket. Descriptors arrive
 * close-on-exec; a truncated message or truncated descriptors are an error and whatever arrived is
 * closed. On a socket with SO_PASSCRED the kernel says who has sent it. Any thread; one per direction. */
#ifndef HVI_PROTO_PACKET_H
#define HVI_PROTO_PACKET_H

#include "proto/wire.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct hvi_packet {
    unsigned char bytes[HVI_PACKET_BYTES_MAX];
    size_t length;
    int fds[HVI_PACKET_FDS_MAX];
    uint32_t fd_count;
    int32_t sender_pid; /* 0: not told, or outside this pid namespace */
    uint32_t sender_uid;
};

/* Sends; fds stay the caller's. Waits for room until `deadline_ns` (monotonic; 0: do not wait).
 * HVI_OK, HVI_ERR_TIMEOUT, HVI_ERR_CLOSED (the peer is gone), HVI_ERR_INVALID (too long),
 * HVI_ERR_LIMIT (EMFILE and friends), HVI_ERR_REFUSED (no descriptors are let in). Never raises SIGPIPE. */
int hvi_packet_send(int socket_fd, const void *bytes, size_t length, const int *fds,
                    uint32_t fd_count, uint64_t deadline_ns);
/* Whether descriptors may be sent to this socket, or to those that will be accepted from it (SO_PASSRIGHTS, Linux 6.16).
 * Where not, the sender gets HVI_ERR_REFUSED and nothing is on its way. An older kernel lets all through. */
void hvi_packet_let_fds(int socket_fd, bool in);
/* Receives one message. HVI_OK, HVI_ERR_TIMEOUT, HVI_ERR_CLOSED (end of file), HVI_ERR_PROTOCOL
 * (truncated, too many descriptors), HVI_ERR_LIMIT (descriptors could not be installed: out of
 * fds). The caller owns the descriptors. */
int hvi_packet_receive(int socket_fd, struct hvi_packet *packet_p, uint64_t deadline_ns);
/* As hvi_packet_receive without waiting, but the message stays where it is, with its descriptors: none is installed, and
 * *has_fds_p says whether there are any. HVI_ERR_CLOSED also for an empty message without any. */
int hvi_packet_peek(int socket_fd, struct hvi_packet *packet_p, bool *has_fds_p);
/* Takes out the message that hvi_packet_peek has shown. Not one with descriptors: they would be let go of, and what does
 * not close makes its last holder wait. */
void hvi_packet_drop(int socket_fd);
/* Closes the descriptors that are still in the packet. */
void hvi_packet_close_fds(struct hvi_packet *packet);
/* Takes descriptor `index` out of the packet: the caller owns it now. -1 if there is none. */
int hvi_packet_take_fd(struct hvi_packet *packet, uint32_t index);

#endif
