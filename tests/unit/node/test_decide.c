/* SPDX-License-Identifier: Apache-2.0 */
#include "base/status.h"
#include "daemon/node/node.h"
#include "shm/abi.h"
#include "tests/unit/hvt_main.h"

#include <string.h>
#include <unistd.h>

static struct node node;
static struct node_peer peer;
static struct hvi_attach_request request;
static struct node_decision decision;

static void setup(void)
{
    hvi_log_set_level(HVI_LOG_ERROR);
    memset(&node, 0, sizeof(node));
    node_jobs_init(&node.jobs);
    node_config_defaults(&node.config);
    node.uid = 1000;
    snprintf(node.rundir.path, sizeof(node.rundir.path), "/run/test");
    peer = (struct node_peer){.pid = 4711, .uid = 1000, .gid = 1000};
    memset(&request, 0, sizeof(request));
    request.protocol_version = HVI_PROTOCOL_VERSION;
    request.abi_version = HVI_ABI_VERSION;
    strcpy(request.job, "train");
    request.size = 4;
}

static void teardown(void)
{
    node_jobs_fini(&node.jobs);
}

static int decide(int32_t rank)
{
    request.rank = rank;
    node_attach_decide(&node, &peer, &request, &decision);
    return decision.status;
}

/* What attach.c does with a good decision. */
static struct node_generation *join(int32_t rank)
{
    struct node_generation *generation;
    char digest[HVI_DIGEST_TEXT];

    ck_assert_msg(decide(rank) == HVI_OK, "%s", decision.text);
    generation = decision.generation;
    hvi_digest_text(request.job_key, digest);
    if (generation == NULL)
        ck_assert_int_eq(node_generation_new(&node.jobs, request.job, peer.uid, digest,
                                             request.size, node_attach_seats(&request), 0,
                                             &generation),
                         HVI_OK);
    node_slot_claim(generation, node_attach_seat(&request), rank, 0);
    ck_assert(
        node_slot_set(&node.jobs, generation, rank, NODE_SLOT_ATTACHING, 100 + rank, 1, "test"));
    ck_assert(
        node_slot_set(&node.jobs, generation, rank, NODE_SLOT_ATTACHED, 100 + rank, 1, "test"));
    return generation;
}

static void go(struct node_generation *generation, int32_t rank, enum node_slot_state state)
{
    ck_assert(node_slot_set(&node.jobs, generation, rank, state, 100 + rank, 1, "test"));
}

#define ASSERT_REFUSED(rank, status_, ...)                                                         \
    do {                                                                                           \
        char sentence[HVI_TEXT_MAX + 1];                                                           \
        ck_assert_int_eq(decide(rank), status_);                                                   \
        snprintf(sentence, sizeof(sentence), __VA_ARGS__);                                         \
        ck_assert_str_eq(decision.text, sentence);                                                 \
        ck_assert_ptr_null(decision.generation);                                                   \
    } while (0)

START_TEST(the_first_rank_makes_a_generation_and_the_others_join_it)
{
    struct node_generation *generation = join(2);
    ck_assert_uint_eq(generation->number, 1);
    for (int rank = 0; rank < 4; rank++)
        if (rank != 2)
            ck_assert_ptr_eq(join(rank), generation);
    ck_assert_int_eq(generation->state, NODE_JOB_RUNNING);
}
END_TEST

START_TEST(a_foreign_version_is_refused_with_both_versions_named)
{
    request.protocol_version = 9;
    ASSERT_REFUSED(
        0, HVI_ERR_VERSION,
        "this client speaks protocol 9 with ABI 8, hvdd %s speaks protocol 1 with ABI 8; use the "
        "libhvdclient of hvdd's release",
        HVD_VERSION_TEXT);
    request.protocol_version = HVI_PROTOCOL_VERSION;
    request.abi_version = HVI_ABI_VERSION + 1;
    ck_assert_int_eq(decide(0), HVI_ERR_VERSION);
    ck_assert_ptr_nonnull(strstr(decision.text, "ABI 8"));
}
END_TEST

START_TEST(a_private_hvdd_refuses_every_other_uid_even_root)
{
    node.private_mode = true;
    peer.uid = 0;
    ASSERT_REFUSED(0, HVI_ERR_REFUSED,
                   "this hvdd (/run/test) is private to uid 1000 and refuses uid 0; start one of "
                   "your own or set "
                   "HVD_ADDRESS");
    peer.uid = 1000;
    ck_assert_int_eq(decide(0), HVI_OK);
}
END_TEST

START_TEST(a_peer_in_another_pid_namespace_is_taken)
{
    peer.pid = 0;
    ck_assert_int_eq(decide(0), HVI_OK);
}
END_TEST

START_TEST(a_draining_hvdd_takes_nobody)
{
    join(0);
    node.phase = NODE_PHASE_DRAINING;
    ASSERT_REFUSED(1, HVI_ERR_DRAINING, "hvdd (pid %d) is shutting down and takes no new sessions",
                   (int)getpid());
    node.phase = NODE_PHASE_STOPPING;
    ck_assert_int_eq(decide(1), HVI_ERR_DRAINING);
}
END_TEST

START_TEST(a_rank_outside_the_size_is_refused)
{
    ASSERT_REFUSED(4, HVI_ERR_BAD_RANK, "rank 4 is outside 0..3 of job 'train'");
    ASSERT_REFUSED(-1, HVI_ERR_BAD_RANK, "rank -1 is outside 0..3 of job 'train'");
    request.size = 0;
    ASSERT_REFUSED(0, HVI_ERR_BAD_SIZE, "size 0 of job 'train' is not between 1 and 1024");
    request.size = HVI_RANKS_MAX + 1;
    ck_assert_int_eq(decide(0), HVI_ERR_BAD_SIZE);
}
END_TEST

START_TEST(a_job_on_several_nodes_is_refused)
{
    request.local_size = 2;
    request.cross_size = 2;
    ASSERT_REFUSED(
        3, HVI_ERR_UNSUPPORTED,
        "rank 3 of job 'train' is one of 4 ranks on 2 nodes (local_size 2, cross_size 2), "
        "and this hvdd has no mesh to other nodes; start the job with hvdrun -H, or set "
        "HVD_RENDEZVOUS to the name of one of its machines and HVD_KEY_FILE to keys that `hvdctl "
        "key new` has made, or start hvdd with --mesh-seeds, --mesh-listen or --mesh-join");
    strcpy(request.origin, "hvdrun");
    ck_assert_int_eq(decide(3), HVI_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(
        decision.text, "one of 4 ranks on 2 nodes (from hvdrun: local_size 2, cross_size 2)"));
    request.local_size = 3;
    request.cross_size = 1;
    ck_assert_int_eq(decide(0), HVI_ERR_UNSUPPORTED);
    request.local_size = 4;
    request.cross_size = 2;
    ck_assert_int_eq(decide(0), HVI_ERR_UNSUPPORTED);
    request.cross_size = 1;
    ck_assert_int_eq(decide(0), HVI_OK);
}
END_TEST

/* ---- jobs on several nodes, where there is a mesh ---- */

/* A rank of a job of a million, of which four are here. */
static void span(int32_t local_rank)
{
    snprintf(node.mesh.join, sizeof node.mesh.join, "host:9600");
    request.size = 1000000;
    request.local_size = 4;
    request.local_rank = local_rank;
}

static struct node_generation *join_seat(int32_t local_rank, int32_t rank)
{
    span(local_rank);
    return join(rank);
}

START_TEST(a_job_on_several_nodes_has_a_slot_for_each_rank_of_this_node)
{
    struct node_generation *generation = join_seat(0, 5);

    ck_assert_int_eq(generation->seats, 4);
    ck_assert_ptr_eq(join_seat(2, 900000), generation);
    ck_assert_ptr_eq(join_seat(1, 2), generation);
    ck_assert_int_eq(generation->state, NODE_JOB_FORMING);
    ck_assert_ptr_eq(join_seat(3, 7), generation);
    ck_assert_int_eq(generation->state, NODE_JOB_RUNNING);
    ck_assert_ptr_eq(node_generation_slot(generation, 900000), &generation->slots[2]);
    ck_assert_ptr_null(node_generation_slot(generation, 0));
}
END_TEST

START_TEST(a_local_rank_outside_the_local_size_is_refused)
{
    span(4);
    ASSERT_REFUSED(9, HVI_ERR_BAD_RANK,
                   "local rank 4 of rank 9 is outside 0..3, the ranks of job 'train' on this node");
    span(-1);
    ck_assert_int_eq(decide(9), HVI_ERR_BAD_RANK);
    span(3);
    ck_assert_int_eq(decide(9), HVI_OK);
}
END_TEST

START_TEST(ranks_that_are_all_here_and_on_two_nodes_are_refused)
{
    snprintf(node.mesh.join, sizeof node.mesh.join, "host:9600");
    request.local_size = 4;
    request.cross_size = 2;
    ASSERT_REFUSED(1, HVI_ERR_BAD_SIZE,
                   "rank 1 says that job 'train' is on 2 nodes (cross_size), and that all of its 4 "
                   "ranks are on this one (local_size 4)");
}
END_TEST

START_TEST(ranks_of_a_node_that_disagree_about_how_many_they_are_are_refused)
{
    join_seat(0, 5);
    span(1);
    request.local_size = 3;
    ASSERT_REFUSED(
        6, HVI_ERR_BAD_SIZE,
        "this rank says that 3 ranks of job 'train' are on this node, but those before it "
        "said 4");
}
END_TEST

START_TEST(a_seat_that_is_taken_twice_is_refused_naming_its_holder)
{
    join_seat(0, 5);
    ASSERT_REFUSED(
        6, HVI_ERR_DUPLICATE_RANK,
        "local rank 0 of job 'train' is already attached: pid 105 holds it as rank 5, and "
        "this process says that it is rank 6");
    span(1);
    ASSERT_REFUSED(5, HVI_ERR_DUPLICATE_RANK,
                   "rank 5 of job 'train' is already attached: pid 105 holds it");
}
END_TEST

START_TEST(a_seat_that_was_promised_in_vain_is_anybodys)
{
    struct node_generation *generation = join_seat(0, 5);

    node_slot_claim(generation, 1, 6, 0);
    go(generation, 6, NODE_SLOT_ATTACHING);
    go(generation, 6, NODE_SLOT_ABSENT);
    ck_assert_ptr_null(node_generation_slot(generation, 6));
    ck_assert_ptr_eq(join_seat(2, 6), generation);
    ck_assert_ptr_eq(join_seat(1, 8), generation);
}
END_TEST

START_TEST(ranks_that_come_again_meet_in_the_next_generation_with_other_seats)
{
    struct node_generation *first = join_seat(0, 5), *second;

    go(first, 5, NODE_SLOT_LEFT);
    second = join_seat(1, 5);
    ck_assert_ptr_ne(second, first);
    ck_assert_ptr_eq(join_seat(0, 6), second);
}
END_TEST

START_TEST(another_size_than_the_job_has_is_refused_naming_both)
{
    join(0);
    request.size = 8;
    ASSERT_REFUSED(1, HVI_ERR_BAD_SIZE,
                   "this rank says that job 'train' has size 8, but it runs with 4");
    ASSERT_REFUSED(6, HVI_ERR_BAD_SIZE,
                   "this rank says that job 'train' has size 8, but it runs with 4");
}
END_TEST

START_TEST(another_user_gets_a_job_of_his_own_whatever_it_is_called)
{
    const struct node_generation *mine = join(0), *theirs;

    peer.uid = 1001;
    theirs = join(1);
    ck_assert_ptr_ne(theirs->job, mine->job);
    ck_assert_int_eq(decide(1), HVI_ERR_DUPLICATE_RANK);
    peer.uid = 0;
    ck_assert_int_eq(decide(1), HVI_OK);
    ck_assert_ptr_null(decision.generation);
    peer.uid = 1000;
    ck_assert_int_eq(decide(1), HVI_OK);
    ck_assert_ptr_eq(decision.generation, mine);
}
END_TEST

/* What node_decide_job says to `uid`: the owner of the job, or minus the status. */
static int asks(uid_t uid, const uint32_t *owner, const char *id)
{
    struct node_job *job = NULL;
    int status = node_decide_job(&node, uid, owner, id, &job, decision.text, sizeof(decision.text));

    return status == HVI_OK ? (int)job->name.uid : status;
}

START_TEST(a_job_that_is_asked_about_is_the_askers_own_or_the_only_one_or_the_named_owners)
{
    const uint32_t first = 1000, second = 1001, third = 1002;

    node.uid = 77;
    join(0);
    ck_assert_int_eq(asks(1000, NULL, "train"), 1000);
    ck_assert_int_eq(asks(0, NULL, "train"), 1000);
    ck_assert_int_eq(asks(77, NULL, "train"), 1000);
    ck_assert_int_eq(asks(1001, NULL, "train"), HVI_ERR_REFUSED);
    ck_assert_ptr_nonnull(strstr(decision.text, "job 'train' belongs to another user"));
    ck_assert_int_eq(asks(1001, &first, "train"), HVI_ERR_REFUSED);
    ck_assert_int_eq(asks(1001, NULL, "none"), HVI_ERR_NOT_FOUND);
    peer.uid = 1001;
    join(0);
    ck_assert_int_eq(asks(1000, NULL, "train"), 1000);
    ck_assert_int_eq(asks(1001, NULL, "train"), 1001);
    ck_assert_int_eq(asks(1002, NULL, "train"), HVI_ERR_REFUSED);
    ck_assert_int_eq(asks(0, NULL, "train"), HVI_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(decision.text, "2 users have a job 'train'"));
    ck_assert_int_eq(asks(0, &first, "train"), 1000);
    ck_assert_int_eq(asks(77, &second, "train"), 1001);
    ck_assert_int_eq(asks(0, &third, "train"), HVI_ERR_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(decision.text, "of uid 1002"));
}
END_TEST

START_TEST(another_job_key_is_refused_and_so_is_none)
{
    strcpy(request.job_key, "secret");
    join(0);
    ck_assert_int_eq(decide(1), HVI_OK);
    strcpy(request.job_key, "guess");
    ASSERT_REFUSED(1, HVI_ERR_REFUSED,
                   "the job key (HVD_JOB_KEY) is not the one that job 'train' was started with");
    request.job_key[0] = '\0';
    ck_assert_int_eq(decide(1), HVI_ERR_REFUSED);
}
END_TEST

START_TEST(a_rank_that_is_attached_is_refused_naming_its_holder)
{
    join(0);
    join(1);
    ASSERT_REFUSED(1, HVI_ERR_DUPLICATE_RANK,
                   "rank 1 of job 'train' is already attached: pid 101 holds it");
}
END_TEST

START_TEST(a_rank_that_is_being_attached_is_a_duplicate_too)
{
    struct node_generation *generation = join(0);
    ck_assert(node_slot_set(&node.jobs, generation, 1, NODE_SLOT_ATTACHING, 555, 1, "test"));
    ASSERT_REFUSED(1, HVI_ERR_DUPLICATE_RANK,
                   "rank 1 of job 'train' is already attached: pid 555 holds it");
    generation->slots[1].own_pid = 7;
    ASSERT_REFUSED(1, HVI_ERR_DUPLICATE_RANK,
                   "rank 1 of job 'train' is already attached: pid 555, 7 in its own pid namespace "
                   "holds it");
}
END_TEST

START_TEST(limits_are_named)
{
    node.config.max_jobs = 1;
    join(0);
    strcpy(request.job, "second");
    ASSERT_REFUSED(0, HVI_ERR_DAEMON_LIMIT, "1 jobs run already (max-jobs = 1)");
    strcpy(request.job, "train");
    ck_assert_int_eq(decide(1), HVI_OK);
    node.config.max_sessions_per_user = 1;
    ASSERT_REFUSED(
        1, HVI_ERR_DAEMON_LIMIT,
        "uid 1000 has as many ranks attached as one user may (max-sessions-per-user = 1)");
    node.config.max_sessions = 1;
    ASSERT_REFUSED(1, HVI_ERR_DAEMON_LIMIT,
                   "1 ranks are attached to hvdd already (max-sessions = 1)");
}
END_TEST

START_TEST(one_users_jobs_leave_room_for_those_of_others)
{
    node.config.max_jobs_per_user = 1;
    join(0);
    strcpy(request.job, "second");
    ASSERT_REFUSED(0, HVI_ERR_DAEMON_LIMIT,
                   "uid 1000 has as many jobs as one user may (max-jobs-per-user = 1)");
    node.private_mode = true;
    ck_assert_int_eq(decide(0), HVI_OK);
    node.private_mode = false;
    peer.uid = 1001;
    ck_assert_int_eq(decide(0), HVI_OK);
}
END_TEST

START_TEST(a_job_whose_ranks_have_all_gone_takes_nobodys_place)
{
    struct node_generation *generation;

    node.config.max_jobs = 1;
    request.size = 1;
    generation = join(0);
    go(generation, 0, NODE_SLOT_LEFT);
    strcpy(request.job, "second");
    ck_assert_int_eq(decide(0), HVI_OK);
}
END_TEST

START_TEST(reopening_in_lockstep_meets_in_the_next_generation)
{
    struct node_generation *first, *second;

    request.size = 2;
    first = join(0);
    ck_assert_ptr_eq(join(1), first);
    go(first, 0, NODE_SLOT_LEFT);
    second = join(0); /* early: waits there for rank 1 */
    ck_assert_ptr_ne(second, first);
    ck_assert_uint_eq(second->number, 2);
    go(first, 1, NODE_SLOT_LEFT);
    ck_assert_ptr_eq(join(1), second);
    ck_assert_int_eq(second->state, NODE_JOB_RUNNING);
}
END_TEST

START_TEST(a_rank_that_comes_late_still_joins_the_generation_that_waits_for_it)
{
    struct node_generation *first, *second;

    request.size = 2;
    first = join(0);
    go(first, 0, NODE_SLOT_LEFT);
    second = join(0);
    ck_assert_ptr_ne(second, first);
    ck_assert_ptr_eq(join(1), first);
    go(first, 1, NODE_SLOT_LEFT);
    ck_assert_ptr_eq(join(1), second);
}
END_TEST

START_TEST(after_a_loss_everybody_meets_in_the_next_generation)
{
    struct node_generation *first = join(0), *second;

    join(1);
    go(first, 1, NODE_SLOT_LOST);
    second = join(2); /* had not come yet: must not join the failed one */
    ck_assert_ptr_ne(second, first);
    ck_assert_ptr_eq(join(1), second);
    ck_assert_ptr_eq(join(0), second); /* still attached in the failed generation */
    ASSERT_REFUSED(0, HVI_ERR_DUPLICATE_RANK,
                   "rank 0 of job 'train' is already attached: pid 100 holds it");
}
END_TEST

START_TEST(a_rank_that_broke_the_protocol_counts_as_a_loss)
{
    struct node_generation *first = join(0);
    join(1);
    go(first, 1, NODE_SLOT_ENDED);
    ck_assert_ptr_ne(join(0), first);
}
END_TEST

START_TEST(the_next_generation_may_have_another_size)
{
    struct node_generation *first = join(0), *second;

    join(1);
    go(first, 1, NODE_SLOT_LOST);
    request.size = 3;
    second = join(0);
    ck_assert_int_eq(second->size, 3);
    ck_assert_uint_eq(second->number, 2);
    request.size = 4;
    ASSERT_REFUSED(1, HVI_ERR_BAD_SIZE,
                   "this rank says that job 'train' has size 4, but it runs with 3");
}
END_TEST

START_TEST(a_stopping_generation_takes_nobody)
{
    struct node_generation *first = join(0);
    first->stopping = true;
    ck_assert_ptr_ne(join(1), first);
    ck_assert_ptr_ne(join(0), first);
}
END_TEST

START_TEST(jobs_do_not_see_each_other)
{
    struct node_generation *first = join(0);
    strcpy(request.job, "other");
    request.size = 2;
    ck_assert_ptr_ne(join(0), first);
    ck_assert_uint_eq(node.jobs.job_count, 2);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("node attach decision");
    TCase *tcase = tcase_create("decide");

    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, the_first_rank_makes_a_generation_and_the_others_join_it);
    tcase_add_test(tcase, a_foreign_version_is_refused_with_both_versions_named);
    tcase_add_test(tcase, a_private_hvdd_refuses_every_other_uid_even_root);
    tcase_add_test(tcase, a_peer_in_another_pid_namespace_is_taken);
    tcase_add_test(tcase, a_draining_hvdd_takes_nobody);
    tcase_add_test(tcase, a_rank_outside_the_size_is_refused);
    tcase_add_test(tcase, a_job_on_several_nodes_is_refused);
    tcase_add_test(tcase, a_job_on_several_nodes_has_a_slot_for_each_rank_of_this_node);
    tcase_add_test(tcase, a_local_rank_outside_the_local_size_is_refused);
    tcase_add_test(tcase, ranks_that_are_all_here_and_on_two_nodes_are_refused);
    tcase_add_test(tcase, ranks_of_a_node_that_disagree_about_how_many_they_are_are_refused);
    tcase_add_test(tcase, a_seat_that_is_taken_twice_is_refused_naming_its_holder);
    tcase_add_test(tcase, a_seat_that_was_promised_in_vain_is_anybodys);
    tcase_add_test(tcase, ranks_that_come_again_meet_in_the_next_generation_with_other_seats);
    tcase_add_test(tcase, another_size_than_the_job_has_is_refused_naming_both);
    tcase_add_test(tcase, another_user_gets_a_job_of_his_own_whatever_it_is_called);
    tcase_add_test(tcase,
                   a_job_that_is_asked_about_is_the_askers_own_or_the_only_one_or_the_named_owners);
    tcase_add_test(tcase, another_job_key_is_refused_and_so_is_none);
    tcase_add_test(tcase, a_rank_that_is_attached_is_refused_naming_its_holder);
    tcase_add_test(tcase, a_rank_that_is_being_attached_is_a_duplicate_too);
    tcase_add_test(tcase, limits_are_named);
    tcase_add_test(tcase, one_users_jobs_leave_room_for_those_of_others);
    tcase_add_test(tcase, a_job_whose_ranks_have_all_gone_takes_nobodys_place);
    tcase_add_test(tcase, reopening_in_lockstep_meets_in_the_next_generation);
    tcase_add_test(tcase, a_rank_that_comes_late_still_joins_the_generation_that_waits_for_it);
    tcase_add_test(tcase, after_a_loss_everybody_meets_in_the_next_generation);
    tcase_add_test(tcase, a_rank_that_broke_the_protocol_counts_as_a_loss);
    tcase_add_test(tcase, the_next_generation_may_have_another_size);
    tcase_add_test(tcase, a_stopping_generation_takes_nobody);
    tcase_add_test(tcase, jobs_do_not_see_each_other);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
