/* SPDX-License-Identifier: Apache-2.0
 * Slots: job-shared memory in which the last rank that arrives does a small op for all.
 * Why, and what happens when somebody dies: docs/adr/0005.
 *
 * One slot serves one tensor. An unnamed slot serves the unnamed ops of one kind in one set, one after
 * the other.
 * Its word decides everything, and is only changed by compare-and-swap:
 *
 *                       arrive (every rank once)
 *                            .----.
 *                            v    |
 *    open(engine) ---> (t, OPEN, mask) --publish, by the last--> (t+1, OPEN, 0)
 *                            |
 *                            '---revoke(engine)--> (t, REVOKED, mask) --open--> (t+2, OPEN, 0)
 *
 * and for a medium op, which is too much for the last one alone (docs/adr/0011):
 *
 *    (t, OPEN, all) --start, by the last--> (t, RUNS, all) --publish, after the last chunk--> (t+1, OPEN, 0)
 *                                              |    |
 *                         revoke(engine) <-----'    '-----> fail(engine): a rank died with a chunk in hand
 *    (t, CLOSES, all) --publish--> (t+1, REVOKED, 0)                    (t, REVOKED, all)
 *
 * A rank that has arrived at turn t sees one of three things: still t and open (wait), a turn at an
 * odd distance (done: the result may be copied), anything else (the op is the engine's, and ends
 * with a completion). However late it looks: publishing moves the turn by one and can only happen
 * once without its own arrival, opening what was revoked moves it by two.
 *
 * Who writes what: a rank its own part and payload, before it arrives; the last rank the result,
 * before it publishes; nobody the result before every rank has arrived at the next turn, and a rank
 * arrives only after it has copied the last result.
 *
 * The engine makes the memory; every rank of the job that has a seat at this engine maps it. What belongs to
 * a rank is indexed by its seat (daemon/engine/order/roster.h), which is its channel's index. A bit of a
 * slot's word is a member's place in the set of the op. Untrusted memory: values are opaque; indices and
 * sizes live in private memory. */
#ifndef HVI_SHM_SLOTS_H
#define HVI_SHM_SLOTS_H

#include "base/types.h"
#include "shm/region.h"
#include "shm/tuning.h"
#include "shm/wait.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HVI_SLOTS_MAGIC    0x7078656864764868ull
#define HVI_SLOT_TURN_MASK 0xffffffu /* turns count modulo this + 1 */
#define HVI_SLOT_RANKS     32u       /* the most ranks that share slots: the seats of one engine */
#define HVI_SLOTS          2048u
#define HVI_SLOT_UNNAMED   3     /* of a process set: hvi_slot_unnamed */
#define HVI_SLOT_PAYLOAD   4096u /* bytes of the largest small op */
#define HVI_SLOT_CHUNKS    64u   /* the most chunks of a medium op */
#define HVI_SLOT_SHORT     40u   /* up to here payload and result lie beside the words */

/* One cache line: what everybody looks at. */
struct hvi_slot {
    /* turn:24 | state:8 | arrived:32. Arrive: pairs with the other ranks' arrivals (their parts),
     * with the last publish (the result has been copied), and, seq_cst, with .patrolled. Publish: release, pairs with
     * the acquire in hvi_slot_look. */
    _Alignas(64) _Atomic uint64_t word;
    _Atomic uint32_t sleepers; /* ranks in a futex wait on the upper half of the word */
    _Atomic uint32_t called;   /* 1 + the turn of which a rank asks the engine to take the op */
    unsigned char result[HVI_SLOT_SHORT];
    uint8_t pad0[8];
};

/* What one rank brought to one slot; one cache line. */
struct hvi_slot_part {
    /* 0: nothing of this rank's is in the slot. Release by the rank; acquire by the engine before it
     * gives the slot to somebody else. */
    _Alignas(64) _Atomic uint64_t cookie;
    uint64_t submit_ns;
    unsigned char payload[HVI_SLOT_SHORT];
    uint64_t number; /* of an unnamed op; 0: named */
};

/* Where a rank's operands of a medium op lie; in its part, where a small one has its payload. */
struct hvi_slot_operands {
    uint32_t in_region, out_region;
    uint64_t in_offset, out_offset;
};
_Static_assert(sizeof(struct hvi_slot_operands) <= HVI_SLOT_SHORT, "fits into a part");

#define HVI_SLOT_ENGINE  254u /* a holder that is no rank */
#define HVI_SLOT_LACKS   128u /* and a seat: given up, a page of that rank's memory was missing */
#define HVI_SLOT_NOTHING UINT32_MAX

/* The chunks of a slot's medium op. A chunk's word says at which turn it was taken last, and by whom; if
 * that is the turn before, it is free. */
struct hvi_slot_work {
    /* turn:32 | chunks that are not done:32. Acq_rel: who sees none left sees the results. With the turn,
     * because whoever counts his chunk may do so when the engine has published the op already. */
    _Alignas(64) _Atomic uint64_t left;
    _Atomic uint32_t next; /* relaxed: where to look for a free chunk first */
    _Alignas(64) _Atomic uint64_t
        chunk[HVI_SLOT_CHUNKS]; /* turn:56 | 1 + seat, LACKS, ENGINE, 255 done */
};

#define HVI_SLOT_TRACE 1024u /* ops a rank remembers; a power of two */

/* One op of a rank, written by it when it has the result. */
struct hvi_slot_trace {
    uint64_t submit_ns;
    uint64_t done_ns;
    uint64_t number; /* of an unnamed op; 0: named */
    uint32_t slot;
    uint32_t bytes;
};

#define HVI_SLOT_BUCKETS 44u /* bucket b counts lags in [2^(b-1), 2^b) ns; 0: less than 1 */

/* How late one rank came, as seen by the one that did the op. */
struct hvi_slot_lag {
    uint64_t sum_ns, max_ns;
    uint64_t last; /* times it came last */
    uint32_t histogram[HVI_SLOT_BUCKETS];
};

/* Written by one rank only, but for .patrolled; read by the engine, which believes none of it. */
struct hvi_slot_rank {
    _Alignas(4096) _Atomic uint64_t ops;
    _Atomic uint64_t bytes;
    _Atomic uint64_t traced; /* entries ever written to .trace; release */
    _Atomic uint32_t core;   /* 1 + where it ran when it last arrived somewhere; 0: unknown */
    /* Engine: it looks at the slots from time to time, unasked; the same for every rank, but in a line
     * that the rank has at hand. Rank: if it does not, whoever arrives and is not the last asks.
     * Seq_cst on both sides, as the arrival and the engine's last look are: either the rank sees 0,
     * or the engine sees the rank. */
    _Atomic uint32_t patrolled;
    uint8_t pad0[32];
    struct hvi_slot_lag lag[HVI_SLOT_RANKS]; /* by seat */
    struct hvi_slot_trace trace[HVI_SLOT_TRACE];
};

struct hvi_slots_head {
    uint64_t magic;
    uint32_t abi_version;
    uint32_t ranks;
    uint8_t pad0[48];
    /* Client: somebody waits; engine: takes it back. Seq_cst with the bell's words. */
    _Alignas(64) _Atomic uint32_t watch;
    uint8_t pad1[60];
    /* Engine: 1 + the rank of each seat, from its attach on; 0: not known. Relaxed: a rank gets a grant after
     * it, through its completion ring. Ranks check what they read. */
    _Atomic uint32_t seated[HVI_SLOT_RANKS];
    uint8_t reserved[3840];
};

/* Layout: head, rank blocks, slots, parts [slot][seat], payloads [slot][seat], results [slot], works
 * [slot]. */
struct hvi_slots {
    struct hvi_region region;
    uint32_t ranks; /* seats */
    struct hvi_slots_head *head;
    struct hvi_slot_rank *rank; /* by seat */
    struct hvi_slot *slots;
    struct hvi_slot_part *parts;
    unsigned char *payloads;
    unsigned char *results;
    struct hvi_slot_work *works;
};

#define HVI_SLOT_SIZE(type, bytes) _Static_assert(sizeof(struct type) == (bytes), "ABI")
#define HVI_SLOT_AT(type, field, offset)                                                           \
    _Static_assert(offsetof(struct type, field) == (offset), #type "." #field " moved")

HVI_SLOT_SIZE(hvi_slot, 64);
HVI_SLOT_AT(hvi_slot, word, 0);
HVI_SLOT_AT(hvi_slot, sleepers, 8);
HVI_SLOT_AT(hvi_slot, called, 12);
HVI_SLOT_AT(hvi_slot, result, 16);
HVI_SLOT_SIZE(hvi_slot_part, 64);
HVI_SLOT_AT(hvi_slot_part, cookie, 0);
HVI_SLOT_AT(hvi_slot_part, submit_ns, 8);
HVI_SLOT_AT(hvi_slot_part, payload, 16);
HVI_SLOT_AT(hvi_slot_part, number, 56);
HVI_SLOT_SIZE(hvi_slot_work, 576);
HVI_SLOT_AT(hvi_slot_work, next, 8);
HVI_SLOT_AT(hvi_slot_work, chunk, 64);
HVI_SLOT_SIZE(hvi_slot_operands, 24);
HVI_SLOT_SIZE(hvi_slot_trace, 32);
HVI_SLOT_AT(hvi_slot_trace, submit_ns, 0);
HVI_SLOT_AT(hvi_slot_trace, done_ns, 8);
HVI_SLOT_AT(hvi_slot_trace, number, 16);
HVI_SLOT_AT(hvi_slot_trace, slot, 24);
HVI_SLOT_AT(hvi_slot_trace, bytes, 28);
HVI_SLOT_SIZE(hvi_slot_lag, 200);
HVI_SLOT_AT(hvi_slot_lag, histogram, 24);
HVI_SLOT_SIZE(hvi_slot_rank, 40960);
HVI_SLOT_AT(hvi_slot_rank, traced, 16);
HVI_SLOT_AT(hvi_slot_rank, patrolled, 28);
HVI_SLOT_AT(hvi_slot_rank, lag, 64);
HVI_SLOT_AT(hvi_slot_rank, trace, 6464);
HVI_SLOT_SIZE(hvi_slots_head, 4096);
HVI_SLOT_AT(hvi_slots_head, watch, 64);
HVI_SLOT_AT(hvi_slots_head, seated, 128);

/* Where a kind's unnamed ops have their slot in a set; -1: ops of this kind are not done in slots. */
static inline int hvi_slot_unnamed(uint32_t kind)
{
    switch (kind) {
    case HVI_KIND_ALLREDUCE:
        return 0;
    case HVI_KIND_BROADCAST:
        return 1;
    case HVI_KIND_BARRIER:
        return 2;
    default:
        return -1;
    }
}

/* Engine: pages come as they are touched. Errors as hvi_region_create. */
int hvi_slots_create(uint32_t ranks, struct hvi_slots *map_p);
/* Client: maps `fd`, which it owns on success. HVI_OK, HVI_ERR_PROTOCOL, HVI_ERR_VERSION,
 * HVI_ERR_NO_MEMORY. */
int hvi_slots_map(int fd, uint32_t ranks, struct hvi_slots *map_p);
/* Harmless on a zeroed view with region.fd -1. */
void hvi_slots_fini(struct hvi_slots *map);
/* Engine: the rank has this seat. */
void hvi_slots_seat(const struct hvi_slots *map, uint32_t seat, int32_t rank);
/* Client: the seat of a rank, below map->ranks; -1: it has none here. */
int32_t hvi_slots_find_seat(const struct hvi_slots *map, int32_t rank);

static inline struct hvi_slot_part *hvi_slot_part(const struct hvi_slots *map, uint32_t slot,
                                                  uint32_t seat)
{
    return &map->parts[(size_t)slot * map->ranks + seat];
}

/* Where a rank's payload of `bytes` lies, and where the result does. Aligned to 16. */
unsigned char *hvi_slot_payload(const struct hvi_slots *map, uint32_t slot, uint32_t seat,
                                uint64_t bytes);
unsigned char *hvi_slot_result(const struct hvi_slots *map, uint32_t slot, uint64_t bytes);

enum hvi_slot_arrival {
    HVI_SLOT_STALE,   /* another turn, or revoked: not arrived */
    HVI_SLOT_ARRIVED, /* others are missing */
    HVI_SLOT_LAST,    /* everybody is here: reduce and publish */
};

/* A rank, after its part and payload: sets bit `member`. `everybody` has a bit per member. */
enum hvi_slot_arrival hvi_slot_arrive(const struct hvi_slots *map, uint32_t slot, uint32_t turn,
                                      uint32_t member, uint32_t everybody);
/* The last one, after the result; of a medium op, after its last chunk was done. False: somebody else
 * was faster: the engine, which has the op now, or of a medium op any rank. */
bool hvi_slot_publish(const struct hvi_slots *map, uint32_t slot, uint32_t turn,
                      uint32_t everybody);

enum hvi_slot_sight {
    HVI_SLOT_WAITS,
    HVI_SLOT_RUNS,    /* a medium op: chunks can be taken */
    HVI_SLOT_DONE,    /* published; acquire */
    HVI_SLOT_REVOKED, /* the engine's */
};

/* A rank that has arrived at `turn`. */
enum hvi_slot_sight hvi_slot_look(const struct hvi_slots *map, uint32_t slot, uint32_t turn);
/* The same, and what to wait on until it is another one. */
struct hvi_wait hvi_slot_wait(const struct hvi_slots *map, uint32_t slot, uint32_t turn,
                              enum hvi_slot_sight *sight_p);

/* All of a slot's word, of one look. */
struct hvi_slot_view {
    uint32_t turn;
    uint32_t arrived; /* a bit per member */
    uint32_t waiting; /* the same while ranks may still arrive; else 0 */
    bool open;        /* ranks may arrive, or a medium op runs that the engine has not revoked */
    bool runs;        /* a medium op does, revoked or not */
};
struct hvi_slot_view hvi_slot_view(const struct hvi_slots *map, uint32_t slot);

/* ---- medium ops ---- */

/* Whether an op of `bytes` per rank may be done in chunks. */
static inline bool hvi_slot_is_medium(uint64_t bytes, uint32_t ranks)
{
    return bytes > HVI_SLOT_PAYLOAD && bytes <= HVI_TUNED_MEDIUM &&
           bytes * ranks <= HVI_TUNED_MEDIUM_ALL;
}
/* Into how many chunks it is cut: chunk i is [i * chunk_bytes, + chunk_bytes). Pure. */
uint32_t hvi_slot_cut(uint64_t bytes, uint64_t *chunk_bytes_p);
/* The last one: chunks can be taken from now on. Wakes who sleeps. False: as hvi_slot_publish. */
bool hvi_slot_start(const struct hvi_slots *map, uint32_t slot, uint32_t turn, uint64_t bytes,
                    uint32_t everybody);
/* Takes a chunk of a medium op that runs at `turn`, for `holder`: 1 + seat, or HVI_SLOT_ENGINE.
 * HVI_SLOT_NOTHING: all are taken, or it does not run any more. */
uint32_t hvi_slot_claim(const struct hvi_slots *map, uint32_t slot, uint32_t turn, uint32_t chunks,
                        uint32_t holder);
/* Nobody takes another chunk, and these are never done: the op cannot end well any more. */
void hvi_slot_exhaust(const struct hvi_slots *map, uint32_t slot, uint32_t turn, uint32_t chunks);
/* What the holder had to write is written. True: it was the last chunk; publish. */
bool hvi_slot_finish(const struct hvi_slots *map, uint32_t slot, uint32_t turn, uint32_t chunk);
/* The holder could not do it: a page of the operands of the rank at `seat` could not be had. The chunk is
 * never done, so the op is never published; only the engine ends it. */
void hvi_slot_give_up(const struct hvi_slots *map, uint32_t slot, uint32_t turn, uint32_t chunk,
                      uint32_t seat);
/* Whether every chunk of `turn` is done. Acquire. */
bool hvi_slot_is_done(const struct hvi_slots *map, uint32_t slot, uint32_t turn);
/* The seats whose ranks hold chunks at `turn`, a bit each. Acquire. *lacking_p is one of which
 * hvi_slot_give_up has told, or -1; it may be NULL. */
uint32_t hvi_slot_holders(const struct hvi_slots *map, uint32_t slot, uint32_t turn,
                          int32_t *lacking_p);
/* A rank that has arrived at `turn` and whose engine has died (a living one would take chunks that are
 * claimed here for its own): nobody begins to work on the op any more. Waits, until the deadline, for
 * holders of chunks. True: no rank writes to operands of the op from now on; false: one still may, to
 * its chunk. If all chunks are done, so is the op: hvi_slot_look. */
bool hvi_slot_close(const struct hvi_slots *map, uint32_t slot, uint32_t turn, uint64_t bytes,
                    uint32_t everybody, uint64_t deadline_ns);

/* ---- the engine ---- */

/* Takes a slot that it has opened, whatever its word says now; *arrived_p are the bits of
 * those who have arrived. Wakes who sleeps. False: a medium op runs in it, which goes on, but nobody
 * will arrive there again. */
bool hvi_slot_revoke(const struct hvi_slots *map, uint32_t slot, uint32_t *arrived_p);
/* Ends a medium op that runs, or did when it was revoked, without a result. Returns the bits of
 * those who had arrived. */
uint32_t hvi_slot_fail(const struct hvi_slots *map, uint32_t slot);
/* Opens a revoked slot, for a medium op or a small one; returns the turn that ranks may arrive at. */
uint32_t hvi_slot_open(const struct hvi_slots *map, uint32_t slot, bool medium);

#endif
