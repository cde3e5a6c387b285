/* SPDX-License-Identifier: Apache-2.0
 * hvdd-gpu --can: what a worker of this program would find on this machine. */
#ifndef GPU_CAN_H
#define GPU_CAN_H

#include <stdio.h>

/* `kernels` and `library_path`: hvdd's options, or "" or NULL. Writes three lines, "<what> <number> [<why the number is 0>]":
 * kernels (1: built in, or in the file), driver (its CUDA version, 12040 is 12.4), nccl (its version, 21805 is 2.18.5).
 * Opens the libraries as a worker does, and no device. An exit status. */
int gpu_can(FILE *out, const char *kernels, const char *library_path);

#endif
