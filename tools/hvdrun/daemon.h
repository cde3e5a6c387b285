/* SPDX-License-Identifier: Apache-2.0
 * hvdrun's private hvdd: a daemon in a fresh directory of mode 0700 that lives as long as hvdrun.
 * Main thread. */
#ifndef HVI_TOOLS_HVDRUN_DAEMON_H
#define HVI_TOOLS_HVDRUN_DAEMON_H

#include "hvd/hvd_admin.h"
#include "tools/hvdrun/options.h"
#include "tools/hvdrun/procs.h"

struct run_daemon {
    char dir[HVD_ADMIN_DIR_MAX + 1]; /* "" until it exists */
    struct run_proc proc;
    int parent_fd; /* hvdd exits when this is closed, however hvdrun ends; see run_daemon_tell_lost */
    int stderr_fd; /* what it logs; the caller reads it once started, and may take it (set to -1) */
};

/* A hvdd that meets those of the job's other hosts. */
struct run_mesh {
    const char *listen, *join; /* ADDRESS:PORT, one of the two; NULL */
    const char *key;           /* what its key file says; NULL: no mesh */
};

struct run_daemon_plan {
    const struct run_options *options;
    struct run_mesh mesh;
    const struct run_heritage *heritage;
    struct run_guard *guard;
    int signal_fd; /* readable: stop waiting */
};

/* Starts it and waits until it takes attaches, at most options->start_timeout_ns, or until signal_fd
 * is readable. HVI_OK; otherwise a sentence, with what hvdd had to say, in text_p, and nothing is
 * left behind. */
int run_daemon_start(const struct run_daemon_plan *plan, struct run_daemon *daemon_p, char *text_p,
                     size_t text_size);
/* On which port it listens for the others' hvdds. 0: it does not. */
uint32_t run_daemon_mesh_port(const struct run_daemon *daemon);
/* Of another host no rank can attach any more: the sentence `how`. hvdd tells those that wait for it. */
void run_daemon_tell_lost(const struct run_daemon *daemon, const char *how);
/* Ends it (SIGTERM, then SIGKILL after 7 s) and removes the directory. Harmless on one that never
 * started. */
void run_daemon_stop(struct run_daemon *daemon);
/* Removes the directory and the sockets in it, and ends an MPS that a hvdd which was killed has left. */
void run_daemon_remove_dir(const char *dir);

#endif
