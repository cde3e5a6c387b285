/* SPDX-License-Identifier: Apache-2.0
 * Which hosts a job is to run on, and which ranks on which. Names are compared and never looked up,
 * so that nothing waits for a name server. Main thread. */
#ifndef HVI_TOOLS_HVDRUN_HOSTS_H
#define HVI_TOOLS_HVDRUN_HOSTS_H

#include <stdbool.h>
#include <stddef.h>

#define RUN_HOST_NAME_MAX 255

struct run_host {
    char name[RUN_HOST_NAME_MAX + 1]; /* as ssh takes it: "h1", "user@h1", "user@fe80::1%eth0" */
    long slots;
    bool here; /* this machine, by one of its names or addresses */
    int first_rank, ranks;
};

struct run_hosts {
    struct run_host *list; /* one for each name, in the order in which they were named */
    size_t count;
};

/* "h1:2,me@[2001:db8::1]:2"; a host without a number has one slot, and a host that is named twice the sum. Blanks
 * around an entry do not count. 0, or -1 with a sentence and no hosts. */
int run_hosts_parse(const char *hosts, struct run_hosts *hosts_p, char *text_p, size_t text_size);
/* The same of a file with a host in each line: "h1 slots=2" (also with blanks around =, and with max_slots, which
 * is ignored), "h1:2" or "h1". Empty lines and what follows # are skipped. */
int run_hosts_read(const char *path, struct run_hosts *hosts_p, char *text_p, size_t text_size);
long run_hosts_slots(const struct run_hosts *hosts);
/* Fills the hosts with ranks in their order; those that get none are dropped. There are enough
 * slots. */
void run_hosts_fill(struct run_hosts *hosts, int ranks);
/* More than one host, or one that is not this machine. */
bool run_hosts_are_spread(const struct run_hosts *hosts);
/* The rank's host among those that have its local rank, in Horovod's words its cross rank, and how
 * many these are. */
void run_hosts_cross(const struct run_hosts *hosts, size_t host, int local_rank, int *cross_rank_p,
                     int *cross_size_p);
void run_hosts_fini(struct run_hosts *hosts);

#endif
