/* SPDX-License-Identifier: Apache-2.0
 * The right to do the next op of a name, or the next unnamed one of a lane, in an express slot:
 * client/express.c. */
#ifndef HVD_CLIENT_TICKET_H
#define HVD_CLIENT_TICKET_H

#include <stdbool.h>
#include <stdint.h>

struct hvd_op;

/* What an op says, apart from its name and its memory: if none of it changes, a ticket holds. */
struct client_said {
    uint32_t kind, dtype, reduce_op, ndim;
    int32_t root;
    uint32_t reserved;
    double prescale, postscale;
    uint64_t bytes;
    int64_t dims[8];
};

struct client_ticket {
    bool valid;
    uint32_t slot, turn;
    struct client_said said; /* of the op that is in flight or was the last */
};

/* The unnamed ops of one kind in one set: each is told from the others by its number alone, so a
 * ticket is for the very next one. Several may be in flight, but one in the slot at most. */
struct client_lane {
    const struct hvd_op *last; /* whose .said the ticket has; compared, never followed */
    struct hvd_op *standing; /* what it brought or what it waits for lies in the slot; NULL: none */
    struct client_ticket ticket;
};

#endif
