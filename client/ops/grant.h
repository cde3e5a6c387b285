/* SPDX-License-Identifier: Apache-2.0
 * A slot grant: the right to do the next op of a name, or the next unnamed one of a kind and set, in a
 * slot (client/slots). A completion brings it, as .grant and .text_turn. */
#ifndef HVD_CLIENT_GRANT_H
#define HVD_CLIENT_GRANT_H

#include "shm/agreement.h"

#include <stdbool.h>
#include <stdint.h>

struct hvd_op;

struct client_grant {
    bool valid;
    uint32_t slot, turn;
    struct hvi_agreement said; /* of the op that is in flight or was the last */
};

/* The unnamed slot: that of the unnamed ops of one kind in one set. Each is told from the others by
 * its number alone, so a grant is for the very next one. Several may be in flight, but one in the
 * slot at most. */
struct client_unnamed_slot {
    const struct hvd_op *last; /* whose .said the grant has; compared, never followed */
    struct hvd_op *standing; /* what it brought or what it waits for lies in the slot; NULL: none */
    struct client_grant grant;
};

#endif
