/* SPDX-License-Identifier: Apache-2.0
 * TensorFlow's tensors in memory that the engine shares, from the moment on at which TensorFlow takes that
 * memory from the system. A process does so only when its user asks for it (docs/adr/0014). */
#ifndef PYTHON_NATIVE_HEAP_H
#define PYTHON_NATIVE_HEAP_H

#include "hvd/hvd.h"

#include <stdbool.h>
#include <stddef.h>

/* Why the TensorFlow that is loaded, of that version, cannot share its memory: a sentence's end, which stays valid; NULL: it
 * can. Changes nothing. Any thread. */
HVD_API const char *hvd_tf_heap_obstacle(int major, int minor);

/* From now on the regions that TensorFlow's CPU allocator cuts tensors from are slabs, until the process ends. NULL: done;
 * else nothing has changed, for the reason that is returned, as above. More calls change nothing. Any thread. */
HVD_API const char *hvd_tf_share_heap(int major, int minor);

/* Calls `tell` once in the life of the process, in a thread of TensorFlow's and outside of all locks: when the
 * HEAP_COPIES_TOLD-th gradient of HEAP_COPY_MIN bytes or more was seen to lie in ordinary memory. More calls
 * change who is called. Any thread. */
HVD_API void hvd_tf_tell_of_copies(void (*tell)(void));
#define HEAP_COPY_MIN    ((size_t)256 << 10) /* what TensorFlow cuts from regions, where it has some */
#define HEAP_COPIES_TOLD 64

/* An allreduce of `bytes` bytes at `data` begins. Any thread, no lock held. */
void heap_note_gradient(const void *data, size_t bytes);

#endif
