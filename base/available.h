/* SPDX-License-Identifier: Apache-2.0
 * What this process may take: memory of the machine, and of the memory cgroups that it is in (versions 1 and
 * 2), and cores. At a cgroup's limit the kernel kills a process instead of returning an error. */
#ifndef HVI_BASE_AVAILABLE_H
#define HVI_BASE_AVAILABLE_H

#include <stdbool.h>
#include <stdint.h>

/* In bytes, files in the page cache and what the kernel can take back of its own counted as free;
 * UINT64_MAX when nothing is known. `root` stands before /proc and /sys; "" but in tests. Reads some small
 * files: about a tenth of a millisecond. Any thread. */
uint64_t hvi_memory_available(const char *root);
/* A control group of this process gives it a share of the cores' time only (cpu.max, cfs_quota_us). `root` and cost as above. */
bool hvi_cores_have_quota(const char *root);
/* Those that the calling thread may run on; at least 1. Any thread. */
uint32_t hvi_cores_available(void);

#endif
