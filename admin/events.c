/* SPDX-License-Identifier: Apache-2.0
 * A subscription: a connection of its own, which has asked for events.
 *
 * The descriptor of ZeroMQ's sockets tells of changes, so it is no good for an event loop by itself: what a call has
 * seen and left behind does not make it readable again. Here it stands in an epoll beside an eventfd, and each call ends with
 * the eventfd saying what is true: something waits, or nothing. So the epoll is readable as long as something may wait.
 *
 * A connection that ends takes events along, and nobody knows how many. That is an event as well. */
#include "admin/api.h"
#include "admin/client.h"
#include "admin/error.h"
#include "hvd/hvd_admin.h"

#include "base/clock.h"
#include "base/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct hvd_admin_events {
    struct admin_client *client;
    pid_t pid; /* that opened it */
    int epoll_fd, more_fd;
    bool says_more;               /* more_fd is readable */
    bool ended;                   /* the connection; nobody has been told yet */
    struct hvi_admin_reply reply; /* whose events are being handed out */
    size_t next;
    struct hvd_admin_event shown;
    const char *added[HVI_EVENT_HOSTS_MAX], *removed[HVI_EVENT_HOSTS_MAX]; /* of it */
    char dir[HVD_ADMIN_DIR_MAX + 1];
};

_Static_assert((int)HVD_ADMIN_EVENT_LOST == (int)HVI_EVENT_LOST &&
                   (int)HVD_ADMIN_EVENT_JOB_BROKEN == (int)HVI_EVENT_JOB_BROKEN,
               "the kinds of events are those of the wire");

/* ---- the descriptor ---- */

static int open_fds(struct hvd_admin_events *events)
{
    struct epoll_event event = {.events = EPOLLIN};
    events->more_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    events->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (events->more_fd < 0 || events->epoll_fd < 0 ||
        epoll_ctl(events->epoll_fd, EPOLL_CTL_ADD, events->more_fd, &event) != 0)
        return HVI_ERR_LIMIT;
    return admin_client_watch(events->client, events->epoll_fd);
}

static void settle(struct hvd_admin_events *events)
{
    const bool more = admin_client_is_ready(events->client) || events->ended ||
                      events->next < events->reply.event_count;
    uint64_t number = 1;
    if (more == events->says_more)
        return;
    const ssize_t bytes = more ? write(events->more_fd, &number, sizeof number)
                               : read(events->more_fd, &number, sizeof number);
    if (bytes == (ssize_t)sizeof number)
        events->says_more = more;
}

/* ---- events ---- */

static void show_names(const struct hvi_event_host *hosts, size_t count, const char **names_p)
{
    for (size_t i = 0; i < count; i++)
        names_p[i] = hosts[i].name;
}

static void show(struct hvd_admin_events *events, const struct hvi_event_row *row)
{
    show_names(row->added, row->added_count, events->added);
    show_names(row->removed, row->removed_count, events->removed);
    events->shown = (struct hvd_admin_event){
        .kind = (enum hvd_admin_event_kind)row->kind,
        .at_ns = row->at_ns,
        .job = row->job,
        .uid = row->uid,
        .generation = row->generation,
        .rank = row->rank,
        .pid = row->pid,
        .node = row->node,
        .text = row->text,
        .count = row->count,
        .added = events->added,
        .added_count = row->added_count,
        .removed = events->removed,
        .removed_count = row->removed_count,
    };
}

/* The connection had ended: asks again, and says that events may be lost. */
static int resume(struct hvd_admin_events *events, uint64_t deadline_ns)
{
    struct hvi_admin_request request = {.kind = HVI_ADMIN_EVENTS};
    const int status = admin_client_send(events->client, &request, deadline_ns);
    if (status != HVI_OK)
        return status;
    events->ended = false;
    events->shown = (struct hvd_admin_event){.kind = HVD_ADMIN_EVENT_LOST,
                                             .at_ns = hvi_clock_ns(),
                                             .job = "",
                                             .rank = HVD_ADMIN_ANY,
                                             .node = "",
                                             .added = events->added,
                                             .removed = events->removed,
                                             .text = "the connection to hvdd had ended"};
    return HVI_OK;
}

static int take_next(struct hvd_admin_events *events, uint64_t deadline_ns, char *text_p,
                     size_t text_size)
{
    while (!events->ended && events->next == events->reply.event_count) {
        hvi_admin_reply_free(&events->reply);
        events->reply = (struct hvi_admin_reply){.status = HVI_OK};
        events->next = 0;
        const int status =
            admin_client_next(events->client, deadline_ns, &events->reply, text_p, text_size);
        events->ended = status == HVI_INPROGRESS;
        if (status != HVI_OK && status != HVI_INPROGRESS)
            return status;
    }
    if (events->ended)
        return resume(events, deadline_ns);
    show(events, &events->reply.events[events->next++]);
    return HVI_OK;
}

int hvd_admin_events_next(struct hvd_admin_events *events, int64_t timeout_ns,
                          const struct hvd_admin_event **event_p)
{
    char text[HVI_TEXT_MAX + 1] = "";
    if (events->pid != getpid())
        return admin_error(HVI_ERR_FORKED,
                           "this subscription is the parent process'; make one in this process");
    const int status = take_next(events, hvi_deadline_after(timeout_ns), text, sizeof text);
    settle(events);
    if (status == HVI_OK)
        *event_p = &events->shown;
    else if (status == HVI_ERR_TIMEOUT)
        admin_error(status, "nothing has happened");
    else if (status == HVI_ERR_PROTOCOL || text[0] == '\0')
        admin_error_explain(status, events->dir, timeout_ns, text);
    else
        admin_error(status, "%s", text);
    return status;
}

int hvd_admin_events_fd(const struct hvd_admin_events *events)
{
    return events->epoll_fd;
}

/* ---- life ---- */

void hvd_admin_events_close(struct hvd_admin_events *events)
{
    if (events == NULL)
        return;
    if (events->pid == getpid())
        admin_client_close(events->client);
    if (events->epoll_fd >= 0)
        close(events->epoll_fd);
    if (events->more_fd >= 0)
        close(events->more_fd);
    hvi_admin_reply_free(&events->reply);
    free(events);
}

/* Asks for events; hvdd has heard it when this returns. */
static int subscribe(struct hvd_admin_events *events, int64_t timeout_ns)
{
    struct hvi_admin_request request = {.kind = HVI_ADMIN_EVENTS};
    struct hvi_admin_reply reply;
    char text[HVI_TEXT_MAX + 1] = "";
    int status = admin_client_open(events->dir, &events->client);
    if (status == HVI_OK)
        status = open_fds(events);
    if (status == HVI_OK)
        status = admin_client_call(events->client, &request, hvi_deadline_after(timeout_ns), &reply,
                                   text, sizeof text);
    if (status != HVI_OK)
        return admin_error_explain(status, events->dir, timeout_ns, text);
    if (reply.status != HVI_OK)
        status = admin_error(reply.status, "%s", reply.text);
    hvi_admin_reply_free(&reply);
    return status;
}

int hvd_admin_subscribe(const struct hvd_admin *admin, int64_t timeout_ns,
                        struct hvd_admin_events **events_p)
{
    int status = admin_check_handle(admin);
    if (status != HVI_OK)
        return status;
    struct hvd_admin_events *events = calloc(1, sizeof *events);
    if (events == NULL)
        return admin_error(HVI_ERR_NO_MEMORY, "%s", hvi_status_text(HVI_ERR_NO_MEMORY));
    events->pid = getpid();
    events->epoll_fd = events->more_fd = -1;
    snprintf(events->dir, sizeof events->dir, "%s", hvd_admin_address(admin));
    status = subscribe(events, timeout_ns);
    if (status != HVI_OK) {
        hvd_admin_events_close(events);
        return status;
    }
    settle(events);
    *events_p = events;
    return HVI_OK;
}
