/* SPDX-License-Identifier: Apache-2.0
 * What every probe shares. A probe is one program that puts one question to a GPU (docs/design/gpu-facts.md).
 *
 * Processes. The program that the user starts is the supervisor: it reads the arguments, never touches CUDA, and starts
 * itself again, as a new image since CUDA does not survive fork, in the probe's first role. A role may start further
 * roles the same way (probe_start). All roles write records into one pipe that the supervisor reads: what was measured
 * before a hang or a crash is kept. When the deadline passes the supervisor kills the roles' process group and reports
 * "hung" with the last step that was named. A role dies with the process that started it.
 *
 * Standard output: one line "probeN NAME VALUE UNIT" per figure, "fact NAME TEXT" and "note TEXT" beside them, and at the
 * end one JSON object on one line. Exit status: enum probe_exit.
 *
 * Functions that say "or fails" do not return then: they record the reason and end this role with PROBE_FAILED. */
#ifndef HVD_GPU_PROBE_H
#define HVD_GPU_PROBE_H
#include <stdint.h>
#include <sys/types.h>

enum probe_exit {
    PROBE_OK = 0,
    PROBE_FAILED = 1, /* failed, crashed or hung: the JSON object says which */
    PROBE_USAGE = 2,
    PROBE_REFUSED = 77, /* the question cannot be asked here: no driver, too old, ... */
};

struct probe_options {
    int device;          /* ordinal among the visible ones */
    int is_quick;        /* fewer repetitions, smaller sizes */
    int is_check;        /* only whether this machine can run probes */
    double deadline_s;   /* for all of it */
    const char *variant; /* one of probe.variants, "" if it has none */
};

struct probe_role {
    const char *name;
    void (*run)(const struct probe_options *o);
};

struct probe {
    int number;
    const char *title;
    const char *const *
        variants; /* NULL, or names, NULL last; figures of a variant x are named x_..., but those of "plain" */
    const struct probe_role
        *roles; /* the first is started by the supervisor; a row of NULLs is last */
};
extern const struct probe probe; /* each program defines its own */

/* --- records; any role may write them --- */
void probe_figure(double value, const char *unit, const char *name, ...)
    __attribute__((format(printf, 3, 4)));
void probe_answer(const char *text, const char *name, ...) __attribute__((format(printf, 2, 3)));
void probe_fact(const char *name, const char *text);
void probe_note(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Names what is being done, for the report of a hang. */
void probe_step(const char *format, ...) __attribute__((format(printf, 1, 2)));
_Noreturn void probe_refuse(const char *format, ...) __attribute__((format(printf, 1, 2)));
_Noreturn void probe_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* --- time and numbers --- */
double probe_now_us(void); /* CLOCK_MONOTONIC: comparable between processes */
void probe_sleep_us(double us);
/* Sorts values; p50 and p99 of them as NAME_p50 and NAME_p99. */
void probe_percentiles(double *values, int count, const char *unit, const char *name);
double probe_median(double *values, int count);
/* "VmRSS" and its like from the status of a process; KiB, -1 if it cannot be read. */
double probe_status_kib(pid_t pid, const char *field);

/* --- other processes --- */
#define PROBE_WAIT_S                                                                               \
    20.0 /* for another's message, for a stream; NCCL alone may take seconds to load */
#define PROBE_PEER_FD 4 /* in a role that was started by another: the way back */

struct probe_msg {
    char verb[16];
    uint64_t a[8];
    unsigned char bytes[256];
};

struct probe_peer {
    pid_t pid;
    int fd;
};

/* Starts a role, or fails. Its environment is this process's; set variables before. */
struct probe_peer probe_start(const char *role);
/* Starts any program with --fd PROBE_PEER_FD appended to argv (NULL-terminated, room for three more), or fails. */
struct probe_peer probe_start_program(char *argv[], int count);
/* One message, with a descriptor if passed >= 0 (which stays open here), or fails. */
void probe_say(int fd, const struct probe_msg *m, int passed);
void probe_say_verb(int fd, const char *verb);
/* 1: a message; *passed_p, if asked for, is its descriptor or -1. 0: the other side is gone. -1: nothing in wait_s. */
int probe_listen(int fd, double wait_s, struct probe_msg *m_p, int *passed_p);
/* The next message must have this verb and come within PROBE_WAIT_S, or fails. */
void probe_expect(int fd, const char *verb, struct probe_msg *m_p, int *passed_p);
/* Waits for the process to end and gives waitpid's status, or fails; closes the socket. */
int probe_end(struct probe_peer *peer, double wait_s);
/* A page of zeroes that can be passed and mapped elsewhere, or fails. */
int probe_shared_page(size_t bytes);
void *probe_map_page(int fd, size_t bytes);

/* --- MPS, for the supervisor (probe_mps.c) --- */
/* Points this process and all it starts to a place where no MPS server is. */
void probe_mps_avoid(void);
/* Starts a private control daemon and points this process to it: NULL, or why not. */
const char *probe_mps_start(void);
/* Ends what probe_mps_start made, by force after a few seconds. Harmless if nothing was started. */
void probe_mps_stop(void);

/* --- between probe.c and probe_role.c --- */
#define PROBE_REPORT_FD 3 /* in every role */
void probe_role_begin(void);
#endif
