/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/engine/mesh/clock.h"

void engine_mesh_clock_take(struct engine_mesh_clock *clock, uint64_t asked_ns, uint64_t heard_ns,
                            uint64_t said_ns, uint64_t now_ns)
{
    uint64_t there_and_back = now_ns - asked_ns, inside = said_ns - heard_ns;

    /* The other side may say anything. */
    if (now_ns < asked_ns || said_ns < heard_ns || inside > there_and_back)
        return;
    uint64_t way_ns = there_and_back - inside;
    if (clock->way_ns != 0 && clock->way_ns <= way_ns)
        return;
    clock->way_ns = way_ns > 0 ? way_ns : 1;
    clock->ahead_ns = heard_ns - asked_ns - way_ns / 2;
}
