/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/engine/hvt_ops.h"

#include "base/status.h"

#include <stdio.h>
#include <string.h>

/* An id per name and set; a test has few. */
static uint32_t id_of(const char *name, uint32_t set)
{
    uint32_t hash = set * 977;

    while (*name)
        hash = hash * 31 + (unsigned char)*name++;
    return hash % HVI_TENSOR_IDS;
}

struct hvi_submission hvt_op(struct hvt_bench *bench, int32_t rank, uint16_t kind, uint64_t count,
                             const char *name, uint32_t set)
{
    struct hvi_submission op =
        hvt_peer_op(&bench->peers[rank], kind, HVI_DTYPE_FLOAT32, count, HVI_REGION_INLINE);

    if (kind == HVI_KIND_JOIN || kind == HVI_KIND_SET_ADD || kind == HVI_KIND_SET_REMOVE ||
        kind == HVI_KIND_SET_OPEN || kind == HVI_KIND_SET_CLOSE) {
        op.in_region = op.out_region = HVI_REGION_NONE;
        op.out_capacity = 0;
    }
    op.aux_region = HVI_REGION_NONE;
    op.process_set = set;
    hvt_peer_name(&bench->peers[rank], &op, id_of(name, set), name);
    return op;
}

void hvt_op_integers(struct hvt_bench *bench, int32_t rank, struct hvi_submission *op,
                     const int64_t *integers, uint32_t count)
{
    char *at = (char *)hvt_peer_memory(&bench->peers[rank], HVI_REGION_INLINE) + HVT_AUX_AT;

    if (count > 0)
        memcpy(at, integers, count * sizeof *integers);
    op->aux_region = HVI_REGION_INLINE;
    op->aux_offset = HVT_AUX_AT;
    op->aux_count = count;
}

void hvt_op_output(struct hvi_submission *op, uint64_t capacity)
{
    op->out_region = capacity > 0 ? HVI_REGION_INLINE : HVI_REGION_NONE;
    op->out_offset = capacity > 0 ? HVT_OUT_AT : 0;
    op->out_capacity = capacity;
}

void hvt_op_group(struct hvi_submission *ops, uint32_t count, uint32_t group)
{
    for (uint32_t i = 0; i < count; i++) {
        ops[i].group = group;
        ops[i].group_size = count;
        ops[i].group_index = i;
    }
}

uint64_t hvt_op_submit(struct hvt_bench *bench, int32_t rank, struct hvi_submission op)
{
    uint64_t cookie = hvt_peer_submit(&bench->peers[rank], &op);

    hvt_bench_turn(bench);
    return cookie;
}

uint64_t hvt_op_run(struct hvt_bench *bench, int32_t rank, uint16_t kind, uint64_t count,
                    const char *name, uint32_t set)
{
    return hvt_op_submit(bench, rank, hvt_op(bench, rank, kind, count, name, set));
}

void hvt_op_cancel(struct hvt_bench *bench, int32_t rank, uint64_t cookie)
{
    struct hvi_submission op = {.kind = HVI_SUBMIT_CANCEL, .cookie = cookie};

    hvt_op_submit(bench, rank, op);
}

struct hvi_completion hvt_op_expect(struct hvt_bench *bench, int32_t rank, int status,
                                    const char *sentence)
{
    char text[HVI_TEXT_MAX + 1];
    struct hvi_completion done = hvt_peer_complete(&bench->peers[rank], text, sizeof text);

    ck_assert_msg(done.status == status, "rank %d: status %d where %d was due: %s", rank,
                  done.status, status, text);
    ck_assert_uint_eq(done.kind, HVI_COMPLETE_DONE);
    if (sentence)
        ck_assert_str_eq(text, sentence);
    return done;
}

void hvt_op_expect_all(struct hvt_bench *bench, int32_t first, int32_t last, int status,
                       const char *sentence)
{
    for (int32_t rank = first; rank <= last; rank++)
        hvt_op_expect(bench, rank, status, sentence);
}

void hvt_op_expect_nothing(struct hvt_bench *bench, int32_t first, int32_t last)
{
    for (int32_t rank = first; rank <= last; rank++)
        ck_assert_msg(!hvt_peer_has_completion(&bench->peers[rank]), "rank %d is answered", rank);
}

uint32_t hvt_op_add_set(struct hvt_bench *bench, const int64_t *ranks, uint32_t count)
{
    uint32_t id = 0;

    for (int32_t rank = 0; rank < bench->size; rank++) {
        struct hvi_submission op = hvt_op(bench, rank, HVI_KIND_SET_ADD, 0, "add", 0);
        hvt_op_integers(bench, rank, &op, ranks, count);
        hvt_op_submit(bench, rank, op);
    }
    for (int32_t rank = 0; rank < bench->size; rank++) {
        int64_t rows = hvt_op_expect(bench, rank, HVI_OK, "").rows;
        ck_assert(rank == 0 || rows == (int64_t)id);
        id = (uint32_t)rows;
    }
    return id;
}

void hvt_op_remove_set(struct hvt_bench *bench, uint32_t id)
{
    for (int32_t rank = 0; rank < bench->size; rank++) {
        struct hvi_submission op = hvt_op(bench, rank, HVI_KIND_SET_REMOVE, 0, "remove", 0);
        op.root = (int32_t)id;
        hvt_op_submit(bench, rank, op);
    }
}

float *hvt_op_memory(struct hvt_bench *bench, int32_t rank)
{
    return (float *)(void *)bench->peers[rank].channel.inline_base;
}
