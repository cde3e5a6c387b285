/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/engine/order/roster.h"

#include "base/assert.h"
#include "base/status.h"

#include <stdlib.h>
#include <string.h>

static int32_t rank_of(const struct engine_roster *roster, uint32_t at)
{
    return engine_roster_rank(roster, roster->by_rank[at]);
}

int engine_roster_init(struct engine_roster *roster, int32_t size, const int32_t *ranks,
                       uint32_t seats)
{
    HVI_ASSERT(seats > 0 && seats <= ENGINE_SEATS_MAX && seats <= (uint32_t)size);
    roster->ranks = calloc(seats, sizeof *roster->ranks);
    roster->by_rank = calloc(seats, sizeof *roster->by_rank);
    if (!roster->ranks || !roster->by_rank) {
        engine_roster_fini(roster);
        return HVI_ERR_NO_MEMORY;
    }
    roster->size = size;
    roster->seats = seats;
    for (uint32_t i = 0; i < seats; i++) {
        roster->ranks[i] = ranks ? ranks[i] : (int32_t)i;
        uint32_t at = i;
        for (; at > 0 && rank_of(roster, at - 1) > roster->ranks[i]; at--)
            roster->by_rank[at] = roster->by_rank[at - 1];
        roster->by_rank[at] = (engine_seat){(uint16_t)i};
    }
    return HVI_OK;
}

static int compare_ranks(const void *a, const void *b)
{
    int32_t left = *(const int32_t *)a, right = *(const int32_t *)b;

    return (left > right) - (left < right);
}

uint32_t engine_roster_node(const struct engine_roster *roster, int32_t rank)
{
    for (uint32_t node = 0; node < roster->nodes; node++) {
        const int32_t *ranks = roster->of_nodes + roster->first[node];
        uint32_t count = roster->first[node + 1] - roster->first[node];
        if (count > 0 && ranks[0] <= rank && rank <= ranks[count - 1] &&
            bsearch(&rank, ranks, count, sizeof *ranks, compare_ranks))
            return node;
    }
    return roster->nodes;
}

/* Every rank of the job once. */
static bool each_once(const struct engine_node *nodes, uint32_t count, uint8_t *met, int32_t size)
{
    int64_t all = 0;

    for (uint32_t node = 0; node < count; node++) {
        for (uint32_t i = 0; i < nodes[node].count; i++) {
            int32_t rank = nodes[node].ranks[i];
            if (rank < 0 || rank >= size || met[rank])
                return false;
            met[rank] = 1;
            all++;
        }
    }
    return all == size;
}

static bool is_ours(const struct engine_roster *roster, const struct engine_node *node)
{
    engine_seat seat;

    for (uint32_t i = 0; i < node->count; i++) {
        if (!engine_roster_seat(roster, node->ranks[i], &seat))
            return false;
    }
    return node->count == roster->seats;
}

int engine_roster_set_nodes(struct engine_roster *roster, const struct engine_node *nodes,
                            uint32_t count, uint32_t here)
{
    uint8_t *met = calloc((size_t)roster->size, 1);
    uint32_t *first = calloc((size_t)count + 1, sizeof *first);
    int32_t *of_nodes = calloc((size_t)roster->size, sizeof *of_nodes);
    int status = met && first && of_nodes ? HVI_OK : HVI_ERR_NO_MEMORY;

    if (status == HVI_OK && (here >= count || !each_once(nodes, count, met, roster->size) ||
                             !is_ours(roster, &nodes[here])))
        status = HVI_ERR_INVALID;
    free(met);
    if (status != HVI_OK) {
        free(first);
        free(of_nodes);
        return status;
    }
    for (uint32_t node = 0; node < count; node++) {
        size_t bytes = nodes[node].count * sizeof *of_nodes;
        if (bytes > 0)
            memcpy(of_nodes + first[node], nodes[node].ranks, bytes);
        qsort(of_nodes + first[node], nodes[node].count, sizeof *of_nodes, compare_ranks);
        first[node + 1] = first[node] + nodes[node].count;
    }
    roster->nodes = count;
    roster->here = here;
    roster->first = first;
    roster->of_nodes = of_nodes;
    return HVI_OK;
}

void engine_roster_fini(struct engine_roster *roster)
{
    free(roster->first);
    free(roster->of_nodes);
    free(roster->ranks);
    free(roster->by_rank);
    *roster = (struct engine_roster){0};
}

bool engine_roster_seat(const struct engine_roster *roster, int32_t rank, engine_seat *seat_p)
{
    uint32_t low = 0, high = roster->seats;

    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (rank_of(roster, middle) < rank)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == roster->seats || rank_of(roster, low) != rank)
        return false;
    *seat_p = roster->by_rank[low];
    return true;
}
