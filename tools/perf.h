/* SPDX-License-Identifier: Apache-2.0
 * hvd-perf inside: one rank of a measurement. Main thread only, except perf_reference's own
 * threads. */
#ifndef HVI_TOOLS_PERF_H
#define HVI_TOOLS_PERF_H

#include "hvd/hvd.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum perf_op { PERF_ALLREDUCE, PERF_ALLGATHER, PERF_BROADCAST, PERF_BARRIER };
enum perf_memory { PERF_SHARED, PERF_MALLOC, PERF_REGISTERED, PERF_ADOPTED };

#define PERF_OUTSTANDING_MAX 1024
#define PERF_ITERATIONS_MAX  1000000

struct perf_options {
    enum perf_op op;
    int ranks; /* 0: not given */
    uint64_t bytes_min, bytes_max;
    long factor;
    enum hvd_dtype dtype;
    enum hvd_reduce_op reduce_op;
    enum perf_memory memory;
    long warmup;
    long iterations; /* 0: about a second per size */
    long outstanding;
    long attach; /* open/close cycles to measure instead; 0: none */
    const char *address;
    uint64_t timeout_ns; /* for one op */
    bool check, json, reference, out_of_place, no_barrier;
    bool help, version;
};

/* 0, or -1 with a sentence in text_p. */
int perf_options_parse(int argc, char **argv, struct perf_options *options_p, char *text_p,
                       size_t text_size);
void perf_options_help(FILE *out);
const char *perf_op_text(enum perf_op op);
const char *perf_memory_text(enum perf_memory memory);
const char *perf_dtype_text(enum hvd_dtype dtype);
const char *perf_reduce_text(enum hvd_reduce_op reduce_op);

/* One line of the result. Times are the maximum over the ranks in each iteration; median, 99th
 * percentile, minimum. */
struct perf_row {
    const char *op;
    uint64_t bytes, count;
    int np;
    const char *dtype, *memory, *reduce_op; /* "" where it means nothing */
    double time_us, p99_us, min_us;
    double bus_factor; /* busbw = algbw * this, as nccl-tests defines it */
    int64_t errors;    /* -1: not checked */
    long iterations, outstanding;
    int threads; /* of a reference row, otherwise 0 */
};

/* Sorts `ns` and fills in the times, each divided by `divisor`. count > 0. */
void perf_row_times(struct perf_row *row, int64_t *ns, size_t count, double divisor);
double perf_bus_factor(enum perf_op op, int ranks);
void perf_print_header(FILE *out, const struct perf_options *options, int ranks);
void perf_print_row(FILE *out, bool json, const struct perf_row *row);

/* ---- values: what ranks put into their tensors, and what must come out ---- */

/* Pattern values repeat with this period in the element index. */
#define PERF_PERIOD 104

/* Fills `count` elements with rank's pattern for this reduction. */
void perf_fill(enum hvd_dtype dtype, enum hvd_reduce_op reduce_op, int rank, void *data,
               uint64_t count);
/* How many elements differ from the reduction of all ranks' patterns. */
uint64_t perf_check_reduced(enum hvd_dtype dtype, enum hvd_reduce_op reduce_op, int ranks,
                            const void *data, uint64_t count);
/* How many elements differ from rank's pattern. */
uint64_t perf_check_copied(enum hvd_dtype dtype, enum hvd_reduce_op reduce_op, int rank,
                           const void *data, uint64_t count);

/* ---- measuring; each returns an exit code and prints errors to stderr ---- */

int perf_measure(struct hvd_session *session, const struct perf_options *options);
int perf_attach(const struct hvd_options *open_options, const struct perf_options *options);
/* Reference rows of this size on this process alone: memcpy, and one pass over `ranks` buffers with
 * all cores. */
int perf_reference(const struct perf_options *options, int ranks, uint64_t bytes);

/* "hvd-perf: rank 3: <sentence>" */
void perf_complain(int rank, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
