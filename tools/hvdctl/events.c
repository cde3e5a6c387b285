/* SPDX-License-Identifier: Apache-2.0
 * `hvdctl events`: a subscription, a line for each event until interrupted. The first line says that it has begun: a
 * program that reads it, and then asks for the state, misses nothing. */
#include "base/clock.h"
#include "base/status.h"
#include "tools/hvdctl/ctl.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <string.h>

#define LOOK_NS      HVI_NS_SEC
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* "unknown": a later hvdd's. */
static const char *name_of(enum hvd_admin_event_kind kind)
{
    static const char *const names[] = {
        [HVD_ADMIN_EVENT_LOST] = "events-lost",
        [HVD_ADMIN_EVENT_RANK_LOST] = "rank-lost",
        [HVD_ADMIN_EVENT_GENERATION_BEGAN] = "generation-began",
        [HVD_ADMIN_EVENT_GENERATION_ENDED] = "generation-ended",
        [HVD_ADMIN_EVENT_ENGINE_LOST] = "engine-lost",
        [HVD_ADMIN_EVENT_NODE_JOINED] = "node-joined",
        [HVD_ADMIN_EVENT_NODE_LOST] = "node-lost",
        [HVD_ADMIN_EVENT_STALL] = "stall",
        [HVD_ADMIN_EVENT_HOSTS_CHANGED] = "hosts-changed",
        [HVD_ADMIN_EVENT_JOB_BROKEN] = "job-broken",
    };
    const size_t index = (size_t)kind;
    return index < COUNT(names) && names[index] != NULL ? names[index] : "unknown";
}

static int subscribe(const struct ctl *ctl, struct hvd_admin_events **events_p)
{
    struct hvd_admin *admin = NULL;
    int code = ctl_open(ctl, &admin);
    if (code != CTL_OK)
        return code;
    const int status = hvd_admin_subscribe(admin, (int64_t)ctl->timeout_ns, events_p);
    code = status == HVD_OK ? CTL_OK : ctl_explain(ctl, status);
    hvd_admin_close(admin);
    return code;
}

/* CTL_OK, or the exit code after a complaint. */
static int flush(const struct ctl *ctl)
{
    if (fflush(ctl->out) == 0 && !ferror(ctl->out))
        return CTL_OK;
    ctl_complain(ctl, HVI_ERR_CLOSED, "the events cannot be written: %s", strerror(errno));
    return CTL_REFUSED;
}

/* Whoever read the output has gone. A pipe says so when it is written to; asked, it does before. */
static bool is_unread(const struct ctl *ctl)
{
    struct pollfd out = {.fd = fileno(ctl->out)};
    return poll(&out, 1, 0) > 0;
}

/* One event; CTL_OK, or the exit code after a complaint. *over_p: there will be nobody to show another to. */
static int show_next(const struct ctl *ctl, struct hvd_admin_events *events, bool *over_p)
{
    const struct hvd_admin_event *event;
    int status;
    do {
        status = hvd_admin_events_next(events, LOOK_NS, &event);
        *over_p = status == HVD_ERR_TIMEOUT && is_unread(ctl);
    } while (status == HVD_ERR_TIMEOUT && !*over_p);
    if (*over_p)
        return CTL_OK;
    if (status != HVD_OK)
        return ctl_explain(ctl, status);
    if (ctl->json)
        ctl_json_event(ctl, event, name_of(event->kind));
    else
        ctl_show_event(ctl, event, name_of(event->kind));
    return flush(ctl);
}

int ctl_events(const struct ctl *ctl, char **args, int count)
{
    struct hvd_admin_events *events;
    (void)args, (void)count;
    int code = subscribe(ctl, &events);
    if (code != CTL_OK)
        return code;
    if (ctl->json)
        ctl_json_subscribed(ctl);
    else
        ctl_show_subscribed(ctl);
    code = flush(ctl);
    bool over = false;
    while (code == CTL_OK && !over)
        code = show_next(ctl, events, &over);
    hvd_admin_events_close(events);
    return code;
}
