/* SPDX-License-Identifier: Apache-2.0
 * Adasum: the tree of docs/design/reduction.md, stage by stage. A stage is three kernels for all its pairs: dot products,
 * factors, blend. The last one writes the outputs.
 *
 * With a communicator every worker gets the inputs of all and does the whole tree: so the bits are those of one GPU.
 *
 * A stage's vectors are float32 (float64 of float64). Where that is the type itself, a pair's lies in the output of its first
 * member, or in the copy of an input; else in the staging memory, as the dot products do. An adasum that needs more
 * than there is fails, everywhere. */
#include "daemon/gpu/maker.h"

#include "base/status.h"
#include "base/types.h"

#include <string.h>

#define ALIGNMENT 256u
#define PAIRS_MAX (HVD_KERNEL_PIECES / 2u) /* of a kernel */

struct vector {
    uint64_t address;
    uint64_t room; /* where the first pair with it may be written; 0: in the staging memory */
    bool is_stage;
};

struct tree {
    const struct gpu_work *work;
    uint64_t count; /* elements */
    uint32_t vector_count;
    uint64_t dots, factors; /* addresses in the staging memory */
    uint64_t rooms, room_bytes;
    struct vector vectors[HVI_RANKS_MAX];
};

static uint64_t aligned(uint64_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static bool is_here(const struct gpu_work *work, uint32_t place)
{
    return work->homes == NULL ? gpu_maker_member(work, place) != NULL
                               : work->homes[place] != HVI_DEVICE_NOWHERE;
}

static uint32_t count_present(const struct gpu_work *work)
{
    uint32_t count = 0;

    for (uint32_t place = 0; place < work->said.ranks; place++)
        count += is_here(work, place);
    return count;
}

static bool is_wide(uint32_t dtype)
{
    return dtype == HVI_DTYPE_FLOAT32 || dtype == HVI_DTYPE_FLOAT64;
}

/* Whether the vectors of stages need no memory of their own. */
static bool has_rooms(const struct gpu_maker *maker, const struct gpu_work *work)
{
    bool found = maker->batch->comm != 0 || work->said.kind == HVI_KIND_ALLREDUCE;

    for (uint32_t i = 0; maker->batch->comm == 0 && i < work->said.members; i++)
        found = found && work->members[i].out != 0;
    return found && is_wide(work->said.dtype);
}

/* ---- the staging memory: copies of inputs | dot products | factors | vectors of stages ---- */

/* Lays the tree out; returns the bytes, or UINT64_MAX. */
static uint64_t lay_out(const struct gpu_maker *maker, const struct gpu_work *work,
                        struct tree *tree_p)
{
    const uint64_t count = work->said.bytes / gpu_maker_element(maker);
    const uint64_t chunks = (count + HVD_ADASUM_CHUNK - 1) / HVD_ADASUM_CHUNK;
    const uint32_t present = count_present(work);
    const uint64_t pairs = present / 2 < PAIRS_MAX ? present / 2 : PAIRS_MAX;
    const uint64_t wide = work->said.dtype == HVI_DTYPE_FLOAT64 ? 8 : 4;
    uint64_t at = maker->means->staging;

    if (present > HVI_RANKS_MAX || work->said.bytes > maker->means->staging_bytes << 10)
        return UINT64_MAX; /* and no sum below wraps */
    tree_p->work = work;
    tree_p->count = count;
    tree_p->vector_count = 0;
    tree_p->room_bytes = aligned(count * wide);
    if (maker->batch->comm != 0)
        at += present * aligned(work->said.bytes);
    tree_p->dots = at;
    at += aligned(pairs * chunks * HVD_ADASUM_DOTS * sizeof(double));
    tree_p->factors = at;
    at += aligned(pairs * HVD_ADASUM_FACTORS * sizeof(double));
    tree_p->rooms = at;
    if (!has_rooms(maker, work))
        at += present / 2 * tree_p->room_bytes;
    return at - maker->means->staging;
}

/* ---- inputs ---- */

static void add_vector(struct tree *tree, uint64_t address, uint64_t room)
{
    tree->vectors[tree->vector_count++] = (struct vector){.address = address, .room = room};
}

static void take_inputs(struct gpu_maker *maker, struct tree *tree)
{
    const struct gpu_work *work = tree->work;

    for (uint32_t i = 0; i < work->said.members; i++)
        add_vector(tree, work->members[i].in, has_rooms(maker, work) ? work->members[i].out : 0);
}

/* All inputs of the communicator, in the order of places. */
static void gather_inputs(struct gpu_maker *maker, struct tree *tree)
{
    const struct gpu_work *work = tree->work;
    uint64_t at = maker->means->staging;

    gpu_maker_call(maker, GPU_STEP_GROUP, 0, 0, 0, 0);
    for (uint32_t place = 0; place < work->said.ranks; place++) {
        const struct gpu_member *member = gpu_maker_member(work, place);
        if (!is_here(work, place))
            continue;
        add_vector(tree, at, has_rooms(maker, work) ? at : 0);
        for (uint32_t peer = 0; member != NULL && peer < maker->batch->comm_ranks; peer++) {
            if (peer != maker->batch->comm_rank)
                gpu_maker_letter(maker, true, member->in, work->said.bytes, peer);
        }
        if (member == NULL)
            gpu_maker_letter(maker, false, at, work->said.bytes, work->homes[place]);
        at += aligned(work->said.bytes);
    }
    gpu_maker_call(maker, GPU_STEP_GROUP_END, 0, 0, 0, 0);
}

static void copy_inputs(struct gpu_maker *maker, const struct tree *tree)
{
    const struct gpu_work *work = tree->work;
    uint32_t vector = 0;

    gpu_maker_begin_moves(maker);
    for (uint32_t place = 0; place < work->said.ranks; place++) {
        const struct gpu_member *member = gpu_maker_member(work, place);
        if (member != NULL)
            gpu_maker_move(maker, tree->vectors[vector].address, member->in, work->said.bytes);
        vector += is_here(work, place);
    }
    gpu_maker_end_moves(maker);
}

/* ---- stages ---- */

/* The fold brings the count down to a power of two, later stages halve it. */
static uint32_t pairs_among(uint32_t vectors)
{
    uint32_t power = 1;

    while (power * 2 <= vectors)
        power *= 2;
    return power == vectors ? vectors / 2 : vectors - power;
}

static void begin_pairs(struct gpu_maker *maker, const struct tree *tree, uint32_t first,
                        uint32_t pairs)
{
    struct hvd_adasum_args *args = &maker->step.adasum;

    *args = (struct hvd_adasum_args){.dtype = tree->work->said.dtype,
                                     .pairs = pairs,
                                     .prescale = tree->work->said.prescale,
                                     .postscale = tree->work->said.postscale,
                                     .count = tree->count,
                                     .dots = tree->dots,
                                     .factors = tree->factors};
    for (uint32_t i = 0; i < pairs; i++) {
        const struct vector *a = &tree->vectors[2 * (first + i)], *b = a + 1;
        args->pair[i].a = a->address;
        args->pair[i].b = b->address;
        args->a_is_stage |= (uint32_t)a->is_stage << i;
        args->b_is_stage |= (uint32_t)b->is_stage << i;
    }
}

static void emit_kind(struct gpu_maker *maker, enum gpu_step_kind kind, uint64_t bytes)
{
    maker->step.kind = kind;
    maker->step.bytes = bytes;
    gpu_maker_emit(maker);
}

/* Dot products and factors. */
static void measure(struct gpu_maker *maker, const struct tree *tree)
{
    const uint64_t bytes = tree->count * maker->step.adasum.pairs * gpu_maker_element(maker);

    emit_kind(maker, GPU_STEP_ADASUM_DOTS, bytes);
    emit_kind(maker, GPU_STEP_ADASUM_FACTORS, 0);
}

/* Where the pair's vector goes. */
static struct vector place_of(struct tree *tree, const struct vector *a, const struct vector *b)
{
    struct vector into = {.is_stage = true};

    if (a->is_stage || b->is_stage) {
        into.address = a->is_stage ? a->address : b->address;
    } else if (a->room != 0) {
        into.address = a->room;
    } else {
        into.address = tree->rooms;
        tree->rooms += tree->room_bytes;
    }
    return into;
}

/* Pairs [first, first + pairs) of a stage that is not the last. Their vectors take the places of theirs. */
static void blend_pairs(struct gpu_maker *maker, struct tree *tree, uint32_t first, uint32_t pairs)
{
    begin_pairs(maker, tree, first, pairs);
    for (uint32_t i = 0; i < pairs; i++) {
        struct vector *a = &tree->vectors[2 * (first + i)];
        const struct vector into = place_of(tree, a, a + 1);
        maker->step.adasum.pair[i].into = into.address;
        *a = into;
    }
    measure(maker, tree);
    emit_kind(maker, GPU_STEP_ADASUM_BLEND, tree->count * gpu_maker_element(maker));
}

static void run_stage(struct gpu_maker *maker, struct tree *tree)
{
    const uint32_t pairs = pairs_among(tree->vector_count);

    for (uint32_t first = 0; first < pairs; first += PAIRS_MAX)
        blend_pairs(maker, tree, first, pairs - first < PAIRS_MAX ? pairs - first : PAIRS_MAX);
    for (uint32_t i = 0; i < pairs; i++)
        tree->vectors[i] = tree->vectors[2 * i];
    memmove(&tree->vectors[pairs], &tree->vectors[2 * pairs],
            (tree->vector_count - 2 * pairs) * sizeof(tree->vectors[0]));
    tree->vector_count -= pairs;
}

/* ---- outputs ---- */

static void write_all(struct gpu_maker *maker, const struct tree *tree)
{
    struct hvd_adasum_args *args = &maker->step.adasum;

    for (uint32_t i = 0; i < tree->work->said.members; i++) {
        if (tree->work->members[i].out != 0)
            args->out[args->outs++] = tree->work->members[i].out;
    }
    if (args->outs > 0)
        emit_kind(maker, GPU_STEP_ADASUM_BLEND, tree->work->said.bytes);
}

/* Of a reducescatter: the blend of each slice, with the factors of the whole. */
static void write_slices(struct gpu_maker *maker, const struct tree *tree)
{
    const struct gpu_work *work = tree->work;
    struct hvd_adasum_args *args = &maker->step.adasum;
    const uint64_t a = args->pair[0].a, b = args->pair[0].b;
    const uint32_t element = gpu_maker_element(maker);
    uint64_t at = 0;

    for (uint32_t place = 0; place < work->said.ranks; at += work->sizes[place++]) {
        const struct gpu_member *member = gpu_maker_member(work, place);
        const uint32_t wide = work->said.dtype == HVI_DTYPE_FLOAT64 ? 8 : 4;
        if (member == NULL || member->out == 0 || work->sizes[place] == 0)
            continue;
        args->pair[0].a = a + (args->a_is_stage != 0 ? at / element * wide : at);
        args->pair[0].b = b + (args->b_is_stage != 0 ? at / element * wide : at);
        args->count = work->sizes[place] / element;
        args->outs = 1;
        args->out[0] = member->out;
        emit_kind(maker, GPU_STEP_ADASUM_BLEND, work->sizes[place]);
    }
}

static void finish(struct gpu_maker *maker, const struct tree *tree)
{
    begin_pairs(maker, tree, 0, 1);
    measure(maker, tree);
    if (tree->work->said.kind == HVI_KIND_ALLREDUCE)
        write_all(maker, tree);
    else
        write_slices(maker, tree);
}

static void run_tree(struct gpu_maker *maker, struct tree *tree)
{
    if (maker->batch->comm == 0) {
        take_inputs(maker, tree);
    } else {
        gather_inputs(maker, tree);
        copy_inputs(maker, tree);
    }
    while (tree->vector_count > 2)
        run_stage(maker, tree);
    finish(maker, tree);
}

int gpu_maker_adasum(struct gpu_maker *maker, const char **text_p)
{
    const struct gpu_batch *batch = maker->batch;
    struct tree tree;

    for (uint32_t i = 0; i < batch->work_count; i++) {
        if (lay_out(maker, &batch->works[i], &tree) > maker->means->staging_bytes) {
            *text_p =
                "this adasum needs more of the worker's memory than there is; split it, or let "
                "the tensor lie in memory of the host";
            return HVI_ERR_LIMIT;
        }
    }
    for (uint32_t i = 0; i < batch->work_count; i++) {
        const struct gpu_work *work = &batch->works[i];
        if (work->said.bytes == 0)
            continue;
        if (count_present(work) == 1) {
            gpu_maker_sole(maker, work);
            continue;
        }
        (void)lay_out(maker, work, &tree);
        run_tree(maker, &tree);
    }
    return HVI_OK;
}
