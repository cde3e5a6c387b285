/* SPDX-License-Identifier: Apache-2.0
 * Open and close, over and over: how long a rank's attach to a warm daemon takes, and whether
 * anything is left behind. All ranks go in lockstep, by a barrier between open and close that is not
 * in the times. */
#include "tools/hvd-perf/perf.h"

#include "base/clock.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdlib.h>

struct cycles {
    int rank, size, nodes;
    long count;
    int64_t *open_ns, *close_ns;
    int64_t leaked; /* descriptors */
};

static int count_fds(void)
{
    int count = 0;
    DIR *dir = opendir("/proc/self/fd");
    if (dir == NULL)
        return -1;
    while (readdir(dir) != NULL)
        count++;
    closedir(dir);
    return count - 3; /* ".", ".." and the one of opendir */
}

static int cycle(const struct hvd_options *open_options, const struct perf_options *options,
                 struct cycles *cycles, long i)
{
    struct hvd_session *session;
    const uint64_t start_ns = hvi_clock_ns();
    int status = hvd_open(open_options, &session);
    if (status != HVD_OK) {
        perf_complain(cycles->rank, "open %ld: %s: %s", i, hvd_status_name(status),
                      hvd_last_error());
        return 1;
    }
    cycles->open_ns[i] = (int64_t)(hvi_clock_ns() - start_ns);
    cycles->rank = hvd_rank(session);
    cycles->size = hvd_size(session);
    cycles->nodes = hvd_cross_size(session);
    status = perf_barrier(session, options, "perf.attached");
    const uint64_t close_ns = hvi_clock_ns();
    hvd_close(session);
    cycles->close_ns[i] = (int64_t)(hvi_clock_ns() - close_ns);
    return status == HVD_OK ? 0 : 1;
}

/* The slowest rank of each cycle, and the sum of the leaked descriptors. */
static int exchange(const struct hvd_options *open_options, const struct perf_options *options,
                    struct cycles *cycles)
{
    struct hvd_session *session;
    int status = hvd_open(open_options, &session);
    if (status != HVD_OK) {
        perf_complain(cycles->rank, "%s: %s", hvd_status_name(status), hvd_last_error());
        return 1;
    }
    status = perf_agree(session, options, "perf.open", cycles->open_ns, cycles->count, HVD_MAX);
    if (status == HVD_OK)
        status =
            perf_agree(session, options, "perf.close", cycles->close_ns, cycles->count, HVD_MAX);
    if (status == HVD_OK)
        status = perf_agree(session, options, "perf.leaked", &cycles->leaked, 1, HVD_SUM);
    if (status == HVD_OK)
        status = perf_barrier(session, options, "perf.end");
    hvd_close(session);
    return status == HVD_OK ? 0 : 1;
}

static void print_result(const struct cycles *cycles, bool json, int fds_before, int fds_after)
{
    struct perf_row open_row;
    struct perf_row close_row;
    perf_row_times(&open_row, cycles->open_ns, (size_t)cycles->count, 1);
    perf_row_times(&close_row, cycles->close_ns, (size_t)cycles->count, 1);
    if (json)
        printf("{\"op\": \"attach\", \"np\": %d, \"iterations\": %ld, \"time_us\": %.3f, "
               "\"time_us_p99\": %.3f, \"time_us_min\": %.3f, \"close_us\": %.3f, "
               "\"close_us_p99\": %.3f, \"fds_before\": %d, \"fds_after\": %d, \"errors\": %" PRId64
               ", \"nodes\": %d, \"version\": \"%s\"}\n",
               cycles->size, cycles->count, open_row.time_us, open_row.p99_us, open_row.min_us,
               close_row.time_us, close_row.p99_us, fds_before, fds_after, cycles->leaked,
               cycles->nodes, hvd_version());
    else
        printf("# attach, %d ranks, %ld cycles (the slowest rank of each)\n"
               "open   median %.3f ms   p99 %.3f ms   min %.3f ms\n"
               "close  median %.3f ms   p99 %.3f ms   min %.3f ms\n"
               "descriptors of rank 0: %d before, %d after; left open on all ranks: %" PRId64 "\n",
               cycles->size, cycles->count, open_row.time_us / 1e3, open_row.p99_us / 1e3,
               open_row.min_us / 1e3, close_row.time_us / 1e3, close_row.p99_us / 1e3,
               close_row.min_us / 1e3, fds_before, fds_after, cycles->leaked);
}

/* After a timeout an op may be in flight. Its memory is part of this or belongs to it, and stays until the process
 * ends. */
static struct cycles cycles;

int perf_attach(const struct hvd_options *open_options, const struct perf_options *options)
{
    cycles = (struct cycles){
        .rank = -1,
        .count = options->attach,
        .open_ns = calloc((size_t)options->attach, sizeof(int64_t)),
        .close_ns = calloc((size_t)options->attach, sizeof(int64_t)),
    };
    int code = cycles.open_ns == NULL || cycles.close_ns == NULL;
    const int fds_before = count_fds();
    for (long i = 0; i < cycles.count && code == 0; i++)
        code = cycle(open_options, options, &cycles, i);
    const int fds_after = count_fds();
    cycles.leaked = fds_after - fds_before;
    if (code == 0)
        code = exchange(open_options, options, &cycles);
    if (code != 0)
        return code;
    if (cycles.rank == 0)
        print_result(&cycles, options->json, fds_before, fds_after);
    free(cycles.open_ns);
    free(cycles.close_ns);
    return cycles.leaked != 0;
}
