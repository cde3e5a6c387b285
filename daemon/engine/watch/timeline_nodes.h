/* SPDX-License-Identifier: Apache-2.0
 * Within the timeline: timeline.c has what this node records, timeline_nodes.c what other nodes do. */
#ifndef ENGINE_TIMELINE_NODES_H
#define ENGINE_TIMELINE_NODES_H

#include "daemon/engine/event/event.h"
#include "daemon/engine/exec/gpu.h"
#include "daemon/engine/mesh/clock.h"
#include "daemon/engine/sessions/sessions.h"
#include "daemon/engine/watch/timeline.h"
#include "daemon/engine/watch/watch.h"
#include "proto/wire.h"

#define TIMELINE_PREFIX (HVI_WIRE_NODE_NAME + 16) /* "1 h2: " */
#define TIMELINE_ROWS   (1u << 20)                /* of a node: its number stands above them */

struct timeline_node; /* of the node that writes: another one */

struct timeline_nodes {
    struct timeline_node *list; /* [count], the other nodes; NULL: there are none */
    uint32_t count;
    sd_event_source *timer;
    uint64_t deadline_ns; /* for what the others are waited for */
    uint64_t number;      /* of the questions that the writing node asks */
    bool guest;           /* another node writes: this one keeps records until they are asked for */
    uint32_t host;        /* that one */
    uint64_t heard_ns;    /* when it last asked */
    bool leaving;         /* its engine has nothing else left to do */
    bool has_stopper;     /* of the node that writes: another one waits for its end */
    uint32_t stopper;
    uint64_t stopper_number;
};

/* A worker of a GPU. */
struct timeline_gpu {
    uint32_t row;                        /* 0: not yet */
    uint64_t end_ns[HVI_DEVICE_STREAMS]; /* of the last entry of each stream */
};

struct engine_timeline {
    struct engine_watch *watch;
    struct timeline_writer writer; /* of a guest: the ring alone */
    pthread_t thread;
    sd_event_source *source;
    char path[HVI_WIRE_PATH];
    char prefix[TIMELINE_PREFIX]; /* of names; "" on one node */
    bool mark_cycles;
    bool opened, start_pending, stop_pending, stopping;
    struct engine_asker starter, stopper;
    uint32_t epoch, rows;
    uint64_t dropped; /* since the last DROPPED record */
    struct timeline_nodes nodes;
    bool takes_gpus; /* the node that writes the file knows TIMELINE_TOOK and TIMELINE_WORKER */
    struct timeline_gpu gpus[ENGINE_GPU_WORKERS];
};

/* ---- timeline.c ---- */

/* False when there is no room. */
bool engine_timeline_push(struct engine_timeline *timeline, struct timeline_record *record,
                          const void *payload, size_t payload_bytes);
/* What was lost since there was room last. */
void engine_timeline_tell_dropped(struct engine_timeline *timeline, uint64_t ts_ns);
/* Ops of which every rank here has come, and which wait for other nodes: from now on they are in it. */
void engine_timeline_take_waiting(struct engine_watch *watch);
void engine_timeline_answer(struct engine_watch *watch, const struct engine_asker *asker,
                            int status, const char *text);
/* The starter hears how it went. */
void engine_timeline_begun(struct engine_watch *watch, int status);
/* The writer puts what is in the ring into the file, and ends. */
void engine_timeline_begin_stop(struct engine_watch *watch);
void engine_timeline_free(struct engine_timeline *timeline);

/* ---- timeline_nodes.c ---- */

void engine_timeline_nodes_name(const struct engine_watch *watch, struct engine_timeline *timeline);
/* The other nodes are to begin, and to end, with this one: true if there are any. Then engine_timeline_begun and
 * engine_timeline_begin_stop follow, when they have answered, or after 0.8 s. */
bool engine_timeline_nodes_start(struct engine_watch *watch, struct engine_timeline *timeline);
bool engine_timeline_nodes_stop(struct engine_watch *watch, struct engine_timeline *timeline);
/* The file is complete. */
void engine_timeline_nodes_over(struct engine_watch *watch, struct engine_timeline *timeline);
void engine_timeline_nodes_free(struct engine_timeline *timeline);

#endif
