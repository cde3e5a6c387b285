/* SPDX-License-Identifier: Apache-2.0
 * The timeline of a job of three nodes: the test is the two other nodes, and says also what no node says. */
#include "base/status.h"
#include "daemon/engine/mesh/clock.h"
#include "daemon/engine/mesh/mesh.h"
#include "daemon/engine/watch/timeline_nodes.h"
#include "tests/unit/engine/hvt_bench.h"
#include "tests/unit/hvt_log.h"
#include "tests/unit/hvt_main.h"

#include <poll.h>
#include <sys/stat.h>

#define OURS  (1ull << 63)
#define WISH  (1ull << 62)
#define NODES 3u
#define KEPT  4096u
/* The other nodes' clocks are so much ahead. */
#define AHEAD_NS (1000 * HVI_NS_SEC)

/* What an answer begins with. */
enum { GOES_ON = 1, OVER, REFUSED };
struct head {
    uint32_t what, reserved;
};

static struct hvt_bench bench;
static struct engine_watch *watch;
static struct engine_mesh mesh;
static struct hvi_mesh_packet said[KEPT]; /* by this node */
static uint32_t said_count;
static uint32_t lost_node; /* 0: none */
static char path[] = "/tmp/hvt-timeline-XXXXXX";
static int file_fd;

/* ---- this node ---- */

static int mesh_send(void *user, uint32_t node, const unsigned char *bytes, size_t length)
{
    (void)user;
    if (node == lost_node)
        return HVI_ERR_NODE_LOST;
    ck_assert_uint_lt(said_count, KEPT);
    ck_assert_int_eq(hvi_mesh_decode(bytes, length, &said[said_count++], NULL, 0), HVI_OK);
    return HVI_OK;
}

static void meet(void)
{
    watch->mesh = &mesh;
}

static void setup(void)
{
    static const int32_t ranks[] = {0};
    static const struct engine_node nodes[NODES] = {{ranks, 1}, {NULL, 0}, {NULL, 0}};
    static const struct engine_mesh_way way = {mesh_send};
    static const struct engine_mesh_calls calls = {.broken = NULL};

    hvt_log_open();
    file_fd = mkstemp(path);
    ck_assert_int_ge(file_fd, 0);
    hvt_bench_init(&bench, 1);
    watch = &bench.engine->watch;
    ck_assert_int_eq(engine_roster_set_nodes(&bench.engine->roster, nodes, NODES, 0), HVI_OK);
    mesh = (struct engine_mesh){.roster = &bench.engine->roster, .way = &way, .calls = &calls};
}

static void teardown(void)
{
    lost_node = UINT32_MAX;
    hvt_bench_fini(&bench);
    for (uint32_t i = 0; i < said_count; i++)
        hvi_mesh_free(&said[i]);
    close(file_fd);
    unlink(path);
}

static void send_start(void)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_TIMELINE_START};

    hvt_peer_send(&bench.peers[0], &msg, file_fd);
}

static void send_stop(void)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_TIMELINE_STOP};

    hvt_peer_send(&bench.peers[0], &msg, -1);
}

static bool has_ack(void)
{
    struct pollfd pollfd = {.fd = bench.peers[0].socket, .events = POLLIN};

    hvt_bench_turn(&bench);
    return poll(&pollfd, 1, 1) == 1;
}

static void expect_ack(int status, const char *text)
{
    uint64_t deadline_ns = hvi_deadline_after(HVT_DEADLINE_NS);
    struct hvi_packet_msg msg;

    while (!has_ack())
        ck_assert(!hvi_deadline_passed(deadline_ns));
    ck_assert(hvt_peer_expect(&bench.peers[0], HVI_PACKET_ACK, &msg));
    ck_assert_int_eq(msg.ack.status, status);
    ck_assert_str_eq(msg.ack.text, text);
}

/* What the file has by now. */
static bool file_has(const char *text)
{
    struct stat stat;

    ck_assert_int_eq(fstat(file_fd, &stat), 0);
    char *bytes = calloc(1, (size_t)stat.st_size + 1);
    ck_assert_int_eq(pread(file_fd, bytes, (size_t)stat.st_size, 0), stat.st_size);
    bool has = strstr(bytes, text) != NULL;
    free(bytes);
    return has;
}

/* The latest time that the file has, in seconds since its beginning. */
static double latest(void)
{
    static char bytes[65536];
    double most = 0;

    ssize_t length = pread(file_fd, bytes, sizeof bytes - 1, 0);
    ck_assert_int_gt(length, 0);
    bytes[length] = '\0';
    for (const char *at = bytes; (at = strstr(at, "\"ts\": ")) != NULL; at++) {
        double seconds = strtod(at + strlen("\"ts\": "), NULL) / 1e6;
        most = seconds > most ? seconds : most;
    }
    return most;
}

/* ---- the other nodes ---- */

/* What node `node` is asked next. */
static const struct hvi_mesh_ask *next_ask(uint32_t node)
{
    uint64_t deadline_ns = hvi_deadline_after(HVT_DEADLINE_NS);

    for (uint32_t i = 0;; i++) {
        while (i >= said_count) {
            ck_assert_msg(!hvi_deadline_passed(deadline_ns), "node %u is not asked", node);
            has_ack();
        }
        if (said[i].to == node && said[i].has_ask) {
            said[i].to = UINT32_MAX; /* it was heard */
            return &said[i].ask;
        }
    }
}

static void answer(uint32_t node, uint64_t number, uint32_t what, const void *records,
                   size_t length)
{
    unsigned char bytes[4096];
    const struct head head = {.what = what};
    struct hvi_mesh_answer said_back = {.number = number, .report = bytes};

    memcpy(bytes, &head, sizeof head);
    if (length > 0)
        memcpy(bytes + sizeof head, records, length);
    said_back.report_bytes = sizeof head + length;
    ck_assert(engine_timeline_answered(watch, node, &said_back));
}

/* Answers the rounds of the clock; the question to begin is the next one. */
static uint64_t tell_clock(uint32_t node)
{
    struct hvi_mesh_answer clock = {.number = 0};

    for (uint32_t i = 0; i < ENGINE_MESH_CLOCK_ROUNDS; i++) {
        const struct hvi_mesh_ask *ask = next_ask(node);
        ck_assert_uint_eq(ask->query_bytes, 0);
        clock.number = ask->number;
        clock.heard_ns = clock.said_ns = hvi_clock_ns() + AHEAD_NS;
        ck_assert(engine_timeline_answered(watch, node, &clock));
    }
    return clock.number;
}

/* Whether the question is to go on; else it is to stop. */
static bool wants_more(const struct hvi_mesh_ask *ask)
{
    struct hvi_packet_msg msg;

    ck_assert_int_eq(hvi_packet_msg_decode(ask->query, ask->query_bytes, &msg, NULL, 0), HVI_OK);
    ck_assert_int_eq(msg.kind, HVI_PACKET_ENGINE_TIMELINE);
    return msg.engine_timeline.start;
}

static uint64_t begin(uint32_t node)
{
    uint64_t number = tell_clock(node);

    ck_assert(wants_more(next_ask(node)));
    answer(node, number, GOES_ON, NULL, 0);
    return number;
}

/* Goes on until the node is to stop, and says that it is over. */
static void end(uint32_t node, uint64_t number)
{
    while (wants_more(next_ask(node)))
        answer(node, number, GOES_ON, NULL, 0);
    answer(node, number, OVER, NULL, 0);
}

/* This node is asked by `from`; what it has answered, or NULL. */
static const struct hvi_mesh_answer *be_asked(uint32_t from, uint64_t number, bool start)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_ENGINE_TIMELINE};
    struct hvi_mesh_ask ask = {.number = number};
    unsigned char bytes[128];
    uint32_t before = said_count;

    msg.engine_timeline.start = start;
    msg.engine_timeline.mark_cycles = true;
    ck_assert_int_eq(hvi_packet_msg_encode(&msg, bytes, sizeof bytes, &ask.query_bytes), HVI_OK);
    ask.query = bytes;
    ck_assert(engine_timeline_asked(watch, from, &ask));
    if (said_count == before || !said[said_count - 1].has_answer)
        return NULL;
    ck_assert_uint_eq(said[said_count - 1].to, from);
    return &said[said_count - 1].answer;
}

static uint32_t what_of(const struct hvi_mesh_answer *told)
{
    struct head head;

    ck_assert_ptr_nonnull(told);
    ck_assert_uint_ge(told->report_bytes, sizeof head);
    memcpy(&head, told->report, sizeof head);
    return head.what;
}

/* ---- the node that writes ---- */

START_TEST(the_file_has_what_other_nodes_send_and_is_complete_when_they_are_over)
{
    struct {
        struct timeline_record name;
        char text[8];
        struct timeline_record begin, end;
    } records = {
        .name = {.row = 1, .bytes = 40, .what = TIMELINE_NAME, .payload = 7},
        .text = {'1', ' ', 'b', ':', ' ', 'w', '7'},
        .begin = {.row = 1, .bytes = 32, .what = TIMELINE_BEGIN, .label = TIMELINE_OP},
        .end = {.row = 1, .bytes = 32, .what = TIMELINE_END},
    };
    uint64_t number;

    records.name.ts_ns = records.begin.ts_ns = hvi_clock_ns() + AHEAD_NS;
    records.end.ts_ns = records.begin.ts_ns + 7 * HVI_NS_SEC;
    meet();
    send_start();
    number = begin(1);
    ck_assert(!has_ack()); /* node 2 does not record yet */
    ck_assert(engine_timeline_begins(watch));
    ck_assert_uint_eq(begin(2), number);
    expect_ack(HVI_OK, "");
    ck_assert(!engine_timeline_begins(watch));
    ck_assert(wants_more(next_ask(1)));
    answer(1, number, GOES_ON, &records, sizeof records);
    answer(1, number ^ 1, OVER, NULL, 0); /* of another timeline */
    send_stop();
    end(1, number);
    ck_assert(!has_ack());
    end(2, number);
    expect_ack(HVI_OK, "");
    ck_assert(file_has("1 b: w7"));
    ck_assert_double_gt(latest(), 1); /* 7 s after it began, by this node's clock */
    ck_assert_double_lt(latest(), 500);
    ck_assert_int_eq(hvt_log_count("timeline-part"), 0);
}
END_TEST

static const struct {
    struct timeline_record record;
    size_t length;
} impossible[] = {
    {{.bytes = 8, .what = TIMELINE_CYCLE}, 32},                          /* too short */
    {{.bytes = 64, .what = TIMELINE_CYCLE}, 32},                         /* cut off */
    {{.bytes = 32, .what = TIMELINE_CYCLE}, 40},                         /* with a rest */
    {{.bytes = 32, .what = TIMELINE_CYCLE, .row = TIMELINE_ROWS}, 32},   /* another's row */
    {{.bytes = 40, .what = TIMELINE_NAME, .payload = 9}, 40},            /* past its end */
    {{.bytes = 512, .what = TIMELINE_NAME, .payload = 300}, 512},        /* a long name */
    {{.bytes = 40, .what = TIMELINE_NAME, .payload = 2}, 40},            /* not UTF-8 */
    {{.bytes = 32, .what = TIMELINE_BEGIN, .label = TIMELINE_NCCL}, 32}, /* another's label */
    {{.bytes = 48, .what = TIMELINE_TOOK, .label = TIMELINE_KERNELS + 1, .payload = 16}, 48},
    {{.bytes = 40, .what = TIMELINE_TOOK, .label = TIMELINE_NCCL, .payload = 8}, 40},
    {{.bytes = 40, .what = TIMELINE_COPIED, .payload = 4}, 40},
    {{.bytes = 40, .what = TIMELINE_END, .payload = 8}, 40},
    {{.bytes = 40, .what = TIMELINE_DROPPED, .payload = 8}, 40},
    {{.bytes = 32, .what = TIMELINE_SKIP}, 32}, /* of a ring only */
};

START_TEST(a_node_that_sends_impossible_records_is_left_out_and_the_others_are_not)
{
    unsigned char bytes[1024];
    uint64_t number;

    memset(bytes, impossible[_i].record.payload == 2 ? 0xc3 : 'a', sizeof bytes);
    memcpy(bytes, &impossible[_i].record, sizeof impossible[_i].record);
    meet();
    send_start();
    number = begin(1);
    begin(2);
    expect_ack(HVI_OK, "");
    next_ask(1);
    answer(1, number, GOES_ON, bytes, impossible[_i].length);
    ck_assert_int_eq(hvt_log_count("it sent what cannot be"), 1);
    answer(1, number, GOES_ON, NULL, 0); /* it is not heard any more */
    send_stop();
    end(2, number);
    expect_ack(HVI_OK, "");
    ck_assert_int_eq(hvt_log_count("timeline-part"), 1);
}
END_TEST

START_TEST(nodes_that_refuse_or_are_gone_hold_up_nothing)
{
    uint64_t number;

    meet();
    send_start();
    number = tell_clock(1);
    next_ask(1);
    answer(1, number, REFUSED, NULL, 0);
    ck_assert_int_eq(hvt_log_count("it could not begin, or is in another timeline"), 1);
    ck_assert(!has_ack());
    engine_timeline_node_gone(watch, 2);
    expect_ack(HVI_OK, "");
    ck_assert_int_eq(hvt_log_count("it is gone"), 1);
    engine_timeline_node_gone(watch, 2);
    ck_assert_int_eq(hvt_log_count("timeline-part"), 2);
    send_stop();
    expect_ack(HVI_OK, "");
}
END_TEST

START_TEST(a_silent_node_is_waited_for_less_than_a_second)
{
    uint64_t begun_ns = hvi_clock_ns();

    meet();
    lost_node = 2;
    send_start();
    expect_ack(HVI_OK, "");
    ck_assert_uint_ge(hvi_clock_ns() - begun_ns, 800 * HVI_NS_MS);
    begun_ns = hvi_clock_ns();
    send_stop();
    expect_ack(HVI_OK, "");
    ck_assert_uint_ge(hvi_clock_ns() - begun_ns, 800 * HVI_NS_MS);
    ck_assert_int_eq(hvt_log_count("it did not answer within 0.8 s"), 1);
    ck_assert_int_eq(hvt_log_count("timeline-part"), 2);
}
END_TEST

START_TEST(a_timeline_from_before_the_nodes_met_becomes_theirs)
{
    uint64_t number;

    send_start();
    expect_ack(HVI_OK, "");
    ck_assert_uint_eq(said_count, 0);
    meet();
    engine_timeline_met(watch);
    number = begin(1);
    begin(2);
    engine_timeline_met(watch); /* once is enough */
    send_stop();
    end(1, number);
    end(2, number);
    expect_ack(HVI_OK, "");
}
END_TEST

START_TEST(another_node_may_stop_it_and_hears_when_the_file_is_complete)
{
    uint64_t number, deadline_ns = hvi_deadline_after(HVT_DEADLINE_NS);

    meet();
    send_start();
    number = begin(1);
    begin(2);
    expect_ack(HVI_OK, "");
    ck_assert_ptr_null(be_asked(2, OURS | WISH | 5, false));
    ck_assert_uint_eq(be_asked(1, OURS | WISH | 6, false)->report_bytes, 0); /* it is stopping */
    end(1, number);
    end(2, number);
    while (!said[said_count - 1].has_answer ||
           said[said_count - 1].answer.number == (OURS | WISH | 6)) {
        ck_assert(!hvi_deadline_passed(deadline_ns));
        has_ack();
    }
    ck_assert_uint_eq(said[said_count - 1].to, 2);
    ck_assert_uint_eq(said[said_count - 1].answer.number, OURS | WISH | 5);
    ck_assert_uint_eq(what_of(&said[said_count - 1].answer), OVER);
    ck_assert_uint_eq(be_asked(1, OURS | WISH | 7, false)->report_bytes, 0); /* there is none */
}
END_TEST

START_TEST(an_engine_with_nothing_left_to_do_stays_until_the_others_have_sent_theirs)
{
    uint64_t number;

    ck_assert(!engine_timeline_stays(watch));
    meet();
    send_start();
    number = begin(1);
    begin(2);
    expect_ack(HVI_OK, "");
    ck_assert(engine_timeline_stays(watch));
    end(1, number);
    ck_assert(engine_timeline_stays(watch));
    end(2, number);
    ck_assert(!engine_timeline_stays(watch));
}
END_TEST

/* As hvdd: starts one in `fd`, or stops it. */
static void hvdd_asks(int fd, uint64_t request)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_ENGINE_TIMELINE};
    unsigned char bytes[512];
    size_t length;

    msg.engine_timeline.request = request;
    msg.engine_timeline.start = fd >= 0;
    snprintf(msg.engine_timeline.path, sizeof msg.engine_timeline.path, "%s", path);
    ck_assert_int_eq(hvi_packet_msg_encode(&msg, bytes, sizeof bytes, &length), HVI_OK);
    ck_assert_int_eq(hvi_packet_send(bench.link, bytes, length, &fd, fd >= 0, 0), HVI_OK);
}

static void hvdd_hears(uint64_t request, int status)
{
    uint64_t deadline_ns = hvi_deadline_after(HVT_DEADLINE_NS);
    static struct hvi_packet packet;
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_DETACH};

    do {
        hvi_packet_msg_free(&msg);
        while (hvi_packet_receive(bench.link, &packet, 0) != HVI_OK) {
            ck_assert(!hvi_deadline_passed(deadline_ns));
            has_ack();
        }
        ck_assert_int_eq(hvi_packet_msg_decode(packet.bytes, packet.length, &msg, NULL, 0), HVI_OK);
    } while (msg.kind != HVI_PACKET_ACK);
    ck_assert_uint_eq(msg.ack.request, request);
    ck_assert_msg(msg.ack.status == status, "%s", msg.ack.text);
}

START_TEST(hvdd_starts_and_stops_one_as_a_trainer_does)
{
    uint64_t number;

    meet();
    hvdd_asks(file_fd, 5);
    number = begin(1);
    begin(2);
    hvdd_hears(5, HVI_OK);
    hvdd_asks(file_fd, 6);
    hvdd_hears(6, HVI_ERR_EXISTS);
    hvdd_asks(-1, 7);
    end(1, number);
    hvdd_asks(-1, 8);
    hvdd_hears(8, HVI_ERR_BUSY);
    end(2, number);
    hvdd_hears(7, HVI_OK);
}
END_TEST

/* ---- a node that keeps records for another one ---- */

START_TEST(a_guest_gives_its_records_to_its_host_alone)
{
    const struct hvi_mesh_answer *told;
    struct timeline_record record;

    meet();
    ck_assert_uint_eq(what_of(be_asked(1, OURS | 3, false)), REFUSED); /* there is none */
    ck_assert_uint_eq(what_of(be_asked(1, OURS | 3, true)), GOES_ON);
    ck_assert_ptr_nonnull(watch->timeline);
    engine_timeline_cycle(watch);
    ck_assert_uint_eq(what_of(be_asked(2, OURS | 3, true)), REFUSED);
    ck_assert_uint_eq(what_of(be_asked(1, OURS | 4, true)), REFUSED);
    told = be_asked(1, OURS | 3, true);
    ck_assert_uint_eq(what_of(told), GOES_ON);
    ck_assert_uint_eq(told->report_bytes, sizeof(struct head) + sizeof record);
    memcpy(&record, told->report + sizeof(struct head), sizeof record);
    ck_assert_uint_eq(record.what, TIMELINE_CYCLE);
    engine_timeline_cycle(watch);
    told = be_asked(1, OURS | 3, false);
    ck_assert_uint_eq(what_of(told), OVER);
    ck_assert_uint_eq(told->report_bytes, sizeof(struct head) + sizeof record);
    ck_assert_ptr_null(watch->timeline_alive);
}
END_TEST

START_TEST(a_guest_that_was_not_asked_for_long_sends_what_fits_and_counts_the_rest)
{
    const struct hvi_mesh_answer *told;
    uint64_t cycles = 0, dropped = 0;
    uint32_t what;

    meet();
    be_asked(1, OURS | 3, true);
    for (int i = 0; i < 150000; i++)
        engine_timeline_cycle(watch);
    do {
        told = be_asked(1, OURS | 3, false);
        what = what_of(told);
        ck_assert_uint_le(told->report_bytes, HVI_MESH_PART_MAX);
        for (size_t at = sizeof(struct head); at < told->report_bytes;) {
            struct timeline_record record;
            memcpy(&record, told->report + at, sizeof record);
            cycles += record.what == TIMELINE_CYCLE;
            dropped += record.what == TIMELINE_DROPPED ? record.number : 0;
            at += record.bytes;
        }
    } while (what == GOES_ON);
    ck_assert_uint_eq(what, OVER);
    ck_assert_uint_gt(cycles, 100000);
    ck_assert_uint_le(cycles + dropped, 150000);
}
END_TEST

START_TEST(a_guests_trainer_that_stops_it_is_answered_by_the_host)
{
    meet();
    be_asked(1, OURS | 3, true);
    send_stop();
    const uint64_t wish = next_ask(1)->number;
    ck_assert_uint_eq(wish >> 62, 3);
    answer(1, OURS | 3, GOES_ON, NULL, 0); /* a guest has asked nothing of that kind */
    ck_assert(!has_ack());
    const struct hvi_mesh_answer refused = {.number = wish};
    ck_assert(engine_timeline_answered(watch, 1, &refused));
    expect_ack(HVI_ERR_BUSY, "the timeline is being stopped already");
    send_stop();
    const uint64_t again = next_ask(1)->number;
    ck_assert_uint_eq(what_of(be_asked(1, OURS | 3, false)), OVER);
    answer(1, again, OVER, NULL, 0);
    expect_ack(HVI_OK, "");
    ck_assert_ptr_null(watch->timeline_alive);
    answer(1, again, OVER, NULL, 0); /* once more */
    ck_assert(!has_ack());
}
END_TEST

START_TEST(a_guest_whose_host_is_gone_ends_and_says_so)
{
    meet();
    be_asked(1, OURS | 3, true);
    send_stop();
    next_ask(1);
    engine_timeline_node_gone(watch, 2); /* not its host */
    ck_assert_ptr_nonnull(watch->timeline_alive);
    engine_timeline_node_gone(watch, 1);
    expect_ack(HVI_ERR_TIMEOUT, "the node that writes the timeline does not answer");
    ck_assert_ptr_null(watch->timeline_alive);
    ck_assert_int_eq(hvt_log_count("the node that writes the timeline is gone"), 1);
    be_asked(1, OURS | 4, true);
    lost_node = 1;
    send_stop();
    expect_ack(HVI_ERR_NODE_LOST, "the node that writes the timeline is lost");
    ck_assert_ptr_null(watch->timeline_alive);
}
END_TEST

START_TEST(a_guest_that_leaves_waits_for_its_host_less_than_a_second)
{
    uint64_t begun_ns;

    meet();
    be_asked(1, OURS | 3, true);
    engine_timeline_cycle(watch);
    ck_assert(engine_timeline_stays(watch));
    ck_assert_uint_eq(what_of(be_asked(1, OURS | 3, true)), OVER); /* although it was to go on */
    ck_assert(!engine_timeline_stays(watch));
    be_asked(1, OURS | 4, true);
    begun_ns = hvi_clock_ns();
    while (engine_timeline_stays(watch)) {
        ck_assert_uint_lt(hvi_clock_ns() - begun_ns, 10 * HVI_NS_SEC);
        has_ack();
    }
    ck_assert_uint_ge(hvi_clock_ns() - begun_ns, 800 * HVI_NS_MS);
    ck_assert_int_eq(hvt_log_count("has not asked for the last of this one's part"), 1);
}
END_TEST

START_TEST(a_guest_whose_engine_ends_leaves_nothing_behind)
{
    meet();
    be_asked(1, OURS | 3, true);
    engine_timeline_cycle(watch);
    engine_timeline_close(watch); /* as the end of the engine does */
    ck_assert_ptr_null(watch->timeline);
    ck_assert_ptr_null(watch->timeline_alive);
    ck_assert_uint_eq(what_of(be_asked(1, OURS | 3, false)), REFUSED);
}
END_TEST

START_TEST(questions_of_another_kind_are_left_to_others)
{
    unsigned char bytes[64];
    struct hvi_packet_msg other = {.kind = HVI_PACKET_DETACH};
    struct hvi_mesh_ask ask = {.number = OURS | 1};
    const struct hvi_mesh_answer told = {.number = 1};

    meet();
    ck_assert(!engine_timeline_asked(watch, 1, &ask)); /* the clock alone */
    memset(bytes, 0xff, sizeof bytes);
    ask.query = bytes;
    ask.query_bytes = sizeof bytes;
    ck_assert(!engine_timeline_asked(watch, 1, &ask));
    ck_assert_int_eq(hvi_packet_msg_encode(&other, bytes, sizeof bytes, &ask.query_bytes), HVI_OK);
    ck_assert(!engine_timeline_asked(watch, 1, &ask));
    ask.number = 1;
    ck_assert(!engine_timeline_asked(watch, 1, &ask));
    ck_assert(!engine_timeline_answered(watch, 1, &told));
    ck_assert_uint_eq(said_count, 0);
}
END_TEST

static TCase *add(Suite *suite, const char *name)
{
    TCase *tcase = tcase_create(name);

    tcase_set_timeout(tcase, 30);
    tcase_add_checked_fixture(tcase, setup, teardown);
    suite_add_tcase(suite, tcase);
    return tcase;
}

int main(void)
{
    Suite *suite = suite_create("engine/timeline_nodes");
    TCase *host = add(suite, "host"), *guest = add(suite, "guest");

    tcase_add_test(host, the_file_has_what_other_nodes_send_and_is_complete_when_they_are_over);
    tcase_add_loop_test(host,
                        a_node_that_sends_impossible_records_is_left_out_and_the_others_are_not, 0,
                        (int)(sizeof impossible / sizeof impossible[0]));
    tcase_add_test(host, nodes_that_refuse_or_are_gone_hold_up_nothing);
    tcase_add_test(host, a_silent_node_is_waited_for_less_than_a_second);
    tcase_add_test(host, a_timeline_from_before_the_nodes_met_becomes_theirs);
    tcase_add_test(host, another_node_may_stop_it_and_hears_when_the_file_is_complete);
    tcase_add_test(host, an_engine_with_nothing_left_to_do_stays_until_the_others_have_sent_theirs);
    tcase_add_test(host, hvdd_starts_and_stops_one_as_a_trainer_does);
    tcase_add_test(guest, a_guest_gives_its_records_to_its_host_alone);
    tcase_add_test(guest, a_guest_that_was_not_asked_for_long_sends_what_fits_and_counts_the_rest);
    tcase_add_test(guest, a_guests_trainer_that_stops_it_is_answered_by_the_host);
    tcase_add_test(guest, a_guest_whose_host_is_gone_ends_and_says_so);
    tcase_add_test(guest, a_guest_that_leaves_waits_for_its_host_less_than_a_second);
    tcase_add_test(guest, a_guest_whose_engine_ends_leaves_nothing_behind);
    tcase_add_test(guest, questions_of_another_kind_are_left_to_others);
    return hvt_run_suite(suite);
}
