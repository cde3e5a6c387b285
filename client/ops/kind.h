/* SPDX-License-Identifier: Apache-2.0
 * What the kinds of ops differ in. `kind` is an HVI_KIND_*. */
#ifndef HVD_CLIENT_KIND_H
#define HVD_CLIENT_KIND_H

#include "base/types.h"

#include <stdbool.h>
#include <stdint.h>

/* Only the engine knows how many rows the result has. */
static inline bool client_kind_sizes_late(uint8_t kind)
{
    return kind == HVI_KIND_ALLGATHER || kind == HVI_KIND_ALLTOALL ||
           kind == HVI_KIND_REDUCESCATTER; /* of which some members may have joined */
}

/* Addition or opening of a set. */
static inline bool client_kind_makes_set(uint8_t kind)
{
    return kind == HVI_KIND_SET_ADD || kind == HVI_KIND_SET_OPEN;
}

/* Removal or closing of one. */
static inline bool client_kind_ends_set(uint8_t kind)
{
    return kind == HVI_KIND_SET_REMOVE || kind == HVI_KIND_SET_CLOSE;
}

#endif
