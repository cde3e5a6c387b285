/* SPDX-License-Identifier: Apache-2.0
 * An engine, as the main thread has it: serve.c (its socket, its life), memory.c (what its batches may name), joins.c (its
 * communicators). Main thread.
 *
 *   waiting ──the one before is drained──► serving
 *   serving ──its socket ends, it lies──► leaving ──launch: its batches are over──► drained ──pages given back──► gone
 *
 * waiting: a batch of an engine that has ended may still write the ranks' memory, which this one's would use. It gets its hello
 * once that one is drained.
 *
 * leaving: what its sessions' streams wait for will not come. The .ready words of its pages are poisoned, again and again until
 * its batches are over: they run dry. Only then their .done words are: until then a batch may write what they speak of.
 * guard.c ends this process where that takes too long, and the engine or hvdd stores .done after that end. */
#ifndef HVD_GPU_ENGINE_H
#define HVD_GPU_ENGINE_H

#include "daemon/gpu/worker.h"

struct gpu_page;
struct gpu_held;

struct gpu_engine {
    struct gpu_engine *prev, *next;
    struct gpu_worker *worker;
    uint64_t generation;
    int32_t pid;
    int fd;       /* -1: it is leaving */
    int wake_fd;  /* the engine writes it when the launch thread sleeps */
    int event_fd; /* the engine's loop polls it; -1 before GpuWelcome */
    sd_event_source *io;
    struct hvi_device_channel channel;
    struct gpu_source source;
    struct gpu_page *pages;
    struct gpu_held *held; /* imports */
    uint64_t *instances;   /* of the job's workers that lived when it came */
    uint32_t instance_count;
    uint32_t asks, joins,
        aborts; /* of communicators, that are not back; joins, aborts among them */
    bool is_waiting, is_leaving, is_drained;
    bool is_unknown;      /* to hvdd, which has come after its end */
    uint64_t deadline_ns; /* leaving, or what is aborted: it is over by then; 0: none */
    const char *late;     /* what is not over then */
};

/* ---- serve.c ---- */

/* HVI_OK; else the engine has gone, or does not read its messages, and its socket ends. */
int gpu_engine_send(struct gpu_engine *engine, const struct hvi_gpu_msg *msg);
int gpu_engine_ack(struct gpu_engine *engine, uint64_t request, int status, const char *text);
/* Frees it, if it has left and nothing of it is under way. */
void gpu_engine_settle(struct gpu_engine *engine);

/* ---- memory.c: messages. False: the engine says what cannot be ---- */

bool gpu_memory_page(struct gpu_engine *engine, const struct hvi_gpu_page *said);
bool gpu_memory_session_end(struct gpu_engine *engine, const struct hvi_gpu_session_end *end);
bool gpu_memory_import(struct gpu_engine *engine, const struct hvi_gpu_import *said);
bool gpu_memory_release(struct gpu_engine *engine, const struct hvi_gpu_release *said);
/* Of an import that its batches may name. */
bool gpu_memory_where(struct gpu_engine *engine, uint32_t import, uint64_t *address_p,
                      uint64_t *bytes_p);
/* It is over, and with it all its batches: their kernels write nothing from now on. Before its gates are opened. */
void gpu_memory_skip(struct gpu_engine *engine);
/* The .ready words of its pages that are over, or of all if it leaves; all words once it is drained. True: there are some. */
bool gpu_memory_poison(struct gpu_engine *engine);
/* Its batches are over: imports and pages are given back. */
void gpu_memory_drop(struct gpu_engine *engine);

/* ---- joins.c: messages. False: there is no memory for an order, or the engine says what cannot be ---- */

bool gpu_joins_id(struct gpu_engine *engine, struct hvi_gpu_comm_id *said);
bool gpu_joins_join(struct gpu_engine *engine, struct hvi_gpu_comm_join *said);
bool gpu_joins_drop(struct gpu_engine *engine, const struct hvi_gpu_comm_drop *said);
bool gpu_joins_register(struct gpu_engine *engine, const struct hvi_gpu_register *said);

#endif
