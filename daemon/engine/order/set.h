/* SPDX-License-Identifier: Apache-2.0
 * engine_sets: the process sets of a job, by id. Set 0 has every rank and is always there. Engine
 * thread; knows nothing of ops beyond the lists it holds for negotiate.c and join.c. */
#ifndef ENGINE_SET_H
#define ENGINE_SET_H

#include "base/limits.h"
#include "daemon/engine/order/roster.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Of a job at a time, set 0 included. */
#define ENGINE_SETS_MAX    ((uint32_t)HVI_LIMIT_VALUE_process_sets)
#define ENGINE_SETS_FULL   "the job has 1024 process sets already; remove one first"
#define ENGINE_SET_UNNAMED 3 /* kinds whose unnamed ops follow each other in a slot */

_Static_assert(ENGINE_SETS_MAX == 1024, "ENGINE_SETS_FULL says so");

struct engine_op;
struct engine_offer;

/* The observer's: the set's unnamed ops of one kind, one after the other. See slots/slots.c. */
struct engine_unnamed {
    uint32_t slot;      /* 0, or 1 + the slot in which its ranks may meet */
    uint64_t top;       /* the highest number that a rank has submitted through its ring */
    uint32_t held_back; /* grants that are still held back */
    uint32_t penalty;   /* grants that the last revocation has held back; 0: none */
};

/* Where the members are, if they are on several nodes. With the set, or with an op that leaves nodes
 * out. */
struct engine_places {
    uint32_t nodes, here; /* nodes with members; ours among them, or UINT32_MAX */
    uint32_t *node;       /* [nodes] their numbers in the job, ascending */
    uint32_t *places;     /* [nodes] members on each */
    uint32_t *home,
        *place; /* [members of the set] by set rank: index into .node, and the place there */
};

struct engine_set {
    uint32_t id;     /* reused after a removal, oldest first */
    uint64_t serial; /* never reused: names belong to it, not to the id */
    uint32_t size;   /* members, on all nodes */
    uint32_t places; /* of them with a seat here */
    uint32_t refs;   /* the table's, and one per part and op */
    bool removed;    /* out of the table */
    bool opened;     /* by its members alone, who close it; others may have the same ranks */
    /* Waiting ops of this set, oldest first, by .set_next; the cursor of whoever walks over them
     * while they may go. */
    struct engine_op *first, *last, *cursor;
    /* Waiting ops of which only some members are part (partial.c), oldest first. */
    struct engine_op *partial_first, *partial_last;
    struct engine_offer *offers, *offers_last; /* pair.c's, oldest first */
    struct engine_op *join;                    /* the ranks that have joined; NULL: none */
    uint32_t joined;                           /* how many */
    bool sweeping; /* a rank joins: ops that waited for it alone go on, one by one */
    struct engine_unnamed unnamed[ENGINE_SET_UNNAMED];
    int32_t *members;           /* [size], ascending, ranks of the job; NULL: every rank */
    struct engine_places *span; /* NULL: all on one node, or the job's nodes are not known */
    /* The members with a seat here, in the order of their ranks. A member's place in these arrays is
     * its place in those of every op. */
    int32_t *ranks;     /* [places] ranks of the job; NULL, see engine_set_place_all: places are */
    uint32_t *numbers;  /* [places] set ranks: places among all members */
    engine_seat *seats; /* [places] */
    int16_t *index;     /* [seats of this node] places; -1: no member */
};

struct engine_sets {
    const struct engine_roster *roster;
    uint64_t serials;
    uint32_t count, next_id;
    bool given; /* ids and serials are the root's, which alone knows all sets */
    struct engine_set *by_id[ENGINE_SETS_MAX];
    uint16_t freed[ENGINE_SETS_MAX]; /* ring of ids */
    uint32_t freed_first, freed_count;
};

/* With set 0. `roster` outlives the table. HVI_OK or HVI_ERR_NO_MEMORY. */
int engine_sets_init(struct engine_sets *sets, const struct engine_roster *roster);
/* The roster has learnt of the job's nodes since. From now on, engine_sets_give adds sets. HVI_OK or
 * HVI_ERR_NO_MEMORY. */
int engine_sets_span(struct engine_sets *sets);
/* Drops the table's references; a set goes with its last one. Harmless on a zeroed table. */
void engine_sets_fini(struct engine_sets *sets);
/* NULL when there is none. */
struct engine_set *engine_sets_find(const struct engine_sets *sets, uint32_t id);
/* The set of exactly these ranks, ascending, that all ranks have added; NULL when there is none. */
struct engine_set *engine_sets_find_ranks(const struct engine_sets *sets, const int64_t *ranks,
                                          uint32_t count);
/* `ranks` are ascending, unique ranks of the job, at least one. HVI_OK, HVI_ERR_LIMIT,
 * HVI_ERR_NO_MEMORY. */
int engine_sets_add(struct engine_sets *sets, const int64_t *ranks, uint32_t count,
                    struct engine_set **set_p);
/* The same, with the root's id and serial. HVI_OK; HVI_ERR_NO_MEMORY; HVI_ERR_PROTOCOL: the id is in
 * use or out of range, or the serial is old. */
int engine_sets_give(struct engine_sets *sets, const int64_t *ranks, uint32_t count, uint32_t id,
                     uint64_t serial, struct engine_set **set_p);
/* Out of the table; its id is free again. Not for set 0. */
void engine_sets_remove(struct engine_sets *sets, struct engine_set *set);
struct engine_set *engine_set_get(struct engine_set *set);
void engine_set_put(struct engine_set *set);
/* For a table that judges what nodes report: every member has a place, which is its set rank. */
void engine_set_place_all(struct engine_set *set);
/* The set's unnamed ops are numbered from 1 again. */
void engine_set_restart(struct engine_set *set);
/* Of `places`, for a set of so many members; in one piece, for free(3). NULL: out of memory. */
struct engine_places *engine_places_new(uint32_t nodes, uint32_t members);
/* The index of a node of the job; UINT32_MAX: it has no members. */
uint32_t engine_places_find(const struct engine_places *span, uint32_t node);
/* The set rank of a rank of the job; -1: no member. */
int32_t engine_set_rank(const struct engine_set *set, int32_t rank);
/* The place of a rank of the job; -1: no member, or no seat here. */
int32_t engine_set_find(const struct engine_set *set, int32_t rank);
/* The place of a seat; -1: no member. */
static inline int32_t engine_set_place(const struct engine_set *set, engine_seat seat)
{
    return set->index[seat.n];
}

/* The rank at a place. */
static inline int32_t engine_set_rank_at(const struct engine_set *set, uint32_t place)
{
    return set->ranks ? set->ranks[place] : (int32_t)place;
}

/* The rank of a set rank. */
static inline int32_t engine_set_member(const struct engine_set *set, uint32_t set_rank)
{
    return set->members ? set->members[set_rank] : (int32_t)set_rank;
}

/* "rank 3", "ranks 0,1,3", and from 17 ranks on "ranks 0-15,18"; returns the length it wanted, as
 * snprintf does. `ranks` NULL: 0 to count - 1. */
size_t engine_ranks_text(const int32_t *ranks, uint32_t count, char *text_p, size_t size);

#endif
