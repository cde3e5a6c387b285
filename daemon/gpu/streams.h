/* SPDX-License-Identifier: Apache-2.0
 * The streams of a worker, its kernels, its staging memory, and how steps get into a stream. The launch thread's.
 *
 *   a batch in its stream:   wait for each member's .ready | begun = its number | steps | each .done = turn | finished = its number
 *
 * A word .ready that the CPU sees is there is not waited for: a wait costs the stream 1 us, also where nothing is left to wait for.
 * A batch that waits for none has no begun either: it has begun when all before it in its stream are over.
 * begun and finished are words of this process, one pair for each stream; numbers of a stream are 1, 2, 3, ... A third word
 * counts the portions of steps of long batches.
 *
 * A batch that is to be timed has an event more before its steps, and one behind them: what lies between is what the stream took,
 * without its wait for the members. The events are made at the start, as nothing says whether making one waits for streams. */
#ifndef HVD_GPU_STREAMS_H
#define HVD_GPU_STREAMS_H

#include "daemon/gpu/calls.h"
#include "daemon/gpu/plan.h"

#define GPU_STREAM_NCCL    0u /* everything with a communicator */
#define GPU_STREAMS        HVI_DEVICE_STREAMS
#define GPU_STREAM_KERNELS (GPU_STEP_ADASUM_BLEND + 1)
#define GPU_STREAM_STAGING (UINT64_C(64) << 20) /* for what has a communicator */
#define GPU_STREAM_SCRATCH (UINT64_C(16) << 20) /* for adasums of one GPU */
#define GPU_STREAM_GRID                                                                            \
    8u /* blocks of a large grid for each processor: its registers hold as many, or half of them */
#define GPU_STREAM_PORTION 128u /* steps of a batch, of which two portions may lie in the stream */
#define GPU_STREAM_WORKS_MAX                                                                       \
    512u /* things in a stream, behind which no further batch is put: calls would wait (CUDA's queues) */

#define GPU_STREAM_TIMES 64u /* batches in a stream that are timed at once; more go without */

/* Release by the stream's write; pair with the acquire of the launch thread. */
struct gpu_words {
    _Alignas(64) _Atomic uint64_t begun, finished, portions;
};

struct gpu_stream {
    hvi_cu_stream handle;
    struct gpu_words *words;
    hvi_cu_ptr address;   /* of .words */
    hvi_cu_ptr seen;      /* a word of the device: what hvd_look has seen */
    hvi_cu_ptr seen_from; /* .skip that it was; 0: none since gpu_stream_look_again */
    uint64_t queued;      /* number of the last batch */
    uint64_t portions;    /* of steps of long batches, ever */
    struct gpu_times {
        hvi_cu_event begin, end;
    } times[GPU_STREAM_TIMES];
    uint64_t timed,
        told;       /* batches that were timed, ever, and those of them whose time was asked for */
    uint32_t works; /* things in it */
    uint32_t works_before; /* when the batch at hand was begun */
};

struct gpu_streams {
    struct gpu_calls *calls;
    struct gpu_stream streams[GPU_STREAMS];
    struct gpu_words *words; /* a page of this process; NULL: not open */
    hvi_cu_library library;
    unsigned blocks_max; /* of a grid */
    hvi_cu_kernel kernels[GPU_STREAM_KERNELS], look;
    hvi_cu_ptr
        staging; /* the scratch memory lies behind it, and behind that what streams have seen */
};

/* Makes all of it; `file`: an image of the kernels, "": the one that is built in. False: .calls->why. */
bool gpu_streams_open(struct gpu_streams *streams, const char *file);
/* Gives back what nothing uses any more. */
void gpu_streams_close(struct gpu_streams *streams);

/* False of these: .calls->failed. */

/* Nothing is in a stream: zeros to all memory of .staging, and what is behind it. Waits for that. */
bool gpu_streams_clear(struct gpu_streams *streams);
/* What a batch begins with. *waits_p: it waits for a member, and .begun becomes its number behind that. */
bool gpu_streams_wait(struct gpu_streams *streams, struct gpu_stream *stream,
                      const struct gpu_batch *batch, bool *waits_p);
bool gpu_streams_launch(struct gpu_streams *streams, struct gpu_stream *stream,
                        const struct gpu_step *step);
/* What comes next may be late, or has waited: the kernels behind it look again. */
static inline void gpu_stream_look_again(struct gpu_stream *stream)
{
    stream->seen_from = 0;
}
/* Around the steps of a batch that is to be timed. *is_timed_p false: too many are, and it has no end. */
bool gpu_streams_time(struct gpu_streams *streams, struct gpu_stream *stream, bool *is_timed_p);
bool gpu_streams_time_end(struct gpu_streams *streams, struct gpu_stream *stream);
/* Of the oldest timed batch that was not asked about, which is over: at least 1; 0: the driver does not say. */
uint64_t gpu_streams_took(struct gpu_streams *streams, struct gpu_stream *stream);
/* Behind a portion of steps. */
bool gpu_streams_mark(struct gpu_streams *streams, struct gpu_stream *stream);
bool gpu_streams_finish(struct gpu_streams *streams, struct gpu_stream *stream,
                        const struct gpu_batch *batch);
/* Whether the context is sound, as far as the driver knows. */
bool gpu_streams_sound(struct gpu_streams *streams, struct gpu_stream *stream);

static inline uint64_t gpu_stream_begun(const struct gpu_stream *stream)
{
    return atomic_load_explicit(&stream->words->begun, memory_order_acquire);
}

static inline bool gpu_stream_has_room(const struct gpu_stream *stream)
{
    return stream->portions - atomic_load_explicit(&stream->words->portions, memory_order_acquire) <
           2;
}

static inline uint64_t gpu_stream_finished(const struct gpu_stream *stream)
{
    return atomic_load_explicit(&stream->words->finished, memory_order_acquire);
}

#endif
