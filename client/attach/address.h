/* SPDX-License-Identifier: Apache-2.0
 * Finding the node's hvdd: from the argument or HVD_ADDRESS; for a job of several nodes by HVD_RENDEZVOUS;
 * else where one listens, else by starting a private one. */
#ifndef HVD_CLIENT_ADDRESS_H
#define HVD_CLIENT_ADDRESS_H

#include "proto/wire.h"

#include <stdbool.h>
#include <stdint.h>

struct client_address {
    char directory[HVI_WIRE_PATH];
    int socket_fd;   /* connected, close-on-exec */
    bool is_default; /* no directory was named: a daemon that just ends may be replaced by a new
                        one */
    bool is_service; /* it serves all users */
    bool started;    /* by this call */
};

/* `wanted` NULL: not given by the caller. `spans`: the job is on several nodes. HVD_ERR_NO_DAEMON, HVD_ERR_REFUSED (no permission, or
 * another user listens there), HVD_ERR_ATTACH_TIMEOUT, HVD_ERR_LIMIT (descriptors), HVD_ERR_INVALID (path too long), with the
 * last error set. */
int client_address_connect(const char *wanted, bool spans, uint64_t deadline_ns,
                           struct client_address *address_p);

#endif
