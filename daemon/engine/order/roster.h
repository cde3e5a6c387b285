/* SPDX-License-Identifier: Apache-2.0
 * engine_roster: which rank of the job each seat of this node is.
 *
 *   rank   the number of a trainer in its job: global, any size; names it to people
 *   seat   its number on this node: dense, below ENGINE_SEATS_MAX; indexes what the engine keeps of it
 *   node   the number of a node in its job; a job that is on one node has none
 *
 * Seats and ranks do not mix. Ranks on other nodes have no seat here. Nothing that is indexed by seat
 * is sized by the job. Constant once made: any thread. */
#ifndef ENGINE_ORDER_ROSTER_H
#define ENGINE_ORDER_ROSTER_H

#include "base/types.h"

#include <stdbool.h>
#include <stdint.h>

#define ENGINE_SEATS_MAX HVI_RANKS_MAX

typedef struct {
    uint16_t n;
} engine_seat;

struct engine_roster {
    int32_t size;         /* ranks of the job */
    uint32_t seats;       /* of this node */
    int32_t *ranks;       /* [seats] */
    engine_seat *by_rank; /* [seats], by ascending rank */
    uint32_t nodes, here; /* of the job, and which one this is; 0, 0: on one node, or not known */
    uint32_t *first;      /* [nodes + 1] where each node's ranks begin in .of_nodes */
    int32_t *of_nodes;    /* [size] each node's ranks, ascending */
};

/* What is known of a node of the job. */
struct engine_node {
    const int32_t *ranks; /* [count], in any order */
    uint32_t count;
};

/* `ranks` are the ranks of `seats` seats, each below `size` and different; NULL: one node has the
 * whole job, and seat n is rank n. `roster` is zeroed. HVI_OK or HVI_ERR_NO_MEMORY. */
int engine_roster_init(struct engine_roster *roster, int32_t size, const int32_t *ranks,
                       uint32_t seats);
/* The job's nodes, `here` among them with the ranks that have seats. HVI_OK; HVI_ERR_NO_MEMORY;
 * HVI_ERR_INVALID: not every rank is on exactly one node, or ours are others; the roster is as it was. */
int engine_roster_set_nodes(struct engine_roster *roster, const struct engine_node *nodes,
                            uint32_t count, uint32_t here);
/* Harmless on a zeroed one. */
void engine_roster_fini(struct engine_roster *roster);
/* False: the rank has no seat here. */
bool engine_roster_seat(const struct engine_roster *roster, int32_t rank, engine_seat *seat_p);
/* The node of a rank of the job; .nodes: it is on none that is known. */
uint32_t engine_roster_node(const struct engine_roster *roster, int32_t rank);

static inline int32_t engine_roster_rank(const struct engine_roster *roster, engine_seat seat)
{
    return roster->ranks[seat.n];
}

#endif
