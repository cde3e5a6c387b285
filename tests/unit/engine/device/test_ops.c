/* SPDX-License-Identifier: Apache-2.0
 * Ops on memory of GPUs: what workers are told, and how ops end. */
#include "base/status.h"
#include "daemon/engine/sessions/fence.h"
#include "daemon/engine/watch/stall.h"
#include "daemon/engine/watch/trace.h"
#include "tests/unit/engine/device/hvt_gpus.h"
#include "tests/unit/hvt_main.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct hvt_gpus gpus;

#define ALLREDUCE HVI_KIND_ALLREDUCE
#define GPU0      "GPU-00000000-0000-0000-0000-000000000000"

/* np ranks, rank n on GPU n % `count`. */
static void open_gpus_within(int32_t size, uint32_t count, uint64_t comm_ns)
{
    hvt_gpus_init(&gpus, size);
    gpus.comm_ns = comm_ns;
    for (int32_t rank = 0; rank < size; rank++)
        hvt_rank_use(&gpus, rank, (uint32_t)rank % count);
}

static void open_gpus(int32_t size, uint32_t count)
{
    open_gpus_within(size, count, 60 * HVI_NS_SEC);
}

static void expect_done(int32_t rank, int status, const char *sentence)
{
    hvt_op_expect(&gpus.bench, rank, status, sentence);
}

/* ---- one GPU ---- */

START_TEST(an_allreduce_of_ranks_on_one_gpu_is_a_batch_for_its_worker)
{
    const int32_t size = _i;

    open_gpus(size, 1);
    for (int32_t rank = 0; rank < size; rank++)
        hvt_gpu_run(&gpus, rank, ALLREDUCE, 1000, "w", 1, 5);
    struct hvt_batch batch = hvt_gpu_take(&gpus, 0);
    ck_assert_uint_eq(batch.head.number, 1);
    ck_assert_uint_eq(batch.head.comm, 0);
    ck_assert_uint_eq(batch.head.works, 1);
    const struct hvi_device_work *work = &batch.works[0];
    ck_assert_uint_eq(work->kind, ALLREDUCE);
    ck_assert_uint_eq(work->members, (uint32_t)size);
    ck_assert_uint_eq(work->dtype, HVI_DTYPE_FLOAT32);
    ck_assert_uint_eq(work->count, 1000);
    ck_assert_uint_eq(work->bytes, 4000);
    ck_assert_int_eq(work->root_member, -1);
    for (int32_t rank = 0; rank < size; rank++) {
        const struct hvi_device_member *member = &batch.members[0][rank];
        ck_assert_uint_eq(member->place, (uint32_t)rank);
        ck_assert_uint_ne(member->in_import, HVI_DEVICE_NONE);
        ck_assert_uint_eq(member->in_import, member->out_import);
        ck_assert_uint_eq(member->page, gpus.page_numbers[rank]);
        ck_assert_uint_eq(member->cell, 1);
        ck_assert_uint_eq(member->turn, 5);
    }
    hvt_op_expect_nothing(&gpus.bench, 0, size - 1);
    hvt_gpu_finish(&gpus, 0, &batch);
    hvt_op_expect_all(&gpus.bench, 0, size - 1, HVI_OK, NULL);
    hvt_gpus_fini(&gpus);
}
END_TEST

START_TEST(a_broadcast_names_its_root_and_an_average_its_divisor)
{
    struct hvi_submission op;

    open_gpus(3, 1);
    for (int32_t rank = 0; rank < 3; rank++) {
        op = hvt_gpu_op(&gpus, rank, HVI_KIND_BROADCAST, 8, "b", 1, 1);
        op.root = 2;
        op.out_offset = op.in_offset = 256;
        hvt_op_submit(&gpus.bench, rank, op);
    }
    struct hvt_batch batch = hvt_gpu_take(&gpus, 0);
    ck_assert_int_eq(batch.works[0].root, -1);
    ck_assert_int_eq(batch.works[0].root_member, 2);
    ck_assert_uint_eq(batch.members[0][1].out_offset, 256);
    hvt_gpu_finish(&gpus, 0, &batch);
    hvt_op_expect_all(&gpus.bench, 0, 2, HVI_OK, NULL);
    for (int32_t rank = 0; rank < 3; rank++) {
        op = hvt_gpu_op(&gpus, rank, ALLREDUCE, 8, "a", 1, 2);
        op.reduce_op = HVI_REDUCE_AVERAGE;
        op.postscale = 0.5;
        hvt_op_submit(&gpus.bench, rank, op);
    }
    batch = hvt_gpu_take(&gpus, 0);
    ck_assert_uint_eq(batch.works[0].divisor, 3);
    ck_assert(batch.works[0].postscale == 0.5);
    hvt_gpu_finish(&gpus, 0, &batch);
    hvt_op_expect_all(&gpus.bench, 0, 2, HVI_OK, NULL);
    hvt_gpus_fini(&gpus);
}
END_TEST

START_TEST(ops_that_are_alike_and_ready_together_are_one_batch)
{
    static const char *const names[] = {"a", "b", "c", "large", "max"};
    struct hvi_submission op;

    open_gpus(2, 1);
    for (int32_t rank = 0; rank < 2; rank++) {
        for (uint32_t i = 0; i < 5; i++) {
            op = hvt_gpu_op(&gpus, rank, ALLREDUCE, i == 3 ? 131072 : 10, names[i], i + 1, 1);
            op.reduce_op = i == 4 ? HVI_REDUCE_MAX : HVI_REDUCE_SUM;
            if (rank == 1)
                hvt_peer_submit(&gpus.bench.peers[rank], &op);
            else
                hvt_op_submit(&gpus.bench, rank, op);
        }
    }
    hvt_gpus_turn(&gpus);
    struct hvt_batch batch = hvt_gpu_take(&gpus, 0);
    ck_assert_uint_eq(batch.head.works, 3);
    ck_assert_uint_eq(batch.members[2][1].cell, 3);
    struct hvt_batch large = hvt_gpu_take(&gpus, 0), max = hvt_gpu_take(&gpus, 0);
    ck_assert_uint_eq(large.head.works, 1);
    ck_assert_uint_eq(max.works[0].reduce_op, HVI_REDUCE_MAX);
    hvt_gpu_finish(&gpus, 0, &max); /* in any order */
    hvt_gpu_finish(&gpus, 0, &batch);
    hvt_gpu_finish(&gpus, 0, &large);
    for (int i = 0; i < 5; i++)
        hvt_op_expect_all(&gpus.bench, 0, 1, HVI_OK, NULL);
    hvt_gpus_fini(&gpus);
}
END_TEST

START_TEST(an_op_without_bytes_is_over_at_once_and_releases_its_streams)
{
    open_gpus(2, 1);
    for (int32_t rank = 0; rank < 2; rank++) {
        struct hvi_submission op = hvt_gpu_op(&gpus, rank, ALLREDUCE, 0, "w", 3, 9);
        op.in_region = op.out_region = HVI_REGION_NONE;
        op.out_capacity = 0;
        hvt_op_submit(&gpus.bench, rank, op);
    }
    hvt_op_expect_all(&gpus.bench, 0, 1, HVI_OK, NULL);
    ck_assert_uint_eq(hvt_gpu_word(&gpus, 0, 3, false), 9);
    ck_assert(!hvt_gpu_has_batch(&gpus, 0));
    hvt_gpus_fini(&gpus);
}
END_TEST

START_TEST(an_output_of_late_size_is_asked_for_and_the_worker_gets_all_sizes)
{
    struct hvi_submission op;
    char text[HVI_TEXT_MAX + 1];
    uint64_t cookies[2];

    open_gpus(2, 1);
    for (int32_t rank = 0; rank < 2; rank++) {
        op = hvt_gpu_op(&gpus, rank, HVI_KIND_ALLGATHER, 4 + (uint64_t)rank, "g", 1, 1);
        op.out_region = HVI_REGION_NONE;
        op.out_capacity = 0;
        cookies[rank] = hvt_op_submit(&gpus.bench, rank, op);
    }
    for (int32_t rank = 0; rank < 2; rank++) {
        struct hvi_completion sized = hvt_peer_complete(&gpus.bench.peers[rank], text, sizeof text);
        ck_assert_int_eq(sized.kind, HVI_COMPLETE_SIZED);
        ck_assert_uint_eq(sized.bytes, 36);
        op = (struct hvi_submission){.kind = HVI_SUBMIT_OUTPUT, .cookie = cookies[rank]};
        op.in_region = op.aux_region = HVI_REGION_NONE;
        op.out_region = HVT_GPU_REGION;
        op.out_offset = 512;
        op.out_capacity = sized.bytes;
        hvt_op_submit(&gpus.bench, rank, op);
    }
    struct hvt_batch batch = hvt_gpu_take(&gpus, 0);
    ck_assert_uint_eq(batch.works[0].sizes, 1);
    ck_assert_uint_eq(batch.sizes[0][0].values[0], 16);
    ck_assert_uint_eq(batch.sizes[0][0].values[1], 20);
    ck_assert_uint_eq(batch.members[0][1].out_offset, 512);
    hvt_gpu_finish(&gpus, 0, &batch);
    hvt_op_expect_all(&gpus.bench, 0, 1, HVI_OK, NULL);
    hvt_gpus_fini(&gpus);
}
END_TEST

/* ---- several GPUs ---- */

static void make_comm(uint32_t count)
{
    struct hvi_gpu_msg msg, id = {.kind = HVI_GPU_COMM_ID};

    hvt_gpus_turn(&gpus); /* it is asked for from the event loop */
    for (uint32_t gpu = count; gpu-- > 0;) {
        ck_assert(hvt_gpu_hear(&gpus, gpu, HVI_GPU_COMM_ID, &msg));
        id.comm_id.request = msg.comm_id.request;
        ck_assert_int_eq(msg.comm_id.check, gpu > 0); /* an id that nobody joins by is not made */
        id.comm_id.check = msg.comm_id.check;
        memset(id.comm_id.id, gpu > 0 ? 0 : 7, sizeof id.comm_id.id);
        ck_assert_uint_eq(msg.comm_id.instance_count, count);
        ck_assert_uint_eq(msg.comm_id.instances[gpu], 100 + gpu);
        hvi_gpu_msg_free(&msg);
        hvt_gpu_say(&gpus, gpu, &id, NULL, 0);
    }
    for (uint32_t gpu = 0; gpu < count; gpu++) {
        ck_assert(!hvt_gpu_has_batch(&gpus, gpu));
        ck_assert(hvt_gpu_hear(&gpus, gpu, HVI_GPU_COMM_JOIN, &msg));
        ck_assert_uint_eq(msg.comm_join.rank, gpu);
        ck_assert_uint_eq(msg.comm_join.instance_count, count);
        ck_assert_uint_eq(msg.comm_join.instances[gpu], 100 + gpu);
        ck_assert_mem_eq(msg.comm_join.id, id.comm_id.id, sizeof id.comm_id.id);
        hvt_gpu_ack(&gpus, gpu, msg.comm_join.request, HVI_OK, "");
        hvi_gpu_msg_free(&msg);
    }
}

START_TEST(ranks_on_two_gpus_get_a_communicator_once_and_each_worker_its_part)
{
    open_gpus(4, 2);
    for (uint64_t turn = 1; turn <= 2; turn++) {
        for (int32_t rank = 0; rank < 4; rank++)
            hvt_gpu_run(&gpus, rank, ALLREDUCE, 100, "w", 1, turn);
        if (turn == 1)
            make_comm(2);
        struct hvt_batch batches[2] = {hvt_gpu_take(&gpus, 0), hvt_gpu_take(&gpus, 1)};
        for (uint32_t gpu = 0; gpu < 2; gpu++) {
            ck_assert_uint_eq(batches[gpu].head.comm, 1);
            ck_assert_uint_eq(batches[gpu].head.comm_ranks, 2);
            ck_assert_uint_eq(batches[gpu].head.comm_rank, gpu);
            ck_assert_uint_eq(batches[gpu].works[0].members, 2);
            ck_assert_uint_eq(batches[gpu].members[0][1].place, gpu + 2);
        }
        hvt_gpu_finish(&gpus, 1, &batches[1]);
        hvt_op_expect_nothing(&gpus.bench, 0, 3);
        hvt_gpu_finish(&gpus, 0, &batches[0]);
        hvt_op_expect_all(&gpus.bench, 0, 3, HVI_OK, NULL);
    }
    hvt_gpus_fini(&gpus);
}
END_TEST

/* ---- registered memory ---- */

#define LARGE 131072 /* elements: from here on the workers give NCCL the ranks' own memory */

static uint64_t last_turn;

/* An allreduce of both ranks goes to both workers by this communicator; 0: it is not there yet. */
static void run_by(uint64_t count, uint32_t comm)
{
    last_turn++;
    for (int32_t rank = 0; rank < 2; rank++)
        hvt_gpu_run(&gpus, rank, ALLREDUCE, count, "w", 1, last_turn);
    hvt_gpus_turn(&gpus);
    for (uint32_t gpu = 0; comm != 0 && gpu < 2; gpu++) {
        struct hvt_batch batch = hvt_gpu_take(&gpus, gpu);
        ck_assert_uint_eq(batch.head.comm, comm);
        hvt_gpu_finish(&gpus, gpu, &batch);
    }
    if (comm != 0)
        hvt_op_expect_all(&gpus.bench, 0, 1, HVI_OK, NULL);
}

static void expect_by(uint32_t comm)
{
    for (uint32_t gpu = 0; gpu < 2; gpu++) {
        struct hvt_batch batch = hvt_gpu_take(&gpus, gpu);
        ck_assert_uint_eq(batch.head.comm, comm);
        hvt_gpu_finish(&gpus, gpu, &batch);
    }
    hvt_op_expect_all(&gpus.bench, 0, 1, HVI_OK, NULL);
}

static uint64_t hear_registration(uint32_t gpu, uint32_t comm)
{
    struct hvi_gpu_msg msg;

    ck_assert(hvt_gpu_hear(&gpus, gpu, HVI_GPU_REGISTER, &msg));
    ck_assert_uint_eq(msg.registering.comm, comm);
    return msg.registering.request;
}

/* The first op has gone by the usual communicator, and waits for no other. */
static void open_usual(void)
{
    last_turn = 0;
    hvt_gpus_init(&gpus, 2);
    gpus.comm_ns = 60 * HVI_NS_SEC;
    gpus.registers = true;
    for (int32_t rank = 0; rank < 2; rank++)
        hvt_rank_use(&gpus, rank, (uint32_t)rank);
    run_by(LARGE, 0);
    make_comm(2);
    hvt_gpus_turn(&gpus);
    expect_by(1);
}

/* The second op has the other one made, and waits for it. */
static void open_registering(void)
{
    open_usual();
    run_by(LARGE, 0);
    for (uint32_t gpu = 0; gpu < 2;
         gpu++) /* while the other one is made, nothing else goes to a worker */
        ck_assert(!hvt_gpu_has_batch(&gpus, gpu));
}

START_TEST(registered_memory_has_a_communicator_of_its_own_once_all_of_it_is_registered)
{
    open_registering();
    make_comm(2);
    hvt_gpus_turn(&gpus);
    expect_by(1);
    run_by(LARGE, 1);
    const uint64_t one = hear_registration(0, 2), other = hear_registration(1, 2);
    hvt_gpu_ack(&gpus, 0, one, HVI_OK, "");
    hvt_gpus_turn(&gpus);
    run_by(LARGE, 1); /* all or none */
    hvt_gpu_ack(&gpus, 1, other, HVI_OK, "");
    hvt_gpus_turn(&gpus);
    run_by(LARGE, 2);
    run_by(LARGE, 2);
    run_by(LARGE - 1, 1); /* packed: NCCL does not see the ranks' memory */
    for (uint32_t gpu = 0; gpu < 2; gpu++)
        hvt_gpu_expect_nothing(&gpus, gpu);
    hvt_gpus_fini(&gpus);
}
END_TEST

START_TEST(registered_memory_gets_its_communicator_when_its_workers_have_nothing_under_way)
{
    struct hvt_batch busy[2];

    open_usual();
    for (int32_t rank = 0; rank < 2; rank++)
        hvt_gpu_run(&gpus, rank, ALLREDUCE, LARGE - 1, "v", 2, 1);
    hvt_gpus_turn(&gpus);
    for (uint32_t gpu = 0; gpu < 2; gpu++)
        busy[gpu] = hvt_gpu_take(&gpus, gpu);
    run_by(LARGE, 1);
    hvt_gpu_finish(&gpus, 0, &busy[0]);
    run_by(LARGE, 1);
    for (uint32_t gpu = 0; gpu < 2; gpu++)
        hvt_gpu_expect_nothing(&gpus, gpu);
    hvt_gpu_finish(&gpus, 1, &busy[1]);
    hvt_op_expect_all(&gpus.bench, 0, 1, HVI_OK, NULL);
    run_by(LARGE, 0);
    make_comm(2);
    hvt_gpus_turn(&gpus);
    expect_by(1);
    hvt_gpus_fini(&gpus);
}
END_TEST

/* 0: the registration; 1: the communicator for it. */
START_TEST(what_cannot_be_registered_goes_as_ever)
{
    struct hvi_gpu_msg msg, id = {.kind = HVI_GPU_COMM_ID};

    open_registering();
    if (_i == 0) {
        make_comm(2);
        hvt_gpus_turn(&gpus);
        expect_by(1);
        run_by(LARGE, 1);
        for (uint32_t gpu = 0; gpu < 2; gpu++)
            hvt_gpu_ack(&gpus, gpu, hear_registration(gpu, 2),
                        gpu == 0 ? HVI_OK : HVI_ERR_UNSUPPORTED, "unhandled system error");
    } else {
        ck_assert(hvt_gpu_hear(&gpus, 0, HVI_GPU_COMM_ID, &msg));
        ck_assert(msg.comm_id.fresh && msg.comm_id.registered);
        id.comm_id.request = msg.comm_id.request;
        id.comm_id.status = HVI_ERR_LIMIT;
        hvi_gpu_msg_free(&msg);
        hvt_gpu_say(&gpus, 0, &id, NULL, 0);
        hvt_gpus_turn(&gpus);
        expect_by(1);
    }
    hvt_gpus_turn(&gpus);
    for (int i = 0; i < 3; i++)
        run_by(LARGE, 1);
    ck_assert_int_eq(gpus.bench.engine->order.broken_status, HVI_OK);
    hvt_gpus_fini(&gpus);
}
END_TEST

START_TEST(the_root_of_a_broadcast_is_a_rank_of_the_communicator)
{
    open_gpus(2, 2);
    for (int32_t rank = 0; rank < 2; rank++) {
        struct hvi_submission op = hvt_gpu_op(&gpus, rank, HVI_KIND_BROADCAST, 8, "b", 1, 1);
        op.root = 1;
        hvt_op_submit(&gpus.bench, rank, op);
    }
    make_comm(2);
    struct hvt_batch batches[2] = {hvt_gpu_take(&gpus, 0), hvt_gpu_take(&gpus, 1)};
    ck_assert_int_eq(batches[0].works[0].root, 1);
    ck_assert_int_eq(batches[0].works[0].root_member, -1);
    ck_assert_int_eq(batches[1].works[0].root_member, 0);
    hvt_gpu_finish(&gpus, 0, &batches[0]);
    hvt_gpu_finish(&gpus, 1, &batches[1]);
    hvt_op_expect_all(&gpus.bench, 0, 1, HVI_OK, NULL);
    hvt_gpus_fini(&gpus);
}
END_TEST

/* No worker joins one that another cannot join: it would sit in NCCL. By the worker that cannot, and the reason. */
/* One worker of two says that it cannot. */
static void refuse_comm(uint32_t who, int status, const char *text)
{
    const uint32_t other = 1 - who;
    struct hvi_gpu_msg msg, id = {.kind = HVI_GPU_COMM_ID};

    hvt_gpus_turn(&gpus);
    ck_assert(hvt_gpu_hear(&gpus, other, HVI_GPU_COMM_ID, &msg));
    id.comm_id.request = msg.comm_id.request;
    id.comm_id.check = msg.comm_id.check;
    memset(id.comm_id.id, other == 0 ? 7 : 0, sizeof id.comm_id.id);
    hvi_gpu_msg_free(&msg);
    hvt_gpu_say(&gpus, other, &id, NULL, 0);
    ck_assert(hvt_gpu_hear(&gpus, who, HVI_GPU_COMM_ID, &msg));
    id.comm_id = (struct hvi_gpu_comm_id){
        .request = msg.comm_id.request, .check = msg.comm_id.check, .status = status};
    hvi_gpu_msg_free(&msg);
    snprintf(id.comm_id.text, sizeof id.comm_id.text, "%s", text);
    hvt_gpu_say(&gpus, who, &id, NULL, 0);
    hvt_gpus_turn(&gpus);
    ck_assert(hvt_gpu_hear(&gpus, other, HVI_GPU_COMM_DROP, &msg)); /* and no GpuCommJoin */
    ck_assert(hvt_gpu_hear(&gpus, who, HVI_GPU_COMM_DROP, &msg));
}

START_TEST(a_communicator_that_cannot_be_made_fails_the_ops_that_want_it)
{
    const int status = _i < 2 ? HVI_ERR_UNSUPPORTED : HVI_ERR_LIMIT;

    open_gpus(2, 2);
    for (int32_t rank = 0; rank < 2; rank++)
        hvt_gpu_run(&gpus, rank, ALLREDUCE, 100, "w", 1, 1);
    refuse_comm((uint32_t)_i % 2, status,
                "the communicator needs NCCL, and libnccl.so.2 is not there");
    for (int32_t rank = 0; rank < 2; rank++) {
        hvt_op_expect(&gpus.bench, rank, status, NULL);
        ck_assert_uint_eq(hvt_gpu_word(&gpus, rank, 1, false), 1);
    }
    ck_assert_int_eq(gpus.bench.engine->order.broken_status, HVI_OK);
    hvt_gpus_fini(&gpus);
}
END_TEST

/* 0: memory, 1: a place of 16, which may be there later; 2: NCCL, which will not. */
START_TEST(a_communicator_is_tried_again_by_the_next_op_where_that_may_help)
{
    static const int statuses[] = {HVI_ERR_NO_MEMORY, HVI_ERR_LIMIT, HVI_ERR_UNSUPPORTED};
    const uint32_t tries = _i == 2 ? 1 : 3;
    uint64_t turn = 0;

    open_gpus(2, 2);
    for (uint32_t i = 0; i < tries; i++) {
        turn++;
        for (int32_t rank = 0; rank < 2; rank++)
            hvt_gpu_run(&gpus, rank, ALLREDUCE, 100, "w", 1, turn);
        refuse_comm(i % 2, statuses[_i], "it cannot");
        hvt_op_expect_all(&gpus.bench, 0, 1, statuses[_i], NULL);
    }
    turn++;
    for (int32_t rank = 0; rank < 2; rank++)
        hvt_gpu_run(&gpus, rank, ALLREDUCE, 100, "w", 1, turn);
    if (_i == 2) {
        hvt_op_expect_all(&gpus.bench, 0, 1, HVI_ERR_UNSUPPORTED, NULL);
    } else {
        make_comm(2);
        struct hvt_batch batches[2] = {hvt_gpu_take(&gpus, 0), hvt_gpu_take(&gpus, 1)};
        ck_assert_uint_eq(batches[0].head.comm, tries + 1);
        hvt_gpu_finish(&gpus, 0, &batches[0]);
        hvt_gpu_finish(&gpus, 1, &batches[1]);
        hvt_op_expect_all(&gpus.bench, 0, 1, HVI_OK, NULL);
    }
    hvt_gpus_fini(&gpus);
}
END_TEST

/* Of an id that nobody joins by, NCCL keeps a thread and a socket in its worker. */
START_TEST(a_communicator_is_not_tried_again_for_ever)
{
    const uint32_t tries = 17;

    open_gpus(2, 2);
    for (uint32_t turn = 1; turn <= tries + 1; turn++) {
        for (int32_t rank = 0; rank < 2; rank++)
            hvt_gpu_run(&gpus, rank, ALLREDUCE, 100, "w", 1, turn);
        if (turn <= tries)
            refuse_comm(1, HVI_ERR_NO_MEMORY, "it cannot");
        hvt_op_expect_all(&gpus.bench, 0, 1, HVI_ERR_NO_MEMORY, NULL);
    }
    hvt_gpus_fini(&gpus);
}
END_TEST

/* gpu-comm-timeout is the worker's; the engine has no other time. 0: it is over; 1: it is longer than the test. */
START_TEST(a_communicator_has_as_long_as_its_workers_say)
{
    const uint64_t deadline_ns =
        hvi_deadline_after(_i == 0 ? HVT_DEADLINE_NS : HVT_DEADLINE_NS / 30);
    struct hvi_gpu_msg msg;

    open_gpus_within(2, 2, _i == 0 ? 50 * HVI_NS_MS : 3600 * HVI_NS_SEC);
    for (int32_t rank = 0; rank < 2; rank++)
        hvt_gpu_run(&gpus, rank, ALLREDUCE, 100, "w", 1, 1);
    hvt_gpus_turn(&gpus);
    ck_assert(hvt_gpu_hear(&gpus, 0, HVI_GPU_COMM_ID, &msg)); /* which has no answer */
    hvi_gpu_msg_free(&msg);
    while (!hvi_deadline_passed(deadline_ns) && hvt_gpu_word(&gpus, 0, 1, false) == 0) {
        usleep(2000);
        hvt_gpus_turn(&gpus);
    }
    if (_i == 0)
        hvt_op_expect_all(&gpus.bench, 0, 1, HVI_ERR_TIMEOUT, NULL);
    else
        hvt_op_expect_nothing(&gpus.bench, 0, 1);
    hvt_gpus_fini(&gpus);
}
END_TEST

/* It looks at the clock before it hears what was said meanwhile. */
START_TEST(an_engine_that_stood_still_gives_a_communicator_as_much_more_time)
{
    open_gpus_within(2, 2, 50 * HVI_NS_MS);
    for (int32_t rank = 0; rank < 2; rank++)
        hvt_gpu_run(&gpus, rank, ALLREDUCE, 100, "w", 1, 1);
    hvt_gpus_turn(&gpus);
    usleep(1300000); /* longer than the workers have: a second more than they say, and a little */
    make_comm(2);
    hvt_gpus_turn(&gpus);
    ck_assert(hvt_gpu_has_batch(&gpus, 0) && hvt_gpu_has_batch(&gpus, 1));
    hvt_gpus_fini(&gpus);
}
END_TEST

/* ---- a communicator that takes its time ---- */

/* An allreduce of these two ranks' set; each of them has memory on a GPU of its own. */
static void run_pair(uint32_t set, int32_t one, int32_t other, uint32_t cell, uint64_t turn)
{
    const int32_t ranks[2] = {one, other};

    for (int i = 0; i < 2; i++) {
        struct hvi_submission op =
            hvt_gpu_op(&gpus, ranks[i], ALLREDUCE, 100, cell == 1 ? "w" : "v", cell, turn);
        hvi_fence_store_ready(&gpus.pages[ranks[i]], cell, turn);
        op.process_set = set;
        hvt_op_submit(&gpus.bench, ranks[i], op);
    }
    hvt_gpus_turn(&gpus);
}

static void finish_pair(uint32_t comm)
{
    struct hvt_batch batches[2] = {hvt_gpu_take(&gpus, 0), hvt_gpu_take(&gpus, 1)};

    for (uint32_t gpu = 0; gpu < 2; gpu++) {
        ck_assert_uint_eq(batches[gpu].head.comm, comm);
        hvt_gpu_finish(&gpus, gpu, &batches[gpu]);
    }
    hvt_op_expect_all(&gpus.bench, 0, 1, HVI_OK, NULL);
}

START_TEST(an_op_waits_for_the_communicator_of_another_set_where_they_share_a_gpu_alone)
{
    const int64_t pair[] = {0, 1}, others[] = {2, 3}, between[] = {1, 2};

    open_gpus(4, 4);
    const uint32_t set = hvt_op_add_set(&gpus.bench, pair, 2),
                   waiting = hvt_op_add_set(&gpus.bench, others, 2),
                   bridge = hvt_op_add_set(&gpus.bench, between, 2);
    run_pair(set, 0, 1, 1, 1);
    make_comm(2);
    hvt_gpus_turn(&gpus);
    finish_pair(1);
    run_pair(waiting, 2, 3, 1, 1); /* no worker answers */
    run_pair(set, 0, 1, 1, 2);
    finish_pair(1);
    run_pair(bridge, 1, 2, 2, 1); /* behind the one, and before the other */
    run_pair(set, 0, 1, 1, 3);
    hvt_op_expect_nothing(&gpus.bench, 0, 3);
    for (uint32_t gpu = 0; gpu < 4; gpu++)
        ck_assert(!hvt_gpu_has_batch(&gpus, gpu));
    hvt_gpus_fini(&gpus);
}
END_TEST

/* Its own is there. What it waits for is that of a set that the rank is not in. */
START_TEST(an_op_behind_another_sets_communicator_ends_with_a_rank_that_goes)
{
    struct hvi_packet_msg detach = {.kind = HVI_PACKET_DETACH};
    const int64_t pair[] = {0, 1}, others[] = {0, 2};

    open_gpus(3, 3);
    const uint32_t set = hvt_op_add_set(&gpus.bench, pair, 2),
                   waiting = hvt_op_add_set(&gpus.bench, others, 2);
    run_pair(set, 0, 1, 1, 1);
    make_comm(2);
    hvt_gpus_turn(&gpus);
    finish_pair(1);
    run_pair(waiting, 0, 2, 2, 1);
    run_pair(set, 0, 1, 1, 2);
    detach.detach.request = ++gpus.bench.peers[1].request;
    hvt_peer_send(&gpus.bench.peers[1], &detach, -1);
    hvt_gpus_turn(&gpus);
    expect_done(0, HVI_ERR_RANK_LEFT, NULL);
    ck_assert_uint_ge(hvt_gpu_word(&gpus, 0, 1, false), 2);
    hvt_op_expect_nothing(&gpus.bench, 2, 2);
    for (uint32_t gpu = 0; gpu < 3; gpu++)
        ck_assert(!hvt_gpu_has_batch(&gpus, gpu));
    hvt_gpus_fini(&gpus);
}
END_TEST

/* ---- what ranks may and may not ---- */

START_TEST(ranks_that_disagree_on_memory_get_one_sentence_and_their_streams_go_on)
{
    const char *sentence =
        "allreduce 'w': ranks disagree on memory: ranks 0,1 said GPU; rank 2 said host";

    open_gpus(3, 1);
    hvt_gpu_run(&gpus, 0, ALLREDUCE, 10, "w", 1, 1);
    hvt_gpu_run(&gpus, 1, ALLREDUCE, 10, "w", 1, 1);
    hvt_op_run(&gpus.bench, 2, ALLREDUCE, 10, "w", 0);
    hvt_op_expect_all(&gpus.bench, 0, 2, HVI_ERR_MISMATCH, sentence);
    ck_assert_uint_eq(hvt_gpu_word(&gpus, 0, 1, false), 1);
    ck_assert(!hvt_gpu_has_batch(&gpus, 0));
    hvt_gpus_fini(&gpus);
}
END_TEST

START_TEST(what_was_agreed_on_of_the_host_is_not_repeated_by_a_gpu)
{
    open_gpus(2, 1);
    for (int turn = 0; turn < 2; turn++) {
        for (int32_t rank = 0; rank < 2; rank++)
            hvt_op_run(&gpus.bench, rank, ALLREDUCE, 2048, "w", 0);
        hvt_op_expect_all(&gpus.bench, 0, 1, HVI_OK, NULL);
    }
    hvt_op_run(&gpus.bench, 0, ALLREDUCE, 2048, "w", 0);
    hvt_gpu_run(&gpus, 1, ALLREDUCE, 2048, "w", 1, 1);
    hvt_op_expect_all(&gpus.bench, 0, 1, HVI_ERR_MISMATCH, NULL);
    hvt_gpus_fini(&gpus);
}
END_TEST

/* Lies about fences, one each. */
static void spoil(struct hvi_submission *op, int lie)
{
    switch (lie) {
    case 0:
        op->fence_cell = 0;
        op->fence_turn = 0;
        break;
    case 1:
        op->fence_cell = HVI_FENCE_CELLS;
        break;
    case 2:
        op->fence_turn = HVI_FENCE_TURNS;
        break;
    case 3:
        op->fence_turn = 0;
        break;
    case 4:
        op->after = 99;
        break;
    case 5:
        op->in_region = HVI_REGION_INLINE;
        break;
    case 6:
        op->in_region = op->out_region = HVI_REGION_INLINE;
        break;
    case 7:
        op->out_offset = HVT_GPU_BYTES;
        break;
    default:
        op->fence_cell = 0;
        break;
    }
}
#define LIES 9

START_TEST(a_lie_about_a_fence_ends_the_session)
{
    struct hvi_submission op;

    open_gpus(2, 1);
    op = hvt_gpu_op(&gpus, 0, ALLREDUCE, 10, "w", 1, 1);
    spoil(&op, _i);
    hvt_op_submit(&gpus.bench, 0, op);
    ck_assert_int_eq(gpus.bench.engine->sessions.ranks[0].state, ENGINE_RANK_ENDED);
    ck_assert_uint_eq(hvt_gpu_word(&gpus, 0, 1, false), HVI_FENCE_POISON);
    hvt_gpus_fini(&gpus);
}
END_TEST

START_TEST(a_cell_serves_one_op_at_a_time_and_its_turns_grow)
{
    open_gpus(2, 1);
    for (int32_t rank = 0; rank < 2; rank++)
        hvt_gpu_run(&gpus, rank, ALLREDUCE, 10, "w", 1, 7);
    struct hvt_batch batch = hvt_gpu_take(&gpus, 0);
    if (_i == 0) { /* in flight */
        hvt_gpu_run(&gpus, 0, ALLREDUCE, 10, "v", 1, 8);
    } else {
        hvt_gpu_finish(&gpus, 0, &batch);
        hvt_gpu_run(&gpus, 0, ALLREDUCE, 10, "v", 1, (uint64_t)(_i == 1 ? 7 : 8));
    }
    ck_assert_int_eq(gpus.bench.engine->sessions.ranks[0].state,
                     _i == 2 ? ENGINE_RANK_ATTACHED : ENGINE_RANK_ENDED);
    hvt_gpus_fini(&gpus);
}
END_TEST

START_TEST(memory_that_is_used_cannot_be_removed)
{
    struct hvi_packet_msg remove = {.kind = HVI_PACKET_REGION_REMOVE};
    struct hvt_peer *peer = &gpus.bench.peers[0];

    open_gpus(2, 1);
    hvt_gpu_run(&gpus, 0, ALLREDUCE, 10, "w", 1, 1);
    remove.region_remove.request = ++peer->request;
    remove.region_remove.region = HVT_GPU_REGION;
    hvt_peer_send(peer, &remove, -1);
    hvt_gpus_turn(&gpus);
    ck_assert_int_eq(hvt_rank_ack(&gpus, 0).status, HVI_ERR_BUSY);
    hvt_gpus_fini(&gpus);
}
END_TEST

/* ---- after ---- */

START_TEST(an_op_waits_until_those_before_it_have_started)
{
    struct hvi_submission op;

    open_gpus(2, 1);
    hvt_gpu_run(&gpus, 0, ALLREDUCE, 10, "a", 1, 1);
    op = hvt_gpu_op(&gpus, 0, ALLREDUCE, 10, "b", 2, 1);
    op.after = gpus.bench.peers[0].seq;
    hvt_op_submit(&gpus.bench, 0, op);
    hvt_gpu_run(&gpus, 0, ALLREDUCE, 10, "c", 3, 1); /* does not wait */
    hvt_gpu_run(&gpus, 1, ALLREDUCE, 10, "b", 2, 1);
    hvt_gpu_run(&gpus, 1, ALLREDUCE, 10, "c", 3, 1);
    struct hvt_batch c = hvt_gpu_take(&gpus, 0);
    ck_assert_uint_eq(c.members[0][0].cell, 3);
    ck_assert(!hvt_gpu_has_batch(&gpus, 0));
    hvt_gpu_run(&gpus, 1, ALLREDUCE, 10, "a", 1, 1);
    struct hvt_batch a = hvt_gpu_take(&gpus, 0), b = hvt_gpu_take(&gpus, 0);
    ck_assert_uint_eq(a.members[0][0].cell, 1);
    ck_assert_uint_eq(a.head.works, 1); /* never in one batch: b's streams may wait for a */
    ck_assert_uint_eq(b.members[0][0].cell, 2);
    hvt_gpu_finish(&gpus, 0, &c);
    hvt_gpu_finish(&gpus, 0, &a);
    hvt_gpu_finish(&gpus, 0, &b);
    for (int i = 0; i < 3; i++)
        hvt_op_expect_all(&gpus.bench, 0, 1, HVI_OK, NULL);
    hvt_gpus_fini(&gpus);
}
END_TEST

/* Else a stream that waits for a, and gates b, would gate the very worker that a needs. */
START_TEST(an_op_has_not_started_before_its_workers_have_it)
{
    struct hvi_submission op;

    open_gpus(2, 2);
    for (int32_t rank = 0; rank < 2; rank++)
        hvt_gpu_run(&gpus, rank, ALLREDUCE, 10, "a", 1, 1);
    op = hvt_gpu_op(&gpus, 0, ALLREDUCE, 10, "b", 2, 1);
    op.after = gpus.bench.peers[0].seq;
    hvt_op_submit(&gpus.bench, 0, op);
    const struct engine_fences *fences = gpus.bench.engine->sessions.ranks[0].session->fences;
    hvt_gpus_turn(&gpus);
    ck_assert_ptr_nonnull(fences->held); /* a has no communicator yet */
    make_comm(2);
    hvt_gpus_turn(&gpus);
    ck_assert_ptr_null(fences->held);
    hvt_gpus_fini(&gpus);
}
END_TEST

START_TEST(an_op_that_was_held_goes_on_when_the_one_before_it_has_failed)
{
    struct hvi_submission op;

    open_gpus(2, 1);
    uint64_t first = hvt_gpu_run(&gpus, 0, ALLREDUCE, 10, "a", 1, 1);
    op = hvt_gpu_op(&gpus, 0, ALLREDUCE, 10, "b", 2, 1);
    op.after = gpus.bench.peers[0].seq;
    hvt_op_submit(&gpus.bench, 0, op);
    hvt_gpu_run(&gpus, 1, ALLREDUCE, 10, "b", 2, 1);
    ck_assert(!hvt_gpu_has_batch(&gpus, 0));
    hvt_op_cancel(&gpus.bench, 0, first);
    expect_done(0, HVI_ERR_CANCELLED, NULL);
    ck_assert_uint_eq(hvt_gpu_word(&gpus, 0, 1, false), 1);
    struct hvt_batch b = hvt_gpu_take(&gpus, 0);
    hvt_gpu_finish(&gpus, 0, &b);
    hvt_op_expect_all(&gpus.bench, 0, 1, HVI_OK, NULL);
    hvt_gpus_fini(&gpus);
}
END_TEST

START_TEST(a_join_comes_after_an_op_that_is_held)
{
    struct hvi_submission op;

    open_gpus(2, 1);
    hvt_gpu_run(&gpus, 0, ALLREDUCE, 10, "a", 1, 1);
    op = hvt_gpu_op(&gpus, 0, ALLREDUCE, 10, "b", 2, 1);
    op.after = gpus.bench.peers[0].seq;
    hvt_op_submit(&gpus.bench, 0, op);
    hvt_op_run(&gpus.bench, 0, HVI_KIND_JOIN, 0, "join", 0);
    hvt_gpu_run(&gpus, 1, ALLREDUCE, 10, "a", 1, 1);
    struct hvt_batch a = hvt_gpu_take(&gpus, 0);
    hvt_gpu_finish(&gpus, 0, &a);
    ck_assert(!hvt_gpu_has_batch(&gpus, 0)); /* b waits for rank 1 */
    hvt_gpu_run(&gpus, 1, ALLREDUCE, 10, "b", 2, 1);
    struct hvt_batch b = hvt_gpu_take(&gpus, 0);
    hvt_gpu_finish(&gpus, 0, &b);
    for (int i = 0; i < 2; i++)
        hvt_op_expect_all(&gpus.bench, 0, 1, HVI_OK, NULL);
    hvt_op_expect_nothing(&gpus.bench, 0, 1);
    hvt_op_run(&gpus.bench, 1, HVI_KIND_JOIN, 0, "join", 0);
    hvt_op_expect_all(&gpus.bench, 0, 1, HVI_OK, NULL);
    hvt_gpus_fini(&gpus);
}
END_TEST

START_TEST(an_op_that_is_held_ends_with_its_set)
{
    static const int64_t alone[] = {0};
    struct hvi_submission op;

    open_gpus(2, 1);
    uint32_t set = hvt_op_add_set(&gpus.bench, alone, 1);
    hvt_gpu_run(&gpus, 0, ALLREDUCE, 10, "a", 1, 1);
    op = hvt_gpu_op(&gpus, 0, ALLREDUCE, 10, "b", 2, 1);
    op.process_set = set;
    op.after = gpus.bench.peers[0].seq;
    hvt_op_submit(&gpus.bench, 0, op);
    hvt_op_remove_set(&gpus.bench, set);
    hvt_op_expect_all(&gpus.bench, 0, 1, HVI_OK, NULL);
    hvt_gpu_run(&gpus, 1, ALLREDUCE, 10, "a", 1, 1);
    struct hvt_batch a = hvt_gpu_take(&gpus, 0);
    expect_done(0, HVI_ERR_NOT_FOUND, "process set 1 was removed while the op waited");
    hvt_gpu_finish(&gpus, 0, &a);
    hvt_op_expect_all(&gpus.bench, 0, 1, HVI_OK, NULL);
    hvt_gpus_fini(&gpus);
}
END_TEST

/* 0: cancelled; 1: a peer leaves; 2: its own rank leaves. */
START_TEST(an_op_that_is_held_ends_as_one_that_waits)
{
    struct hvi_packet_msg detach = {.kind = HVI_PACKET_DETACH};
    struct hvt_peer *peer = &gpus.bench.peers[_i == 1 ? 1 : 0];
    struct hvi_submission op;

    open_gpus(2, 1);
    hvt_gpu_run(&gpus, 0, ALLREDUCE, 10, "a", 1, 1);
    op = hvt_gpu_op(&gpus, 0, ALLREDUCE, 10, "b", 2, 1);
    op.after = gpus.bench.peers[0].seq;
    uint64_t cookie = hvt_op_submit(&gpus.bench, 0, op);
    detach.detach.request = ++peer->request;
    if (_i == 0) {
        hvt_op_cancel(&gpus.bench, 0, cookie);
        expect_done(0, HVI_ERR_CANCELLED, "allreduce 'b' was cancelled on rank 0");
    } else {
        hvt_peer_send(peer, &detach, -1);
        hvt_gpus_turn(&gpus);
    }
    if (_i == 1) {
        expect_done(0, HVI_ERR_RANK_LEFT, NULL);
        expect_done(0, HVI_ERR_RANK_LEFT, NULL);
    }
    ck_assert_uint_ge(hvt_gpu_word(&gpus, 0, 2, false), 1);
    hvt_gpus_fini(&gpus);
}
END_TEST

START_TEST(a_group_is_held_as_a_whole)
{
    struct hvi_submission ops[2];

    open_gpus(2, 1);
    hvt_gpu_run(&gpus, 0, ALLREDUCE, 10, "a", 1, 1);
    uint64_t after = gpus.bench.peers[0].seq;
    for (int32_t rank = 0; rank < 2; rank++) {
        ops[0] = hvt_gpu_op(&gpus, rank, ALLREDUCE, 10, "g", 2, 1);
        ops[1] = hvt_gpu_op(&gpus, rank, ALLREDUCE, 10, "h", 3, 1);
        hvt_op_group(ops, 2, 1);
        ops[0].after = rank == 0 ? after : 0; /* the first member's counts for the last */
        for (int i = 0; i < 2; i++)
            hvt_op_submit(&gpus.bench, rank, ops[i]);
    }
    ck_assert(!hvt_gpu_has_batch(&gpus, 0));
    if (_i == 1) {
        hvt_op_cancel(&gpus.bench, 0, gpus.bench.peers[0].cookie);
        expect_done(0, HVI_ERR_CANCELLED, NULL);
        expect_done(0, HVI_ERR_CANCELLED, NULL);
        hvt_gpus_fini(&gpus);
        return;
    }
    hvt_gpu_run(&gpus, 1, ALLREDUCE, 10, "a", 1, 1);
    struct hvt_batch a = hvt_gpu_take(&gpus, 0), group = hvt_gpu_take(&gpus, 0);
    ck_assert_uint_eq(a.head.works, 1);
    ck_assert_uint_eq(group.head.works, 2);
    hvt_gpu_finish(&gpus, 0, &a);
    hvt_gpu_finish(&gpus, 0, &group);
    for (int i = 0; i < 3; i++)
        hvt_op_expect_all(&gpus.bench, 0, 1, HVI_OK, NULL);
    hvt_gpus_fini(&gpus);
}
END_TEST

/* ---- times ---- */

/* The newest op of the rank, as hvdctl sees it. */
static struct hvi_trace_row newest_of(int32_t rank)
{
    struct hvi_trace_row *rows, row;
    size_t count;
    uint64_t left_out;

    ck_assert_int_eq(
        engine_trace_rows(&gpus.bench.engine->watch, rank, 1, 0, &rows, &count, &left_out), HVI_OK);
    ck_assert_uint_eq(count, 1);
    row = rows[0];
    free(rows);
    return row;
}

/* The Ack of rank 0's request. */
static void ask_timeline(enum hvi_packet_kind kind, int fd)
{
    struct hvt_peer *peer = &gpus.bench.peers[0];
    struct pollfd pollfd = {.fd = peer->socket, .events = POLLIN};
    const uint64_t end_ns = hvi_deadline_after(HVT_DEADLINE_NS);
    struct hvi_packet_msg msg = {.kind = kind};

    hvt_peer_send(peer, &msg, fd);
    while (poll(&pollfd, 1, 1) == 0) {
        ck_assert(!hvi_deadline_passed(end_ns));
        hvt_bench_turn(&gpus.bench);
    }
    ck_assert(hvt_peer_expect(peer, HVI_PACKET_ACK, &msg));
    ck_assert_int_eq(msg.ack.status, HVI_OK);
}

static int count_text(const char *text, const char *what)
{
    int count = 0;

    for (const char *at = strstr(text, what); at; at = strstr(at + 1, what))
        count++;
    return count;
}

START_TEST(the_timeline_has_a_row_for_each_gpu_with_what_its_streams_took)
{
    static char text[65536];
    char path[] = "/tmp/hvt-gpus-XXXXXX";
    const int fd = mkstemp(path);

    open_gpus(3, 2);
    ask_timeline(HVI_PACKET_TIMELINE_START, fd);
    for (int round = 0; round < 2; round++) {
        for (int32_t rank = 0; rank < 3; rank++)
            hvt_gpu_run(&gpus, rank, ALLREDUCE, 10, "w", 1, (uint64_t)round + 1);
        if (round == 0)
            make_comm(2);
        struct hvt_batch batches[2] = {hvt_gpu_take(&gpus, 0), hvt_gpu_take(&gpus, 1)};
        usleep(1000); /* what it says it took must be possible */
        for (uint32_t gpu = 0; gpu < 2; gpu++) {
            ck_assert_uint_eq(batches[gpu].head.flags, HVI_DEVICE_TIMED);
            gpus.workers[gpu].device_ns = 1000 * (gpu + 1);
            hvt_gpu_finish(&gpus, gpu, &batches[gpu]);
        }
        hvt_op_expect_all(&gpus.bench, 0, 2, HVI_OK, NULL);
    }
    ask_timeline(HVI_PACKET_TIMELINE_STOP, -1);
    ck_assert_int_gt(pread(fd, text, sizeof text - 1, 0), 0);
    ck_assert_int_eq(count_text(text, "\"NCCL_ALLREDUCE\""), 4);
    ck_assert_int_eq(count_text(text, "\"GPU_ALLREDUCE\""), 2);
    ck_assert_int_eq(count_text(text, "\"dur\": 1.000"), 2);
    ck_assert_int_eq(count_text(text, "\"dur\": 2.000"), 2);
    close(fd);
    unlink(path);
}
END_TEST

/* Ranks 0 and 2 are on GPU 0, rank 1 on GPU 1. Workers are asked once the trace was looked at, and believed as far as can be. */
START_TEST(the_trace_has_what_the_stream_of_each_ranks_gpu_took)
{
    static const uint64_t never_ns = UINT64_MAX;

    open_gpus(3, 2);
    for (int round = 0; round < 3; round++) {
        for (int32_t rank = 0; rank < 3; rank++)
            hvt_gpu_run(&gpus, rank, ALLREDUCE, 10, "w", 1, (uint64_t)round + 1);
        if (round == 0)
            make_comm(2);
        struct hvt_batch batches[2] = {hvt_gpu_take(&gpus, 0), hvt_gpu_take(&gpus, 1)};
        usleep(1000);
        for (uint32_t gpu = 0; gpu < 2; gpu++) {
            ck_assert_uint_eq(batches[gpu].head.flags, round > 0 ? HVI_DEVICE_TIMED : 0);
            gpus.workers[gpu].device_ns = round == 2 ? never_ns : 1000 * (gpu + 1);
            hvt_gpu_finish(&gpus, gpu, &batches[gpu]);
        }
        hvt_op_expect_all(&gpus.bench, 0, 2, HVI_OK, NULL);
        for (int32_t rank = 0; rank < 3; rank++) {
            const struct hvi_trace_row row = newest_of(rank);
            const uint64_t took_ns = round == 0 ? 0 : rank == 1 ? 2000 : 1000;
            if (round < 2)
                ck_assert_uint_eq(row.device_ns, took_ns);
            else
                ck_assert_uint_le(row.device_ns, row.done_ns - row.submit_ns);
        }
    }
    gpus.bench.engine->watch.traced_ns -= ENGINE_TRACE_TIMES_NS; /* so long ago */
    for (int32_t rank = 0; rank < 3; rank++)
        hvt_gpu_run(&gpus, rank, ALLREDUCE, 10, "w", 1, 4);
    ck_assert_uint_eq(hvt_gpu_take(&gpus, 0).head.flags, 0);
    hvt_gpus_fini(&gpus);
}
END_TEST

/* ---- failures ---- */

START_TEST(an_op_that_fails_on_a_gpu_fails_with_the_workers_sentence)
{
    open_gpus(2, 1);
    for (int32_t rank = 0; rank < 2; rank++)
        hvt_gpu_run(&gpus, rank, ALLREDUCE, 10, "w", 1, 1);
    struct hvt_batch batch = hvt_gpu_take(&gpus, 0);
    hvt_gpu_done(&gpus, 0, batch.head.number, HVI_ERR_NO_MEMORY, "64 MiB of staging memory");
    hvt_op_expect_all(&gpus.bench, 0, 1, HVI_ERR_NO_MEMORY,
                      GPU0 " (Test GPU, pid 4711): 64 MiB of staging memory");
    ck_assert_int_eq(gpus.bench.engine->order.broken_status, HVI_OK);
    hvt_gpus_fini(&gpus);
}
END_TEST

static void wait_until_broken(void)
{
    uint64_t deadline_ns = hvi_deadline_after(HVT_DEADLINE_NS);

    while (gpus.bench.engine->order.broken_status == HVI_OK) {
        ck_assert(!hvi_deadline_passed(deadline_ns));
        usleep(2000);
        engine_dispatch_watch(&gpus.bench.engine->exec);
        hvt_gpus_turn(&gpus);
    }
}

static uint64_t skip_word(int32_t rank, uint32_t cell)
{
    return atomic_load(&gpus.pages[rank].cells[cell].skip);
}

/* Bit 0: hvdd says why. Bit 1: the other worker has the batch too, and may write until it has answered. */
START_TEST(a_worker_that_is_lost_fails_its_ops_by_name_and_releases_what_waits)
{
    const uint32_t count = _i & 2 ? 2 : 1;
    char text[HVI_TEXT_MAX + 1];
    struct hvi_gpu_msg msg;

    open_gpus(2, count);
    hvt_gpu_run(&gpus, 1, ALLREDUCE, 10, "w", 1, 1);
    hvt_op_submit(&gpus.bench, 0, hvt_gpu_op(&gpus, 0, ALLREDUCE, 10, "w", 1, 1));
    if (count == 2)
        make_comm(2);
    hvt_gpu_run(&gpus, 1, ALLREDUCE, 10, "waits", 2, 1);
    hvt_gpu_die(&gpus, 0);
    hvt_op_expect_nothing(&gpus.bench, 0, 1);
    if (_i & 1)
        hvt_gpu_is_gone(&gpus, 0, "it was killed by signal 9 (SIGKILL)");
    wait_until_broken();
    snprintf(text, sizeof text, "the worker of " GPU0 " (Test GPU, pid 4711) is lost: %s",
             _i & 1 ? "it was killed by signal 9 (SIGKILL)" : "its connection has ended");
    hvt_gpus_turn(&gpus);
    ck_assert(skip_word(0, 1) == 1 && skip_word(1, 1) == 1 && skip_word(1, 2) == 0);
    ck_assert_uint_eq(hvt_gpu_word(&gpus, 0, 1, true), 1);
    expect_done(1, HVI_ERR_WORKER_LOST, text); /* of "waits" */
    if (count == 2) {
        hvt_op_expect_nothing(&gpus.bench, 0, 1);
        struct hvt_batch batch = hvt_gpu_take(&gpus, 1);
        hvt_gpu_finish(&gpus, 1, &batch);
    }
    hvt_op_expect_all(&gpus.bench, 0, 1, HVI_ERR_WORKER_LOST, text);
    ck_assert_uint_eq(hvt_gpu_word(&gpus, 0, 1, false), 1);
    ck_assert_uint_eq(hvt_gpu_word(&gpus, 1, 2, false), 1);
    ck_assert_int_eq(gpus.bench.engine->order.broken_status, HVI_ERR_WORKER_LOST);
    if (count == 2) {
        ck_assert(hvt_gpu_hear(&gpus, 1, HVI_GPU_COMM_DROP, &msg));
        ck_assert(msg.comm_drop.abort);
    }
    hvt_gpu_run(&gpus, 0, ALLREDUCE, 10, "late", 3, 1);
    expect_done(0, HVI_ERR_WORKER_LOST, text);
    hvt_gpus_fini(&gpus);
}
END_TEST

/* The engine asks hvdd to end it, and no op is over before that says that it is dead. */
static void expect_end_of_worker(const char *reason)
{
    const struct engine_device_worker *worker = &gpus.bench.engine->device.workers[0];
    uint64_t deadline_ns = hvi_deadline_after(HVT_DEADLINE_NS);
    struct hvi_packet_msg end;

    while (worker->state == ENGINE_DEVICE_LINKED) {
        ck_assert(!hvi_deadline_passed(deadline_ns));
        usleep(2000);
        engine_dispatch_watch(&gpus.bench.engine->exec);
        hvt_gpus_turn(&gpus);
    }
    ck_assert(hvt_node_expect(&gpus.node, HVI_PACKET_GPU_END, &end));
    ck_assert_uint_eq(end.gpu_end.instance, 100);
    ck_assert_ptr_nonnull(strstr(end.gpu_end.reason, reason));
    engine_dispatch_watch(&gpus.bench.engine->exec);
    hvt_op_expect_nothing(&gpus.bench, 0, 1);
    ck_assert_int_eq(gpus.bench.engine->order.broken_status, HVI_OK);
    hvt_gpu_is_gone(&gpus, 0, "it was ended by hvdd");
    hvt_op_expect_all(&gpus.bench, 0, 1, HVI_ERR_WORKER_LOST, NULL);
}

/* 0: all have come, and it says nothing. 1: it says that it has begun. */
START_TEST(a_batch_that_has_begun_and_does_not_end_ends_its_worker)
{
    open_gpus(2, 1);
    engine_dispatch_set_gpu_timeout(&gpus.bench.engine->exec, 20 * HVI_NS_MS);
    for (int32_t rank = 0; rank < 2; rank++)
        hvt_gpu_run(&gpus, rank, ALLREDUCE, 10, "w", 1, 1);
    if (_i == 1) {
        struct hvt_batch batch = hvt_gpu_take(&gpus, 0);
        hvt_gpu_done(&gpus, 0, batch.head.number, HVI_INPROGRESS, "");
    }
    expect_end_of_worker("HVD_GPU_TIMEOUT_SECONDS");
    hvt_gpus_fini(&gpus);
}
END_TEST

/* The engine looks at the clock before it has taken the answer. */
START_TEST(a_batch_that_was_over_while_the_engine_stood_still_is_not_late)
{
    struct hvi_device_done done = {.number = 1, .seq = 1, .member = -1};
    struct hvt_worker *worker = &gpus.workers[0];

    open_gpus(2, 1);
    engine_dispatch_set_gpu_timeout(&gpus.bench.engine->exec, 20 * HVI_NS_MS);
    for (int32_t rank = 0; rank < 2; rank++)
        hvt_gpu_run(&gpus, rank, ALLREDUCE, 10, "w", 1, 1);
    hvt_gpu_take(&gpus, 0);
    engine_dispatch_watch(&gpus.bench.engine->exec); /* it has begun */
    memcpy(hvi_ring_slot(&worker->channel.dones, 0), &done, sizeof done);
    hvi_device_answer(&worker->channel, 1, worker->engine_fd);
    usleep(30000);
    engine_dispatch_watch(&gpus.bench.engine->exec);
    ck_assert_int_eq(gpus.bench.engine->device.workers[0].state, ENGINE_DEVICE_LINKED);
    hvt_gpus_turn(&gpus);
    hvt_op_expect_all(&gpus.bench, 0, 1, HVI_OK, NULL);
    hvt_gpus_fini(&gpus);
}
END_TEST

START_TEST(a_batch_that_waits_for_a_stream_waits_for_ever_and_says_for_whose)
{
    struct engine_exec_cursor cursor = {NULL};
    struct hvi_stall_row *rows;
    uint32_t place = 99;
    uint64_t left_out;
    size_t count;

    open_gpus(2, 1);
    engine_dispatch_set_gpu_timeout(&gpus.bench.engine->exec, 1);
    hvt_gpu_run(&gpus, 0, ALLREDUCE, 10, "w", 1, 1);
    hvt_op_submit(&gpus.bench, 1, hvt_gpu_op(&gpus, 1, ALLREDUCE, 10, "w", 1, 1));
    for (int i = 0; i < 5; i++) {
        usleep(1000);
        engine_dispatch_watch(&gpus.bench.engine->exec);
    }
    ck_assert_int_eq(gpus.bench.engine->order.broken_status, HVI_OK);
    ck_assert_ptr_nonnull(engine_dispatch_next_gated(&gpus.bench.engine->exec, &cursor, &place));
    ck_assert_uint_eq(place, 1);
    ck_assert_ptr_null(engine_dispatch_next_gated(&gpus.bench.engine->exec, &cursor, &place));
    ck_assert_int_eq(engine_stall_rows(&gpus.bench.engine->watch, 0, 4, &rows, &count, &left_out),
                     HVI_OK);
    ck_assert_uint_eq(count, 1);
    ck_assert_int_eq(rows[0].missing[0].rank, 1);
    ck_assert_str_eq(rows[0].missing[0].waits_in, "its stream, which has not come to the op yet");
    engine_stall_rows_free(rows, count);
    engine_dispatch_set_gpu_timeout(&gpus.bench.engine->exec, 0);
    hvt_gpus_fini(&gpus);
}
END_TEST

START_TEST(more_ranks_on_a_gpu_than_its_worker_takes_at_once_are_told)
{
    const int32_t ranks = HVI_DEVICE_MEMBERS + 1;

    open_gpus(ranks, 1);
    for (int32_t rank = 0; rank < ranks; rank++)
        hvt_gpu_run(&gpus, rank, ALLREDUCE, 10, "w", 1, 1);
    hvt_op_expect_all(&gpus.bench, 0, ranks - 1, HVI_ERR_LIMIT,
                      "the op has too many ranks on one GPU for its worker");
    hvt_gpus_fini(&gpus);
}
END_TEST

/* 0: an answer that is not the next; 1: to no batch; 2: a status of the job's; 3: an impossible index of answers; 4: of
 * commands. */
START_TEST(a_worker_that_lies_in_its_answers_is_ended)
{
    struct hvi_device_header *header;

    open_gpus(2, 1);
    header = gpus.workers[0].channel.header;
    if (_i == 4)
        atomic_store(&header->command_head, 100000);
    for (int32_t rank = 0; rank < 2; rank++)
        hvt_gpu_run(&gpus, rank, ALLREDUCE, 10, "w", 1, 1);
    if (_i == 0)
        gpus.workers[0].answers++;
    if (_i == 3)
        atomic_store(&header->done_tail, 100000);
    else if (_i < 3)
        hvt_gpu_done(&gpus, 0, _i == 1 ? 7 : 1, _i == 2 ? HVI_ERR_JOB_STOPPED : HVI_OK, "");
    expect_end_of_worker("it broke the protocol");
    hvt_gpus_fini(&gpus);
}
END_TEST

START_TEST(a_rank_that_goes_opens_its_fences_and_the_op_ends_when_the_worker_has_it_done)
{
    struct hvi_packet_msg detach = {.kind = HVI_PACKET_DETACH};
    struct hvt_peer *peer = &gpus.bench.peers[1];

    open_gpus(2, 1);
    hvt_gpu_run(&gpus, 0, ALLREDUCE, 10, "w", 1, 1);
    hvt_op_submit(&gpus.bench, 1, hvt_gpu_op(&gpus, 1, ALLREDUCE, 10, "w", 1, 1));
    struct hvt_batch batch = hvt_gpu_take(&gpus, 0);
    detach.detach.request = ++peer->request;
    hvt_peer_send(peer, &detach, -1);
    hvt_gpus_turn(&gpus);
    ck_assert_uint_eq(hvt_gpu_word(&gpus, 1, 1, true), HVI_FENCE_POISON);
    ck_assert_uint_eq(hvt_gpu_word(&gpus, 1, 1, false), 0);
    ck_assert(skip_word(0, 1) == 1 && skip_word(1, 1) == 1);
    hvt_op_expect_nothing(&gpus.bench, 0, 0);
    hvt_gpu_finish(&gpus, 0, &batch);
    expect_done(0, HVI_ERR_RANK_LEFT, NULL);
    hvt_gpus_turn(&gpus);
    ck_assert_uint_eq(hvt_gpu_word(&gpus, 1, 1, false), HVI_FENCE_POISON);
    hvt_gpus_fini(&gpus);
}
END_TEST

/* The rank's last submission, and that it goes. The engine sees both in one turn. */
static void say_goodbye(int32_t rank, struct hvi_submission last, bool breaks_protocol)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_DETACH};
    struct hvt_peer *peer = &gpus.bench.peers[rank];

    hvt_peer_submit(peer, &last);
    msg.detach.request = ++peer->request;
    if (breaks_protocol) { /* without its descriptor */
        msg.kind = HVI_PACKET_FENCE_ADD;
        msg.fence_add.request = peer->request;
    }
    hvt_peer_send(peer, &msg, -1);
    hvt_gpus_turn(&gpus);
    ck_assert_uint_eq(hvt_gpu_word(&gpus, rank, last.fence_cell, true), HVI_FENCE_POISON);
}

/* 0: it leaves. 1: it breaks the protocol. */
START_TEST(an_op_that_gets_ready_as_a_rank_goes_is_no_success_without_its_stream)
{
    open_gpus(2, 1);
    hvt_gpu_run(&gpus, 0, ALLREDUCE, 10, "w", 1, 1);
    say_goodbye(1, hvt_gpu_op(&gpus, 1, ALLREDUCE, 10, "w", 1, 1), _i == 1);
    ck_assert(skip_word(0, 1) == 1 && skip_word(1, 1) == 1);
    hvt_op_expect_nothing(&gpus.bench, 0, 0);
    struct hvt_batch batch = hvt_gpu_take(&gpus, 0);
    hvt_gpu_finish(&gpus, 0, &batch);
    expect_done(0, _i == 1 ? HVI_ERR_RANK_LOST : HVI_ERR_RANK_LEFT, NULL);
    hvt_gpus_fini(&gpus);
}
END_TEST

/* 0: its submission comes with the goodbye. 1: it was queued before. */
START_TEST(an_op_that_waits_for_room_goes_to_no_worker_after_a_rank_has_gone)
{
    struct hvi_submission last;
    struct hvt_batch batch;
    uint32_t cell;

    open_gpus(2, 1);
    for (cell = 1; cell <= HVI_DEVICE_DONES; cell++) {
        hvt_gpu_run(&gpus, 0, ALLREDUCE, 10, "w", cell, 1);
        hvt_gpu_run(&gpus, 1, ALLREDUCE, 10, "w", cell, 1);
    }
    hvt_gpu_run(&gpus, 0, ALLREDUCE, 10, "waits", cell, 1);
    if (_i == 1)
        hvt_gpu_run(&gpus, 1, ALLREDUCE, 10, "waits", cell++, 1);
    last = hvt_gpu_op(&gpus, 1, ALLREDUCE, 10, _i == 1 ? "alone" : "waits", cell, 1);
    hvi_fence_store_ready(&gpus.pages[1], cell, 1);
    say_goodbye(1, last, false);
    expect_done(0, HVI_ERR_RANK_LEFT, NULL);
    for (uint32_t i = 0; i < HVI_DEVICE_DONES; i++) {
        batch = hvt_gpu_take(&gpus, 0);
        hvt_gpu_finish(&gpus, 0, &batch);
        expect_done(0, HVI_OK, NULL);
    }
    ck_assert(!hvt_gpu_has_batch(&gpus, 0)); /* the worker does not know the page any more */
    hvt_gpus_fini(&gpus);
}
END_TEST

START_TEST(an_op_whose_streams_had_come_before_a_rank_went_ends_well)
{
    struct hvi_packet_msg detach = {.kind = HVI_PACKET_DETACH};
    struct hvt_peer *peer = &gpus.bench.peers[1];

    open_gpus(2, 1);
    for (int32_t rank = 0; rank < 2; rank++)
        hvt_gpu_run(&gpus, rank, ALLREDUCE, 10, "w", 1, 1);
    struct hvt_batch batch = hvt_gpu_take(&gpus, 0);
    detach.detach.request = ++peer->request;
    hvt_peer_send(peer, &detach, -1);
    hvt_gpus_turn(&gpus);
    ck_assert(skip_word(0, 1) == 0 && skip_word(1, 1) == 0);
    hvt_gpu_finish(&gpus, 0, &batch);
    expect_done(0, HVI_OK, NULL);
    hvt_gpus_fini(&gpus);
}
END_TEST

/* A join may hang. 0: the usual communicator; 1: the one for registered memory. */
START_TEST(an_op_that_waits_for_its_communicator_ends_with_a_rank_that_goes)
{
    struct hvi_packet_msg detach = {.kind = HVI_PACKET_DETACH};
    struct hvt_peer *peer = &gpus.bench.peers[1];

    if (_i == 0) {
        last_turn = 0;
        open_gpus(2, 2);
        run_by(10, 0);
    } else {
        open_registering();
    }
    hvt_op_expect_nothing(&gpus.bench, 0, 0);
    detach.detach.request = ++peer->request;
    hvt_peer_send(peer, &detach, -1);
    hvt_gpus_turn(&gpus);
    expect_done(0, HVI_ERR_RANK_LEFT, NULL);
    ck_assert_uint_ge(hvt_gpu_word(&gpus, 0, 1, false), last_turn);
    for (uint32_t gpu = 0; gpu < 2; gpu++)
        ck_assert(!hvt_gpu_has_batch(&gpus, gpu));
    hvt_gpus_fini(&gpus);
}
END_TEST

START_TEST(a_job_that_is_stopped_opens_all_fences_and_waits_for_its_workers)
{
    open_gpus(2, 1);
    for (int32_t rank = 0; rank < 2; rank++)
        hvt_op_submit(&gpus.bench, rank, hvt_gpu_op(&gpus, rank, ALLREDUCE, 10, "w", 1, 1));
    struct hvt_batch batch = hvt_gpu_take(&gpus, 0);
    engine_sessions_stop(&gpus.bench.engine->sessions, "the test says so");
    ck_assert_uint_ge(hvt_gpu_word(&gpus, 0, 1, true), 1);
    ck_assert(skip_word(0, 1) == 1 && skip_word(1, 1) == 1);
    ck_assert_ptr_nonnull(gpus.bench.engine->sessions.closing);
    hvt_gpu_finish(&gpus, 0, &batch);
    hvt_gpus_turn(&gpus);
    ck_assert_ptr_null(gpus.bench.engine->sessions.closing);
    hvt_gpus_fini(&gpus);
}
END_TEST

static void add(TCase *tcase, const TTest *test, int from, int to)
{
    tcase_add_loop_test(tcase, test, from, to);
}

int main(void)
{
    Suite *suite = suite_create("engine_device_ops");
    TCase *tcase = tcase_create("ops");

    tcase_set_timeout(tcase, 60);
    add(tcase, an_allreduce_of_ranks_on_one_gpu_is_a_batch_for_its_worker, 1, 5);
    tcase_add_test(tcase, a_broadcast_names_its_root_and_an_average_its_divisor);
    tcase_add_test(tcase, ops_that_are_alike_and_ready_together_are_one_batch);
    tcase_add_test(tcase, an_op_without_bytes_is_over_at_once_and_releases_its_streams);
    tcase_add_test(tcase, an_output_of_late_size_is_asked_for_and_the_worker_gets_all_sizes);
    tcase_add_test(tcase, ranks_on_two_gpus_get_a_communicator_once_and_each_worker_its_part);
    tcase_add_test(tcase,
                   registered_memory_has_a_communicator_of_its_own_once_all_of_it_is_registered);
    tcase_add_test(tcase,
                   registered_memory_gets_its_communicator_when_its_workers_have_nothing_under_way);
    tcase_add_loop_test(tcase, what_cannot_be_registered_goes_as_ever, 0, 2);
    tcase_add_test(tcase, the_root_of_a_broadcast_is_a_rank_of_the_communicator);
    add(tcase, a_communicator_that_cannot_be_made_fails_the_ops_that_want_it, 0, 4);
    add(tcase, a_communicator_is_tried_again_by_the_next_op_where_that_may_help, 0, 3);
    tcase_add_test(tcase, a_communicator_is_not_tried_again_for_ever);
    add(tcase, a_communicator_has_as_long_as_its_workers_say, 0, 2);
    tcase_add_test(tcase, an_engine_that_stood_still_gives_a_communicator_as_much_more_time);
    tcase_add_test(tcase,
                   an_op_waits_for_the_communicator_of_another_set_where_they_share_a_gpu_alone);
    tcase_add_test(tcase, an_op_behind_another_sets_communicator_ends_with_a_rank_that_goes);
    tcase_add_test(tcase, ranks_that_disagree_on_memory_get_one_sentence_and_their_streams_go_on);
    tcase_add_test(tcase, what_was_agreed_on_of_the_host_is_not_repeated_by_a_gpu);
    add(tcase, a_lie_about_a_fence_ends_the_session, 0, LIES);
    add(tcase, a_cell_serves_one_op_at_a_time_and_its_turns_grow, 0, 3);
    tcase_add_test(tcase, memory_that_is_used_cannot_be_removed);
    tcase_add_test(tcase, an_op_waits_until_those_before_it_have_started);
    tcase_add_test(tcase, an_op_has_not_started_before_its_workers_have_it);
    tcase_add_test(tcase, an_op_that_was_held_goes_on_when_the_one_before_it_has_failed);
    add(tcase, a_join_comes_after_an_op_that_is_held, 0, 1);
    add(tcase, an_op_that_is_held_ends_with_its_set, 0, 1);
    add(tcase, an_op_that_is_held_ends_as_one_that_waits, 0, 3);
    add(tcase, an_op_that_waits_for_its_communicator_ends_with_a_rank_that_goes, 0, 2);
    add(tcase, a_group_is_held_as_a_whole, 0, 2);
    tcase_add_test(tcase, the_trace_has_what_the_stream_of_each_ranks_gpu_took);
    tcase_add_test(tcase, the_timeline_has_a_row_for_each_gpu_with_what_its_streams_took);
    tcase_add_test(tcase, an_op_that_fails_on_a_gpu_fails_with_the_workers_sentence);
    add(tcase, a_worker_that_is_lost_fails_its_ops_by_name_and_releases_what_waits, 0, 4);
    add(tcase, a_batch_that_has_begun_and_does_not_end_ends_its_worker, 0, 2);
    tcase_add_test(tcase, a_batch_that_was_over_while_the_engine_stood_still_is_not_late);
    tcase_add_test(tcase, more_ranks_on_a_gpu_than_its_worker_takes_at_once_are_told);
    tcase_add_test(tcase, a_batch_that_waits_for_a_stream_waits_for_ever_and_says_for_whose);
    add(tcase, a_worker_that_lies_in_its_answers_is_ended, 0, 5);
    tcase_add_test(tcase,
                   a_rank_that_goes_opens_its_fences_and_the_op_ends_when_the_worker_has_it_done);
    add(tcase, an_op_that_gets_ready_as_a_rank_goes_is_no_success_without_its_stream, 0, 2);
    add(tcase, an_op_that_waits_for_room_goes_to_no_worker_after_a_rank_has_gone, 0, 2);
    tcase_add_test(tcase, an_op_whose_streams_had_come_before_a_rank_went_ends_well);
    tcase_add_test(tcase, a_job_that_is_stopped_opens_all_fences_and_waits_for_its_workers);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
