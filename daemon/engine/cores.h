/* SPDX-License-Identifier: Apache-2.0
 * On which processors the engine's threads run. The main thread alone calls these; nothing waits. */
#ifndef ENGINE_CORES_H
#define ENGINE_CORES_H

#include <sched.h>
#include <stdbool.h>
#include <sys/types.h>

struct engine_cores {
    cpu_set_t may;   /* what the process was started with; empty: nothing is ever set */
    cpu_set_t ranks; /* of that, what the ranks that have come may use */
    cpu_set_t now;   /* what the threads have */
};

/* Before the first thread: this one, and so those to come, keeps to the cpuset of the process at the other end of
 * `trainer_fd`. -1, or a process of which nothing is known: it stays as it is. */
void engine_cores_open(struct engine_cores *cores, int trainer_fd);
/* A rank comes; `pid` 0 and `pid_fd` -1 where they are not known. True: the threads have other processors now. */
bool engine_cores_add(struct engine_cores *cores, pid_t pid, int pid_fd);

#endif
