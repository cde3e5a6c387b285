/* SPDX-License-Identifier: Apache-2.0
 * Memory for results: shared with the engine, which then writes them where TensorFlow reads them.
 *
 * It outlives the session in which it was made, as tensors do (slab.h). What TensorFlow gives back is used
 * again; a step of training allocates nothing after the first. */
#ifndef PYTHON_NATIVE_POOL_H
#define PYTHON_NATIVE_POOL_H

#include <stddef.h>

/* Smaller results are not worth a place here: they are copied with the op. */
#define POOL_BYTES_MIN ((size_t)32 * 1024)

/* At least `bytes` bytes at a multiple of 4096; NULL: there are none to be had, use other memory. Any
 * thread. */
void *pool_take(size_t bytes);
/* Any thread, any time. `bytes` as taken. */
void pool_give(void *data, size_t bytes);
/* In a forked child. */
void pool_forked(void);

#endif
