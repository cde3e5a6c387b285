/* SPDX-License-Identifier: Apache-2.0
 * The order in which the messages of a ring go. Step by step, a node would hand on what it has just added
 * when all of the step before has gone, and by then the caches have lost it. So the messages go in waves:
 * chunk c of step s is of wave s * lag + c, and what it waits for, chunk c of step s - 1, has gone `lag`
 * waves before.
 *
 *     lag 2, three chunks     step 0   0 1 2
 *                             step 1       0 1 2
 *                             step 2           0 1 2
 *                             goes     0,0  0,1  0,2 1,0  1,1  1,2 2,0  2,1  2,2
 *
 * Waves only grow from a message to the one that waits for it, on all nodes alike. So no order of a node can
 * keep the nodes waiting for each other. */
#include "daemon/engine/exec/net.h"

bool engine_wire_waves(const uint32_t *first, uint32_t steps, uint32_t lag, uint32_t *place)
{
    uint32_t most = 0, oldest = 0, placed = 0;

    for (uint32_t step = 0; step < steps; step++) {
        uint32_t chunks = first[step + 1] - first[step];
        most = chunks > most ? chunks : most;
    }
    for (uint32_t wave = 0; most > lag && placed < first[steps] - first[0]; wave++) {
        if (wave >= oldest * lag + most)
            oldest++;
        for (uint32_t step = oldest; step < steps && step * lag <= wave; step++) {
            uint32_t message = first[step] + (wave - step * lag);
            if (message < first[step + 1])
                place[message - first[0]] = placed++;
        }
    }
    return most > lag;
}
