/* SPDX-License-Identifier: Apache-2.0
 * The names of ops of which only some members are part (partial.c): from ranks and tags. Any thread. */
#ifndef ENGINE_ORDER_PARTIAL_NAME_H
#define ENGINE_ORDER_PARTIAL_NAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* SEND and RECV: ranks. RECV: from -1, any. */
struct engine_pair {
    int32_t from, to;
};

/* SEND, RECV, SET_OPEN. */
bool engine_partial_is(uint16_t kind);
/* "0-to-1.tag-5", "any-to-1.tag-5"; SET_OPEN, which has no pair: "tag-5". */
void engine_partial_name(uint16_t kind, struct engine_pair pair, uint64_t tag, char *name_p,
                         size_t size);

#endif
