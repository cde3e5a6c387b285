/* SPDX-License-Identifier: Apache-2.0
 * The job table: jobs, their generations and the rank slots. Plain memory, no descriptors, no event
 * loop: the attach decision and the tests work on it alone. Main thread. State pictures: job.c. */
#ifndef HVD_NODE_JOB_H
#define HVD_NODE_JOB_H

#include "base/digest.h"
#include "base/types.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <uthash.h>

enum node_slot_state {
    NODE_SLOT_ABSENT,
    NODE_SLOT_ATTACHING, /* handed to the engine, which has not answered yet */
    NODE_SLOT_ATTACHED,
    NODE_SLOT_LEFT,
    NODE_SLOT_LOST,
    NODE_SLOT_ENDED, /* broke the protocol */
    NODE_SLOT_STATES
};

enum node_job_state {
    NODE_JOB_FORMING, /* somebody has not come yet */
    NODE_JOB_RUNNING, /* everybody of this node is attached */
    NODE_JOB_CLOSING, /* somebody has left, nobody is lost */
    NODE_JOB_FAILED,  /* somebody is lost */
    NODE_JOB_ENDED,   /* the engine is gone */
    NODE_JOB_STATES
};

struct node_slot {
    int32_t rank; /* -1: not known before it comes */
    enum node_slot_state state;
    pid_t pid;     /* of the last that attached; 0 before, and where hvdd does not see it */
    pid_t own_pid; /* as it says; 0: not told */
    uint64_t session;
};

struct node_engine;

/* One engine process and one set of slots. */
struct node_generation {
    struct node_job *job;
    struct node_generation *prev, *next; /* of the job, oldest first */
    uint64_t number, started_ns;
    int32_t size;  /* ranks of the job */
    int32_t seats; /* of them on this node: all, or those whose local rank is below */
    enum node_job_state state;
    uint64_t stalls_paid_ns, stalls_lost; /* gate.c: events of stalls, and how many were not told */
    bool stopping; /* takes nobody any more: told to stop, or its link is broken */
    int32_t counts[NODE_SLOT_STATES];
    struct node_slot *slots;    /* [seats] */
    struct node_engine *engine; /* not owned */
};

/* What a job is known by: an id of one user's says nothing about the same id of another's. Unused bytes are zero. */
struct node_job_name {
    uid_t uid;
    char id[HVI_JOB_ID_MAX + 1];
};

struct node_job {
    struct node_job_name name;
    char key_digest[HVI_DIGEST_TEXT]; /* "": no key */
    uint64_t last_number;
    struct node_generation
        *generations; /* oldest first; never NULL while the job is in the table */
    UT_hash_handle hh;
};

struct node_jobs {
    struct node_job *by_name;
    uint32_t job_count, generation_count;
    uint32_t session_count; /* attaching and attached slots */
};

void node_jobs_init(struct node_jobs *jobs);
/* Frees whatever is left. */
void node_jobs_fini(struct node_jobs *jobs);

struct node_job *node_job_find(const struct node_jobs *jobs, uid_t uid, const char *id);
/* The job of whichever user has this id, and how many users have one in *users_p; NULL: none or several. */
struct node_job *node_job_find_only(const struct node_jobs *jobs, const char *id,
                                    uint32_t *users_p);
/* The one that attaches go to now. */
struct node_generation *node_job_newest(const struct node_job *job);
/* Attaching and attached slots of all jobs of a user. */
uint32_t node_jobs_sessions_of(const struct node_jobs *jobs, uid_t uid);
/* Generations (of `uid`, NULL: of all users) that somebody is in or may still come to: without those whose ranks have all gone and whose engine is
 * about to end. */
uint32_t node_jobs_under_way(const struct node_jobs *jobs, const uid_t *uid);

/* Adds a generation, and its job if there is none. `seats` are at most `size`, and HVI_RANKS_MAX. `number` 0:
 * the next. HVI_OK, HVI_ERR_NO_MEMORY,
 * HVI_ERR_INVALID (the number exists). The uid and key of a job that exists already stay what they
 * are. */
int node_generation_new(struct node_jobs *jobs, const char *id, uid_t uid, const char *key_digest,
                        int32_t size, int32_t seats, uint64_t number,
                        struct node_generation **generation_p);
/* Ends it (`cause` for the log), takes it out of the table and frees it; the job goes with its last
 * generation. */
void node_generation_end(struct node_jobs *jobs, struct node_generation *generation,
                         const char *cause);
/* The job has ranks on other nodes: a seat's rank is known when it comes. */
static inline bool node_generation_spans(const struct node_generation *generation)
{
    return generation->seats < generation->size;
}
/* The slot of a rank; NULL: it has none here, or none yet. */
struct node_slot *node_generation_slot(const struct node_generation *generation, int32_t rank);
/* A rank is about to come to an absent slot. */
void node_slot_claim(struct node_generation *generation, int32_t seat, int32_t rank, pid_t own_pid);
/* Attaching and attached slots. */
int32_t node_generation_present(const struct node_generation *generation);
/* True when somebody left, or somebody is lost or ended. */
bool node_generation_lost(const struct node_generation *generation);
bool node_generation_left(const struct node_generation *generation);
/* True while ranks that are still to come begin with this one: a process that has left it lives, and may be in
 * the next. */
bool node_generation_awaited(const struct node_generation *generation);

/* Moves a rank's slot, recounts, and moves the generation's state with it. False, with nothing changed,
 * for an edge or a slot that does not exist: the caller says whose fault that is. `pid` and `session` are
 * remembered with ATTACHING and ATTACHED. */
bool node_slot_set(struct node_jobs *jobs, struct node_generation *generation, int32_t rank,
                   enum node_slot_state state, pid_t pid, uint64_t session, const char *cause);

bool node_slot_edge(enum node_slot_state from, enum node_slot_state to);
bool node_job_edge(enum node_job_state from, enum node_job_state to);
/* The only writer of generation->state; logs `old -> new: cause`. An edge that does not exist is an
 * assertion. */
void node_job_set_state(struct node_generation *generation, enum node_job_state state,
                        const char *cause);

const char *node_slot_state_text(enum node_slot_state state);
/* ABSENT..ENDED, or -1. */
int node_slot_state_parse(const char *text);
const char *node_job_state_text(enum node_job_state state);

#endif
