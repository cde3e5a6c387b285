/* SPDX-License-Identifier: Apache-2.0
 * A daemon's reply with one of everything, for the tests of hvdctl's output. */
#ifndef HVT_TOOLS_REPLY_H
#define HVT_TOOLS_REPLY_H

#include "tools/hvdctl/ctl.h"

#include <stdlib.h>

static struct hvd_admin_job hvt_jobs[] = {
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
static struct hvd_admin_rank hvt_ranks[] = {
    {.rank = 0,
     .pid = 4711,
     .uid = 0,
     .state = "attached",
     .process = "S",
     .text = "",
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
     .origin = "hvdrun",
     .own_pid = 4711,
     .memory = "by address"},
    {.rank = 1,
     .pid = 4713,
     .uid = 0,
     .state = "lost",
     .process = "X",
     .origin = "slurm",
     .text = "was killed by signal 9 (SIGKILL)",
     .own_pid = 7,
     .memory = ""},
    {.rank = 2, .pid = 0, .state = "absent", .process = "", .origin = "", .text = "", .memory = ""},
};
static int32_t hvt_ready[] = {0, 1, 2, 5, 7, 8};
static struct hvd_admin_missing hvt_missing[] = {
    {.rank = 3, .pid = 4714, .process = "T", .waits_in = "barrier 'b'"},
    {.rank = 4, .pid = 0, .process = "absent", .waits_in = ""},
};
static const struct hvd_admin_missing *const hvt_missing_list[] = {&hvt_missing[0],
                                                                   &hvt_missing[1]};
static struct hvd_admin_stall hvt_stalls[] = {
    {.tensor = "w1\033[2J\x7f\xc2\x9b\xe2\x80\xae",
     .op = "allreduce",
     .job = "digits",
     .age_ns = 61000000000ull,
     .ready = hvt_ready,
     .ready_count = 6,
     .missing = hvt_missing_list,
     .missing_count = 2},
};

static const struct hvd_admin_job *const hvt_job_list[] = {&hvt_jobs[0], &hvt_jobs[1]};
static const struct hvd_admin_rank *const hvt_rank_list[] = {&hvt_ranks[0], &hvt_ranks[1],
                                                             &hvt_ranks[2]};
static const struct hvd_admin_stall *const hvt_stall_list[] = {&hvt_stalls[0]};
static struct hvd_admin_daemon hvt_daemon = {
    .version = "0.1.0",
    .pid = 17,
    .uid = 0,
    .uptime_ns = 18446744073709551615ull,
    .runtime_dir = "/run/hvdd",
    .state = "running",
    .jobs = 2,
    .sessions = 5,
    .attaches = 9,
    .refused = 1,
    .ranks_lost = 3,
    .gpu_program = "/usr/libexec/hvdd/hvdd-gpu",
    .gpu_kernels = "",
    .gpu_library_path = "/opt/site-packages",
    .gpu_mps = "pid 7, in /run/hvdd/mps",
};

static struct hvd_admin_answer hvt_reply = {
    .text = "",
    .daemon = &hvt_daemon,
    .jobs = hvt_job_list,
    .job_count = 2,
    .ranks = hvt_rank_list,
    .rank_count = 3,
    .stalls = hvt_stall_list,
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
