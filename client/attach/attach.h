/* SPDX-License-Identifier: Apache-2.0
 * The attach: what hvd_open says to hvdd, and the answer. */
#ifndef HVD_CLIENT_ATTACH_H
#define HVD_CLIENT_ATTACH_H

#include "hvd/hvd.h"
#include "proto/packet.h"

/* Descriptors of a good reply: channel, bell page, engine's and client's event. The slots' may follow. */
#define CLIENT_ATTACH_FDS 4u

#define CLIENT_UNSENT_BYTES 512u

struct client_address;
struct client_identity;

/* What the engine says of itself, and what it was not told. */
struct client_attached {
    int engine_pid;
    bool takes_fabric; /* memory of devices by fabric handles */
    /* "NCCL_A, NCCL_B, and 2 more": variables of NCCL that this process has and the request has not. "": none. */
    char unsent[CLIENT_UNSENT_BYTES];
};

/* Connects, sends the AttachRequest and receives the reply within options->timeout_ns. On success the
 * packet has the reply's descriptors, and the caller owns address_p->socket_fd. Errors as
 * client_address_connect's, hvdd's own, HVD_ERR_VERSION or HVD_ERR_PROTOCOL, with the last error set. */
int client_attach(const struct hvd_options *options, const struct client_identity *identity,
                  struct hvi_packet *packet, struct client_address *address_p,
                  struct client_attached *attached_p);

#endif
