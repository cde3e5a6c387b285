/* SPDX-License-Identifier: Apache-2.0
 * The engine's end of hvdd's link: what hvdd may ask, and what it cannot have meant. The test is hvdd. */
#include "daemon/engine/engine.h"

#include "base/status.h"
#include "tests/unit/engine/hvt_bench.h"
#include "tests/unit/hvt_log.h"
#include "tests/unit/hvt_main.h"
#include "tests/unit/hvt_process.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static struct hvt_bench bench;
static struct hvt_node node; /* its link alone */

static void set_up(void)
{
    struct hvi_packet_msg msg;

    hvt_bench_init(&bench, 2);
    node.link = bench.link;
    for (int32_t rank = 0; rank < 2; rank++) {
        ck_assert(hvt_node_expect(&node, HVI_PACKET_ENGINE_SESSION, &msg));
        hvi_packet_msg_free(&msg);
    }
}

static void tear_down(void)
{
    hvt_bench_fini(&bench);
}

static void ask(uint32_t what, struct hvi_packet_msg *reply_p)
{
    const struct hvi_packet_msg msg = {
        .kind = HVI_PACKET_ENGINE_QUERY,
        .engine_query = {.request = 7, .what = what, .rank = -1, .limit = 16},
    };

    hvt_node_send(&node, &msg, NULL, 0);
    hvt_bench_turn(&bench);
    ck_assert(hvt_node_expect(&node, HVI_PACKET_ENGINE_REPORT, reply_p));
    ck_assert_uint_eq(reply_p->engine_report.request, 7);
}

static void expect_alive(void)
{
    struct hvi_packet_msg reply;

    ask(HVI_QUERY_ALIVE, &reply);
    hvi_packet_msg_free(&reply);
}

START_TEST(hvdd_is_told_of_ranks_of_what_waits_and_of_what_was_done)
{
    struct hvi_packet_msg reply;
    struct hvt_peer *peer = &bench.peers[0];

    for (int32_t rank = 0; rank < 2; rank++) {
        struct hvi_submission done =
            hvt_peer_op(&bench.peers[rank], HVI_KIND_BARRIER, HVI_DTYPE_UINT8, 0, 0);
        hvt_peer_name(&bench.peers[rank], &done, 1, "done");
        hvt_peer_submit(&bench.peers[rank], &done);
    }
    hvt_bench_turn(&bench);
    struct hvi_submission waits = hvt_peer_op(peer, HVI_KIND_BARRIER, HVI_DTYPE_UINT8, 0, 0);
    hvt_peer_name(peer, &waits, 2, "waits");
    hvt_peer_submit(peer, &waits);
    ask(HVI_QUERY_RANKS, &reply);
    ck_assert_uint_eq(reply.engine_report.rank_count, 2);
    ck_assert_int_eq(reply.engine_report.ranks[1].rank, 1);
    hvi_packet_msg_free(&reply);
    ask(HVI_QUERY_STALLS, &reply);
    ck_assert_uint_eq(reply.engine_report.stall_count, 1);
    ck_assert_str_eq(reply.engine_report.stalls[0].tensor, "waits");
    hvi_packet_msg_free(&reply);
    ask(HVI_QUERY_TRACE, &reply);
    ck_assert_uint_ge(reply.engine_report.trace_count, 2);
    hvi_packet_msg_free(&reply);
}
END_TEST

START_TEST(what_hvdd_cannot_have_meant_changes_nothing)
{
    const struct hvi_packet_msg strange[] = {
        {.kind = HVI_PACKET_ENGINE_ADOPT,
         .engine_adopt =
             {.session = 9, .attach = (unsigned char[]){0}, .attach_bytes = 1, .pid = 1}},
        {.kind = HVI_PACKET_ENGINE_TIMELINE,
         .engine_timeline = {.request = 1, .start = true, .path = "/x"}},
        {.kind = HVI_PACKET_DETACH, .detach = {.request = 1}},
    };

    for (size_t i = 0; i < sizeof strange / sizeof strange[0]; i++)
        hvt_node_send(&node, &strange[i], NULL, 0);
    ck_assert_int_eq(send(bench.link, "\xff\xff\xff", 3, 0), 3);
    hvt_bench_turn(&bench);
    expect_alive();
}
END_TEST

START_TEST(a_message_that_is_too_long_is_passed_over)
{
    static unsigned char bytes[HVI_PACKET_BYTES_MAX + 1];

    hvt_log_open();
    ck_assert_int_eq(send(bench.link, bytes, sizeof bytes, 0), sizeof bytes);
    hvt_bench_turn(&bench);
    ck_assert_int_eq(hvt_log_count("message-lost"), 1);
    expect_alive();
}
END_TEST

START_TEST(a_client_for_whom_there_is_no_descriptor_sees_its_socket_close)
{
    const struct hvi_packet_msg msg = {
        .kind = HVI_PACKET_ENGINE_ADOPT,
        .engine_adopt = {
            .session = 9, .attach = (unsigned char[]){0}, .attach_bytes = 1, .pid = 1}};
    int pair[2];

    hvt_log_open();
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    hvt_node_send(&node, &msg, &pair[1], 1);
    close(pair[1]);
    const struct rlimit before = hvt_forbid_fds();
    hvt_bench_turn(&bench);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &before), 0);
    ck_assert_int_eq(hvt_log_count("message-lost"), 1);
    struct pollfd client = {.fd = pair[0], .events = POLLIN};
    ck_assert_int_eq(poll(&client, 1, 1000), 1);
    ck_assert(client.revents & POLLHUP);
    close(pair[0]);
    expect_alive();
}
END_TEST

/* hvdd says after its time that the engine has not answered. */
START_TEST(an_answer_that_the_link_cannot_take_is_lost_and_the_next_one_is_not)
{
    static unsigned char bytes[1024];
    const struct hvi_packet_msg msg = {.kind = HVI_PACKET_ENGINE_QUERY,
                                       .engine_query = {.request = 6, .what = HVI_QUERY_ALIVE}};

    hvt_log_open();
    while (send(bench.engine->link_fd, bytes, sizeof bytes, MSG_DONTWAIT) > 0)
        continue;
    hvt_node_send(&node, &msg, NULL, 0);
    hvt_bench_turn(&bench);
    ck_assert_int_eq(hvt_log_count("report-lost"), 1);
    while (recv(bench.link, bytes, sizeof bytes, MSG_DONTWAIT) > 0)
        continue;
    expect_alive();
}
END_TEST

/* hvdd has a copy of the client's socket, and asks the next engine when this one has ended. */
START_TEST(an_engine_that_is_ending_takes_nobody_over_and_says_nothing)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_ENGINE_STOP,
                                 .engine_stop = {.reason = "enough"}};
    int pair[2];

    hvt_node_send(&node, &msg, NULL, 0);
    hvt_bench_turn(&bench);
    ck_assert(bench.engine->sessions.stopping);
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    int fds[2] = {pair[1], open("/dev/null", O_RDONLY | O_CLOEXEC)};
    msg = (struct hvi_packet_msg){
        .kind = HVI_PACKET_ENGINE_ADOPT,
        .engine_adopt = {
            .session = 9, .attach = (unsigned char[]){0}, .attach_bytes = 1, .pid = 1}};
    hvt_node_send(&node, &msg, fds, 2);
    hvt_bench_turn(&bench);
    struct pollfd client = {.fd = pair[0], .events = POLLIN};
    ck_assert_int_eq(poll(&client, 1, 0), 0); /* no answer, and not closed: the copy is open */
    close(fds[0]);
    close(fds[1]);
    ck_assert_int_eq(poll(&client, 1, 1000), 1);
    close(pair[0]);
}
END_TEST

/* Ranks are held for half a second at most until it comes. */
START_TEST(an_engine_for_which_there_is_no_place_in_hvdds_queue_tries_again_at_once)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char folder[] = "/tmp/hvt-link-XXXXXX", *path = bench.engine->start.attach_path;
    int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    int first = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    uint64_t again_us, now_us;

    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(path, sizeof bench.engine->start.attach_path, "%s/attach.sock", folder);
    memcpy(address.sun_path, path, strlen(path) + 1);
    ck_assert_int_eq(bind(listener, (struct sockaddr *)&address, sizeof address), 0);
    ck_assert_int_eq(listen(listener, 0), 0);
    ck_assert_int_eq(connect(first, (struct sockaddr *)&address, sizeof address), 0);
    ck_assert_int_eq(shutdown(bench.link, SHUT_RDWR), 0);
    hvt_bench_turn(&bench);
    ck_assert_int_eq(bench.engine->link_fd, -1);
    ck_assert_int_ge(sd_event_source_set_time_relative(bench.engine->retry_source, 0), 0);
    hvt_bench_turn(&bench);
    unlink(path);
    rmdir(folder);
    ck_assert_int_ge(sd_event_source_get_time(bench.engine->retry_source, &again_us), 0);
    ck_assert_int_ge(sd_event_now(bench.engine->event, CLOCK_MONOTONIC, &now_us), 0);
    ck_assert_uint_le(again_us, now_us + 10000);
    close(first);
    close(listener);
}
END_TEST

/* ---- the share of what a user may register ---- */

static struct hvi_region region = HVI_REGION_INIT;

static void register_page(int32_t rank, uint32_t id)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_REGION_ADD};

    msg.region_add.request = ++bench.peers[rank].request;
    msg.region_add.region = id;
    msg.region_add.bytes = 4096;
    hvt_peer_send(&bench.peers[rank], &msg, region.fd);
    hvt_bench_turn(&bench);
}

static int registered(int32_t rank)
{
    struct hvi_packet_msg msg;

    ck_assert(hvt_peer_expect(&bench.peers[rank], HVI_PACKET_ACK, &msg));
    return msg.ack.status;
}

static void give_up(int32_t rank, uint32_t id)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_REGION_REMOVE};

    msg.region_remove.request = ++bench.peers[rank].request;
    msg.region_remove.region = id;
    hvt_peer_send(&bench.peers[rank], &msg, -1);
    hvt_bench_turn(&bench);
    ck_assert_int_eq(registered(rank), HVI_OK);
}

static uint64_t expect_wanted(uint64_t bytes)
{
    struct hvi_packet_msg msg;

    ck_assert(hvt_node_expect(&node, HVI_PACKET_ENGINE_REGIONS, &msg));
    ck_assert_uint_eq(msg.engine_regions.bytes, bytes);
    return msg.engine_regions.request;
}

/* A rank registers a page, for which hvdd is asked. The request. */
static uint64_t want_first_page(void)
{
    bench.engine->start.region_asks = true;
    ck_assert_int_eq(hvi_region_create("hvt", 4096, &region), HVI_OK);
    register_page(0, 1);
    return expect_wanted(4096);
}

static void tell_granted(uint64_t request, uint64_t bytes, const char *why_not)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_ENGINE_REGIONS};

    msg.engine_regions.request = request;
    msg.engine_regions.bytes = bytes;
    snprintf(msg.engine_regions.text, sizeof msg.engine_regions.text, "%s", why_not);
    hvt_node_send(&node, &msg, NULL, 0);
    hvt_bench_turn(&bench);
}

static uint64_t kept(void)
{
    struct hvi_packet_msg reply;

    ask(HVI_QUERY_ALIVE, &reply);
    uint64_t bytes = reply.engine_report.regions_granted;
    hvi_packet_msg_free(&reply);
    return bytes;
}

START_TEST(a_region_that_hvdd_has_not_granted_waits_for_its_word)
{
    uint64_t first = want_first_page();
    register_page(1, 1);
    ck_assert_uint_eq(
        kept(),
        4096); /* and what the second one wants is asked for when the first has its answer */
    tell_granted(first + 1, 1 << 20, "");
    tell_granted(first, 4096, "");
    ck_assert_int_eq(registered(0), HVI_OK);
    tell_granted(expect_wanted(8192), 4096, "it is too much");
    ck_assert_int_eq(registered(1), HVI_ERR_LIMIT);
    ck_assert_uint_eq(kept(), 4096);
    give_up(0, 1);
    register_page(1, 1);
    ck_assert_int_eq(registered(1), HVI_OK); /* within the grant */
    hvi_region_fini(&region);
}
END_TEST

START_TEST(a_region_that_is_too_much_takes_none_down_that_another_rank_wants)
{
    uint64_t first = want_first_page();
    register_page(1, 1);
    register_page(1, 2);
    tell_granted(first, 0, "it is too much");
    ck_assert_int_eq(registered(0), HVI_ERR_LIMIT);
    tell_granted(expect_wanted(4096), 8192, "");
    ck_assert_int_eq(registered(1), HVI_OK);
    ck_assert_int_eq(registered(1), HVI_OK); /* within the grant */
    hvi_region_fini(&region);
}
END_TEST

START_TEST(a_region_that_is_given_up_before_its_answer_makes_the_next_one_be_asked_for)
{
    uint64_t first = want_first_page();
    register_page(1, 1);
    give_up(0, 1);
    uint64_t second = expect_wanted(4096);
    tell_granted(first, 4096, "");
    ck_assert_uint_eq(kept(), 4096);
    tell_granted(second, 4096, "");
    ck_assert_int_eq(registered(1), HVI_OK);
    hvi_region_fini(&region);
}
END_TEST

START_TEST(an_answer_about_a_region_that_was_given_up_grants_nothing)
{
    uint64_t first = want_first_page();
    give_up(0, 1);
    ck_assert_uint_eq(kept(), 0);
    tell_granted(first, 4096, "");
    register_page(0, 2);
    ck_assert_uint_gt(expect_wanted(4096), first);
    hvi_region_fini(&region);
}
END_TEST

START_TEST(regions_that_hvdd_says_nothing_of_are_registered_after_a_second_or_when_it_is_gone)
{
    want_first_page();
    ck_assert_int_ge(sd_event_source_set_time_relative(bench.engine->sessions.quota.late, 0), 0);
    hvt_bench_turn(&bench);
    ck_assert_int_eq(registered(0), HVI_OK);
    ck_assert_uint_eq(kept(), 4096);
    register_page(0, 2);
    expect_wanted(8192);
    ck_assert_int_eq(shutdown(bench.link, SHUT_RDWR), 0);
    hvt_bench_turn(&bench);
    ck_assert_int_eq(registered(0), HVI_OK);
    register_page(1, 1);
    ck_assert_int_eq(registered(1), HVI_OK);
    hvi_region_fini(&region);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine/link");
    TCase *tcase = tcase_create("link");

    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_test(tcase, hvdd_is_told_of_ranks_of_what_waits_and_of_what_was_done);
    tcase_add_test(tcase, what_hvdd_cannot_have_meant_changes_nothing);
    tcase_add_test(tcase, a_message_that_is_too_long_is_passed_over);
    tcase_add_test(tcase, a_client_for_whom_there_is_no_descriptor_sees_its_socket_close);
    tcase_add_test(tcase, an_answer_that_the_link_cannot_take_is_lost_and_the_next_one_is_not);
    tcase_add_test(tcase, an_engine_that_is_ending_takes_nobody_over_and_says_nothing);
    tcase_add_test(tcase, an_engine_for_which_there_is_no_place_in_hvdds_queue_tries_again_at_once);
    tcase_add_test(tcase, a_region_that_hvdd_has_not_granted_waits_for_its_word);
    tcase_add_test(tcase, a_region_that_is_too_much_takes_none_down_that_another_rank_wants);
    tcase_add_test(tcase,
                   a_region_that_is_given_up_before_its_answer_makes_the_next_one_be_asked_for);
    tcase_add_test(tcase, an_answer_about_a_region_that_was_given_up_grants_nothing);
    tcase_add_test(
        tcase, regions_that_hvdd_says_nothing_of_are_registered_after_a_second_or_when_it_is_gone);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
