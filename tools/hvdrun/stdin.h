/* SPDX-License-Identifier: Apache-2.0
 * Standard input for rank 0. A file or pipe is handed to it as it is. A terminal cannot be: rank 0
 * is in a process group of its own, and the kernel would stop it for reading. So hvdrun reads the
 * terminal, while it is in the foreground, and passes the bytes on through a pipe. Main thread,
 * never blocks. */
#ifndef HVI_TOOLS_HVDRUN_STDIN_H
#define HVI_TOOLS_HVDRUN_STDIN_H

#include "tools/hvdrun/output.h"

struct run_stdin {
    int child_fd;      /* for rank 0; the caller closes it after the start unless it is 0 */
    int pipe_fd;       /* -1: nothing to relay (any more) */
    uint64_t retry_ns; /* in the background: look again then; 0: not waiting */
    struct run_buffer pending;
};

/* 0 or an errno. */
int run_stdin_init(struct run_stdin *input_p);
/* Another descriptor for what rank 0 reads, which the caller closes: where it is a pipe, reading does not
 * block, although another process may read it, too. -1 and errno. */
int run_stdin_reopen(const struct run_stdin *input);
/* What to poll next: the terminal, the pipe, or nothing (fd -1), until .retry_ns. */
struct pollfd run_stdin_poll(struct run_stdin *input, uint64_t now_ns);
/* When that item is ready. */
void run_stdin_handle(struct run_stdin *input);
void run_stdin_fini(struct run_stdin *input);

#endif
