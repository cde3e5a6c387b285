/* SPDX-License-Identifier: Apache-2.0
 * A stream of the fake libcuda.so.1, and how work gets into it. */
#ifndef FAKEGPU_STREAM_H
#define FAKEGPU_STREAM_H

#include "tests/fakegpu/fake.h"

struct hvi_cu_stream {
    struct hvi_cu_stream *next;
    struct hvi_cu_context *context;
    struct queue *queue;
    uint64_t queued;
    _Atomic uint64_t finished; /* changed with the lock */
    int references;            /* its handle, and its work */
    bool is_blocking, is_destroyed;
    _Atomic bool is_capturing;
    bool is_global; /* its capture forbids calls to all threads */
};

/* Reads how many connections there are, the first time. */
void fake_stream_connect(void);
/* NULL, 1 and 2 are the default ones. HVI_CU_OK; FAKE_INVALID_HANDLE: it is not there, or of another context. */
int fake_stream_find(hvi_cu_stream handle, struct hvi_cu_stream **stream_p);

/* Appends work, with a copy of data. A span is memory that the work uses: it must be there, of this device or of the host, and
 * is not unmapped before the work is done. Errors: those of fake_ready and fake_stream_find; HVI_CU_INVALID_VALUE: a span. */
int fake_enqueue(hvi_cu_stream stream, void (*run)(void *), const void *data, size_t bytes,
                 const struct fakegpu_span *spans, size_t count);
/* The same, also for memory of a linked device. */
int fake_enqueue_copy(hvi_cu_stream stream, void (*run)(void *), const void *data, size_t bytes,
                      const struct fakegpu_span *spans, size_t count);
/* The same, but a wrong span is the kernel's illegal address: it breaks the context when the kernel runs. */
int fake_enqueue_kernel(hvi_cu_stream stream, void (*run)(void *), const void *data, size_t bytes,
                        const struct fakegpu_span *spans, size_t count);
/* What may wait for all streams of the process, gated ones as well: alloc, open, unmap, a module's load (section 1.4). With
 * sync=strict each waits, with sync=CALL that one. */
void fake_may_synchronize(const char *call);
/* A close, a free or the end of a registration: waits for all streams of the process, gated ones as well (P2). */
void fake_close_waits(void);
/* A launch, a copy, an allocation or a registration: returns when no other thread is in fake_close_waits (P11). */
void fake_await_closes(void);
/* A capture forbids this thread what is no work of a stream, as a registration (cuda.h). */
bool fake_is_captured(void);
/* Waits a moment: an eighth of what was waited, from 20 us to 1 ms. */
void fake_nap(uint64_t since_ns);
uint64_t fake_now_ns(void);

#endif
