/* SPDX-License-Identifier: Apache-2.0
 * Memory of the process that every session is told of, so that the engine works in it where it is
 * (hvd_mem_alloc). Any thread. */
#ifndef PYTHON_NATIVE_SLAB_H
#define PYTHON_NATIVE_SLAB_H

#include "hvd/hvd.h"

#include <stdbool.h>
#include <stddef.h>

/* At least `bytes` bytes at a multiple of 4096, zeroed; NULL: there are none to be had, use other memory.
 * May wait for the engine. */
void *slab_new(size_t bytes);
/* `base` from slab_new. */
void slab_free(void *base);
/* Whether `data` lies in a slab. Takes no lock. */
bool slab_holds(const void *data);

/* Tells a session, which crew_enter gives already, of what there is. */
void slab_share_all(struct hvd_session *session);
/* That session is closed. */
void slab_unshare_all(void);

#endif
