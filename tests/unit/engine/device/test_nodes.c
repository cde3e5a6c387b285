/* SPDX-License-Identifier: Apache-2.0
 * The row "gpu" with a span: what a worker is told of a work over several nodes, and when such a work is over. The test is dispatch,
 * the worker and the other nodes. */
#include "base/status.h"
#include "base/types.h"
#include "daemon/engine/exec/gpu.h"
#include "tests/unit/hvt_main.h"

#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define MEMBERS 4u /* ranks 0 and 2 are here, on node 5; 1 and 3 on node 7 */

static struct {
    void *row;
    struct hvi_device_channel channel, engine; /* the worker's end; the row's */
    int event_fd;
    uint32_t posted, started, wanted, left, stuck;
    int left_status;
    char left_text[ENGINE_TEXT_BYTES];
    struct engine_gpu_comm comm;
    uint64_t instances[ENGINE_GPU_RANKS];
    uint32_t nodes[ENGINE_GPU_RANKS];
    uint32_t told, told_node;
    struct engine_gpu_news news; /* the last */
} rig;

static struct op {
    struct engine_batch batch;
    struct engine_work work;
    struct engine_span span;
    struct engine_operand in[2], out[2];
    struct engine_fence fence[2];
} op, ops[4];

static uint32_t node_numbers[] = {5, 7}, places[] = {2, 2};
static uint32_t home[MEMBERS] = {0, 1, 0, 1}, place[MEMBERS] = {0, 0, 1, 1};
static uint64_t instances[MEMBERS] = {100, 200, 100, 201};

static void post(void *user, struct engine_batch *batch)
{
    (void)user, (void)batch;
    rig.posted++;
}

static void started(void *user, struct engine_batch *batch)
{
    (void)user, (void)batch;
    rig.started++;
}

static void comm_wanted(void *user, const struct engine_gpu_comm *comm)
{
    (void)user;
    rig.wanted++;
    rig.comm = *comm;
    memcpy(rig.instances, comm->instances, comm->ranks * sizeof rig.instances[0]);
    memcpy(rig.nodes, comm->nodes, comm->ranks * sizeof rig.nodes[0]);
}

static void tell_node(void *user, const struct engine_gpu_comm *comm, uint32_t node,
                      const struct engine_gpu_news *news)
{
    (void)user, (void)comm;
    rig.told++;
    rig.told_node = node;
    rig.news = *news;
}

static void comm_over(void *user, uint32_t comm, int status, const char *text)
{
    (void)user, (void)comm;
    rig.left++;
    rig.left_status = status;
    snprintf(rig.left_text, sizeof rig.left_text, "%s", text);
}

static void worker_stuck(void *user, uint32_t worker, const char *text)
{
    (void)user, (void)worker, (void)text;
    rig.stuck++;
}

static void setup(void)
{
    const struct engine_backend_config config = {.post = post,
                                                 .started = started,
                                                 .comm_wanted = comm_wanted,
                                                 .worker_stuck = worker_stuck,
                                                 .tell_node = tell_node,
                                                 .comm_over = comm_over};

    memset(&rig, 0, sizeof rig);
    ck_assert_int_eq(engine_backend_gpu.open(&config, &rig.row), HVI_OK);
    ck_assert_int_eq(hvi_device_create(100, 1, &rig.channel), HVI_OK);
    rig.event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    ck_assert_int_eq(hvi_device_map(dup(rig.channel.map.fd), &rig.engine), HVI_OK);
    engine_gpu_backend_worker(rig.row, 3, &rig.engine, rig.event_fd, "GPU 3");
    op.span = (struct engine_span){.sequence = 9,
                                   .nodes = 2,
                                   .node = node_numbers,
                                   .places = places,
                                   .members = MEMBERS,
                                   .home = home,
                                   .place = place,
                                   .instances = instances};
    op.work =
        (struct engine_work){.kind = HVI_KIND_ALLREDUCE,
                             .dtype = HVI_DTYPE_INT32,
                             .reduce_op = HVI_REDUCE_AVERAGE,
                             .ranks = 2,
                             .root = -1,
                             .prescale = 1,
                             .postscale = 1,
                             .count = 4,
                             .bytes = 16,
                             .span = &op.span,
                             .in = op.in,
                             .out = op.out,
                             .fence = op.fence,
                             .kinds = 1u << ENGINE_OPERAND_NONE | 1u << ENGINE_OPERAND_DEVICE};
    for (uint32_t i = 0; i < 2; i++) {
        op.in[i] = op.out[i] =
            (struct engine_operand){.kind = ENGINE_OPERAND_DEVICE, .worker = 3, .import = 1 + i};
        op.fence[i] = (struct engine_fence){0};
    }
    op.batch = (struct engine_batch){.works = {&op.work}, .count = 1};
}

static void teardown(void)
{
    engine_backend_gpu.close(rig.row);
    hvi_device_fini(&rig.engine);
    hvi_device_fini(&rig.channel);
    close(rig.event_fd);
}

static void start(void)
{
    ck_assert(engine_backend_gpu.accepts(&op.batch));
    engine_backend_gpu.start(rig.row, &op.batch);
}

static void start_joined(void)
{
    start();
    engine_gpu_backend_comm(rig.row, rig.comm.number, HVI_OK, "");
    ck_assert_uint_eq(rig.started, 1);
}

/* What the worker is told: the batch's slots from `at` on. */
static const void *slot(uint32_t at)
{
    return hvi_ring_slot(&rig.channel.commands, at);
}

static void answer(int status)
{
    struct hvi_device_done *done = hvi_ring_slot(&rig.channel.dones, 0);

    *done = (struct hvi_device_done){.seq = 1, .number = 1, .status = status, .member = -1};
    hvi_ring_publish(&rig.channel.dones, 1);
    engine_gpu_backend_look(rig.row);
}

static void hear_of(uint32_t node, uint64_t sequence, int status, const char *text)
{
    const struct engine_gpu_news news = {
        .word = ENGINE_GPU_OVER, .sequence = sequence, .status = status, .text = text};

    engine_gpu_backend_heard(rig.row, rig.instances, rig.comm.ranks, node, &news);
}

static void hear_begun(uint32_t node)
{
    const struct engine_gpu_news news = {.word = ENGINE_GPU_BEGUN, .sequence = 9, .text = ""};

    engine_gpu_backend_heard(rig.row, rig.instances, rig.comm.ranks, node, &news);
    engine_backend_gpu.watch(rig.row);
}

static void hear(uint64_t sequence, int status, const char *text)
{
    hear_of(7, sequence, status, text);
}

/* Of three nodes this is the first, with ranks 0 and 2; or the last, with rank 3. */
static void be_one_of_three(bool first)
{
    static const uint32_t nodes[] = {5, 7, 8}, their_places[] = {2, 1, 1};
    static const uint32_t homes[MEMBERS] = {0, 1, 0, 2}, in_place[MEMBERS] = {0, 0, 1, 0};

    op.span.nodes = 3;
    op.span.here = first ? 0 : 2;
    op.span.node = nodes;
    op.span.places = their_places;
    op.span.home = homes;
    op.span.place = in_place;
    op.work.ranks = first ? 2 : 1;
}

START_TEST(the_communicator_has_the_workers_of_all_nodes_by_the_lowest_rank)
{
    start();
    ck_assert_uint_eq(rig.wanted, 1);
    ck_assert_uint_eq(rig.comm.count, 1);
    ck_assert_uint_eq(rig.comm.ranks, 3);
    const uint64_t due[] = {100, 200, 201};
    ck_assert_mem_eq(rig.instances, due, sizeof due);
    const uint32_t nodes[] = {5, 7, 7};
    ck_assert_mem_eq(rig.nodes, nodes, sizeof nodes);
    ck_assert_uint_eq(rig.started, 0);
}
END_TEST

START_TEST(a_worker_hears_of_set_ranks_and_of_all_members)
{
    start_joined();
    const struct hvi_device_batch *batch = slot(0);
    const struct hvi_device_work *work = slot(1);
    const struct hvi_device_member *members[] = {slot(2), slot(3)};
    ck_assert_uint_eq(batch->slots, 4);
    ck_assert_uint_eq(batch->comm_ranks, 3);
    ck_assert_uint_eq(batch->comm_rank, 0);
    ck_assert_uint_eq(work->ranks, MEMBERS);
    ck_assert_uint_eq(work->divisor, MEMBERS);
    ck_assert_uint_eq(work->members, 2);
    ck_assert_uint_eq(members[0]->place, 0);
    ck_assert_uint_eq(members[1]->place, 2);
    ck_assert_uint_eq(members[1]->in_import, 2);
}
END_TEST

START_TEST(a_root_elsewhere_is_the_communicators_rank_of_its_worker)
{
    op.work.kind = HVI_KIND_BROADCAST;
    op.work.reduce_op = 0;
    op.work.root = 3;
    start_joined();
    const struct hvi_device_work *work = slot(1);
    ck_assert_int_eq(work->root, 2);
    ck_assert_int_eq(work->root_member, -1);
}
END_TEST

START_TEST(an_alltoall_has_the_rows_and_columns_of_members_here_and_the_homes_of_all)
{
    uint64_t sizes[2 * 2 * MEMBERS];

    for (uint32_t i = 0; i < 2 * 2 * MEMBERS; i++)
        sizes[i] = 4 * (i + 1);
    op.work.kind = HVI_KIND_ALLTOALL;
    op.work.sizes = sizes;
    start_joined();
    const uint64_t due[MEMBERS][MEMBERS] = {
        {4, 8, 12, 16}, {4 * 10, 0, 4 * 14, 0}, {20, 24, 28, 32}, {4 * 12, 0, 4 * 16, 0}};
    ck_assert_mem_eq(slot(4), due, sizeof due);
    const uint64_t homes[MEMBERS] = {0, 1, 0, 2};
    ck_assert_mem_eq(slot(6), homes, sizeof homes);
}
END_TEST

START_TEST(a_work_is_over_when_it_is_over_on_every_node)
{
    start_joined();
    answer(HVI_OK);
    ck_assert_uint_eq(rig.posted, 0);
    ck_assert_uint_eq(rig.told, 1);
    ck_assert(rig.news.word == ENGINE_GPU_OVER && rig.news.sequence == 9 &&
              rig.news.status == HVI_OK);
    hear(8, HVI_OK, "");
    ck_assert_uint_eq(rig.posted, 0);
    hear(9, HVI_OK, "");
    ck_assert_uint_eq(rig.posted, 1);
    ck_assert_int_eq(op.batch.status, HVI_OK);
}
END_TEST

START_TEST(another_node_may_be_done_before)
{
    start_joined();
    hear(9, HVI_OK, "");
    ck_assert_uint_eq(rig.posted, 0);
    answer(HVI_OK);
    ck_assert_uint_eq(rig.posted, 1);
    ck_assert_int_eq(op.batch.status, HVI_OK);
}
END_TEST

START_TEST(what_fails_on_another_node_fails_here_before_or_after_its_own_end)
{
    start_joined();
    if (_i == 0)
        hear(9, HVI_ERR_LIMIT, "too many ranks");
    answer(HVI_OK);
    if (_i == 1)
        hear(9, HVI_ERR_LIMIT, "too many ranks");
    ck_assert_uint_eq(rig.posted, 1);
    ck_assert_int_eq(op.batch.status, HVI_ERR_LIMIT);
    ck_assert_str_eq(op.batch.text, "too many ranks");
}
END_TEST

/* Its time begins when the work has begun everywhere: where it is over, it has. */
START_TEST(a_worker_is_late_also_if_the_other_node_has_said_nothing_but_that_it_is_over)
{
    engine_gpu_backend_set_timeout(rig.row, 1);
    start_joined();
    for (int i = 0; i < 2; i++) {
        engine_backend_gpu.watch(rig.row);
        usleep(1000);
    }
    ck_assert_uint_eq(rig.stuck, 0);
    hear(9, HVI_OK, "");
    for (int i = 0; i < 2; i++) {
        engine_backend_gpu.watch(rig.row);
        usleep(1000);
    }
    ck_assert_uint_eq(rig.stuck, 1);
}
END_TEST

START_TEST(the_first_node_tells_each_when_a_work_is_over_on_all_but_that_one)
{
    be_one_of_three(true);
    start_joined();
    answer(HVI_OK);
    ck_assert_uint_eq(rig.told, 0);
    hear_of(7, 9, HVI_OK, "");
    ck_assert_uint_eq(rig.told, 1);
    ck_assert_uint_eq(rig.told_node, 8);
    ck_assert_uint_eq(rig.posted, 0);
    hear_of(8, 9, HVI_OK, "");
    ck_assert_uint_eq(rig.told, 2);
    ck_assert_uint_eq(rig.told_node, 7);
    ck_assert_uint_eq(rig.posted, 1);
    ck_assert_int_eq(op.batch.status, HVI_OK);
}
END_TEST

START_TEST(another_node_than_the_first_speaks_with_that_one_alone)
{
    be_one_of_three(false);
    start_joined();
    answer(HVI_OK);
    ck_assert_uint_eq(rig.told, 1);
    ck_assert_uint_eq(rig.told_node, 5);
    ck_assert(rig.news.word == ENGINE_GPU_OVER && rig.news.sequence == 9 &&
              rig.news.status == HVI_OK);
    hear_of(7, 9, HVI_OK, "");
    ck_assert_uint_eq(rig.posted, 0);
    hear_of(5, 9, HVI_OK, "");
    ck_assert_uint_eq(rig.posted, 1);
    ck_assert_uint_eq(rig.told, 1);
}
END_TEST

/* A second after it has begun here; also where it is over here. */
START_TEST(nodes_tell_each_other_in_the_same_way_that_a_work_has_begun)
{
    engine_gpu_backend_set_timeout(rig.row, 1);
    be_one_of_three(true);
    start_joined();
    if (_i == 1)
        answer(HVI_OK);
    engine_backend_gpu.watch(rig.row);
    usleep(1050000);
    engine_backend_gpu.watch(rig.row);
    ck_assert_uint_eq(rig.told, 0);
    hear_begun(8);
    ck_assert_uint_eq(rig.told, 1);
    ck_assert(rig.told_node == 7 && rig.news.word == ENGINE_GPU_BEGUN && rig.news.sequence == 9);
    ck_assert_uint_eq(rig.stuck, 0);
    hear_begun(7);
    ck_assert_uint_eq(rig.told, 2);
    ck_assert(rig.told_node == 8 && rig.news.word == ENGINE_GPU_BEGUN);
    usleep(1000);
    engine_backend_gpu.watch(rig.row);
    ck_assert_uint_eq(rig.stuck, _i == 0); /* its worker is late, if it has not answered */
    ck_assert_uint_eq(rig.told, 2);
}
END_TEST

START_TEST(the_first_node_passes_a_failure_on_at_once_and_once)
{
    be_one_of_three(true);
    start_joined();
    hear_of(7, 9, HVI_ERR_LIMIT, "too many ranks");
    ck_assert_uint_eq(rig.told, 1);
    ck_assert_uint_eq(rig.told_node, 8);
    ck_assert(rig.news.word == ENGINE_GPU_OVER && rig.news.sequence == 9 &&
              rig.news.status == HVI_ERR_LIMIT);
    answer(HVI_OK);
    ck_assert_uint_eq(rig.told, 1);
    ck_assert_uint_eq(rig.posted, 1);
    ck_assert_int_eq(op.batch.status, HVI_ERR_LIMIT);
}
END_TEST

START_TEST(a_failure_here_is_told_to_all_nodes)
{
    be_one_of_three(true);
    start_joined();
    answer(HVI_ERR_NO_MEMORY);
    ck_assert_uint_eq(rig.told, 2);
    ck_assert_int_eq(rig.news.status, HVI_ERR_NO_MEMORY);
    ck_assert_uint_eq(rig.posted, 1);
}
END_TEST

START_TEST(a_later_work_that_has_failed_says_nothing_of_this_one)
{
    start_joined();
    answer(HVI_OK);
    hear(10, HVI_ERR_LIMIT, "too many ranks");
    ck_assert_uint_eq(rig.posted, 0);
    hear(9, HVI_OK, "");
    ck_assert_uint_eq(rig.posted, 1);
    ck_assert_int_eq(op.batch.status, HVI_OK);
}
END_TEST

START_TEST(a_work_that_another_node_has_cancelled_is_lost_with_it)
{
    start_joined();
    answer(HVI_OK);
    hear(9, HVI_ERR_CANCELLED, "");
    ck_assert_uint_eq(rig.posted, 1);
    ck_assert_int_eq(op.batch.status, HVI_ERR_NODE_LOST);
}
END_TEST

START_TEST(a_work_that_is_cancelled_while_it_waits_for_other_nodes_ends_at_once)
{
    start_joined();
    answer(HVI_OK);
    engine_backend_gpu.cancel(rig.row, &op.batch);
    ck_assert_uint_eq(rig.posted, 1);
    ck_assert_int_eq(op.batch.status, HVI_ERR_CANCELLED);
    ck_assert_uint_eq(rig.left, 0);
}
END_TEST

START_TEST(a_work_that_is_cancelled_before_it_starts_ends_its_communicator)
{
    start();
    engine_backend_gpu.cancel(rig.row, &op.batch);
    ck_assert_uint_eq(rig.posted, 1);
    ck_assert_uint_eq(rig.left, 1);
}
END_TEST

START_TEST(a_node_without_memory_of_a_work_has_nothing_to_do)
{
    for (uint32_t i = 0; i < 2; i++)
        op.in[i].kind = op.out[i].kind = ENGINE_OPERAND_NONE;
    const uint64_t elsewhere[MEMBERS] = {0, 200, 0, 201};
    op.span.instances = elsewhere;
    start();
    ck_assert_uint_eq(rig.wanted, 0);
    ck_assert_uint_eq(rig.started, 1);
    ck_assert_uint_eq(rig.posted, 1);
    ck_assert_int_eq(op.batch.status, HVI_OK);
}
END_TEST

START_TEST(too_many_ranks_on_a_gpu_of_any_node_are_refused_on_all)
{
    static uint32_t homes[200], their_places[200];
    static uint64_t theirs[200];

    for (uint32_t i = 0; i < 200; i++) {
        homes[i] = i > 1;
        their_places[i] = i > 1 ? i - 2 : i;
        theirs[i] = i > 1 ? 200 : 100;
    }
    op.span.members = 200;
    op.span.home = homes;
    op.span.place = their_places;
    op.span.instances = theirs;
    start();
    ck_assert_uint_eq(rig.wanted, 0);
    ck_assert_uint_eq(rig.posted, 1);
    ck_assert_int_eq(op.batch.status, HVI_ERR_LIMIT);
}
END_TEST

/* ---- steps that are replayed ---- */

static void begin_ops(void)
{
    for (uint32_t i = 0; i < 4; i++) {
        struct op *each = &ops[i];
        *each = op;
        each->span.sequence = 9 + i;
        each->span.tentative = true;
        each->work.span = &each->span;
        each->work.in = each->in;
        each->work.out = each->out;
        each->work.fence = each->fence;
        each->batch.works[0] = &each->work;
    }
}

static void start_ops(uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        engine_backend_gpu.start(rig.row, &ops[i].batch);
    engine_gpu_backend_comm(rig.row, rig.comm.number, HVI_OK, "");
    engine_gpu_backend_look(rig.row);
}

static void hear_started(uint32_t node, uint64_t sequence)
{
    const struct engine_gpu_news news = {
        .word = ENGINE_GPU_STARTED, .sequence = sequence, .text = ""};

    engine_gpu_backend_heard(rig.row, rig.instances, rig.comm.ranks, node, &news);
}

static void expect_told(uint32_t times, uint32_t node, enum engine_gpu_word word, uint64_t sequence)
{
    ck_assert_uint_eq(rig.told, times);
    ck_assert_uint_eq(rig.told_node, node);
    ck_assert_uint_eq(rig.news.word, word);
    ck_assert_uint_eq(rig.news.sequence, sequence);
}

START_TEST(a_tentative_work_goes_to_no_worker_before_all_nodes_have_started_it)
{
    be_one_of_three(true);
    begin_ops();
    start_ops(1);
    ck_assert_uint_eq(rig.told, 0);
    hear_started(7, 9);
    ck_assert_uint_eq(rig.told, 0);
    ck_assert_uint_eq(rig.started, 0);
    ck_assert(engine_gpu_backend_is_tentative(rig.row, &ops[0].batch));
    hear_started(8, 9);
    expect_told(2, 8, ENGINE_GPU_STARTED, 9);
    ck_assert_uint_eq(rig.started, 1);
    ck_assert(!engine_gpu_backend_is_tentative(rig.row, &ops[0].batch));
}
END_TEST

START_TEST(another_node_than_the_first_waits_for_the_word_of_that_one)
{
    be_one_of_three(false);
    begin_ops();
    start_ops(2);
    expect_told(1, 5, ENGINE_GPU_STARTED, 10); /* one message for both */
    hear_started(7, 10);                       /* it does not speak for all */
    ck_assert_uint_eq(rig.started, 0);
    hear_started(5, 10);
    ck_assert_uint_eq(rig.started, 2);
    ck_assert_uint_eq(rig.told, 1);
}
END_TEST

START_TEST(works_that_all_nodes_have_started_are_one_batch_and_cost_one_word_of_their_end)
{
    begin_ops();
    start_ops(3);
    hear_started(7, 11);
    expect_told(1, 7, ENGINE_GPU_STARTED, 11);
    ck_assert_uint_eq(rig.started, 3);
    const struct hvi_device_batch *batch = slot(0);
    ck_assert_uint_eq(batch->works, 3);
    ck_assert_uint_eq(batch->slots, 1 + 3 * 3);
    answer(HVI_OK);
    expect_told(2, 7, ENGINE_GPU_OVER, 11);
    ck_assert_uint_eq(rig.posted, 0);
    hear(11, HVI_OK, "");
    ck_assert_uint_eq(rig.posted, 3);
    for (uint32_t i = 0; i < 3; i++)
        ck_assert_int_eq(ops[i].batch.status, HVI_OK);
}
END_TEST

/* Another node may have had the first word when the third work had not come. */
START_TEST(works_of_two_words_are_two_batches_also_if_both_wait)
{
    begin_ops();
    for (uint32_t i = 0; i < 3; i++)
        engine_backend_gpu.start(rig.row, &ops[i].batch);
    hear_started(7, 10);
    hear_started(7, 11);
    ck_assert_uint_eq(rig.started, 0);
    engine_gpu_backend_comm(rig.row, rig.comm.number, HVI_OK, "");
    ck_assert_uint_eq(rig.started, 3);
    const struct hvi_device_batch *batch = slot(0), *second = slot(1 + 2 * 3);
    ck_assert_uint_eq(batch->works, 2);
    ck_assert_uint_eq(second->command, HVI_DEVICE_BATCH);
    ck_assert_uint_eq(second->works, 1);
}
END_TEST

static void of_another_op(void)
{
    ops[1].work.reduce_op = HVI_REDUCE_SUM;
}

static void of_a_large_op(void)
{
    ops[1].work.bytes = 512 * 1024;
}

static void with_memory_elsewhere(void)
{
    static const uint64_t others[MEMBERS] = {100, 201, 100, 200};

    ops[1].span.instances = others;
}

static void of_an_adasum(void)
{
    for (uint32_t i = 0; i < 2; i++)
        ops[i].work.reduce_op = HVI_REDUCE_ADASUM;
}

static void that_was_negotiated(void)
{
    ops[0].span.tentative = false;
}

static void (*const unlike[])(void) = {of_another_op, of_a_large_op, with_memory_elsewhere,
                                       of_an_adasum, that_was_negotiated};

START_TEST(works_that_are_not_alike_are_batches_of_their_own)
{
    static const uint64_t comms[][3] = {{100, 200, 201}, {100, 201, 200}};
    const struct engine_gpu_news news = {.word = ENGINE_GPU_STARTED, .sequence = 10, .text = ""};

    begin_ops();
    unlike[_i]();
    start_ops(2);
    for (uint32_t comm = 1; comm <= rig.comm.number; comm++) /* its own, with memory elsewhere */
        engine_gpu_backend_comm(rig.row, comm, HVI_OK, "");
    for (uint32_t comm = 0; comm < 2; comm++)
        engine_gpu_backend_heard(rig.row, comms[comm], 3, 7, &news);
    const struct hvi_device_batch *batch = slot(0);
    ck_assert_uint_eq(batch->works, 1);
    ck_assert_uint_eq(rig.started, 2);
}
END_TEST

START_TEST(works_that_some_node_has_not_started_are_withdrawn)
{
    begin_ops();
    start_ops(3);
    hear_started(7, 9);
    ck_assert_uint_eq(rig.started, 1);
    engine_gpu_backend_withdraw(rig.row, 10);
    ck_assert_uint_eq(rig.posted, 2);
    ck_assert_int_eq(ops[1].batch.status, ENGINE_BATCH_WITHDRAWN);
    ck_assert_int_eq(ops[2].batch.status, ENGINE_BATCH_WITHDRAWN);
    answer(HVI_OK);
    hear(9, HVI_OK, "");
    ck_assert_uint_eq(rig.posted, 3);
    ck_assert_int_eq(ops[0].batch.status, HVI_OK);
}
END_TEST

START_TEST(a_communicator_that_cannot_be_fails_a_tentative_work_when_all_have_started_it)
{
    begin_ops();
    engine_backend_gpu.start(rig.row, &ops[0].batch);
    engine_gpu_backend_comm(rig.row, rig.comm.number, HVI_ERR_LIMIT, "too many");
    ck_assert_uint_eq(rig.posted, 0);
    hear_started(7, 9);
    ck_assert_uint_eq(rig.posted, 1);
    ck_assert_int_eq(ops[0].batch.status, HVI_ERR_LIMIT);
}
END_TEST

START_TEST(a_pack_fails_as_a_whole)
{
    begin_ops();
    start_ops(3);
    hear_started(7, 11);
    if (_i == 0)
        engine_backend_gpu.cancel(rig.row, &ops[1].batch);
    if (_i == 1)
        engine_gpu_backend_lost(rig.row, 3, "GPU 3: it has ended");
    if (_i < 2)
        ck_assert_uint_eq(rig.posted, _i == 0 ? 0 : 3);
    if (_i != 1)
        answer(_i == 0 ? HVI_OK : HVI_ERR_NO_MEMORY);
    ck_assert_uint_eq(rig.posted, 3);
    const int due[] = {HVI_ERR_CANCELLED, HVI_ERR_WORKER_LOST, HVI_ERR_NO_MEMORY};
    for (uint32_t i = 0; i < 3; i++)
        ck_assert_int_eq(ops[i].batch.status, due[_i]);
}
END_TEST

/* ---- what cannot be ---- */

/* order/ refuses such a verdict; here it is no more than a work that fails. */
START_TEST(a_replayed_work_of_several_nodes_on_one_gpu_is_refused)
{
    static const uint64_t mine[MEMBERS] = {100, 100, 100, 100};

    begin_ops();
    ops[0].span.instances = mine;
    engine_backend_gpu.start(rig.row, &ops[0].batch);
    ck_assert_uint_eq(rig.posted, 1);
    ck_assert_uint_eq(rig.wanted, 0);
    ck_assert_int_eq(ops[0].batch.status, HVI_ERR_UNSUPPORTED);
    ck_assert_str_eq(ops[0].batch.text, "the memory of several nodes is said to be on one GPU");
}
END_TEST

/* The op has failed, and no communicator was asked for. */
static void expect_refused(int status, const char *text)
{
    ck_assert_uint_eq(rig.wanted, 0);
    ck_assert_uint_eq(rig.posted, 1);
    ck_assert_int_eq(op.batch.status, status);
    ck_assert_str_eq(op.batch.text, text);
}

/* 0: two ranks have different GPUs here and the same one in the verdict; 1: the number is that of no worker; 2: a communicator
 * has fewer ranks than there are GPUs. */
START_TEST(gpus_that_cannot_work_together_are_told)
{
    static uint32_t homes[ENGINE_GPU_RANKS + 2], their_places[ENGINE_GPU_RANKS + 2];
    static uint64_t theirs[ENGINE_GPU_RANKS + 2];

    if (_i == 0)
        op.in[1].worker = op.out[1].worker = 4;
    if (_i == 1)
        op.in[1].worker = op.out[1].worker = ENGINE_GPU_WORKERS;
    for (uint32_t i = 0; _i == 2 && i < ENGINE_GPU_RANKS + 2; i++) {
        homes[i] = i > 1;
        their_places[i] = i > 1 ? i - 2 : i;
        theirs[i] = i > 1 ? 200 + i : 100;
    }
    if (_i == 2) {
        op.span.members = ENGINE_GPU_RANKS + 2;
        op.span.home = homes;
        op.span.place = their_places;
        op.span.instances = theirs;
    }
    start();
    expect_refused(HVI_ERR_UNSUPPORTED, "the GPUs of these operands cannot work together");
}
END_TEST

START_TEST(a_work_for_a_worker_that_is_lost_fails_with_what_has_become_of_it)
{
    engine_gpu_backend_lost(rig.row, 3, "GPU 3: it has ended");
    engine_gpu_backend_lost(rig.row, 3, "GPU 3: once more");
    start();
    expect_refused(HVI_ERR_WORKER_LOST, "GPU 3: it has ended");
}
END_TEST

START_TEST(a_communicator_that_could_not_be_made_is_not_asked_for_again)
{
    start();
    engine_gpu_backend_comm(rig.row, rig.comm.number + 1, HVI_ERR_LIMIT, "of another");
    ck_assert_uint_eq(rig.posted, 0);
    engine_gpu_backend_comm(rig.row, rig.comm.number, HVI_ERR_UNSUPPORTED, "no NCCL there");
    ck_assert_uint_eq(rig.posted, 1);
    op.batch = (struct engine_batch){.works = {&op.work}, .count = 1};
    op.span.sequence = 10;
    start();
    ck_assert_uint_eq(rig.posted, 2);
    ck_assert_uint_eq(rig.wanted, 1);
    ck_assert_int_eq(op.batch.status, HVI_ERR_UNSUPPORTED);
    ck_assert_str_eq(op.batch.text, "no NCCL there");
}
END_TEST

START_TEST(the_first_node_is_not_believed_that_this_one_has_started_more_than_it_has)
{
    be_one_of_three(false);
    begin_ops();
    start_ops(2);
    hear_started(5, 11);
    ck_assert_uint_eq(rig.started, 0);
    ck_assert_uint_eq(rig.left, 1);
    ck_assert_int_eq(rig.left_status, HVI_ERR_NODE_LOST);
    ck_assert_str_eq(rig.left_text, "node 5 says of work 11 on GPUs what cannot be: this node has "
                                    "not started it");
}
END_TEST

/* A node that is ahead may have started more than this one has. */
START_TEST(another_node_may_have_started_more_than_the_first)
{
    be_one_of_three(true);
    begin_ops();
    start_ops(1);
    hear_started(7, 20);
    hear_started(8, 20);
    ck_assert_uint_eq(rig.left, 0);
    ck_assert_uint_eq(rig.started, 1);
}
END_TEST

START_TEST(so_many_works_have_failed_elsewhere_and_no_more)
{
    start_joined();
    for (uint64_t i = 0; i < 16384; i++)
        hear(10 + i, HVI_ERR_LIMIT, "too many ranks");
    ck_assert_uint_eq(rig.left, 0);
    hear(20000, HVI_ERR_LIMIT, "too many ranks");
    ck_assert_uint_eq(rig.left, 1);
    ck_assert_str_eq(rig.left_text, "node 7 says of work 20000 on GPUs what cannot be: too many "
                                    "works have failed there");
    answer(HVI_OK);
    hear(9, HVI_OK, "");
    ck_assert_int_eq(op.batch.status, HVI_OK);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine/device/nodes");
    TCase *tcase = tcase_create("nodes");

    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, the_communicator_has_the_workers_of_all_nodes_by_the_lowest_rank);
    tcase_add_test(tcase, a_worker_hears_of_set_ranks_and_of_all_members);
    tcase_add_test(tcase, a_root_elsewhere_is_the_communicators_rank_of_its_worker);
    tcase_add_test(tcase,
                   an_alltoall_has_the_rows_and_columns_of_members_here_and_the_homes_of_all);
    tcase_add_test(tcase, a_work_is_over_when_it_is_over_on_every_node);
    tcase_add_test(tcase, another_node_may_be_done_before);
    tcase_add_loop_test(tcase, what_fails_on_another_node_fails_here_before_or_after_its_own_end, 0,
                        2);
    tcase_add_test(tcase,
                   a_worker_is_late_also_if_the_other_node_has_said_nothing_but_that_it_is_over);
    tcase_add_test(tcase, the_first_node_tells_each_when_a_work_is_over_on_all_but_that_one);
    tcase_add_test(tcase, another_node_than_the_first_speaks_with_that_one_alone);
    tcase_add_loop_test(tcase, nodes_tell_each_other_in_the_same_way_that_a_work_has_begun, 0, 2);
    tcase_add_test(tcase, the_first_node_passes_a_failure_on_at_once_and_once);
    tcase_add_test(tcase, a_failure_here_is_told_to_all_nodes);
    tcase_add_test(tcase, a_later_work_that_has_failed_says_nothing_of_this_one);
    tcase_add_test(tcase, a_work_that_another_node_has_cancelled_is_lost_with_it);
    tcase_add_test(tcase, a_work_that_is_cancelled_while_it_waits_for_other_nodes_ends_at_once);
    tcase_add_test(tcase, a_work_that_is_cancelled_before_it_starts_ends_its_communicator);
    tcase_add_test(tcase, a_node_without_memory_of_a_work_has_nothing_to_do);
    tcase_add_test(tcase, too_many_ranks_on_a_gpu_of_any_node_are_refused_on_all);
    tcase_add_test(tcase, a_tentative_work_goes_to_no_worker_before_all_nodes_have_started_it);
    tcase_add_test(tcase, another_node_than_the_first_waits_for_the_word_of_that_one);
    tcase_add_test(tcase,
                   works_that_all_nodes_have_started_are_one_batch_and_cost_one_word_of_their_end);
    tcase_add_test(tcase, works_of_two_words_are_two_batches_also_if_both_wait);
    tcase_add_loop_test(tcase, works_that_are_not_alike_are_batches_of_their_own, 0,
                        sizeof unlike / sizeof unlike[0]);
    tcase_add_test(tcase, works_that_some_node_has_not_started_are_withdrawn);
    tcase_add_test(tcase,
                   a_communicator_that_cannot_be_fails_a_tentative_work_when_all_have_started_it);
    tcase_add_loop_test(tcase, a_pack_fails_as_a_whole, 0, 3);
    tcase_add_test(tcase, a_replayed_work_of_several_nodes_on_one_gpu_is_refused);
    tcase_add_loop_test(tcase, gpus_that_cannot_work_together_are_told, 0, 3);
    tcase_add_test(tcase, a_work_for_a_worker_that_is_lost_fails_with_what_has_become_of_it);
    tcase_add_test(tcase, a_communicator_that_could_not_be_made_is_not_asked_for_again);
    tcase_add_test(tcase,
                   the_first_node_is_not_believed_that_this_one_has_started_more_than_it_has);
    tcase_add_test(tcase, another_node_may_have_started_more_than_the_first);
    tcase_add_test(tcase, so_many_works_have_failed_elsewhere_and_no_more);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
