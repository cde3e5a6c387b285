/* SPDX-License-Identifier: Apache-2.0
 * One op.
 *
 *            new            publish             completion              looked at
 *    FREE ---------> PREPARING ------> IN_FLIGHT ---------> DONE ---------> COPYING -----> FINISHED
 *     ^                 |               |    ^ \              |  \                            ^ |
 *     |                 |         SIZED v    | \_____________|___\_(nothing to copy)_________/ |
 *     |                 |              SIZED-'                |                                |
 *     '-----------------'--------(refused)--------------------'----------- hvd_op_free --------'
 *
 * IN_FLIGHT  the engine or a slot has it.
 * SIZED      the result needs memory that only the engine can size; back when it is announced.
 * DONE       the status is there; the name is free again.
 * COPYING    one thread copies the result out, unlocked.
 * FINISHED   a call has told the caller.
 *
 * An op released before DONE is `abandoned` and goes to FREE by itself.
 *
 * Needs the session's lock. */
#ifndef HVD_CLIENT_OP_H
#define HVD_CLIENT_OP_H

#include "client/device/device.h"
#include "client/memory/operand.h"
#include "hvd/hvd.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct client_name;
struct client_set;

enum client_op_state {
    CLIENT_OP_FREE,
    CLIENT_OP_PREPARING,
    CLIENT_OP_IN_FLIGHT,
    CLIENT_OP_SIZED,
    CLIENT_OP_DONE,
    CLIENT_OP_COPYING,
    CLIENT_OP_FINISHED,
    CLIENT_OP_STATES
};

struct hvd_op {
    struct hvd_session *session;
    enum client_op_state state;
    uint32_t index, generation; /* the cookie; generation changes with every use of the slot */
    bool abandoned;
    uint8_t kind;
    int process_set;
    struct client_name *name; /* NULL for an unnamed op */
    uint64_t anon_seq;
    struct client_operand in, out; /* `in` is put back at DONE, `out` when it has been copied */
    struct client_operand aux;     /* the op's integers; put back when the op is released */
    void *copy_to;                 /* ordinary memory that wants the result, or NULL */
    struct hvd_tensor result;      /* final once FINISHED */
    uint64_t out_bytes;            /* of the result; the capacity before DONE */
    uint64_t row_bytes;            /* allgather, alltoall, reducescatter: one row of the result */
    bool owns_output;              /* no output was given: a good result stays until hvd_op_free */
    int members;                   /* alltoall: of the set */
    int removed_set;               /* process_set_remove, _close */
    struct client_set *new_set;    /* process_set_add, _open: owned until it is in the table */
    int64_t number;            /* join, recv, process_set_add, _open: what the engine answered */
    int peer, tag;             /* send, recv */
    struct client_fence fence; /* of an op on device memory; .cell until DONE */
    int device;                /* ordinal, of such an op */
    uint64_t seq;              /* of its submission */
    void *stage_to;            /* device memory that wants the result from .out.shared, or NULL */
    struct {
        bool active;  /* in a slot: client/slots/arrive.c */
        bool brought; /* its payload is or was there */
        bool orphan;  /* released by its owner while there */
        bool medium;  /* done in chunks, where its operands lie: client/slots/medium.c */
        bool called;  /* the engine was asked to lend a hand */
        uint32_t index, turn;
        uint64_t submit_ns;
    } slot;
    int status; /* final once DONE */
    int culprit;
    const char *error; /* "" or the sentence */
    char *error_owned; /* what to free of it */
    struct hvd_op *prev,
        *next; /* in the free list, or in that of SIZED ops; .prev: in that alone */
    char anon_text[48];
};

/* No output was given: our memory is the result and lives as long as the op. */
static inline bool client_op_owns_result(const struct hvd_op *op)
{
    return op->owns_output && op->status == HVD_OK;
}

/* What the engine calls it by. */
uint64_t client_op_cookie(const struct hvd_op *op);
/* "allreduce 'w1'", for sentences. */
void client_op_describe(const struct hvd_op *op, char *text_p, size_t text_size);

#endif
