/* SPDX-License-Identifier: Apache-2.0
 * Ops of sets with members on several nodes: 2, 3 and 20 nodes against one. */
#include "base/status.h"
#include "base/types.h"
#include "daemon/engine/order/negotiate.h"
#include "daemon/engine/order/partial.h"
#include "daemon/engine/order/schedule.h"
#include "tests/unit/engine/hvt_span.h"
#include "tests/unit/hvt_main.h"

#include <stdlib.h>
#include <string.h>

static struct hvt_job job, one;

static const struct layout {
    uint32_t nodes;
    int32_t size;
} layouts[] = {{2, 4}, {2, 7}, {3, 8}, {20, 60}};
#define LAYOUTS (int)(sizeof layouts / sizeof layouts[0])
/* Where a sanitizer would take a minute, it takes a third of them. */
#define SEEDS(count) (HVT_SANITIZED ? (uint64_t)(count) / 3 : (uint64_t)(count))

static void begin(const struct layout *layout, uint64_t seed)
{
    hvt_job_begin(&job, layout->nodes, layout->size, seed, seed % 2);
    hvt_job_begin(&one, 1, layout->size, seed, false);
}

static void end(void)
{
    hvt_job_end(&job);
    hvt_job_end(&one);
}

static void run(void)
{
    hvt_job_run(&job);
    hvt_job_run(&one);
}

static void bring(int32_t rank, uint32_t which, const struct hvt_bring *what)
{
    hvt_job_bring(&job, rank, which, what);
    hvt_job_bring(&one, rank, which, what);
}

/* The same answers on one node as on several. */
static void compare(void)
{
    for (int32_t rank = 0; rank < one.size; rank++) {
        for (uint32_t i = 0; i < HVT_EACH; i++) {
            const struct hvt_part *there = &job.parts[rank][i], *here = &one.parts[rank][i];
            if (!here->used)
                continue;
            ck_assert_msg(there->over == here->over,
                          "rank %d, part %u (%s): over %d, on one node %d", rank, i,
                          hvi_kind_text(here->part.copy.kind), there->over, here->over);
            if (!here->over)
                continue;
            ck_assert_str_eq(there->text, here->text);
            ck_assert_int_eq(there->status, here->status);
            ck_assert_int_eq(there->culprit, here->culprit);
            if (here->status != HVI_OK)
                continue;
            uint16_t kind = here->part.copy.kind;
            /* A sender, or who joined last, by the clocks of nodes. */
            bool by_chance = (kind == HVI_KIND_RECV && here->part.copy.root < 0) ||
                             (kind == HVI_KIND_JOIN && there->part.rows < one.size);
            ck_assert_msg((there->part.rows == here->part.rows || by_chance) &&
                              there->part.out_bytes == here->part.out_bytes,
                          "rank %d, part %u (%s)", rank, i, hvi_kind_text(here->part.copy.kind));
        }
    }
}

static void step(void)
{
    run();
    compare();
    hvt_job_step(&job);
    hvt_job_step(&one);
}

static struct hvt_bring allreduce(const char *name, int64_t count)
{
    return (struct hvt_bring){.name = name,
                              .kind = HVI_KIND_ALLREDUCE,
                              .dtype = HVI_DTYPE_FLOAT32,
                              .reduce_op = HVI_REDUCE_SUM,
                              .ndim = 1,
                              .dims = {count},
                              .root = -1,
                              .prescale = 1};
}

static void expect(int32_t rank, uint32_t which, int status, const char *text)
{
    ck_assert(job.parts[rank][which].over);
    ck_assert_int_eq(job.parts[rank][which].status, status);
    ck_assert_str_eq(job.parts[rank][which].text, text);
}

/* ---- one thing at a time ---- */

START_TEST(the_last_node_makes_it_start_everywhere)
{
    struct hvt_bring what = allreduce("w1", 10);

    begin(&layouts[_i], 1);
    for (int32_t rank = 0; rank < one.size; rank++) {
        ck_assert(!job.parts[0][0].over);
        bring(rank, 0, &what);
        run();
    }
    step();
    end();
}
END_TEST

START_TEST(ranks_on_all_nodes_stand_in_the_sentence_of_a_mismatch)
{
    struct hvt_bring what = allreduce("w1", 40);

    begin(&layouts[0], 2);
    what.ndim = 2;
    what.dims[0] = 10;
    for (int32_t rank = 0; rank < 4; rank++) {
        what.dims[1] = rank == 2 ? 5 : 4;
        bring(rank, 0, &what);
    }
    run();
    expect(
        0, 0, HVI_ERR_MISMATCH,
        "allreduce 'w1': ranks disagree on shape: ranks 0,1,3 said [10, 4]; rank 2 said [10, 5]");
    step();
    end();
}
END_TEST

START_TEST(a_failure_waits_for_ranks_that_come_late)
{
    struct hvt_bring what = allreduce("w1", 10);

    begin(&layouts[_i], 3);
    bring(1, 0, &what);
    run();
    engine_op_fail(&job.node[job.home[1]].order, hvt_job_op(&job, 1, 0), HVI_ERR_STALLED,
                   "it is late", 0);
    engine_op_fail(&one.node[0].order, hvt_job_op(&one, 1, 0), HVI_ERR_STALLED, "it is late", 0);
    run();
    expect(1, 0, HVI_ERR_STALLED, "it is late");
    for (int32_t rank = 0; rank < one.size; rank++) {
        if (rank != 1)
            bring(rank, 0, &what);
    }
    step();
    for (int32_t rank = 0; rank < one.size; rank++) /* the next of this name is a new one */
        bring(rank, 0, &what);
    step();
    end();
}
END_TEST

START_TEST(a_failure_crosses_with_reports)
{
    struct hvt_bring what = allreduce("w1", 10);

    for (uint64_t seed = 1; seed < SEEDS(60); seed++) {
        begin(&layouts[_i], seed);
        for (int32_t rank = 0; rank + 1 < one.size; rank++)
            hvt_job_bring(&job, rank, 0, &what);
        hvt_job_run_some(&job, (uint32_t)seed % 7);
        struct engine_op *op = hvt_job_op(&job, (int32_t)(seed % 2), 0);
        if (op)
            engine_op_fail(&job.node[job.home[seed % 2]].order, op, HVI_ERR_STALLED, "late", -1);
        hvt_job_run_some(&job, (uint32_t)seed % 5);
        hvt_job_bring(&job, one.size - 1, 0, &what);
        hvt_job_run(&job);
        for (int32_t rank = 0; rank < one.size; rank++) {
            ck_assert_msg(job.parts[rank][0].over, "rank %d of seed %d", rank, (int)seed);
            ck_assert_int_eq(job.parts[rank][0].status, job.parts[0][0].status);
        }
        hvt_job_step(&job);
        for (int32_t rank = 0; rank < one.size; rank++)
            bring(rank, 0, &what);
        step();
        end();
    }
}
END_TEST

static struct hvt_bring join_of(uint32_t set)
{
    return (struct hvt_bring){.name = "join", .set = set, .kind = HVI_KIND_JOIN, .root = -1};
}

START_TEST(ranks_that_have_joined_are_not_waited_for)
{
    struct hvt_bring what = allreduce("w1", 10), root = allreduce("w2", 4), joined = join_of(0);

    begin(&layouts[_i], 4);
    root.kind = HVI_KIND_BROADCAST;
    root.root = 0;
    for (int32_t rank = 0; rank < one.size; rank++) {
        if (rank % 2 || rank % 3)
            continue;
        bring(rank, 2, &joined);
    }
    for (int32_t rank = 0; rank < one.size; rank++) {
        if (!(rank % 2 || rank % 3))
            continue;
        bring(rank, 0, &what);
        bring(rank, 1, &root);
    }
    run();
    expect(1, 1, HVI_ERR_INVALID, "broadcast 'w2': root rank 0 has joined and has nothing to send");
    compare();
    for (int32_t rank = 0; rank < one.size; rank++) {
        if (!(rank % 2 || rank % 3))
            continue;
        run();
        bring(rank, 2, &joined);
    }
    run();
    ck_assert_int_eq(job.parts[0][2].part.rows, one.parts[0][2].part.rows);
    step();
    for (int32_t rank = 0; rank < one.size; rank++) /* and now they are back */
        bring(rank, 0, &what);
    step();
    end();
}
END_TEST

START_TEST(groups_start_together_or_fail_together)
{
    begin(&layouts[_i], 5);
    for (int turn = 0; turn < 3; turn++) {
        for (int32_t rank = 0; rank < one.size; rank++) {
            bool other = job.home[rank] == 1;
            struct hvt_bring a = allreduce("a", 1), b = allreduce("b", turn == 1 && other ? 3 : 2);
            struct hvt_bring c = allreduce(turn == 2 && other ? "d" : "c", 3);
            a.group_size = b.group_size = c.group_size = 3;
            b.group_index = 1;
            c.group_index = 2;
            bring(rank, 0, &a);
            bring(rank, 1, &b);
            bring(rank, 2, &c);
        }
        run();
        ck_assert_int_eq(job.parts[0][0].status, turn == 0 ? HVI_OK : HVI_ERR_MISMATCH);
        step();
    }
    for (int32_t rank = 0; rank < one.size; rank++) { /* of "d" the others have heard nothing */
        struct hvt_bring c = allreduce("c", 3), d = allreduce("d", 3);
        bring(rank, 0, &c);
        bring(rank, 1, &d);
    }
    step();
    end();
}
END_TEST

/* Verdicts are messages of their own: the job ends when one member is done and the root has not said of the other that it
 * may begin. */
START_TEST(a_group_of_which_half_has_begun_ends_with_the_job)
{
    const int32_t there = 1; /* ranks are dealt to two nodes in turn */
    bool half = false;

    for (uint64_t seed = 1; seed < 50 && !half; seed++) {
        hvt_job_begin(&job, 2, 4, seed, false);
        for (int32_t rank = 0; rank < 4; rank++) {
            struct hvt_bring a = allreduce("a", 1), b = allreduce("b", 2);
            a.group_size = b.group_size = 2;
            b.group_index = 1;
            hvt_job_bring(&job, rank, 0, &a);
            hvt_job_bring(&job, rank, 1, &b);
        }
        do {
            struct engine_op *first = hvt_job_op(&job, there, 0),
                             *second = hvt_job_op(&job, there, 1);
            half = first && second &&
                   (first->state == ENGINE_OP_EXECUTING) != (second->state == ENGINE_OP_EXECUTING);
        } while (!half && hvt_job_run_some(&job, 1));
        hvt_job_break(&job, 1, HVI_ERR_RANK_LOST, 3, "rank 3 is lost");
        hvt_job_run(&job);
        for (int32_t rank = 0; rank < 4; rank++) {
            for (uint32_t i = 0; i < 2; i++) {
                ck_assert(job.parts[rank][i].over);
                ck_assert(!half || rank % 2 == 0 || job.parts[rank][i].status == HVI_ERR_RANK_LOST);
            }
        }
        hvt_job_break(&job, 0, HVI_ERR_RANK_LOST, 3, "rank 3 is lost");
        hvt_job_end(&job);
    }
    ck_assert(half);
}
END_TEST

/* Until then some rank has not come to either of them. By which nodes the others are on, and which ranks join. */
START_TEST(groups_that_differ_come_to_light_when_the_last_ranks_join)
{
    static const char *const who[] = {"rank 1 said 'b'; rank 2 said 'c'",
                                      "rank 0 said 'b'; rank 2 said 'c'",
                                      "rank 0 said 'b'; rank 1 said 'c'"};
    const uint32_t joins = (uint32_t)_i, differs = joins == 2 ? 1 : 2;
    char sentence[128];
    struct hvt_bring joined = join_of(0);

    begin(&layouts[2], 10); /* ranks are dealt to three nodes in turn */
    for (int32_t rank = 0; rank < one.size; rank++) {
        struct hvt_bring a = allreduce("a", 1);
        struct hvt_bring b = allreduce(job.home[rank] == differs ? "c" : "b", 2);
        a.group_size = b.group_size = 2;
        b.group_index = 1;
        if (job.home[rank] == joins)
            continue;
        bring(rank, 0, &a);
        bring(rank, 1, &b);
    }
    run();
    ck_assert(!job.parts[differs][0].over && !one.parts[differs][0].over);
    for (int32_t rank = 0; rank < one.size; rank++) {
        if (job.home[rank] == joins)
            bring(rank, 2, &joined);
    }
    run();
    snprintf(sentence, sizeof sentence,
             "allreduce 'a': ranks disagree on member 2 of 2 of its group: %s", who[joins]);
    expect((int32_t)differs, 0, HVI_ERR_MISMATCH, sentence);
    compare();
    for (int32_t rank = 0; rank < one.size; rank++) {
        if (job.home[rank] != joins)
            bring(rank, 2, &joined);
    }
    run();
    hvt_job_step(&job);
    hvt_job_step(&one);
    end();
}
END_TEST

START_TEST(a_group_whose_last_member_comes_after_the_jobs_end_ends_with_it)
{
    struct hvt_bring a = allreduce("a", 1), b = allreduce("b", 2);

    begin(&layouts[0], 10);
    a.group_size = b.group_size = 2;
    b.group_index = 1;
    bring(0, 0, &a);
    hvt_job_break(&job, 0, HVI_ERR_RANK_LOST, 3, "rank 3 was killed");
    hvt_job_break(&one, 0, HVI_ERR_RANK_LOST, 3, "rank 3 was killed");
    bring(0, 1, &b);
    for (uint32_t i = 0; i < 2; i++)
        expect(0, i, HVI_ERR_RANK_LOST, "rank 3 was killed");
    step();
    end();
}
END_TEST

START_TEST(a_join_is_not_taken_back_where_other_nodes_count_on_it)
{
    struct hvt_bring joined = join_of(0);

    begin(&layouts[0], 10);
    hvt_job_bring(&job, 0, 0, &joined);
    ck_assert(!engine_negotiate_withdraw(&job.node[0].order, &job.parts[0][0].part,
                                         HVI_ERR_CANCELLED, "taken back"));
    for (int32_t rank = 1; rank < 4; rank++)
        hvt_job_bring(&job, rank, 0, &joined);
    hvt_job_run(&job);
    ck_assert_int_eq(job.parts[0][0].status, HVI_OK);
    hvt_job_step(&job);
    end();
}
END_TEST

/* Rows that no tensor could have, and each input is smaller than memory. */
START_TEST(results_whose_size_overflows_are_refused_on_every_rank)
{
    struct hvt_bring what = allreduce("g", INT64_C(1) << 61);
    int64_t splits[HVT_RANKS] = {INT64_C(1) << 61}; /* all to rank 0 */

    begin(&layouts[_i], 10);
    what.dtype = HVI_DTYPE_UINT8;
    for (uint32_t i = 0; i < 2; i++) {
        what.kind = i == 0 ? HVI_KIND_ALLGATHER : HVI_KIND_ALLTOALL;
        what.integers = i == 0 ? NULL : splits;
        what.integer_count = i == 0 ? 0 : (uint32_t)one.size;
        for (int32_t rank = 0; rank < one.size; rank++)
            bring(rank, 0, &what);
        run();
        expect(1, 0, HVI_ERR_INVALID,
               i == 0 ? "allgather 'g': the size of the result overflows"
                      : "alltoall 'g': the size of rank 0's result overflows");
        step();
    }
    end();
}
END_TEST

/* Its verdict is still under way when all is over. */
START_TEST(a_failure_of_which_the_root_has_not_heard_leaves_nothing_behind)
{
    struct hvt_bring what = allreduce("w1", 4);

    begin(&layouts[0], 10);
    hvt_job_bring(&job, 0, 0, &what);
    engine_op_fail(&job.node[0].order, hvt_job_op(&job, 0, 0), HVI_ERR_STALLED, "late", -1);
    expect(0, 0, HVI_ERR_STALLED, "late");
    for (uint32_t i = 0; i < job.nodes; i++)
        hvt_job_break(&job, i, HVI_ERR_JOB_STOPPED, -1, "over");
    end();
}
END_TEST

static struct hvt_bring set_add(const char *name, const int64_t *ranks, uint32_t count)
{
    return (struct hvt_bring){.name = name,
                              .kind = HVI_KIND_SET_ADD,
                              .root = -1,
                              .integers = ranks,
                              .integer_count = count};
}

START_TEST(sets_have_the_same_ids_everywhere)
{
    static const int64_t ranks[][3] = {{0, 1, 2}, {1, 2, 3}, {0, 3}};
    struct hvt_bring w = allreduce("w1", 4);

    begin(&layouts[_i], 6);
    for (int turn = 0; turn < 3; turn++) {
        for (int32_t rank = 0; rank < one.size; rank++) {
            struct hvt_bring more[3] = {set_add("x", ranks[0], 3), set_add("y", ranks[1], 3),
                                        set_add("z", ranks[2], 2)};
            for (uint32_t i = 0; i < 3; i++) {
                bring(rank, i, &more[i]);
                run();
            }
        }
        for (uint32_t i = 0; i < 3 && turn == 1; i++)
            ck_assert_int_eq(job.parts[0][i].status, HVI_ERR_EXISTS);
        uint32_t id = turn == 0 ? (uint32_t)job.parts[0][0].part.rows : 1;
        step();
        w.set = id;
        for (int32_t rank = 0; rank < 4; rank++)
            bring(rank, 0, &w);
        for (int32_t rank = 0; rank < one.size && turn == 1; rank++) {
            struct hvt_bring gone = {.name = "gone", .kind = HVI_KIND_SET_REMOVE, .root = 2};
            bring(rank, 1, &gone);
        }
        step();
    }
    end();
}
END_TEST

START_TEST(what_waits_in_a_set_that_is_removed_fails)
{
    static const int64_t some[] = {0, 1, 2};
    struct hvt_bring add = set_add("x", some, 3), w = allreduce("w1", 4);
    struct hvt_bring gone = {.name = "gone", .kind = HVI_KIND_SET_REMOVE, .root = 1};
    struct hvt_bring early = allreduce("w2", 4);

    begin(&layouts[_i], 7);
    for (int32_t rank = 0; rank < one.size; rank++)
        bring(rank, 0, &add);
    step();
    w.set = early.set = 1;
    for (int32_t rank = 0; rank < 2; rank++)
        bring(rank, 0, &w);
    bring(0, 2, &early); /* of which nothing is left for the ranks that never come to it */
    engine_op_fail(&job.node[0].order, hvt_job_op(&job, 0, 2), HVI_ERR_STALLED, "late", -1);
    engine_op_fail(&one.node[0].order, hvt_job_op(&one, 0, 2), HVI_ERR_STALLED, "late", -1);
    for (int32_t rank = 0; rank < one.size; rank++)
        bring(rank, 1, &gone);
    run();
    expect(0, 0, HVI_ERR_NOT_FOUND,
           "allreduce 'w1': process set 1 was removed while the op waited");
    step();
    for (uint32_t i = 0; i < job.nodes; i++)
        ck_assert_ptr_null(job.node[i].order.failed_first);
    end();
}
END_TEST

START_TEST(a_rank_that_is_lost_ends_what_waits_on_every_node)
{
    struct hvt_bring what = allreduce("w1", 4);

    begin(&layouts[_i], 8);
    for (int32_t rank = 0; rank + 1 < one.size; rank++)
        bring(rank, 0, &what);
    hvt_job_run_some(&job, 2);
    uint32_t home = job.home[one.size - 1];
    hvt_job_break(&job, home, HVI_ERR_RANK_LOST, one.size - 1, "rank was killed");
    hvt_job_break(&one, 0, HVI_ERR_RANK_LOST, one.size - 1, "rank was killed");
    run();
    for (int32_t rank = 0; rank + 1 < one.size; rank++) {
        ck_assert_int_eq(job.parts[rank][0].status, HVI_ERR_RANK_LOST);
        ck_assert_int_eq(job.parts[rank][0].culprit, one.size - 1);
    }
    for (uint32_t i = 0; i < job.nodes; i++) {
        ck_assert_uint_eq(job.node[i].breaks, i != home);
        ck_assert_int_eq(job.node[i].order.broken_status, HVI_ERR_RANK_LOST);
    }
    end();
}
END_TEST

START_TEST(a_node_that_is_lost_breaks_the_job_and_a_stop_is_told_once_more)
{
    struct hvt_bring what = allreduce("w1", 4);

    begin(&layouts[_i], 9);
    bring(0, 0, &what);
    engine_mesh_node_lost(&job.node[0].mesh, 1, "node 1 (b) is gone");
    hvt_job_run(&job);
    expect(0, 0, HVI_ERR_NODE_LOST, "node 1 (b) is gone");
    hvt_job_break(&job, 0, HVI_ERR_JOB_STOPPED, -1, "it was stopped");
    hvt_job_run(&job);
    for (uint32_t i = 0; i < job.nodes; i++)
        ck_assert_int_eq(job.node[i].order.broken_status, HVI_ERR_JOB_STOPPED);
    ck_assert_str_eq(job.node[1].order.broken_text, "it was stopped");
    engine_negotiate_fail_all(&one.node[0].order, HVI_ERR_JOB_STOPPED, "over", -1);
    end();
}
END_TEST

START_TEST(a_reported_op_waits_and_the_root_knows_for_whom)
{
    struct hvt_bring what = allreduce("w1", 4);
    int32_t ranks[2] = {-1, -1};

    begin(&layouts[0], 10); /* ranks 0 and 2 are on node 0 */
    hvt_job_bring(&job, 0, 0, &what);
    struct engine_op *op = hvt_job_op(&job, 0, 0);
    ck_assert_int_eq(op->state, ENGINE_OP_WAITING);
    hvt_job_bring(&job, 2, 0, &what);
    ck_assert_int_eq(op->state, ENGINE_OP_REPORTED);
    ck_assert_uint_eq(engine_root_missing(job.node[0].order.root, 0, op, ranks, 1), 0);
    hvt_job_run(&job);
    ck_assert_ptr_eq(job.node[0].order.waiting_first, op);
    ck_assert_uint_eq(engine_root_missing(job.node[0].order.root, 0, op, ranks, 1), 2);
    ck_assert_int_eq(ranks[0], 1);
    ck_assert_int_eq(ranks[1], -1);
    hvt_job_bring(&job, 1, 0, &what);
    ck_assert_int_eq(hvt_job_op(&job, 1, 0)->state, ENGINE_OP_WAITING);
    hvt_job_bring(&job, 3, 0, &what);
    hvt_job_run(&job);
    ck_assert_int_eq(job.parts[3][0].status, HVI_OK);
    hvt_job_step(&job);
    end();
}
END_TEST

START_TEST(the_root_knows_of_ops_that_no_rank_of_its_node_has_brought)
{
    struct hvt_bring first = allreduce("w1", 4), second = allreduce("w2", 4);
    int32_t ranks[4];

    begin(&layouts[0], 10); /* ranks 0 and 2 are on node 0 */
    const struct engine_root *root = job.node[0].order.root;
    ck_assert_ptr_null(engine_root_next_without(root, 0, NULL));
    job.node[0].order.now_ns = 4711;
    for (int32_t rank = 1; rank <= 3; rank += 2) {
        hvt_job_bring(&job, rank, 0, &first);
        hvt_job_bring(&job, rank, 1, &second);
    }
    hvt_job_run(&job);
    struct engine_op *op = engine_root_next_without(root, 0, NULL);
    ck_assert_uint_eq(op->first_ns, 4711);
    ck_assert_uint_eq(engine_root_missing(root, UINT32_MAX, op, ranks, 4), 2);
    ck_assert(ranks[0] == 0 && ranks[1] == 2);
    ck_assert_ptr_nonnull(engine_root_next_without(root, 0, op));
    ck_assert_ptr_null(engine_root_next_without(root, 1, NULL));
    hvt_job_bring(&job, 2, 0, &first);
    hvt_job_run(&job);
    ck_assert_ptr_eq(engine_root_next_without(root, 0, NULL), op);
    ck_assert(engine_root_is_same(op, hvt_job_op(&job, 2, 0)));
    ck_assert(!engine_root_is_same(engine_root_next_without(root, 0, op), hvt_job_op(&job, 2, 0)));
    hvt_job_bring(&job, 0, 0, &first);
    for (int32_t rank = 0; rank <= 2; rank += 2)
        hvt_job_bring(&job, rank, 1, &second);
    hvt_job_run(&job);
    ck_assert_ptr_null(engine_root_next_without(root, 0, NULL));
    for (int32_t rank = 0; rank < 4; rank++)
        ck_assert(job.parts[rank][0].status == HVI_OK && job.parts[rank][1].status == HVI_OK);
    end();
}
END_TEST

START_TEST(a_rank_takes_back_what_its_node_has_reported)
{
    struct hvt_bring what = allreduce("w1", 4);

    begin(&layouts[0], 10);
    for (int32_t rank = 0; rank < 3; rank++)
        bring(rank, 0, &what);
    run();
    ck_assert(engine_negotiate_withdraw(&job.node[0].order, &job.parts[2][0].part,
                                        HVI_ERR_CANCELLED,
                                        "allreduce 'w1' was cancelled on rank 2"));
    ck_assert(engine_negotiate_withdraw(&one.node[0].order, &one.parts[2][0].part,
                                        HVI_ERR_CANCELLED,
                                        "allreduce 'w1' was cancelled on rank 2"));
    run();
    expect(2, 0, HVI_ERR_CANCELLED, "allreduce 'w1' was cancelled on rank 2");
    ck_assert(!job.parts[0][0].over);
    compare();
    bring(3, 0, &what);
    run();
    ck_assert(!job.parts[3][0].over);
    bring(2, 1, &what);
    step();
    end();
}
END_TEST

START_TEST(what_is_taken_back_too_late_goes_on)
{
    struct hvt_bring what = allreduce("w1", 4);

    for (uint64_t seed = 1; seed < SEEDS(40); seed++) {
        hvt_job_begin(&job, 2, 4, 2 * seed, false);
        for (int32_t rank = 0; rank < 4; rank++)
            hvt_job_bring(&job, rank, 0, &what);
        hvt_job_run_some(&job, (uint32_t)seed % 4);
        struct engine_op *op = hvt_job_op(&job, 1, 0);
        bool taken = op && engine_negotiate_withdraw(&job.node[1].order, &job.parts[1][0].part,
                                                     HVI_ERR_CANCELLED, "");
        hvt_job_run(&job);
        ck_assert(taken || job.parts[1][0].status == HVI_OK);
        ck_assert(job.parts[1][0].over);
        if (job.parts[1][0].status == HVI_ERR_CANCELLED)
            hvt_job_bring(&job, 1, 1, &what);
        hvt_job_run(&job);
        ck_assert_int_eq(job.parts[0][0].status, HVI_OK);
        hvt_job_step(&job);
        hvt_job_end(&job);
    }
}
END_TEST

static void bring_groups(const char *const names[3], uint8_t reduce_op)
{
    struct hvt_bring what = allreduce("", 4);

    what.dtype = HVI_DTYPE_INT64;
    what.reduce_op = reduce_op;
    what.group_size = 3;
    for (int32_t rank = 0; rank < 3; rank++) {
        for (uint32_t i = 0; i < 3; i++) {
            what.name = names[i];
            what.group_index = i;
            hvt_job_bring(&job, rank, i, &what);
        }
    }
}

START_TEST(a_group_that_fails_leaves_the_next_one_alone)
{
    static const char *const first[3] = {"a1", "a2", "a3"}, *const second[3] = {"b1", "b2", "b3"};

    for (uint64_t seed = 1; seed < SEEDS(20); seed++) {
        hvt_job_begin(&job, 3, 3, seed, false);
        bring_groups(first, HVI_REDUCE_ADASUM);
        hvt_job_run(&job);
        for (int32_t rank = 0; rank < 3; rank++)
            ck_assert_int_eq(job.parts[rank][0].status, HVI_ERR_UNSUPPORTED);
        hvt_job_step(&job);
        bring_groups(second, HVI_REDUCE_SUM);
        hvt_job_run(&job);
        for (int32_t rank = 0; rank < 3; rank++)
            ck_assert_int_eq(job.parts[rank][0].status, HVI_OK);
        hvt_job_step(&job);
        hvt_job_end(&job);
    }
}
END_TEST

static void bring_both(int32_t rank, uint32_t which)
{
    static const char *const names[2] = {"a1", "a2"};
    struct hvt_bring what = allreduce("", 4);

    what.group_size = 2;
    for (what.group_index = 0; what.group_index < 2; what.group_index++) {
        what.name = names[what.group_index];
        bring(rank, which + what.group_index, &what);
    }
}

static void fail_first(struct hvt_job *some)
{
    engine_op_fail(&some->node[some->home[0]].order, hvt_job_op(some, 0, 0), HVI_ERR_STALLED,
                   "late", -1);
}

START_TEST(a_rank_that_is_slow_to_a_failed_group_meets_it_and_not_the_next_one)
{
    begin(&layouts[_i], 11);
    bring_both(0, 0);
    fail_first(&job);
    fail_first(&one);
    run();
    bring_both(0, 2); /* before any other rank has come */
    run();
    for (int32_t rank = 1; rank < one.size; rank++) {
        bring_both(rank, 0);
        run();
        expect(rank, 0, HVI_ERR_STALLED, "late");
        expect(rank, 1, HVI_ERR_STALLED, "late");
        ck_assert(!job.parts[0][2].over);
        if (rank % 2) { /* the others bring it when all have got the failure */
            bring_both(rank, 2);
            run();
        }
    }
    for (int32_t rank = 2; rank < one.size; rank += 2)
        bring_both(rank, 2);
    run();
    for (int32_t rank = 0; rank < one.size; rank++)
        expect(rank, 3, HVI_OK, "");
    step();
    end();
}
END_TEST

START_TEST(a_rank_that_had_joined_brings_an_op_again_that_went_on_without_it)
{
    struct hvt_bring gather = allreduce("g", 2), join = {.kind = HVI_KIND_JOIN, .tag = 1};

    gather.kind = HVI_KIND_ALLGATHER;
    gather.room = 4096;
    for (uint64_t seed = 1; seed < SEEDS(20); seed++) {
        const struct hvt_part *first = &job.parts[0][1], *second = &job.parts[1][2];
        hvt_job_begin(&job, 2, 2, seed, false);
        hvt_job_bring(&job, 1, 0, &gather);
        hvt_job_bring(&job, 0, 0, &join);
        hvt_job_bring(&job, 1, 1, &join);
        do {
            if (job.parts[0][0].over && !first->used)
                hvt_job_bring(&job, 0, 1, &gather);
            if (job.parts[1][0].over && job.parts[1][1].over && !second->used)
                hvt_job_bring(&job, 1, 2, &gather);
        } while (hvt_job_run_some(&job, 1) || !second->used);
        ck_assert_int_eq(job.parts[1][0].status, HVI_OK);
        ck_assert(first->over && first->status == HVI_OK);
        ck_assert(second->over && second->status == HVI_OK);
        hvt_job_step(&job);
        hvt_job_end(&job);
    }
}
END_TEST

START_TEST(outputs_are_asked_for_before_a_work_has_its_place_in_the_order)
{
    struct hvt_bring gather = allreduce("g", 2), sum = allreduce("w1", 4);

    gather.kind = HVI_KIND_ALLGATHER;
    gather.room = 4096;
    begin(&layouts[0], 10);
    for (int32_t rank = 0; rank < 4; rank++)
        hvt_job_bring(&job, rank, 0, &gather);
    for (int32_t rank = 0; rank < 4; rank++)
        hvt_job_bring(&job, rank, 1, &sum);
    hvt_job_run(&job);
    ck_assert_int_eq(job.parts[0][0].status, HVI_OK);
    ck_assert_uint_eq(job.node[0].sequence, 2);
    hvt_job_step(&job);
    gather.room = 1; /* one output that does not fit is the end of it everywhere */
    for (int32_t rank = 0; rank < 4; rank++) {
        hvt_job_bring(&job, rank, 0, &gather);
        gather.room = 4096;
    }
    hvt_job_run(&job);
    for (int32_t rank = 0; rank < 4; rank++) {
        expect(rank, 0, HVI_ERR_TOO_SMALL,
               "allgather 'g': the output of rank 0 has room for 1 bytes, the result has 32");
        ck_assert_int_eq(job.parts[rank][0].culprit, 0);
    }
    ck_assert_uint_eq(job.node[0].sequence, 2);
    hvt_job_step(&job);
    end();
}
END_TEST

static uint64_t chance = 1;

static uint32_t below(uint32_t bound)
{
    return (uint32_t)(hvt_span_random(&chance) >> 24) % bound;
}

/* ---- some members only ---- */

static const int64_t three[] = {0, 1, 2};

static struct hvt_bring pair_of(uint16_t kind, int32_t peer, int64_t count)
{
    struct hvt_bring what = allreduce("", count);

    what.kind = kind;
    what.root = peer;
    what.tag = 3;
    return what;
}

static struct hvt_bring opening(const int64_t *ranks, uint32_t count)
{
    return (struct hvt_bring){
        .kind = HVI_KIND_SET_OPEN, .root = -1, .tag = 3, .integers = ranks, .integer_count = count};
}

START_TEST(a_send_meets_a_recv_on_another_node)
{
    struct hvt_bring send = pair_of(HVI_KIND_SEND, 1, 4), recv = pair_of(HVI_KIND_RECV, 0, 4);

    for (int late = 0; late < 2; late++) { /* ranks 0 and 2 are on node 0 */
        begin(&layouts[0], 10);
        bring(late, 0, late ? &recv : &send);
        run();
        ck_assert(!job.parts[late][0].over);
        bring(1 - late, 0, late ? &send : &recv);
        run();
        ck_assert_int_eq(job.parts[0][0].status, HVI_OK);
        ck_assert_int_eq(job.parts[1][0].part.rows, 0);
        ck_assert_uint_eq(job.parts[1][0].part.out_bytes, 16);
        ck_assert_uint_eq(job.node[0].sequence, 1);
        ck_assert_uint_eq(job.node[1].sequence, 1);
        step();
        end();
    }
}
END_TEST

START_TEST(what_they_disagree_on_stands_in_both_ranks_sentence)
{
    struct hvt_bring send = pair_of(HVI_KIND_SEND, 1, 4), recv = pair_of(HVI_KIND_RECV, 0, 5);
    struct hvt_bring back = pair_of(HVI_KIND_SEND, 0, 5), any = pair_of(HVI_KIND_RECV, -1, 5);

    begin(&layouts[0], 10);
    back.dtype = HVI_DTYPE_INT32;
    bring(1, 0, &recv);
    bring(0, 0, &send);
    bring(1, 1, &back);
    run();
    bring(0, 1, &any);
    run();
    expect(
        0, 0, HVI_ERR_MISMATCH,
        "send '0-to-1.tag-3': ranks disagree on number of elements: rank 0 said 4; rank 1 said 5");
    expect(1, 1, HVI_ERR_MISMATCH,
           "recv '1-to-0.tag-3': ranks disagree on dtype: rank 0 said float32; rank 1 said int32");
    step();
    end();
}
END_TEST

START_TEST(sends_from_one_rank_to_another_keep_their_order)
{
    for (uint64_t seed = 1; seed < SEEDS(20); seed++) {
        begin(&layouts[0], 2 * seed);
        for (int64_t i = 0; i < 8; i++) {
            struct hvt_bring send = pair_of(HVI_KIND_SEND, 1, 1 + i);
            bring(0, (uint32_t)i, &send);
            hvt_job_run_some(&job, below(4));
        }
        for (int64_t i = 0; i < 8; i++) {
            struct hvt_bring recv = pair_of(HVI_KIND_RECV, i % 2 ? -1 : 0, 1 + i);
            bring(1, (uint32_t)i, &recv);
            hvt_job_run_some(&job, below(4));
        }
        run();
        for (uint32_t i = 0; i < 8; i++)
            ck_assert_int_eq(job.parts[1][i].status, HVI_OK);
        step();
        end();
    }
}
END_TEST

START_TEST(a_recv_from_any_rank_takes_what_came_first)
{
    struct hvt_bring send = pair_of(HVI_KIND_SEND, 1, 4), any = pair_of(HVI_KIND_RECV, -1, 4);

    begin(&layouts[0], 10); /* ranks 1 and 3 are on node 1 */
    bring(3, 0, &send);
    bring(0, 0, &send);
    run();
    job.node[1].order.now_ns++;
    bring(1, 0, &any);
    bring(1, 1, &any);
    run();
    ck_assert_int_eq(job.parts[1][0].part.rows, 3);
    ck_assert_int_eq(job.parts[1][1].part.rows, 0);
    hvt_job_step(&job);
    hvt_job_step(&one);
    bring(2, 0, &send);
    run();
    bring(3, 0, &send);
    bring(1, 0, &any);
    bring(1, 1, &any);
    run();
    ck_assert_int_eq(job.parts[1][0].part.rows, 2);
    ck_assert_int_eq(job.parts[1][1].part.rows, 3);
    step();
    end();
}
END_TEST

static bool withdraw(int32_t rank, uint32_t which)
{
    char text[HVI_TEXT_MAX + 1];
    struct engine_part *there = &job.parts[rank][which].part, *here = &one.parts[rank][which].part;

    engine_negotiate_cancel_text(here, text, sizeof text);
    ck_assert(engine_negotiate_withdraw(&one.node[0].order, here, HVI_ERR_CANCELLED, text));
    return engine_negotiate_withdraw(&job.node[job.home[rank]].order, there, HVI_ERR_CANCELLED,
                                     text);
}

START_TEST(a_send_is_taken_back_and_the_next_one_meets_the_recv)
{
    struct hvt_bring send = pair_of(HVI_KIND_SEND, 1, 4), recv = pair_of(HVI_KIND_RECV, 0, 5);

    begin(&layouts[0], 10);
    bring(0, 0, &send);
    send.dims[0] = 5;
    bring(0, 1, &send);
    run();
    ck_assert(withdraw(0, 0));
    ck_assert(!job.parts[0][0].over);
    run();
    expect(0, 0, HVI_ERR_CANCELLED, "send '0-to-1.tag-3' was cancelled on rank 0");
    bring(1, 0, &recv);
    run();
    ck_assert_int_eq(job.parts[1][0].status, HVI_OK);
    step();
    bring(1, 0, &recv);
    ck_assert(withdraw(1, 0));
    step();
    end();
}
END_TEST

START_TEST(a_send_that_is_taken_back_too_late_goes_on)
{
    struct hvt_bring send = pair_of(HVI_KIND_SEND, 1, 4), recv = pair_of(HVI_KIND_RECV, -1, 4);

    for (uint64_t seed = 1; seed < SEEDS(60); seed++) {
        hvt_job_begin(&job, 2, 4, 2 * seed, false);
        hvt_job_bring(&job, 1, 0, &recv);
        hvt_job_bring(&job, 0, 0, &send);
        hvt_job_run_some(&job, (uint32_t)seed % 5);
        struct engine_op *op = hvt_job_op(&job, 0, 0), *met = hvt_job_op(&job, 1, 0);
        if (op && seed % 3 == 0)
            engine_op_fail(&job.node[0].order, op, HVI_ERR_STALLED, "late", -1);
        else if (op)
            engine_negotiate_withdraw(&job.node[0].order, &job.parts[0][0].part, HVI_ERR_CANCELLED,
                                      "");
        if (met && met->reported) /* it cannot be taken back any more */
            ck_assert(!engine_negotiate_withdraw(&job.node[1].order, &job.parts[1][0].part,
                                                 HVI_ERR_CANCELLED, ""));
        if (met && met->reported && seed % 2)
            engine_op_fail(&job.node[1].order, met, HVI_ERR_STALLED, "late", -1);
        hvt_job_run(&job);
        ck_assert(job.parts[0][0].over);
        ck_assert(job.parts[1][0].over == (job.parts[0][0].status == HVI_OK));
        if (!job.parts[1][0].over)
            hvt_job_bring(&job, 0, 1, &send);
        hvt_job_run(&job);
        ck_assert_int_eq(job.parts[1][0].status, HVI_OK);
        hvt_job_step(&job);
        hvt_job_end(&job);
    }
}
END_TEST

START_TEST(what_waits_for_other_nodes_ranks_knows_for_which)
{
    struct hvt_bring send = pair_of(HVI_KIND_SEND, 1, 4), any = pair_of(HVI_KIND_RECV, -1, 4);
    struct hvt_bring recv = pair_of(HVI_KIND_RECV, 3, 4), open = opening(three, 3);
    struct engine_order *order = &job.node[0].order;
    int32_t ranks[2] = {-1, -1};

    begin(&layouts[0], 10);
    bring(0, 0, &send);
    any.tag = 4;
    bring(0, 1, &any);
    bring(0, 2, &recv);
    bring(0, 3, &open);
    run();
    ck_assert(engine_partial_awaits_others(hvt_job_op(&job, 0, 0)));
    ck_assert_uint_eq(engine_partial_others(order, hvt_job_op(&job, 0, 0), ranks, 2), 1);
    ck_assert_int_eq(ranks[0], 1);
    ck_assert(engine_partial_awaits_others(hvt_job_op(&job, 0, 1)));
    ck_assert_uint_eq(engine_partial_others(order, hvt_job_op(&job, 0, 1), ranks, 2), 0);
    ck_assert_uint_eq(engine_partial_others(order, hvt_job_op(&job, 0, 2), ranks, 2), 1);
    ck_assert_int_eq(ranks[0], 3);
    ck_assert(!engine_partial_awaits_others(hvt_job_op(&job, 0, 3))); /* rank 2 is not there */
    bring(2, 3, &open);
    run();
    ck_assert(engine_partial_awaits_others(hvt_job_op(&job, 2, 3)));
    ck_assert_uint_eq(engine_partial_others(order, hvt_job_op(&job, 0, 3), ranks, 2), 1);
    ck_assert_int_eq(ranks[0], 1);
    hvt_job_break(&job, 0, HVI_ERR_JOB_STOPPED, -1, "over");
    hvt_job_break(&one, 0, HVI_ERR_JOB_STOPPED, -1, "over");
    step();
    end();
}
END_TEST

START_TEST(an_opening_awaits_the_ranks_of_its_set_alone)
{
    struct hvt_bring open = opening(three, 3);

    begin(&layouts[0], 10);
    bring(0, 0, &open);
    const struct engine_op *op = hvt_job_op(&one, 0, 0);
    for (uint32_t rank = 0; rank < 4; rank++)
        ck_assert_int_eq(engine_partial_awaits(op, rank), rank == 1 || rank == 2);
    for (int32_t rank = 1; rank < 3; rank++)
        bring(rank, 0, &open);
    step();
    end();
}
END_TEST

START_TEST(its_members_alone_open_and_close_a_set)
{
    static const int64_t lists[][3] = {{0, 1, 3}, {0, 2, 0}, {1, 3, 0}};
    static const uint32_t counts[] = {3, 2, 2};
    struct hvt_bring w = allreduce("w1", 4), close = {.name = "c", .kind = HVI_KIND_SET_CLOSE};
    struct hvt_bring remove = {.name = "gone", .kind = HVI_KIND_SET_REMOVE, .root = 1};

    begin(&layouts[0], 10); /* the first one spans, the others are on nodes 0 and 1 */
    for (uint32_t i = 0; i < 3; i++) {
        struct hvt_bring open = opening(lists[i], counts[i]);
        for (uint32_t at = 0; at < counts[i]; at++) {
            ck_assert(!job.parts[lists[i][0]][i].over);
            bring((int32_t)lists[i][at], i, &open);
            run();
        }
        for (uint32_t at = 0; at < counts[i]; at++)
            ck_assert_int_eq(job.parts[lists[i][at]][i].part.rows, i + 1);
    }
    step();
    ck_assert_ptr_null(job.node[0].order.sets.by_id[3]);
    ck_assert_ptr_null(job.node[1].order.sets.by_id[2]);
    ck_assert_ptr_null(job.node[0].order.sets.by_id[2]->span);
    for (int32_t rank = 0; rank < 4; rank++) {
        remove.root = 3;
        bring(rank, 1, &remove);
    }
    run();
    expect(0, 1, HVI_ERR_INVALID,
           "process_set_remove 'gone': process set 3 was opened by its members, who close it");
    step();
    for (uint32_t i = 0; i < 3; i++) {
        w.set = close.set = i + 1;
        for (uint32_t at = 0; at < counts[i]; at++) {
            bring((int32_t)lists[i][at], 2 * i, &w);
            bring((int32_t)lists[i][at], 2 * i + 1, &close);
        }
        run();
    }
    step();
    ck_assert_uint_eq(job.node[0].order.root->sets.count, 1);
    ck_assert_uint_eq(job.node[0].order.sets.count, 1);
    ck_assert_uint_eq(job.node[1].order.sets.count, 1);
    end();
}
END_TEST

/* A step would forget all parts of all ranks. */
static void bring_anew(int32_t rank, uint32_t which, const struct hvt_bring *what)
{
    ck_assert(!job.parts[rank][which].used || job.parts[rank][which].status == HVI_OK);
    memset(&job.parts[rank][which], 0, sizeof job.parts[rank][which]);
    memset(&one.parts[rank][which], 0, sizeof one.parts[rank][which]);
    bring(rank, which, what);
}

START_TEST(ids_stay_one_for_all_whoever_opens_and_closes)
{
    static const int64_t first[] = {0, 2}, second[] = {1, 3}, across[] = {0, 1};
    struct hvt_bring open = opening(first, 2), add = set_add("s", across, 2);
    struct hvt_bring close = {.name = "c", .kind = HVI_KIND_SET_CLOSE};

    begin(&layouts[0], 10);
    for (uint32_t turn = 0; turn < 1100; turn++) { /* of 1023 ids */
        open = opening(turn % 2 ? second : first, 2);
        for (uint32_t i = 0; i < 2; i++)
            bring_anew((int32_t)open.integers[i], 0, &open);
        run();
        close.set = (uint32_t)job.parts[open.integers[0]][0].part.rows;
        for (uint32_t i = 0; i < 2; i++)
            bring_anew((int32_t)open.integers[i], 1, &close);
        run();
    }
    step();
    open = opening(second, 2);
    bring(1, 0, &open);
    bring(3, 0, &open);
    for (int32_t rank = 0; rank < 4; rank++)
        bring(rank, 1, &add);
    run();
    for (int32_t rank = 0; rank < 4; rank++)
        ck_assert_int_eq(job.parts[rank][1].part.rows, job.parts[0][1].part.rows);
    ck_assert_int_ne(job.parts[0][1].part.rows, job.parts[1][0].part.rows);
    step();
    end();
}
END_TEST

START_TEST(there_are_as_many_sets_as_on_one_node)
{
    static const int64_t far[] = {1, 3}, across[] = {0, 1};
    struct hvt_bring open = opening(far, 2), add = set_add("s", across, 2);

    begin(&layouts[0], 10);
    for (uint32_t i = 1; i < ENGINE_SETS_MAX; i++) {
        bring_anew(1, 0, &open);
        bring_anew(3, 0, &open);
        run();
    }
    step();
    bring(1, 0, &open);
    bring(3, 0, &open);
    for (int32_t rank = 0; rank < 4; rank++)
        bring(rank, 1, &add);
    run();
    expect(3, 0, HVI_ERR_LIMIT,
           "process_set_open 'tag-3': the job has 1024 process sets already; remove one first");
    expect(0, 1, HVI_ERR_LIMIT,
           "process_set_add 's': the job has 1024 process sets already; remove one first");
    step();
    end();
}
END_TEST

START_TEST(an_opening_is_taken_back_or_fails_on_every_node)
{
    struct hvt_bring open = opening(three, 3);

    begin(&layouts[0], 10);
    bring(0, 0, &open);
    bring(2, 0, &open);
    run();
    ck_assert(withdraw(2, 0));
    run();
    expect(2, 0, HVI_ERR_CANCELLED, "process_set_open 'tag-3' was cancelled on rank 2");
    bring(1, 0, &open);
    run();
    compare();
    ck_assert(!job.parts[1][0].over);
    engine_op_fail(&job.node[1].order, hvt_job_op(&job, 1, 0), HVI_ERR_STALLED, "late", -1);
    engine_op_fail(&one.node[0].order, hvt_job_op(&one, 1, 0), HVI_ERR_STALLED, "late", -1);
    run();
    expect(1, 0, HVI_ERR_STALLED, "late");
    ck_assert(!job.parts[0][0].over); /* its node had nothing reported */
    bring(2, 1, &open);
    bring(1, 1, &open);
    hvt_job_run(&job);
    ck_assert_int_eq(job.parts[0][0].status, HVI_OK);
    ck_assert_int_eq(job.parts[1][1].part.rows, 1);
    hvt_job_step(&job);
    hvt_job_break(&one, 0, HVI_ERR_JOB_STOPPED, -1, "over");
    end();
}
END_TEST

START_TEST(a_send_in_a_set_that_is_closed_fails)
{
    struct hvt_bring open = opening(three, 3), send = pair_of(HVI_KIND_SEND, 1, 4);
    struct hvt_bring close = {.name = "c", .kind = HVI_KIND_SET_CLOSE, .set = 1};

    for (uint64_t seed = 1; seed < SEEDS(20); seed++) {
        begin(&layouts[0], 2 * seed);
        for (int32_t rank = 0; rank < 3; rank++)
            bring(rank, 0, &open);
        step();
        send.set = 1;
        bring(0, 0, &send);
        hvt_job_run_some(&job, (uint32_t)seed % 4);
        for (int32_t rank = 0; rank < 3; rank++)
            bring(rank, 1, &close);
        run();
        expect(0, 0, HVI_ERR_NOT_FOUND,
               "send '0-to-1.tag-3': process set 1 was removed while the op waited");
        step();
        end();
    }
}
END_TEST

/* ---- memory of GPUs ---- */

/* The rank's operands lie on a GPU, whose worker has this number. */
static struct hvt_bring on_gpu(struct hvt_bring what, int32_t rank)
{
    what.memory = HVI_MEMORY_DEVICE;
    what.instance = 100 + (uint64_t)rank;
    return what;
}

/* Every node was told of the last work which worker has each rank's memory, and that `none` (-1: all have some) has none. */
static void expect_workers(int32_t none)
{
    for (uint32_t i = 0; i < job.nodes; i++) {
        ck_assert_uint_eq(job.node[i].worker_count, (uint32_t)job.size);
        for (int32_t rank = 0; rank < job.size; rank++)
            ck_assert_uint_eq(job.node[i].workers[rank], rank == none ? 0 : 100 + (uint64_t)rank);
    }
}

static void bring_all_on_gpus(uint32_t which, const struct hvt_bring *what)
{
    for (int32_t rank = 0; rank < one.size; rank++) {
        struct hvt_bring mine = on_gpu(*what, rank);
        bring(rank, which, &mine);
    }
}

START_TEST(every_node_is_told_which_worker_has_each_ranks_memory)
{
    struct hvt_bring sum = allreduce("w1", 4), gather = allreduce("g", 2);
    int64_t splits[HVT_RANKS];

    begin(&layouts[_i], 10);
    bring_all_on_gpus(0, &sum);
    step();
    expect_workers(-1);
    gather.kind = HVI_KIND_ALLGATHER; /* its outputs are asked for before it starts */
    gather.room = 1 << 16;
    bring_all_on_gpus(0, &gather);
    step();
    expect_workers(-1);
    for (int32_t rank = 0; rank < one.size; rank++) { /* each rank says something else */
        struct hvt_bring to = on_gpu(allreduce("a", one.size + rank), rank);
        for (int32_t i = 0; i < one.size; i++)
            splits[i] = 1 + (i == 0 ? rank : 0);
        to.kind = HVI_KIND_ALLTOALL;
        to.room = 1 << 16;
        to.integers = splits;
        to.integer_count = (uint32_t)one.size;
        bring(rank, 0, &to);
    }
    step();
    expect_workers(-1);
    for (int32_t rank = 0; rank < one.size; rank++)
        bring(rank, 0, &sum);
    step();
    for (uint32_t i = 0; i < job.nodes; i++)
        ck_assert_uint_eq(job.node[i].worker_count, 0);
    end();
}
END_TEST

START_TEST(a_rank_without_bytes_and_one_that_has_joined_have_no_worker)
{
    struct hvt_bring gather = allreduce("g", 2), joined = join_of(0);

    begin(&layouts[_i], 10);
    gather.kind = HVI_KIND_ALLGATHER;
    gather.room = 1 << 16;
    gather.given = true;
    for (int32_t rank = 0; rank < one.size; rank++) {
        struct hvt_bring mine = on_gpu(gather, rank);
        if (rank == 1) {
            mine.dims[0] = 0;
            mine.memory = ENGINE_MEMORY_ANY;
            mine.instance = 0;
        }
        bring(rank, 0, &mine);
    }
    step();
    expect_workers(1);
    bring(0, 1, &joined);
    for (int32_t rank = 1; rank < one.size; rank++) {
        struct hvt_bring mine = on_gpu(gather, rank);
        bring(rank, 0, &mine);
    }
    run();
    expect_workers(0);
    compare();
    for (int32_t rank = 1; rank < one.size; rank++) {
        bring(rank, 1, &joined);
        run();
    }
    step();
    end();
}
END_TEST

START_TEST(ranks_that_disagree_on_memory_stand_in_the_sentence)
{
    struct hvt_bring sum = allreduce("w1", 4);

    begin(&layouts[0], 10);
    for (int32_t rank = 0; rank < 4; rank++) {
        struct hvt_bring mine = rank == 2 ? sum : on_gpu(sum, rank);
        bring(rank, 0, &mine);
    }
    run();
    expect(0, 0, HVI_ERR_MISMATCH,
           "allreduce 'w1': ranks disagree on memory: ranks 0,1,3 said GPU; rank 2 said host");
    step();
    end();
}
END_TEST

/* What the other nodes know of its memory they have from its input. */
START_TEST(a_rank_without_an_input_gives_no_output_on_a_gpu_afterwards)
{
    struct hvt_bring gather = allreduce("g", 2);

    begin(&layouts[0], 10);
    gather.kind = HVI_KIND_ALLGATHER;
    gather.room = 1 << 16;
    for (int32_t rank = 0; rank < 4; rank++) {
        struct hvt_bring mine = on_gpu(gather, rank);
        if (rank == 1) {
            mine.dims[0] = 0;
            mine.memory = ENGINE_MEMORY_ANY;
            mine.out_memory = HVI_MEMORY_DEVICE;
        }
        hvt_job_bring(&job, rank, 0, &mine);
    }
    hvt_job_run(&job);
    for (int32_t rank = 0; rank < 4; rank++)
        expect(rank, 0, HVI_ERR_UNSUPPORTED,
               "allgather 'g': rank 1 has no input, and its output is memory of a GPU, which the "
               "other nodes were not told: where a job has several nodes, give an output together "
               "with the op");
    hvt_job_step(&job);
    end();
}
END_TEST

START_TEST(both_nodes_of_a_send_are_told_which_worker_has_either_ranks_memory)
{
    for (int32_t from = 0; from < 2; from++) { /* ranks 0 and 2 are on node 0 */
        struct hvt_bring send = on_gpu(pair_of(HVI_KIND_SEND, 1 - from, 4), from);
        struct hvt_bring recv = on_gpu(pair_of(HVI_KIND_RECV, from, 4), 1 - from);
        begin(&layouts[0], 10);
        bring(from, 0, &send);
        bring(1 - from, 0, &recv);
        step();
        for (uint32_t i = 0; i < 2; i++) {
            ck_assert_uint_eq(job.node[i].worker_count, 2);
            ck_assert_uint_eq(job.node[i].workers[0], 100 + (uint64_t)from);
            ck_assert_uint_eq(job.node[i].workers[1], 101 - (uint64_t)from);
        }
        recv = pair_of(HVI_KIND_RECV, from, 4);
        bring(from, 0, &send);
        bring(1 - from, 0, &recv);
        run();
        ck_assert_int_eq(job.parts[from][0].status, HVI_ERR_MISMATCH);
        step();
        end();
    }
}
END_TEST

static bool is_replayed(void)
{
    for (uint32_t i = 0; i < job.nodes; i++) {
        if (!job.node[i].order.schedule.live)
            return false;
    }
    return true;
}

static void play_on_gpus(const struct hvt_bring *what, uint32_t turns)
{
    for (uint32_t turn = 0; turn < turns && !is_replayed(); turn++) {
        bring_all_on_gpus(0, what);
        step();
        expect_workers(-1);
    }
}

/* Which worker has what stands in the last verdict. */
START_TEST(a_step_on_gpus_is_replayed_while_memory_stays_where_it_was)
{
    struct hvt_bring sum = allreduce("w1", 4);

    begin(&layouts[_i], 10);
    play_on_gpus(&sum, 8);
    ck_assert(is_replayed());
    bring_all_on_gpus(0, &sum);
    step();
    expect_workers(-1);
    ck_assert(is_replayed());
    for (int32_t rank = 0; rank < one.size; rank++) { /* the last rank's has another worker now */
        struct hvt_bring mine = on_gpu(sum, rank);
        mine.instance += rank == one.size - 1;
        bring(rank, 0, &mine);
    }
    step();
    ck_assert(!is_replayed());
    for (uint32_t i = 0; i < job.nodes; i++)
        ck_assert_uint_eq(job.node[i].workers[one.size - 1], 100 + (uint64_t)one.size);
    play_on_gpus(&sum, 64);
    ck_assert(is_replayed());
    end();
}
END_TEST

/* Outputs come late, or with the op. */
START_TEST(ops_of_late_size_on_gpus_are_replayed_while_their_sizes_repeat)
{
    static const uint16_t kinds[] = {HVI_KIND_ALLGATHER, HVI_KIND_REDUCESCATTER, HVI_KIND_ALLTOALL};
    struct hvt_bring what = allreduce("g", 8);

    begin(&layouts[0], 10);
    what.kind = kinds[_i / 2];
    what.given = _i % 2 == 1;
    what.room = 1 << 16;
    play_on_gpus(&what, 16);
    ck_assert(is_replayed());
    bring_all_on_gpus(0, &what);
    step();
    expect_workers(-1);
    ck_assert(is_replayed());
    what.dims[0] = 12;
    bring_all_on_gpus(0, &what);
    step();
    expect_workers(-1);
    ck_assert(!is_replayed());
    play_on_gpus(&what, 64);
    ck_assert(is_replayed());
    end();
}
END_TEST

/* Of an unnamed op nothing is kept of where its memory was, and of a rank without bytes nothing is known. */
START_TEST(other_steps_on_gpus_are_negotiated_each_time)
{
    struct hvt_bring what = allreduce("w1", 4);

    begin(&layouts[0], 10);
    if (_i == 0)
        what.name = NULL;
    for (uint32_t turn = 0; turn < 8; turn++) {
        for (int32_t rank = 0; rank < one.size; rank++) {
            struct hvt_bring mine = on_gpu(what, rank);
            if (_i == 1) {
                mine.kind = HVI_KIND_ALLGATHER;
                mine.given = true;
                mine.room = 1 << 16;
            }
            if (_i == 1 && rank == 1) {
                mine.dims[0] = 0;
                mine.memory = ENGINE_MEMORY_ANY;
                mine.instance = 0;
            }
            bring(rank, 0, &mine);
        }
        step();
    }
    ck_assert(!is_replayed());
    end();
}
END_TEST

/* ---- programs of chance ---- */

struct plan {
    char name[32];
    struct hvt_bring of[HVT_RANKS];
    int64_t splits[HVT_RANKS][HVT_RANKS];
};
static struct plan plans[HVT_EACH];

static uint32_t members_of(uint32_t set)
{
    return one.node[0].order.sets.by_id[set]->size;
}

static void plan_splits(struct plan *plan, int32_t rank, uint32_t members)
{
    struct hvt_bring *what = &plan->of[rank];
    int64_t rows = 0;

    if (below(3) == 0) {
        what->dims[0] = (int64_t)(below(3) * members);
        return;
    }
    for (uint32_t i = 0; i < members; i++) {
        plan->splits[rank][i] = below(4);
        rows += plan->splits[rank][i];
    }
    what->dims[0] = rows - (below(200) == 0);
    if (what->dims[0] < 0)
        what->dims[0] = 0;
    what->integers = plan->splits[rank];
    what->integer_count = members;
}

static void plan_op(struct plan *plan, uint32_t number, uint32_t set)
{
    static const uint16_t kinds[] = {HVI_KIND_ALLREDUCE, HVI_KIND_ALLGATHER,     HVI_KIND_BROADCAST,
                                     HVI_KIND_ALLTOALL,  HVI_KIND_REDUCESCATTER, HVI_KIND_BARRIER};
    struct hvt_bring what = allreduce(plan->name, 1 + below(20));
    bool given = below(2), small = below(12) == 0;

    snprintf(plan->name, sizeof plan->name, "w%u", number);
    what.set = set;
    what.kind = kinds[below(6)];
    what.ndim = (uint8_t)(1 + below(2));
    what.dims[1] = below(4);
    if (what.kind == HVI_KIND_BROADCAST)
        what.root = (int32_t)below((uint32_t)one.size);
    what.room = 1u << 20;
    what.given = given;
    for (int32_t rank = 0; rank < one.size; rank++) {
        plan->of[rank] = what;
        if (what.kind == HVI_KIND_ALLGATHER)
            plan->of[rank].dims[0] = below(5);
        if (what.kind == HVI_KIND_ALLTOALL)
            plan_splits(plan, rank, members_of(set));
        if (given && below(40) == 0)
            plan->of[rank].given = false;
    }
    int32_t odd = (int32_t)below((uint32_t)one.size);
    if (small)
        plan->of[odd].room = 3;
    switch (below(10)) {
    case 0:
        plan->of[odd].dtype = HVI_DTYPE_INT64;
        break;
    case 1:
        plan->of[odd].dims[1]++;
        plan->of[odd].reduce_op = HVI_REDUCE_MAX;
        break;
    case 2:
        plan->of[odd].kind = HVI_KIND_BARRIER;
        plan->of[odd].integer_count = 0;
        break;
    default:
        break;
    }
}

/* One member sends, another receives; all others bring nothing. */
static void plan_pair(struct plan *plan, uint32_t set)
{
    const struct engine_set *members = one.node[0].order.sets.by_id[set];
    uint32_t from = below(members->size),
             to = (from + 1 + below(members->size - 1)) % members->size;
    int32_t sender = engine_set_member(members, from), receiver = engine_set_member(members, to);
    struct hvt_bring what = pair_of(HVI_KIND_SEND, receiver, 1 + below(2));
    bool any = below(4) == 0;

    what.set = set;
    what.tag = any ? 2 : below(2);
    what.dims[0] = any ? 3 : what.dims[0];
    memset(plan->of, 0, sizeof plan->of);
    plan->of[sender] = what;
    what.kind = HVI_KIND_RECV;
    what.root = any ? -1 : sender;
    if (!any && below(10) == 0)
        what.dtype = HVI_DTYPE_FLOAT64;
    plan->of[receiver] = what;
}

static bool is_member(uint32_t set, int32_t rank)
{
    return engine_set_rank(one.node[0].order.sets.by_id[set], rank) >= 0;
}

static void add_sets(void)
{
    int64_t ranks[HVT_RANKS];

    for (uint32_t set = 1; set < 4; set++) {
        uint32_t count = 0;
        for (int32_t rank = 0; rank < one.size; rank++) {
            if (below(set + 1) == 0 || (rank == one.size - 1 && count == 0))
                ranks[count++] = rank;
        }
        struct hvt_bring what = set_add("s", ranks, count);
        for (int32_t rank = 0; rank < one.size; rank++)
            bring(rank, set, &what);
        run();
    }
    step();
}

/* Every rank brings all ops of the step, in an order of its own, with the net between; some join in the
 * middle. */
static void play(uint32_t ops, uint32_t joiners)
{
    uint32_t order[HVT_RANKS][HVT_EACH], done[HVT_RANKS] = {0}, stop[HVT_RANKS];
    uint32_t left = 0;
    struct hvt_bring joined = join_of(0);

    for (int32_t rank = 0; rank < one.size; rank++) {
        stop[rank] = (uint32_t)rank < joiners ? below(ops) : ops;
        for (uint32_t i = 0; i < ops; i++)
            order[rank][i] = i;
        for (uint32_t i = ops; i > 1 && (uint32_t)rank >= joiners; i--) {
            uint32_t other = below(i), mine = order[rank][i - 1];
            order[rank][i - 1] = order[rank][other];
            order[rank][other] = mine;
        }
        left += stop[rank];
    }
    for (uint32_t rank = 0; rank < joiners; rank++) {
        for (uint32_t i = 0; i < stop[rank]; i++)
            bring((int32_t)rank, order[rank][i], &plans[order[rank][i]].of[rank]);
        left -= stop[rank];
        done[rank] = stop[rank];
        bring((int32_t)rank, ops, &joined);
    }
    while (left > 0) {
        uint32_t rank = below((uint32_t)one.size);
        if (done[rank] == stop[rank])
            continue;
        uint32_t which = order[rank][done[rank]++];
        left--;
        if (plans[which].of[rank].name && is_member(plans[which].of[rank].set, (int32_t)rank))
            bring((int32_t)rank, which, &plans[which].of[rank]);
        if (below(3) == 0)
            hvt_job_run_some(&job, below(6));
    }
    run();
    compare();
    for (uint32_t rank = joiners; rank < (uint32_t)one.size && joiners > 0; rank++) {
        bring((int32_t)rank, ops, &joined);
        run();
    }
    step();
}

/* What a step does not bring to an end on one node either. */
START_TEST(the_same_program_gives_the_same_answers_on_one_node_and_on_many)
{
    for (uint64_t seed = 1; seed <= SEEDS(layouts[_i].nodes > 3 ? 6 : 60); seed++) {
        chance = seed * 7919 + (uint64_t)_i;
        begin(&layouts[_i], seed);
        add_sets();
        for (uint32_t turn = 0; turn < 6; turn++) {
            uint32_t joiners = turn % 3 == 2 ? 1 + below((uint32_t)one.size - 1) : 0;
            uint32_t ops = 1 + below(12);
            for (uint32_t i = 0; i < ops; i++) {
                uint32_t set = joiners > 0 ? 0 : below(one.node[0].order.sets.next_id);
                if (joiners == 0 && below(3) == 0 && members_of(set) > 1)
                    plan_pair(&plans[i], set);
                else
                    plan_op(&plans[i], i, set);
            }
            play(ops, joiners);
        }
        for (uint32_t i = 0; i < job.nodes; i++) {
            ck_assert_str_eq(job.node[i].order.broken_text, "");
            ck_assert_uint_gt(job.node[i].started_count, 0);
        }
        end();
    }
}
END_TEST

/* ---- chaos ---- */

static struct {
    char name[8];
    uint32_t set;
} in_flight[HVT_RANKS][HVT_EACH];

/* It has opened a set, which is to be closed. */
static bool has_opened(const struct hvt_part *part)
{
    return part->used && part->over && part->status == HVI_OK &&
           part->part.copy.kind == HVI_KIND_SET_OPEN;
}

/* A part that may be used (again); HVT_EACH: none. */
static uint32_t free_part(int32_t rank, uint32_t from)
{
    while (from < HVT_EACH && job.parts[rank][from].used &&
           (!job.parts[rank][from].over || has_opened(&job.parts[rank][from])))
        from++;
    return from;
}

static bool is_in_flight(int32_t rank, const char *name, uint32_t set)
{
    for (uint32_t i = 0; i < HVT_EACH; i++) {
        if (job.parts[rank][i].used && !job.parts[rank][i].over && in_flight[rank][i].set == set &&
            strcmp(in_flight[rank][i].name, name) == 0)
            return true;
    }
    return false;
}

/* It may be unnamed, and is in flight by this name. */
static void bring_as(int32_t rank, uint32_t which, const struct hvt_bring *what, const char *name)
{
    memset(&job.parts[rank][which], 0, sizeof job.parts[rank][which]);
    snprintf(in_flight[rank][which].name, sizeof in_flight[rank][which].name, "%s", name);
    in_flight[rank][which].set = what->set;
    hvt_job_bring(&job, rank, which, what);
}

static void bring_again(int32_t rank, uint32_t which, const struct hvt_bring *what)
{
    bring_as(rank, which, what, what->name);
}

static void bring_chance(int32_t rank)
{
    char name[8];
    struct hvt_bring what = allreduce(name, below(200) == 0 ? 2 : 1);
    uint32_t which = free_part(rank, 0);

    uint32_t number = below(4);
    snprintf(name, sizeof name, "w%u", number);
    what.set = number % 2;
    if (number == 3)
        what.kind = HVI_KIND_ALLGATHER;
    what.room = below(100) == 0 ? 3 : 4096;
    what.given = below(2);
    if (which < HVT_EACH && !is_in_flight(rank, name, what.set))
        bring_again(rank, which, &what);
}

static void bring_group(int32_t rank)
{
    uint32_t first = 3 * below(2), size = 2 + first % 2, which = 0;
    char names[3][8];
    struct hvt_bring what[3];

    for (uint32_t i = 0; i < size; i++) {
        snprintf(names[i], sizeof names[i], "g%u", (first + i + (i > 0 && below(100) == 0)) % 7);
        if (is_in_flight(rank, names[i], 0) || (i > 1 && strcmp(names[i], names[i - 1]) == 0))
            return;
        what[i] = allreduce(names[i], below(200) == 0 ? 2 : 1);
        what[i].group_size = size;
        what[i].group_index = i;
        if (i == 1)
            what[i].kind = HVI_KIND_ALLGATHER;
        what[i].room = below(200) == 0 ? 3 : 4096;
    }
    for (uint32_t i = 0, at = 0; i < size; i++, at++) {
        at = free_part(rank, at);
        if (at == HVT_EACH)
            return;
    }
    for (uint32_t i = 0; i < size; i++, which++) {
        which = free_part(rank, which);
        bring_again(rank, which, &what[i]);
    }
}

static void bring_close(int32_t rank, struct hvt_part *opened)
{
    struct hvt_bring what = {
        .name = "c", .kind = HVI_KIND_SET_CLOSE, .set = (uint32_t)opened->part.rows};

    opened->used = false;
    bring_again(rank, free_part(rank, 0), &what);
}

static void bring_partial(int32_t rank)
{
    static const int64_t lists[][3] = {{0, 1, 2}, {0, 1, 0}, {1, 3, 0}, {0, 2, 0}};
    uint32_t waiting = 0, list = below(4), which = free_part(rank, 0);
    struct hvt_bring what = opening(lists[list], list == 0 ? 3 : 2);
    bool opens = false;

    for (uint32_t i = 0; i < HVT_EACH; i++) {
        struct hvt_part *part = &job.parts[rank][i];
        waiting += part->used && !part->over && engine_partial_is(part->part.copy.kind);
        if (!has_opened(part))
            continue;
        bring_close(rank, part);
        return;
    }
    if (waiting > 8 || which == HVT_EACH)
        return;
    for (uint32_t i = 0; i < what.integer_count; i++)
        opens = opens || what.integers[i] == rank;
    if (!opens || below(3)) {
        int32_t peer = (rank + 1 + (int32_t)below((uint32_t)job.size - 1)) % job.size;
        what = pair_of(below(2) ? HVI_KIND_SEND : HVI_KIND_RECV, peer, 1 + (below(50) == 0));
        what.root = what.kind == HVI_KIND_RECV && below(3) == 0 ? -1 : peer;
        what.set = below(2);
    }
    what.name = "p";
    what.tag = below(2);
    bring_again(rank, which, &what);
}

static void disturb(int32_t rank)
{
    struct hvt_part *part = &job.parts[rank][below(HVT_EACH)];
    struct engine_op *op = part->used && !part->over ? part->part.op : NULL;
    struct engine_order *order = &job.node[job.home[rank]].order;

    if (!op || op->state >= ENGINE_OP_READY)
        return;
    if (below(2))
        engine_op_fail(order, op, HVI_ERR_STALLED, "it has waited too long", -1);
    else
        engine_negotiate_withdraw(order, &part->part, HVI_ERR_CANCELLED, "cancelled");
}

/* What has waited longest on some node, as a stall's end. */
static void end_stall(void)
{
    struct engine_order *order = &job.node[below(job.nodes)].order;

    if (order->waiting_first)
        engine_op_fail(order, order->waiting_first, HVI_ERR_STALLED, "it has waited longest", -1);
}

/* The works of all nodes fit in one order. */
static void check_order(void)
{
    static uint64_t by_sequence[1u << 16];

    memset(by_sequence, 0, sizeof by_sequence);
    for (uint32_t i = 0; i < job.nodes; i++) {
        for (uint32_t at = 0; at < job.node[i].started_count; at++) {
            uint64_t work = job.node[i].started[at], sequence = work >> 16;
            ck_assert_uint_lt(sequence, 1u << 16);
            ck_assert(by_sequence[sequence] == 0 || by_sequence[sequence] == work);
            by_sequence[sequence] = work;
        }
    }
}

START_TEST(whatever_fails_every_part_is_answered_and_the_order_is_one)
{
    for (uint64_t seed = 1; seed <= SEEDS(layouts[_i].nodes > 3 ? 3 : 25); seed++) {
        chance = seed * 104729 + (uint64_t)_i;
        begin(&layouts[_i], seed);
        add_sets();
        for (uint32_t turn = 0; turn < 400 * (uint32_t)one.size; turn++) {
            int32_t rank = (int32_t)below((uint32_t)one.size);
            uint32_t what = below(6);
            if (what < 2)
                bring_group(rank);
            else if (what < 3)
                bring_partial(rank);
            else
                bring_chance(rank);
            if (below(15 * (uint32_t)one.size) == 0)
                disturb(rank);
            if (below(10 * (uint32_t)one.size) == 0)
                end_stall();
            if (below(3) == 0)
                hvt_job_run_some(&job, below(8));
        }
        hvt_job_run(&job);
        for (uint32_t i = 0; i < job.nodes; i++)
            ck_assert_str_eq(job.node[i].order.broken_text, "");
        ck_assert_uint_gt(job.node[0].started_count, 20);
        check_order();
        hvt_job_break(&job, 0, HVI_ERR_JOB_STOPPED, -1, "over");
        hvt_job_run(&job);
        hvt_job_step(&job);
        end();
    }
}
END_TEST

/* ---- steps that repeat ---- */

#define STEP 5

static const char *const names[STEP + 1] = {"a", "b", "c", "d", "e", "f"};

/* Each rank brings `ops` of the names in an order of its own, but what `odd` says of one of them. */
static void play_step(uint32_t ops, const struct hvt_bring *odd, int32_t odd_rank, uint32_t odd_op)
{
    uint32_t done[HVT_RANKS] = {0}, left = ops * (uint32_t)one.size, turn[HVT_RANKS];

    for (int32_t rank = 0; rank < one.size; rank++)
        turn[rank] = below(ops);
    while (left > 0) {
        int32_t rank = (int32_t)below((uint32_t)one.size);
        uint32_t op = (done[rank] + turn[rank]) % ops;
        struct hvt_bring what = allreduce(names[op], 3 + op);
        if (op == 1)
            what.kind = HVI_KIND_BROADCAST;
        what.root = op == 1 ? 1 : -1;
        if (done[rank] == ops)
            continue;
        done[rank]++;
        left--;
        bring(rank, op, odd && op == odd_op && rank == odd_rank ? odd : &what);
        if (below(3) == 0)
            hvt_job_run_some(&job, below(6));
    }
}

static bool is_live(void)
{
    bool live = true;

    for (uint32_t i = 0; i < job.nodes; i++)
        live = live && job.node[i].order.schedule.live;
    return live;
}

static void play_until_live(uint32_t ops)
{
    for (uint32_t turn = 0; turn < 6; turn++) {
        play_step(ops, NULL, -1, 0);
        step();
    }
    ck_assert(is_live());
}

START_TEST(steps_that_repeat_cost_no_message)
{
    for (uint64_t seed = 1; seed <= 4; seed++) {
        chance = seed * 31 + (uint64_t)_i;
        begin(&layouts[_i], seed);
        play_until_live(seed == 1 ? 1 : STEP);
        uint64_t messages = job.messages;
        for (uint32_t turn = 0; turn < 10; turn++) {
            for (int32_t rank = 0; rank < one.size; rank++) {
                for (uint32_t op = 0; op < (seed == 1 ? 1 : STEP); op++) {
                    struct hvt_bring what = allreduce(names[op], 3 + op);
                    if (op == 1)
                        what.kind = HVI_KIND_BROADCAST;
                    what.root = op == 1 ? 1 : -1;
                    bring(rank, op, &what);
                }
            }
            step();
        }
        ck_assert_uint_eq(job.messages, messages);
        for (uint32_t i = 0; i < job.nodes; i++)
            ck_assert_uint_ge(job.node[i].replayed, 10);
        end();
    }
}
END_TEST

START_TEST(what_differs_in_a_step_that_repeats_fails_as_ever)
{
    for (uint64_t seed = 1; seed <= 10; seed++) {
        struct hvt_bring odd = allreduce("c", 99);
        chance = seed * 31 + (uint64_t)_i;
        begin(&layouts[_i], seed);
        play_until_live(STEP);
        play_step(STEP, &odd, (int32_t)below((uint32_t)one.size), 2);
        run();
        ck_assert_int_eq(job.parts[0][2].status, HVI_ERR_MISMATCH);
        step();
        ck_assert(!is_live());
        check_order();
        play_step(STEP, NULL, -1, 0);
        step();
        end();
    }
}
END_TEST

/* A step of ops whose sizes are known late: 0 and 1 gather, 2 scatters, 3 is all to all, 4 adds up. */
#define SIZED_STEP 5u

static bool sized_on_gpus; /* then each rank has an input */

/* Number _i of a loop over all layouts, and the first once more, on GPUs. */
static void begin_sized(int number, uint64_t seed)
{
    sized_on_gpus = number == LAYOUTS;
    begin(&layouts[sized_on_gpus ? 0 : number], seed);
}

static void bring_sized(int32_t rank, uint32_t op, int64_t more)
{
    static const uint16_t kinds[SIZED_STEP] = {HVI_KIND_ALLGATHER, HVI_KIND_ALLGATHER,
                                               HVI_KIND_REDUCESCATTER, HVI_KIND_ALLTOALL,
                                               HVI_KIND_ALLREDUCE};
    int64_t splits[HVT_RANKS], rows = 0;
    struct hvt_bring what = allreduce(names[op], rank % 3 + more + sized_on_gpus);

    if (sized_on_gpus)
        what = on_gpu(what, rank);
    what.kind = kinds[op];
    what.given = op == 1;
    what.room = 1 << 16;
    for (int32_t to = 0; op == 3 && to < one.size; to++)
        rows += splits[to] = (rank + to) % 4 + (to == 0 ? more : 0);
    if (op == 3) {
        what.dims[0] = rows;
        what.integers = splits;
        what.integer_count = (uint32_t)one.size;
    } else if (op != 0 && op != 1) {
        what.dims[0] = 2 * one.size + 1 + more;
    }
    bring(rank, op, &what);
}

static void play_sized(int32_t odd_rank, uint32_t odd_op)
{
    for (int32_t rank = 0; rank < one.size; rank++) {
        for (uint32_t op = 0; op < SIZED_STEP; op++) {
            bring_sized(rank, op, rank == odd_rank && op == odd_op);
            if (below(3) == 0)
                hvt_job_run_some(&job, below(6));
        }
    }
}

static void play_sized_until_live(void)
{
    for (uint32_t turn = 0; turn < 6; turn++) {
        play_sized(-1, 0);
        step();
    }
    ck_assert(is_live());
}

START_TEST(sizes_that_repeat_cost_no_message)
{
    chance = 17 + (uint64_t)_i;
    begin_sized(_i, 1 + (uint64_t)_i);
    play_sized_until_live();
    uint64_t messages = job.messages, replayed = job.node[1].replayed;
    for (uint32_t turn = 0; turn < 10; turn++) {
        play_sized(-1, 0);
        step();
    }
    ck_assert_uint_eq(job.messages, messages);
    ck_assert_uint_eq(job.node[1].replayed, replayed + 10ull * SIZED_STEP);
    end();
}
END_TEST

/* Ranks that had given memory for the old size are asked again. */
START_TEST(other_sizes_in_a_step_that_repeats_are_negotiated)
{
    for (uint64_t seed = 1; seed <= SEEDS(12); seed++) {
        uint32_t odd_op = seed % 2 == 0 ? 0 : seed % 4 == 1 ? 1 : 3;
        chance = seed * 31 + (uint64_t)_i;
        begin_sized(_i, seed);
        play_sized_until_live();
        play_sized((int32_t)below((uint32_t)one.size), odd_op);
        step();
        ck_assert(!is_live());
        check_order();
        for (uint32_t turn = 0; turn < 4; turn++) {
            play_sized(-1, 0);
            step();
        }
        end();
    }
}
END_TEST

/* A job whose sizes differ each time is never halted. */
START_TEST(sizes_that_change_are_no_step)
{
    chance = 5;
    begin(&layouts[_i], 3);
    for (uint32_t turn = 0; turn < 8; turn++) {
        for (int32_t rank = 0; rank < one.size; rank++)
            bring_sized(rank, 0, (int64_t)turn);
        step();
        ck_assert(!is_live());
    }
    ck_assert_uint_eq(job.node[0].replayed + job.node[0].withdrawn, 0);
    end();
}
END_TEST

/* One output has not been given when the step is halted: the op is reported when it is there. */
START_TEST(outputs_that_come_after_a_halt_are_not_lost)
{
    chance = 9 + (uint64_t)_i;
    begin(&layouts[_i], 2);
    play_sized_until_live();
    for (int32_t rank = 0; rank < one.size; rank++)
        bring_sized(rank, 0, 0);
    ck_assert(job.parts[0][0].asked);
    engine_schedule_halt(&job.node[0].order);
    for (uint32_t i = 0; i < job.nodes; i++)
        engine_mesh_run(&job.node[i].mesh);
    for (int32_t rank = 0; rank < one.size; rank++) {
        for (uint32_t op = 1; op < SIZED_STEP; op++)
            bring_sized(rank, op, 0);
    }
    step();
    check_order();
    end();
}
END_TEST

static void bring_all(uint32_t which, const struct hvt_bring *what)
{
    for (int32_t rank = 0; rank < one.size; rank++)
        bring(rank, which, what);
}

/* A node with an op that waits for outputs, and with a join behind it. Other nodes have theirs. */
START_TEST(a_join_does_not_pass_an_op_whose_outputs_are_still_to_come)
{
    struct hvt_bring join = join_of(0);

    chance = 9 + (uint64_t)_i;
    begin(&layouts[_i], 2);
    for (uint32_t node = 0; node < 2; node++) {
        play_sized_until_live();
        job.node[node].withholds = true;
        for (int32_t rank = 0; rank < one.size; rank++)
            bring_sized(rank, 0, 0);
        bring_all(1, &join);
        run();
        ck_assert(!job.parts[0][1].over);
        job.node[node].withholds = false;
        step();
    }
    check_order();
    end();
}
END_TEST

/* It goes on when the numbers of unnamed ops begin anew. */
START_TEST(a_replayed_unnamed_op_that_goes_on_behind_a_join_is_not_the_next_one_of_its_number)
{
    struct hvt_bring what = allreduce(NULL, 7), join = join_of(0);

    chance = 3 + (uint64_t)_i;
    begin(&layouts[_i], 1 + (uint64_t)_i);
    for (what.tag = 1; what.tag < 12 && !is_live(); what.tag++) {
        bring_all(0, &what);
        step();
    }
    ck_assert(is_live());
    for (uint32_t i = 0; i < job.nodes; i++)
        job.node[i].holds = true;
    bring_all(0, &what);
    bring_all(1, &join);
    run();
    for (int32_t rank = 0; rank < one.size; rank++)
        ck_assert(job.parts[rank][1].over && !job.parts[rank][0].over);
    bring_all(2, &what);
    run();
    for (uint32_t i = 0; i < job.nodes; i++)
        job.node[i].holds = false;
    step();
    end();
}
END_TEST

static void take_back(int32_t rank, uint32_t which)
{
    const struct hvt_part *part = &job.parts[rank][which];
    char text[HVI_TEXT_MAX + 1];

    engine_negotiate_cancel_text(&part->part, text, sizeof text);
    ck_assert(engine_negotiate_withdraw(&part->node->order, &job.parts[rank][which].part,
                                        HVI_ERR_CANCELLED, text));
    ck_assert(engine_negotiate_withdraw(&one.node[0].order, &one.parts[rank][which].part,
                                        HVI_ERR_CANCELLED, text));
}

/* 0: both ranks of node 0 join before the root has given the op back; 1: both take it back, and one of them joins. */
START_TEST(a_join_does_not_pass_what_is_being_taken_back)
{
    struct hvt_bring what = allreduce("w1", 4), join = join_of(0);

    begin(&layouts[0], 10);
    bring(0, 0, &what);
    bring(2, 0, &what);
    run();
    take_back(0, 0);
    if (_i == 1)
        take_back(2, 0);
    bring(0, 1, &join);
    if (_i == 0)
        bring(2, 1, &join);
    run();
    expect(0, 0, HVI_ERR_CANCELLED, "allreduce 'w1' was cancelled on rank 0");
    bring(1, 0, &what);
    bring(3, 0, &what);
    if (_i == 1)
        bring(2, 2, &what);
    run();
    ck_assert_int_eq(job.parts[2][_i == 1 ? 2 : 0].status, HVI_OK);
    ck_assert(job.parts[1][0].over && job.parts[1][0].status == HVI_OK);
    for (int32_t rank = 1; rank < 4; rank++) {
        if (rank != 2 || _i == 1)
            bring(rank, 1, &join);
    }
    step();
    end();
}
END_TEST

/* It goes on: the root has counted its node as joined behind it. */
START_TEST(what_a_rank_had_brought_before_its_nodes_join_is_not_taken_back)
{
    struct hvt_bring what = allreduce("w1", 4), join = join_of(0);
    const struct hvt_part *part = &job.parts[0][0];

    begin(&layouts[0], 10);
    for (int32_t rank = 0; rank < 4; rank += 2) {
        hvt_job_bring(&job, rank, 0, &what);
        hvt_job_bring(&job, rank, 1, &join);
    }
    if (_i == 1)
        hvt_job_run(&job);
    ck_assert(!engine_negotiate_withdraw(&part->node->order, &job.parts[0][0].part,
                                         HVI_ERR_CANCELLED, "taken back"));
    for (int32_t rank = 1; rank < 4; rank += 2) {
        hvt_job_bring(&job, rank, 0, &what);
        hvt_job_bring(&job, rank, 1, &join);
    }
    hvt_job_run(&job);
    for (int32_t rank = 0; rank < 4; rank++)
        expect(rank, 0, HVI_OK, "");
    hvt_job_step(&job);
    end();
}
END_TEST

/* Ranks of a node that joins have brought a group of which they do not say the same: that fails, and the join goes on. */
START_TEST(a_group_that_fails_as_its_node_joins_is_no_second_join)
{
    struct hvt_bring join = join_of(0), what = allreduce("g0", 4);

    begin(&layouts[2], 10);
    what.group_size = 2;
    for (int32_t rank = 0; rank < 6; rank += 3) { /* of node 0, as is rank 6 */
        what.name = "g0";
        what.group_index = 0;
        what.dtype = rank == 0 ? HVI_DTYPE_FLOAT32 : HVI_DTYPE_INT32;
        bring(rank, 0, &what);
        what.name = "g1";
        what.group_index = 1;
        bring(rank, 1, &what);
        bring(rank, 2, &join);
    }
    ck_assert_uint_eq(job.home[6], job.home[0]);
    bring(6, 2, &join);
    run();
    ck_assert_int_eq(job.parts[0][0].status, HVI_ERR_MISMATCH);
    for (int32_t rank = 0; rank < one.size; rank++) {
        if (job.home[rank] != job.home[0])
            bring(rank, 2, &join);
    }
    run();
    for (int32_t rank = 0; rank < one.size; rank++)
        ck_assert(job.parts[rank][2].over && job.parts[rank][2].status == HVI_OK);
    hvt_job_step(&job);
    hvt_job_step(&one);
    end();
}
END_TEST

/* Its own setting says nothing of what the root has found. */
START_TEST(a_node_that_would_check_every_op_follows_the_roots)
{
    chance = 5;
    begin(&layouts[0], 3);
    job.node[1].order.replay = false;
    play_until_live(STEP);
    play_step(STEP, NULL, -1, 0);
    step();
    ck_assert(is_live());
    end();
}
END_TEST

static void bring_from(uint32_t node, bool there, uint32_t which, const struct hvt_bring *what)
{
    for (int32_t rank = 0; rank < one.size; rank++) {
        if ((job.home[rank] == node) == there)
            bring(rank, which, what);
    }
}

/* Without the clock. */
static void settle(void)
{
    while (hvt_job_run_some(&job, 1 + below(8)))
        continue;
    hvt_job_run(&one);
}

/* What node 1 has reported would not start by itself there, and the others would wait for it: so the step is
 * replayed from a place on where it has reported nothing. */
START_TEST(a_step_is_replayed_where_a_node_is_an_op_ahead)
{
    struct hvt_bring first = allreduce("a", 3), second = allreduce("b", 4);
    uint64_t messages = 0;
    uint32_t which = 0;

    chance = 5 + (uint64_t)_i;
    begin(&layouts[_i], 1);
    bring_from(1, true, which, &first);
    for (uint32_t turn = 0; turn < 12; turn++, which += 2) {
        bring_from(1, false, which, &first);
        settle();
        bring_from(1, true, which + 2, &first);
        settle();
        for (int32_t rank = 0; rank < one.size; rank++)
            bring(rank, which + 1, &second);
        settle();
        if (turn == 8)
            messages = job.messages;
    }
    ck_assert(is_live());
    ck_assert_uint_eq(job.messages, messages);
    ck_assert_uint_eq(job.node[1].withdrawn, 0);
    bring_from(1, false, which, &first);
    for (int32_t rank = 0; rank < one.size; rank++)
        bring(rank, which + 1, &second);
    step();
    end();
}
END_TEST

/* All nodes but one have reported all of a step before the first of its works starts. */
static void play_reported(uint32_t late)
{
    for (uint32_t part = 0; part < 2; part++) {
        for (int32_t rank = 0; rank < one.size; rank++) {
            for (uint32_t op = 0; op < STEP; op++) {
                struct hvt_bring what = allreduce(names[op], 3 + op);
                if ((job.home[rank] == late) == (part == 1))
                    bring(rank, op, &what);
            }
        }
        for (uint32_t i = 0; part == 0 && i < 400; i++)
            hvt_job_run_some(&job, 4);
    }
    step();
}

START_TEST(a_step_is_replayed_again_after_a_halt_in_its_middle)
{
    chance = 5 + (uint64_t)_i;
    begin(&layouts[_i], 1 + (uint64_t)_i);
    for (uint32_t turn = 0; turn < 8 && !is_live(); turn++)
        play_reported(1);
    ck_assert(is_live());
    for (int32_t rank = 0; rank < one.size; rank++) {
        for (uint32_t op = 0; op < 2; op++) {
            struct hvt_bring what = allreduce(names[op], 3 + op);
            bring(rank, op, &what);
        }
    }
    run();
    engine_schedule_halt(&job.node[0].order);
    run();
    for (int32_t rank = 0; rank < one.size; rank++) {
        for (uint32_t op = 2; op < STEP; op++) {
            struct hvt_bring what = allreduce(names[op], 3 + op);
            bring(rank, op, &what);
        }
    }
    step();
    ck_assert(!is_live());
    for (uint32_t turn = 0; turn < 16 && !is_live(); turn++)
        play_reported(1);
    ck_assert(is_live());
    end();
}
END_TEST

START_TEST(a_step_is_replayed_although_something_else_waits)
{
    struct hvt_bring other = allreduce("z", 3), what = allreduce("a", 3);

    chance = 5 + (uint64_t)_i;
    begin(&layouts[_i], 1);
    bring_from(1, true, 40, &other);
    for (uint32_t turn = 0; turn < 6; turn++) {
        for (int32_t rank = 0; rank < one.size; rank++)
            bring(rank, turn, &what);
        run();
    }
    ck_assert(is_live());
    bring_from(1, false, 40, &other);
    step();
    end();
}
END_TEST

/* A work that has started on some nodes is not lost. */
START_TEST(what_does_not_come_in_a_step_that_repeats_is_waited_for)
{
    struct hvt_bring what = allreduce("a", 3);
    int32_t ranks[HVT_RANKS];

    chance = 5 + (uint64_t)_i;
    begin(&layouts[_i], 1);
    play_until_live(1);
    for (int32_t rank = 0; rank < one.size; rank++) {
        if (job.home[rank] != 1)
            bring(rank, 0, &what);
    }
    run(); /* the clock has run, too */
    ck_assert_uint_eq(job.node[0].withdrawn, 1);
    ck_assert(!is_live());
    struct engine_op *op = hvt_job_op(&job, 0, 0);
    ck_assert_int_eq(op->state, ENGINE_OP_REPORTED);
    ck_assert_uint_gt(engine_root_missing(&job.node[0].mesh.root, 0, op, ranks, HVT_RANKS), 0);
    for (int32_t rank = 0; rank < one.size; rank++) {
        if (job.home[rank] == 1)
            bring(rank, 0, &what);
    }
    step();
    end();
}
END_TEST

START_TEST(a_rank_joins_or_takes_back_while_a_step_repeats)
{
    struct hvt_bring what = allreduce("a", 3), join = join_of(0);

    chance = 9 + (uint64_t)_i;
    begin(&layouts[_i], 1);
    play_until_live(STEP);
    for (int32_t rank = 0; rank < one.size; rank++) {
        if (job.home[rank] != 1)
            bring(rank, 0, &what);
    }
    for (int32_t rank = 0; rank < one.size; rank++) {
        if (job.home[rank] != 1)
            bring(rank, 1, &join);
    }
    run();
    for (int32_t rank = 0; rank < one.size; rank++) {
        if (job.home[rank] == 1)
            bring(rank, 0, &what);
    }
    run();
    for (int32_t rank = 0; rank < one.size; rank++) {
        if (job.home[rank] == 1)
            bring(rank, 1, &join);
    }
    run();
    ck_assert_int_eq(job.parts[0][0].status, HVI_OK);
    hvt_job_step(&job);
    hvt_job_step(&one);
    play_until_live(1);
    hvt_job_bring(&job, 0, 0, &what);
    engine_negotiate_withdraw(&job.node[job.home[0]].order, &job.parts[0][0].part,
                              HVI_ERR_CANCELLED, "taken back");
    hvt_job_run(&job);
    expect(0, 0, HVI_ERR_CANCELLED, "taken back");
    hvt_job_step(&job);
    play_step(1, NULL, -1, 0);
    step();
    end();
}
END_TEST

/* The other nodes have done "a" and node 1 has not, when the next "a" fails. */
START_TEST(a_failure_is_not_lost_where_the_replayed_work_before_it_goes_on)
{
    struct hvt_bring what = allreduce("a", 3);

    chance = 5 + (uint64_t)_i;
    begin(&layouts[_i], 2);
    play_until_live(1);
    job.node[1].holds = true;
    bring_from(0, true, 0, &what);
    bring_from(0, false, 0, &what);
    settle();
    ck_assert(job.parts[0][0].over && !job.parts[1][0].over);
    bring(0, 1, &what);
    engine_op_fail(&job.node[0].order, hvt_job_op(&job, 0, 1), HVI_ERR_STALLED, "it is late", 0);
    engine_op_fail(&one.node[0].order, hvt_job_op(&one, 0, 1), HVI_ERR_STALLED, "it is late", 0);
    settle();
    ck_assert(!is_live() && !job.parts[1][0].over);
    job.node[1].holds = false;
    settle();
    expect(1, 0, HVI_OK, "");
    for (int32_t rank = 1; rank < one.size; rank++)
        bring(rank, 1, &what);
    step();
    play_step(STEP, NULL, -1, 0);
    step();
    end();
}
END_TEST

/* "b" comes after "a" in the step, and "a" has not come. */
START_TEST(what_waits_for_its_turn_in_a_step_is_taken_back)
{
    struct hvt_bring first = allreduce("a", 3), second = allreduce("b", 4);

    chance = 5 + (uint64_t)_i;
    begin(&layouts[_i], 1);
    for (uint32_t turn = 0; turn < 6; turn++) {
        for (int32_t rank = 0; rank < one.size; rank++) {
            bring(rank, 0, &first);
            bring(rank, 1, &second);
        }
        step();
    }
    ck_assert(is_live());
    bring_from(0, true, 1, &second);
    struct engine_op *op = hvt_job_op(&job, 0, 1);
    ck_assert_int_eq(op->state, ENGINE_OP_SCHEDULED);
    ck_assert(withdraw(0, 1));
    expect(0, 1, HVI_ERR_CANCELLED, "allreduce 'b' was cancelled on rank 0");
    ck_assert(is_live()); /* nobody has to hear of it */
    bring(0, 2, &second);
    for (int32_t rank = 0; rank < one.size; rank++)
        bring(rank, 0, &first);
    bring_from(0, false, 1, &second);
    run();
    ck_assert_int_eq(job.parts[0][2].status, HVI_OK);
    step();
    end();
}
END_TEST

/* ---- groups in a step that repeats ---- */

static bool gathered; /* "d" gathers, and its output is asked for; else it adds up */

/* Each layout twice. */
static const struct layout *grouped_layout(int turn)
{
    gathered = turn >= LAYOUTS;
    return &layouts[turn % LAYOUTS];
}

/* "c" and "d"; `more` rows of "d". */
static void bring_pair_of(int32_t rank, uint32_t which, int64_t more)
{
    for (uint32_t i = 0; i < 2; i++) {
        struct hvt_bring what = allreduce(names[2 + i], 3 + i);
        what.group_size = 2;
        what.group_index = i;
        if (gathered && i == 1) {
            what.kind = HVI_KIND_ALLGATHER;
            what.dims[0] = rank % 3 + more;
            what.room = 1 << 16;
        }
        bring(rank, which + i, &what);
    }
}

static void bring_pair(int32_t rank, uint32_t which)
{
    bring_pair_of(rank, which, 0);
}

/* "a", the group of "c" and "d", "e"; each node in an order of its own. */
static void play_grouped(uint32_t turn, uint32_t without)
{
    struct hvt_bring a = allreduce("a", 3), e = allreduce("e", 5);

    for (int32_t rank = 0; rank < one.size; rank++) {
        uint32_t first = (turn + job.home[rank]) % 3;
        for (uint32_t i = 0; job.home[rank] != without && i < 3; i++) {
            if ((first + i) % 3 == 0)
                bring(rank, 0, &a);
            else if ((first + i) % 3 == 1)
                bring_pair(rank, 2);
            else
                bring(rank, 4, &e);
        }
    }
}

static void play_grouped_until_live(void)
{
    for (uint32_t turn = 0; turn < 8 && !is_live(); turn++) {
        play_grouped(turn, UINT32_MAX);
        step();
    }
    ck_assert(is_live());
}

START_TEST(a_group_that_repeats_costs_no_message)
{
    chance = 3 + (uint64_t)_i;
    begin(grouped_layout(_i), 1 + (uint64_t)_i);
    play_grouped_until_live();
    uint64_t messages = job.messages;
    for (uint32_t turn = 0; turn < 5; turn++) {
        uint64_t replayed = job.node[0].replayed;
        play_grouped(turn, UINT32_MAX);
        step();
        ck_assert_uint_eq(job.node[0].replayed, replayed + 4);
    }
    ck_assert_uint_eq(job.messages, messages);
    end();
}
END_TEST

START_TEST(a_group_is_withdrawn_as_a_whole_and_reported_again)
{
    chance = 7 + (uint64_t)_i;
    begin(grouped_layout(_i), 2 + (uint64_t)_i);
    play_grouped_until_live();
    play_grouped(0, 1);
    run(); /* the clock has run, too */
    ck_assert_uint_eq(job.node[0].withdrawn, 4);
    ck_assert(!is_live());
    for (uint32_t i = 2; i < 4; i++)
        ck_assert_int_eq(hvt_job_op(&job, 0, i)->state, ENGINE_OP_REPORTED);
    for (int32_t rank = 0; rank < one.size; rank++) {
        struct hvt_bring a = allreduce("a", 3), e = allreduce("e", 5);
        if (job.home[rank] != 1)
            continue;
        bring(rank, 4, &e);
        bring_pair(rank, 2);
        bring(rank, 0, &a);
    }
    step();
    check_order();
    end();
}
END_TEST

START_TEST(a_group_that_differs_while_it_repeats_fails_as_a_whole)
{
    struct hvt_bring c = allreduce("c", 3), d = allreduce("d", 99);

    c.group_size = d.group_size = 2;
    d.group_index = 1;
    chance = 11 + (uint64_t)_i;
    begin(grouped_layout(_i), 1 + (uint64_t)_i);
    play_grouped_until_live();
    for (int32_t rank = 0; rank < one.size; rank++) {
        if (job.home[rank] != 1)
            bring_pair(rank, 2);
    }
    bring_from(1, true, 2, &c); /* a node compares the groups of its own ranks itself */
    bring_from(1, true, 3, &d);
    run();
    ck_assert_int_eq(job.parts[0][2].status, HVI_ERR_MISMATCH);
    ck_assert_int_eq(job.parts[0][3].status, HVI_ERR_MISMATCH);
    step();
    check_order();
    play_grouped_until_live();
    end();
}
END_TEST

/* Some members have come back already, and others have not, when the job is over. */
START_TEST(a_group_that_is_being_withdrawn_ends_once_with_the_job)
{
    for (uint64_t seed = 1; seed <= SEEDS(40); seed++) {
        chance = seed * 13 + (uint64_t)_i;
        begin(grouped_layout(_i), seed);
        play_grouped_until_live();
        for (int32_t rank = 0; rank < one.size; rank++) {
            if (job.home[rank] != 1)
                bring_pair(rank, 2);
        }
        for (uint32_t i = 0; i < 3; i++)
            hvt_job_run_some(&job, below(6));
        engine_schedule_halt(&job.node[0].order);
        for (uint32_t i = below(24); i > 0; i--)
            hvt_job_run_some(&job, 1);
        hvt_job_break(&job, 0, HVI_ERR_JOB_STOPPED, -1, "over");
        hvt_job_break(&one, 0, HVI_ERR_JOB_STOPPED, -1, "over");
        step();
        end();
    }
}
END_TEST

/* The rest of such a step. */
static void bring_a_and_e(void)
{
    struct hvt_bring a = allreduce("a", 3), e = allreduce("e", 5);

    for (int32_t rank = 0; rank < one.size; rank++) {
        bring(rank, 0, &a);
        bring(rank, 4, &e);
    }
}

/* Only the second member's rows differ. */
START_TEST(other_sizes_in_a_group_that_repeats_are_negotiated)
{
    chance = 5 + (uint64_t)_i;
    begin(grouped_layout(LAYOUTS + _i), 3 + (uint64_t)_i);
    play_grouped_until_live();
    for (int32_t rank = 0; rank < one.size; rank++)
        bring_pair_of(rank, 2, rank == 1);
    bring_a_and_e();
    step();
    ck_assert(!is_live());
    check_order();
    for (uint32_t turn = 0; turn < 40 && !is_live(); turn++) {
        play_grouped(0, UINT32_MAX);
        step();
    }
    ck_assert(is_live());
    end();
}
END_TEST

/* One output has not been given when the step is halted: the group is reported when it is there. */
START_TEST(outputs_of_a_group_that_come_after_a_halt_are_not_lost)
{
    chance = 9 + (uint64_t)_i;
    begin(grouped_layout(LAYOUTS + _i), 2);
    play_grouped_until_live();
    for (int32_t rank = 0; rank < one.size; rank++)
        bring_pair(rank, 2);
    ck_assert(job.parts[0][3].asked);
    ck_assert_int_eq(hvt_job_op(&job, 0, 2)->state, ENGINE_OP_HELD);
    engine_schedule_halt(&job.node[0].order);
    for (uint32_t i = 0; i < job.nodes; i++)
        engine_mesh_run(&job.node[i].mesh);
    bring_a_and_e();
    step();
    check_order();
    play_grouped_until_live();
    end();
}
END_TEST

/* ---- an unnamed op in a step that repeats ---- */

static void play_unnamed(uint64_t number, int64_t count, int32_t odd_rank, int64_t odd_count)
{
    for (int32_t rank = 0; rank < one.size; rank++) {
        struct hvt_bring a = allreduce("a", 3);
        struct hvt_bring what = allreduce(NULL, rank == odd_rank ? odd_count : count);
        what.tag = number;
        bring(rank, (uint32_t)rank % 2, &a);
        bring(rank, 1 - (uint32_t)rank % 2, &what);
    }
}

START_TEST(an_unnamed_op_of_a_step_costs_no_message)
{
    uint64_t number = 40;

    chance = 3 + (uint64_t)_i;
    begin(&layouts[_i], 1 + (uint64_t)_i);
    for (uint32_t turn = 0; turn < 8 && !is_live(); turn++) {
        play_unnamed(number++, 7, -1, 0);
        step();
    }
    ck_assert(is_live());
    uint64_t messages = job.messages, replayed = job.node[0].replayed;
    for (uint32_t turn = 0; turn < 5; turn++) {
        play_unnamed(number++, 7, -1, 0);
        step();
    }
    ck_assert_uint_eq(job.messages, messages);
    ck_assert_uint_eq(job.node[0].replayed, replayed + 10);
    play_unnamed(number, 7, 1, 8);
    run();
    ck_assert_int_eq(job.parts[1][0].status, HVI_ERR_MISMATCH);
    step();
    ck_assert(!is_live());
    check_order();
    end();
}
END_TEST

/* What the number of the step's last one was does not matter when another has its turn. */
START_TEST(an_unnamed_op_that_says_something_else_each_time_is_negotiated)
{
    chance = 5 + (uint64_t)_i;
    begin(&layouts[_i], 1 + (uint64_t)_i);
    for (uint32_t turn = 0; turn < 12; turn++) {
        play_unnamed(turn + 1, 1 + turn % 2, -1, 0);
        step();
        ck_assert(!is_live());
    }
    for (uint32_t i = 0; i < job.nodes; i++)
        ck_assert_uint_eq(job.node[i].withdrawn, 0);
    end();
}
END_TEST

/* A step of ops that say `counts` and have no name, but for those of count 0, which are "a". Each rank brings them in
 * this order, as numbers have to be. */
static void play_counts(const int64_t *counts, uint32_t ops, uint64_t *number, int32_t odd_rank)
{
    uint32_t done[HVT_RANKS] = {0}, left = ops * (uint32_t)one.size;
    uint64_t numbers[HVT_RANKS];

    for (int32_t rank = 0; rank < one.size; rank++)
        numbers[rank] = *number;
    while (left > 0) {
        int32_t rank = (int32_t)below((uint32_t)one.size);
        uint32_t op = done[rank];
        if (op == ops)
            continue;
        struct hvt_bring what = counts[op] == 0 ? allreduce("a", 3) : allreduce(NULL, counts[op]);
        if (counts[op] > 0)
            what.tag = numbers[rank]++;
        if (rank == odd_rank && op + 1 == ops)
            what.dims[0]++;
        done[rank]++;
        left--;
        bring(rank, op, &what);
        if (below(3) == 0)
            hvt_job_run_some(&job, below(6));
    }
    *number = numbers[0];
}

/* As torch's DistributedDataParallel reduces its buckets; and as a loss and an accuracy are reduced beside gradients. */
static const int64_t steps_of_counts[][5] = {
    {7, 5, 6, 4, 3}, {7, 9, 9, 9, 5}, {0, 1, 1, 1, 1}, {2, 2, 3, 2, 3}};

START_TEST(several_unnamed_ops_of_a_step_cost_no_message)
{
    const int64_t *counts = steps_of_counts[_i % 4];
    uint64_t number = 40;

    chance = 3 + (uint64_t)_i;
    begin(&layouts[_i / 4], 1 + (uint64_t)_i);
    for (uint32_t turn = 0; turn < 40 && !is_live(); turn++) {
        play_counts(counts, 5, &number, -1);
        step();
    }
    ck_assert(is_live());
    for (uint32_t turn = 0; turn < 40;
         turn++) { /* of 7 9 9 9 5 a step of 9s may be tried, in vain */
        play_counts(counts, 5, &number, -1);
        step();
    }
    ck_assert(is_live());
    uint64_t messages = job.messages, replayed = job.node[0].replayed;
    for (uint32_t turn = 0; turn < 5; turn++) {
        play_counts(counts, 5, &number, -1);
        step();
    }
    ck_assert_uint_eq(job.messages, messages);
    ck_assert_uint_eq(job.node[0].replayed, replayed + 25);
    play_counts(counts, 5, &number, 1);
    run();
    ck_assert_int_eq(job.parts[1][4].status, HVI_ERR_MISMATCH);
    ck_assert_int_eq(job.parts[1][3].status, HVI_OK);
    step();
    ck_assert(!is_live());
    check_order();
    end();
}
END_TEST

/* A rank may wait for the end of a step before it begins the next. */
static bool may_bring(int32_t rank, uint32_t op, bool waits)
{
    for (uint32_t i = 0; waits && op == 0 && i < STEP; i++) {
        if (is_in_flight(rank, names[i], 0))
            return false;
    }
    return !is_in_flight(rank, names[op], 0) && free_part(rank, 0) < HVT_EACH;
}

static bool gathers; /* unnamed ops, and one of a group */

/* How many ops of the step: "c" and "d" may be a group. number not 0: it is unnamed. */
static uint32_t bring_next(int32_t rank, uint32_t op, uint32_t trouble, bool waits, bool grouped,
                           uint64_t number)
{
    struct hvt_bring what =
        allreduce(number > 0 ? NULL : names[op], trouble > 0 && below(2 * trouble) == 0 ? 2 : 1);

    what.tag = number;
    if (number > 0 ? gathers : op == 1) {
        what.kind = HVI_KIND_ALLGATHER;
        what.dims[0] += rank % 2;
    } else if (op == 4 && number == 0) {
        what.kind = HVI_KIND_ALLTOALL;
        what.dims[0] *= one.size;
    }
    what.room = 1 << 16;
    if (!may_bring(rank, op, waits))
        return 0;
    if (!grouped || op != 2) {
        bring_as(rank, free_part(rank, 0), &what, names[op]);
        return op < STEP;
    }
    uint32_t first = free_part(rank, 0), second = free_part(rank, first + 1);
    if (second >= HVT_EACH || is_in_flight(rank, names[3], 0))
        return 0;
    what.group_size = 2;
    bring_again(rank, first, &what);
    what = allreduce(names[3], 1);
    if (gathers) {
        what.kind = HVI_KIND_ALLGATHER;
        what.dims[0] += rank % 2;
        what.room = 1 << 16;
    }
    what.group_size = 2;
    what.group_index = 1;
    bring_again(rank, second, &what);
    return 2;
}

/* Ranks go through the same steps, each at its own pace, as long as what they wait for lets them. */
START_TEST(whatever_happens_while_steps_repeat_every_part_is_answered)
{
    uint64_t replayed = 0, withdrawn = 0;

    for (uint64_t seed = 1; seed <= (layouts[_i].nodes > 3 ? 4 : 24); seed++) {
        uint32_t at[HVT_RANKS] = {0};
        uint32_t trouble = seed % 4 == 0 ? 0 : 300 * (uint32_t)(seed % 4);
        chance = seed * 7 + (uint64_t)_i;
        gathers = seed % 2 == 0;
        begin(&layouts[_i], seed);
        for (uint32_t turn = 0; turn < (one.size > 10 ? 150 : 400) * (uint32_t)one.size; turn++) {
            int32_t rank = (int32_t)below((uint32_t)one.size);
            uint32_t op = at[rank] % STEP;
            if (trouble > 0 && below(trouble) == 0)
                op = STEP;
            /* Of the last three ops all say the same. */
            uint64_t number = seed % 3 == 2 && op >= 2 && op < STEP
                                  ? 3 * (uint64_t)(at[rank] / STEP) + op - 1
                                  : 0;
            at[rank] += bring_next(rank, op, trouble, seed % 8 < 6, seed % 3 == 0, number);
            if (trouble > 0 && below(2 * trouble) == 0)
                disturb(rank);
            if (trouble > 0 && below(trouble) == 0)
                engine_schedule_halt(&job.node[below(job.nodes)].order);
            if (below(2) == 0)
                hvt_job_run_some(&job, below(8));
        }
        hvt_job_run(&job);
        for (uint32_t i = 0; i < job.nodes; i++) {
            ck_assert_str_eq(job.node[i].order.broken_text, "");
            replayed += job.node[i].replayed;
            withdrawn += job.node[i].withdrawn;
        }
        check_order();
        hvt_job_break(&job, 0, HVI_ERR_JOB_STOPPED, -1, "over");
        hvt_job_run(&job);
        hvt_job_step(&job);
        end();
    }
    ck_assert_uint_gt(replayed, 1000);
    ck_assert_uint_gt(withdrawn, 20);
}
END_TEST

/* ---- the suite ---- */

static void add_ops(TCase *tcase)
{
    tcase_add_loop_test(tcase, the_last_node_makes_it_start_everywhere, 0, LAYOUTS);
    tcase_add_test(tcase, ranks_on_all_nodes_stand_in_the_sentence_of_a_mismatch);
    tcase_add_test(tcase, a_reported_op_waits_and_the_root_knows_for_whom);
    tcase_add_test(tcase, the_root_knows_of_ops_that_no_rank_of_its_node_has_brought);
    tcase_add_test(tcase, a_rank_takes_back_what_its_node_has_reported);
    tcase_add_test(tcase, what_is_taken_back_too_late_goes_on);
    tcase_add_test(tcase, a_group_that_fails_leaves_the_next_one_alone);
    tcase_add_loop_test(tcase, a_rank_that_is_slow_to_a_failed_group_meets_it_and_not_the_next_one,
                        0, LAYOUTS);
    tcase_add_test(tcase, a_rank_that_had_joined_brings_an_op_again_that_went_on_without_it);
    tcase_add_test(tcase, outputs_are_asked_for_before_a_work_has_its_place_in_the_order);
    tcase_add_test(tcase, a_send_meets_a_recv_on_another_node);
    tcase_add_test(tcase, what_they_disagree_on_stands_in_both_ranks_sentence);
    tcase_add_test(tcase, sends_from_one_rank_to_another_keep_their_order);
    tcase_add_test(tcase, a_recv_from_any_rank_takes_what_came_first);
    tcase_add_test(tcase, a_send_is_taken_back_and_the_next_one_meets_the_recv);
    tcase_add_test(tcase, a_send_that_is_taken_back_too_late_goes_on);
    tcase_add_test(tcase, what_waits_for_other_nodes_ranks_knows_for_which);
    tcase_add_test(tcase, an_opening_awaits_the_ranks_of_its_set_alone);
    tcase_add_test(tcase, its_members_alone_open_and_close_a_set);
    tcase_add_test(tcase, ids_stay_one_for_all_whoever_opens_and_closes);
    tcase_add_test(tcase, there_are_as_many_sets_as_on_one_node);
    tcase_add_test(tcase, an_opening_is_taken_back_or_fails_on_every_node);
    tcase_add_test(tcase, a_send_in_a_set_that_is_closed_fails);
    tcase_add_loop_test(tcase, a_failure_waits_for_ranks_that_come_late, 0, LAYOUTS);
    tcase_add_loop_test(tcase, a_failure_crosses_with_reports, 0, LAYOUTS);
    tcase_add_loop_test(tcase, ranks_that_have_joined_are_not_waited_for, 0, LAYOUTS);
    tcase_add_loop_test(tcase, groups_start_together_or_fail_together, 0, LAYOUTS);
    tcase_add_test(tcase, a_group_of_which_half_has_begun_ends_with_the_job);
    tcase_add_loop_test(tcase, groups_that_differ_come_to_light_when_the_last_ranks_join, 0, 3);
    tcase_add_test(tcase, a_group_whose_last_member_comes_after_the_jobs_end_ends_with_it);
    tcase_add_test(tcase, a_join_is_not_taken_back_where_other_nodes_count_on_it);
    tcase_add_loop_test(tcase, results_whose_size_overflows_are_refused_on_every_rank, 0, LAYOUTS);
    tcase_add_test(tcase, a_failure_of_which_the_root_has_not_heard_leaves_nothing_behind);
    tcase_add_loop_test(tcase, sets_have_the_same_ids_everywhere, 0, LAYOUTS);
    tcase_add_loop_test(tcase, what_waits_in_a_set_that_is_removed_fails, 0, LAYOUTS);
    tcase_add_loop_test(tcase, a_rank_that_is_lost_ends_what_waits_on_every_node, 0, LAYOUTS);
    tcase_add_loop_test(tcase, a_node_that_is_lost_breaks_the_job_and_a_stop_is_told_once_more, 0,
                        LAYOUTS);
    tcase_add_loop_test(tcase, the_same_program_gives_the_same_answers_on_one_node_and_on_many, 0,
                        LAYOUTS);
    tcase_add_loop_test(tcase, whatever_fails_every_part_is_answered_and_the_order_is_one, 0,
                        LAYOUTS);
}

static void add_steps(TCase *tcase)
{
    tcase_add_loop_test(tcase, steps_that_repeat_cost_no_message, 0, LAYOUTS);
    tcase_add_loop_test(tcase, sizes_that_repeat_cost_no_message, 0, LAYOUTS + 1);
    tcase_add_loop_test(tcase, other_sizes_in_a_step_that_repeats_are_negotiated, 0, LAYOUTS + 1);
    tcase_add_loop_test(tcase, sizes_that_change_are_no_step, 0, LAYOUTS);
    tcase_add_loop_test(tcase, outputs_that_come_after_a_halt_are_not_lost, 0, LAYOUTS);
    tcase_add_loop_test(tcase, a_join_does_not_pass_an_op_whose_outputs_are_still_to_come, 0,
                        LAYOUTS);
    tcase_add_loop_test(
        tcase, a_replayed_unnamed_op_that_goes_on_behind_a_join_is_not_the_next_one_of_its_number,
        0, LAYOUTS);
    tcase_add_loop_test(tcase, a_join_does_not_pass_what_is_being_taken_back, 0, 2);
    tcase_add_loop_test(tcase, what_a_rank_had_brought_before_its_nodes_join_is_not_taken_back, 0,
                        2);
    tcase_add_test(tcase, a_group_that_fails_as_its_node_joins_is_no_second_join);
    tcase_add_test(tcase, a_node_that_would_check_every_op_follows_the_roots);
    tcase_add_loop_test(tcase, what_differs_in_a_step_that_repeats_fails_as_ever, 0, LAYOUTS);
    tcase_add_loop_test(tcase, a_step_is_replayed_where_a_node_is_an_op_ahead, 0, LAYOUTS);
    tcase_add_loop_test(tcase, a_step_is_replayed_again_after_a_halt_in_its_middle, 0, LAYOUTS);
    tcase_add_loop_test(tcase, a_step_is_replayed_although_something_else_waits, 0, LAYOUTS);
    tcase_add_loop_test(tcase, what_does_not_come_in_a_step_that_repeats_is_waited_for, 0, LAYOUTS);
    tcase_add_loop_test(tcase, a_rank_joins_or_takes_back_while_a_step_repeats, 0, LAYOUTS);
    tcase_add_loop_test(tcase, what_waits_for_its_turn_in_a_step_is_taken_back, 0, LAYOUTS);
    tcase_add_loop_test(tcase, a_failure_is_not_lost_where_the_replayed_work_before_it_goes_on, 0,
                        LAYOUTS);
    tcase_add_loop_test(tcase, a_group_that_repeats_costs_no_message, 0, 2 * LAYOUTS);
    tcase_add_loop_test(tcase, a_group_is_withdrawn_as_a_whole_and_reported_again, 0, 2 * LAYOUTS);
    tcase_add_loop_test(tcase, a_group_that_differs_while_it_repeats_fails_as_a_whole, 0,
                        2 * LAYOUTS);
    tcase_add_loop_test(tcase, a_group_that_is_being_withdrawn_ends_once_with_the_job, 0,
                        2 * LAYOUTS);
    tcase_add_loop_test(tcase, other_sizes_in_a_group_that_repeats_are_negotiated, 0, LAYOUTS);
    tcase_add_loop_test(tcase, outputs_of_a_group_that_come_after_a_halt_are_not_lost, 0, LAYOUTS);
    tcase_add_loop_test(tcase, an_unnamed_op_of_a_step_costs_no_message, 0, LAYOUTS);
    tcase_add_loop_test(tcase, several_unnamed_ops_of_a_step_cost_no_message, 0, 4 * LAYOUTS);
    tcase_add_loop_test(tcase, an_unnamed_op_that_says_something_else_each_time_is_negotiated, 0,
                        LAYOUTS);
    tcase_add_loop_test(tcase, whatever_happens_while_steps_repeat_every_part_is_answered, 0,
                        LAYOUTS);
}

static void add_gpus(TCase *tcase)
{
    tcase_add_loop_test(tcase, every_node_is_told_which_worker_has_each_ranks_memory, 0, LAYOUTS);
    tcase_add_loop_test(tcase, a_rank_without_bytes_and_one_that_has_joined_have_no_worker, 0,
                        LAYOUTS);
    tcase_add_test(tcase, ranks_that_disagree_on_memory_stand_in_the_sentence);
    tcase_add_test(tcase, a_rank_without_an_input_gives_no_output_on_a_gpu_afterwards);
    tcase_add_test(tcase, both_nodes_of_a_send_are_told_which_worker_has_either_ranks_memory);
    tcase_add_loop_test(tcase, a_step_on_gpus_is_replayed_while_memory_stays_where_it_was, 0,
                        LAYOUTS);
    tcase_add_loop_test(tcase, ops_of_late_size_on_gpus_are_replayed_while_their_sizes_repeat, 0,
                        6);
    tcase_add_loop_test(tcase, other_steps_on_gpus_are_negotiated_each_time, 0, 2);
}

int main(void)
{
    Suite *suite = suite_create("engine/span");
    static void (*const add[])(TCase *) = {add_ops, add_steps, add_gpus};
    static const char *const cases[] = {"ops", "steps", "gpus"};

    for (size_t i = 0; i < sizeof(add) / sizeof(add[0]); i++) {
        TCase *tcase = tcase_create(cases[i]);
        tcase_set_timeout(tcase, 60);
        add[i](tcase);
        suite_add_tcase(suite, tcase);
    }
    return hvt_run_suite(suite);
}
