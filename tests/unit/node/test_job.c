/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"
#include "base/status.h"
#include "daemon/node/job.h"
#include "tests/unit/hvt_main.h"

#include <signal.h>
#include <stdio.h>

static struct node_jobs jobs;

static struct node_generation *new_generation(const char *id, int32_t size)
{
    struct node_generation *generation = NULL;
    ck_assert_int_eq(node_generation_new(&jobs, id, 1000, "", size, size, 0, &generation), HVI_OK);
    return generation;
}

static void attach(struct node_generation *generation, int32_t rank)
{
    ck_assert(node_slot_set(&jobs, generation, rank, NODE_SLOT_ATTACHING, 100 + rank, 1, "test"));
    ck_assert(node_slot_set(&jobs, generation, rank, NODE_SLOT_ATTACHED, 100 + rank, 1, "test"));
}

START_TEST(slot_edges_are_exactly_those_of_the_picture)
{
    static const char *const edges[NODE_SLOT_STATES] = {
        /* to: absent attaching attached left lost ended */
        [NODE_SLOT_ABSENT] = "-+----",   [NODE_SLOT_ATTACHING] = "+-++++",
        [NODE_SLOT_ATTACHED] = "---+++", [NODE_SLOT_LEFT] = "------",
        [NODE_SLOT_LOST] = "------",     [NODE_SLOT_ENDED] = "------",
    };
    for (int from = 0; from < NODE_SLOT_STATES; from++)
        for (int to = 0; to < NODE_SLOT_STATES; to++)
            ck_assert_msg(node_slot_edge((enum node_slot_state)from, (enum node_slot_state)to) ==
                              (edges[from][to] == '+'),
                          "%d -> %d", from, to);
}
END_TEST

START_TEST(job_states_only_go_forward)
{
    for (int from = 0; from < NODE_JOB_STATES; from++)
        for (int to = 0; to < NODE_JOB_STATES; to++)
            ck_assert_int_eq(node_job_edge((enum node_job_state)from, (enum node_job_state)to),
                             to > from);
    ck_assert(!node_job_edge(NODE_JOB_FORMING, NODE_JOB_STATES));
}
END_TEST

START_TEST(an_illegal_job_edge_is_an_assertion)
{
    struct node_generation *generation = new_generation("a", 1);
    node_job_set_state(generation, NODE_JOB_FAILED, "test");
    node_job_set_state(generation, NODE_JOB_RUNNING, "test");
}
END_TEST

START_TEST(an_illegal_slot_edge_changes_nothing)
{
    struct node_generation *generation = new_generation("a", 2);

    ck_assert(!node_slot_set(&jobs, generation, 0, NODE_SLOT_ATTACHED, 5, 1, "test"));
    ck_assert(!node_slot_set(&jobs, generation, 0, NODE_SLOT_LOST, 5, 1, "test"));
    ck_assert_int_eq(generation->slots[0].state, NODE_SLOT_ABSENT);
    ck_assert_int_eq(generation->slots[0].pid, 0);
    ck_assert_int_eq(generation->counts[NODE_SLOT_ABSENT], 2);
    ck_assert_uint_eq(jobs.session_count, 0);
}
END_TEST

START_TEST(the_state_follows_the_slots)
{
    struct node_generation *generation = new_generation("a", 3);

    ck_assert_int_eq(generation->state, NODE_JOB_FORMING);
    attach(generation, 0);
    attach(generation, 1);
    ck_assert_int_eq(generation->state, NODE_JOB_FORMING);
    node_slot_set(&jobs, generation, 2, NODE_SLOT_ATTACHING, 102, 1, "test");
    ck_assert_int_eq(generation->state, NODE_JOB_FORMING);
    node_slot_set(&jobs, generation, 2, NODE_SLOT_ATTACHED, 102, 1, "test");
    ck_assert_int_eq(generation->state, NODE_JOB_RUNNING);
    node_slot_set(&jobs, generation, 0, NODE_SLOT_LEFT, 100, 1, "test");
    ck_assert_int_eq(generation->state, NODE_JOB_CLOSING);
    node_slot_set(&jobs, generation, 1, NODE_SLOT_LOST, 101, 1, "test");
    ck_assert_int_eq(generation->state, NODE_JOB_FAILED);
    node_slot_set(&jobs, generation, 2, NODE_SLOT_LEFT, 102, 1, "test");
    ck_assert_int_eq(generation->state, NODE_JOB_FAILED);
    ck_assert_int_eq(node_generation_present(generation), 0);
}
END_TEST

START_TEST(a_rank_that_breaks_the_protocol_fails_the_job)
{
    struct node_generation *generation = new_generation("a", 2);
    attach(generation, 1);
    node_slot_set(&jobs, generation, 1, NODE_SLOT_ENDED, 101, 1, "test");
    ck_assert_int_eq(generation->state, NODE_JOB_FAILED);
    ck_assert(node_generation_lost(generation));
    ck_assert(!node_generation_left(generation));
}
END_TEST

START_TEST(a_failed_adoption_leaves_the_slot_free)
{
    struct node_generation *generation = new_generation("a", 2);
    node_slot_set(&jobs, generation, 0, NODE_SLOT_ATTACHING, 100, 1, "test");
    ck_assert_uint_eq(jobs.session_count, 1);
    node_slot_set(&jobs, generation, 0, NODE_SLOT_ABSENT, 0, 0, "test");
    ck_assert_uint_eq(jobs.session_count, 0);
    ck_assert_int_eq(generation->state, NODE_JOB_FORMING);
    attach(generation, 0);
}
END_TEST

START_TEST(the_table_counts_and_forgets_what_has_ended)
{
    struct node_generation *first = new_generation("a", 2), *second = new_generation("a", 2);
    struct node_generation *other = new_generation("b", 1);

    ck_assert_uint_eq(first->number, 1);
    ck_assert_uint_eq(second->number, 2);
    ck_assert_ptr_eq(node_job_newest(first->job), second);
    ck_assert_uint_eq(jobs.job_count, 2);
    attach(first, 0);
    attach(second, 0);
    attach(other, 0);
    ck_assert_uint_eq(jobs.session_count, 3);
    ck_assert_uint_eq(node_jobs_sessions_of(&jobs, 1000), 3);
    ck_assert_uint_eq(node_jobs_sessions_of(&jobs, 1001), 0);
    node_generation_end(&jobs, second, "test");
    ck_assert_ptr_eq(node_job_newest(node_job_find(&jobs, 1000, "a")), first);
    node_generation_end(&jobs, first, "test");
    ck_assert_ptr_null(node_job_find(&jobs, 1000, "a"));
    ck_assert_uint_eq(jobs.session_count, 1);
    node_jobs_fini(&jobs);
    ck_assert_uint_eq(jobs.job_count, 0);
    ck_assert_uint_eq(jobs.generation_count, 0);
    ck_assert_uint_eq(jobs.session_count, 0);
}
END_TEST

START_TEST(users_have_jobs_of_the_same_id_and_nothing_in_common)
{
    struct node_generation *mine, *theirs;
    uint32_t users;

    ck_assert_int_eq(node_generation_new(&jobs, "a", 1, "mine", 2, 2, 0, &mine), HVI_OK);
    ck_assert_ptr_null(node_job_find(&jobs, 2, "a"));
    ck_assert_ptr_eq(node_job_find_only(&jobs, "a", &users), mine->job);
    ck_assert_int_eq(node_generation_new(&jobs, "a", 2, "theirs", 3, 3, 0, &theirs), HVI_OK);
    ck_assert_ptr_ne(mine->job, theirs->job);
    ck_assert_uint_eq(theirs->number, 1);
    ck_assert_str_eq(theirs->job->key_digest, "theirs");
    ck_assert_ptr_eq(node_job_find(&jobs, 1, "a"), mine->job);
    ck_assert_ptr_eq(node_job_find(&jobs, 2, "a"), theirs->job);
    ck_assert_ptr_null(node_job_find_only(&jobs, "a", &users));
    ck_assert_uint_eq(users, 2);
    ck_assert_ptr_null(node_job_find_only(&jobs, "b", &users));
    ck_assert_uint_eq(users, 0);
    node_jobs_fini(&jobs);
}
END_TEST

START_TEST(generations_keep_their_order_whatever_order_they_come_back_in)
{
    struct node_generation *five, *three, *same = NULL, *next;

    ck_assert_int_eq(node_generation_new(&jobs, "a", 1, "", 2, 2, 5, &five), HVI_OK);
    ck_assert_int_eq(node_generation_new(&jobs, "a", 1, "", 2, 2, 3, &three), HVI_OK);
    ck_assert_int_eq(node_generation_new(&jobs, "a", 1, "", 2, 2, 5, &same), HVI_ERR_INVALID);
    ck_assert_ptr_null(same);
    ck_assert_ptr_eq(five->job->generations, three);
    ck_assert_ptr_eq(node_job_newest(five->job), five);
    ck_assert_int_eq(node_generation_new(&jobs, "a", 1, "", 2, 2, 0, &next), HVI_OK);
    ck_assert_uint_eq(next->number, 6);
    node_jobs_fini(&jobs);
}
END_TEST

START_TEST(slot_names_can_be_read_back)
{
    for (int i = 0; i < NODE_SLOT_STATES; i++)
        ck_assert_int_eq(node_slot_state_parse(node_slot_state_text((enum node_slot_state)i)), i);
    ck_assert_int_eq(node_slot_state_parse("asleep"), -1);
    ck_assert_str_eq(node_job_state_text(NODE_JOB_CLOSING), "closing");
}
END_TEST

static void setup(void)
{
    hvi_log_set_level(HVI_LOG_ERROR);
    node_jobs_init(&jobs);
}

int main(void)
{
    Suite *suite = suite_create("node job");
    TCase *tcase = tcase_create("job");

    tcase_add_checked_fixture(tcase, setup, NULL);
    tcase_add_test(tcase, slot_edges_are_exactly_those_of_the_picture);
    tcase_add_test(tcase, job_states_only_go_forward);
    tcase_add_test_raise_signal(tcase, an_illegal_job_edge_is_an_assertion, SIGABRT);
    tcase_add_test(tcase, an_illegal_slot_edge_changes_nothing);
    tcase_add_test(tcase, the_state_follows_the_slots);
    tcase_add_test(tcase, a_rank_that_breaks_the_protocol_fails_the_job);
    tcase_add_test(tcase, a_failed_adoption_leaves_the_slot_free);
    tcase_add_test(tcase, the_table_counts_and_forgets_what_has_ended);
    tcase_add_test(tcase, users_have_jobs_of_the_same_id_and_nothing_in_common);
    tcase_add_test(tcase, generations_keep_their_order_whatever_order_they_come_back_in);
    tcase_add_test(tcase, slot_names_can_be_read_back);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
