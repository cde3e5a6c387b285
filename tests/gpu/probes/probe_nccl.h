/* SPDX-License-Identifier: Apache-2.0
 * The few calls of NCCL that probes make, by dlopen: HVD_NCCL_LIB, else libnccl.so.2. Environment variables for NCCL must be
 * set before nccl_load. A current context (cu_attach) is needed; NCCL shares the device's primary context. */
#ifndef HVD_GPU_PROBE_NCCL_H
#define HVD_GPU_PROBE_NCCL_H
#include <stddef.h>
#include <stdint.h>

#define NCCL_ID_BYTES 128

/* NULL, or why there is no NCCL here. Records its version as a fact. */
const char *nccl_load(void);
/* The calls below fail if NCCL does. */
void nccl_id(unsigned char id[NCCL_ID_BYTES]);
void *nccl_comm(int size, const unsigned char id[NCCL_ID_BYTES],
                int rank); /* blocks until all ranks have come */
void *nccl_comm_alone(void);
void nccl_sum_fp32(void *comm, uint64_t device_ptr, size_t count,
                   void *stream); /* allreduce in place, enqueued */
void nccl_free(void *comm);
/* NULL if it registered and deregistered, else NCCL's reason. */
const char *nccl_try_register(void *comm, uint64_t device_ptr, size_t bytes);
#endif
