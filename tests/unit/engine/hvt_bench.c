/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/engine/hvt_bench.h"
#include "daemon/engine/sessions/complete.h"
#include "daemon/engine/sessions/fence.h"
#include "daemon/engine/sessions/intake.h"

#include "base/fate.h"
#include "base/status.h"

#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

void hvt_bench_init_empty(struct hvt_bench *bench, int32_t size)
{
    struct hvi_engine_start start = hvt_node_defaults(size);

    hvt_bench_init_start(bench, &start);
}

void hvt_bench_init_start(struct hvt_bench *bench, const struct hvi_engine_start *start)
{
    int32_t size = start->seats > 0 ? start->seats : start->size;
    sigset_t term;
    int pair[2];

    sigemptyset(&term);
    sigaddset(&term, SIGTERM); /* as main does, for the signalfd */
    sigprocmask(SIG_BLOCK, &term, NULL);
    ck_assert_int_le(size, HVT_BENCH_RANKS);
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    bench->link = pair[0];
    bench->size = size;
    bench->engine = calloc(1, sizeof *bench->engine);
    ck_assert_ptr_nonnull(bench->engine);
    ck_assert_int_eq(engine_init(bench->engine, start, pair[1]), HVI_OK);
    memset(bench->peers, 0, sizeof bench->peers);
    for (int32_t rank = 0; rank < HVT_BENCH_RANKS; rank++) {
        struct hvt_peer *peer = &bench->peers[rank];
        peer->socket = peer->far_socket = peer->pid_fd = peer->engine_fd = peer->event_fd = -1;
    }
}

void hvt_bench_init(struct hvt_bench *bench, int32_t size)
{
    hvt_bench_init_empty(bench, size);
    for (int32_t rank = 0; rank < size; rank++)
        ck_assert_int_eq(hvt_bench_attach(bench, rank), HVI_OK);
}

int hvt_bench_attach(struct hvt_bench *bench, int32_t rank)
{
    return hvt_bench_attach_as(bench, rank, 0);
}

static int adopt_peer(struct hvt_bench *bench, int32_t seat, const struct hvi_setting *settings,
                      size_t setting_count)
{
    static unsigned char request[HVI_PACKET_BYTES_MAX];
    struct hvt_peer *peer = &bench->peers[seat];
    struct hvi_engine_adopt adopt = {.session = (uint64_t)seat + 1, .attach = request};

    adopt.attach_bytes = hvt_peer_request(peer, settings, setting_count, request, sizeof request);
    adopt.pid = peer->pid;
    engine_session_adopt(&bench->engine->sessions, &adopt, peer->far_socket,
                         hvi_pidfd_open(peer->pid));
    peer->far_socket = -1;
    return hvt_peer_meet(peer);
}

int hvt_bench_attach_as(struct hvt_bench *bench, int32_t rank, pid_t pid)
{
    hvt_peer_init(&bench->peers[rank], rank, bench->size, pid);
    return adopt_peer(bench, rank, NULL, 0);
}

int hvt_bench_attach_seat(struct hvt_bench *bench, int32_t seat, int32_t rank,
                          const struct hvi_setting *settings, size_t setting_count)
{
    struct hvt_peer *peer = &bench->peers[seat];

    hvt_peer_init(peer, rank, bench->engine->start.size, 0);
    peer->local_rank = seat;
    peer->local_size = bench->size;
    return adopt_peer(bench, seat, settings, setting_count);
}

void hvt_bench_turn(struct hvt_bench *bench)
{
    struct engine *engine = bench->engine;

    while (sd_event_run(engine->event, 0) > 0) {
    }
    engine_intake_drain_all(&engine->sessions);
    engine_nodes_run(engine);
    engine_dispatch_ready(&engine->exec);
    while (engine_dispatch_help(&engine->exec)) {
    }
    engine_dispatch_reap(&engine->exec);
    uint64_t deadline_ns = hvi_clock_ns() + 60 * HVI_NS_SEC;
    while (engine->exec.remote > 0) { /* the workers alone do these */
        ck_assert(!hvi_deadline_passed(deadline_ns));
        sched_yield();
        engine_dispatch_reap(&engine->exec);
    }
    while (engine->sessions.releasable) {
        engine_fence_release(&engine->sessions);
        engine_dispatch_ready(&engine->exec);
        engine_dispatch_reap(&engine->exec);
    }
    engine_complete_owed(&engine->sessions);
    engine_complete_ring(&engine->sessions);
    while (engine_sessions_reap(&engine->sessions)) {
    }
}

void hvt_bench_fini(struct hvt_bench *bench)
{
    engine_sessions_stop(&bench->engine->sessions, "the test is over");
    ck_assert_msg(engine_fini(bench->engine), "a thread has not ended");
    free(bench->engine);
    for (int32_t rank = 0; rank < bench->size; rank++)
        hvt_peer_fini(&bench->peers[rank]);
    close(bench->link);
}
