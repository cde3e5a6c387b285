/* SPDX-License-Identifier: Apache-2.0
 * Workers of GPUs, for the files that make them up: gpu.c (the table), gpu_start.c, gpu_return.c, gpu_watch.c, gpu_worker.c (states, and
 * what a worker is told), gpu_engines.c and gpu_fences.c. Main thread; nothing blocks. */
#ifndef HVD_NODE_GPU_ROOM_H
#define HVD_NODE_GPU_ROOM_H

#include "base/uuid.h"
#include "daemon/node/gpu.h"
#include "proto/gpu.h"

/* An engine that has a worker, or waits for it. */
struct node_want {
    struct node_want *prev, *next;
    struct node_engine *engine; /* NULL: of a worker that has come back; the engine has not */
    uint64_t request, generation;
    pid_t pid; /* of the engine */
    bool linked;
};

struct node_worker {
    struct node_worker *prev, *next;
    struct node_gpu *gpu;
    char job[HVI_JOB_ID_MAX + 1];
    uid_t uid;
    unsigned char uuid[HVI_UUID_BYTES];
    char name[HVI_UUID_TEXT]; /* "GPU-..." */
    uint64_t instance;
    enum node_worker_state state;
    pid_t pid;          /* 0: started by its unit, and has not said who it is */
    int pidfd, link_fd; /* pidfd -1: likewise */
    bool child;
    sd_event_source *exit, *io, *timer; /* timer: gpu-start, gpu-idle, of the pass, or the grace */
    uint64_t idle_ns;                   /* idle: its job has had no use for it since */
    uint64_t idle_end_ns;               /* it ends then, if no engine has had it */
    uint64_t before;                    /* its number in the job before; 0: there was none */
    uint64_t beat;
    bool asked; /* the last beat has no answer yet */
    uint64_t silent_ns;
    char step[HVI_WIRE_TRACE_NAME]; /* of its start */
    char why[512];                  /* it ends: "" if it has not been said */
    bool failed;                    /* it has said .why itself */
    bool had_gpu;                   /* it was up */
    bool had_import;                /* it has opened memory of a trainer */
    struct hvi_gpu_row row;
    struct hvi_gpu_start
        *start; /* what it was told; NULL: by another hvdd, or there was no memory */
    struct node_want *wants;
};

/* ---- gpu.c ---- */

/* Of the asker's job and user; NULL: there is none. */
struct node_worker *node_worker_find(const struct node_gpu *gpu, const struct node_gpu_asker *asker,
                                     const unsigned char uuid[HVI_UUID_BYTES]);

/* node_gpu_want of an asker whose worker has failed while it passed: none that is idle passes in its place. */
void node_gpu_want_new(struct node_gpu *gpu, const struct node_gpu_asker *asker,
                       const struct hvi_gpu_wanted *wanted);

/* ---- gpu_pass.c ---- */

/* An idle worker that begins to pass to the asker's job; NULL: there is none that may. */
struct node_worker *node_pass_begin(struct node_gpu *gpu, const struct node_gpu_asker *asker,
                                    const struct hvi_gpu_wanted *wanted);
/* GpuJob of a worker. False: it was not asked. */
bool node_pass_end(struct node_worker *worker, const struct hvi_gpu_job *said);
/* It cannot: its engines get another one. */
void node_pass_fail(struct node_worker *worker);

/* ---- gpu_worker.c ---- */

/* Cut at a character: a message with half of one could not be sent. */
void node_worker_copy_text(char *text_p, size_t size, const char *text);
void node_worker_set_state(struct node_worker *worker, enum node_worker_state state,
                           const char *cause);
void node_worker_log_started(const struct node_worker *worker);
/* Its timer, in place of the one that it has. False: no memory. */
bool node_worker_arm(struct node_worker *worker, uint64_t delay_ns,
                     sd_event_time_handler_t handler);
/* `why`: the text for its engines. The worker stays in the table until its process has ended. */
void node_worker_kill(struct node_worker *worker, const char *why);
/* In order: it closes what it has open, and ends. It is killed after a grace. */
void node_worker_stop(struct node_worker *worker, const char *reason);
/* It has closed its link: its process ends, and how that ends is worth waiting for. */
void node_worker_expect_end(struct node_worker *worker);
/* Its process has ended: its engines are told, and it leaves the table. It is invalid afterwards. */
void node_worker_gone(struct node_worker *worker, const char *fate);
void node_worker_free(struct node_worker *worker);

/* ---- gpu_start.c ---- */

/* In the table, without a process. NULL: no memory. */
struct node_worker *node_worker_new(struct node_gpu *gpu, const struct node_gpu_asker *asker,
                                    const struct hvi_gpu_wanted *wanted);
/* 0, or a negative errno, and then it has no process. */
int node_worker_start(struct node_worker *worker, const struct hvi_gpu_wanted *wanted);
/* A number of a worker. False: there is none. */
bool node_worker_number(uint64_t *instance_p);
/* Whether a new worker would be told the same, but for its job. */
bool node_worker_suits(const struct node_worker *worker, const struct hvi_gpu_wanted *wanted);

/* ---- gpu_watch.c ---- */

/* HVI_OK or why not: it has gone, or its socket is full. The descriptors stay the caller's. */
int node_worker_send(struct node_worker *worker, const struct hvi_gpu_msg *msg, const int *fds,
                     uint32_t fd_count);
/* What has come over its link. Afterwards worker->io is NULL if the link has ended. */
void node_worker_read(struct node_worker *worker);
/* Its unit has started no worker that hvdd knows: the row goes. It is invalid afterwards. */
void node_worker_unmet(struct node_worker *worker);
/* These return a negative errno, or 0 and more. */
int node_worker_watch_link(struct node_worker *worker);
int node_worker_watch_child(struct node_worker *worker);
/* By its pidfd: another process has started it. */
int node_worker_watch_stranger(struct node_worker *worker);
int node_worker_start_beats(struct node_gpu *gpu);

/* ---- gpu_engines.c ---- */

/* An engine that has no worker to be named is told why. */
void node_want_refuse(const struct node_gpu *gpu, const struct node_gpu_asker *asker,
                      const struct hvi_gpu_wanted *wanted, int status, const char *text);
void node_want_drop(struct node_worker *worker, struct node_want *want);
/* A socket of its own between an engine and the worker. It frees the want if there cannot be one. */
void node_want_link(struct node_worker *worker, struct node_want *want);
void node_want_link_all(struct node_worker *worker);
/* Each engine hears once: as the answer to its question, or unasked. */
void node_want_tell_end(struct node_worker *worker, const char *text);
/* It is idle until .idle_end_ns. */
void node_want_go_idle(struct node_worker *worker, const char *cause);
/* Whether an engine has it has changed. A worker that has opened no memory of a trainer is not idle, but ends: a rank that names
 * a GPU which its job may not use has no worker there for longer than its job. */
void node_want_check_idle(struct node_worker *worker);

/* ---- gpu_fences.c ---- */

/* That engine has gone: its pages are poisoned, at once or when the workers that it had have gone. */
void node_fences_leave(struct node_gpu *gpu, const struct node_engine *engine);
/* That worker has gone. */
void node_fences_without(struct node_gpu *gpu, uint64_t instance);
/* Frees them, and poisons nothing. */
void node_fences_close(struct node_gpu *gpu);

#endif
