/* SPDX-License-Identifier: Apache-2.0
 * Shared memory of the process that outlives sessions: hvd_mem_alloc and hvd_mem_free. Any thread. */
#ifndef HVD_CLIENT_LASTING_H
#define HVD_CLIENT_LASTING_H

#include "shm/region.h"

#include <stdint.h>

struct client_lasting;

/* The memory that holds all of [address, address + bytes), held until it is put; NULL: none does, or
 * this is a forked child, where it is not shared. */
struct client_lasting *client_lasting_hold(uintptr_t address, uint64_t bytes);
void client_lasting_put(struct client_lasting *lasting);
/* Valid while it is held, and its descriptor with it. */
const struct hvi_region *client_lasting_region(const struct client_lasting *lasting);

#endif
