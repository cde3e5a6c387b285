/* SPDX-License-Identifier: Apache-2.0
 * Programs that systemd starts for hvdd, each for a connection to the socket of its unit. Main thread;
 * nothing here logs. */
#ifndef HVD_NODE_UNIT_H
#define HVD_NODE_UNIT_H

#include "proto/packet.h"

#include <stddef.h>

/* Connects to the socket of a unit, which starts the program. The connection, or -1 with errno. */
int node_unit_connect(const char *path);
/* The first message over `fd`: the pidfd of the program, whose pid is the packet's sender; -1 with a
 * sentence. */
int node_unit_meet(const struct hvi_packet *packet, int fd, const char *program, char *text_p,
                   size_t text_size);

#endif
