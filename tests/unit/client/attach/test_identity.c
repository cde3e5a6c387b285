/* SPDX-License-Identifier: Apache-2.0
 * Who am I: launchers' environments as tables, and what must not silently become "rank 0 of 1". */
#include "client/attach/identity.h"

#include "tests/unit/hvt_main.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct identity_case {
    const char *title;
    const char *environment[12];
    const char *expected; /* "rank/size local/size cross/size origin job" */
};

static const struct identity_case good[] = {
    {"hvdrun",
     {"HVD_RANK=2", "HVD_SIZE=4", "HVD_LOCAL_RANK=0", "HVD_LOCAL_SIZE=2", "HVD_CROSS_RANK=1",
      "HVD_CROSS_SIZE=2", "HVD_JOB_ID=run-7"},
     "2/4 0/2 1/2 hvdrun run-7"},
    {"hvdrun says only rank and size",
     {"HVD_RANK=3", "HVD_SIZE=4", "HVD_JOB_ID=run-7"},
     "3/4 3/4 0/1 hvdrun run-7"},
    {"horovodrun",
     {"HOROVOD_RANK=1", "HOROVOD_SIZE=2", "HOROVOD_LOCAL_RANK=1", "HOROVOD_LOCAL_SIZE=2",
      "HOROVOD_CROSS_RANK=0", "HOROVOD_CROSS_SIZE=1", "HOROVOD_GLOO_RENDEZVOUS_ADDR=10.0.0.1",
      "HOROVOD_GLOO_RENDEZVOUS_PORT=4711"},
     "1/2 1/2 0/1 horovodrun horovodrun-10.0.0.1.4711"},
    {"torchrun",
     {"RANK=5", "WORLD_SIZE=8", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=4", "GROUP_RANK=1",
      "GROUP_WORLD_SIZE=2", "TORCHELASTIC_RUN_ID=none", "MASTER_PORT=29500"},
     "5/8 1/4 1/2 torchrun torchrun-none.29500"},
    {"Open MPI 4",
     {"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_LOCAL_RANK=1",
      "OMPI_COMM_WORLD_LOCAL_SIZE=2", "OMPI_MCA_ess_base_jobid=3141"},
     "1/4 1/2 0/2 openmpi openmpi-3141"},
    {"Open MPI 5",
     {"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_LOCAL_RANK=0",
      "OMPI_COMM_WORLD_LOCAL_SIZE=2", "PMIX_NAMESPACE=prterun-host-99@1"},
     "0/2 0/2 0/1 openmpi openmpi-prterun-host-99@1"},
    {"Intel MPI",
     {"PMI_RANK=3", "PMI_SIZE=4", "MPI_LOCALRANKID=1", "MPI_LOCALNRANKS=2"},
     "3/4 1/2 1/2 pmi default"},
    {"Slurm task",
     {"SLURM_PROCID=3", "SLURM_NTASKS=4", "SLURM_LOCALID=1", "SLURM_NODEID=1", "SLURM_NNODES=2",
      "SLURM_JOB_ID=77", "SLURM_STEP_ID=0"},
     "3/4 1/2 1/2 slurm slurm-77.0"},
    {"a task of a Slurm job that was put back into the queue twice",
     {"SLURM_PROCID=3", "SLURM_NTASKS=4", "SLURM_LOCALID=1", "SLURM_NODEID=1", "SLURM_NNODES=2",
      "SLURM_JOB_ID=77", "SLURM_STEP_ID=0", "SLURM_RESTART_COUNT=2"},
     "3/4 1/2 1/2 slurm slurm-77.0.2"},
    {"the ranks of a node whose torchrun has restarted them once, where others have not",
     {"RANK=5", "WORLD_SIZE=8", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=4", "GROUP_RANK=1",
      "GROUP_WORLD_SIZE=2", "TORCHELASTIC_RUN_ID=none", "MASTER_PORT=29500",
      "TORCHELASTIC_RESTART_COUNT=1"},
     "5/8 1/4 1/2 torchrun torchrun-none.29500"},
    {"the last task of a Slurm step with seven on four nodes",
     {"SLURM_PROCID=6", "SLURM_NTASKS=7", "SLURM_LOCALID=0", "SLURM_NODEID=3", "SLURM_NNODES=4",
      "SLURM_STEP_NUM_NODES=4", "SLURM_STEP_TASKS_PER_NODE=2(x3),1", "SLURM_JOB_ID=77",
      "SLURM_STEP_ID=0"},
     "6/7 0/1 3/4 slurm slurm-77.0"},
    {"the first task of a node of that step",
     {"SLURM_PROCID=4", "SLURM_NTASKS=7", "SLURM_LOCALID=0", "SLURM_NODEID=2", "SLURM_NNODES=4",
      "SLURM_STEP_NUM_NODES=4", "SLURM_STEP_TASKS_PER_NODE=2(x3),1", "SLURM_JOB_ID=77",
      "SLURM_STEP_ID=0"},
     "4/7 0/2 2/4 slurm slurm-77.0"},
    {"a Slurm step whose nodes are said in a way that is not known",
     {"SLURM_PROCID=3", "SLURM_NTASKS=4", "SLURM_LOCALID=1", "SLURM_NODEID=1", "SLURM_NNODES=2",
      "SLURM_STEP_NUM_NODES=2", "SLURM_STEP_TASKS_PER_NODE=(x2)2", "SLURM_JOB_ID=77",
      "SLURM_STEP_ID=0"},
     "3/4 1/2 1/2 slurm slurm-77.0"},
    {"a Slurm step of four tasks in an allocation of two a node, all on one",
     {"SLURM_PROCID=3", "SLURM_NTASKS=4", "SLURM_LOCALID=3", "SLURM_NODEID=0", "SLURM_NNODES=2",
      "SLURM_STEP_NUM_NODES=1", "SLURM_NTASKS_PER_NODE=2", "SLURM_JOB_ID=77", "SLURM_STEP_ID=0"},
     "3/4 3/4 0/1 slurm slurm-77.0"},
    {"srun --mpi=pmi2 over two nodes",
     {"PMI_RANK=3", "PMI_SIZE=4", "PMI_JOBID=77.0", "SLURM_PROCID=3", "SLURM_NTASKS=4",
      "SLURM_STEP_NUM_NODES=2", "SLURM_JOB_ID=77", "SLURM_STEP_ID=0"},
     "3/4 1/2 1/2 pmi pmi-77.0"},
    {"MPICH's ranks on one node of a step with two",
     {"PMI_RANK=1", "PMI_SIZE=2", "MPI_LOCALRANKID=1", "MPI_LOCALNRANKS=2",
      "SLURM_STEP_NUM_NODES=2"},
     "1/2 1/2 0/1 pmi default"},
    {"the innermost wins: torchrun inside a Slurm task",
     {"SLURM_PROCID=0", "SLURM_NTASKS=2", "SLURM_JOB_ID=77", "SLURM_STEP_ID=0", "RANK=1",
      "WORLD_SIZE=4", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=4", "MASTER_PORT=1"},
     "1/4 1/4 0/1 torchrun torchrun-1"},
    {"the innermost wins: srun below mpirun below hvdrun",
     {"SLURM_PROCID=0", "SLURM_NTASKS=2", "SLURM_JOB_ID=77", "SLURM_STEP_ID=0",
      "OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=4", "HVD_RANK=5", "HVD_SIZE=6",
      "HVD_JOB_ID=h"},
     "5/6 5/6 0/1 hvdrun h"},
    {"mpirun where the cluster has exported RANK and WORLD_SIZE",
     {"RANK=0", "WORLD_SIZE=1", "MASTER_ADDR=pod-0", "MASTER_PORT=23456", "OMPI_COMM_WORLD_RANK=2",
      "OMPI_COMM_WORLD_SIZE=4", "OMPI_MCA_ess_base_jobid=3141"},
     "2/4 2/4 0/1 openmpi openmpi-3141"},
    {"mpiexec.hydra where a template has exported WORLD_SIZE alone",
     {"WORLD_SIZE=4", "PMI_RANK=2", "PMI_SIZE=4"},
     "2/4 2/4 0/1 pmi default"},
    {"a task of srun where the batch script has exported its own RANK",
     {"RANK=0", "WORLD_SIZE=4", "SLURM_PROCID=3", "SLURM_NTASKS=4", "SLURM_JOB_ID=77",
      "SLURM_STEP_ID=0"},
     "3/4 3/4 0/1 slurm slurm-77.0"},
    {"one task of srun that has started processes with RANK and WORLD_SIZE",
     {"RANK=3", "WORLD_SIZE=4", "MASTER_PORT=1", "SLURM_PROCID=0", "SLURM_NTASKS=1",
      "SLURM_JOB_ID=77", "SLURM_STEP_ID=0"},
     "3/4 3/4 0/1 torchrun torchrun-1"},
    {"one of two tasks of srun that have started processes with RANK and WORLD_SIZE",
     {"RANK=5", "WORLD_SIZE=8", "MASTER_PORT=1", "SLURM_PROCID=1", "SLURM_NTASKS=2",
      "SLURM_JOB_ID=77", "SLURM_STEP_ID=0"},
     "5/8 5/8 0/1 torchrun torchrun-1"},
    {"a batch script with RANK and WORLD_SIZE, which is no task",
     {"RANK=1", "WORLD_SIZE=2", "SLURM_PROCID=0", "SLURM_NTASKS=4", "SLURM_JOB_ID=77"},
     "1/2 1/2 0/1 torchrun default"},
    {"a pod of a PyTorchJob, where nothing else says a rank",
     {"RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=pod-0", "MASTER_PORT=23456"},
     "1/2 1/2 0/1 torchrun torchrun-23456"},
    {"HVD_ before HOROVOD_",
     {"HVD_RANK=0", "HVD_SIZE=3", "HOROVOD_RANK=1", "HOROVOD_SIZE=2", "HVD_JOB_ID=h"},
     "0/3 0/3 0/1 hvdrun h"},
    {"what a job id cannot hold becomes a dash",
     {"HVD_RANK=0", "HVD_SIZE=2", "HVD_JOB_ID=my job/\xc3\xa4"},
     "0/2 0/2 0/1 hvdrun my-job---"},
    {"an empty variable is not set",
     {"HVD_RANK=", "RANK=1", "WORLD_SIZE=2"},
     "1/2 1/2 0/1 torchrun default"},
    {"a job id for a process on its own", {"HVD_JOB_ID=mine"}, "0/1 0/1 0/1 single mine"},
};

struct bad_case {
    const char *title;
    const char *environment[8];
    int status;
    const char *words[3]; /* all in the sentence */
};

static const struct bad_case bad[] = {
    {"rank without size", {"HVD_RANK=1"}, HVD_ERR_INVALID, {"HVD_RANK is '1'", "HVD_SIZE"}},
    {"size without rank", {"WORLD_SIZE=2"}, HVD_ERR_INVALID, {"WORLD_SIZE is '2'", "RANK is not"}},
    {"size without rank, and half of another",
     {"WORLD_SIZE=2", "PMI_RANK=1"},
     HVD_ERR_INVALID,
     {"WORLD_SIZE is '2'", "RANK is not"}},
    {"words", {"HVD_RANK=one", "HVD_SIZE=2"}, HVD_ERR_INVALID, {"HVD_RANK", "'one'"}},
    {"trailing", {"HVD_RANK=1x", "HVD_SIZE=2"}, HVD_ERR_INVALID, {"HVD_RANK", "'1x'"}},
    {"negative", {"HVD_RANK=-1", "HVD_SIZE=2"}, HVD_ERR_INVALID, {"HVD_RANK", "'-1'"}},
    {"huge", {"RANK=99999999999999999999", "WORLD_SIZE=2"}, HVD_ERR_INVALID, {"RANK"}},
    {"blank", {"HVD_RANK= ", "HVD_SIZE=2"}, HVD_ERR_INVALID, {"HVD_RANK"}},
    {"local words",
     {"HVD_RANK=1", "HVD_SIZE=2", "HVD_LOCAL_RANK=x"},
     HVD_ERR_INVALID,
     {"HVD_LOCAL_RANK", "'x'"}},
    {"rank beyond size",
     {"HVD_RANK=2", "HVD_SIZE=2"},
     HVD_ERR_BAD_RANK,
     {"rank 2", "size 2", "hvdrun"}},
    {"local rank beyond local size",
     {"HVD_RANK=1", "HVD_SIZE=2", "HVD_LOCAL_RANK=2", "HVD_LOCAL_SIZE=2"},
     HVD_ERR_INVALID,
     {"local_rank 2", "local_size 2"}},
    {"more ranks here than anywhere",
     {"HVD_RANK=1", "HVD_SIZE=2", "HVD_LOCAL_RANK=1", "HVD_LOCAL_SIZE=3"},
     HVD_ERR_INVALID,
     {"local_size 3", "size 2", "hvdrun"}},
    {"no ranks", {"HVD_RANK=0", "HVD_SIZE=0"}, HVD_ERR_BAD_SIZE, {"size 0"}},
    {"too many ranks", {"HVD_RANK=0", "HVD_SIZE=5000"}, HVD_ERR_BAD_SIZE, {"5000"}},
};

static void set_environment(const char *const *variables)
{
    clearenv();
    for (size_t i = 0; variables[i]; i++)
        ck_assert_int_eq(putenv((char *)(uintptr_t)variables[i]), 0);
}

static int resolve(struct client_identity *identity_p)
{
    struct hvd_options options;
    hvd_options_init(&options);
    return client_identity_resolve(&options, identity_p);
}

static const char *describe(const struct client_identity *identity)
{
    static char text[512];
    snprintf(text, sizeof text, "%d/%d %d/%d %d/%d %s %s", identity->rank, identity->size,
             identity->local_rank, identity->local_size, identity->cross_rank, identity->cross_size,
             identity->origin, identity->job);
    return text;
}

START_TEST(every_launcher_is_understood)
{
    const struct identity_case *test = &good[_i];
    struct client_identity identity;
    set_environment(test->environment);
    ck_assert_msg(resolve(&identity) == HVD_OK, "%s: %s", test->title, hvd_last_error());
    ck_assert_msg(strcmp(describe(&identity), test->expected) == 0, "%s: got '%s', expected '%s'",
                  test->title, describe(&identity), test->expected);
}
END_TEST

START_TEST(half_an_identity_is_an_error_that_names_the_variable)
{
    const struct bad_case *test = &bad[_i];
    struct client_identity identity = {.rank = 99};
    set_environment(test->environment);
    ck_assert_msg(resolve(&identity) == test->status, "%s: %s", test->title, hvd_last_error());
    for (size_t i = 0; i < 3 && test->words[i]; i++)
        ck_assert_msg(strstr(hvd_last_error(), test->words[i]) != NULL, "%s: '%s' is not in '%s'",
                      test->title, test->words[i], hvd_last_error());
    ck_assert_msg(identity.rank == 99, "%s: an output was written on failure", test->title);
}
END_TEST

START_TEST(a_process_on_its_own_gets_a_job_of_its_own)
{
    static const char *const nothing[] = {NULL};
    struct client_identity first, second;
    set_environment(nothing);
    ck_assert_int_eq(resolve(&first), HVD_OK);
    ck_assert_int_eq(resolve(&second), HVD_OK);
    ck_assert_str_ne(first.job, second.job);
    ck_assert_int_eq(strncmp(first.job, "solo-", 5), 0);
    ck_assert_int_eq(first.size, 1);
    ck_assert_str_eq(first.origin, "single");
}
END_TEST

START_TEST(an_allocation_is_not_a_task)
{
    static const char *const salloc[] = {"SLURM_JOB_ID=5", "SLURM_NTASKS=4", NULL};
    static const char *const batch[] = {"SLURM_JOB_ID=5", "SLURM_NTASKS=4", "SLURM_PROCID=0",
                                        "SLURM_LOCALID=0", NULL};
    struct client_identity identity;
    set_environment(salloc);
    ck_assert_int_eq(resolve(&identity), HVD_OK);
    ck_assert_str_eq(identity.origin, "single");
    set_environment(batch);
    ck_assert_int_eq(resolve(&identity), HVD_OK);
    ck_assert_str_eq(identity.origin, "single");
}
END_TEST

/* salloc where LaunchParameters has use_interactive_step; SLURM_NTASKS is there if -n was given. */
START_TEST(the_shell_of_an_allocation_is_not_a_task_of_a_step)
{
    static const char *const shell[] = {"SLURM_JOB_ID=5",
                                        "SLURM_STEP_ID=4294967290",
                                        "SLURM_PROCID=0",
                                        "SLURM_LOCALID=0",
                                        "SLURM_STEP_NUM_TASKS=1",
                                        "SLURM_NTASKS=4",
                                        NULL};
    static const char *const without_n[] = {"SLURM_JOB_ID=5", "SLURM_STEP_ID=4294967290",
                                            "SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=1", NULL};
    struct client_identity identity;
    set_environment(shell);
    ck_assert_int_eq(resolve(&identity), HVD_OK);
    ck_assert_str_eq(identity.origin, "single");
    ck_assert_int_eq(identity.size, 1);
    set_environment(without_n);
    ck_assert_int_eq(resolve(&identity), HVD_OK);
    ck_assert_str_eq(identity.origin, "single");
}
END_TEST

START_TEST(arguments_come_before_every_environment)
{
    static const char *const hvdrun[] = {"HVD_RANK=0",       "HVD_SIZE=9",     "HVD_LOCAL_RANK=0",
                                         "HVD_LOCAL_SIZE=9", "HVD_JOB_ID=env", NULL};
    struct client_identity identity;
    struct hvd_options options;
    set_environment(hvdrun);
    hvd_options_init(&options);
    options.rank = 3;
    options.size = 4;
    ck_assert_int_eq(client_identity_resolve(&options, &identity), HVD_OK);
    ck_assert_str_eq(describe(&identity), "3/4 3/4 0/1 arguments env");
    options.job = "mine";
    options.local_rank = 1;
    options.local_size = 2;
    ck_assert_int_eq(client_identity_resolve(&options, &identity), HVD_OK);
    ck_assert_str_eq(describe(&identity), "3/4 1/2 1/2 arguments mine");
}
END_TEST

START_TEST(arguments_that_are_the_launchers_bring_its_other_numbers)
{
    static const char *const torchrun[] = {"RANK=3",
                                           "WORLD_SIZE=4",
                                           "LOCAL_RANK=1",
                                           "LOCAL_WORLD_SIZE=2",
                                           "GROUP_RANK=1",
                                           "GROUP_WORLD_SIZE=2",
                                           NULL};
    static const char *const broken[] = {"RANK=3", "WORLD_SIZE=4", "LOCAL_RANK=x", NULL};
    struct client_identity identity;
    struct hvd_options options;
    set_environment(torchrun);
    hvd_options_init(&options);
    options.job = "mine";
    options.rank = 3;
    options.size = 4;
    ck_assert_int_eq(client_identity_resolve(&options, &identity), HVD_OK);
    ck_assert_str_eq(describe(&identity), "3/4 1/2 1/2 arguments mine");
    options.rank = 1;
    options.size = 2;
    ck_assert_int_eq(client_identity_resolve(&options, &identity), HVD_OK);
    ck_assert_str_eq(describe(&identity), "1/2 1/2 0/1 arguments mine");
    set_environment(broken);
    options.rank = 3;
    options.size = 4;
    ck_assert_int_eq(client_identity_resolve(&options, &identity), HVD_OK);
    ck_assert_str_eq(describe(&identity), "3/4 3/4 0/1 arguments mine");
}
END_TEST

struct nodes_case {
    const char *title;
    const char *environment[12];
    int seats; /* ranks on this node */
};

static const struct nodes_case nodes[] = {
    {"hvdrun", {"HVD_RANK=3", "HVD_SIZE=4", "HVD_LOCAL_SIZE=4", "HVD_CROSS_SIZE=1"}, 4},
    {"nothing but rank and size", {"RANK=3", "WORLD_SIZE=4"}, 4},
    {"one task of a step in an allocation of two nodes",
     {"SLURM_PROCID=0", "SLURM_NTASKS=1", "SLURM_NNODES=2", "SLURM_JOB_ID=7", "SLURM_STEP_ID=0"},
     1},
    {"hvdrun, two nodes", {"HVD_RANK=3", "HVD_SIZE=4", "HVD_LOCAL_SIZE=2", "HVD_JOB_ID=h"}, 2},
    {"hvdrun, a million ranks",
     {"HVD_RANK=900000", "HVD_SIZE=1000000", "HVD_LOCAL_RANK=3", "HVD_LOCAL_SIZE=4"},
     4},
    {"horovodrun, three nodes", {"HOROVOD_RANK=0", "HOROVOD_SIZE=5", "HOROVOD_LOCAL_SIZE=2"}, 2},
    {"torchrun, two nodes",
     {"RANK=0", "WORLD_SIZE=2", "LOCAL_WORLD_SIZE=1", "GROUP_WORLD_SIZE=2"},
     1},
    {"Open MPI, two nodes",
     {"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=3", "OMPI_COMM_WORLD_LOCAL_SIZE=2"},
     2},
    {"Intel MPI, two nodes", {"PMI_RANK=0", "PMI_SIZE=4", "MPI_LOCALNRANKS=3"}, 3},
    {"the numbers of nodes and of ranks here do not fit each other: hvdd says so",
     {"HVD_RANK=0", "HVD_SIZE=4", "HVD_LOCAL_SIZE=4", "HVD_CROSS_SIZE=2"},
     4},
};

START_TEST(a_job_on_several_nodes_has_a_seat_for_each_rank_of_this_one)
{
    const struct nodes_case *test = &nodes[_i];
    struct client_identity identity;
    set_environment(test->environment);
    ck_assert_msg(resolve(&identity) == HVD_OK, "%s: %s", test->title, hvd_last_error());
    ck_assert_msg(client_identity_seats(&identity) == test->seats, "%s: %d", test->title,
                  client_identity_seats(&identity));
}
END_TEST

START_TEST(more_ranks_than_one_node_can_hold_are_an_error)
{
    static const char *const one[] = {"RANK=0", "WORLD_SIZE=1025", NULL};
    static const char *const many[] = {"RANK=0", "WORLD_SIZE=4096", "LOCAL_RANK=0",
                                       "LOCAL_WORLD_SIZE=1025", NULL};
    static const char *const all[] = {"RANK=0", "WORLD_SIZE=1048577", "LOCAL_RANK=0",
                                      "LOCAL_WORLD_SIZE=8", NULL};
    struct client_identity identity;

    set_environment(one);
    ck_assert_int_eq(resolve(&identity), HVD_ERR_BAD_SIZE);
    ck_assert_ptr_nonnull(strstr(hvd_last_error(), "1025 ranks on this node (from torchrun: "));
    set_environment(many);
    ck_assert_int_eq(resolve(&identity), HVD_ERR_BAD_SIZE);
    set_environment(all);
    ck_assert_int_eq(resolve(&identity), HVD_ERR_BAD_SIZE);
    ck_assert_ptr_nonnull(strstr(hvd_last_error(), "size 1048577 (from torchrun) is not in"));
}
END_TEST

START_TEST(one_argument_of_two_is_an_error)
{
    static const char *const nothing[] = {NULL};
    struct client_identity identity;
    struct hvd_options options;
    set_environment(nothing);
    hvd_options_init(&options);
    options.rank = 1;
    ck_assert_int_eq(client_identity_resolve(&options, &identity), HVD_ERR_INVALID);
    hvd_options_init(&options);
    options.size = 2;
    ck_assert_int_eq(client_identity_resolve(&options, &identity), HVD_ERR_INVALID);
    options.rank = -7;
    ck_assert_int_eq(client_identity_resolve(&options, &identity), HVD_ERR_BAD_RANK);
}
END_TEST

START_TEST(a_bad_job_argument_is_refused_and_not_changed)
{
    static const char *const nothing[] = {NULL};
    static const char *const jobs[] = {"", "a b", "a/b", "..", "\xc3\xa4"};
    struct client_identity identity;
    struct hvd_options options;
    char long_job[HVI_JOB_ID_MAX + 2];
    set_environment(nothing);
    hvd_options_init(&options);
    for (size_t i = 0; i < sizeof jobs / sizeof jobs[0]; i++) {
        options.job = jobs[i];
        ck_assert_int_eq(client_identity_resolve(&options, &identity), HVD_ERR_INVALID);
    }
    memset(long_job, 'a', sizeof long_job - 1);
    long_job[sizeof long_job - 1] = '\0';
    options.job = long_job;
    ck_assert_int_eq(client_identity_resolve(&options, &identity), HVD_ERR_INVALID);
    options.job = long_job + 1;
    ck_assert_int_eq(client_identity_resolve(&options, &identity), HVD_OK);
}
END_TEST

START_TEST(a_job_id_from_the_environment_that_is_too_long_is_an_error)
{
    static char variable[300] = "HVD_JOB_ID=";
    const char *environment[] = {variable, NULL};
    struct client_identity identity;
    memset(variable + strlen(variable), 'j', 200);
    set_environment(environment);
    ck_assert_int_eq(resolve(&identity), HVD_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(hvd_last_error(), "HVD_JOB_ID"));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client identity");
    TCase *tcase = tcase_create("identity");
    tcase_add_loop_test(tcase, every_launcher_is_understood, 0,
                        (int)(sizeof good / sizeof good[0]));
    tcase_add_loop_test(tcase, half_an_identity_is_an_error_that_names_the_variable, 0,
                        (int)(sizeof bad / sizeof bad[0]));
    tcase_add_test(tcase, a_process_on_its_own_gets_a_job_of_its_own);
    tcase_add_test(tcase, an_allocation_is_not_a_task);
    tcase_add_test(tcase, the_shell_of_an_allocation_is_not_a_task_of_a_step);
    tcase_add_test(tcase, arguments_come_before_every_environment);
    tcase_add_test(tcase, arguments_that_are_the_launchers_bring_its_other_numbers);
    tcase_add_loop_test(tcase, a_job_on_several_nodes_has_a_seat_for_each_rank_of_this_one, 0,
                        (int)(sizeof nodes / sizeof nodes[0]));
    tcase_add_test(tcase, more_ranks_than_one_node_can_hold_are_an_error);
    tcase_add_test(tcase, one_argument_of_two_is_an_error);
    tcase_add_test(tcase, a_bad_job_argument_is_refused_and_not_changed);
    tcase_add_test(tcase, a_job_id_from_the_environment_that_is_too_long_is_an_error);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
