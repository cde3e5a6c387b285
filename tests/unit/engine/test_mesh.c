/* SPDX-License-Identifier: Apache-2.0
 * Control connections between engines: several nodes in one process and one event loop, and for what stops
 * and dies, processes of their own. A raw node has net/ alone: the test plays its link. */
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "daemon/engine/mesh/link.h"
#include "daemon/engine/mesh/peer.h"
#include "tests/unit/hvt_main.h"
#include "tests/unit/hvt_process.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#define NODES    20
#define SEC      HVI_NS_SEC
#define MS       HVI_NS_MS
#define SOON     (hvi_deadline_after((int64_t)hvt_patience(5 * HVI_NS_SEC)))
#define MESSAGES 24

static const unsigned char epoch_key[ENGINE_NET_KEY_BYTES] = "the key of epoch seven";

struct node {
    struct engine_net net;
    struct engine_mesh_link link;
    bool raw, open;
    uint16_t port, shown_port; /* where it listens; what the roster says */
    int raw_fd[2];             /* of a raw node: the last connection, and the one before it */
    int raw_count;
    int ready, left, lost, messages;
    uint32_t lost_node, from;
    uint64_t lost_ns;
    char text[ENGINE_NET_TEXT];
    unsigned char next; /* what the next message begins with, counted up */
    bool disorder;
    size_t length;
    int report_fd; /* of a process of its own: where it tells what becomes of it */
};

static struct node nodes[NODES];
static uint32_t count;
static sd_event *event;

#define until(condition, deadline)                                                                 \
    do {                                                                                           \
        const uint64_t until_ns = (deadline);                                                      \
        while (!(condition)) {                                                                     \
            ck_assert_msg(!hvi_deadline_passed(until_ns), "not in time: %s", #condition);          \
            sd_event_run(event, 5000);                                                             \
        }                                                                                          \
    } while (0)

static void run_for(uint64_t ns)
{
    const uint64_t deadline_ns = hvi_deadline_after((int64_t)ns);
    while (!hvi_deadline_passed(deadline_ns))
        sd_event_run(event, 5000);
}

/* ---- what net and the link call ---- */

static void on_connected(void *user, uint32_t from, enum engine_net_purpose purpose, uint32_t lane,
                         int fd, const struct hvi_seal_keys *keys)
{
    struct node *node = user;

    (void)lane;
    ck_assert_ptr_null(keys);
    ck_assert_int_eq(purpose, ENGINE_NET_CONTROL);
    if (!node->raw) {
        engine_mesh_link_connected(&node->link, from, fd);
        return;
    }
    node->raw_fd[1] = node->raw_fd[0];
    node->raw_fd[0] = fd;
    node->raw_count++;
}

static void on_failed(void *user, uint32_t to, enum engine_net_purpose purpose, uint32_t lane,
                      const char *text)
{
    struct node *node = user;

    (void)purpose, (void)lane;
    if (!node->raw)
        engine_mesh_link_failed(&node->link, to, text);
}

static void tell(struct node *node, const char *what)
{
    if (node->report_fd > 0)
        (void)!write(node->report_fd, what, 1);
}

static void on_ready(void *user)
{
    struct node *node = user;

    node->ready++;
    tell(node, "r");
}

/* Messages hold their number in the first byte and its sum with their position in the others. */
static void on_message(void *user, uint32_t from, const unsigned char *bytes, size_t length)
{
    struct node *node = user;

    node->from = from;
    node->length = length;
    node->messages++;
    for (size_t i = 0; i < length; i++)
        node->disorder = node->disorder || bytes[i] != (unsigned char)(node->next + i);
    node->next++;
}

static void on_left(void *user, uint32_t who)
{
    struct node *node = user;

    (void)who;
    node->left++;
}

static void on_lost(void *user, uint32_t who, const char *text)
{
    struct node *node = user;

    node->lost++;
    node->lost_node = who;
    node->lost_ns = hvi_clock_ns();
    snprintf(node->text, sizeof node->text, "%s", text);
    tell(node, "l");
}

static const struct engine_net_calls net_calls = {on_connected, on_failed};
static const struct engine_mesh_link_calls link_calls = {on_ready, on_message, on_left, on_lost};

/* ---- nodes ---- */

static void listen_node(uint32_t i)
{
    struct node *node = &nodes[i];
    char text[ENGINE_NET_TEXT] = "";

    ck_assert_msg(engine_net_listen(&node->net, event, "127.0.0.1", 0, 0, &node->port, text) ==
                      HVI_OK,
                  "%s", text);
    node->open = true;
}

static void start_node(uint32_t i, uint64_t deadline_ns)
{
    struct node *node = &nodes[i];
    struct engine_net_peer peers[NODES];
    char text[ENGINE_NET_TEXT] = "";

    for (uint32_t j = 0; j < count; j++)
        peers[j] = (struct engine_net_peer){.address = "127.0.0.1",
                                            .port = nodes[j].shown_port ? nodes[j].shown_port
                                                                        : nodes[j].port,
                                            .name = "h"};
    struct engine_net_config net = {.job = "job",
                                    .epoch = 7,
                                    .key = epoch_key,
                                    .node = i,
                                    .nodes = count,
                                    .peers = peers,
                                    .calls = &net_calls,
                                    .user = node};
    ck_assert_msg(engine_net_start(&node->net, &net, text) == HVI_OK, "%s", text);
    struct engine_mesh_link_config link = {.event = event,
                                           .net = &node->net,
                                           .node = i,
                                           .nodes = count,
                                           .deadline_ns = deadline_ns,
                                           .calls = &link_calls,
                                           .user = node};
    if (!node->raw)
        ck_assert_int_eq(engine_mesh_link_open(&node->link, &link), HVI_OK);
}

static void close_node(uint32_t i)
{
    struct node *node = &nodes[i];

    if (!node->open)
        return;
    node->open = false;
    if (!node->raw && node->link.by_node)
        engine_mesh_link_close(&node->link);
    engine_net_close(&node->net);
    for (int j = 0; j < 2; j++) {
        if (node->raw_fd[j] >= 0)
            close(node->raw_fd[j]);
        node->raw_fd[j] = -1;
    }
}

static uint64_t deadline(void)
{
    return hvi_deadline_after(10 * (int64_t)SEC);
}

static void open_nodes(uint32_t how_many)
{
    count = how_many;
    for (uint32_t i = 0; i < count; i++)
        listen_node(i);
    for (uint32_t i = 0; i < count; i++)
        start_node(i, deadline());
}

static bool all_ready(void)
{
    for (uint32_t i = 0; i < count; i++) {
        if (!nodes[i].ready)
            return false;
    }
    return true;
}

static int all_lost(void)
{
    int lost = 0;

    for (uint32_t i = 0; i < count; i++)
        lost += nodes[i].lost;
    return lost;
}

static int on_first_time(sd_event_source *source, uint64_t usec, void *user)
{
    (void)source, (void)usec, (void)user;
    return 0;
}

static void make_loop(void)
{
    ck_assert_int_ge(sd_event_new(&event), 0);
    sd_event_add_time_relative(event, NULL, CLOCK_MONOTONIC, 0, 1, on_first_time, NULL);
    run_for(MS); /* its own descriptors are there before a test counts */
}

static void setup(void)
{
    make_loop();
    hvi_log_init("mesh", HVI_LOG_ERROR);
    for (uint32_t i = 0; i < NODES; i++)
        nodes[i] = (struct node){.raw_fd = {-1, -1}};
}

static void teardown(void)
{
    for (uint32_t i = 0; i < count; i++)
        close_node(i);
    sd_event_unref(event);
}

static size_t count_rows(uint32_t i)
{
    struct engine_mesh_row row;
    size_t rows = 0;

    while (engine_mesh_link_row(&nodes[i].link, rows, &row))
        rows++;
    return rows;
}

/* ---- raw nodes ---- */

static void put_frame(int fd, enum engine_mesh_kind kind, const char *body, uint32_t length)
{
    unsigned char frame[ENGINE_MESH_HEAD_BYTES + 64];

    ck_assert_uint_le(length, 64);
    engine_mesh_frame_head(frame, kind, length);
    memcpy(frame + ENGINE_MESH_HEAD_BYTES, body, length);
    ck_assert_int_eq(send(fd, frame, ENGINE_MESH_HEAD_BYTES + length, MSG_NOSIGNAL),
                     (ssize_t)(ENGINE_MESH_HEAD_BYTES + length));
}

/* Node 0 with a link, and node 1 raw, which has sent its first beat. */
static int meet_raw(void)
{
    nodes[1].raw = true;
    open_nodes(2);
    until(nodes[1].raw_count == 1, SOON);
    put_frame(nodes[1].raw_fd[0], ENGINE_MESH_BEAT, "\0\0\0\0\0\0\0", 8);
    until(nodes[0].ready == 1, SOON);
    return nodes[1].raw_fd[0];
}

static void expect_lost_at_once(const char *how)
{
    char expected[ENGINE_NET_TEXT];
    const uint64_t start_ns = hvi_clock_ns();

    until(nodes[0].lost == 1, SOON);
    ck_assert_uint_le(hvi_clock_ns() - start_ns, hvt_patience(100 * MS));
    ck_assert_uint_eq(nodes[0].lost_node, 1);
    snprintf(expected, sizeof expected, "node 1 (h) is lost: %s", how);
    ck_assert_str_eq(nodes[0].text, expected);
    run_for(50 * MS);
    ck_assert_int_eq(nodes[0].lost, 1);
    ck_assert_int_eq(engine_mesh_send(&nodes[0].link, 1, NULL, 0), HVI_ERR_NODE_LOST);
}

/* ---- who is connected ---- */

START_TEST(a_connections_state_has_these_edges_and_no_others)
{
    static const char *const legal[] = {"waiting connected", "waiting left", "waiting lost",
                                        "connected waiting", "connected up", "connected lost",
                                        "up left",           "up lost"};
    size_t found = 0;

    for (int from = 0; from < ENGINE_MESH_STATES; from++) {
        for (int to = 0; to < ENGINE_MESH_STATES; to++) {
            char edge[64];
            bool known = false;
            snprintf(edge, sizeof edge, "%s %s",
                     engine_mesh_state_text((enum engine_mesh_state)from),
                     engine_mesh_state_text((enum engine_mesh_state)to));
            for (size_t i = 0; i < sizeof legal / sizeof legal[0]; i++)
                known = known || strcmp(edge, legal[i]) == 0;
            found += known;
            ck_assert_msg(
                known == engine_mesh_edge((enum engine_mesh_state)from, (enum engine_mesh_state)to),
                "%s", edge);
        }
    }
    ck_assert_uint_eq(found, sizeof legal / sizeof legal[0]);
}
END_TEST

START_TEST(the_tree_and_the_ring_come_up_and_nothing_else)
{
    int before = hvt_count_fds();

    open_nodes(20);
    until(all_ready(), SOON);
    ck_assert_uint_eq(count_rows(0), 17); /* 1-16, 19 */
    ck_assert_uint_eq(count_rows(1), 5);  /* 0, 2, 17-19 */
    ck_assert_uint_eq(count_rows(7), 3);  /* 0, 6, 8 */
    ck_assert_uint_eq(count_rows(18), 3); /* 1, 17, 19 */
    ck_assert_int_eq(all_lost(), 0);
    for (uint32_t i = 0; i < 20; i++)
        close_node(i);
    ck_assert_int_eq(hvt_count_fds(), before);
}
END_TEST

START_TEST(other_nodes_are_connected_when_they_are_first_sent_something)
{
    unsigned char byte = 0;

    open_nodes(20);
    until(all_ready(), SOON);
    ck_assert_int_eq(engine_mesh_send(&nodes[5].link, 10, &byte, 1), HVI_OK);
    until(nodes[10].messages == 1, SOON);
    ck_assert_uint_eq(nodes[10].from, 5);
    ck_assert_int_eq(engine_mesh_send(&nodes[18].link, 3, &byte, 1), HVI_OK); /* by 1 and 0 */
    until(nodes[3].messages == 1, SOON);
    ck_assert_uint_eq(nodes[3].from, 18);
    nodes[18].next = 0;
    ck_assert_int_eq(engine_mesh_send(&nodes[3].link, 18, &byte, 1), HVI_OK);
    until(nodes[18].messages == 1, SOON);
    ck_assert_uint_eq(count_rows(18), 4);
    ck_assert_uint_eq(count_rows(0), 17);
    ck_assert_int_eq(all_lost(), 0);
}
END_TEST

/* Of a node with which only data is exchanged. */
START_TEST(a_node_that_is_used_is_connected_by_either_side_and_its_end_is_heard)
{
    open_nodes(20);
    until(all_ready(), SOON);
    ck_assert_int_eq(engine_mesh_link_use(&nodes[10].link, 5), HVI_OK); /* asks it, by 0 */
    until(count_rows(5) == 4, SOON);
    ck_assert_int_eq(engine_mesh_link_use(&nodes[5].link, 10), HVI_OK);
    ck_assert_int_eq(engine_mesh_link_use(&nodes[5].link, 0), HVI_OK); /* an edge */
    ck_assert_int_eq(engine_mesh_link_use(&nodes[6].link, 12), HVI_OK);
    ck_assert_uint_eq(count_rows(5), 4);
    ck_assert_uint_eq(count_rows(10), 4);
    until(count_rows(12) == 4, SOON);
    run_for(ENGINE_MESH_BEAT_NS); /* what is connected has been up */
    close_node(10);
    close_node(12);
    until(nodes[5].left == 1 && nodes[6].left == 1, SOON);
    ck_assert_int_eq(all_lost(), 0);
}
END_TEST

START_TEST(a_node_that_may_have_left_before_it_was_reached_is_not_missed)
{
    open_nodes(5);
    until(all_ready(), SOON);
    ck_assert_int_eq(engine_mesh_link_use(&nodes[3].link, 1), HVI_OK);
    engine_mesh_link_failed(&nodes[3].link, 1, "not reached");
    ck_assert(nodes[3].lost == 1 && nodes[3].left == 0);
    engine_mesh_link_let_leave(&nodes[4].link);
    ck_assert_int_eq(engine_mesh_link_use(&nodes[4].link, 2), HVI_OK);
    engine_mesh_link_failed(&nodes[4].link, 2, "not reached");
    ck_assert(nodes[4].lost == 0 && nodes[4].left == 1);
    ck_assert_int_eq(engine_mesh_send(&nodes[4].link, 2, NULL, 0), HVI_ERR_NODE_LOST);
}
END_TEST

START_TEST(an_edge_that_cannot_be_made_is_a_lost_node_with_both_addresses)
{
    char expected[256];

    nodes[1].raw = true;
    count = 2;
    listen_node(0);
    listen_node(1);
    snprintf(expected, sizeof expected,
             "node 1 (h) at 127.0.0.1:%u cannot be reached from 127.0.0.1: Connection refused",
             (unsigned)nodes[1].port);
    close_node(1);
    start_node(0, hvi_deadline_after((int64_t)SEC / 4));
    until(nodes[0].lost == 1, SOON);
    ck_assert_str_eq(nodes[0].text, expected);
    ck_assert_int_eq(nodes[0].ready, 0);
}
END_TEST

START_TEST(a_connection_that_is_given_up_before_a_frame_is_made_again)
{
    nodes[1].raw = true;
    open_nodes(2);
    until(nodes[1].raw_count == 1, SOON);
    close(nodes[1].raw_fd[0]);
    nodes[1].raw_fd[0] = -1;
    engine_net_gone(&nodes[1].net, 0, ENGINE_NET_CONTROL, 0);
    until(nodes[1].raw_count == 2, SOON);
    put_frame(nodes[1].raw_fd[0], ENGINE_MESH_BEAT, "\0\0\0\0\0\0\0", 8);
    until(nodes[0].ready == 1, SOON);
    ck_assert_int_eq(nodes[0].lost, 0);
}
END_TEST

/* The node that connects may do so again while the other side waits for its first frame. */
START_TEST(a_newer_connection_replaces_one_without_a_frame)
{
    nodes[0].raw = true;
    open_nodes(2);
    for (int i = 1; i <= 2; i++) {
        engine_net_gone(&nodes[0].net, 1, ENGINE_NET_CONTROL, 0);
        engine_net_connect(&nodes[0].net, 1, ENGINE_NET_CONTROL, 0, deadline());
        until(nodes[0].raw_count == i, SOON);
    }
    put_frame(nodes[0].raw_fd[0], ENGINE_MESH_BEAT, "\0\0\0\0\0\0\0", 8);
    until(nodes[1].ready == 1, SOON);
    run_for(100 * MS);
    ck_assert_int_eq(nodes[1].lost, 0);
}
END_TEST

/* ---- messages ---- */

static void fill(unsigned char *bytes, size_t length, unsigned char first)
{
    for (size_t i = 0; i < length; i++)
        bytes[i] = (unsigned char)(first + i);
}

START_TEST(messages_of_all_sizes_arrive_in_order_on_both_sides)
{
    static unsigned char bytes[ENGINE_MESH_BODY_MAX];
    size_t length[MESSAGES] = {0, 1, 2, 7, 8, 9, 63, 1000, 16375, 16376, 16377, 65536};

    for (int i = 12; i < MESSAGES; i++)
        length[i] = i < 20 ? (size_t)(i * i * 97) : ENGINE_MESH_BODY_MAX - (size_t)(23 - i) * 11;
    open_nodes(2);
    for (int side = 0; side < 2; side++) { /* before it is up, too */
        for (unsigned char i = 0; i < MESSAGES; i++) {
            fill(bytes, length[i], i);
            ck_assert_int_eq(engine_mesh_send(&nodes[side].link, (uint32_t)!side, bytes, length[i]),
                             HVI_OK);
            if (i == 12)
                until(all_ready(), SOON);
        }
    }
    until(nodes[0].messages == MESSAGES && nodes[1].messages == MESSAGES, SOON);
    for (int side = 0; side < 2; side++) {
        ck_assert(!nodes[side].disorder);
        ck_assert_uint_eq(nodes[side].length, ENGINE_MESH_BODY_MAX);
        ck_assert_int_eq(nodes[side].lost, 0);
    }
}
END_TEST

START_TEST(connections_share_the_memory_for_what_they_read_and_one_keeps_it_for_a_part_of_a_frame)
{
    unsigned char beat[ENGINE_MESH_HEAD_BYTES + 8] = {0};
    int fd = meet_raw();
    const struct engine_mesh_link *link = &nodes[0].link;
    const struct engine_mesh_peer *peer = link->by_node[1];

    engine_mesh_frame_head(beat, ENGINE_MESH_BEAT, 8);
    ck_assert_ptr_nonnull(link->spare);
    ck_assert_ptr_null(peer->frames.bytes);
    ck_assert_int_eq(send(fd, beat, 11, 0), 11);
    until(peer->frames.have == 11, SOON);
    ck_assert_ptr_null(link->spare);
    const uint64_t beats = peer->row.beats;
    ck_assert_int_eq(send(fd, beat + 11, 5, 0), 5);
    until(peer->row.beats == beats + 1, SOON);
    ck_assert_ptr_nonnull(link->spare);
    ck_assert_ptr_null(peer->frames.bytes);
    ck_assert_int_eq(nodes[0].lost, 0);
}
END_TEST

START_TEST(a_node_that_does_not_read_is_lost_when_its_queue_is_full)
{
    static unsigned char bytes[ENGINE_MESH_BODY_MAX];
    int sent = 0, status;

    meet_raw();
    while ((status = engine_mesh_send(&nodes[0].link, 1, bytes, sizeof bytes)) == HVI_OK)
        ck_assert_int_lt(++sent, 64);
    ck_assert_int_eq(status, HVI_ERR_NODE_LOST);
    ck_assert_int_eq(nodes[0].lost, 0); /* the loop tells of it */
    ck_assert_int_ge(sent, 7);
    expect_lost_at_once("it does not read: 8 MiB wait to be sent to it");
}
END_TEST

/* Reads what node 0 sends, at most `most` bytes, and checks messages of `length` bytes each; returns how many
 * of them are whole. */
static int read_messages(int fd, struct engine_mesh_frames *frames, size_t most, size_t length)
{
    struct engine_mesh_frame frame;
    size_t room;
    unsigned char *into = engine_mesh_frames_room(frames, &room);
    ssize_t got = recv(fd, into, room < most ? room : most, MSG_DONTWAIT);
    int found = 0;

    if (got <= 0)
        return 0;
    engine_mesh_frames_filled(frames, (size_t)got);
    while (engine_mesh_frames_next(frames, &frame) == HVI_OK) {
        if (frame.kind != ENGINE_MESH_MESSAGE)
            continue;
        ck_assert_uint_eq(frame.length, length);
        on_message(&nodes[1], 0, frame.body, frame.length);
        found++;
    }
    return found;
}

START_TEST(what_a_slow_reader_gets_is_whole_and_in_order)
{
    enum { BYTES = 300000, ALL = 60 };
    static unsigned char bytes[BYTES];
    struct engine_mesh_frames frames = {0};
    int fd = meet_raw(), got = 0;
    const int little = 65536;
    const uint64_t end_ns = SOON;

    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &little, sizeof little);
    for (int sent = 0; got < ALL;) {
        ck_assert(!hvi_deadline_passed(end_ns));
        for (int i = 0; i < 12 && sent < ALL && sent - got < 24; i++, sent++) {
            fill(bytes, BYTES, (unsigned char)sent);
            ck_assert_int_eq(engine_mesh_send(&nodes[0].link, 1, bytes, BYTES), HVI_OK);
        }
        for (int i = 0; i < 40; i++)
            got += read_messages(fd, &frames, 50000, BYTES);
        put_frame(fd, ENGINE_MESH_BEAT, "\0\0\0\0\0\0\0", 8);
        sd_event_run(event, 1000);
    }
    ck_assert(!nodes[1].disorder);
    ck_assert_int_eq(nodes[0].lost, 0);
    engine_mesh_frames_fini(&frames);
}
END_TEST

START_TEST(a_goodbye_comes_after_the_last_message_and_is_no_loss)
{
    static unsigned char bytes[100000];

    open_nodes(2);
    until(all_ready(), SOON);
    for (unsigned char i = 0; i < 3; i++) {
        fill(bytes, sizeof bytes, i);
        ck_assert_int_eq(engine_mesh_send(&nodes[1].link, 0, bytes, sizeof bytes), HVI_OK);
    }
    close_node(1);
    until(nodes[0].left == 1, SOON);
    ck_assert_int_eq(nodes[0].messages, 3);
    ck_assert(!nodes[0].disorder);
    run_for(SEC / 2);
    ck_assert_int_eq(nodes[0].lost, 0);
    ck_assert_int_eq(engine_mesh_send(&nodes[0].link, 1, bytes, 1), HVI_ERR_NODE_LOST);
}
END_TEST

/* The goodbye lies in the socket when the node that has gone is sent something. */
START_TEST(a_goodbye_is_heard_although_sending_fails_first)
{
    unsigned char byte = 0;
    int fd = meet_raw();

    put_frame(fd, ENGINE_MESH_MESSAGE, "\0", 1);
    put_frame(fd, ENGINE_MESH_BYE, "", 0);
    close(fd);
    nodes[1].raw_fd[0] = -1;
    while (engine_mesh_send(&nodes[0].link, 1, &byte, 1) == HVI_OK)
        usleep(1000);
    ck_assert_int_eq(nodes[0].left + nodes[0].lost, 0);
    until(nodes[0].left == 1, SOON);
    ck_assert_int_eq(nodes[0].messages, 1);
    ck_assert_int_eq(nodes[0].lost, 0);
}
END_TEST

/* ---- who is gone ---- */

START_TEST(a_connection_that_ends_without_a_goodbye_is_a_lost_node_at_once)
{
    int fd = meet_raw();

    while (recv(fd, NULL, 4096, MSG_TRUNC | MSG_DONTWAIT) > 0)
        ;
    close(fd);
    nodes[1].raw_fd[0] = -1;
    expect_lost_at_once("its engine closed the control connection without a goodbye");
}
END_TEST

START_TEST(a_connection_that_is_reset_is_a_lost_node_at_once)
{
    const struct linger linger = {.l_onoff = 1};
    int fd = meet_raw();

    ck_assert_int_eq(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger), 0);
    close(fd);
    nodes[1].raw_fd[0] = -1;
    expect_lost_at_once("its engine has given up the control connection, or has ended");
}
END_TEST

START_TEST(what_is_no_frame_is_a_lost_node_at_once)
{
    static const struct {
        const char *bytes;
        size_t length;
    } bad[] = {
        {"\0\0\0\0\0\0\0\0", 8},                   /* no kind */
        {"\1\0\x10\0\1\0\0\0", 8},                 /* a message of 1 MiB and 1 byte */
        {"\0\0\0\0\1\0\0\1", 8},                   /* where zeros belong */
        {"\7\0\0\0\2\0\0\0abcdefg", 15},           /* a beat of 7 bytes */
        {"\1\0\0\0\5\0\0\0a", 9},                  /* a goodbye with a body */
        {"\x8\0\0\0\4\0\0\0\0\0\0\0\1\0\0\0", 16}, /* a lower node calls a higher */
        {"\x8\0\0\0\4\0\0\0\2\0\0\0\0\0\0\0", 16}, /* a node that does not exist calls */
    };

    int fd = meet_raw();
    ck_assert_int_eq(send(fd, bad[_i].bytes, bad[_i].length, 0), (ssize_t)bad[_i].length);
    expect_lost_at_once("it sent what is no frame of the protocol");
}
END_TEST
#define BAD_FRAMES 7

START_TEST(a_second_control_connection_is_a_lost_node)
{
    nodes[0].raw = true;
    open_nodes(2);
    engine_net_connect(&nodes[0].net, 1, ENGINE_NET_CONTROL, 0, deadline());
    until(nodes[0].raw_count == 1, SOON);
    put_frame(nodes[0].raw_fd[0], ENGINE_MESH_BEAT, "\0\0\0\0\0\0\0", 8);
    until(nodes[1].ready == 1, SOON);
    engine_net_gone(&nodes[0].net, 1, ENGINE_NET_CONTROL, 0);
    engine_net_connect(&nodes[0].net, 1, ENGINE_NET_CONTROL, 0, deadline());
    until(nodes[1].lost == 1, SOON);
    ck_assert_str_eq(nodes[1].text,
                     "node 0 (h) is lost: its engine opened a second control connection");
}
END_TEST

START_TEST(beats_keep_an_idle_connection)
{
    struct engine_mesh_row row;

    open_nodes(2);
    until(all_ready(), SOON);
    run_for(5 * SEC / 2);
    ck_assert_int_eq(all_lost(), 0);
    for (int i = 0; i < 2; i++) {
        ck_assert(engine_mesh_link_row(&nodes[i].link, 0, &row));
        ck_assert_uint_eq(row.node, (uint32_t)!i);
        ck_assert_uint_ge(row.beats, 6);
        ck_assert_uint_le(row.beats, 12);
        ck_assert_uint_gt(row.rtt_ns, 0);
        ck_assert_uint_ge(row.rtt_most_ns, row.rtt_ns);
        ck_assert_uint_gt(row.bytes_sent, 0);
        /* Beats alone: few of them are sent back. */
        ck_assert_uint_le(row.bytes_received, (row.beats + 2) * (ENGINE_MESH_HEAD_BYTES + 8));
    }
}
END_TEST

START_TEST(a_node_that_is_connected_but_silent_is_lost_and_told_so)
{
    uint64_t start_ns;
    char bytes[4096];
    int fd = meet_raw();
    ssize_t got;

    start_ns = hvi_clock_ns();
    until(nodes[0].lost == 1, SOON);
    ck_assert_uint_ge(nodes[0].lost_ns - start_ns, 13 * SEC / 10);
    ck_assert_uint_le(nodes[0].lost_ns - start_ns, hvt_patience(2 * SEC));
    ck_assert_str_eq(nodes[0].text, "node 1 (h) is lost: nothing has come from it for 1.5 s");
    while ((got = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT)) > 0)
        ;
    /* No end of file, which would wait for what is lost on the way. */
    ck_assert_int_eq(got < 0 ? errno : 0, ECONNRESET);
}
END_TEST

/* Whether a beat has come to a raw node. */
static bool take_beat(int fd, struct engine_mesh_frames *frames)
{
    struct engine_mesh_frame frame;
    size_t room;
    unsigned char *into = engine_mesh_frames_room(frames, &room);
    ssize_t got = recv(fd, into, room, MSG_DONTWAIT);
    bool beat = false;

    if (got <= 0)
        return false;
    engine_mesh_frames_filled(frames, (size_t)got);
    while (engine_mesh_frames_next(frames, &frame) == HVI_OK)
        beat = beat || frame.kind == ENGINE_MESH_BEAT;
    return beat;
}

/* Node 1 sends a beat 260 ms after each that it hears. So the timer of node 0 never comes to send one, and
 * must all the same come to look at node 2, which sends nothing after its first. */
START_TEST(beats_go_together_and_a_silent_node_is_missed_meanwhile)
{
    struct engine_mesh_frames frames = {0};
    uint64_t heard_ns = 0, shortest_ns = HVI_NEVER, start_ns;
    int heard = 0;
    bool answered = true;

    nodes[1].raw = nodes[2].raw = true;
    open_nodes(3);
    until(nodes[1].raw_count == 1 && nodes[2].raw_count == 1, SOON);
    for (int i = 1; i < 3; i++)
        put_frame(nodes[i].raw_fd[0], ENGINE_MESH_BEAT, "\0\0\0\0\0\0\0", 8);
    until(nodes[0].ready == 1, SOON);
    start_ns = hvi_clock_ns();
    while (nodes[0].lost == 0 || shortest_ns >= 295 * MS) {
        const uint64_t now_ns = hvi_clock_ns();
        ck_assert_uint_le(now_ns - start_ns, hvt_patience(8 * SEC));
        if (take_beat(nodes[1].raw_fd[0], &frames)) {
            if (++heard > 3 && now_ns - heard_ns < shortest_ns) /* 2 as the connection is made */
                shortest_ns = now_ns - heard_ns;
            heard_ns = now_ns;
            answered = false;
        } else if (!answered && now_ns - heard_ns >= 260 * MS) {
            put_frame(nodes[1].raw_fd[0], ENGINE_MESH_BEAT, "\0\0\0\0\0\0\0", 8);
            answered = true;
        }
        sd_event_run(event, 1000);
    }
    engine_mesh_frames_fini(&frames);
    ck_assert_uint_eq(nodes[0].lost_node, 2);
    ck_assert_uint_ge(nodes[0].lost_ns - start_ns, 13 * SEC / 10);
    ck_assert_uint_le(nodes[0].lost_ns - start_ns, hvt_patience(2 * SEC));
}
END_TEST

/* ---- processes ---- */

struct child {
    pid_t pid;
    int to, from; /* pipes: the roster's ports; the child's port, then what becomes of it */
};

static void read_whole(int fd, void *bytes, size_t length)
{
    ck_assert_int_eq(read(fd, bytes, length), (ssize_t)length);
}

/* A process with node i of `count`. It ends with its parent. */
static struct child spawn(uint32_t i)
{
    int to[2], from[2];

    ck_assert_int_eq(pipe(to) | pipe(from), 0);
    pid_t pid = fork();
    if (pid == 0) {
        uint16_t ports[NODES];
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(to[1]);
        make_loop();
        listen_node(i);
        (void)!write(from[1], &nodes[i].port, sizeof nodes[i].port);
        read_whole(to[0], ports, count * sizeof ports[0]);
        for (uint32_t j = 0; j < count; j++)
            nodes[j].shown_port = ports[j];
        nodes[i].report_fd = from[1];
        start_node(i, deadline());
        for (;;)
            sd_event_run(event, UINT64_MAX);
    }
    close(to[0]);
    close(from[1]);
    struct child child = {pid, to[1], from[0]};
    read_whole(child.from, &nodes[i].port, sizeof nodes[i].port);
    return child;
}

static void give_roster(const struct child *child)
{
    uint16_t ports[NODES];

    for (uint32_t j = 0; j < count; j++)
        ports[j] = nodes[j].port;
    ck_assert_int_eq(write(child->to, ports, count * sizeof ports[0]),
                     (ssize_t)(count * sizeof ports[0]));
}

/* What the child tells within the time; 0: nothing. */
static char hear(const struct child *child, uint64_t ns)
{
    struct pollfd waits = {.fd = child->from, .events = POLLIN};
    char what = 0;

    if (poll(&waits, 1, (int)(ns / MS)) == 1)
        (void)!read(child->from, &what, 1);
    return what;
}

static void end_child(struct child *child)
{
    kill(child->pid, SIGKILL);
    kill(child->pid, SIGCONT);
    hvt_wait_child(child->pid);
    close(child->to);
    close(child->from);
}

/* Node 0 here, node 1 in a process of its own; both ready. */
static struct child meet_process(void)
{
    count = 2;
    struct child child = spawn(1);
    listen_node(0);
    give_roster(&child);
    start_node(0, deadline());
    until(nodes[0].ready == 1, SOON);
    ck_assert_int_eq(hear(&child, hvt_patience(5 * SEC)), 'r');
    return child;
}

START_TEST(a_stopped_process_is_lost_within_two_seconds)
{
    struct child child = meet_process();
    uint64_t start_ns = hvi_clock_ns();

    kill(child.pid, SIGSTOP);
    until(nodes[0].lost == 1, SOON);
    ck_assert_uint_ge(nodes[0].lost_ns - start_ns, SEC);
    ck_assert_uint_le(nodes[0].lost_ns - start_ns, hvt_patience(2 * SEC));
    ck_assert_str_eq(nodes[0].text, "node 1 (h) is lost: nothing has come from it for 1.5 s");
    end_child(&child);
}
END_TEST

START_TEST(a_killed_process_is_lost_at_once)
{
    struct child child = meet_process();
    uint64_t start_ns = hvi_clock_ns();

    kill(child.pid, SIGKILL);
    until(nodes[0].lost == 1, SOON);
    ck_assert_uint_le(nodes[0].lost_ns - start_ns, hvt_patience(100 * MS));
    end_child(&child);
}
END_TEST

/* As a machine that is stopped with all that runs on it, and continued. */
START_TEST(who_stood_still_with_its_peers_loses_none_of_them)
{
    struct child children[2];

    count = 2;
    for (uint32_t i = 0; i < 2; i++)
        children[i] = spawn(i);
    for (int i = 0; i < 2; i++)
        give_roster(&children[i]);
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(hear(&children[i], hvt_patience(5 * SEC)), 'r');
    kill(children[1].pid, SIGSTOP);
    usleep(50000); /* what it has sent is read before the other stops */
    kill(children[0].pid, SIGSTOP);
    usleep(3000000);
    kill(children[0].pid, SIGCONT);
    usleep(300000);
    kill(children[1].pid, SIGCONT);
    ck_assert_int_eq(hear(&children[0], 2 * SEC), 0);
    ck_assert_int_eq(hear(&children[1], 0), 0);
    for (int i = 0; i < 2; i++)
        end_child(&children[i]);
}
END_TEST

/* The reader alone stands still for 3 s, and its peer goes on beating. */
START_TEST(who_stood_still_alone_loses_no_healthy_peer)
{
    count = 2;
    nodes[0].raw = true;
    struct child child = spawn(1);
    listen_node(0);
    give_roster(&child);
    start_node(0, deadline());
    engine_net_connect(&nodes[0].net, 1, ENGINE_NET_CONTROL, 0, deadline());
    until(nodes[0].raw_count == 1, SOON);
    for (int i = 0; i < 45; i++) {
        if (i == 3)
            kill(child.pid, SIGSTOP);
        if (i == 33)
            kill(child.pid, SIGCONT);
        put_frame(nodes[0].raw_fd[0], ENGINE_MESH_BEAT, "\0\0\0\0\0\0\0", 8);
        run_for(100 * MS);
    }
    ck_assert_int_eq(hear(&child, 0), 'r');
    ck_assert_int_eq(hear(&child, 0), 0);
    end_child(&child);
}
END_TEST

/* ---- a way that goes silent ---- */

static void pump(int from, int to)
{
    char bytes[65536];
    ssize_t got = recv(from, bytes, sizeof bytes, 0);

    if (got <= 0 || send(to, bytes, (size_t)got, MSG_NOSIGNAL) != got)
        _exit(0);
}

/* A process that forwards what comes to its port. Stopped, it drops everything and closes nothing. */
static pid_t spawn_relay(uint16_t port, uint16_t *relay_port_p)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    ck_assert_int_eq(bind(listener, (struct sockaddr *)&at, sizeof at), 0);
    ck_assert_int_eq(listen(listener, 1), 0);
    getsockname(listener, (struct sockaddr *)&at, &length);
    *relay_port_p = ntohs(at.sin_port);
    pid_t pid = fork();
    if (pid != 0) {
        close(listener);
        return pid;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int in = accept(listener, NULL, NULL), out = socket(AF_INET, SOCK_STREAM, 0);
    at.sin_port = htons(port);
    if (in < 0 || connect(out, (struct sockaddr *)&at, sizeof at) != 0)
        _exit(1);
    struct pollfd ends[2] = {{.fd = in, .events = POLLIN}, {.fd = out, .events = POLLIN}};
    for (;;) {
        poll(ends, 2, -1);
        if (ends[0].revents)
            pump(in, out);
        if (ends[1].revents)
            pump(out, in);
    }
}

START_TEST(a_way_that_goes_silent_loses_the_node_on_both_sides_within_two_seconds)
{
    count = 2;
    listen_node(0);
    listen_node(1);
    pid_t relay = spawn_relay(nodes[1].port, &nodes[1].shown_port);
    start_node(0, deadline());
    start_node(1, deadline());
    until(all_ready(), SOON);
    kill(relay, SIGSTOP);
    uint64_t start_ns = hvi_clock_ns();
    until(nodes[0].lost == 1 && nodes[1].lost == 1, SOON);
    for (int i = 0; i < 2; i++) {
        ck_assert_uint_ge(nodes[i].lost_ns - start_ns, SEC);
        ck_assert_uint_le(nodes[i].lost_ns - start_ns, hvt_patience(2 * SEC));
    }
    kill(relay, SIGKILL);
    hvt_wait_child(relay);
}
END_TEST

static TCase *loss_tests(void)
{
    TCase *tcase = tcase_create("losses");

    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, a_connection_that_ends_without_a_goodbye_is_a_lost_node_at_once);
    tcase_add_test(tcase, a_connection_that_is_reset_is_a_lost_node_at_once);
    tcase_add_loop_test(tcase, what_is_no_frame_is_a_lost_node_at_once, 0, BAD_FRAMES);
    tcase_add_test(tcase, a_second_control_connection_is_a_lost_node);
    tcase_add_test(tcase, beats_keep_an_idle_connection);
    tcase_add_test(tcase, beats_go_together_and_a_silent_node_is_missed_meanwhile);
    tcase_add_test(tcase, a_node_that_is_connected_but_silent_is_lost_and_told_so);
    tcase_add_test(tcase, a_stopped_process_is_lost_within_two_seconds);
    tcase_add_test(tcase, a_killed_process_is_lost_at_once);
    tcase_add_test(tcase, who_stood_still_with_its_peers_loses_none_of_them);
    tcase_add_test(tcase, who_stood_still_alone_loses_no_healthy_peer);
    tcase_add_test(tcase, a_way_that_goes_silent_loses_the_node_on_both_sides_within_two_seconds);
    return tcase;
}

int main(void)
{
    Suite *suite = suite_create("engine/mesh");
    TCase *tcase = tcase_create("links");

    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, a_connections_state_has_these_edges_and_no_others);
    tcase_add_test(tcase, the_tree_and_the_ring_come_up_and_nothing_else);
    tcase_add_test(tcase, other_nodes_are_connected_when_they_are_first_sent_something);
    tcase_add_test(tcase, a_node_that_is_used_is_connected_by_either_side_and_its_end_is_heard);
    tcase_add_test(tcase, a_node_that_may_have_left_before_it_was_reached_is_not_missed);
    tcase_add_test(tcase, an_edge_that_cannot_be_made_is_a_lost_node_with_both_addresses);
    tcase_add_test(tcase, a_connection_that_is_given_up_before_a_frame_is_made_again);
    tcase_add_test(tcase, a_newer_connection_replaces_one_without_a_frame);
    tcase_add_test(tcase, messages_of_all_sizes_arrive_in_order_on_both_sides);
    tcase_add_test(tcase, what_a_slow_reader_gets_is_whole_and_in_order);
    tcase_add_test(
        tcase,
        connections_share_the_memory_for_what_they_read_and_one_keeps_it_for_a_part_of_a_frame);
    tcase_add_test(tcase, a_node_that_does_not_read_is_lost_when_its_queue_is_full);
    tcase_add_test(tcase, a_goodbye_comes_after_the_last_message_and_is_no_loss);
    tcase_add_test(tcase, a_goodbye_is_heard_although_sending_fails_first);
    suite_add_tcase(suite, tcase);
    suite_add_tcase(suite, loss_tests());
    return hvt_run_suite(suite);
}
