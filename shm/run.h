/* SPDX-License-Identifier: Apache-2.0
 * How an op in a slot is done, by a rank or by the engine. A small op is one chunk: the payloads in the
 * slot become the result in the slot. A medium op has many, in the regions of the ranks. Any thread. */
#ifndef HVI_SHM_RUN_H
#define HVI_SHM_RUN_H

#include "reduce/reduce.h"
#include "shm/agreement.h"
#include "shm/slots.h"

#include <stdbool.h>
#include <stdint.h>

/* The last rank: the result of a small op, from what the members have brought. `seats` are theirs, `root` is
 * that of a broadcast's root. */
void hvi_run_small(const struct hvi_slots *map, const struct hvi_kernels *kernels,
                   const struct hvi_agreement *said, uint32_t slot, const uint8_t *seats,
                   uint32_t members, uint32_t root);

/* A medium op that runs, as it was when it was looked at. It points into itself and at what it was made
 * of, but for the seats. */
struct hvi_run {
    const struct hvi_slots *map;
    uint32_t slot, turn, everybody;
    uint32_t chunks;
    uint64_t bytes, chunk_bytes;
    void (*step)(const char *name); /* a test's, between any two steps that matter; NULL */
    struct hvi_reduction reduction;
    const void *in[HVI_SLOT_RANKS]; /* NULL: not found yet */
    void *out[HVI_SLOT_RANKS];
    uint8_t seat[HVI_SLOT_RANKS]; /* by member */
};

/* Without operands. */
void hvi_run_init(struct hvi_run *run, const struct hvi_slots *map,
                  const struct hvi_agreement *said, uint32_t slot, uint32_t turn,
                  const uint8_t *seats, uint32_t members);
/* What the rank has written of its operands; untrusted. */
struct hvi_slot_operands hvi_run_operands(const struct hvi_slots *map, uint32_t slot,
                                          uint32_t seat);
/* Whether an operand of the agreement may lie at `offset` of a region. */
bool hvi_run_fits(const struct hvi_agreement *said, const struct hvi_region *map, uint64_t offset);
/* Finds the operands that are not found yet. `find` has the mapping of a member's region, or NULL, and is
 * asked for all of them. -1, or a member whose operands are not there. */
int32_t hvi_run_locate(struct hvi_run *run, const struct hvi_agreement *said,
                       const struct hvi_region *(*find)(void *user, uint32_t member,
                                                        uint32_t region),
                       void *user);
/* Does up to `most` chunks that nobody has taken, and publishes the op after the last one. Returns how
 * many: fewer if all are taken. `holder` as in hvi_slot_claim. *lacking_p: a page of an operand could
 * not be had; that chunk was given up, and the engine has to end the op. Needs hvi_pages_open. */
uint32_t hvi_run_chunks(const struct hvi_run *run, const struct hvi_kernels *kernels,
                        uint32_t holder, uint32_t most, bool *lacking_p);

#endif
