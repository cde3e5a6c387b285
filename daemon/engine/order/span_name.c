/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/engine/order/span_name.h"

#include "base/utf8.h"

struct hvi_mesh_name engine_span_name(const struct engine_tensor *tensor)
{
    if (!tensor->anon)
        return (struct hvi_mesh_name){.name = (unsigned char *)tensor->name,
                                      .name_bytes = tensor->name_bytes};
    return (struct hvi_mesh_name){.kind = tensor->anon_kind, .number = tensor->anon_seq};
}

struct engine_tensor *engine_span_tensor(struct engine_tensors *tensors, uint64_t serial,
                                         const struct hvi_mesh_name *name)
{
    const char *text = (const char *)name->name;

    if (name->name_bytes > 0)
        return hvi_utf8_valid(text, name->name_bytes)
                   ? engine_tensor_get_named(tensors, serial, text, (uint32_t)name->name_bytes)
                   : NULL;
    if (name->kind > UINT16_MAX || !hvi_kind_is_known((uint16_t)name->kind) ||
        engine_partial_is((uint16_t)name->kind) || name->number == UINT64_MAX)
        return NULL;
    return engine_tensor_get_anon(tensors, serial, (uint16_t)name->kind, name->number);
}
