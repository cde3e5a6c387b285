/* SPDX-License-Identifier: Apache-2.0
 * Programs of hvdd that systemd starts, one for each connection that hvdd makes to a socket unit. hvdd
 * did not make that process, and the kernel names systemd as the peer of the connection. So the program
 * says first what it is, and the kernel adds who it is. A program that hvdd starts itself says nothing.
 * Any thread. */
#ifndef HVI_PROTO_STARTED_H
#define HVI_PROTO_STARTED_H

#include "proto/packet.h"

#include <stdbool.h>
#include <stddef.h>

/* Does nothing where systemd has not started this process. HVI_OK; HVI_ERR_REFUSED: the connection is
 * not one of this user's hvdd; else as hvi_packet_send: hvdd has gone. */
int hvi_started_tell(int socket_fd, const char *program);
/* For hvdd: whether `packet` is what that program, of the same version and user, says first. False with
 * the reason. */
bool hvi_started_check(const struct hvi_packet *packet, const char *program, char *text_p,
                       size_t text_size);

#endif
