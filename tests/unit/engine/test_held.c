/* SPDX-License-Identifier: Apache-2.0
 * Ops that ranks do themselves, seen by the whole engine: who is told that one is held up in its slot, and what becomes
 * of one that cannot end there. The slots by themselves: test_slots.c. */
#include "base/clock.h"
#include "base/status.h"
#include "daemon/engine/watch/stall.h"
#include "tests/unit/engine/hvt_ops.h"
#include "tests/unit/hvt_log.h"
#include "tests/unit/hvt_main.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define RANKS     2
#define EVERYBODY 3u
#define MEDIUM    65536u
#define COOKIE    77u
#define WARN_NS   (100 * HVI_NS_SEC) /* no real time in this test */
#define ACT_NS    (1000 * HVI_NS_SEC)

static struct hvt_bench bench;
static struct engine_slot *slot;
static uint32_t chunk;

/* ---- two ranks that have a grant for "w" ---- */

static void add_region(int32_t rank)
{
    struct hvt_peer *peer = &bench.peers[rank];
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_REGION_ADD,
                                 .region_add = {.request = 1, .region = 1}};

    ck_assert_int_eq(hvi_region_create("hvt", MEDIUM, &peer->regions[0]), HVI_OK);
    msg.region_add.bytes = peer->regions[0].bytes;
    hvt_peer_send(peer, &msg, peer->regions[0].fd);
    hvt_bench_turn(&bench);
    ck_assert(hvt_peer_expect(peer, HVI_PACKET_ACK, &msg));
    ck_assert_int_eq(msg.ack.status, HVI_OK);
}

static float *memory(int32_t rank)
{
    return hvt_peer_memory(&bench.peers[rank], 1);
}

static void submit(int32_t rank)
{
    struct hvi_submission op = hvt_peer_op(&bench.peers[rank], HVI_KIND_ALLREDUCE,
                                           HVI_DTYPE_FLOAT32, MEDIUM / sizeof(float), 1);

    hvt_peer_name(&bench.peers[rank], &op, 1, "w");
    hvt_peer_submit(&bench.peers[rank], &op);
    hvt_bench_turn(&bench);
}

static void set_up(void)
{
    hvt_log_open();
    hvt_bench_init(&bench, RANKS);
    bench.engine->watch.stall_warn_ns = WARN_NS;
    bench.engine->watch.stall_act_ns = ACT_NS;
    for (int32_t rank = 0; rank < RANKS; rank++)
        add_region(rank);
    for (int32_t rank = 0; rank < RANKS; rank++)
        submit(rank);
    for (int32_t rank = 0; rank < RANKS; rank++)
        ck_assert_int_eq(hvt_peer_complete(&bench.peers[rank], NULL, 0).status, HVI_OK);
    slot = &bench.engine->slots.slot[0];
    ck_assert_int_eq(slot->state, ENGINE_SLOT_OPEN);
    ck_assert(engine_slot_is_medium(slot));
}

static void tear_down(void)
{
    hvt_bench_fini(&bench);
}

/* ---- what they do in the slot ---- */

static struct hvi_slots *map(void)
{
    return &bench.engine->slots.map;
}

static void arrive(int32_t rank, uint32_t region)
{
    struct hvi_slot_part *part = hvi_slot_part(map(), 0, (uint32_t)rank);
    const struct hvi_slot_operands said = {.in_region = region, .out_region = region};

    part->submit_ns = hvi_clock_ns();
    memcpy(part->payload, &said, sizeof said);
    atomic_store(&part->cookie, COOKIE + (uint64_t)rank);
    hvi_slot_arrive(map(), 0, slot->turn, (uint32_t)rank, EVERYBODY);
}

static void start(void)
{
    ck_assert(hvi_slot_start(map(), 0, slot->turn, MEDIUM, EVERYBODY));
}

/* Both have come, rank 0 has started it, and rank 1 stands in the middle of its chunk. */
static void hold(void)
{
    uint64_t chunk_bytes = 0;

    for (int32_t rank = 0; rank < RANKS; rank++)
        arrive(rank, 1);
    start();
    chunk = hvi_slot_claim(map(), 0, slot->turn, hvi_slot_cut(MEDIUM, &chunk_bytes), 1u + 1u);
    ck_assert_uint_ne(chunk, HVI_SLOT_NOTHING);
}

static void let_go(void)
{
    hvi_slot_finish(map(), 0, slot->turn, chunk);
}

/* As the engine's own loop does, until it is so. */
static void turn_until(bool (*is_so)(void))
{
    uint64_t end_ns = hvi_deadline_after(HVT_DEADLINE_NS);

    while (!is_so()) {
        ck_assert(!hvi_deadline_passed(end_ns));
        bench.engine->order.now_ns = hvi_clock_ns();
        atomic_store(&map()->head->watch, 1);
        engine_slots_look(&bench.engine->slots);
        if (bench.engine->sessions.doomed)
            engine_sessions_end_doomed(&bench.engine->sessions);
        hvt_bench_turn(&bench);
    }
}

/* As if it had been held for so long. */
static void look_after(uint64_t ns)
{
    engine_stall_look_at_held(&bench.engine->watch, hvi_clock_ns() + ns);
}

static bool sessions_are_over(void)
{
    return engine_sessions_are_over(&bench.engine->sessions);
}

static void expect_notice(int32_t rank, bool ended, int status)
{
    struct hvi_packet_msg msg;
    char expected[128];

    snprintf(expected, sizeof expected, "allreduce 'w' waits for rank 1 (pid %d, ", (int)getpid());
    ck_assert(hvt_peer_expect(&bench.peers[rank], HVI_PACKET_NOTICE, &msg));
    ck_assert_int_eq(msg.notice.status, status);
    ck_assert_int_eq(msg.notice.session_ended, ended);
    ck_assert_msg(strstr(msg.notice.text, expected), "%s", msg.notice.text);
    ck_assert_ptr_nonnull(strstr(msg.notice.text, "), in the middle of its part of the reduction"));
    hvi_packet_msg_free(&msg);
}

/* ---- tests ---- */

START_TEST(every_member_is_told_who_holds_an_op_up_again_and_again)
{
    hold();
    look_after(WARN_NS / 2);
    ck_assert(!hvt_peer_has_message(&bench.peers[0]));
    for (uint64_t i = 1; i <= 2; i++) {
        look_after(i * WARN_NS + i * HVI_NS_SEC);
        expect_notice(0, false, HVI_INPROGRESS);
        expect_notice(1, false, HVI_INPROGRESS);
        look_after(i * WARN_NS + WARN_NS / 2);
        ck_assert(!hvt_peer_has_message(&bench.peers[0]));
        ck_assert_int_eq(hvt_log_count("warning stall op-stalled"), (int)i);
    }
    let_go();
    look_after(9 * WARN_NS);
    ck_assert(!hvt_peer_has_message(&bench.peers[0]));
}
END_TEST

START_TEST(stop_job_ends_a_job_whose_op_is_held_up)
{
    hold();
    bench.engine->watch.stall_policy = ENGINE_STALL_STOP_JOB;
    look_after(ACT_NS / 2);
    expect_notice(0, false, HVI_INPROGRESS);
    ck_assert(!bench.engine->sessions.stopping);
    look_after(ACT_NS + HVI_NS_SEC);
    ck_assert(bench.engine->sessions.stopping);
    let_go();
    turn_until(sessions_are_over);
    expect_notice(0, true, HVI_ERR_JOB_STOPPED);
}
END_TEST

START_TEST(fail_op_cannot_fail_an_op_that_is_held_up)
{
    hold();
    bench.engine->watch.stall_policy = ENGINE_STALL_FAIL_OP;
    look_after(ACT_NS + HVI_NS_SEC);
    expect_notice(0, false, HVI_INPROGRESS);
    ck_assert(!bench.engine->sessions.stopping);
    ck_assert_int_eq(slot->state, ENGINE_SLOT_OPEN);
    let_go();
}
END_TEST

START_TEST(a_check_time_of_none_is_silent)
{
    hold();
    bench.engine->watch.stall_warn_ns = 0;
    bench.engine->watch.stall_policy = ENGINE_STALL_STOP_JOB;
    look_after(ACT_NS * 2);
    ck_assert(!hvt_peer_has_message(&bench.peers[0]));
    ck_assert(!bench.engine->sessions.stopping);
    let_go();
}
END_TEST

START_TEST(an_op_that_is_held_up_is_in_the_table)
{
    struct engine_watch *watch = &bench.engine->watch;
    struct hvi_stall_row *rows;
    uint64_t left_out;
    size_t count;

    hold();
    ck_assert_int_eq(engine_stall_rows(watch, 0, 9, &rows, &count, &left_out), HVI_OK);
    ck_assert_uint_eq(count, 1);
    ck_assert_str_eq(rows[0].tensor, "w");
    ck_assert_str_eq(rows[0].op, "allreduce");
    ck_assert_str_eq(rows[0].job, HVT_JOB);
    ck_assert_uint_eq(rows[0].ready_count, 1);
    ck_assert_int_eq(rows[0].ready[0], 0);
    ck_assert_uint_eq(rows[0].missing_count, 1);
    ck_assert_int_eq(rows[0].missing[0].rank, 1);
    ck_assert_int_eq(rows[0].missing[0].pid, getpid());
    ck_assert_str_eq(rows[0].missing[0].waits_in, "its part of the reduction");
    engine_stall_rows_free(rows, count);
    ck_assert_int_eq(engine_stall_rows(watch, ACT_NS, 9, &rows, &count, &left_out), HVI_OK);
    ck_assert_uint_eq(count + left_out, 0); /* it is not as old */
    engine_stall_rows_free(rows, count);
    let_go();
    ck_assert_int_eq(engine_stall_rows(watch, 0, 9, &rows, &count, &left_out), HVI_OK);
    ck_assert_uint_eq(count, 0);
    engine_stall_rows_free(rows, count);
}
END_TEST

static bool an_op_waits(void)
{
    return bench.engine->order.waiting_first != NULL;
}

START_TEST(what_waits_in_a_slot_for_too_long_goes_on_in_the_engine)
{
    for (uint32_t i = 0; i < MEDIUM / sizeof(float); i++)
        memory(0)[i] = memory(1)[i] = 1;
    arrive(0, 1);
    turn_until(an_op_waits);
    ck_assert(!hvt_peer_has_completion(&bench.peers[0]));
    submit(1); /* it has learnt that the grant is gone */
    for (int32_t rank = 0; rank < RANKS; rank++) {
        struct hvi_completion done = hvt_peer_complete(&bench.peers[rank], NULL, 0);
        ck_assert_int_eq(done.status, HVI_OK);
        ck_assert(rank > 0 || done.cookie == COOKIE);
        ck_assert_float_eq(memory(rank)[MEDIUM / sizeof(float) - 1], 2);
    }
}
END_TEST

static bool rank_0_is_told(void)
{
    return hvt_peer_has_message(&bench.peers[0]);
}

/* The rank itself has said that its operand lies in a region that it has not. */
START_TEST(an_operand_that_cannot_be_ends_its_session)
{
    struct hvi_packet_msg msg;

    arrive(0, 2);
    if (_i > 0) {
        arrive(1, 1);
        start();
    }
    turn_until(rank_0_is_told);
    ck_assert(hvt_peer_expect(&bench.peers[0], HVI_PACKET_NOTICE, &msg));
    ck_assert(msg.notice.session_ended);
    ck_assert_int_eq(msg.notice.status, HVI_ERR_PROTOCOL);
    ck_assert_ptr_nonnull(strstr(msg.notice.text, "an impossible operand in an express slot"));
    hvi_packet_msg_free(&msg);
    ck_assert_int_eq(bench.engine->sessions.ranks[1].state, ENGINE_RANK_ATTACHED);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine/held");
    TCase *tcase = tcase_create("held");

    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_test(tcase, every_member_is_told_who_holds_an_op_up_again_and_again);
    tcase_add_test(tcase, stop_job_ends_a_job_whose_op_is_held_up);
    tcase_add_test(tcase, fail_op_cannot_fail_an_op_that_is_held_up);
    tcase_add_test(tcase, a_check_time_of_none_is_silent);
    tcase_add_test(tcase, an_op_that_is_held_up_is_in_the_table);
    tcase_add_test(tcase, what_waits_in_a_slot_for_too_long_goes_on_in_the_engine);
    tcase_add_loop_test(tcase, an_operand_that_cannot_be_ends_its_session, 0, 2);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
