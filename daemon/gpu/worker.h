/* SPDX-License-Identifier: Apache-2.0
 * What the files of hvdd-gpu share. Main thread: sockets, beats and ends; it never calls the driver. */
#ifndef HVD_GPU_WORKER_H
#define HVD_GPU_WORKER_H

#include "base/clock.h"
#include "base/log.h"
#include "daemon/gpu/device.h"
#include "daemon/gpu/import.h"
#include "daemon/gpu/launch.h"
#include "proto/gpu.h"
#include "proto/packet.h"

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

#include <systemd/sd-event.h>

struct gpu_engine; /* engine.h */

/* It is to serve another job. */
struct gpu_pass {
    bool is_due, is_clearing;
    struct hvi_gpu_job said;
    struct gpu_order clear;
};

struct gpu_worker {
    sd_event *event;
    int link_fd; /* to hvdd; -1: it has gone */
    sd_event_source *link, *retry, *device_event;
    cpu_set_t may;              /* processors that it was started with; none: it is never bound */
    cpu_set_t cores;            /* that its threads were bound to */
    bool is_back;               /* this hvdd has not started it: it may be of another version */
    uint64_t retry_ns;          /* until it looks for a hvdd; it grows where none takes it back */
    struct hvi_gpu_start start; /* without .settings */
    struct gpu_device device;
    bool up;      /* hvdd knows that the device is there */
    bool is_used; /* it has opened memory of a trainer, and hvdd knows */
    struct gpu_imports imports;
    struct gpu_launch launch;
    struct gpu_engine *engines;
    sd_event_source *guard, *launch_event;
    bool is_ending; /* the event loop ends when all that has to is over */
    int exit_code;
    uint64_t end_ns;
    struct gpu_pass pass;
    struct hvi_gpu_row said; /* to hvdd, at last */
    uint64_t excused_ns; /* when the call for memory last had a batch to wait for; or .stood_ns */
    uint64_t due_ns;     /* when the guard looks again */
    uint64_t stood_ns;   /* when it last found that this process had stood still; 0: never */
    struct hvi_packet packet; /* scratch for one message in, one out */
    unsigned char encoded[HVI_PACKET_BYTES_MAX];
};

/* ---- link.c: the socket to hvdd ---- */

/* Waits for GpuStart, 5 s, and takes its settings into the environment. HVI_OK; HVI_ERR_CLOSED: hvdd has gone already;
 * HVI_ERR_PROTOCOL, HVI_ERR_VERSION. Logs. */
int gpu_link_start(struct gpu_worker *worker, int link_fd);
int gpu_link_open(struct gpu_worker *worker);
void gpu_link_close(struct gpu_worker *worker);
void gpu_link_send(struct gpu_worker *worker, const struct hvi_gpu_msg *msg);
/* GpuState with this text, and the numbers of the device once it is there. */
void gpu_link_state(struct gpu_worker *worker, enum hvi_gpu_state_number state, const char *text);
/* Memory of a trainer is open: hvdd is told, once. It ends a worker that has had none with its engines. */
void gpu_link_used(struct gpu_worker *worker);

/* ---- pass.c: the next job ---- */

/* GpuJob of hvdd, which is answered when nothing of the job before is left. */
void gpu_pass_begin(struct gpu_worker *worker, const struct hvi_gpu_job *said);
/* Goes on with it, if it is due. */
void gpu_pass_look(struct gpu_worker *worker);
/* The hvdd that has said so has gone. */
void gpu_pass_forget(struct gpu_worker *worker);

/* ---- serve.c: the sockets to engines ---- */

/* A socket to an engine, which it owns. Says hello; where that cannot be, the socket ends. */
void gpu_serve_engine(struct gpu_worker *worker, struct hvi_gpu_engine *engine, int fd);
/* GpuAck to an engine. */
void gpu_serve_answer(void *engine, uint64_t request, int status, const char *text);
/* Begins to end them all; their fences are poisoned. */
void gpu_serve_close(struct gpu_worker *worker);

/* ---- guard.c: deadlines and poison ---- */

int gpu_guard_open(struct gpu_worker *worker);
/* There is something to poison, again and again. */
void gpu_guard_hurry(struct gpu_worker *worker);
/* Ends in order: engines, then the launch thread, then the event loop. */
void gpu_guard_end(struct gpu_worker *worker, int exit_code);
/* Ends now, with a sentence for hvdd. */
_Noreturn void gpu_guard_fail(struct gpu_worker *worker, const char *text);

#endif
