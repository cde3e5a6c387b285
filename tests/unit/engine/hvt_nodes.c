/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/engine/hvt_nodes.h"

#include "base/clock.h"
#include "base/status.h"

#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct hvt_bench hvt_nodes[HVT_NODES];

static int32_t rank_of(uint32_t node, int32_t seat)
{
    return (int32_t)node + seat * (int32_t)HVT_NODES;
}

void hvt_nodes_start(void)
{
    struct hvi_engine_start start = hvt_node_defaults((int32_t)HVT_NODES * HVT_SEATS);

    start.seats = HVT_SEATS;
    for (uint32_t n = 0; n < HVT_NODES; n++)
        hvt_bench_init_start(&hvt_nodes[n], &start);
}

void hvt_nodes_attach(const struct hvi_setting *settings, size_t count)
{
    for (uint32_t n = 0; n < HVT_NODES; n++) {
        for (int32_t seat = 0; seat < HVT_SEATS; seat++)
            ck_assert_int_eq(
                hvt_bench_attach_seat(&hvt_nodes[n], seat, rank_of(n, seat), settings, count),
                HVI_OK);
    }
}

void hvt_nodes_introduce_benches(struct hvt_bench *const benches[HVT_NODES], int32_t seats)
{
    static unsigned char key[HVI_WIRE_EPOCH_KEY];
    int32_t ranks[HVT_NODES][HVT_SEATS];
    struct hvi_node_row rows[HVT_NODES];
    struct hvi_engine_roster roster = {.epoch = 77,
                                       .key = key,
                                       .key_bytes = sizeof key,
                                       .nodes = rows,
                                       .node_count = HVT_NODES,
                                       .wire = ENGINE_NODES_WIRE_NEWEST,
                                       .lanes = 1};

    memset(rows, 0, sizeof rows);
    for (uint32_t n = 0; n < HVT_NODES; n++) {
        for (int32_t seat = 0; seat < seats; seat++)
            ranks[n][seat] = rank_of(n, seat);
        snprintf(rows[n].name, sizeof rows[n].name, "h%u", n);
        snprintf(rows[n].address, sizeof rows[n].address, "127.0.0.1");
        rows[n].port = benches[n]->engine->rendezvous.port;
        rows[n].ranks = ranks[n];
        rows[n].rank_count = (size_t)seats;
    }
    for (uint32_t n = 0; n < HVT_NODES; n++) {
        roster.node = n;
        engine_rendezvous_roster(benches[n]->engine, &roster);
    }
}

void hvt_nodes_introduce(void)
{
    struct hvt_bench *benches[HVT_NODES];

    for (uint32_t n = 0; n < HVT_NODES; n++)
        benches[n] = &hvt_nodes[n];
    hvt_nodes_introduce_benches(benches, HVT_SEATS);
}

static bool have_met(void)
{
    bool met = true;

    for (uint32_t n = 0; n < HVT_NODES; n++)
        met = met && !hvt_nodes[n].engine->sessions.held;
    return met;
}

void hvt_nodes_open(const struct hvi_setting *settings, size_t count)
{
    hvt_nodes_start();
    hvt_nodes_attach(settings, count);
    hvt_nodes_introduce();
    hvt_nodes_until(have_met);
}

void hvt_nodes_end(uint32_t node)
{
    if (hvt_nodes[node].engine)
        hvt_bench_fini(&hvt_nodes[node]);
    hvt_nodes[node].engine = NULL;
}

void hvt_nodes_close(void)
{
    for (uint32_t n = 0; n < HVT_NODES; n++)
        hvt_nodes_end(n);
}

void hvt_nodes_turn(void)
{
    for (uint32_t n = 0; n < HVT_NODES; n++) {
        if (hvt_nodes[n].engine)
            hvt_bench_turn(&hvt_nodes[n]);
    }
    sched_yield(); /* the engines' threads */
}

void hvt_nodes_until(bool (*is_so)(void))
{
    uint64_t end_ns = hvi_deadline_after(HVT_DEADLINE_NS);

    while (!is_so()) {
        ck_assert(!hvi_deadline_passed(end_ns));
        hvt_nodes_turn();
    }
}

struct hvi_completion hvt_nodes_take(uint32_t node, int32_t seat, char *text_p, size_t text_size)
{
    struct hvt_peer *peer = &hvt_nodes[node].peers[seat];
    uint64_t end_ns = hvi_deadline_after(HVT_DEADLINE_NS);

    while (!hvt_peer_has_completion(peer)) {
        ck_assert_msg(!hvi_deadline_passed(end_ns), "rank %d: no completion", peer->rank);
        hvt_nodes_turn();
    }
    return hvt_peer_complete(peer, text_p, text_size);
}

struct hvi_completion hvt_nodes_expect(uint32_t node, int32_t seat, int status, const char *words)
{
    const int32_t rank = rank_of(node, seat);
    char text[HVI_TEXT_MAX + 1];
    struct hvi_completion done = hvt_nodes_take(node, seat, text, sizeof text);

    ck_assert_msg(done.status == status, "rank %d: status %d where %d was due: %s", rank,
                  done.status, status, text);
    ck_assert_uint_eq(done.kind, HVI_COMPLETE_DONE);
    if (words)
        ck_assert_msg(strstr(text, words), "rank %d: '%s' is not in '%s'", rank, words, text);
    return done;
}

void hvt_nodes_expect_all(int status, const char *words)
{
    for (uint32_t n = 0; n < HVT_NODES; n++) {
        for (int32_t seat = 0; seat < HVT_SEATS; seat++)
            hvt_nodes_expect(n, seat, status, words);
    }
}

void hvt_nodes_bring(uint32_t node, int32_t seat, const char *name)
{
    hvt_op_memory(&hvt_nodes[node], seat)[0] = (float)rank_of(node, seat);
    hvt_op_run(&hvt_nodes[node], seat, HVI_KIND_ALLREDUCE, 1, name, 0);
}

void hvt_nodes_expect_sums(void)
{
    const int32_t ranks = (int32_t)HVT_NODES * HVT_SEATS;

    hvt_nodes_expect_all(HVI_OK, "");
    for (uint32_t n = 0; n < HVT_NODES; n++) {
        for (int32_t seat = 0; seat < HVT_SEATS; seat++)
            ck_assert_float_eq(hvt_op_memory(&hvt_nodes[n], seat)[0],
                               (float)(ranks * (ranks - 1) / 2));
    }
}

void hvt_nodes_step(const char *name)
{
    for (uint32_t n = 0; n < HVT_NODES; n++) {
        for (int32_t seat = 0; seat < HVT_SEATS; seat++)
            hvt_nodes_bring(n, seat, name);
    }
    hvt_nodes_expect_sums();
}

bool hvt_nodes_are_replaying(void)
{
    bool live = true;

    for (uint32_t n = 0; n < HVT_NODES; n++)
        live = live && hvt_nodes[n].engine->order.schedule.live;
    return live;
}

void hvt_nodes_replay(const char *name)
{
    const int enough = 8; /* steps, for one to be known as one that repeats */

    for (int i = 0; i < enough || !hvt_nodes_are_replaying(); i++) {
        ck_assert_int_lt(i, 1000);
        hvt_nodes_step(name);
    }
}

void hvt_nodes_lose(uint32_t node, int32_t seat)
{
    struct hvt_peer *peer = &hvt_nodes[node].peers[seat];

    close(peer->socket);
    peer->socket = -1;
    hvt_nodes_turn();
}

void hvt_nodes_detach(uint32_t node, int32_t seat)
{
    const struct hvi_packet_msg detach = {.kind = HVI_PACKET_DETACH, .detach = {.request = 3}};

    hvt_peer_send(&hvt_nodes[node].peers[seat], &detach, -1);
    hvt_nodes_turn();
}

/* What hvdd has been told already is of no interest. */
static void forget_messages(uint32_t node)
{
    static unsigned char bytes[HVI_PACKET_BYTES_MAX];

    hvt_nodes_turn();
    while (recv(hvt_nodes[node].link, bytes, sizeof bytes, MSG_DONTWAIT) > 0) {
    }
}

static void turn_until_hvdd_hears(uint32_t node)
{
    struct pollfd link = {.fd = hvt_nodes[node].link, .events = POLLIN};
    uint64_t end_ns = hvi_deadline_after(HVT_DEADLINE_NS);

    while (poll(&link, 1, 0) == 0) {
        ck_assert(!hvi_deadline_passed(end_ns));
        hvt_nodes_turn();
    }
}

void hvt_nodes_ask(uint32_t node, const struct hvi_engine_query *query,
                   struct hvi_packet_msg msgs_p[HVT_NODES])
{
    const struct hvi_packet_msg ask = {.kind = HVI_PACKET_ENGINE_QUERY, .engine_query = *query};
    struct hvt_node hvdd = {.link = hvt_nodes[node].link};
    struct hvi_packet_msg msg;
    uint32_t count = 0;

    memset(msgs_p, 0, HVT_NODES * sizeof *msgs_p);
    forget_messages(node);
    hvt_node_send(&hvdd, &ask, NULL, 0);
    do {
        turn_until_hvdd_hears(node);
        ck_assert(hvt_node_expect(&hvdd, HVI_PACKET_ENGINE_REPORT, &msg));
        ck_assert_uint_lt(count++, HVT_NODES);
        ck_assert_uint_lt(msg.engine_report.span.node, HVT_NODES);
        msgs_p[msg.engine_report.span.node] = msg;
    } while (msg.engine_report.more);
    ck_assert_uint_eq(count, HVT_NODES);
}
