/* SPDX-License-Identifier: Apache-2.0
 * The real hvdd-gpu on the fake driver: batches on one GPU and on two, and what ends them. */
#include "base/clock.h"
#include "base/status.h"
#include "base/types.h"
#include "tests/fakegpu/hvt_fakegpu.h"
#include "tests/unit/gpu/hvt_worker.h"

#include <unistd.h>

#define COUNT 1000u      /* elements of a small operand */
#define BYTES (4u << 20) /* of a rank's memory: an input, and in its second half the output */
#define HALF  (BYTES / 2)
#define RANKS 4u
#define COMM  5u
#define PLAIN 0xffffffffu

static struct hvt_worker workers[2];

/* A rank of the job: its memory lies on a GPU. */
static struct {
    struct hvt_worker *worker;
    hvi_cu_ptr memory;
    uint32_t import, page;
    struct hvi_fence_page fences;
    uint64_t turn;
} ranks[RANKS];
static hvi_cu_context contexts[2];

/* ---- the job ---- */

static void open_driver(int gpus)
{
    hvi_cu_device device;

    hvt_cu_begin(getenv("FAKEGPU"), "", 0);
    for (int i = 0; i < gpus; i++) {
        HVT_CU(hvt_cu.device_get(&device, i));
        HVT_CU(hvt_cu.context_retain(&contexts[i], device));
    }
}

static void start(int gpus, const char *fault, const struct hvt_worker_wish *wish)
{
    setenv("FAKEGPU", gpus == 2 ? "devices=2" : "devices=1", 1);
    setenv("FAKEGPU_FAULT", fault, 1);
    for (int i = 0; i < gpus; i++)
        hvt_worker_start(&workers[i], i, wish);
    for (int i = 0; i < gpus; i++) {
        hvt_worker_expect_state(&workers[i], HVI_GPU_UP);
        hvt_engine_open(&workers[i]);
    }
    open_driver(gpus);
}

static void start_plain(int gpus)
{
    const struct hvt_worker_wish wish = {0};

    start(gpus, "", &wish);
}

/* Rank `rank` on a GPU, known to its worker's engine as import and page. */
static void attach(uint32_t rank, int gpu)
{
    ranks[rank].worker = &workers[gpu];
    ranks[rank].page = rank + 1;
    if (ranks[rank].memory == 0) {
        HVT_CU(hvt_cu.context_set(contexts[gpu]));
        ranks[rank].memory = hvt_cu_alloc(BYTES);
        ck_assert_int_eq(hvi_fence_create(&ranks[rank].fences), HVI_OK);
    }
    HVT_CU(hvt_cu.context_set(contexts[gpu]));
    ranks[rank].import = hvt_engine_import(ranks[rank].worker, &hvt_cu, ranks[rank].memory, BYTES);
    hvt_engine_page(ranks[rank].worker, ranks[rank].page, &ranks[rank].fences);
}

static void teardown(void)
{
    for (int i = 0; i < 2; i++) {
        if (workers[i].link_fd > 0)
            hvt_worker_stop(&workers[i]);
    }
    for (uint32_t i = 0; i < RANKS; i++) {
        if (ranks[i].memory != 0) {
            HVT_CU(hvt_cu.context_set(contexts[ranks[i].worker->gpu]));
            HVT_CU(hvt_cu.free(ranks[i].memory));
        }
        hvi_fence_fini(&ranks[i].fences);
    }
}

/* ---- what ranks have ---- */

static float *in_of(uint32_t rank)
{
    return (float *)(uintptr_t)ranks[rank].memory;
}

static float *out_of(uint32_t rank)
{
    return (float *)(uintptr_t)(ranks[rank].memory + HALF);
}

/* Element i of rank r: r * 1000 + i % 997, which floats of all widths here add without rounding. */
static void fill(uint32_t count)
{
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        for (uint32_t i = 0; ranks[rank].memory != 0 && i < count; i++) {
            in_of(rank)[i] = (float)(rank * 1000 + i % 997);
            out_of(rank)[i] = -1;
        }
    }
}

static void expect_sum(uint32_t rank, uint32_t size, uint32_t count, float factor)
{
    for (uint32_t i = 0; i < count; i++) {
        const float sum = (float)(size * (size - 1) / 2 * 1000 + size * (i % 997)) * factor;
        ck_assert_msg(out_of(rank)[i] == sum, "rank %u, element %u: %f instead of %f", rank, i,
                      (double)out_of(rank)[i], (double)sum);
    }
}

static void open_gate(uint32_t rank)
{
    hvi_fence_store_ready(&ranks[rank].fences, 1, ranks[rank].turn);
}

static bool is_released(uint32_t rank)
{
    return (int64_t)(atomic_load(&ranks[rank].fences.cells[1].done) - ranks[rank].turn) >= 0;
}

/* ---- batches ---- */

static struct hvi_device_work make_work(uint16_t kind, uint16_t members, uint64_t count)
{
    return (struct hvi_device_work){.command = HVI_DEVICE_WORK,
                                    .kind = kind,
                                    .members = members,
                                    .dtype = HVI_DTYPE_FLOAT32,
                                    .reduce_op = HVI_REDUCE_SUM,
                                    .root = -1,
                                    .root_member = -1,
                                    .ranks = members,
                                    .count = count,
                                    .bytes = count * sizeof(float),
                                    .prescale = 1,
                                    .postscale = 1};
}

static struct hvi_device_member make_member(uint32_t rank)
{
    return (struct hvi_device_member){.command = HVI_DEVICE_MEMBER,
                                      .place = rank,
                                      .in_import = ranks[rank].import,
                                      .out_import = ranks[rank].import,
                                      .out_offset = HALF,
                                      .page = ranks[rank].page,
                                      .cell = 1,
                                      .turn = ranks[rank].turn};
}

static void next_turn(uint32_t size)
{
    for (uint32_t rank = 0; rank < size; rank++)
        ranks[rank].turn++;
}

/* An allreduce of the ranks that this worker has, all of which are on it. */
static uint64_t allreduce_here(struct hvt_worker *worker, uint32_t size, uint64_t count)
{
    const struct hvi_device_work work = make_work(HVI_KIND_ALLREDUCE, (uint16_t)size, count);

    next_turn(size);
    hvt_batch_begin(worker, 1, 0, 0, 0);
    hvt_batch_add(worker, &work);
    for (uint32_t rank = 0; rank < size; rank++) {
        const struct hvi_device_member member = make_member(rank);
        hvt_batch_add(worker, &member);
    }
    return hvt_batch_publish(worker);
}

/* One GPU with ranks 0 and 1. */
static void start_pair(void)
{
    start_plain(1);
    attach(0, 0);
    attach(1, 0);
    fill(COUNT);
}

START_TEST(ranks_of_one_gpu_are_summed_once_all_of_their_streams_have_come)
{
    start_pair();
    uint64_t batch = allreduce_here(&workers[0], 2, COUNT);
    open_gate(1);
    hvt_nap(20);
    ck_assert(!hvt_batch_is_answered(&workers[0]) && !is_released(0) && !is_released(1));
    ck_assert_float_eq(out_of(0)[1], -1);
    open_gate(0);
    hvt_batch_expect(&workers[0], batch);
    ck_assert(is_released(0) && is_released(1));
    expect_sum(0, 2, COUNT, 1);
    expect_sum(1, 2, COUNT, 1);
    ck_assert_uint_eq(atomic_load(&workers[0].channel.header->launched), batch);
}
END_TEST

START_TEST(a_batch_that_waits_is_told_to_have_begun_only_when_it_has)
{
    start_pair();
    uint64_t batch = allreduce_here(&workers[0], 2, COUNT);
    hvt_nap(150);
    ck_assert(!hvt_batch_is_answered(&workers[0]));
    open_gate(0);
    open_gate(1);
    hvt_batch_expect(&workers[0], batch);
}
END_TEST

START_TEST(many_batches_follow_each_other)
{
    start_pair();
    for (int i = 0; i < 600; i++) {
        uint64_t batch = allreduce_here(&workers[0], 2, 4);
        open_gate(0);
        open_gate(1);
        hvt_batch_expect(&workers[0], batch);
    }
    expect_sum(0, 2, 4, 1);
}
END_TEST

START_TEST(a_gated_set_does_not_hold_up_another)
{
    start_pair();
    struct hvi_device_batch *head;
    uint64_t gated = allreduce_here(&workers[0], 2, 4);
    hvt_batch_begin(&workers[0], 1, 0, 0, 0);
    const struct hvi_device_work work = make_work(HVI_KIND_ALLREDUCE, 1, COUNT);
    struct hvi_device_member member = make_member(1);
    member.cell = 0;
    member.place = 0;
    hvt_batch_add(&workers[0], &work);
    hvt_batch_add(&workers[0], &member);
    head = hvi_ring_slot(&workers[0].channel.commands, 0);
    head->stream = 1;
    hvt_batch_expect(&workers[0], hvt_batch_publish(&workers[0]));
    expect_sum(1, 1, 0, 1);
    ck_assert_float_eq(out_of(1)[3], in_of(1)[3]);
    open_gate(0);
    open_gate(1);
    hvt_batch_expect(&workers[0], gated);
}
END_TEST

/* ---- ends ---- */

START_TEST(a_lie_ends_its_engine_and_no_other)
{
    const struct hvi_device_work work = make_work(HVI_KIND_ALLREDUCE, 1, COUNT);
    struct hvi_device_member member;

    start_pair();
    next_turn(1);
    member = make_member(0);
    member.out_offset = BYTES - 4 * COUNT + 4;
    hvt_batch_begin(&workers[0], 1, 0, 0, 0);
    hvt_batch_add(&workers[0], &work);
    hvt_batch_add(&workers[0], &member);
    hvt_batch_publish(&workers[0]);
    hvt_worker_expect_closed(&workers[0], workers[0].engine_fd);
    ck_assert_uint_eq(atomic_load(&ranks[0].fences.cells[1].done), HVI_FENCE_POISON);
    hvt_engine_close(&workers[0]);

    hvi_fence_fini(&ranks[0].fences);
    ck_assert_int_eq(hvi_fence_create(&ranks[0].fences), HVI_OK);
    ranks[0].turn = 0;
    hvt_engine_open(&workers[0]);
    attach(0, 0);
    uint64_t batch = allreduce_here(&workers[0], 1, COUNT);
    open_gate(0);
    hvt_batch_expect(&workers[0], batch);
}
END_TEST

START_TEST(the_end_of_an_engine_releases_all_and_leaves_memory_to_the_next)
{
    start_pair();
    allreduce_here(&workers[0], 2, COUNT);
    hvt_nap(5);
    hvt_engine_close(&workers[0]);
    uint64_t end = hvi_deadline_after(HVT_PATIENCE_NS);
    while (!is_released(0) || !is_released(1))
        ck_assert(!hvi_deadline_passed(end));
    hvt_engine_open(&workers[0]);
    for (uint32_t rank = 0; rank < 2; rank++) {
        hvi_fence_fini(&ranks[rank].fences);
        ck_assert_int_eq(hvi_fence_create(&ranks[rank].fences), HVI_OK);
        ranks[rank].turn = 0;
        attach(rank, 0);
    }
    fill(COUNT);
    uint64_t batch = allreduce_here(&workers[0], 2, COUNT);
    open_gate(0);
    open_gate(1);
    hvt_batch_expect(&workers[0], batch);
    expect_sum(1, 2, COUNT, 1);
}
END_TEST

START_TEST(the_end_of_a_session_lets_its_batches_run_through)
{
    struct hvi_gpu_msg over = {.kind = HVI_GPU_SESSION_END, .session_end = {.page = 2}};

    start_pair();
    uint64_t batch = allreduce_here(&workers[0], 2, COUNT);
    hvt_worker_send(workers[0].engine_fd, &over, NULL, 0);
    hvt_nap(20);
    ck_assert(!hvt_batch_is_answered(&workers[0])); /* rank 0 is still waited for */
    open_gate(0);
    hvt_batch_expect(&workers[0], batch);
    ck_assert(is_released(0));
}
END_TEST

static void expect_launched(uint64_t batch)
{
    const uint64_t end = hvi_deadline_after(HVT_PATIENCE_NS);

    while (atomic_load(&workers[0].channel.header->launched) < batch)
        ck_assert(!hvi_deadline_passed(end));
}

START_TEST(memory_is_given_back_when_its_batches_are_over)
{
    start_pair();
    uint64_t batch = allreduce_here(&workers[0], 2, COUNT);
    expect_launched(batch);
    uint64_t request = hvt_engine_release(&workers[0], ranks[0].import);
    hvt_nap(20);
    ck_assert_int_eq(hvi_packet_receive(workers[0].engine_fd, &workers[0].packet, 0),
                     HVI_ERR_TIMEOUT);
    open_gate(0);
    open_gate(1);
    hvt_batch_expect(&workers[0], batch);
    hvt_engine_expect_ack(&workers[0], request, HVI_OK);
}
END_TEST

START_TEST(a_broken_context_ends_the_worker_with_the_reason)
{
    const struct hvt_worker_wish wish = {0};

    start(1, "hvdd-gpu/sticky@6", &wish); /* the first five are at the start */
    attach(0, 0);
    allreduce_here(&workers[0], 1, COUNT);
    open_gate(0);
    hvt_worker_expect_state(&workers[0], HVI_GPU_FAILED);
    ck_assert_msg(strstr(workers[0].msg.state.text, "(700)") != NULL, "%s",
                  workers[0].msg.state.text);
    ck_assert_int_eq(hvt_worker_end(&workers[0]), 1);
    ck_assert_uint_eq(atomic_load(&ranks[0].fences.cells[1].done), HVI_FENCE_POISON);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("gpu_launch");
    TCase *tcase = tcase_create("launch");

    tcase_add_checked_fixture(tcase, NULL, teardown);
    tcase_add_test(tcase, ranks_of_one_gpu_are_summed_once_all_of_their_streams_have_come);
    tcase_add_test(tcase, a_batch_that_waits_is_told_to_have_begun_only_when_it_has);
    tcase_add_test(tcase, many_batches_follow_each_other);
    tcase_add_test(tcase, a_gated_set_does_not_hold_up_another);
    tcase_add_test(tcase, a_lie_ends_its_engine_and_no_other);
    tcase_add_test(tcase, the_end_of_an_engine_releases_all_and_leaves_memory_to_the_next);
    tcase_add_test(tcase, the_end_of_a_session_lets_its_batches_run_through);
    tcase_add_test(tcase, memory_is_given_back_when_its_batches_are_over);
    tcase_add_test(tcase, a_broken_context_ends_the_worker_with_the_reason);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
