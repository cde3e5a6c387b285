/* SPDX-License-Identifier: Apache-2.0
 * From the caller's tensors to slots in the submission ring. */
#ifndef HVD_CLIENT_SUBMIT_H
#define HVD_CLIENT_SUBMIT_H

#include "client/ops.h"
#include "hvd/hvd.h"

#include <stdbool.h>
#include <stdint.h>

struct client_set;
struct hvd_session;

/* One op of a call: its arguments, what follows from them, and how far its submission has come. */
struct client_request {
    const char *what; /* the public function, for sentences */
    uint8_t kind;     /* HVI_KIND_* */
    const char *name; /* NULL: unnamed */
    const struct hvd_tensor *in, *out;
    int reduce_op;
    int root; /* -1: none. process_set_remove: the set. send, recv: the other rank */
    int tag;  /* send, recv, process_set_open */
    const struct hvd_op_options *options;
    const int64_t *splits;      /* alltoall; NULL: equal parts */
    struct client_set *new_set; /* process_set_add, _open; the op's once it is submitted */
    uint32_t group_size, group_index;
    /* Worked out by client_check_options and client_check. */
    int process_set;
    double prescale, postscale;
    uint32_t element;
    uint64_t count, in_bytes, out_bytes;
    int members; /* of the set */
    /* Worked out on the way. */
    struct client_name *claimed;
    struct hvd_op *op;
    bool copy_in;
    uint64_t copied_ns; /* how long that took; 0: not timed */
};

/* "hvd_allreduce('w1')": how the sentences about a request begin. */
#define CLIENT_LABEL_MAX (HVD_NAME_MAX + 128)
void client_request_label(const struct client_request *request, char *text_p, size_t text_size);

/* Fills process_set and the scales. */
int client_check_options(struct client_request *request);
/* Checks everything that needs no session but its rank and the op's set; fills the rest. */
int client_check(struct client_request *request, int rank, const struct client_set *set);

/* Checks, places, copies in, publishes `count` ops of one process set, all or none. Does not need
 * the lock. */
int client_submit(struct hvd_session *session, struct client_request *requests, uint32_t count,
                  struct hvd_op **ops_p);

/* The functions below need the lock. */

/* What the op keeps of the arguments for its end. */
void client_submit_remember(struct client_request *request);
/* HVI_SUBMIT_OUTPUT for `op`. HVD_OK, HVD_ERR_RING_FULL or the session's end. */
int client_submit_output(struct hvd_session *session, const struct hvd_op *op,
                         const struct client_operand *operand);
/* HVI_SUBMIT_CANCEL for `op`. Likewise. */
int client_submit_cancel(struct hvd_session *session, const struct hvd_op *op, const char *what);

#endif
