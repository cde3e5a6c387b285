/* SPDX-License-Identifier: Apache-2.0
 * Hosts of one machine: the same boot of a kernel, and the same cores that they may use. Containers whose sets differ, or which
 * have a quota of the cores' time, have been given parts already. Each host has cores in a row, in the order of the hosts:
 *
 *     cores 0-7; a:2, b:1, c:1     a 0-3, b 4-5, c 6-7
 *     cores 0-1; four hosts        0, 0, 1, 1
 *     cores 0-1; a:3, b:1          a 0-1, b 1: no rank has less than it would have without
 *
 * In a row: by package, core and thread, so that hosts share no core's two threads. Why: docs/adr/0034. */
#include "tools/hvdrun/divide.h"

#include "base/available.h"
#include "base/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void run_divide_describe(const char *root, struct hvi_launch_hello *hello)
{
    char path[256];
    cpu_set_t cores;

    snprintf(path, sizeof path, "%s/proc/sys/kernel/random/boot_id", root);
    hvi_file_read(path, hello->kernel, sizeof hello->kernel);
    hello->kernel[strcspn(hello->kernel, "\n")] = '\0';
    hello->cores[0] = '\0';
    if (!hvi_cores_have_quota(root) && sched_getaffinity(0, sizeof cores, &cores) == 0)
        hvi_cpuset_print(&cores, hello->cores, sizeof hello->cores);
}

void run_divide_note(struct run_machine *machine_p, const struct hvi_launch_hello *hello)
{
    memcpy(machine_p->kernel, hello->kernel, sizeof machine_p->kernel);
    memcpy(machine_p->cores, hello->cores, sizeof machine_p->cores);
}

/* Which machine, for hosts of one to stand together. */
static int compare_machines(const struct run_machine *a, const struct run_machine *b)
{
    const int order = strcmp(a->kernel, b->kernel);

    return order != 0 ? order : strcmp(a->cores, b->cores);
}

static int compare(const void *a, const void *b)
{
    const struct run_machine *one = *(struct run_machine *const *)a,
                             *other = *(struct run_machine *const *)b;
    const int order = compare_machines(one, other);

    return order != 0 ? order : one < other ? -1 : 1;
}

/* The hosts of one machine, in their order. */
static void count_ranks(struct run_machine **hosts, size_t count)
{
    uint32_t there = 0;

    if (count < 2 || hosts[0]->kernel[0] == '\0' || hosts[0]->cores[0] == '\0')
        return;
    for (size_t i = 0; i < count; i++) {
        hosts[i]->before = there;
        there += hosts[i]->ranks;
    }
    for (size_t i = 0; i < count; i++)
        hosts[i]->there = there;
}

void run_divide(struct run_machine *machines, const struct run_hosts *hosts)
{
    struct run_machine **order = calloc(hosts->count, sizeof *order);

    if (order == NULL)
        return;
    for (size_t i = 0; i < hosts->count; i++) {
        machines[i].ranks = (uint32_t)hosts->list[i].ranks;
        order[i] = &machines[i];
    }
    qsort(order, hosts->count, sizeof(struct run_machine *), compare);
    for (size_t i = 0, end; i < hosts->count; i = end) {
        for (end = i + 1; end < hosts->count && compare_machines(order[i], order[end]) == 0;)
            end++;
        count_ranks(order + i, end - i);
    }
    free(order);
}

/* ---- the agent's side ---- */

struct core {
    long package, core; /* 0: not known */
    size_t number;
};

static long read_topology(const char *root, size_t number, const char *name)
{
    char path[256], text[32];

    snprintf(path, sizeof path, "%s/sys/devices/system/cpu/cpu%zu/topology/%s", root, number, name);
    return hvi_file_read(path, text, sizeof text) > 0 ? strtol(text, NULL, 10) : 0;
}

static int compare_cores(const void *a, const void *b)
{
    const struct core *one = a, *other = b;

    if (one->package != other->package)
        return one->package < other->package ? -1 : 1;
    if (one->core != other->core)
        return one->core < other->core ? -1 : 1;
    return one->number < other->number ? -1 : 1;
}

void run_divide_cut(const char *root, size_t before, size_t ranks, size_t there, cpu_set_t *cores)
{
    struct core list[CPU_SETSIZE];
    size_t count = 0;

    for (size_t number = 0; number < CPU_SETSIZE; number++) {
        if (CPU_ISSET(number, cores))
            list[count++] = (struct core){read_topology(root, number, "physical_package_id"),
                                          read_topology(root, number, "core_id"), number};
    }
    qsort(list, count, sizeof *list, compare_cores);
    const size_t first = count * before / there;
    const size_t end = (count * (before + ranks) + there - 1) / there;
    CPU_ZERO(cores);
    for (size_t i = first; i < end; i++)
        CPU_SET(list[i].number, cores);
}
