/* SPDX-License-Identifier: Apache-2.0
 * Large ordinary memory that comes again: a trainer's gradients lie where they lay a step ago. The
 * second time a range is seen its pages are made huge in place (MADV_COLLAPSE, Linux 6.1): contents
 * and addresses stay, and the kernel then moves it three times faster for the engine
 * (process_vm_readv looks up every page). Not when the administrator has set transparent huge pages
 * to "never", nor with HVD_HUGE_PAGES=0. Needs the session's lock. */
#ifndef HVD_CLIENT_HUGE_PAGES_H
#define HVD_CLIENT_HUGE_PAGES_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#define CLIENT_HUGE_RANGES    512u /* ranges that are remembered; a power of two */
#define CLIENT_HUGE_MIN_BYTES (256ull * 1024)

struct client_huge_range {
    uintptr_t base;
    uint64_t bytes;
    uint32_t times; /* seen */
    bool huge;      /* most of it was on huge pages when last tried */
};

struct client_huge_pages {
    struct client_huge_range *rows; /* NULL until the first one; by a hash of the base */
};

/* The memory is about to be used once more. True when most of it is on huge pages. Gives `mutex` up
 * while the kernel moves pages (about a millisecond per 4 MiB): the first time for lazy memory, and now
 * and then to make pages huge. `lazy`: its pages may be missing yet; the first time they are brought, so
 * that they are this process's and not the one's that writes the result. */
bool client_huge_pages_note(struct client_huge_pages *pages, pthread_mutex_t *mutex,
                            const void *data, uint64_t bytes, bool lazy);
void client_huge_pages_fini(struct client_huge_pages *pages);
/* Whether this machine and its settings allow it. Any thread. */
bool client_huge_pages_possible(void);
/* Puts the range on huge pages, as far as they fit into its mapping. True when that worked for at
 * least half of it. No lock needed. */
bool client_huge_pages_collapse(const void *data, uint64_t bytes);

#endif
