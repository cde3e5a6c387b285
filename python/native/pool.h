/* SPDX-License-Identifier: Apache-2.0
 * Memory for results: shared with the engine, which then writes them where TensorFlow reads them.
 *
 * Slabs of ours are adopted (hvd_adopt), so a tensor outlives the session in which it was made: hvd_close makes
 * them private memory again, contents kept. What TensorFlow gives back is used again; a step of training
 * allocates nothing after the first. */
#ifndef PYTHON_NATIVE_POOL_H
#define PYTHON_NATIVE_POOL_H

#include "hvd/hvd.h"

#include <stddef.h>

/* Smaller results are not worth a place here: they are copied with the op. */
#define POOL_BYTES_MIN ((size_t)32 * 1024)

/* Shares what there is with a session that was opened just now. */
void pool_share(struct hvd_session *session);

/* At least `bytes` bytes at a multiple of 4096; NULL: there are none to be had, use other memory. Inside
 * the session. */
void *pool_take(struct hvd_session *session, size_t bytes);
/* Any thread, any time. `bytes` as taken. */
void pool_give(void *data, size_t bytes);

#endif
