/* SPDX-License-Identifier: Apache-2.0
 * What ranks do and did, as rows. Engine thread. */
#ifndef ENGINE_WATCH_TRACE_H
#define ENGINE_WATCH_TRACE_H

#include "proto/wire.h"

#include <stdbool.h>

struct engine_watch;

/* After each look at the trace workers of GPUs say so long what their streams take. */
#define ENGINE_TRACE_TIMES_NS UINT64_C(10000000000)

/* Rows of one rank, or with -1 of all: newest first rank by rank, at most `limit` (0: as many as
 * fit a message), those in flight before all finished ones; with `before` only finished ones with a
 * smaller number. *left_out_p counts those that are kept but not given. The caller frees *rows_p.
 * HVI_OK or HVI_ERR_NO_MEMORY. */
int engine_trace_rows(struct engine_watch *watch, int32_t rank, uint32_t limit, uint64_t before,
                      struct hvi_trace_row **rows_p, size_t *count_p, uint64_t *left_out_p);

/* Whether times of GPUs are looked at: a timeline is written, or the trace was read a short while ago. */
bool engine_trace_wants_times(const struct engine_watch *watch);

#endif
