/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/nvml.h"

#include "gpu/cuda.h"
#include "tests/unit/hvt_main.h"

static struct hvi_nvml nvml;

static void begin(const char *settings)
{
    char text[300] = "";

    setenv("FAKEGPU", settings, 1);
    ck_assert_msg(hvi_nvml_open(&nvml, text, sizeof(text)) == 0, "%s", text);
}

static hvi_ml_device device(unsigned index)
{
    hvi_ml_device one;

    ck_assert_int_eq(nvml.device_get(index, &one), HVI_ML_OK);
    return one;
}

START_TEST(devices_have_the_uuids_that_the_driver_gives_them)
{
    char text[HVI_GPU_UUID_TEXT], name[32], version[32];
    hvi_ml_device none;
    unsigned count;

    setenv("CUDA_VISIBLE_DEVICES", "0", 1); /* which is nothing to NVML */
    begin("devices=3");
    ck_assert_int_eq(nvml.device_count(&count), HVI_ML_OK);
    ck_assert_uint_eq(count, 3);
    ck_assert_int_eq(nvml.device_uuid(device(2), text, sizeof(text)), HVI_ML_OK);
    ck_assert_str_eq(text, "GPU-66616b65-2067-7075-206f-66206e6f0002");
    ck_assert_int_eq(nvml.device_uuid(device(2), text, 40), HVI_ML_INSUFFICIENT_SIZE);
    ck_assert_int_eq(nvml.device_name(device(2), name, sizeof(name)), HVI_ML_OK);
    ck_assert_str_eq(name, "No GPU 2");
    ck_assert_int_eq(nvml.driver_version(version, sizeof(version)), HVI_ML_OK);
    ck_assert_int_eq(nvml.device_get(3, &none), HVI_ML_INVALID_ARGUMENT);
    ck_assert_int_eq(nvml.shutdown(), HVI_ML_OK);
    ck_assert_int_eq(nvml.device_count(&count), HVI_ML_UNINITIALIZED);
}
END_TEST

START_TEST(memory_links_and_mig_are_as_told)
{
    struct hvi_ml_memory memory;
    struct hvi_ml_process process;
    unsigned current, pending, count = 1;
    int status, active;

    begin("devices=3;memory=100;used=30;nvlink=0-2;mig=1");
    ck_assert_int_eq(nvml.device_memory(device(0), &memory), HVI_ML_OK);
    ck_assert(memory.total == 100 << 20 && memory.used == 30 << 20 && memory.free == 70 << 20);
    ck_assert_int_eq(nvml.device_p2p(device(2), device(0), HVI_ML_P2P_NVLINK, &status), HVI_ML_OK);
    ck_assert_int_eq(status, HVI_ML_P2P_OK);
    ck_assert_int_eq(nvml.device_p2p(device(1), device(0), HVI_ML_P2P_NVLINK, &status), HVI_ML_OK);
    ck_assert_int_ne(status, HVI_ML_P2P_OK);
    ck_assert_int_eq(nvml.device_link(device(0), 0, &active), HVI_ML_OK);
    ck_assert(active);
    ck_assert_int_eq(nvml.device_link(device(1), 0, &active), HVI_ML_OK);
    ck_assert(!active);
    ck_assert_int_eq(nvml.device_mig(device(1), &current, &pending), HVI_ML_OK);
    ck_assert_uint_eq(current, 1);
    ck_assert_int_eq(nvml.device_processes(device(1), &count, &process), HVI_ML_OK);
    ck_assert_uint_eq(count, 0);
}
END_TEST

static char names[4][HVI_GPU_UUID_TEXT];
static unsigned name_count;

static void note(void *user, hvi_ml_device each, const char *name)
{
    (void)user, (void)each;
    ck_assert_uint_lt(name_count, 4);
    snprintf(names[name_count++], sizeof(names[0]), "%s", name);
}

START_TEST(instances_have_uuids_of_their_own)
{
    static const char *const due[] = {
        "GPU-66616b65-2067-7075-206f-66206e6f0000", "MIG-66616b65-2067-7075-206f-66206e6f0002",
        "MIG-66616b65-2067-7075-206f-66206e6f0003", "GPU-66616b65-2067-7075-206f-66206e6f0001"};
    hvi_ml_device instance;
    unsigned count;

    begin("devices=2;mig=0");
    ck_assert_int_eq(nvml.device_mig_count(device(0), &count), HVI_ML_OK);
    ck_assert_uint_eq(count, 7);
    ck_assert_int_eq(nvml.device_mig_get(device(0), 2, &instance), HVI_ML_NOT_FOUND);
    ck_assert_int_eq(nvml.device_mig_get(device(1), 0, &instance), HVI_ML_NOT_SUPPORTED);
    hvi_nvml_for_each(&nvml, note, NULL);
    ck_assert_uint_eq(name_count, 4);
    for (unsigned i = 0; i < 4; i++)
        ck_assert_str_eq(names[i], due[i]);
}
END_TEST

START_TEST(without_mig_there_is_no_answer)
{
    unsigned current, pending;

    begin("");
    ck_assert_int_eq(nvml.device_mig(device(0), &current, &pending), HVI_ML_NOT_SUPPORTED);
}
END_TEST

START_TEST(answers_may_have_holes)
{
    unsigned count, holes = 0;

    begin("nvml-holes=7");
    for (int i = 0; i < 100; i++) {
        const int error = nvml.device_count(&count);
        ck_assert(error == HVI_ML_OK || error == HVI_ML_NOT_SUPPORTED);
        holes += error != HVI_ML_OK;
    }
    ck_assert(holes > 5 && holes < 60);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("fakegpu nvml");
    TCase *tcase = tcase_create("nvml");

    tcase_add_test(tcase, devices_have_the_uuids_that_the_driver_gives_them);
    tcase_add_test(tcase, memory_links_and_mig_are_as_told);
    tcase_add_test(tcase, instances_have_uuids_of_their_own);
    tcase_add_test(tcase, without_mig_there_is_no_answer);
    tcase_add_test(tcase, answers_may_have_holes);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
