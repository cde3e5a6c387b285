/* SPDX-License-Identifier: Apache-2.0
 * How hvdd starts a program (spawn.c). Any thread. */
#ifndef HVD_NODE_SPAWN_H
#define HVD_NODE_SPAWN_H

#include <stdbool.h>
#include <sys/types.h>

struct node_spawn_io {
    int in_fd;   /* standard input; -1: /dev/null */
    int out_fd;  /* standard output and errors; -1: ours */
    int link_fd; /* descriptor 3; -1: none */
    /* A session of its own, so that what it starts is found by that; else a process group of its own in our session. */
    bool session;
};

/* Starts a program with these descriptors and no other, and with our environment without `unset`, a
 * name or NULL. errno number. */
int node_spawn_start(const char *path, char *const argv[], const struct node_spawn_io *io,
                     const char *unset, pid_t *pid_p);

#endif
