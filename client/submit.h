/* SPDX-License-Identifier: Apache-2.0
 * From the caller's tensor to a slot in the submission ring. */
#ifndef HVD_CLIENT_SUBMIT_H
#define HVD_CLIENT_SUBMIT_H

#include "client/ops.h"
#include "hvd/hvd.h"

#include <stdint.h>

struct hvd_session;

/* One call's arguments. */
struct client_request {
    const char *what; /* the public function, for sentences */
    uint8_t kind;     /* HVI_KIND_* */
    const char *name; /* NULL: unnamed */
    const struct hvd_tensor *in, *out;
    int reduce_op;
    int root;
    const struct hvd_op_options *options;
    /* Worked out by client_check. */
    uint32_t element;
    uint64_t count, in_bytes, out_bytes;
    double prescale, postscale;
};

/* Checks everything that needs no session but its rank and size; fills the second half. */
int client_check(struct client_request *request, int rank, int size);

/* Checks, places, copies in, publishes. Does not need the lock. */
int client_submit(struct hvd_session *session, struct client_request *request,
                  struct hvd_op **op_p);

/* The functions below need the lock. */

/* Shared memory for `bytes` of ordinary memory: inline cells or a staging block. Gives up the lock
 * when a staging region must be made. Errors as client_staging_get. */
int client_submit_scratch(struct hvd_session *session, uint64_t bytes, const char *what,
                          struct client_operand *operand_p);
/* HVI_SUBMIT_OUTPUT for `op`. HVD_OK, HVD_ERR_RING_FULL or the session's end. */
int client_submit_output(struct hvd_session *session, const struct hvd_op *op,
                         const struct client_operand *operand);

#endif
