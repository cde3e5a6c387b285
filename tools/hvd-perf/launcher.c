/* SPDX-License-Identifier: Apache-2.0
 * Whether a launcher started this process as one of its ranks. The rule is libhvdclient's: an empty
 * variable is none, and either of rank and size is enough. */
#include "tools/hvd-perf/perf.h"

#include "base/slurm.h"

#include <stdlib.h>

static const struct perf_launcher launchers[] = {
    {"HVD_RANK", "HVD_SIZE"}, {"HOROVOD_RANK", "HOROVOD_SIZE"},
    {"RANK", "WORLD_SIZE"},   {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
    {"PMI_RANK", "PMI_SIZE"},
};
static const struct perf_launcher slurm = {"SLURM_PROCID", "SLURM_NTASKS"};

static const char *variable(const char *name)
{
    const char *value = getenv(name);
    return value != NULL && value[0] != '\0' ? value : NULL;
}

/* Inside an allocation only a step that srun made has ranks. */
static bool is_rank_of_slurm(void)
{
    const bool in_vain =
        variable("SLURM_JOB_ID") != NULL && !hvi_slurm_is_step_of_ranks(variable("SLURM_STEP_ID"));
    return variable(slurm.rank) != NULL && !in_vain;
}

const struct perf_launcher *perf_launcher(void)
{
    for (size_t i = 0; i < sizeof launchers / sizeof launchers[0]; i++)
        if (variable(launchers[i].rank) != NULL || variable(launchers[i].size) != NULL)
            return &launchers[i];
    return is_rank_of_slurm() ? &slurm : NULL;
}

void perf_launcher_warn(const struct perf_launcher *launcher, int ranks)
{
    const char *rank = variable(launcher->rank);
    const char *size = variable(launcher->size);
    const bool first = rank == NULL || strtol(rank, NULL, 10) == 0;
    if (ranks == 0 || !first || (size != NULL && strtol(size, NULL, 10) == ranks))
        return;
    fprintf(stderr,
            "hvd-perf: -n %d has no effect: %s=%s says that this process is a rank of a launcher; "
            "unset it to start ranks here\n",
            ranks, rank != NULL ? launcher->rank : launcher->size, rank != NULL ? rank : size);
}
