/* SPDX-License-Identifier: Apache-2.0
 * Memory of CUDA devices, as the client sees it: which pointers are such memory, how an allocation is made
 * known to the engine, and the fences by which streams and the engine's worker wait for each other
 * (docs/design/gpu.md).
 *
 * libcuda is used when the process has it loaded, and never loaded by us. The driver is called without the
 * session's lock: functions that say nothing about the lock are called without it. The driver's calls are
 * made with a context of the right device; the thread has its own context again afterwards. */
#ifndef HVD_CLIENT_DEVICE_H
#define HVD_CLIENT_DEVICE_H

#include "gpu/cuda.h"
#include "shm/fence.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct client_link;

/* ---- which memory is the host's ---- */

#define CLIENT_HOST_SHIFT    21u /* no allocation of a device shares 2 MiB with memory of the host */
#define CLIENT_HOST_GRANULES 64u
#define CLIENT_HOST_ASK      32768u /* a tensor of so many bytes can pay for the question at each op */

/* The granules that were memory of the host when it was asked. Needs the session's lock. Smaller tensors
 * trust them: a granule that becomes a device's is noticed with the first large tensor or new granule. */
struct client_hosts {
    uintptr_t granules[CLIENT_HOST_GRANULES];
    uint64_t era; /* of the driver, when they were asked */
};

/* True for NULL. */
static inline bool client_hosts_know(const struct client_hosts *hosts, const void *data)
{
    uintptr_t granule = (uintptr_t)data >> CLIENT_HOST_SHIFT;
    return hosts->granules[granule % CLIENT_HOST_GRANULES] == granule;
}

/* Adds what was found to be the host's; forgets all others first if the driver was loaded or initialised since. */
void client_hosts_note(struct client_hosts *hosts, const void *data);
void client_hosts_forget(struct client_hosts *hosts);

/* ---- the driver ---- */

/* This process has no libcuda, so all its memory is the host's. Some ten nanoseconds; with or without the lock. */
bool client_driver_is_absent(void);
/* The process' table. NULL: there is no libcuda, or none that can be used; *why_p is then "" or the sentence. Both live for
 * ever. */
const struct hvi_cuda *client_driver_get(const char **why_p);

/* A context that was made current for some calls. */
struct client_driver_scope {
    const struct hvi_cuda *cuda;
    hvi_cu_context before;
    bool changed;
};
/* Makes a context of the device current; the primary one if the thread's is none of it. The driver's error. */
int client_driver_enter(int device, struct client_driver_scope *scope_p);
#define CLIENT_DEVICE_ANY                                                                          \
    (-1) /* the ordinal of an op without bytes: its streams may be of any device */
/* Memory of this device was seen, so there is a context of it. */
void client_driver_note(int device);
/* Keeps the thread's context; if it has none, one that this process has anyway. HVI_CU_INVALID_CONTEXT: there is none. */
int client_driver_enter_any(struct client_driver_scope *scope_p);
/* The same for a stream, whose context it is. HVI_CU_INVALID_VALUE for a stream of another device; CLIENT_DEVICE_ANY has none. */
int client_driver_enter_stream(int device, void *stream, struct client_driver_scope *scope_p);
void client_driver_leave(const struct client_driver_scope *scope);

/* ---- allocations ---- */

enum client_device_kind {
    CLIENT_DEVICE_HOST,    /* also managed memory, which CPUs may use as it is */
    CLIENT_DEVICE_SHARED,  /* can be opened by a worker */
    CLIENT_DEVICE_UNSHARED /* no kind of handle */
};

/* A mapping of physical memory into a reservation. */
struct client_device_chunk {
    uint64_t base, bytes;
    uint64_t buffer_id; /* as an allocation's */
};
/* Chunks that follow one another without a hole. Never changed. */
struct client_device_chunks {
    uint32_t count; /* HVI_DEVICE_CHUNKS_MAX + 1: there are more */
    struct client_device_chunk list[];
};

struct client_device_memory {
    enum client_device_kind kind;
    uint64_t base, bytes; /* of the allocation, or of all chunks */
    /* Never used again by another allocation of this process; of chunks: made of theirs. */
    uint64_t buffer_id;
    uint32_t handle; /* enum hvi_device_kind, of CLIENT_DEVICE_SHARED */
    void *pool;      /* of HVI_DEVICE_POOL */
    int device;      /* ordinal in this process */
    unsigned char uuid[16];
    struct client_device_chunks *chunks; /* of _VMM, _FABRIC: freed by whoever has the struct */
    bool registers;                      /* the library has made it: NCCL can register it */
};

/* Memory that the library has made: one chunk. */
struct client_device_own {
    uint64_t base, bytes;
    int device; /* ordinal */
};

/* At least `bytes` bytes, in one chunk with a descriptor. For hvd_device_alloc: HVD_ERR_INVALID (no such device),
 * HVD_ERR_NO_MEMORY, HVD_ERR_UNSUPPORTED, with the last error set. */
int client_device_make(int device, uint64_t bytes, struct client_device_own *own_p);
/* HVD_ERR_UNSUPPORTED, with the last error set: the driver has refused. */
int client_device_unmake(const struct client_device_own *own);

/* What the driver says of a tensor's memory. HVD_OK, or HVD_ERR_UNSUPPORTED, HVD_ERR_NO_MEMORY with the last error set. `what` is
 * the call, for sentences; `which` is "in" or "out". */
int client_device_classify(const void *data, uint64_t bytes, const char *what, const char *which,
                           struct client_device_memory *memory_p);
/* Memory in chunks becomes that of [first, end), where all of that is of its kind and not too much; else it stays as it is. */
void client_device_widen(struct client_device_memory *memory, uint64_t first, uint64_t end);
/* Whether what lies there now is what was known: by BUFFER_ID, of each chunk if `chunks` is not NULL. */
bool client_device_is_current(const void *data, uint64_t bytes, uint64_t buffer_id,
                              const struct client_device_chunks *chunks);
/* Whether all of `part` is in `whole`, chunk for chunk. No driver is asked. */
bool client_device_holds(const struct client_device_chunks *whole,
                         const struct client_device_chunks *part);

/* ---- of a session ---- */

/* One op's cell of the fence page (shm/fence.h). */
struct client_fence {
    uint32_t cell; /* 0: none any more */
    uint64_t turn; /* 0: the op has no fence */
};

/* Needs the session's lock, but for .making. */
struct client_device {
    struct client_link *link;
    pthread_mutex_t making; /* of the page; never taken with the session's lock */
    struct hvi_fence_page page;
    bool page_known;    /* to the engine */
    hvi_cu_ptr address; /* of the page for streams; 0: not registered yet */
    bool imported;      /* an allocation was: a worker is there */
    bool no_fabric;     /* fabric handles were refused */
    bool poisoned;
    uint64_t lost_ns; /* client_fence_lost: then .done is stored here; 0: it was not called */
    uint32_t fresh;   /* cells never used start here */
    uint32_t free_first, free_count; /* ring of cells that may be used again, the oldest first */
    uint32_t retired;                /* cells that are not used any more */
    uint16_t free_cells[HVI_FENCE_CELLS];
    uint64_t turns[HVI_FENCE_CELLS]; /* last used */
};

/* NULL: no memory. */
struct client_device *client_device_new(struct client_link *link);
/* Releases all waiters, but for those of a session that is lost. NULL is fine. */
void client_device_free(struct client_device *device);

/* Makes the fence page known to the engine, and the allocation: *region_p. Waits for Acks, 35 seconds at most. HVD_ERR_UNSUPPORTED:
 * the engine, hvdd or the worker has said why, or the driver makes no handle, or there are too many chunks: .kind is
 * CLIENT_DEVICE_UNSHARED then; or others, with the last error set. After a refusal of fabric handles,
 * HVD_ERR_INVALID too, .kind is so as well, and no later ones need be tried. */
int client_device_register(struct client_device *device, struct client_device_memory *memory,
                           const char *what, uint32_t *region_p);

/* The fence page alone, for ops without bytes. Errors as above. */
int client_device_announce(struct client_device *device, const char *what);

/* A cell for an op. HVD_ERR_LIMIT with the last error set. Needs the lock. */
int client_fence_take(struct client_device *device, const char *what, struct client_fence *fence_p);
/* The op is over; `retire`: a worker may still write to its cell. Needs the lock. Clears .cell. */
void client_fence_put(struct client_device *device, struct client_fence *fence, bool retire);
/* client_fence_ready has failed: its turn will never come, and is the next op's. Needs the lock. Clears .cell. */
void client_fence_take_back(struct client_device *device, struct client_fence *fence);
/* From now on, or in this stream after what it has now, the operands may be used. HVD_ERR_UNSUPPORTED while the stream is captured,
 * HVD_ERR_INVALID for one of another device, with the last error set; then the stream has got nothing. */
int client_fence_ready(struct client_device *device, const struct client_fence *fence, int ordinal,
                       void *stream, const char *what);
/* The stream waits until the op is over. Errors as above. */
int client_fence_wait(struct client_device *device, const struct client_fence *fence, int ordinal,
                      void *stream, const char *what);
/* The engine has said that the session is over: releases every stream that waits for its ops. Needs the lock; calls no driver. NULL
 * is fine. */
void client_fence_poison(struct client_device *device);
/* The session has ended without the engine's word. The engine, the worker or hvdd releases them, or client_fence_look, 10 s later, also
 * of sessions that were closed. `still_ns`: the engine may live, and stand still for so long before it is killed; HVI_NEVER: for ever.
 * The first call counts. As above. */
void client_fence_lost(struct client_device *device, uint64_t still_ns);
void client_fence_look(struct client_device *device);

/* ---- memory of the host that the driver knows ---- */

/* cuMemHostRegister and its end, within a scope, also while another thread captures a stream. The driver's error. */
int client_host_register(const struct hvi_cuda *cuda, void *base, uint64_t bytes, unsigned flags);
void client_host_unregister(const struct hvi_cuda *cuda, void *base);

#define CLIENT_DEVICE_PINNED  (256ull * 1024 * 1024) /* of the process, at most */
#define CLIENT_DEVICE_PIN_MAX (64ull * 1024 * 1024)  /* of them at once */
/* Has the driver lock memory of the host, for copies of any device; `ordinal` is one that has been seen. It must stay mapped until the
 * process ends, and counts until then. False: the driver does not, or there is too much; nothing has changed. */
bool client_device_pin(int ordinal, void *base, uint64_t bytes);

/* Copies between a device and the host; they wait for the copy. HVD_OK, or HVD_ERR_UNSUPPORTED with the last error set. */
int client_device_copy_in(int ordinal, const char *what, void *host, const void *from,
                          uint64_t bytes);
int client_device_copy_out(int ordinal, const char *what, void *to, const void *host,
                           uint64_t bytes);

#endif
