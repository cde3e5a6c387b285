/* SPDX-License-Identifier: Apache-2.0
 * What messages between nodes call a tensor. Within order/; engine thread. */
#ifndef ENGINE_ORDER_SPAN_NAME_H
#define ENGINE_ORDER_SPAN_NAME_H

#include "daemon/engine/order/tensor.h"
#include "proto/mesh.h"

struct hvi_mesh_name engine_span_name(const struct engine_tensor *tensor);
/* The other way round: the caller holds one reference. NULL: out of memory, or there is no such name. */
struct engine_tensor *engine_span_tensor(struct engine_tensors *tensors, uint64_t serial,
                                         const struct hvi_mesh_name *name);

#endif
