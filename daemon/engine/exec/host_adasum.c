/* SPDX-License-Identifier: Apache-2.0
 * Adasum: two vectors a and b become a (1 - a.b / 2|a|^2) + b (1 - a.b / 2|b|^2), and the vectors of
 * the members that have not joined are combined two by two, in the order of their set ranks:
 *
 *     members   0   1   2   3   4   5        (4 is the largest power of two in 6)
 *     stage 0   0-1     2-3     4   5        fold: 6 - 4 = 2 pairs, so that 4 vectors are left
 *     stage 1   01-----23       4---5
 *     stage 2   0123------------45           the last stage writes the outputs
 *
 * A stage needs the dot products of whole vectors before its first element, so an op takes one
 * step more than it has stages: step 0 is the dot products of stage 0; step k combines what
 * stage k-1 said and takes the dot products of stage k on the way.
 *
 * Vectors are cut into chunks of CHUNK elements, whoever does them. A chunk's share of a product is
 * added up in eight lanes of double (element i in lane i % 8), the lanes one after the other, then
 * the chunks in their order: so the bits do not depend on threads or instruction sets. Elements are
 * combined in double and kept between stages as float32 (float64 for float64); the last stage
 * rounds to the dtype.
 *
 * Memory: half as many scratch vectors as members, and three doubles per chunk and pair. */
#include "daemon/engine/exec/host.h"

#include "base/status.h"
#include "base/types.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK      32768u /* elements */
#define BLOCK      HVI_ADASUM_BLOCK
#define SLOT_BYTES (CHUNK * sizeof(double) + 192u)
_Static_assert(3 * SLOT_BYTES <= ENGINE_HOST_BUFFER_BYTES, "two sources and a result");

/* Where a vector lies. */
struct vector {
    bool scratch;
    uint32_t index; /* of the scratch vector; else set rank */
};

struct engine_adasum {
    const struct engine_work *work;
    uint64_t count; /* elements */
    uint32_t chunks;
    size_t scratch_size; /* of an element: float or double */
    /* Of the stage that is combined in this step: a[i], b[i] -> into[i], in double. */
    uint32_t pairs;
    struct vector *a, *b, *into;
    double (*factors)[2];
    bool last;
    /* Of the stage whose dot products are taken in this step. */
    uint32_t next_pairs;
    /* The vectors there are after `pairs` of them were combined. */
    struct vector *vectors;
    uint32_t vector_count;
    uint32_t scratch_count;
    double (*dots)[3]; /* [chunk * widest + pair]: a.b, a.a, b.b */
    uint32_t widest;   /* most pairs of a stage */
    unsigned char *scratch;
};

/* ---- the plan ---- */

static uint32_t present(const struct engine_work *work)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < work->ranks; i++)
        count += work->in[i].kind != ENGINE_OPERAND_NONE;
    return count;
}

bool engine_adasum_is(const struct engine_work *work)
{
    bool reduces = work->kind == HVI_KIND_ALLREDUCE || work->kind == HVI_KIND_REDUCESCATTER;

    return reduces && work->reduce_op == HVI_REDUCE_ADASUM && work->bytes > 0 && present(work) > 1;
}

static uint64_t count_of(const struct engine_work *work)
{
    return work->bytes / hvi_dtype_bytes(work->dtype);
}

uint32_t engine_adasum_chunks(const struct engine_work *work)
{
    return (uint32_t)((count_of(work) + CHUNK - 1) / CHUNK);
}

_Static_assert(HVI_RANKS_MAX <= 1u << (ENGINE_PLAN_STEPS - 2), "the dots, a fold, and halvings");

/* The fold brings the count down to a power of two, later stages halve it. */
static uint32_t pairs_among(uint32_t vectors)
{
    uint32_t power = 1;

    while (power * 2 <= vectors)
        power *= 2;
    return power == vectors ? vectors / 2 : vectors - power;
}

uint32_t engine_adasum_steps(const struct engine_work *work)
{
    uint32_t steps = 1;

    for (uint32_t vectors = present(work); vectors > 1; vectors -= pairs_among(vectors))
        steps++;
    return steps;
}

static bool allocate(struct engine_adasum *adasum, uint32_t members)
{
    size_t half = members / 2;

    adasum->widest = members / 2;
    adasum->a = calloc(members, sizeof *adasum->a);
    adasum->b = calloc(members, sizeof *adasum->b);
    adasum->into = calloc(members, sizeof *adasum->into);
    adasum->vectors = calloc(members, sizeof *adasum->vectors);
    adasum->factors = calloc(members, sizeof *adasum->factors);
    adasum->dots = calloc((size_t)adasum->chunks * adasum->widest, sizeof *adasum->dots);
    if (members > 2) /* the last stage writes outputs, not scratch */
        adasum->scratch = malloc(half * adasum->count * adasum->scratch_size);
    return adasum->a && adasum->b && adasum->into && adasum->vectors && adasum->factors &&
           adasum->dots && (adasum->scratch || members == 2);
}

struct engine_adasum *engine_adasum_new(const struct engine_work *work)
{
    struct engine_adasum *adasum = calloc(1, sizeof *adasum);

    if (!adasum)
        return NULL;
    adasum->work = work;
    adasum->count = count_of(work);
    adasum->chunks = engine_adasum_chunks(work);
    adasum->scratch_size = work->dtype == HVI_DTYPE_FLOAT64 ? sizeof(double) : sizeof(float);
    if (!allocate(adasum, present(work))) {
        engine_adasum_free(adasum);
        return NULL;
    }
    for (uint32_t i = 0; i < work->ranks; i++) {
        if (work->in[i].kind != ENGINE_OPERAND_NONE)
            adasum->vectors[adasum->vector_count++].index = i;
    }
    adasum->next_pairs = pairs_among(adasum->vector_count);
    return adasum;
}

void engine_adasum_free(struct engine_adasum *adasum)
{
    if (!adasum)
        return;
    free(adasum->a);
    free(adasum->b);
    free(adasum->into);
    free(adasum->vectors);
    free(adasum->factors);
    free(adasum->dots);
    free(adasum->scratch);
    free(adasum);
}

/* A vector without length is added as it is. */
static double factor(double dot, double square)
{
    return square < sqrt(DBL_MIN) ? 1.0 : 1.0 - dot / square * 0.5;
}

static void add_chunks(struct engine_adasum *adasum, uint32_t pair)
{
    double sums[3] = {0, 0, 0};

    for (uint32_t chunk = 0; chunk < adasum->chunks; chunk++) {
        const double *dots = adasum->dots[(size_t)chunk * adasum->widest + pair];
        for (int i = 0; i < 3; i++)
            sums[i] += dots[i];
    }
    adasum->factors[pair][0] = factor(sums[0], sums[1]);
    adasum->factors[pair][1] = factor(sums[0], sums[2]);
}

/* A pair of inputs needs a scratch vector; a pair with a scratch vector in it keeps that. */
static struct vector place_for(struct engine_adasum *adasum, struct vector a, struct vector b)
{
    if (a.scratch)
        return a;
    if (b.scratch)
        return b;
    return (struct vector){.scratch = true, .index = adasum->scratch_count++};
}

void engine_adasum_next(struct engine_adasum *adasum)
{
    uint32_t pairs = adasum->next_pairs, left = adasum->vector_count - pairs;

    adasum->last = adasum->vector_count == 2;
    adasum->pairs = pairs;
    for (uint32_t i = 0; i < pairs; i++) {
        add_chunks(adasum, i);
        adasum->a[i] = adasum->vectors[2 * i];
        adasum->b[i] = adasum->vectors[2 * i + 1];
        if (!adasum->last)
            adasum->into[i] = place_for(adasum, adasum->a[i], adasum->b[i]);
    }
    memmove(adasum->vectors + pairs, adasum->vectors + 2 * (size_t)pairs,
            (adasum->vector_count - 2 * (size_t)pairs) * sizeof *adasum->vectors);
    memcpy(adasum->vectors, adasum->into, pairs * sizeof *adasum->vectors);
    adasum->vector_count = left;
    adasum->next_pairs = adasum->last ? 0 : pairs_among(left);
}

/* ---- a chunk ---- */

struct chunk {
    const struct engine_host_thread *thread;
    struct engine_adasum *adasum;
    uint64_t first, count;
    uint32_t number;
};

/* A vector's elements of this chunk as they lie in memory. */
struct view {
    bool scratch;
    const unsigned char *data;
};

static unsigned char *scratch_at(const struct engine_adasum *adasum, uint32_t index, uint64_t at)
{
    return adasum->scratch + (index * adasum->count + at) * adasum->scratch_size;
}

static int look(const struct chunk *chunk, struct vector vector, uint32_t slot, struct view *view_p,
                struct engine_fault *fault_p)
{
    const struct engine_work *work = chunk->adasum->work;
    uint32_t size = hvi_dtype_bytes(work->dtype);
    unsigned char *place = chunk->thread->buffer + slot * SLOT_BYTES;

    view_p->scratch = vector.scratch;
    if (vector.scratch) {
        view_p->data = scratch_at(chunk->adasum, vector.index, chunk->first);
    } else if (work->in[vector.index].kind == ENGINE_OPERAND_MAPPED) {
        view_p->data = (const unsigned char *)work->in[vector.index].address + chunk->first * size;
    } else {
        view_p->data = place;
        return engine_host_read(chunk->thread, work, vector.index, chunk->first * size, place,
                                chunk->count * size, fault_p);
    }
    return HVI_OK;
}

static void load(const struct chunk *chunk, const struct view *view, uint64_t at, uint32_t n,
                 double *out_p)
{
    const struct engine_work *work = chunk->adasum->work;
    uint32_t wide = work->dtype == HVI_DTYPE_FLOAT64 ? HVI_DTYPE_FLOAT64 : HVI_DTYPE_FLOAT32;

    if (view->scratch)
        chunk->thread->kernels->load(wide, 1.0, view->data, at, n, out_p);
    else
        chunk->thread->kernels->load(work->dtype, work->prescale, view->data, at, n, out_p);
}

static int take_dots(const struct chunk *chunk, uint32_t pair, struct engine_fault *fault_p)
{
    struct engine_adasum *adasum = chunk->adasum;
    double a[BLOCK], b[BLOCK], lanes[3][8] = {{0}};
    struct view views[2];

    for (uint32_t i = 0; i < 2; i++) {
        int status = look(chunk, adasum->vectors[2 * pair + i], i, &views[i], fault_p);
        if (status != HVI_OK)
            return status;
    }
    for (uint64_t at = 0; at < chunk->count; at += BLOCK) {
        uint32_t n = chunk->count - at < BLOCK ? (uint32_t)(chunk->count - at) : BLOCK;
        load(chunk, &views[0], at, n, a);
        load(chunk, &views[1], at, n, b);
        chunk->thread->kernels->dots(a, b, n, lanes);
    }
    for (int i = 0; i < 3; i++) {
        double sum = 0;
        for (int lane = 0; lane < 8; lane++)
            sum += lanes[i][lane];
        adasum->dots[(size_t)chunk->number * adasum->widest + pair][i] = sum;
    }
    return HVI_OK;
}

static void store(const struct chunk *chunk, uint32_t pair, double *block, uint64_t at, uint32_t n,
                  unsigned char *result)
{
    const struct engine_adasum *adasum = chunk->adasum;
    const struct engine_work *work = adasum->work;
    uint32_t wide = work->dtype == HVI_DTYPE_FLOAT64 ? HVI_DTYPE_FLOAT64 : HVI_DTYPE_FLOAT32;

    if (adasum->last)
        chunk->thread->kernels->store(work->dtype, work->postscale, block, n, result, at);
    else
        chunk->thread->kernels->store(
            wide, 1.0, block, n, scratch_at(adasum, adasum->into[pair].index, chunk->first), at);
}

static int combine(const struct chunk *chunk, uint32_t pair, struct engine_fault *fault_p)
{
    const struct engine_adasum *adasum = chunk->adasum;
    unsigned char *result = chunk->thread->buffer + 2 * SLOT_BYTES;
    uint32_t size = hvi_dtype_bytes(adasum->work->dtype);
    struct view views[2];
    double a[BLOCK], b[BLOCK];

    int status = look(chunk, adasum->a[pair], 0, &views[0], fault_p);
    if (status == HVI_OK)
        status = look(chunk, adasum->b[pair], 1, &views[1], fault_p);
    if (status != HVI_OK)
        return status;
    for (uint64_t at = 0; at < chunk->count; at += BLOCK) {
        uint32_t n = chunk->count - at < BLOCK ? (uint32_t)(chunk->count - at) : BLOCK;
        load(chunk, &views[0], at, n, a);
        load(chunk, &views[1], at, n, b);
        chunk->thread->kernels->blend(a, adasum->factors[pair][0], b, adasum->factors[pair][1], n);
        store(chunk, pair, a, at, n, result);
    }
    if (!adasum->last)
        return HVI_OK;
    return engine_host_emit(chunk->thread, adasum->work, chunk->first * size, chunk->count * size,
                            result, fault_p);
}

int engine_adasum_run(const struct engine_host_thread *thread, struct engine_adasum *adasum,
                      uint32_t number, struct engine_fault *fault_p)
{
    uint64_t first = (uint64_t)number * CHUNK;
    uint64_t left = adasum->count - first;
    const struct chunk chunk = {.thread = thread,
                                .adasum = adasum,
                                .first = first,
                                .count = left < CHUNK ? left : CHUNK,
                                .number = number};
    int status = HVI_OK;

    for (uint32_t i = 0; i < adasum->pairs && status == HVI_OK; i++)
        status = combine(&chunk, i, fault_p);
    for (uint32_t i = 0; i < adasum->next_pairs && status == HVI_OK; i++)
        status = take_dots(&chunk, i, fault_p);
    return status;
}
