/* SPDX-License-Identifier: Apache-2.0
 * One op of a call, until it is submitted. */
#ifndef HVD_CLIENT_REQUEST_H
#define HVD_CLIENT_REQUEST_H

#include "base/types.h"
#include "hvd/hvd.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct client_name;
struct client_set;

/* Its arguments, what follows from them, and how far its submission has come. */
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
    void *stream; /* of options; NULL: none */
    uint32_t element;
    uint64_t count, in_bytes, out_bytes;
    int members; /* of the set */
    /* Worked out on the way. */
    struct client_name *claimed;
    struct hvd_op *op;
    bool copy_in;
    uint64_t copied_ns; /* how long that took; 0: not timed */
};

/* A request of the public function `what`, for its caller to complete; NULL for what it has not. */
static inline struct client_request client_request_of(const char *what, uint8_t kind,
                                                      const char *name, const struct hvd_tensor *in,
                                                      const struct hvd_tensor *out,
                                                      const struct hvd_op_options *options)
{
    return (struct client_request){.what = what,
                                   .kind = kind,
                                   .name = name,
                                   .in = in,
                                   .out = out,
                                   .root = -1,
                                   .options = options};
}

/* "hvd_allreduce('w1')": how the sentences about a request begin. */
#define CLIENT_LABEL_MAX (HVD_NAME_MAX + 128)
void client_request_label(const struct client_request *request, char *text_p, size_t text_size);

/* Whether the data of the input is read on this rank. */
static inline bool client_request_reads_input(const struct client_request *request, int rank)
{
    return request->kind != HVI_KIND_BROADCAST || request->root == rank;
}

/* What request->op keeps of the arguments for its end. Needs the session's lock. */
void client_request_remember(struct client_request *request);

#endif
