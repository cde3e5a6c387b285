/* SPDX-License-Identifier: Apache-2.0
 * A slot belongs to one rank of one generation and is filled once:
 *
 *   absent --> attaching --> attached --> left            attaching goes back to absent when the
 * engine could not ^          |    \         |------> lost            take the client over; it goes
 * straight to left, lost or
 *      +----------+     \        +------> ended           ended when the client was gone before the
 * engine had told
 *                        +--> left, lost, ended           us that it was there.
 *
 * A rank whose process has ended before it came stays absent: only its engine knows that it never will, so that those that
 * come later come to that engine, too, and are told.
 *
 * The state of a generation follows from its slots and never goes back:
 *
 *   forming --> running --> closing --> failed --> ended
 *
 * Any state may be skipped; "ended" means that the engine is gone. A generation that has lost
 * somebody stays in the table until its engine has exited, because its other ranks are still
 * attached to it. */
#include "daemon/node/job.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/fate.h"
#include "base/log.h"
#include "base/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

static const char *const slot_texts[NODE_SLOT_STATES] = {"absent", "attaching", "attached",
                                                         "left",   "lost",      "ended"};
static const char *const job_texts[NODE_JOB_STATES] = {"forming", "running", "closing", "failed",
                                                       "ended"};

const char *node_slot_state_text(enum node_slot_state state)
{
    return slot_texts[state];
}

int node_slot_state_parse(const char *text)
{
    for (int i = 0; i < NODE_SLOT_STATES; i++)
        if (strcmp(text, slot_texts[i]) == 0)
            return i;
    return -1;
}

const char *node_job_state_text(enum node_job_state state)
{
    return job_texts[state];
}

bool node_slot_edge(enum node_slot_state from, enum node_slot_state to)
{
#define BIT(state) (1u << NODE_SLOT_##state)
    static const unsigned next[NODE_SLOT_STATES] = {
        [NODE_SLOT_ABSENT] = BIT(ATTACHING),
        [NODE_SLOT_ATTACHING] = BIT(ABSENT) | BIT(ATTACHED) | BIT(LEFT) | BIT(LOST) | BIT(ENDED),
        [NODE_SLOT_ATTACHED] = BIT(LEFT) | BIT(LOST) | BIT(ENDED),
    };
#undef BIT
    return (next[from] >> to & 1u) != 0;
}

bool node_job_edge(enum node_job_state from, enum node_job_state to)
{
    return to > from && to < NODE_JOB_STATES;
}

void node_jobs_init(struct node_jobs *jobs)
{
    memset(jobs, 0, sizeof(*jobs));
}

void node_jobs_fini(struct node_jobs *jobs)
{
    struct node_job *job, *spare;
    struct node_generation *generation, *other;

    HASH_ITER(hh, jobs->by_name, job, spare)
    {
        /* The last round frees the job as well. */
        DL_FOREACH_SAFE(job->generations, generation, other)
        {
            node_generation_end(jobs, generation, "hvdd exits");
        }
    }
}

static void fill_name(struct node_job_name *name_p, uid_t uid, const char *id)
{
    memset(name_p, 0, sizeof(*name_p));
    name_p->uid = uid;
    snprintf(name_p->id, sizeof(name_p->id), "%s", id);
}

struct node_job *node_job_find(const struct node_jobs *jobs, uid_t uid, const char *id)
{
    struct node_job_name name;
    struct node_job *job;

    fill_name(&name, uid, id);
    HASH_FIND(hh, jobs->by_name, &name, sizeof(name), job);
    return job;
}

struct node_job *node_job_find_only(const struct node_jobs *jobs, const char *id, uint32_t *users_p)
{
    struct node_job *found = NULL;

    *users_p = 0;
    for (struct node_job *job = jobs->by_name; job != NULL; job = job->hh.next) {
        if (strcmp(job->name.id, id) != 0)
            continue;
        found = job;
        ++*users_p;
    }
    return *users_p == 1 ? found : NULL;
}

struct node_generation *node_job_newest(const struct node_job *job)
{
    return job->generations->prev; /* utlist: the head's prev is the tail */
}

int32_t node_generation_present(const struct node_generation *generation)
{
    return generation->counts[NODE_SLOT_ATTACHING] + generation->counts[NODE_SLOT_ATTACHED];
}

bool node_generation_lost(const struct node_generation *generation)
{
    return generation->counts[NODE_SLOT_LOST] + generation->counts[NODE_SLOT_ENDED] > 0;
}

bool node_generation_left(const struct node_generation *generation)
{
    return generation->counts[NODE_SLOT_LEFT] > 0;
}

bool node_generation_awaited(const struct node_generation *generation)
{
    if (generation->counts[NODE_SLOT_ABSENT] == 0 || node_generation_lost(generation))
        return false;
    for (int32_t seat = 0; seat < generation->seats; seat++) {
        const struct node_slot *slot = &generation->slots[seat];
        if (slot->state == NODE_SLOT_LEFT && hvi_process_lives(slot->pid))
            return true;
    }
    return false;
}

uint32_t node_jobs_sessions_of(const struct node_jobs *jobs, uid_t uid)
{
    uint32_t sessions = 0;
    const struct node_generation *generation;

    for (const struct node_job *job = jobs->by_name; job != NULL; job = job->hh.next) {
        if (job->name.uid != uid)
            continue;
        DL_FOREACH(job->generations, generation)
        {
            sessions += (uint32_t)node_generation_present(generation);
        }
    }
    return sessions;
}

uint32_t node_jobs_under_way(const struct node_jobs *jobs, const uid_t *uid)
{
    uint32_t under_way = 0;
    const struct node_generation *generation;

    for (const struct node_job *job = jobs->by_name; job != NULL; job = job->hh.next) {
        if (uid != NULL && job->name.uid != *uid)
            continue;
        DL_FOREACH(job->generations, generation)
        {
            under_way +=
                node_generation_present(generation) > 0 || generation->counts[NODE_SLOT_ABSENT] > 0;
        }
    }
    return under_way;
}

static struct node_job *job_new(struct node_jobs *jobs, const char *id, uid_t uid,
                                const char *key_digest)
{
    struct node_job *job = calloc(1, sizeof(*job));

    if (job == NULL)
        return NULL;
    fill_name(&job->name, uid, id);
    snprintf(job->key_digest, sizeof(job->key_digest), "%s", key_digest);
    HASH_ADD(hh, jobs->by_name, name, sizeof(job->name), job);
    jobs->job_count++;
    return job;
}

static void job_free(struct node_jobs *jobs, struct node_job *job)
{
    HASH_DEL(jobs->by_name, job);
    jobs->job_count--;
    free(job);
}

static int by_number(const struct node_generation *a, const struct node_generation *b)
{
    return (a->number > b->number) - (a->number < b->number);
}

static bool has_number(const struct node_job *job, uint64_t number)
{
    const struct node_generation *generation;
    DL_FOREACH(job->generations, generation)
    {
        if (generation->number == number)
            return true;
    }
    return false;
}

int node_generation_new(struct node_jobs *jobs, const char *id, uid_t uid, const char *key_digest,
                        int32_t size, int32_t seats, uint64_t number,
                        struct node_generation **generation_p)
{
    struct node_job *job = node_job_find(jobs, uid, id);
    struct node_generation *generation;

    HVI_ASSERT(seats > 0 && seats <= size && seats <= HVI_RANKS_MAX);
    if (job != NULL && number != 0 && has_number(job, number))
        return HVI_ERR_INVALID;
    generation = calloc(1, sizeof(*generation));
    if (generation == NULL)
        return HVI_ERR_NO_MEMORY;
    generation->slots = calloc((size_t)seats, sizeof(*generation->slots));
    if (generation->slots == NULL)
        goto no_slots;
    if (job == NULL)
        job = job_new(jobs, id, uid, key_digest);
    if (job == NULL)
        goto no_job;
    generation->job = job;
    generation->number = number != 0 ? number : job->last_number + 1;
    generation->size = generation->seats = size;
    generation->state = NODE_JOB_FORMING;
    generation->counts[NODE_SLOT_ABSENT] = seats;
    generation->seats = seats;
    for (int32_t seat = 0; seat < seats; seat++)
        generation->slots[seat].rank = seats < size ? -1 : seat;
    generation->started_ns = hvi_clock_ns();
    DL_INSERT_INORDER(job->generations, generation, by_number);
    if (generation->number > job->last_number)
        job->last_number = generation->number;
    jobs->generation_count++;
    *generation_p = generation;
    return HVI_OK;
no_job:
    free(generation->slots);
no_slots:
    free(generation);
    return HVI_ERR_NO_MEMORY;
}

void node_generation_end(struct node_jobs *jobs, struct node_generation *generation,
                         const char *cause)
{
    struct node_job *job = generation->job;

    node_job_set_state(generation, NODE_JOB_ENDED, cause);
    jobs->session_count -= (uint32_t)node_generation_present(generation);
    jobs->generation_count--;
    DL_DELETE(job->generations, generation);
    if (job->generations == NULL)
        job_free(jobs, job);
    free(generation->slots);
    free(generation);
}

/* What the slots say. */
static enum node_job_state derive_state(const struct node_generation *generation)
{
    if (node_generation_lost(generation))
        return NODE_JOB_FAILED;
    if (node_generation_left(generation))
        return NODE_JOB_CLOSING;
    if (generation->counts[NODE_SLOT_ATTACHED] ==
        (generation->seats != 0 ? generation->seats : generation->size))
        return NODE_JOB_RUNNING;
    return NODE_JOB_FORMING;
}

struct node_slot *node_generation_slot(const struct node_generation *generation, int32_t rank)
{
    if (!node_generation_spans(generation))
        return rank >= 0 && rank < generation->size ? &generation->slots[rank] : NULL;
    for (int32_t seat = 0; rank >= 0 && seat < generation->seats; seat++)
        if (generation->slots[seat].rank == rank)
            return &generation->slots[seat];
    return NULL;
}

void node_slot_claim(struct node_generation *generation, int32_t seat, int32_t rank, pid_t own_pid)
{
    HVI_ASSERT(generation->slots[seat].state == NODE_SLOT_ABSENT);
    generation->slots[seat].rank = rank;
    generation->slots[seat].own_pid = own_pid;
}

bool node_slot_set(struct node_jobs *jobs, struct node_generation *generation, int32_t rank,
                   enum node_slot_state state, pid_t pid, uint64_t session, const char *cause)
{
    struct node_slot *slot = node_generation_slot(generation, rank);
    int32_t before = node_generation_present(generation);
    enum node_job_state derived;

    if (slot == NULL || !node_slot_edge(slot->state, state))
        return false;
    generation->counts[slot->state]--;
    generation->counts[state]++;
    HVI_LOG(HVI_LOG_DEBUG, "job", "slot-state", cause,
            "job=%s generation=%llu rank=%d pid=%d %s -> %s", generation->job->name.id,
            (unsigned long long)generation->number, rank, (int)pid, slot_texts[slot->state],
            slot_texts[state]);
    slot->state = state;
    if (state == NODE_SLOT_ATTACHING || state == NODE_SLOT_ATTACHED) {
        slot->pid = pid;
        slot->session = session;
    }
    if (state == NODE_SLOT_ABSENT && node_generation_spans(generation))
        slot->rank = -1;
    jobs->session_count += (uint32_t)(node_generation_present(generation) - before);
    derived = derive_state(generation);
    if (derived != generation->state)
        node_job_set_state(generation, derived, cause);
    return true;
}

void node_job_set_state(struct node_generation *generation, enum node_job_state state,
                        const char *cause)
{
    HVI_ASSERT(node_job_edge(generation->state, state));
    HVI_LOG_OF(generation->job->name.uid, HVI_LOG_INFO, "job", "job-state", cause,
               "job=%s generation=%llu uid=%u size=%d seats=%d %s -> %s", generation->job->name.id,
               (unsigned long long)generation->number, (unsigned)generation->job->name.uid,
               generation->size, generation->seats, job_texts[generation->state], job_texts[state]);
    generation->state = state;
}
