/* SPDX-License-Identifier: Apache-2.0
 * Memory that another process has exported, by its four kinds of handle, and how it is opened here: a legacy handle; a
 * descriptor or a fabric handle for each physical chunk, which are mapped one behind the other; a pool's descriptor and a pointer's
 * 64 bytes.
 *
 * The driver is called by the thread that import.h says. Until it is done, no other thread touches what it works on. */
#ifndef HVD_GPU_EXPORTED_H
#define HVD_GPU_EXPORTED_H

#include "daemon/gpu/calls.h"
#include "proto/wire.h"

#include <stdbool.h>
#include <stdint.h>

/* How a call of that thread went. */
struct gpu_outcome {
    int status;
    char text[160];
};

/* A zeroed one holds nothing. */
struct gpu_exported {
    uint32_t kind; /* enum hvi_device_kind */
    uint64_t bytes;
    unsigned char handle[HVI_WIRE_GPU_HANDLE]; /* LEGACY, POOL */
    uint32_t count;                            /* of .fds: one for each chunk, POOL one */
    int *fds;                                  /* -1: closed, or FABRIC */
    uint64_t *chunks;                          /* VMM, FABRIC: bytes of each */
    struct hvi_cu_fabric *fabric;              /* FABRIC: of each */
    hvi_cu_ptr base;                           /* once it is open */
    uint32_t mapped;                           /* VMM, FABRIC: chunks that are */
    void *pool;                                /* POOL, once it is open */
};

/* Of a DeviceMemory that has its handles, and whose chunks are added; the descriptors stay the caller's after an error. HVI_OK,
 * HVI_ERR_NO_MEMORY, HVI_ERR_LIMIT (HVI_DEVICE_CHUNKS_MAX), HVI_ERR_INVALID (kind or bytes are not those of before). */
int gpu_exported_add(struct gpu_exported *exported, const struct hvi_device_memory *memory,
                     const int *fds, uint32_t fd_count);
/* Whether the chunks that were said are the bytes that were said. */
bool gpu_exported_is_whole(const struct gpu_exported *exported);
/* Closes descriptors, and frees; opens nothing and closes no mapping. */
void gpu_exported_fini(struct gpu_exported *exported);

/* With .base, or an outcome that says why not: something may be open even then. `ordinal`: the context's device. The
 * descriptors are closed. */
void gpu_exported_open(struct gpu_calls *calls, int ordinal, struct gpu_exported *exported,
                       struct gpu_outcome *outcome);
static inline bool gpu_exported_is_open(const struct gpu_exported *exported)
{
    return exported->base != 0 || exported->pool != NULL;
}
/* All that is open of it, also where the open has failed. It may wait for every stream of this process: see import.h. */
void gpu_exported_close(struct gpu_calls *calls, struct gpu_exported *exported,
                        struct gpu_outcome *outcome);

/* ---- calls of that thread ---- */

/* The end of a call that was begun. A sticky error is the calls' as well. */
bool gpu_outcome_good(struct gpu_calls *calls, struct gpu_outcome *outcome, const char *name,
                      int error);
/* Whether it was good; the outcome says so else. */
#define GPU_TRY(calls, outcome, name, expression)                                                  \
    (gpu_calls_begin((calls), (name), (calls)->usual_ns),                                          \
     gpu_outcome_good((calls), (outcome), (name), (expression)))
/* Its error is not told. */
#define GPU_UNDO(calls, name, expression)                                                          \
    do {                                                                                           \
        gpu_calls_begin((calls), (name), (calls)->usual_ns);                                       \
        (void)(expression);                                                                        \
        gpu_calls_end(calls);                                                                      \
    } while (0)

#endif
