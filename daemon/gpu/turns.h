/* SPDX-License-Identifier: Apache-2.0
 * hvdd-gpu --turns: what a worker waits for a GPU on which a trainer computes. */
#ifndef GPU_TURNS_H
#define GPU_TURNS_H

#include <stdio.h>

/* Writes two lines, "<what> <ns> [<why that is 0>]": idle_ns and busy_ns, the median time from a kernel's launch to its end, alone
 * and beside another process that keeps the GPU busy. Takes some seconds, 160 MiB of the first visible GPU and two contexts;
 * changes nothing about it. To be called before this process has used CUDA. An exit status; a driver that hangs ends the process. */
int gpu_turns(FILE *out);

#endif
