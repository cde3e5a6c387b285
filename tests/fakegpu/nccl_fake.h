/* SPDX-License-Identifier: Apache-2.0
 * What the files of the fake libnccl.so.2 share: nccl.c has the calls, nccl_meet.c the ranks' common memory, nccl_ops.c what an
 * op does in its stream.
 *
 * Rules. Two ranks with equal (NCCL_HOSTID or host name, device) are refused (init.cc 2.28.9; P6). One thread makes all calls of
 * a communicator, but abort and async_error (NCCL guide). The ops of all ranks are equal in kind, count, type and order: else the
 * test is to blame (NCCL guide). An op blocks its stream until all ranks have come; if one never comes, until it is aborted (NCCL
 * guide). A rank that is gone is an async error of the others (init.cc). Memory is the device's of the communicator. float8 is
 * reduced from compute capability 9.0 on (section 3.6). If a rank brings registered memory to an op, all do, or the test is to
 * blame (NCCL guide, "User Buffer Registration": undefined). Memory that is registered is not freed or unmapped (register.cc 2.28.9
 * keeps its address); the end of the communicator gives it back (ncclRegCleanup there). */
#ifndef FAKEGPU_NCCL_FAKE_H
#define FAKEGPU_NCCL_FAKE_H

#include "daemon/gpu/nccl.h"
#include "tests/fakegpu/api.h"
#include "tests/fakegpu/settings.h"

#include <pthread.h>
#include <stdatomic.h>

enum { /* results that the worker has no name for */
       FAKE_NCCL_CUDA_ERROR = 1,
       FAKE_NCCL_SYSTEM_ERROR = 2,
       FAKE_NCCL_INVALID_ARGUMENT = 4,
       FAKE_NCCL_INVALID_USAGE = 5,
       FAKE_NCCL_REMOTE_ERROR = 6,
};

#define FAKE_NCCL_RANKS 64
#define FAKE_NCCL_STAGE (1u << 18) /* bytes of a round */
#define FAKE_NCCL_MAIL  (1u << 16)

enum fake_nccl_kind { ALL_REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, SEND, RECEIVE };

struct fake_nccl_said {
    uint32_t kind, type, op, root;
    uint64_t registered; /* 1: its input is; 2: its output */
    uint64_t count, number;
};

struct fake_nccl_member {
    char host[96];
    int32_t device;
    _Atomic uint32_t is_here;
    _Atomic uint64_t turn;
    struct fake_nccl_said said;
};

struct fake_nccl_mail {
    _Atomic uint32_t is_full;
    uint32_t type;
    uint64_t count, bytes; /* of the whole; of this piece */
    char data[FAKE_NCCL_MAIL];
};

struct fake_nccl_area {
    _Atomic uint32_t ranks;
    struct fake_nccl_member members[FAKE_NCCL_RANKS];
};

struct fake_nccl_memory { /* registered */
    struct fake_nccl_memory *next;
    uint64_t address, bytes;
};

struct gpu_nccl_comm {
    struct fake_nccl_memory *registered; /* of the thread that makes all calls, and of the end */
    int ranks, rank, fd;
    struct fake_nccl_area *area;
    char *stages;                /* FAKE_NCCL_STAGE bytes for each rank */
    struct fake_nccl_mail *mail; /* [from * ranks + to] */
    size_t bytes;
    pthread_t thread;
    uint64_t turn, number; /* the stream's */
    _Atomic int pending, async_error;
    _Atomic bool is_aborted;
    bool is_connected;
};

struct fake_nccl_op {
    enum fake_nccl_kind kind;
    const void *in;
    void *out;
    size_t count;
    int type, op, peer; /* or the root */
    gpu_nccl_comm comm;
    void *stream;
    size_t done; /* bytes of a send or receive */
    uint64_t registered;
};

struct fake_nccl_batch { /* one op; or sends and receives of a group */
    gpu_nccl_comm comm;
    bool is_hanging, is_failing;
    size_t count;
    struct fake_nccl_op ops[];
};

/* For tests, by dlsym: registrations that are there, and collectives on registered memory that have run, in this process. */
__attribute__((visibility("default"))) void fakegpu_nccl_registered(unsigned *now_p,
                                                                    unsigned *ops_p);
extern _Atomic unsigned fake_nccl_registered_ops;

/* Makes and fills in an id. */
int fake_nccl_make_id(struct gpu_nccl_id *id_p);
/* Waits for all ranks. Fills ranks, rank and what is mapped in. */
int fake_nccl_join(struct gpu_nccl_comm *comm, int ranks, const struct gpu_nccl_id *id, int rank,
                   int device);
void fake_nccl_leave(struct gpu_nccl_comm *comm);
/* All ranks have come to the same turn. False: aborted. */
bool fake_nccl_meet(struct gpu_nccl_comm *comm);
/* Waits a moment, and looks whether ranks are gone. False: aborted. */
bool fake_nccl_wait(struct gpu_nccl_comm *comm, unsigned *round_p);
size_t fake_nccl_element(int type);
/* The work of a stream: data points at a struct fake_nccl_batch, which it frees. */
void fake_nccl_run(void *data);

#endif
