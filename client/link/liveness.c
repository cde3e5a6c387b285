/* SPDX-License-Identifier: Apache-2.0
 * Whether the engine lives, as a rank sees it that waits.
 *
 *   the engine ends          its socket ends; before that, /proc shows all its threads as exiting
 *   the engine stands still  hvdd, if it lives, kills it after engine-silence: it ends, as above
 *                            else its beat does not move: GRACE_NS later its ranks kill it
 *
 * An engine that has nothing to do moves only when something wakes it up, as a living hvdd does every
 * second. So the rank rings the engine's bell before it judges.
 *
 * An engine that has ended writes to no memory any more. One that could not be killed (another
 * user's, or in another pid namespace) may go on one day; the session ends all the same, and
 * hvd_close then does not say that the ops' memory is free. */
#include "client/link/liveness.h"

#include "base/fate.h"
#include "client/link/link.h"

#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#define GRACE_NS  (2 * HVI_NS_SEC)   /* hvdd's verdict comes first: its ticks are a second apart */
#define SILENT_NS (1500 * HVI_NS_MS) /* longer than between two questions of a living hvdd */

static uint64_t limit_ns(const struct hvi_bell_page *bell)
{
    /* Relaxed, pairs with the store in daemon/engine/link.c: a reload of hvdd's has changed it. */
    uint64_t silence_ns = atomic_load_explicit(&bell->silence_ns, memory_order_relaxed);
    return silence_ns == 0 || silence_ns > HVI_NEVER - GRACE_NS ? HVI_NEVER : silence_ns + GRACE_NS;
}

struct client_patience client_liveness_patience(const struct hvi_bell_page *bell)
{
    return client_patience_of(limit_ns(bell));
}

/* What the engine finished before it died is still in the ring. How it died is rarely to be seen from
 * here, and a process that is just ending still looks alive. */
static void end(struct client_link *link, struct hvi_fate fate)
{
    char how[128] = "is gone", silence[64] = "", engine[HVI_PROCESS_TEXT];
    link->calls->drain(link->complete);
    if (fate.kind == HVI_FATE_EXITED || fate.kind == HVI_FATE_SIGNALED)
        hvi_fate_describe(fate, how, sizeof(how));
    if (link->silence.given_ns >= SILENT_NS && link->silence.limit_ns != HVI_NEVER)
        snprintf(silence, sizeof(silence), ", and had not moved for %u s before",
                 (unsigned)(link->silence.given_ns / HVI_NS_SEC));
    hvi_process_describe(link->engine_here, link->engine_pid, engine);
    client_link_end(link, HVD_ERR_ENGINE_LOST,
                    "the engine of job '%s' (%s) %s%s; hvdd's log says more; close this session "
                    "and open a new one",
                    link->identity.job, engine, how, silence);
}

void client_liveness_gone(struct client_link *link)
{
    end(link, hvi_fate_look(link->engine_here, -1)); /* .engine_pid may be another process here */
}

/* False: the caller has not the right, or the engine no pid here. While the engine's socket is open its
 * pid is its own, so the descriptor that was opened before is the engine's. */
static bool kill_engine(const struct client_link *link)
{
    struct pollfd pollfd = {.fd = link->socket_fd};
    int pidfd = link->engine_here > 0 ? hvi_pidfd_open(link->engine_here) : -1;
    if (pidfd < 0)
        return false;
    poll(&pollfd, 1, 0);
    bool killed = (pollfd.revents & POLLHUP) != 0 ||
                  syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, NULL, 0u) == 0;
    close(pidfd);
    return killed;
}

static void end_silent(struct client_link *link)
{
    char engine[HVI_PROCESS_TEXT];
    hvi_process_describe(link->engine_here, link->engine_pid, engine);
    link->calls->drain(link->complete);
    link->engine_remains = true;
    client_link_end(link, HVD_ERR_ENGINE_LOST,
                    "the engine of job '%s' (%s) has not moved for %u s: it was stopped, or is "
                    "stuck; this process cannot kill it, so it may still write to the memory of "
                    "ops in flight; have it killed, close this session and open a new one",
                    link->identity.job, engine, (unsigned)(link->silence.given_ns / HVI_NS_SEC));
}

static void look_at_beat(struct client_link *link)
{
    /* Relaxed, pairs with the store in daemon/engine/loop.c: only that it moves counts. */
    uint64_t beat = atomic_load_explicit(&link->bell->beat, memory_order_relaxed);
    bool over = client_patience_is_over(&link->silence);
    if (beat != link->beat) {
        link->beat = beat;
        link->silence.given_ns = 0;
        return;
    }
    if (link->silence.given_ns >= SILENT_NS)
        hvi_bell_ring_engine(link->bell, link->channel.channel_index, link->engine_event_fd);
    if (!over)
        return;
    if (link->engine_killed || !kill_engine(link)) {
        end_silent(link);
        return;
    }
    link->engine_killed = true;
    link->silence.limit_ns += GRACE_NS; /* for its end to show */
}

/* The kernel unmaps a dying engine's regions, 40 ms per GiB, before it closes its sockets. A worker may
 * still write to the memory of ops when the first thread has ended. */
static bool has_ended(const struct client_link *link, struct hvi_fate *fate_p)
{
    return link->engine_here > 0 && hvi_fate_is_ending(link->engine_here, -1, fate_p) &&
           hvi_process_is_quiet(link->engine_here, -1);
}

void client_liveness_look(struct client_link *link)
{
    struct hvi_fate fate;
    uint64_t now_ns = hvi_clock_ns();
    if (now_ns - link->engine_looked_ns < CLIENT_LOOK_NS)
        return;
    link->engine_looked_ns = now_ns;
    if (!link->engine_killed)
        link->silence.limit_ns = limit_ns(link->bell);
    if (has_ended(link, &fate))
        end(link, fate);
    else if (link->silence.limit_ns != HVI_NEVER)
        look_at_beat(link);
}
