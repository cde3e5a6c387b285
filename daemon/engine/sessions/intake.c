/* SPDX-License-Identifier: Apache-2.0
 * Intake: the only place that reads what a client wrote into its submission ring.
 *
 * Each slot is copied once into private memory; engine_intake_validate decides on the copy;
 * everything later uses the copy. Indices come through hvi_ring, which checks them; names are
 * copied, then checked. What an honest library would never send ends the session, because nothing
 * that follows could be believed. What a user may cause is an error of that op. Slots are given
 * back to the client after the whole drain, because the name area is freed along with them. */
#include "daemon/engine/sessions/intake.h"

#include "base/assert.h"
#include "base/bits.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/utf8.h"
#include "daemon/engine/order/group.h"
#include "daemon/engine/order/join.h"
#include "daemon/engine/order/negotiate.h"
#include "daemon/engine/order/partial.h"
#include "daemon/engine/order/set_ops.h"
#include "daemon/engine/sessions/complete.h"
#include "daemon/engine/sessions/fence.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define IN_FLIGHT_TWICE "one tensor name in flight twice"

struct reason {
    char *text;
    size_t size;
};

static int __attribute__((format(printf, 2, 3)))
violation(const struct reason *reason, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(reason->text, reason->size, format, arguments);
    va_end(arguments);
    return HVI_ERR_PROTOCOL;
}

/* Kinds that move nothing: they have no shape and no operands. */
static bool is_bare(uint16_t kind)
{
    return kind == HVI_KIND_BARRIER || kind == HVI_KIND_JOIN || kind == HVI_KIND_SET_ADD ||
           kind == HVI_KIND_SET_REMOVE || kind == HVI_KIND_SET_OPEN || kind == HVI_KIND_SET_CLOSE;
}

/* Kinds of set 0 alone. */
static bool is_of_all(uint16_t kind)
{
    return kind == HVI_KIND_SET_ADD || kind == HVI_KIND_SET_REMOVE || kind == HVI_KIND_SET_OPEN;
}

static bool lists_ranks(uint16_t kind)
{
    return kind == HVI_KIND_SET_ADD || kind == HVI_KIND_SET_OPEN;
}

/* Kinds with a tag, and where SEND and RECV go to and come from. */
static int check_partial(const struct hvi_submission *copy, const struct engine_intake_view *view,
                         const struct reason *reason)
{
    const char *kind = hvi_kind_text(copy->kind);
    int32_t least = copy->kind == HVI_KIND_RECV ? -1 : 0;

    if (!engine_partial_is(copy->kind))
        return HVI_OK;
    if (!(copy->flags & HVI_SUBMIT_ANON))
        return violation(reason, "%s with a name", kind);
    if (copy->anon_seq > INT32_MAX)
        return violation(reason, "%s with tag %" PRIu64, kind, copy->anon_seq);
    if (copy->group != 0)
        return violation(reason, "%s in a group", kind);
    if (copy->kind == HVI_KIND_SEND && copy->out_region != HVI_REGION_NONE)
        return violation(reason, "send with an output");
    if (copy->kind == HVI_KIND_RECV && copy->in_region != HVI_REGION_NONE)
        return violation(reason, "recv with an input");
    if (copy->kind != HVI_KIND_SET_OPEN &&
        (copy->root < least || copy->root >= view->size || copy->root == view->rank))
        return violation(reason, "%s between rank %d and rank %d of %d", kind, view->rank,
                         copy->root, view->size);
    return HVI_OK;
}

static int check_envelope(const struct hvi_submission *copy, const struct engine_intake_view *view,
                          const struct reason *reason)
{
    uint16_t naming = HVI_SUBMIT_NAMED | HVI_SUBMIT_ANON;

    if (!hvi_kind_is_known(copy->kind))
        return violation(reason, "there is no op kind %u", copy->kind);
    if ((copy->flags & ~naming) != 0 || (copy->flags & naming) == naming)
        return violation(reason, "flags 0x%x", copy->flags);
    if (view->in_flight >= HVI_CQ_SLOTS)
        return violation(reason, "more than %u ops in flight", HVI_CQ_SLOTS);
    if (view->cookie_known)
        return violation(reason, "cookie 0x%" PRIx64 " is in flight already", copy->cookie);
    if (is_of_all(copy->kind) && copy->process_set != 0)
        return violation(reason, "%s in process set %u", hvi_kind_text(copy->kind),
                         copy->process_set);
    return HVI_OK;
}

static int check_group(const struct hvi_submission *copy, const struct engine_intake_view *view,
                       const struct reason *reason)
{
    if (view->group != 0 &&
        (copy->group != view->group || copy->group_size != view->group_size ||
         copy->group_index != view->group_next || copy->process_set != view->group_set))
        return violation(reason, "something else where member %u of %u of group %u was due",
                         view->group_next + 1, view->group_size, view->group);
    if (copy->group == 0)
        return HVI_OK;
    if (copy->group_size == 0 || copy->group_size > ENGINE_GROUP_MAX)
        return violation(reason, "a group of %u", copy->group_size);
    if (view->group == 0 && copy->group_index != 0)
        return violation(reason, "group %u begins with member %u", copy->group,
                         copy->group_index + 1);
    if (is_bare(copy->kind))
        return violation(reason, "%s in a group", hvi_kind_text(copy->kind));
    return HVI_OK;
}

/* The integers that belong to the op. Those of a set that does not exist are left alone. */
static int check_integers(const struct hvi_submission *copy, const struct engine_intake_view *view,
                          struct engine_operands *operands, const struct reason *reason)
{
    bool splits = copy->kind == HVI_KIND_ALLTOALL;
    uint64_t count = copy->aux_count;

    if (!splits && !lists_ranks(copy->kind))
        return HVI_OK;
    if (splits && view->set_size == 0)
        return HVI_OK;
    if (splits && count != 0 && count != view->set_size)
        return violation(reason, "%u splits for %u members", copy->aux_count, view->set_size);
    if (!splits && count > (uint64_t)view->size)
        return violation(reason, "a process set of %u ranks", copy->aux_count);
    if (copy->aux_region == HVI_REGION_NONE)
        return count == 0 ? HVI_OK : violation(reason, "integers without a region");
    if (splits)
        count += view->set_size; /* the received ones go behind */
    struct engine_region *region = engine_regions_find(view->regions, copy->aux_region);
    if (!region || region->kind != ENGINE_REGION_MAPPED ||
        !hvi_range_fits(copy->aux_offset, count * 8, region->map.bytes) ||
        copy->aux_offset % 8 != 0)
        return violation(reason, "%" PRIu64 " integers at %" PRIu64 " of region %u", count,
                         copy->aux_offset, copy->aux_region);
    operands->aux = region;
    return HVI_OK;
}

static int check_tensor(const struct hvi_submission *copy, const struct engine_intake_view *view,
                        const struct reason *reason)
{
    if (copy->flags & HVI_SUBMIT_ANON)
        return HVI_OK;
    if (copy->tensor_id >= HVI_TENSOR_IDS)
        return violation(reason, "tensor id %u of %u", copy->tensor_id, HVI_TENSOR_IDS);
    if (!(copy->flags & HVI_SUBMIT_NAMED))
        return view->tensor_known
                   ? HVI_OK
                   : violation(reason, "tensor id %u was never defined", copy->tensor_id);
    if (copy->name_bytes == 0 || copy->name_bytes > HVI_NAME_MAX)
        return violation(reason, "a name of %u bytes", copy->name_bytes);
    if (copy->name_offset >= HVI_NAMES_BYTES)
        return violation(reason, "name offset %u of %u", copy->name_offset, HVI_NAMES_BYTES);
    return HVI_OK;
}

static bool count_elements(const struct hvi_submission *copy, uint64_t *count_p)
{
    uint64_t product = 1;
    bool empty = false;

    for (uint32_t i = 0; i < copy->ndim; i++)
        empty = empty || copy->dims[i] == 0;
    for (uint32_t i = 0; i < copy->ndim && !empty; i++) {
        if (!hvi_mul_checked(product, (uint64_t)copy->dims[i], &product))
            return false;
    }
    *count_p = empty ? 0 : product;
    return true;
}

static int check_shape(const struct hvi_submission *copy, uint64_t *bytes_p,
                       const struct reason *reason)
{
    uint32_t element = hvi_dtype_bytes(copy->dtype);
    uint64_t count = 0;

    if (element == 0)
        return violation(reason, "there is no dtype %u", copy->dtype);
    if (copy->ndim > HVI_DIMS_MAX)
        return violation(reason, "%u dimensions", copy->ndim);
    for (uint32_t i = 0; i < copy->ndim; i++) {
        if (copy->dims[i] < 0)
            return violation(reason, "dimension %u is %" PRId64, i, copy->dims[i]);
    }
    if (!count_elements(copy, &count) || !hvi_mul_checked(count, element, bytes_p))
        return violation(reason, "the shape's size overflows");
    if (count != copy->count)
        return violation(reason, "count %" PRIu64 " for a shape of %" PRIu64 " elements",
                         copy->count, count);
    return HVI_OK;
}

/* The region that holds [offset, offset + bytes); NULL without an error when there is no operand.
 */
static int check_operand(const struct engine_intake_view *view, const char *what, uint32_t id,
                         uint64_t offset, uint64_t bytes, uint32_t element,
                         struct engine_region **region_p, const struct reason *reason)
{
    struct engine_region *region;

    *region_p = NULL;
    if (id == HVI_REGION_NONE)
        return HVI_OK;
    region = engine_regions_find_operand(view->regions, id);
    if (!region)
        return violation(reason, "%s: there is no region %u", what, id);
    if (region->kind == ENGINE_REGION_PROCESS && bytes > 0 && offset == 0)
        return violation(reason, "%s: %" PRIu64 " bytes at address 0", what, bytes);
    if (!hvi_range_fits(offset, bytes, region->map.bytes))
        return violation(reason, "%s: %" PRIu64 " bytes at %" PRIu64 " of region %u with %" PRIu64,
                         what, bytes, offset, id, region->map.bytes);
    if (bytes > 0 && offset % element != 0)
        return violation(reason, "%s: offset %" PRIu64 " is not a multiple of %u", what, offset,
                         element);
    *region_p = region;
    return HVI_OK;
}

static int check_input(const struct hvi_submission *copy, const struct engine_intake_view *view,
                       uint64_t bytes, struct engine_operands *operands,
                       const struct reason *reason)
{
    bool unread = (copy->kind == HVI_KIND_BROADCAST && copy->root != view->rank) ||
                  copy->kind == HVI_KIND_RECV;
    int status = check_operand(view, "input", copy->in_region, copy->in_offset, bytes,
                               hvi_dtype_bytes(copy->dtype), &operands->in, reason);

    if (status != HVI_OK)
        return status;
    if (!operands->in && bytes > 0 && !unread)
        return violation(reason, "an input of %" PRIu64 " bytes without a region", bytes);
    return HVI_OK;
}

static int check_output(const struct hvi_submission *copy, const struct engine_intake_view *view,
                        uint64_t needed, uint32_t element, struct engine_operands *operands,
                        const struct reason *reason)
{
    int status = check_operand(view, "output", copy->out_region, copy->out_offset,
                               copy->out_capacity, element, &operands->out, reason);

    if (status != HVI_OK)
        return status;
    if (!operands->out && copy->out_capacity > 0)
        return violation(reason, "an output capacity without a region");
    if (copy->out_capacity < needed)
        return violation(reason, "room for %" PRIu64 " bytes of output, %" PRIu64 " are needed",
                         copy->out_capacity, needed);
    return HVI_OK;
}

/* In place, or apart. Where the output has another size, sizes.c looks at it. What is read from a process
 * may arrive late in the output (exec/host_process.c), and the inline area cannot stay for that. */
static int check_aliasing(const struct hvi_submission *copy, uint64_t bytes,
                          const struct engine_operands *operands, const struct reason *reason)
{
    uint64_t in = copy->in_offset, out = copy->out_offset;

    if (copy->in_region == HVI_REGION_PROCESS && copy->out_region == HVI_REGION_INLINE && bytes > 0)
        return violation(reason, "an input in the process and an output in region %u",
                         HVI_REGION_INLINE);
    if (!operands->in || operands->in != operands->out || in == out || bytes == 0)
        return HVI_OK;
    if (in < out + bytes && out < in + bytes)
        return violation(reason, "input and output overlap without being the same");
    return HVI_OK;
}

static int check_operands(const struct hvi_submission *copy, const struct engine_intake_view *view,
                          struct engine_operands *operands, const struct reason *reason)
{
    bool resized = copy->kind != HVI_KIND_ALLREDUCE && copy->kind != HVI_KIND_BROADCAST &&
                   copy->kind != HVI_KIND_RECV;
    bool reduces = copy->kind == HVI_KIND_ALLREDUCE || copy->kind == HVI_KIND_REDUCESCATTER;
    uint64_t bytes = 0;
    int status = check_shape(copy, &bytes, reason);

    if (status == HVI_OK && reduces && !hvi_reduce_is_known(copy->reduce_op))
        status = violation(reason, "there is no reduce op %u", copy->reduce_op);
    if (status == HVI_OK && copy->kind == HVI_KIND_BROADCAST &&
        (copy->root < 0 || copy->root >= view->size))
        status = violation(reason, "root %d of %d ranks", copy->root, view->size);
    if (status == HVI_OK)
        status = check_input(copy, view, bytes, operands, reason);
    if (status == HVI_OK)
        status = check_output(copy, view, resized ? 0 : bytes, hvi_dtype_bytes(copy->dtype),
                              operands, reason);
    if (status == HVI_OK && !resized)
        status = check_aliasing(copy, bytes, operands, reason);
    operands->in_bytes = bytes;
    return status;
}

/* The answer to HVI_COMPLETE_SIZED. Its element size is only known to the op: see take_output. */
static int check_answer(const struct hvi_submission *copy, const struct engine_intake_view *view,
                        struct engine_operands *operands, const struct reason *reason)
{
    if (!view->wants_output)
        return violation(reason, "an output for cookie 0x%" PRIx64 ", which was not asked for",
                         copy->cookie);
    return check_output(copy, view, 0, 1, operands, reason);
}

static bool is_device(const struct engine_region *region)
{
    return region && region->kind == ENGINE_REGION_DEVICE;
}

/* An op on memory of a GPU has a fence, and both operands where one worker has them. One without bytes may
 * have a fence. */
static int check_fence(const struct hvi_submission *copy, const struct engine_intake_view *view,
                       struct engine_operands *operands, const struct reason *reason)
{
    bool in = is_device(operands->in), out = is_device(operands->out);

    if (!view->fences)
        return violation(reason, "a fence, or memory of a GPU, in a session without a fence page");
    if (out && operands->in_bytes == 0 && !in)
        operands->in = NULL;
    if (in && copy->out_capacity == 0 && !out)
        operands->out = NULL;
    if ((in && operands->out && !out) || (out && operands->in && !in) ||
        (in && out && operands->in->worker != operands->out->worker))
        return violation(reason, "operands in regions %u and %u, which no worker has both",
                         copy->in_region, copy->out_region);
    if (copy->after != 0 && copy->after >= copy->seq - (copy->group != 0 ? copy->group_index : 0))
        return violation(reason, "submission %" PRIu64 " after %" PRIu64, copy->seq, copy->after);
    if (copy->fence_cell == 0 && copy->fence_turn != 0)
        return violation(reason, "a fence's turn without a cell");
    if (copy->fence_cell == 0)
        return in || out ? violation(reason, "an operand on a GPU without a fence") : HVI_OK;
    if (!in && !out && operands->in_bytes > 0)
        return violation(reason, "a fence for memory of the host");
    const char *why = engine_fences_refuse(view->fences, copy->fence_cell, copy->fence_turn);
    return why ? violation(reason, "cell %u, turn %" PRIu64 ": %s", copy->fence_cell,
                           copy->fence_turn, why)
               : HVI_OK;
}

static bool has_fence(const struct hvi_submission *copy)
{
    return (copy->fence_turn | copy->after | copy->fence_cell) != 0;
}

static bool reserved_is_zero(const struct hvi_submission *copy)
{
    uint64_t bits = copy->reserved0 | copy->reserved1;

    for (size_t i = 0; i < sizeof copy->reserved / sizeof copy->reserved[0]; i++)
        bits |= copy->reserved[i];
    return bits == 0;
}

int engine_intake_validate(const struct hvi_submission *copy, const struct engine_intake_view *view,
                           struct engine_operands *operands_p, char *text_p, size_t text_size)
{
    const struct reason reason = {.text = text_p, .size = text_size};
    struct engine_operands operands = {0};
    int status;

    if (copy->seq != view->next_seq)
        return violation(&reason, "submission %" PRIu64 " where %" PRIu64 " was due", copy->seq,
                         view->next_seq);
    if (!reserved_is_zero(copy))
        return violation(&reason, "reserved bytes that are not zero");
    if (has_fence(copy) && (copy->kind == HVI_SUBMIT_CANCEL || copy->kind == HVI_SUBMIT_OUTPUT))
        return violation(&reason, "a fence of what is no op");
    if (copy->kind == HVI_SUBMIT_CANCEL) {
        status = HVI_OK;
    } else if (copy->kind == HVI_SUBMIT_OUTPUT) {
        status = check_answer(copy, view, &operands, &reason);
    } else {
        status = check_envelope(copy, view, &reason);
        if (status == HVI_OK)
            status = check_group(copy, view, &reason);
        if (status == HVI_OK)
            status = check_partial(copy, view, &reason);
        if (status == HVI_OK)
            status = check_tensor(copy, view, &reason);
        if (status == HVI_OK && !is_bare(copy->kind))
            status = check_operands(copy, view, &operands, &reason);
        if (status == HVI_OK)
            status = check_integers(copy, view, &operands, &reason);
        if (status == HVI_OK &&
            (has_fence(copy) || is_device(operands.in) || is_device(operands.out)))
            status = check_fence(copy, view, &operands, &reason);
    }
    if (status == HVI_OK)
        *operands_p = operands;
    return status;
}

static struct engine_request *find(struct engine_session *session, uint64_t cookie)
{
    struct engine_request *request = session->cookies[cookie % HVI_CQ_SLOTS];

    while (request && request->slots.share.part.copy.cookie != cookie)
        request = request->cookie_next;
    return request;
}

/* ---- requests ---- */

static struct engine_request *request_take(struct engine_session *session, uint64_t cookie)
{
    struct engine_request *request = session->free_requests;
    struct engine_request **bucket = &session->cookies[cookie % HVI_CQ_SLOTS];

    if (request)
        session->free_requests = request->next;
    else
        request = &session->requests[session->requests_used++];
    HVI_ASSERT(session->requests_used <= HVI_CQ_SLOTS);
    request->next = NULL;
    request->cookie_next = *bucket;
    *bucket = request;
    session->in_flight++;
    return request;
}

static void fill_part(struct engine_part *part, const struct engine_session *session,
                      const struct hvi_submission *copy)
{
    uint64_t now_ns = session->order->now_ns;

    memset(part, 0, offsetof(struct engine_part, copy)); /* which is longer than all the rest */
    part->seat = session->seat;
    part->rank = session->rank;
    part->arrived_ns = copy->submit_ns >= session->attached_ns && copy->submit_ns <= now_ns
                           ? copy->submit_ns
                           : now_ns;
    part->copy = *copy;
}

/* The operand uses the region until the request is freed. */
static struct engine_operand place(struct engine_session *session, struct engine_region *region,
                                   uint64_t offset)
{
    struct engine_operand operand = {.kind = ENGINE_OPERAND_NONE};

    if (!region)
        return operand;
    operand.address = (void *)((uintptr_t)region->map.base + offset);
    if (region->kind == ENGINE_REGION_PROCESS) {
        operand.kind = ENGINE_OPERAND_PROCESS;
        operand.process = &session->process;
        return operand;
    }
    operand.kind = ENGINE_OPERAND_MAPPED;
    operand.region = region;
    region->users++;
    if (region->kind == ENGINE_REGION_DEVICE) {
        operand.kind = ENGINE_OPERAND_DEVICE;
        operand.worker = region->worker;
        operand.import = region->import;
    }
    return operand;
}

static uint8_t memory_of(const struct engine_operands *operands, uint64_t capacity)
{
    if (is_device(operands->in) || is_device(operands->out))
        return HVI_MEMORY_DEVICE;
    if (operands->in_bytes == 0 && (!operands->out || capacity == 0))
        return ENGINE_MEMORY_ANY;
    return HVI_MEMORY_HOST;
}

/* The worker that has both operands, as other nodes know it; 0: memory of the host. */
static uint64_t instance_of(const struct engine_operands *operands)
{
    const struct engine_region *region = is_device(operands->in) ? operands->in : operands->out;

    return is_device(region) ? region->instance : 0;
}

static struct engine_request *request_new(struct engine_session *session,
                                          const struct hvi_submission *copy,
                                          const struct engine_operands *operands)
{
    struct engine_request *request = request_take(session, copy->cookie);

    fill_part(&request->slots.share.part, session, copy);
    request->slots.share.part.in_bytes = operands->in_bytes;
    request->slots.share.in = place(session, operands->in, copy->in_offset);
    request->slots.share.out = place(session, operands->out, copy->out_offset);
    request->slots.share.part.memory = memory_of(operands, copy->out_capacity);
    request->slots.share.part.instance = instance_of(operands);
    request->slots.share.fence.page = NULL;
    request->session = session;
    request->aux = operands->aux;
    if (operands->aux)
        operands->aux->users++;
    request->owed = false;
    request->owed_text = NULL;
    request->slots.grant = 0;
    if (session->fences)
        engine_fence_take(request);
    return request;
}

/* ---- tensors ---- */

/* Binds a tensor id to a name in a set. */
static int define_tensor(struct engine_session *session, const struct hvi_submission *copy,
                         uint64_t set)
{
    struct engine_tensors *tensors = &session->order->tensors;
    char name[HVI_NAME_MAX + 1];

    if (!hvi_channel_read_name(&session->channel, copy->name_offset, copy->name_bytes, name) ||
        !hvi_utf8_valid(name, copy->name_bytes)) {
        engine_session_violation(session, "a tensor name that is not UTF-8");
        return HVI_ERR_PROTOCOL;
    }
    struct engine_tensor *tensor = engine_tensor_get_named(tensors, set, name, copy->name_bytes);
    if (session->tensors[copy->tensor_id])
        engine_tensor_put(tensors, session->tensors[copy->tensor_id]);
    session->tensors[copy->tensor_id] = tensor; /* if NULL: at least not the name it had before */
    return tensor ? HVI_OK : HVI_ERR_NO_MEMORY;
}

/* The id was defined in another set: the name is the same, the tensor is not. */
static int redefine_tensor(struct engine_session *session, uint32_t id, uint64_t set)
{
    struct engine_tensors *tensors = &session->order->tensors;
    struct engine_tensor *old = session->tensors[id];

    if (old->set == set)
        return HVI_OK;
    struct engine_tensor *tensor =
        engine_tensor_get_named(tensors, set, old->name, old->name_bytes);
    if (!tensor)
        return HVI_ERR_NO_MEMORY;
    session->tensors[id] = tensor;
    engine_tensor_put(tensors, old);
    return HVI_OK;
}

static int bind_tensor(struct engine_request *request)
{
    struct engine_session *session = request->session;
    struct engine_part *part = &request->slots.share.part;
    const struct hvi_submission *copy = &part->copy;
    uint64_t set = part->set ? part->set->serial : 0;

    if (copy->flags & HVI_SUBMIT_ANON) {
        struct engine_tensors *tensors = &session->order->tensors;
        part->tensor = engine_partial_is(copy->kind)
                           ? engine_partial_tensor(tensors, part)
                           : engine_tensor_get_anon(tensors, set, copy->kind, copy->anon_seq);
        return part->tensor ? HVI_OK : HVI_ERR_NO_MEMORY;
    }
    int status = copy->flags & HVI_SUBMIT_NAMED ? define_tensor(session, copy, set)
                                                : redefine_tensor(session, copy->tensor_id, set);
    if (status != HVI_OK)
        return status;
    part->tensor = session->tensors[copy->tensor_id];
    part->tensor->refs++;
    return HVI_OK;
}

static int compare_integers(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

/* Out of the client's memory, once. */
static int copy_integers(struct engine_request *request)
{
    struct engine_part *part = &request->slots.share.part;
    size_t bytes = (size_t)part->copy.aux_count * sizeof *part->integers;

    if (!request->aux || bytes == 0)
        return HVI_OK;
    part->integers = malloc(bytes);
    if (!part->integers)
        return HVI_ERR_NO_MEMORY;
    memcpy(part->integers, (const char *)request->aux->map.base + part->copy.aux_offset, bytes);
    part->integer_count = part->copy.aux_count;
    if (lists_ranks(part->copy.kind)) /* in whatever order each rank has them */
        qsort(part->integers, part->integer_count, sizeof *part->integers, compare_integers);
    return HVI_OK;
}

/* As check_fence, for an output that comes late. */
static bool output_is_near(const struct engine_request *request, const struct engine_region *out)
{
    const struct engine_share *share = &request->slots.share;
    bool on_device = is_device(out);

    if (share->in.kind == ENGINE_OPERAND_DEVICE)
        return !out || (on_device && out->worker == share->in.worker);
    return !on_device || (share->fence.page && share->part.in_bytes == 0);
}

static void take_output(struct engine_request *request, const struct hvi_submission *copy,
                        const struct engine_operands *operands)
{
    struct engine_part *part = &request->slots.share.part;

    if (copy->out_offset % hvi_dtype_bytes(part->copy.dtype) != 0) {
        engine_session_violation(request->session, "an output that is not aligned to its elements");
        return;
    }
    if (!output_is_near(request, operands->out)) {
        engine_session_violation(request->session,
                                 "an output that its input's worker does not have");
        return;
    }
    part->output_asked = false;
    request->slots.share.out = place(request->session, operands->out, copy->out_offset);
    if (part->in_bytes == 0) {
        part->memory = memory_of(operands, copy->out_capacity);
        part->instance = instance_of(operands);
    }
    part->copy.out_region = copy->out_region;
    part->copy.out_offset = copy->out_offset;
    part->copy.out_capacity = copy->out_capacity;
    engine_negotiate_output(request->session->order, part);
}

static void take_cancel(struct engine_session *session, uint64_t cookie)
{
    char text[ENGINE_LABEL + 64];

    engine_slots_revoke_op(session->sessions->slots, session->seat, cookie);
    struct engine_request *request = find(session, cookie);
    struct engine_part *part = request ? &request->slots.share.part : NULL;
    if (part && session->fences && engine_fence_cancel(request))
        return;
    if (!part || !part->op || !engine_session_is_open(session))
        return;
    engine_negotiate_cancel_text(part, text, sizeof text);
    engine_negotiate_withdraw(session->order, part, HVI_ERR_CANCELLED, text);
}

/* Remembers that a group has begun or is whole. */
static void follow_group(struct engine_session *session, const struct hvi_submission *copy)
{
    bool whole = copy->group == 0 || copy->group_index + 1 == copy->group_size;

    if (copy->group_index == 0 || copy->group == 0)
        session->grouped.refused = HVI_OK;
    session->group = whole ? 0 : copy->group;
    session->group_size = copy->group_size;
    session->group_next = copy->group_index + 1;
    session->group_set = copy->process_set;
}

/* With it, the group that it belongs to. */
static void refuse(struct engine_request *request, int status, const char *text, int32_t culprit)
{
    struct engine_session *session = request->session;

    if (status == HVI_ERR_NO_MEMORY)
        text = "the engine is out of memory";
    if (request->slots.share.part.copy.group != 0)
        engine_group_refuse(session->order, &session->grouped, status, text, culprit);
    engine_complete_part(&request->slots.share.part, status, text, culprit);
}

/* What a user can get wrong, and what nobody can help. */
static int prepare(struct engine_request *request, char *text_p, size_t text_size)
{
    struct engine_part *part = &request->slots.share.part;
    int status = bind_tensor(request);

    if (status == HVI_OK)
        status = engine_set_check(part->set, part, text_p, text_size);
    if (status != HVI_OK)
        return status;
    part->place = (uint16_t)engine_set_place(part->set, part->seat);
    if (part->copy.group != 0 && request->session->grouped.refused != HVI_OK) {
        snprintf(text_p, text_size, "another member of its group could not be submitted");
        return request->session->grouped.refused;
    }
    status = copy_integers(request);
    if (status == HVI_OK && engine_partial_is(part->copy.kind))
        status = engine_partial_check(part, text_p, text_size);
    return status;
}

static void negotiate(struct engine_request *request)
{
    struct engine_session *session = request->session;
    struct engine_order *order = session->order;
    struct engine_part *part = &request->slots.share.part;
    int status;

    if (part->copy.kind == HVI_KIND_JOIN)
        status = engine_join_submit(order, part);
    else if (engine_partial_is(part->copy.kind))
        status = engine_partial_submit(order, part);
    else
        status = engine_negotiate_submit(order, part);
    if (status == HVI_ERR_PROTOCOL) {
        engine_request_free(request);
        engine_session_violation(session, IN_FLIGHT_TWICE);
    } else if (status != HVI_OK) {
        refuse(request, status, NULL, part->rank);
    }
}

static void negotiate_group(struct engine_request *request, struct engine_group *group)
{
    struct engine_session *session = request->session;

    if (engine_group_take(session->order, group, &request->slots.share.part) != HVI_OK)
        engine_session_violation(session, IN_FLIGHT_TWICE);
}

void engine_intake_inject(struct engine_session *session, const struct hvi_submission *copy,
                          const struct engine_operands *operands, struct engine_set *set,
                          struct engine_tensor *tensor)
{
    struct engine_order *order = session->order;

    if (find(session, copy->cookie) || session->in_flight >= HVI_CQ_SLOTS) {
        if (tensor)
            engine_tensor_put(&order->tensors, tensor);
        engine_session_violation(session, "an impossible cookie in an express slot");
        return;
    }
    struct engine_request *request = request_new(session, copy, operands);
    struct engine_part *part = &request->slots.share.part;
    part->set = engine_set_get(set);
    part->place = (uint16_t)engine_set_place(set, part->seat);
    part->tensor = tensor;
    if (!tensor)
        refuse(request, HVI_ERR_NO_MEMORY, NULL, session->rank);
    else if (order->broken_status != HVI_OK)
        refuse(request, order->broken_status, order->broken_text, order->broken_culprit);
    else
        negotiate(request);
}

/* What lies in slots comes before this part: the same op, or all of a set that a rank
 * leaves. */
static void revoke_slots(struct engine_sessions *sessions, const struct engine_part *part)
{
    if (part->copy.kind == HVI_KIND_JOIN)
        engine_slots_revoke_set(sessions->slots, part->set);
    else
        engine_slots_revoke(sessions->slots, part);
}

/* A valid op: on to the ranks' meeting place, or finished at once. */
static void take_op(struct engine_session *session, const struct hvi_submission *copy,
                    const struct engine_operands *operands)
{
    struct engine_order *order = session->order;
    struct engine_request *request = request_new(session, copy, operands);
    struct engine_set *set = engine_sets_find(&order->sets, copy->process_set);
    char text[HVI_TEXT_MAX + 1];

    follow_group(session, copy);
    request->slots.share.part.set = set ? engine_set_get(set) : NULL;
    int status = prepare(request, text, sizeof text);
    if (status == HVI_OK && engine_session_is_open(session))
        revoke_slots(session->sessions, &request->slots.share.part);
    if (!engine_session_is_open(session))
        engine_request_free(request);
    else if (status != HVI_OK)
        refuse(request, status, text, session->rank);
    else if (order->broken_status != HVI_OK)
        refuse(request, order->broken_status, order->broken_text, order->broken_culprit);
    else if (session->fences && engine_fence_hold(request))
        return;
    else if (copy->group != 0)
        negotiate_group(request, &session->grouped);
    else
        negotiate(request);
}

/* While it was held. */
static void refuse_removed(struct engine_request *request)
{
    const struct engine_part *part = &request->slots.share.part;
    char text[96];

    snprintf(text, sizeof text, "process set %u was removed while the op waited", part->set->id);
    refuse(request, HVI_ERR_NOT_FOUND, text, part->rank);
}

void engine_intake_go_on(struct engine_request *request)
{
    struct engine_session *session = request->session;

    revoke_slots(session->sessions, &request->slots.share.part);
    if (!engine_session_is_open(session)) /* and it was dropped with it */
        return;
    if (request->slots.share.part.copy.group == 0 && request->slots.share.part.set->removed)
        refuse_removed(request);
    else if (request->slots.share.part.copy.group != 0)
        negotiate_group(request, &request->waiting);
    else
        negotiate(request);
}

static uint32_t set_size(const struct engine_sessions *sessions, uint32_t id)
{
    const struct engine_set *set = engine_sets_find(&sessions->order->sets, id);

    return set ? set->size : 0;
}

/* False: the session is over. */
static bool take(struct engine_session *session, const struct hvi_submission *copy)
{
    char text[HVI_TEXT_MAX + 1];
    struct engine_operands operands = {0};
    struct engine_request *known = find(session, copy->cookie);
    const struct engine_intake_view view = {
        .regions = &session->regions,
        .fences = session->fences,
        .next_seq = session->next_seq,
        .in_flight = session->in_flight,
        .rank = session->rank,
        .size = session->sessions->start->size,
        .set_size = set_size(session->sessions, copy->process_set),
        .group = session->group,
        .group_size = session->group_size,
        .group_next = session->group_next,
        .group_set = session->group_set,
        .cookie_known = known != NULL,
        .wants_output = known && known->slots.share.part.output_asked,
        .tensor_known = copy->tensor_id < HVI_TENSOR_IDS && session->tensors[copy->tensor_id],
    };

    if (copy->kind == HVI_SUBMIT_OUTPUT && copy->seq == session->next_seq && !view.wants_output &&
        session->outputs_excused > 0) {
        session->outputs_excused--;
        return true;
    }
    int status = engine_intake_validate(copy, &view, &operands, text, sizeof text);
    if (status != HVI_OK)
        engine_session_violation(session, text);
    else if (copy->kind == HVI_SUBMIT_CANCEL)
        take_cancel(session, copy->cookie);
    else if (copy->kind == HVI_SUBMIT_OUTPUT)
        take_output(known, copy, &operands);
    else
        take_op(session, copy, &operands);
    return engine_session_is_open(session);
}

bool engine_intake_drain(struct engine_session *session)
{
    struct hvi_submission copy;
    uint32_t count = 0;

    if (!engine_session_is_open(session) || session->sessions->held)
        return false;
    if (hvi_ring_available(&session->channel.sq, &count) != HVI_OK) {
        engine_session_violation(session, "an impossible index in its submission ring");
        return true;
    }
    if (count == 0)
        return false;
    session->order->now_ns = hvi_clock_ns();
    for (uint32_t i = 0; i < count; i++) {
        hvi_ring_copy(&session->channel.sq, i, &copy);
        if (!take(session, &copy))
            return true;
        session->next_seq++;
    }
    hvi_ring_release(&session->channel.sq, count);
    return true;
}

static bool names_region(const struct hvi_submission *copy, uint32_t region)
{
    return copy->in_region == region || copy->out_region == region || copy->aux_region == region;
}

bool engine_intake_holds(const struct engine_session *session, uint32_t region)
{
    struct hvi_ring look = session->channel.sq;
    struct hvi_submission copy;
    uint32_t count = 0;

    if (!session->sessions->held)
        return false;
    if (hvi_ring_available(&look, &count) != HVI_OK)
        return true;
    for (uint32_t i = 0; i < count; i++) {
        hvi_ring_copy(&look, i, &copy);
        if (names_region(&copy, region))
            return true;
    }
    return false;
}

bool engine_intake_drain_all(struct engine_sessions *sessions)
{
    bool found = false;

    for (uint32_t seat = 0; seat < sessions->seats; seat++) {
        struct engine_session *session = sessions->ranks[seat].session;
        if (session)
            found = engine_intake_drain(session) || found;
    }
    return found;
}
