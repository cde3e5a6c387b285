/* SPDX-License-Identifier: Apache-2.0
 * How far another node's clock is ahead of ours. Pure. */
#ifndef ENGINE_MESH_CLOCK_H
#define ENGINE_MESH_CLOCK_H

#include <stdint.h>

#define ENGINE_MESH_CLOCK_ROUNDS 8u /* of a question and its answer, for one measurement */

struct engine_mesh_clock {
    uint64_t
        way_ns; /* there and back, the shortest so far; 0: none. Half of it is the error at most */
    uint64_t ahead_ns; /* its clock less ours, modulo 2^64 */
};

/* What a round tells: when we asked, when the other side heard and answered, when we heard. */
void engine_mesh_clock_take(struct engine_mesh_clock *clock, uint64_t asked_ns, uint64_t heard_ns,
                            uint64_t said_ns, uint64_t now_ns);

#endif
