/* SPDX-License-Identifier: Apache-2.0
 * What nodes and the root do not believe of each other, each with its sentence; and the root alone. */
#include "base/status.h"
#include "base/types.h"
#include "daemon/engine/order/schedule.h"
#include "daemon/engine/order/span.h"
#include "daemon/engine/order/verdict.h"
#include "tests/unit/engine/hvt_span.h"
#include "tests/unit/hvt_main.h"

#include <string.h>

static struct hvt_job job;
static char text[512];

/* ---- reports ---- */

static unsigned char name[] = "w", other[] = "v", latin[] = "\xe9";
static int64_t dims[] = {4, 1}, splits[] = {1, 1, 1, 1};
static int32_t places[] = {0, 1}, twice[] = {1, 1}, beyond[] = {2};
static uint64_t workers[] = {5, 0, 0, 0};
static struct hvi_mesh_said said[3];
static struct hvi_mesh_report report;

/* Of node 1 of two, with ranks 1 and 3. */
static void fill(void)
{
    memset(said, 0, sizeof said);
    said[0] = (struct hvi_mesh_said){
        .kind = HVI_KIND_ALLREDUCE,
        .dtype = HVI_DTYPE_FLOAT32,
        .reduce_op = HVI_REDUCE_SUM,
        .root = -1,
        .dims = dims,
        .ndim = 2,
    };
    dims[0] = 4;
    report = (struct hvi_mesh_report){
        .what = HVI_MESH_BROUGHT,
        .kind = HVI_KIND_ALLREDUCE,
        .tensor = {.name = name, .name_bytes = 1},
        .has_tensor = true,
        .said = said,
        .said_count = 1,
        .last = -1,
        .culprit = -1,
    };
}

static void group(uint32_t size, uint32_t index)
{
    said[0].has_leader = true;
    said[0].leader = (struct hvi_mesh_name){.name = name, .name_bytes = 1};
    said[0].group_size = size;
    said[0].group_index = index;
}

static void no_such_dtype(void)
{
    said[0].dtype = 99;
}

static void negative_dimension(void)
{
    dims[0] = -1;
}

static void too_large(void)
{
    dims[0] = INT64_MAX;
}

static void group_beyond(void)
{
    group(2, 2);
}

static void group_without_a_name(void)
{
    group(2, 0);
    said[0].leader.name = latin;
}

static void more_of_no_group(void)
{
    report.more = true;
}

static void integers(void)
{
    said[0].integers = splits;
    said[0].integer_count = 4;
}

static void splits_of_others(void)
{
    said[0].kind = HVI_KIND_ALLTOALL;
    said[0].integers = splits;
    said[0].integer_count = 3;
}

static void no_such_kind(void)
{
    said[0].kind = 4;
}

static void a_recv(void)
{
    report.kind = HVI_KIND_RECV;
}

static void a_send(void)
{
    report.kind = HVI_KIND_SEND;
    report.pair = (struct hvi_mesh_pair){.from = 1, .to = 0};
    report.has_pair = true;
}

static void a_send_of_no_rank(void)
{
    a_send();
    report.pair.to = 4;
}

static void a_send_of_another_node(void)
{
    a_send();
    report.pair = (struct hvi_mesh_pair){.from = 0, .to = 1};
}

static void a_send_to_itself(void)
{
    a_send();
    report.pair.to = 3;
}

static void a_send_of_nobody(void)
{
    a_send();
    report.said_count = 0;
}

static void an_opening(void)
{
    report.kind = HVI_KIND_SET_OPEN;
    said[0].integers = dims;
    said[0].integer_count = 1;
    dims[0] = 0;
}

static void an_opening_of_nobody(void)
{
    an_opening();
    said[0].integer_count = 0;
}

static void an_opening_with_a_rank_twice(void)
{
    an_opening();
    said[0].integers = splits;
    said[0].integer_count = 2;
}

static void an_opening_that_starts(void)
{
    an_opening();
    report.what = HVI_MESH_STARTS;
}

static void no_such_memory(void)
{
    said[0].memory = 9;
}

static void a_gpu_of_the_host(void)
{
    said[0].instances = workers;
    said[0].instance_count = 1;
}

static void a_gpu_of_one_of_two(void)
{
    said[0].memory = HVI_MEMORY_DEVICE;
    said[0].instances = workers;
    said[0].instance_count = 1;
}

static void a_gpu_without_a_worker(void)
{
    a_gpu_of_one_of_two();
    said[0].instance_count = 2;
}

static void a_second_one_without_a_worker(void)
{
    a_gpu_of_one_of_two();
    said[0].places = places;
    said[0].place_count = 1;
    said[1] = said[0];
    said[1].reduce_op = HVI_REDUCE_MAX;
    said[1].places = places + 1;
    said[1].instances = workers + 1;
    report.said_count = 2;
}

static void a_second_group_without_a_name(void)
{
    group(2, 0);
    said[0].places = places;
    said[0].place_count = 1;
    said[1] = said[0];
    said[1].leader.name = latin;
    said[1].places = places + 1;
    report.said_count = 2;
}

static void too_many_dimensions(void)
{
    static int64_t many[HVI_DIMS_MAX + 1] = {1, 1, 1, 1, 1, 1, 1, 1, 1};

    said[0].dims = many;
    said[0].ndim = HVI_DIMS_MAX + 1;
}

static void a_halt_where_nothing_repeats(void)
{
    report.what = HVI_MESH_HALTED;
    report.sequence = 1;
}

static void no_such_reduce(void)
{
    said[0].reduce_op = 77;
}

static void a_place_twice(void)
{
    said[0].places = twice;
    said[0].place_count = 2;
}

static void a_place_beyond(void)
{
    said[0].places = beyond;
    said[0].place_count = 1;
}

static void nobody_says_it(void)
{
    said[0].places = places;
    said[0].place_count = 1;
    said[1] = said[0];
    said[1].place_count = 0;
    report.said_count = 2;
}

static void too_many_say(void)
{
    said[2] = said[1] = said[0];
    report.said_count = 3;
}

static void nothing_said(void)
{
    report.said_count = 0;
}

static void joined_elsewhere(void)
{
    report.kind = HVI_KIND_JOIN;
    report.last = 2;
}

static void a_failure_that_is_none(void)
{
    report.what = HVI_MESH_FAILED;
}

static void a_verdict(void)
{
    report.what = HVI_MESH_STARTS;
}

static void it_saw_more(void)
{
    report.seen = 1;
}

static void no_such_set(void)
{
    report.set = 3;
    report.serial = 3;
}

static void no_name(void)
{
    report.tensor.name = latin;
}

static const struct {
    void (*lie)(void);
    const char *sentence;
} lies[] = {
    {no_such_dtype, "dtype 99, reduce op 1, 2 dimensions"},
    {negative_dimension, "a dimension is -1"},
    {too_large, "the shape's size overflows"},
    {group_beyond, "member 2 of a group of 2"},
    {group_without_a_name, "a group without a name"},
    {more_of_no_group, "a group with another op in it"},
    {integers, "4 integers"},
    {splits_of_others, "3 integers"},
    {no_such_kind, "an op of kind 4"},
    {a_recv, "an op of kind 11"},
    {a_send_of_no_rank, "a send between ranks 1 and 4 of process set 0"},
    {a_send_of_another_node, "what it says of a send from node 0 to node 1"},
    {a_send_to_itself, "what it says of a send from node 1 to node 1"},
    {a_send_of_nobody, "a send with 0 senders"},
    {an_opening, "it has no member of the process set"},
    {an_opening_of_nobody, "a process set without ranks"},
    {an_opening_with_a_rank_twice, "a process set with rank 1"},
    {an_opening_that_starts, "what it says of a process set that is being opened"},
    {no_such_memory, "memory 9"},
    {a_gpu_of_the_host, "1 GPU workers of 0 ranks"},
    {a_gpu_of_one_of_two, "1 GPU workers of 2 ranks"},
    {a_gpu_without_a_worker, "memory of a GPU that no worker has"},
    {a_second_one_without_a_worker, "memory of a GPU that no worker has"},
    {a_second_group_without_a_name, "a group without a name"},
    {too_many_dimensions, "dtype 7, reduce op 1, 9 dimensions"},
    {a_halt_where_nothing_repeats, "it cannot have halted before work 1"},
    {no_such_reduce, "reduce op 77"},
    {a_place_twice, "it has no member 1 to speak for"},
    {a_place_beyond, "it has no member 2 to speak for"},
    {nobody_says_it, "something that no rank said"},
    {too_many_say, "3 opinions of 2 ranks"},
    {nothing_said, "0 opinions of 2 ranks"},
    {joined_elsewhere, "rank 2 is not there to join"},
    {a_failure_that_is_none, "a failure with status 0"},
    {a_verdict, "there is no report of kind 3"},
    {it_saw_more, "it has seen verdict 1"},
    {no_such_set, "process set 3 is not there"},
    {no_name, "an op without a name"},
};
#define LIES (int)(sizeof lies / sizeof lies[0])

static int tell(uint32_t node)
{
    return engine_root_report(&job.node[0].mesh.root, node, &report, text, sizeof text);
}

static void stop(void)
{
    for (uint32_t i = 0; i < job.nodes; i++)
        hvt_job_break(&job, i, HVI_ERR_JOB_STOPPED, -1, "over");
    hvt_job_run(&job);
    hvt_job_end(&job);
}

START_TEST(a_node_is_not_believed_that)
{
    char sentence[128];

    hvt_job_begin(&job, 2, 4, 2, false);
    fill();
    lies[_i].lie();
    ck_assert_int_eq(tell(1), HVI_ERR_PROTOCOL);
    snprintf(sentence, sizeof sentence, "node 1: report: %s", lies[_i].sentence);
    ck_assert_str_eq(text, sentence);
    stop();
}
END_TEST

START_TEST(a_node_speaks_of_sets_in_which_it_has_members)
{
    const struct hvt_bring add = {.name = "s",
                                  .kind = HVI_KIND_SET_ADD,
                                  .root = -1,
                                  .integers = (const int64_t[]){0, 1},
                                  .integer_count = 2};

    hvt_job_begin(&job, 3, 6, 2, false);
    for (int32_t rank = 0; rank < job.size; rank++)
        hvt_job_bring(&job, rank, 0, &add);
    hvt_job_run(&job);
    fill();
    report.set = 1;
    report.serial = 1;
    ck_assert_int_eq(tell(2), HVI_ERR_PROTOCOL);
    ck_assert_str_eq(text, "node 2: report: it has no members in process set 1");
    ck_assert_int_eq(tell(1), HVI_OK);
    stop();
}
END_TEST

START_TEST(a_node_says_each_thing_once)
{
    hvt_job_begin(&job, 2, 4, 2, false);
    fill();
    ck_assert_int_eq(tell(1), HVI_OK);
    ck_assert_int_eq(tell(1), HVI_ERR_PROTOCOL);
    ck_assert_str_eq(text,
                     "node 1: report: it had reported this op already, or its ranks have joined");
    report.what = HVI_MESH_FAILED;
    report.status = HVI_ERR_STALLED;
    ck_assert_int_eq(tell(1), HVI_ERR_PROTOCOL);
    ck_assert_str_eq(text, "node 1: report: it had reported this op already");
    fill();
    report.kind = HVI_KIND_JOIN;
    report.last = 3;
    ck_assert_int_eq(tell(1), HVI_OK);
    ck_assert_int_eq(tell(1), HVI_ERR_PROTOCOL);
    ck_assert_str_eq(text, "node 1: report: its ranks have joined already");
    stop();
}
END_TEST

START_TEST(a_node_opens_and_closes_what_is_its_own)
{
    hvt_job_begin(&job, 2, 4, 2, false);
    fill();
    an_opening();
    dims[0] = 1;
    dims[1] = 3;
    said[0].integer_count = 2;
    ck_assert_int_eq(tell(1), HVI_OK);
    ck_assert_uint_eq(job.node[0].mesh.root.sets.count, 2);
    dims[0] = 0;
    dims[1] = 1;
    ck_assert_int_eq(tell(1), HVI_OK);
    ck_assert_int_eq(tell(1), HVI_ERR_PROTOCOL);
    ck_assert_str_eq(text, "node 1: report: it had reported this op already");
    report.set = 1;
    report.serial = 1;
    ck_assert_int_eq(tell(1), HVI_ERR_PROTOCOL);
    ck_assert_str_eq(text, "node 1: report: a process set is opened in process set 1");
    report.kind = HVI_KIND_SET_CLOSE;
    ck_assert_int_eq(tell(0), HVI_ERR_PROTOCOL);
    ck_assert_str_eq(text, "node 0: report: process set 1 is not its own to close");
    ck_assert_int_eq(tell(1), HVI_OK);
    ck_assert_int_eq(tell(1), HVI_OK); /* it is closed already */
    ck_assert_uint_eq(job.node[0].mesh.root.sets.count, 1);
    stop();
}
END_TEST

START_TEST(groups_come_one_after_the_other)
{
    hvt_job_begin(&job, 2, 4, 2, false);
    fill();
    group(2, 0);
    report.more = true;
    ck_assert_int_eq(tell(1), HVI_OK);
    report.tensor.name = other;
    said[0].leader.name = other;
    ck_assert_int_eq(tell(1), HVI_ERR_PROTOCOL);
    ck_assert_str_eq(text, "node 1: report: two groups at a time");
    stop();
}
END_TEST

START_TEST(a_group_of_a_set_that_is_removed_while_it_comes_is_forgotten)
{
    const struct hvt_bring add = {.name = "s",
                                  .kind = HVI_KIND_SET_ADD,
                                  .root = -1,
                                  .integers = (const int64_t[]){0, 1},
                                  .integer_count = 2};
    const struct hvt_bring remove = {.name = "gone", .kind = HVI_KIND_SET_REMOVE, .root = 1};

    hvt_job_begin(&job, 2, 4, 2, false);
    for (int32_t rank = 0; rank < job.size; rank++)
        hvt_job_bring(&job, rank, 0, &add);
    hvt_job_run(&job);
    for (int32_t rank = 1; rank < job.size; rank += 2)
        hvt_job_bring(&job, rank, 1, &remove);
    hvt_job_run(&job);
    fill();
    group(2, 0);
    report.set = 1;
    report.serial = 1;
    report.more = true;
    ck_assert_int_eq(tell(1), HVI_OK);
    for (int32_t rank = 0; rank < job.size; rank += 2)
        hvt_job_bring(&job, rank, 1, &remove);
    hvt_job_run(&job);
    ck_assert_uint_eq(job.node[0].mesh.root.sets.count, 1);
    group(2, 1);
    report.tensor.name = other;
    report.more = false;
    ck_assert_int_eq(tell(1), HVI_OK); /* of a set that is not there */
    fill();
    ck_assert_int_eq(tell(1), HVI_OK); /* no other op within a group */
    stop();
}
END_TEST

START_TEST(a_group_without_its_first_member_fails)
{
    hvt_job_begin(&job, 2, 4, 2, false);
    fill();
    group(2, 1);
    report.tensor.name = other;
    ck_assert_int_eq(tell(1), HVI_OK);
    ck_assert_int_eq(tell(0), HVI_OK);
    ck_assert_ptr_null(job.node[0].mesh.root.first);
    stop();
}
END_TEST

START_TEST(what_comes_too_late_is_ignored)
{
    hvt_job_begin(&job, 2, 4, 2, false);
    fill();
    report.what = HVI_MESH_SIZED;
    ck_assert_int_eq(tell(1), HVI_OK);
    report.what = HVI_MESH_GIVE_UP;
    report.status = HVI_ERR_STALLED;
    ck_assert_int_eq(tell(1), HVI_OK);
    ck_assert_ptr_null(job.node[0].mesh.root.first);
    stop();
}
END_TEST

START_TEST(so_many_ops_wait_for_nodes_and_no_more)
{
    char names[16];

    hvt_job_begin(&job, 2, 4, 2, false);
    fill();
    report.tensor.name = (unsigned char *)names;
    for (uint32_t i = 0; i <= ENGINE_ROOT_WAITING_MAX; i++) {
        report.tensor.name_bytes = (size_t)snprintf(names, sizeof names, "w%u", i);
        ck_assert_int_eq(tell(1), i < ENGINE_ROOT_WAITING_MAX ? HVI_OK : HVI_ERR_LIMIT);
    }
    stop();
}
END_TEST

/* ---- works that repeat ---- */

/* All ranks bring 'w', until it repeats without a word between nodes. */
static void repeat(void)
{
    struct hvt_bring what = {.name = "w",
                             .kind = HVI_KIND_ALLREDUCE,
                             .dtype = HVI_DTYPE_FLOAT32,
                             .reduce_op = HVI_REDUCE_SUM,
                             .ndim = 1,
                             .dims = {4},
                             .prescale = 1};

    for (int turn = 0; turn < 8; turn++) {
        for (int32_t rank = 0; rank < job.size; rank++)
            hvt_job_bring(&job, rank, 0, &what);
        hvt_job_run(&job);
        hvt_job_step(&job);
    }
}

START_TEST(a_node_halts_when_it_is_asked_and_not_before_what_has_started)
{
    hvt_job_begin(&job, 2, 4, 2, false);
    repeat();
    const struct engine_root *root = &job.node[0].mesh.root;
    ck_assert(root->live && job.node[1].order.schedule.live);
    fill();
    report.what = HVI_MESH_HALTED;
    report.seen = job.node[1].order.seen;
    report.sequence = root->sequence + 1;
    ck_assert_int_eq(tell(1), HVI_ERR_PROTOCOL); /* nobody was asked */
    report.what = HVI_MESH_HALT;
    ck_assert_int_eq(tell(1), HVI_OK);
    ck_assert(root->halting);
    report.what = HVI_MESH_HALTED;
    report.sequence = root->sequence;
    ck_assert_int_eq(tell(1), HVI_ERR_PROTOCOL);
    ck_assert_ptr_nonnull(strstr(text, "node 1: report: it cannot have halted before work "));
    hvt_job_run(&job);
    ck_assert(!root->live && !root->halting);
    repeat();
    ck_assert(root->live);
    stop();
}
END_TEST

/* ---- verdicts ---- */

static struct hvi_mesh_verdict verdict;

/* The first one, that 'w' starts. */
static void fill_verdict(void)
{
    verdict = (struct hvi_mesh_verdict){
        .what = HVI_MESH_STARTS,
        .number = 1,
        .sequence = 1,
        .kind = HVI_KIND_ALLREDUCE,
        .tensor = {.name = name, .name_bytes = 1},
        .has_tensor = true,
        .last = -1,
        .culprit = -1,
    };
}

/* Node 1 has reported an allreduce 'w' and, as 'v', an allgather; the sends of ranks 1 and 3, to rank 0;
 * two openings; and 's', a new set. */
static void report_two(void)
{
    struct hvt_bring what = {.name = "w",
                             .kind = HVI_KIND_ALLREDUCE,
                             .dtype = HVI_DTYPE_FLOAT32,
                             .reduce_op = HVI_REDUCE_SUM,
                             .ndim = 1,
                             .dims = {4},
                             .prescale = 1};

    hvt_job_begin(&job, 2, 4, 2, false);
    for (int32_t rank = 1; rank < 4; rank += 2) {
        what.name = "w";
        what.kind = HVI_KIND_ALLREDUCE;
        hvt_job_bring(&job, rank, 0, &what);
        what.name = "v";
        what.kind = HVI_KIND_ALLGATHER;
        hvt_job_bring(&job, rank, 1, &what);
        what.kind = HVI_KIND_SEND;
        hvt_job_bring(&job, rank, 2, &what);
        what.kind = HVI_KIND_SET_OPEN;
        what.integers = (const int64_t[]){0, rank};
        what.integer_count = 2;
        hvt_job_bring(&job, rank, 3, &what);
        what.name = "s";
        what.kind = HVI_KIND_SET_ADD;
        what.integers = (const int64_t[]){0, 1};
        hvt_job_bring(&job, rank, 4, &what);
        what.integer_count = 0;
    }
    fill_verdict();
}

static void out_of_turn(void)
{
    verdict.number = 3;
}

static void of_no_set(void)
{
    verdict.serial = 9;
}

static void without_a_name(void)
{
    verdict.tensor.name = latin;
}

static void of_no_kind(void)
{
    verdict.what = HVI_MESH_BROUGHT;
}

static void of_nothing(void)
{
    verdict.tensor = (struct hvi_mesh_name){.kind = HVI_KIND_BARRIER, .number = 4};
}

static void of_the_past(void)
{
    verdict.sequence = 0;
}

static void without_sizes(void)
{
    verdict.what = HVI_MESH_SIZED;
}

static void with_a_join_beyond(void)
{
    verdict.joined = beyond;
    verdict.joined_count = 1;
    beyond[0] = 4;
}

static void with_a_join_of_ours(void)
{
    verdict.joined = twice;
    verdict.joined_count = 1;
}

static void with_rows(void)
{
    verdict.rows = splits;
    verdict.row_count = 4;
}

static void with_the_rows_of_others(void)
{
    verdict.tensor.name = other;
    verdict.rows = splits;
    verdict.row_count = 4;
}

static void with_less_than_no_rows(void)
{
    static int64_t rows[] = {1, -1, 1, 1};

    verdict.tensor.name = other;
    verdict.rows = rows;
    verdict.row_count = 4;
}

static void with_the_gpus_of_some(void)
{
    verdict.instances = workers;
    verdict.instance_count = 3;
}

static void with_a_gpu_of_ours(void)
{
    verdict.instances = workers;
    verdict.instance_count = 4;
    workers[1] = 7;
}

static void of_a_step(void)
{
    verdict.what = HVI_MESH_REPEATS;
    verdict.count = 1;
}

static void of_the_end_of_no_step(void)
{
    verdict.what = HVI_MESH_HALT;
}

static void of_a_report(void)
{
    verdict.what = HVI_MESH_HALTED;
}

static void of_a_step_that_was_not_halted(void)
{
    verdict.what = HVI_MESH_RESUMES;
}

static void unasked(void)
{
    verdict.what = HVI_MESH_RETRACT;
}

static void with_a_success(void)
{
    verdict.what = HVI_MESH_FAILED;
}

static void of_nobodys_send(void)
{
    verdict.kind = HVI_KIND_SEND;
}

/* From rank 1, as it was reported. */
static void of_a_send(void)
{
    verdict.kind = HVI_KIND_SEND;
    verdict.pair = (struct hvi_mesh_pair){.from = 1, .to = 0, .id = 1};
    verdict.has_pair = true;
}

static void of_another_send(void)
{
    of_a_send();
    verdict.pair.id = 3;
}

static void of_a_send_in_the_past(void)
{
    of_a_send();
    verdict.sequence = 0;
}

static void of_a_send_unasked(void)
{
    of_a_send();
    verdict.what = HVI_MESH_RETRACT;
}

static void of_a_send_with_a_success(void)
{
    of_a_send();
    verdict.what = HVI_MESH_FAILED;
}

static void of_a_send_with_sizes(void)
{
    of_a_send();
    verdict.what = HVI_MESH_SIZED;
}

static void of_a_send_with_one_gpu(void)
{
    of_a_send();
    verdict.instances = workers;
    verdict.instance_count = 1;
}

static void of_a_send_with_a_gpu_of_ours(void)
{
    of_a_send();
    verdict.instances = workers;
    verdict.instance_count = 2;
}

static void of_an_offer(void)
{
    of_a_send();
    verdict.pair = (struct hvi_mesh_pair){.from = 0, .to = 1, .id = 1};
    verdict.what = HVI_MESH_BROUGHT;
}

static void of_an_offer_with_a_success(void)
{
    of_an_offer();
    verdict.what = HVI_MESH_GIVE_UP;
}

/* Of four elements, which its ranks might send. */
static void of_a_good_offer(void)
{
    of_an_offer();
    verdict.has_said = true;
    verdict.said = (struct hvi_mesh_said){
        .kind = HVI_KIND_SEND, .dtype = HVI_DTYPE_FLOAT32, .root = 1, .dims = dims, .ndim = 1};
    dims[0] = 4;
}

static void of_an_offer_of_no_memory(void)
{
    of_a_good_offer();
    verdict.said.memory = 9;
}

static void of_an_offer_without_its_gpu(void)
{
    of_a_good_offer();
    verdict.said.memory = HVI_MEMORY_DEVICE;
}

static void of_no_opening(void)
{
    verdict.kind = HVI_KIND_SET_OPEN;
    verdict.new_set = 1;
    verdict.id = 9;
}

static void of_an_opening_with_a_success(void)
{
    verdict.kind = HVI_KIND_SET_OPEN;
    verdict.what = HVI_MESH_FAILED;
    verdict.id = 2;
}

static void of_a_set_beyond(void)
{
    verdict.kind = HVI_KIND_SET_OPEN;
    verdict.new_set = ENGINE_SETS_MAX;
    verdict.id = 2;
}

static void of_an_added_set_beyond(void)
{
    verdict.kind = HVI_KIND_SET_ADD;
    verdict.tensor.name = (unsigned char *)(uintptr_t) "s";
    verdict.new_set = ENGINE_SETS_MAX;
}

static const struct {
    void (*lie)(void);
    const char *sentence;
} false_verdicts[] = {
    {out_of_turn, "verdict 3: 1 was due"},
    {of_no_set, "verdict 1: process set 0 is not there"},
    {without_a_name, "verdict 1: it has no name"},
    {of_no_kind, "verdict 1: there is no verdict of kind 1"},
    {of_nothing, "verdict 1: nothing of this name was reported"},
    {of_the_past, "verdict 1: work 0 after 0"},
    {without_sizes, "verdict 1: there are no outputs to ask for"},
    {with_a_join_beyond, "verdict 1: set rank 4 cannot have joined"},
    {with_a_join_of_ours, "verdict 1: it is wrong about rank 1"},
    {with_rows, "verdict 1: its sizes cannot be"},
    {with_the_rows_of_others, "verdict 1: its sizes cannot be"},
    {with_less_than_no_rows, "verdict 1: its sizes cannot be"},
    {with_the_gpus_of_some, "verdict 1: 3 GPU workers of 4 ranks"},
    {with_a_gpu_of_ours, "verdict 1: it is wrong about the GPU of rank 1"},
    {of_a_step, "verdict 1: the last 1 works cannot repeat as 1"},
    {of_the_end_of_no_step, "verdict 1: nothing repeats"},
    {of_a_report, "verdict 1: it is no verdict"},
    {of_a_step_that_was_not_halted, "verdict 1: works 0 to 1 cannot be, as 1 was next"},
    {unasked, "verdict 1: it was not asked for"},
    {with_a_success, "verdict 1: a failure of kind 0 with status 0"},
    {of_nobodys_send, "verdict 1: rank 0 sends nothing to rank 0 between this node and others"},
    {of_another_send, "verdict 1: nothing of this number was reported"},
    {of_a_send_in_the_past, "verdict 1: work 0 after 0"},
    {of_a_send_unasked, "verdict 1: it was not asked for"},
    {of_a_send_with_a_success, "verdict 1: a failure with status 0"},
    {of_a_send_with_sizes, "verdict 1: there is no verdict of kind 2 for a send"},
    {of_a_send_with_one_gpu, "verdict 1: 1 GPU workers of two ranks"},
    {of_a_send_with_a_gpu_of_ours, "verdict 1: it is wrong about the GPU of rank 1"},
    {of_an_offer, "verdict 1: rank 0 cannot send that"},
    {of_an_offer_of_no_memory, "verdict 1: rank 0 cannot send that"},
    {of_an_offer_without_its_gpu, "verdict 1: rank 0 cannot send that"},
    {of_an_offer_with_a_success, "verdict 1: a failure with status 0"},
    {of_no_opening, "verdict 1: of kind 3, about opening 9 of process set 1 as it cannot be"},
    {of_an_opening_with_a_success,
     "verdict 1: of kind 4, about opening 2 of process set 0 as it cannot be"},
    {of_a_set_beyond, "verdict 1: of kind 3, about opening 2 of process set 1024 as it cannot be"},
    {of_an_added_set_beyond, "verdict 1: process set 1024 cannot be new"},
};
#define FALSE_VERDICTS (int)(sizeof false_verdicts / sizeof false_verdicts[0])

START_TEST(the_root_is_not_believed_a_verdict)
{
    report_two();
    false_verdicts[_i].lie();
    ck_assert_int_eq(engine_verdict_hear(&job.node[1].order, &verdict, text, sizeof text),
                     HVI_ERR_PROTOCOL);
    ck_assert_str_eq(text, false_verdicts[_i].sentence);
    stop();
}
END_TEST

static int hear(void)
{
    return engine_verdict_hear(&job.node[1].order, &verdict, text, sizeof text);
}

/* Else a work of several nodes would be one of a single worker. 0: an allreduce; 1: a send. */
START_TEST(the_root_puts_no_other_ranks_memory_on_a_gpu_of_this_node)
{
    static const char *const due[] = {"verdict 1: it is wrong about the GPU of set rank 0",
                                      "verdict 1: it is wrong about the GPU of rank 0"};
    static uint64_t all_here[] = {7, 7, 7, 7};
    struct hvt_bring what = {.name = "w",
                             .kind = _i == 0 ? HVI_KIND_ALLREDUCE : HVI_KIND_SEND,
                             .dtype = HVI_DTYPE_FLOAT32,
                             .reduce_op = HVI_REDUCE_SUM,
                             .ndim = 1,
                             .dims = {4},
                             .prescale = 1,
                             .memory = HVI_MEMORY_DEVICE,
                             .instance = 7};

    hvt_job_begin(&job, 2, 4, 2, false);
    for (int32_t rank = 1; rank < 4; rank += 2)
        hvt_job_bring(&job, rank, 0, &what);
    fill_verdict();
    if (_i == 1)
        of_a_send();
    verdict.instances = all_here;
    verdict.instance_count = _i == 0 ? 4 : 2;
    ck_assert_int_eq(hear(), HVI_ERR_PROTOCOL);
    ck_assert_str_eq(text, due[_i]);
    stop();
}
END_TEST

START_TEST(sends_of_other_nodes_wait_as_many_as_ranks_can_have_in_flight)
{
    const uint64_t most = 4 * HVI_CQ_SLOTS;

    report_two();
    of_a_good_offer();
    for (uint64_t i = 1; i <= most; i++) {
        verdict.number = verdict.pair.id = i;
        ck_assert_int_eq(hear(), HVI_OK);
    }
    ck_assert_uint_eq(job.node[1].order.offers, most);
    verdict.number++;
    ck_assert_int_eq(hear(), HVI_ERR_PROTOCOL);
    ck_assert_str_eq(text, "verdict 16385: more sends than ranks can have in flight");
    stop();
}
END_TEST

START_TEST(sets_do_not_change_without_a_rank_that_has_joined)
{
    const struct hvt_bring join = {.name = "join", .kind = HVI_KIND_JOIN, .root = -1};
    const struct hvt_bring add = {.name = "s",
                                  .kind = HVI_KIND_SET_ADD,
                                  .root = -1,
                                  .integers = (const int64_t[]){0, 1},
                                  .integer_count = 2};

    hvt_job_begin(&job, 2, 4, 2, false);
    fill_verdict();
    hvt_job_bring(&job, 1, 0, &join);
    hvt_job_bring(&job, 3, 0, &add);
    verdict.kind = HVI_KIND_SET_ADD;
    verdict.tensor.name = (unsigned char *)(uintptr_t) "s";
    verdict.new_set = 1;
    ck_assert_int_eq(hear(), HVI_ERR_PROTOCOL);
    ck_assert_str_eq(text, "verdict 1: sets change without a rank that has joined");
    stop();
}
END_TEST

START_TEST(a_step_has_each_tensor_once)
{
    hvt_job_begin(&job, 2, 4, 2, false);
    fill_verdict();
    repeat();
    engine_schedule_halt(&job.node[0].order);
    hvt_job_run(&job);
    ck_assert(!job.node[1].order.schedule.live && job.node[1].order.schedule.past_count >= 2);
    verdict.what = HVI_MESH_REPEATS;
    verdict.count = 2;
    verdict.number = job.node[1].order.seen + 1;
    verdict.sequence = job.node[1].order.sequence + 1;
    ck_assert_int_eq(hear(), HVI_ERR_PROTOCOL);
    ck_assert_ptr_nonnull(strstr(text, ": a tensor comes twice in a step"));
    stop();
}
END_TEST

/* ---- packets ---- */

static struct hvi_mesh_packet packet;

static void deliver(uint32_t node, uint32_t from)
{
    unsigned char *bytes;
    size_t length;

    ck_assert_int_eq(hvi_mesh_encode(&packet, &bytes, &length), HVI_OK);
    engine_mesh_message(&job.node[node].mesh, from, bytes, length);
    free(bytes);
}

static void expect(uint32_t node, const char *sentence)
{
    ck_assert_int_eq(job.node[node].order.broken_status, HVI_ERR_NODE_LOST);
    ck_assert_str_eq(job.node[node].order.broken_text, sentence);
    hvt_job_run(&job);
    for (uint32_t i = 0; i < job.nodes; i++) /* all hear of it */
        ck_assert_str_eq(job.node[i].order.broken_text, sentence);
    stop();
}

static void begin_tree(void)
{
    hvt_job_begin(&job, 20, 20, 2, false); /* nodes 17 to 19 are behind node 1 */
    memset(&packet, 0, sizeof packet);
    packet.has_broken = true;
    packet.broken.status = HVI_ERR_RANK_LOST;
}

START_TEST(a_neighbour_speaks_for_what_is_behind_it_only)
{
    begin_tree();
    packet.from = 2;
    deliver(0, 1);
    expect(
        0,
        "node 1 of the job sent node 0 what cannot be: a message of a node that is not behind it");
}
END_TEST

START_TEST(a_message_goes_on_and_not_back)
{
    begin_tree();
    packet.from = 17;
    packet.to = 18;
    deliver(0, 1);
    expect(
        0,
        "node 1 of the job sent node 0 what cannot be: a message that should not have come here");
}
END_TEST

START_TEST(a_message_is_of_a_node_of_the_job)
{
    begin_tree();
    packet.from = 20;
    deliver(0, 1);
    expect(0,
           "node 1 of the job sent node 0 what cannot be: a message of a node that there is not");
}
END_TEST

START_TEST(reports_are_for_the_root_and_verdicts_from_it)
{
    begin_tree();
    packet.has_broken = false;
    packet.has_verdict = true;
    packet.verdict = (struct hvi_mesh_verdict){
        .what = HVI_MESH_STARTS, .has_tensor = true, .last = -1, .culprit = -1};
    packet.from = 1;
    deliver(0, 1);
    expect(0, "node 1 of the job sent node 0 what cannot be: a verdict that is not the root's");
    begin_tree();
    packet.has_broken = false;
    packet.has_report = true;
    fill();
    packet.report = report;
    packet.from = 17;
    packet.to = 1;
    deliver(1, 17);
    expect(1, "node 17 of the job sent node 1 what cannot be: a report that is not for the root");
}
END_TEST

START_TEST(news_of_the_end_come_by_the_root)
{
    begin_tree();
    packet.from = 17;
    packet.to = 2;
    deliver(1, 17);
    expect(1, "node 17 of the job sent node 1 what cannot be: news that pass the root by");
}
END_TEST

START_TEST(what_is_for_all_is_a_verdict_of_the_root)
{
    begin_tree();
    packet.all = true;
    packet.from = 1;
    deliver(0, 1);
    expect(0, "node 1 of the job sent node 0 what cannot be: what is for all, and is no verdict of "
              "the root's");
}
END_TEST

START_TEST(nodes_behind_one_that_has_broken_the_job_hear_of_it)
{
    begin_tree();
    hvt_job_break(&job, 1, HVI_ERR_RANK_LEFT, 1, "rank 1 has left");
    hvt_job_run(&job);
    for (uint32_t i = 0; i < job.nodes; i++)
        ck_assert_str_eq(job.node[i].order.broken_text, "rank 1 has left");
    stop();
}
END_TEST

START_TEST(a_node_that_is_lost_after_a_rank_has_left_is_told_to_all)
{
    begin_tree();
    hvt_job_break(&job, 1, HVI_ERR_RANK_LEFT, 1, "rank 1 has left");
    hvt_job_run(&job);
    engine_mesh_node_lost(&job.node[2].mesh, 3, "node 3 is lost");
    hvt_job_break(&job, 17, HVI_ERR_RANK_LEFT, 17, "rank 17 has left");
    hvt_job_run(&job);
    for (uint32_t i = 0; i < job.nodes; i++) {
        ck_assert_int_eq(job.node[i].order.broken_status, HVI_ERR_NODE_LOST);
        ck_assert_str_eq(job.node[i].order.broken_text, "node 3 is lost");
    }
    stop();
}
END_TEST

static void lose_what_waits(struct hvt_queue *queue)
{
    while (queue->first) {
        struct hvt_message *message = queue->first;
        queue->first = message->next;
        free(message);
    }
    queue->last = &queue->first;
}

/* The root's news go by it. */
START_TEST(nodes_behind_one_that_ends_with_its_last_rank_are_told_before)
{
    begin_tree();
    hvt_job_break(&job, 1, HVI_ERR_RANK_LOST, 1, "rank 1 is lost");
    lose_what_waits(&job.node[1].up);
    hvt_job_run(&job);
    for (uint32_t i = 17; i < 20; i++)
        ck_assert_str_eq(job.node[i].order.broken_text, "rank 1 is lost");
    ck_assert_int_eq(job.node[0].order.broken_status, HVI_OK);
    stop();
}
END_TEST

START_TEST(nodes_behind_one_that_has_lost_the_way_to_the_root_are_told_by_it)
{
    begin_tree();
    engine_mesh_node_lost(&job.node[1].mesh, 0, "node 0 (a) is lost");
    lose_what_waits(&job.node[1].up);
    hvt_job_run(&job);
    for (uint32_t i = 17; i < 20; i++)
        ck_assert_str_eq(job.node[i].order.broken_text, "node 0 (a) is lost");
    ck_assert_int_eq(job.node[0].order.broken_status, HVI_OK);
    engine_mesh_node_lost(&job.node[0].mesh, 1, "node 1 (b) is lost");
    hvt_job_run(&job);
    for (uint32_t i = 2; i < 17; i++)
        ck_assert_str_eq(job.node[i].order.broken_text, "node 1 (b) is lost");
    stop();
}
END_TEST

START_TEST(what_is_no_message_ends_the_job)
{
    begin_tree();
    engine_mesh_message(&job.node[0].mesh, 3, (const unsigned char *)"\xff\xff", 2);
    expect(0,
           "node 3 of the job sent node 0 what cannot be: MeshPacket: malformed, cut short, or a "
           "required field is missing");
}
END_TEST

/* Of node 1, and of 17, 18 and 19 below it. */
static void fill_for_several(void)
{
    packet.has_broken = false;
    packet.has_report = true;
    packet.below = true;
    fill();
    packet.report = report;
    packet.from = 1;
}

START_TEST(a_node_speaks_for_those_below_it_as_far_as_it_can)
{
    begin_tree();
    fill_for_several();
    packet.report.more = true;
    deliver(0, 1);
    expect(0, "node 1 of the job sent node 0 what cannot be: what several nodes cannot say as one");
    begin_tree();
    fill_for_several();
    packet.report.seen = 7;
    deliver(0, 1);
    expect(0, "node 1 of the job sent node 0 what cannot be: node 1: report: node 1 has seen "
              "verdict 7");
    begin_tree();
    fill_for_several();
    deliver(0, 1);
    fill_for_several();
    packet.below = false;
    packet.from = 18;
    deliver(0, 1);
    expect(0, "node 18 of the job sent node 0 what cannot be: node 18: report: it had reported "
              "this op already, or its ranks have joined");
    begin_tree();
    fill_for_several();
    packet.below = false;
    packet.from = 18;
    deliver(0, 1);
    fill_for_several();
    deliver(0, 1);
    expect(0, "node 1 of the job sent node 0 what cannot be: node 1: report: node 18 had reported "
              "this op already");
}
END_TEST

START_TEST(a_false_report_ends_the_job)
{
    begin_tree();
    packet.has_broken = false;
    packet.has_report = true;
    fill();
    packet.report = report;
    packet.report.seen = 7;
    packet.from = 17;
    deliver(1, 17);
    hvt_job_run(&job);
    expect(0,
           "node 17 of the job sent node 0 what cannot be: node 17: report: it has seen verdict 7");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine/root");
    TCase *tcase = tcase_create("root");

    tcase_set_timeout(tcase, 30);
    tcase_add_loop_test(tcase, a_node_is_not_believed_that, 0, LIES);
    tcase_add_test(tcase, a_node_speaks_of_sets_in_which_it_has_members);
    tcase_add_test(tcase, a_node_says_each_thing_once);
    tcase_add_test(tcase, a_node_opens_and_closes_what_is_its_own);
    tcase_add_test(tcase, groups_come_one_after_the_other);
    tcase_add_test(tcase, a_group_of_a_set_that_is_removed_while_it_comes_is_forgotten);
    tcase_add_test(tcase, a_group_without_its_first_member_fails);
    tcase_add_test(tcase, what_comes_too_late_is_ignored);
    tcase_add_test(tcase, so_many_ops_wait_for_nodes_and_no_more);
    tcase_add_test(tcase, a_node_halts_when_it_is_asked_and_not_before_what_has_started);
    tcase_add_loop_test(tcase, the_root_is_not_believed_a_verdict, 0, FALSE_VERDICTS);
    tcase_add_loop_test(tcase, the_root_puts_no_other_ranks_memory_on_a_gpu_of_this_node, 0, 2);
    tcase_add_test(tcase, sends_of_other_nodes_wait_as_many_as_ranks_can_have_in_flight);
    tcase_add_test(tcase, sets_do_not_change_without_a_rank_that_has_joined);
    tcase_add_test(tcase, a_step_has_each_tensor_once);
    tcase_add_test(tcase, a_neighbour_speaks_for_what_is_behind_it_only);
    tcase_add_test(tcase, a_message_goes_on_and_not_back);
    tcase_add_test(tcase, a_message_is_of_a_node_of_the_job);
    tcase_add_test(tcase, reports_are_for_the_root_and_verdicts_from_it);
    tcase_add_test(tcase, news_of_the_end_come_by_the_root);
    tcase_add_test(tcase, what_is_for_all_is_a_verdict_of_the_root);
    tcase_add_test(tcase, nodes_behind_one_that_has_broken_the_job_hear_of_it);
    tcase_add_test(tcase, a_node_that_is_lost_after_a_rank_has_left_is_told_to_all);
    tcase_add_test(tcase, nodes_behind_one_that_ends_with_its_last_rank_are_told_before);
    tcase_add_test(tcase, nodes_behind_one_that_has_lost_the_way_to_the_root_are_told_by_it);
    tcase_add_test(tcase, what_is_no_message_ends_the_job);
    tcase_add_test(tcase, a_node_speaks_for_those_below_it_as_far_as_it_can);
    tcase_add_test(tcase, a_false_report_ends_the_job);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
