/* SPDX-License-Identifier: Apache-2.0
 * The room slots/: the engine's side of the express slots (shm/express.h, docs/adr/0005): who gets a
 * ticket, and how an op comes back to the engine. It calls upward only through the table. Engine
 * thread; nothing blocks unless it says so. */
#ifndef ENGINE_SLOTS_EXPRESS_H
#define ENGINE_SLOTS_EXPRESS_H

#include "daemon/engine/exec/share.h"
#include "daemon/engine/memory/region.h"
#include "shm/abi.h"
#include "shm/express.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct engine_order;
struct engine_stats;
struct sd_event;
struct sd_event_source;

/* A share with what slots have to know of it. Every part that order/ gets is the beginning of one. */
struct engine_express_share {
    struct engine_share share;
    uint32_t ticket, ticket_turn; /* for the completion; 0: none */
};

static inline struct engine_express_share *engine_express_share_of(const struct engine_part *part)
{
    return (struct engine_express_share *)(uintptr_t)part;
}

/* What slots cannot do themselves. A rank's session may be over after each of these. */
struct engine_express_calls {
    /* What the rank has submitted in a slot goes on as if it had come through its ring. Takes over the
     * reference to `tensor`; NULL: there was no memory for it. Everything in the copy but cookie, time
     * and number is the engine's own. */
    void (*inject)(void *user, int32_t rank, const struct hvi_submission *copy,
                   const struct engine_operands *operands, struct engine_set *set,
                   struct engine_tensor *tensor);
    /* The rank has broken the protocol: its session ends at once. */
    void (*violation)(void *user, int32_t rank, const char *reason);
    /* The rank has broken the protocol: its session ends when the loop comes round. `reason` is kept. */
    void (*doom)(void *user, int32_t rank, const char *reason);
    /* Wakes the rank if it sleeps on its event descriptor. */
    void (*ring)(void *user, int32_t rank);
    /* Ranks stand in slots: called at each tick while they do. */
    void (*waited)(void *user);
};

/* A rank of the job, as far as slots concern it. */
struct engine_express_rank {
    const struct engine_regions *regions; /* NULL: not here yet, or freed */
    pid_t pid;
    int pid_fd; /* -1: none */
    bool over;  /* its session: it submits nothing and hears nothing any more */
    uint64_t over_ns;
};

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
    bool retired;          /* a stopped rank may still write to it: its owner gets another one */
    bool large;            /* operands lie in the ranks' regions; units (express_large.c) */
    bool closing;          /* seized while a large op runs: that ends first */
    bool doomed;           /* which cannot end well any more, and has changed its inputs */
    int32_t lacking;       /* 1 + a rank: doomed because a page of its memory was missing */
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
    const char *job; /* for the log */
    int32_t size;    /* ranks of the job */
    struct engine_order *order;
    struct engine_stats *stats;
    struct sd_event *event;
    const struct engine_express_calls *calls;
    void *user;
    bool apart;    /* ranks do not map each other's memory */
    bool withheld; /* no tickets for now */

    bool on;
    struct engine_express_rank ranks[HVI_EXPRESS_RANKS];
    struct engine_express_seen *seen;  /* [size] */
    struct hvi_express_lag *lags_seen; /* [size][size] */
    struct hvi_express map;
    struct engine_region region; /* the same memory, for operands */
    uint32_t used;               /* slots that were ever given out */
    uint32_t open;               /* tickets that are out */
    uint32_t closing;            /* slots that are */
    int32_t lacking;             /* of the slot whose op goes on as parts at this moment */
    bool busy;                   /* large ops have units that this engine should do */
    struct sd_event_source *tick;
    bool soon;      /* the tick is no patrol: somebody stands in a slot */
    uint64_t turns; /* sum of all slots' turns at the last patrol */
    uint32_t quiet; /* patrols since it last changed */
    struct engine_express_slot slots[HVI_EXPRESS_SLOTS];
};

/* Makes the memory; everything up to the blank line above is set, the rest zero. A job that cannot have
 * it works without. */
void engine_express_start(struct engine_express *express);
void engine_express_stop(struct engine_express *express);
/* The rank has come. `regions` and `pid_fd` (-1: none) stay the caller's. */
void engine_express_come(struct engine_express *express, int32_t rank,
                         const struct engine_regions *regions, pid_t pid, int pid_fd);
/* The rank's session is over, or the rank will never have one. */
void engine_express_leave(struct engine_express *express, int32_t rank);
/* The caller frees the rank's regions and descriptor: only while .closing is 0. */
void engine_express_forget(struct engine_express *express, int32_t rank);
/* The rank has a session that is not over. */
static inline bool engine_express_is_here(const struct engine_express *express, int32_t rank)
{
    return express->ranks[rank].regions && !express->ranks[rank].over;
}
/* What indexes a member's row, block and bit: ranks stand for seats in this room. */
static inline int32_t engine_express_row(const struct engine_set *set, uint32_t member)
{
    return engine_rank_is_seat(set->seats[member]);
}
/* While tickets are withheld none is given, and all that are out come back: every op passes the engine. */
void engine_express_withhold(struct engine_express *express, bool withheld);
/* The op is about to end well on every rank: its parts get tickets if it may use a slot next time. */
void engine_express_grant(struct engine_express *express, struct engine_op *op);
/* The part has come through the ring: parts that lie in the slot of its tensor or lane come first. */
void engine_express_seize(struct engine_express *express, const struct engine_part *part);
/* The same for every slot of a set, and for every slot there is: for when somebody is lost or ops
 * have to be looked at one by one. */
void engine_express_seize_set(struct engine_express *express, const struct engine_set *set);
void engine_express_seize_all(struct engine_express *express);
/* The rank wants its op back: if that still waits in a slot for others, it is a part from now on. */
void engine_express_seize_op(struct engine_express *express, int32_t rank, uint64_t cookie);
/* The tensor goes: as order/tensor.h's gone; the user is a struct engine_express. */
void engine_express_tensor_gone(void *user, struct engine_tensor *tensor);
/* The set goes: its lanes, that is. Nobody waits there any more. */
void engine_express_release_set(struct engine_express *express, struct engine_set *set);
/* Adds what ranks did in slots to their rows and traces: before anybody reads these. */
void engine_express_fold(struct engine_express *express);
/* The trace alone of one rank: before something later is added to it. */
void engine_express_fold_trace(struct engine_express *express, int32_t rank);
/* Ends the large ops that still run in seized slots, although ranks hold units: they fail. */
void engine_express_give_up(struct engine_express *express);
/* Does what can be done of large ops that run: a rank is about to go. */
void engine_express_finish(struct engine_express *express);
/* Looks whether ranks wait for long, if one has asked for it; a load when none has. True: there is more
 * to do. */
bool engine_express_look(struct engine_express *express);

/* When the first of those who have arrived, a bit per member, submitted. */
uint64_t engine_express_oldest_ns(const struct engine_express *express, uint32_t index,
                                  uint32_t arrived);

/* ---- express_large.c ---- */

/* What the rank wrote into its part of a large op. */
void engine_express_operands(const struct engine_express *express,
                             const struct engine_express_slot *slot, int32_t rank,
                             struct hvi_express_operands *operands_p);
/* The region among these if an operand of the slot's size fits there; else NULL. */
struct engine_region *engine_express_region(const struct engine_regions *regions,
                                            const struct engine_express_slot *slot, uint32_t id,
                                            uint64_t offset);
/* Does some of what is left of a large op, or all. True: it is over, well unless .doomed or .nonsense.
 * False: there is more to do (.busy), or ranks hold units of it. */
bool engine_express_run(struct engine_express *express, struct engine_express_slot *slot, bool all);

/* A large op of which ranks hold units. */
struct engine_held {
    struct engine_express_slot *slot;
    uint32_t holders;  /* a bit per rank of the job */
    uint64_t since_ns; /* when its first rank submitted it */
    char name[HVI_NAME_MAX + 1];
};
/* The next one from slot *cursor_p on, which begins with 0. False: no more. */
bool engine_express_next_held(struct engine_express *express, uint32_t *cursor_p,
                              struct engine_held *held_p);

#endif
