/* SPDX-License-Identifier: Apache-2.0
 * How long the engine has been given. A process that stood still for a minute, because a signal stopped
 * it or a host its virtual machine, learns nothing about the engine from that minute: each look
 * counts for a step at most. */
#ifndef HVD_CLIENT_PATIENCE_H
#define HVD_CLIENT_PATIENCE_H

#include "base/clock.h"

#include <stdbool.h>
#include <stdint.h>

#define CLIENT_PATIENCE_STEP_NS (100 * HVI_NS_MS)

struct client_patience {
    uint64_t looked_ns, given_ns, limit_ns;
};

static inline struct client_patience client_patience_of(uint64_t limit_ns)
{
    return (struct client_patience){.looked_ns = hvi_clock_ns(), .limit_ns = limit_ns};
}

/* Looks. */
static inline bool client_patience_is_over(struct client_patience *patience)
{
    uint64_t now_ns = hvi_clock_ns();
    uint64_t step_ns = now_ns - patience->looked_ns;
    patience->looked_ns = now_ns;
    patience->given_ns += step_ns < CLIENT_PATIENCE_STEP_NS ? step_ns : CLIENT_PATIENCE_STEP_NS;
    return patience->given_ns >= patience->limit_ns;
}

#endif
