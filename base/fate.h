/* SPDX-License-Identifier: Apache-2.0
 * How a process that is not our child ended. Linux tells this only in places: to its parent
 * (waitid), in /proc/PID/stat while it is a zombie, and since 6.15 through PIDFD_GET_INFO once it
 * was reaped. Whoever asks tries in that order, and "unknown" is a proper answer. */
#ifndef HVI_BASE_FATE_H
#define HVI_BASE_FATE_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

enum hvi_fate_kind {
    HVI_FATE_ALIVE,    /* still runs (or is stopped) */
    HVI_FATE_UNKNOWN,  /* gone, nobody could tell how */
    HVI_FATE_EXITED,   /* .code is the exit status */
    HVI_FATE_SIGNALED, /* .code is the signal */
};

struct hvi_fate {
    enum hvi_fate_kind kind;
    int code;
};

/* Looks once; never blocks. `pidfd` may be -1. */
struct hvi_fate hvi_fate_look(pid_t pid, int pidfd);
/* The same for a process whose `pidfd` has said that it is gone, whatever /proc says about that pid now: never ALIVE. */
struct hvi_fate hvi_fate_of_gone(pid_t pid, int pidfd);
/* True for a process that ends, and whose first thread is past its last instruction, although its
 * descriptors are still open: the kernel takes memory apart first, which for much memory takes much
 * longer than anybody should wait. Its other threads may run a little longer: hvi_process_is_quiet.
 * *fate_p becomes how it ends. False also when the caller may not see it. */
bool hvi_fate_is_ending(pid_t pid, int pidfd, struct hvi_fate *fate_p);
/* True when no thread of the process will ever run its own code again: it has gone, or the kernel is
 * taking every one of them apart. False also when the caller may not see it. */
bool hvi_process_is_quiet(pid_t pid, int pidfd);
/* From a wait(2) status. */
struct hvi_fate hvi_fate_from_wait(int wait_status);
/* From what waitid(2) with WEXITED says. */
struct hvi_fate hvi_fate_from_child(const siginfo_t *info);
/* "was killed by signal 9 (SIGKILL)", "exited with code 3", "is gone (how is not known)",
 * "is alive but dropped its connection". */
void hvi_fate_describe(struct hvi_fate fate, char *text_p, size_t text_size);

/* What a process is called in sentences. `own` is what the process says of itself, 0: nothing.
 *   "pid 4711"                              `own` is the same, or 0
 *   "pid 4711, 7 in its own pid namespace"  `own` is 7
 *   "pid 7 in its own pid namespace"        `pid` is 0: this pid namespace does not show the process */
#define HVI_PROCESS_TEXT 64
void hvi_process_describe(pid_t pid, pid_t own, char text_p[HVI_PROCESS_TEXT]);

/* The state letter of /proc/PID/stat (R S D T Z ...), '?' if unreadable or if `pid` is 0, 'X' if there
 * is no such process. */
char hvi_process_state(pid_t pid);
/* Whether it is known to be there and no zombie. */
bool hvi_process_lives(pid_t pid);
/* "running", "sleeping", "in kernel", "stopped", "traced", "zombie", "gone", "idle"; "in an unknown
 * state" for any other letter. Constant strings. */
const char *hvi_process_state_text(char state);
/* The kernel function that the process' main thread sleeps in, /proc/PID/wchan; "" when it runs or
 * the kernel does not say. `size` at least 2. */
void hvi_process_waits_in(pid_t pid, char *text_p, size_t size);
/* pidfd_open(2) with close-on-exec; -1 and errno on failure. */
int hvi_pidfd_open(pid_t pid);

#endif
