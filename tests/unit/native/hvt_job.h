/* SPDX-License-Identifier: Apache-2.0
 * A real hvdd and a job in it, of which this process is rank 0 with the kernels of python/native, and the other ranks are
 * processes of this program (hvt_job_peer). Every wait has a deadline; a failure ends the test. */
#ifndef HVT_JOB_H
#define HVT_JOB_H

#include "hvd/hvd.h"

#include <stdbool.h>
#include <sys/types.h>

#define HVT_PEERS_MAX 3

struct hvt_job {
    char folder[64];
    pid_t hvdd;
    int size;
    struct hvd_session *session;
    bool keeps;                 /* the last session was closed while somebody worked on its ops */
    pid_t peers[HVT_PEERS_MAX]; /* of rank 1 on; 0: gone */
};

/* Starts hvdd. */
void hvt_job_start(struct hvt_job *job);
/* Opens a job of `size` ranks; the peers do `script` with `number`. The kernels have the session. */
void hvt_job_open(struct hvt_job *job, int size, const char *script, int number);
/* As hvd.shutdown() does, if there is a session: whether nobody works on ops that were in flight. Otherwise their memory is
 * kept. */
bool hvt_job_close(struct hvt_job *job);
/* Ends a peer by a signal. */
void hvt_job_kill(struct hvt_job *job, int rank);
/* Ends the job's engine by a signal. */
void hvt_job_kill_engine(struct hvt_job *job);
/* Waits for the peers: each that was not killed ends with 0. */
void hvt_job_join(struct hvt_job *job);
/* Ends hvdd, which must end with 0 and have logged no error. */
void hvt_job_stop(struct hvt_job *job);

/* What a peer may do. */
struct hvt_script {
    const char *name;
    void (*run)(struct hvd_session *session, int number); /* closes nothing; exits not */
};
/* For main: does a peer's part and exits if this is a peer. */
void hvt_job_peer(int argc, char **argv, const struct hvt_script *scripts, int count);

#endif
