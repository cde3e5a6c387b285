/* SPDX-License-Identifier: Apache-2.0
 * One poll(2) with a function for each descriptor. The set is built anew each time: what must not be
 * read now is simply not in it. Main thread. */
#ifndef HVI_TOOLS_HVDRUN_POLLS_H
#define HVI_TOOLS_HVDRUN_POLLS_H

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef void run_polls_ready(void *context, int index);

struct run_polls_call {
    run_polls_ready *ready;
    void *context;
    int index;
};

struct run_polls {
    struct pollfd *fds;
    struct run_polls_call *calls;
    size_t count, room;
    bool failed; /* out of memory */
};

void run_polls_clear(struct run_polls *polls);
/* `ready` is called with context and index when one of the events has come. Nothing for fd -1. */
void run_polls_add(struct run_polls *polls, int fd, short events, run_polls_ready *ready,
                   void *context, int index);
/* Waits until something is ready or the time has come, and calls. False without memory. */
bool run_polls_wait(struct run_polls *polls, uint64_t until_ns);
void run_polls_fini(struct run_polls *polls);
/* The earlier of two times for run_polls_wait; `at_ns` 0: none. */
static inline uint64_t run_polls_earlier(uint64_t next_ns, uint64_t at_ns)
{
    return at_ns != 0 && at_ns < next_ns ? at_ns : next_ns;
}

#endif
