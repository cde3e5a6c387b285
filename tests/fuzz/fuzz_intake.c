/* SPDX-License-Identifier: Apache-2.0
 * The check that every submission passes. Input: one byte of what the session knows, the bytes of
 * a submission. Whatever they are, a submission that passes has operands inside its regions, a
 * shape that multiplies out to its count, and aligned elements. */
#include "fuzz.h"

#include "base/bits.h"
#include "base/status.h"
#include "base/types.h"
#include "daemon/engine/sessions/intake.h"

#include <string.h>

#define REGION_BYTES (1u << 20)

static struct engine_regions regions;
static struct engine_region shared_region = {.id = 7};

static void make_regions(void)
{
    engine_regions_init(&regions, (void *)0x100000); /* never read through */
    shared_region.map =
        (struct hvi_region){.base = (void *)0x400000, .bytes = REGION_BYTES, .fd = -1};
    regions.buckets[7 % ENGINE_REGION_BUCKETS] = &shared_region;
}

static void check_inside(const struct engine_region *region, uint64_t offset, uint64_t bytes)
{
    if (region)
        HVT_FUZZ_REQUIRE(hvi_range_fits(offset, bytes, region->map.bytes));
    else
        HVT_FUZZ_REQUIRE(bytes == 0);
}

static bool moves(uint32_t kind)
{
    return kind == HVI_KIND_ALLREDUCE || kind == HVI_KIND_ALLGATHER || kind == HVI_KIND_BROADCAST ||
           kind == HVI_KIND_ALLTOALL || kind == HVI_KIND_REDUCESCATTER || kind == HVI_KIND_SEND ||
           kind == HVI_KIND_RECV;
}

static void check_integers(const struct hvi_submission *op, const struct engine_intake_view *view,
                           const struct engine_operands *operands)
{
    uint64_t count = op->aux_count;

    if (!operands->aux)
        return;
    HVT_FUZZ_REQUIRE(op->kind == HVI_KIND_ALLTOALL || op->kind == HVI_KIND_SET_ADD ||
                     op->kind == HVI_KIND_SET_OPEN);
    if (op->kind == HVI_KIND_ALLTOALL) {
        HVT_FUZZ_REQUIRE(count == 0 || count == view->set_size);
        count += view->set_size;
    }
    check_inside(operands->aux, op->aux_offset, count * 8);
    HVT_FUZZ_REQUIRE(op->aux_offset % 8 == 0 && count <= 2 * HVI_RANKS_MAX);
}

static void check_group(const struct hvi_submission *op, const struct engine_intake_view *view)
{
    if (view->group != 0)
        HVT_FUZZ_REQUIRE(op->group == view->group && op->group_index == view->group_next &&
                         op->group_size == view->group_size && op->process_set == view->group_set);
    else if (op->group != 0)
        HVT_FUZZ_REQUIRE(op->group_index == 0);
    if (op->group != 0)
        HVT_FUZZ_REQUIRE(op->group_size > 0 && op->group_size <= ENGINE_GROUP_MAX &&
                         moves(op->kind));
}

static void check_op(const struct hvi_submission *op, const struct engine_intake_view *view,
                     const struct engine_operands *operands)
{
    uint64_t elements = 1, size = hvi_dtype_bytes(op->dtype);

    HVT_FUZZ_REQUIRE(hvi_kind_is_known(op->kind) && !view->cookie_known);
    check_group(op, view);
    check_integers(op, view, operands);
    if (!moves(op->kind))
        return;
    HVT_FUZZ_REQUIRE(size > 0 && op->ndim <= HVI_DIMS_MAX);
    for (uint32_t i = 0; i < op->ndim; i++)
        elements *= (uint64_t)op->dims[i];
    HVT_FUZZ_REQUIRE(elements == op->count && operands->in_bytes == op->count * size);
    if (op->kind == HVI_KIND_SEND || op->kind == HVI_KIND_RECV)
        HVT_FUZZ_REQUIRE(!(op->kind == HVI_KIND_SEND ? operands->out : operands->in) &&
                         op->root != view->rank && op->root < view->size && op->group == 0);
    if ((op->kind != HVI_KIND_BROADCAST && op->kind != HVI_KIND_RECV) || op->root == view->rank ||
        operands->in)
        check_inside(operands->in, op->in_offset, operands->in_bytes);
    check_inside(operands->out, op->out_offset, op->out_capacity);
    if (op->kind == HVI_KIND_ALLREDUCE || op->kind == HVI_KIND_BROADCAST ||
        op->kind == HVI_KIND_RECV)
        HVT_FUZZ_REQUIRE(op->out_capacity >= operands->in_bytes);
    if (operands->in && operands->in_bytes > 0)
        HVT_FUZZ_REQUIRE(op->in_offset % size == 0);
    if (operands->out && op->out_capacity > 0)
        HVT_FUZZ_REQUIRE(op->out_offset % size == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct engine_operands operands = {0};
    struct hvi_submission op;
    char text[160];

    if (size < 1 + sizeof op)
        return 0;
    if (regions.inline_area.map.bytes == 0)
        make_regions();
    memcpy(&op, data + 1, sizeof op);
    const struct engine_intake_view view = {
        .regions = &regions,
        .next_seq = 1,
        .in_flight = data[0] & 1 ? HVI_CQ_SLOTS : 3,
        .rank = 1,
        .size = 4,
        .set_size = data[0] & 16 ? 0 : 4,
        .group = data[0] & 32 ? 9 : 0,
        .group_size = 5,
        .group_next = 2,
        .cookie_known = (data[0] & 2) != 0,
        .wants_output = (data[0] & 6) == 6,
        .tensor_known = (data[0] & 8) == 0,
    };
    memset(text, 0x7f, sizeof text);
    int status = engine_intake_validate(&op, &view, &operands, text, sizeof text);
    if (status != HVI_OK) {
        HVT_FUZZ_REQUIRE(memchr(text, '\0', sizeof text) != NULL);
        HVT_FUZZ_REQUIRE(status == HVI_ERR_PROTOCOL);
        return 0;
    }
    HVT_FUZZ_REQUIRE(op.seq == 1);
    if (op.kind == HVI_SUBMIT_CANCEL)
        return 0;
    if (op.kind == HVI_SUBMIT_OUTPUT)
        check_inside(operands.out, op.out_offset, op.out_capacity);
    else
        check_op(&op, &view, &operands);
    return 0;
}

size_t hvt_fuzz_seed(unsigned index, uint8_t *bytes_p, size_t room)
{
    static const uint16_t kinds[] = {
        HVI_KIND_ALLREDUCE, HVI_KIND_ALLGATHER,  HVI_KIND_BROADCAST,     HVI_KIND_BARRIER,
        HVI_SUBMIT_OUTPUT,  HVI_KIND_ALLTOALL,   HVI_KIND_REDUCESCATTER, HVI_KIND_JOIN,
        HVI_KIND_SET_ADD,   HVI_KIND_SET_REMOVE, HVI_SUBMIT_CANCEL,      HVI_KIND_SEND,
        HVI_KIND_RECV,      HVI_KIND_SET_OPEN,   HVI_KIND_SET_CLOSE,
    };
    struct hvi_submission op = {.seq = 1, .cookie = 5, .dtype = HVI_DTYPE_FLOAT32, .ndim = 2};

    if (index >= 2 * sizeof kinds / sizeof kinds[0] || room < 1 + sizeof op)
        return 0;
    op.kind = kinds[index / 2];
    op.reduce_op = HVI_REDUCE_SUM;
    op.root = op.kind == HVI_KIND_BROADCAST || op.kind == HVI_KIND_SEND ? 1 : -1;
    op.in_region = index % 2 ? 7 : HVI_REGION_INLINE;
    op.out_region = 7;
    op.out_offset = 8192;
    op.count = 12;
    op.out_capacity = 48;
    if (op.kind == HVI_KIND_RECV)
        op.in_region = HVI_REGION_NONE;
    if (op.kind == HVI_KIND_SEND) {
        op.out_region = HVI_REGION_NONE;
        op.out_capacity = 0;
    }
    op.dims[0] = 3;
    op.dims[1] = 4;
    op.flags = index % 2 ? HVI_SUBMIT_NAMED : 0;
    if (op.kind == HVI_KIND_SEND || op.kind == HVI_KIND_RECV || op.kind == HVI_KIND_SET_OPEN)
        op.flags = HVI_SUBMIT_ANON;
    op.name_bytes = 10;
    op.aux_region = index % 2 ? 7 : HVI_REGION_NONE;
    op.aux_count = index % 2 ? 4 : 0;
    bytes_p[0] = op.kind == HVI_SUBMIT_OUTPUT ? 6 : 0;
    memcpy(bytes_p + 1, &op, sizeof op);
    return 1 + sizeof op;
}
