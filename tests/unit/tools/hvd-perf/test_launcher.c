/* SPDX-License-Identifier: Apache-2.0
 * hvd-perf and libhvdclient agree on which process is a rank of a launcher. */
#include "tools/hvd-perf/perf.h"

#include "client/attach/identity.h"
#include "tests/unit/hvt_main.h"

#include <string.h>

static const struct {
    const char *variables[5];
    const char *launcher; /* variable that counts; NULL: none */
} environments[] = {
    {{NULL}, NULL},
    {{"HVD_RANK=1", "HVD_SIZE=2"}, "HVD_RANK"},
    {{"HOROVOD_RANK=1", "HOROVOD_SIZE=2"}, "HOROVOD_RANK"},
    {{"RANK=1", "WORLD_SIZE=2"}, "RANK"},
    {{"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2"}, "OMPI_COMM_WORLD_RANK"},
    {{"PMI_RANK=1", "PMI_SIZE=2"}, "PMI_RANK"},
    {{"SLURM_JOB_ID=5", "SLURM_STEP_ID=0", "SLURM_PROCID=1", "SLURM_NTASKS=2"}, "SLURM_PROCID"},
    {{"SLURM_JOB_ID=5", "SLURM_STEP_ID=4294967290", "SLURM_PROCID=0", "SLURM_NTASKS=4"}, NULL},
    {{"SLURM_JOB_ID=5", "SLURM_PROCID=0", "SLURM_NTASKS=4"}, NULL},
    {{"SLURM_STEP_ID=0"}, NULL},
    {{"RANK="}, NULL},
    {{"RANK=", "WORLD_SIZE="}, NULL},
    {{"HVD_RANK=", "PMI_RANK=0", "PMI_SIZE=1"}, "PMI_RANK"},
    {{"WORLD_SIZE=2"}, "RANK"}, /* the library refuses half of a pair */
    {{"RANK=0"}, "RANK"},
};

static void set_environment(int number)
{
    clearenv();
    for (size_t i = 0; environments[number].variables[i] != NULL; i++)
        ck_assert_int_eq(putenv((char *)(uintptr_t)environments[number].variables[i]), 0);
}

START_TEST(a_rank_of_the_library_is_one_of_hvd_perf)
{
    struct hvd_options options;
    struct client_identity identity = CLIENT_IDENTITY_INIT;
    set_environment(_i);
    const struct perf_launcher *launcher = perf_launcher();
    const char *wanted = environments[_i].launcher;
    ck_assert_str_eq(launcher != NULL ? launcher->rank : "none", wanted != NULL ? wanted : "none");
    hvd_options_init(&options);
    const int status = client_identity_resolve(&options, &identity);
    const bool single = status == HVD_OK && strcmp(identity.origin, "single") == 0;
    ck_assert_msg(single == (launcher == NULL), "%d, %s", status, identity.origin);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tools/hvd-perf/launcher");
    TCase *tests = tcase_create("launcher");
    tcase_add_loop_test(tests, a_rank_of_the_library_is_one_of_hvd_perf, 0,
                        sizeof environments / sizeof environments[0]);
    suite_add_tcase(suite, tests);
    return hvt_run_suite(suite);
}
