/* SPDX-License-Identifier: Apache-2.0
 * A whole hvdrun in a process of its own, started with a command line. Its agents and relays are the test's own program,
 * its hvdd a socket that listens and says nothing. A job that takes 20 s fails the test. */
#ifndef HVT_JOB_H
#define HVT_JOB_H

#include <stdbool.h>
#include <sys/types.h>

struct hvt_job {
    char root[64]; /* a folder for the test; has the socket of a hvdd */
    int listener;
    pid_t pid;
    int in_fd, out_fd, err_fd;
    char out[8192], err[8192]; /* what was printed so far */
    int code;                  /* of the end; -1: a signal */
};

/* For agents and relays: their silence time until they are told another, in ms. */
#define HVT_JOB_SILENCE "HVT_JOB_SILENCE_MS"

/* What main() has to do first: true if this process was started as an agent or relay, with its exit code. */
bool hvt_job_serves(int argc, char **argv, int *code_p);

void hvt_job_setup(struct hvt_job *job);
void hvt_job_teardown(struct hvt_job *job);
/* Writes an executable script into the folder. */
void hvt_job_write(struct hvt_job *job, const char *name, const char *content);
/* "hvdrun" and these words, in which @ stands for the folder; then `script` for /bin/sh. */
void hvt_job_start(struct hvt_job *job, const char *words, const char *script);
/* Until hvdrun's stderr (or stdout) has this text. */
void hvt_job_await(struct hvt_job *job, const char *text);
/* What its rank 0 reads. */
void hvt_job_type(struct hvt_job *job, const char *text);
/* Waits for the end. Its exit code. */
int hvt_job_end(struct hvt_job *job);
/* Start and end, with nothing to read. */
int hvt_job_run(struct hvt_job *job, const char *words, const char *script);

/* Fails with everything that was printed. */
void hvt_job_expect(const struct hvt_job *job, const char *printed, const char *part);

#endif
