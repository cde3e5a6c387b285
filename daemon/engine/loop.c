/* SPDX-License-Identifier: Apache-2.0
 * The main loop.
 *
 *   while something is found:  take in -> (negotiate) -> fuse and dispatch -> complete -> ring;
 *                              no system call
 *   every millisecond:         sockets, processes, timers (sd-event, without waiting)
 *   nothing to take in:        do a piece of a large op
 *   nothing at all:            look 16 times, with pauses; where the job uses GPUs once, as what comes
 *                              next needs another thread, which may need this core. Then yield until
 *                              100 us have passed, or yields do not pay (base/yield.h), then ready
 *                              pieces of new regions, then arm the bell and sleep. Between yields, if
 *                              an op waits and there are other nodes: sockets, processes, timers
 *
 * Sleeping follows shm/bell.h: arm, look again, sleep. The workers' eventfd and every socket are in
 * the same epoll. */
#include "base/clock.h"
#include "base/relax.h"
#include "base/status.h"
#include "base/yield.h"
#include "daemon/engine/engine.h"
#include "daemon/engine/sessions/complete.h"
#include "daemon/engine/sessions/fence.h"
#include "daemon/engine/sessions/intake.h"
#include "daemon/engine/watch/timeline.h"
#include "shm/bell.h"

/* About a microsecond. Longer would keep a client that shares our core from running. */
#define LOOKS          16
#define LOOKS_FENCED   1 /* where the job uses GPUs */
#define EVENTS_AT_ONCE 16
#define EVENT_NS       (1 * HVI_NS_MS) /* sockets are looked at this often while ops flow */
#define SPIN_NS        (100 * 1000ull) /* idle time before the main thread sleeps */
#define BUSY_PASSES    64   /* without a piece of a large op: other threads are to do that */
#define OWED_US        1000 /* how often to look whether a slow reader has made room */

static bool drain_active(struct engine *engine)
{
    const struct engine_sessions *sessions = &engine->sessions;
    uint32_t words = (sessions->seats + 63) / 64;
    bool found = false;

    for (uint32_t word = 0; word < words; word++) {
        uint64_t bits = hvi_bell_take(engine->bell, word);
        while (bits != 0) {
            uint32_t seat = word * 64 + (uint32_t)__builtin_ctzll(bits);
            bits &= bits - 1;
            if (seat < sessions->seats && sessions->ranks[seat].session)
                found = engine_intake_drain(sessions->ranks[seat].session) || found;
        }
    }
    return found;
}

/* One way through the stages. True when there was something to do. */
static bool pass(struct engine *engine)
{
    bool found = drain_active(engine);

    found = engine_slots_look(&engine->slots) || found;
    if (found && engine->watch.timeline)
        engine_timeline_cycle(&engine->watch);
    found = engine_nodes_run(engine) || found; /* the root's own ops become ready by it */
    if (engine->order.ready_count > 0)
        engine_dispatch_ready(&engine->exec);
    found = engine_dispatch_reap(&engine->exec) || found;
    if (engine->sessions.releasable) {
        engine_fence_release(&engine->sessions);
        found = true;
    }
    if (engine->sessions.owed > 0)
        engine_complete_owed(&engine->sessions);
    if (engine->sessions.doomed) {
        engine_sessions_end_doomed(&engine->sessions);
        found = true; /* batches may have been posted, and other sessions doomed */
    }
    engine_complete_ring(&engine->sessions);
    if (engine->sessions.closing && engine_sessions_reap(&engine->sessions)) {
        engine->order.now_ns = hvi_clock_ns(); /* unmapping took its time: events may be due */
        found = true;
    }
    return found;
}

/* What waiting clients look at, to see that the engine lives: the loop comes here once a millisecond
 * while it is awake, and each time that it wakes up. */
static void beat(struct engine *engine, uint64_t now_ns)
{
    engine->event_ns = now_ns;
    /* Relaxed, pairs with the load in client/link/liveness.c: nothing else is read by it. */
    atomic_store_explicit(&engine->bell->beat, now_ns, memory_order_relaxed);
}

/* True when there were events: whatever they left behind has to be looked at before sleeping. */
static bool look_at_events(struct engine *engine, uint64_t now_ns, uint64_t every_ns)
{
    int events = 0;

    if (now_ns - engine->event_ns < every_ns)
        return false;
    beat(engine, now_ns);
    while (events < EVENTS_AT_ONCE && sd_event_run(engine->event, 0) > 0)
        events++;
    return events > 0;
}

static void block(struct engine *engine)
{
    if (!hvi_bell_arm(engine->bell))
        return;
    sd_event_run(engine->event, engine->sessions.owed > 0 ? OWED_US : UINT64_MAX);
    hvi_bell_disarm(engine->bell);
    beat(engine, hvi_clock_ns());
}

void engine_loop_run(struct engine *engine)
{
    uint32_t idle_passes = 0, busy_passes = 0;
    uint64_t idle_ns = 0; /* 0: not idle, or not for long */

    while (!engine_sessions_are_over(&engine->sessions) || engine_timeline_stays(&engine->watch)) {
        if (pass(engine) || engine->order.ready_count > 0) {
            idle_passes = 0;
            idle_ns = 0;
            if (++busy_passes % BUSY_PASSES == 0)
                engine_dispatch_busy(&engine->exec);
            look_at_events(engine, engine->order.now_ns, EVENT_NS);
            continue;
        }
        busy_passes = 0;
        if (engine_dispatch_help(&engine->exec)) {
            idle_passes = 0;
            idle_ns = 0;
            look_at_events(engine, hvi_clock_ns(), EVENT_NS);
            continue;
        }
        if (++idle_passes < (engine->sessions.fenced > 0 ? LOOKS_FENCED : LOOKS)) {
            hvi_cpu_relax();
            continue;
        }
        uint64_t now_ns = hvi_clock_ns();
        if (idle_ns == 0)
            idle_ns = now_ns;
        /* What an op waits for comes by a socket; it is not to lie there until the main thread sleeps. */
        if (look_at_events(engine, now_ns, engine_nodes_await(engine) ? 0 : EVENT_NS))
            continue;
        if (now_ns - idle_ns < SPIN_NS && hvi_yield())
            continue;
        if (!engine_sessions_ready_memory(&engine->sessions))
            block(engine);
    }
}
