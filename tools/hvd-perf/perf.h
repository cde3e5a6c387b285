/* SPDX-License-Identifier: Apache-2.0
 * hvd-perf inside: one rank of a measurement. Main thread only, except perf_reference's own
 * threads. */
#ifndef HVI_TOOLS_HVD_PERF_PERF_H
#define HVI_TOOLS_HVD_PERF_PERF_H

#include "hvd/hvd.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* PERF_GRADIENTS: allreduces of many tensors of different sizes, submitted one by one, as a training
 * step does. */
enum perf_op {
    PERF_ALLREDUCE,
    PERF_ALLGATHER,
    PERF_BROADCAST,
    PERF_ALLTOALL, /* equal parts */
    PERF_REDUCESCATTER,
    PERF_BARRIER,
    PERF_GRADIENTS
};
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
    const char *sizes;   /* file with the elements of each tensor of PERF_GRADIENTS */
    uint64_t timeout_ns; /* of the wait for one op */
    uint64_t budget_ns;  /* of measuring one size, when iterations is 0 */
    uint64_t idle_ns;    /* attach and do nothing instead; 0: no */
    bool check, json, reference, out_of_place, no_barrier, unnamed, new_names;
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

/* The environment variables of a launcher. */
struct perf_launcher {
    const char *rank, *size;
};

/* The launcher that libhvdclient takes this process for a rank of, or another one whose variables are
 * set too; NULL: none. */
const struct perf_launcher *perf_launcher(void);
/* Rank 0 says on stderr that -n has no effect, if it was given (ranks > 0) and the launcher has another
 * number of ranks. */
void perf_launcher_warn(const struct perf_launcher *launcher, int ranks);

/* One line of the result. Times are the maximum over the ranks in each iteration; median, 99th
 * percentile, minimum, mean. */
struct perf_row {
    const char *op;
    uint64_t bytes, count;
    int np;
    const char *dtype, *memory, *reduce_op; /* "" where it means nothing */
    double time_us, p99_us, min_us, mean_us;
    double bus_factor; /* busbw = algbw * this, as nccl-tests defines it */
    int64_t errors;    /* -1: not checked */
    long iterations, outstanding;
    int threads; /* of a reference row, otherwise 0 */
    int nodes;
    bool out_of_place, barrier; /* barrier: before each iteration */
    const char *names;          /* "repeated", "new" in each iteration, "unnamed" */
    long warmup;
};

/* Sorts `ns` and fills in the times, each divided by `divisor`. count > 0. */
void perf_row_times(struct perf_row *row, int64_t *ns, size_t count, double divisor);
bool perf_op_reduces(enum perf_op op);
double perf_bus_factor(enum perf_op op, int ranks);
void perf_print_header(FILE *out, const struct perf_options *options, int ranks, int nodes);
void perf_print_row(FILE *out, bool json, const struct perf_row *row);

/* ---- values: what ranks put into their tensors, and what must come out ---- */

/* Pattern values repeat with this period in the element index. A prime: blocks that are displaced by a
 * power of two, or by a multiple of the number of ranks, do not fit. */
#define PERF_PERIOD 1021

struct perf_pattern {
    enum hvd_dtype dtype;
    enum hvd_reduce_op reduce_op;
    unsigned salt; /* another salt, other values */
};

/* Fills `count` elements with rank's values. */
void perf_fill(const struct perf_pattern *pattern, int rank, void *data, uint64_t count);
/* How many elements differ from the reduction of all ranks' values; data begins at the from-th
 * element of the pattern. */
uint64_t perf_check_reduced(const struct perf_pattern *pattern, int ranks, uint64_t from,
                            const void *data, uint64_t count);
/* How many elements differ from rank's values, from its from-th element on. */
uint64_t perf_check_copied(const struct perf_pattern *pattern, int rank, uint64_t from,
                           const void *data, uint64_t count);

/* ---- tensors: the operands of the ops that are in flight at a time ---- */

/* How many elements each tensor has, from a file: one number per line, whatever follows it on the
 * line is a name, '#' begins a comment. 0 and a list to be freed by the caller, or -1 with a sentence
 * in text_p. */
int perf_sizes_read(const char *path, uint64_t **counts_p, long *count_p, char *text_p,
                    size_t text_size);

/* Elements of one rank's input when an op of `bytes` is asked for (at least 1, and parts of equal size
 * for those ops that divide it), and of its output then. The bytes of an allgather are the whole
 * result's. */
uint64_t perf_in_count(enum perf_op op, int ranks, uint64_t bytes, size_t element);
uint64_t perf_out_count(enum perf_op op, int ranks, uint64_t in_count);

/* Whether an output is other memory than its input. */
bool perf_out_of_place(const struct perf_options *options);

struct perf_tensor {
    void *in, *out; /* the same when in place; NULL when the op has none */
    uint64_t count; /* elements of one rank's input at the present size */
    uint64_t room;  /* elements of one rank's input for which there is memory */
    char name[40];
    struct hvd_op *op; /* in flight */
};

struct perf_tensors {
    struct hvd_session *session;
    const struct perf_options *options;
    struct perf_tensor *list;
    long count;
    unsigned char *in, *out; /* one piece of memory for all of them, unless memory is malloc */
};

/* Memory for `options->outstanding` tensors of bytes_max, or for those of the file; prints what goes
 * wrong. put() undoes a get() that failed, too. */
int perf_tensors_get(struct perf_tensors *tensors, struct hvd_session *session,
                     const struct perf_options *options);
void perf_tensors_put(struct perf_tensors *tensors);

/* ---- ops by which ranks meet and agree ----
 *
 * Each blocks for options->timeout_ns at most and prints what goes wrong. HVD_OK, or what the op ended
 * with; after HVD_ERR_TIMEOUT it goes on, and its memory has to stay. */

int perf_barrier(struct hvd_session *session, const struct perf_options *options, const char *name);
/* Each of `count` numbers becomes its reduction over the ranks. */
int perf_agree(struct hvd_session *session, const struct perf_options *options, const char *name,
               int64_t *numbers, long count, enum hvd_reduce_op reduce_op);

/* ---- measuring; each returns an exit code and prints errors to stderr ---- */

int perf_measure(struct hvd_session *session, const struct perf_options *options);
/* Says so on stdout once every rank is there, and sleeps. */
int perf_idle(struct hvd_session *session, const struct perf_options *options);
int perf_attach(const struct hvd_options *open_options, const struct perf_options *options);
/* Reference rows of this size on this process alone: memcpy, and one pass over `ranks` buffers with
 * all cores. */
int perf_reference(const struct perf_options *options, int ranks, uint64_t bytes);

/* "hvd-perf: rank 3: <sentence>" */
void perf_complain(int rank, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
