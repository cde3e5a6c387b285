/* SPDX-License-Identifier: Apache-2.0
 * A daemon's reply with one of everything, for the tests of hvdctl's output. */
#ifndef HVT_TOOLS_REPLY_H
#define HVT_TOOLS_REPLY_H

#include "proto/wire.h"
#include "tools/hvdctl/ctl.h"

#include <stdlib.h>

static struct hvi_job_row hvt_jobs[] = {
    {.job = "digits",
     .generation = 1,
     .uid = 0,
     .size = 4,
     .attached = 4,
     .nodes = 2,
     .state = "running",
     .engine_pid = 4712,
     .age_ns = 65000000000ull,
     .ops = 1234567,
     .bytes = 1610612736},
    {.job = "b",
     .generation = 12,
     .uid = 0,
     .size = 2,
     .attached = 1,
     .state = "failed",
     .engine_pid = 99,
     .age_ns = 1500000,
     .ops = 0,
     .bytes = 0},
};
static struct hvi_rank_row hvt_ranks[] = {
    {.rank = 0,
     .pid = 4711,
     .uid = 0,
     .state = "attached",
     .process = "S",
     .ops = 1000,
     .bytes = 4096,
     .in_flight = 2,
     .lag_mean_ns = 1500,
     .lag_max_ns = 2000000,
     .lag_p50_ns = 900,
     .lag_p99_ns = 30000,
     .lag_ops = 1000,
     .last_ops = 250,
     .region_bytes = 67108864,
     .origin = "hvdrun"},
    {.rank = 1,
     .pid = 4713,
     .uid = 0,
     .state = "lost",
     .process = "X",
     .origin = "slurm",
     .text = "was killed by signal 9 (SIGKILL)"},
    {.rank = 2, .pid = 0, .state = "absent"},
};
static int32_t hvt_ready[] = {0, 1, 2, 5, 7, 8};
static struct hvi_missing_rank hvt_missing[] = {
    {.rank = 3, .pid = 4714, .process = "T", .waits_in = "barrier 'b'"},
    {.rank = 4, .pid = 0, .process = "absent"},
};
static struct hvi_stall_row hvt_stalls[] = {
    {.tensor = "w1\033[2J\x7f\xc2\x9b\xe2\x80\xae",
     .op = "allreduce",
     .job = "digits",
     .age_ns = 61000000000ull,
     .ready = hvt_ready,
     .ready_count = 6,
     .missing = hvt_missing,
     .missing_count = 2},
};

static struct hvi_admin_reply hvt_reply = {
    .protocol_version = 1,
    .has_daemon = true,
    .daemon = {.version = "0.1.0",
               .pid = 17,
               .uid = 0,
               .uptime_ns = 18446744073709551615ull,
               .runtime_dir = "/run/hvdd",
               .state = "running",
               .jobs = 2,
               .sessions = 5,
               .attaches = 9,
               .refused = 1,
               .ranks_lost = 3},
    .jobs = hvt_jobs,
    .job_count = 2,
    .ranks = hvt_ranks,
    .rank_count = 3,
    .stalls = hvt_stalls,
    .stall_count = 1,
};

static char *hvt_text;
static size_t hvt_text_size;

/* A hvdctl that writes into hvt_text; close .out before reading it. */
static inline struct ctl hvt_ctl(void)
{
    return (struct ctl){.out = open_memstream(&hvt_text, &hvt_text_size)};
}

#endif
