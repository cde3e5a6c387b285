/* SPDX-License-Identifier: Apache-2.0
 * NCCL between processes: this test is rank 0 and forks the others, each on its device. */
#include "daemon/gpu/nccl.h"

#include "tests/fakegpu/hvt_fakegpu.h"

#include <pthread.h>
#include <signal.h>

#define RANKS 3

static struct gpu_nccl nccl;
static struct gpu_nccl_id id;
static gpu_nccl_comm comm;
static int rank;
static hvi_cu_stream stream;
static const char *settings = "devices=4";

static void load(const char *faults)
{
    char text[500] = "";

    hvt_cu_begin(settings, faults, rank);
    ck_assert_msg(gpu_nccl_open(NULL, &nccl, text, sizeof(text)) == 0, "%s", text);
    stream = hvt_cu_stream();
}

static struct hvt_child children[RANKS];
static void (*program)(void);

static void run_child(int fd)
{
    load("");
    hvt_hear(fd, &id, sizeof(id));
    program();
}

/* Runs the program in all ranks, each with a process. */
static void fork_ranks(void (*run)(void), int ranks)
{
    program = run;
    for (int i = 1; i < ranks; i++) {
        rank = i;
        children[i] = hvt_fork(run_child);
    }
    rank = 0;
}

static void begin_ranks(int ranks)
{
    load("");
    ck_assert_int_eq(nccl.unique_id(&id), GPU_NCCL_OK);
    for (int i = 1; i < ranks; i++)
        hvt_say(children[i].fd, &id, sizeof(id));
}

static void end_ranks(int ranks)
{
    for (int i = 1; i < ranks; i++)
        ck_assert_int_eq(hvt_reap(&children[i]), 0);
}

static void run_ranks(void (*run)(void), int ranks)
{
    fork_ranks(run, ranks);
    begin_ranks(ranks);
    run();
    end_ranks(ranks);
}

static void join(int ranks)
{
    ck_assert_int_eq(nccl.init_rank(&comm, ranks, id, rank), GPU_NCCL_OK);
}

/* --- what ops give --- */

static hvi_cu_ptr in, out;

static void fill(size_t count)
{
    in = hvt_cu_alloc(count * 4);
    out = hvt_cu_alloc(count * 4 * RANKS);
    for (size_t i = 0; i < count; i++)
        ((float *)(uintptr_t)in)[i] = (float)((size_t)rank * 100 + i % 50);
}

static float at(size_t i)
{
    return ((float *)(uintptr_t)out)[i];
}

static void synchronize(void)
{
    ck_assert(hvt_cu_ends(stream));
    HVT_CU(hvt_cu.stream_query(stream));
}

static void reduce_all(void)
{
    const size_t count = 70000; /* more than one round */

    join(RANKS);
    fill(count);
    ck_assert_int_eq(nccl.all_reduce((void *)(uintptr_t)in, (void *)(uintptr_t)out, count,
                                     GPU_NCCL_FLOAT32, GPU_NCCL_SUM, comm, stream),
                     GPU_NCCL_OK);
    synchronize();
    for (size_t i = 0; i < count; i += 997)
        ck_assert_float_eq(at(i), (float)(300 + 3 * (i % 50)));
    ck_assert_int_eq(nccl.destroy(comm), GPU_NCCL_OK);
}

START_TEST(a_sum_is_the_same_on_all_ranks)
{
    run_ranks(reduce_all, RANKS);
}
END_TEST

static void reduce_types(void)
{
    static const struct {
        int type, op;
        uint64_t words[RANKS], result;
        size_t bytes;
    } rows[] = {
        {GPU_NCCL_INT8, GPU_NCCL_SUM, {0xff, 1, 5}, 5, 1},
        {GPU_NCCL_UINT8, GPU_NCCL_MAX, {200, 1, 5}, 200, 1},
        {GPU_NCCL_INT32, GPU_NCCL_MIN, {(uint32_t)-7, 1, 5}, (uint32_t)-7, 4},
        {GPU_NCCL_UINT32, GPU_NCCL_MIN, {(uint32_t)-7, 1, 5}, 1, 4},
        {GPU_NCCL_INT64, GPU_NCCL_PRODUCT, {(uint64_t)-7, 2, 5}, (uint64_t)-70, 8},
        {GPU_NCCL_UINT64, GPU_NCCL_MAX, {(uint64_t)-7, 2, 5}, (uint64_t)-7, 8},
        {GPU_NCCL_FLOAT16, GPU_NCCL_SUM, {0x3c00, 0x3c00, 0x4000}, 0x4400, 2},
        {GPU_NCCL_BFLOAT16, GPU_NCCL_SUM, {0x3f80, 0x3f80, 0x4000}, 0x4080, 2},
        {GPU_NCCL_E4M3, GPU_NCCL_SUM, {0x38, 0x38, 0x40}, 0x48, 1},
        {GPU_NCCL_E5M2, GPU_NCCL_SUM, {0x3c, 0x3c, 0x40}, 0x44, 1},
        {GPU_NCCL_FLOAT64,
         GPU_NCCL_PRODUCT,
         {0x4000000000000000, 0x4000000000000000, 0x3ff0000000000000},
         0x4010000000000000,
         8},
    };

    join(RANKS);
    hvi_cu_ptr word = hvt_cu_alloc(8);
    for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        uint64_t result = 0;
        memcpy((void *)(uintptr_t)word, &rows[i].words[rank], rows[i].bytes);
        ck_assert_int_eq(nccl.all_reduce((void *)(uintptr_t)word, (void *)(uintptr_t)word, 1,
                                         rows[i].type, rows[i].op, comm, stream),
                         GPU_NCCL_OK);
        synchronize();
        memcpy(&result, (void *)(uintptr_t)word, rows[i].bytes);
        ck_assert_msg(result == rows[i].result, "row %u: 0x%llx", i, (unsigned long long)result);
    }
}

START_TEST(all_types_and_operations_are_reduced)
{
    run_ranks(reduce_types, RANKS);
}
END_TEST

static void run_kinds(void)
{
    const size_t count = 70000;
    const void *from = NULL;

    join(RANKS);
    fill(count);
    from = (void *)(uintptr_t)in;
    void *to = (void *)(uintptr_t)out;
    ck_assert_int_eq(nccl.broadcast(from, to, count, GPU_NCCL_FLOAT32, 2, comm, stream), 0);
    synchronize();
    ck_assert_float_eq(at(count - 1), (float)(200 + (count - 1) % 50));
    ck_assert_int_eq(nccl.all_gather(from, to, count, GPU_NCCL_FLOAT32, comm, stream), 0);
    synchronize();
    for (size_t i = 0; i < RANKS; i++)
        ck_assert_float_eq(at(i * count + count - 1), (float)(i * 100 + (count - 1) % 50));
    ck_assert_int_eq(
        nccl.reduce_scatter(from, to, count / 3, GPU_NCCL_FLOAT32, GPU_NCCL_MAX, comm, stream), 0);
    synchronize();
    ck_assert_float_eq(at(7), (float)(200 + ((size_t)rank * (count / 3) + 7) % 50));
}

START_TEST(broadcast_gather_and_scatter_give_each_rank_its_part)
{
    run_ranks(run_kinds, RANKS);
}
END_TEST

/* All to all, also to itself, in one group. */
static void exchange(void)
{
    const size_t count = 40000; /* several letters */

    join(RANKS);
    fill(count);
    ck_assert_int_eq(nccl.group_start(), GPU_NCCL_OK);
    for (int i = 0; i < RANKS; i++) {
        ck_assert_int_eq(nccl.send((void *)(uintptr_t)in, count, GPU_NCCL_FLOAT32, i, comm, stream),
                         GPU_NCCL_OK);
        ck_assert_int_eq(nccl.receive((void *)(uintptr_t)(out + (size_t)i * count * 4), count,
                                      GPU_NCCL_FLOAT32, i, comm, stream),
                         GPU_NCCL_OK);
    }
    ck_assert_int_eq(nccl.group_end(), GPU_NCCL_OK);
    synchronize();
    for (size_t i = 0; i < RANKS; i++)
        ck_assert_float_eq(at(i * count + count - 1), (float)(i * 100 + (count - 1) % 50));
    ck_assert_int_eq(nccl.destroy(comm), GPU_NCCL_OK);
}

START_TEST(sends_and_receives_of_a_group_go_together)
{
    run_ranks(exchange, RANKS);
}
END_TEST

/* --- rules --- */

static int joined; /* what all ranks expect */
static bool has_hosts;

static void join_on_one_device(void)
{
    hvi_cu_context context;

    HVT_CU(hvt_cu.context_retain(&context, 0));
    HVT_CU(hvt_cu.context_set(context));
    setenv("NCCL_HOSTID", has_hosts && rank == 1 ? "other" : "one", 1);
    ck_assert_int_eq(nccl.init_rank(&comm, 2, id, rank), joined);
}

START_TEST(two_ranks_on_one_device_need_two_hosts)
{
    joined = 5; /* invalid usage */
    run_ranks(join_on_one_device, 2);
}
END_TEST

START_TEST(two_ranks_on_one_device_join_with_two_hosts)
{
    has_hosts = true;
    run_ranks(join_on_one_device, 2);
}
END_TEST

static void join_and_go(void)
{
    join(2);
    if (rank == 1)
        raise(SIGKILL);
}

static int sum_of(size_t count)
{
    return nccl.all_reduce((void *)(uintptr_t)in, (void *)(uintptr_t)out, count, GPU_NCCL_FLOAT32,
                           GPU_NCCL_SUM, comm, stream);
}

static int async_error(void)
{
    int error = 0;

    for (int i = 0; i < 5000 && error == GPU_NCCL_OK; i++) {
        hvt_nap(1);
        ck_assert_int_eq(nccl.async_error(comm, &error), GPU_NCCL_OK);
    }
    return error;
}

START_TEST(an_op_without_a_peer_blocks_its_stream_until_it_is_aborted)
{
    fork_ranks(join_and_go, 2);
    begin_ranks(2);
    join(2);
    ck_assert_int_eq(hvt_reap(&children[1]), 256 + SIGKILL);
    fill(10);
    ck_assert_int_eq(sum_of(10), GPU_NCCL_OK);
    ck_assert(hvt_cu_waits(stream));
    ck_assert_int_eq(async_error(), 6); /* remote error */
    ck_assert_str_eq(nccl.error(6), "remote process exited or there was a network error");
    ck_assert(hvt_cu_waits(stream));
    ck_assert_int_eq(nccl.abort(comm), GPU_NCCL_OK);
    synchronize();
}
END_TEST

START_TEST(an_op_may_hang_and_may_fail)
{
    load(_i == 0 ? "nccl-hang@2" : "nccl-error@2");
    ck_assert_int_eq(nccl.unique_id(&id), GPU_NCCL_OK);
    join(1);
    fill(10);
    ck_assert_int_eq(sum_of(10), GPU_NCCL_OK);
    synchronize();
    ck_assert_int_eq(sum_of(10), GPU_NCCL_OK);
    if (_i == 1)
        ck_assert_int_eq(async_error(), 2); /* system error */
    ck_assert(hvt_cu_waits(stream));
    ck_assert_int_eq(nccl.abort(comm), GPU_NCCL_OK);
    synchronize();
}
END_TEST

static void *join_in_a_thread(void *is_over)
{
    hvi_cu_context context;

    HVT_CU(hvt_cu.context_retain(&context, 0));
    HVT_CU(hvt_cu.context_set(context));
    nccl.init_rank(&comm, 1, id, 0);
    atomic_store((atomic_bool *)is_over, true);
    return NULL;
}

START_TEST(a_join_may_hang)
{
    static atomic_bool is_over;
    pthread_t thread;

    load("nccl-join-hang");
    ck_assert_int_eq(nccl.unique_id(&id), GPU_NCCL_OK);
    pthread_create(&thread, NULL, join_in_a_thread, &is_over);
    hvt_nap(50);
    ck_assert(!atomic_load(&is_over));
    pthread_detach(thread);
}
END_TEST

START_TEST(the_first_join_on_a_device_may_fail)
{
    load("nccl-join-fails@1");
    ck_assert_int_eq(nccl.unique_id(&id), GPU_NCCL_OK);
    ck_assert_int_eq(nccl.init_rank(&comm, 1, id, 0), 1); /* unhandled cuda error */
    ck_assert_int_eq(nccl.init_rank(&comm, 1, id, 0), GPU_NCCL_OK);
    ck_assert_int_eq(nccl.destroy(comm), GPU_NCCL_OK);
}
END_TEST

START_TEST(memory_and_arguments_that_are_wrong_are_refused)
{
    static float strange[10];

    load("");
    ck_assert_int_eq(nccl.unique_id(&id), GPU_NCCL_OK);
    join(1);
    fill(10);
    ck_assert_int_eq(sum_of(40), 4); /* invalid argument: longer than the memory */
    ck_assert_int_eq(
        nccl.all_reduce(strange, strange, 10, GPU_NCCL_FLOAT32, GPU_NCCL_SUM, comm, stream), 4);
    ck_assert_int_eq(
        nccl.all_reduce((void *)(uintptr_t)in, (void *)(uintptr_t)in, 1, 12, 0, comm, stream), 4);
    ck_assert_int_eq(
        nccl.all_reduce((void *)(uintptr_t)in, (void *)(uintptr_t)in, 1, 7, 4, comm, stream), 4);
    ck_assert_int_eq(
        nccl.broadcast((void *)(uintptr_t)in, (void *)(uintptr_t)in, 1, 7, 1, comm, stream), 4);
    ck_assert_int_eq(nccl.group_end(), 5); /* invalid usage: there is none */
}
END_TEST

START_TEST(float8_is_reduced_by_new_devices_alone)
{
    settings = _i == 0 ? "cc=9.0" : "cc=8.9";
    load("");
    ck_assert_int_eq(nccl.unique_id(&id), GPU_NCCL_OK);
    join(1);
    fill(10);
    ck_assert_int_eq(nccl.all_reduce((void *)(uintptr_t)in, (void *)(uintptr_t)in, 1, GPU_NCCL_E4M3,
                                     GPU_NCCL_SUM, comm, stream),
                     _i == 0 ? GPU_NCCL_OK : 4);
    synchronize();
}
END_TEST

/* --- what is blamed --- */

static void differ(void)
{
    join(2);
    fill(10);
    ck_assert_int_eq(sum_of(rank == 0 ? 10 : 9), GPU_NCCL_OK);
    hvt_cu_ends(stream);
}

static void run_differing(void)
{
    fork_ranks(differ, 2);
    begin_ranks(2);
    differ();
}

static void *sum_in_a_thread(void *unused)
{
    sum_of(10);
    return unused;
}

static void use_two_threads(void)
{
    pthread_t thread;

    load("");
    ck_assert_int_eq(nccl.unique_id(&id), GPU_NCCL_OK);
    join(1);
    fill(10);
    pthread_create(&thread, NULL, sum_in_a_thread, NULL);
    pthread_join(thread, NULL);
}

START_TEST(ops_that_differ_and_a_communicator_in_two_threads_are_blamed)
{
    hvt_expect_blame(run_differing, "the ranks' NCCL ops differ: op 1 of rank ");
    hvt_expect_blame(use_two_threads, "two threads use one communicator");
}
END_TEST

/* --- registered memory --- */

static unsigned registrations(unsigned *ops_p)
{
    void (*get)(unsigned *, unsigned *);
    void *symbol = dlsym(nccl.library, "fakegpu_nccl_registered");
    unsigned now = 0;

    ck_assert_ptr_nonnull(symbol);
    memcpy(&get, &symbol, sizeof(get));
    get(&now, ops_p);
    return now;
}

static void *enrol(hvi_cu_ptr address, size_t bytes)
{
    void *handle = NULL;

    ck_assert_int_eq(nccl.comm_register(comm, (void *)(uintptr_t)address, bytes, &handle),
                     GPU_NCCL_OK);
    return handle;
}

static void reduce_registered(void)
{
    unsigned ops = 0;

    join(2);
    fill(10);
    void *one = enrol(in, 40), *other = enrol(out, 40);
    ck_assert_uint_eq(registrations(&ops), 2);
    ck_assert_int_eq(sum_of(10), GPU_NCCL_OK);
    synchronize();
    ck_assert_uint_eq(registrations(&ops), 2);
    ck_assert_uint_eq(ops, 1);
    ck_assert_int_eq(nccl.comm_deregister(comm, one), GPU_NCCL_OK);
    ck_assert_int_ne(nccl.comm_deregister(comm, one), GPU_NCCL_OK);
    HVT_CU(hvt_cu.free(in));
    (void)other; /* the end of the communicator gives it back */
    ck_assert_int_eq(nccl.destroy(comm), GPU_NCCL_OK);
    ck_assert_uint_eq(registrations(&ops), 0);
    HVT_CU(hvt_cu.free(out));
}

START_TEST(registered_memory_is_given_back_by_hand_or_with_its_communicator)
{
    run_ranks(reduce_registered, 2);
}
END_TEST

static void register_one(void)
{
    join(2);
    fill(10);
    if (rank == 0)
        enrol(in, 40);
    ck_assert_int_eq(sum_of(10), GPU_NCCL_OK);
    hvt_cu_ends(stream);
}

static void run_mixed(void)
{
    fork_ranks(register_one, 2);
    begin_ranks(2);
    register_one();
}

static void free_registered(void)
{
    load("");
    ck_assert_int_eq(nccl.unique_id(&id), GPU_NCCL_OK);
    join(1);
    fill(10);
    enrol(in, 40);
    (void)hvt_cu.free(in);
}

START_TEST(registered_memory_beside_other_memory_or_freed_is_blamed)
{
    hvt_expect_blame(run_mixed, "rank 0 has registered memory and rank 1 has not");
    hvt_expect_blame(free_registered, "while NCCL has it registered");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("fakegpu nccl");
    TCase *tcase = tcase_create("nccl");

    tcase_add_test(tcase, a_sum_is_the_same_on_all_ranks);
    tcase_add_test(tcase, all_types_and_operations_are_reduced);
    tcase_add_test(tcase, broadcast_gather_and_scatter_give_each_rank_its_part);
    tcase_add_test(tcase, sends_and_receives_of_a_group_go_together);
    tcase_add_test(tcase, two_ranks_on_one_device_need_two_hosts);
    tcase_add_test(tcase, two_ranks_on_one_device_join_with_two_hosts);
    tcase_add_test(tcase, an_op_without_a_peer_blocks_its_stream_until_it_is_aborted);
    tcase_add_loop_test(tcase, an_op_may_hang_and_may_fail, 0, 2);
    tcase_add_test(tcase, a_join_may_hang);
    tcase_add_test(tcase, the_first_join_on_a_device_may_fail);
    tcase_add_test(tcase, memory_and_arguments_that_are_wrong_are_refused);
    tcase_add_loop_test(tcase, float8_is_reduced_by_new_devices_alone, 0, 2);
    tcase_add_test(tcase, ops_that_differ_and_a_communicator_in_two_threads_are_blamed);
    tcase_add_test(tcase, registered_memory_is_given_back_by_hand_or_with_its_communicator);
    tcase_add_test(tcase, registered_memory_beside_other_memory_or_freed_is_blamed);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
