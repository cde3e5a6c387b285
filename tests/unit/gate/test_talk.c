/* SPDX-License-Identifier: Apache-2.0
 * Two ends of a conversation over a connection that loses messages, and over restarts of either end. */
#include "daemon/gate/talk.h"

#include "base/clock.h"
#include "base/status.h"
#include "tests/unit/hvt_main.h"

#define SIDES  2
#define WIRE   256
#define BODIES 200

/* One end: what it has heard, as the generations of NodeWithdraw. */
struct end {
    struct gate_talk talk;
    uint64_t heard[BODIES * 4];
    size_t heard_count;
    uint64_t wants; /* bodies that it has to say, from 1 */
    unsigned anew;
};

static struct end ends[SIDES];
static struct hvi_mesh_msg wires[SIDES][WIRE]; /* towards that end */
static size_t on_wire[SIDES];
static uint64_t now_ns, random_state;

static uint64_t next_random(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return random_state >> 33 | 1;
}

static void transmit(void *user, struct hvi_mesh_msg *msg)
{
    int to = *(int *)user;

    if (on_wire[to] < WIRE)
        wires[to][on_wire[to]++] = *msg; /* a NodeWithdraw owns nothing */
}

static void say(struct end *end, uint64_t what)
{
    struct hvi_mesh_msg msg = {.kind = HVI_MESH_NODE_WITHDRAW};

    msg.node_withdraw.registration = what;
    ck_assert_int_eq(gate_talk_say(&end->talk, &msg), HVI_OK);
}

/* The joining end says everything again; the listening end forgets what it heard. */
static void on_anew(int side)
{
    struct end *end = &ends[side];

    end->anew++;
    end->heard_count = 0;
    for (uint64_t i = 1; i <= end->wants; i++)
        say(end, i);
}

static void receive(int side, const struct hvi_mesh_msg *msg)
{
    struct end *end = &ends[side];
    unsigned news = gate_talk_take(&end->talk, msg, next_random());

    if ((news & GATE_TALK_ANEW) != 0)
        on_anew(side);
    if ((news & GATE_TALK_BODY) != 0)
        end->heard[end->heard_count++] = msg->node_withdraw.registration;
}

/* 100 ms pass; each message on the way arrives with `percent`. */
static void turn(unsigned percent)
{
    now_ns += 100 * HVI_NS_MS;
    for (int side = 0; side < SIDES; side++) {
        int to = 1 - side;
        gate_talk_flush(&ends[side].talk, now_ns, transmit, &to);
    }
    for (int side = 0; side < SIDES; side++) {
        size_t count = on_wire[side];
        on_wire[side] = 0;
        for (size_t i = 0; i < count; i++)
            if (next_random() / 2 % 100 < percent)
                receive(side, &wires[side][i]);
    }
}

static void start_end(int side)
{
    gate_talk_fini(&ends[side].talk);
    memset(&ends[side], 0, sizeof(ends[side]));
    gate_talk_init(&ends[side].talk, next_random(), side == 1);
}

static void setup(void)
{
    memset(ends, 0, sizeof(ends));
    memset(on_wire, 0, sizeof(on_wire));
    now_ns = HVI_NS_SEC;
    random_state = 1;
    start_end(0);
    start_end(1);
}

static void teardown(void)
{
    gate_talk_fini(&ends[0].talk);
    gate_talk_fini(&ends[1].talk);
}

static void check_heard(int side, uint64_t count)
{
    ck_assert_uint_eq(ends[side].heard_count, count);
    for (uint64_t i = 0; i < count; i++)
        ck_assert_uint_eq(ends[side].heard[i], i + 1);
}

static void say_more(int side)
{
    if (ends[side].wants < BODIES)
        say(&ends[side], ++ends[side].wants);
}

START_TEST(what_is_said_is_heard_once_and_in_order_although_messages_are_lost)
{
    random_state = (uint64_t)_i + 1;
    for (int i = 0; i < 3000 && ends[0].heard_count + ends[1].heard_count < (size_t)2 * BODIES;
         i++) {
        say_more(0);
        say_more(1);
        turn(50);
    }
    check_heard(0, BODIES);
    check_heard(1, BODIES);
    ck_assert_uint_eq(ends[0].anew + ends[1].anew, 0);
    turn(100);
    turn(100);
    ck_assert_uint_eq(ends[0].talk.items + ends[1].talk.items, 0);
}
END_TEST

START_TEST(a_listener_that_begins_anew_hears_everything_again)
{
    random_state = (uint64_t)_i + 1;
    for (int i = 0; i < 40; i++) {
        say_more(1);
        turn(70);
    }
    start_end(0);
    for (int i = 0; i < 200; i++)
        turn(70);
    ck_assert_uint_eq(ends[1].anew, 1);
    check_heard(0, 40);
}
END_TEST

START_TEST(a_joiner_that_begins_anew_is_not_taken_for_the_one_before)
{
    random_state = (uint64_t)_i + 1;
    for (int i = 0; i < 40; i++) {
        say_more(0);
        say_more(1);
        turn(70);
    }
    start_end(1);
    for (int i = 0; i < 30; i++)
        say_more(1);
    for (int i = 0; i < 200; i++)
        turn(70);
    ck_assert_uint_eq(ends[0].anew, 1);
    check_heard(0, 30);
    check_heard(1, 40); /* on_anew says it again */
}
END_TEST

START_TEST(restarts_of_both_ends_at_any_time_end_well)
{
    random_state = (uint64_t)_i * 7 + 3;
    for (int i = 0; i < 300; i++) {
        uint64_t wants = ends[1].wants;
        say_more(1);
        if (next_random() / 2 % 20 == 0)
            start_end(0);
        if (next_random() / 2 % 20 == 0) {
            start_end(1);
            for (uint64_t k = 0; k < wants; k++)
                say_more(1);
        }
        turn(60);
    }
    for (int i = 0; i < 20; i++)
        turn(60);
    for (int i = 0; i < 20; i++)
        turn(100);
    check_heard(0, ends[1].wants);
}
END_TEST

START_TEST(a_quiet_conversation_has_a_sign_of_life_twice_a_second)
{
    int to = 0;

    for (int i = 0; i < 10; i++)
        turn(100);
    for (int i = 0; i < 50; i++) {
        now_ns += 100 * HVI_NS_MS;
        gate_talk_flush(&ends[1].talk, now_ns, transmit, &to);
    }
    ck_assert_uint_ge(on_wire[0], 9);
    ck_assert_uint_le(on_wire[0], 11);
}
END_TEST

START_TEST(a_peer_that_confirms_nothing_fills_a_bounded_queue)
{
    struct hvi_mesh_msg msg = {.kind = HVI_MESH_NODE_ROSTER};
    int status = HVI_OK, said = 0;

    for (; status == HVI_OK; said++) {
        msg.node_roster.roster_bytes = 100000;
        msg.node_roster.roster = malloc(100000);
        status = gate_talk_say(&ends[0].talk, &msg);
    }
    ck_assert_int_eq(status, HVI_ERR_LIMIT);
    ck_assert_int_gt(said, 100);
    ck_assert_uint_le(ends[0].talk.bytes, GATE_TALK_BYTES_MAX);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("gate talk");
    TCase *tcase = tcase_create("talk");

    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_loop_test(tcase, what_is_said_is_heard_once_and_in_order_although_messages_are_lost,
                        0, 20);
    tcase_add_loop_test(tcase, a_listener_that_begins_anew_hears_everything_again, 0, 20);
    tcase_add_loop_test(tcase, a_joiner_that_begins_anew_is_not_taken_for_the_one_before, 0, 20);
    tcase_add_loop_test(tcase, restarts_of_both_ends_at_any_time_end_well, 0, 50);
    tcase_add_test(tcase, a_quiet_conversation_has_a_sign_of_life_twice_a_second);
    tcase_add_test(tcase, a_peer_that_confirms_nothing_fills_a_bounded_queue);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
