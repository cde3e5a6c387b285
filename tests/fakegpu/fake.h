/* SPDX-License-Identifier: Apache-2.0
 * What the files of the fake libcuda.so.1 share.
 *
 *   begin.c     cuInit, errors                 memory.c   device and host memory, copies; table.c: what an address is
 *   device.c    devices, contexts              share.c    legacy IPC; virtual.c: VMM; pool.c
 *   stream.c    streams, their queues          kernels.c  libraries, launches; probe_kernels.c
 *   memop.c     waits and writes of values     event.c
 *
 * Device memory is memfds, mapped where the "device" pointer says, so the CPU is the device. A stream is a queue on one of
 * CUDA_DEVICE_MAX_CONNECTIONS threads of its device. Each rule names its source: a probe (P1 to P13), a section of the
 * collected GPU facts, or cuda.h. The table is in docs/design/gpu.md. */
#ifndef FAKEGPU_FAKE_H
#define FAKEGPU_FAKE_H

#include "tests/fakegpu/api.h"
#include "tests/fakegpu/cuda_abi.h"
#include "tests/fakegpu/settings.h"

struct hvi_cu_context {
    int ordinal, physical;
    int users; /* 0: not retained, and no context */
    struct hvi_cu_stream *legacy;
};

/* HVI_CU_OK if this thread may call: initialised, a context current, not broken. */
int fake_ready(void);
/* The current context; only after fake_ready. */
struct hvi_cu_context *fake_context(void);
/* NULL: no such device. */
struct hvi_cu_context *fake_context_of(int ordinal);
bool fake_is_initialised(void);
/* The context's sticky error: 700 stays until the process exits (driver API; P9). HVI_CU_OK: none. */
void fake_break(int error);
int fake_broken(void);
/* Kills the process at its next call. */
void fake_doom(void);

/* Rows of kernels that are looked at before all others. */
void fake_add_kernels(const struct hvd_kernel_row *rows);

/* --- what streams ask of memory --- */
struct range;
/* The memory at this address, which stays until fake_unpin; NULL: none. Blames the caller if it was freed or closed. */
struct range *fake_pin(uint64_t address, const char *what);
void fake_unpin(struct range *range);
/* Bytes from the address to the end. */
size_t fake_range_left(const struct range *range, uint64_t address);
/* A physical device; -1: host memory. */
int fake_range_device(const struct range *range);
/* A copy, or with `from` NULL a fill, which streams that wait for a value there see whole. */
void fake_copy(void *to, const void *from, int value, size_t bytes);

/* As fakegpu_api says. */
bool fake_note_registered(uint64_t address, size_t bytes, int change);

#endif
