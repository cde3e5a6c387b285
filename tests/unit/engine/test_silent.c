/* SPDX-License-Identifier: Apache-2.0
 * Operands in memory of a trainer that does not answer: behind a userfaultfd of this process, which plays
 * the trainers, too. */
#include "base/status.h"
#include "daemon/engine/sessions/complete.h"
#include "daemon/engine/sessions/intake.h"
#include "daemon/engine/watch/stall.h"
#include "tests/unit/engine/hvt_ops.h"
#include "tests/unit/hvt_main.h"
#include "tests/unit/hvt_process.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define BYTES     (128u * 1024)
#define FLOATS    (BYTES / 4)
#define ANSWER_NS (150 * HVI_NS_MS)
/* hvt_node_defaults has 2 threads. */
#define AWAY_MOST 18
/* More than the main thread does at once. */
#define QUEUED_FLOATS 20000u

static struct hvt_bench bench;
static int bench_threads; /* while none of them waits */
static int fault_fd;

/* ---- memory ---- */

static bool cannot_wait(void)
{
    struct uffdio_api api = {.api = UFFD_API};

    fault_fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    return fault_fd < 0 || ioctl(fault_fd, UFFDIO_API, &api) != 0;
}

static struct uffdio_range half_of(const float *memory, uint32_t half, uint64_t bytes)
{
    return (struct uffdio_range){.start = (uint64_t)(uintptr_t)memory + half * bytes / 2,
                                 .len = bytes / 2};
}

/* Ones; one half is not there. */
static float *half_silent_memory(uint32_t half, uint64_t bytes)
{
    float *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct uffdio_register reg = {.mode = UFFDIO_REGISTER_MODE_MISSING};

    ck_assert_ptr_ne(memory, MAP_FAILED);
    for (uint64_t i = 0; i < bytes / 8; i++)
        memory[(1 - half) * bytes / 8 + i] = 1;
    reg.range = half_of(memory, half, bytes);
    ck_assert_int_eq(ioctl(fault_fd, UFFDIO_REGISTER, &reg), 0);
    return memory;
}

static float *silent_memory(void)
{
    return half_silent_memory(1, BYTES);
}

/* Its pages are zeros now. */
static void answer_half(const float *memory, uint32_t half, uint64_t bytes)
{
    struct uffdio_range range = half_of(memory, half, bytes);

    ck_assert_int_eq(ioctl(fault_fd, UFFDIO_UNREGISTER, &range), 0);
}

static void answer(const float *memory)
{
    answer_half(memory, 1, BYTES);
}

/* So many threads wait for pages. */
static void wait_for_faults(int count)
{
    uint64_t deadline_ns = hvi_deadline_after(HVT_DEADLINE_NS);
    struct uffd_msg msg;

    while (count > 0) {
        ck_assert(!hvi_deadline_passed(deadline_ns));
        count -= read(fault_fd, &msg, sizeof msg) == sizeof msg;
        sched_yield();
    }
}

/* ---- ops ---- */

static struct hvi_submission op_of(int32_t rank, const char *name, const float *in, float *out)
{
    struct hvi_submission op = hvt_op(&bench, rank, HVI_KIND_ALLREDUCE, FLOATS, name, 0);

    op.in_region = op.out_region = HVI_REGION_PROCESS;
    op.in_offset = (uint64_t)(uintptr_t)in;
    op.out_offset = (uint64_t)(uintptr_t)out;
    return op;
}

static void fill(float *memory, float value)
{
    for (uint32_t i = 0; i < FLOATS; i++)
        memory[i] = value;
}

/* Rank 0 has memory that answers. */
static void submit(const char *name, const float *in, float *out)
{
    static float peers[FLOATS];
    struct hvi_submission op = op_of(0, name, peers, peers);

    fill(peers, 1);
    hvt_peer_submit(&bench.peers[0], &op);
    op = op_of(1, name, in, out);
    hvt_peer_submit(&bench.peers[1], &op);
}

/* What the loop does, without waiting for what executes. */
static void turn(void)
{
    struct engine *engine = bench.engine;

    engine_intake_drain_all(&engine->sessions);
    engine_dispatch_ready(&engine->exec);
    engine_dispatch_watch(&engine->exec);
    engine_dispatch_reap(&engine->exec);
    engine_complete_ring(&engine->sessions);
    while (engine_sessions_reap(&engine->sessions)) {
    }
    sched_yield();
}

static void turn_until_answered(int32_t rank)
{
    uint64_t deadline_ns = hvi_deadline_after(HVT_DEADLINE_NS);

    while (!hvt_peer_has_completion(&bench.peers[rank])) {
        ck_assert(!hvi_deadline_passed(deadline_ns));
        turn();
    }
}

/* Rows of the stall table, of which the only one is checked. */
static size_t rows(const char *side)
{
    struct hvi_stall_row *table = NULL;
    uint64_t left_out = 0;
    size_t count = 0;

    ck_assert_int_eq(engine_stall_rows(&bench.engine->watch, 0, 4, &table, &count, &left_out),
                     HVI_OK);
    ck_assert_uint_le(count, 1);
    if (count == 1) {
        ck_assert_str_eq(table[0].tensor, "w");
        ck_assert_uint_eq(table[0].ready_count, 1);
        ck_assert_uint_eq(table[0].missing_count, 1);
        ck_assert_int_eq(table[0].missing[0].rank, 1);
        ck_assert_int_eq(table[0].missing[0].pid, getpid());
        ck_assert_ptr_nonnull(strstr(table[0].missing[0].waits_in, side));
    }
    engine_stall_rows_free(table, count);
    return count;
}

static void turn_until_listed(const char *side)
{
    uint64_t deadline_ns = hvi_deadline_after(HVT_DEADLINE_NS);

    while (rows(side) == 0) {
        ck_assert(!hvi_deadline_passed(deadline_ns));
        turn();
    }
}

static void turn_until_threads(int count, bool turns)
{
    uint64_t deadline_ns = hvi_deadline_after(HVT_DEADLINE_NS);

    while (hvt_count_threads() != count) {
        ck_assert(!hvi_deadline_passed(deadline_ns));
        if (turns)
            turn();
    }
}

static void init(int32_t ranks, uint64_t answer_ns)
{
    hvt_bench_init(&bench, ranks);
    bench.engine->exec.answer_ns = answer_ns;
    bench_threads = hvt_count_threads();
}

/* All memory has answered, so lost threads end. The buffer of one that has not is closed, and
 * LeakSanitizer would read it. */
static void fini(void)
{
    turn_until_threads(bench_threads, true);
    turn(); /* replaces a lost thread that could not be replaced before: it counts from now on */
    turn_until_threads(bench_threads, true);
    hvt_bench_fini(&bench);
}

/* libgcc_s is loaded. */
static bool can_unwind(void)
{
    void *library = dlopen("libgcc_s.so.1", RTLD_NOW | RTLD_NOLOAD);

    if (library)
        dlclose(library);
    return library != NULL;
}

START_TEST(the_op_is_listed_and_fails_and_a_late_answer_moves_nothing)
{
    if (hvt_skip_if(cannot_wait(), "no userfaultfd for faults of the kernel"))
        return;
    static float other[FLOATS];
    float *memory = silent_memory();
    bool writing = _i == 1;

    init(2, HVI_NS_SEC); /* long enough for the row to be seen */
    bool could_unwind = can_unwind();
    fill(other, 5);
    submit("w", writing ? other : memory, writing ? memory : other);
    turn_until_listed(writing ? "(output, 0x" : "(input, 0x");
    turn_until_answered(0);
    for (int32_t rank = 0; rank < 2; rank++) {
        char text[HVI_TEXT_MAX + 1];
        struct hvi_completion done = hvt_peer_complete(&bench.peers[rank], text, sizeof text);
        ck_assert_int_eq(done.status, HVI_ERR_STALLED);
        ck_assert_int_eq(done.culprit, 1);
        ck_assert_ptr_nonnull(strstr(text, "of rank 1 (pid "));
        ck_assert_ptr_nonnull(strstr(text, "its memory has not answered for 1."));
    }
    ck_assert_uint_eq(rows(""), 0);
    answer(memory);
    turn_until_threads(bench_threads, true);
    ck_assert(could_unwind || !can_unwind()); /* such a thread needs no library for its end */
    for (uint32_t i = 0; i < FLOATS; i++)
        ck_assert(other[i] == 5 && memory[i] == (i < FLOATS / 2));
    submit("w", memory, other);
    turn_until_answered(1);
    hvt_op_expect_all(&bench, 0, 1, HVI_OK, "");
    fini();
    munmap(memory, BYTES);
}
END_TEST

START_TEST(memory_that_answers_in_time_is_moved)
{
    if (hvt_skip_if(cannot_wait(), "no userfaultfd for faults of the kernel"))
        return;
    static float other[FLOATS];
    float *memory = silent_memory();

    init(2, 10 * HVI_NS_SEC);
    submit("w", memory, other);
    turn_until_listed("(input, 0x");
    turn();
    answer(memory);
    turn_until_answered(1);
    hvt_op_expect_all(&bench, 0, 1, HVI_OK, "");
    ck_assert(other[0] == 2 && other[FLOATS - 1] == 1);
    ck_assert_uint_eq(rows(""), 0);
    fini();
    munmap(memory, BYTES);
}
END_TEST

START_TEST(time_in_which_the_engine_stands_still_does_not_count)
{
    if (hvt_skip_if(cannot_wait(), "no userfaultfd for faults of the kernel"))
        return;
    static float other[FLOATS];
    float *memory = silent_memory();

    init(2, 5 * ANSWER_NS);
    submit("w", memory, other);
    turn();
    wait_for_faults(1);
    turn();
    usleep(6 * ANSWER_NS / 1000);
    turn();
    answer(memory);
    turn_until_answered(1);
    hvt_op_expect_all(&bench, 0, 1, HVI_OK, "");
    fini();
    munmap(memory, BYTES);
}
END_TEST

/* Rank 0, whose memory answers, leaves while the engine waits for rank 1's. */
START_TEST(the_end_of_another_session_is_told_as_what_it_is)
{
    if (hvt_skip_if(cannot_wait(), "no userfaultfd for faults of the kernel"))
        return;
    static float other[FLOATS];
    float *memory = silent_memory();

    init(2, 3600 * HVI_NS_SEC);
    submit("w", memory, other);
    turn();
    engine_session_end(bench.engine->sessions.ranks[0].session, ENGINE_RANK_LEFT, "it leaves");
    turn_until_answered(1);
    struct hvi_completion done = hvt_op_expect(&bench, 1, HVI_ERR_RANK_LEFT, "it leaves");
    ck_assert_int_eq(done.culprit, 0);
    answer(memory);
    fini();
    munmap(memory, BYTES);
}
END_TEST

START_TEST(the_end_of_a_session_does_not_wait)
{
    if (hvt_skip_if(cannot_wait(), "no userfaultfd for faults of the kernel"))
        return;
    static float other[FLOATS];
    float *memory = silent_memory();

    init(2, 3600 * HVI_NS_SEC);
    submit("w", memory, other);
    turn();
    engine_session_end(bench.engine->sessions.ranks[1].session, ENGINE_RANK_LEFT, "it leaves");
    turn_until_answered(0);
    hvt_op_expect(&bench, 0, HVI_ERR_RANK_LEFT, "it leaves");
    answer(memory);
    fini();
    munmap(memory, BYTES);
}
END_TEST

/* An op that the liar has no part in waits on, and ends well. */
START_TEST(a_rank_that_breaks_the_protocol_costs_others_no_time_and_no_op)
{
    if (hvt_skip_if(cannot_wait(), "no userfaultfd for faults of the kernel"))
        return;
    static float other[FLOATS];
    float *memory = silent_memory();

    init(3, 3600 * HVI_NS_SEC);
    uint32_t set = hvt_op_add_set(&bench, (const int64_t[]){0, 1}, 2);
    for (int32_t rank = 0; rank < 2; rank++) {
        struct hvi_submission op = op_of(rank, "w", rank == 0 ? other : memory, other);
        op.process_set = set;
        hvt_peer_submit(&bench.peers[rank], &op);
    }
    turn_until_listed("(input, 0x");
    uint64_t before_ns = hvi_clock_ns();
    engine_session_violation(bench.engine->sessions.ranks[2].session, "a lie");
    turn();
    ck_assert_uint_eq(bench.peers[2].channel.header->session_state, HVI_SESSION_ENDED);
    ck_assert_uint_lt(hvi_clock_ns() - before_ns, hvt_patience(HVI_NS_SEC));
    ck_assert_uint_eq(rows("(input, 0x"), 1);
    answer(memory);
    turn_until_answered(1);
    hvt_op_expect_all(&bench, 0, 1, HVI_OK, "");
    fini();
    munmap(memory, BYTES);
}
END_TEST

/* The engine maps a new region 1 of the rank's. */
static const struct engine_region *map_region(int32_t rank, uint64_t bytes)
{
    struct engine_regions *regions = &bench.engine->sessions.ranks[rank].session->regions;
    struct hvi_region region;

    ck_assert_int_eq(hvi_region_create("hvt", bytes, &region), HVI_OK);
    const struct hvi_region_add add = {.region = 1, .bytes = region.bytes};
    ck_assert_int_eq(engine_regions_add(regions, &add, region.fd), HVI_OK);
    region.fd = -1; /* the engine's */
    hvi_region_fini(&region);
    return engine_regions_find(regions, 1);
}

/* Two wait for memory, which is all threads; the third could be done by the main thread. */
START_TEST(a_job_that_is_stopped_does_not_do_what_is_queued)
{
    if (hvt_skip_if(cannot_wait(), "no userfaultfd for faults of the kernel"))
        return;
    static float other[FLOATS], another[FLOATS];
    float *first = silent_memory(), *second = silent_memory();
    uint64_t deadline_ns;

    init(2, 3600 * HVI_NS_SEC);
    for (int32_t rank = 0; rank < 2; rank++)
        memset(hvt_op_memory(&bench, rank), 0x3f, QUEUED_FLOATS * 4);
    submit("w0", first, other);
    submit("w1", second, another);
    for (int32_t rank = 0; rank < 2; rank++) {
        struct hvi_submission op =
            hvt_op(&bench, rank, HVI_KIND_ALLREDUCE, QUEUED_FLOATS, "queued", 0);
        hvt_peer_submit(&bench.peers[rank], &op);
    }
    engine_intake_drain_all(&bench.engine->sessions);
    engine_dispatch_ready(&bench.engine->exec);
    engine_sessions_stop(&bench.engine->sessions, "enough");
    deadline_ns = hvi_deadline_after(HVT_DEADLINE_NS);
    while (bench.engine->exec.running) {
        ck_assert(!hvi_deadline_passed(deadline_ns));
        engine_dispatch_help(&bench.engine->exec);
        turn();
    }
    for (int32_t rank = 0; rank < 2; rank++)
        ck_assert_uint_eq(bench.peers[rank].channel.header->session_state, HVI_SESSION_ENDED);
    for (uint32_t i = 0; i < QUEUED_FLOATS * 4; i++) {
        if (((const char *)hvt_op_memory(&bench, 0))[i] != 0x3f)
            ck_abort_msg("byte %u was written", i);
    }
    answer(first);
    answer(second);
    fini();
    munmap(first, BYTES);
    munmap(second, BYTES);
}
END_TEST

/* It is read straight to where the result will be. */
START_TEST(a_mapped_output_stays_mapped)
{
    if (hvt_skip_if(cannot_wait(), "no userfaultfd for faults of the kernel"))
        return;
    static float peers[FLOATS];
    float *memory = silent_memory();

    init(2, ANSWER_NS);
    struct engine_regions *regions = &bench.engine->sessions.ranks[1].session->regions;
    const struct engine_region *region = map_region(1, BYTES);
    struct hvi_submission op = op_of(0, "w", peers, peers);
    hvt_peer_submit(&bench.peers[0], &op);
    op = op_of(1, "w", memory, NULL);
    op.out_region = 1;
    op.out_offset = 0;
    hvt_peer_submit(&bench.peers[1], &op);
    turn_until_answered(1);
    hvt_op_expect_all(&bench, 0, 1, HVI_ERR_STALLED, NULL);
    ck_assert(region->kept);
    ck_assert_int_eq(engine_regions_remove(regions, 1), HVI_OK);
    ck_assert_uint_eq(regions->bytes, BYTES); /* it counts against region-limit as before */
    ck_assert_uint_eq(regions->count, 1);
    answer(memory);
    fini();
    munmap(memory, BYTES);
}
END_TEST

/* Two threads wait, each in a unit of its own, and the op has one fault only. */
START_TEST(each_mapped_output_stays_mapped)
{
    if (hvt_skip_if(cannot_wait(), "no userfaultfd for faults of the kernel"))
        return;
    enum { LARGE = 512 * 1024 };
    const struct engine_region *regions[2];
    float *memory[2];

    init(2, ANSWER_NS);
    for (int32_t rank = 0; rank < 2; rank++) {
        memory[rank] = half_silent_memory((uint32_t)rank, LARGE);
        regions[rank] = map_region(rank, LARGE);
        struct hvi_submission op =
            hvt_op(&bench, rank, HVI_KIND_ALLREDUCE, LARGE / sizeof(float), "w", 0);
        op.in_region = HVI_REGION_PROCESS;
        op.in_offset = (uint64_t)(uintptr_t)memory[rank];
        op.out_region = 1;
        hvt_peer_submit(&bench.peers[rank], &op);
    }
    engine_intake_drain_all(&bench.engine->sessions);
    engine_dispatch_ready(&bench.engine->exec);
    wait_for_faults(2);
    turn_until_answered(1);
    hvt_op_expect_all(&bench, 0, 1, HVI_ERR_STALLED, NULL);
    ck_assert(regions[0]->kept);
    ck_assert(regions[1]->kept);
    for (uint32_t rank = 0; rank < 2; rank++)
        answer_half(memory[rank], rank, LARGE);
    fini();
    for (uint32_t rank = 0; rank < 2; rank++)
        munmap(memory[rank], LARGE);
}
END_TEST

START_TEST(threads_that_wait_are_bounded)
{
    if (hvt_skip_if(cannot_wait(), "no userfaultfd for faults of the kernel"))
        return;
    enum { OPS = AWAY_MOST + 4 };
    static float other[FLOATS];
    float *memory[OPS];
    int silent = 0, refused = 0;

    init(2, ANSWER_NS);
    for (int i = 0; i < OPS; i++) {
        char name[16];
        snprintf(name, sizeof name, "w%d", i);
        submit(name, memory[i] = silent_memory(), other);
    }
    for (int i = 0; i < OPS; i++) {
        char text[HVI_TEXT_MAX + 1];
        turn_until_answered(1);
        int status = hvt_peer_complete(&bench.peers[1], text, sizeof text).status;
        silent += status == HVI_ERR_STALLED;
        refused += status == HVI_ERR_LIMIT;
    }
    ck_assert_int_eq(silent + refused, OPS);
    ck_assert_int_ge(silent, AWAY_MOST);
    ck_assert_int_le(silent, AWAY_MOST + 1); /* two may begin to wait at once */
    for (int i = 0; i < OPS; i++)
        answer(memory[i]);
    int status = HVI_ERR_LIMIT;
    for (int i = 0; status == HVI_ERR_LIMIT; i++) { /* until the threads have come back */
        char text[HVI_TEXT_MAX + 1];
        submit("w", other, other);
        turn_until_answered(1);
        status = hvt_peer_complete(&bench.peers[1], text, sizeof text).status;
        ck_assert_int_lt(i, 10000);
    }
    ck_assert_int_eq(status, HVI_OK);
    fini();
    for (int i = 0; i < OPS; i++)
        munmap(memory[i], BYTES);
}
END_TEST

/* The round ends while no unit may be begun, and with it one of the threads that wait. */
START_TEST(an_op_of_several_rounds_goes_on_when_a_thread_has_come_back)
{
    if (hvt_skip_if(cannot_wait(), "no userfaultfd for faults of the kernel"))
        return;
    static float other[FLOATS];
    float *memory[AWAY_MOST];

    init(2, 3600 * HVI_NS_SEC);
    for (int i = 0; i < AWAY_MOST; i++) {
        char name[16];
        snprintf(name, sizeof name, "w%d", i);
        memory[i] = silent_memory();
        for (int32_t rank = 0; rank < 2; rank++) {
            struct hvi_submission op = op_of(rank, name, rank == 1 ? memory[i] : other, other);
            op.reduce_op = i == 0 ? HVI_REDUCE_ADASUM : HVI_REDUCE_SUM;
            hvt_peer_submit(&bench.peers[rank], &op);
        }
    }
    turn_until_threads(bench_threads + AWAY_MOST, true);
    answer(memory[0]);
    turn_until_threads(bench_threads + AWAY_MOST - 1, false);
    turn_until_answered(1);
    hvt_op_expect_all(&bench, 0, 1, HVI_OK, "");
    for (int i = 1; i < AWAY_MOST; i++)
        answer(memory[i]);
    fini();
    for (int i = 0; i < AWAY_MOST; i++)
        munmap(memory[i], BYTES);
}
END_TEST

static void limit_memory(rlim_t bytes)
{
    struct rlimit limit = {.rlim_cur = bytes, .rlim_max = RLIM_INFINITY};

    ck_assert_int_eq(setrlimit(RLIMIT_AS, &limit), 0);
}

/* A bench has two workers. */
START_TEST(without_new_threads_no_op_waits_for_ever)
{
    if (hvt_skip_if(HVT_SANITIZED, "a sanitizer needs the address space itself") ||
        hvt_skip_if(cannot_wait(), "no userfaultfd for faults of the kernel"))
        return;
    static float other[FLOATS];
    float *memory[2] = {silent_memory(), silent_memory()};

    init(2, 3600 * HVI_NS_SEC);
    limit_memory(1 << 20);
    submit("w0", memory[0], other);
    submit("w1", memory[1], other);
    submit("w2", other, other); /* behind the two */
    turn_until_answered(1);
    hvt_op_expect_all(&bench, 0, 1, HVI_ERR_LIMIT, NULL);
    submit("w3", other, other);
    turn_until_answered(1);
    hvt_op_expect_all(&bench, 0, 1, HVI_ERR_LIMIT, NULL);
    limit_memory(RLIM_INFINITY);
    turn();
    submit("w4", other, other);
    turn_until_answered(1);
    hvt_op_expect_all(&bench, 0, 1, HVI_OK, "");
    for (int i = 0; i < 2; i++) {
        answer(memory[i]);
        turn_until_answered(1);
        hvt_op_expect_all(&bench, 0, 1, HVI_OK, "");
    }
    fini();
    for (int i = 0; i < 2; i++)
        munmap(memory[i], BYTES);
}
END_TEST

START_TEST(the_time_is_the_jobs_setting)
{
    static const struct {
        char *value;
        uint64_t answer_ns;
    } cases[] = {{"2.5", 2500 * HVI_NS_MS}, {"0", 10 * HVI_NS_SEC}, {"soon", 10 * HVI_NS_SEC}};

    hvt_bench_init(&bench, 1);
    ck_assert_uint_eq(bench.engine->exec.answer_ns, 10 * HVI_NS_SEC);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct engine_stall_settings set = {.memory_timeout = cases[i].value};
        engine_stall_configure(&bench.engine->watch, &set);
        ck_assert_uint_eq(bench.engine->exec.answer_ns, cases[i].answer_ns);
    }
    hvt_bench_fini(&bench);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine/silent");
    TCase *tcase = tcase_create("silent");

    tcase_add_loop_test(tcase, the_op_is_listed_and_fails_and_a_late_answer_moves_nothing, 0, 2);
    tcase_add_test(tcase, memory_that_answers_in_time_is_moved);
    tcase_add_test(tcase, time_in_which_the_engine_stands_still_does_not_count);
    tcase_add_test(tcase, the_end_of_a_session_does_not_wait);
    tcase_add_test(tcase, the_end_of_another_session_is_told_as_what_it_is);
    tcase_add_test(tcase, a_job_that_is_stopped_does_not_do_what_is_queued);
    tcase_add_test(tcase, a_rank_that_breaks_the_protocol_costs_others_no_time_and_no_op);
    tcase_add_test(tcase, a_mapped_output_stays_mapped);
    tcase_add_test(tcase, each_mapped_output_stays_mapped);
    tcase_add_test(tcase, threads_that_wait_are_bounded);
    tcase_add_test(tcase, an_op_of_several_rounds_goes_on_when_a_thread_has_come_back);
    tcase_add_test(tcase, without_new_threads_no_op_waits_for_ever);
    tcase_add_test(tcase, the_time_is_the_jobs_setting);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
