/* SPDX-License-Identifier: Apache-2.0
 * The real hvdd-gpu on the fake driver: batches on one GPU, and what ends them. */
#include "base/clock.h"
#include "base/status.h"
#include "base/uuid.h"
#include "tests/unit/gpu/hvt_job.h"
#include "tests/unit/hvt_main.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#define COUNT 1000u
#define MANY  60000u /* elements: a kernel of more blocks than look by themselves */

static struct hvt_worker *const worker = &hvt_workers[0];

static void nap(long ms)
{
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
}

/* One GPU with ranks 0 and 1. */
static void start_pair(const char *fault, const struct hvt_worker_wish *wish)
{
    hvt_job_start(1, fault, wish);
    hvt_job_attach(0, 0);
    hvt_job_attach(1, 0);
    hvt_job_fill(COUNT);
}

static void setup(void)
{
    const struct hvt_worker_wish wish = {0};

    start_pair("", &wish);
}

/* An allreduce of the first ranks. */
static uint64_t allreduce(uint32_t size, uint64_t count)
{
    const struct hvi_device_work work = hvt_job_work(HVI_KIND_ALLREDUCE, (uint16_t)size, count);

    hvt_job_next_turn(size);
    hvt_batch_begin(worker, 1, 0, 0, 0);
    hvt_batch_add(worker, &work);
    for (uint32_t rank = 0; rank < size; rank++) {
        const struct hvi_device_member member = hvt_job_member(rank);
        hvt_batch_add(worker, &member);
    }
    return hvt_batch_publish(worker);
}

static void open_gates(void)
{
    hvt_job_open_gate(0);
    hvt_job_open_gate(1);
}

static void expect_launched(uint64_t batch)
{
    const uint64_t end = hvi_deadline_after(HVT_PATIENCE_NS);

    while (atomic_load(&worker->channel.header->launched) < batch)
        ck_assert(!hvi_deadline_passed(end));
}

static uint64_t done_word(uint32_t rank)
{
    return atomic_load(&hvt_ranks[rank].fences.cells[1].done);
}

START_TEST(ranks_of_one_gpu_are_summed_once_all_of_their_streams_have_come)
{
    uint64_t batch = allreduce(2, COUNT);
    hvt_job_open_gate(1);
    nap(20);
    ck_assert(!hvt_batch_is_answered(worker));
    ck_assert(!hvt_job_is_released(0) && !hvt_job_is_released(1));
    ck_assert_uint_eq(*(unsigned char *)hvt_job_out(0), HVT_UNTOUCHED);
    hvt_job_open_gate(0);
    hvt_batch_expect(worker, batch);
    ck_assert(hvt_job_is_released(0) && hvt_job_is_released(1));
    hvt_job_expect_sum(0, 2, COUNT, 1);
    hvt_job_expect_sum(1, 2, COUNT, 1);
}
END_TEST

static void expect_untouched(uint32_t rank, uint32_t bytes)
{
    const unsigned char *out = hvt_job_out(rank);

    for (uint32_t i = 0; i < bytes; i++) {
        if (out[i] != HVT_UNTOUCHED)
            ck_abort_msg("byte %u of rank %u was written", i, rank);
    }
}

/* Rank 0's stream has not come, and still uses that memory. */
START_TEST(a_cancelled_batch_runs_through_and_writes_nothing)
{
    uint64_t batch = allreduce(2, COUNT);
    hvt_job_open_gate(1);
    expect_launched(batch);
    for (uint32_t rank = 0; rank < 2; rank++)
        hvi_fence_store_skip(&hvt_ranks[rank].fences, 1, hvt_ranks[rank].turn);
    hvt_job_open_gate(0);
    hvt_batch_expect(worker, batch);
    ck_assert(hvt_job_is_released(0) && hvt_job_is_released(1));
    expect_untouched(0, COUNT * sizeof(float));
    expect_untouched(1, COUNT * sizeof(float));
    batch = allreduce(2, COUNT); /* which is not */
    open_gates();
    hvt_batch_expect(worker, batch);
    hvt_job_expect_sum(0, 2, COUNT, 1);
}
END_TEST

/* In the same cell, where the batch before it was not cancelled. */
START_TEST(of_a_cancelled_batch_no_block_of_many_writes)
{
    for (int turn = 0; turn < 4; turn++) {
        hvt_job_fill(MANY);
        uint64_t batch = allreduce(2, MANY);
        hvt_job_open_gate(1);
        expect_launched(batch);
        for (uint32_t rank = 0; turn % 2 == 1 && rank < 2; rank++)
            hvi_fence_store_skip(&hvt_ranks[rank].fences, 1, hvt_ranks[rank].turn);
        hvt_job_open_gate(0);
        hvt_batch_expect(worker, batch);
        ck_assert(hvt_job_is_released(0) && hvt_job_is_released(1));
        for (uint32_t rank = 0; rank < 2; rank++) {
            if (turn % 2 == 1)
                expect_untouched(rank, MANY * sizeof(float));
            else
                hvt_job_expect_sum(rank, 2, MANY, 1);
        }
    }
}
END_TEST

START_TEST(a_batch_that_waits_is_not_told_to_have_begun)
{
    uint64_t batch = allreduce(2, COUNT);
    nap(150);
    ck_assert(!hvt_batch_is_answered(worker));
    open_gates();
    hvt_batch_expect(worker, batch);
}
END_TEST

/* The stream has no word of the second one's beginning, as nothing is waited for. */
START_TEST(a_batch_without_waits_behind_one_that_waits_is_not_told_to_have_begun)
{
    const struct hvi_device_work work = hvt_job_work(HVI_KIND_ALLREDUCE, 1, COUNT);
    uint64_t batches[2];

    hvt_job_next_turn(2);
    hvt_job_open_gate(1);
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct hvi_device_member member = hvt_job_member(rank);
        member.place = 0; /* of one */
        hvt_batch_begin(worker, 1, 0, 0, 0);
        hvt_batch_add(worker, &work);
        hvt_batch_add(worker, &member);
        batches[rank] = hvt_batch_publish(worker);
    }
    nap(150);
    ck_assert(!hvt_batch_is_answered(worker));
    hvt_job_open_gate(0);
    hvt_batch_expect(worker, batches[0]);
    hvt_batch_expect(worker, batches[1]);
}
END_TEST

static void expect_asked(uint64_t count, bool are_waited_for, uint64_t kernels)
{
    if (!are_waited_for) { /* their words are there when the worker looks */
        for (uint32_t rank = 0; rank < 2; rank++)
            hvi_fence_store_ready(&hvt_ranks[rank].fences, 1, hvt_ranks[rank].turn + 1);
    }
    const uint64_t batch = allreduce(2, count);
    expect_launched(batch); /* with waits, where the gates are shut */
    open_gates();
    hvt_batch_expect(worker, batch);
    const struct hvt_asked asked = hvt_job_asked(0);
    ck_assert_uint_eq(asked.kernels, kernels);
    ck_assert_uint_eq(asked.memops, are_waited_for ? 2 : 1);
    ck_assert_uint_eq(asked.nccl, 0);
}

/* ADR 0020 counts them. */
START_TEST(one_gpu_is_asked_for_one_kernel_and_a_look_where_there_are_many_blocks)
{
    const struct hvt_worker_wish wish = {.counts = true};

    start_pair("", &wish);
    hvt_job_asked(0);
    expect_asked(COUNT, true, 1);
    expect_asked(COUNT, false, 1);
    expect_asked(MANY, true, 2);
    expect_asked(MANY, false, 2);
}
END_TEST

START_TEST(many_batches_follow_each_other)
{
    for (int i = 0; i < 600; i++) { /* more than there are answers in the ring */
        uint64_t batch = allreduce(2, 4);
        open_gates();
        hvt_batch_expect(worker, batch);
    }
    hvt_job_expect_sum(0, 2, 4, 1);
}
END_TEST

/* ---- times ---- */

/* The next end of a batch, which has gone well. */
static struct hvi_device_done next_end(void)
{
    struct hvi_device_done done = hvt_batch_answer(worker);

    while (done.status == HVI_INPROGRESS) {
        ck_assert_uint_eq(done.device_ns, 0);
        done = hvt_batch_answer(worker);
    }
    ck_assert_int_eq(done.status, HVI_OK);
    return done;
}

/* Each thing in a stream takes so long. The kernel lies between the events, and its gate does not. */
#define DELAY_US 5000u

START_TEST(of_a_timed_batch_the_answer_says_what_the_stream_took_without_its_wait)
{
    const struct hvt_worker_wish wish = {0};

    start_pair("delay@5000", &wish);
    for (int round = 0; round < 3; round++) {
        worker->flags = round > 0 ? HVI_DEVICE_TIMED : 0;
        const uint64_t batch = allreduce(2, COUNT);
        hvt_job_open_gate(1);
        nap(round == 2 ? 200 : 1);
        const uint64_t opened_ns = hvi_clock_ns();
        hvt_job_open_gate(0);
        const struct hvi_device_done done = next_end();
        const uint64_t most_ns = hvi_clock_ns() - opened_ns;
        ck_assert_uint_eq(done.number, batch);
        ck_assert_uint_ge(done.device_ns, round > 0 ? DELAY_US * 1000 : 0);
        ck_assert_uint_le(done.device_ns, round > 0 ? most_ns : 0);
    }
}
END_TEST

/* 64 in a stream are timed at once. */
START_TEST(batches_that_cannot_be_timed_are_answered_without_a_time)
{
    worker->flags = HVI_DEVICE_TIMED;
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 70; i++)
            (void)allreduce(1, 4);
        expect_launched(worker->batches);
        hvt_job_open_gate(0);
        for (int i = 0; i < 70; i++) {
            const struct hvi_device_done done = next_end();
            ck_assert_int_eq(done.device_ns > 0, i < 64);
        }
    }
}
END_TEST

/* Rank 1 alone, in a stream of its own and without a fence. */
static uint64_t copy_of_rank_1(void)
{
    const struct hvi_device_work work = hvt_job_work(HVI_KIND_ALLREDUCE, 1, COUNT);
    struct hvi_device_member member = hvt_job_member(1);

    member.cell = 0;
    member.place = 0;
    hvt_batch_begin(worker, 1, 0, 0, 0);
    hvt_batch_add(worker, &work);
    hvt_batch_add(worker, &member);
    struct hvi_device_batch *head = hvi_ring_slot(&worker->channel.commands, 0);
    head->stream = 1;
    return hvt_batch_publish(worker);
}

START_TEST(a_gated_set_does_not_hold_up_another)
{
    uint64_t gated = allreduce(2, 4);
    hvt_batch_expect(worker, copy_of_rank_1());
    ck_assert_mem_eq(hvt_job_out(1), hvt_job_in(1), COUNT * sizeof(float));
    open_gates();
    hvt_batch_expect(worker, gated);
}
END_TEST

/* Where a first launch loads its module, and so waits for all streams: each kernel was launched once at the start. */
START_TEST(a_gated_set_does_not_hold_up_another_by_a_kernels_first_launch)
{
    const struct hvt_worker_wish wish = {.call_ns = 300 * HVI_NS_MS, .fake = ";sync=load"};

    start_pair("", &wish);
    uint64_t gated = allreduce(2, 4);
    expect_launched(gated);
    hvt_batch_expect(worker, copy_of_rank_1());
    ck_assert_mem_eq(hvt_job_out(1), hvt_job_in(1), COUNT * sizeof(float));
    open_gates();
    hvt_batch_expect(worker, gated);
}
END_TEST

/* More batches than a stream takes: the rest waits in the ring. */
START_TEST(a_stream_that_is_full_takes_no_more_until_it_has_room)
{
    uint64_t last = 0;

    for (int i = 0; i < 400; i++)
        last = allreduce(1, 4);
    nap(20);
    ck_assert_uint_lt(atomic_load(&worker->channel.header->launched), last);
    hvt_job_open_gate(0);
    for (uint64_t batch = 1; batch <= last; batch++)
        hvt_batch_expect(worker, batch);
    ck_assert_uint_eq(done_word(0), hvt_ranks[0].turn);
}
END_TEST

/* A reducescatter has a step for each member. */
static uint64_t publish_long(void)
{
    const uint64_t sizes[4] = {4, 4, 4, 4};
    struct hvi_device_work work = hvt_job_work(HVI_KIND_REDUCESCATTER, 4, 4);

    work.sizes = 1;
    hvt_job_next_turn(4);
    hvt_batch_begin(worker, HVI_DEVICE_WORKS, 0, 0, 0);
    for (uint32_t i = 0; i < HVI_DEVICE_WORKS; i++) {
        hvt_batch_add(worker, &work);
        for (uint32_t rank = 0; rank < 4; rank++) {
            const struct hvi_device_member member = hvt_job_member(rank);
            hvt_batch_add(worker, &member);
        }
        hvt_batch_numbers(worker, sizes, 4);
    }
    return hvt_batch_publish(worker);
}

/* Else the driver's queue would be full, and the call would wait in it. */
START_TEST(a_long_batch_goes_into_its_stream_in_portions)
{
    uint64_t gated;

    hvt_job_attach(2, 0);
    hvt_job_attach(3, 0);
    gated = publish_long();
    nap(20);
    ck_assert_uint_lt(atomic_load(&worker->channel.header->launched), gated);
    for (uint32_t rank = 0; rank < 4; rank++)
        hvt_job_open_gate(rank);
    hvt_batch_expect(worker, gated);
    ck_assert_uint_eq(done_word(3), hvt_ranks[3].turn);
    gated = allreduce(2, 4);
    expect_launched(gated);
    open_gates();
    hvt_batch_expect(worker, gated);
}
END_TEST

/* ---- ends ---- */

START_TEST(a_lie_ends_its_engine_and_no_other)
{
    const struct hvi_device_work work = hvt_job_work(HVI_KIND_ALLREDUCE, 1, COUNT);
    struct hvi_device_member member;

    hvt_job_next_turn(1);
    member = hvt_job_member(0);
    member.out_offset = HVT_BYTES - 4 * COUNT + 4;
    hvt_batch_begin(worker, 1, 0, 0, 0);
    hvt_batch_add(worker, &work);
    hvt_batch_add(worker, &member);
    hvt_batch_publish(worker);
    hvt_worker_expect_closed(worker, worker->engine_fd);
    const uint64_t end = hvi_deadline_after(HVT_PATIENCE_NS);
    while (done_word(0) != HVI_FENCE_POISON)
        ck_assert(!hvi_deadline_passed(end));
    hvt_engine_close(worker);

    hvt_engine_open(worker);
    hvt_job_attach(0, 0);
    uint64_t batch = allreduce(1, COUNT);
    hvt_job_open_gate(0);
    hvt_batch_expect(worker, batch);
    hvt_job_expect_sum(0, 1, COUNT, 1);
}
END_TEST

START_TEST(the_end_of_an_engine_releases_all_and_leaves_memory_to_the_next)
{
    uint64_t batch = allreduce(2, COUNT);
    expect_launched(batch);
    hvt_engine_close(worker);
    uint64_t end = hvi_deadline_after(HVT_PATIENCE_NS);
    while (!hvt_job_is_released(0) || !hvt_job_is_released(1))
        ck_assert(!hvi_deadline_passed(end));
    expect_untouched(0, COUNT * sizeof(float)); /* no stream had come */
    hvt_engine_open(worker);
    hvt_job_attach(0, 0);
    hvt_job_attach(1, 0);
    hvt_job_fill(COUNT);
    batch = allreduce(2, COUNT);
    open_gates();
    hvt_batch_expect(worker, batch);
    hvt_job_expect_sum(1, 2, COUNT, 1);
}
END_TEST

START_TEST(the_poison_of_a_dead_engines_pages_outlasts_its_batches)
{
    uint64_t batch = allreduce(2, COUNT);
    expect_launched(batch);
    hvt_engine_close(worker);
    uint64_t end = hvi_deadline_after(HVT_PATIENCE_NS);
    for (int quiet_ms = 0; quiet_ms < 50;
         quiet_ms++) { /* the stream has written its turn by then */
        ck_assert(!hvi_deadline_passed(end));
        if (done_word(0) != HVI_FENCE_POISON || done_word(1) != HVI_FENCE_POISON)
            quiet_ms = 0;
        nap(1);
    }
}
END_TEST

START_TEST(the_end_of_a_session_lets_its_batches_run_through)
{
    struct hvi_gpu_msg over = {.kind = HVI_GPU_SESSION_END, .session_end = {.page = 2}};

    uint64_t batch = allreduce(2, COUNT);
    hvt_worker_send(worker->engine_fd, &over, NULL, 0);
    nap(20);
    ck_assert(!hvt_batch_is_answered(worker)); /* rank 0 is still waited for */
    hvt_job_open_gate(0);
    hvt_batch_expect(worker, batch);
    ck_assert(hvt_job_is_released(0));
}
END_TEST

START_TEST(memory_is_given_back_when_its_batches_are_over)
{
    uint64_t batch = allreduce(2, COUNT);
    expect_launched(batch);
    uint64_t request = hvt_engine_release(worker, hvt_ranks[0].import);
    nap(20);
    ck_assert_int_eq(hvi_packet_receive(worker->engine_fd, &worker->packet, 0), HVI_ERR_TIMEOUT);
    open_gates();
    hvt_batch_expect(worker, batch);
    hvt_engine_expect_ack(worker, request, HVI_OK);
}
END_TEST

static void expect_failure(const char *part)
{
    hvt_worker_expect_state(worker, HVI_GPU_FAILED);
    ck_assert_msg(strstr(worker->msg.state.text, part) != NULL, "%s", worker->msg.state.text);
    ck_assert_int_eq(hvt_worker_end(worker), 1);
}

START_TEST(a_broken_context_ends_the_worker_with_the_reason)
{
    const struct hvt_worker_wish wish = {0};

    start_pair("hvdd-gpu/sticky@10", &wish); /* the first nine are those of the start */
    allreduce(1, COUNT);
    hvt_job_open_gate(0);
    expect_failure("(700)");
    const struct hvi_fence *cell = &hvt_ranks[0].fences.cells[1];
    ck_assert_uint_eq(atomic_load(&cell->ready), HVI_FENCE_POISON);
    ck_assert_uint_eq(atomic_load(&cell->skip), HVI_FENCE_POISON);
    ck_assert_uint_eq(done_word(0), 0); /* its engine lives, and stores it after the worker's end */
}
END_TEST

static void beat(uint64_t number)
{
    struct hvi_gpu_msg msg = {.kind = HVI_GPU_BEAT, .beat = {number}};

    hvt_worker_send(worker->link_fd, &msg, NULL, 0);
    hvt_worker_hear(worker, worker->link_fd);
    ck_assert_int_eq(worker->msg.kind, HVI_GPU_BEAT);
    ck_assert_uint_eq(worker->msg.beat.number, number);
}

START_TEST(what_it_has_of_memory_is_said_with_a_beat_when_it_has_changed)
{
    const struct hvt_worker_wish wish = {0};

    start_pair("", &wish);
    beat(1);
    hvt_worker_hear(worker, worker->link_fd);
    ck_assert_int_eq(worker->msg.kind, HVI_GPU_STATE);
    ck_assert(worker->msg.state.has_row);
    ck_assert_uint_eq(worker->msg.state.row.imports, 2);
    ck_assert_uint_eq(worker->msg.state.row.import_bytes, 2 * HVT_BYTES);
    ck_assert_uint_eq(worker->msg.state.row.staging_bytes, 80u << 20);
    beat(2);
    beat(3); /* and nothing between them */
}
END_TEST

static uint32_t imports_of(uint64_t number)
{
    beat(number);
    hvt_worker_hear(worker, worker->link_fd);
    ck_assert_int_eq(worker->msg.kind, HVI_GPU_STATE);
    return worker->msg.state.row.imports;
}

/* A close in the driver would wait for the gated stream, and the launch for the close. */
START_TEST(memory_and_pages_are_closed_when_no_stream_has_anything)
{
    const struct hvt_worker_wish wish = {.call_ns = 300 * HVI_NS_MS};
    const struct hvi_gpu_msg over = {.kind = HVI_GPU_SESSION_END, .session_end = {.page = 3}};

    start_pair("", &wish);
    hvt_job_attach(2, 0);
    uint64_t gated = allreduce(2, 4);
    expect_launched(gated);
    hvt_worker_send(worker->engine_fd, &over, NULL, 0);
    uint64_t request = hvt_engine_release(worker, hvt_ranks[2].import);
    nap(20);
    hvt_batch_expect(worker, copy_of_rank_1());
    hvt_engine_expect_ack(worker, request, HVI_OK); /* though it is open */
    nap(400);                                       /* longer than a call may last */
    hvt_batch_expect(worker, copy_of_rank_1());
    ck_assert_uint_eq(imports_of(1), 3);
    open_gates();
    hvt_batch_expect(worker, gated);
    nap(20);
    ck_assert_uint_eq(imports_of(2), 2);
}
END_TEST

/* Its engine has not gone, and a stream of its ranks has not come. */
START_TEST(a_worker_that_passes_to_another_job_has_nothing_of_the_one_before)
{
    expect_launched(allreduce(2, COUNT));
    hvt_worker_pass(worker, "next", 4711);
    ck_assert(hvt_job_is_released(0) && hvt_job_is_released(1));
    ck_assert_uint_eq(done_word(0), HVI_FENCE_POISON);
    expect_untouched(0, COUNT * sizeof(float));
    hvt_worker_expect_closed(worker, worker->engine_fd);
    hvt_engine_close(worker);
    hvt_engine_open(worker);
    ck_assert_uint_eq(worker->msg.hello.instance, 4711);
    ck_assert_uint_eq(worker->channel.instance, 4711);
    hvt_job_attach(0, 0);
    hvt_job_attach(1, 0);
    hvt_job_fill(COUNT);
    const uint64_t batch = allreduce(2, COUNT);
    open_gates();
    hvt_batch_expect(worker, batch);
    hvt_job_expect_sum(1, 2, COUNT, 1);
}
END_TEST

/* A context that is broken shows when the memory is cleared. */
START_TEST(a_worker_that_cannot_pass_ends_with_the_reason)
{
    const struct hvi_gpu_msg told = {.kind = HVI_GPU_JOB, .job = {"next", 4711}};
    const struct hvt_worker_wish wish = {0};

    start_pair("hvdd-gpu/broken-clear", &wish);
    hvt_worker_send(worker->link_fd, &told, NULL, 0);
    expect_failure("cuMemsetD8Async: ");
}
END_TEST

/* Of memory that is not looked at. */
static void import_anything(void)
{
    struct hvi_gpu_msg told = {.kind = HVI_GPU_IMPORT, .import = {.request = 1, .import = 1}};

    told.import.memory.kind = HVI_DEVICE_LEGACY;
    told.import.memory.address = told.import.memory.bytes = 4096;
    told.import.pid = getpid();
    ck_assert(hvi_uuid_parse(HVT_GPU_0, told.import.memory.uuid));
    hvt_worker_send(worker->engine_fd, &told, NULL, 0);
}

START_TEST(an_open_that_does_not_end_ends_the_worker_with_the_reason)
{
    const struct hvt_worker_wish wish = {.call_ns = 200 * HVI_NS_MS};

    hvt_job_start(1, "hvdd-gpu/slow-open@20000", &wish);
    import_anything();
    expect_failure("cuIpcOpenMemHandle");
}
END_TEST

/* hvdd judges how long it may: the open is not over, and the guard looks as soon as it goes on. */
START_TEST(a_worker_that_has_stood_still_gives_calls_their_time_anew)
{
    const struct hvt_worker_wish wish = {.call_ns = 1500 * HVI_NS_MS};

    hvt_job_start(1, "hvdd-gpu/slow-open@3000", &wish);
    import_anything();
    nap(800);
    kill(worker->pid, SIGSTOP);
    nap(1700);
    kill(worker->pid, SIGCONT);
    hvt_worker_hear(worker, worker->engine_fd);
    ck_assert_int_eq(worker->msg.kind, HVI_GPU_ACK);
    ck_assert_uint_eq(worker->msg.ack.request, 1);
}
END_TEST

/* A rank with a fence, and without memory: its ops have no bytes. */
static void attach_fence(void)
{
    ck_assert_int_eq(hvi_fence_create(&hvt_ranks[0].fences), HVI_OK);
    hvt_ranks[0].page = 1;
    hvt_engine_page(worker, 1, &hvt_ranks[0].fences);
}

START_TEST(a_batch_that_is_younger_than_an_open_excuses_nothing)
{
    const struct hvt_worker_wish wish = {.call_ns = 200 * HVI_NS_MS};

    hvt_job_start(1, "hvdd-gpu/slow-open@20000", &wish);
    attach_fence();
    import_anything();
    nap(20);
    expect_launched(allreduce(1, 0));
    expect_failure("cuIpcOpenMemHandle");
    hvi_fence_fini(&hvt_ranks[0].fences);
}
END_TEST

/* It may wait for what was in streams when it began (P2). */
START_TEST(an_open_has_its_time_from_the_end_of_the_batches_that_are_older)
{
    const struct hvt_worker_wish wish = {.call_ns = 200 * HVI_NS_MS};

    hvt_job_start(1, "hvdd-gpu/slow-open@20000", &wish);
    attach_fence();
    uint64_t batch = allreduce(1, 0);
    expect_launched(batch);
    import_anything();
    nap(500);
    ck_assert_int_eq(hvi_packet_receive(worker->link_fd, &worker->packet, 0), HVI_ERR_TIMEOUT);
    hvt_job_open_gate(0);
    hvt_batch_expect(worker, batch);
    expect_failure("cuIpcOpenMemHandle");
    hvi_fence_fini(&hvt_ranks[0].fences);
}
END_TEST

START_TEST(an_open_that_finds_the_context_broken_ends_the_worker_with_the_reason)
{
    const struct hvt_worker_wish wish = {0};

    hvt_job_start(1, "hvdd-gpu/broken-open", &wish);
    import_anything();
    hvt_engine_expect_ack(worker, 1, HVI_ERR_UNSUPPORTED);
    expect_failure("cuIpcOpenMemHandle: CUDA_ERROR_ILLEGAL_ADDRESS");
}
END_TEST

/* What P4 may say: no store of a CPU releases a stream. */
START_TEST(streams_that_do_not_run_dry_end_the_worker)
{
    const struct hvt_worker_wish wish = {0};

    start_pair("hvdd-gpu/deaf", &wish);
    uint64_t batch = allreduce(1, COUNT);
    expect_launched(batch);
    nap(5);
    hvt_engine_close(worker);
    expect_failure("not over after 2 s");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("gpu_launch");
    TCase *tcase = tcase_create("launch"), *faulty = tcase_create("faulty");

    tcase_add_checked_fixture(tcase, setup, hvt_job_end);
    tcase_add_checked_fixture(faulty, NULL, hvt_job_end);
    tcase_add_test(tcase, ranks_of_one_gpu_are_summed_once_all_of_their_streams_have_come);
    tcase_add_test(tcase, a_cancelled_batch_runs_through_and_writes_nothing);
    tcase_add_test(tcase, of_a_cancelled_batch_no_block_of_many_writes);
    tcase_add_test(tcase, a_batch_that_waits_is_not_told_to_have_begun);
    tcase_add_test(tcase, a_batch_without_waits_behind_one_that_waits_is_not_told_to_have_begun);
    tcase_add_test(faulty, one_gpu_is_asked_for_one_kernel_and_a_look_where_there_are_many_blocks);
    tcase_add_test(tcase, many_batches_follow_each_other);
    tcase_add_test(tcase, batches_that_cannot_be_timed_are_answered_without_a_time);
    tcase_add_test(tcase, a_gated_set_does_not_hold_up_another);
    tcase_add_test(faulty, a_gated_set_does_not_hold_up_another_by_a_kernels_first_launch);
    tcase_add_test(tcase, a_stream_that_is_full_takes_no_more_until_it_has_room);
    tcase_add_test(tcase, a_long_batch_goes_into_its_stream_in_portions);
    tcase_add_test(tcase, a_lie_ends_its_engine_and_no_other);
    tcase_add_test(tcase, the_end_of_an_engine_releases_all_and_leaves_memory_to_the_next);
    tcase_add_test(tcase, the_poison_of_a_dead_engines_pages_outlasts_its_batches);
    tcase_add_test(tcase, the_end_of_a_session_lets_its_batches_run_through);
    tcase_add_test(tcase, memory_is_given_back_when_its_batches_are_over);
    tcase_add_test(faulty, of_a_timed_batch_the_answer_says_what_the_stream_took_without_its_wait);
    tcase_add_test(tcase, a_worker_that_passes_to_another_job_has_nothing_of_the_one_before);
    tcase_add_test(faulty, a_worker_that_cannot_pass_ends_with_the_reason);
    tcase_add_test(faulty, a_broken_context_ends_the_worker_with_the_reason);
    tcase_add_test(faulty, what_it_has_of_memory_is_said_with_a_beat_when_it_has_changed);
    tcase_add_test(faulty, memory_and_pages_are_closed_when_no_stream_has_anything);
    tcase_add_test(faulty, an_open_that_does_not_end_ends_the_worker_with_the_reason);
    tcase_add_test(faulty, a_worker_that_has_stood_still_gives_calls_their_time_anew);
    tcase_add_test(faulty, a_batch_that_is_younger_than_an_open_excuses_nothing);
    tcase_add_test(faulty, an_open_has_its_time_from_the_end_of_the_batches_that_are_older);
    tcase_add_test(faulty, an_open_that_finds_the_context_broken_ends_the_worker_with_the_reason);
    tcase_add_test(faulty, streams_that_do_not_run_dry_end_the_worker);
    suite_add_tcase(suite, tcase);
    suite_add_tcase(suite, faulty);
    return hvt_run_suite(suite);
}
