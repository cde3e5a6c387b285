/* SPDX-License-Identifier: Apache-2.0
 * Nodes of a job meet at a rendezvous: a table of answers takes the place of sockets. */
#include "daemon/gate/rendezvous.h"

#include "base/clock.h"
#include "base/status.h"
#include "tests/unit/hvt_main.h"

#define SECOND HVI_NS_SEC

/* One answer, written down: "node/registration status node-index epoch text". */
struct answer {
    uint64_t node, registration;
    int status;
    char text[HVI_TEXT_MAX + 1];
    uint64_t epoch;
    uint32_t index, wire, lanes;
    size_t nodes;
    char rows[512]; /* "name address:port r,r;..." */
    unsigned char key[HVI_WIRE_EPOCH_KEY];
};

static struct gate_rendezvous meeting;
static struct answer answers[64];
static size_t answer_count;
static unsigned char dice;

static void note(void *user, const struct gate_registrant *to,
                 const struct hvi_engine_roster *roster)
{
    struct answer *answer = &answers[answer_count++];
    size_t used = 0;

    (void)user;
    ck_assert_uint_lt(answer_count, 64);
    *answer = (struct answer){.node = to->node,
                              .registration = to->registration,
                              .status = roster->status,
                              .epoch = roster->epoch,
                              .index = roster->node,
                              .wire = roster->wire,
                              .lanes = roster->lanes,
                              .nodes = roster->node_count};
    snprintf(answer->text, sizeof(answer->text), "%s", roster->text);
    if (roster->status == HVI_OK) {
        ck_assert_uint_eq(roster->key_bytes, HVI_WIRE_EPOCH_KEY);
        memcpy(answer->key, roster->key, roster->key_bytes);
    }
    for (size_t i = 0; i < roster->node_count; i++) {
        const struct hvi_node_row *row = &roster->nodes[i];
        used += (size_t)snprintf(answer->rows + used, sizeof(answer->rows) - used, "%s %s:%u ",
                                 row->name, row->address, row->port);
        for (size_t k = 0; k < row->rank_count; k++)
            used += (size_t)snprintf(answer->rows + used, sizeof(answer->rows) - used, "%s%d",
                                     k > 0 ? "," : "", row->ranks[k]);
        used += (size_t)snprintf(answer->rows + used, sizeof(answer->rows) - used, ";");
    }
}

static void throw_dice(void *user, void *bytes_p, size_t length)
{
    (void)user;
    memset(bytes_p, ++dice, length);
}

static uint64_t accompanied;

static void note_company(void *user, uint64_t node)
{
    (void)user;
    accompanied = node;
}

static const struct gate_rendezvous_calls calls = {
    .answer = note, .random = throw_dice, .company = note_company};

static void setup(void)
{
    answer_count = 0;
    dice = 0;
    gate_rendezvous_init(&meeting, &calls, NULL, 30 * SECOND, 2 * SECOND);
}

static void teardown(void)
{
    gate_rendezvous_fini(&meeting);
}

static void setup_again(void)
{
    teardown();
    setup();
}

/* A registration of node `node` ("a" is 1) with these ranks, ended by -1. */
static struct gate_registration *node_with(uint64_t node, int32_t size, const int32_t *ranks)
{
    static struct gate_registration said[8];
    static int32_t copies[8][64];
    static int turn;
    struct gate_registration *next = &said[++turn % 8];
    size_t count = 0;

    while (ranks[count] != -1)
        count++;
    memset(next, 0, sizeof(*next));
    memcpy(copies[turn % 8], ranks, count * sizeof(*ranks));
    next->node = node;
    snprintf(next->name, sizeof(next->name), "%c", (char)('a' + node - 1));
    snprintf(next->address, sizeof(next->address), "10.0.0.%u", (unsigned)node);
    snprintf(next->job, sizeof(next->job), "job");
    next->registration = 1;
    next->uid = 1000;
    next->engine = (struct hvi_engine_node){.size = size,
                                            .ranks = copies[turn % 8],
                                            .rank_count = count,
                                            .port = 9600 + (uint32_t)node,
                                            .wire_oldest = 1,
                                            .wire_newest = 1};
    return next;
}

#define RANKS(...)                                                                                 \
    (const int32_t[])                                                                              \
    {                                                                                              \
        __VA_ARGS__, -1                                                                            \
    }

static void bring(struct gate_registration *said)
{
    gate_rendezvous_register(&meeting, said, 100 * SECOND);
}

static void withdraw(uint64_t node, uint64_t registration)
{
    const struct gate_registrant to = {
        .node = node, .job = "job", .uid = 1000, .registration = registration};
    gate_rendezvous_withdraw(&meeting, &to, HVI_OK, "", 100 * SECOND);
}

START_TEST(all_ranks_together_get_a_roster_by_lowest_rank)
{
    bring(node_with(2, 5, RANKS(4, 1)));
    ck_assert_uint_eq(answer_count, 0);
    bring(node_with(1, 5, RANKS(3)));
    ck_assert_uint_eq(answer_count, 0);
    bring(node_with(3, 5, RANKS(0, 2)));
    ck_assert_uint_eq(answer_count, 3);
    for (uint32_t i = 0; i < 3; i++) {
        ck_assert_int_eq(answers[i].status, HVI_OK);
        ck_assert_uint_eq(answers[i].index, i);
        ck_assert_str_eq(answers[i].rows,
                         "c 10.0.0.3:9603 0,2;b 10.0.0.2:9602 4,1;a 10.0.0.1:9601 3;");
        ck_assert_uint_eq(answers[i].epoch, answers[0].epoch);
        ck_assert_mem_eq(answers[i].key, answers[0].key, HVI_WIRE_EPOCH_KEY);
        ck_assert_uint_eq(answers[i].wire, 1);
    }
    ck_assert_uint_eq(answers[0].node, 3);
    ck_assert_uint_eq(answers[2].node, 1);
}
END_TEST

START_TEST(machines_with_one_host_name_are_told_apart_by_their_addresses)
{
    const char *const names[] = {"twin", "own", "twin", "same", "same"};
    const char *const addresses[] = {"10.0.0.1", "10.0.0.2", "fd00::3", "10.0.0.4", "10.0.0.4"};

    for (uint64_t node = 1; node <= 5; node++) {
        struct gate_registration *said = node_with(node, 5, RANKS((int32_t)node - 1));
        snprintf(said->name, sizeof(said->name), "%s", names[node - 1]);
        snprintf(said->address, sizeof(said->address), "%s", addresses[node - 1]);
        bring(said);
    }
    ck_assert_uint_eq(answer_count, 5);
    ck_assert_str_eq(answers[0].rows, "twin[10.0.0.1] 10.0.0.1:9601 0;own 10.0.0.2:9602 1;"
                                      "twin[fd00::3] fd00::3:9603 2;same 10.0.0.4:9604 3;"
                                      "same 10.0.0.4:9605 4;");
}
END_TEST

START_TEST(a_long_host_name_gives_way_to_the_address)
{
    for (uint64_t node = 1; node <= 2; node++) {
        struct gate_registration *said = node_with(node, 2, RANKS((int32_t)node - 1));
        memset(said->name, 'h', sizeof(said->name) - 1);
        bring(said);
    }
    ck_assert_uint_eq(answer_count, 2);
    ck_assert_ptr_nonnull(strstr(answers[0].rows, "h[10.0.0.1] 10.0.0.1:9601 0;hh"));
    ck_assert_ptr_nonnull(strstr(answers[0].rows, "h[10.0.0.2] 10.0.0.2:9602 1;"));
}
END_TEST

START_TEST(the_node_of_rank_0_decides_how_many_lanes_there_are)
{
    const uint32_t wishes[][4] = {{2, 1, 3, 2}, {1, 8, 8, 1}, {8, 0, 2, 1}, {0, 2, 2, 1}};

    for (uint64_t i = 0; i < sizeof(wishes) / sizeof(wishes[0]); i++) {
        const int32_t first[] = {0, -1}, second[] = {1, -1}, third[] = {2, -1};
        const int32_t *const ranks[] = {first, second, third};
        for (uint64_t node = 3; node-- > 0;) {
            struct gate_registration *said = node_with(node + 1, 3, ranks[node]);
            said->registration = i + 1;
            said->engine.lanes = wishes[i][node];
            bring(said);
        }
        ck_assert_uint_eq(answer_count, 3 * i + 3);
        for (uint64_t node = 0; node < 3; node++)
            ck_assert_uint_eq(answers[3 * i + node].lanes, wishes[i][3]);
    }
}
END_TEST

START_TEST(the_same_registration_again_gets_the_same_answer_again)
{
    bring(node_with(1, 2, RANKS(0)));
    bring(node_with(1, 2, RANKS(0)));
    bring(node_with(2, 2, RANKS(1)));
    ck_assert_uint_eq(answer_count, 2);
    bring(node_with(1, 2, RANKS(0)));
    ck_assert_uint_eq(answer_count, 3);
    ck_assert_uint_eq(answers[2].node, 1);
    ck_assert_uint_eq(answers[2].epoch, answers[0].epoch);
    ck_assert_str_eq(answers[2].rows, answers[0].rows);
}
END_TEST

START_TEST(a_later_generation_meets_in_the_next_epoch)
{
    struct gate_registration *again;

    bring(node_with(1, 2, RANKS(0)));
    bring(node_with(2, 2, RANKS(1)));
    again = node_with(1, 2, RANKS(0));
    again->registration = 2;
    bring(again);
    ck_assert_uint_eq(answer_count, 2);
    again = node_with(2, 2, RANKS(1));
    again->registration = 7; /* each node counts its own */
    bring(again);
    ck_assert_uint_eq(answer_count, 4);
    ck_assert_uint_eq(answers[3].epoch, answers[0].epoch + 1);
    ck_assert_mem_ne(answers[3].key, answers[0].key, HVI_WIRE_EPOCH_KEY);
}
END_TEST

START_TEST(a_node_that_registers_anew_before_the_roster_is_replaced)
{
    struct gate_registration *again;

    bring(node_with(1, 2, RANKS(0)));
    again = node_with(1, 2, RANKS(0));
    again->registration = 2;
    again->engine.port = 9999;
    bring(again);
    bring(node_with(1, 2, RANKS(0))); /* late news of the first */
    bring(node_with(2, 2, RANKS(1)));
    ck_assert_uint_eq(answer_count, 2);
    ck_assert_uint_eq(answers[0].registration, 2);
    ck_assert_str_eq(answers[0].rows, "a 10.0.0.1:9999 0;b 10.0.0.2:9602 1;");
}
END_TEST

START_TEST(a_node_that_goes_before_the_roster_is_removed)
{
    bring(node_with(1, 2, RANKS(0)));
    withdraw(1, 1);
    bring(node_with(2, 2, RANKS(1)));
    ck_assert_uint_eq(answer_count, 0);
    withdraw(2, 1);
    ck_assert_uint_eq(meeting.job_count, 0);
    bring(node_with(1, 2, RANKS(0)));
    ck_assert_uint_eq(answer_count, 0);
}
END_TEST

START_TEST(a_job_is_forgotten_when_all_that_met_have_gone)
{
    bring(node_with(1, 2, RANKS(0)));
    bring(node_with(2, 2, RANKS(1)));
    withdraw(1, 1);
    ck_assert_uint_eq(meeting.job_count, 1);
    bring(node_with(2, 2, RANKS(1)));
    ck_assert_str_eq(answers[2].rows, "a 10.0.0.1:9601 0;b 10.0.0.2:9602 1;");
    withdraw(2, 1);
    ck_assert_uint_eq(meeting.job_count, 0);
}
END_TEST

START_TEST(who_goes_with_a_reason_tells_it_to_those_that_wait_with_it)
{
    const struct gate_registrant to = {.node = 2, .job = "job", .uid = 1000, .registration = 1};
    struct gate_registration *again;

    bring(node_with(1, 4, RANKS(0)));
    bring(node_with(2, 4, RANKS(1)));
    bring(node_with(3, 4, RANKS(2)));
    gate_rendezvous_withdraw(&meeting, &to, HVI_ERR_RANK_LOST, "rank 1 was killed", 100 * SECOND);
    ck_assert_uint_eq(answer_count, 2);
    ck_assert_uint_eq(answers[0].node, 1);
    ck_assert_uint_eq(answers[1].node, 3);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(answers[i].status, HVI_ERR_RANK_LOST);
        ck_assert_str_eq(answers[i].text, "rank 1 was killed");
    }
    bring(node_with(1, 2, RANKS(0)));
    again = node_with(2, 2, RANKS(1));
    gate_rendezvous_withdraw(&meeting, &to, HVI_ERR_RANK_LOST, "late news", 100 * SECOND);
    again->registration = 2;
    bring(again);
    ck_assert_uint_eq(answer_count, 4);
    ck_assert_int_eq(answers[2].status, HVI_OK);
    ck_assert_int_eq(answers[3].status, HVI_OK);
}
END_TEST

START_TEST(who_registers_a_moment_later_hears_the_reason_once)
{
    const struct gate_registrant to = {.node = 2, .job = "job", .uid = 1000, .registration = 1};

    bring(node_with(2, 3, RANKS(1)));
    gate_rendezvous_withdraw(&meeting, &to, HVI_ERR_RANK_LOST, "rank 1 was killed", 99 * SECOND);
    ck_assert_uint_eq(answer_count, 0);
    bring(node_with(1, 3, RANKS(0)));
    ck_assert_uint_eq(answer_count, 1);
    ck_assert_uint_eq(answers[0].node, 1);
    ck_assert_int_eq(answers[0].status, HVI_ERR_RANK_LOST);
    ck_assert_str_eq(answers[0].text, "rank 1 was killed");
    bring(node_with(1, 3, RANKS(0))); /* again: it waits for a new attempt */
    ck_assert_uint_eq(answer_count, 1);
    gate_rendezvous_tick(&meeting, 100 * SECOND);
    bring(node_with(3, 3, RANKS(2)));
    ck_assert_uint_eq(answer_count, 2);
    ck_assert_uint_eq(answers[1].node, 3);
    withdraw(1, 1);
    ck_assert_uint_eq(meeting.job_count, 1);
    gate_rendezvous_tick(&meeting, 101 * SECOND);
    ck_assert_uint_eq(meeting.job_count, 0);
}
END_TEST

START_TEST(who_waits_for_a_rank_whose_process_has_ended_is_told_now_and_later)
{
    const struct gate_registrant job = {.node = 2, .job = "job", .uid = 1000};

    bring(node_with(1, 3, RANKS(0)));
    gate_rendezvous_ended(&meeting, &job, 1, "rank 1 exited");
    gate_rendezvous_ended(&meeting, &job, 2, "rank 2 exited"); /* the first will do */
    gate_rendezvous_tick(&meeting, 100 * SECOND);
    ck_assert_uint_eq(answer_count, 1);
    ck_assert_int_eq(answers[0].status, HVI_ERR_RANK_LOST);
    ck_assert_str_eq(answers[0].text, "rank 1 exited");
    gate_rendezvous_tick(&meeting, 1000 * SECOND);
    bring(node_with(3, 3, RANKS(2)));
    gate_rendezvous_tick(&meeting, 100 * SECOND);
    ck_assert_uint_eq(answer_count, 2);
    ck_assert_str_eq(answers[1].text, "rank 1 exited");
}
END_TEST

START_TEST(a_rank_that_ends_after_it_has_come_is_its_engines_to_tell)
{
    const struct gate_registrant job = {.node = 2, .job = "job", .uid = 1000};

    bring(node_with(1, 3, RANKS(0)));
    bring(node_with(2, 3, RANKS(1)));
    gate_rendezvous_ended(&meeting, &job, 1, "rank 1 exited");
    gate_rendezvous_tick(&meeting, 100 * SECOND);
    ck_assert_uint_eq(answer_count, 0);
    withdraw(2, 1); /* it had left in order */
    gate_rendezvous_tick(&meeting, 100 * SECOND);
    ck_assert_uint_eq(answer_count, 1);
    ck_assert_uint_eq(answers[0].node, 1);
    setup_again();
    bring(node_with(1, 2, RANKS(0)));
    bring(node_with(2, 2, RANKS(1)));
    gate_rendezvous_ended(&meeting, &job, 1, "rank 1 exited"); /* they have met */
    gate_rendezvous_tick(&meeting, 100 * SECOND);
    ck_assert_uint_eq(answer_count, 2);
    ck_assert_int_eq(answers[1].status, HVI_OK);
}
END_TEST

START_TEST(who_waits_is_told_that_the_rendezvous_ends_and_who_has_met_is_not)
{
    ck_assert(!gate_rendezvous_end(&meeting, HVI_ERR_NODE_LOST, "it ends"));
    bring(node_with(1, 1, RANKS(0)));
    ck_assert_uint_eq(answer_count, 1);
    ck_assert(!gate_rendezvous_end(&meeting, HVI_ERR_NODE_LOST, "it ends"));
    setup_again();
    bring(node_with(1, 3, RANKS(0)));
    bring(node_with(2, 3, RANKS(1)));
    ck_assert(gate_rendezvous_end(&meeting, HVI_ERR_NODE_LOST, "it ends"));
    ck_assert_uint_eq(answer_count, 2);
    ck_assert_int_eq(answers[0].status, HVI_ERR_NODE_LOST);
    ck_assert_str_eq(answers[1].text, "it ends");
    ck_assert_uint_eq(meeting.job_count, 0);
}
END_TEST

START_TEST(a_reason_ends_with_its_time_or_with_a_later_engine_of_its_node)
{
    const struct gate_registrant to = {.node = 2, .job = "job", .uid = 1000, .registration = 1};
    struct gate_registration *later = node_with(2, 2, RANKS(1));

    bring(node_with(2, 2, RANKS(1)));
    gate_rendezvous_withdraw(&meeting, &to, HVI_ERR_RANK_LOST, "rank 1 was killed", 98 * SECOND);
    bring(node_with(1, 2, RANKS(0)));
    ck_assert_uint_eq(answer_count, 0);
    bring(node_with(2, 2, RANKS(1)));
    ck_assert_uint_eq(answer_count, 2);
    ck_assert_int_eq(answers[1].status, HVI_OK);
    setup_again();
    bring(node_with(2, 2, RANKS(1)));
    gate_rendezvous_withdraw(&meeting, &to, HVI_ERR_RANK_LOST, "rank 1 was killed", 100 * SECOND);
    later->registration = 2;
    bring(later);
    bring(node_with(1, 2, RANKS(0)));
    ck_assert_uint_eq(answer_count, 2);
    ck_assert_int_eq(answers[1].status, HVI_OK);
}
END_TEST

START_TEST(who_goes_with_a_reason_tells_it_to_those_that_it_has_met)
{
    const struct gate_registrant to = {.node = 2, .job = "job", .uid = 1000, .registration = 1};

    bring(node_with(1, 3, RANKS(0)));
    bring(node_with(2, 3, RANKS(1)));
    bring(node_with(3, 3, RANKS(2)));
    ck_assert_uint_eq(answer_count, 3);
    withdraw(3, 1);
    ck_assert_uint_eq(answer_count, 3);
    gate_rendezvous_withdraw(&meeting, &to, HVI_ERR_RANK_LOST, "rank 1 was killed", 100 * SECOND);
    ck_assert_uint_eq(answer_count, 4);
    ck_assert_uint_eq(answers[3].node, 1);
    ck_assert_int_eq(answers[3].status, HVI_ERR_RANK_LOST);
    ck_assert_str_eq(answers[3].text, "rank 1 was killed");
    gate_rendezvous_withdraw(&meeting, &to, HVI_ERR_RANK_LOST, "rank 1 was killed",
                             100 * SECOND); /* repeated */
    ck_assert_uint_eq(answer_count, 4);
}
END_TEST

START_TEST(those_that_have_met_are_told_once_why_one_of_them_has_gone)
{
    struct gate_registrant to = {.node = 2, .job = "job", .uid = 1000, .registration = 1};

    bring(node_with(1, 3, RANKS(0)));
    bring(node_with(2, 3, RANKS(1)));
    bring(node_with(3, 3, RANKS(2)));
    gate_rendezvous_withdraw(&meeting, &to, HVI_ERR_RANK_LOST, "rank 1 was killed", 100 * SECOND);
    ck_assert_uint_eq(answer_count, 5);
    to.node = 3;
    gate_rendezvous_withdraw(&meeting, &to, HVI_ERR_RANK_LOST, "rank 2 was killed", 100 * SECOND);
    ck_assert_uint_eq(answer_count, 5);
    for (uint64_t node = 1; node <= 3; node++) {
        struct gate_registration *again = node_with(node, 3, RANKS((int32_t)node - 1));
        again->registration = 2;
        bring(again);
    }
    ck_assert_uint_eq(answer_count, 8); /* the next attempt */
    to.registration = 2;
    gate_rendezvous_withdraw(&meeting, &to, HVI_ERR_RANK_LOST, "rank 2 was killed", 100 * SECOND);
    ck_assert_uint_eq(answer_count, 10);
}
END_TEST

START_TEST(a_node_that_loses_a_rank_before_it_is_complete_tells_it_to_those_that_wait)
{
    const struct gate_registrant to = {.node = 2, .job = "job", .uid = 1000, .registration = 0};

    bring(node_with(1, 3, RANKS(0)));
    gate_rendezvous_withdraw(&meeting, &to, HVI_OK, "", 100 * SECOND);
    ck_assert_uint_eq(answer_count, 0);
    gate_rendezvous_withdraw(&meeting, &to, HVI_ERR_RANK_LOST, "rank 1 exited", 100 * SECOND);
    ck_assert_uint_eq(answer_count, 1);
    ck_assert_uint_eq(answers[0].node, 1);
    ck_assert_int_eq(answers[0].status, HVI_ERR_RANK_LOST);
    ck_assert_str_eq(answers[0].text, "rank 1 exited");
    bring(node_with(3, 3, RANKS(2))); /* it comes a moment later */
    ck_assert_uint_eq(answer_count, 2);
    ck_assert_uint_eq(answers[1].node, 3);
    ck_assert_str_eq(answers[1].text, "rank 1 exited");
    bring(node_with(1, 3, RANKS(0)));
    bring(node_with(2, 3, RANKS(1)));
    bring(node_with(3, 3, RANKS(2)));
    ck_assert_uint_eq(answer_count, 5); /* the next attempt is complete */
    for (size_t i = 2; i < 5; i++)
        ck_assert_int_eq(answers[i].status, HVI_OK);
}
END_TEST

START_TEST(a_node_that_loses_a_rank_early_is_known_although_nobody_waits_yet)
{
    const struct gate_registrant to = {.node = 2, .job = "job", .uid = 1000, .registration = 0};

    gate_rendezvous_withdraw(&meeting, &to, HVI_ERR_RANK_LOST, "rank 1 exited", 99 * SECOND);
    ck_assert_uint_eq(meeting.job_count, 1);
    bring(node_with(1, 2, RANKS(0)));
    ck_assert_uint_eq(answer_count, 1);
    ck_assert_str_eq(answers[0].text, "rank 1 exited");
    gate_rendezvous_tick(&meeting, 101 * SECOND);
    ck_assert_uint_eq(meeting.job_count, 0);
}
END_TEST

START_TEST(what_a_node_loses_early_is_no_news_to_those_that_its_earlier_engine_has_met)
{
    const struct gate_registrant to = {.node = 2, .job = "job", .uid = 1000, .registration = 0};

    bring(node_with(1, 2, RANKS(0)));
    bring(node_with(2, 2, RANKS(1)));
    ck_assert_uint_eq(answer_count, 2);
    gate_rendezvous_withdraw(&meeting, &to, HVI_ERR_RANK_LOST, "rank 1 exited", 100 * SECOND);
    ck_assert_uint_eq(answer_count, 2);
}
END_TEST

static void expect_all(size_t count, int status, const char *text)
{
    ck_assert_uint_eq(answer_count, count);
    for (size_t i = 0; i < count; i++) {
        ck_assert_int_eq(answers[i].status, status);
        ck_assert_str_eq(answers[i].text, text);
        ck_assert_uint_eq(answers[i].nodes, 0);
    }
    ck_assert_uint_eq(meeting.job_count, 0);
}

START_TEST(a_rank_on_two_nodes_fails_on_both)
{
    bring(node_with(1, 4, RANKS(0, 1)));
    bring(node_with(2, 4, RANKS(2, 1)));
    expect_all(2, HVI_ERR_DUPLICATE_RANK,
               "rank 1 of job 'job' is on two nodes, a (10.0.0.1) and b (10.0.0.2); start each "
               "rank once");
}
END_TEST

START_TEST(nodes_that_disagree_about_the_size_fail)
{
    bring(node_with(1, 4, RANKS(0)));
    bring(node_with(2, 3, RANKS(1)));
    expect_all(2, HVI_ERR_BAD_SIZE,
               "the nodes of job 'job' disagree about its size: a (10.0.0.1) says 4, b (10.0.0.2) "
               "says 3");
}
END_TEST

START_TEST(nodes_with_different_transports_fail)
{
    struct gate_registration *other = node_with(2, 2, RANKS(1));

    snprintf(other->engine.transport, sizeof(other->engine.transport), "ucx");
    bring(node_with(1, 2, RANKS(0)));
    bring(other);
    expect_all(2, HVI_ERR_MISMATCH,
               "the nodes of job 'job' move data in two ways: net-transport is tcp on a (10.0.0.1) "
               "and ucx on b (10.0.0.2); set it to the same on all");
}
END_TEST

START_TEST(engines_without_a_common_version_fail)
{
    struct gate_registration *newer = node_with(2, 2, RANKS(1));

    newer->engine.wire_oldest = 2;
    newer->engine.wire_newest = 3;
    bring(node_with(1, 2, RANKS(0)));
    bring(newer);
    expect_all(2, HVI_ERR_VERSION,
               "the engines of job 'job' speak no common version: a (10.0.0.1) speaks 1 to 1, b "
               "(10.0.0.2) speaks 2 to 3; install the same hvdd on both");
}
END_TEST

START_TEST(engines_that_disagree_about_encryption_fail)
{
    struct gate_registration *sealed = node_with(2, 2, RANKS(1));

    sealed->engine.encrypt = true;
    bring(node_with(1, 2, RANKS(0)));
    bring(sealed);
    expect_all(2, HVI_ERR_REFUSED,
               "the nodes of job 'job' disagree about encryption: b (10.0.0.2) encrypts data "
               "connections, a (10.0.0.1) does not; give all of them HVD_ENCRYPT=1, or encrypt = "
               "yes in hvdd.conf");
}
END_TEST

START_TEST(engines_of_different_age_speak_what_both_know)
{
    struct gate_registration *newer = node_with(2, 2, RANKS(1));
    struct gate_registration *older = node_with(1, 2, RANKS(0));

    newer->engine.wire_oldest = 2;
    newer->engine.wire_newest = 5;
    older->engine.wire_newest = 3;
    bring(older);
    bring(newer);
    ck_assert_uint_eq(answer_count, 2);
    ck_assert_uint_eq(answers[0].wire, 3);
}
END_TEST

START_TEST(another_job_key_is_refused_and_the_others_go_on_waiting)
{
    struct gate_registration *stranger = node_with(3, 2, RANKS(1));

    snprintf(stranger->key_digest, sizeof(stranger->key_digest), "abc");
    bring(node_with(1, 2, RANKS(0)));
    bring(stranger);
    ck_assert_uint_eq(answer_count, 1);
    ck_assert_uint_eq(answers[0].node, 3);
    ck_assert_int_eq(answers[0].status, HVI_ERR_REFUSED);
    ck_assert_str_eq(answers[0].text, "node c (10.0.0.3) has another job key (HVD_JOB_KEY) for job "
                                      "'job' than a (10.0.0.1)");
    bring(node_with(2, 2, RANKS(1)));
    ck_assert_uint_eq(answer_count, 3);
    ck_assert_int_eq(answers[2].status, HVI_OK);
}
END_TEST

START_TEST(who_is_missing_is_said_after_the_start_timeout)
{
    bring(node_with(1, 8, RANKS(0, 1, 2)));
    gate_rendezvous_register(&meeting, node_with(2, 8, RANKS(5)), 120 * SECOND);
    gate_rendezvous_tick(&meeting, 130 * SECOND - 1);
    ck_assert_uint_eq(answer_count, 0);
    gate_rendezvous_tick(&meeting, 130 * SECOND);
    expect_all(2, HVI_ERR_ATTACH_TIMEOUT,
               "job 'job' is not complete after the start timeout of 30 s: ranks 3-4,6-7 of 8 are "
               "missing; these nodes have come: a (10.0.0.1) with ranks 0-2, b (10.0.0.2) with "
               "ranks 5");
}
END_TEST

START_TEST(ranks_that_cannot_be_are_refused)
{
    bring(node_with(1, 4, RANKS(0, 4)));
    ck_assert_int_eq(answers[0].status, HVI_ERR_BAD_RANK);
    ck_assert_str_eq(answers[0].text,
                     "node a (10.0.0.1) brings rank 4 to job 'job', whose ranks are 0..3");
    bring(node_with(1, 4, RANKS(1, 1)));
    ck_assert_int_eq(answers[1].status, HVI_ERR_DUPLICATE_RANK);
    bring(node_with(1, 2, RANKS(0, 1, 2)));
    ck_assert_int_eq(answers[2].status, HVI_ERR_BAD_SIZE);
    ck_assert_uint_eq(meeting.job_count, 0);
}
END_TEST

START_TEST(jobs_of_two_users_with_one_name_do_not_meet)
{
    struct gate_registration *other = node_with(2, 2, RANKS(1));

    other->uid = 1001;
    bring(node_with(1, 2, RANKS(0)));
    bring(other);
    ck_assert_uint_eq(answer_count, 0);
    ck_assert_uint_eq(meeting.job_count, 2);
}
END_TEST

START_TEST(the_rendezvous_own_node_has_the_address_that_others_reach)
{
    struct gate_registration *own = node_with(1, 3, RANKS(0));
    struct gate_registration *beside = node_with(3, 3, RANKS(2));

    own->address[0] = '\0';
    snprintf(beside->address, sizeof(beside->address), "127.0.0.1");
    snprintf(meeting.own_address, sizeof(meeting.own_address), "10.0.0.9");
    bring(own);
    bring(beside);
    bring(node_with(2, 3, RANKS(1)));
    ck_assert_str_eq(answers[0].rows, "a 10.0.0.9:9601 0;b 10.0.0.2:9602 1;c 10.0.0.9:9603 2;");
}
END_TEST

START_TEST(on_one_machine_the_loopback_will_do)
{
    struct gate_registration *own = node_with(1, 2, RANKS(0)), *other = node_with(2, 2, RANKS(1));

    own->address[0] = '\0';
    snprintf(other->address, sizeof(other->address), "::1");
    snprintf(meeting.own_address, sizeof(meeting.own_address), "::1");
    bring(own);
    bring(other);
    ck_assert_str_eq(answers[0].rows, "a ::1:9601 0;b ::1:9602 1;");
}
END_TEST

START_TEST(jobs_are_bounded_and_those_that_met_long_ago_make_room)
{
    char text[64];

    bring(node_with(1, 2, RANKS(0)));
    bring(node_with(2, 2, RANKS(1)));
    for (uint32_t i = 0; i < GATE_RENDEZVOUS_JOBS_MAX; i++) {
        struct gate_registration *said = node_with(1, 2, RANKS(0));
        snprintf(said->job, sizeof(said->job), "job%u", i);
        bring(said);
    }
    ck_assert_uint_eq(answer_count, 2);
    ck_assert_uint_eq(meeting.job_count, GATE_RENDEZVOUS_JOBS_MAX);
    gate_rendezvous_jobs_of(&meeting, 1, text, sizeof(text));
    ck_assert_str_eq(text, "job0, job1, job2, job3, job4, job5, job6, job7, job8, job9, job");
    bring(node_with(1, 2, RANKS(0)));
    ck_assert_uint_eq(answer_count, 3);
    ck_assert_int_eq(answers[2].status, HVI_ERR_DAEMON_LIMIT);
}
END_TEST

/* Since 100 s; it is lost at 102 s. */
static void miss(uint64_t node, bool is_there)
{
    gate_rendezvous_missing(&meeting, node, "it is silent", 100 * SECOND, is_there);
}

START_TEST(a_node_that_is_missing_for_too_long_is_named_to_those_that_wait_with_it)
{
    bring(node_with(1, 4, RANKS(0)));
    bring(node_with(2, 4, RANKS(1)));
    bring(node_with(3, 4, RANKS(2)));
    miss(2, false);
    gate_rendezvous_tick(&meeting, 102 * SECOND - 1);
    ck_assert_uint_eq(answer_count, 0);
    gate_rendezvous_tick(&meeting, 102 * SECOND);
    ck_assert_uint_eq(answer_count, 3);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(answers[i].status, HVI_ERR_NODE_LOST);
        ck_assert_str_eq(answers[i].text, "node b (10.0.0.2) is lost, before all nodes of job "
                                          "'job' had met: for 2.0 s it is silent");
    }
    bring(node_with(2, 4, RANKS(1))); /* back; it has not heard the answer */
    ck_assert_uint_eq(answer_count, 4);
    ck_assert_int_eq(answers[3].status, HVI_ERR_NODE_LOST);
    bring(node_with(1, 4, RANKS(0))); /* again: it waits for a new attempt */
    ck_assert_uint_eq(answer_count, 4);
}
END_TEST

START_TEST(who_waits_alone_is_known_and_so_is_when_that_ends)
{
    accompanied = 0;
    bring(node_with(1, 4, RANKS(0)));
    ck_assert(!gate_rendezvous_company(&meeting, 1));
    ck_assert_uint_eq(accompanied, 0);
    bring(node_with(2, 4, RANKS(1)));
    ck_assert_uint_eq(accompanied, 1);
    ck_assert(gate_rendezvous_company(&meeting, 1));
    ck_assert(gate_rendezvous_company(&meeting, 2));
    ck_assert(!gate_rendezvous_company(&meeting, 3));
    withdraw(1, 1);
    ck_assert(!gate_rendezvous_company(&meeting, 2));
}
END_TEST

START_TEST(a_node_that_is_back_in_time_was_never_missing)
{
    bring(node_with(1, 3, RANKS(0)));
    bring(node_with(2, 3, RANKS(1)));
    miss(2, false);
    bring(node_with(2, 3, RANKS(1)));
    gate_rendezvous_tick(&meeting, 120 * SECOND);
    ck_assert_uint_eq(meeting.job_count, 1);
    bring(node_with(3, 3, RANKS(2)));
    ck_assert_uint_eq(answer_count, 3);
    ck_assert_int_eq(answers[0].status, HVI_OK);
}
END_TEST

START_TEST(the_rendezvous_own_node_is_named_by_the_address_that_others_know)
{
    struct gate_registration *own = node_with(1, 2, RANKS(0));

    snprintf(meeting.own_address, sizeof(meeting.own_address), "10.0.0.1");
    own->address[0] = '\0';
    bring(own);
    bring(node_with(2, 2, RANKS(0)));
    ck_assert_uint_eq(answer_count, 2);
    ck_assert_ptr_nonnull(strstr(answers[1].text, "a (10.0.0.1)"));
}
END_TEST

START_TEST(a_node_that_begins_anew_and_does_not_register_again_is_lost)
{
    bring(node_with(1, 3, RANKS(0)));
    bring(node_with(2, 3, RANKS(1)));
    gate_rendezvous_anew(&meeting, 2, 100 * SECOND);
    gate_rendezvous_tick(&meeting, 102 * SECOND - 1);
    ck_assert_uint_eq(answer_count, 0);
    gate_rendezvous_tick(&meeting, 102 * SECOND);
    ck_assert_uint_eq(answer_count, 2);
    ck_assert_int_eq(answers[0].status, HVI_ERR_NODE_LOST);
    ck_assert_ptr_nonnull(strstr(answers[0].text, "node b (10.0.0.2) is lost"));
    ck_assert_ptr_nonnull(strstr(answers[0].text, "its hvdd-gate has begun anew"));
}
END_TEST

START_TEST(a_node_that_has_begun_anew_before_the_others_came_costs_them_nothing)
{
    bring(node_with(2, 2, RANKS(1)));
    gate_rendezvous_anew(&meeting, 2, 100 * SECOND);
    gate_rendezvous_register(&meeting, node_with(1, 2, RANKS(0)), 101 * SECOND);
    gate_rendezvous_tick(&meeting, 104 * SECOND);
    ck_assert_uint_eq(answer_count, 0);
    bring(node_with(3, 2, RANKS(1)));
    ck_assert_uint_eq(answer_count, 2);
    ck_assert_int_eq(answers[0].status, HVI_OK);
}
END_TEST

START_TEST(a_node_that_begins_anew_is_back_when_it_has_registered_again)
{
    bring(node_with(1, 3, RANKS(0)));
    bring(node_with(2, 3, RANKS(1)));
    gate_rendezvous_anew(&meeting, 2, 100 * SECOND);
    miss(2, true); /* its hvdd stands still, and goes on */
    gate_rendezvous_back(&meeting, 2);
    bring(node_with(3, 3, RANKS(2)));
    ck_assert_uint_eq(answer_count, 0);
    bring(node_with(2, 3, RANKS(1)));
    ck_assert_uint_eq(answer_count, 3);
    ck_assert_int_eq(answers[0].status, HVI_OK);
}
END_TEST

START_TEST(no_job_meets_with_a_node_that_is_missing)
{
    bring(node_with(1, 2, RANKS(0)));
    miss(1, _i == 0);
    bring(node_with(2, 2, RANKS(1)));
    ck_assert_uint_eq(answer_count, 0);
    if (_i == 0)
        gate_rendezvous_back(&meeting, 1);
    else
        bring(node_with(1, 2, RANKS(0)));
    ck_assert_uint_eq(answer_count, 2);
    ck_assert_int_eq(answers[1].status, HVI_OK);
}
END_TEST

START_TEST(no_job_meets_with_a_node_that_comes_while_its_hvdd_stands_still)
{
    struct gate_registration *still = node_with(2, 2, RANKS(1));

    still->missing = "its hvdd stands still";
    still->missing_since_ns = 99 * SECOND;
    bring(node_with(1, 2, RANKS(0)));
    bring(still);
    ck_assert_uint_eq(answer_count, 0);
    gate_rendezvous_back(&meeting, 2);
    ck_assert_uint_eq(answer_count, 2);
    ck_assert_int_eq(answers[0].status, HVI_OK);
}
END_TEST

START_TEST(a_node_that_is_missing_and_waits_alone_hurts_nobody)
{
    bring(node_with(1, 2, RANKS(0)));
    miss(1, _i == 0);
    gate_rendezvous_tick(&meeting, 102 * SECOND);
    ck_assert_uint_eq(answer_count, 0);
    ck_assert_uint_eq(meeting.job_count,
                      _i == 0 ? 1 : 0); /* forgotten, if it has to say everything again */
    bring(node_with(2, 2, RANKS(1)));
    ck_assert_uint_eq(answer_count, 0);
    gate_rendezvous_tick(&meeting, 102 * SECOND);
    ck_assert_uint_eq(answer_count, _i == 0 ? 2 : 0);
}
END_TEST

START_TEST(those_that_come_while_a_node_is_missing_wait_for_it_as_long)
{
    const struct gate_registration *second = node_with(2, 2, RANKS(1));

    bring(node_with(1, 2, RANKS(0)));
    miss(1, true);
    gate_rendezvous_register(&meeting, second, 110 * SECOND);
    gate_rendezvous_tick(&meeting, 112 * SECOND - 1);
    ck_assert_uint_eq(answer_count, 0);
    if (_i == 0)
        gate_rendezvous_back(&meeting, 1);
    gate_rendezvous_tick(&meeting, 112 * SECOND);
    ck_assert_uint_eq(answer_count, 2);
    ck_assert_int_eq(answers[0].status, _i == 0 ? HVI_OK : HVI_ERR_NODE_LOST);
}
END_TEST

START_TEST(a_rendezvous_that_stood_still_blames_no_node_for_that)
{
    bring(node_with(1, 3, RANKS(0)));
    bring(node_with(2, 3, RANKS(1)));
    miss(2, false);
    meeting.awake_ns = 110 * SECOND;
    gate_rendezvous_tick(&meeting, 112 * SECOND - 1);
    ck_assert_uint_eq(answer_count, 0);
    gate_rendezvous_tick(&meeting, 112 * SECOND);
    ck_assert_uint_eq(answer_count, 2);
}
END_TEST

START_TEST(a_node_that_is_missing_and_has_its_connection_is_replaced_by_none)
{
    bring(node_with(1, 2, RANKS(0)));
    miss(1, true);
    bring(node_with(2, 3, RANKS(1))); /* which contradicts it */
    ck_assert_uint_eq(answer_count, 2);
    ck_assert_int_eq(answers[0].status, HVI_ERR_BAD_SIZE);
}
END_TEST

START_TEST(the_job_key_of_a_node_that_is_gone_refuses_nobody)
{
    struct gate_registration *first = node_with(3, 2, RANKS(0));

    snprintf(first->key_digest, sizeof(first->key_digest), "of the next job");
    bring(node_with(1, 2, RANKS(0)));
    miss(1, _i == 0);
    bring(first);
    ck_assert_uint_eq(answer_count, _i == 0 ? 1 : 0);
}
END_TEST

START_TEST(what_has_become_of_a_node_that_is_missing_takes_its_place)
{
    bring(node_with(1, 2, RANKS(0)));
    miss(1, false);
    bring(node_with(3, 2, RANKS(0))); /* its hvdd was started anew, and has another number */
    ck_assert_uint_eq(answer_count, 0);
    bring(node_with(2, 2, RANKS(1)));
    ck_assert_uint_eq(answer_count, 2);
    ck_assert_int_eq(answers[0].status, HVI_OK);
    ck_assert_str_eq(answers[0].rows, "c 10.0.0.3:9603 0;b 10.0.0.2:9602 1;");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("gate rendezvous");
    TCase *tcase = tcase_create("rendezvous");

    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, all_ranks_together_get_a_roster_by_lowest_rank);
    tcase_add_test(tcase, machines_with_one_host_name_are_told_apart_by_their_addresses);
    tcase_add_test(tcase, a_long_host_name_gives_way_to_the_address);
    tcase_add_test(tcase, the_node_of_rank_0_decides_how_many_lanes_there_are);
    tcase_add_test(tcase, the_same_registration_again_gets_the_same_answer_again);
    tcase_add_test(tcase, a_later_generation_meets_in_the_next_epoch);
    tcase_add_test(tcase, a_node_that_registers_anew_before_the_roster_is_replaced);
    tcase_add_test(tcase, a_node_that_goes_before_the_roster_is_removed);
    tcase_add_test(tcase, a_job_is_forgotten_when_all_that_met_have_gone);
    tcase_add_test(tcase, who_goes_with_a_reason_tells_it_to_those_that_wait_with_it);
    tcase_add_test(tcase, who_registers_a_moment_later_hears_the_reason_once);
    tcase_add_test(tcase, who_waits_for_a_rank_whose_process_has_ended_is_told_now_and_later);
    tcase_add_test(tcase, a_rank_that_ends_after_it_has_come_is_its_engines_to_tell);
    tcase_add_test(tcase, who_waits_is_told_that_the_rendezvous_ends_and_who_has_met_is_not);
    tcase_add_test(tcase, a_reason_ends_with_its_time_or_with_a_later_engine_of_its_node);
    tcase_add_test(tcase, who_goes_with_a_reason_tells_it_to_those_that_it_has_met);
    tcase_add_test(tcase, those_that_have_met_are_told_once_why_one_of_them_has_gone);
    tcase_add_test(tcase,
                   a_node_that_loses_a_rank_before_it_is_complete_tells_it_to_those_that_wait);
    tcase_add_test(tcase, a_node_that_loses_a_rank_early_is_known_although_nobody_waits_yet);
    tcase_add_test(tcase,
                   what_a_node_loses_early_is_no_news_to_those_that_its_earlier_engine_has_met);
    tcase_add_test(tcase, a_rank_on_two_nodes_fails_on_both);
    tcase_add_test(tcase, nodes_that_disagree_about_the_size_fail);
    tcase_add_test(tcase, nodes_with_different_transports_fail);
    tcase_add_test(tcase, engines_without_a_common_version_fail);
    tcase_add_test(tcase, engines_that_disagree_about_encryption_fail);
    tcase_add_test(tcase, engines_of_different_age_speak_what_both_know);
    tcase_add_test(tcase, another_job_key_is_refused_and_the_others_go_on_waiting);
    tcase_add_test(tcase, who_is_missing_is_said_after_the_start_timeout);
    tcase_add_test(tcase, a_node_that_is_missing_for_too_long_is_named_to_those_that_wait_with_it);
    tcase_add_test(tcase, who_waits_alone_is_known_and_so_is_when_that_ends);
    tcase_add_test(tcase, the_rendezvous_own_node_is_named_by_the_address_that_others_know);
    tcase_add_test(tcase, a_node_that_begins_anew_and_does_not_register_again_is_lost);
    tcase_add_test(tcase, a_node_that_has_begun_anew_before_the_others_came_costs_them_nothing);
    tcase_add_test(tcase, a_node_that_begins_anew_is_back_when_it_has_registered_again);
    tcase_add_test(tcase, a_node_that_is_back_in_time_was_never_missing);
    tcase_add_loop_test(tcase, no_job_meets_with_a_node_that_is_missing, 0, 2);
    tcase_add_test(tcase, no_job_meets_with_a_node_that_comes_while_its_hvdd_stands_still);
    tcase_add_loop_test(tcase, a_node_that_is_missing_and_waits_alone_hurts_nobody, 0, 2);
    tcase_add_loop_test(tcase, those_that_come_while_a_node_is_missing_wait_for_it_as_long, 0, 2);
    tcase_add_test(tcase, a_rendezvous_that_stood_still_blames_no_node_for_that);
    tcase_add_test(tcase, a_node_that_is_missing_and_has_its_connection_is_replaced_by_none);
    tcase_add_loop_test(tcase, the_job_key_of_a_node_that_is_gone_refuses_nobody, 0, 2);
    tcase_add_test(tcase, what_has_become_of_a_node_that_is_missing_takes_its_place);
    tcase_add_test(tcase, ranks_that_cannot_be_are_refused);
    tcase_add_test(tcase, jobs_of_two_users_with_one_name_do_not_meet);
    tcase_add_test(tcase, the_rendezvous_own_node_has_the_address_that_others_reach);
    tcase_add_test(tcase, on_one_machine_the_loopback_will_do);
    tcase_add_test(tcase, jobs_are_bounded_and_those_that_met_long_ago_make_room);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
