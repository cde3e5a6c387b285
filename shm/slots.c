/* SPDX-License-Identifier: Apache-2.0
 * The words of slots.h. Every change is a compare-and-swap from a word that was looked at, so a
 * late writer (a rank that was stopped in the middle) changes nothing that has moved on. */
#include "shm/slots.h"

#include "base/clock.h"
#include "base/status.h"
#include "shm/abi.h"

#include <sched.h>

#define OPEN    0u
#define REVOKED 1u
#define RUNS    2u
#define CLOSES  3u /* runs, and is revoked when it is over */

#define DONE 255u /* a holder */

_Static_assert(HVI_SLOT_LACKS > HVI_SLOT_RANKS &&
                   HVI_SLOT_LACKS + HVI_SLOT_RANKS <= HVI_SLOT_ENGINE,
               "holders differ");

/* ---- memory ---- */

static uint64_t round_up(uint64_t bytes)
{
    return (bytes + HVI_PAGE - 1) / HVI_PAGE * HVI_PAGE;
}

/* The view of memory that is mapped at `base`. Returns how long it is. */
static uint64_t lay_out(struct hvi_slots *map, uint32_t ranks, uintptr_t base)
{
    const size_t parts = (size_t)HVI_SLOTS * ranks;
    uintptr_t at = base;

#define PLACE(field, count)                                                                        \
    map->field = (__typeof__(map->field))at;                                                       \
    at += sizeof(*map->field) * (count)
    map->ranks = ranks;
    PLACE(head, 1);
    PLACE(rank, ranks);
    PLACE(slots, HVI_SLOTS);
    PLACE(parts, parts);
    PLACE(payloads, HVI_SLOT_PAYLOAD * parts);
    PLACE(results, (size_t)HVI_SLOT_PAYLOAD * HVI_SLOTS);
    PLACE(works, HVI_SLOTS);
#undef PLACE
    return round_up(at - base);
}

int hvi_slots_create(uint32_t ranks, struct hvi_slots *map_p)
{
    struct hvi_slots map = {.region = HVI_REGION_INIT};
    int status = hvi_region_create_sparse("hvd-express", lay_out(&map, ranks, 0), &map.region);

    if (status != HVI_OK)
        return status;
    lay_out(&map, ranks, (uintptr_t)map.region.base);
    map.head->magic = HVI_SLOTS_MAGIC;
    map.head->abi_version = HVI_ABI_VERSION;
    map.head->ranks = ranks;
    *map_p = map;
    return HVI_OK;
}

int hvi_slots_map(int fd, uint32_t ranks, struct hvi_slots *map_p)
{
    struct hvi_slots map = {.region = HVI_REGION_INIT};
    int status = hvi_region_map_sparse(fd, lay_out(&map, ranks, 0), &map.region);

    if (status != HVI_OK)
        return status;
    lay_out(&map, ranks, (uintptr_t)map.region.base);
    if (map.head->magic != HVI_SLOTS_MAGIC || map.head->ranks != ranks)
        status = HVI_ERR_PROTOCOL;
    else if (map.head->abi_version != HVI_ABI_VERSION)
        status = HVI_ERR_VERSION;
    if (status != HVI_OK) {
        map.region.fd = -1; /* stays the caller's */
        hvi_region_fini(&map.region);
        return status;
    }
    *map_p = map;
    return HVI_OK;
}

void hvi_slots_fini(struct hvi_slots *map)
{
    hvi_region_fini(&map->region);
    *map = (struct hvi_slots){.region = HVI_REGION_INIT};
}

void hvi_slots_seat(const struct hvi_slots *map, uint32_t seat, int32_t rank)
{
    atomic_store_explicit(&map->head->seated[seat], (uint32_t)rank + 1, memory_order_relaxed);
}

int32_t hvi_slots_find_seat(const struct hvi_slots *map, int32_t rank)
{
    for (uint32_t seat = 0; seat < map->ranks; seat++) {
        if (atomic_load_explicit(&map->head->seated[seat], memory_order_relaxed) ==
            (uint32_t)rank + 1)
            return (int32_t)seat;
    }
    return -1;
}

unsigned char *hvi_slot_payload(const struct hvi_slots *map, uint32_t slot, uint32_t seat,
                                uint64_t bytes)
{
    if (bytes <= HVI_SLOT_SHORT)
        return hvi_slot_part(map, slot, seat)->payload;
    return map->payloads + ((size_t)slot * map->ranks + seat) * (size_t)HVI_SLOT_PAYLOAD;
}

unsigned char *hvi_slot_result(const struct hvi_slots *map, uint32_t slot, uint64_t bytes)
{
    if (bytes <= HVI_SLOT_SHORT)
        return map->slots[slot].result;
    return map->results + (size_t)slot * HVI_SLOT_PAYLOAD;
}

/* ---- the word ---- */

static uint64_t make_word(uint32_t turn, uint32_t state, uint32_t arrived)
{
    return (uint64_t)(turn & HVI_SLOT_TURN_MASK) << 40 | (uint64_t)state << 32 | arrived;
}

static uint32_t turn_of(uint64_t word)
{
    return (uint32_t)(word >> 40);
}

static uint32_t state_of(uint64_t word)
{
    return (uint32_t)(word >> 32) & 0xffu;
}

static bool is_running(uint64_t word)
{
    return state_of(word) == RUNS || state_of(word) == CLOSES;
}

/* False: *seen_p is what the word is now. */
static bool change(const struct hvi_slots *map, uint32_t slot, uint64_t *seen_p, uint64_t next)
{
    return atomic_compare_exchange_weak_explicit(&map->slots[slot].word, seen_p, next,
                                                 memory_order_seq_cst, memory_order_relaxed);
}

/* What the futex and those who wait look at: turn and state. */
static _Atomic uint32_t *upper_half(struct hvi_slot *slot)
{
    return (_Atomic uint32_t *)(void *)&slot->word + 1;
}

static void wake(struct hvi_slot *slot)
{
    hvi_wait_wake(upper_half(slot), &slot->sleepers);
}

struct hvi_slot_view hvi_slot_view(const struct hvi_slots *map, uint32_t slot)
{
    /* Acquire, pairs with the arrivals; seq_cst for the look after .patrolled has been taken back. */
    uint64_t seen = atomic_load_explicit(&map->slots[slot].word, memory_order_seq_cst);

    return (struct hvi_slot_view){
        .turn = turn_of(seen),
        .arrived = (uint32_t)seen,
        .waiting = state_of(seen) == OPEN ? (uint32_t)seen : 0,
        .open = state_of(seen) == OPEN || state_of(seen) == RUNS,
        .runs = is_running(seen),
    };
}

static enum hvi_slot_sight sight_of(uint64_t word, uint32_t turn)
{
    uint32_t ahead = (turn_of(word) - turn) & HVI_SLOT_TURN_MASK;

    if (ahead == 0 && state_of(word) == OPEN)
        return HVI_SLOT_WAITS;
    if (ahead == 0 && is_running(word))
        return HVI_SLOT_RUNS;
    return ahead % 2 == 1 ? HVI_SLOT_DONE : HVI_SLOT_REVOKED;
}

enum hvi_slot_sight hvi_slot_look(const struct hvi_slots *map, uint32_t slot, uint32_t turn)
{
    return sight_of(atomic_load_explicit(&map->slots[slot].word, memory_order_acquire), turn);
}

struct hvi_wait hvi_slot_wait(const struct hvi_slots *map, uint32_t slot, uint32_t turn,
                              enum hvi_slot_sight *sight_p)
{
    struct hvi_slot *place = &map->slots[slot];
    uint64_t seen = atomic_load_explicit(&place->word, memory_order_acquire);

    *sight_p = sight_of(seen, turn);
    return (struct hvi_wait){
        .word = upper_half(place), .sleepers = &place->sleepers, .seen = (uint32_t)(seen >> 32)};
}

/* ---- a rank ---- */

enum hvi_slot_arrival hvi_slot_arrive(const struct hvi_slots *map, uint32_t slot, uint32_t turn,
                                      uint32_t member, uint32_t everybody)
{
    /* Relaxed: the exchange decides. */
    uint64_t seen = atomic_load_explicit(&map->slots[slot].word, memory_order_relaxed);
    uint64_t next;

    do {
        if (seen >> 32 != make_word(turn, OPEN, 0) >> 32 || ((uint32_t)seen & ~everybody) != 0)
            return HVI_SLOT_STALE;
        next = seen | UINT64_C(1) << member;
    } while (!change(map, slot, &seen, next));
    return (uint32_t)next == everybody ? HVI_SLOT_LAST : HVI_SLOT_ARRIVED;
}

bool hvi_slot_publish(const struct hvi_slots *map, uint32_t slot, uint32_t turn, uint32_t everybody)
{
    uint64_t seen = make_word(turn, OPEN, everybody);
    uint32_t state = OPEN;

    while (!change(map, slot, &seen, make_word(turn + 1, state, 0))) {
        if ((state_of(seen) != OPEN && !is_running(seen)) ||
            seen != make_word(turn, state_of(seen), everybody))
            return false;
        state = state_of(seen) == CLOSES ? REVOKED : OPEN;
    }
    wake(&map->slots[slot]);
    return true;
}

/* ---- chunks ---- */

static uint64_t chunk_word(uint32_t turn, uint32_t holder)
{
    return (uint64_t)(turn & HVI_SLOT_TURN_MASK) << 8 | holder;
}

static uint64_t left_word(uint32_t turn, uint32_t chunks)
{
    return (uint64_t)(turn & HVI_SLOT_TURN_MASK) << 32 | chunks;
}

uint32_t hvi_slot_cut(uint64_t bytes, uint64_t *chunk_bytes_p)
{
    uint64_t chunk = bytes / HVI_TUNED_USUAL_CHUNKS;

    chunk = chunk < HVI_TUNED_LEAST_CHUNK ? HVI_TUNED_LEAST_CHUNK : chunk;
    chunk = chunk > HVI_TUNED_MOST_CHUNK ? HVI_TUNED_MOST_CHUNK : round_up(chunk);
    *chunk_bytes_p = chunk;
    return (uint32_t)((bytes + chunk - 1) / chunk);
}

bool hvi_slot_start(const struct hvi_slots *map, uint32_t slot, uint32_t turn, uint64_t bytes,
                    uint32_t everybody)
{
    struct hvi_slot_work *work = &map->works[slot];
    const uint64_t full = make_word(turn, OPEN, everybody);
    uint64_t seen = full, chunk_bytes;

    /* Relaxed: the exchange orders them for whoever sees that it runs. */
    atomic_store_explicit(&work->left, left_word(turn, hvi_slot_cut(bytes, &chunk_bytes)),
                          memory_order_relaxed);
    atomic_store_explicit(&work->next, 0, memory_order_relaxed);
    while (!change(map, slot, &seen, make_word(turn, RUNS, everybody))) {
        if (seen != full)
            return false;
    }
    wake(&map->slots[slot]);
    return true;
}

uint32_t hvi_slot_claim(const struct hvi_slots *map, uint32_t slot, uint32_t turn, uint32_t chunks,
                        uint32_t holder)
{
    struct hvi_slot_work *work = &map->works[slot];
    /* The engine believes nobody's hint. */
    uint32_t first =
        holder == HVI_SLOT_ENGINE ? 0 : atomic_load_explicit(&work->next, memory_order_relaxed);

    for (uint32_t i = first; i < chunks; i++) {
        uint64_t seen = atomic_load_explicit(&work->chunk[i], memory_order_relaxed);
        /* Free is what was taken at the turn before: each turn takes all chunks. A later turn's word
         * says that the claimer is late. */
        if (seen >> 8 != ((turn - 1) & HVI_SLOT_TURN_MASK))
            continue;
        if (atomic_compare_exchange_strong_explicit(&work->chunk[i], &seen,
                                                    chunk_word(turn, holder), memory_order_acq_rel,
                                                    memory_order_relaxed)) {
            atomic_store_explicit(&work->next, i + 1, memory_order_relaxed);
            return i;
        }
    }
    return HVI_SLOT_NOTHING;
}

void hvi_slot_exhaust(const struct hvi_slots *map, uint32_t slot, uint32_t turn, uint32_t chunks)
{
    /* Each once: a rank that gives chunks back, which none may, could keep the caller here. */
    for (uint32_t left = chunks; left > 0; left--) {
        if (hvi_slot_claim(map, slot, turn, chunks, HVI_SLOT_ENGINE) == HVI_SLOT_NOTHING)
            break;
    }
}

bool hvi_slot_finish(const struct hvi_slots *map, uint32_t slot, uint32_t turn, uint32_t chunk)
{
    struct hvi_slot_work *work = &map->works[slot];

    /* Release, pairs with hvi_slot_holders: who dies right here has done his work. */
    atomic_store_explicit(&work->chunk[chunk], chunk_word(turn, DONE), memory_order_release);
    uint64_t seen = atomic_load_explicit(&work->left, memory_order_relaxed);
    do {
        if (seen >> 32 != (turn & HVI_SLOT_TURN_MASK) || (uint32_t)seen == 0)
            return false;
        /* Acq_rel: who sees none left sees what every holder has written. */
    } while (!atomic_compare_exchange_weak_explicit(&work->left, &seen, seen - 1,
                                                    memory_order_acq_rel, memory_order_relaxed));
    return (uint32_t)seen == 1;
}

void hvi_slot_give_up(const struct hvi_slots *map, uint32_t slot, uint32_t turn, uint32_t chunk,
                      uint32_t seat)
{
    /* Release: the holder writes there no more. */
    atomic_store_explicit(&map->works[slot].chunk[chunk], chunk_word(turn, HVI_SLOT_LACKS + seat),
                          memory_order_release);
}

bool hvi_slot_is_done(const struct hvi_slots *map, uint32_t slot, uint32_t turn)
{
    /* Acquire, pairs with hvi_slot_finish. */
    return atomic_load_explicit(&map->works[slot].left, memory_order_acquire) == left_word(turn, 0);
}

uint32_t hvi_slot_holders(const struct hvi_slots *map, uint32_t slot, uint32_t turn,
                          int32_t *lacking_p)
{
    uint32_t holders = 0;

    if (lacking_p)
        *lacking_p = -1;
    for (uint32_t i = 0; i < HVI_SLOT_CHUNKS; i++) {
        uint64_t word = atomic_load_explicit(&map->works[slot].chunk[i], memory_order_acquire);
        uint32_t holder = (uint32_t)(word & 255u);
        if (word >> 8 != (turn & HVI_SLOT_TURN_MASK))
            continue;
        if (holder - 1 < map->ranks)
            holders |= 1u << (holder - 1);
        else if (lacking_p && holder - HVI_SLOT_LACKS < map->ranks)
            *lacking_p = (int32_t)(holder - HVI_SLOT_LACKS);
    }
    return holders;
}

bool hvi_slot_close(const struct hvi_slots *map, uint32_t slot, uint32_t turn, uint64_t bytes,
                    uint32_t everybody, uint64_t deadline_ns)
{
    uint64_t chunk_bytes;
    uint32_t arrived;

    if (hvi_slot_look(map, slot, turn) == HVI_SLOT_DONE)
        return true;
    hvi_slot_revoke(map, slot, &arrived);
    hvi_slot_exhaust(map, slot, turn, hvi_slot_cut(bytes, &chunk_bytes));
    while (hvi_slot_holders(map, slot, turn, NULL) != 0 && !hvi_deadline_passed(deadline_ns))
        sched_yield();
    if (hvi_slot_is_done(map, slot, turn))
        hvi_slot_publish(map, slot, turn, everybody);
    else
        hvi_slot_fail(map, slot);
    return hvi_slot_holders(map, slot, turn, NULL) == 0;
}

/* ---- the engine ---- */

bool hvi_slot_revoke(const struct hvi_slots *map, uint32_t slot, uint32_t *arrived_p)
{
    struct hvi_slot *place = &map->slots[slot];
    uint64_t seen = atomic_load_explicit(&place->word, memory_order_relaxed);
    uint32_t state;

    do
        state = is_running(seen) ? CLOSES : REVOKED;
    while (!change(map, slot, &seen, make_word(turn_of(seen), state, (uint32_t)seen)));
    atomic_store_explicit(&place->called, 0, memory_order_relaxed);
    wake(place);
    *arrived_p = (uint32_t)seen;
    return state == REVOKED;
}

uint32_t hvi_slot_fail(const struct hvi_slots *map, uint32_t slot)
{
    struct hvi_slot *place = &map->slots[slot];
    uint64_t seen = atomic_load_explicit(&place->word, memory_order_relaxed);

    while (is_running(seen) &&
           !change(map, slot, &seen, make_word(turn_of(seen), REVOKED, (uint32_t)seen)))
        ;
    wake(place);
    return (uint32_t)seen;
}

uint32_t hvi_slot_open(const struct hvi_slots *map, uint32_t slot, bool medium)
{
    uint32_t turn = hvi_slot_view(map, slot).turn + 2;

    /* Taken at a turn that nobody could arrive at: free at the next, and unlike whatever a late claimer
     * may have seen. */
    for (uint32_t i = 0; medium && i < HVI_SLOT_CHUNKS; i++)
        atomic_store_explicit(&map->works[slot].chunk[i], chunk_word(turn - 1, DONE),
                              memory_order_relaxed);
    /* Release: what the ranks brought to the turn before has been read. */
    atomic_store_explicit(&map->slots[slot].word, make_word(turn, OPEN, 0), memory_order_release);
    return turn & HVI_SLOT_TURN_MASK;
}
