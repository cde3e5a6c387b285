/* SPDX-License-Identifier: Apache-2.0
 * The loader finds a libcuda.so.1 that is no library (CMakeLists.txt); one that was loaded by its path is taken instead. */
#include "gpu/cuda.h"

#include "base/status.h"
#include "gpu/library.h"
#include "tests/unit/hvt_main.h"

#include <dlfcn.h>
#include <string.h>

#define NEEDED "hvdd needs an NVIDIA driver for CUDA 12.0 or newer (525)"

static char text[512];

static void load(const char *folder)
{
    char path[512];

    snprintf(path, sizeof(path), "%s%s/libcuda.so.1", STANDINS, folder);
    ck_assert_msg(dlopen(path, RTLD_NOW) != NULL, "%s", dlerror());
}

static int try_open(bool loaded_only)
{
    struct hvi_cuda cuda;

    return hvi_cuda_open(loaded_only, &cuda, text, sizeof(text));
}

START_TEST(without_a_driver_the_sentence_says_what_is_missing_where_and_which_version)
{
    ck_assert_int_eq(try_open(false), HVI_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(text, "no NVIDIA driver: libcuda.so.1, looked for by the loader "
                                       "(LD_LIBRARY_PATH, /etc/ld.so.conf): "));
    ck_assert_ptr_nonnull(strstr(text, "file too short; " NEEDED));
}
END_TEST

START_TEST(a_library_that_the_process_has_not_is_not_loaded_where_that_was_asked)
{
    struct hvi_cuda cuda;

    ck_assert_int_eq(try_open(true), HVI_ERR_NOT_FOUND);
    load("whole");
    ck_assert_int_eq(hvi_cuda_open(true, &cuda, text, sizeof(text)), HVI_OK);
    ck_assert_int_eq(cuda.version, 12040);
    ck_assert_ptr_nonnull(cuda.launch);
    ck_assert_ptr_null(cuda.reserve); /* which is not needed */
}
END_TEST

START_TEST(an_old_driver_a_silent_one_and_one_without_a_function_are_refused)
{
    load("part");
    ck_assert_int_eq(try_open(false), HVI_ERR_UNSUPPORTED);
    ck_assert_str_eq(text,
                     STANDINS "part/libcuda.so.1, of CUDA 12.4, has no cuLaunchKernel; " NEEDED);
    setenv("STANDIN_VERSION", "11080", 1);
    ck_assert_int_eq(try_open(true), HVI_ERR_UNSUPPORTED);
    ck_assert_str_eq(text, STANDINS "part/libcuda.so.1 is of CUDA 11.8; " NEEDED);
    setenv("STANDIN_ERROR", "999", 1);
    ck_assert_int_eq(try_open(true), HVI_ERR_UNSUPPORTED);
    ck_assert_str_eq(text, STANDINS "part/libcuda.so.1 does not say its version; " NEEDED);
}
END_TEST

START_TEST(an_error_has_its_name_and_its_number)
{
    struct hvi_cuda cuda;

    load("whole");
    ck_assert_int_eq(hvi_cuda_open(true, &cuda, text, sizeof(text)), HVI_OK);
    hvi_cuda_describe(&cuda, HVI_CU_ILLEGAL_ADDRESS, text, sizeof(text));
    ck_assert_str_eq(text, "CUDA_ERROR_ILLEGAL_ADDRESS (700)");
    hvi_cuda_describe(&cuda, 12345, text, sizeof(text));
    ck_assert_str_eq(text, "CUDA error (12345)");
}
END_TEST

START_TEST(what_the_loader_says_is_told_without_the_name_at_its_beginning)
{
    ck_assert_ptr_null(dlopen("none/such.so", RTLD_NOW));
    ck_assert(strstr(hvi_gpu_library_error("none/such.so"), "such.so") == NULL);
    ck_assert_ptr_null(dlopen("none/such.so", RTLD_NOW));
    ck_assert(strstr(hvi_gpu_library_error("another.so"), "none/such.so: ") != NULL);
    ck_assert_str_eq(hvi_gpu_library_error("another.so"), "it is not loaded");
    ck_assert_str_eq(hvi_gpu_library_path(dlopen(NULL, RTLD_NOW)), "?"); /* the program itself */
}
END_TEST

START_TEST(a_uuid_is_written_as_nvidia_smi_writes_it_and_read_back)
{
    static const char *const others[] = {
        "",
        "GPU-00112233-4455-6677-8899-aabbccddeef",
        "GPU-00112233-4455-6677-8899-aabbccddeeff0",
        "MIG-GPU-00112233-4455-6677-8899-aabbccddeeff/1/0", /* as old drivers name an instance */
        "GPU-0011223304455-6677-8899-aabbccddeeff",
        "GPU-00112233-4455-6677-8899-aabbccddeefg",
    };
    struct hvi_cu_uuid uuid, back;
    char written[HVI_GPU_UUID_TEXT];

    for (unsigned i = 0; i < 16; i++)
        uuid.bytes[i] = (unsigned char)(i * 0x11);
    hvi_gpu_uuid_format(&uuid, written);
    ck_assert_str_eq(written, "GPU-00112233-4455-6677-8899-aabbccddeeff");
    ck_assert(hvi_gpu_uuid_parse(written, &back));
    ck_assert_mem_eq(&back, &uuid, sizeof(uuid));
    ck_assert(hvi_gpu_uuid_parse("GPU-00112233-4455-6677-8899-AABBCCDDEEFF", &back));
    ck_assert_mem_eq(&back, &uuid, sizeof(uuid));
    for (unsigned i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        ck_assert_msg(!hvi_gpu_uuid_parse(others[i], &back), "%s", others[i]);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("gpu cuda");
    TCase *tcase = tcase_create("cuda");

    tcase_add_test(tcase,
                   without_a_driver_the_sentence_says_what_is_missing_where_and_which_version);
    tcase_add_test(tcase, a_library_that_the_process_has_not_is_not_loaded_where_that_was_asked);
    tcase_add_test(tcase, an_old_driver_a_silent_one_and_one_without_a_function_are_refused);
    tcase_add_test(tcase, an_error_has_its_name_and_its_number);
    tcase_add_test(tcase, what_the_loader_says_is_told_without_the_name_at_its_beginning);
    tcase_add_test(tcase, a_uuid_is_written_as_nvidia_smi_writes_it_and_read_back);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
