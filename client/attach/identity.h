/* SPDX-License-Identifier: Apache-2.0
 * Which rank of its job this process is: from the caller's arguments or from the launcher's environment.
 */
#ifndef HVD_CLIENT_IDENTITY_H
#define HVD_CLIENT_IDENTITY_H

#include "base/types.h"
#include "hvd/hvd.h"

struct client_identity {
    int rank, size, local_rank, local_size, cross_rank, cross_size;
    const char *origin; /* a constant: "arguments", "hvdrun", "torchrun", ... */
    char job[HVI_JOB_ID_MAX + 1];
};
#define CLIENT_IDENTITY_INIT                                                                       \
    {                                                                                              \
        -1, -1, -1, -1, -1, -1, "", ""                                                             \
    }

/* Reads the options and the environment. HVD_ERR_INVALID names the variable and its value when one
 * is half set or no number; HVD_ERR_BAD_RANK and HVD_ERR_BAD_SIZE when the numbers do not fit each
 * other. */
int client_identity_resolve(const struct hvd_options *options, struct client_identity *identity_p);
/* Ranks of the job on this node. */
int client_identity_seats(const struct client_identity *identity);

#endif
