/* SPDX-License-Identifier: Apache-2.0
 * The steps of a batch.
 *
 *   way A  no communicator: one kernel per work, from all inputs to all outputs
 *   B      one member here, one large work: NCCL between input and output
 *   C      small works: pack, NCCL, unpack
 *   D      several members here: reduce to staging, NCCL, spread to the outputs
 *
 * B to D are one thing: rounds. A round is a run of segments, each a part of a work, which lie one behind the other in
 * staging; all workers cut the same rounds. Each worker brings its part into staging (or has it in one input), one NCCL call
 * goes over the round, and the result goes to the outputs (or is there already).
 *
 * What NCCL cannot reduce to the bit, or at all, is gathered: every worker gets the parts of all and reduces them itself, in the
 * order of the communicator's ranks. float8 is among it on every GPU, as workers would have to agree on what theirs can; and
 * minimum and maximum of floating types, as NCCL's lose a NaN. A reducescatter is an allreduce of which each member gets its slice. */
#include "daemon/gpu/maker.h"

#include "base/status.h"
#include "base/types.h"
#include "daemon/gpu/nccl.h"
#include "shm/fence.h"

#include <string.h>

#define ALIGNMENT 16u  /* of a segment in staging */
#define PARTS     256u /* of the parts of all workers */

/* Whether the step is a kernel that may write into members' memory; the others write into staging. */
static bool is_guarded(enum gpu_step_kind kind)
{
    return kind == GPU_STEP_REDUCE || kind == GPU_STEP_SPREAD || kind == GPU_STEP_UNPACK ||
           kind == GPU_STEP_MOVE || kind == GPU_STEP_ADASUM_BLEND;
}

void gpu_maker_emit(struct gpu_maker *maker)
{
    const struct hvd_kernel_guard none = {0};

    if (maker->step.kind <= GPU_STEP_ADASUM_BLEND)
        maker->step.guard = is_guarded(maker->step.kind) ? maker->guard : none;
    if (!maker->is_over && !maker->means->step(maker->means->user, &maker->step))
        maker->is_over = true;
}

uint32_t gpu_maker_element(const struct gpu_maker *maker)
{
    return hvi_dtype_bytes(maker->batch->works[0].said.dtype);
}

/* ---- kernels ---- */

enum part { WHOLE, FIRST, LAST }; /* of a reduction: before, and after other workers come in */

static uint32_t op_of(const struct gpu_work *work)
{
    const uint32_t op = work->said.reduce_op; /* an adasum of one member is a sum */

    return op == HVI_REDUCE_AVERAGE || op == HVI_REDUCE_ADASUM ? HVI_REDUCE_SUM : op;
}

/* Whether an average is scaled before anything is added, lest a sum that is stored in its own narrow type overflows. Of float8,
 * whose parts are added in a wide type, only sums of several members of one worker are stored. */
static bool is_scaled_early(const struct gpu_maker *maker, const struct gpu_work *work)
{
    const struct hvi_device_work *said = &work->said;

    if (said->divisor == 0)
        return false;
    if (said->dtype == HVI_DTYPE_FLOAT8_E4M3 || said->dtype == HVI_DTYPE_FLOAT8_E5M2)
        return said->ranks > maker->batch->comm_ranks;
    return said->dtype == HVI_DTYPE_FLOAT16;
}

/* Of what goes to other workers. */
static double first_scale(const struct gpu_maker *maker, const struct gpu_work *work)
{
    const double divisor = is_scaled_early(maker, work) ? (double)work->said.divisor : 1;

    return work->said.prescale / divisor;
}

/* Of what has come from them. */
static uint32_t last_divisor(const struct gpu_maker *maker, const struct gpu_work *work)
{
    return is_scaled_early(maker, work) ? 0 : work->said.divisor;
}

/* The caller adds inputs and outputs, and calls end_reduce. */
static struct hvd_reduce_args *begin_reduce(struct gpu_maker *maker, const struct gpu_work *work,
                                            enum part part, uint64_t count)
{
    struct hvd_reduce_args *args = &maker->step.reduce;

    maker->step.bytes = count * gpu_maker_element(maker);
    args->dtype = work->said.dtype;
    args->reduce_op = op_of(work);
    args->ins = args->outs = 0;
    args->flags = 0;
    args->divisor = work->said.divisor;
    args->prescale = work->said.prescale;
    args->postscale = work->said.postscale;
    if (part == FIRST) {
        args->divisor = 0;
        args->prescale = first_scale(maker, work);
        args->postscale = 1;
    } else if (part == LAST) {
        args->divisor = last_divisor(maker, work);
        args->prescale = 1;
    }
    args->count = count;
    return args;
}

static void end_reduce(struct gpu_maker *maker)
{
    const struct hvd_reduce_args *args = &maker->step.reduce;

    maker->step.kind = GPU_STEP_REDUCE; /* a spread would keep the payload of a NaN */
    if (args->outs > 0 && args->count > 0)
        gpu_maker_emit(maker);
}

void gpu_maker_begin_moves(struct gpu_maker *maker)
{
    maker->step.kind = GPU_STEP_MOVE;
    maker->step.bytes = 0;
    maker->step.move.pieces = maker->step.move.reserved = 0;
}

void gpu_maker_end_moves(struct gpu_maker *maker)
{
    if (maker->step.move.pieces > 0)
        gpu_maker_emit(maker);
    gpu_maker_begin_moves(maker);
}

/* Moves of one step are independent of each other. */
void gpu_maker_move(struct gpu_maker *maker, uint64_t to, uint64_t from, uint64_t bytes)
{
    struct hvd_move_args *args = &maker->step.move;

    if (bytes == 0 || to == from)
        return;
    if (args->pieces == HVD_KERNEL_MOVES)
        gpu_maker_end_moves(maker);
    args->piece[args->pieces].to = to;
    args->piece[args->pieces].from = from;
    args->piece[args->pieces++].bytes = bytes;
    maker->step.bytes += bytes;
}

/* ---- NCCL ---- */

/* -1: it is none of NCCL's, or is gathered. */
static int reducible_type(uint32_t dtype)
{
    static const int8_t types[HVI_DTYPE_COUNT] = {
        [HVI_DTYPE_UINT8] = GPU_NCCL_UINT8,
        [HVI_DTYPE_INT8] = GPU_NCCL_INT8,
        [HVI_DTYPE_UINT16] = -1,
        [HVI_DTYPE_INT16] = -1,
        [HVI_DTYPE_INT32] = GPU_NCCL_INT32,
        [HVI_DTYPE_INT64] = GPU_NCCL_INT64,
        [HVI_DTYPE_FLOAT16] = GPU_NCCL_FLOAT16,
        [HVI_DTYPE_FLOAT32] = GPU_NCCL_FLOAT32,
        [HVI_DTYPE_FLOAT64] = GPU_NCCL_FLOAT64,
        [HVI_DTYPE_BOOL] = -1,
        [HVI_DTYPE_BFLOAT16] = GPU_NCCL_BFLOAT16,
        [HVI_DTYPE_FLOAT8_E4M3] = -1,
        [HVI_DTYPE_FLOAT8_E5M2] = -1,
    };
    return types[dtype];
}

static int nccl_op(const struct gpu_work *work)
{
    switch (work->said.reduce_op) {
    case HVI_REDUCE_MIN:
        return GPU_NCCL_MIN;
    case HVI_REDUCE_MAX:
        return GPU_NCCL_MAX;
    case HVI_REDUCE_PRODUCT:
        return GPU_NCCL_PRODUCT;
    default:
        return GPU_NCCL_SUM;
    }
}

void gpu_maker_call(struct gpu_maker *maker, enum gpu_step_kind kind, uint64_t in, uint64_t out,
                    uint64_t bytes, int peer)
{
    maker->step = (struct gpu_step){
        .kind = kind,
        .nccl = {.in = in, .out = out, .count = bytes, .type = GPU_NCCL_UINT8, .peer = peer}};
    gpu_maker_emit(maker);
}

/* ---- members ---- */

static uint64_t first_out(const struct gpu_work *work)
{
    for (uint32_t i = 0; i < work->said.members; i++) {
        if (work->members[i].out != 0)
            return work->members[i].out;
    }
    return 0;
}

const struct gpu_member *gpu_maker_member(const struct gpu_work *work, uint32_t place)
{
    for (uint32_t i = 0; i < work->said.members; i++) {
        if (work->members[i].place == place)
            return &work->members[i];
    }
    return NULL;
}

/* ---- reductions of one GPU ---- */

static void reduce_here(struct gpu_maker *maker, const struct gpu_work *work)
{
    struct hvd_reduce_args *args = begin_reduce(maker, work, WHOLE, work->said.count);

    for (uint32_t i = 0; i < work->said.members; i++) {
        args->in[args->ins++] = work->members[i].in;
        if (work->members[i].out != 0)
            args->out[args->outs++] = work->members[i].out;
    }
    end_reduce(maker);
}

/* Each slice is a reduction of its own. */
static void scatter_here(struct gpu_maker *maker, const struct gpu_work *work)
{
    uint64_t at = 0;

    for (uint32_t place = 0; place < work->said.ranks; at += work->sizes[place++]) {
        const struct gpu_member *member = gpu_maker_member(work, place);
        if (member == NULL || member->out == 0)
            continue;
        struct hvd_reduce_args *args =
            begin_reduce(maker, work, WHOLE, work->sizes[place] / gpu_maker_element(maker));
        for (uint32_t i = 0; i < work->said.members; i++)
            args->in[args->ins++] = work->members[i].in + at;
        args->out[args->outs++] = member->out;
        end_reduce(maker);
    }
}

void gpu_maker_sole(struct gpu_maker *maker, const struct gpu_work *work)
{
    if (work->said.kind == HVI_KIND_ALLREDUCE)
        reduce_here(maker, work);
    else
        scatter_here(maker, work);
}

/* ---- rounds ---- */

struct segment {
    const struct gpu_work *work;
    uint64_t first, bytes; /* of the work */
    uint64_t at;           /* in staging */
};

struct round {
    uint32_t count;
    uint64_t bytes; /* to the end of the last segment */
    uint64_t result;
    struct segment segments[HVI_DEVICE_WORKS];
};

static bool is_floating(uint32_t dtype)
{
    return dtype == HVI_DTYPE_FLOAT16 || dtype == HVI_DTYPE_FLOAT32 || dtype == HVI_DTYPE_FLOAT64 ||
           dtype == HVI_DTYPE_BFLOAT16;
}

/* A batch is of one type and operation. */
static bool is_gathered(const struct gpu_maker *maker)
{
    const struct hvi_device_work *said = &maker->batch->works[0].said;
    const bool is_extreme = said->reduce_op == HVI_REDUCE_MIN || said->reduce_op == HVI_REDUCE_MAX;

    return reducible_type(said->dtype) < 0 || (is_extreme && is_floating(said->dtype));
}

static uint64_t round_up(uint64_t value, uint64_t to)
{
    return (value + to - 1) / to * to;
}

/* The most bytes of a round: staging has one part, or that of this worker and those of all. */
static uint64_t round_limit(const struct gpu_maker *maker)
{
    const uint64_t bytes = maker->means->staging_bytes;

    return is_gathered(maker) ? bytes / (maker->batch->comm_ranks + 1) / PARTS * PARTS : bytes;
}

/* A round of one segment whose members here bring one input needs no copy of it. 0: it does. */
static uint64_t sole_input(const struct gpu_maker *maker, const struct round *round)
{
    const struct segment *segment = &round->segments[0];
    const struct gpu_work *work = segment->work;

    if (round->count > 1 || work->said.members > 1 || first_scale(maker, work) != 1)
        return 0;
    return work->members[0].in + segment->first;
}

/* An allreduce of one segment with one output here is written where it belongs. 0: it is not. */
static uint64_t sole_output(const struct round *round)
{
    const struct segment *segment = &round->segments[0];
    const struct gpu_work *work = segment->work;

    if (round->count > 1 || work->said.kind != HVI_KIND_ALLREDUCE || work->said.members > 1 ||
        work->members[0].out == 0)
        return 0;
    return work->members[0].out + segment->first;
}

static void set_pack(struct gpu_maker *maker, enum gpu_step_kind kind, const struct round *round,
                     uint64_t base)
{
    const struct gpu_work *work = round->segments[0].work;
    struct hvd_pack_args *args = &maker->step.pack;
    const bool packs = kind == GPU_STEP_PACK;

    maker->step.kind = kind;
    maker->step.bytes = round->bytes;
    args->dtype = work->said.dtype;
    args->pieces = args->flags = 0;
    args->divisor = packs ? 0 : last_divisor(maker, work);
    args->prescale = packs ? first_scale(maker, work) : 1;
    args->postscale = packs ? 1 : work->said.postscale;
    args->base = base;
}

/* One member here: all segments in one step. */
static void pack(struct gpu_maker *maker, enum gpu_step_kind kind, const struct round *round,
                 uint64_t base)
{
    struct hvd_pack_args *args = &maker->step.pack;

    set_pack(maker, kind, round, base);
    for (uint32_t i = 0; i < round->count; i++) {
        const struct segment *segment = &round->segments[i];
        const struct gpu_member *member = &segment->work->members[0];
        const uint64_t piece = kind == GPU_STEP_PACK ? member->in : member->out;
        if (piece == 0)
            continue;
        args->piece[args->pieces].piece = piece + segment->first;
        args->piece[args->pieces].at = segment->at;
        args->piece[args->pieces++].count = segment->bytes / gpu_maker_element(maker);
    }
    if (args->pieces > 0)
        gpu_maker_emit(maker);
}

static void reduce_to_staging(struct gpu_maker *maker, const struct segment *segment)
{
    const struct gpu_work *work = segment->work;
    struct hvd_reduce_args *args =
        begin_reduce(maker, work, FIRST, segment->bytes / gpu_maker_element(maker));

    for (uint32_t i = 0; i < work->said.members; i++)
        args->in[args->ins++] = work->members[i].in + segment->first;
    args->out[args->outs++] = maker->means->staging + segment->at;
    end_reduce(maker);
}

/* What the members here bring. Returns where it lies. */
static uint64_t bring(struct gpu_maker *maker, const struct round *round)
{
    const uint64_t sole = sole_input(maker, round);

    if (sole != 0)
        return sole;
    if (round->segments[0].work->said.members == 1) {
        pack(maker, GPU_STEP_PACK, round, maker->means->staging);
        return maker->means->staging;
    }
    for (uint32_t i = 0; i < round->count; i++)
        reduce_to_staging(maker, &round->segments[i]);
    return maker->means->staging;
}

/* Adds parts of workers from `done` on, as many as a kernel takes. What the earlier ones were reduced to lies in the place of
 * the first. Returns how many are done then. */
static uint32_t add_parts(struct gpu_maker *maker, const struct round *round, uint64_t at,
                          uint32_t done)
{
    struct hvd_reduce_args *args = &maker->step.reduce;

    args->ins = 0;
    if (done > 0)
        args->in[args->ins++] = round->result + at;
    while (done < maker->batch->comm_ranks && args->ins < HVD_KERNEL_PIECES)
        args->in[args->ins++] = round->result + done++ * round->bytes + at;
    return done;
}

/* The step has its outputs, and reduces the parts of all workers into them. `at`: bytes into the round. */
static void reduce_parts(struct gpu_maker *maker, const struct round *round, uint64_t at)
{
    struct hvd_reduce_args *args = &maker->step.reduce;
    const struct hvd_reduce_args last = *args;
    uint32_t done = 0;

    while ((done = add_parts(maker, round, at, done)) < maker->batch->comm_ranks) {
        args->divisor = 0;
        args->postscale = 1;
        args->outs = 1;
        args->out[0] = round->result + at;
        end_reduce(maker);
        args->divisor = last.divisor;
        args->postscale = last.postscale;
        args->outs = last.outs;
        memcpy(args->out, last.out, sizeof(last.out));
    }
    end_reduce(maker);
}

/* The step has its outputs. */
static void finish_step(struct gpu_maker *maker, const struct round *round, uint64_t at)
{
    struct hvd_reduce_args *args = &maker->step.reduce;

    if (is_gathered(maker)) {
        reduce_parts(maker, round, at);
        return;
    }
    args->in[args->ins++] = round->result + at;
    end_reduce(maker);
}

static void spread_segment(struct gpu_maker *maker, const struct round *round,
                           const struct segment *segment)
{
    const struct gpu_work *work = segment->work;
    struct hvd_reduce_args *args =
        begin_reduce(maker, work, LAST, segment->bytes / gpu_maker_element(maker));

    for (uint32_t i = 0; i < work->said.members; i++) {
        if (work->members[i].out != 0)
            args->out[args->outs++] = work->members[i].out + segment->first;
    }
    finish_step(maker, round, segment->at);
}

/* Of a reducescatter: what of the members' slices lies in the segment. */
static void scatter_segment(struct gpu_maker *maker, const struct round *round,
                            const struct segment *segment)
{
    const struct gpu_work *work = segment->work;
    const uint64_t end = segment->first + segment->bytes;
    uint64_t at = 0;

    for (uint32_t place = 0; place < work->said.ranks; at += work->sizes[place++]) {
        const struct gpu_member *member = gpu_maker_member(work, place);
        const uint64_t from = at > segment->first ? at : segment->first;
        const uint64_t slice_end = at + work->sizes[place];
        const uint64_t to = slice_end < end ? slice_end : end;
        if (member == NULL || member->out == 0 || from >= to)
            continue;
        struct hvd_reduce_args *args =
            begin_reduce(maker, work, LAST, (to - from) / gpu_maker_element(maker));
        args->out[args->outs++] = member->out + (from - at);
        finish_step(maker, round, segment->at + (from - segment->first));
    }
}

/* Whether what NCCL has left in an output is the result. */
static bool is_finished(const struct gpu_maker *maker, const struct round *round)
{
    const struct gpu_work *work = round->segments[0].work;

    return sole_output(round) != 0 && last_divisor(maker, work) == 0 && work->said.postscale == 1;
}

static void hand_out(struct gpu_maker *maker, const struct round *round)
{
    const struct hvi_device_work *said = &round->segments[0].work->said;

    if (!is_gathered(maker) && is_finished(maker, round))
        return;
    if (said->kind == HVI_KIND_ALLREDUCE && said->members == 1 && !is_gathered(maker) &&
        round->count > 1) {
        pack(maker, GPU_STEP_UNPACK, round, round->result);
        return;
    }
    for (uint32_t i = 0; i < round->count; i++) {
        if (said->kind == HVI_KIND_ALLREDUCE)
            spread_segment(maker, round, &round->segments[i]);
        else
            scatter_segment(maker, round, &round->segments[i]);
    }
}

static void run_round(struct gpu_maker *maker, struct round *round)
{
    const struct gpu_work *work = round->segments[0].work;
    const uint64_t input = bring(maker, round);

    if (is_gathered(maker)) {
        round->result = maker->means->staging + round_up(round->bytes, PARTS);
        gpu_maker_call(maker, GPU_STEP_ALL_GATHER, input, round->result, round->bytes, 0);
    } else {
        round->result = sole_output(round);
        if (round->result == 0)
            round->result = maker->means->staging;
        maker->step = (struct gpu_step){.kind = GPU_STEP_ALL_REDUCE,
                                        .nccl = {.in = input,
                                                 .out = round->result,
                                                 .count = round->bytes / gpu_maker_element(maker),
                                                 .type = reducible_type(work->said.dtype),
                                                 .op = nccl_op(work)}};
        gpu_maker_emit(maker);
    }
    hand_out(maker, round);
    round->count = 0;
    round->bytes = 0;
}

static void add_segment(struct round *round, const struct gpu_work *work, uint64_t first,
                        uint64_t bytes)
{
    const uint64_t at = round_up(round->bytes, ALIGNMENT);

    round->segments[round->count++] = (struct segment){work, first, bytes, at};
    round->bytes = at + bytes;
}

static bool is_small(const struct gpu_work *work, uint64_t limit)
{
    return work->said.bytes < GPU_PLAN_SMALL && work->said.bytes <= limit;
}

static void reduce_together(struct gpu_maker *maker)
{
    const struct gpu_batch *batch = maker->batch;
    const uint64_t limit = round_limit(maker);
    struct round round = {.count = 0};

    for (uint32_t i = 0; i < batch->work_count; i++) {
        const struct gpu_work *work = &batch->works[i];
        if (work->said.bytes == 0 || !is_small(work, limit))
            continue;
        if (round.count > 0 && round_up(round.bytes, ALIGNMENT) + work->said.bytes > limit)
            run_round(maker, &round);
        add_segment(&round, work, 0, work->said.bytes);
    }
    if (round.count > 0)
        run_round(maker, &round);
    for (uint32_t i = 0; i < batch->work_count; i++) {
        const struct gpu_work *work = &batch->works[i];
        for (uint64_t at = 0; at < work->said.bytes && !is_small(work, limit); at += limit) {
            const uint64_t left = work->said.bytes - at;
            add_segment(&round, work, at, left < limit ? left : limit);
            run_round(maker, &round);
        }
    }
}

/* ---- broadcast ---- */

static uint64_t root_input(const struct gpu_work *work)
{
    return work->said.root_member < 0 ? 0 : work->members[work->said.root_member].in;
}

/* From an address to all outputs but that one. */
static void spread_copy(struct gpu_maker *maker, const struct gpu_work *work, uint64_t from)
{
    struct hvd_reduce_args *args =
        begin_reduce(maker, work, WHOLE, work->said.bytes / gpu_maker_element(maker));

    args->reduce_op = HVI_REDUCE_SUM;
    args->divisor = 0;
    args->prescale = args->postscale = 1;
    args->in[args->ins++] = from;
    for (uint32_t i = 0; i < work->said.members; i++) {
        if (work->members[i].out != 0 && work->members[i].out != from)
            args->out[args->outs++] = work->members[i].out;
    }
    maker->step.kind = GPU_STEP_SPREAD;
    if (args->outs > 0)
        gpu_maker_emit(maker);
}

static void broadcast_together(struct gpu_maker *maker)
{
    const struct gpu_batch *batch = maker->batch;

    gpu_maker_call(maker, GPU_STEP_GROUP, 0, 0, 0, 0);
    for (uint32_t i = 0; i < batch->work_count; i++) {
        const struct gpu_work *work = &batch->works[i];
        const uint64_t in = root_input(work), out = first_out(work);
        if (work->said.bytes > 0)
            gpu_maker_call(maker, GPU_STEP_BROADCAST, in != 0 ? in : out, out != 0 ? out : in,
                           work->said.bytes, work->said.root);
    }
    gpu_maker_call(maker, GPU_STEP_GROUP_END, 0, 0, 0, 0);
    for (uint32_t i = 0; i < batch->work_count; i++) {
        const struct gpu_work *work = &batch->works[i];
        if (work->said.bytes > 0)
            spread_copy(maker, work, first_out(work) != 0 ? first_out(work) : root_input(work));
    }
}

/* ---- pieces ---- */

static void move_send(struct gpu_maker *maker, const struct gpu_work *work)
{
    gpu_maker_move(maker, first_out(work), root_input(work), work->said.bytes);
}

static void move_allgather(struct gpu_maker *maker, const struct gpu_work *work)
{
    uint64_t at = 0;

    for (uint32_t place = 0; place < work->said.ranks; at += work->sizes[place++]) {
        const struct gpu_member *from = gpu_maker_member(work, place);
        for (uint32_t i = 0; from != NULL && i < work->said.members; i++) {
            if (work->members[i].out != 0)
                gpu_maker_move(maker, work->members[i].out + at, from->in, work->sizes[place]);
        }
    }
}

/* Bytes before the piece from -> to in the input of `from`, and in the output of `to`. */
static uint64_t before(const struct gpu_work *work, uint32_t from, uint32_t to, bool in_output)
{
    const uint32_t ranks = work->said.ranks, end = in_output ? from : to;
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < end; i++)
        bytes += in_output ? work->sizes[(uint64_t)i * ranks + to]
                           : work->sizes[(uint64_t)from * ranks + i];
    return bytes;
}

static uint64_t exchanged(const struct gpu_work *work, uint32_t from, uint32_t to)
{
    return work->sizes[(uint64_t)from * work->said.ranks + to];
}

static void move_alltoall(struct gpu_maker *maker, const struct gpu_work *work)
{
    for (uint32_t i = 0; i < work->said.members; i++) {
        for (uint32_t j = 0; j < work->said.members; j++) {
            const struct gpu_member *from = &work->members[i], *to = &work->members[j];
            gpu_maker_move(maker, to->out + before(work, from->place, to->place, true),
                           from->in + before(work, from->place, to->place, false),
                           exchanged(work, from->place, to->place));
        }
    }
}

/* ---- letters: what workers send each other, in the order of (from, to) on both sides ---- */

void gpu_maker_letter(struct gpu_maker *maker, bool is_sent, uint64_t address, uint64_t bytes,
                      uint64_t peer)
{
    if (bytes == 0 || peer == HVI_DEVICE_NOWHERE)
        return;
    gpu_maker_call(maker, is_sent ? GPU_STEP_SEND : GPU_STEP_RECEIVE, is_sent ? address : 0,
                   is_sent ? 0 : address, bytes, (int)peer);
}

/* Once to each other worker, into its first output. */
static void post_allgather(struct gpu_maker *maker, const struct gpu_work *work)
{
    const struct gpu_batch *batch = maker->batch;
    uint64_t at = 0;

    for (uint32_t place = 0; place < work->said.ranks; at += work->sizes[place++]) {
        const struct gpu_member *from = gpu_maker_member(work, place);
        if (from == NULL) {
            gpu_maker_letter(maker, false, first_out(work) + at, work->sizes[place],
                             work->homes[place]);
            continue;
        }
        for (uint32_t peer = 0; peer < batch->comm_ranks; peer++) {
            if (peer != batch->comm_rank)
                gpu_maker_letter(maker, true, from->in, work->sizes[place], peer);
        }
    }
}

static void post_alltoall(struct gpu_maker *maker, const struct gpu_work *work)
{
    for (uint32_t from = 0; from < work->said.ranks; from++) {
        const struct gpu_member *sender = gpu_maker_member(work, from);
        for (uint32_t to = 0; to < work->said.ranks; to++) {
            const struct gpu_member *receiver = gpu_maker_member(work, to);
            if (sender != NULL && receiver == NULL)
                gpu_maker_letter(maker, true, sender->in + before(work, from, to, false),
                                 exchanged(work, from, to), work->homes[to]);
            else if (sender == NULL && receiver != NULL)
                gpu_maker_letter(maker, false, receiver->out + before(work, from, to, true),
                                 exchanged(work, from, to), work->homes[from]);
        }
    }
}

static void post_send(struct gpu_maker *maker, const struct gpu_work *work)
{
    const bool is_sent = work->said.root_member >= 0;

    gpu_maker_letter(maker, is_sent, is_sent ? root_input(work) : first_out(work), work->said.bytes,
                     1 - maker->batch->comm_rank);
}

/* What came to the first output is the others' as well. */
static void share_allgather(struct gpu_maker *maker, const struct gpu_work *work)
{
    const uint64_t from = first_out(work);
    uint64_t at = 0;

    for (uint32_t place = 0; place < work->said.ranks; at += work->sizes[place++]) {
        for (uint32_t i = 0; gpu_maker_member(work, place) == NULL && i < work->said.members; i++)
            gpu_maker_move(maker, work->members[i].out + at, from + at, work->sizes[place]);
    }
}

static void for_each(struct gpu_maker *maker,
                     void (*make)(struct gpu_maker *, const struct gpu_work *))
{
    for (uint32_t i = 0; i < maker->batch->work_count; i++) {
        if (maker->batch->works[i].said.bytes > 0)
            make(maker, &maker->batch->works[i]);
    }
}

static void move_each(struct gpu_maker *maker,
                      void (*make)(struct gpu_maker *, const struct gpu_work *))
{
    gpu_maker_begin_moves(maker);
    for_each(maker, make);
    gpu_maker_end_moves(maker);
}

static void post_each(struct gpu_maker *maker,
                      void (*make)(struct gpu_maker *, const struct gpu_work *))
{
    gpu_maker_call(maker, GPU_STEP_GROUP, 0, 0, 0, 0);
    for_each(maker, make);
    gpu_maker_call(maker, GPU_STEP_GROUP_END, 0, 0, 0, 0);
}

/* ---- the whole ---- */

static void make_here(struct gpu_maker *maker, uint32_t kind)
{
    switch (kind) {
    case HVI_KIND_ALLREDUCE:
        for_each(maker, reduce_here);
        break;
    case HVI_KIND_REDUCESCATTER:
        for_each(maker, scatter_here);
        break;
    case HVI_KIND_BROADCAST:
        for (uint32_t i = 0; i < maker->batch->work_count; i++) {
            if (maker->batch->works[i].said.bytes > 0)
                spread_copy(maker, &maker->batch->works[i], root_input(&maker->batch->works[i]));
        }
        break;
    case HVI_KIND_ALLGATHER:
        move_each(maker, move_allgather);
        break;
    case HVI_KIND_ALLTOALL:
        move_each(maker, move_alltoall);
        break;
    default:
        move_each(maker, move_send);
    }
}

static void make_together(struct gpu_maker *maker, uint32_t kind)
{
    switch (kind) {
    case HVI_KIND_ALLREDUCE:
    case HVI_KIND_REDUCESCATTER:
        reduce_together(maker);
        break;
    case HVI_KIND_BROADCAST:
        broadcast_together(maker);
        break;
    case HVI_KIND_ALLGATHER:
        post_each(maker, post_allgather);
        move_each(maker, move_allgather);
        move_each(maker, share_allgather);
        break;
    case HVI_KIND_ALLTOALL:
        post_each(maker, post_alltoall);
        move_each(maker, move_alltoall);
        break;
    default:
        post_each(maker, post_send);
    }
}

static bool is_reduction(uint32_t kind)
{
    return kind == HVI_KIND_ALLREDUCE || kind == HVI_KIND_REDUCESCATTER;
}

/* An engine that cancels a batch says so in the cells of all its members: one of them is enough. */
static struct hvd_kernel_guard guard_of(const struct gpu_batch *batch)
{
    struct hvd_kernel_guard guard = {0};

    for (uint32_t i = 0; i < batch->member_count && guard.skip == 0; i++) {
        const struct gpu_member *member = &batch->members[i];
        if (member->fence != 0)
            guard = (struct hvd_kernel_guard){member->fence + offsetof(struct hvi_fence, skip),
                                              member->turn};
    }
    return guard;
}

int gpu_plan_make(const struct gpu_batch *batch, const struct gpu_plan_means *means,
                  const char **text_p)
{
    const struct hvi_device_work *said = &batch->works[0].said;
    struct gpu_maker maker = {.batch = batch, .means = means, .guard = guard_of(batch)};

    *text_p = "";
    if (is_reduction(said->kind) && said->reduce_op == HVI_REDUCE_ADASUM)
        return gpu_maker_adasum(&maker, text_p);
    if (batch->comm == 0)
        make_here(&maker, said->kind);
    else
        make_together(&maker, said->kind);
    return HVI_OK;
}
