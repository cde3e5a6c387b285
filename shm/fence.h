/* SPDX-License-Identifier: Apache-2.0
 * Fences: 64-bit words through which streams of two processes, and CPUs, wait for each other. A page of
 * them is a sealed memfd that a client makes for its session; the engine, the worker and hvdd map it.
 *
 * An op on device memory has a cell and a turn, which grows by one with each use of the cell. A word
 * only grows, but for what a worker's stream writes after a poison; the worker repeats the poison.
 * A word never means success: the completion's status does.
 *
 * Untrusted memory: every process that maps the page can store anything. A word is only compared with
 * a turn that its reader has in private memory. Any thread; nothing blocks after the mapping. */
#ifndef HVI_SHM_FENCE_H
#define HVI_SHM_FENCE_H

#include "shm/region.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HVI_FENCE_MAGIC  0x65636e6566647668ull /* "hvdfence" */
#define HVI_FENCE_CELLS  8192u                 /* cell 0 is the head; fences are 1 .. 8191 */
#define HVI_FENCE_BYTES  (HVI_FENCE_CELLS * 64u)
#define HVI_FENCE_TURNS  (UINT64_C(1) << 62) /* turns are 1 .. below this */
#define HVI_FENCE_POISON ((uint64_t)INT64_MAX)

struct hvi_fence {
    /* The client's stream or CPU: the turn, once the operands may be used. The engine: the turn, of an op
     * that is cancelled. Poison: nothing of its session comes any more. Pairs with the wait of the
     * worker's stream, and with the acquire in hvi_fence_is_ready. */
    _Alignas(64) _Atomic uint64_t ready;
    /* The worker's stream: the turn, after the op's last write. The engine: the turn, of an op that no
     * worker has. Poison: the session is over. Pairs with the wait of the client's stream. */
    _Atomic uint64_t done;
    /* The turn, of an op that is cancelled: the worker's kernels write nothing for its batch. The engine stores it
     * before it stores .ready; the worker stores poison, of an engine that is over. No other process does, and no
     * stream. Pairs with the look of a kernel (daemon/gpu/kernels). */
    _Atomic uint64_t skip;
    uint64_t reserved[5];
};
/* In cell 0. */
struct hvi_fence_head {
    uint64_t magic;
    uint32_t abi_version, cells;
    uint64_t reserved[6];
};
_Static_assert(sizeof(struct hvi_fence) == 64 && offsetof(struct hvi_fence, done) == 8 &&
                   offsetof(struct hvi_fence, skip) == 16,
               "ABI");
_Static_assert(sizeof(struct hvi_fence_head) == 64 &&
                   offsetof(struct hvi_fence_head, abi_version) == 8 &&
                   offsetof(struct hvi_fence_head, cells) == 12,
               "ABI");

struct hvi_fence_page {
    struct hvi_region map;
    struct hvi_fence *cells; /* HVI_FENCE_CELLS; [0] is the head */
};

/* Client: makes a page whose words are 0. Errors as hvi_region_create. */
int hvi_fence_create(struct hvi_fence_page *page_p);
/* Maps a passed descriptor, which the page owns on success. Errors as hvi_region_map; HVI_ERR_PROTOCOL
 * also for a head of another ABI. */
int hvi_fence_map(int fd, struct hvi_fence_page *page_p);
/* Unmaps and closes. Harmless on a zeroed page or twice. */
void hvi_fence_fini(struct hvi_fence_page *page);

/* Stores `turn` (1 .. HVI_FENCE_TURNS - 1) unless the word is there or beyond, which poison is. `cell`: 1 .. HVI_FENCE_CELLS - 1. */
void hvi_fence_store_done(struct hvi_fence_page *page, uint32_t cell, uint64_t turn);
void hvi_fence_store_ready(struct hvi_fence_page *page, uint32_t cell, uint64_t turn);
/* Before .ready is stored for a stream that has not come. */
void hvi_fence_store_skip(struct hvi_fence_page *page, uint32_t cell, uint64_t turn);
/* Whether .ready has come to `turn`, as a stream's wait sees it: (int64_t)(word - turn) >= 0. */
bool hvi_fence_is_ready(const struct hvi_fence_page *page, uint32_t cell, uint64_t turn);
/* Every .ready and .done of every cell, or every .ready alone. Idempotent. */
void hvi_fence_poison(struct hvi_fence_page *page, bool ready_only);
/* Client: every .done alone. It opens no gate of a worker: one that has not been told to skip would use what no stream has
 * written. Idempotent. */
void hvi_fence_poison_done(struct hvi_fence_page *page);
/* Worker: poison in every .skip, before any page of that engine gets it in its .ready. Idempotent. */
void hvi_fence_skip_all(struct hvi_fence_page *page);

#endif
