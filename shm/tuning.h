/* SPDX-License-Identifier: Apache-2.0
 * Numbers of waiting and of the slot path that were tuned, all on 2 virtual cores (AMD EPYC, Zen 4), each with
 * what was measured. Where it says "chosen", nothing was: it follows from another number or from a
 * promise. On another machine these are the first to look at. */
#ifndef HVI_SHM_TUNING_H
#define HVI_SHM_TUNING_H

#include "base/clock.h"

/* ---- waiting (shm/wait.c) ---- */

/* Pauses of a rank among ranks before its first yield, with a core for each. Chosen: longer than a
 * small op takes (0.5 us). */
#define HVI_TUNED_SPINS 2000u
/* Of a rank that waits for the engine. How many cores there are does not say how many are free: 4 B between two nodes of
 * one rank, which had two cores together and each believed to have both, took 68 us with 2000, 32 with 600, 22
 * with 200, 18 with 20. 64 cost 2 us per small op on the ring (three processes on two cores, commit 7cfd005). On a core
 * that nothing else wants a yield returns at once. */
#define HVI_TUNED_ENGINE_SPINS 20u
/* Among more ranks than cores there are none: 0, 2, 8, 20, 100 pauses made 4 B at np 4 take 7.0, 7.2, 7.5,
 * 8.8, 12 us (ADR 0005). */

/* Yielding before a sleep. Chosen: a wake-up on the other core takes 28 us (docs/measurements/
 * 2026-11-22-compare), so three of them. */
#define HVI_TUNED_YIELD_NS (100 * 1000ull)
/* Longest sleep. Chosen: half of the 100 ms within which a dead engine must be seen. */
#define HVI_TUNED_SLICE_NS (50 * HVI_NS_MS)
/* A rank in a slot keeps its core for as long as no missing rank last ran there, in rounds of some
 * pauses: about 10 us. Yields per core and op at np 4 fell from 1.64 to 1.13, time by 8 % (ADR 0005). */
#define HVI_TUNED_APART_SPINS  8u
#define HVI_TUNED_APART_ROUNDS 100u
/* Rounds of a rank in a slot between two looks at the clock. Chosen: the end of the yields need not be
 * exact. */
#define HVI_TUNED_CLOCK_ROUNDS 8u

/* ---- which ops, in how many chunks (shm/slots.c) ---- */

/* The largest medium op, of one rank and of all together. Through the engine / by the ranks: 4 MiB at np
 * 2 208-268 / 153-165 us, at np 4 613-865 / 327-474; from 16 MiB on there is no gain (ADR 0011). */
#define HVI_TUNED_MEDIUM     (UINT64_C(4) << 20)
#define HVI_TUNED_MEDIUM_ALL (UINT64_C(16) << 20)
/* Bytes of a chunk. With these 64 KiB at np 2 took 2.7-3.2 us and 1 MiB 23-51 (ADR 0011), so a chunk is work
 * for about a microsecond. Chosen: 16 of them as a rule, so that ranks that come late find some left. */
#define HVI_TUNED_LEAST_CHUNK  (UINT64_C(16) << 10)
#define HVI_TUNED_MOST_CHUNK   (UINT64_C(64) << 10)
#define HVI_TUNED_USUAL_CHUNKS 16u

/* ---- a rank with a medium op (client/slots) ---- */

/* A rank that waits within this time of submitting does the chunks itself and calls no engine. Chosen: a
 * trainer that computes in between takes longer, and waking the engine costs 28 us. */
#define HVI_TUNED_PROMPT_NS (50 * 1000ull)
/* For peers that hold chunks when the engine is lost. Chosen: a chunk takes microseconds, so a
 * rank that holds one for longer was stopped; and a dead engine is told within 100 ms. */
#define HVI_TUNED_CLOSE_NS (20 * (int64_t)HVI_NS_MS)

/* ---- the engine (daemon/engine/slots) ---- */

/* An op that stands in a slot for this long is the engine's. Chosen: 2,000 times what an op takes
 * at np 4, and a fifth of the 100 ms within which a death is told. */
#define HVI_TUNED_AGE_NS (20 * HVI_NS_MS)
/* Looks at the slots while a rank stands in one, and unasked. Chosen: the age of
 * above; and an op that nobody waits for is seen within a second. */
#define HVI_TUNED_TICK_US   (20 * 1000)
#define HVI_TUNED_PATROL_US (1000 * 1000)
/* Patrols without a change, then none. Chosen. */
#define HVI_TUNED_QUIET 3u
/* Ops in an unnamed slot that make up for one that stood there in vain, and the most grants that are
 * held back: two unnamed ops outstanding at np 2 take 4.7-5.6 us an op, through the engine alone
 * 5.3-5.7, without holding back 3.9-7.6 (ADR 0005). */
#define HVI_TUNED_WORTH 4u
#define HVI_TUNED_PAUSE 255u
/* Chunks that the engine does before it looks at its other work. Chosen: a megabyte of each rank at most,
 * 48 us at np 4 (docs/measurements/2026-11-22-middling). */
#define HVI_TUNED_AT_ONCE 16u
/* For ranks to finish chunks after the end of a session whose process goes on as another program. Chosen:
 * far longer than a chunk takes. */
#define HVI_TUNED_GONE_NS HVI_NS_SEC

#endif
