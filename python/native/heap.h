/* SPDX-License-Identifier: Apache-2.0
 * TensorFlow's tensors in memory that the engine shares, from the moment on at which TensorFlow takes that
 * memory from the system. */
#ifndef PYTHON_NATIVE_HEAP_H
#define PYTHON_NATIVE_HEAP_H

#include "hvd/hvd.h"

#include <stdbool.h>

/* From now on the regions that TensorFlow's CPU allocator cuts tensors from are slabs. False: this TensorFlow
 * is not as expected, and nothing has changed. Early, before there are many tensors; more calls change nothing. */
HVD_API bool hvd_tf_share_heap(void);

#endif
