/* SPDX-License-Identifier: Apache-2.0
 * The table of process sets. A set that was removed lives on, outside of the table, until the last
 * op that runs in it is over. Ids are reused first in, first out, so that every rank's next set has
 * the number Horovod's users expect. */
#include "daemon/engine/order/set.h"

#include "base/assert.h"
#include "base/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of `ranks`, which ascend. -1: it is not there. */
static int32_t find_rank(const int32_t *ranks, uint32_t count, int32_t rank)
{
    uint32_t low = 0, high = count;

    if (rank >= 0 && (uint32_t)rank < count && ranks[rank] == rank) /* as a rule */
        return rank;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (ranks[middle] < rank)
            low = middle + 1;
        else
            high = middle;
    }
    return low < count && ranks[low] == rank ? (int32_t)low : -1;
}

/* The members that have a seat here. */
static void fill_places(struct engine_set *set, const struct engine_roster *roster)
{
    for (uint32_t i = 0; i < roster->seats; i++) {
        engine_seat seat = roster->by_rank[i];
        int32_t rank = engine_roster_rank(roster, seat), set_rank = engine_set_rank(set, rank);
        set->index[seat.n] = -1;
        if (set_rank < 0)
            continue;
        set->ranks[set->places] = rank;
        set->numbers[set->places] = (uint32_t)set_rank;
        set->seats[set->places] = seat;
        set->index[seat.n] = (int16_t)set->places++;
    }
}

struct engine_places *engine_places_new(uint32_t nodes, uint32_t members)
{
    struct engine_places *span =
        calloc(1, sizeof *span + 2 * ((size_t)nodes + members) * sizeof(uint32_t));

    if (!span)
        return NULL;
    span->node = (uint32_t *)(void *)(span + 1);
    span->places = span->node + nodes;
    span->home = span->places + nodes;
    span->place = span->home + members;
    span->here = UINT32_MAX;
    return span;
}

uint32_t engine_places_find(const struct engine_places *span, uint32_t node)
{
    uint32_t low = 0, high = span->nodes;

    if (node < high && span->node[node] == node) /* as a rule */
        return node;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (span->node[middle] < node)
            low = middle + 1;
        else
            high = middle;
    }
    return low < span->nodes && span->node[low] == node ? low : UINT32_MAX;
}

/* The members of a node of the job. */
static void fill_node(const struct engine_set *set, const struct engine_roster *roster,
                      uint32_t node, struct engine_places *span)
{
    uint32_t index = span->nodes, places = 0;

    for (uint32_t i = roster->first[node]; i < roster->first[node + 1]; i++) {
        int32_t set_rank = engine_set_rank(set, roster->of_nodes[i]);
        if (set_rank < 0)
            continue;
        span->home[set_rank] = index;
        span->place[set_rank] = places++;
    }
    if (places == 0)
        return;
    span->node[index] = node;
    span->places[index] = places;
    if (node == roster->here)
        span->here = index;
    span->nodes++;
}

/* HVI_OK or HVI_ERR_NO_MEMORY. */
static int fill_span(struct engine_set *set, const struct engine_roster *roster)
{
    if (roster->nodes < 2 || set->places == set->size)
        return HVI_OK;
    struct engine_places *span = engine_places_new(roster->nodes, set->size);
    if (!span)
        return HVI_ERR_NO_MEMORY;
    for (uint32_t node = 0; node < roster->nodes; node++)
        fill_node(set, roster, node, span);
    if (span->nodes > 1)
        set->span = span;
    else
        free(span);
    return HVI_OK;
}

/* `ranks` NULL: every rank. */
static struct engine_set *set_new(struct engine_sets *sets, const int64_t *ranks, uint32_t count)
{
    const struct engine_roster *roster = sets->roster;
    size_t seats = roster->seats, listed = ranks ? count : 0;
    size_t places = count < seats ? count : seats;
    struct engine_set *set = calloc(1, sizeof *set + (listed + 2 * places) * sizeof(int32_t) +
                                           places * sizeof(engine_seat) + seats * sizeof(int16_t));

    if (!set)
        return NULL;
    int32_t *room = (int32_t *)(void *)(set + 1);
    set->members = ranks ? room : NULL;
    set->ranks = room + listed;
    set->numbers = (uint32_t *)(set->ranks + places);
    set->seats = (engine_seat *)(void *)(set->numbers + places);
    set->index = (int16_t *)(void *)(set->seats + places);
    for (uint32_t i = 0; i < listed; i++)
        set->members[i] = (int32_t)ranks[i];
    set->size = count;
    set->refs = 1;
    fill_places(set, roster);
    if (fill_span(set, roster) != HVI_OK) {
        free(set);
        return NULL;
    }
    set->serial = sets->serials++;
    return set;
}

int engine_sets_span(struct engine_sets *sets)
{
    int status = HVI_OK;

    sets->given = true;
    for (uint32_t id = 0; id < sets->next_id && status == HVI_OK; id++) {
        if (sets->by_id[id] && !sets->by_id[id]->span)
            status = fill_span(sets->by_id[id], sets->roster);
    }
    return status;
}

int engine_sets_init(struct engine_sets *sets, const struct engine_roster *roster)
{
    memset(sets, 0, sizeof *sets);
    sets->roster = roster;
    sets->by_id[0] = set_new(sets, NULL, (uint32_t)roster->size);
    if (!sets->by_id[0])
        return HVI_ERR_NO_MEMORY;
    sets->count = 1;
    sets->next_id = 1;
    return HVI_OK;
}

void engine_sets_fini(struct engine_sets *sets)
{
    for (uint32_t id = 0; id < sets->next_id; id++) {
        if (sets->by_id[id])
            engine_set_put(sets->by_id[id]);
        sets->by_id[id] = NULL;
    }
    sets->count = 0;
    sets->next_id = 0;
}

struct engine_set *engine_sets_find(const struct engine_sets *sets, uint32_t id)
{
    return id < ENGINE_SETS_MAX ? sets->by_id[id] : NULL;
}

static int32_t rank_at(const int32_t *ranks, uint32_t i)
{
    return ranks ? ranks[i] : (int32_t)i;
}

static bool has_ranks(const struct engine_set *set, const int64_t *ranks, uint32_t count)
{
    if (set->size != count || set->opened)
        return false;
    for (uint32_t i = 0; i < count; i++) {
        if (engine_set_member(set, i) != ranks[i])
            return false;
    }
    return true;
}

struct engine_set *engine_sets_find_ranks(const struct engine_sets *sets, const int64_t *ranks,
                                          uint32_t count)
{
    for (uint32_t id = 0; id < sets->next_id; id++) {
        if (sets->by_id[id] && has_ranks(sets->by_id[id], ranks, count))
            return sets->by_id[id];
    }
    return NULL;
}

static uint32_t next_id(struct engine_sets *sets)
{
    if (sets->freed_count == 0)
        return sets->next_id++;
    uint32_t id = sets->freed[sets->freed_first];
    sets->freed_first = (sets->freed_first + 1) % ENGINE_SETS_MAX;
    sets->freed_count--;
    return id;
}

int engine_sets_add(struct engine_sets *sets, const int64_t *ranks, uint32_t count,
                    struct engine_set **set_p)
{
    if (sets->count == ENGINE_SETS_MAX)
        return HVI_ERR_LIMIT;
    struct engine_set *set = set_new(sets, ranks, count);
    if (!set)
        return HVI_ERR_NO_MEMORY;
    set->id = next_id(sets);
    sets->by_id[set->id] = set;
    sets->count++;
    *set_p = set;
    return HVI_OK;
}

int engine_sets_give(struct engine_sets *sets, const int64_t *ranks, uint32_t count, uint32_t id,
                     uint64_t serial, struct engine_set **set_p)
{
    HVI_ASSERT(sets->given);
    if (id == 0 || id >= ENGINE_SETS_MAX || sets->by_id[id] || serial < sets->serials)
        return HVI_ERR_PROTOCOL;
    sets->serials = serial;
    struct engine_set *set = set_new(sets, ranks, count);
    if (!set)
        return HVI_ERR_NO_MEMORY;
    set->id = id;
    sets->by_id[id] = set;
    sets->count++;
    if (sets->next_id <= id)
        sets->next_id = id + 1;
    *set_p = set;
    return HVI_OK;
}

void engine_sets_remove(struct engine_sets *sets, struct engine_set *set)
{
    HVI_ASSERT(set->id != 0 && sets->by_id[set->id] == set);
    sets->by_id[set->id] = NULL;
    if (!sets->given)
        sets->freed[(sets->freed_first + sets->freed_count++) % ENGINE_SETS_MAX] =
            (uint16_t)set->id;
    sets->count--;
    set->removed = true;
    engine_set_put(set);
}

struct engine_set *engine_set_get(struct engine_set *set)
{
    set->refs++;
    return set;
}

void engine_set_put(struct engine_set *set)
{
    HVI_ASSERT(set->refs > 0);
    if (--set->refs > 0)
        return;
    HVI_ASSERT(!set->first && !set->partial_first && !set->offers);
    free(set->span);
    free(set);
}

void engine_set_place_all(struct engine_set *set)
{
    set->places = set->size;
    set->ranks = set->members;
    set->numbers = NULL;
    set->seats = NULL;
    set->index = NULL;
}

void engine_set_restart(struct engine_set *set)
{
    for (int kind = 0; kind < ENGINE_SET_UNNAMED; kind++)
        set->unnamed[kind].top = 0;
}

int32_t engine_set_rank(const struct engine_set *set, int32_t rank)
{
    if (set->members)
        return find_rank(set->members, set->size, rank);
    return rank >= 0 && (uint32_t)rank < set->size ? rank : -1;
}

int32_t engine_set_find(const struct engine_set *set, int32_t rank)
{
    return find_rank(set->ranks, set->places, rank);
}

size_t engine_ranks_text(const int32_t *ranks, uint32_t count, char *text_p, size_t size)
{
    size_t used = (size_t)snprintf(text_p, size, count == 1 ? "rank " : "ranks ");

    for (uint32_t i = 0; i < count; i++) {
        uint32_t last = i;
        char *at = used < size ? text_p + used : NULL;
        while (count > 16 && last + 1 < count &&
               rank_at(ranks, last + 1) == rank_at(ranks, last) + 1)
            last++;
        used +=
            (size_t)snprintf(at, at ? size - used : 0, "%s%d", i > 0 ? "," : "", rank_at(ranks, i));
        at = used < size ? text_p + used : NULL;
        if (last > i)
            used += (size_t)snprintf(at, at ? size - used : 0, "-%d", rank_at(ranks, last));
        i = last;
    }
    return used;
}
