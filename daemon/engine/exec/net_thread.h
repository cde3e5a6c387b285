/* SPDX-License-Identifier: Apache-2.0
 * The net thread's state: nodes, their lanes, the works under way. */
#ifndef ENGINE_WIRE_THREAD_H
#define ENGINE_WIRE_THREAD_H

#include "base/seal.h"
#include "daemon/engine/exec/net.h"

#include <pthread.h>

/* One connection to a node. */
struct engine_wire_lane {
    struct engine_wire_node *node;
    uint32_t number;
    const struct engine_wire_transport *transport;
    void *port; /* NULL: not there yet, or given up */
    struct engine_wire_run *out_first, *out_last, *in_first, *in_last;
    /* Of the first run in each direction, the message that is being moved; NULL: none. */
    struct engine_wire_message *sending, *receiving;
    struct engine_wire_work *sender, *receiver;
    bool has_head; /* of a message whose turn has not come */
    bool throws;   /* what comes is of a work that was withdrawn */
    bool holds;    /* what comes goes to memory of a work that has failed, until it is over */
    bool moved;    /* something, since the last tick */
    unsigned char head_out[ENGINE_WIRE_HEAD_BYTES], head_in[ENGINE_WIRE_HEAD_BYTES];
    unsigned char *scratch; /* ENGINE_WIRE_CHUNK_BYTES */
};

#define ENGINE_WIRE_NAME 96

struct engine_wire_node {
    uint32_t number;
    char name[ENGINE_WIRE_NAME]; /* in sentences */
    bool lost;                   /* for good; .text says why */
    char text[ENGINE_TEXT_BYTES];
    struct engine_wire_lane lanes[ENGINE_WIRE_LANES_MAX];
};

/* What the main thread says about a node. */
struct engine_wire_news {
    struct engine_wire_news *next;
    uint32_t node, lane;
    int fd;      /* -1: the node is lost */
    bool sealed; /* with .keys */
    struct hvi_seal_keys keys;
    char text[ENGINE_TEXT_BYTES]; /* why; of a connection: the node's name */
};

/* Who moves the works. */
enum engine_wire_driver {
    ENGINE_WIRE_THREAD,
    ENGINE_WIRE_NOBODY, /* there are none: the net thread sleeps until it is called */
    ENGINE_WIRE_MAIN,   /* the main thread */
};

/* A lane's connection: for those who ask how it does. */
struct engine_wire_figure {
    uint32_t node, lane;
    const void *port; /* NULL: closed, and .last is all there is */
    struct engine_lane_row last;
};

/* The context of the row. */
struct engine_wire {
    struct engine_backend_config config;
    uint32_t lanes;
    const struct engine_wire_transport *transport;
    void *shared; /* the transport's */
    struct engine_wire_tools tools;

    /* The main thread's. */
    bool runs; /* there is a thread */
    pthread_t thread;
    uint8_t
        *asked; /* [asked_count]: a bit for each lane of a node that was asked for or has come */
    uint32_t asked_count;
    bool gathers;            /* what is started goes together, later */
    uint64_t gathered;       /* bytes of it, on all ranks */
    uint32_t gathered_count; /* works */
    bool drives;             /* as the driver, from call to call of help() */
    uint32_t drive_idle;

    /* Under the lock, or as it says. */
    pthread_mutex_t lock;
    struct engine_wire_work *started_first, *started_last;
    struct engine_wire_news *news_first, *news_last;
    bool cancels; /* some work is to be cancelled */
    uint64_t withdraw_least,
        withdraw_top; /* tentative works that are to be withdrawn: from, below */
    bool no_memory;   /* to follow a work, or to pass news on: the lanes cannot be kept in step */
    bool stopping;
    enum engine_wire_driver driver;
    bool asleep;
    _Atomic bool called; /* one of these has changed; relaxed: the lock orders what it stands for */
    _Atomic bool ended;  /* the thread has; release, acquire by net.c */
    int epoll_fd, event_fd;
    struct engine_wire_figure *figures; /* [figure_count]; a .port is open while it is there */
    uint32_t figure_count;

    /* Remote-process memory is the host backend's, of which this is an instance of our own; NULL: none
     * yet. Under its lock, which is taken before the other. */
    pthread_mutex_t host_lock;
    void *host;

    /* The driver's. */
    struct engine_wire_node **nodes; /* [node_count] by number; NULL: not heard of */
    uint32_t node_count;
    struct engine_wire_work *works;
    uint64_t ticked_ns;
};

/* ---- net_thread.c ---- */

void *engine_wire_thread(void *net);
/* The main thread, as the driver: does what has been started as far as that goes without a sleep, and leaves the
 * rest to the net thread. */
void engine_wire_drive(struct engine_wire *net);
/* The main thread: if it is the driver (.drives), does a piece. */
bool engine_wire_help(struct engine_wire *net);
/* The main thread, as the driver, is it no longer. */
void engine_wire_leave(struct engine_wire *net);
/* Wakes the thread if it sleeps. The lock is held. */
void engine_wire_call(struct engine_wire *net);
/* The node or NULL without memory. */
struct engine_wire_node *engine_wire_node_at(struct engine_wire *net, uint32_t number);
/* What of the work has not been done is not done. Once it has failed, this does nothing. `culprit`: the number
 * of the node to blame. */
void engine_wire_fail(struct engine_wire *net, struct engine_wire_work *work, int status,
                      uint32_t culprit, const char *text);

/* ---- net_lane.c: the driver ---- */

/* The lane has come. */
void engine_wire_lane_open(struct engine_wire *net, struct engine_wire_lane *lane, int fd,
                           const struct hvi_seal_keys *keys);
void engine_wire_lane_close(struct engine_wire *net, struct engine_wire_lane *lane);
void engine_wire_lane_join(struct engine_wire_lane *lane, struct engine_wire_run *run);
/* Moves something. True: there may be more. */
bool engine_wire_lane_send(struct engine_wire *net, struct engine_wire_lane *lane);
bool engine_wire_lane_receive(struct engine_wire *net, struct engine_wire_lane *lane);
/* Whether there are packed messages that the kernel has not taken. */
bool engine_wire_lane_unsent(const struct engine_wire_lane *lane);
/* The run's messages that have not begun are over. */
void engine_wire_lane_leave(struct engine_wire_lane *lane, struct engine_wire_run *run);
/* What comes for this work goes to the lane's scratch. */
void engine_wire_lane_divert(struct engine_wire_lane *lane, const struct engine_wire_work *work);
/* The node's lanes are about to be closed, and do together what that takes. */
void engine_wire_node_cease(struct engine_wire_node *node);
/* Gives up all lanes of a node, for good. `text` is what works are told that fail by it. */
void engine_wire_node_end(struct engine_wire *net, struct engine_wire_node *node, const char *text);

/* ---- net_figures.c: the net thread ---- */

/* The lane's connection is there, and is about to be closed. Without memory it has no figures. */
void engine_wire_figures_open(struct engine_wire *net, const struct engine_wire_lane *lane);
void engine_wire_figures_close(struct engine_wire *net, const struct engine_wire_lane *lane);

/* ---- net_stage.c ---- */

/* NULL without memory. */
struct engine_wire_stage *engine_wire_stage_new(struct engine_wire *net,
                                                struct engine_wire_work *work);
void engine_wire_stage_free(struct engine_wire_stage *stage);
/* Begins to read the inputs, or to write the outputs. */
void engine_wire_stage_read(struct engine_wire_stage *stage);
void engine_wire_stage_write(struct engine_wire_stage *stage);
void engine_wire_stage_cancel(struct engine_wire_stage *stage);
/* Whether nothing is under way. *status_p and *fault_p: how it ended. */
bool engine_wire_stage_is_over(struct engine_wire_stage *stage, int *status_p,
                               struct engine_fault *fault_p);
/* The batch by which the host backend knows it. */
const struct engine_batch *engine_wire_stage_batch(const struct engine_wire_stage *stage);

/* What the host backend calls. */
void engine_wire_stage_post(void *user, struct engine_batch *batch);

#endif
