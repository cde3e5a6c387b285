/* SPDX-License-Identifier: Apache-2.0
 * What workers of GPUs would find on this machine: `hvdd-gpu --can`, in the environment of this process. Any thread; blocks. */
#ifndef HVI_TOOLS_COMMON_CAN_H
#define HVI_TOOLS_COMMON_CAN_H

#include <stddef.h>

/* What the running hvdd says of its workers. `program` NULL: no hvdd answers; "": it starts none. */
struct can_of {
    const char *program, *kernels, *library_path;
};

/* Waits at most 20 s. The answer is for ask_number: a line each of kernels, driver and nccl, with the reason where there is none.
 * NULL; else why there is no answer, valid until the next call.
 * The running hvdd's program is asked. Where no hvdd answers, and where its program is not to be seen from here (a container) or may be
 * another user's, the one of this installation is asked. */
const char *can_ask(const struct can_of *of, char *answer_p, size_t size);

#endif
