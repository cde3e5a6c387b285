/* SPDX-License-Identifier: Apache-2.0
 * How a launch ends.
 *
 *   RUNNING --last rank ended--> LINGER --1 s, or output closed--> LEFTOVER
 *      \--------the same, after a failure or a kill-----------------^   |
 *                              DONE <--all written-- DRAIN <--gone, or SIGKILL
 *
 * While RUNNING, the first failure starts the report time: the other ranks learn of it by the errors
 * of their ops, print them and end by themselves as a rule. Ranks that still run then get SIGTERM,
 * and SIGKILL after the grace time. After a signal from outside (which every rank has got too) a
 * failing rank is expected: the others then have the grace time to finish before SIGTERM, and as
 * long again before SIGKILL. A second SIGINT or SIGTERM kills.
 *
 * Ended ranks stay zombies until LEFTOVER: that keeps their groups' numbers ours, and lets the
 * engine read their exit status from /proc. */
#include "base/clock.h"
#include "base/status.h"
#include "tools/hvdrun/run.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#define LINGER_NS  HVI_NS_SEC
#define ESCAPED_NS HVI_NS_SEC        /* output held open by a process that left its group */
#define ADMIN_NS   (200 * HVI_NS_MS) /* hvdrun never waits longer for hvdd */
#define UNKILLABLE_NS                                                                              \
    (5 * HVI_NS_SEC) /* a process that SIGKILL does not end (stuck in the kernel) */
#define GROUP_POLL_NS (10 * HVI_NS_MS)
#define DRAIN_READS   64

int run_end_exit_code(struct hvi_fate fate)
{
    switch (fate.kind) {
    case HVI_FATE_EXITED:
        return fate.code;
    case HVI_FATE_SIGNALED:
        return 128 + fate.code;
    default:
        return 1;
    }
}

static bool has_failed(const struct run_rank *rank)
{
    return rank->ended && run_end_exit_code(rank->proc.fate) != 0;
}

/* ---- summary ---- */

static void describe(const struct run_rank *rank, bool first, char *text_p, size_t size)
{
    char fate[128];
    const struct run_proc *proc = &rank->proc;
    hvi_fate_describe(proc->fate, fate, sizeof fate);
    const bool by_us = proc->told && proc->fate.kind == HVI_FATE_SIGNALED;
    if (proc->pid == 0)
        snprintf(text_p, size, "never started");
    else if (by_us && proc->fate.code == SIGTERM)
        snprintf(text_p, size, "ended by hvdrun (SIGTERM)");
    else if (by_us && proc->fate.code == SIGKILL)
        snprintf(text_p, size, "killed by hvdrun (SIGKILL)");
    else
        snprintf(text_p, size, "%s%s", fate, first ? ", the first to fail" : "");
}

/* The ranks from `rank` on that share its text, as "rank 3" or "ranks 0-1,3"; they are marked as
 * shown. */
static void print_group(FILE *out, const struct run_rank *ranks, int count, int first_failed,
                        int rank, bool *shown)
{
    char text[192];
    char other[192];
    char list[512] = "";
    size_t used = 0;
    int members = 0;
    int last = -2;
    int range_start = -1;
    describe(&ranks[rank], rank == first_failed, text, sizeof text);
    for (int i = rank; i <= count; i++) {
        bool same = false;
        if (i < count && !shown[i]) {
            describe(&ranks[i], i == first_failed, other, sizeof other);
            same = strcmp(text, other) == 0;
        }
        if (same) {
            shown[i] = true;
            members++;
            range_start = last == i - 1 ? range_start : i;
            last = i;
        } else if (last == i - 1 && used + 32 < sizeof list) {
            used += (size_t)snprintf(list + used, sizeof list - used, "%s%d", used > 0 ? "," : "",
                                     range_start);
            if (last > range_start)
                used += (size_t)snprintf(list + used, sizeof list - used, "-%d", last);
        }
    }
    fprintf(out, "hvdrun:   rank%s %s: %s\n", members > 1 ? "s" : "", list, text);
}

void run_end_summary(FILE *out, const struct run_rank *ranks, int count, int first_failed)
{
    bool *shown = calloc((size_t)count, sizeof *shown);
    if (shown == NULL)
        return;
    if (first_failed >= 0)
        print_group(out, ranks, count, first_failed, first_failed, shown);
    for (int i = 0; i < count; i++)
        if (!shown[i])
            print_group(out, ranks, count, first_failed, i, shown);
    free(shown);
}

void run_end_verdict(FILE *out, const char *program, int rank, int exit_code)
{
    fprintf(out,
            "%s detected that one or more processes exited with non-zero status, thus causing the "
            "job to be terminated. The first process to do so was:\n"
            "Process name: %d\n"
            "Exit code: %d\n",
            program, rank, exit_code);
}

/* ---- ranks that have ended ---- */

/* What the process has written is shown before what is said about its end. */
static void drain_output(struct run_rank *rank)
{
    for (int i = 0; i < 2; i++) {
        struct run_stream *stream = &rank->streams[i];
        for (int reads = 0; stream->fd >= 0 && reads < DRAIN_READS; reads++) {
            struct pollfd item = {.fd = stream->fd, .events = POLLIN};
            if (run_sink_is_full(stream->sink) || poll(&item, 1, 0) <= 0)
                break;
            run_stream_read(stream);
        }
    }
}

static void tell_daemon(struct run *run, int rank)
{
    const struct run_proc *proc = &run->ranks[rank].proc;
    struct hvi_admin_request request = {
        .kind = HVI_ADMIN_PROCESS_EXITED,
        .rank = rank,
        .pid = proc->pid,
        .signaled = proc->fate.kind == HVI_FATE_SIGNALED,
        .code = proc->fate.code,
    };
    struct hvi_admin_reply reply;
    if (run->admin == NULL || run->daemon_silent || run->daemon_gone)
        return;
    snprintf(request.job, sizeof request.job, "%s", run->job);
    const int status = admin_client_call(run->admin, &request,
                                         hvi_deadline_after((int64_t)ADMIN_NS), &reply, NULL, 0);
    if (status == HVI_OK)
        hvi_admin_reply_free(&reply);
    else
        run->daemon_silent = true; /* once is enough: the next rank must not wait too */
}

/* That the engine loses the ranks which end after the first failure is no news. */
static void mute_daemon(struct run *run)
{
    run->daemon_log.muted = !run->options.verbose;
}

static void plan_end(struct run *run)
{
    const uint64_t wait_ns = run->stop_signal == 0 ? run->options.report_ns : run->options.grace_ns;
    mute_daemon(run);
    if (run->term_at_ns == 0 && run->kill_at_ns == 0)
        run->term_at_ns = hvi_deadline_after((int64_t)wait_ns);
}

static void first_failure(struct run *run, int rank)
{
    char fate[128];
    const struct run_proc *proc = &run->ranks[rank].proc;
    run->first_failed = rank;
    run->exit_code = run_end_exit_code(proc->fate);
    hvi_fate_describe(proc->fate, fate, sizeof fate);
    const bool asked = proc->fate.kind == HVI_FATE_SIGNALED && proc->fate.code == run->stop_signal;
    if (!asked)
        run_say(run, "rank %d (pid %d) %s", rank, (int)proc->pid, fate);
    if (!asked && run->alive > 0)
        run_say(run, "Terminating remaining workers after failure of Process %d.", rank);
    if (run->alive > 0)
        plan_end(run);
}

/* A rank that was killed but is no zombie yet, because the kernel takes its memory apart first: its
 * peers may have learned of it and ended before. */
static int find_dying(struct run *run)
{
    for (int i = 0; i < run->options.ranks; i++) {
        struct run_rank *rank = &run->ranks[i];
        struct hvi_fate fate;
        if (rank->ended || rank->proc.pid <= 0 ||
            !hvi_fate_is_ending(rank->proc.pid, rank->proc.pidfd, &fate) ||
            fate.kind != HVI_FATE_SIGNALED)
            continue;
        rank->proc.fate = fate;
        return i;
    }
    return -1;
}

/* Of the ranks that end together, one that was killed explains the others better than an exit
 * status does. */
static int pick_first(struct run *run, const int *ended, size_t count)
{
    int pick = -1;
    for (size_t i = 0; i < count; i++) {
        const struct run_rank *rank = &run->ranks[ended[i]];
        if (!has_failed(rank))
            continue;
        if (rank->proc.fate.kind == HVI_FATE_SIGNALED)
            return ended[i];
        if (pick < 0)
            pick = ended[i];
    }
    const int dying = pick >= 0 ? find_dying(run) : -1;
    return dying >= 0 ? dying : pick;
}

static void enter_stage(struct run *run, enum run_stage stage, uint64_t lasts_ns)
{
    run->stage = stage;
    run->stage_ends_ns = hvi_deadline_after((int64_t)lasts_ns);
}

static void signal_groups(struct run *run, int signal_number)
{
    for (int i = 0; i < run->options.ranks; i++)
        run_proc_signal(&run->ranks[i].proc, signal_number);
}

/* From here on nothing is a zombie of ours any more, and a group that answers is a leftover. */
static void enter_leftover(struct run *run)
{
    signal_groups(run, SIGTERM);
    signal_groups(run, SIGCONT);
    for (int i = 0; i < run->options.ranks; i++) {
        run_guard_drop(&run->guard, run->ranks[i].proc.pid);
        run_proc_reap(&run->ranks[i].proc);
    }
    enter_stage(run, RUN_LEFTOVER, run->killed ? 0 : run->options.grace_ns);
}

void run_end_collect(struct run *run, const int *ended, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct run_rank *rank = &run->ranks[ended[i]];
        if (!run_proc_look(&rank->proc))
            continue;
        rank->ended = true;
        run->alive--;
    }
    for (size_t i = 0; i < count; i++) {
        struct run_rank *rank = &run->ranks[ended[i]];
        if (!rank->ended)
            continue;
        tell_daemon(run, ended[i]);
        drain_output(rank);
        if (run->options.verbose) {
            char fate[128];
            hvi_fate_describe(rank->proc.fate, fate, sizeof fate);
            run_say(run, "rank %d (pid %d) %s", ended[i], (int)rank->proc.pid, fate);
        }
    }
    const int first = run->first_failed < 0 ? pick_first(run, ended, count) : -1;
    if (first >= 0)
        first_failure(run, first);
    if (run->alive > 0 || run->stage != RUN_RUNNING)
        return;
    run->term_at_ns = 0;
    if (run->first_failed >= 0 || run->killed)
        enter_leftover(run);
    else
        enter_stage(run, RUN_LINGER, LINGER_NS);
}

/* ---- signals and time ---- */

static void tell_running(struct run *run, int signal_number)
{
    mute_daemon(run);
    for (int i = 0; i < run->options.ranks; i++) {
        struct run_rank *rank = &run->ranks[i];
        rank->proc.told |= rank->proc.pid > 0 && !rank->ended;
    }
    signal_groups(run, signal_number);
    signal_groups(run, SIGCONT); /* a stopped process would sleep through SIGTERM */
}

static void kill_all(struct run *run)
{
    tell_running(run, SIGKILL);
    run->killed = true;
    run->term_at_ns = 0;
    run->kill_at_ns = 0;
    if (run->stage == RUN_LINGER)
        enter_leftover(run);
    if (run->stage >= RUN_LEFTOVER)
        run->stage_ends_ns = 0;
}

void run_end_all(struct run *run)
{
    tell_running(run, SIGTERM);
    run->term_at_ns = 0;
    run->kill_at_ns = hvi_deadline_after((int64_t)run->options.grace_ns);
}

static bool asks_to_end(int signal_number)
{
    return signal_number == SIGINT || signal_number == SIGTERM || signal_number == SIGHUP ||
           signal_number == SIGQUIT;
}

void run_end_signal(struct run *run, int signal_number)
{
    if (run->options.verbose || (asks_to_end(signal_number) && run->stop_signal == 0))
        run_say(run, "received signal %d (SIG%s); passed on to every rank", signal_number,
                sigabbrev_np(signal_number));
    if (asks_to_end(signal_number) && run->stop_signal != 0 && signal_number != SIGHUP) {
        run_say(run, "received signal %d (SIG%s) again; killing", signal_number,
                sigabbrev_np(signal_number));
        run->impatient = true;
        kill_all(run);
        return;
    }
    if (asks_to_end(signal_number)) {
        run->stop_signal = signal_number;
        mute_daemon(run);
    }
    signal_groups(run, signal_number);
    if (signal_number == SIGTSTP)
        raise(SIGSTOP);
}

static bool outputs_closed(const struct run *run)
{
    for (int i = 0; i < run->options.ranks; i++)
        if (run->ranks[i].streams[0].fd >= 0 || run->ranks[i].streams[1].fd >= 0)
            return false;
    return true;
}

/* Nothing to write and nothing to read; a pipe that is open all the same is held by a process that
 * left its group. */
static bool output_is_written(const struct run *run)
{
    if (run->out->pending.used > 0 || run->err->pending.used > 0)
        return false;
    for (int i = 0; i < 2 * run->options.ranks; i++) {
        const struct run_stream *stream = &run->ranks[i / 2].streams[i % 2];
        struct pollfd item = {.fd = stream->fd, .events = POLLIN};
        if (stream->held.used > 0 || (item.fd >= 0 && poll(&item, 1, 0) > 0))
            return false;
    }
    return true;
}

/* True when no group has a member left; those that have get SIGKILL if `force`. Orphans are ours to
 * reap: hvdrun is their subreaper. */
static bool groups_gone(struct run *run, bool force)
{
    bool gone = true;
    for (int i = 0; i < run->options.ranks; i++) {
        struct run_rank *rank = &run->ranks[i];
        if (rank->group_gone || rank->proc.pid <= 0)
            continue;
        while (waitpid(-rank->proc.pid, NULL, WNOHANG) > 0)
            continue;
        rank->group_gone = kill(-rank->proc.pid, force ? SIGKILL : 0) != 0 && errno == ESRCH;
        gone &= rank->group_gone;
    }
    return gone;
}

static void stage_tick(struct run *run, uint64_t now_ns)
{
    const bool over = now_ns >= run->stage_ends_ns;
    switch (run->stage) {
    case RUN_RUNNING:
    case RUN_DONE:
        break;
    case RUN_LINGER:
        if (over || outputs_closed(run))
            enter_leftover(run);
        break;
    case RUN_LEFTOVER:
        if (groups_gone(run, over) || now_ns >= run->stage_ends_ns + UNKILLABLE_NS)
            enter_stage(run, RUN_DRAIN, ESCAPED_NS);
        break;
    case RUN_DRAIN:
        if (run->impatient || (output_is_written(run) && (outputs_closed(run) || over)))
            run->stage = RUN_DONE;
        break;
    }
}

void run_end_tick(struct run *run, uint64_t now_ns)
{
    if (run->term_at_ns != 0 && now_ns >= run->term_at_ns)
        run_end_all(run);
    if (run->kill_at_ns != 0 && now_ns >= run->kill_at_ns && run->alive > 0) {
        run_say(run, "%d rank%s still running after the grace time; killing", run->alive,
                run->alive == 1 ? " is" : "s are");
        kill_all(run);
    }
    stage_tick(run, now_ns);
}

uint64_t run_end_next_ns(const struct run *run)
{
    uint64_t next_ns = HVI_NEVER;
    if (run->term_at_ns != 0)
        next_ns = run->term_at_ns;
    if (run->kill_at_ns != 0 && run->kill_at_ns < next_ns)
        next_ns = run->kill_at_ns;
    if (run->stage == RUN_LEFTOVER || run->stage == RUN_DRAIN)
        next_ns = hvi_deadline_after((int64_t)GROUP_POLL_NS);
    else if (run->stage != RUN_RUNNING && run->stage_ends_ns < next_ns)
        next_ns = run->stage_ends_ns;
    return next_ns;
}
