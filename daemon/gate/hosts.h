/* SPDX-License-Identifier: Apache-2.0
 * Which nodes of the mesh there are. Pure: no socket, no clock but `now_ns`. One thread.
 *
 * A list (gate_hosts) is what one source says: the gate that listens, of the nodes that have come to it; or a seed,
 * of all that it knows. The view (gate_view) is what the subscribers of this node have been told. It follows one list
 * at a time, and each difference is a call. */
#ifndef HVD_GATE_HOSTS_H
#define HVD_GATE_HOSTS_H

#include "base/clock.h"
#include "proto/gate.h"

#include <stdbool.h>
#include <stdint.h>

/* A node that a list does not name is lost only when the list is older than this: nodes come back to a seed that has
 * begun anew one after the other. */
#define GATE_HOSTS_SETTLE_NS (5 * HVI_NS_SEC)

struct gate_host {
    struct gate_host *prev, *next;
    struct hvi_mesh_host is; /* .gone: until the view has taken that */
    bool news;               /* the view has not looked at it yet */
    bool unnamed;            /* in a view: the list had not named it when it was looked for */
    bool again;              /* in a view: a node of the same name has just gone */
};

struct gate_hosts {
    struct gate_host *all;
    uint32_t count;    /* of the nodes that are there */
    uint32_t gone;     /* of those that have gone */
    uint64_t since_ns; /* when its source began, was heard again, or told everything anew */
    bool news;
    bool told; /* its source has said something; before that, the list is not followed */
};

/* Empty, of a source that begins now and has said nothing yet. The list was zeros, or is freed. */
void gate_hosts_begin(struct gate_hosts *hosts, uint64_t now_ns);
/* There, with that name and text. Out of memory, or over HVI_WIRE_NODES_MAX with those there or those gone: nothing, and
 * false. */
bool gate_hosts_put(struct gate_hosts *hosts, const struct hvi_mesh_host *host);
/* It has gone, and why. */
void gate_hosts_drop(struct gate_hosts *hosts, uint64_t node, const char *why);
/* Forgets nodes that have gone; for a list that no view follows. */
void gate_hosts_prune(struct gate_hosts *hosts);
void gate_hosts_fini(struct gate_hosts *hosts);

struct gate_view {
    struct gate_hosts known;
    const struct gate_hosts *followed;
    uint64_t alone_ns; /* since when there is no list; 0: there is one */
    bool waits;        /* nodes are kept that the list does not name yet */
};

/* One node has come, or with .gone has gone, and .text says why. The last call about a name says whether a node of that
 * name is there: a node that stays comes again after another one of its name has gone. */
typedef void gate_view_changed(void *user, const struct hvi_mesh_host *host);

/* Makes the view what the list says; NULL: nothing is known any more. A list that has not been told leaves the view as it is: its
 * source may be of a version that tells no hosts. True: `changed` was called. */
bool gate_view_follow(struct gate_view *view, struct gate_hosts *list, uint64_t now_ns,
                      gate_view_changed *changed, void *user);
void gate_view_fini(struct gate_view *view);

#endif
