/* SPDX-License-Identifier: Apache-2.0
 * Which hosts of a job are one machine, and how they divide its cores. Any thread. */
#ifndef HVI_TOOLS_HVDRUN_DIVIDE_H
#define HVI_TOOLS_HVDRUN_DIVIDE_H

#include "base/cpuset.h"
#include "proto/launch.h"
#include "tools/hvdrun/hosts.h"

/* That of a host, as its agent describes it, and how many ranks of the job it has. */
struct run_machine {
    char kernel[HVI_LAUNCH_KERNEL_TEXT];
    char cores[HVI_CPUSET_TEXT];
    /* On this host, on the machine's hosts before it, on all of them; `there` 0: the machine has one host. */
    uint32_t ranks, before, there;
};

/* This machine, for a greeting. No cores: they are not to be divided, or not known. `root` stands before /proc and /sys; "" but in tests. */
void run_divide_describe(const char *root, struct hvi_launch_hello *hello);
/* What a host's agent says. */
void run_divide_note(struct run_machine *machine_p, const struct hvi_launch_hello *hello);
/* When all hosts have said it: counts the ranks. Without memory for that all machines stay whole. */
void run_divide(struct run_machine *machines, const struct run_hosts *hosts);
/* Leaves of `cores` the part of `ranks` ranks among `there`, behind the part of the first `before`. It has one core at least; a core
 * that would be cut belongs to both parts. */
void run_divide_cut(const char *root, size_t before, size_t ranks, size_t there, cpu_set_t *cores);

#endif
