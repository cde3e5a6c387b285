/* SPDX-License-Identifier: Apache-2.0
 * Workers of GPUs: hvdd starts one for each GPU of a job when an engine asks for it, watches it, and ends it when no engine of
 * the job has used it for gpu-idle. It knows engines only as pointers. Main thread; nothing blocks. */
#ifndef HVD_NODE_GPU_H
#define HVD_NODE_GPU_H

#include "daemon/node/config.h"
#include "proto/wire.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <systemd/sd-event.h>

/* A worker that has opened no memory of a trainer is never idle: where no engine has it, it is ending.
 *
 *      GpuState{up}        no engine           gpu-idle
 * starting ──────► up ◄────────────────► idle ───────────► ending ──► gone        one that comes back is up
 *    │              │                     │ ▲                 ▲
 *    │              ▲      another job's engine wants it      │
 *    │              │                     ▼ │ no engine       │
 *    │              └─────GpuJob──────── passing ──2 s────────┤
 *    └──gpu-start───┴── gpu-silence, GpuEnd, hvdd stops ──────┘         gone from each: its process has ended */
enum node_worker_state {
    NODE_WORKER_STARTING,
    NODE_WORKER_UP,
    NODE_WORKER_IDLE,
    NODE_WORKER_PASSING,
    NODE_WORKER_ENDING,
    NODE_WORKER_GONE,
    NODE_WORKER_STATES
};

struct node_engine;
struct node_worker;
struct node_fences;
struct node_rest;

/* What the rest of hvdd does for workers. */
struct node_gpu_calls {
    /* GpuWorker to that engine; `fd`, or -1, stays the caller's. May not end the engine. */
    void (*tell)(struct node_engine *engine, const struct hvi_gpu_worker *worker, int fd);
    /* As node_spawn_program. */
    int (*spawn)(const char *path, int program_fd, const char *name, int link_fd, pid_t *pid_p);
    /* The last worker has gone. */
    void (*empty)(void *user);
};

struct node_gpu {
    sd_event *event;
    const struct node_config *config;
    const struct node_gpu_calls *calls;
    void *user;
    char path[HVI_WIRE_PATH * 2]; /* of the program */
    int program_fd; /* of that file, open for all of hvdd's life; -1: it is not there */
    const char *attach_path;
    struct node_worker *workers;
    uint32_t worker_count;
    struct node_fences *fences;
    struct node_rest *rests; /* of engines that have gone */
    sd_event_source *beat;
    bool stopping;
    unsigned char encoded[HVI_PACKET_BYTES_MAX];
};

/* Who asks. */
struct node_gpu_asker {
    struct node_engine *engine;
    const char *job;
    uid_t uid;
    uint64_t generation;
    pid_t pid;
};

/* `path`: of hvdd-gpu; it may be missing, which is an answer to the first engine that asks. `attach_path` lives as long as hvdd. */
void node_gpu_open(struct node_gpu *gpu, sd_event *event, const struct node_config *config,
                   const struct node_gpu_calls *calls, void *user, const char *path,
                   const char *attach_path);
/* GpuWanted of an engine: calls->tell follows, at once or when the worker is up. */
void node_gpu_want(struct node_gpu *gpu, const struct node_gpu_asker *asker,
                   const struct hvi_gpu_wanted *wanted);
/* GpuEnd of an engine. A worker that is not of its job, or is gone, is left alone. */
void node_gpu_end(struct node_gpu *gpu, const struct node_gpu_asker *asker,
                  const struct hvi_gpu_end *end);
/* EngineFences: a session's page. node_gpu_engine_gone poisons its words when no worker that the engine had
 * can write the session's memory any more: when they have gone, or after 10 s. False: `fd` is none, or it would be one more than the
 * `most` ranks that the engine has; `fd` stays the caller's. */
bool node_gpu_fences(struct node_gpu *gpu, struct node_engine *engine, int32_t rank, int32_t most,
                     int fd);
/* GpuReturn of a worker of an earlier hvdd; `pid` is the worker's process. HVI_OK: it is in the table, which owns fd and pidfd;
 * logs. Else the status that the worker is answered, and *why_p: REFUSED and VERSION are for good. */
int node_gpu_return(struct node_gpu *gpu, const struct hvi_gpu_return *said, pid_t pid, int fd,
                    int pidfd, const char **why_p);
/* An engine of an earlier hvdd is here, or one of its workers is: they find each other. */
void node_gpu_engine_back(struct node_gpu *gpu, const struct node_gpu_asker *asker);
/* Its process has ended. */
void node_gpu_engine_gone(struct node_gpu *gpu, struct node_engine *engine);
/* hvdd ends: all workers are told, and killed after a grace; calls->empty follows if there are any. */
void node_gpu_stop_all(struct node_gpu *gpu, const char *reason);
/* Ends the workers that no engine has. */
void node_gpu_stop_idle(struct node_gpu *gpu, const char *reason);
/* A row of each worker, at most HVI_WIRE_ROWS_MAX, into `reply`, which owns them. HVI_OK or HVI_ERR_NO_MEMORY. */
int node_gpu_rows(const struct node_gpu *gpu, struct hvi_admin_reply *reply);
/* Workers that have a place: of `uid`, NULL: of all users. */
uint32_t node_gpu_count(const struct node_gpu *gpu, const uid_t *uid);
/* Frees everything without ending or poisoning anything. */
void node_gpu_close(struct node_gpu *gpu);

bool node_worker_edge(enum node_worker_state from, enum node_worker_state to);
const char *node_worker_state_text(enum node_worker_state state);

#endif
