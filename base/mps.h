/* SPDX-License-Identifier: Apache-2.0
 * Where hvdd keeps an MPS control daemon of its own (daemon/node/mps.c): in its runtime directory. hvdrun looks there, too.
 * Any thread. */
#ifndef HVI_BASE_MPS_H
#define HVI_BASE_MPS_H

#include <stddef.h>
#include <sys/types.h>

#define HVI_MPS_PROGRAM  "nvidia-cuda-mps-control"
#define HVI_MPS_PIPES    "mps"     /* in the runtime directory: CUDA_MPS_PIPE_DIRECTORY */
#define HVI_MPS_LOGS     "mps-log" /* likewise: CUDA_MPS_LOG_DIRECTORY */
#define HVI_MPS_PID      "mps.pid" /* likewise: the pid; 0: not started. There as long as the folders */
#define HVI_MPS_PIPE_VAR "CUDA_MPS_PIPE_DIRECTORY"
#define HVI_MPS_LOG_VAR  "CUDA_MPS_LOG_DIRECTORY"

/* The living control daemon that a hvdd of `dir`, its runtime directory, has started; 0: there is none. */
pid_t hvi_mps_find(const char *dir);
/* Kills the control daemon `pid` of that hvdd, and its servers, which may outlive it. A process that has the number by now is left
 * alone. Blocks for 20 ms at most for a process of them that has no environment. */
void hvi_mps_kill(const char *dir, pid_t pid);
/* Kills that of the file HVI_MPS_PID, and removes the files and folders above. Without the file nothing: then a folder of that name
 * is none of hvdd's. */
void hvi_mps_remove(const char *dir);

#endif
