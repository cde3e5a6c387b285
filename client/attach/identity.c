/* SPDX-License-Identifier: Apache-2.0
 * Identity: one row per launcher, tried from the innermost to the outermost (hvdrun inside srun
 * means hvdrun), first row whose rank is set wins and gives all six numbers; numbers of different
 * launchers are never mixed. What a row does not say is derived from rank and size on the
 * assumption that ranks are numbered node by node.
 *
 * Half an identity is an error and never "rank 0 of 1": a trainer that silently trains alone is
 * worse than one that stops. Slurm is the exception in one direction: a batch script sees
 * SLURM_NTASKS (and in its batch step SLURM_PROCID) without being a task of a step, so only
 * processes with a step count. The shell that salloc opens in a step of its own
 * (use_interactive_step) has a number of a step too, and the allocation's SLURM_NTASKS: Slurm gives
 * such steps the highest numbers.
 *
 * SLURM_NTASKS_PER_NODE is not read: a step inherits it from its allocation, whatever its own number
 * of tasks is. SLURM_STEP_TASKS_PER_NODE is the step's own. `srun --mpi=pmi2` gives PMI's variables
 * without a word about nodes; its step is then the same launch, and tells.
 *
 * Clusters and templates export RANK and WORLD_SIZE for programs of torch. Where neither LOCAL_RANK nor
 * TORCHELASTIC_RUN_ID is beside them, they do not say that torchrun or the like has started this process, and
 * the whole identity of a later row outranks them. A later row of fewer processes does not: `srun` or `mpirun`
 * with one process a node may run the program that starts them.
 *
 * Arguments that name the rank and size that the launcher gave mean the launcher's process: its
 * other four numbers hold too.
 *
 * Slurm starts a job that it has put back into its queue under the same number. SLURM_RESTART_COUNT is then
 * part of the job id, or the new ranks would meet what still waits on a node that was cut off.
 * TORCHELASTIC_RESTART_COUNT is not: it counts the restarts of one node's agent, and the agents of one job
 * differ in it when they start their ranks again because another one did. */
#include "client/attach/identity.h"

#include "base/slurm.h"
#include "client/error.h"
#include "proto/wire.h"

#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct launcher {
    const char *origin;
    const char *rank, *size;             /* both or neither */
    const char *local_rank, *local_size; /* may be NULL or unset, like all below */
    const char *cross_rank, *cross_size;
    const char *cross_size_instead; /* where neither local_size nor cross_size is set */
    const char *evidence[2];        /* without either, a later row may outrank this one */
    const char *local_sizes;        /* of all nodes, "2(x3),1"; by cross_rank */
    const char *allocation, *step;  /* inside .allocation only a process with .step is a rank; its
                                       number is one of those that srun gives */
    const char *job[2];             /* the job id is "<origin>-<value>[.<value>][.<restarts>]" */
    const char *job_instead;        /* of job[0] when that is not set */
    const char *restarts;           /* of the same job; the same number on every node */
};

static const struct launcher launchers[] = {
    {
        .origin = "hvdrun",
        .rank = "HVD_RANK",
        .size = "HVD_SIZE",
        .local_rank = "HVD_LOCAL_RANK",
        .local_size = "HVD_LOCAL_SIZE",
        .cross_rank = "HVD_CROSS_RANK",
        .cross_size = "HVD_CROSS_SIZE",
    },
    {
        .origin = "horovodrun",
        .rank = "HOROVOD_RANK",
        .size = "HOROVOD_SIZE",
        .local_rank = "HOROVOD_LOCAL_RANK",
        .local_size = "HOROVOD_LOCAL_SIZE",
        .cross_rank = "HOROVOD_CROSS_RANK",
        .cross_size = "HOROVOD_CROSS_SIZE",
        .job = {"HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"},
    },
    {
        .origin = "torchrun",
        .rank = "RANK",
        .size = "WORLD_SIZE",
        .local_rank = "LOCAL_RANK",
        .local_size = "LOCAL_WORLD_SIZE",
        .cross_rank = "GROUP_RANK",
        .cross_size = "GROUP_WORLD_SIZE",
        .evidence = {"LOCAL_RANK", "TORCHELASTIC_RUN_ID"},
        .job = {"TORCHELASTIC_RUN_ID", "MASTER_PORT"},
    },
    {
        .origin = "openmpi",
        .rank = "OMPI_COMM_WORLD_RANK",
        .size = "OMPI_COMM_WORLD_SIZE",
        .local_rank = "OMPI_COMM_WORLD_LOCAL_RANK",
        .local_size = "OMPI_COMM_WORLD_LOCAL_SIZE",
        .job = {"OMPI_MCA_ess_base_jobid", NULL},
        .job_instead = "PMIX_NAMESPACE",
    },
    {
        .origin = "pmi",
        .rank = "PMI_RANK",
        .size = "PMI_SIZE",
        .local_rank = "MPI_LOCALRANKID",
        .local_size = "MPI_LOCALNRANKS",
        .cross_size_instead = "SLURM_STEP_NUM_NODES",
        .job = {"PMI_JOBID", NULL},
        .job_instead = "PMI_KVS",
        .restarts = "SLURM_RESTART_COUNT",
    },
    {
        .origin = "slurm",
        .rank = "SLURM_PROCID",
        .size = "SLURM_NTASKS",
        .local_rank = "SLURM_LOCALID",
        .cross_rank = "SLURM_NODEID",
        .cross_size = "SLURM_STEP_NUM_NODES",
        .cross_size_instead = "SLURM_NNODES",
        .local_sizes = "SLURM_STEP_TASKS_PER_NODE",
        .allocation = "SLURM_JOB_ID",
        .step = "SLURM_STEP_ID",
        .job = {"SLURM_JOB_ID", "SLURM_STEP_ID"},
        .restarts = "SLURM_RESTART_COUNT",
    },
};
#define LAUNCHERS (sizeof(launchers) / sizeof(launchers[0]))

/* NULL and "" are both "not set". */
static const char *variable(const char *name)
{
    const char *value = name ? getenv(name) : NULL;
    return value && value[0] ? value : NULL;
}

static int read_number(const char *name, int *number_p)
{
    const char *value = variable(name);
    char *end;
    errno = 0;
    long number = strtol(value, &end, 10);
    if (errno || *end || end == value || number < 0 || number > INT_MAX)
        return client_error(HVD_ERR_INVALID,
                            "hvd_open: the environment variable %s is '%s', which is not a number "
                            "from 0 to %d",
                            name, value, INT_MAX);
    *number_p = (int)number;
    return HVD_OK;
}

/* Leaves *number_p alone when the variable is not set. */
static int read_optional(const char *name, int *number_p)
{
    return variable(name) ? read_number(name, number_p) : HVD_OK;
}

static bool launcher_present(const struct launcher *launcher)
{
    if (!launcher->allocation)
        return variable(launcher->rank) || variable(launcher->size);
    if (variable(launcher->allocation) && !hvi_slurm_is_step_of_ranks(variable(launcher->step)))
        return false;
    return variable(launcher->rank);
}

/* "2(x3),1" are three nodes with 2 and one with 1. -1: it does not say. */
static int size_on_node(const char *sizes, long node)
{
    while (sizes && *sizes >= '0' && *sizes <= '9') {
        char *at;
        long size = strtol(sizes, &at, 10), nodes = 1;
        if (strncmp(at, "(x", 2) == 0) {
            nodes = strtol(at + 2, &at, 10);
            at += *at == ')';
        }
        if (node < nodes)
            return size > 0 && size <= HVI_JOB_RANKS_MAX ? (int)size : -1;
        node -= nodes;
        sizes = *at == ',' ? at + 1 : NULL;
    }
    return -1;
}

static int read_launcher(const struct launcher *launcher, struct client_identity *identity)
{
    const char *set = variable(launcher->rank) ? launcher->rank : launcher->size;
    const char *missing = set == launcher->rank ? launcher->size : launcher->rank;
    int rc;
    if (!variable(missing))
        return client_error(HVD_ERR_INVALID,
                            "hvd_open: the environment variable %s is '%s' but %s is not set; set "
                            "both or neither",
                            set, variable(set), missing);
    if ((rc = read_number(launcher->rank, &identity->rank)) != HVD_OK ||
        (rc = read_number(launcher->size, &identity->size)) != HVD_OK ||
        (rc = read_optional(launcher->local_rank, &identity->local_rank)) != HVD_OK ||
        (rc = read_optional(launcher->local_size, &identity->local_size)) != HVD_OK ||
        (rc = read_optional(launcher->cross_rank, &identity->cross_rank)) != HVD_OK ||
        (rc = read_optional(launcher->cross_size, &identity->cross_size)) != HVD_OK)
        return rc;
    if (identity->local_size < 0 && identity->cross_rank >= 0)
        identity->local_size = size_on_node(variable(launcher->local_sizes), identity->cross_rank);
    if (identity->local_size < 0 && identity->cross_size < 0)
        rc = read_optional(launcher->cross_size_instead, &identity->cross_size);
    identity->origin = launcher->origin;
    return rc;
}

/* How many processes a whole identity speaks of; 0: it is none. */
static long launcher_size(const struct launcher *launcher)
{
    const bool whole =
        launcher_present(launcher) && variable(launcher->rank) && variable(launcher->size);
    return whole ? strtol(variable(launcher->size), NULL, 10) : 0;
}

static bool outranked(const struct launcher *launcher)
{
    if (!launcher->evidence[0] || variable(launcher->evidence[0]) ||
        variable(launcher->evidence[1]))
        return false;
    for (const struct launcher *later = launcher + 1; later < launchers + LAUNCHERS; later++)
        if (launcher_size(later) > 0)
            return launcher_size(later) >= launcher_size(launcher);
    return false;
}

/* NULL: nothing has started this process. */
static const struct launcher *innermost_launcher(void)
{
    for (const struct launcher *row = launchers; row < launchers + LAUNCHERS; row++)
        if (launcher_present(row) && !outranked(row))
            return row;
    return NULL;
}

static void take_the_launchers_word(struct client_identity *identity)
{
    const struct launcher *launcher = innermost_launcher();
    struct client_identity said = CLIENT_IDENTITY_INIT;
    if (!launcher || read_launcher(launcher, &said) != HVD_OK || said.rank != identity->rank ||
        said.size != identity->size)
        return;
    said.origin = identity->origin;
    *identity = said;
}

static int read_arguments(const struct hvd_options *options, struct client_identity *identity)
{
    if (options->rank == HVD_FROM_ENV || options->size == HVD_FROM_ENV)
        return client_error(HVD_ERR_INVALID,
                            "hvd_open: rank is %d and size is %d; give both or leave both to the "
                            "environment",
                            options->rank, options->size);
    identity->rank = options->rank;
    identity->size = options->size;
    identity->origin = "arguments";
    take_the_launchers_word(identity);
    return HVD_OK;
}

/* *launcher_p becomes the launcher whose numbers were taken, or NULL. */
static int read_numbers(const struct hvd_options *options, struct client_identity *identity,
                        const struct launcher **launcher_p)
{
    *launcher_p = NULL;
    if (options->rank != HVD_FROM_ENV || options->size != HVD_FROM_ENV)
        return read_arguments(options, identity);
    *launcher_p = innermost_launcher();
    if (*launcher_p)
        return read_launcher(*launcher_p, identity);
    identity->rank = 0;
    identity->size = 1;
    identity->origin = "single";
    return HVD_OK;
}

static void override(int argument, int *number_p)
{
    if (argument != HVD_FROM_ENV)
        *number_p = argument;
}

/* Fills what is not given. Ranks are numbered node by node, every node has local_size of them. */
static void derive(struct client_identity *identity)
{
    if (identity->local_size < 0 && identity->cross_size > 0 &&
        identity->size % identity->cross_size == 0)
        identity->local_size = identity->size / identity->cross_size;
    if (identity->local_size < 0)
        identity->local_size = identity->size;
    if (identity->local_rank < 0)
        identity->local_rank =
            identity->local_size > 0 ? identity->rank % identity->local_size : identity->rank;
    if (identity->cross_size < 0)
        identity->cross_size =
            identity->local_size > 0
                ? (identity->size + identity->local_size - 1) / identity->local_size
                : 1;
    if (identity->cross_rank < 0)
        identity->cross_rank = identity->local_size > 0 ? identity->rank / identity->local_size : 0;
}

static int check_pair(int status, const char *what, int rank, int size, const char *origin)
{
    if (rank >= 0 && rank < size)
        return HVD_OK;
    return client_error(status, "hvd_open: %srank %d does not fit %ssize %d (from %s)", what, rank,
                        what, size, origin);
}

static int check(const struct client_identity *identity)
{
    int rc;
    if (identity->size < 1 || identity->size > HVI_JOB_RANKS_MAX)
        return client_error(HVD_ERR_BAD_SIZE,
                            "hvd_open: size %d (from %s) is not in 1..%d, the ranks a job can have",
                            identity->size, identity->origin, HVI_JOB_RANKS_MAX);
    if (client_identity_seats(identity) > HVI_RANKS_MAX)
        return client_error(HVD_ERR_BAD_SIZE,
                            "hvd_open: %d ranks on this node (from %s: size %d, local_size %d) are "
                            "more than the %d that one node can hold",
                            client_identity_seats(identity), identity->origin, identity->size,
                            identity->local_size, HVI_RANKS_MAX);
    rc = check_pair(HVD_ERR_BAD_RANK, "", identity->rank, identity->size, identity->origin);
    if (rc != HVD_OK)
        return rc;
    if (identity->local_size > identity->size)
        return client_error(HVD_ERR_INVALID,
                            "hvd_open: local_size %d is larger than size %d (from %s)",
                            identity->local_size, identity->size, identity->origin);
    rc = check_pair(HVD_ERR_INVALID, "local_", identity->local_rank, identity->local_size,
                    identity->origin);
    if (rc != HVD_OK)
        return rc;
    return check_pair(HVD_ERR_INVALID, "cross_", identity->cross_rank, identity->cross_size,
                      identity->origin);
}

/* Copies an id that came from the environment; what a job id cannot hold becomes '-'. */
static int set_job(struct client_identity *identity, const char *name, const char *text)
{
    if (strlen(text) > HVI_JOB_ID_MAX)
        return client_error(HVD_ERR_INVALID,
                            "hvd_open: the job id '%s' (from %s) is longer than %d bytes; set "
                            "HVD_JOB_ID to a short one",
                            text, name, HVI_JOB_ID_MAX);
    snprintf(identity->job, sizeof(identity->job), "%s", text);
    for (char *c = identity->job; *c; c++) {
        char probe[3] = {'a', *c, '\0'};
        if (!hvi_job_id_valid(probe))
            *c = '-';
    }
    if (!hvi_job_id_valid(identity->job))
        return client_error(HVD_ERR_INVALID, "hvd_open: '%s' (from %s) is no job id", text, name);
    return HVD_OK;
}

/* The launcher's own name for this run; leaves the job empty when it has none. */
static int job_from_launcher(const struct launcher *launcher, struct client_identity *identity)
{
    char text[1024];
    const char *first = variable(launcher->job[0]);
    const char *second = variable(launcher->job[1]);
    const char *restarts = variable(launcher->restarts);
    if (!first)
        first = variable(launcher->job_instead);
    if (!first && !second)
        return HVD_OK;
    snprintf(text, sizeof(text), "%s-%s%s%s%s%s", launcher->origin, first ? first : "",
             first && second ? "." : "", second ? second : "", restarts ? "." : "",
             restarts ? restarts : "");
    return set_job(identity, launcher->origin, text);
}

/* A process on its own has a job of its own, however many of them this user runs. Its pid is for people:
 * in each of several pid namespaces a process may have it. */
static void job_of_one(struct client_identity *identity)
{
    static _Atomic unsigned solos;
    unsigned n = atomic_fetch_add_explicit(&solos, 1, memory_order_relaxed) + 1;
    struct stat namespace;
    unsigned long number = stat("/proc/self/ns/pid", &namespace) == 0 ? namespace.st_ino : 0;
    snprintf(identity->job, sizeof(identity->job), "solo-%ld-%u-%lx", (long)getpid(), n, number);
}

static int job_from_argument(const char *job, struct client_identity *identity)
{
    if (!hvi_job_id_valid(job))
        return client_error(HVD_ERR_INVALID,
                            "hvd_open: '%s' is no job id; it takes 1 to %d letters, digits or any "
                            "of . _ : @ -",
                            job, HVI_JOB_ID_MAX);
    snprintf(identity->job, sizeof(identity->job), "%s", job);
    return HVD_OK;
}

static int resolve_job(const struct hvd_options *options, const struct launcher *launcher,
                       struct client_identity *identity)
{
    int rc = HVD_OK;
    if (options->job)
        return job_from_argument(options->job, identity);
    if (variable("HVD_JOB_ID"))
        return set_job(identity, "HVD_JOB_ID", variable("HVD_JOB_ID"));
    if (launcher)
        rc = job_from_launcher(launcher, identity);
    if (rc != HVD_OK || identity->job[0])
        return rc;
    if (identity->size == 1)
        job_of_one(identity);
    else
        snprintf(identity->job, sizeof(identity->job), "default");
    return HVD_OK;
}

int client_identity_resolve(const struct hvd_options *options, struct client_identity *identity_p)
{
    struct client_identity identity = CLIENT_IDENTITY_INIT;
    const struct launcher *launcher;
    int rc = read_numbers(options, &identity, &launcher);
    if (rc != HVD_OK)
        return rc;
    override(options->local_rank, &identity.local_rank);
    override(options->local_size, &identity.local_size);
    override(options->cross_rank, &identity.cross_rank);
    override(options->cross_size, &identity.cross_size);
    derive(&identity);
    if ((rc = check(&identity)) != HVD_OK ||
        (rc = resolve_job(options, launcher, &identity)) != HVD_OK)
        return rc;
    *identity_p = identity;
    return HVD_OK;
}

int client_identity_seats(const struct client_identity *identity)
{
    int nodes = hvi_job_nodes(identity->size, identity->local_size, identity->cross_size);
    return nodes > 1 ? identity->local_size : identity->size;
}
