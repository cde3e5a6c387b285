/* SPDX-License-Identifier: Apache-2.0
 * The room watch/: what looks at a running job from above: ops that wait for too long (stall.c,
 * stall_rows.c), what ranks do and did (trace.c), the file of all ops (timeline.c). It calls upward only
 * through the table. Engine thread, except what timeline.h names; nothing blocks unless it says so. */
#ifndef ENGINE_WATCH_WATCH_H
#define ENGINE_WATCH_WATCH_H

#include "proto/wire.h"

#include <stddef.h>
#include <stdint.h>

struct engine_exec;
struct engine_mesh;
struct engine_slots;
struct engine_order;
struct engine_sessions;
struct engine_stats;
struct engine_timeline;
struct hvi_packet_msg;
struct sd_event;
struct sd_event_source;

/* What happens to an op that has waited for .stall_act_ns. */
enum engine_stall_policy {
    ENGINE_STALL_WARN,     /* nothing more than the warnings */
    ENGINE_STALL_FAIL_OP,  /* it fails on every rank of its set; the job goes on */
    ENGINE_STALL_STOP_JOB, /* the job ends, as in Horovod */
};

struct engine_watch_calls {
    /* Sends to hvdd without waiting. HVI_OK, HVI_ERR_CLOSED (hvdd is gone), or why not. */
    int (*send)(void *user, const struct hvi_packet_msg *msg);
    /* "node 1 (h2)"; asked of nodes that the roster knows. */
    void (*describe_node)(void *user, uint32_t node, char *text_p, size_t size);
};

struct engine_watch {
    const struct hvi_engine_start *start;
    struct engine_order *order;
    struct engine_exec *exec;
    struct engine_stats *stats;
    struct engine_slots *slots;
    struct engine_sessions *sessions;
    struct sd_event *event;
    const struct engine_watch_calls *calls;
    void *user;

    uint64_t stall_warn_ns; /* 0: off, and nothing below happens either */
    uint64_t stall_act_ns;  /* age at which .stall_policy acts */
    enum engine_stall_policy stall_policy;
    uint64_t stall_looked_ns;
    struct sd_event_source *stall_source;

    uint64_t traced_ns;                     /* when the trace was read last; 0: never */
    struct engine_timeline *timeline;       /* takes events; NULL: none, or it is being stopped */
    struct engine_timeline *timeline_alive; /* until its file is complete */
    uint32_t timeline_epochs;
    struct engine_mesh
        *mesh; /* to the job's other nodes; NULL: there are none, or they have not met */
};

#endif
