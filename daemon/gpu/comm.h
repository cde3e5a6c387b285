/* SPDX-License-Identifier: Apache-2.0
 * Communicators of NCCL. The launch thread's: NCCL wants one thread for all calls of a communicator.
 *
 * A communicator is of processes, by their instances, and outlives the engine that wanted it: the next generation's names it
 * again, and no one joins. It ends by an abort, which goes to all its workers, or with this process; so either all of its
 * workers have it, or none. That holds on one node. One with workers of several nodes is made anew for each engine, as the
 * abort may have reached some nodes and not others; and so is one for registered memory, as no later engine would know what is
 * registered with it. */
#ifndef HVD_GPU_COMM_H
#define HVD_GPU_COMM_H

#include "base/types.h"
#include "daemon/gpu/calls.h"
#include "daemon/gpu/nccl.h"
#include "daemon/gpu/plan.h"

#define GPU_COMMS_MAX      16u
#define GPU_REGISTERED_MAX 1024u /* registrations of one communicator */

/* Memory that NCCL knows. */
struct gpu_registered {
    struct gpu_registered *next;
    uint64_t address, bytes;
    void *handle;
};

struct gpu_comm {
    struct gpu_comm *prev, *next;
    gpu_nccl_comm handle;
    uint32_t rank, count;
    bool fresh;        /* no later engine names it */
    uint64_t used;     /* number of the last batch in the stream of NCCL */
    uint64_t error_ns; /* since when NCCL tells of an error; 0: it does not */
    struct gpu_registered *registered;
    uint32_t registered_count;
    uint64_t instances[];
};

/* A number of an engine's for one. */
struct gpu_comm_name {
    struct gpu_comm_name *prev, *next;
    const void *owner;
    uint32_t number, rank, count;
    struct gpu_comm *comm; /* NULL: it was dropped */
};

struct gpu_comms {
    struct gpu_calls *calls;
    const char *path; /* where libnccl is looked for, besides the loader's places */
    uint64_t join_ns; /* the longest join */
    struct gpu_nccl nccl;
    _Atomic int version;    /* 0: it is not open. Any thread may read it */
    char why[400];          /* it cannot be opened */
    bool is_warm;           /* it has made a communicator: the next needs less memory */
    _Atomic uint32_t count; /* relaxed: any thread may read it, for a figure */
    struct gpu_comm *comms;
    struct gpu_comm_name *names;
};

/* What an engine (`owner`) asks. */
struct gpu_join {
    const void *owner;
    uint32_t number; /* the owner's */
    unsigned char id[HVI_NCCL_ID_BYTES];
    uint32_t rank, count;
    bool fresh;      /* one of its own */
    bool registered; /* gpu_comms_can: works go without it if there is no memory to spare */
    const uint64_t *instances; /* [count], by rank */
};

/* Opens the library, whose version engines compare. Without it the worker serves sets of one GPU, and a later call says why. */
void gpu_comms_open(struct gpu_comms *comms);
/* Whether this join could be done: NCCL, a place and memory for it are there. The other workers cannot leave one that this one does
 * not come to. HVI_OK, or an error with a sentence. */
int gpu_comms_can(struct gpu_comms *comms, const struct gpu_join *join, char *text_p,
                  size_t text_size);
/* Once it can. Of one that is there already any bytes: with an id of NCCL's comes a thread that waits for those who join. HVI_OK, or
 * an error with a sentence. */
int gpu_comms_id(struct gpu_comms *comms, const struct gpu_join *join,
                 unsigned char id_p[HVI_NCCL_ID_BYTES], char *text_p, size_t text_size);
/* Blocks until all have joined. HVI_OK, or an error with a sentence. */
int gpu_comms_join(struct gpu_comms *comms, const struct gpu_join *join, char *text_p,
                   size_t text_size);
/* NULL: the owner has never joined one as that number. */
const struct gpu_comm_name *gpu_comms_find(const struct gpu_comms *comms, const void *owner,
                                           uint32_t number);
/* Whether this NCCL can register memory in the way that hvd_device_alloc's needs. Any thread, once it is open. */
bool gpu_comms_can_register(const struct gpu_comms *comms);
/* NCCL may use this memory, which is open here, without copies in ops of the communicator. Its rule: all workers have
 * registered what they bring to an op, or none has; who calls this sees to that. HVI_OK, also if it is registered already; or an
 * error with a sentence, and nothing has changed. */
int gpu_comms_register(struct gpu_comms *comms, const void *owner, uint32_t number,
                       uint64_t address, uint64_t bytes, char *text_p, size_t text_size);
/* Memory that begins there is about to be closed: no communicator has it registered any more. No batch uses it. */
void gpu_comms_deregister(struct gpu_comms *comms, uint64_t address);
/* The owner uses it no more; with `abort` it ends, whoever else names it. False: .calls->failed. */
bool gpu_comms_drop(struct gpu_comms *comms, const void *owner, uint32_t number, bool abort);
/* Of the node's workers of the job these live, or it is not known (`count` 0). Communicators that no engine names, and that another
 * worker is in, or that were made fresh, are aborted: their like will not come again. */
void gpu_comms_alive(struct gpu_comms *comms, const uint64_t *instances, uint32_t count);
void gpu_comms_owner_gone(struct gpu_comms *comms, const void *owner);
/* Asks those that are in use. `finished`: number of the last batch that is done in the stream. False: one is broken, and no
 * engine has dropped it within a second. */
bool gpu_comms_look(struct gpu_comms *comms, uint64_t finished, uint64_t now_ns);
/* A step of NCCL's. False: .calls->failed. */
bool gpu_comms_call(struct gpu_comms *comms, const struct gpu_comm *comm, void *stream,
                    const struct gpu_step *step);
/* Aborts them all. */
void gpu_comms_close(struct gpu_comms *comms);

#endif
