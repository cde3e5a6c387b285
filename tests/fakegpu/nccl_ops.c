/* SPDX-License-Identifier: Apache-2.0
 * What ops do. A collective goes in rounds: each rank puts a piece into its stage, all meet, each takes what is its own from the
 * stages, all meet again. Sums are those of reduce/, in the order of ranks; minimum and maximum lose NaNs, as
 * NCCL's. A send is a letter for each 64 KiB, in a box that each pair of ranks has. */
#include "tests/fakegpu/counts.h"
#include "tests/fakegpu/nccl_fake.h"

#include "base/types.h"
#include "reduce/reduce.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    uint32_t dtype, bytes;
} types[] = {
    [GPU_NCCL_INT8] = {HVI_DTYPE_INT8, 1},        [GPU_NCCL_UINT8] = {HVI_DTYPE_UINT8, 1},
    [GPU_NCCL_INT32] = {HVI_DTYPE_INT32, 4},      [GPU_NCCL_UINT32] = {HVI_DTYPE_COUNT, 4},
    [GPU_NCCL_INT64] = {HVI_DTYPE_INT64, 8},      [GPU_NCCL_UINT64] = {HVI_DTYPE_COUNT, 8},
    [GPU_NCCL_FLOAT16] = {HVI_DTYPE_FLOAT16, 2},  [GPU_NCCL_FLOAT32] = {HVI_DTYPE_FLOAT32, 4},
    [GPU_NCCL_FLOAT64] = {HVI_DTYPE_FLOAT64, 8},  [GPU_NCCL_BFLOAT16] = {HVI_DTYPE_BFLOAT16, 2},
    [GPU_NCCL_E4M3] = {HVI_DTYPE_FLOAT8_E4M3, 1}, [GPU_NCCL_E5M2] = {HVI_DTYPE_FLOAT8_E5M2, 1},
};
static const uint32_t reductions[] = {
    [GPU_NCCL_SUM] = HVI_REDUCE_SUM,
    [GPU_NCCL_PRODUCT] = HVI_REDUCE_PRODUCT,
    [GPU_NCCL_MAX] = HVI_REDUCE_MAX,
    [GPU_NCCL_MIN] = HVI_REDUCE_MIN,
};

size_t fake_nccl_element(int type)
{
    return types[type].bytes;
}

static char *stage_of(const struct gpu_nccl_comm *comm, int rank)
{
    return comm->stages + (size_t)rank * FAKE_NCCL_STAGE;
}

/* reduce/ has no unsigned 32 and 64 bits. */
static uint64_t reduce_unsigned(int op, uint64_t a, uint64_t b)
{
    switch (op) {
    case GPU_NCCL_SUM:
        return a + b;
    case GPU_NCCL_PRODUCT:
        return a * b;
    case GPU_NCCL_MAX:
        return a > b ? a : b;
    default:
        return a < b ? a : b;
    }
}

static void reduce_words(const struct fake_nccl_op *op, void *out, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        for (int rank = 0; rank < op->comm->ranks; rank++) {
            const void *in = stage_of(op->comm, rank);
            if (op->type == GPU_NCCL_UINT32) {
                uint32_t word = ((const uint32_t *)in)[i], *to = (uint32_t *)out + i;
                *to = rank == 0 ? word : (uint32_t)reduce_unsigned(op->op, *to, word);
            } else {
                uint64_t word = ((const uint64_t *)in)[i], *to = (uint64_t *)out + i;
                *to = rank == 0 ? word : reduce_unsigned(op->op, *to, word);
            }
        }
    }
}

/* Once: what the processor can do is a question that takes a virtual machine tens of microseconds. */
static const struct hvi_kernels *kernels(void)
{
    static const struct hvi_kernels *_Atomic best;

    if (atomic_load(&best) == NULL)
        atomic_store(&best, hvi_kernels_best());
    return atomic_load(&best);
}

static void reduce_some(const struct fake_nccl_op *op, const void *const *in, uint32_t ins,
                        void *out, size_t count)
{
    const struct hvi_reduction reduction = {.dtype = types[op->type].dtype,
                                            .reduce_op = reductions[op->op],
                                            .ranks = ins,
                                            .ins = ins,
                                            .outs = 1,
                                            .in = in,
                                            .out = &out,
                                            .prescale = 1,
                                            .postscale = 1};

    if (count > 0)
        kernels()->reduce(&reduction, 0, count);
}

static bool is_nan(int type, const void *element)
{
    uint16_t half;
    float single;
    double wide;

    switch (type) {
    case GPU_NCCL_FLOAT16:
    case GPU_NCCL_BFLOAT16:
        memcpy(&half, element, sizeof(half));
        return (half & 0x7fffu) > (type == GPU_NCCL_FLOAT16 ? 0x7c00u : 0x7f80u);
    case GPU_NCCL_FLOAT32:
        memcpy(&single, element, sizeof(single));
        return isnan(single);
    case GPU_NCCL_FLOAT64:
        memcpy(&wide, element, sizeof(wide));
        return isnan(wide);
    case GPU_NCCL_E4M3:
        return (*(const uint8_t *)element & 0x7fu) == 0x7fu;
    case GPU_NCCL_E5M2:
        return (*(const uint8_t *)element & 0x7fu) > 0x7cu;
    default:
        return false;
    }
}

/* As fminf and fmaxf, a NaN is passed over where another rank has a number. */
static void reduce_extreme(const struct fake_nccl_op *op, char *out, size_t count)
{
    const size_t element = types[op->type].bytes;

    for (size_t i = 0; i < count; i++) {
        const void *in[FAKE_NCCL_RANKS] = {stage_of(op->comm, 0) + i * element};
        uint32_t ins = 0;
        for (int rank = 0; rank < op->comm->ranks; rank++) {
            const char *from = stage_of(op->comm, rank) + i * element;
            if (!is_nan(op->type, from))
                in[ins++] = from;
        }
        reduce_some(op, in, ins > 0 ? ins : 1, out + i * element, 1);
    }
}

static void reduce(const struct fake_nccl_op *op, void *out, size_t bytes)
{
    const void *in[FAKE_NCCL_RANKS];
    const size_t count = bytes / types[op->type].bytes;

    if (types[op->type].dtype == HVI_DTYPE_COUNT) {
        reduce_words(op, out, count);
        return;
    }
    if (op->op == GPU_NCCL_MIN || op->op == GPU_NCCL_MAX) {
        reduce_extreme(op, out, count);
        return;
    }
    for (int rank = 0; rank < op->comm->ranks; rank++)
        in[rank] = stage_of(op->comm, rank);
    reduce_some(op, in, (uint32_t)op->comm->ranks, out, count);
}

/* `segment`: of a reduce_scatter, the rank whose part it is. */
static void put(const struct fake_nccl_op *op, size_t segment, size_t total, size_t at,
                size_t bytes)
{
    const char *in = op->in;

    if (bytes == 0 || (op->kind == BROADCAST && op->peer != op->comm->rank))
        return;
    memcpy(stage_of(op->comm, op->comm->rank), in + segment * total + at, bytes);
}

static void take(const struct fake_nccl_op *op, size_t segment, size_t total, size_t at,
                 size_t bytes)
{
    char *out = op->out;

    if (bytes == 0)
        return;
    switch (op->kind) {
    case ALL_REDUCE:
        reduce(op, out + at, bytes);
        break;
    case REDUCE_SCATTER:
        if (segment == (size_t)op->comm->rank)
            reduce(op, out + at, bytes);
        break;
    case BROADCAST:
        memcpy(out + at, stage_of(op->comm, op->peer), bytes);
        break;
    default:
        for (int rank = 0; rank < op->comm->ranks; rank++)
            memcpy(out + (size_t)rank * total + at, stage_of(op->comm, rank), bytes);
    }
}

static void compare(const struct fake_nccl_op *op)
{
    const struct fake_nccl_said *self = &op->comm->area->members[op->comm->rank].said;

    for (int rank = 0; rank < op->comm->ranks; rank++) {
        const struct fake_nccl_said *said = &op->comm->area->members[rank].said;
        if (said->number == self->number && said->registered != self->registered)
            fake_blame("of NCCL's op %llu rank %d has registered memory and rank %d has not",
                       (unsigned long long)self->number,
                       said->registered > self->registered ? rank : op->comm->rank,
                       said->registered > self->registered ? op->comm->rank : rank);
        if (memcmp(said, self, sizeof(*said)) != 0)
            fake_blame(
                "the ranks' NCCL ops differ: op %llu of rank %d is kind %u, %llu of type %u, "
                "op %u, root %u; of rank %d it is %llu, kind %u, %llu of type %u, op %u, root "
                "%u",
                (unsigned long long)self->number, op->comm->rank, self->kind,
                (unsigned long long)self->count, self->type, self->op, self->root, rank,
                (unsigned long long)said->number, said->kind, (unsigned long long)said->count,
                said->type, said->op, said->root);
    }
}

static void run_collective(const struct fake_nccl_op *op)
{
    const size_t total = op->count * types[op->type].bytes;
    const size_t segments = op->kind == REDUCE_SCATTER ? (size_t)op->comm->ranks : 1;

    op->comm->area->members[op->comm->rank].said = (struct fake_nccl_said){
        (uint32_t)op->kind, (uint32_t)op->type,  (uint32_t)op->op,  (uint32_t)op->peer,
        op->registered,     (uint64_t)op->count, ++op->comm->number};
    if (op->registered == 3)
        atomic_fetch_add(&fake_nccl_registered_ops, 1);
    for (size_t segment = 0; segment < segments; segment++) {
        size_t at = 0;
        do {
            const size_t left = total - at, bytes = left < FAKE_NCCL_STAGE ? left : FAKE_NCCL_STAGE;
            put(op, segment, total, at, bytes);
            if (!fake_nccl_meet(op->comm))
                return;
            compare(op);
            take(op, segment, total, at, bytes);
            if (!fake_nccl_meet(op->comm))
                return;
            at += bytes;
        } while (at < total);
    }
}

/* --- sends and receives --- */

static struct fake_nccl_mail *box_of(const struct fake_nccl_op *op)
{
    const int rank = op->comm->rank, from = op->kind == SEND ? rank : op->peer;
    const int to = op->kind == SEND ? op->peer : rank;

    return &op->comm->mail[from * op->comm->ranks + to];
}

static size_t total_of(const struct fake_nccl_op *op)
{
    return op->count * types[op->type].bytes;
}

/* Whether it went on. */
static bool send_some(struct fake_nccl_op *op, struct fake_nccl_mail *box)
{
    const size_t left = total_of(op) - op->done;

    if (atomic_load(&box->is_full) != 0)
        return false;
    box->type = (uint32_t)op->type;
    box->count = op->count;
    box->bytes = left < FAKE_NCCL_MAIL ? left : FAKE_NCCL_MAIL;
    memcpy(box->data, (const char *)op->in + op->done, box->bytes);
    op->done += box->bytes;
    atomic_store(&box->is_full, 1);
    return true;
}

static bool receive_some(struct fake_nccl_op *op, struct fake_nccl_mail *box)
{
    if (atomic_load(&box->is_full) == 0)
        return false;
    if (box->count != op->count || box->type != (uint32_t)op->type)
        fake_blame("NCCL: rank %d sends %llu of type %u, rank %d receives %zu of type %d", op->peer,
                   (unsigned long long)box->count, box->type, op->comm->rank, op->count, op->type);
    memcpy((char *)op->out + op->done, box->data, box->bytes);
    op->done += box->bytes;
    atomic_store(&box->is_full, 0);
    return true;
}

/* Those of one pair go in their order. */
static bool is_first(const struct fake_nccl_batch *batch, size_t at)
{
    const struct fake_nccl_op *op = &batch->ops[at];

    for (size_t i = 0; i < at; i++) {
        const struct fake_nccl_op *other = &batch->ops[i];
        if (other->kind == op->kind && other->peer == op->peer && other->done < total_of(other))
            return false;
    }
    return op->done < total_of(op);
}

static void run_letters(struct fake_nccl_batch *batch)
{
    unsigned round = 0;

    for (;;) {
        bool is_over = true, is_moving = false;
        for (size_t i = 0; i < batch->count; i++) {
            struct fake_nccl_op *op = &batch->ops[i];
            is_over = is_over && op->done == total_of(op);
            if (is_first(batch, i))
                is_moving |=
                    op->kind == SEND ? send_some(op, box_of(op)) : receive_some(op, box_of(op));
        }
        if (is_over)
            return;
        if (!is_moving && !fake_nccl_wait(batch->comm, &round))
            return;
    }
}

void fake_nccl_run(void *data)
{
    struct fake_nccl_batch *batch = *(struct fake_nccl_batch **)data;
    struct gpu_nccl_comm *comm = batch->comm;
    unsigned round = 0;

    if (batch->is_failing)
        atomic_store(&comm->async_error, FAKE_NCCL_SYSTEM_ERROR);
    while (batch->is_hanging || batch->is_failing) {
        if (!fake_nccl_wait(comm, &round))
            break;
    }
    atomic_fetch_add(&fake_counts()->nccl, 1);
    if (!atomic_load(&comm->is_aborted)) {
        if (batch->ops[0].kind == SEND || batch->ops[0].kind == RECEIVE)
            run_letters(batch);
        else
            run_collective(&batch->ops[0]);
    }
    free(batch);
    atomic_fetch_sub(&comm->pending, 1);
}
