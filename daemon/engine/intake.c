/* SPDX-License-Identifier: Apache-2.0
 * Intake: the only place that reads what a client wrote into its submission ring.
 *
 * Each slot is copied once into private memory; engine_intake_validate decides on the copy;
 * everything later uses the copy. Indices come through hvi_ring, which checks them; names are
 * copied, then checked. What an honest library would never send ends the session, because nothing
 * that follows could be believed. What a user may cause is an error of that op. Slots are given
 * back to the client after the whole drain, because the name area is freed along with them. */
#include "base/assert.h"
#include "base/bits.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/utf8.h"
#include "daemon/engine/engine.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

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

/* The kinds that negotiate.c can take to a backend. */
static bool is_served(uint16_t kind)
{
    return kind == HVI_KIND_ALLREDUCE || kind == HVI_KIND_ALLGATHER || kind == HVI_KIND_BROADCAST ||
           kind == HVI_KIND_BARRIER;
}

static int check_envelope(const struct hvi_submission *copy, const struct engine_intake_view *view,
                          const struct reason *reason)
{
    uint16_t naming = HVI_SUBMIT_NAMED | HVI_SUBMIT_ANON;

    if (!is_served(copy->kind))
        return violation(reason, "there is no op kind %u", copy->kind);
    if ((copy->flags & ~naming) != 0 || (copy->flags & naming) == naming)
        return violation(reason, "flags 0x%x", copy->flags);
    if (view->in_flight >= HVI_CQ_SLOTS)
        return violation(reason, "more than %u ops in flight", HVI_CQ_SLOTS);
    if (view->cookie_known)
        return violation(reason, "cookie 0x%" PRIx64 " is in flight already", copy->cookie);
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
    region = engine_regions_find(view->regions, id);
    if (!region)
        return violation(reason, "%s: there is no region %u", what, id);
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
    bool unread = copy->kind == HVI_KIND_BROADCAST && copy->root != view->rank;
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

/* In place, or apart. An allgather's output has another size: negotiate.c looks at it. */
static int check_aliasing(const struct hvi_submission *copy, uint64_t bytes,
                          const struct engine_operands *operands, const struct reason *reason)
{
    uint64_t in = copy->in_offset, out = copy->out_offset;

    if (!operands->in || operands->in != operands->out || in == out || bytes == 0)
        return HVI_OK;
    if (in < out + bytes && out < in + bytes)
        return violation(reason, "input and output overlap without being the same");
    return HVI_OK;
}

static int check_operands(const struct hvi_submission *copy, const struct engine_intake_view *view,
                          struct engine_operands *operands, const struct reason *reason)
{
    bool gather = copy->kind == HVI_KIND_ALLGATHER;
    uint64_t bytes = 0;
    int status = check_shape(copy, &bytes, reason);

    if (status == HVI_OK && copy->kind == HVI_KIND_ALLREDUCE &&
        !hvi_reduce_is_known(copy->reduce_op))
        status = violation(reason, "there is no reduce op %u", copy->reduce_op);
    if (status == HVI_OK && copy->kind == HVI_KIND_BROADCAST &&
        (copy->root < 0 || copy->root >= view->size))
        status = violation(reason, "root %d of %d ranks", copy->root, view->size);
    if (status == HVI_OK)
        status = check_input(copy, view, bytes, operands, reason);
    if (status == HVI_OK)
        status = check_output(copy, view, gather ? 0 : bytes, hvi_dtype_bytes(copy->dtype),
                              operands, reason);
    if (status == HVI_OK && !gather)
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

/* What a user can get wrong. */
static int check_user(const struct hvi_submission *copy, const struct reason *reason)
{
    if (copy->process_set != 0) {
        violation(reason, "process set %u does not exist", copy->process_set);
        return HVI_ERR_NOT_FOUND;
    }
    if (copy->group != 0) {
        violation(reason, "grouped ops are not supported");
        return HVI_ERR_UNSUPPORTED;
    }
    return HVI_OK;
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
    if (copy->kind == HVI_SUBMIT_OUTPUT) {
        status = check_answer(copy, view, &operands, &reason);
    } else {
        status = check_envelope(copy, view, &reason);
        if (status == HVI_OK)
            status = check_tensor(copy, view, &reason);
        if (status == HVI_OK && copy->kind != HVI_KIND_BARRIER)
            status = check_operands(copy, view, &operands, &reason);
        if (status == HVI_OK)
            status = check_user(copy, &reason);
    }
    if (status != HVI_ERR_PROTOCOL)
        *operands_p = operands;
    return status;
}

struct engine_part *engine_intake_find(struct engine_session *session, uint64_t cookie)
{
    struct engine_part *part = session->cookies[cookie % HVI_CQ_SLOTS];

    while (part && part->copy.cookie != cookie)
        part = part->cookie_next;
    return part;
}

static struct engine_part *part_new(struct engine_session *session,
                                    const struct hvi_submission *copy,
                                    const struct engine_operands *operands)
{
    struct engine_part *part = session->free_parts;
    struct engine_part **bucket = &session->cookies[copy->cookie % HVI_CQ_SLOTS];
    uint64_t now_ns = session->engine->now_ns;

    if (part)
        session->free_parts = part->next;
    else
        part = &session->parts[session->parts_used++];
    HVI_ASSERT(session->parts_used <= HVI_CQ_SLOTS);
    part->next = NULL;
    part->cookie_next = *bucket;
    *bucket = part;
    part->session = session;
    part->op = NULL;
    part->tensor = NULL;
    part->in = operands->in;
    part->out = operands->out;
    if (part->in)
        part->in->users++;
    if (part->out)
        part->out->users++;
    part->in_bytes = operands->in_bytes;
    part->arrived_ns = copy->submit_ns >= session->attached_ns && copy->submit_ns <= now_ns
                           ? copy->submit_ns
                           : now_ns;
    part->owed = false;
    part->output_asked = false;
    part->owed_text = NULL;
    part->copy = *copy;
    session->in_flight++;
    return part;
}

/* Binds a tensor id to a name. */
static int define_tensor(struct engine_session *session, const struct hvi_submission *copy)
{
    struct engine_tensors *tensors = &session->engine->tensors;
    char name[HVI_NAME_MAX + 1];

    if (!hvi_channel_read_name(&session->channel, copy->name_offset, copy->name_bytes, name) ||
        !hvi_utf8_valid(name, copy->name_bytes)) {
        engine_session_violation(session, "a tensor name that is not UTF-8");
        return HVI_ERR_PROTOCOL;
    }
    struct engine_tensor *tensor = engine_tensor_get_named(tensors, name, copy->name_bytes);
    if (session->tensors[copy->tensor_id])
        engine_tensor_put(tensors, session->tensors[copy->tensor_id]);
    session->tensors[copy->tensor_id] = tensor; /* if NULL: at least not the name it had before */
    return tensor ? HVI_OK : HVI_ERR_NO_MEMORY;
}

static int bind_tensor(struct engine_part *part)
{
    struct engine_session *session = part->session;
    const struct hvi_submission *copy = &part->copy;

    if (copy->flags & HVI_SUBMIT_ANON) {
        part->tensor =
            engine_tensor_get_anon(&session->engine->tensors, copy->kind, copy->anon_seq);
        return part->tensor ? HVI_OK : HVI_ERR_NO_MEMORY;
    }
    int status = copy->flags & HVI_SUBMIT_NAMED ? define_tensor(session, copy) : HVI_OK;
    if (status != HVI_OK)
        return status;
    part->tensor = session->tensors[copy->tensor_id];
    part->tensor->refs++;
    return HVI_OK;
}

static void take_output(struct engine_part *part, const struct hvi_submission *copy,
                        const struct engine_operands *operands)
{
    if (copy->out_offset % hvi_dtype_bytes(part->copy.dtype) != 0) {
        engine_session_violation(part->session, "an output that is not aligned to its elements");
        return;
    }
    part->output_asked = false;
    part->out = operands->out;
    if (part->out)
        part->out->users++;
    part->copy.out_region = copy->out_region;
    part->copy.out_offset = copy->out_offset;
    part->copy.out_capacity = copy->out_capacity;
    engine_negotiate_output(part->session->engine, part);
}

/* A valid op: on to the ranks' meeting place, or finished at once. */
static void take_op(struct engine_session *session, const struct hvi_submission *copy,
                    const struct engine_operands *operands, int status, const char *text)
{
    struct engine *engine = session->engine;
    struct engine_part *part = part_new(session, copy, operands);
    int bound = bind_tensor(part);

    if (session->over) {
        engine_part_free(part);
        return;
    }
    if (bound != HVI_OK) {
        engine_complete_part(part, bound, "the engine is out of memory", -1, 0, 0);
        return;
    }
    if (status != HVI_OK) {
        engine_complete_part(part, status, text, session->rank, 0, 0);
        return;
    }
    if (engine->broken_status != HVI_OK) {
        engine_complete_part(part, engine->broken_status, engine->broken_text,
                             engine->broken_culprit, 0, 0);
        return;
    }
    status = engine_negotiate_submit(engine, part);
    if (status == HVI_ERR_PROTOCOL) {
        engine_part_free(part);
        engine_session_violation(session, "one tensor name in flight twice");
    } else if (status != HVI_OK) {
        engine_complete_part(part, status, "the engine is out of memory", -1, 0, 0);
    }
}

static void take(struct engine_session *session, const struct hvi_submission *copy)
{
    char text[HVI_TEXT_MAX + 1];
    struct engine_operands operands = {0};
    struct engine_part *known = engine_intake_find(session, copy->cookie);
    const struct engine_intake_view view = {
        .regions = &session->regions,
        .next_seq = session->next_seq,
        .in_flight = session->in_flight,
        .rank = session->rank,
        .size = session->engine->start.size,
        .cookie_known = known != NULL,
        .wants_output = known && known->output_asked,
        .tensor_known = copy->tensor_id < HVI_TENSOR_IDS && session->tensors[copy->tensor_id],
    };

    if (copy->kind == HVI_SUBMIT_OUTPUT && copy->seq == view.next_seq && !view.wants_output &&
        session->outputs_excused > 0) {
        session->outputs_excused--;
        session->next_seq++;
        return;
    }
    int status = engine_intake_validate(copy, &view, &operands, text, sizeof text);
    if (status == HVI_ERR_PROTOCOL) {
        engine_session_violation(session, text);
        return;
    }
    session->next_seq++;
    if (copy->kind == HVI_SUBMIT_OUTPUT)
        take_output(known, copy, &operands);
    else
        take_op(session, copy, &operands, status, text);
}

bool engine_intake_drain(struct engine_session *session)
{
    struct hvi_submission copy;
    uint32_t count = 0;

    if (session->over)
        return false;
    if (hvi_ring_available(&session->channel.sq, &count) != HVI_OK) {
        engine_session_violation(session, "an impossible index in its submission ring");
        return true;
    }
    if (count == 0)
        return false;
    session->engine->now_ns = hvi_clock_ns();
    for (uint32_t i = 0; i < count; i++) {
        hvi_ring_copy(&session->channel.sq, i, &copy);
        take(session, &copy);
        if (session->over)
            return true;
    }
    hvi_ring_release(&session->channel.sq, count);
    return true;
}

bool engine_intake_drain_all(struct engine *engine)
{
    bool found = false;

    for (int32_t rank = 0; rank < engine->start.size; rank++) {
        struct engine_session *session = engine->ranks[rank].session;
        if (session)
            found = engine_intake_drain(session) || found;
    }
    return found;
}
