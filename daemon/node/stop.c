/* SPDX-License-Identifier: Apache-2.0
 * Signals, reload and the end.
 *
 *   running --SIGTERM, SIGINT--> draining --drain-timeout, second signal--> stopping --last engine
 * gone--> exit |                            +--last job ended--> exit                  ^
 *      +--parent gone, idle ----------------------------------------------------+
 *
 * draining refuses new sessions and leaves running jobs alone; stopping tells every engine to fail
 * its ops and go, and link.c kills those that have not gone after 5 s, so the end has a bound. */
#include "daemon/node/node.h"

#include "base/assert.h"
#include "base/status.h"
#include "base/utf8.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <utlist.h>

static void set_phase(struct node *node, enum node_phase phase, const char *cause)
{
    static const char *const texts[] = {"running", "draining", "stopping"};

    HVI_ASSERT(phase > node->phase);
    HVI_LOG(HVI_LOG_INFO, "stop", "phase", cause, "%s -> %s jobs=%u sessions=%u",
            texts[node->phase], texts[phase], node->jobs.generation_count,
            node->jobs.session_count);
    node->phase = phase;
    node_notify_stopping(node);
}

static void stop_now(struct node *node, const char *cause)
{
    struct node_engine *engine;
    char reason[200];

    if (node->phase == NODE_PHASE_STOPPING)
        return;
    set_phase(node, NODE_PHASE_STOPPING, cause);
    snprintf(reason, sizeof(reason), "hvdd (pid %d) shuts down: %s", (int)getpid(), cause);
    DL_FOREACH(node->engines, engine)
    {
        node_link_stop(engine, reason);
    }
    node_stop_check(node);
}

static int on_drained(sd_event_source *source, uint64_t usec, void *user)
{
    (void)source, (void)usec;
    stop_now(user, "the drain timeout has passed");
    return 0;
}

static void drain(struct node *node, const char *cause)
{
    uint64_t timeout_us = (uint64_t)node->config.drain_timeout / 1000;

    if (node->phase != NODE_PHASE_RUNNING || timeout_us == 0) {
        stop_now(node, cause);
        return;
    }
    set_phase(node, NODE_PHASE_DRAINING, cause);
    if (sd_event_add_time_relative(node->event, &node->drain, CLOCK_MONOTONIC, timeout_us, 1000,
                                   on_drained, node) < 0)
        stop_now(node, "no memory for a timer");
    node_stop_check(node);
}

static int on_idle(sd_event_source *source, uint64_t usec, void *user)
{
    (void)source, (void)usec;
    stop_now(user, "nobody has been attached for the idle-exit time");
    return 0;
}

static void check_idle(struct node *node)
{
    bool idle = node->phase == NODE_PHASE_RUNNING && node->config.idle_exit > 0 &&
                node->jobs.session_count == 0 && node->pending_count == 0;

    if (!idle)
        node->idle = sd_event_source_disable_unref(node->idle);
    else if (node->idle == NULL)
        sd_event_add_time_relative(node->event, &node->idle, CLOCK_MONOTONIC,
                                   (uint64_t)node->config.idle_exit / 1000, 0, on_idle, node);
}

void node_stop_check(struct node *node)
{
    check_idle(node);
    if (node->phase == NODE_PHASE_RUNNING || node->engines != NULL)
        return;
    if (node->gpu.workers != NULL)
        node_gpu_stop_all(&node->gpu, "hvdd shuts down");
    else if (!node_mps_stop(&node->mps))
        sd_event_exit(node->event, 0);
}

/* ---- reload
 * -------------------------------------------------------------------------------------------------------
 */

static void apply_row(struct node *node, const struct node_config_row *row,
                      const struct node_config *fresh)
{
    static const char *const sentences[] = {
        "an option was changed", "an option was changed, for engines that start from now on",
        "an option was changed; engines that run keep what they were started with",
        "a changed option counts only after a restart",
        "an option of the command line cannot change"};
    char before[HVI_WIRE_PATH], after[HVI_WIRE_PATH];
    bool applies = row->apply < NODE_APPLY_RESTART;

    if (!node_config_differs(row, &node->config, fresh))
        return;
    node_config_format(&node->config, row, before, sizeof(before));
    node_config_format(fresh, row, after, sizeof(after));
    HVI_LOG(applies ? HVI_LOG_INFO : HVI_LOG_WARN, "config",
            applies ? "option-changed" : "option-needs-restart", sentences[row->apply],
            "%s: %s -> %s", row->name, before, after);
    if (applies)
        node_config_copy(row, fresh, &node->config);
}

static void reload(struct node *node)
{
    struct node_config fresh;
    char text[NODE_CONFIG_ERROR];

    node_notify_reloading(node);
    if (node_config_load(&node->command, &fresh, text, sizeof(text)) != HVI_OK) {
        HVI_LOG(HVI_LOG_ERROR, "config", "reload-failed", "the configuration stays as it was",
                "error=\"%s\"", text);
    } else {
        HVI_LOG(HVI_LOG_INFO, "config", "reload", "the configuration is read again", "");
        for (size_t i = 0; i < node_config_row_count; i++)
            apply_row(node, &node_config_rows[i], &fresh);
        node_beat_reload(node);
        hvi_log_set_level((enum hvi_log_level)node->config.log_level);
        node->idle = sd_event_source_disable_unref(node->idle); /* its time may have changed */
        check_idle(node);
    }
    node_notify_reloaded(node);
}

/* ---- watching
 * -----------------------------------------------------------------------------------------------------
 */

static int on_signal(sd_event_source *source, const struct signalfd_siginfo *info, void *user)
{
    struct node *node = user;
    char cause[64];

    (void)source;
    if (info->ssi_signo == SIGHUP) {
        reload(node);
        return 0;
    }
    snprintf(cause, sizeof(cause), "SIG%s from pid %d", sigabbrev_np((int)info->ssi_signo),
             (int)info->ssi_pid);
    drain(node, cause);
    return 0;
}

static int on_parent(sd_event_source *source, int fd, uint32_t events, void *user)
{
    struct node *node = user;
    char line[HVI_TEXT_MAX + 1];

    (void)source, (void)events;
    ssize_t length = read(fd, line, sizeof(line) - 1);
    if (length > 0) {
        line[length] = '\0';
        line[strcspn(line, "\n")] = '\0';
        if (hvi_utf8_valid(line, strlen(line)))
            node_mesh_lost(node, line);
    }
    if (length > 0 || (length < 0 && (errno == EAGAIN || errno == EINTR)))
        return 0;
    node->parent = sd_event_source_disable_unref(node->parent);
    stop_now(node, "the process that started hvdd is gone");
    return 0;
}

int node_stop_watch(struct node *node)
{
    static const int numbers[] = {SIGTERM, SIGINT, SIGHUP};
    int fd = (int)node->config.parent_fd, r = 0;
    sigset_t set;

    signal(SIGPIPE, SIG_IGN);
    /* SIGHUP is blocked, so it is read all the same. What we start is to ignore both (spawn.c). */
    signal(SIGHUP, SIG_IGN);
    signal(SIGTTOU, SIG_IGN);
    signal(SIGCHLD, SIG_DFL); /* ignored: the kernel would drop how an engine has ended */
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    for (size_t i = 0; i < 3; i++)
        sigaddset(&set, numbers[i]);
    sigprocmask(SIG_BLOCK, &set, NULL);
    for (size_t i = 0; i < 3 && r >= 0; i++)
        r = sd_event_add_signal(node->event, &node->signals[i], numbers[i], on_signal, node);
    if (r >= 0 && fd >= 0) {
        fcntl(fd, F_SETFD, FD_CLOEXEC);
        fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
        r = sd_event_add_io(node->event, &node->parent, fd, EPOLLIN, on_parent, node);
    }
    if (r >= 0)
        return HVI_OK;
    HVI_LOG(HVI_LOG_ERROR, "stop", "no-event", "cannot watch signals or --parent-fd",
            "fd=%d error=\"%s\"", fd, strerror(-r));
    return HVI_ERR_DAEMON;
}
