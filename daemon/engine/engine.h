/* SPDX-License-Identifier: Apache-2.0
 * struct engine: the rooms of one engine process, which serves one generation of one job.
 *
 * Threads: everything here belongs to the main thread, except what exec/exec.h names. Nothing blocks
 * unless it says so.
 *
 * The stages, in the order a tensor passes them: sessions/intake -> order/negotiate -> exec/fusion ->
 * exec/dispatch -> (backend) -> sessions/complete. Calls go down; results come back through the list of
 * finished batches, and through the tables of functions in calls.c. */
#ifndef ENGINE_ENGINE_H
#define ENGINE_ENGINE_H

#include "base/types.h"
#include "daemon/engine/cores.h"
#include "daemon/engine/device/device.h"
#include "daemon/engine/event/event.h"
#include "daemon/engine/exec/exec.h"
#include "daemon/engine/gather.h"
#include "daemon/engine/nodes.h"
#include "daemon/engine/order/order.h"
#include "daemon/engine/rendezvous.h"
#include "daemon/engine/sessions/sessions.h"
#include "daemon/engine/slots/slots.h"
#include "daemon/engine/stats/stats.h"
#include "daemon/engine/watch/watch.h"
#include "proto/packet.h"
#include "proto/wire.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* NCCL_*: see nccl.c. */
struct engine_nccl {
    struct hvi_setting *settings; /* of the rank with the settings, for the workers of this node */
    size_t count;
    int32_t rank;
    bool ranks_differ; /* of this node: they were compared */
    bool nodes_differ; /* it is in .text */
    bool nodes_told;
    uint32_t differences; /* in .text, or too many for it; not told yet */
    char text[2048];
};

struct engine {
    struct hvi_engine_start start;
    uint64_t started_ns;

    sd_event *event;
    int link_fd;    /* -1: hvdd is gone */
    uid_t hvdd_uid; /* whose the first link was */
    sd_event_source *link_source, *retry_source;
    int engine_fd; /* eventfd that clients write when we sleep */
    int worker_fd; /* eventfd that our own threads write */
    sd_event_source *engine_source, *worker_source, *term_source;
    struct hvi_region bell_region;
    struct hvi_bell_page *bell;
    uint64_t event_ns; /* when sd_event ran last */
    struct engine_cores cores;
    bool threads_by_cores; /* the administrator has not said how many */
    int32_t settings_rank; /* whose settings these are */

    struct engine_nodes nodes;           /* of a job with ranks on others */
    struct engine_rendezvous rendezvous; /* the same, until they have met */
    struct engine_gathers gathers;       /* questions that they are answering */
    struct engine_roster roster;         /* as order: not there before they have met */
    struct engine_order order; /* .now_ns: refreshed when a pass of the loop finds something */
    struct engine_exec exec;
    struct engine_stats stats;
    struct engine_device device; /* workers of GPUs */
    struct engine_nccl nccl;
    struct engine_slots slots;
    struct engine_sessions sessions;
    struct engine_watch watch;

    struct hvi_packet packet; /* of the link */
};

/* ---- engine.c: the whole ---- */

/* Builds everything from hvdd's first message; `link_fd` becomes the engine's. HVI_OK or the error,
 * logged. */
int engine_init(struct engine *engine, const struct hvi_engine_start *start, int link_fd);
/* The rank that attaches next may use these processors, so the engine may. */
void engine_add_cores(struct engine *engine, pid_t pid, int pid_fd);
/* False: as engine_dispatch_close. */
bool engine_fini(struct engine *engine);
/* Order can begin: `ranks` are those of this node, by seat; NULL: it has the whole job. HVI_OK or
 * HVI_ERR_NO_MEMORY. */
int engine_open_order(struct engine *engine, const int32_t *ranks);

/* ---- calls.c ---- */

/* What the rooms call. Their user is the engine. */
extern const struct engine_order_sink engine_calls_sink;
extern const struct engine_order_observer engine_calls_observer;
extern const struct engine_exec_calls engine_calls_exec;
extern const struct engine_slots_calls engine_calls_slots;
extern const struct engine_sessions_calls engine_calls_sessions;
extern const struct engine_watch_calls engine_calls_watch;
extern const struct engine_gather_calls engine_calls_gather;
extern const struct engine_device_calls engine_calls_device;

/* ---- loop.c ---- */

/* Runs until the engine is to end and every session is over. Blocks. */
void engine_loop_run(struct engine *engine);

/* ---- link.c: hvdd ---- */

/* Starts to listen on engine->link_fd. */
int engine_link_open(struct engine *engine);
void engine_link_close(struct engine *engine);
/* EngineSession: what has become of the seat's rank. When the link is full, hvdd learns the newest
 * state as soon as it reads again. */
void engine_link_tell(struct engine *engine, engine_seat seat);
/* What a send came to. True: the caller has to send it once more, when it is asked for what it has not told. The link was full, or
 * the kernel out of memory. */
bool engine_link_try_later(struct engine *engine, int status);
/* Encodes and sends without waiting, if hvdd is there. */
int engine_link_send(struct engine *engine, const struct hvi_packet_msg *msg);
/* A Notice: the job is broken by what is no rank of this node, as `status`, `culprit` (a rank, or -1) and `text` say. `own`: no
 * other node has said so. Of that hvdd tells the others, where the job's nodes were not connected by then. */
void engine_link_tell_broken(struct engine *engine, int status, int32_t culprit, const char *text,
                             bool own);
/* EngineFences: the seat's rank has a fence page. When the link is full, hvdd gets it as soon as it reads again. */
void engine_link_tell_fences(struct engine *engine, engine_seat seat);
/* The link is full: those that have .untold are asked when hvdd reads again. */
void engine_link_await_room(struct engine *engine);

/* ---- settings.c ---- */

/* What a rank that attaches has set, if it is the lowest so far. */
void engine_settings_take(struct engine *engine, int32_t rank, const struct hvi_setting *settings,
                          size_t count);

/* ---- nccl.c ---- */

/* Of a rank of this node that attaches, before its settings are taken. */
void engine_nccl_take(struct engine *engine, int32_t rank, const struct hvi_setting *settings,
                      size_t count);
/* What another node says with its HVI_MESH_GPU_READY. */
void engine_nccl_heard(struct engine *engine, uint32_t node, const struct hvi_mesh_gpu *gpu);
/* Tells of differences that were found, if the job uses a GPU; those of nodes only with `all_heard`: a communicator is made. */
void engine_nccl_tell(struct engine *engine, bool all_heard);

#endif
