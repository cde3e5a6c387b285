/* SPDX-License-Identifier: Apache-2.0
 * Shared memory of the process that outlives sessions: hvd_mem_alloc and hvd_mem_free. Any thread. */
#ifndef HVD_CLIENT_PROCESS_MEMORY_H
#define HVD_CLIENT_PROCESS_MEMORY_H

#include "shm/region.h"

#include <stdint.h>

struct client_process_memory;

/* The memory that holds all of [address, address + bytes), held until it is put; NULL: none does, or
 * this is a forked child, where it is not shared. *region_p, with its descriptor, is valid until then. */
struct client_process_memory *client_process_memory_hold(uintptr_t address, uint64_t bytes,
                                                         struct hvi_region *region_p);
void client_process_memory_put(struct client_process_memory *memory);

#endif
