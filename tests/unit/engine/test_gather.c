/* SPDX-License-Identifier: Apache-2.0
 * What hvdd gets of a question about a job of four nodes: the test is hvdd, and the three other nodes. */
#include "base/clock.h"
#include "base/status.h"
#include "daemon/engine/event/event.h"
#include "daemon/engine/gather.h"
#include "daemon/engine/mesh/clock.h"
#include "tests/unit/hvt_main.h"

#define NODES 4u
#define KEPT  200u

/* A report as hvdd has got it. */
struct got {
    uint64_t request, ahead_ns, rank_count, left_out, submit_ns, done_ns;
    uint32_t node, rank_node;
    bool here, more;
    char text[256], job[HVI_JOB_ID_MAX + 1];
};

static const int32_t ranks[NODES][2] = {{0, 4}, {1, 5}, {2, 6}, {3, 7}};
static struct engine_roster roster;
static struct engine_mesh mesh;
static struct engine_gathers gathers;
static struct hvi_mesh_packet said[KEPT]; /* by this node */
static uint32_t said_count;
static struct got got[KEPT];
static uint32_t got_count;
static uint32_t lost_node; /* 0: none */
static size_t own_ranks;   /* rows of this node's report */
static int hvdd;           /* what the link to hvdd says */
static int rooms;          /* how often room was awaited */
static int fills;

/* ---- the neighbours ---- */

static int mesh_send(void *user, uint32_t node, const unsigned char *bytes, size_t length)
{
    (void)user;
    if (node == lost_node)
        return HVI_ERR_NODE_LOST;
    ck_assert_uint_lt(said_count, KEPT);
    ck_assert_int_eq(hvi_mesh_decode(bytes, length, &said[said_count], NULL, 0), HVI_OK);
    ck_assert_uint_eq(said[said_count++].to, node);
    return HVI_OK;
}

static void name(void *user, uint32_t node, struct hvi_span_row *span_p)
{
    (void)user;
    span_p->node = node;
    span_p->port = 9600 + node;
    snprintf(span_p->name, sizeof span_p->name, "n%u", node);
    snprintf(span_p->address, sizeof span_p->address, "192.0.2.%u", node);
}

static void fill(void *user, const struct hvi_engine_query *query,
                 struct hvi_engine_report *report_p)
{
    (void)user;
    fills++;
    memset(report_p, 0, sizeof *report_p);
    report_p->request = query->request;
    report_p->has_span = true;
    name(NULL, roster.here, &report_p->span);
    report_p->ranks = calloc(own_ranks + 1, sizeof *report_p->ranks);
    report_p->rank_count = own_ranks;
    for (size_t i = 0; i < own_ranks; i++) {
        memset(report_p->ranks[i].text, 'x', 200);
        strcpy(report_p->ranks[i].state, "attached");
        report_p->ranks[i].pid = 1;
    }
}

static int hvdd_send(void *user, struct hvi_packet_msg *msg)
{
    const struct hvi_engine_report *report = &msg->engine_report;
    struct got *mine = &got[got_count];

    (void)user;
    ck_assert_int_eq(msg->kind, HVI_PACKET_ENGINE_REPORT);
    if (hvdd != HVI_OK)
        return hvdd;
    ck_assert_uint_lt(got_count++, KEPT);
    *mine = (struct got){.request = report->request,
                         .ahead_ns = report->span.ahead_ns,
                         .rank_count = report->rank_count,
                         .left_out = report->rows_left_out,
                         .node = report->span.node,
                         .here = report->span.here,
                         .more = report->more};
    if (report->rank_count > 0)
        mine->rank_node = report->ranks[0].node;
    if (report->trace_count > 0) {
        mine->submit_ns = report->traces[0].submit_ns;
        mine->done_ns = report->traces[0].done_ns;
    }
    snprintf(mine->text, sizeof mine->text, "%s", report->span.text);
    snprintf(mine->job, sizeof mine->job, "%s", report->span.job);
    return HVI_OK;
}

static void await_room(void *user)
{
    (void)user;
    rooms++;
}

static void setup(void)
{
    static const struct engine_mesh_way way = {mesh_send};
    static const struct engine_mesh_calls mesh_calls = {.broken = NULL};
    static const struct engine_gather_calls calls = {fill, name, hvdd_send, await_room};
    struct engine_node nodes[NODES];

    for (uint32_t i = 0; i < NODES; i++)
        nodes[i] = (struct engine_node){ranks[i], 2};
    ck_assert_int_eq(engine_roster_init(&roster, 2 * NODES, ranks[0], 2), HVI_OK);
    ck_assert_int_eq(engine_roster_set_nodes(&roster, nodes, NODES, 0), HVI_OK);
    mesh = (struct engine_mesh){.roster = &roster, .way = &way, .calls = &mesh_calls};
    gathers =
        (struct engine_gathers){.mesh = &mesh, .roster = &roster, .job = "job", .calls = &calls};
    ck_assert_int_ge(sd_event_new(&gathers.event), 0);
}

static void teardown(void)
{
    engine_gather_close(&gathers);
    ck_assert_uint_eq(gathers.count, 0);
    sd_event_unref(gathers.event);
    engine_roster_fini(&roster);
    for (uint32_t i = 0; i < said_count; i++)
        hvi_mesh_free(&said[i]);
}

static void ask(uint32_t what, int32_t rank)
{
    const struct hvi_engine_query query = {.request = 77, .what = what, .rank = rank};

    engine_gather_start(&gathers, &query);
}

/* Of node `node`, with one row of each kind; `span`: what it says which node it is. */
static size_t pack(uint32_t span, unsigned char *bytes_p, size_t size)
{
    struct hvi_rank_row row = {.rank = ranks[1][0], .pid = 1, .state = "attached", .node = 99};
    struct hvi_trace_row trace = {.tensor = "w",
                                  .op = "allreduce",
                                  .number = 1,
                                  .submit_ns = 5000,
                                  .ready_ns = 6000,
                                  .done_ns = 0};
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_ENGINE_REPORT};
    size_t length;

    msg.engine_report.ranks = &row;
    msg.engine_report.traces = &trace;
    msg.engine_report.rank_count = msg.engine_report.trace_count = 1;
    msg.engine_report.has_span = true;
    name(NULL, span, &msg.engine_report.span);
    msg.engine_report.span.here = true; /* which it is not */
    ck_assert_int_eq(hvi_packet_msg_encode(&msg, bytes_p, size, &length), HVI_OK);
    return length;
}

static void answer(uint32_t from, uint32_t span)
{
    unsigned char bytes[4096];
    struct hvi_mesh_answer said_back = {.number = gathers.last_number, .report = bytes};

    said_back.report_bytes = pack(span, bytes, sizeof bytes);
    engine_gather_answered(&gathers, from, &said_back);
}

static void answer_bytes(uint32_t from, unsigned char *bytes, size_t length)
{
    const struct hvi_mesh_answer said_back = {
        .number = gathers.last_number, .report = bytes, .report_bytes = length};

    engine_gather_answered(&gathers, from, &said_back);
}

static void expect_missing(const struct got *part, uint32_t node, const char *why)
{
    char expected[256];

    snprintf(expected, sizeof expected, "node %u (n%u) at 192.0.2.%u:%u %s", node, node, node,
             9600 + node, why);
    ck_assert_str_eq(part->text, expected);
    ck_assert_uint_eq(part->node, node);
    ck_assert_uint_eq(part->rank_count, 0);
}

/* ---- what hvdd gets ---- */

START_TEST(each_node_has_a_part_and_the_last_one_says_so)
{
    own_ranks = 2;
    ask(HVI_QUERY_RANKS, -1);
    ck_assert_uint_eq(said_count, 3);
    ck_assert_uint_gt(said[0].ask.query_bytes, 0); /* the clock is of no use for ranks */
    answer(3, 3);
    answer(1, 1);
    ck_assert_uint_eq(got_count, 3);
    ck_assert_uint_eq(gathers.count, 1);
    answer(2, 2);
    ck_assert_uint_eq(got_count, 4);
    ck_assert_uint_eq(gathers.count, 0);
    for (uint32_t i = 0; i < 4; i++) {
        ck_assert_uint_eq(got[i].request, 77);
        ck_assert_str_eq(got[i].text, "");
        ck_assert_int_eq(got[i].more, i < 3);
        ck_assert_int_eq(got[i].here, i == 0);
    }
    ck_assert_uint_eq(got[0].rank_count, 2);
    ck_assert_uint_eq(got[1].node, 3);
    ck_assert_uint_eq(got[1].rank_node, 3); /* whatever it has said */
    ck_assert_str_eq(got[1].job, "job");
    answer(1, 1); /* once more: it is late */
    ck_assert_uint_eq(got_count, 4);
}
END_TEST

START_TEST(a_node_that_is_lost_or_silent_is_named_with_its_address)
{
    uint64_t begun = hvi_clock_ns();

    lost_node = 2;
    ask(HVI_QUERY_STALLS, -1);
    ck_assert_uint_eq(got_count, 2);
    expect_missing(&got[1], 2, "is lost, or has ended already");
    answer(1, 1);
    while (gathers.count > 0) {
        ck_assert_uint_lt(hvi_clock_ns() - begun, 10 * HVI_NS_SEC);
        sd_event_run(gathers.event, 100000);
    }
    ck_assert_uint_ge(hvi_clock_ns() - begun, ENGINE_GATHER_NS);
    ck_assert_uint_eq(got_count, 4);
    expect_missing(&got[3], 3, "did not answer within 0.8 s");
    ck_assert(!got[3].more && got[2].more);
    answer(3, 3); /* too late */
    ck_assert_uint_eq(got_count, 4);
}
END_TEST

START_TEST(what_a_node_says_that_makes_no_sense_is_not_passed_on)
{
    unsigned char bytes[64] = "no packet";
    struct hvi_packet_msg other = {.kind = HVI_PACKET_DETACH, .detach = {.request = 1}};
    size_t length;

    ask(HVI_QUERY_RANKS, -1);
    answer_bytes(1, bytes, sizeof bytes);
    ck_assert_int_eq(hvi_packet_msg_encode(&other, bytes, sizeof bytes, &length), HVI_OK);
    answer(2, 3); /* it says that it is another one */
    answer_bytes(3, bytes, length);
    ck_assert_uint_eq(got_count, 4);
    for (uint32_t i = 1; i < 4; i++)
        expect_missing(&got[i], i, "answered what cannot be read");
    ask(HVI_QUERY_RANKS, -1);
    answer_bytes(1, NULL, 0);
    expect_missing(&got[5], 1, "could not say what it knows");
}
END_TEST

START_TEST(times_of_another_node_are_told_in_this_nodes_clock)
{
    struct hvi_mesh_answer clock = {.number = 1};
    const uint64_t ahead_ns = 1000 * HVI_NS_SEC, began_ns = hvi_clock_ns();

    ask(HVI_QUERY_TRACE, 5);
    ck_assert_uint_eq(said_count, 1); /* rank 5 is on node 1 */
    ck_assert_uint_eq(said[0].to, 1);
    for (uint32_t i = 0; i < ENGINE_MESH_CLOCK_ROUNDS; i++) {
        ck_assert_uint_eq(said[i].ask.query_bytes, 0);
        clock.heard_ns = clock.said_ns = hvi_clock_ns() + ahead_ns;
        engine_gather_answered(&gathers, 1, &clock);
    }
    ck_assert_uint_eq(said_count, ENGINE_MESH_CLOCK_ROUNDS + 1);
    ck_assert_uint_gt(said[ENGINE_MESH_CLOCK_ROUNDS].ask.query_bytes, 0);
    answer(1, 1);
    ck_assert_uint_eq(got_count, 1);
    ck_assert(!got[0].more && !got[0].here);
    const uint64_t took_ns = hvi_clock_ns() - began_ns; /* the error is half of a round at most */
    ck_assert_uint_le(got[0].ahead_ns - ahead_ns + took_ns, 2 * took_ns);
    ck_assert_uint_eq(got[0].submit_ns, 5000 - got[0].ahead_ns);
    ck_assert_uint_eq(got[0].done_ns, 0); /* it is not over */
    ask(HVI_QUERY_TRACE, 1000);           /* there is no such rank */
    ck_assert_uint_eq(got_count, 2);
    ck_assert(got[1].here && !got[1].more);
}
END_TEST

START_TEST(a_hvdd_that_does_not_read_gets_the_parts_later)
{
    hvdd = HVI_ERR_TIMEOUT;
    ask(HVI_QUERY_RANKS, -1);
    for (uint32_t i = 1; i < NODES; i++)
        answer(i, i);
    ck_assert_int_ge(rooms, 1);
    ck_assert(!engine_gather_flush(&gathers));
    ck_assert_uint_eq(gathers.count, 1);
    hvdd = HVI_OK;
    ck_assert(engine_gather_flush(&gathers));
    ck_assert_uint_eq(got_count, 4);
    ck_assert_uint_eq(gathers.count, 0);
    hvdd = HVI_ERR_NO_MEMORY; /* a part that cannot be sent is lost, and holds up nothing */
    ask(HVI_QUERY_RANKS, -1);
    for (uint32_t i = 1; i < NODES; i++)
        answer(i, i);
    ck_assert_uint_eq(gathers.count, 0);
}
END_TEST

START_TEST(questions_under_way_have_a_limit)
{
    for (int i = 0; i < 64; i++)
        ask(HVI_QUERY_TRACE, 5);
    ck_assert_uint_eq(gathers.count, 64);
    ask(HVI_QUERY_TRACE, 5);
    ck_assert_uint_eq(gathers.count, 64);
    ck_assert_uint_eq(said_count, 64);
    ck_assert_uint_eq(got_count, 0); /* hvdd says itself that nothing came */
}
END_TEST

/* ---- what another node gets ---- */

static struct hvi_mesh_answer *be_asked(unsigned char *query, size_t length)
{
    const struct hvi_mesh_ask asked = {.number = 9, .query = query, .query_bytes = length};

    engine_gather_asked(&gathers, 2, &asked);
    ck_assert_uint_gt(said_count, 0);
    ck_assert(said[said_count - 1].has_answer);
    ck_assert_uint_eq(said[said_count - 1].to, 2);
    ck_assert_uint_eq(said[said_count - 1].answer.number, 9);
    return &said[said_count - 1].answer;
}

START_TEST(a_node_that_asks_gets_the_clock_or_rows_or_nothing)
{
    struct hvi_packet_msg msg = {
        .kind = HVI_PACKET_ENGINE_QUERY,
        .engine_query = {.request = 5, .what = HVI_QUERY_RANKS, .rank = -1}};
    unsigned char bytes[256];
    struct hvi_mesh_answer *told;
    size_t length;

    told = be_asked(NULL, 0);
    ck_assert_uint_eq(told->report_bytes, 0);
    ck_assert(told->heard_ns > 0 && told->said_ns >= told->heard_ns);
    memset(bytes, 0xff, sizeof bytes);
    ck_assert_uint_eq(be_asked(bytes, sizeof bytes)->report_bytes, 0);
    ck_assert_int_eq(fills, 0);
    ck_assert_int_eq(hvi_packet_msg_encode(&msg, bytes, sizeof bytes, &length), HVI_OK);
    told = be_asked(bytes, length);
    ck_assert_int_eq(hvi_packet_msg_decode(told->report, told->report_bytes, &msg, NULL, 0),
                     HVI_OK);
    ck_assert_int_eq(msg.kind, HVI_PACKET_ENGINE_REPORT);
    ck_assert_uint_eq(msg.engine_report.request, 5);
    hvi_packet_msg_free(&msg);
}
END_TEST

START_TEST(rows_that_do_not_fit_are_left_out_and_counted)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_ENGINE_QUERY,
                                 .engine_query = {.what = HVI_QUERY_RANKS, .rank = -1}};
    unsigned char bytes[256];
    size_t length;

    own_ranks = 1000; /* of more than 200 bytes each */
    ck_assert_int_eq(hvi_packet_msg_encode(&msg, bytes, sizeof bytes, &length), HVI_OK);
    struct hvi_mesh_answer *told = be_asked(bytes, length);
    ck_assert_int_eq(hvi_packet_msg_decode(told->report, told->report_bytes, &msg, NULL, 0),
                     HVI_OK);
    ck_assert_uint_eq(msg.engine_report.rank_count, 500);
    ck_assert_uint_eq(msg.engine_report.rows_left_out, 500);
    hvi_packet_msg_free(&msg);
}
END_TEST

START_TEST(a_report_loses_stalls_first_and_has_an_end)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_ENGINE_REPORT};
    struct hvi_engine_report *report = &msg.engine_report;

    report->stalls = calloc(3, sizeof *report->stalls);
    report->traces = calloc(2, sizeof *report->traces);
    report->ranks = calloc(1, sizeof *report->ranks);
    report->stall_count = 3;
    report->trace_count = 2;
    report->rank_count = 1;
    for (int i = 0; i < 3; i++) {
        report->stalls[i].ready = malloc(sizeof *report->stalls[i].ready);
        report->stalls[i].missing = malloc(sizeof *report->stalls[i].missing);
    }
    ck_assert(engine_gather_halve(report));
    ck_assert_uint_eq(report->stall_count, 1);
    ck_assert_uint_eq(report->rows_left_out, 2);
    ck_assert(engine_gather_halve(report) && report->stall_count == 0);
    ck_assert(engine_gather_halve(report) && report->trace_count == 1);
    ck_assert(engine_gather_halve(report) && report->trace_count == 0);
    ck_assert(engine_gather_halve(report) && report->rank_count == 0);
    ck_assert(!engine_gather_halve(report));
    ck_assert_uint_eq(report->rows_left_out, 6);
    hvi_packet_msg_free(&msg);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine gather");
    TCase *tcase = tcase_create("gather");

    tcase_set_timeout(tcase, 30);
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, each_node_has_a_part_and_the_last_one_says_so);
    tcase_add_test(tcase, a_node_that_is_lost_or_silent_is_named_with_its_address);
    tcase_add_test(tcase, what_a_node_says_that_makes_no_sense_is_not_passed_on);
    tcase_add_test(tcase, times_of_another_node_are_told_in_this_nodes_clock);
    tcase_add_test(tcase, a_hvdd_that_does_not_read_gets_the_parts_later);
    tcase_add_test(tcase, questions_under_way_have_a_limit);
    tcase_add_test(tcase, a_node_that_asks_gets_the_clock_or_rows_or_nothing);
    tcase_add_test(tcase, rows_that_do_not_fit_are_left_out_and_counted);
    tcase_add_test(tcase, a_report_loses_stalls_first_and_has_an_end);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
