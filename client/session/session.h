/* SPDX-License-Identifier: Apache-2.0
 * The whole of a session. Everything in it but .link's fixed part needs the link's lock. */
#ifndef HVD_CLIENT_SESSION_H
#define HVD_CLIENT_SESSION_H

#include "client/complete/complete.h"
#include "client/link/link.h"
#include "client/link/ring.h"
#include "client/memory/memory.h"
#include "client/ops/ops.h"
#include "client/slots/slots.h"

#include <stdbool.h>
#include <stdint.h>

struct hvd_session {
    struct client_link link;
    struct client_memory memory;
    struct client_ops ops;
    struct client_slots slots;
    struct client_complete complete;

    /* Fixed at open. */
    struct hvi_wait_policy policy;

    /* Submission. */
    struct client_ring ring;
    uint32_t last_group;

    /* Completion. */
    bool slots_left; /* then, ops stood in slots, and may still */
};

#endif
