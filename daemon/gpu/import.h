/* SPDX-License-Identifier: Apache-2.0
 * Trainers' memory that this process has open. An allocation is opened once, whoever asks for it, and its key is (process,
 * address, BUFFER_ID): never the bytes of the handle, which may repeat.
 *
 * opening ──► open ◄──asked for again──┐
 *    │          └──last holder gives it back──► closing ──► gone
 *    └─ error, told to its holders ──► closing what there is ─┘
 *
 * An engine that ends without a word gives nothing back: the survivors' next generation finds its memory open. What that generation
 * has not asked for 10 s after its engine has come is closed, and sooner where the limit needs the room. The end of the exporting process
 * closes what it had exported.
 *
 * Main thread. The driver opens and registers in a thread of its own (hvd-import). A close, and the end of a registration, wait
 * for all streams of the process, and meanwhile launches of other threads wait for them (P2, P11). So where .closing is set, both
 * are done in gpu_imports_close_some, whose caller knows that the streams are empty. */
#ifndef HVD_GPU_IMPORT_H
#define HVD_GPU_IMPORT_H

#include "daemon/gpu/calls.h"
#include "daemon/gpu/exported.h"
#include "proto/gpu.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include <systemd/sd-event.h>

struct gpu_import;
struct gpu_parked;
struct gpu_exporter;
struct gpu_call;

/* Host memory that streams use: registered with the driver, and given back. */
struct gpu_pin {
    void *base;
    size_t bytes;
    hvi_cu_ptr address; /* for streams, once it is registered */
    int status;         /* of the last call */
    char text[160];
    void (*done)(struct gpu_pin *pin); /* main thread */
    struct gpu_call *call;
};

struct gpu_imports {
    struct gpu_calls calls;      /* of the thread; .usual_ns is the caller's */
    const struct hvi_cuda *cuda; /* NULL: not open */
    hvi_cu_context context;
    unsigned char uuid[HVI_UUID_BYTES];
    sd_event *event;
    /* The answer to gpu_import_add and gpu_import_release, perhaps within it. */
    void (*answer)(void *owner, uint64_t request, int status, const char *text);
    /* There is something to close. NULL: hvd-import closes, at once. */
    void (*closing)(void *user);
    /* In gpu_imports_close_some: memory is about to be closed. NULL: no one hears it. */
    void (*before_close)(void *user, uint64_t address);
    /* The context is broken: this process has to end. NULL: no one hears it. */
    void (*failed)(void *user, const char *text);
    void *user;
    uint64_t bytes, bytes_max; /* bytes_max 0: no limit */
    uint32_t count;
    struct gpu_import *imports;
    struct gpu_exporter *exporters;
    struct gpu_parked *parked; /* wait for memory at their addresses to be given back */

    uint64_t
        claim_ns; /* how long memory that no owner has waits for the next engine to ask for it */
    sd_event_source *unclaimed;
    sd_event_source *late; /* runs while an answer to a release waits for the close */
    bool is_late;          /* such an answer has waited long, and nothing was closed since */

    sd_event_source *finished;
    int event_fd;
    pthread_t thread;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t more;
    struct gpu_call *waiting, *closes, *done;
    bool closes_here; /* hvd-import closes */
    bool stop;
};

/* Starts the thread. HVI_OK or HVI_ERR_NO_MEMORY. */
int gpu_imports_open(struct gpu_imports *imports, sd_event *event, const struct hvi_cuda *cuda,
                     hvi_cu_context context, const unsigned char uuid[HVI_UUID_BYTES],
                     uint64_t bytes_max);
/* Closes everything that is open. Owners are gone by now. Blocks as long as the driver does. */
void gpu_imports_close(struct gpu_imports *imports);

/* Any thread that has the context, and nothing in its streams: closes, in calls of this thread, until `end_ns`, one thing at least.
 * False: nothing is left to close. */
bool gpu_imports_close_some(struct gpu_imports *imports, struct gpu_calls *calls, uint64_t end_ns);
/* Nothing is put into streams any more: from now on hvd-import closes. */
void gpu_imports_close_freely(struct gpu_imports *imports);

/* GpuImport of `owner`, whose pieces are all in `exported`, which is taken in any case. It waits while other memory is open by a handle
 * of the same bytes, and where the limit has room for it once what no owner has is closed. False: its number is taken. */
bool gpu_import_add(struct gpu_imports *imports, void *owner, const struct hvi_gpu_import *said,
                    struct gpu_exported *exported);
/* GpuRelease of `owner`. The answer comes when the memory is closed, if no one else has it; but after 200 ms at most, since a
 * close may wait long, and the exporter may free what is open here (P2, P3). Not of a pool: cuda.h forbids that. */
void gpu_import_release(struct gpu_imports *imports, void *owner,
                        const struct hvi_gpu_release *said);
/* Where an import of `owner` that is open lies. */
void gpu_import_where(const struct gpu_imports *imports, const void *owner, uint32_t number,
                      hvi_cu_ptr *base_p, uint64_t *bytes_p);
/* The owner's socket has ended: it gets no answers any more. */
void gpu_import_owner_gone(struct gpu_imports *imports, const void *owner);
/* An engine begins. What no owner has .claim_ns later is closed. */
void gpu_imports_await_claims(struct gpu_imports *imports);
/* Closes all that no owner has, though its exporter lives: .count tells what is left. */
void gpu_imports_drop(struct gpu_imports *imports);

/* Registers .base and .bytes; .done follows, with .status. The caller keeps the pin until gpu_import_unpin is done with it, or
 * .status is an error. HVI_OK or HVI_ERR_NO_MEMORY. */
int gpu_import_pin(struct gpu_imports *imports, struct gpu_pin *pin);
/* Takes the registration back: nothing uses it. .done follows. */
void gpu_import_unpin(struct gpu_imports *imports, struct gpu_pin *pin);

#endif
