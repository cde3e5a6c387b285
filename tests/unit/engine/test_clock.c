/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/engine/mesh/clock.h"
#include "tests/unit/hvt_main.h"

static struct engine_mesh_clock clock_of_peer;

static void take(uint64_t asked, uint64_t heard, uint64_t said, uint64_t now)
{
    engine_mesh_clock_take(&clock_of_peer, asked, heard, said, now);
}

START_TEST(the_shortest_way_tells_the_difference_of_two_clocks)
{
    clock_of_peer = (struct engine_mesh_clock){0};
    take(1000, 501300, 501350,
         1450); /* 300 there, 50 inside, 100 back: half of 400 is wrong by 100 */
    ck_assert_uint_eq(clock_of_peer.way_ns, 400);
    ck_assert_uint_eq(clock_of_peer.ahead_ns, 500100);
    take(2000, 502020, 502020, 2040);
    ck_assert_uint_eq(clock_of_peer.way_ns, 40);
    ck_assert_uint_eq(clock_of_peer.ahead_ns, 500000);
    take(3000, 503900, 503900, 4000);
    ck_assert_uint_eq(clock_of_peer.way_ns, 40);
}
END_TEST

START_TEST(a_clock_that_is_behind_is_ahead_modulo_2_to_the_64)
{
    clock_of_peer = (struct engine_mesh_clock){0};
    take(1000000, 30, 30, 1000060);
    ck_assert_uint_eq(1000030 + clock_of_peer.ahead_ns, 30);
}
END_TEST

START_TEST(a_peer_that_says_what_cannot_be_tells_nothing)
{
    clock_of_peer = (struct engine_mesh_clock){0};
    take(1000, 60, 50, 1100);
    take(1000, 50, 500, 1100);
    take(1000, 50, 60, 900);
    ck_assert_uint_eq(clock_of_peer.way_ns, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine/clock");
    TCase *tcase = tcase_create("clock");

    tcase_add_test(tcase, the_shortest_way_tells_the_difference_of_two_clocks);
    tcase_add_test(tcase, a_clock_that_is_behind_is_ahead_modulo_2_to_the_64);
    tcase_add_test(tcase, a_peer_that_says_what_cannot_be_tells_nothing);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
