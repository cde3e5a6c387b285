/* SPDX-License-Identifier: Apache-2.0
 * Starting a private hvdd for this user. */
#ifndef HVD_CLIENT_AUTOSTART_H
#define HVD_CLIENT_AUTOSTART_H

#include <stdbool.h>
#include <stdint.h>

/* hvdd's --rendezvous and --mesh-key. */
struct client_mesh {
    char *place, *key;
};

/* Makes sure that an hvdd listens in `directory`, which exists and is ours. Processes that do this
 * at once agree by a lock: one starts it, the others find it. *started_p: it was this call. `mesh` NULL: it serves jobs
 * of this node alone.
 * HVD_ERR_NO_DAEMON (no program, or it ended; the text says where its log is),
 * HVD_ERR_ATTACH_TIMEOUT, HVD_ERR_LIMIT, with the last error set. */
int client_autostart(const char *directory, const struct client_mesh *mesh, uint64_t deadline_ns,
                     bool *started_p);

#endif
