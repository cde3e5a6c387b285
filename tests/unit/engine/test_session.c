/* SPDX-License-Identifier: Apache-2.0
 * A rank's states, edge by edge; attaching, its refusals and its limits; regions. */
#include "base/status.h"
#include "daemon/engine/sessions/control.h"
#include "daemon/engine/sessions/intake.h"
#include "tests/unit/engine/hvt_bench.h"
#include "tests/unit/hvt_main.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

static struct hvt_bench bench;

START_TEST(a_ranks_state_has_these_edges_and_no_others)
{
    static const char *const legal[] = {
        "absent attached", "absent lost",    "absent ended", "attached dying", "attached left",
        "attached lost",   "attached ended", "dying left",   "dying lost",     "dying ended",
    };
    size_t found = 0;

    for (int from = 0; from < ENGINE_RANK_STATES; from++) {
        for (int to = 0; to < ENGINE_RANK_STATES; to++) {
            char edge[64];
            bool known = false;
            snprintf(edge, sizeof edge, "%s %s",
                     engine_rank_state_text((enum engine_rank_state)from),
                     engine_rank_state_text((enum engine_rank_state)to));
            for (size_t i = 0; i < sizeof legal / sizeof legal[0]; i++)
                known = known || strcmp(edge, legal[i]) == 0;
            found += known;
            ck_assert_msg(
                known == engine_rank_edge((enum engine_rank_state)from, (enum engine_rank_state)to),
                "%s", edge);
        }
    }
    ck_assert_uint_eq(found, sizeof legal / sizeof legal[0]);
}
END_TEST

START_TEST(a_session_closes_before_it_is_over)
{
    for (int from = 0; from < ENGINE_SESSION_STATES; from++) {
        for (int to = 0; to < ENGINE_SESSION_STATES; to++)
            ck_assert_int_eq(
                engine_session_edge((enum engine_session_state)from, (enum engine_session_state)to),
                to == from + 1);
    }
}
END_TEST

/* ---- attaching ---- */

static int adopt_as(int32_t rank, int32_t size, struct hvi_attach_reply *reply_p)
{
    static unsigned char bytes[HVI_PACKET_BYTES_MAX];
    struct hvi_engine_adopt adopt = {.session = 50, .attach = bytes, .pid = 4711};
    struct hvt_peer peer;

    hvt_peer_init(&peer, rank, size, 0);
    adopt.attach_bytes = hvt_peer_request(&peer, NULL, 0, bytes, sizeof bytes);
    engine_session_adopt(&bench.engine->sessions, &adopt, peer.far_socket, -1);
    peer.far_socket = -1;
    int status = hvt_peer_meet(&peer);
    *reply_p = peer.reply;
    hvt_peer_fini(&peer);
    return status;
}

START_TEST(a_rank_that_is_there_cannot_attach_again)
{
    struct hvi_attach_reply reply;
    char expected[128];

    hvt_bench_init(&bench, 2);
    ck_assert_int_eq(adopt_as(1, 2, &reply), HVI_ERR_DUPLICATE_RANK);
    snprintf(expected, sizeof expected, "rank 1 of job 'test-job' is taken: pid %d, attached",
             (int)getpid());
    ck_assert_str_eq(reply.text, expected);
    ck_assert_int_eq(bench.engine->sessions.ranks[1].pid, getpid());
    ck_assert_int_eq(bench.engine->sessions.attached, 2);
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(a_wrong_size_or_rank_is_refused_with_both_numbers)
{
    struct hvi_attach_reply reply;

    hvt_bench_init_empty(&bench, 2);
    ck_assert_int_eq(adopt_as(0, 3, &reply), HVI_ERR_BAD_SIZE);
    ck_assert_str_eq(reply.text, "job 'test-job' has 2 ranks, this rank says 3");
    ck_assert_int_eq(bench.engine->sessions.come, 0);
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(garbage_instead_of_an_attach_request_is_refused)
{
    unsigned char garbage[] = {0xff, 0x00, 0x12};
    struct hvi_engine_adopt adopt = {.session = 1, .attach = garbage, .attach_bytes = 3};
    struct hvt_peer peer;

    hvt_bench_init_empty(&bench, 2);
    hvt_peer_init(&peer, 0, 2, 0);
    engine_session_adopt(&bench.engine->sessions, &adopt, peer.far_socket, -1);
    peer.far_socket = -1;
    ck_assert_int_eq(hvt_peer_meet(&peer), HVI_ERR_PROTOCOL);
    ck_assert_str_ne(peer.reply.text, "");
    hvt_peer_fini(&peer);
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(the_reply_carries_the_session_and_four_descriptors)
{
    hvt_bench_init(&bench, 2);
    ck_assert_uint_eq(bench.peers[1].reply.session, 2);
    ck_assert_uint_eq(bench.peers[1].reply.generation, 1);
    ck_assert_int_eq(bench.peers[1].reply.engine_pid, getpid());
    ck_assert_uint_eq(bench.peers[1].channel.channel_index, 1);
    ck_assert_uint_eq(bench.peers[1].channel.header->epoch, 2);
    ck_assert_uint_eq(bench.peers[1].channel.header->session_state, HVI_SESSION_OPEN);
    hvt_bench_fini(&bench);
}
END_TEST

static int open_fds(void)
{
    int count = 0;

    for (int fd = 0; fd < 1024; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

/* Every number of free descriptors from none to enough. */
START_TEST(running_out_of_descriptors_is_a_clear_refusal_and_leaks_nothing)
{
    struct rlimit old, tight;
    struct hvt_peer peer;
    static unsigned char bytes[HVI_PACKET_BYTES_MAX];
    struct hvi_engine_adopt adopt = {.session = 1, .attach = bytes, .pid = getpid()};
    int status;

    hvt_bench_init_empty(&bench, 1);
    hvt_peer_init(&peer, 0, 1, 0);
    adopt.attach_bytes = hvt_peer_request(&peer, NULL, 0, bytes, sizeof bytes);
    int before = open_fds();
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &old), 0);
    int lowest = dup(0);
    close(lowest);
    tight = old;
    tight.rlim_cur = (rlim_t)(lowest + _i);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &tight), 0);
    engine_session_adopt(&bench.engine->sessions, &adopt, peer.far_socket, -1);
    peer.far_socket = -1;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &old), 0);
    status = hvt_peer_meet(&peer);
    ck_assert_int_eq(status, _i < 2 ? HVI_ERR_LIMIT : HVI_OK);
    if (status != HVI_OK) {
        ck_assert_ptr_nonnull(strstr(peer.reply.text, "out of file descriptors"));
        ck_assert_ptr_null(bench.engine->sessions.ranks[0].session);
        ck_assert_int_eq(bench.engine->sessions.ranks[0].state, ENGINE_RANK_ENDED);
        ck_assert_int_eq(open_fds(), before - 1);
    }
    hvt_peer_fini(&peer);
    hvt_bench_fini(&bench);
}
END_TEST

/* ---- regions ---- */

static int add_as(int32_t rank, uint32_t id, uint64_t bytes, bool process_memory, int fd,
                  char *text_p)
{
    struct hvt_peer *peer = &bench.peers[rank];
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_REGION_ADD};

    msg.region_add.request = ++peer->request;
    msg.region_add.region = id;
    msg.region_add.bytes = bytes;
    msg.region_add.process_memory = process_memory;
    hvt_peer_send(peer, &msg, fd);
    hvt_bench_turn(&bench);
    ck_assert(hvt_peer_expect(peer, HVI_PACKET_ACK, &msg));
    strcpy(text_p, msg.ack.text);
    return msg.ack.status;
}

static int add(int32_t rank, uint32_t id, uint64_t bytes, int fd, char *text_p)
{
    return add_as(rank, id, bytes, false, fd, text_p);
}

static int drop(int32_t rank, uint32_t id)
{
    struct hvt_peer *peer = &bench.peers[rank];
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_REGION_REMOVE};

    msg.region_remove.request = ++peer->request;
    msg.region_remove.region = id;
    hvt_peer_send(peer, &msg, -1);
    hvt_bench_turn(&bench);
    ck_assert(hvt_peer_expect(peer, HVI_PACKET_ACK, &msg));
    return msg.ack.status;
}

START_TEST(regions_come_and_go_within_their_limits)
{
    struct hvi_region region = HVI_REGION_INIT;
    char text[HVI_TEXT_MAX + 1];

    hvt_bench_init(&bench, 2);
    bench.engine->start.region_bytes_max = 5 * 4096;
    ck_assert_int_eq(hvi_region_create("hvt", 4096, &region), HVI_OK);
    int before = open_fds();
    for (uint32_t id = 1; id <= 3; id++)
        ck_assert_int_eq(add(0, id, 4096, region.fd, text), HVI_OK);
    ck_assert_int_eq(add(0, 4, 4096, region.fd, text), HVI_ERR_LIMIT);
    ck_assert_str_eq(text, "this session has 3 regions, the limit is 3 (regions-per-session)");
    ck_assert_int_eq(add(1, 1, 4096, region.fd, text), HVI_OK);
    ck_assert_int_eq(add(1, 2, 4096, region.fd, text), HVI_OK);
    ck_assert_int_eq(add(1, 3, 4096, region.fd, text), HVI_ERR_LIMIT);
    ck_assert_str_eq(text, "4096 bytes more than the 20480 that job 'test-job' has registered "
                           "exceed the limit of 20480 (region-limit)");
    ck_assert_int_eq(drop(0, 2), HVI_OK);
    ck_assert_int_eq(drop(0, 2), HVI_ERR_NOT_FOUND);
    ck_assert_int_eq(add(1, 3, 4096, region.fd, text), HVI_OK);
    ck_assert_int_eq(open_fds(), before);
    hvi_region_fini(&region);
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(sessions_that_were_shown_a_region_hear_of_its_end_and_no_others)
{
    struct hvi_region region = HVI_REGION_INIT;
    struct hvi_packet_msg ask = {.kind = HVI_PACKET_PEER_ASK, .peer_ask = {5, 1}}, msg;
    char text[HVI_TEXT_MAX + 1];

    hvt_bench_init(&bench, 40);
    ck_assert_int_eq(hvi_region_create("hvt", 8192, &region), HVI_OK);
    ck_assert_int_eq(add(5, 1, 8192, region.fd, text), HVI_OK);
    hvt_peer_send(&bench.peers[3], &ask, -1);
    hvt_bench_turn(&bench);
    ck_assert(hvt_peer_expect(&bench.peers[3], HVI_PACKET_PEER_REGION, &msg));
    ck_assert_uint_eq(msg.peer_region.bytes, 8192);
    ck_assert_int_eq(drop(5, 1), HVI_OK);
    ck_assert(hvt_peer_expect(&bench.peers[3], HVI_PACKET_PEER_REGION, &msg));
    ck_assert_uint_eq(msg.peer_region.bytes, 0);
    for (int32_t rank = 0; rank < 40; rank++)
        ck_assert_msg(!hvt_peer_has_message(&bench.peers[rank]), "rank %d was told something",
                      rank);
    hvi_region_fini(&region);
    hvt_bench_fini(&bench);
}
END_TEST

/* No answer is better than "not to be had", which would be for good. */
START_TEST(a_session_that_leaves_much_unread_may_ask_for_a_region_again_when_it_has_read)
{
    struct hvi_region region = HVI_REGION_INIT;
    struct hvi_packet_msg ask = {.kind = HVI_PACKET_PEER_ASK, .peer_ask = {1, 1}}, msg;
    char text[HVI_TEXT_MAX + 1];
    int answers = 0;

    hvt_bench_init(&bench, 2);
    ck_assert_int_eq(hvi_region_create("hvt", 8192, &region), HVI_OK);
    ck_assert_int_eq(add(1, 1, 8192, region.fd, text), HVI_OK);
    for (int i = 0; i < 400; i++) {
        hvt_peer_send(&bench.peers[0], &ask, -1);
        hvt_bench_turn(&bench);
    }
    for (; hvt_peer_has_message(&bench.peers[0]); answers++) {
        ck_assert(hvt_peer_expect(&bench.peers[0], HVI_PACKET_PEER_REGION, &msg));
        ck_assert_uint_eq(msg.peer_region.bytes, 8192);
    }
    ck_assert_int_gt(answers, 0);
    ck_assert_int_lt(answers, 400);
    hvt_peer_send(&bench.peers[0], &ask, -1);
    hvt_bench_turn(&bench);
    ck_assert(hvt_peer_expect(&bench.peers[0], HVI_PACKET_PEER_REGION, &msg));
    ck_assert_uint_eq(msg.peer_region.bytes, 8192);
    hvi_region_fini(&region);
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(what_processes_have_by_themselves_takes_no_room_from_what_they_ask_for)
{
    struct hvi_region region = HVI_REGION_INIT;
    char text[HVI_TEXT_MAX + 1];

    hvt_bench_init(&bench, 2);
    bench.engine->start.region_bytes_max = 2 * 4096;
    ck_assert_int_eq(hvi_region_create("hvt", 4096, &region), HVI_OK);
    ck_assert_int_eq(add_as(0, 1, 4096, true, region.fd, text), HVI_OK);
    ck_assert_int_eq(add_as(1, 1, 4096, true, region.fd, text), HVI_OK);
    ck_assert_int_eq(add_as(1, 2, 4096, true, region.fd, text), HVI_ERR_LIMIT);
    ck_assert_int_eq(add(0, 2, 4096, region.fd, text), HVI_OK);
    ck_assert_int_eq(add(1, 2, 4096, region.fd, text), HVI_OK);
    ck_assert_int_eq(add(1, 3, 4096, region.fd, text), HVI_ERR_LIMIT);
    ck_assert_int_eq(drop(0, 1), HVI_OK);
    ck_assert_int_eq(add(1, 3, 4096, region.fd, text), HVI_ERR_LIMIT);
    ck_assert_int_eq(add_as(1, 3, 4096, true, region.fd, text), HVI_OK);
    hvi_region_fini(&region);
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(what_is_no_sealed_memfd_of_that_size_is_refused)
{
    struct hvi_region region = HVI_REGION_INIT;
    char text[HVI_TEXT_MAX + 1];
    int null = open("/dev/zero", O_RDWR | O_CLOEXEC);

    hvt_bench_init(&bench, 1);
    ck_assert_int_eq(hvi_region_create("hvt", 4096, &region), HVI_OK);
    ck_assert_int_eq(add(0, 1, 8192, region.fd, text), HVI_ERR_PROTOCOL);
    ck_assert_int_eq(add(0, 1, 4096, null, text), HVI_ERR_PROTOCOL);
    ck_assert_str_eq(text, "the descriptor is no sealed memfd of the size that was said");
    ck_assert_int_eq(add(0, 1, 4096, region.fd, text), HVI_OK);
    ck_assert_int_eq(add(0, 1, 4096, region.fd, text), HVI_ERR_INVALID);
    close(null);
    hvi_region_fini(&region);
    hvt_bench_fini(&bench);
}
END_TEST

/* 9 MiB in steps of 4; one region is removed half way. */
START_TEST(page_tables_are_filled_in_steps_after_the_answer)
{
    struct hvi_region region = HVI_REGION_INIT;
    char text[HVI_TEXT_MAX + 1];
    int steps = 0;

    hvt_bench_init(&bench, 2);
    ck_assert(!engine_sessions_ready_memory(&bench.engine->sessions));
    ck_assert_int_eq(hvi_region_create("hvt", 9 << 20, &region), HVI_OK);
    ck_assert_int_eq(add(0, 1, 9 << 20, region.fd, text), HVI_OK);
    ck_assert_int_eq(add(1, 1, 9 << 20, region.fd, text), HVI_OK);
    ck_assert_int_eq(add(1, 2, 9 << 20, region.fd, text), HVI_OK);
    ck_assert(engine_sessions_ready_memory(&bench.engine->sessions));
    ck_assert_uint_eq(
        engine_regions_find(&bench.engine->sessions.ranks[0].session->regions, 1)->ready, 1 << 20);
    ck_assert_int_eq(drop(0, 1), HVI_OK);
    ck_assert_int_eq(drop(1, 1), HVI_OK);
    while (engine_sessions_ready_memory(&bench.engine->sessions))
        steps++;
    ck_assert_int_eq(steps, 9);
    ck_assert_uint_eq(
        engine_regions_find(&bench.engine->sessions.ranks[1].session->regions, 2)->ready, 9 << 20);
    hvi_region_fini(&region);
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(a_region_under_an_op_is_busy_until_the_op_is_over)
{
    struct hvi_region region = HVI_REGION_INIT;
    char text[HVI_TEXT_MAX + 1];

    hvt_bench_init(&bench, 2);
    ck_assert_int_eq(hvi_region_create("hvt", 4096, &region), HVI_OK);
    ck_assert_int_eq(add(0, 1, 4096, region.fd, text), HVI_OK);
    struct hvi_submission op =
        hvt_peer_op(&bench.peers[0], HVI_KIND_ALLREDUCE, HVI_DTYPE_FLOAT32, 8, 1);
    hvt_peer_name(&bench.peers[0], &op, 1, "w1");
    hvt_peer_submit(&bench.peers[0], &op); /* not taken in yet: the removal must not overtake it */
    ck_assert_int_eq(drop(0, 1), HVI_ERR_BUSY);
    op = hvt_peer_op(&bench.peers[1], HVI_KIND_ALLREDUCE, HVI_DTYPE_FLOAT32, 8, 0);
    hvt_peer_name(&bench.peers[1], &op, 1, "w1");
    hvt_peer_submit(&bench.peers[1], &op);
    hvt_bench_turn(&bench);
    ck_assert_int_eq(hvt_peer_complete(&bench.peers[0], NULL, 0).status, HVI_OK);
    ck_assert_int_eq(drop(0, 1), HVI_OK);
    hvi_region_fini(&region);
    hvt_bench_fini(&bench);
}
END_TEST

/* ---- leaving ---- */

START_TEST(a_detach_that_is_read_while_the_rank_is_dying_still_counts)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_DETACH};

    hvt_bench_init(&bench, 2);
    struct engine_rank *rank = &bench.engine->sessions.ranks[1];
    engine_session_dying(rank->session);
    ck_assert_int_eq(rank->state, ENGINE_RANK_DYING);
    msg.detach.request = 9;
    hvt_peer_send(&bench.peers[1], &msg, -1);
    engine_control_read(rank->session);
    ck_assert_int_eq(rank->state, ENGINE_RANK_LEFT);
    hvt_bench_turn(&bench);
    ck_assert(hvt_peer_expect(&bench.peers[1], HVI_PACKET_ACK, &msg));
    ck_assert_uint_eq(msg.ack.request, 9);
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(a_rank_that_leaves_fails_what_waits_and_what_comes)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_DETACH};
    char text[HVI_TEXT_MAX + 1], expected[64];

    hvt_bench_init(&bench, 3);
    struct hvi_submission op =
        hvt_peer_op(&bench.peers[0], HVI_KIND_BARRIER, HVI_DTYPE_UINT8, 0, 0);
    hvt_peer_name(&bench.peers[0], &op, 1, "b");
    hvt_peer_submit(&bench.peers[0], &op);
    msg.detach.request = 9;
    hvt_peer_send(&bench.peers[2], &msg, -1);
    hvt_bench_turn(&bench);
    ck_assert(hvt_peer_expect(&bench.peers[2], HVI_PACKET_ACK, &msg));
    ck_assert_uint_eq(msg.ack.request, 9);
    ck_assert(!hvt_peer_expect(&bench.peers[2], HVI_PACKET_NOTICE, &msg)); /* end of file */
    ck_assert_uint_eq(bench.peers[2].channel.header->session_state, HVI_SESSION_ENDED);
    snprintf(expected, sizeof expected, "rank 2 (pid %d) closed its session", (int)getpid());
    struct hvi_completion done = hvt_peer_complete(&bench.peers[0], text, sizeof text);
    ck_assert_int_eq(done.status, HVI_ERR_RANK_LEFT);
    ck_assert_int_eq(done.culprit, 2);
    ck_assert_str_eq(text, expected);
    ck_assert(hvt_peer_expect(&bench.peers[1], HVI_PACKET_NOTICE, &msg));
    ck_assert_int_eq(msg.notice.status, HVI_ERR_RANK_LEFT);
    ck_assert_int_eq(msg.notice.rank, 2);
    ck_assert(!msg.notice.session_ended);
    op = hvt_peer_op(&bench.peers[1], HVI_KIND_BARRIER, HVI_DTYPE_UINT8, 0, 0);
    hvt_peer_name(&bench.peers[1], &op, 1, "c");
    hvt_peer_submit(&bench.peers[1], &op);
    hvt_bench_turn(&bench);
    done = hvt_peer_complete(&bench.peers[1], text, sizeof text);
    ck_assert_int_eq(done.status, HVI_ERR_RANK_LEFT);
    ck_assert_str_eq(text, expected);
    hvt_bench_fini(&bench);
}
END_TEST

/* ---- closing ---- */

static void leave(void)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_DETACH};

    hvt_peer_send(&bench.peers[1], &msg, -1);
    engine_control_read(bench.engine->sessions.ranks[1].session);
}

static void die(void)
{
    engine_session_end(bench.engine->sessions.ranks[1].session, ENGINE_RANK_LOST,
                       "rank 1 was killed");
}

static void lie(void)
{
    engine_session_violation(bench.engine->sessions.ranks[1].session, "a lie");
}

static void stop(void)
{
    engine_sessions_stop(&bench.engine->sessions, "the test wants it");
}

static uint32_t seen_state(int32_t rank)
{
    return atomic_load(&bench.peers[rank].channel.header->session_state);
}

static void expect_notice(int32_t rank, int status, bool ended)
{
    struct hvi_packet_msg msg;

    ck_assert(hvt_peer_expect(&bench.peers[rank], HVI_PACKET_NOTICE, &msg));
    ck_assert_int_eq(msg.notice.status, status);
    ck_assert(msg.notice.session_ended == ended);
}

static void expect_end_of_file(int32_t rank)
{
    struct hvi_packet_msg msg;

    ck_assert(!hvt_peer_expect(&bench.peers[rank], HVI_PACKET_NOTICE, &msg));
}

/* An op of both ranks executes until the next turn, and rank 0 waits for another one. */
static void start_op(void)
{
    for (int32_t rank = 0; rank < 2; rank++) {
        struct hvi_submission op = hvt_peer_op(&bench.peers[rank], HVI_KIND_ALLREDUCE,
                                               HVI_DTYPE_FLOAT32, 8, HVI_REGION_INLINE);
        hvt_peer_name(&bench.peers[rank], &op, 1, "w");
        hvt_peer_submit(&bench.peers[rank], &op);
    }
    struct hvi_submission op =
        hvt_peer_op(&bench.peers[0], HVI_KIND_BARRIER, HVI_DTYPE_UINT8, 0, 0);
    hvt_peer_name(&bench.peers[0], &op, 2, "b");
    hvt_peer_submit(&bench.peers[0], &op);
    engine_intake_drain_all(&bench.engine->sessions);
    engine_dispatch_ready(&bench.engine->exec);
}

/* How rank 1 ends, what its peer gets for an op that waits, and what it hears itself: HVI_OK: an Ack. */
static const struct {
    void (*end)(void);
    int peer, told;
} ends[] = {
    {leave, HVI_ERR_RANK_LEFT, HVI_OK},
    {die, HVI_ERR_RANK_LOST, HVI_ERR_CLOSED},
    {lie, HVI_ERR_RANK_LOST, HVI_ERR_PROTOCOL},
    {stop, HVI_ERR_JOB_STOPPED, HVI_ERR_JOB_STOPPED},
};

START_TEST(a_rank_is_told_that_its_session_is_over_when_no_op_uses_its_memory)
{
    const struct hvi_packet_msg unread = {.kind = HVI_PACKET_REGION_REMOVE,
                                          .region_remove = {.request = 7, .region = 9}};
    struct hvi_packet_msg msg;

    hvt_bench_init(&bench, 2);
    start_op();
    ends[_i].end();
    ck_assert(!engine_sessions_reap(&bench.engine->sessions));
    ck_assert_uint_eq(seen_state(1), HVI_SESSION_OPEN);
    hvt_peer_send(&bench.peers[1], &unread, bench.peers[1].engine_fd);
    ck_assert(!hvt_peer_has_message(&bench.peers[1]));
    ck_assert_int_ge(bench.engine->sessions.ranks[1].state, ENGINE_RANK_LEFT);
    ck_assert_int_eq(hvt_peer_complete(&bench.peers[0], NULL, 0).status, ends[_i].peer);
    if (ends[_i].end != stop)
        expect_notice(0, ends[_i].peer, false);
    hvt_bench_turn(&bench);
    ck_assert_uint_eq(seen_state(1), HVI_SESSION_ENDED);
    if (ends[_i].told == HVI_OK)
        ck_assert(hvt_peer_expect(&bench.peers[1], HVI_PACKET_ACK, &msg));
    else if (ends[_i].told != HVI_ERR_CLOSED)
        expect_notice(1, ends[_i].told, true);
    expect_end_of_file(1);
    if (ends[_i].end != stop) /* what executes is finished for those that stay */
        ck_assert_int_eq(hvt_peer_complete(&bench.peers[0], NULL, 0).status, HVI_OK);
    ck_assert(!hvt_peer_has_completion(&bench.peers[0]));
    ck_assert(!hvt_peer_has_completion(&bench.peers[1]));
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(a_session_that_closes_when_the_job_is_stopped_keeps_its_reason)
{
    hvt_bench_init(&bench, 2);
    start_op();
    lie();
    expect_notice(0, HVI_ERR_RANK_LOST, false);
    stop();
    ck_assert(!engine_sessions_are_over(&bench.engine->sessions));
    hvt_bench_turn(&bench);
    expect_notice(1, HVI_ERR_PROTOCOL, true);
    expect_end_of_file(1);
    expect_notice(0, HVI_ERR_JOB_STOPPED, true);
    expect_end_of_file(0);
    ck_assert(engine_sessions_are_over(&bench.engine->sessions));
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(a_job_that_is_being_stopped_takes_no_further_rank)
{
    hvt_bench_init_empty(&bench, 3);
    for (int32_t rank = 0; rank < 2; rank++)
        ck_assert_int_eq(hvt_bench_attach(&bench, rank), HVI_OK);
    stop();
    ck_assert_int_eq(hvt_bench_attach(&bench, 2), HVI_ERR_JOB_STOPPED);
    ck_assert_str_eq(bench.peers[2].reply.text, "job 'test-job' was stopped: the test wants it");
    stop(); /* again: nothing more happens */
    hvt_bench_turn(&bench);
    ck_assert(engine_sessions_are_over(&bench.engine->sessions));
    hvt_bench_fini(&bench);
}
END_TEST

static volatile sig_atomic_t told_before_ack;

static void on_ack(int signal)
{
    struct pollfd pollfd = {.fd = bench.link, .events = POLLIN};

    (void)signal;
    told_before_ack = poll(&pollfd, 1, 0) == 1;
}

/* Whoever knows that it has left may come again at once, and hvdd must know it by then. */
START_TEST(hvdd_is_told_of_a_leaving_rank_before_the_rank_itself)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_DETACH};

    hvt_bench_init(&bench, 2);
    for (int32_t rank = 0; rank < 2; rank++)
        ck_assert(hvt_node_expect(&(struct hvt_node){.link = bench.link}, HVI_PACKET_ENGINE_SESSION,
                                  &msg));
    /* The signal comes while the engine is still in the system call that sends the Ack. */
    signal(SIGIO, on_ack);
    ck_assert_int_eq(fcntl(bench.peers[0].socket, F_SETOWN, getpid()), 0);
    int flags = fcntl(bench.peers[0].socket, F_GETFL);
    ck_assert_int_eq(fcntl(bench.peers[0].socket, F_SETFL, flags | O_ASYNC), 0);
    msg = (struct hvi_packet_msg){.kind = HVI_PACKET_DETACH};
    hvt_peer_send(&bench.peers[0], &msg, -1);
    hvt_bench_turn(&bench);
    signal(SIGIO, SIG_IGN);
    ck_assert_int_eq(told_before_ack, 1);
    ck_assert(hvt_peer_expect(&bench.peers[0], HVI_PACKET_ACK, &msg));
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(an_armed_eventfd_is_written_with_a_completion)
{
    uint64_t value = 0;

    hvt_bench_init(&bench, 1);
    struct hvt_peer *peer = &bench.peers[0];
    for (int armed = 0; armed < 2; armed++) {
        atomic_store(&peer->channel.header->client_event_armed, (uint32_t)armed);
        struct hvi_submission op = hvt_peer_op(peer, HVI_KIND_BARRIER, HVI_DTYPE_UINT8, 0, 0);
        hvt_peer_name(peer, &op, 1, "b");
        hvt_peer_submit(peer, &op);
        hvt_bench_turn(&bench);
        hvt_peer_complete(peer, NULL, 0);
        ck_assert_int_eq(read(peer->event_fd, &value, sizeof value), armed ? 8 : -1);
    }
    hvt_bench_fini(&bench);
}
END_TEST

/* hvdd does not read for a while: in the end it knows of everybody all the same. */
START_TEST(what_the_link_could_not_take_is_told_when_it_can)
{
    enum hvi_session_state states[HVT_BENCH_RANKS] = {0};
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_DETACH};
    static struct hvi_packet packet;
    char why[128];
    int small = 1, untold = 0, told = 0;

    hvt_bench_init_empty(&bench, HVT_BENCH_RANKS);
    ck_assert_int_eq(setsockopt(bench.engine->link_fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof small),
                     0);
    for (int32_t rank = 0; rank < HVT_BENCH_RANKS; rank++)
        ck_assert_int_eq(hvt_bench_attach(&bench, rank), HVI_OK);
    for (int32_t rank = 1; rank < HVT_BENCH_RANKS; rank++)
        hvt_peer_send(&bench.peers[rank], &msg, -1);
    hvt_bench_turn(&bench);
    for (int32_t rank = 0; rank < HVT_BENCH_RANKS; rank++)
        untold += bench.engine->sessions.ranks[rank].untold;
    ck_assert_int_gt(untold, HVT_BENCH_RANKS / 2);
    while (hvi_packet_receive(bench.link, &packet, 0) == HVI_OK) {
        ck_assert_int_eq(hvi_packet_msg_decode(packet.bytes, packet.length, &msg, why, sizeof why),
                         HVI_OK);
        ck_assert_int_eq(msg.kind, HVI_PACKET_ENGINE_SESSION);
        states[msg.engine_session.rank] = msg.engine_session.state;
        hvt_bench_turn(&bench);
    }
    for (int32_t rank = 0; rank < HVT_BENCH_RANKS; rank++) {
        ck_assert(!bench.engine->sessions.ranks[rank].untold);
        told += states[rank] == (rank == 0 ? HVI_SESSION_STATE_ATTACHED : HVI_SESSION_STATE_LEFT);
    }
    ck_assert_int_eq(told, HVT_BENCH_RANKS);
    hvt_bench_fini(&bench);
}
END_TEST

/* ---- pages that are missing ---- */

START_TEST(a_page_of_the_slots_is_the_engines)
{
    char text[HVI_TEXT_MAX + 1];

    hvt_bench_init(&bench, 2);
    struct engine *engine = bench.engine;
    struct engine_region *slots = &engine->slots.region;
    for (int32_t rank = 0; rank < 2; rank++) {
        struct hvi_submission op =
            hvt_peer_op(&bench.peers[rank], HVI_KIND_ALLREDUCE, HVI_DTYPE_FLOAT32, 4, 0);
        hvt_peer_name(&bench.peers[rank], &op, 1, "w");
        hvt_peer_submit(&bench.peers[rank], &op);
    }
    engine_intake_drain_all(&engine->sessions);
    struct engine_op *op = engine->order.ready_first;
    ck_assert_ptr_nonnull(op);
    for (uint32_t rank = 0; rank < 2; rank++) { /* as parts that were brought to a slot */
        struct engine_region **in = &engine_share_of(op->parts[rank])->in.region;
        (*in)->users--;
        *in = slots;
        slots->users++;
    }
    engine_task_of(op)->work.missing = (uint64_t)(uintptr_t)slots->map.base;
    hvt_bench_turn(&bench);
    for (int32_t rank = 0; rank < 2; rank++) {
        struct hvi_completion done = hvt_peer_complete(&bench.peers[rank], text, sizeof text);
        ck_assert_int_eq(done.status, HVI_ERR_NO_MEMORY);
        ck_assert_int_eq(done.culprit, -1);
        ck_assert_ptr_nonnull(strstr(text, "a page of the memory of the engine could not be had"));
    }
    hvt_bench_fini(&bench);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine/session");
    TCase *tcase = tcase_create("session");

    tcase_add_test(tcase, a_ranks_state_has_these_edges_and_no_others);
    tcase_add_test(tcase, a_session_closes_before_it_is_over);
    tcase_add_test(tcase, a_rank_that_is_there_cannot_attach_again);
    tcase_add_test(tcase, a_wrong_size_or_rank_is_refused_with_both_numbers);
    tcase_add_test(tcase, garbage_instead_of_an_attach_request_is_refused);
    tcase_add_test(tcase, the_reply_carries_the_session_and_four_descriptors);
    tcase_add_loop_test(tcase, running_out_of_descriptors_is_a_clear_refusal_and_leaks_nothing, 0,
                        4);
    tcase_add_test(tcase, regions_come_and_go_within_their_limits);
    tcase_add_test(tcase, sessions_that_were_shown_a_region_hear_of_its_end_and_no_others);
    tcase_add_test(tcase,
                   a_session_that_leaves_much_unread_may_ask_for_a_region_again_when_it_has_read);
    tcase_add_test(tcase, what_processes_have_by_themselves_takes_no_room_from_what_they_ask_for);
    tcase_add_test(tcase, what_is_no_sealed_memfd_of_that_size_is_refused);
    tcase_add_test(tcase, page_tables_are_filled_in_steps_after_the_answer);
    tcase_add_test(tcase, a_region_under_an_op_is_busy_until_the_op_is_over);
    tcase_add_test(tcase, a_detach_that_is_read_while_the_rank_is_dying_still_counts);
    tcase_add_test(tcase, a_rank_that_leaves_fails_what_waits_and_what_comes);
    tcase_add_loop_test(tcase, a_rank_is_told_that_its_session_is_over_when_no_op_uses_its_memory,
                        0, sizeof ends / sizeof ends[0]);
    tcase_add_test(tcase, a_session_that_closes_when_the_job_is_stopped_keeps_its_reason);
    tcase_add_test(tcase, a_job_that_is_being_stopped_takes_no_further_rank);
    tcase_add_test(tcase, hvdd_is_told_of_a_leaving_rank_before_the_rank_itself);
    tcase_add_test(tcase, an_armed_eventfd_is_written_with_a_completion);
    tcase_add_test(tcase, what_the_link_could_not_take_is_told_when_it_can);
    tcase_add_test(tcase, a_page_of_the_slots_is_the_engines);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
