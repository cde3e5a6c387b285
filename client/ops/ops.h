/* SPDX-License-Identifier: Apache-2.0
 * The ops of one session: a fixed pool, so that a handle stays addressable and a completion always
 * has a slot. Needs the session's lock. */
#ifndef HVD_CLIENT_OPS_H
#define HVD_CLIENT_OPS_H

#include "client/ops/kind.h"
#include "client/ops/names.h"
#include "client/ops/op.h"
#include "client/ops/sets.h"

#include <stdint.h>

struct client_memory;

struct client_ops {
    struct hvd_op *slots; /* HVD_OPS_MAX of them, untouched pages until used */
    struct hvd_op *free_first;
    uint32_t fresh;               /* slots never used start here */
    uint32_t in_flight;           /* PREPARING, IN_FLIGHT, SIZED */
    uint32_t unseen;              /* finished ops that no call has looked at */
    uint32_t orphans;             /* abandoned ops that may be in a slot */
    uint32_t own_outputs;         /* in flight, of ops whose result the library provides */
    struct hvd_op *sized_first;   /* utlist: ops that wait for memory, oldest first */
    int rank;                     /* this process's */
    struct client_memory *memory; /* where operands lie */
    struct client_names names;
    struct client_sets sets;
};

/* HVD_OK or HVD_ERR_NO_MEMORY. `rank` is one of `size`. */
int client_ops_init(struct client_ops *ops, struct client_memory *memory, int rank, int size);
/* Harmless on zeroed memory. */
void client_ops_fini(struct client_ops *ops);

/* An op in PREPARING, all else zero. NULL when all HVD_OPS_MAX are taken. */
struct hvd_op *client_ops_new(struct client_ops *ops, struct hvd_session *session);
/* The one setter; asserts that the picture has this edge. */
void client_op_set_state(struct client_ops *ops, struct hvd_op *op, enum client_op_state state);

/* The op in flight with this cookie, or NULL: the engine may have sent anything. */
struct hvd_op *client_ops_find(struct client_ops *ops, uint64_t cookie);

/* Adds an op in SIZED to the queue of those that wait for memory; takes one out, if it is there. */
void client_ops_queue(struct client_ops *ops, struct hvd_op *op);
void client_ops_unqueue(struct client_ops *ops, struct hvd_op *op);

/* What an op's beginning and its end change in the things that it holds: its operands, its name, its
 * process set. */

/* The op has been submitted: a join, a removal or a closing changes its set from now on. */
void client_op_launched(struct client_ops *ops, const struct hvd_op *op);
/* The op has its status, however it ended, and is in no slot: to DONE; everything but the result is
 * given back. An abandoned one is released. */
void client_op_land(struct client_ops *ops, struct hvd_op *op);
/* Gives back everything the op holds, and the op. */
void client_op_release(struct client_ops *ops, struct hvd_op *op);

#endif
