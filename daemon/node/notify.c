/* SPDX-License-Identifier: Apache-2.0
 * systemd: readiness, watchdog, status line, sockets that were opened for us, and the fd store.
 *
 * attach.sock comes from a socket unit (then its file is systemd's), from the fd store (we had put
 * it there before we died: connections made meanwhile are waiting in it), or is made by listen.c
 * and then stored. The lock file says which of the first two it is, because systemd passes both the
 * same way. Without systemd all of this does nothing. */
#include "daemon/node/node.h"

#include "base/status.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <systemd/sd-daemon.h>

#define STATUS_EVERY_US 1000000
/* After a drain: engines have 5 s to go, those that hvdd may not kill 5 s more (link.c), then workers of GPUs 5 s (gpu.c);
 * and what they leave takes a moment. */
#define STOP_US 20000000

/* The file a listening socket is bound to; false for an abstract or unnamed one. */
static bool bound_path(int fd, char *path_p, size_t path_size)
{
    struct sockaddr_un address = {0};
    socklen_t size = sizeof(address);

    if (getsockname(fd, (struct sockaddr *)&address, &size) != 0 || address.sun_path[0] != '/')
        return false;
    return snprintf(path_p, path_size, "%.*s", (int)sizeof(address.sun_path), address.sun_path) <
           (int)path_size;
}

static bool take_attach(struct node *node, int fd)
{
    struct stat info;

    if (node->attach_fd >= 0 || !bound_path(fd, node->attach_path, sizeof(node->attach_path)))
        return false;
    /* A clean end has removed the file, but the store may outlive it. */
    if (node->rundir.stored && stat(node->attach_path, &info) != 0) {
        sd_notify(0, "FDSTOREREMOVE=1\nFDNAME=attach");
        return false;
    }
    node->attach_fd = fd;
    node->attach_inherited = !node->rundir.stored;
    return true;
}

static bool take(struct node *node, int fd)
{
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    if (sd_is_socket_unix(fd, SOCK_SEQPACKET, 1, NULL, 0) > 0)
        return take_attach(node, fd);
    if (sd_is_socket_unix(fd, SOCK_STREAM, 1, NULL, 0) > 0 && node->admin_fd < 0 &&
        bound_path(fd, node->admin_path, sizeof(node->admin_path))) {
        node->admin_fd = fd;
        node->admin_inherited = true;
        return true;
    }
    return false;
}

int node_notify_inherit(struct node *node)
{
    char **names = NULL;
    int count = sd_listen_fds_with_names(1, &names);

    if (count < 0) {
        HVI_LOG(HVI_LOG_ERROR, "notify", "no-sockets", "cannot read what systemd passed",
                "error=\"%s\"", strerror(-count));
        return HVI_ERR_DAEMON;
    }
    for (int i = 0; i < count; i++) {
        int fd = SD_LISTEN_FDS_START + i;
        bool taken = take(node, fd);
        HVI_LOG(HVI_LOG_INFO, "notify", taken ? "socket-inherited" : "socket-ignored",
                taken ? "a socket was taken over from systemd"
                      : "systemd passed a descriptor that is no socket for hvdd",
                "name=%s", names != NULL && names[i] != NULL ? names[i] : "");
        if (!taken)
            close(fd);
        if (names != NULL)
            free(names[i]);
    }
    free(names);
    return HVI_OK;
}

static void send_status(struct node *node, const char *prefix)
{
    sd_notifyf(0, "%sSTATUS=%s%u jobs, %u ranks attached", prefix,
               node->phase == NODE_PHASE_RUNNING ? "" : "Draining: ", node->jobs.generation_count,
               node->jobs.session_count);
}

void node_notify_joined(struct node *node)
{
    int fd = (int)node->config.ready_fd;

    if (fd < 0 || node->joined)
        return;
    node->joined = true;
    if (node->mesh.port != 0 ? dprintf(fd, "ready %u\n", (unsigned)node->mesh.port) < 0
                             : dprintf(fd, "ready\n") < 0)
        HVI_LOG(HVI_LOG_WARN, "notify", "no-ready", "cannot write to --ready-fd",
                "fd=%d error=\"%s\"", fd, strerror(errno));
    close(fd);
}

void node_notify_ready(struct node *node)
{
    node->ready = true;
    send_status(node, "READY=1\n");
    if (getenv("NOTIFY_SOCKET") != NULL && !node->attach_inherited &&
        sd_pid_notify_with_fds(0, 0, "FDSTORE=1\nFDNAME=attach", &node->attach_fd, 1) > 0)
        node_rundir_mark_stored(&node->rundir);
    if (sd_event_set_watchdog(node->event, true) < 0)
        HVI_LOG(HVI_LOG_WARN, "notify", "no-watchdog", "the watchdog of systemd cannot be served",
                "");
    if (!node_mesh_wanted(node) || node->config.rendezvous[0] != '\0')
        node_notify_joined(node);
}

void node_notify_reloading(struct node *node)
{
    (void)node;
    sd_notifyf(0, "RELOADING=1\nMONOTONIC_USEC=%llu", (unsigned long long)(hvi_clock_ns() / 1000));
}

void node_notify_reloaded(struct node *node)
{
    send_status(node, "READY=1\n");
}

/* A drain may be longer than TimeoutStopSec= of the unit; systemd would kill hvdd in the middle. */
void node_notify_stopping(struct node *node)
{
    uint64_t drain_us =
        node->phase == NODE_PHASE_DRAINING ? (uint64_t)node->config.drain_timeout / 1000 : 0;
    char prefix[80];

    snprintf(prefix, sizeof(prefix), "STOPPING=1\nEXTEND_TIMEOUT_USEC=%" PRIu64 "\n",
             drain_us + STOP_US);
    send_status(node, prefix);
}

static int on_status(sd_event_source *source, uint64_t usec, void *user)
{
    struct node *node = user;

    (void)source, (void)usec;
    node->status = sd_event_source_disable_unref(node->status);
    if (node->status_dirty)
        node_notify_changed(node);
    return 0;
}

void node_notify_changed(struct node *node)
{
    if (getenv("NOTIFY_SOCKET") == NULL)
        return;
    node->status_dirty = node->status != NULL;
    if (node->status != NULL)
        return;
    send_status(node, "");
    sd_event_add_time_relative(node->event, &node->status, CLOCK_MONOTONIC, STATUS_EVERY_US, 0,
                               on_status, node);
}
