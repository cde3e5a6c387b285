/* SPDX-License-Identifier: Apache-2.0
 * An engine of a job with ranks on other nodes, until they have met: seats 0 to 3 of this node are the ranks
 * 5, 2, 900000 and 7 of a million. The test is hvdd, the rendezvous, the trainers and the other nodes'
 * engines, as far as their connections go. */
#include "base/clock.h"
#include "base/status.h"
#include "daemon/engine/sessions/intake.h"
#include "tests/unit/engine/hvt_bench.h"
#include "tests/unit/hvt_listen.h"
#include "tests/unit/hvt_main.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define SIZE  1000000
#define SEATS 4
#define NODES 3

static const int32_t ours[SEATS] = {5, 2, 900000, 7};
static struct hvt_bench bench;
static struct hvt_node node; /* its link alone */

/* The kernel has no memory for what goes to hvdd. */
static bool no_room;

int __real_hvi_packet_send(int socket_fd, const void *bytes, size_t length, const int *fds,
                           uint32_t fd_count, uint64_t deadline_ns);
int __wrap_hvi_packet_send(int socket_fd, const void *bytes, size_t length, const int *fds,
                           uint32_t fd_count, uint64_t deadline_ns);

int __wrap_hvi_packet_send(int socket_fd, const void *bytes, size_t length, const int *fds,
                           uint32_t fd_count, uint64_t deadline_ns)
{
    if (no_room && socket_fd == bench.engine->link_fd)
        return HVI_ERR_LIMIT;
    return __real_hvi_packet_send(socket_fd, bytes, length, fds, fd_count, deadline_ns);
}

static void set_up(void)
{
    struct hvi_engine_start start = hvt_node_defaults(SIZE);

    start.seats = SEATS;
    hvt_bench_init_start(&bench, &start);
    node.link = bench.link;
}

/* ---- the other nodes ---- */

/* Its engine: net/ and the link of mesh/, in the bench's event loop. Node 1 is the bench. */
struct other {
    struct engine_net net;
    struct engine_mesh_link link;
    uint16_t port;
    int ready, messages;
};

static struct other others[NODES];
static bool others_listen, others_meet;

static void on_connected(void *user, uint32_t from, enum engine_net_purpose purpose, uint32_t lane,
                         int fd, const struct hvi_seal_keys *keys)
{
    struct other *other = user;

    (void)lane;
    ck_assert_ptr_null(keys);
    ck_assert_int_eq(purpose, ENGINE_NET_CONTROL);
    engine_mesh_link_connected(&other->link, from, fd);
}

static void on_failed(void *user, uint32_t to, enum engine_net_purpose purpose, uint32_t lane,
                      const char *text)
{
    struct other *other = user;

    (void)purpose, (void)lane;
    engine_mesh_link_failed(&other->link, to, text);
}

static void on_ready(void *user)
{
    struct other *other = user;

    other->ready++;
}

static void on_message(void *user, uint32_t from, const unsigned char *bytes, size_t length)
{
    struct other *other = user;

    (void)bytes, (void)length;
    if (from == 1)
        other->messages++;
}

static void on_left(void *user, uint32_t who)
{
    (void)user, (void)who;
}

static void on_lost(void *user, uint32_t who, const char *text)
{
    (void)user;
    ck_abort_msg("node %u: %s", who, text);
}

static const struct engine_net_calls net_calls = {on_connected, on_failed};
static const struct engine_mesh_link_calls link_calls = {on_ready, on_message, on_left, on_lost};

static void others_open(void)
{
    char text[ENGINE_NET_TEXT];

    for (int i = 0; i < NODES && !others_listen; i++) {
        struct other *other = &others[i];
        ck_assert_msg(i == 1 || engine_net_listen(&other->net, bench.engine->event, "127.0.0.1", 0,
                                                  0, &other->port, text) == HVI_OK,
                      "%s", text);
    }
    others_listen = true;
}

static void tear_down(void)
{
    for (int i = 0; i < NODES; i++) {
        if (others_meet && i != 1)
            engine_mesh_link_close(&others[i].link);
        if (others_listen && i != 1)
            engine_net_close(&others[i].net);
    }
    hvt_bench_fini(&bench);
}

static int attach(int32_t seat)
{
    return hvt_bench_attach_seat(&bench, seat, ours[seat], NULL, 0);
}

static void attach_all(void)
{
    for (int32_t seat = 0; seat < SEATS; seat++)
        ck_assert_int_eq(attach(seat), HVI_OK);
}

/* ---- the rendezvous ---- */

/* Three nodes: ours is the second. The rank that a test moves is 3 of node 0. */
static struct {
    struct hvi_engine_roster roster;
    unsigned char key[HVI_WIRE_EPOCH_KEY];
    struct hvi_node_row nodes[NODES];
} said;

/* Node 0 has the ranks 0, 1, 3, 4; node 2 has the rest. */
static void fill_said(void)
{
    static int32_t first[4], second[SEATS];
    int32_t *rest = malloc((SIZE - 8) * sizeof *rest);
    size_t count = 0;

    memset(&said, 0, sizeof said);
    memcpy(first, (const int32_t[]){0, 1, 3, 4}, sizeof first);
    memcpy(second, ours, sizeof second);
    for (int32_t rank = 6; rank < SIZE; rank++) {
        if (rank != 7 && rank != 900000)
            rest[count++] = rank;
    }
    ck_assert_uint_eq(count, SIZE - 8);
    others_open();
    others[1].port = bench.engine->rendezvous.port;
    for (int i = 0; i < NODES; i++) {
        snprintf(said.nodes[i].name, sizeof said.nodes[i].name, "h%d", i + 1);
        snprintf(said.nodes[i].address, sizeof said.nodes[i].address, "127.0.0.1");
        said.nodes[i].port = others[i].port;
    }
    said.nodes[0].ranks = first;
    said.nodes[0].rank_count = 4;
    said.nodes[1].ranks = second;
    said.nodes[1].rank_count = SEATS;
    said.nodes[2].ranks = rest;
    said.nodes[2].rank_count = count;
    said.roster = (struct hvi_engine_roster){.epoch = 77,
                                             .key = said.key,
                                             .key_bytes = sizeof said.key,
                                             .node = 1,
                                             .nodes = said.nodes,
                                             .node_count = NODES,
                                             .wire = ENGINE_NODES_WIRE_NEWEST};
}

/* Our engine learns of them; they do not answer yet. */
static void say_roster(void)
{
    fill_said();
    engine_rendezvous_roster(bench.engine, &said.roster);
    free(said.nodes[2].ranks);
}

static void start_other(uint32_t number)
{
    struct other *other = &others[number];
    struct engine_net_peer peers[NODES];
    struct engine_net_config config = {.job = bench.engine->start.job,
                                       .epoch = said.roster.epoch,
                                       .key = said.key,
                                       .node = number,
                                       .nodes = NODES,
                                       .peers = peers,
                                       .calls = &net_calls,
                                       .user = other};
    const struct engine_mesh_link_config link = {.event = bench.engine->event,
                                                 .net = &other->net,
                                                 .node = number,
                                                 .nodes = NODES,
                                                 .deadline_ns = hvi_deadline_after(HVT_DEADLINE_NS),
                                                 .calls = &link_calls,
                                                 .user = other};
    char text[ENGINE_NET_TEXT];

    for (int i = 0; i < NODES; i++)
        peers[i] = (struct engine_net_peer){
            .address = said.nodes[i].address, .port = others[i].port, .name = said.nodes[i].name};
    ck_assert_msg(engine_net_start(&other->net, &config, text) == HVI_OK, "%s", text);
    ck_assert_int_eq(engine_mesh_link_open(&other->link, &link), HVI_OK);
}

static void start_others(void)
{
    uint64_t end_ns = hvi_deadline_after(HVT_DEADLINE_NS);

    start_other(0);
    start_other(2);
    others_meet = true;
    while (bench.engine->sessions.held || others[0].ready == 0 || others[2].ready == 0) {
        ck_assert(!hvi_deadline_passed(end_ns));
        sd_event_run(bench.engine->event, 100000);
    }
}

static void meet(void)
{
    say_roster();
    start_others();
}

static void refuse(int status, const char *text)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_ENGINE_ROSTER,
                                 .engine_roster = {.status = status}};

    snprintf(msg.engine_roster.text, sizeof msg.engine_roster.text, "%s", text);
    hvt_node_send(&node, &msg, NULL, 0);
    hvt_bench_turn(&bench);
}

/* ---- what is expected ---- */

static void expect_node(void)
{
    struct hvi_packet_msg msg;

    ck_assert(hvt_node_expect(&node, HVI_PACKET_ENGINE_NODE, &msg));
    ck_assert_int_eq(msg.engine_node.size, SIZE);
    ck_assert_uint_eq(msg.engine_node.rank_count, SEATS);
    ck_assert_mem_eq(msg.engine_node.ranks, ours, sizeof ours);
    ck_assert_uint_eq(msg.engine_node.wire_oldest, ENGINE_NODES_WIRE_OLDEST);
    ck_assert_uint_eq(msg.engine_node.wire_newest, ENGINE_NODES_WIRE_NEWEST);
    ck_assert_uint_gt(msg.engine_node.port, 0);
    hvi_packet_msg_free(&msg);
}

/* The session of every rank but `except` has ended with this. */
static void expect_end(int32_t except, int status, const char *words)
{
    struct hvi_packet_msg msg;

    hvt_bench_turn(&bench);
    for (int32_t seat = 0; seat < SEATS; seat++) {
        struct hvt_peer *peer = &bench.peers[seat];
        if (seat == except || peer->socket < 0)
            continue;
        ck_assert(hvt_peer_expect(peer, HVI_PACKET_NOTICE, &msg));
        ck_assert_msg(msg.notice.status == status, "%d: %s", msg.notice.status, msg.notice.text);
        ck_assert(msg.notice.session_ended);
        ck_assert_msg(strstr(msg.notice.text, words), "'%s' is not in '%s'", words,
                      msg.notice.text);
        ck_assert(!hvt_peer_expect(peer, HVI_PACKET_NOTICE, &msg));
        ck_assert_uint_eq(peer->channel.header->session_state, HVI_SESSION_ENDED);
    }
    ck_assert(engine_sessions_are_over(&bench.engine->sessions));
}

static void submit(int32_t seat)
{
    struct hvt_peer *peer = &bench.peers[seat];
    struct hvi_submission op = hvt_peer_op(peer, HVI_KIND_ALLREDUCE, HVI_DTYPE_FLOAT32, 8, 0);

    hvt_peer_name(peer, &op, 1, "w");
    hvt_peer_submit(peer, &op);
}

static uint32_t taken(int32_t seat)
{
    uint32_t space = 0;

    ck_assert_int_eq(hvi_ring_space(&bench.peers[seat].channel.sq, &space), HVI_OK);
    return HVI_SQ_SLOTS - space;
}

/* ---- seats ---- */

START_TEST(ranks_attach_by_seat_and_keep_their_numbers)
{
    struct hvi_rank_row *rows = NULL;
    size_t count = 0;

    attach_all();
    ck_assert_int_eq(engine_rank_rows(&bench.engine->sessions, &rows, &count), HVI_OK);
    ck_assert_uint_eq(count, SEATS);
    for (int32_t seat = 0; seat < SEATS; seat++) {
        ck_assert_int_eq(rows[seat].rank, ours[seat]);
        ck_assert_int_eq(rows[seat].seat, seat);
        ck_assert_uint_eq(bench.peers[seat].channel.channel_index, (uint32_t)seat);
        ck_assert_ptr_eq(engine_rank_find(&bench.engine->sessions, ours[seat]),
                         &bench.engine->sessions.ranks[seat]);
        ck_assert_int_eq(hvi_slots_find_seat(&bench.engine->slots.map, ours[seat]), seat);
    }
    ck_assert_ptr_null(engine_rank_find(&bench.engine->sessions, 0));
    free(rows);
}
END_TEST

START_TEST(a_rank_that_has_not_come_has_no_row)
{
    struct hvi_rank_row *rows = NULL;
    size_t count = 0;

    ck_assert_int_eq(attach(2), HVI_OK);
    ck_assert_int_eq(engine_rank_rows(&bench.engine->sessions, &rows, &count), HVI_OK);
    ck_assert_uint_eq(count, 1);
    ck_assert_int_eq(rows[0].rank, 900000);
    free(rows);
}
END_TEST

static const struct {
    int32_t rank, local_rank, local_size;
    int status;
    const char *words;
} wrong[] = {
    {8, 1, 3, HVI_ERR_BAD_SIZE, "4 ranks of job 'test-job' are on this node, this rank says 3"},
    {8, 4, 4, HVI_ERR_BAD_RANK, "there is no local rank 4 among the 4 ranks"},
    {8, -1, 4, HVI_ERR_BAD_RANK, "there is no local rank -1 among"},
    {8, 0, 4, HVI_ERR_DUPLICATE_RANK, "it is rank 8 of job 'test-job', local rank 0; pid "},
    {5, 1, 4, HVI_ERR_DUPLICATE_RANK, "is rank 5, local rank 0"},
    {5, 0, 4, HVI_ERR_DUPLICATE_RANK, "rank 5 of job 'test-job' is taken: pid "},
    {SIZE, 1, 4, HVI_ERR_BAD_RANK, "there is no rank 1000000 in job"},
};

START_TEST(a_seat_that_cannot_be_is_refused)
{
    static unsigned char bytes[HVI_PACKET_BYTES_MAX];
    struct hvi_engine_adopt adopt = {.session = 50, .attach = bytes, .pid = 4711};
    struct hvt_peer peer;

    ck_assert_int_eq(attach(0), HVI_OK);
    hvt_peer_init(&peer, wrong[_i].rank, SIZE, 0);
    peer.local_rank = wrong[_i].local_rank;
    peer.local_size = wrong[_i].local_size;
    adopt.attach_bytes = hvt_peer_request(&peer, NULL, 0, bytes, sizeof bytes);
    engine_session_adopt(&bench.engine->sessions, &adopt, peer.far_socket, -1);
    peer.far_socket = -1;
    ck_assert_int_eq(hvt_peer_meet(&peer), wrong[_i].status);
    ck_assert_msg(strstr(peer.reply.text, wrong[_i].words), "%s", peer.reply.text);
    ck_assert_uint_eq(bench.engine->sessions.come, 1);
    hvt_peer_fini(&peer);
}
END_TEST

/* ---- meeting ---- */

/* Somebody listens there, and says nothing to one who has not proved that he belongs to the job. */
static bool is_silent(uint16_t port)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    char bytes[32] = "";

    ck_assert_int_eq(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    ck_assert_int_eq(send(fd, bytes, sizeof bytes, 0), sizeof bytes);
    hvt_bench_turn(&bench);
    bool silent = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT) <= 0;
    close(fd);
    return silent;
}

START_TEST(the_rendezvous_hears_of_the_node_when_its_last_rank_has_come)
{
    for (int32_t seat = 0; seat < SEATS - 1; seat++)
        ck_assert_int_eq(attach(seat), HVI_OK);
    ck_assert_uint_eq(bench.engine->rendezvous.port, 0);
    ck_assert_int_eq(attach(SEATS - 1), HVI_OK);
    expect_node();
    ck_assert(is_silent(bench.engine->rendezvous.port));
}
END_TEST

START_TEST(a_hvdd_that_does_not_read_hears_of_the_node_when_it_does)
{
    static unsigned char bytes[1024];

    for (int32_t seat = 0; seat < SEATS - 1; seat++)
        ck_assert_int_eq(attach(seat), HVI_OK);
    while (send(bench.engine->link_fd, bytes, sizeof bytes, MSG_DONTWAIT) > 0)
        continue;
    ck_assert_int_eq(attach(SEATS - 1), HVI_OK);
    ck_assert(bench.engine->rendezvous.untold);
    while (recv(bench.link, bytes, sizeof bytes, MSG_DONTWAIT) > 0)
        continue;
    hvt_bench_turn(&bench);
    ck_assert(!bench.engine->rendezvous.untold);
    expect_node();
}
END_TEST

START_TEST(what_the_kernel_has_no_memory_for_is_said_a_moment_later)
{
    const uint64_t end_ns = hvi_deadline_after(10 * (int64_t)HVI_NS_SEC);

    for (int32_t seat = 0; seat < SEATS - 1; seat++)
        ck_assert_int_eq(attach(seat), HVI_OK);
    no_room = true;
    ck_assert_int_eq(attach(SEATS - 1), HVI_OK);
    no_room = false;
    ck_assert(bench.engine->rendezvous.untold);
    while (bench.engine->rendezvous.untold) {
        ck_assert(!hvi_deadline_passed(end_ns));
        hvt_bench_turn(&bench);
    }
    expect_node();
}
END_TEST

START_TEST(what_ranks_submit_is_held_until_all_nodes_are_there)
{
    attach_all();
    submit(0);
    submit(2);
    hvt_bench_turn(&bench);
    ck_assert_uint_eq(taken(0), 1);
    ck_assert(!hvt_peer_has_completion(&bench.peers[0]));
    say_roster();
    hvt_bench_turn(&bench);
    ck_assert_uint_eq(taken(0), 1); /* they are known, and not connected */
    start_others();
    ck_assert_uint_eq(taken(0), 0);
    ck_assert_uint_eq(taken(2), 0);
    ck_assert_uint_eq(bench.engine->order.sets.by_id[0]->size, SIZE);
    ck_assert_uint_eq(bench.engine->order.sets.by_id[0]->places, SEATS);
    ck_assert_int_eq(bench.engine->order.sets.by_id[0]->ranks[0], 2);
    say_roster(); /* once more changes nothing */
    ck_assert(!bench.engine->sessions.stopping);
}
END_TEST

START_TEST(the_settings_of_ranks_that_came_before_order_hold)
{
    const struct hvi_setting settings[] = {{"HVD_CACHE_CAPACITY", "0"}};

    for (int32_t seat = 0; seat < SEATS; seat++)
        ck_assert_int_eq(hvt_bench_attach_seat(&bench, seat, ours[seat], settings, 1), HVI_OK);
    meet();
    ck_assert(!bench.engine->order.replay);
}
END_TEST

static void add_region(struct hvt_peer *peer, uint32_t region)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_REGION_ADD,
                                 .region_add = {.request = 1, .region = region}};

    ck_assert_int_eq(hvi_region_create("hvt", 4096, &peer->regions[region - 1]), HVI_OK);
    msg.region_add.bytes = peer->regions[region - 1].bytes;
    hvt_peer_send(peer, &msg, peer->regions[region - 1].fd);
    hvt_bench_turn(&bench);
    ck_assert(hvt_peer_expect(peer, HVI_PACKET_ACK, &msg));
    ck_assert_int_eq(msg.ack.status, HVI_OK);
}

static int remove_region(struct hvt_peer *peer, uint32_t region)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_REGION_REMOVE,
                                 .region_remove = {.request = 2, .region = region}};

    hvt_peer_send(peer, &msg, -1);
    hvt_bench_turn(&bench);
    ck_assert(hvt_peer_expect(peer, HVI_PACKET_ACK, &msg));
    return msg.ack.status;
}

START_TEST(a_region_that_a_held_op_names_stays_and_others_go)
{
    struct hvt_peer *peer = &bench.peers[0];

    attach_all();
    add_region(peer, 1);
    add_region(peer, 2);
    submit(0);
    struct hvi_submission op = hvt_peer_op(peer, HVI_KIND_ALLREDUCE, HVI_DTYPE_FLOAT32, 8, 2);
    hvt_peer_name(peer, &op, 2, "v");
    hvt_peer_submit(peer, &op);
    ck_assert_int_eq(remove_region(peer, 2), HVI_ERR_BUSY);
    ck_assert_int_eq(remove_region(peer, 1), HVI_OK);
    meet();
    ck_assert_int_eq(remove_region(peer, 1), HVI_ERR_NOT_FOUND);
}
END_TEST

START_TEST(what_is_waited_for_is_in_the_table_of_stalls)
{
    const struct hvi_packet_msg ask = {.kind = HVI_PACKET_ENGINE_QUERY,
                                       .engine_query = {.request = 7, .what = HVI_QUERY_STALLS}};
    struct hvi_packet_msg reply;

    ck_assert_int_eq(attach(1), HVI_OK);
    for (int i = 0; i < 4; i++) {
        static const char *const words[] = {"waits for local ranks 0,2,3 of this node",
                                            "waits for nodes: all 4 ranks of this one are here",
                                            "waits for connections to the engines of its other"};
        hvt_node_send(&node, &ask, NULL, 0);
        hvt_bench_turn(&bench);
        ck_assert(hvt_node_expect(&node, HVI_PACKET_ENGINE_REPORT, &reply));
        ck_assert_uint_eq(reply.engine_report.stall_count, i < 3 ? 1 : 0);
        if (i < 3) {
            const struct hvi_stall_row *row = &reply.engine_report.stalls[0];
            ck_assert_msg(strstr(row->tensor, words[i]), "%s", row->tensor);
            ck_assert_str_eq(row->op, "start");
            ck_assert_uint_eq(row->ready_count, i == 0 ? 1 : SEATS);
            ck_assert_int_eq(row->ready[0], i == 0 ? 2 : 5);
        }
        hvi_packet_msg_free(&reply);
        for (int32_t seat = 0; i == 0 && seat < SEATS; seat++)
            ck_assert(seat == 1 || attach(seat) == HVI_OK);
        if (i == 1)
            say_roster();
        if (i == 2)
            start_others();
    }
}
END_TEST

/* ---- what goes wrong ---- */

static void lack_the_key(void)
{
    said.roster.key_bytes = 31;
}

static void be_node_nine(void)
{
    said.roster.node = 9;
}

static void be_another_node(void)
{
    said.roster.node = 0;
}

static void swap_seats(void)
{
    said.nodes[1].ranks[0] = 2;
    said.nodes[1].ranks[1] = 5;
}

static void have_a_rank_twice(void)
{
    said.nodes[0].ranks[2] = 6;
}

static void have_a_rank_too_high(void)
{
    said.nodes[0].ranks[2] = SIZE;
}

static void have_a_rank_below_none(void)
{
    said.nodes[0].ranks[2] = -1;
}

static void lack_a_rank(void)
{
    said.nodes[2].rank_count--;
}

static void number_nodes_otherwise(void)
{
    struct hvi_node_row first = said.nodes[0];

    said.nodes[0] = said.nodes[2];
    said.nodes[2] = first;
}

static void speak_another_version(void)
{
    said.roster.wire = ENGINE_NODES_WIRE_NEWEST + 1;
}

static void (*const spoil[])(void) = {
    lack_the_key,           be_node_nine,          be_another_node,        swap_seats,
    have_a_rank_twice,      have_a_rank_too_high,  have_a_rank_below_none, lack_a_rank,
    number_nodes_otherwise, speak_another_version,
};

START_TEST(a_roster_that_cannot_be_ends_every_session)
{
    int32_t *rest;

    attach_all();
    submit(3);
    fill_said();
    rest = said.nodes[2].ranks;
    spoil[_i]();
    engine_rendezvous_roster(bench.engine, &said.roster);
    free(rest);
    expect_end(-1, HVI_ERR_DAEMON, "the list of nodes that job 'test-job' was given cannot be: ");
}
END_TEST

/* Of another transport than TCP. */
static const struct {
    const char *transport, *networks;
    bool encrypt;
    int status;
    const char *words;
} untrusted[] = {
    {"ucx", "127.0.0.0/8", true, HVI_ERR_REFUSED,
     "net-transport is ucx, which encrypts nothing, and this node (h2) is to encrypt"},
    {"ucx", "", false, HVI_ERR_REFUSED,
     "within trusted-networks (HVD_TRUSTED_NETWORKS): it is empty; list the networks"},
    {"ucx", "198.51.100.0/24", false, HVI_ERR_REFUSED,
     "within trusted-networks (HVD_TRUSTED_NETWORKS): "},
    {"pigeon", "127.0.0.0/8,::1/128", false, HVI_ERR_UNSUPPORTED,
     "on node h2: this hvdd-engine was built without \"pigeon\""},
};

START_TEST(a_transport_that_authenticates_nobody_is_for_trusted_networks)
{
    struct hvi_engine_start *start = &bench.engine->start;

    attach_all();
    snprintf(start->net_transport, sizeof start->net_transport, "%s", untrusted[_i].transport);
    snprintf(start->trusted_networks, sizeof start->trusted_networks, "%s", untrusted[_i].networks);
    start->encrypt = untrusted[_i].encrypt;
    say_roster();
    expect_end(-1, untrusted[_i].status, untrusted[_i].words);
}
END_TEST

START_TEST(a_node_outside_the_trusted_networks_is_named)
{
    attach_all();
    snprintf(bench.engine->start.net_transport, sizeof bench.engine->start.net_transport, "ucx");
    snprintf(bench.engine->start.trusted_networks, sizeof bench.engine->start.trusted_networks,
             "127.0.0.0/8,::1/128");
    fill_said();
    snprintf(said.nodes[2].address, sizeof said.nodes[2].address, "192.0.2.3");
    engine_rendezvous_roster(bench.engine, &said.roster);
    free(said.nodes[2].ranks);
    expect_end(-1, HVI_ERR_REFUSED, "node h3 has the address 192.0.2.3, which is in none of them");
}
END_TEST

START_TEST(a_roster_that_was_not_asked_for_ends_every_session)
{
    ck_assert_int_eq(attach(0), HVI_OK);
    say_roster();
    hvt_bench_turn(&bench);
    ck_assert(engine_sessions_are_over(&bench.engine->sessions));
}
END_TEST

START_TEST(every_rank_learns_why_there_is_no_job)
{
    attach_all();
    submit(1);
    refuse(HVI_ERR_BAD_SIZE, "node h1 says 8 ranks, node h2 says 16");
    expect_end(-1, HVI_ERR_BAD_SIZE, "node h1 says 8 ranks, node h2 says 16");
}
END_TEST

START_TEST(a_job_that_has_met_may_still_be_called_off)
{
    attach_all();
    submit(1);
    say_roster();
    refuse(HVI_ERR_RANK_LOST, "rank 4 (pid 12) was killed by signal 9 (SIGKILL)");
    expect_end(-1, HVI_ERR_RANK_LOST, "rank 4 (pid 12) was killed by signal 9 (SIGKILL)");
}
END_TEST

/* As if it had begun to wait that long ago. */
static void age(uint64_t seconds)
{
    bench.engine->started_ns -= seconds * HVI_NS_SEC;
    if (bench.engine->rendezvous.told_ns != 0)
        bench.engine->rendezvous.told_ns -= seconds * HVI_NS_SEC;
    engine_rendezvous_tell(bench.engine);
    usleep(2000);
}

START_TEST(nodes_that_do_not_come_end_every_session_after_the_start_timeout)
{
    bench.engine->started_ns -=
        30 * HVI_NS_SEC; /* the ranks came late, and the rendezvous counts from then */
    attach_all();
    age(606); /* the rendezvous has a little longer to say who is missing */
    hvt_bench_turn(&bench);
    ck_assert(!bench.engine->sessions.stopping);
    age(2);
    expect_end(-1, HVI_ERR_NODE_LOST,
               "job 'test-job' has waited 600 s (HVD_START_TIMEOUT) for nodes: all 4 ranks of this "
               "one are here, the other 999996 of 1000000 are not");
}
END_TEST

START_TEST(a_hvdd_that_does_not_come_back_ends_a_job_whose_nodes_have_not_met)
{
    attach_all();
    bench.engine->sessions.alone = true;
    engine_rendezvous_alone(bench.engine, hvi_clock_ns() - 9 * HVI_NS_SEC);
    hvt_bench_turn(&bench);
    ck_assert(!bench.engine->sessions.stopping);
    engine_rendezvous_alone(bench.engine, hvi_clock_ns() - 10 * HVI_NS_SEC);
    usleep(2000);
    expect_end(-1, HVI_ERR_JOB_STOPPED,
               " has been gone for 10 s, and job 'test-job' still waits for nodes: ");
}
END_TEST

/* As if it had last said something that long ago; the timer comes now, `late_s` after its time. */
static void silence(double seconds, double late_s)
{
    struct engine_rendezvous *rendezvous = &bench.engine->rendezvous;

    engine_rendezvous_tell(bench.engine); /* which sets the timer */
    rendezvous->heard_ns = hvi_clock_ns() - (uint64_t)(seconds * HVI_NS_SEC);
    engine_rendezvous_tell(bench.engine);
    rendezvous->due_ns = hvi_clock_ns() - (uint64_t)(late_s * HVI_NS_SEC);
    usleep(2000);
    hvt_bench_turn(&bench);
}

START_TEST(a_hvdd_that_says_nothing_ends_a_job_whose_nodes_have_not_met)
{
    attach_all();
    engine_rendezvous_asked(bench.engine, true);
    silence(9, 0);
    ck_assert(!bench.engine->sessions.stopping);
    silence(10, 0);
    expect_end(-1, HVI_ERR_JOB_STOPPED,
               " has said nothing for 10 s, and job 'test-job' still waits for nodes: ");
}
END_TEST

START_TEST(a_hvdd_that_could_not_be_heard_or_asks_nothing_ends_no_job)
{
    attach_all();
    engine_rendezvous_asked(bench.engine, true);
    silence(30, 20); /* the engine itself stood still */
    ck_assert(!bench.engine->sessions.stopping);
    engine_rendezvous_asked(bench.engine, false); /* engine-silence = 0 */
    silence(30, 0);
    ck_assert(!bench.engine->sessions.stopping);
}
END_TEST

START_TEST(an_engine_that_is_asked_looks_each_second_whether_it_stood_still)
{
    attach_all();
    engine_rendezvous_asked(bench.engine, true);
    ck_assert_uint_le(bench.engine->rendezvous.due_ns, hvi_clock_ns() + HVI_NS_SEC);
}
END_TEST

START_TEST(a_hvdd_of_one_job_is_not_waited_for)
{
    attach_all();
    bench.engine->start.one_job = true;
    bench.engine->sessions.alone = true;
    engine_rendezvous_alone(bench.engine, hvi_clock_ns());
    usleep(2000);
    expect_end(-1, HVI_ERR_JOB_STOPPED,
               " has ended, and job 'test-job' still waits for nodes: all 4 ranks");
}
END_TEST

START_TEST(ranks_of_the_node_that_do_not_come_end_every_session_after_the_start_timeout)
{
    const struct hvi_setting settings[] = {{"HOROVOD_START_TIMEOUT", "0.05"}};
    uint64_t end_ns = hvi_deadline_after(HVT_DEADLINE_NS);

    ck_assert_int_eq(hvt_bench_attach_seat(&bench, 2, ours[2], settings, 1), HVI_OK);
    while (!bench.engine->sessions.stopping) {
        ck_assert(!hvi_deadline_passed(end_ns));
        sd_event_run(bench.engine->event, 100000);
    }
    expect_end(-1, HVI_ERR_NODE_LOST,
               "has waited 0.05 s (HVD_START_TIMEOUT) for local ranks 0,1,3 "
               "of this node, on which 4 of 1000000 ranks are");
}
END_TEST

static void leave(int32_t seat)
{
    const struct hvi_packet_msg detach = {.kind = HVI_PACKET_DETACH, .detach = {.request = 3}};

    hvt_peer_send(&bench.peers[seat], &detach, -1);
    hvt_bench_turn(&bench);
}

static void expect_farewell(int32_t seat)
{
    struct hvi_packet_msg msg;

    ck_assert(hvt_peer_expect(&bench.peers[seat], HVI_PACKET_ACK, &msg));
    ck_assert_uint_eq(msg.ack.request, 3);
    ck_assert_int_eq(msg.ack.status, HVI_OK);
}

static void expect_left_op(int32_t seat)
{
    char text[HVI_TEXT_MAX + 1];

    hvt_bench_turn(&bench);
    ck_assert_int_eq(hvt_peer_complete(&bench.peers[seat], text, sizeof text).status,
                     HVI_ERR_RANK_LEFT);
}

START_TEST(a_rank_that_leaves_before_all_have_met_stays_until_they_have)
{
    struct hvi_packet_msg msg;

    attach_all();
    submit(0);
    leave(1);
    ck_assert_uint_eq(bench.engine->sessions.attached, SEATS);
    ck_assert(!hvt_peer_has_completion(&bench.peers[0]));
    meet();
    expect_left_op(0);
    expect_farewell(1);
    do
        ck_assert(hvt_node_expect(&node, HVI_PACKET_ENGINE_SESSION, &msg));
    while (msg.engine_session.state == HVI_SESSION_STATE_ATTACHED);
    ck_assert_int_eq(msg.engine_session.rank, 2);
    ck_assert_uint_eq(msg.engine_session.state, HVI_SESSION_STATE_LEFT);
    ck_assert_uint_eq(bench.engine->sessions.attached, SEATS - 1);
}
END_TEST

START_TEST(ranks_that_all_leave_before_all_have_met_do_so_when_they_have)
{
    attach_all();
    for (int32_t seat = 0; seat < SEATS; seat++)
        leave(seat);
    ck_assert(!bench.engine->sessions.stopping);
    meet();
    hvt_bench_turn(&bench);
    for (int32_t seat = 0; seat < SEATS; seat++)
        expect_farewell(seat);
    ck_assert(engine_sessions_are_over(&bench.engine->sessions));
}
END_TEST

START_TEST(a_rank_that_leaves_is_let_go_where_there_is_no_job)
{
    attach_all();
    leave(1);
    refuse(HVI_ERR_BAD_SIZE, "node h1 says 8 ranks, node h2 says 16");
    expect_farewell(1);
    expect_end(1, HVI_ERR_BAD_SIZE, "node h1 says 8 ranks, node h2 says 16");
}
END_TEST

START_TEST(a_second_detach_is_refused)
{
    struct hvi_packet_msg msg;

    attach_all();
    leave(1);
    leave(1);
    ck_assert(hvt_peer_expect(&bench.peers[1], HVI_PACKET_NOTICE, &msg));
    ck_assert_int_eq(msg.notice.status, HVI_ERR_PROTOCOL);
    ck_assert_msg(strstr(msg.notice.text, "a second Detach"), "%s", msg.notice.text);
}
END_TEST

/* The root says that a rank of a node that is connected already has left. */
static void hear_that_one_left(void)
{
    struct hvi_packet_msg msg;
    struct hvi_mesh_packet packet = {
        .from = 0,
        .to = 1,
        .has_broken = true,
        .broken = {.status = HVI_ERR_RANK_LEFT, .culprit = 0, .text = "rank 0 on h1 has left"}};
    unsigned char *bytes;
    size_t length;

    ck_assert_int_eq(hvi_mesh_encode(&packet, &bytes, &length), HVI_OK);
    engine_mesh_message(&bench.engine->nodes.mesh, 0, bytes, length);
    engine_nodes_run(bench.engine);
    free(bytes);
    hvt_bench_turn(&bench);
    for (int32_t seat = 0; seat < SEATS; seat++) {
        ck_assert(hvt_peer_expect(&bench.peers[seat], HVI_PACKET_NOTICE, &msg));
        ck_assert_int_eq(msg.notice.status, HVI_ERR_RANK_LEFT);
        ck_assert(!msg.notice.session_ended);
    }
}

START_TEST(a_rank_of_a_faster_node_that_leaves_ends_nobody_here)
{
    attach_all();
    submit(0);
    say_roster();
    hear_that_one_left();
    ck_assert(!bench.engine->sessions.stopping);
    if (_i == 0) {
        start_others();
        expect_left_op(0);
        ck_assert_uint_eq(bench.engine->sessions.attached, SEATS);
        return;
    }
    engine_mesh_link_failed(&bench.engine->nodes.link, 2, "node 2 (h3) cannot be reached: a wall");
    expect_end(-1, HVI_ERR_NODE_LOST, "node 2 (h3) cannot be reached: a wall");
}
END_TEST

START_TEST(a_rank_that_dies_before_all_have_met_ends_the_others)
{
    uint64_t end_ns = hvi_deadline_after(HVT_DEADLINE_NS);

    attach_all();
    close(bench.peers[2].socket);
    bench.peers[2].socket = -1;
    while (!bench.engine->sessions.stopping) {
        ck_assert(!hvi_deadline_passed(end_ns));
        sd_event_run(bench.engine->event, 1000);
    }
    expect_end(2, HVI_ERR_RANK_LOST, "rank 900000 (pid ");
}
END_TEST

START_TEST(a_rank_whose_process_ends_before_it_comes_ends_the_others)
{
    const struct hvi_packet_msg fate = {.kind = HVI_PACKET_ENGINE_FATE,
                                        .engine_fate = {.rank = ours[3], .pid = 4711}};

    for (int32_t seat = 0; seat < 3; seat++)
        ck_assert_int_eq(attach(seat), HVI_OK);
    hvt_node_send(&node, &fate, NULL, 0);
    expect_end(-1, HVI_ERR_RANK_LOST, "rank 7 (pid 4711) exited with code 0 before it had called");
}
END_TEST

START_TEST(the_end_of_a_process_that_is_not_waited_for_ends_nobody)
{
    const struct hvi_packet_msg fate = {.kind = HVI_PACKET_ENGINE_FATE,
                                        .engine_fate = {.rank = 8, .pid = 4711}};

    attach_all();
    hvt_node_send(&node, &fate, NULL, 0);
    hvt_bench_turn(&bench);
    ck_assert(!bench.engine->sessions.stopping);
}
END_TEST

START_TEST(a_job_that_is_stopped_while_it_waits_ends)
{
    const struct hvi_packet_msg stop = {.kind = HVI_PACKET_ENGINE_STOP,
                                        .engine_stop = {.reason = "enough"}};

    attach_all();
    submit(0);
    hvt_node_send(&node, &stop, NULL, 0);
    expect_end(-1, HVI_ERR_JOB_STOPPED, "job 'test-job' was stopped: enough");
}
END_TEST

/* Once they have met, the others are told where it was. */
START_TEST(a_rank_that_is_lost_later_is_named_with_its_node)
{
    struct hvi_packet_msg msg;

    attach_all();
    meet();
    leave(1);
    ck_assert(hvt_peer_expect(&bench.peers[0], HVI_PACKET_NOTICE, &msg));
    ck_assert(!msg.notice.session_ended);
    ck_assert_int_eq(msg.notice.rank, 2);
    ck_assert_msg(strstr(msg.notice.text, "rank 2 on h2 (pid "), "%s", msg.notice.text);
    hvt_bench_turn(&bench);
    ck_assert_int_eq(others[0].messages, 1); /* and the root, which tells the other nodes */
}
END_TEST

/* A node that does not connect. */
START_TEST(engines_that_do_not_connect_end_every_session)
{
    attach_all();
    submit(0);
    say_roster();
    engine_mesh_link_failed(&bench.engine->nodes.link, 2, "node 2 (h3) cannot be reached: a wall");
    engine_nodes_run(bench.engine);
    expect_end(-1, HVI_ERR_NODE_LOST, "node 2 (h3) cannot be reached: a wall");
}
END_TEST

/* ---- hvdd comes and goes ---- */

START_TEST(a_restarted_hvdd_is_told_of_seats_and_of_the_node)
{
    char folder[] = "/tmp/hvt-rendezvous-XXXXXX", path[64];
    struct hvi_packet_msg msg;

    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/attach.sock", folder);
    attach_all();
    expect_node();
    engine_rendezvous_asked(bench.engine, true);
    strcpy(bench.engine->start.attach_path, path);
    int listening = hvt_listen(folder, "attach.sock", SOCK_SEQPACKET);
    shutdown(bench.link, SHUT_RDWR);
    uint64_t end_ns = hvi_deadline_after(HVT_DEADLINE_NS);
    do { /* it loses the link first, then finds the new hvdd */
        ck_assert(!hvi_deadline_passed(end_ns));
        sd_event_run(bench.engine->event, 100000);
    } while (!bench.engine->retry_source || bench.engine->link_fd < 0);
    node.link = accept(listening, NULL, NULL);
    ck_assert(hvt_node_expect(&node, HVI_PACKET_ENGINE_HELLO, &msg));
    ck_assert_int_eq(msg.engine_hello.seats, SEATS);
    ck_assert_int_eq(msg.engine_hello.size, SIZE);
    ck_assert_uint_eq(msg.engine_hello.rank_count, SEATS);
    ck_assert_int_eq(msg.engine_hello.ranks[2].rank, 900000);
    ck_assert_int_eq(msg.engine_hello.ranks[2].seat, 2);
    hvi_packet_msg_free(&msg);
    expect_node();
    ck_assert(!bench.engine->rendezvous.asked); /* perhaps its engine-silence is 0 */
    close(node.link);
    close(listening);
    unlink(path);
    rmdir(folder);
}
END_TEST

/* ---- the real program ---- */

static uint64_t cpu_ms(pid_t pid)
{
    char path[64], text[1024] = "";
    unsigned long user = 0, kernel = 0;

    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *in = fopen(path, "re");
    ck_assert_ptr_nonnull(in);
    ck_assert_ptr_nonnull(fgets(text, sizeof text, in));
    fclose(in);
    ck_assert_int_eq(sscanf(strrchr(text, ')'),
                            ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user,
                            &kernel),
                     2);
    return (user + kernel) * 1000 / (uint64_t)sysconf(_SC_CLK_TCK);
}

START_TEST(an_engine_that_waits_for_nodes_sleeps)
{
    struct hvi_engine_start start = hvt_node_defaults(SIZE);
    struct hvt_node real;
    struct hvt_peer peer;

    start.seats = 1;
    hvt_node_start(&real, &start);
    hvt_peer_init(&peer, 7, SIZE, 0);
    peer.local_rank = 0;
    peer.local_size = 1;
    ck_assert_int_eq(hvt_node_adopt(&real, &peer, NULL, 0), HVI_OK);
    for (int i = 0; i < 20; i++) {
        struct hvi_submission op =
            hvt_peer_op(&peer, HVI_KIND_BARRIER, HVI_DTYPE_UINT8, 0, HVI_REGION_NONE);
        hvt_peer_name(&peer, &op, (uint32_t)i, "b");
        hvt_peer_submit(&peer, &op);
    }
    usleep(100000);
    uint64_t before_ms = cpu_ms(real.pid);
    usleep(500000);
    ck_assert_uint_le(cpu_ms(real.pid) - before_ms, 50);
    ck_assert(!hvt_peer_has_completion(&peer));
    hvt_peer_fini(&peer);
    ck_assert_int_eq(hvt_node_wait(&real), 0);
    hvt_node_fini(&real);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine/rendezvous");
    TCase *tcase = tcase_create("rendezvous");
    TCase *program = tcase_create("program");

    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_test(tcase, ranks_attach_by_seat_and_keep_their_numbers);
    tcase_add_test(tcase, a_rank_that_has_not_come_has_no_row);
    tcase_add_loop_test(tcase, a_seat_that_cannot_be_is_refused, 0, sizeof wrong / sizeof wrong[0]);
    tcase_add_test(tcase, the_rendezvous_hears_of_the_node_when_its_last_rank_has_come);
    tcase_add_test(tcase, a_hvdd_that_does_not_read_hears_of_the_node_when_it_does);
    tcase_add_test(tcase, what_the_kernel_has_no_memory_for_is_said_a_moment_later);
    tcase_add_test(tcase, what_ranks_submit_is_held_until_all_nodes_are_there);
    tcase_add_test(tcase, the_settings_of_ranks_that_came_before_order_hold);
    tcase_add_test(tcase, a_region_that_a_held_op_names_stays_and_others_go);
    tcase_add_test(tcase, what_is_waited_for_is_in_the_table_of_stalls);
    tcase_add_loop_test(tcase, a_roster_that_cannot_be_ends_every_session, 0,
                        sizeof spoil / sizeof spoil[0]);
    tcase_add_test(tcase, a_roster_that_was_not_asked_for_ends_every_session);
    tcase_add_loop_test(tcase, a_transport_that_authenticates_nobody_is_for_trusted_networks, 0, 4);
    tcase_add_test(tcase, a_node_outside_the_trusted_networks_is_named);
    tcase_add_test(tcase, every_rank_learns_why_there_is_no_job);
    tcase_add_test(tcase, a_job_that_has_met_may_still_be_called_off);
    tcase_add_test(tcase, nodes_that_do_not_come_end_every_session_after_the_start_timeout);
    tcase_add_test(tcase, a_hvdd_that_does_not_come_back_ends_a_job_whose_nodes_have_not_met);
    tcase_add_test(tcase, a_hvdd_that_says_nothing_ends_a_job_whose_nodes_have_not_met);
    tcase_add_test(tcase, a_hvdd_that_could_not_be_heard_or_asks_nothing_ends_no_job);
    tcase_add_test(tcase, an_engine_that_is_asked_looks_each_second_whether_it_stood_still);
    tcase_add_test(tcase, a_hvdd_of_one_job_is_not_waited_for);
    tcase_add_test(tcase,
                   ranks_of_the_node_that_do_not_come_end_every_session_after_the_start_timeout);
    tcase_add_test(tcase, a_rank_that_leaves_before_all_have_met_stays_until_they_have);
    tcase_add_test(tcase, ranks_that_all_leave_before_all_have_met_do_so_when_they_have);
    tcase_add_test(tcase, a_rank_that_leaves_is_let_go_where_there_is_no_job);
    tcase_add_test(tcase, a_second_detach_is_refused);
    tcase_add_loop_test(tcase, a_rank_of_a_faster_node_that_leaves_ends_nobody_here, 0, 2);
    tcase_add_test(tcase, a_rank_that_dies_before_all_have_met_ends_the_others);
    tcase_add_test(tcase, a_rank_whose_process_ends_before_it_comes_ends_the_others);
    tcase_add_test(tcase, the_end_of_a_process_that_is_not_waited_for_ends_nobody);
    tcase_add_test(tcase, a_job_that_is_stopped_while_it_waits_ends);
    tcase_add_test(tcase, a_rank_that_is_lost_later_is_named_with_its_node);
    tcase_add_test(tcase, engines_that_do_not_connect_end_every_session);
    tcase_add_test(tcase, a_restarted_hvdd_is_told_of_seats_and_of_the_node);
    suite_add_tcase(suite, tcase);
    tcase_set_tags(program, "programs");
    tcase_add_test(program, an_engine_that_waits_for_nodes_sleeps);
    suite_add_tcase(suite, program);
    return hvt_run_suite(suite);
}
