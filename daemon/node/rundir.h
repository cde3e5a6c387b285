/* SPDX-License-Identifier: Apache-2.0
 * The runtime directory: made safely, locked for one hvdd. Main thread; errors come back as a
 * sentence. */
#ifndef HVD_NODE_RUNDIR_H
#define HVD_NODE_RUNDIR_H

#include "proto/wire.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct node_rundir {
    char path[HVI_WIRE_PATH];
    int lock_fd;  /* -1: not locked */
    bool created; /* by us: removed again at the end */
    bool left;    /* by a hvdd that was killed: one that ends removes its lock file */
    bool stored;  /* the hvdd before us had given attach.sock to systemd's fd store */
};
#define NODE_RUNDIR_INIT                                                                           \
    {                                                                                              \
        .lock_fd = -1                                                                              \
    }

/* Where hvdd's sockets are when nobody says otherwise; the clients look in the same places. HVI_OK
 * or HVI_ERR_INVALID (does not fit). */
int node_rundir_default(uid_t uid, char *path_p, size_t path_size);
/* Whether a hvdd serves its own user alone, by its option private: -1 (auto), 0 or 1. */
bool node_rundir_is_private(int64_t option, uid_t uid);
/* Makes the directory if it is missing (only its last component) and checks it: a directory and no
 * link, ours, not writable by others (private_mode: not readable either). Then locks `hvdd.lock` in
 * it. HVI_OK; HVI_ERR_REFUSED with a sentence (also when another hvdd holds the lock). */
int node_rundir_open(const char *path, bool private_mode, struct node_rundir *rundir_p,
                     char *text_p, size_t text_size);
/* Remembers in the lock file that attach.sock is in the fd store, so that the next hvdd can tell it
 * from a socket of a socket unit. */
void node_rundir_mark_stored(const struct node_rundir *rundir);
/* Removes the lock file, and the directory if we made it. Harmless twice. */
void node_rundir_close(struct node_rundir *rundir);

/* "DIR/name"; false when that does not fit sun_path. */
bool node_rundir_socket_path(const struct node_rundir *rundir, const char *name, char *path_p,
                             size_t path_size);

#endif
