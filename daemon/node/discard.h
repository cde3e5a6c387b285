/* SPDX-License-Identifier: Apache-2.0
 * The end of connections to strangers. A stranger may have sent a descriptor that does not close: a socket with
 * SO_LINGER whose peer takes nothing, a file of a FUSE mount that does not answer. The process that gives up the last
 * reference waits, wherever it does that: in close(), in a receive without room for descriptors, or in the close of the
 * connection in which the message still lies. hvdd has one thread and must not wait. So
 *
 *   - a message with descriptors is looked at and left in its connection (attach.c);
 *   - a connection in which anything is left is inherited by a forked helper, closed here, and ends with the helper:
 *
 *       hvdd    fork ───── closes its own ──── closes the pipe
 *       helper    └─ closes all the rest ── reads the pipe ─┴─ exits
 *
 *     An exiting process does not linger. What waits all the same (FUSE) is the helper's exit.
 *
 * One helper takes all connections of BATCH_NS, so a flood costs few forks. A helper keeps no descriptor of hvdd's but those it
 * is for: engines and trainers would miss the end of hvdd while it waits. */
#ifndef HVD_NODE_DISCARD_H
#define HVD_NODE_DISCARD_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <systemd/sd-event.h>

#define NODE_DISCARDS_MAX 256u

struct node_helper;

/* Zero but for `event`, which outlives it. */
struct node_discard {
    sd_event *event;
    int fds[NODE_DISCARDS_MAX];
    uint32_t count, helper_count;
    struct node_helper *helpers; /* that have not ended yet */
    sd_event_source *batch;
    uint64_t released_ns;
};

/* Closes a connection of attach.sock, or the link of a gate, or has it closed where that could wait. `handed_over`: an
 * engine has it too. */
void node_discard(struct node_discard *discard, int fd, bool handed_over);
/* Forks a helper that keeps `fds`, which are sorted in it, and standard output: 0 in the helper, which ends by _exit; its
 * pid here; -1. Unless it exits with 0, `failed` (NULL: nobody) is told `user` and `number`. */
pid_t node_discard_fork(struct node_discard *discard, int *fds, uint32_t count,
                        void (*failed)(void *user, uint64_t number), void *user, uint64_t number);
void node_discard_close(struct node_discard *discard);

#endif
