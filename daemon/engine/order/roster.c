/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/engine/order/roster.h"

#include "base/assert.h"
#include "base/status.h"

#include <stdlib.h>

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

void engine_roster_fini(struct engine_roster *roster)
{
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
