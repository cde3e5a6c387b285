/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fakegpu/cuda_abi.h"
#include "tests/fakegpu/hvt_fakegpu.h"

#include <pthread.h>

START_TEST(without_a_current_context_no_call_works)
{
    hvi_cu_context context;
    hvi_cu_ptr address;

    hvt_cu_begin("", "", 0);
    HVT_CU(hvt_cu.context_get(&context));
    HVT_CU(hvt_cu.context_set(NULL));
    ck_assert_int_eq(hvt_cu.alloc(&address, 8), HVI_CU_INVALID_CONTEXT);
    HVT_CU(hvt_cu.context_set(context));
    HVT_CU(hvt_cu.alloc(&address, 8));
    HVT_CU(hvt_cu.context_release(0));
    ck_assert_int_eq(hvt_cu.free(address), HVI_CU_INVALID_CONTEXT);
}
END_TEST

static void *alloc_in_a_thread(void *argument)
{
    hvi_cu_ptr address;

    *(int *)argument = hvt_cu.alloc(&address, 8);
    return NULL;
}

START_TEST(each_thread_has_a_current_context_of_its_own)
{
    pthread_t thread;
    int error;

    hvt_cu_begin("", "", 0);
    pthread_create(&thread, NULL, alloc_in_a_thread, &error);
    pthread_join(thread, NULL);
    ck_assert_int_eq(error, HVI_CU_INVALID_CONTEXT);
}
END_TEST

START_TEST(before_init_and_in_a_forked_process_there_is_no_driver)
{
    char text[200];
    int count, status;

    ck_assert_int_eq(hvi_cuda_open(false, &hvt_cu, text, sizeof(text)), 0);
    ck_assert_int_eq(hvt_cu.device_count(&count), HVI_CU_NOT_INITIALIZED);
    hvt_cu_begin("", "", 0);
    pid_t pid = fork();
    if (pid == 0)
        _exit(hvt_cu.init(0) == HVI_CU_NOT_INITIALIZED &&
                      hvt_cu.stream_query(NULL) == HVI_CU_NOT_INITIALIZED
                  ? 7
                  : 0);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(WEXITSTATUS(status), 7);
}
END_TEST

START_TEST(a_device_has_one_uuid_whatever_its_ordinal)
{
    struct hvi_cu_uuid uuid, other;
    char name[32], text[HVI_GPU_UUID_TEXT], wish[64];
    int count;

    setenv("CUDA_VISIBLE_DEVICES", "2,0,7,1", 1); /* 7 is none, and ends the list */
    hvt_cu_begin("devices=4", "", 0);
    HVT_CU(hvt_cu.device_count(&count));
    ck_assert_int_eq(count, 2);
    HVT_CU(hvt_cu.device_name(name, sizeof(name), 0));
    ck_assert_str_eq(name, "No GPU 2");
    HVT_CU(hvt_cu.device_uuid(&uuid, 0));
    HVT_CU(hvt_cu.device_uuid(&other, 1));
    ck_assert_mem_ne(&uuid, &other, sizeof(uuid));
    hvi_gpu_uuid_format(&uuid, text);
    ck_assert_str_eq(text, "GPU-66616b65-2067-7075-206f-66206e6f0002");
    snprintf(wish, sizeof(wish), "%s", text);
    ck_assert(hvi_gpu_uuid_parse(wish, &other));
    ck_assert_mem_eq(&uuid, &other, sizeof(uuid));
}
END_TEST

/* One instance, and no device beside it (NVIDIA's guide to MIG). */
START_TEST(of_instances_one_is_shown)
{
    static const struct {
        const char *wish, *name;
    } cases[] = {{NULL, "No GPU 2"},
                 {"MIG-66616b65-2067-7075-206f-66206e6f0003,0", "No GPU 3"},
                 {"GPU-66616b65-2067-7075-206f-66206e6f0001", "No GPU 2"},
                 {"0", "No GPU 0"}};
    char name[32];
    int count;

    if (cases[_i].wish != NULL)
        setenv("CUDA_VISIBLE_DEVICES", cases[_i].wish, 1);
    hvt_cu_begin("devices=2;mig=1", "", 0);
    HVT_CU(hvt_cu.device_count(&count));
    ck_assert_int_eq(count, 1);
    HVT_CU(hvt_cu.device_name(name, sizeof(name), 0));
    ck_assert_str_eq(name, cases[_i].name);
}
END_TEST

START_TEST(a_device_that_cannot_be_opened_is_not_shown)
{
    struct hvi_cu_uuid uuid;
    int count;

    hvt_cu_begin("devices=2", "denied@1", 0);
    HVT_CU(hvt_cu.device_count(&count));
    ck_assert_int_eq(count, 1);
    HVT_CU(hvt_cu.device_uuid(&uuid, 0));
    ck_assert_uint_eq(uuid.bytes[15], 1);
}
END_TEST

START_TEST(no_device_is_an_error_of_init)
{
    char text[200];

    setenv("FAKEGPU", _i == 0 ? "devices=0" : "devices=2", 1);
    if (_i > 0)
        setenv("CUDA_VISIBLE_DEVICES", _i == 1 ? "" : "2,0", 1);
    ck_assert_int_eq(hvi_cuda_open(false, &hvt_cu, text, sizeof(text)), 0);
    ck_assert_int_eq(hvt_cu.init(0), HVI_CU_NO_DEVICE);
}
END_TEST

START_TEST(attributes_are_as_told)
{
    int value;

    hvt_cu_begin("cc=8.6;version=12040", "no-memops", 0);
    HVT_CU(hvt_cu.device_attribute(&value, HVI_CU_DEVICE_CC_MAJOR, 0));
    ck_assert_int_eq(value, 8);
    HVT_CU(hvt_cu.device_attribute(&value, HVI_CU_DEVICE_CC_MINOR, 0));
    ck_assert_int_eq(value, 6);
    HVT_CU(hvt_cu.device_attribute(&value, HVI_CU_DEVICE_MEMOPS_64, 0));
    ck_assert_int_eq(value, 0);
    HVT_CU(hvt_cu.device_attribute(&value, FAKE_DEVICE_FABRIC, 0));
    ck_assert_int_eq(value, 1);
    ck_assert_int_eq(hvt_cu.version, 12040);
}
END_TEST

START_TEST(a_fault_of_another_program_is_not_ours)
{
    hvi_cu_ptr address;

    hvt_cu_begin("", "hvdd-gpu/no-memory;test_unit_fakegpu_device/no-memory@2", 0);
    HVT_CU(hvt_cu.alloc(&address, 8));
    ck_assert_int_eq(hvt_cu.alloc(&address, 8), HVI_CU_OUT_OF_MEMORY);
    ck_assert_int_eq(hvt_cu.alloc(&address, 8), HVI_CU_OUT_OF_MEMORY);
}
END_TEST

/* --- kernels --- */

struct add {
    uint64_t to, value;
};

static void run_add(const void *arguments, uint32_t blocks, uint32_t threads)
{
    const struct add *add = arguments;

    atomic_fetch_add(hvt_cu_word(add->to), add->value * blocks * threads);
}

static const struct hvd_kernel_row rows[] = {{"test_add", sizeof(struct add), run_add},
                                             {NULL, 0, NULL}};

static hvi_cu_kernel find_add(void)
{
    hvi_cu_library library;
    hvi_cu_kernel kernel;

    hvt_fakegpu()->add_kernels(rows);
    HVT_CU(hvt_cu.library_load(&library, "an image", NULL, NULL, 0, NULL, NULL, 0));
    ck_assert_int_eq(hvt_cu.library_kernel(&kernel, library, "test_none"), HVI_CU_NOT_FOUND);
    HVT_CU(hvt_cu.library_kernel(&kernel, library, "test_add"));
    return kernel;
}

static int launch(hvi_cu_kernel kernel, unsigned grid, unsigned block, hvi_cu_ptr to)
{
    struct add add = {to, 3};

    return hvt_cu.launch(kernel, grid, 1, 1, block, 1, 1, 0, NULL, (void *[]){&add}, NULL);
}

START_TEST(a_kernel_is_found_by_name_and_runs_in_its_stream)
{
    hvt_cu_begin("", "", 0);
    hvi_cu_ptr to = hvt_cu_alloc(8);
    hvi_cu_kernel kernel = find_add();
    HVT_CU(launch(kernel, 2, 5, to));
    HVT_CU(hvt_cu.stream_synchronize(NULL));
    ck_assert_uint_eq(atomic_load(hvt_cu_word(to)), 30);
    ck_assert_int_eq(launch(kernel, 0, 5, to), HVI_CU_INVALID_VALUE);
    ck_assert_int_eq(launch(kernel, 1, 1025, to), HVI_CU_INVALID_VALUE);
}
END_TEST

static void *open_the_gate(void *word)
{
    hvt_nap(50);
    atomic_store((_Atomic uint64_t *)word, 1);
    return NULL;
}

START_TEST(a_first_launch_loads_its_library_and_may_wait_for_gated_streams)
{
    pthread_t thread;

    hvt_cu_begin("sync=load", "", 0);
    hvi_cu_stream stream = hvt_cu_stream();
    hvi_cu_ptr word = hvt_cu_alloc(16);
    hvi_cu_kernel kernel = find_add();
    HVT_CU(hvt_cu.wait64(stream, word, 1, 0));
    pthread_create(&thread, NULL, open_the_gate, hvt_cu_word(word));
    HVT_CU(launch(kernel, 1, 1, word + 8));
    ck_assert_uint_eq(atomic_load(hvt_cu_word(word)), 1);
    pthread_join(thread, NULL);
    HVT_CU(hvt_cu.wait64(stream, word, 2, 0));
    HVT_CU(launch(kernel, 1, 1, word + 8)); /* and a second does not */
    atomic_store(hvt_cu_word(word), 2);
    ck_assert(hvt_cu_ends(stream) && hvt_cu_ends(NULL));
}
END_TEST

/* In every call, until the process exits. */
static void expect_sticky(void)
{
    size_t one, other;
    hvi_cu_ptr address;

    ck_assert_int_eq(hvt_cu.stream_synchronize(NULL), HVI_CU_ILLEGAL_ADDRESS);
    ck_assert_int_eq(hvt_cu.alloc(&address, 8), HVI_CU_ILLEGAL_ADDRESS);
    ck_assert_int_eq(hvt_cu.memory_info(&one, &other), HVI_CU_ILLEGAL_ADDRESS);
}

START_TEST(the_nth_launch_breaks_the_context_for_good)
{
    hvt_cu_begin("", "sticky@2", 0);
    hvi_cu_ptr to = hvt_cu_alloc(8);
    hvi_cu_kernel kernel = find_add();
    HVT_CU(launch(kernel, 1, 1, to));
    HVT_CU(hvt_cu.stream_synchronize(NULL));
    HVT_CU(launch(kernel, 1, 1, to));
    expect_sticky();
    ck_assert_uint_eq(atomic_load(hvt_cu_word(to)), 3);
}
END_TEST

START_TEST(another_devices_memory_is_an_illegal_address)
{
    hvi_cu_context context, other;

    hvt_cu_begin("devices=2", "", 1);
    hvi_cu_ptr to = hvt_cu_alloc(8);
    HVT_CU(hvt_cu.context_get(&context));
    HVT_CU(hvt_cu.context_retain(&other, 0));
    HVT_CU(hvt_cu.context_set(other));
    HVT_CU(launch(find_add(), 1, 1, to));
    expect_sticky();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("fakegpu device");
    TCase *tcase = tcase_create("device");

    tcase_add_test(tcase, without_a_current_context_no_call_works);
    tcase_add_test(tcase, each_thread_has_a_current_context_of_its_own);
    tcase_add_test(tcase, before_init_and_in_a_forked_process_there_is_no_driver);
    tcase_add_test(tcase, a_device_has_one_uuid_whatever_its_ordinal);
    tcase_add_loop_test(tcase, of_instances_one_is_shown, 0, 4);
    tcase_add_test(tcase, a_device_that_cannot_be_opened_is_not_shown);
    tcase_add_loop_test(tcase, no_device_is_an_error_of_init, 0, 3);
    tcase_add_test(tcase, attributes_are_as_told);
    tcase_add_test(tcase, a_fault_of_another_program_is_not_ours);
    tcase_add_test(tcase, a_kernel_is_found_by_name_and_runs_in_its_stream);
    tcase_add_test(tcase, a_first_launch_loads_its_library_and_may_wait_for_gated_streams);
    tcase_add_test(tcase, the_nth_launch_breaks_the_context_for_good);
    tcase_add_test(tcase, another_devices_memory_is_an_illegal_address);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
