/* SPDX-License-Identifier: Apache-2.0
 * The end of connections to strangers, for hvdd and its gate. A stranger may have sent a descriptor that does not close: a socket with
 * SO_LINGER whose peer takes nothing, a file of a FUSE mount that does not answer. The process that gives up the last
 * reference waits, wherever it does that: in close(), in a receive without room for descriptors, or in the close of the
 * connection in which the message still lies. The caller has one thread and must not wait. From Linux 6.16 on the kernel
 * refuses such messages (hvi_packet_let_fds); before, and for what was sent before hvdd could say so,
 *
 *   - a message with descriptors is looked at and left in its connection (node/attach.c, gate/admin.c);
 *   - a connection in which anything is left is inherited by a forked helper, closed here, and ends with the helper:
 *
 *       caller  fork ───── closes its own ──── closes the pipe
 *       helper    └─ closes all the rest ── reads the pipe ─┴─ exits
 *
 *     An exiting process does not linger. What waits all the same (FUSE) is the helper's exit.
 *
 * One helper takes all connections of BATCH_NS, so a flood costs few forks. A helper keeps no descriptor but those it
 * is for: peers would miss the end of the caller while it waits. SIGCHLD is blocked in every thread of the caller. */
#ifndef HVI_BASE_DISCARD_H
#define HVI_BASE_DISCARD_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <systemd/sd-event.h>

#define HVI_DISCARDS_MAX 256u

struct hvi_helper;

/* Zero but for `event`, which outlives it. */
struct hvi_discard {
    sd_event *event;
    int fds[HVI_DISCARDS_MAX];
    uint32_t count, helper_count;
    struct hvi_helper *helpers; /* that have not ended yet */
    sd_event_source *batch;
    uint64_t released_ns;
};

/* Closes a connection of attach.sock, or the link of a gate, or has it closed where that could wait. `handed_over`: an
 * engine has it too. */
void hvi_discard(struct hvi_discard *discard, int fd, bool handed_over);
/* The same for a connection that carries a stream of bytes, and that no other process has. */
void hvi_discard_stream(struct hvi_discard *discard, int fd);
/* Forks a helper for user `uid` that keeps `fds`, which are sorted in it, and standard output: 0 in the helper, which ends by
 * _exit; its pid here; -1. Unless it exits with 0, `failed` is told `user` and `number`. What such a helper is given may
 * keep it for ever, so a user has few of them, and all users together no more than half. */
pid_t hvi_discard_fork(struct hvi_discard *discard, int *fds, uint32_t count, uint32_t uid,
                       void (*failed)(void *user, uint64_t number), void *user, uint64_t number);
void hvi_discard_close(struct hvi_discard *discard);

#endif
