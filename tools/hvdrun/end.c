/* SPDX-License-Identifier: Apache-2.0
 * How a job ends. The first failure starts the report time: the other ranks learn of it by the
 * errors of their ops, print them and end by themselves as a rule. Ranks that still run then get
 * SIGTERM, and SIGKILL after the grace time. After a signal from outside (which every rank has got
 * too) a failing rank is expected: the others then have the grace time to finish before SIGTERM, and
 * as long again before SIGKILL. A second SIGINT or SIGTERM, 200 ms later or more, kills. When every
 * rank has ended, what they have left running follows: node.c. */
#include "tools/hvdrun/end.h"

#include "base/clock.h"
#include "tools/hvdrun/polls.h"
#include "tools/hvdrun/self.h"

#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define LOOK_NS HVI_NS_SEC /* for other hosts to say whether a rank of theirs is being killed */

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

bool run_end_init(struct run_end *end_p, const struct run_options *options, int ranks,
                  const struct run_end_hands *hands)
{
    *end_p = (struct run_end){
        .options = options, .hands = *hands, .count = ranks, .waiting = ranks, .first_failed = -1};
    end_p->ranks = calloc((size_t)ranks, sizeof *end_p->ranks);
    return end_p->ranks != NULL;
}

void run_end_fini(struct run_end *end)
{
    free(end->ranks);
    end->ranks = NULL;
}

__attribute__((format(printf, 2, 3))) static void say(const struct run_end *end, const char *format,
                                                      ...)
{
    char text[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    end->hands.say(end->hands.context, text);
}

/* A rank that is alive when the job is over is stuck in the kernel. */
static void describe_fate(struct hvi_fate fate, char *text_p, size_t size)
{
    if (fate.kind == HVI_FATE_ALIVE)
        snprintf(text_p, size, "is held by the kernel: SIGKILL does not end it");
    else
        hvi_fate_describe(fate, text_p, size);
}

/* ---- summary ---- */

static void describe(const struct run_outcome *rank, bool first, char *text_p, size_t size)
{
    char fate[128];
    describe_fate(rank->fate, fate, sizeof fate);
    const bool by_us = rank->told && rank->fate.kind == HVI_FATE_SIGNALED;
    if (rank->pid == 0)
        snprintf(text_p, size, "never started");
    else if (by_us && rank->fate.code == SIGTERM)
        snprintf(text_p, size, "ended by hvdrun (SIGTERM)");
    else if (by_us && rank->fate.code == SIGKILL)
        snprintf(text_p, size, "killed by hvdrun (SIGKILL)");
    else
        snprintf(text_p, size, "%s%s", fate, first ? ", the first to fail" : "");
}

/* The ranks from `rank` on that share its text, as "rank 3" or "ranks 0-1,3"; they are marked as
 * shown. */
static void print_group(FILE *out, const struct run_outcome *ranks, int count, int first_failed,
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
    /* Where it ended by our signal it is one of a group, which may be on several hosts. */
    const char *host = rank == first_failed && members == 1 ? ranks[rank].host : NULL;
    const bool were = members > 1 && strncmp(text, "was ", 4) == 0;
    const bool are = members > 1 && strncmp(text, "is ", 3) == 0;
    fprintf(out, "hvdrun:   rank%s %s%s%s: %s%s\n", members > 1 ? "s" : "", list,
            host != NULL ? " on " : "", host != NULL ? host : "",
            were  ? "were "
            : are ? "are "
                  : "",
            text + (were  ? 4
                    : are ? 3
                          : 0));
}

void run_end_summary(FILE *out, const struct run_outcome *ranks, int count, int first_failed)
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

/* Whose failure ended the job, in Horovod's words. */
static void print_verdict(const struct run_end *end, FILE *out)
{
    fprintf(out,
            "%s detected that one or more processes exited with non-zero status, thus causing the "
            "job to be terminated. The first process to do so was:\n"
            "Process name: %d\n"
            "Exit code: %d\n",
            end->options->compat ? "Horovod" : "hvdrun", end->first_failed, end->exit_code);
}

static void print_report(const struct run_end *end, FILE *out)
{
    const bool failed = end->first_failed >= 0;
    if ((failed && end->count > 1) || end->options->verbose) {
        fputs("hvdrun: summary:\n", out);
        run_end_summary(out, end->ranks, end->count, end->first_failed);
    }
    if (failed && end->stop_signal == 0)
        print_verdict(end, out);
}

char *run_end_report(const struct run_end *end)
{
    char *text = NULL;
    size_t size = 0;
    FILE *stream = open_memstream(&text, &size);
    if (stream == NULL)
        return NULL;
    print_report(end, stream);
    fclose(stream);
    if (size == 0) {
        free(text);
        return NULL;
    }
    text[size - 1] = '\0';
    return text;
}

/* ---- ranks that have ended ---- */

void run_end_started(struct run_end *end, int rank, pid_t pid, const char *host)
{
    /* What ends the others has been sent to it too. */
    const bool told = end->kill_at_ns != 0;
    end->ranks[rank] = (struct run_outcome){.pid = pid, .host = host, .told = told};
    end->waiting--;
    end->alive++;
}

static void plan_end(struct run_end *end)
{
    const uint64_t wait_ns =
        end->stop_signal == 0 ? end->options->report_ns : end->options->grace_ns;
    end->hands.mute(end->hands.context);
    if (end->term_at_ns == 0 && end->kill_at_ns == 0 && !end->killed)
        end->term_at_ns = hvi_deadline_after((int64_t)wait_ns);
}

/* "rank 3 (pid 71) on h2 exited with code 1". */
static void say_end(const struct run_end *end, int rank)
{
    char fate[128];
    const struct run_outcome *outcome = &end->ranks[rank];
    describe_fate(outcome->fate, fate, sizeof fate);
    say(end, "rank %d (pid %d)%s%s %s", rank, (int)outcome->pid,
        outcome->host != NULL ? " on " : "", outcome->host != NULL ? outcome->host : "", fate);
}

static void first_failure(struct run_end *end, const struct run_exit *failed)
{
    const int rank = failed->index;
    end->first_failed = rank;
    end->ranks[rank].fate = failed->fate;
    end->exit_code = run_end_exit_code(failed->fate);
    const bool asked =
        failed->fate.kind == HVI_FATE_ALIVE || /* it was killed, and is named already */
        (failed->fate.kind == HVI_FATE_SIGNALED && failed->fate.code == end->stop_signal);
    if (!asked)
        say_end(end, rank);
    if (!asked && end->alive + end->waiting > 0)
        say(end, "Terminating remaining workers after failure of Process %d.", rank);
    if (end->alive + end->waiting > 0)
        plan_end(end);
}

/* Of the ranks that end together, one that was killed explains the others better than an exit
 * status does. NULL: none has failed. */
static const struct run_exit *pick_first(const struct run_exit *exits, size_t count)
{
    const struct run_exit *pick = NULL;
    for (size_t i = 0; i < count; i++) {
        if (run_end_exit_code(exits[i].fate) == 0)
            continue;
        if (exits[i].fate.kind == HVI_FATE_SIGNALED)
            return &exits[i];
        if (pick == NULL)
            pick = &exits[i];
    }
    return pick;
}

/* It was its own fault, as far as can be found out. */
static void blame_suspect(struct run_end *end)
{
    if (end->look_until_ns == 0)
        return;
    end->look_until_ns = 0;
    first_failure(end, &end->suspect);
}

/* A rank that was killed is the reason itself; for one that exits the reason may be on another
 * host, where the kernel still takes the killed rank apart. */
static void consider(struct run_end *end, const struct run_exit *failed)
{
    if (end->first_failed >= 0 || end->given_up)
        return;
    if (failed->fate.kind == HVI_FATE_SIGNALED || end->hands.look == NULL) {
        end->look_until_ns = 0;
        first_failure(end, failed);
    } else if (end->look_until_ns == 0) {
        end->suspect = *failed;
        end->look_until_ns = hvi_deadline_after((int64_t)LOOK_NS);
        end->hands.look(end->hands.context);
    }
}

void run_end_looked(struct run_end *end)
{
    blame_suspect(end);
}

static void check_over(struct run_end *end)
{
    if (end->alive + end->waiting == 0)
        blame_suspect(end);
    if (end->alive + end->waiting > 0 || end->over)
        return;
    end->over = true;
    end->term_at_ns = 0;
    end->hands.over(end->hands.context, end->first_failed < 0 && !end->killed && !end->given_up);
}

void run_end_exited(struct run_end *end, const struct run_exit *exits, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct run_outcome *rank = &end->ranks[exits[i].index];
        if (exits[i].dying || rank->ended)
            continue;
        rank->fate = exits[i].fate;
        rank->ended = true;
        end->alive--;
    }
    for (size_t i = 0; i < count; i++)
        if ((end->options->verbose && !exits[i].dying) || exits[i].fate.kind == HVI_FATE_ALIVE)
            say_end(end, exits[i].index);
    const struct run_exit *first = pick_first(exits, count);
    if (first != NULL)
        consider(end, first);
    check_over(end);
}

/* ---- signals and time ---- */

static void tell_running(struct run_end *end, int signal_number)
{
    end->hands.mute(end->hands.context);
    for (int i = 0; i < end->count; i++)
        end->ranks[i].told |= end->ranks[i].pid > 0 && !end->ranks[i].ended;
    end->hands.signal(end->hands.context, signal_number);
    end->hands.signal(end->hands.context, SIGCONT); /* a stopped process sleeps through SIGTERM */
}

static void kill_all(struct run_end *end)
{
    end->killed = true;
    end->term_at_ns = 0;
    end->kill_at_ns = 0;
    if (end->stuck_at_ns == 0)
        end->stuck_at_ns = hvi_deadline_after((int64_t)RUN_END_STUCK_NS);
    tell_running(end, SIGKILL);
}

static void end_all(struct run_end *end)
{
    tell_running(end, SIGTERM);
    end->term_at_ns = 0;
    end->kill_at_ns = hvi_deadline_after((int64_t)end->options->grace_ns);
}

void run_end_give_up(struct run_end *end)
{
    end->given_up = true;
    end->look_until_ns = 0;
    if (end->alive + end->waiting > 0 && end->kill_at_ns == 0)
        end_all(end);
}

void run_end_not_started(struct run_end *end, int ranks)
{
    end->waiting -= ranks;
    check_over(end);
}

static void kill_by_signal(struct run_end *end, int signal_number)
{
    say(end, "received signal %d (SIG%s) again; killing", signal_number,
        sigabbrev_np(signal_number));
    end->impatient = true;
    kill_all(end);
}

void run_end_signal(struct run_end *end, int signal_number)
{
    const uint64_t now_ns = hvi_clock_ns();
    const bool asks = run_self_asks_to_end(signal_number);
    const bool again = asks && end->stop_signal != 0 && signal_number != SIGHUP;
    if (again && now_ns - end->stopped_ns >= RUN_END_APART_NS) {
        kill_by_signal(end, signal_number);
        return;
    }
    if (again && signal_number == end->stop_signal)
        return;
    if (end->options->verbose || (asks && end->stop_signal == 0))
        say(end, "received signal %d (SIG%s); passed on to every rank", signal_number,
            sigabbrev_np(signal_number));
    if (asks) {
        end->stopped_ns = end->stop_signal == 0 ? now_ns : end->stopped_ns;
        end->stop_signal = signal_number;
        end->hands.mute(end->hands.context);
    }
    end->hands.signal(end->hands.context, signal_number);
    if (signal_number == SIGTSTP)
        raise(SIGSTOP);
}

/* Ranks in a call of the kernel that nothing ends (a file server that is gone, a driver). */
static void give_up_stuck(struct run_end *end)
{
    end->stuck_at_ns = HVI_NEVER;
    for (int i = 0; i < end->count; i++) {
        const struct run_outcome *rank = &end->ranks[i];
        const struct run_exit stuck = {
            .index = i, .pid = rank->pid, .fate = {.kind = HVI_FATE_ALIVE}};
        if (rank->pid > 0 && !rank->ended)
            run_end_exited(end, &stuck, 1);
    }
}

void run_end_tick(struct run_end *end, uint64_t now_ns)
{
    if (end->stuck_at_ns != 0 && now_ns >= end->stuck_at_ns)
        give_up_stuck(end);
    if (end->look_until_ns != 0 && now_ns >= end->look_until_ns)
        blame_suspect(end);
    if (end->term_at_ns != 0 && now_ns >= end->term_at_ns)
        end_all(end);
    if (end->kill_at_ns == 0 || now_ns < end->kill_at_ns || end->alive == 0)
        return;
    say(end, "%d rank%s still running after the grace time; killing", end->alive,
        end->alive == 1 ? " is" : "s are");
    kill_all(end);
}

uint64_t run_end_next_ns(const struct run_end *end)
{
    uint64_t next_ns = run_polls_earlier(HVI_NEVER, end->term_at_ns);
    next_ns = run_polls_earlier(next_ns, end->look_until_ns);
    if (end->alive == 0)
        return next_ns;
    next_ns = run_polls_earlier(next_ns, end->stuck_at_ns);
    return run_polls_earlier(next_ns, end->kill_at_ns);
}
