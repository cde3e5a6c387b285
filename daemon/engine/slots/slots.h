/* SPDX-License-Identifier: Apache-2.0
 * The room slots/: the engine's side of the slots (shm/slots.h, docs/adr/0005): when grants are
 * given, and how an op comes back to the engine. It calls upward only through the table. Engine
 * thread; nothing blocks unless it says so. */
#ifndef ENGINE_SLOTS_SLOTS_H
#define ENGINE_SLOTS_SLOTS_H

#include "daemon/engine/exec/share.h"
#include "daemon/engine/memory/region.h"
#include "shm/agreement.h"
#include "shm/slots.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct engine_order;
struct engine_stats;
struct sd_event;
struct sd_event_source;

/* A share with what slots have to know of it. Every part that order/ gets is the beginning of one. */
struct engine_slots_share {
    struct engine_share share;
    uint32_t grant, grant_turn; /* for the completion; 0: none */
};

static inline struct engine_slots_share *engine_slots_share_of(const struct engine_part *part)
{
    return (struct engine_slots_share *)(uintptr_t)part;
}

/* What slots cannot do themselves. A rank's session may be over after each of these. */
struct engine_slots_calls {
    /* What the rank has submitted in a slot goes on as if it had come through its ring. Takes over the
     * reference to `tensor`; NULL: there was no memory for it. Everything in the copy but cookie, time
     * and number is the engine's own. */
    void (*inject)(void *user, engine_seat seat, const struct hvi_submission *copy,
                   const struct engine_operands *operands, struct engine_set *set,
                   struct engine_tensor *tensor);
    /* The rank has broken the protocol: its session ends at once. */
    void (*violation)(void *user, engine_seat seat, const char *reason);
    /* The rank has broken the protocol: its session ends when the loop comes round. `reason` is kept. */
    void (*doom)(void *user, engine_seat seat, const char *reason);
    /* Wakes the rank if it sleeps on its event descriptor. */
    void (*ring)(void *user, engine_seat seat);
    /* Ranks stand in slots: called at each tick while they do. */
    void (*waited)(void *user);
};

/* The rank at a seat, as far as slots concern it. */
struct engine_slots_rank {
    const struct engine_regions *regions; /* NULL: not here yet, or freed */
    pid_t pid;
    int pid_fd; /* -1: none */
    bool over;  /* its session: it submits nothing and hears nothing any more */
    uint64_t over_ns;
};

/* A slot's life, seen from the engine.
 *
 *           an op ends well       a grant is given     (ranks do ops: the engine learns nothing)
 *     FREE ------------------> IDLE ------------------> OPEN
 *      ^                      | ^ ^                     | |
 *      '---- its owner goes, -' | '------ revoked ------' | revoked while a medium op runs
 *            or gets another    |                         v
 *                               |<----- that ended ---- CLOSING
 *                               |                         | it cannot end well any more
 *                               |                         v
 *                               '-- every rank is told - FAILING
 *
 * One setter: set_state in slots.c. A slot whose owner goes while it is CLOSING or FAILING is nobody's
 * from then on, and FREE when it has ended. */
enum engine_slot_state {
    ENGINE_SLOT_FREE,    /* a rank may not have left it yet */
    ENGINE_SLOT_IDLE,    /* its owner's; no grant is out */
    ENGINE_SLOT_OPEN,    /* a grant is out */
    ENGINE_SLOT_CLOSING, /* a medium op runs, and no rank comes any more */
    ENGINE_SLOT_FAILING, /* that has changed its inputs: no rank goes on before it is known why */
    ENGINE_SLOT_STATES
};

/* A slot that belongs to a tensor, or to an unnamed slot of a set. */
struct engine_slot {
    enum engine_slot_state state;
    uint32_t *owner;              /* where 1 + its index stands; NULL: nobody's */
    struct engine_tensor *tensor; /* NULL: an unnamed slot's, or gone */
    struct engine_set *set; /* an unnamed slot's is not counted: the set owns the unnamed slot */
    struct hvi_agreement agreed; /* what every rank said when the last grant was given */
    uint32_t everybody;          /* a bit per member */
    uint32_t turn;               /* that the grant is for */
    uint32_t held_turn; /* 1 + the turn at which ranks held chunks at the last look; 0: none */
    int32_t lacking;  /* 1 + a seat: the medium op fails because a page of its memory was missing */
    uint64_t warn_ns; /* when to warn (again) of ranks that hold chunks */
    uint32_t full_turn;
    uint64_t full_ns; /* since when it has been seen full at that turn; 0: not yet */
};

/* How much of a rank's block has been added to what the engine knows. */
struct engine_slots_seen {
    uint64_t ops, bytes, traced;
};

struct engine_slots {
    const char *job; /* for the log */
    uint32_t seats;  /* of this node */
    struct engine_order *order;
    struct engine_stats *stats;
    struct sd_event *event;
    const struct engine_slots_calls *calls;
    void *user;
    bool apart;    /* ranks do not map each other's memory */
    bool withheld; /* no grants for now */

    bool on;
    struct engine_slots_rank ranks[HVI_SLOT_RANKS + 1]; /* by seat */
    struct engine_slots_seen *seen;                     /* [seats] */
    struct hvi_slot_lag *lags_seen;                     /* [seats][seats] */
    struct hvi_slots map;
    struct engine_region region; /* the same memory, for operands */
    uint32_t used;               /* slots that were ever given out */
    uint32_t open;               /* slots that are */
    uint32_t closing;            /* the same, and those that are FAILING */
    int32_t lacking;             /* of the slot whose op goes on as parts at this moment */
    bool busy;                   /* medium ops have chunks that this engine should do */
    struct sd_event_source *tick;
    bool soon;      /* the tick is no patrol: somebody stands in a slot */
    uint64_t turns; /* sum of all slots' turns at the last patrol */
    uint32_t quiet; /* patrols since it last changed */
    struct engine_slot slot[HVI_SLOTS];
};

/* Makes the memory; everything up to the blank line above is set, the rest zero. A job that cannot have
 * it works without. */
void engine_slots_start(struct engine_slots *slots);
void engine_slots_stop(struct engine_slots *slots);
/* The rank has come. `regions` and `pid_fd` (-1: none) stay the caller's. */
void engine_slots_come(struct engine_slots *slots, engine_seat seat, int32_t rank,
                       const struct engine_regions *regions, pid_t pid, int pid_fd);
/* The session of the seat's rank is over, or that will never have one. */
void engine_slots_leave(struct engine_slots *slots, engine_seat seat);
/* The caller frees the rank's regions and descriptor: only while .closing is 0. */
void engine_slots_forget(struct engine_slots *slots, engine_seat seat);
/* The seat's rank has a session that is not over. */
static inline bool engine_slots_is_here(const struct engine_slots *slots, engine_seat seat)
{
    return slots->ranks[seat.n].regions && !slots->ranks[seat.n].over;
}
/* While grants are withheld none is given, and all that are out come back: every op passes the engine. */
void engine_slots_withhold(struct engine_slots *slots, bool withheld);
/* The op is about to end well on every rank: its parts get grants if it may use a slot next time. */
void engine_slots_grant(struct engine_slots *slots, struct engine_op *op);
/* The part has come through the ring: parts that lie in the slot of its tensor or unnamed slot come first. */
void engine_slots_revoke(struct engine_slots *slots, const struct engine_part *part);
/* The same for every slot of a set, and for every slot there is: for when somebody is lost or ops
 * have to be looked at one by one. */
void engine_slots_revoke_set(struct engine_slots *slots, const struct engine_set *set);
void engine_slots_revoke_all(struct engine_slots *slots);
/* The rank wants its op back: if that still waits in a slot for others, it is a part from now on. */
void engine_slots_revoke_op(struct engine_slots *slots, engine_seat seat, uint64_t cookie);
/* The tensor goes: as order/tensor.h's gone; the user is a struct engine_slots. */
void engine_slots_tensor_gone(void *user, struct engine_tensor *tensor);
/* The set goes: its unnamed slots, that is. Nobody waits there any more. */
void engine_slots_release_set(struct engine_slots *slots, struct engine_set *set);
/* Adds what ranks did in slots to their rows and traces: before anybody reads these. */
void engine_slots_fold(struct engine_slots *slots);
/* The trace alone of one rank: before something later is added to it. */
void engine_slots_fold_trace(struct engine_slots *slots, engine_seat seat);
/* Ends the medium ops that still run in revoked slots, although ranks hold chunks: they fail. */
void engine_slots_give_up(struct engine_slots *slots);
/* Does what can be done of medium ops that run: a rank is about to go. */
void engine_slots_finish(struct engine_slots *slots);
/* Looks whether ranks wait for long, if one has asked for it; a load when none has. True: there is more
 * to do. */
bool engine_slots_look(struct engine_slots *slots);

/* When the first of those who have arrived, a bit per member, submitted. */
uint64_t engine_slots_oldest_ns(const struct engine_slots *slots, uint32_t index, uint32_t arrived);

/* ---- medium.c ---- */

/* The rank's region with this id; NULL: there is none, or it is the inline area, or the rank has no memory
 * here any more. A rank that is gone may still have some: while medium ops run, ended sessions are kept,
 * with their regions. */
struct engine_region *engine_slots_region(const struct engine_slots *slots, engine_seat seat,
                                          uint32_t id);
enum engine_slot_outcome {
    ENGINE_SLOT_RUNS, /* there is more to do (.busy), or ranks hold chunks of it */
    ENGINE_SLOT_OVER, /* well, or it never ran */
    ENGINE_SLOT_FAILED,
    ENGINE_SLOT_NONSENSE, /* a rank has made up that it runs: its parts are as they were */
};
/* Does some of what is left of a medium op, or all. */
enum engine_slot_outcome engine_slots_run(struct engine_slots *slots, struct engine_slot *slot,
                                          bool all);

/* ---- slots.c, for medium.c and tests ---- */

/* The medium op of an open or closing slot cannot end well any more. */
void engine_slots_fail(struct engine_slots *slots, struct engine_slot *slot, const char *cause);
bool engine_slot_edge(enum engine_slot_state from, enum engine_slot_state to);
static inline uint32_t engine_slot_index(const struct engine_slots *slots,
                                         const struct engine_slot *slot)
{
    return (uint32_t)(slot - slots->slot);
}
static inline bool engine_slot_is_medium(const struct engine_slot *slot)
{
    return slot->agreed.bytes > HVI_SLOT_PAYLOAD;
}

/* A medium op of which ranks hold chunks. */
struct engine_held {
    struct engine_slot *slot;
    uint32_t holders;  /* a bit per seat */
    uint64_t since_ns; /* when its first rank submitted it */
    char name[HVI_NAME_MAX + 1];
};
/* The next one from slot *cursor_p on, which begins with 0. False: no more. */
bool engine_slots_next_held(struct engine_slots *slots, uint32_t *cursor_p,
                            struct engine_held *held_p);

#endif
