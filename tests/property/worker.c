/* SPDX-License-Identifier: Apache-2.0
 * A worker is a process group that runs programs: all ranks as threads of one process, or each as a
 * process of its own. It ends at the first failure, in whatever state it is; whoever started it
 * looks at what it has left in shared memory, and ends it when it says nothing for too long. */
#include "tests/property/prop.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PROCESSES_EACH 6 /* stretches of which one has a process per rank */

uint64_t hvt_program_seed(uint64_t seed, uint64_t index)
{
    return (seed << 20) + index;
}

static int ranks_of(const struct hvt_job *job, uint64_t stretch)
{
    uint64_t random = hvt_mix(job->seed, stretch);
    uint32_t span = (uint32_t)(job->ranks_most - job->ranks_least + 1);
    uint32_t a = hvt_below(&random, span), b = hvt_below(&random, span);

    return job->ranks_least + (int)(a < b ? a : b);
}

struct hvt_program *hvt_program_at(const struct hvt_job *job, uint64_t index)
{
    uint64_t stretch = index / HVT_STRETCH;
    struct hvt_program *program =
        hvt_program_random(hvt_program_seed(job->seed, index), ranks_of(job, stretch));

    program->processes = hvt_mix(job->seed + 1, stretch) % PROCESSES_EACH == 0;
    return program;
}

/* ---- one rank ---- */

struct seat {
    const struct hvt_job *job;
    const struct hvt_program *program; /* NULL: those of the stretch */
    uint64_t from, to;
    int rank, ranks;
};

static void *run_seat(void *user)
{
    const struct seat *seat = user;
    struct hvt_shared *shared = seat->job->setup.shared;
    struct hvt_rank *rank = hvt_rank_open(&seat->job->setup, seat->rank, seat->ranks);

    for (uint64_t index = seat->from; index < seat->to; index++) {
        struct hvt_program *own = seat->program ? NULL : hvt_program_at(seat->job, index);
        hvt_shared_meet(shared, seat->ranks);
        if (seat->rank == 0) {
            memset((void *)(uintptr_t)shared->notes, 0, sizeof shared->notes);
            atomic_store(&shared->index, index);
            atomic_store(&shared->begun_ns, (uint64_t)hvt_now_ns());
            atomic_fetch_add(&shared->programs, 1);
        }
        hvt_shared_meet(shared, seat->ranks);
        hvt_rank_run(rank, seat->program ? seat->program : own);
        hvt_program_free(own);
    }
    hvt_shared_meet(shared, seat->ranks);
    hvt_rank_close(rank);
    return NULL;
}

static void run_threads(struct seat *seats, int ranks)
{
    pthread_t threads[HVT_RANKS];

    for (int i = 0; i < ranks; i++) {
        if (pthread_create(&threads[i], NULL, run_seat, &seats[i]) != 0)
            _exit(4);
    }
    for (int i = 0; i < ranks; i++)
        pthread_join(threads[i], NULL);
}

static void run_processes(struct seat *seats, int ranks)
{
    pid_t pids[HVT_RANKS];
    int status;

    for (int i = 0; i < ranks; i++) {
        pids[i] = fork();
        if (pids[i] != 0)
            continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        run_seat(&seats[i]);
        exit(0);
    }
    for (int i = 0; i < ranks; i++) {
        if (waitpid(-1, &status, 0) < 0)
            _exit(4);
        if (WIFSIGNALED(status))
            kill(getpid(), WTERMSIG(status));
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
            _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 4);
    }
}

static void run_stretch(const struct hvt_job *job, const struct hvt_program *program, uint64_t from,
                        uint64_t to, int ranks, bool processes)
{
    struct seat seats[HVT_RANKS];

    for (int i = 0; i < ranks; i++)
        seats[i] = (struct seat){job, program, from, to, i, ranks};
    if (processes)
        run_processes(seats, ranks);
    else
        run_threads(seats, ranks);
}

static void run_job(const struct hvt_job *job)
{
    for (uint64_t from = job->from; from < job->to;) {
        uint64_t to = (from / HVT_STRETCH + 1) * HVT_STRETCH;
        struct hvt_program *first = hvt_program_at(job, from);
        run_stretch(job, NULL, from, to < job->to ? to : job->to, first->ranks, first->processes);
        hvt_program_free(first);
        from = to;
    }
}

/* ---- from outside ---- */

void hvt_worker_start(struct hvt_job *job, const struct hvt_program *program)
{
    fflush(NULL);
    atomic_store(&job->setup.shared->begun_ns, (uint64_t)hvt_now_ns());
    job->pid = fork();
    if (job->pid != 0) {
        setpgid(job->pid, job->pid);
        return;
    }
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (program)
        run_stretch(job, program, 0, 1, program->ranks, program->processes != 0);
    else
        run_job(job);
    exit(0);
}

void hvt_worker_kill(struct hvt_job *job)
{
    kill(-job->pid, SIGKILL);
    waitpid(job->pid, NULL, 0);
}

static void say_end(struct hvt_job *job, int status)
{
    char text[128];

    if (WIFSIGNALED(status))
        snprintf(text, sizeof text, "killed by signal %d (%s)", WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    else
        snprintf(text, sizeof text, "ended with status %d", WEXITSTATUS(status));
    hvt_shared_fail(job->setup.shared, text);
}

static bool is_late(const struct hvt_job *job, int64_t limit_ns)
{
    return hvt_now_ns() - (int64_t)atomic_load(&job->setup.shared->begun_ns) > limit_ns;
}

bool hvt_worker_is_over(struct hvt_job *job, int wait_ms, int64_t limit_ns, bool *failed_p)
{
    struct timespec wait = {.tv_sec = wait_ms / 1000, .tv_nsec = wait_ms % 1000 * 1000000};
    struct hvt_shared *shared = job->setup.shared;
    sigset_t child;
    int status = 0;
    pid_t ended = waitpid(job->pid, &status, WNOHANG);

    sigemptyset(&child);
    sigaddset(&child, SIGCHLD); /* blocked: main.c */
    if (ended == 0 && wait_ms > 0 && sigtimedwait(&child, NULL, &wait) > 0)
        ended = waitpid(job->pid, &status, WNOHANG);
    if (ended == 0 && atomic_load(&shared->failed) != 2 && !is_late(job, limit_ns))
        return false;
    *failed_p = ended == 0 || status != 0 || atomic_load(&shared->failed) != 0;
    if (ended == 0) {
        hvt_shared_fail(shared, "a call that should return does not");
        hvt_worker_kill(job);
    } else if (*failed_p) {
        kill(-job->pid, SIGKILL); /* other ranks' processes */
        say_end(job, status);
    }
    return true;
}
