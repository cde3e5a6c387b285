/* SPDX-License-Identifier: Apache-2.0
 * The words of express.h. Every change is a compare-and-swap from a word that was looked at, so a
 * late writer (a rank that was stopped in the middle) changes nothing that has moved on. */
#include "shm/express.h"

#include "base/clock.h"
#include "base/status.h"
#include "shm/abi.h"

#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define OPEN   0u
#define SEIZED 1u
#define RUNS   2u
#define CLOSES 3u /* runs, and is seized when it is over */

#define LEAST_UNIT_BYTES (UINT64_C(16) << 10)
#define MOST_UNIT_BYTES  (UINT64_C(64) << 10)
#define USUAL_UNITS      16u
#define DONE             255u /* a holder */

_Static_assert(HVI_EXPRESS_LACKS > HVI_EXPRESS_RANKS &&
                   HVI_EXPRESS_LACKS + HVI_EXPRESS_RANKS <= HVI_EXPRESS_ENGINE,
               "holders differ");

static uint64_t make_word(uint32_t turn, uint32_t state, uint32_t arrived)
{
    return (uint64_t)(turn & HVI_EXPRESS_TURN_MASK) << 40 | (uint64_t)state << 32 | arrived;
}

static uint32_t turn_of(uint64_t word)
{
    return (uint32_t)(word >> 40);
}

static uint32_t state_of(uint64_t word)
{
    return (uint32_t)(word >> 32) & 0xffu;
}

/* ---- memory ---- */

static uint64_t round_up(uint64_t bytes)
{
    return (bytes + HVI_PAGE - 1) / HVI_PAGE * HVI_PAGE;
}

static uint64_t rank_bytes(uint32_t ranks)
{
    return round_up(sizeof(struct hvi_express_rank) * ranks);
}

static uint64_t total_bytes(uint32_t ranks)
{
    return sizeof(struct hvi_express_head) + rank_bytes(ranks) +
           sizeof(struct hvi_express_slot) * HVI_EXPRESS_SLOTS +
           (sizeof(struct hvi_express_part) + HVI_EXPRESS_PAYLOAD) * HVI_EXPRESS_SLOTS * ranks +
           (uint64_t)HVI_EXPRESS_PAYLOAD * HVI_EXPRESS_SLOTS +
           round_up(sizeof(struct hvi_express_work) * HVI_EXPRESS_SLOTS);
}

/* Fills the view of memory that is mapped. */
static void lay_out(struct hvi_express *express, uint32_t ranks)
{
    unsigned char *at = express->region.base;

    express->ranks = ranks;
    express->head = (struct hvi_express_head *)(void *)at;
    at += sizeof(struct hvi_express_head);
    express->rank = (struct hvi_express_rank *)(void *)at;
    at += rank_bytes(ranks);
    express->slots = (struct hvi_express_slot *)(void *)at;
    at += sizeof(struct hvi_express_slot) * HVI_EXPRESS_SLOTS;
    express->parts = (struct hvi_express_part *)(void *)at;
    at += sizeof(struct hvi_express_part) * HVI_EXPRESS_SLOTS * ranks;
    express->payloads = at;
    at += (uint64_t)HVI_EXPRESS_PAYLOAD * HVI_EXPRESS_SLOTS * ranks;
    express->results = at;
    at += (uint64_t)HVI_EXPRESS_PAYLOAD * HVI_EXPRESS_SLOTS;
    express->works = (struct hvi_express_work *)(void *)at;
}

int hvi_express_create(uint32_t ranks, struct hvi_express *express_p)
{
    struct hvi_express express = {.region = HVI_REGION_INIT};
    int status = hvi_region_create_sparse("hvd-express", total_bytes(ranks), &express.region);

    if (status != HVI_OK)
        return status;
    lay_out(&express, ranks);
    express.head->magic = HVI_EXPRESS_MAGIC;
    express.head->abi_version = HVI_ABI_VERSION;
    express.head->ranks = ranks;
    *express_p = express;
    return HVI_OK;
}

int hvi_express_map(int fd, uint32_t ranks, struct hvi_express *express_p)
{
    struct hvi_express express = {.region = HVI_REGION_INIT};
    int status = hvi_region_map_sparse(fd, total_bytes(ranks), &express.region);

    if (status != HVI_OK)
        return status;
    lay_out(&express, ranks);
    if (express.head->magic != HVI_EXPRESS_MAGIC || express.head->ranks != ranks)
        status = HVI_ERR_PROTOCOL;
    else if (express.head->abi_version != HVI_ABI_VERSION)
        status = HVI_ERR_VERSION;
    if (status != HVI_OK) {
        express.region.fd = -1; /* stays the caller's */
        hvi_region_fini(&express.region);
        return status;
    }
    *express_p = express;
    return HVI_OK;
}

void hvi_express_fini(struct hvi_express *express)
{
    hvi_region_fini(&express->region);
    *express = (struct hvi_express){.region = HVI_REGION_INIT};
}

unsigned char *hvi_express_payload(const struct hvi_express *express, uint32_t slot, uint32_t rank,
                                   uint64_t bytes)
{
    if (bytes <= HVI_EXPRESS_SHORT)
        return hvi_express_part(express, slot, rank)->payload;
    return express->payloads + ((size_t)slot * express->ranks + rank) * (size_t)HVI_EXPRESS_PAYLOAD;
}

unsigned char *hvi_express_result(const struct hvi_express *express, uint32_t slot, uint64_t bytes)
{
    if (bytes <= HVI_EXPRESS_SHORT)
        return express->slots[slot].result;
    return express->results + (size_t)slot * HVI_EXPRESS_PAYLOAD;
}

/* ---- a rank ---- */

enum hvi_express_arrival hvi_express_arrive(const struct hvi_express *express, uint32_t slot,
                                            uint32_t turn, uint32_t member, uint32_t everybody)
{
    _Atomic uint64_t *word = &express->slots[slot].word;
    /* Relaxed: the exchange decides. */
    uint64_t seen = atomic_load_explicit(word, memory_order_relaxed);
    uint64_t next;

    do {
        if (turn_of(seen) != (turn & HVI_EXPRESS_TURN_MASK) || state_of(seen) != OPEN ||
            ((uint32_t)seen & ~everybody) != 0)
            return HVI_EXPRESS_STALE;
        next = seen | UINT64_C(1) << member;
    } while (!atomic_compare_exchange_weak_explicit(word, &seen, next, memory_order_seq_cst,
                                                    memory_order_relaxed));
    return (uint32_t)next == everybody ? HVI_EXPRESS_LAST : HVI_EXPRESS_ARRIVED;
}

static void wake(struct hvi_express_slot *slot)
{
    /* Seq_cst, pairs with the fetch_add in hvi_express_sleep. */
    if (atomic_load_explicit(&slot->sleepers, memory_order_seq_cst) != 0)
        syscall(SYS_futex, (uint32_t *)(void *)&slot->word + 1, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

bool hvi_express_publish(const struct hvi_express *express, uint32_t slot, uint32_t turn,
                         uint32_t everybody)
{
    struct hvi_express_slot *place = &express->slots[slot];
    uint64_t seen = make_word(turn, OPEN, everybody);

    if (!atomic_compare_exchange_strong_explicit(&place->word, &seen, make_word(turn + 1, OPEN, 0),
                                                 memory_order_seq_cst, memory_order_relaxed))
        return false;
    wake(place);
    return true;
}

/* ---- large ops ---- */

static bool is_running(uint64_t word)
{
    return state_of(word) == RUNS || state_of(word) == CLOSES;
}

static uint64_t unit_word(uint32_t turn, uint32_t holder)
{
    return (uint64_t)(turn & HVI_EXPRESS_TURN_MASK) << 8 | holder;
}

static uint64_t left_word(uint32_t turn, uint32_t units)
{
    return (uint64_t)(turn & HVI_EXPRESS_TURN_MASK) << 32 | units;
}

uint32_t hvi_express_cut(uint64_t bytes, uint64_t *unit_bytes_p)
{
    uint64_t unit = bytes / USUAL_UNITS;

    unit = unit < LEAST_UNIT_BYTES ? LEAST_UNIT_BYTES : unit;
    unit = unit > MOST_UNIT_BYTES ? MOST_UNIT_BYTES : round_up(unit);
    *unit_bytes_p = unit;
    return (uint32_t)((bytes + unit - 1) / unit);
}

bool hvi_express_start(const struct hvi_express *express, uint32_t slot, uint32_t turn,
                       uint32_t units, uint32_t everybody)
{
    struct hvi_express_slot *place = &express->slots[slot];
    struct hvi_express_work *work = &express->works[slot];
    uint64_t seen = make_word(turn, OPEN, everybody);

    /* Relaxed: the exchange orders them for whoever sees that it runs. */
    atomic_store_explicit(&work->left, left_word(turn, units), memory_order_relaxed);
    atomic_store_explicit(&work->next, 0, memory_order_relaxed);
    if (!atomic_compare_exchange_strong_explicit(&place->word, &seen,
                                                 make_word(turn, RUNS, everybody),
                                                 memory_order_seq_cst, memory_order_relaxed))
        return false;
    wake(place);
    return true;
}

uint32_t hvi_express_claim(const struct hvi_express *express, uint32_t slot, uint32_t turn,
                           uint32_t units, uint32_t holder)
{
    struct hvi_express_work *work = &express->works[slot];
    /* The engine believes nobody's hint. */
    uint32_t first =
        holder == HVI_EXPRESS_ENGINE ? 0 : atomic_load_explicit(&work->next, memory_order_relaxed);

    for (uint32_t i = first; i < units; i++) {
        uint64_t seen = atomic_load_explicit(&work->unit[i], memory_order_relaxed);
        /* Free is what was taken at the turn before: each turn takes all units. A later turn's word
         * says that the claimer is late. */
        if (seen >> 8 != ((turn - 1) & HVI_EXPRESS_TURN_MASK))
            continue;
        if (atomic_compare_exchange_strong_explicit(&work->unit[i], &seen, unit_word(turn, holder),
                                                    memory_order_acq_rel, memory_order_relaxed)) {
            atomic_store_explicit(&work->next, i + 1, memory_order_relaxed);
            return i;
        }
    }
    return HVI_EXPRESS_NOTHING;
}

bool hvi_express_finish(const struct hvi_express *express, uint32_t slot, uint32_t turn,
                        uint32_t unit)
{
    struct hvi_express_work *work = &express->works[slot];

    /* Release, pairs with hvi_express_holder: who dies right here has done his work. */
    atomic_store_explicit(&work->unit[unit], unit_word(turn, DONE), memory_order_release);
    uint64_t seen = atomic_load_explicit(&work->left, memory_order_relaxed);
    do {
        if (seen >> 32 != (turn & HVI_EXPRESS_TURN_MASK) || (uint32_t)seen == 0)
            return false;
        /* Acq_rel: who sees none left sees what every holder has written. */
    } while (!atomic_compare_exchange_weak_explicit(&work->left, &seen, seen - 1,
                                                    memory_order_acq_rel, memory_order_relaxed));
    return (uint32_t)seen == 1;
}

void hvi_express_give_up(const struct hvi_express *express, uint32_t slot, uint32_t turn,
                         uint32_t unit, uint32_t rank)
{
    /* Release: the holder writes there no more. */
    atomic_store_explicit(&express->works[slot].unit[unit],
                          unit_word(turn, HVI_EXPRESS_LACKS + rank), memory_order_release);
}

int32_t hvi_express_lacking(const struct hvi_express *express, uint32_t slot, uint32_t turn)
{
    for (uint32_t unit = 0; unit < HVI_EXPRESS_UNITS; unit++) {
        uint64_t word =
            atomic_load_explicit(&express->works[slot].unit[unit], memory_order_acquire);
        uint32_t holder = (uint32_t)(word & 255u);
        if (word >> 8 == (turn & HVI_EXPRESS_TURN_MASK) && holder >= HVI_EXPRESS_LACKS &&
            holder < HVI_EXPRESS_LACKS + express->ranks)
            return (int32_t)(holder - HVI_EXPRESS_LACKS);
    }
    return -1;
}

bool hvi_express_is_done(const struct hvi_express *express, uint32_t slot, uint32_t turn)
{
    /* Acquire, pairs with hvi_express_finish. */
    return atomic_load_explicit(&express->works[slot].left, memory_order_acquire) ==
           left_word(turn, 0);
}

void hvi_express_end(const struct hvi_express *express, uint32_t slot, uint32_t turn,
                     uint32_t everybody)
{
    struct hvi_express_slot *place = &express->slots[slot];
    uint64_t seen = make_word(turn, RUNS, everybody);

    if (!atomic_compare_exchange_strong_explicit(&place->word, &seen, make_word(turn + 1, OPEN, 0),
                                                 memory_order_seq_cst, memory_order_relaxed)) {
        seen = make_word(turn, CLOSES, everybody);
        if (!atomic_compare_exchange_strong_explicit(&place->word, &seen,
                                                     make_word(turn + 1, SEIZED, 0),
                                                     memory_order_seq_cst, memory_order_relaxed))
            return;
    }
    wake(place);
}

int32_t hvi_express_holder(const struct hvi_express *express, uint32_t slot, uint32_t turn,
                           uint32_t unit)
{
    uint64_t word = atomic_load_explicit(&express->works[slot].unit[unit], memory_order_acquire);
    uint32_t holder = (uint32_t)(word & 255u);

    if (word >> 8 != (turn & HVI_EXPRESS_TURN_MASK) || holder == 0 || holder > express->ranks)
        return -1;
    return (int32_t)holder - 1;
}

uint32_t hvi_express_holders(const struct hvi_express *express, uint32_t slot, uint32_t turn)
{
    uint32_t holders = 0;

    for (uint32_t unit = 0; unit < HVI_EXPRESS_UNITS; unit++) {
        int32_t rank = hvi_express_holder(express, slot, turn, unit);
        if (rank >= 0)
            holders |= 1u << rank;
    }
    return holders;
}

bool hvi_express_close(const struct hvi_express *express, uint32_t slot, uint32_t turn,
                       uint32_t units, uint32_t everybody, uint64_t deadline_ns)
{
    uint32_t arrived;

    if (hvi_express_look(express, slot, turn) == HVI_EXPRESS_DONE)
        return true;
    hvi_express_seize(express, slot, &arrived);
    for (uint32_t left = units; left > 0; left--) { /* what the engine takes, nobody waits for */
        if (hvi_express_claim(express, slot, turn, units, HVI_EXPRESS_ENGINE) ==
            HVI_EXPRESS_NOTHING)
            break;
    }
    while (hvi_express_holders(express, slot, turn) != 0 && !hvi_deadline_passed(deadline_ns))
        sched_yield();
    if (hvi_express_is_done(express, slot, turn))
        hvi_express_end(express, slot, turn, everybody);
    else
        hvi_express_fail(express, slot);
    return hvi_express_holders(express, slot, turn) == 0;
}

enum hvi_express_sight hvi_express_look(const struct hvi_express *express, uint32_t slot,
                                        uint32_t turn)
{
    uint64_t seen = atomic_load_explicit(&express->slots[slot].word, memory_order_acquire);
    uint32_t ahead = (turn_of(seen) - turn) & HVI_EXPRESS_TURN_MASK;

    if (ahead == 0 && state_of(seen) == OPEN)
        return HVI_EXPRESS_WAITS;
    if (ahead == 0 && is_running(seen))
        return HVI_EXPRESS_RUNS;
    return ahead % 2 == 1 ? HVI_EXPRESS_DONE : HVI_EXPRESS_SEIZED;
}

void hvi_express_sleep(const struct hvi_express *express, uint32_t slot, uint32_t turn,
                       enum hvi_express_sight sight, uint64_t timeout_ns)
{
    struct hvi_express_slot *place = &express->slots[slot];
    const struct timespec timeout = {
        .tv_sec = (time_t)(timeout_ns / HVI_NS_SEC),
        .tv_nsec = (long)(timeout_ns % HVI_NS_SEC),
    };
    uint32_t state = sight == HVI_EXPRESS_RUNS ? RUNS : OPEN;
    if (state == RUNS && /* seized meanwhile, perhaps, which is no news to who sleeps */
        state_of(atomic_load_explicit(&place->word, memory_order_relaxed)) == CLOSES)
        state = CLOSES;
    uint32_t expected = (uint32_t)(make_word(turn, state, 0) >> 32);

    /* Seq_cst, pairs with the load in wake(); the kernel compares the word once more. */
    atomic_fetch_add_explicit(&place->sleepers, 1, memory_order_seq_cst);
    syscall(SYS_futex, (uint32_t *)(void *)&place->word + 1, FUTEX_WAIT, expected, &timeout, NULL,
            0);
    atomic_fetch_sub_explicit(&place->sleepers, 1, memory_order_relaxed);
}

/* ---- the engine ---- */

bool hvi_express_seize(const struct hvi_express *express, uint32_t slot, uint32_t *arrived_p)
{
    struct hvi_express_slot *place = &express->slots[slot];
    uint64_t seen = atomic_load_explicit(&place->word, memory_order_relaxed);
    uint32_t state;

    do
        state = is_running(seen) ? CLOSES : SEIZED;
    while (!atomic_compare_exchange_weak_explicit(&place->word, &seen,
                                                  make_word(turn_of(seen), state, (uint32_t)seen),
                                                  memory_order_seq_cst, memory_order_relaxed));
    atomic_store_explicit(&place->called, 0, memory_order_relaxed);
    wake(place);
    *arrived_p = (uint32_t)seen;
    return state == SEIZED;
}

uint32_t hvi_express_fail(const struct hvi_express *express, uint32_t slot)
{
    struct hvi_express_slot *place = &express->slots[slot];
    uint64_t seen = atomic_load_explicit(&place->word, memory_order_relaxed);

    while (is_running(seen) &&
           !atomic_compare_exchange_weak_explicit(&place->word, &seen,
                                                  make_word(turn_of(seen), SEIZED, (uint32_t)seen),
                                                  memory_order_seq_cst, memory_order_relaxed))
        ;
    wake(place);
    return (uint32_t)seen;
}

bool hvi_express_runs(const struct hvi_express *express, uint32_t slot, uint32_t *turn_p,
                      uint32_t *arrived_p)
{
    uint64_t seen = atomic_load_explicit(&express->slots[slot].word, memory_order_acquire);

    *turn_p = turn_of(seen);
    *arrived_p = (uint32_t)seen;
    return is_running(seen);
}

void hvi_express_clear(const struct hvi_express *express, uint32_t slot)
{
    /* Taken at a turn that nobody could arrive at: free at the next, and unlike whatever a late claimer
     * may have seen. */
    uint64_t word = unit_word(
        turn_of(atomic_load_explicit(&express->slots[slot].word, memory_order_relaxed)) + 1, DONE);

    for (uint32_t i = 0; i < HVI_EXPRESS_UNITS; i++)
        atomic_store_explicit(&express->works[slot].unit[i], word, memory_order_relaxed);
}

uint32_t hvi_express_open(const struct hvi_express *express, uint32_t slot)
{
    _Atomic uint64_t *word = &express->slots[slot].word;
    uint32_t turn =
        (turn_of(atomic_load_explicit(word, memory_order_relaxed)) + 2) & HVI_EXPRESS_TURN_MASK;

    /* Release: what the ranks brought to the turn before has been read. */
    atomic_store_explicit(word, make_word(turn, OPEN, 0), memory_order_release);
    return turn;
}

bool hvi_express_is_open(const struct hvi_express *express, uint32_t slot)
{
    uint64_t seen = atomic_load_explicit(&express->slots[slot].word, memory_order_relaxed);

    return state_of(seen) == OPEN || state_of(seen) == RUNS;
}

uint32_t hvi_express_arrived(const struct hvi_express *express, uint32_t slot)
{
    /* Acquire, pairs with the arrivals; seq_cst for the look after .patrolled has been taken back.
     */
    uint64_t seen = atomic_load_explicit(&express->slots[slot].word, memory_order_seq_cst);

    return state_of(seen) == OPEN ? (uint32_t)seen : 0;
}

uint32_t hvi_express_turn(const struct hvi_express *express, uint32_t slot)
{
    return turn_of(atomic_load_explicit(&express->slots[slot].word, memory_order_relaxed));
}
