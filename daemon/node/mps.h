/* SPDX-License-Identifier: Apache-2.0
 * An MPS control daemon of hvdd's own, where gpu-mps asks for it. Main thread; nothing blocks but node_mps_open, and
 * node_mps_close: for 0.1 s, or 0.2 s where the daemon is just being told to quit. */
#ifndef HVD_NODE_MPS_H
#define HVD_NODE_MPS_H

#include "daemon/node/config.h"
#include "daemon/node/rundir.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <systemd/sd-event.h>

struct node_mps {
    sd_event *event;
    const struct node_config *config;
    const struct node_rundir *rundir;
    bool private_mode;
    void (*ended)(void *user); /* after node_mps_stop, when it has ended */
    void (*lost)(void *user);  /* it has ended by itself, and so has all that was in it */
    void *user;
    bool on; /* it runs, or is about to be started again */
    char program[HVI_WIRE_PATH * 2];
    char why[HVI_WIRE_PATH *
             3];    /* there is none, although it is wanted; "": it is not wanted, or on */
    pid_t pid;      /* 0: it does not run */
    int pidfd;      /* likewise -1 */
    bool child;     /* false: an earlier hvdd has started it */
    bool ending;    /* it has been told to quit */
    pid_t quitting; /* the process that tells it; 0: none */
    bool named;     /* CUDA's variables name its folders */
    char *pipes_before, *logs_before; /* what they were until then; NULL: unset */
    uint64_t started_ns, backoff_ns;
    sd_event_source *exit, *again, *late, *quit;
};

/* Starts it where config->gpu_mps asks for it, and waits until it listens; one that does not within 3 s is ended. Or takes over
 * that of a hvdd that was killed here, even if nobody asks for one. hvdd's environment names its folder as long as it is on, so
 * workers are in it. Logs why there is none. The members up to .user are set; what they point to lives as long. */
void node_mps_open(struct node_mps *mps);
/* Tells it to quit. False: there is none any more; else mps->ended is called. */
bool node_mps_stop(struct node_mps *mps);
/* Kills what is left of it, removes its folders, and gives hvdd its own environment back. Harmless twice, and on one that was never opened. */
void node_mps_close(struct node_mps *mps);
/* "pid 7, in /run/.../mps"; "none: <why>"; "": nobody wants one. */
void node_mps_describe(const struct node_mps *mps, char *text_p, size_t text_size);

#endif
