/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/hvd-perf/perf.h"

#include <inttypes.h>
#include <stdlib.h>

static int compare(const void *a, const void *b)
{
    const int64_t one = *(const int64_t *)a;
    const int64_t two = *(const int64_t *)b;
    return (one > two) - (one < two);
}

void perf_row_times(struct perf_row *row, int64_t *ns, size_t count, double divisor)
{
    const double scale = 1e-3 / divisor;
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += (double)ns[i];
    qsort(ns, count, sizeof *ns, compare);
    const size_t middle = count / 2;
    const double median =
        count % 2 == 1 ? (double)ns[middle] : ((double)ns[middle - 1] + (double)ns[middle]) / 2;
    const size_t rank_99 =
        (count * 99 + 99) / 100; /* nearest rank: smallest with 99 % at or below */
    row->time_us = median * scale;
    row->p99_us = (double)ns[rank_99 - 1] * scale;
    row->min_us = (double)ns[0] * scale;
    row->mean_us = sum / (double)count * scale;
}

bool perf_op_reduces(enum perf_op op)
{
    return op == PERF_ALLREDUCE || op == PERF_GRADIENTS || op == PERF_REDUCESCATTER;
}

double perf_bus_factor(enum perf_op op, int ranks)
{
    const double n = ranks;
    switch (op) {
    case PERF_ALLREDUCE:
    case PERF_GRADIENTS:
        return 2 * (n - 1) / n;
    case PERF_ALLGATHER:
    case PERF_ALLTOALL:
    case PERF_REDUCESCATTER:
        return (n - 1) / n;
    case PERF_BROADCAST:
        return 1;
    case PERF_BARRIER:
        break;
    }
    return 0;
}

static const char *names_said(const struct perf_options *options)
{
    return options->unnamed     ? ", unnamed"
           : options->new_names ? ", new names in each iteration"
                                : "";
}

void perf_print_header(FILE *out, const struct perf_options *options, int ranks, int nodes)
{
    char where[32] = "";
    char together[64] = "";
    if (options->json)
        return;
    const bool reduces = perf_op_reduces(options->op);
    if (nodes > 1)
        snprintf(where, sizeof where, " on %d nodes", nodes);
    if (options->outstanding > 1)
        snprintf(together, sizeof together, ", %ld ops at a time (the time divided by that)",
                 options->outstanding);
    fprintf(out, "# hvd-perf %s: %s %s%s%s, %d ranks%s, buffers in %s memory%s%s%s%s\n",
            hvd_version(), perf_op_text(options->op),
            reduces ? perf_reduce_text(options->reduce_op) : "", reduces ? " " : "",
            perf_dtype_text(options->dtype), ranks, where, perf_memory_text(options->memory),
            options->out_of_place ? ", out of place" : "",
            options->no_barrier ? ", no barrier" : "", names_said(options), together);
    fprintf(out, "#%-10s %12s %12s %10s %10s %10s %8s %8s %8s %7s\n", "op", "bytes", "count",
            "median us", "p99 us", "min us", "alg GB/s", "bus GB/s", "errors", "iter");
}

/* How it was measured. */
static void print_json_way(FILE *out, const struct perf_row *row)
{
    fprintf(out,
            "\"nodes\": %d, \"out_of_place\": %s, \"barrier\": %s, \"names\": \"%s\", "
            "\"warmup\": %ld, \"version\": \"%s\"}\n",
            row->nodes, row->out_of_place ? "true" : "false", row->barrier ? "true" : "false",
            row->names, row->warmup, hvd_version());
}

static void print_json(FILE *out, const struct perf_row *row, double algbw)
{
    char errors[32] = "null";
    if (row->errors >= 0)
        snprintf(errors, sizeof errors, "%" PRId64, row->errors);
    fprintf(
        out,
        "{\"op\": \"%s\", \"bytes\": %" PRIu64 ", \"count\": %" PRIu64
        ", \"np\": %d, \"dtype\": \"%s\", \"memory\": \"%s\", \"reduce_op\": \"%s\", "
        "\"time_us\": %.3f, \"time_us_p99\": %.3f, \"time_us_min\": %.3f, \"time_us_mean\": %.3f, "
        "\"algbw_GBps\": %.4f, \"busbw_GBps\": %.4f, \"errors\": %s, \"iterations\": %ld, "
        "\"outstanding\": %ld, \"threads\": %d, ",
        row->op, row->bytes, row->count, row->np, row->dtype, row->memory, row->reduce_op,
        row->time_us, row->p99_us, row->min_us, row->mean_us, algbw, algbw * row->bus_factor,
        errors, row->iterations, row->outstanding, row->threads);
    print_json_way(out, row);
}

void perf_print_row(FILE *out, bool json, const struct perf_row *row)
{
    char errors[32] = "-";
    const double algbw = row->time_us > 0 ? (double)row->bytes / row->time_us / 1e3 : 0;
    if (json) {
        print_json(out, row, algbw);
        fflush(out);
        return;
    }
    if (row->errors >= 0)
        snprintf(errors, sizeof errors, "%" PRId64, row->errors);
    fprintf(out, " %-10s %12" PRIu64 " %12" PRIu64 " %10.2f %10.2f %10.2f %8.3f %8.3f %8s %7ld\n",
            row->op, row->bytes, row->count, row->time_us, row->p99_us, row->min_us, algbw,
            algbw * row->bus_factor, errors, row->iterations);
    fflush(out);
}
