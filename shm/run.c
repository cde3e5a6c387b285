/* SPDX-License-Identifier: Apache-2.0
 * The order of steps of a medium op: find every operand, then claim a chunk, then reduce, then say so.
 * The claim is what makes it safe: it succeeds only at the turn at which the parts were read, and while
 * a chunk is claimed the op is under way, so that no rank takes its memory back. */
#include "shm/run.h"

#include "base/bits.h"
#include "base/types.h"
#include "reduce/guarded.h"

#include <string.h>

/* The one place that says what a chunk's arithmetic is. */
static inline void describe(const struct hvi_agreement *said, uint32_t members, uint32_t outs,
                            const void *const *in, void *const *out,
                            struct hvi_reduction *reduction_p)
{
    *reduction_p = (struct hvi_reduction){
        .dtype = said->dtype,
        .reduce_op = said->reduce_op,
        .ranks = members,
        .ins = members,
        .outs = outs,
        .in = in,
        .out = out,
        .prescale = said->prescale,
        .postscale = said->postscale,
    };
}

void hvi_run_small(const struct hvi_slots *map, const struct hvi_kernels *kernels,
                   const struct hvi_agreement *said, uint32_t slot, const uint8_t *seats,
                   uint32_t members, uint32_t root)
{
    struct hvi_reduction reduction;
    const void *in[HVI_SLOT_RANKS];
    void *out = hvi_slot_result(map, slot, said->bytes);

    if (said->bytes == 0)
        return;
    if (said->kind == HVI_KIND_BROADCAST) {
        memcpy(out, hvi_slot_payload(map, slot, root, said->bytes), said->bytes);
        return;
    }
    for (uint32_t i = 0; i < members; i++)
        in[i] = hvi_slot_payload(map, slot, seats[i], said->bytes);
    describe(said, members, 1, in, &out, &reduction);
    kernels->reduce(&reduction, 0, said->bytes / hvi_dtype_bytes(said->dtype));
}

void hvi_run_init(struct hvi_run *run, const struct hvi_slots *map,
                  const struct hvi_agreement *said, uint32_t slot, uint32_t turn,
                  const uint8_t *seats, uint32_t members)
{
    *run = (struct hvi_run){
        .map = map,
        .slot = slot,
        .turn = turn,
        .everybody = UINT32_MAX >> (32 - members),
        .bytes = said->bytes,
    };
    run->chunks = hvi_slot_cut(said->bytes, &run->chunk_bytes);
    describe(said, members, members, run->in, run->out, &run->reduction);
    memcpy(run->seat, seats, members);
}

struct hvi_slot_operands hvi_run_operands(const struct hvi_slots *map, uint32_t slot, uint32_t seat)
{
    struct hvi_slot_operands said;

    memcpy(&said, hvi_slot_part(map, slot, seat)->payload, sizeof(said));
    return said;
}

bool hvi_run_fits(const struct hvi_agreement *said, const struct hvi_region *map, uint64_t offset)
{
    return map && hvi_range_fits(offset, said->bytes, map->bytes) &&
           offset % hvi_dtype_bytes(said->dtype) == 0;
}

int32_t hvi_run_locate(struct hvi_run *run, const struct hvi_agreement *said,
                       const struct hvi_region *(*find)(void *user, uint32_t member,
                                                        uint32_t region),
                       void *user)
{
    int32_t missing = -1;

    for (uint32_t i = 0; i < run->reduction.ins; i++) {
        if (run->in[i])
            continue;
        const struct hvi_slot_operands at = hvi_run_operands(run->map, run->slot, run->seat[i]);
        const struct hvi_region *in = find(user, i, at.in_region);
        const struct hvi_region *out = find(user, i, at.out_region);
        if (hvi_run_fits(said, in, at.in_offset) && hvi_run_fits(said, out, at.out_offset)) {
            run->in[i] = (const char *)in->base + at.in_offset;
            run->out[i] = (char *)out->base + at.out_offset;
        } else {
            missing = missing < 0 ? (int32_t)i : missing;
        }
    }
    return missing;
}

/* -1, or the member of whose operands a page could not be had. */
static int reduce(const struct hvi_run *run, const struct hvi_kernels *kernels, uint32_t chunk)
{
    uint32_t element = hvi_dtype_bytes(run->reduction.dtype);
    uint64_t first = chunk * run->chunk_bytes, left = run->bytes - first;

    return hvi_reduce_guarded(kernels, &run->reduction, first / element,
                              (left < run->chunk_bytes ? left : run->chunk_bytes) / element);
}

static void step(const struct hvi_run *run, const char *name)
{
    if (run->step)
        run->step(name);
}

uint32_t hvi_run_chunks(const struct hvi_run *run, const struct hvi_kernels *kernels,
                        uint32_t holder, uint32_t most, bool *lacking_p)
{
    const struct hvi_slots *map = run->map;
    uint32_t done = 0, chunk;

    *lacking_p = false;
    for (; done < most && done < run->chunks; done++) {
        chunk = hvi_slot_claim(map, run->slot, run->turn, run->chunks, holder);
        if (chunk == HVI_SLOT_NOTHING)
            break;
        step(run, "medium-claimed");
        int lacking = reduce(run, kernels, chunk);
        step(run, "medium-reduced");
        if (lacking >= 0) {
            hvi_slot_give_up(map, run->slot, run->turn, chunk, run->seat[lacking]);
            *lacking_p = true;
            break;
        }
        bool last = hvi_slot_finish(map, run->slot, run->turn, chunk);
        step(run, "medium-finished");
        if (last)
            hvi_slot_publish(map, run->slot, run->turn, run->everybody);
    }
    return done;
}
