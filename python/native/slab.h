/* SPDX-License-Identifier: Apache-2.0
 * Memory of the process that every session is told of, so that the engine works in it where it is
 * (hvd_mem_alloc). Any thread. */
#ifndef PYTHON_NATIVE_SLAB_H
#define PYTHON_NATIVE_SLAB_H

#include "hvd/hvd.h"

#include <stdbool.h>
#include <stddef.h>

enum slab_kind {
    SLAB_HEAP, /* a region of TensorFlow's allocator (heap.h) */
    SLAB_POOL, /* results (pool.h) */
};

/* At least `bytes` bytes at a multiple of 4096, zeroed; NULL: there are none to be had, use other memory. Calls
 * neither the engine nor Python, for TensorFlow's allocator holds a lock around this: a session is told of it by
 * slab_share. */
void *slab_new(size_t bytes, enum slab_kind kind);
/* Gives a slab of the heap back, at the latest when the session ends. False: `data` is no such slab's first byte;
 * cheap where it is not in the heap. */
bool slab_free(void *data);
/* Whether `data` lies in the heap. No lock. */
bool slab_is_heap(const void *data);
/* Whether `data` lies in the heap and the present session knows that. No lock. */
bool slab_is_shared_heap(const void *data);

/* Whether there may be something to tell a session. */
bool slab_is_news(void);
/* Tells `session`, which crew_enter gives, of what it does not know yet. Waits for the engine. */
void slab_share(struct hvd_session *session);
/* That session is closed. */
void slab_unshare(void);
/* In a forked child, which has views of its own. */
void slab_forked(void);

#endif
