/* SPDX-License-Identifier: Apache-2.0
 * Within the room device/: messages to a worker, and answers that are due. Main thread; nothing blocks. */
#ifndef ENGINE_DEVICE_ROOM_H
#define ENGINE_DEVICE_ROOM_H

#include "base/clock.h"
#include "daemon/engine/device/device.h"
#include "proto/gpu.h"

#define ENGINE_DEVICE_START_NS  (25 * HVI_NS_SEC) /* GpuWorker, GpuHello */
#define ENGINE_DEVICE_REFUSE_NS (1 * HVI_NS_SEC)  /* before a refused worker is asked for again */
#define ENGINE_DEVICE_ANSWER_NS (10 * HVI_NS_SEC) /* imports, releases, pages, registrations */

/* What waits for an answer of a worker. */
enum engine_device_wait {
    ENGINE_DEVICE_IMPORT,
    ENGINE_DEVICE_RELEASE,
    ENGINE_DEVICE_PAGE,
    ENGINE_DEVICE_COMM_ID,
    ENGINE_DEVICE_COMM_JOIN,
    ENGINE_DEVICE_REGISTER, /* .number is the import's: asked for one communicator at a time */
};

struct engine_device_pending {
    struct engine_device_pending *next;
    enum engine_device_wait wait;
    uint64_t request, deadline_ns; /* UINT64_MAX: of a page, and its time is over */
    uint32_t number;               /* import, page or communicator */
};

struct engine_device_answer {
    int status;
    const char *text;
    const unsigned char *id; /* GpuCommId: 128 bytes; NULL: none */
};

/* ---- worker.c ---- */

/* The worker of this GPU, which is asked for if there is none. HVI_OK, or an error with a sentence. */
int engine_device_worker_for(struct engine_device *device, const unsigned char uuid[HVI_UUID_BYTES],
                             struct engine_device_worker **worker_p, char *text_p,
                             size_t text_size);
/* Encodes and sends, or keeps it until there is room. The descriptors stay the caller's. HVI_OK, HVI_ERR_CLOSED (it is not
 * linked), HVI_ERR_NO_MEMORY, HVI_ERR_LIMIT. */
int engine_device_send(struct engine_device_worker *worker, const struct hvi_gpu_msg *msg,
                       const int *fds, uint32_t fd_count);
/* An answer is due `within_ns` from now; *request_p is what the message has to say. HVI_OK, HVI_ERR_NO_MEMORY. */
int engine_device_expect(struct engine_device_worker *worker, enum engine_device_wait wait,
                         uint32_t number, uint64_t within_ns, uint64_t *request_p);
/* The newest expectation is taken back: its message could not be sent. */
void engine_device_unexpect(struct engine_device_worker *worker, uint64_t request);
/* Whether a page is still to be answered whose time is over. */
bool engine_device_is_late(const struct engine_device_worker *worker);
/* Sees to it that deadlines are looked at. */
void engine_device_watch(struct engine_device *device);

/* ---- import.c ---- */

void engine_device_import_linked(struct engine_device_worker *worker);
void engine_device_import_answered(struct engine_device *device, enum engine_device_wait wait,
                                   uint32_t import, const struct engine_device_answer *answer);
/* The worker is refused or lost: what waits for it fails. */
void engine_device_import_lost(struct engine_device_worker *worker, int status, const char *text);
void engine_device_import_close(struct engine_device *device);

/* ---- pages.c ---- */

void engine_device_page_linked(struct engine_device_worker *worker);
void engine_device_page_answered(struct engine_device_worker *worker, uint32_t page,
                                 const struct engine_device_answer *answer);
void engine_device_page_close(struct engine_device *device);

/* ---- comm.c ---- */

void engine_device_comm_answered(struct engine_device_worker *worker, enum engine_device_wait wait,
                                 uint32_t comm, const struct engine_device_answer *answer);
/* Which process set waits for this worker to join, and for which ranks' workers beside it: "; process set 3 ..."; "" if none
 * does. */
const char *engine_device_comm_blame(struct engine_device_worker *worker);
/* Communicators that have it fail, and the others abort them. */
void engine_device_comm_lost(struct engine_device_worker *worker, const char *text);
/* This process has stood still for so long: other nodes have as much more time. */
void engine_device_comm_delay(struct engine_device *device, uint64_t ns);
/* Deadlines of other nodes. False: there are none. */
bool engine_device_comm_look(struct engine_device *device, uint64_t now_ns);
void engine_device_comm_close(struct engine_device *device);

#endif
