/* SPDX-License-Identifier: Apache-2.0
 * The launch thread (hvd-launch): it reads engines' rings of commands, puts batches into streams, sees what has finished and
 * answers. It alone calls streams, kernels and NCCL.
 *
 *   main ── orders ──► launch: a source (an engine's channel), memory that its batches may name, communicators, the end
 *   main ◄── orders ── launch: each comes back when it is done; main gets .done called
 *
 * Main thread, unless said otherwise. Orders are the caller's memory until they are back. None of these blocks. */
#ifndef HVD_GPU_LAUNCH_H
#define HVD_GPU_LAUNCH_H

#include "daemon/gpu/comm.h"
#include "daemon/gpu/streams.h"
#include "shm/fence.h"

#include <pthread.h>

enum gpu_order_kind {
    /* A source: its ring is read from now on; .join.instances as gpu_comms_alive. Comes back at once. */
    GPU_ORDER_OPEN,
    GPU_ORDER_WELCOME, /* .fd: the engine's eventfd */
    GPU_ORDER_CLOSE, /* of a source: its ring is not read any more. Back when its batches are over */
    GPU_ORDER_ADD,   /* .thing */
    GPU_ORDER_FORGET, /* .thing: back when no batch that was published before uses it */
    GPU_ORDER_LIE, /* the launch thread's: .text is the source's lie, and its ring is not read any more */
    GPU_ORDER_ID,       /* .join.id comes back; with .check nothing but .status */
    GPU_ORDER_JOIN,     /* .join */
    GPU_ORDER_DROP,     /* .join.number, .abort */
    GPU_ORDER_REGISTER, /* .join.number, .address, .bytes */
    GPU_ORDER_CLEAR,    /* no source is open: zeros to the memory of the streams; .status */
    GPU_ORDER_STOP,     /* back when all batches are over; the thread ends */
    GPU_ORDER_FAILED,   /* the launch thread's: .text says why this process has to end */
};

struct gpu_source;
struct gpu_thing;

struct gpu_order {
    struct gpu_order *prev, *next;
    enum gpu_order_kind kind;
    void (*done)(struct gpu_order *order); /* NULL: its end matters to nothing */
    void *user;
    struct gpu_source *source;
    struct gpu_thing *thing;
    int fd;
    uint64_t request; /* the engine's */
    struct gpu_join join;
    uint64_t address, bytes;
    bool abort, check;
    int status;
    char text[400];
};

/* An import or a fence page of a source. */
struct gpu_thing {
    struct gpu_thing *next;
    struct gpu_source *source;
    bool is_page;
    uint32_t number;
    uint64_t address, bytes;
    struct hvi_fence_page *fences; /* of a page */
    struct gpu_order add, forget;

    /* The launch thread's. */
    uint64_t used[GPU_STREAMS]; /* number of the last batch in each stream */
    uint32_t read;              /* forgotten: when the source's ring was read up to here */
};

struct gpu_flight { /* a batch under way */
    struct gpu_flight *next;
    struct gpu_source *source;
    uint64_t number, place; /* the engine's; in its stream */
    uint32_t works;         /* things in the stream */
    uint64_t since_ns, begun_ns;
    bool waits;    /* for a member's stream: the stream says when it has begun */
    bool is_told;  /* the engine knows that it has begun */
    bool is_timed; /* its stream's time is to be asked for */
    uint64_t device_ns;
    int status;
    const char *text;
};

#define GPU_SOURCE_THINGS 256u

struct gpu_source {
    struct gpu_source *prev, *next;
    struct hvi_device_channel *channel;
    int wake_fd; /* the engine writes it when the thread sleeps */
    uint64_t generation;
    struct gpu_order open, welcome, close, lie;

    /* The launch thread's. */
    int event_fd;     /* -1: not yet */
    bool is_closed;   /* its ring is not read */
    bool is_held;     /* its next batch goes to a full stream */
    uint64_t number;  /* of the last batch */
    uint64_t answers; /* .seq of the last one */
    uint32_t under_way;
    struct gpu_order *closing;
    struct gpu_thing *things[GPU_SOURCE_THINGS]; /* by number */
    struct gpu_flight flights[HVI_DEVICE_DONES]; /* by number */
};

struct gpu_launch {
    /* What the starter sets. */
    const char *kernels, *library_path;
    uint64_t call_ns, comm_ns; /* 0: the defaults */
    void (*failed)(void *user, const char *text);
    /* The launch thread's, while no stream has anything: closes what gpu_launch_closing was called for, until `end_ns`. False:
     * nothing is left. */
    bool (*close)(void *user, struct gpu_calls *calls, uint64_t end_ns);
    void *user;

    int wake_fd,
        back_fd; /* eventfds: the thread's; main's, which calls gpu_launch_back when it is readable */
    pthread_mutex_t lock; /* of the two lists */
    struct gpu_order *orders, *back;
    _Atomic bool has_orders, has_closes;
    struct gpu_order stop, failure;
    bool is_stopped; /* main's: .stop is back */

    struct gpu_calls calls; /* of the thread; main looks at them */
    _Atomic uint64_t
        oldest_ns; /* since when the oldest batch is under way; UINT64_MAX: none is. For main to see */

    /* The launch thread's. */
    struct gpu_streams streams;
    struct gpu_comms comms;
    struct gpu_source *sources;
    struct gpu_flight *first[GPU_STREAMS], **last[GPU_STREAMS];
    uint32_t flying; /* batches under way */
    struct gpu_order *forgets, *stopping;
    uint64_t busy_ns, sound_ns;
    /* How long the last rest was in which batches were under way, and the last in which none was. */
    bool rests, rests_flying, is_woken;
    uint64_t rested_ns[2];
    struct gpu_batch batch;
    union gpu_slot slots[HVI_DEVICE_SLOTS];
};

/* The caller has set the fields of the first part. HVI_OK, HVI_ERR_NO_MEMORY. */
int gpu_launch_open(struct gpu_launch *launch);
void gpu_launch_close(struct gpu_launch *launch);
/* Calls .done of what is back, or .failed. */
void gpu_launch_back(struct gpu_launch *launch);

/* In the thread of the device, whose context is current. False, with a sentence: the worker cannot start. */
bool gpu_launch_prepare(struct gpu_launch *launch, const struct hvi_cuda *cuda, char *text_p,
                        size_t text_size);
/* In the same thread: until it is stopped, or has failed. */
void gpu_launch_run(struct gpu_launch *launch);

void gpu_launch_order(struct gpu_launch *launch, struct gpu_order *order);
/* There is something to close: .close follows, at a moment in which no stream has anything. It may be long until then. */
void gpu_launch_closing(struct gpu_launch *launch);

#endif
