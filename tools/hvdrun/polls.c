/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/hvdrun/polls.h"

#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

#define ROOM_FIRST 32u

static bool make_room(struct run_polls *polls)
{
    if (polls->count < polls->room)
        return true;
    const size_t room = polls->room == 0 ? ROOM_FIRST : 2 * polls->room;
    struct pollfd *fds = realloc(polls->fds, room * sizeof *fds);
    if (fds != NULL)
        polls->fds = fds;
    struct run_polls_call *calls = realloc(polls->calls, room * sizeof *calls);
    if (calls != NULL)
        polls->calls = calls;
    if (fds == NULL || calls == NULL)
        return false;
    polls->room = room;
    return true;
}

void run_polls_clear(struct run_polls *polls)
{
    polls->count = 0;
}

void run_polls_add(struct run_polls *polls, int fd, short events, run_polls_ready *ready,
                   void *context, int index)
{
    if (fd < 0)
        return;
    if (!make_room(polls)) {
        polls->failed = true;
        return;
    }
    polls->fds[polls->count] = (struct pollfd){.fd = fd, .events = events};
    polls->calls[polls->count] =
        (struct run_polls_call){.ready = ready, .context = context, .index = index};
    polls->count++;
}

bool run_polls_wait(struct run_polls *polls, uint64_t until_ns)
{
    if (polls->failed)
        return false;
    const int ready = poll(polls->fds, polls->count, hvi_deadline_poll_ms(until_ns));
    for (size_t i = 0; ready > 0 && i < polls->count; i++)
        if (polls->fds[i].revents != 0)
            polls->calls[i].ready(polls->calls[i].context, polls->calls[i].index);
    return true;
}

void run_polls_fini(struct run_polls *polls)
{
    free(polls->fds);
    free(polls->calls);
    memset(polls, 0, sizeof *polls);
}
