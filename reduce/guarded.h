/* SPDX-License-Identifier: Apache-2.0
 * A reduction in memory that others may have made unusable. */
#ifndef HVI_REDUCE_GUARDED_H
#define HVI_REDUCE_GUARDED_H

#include "reduce/reduce.h"

/* Reduces elements [first, first + count), of as many outputs as inputs. -1: done. Else a page of an
 * operand could not be had: the index of its input or output. Outputs are written in part then. Needs
 * hvi_pages_open (base/pages.h). */
int hvi_reduce_guarded(const struct hvi_kernels *kernels, const struct hvi_reduction *reduction,
                       uint64_t first, uint64_t count);

#endif
