/* SPDX-License-Identifier: Apache-2.0
 * Sets of processors. Those that a process' control group leaves it are what a batch system or a container runtime has given a
 * job; its affinity, which a launcher may have narrowed to one core, is another thing. */
#ifndef HVI_BASE_CPUSET_H
#define HVI_BASE_CPUSET_H

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* Room for what hvi_cpuset_print writes, but for sets with many gaps. */
#define HVI_CPUSET_TEXT 1024u

/* Of the cpuset that the process is in (versions 1 and 2). False: it cannot be found out, as there is no such process, or none that
 * the caller may see, or no cpusets. `root` stands before /proc and /sys; "" but in tests. Reads two or three small files:
 * some 20 us. Any thread. */
bool hvi_cpuset_of(const char *root, pid_t pid, cpu_set_t *set_p);
/* Binds all threads of this process, and so those that they will start. 0 or an errno number; EINVAL: the kernel leaves it none of
 * these. One that a thread starts which is not bound yet may be left out. Any thread. */
int hvi_cpuset_bind(const cpu_set_t *set);

/* "0-3,8", as the kernel writes it, with or without a line's end. False: it is no such list, or empty. Numbers that a set
 * cannot hold are left out. */
bool hvi_cpuset_parse(const char *text, cpu_set_t *set_p);
/* False, and "": there is no room for it. */
bool hvi_cpuset_print(const cpu_set_t *set, char *text_p, size_t size);

#endif
