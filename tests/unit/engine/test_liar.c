/* SPDX-License-Identifier: Apache-2.0
 * A client that lies, against the real engine: its session ends with the reason, the others learn
 * RANK_LOST, and the engine goes on serving. */
#include "base/status.h"
#include "tests/unit/engine/hvt_peer.h"
#include "tests/unit/engine/hvt_reference.h"
#include "tests/unit/hvt_main.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static struct hvt_node node;
static struct hvt_peer peers[2];

static void start(void)
{
    struct hvi_engine_start engine_start = hvt_node_defaults(2);

    engine_start.log_level = 0;
    hvt_node_start(&node, &engine_start);
    for (int32_t rank = 0; rank < 2; rank++) {
        hvt_peer_init(&peers[rank], rank, 2, 0);
        ck_assert_int_eq(hvt_node_adopt(&node, &peers[rank], NULL, 0), HVI_OK);
    }
}

static void fini(void)
{
    for (int32_t rank = 0; rank < 2; rank++)
        hvt_peer_fini(&peers[rank]);
    hvt_node_fini(&node);
}

static struct hvi_submission honest(int32_t rank, uint32_t id, const char *name)
{
    struct hvi_submission op =
        hvt_peer_op(&peers[rank], HVI_KIND_ALLREDUCE, HVI_DTYPE_FLOAT32, 4, 0);

    hvt_peer_name(&peers[rank], &op, id, name);
    return op;
}

/* Rank 1 is ended; rank 0's op says why; the engine ends properly once rank 0 has left too. */
static void expect_ended(const char *reason)
{
    char text[HVI_TEXT_MAX + 1];
    struct hvi_packet_msg msg;

    ck_assert(hvt_peer_expect(&peers[1], HVI_PACKET_NOTICE, &msg));
    ck_assert_int_eq(msg.notice.status, HVI_ERR_PROTOCOL);
    ck_assert(msg.notice.session_ended);
    ck_assert_msg(strstr(msg.notice.text, reason), "'%s' does not say '%s'", msg.notice.text,
                  reason);
    ck_assert(!hvt_peer_expect(&peers[1], HVI_PACKET_NOTICE, &msg)); /* closed */
    ck_assert_uint_eq(atomic_load(&peers[1].channel.header->session_state), HVI_SESSION_ENDED);
    struct hvi_completion done = hvt_peer_complete(&peers[0], text, sizeof text);
    ck_assert_int_eq(done.status, HVI_ERR_RANK_LOST);
    ck_assert_int_eq(done.culprit, 1);
    ck_assert_ptr_nonnull(strstr(text, "rank 1 (pid "));
    ck_assert_ptr_nonnull(strstr(text, "broke the protocol: "));
    ck_assert_ptr_nonnull(strstr(text, reason));
    ck_assert(hvt_node_expect(&node, HVI_PACKET_ENGINE_SESSION, &msg));
    ck_assert_uint_eq(msg.engine_session.state, HVI_SESSION_STATE_ENDED);
    close(peers[0].socket);
    peers[0].socket = -1;
    ck_assert_int_eq(hvt_node_wait(&node), 0);
}

static void start_with_waiting_op(void)
{
    start();
    struct hvi_submission op = honest(0, 1, "w");
    hvt_peer_submit(&peers[0], &op);
}

START_TEST(an_impossible_submission_index_ends_the_session)
{
    start_with_waiting_op();
    atomic_store(&peers[1].channel.header->sq_tail, HVI_SQ_SLOTS + 1);
    hvi_bell_ring_engine(peers[1].bell, 1, peers[1].engine_fd);
    expect_ended("an impossible index in its submission ring");
    fini();
}
END_TEST

/* The engine looks at the reader's index when its own count of free slots has run out. */
START_TEST(an_impossible_completion_index_ends_the_session)
{
    start();
    atomic_store(&peers[1].channel.header->cq_head, 7);
    for (int32_t rank = 0; rank < 2; rank++) {
        struct hvi_submission op = honest(rank, 1, "w");
        hvt_peer_submit(&peers[rank], &op);
    }
    ck_assert_int_eq(hvt_peer_complete(&peers[0], NULL, 0).status, HVI_OK);
    struct hvi_submission op = honest(0, 2, "x");
    hvt_peer_submit(&peers[0], &op);
    expect_ended("an impossible index in its completion ring");
    fini();
}
END_TEST

START_TEST(a_wrong_sequence_number_ends_the_session)
{
    start_with_waiting_op();
    struct hvi_submission op = honest(1, 1, "w");
    op.seq = 2;
    hvt_peer_submit(&peers[1], &op);
    expect_ended("submission 2 where 1 was due");
    fini();
}
END_TEST

START_TEST(a_foreign_region_ends_the_session)
{
    start_with_waiting_op();
    struct hvi_submission op = honest(1, 1, "w");
    op.in_region = 3;
    hvt_peer_submit(&peers[1], &op);
    expect_ended("input: there is no region 3");
    fini();
}
END_TEST

START_TEST(a_duplicate_cookie_ends_the_session)
{
    start_with_waiting_op();
    struct hvi_submission op = honest(1, 2, "x");
    hvt_peer_submit(&peers[1], &op);
    struct hvi_submission again = honest(1, 3, "y");
    again.cookie = op.cookie;
    hvt_peer_submit(&peers[1], &again);
    expect_ended("is in flight already");
    fini();
}
END_TEST

START_TEST(a_name_that_is_no_text_ends_the_session)
{
    start_with_waiting_op();
    struct hvi_submission op = honest(1, 1, "w\xff");
    hvt_peer_submit(&peers[1], &op);
    expect_ended("a tensor name that is not UTF-8");
    fini();
}
END_TEST

START_TEST(more_ops_than_allowed_end_the_session)
{
    char name[16];

    start_with_waiting_op();
    for (uint32_t i = 0; i <= HVI_CQ_SLOTS; i++) {
        snprintf(name, sizeof name, "t%u", i);
        struct hvi_submission op = honest(1, i, name);
        hvt_peer_submit(&peers[1], &op);
    }
    expect_ended("more than 4096 ops in flight");
    fini();
}
END_TEST

static void send_raw(const void *bytes, size_t length)
{
    ck_assert_int_eq(hvi_packet_send(peers[1].socket, bytes, length, NULL, 0,
                                     hvi_deadline_after(HVT_DEADLINE_NS)),
                     HVI_OK);
}

START_TEST(garbage_on_the_socket_ends_the_session)
{
    start_with_waiting_op();
    send_raw("\xff\xff\xff", 3);
    expect_ended("a message that cannot be read");
    fini();
}
END_TEST

START_TEST(a_message_for_somebody_else_ends_the_session)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_ENGINE_STOP};

    start_with_waiting_op();
    snprintf(msg.engine_stop.reason, sizeof msg.engine_stop.reason, "I am not hvdd");
    hvt_peer_send(&peers[1], &msg, -1);
    expect_ended("a message that is not a client's");
    fini();
}
END_TEST

START_TEST(a_region_without_descriptor_ends_the_session)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_REGION_ADD};

    start_with_waiting_op();
    msg.region_add.request = 1;
    msg.region_add.region = 1;
    msg.region_add.bytes = 4096;
    hvt_peer_send(&peers[1], &msg, -1);
    expect_ended("a RegionAdd without its descriptor");
    fini();
}
END_TEST

START_TEST(descriptors_beside_other_messages_end_the_session)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_REGION_REMOVE};

    start_with_waiting_op();
    msg.region_remove.request = 1;
    msg.region_remove.region = 1;
    hvt_peer_send(&peers[1], &msg, 0);
    expect_ended("descriptors that nobody asked for");
    fini();
}
END_TEST

/* One who scribbles over the bell page hurts nobody for long: rings are looked at once a second
 * while somebody waits. */
START_TEST(a_scribbled_bell_only_delays)
{
    start();
    struct hvi_submission op = honest(0, 1, "w");
    hvt_peer_submit(&peers[0], &op);
    op = honest(1, 1, "w");
    op.seq = ++peers[1].seq;
    memcpy(hvi_ring_slot(&peers[1].channel.sq, 0), &op, sizeof op);
    hvi_ring_publish(&peers[1].channel.sq, 1); /* no bell */
    ck_assert_int_eq(hvt_peer_complete(&peers[0], NULL, 0).status, HVI_OK);
    fini();
}
END_TEST

/* Any bytes in the slots: the engine survives and ends the session or fails the op. */
START_TEST(random_submissions_never_hurt_the_engine)
{
    uint64_t random = (uint64_t)_i * 1000003;
    uint32_t space = 0;
    struct hvi_packet_msg msg;

    start();
    for (int i = 0; i < 200 && hvi_ring_space(&peers[1].channel.sq, &space) == HVI_OK; i++) {
        struct hvi_submission op = honest(1, (uint32_t)i, "w");
        unsigned char *bytes = (unsigned char *)&op;
        op.seq = ++peers[1].seq;
        op.tensor_id = (uint32_t)i;
        for (uint64_t k = hvt_random(&random) % 3; k > 0; k--) {
            uint64_t bits = hvt_random(&random);
            bytes[8 + bits % 180] = (unsigned char)(bits >> 32 & (bits >> 40));
        }
        if (space == 0)
            continue;
        memcpy(hvi_ring_slot(&peers[1].channel.sq, 0), &op, sizeof op);
        hvi_ring_publish(&peers[1].channel.sq, 1);
        hvi_bell_ring_engine(peers[1].bell, 1, peers[1].engine_fd);
    }
    close(peers[1].socket);
    peers[1].socket = -1;
    ck_assert(hvt_peer_expect(&peers[0], HVI_PACKET_NOTICE, &msg));
    ck_assert_int_eq(msg.notice.status, HVI_ERR_RANK_LOST);
    close(peers[0].socket);
    peers[0].socket = -1;
    ck_assert_int_eq(hvt_node_wait(&node), 0);
    fini();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine/liar");
    TCase *tcase = tcase_create("liar");

    tcase_add_test(tcase, an_impossible_submission_index_ends_the_session);
    tcase_add_test(tcase, an_impossible_completion_index_ends_the_session);
    tcase_add_test(tcase, a_wrong_sequence_number_ends_the_session);
    tcase_add_test(tcase, a_foreign_region_ends_the_session);
    tcase_add_test(tcase, a_duplicate_cookie_ends_the_session);
    tcase_add_test(tcase, a_name_that_is_no_text_ends_the_session);
    tcase_add_test(tcase, more_ops_than_allowed_end_the_session);
    tcase_add_test(tcase, garbage_on_the_socket_ends_the_session);
    tcase_add_test(tcase, a_message_for_somebody_else_ends_the_session);
    tcase_add_test(tcase, a_region_without_descriptor_ends_the_session);
    tcase_add_test(tcase, descriptors_beside_other_messages_end_the_session);
    tcase_add_test(tcase, a_scribbled_bell_only_delays);
    tcase_add_loop_test(tcase, random_submissions_never_hurt_the_engine, 0, 20);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
