/* SPDX-License-Identifier: Apache-2.0
 * What the two sides of probe 7 share. Empty where cuda.h is not to be found, as probe_cuda.h is. */
#ifndef HVD_GPU_PROBE7_H
#define HVD_GPU_PROBE7_H
#include "probe_cuda.h"
#if __has_include(<cuda.h>)
enum { PROBE7_BYTES = 64 << 20 };
#define PROBE7_BY_FD CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

CUmemLocation probe7_here(void);
/* Maps a handle of `bytes` at an address reserved before, for reading and writing on this device, or fails. */
void probe7_map(CUdeviceptr at, size_t bytes, CUmemGenericAllocationHandle handle);
void probe7_owner(const struct probe_options *o);
/* probe7_users.c: the variants in which owner and importer are of different users. */
int probe7_is_of_users(const struct probe_options *o);
void probe7_become_owner(const struct probe_options *o);
void probe7_take_of_users(const struct probe_options *o);
#endif
#endif
