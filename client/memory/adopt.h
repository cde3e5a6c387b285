/* SPDX-License-Identifier: Apache-2.0
 * Adoption: memory of the caller's becomes shared memory where it is, and private again. */
#ifndef HVD_CLIENT_ADOPT_H
#define HVD_CLIENT_ADOPT_H

#include "client/memory/mapping.h"
#include "shm/region.h"

#include <stdbool.h>

struct client_forked;

/* The pages of [ptr, ptr + bytes) that can be adopted: those wholly inside, or all pages of the
 * allocation when malloc mapped it for this alone. HVD_ERR_INVALID with the last error set. Reads
 * /proc/self/maps. */
int client_adopt_choose(const void *ptr, uint64_t bytes, struct client_range *range_p);

/* A region with the contents of `range`; nothing is replaced yet. HVD_ERR_NO_MEMORY, _LIMIT with the
 * last error set. */
int client_adopt_prepare(struct client_range range, struct hvi_region *region_p,
                         struct client_forked **adoption_p);
/* Puts the region in the place of the range: all of it, or nothing and HVD_ERR_NO_MEMORY. */
int client_adopt_replace(struct client_forked *adoption, struct hvi_region *region);
/* Fills the page tables of a range that was replaced, so that its user does not pay a fault for each
 * page. A wish; without any lock, for it takes 0.1 ms per MiB. */
void client_adopt_touch(struct client_range range);
/* Undoes client_adopt_prepare; harmless if that has failed. */
void client_adopt_cancel(struct client_forked *adoption, struct hvi_region *region);

/* What is left of the adopted pages becomes private memory with the same contents. Frees
 * `adoption`; if there is no memory for the copy (false) they stay as they are, and the process
 * keeps a descriptor. */
bool client_adopt_end(struct client_forked *adoption);

#endif
