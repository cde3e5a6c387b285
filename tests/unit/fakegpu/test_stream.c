/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fakegpu/cuda_abi.h"
#include "tests/fakegpu/hvt_fakegpu.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#define POISON ((uint64_t)INT64_MAX)

static _Alignas(4096) _Atomic uint64_t page[512];

/* A word of host memory, as the device sees it. */
static hvi_cu_ptr host_word(void)
{
    hvi_cu_ptr address;

    HVT_CU(hvt_cu.host_register(page, sizeof(page), HVI_CU_HOST_PORTABLE | HVI_CU_HOST_DEVICEMAP));
    HVT_CU(hvt_cu.host_pointer(&address, page, 0));
    return address;
}

START_TEST(a_wait_is_signed_and_cyclic)
{
    static const struct {
        uint64_t word, value;
        bool passes;
    } rows[] = {
        {5, 5, true},
        {4, 5, false},
        {POISON, 7, true},
        {POISON, POISON - 1, true},
        {2, UINT64_MAX, true},
        {UINT64_C(1) << 63, 1, true},
        {(UINT64_C(1) << 63) + 1, 1, false},
    };

    hvt_cu_begin("", "", 0);
    hvi_cu_ptr word = host_word();
    for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        hvi_cu_stream stream = hvt_cu_stream();
        atomic_store(page, rows[i].word);
        HVT_CU(hvt_cu.wait64(stream, word, rows[i].value, 0));
        ck_assert_msg(rows[i].passes ? hvt_cu_ends(stream) : hvt_cu_waits(stream), "row %u", i);
        atomic_store(page, rows[i].value);
        ck_assert(hvt_cu_ends(stream));
        HVT_CU(hvt_cu.stream_destroy(stream));
    }
}
END_TEST

START_TEST(a_streams_write_a_copy_and_a_cpus_store_release_a_wait)
{
    static const uint64_t five = 5;

    hvt_cu_begin("", "", 0);
    hvi_cu_stream waiter = hvt_cu_stream(), other = hvt_cu_stream();
    hvi_cu_ptr host = host_word(), device = hvt_cu_alloc(64);
    HVT_CU(hvt_cu.wait64(waiter, host, 1, 0));
    ck_assert(hvt_cu_waits(waiter));
    atomic_store(page, 1);
    ck_assert(hvt_cu_ends(waiter));
    HVT_CU(hvt_cu.wait64(waiter, device, 5, 0));
    ck_assert(hvt_cu_waits(waiter));
    HVT_CU(hvt_cu.copy_in(device, &five, sizeof(five), other));
    ck_assert(hvt_cu_ends(other));
    ck_assert_uint_eq(atomic_load(hvt_cu_word(device)), 5);
    ck_assert(hvt_cu_ends(waiter));
    HVT_CU(hvt_cu.wait64(waiter, device, 6, 0));
    ck_assert(hvt_cu_waits(waiter));
    HVT_CU(hvt_cu.write64(other, device, 6, 0));
    ck_assert(hvt_cu_ends(waiter));
    HVT_CU(hvt_cu.wait64(waiter, device, 5, 0)); /* it is there already, however it came */
    ck_assert(hvt_cu_ends(waiter));
}
END_TEST

START_TEST(with_the_other_answer_no_store_of_a_cpu_releases)
{
    hvt_cu_begin("", "deaf", 0);
    hvi_cu_stream waiter = hvt_cu_stream(), other = hvt_cu_stream();
    hvi_cu_ptr host = host_word();
    HVT_CU(hvt_cu.wait64(waiter, host, 1, 0));
    ck_assert(hvt_cu_waits(waiter));
    atomic_store(page, 1);
    ck_assert(hvt_cu_waits(waiter));
    HVT_CU(hvt_cu.write64(other, host, 1, 0));
    ck_assert(hvt_cu_ends(waiter));
}
END_TEST

START_TEST(a_batch_goes_in_order_and_has_fewer_than_256_operations)
{
    static union hvi_cu_memop ops[256];

    hvt_cu_begin("", "", 0);
    hvi_cu_stream stream = hvt_cu_stream();
    hvi_cu_ptr word = host_word();
    for (unsigned i = 0; i < 256; i++)
        ops[i] = (union hvi_cu_memop){.op = {HVI_CU_MEMOP_WRITE_64, word + i * 8, i + 1, 0, 0}};
    ops[0].op.operation = HVI_CU_MEMOP_WAIT_64;
    ck_assert_int_eq(hvt_cu.memops(stream, 256, ops, 0), HVI_CU_INVALID_VALUE);
    HVT_CU(hvt_cu.memops(stream, 255, ops, 0));
    ck_assert(hvt_cu_waits(stream));
    ck_assert_uint_eq(atomic_load(&page[1]), 0);
    atomic_store(page, 1);
    ck_assert(hvt_cu_ends(stream));
    ck_assert_uint_eq(atomic_load(&page[254]), 255);
}
END_TEST

START_TEST(a_word_that_is_not_registered_not_aligned_or_not_here_is_an_error)
{
    static _Alignas(4096) uint64_t stranger[512];

    hvt_cu_begin("devices=2", "", 0);
    hvi_cu_stream stream = hvt_cu_stream();
    hvi_cu_ptr word = host_word();
    hvi_cu_context context;
    ck_assert_int_eq(hvt_cu.write64(stream, (uintptr_t)stranger, 1, 0), HVI_CU_INVALID_VALUE);
    ck_assert_int_eq(hvt_cu.write64(stream, word + 4, 1, 0), HVI_CU_INVALID_VALUE);
    ck_assert_int_eq(hvt_cu.wait64(stream, word + sizeof(page), 1, 0), HVI_CU_INVALID_VALUE);
    ck_assert_int_eq(hvt_cu.wait64(stream, word, 1, 1), HVI_CU_INVALID_VALUE);
    HVT_CU(hvt_cu.context_retain(&context, 1));
    HVT_CU(hvt_cu.context_set(context));
    ck_assert_int_eq(hvt_cu.write64(stream, word, 1, 0), FAKE_INVALID_HANDLE);
    hvi_cu_ptr other = hvt_cu_alloc(8);
    HVT_CU(hvt_cu.context_retain(&context, 0));
    HVT_CU(hvt_cu.context_set(context));
    ck_assert_int_eq(hvt_cu.write64(stream, other, 1, 0), HVI_CU_INVALID_VALUE);
    HVT_CU(hvt_cu.host_unregister(page));
    ck_assert_int_eq(hvt_cu.host_unregister(page), FAKE_NOT_REGISTERED);
}
END_TEST

START_TEST(without_memory_operations_they_are_not_supported)
{
    hvt_cu_begin("", "no-memops", 0);
    ck_assert_int_eq(hvt_cu.write64(NULL, host_word(), 1, 0), HVI_CU_NOT_SUPPORTED);
}
END_TEST

START_TEST(a_gated_stream_blocks_those_of_its_connection_and_no_others)
{
    hvi_cu_stream streams[8];

    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "4", 1);
    hvt_cu_begin("", "", 0);
    hvi_cu_ptr word = host_word();
    for (unsigned i = 0; i < 8; i++)
        streams[i] = hvt_cu_stream();
    HVT_CU(hvt_cu.wait64(streams[1], word, 1, 0));
    for (unsigned i = 0; i < 8; i++)
        HVT_CU(hvt_cu.write64(streams[i], word + 64, 1, 0));
    for (unsigned i = 0; i < 8; i++)
        ck_assert_msg(i % 4 == 1 ? hvt_cu_waits(streams[i]) : hvt_cu_ends(streams[i]), "%u", i);
    atomic_store(page, 1);
    ck_assert(hvt_cu_ends(streams[1]) && hvt_cu_ends(streams[5]));
}
END_TEST

START_TEST(the_default_stream_waits_for_blocking_ones_and_they_for_it)
{
    hvi_cu_stream blocking;

    hvt_cu_begin("", "", 0);
    hvi_cu_stream free_one = hvt_cu_stream();
    hvi_cu_ptr word = host_word();
    HVT_CU(hvt_cu.stream_create(&blocking, 0));
    HVT_CU(hvt_cu.wait64(blocking, word, 1, 0));
    HVT_CU(hvt_cu.write64(NULL, word + 8, 7, 0));
    HVT_CU(hvt_cu.write64(free_one, word + 16, 8, 0));
    ck_assert(hvt_cu_ends(free_one));
    ck_assert(hvt_cu_waits(NULL));
    atomic_store(page, 1);
    ck_assert(hvt_cu_ends(NULL));
    HVT_CU(hvt_cu.wait64((hvi_cu_stream)1, word + 24, 1, 0)); /* the same as NULL */
    HVT_CU(hvt_cu.write64(blocking, word + 32, 1, 0));
    HVT_CU(hvt_cu.write64((hvi_cu_stream)2, word + 40, 1, 0));
    ck_assert(hvt_cu_waits(blocking));
    ck_assert(hvt_cu_waits((hvi_cu_stream)2));
    atomic_store(&page[3], 1);
    ck_assert(hvt_cu_ends(blocking));
    ck_assert(hvt_cu_ends((hvi_cu_stream)2));
}
END_TEST

START_TEST(a_stream_that_is_destroyed_does_what_it_has)
{
    hvt_cu_begin("", "", 0);
    hvi_cu_stream stream = hvt_cu_stream();
    hvi_cu_ptr word = host_word();
    HVT_CU(hvt_cu.wait64(stream, word, 1, 0));
    HVT_CU(hvt_cu.write64(stream, word + 8, 9, 0));
    HVT_CU(hvt_cu.stream_destroy(stream));
    ck_assert_int_eq(hvt_cu.stream_query(stream), FAKE_INVALID_HANDLE);
    atomic_store(page, 1);
    for (int i = 0; i < 5000 && atomic_load(&page[1]) != 9; i++)
        hvt_nap(1);
    ck_assert_uint_eq(atomic_load(&page[1]), 9);
}
END_TEST

static void *open_the_gate(void *unused)
{
    hvt_nap(50);
    atomic_store(page, 1);
    return unused;
}

START_TEST(with_strict_synchronisation_an_allocation_waits_for_gated_streams)
{
    const bool is_strict = _i == 1;
    pthread_t thread;

    hvt_cu_begin(is_strict ? "sync=strict" : "", "", 0);
    hvi_cu_stream stream = hvt_cu_stream();
    HVT_CU(hvt_cu.wait64(stream, host_word(), 1, 0));
    if (!is_strict)
        hvt_cu_alloc(8);
    pthread_create(&thread, NULL, open_the_gate, NULL);
    if (is_strict)
        hvt_cu_alloc(8);
    ck_assert(!is_strict || atomic_load(page) == 1);
    pthread_join(thread, NULL);
    ck_assert(hvt_cu_ends(stream));
}
END_TEST

/* A call in a thread of its own, and whether it is over. */
struct beside {
    pthread_t thread;
    hvi_cu_context context;
    int (*call)(void);
    _Atomic bool is_over;
};

static _Alignas(4096) char other_page[4096], third_page[4096];
static hvi_cu_stream free_stream;
static hvi_cu_ptr memory;

static void *call_beside(void *user)
{
    struct beside *beside = user;

    HVT_CU(hvt_cu.context_set(beside->context));
    HVT_CU(beside->call());
    atomic_store(&beside->is_over, true);
    return NULL;
}

static void begin_beside(struct beside *beside, int (*call)(void))
{
    beside->call = call;
    HVT_CU(hvt_cu.context_get(&beside->context));
    ck_assert_int_eq(pthread_create(&beside->thread, NULL, call_beside, beside), 0);
}

static int unregister(void)
{
    return hvt_cu.host_unregister(other_page);
}

static int free_memory(void)
{
    return hvt_cu.free(memory);
}

static int copy(void)
{
    return hvt_cu.copy_in(memory, third_page, 8, free_stream);
}

static int allocate(void)
{
    hvi_cu_ptr address;
    return hvt_cu.alloc(&address, 8);
}

static int register_memory(void)
{
    return hvt_cu.host_register(third_page, sizeof(third_page), HVI_CU_HOST_PORTABLE);
}

START_TEST(a_close_waits_for_gated_streams_and_other_calls_wait_for_it)
{
    static int (*const closes[])(void) = {unregister, free_memory};
    static int (*const blocked[])(void) = {allocate, register_memory, copy};
    struct beside close = {.is_over = false}, others[3] = {{.is_over = false}};
    const int other_count = _i == 0 ? 3 : 2; /* what is copied is what is freed */

    hvt_cu_begin("", "", 0);
    hvi_cu_stream gated = hvt_cu_stream();
    hvi_cu_ptr word = host_word();
    free_stream = hvt_cu_stream();
    memory = hvt_cu_alloc(64);
    HVT_CU(hvt_cu.host_register(other_page, sizeof(other_page), HVI_CU_HOST_PORTABLE));
    HVT_CU(hvt_cu.wait64(gated, word, 1, 0));
    begin_beside(&close, closes[_i]);
    hvt_nap(20);
    HVT_CU(hvt_cu.write64(free_stream, word + 8, 9, 0));
    ck_assert(hvt_cu_ends(free_stream)); /* neither memory operations nor queries wait */
    for (int i = 0; i < other_count; i++)
        begin_beside(&others[i], blocked[i]);
    hvt_nap(20);
    ck_assert(!atomic_load(&close.is_over));
    for (int i = 0; i < other_count; i++)
        ck_assert_msg(!atomic_load(&others[i].is_over), "call %d", i);
    atomic_store(page, 1);
    pthread_join(close.thread, NULL);
    for (int i = 0; i < other_count; i++)
        pthread_join(others[i].thread, NULL);
}
END_TEST

#define CHUNK ((size_t)2 << 20)

static const struct hvi_cu_access mine = {{1, 0}, FAKE_READ_WRITE};
static hvi_cu_allocation chunk;
static int pool_fd;
static void *pool, *imported;

static int map_chunk(void)
{
    return hvt_cu.map(memory, CHUNK, 0, chunk, 0);
}

static int give_access(void)
{
    return hvt_cu.set_access(memory, CHUNK, &mine, 1);
}

static int unmap_chunk(void)
{
    return hvt_cu.unmap(memory, CHUNK);
}

static int import_pool(void)
{
    return hvt_cu.pool_import(&imported, (void *)(intptr_t)pool_fd, HVI_CU_HANDLE_FD, 0);
}

static void make_pool(void)
{
    const struct fake_pool_properties properties = {
        .type = 1, .handle_types = HVI_CU_HANDLE_FD, .location = {1, 0}};
    int (*make)(void **, const struct fake_pool_properties *);
    void *symbol = hvt_cu_symbol("cuMemPoolCreate");

    memcpy(&make, &symbol, sizeof(make));
    HVT_CU(make(&pool, &properties));
    HVT_CU(hvt_cu.pool_export(&pool_fd, pool, HVI_CU_HANDLE_FD, 0));
}

/* What the worker calls to open and to close memory of VMM and of pools. */
START_TEST(with_strict_synchronisation_a_mapping_and_a_pool_wait_for_gated_streams)
{
    static int (*const calls[])(void) = {map_chunk, give_access, unmap_chunk, import_pool};
    const struct hvi_cu_allocation_properties properties = {
        .type = 1, .handle_types = HVI_CU_HANDLE_FD, .location = {1, 0}};
    struct beside call = {.is_over = false};

    hvt_cu_begin(_i < 4 ? "sync=strict" : "", "", 0);
    hvi_cu_stream gated = hvt_cu_stream();
    HVT_CU(hvt_cu.create(&chunk, CHUNK, &properties, 0));
    HVT_CU(hvt_cu.reserve(&memory, CHUNK, 0, 0, 0));
    make_pool();
    if (_i % 4 == 1 || _i % 4 == 2)
        HVT_CU(map_chunk());
    HVT_CU(hvt_cu.wait64(gated, host_word(), 1, 0));
    begin_beside(&call, calls[_i % 4]);
    hvt_nap(20);
    ck_assert_int_eq(atomic_load(&call.is_over), _i >= 4);
    atomic_store(page, 1);
    pthread_join(call.thread, NULL);
    ck_assert(hvt_cu_ends(gated));
    if (imported != NULL)
        HVT_CU(hvt_cu.pool_destroy(imported));
    HVT_CU(hvt_cu.pool_destroy(pool));
    close(pool_fd);
}
END_TEST

static void connect_otherwise(void)
{
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "31", 1);
    hvt_cu_begin("", "connections@32", 0);
}

START_TEST(a_process_with_other_connections_than_it_should_have_is_blamed)
{
    hvt_expect_blame(connect_otherwise, "CUDA_DEVICE_MAX_CONNECTIONS is 31, and not 32");
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
    hvt_cu_begin("", "connections@32", 0);
}
END_TEST

START_TEST(everything_in_a_stream_may_be_late)
{
    struct timespec before, after;

    hvt_cu_begin("", "delay@100000", 0);
    hvi_cu_stream stream = hvt_cu_stream();
    clock_gettime(CLOCK_MONOTONIC, &before);
    HVT_CU(hvt_cu.write64(stream, host_word(), 1, 0));
    HVT_CU(hvt_cu.stream_synchronize(stream));
    clock_gettime(CLOCK_MONOTONIC, &after);
    ck_assert_int_ge(
        (after.tv_sec - before.tv_sec) * 1000 + (after.tv_nsec - before.tv_nsec) / 1000000, 99);
}
END_TEST

static void begin_capture(hvi_cu_stream stream)
{
    int (*begin)(hvi_cu_stream, int);
    void *symbol = hvt_cu_symbol("cuStreamBeginCapture_v2");
    int status = 0;

    memcpy(&begin, &symbol, sizeof(begin));
    HVT_CU(begin(stream, 0));
    HVT_CU(hvt_cu.stream_capturing(stream, &status));
    ck_assert_int_eq(status, 1);
}

static void write_while_captured(void)
{
    hvt_cu_begin("", "", 0);
    hvi_cu_stream stream = hvt_cu_stream();
    hvi_cu_ptr word = host_word();
    begin_capture(stream);
    hvt_cu.write64(stream, word, 1, 0);
}

START_TEST(a_stream_that_is_captured_takes_no_work_and_a_memory_operation_is_a_fault)
{
    hvt_expect_blame(write_while_captured, "a stream that is being captured");
    hvt_cu_begin("", "", 0);
    hvi_cu_stream stream = hvt_cu_stream();
    hvi_cu_ptr from = hvt_cu_alloc(8);
    begin_capture(stream);
    ck_assert_int_eq(hvt_cu.copy(from, from, 8, stream), FAKE_CAPTURE_UNSUPPORTED);
}
END_TEST

START_TEST(a_capture_forbids_registrations_to_threads_that_are_not_relaxed)
{
    int mode = HVI_CU_CAPTURE_RELAXED;

    hvt_cu_begin("", "", 0);
    begin_capture(hvt_cu_stream());
    ck_assert_int_eq(hvt_cu.host_register(page, sizeof(page), 0), FAKE_CAPTURE_UNSUPPORTED);
    HVT_CU(hvt_cu.capture_mode(&mode));
    ck_assert_int_eq(mode, FAKE_CAPTURE_GLOBAL);
    HVT_CU(hvt_cu.host_register(page, sizeof(page), 0));
    HVT_CU(hvt_cu.capture_mode(&mode));
    ck_assert_int_eq(mode, HVI_CU_CAPTURE_RELAXED);
    ck_assert_int_eq(hvt_cu.host_unregister(page), FAKE_CAPTURE_UNSUPPORTED);
}
END_TEST

/* cuEventElapsedTime. */
START_TEST(the_time_between_events_is_known_when_both_are_over_and_have_one)
{
    hvi_cu_event begin, end, silent;
    float ms = -1;

    hvt_cu_begin("", "", 0);
    hvi_cu_ptr word = host_word();
    hvi_cu_stream stream = hvt_cu_stream();
    HVT_CU(hvt_cu.event_create(&begin, 0));
    HVT_CU(hvt_cu.event_create(&end, 0));
    HVT_CU(hvt_cu.event_create(&silent, FAKE_EVENT_NO_TIMING));
    ck_assert_int_eq(hvt_cu.event_create(&silent, FAKE_EVENT_IPC), HVI_CU_INVALID_VALUE);
    ck_assert_int_eq(hvt_cu.event_elapsed(&ms, begin, end), FAKE_INVALID_HANDLE);
    atomic_store(page, 0);
    HVT_CU(hvt_cu.event_record(begin, stream));
    HVT_CU(hvt_cu.event_record(silent, stream));
    HVT_CU(hvt_cu.wait64(stream, word, 1, 0));
    HVT_CU(hvt_cu.event_record(end, stream));
    ck_assert(hvt_cu_waits(stream));
    ck_assert_int_eq(hvt_cu.event_elapsed(&ms, begin, end), HVI_CU_NOT_READY);
    atomic_store(page, 1);
    ck_assert(hvt_cu_ends(stream));
    ck_assert_int_eq(hvt_cu.event_elapsed(&ms, silent, end), FAKE_INVALID_HANDLE);
    HVT_CU(hvt_cu.event_elapsed(&ms, begin, end));
    ck_assert_float_gt(ms, 0);
    HVT_CU(hvt_cu.event_record(begin, stream)); /* once more: it is the last one that counts */
    ck_assert(hvt_cu_ends(stream));
    HVT_CU(hvt_cu.event_elapsed(&ms, begin, end));
    ck_assert_float_lt(ms, 0);
    HVT_CU(hvt_cu.event_destroy(begin));
    HVT_CU(hvt_cu.event_destroy(end));
    HVT_CU(hvt_cu.event_destroy(silent));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("fakegpu stream");
    TCase *tcase = tcase_create("stream");

    tcase_add_test(tcase, a_wait_is_signed_and_cyclic);
    tcase_add_test(tcase, a_streams_write_a_copy_and_a_cpus_store_release_a_wait);
    tcase_add_test(tcase, with_the_other_answer_no_store_of_a_cpu_releases);
    tcase_add_test(tcase, a_batch_goes_in_order_and_has_fewer_than_256_operations);
    tcase_add_test(tcase, a_word_that_is_not_registered_not_aligned_or_not_here_is_an_error);
    tcase_add_test(tcase, without_memory_operations_they_are_not_supported);
    tcase_add_test(tcase, a_gated_stream_blocks_those_of_its_connection_and_no_others);
    tcase_add_test(tcase, the_default_stream_waits_for_blocking_ones_and_they_for_it);
    tcase_add_test(tcase, a_stream_that_is_destroyed_does_what_it_has);
    tcase_add_loop_test(tcase, with_strict_synchronisation_an_allocation_waits_for_gated_streams, 0,
                        2);
    tcase_add_loop_test(
        tcase, with_strict_synchronisation_a_mapping_and_a_pool_wait_for_gated_streams, 0, 8);
    tcase_add_test(tcase, a_process_with_other_connections_than_it_should_have_is_blamed);
    tcase_add_loop_test(tcase, a_close_waits_for_gated_streams_and_other_calls_wait_for_it, 0, 2);
    tcase_add_test(tcase, the_time_between_events_is_known_when_both_are_over_and_have_one);
    tcase_add_test(tcase, everything_in_a_stream_may_be_late);
    tcase_add_test(tcase,
                   a_stream_that_is_captured_takes_no_work_and_a_memory_operation_is_a_fault);
    tcase_add_test(tcase, a_capture_forbids_registrations_to_threads_that_are_not_relaxed);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
