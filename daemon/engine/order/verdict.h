/* SPDX-License-Identifier: Apache-2.0
 * The root's verdicts on this node. Engine thread. */
#ifndef ENGINE_ORDER_VERDICT_H
#define ENGINE_ORDER_VERDICT_H

#include "proto/mesh.h"

#include <stddef.h>

struct engine_order;

/* The next verdict of the root. HVI_OK; HVI_ERR_PROTOCOL with a sentence: the root is not to be
 * believed any more; HVI_ERR_NO_MEMORY: this node cannot follow it. */
int engine_verdict_hear(struct engine_order *order, const struct hvi_mesh_verdict *verdict,
                        char *text_p, size_t text_size);

#endif
