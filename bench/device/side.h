/* SPDX-License-Identifier: Apache-2.0
 * What the programs of bench/gpu.py share: a process that has the GPU, as a trainer or alone, with the worker's own kernels, and
 * what it prints. One thread. Each function ends the process with a sentence where something fails, so none returns an error.
 *
 * A figure is a line {"figure": NAME, "value": NUMBER, "unit": UNIT} of standard output; a note is {"note": TEXT}. */
#ifndef BENCH_SIDE_H
#define BENCH_SIDE_H

#include "daemon/gpu/nccl.h"
#include "daemon/gpu/streams.h"

#include <hvd/hvd.h>

#define SIDE_OPS 256 /* in flight */

struct side_options {
    size_t bytes;        /* of a large tensor; of a rank */
    size_t load_bytes;   /* the most that a kernel of the load copies */
    int chain;           /* ops in a stream, each after the one before */
    int repeats;         /* of a chain */
    int calls;           /* of what is timed one by one */
    bool is_busy;        /* also beside a load */
    unsigned grid;       /* blocks for each processor; 0: the worker's */
    const char *kernels; /* file of an image of the kernels, "": the one built in */
    const char *sizes;   /* file of element counts */
};

struct side {
    const struct side_options *options;
    struct hvi_cuda cuda;
    struct gpu_calls calls;
    struct gpu_streams streams;                /* the kernels */
    struct gpu_stream *stream, *load, *opener; /* of the ops; of the load; opens the gate */
    int (*event_create)(void **event_p, unsigned flags);
    int (*event_record)(void *event, hvi_cu_stream stream);
    int (*event_elapsed)(float *ms_p, void *begin, void *end);
    void *begin, *end;
    hvi_cu_ptr gate; /* a word: the stream waits until it is .gates */
    uint64_t gates;
    struct gpu_step load_step; /* what the load repeats */
    int early;
    struct hvd_session *session; /* NULL: alone */
    int rank, size;
    struct hvd_op *ops[SIDE_OPS];
};

__attribute__((format(printf, 1, 2))) _Noreturn void side_fail(const char *format, ...);
void side_good(struct side *side, int error, const char *what); /* of the driver */
void side_fine(int status, const char *what);                   /* of hvd.h */
/* Rank 0 prints; its name is formatted. */
__attribute__((format(printf, 4, 5))) void side_figure(const struct side *side, double value,
                                                       const char *unit, const char *format, ...);
__attribute__((format(printf, 2, 3))) void side_note(const struct side *side, const char *format,
                                                     ...);
/* What the process is at, a constant: its last words when it is ended (side_limit). */
void side_step(const char *step);
/* Ends the process so much later. */
void side_limit(unsigned seconds);
uint64_t side_now_ns(void);
double side_median(double *values, int count); /* sorts them */
double side_part(double *values, int count, double part);

/* The device, its streams and kernels; with `attaches` a session, whose environment hvdrun has made. */
void side_open(struct side *side, const struct side_options *options, bool attaches);
hvi_cu_ptr side_alloc(struct side *side, size_t bytes);
void side_free(struct side *side, hvi_cu_ptr address);
/* Pageable memory of the host, there and back; waits. */
void side_put(struct side *side, hvi_cu_ptr to, const void *from, size_t bytes);
void side_get(struct side *side, void *to, hvi_cu_ptr from, size_t bytes);
void side_copy(struct side *side, hvi_cu_ptr to, hvi_cu_ptr from, size_t bytes); /* enqueued */
void side_settle(struct side *side, struct gpu_stream *stream);

/* Small whole numbers that differ from element to element and from rank to rank: sums of eight ranks are exact in bfloat16. */
double side_value(int rank, size_t element);
double side_sum(int ranks, size_t element);
/* Elements from 0 on in memory of the device: of a rank; or it compares, with a factor, the sum of so many ranks. */
void side_fill(struct side *side, hvi_cu_ptr to, size_t count, enum hvd_dtype dtype, int rank);
void side_check(struct side *side, hvi_cu_ptr from, size_t count, enum hvd_dtype dtype, int ranks,
                double factor, const char *what);

/* Marks in .stream; the microseconds between them once the stream is over. */
void side_mark_begin(struct side *side);
void side_mark_end(struct side *side);
double side_elapsed_us(struct side *side);

/* What is enqueued in .stream from now on waits until it is opened. */
void side_close_gate(struct side *side);
void side_open_gate(struct side *side);

/* A kernel of the worker: the sum of `ins` vectors of float32 to the first `outs` of them. */
struct gpu_step side_reduce_step(const hvi_cu_ptr *vectors, uint32_t ins, uint32_t outs,
                                 size_t count);
void side_launch(struct side *side, struct gpu_stream *stream, const struct gpu_step *step);

/* GB/s of a copy on the device, read and write. Prints it. */
double side_copy_rate(struct side *side);
/* Half a millisecond of copying, so often, by kernels that fill the device. */
void side_make_load(struct side *side);
void side_begin_load(struct side *side, int kernels);
/* .early counts when it was over before what it was to disturb. */
void side_end_load(struct side *side);

/* A barrier of the job; nothing when alone. */
void side_meet(struct side *side);
/* The ops of .ops are over, well, and free. */
void side_wait_ops(struct side *side, int count);

/* Measures; each is a whole program. */
void bench_op(const struct side_options *options);
void bench_alone(const struct side_options *options);
void bench_reduce(const struct side_options *options);
void bench_group(const struct side_options *options);
void bench_pack(const struct side_options *options);
void bench_attach(const struct side_options *options);
void bench_kernels(const struct side_options *options);

#endif
