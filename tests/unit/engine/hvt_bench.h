/* SPDX-License-Identifier: Apache-2.0
 * An engine inside the test process, without its loop: the test plays the clients and calls the
 * stages itself, so that every order can be produced at will. */
#ifndef HVT_BENCH_H
#define HVT_BENCH_H

#include "daemon/engine/engine.h"
#include "tests/unit/engine/hvt_peer.h"

#define HVT_BENCH_RANKS 65

struct hvt_bench {
    struct engine *engine;
    int link; /* hvdd's end */
    int32_t size;
    struct hvt_peer peers[HVT_BENCH_RANKS];
};

/* An engine with `size` ranks, all attached. */
void hvt_bench_init(struct hvt_bench *bench, int32_t size);
/* An engine for `size` ranks with nobody attached. */
void hvt_bench_init_empty(struct hvt_bench *bench, int32_t size);
/* The same, of any job. Peers are by seat. */
void hvt_bench_init_start(struct hvt_bench *bench, const struct hvi_engine_start *start);
/* Attaches a rank of a job with ranks on other nodes; returns the status of the reply. */
int hvt_bench_attach_seat(struct hvt_bench *bench, int32_t seat, int32_t rank,
                          const struct hvi_setting *settings, size_t setting_count);
void hvt_bench_fini(struct hvt_bench *bench);
/* Attaches one rank; returns the status of the reply. */
int hvt_bench_attach(struct hvt_bench *bench, int32_t rank);
/* The same for a rank whose process is `pid`; 0: this one. */
int hvt_bench_attach_as(struct hvt_bench *bench, int32_t rank, pid_t pid);
/* Once through all stages, sockets included. */
void hvt_bench_turn(struct hvt_bench *bench);

#endif
