/* SPDX-License-Identifier: Apache-2.0
 * The engine's side of the express slots (shm/express.h, docs/adr/0005): who gets a ticket, and how
 * an op comes back to the engine. Main thread only; nothing blocks. */
#ifndef ENGINE_EXPRESS_H
#define ENGINE_EXPRESS_H

#include "daemon/engine/memory/region.h"
#include "shm/abi.h"
#include "shm/express.h"

#include <stdbool.h>
#include <stdint.h>

struct engine;
struct engine_op;
struct engine_part;
struct engine_session;
struct engine_set;
struct engine_tensor;

/* A slot that belongs to a tensor, or to a lane of a set. */
struct engine_express_slot {
    uint32_t *owner;              /* where 1 + its index stands; NULL: free */
    struct engine_tensor *tensor; /* NULL: a lane's */
    struct engine_set *set;       /* a lane's is not counted: the set owns the lane */
    struct hvi_submission agreed; /* what every rank said when the last ticket was given */
    uint64_t bytes;
    uint32_t everybody;    /* a bit per member */
    bool open;             /* a ticket is out */
    uint32_t turn;         /* that it is for */
    bool burned;           /* a stopped rank may still write to it: never used again */
    bool large;            /* operands lie in the ranks' regions; units (express_large.c) */
    bool closing;          /* seized while a large op runs: that ends first */
    bool doomed;           /* which cannot end well any more, and has changed its inputs */
    bool nonsense;         /* that it runs: its parts are as they were */
    bool dropped;          /* nobody's, as soon as it has ended */
    bool watched;          /* ranks held units of the large op at the last look, */
    uint32_t watched_turn; /* of this turn */
    uint64_t warn_ns;      /* when to warn (again) of ranks that hold units */
    uint32_t full_turn;
    uint64_t full_ns; /* since when it has been seen full at that turn; 0: not yet */
};

/* How much of a rank's block has been added to what the engine knows. */
struct engine_express_seen {
    uint64_t ops, bytes, traced;
};

struct engine_express {
    bool on;
    struct engine_express_seen *seen;  /* [size] */
    struct hvi_express_lag *lags_seen; /* [size][size] */
    struct hvi_express map;
    struct engine_region region; /* the same memory, for operands */
    uint32_t used;               /* slots that were ever given out */
    uint32_t open;               /* tickets that are out */
    uint32_t closing;            /* slots that are */
    bool busy;                   /* large ops have units that this engine should do */
    struct sd_event_source *tick;
    bool soon;      /* the tick is no patrol: somebody stands in a slot */
    uint64_t turns; /* sum of all slots' turns at the last patrol */
    uint32_t quiet; /* patrols since it last changed */
    struct engine_express_slot slots[HVI_EXPRESS_SLOTS];
};

/* Makes the memory. A job that cannot have it works without. */
void engine_express_start(struct engine *engine);
void engine_express_stop(struct engine *engine);
/* The op is about to end well on every rank: its parts get tickets if it may use a slot next time. */
void engine_express_grant(struct engine *engine, struct engine_op *op);
/* The part has come through the ring: parts that lie in the slot of its tensor or lane come first. */
void engine_express_seize(struct engine *engine, const struct engine_part *part);
/* The same for every slot of a set, and for every slot there is: for when somebody is lost or ops
 * have to be looked at one by one. */
void engine_express_seize_set(struct engine *engine, const struct engine_set *set);
void engine_express_seize_all(struct engine *engine);
/* The rank wants its op back: if that still waits in a slot for others, it is a part from now on. */
void engine_express_seize_op(struct engine *engine, int32_t rank, uint64_t cookie);
/* The tensor goes: as order/tensor.h's gone, with the engine as the user. */
void engine_express_tensor_gone(void *user, struct engine_tensor *tensor);
/* The set goes: its lanes, that is. Nobody waits there any more. */
void engine_express_release_set(struct engine *engine, struct engine_set *set);
/* Adds what ranks did in slots to their rows and traces: before anybody reads these. */
void engine_express_fold(struct engine *engine);
/* The trace alone of one rank: before something later is added to it. */
void engine_express_fold_trace(struct engine *engine, int32_t rank);
/* Ends the large ops that still run in seized slots. Waits a second at most for those who hold units. */
void engine_express_settle(struct engine *engine);
/* Does what can be done of large ops that run: a rank is about to go. */
void engine_express_finish(struct engine *engine);
/* Looks whether ranks wait for long, if one has asked for it; a load when none has. True: there is more
 * to do. */
bool engine_express_look(struct engine *engine);

/* When the first of those who have arrived, a bit per member, submitted. */
uint64_t engine_express_oldest_ns(const struct engine *engine, uint32_t index, uint32_t arrived);

/* ---- express_large.c ---- */

/* What the rank wrote into its part of a large op. */
void engine_express_operands(const struct engine *engine, const struct engine_express_slot *slot,
                             int32_t rank, struct hvi_express_operands *operands_p);
/* The session's region if an operand of the slot's size fits there; else NULL. */
struct engine_region *engine_express_region(const struct engine_session *session,
                                            const struct engine_express_slot *slot, uint32_t id,
                                            uint64_t offset);
/* Does some of what is left of a large op, or all. True: it is over, well unless .doomed or .nonsense.
 * False: there is more to do (.busy), or ranks hold units of it. */
bool engine_express_run(struct engine *engine, struct engine_express_slot *slot, bool all);

/* A large op of which ranks hold units. */
struct engine_held {
    struct engine_express_slot *slot;
    uint32_t holders;  /* a bit per rank of the job */
    uint64_t since_ns; /* when its first rank submitted it */
    char name[HVI_NAME_MAX + 1];
};
/* The next one from slot *cursor_p on, which begins with 0. False: no more. */
bool engine_express_next_held(struct engine *engine, uint32_t *cursor_p,
                              struct engine_held *held_p);

#endif
