/* SPDX-License-Identifier: Apache-2.0
 * What is said of a node counts at once: that it has come, and that it has gone. That a list says nothing of a
 * node counts only when the list has settled. So neither a gate that starts again nor a view that
 * goes from one seed to the next takes nodes away that are still there.
 *
 * Subscribers know nodes by their names. Two nodes may have one name: a node whose hvdd has begun anew and its
 * predecessor, or two live ones. The last that is said of a name is therefore the truth: where one of two nodes goes,
 * the other one is told again. */
#include "daemon/gate/hosts.h"

#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

/* ---- lists ---- */

static struct gate_host *find(const struct gate_hosts *hosts, uint64_t node)
{
    struct gate_host *host;

    DL_FOREACH(hosts->all, host)
    {
        if (host->is.node == node)
            return host;
    }
    return NULL;
}

static void remove_host(struct gate_hosts *hosts, struct gate_host *host)
{
    hosts->count -= !host->is.gone;
    hosts->gone -= host->is.gone;
    DL_DELETE(hosts->all, host);
    free(host);
}

void gate_hosts_fini(struct gate_hosts *hosts)
{
    while (hosts->all != NULL)
        remove_host(hosts, hosts->all);
    hosts->told = false;
}

void gate_hosts_begin(struct gate_hosts *hosts, uint64_t now_ns)
{
    gate_hosts_fini(hosts);
    hosts->since_ns = now_ns;
    hosts->news = true;
}

/* As one that has gone. */
static struct gate_host *add(struct gate_hosts *hosts)
{
    struct gate_host *host = hosts->gone < HVI_WIRE_NODES_MAX ? calloc(1, sizeof(*host)) : NULL;

    if (host == NULL)
        return NULL;
    host->is.gone = true;
    hosts->gone++;
    DL_APPEND(hosts->all, host);
    return host;
}

bool gate_hosts_put(struct gate_hosts *hosts, const struct hvi_mesh_host *said)
{
    struct gate_host *host = find(hosts, said->node);

    if ((host == NULL || host->is.gone) && hosts->count >= HVI_WIRE_NODES_MAX)
        return false;
    if (host == NULL)
        host = add(hosts);
    if (host == NULL)
        return false;
    hosts->count += host->is.gone;
    hosts->gone -= host->is.gone;
    host->is = *said;
    host->is.gone = false;
    host->news = hosts->news = true;
    return true;
}

void gate_hosts_drop(struct gate_hosts *hosts, uint64_t node, const char *why)
{
    struct gate_host *host = find(hosts, node);

    if (host == NULL || host->is.gone)
        return;
    hosts->count--;
    hosts->gone++;
    host->is.gone = true;
    snprintf(host->is.text, sizeof(host->is.text), "%s", why);
    host->news = hosts->news = true;
}

void gate_hosts_prune(struct gate_hosts *hosts)
{
    struct gate_host *host, *spare;

    if (!hosts->news)
        return;
    DL_FOREACH_SAFE(hosts->all, host, spare)
    {
        if (host->is.gone)
            remove_host(hosts, host);
    }
    hosts->news = false;
}

/* ---- the view ---- */

struct step {
    struct gate_view *view;
    const struct gate_hosts *list;
    gate_view_changed *changed;
    void *user;
    bool any;
    bool again; /* nodes are to be told again */
};

/* Another node of that name is known, which the name's last event has to be about. */
static void mark_namesake(struct step *step, const char *name)
{
    struct gate_host *host;

    DL_FOREACH(step->view->known.all, host)
    {
        if (strcmp(host->is.name, name) != 0)
            continue;
        host->again = step->again = true;
        return;
    }
}

static void go(struct step *step, struct gate_host *host, const char *why)
{
    struct hvi_mesh_host gone = host->is;

    gone.gone = true;
    snprintf(gone.text, sizeof(gone.text), "%s", why);
    remove_host(&step->view->known, host);
    step->any = true;
    step->changed(step->user, &gone);
    mark_namesake(step, gone.name);
}

/* Nodes of that name that the list does not name any more: predecessors of the one that comes. */
static void replace(struct step *step, const char *name)
{
    struct gate_host *host, *spare;

    DL_FOREACH_SAFE(step->view->known.all, host, spare)
    {
        if (host->unnamed && strcmp(host->is.name, name) == 0 &&
            find(step->list, host->is.node) == NULL)
            go(step, host, "it has begun anew");
    }
}

/* False: there is no room. */
static bool come(struct step *step, const struct hvi_mesh_host *host)
{
    replace(step, host->name);
    if (!gate_hosts_put(&step->view->known, host))
        return false;
    step->any = true;
    step->changed(step->user, host);
    return true;
}

/* What the list says of one node. False: it is to be taken again. */
static bool take(struct step *step, const struct hvi_mesh_host *said)
{
    struct gate_host *known = find(&step->view->known, said->node);

    if (known != NULL)
        known->unnamed = false;
    if (known != NULL && said->gone)
        go(step, known, said->text);
    else if (known != NULL && strcmp(known->is.name, said->name) != 0) {
        go(step, known, "it has another name now");
        return come(step, said);
    } else if (known == NULL && !said->gone)
        return come(step, said);
    return true;
}

static void tell_namesakes(struct step *step)
{
    struct gate_host *host;

    if (!step->again)
        return;
    DL_FOREACH(step->view->known.all, host)
    {
        if (host->again)
            step->changed(step->user, &host->is);
        host->again = false;
    }
}

/* Nodes of which the list says nothing. */
static void drop_unnamed(struct step *step, const struct gate_hosts *list, bool settled)
{
    struct gate_host *host, *spare;

    step->view->waits = false;
    DL_FOREACH_SAFE(step->view->known.all, host, spare)
    {
        host->unnamed = list == NULL || find(list, host->is.node) == NULL;
        if (!host->unnamed)
            continue;
        if (settled)
            go(step, host,
               list != NULL ? "the seed does not know it any more" : "no seed can be reached");
        else
            step->view->waits = true;
    }
}

static void take_list(struct step *step, struct gate_hosts *list, bool whole)
{
    struct gate_host *host, *spare;
    bool all = true;

    if (list == NULL)
        return;
    DL_FOREACH_SAFE(list->all, host, spare)
    {
        host->news = (whole || host->news) && !take(step, &host->is);
        all = all && !host->news;
    }
    gate_hosts_prune(list);
    list->news = !all;
}

static bool is_settled(const struct gate_view *view, const struct gate_hosts *list, uint64_t now_ns)
{
    const uint64_t since_ns = list != NULL ? list->since_ns : view->alone_ns;

    return now_ns - since_ns >= GATE_HOSTS_SETTLE_NS;
}

bool gate_view_follow(struct gate_view *view, struct gate_hosts *list, uint64_t now_ns,
                      gate_view_changed *changed, void *user)
{
    struct step step = {.view = view, .list = list, .changed = changed, .user = user};
    const bool another = view->followed != list, news = list != NULL && list->news;
    bool settled;

    if (list != NULL)
        view->alone_ns = 0;
    if (list != NULL && !list->told)
        return false;
    if (list == NULL && view->alone_ns == 0)
        view->alone_ns = now_ns;
    view->followed = list;
    settled = is_settled(view, list, now_ns);
    if (another || (view->waits && settled) || (news && list->since_ns != view->known.since_ns))
        drop_unnamed(&step, list, settled);
    if (another || news)
        take_list(&step, list, another);
    tell_namesakes(&step);
    if (news)
        view->known.since_ns = list->since_ns;
    return step.any;
}

void gate_view_fini(struct gate_view *view)
{
    gate_hosts_fini(&view->known);
}
