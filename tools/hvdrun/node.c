/* SPDX-License-Identifier: Apache-2.0
 * How a node ends.
 *
 *   RUNNING --end, to linger--> LINGER --1 s, or output closed--> LEFTOVER
 *      \--------end, after a failure or a kill-----------------------^   |
 *                              DONE <--all written-- DRAIN <--gone, or SIGKILL
 *
 * Ended ranks stay zombies until LEFTOVER: that keeps their groups' numbers ours, and lets the
 * engine read their exit status from /proc. Order of birth: guard, hvdd, ranks, admin client: so
 * every fork happens before libzmq's threads exist.
 *
 * hvdrun is the subreaper of what ranks leave behind: at the end it alone knows when a group is
 * empty. So it reaps orphans while ranks run, as init would; a job may make millions of them. */
#include "tools/hvdrun/node.h"

#include "base/clock.h"
#include "base/fate.h"
#include "base/mps.h"
#include "base/status.h"
#include "base/types.h"
#include "tools/hvdrun/start.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#define LINGER_NS  HVI_NS_SEC
#define ESCAPED_NS HVI_NS_SEC        /* output held open by a process that left its group */
#define ADMIN_NS   (200 * HVI_NS_MS) /* hvdrun never waits longer for hvdd */
#define UNKILLABLE_NS                                                                              \
    (5 * HVI_NS_SEC) /* a process that SIGKILL does not end (stuck in the kernel) */
#define GROUP_POLL_NS (10 * HVI_NS_MS)
#define RETELL_NS     (300 * HVI_NS_MS) /* ranks that come later hear within a second */
#define SILENT_NS     HVI_NS_SEC        /* so long nobody waits again for a hvdd that is silent */
#define DRAIN_READS   64

static int count_of(const struct run_node *node)
{
    return node->ranks != NULL ? node->plan->options->ranks : 0;
}

__attribute__((format(printf, 2, 3))) static void say(const struct run_node *node,
                                                      const char *format, ...)
{
    char text[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    node->plan->calls.say(node->plan->calls.context, text);
}

/* ---- the start ---- */

/* Then no daemon is started. */
static bool is_address_given(const struct run_options *options)
{
    const char *from_env = getenv("HVD_ADDRESS");
    return options->address != NULL || (from_env != NULL && from_env[0] != '\0');
}

/* A hvdd that runs has what it was started with. */
static void check_mps(const struct run_node *node)
{
    char path[HVD_ADMIN_DIR_MAX + 32];
    snprintf(path, sizeof path, "%s/" HVI_MPS_PID, node->address);
    if (node->plan->options->gpu_mps && access(path, F_OK) != 0)
        say(node,
            "--gpu-mps does nothing here: the hvdd at %s has no MPS; start that hvdd with "
            "--gpu-mps=yes, or leave out --address and HVD_ADDRESS to get a private one",
            node->address);
}

/* Finds or starts the daemon. False with a sentence. */
static bool find_daemon(struct run_node *node, char *text_p, size_t text_size)
{
    struct hvd_admin_place place;
    const struct run_options *options = node->plan->options;
    if (is_address_given(options)) {
        const int status = hvd_admin_find(options->address, &place);
        snprintf(node->address, sizeof node->address, "%s", place.dir);
        if (status != HVI_OK)
            snprintf(text_p, text_size,
                     "no hvdd answers at %s; start one, or leave out --address and HVD_ADDRESS to "
                     "get a private one",
                     place.tried);
        else
            check_mps(node);
        return status == HVI_OK;
    }
    const struct run_daemon_plan plan = {
        .options = options,
        .mesh = node->plan->mesh,
        .heritage = node->plan->heritage,
        .guard = &node->guard,
        .signal_fd = node->plan->interrupt_fd,
    };
    if (run_daemon_start(&plan, &node->daemon, text_p, text_size) != HVI_OK)
        return false;
    node->plan->log->fd = node->daemon.stderr_fd;
    node->daemon.stderr_fd = -1;
    snprintf(node->address, sizeof node->address, "%s", node->daemon.dir);
    if (options->verbose)
        say(node, "private hvdd: pid %d in %s", (int)node->daemon.proc.pid, node->daemon.dir);
    return true;
}

/* Ends of children are read from a descriptor. The mask is the thread's: children get the one of
 * their heritage, and libzmq's threads, which come later, this one. -1: orphans wait for our end. */
static int open_children(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigprocmask(SIG_BLOCK, &set, NULL);
    return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

int run_node_open(struct run_node *node_p, const struct run_node_plan *plan, char *text_p,
                  size_t text_size)
{
    memset(node_p, 0, sizeof *node_p);
    node_p->plan = plan;
    node_p->daemon = (struct run_daemon){.parent_fd = -1, .stderr_fd = -1, .proc = {.pidfd = -1}};
    node_p->guard.fd = -1;
    node_p->children_fd = -1;
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    node_p->ranks = calloc((size_t)plan->options->ranks, sizeof *node_p->ranks);
    const int error = node_p->ranks == NULL ? ENOMEM : run_guard_start(&node_p->guard);
    for (int i = 0; i < count_of(node_p); i++)
        node_p->ranks[i].proc.pidfd = -1;
    node_p->children_fd = open_children();
    if (error == 0)
        return find_daemon(node_p, text_p, text_size) ? 0 : -1;
    snprintf(text_p, text_size, "cannot start: %s", strerror(error));
    return -1;
}

int run_node_start(struct run_node *node, int input_fd, char *text_p, size_t text_size)
{
    const int code = run_start_ranks(node, input_fd, text_p, text_size);
    if (node->alive > 0 && hvd_admin_open(node->address, &node->admin) != HVI_OK)
        node->silent_until_ns = hvi_deadline_after((int64_t)SILENT_NS);
    return code;
}

/* ---- ranks that have ended ---- */

static void drain(struct run_stream *stream)
{
    for (int reads = 0; stream->fd >= 0 && reads < DRAIN_READS; reads++) {
        struct pollfd item = {.fd = stream->fd, .events = POLLIN};
        if (run_sink_is_full(stream->sink) || poll(&item, 1, 0) <= 0)
            break;
        run_stream_read(stream);
    }
}

/* What the process has written is shown before what is said about its end. */
static void drain_output(struct run_node *node, int index)
{
    for (int i = 0; i < 2; i++)
        drain(&node->plan->streams[2 * index + i]);
    if (node->plan->results != NULL)
        drain(&node->plan->results[index]);
}

/* HVI_ERR_TIMEOUT without a wait where it was silent a moment ago. */
static int ask_daemon(struct run_node *node, const struct hvd_admin_request *request)
{
    struct hvd_admin_answer *reply;
    if (!hvi_deadline_passed(node->silent_until_ns))
        return HVI_ERR_TIMEOUT;
    int status = HVI_ERR_NO_DAEMON;
    if (node->admin != NULL || hvd_admin_open(node->address, &node->admin) == HVI_OK)
        status = hvd_admin_ask(node->admin, request, (int64_t)ADMIN_NS, &reply);
    if (status == HVI_OK)
        hvd_admin_answer_free(reply);
    if (status == HVI_ERR_TIMEOUT || status == HVI_ERR_NO_DAEMON)
        node->silent_until_ns = hvi_deadline_after((int64_t)SILENT_NS);
    return status;
}

static void tell_daemon(struct run_node *node, int index)
{
    struct run_node_rank *rank = &node->ranks[index];
    const struct run_proc *proc = &rank->proc;
    struct hvd_admin_request request;
    rank->untold = false;
    if (node->daemon_gone)
        return;
    hvd_admin_request_init(&request, HVD_ADMIN_PROCESS_EXITED);
    request.job = node->plan->job;
    request.rank = node->plan->places[index].rank;
    request.pid = proc->pid;
    request.signaled = proc->fate.kind == HVI_FATE_SIGNALED;
    request.code = proc->fate.code;
    const int status = ask_daemon(node, &request);
    rank->untold = status == HVI_ERR_NOT_FOUND || status == HVI_ERR_RANK_LOST ||
                   status == HVI_ERR_TIMEOUT || status == HVI_ERR_NO_DAEMON;
    if (rank->untold)
        node->retell_ns = hvi_deadline_after((int64_t)RETELL_NS);
}

/* hvdd was silent, no rank had come when these ended, or some wait for them, and may do so again in another generation. */
static void tell_again(struct run_node *node)
{
    node->retell_ns = 0;
    if (node->stage != RUN_RUNNING || node->alive == 0)
        return;
    for (int i = 0; i < count_of(node); i++)
        if (node->ranks[i].untold)
            tell_daemon(node, i);
}

/* A rank that was killed but is no zombie yet, because the kernel takes its memory apart first: its
 * peers may have learned of it and ended before. */
bool run_node_find_dying(struct run_node *node, struct run_exit *exit_p)
{
    for (int i = 0; i < count_of(node); i++) {
        struct run_node_rank *rank = &node->ranks[i];
        struct hvi_fate fate;
        if (rank->ended || rank->proc.pid <= 0 ||
            !hvi_fate_is_ending(rank->proc.pid, rank->proc.pidfd, &fate) ||
            fate.kind != HVI_FATE_SIGNALED)
            continue;
        *exit_p = (struct run_exit){.index = i, .pid = rank->proc.pid, .fate = fate, .dying = true};
        return true;
    }
    return false;
}

/* Those whose pidfd was ready, in exits_p. */
static size_t take_ended(struct run_node *node, struct run_exit *exits_p)
{
    size_t count = 0;
    for (int i = 0; i < count_of(node); i++) {
        struct run_node_rank *rank = &node->ranks[i];
        if (!rank->signalled)
            continue;
        rank->signalled = false;
        if (rank->ended || !run_proc_look(&rank->proc))
            continue;
        rank->ended = true;
        node->alive--;
        exits_p[count++] =
            (struct run_exit){.index = i, .pid = rank->proc.pid, .fate = rank->proc.fate};
    }
    return count;
}

static bool explains_nothing(const struct run_exit *exits, size_t count)
{
    bool failed = false;
    for (size_t i = 0; i < count; i++) {
        if (exits[i].fate.kind == HVI_FATE_SIGNALED)
            return false;
        failed |= exits[i].fate.kind != HVI_FATE_EXITED || exits[i].fate.code != 0;
    }
    return failed;
}

static void collect(struct run_node *node)
{
    static struct run_exit exits[HVI_RANKS_MAX + 1];
    size_t count = take_ended(node, exits);
    for (size_t i = 0; i < count; i++) {
        tell_daemon(node, exits[i].index);
        drain_output(node, exits[i].index);
    }
    if (explains_nothing(exits, count) && run_node_find_dying(node, &exits[count]))
        count++;
    if (count > 0)
        node->plan->calls.exited(node->plan->calls.context, exits, count);
}

/* ---- stages ---- */

static void enter_stage(struct run_node *node, enum run_stage stage, uint64_t lasts_ns)
{
    node->stage = stage;
    node->stage_ends_ns = hvi_deadline_after((int64_t)lasts_ns);
}

static void signal_groups(struct run_node *node, int signal_number)
{
    for (int i = 0; i < count_of(node); i++)
        run_proc_signal(&node->ranks[i].proc, signal_number);
}

static bool is_started_by_us(const struct run_node *node, pid_t pid)
{
    return pid == node->guard.pid || run_proc_is_started(pid);
}

/* Calls `see` for each child that we have not started, from the kernel's list of them. False: the
 * kernel makes none. */
static bool each_orphan(struct run_node *node, void (*see)(struct run_node *node, pid_t pid))
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
    FILE *list = fopen(path, "re");
    if (list == NULL)
        return false;
    for (int pid; fscanf(list, "%d", &pid) == 1;) {
        if (!is_started_by_us(node, pid))
            see(node, pid);
    }
    fclose(list);
    return true;
}

static void note_leftover(struct run_node *node, pid_t pid)
{
    const pid_t group = getpgid(pid);
    for (int i = 0; i < count_of(node); i++)
        if (node->ranks[i].proc.pid == group && group > 0 && !hvi_process_is_quiet(pid, -1))
            node->ranks[i].left_running = true;
}

/* After a failure it is no news that a rank leaves something. */
static void say_leftovers(struct run_node *node)
{
    int first = -1;
    int others = -1;
    each_orphan(node, note_leftover);
    for (int i = 0; i < count_of(node); i++) {
        if (!node->ranks[i].left_running)
            continue;
        first = first < 0 ? node->plan->places[i].rank : first;
        others++;
    }
    if (others > 0)
        say(node, "ended what rank %d and %d other%s left running; setsid lets a process go on",
            first, others, others == 1 ? "" : "s");
    else if (first >= 0)
        say(node, "ended what rank %d left running; setsid lets a process go on", first);
}

/* True when no group has a member left; those that have get SIGKILL if `force`. Orphans are ours to
 * reap: this process is their subreaper. */
static bool groups_gone(struct run_node *node, bool force)
{
    bool gone = true;
    for (int i = 0; i < count_of(node); i++) {
        struct run_node_rank *rank = &node->ranks[i];
        if (rank->group_gone || rank->proc.pid <= 0)
            continue;
        while (waitpid(-rank->proc.pid, NULL, WNOHANG) > 0)
            continue;
        rank->group_gone = kill(-rank->proc.pid, force ? SIGKILL : 0) != 0 && errno == ESRCH;
        if (rank->group_gone)
            run_guard_drop(&node->guard, rank->proc.pid);
        gone &= rank->group_gone;
    }
    return gone;
}

/* From here on nothing is a zombie of ours any more, and a group that answers is a leftover. */
static void enter_leftover(struct run_node *node)
{
    if (node->stage == RUN_LINGER && !node->killed)
        say_leftovers(node);
    signal_groups(node, SIGTERM);
    signal_groups(node, SIGCONT);
    for (int i = 0; i < count_of(node); i++)
        if (node->ranks[i].ended) /* or it is stuck in the kernel */
            run_proc_reap(&node->ranks[i].proc);
    groups_gone(node, false);
    enter_stage(node, RUN_LEFTOVER, node->killed ? 0 : node->plan->options->grace_ns);
}

void run_node_end(struct run_node *node, bool linger)
{
    if (node->stage != RUN_RUNNING)
        return;
    if (linger && !node->killed)
        enter_stage(node, RUN_LINGER, LINGER_NS);
    else
        enter_leftover(node);
}

void run_node_signal(struct run_node *node, int signal_number)
{
    signal_groups(node, signal_number);
    if (signal_number != SIGKILL)
        return;
    node->killed = true;
    if (node->stage == RUN_LINGER)
        enter_leftover(node);
    if (node->stage >= RUN_LEFTOVER)
        node->stage_ends_ns = 0;
}

static bool outputs_closed(const struct run_node *node)
{
    for (int i = 0; i < 2 * count_of(node); i++)
        if (node->plan->streams[i].fd >= 0)
            return false;
    return true;
}

static bool is_written(const struct run_stream *stream)
{
    struct pollfd item = {.fd = stream->fd, .events = POLLIN};
    return stream->sink->pending.used == 0 && stream->held.used == 0 &&
           (item.fd < 0 || poll(&item, 1, 0) <= 0);
}

/* Nothing to write and nothing to read; a pipe that is open all the same is held by a process that
 * left its group. */
static bool output_is_written(const struct run_node *node)
{
    if (node->plan->log->sink->pending.used > 0)
        return false;
    for (int i = 0; i < 2 * count_of(node); i++)
        if (!is_written(&node->plan->streams[i]))
            return false;
    for (int i = 0; node->plan->results != NULL && i < count_of(node); i++)
        if (!is_written(&node->plan->results[i]))
            return false;
    return true;
}

static void stage_tick(struct run_node *node, uint64_t now_ns)
{
    const bool over = now_ns >= node->stage_ends_ns;
    switch (node->stage) {
    case RUN_RUNNING:
    case RUN_DONE:
        break;
    case RUN_LINGER:
        if (over || outputs_closed(node))
            enter_leftover(node);
        break;
    case RUN_LEFTOVER:
        if (groups_gone(node, over) || now_ns >= node->stage_ends_ns + UNKILLABLE_NS)
            enter_stage(node, RUN_DRAIN, ESCAPED_NS);
        break;
    case RUN_DRAIN:
        if (node->impatient || (output_is_written(node) && (outputs_closed(node) || over)))
            node->stage = RUN_DONE;
        break;
    }
}

/* ---- in the loop ---- */

static void note_end(void *context, int index)
{
    struct run_node *node = context;
    node->ranks[index].signalled = true;
}

/* False: it has not ended. */
static bool daemon_ends(struct run_node *node, char *how_p, size_t size)
{
    char fate[128];
    if (!run_proc_look(&node->daemon.proc))
        return false;
    node->daemon_gone = true;
    hvi_fate_describe(node->daemon.proc.fate, fate, sizeof fate);
    snprintf(how_p, size, "the private hvdd (pid %d) %s", (int)node->daemon.proc.pid, fate);
    return true;
}

static void look_at_daemon(void *context, int index)
{
    struct run_node *node = context;
    char how[200];
    (void)index;
    if (!daemon_ends(node, how, sizeof how))
        return;
    say(node, "%s; running jobs go on, but nobody can attach any more", how);
    if (node->plan->calls.daemon_gone != NULL)
        node->plan->calls.daemon_gone(node->plan->calls.context, how);
}

/* Where ranks have been started in this pass, look_at_daemon sees it in the next. */
static void look_before_start(void *context, int index)
{
    struct run_node *node = context;
    char how[200];
    (void)index;
    if (node->alive == 0 && daemon_ends(node, how, sizeof how))
        node->plan->calls.daemon_gone(node->plan->calls.context, how);
}

static void reap_one(struct run_node *node, pid_t pid)
{
    (void)node;
    waitpid(pid, NULL, WNOHANG);
}

/* Children are looked at from the oldest on: once one that we have started has ended, orphans that
 * come later wait until it is reaped. */
static void reap_oldest(const struct run_node *node)
{
    siginfo_t info = {0};
    while (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0 &&
           !is_started_by_us(node, info.si_pid)) {
        waitpid(info.si_pid, NULL, 0);
        info.si_pid = 0;
    }
}

static void reap_orphans(void *context, int index)
{
    struct run_node *node = context;
    struct signalfd_siginfo told;
    (void)index;
    while (read(node->children_fd, &told, sizeof told) == (ssize_t)sizeof told)
        continue;
    if (!each_orphan(node, reap_one))
        reap_oldest(node);
}

void run_node_poll(struct run_node *node, struct run_polls *polls)
{
    for (int i = 0; i < count_of(node); i++) {
        const struct run_node_rank *rank = &node->ranks[i];
        if (!rank->ended && rank->proc.pid > 0)
            run_polls_add(polls, rank->proc.pidfd, POLLIN, note_end, node, i);
    }
    for (int i = 0; i < 2 * count_of(node); i++)
        run_stream_poll(&node->plan->streams[i], polls);
    for (int i = 0; node->plan->results != NULL && i < count_of(node); i++)
        run_stream_poll(&node->plan->results[i], polls);
    if (!node->daemon_gone)
        run_polls_add(polls, node->daemon.proc.pidfd, POLLIN, look_at_daemon, node, 0);
    run_polls_add(polls, node->children_fd, POLLIN, reap_orphans, node, 0);
    run_stream_poll(node->plan->log, polls);
}

void run_node_poll_daemon(struct run_node *node, struct run_polls *polls)
{
    if (!node->daemon_gone)
        run_polls_add(polls, node->daemon.proc.pidfd, POLLIN, look_before_start, node, 0);
}

void run_node_tick(struct run_node *node, uint64_t now_ns)
{
    collect(node);
    if (node->retell_ns != 0 && now_ns >= node->retell_ns)
        tell_again(node);
    run_stream_tick(node->plan->log, now_ns);
    stage_tick(node, now_ns);
}

uint64_t run_node_next_ns(const struct run_node *node)
{
    uint64_t next_ns = run_polls_earlier(HVI_NEVER, node->plan->log->held_until_ns);
    next_ns = run_polls_earlier(next_ns, node->retell_ns);
    if (node->stage == RUN_LEFTOVER || node->stage == RUN_DRAIN)
        return hvi_deadline_after((int64_t)GROUP_POLL_NS);
    return node->stage == RUN_LINGER ? run_polls_earlier(next_ns, node->stage_ends_ns) : next_ns;
}

void run_node_close(struct run_node *node)
{
    hvd_admin_close(node->admin);
    run_daemon_stop(&node->daemon);
    for (int i = 0; i < 2 * count_of(node); i++)
        run_stream_end(&node->plan->streams[i]);
    for (int i = 0; node->plan->results != NULL && i < count_of(node); i++)
        run_stream_end(&node->plan->results[i]);
    if (node->plan->log->fd >= 0)
        run_stream_read(node->plan->log);
    run_stream_end(node->plan->log);
    run_guard_stop(&node->guard);
    if (node->children_fd >= 0)
        close(node->children_fd);
    free(node->ranks);
    node->ranks = NULL;
}
