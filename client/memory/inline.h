/* SPDX-License-Identifier: Apache-2.0
 * Cells of the channel's inline area, for small payloads of ordinary memory. A bit per cell; a run
 * of cells never crosses a 64-bit word, so that taking one is a few instructions. Needs the
 * session's lock. */
#ifndef HVD_CLIENT_INLINE_H
#define HVD_CLIENT_INLINE_H

#include "shm/abi.h"

#include <stdbool.h>
#include <stdint.h>

#define CLIENT_INLINE_MAX   4096u /* bytes of the largest payload that goes inline */
#define CLIENT_INLINE_WORDS (HVI_INLINE_BYTES / HVI_INLINE_CELL / 64u)

struct client_inline {
    uint64_t used[CLIENT_INLINE_WORDS];
    uint32_t next; /* word to look at first */
};

/* Takes enough cells for `bytes` (1..CLIENT_INLINE_MAX). False when there is no such run. */
bool client_inline_take(struct client_inline *area, uint64_t bytes, uint32_t *cell_p,
                        uint32_t *cells_p);
void client_inline_put(struct client_inline *area, uint32_t cell, uint32_t cells);

#endif
