/* SPDX-License-Identifier: Apache-2.0
 * The order in which the messages of a ring go, of all nodes of it: nodes that send and receive by it, and nothing else,
 * come to an end. */
#include "daemon/engine/exec/net.h"
#include "tests/unit/engine/hvt_reference.h"
#include "tests/unit/hvt_main.h"

#include <string.h>

#define NODES_MAX  6u
#define STEPS_MAX  (2 * (NODES_MAX - 1))
#define CHUNKS_MAX 40u
#define ALL_MAX    (STEPS_MAX * CHUNKS_MAX)

/* What one node sends. Message number i is chunk chunk[i] of step step[i]. */
struct order {
    uint32_t first[STEPS_MAX + 1];
    uint32_t step[ALL_MAX], chunk[ALL_MAX];
};

static uint32_t chunks_of[NODES_MAX]; /* of each block */

static bool make_order(struct order *order, uint32_t nodes, uint32_t node, uint32_t lag)
{
    uint32_t steps = 2 * (nodes - 1), place[ALL_MAX];

    order->first[0] = 7; /* what goes before the ring */
    for (uint32_t step = 0; step < steps; step++)
        order->first[step + 1] = order->first[step] + chunks_of[(node + 2 * nodes - step) % nodes];
    uint32_t count = order->first[steps] - order->first[0];
    bool moved = engine_wire_waves(order->first, steps, lag, place);
    for (uint32_t i = 0; i < count; i++)
        order->chunk[i] = UINT32_MAX;
    for (uint32_t step = 0, i = 0; step < steps; step++) {
        for (uint32_t chunk = 0; order->first[step] + chunk < order->first[step + 1]; chunk++) {
            uint32_t to = moved ? place[i] : i;
            ck_assert_uint_lt(to, count);
            ck_assert_uint_eq(order->chunk[to], UINT32_MAX);
            order->step[to] = step;
            order->chunk[to] = chunk;
            i++;
        }
    }
    return moved;
}

/* A chunk goes when at most `lag` more of the step before have gone than the one that it waits for. */
static void check_lag(const struct order *order, uint32_t count, uint32_t lag)
{
    uint32_t gone[STEPS_MAX + 1] = {0};

    for (uint32_t i = 0; i < count; i++) {
        uint32_t step = order->step[i];
        ck_assert_uint_eq(order->chunk[i], gone[step]);
        gone[step]++;
        if (step > 0)
            ck_assert_uint_le(gone[step - 1], order->chunk[i] + lag + 1);
    }
}

/* Each node sends what is next as soon as what it waits for is there; what it sends is there at once. */
static void run_all(const struct order *orders, uint32_t nodes)
{
    static bool there[NODES_MAX][STEPS_MAX][CHUNKS_MAX]; /* received */
    uint32_t sent[NODES_MAX] = {0}, steps = 2 * (nodes - 1);
    bool moved = true;

    memset(there, 0, sizeof there);
    while (moved) {
        moved = false;
        for (uint32_t node = 0; node < nodes; node++) {
            const struct order *order = &orders[node];
            if (sent[node] == order->first[steps] - order->first[0])
                continue;
            uint32_t step = order->step[sent[node]], chunk = order->chunk[sent[node]];
            if (step > 0 && !there[node][step - 1][chunk])
                continue;
            there[(node + 1) % nodes][step][chunk] = true;
            sent[node]++;
            moved = true;
        }
    }
    for (uint32_t node = 0; node < nodes; node++)
        ck_assert_uint_eq(sent[node], orders[node].first[steps] - orders[node].first[0]);
}

START_TEST(what_was_added_goes_on_soon_and_all_nodes_come_to_an_end)
{
    static struct order orders[NODES_MAX];
    const uint32_t nodes = 2 + (uint32_t)_i % (NODES_MAX - 1), lag = 1 + (uint32_t)_i % 9;
    uint64_t random = (uint64_t)_i + 1;
    uint32_t most = 0;

    for (uint32_t block = 0; block < nodes; block++) {
        chunks_of[block] = (uint32_t)(hvt_random(&random) % (CHUNKS_MAX + 1));
        most = chunks_of[block] > most ? chunks_of[block] : most;
    }
    for (uint32_t node = 0; node < nodes; node++) {
        ck_assert_int_eq(make_order(&orders[node], nodes, node, lag), most > lag);
        if (most > lag)
            check_lag(&orders[node], orders[node].first[2 * (nodes - 1)] - orders[node].first[0],
                      lag);
    }
    run_all(orders, nodes);
}
END_TEST

START_TEST(the_second_step_begins_after_the_lag)
{
    const uint32_t first[] = {0, 4, 7}, expected[] = {0, 1, 2, 4, 3, 5, 6};
    uint32_t place[7];

    ck_assert(engine_wire_waves(first, 2, 2, place));
    ck_assert_mem_eq(place, expected, sizeof place);
}
END_TEST

START_TEST(few_chunks_go_step_by_step)
{
    const uint32_t first[] = {3, 5, 7}, empty[] = {3, 3, 3};
    uint32_t place[4] = {9, 9, 9, 9};

    ck_assert(!engine_wire_waves(first, 2, 2, place));
    ck_assert(!engine_wire_waves(empty, 2, 2, place));
    ck_assert(!engine_wire_waves(first, 0, 2, place));
    ck_assert_uint_eq(place[0], 9);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine/waves");
    TCase *tcase = tcase_create("waves");

    tcase_add_loop_test(tcase, what_was_added_goes_on_soon_and_all_nodes_come_to_an_end, 0, 200);
    tcase_add_test(tcase, the_second_step_begins_after_the_lag);
    tcase_add_test(tcase, few_chunks_go_step_by_step);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
