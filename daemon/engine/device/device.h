/* SPDX-License-Identifier: Apache-2.0
 * The room device/: the workers that have this job's GPUs, as the loop and sessions/ see them.
 *
 *     hvdd ── GpuWorker + [socket] ──► worker.c ── hello, device channel ──► the loop hands it to exec/
 *   sessions/ ── DeviceAdd ──────────► import.c ── GpuImport ─► worker ── GpuAck ─► imported()
 *   sessions/ ── FenceAdd ───────────► pages.c  ── GpuPage ───► all workers, and those that come later
 *      exec/ ── a new list of workers ► comm.c   ── GpuCommId, GpuCommJoin ─► joined()
 *
 * A worker is a number below ENGINE_DEVICE_WORKERS, for one GPU. An import and a page are numbers from 1 on
 * that are never used again.
 *
 * Main thread; nothing blocks. The functions of the table are called from the event loop alone, and never
 * inside a function that is declared here, but for engine_device_told. */
#ifndef ENGINE_DEVICE_DEVICE_H
#define ENGINE_DEVICE_DEVICE_H

#include "daemon/engine/event/event.h"
#include "proto/mesh.h"
#include "proto/packet.h"
#include "proto/wire.h"
#include "shm/device.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define ENGINE_DEVICE_WORKERS 64u
#define ENGINE_DEVICE_WHOSE   48 /* bytes of "ranks 0,4,8" */
#define ENGINE_DEVICE_LABEL   (HVI_WIRE_GPU_UUID + HVI_WIRE_NODE_NAME + 64)
#define ENGINE_DEVICE_BUCKETS 256u

#define ENGINE_DEVICE_NODE (HVI_WIRE_NODE_NAME + 32)

struct engine_device;
struct engine_device_import;
struct engine_device_page;
struct engine_device_comm;
struct engine_device_letter;
struct engine_device_pending;
struct engine_device_packet;

struct engine_device_calls {
    /* GpuWanted, to hvdd. HVI_OK, or an error: hvdd is not there. */
    int (*want)(void *user, uint64_t request, const unsigned char uuid[HVI_UUID_BYTES]);
    /* GpuEnd, to hvdd. */
    void (*end)(void *user, uint64_t instance, const char *reason);
    /* It takes batches from now on. */
    void (*linked)(void *user, uint32_t worker);
    /* It is gone, and its channel with it after this call: the job breaks with HVI_ERR_WORKER_LOST. */
    void (*lost)(void *user, uint32_t worker, const char *text);
    void (*imported)(void *user, uint64_t ticket, int status, const char *text);
    void (*released)(void *user, uint64_t ticket, int status, const char *text);
    void (*paged)(void *user, uint64_t ticket, int status, const char *text);
    void (*joined)(void *user, uint32_t comm, int status, const char *text);
    /* To the engine of another node, whose engine_device_heard gets it; and the node in sentences. NULL: there are no
     * other nodes. */
    void (*tell)(void *user, uint32_t node, const struct hvi_mesh_gpu *gpu);
    void (*name)(void *user, uint32_t node, char text_p[ENGINE_DEVICE_NODE]);
};

/*   none --DeviceAdd--> wanted --GpuWorker + socket--> greeting --GpuHello--> linked --gone, lie, stuck--> leaving
 *                         |                               |                     |                             |
 *                         +--refused, deadline--> refused <--gone, deadline     +--hvdd says why--> lost <----+
 *                                                  |
 *                                     DeviceAdd, after 1 s --> wanted
 *
 * leaving: its socket has ended, or hvdd was asked to end it; it may still write ranks' memory until hvdd says that it is dead.
 * lost is the end: the job breaks.
 * One setter: set_state in worker.c. */
enum engine_device_state {
    ENGINE_DEVICE_NONE,
    ENGINE_DEVICE_WANTED,
    ENGINE_DEVICE_GREETING,
    ENGINE_DEVICE_LINKED,
    ENGINE_DEVICE_LEAVING,
    ENGINE_DEVICE_LOST,
    ENGINE_DEVICE_REFUSED,
    ENGINE_DEVICE_STATES
};

struct engine_device_worker {
    struct engine_device *device;
    uint32_t number;
    enum engine_device_state state;
    unsigned char uuid[HVI_UUID_BYTES];
    char uuid_text[HVI_WIRE_GPU_UUID], name[HVI_WIRE_NODE_NAME];
    uint64_t request; /* wanted: GpuWanted's */
    uint64_t
        deadline_ns; /* wanted, greeting, leaving: when it is too late; refused: asked again from then on */
    uint64_t instance;
    pid_t pid;
    int fd; /* -1 */
    struct sd_event_source *source;
    struct hvi_device_channel channel; /* linked, leaving */
    int event_fd;                      /* of its launch thread */
    uint32_t nccl_version;
    bool registers;      /* its NCCL and its GPU can */
    bool fabric;         /* it knows HVI_DEVICE_FABRIC */
    uint32_t registered; /* imports that NCCL has there, or was asked to have */
    /* The longest join: gpu-comm-timeout, in which it ends itself and says why, and some more. */
    uint64_t comm_ns;
    int refused_status,
        page_status;             /* page: a fence page that it could not register; else HVI_OK */
    char text[HVI_TEXT_MAX + 1]; /* refused, leaving, lost: why; else of .page_status */
    /* It may still be joining a communicator that has failed: why, or who has not come; else "". */
    char blame[512];
    struct engine_device_pending *pending; /* answers that are due, oldest first */
    struct engine_device_packet *unsent;   /* its socket is full */
};

struct engine_device {
    sd_event *event;
    const struct engine_device_calls *calls;
    void *user;
    uint64_t generation;
    bool enabled; /* EngineStart.gpu */

    int event_fd; /* eventfd that workers write when they have done something */
    struct sd_event_source *event_source, *timer;
    uint64_t due_ns; /* when the timer's deadlines are looked at again */
    uint32_t count;
    struct engine_device_worker workers[ENGINE_DEVICE_WORKERS];
    uint64_t requests;
    uint32_t last_import, last_page;
    struct engine_device_import *imports[ENGINE_DEVICE_BUCKETS];
    struct engine_device_page *pages;
    struct engine_device_comm *comms; /* that are not ready yet; the first one is being made */
    struct engine_device_comm *ready_comms;
    struct engine_device_letter
        *letters; /* of other nodes, about communicators that are not wanted here yet */
    uint32_t letter_count;
    struct hvi_packet packet;                  /* scratch for receiving */
    unsigned char bytes[HVI_PACKET_BYTES_MAX]; /* scratch for sending */
};

/* The first four are set, the rest is zero. HVI_OK, HVI_ERR_LIMIT (descriptors). */
int engine_device_open(struct engine_device *device);
/* Calls nothing upward. Harmless on a zeroed one. */
void engine_device_close(struct engine_device *device);
/* hvdd's answer, or word of a worker that is gone. `fd` (-1: none) becomes the room's. */
void engine_device_told(struct engine_device *device, const struct hvi_gpu_worker *told, int fd);
/* The hvdd that was asked has gone, and another one is there: it is asked for the workers that have not come. */
void engine_device_ask_again(struct engine_device *device);
/* This worker does not move, or lies: hvdd is asked to end it, and it is lost when hvdd has seen its end, 5 s later at most. */
void engine_device_end(struct engine_device *device, uint32_t worker, const char *reason);
/* "GPU-… (NVIDIA H200, pid 4711)" */
void engine_device_label(const struct engine_device *device, uint32_t worker,
                         char text_p[ENGINE_DEVICE_LABEL]);

/* ---- memory ---- */

/* What a DeviceAdd says, and whose process has it. */
struct engine_device_add {
    const struct hvi_device_memory *memory;
    pid_t pid;
    const int *fds; /* they are copied */
    uint32_t fd_count;
    bool more; /* engine_device_import_more follows */
};

/* HVI_OK: `imported` follows, perhaps after a worker was started. Else the error with a sentence. */
int engine_device_import(struct engine_device *device, uint64_t ticket,
                         const struct engine_device_add *add, uint32_t *worker_p,
                         uint32_t *import_p, char *text_p, size_t text_size);
/* Further chunks of it. HVI_OK, HVI_ERR_NOT_FOUND (it has failed), HVI_ERR_NO_MEMORY, HVI_ERR_LIMIT. */
int engine_device_import_more(struct engine_device *device, uint32_t import,
                              const struct engine_device_add *add);
/* No batch uses it (any more). `released` follows unless `ticket` is 0, but never `imported`. HVI_ERR_NOT_FOUND: the
 * worker does not have it, and nothing follows. */
int engine_device_release(struct engine_device *device, uint64_t ticket, uint32_t import);

#define ENGINE_DEVICE_REGISTERED_MAX 256u /* imports of a worker */

/* Whether NCCL can have this import registered: the trainer has made it for that, it is open, and the worker can. */
bool engine_device_registers(struct engine_device *device, uint32_t import);
/* Whether it is registered with this communicator, which is ready. If it was not asked for, it is now, and a later call may say
 * true. Each import is registered with one communicator, the first. */
bool engine_device_is_registered(struct engine_device *device, uint32_t comm, uint32_t import);

/* ---- fence pages ---- */

/* For all workers, and later ones; `fd` is copied. HVI_INPROGRESS: `paged` follows. HVI_OK: there is no worker yet. */
int engine_device_page(struct engine_device *device, uint64_t ticket, int fd, uint32_t *page_p);
/* Its session is over: workers store its ready words, and drop it after its batches. `process_over`: its process is, too. Its
 * imports stay until they are released. */
void engine_device_session_over(struct engine_device *device, uint32_t page, bool process_over);

/* ---- communicators ---- */

struct engine_device_join {
    uint32_t comm, count;                     /* workers of this node */
    const uint16_t *workers;                  /* [count] */
    const uint16_t *rank;                     /* [count] theirs */
    uint32_t ranks;                           /* on all nodes */
    const uint64_t *instances;                /* [ranks]; NULL: all workers are here */
    const uint32_t *nodes;                    /* [ranks], likewise */
    uint32_t here;                            /* this node */
    bool registered;                          /* for registered memory: one of this engine alone */
    uint32_t set;                             /* the process set of the op that wants it */
    const char (*whose)[ENGINE_DEVICE_WHOSE]; /* [count] "rank 3": whose memory each has */
};

/* `joined` follows; and once more with an error if it is over before its workers are. HVI_OK, HVI_ERR_NO_MEMORY. */
int engine_device_join(struct engine_device *device, const struct engine_device_join *join);
/* What another node says of one. */
void engine_device_heard(struct engine_device *device, uint32_t from,
                         const struct hvi_mesh_gpu *gpu);
/* This node leaves it, and all others with it: `joined` follows there as well. */
void engine_device_leave(struct engine_device *device, uint32_t comm, int status, const char *text);
/* The job is broken: communicators with workers on other nodes are over, as these may wait for what never comes. */
void engine_device_leave_nodes(struct engine_device *device, const char *text);

#endif
