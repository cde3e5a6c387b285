/* SPDX-License-Identifier: Apache-2.0
 * Shared pages of this process in a child that it forks: there they become a private view of the same
 * file, so that the child cannot write into its parent's tensors. What the child has not written shows
 * what the parent has there now.
 *
 * Any thread. A row must not move while it is on the list. */
#ifndef HVD_CLIENT_FORKED_H
#define HVD_CLIENT_FORKED_H

#include "client/memory/mapping.h"
#include "shm/region.h"

#include <stdbool.h>

struct client_forked {
    struct client_range range; /* where the file is mapped, from its beginning */
    uintptr_t last; /* where another mapping of it begins within the range; range.end: nowhere */
    struct client_memfd memfd; /* whatever else lies there by then is left alone */
    bool ours;                 /* only we unmap it: nothing else can lie there */
    int fd; /* of the file; stays open while the row is on the list; -1: not on it, in a child */
    struct client_forked *next;
};

/* No thread forks between the two, and no list changes: for what must not be seen half done. */
void client_forked_lock(void);
void client_forked_unlock(void);
/* With the lock. */
void client_forked_add(struct client_forked *row);
void client_forked_remove(struct client_forked *row);

/* Whether the row's pages but the last are still there: they may have been unmapped behind our back, and
 * something else may lie there now. Without the lock. */
bool client_forked_is_intact(const struct client_forked *row);
/* A region of `bytes` for the row, which gets its file: ".memfd" and ".fd". `lazy` as in
 * hvi_region_create_lazy. Errors as there, with the last error set for the public function `what`. */
int client_forked_create(const char *what, const char *label, uint64_t bytes, bool lazy,
                         struct client_forked *row, struct hvi_region *region_p);

#endif
