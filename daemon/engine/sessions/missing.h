/* SPDX-License-Identifier: Apache-2.0
 * Pages of a rank's shared memory that could not be had: whose they are, and what is said. Engine
 * thread. */
#ifndef ENGINE_SESSIONS_MISSING_H
#define ENGINE_SESSIONS_MISSING_H

#include "daemon/engine/order/op.h"

struct engine_sessions;

/* Ends the op: it touched a page at this address, in memory that the engine has mapped. */
void engine_missing_failed(struct engine_sessions *sessions, struct engine_op *op,
                           uint64_t address);
/* A page of this rank's operands was missing when ranks did the op in its slot: it is not to be done
 * again. The op is ready and has not started. */
void engine_missing_mark(struct engine_op *op, engine_seat seat);

#endif
