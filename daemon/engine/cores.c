/* SPDX-License-Identifier: Apache-2.0
 * An engine keeps to the processors of its ranks' control groups, as a batch system's cpuset:
 *
 *   threads run on = (cpuset of rank 0's cgroup + cpuset of rank 1's + ...) within what the process was started with
 *
 * The engine is in no cgroup of the job: it is hvdd's child or a unit's process, neither may make cgroups, and to be moved
 * into the job's would charge it to its ranks. So it sets affinities. The ranks' own affinities do not count: a rank that
 * is bound to one core must not draw the engine's threads there. A rank of which nothing can be found out may run
 * anywhere, as far as this goes; then the engine may, too. Where nothing is left, the engine stays where it is.
 *
 * The first rank that leaves ends the generation, so the set only grows. A cpuset that is changed under a running job
 * counts when the next rank comes. */
#include "daemon/engine/cores.h"

#include "base/cpuset.h"
#include "base/log.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

/* 0 or an errno number. */
static int move_to(struct engine_cores *cores, const cpu_set_t *set)
{
    const int error = CPU_COUNT(set) > 0 ? hvi_cpuset_bind(set) : ENOENT;

    if (error == 0)
        cores->now = *set;
    return error;
}

void engine_cores_open(struct engine_cores *cores, int trainer_fd)
{
    struct ucred trainer = {.pid = 0};
    socklen_t size = sizeof trainer;
    cpu_set_t set;

    memset(cores, 0, sizeof *cores);
    if (sched_getaffinity(0, sizeof cores->may, &cores->may) != 0)
        return; /* more than such a set can hold */
    cores->now = cores->may;
    if (trainer_fd < 0 || getsockopt(trainer_fd, SOL_SOCKET, SO_PEERCRED, &trainer, &size) != 0 ||
        !hvi_cpuset_of("", trainer.pid, &set))
        return;
    CPU_AND(&set, &set, &cores->may);
    move_to(cores, &set);
}

/* Then its pid may be another one's by now. */
static bool has_ended(int pid_fd)
{
    struct pollfd process = {.fd = pid_fd, .events = POLLIN};

    return poll(&process, 1, 0) > 0;
}

bool engine_cores_add(struct engine_cores *cores, pid_t pid, int pid_fd)
{
    cpu_set_t set;

    if (CPU_COUNT(&cores->may) == 0)
        return false;
    if (!hvi_cpuset_of("", pid, &set)) {
        HVI_LOG(HVI_LOG_DEBUG, "engine", "cores-unknown",
                "which processors a rank's control group has is not known", "pid=%d", (int)pid);
        set = cores->may;
    } else if (has_ended(pid_fd)) {
        return false;
    }
    CPU_AND(&set, &set, &cores->may);
    CPU_OR(&cores->ranks, &cores->ranks, &set);
    if (CPU_EQUAL(&cores->ranks, &cores->now))
        return false;
    const int error = move_to(cores, &cores->ranks);
    HVI_LOG(HVI_LOG_INFO, "engine", error != 0 ? "cores-kept" : "cores-set",
            error != 0 ? "the engine may not use the processors of its ranks' control groups"
                       : "the engine keeps to the processors of its ranks' control groups",
            "cores=%d error=\"%s\"", CPU_COUNT(&cores->ranks), error != 0 ? strerror(error) : "");
    return error == 0;
}
