/* SPDX-License-Identifier: Apache-2.0
 * The whole of a session. Everything in it but .link's fixed part needs the link's lock. */
#ifndef HVD_CLIENT_SESSION_H
#define HVD_CLIENT_SESSION_H

#include "client/link/link.h"
#include "client/link/ring.h"
#include "client/memory/memory.h"
#include "client/ops/ops.h"
#include "reduce/reduce.h"
#include "shm/express.h"

#include <stdbool.h>
#include <stdint.h>

struct hvd_session {
    struct client_link link;
    struct client_memory memory;
    struct client_ops ops;

    /* Fixed at open. */
    struct hvi_wait_policy policy;
    bool express_on;
    struct hvi_express express;
    struct hvi_wait_policy express_policy; /* between ranks: the engine needs no core */
    const struct hvi_kernels *kernels;

    /* Submission. */
    struct client_ring ring;
    uint32_t last_group;
    bool express_prompt; /* the last large op was waited for at once: so will the next be */

    /* Completion. */
    uint64_t complete_seq;
    uint64_t express_called_ns; /* when the engine was told last that somebody polls */
    bool slots_left;            /* then, ops stood in slots, and may still */
};

#endif
