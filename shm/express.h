/* SPDX-License-Identifier: Apache-2.0
 * Express slots: job-shared memory in which the last rank that arrives does a small op for all.
 * Why, and what happens when somebody dies: docs/adr/0005.
 *
 * One slot serves one tensor, or a lane: the unnamed ops of one kind in one set, one after the other.
 * Its word decides everything, and is only changed by compare-and-swap:
 *
 *                       arrive (every rank once)
 *                            .----.
 *                            v    |
 *    open(engine) ---> (t, OPEN, mask) --publish, by the last--> (t+1, OPEN, 0)
 *                            |
 *                            '---seize(engine)--> (t, SEIZED, mask) --open--> (t+2, OPEN, 0)
 *
 * and for a large op, which is too much for the last one alone (docs/adr/0011):
 *
 *    (t, OPEN, all) --start, by the last--> (t, RUNS, all) --publish, after the last unit--> (t+1, OPEN, 0)
 *                                              |    |
 *                          seize(engine) <-----'    '-----> fail(engine): a rank died with a unit in hand
 *    (t, CLOSES, all) --publish--> (t+1, SEIZED, 0)                    (t, SEIZED, all)
 *
 * A rank that has arrived at turn t sees one of three things: still t and open (wait), a turn at an
 * odd distance (done: the result may be copied), anything else (the op is the engine's, and ends
 * with a completion). However late it looks: publishing moves the turn by one and can only happen
 * once without its own arrival, opening what was seized moves it by two.
 *
 * Who writes what: a rank its own part and payload, before it arrives; the last rank the result,
 * before it publishes; nobody the result before every rank has arrived at the next turn, and a rank
 * arrives only after it has copied the last result.
 *
 * The engine makes the memory; every rank of the job maps it. Nobody believes what he reads here
 * further than as numbers: indices and sizes live in private memory. */
#ifndef HVI_SHM_EXPRESS_H
#define HVI_SHM_EXPRESS_H

#include "base/types.h"
#include "shm/region.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HVI_EXPRESS_MAGIC     0x7078656864764868ull
#define HVI_EXPRESS_TURN_MASK 0xffffffu /* turns count modulo this + 1 */
#define HVI_EXPRESS_RANKS     32u       /* the most ranks of a job that has express slots */
#define HVI_EXPRESS_SLOTS     2048u
#define HVI_EXPRESS_LANES     3     /* of a process set: hvi_express_lane */
#define HVI_EXPRESS_PAYLOAD   4096u /* bytes of the largest small op */
#define HVI_EXPRESS_UNITS     64u   /* the most units of a large op */
/* Bytes of the largest large op, of one rank and of all together. */
#define HVI_EXPRESS_LARGE     (UINT64_C(4) << 20)
#define HVI_EXPRESS_LARGE_ALL (UINT64_C(16) << 20)
#define HVI_EXPRESS_SHORT     40u /* up to here payload and result lie beside the words */

/* One cache line: what everybody looks at. */
struct hvi_express_slot {
    /* turn:24 | state:8 | arrived:32. Arrive: pairs with the other ranks' arrivals (their parts),
     * with the last publish (the result has been copied), and, seq_cst, with .patrolled. Publish: release, pairs with
     * the acquire in hvi_express_look. */
    _Alignas(64) _Atomic uint64_t word;
    _Atomic uint32_t sleepers; /* ranks in a futex wait on the upper half of the word */
    _Atomic uint32_t called;   /* 1 + the turn of which a rank asks the engine to take the op */
    unsigned char result[HVI_EXPRESS_SHORT];
    uint8_t pad0[8];
};

/* What one rank brought to one slot; one cache line. */
struct hvi_express_part {
    /* 0: nothing of this rank's is in the slot. Release by the rank; acquire by the engine before it
     * gives the slot to somebody else. */
    _Alignas(64) _Atomic uint64_t cookie;
    uint64_t submit_ns;
    unsigned char payload[HVI_EXPRESS_SHORT];
    uint64_t number; /* of an unnamed op; 0: named */
};

/* Where a rank's operands of a large op lie; in its part, where a small one has its payload. */
struct hvi_express_operands {
    uint32_t in_region, out_region;
    uint64_t in_offset, out_offset;
};
_Static_assert(sizeof(struct hvi_express_operands) <= HVI_EXPRESS_SHORT, "fits into a part");

#define HVI_EXPRESS_ENGINE  254u /* a holder that is no rank */
#define HVI_EXPRESS_LACKS   128u /* and a rank: given up, a page of that rank's memory was missing */
#define HVI_EXPRESS_NOTHING UINT32_MAX

/* The units of a slot's large op. A unit's word says at which turn it was taken last, and by whom; if
 * that is the turn before, it is free. */
struct hvi_express_work {
    /* turn:32 | units that are not done:32. Acq_rel: who sees none left sees the results. With the turn,
     * because whoever counts his unit may do so when the engine has published the op already. */
    _Alignas(64) _Atomic uint64_t left;
    _Atomic uint32_t next; /* relaxed: where to look for a free unit first */
    _Alignas(64) _Atomic uint64_t
        unit[HVI_EXPRESS_UNITS]; /* turn:56 | 1 + rank, LACKS, ENGINE, 255 done */
};

#define HVI_EXPRESS_TRACE 1024u /* ops a rank remembers; a power of two */

/* One op of a rank, written by it when it has the result. */
struct hvi_express_trace {
    uint64_t submit_ns;
    uint64_t done_ns;
    uint64_t number; /* of an unnamed op; 0: named */
    uint32_t slot;
    uint32_t bytes;
};

#define HVI_EXPRESS_BUCKETS 44u /* bucket b counts lags in [2^(b-1), 2^b) ns; 0: less than 1 */

/* How late one rank came, as seen by the one that did the op. */
struct hvi_express_lag {
    uint64_t sum_ns, max_ns;
    uint64_t last; /* times it came last */
    uint32_t histogram[HVI_EXPRESS_BUCKETS];
};

/* Written by one rank only, but for .patrolled; read by the engine, which believes none of it. */
struct hvi_express_rank {
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
    struct hvi_express_lag lag[HVI_EXPRESS_RANKS]; /* by rank of the job */
    struct hvi_express_trace trace[HVI_EXPRESS_TRACE];
};

struct hvi_express_head {
    uint64_t magic;
    uint32_t abi_version;
    uint32_t ranks;
    uint8_t pad0[48];
    /* Client: somebody waits; engine: takes it back. Seq_cst with the bell's words. */
    _Alignas(64) _Atomic uint32_t watch;
    uint8_t pad1[60];
    uint8_t reserved[3968];
};

/* Layout: head, rank blocks, slots, parts [slot][rank], payloads [slot][rank], results [slot], works
 * [slot]. */
struct hvi_express {
    struct hvi_region region;
    uint32_t ranks;
    struct hvi_express_head *head;
    struct hvi_express_rank *rank;
    struct hvi_express_slot *slots;
    struct hvi_express_part *parts;
    unsigned char *payloads;
    unsigned char *results;
    struct hvi_express_work *works;
};

#define HVI_EXPRESS_SIZE(type, bytes) _Static_assert(sizeof(struct type) == (bytes), "ABI")
#define HVI_EXPRESS_AT(type, field, offset)                                                        \
    _Static_assert(offsetof(struct type, field) == (offset), #type "." #field " moved")

HVI_EXPRESS_SIZE(hvi_express_slot, 64);
HVI_EXPRESS_AT(hvi_express_slot, word, 0);
HVI_EXPRESS_AT(hvi_express_slot, sleepers, 8);
HVI_EXPRESS_AT(hvi_express_slot, called, 12);
HVI_EXPRESS_AT(hvi_express_slot, result, 16);
HVI_EXPRESS_SIZE(hvi_express_part, 64);
HVI_EXPRESS_AT(hvi_express_part, cookie, 0);
HVI_EXPRESS_AT(hvi_express_part, submit_ns, 8);
HVI_EXPRESS_AT(hvi_express_part, payload, 16);
HVI_EXPRESS_AT(hvi_express_part, number, 56);
HVI_EXPRESS_SIZE(hvi_express_work, 576);
HVI_EXPRESS_AT(hvi_express_work, next, 8);
HVI_EXPRESS_AT(hvi_express_work, unit, 64);
HVI_EXPRESS_SIZE(hvi_express_operands, 24);
HVI_EXPRESS_SIZE(hvi_express_trace, 32);
HVI_EXPRESS_AT(hvi_express_trace, submit_ns, 0);
HVI_EXPRESS_AT(hvi_express_trace, done_ns, 8);
HVI_EXPRESS_AT(hvi_express_trace, number, 16);
HVI_EXPRESS_AT(hvi_express_trace, slot, 24);
HVI_EXPRESS_AT(hvi_express_trace, bytes, 28);
HVI_EXPRESS_SIZE(hvi_express_lag, 200);
HVI_EXPRESS_AT(hvi_express_lag, histogram, 24);
HVI_EXPRESS_SIZE(hvi_express_rank, 40960);
HVI_EXPRESS_AT(hvi_express_rank, traced, 16);
HVI_EXPRESS_AT(hvi_express_rank, patrolled, 28);
HVI_EXPRESS_AT(hvi_express_rank, lag, 64);
HVI_EXPRESS_AT(hvi_express_rank, trace, 6464);
HVI_EXPRESS_SIZE(hvi_express_head, 4096);
HVI_EXPRESS_AT(hvi_express_head, watch, 64);

/* Where a kind's unnamed ops have their lane in a set; -1: ops of this kind are not done in slots. */
static inline int hvi_express_lane(uint32_t kind)
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
int hvi_express_create(uint32_t ranks, struct hvi_express *express_p);
/* Client: maps `fd`, which it owns on success. HVI_OK, HVI_ERR_PROTOCOL, HVI_ERR_VERSION,
 * HVI_ERR_NO_MEMORY. */
int hvi_express_map(int fd, uint32_t ranks, struct hvi_express *express_p);
/* Harmless on a zeroed view with region.fd -1. */
void hvi_express_fini(struct hvi_express *express);

static inline struct hvi_express_part *hvi_express_part(const struct hvi_express *express,
                                                        uint32_t slot, uint32_t rank)
{
    return &express->parts[(size_t)slot * express->ranks + rank];
}

/* Where a rank's payload of `bytes` lies, and where the result does. Aligned to 16. */
unsigned char *hvi_express_payload(const struct hvi_express *express, uint32_t slot, uint32_t rank,
                                   uint64_t bytes);
unsigned char *hvi_express_result(const struct hvi_express *express, uint32_t slot, uint64_t bytes);

enum hvi_express_arrival {
    HVI_EXPRESS_STALE,   /* another turn, or seized: not arrived */
    HVI_EXPRESS_ARRIVED, /* others are missing */
    HVI_EXPRESS_LAST,    /* everybody is here: reduce and publish */
};

/* A rank, after its part and payload: sets bit `member`. `everybody` has a bit per member. */
enum hvi_express_arrival hvi_express_arrive(const struct hvi_express *express, uint32_t slot,
                                            uint32_t turn, uint32_t member, uint32_t everybody);
/* The last one, after the result. False: the engine was faster, the op is its now. */
bool hvi_express_publish(const struct hvi_express *express, uint32_t slot, uint32_t turn,
                         uint32_t everybody);

/* ---- large ops ---- */

/* Whether an op of `bytes` per rank may be done in units. */
static inline bool hvi_express_is_large(uint64_t bytes, uint32_t ranks)
{
    return bytes > HVI_EXPRESS_PAYLOAD && bytes <= HVI_EXPRESS_LARGE &&
           bytes * ranks <= HVI_EXPRESS_LARGE_ALL;
}
/* Into how many units it is cut: unit u is [u * unit_bytes, + unit_bytes). Pure. */
uint32_t hvi_express_cut(uint64_t bytes, uint64_t *unit_bytes_p);
/* The last one: units can be taken from now on. Wakes who sleeps. False: as hvi_express_publish. */
bool hvi_express_start(const struct hvi_express *express, uint32_t slot, uint32_t turn,
                       uint32_t units, uint32_t everybody);
/* Takes a unit of a large op that runs at `turn`, for `holder`: 1 + rank, or HVI_EXPRESS_ENGINE.
 * HVI_EXPRESS_NOTHING: all are taken, or it does not run any more. */
uint32_t hvi_express_claim(const struct hvi_express *express, uint32_t slot, uint32_t turn,
                           uint32_t units, uint32_t holder);
/* What the holder had to write is written. True: it was the last unit; publish. */
bool hvi_express_finish(const struct hvi_express *express, uint32_t slot, uint32_t turn,
                        uint32_t unit);
/* The holder could not do it: a page of the operands of `rank` of the job could not be had. The unit is
 * never done, so the op is never published; only the engine ends it. */
void hvi_express_give_up(const struct hvi_express *express, uint32_t slot, uint32_t turn,
                         uint32_t unit, uint32_t rank);
/* A rank of which hvi_express_give_up has told at `turn`; -1: none. Acquire. */
int32_t hvi_express_lacking(const struct hvi_express *express, uint32_t slot, uint32_t turn);
/* Whether every unit of `turn` is done. Acquire. */
bool hvi_express_is_done(const struct hvi_express *express, uint32_t slot, uint32_t turn);
/* Publishes a large op of which every unit is done; somebody else may have. */
void hvi_express_end(const struct hvi_express *express, uint32_t slot, uint32_t turn,
                     uint32_t everybody);
/* Who holds the unit at `turn`: a rank of the job; -1: nobody, or the engine. */
int32_t hvi_express_holder(const struct hvi_express *express, uint32_t slot, uint32_t turn,
                           uint32_t unit);

/* The ranks of the job that hold units at `turn`, a bit each. */
uint32_t hvi_express_holders(const struct hvi_express *express, uint32_t slot, uint32_t turn);

enum hvi_express_sight {
    HVI_EXPRESS_WAITS,
    HVI_EXPRESS_RUNS,   /* a large op: units can be taken */
    HVI_EXPRESS_DONE,   /* published; acquire */
    HVI_EXPRESS_SEIZED, /* the engine's */
};

/* A rank that has arrived at `turn`. */
enum hvi_express_sight hvi_express_look(const struct hvi_express *express, uint32_t slot,
                                        uint32_t turn);
/* Sleeps until the turn or the state moves from what `sight` was, at most `timeout_ns`. */
void hvi_express_sleep(const struct hvi_express *express, uint32_t slot, uint32_t turn,
                       enum hvi_express_sight sight, uint64_t timeout_ns);

/* A rank that has arrived at `turn` and whose engine has died (a living one would take units that are
 * claimed here for its own): nobody begins to work on the op any more. Waits, until the deadline, for holders of units. True: no rank writes to operands of the op from now on;
 * false: one still may, to its unit. If all units are done, so is the op: hvi_express_look. */
bool hvi_express_close(const struct hvi_express *express, uint32_t slot, uint32_t turn,
                       uint32_t units, uint32_t everybody, uint64_t deadline_ns);

/* Engine: takes a slot that it has opened, whatever its word says now; *arrived_p are the bits of
 * those who have arrived. Wakes who sleeps. False: a large op runs in it, which goes on, but nobody
 * will arrive there again. */
bool hvi_express_seize(const struct hvi_express *express, uint32_t slot, uint32_t *arrived_p);
/* Engine: ends a large op that runs, or did when it was seized, without a result. Returns the bits of
 * those who had arrived. */
uint32_t hvi_express_fail(const struct hvi_express *express, uint32_t slot);
/* Engine: whether a large op runs there, at which turn, and of whom, all of one look. Acquire. */
bool hvi_express_runs(const struct hvi_express *express, uint32_t slot, uint32_t *turn_p,
                      uint32_t *arrived_p);
/* Engine: false when the word says seized. */
bool hvi_express_is_open(const struct hvi_express *express, uint32_t slot);
/* Engine: makes a seized slot's units fit for large ops; before it is opened for one. */
void hvi_express_clear(const struct hvi_express *express, uint32_t slot);
/* Engine: opens a seized slot; returns the turn that ranks may arrive at. */
uint32_t hvi_express_open(const struct hvi_express *express, uint32_t slot);
/* Engine: the turn of the word. */
uint32_t hvi_express_turn(const struct hvi_express *express, uint32_t slot);
/* Engine: the bits of those who have arrived at an open slot; 0 for others. */
uint32_t hvi_express_arrived(const struct hvi_express *express, uint32_t slot);

#endif
