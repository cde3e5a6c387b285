/* SPDX-License-Identifier: Apache-2.0
 * A job is known by its owner and id. It has the nodes that wait, and the last epoch:
 *
 *   register --> waiting --all ranks 0..size-1 are there--> met: everybody gets the roster
 *                  |  ^                                       |
 *                  |  +--one with another number-----------------+
 *                  +--withdrawn, or replaced by a later registration of the same node
 *                  +--they contradict each other, time is over, one is lost, or withdrawn with a reason: everybody
 *                     that waits gets a sentence
 *
 * A node may register a moment after another one has gone with a reason, although its ranks were there before: messages of different
 * nodes come in any order. So for LOSS_NS the first registration of a node that has heard nothing of it is answered
 * with that reason, too. A later engine of the node that has gone ends that: it begins a new attempt. A node that loses a
 * rank before all of its ranks are there says so without having registered, and the others are told in the same way.
 *
 * When the process of a rank has ended, a job that has not met never will: that is kept for good, and whoever waits without
 * a node that has the rank is told. hvdd says it only where hvdrun has started it for this one job.
 *
 * A node that waits may go missing: nothing is heard of it, or its hvdd stands still. The job does not meet then, until it is back.
 * It is lost when that takes too long while others wait with it; one that waits alone hurts nobody. A node that begins anew is
 * missing until it has registered again: what it wanted to say of its engine's end may have gone with its gate.
 *
 * Whoever has met is remembered until it withdraws, because its answer may be lost on the way: the
 * same registration again gets the same roster. An epoch's number is never used again: it counts up
 * from a random one. */
#include "daemon/gate/rendezvous.h"

#include "daemon/gate/agree.h"

#include "base/clock.h"
#include "base/status.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#define LOSS_NS    (2 * HVI_NS_SEC)
#define EPOCH_BITS 48 /* of the first epoch's number, so that counting does not overflow */

/* A node that waits, or one that has met. */
struct member {
    struct member *prev, *next;
    struct gate_registration said;
    uint64_t since_ns;
    bool is_there;  /* it is missing for something else than its connection */
    bool anew;      /* it is missing: its node has begun anew, and has not registered it again */
    uint32_t place; /* in the roster */
};

/* Why those that waited wait no longer. */
struct loss {
    uint64_t node, registration; /* that has gone */
    uint64_t until_ns;
    int status;
    char text[HVI_TEXT_MAX + 1];
    size_t count;                       /* of .heard */
    uint64_t heard[HVI_WIRE_NODES_MAX]; /* nodes that know it */
};

/* The first rank whose process has ended: the nodes cannot meet any more. */
struct ended {
    int32_t rank;
    char text[HVI_TEXT_MAX + 1];
};

struct gate_rendezvous_job {
    struct gate_rendezvous_job *prev, *next;
    char id[HVI_JOB_ID_MAX + 1];
    uint32_t uid;
    struct member *waiting; /* by lowest rank */
    struct member *met;
    struct loss *loss;               /* NULL: none, or long ago */
    struct ended *ended;             /* NULL: no rank that is known */
    bool told;                       /* those that have met: why one of them has gone */
    struct hvi_engine_roster roster; /* of those that have met; the rows' ranks are theirs */
};

/* ---- members ---- */

static int32_t lowest(const struct gate_registration *said)
{
    int32_t rank = said->engine.ranks[0];

    for (size_t i = 1; i < said->engine.rank_count; i++)
        rank = said->engine.ranks[i] < rank ? said->engine.ranks[i] : rank;
    return rank;
}

static int by_lowest(const struct member *a, const struct member *b)
{
    int32_t first = lowest(&a->said), second = lowest(&b->said);

    return (first > second) - (first < second);
}

static struct member *member_new(const struct gate_registration *said, uint64_t now_ns)
{
    struct member *member = calloc(1, sizeof(*member));
    size_t bytes = said->engine.rank_count * sizeof(*said->engine.ranks);

    if (member == NULL)
        return NULL;
    member->said = *said;
    member->since_ns = now_ns;
    member->is_there = said->missing != NULL;
    member->said.engine.ranks = malloc(bytes);
    if (member->said.engine.ranks == NULL) {
        free(member);
        return NULL;
    }
    memcpy(member->said.engine.ranks, said->engine.ranks, bytes);
    return member;
}

static void member_free(struct member **list, struct member *member)
{
    DL_DELETE(*list, member);
    free(member->said.engine.ranks);
    free(member);
}

static struct member *member_of(struct member *list, uint64_t node)
{
    struct member *member;

    DL_FOREACH(list, member)
    {
        if (member->said.node == node)
            return member;
    }
    return NULL;
}

/* ---- jobs ---- */

static struct gate_rendezvous_job *job_find(const struct gate_rendezvous *rendezvous,
                                            const char *id, uint32_t uid)
{
    struct gate_rendezvous_job *job;

    DL_FOREACH(rendezvous->jobs, job)
    {
        if (job->uid == uid && strcmp(job->id, id) == 0)
            return job;
    }
    return NULL;
}

static void forget_met(struct gate_rendezvous_job *job)
{
    while (job->met != NULL)
        member_free(&job->met, job->met);
    free(job->roster.nodes);
    free(job->roster.key);
    job->told = false;
    memset(&job->roster, 0, sizeof(job->roster));
}

static void forget_loss(struct gate_rendezvous_job *job)
{
    free(job->loss);
    job->loss = NULL;
}

static void job_free(struct gate_rendezvous *rendezvous, struct gate_rendezvous_job *job)
{
    while (job->waiting != NULL)
        member_free(&job->waiting, job->waiting);
    forget_met(job);
    forget_loss(job);
    free(job->ended);
    DL_DELETE(rendezvous->jobs, job);
    rendezvous->job_count--;
    free(job);
}

static void free_unused(struct gate_rendezvous *rendezvous, struct gate_rendezvous_job *job)
{
    if (job->waiting == NULL && job->met == NULL && job->loss == NULL && job->ended == NULL)
        job_free(rendezvous, job);
}

/* Where there is no room, the oldest job in which nobody waits makes some. NULL: there is none. */
static struct gate_rendezvous_job *job_new(struct gate_rendezvous *rendezvous, const char *id,
                                           uint32_t uid)
{
    struct gate_rendezvous_job *job;

    if (rendezvous->job_count >= GATE_RENDEZVOUS_JOBS_MAX) {
        DL_FOREACH(rendezvous->jobs, job)
        {
            if (job->waiting == NULL)
                break;
        }
        if (job == NULL)
            return NULL;
        job_free(rendezvous, job);
    }
    job = calloc(1, sizeof(*job));
    if (job == NULL)
        return NULL;
    snprintf(job->id, sizeof(job->id), "%s", id);
    job->uid = uid;
    DL_APPEND(rendezvous->jobs, job);
    rendezvous->job_count++;
    return job;
}

/* ---- answers ---- */

static struct gate_registrant registrant_of(const struct gate_registration *said)
{
    return (struct gate_registrant){
        .node = said->node, .job = said->job, .uid = said->uid, .registration = said->registration};
}

static void answer(struct gate_rendezvous *rendezvous, const struct gate_registrant *to,
                   const struct hvi_engine_roster *roster)
{
    rendezvous->calls->answer(rendezvous->user, to, roster);
}

static void refuse_to(struct gate_rendezvous *rendezvous, const struct gate_registrant *to,
                      int status, const char *text)
{
    struct hvi_engine_roster roster = {.status = status};

    snprintf(roster.text, sizeof(roster.text), "%s", text);
    answer(rendezvous, to, &roster);
}

static void refuse(struct gate_rendezvous *rendezvous, const struct gate_registration *said,
                   int status, const char *text)
{
    const struct gate_registrant to = registrant_of(said);

    refuse_to(rendezvous, &to, status, text);
}

/* Everybody that waits. */
static void refuse_all(struct gate_rendezvous *rendezvous, struct gate_rendezvous_job *job,
                       int status, const char *text)
{
    while (job->waiting != NULL) {
        refuse(rendezvous, &job->waiting->said, status, text);
        member_free(&job->waiting, job->waiting);
    }
}

/* ---- meeting ---- */

bool gate_rendezvous_is_loopback(const char *address)
{
    struct in6_addr six;
    struct in_addr four;

    if (inet_pton(AF_INET, address, &four) == 1)
        return (ntohl(four.s_addr) >> 24) == 127;
    return inet_pton(AF_INET6, address, &six) == 1 && IN6_IS_ADDR_LOOPBACK(&six);
}

/* The rendezvous' own node, and one that reached it over the loopback, are known to others by the
 * rendezvous' address; where all are on one machine the loopback will do. */
static const char *address_of(const struct gate_rendezvous *rendezvous,
                              const struct gate_registration *said, bool one_machine)
{
    bool beside_us = said->address[0] == '\0' || gate_rendezvous_is_loopback(said->address);

    if (!beside_us)
        return said->address;
    if (rendezvous->own_address[0] != '\0' &&
        (said->address[0] == '\0' ||
         (!one_machine && !gate_rendezvous_is_loopback(rendezvous->own_address))))
        return rendezvous->own_address;
    return said->address[0] != '\0' ? said->address : "127.0.0.1";
}

static bool on_one_machine(const struct gate_rendezvous_job *job)
{
    const struct member *member;

    DL_FOREACH(job->waiting, member)
    {
        if (member->said.address[0] != '\0' && !gate_rendezvous_is_loopback(member->said.address))
            return false;
    }
    return true;
}

static void fill_row(const struct gate_rendezvous *rendezvous, const struct member *member,
                     bool one_machine, struct hvi_node_row *row_p)
{
    snprintf(row_p->name, sizeof(row_p->name), "%s", member->said.name);
    snprintf(row_p->address, sizeof(row_p->address), "%s",
             address_of(rendezvous, &member->said, one_machine));
    row_p->port = member->said.engine.port;
    row_p->ranks = member->said.engine.ranks;
    row_p->rank_count = member->said.engine.rank_count;
}

static void answer_met(struct gate_rendezvous *rendezvous, struct gate_rendezvous_job *job,
                       const struct member *member)
{
    struct hvi_engine_roster roster = job->roster;

    const struct gate_registrant to = registrant_of(&member->said);

    roster.node = member->place;
    answer(rendezvous, &to, &roster);
}

/* As the node of rank 0 wishes, unless one of them knows of one connection only. */
static uint32_t lanes_of(const struct member *sorted)
{
    uint32_t lanes = sorted->said.engine.lanes;
    const struct member *member;

    DL_FOREACH(sorted, member)
    {
        if (member->said.engine.lanes == 0)
            lanes = 1;
    }
    return lanes;
}

static int by_name(const void *left, const void *right)
{
    const struct hvi_node_row *a = *(struct hvi_node_row *const *)left;
    const struct hvi_node_row *b = *(struct hvi_node_row *const *)right;
    const int names = strcmp(a->name, b->name);

    return names != 0 ? names : strcmp(a->address, b->address);
}

static void name_with_address(struct hvi_node_row *row)
{
    const size_t size = sizeof(row->name), taken = strlen(row->address) + sizeof("[]");
    const size_t room = taken < size ? size - taken : 0;
    size_t used = strnlen(row->name, room);

    row->name[used++] = '[';
    used += (size_t)snprintf(row->name + used, size - used, "%s", row->address);
    if (used + 1 < size)
        snprintf(row->name + used, size - used, "]");
}

/* Machines with one host name: their addresses tell them apart. False: out of memory. */
static bool tell_apart(struct hvi_engine_roster *roster)
{
    const size_t count = roster->node_count;
    struct hvi_node_row **rows = calloc(count, sizeof(*rows));

    if (rows == NULL)
        return false;
    for (size_t i = 0; i < count; i++)
        rows[i] = &roster->nodes[i];
    qsort(rows, count, sizeof(*rows), by_name);
    for (size_t first = 0, next; first < count; first = next) {
        for (next = first + 1; next < count && strcmp(rows[next]->name, rows[first]->name) == 0;)
            next++;
        if (strcmp(rows[first]->address, rows[next - 1]->address) == 0)
            continue;
        for (size_t i = first; i < next; i++)
            name_with_address(rows[i]);
    }
    free(rows);
    return true;
}

static void fill_rows(const struct gate_rendezvous *rendezvous, struct gate_rendezvous_job *job)
{
    struct hvi_engine_roster *roster = &job->roster;
    const bool one_machine = on_one_machine(job);
    struct member *member;

    DL_SORT(job->waiting, by_lowest);
    DL_FOREACH(job->waiting, member)
    {
        member->place = (uint32_t)roster->node_count;
        fill_row(rendezvous, member, one_machine, &roster->nodes[roster->node_count++]);
        if (member->said.engine.wire_newest < roster->wire)
            roster->wire = member->said.engine.wire_newest;
    }
}

/* Everybody that waits has met. False: out of memory. */
static bool meet(struct gate_rendezvous *rendezvous, struct gate_rendezvous_job *job)
{
    struct hvi_engine_roster *roster = &job->roster;
    struct member *member;
    size_t count;

    DL_COUNT(job->waiting, member, count);
    forget_met(job);
    roster->nodes = calloc(count, sizeof(*roster->nodes));
    roster->key = malloc(HVI_WIRE_EPOCH_KEY);
    if (roster->nodes == NULL || roster->key == NULL) {
        forget_met(job);
        return false;
    }
    roster->key_bytes = HVI_WIRE_EPOCH_KEY;
    rendezvous->calls->random(rendezvous->user, roster->key, HVI_WIRE_EPOCH_KEY);
    roster->epoch = ++rendezvous->last_epoch;
    roster->wire = UINT32_MAX;
    fill_rows(rendezvous, job);
    if (!tell_apart(roster)) {
        forget_met(job);
        return false;
    }
    roster->lanes = lanes_of(job->waiting);
    job->met = job->waiting;
    job->waiting = NULL;
    DL_FOREACH(job->met, member)
    answer_met(rendezvous, job, member);
    return true;
}

static void meet_if_all(struct gate_rendezvous *rendezvous, struct gate_rendezvous_job *job)
{
    const struct member *member;
    size_t ranks = 0, nodes = 0;

    DL_FOREACH(job->waiting, member)
    {
        if (member->said.missing != NULL)
            return;
        ranks += member->said.engine.rank_count;
        nodes++;
    }
    /* None is there twice, and each is one of 0..size-1. */
    if (ranks < (size_t)job->waiting->said.engine.size)
        return;
    if (nodes > HVI_WIRE_NODES_MAX)
        refuse_all(rendezvous, job, HVI_ERR_LIMIT, "the job has more nodes than hvdd can serve");
    else if (!meet(rendezvous, job))
        refuse_all(rendezvous, job, HVI_ERR_DAEMON, "the rendezvous is out of memory");
}

/* ---- registering ---- */

/* True: it was answered, or has nothing to wait for. */
static bool is_known(struct gate_rendezvous *rendezvous, struct gate_rendezvous_job *job,
                     const struct gate_registration *said)
{
    struct member *member = member_of(job->met, said->node);

    if (member != NULL && member->said.registration == said->registration) {
        answer_met(rendezvous, job, member);
        return true;
    }
    member = member_of(job->waiting, said->node);
    if (member != NULL && member->said.registration > said->registration)
        return true; /* an older engine, whose news came late */
    return false;
}

/* True: it was answered, for its attempt has failed before it came. */
static bool is_late(struct gate_rendezvous *rendezvous, struct gate_rendezvous_job *job,
                    const struct gate_registration *said, uint64_t now_ns)
{
    struct loss *loss = job->loss;

    if (loss == NULL)
        return false;
    if (now_ns >= loss->until_ns ||
        (said->node == loss->node && said->registration > loss->registration)) {
        forget_loss(job);
        return false;
    }
    for (size_t i = 0; i < loss->count; i++) {
        if (loss->heard[i] == said->node)
            return false;
    }
    if (loss->count < HVI_WIRE_NODES_MAX)
        loss->heard[loss->count++] = said->node;
    refuse(rendezvous, said, loss->status, loss->text);
    return true;
}

/* It has no connection. Its hvdd may have been started anew: a newcomer is what became of it. */
static bool is_gone(const struct member *member)
{
    return member->said.missing != NULL && !member->is_there;
}

static bool check_key(struct gate_rendezvous *rendezvous, struct gate_rendezvous_job *job,
                      const struct gate_registration *said)
{
    const struct member *first;
    struct gate_sentence sentence = {.own_address = rendezvous->own_address};

    while (job->waiting != NULL && is_gone(job->waiting) &&
           strcmp(job->waiting->said.key_digest, said->key_digest) != 0)
        member_free(&job->waiting, job->waiting); /* of an earlier job with that id */
    first = job->waiting;
    if (first == NULL || strcmp(first->said.key_digest, said->key_digest) == 0)
        return true;
    gate_say(&sentence, "node ");
    gate_say_node(&sentence, said);
    gate_say(&sentence, " has another job key (HVD_JOB_KEY) for job '%s' than ", said->job);
    gate_say_node(&sentence, &first->said);
    refuse(rendezvous, said, HVI_ERR_REFUSED, sentence.text);
    return false;
}

/* Puts it among those that wait; NULL after it was refused. */
static struct member *add(struct gate_rendezvous *rendezvous, struct gate_rendezvous_job *job,
                          const struct gate_registration *said, uint64_t now_ns)
{
    struct member *old = member_of(job->waiting, said->node);
    struct member *member = member_new(said, now_ns);

    if (member == NULL) {
        refuse(rendezvous, said, HVI_ERR_DAEMON, "the rendezvous is out of memory");
        return NULL;
    }
    if (old != NULL) {
        if (old->said.registration == said->registration)
            member->since_ns = old->since_ns;
        member_free(&job->waiting, old);
    }
    DL_APPEND(job->waiting, member);
    return member;
}

static void settle(struct gate_rendezvous *rendezvous, struct gate_rendezvous_job *job,
                   const struct member *newest)
{
    struct gate_sentence sentence = {.own_address = rendezvous->own_address};
    struct member *other, *spare;
    int status;

    DL_FOREACH_SAFE(job->waiting, other, spare)
    {
        if (other == newest ||
            !gate_agree_contradict(&other->said, &newest->said, &sentence, &status))
            continue;
        if (is_gone(other)) {
            member_free(&job->waiting, other);
            sentence = (struct gate_sentence){.own_address = rendezvous->own_address};
            continue;
        }
        refuse_all(rendezvous, job, status, sentence.text);
        return;
    }
    meet_if_all(rendezvous, job);
}

void gate_rendezvous_register(struct gate_rendezvous *rendezvous,
                              const struct gate_registration *registration, uint64_t now_ns)
{
    struct gate_rendezvous_job *job = job_find(rendezvous, registration->job, registration->uid);
    struct gate_sentence sentence = {.own_address = rendezvous->own_address};
    struct member *member;
    int status = gate_agree_check(registration, &sentence);

    if (status != HVI_OK) {
        refuse(rendezvous, registration, status, sentence.text);
        return;
    }
    if (job == NULL)
        job = job_new(rendezvous, registration->job, registration->uid);
    if (job == NULL) {
        refuse(rendezvous, registration, HVI_ERR_DAEMON_LIMIT,
               "the rendezvous has as many jobs as it can keep, or is out of memory");
        return;
    }
    if (is_known(rendezvous, job, registration) || !check_key(rendezvous, job, registration) ||
        is_late(rendezvous, job, registration, now_ns))
        return;
    member = add(rendezvous, job, registration, now_ns);
    if (member != NULL)
        settle(rendezvous, job, member);
    if (job->waiting != NULL && job->waiting->next != NULL && job->waiting->next->next == NULL)
        rendezvous->calls->company(rendezvous->user, job->waiting->said.node);
    free_unused(rendezvous, job);
}

/* The first reason counts: each node has one when a job ends. */
static void tell_met(struct gate_rendezvous *rendezvous, struct gate_rendezvous_job *job,
                     int status, const char *text)
{
    const struct member *member;

    if (job->told)
        return;
    job->told = true;
    DL_FOREACH(job->met, member)
    {
        struct gate_registrant to = registrant_of(&member->said);
        to.met = true;
        if (to.registration != UINT64_MAX)
            refuse_to(rendezvous, &to, status, text);
    }
}

/* Those that wait know it in a moment, but for those that nothing reaches. */
static void note_loss(struct gate_rendezvous_job *job, const struct gate_registrant *registrant,
                      int status, const char *text, uint64_t now_ns)
{
    const struct member *member;

    forget_loss(job);
    job->loss = calloc(1, sizeof(*job->loss));
    if (job->loss == NULL) /* a late one's time runs out */
        return;
    job->loss->node = registrant->node;
    job->loss->registration = registrant->registration;
    job->loss->until_ns = now_ns + LOSS_NS;
    job->loss->status = status;
    snprintf(job->loss->text, sizeof(job->loss->text), "%s", text);
    if (member_of(job->waiting, registrant->node) == NULL)
        job->loss->heard[job->loss->count++] = registrant->node;
    DL_FOREACH(job->waiting, member)
    {
        if (job->loss->count < HVI_WIRE_NODES_MAX && !is_gone(member))
            job->loss->heard[job->loss->count++] = member->said.node;
    }
}

/* A node that was never complete. Its earlier engines, and whom they have met, have nothing to do with it. */
static void lose_unregistered(struct gate_rendezvous *rendezvous, struct gate_rendezvous_job *job,
                              const struct gate_registrant *registrant, int status,
                              const char *text, uint64_t now_ns)
{
    if (status == HVI_OK)
        return;
    if (job == NULL)
        job = job_new(rendezvous, registrant->job, registrant->uid);
    if (job == NULL) /* time runs out for those that wait */
        return;
    note_loss(job, registrant, status, text, now_ns);
    refuse_all(rendezvous, job, status, text);
    free_unused(rendezvous, job);
}

void gate_rendezvous_withdraw(struct gate_rendezvous *rendezvous,
                              const struct gate_registrant *registrant, int status,
                              const char *text, uint64_t now_ns)
{
    struct gate_rendezvous_job *job = job_find(rendezvous, registrant->job, registrant->uid);
    struct member *member;

    if (registrant->registration == 0) {
        lose_unregistered(rendezvous, job, registrant, status, text, now_ns);
        return;
    }
    if (job == NULL)
        return;
    member = member_of(job->waiting, registrant->node);
    if (member != NULL && member->said.registration <= registrant->registration) {
        member_free(&job->waiting, member);
        if (status != HVI_OK) {
            note_loss(job, registrant, status, text, now_ns);
            refuse_all(rendezvous, job, status, text);
        }
    }
    member = member_of(job->met, registrant->node);
    /* The roster's rows point to the ranks of those that have met: it goes with the last of them. */
    if (member != NULL && member->said.registration <= registrant->registration) {
        member->said.registration = UINT64_MAX;
        if (status != HVI_OK)
            tell_met(rendezvous, job, status, text);
    }
    DL_FOREACH(job->met, member)
    {
        if (member->said.registration != UINT64_MAX)
            break;
    }
    if (member == NULL)
        forget_met(job);
    free_unused(rendezvous, job);
}

void gate_rendezvous_ended(struct gate_rendezvous *rendezvous,
                           const struct gate_registrant *registrant, int32_t rank, const char *text)
{
    struct gate_rendezvous_job *job = job_find(rendezvous, registrant->job, registrant->uid);

    if (job == NULL)
        job = job_new(rendezvous, registrant->job, registrant->uid);
    if (job == NULL || job->ended != NULL)
        return;
    job->ended = calloc(1, sizeof(*job->ended));
    if (job->ended != NULL) {
        job->ended->rank = rank;
        snprintf(job->ended->text, sizeof(job->ended->text), "%s", text);
    }
    free_unused(rendezvous, job);
}

bool gate_rendezvous_end(struct gate_rendezvous *rendezvous, int status, const char *text)
{
    struct gate_rendezvous_job *job, *spare;
    bool any = false;

    DL_FOREACH_SAFE(rendezvous->jobs, job, spare)
    {
        any = any || job->waiting != NULL;
        refuse_all(rendezvous, job, status, text);
        free_unused(rendezvous, job);
    }
    return any;
}

/* ---- nodes that are missing ---- */

void gate_rendezvous_anew(struct gate_rendezvous *rendezvous, uint64_t node, uint64_t now_ns)
{
    struct gate_rendezvous_job *job;

    DL_FOREACH(rendezvous->jobs, job)
    {
        struct member *member = member_of(job->waiting, node);
        if (member == NULL)
            continue;
        member->anew = true;
        member->is_there = false;
        member->said.missing =
            "it has not said again that its ranks are there: its hvdd-gate has begun anew";
        member->said.missing_since_ns = now_ns;
    }
}

void gate_rendezvous_missing(struct gate_rendezvous *rendezvous, uint64_t node, const char *why,
                             uint64_t since_ns, bool is_there)
{
    struct gate_rendezvous_job *job;

    DL_FOREACH(rendezvous->jobs, job)
    {
        struct member *member = member_of(job->waiting, node);
        if (member == NULL || member->anew)
            continue;
        if (member->said.missing == NULL || since_ns < member->said.missing_since_ns)
            member->said.missing_since_ns = since_ns;
        member->said.missing = why;
        member->is_there = is_there;
    }
}

void gate_rendezvous_back(struct gate_rendezvous *rendezvous, uint64_t node)
{
    struct gate_rendezvous_job *job;

    DL_FOREACH(rendezvous->jobs, job)
    {
        struct member *member = member_of(job->waiting, node);
        if (member == NULL || member->said.missing == NULL || member->anew)
            continue;
        member->said.missing = NULL;
        meet_if_all(rendezvous, job);
    }
}

/* Of a job for which at least one node waits. */
static bool waits_alone(const struct gate_rendezvous_job *job)
{
    return job->waiting->next == NULL;
}

uint64_t gate_rendezvous_company(const struct gate_rendezvous *rendezvous, uint64_t node)
{
    const struct gate_rendezvous_job *job;
    uint64_t bits = 0;

    DL_FOREACH(rendezvous->jobs, job)
    {
        const struct member *member = member_of(job->waiting, node);
        if (member != NULL && !waits_alone(job))
            bits |= UINT64_C(1) << member->said.registration % 64;
    }
    return bits;
}

/* Since when others wait with it; 0: nobody does. */
static uint64_t others_since(const struct gate_rendezvous_job *job, const struct member *of)
{
    const struct member *member;
    uint64_t since_ns = 0;

    DL_FOREACH(job->waiting, member)
    {
        if (member != of && (since_ns == 0 || member->since_ns < since_ns))
            since_ns = member->since_ns;
    }
    return since_ns;
}

/* Since when that counts: a node that waits alone may be missing for as long as it likes. */
static uint64_t missed_since(const struct gate_rendezvous *rendezvous,
                             const struct gate_rendezvous_job *job, const struct member *missing)
{
    const uint64_t others_ns = others_since(job, missing);
    uint64_t since_ns = missing->said.missing_since_ns;

    since_ns = others_ns > since_ns ? others_ns : since_ns;
    return rendezvous->awake_ns > since_ns ? rendezvous->awake_ns : since_ns;
}

/* One that has been missing for too long; NULL: none. */
static struct member *lost_member(const struct gate_rendezvous *rendezvous,
                                  const struct gate_rendezvous_job *job, uint64_t now_ns)
{
    struct member *member;

    DL_FOREACH(job->waiting, member)
    {
        if (member->said.missing != NULL &&
            now_ns >= missed_since(rendezvous, job, member) + rendezvous->missing_ns)
            return member;
    }
    return NULL;
}

static void lose(struct gate_rendezvous *rendezvous, struct gate_rendezvous_job *job,
                 const struct member *lost, uint64_t now_ns)
{
    const struct gate_registrant registrant = registrant_of(&lost->said);
    const char *address = lost->said.address;
    struct gate_sentence sentence = {.own_address = rendezvous->own_address};

    gate_say_lost(&sentence, lost->said.name,
                  address[0] != '\0' ? address : rendezvous->own_address, job->id,
                  now_ns - lost->said.missing_since_ns, lost->said.missing);
    note_loss(job, &registrant, HVI_ERR_NODE_LOST, sentence.text, now_ns);
    refuse_all(rendezvous, job, HVI_ERR_NODE_LOST, sentence.text);
}

static void lose_missing(struct gate_rendezvous *rendezvous, struct gate_rendezvous_job *job,
                         uint64_t now_ns)
{
    struct member *lost = lost_member(rendezvous, job, now_ns);

    if (lost == NULL)
        return;
    /* The others have come since: it belongs to an attempt before theirs. */
    if (lost->anew && others_since(job, lost) > lost->said.missing_since_ns)
        member_free(&job->waiting, lost);
    else if (!waits_alone(job))
        lose(rendezvous, job, lost, now_ns);
    else if (is_gone(lost))
        member_free(&job->waiting, lost);
}

/* ---- time ---- */

/* A node that has that rank waits: its engine will say more. */
static bool is_waiting(const struct gate_rendezvous_job *job, int32_t rank)
{
    const struct member *member;

    DL_FOREACH(job->waiting, member)
    {
        for (size_t i = 0; i < member->said.engine.rank_count; i++) {
            if (member->said.engine.ranks[i] == rank)
                return true;
        }
    }
    return false;
}

/* As its ranks say, else as this hvdd does; 0: for ever. */
static uint64_t timeout_of(const struct gate_rendezvous *rendezvous, const struct member *member)
{
    const uint64_t said_ns = member->said.engine.start_timeout_ns;

    return said_ns != 0 ? said_ns : rendezvous->timeout_ns;
}

/* One that has waited for so long; NULL: none has. */
static const struct member *late_member(const struct gate_rendezvous *rendezvous,
                                        const struct gate_rendezvous_job *job, uint64_t now_ns)
{
    const struct member *member;

    DL_FOREACH(job->waiting, member)
    {
        const uint64_t timeout_ns = timeout_of(rendezvous, member);
        if (timeout_ns != 0 && member->since_ns <= now_ns &&
            now_ns - member->since_ns >= timeout_ns)
            return member;
    }
    return NULL;
}

static void give_up(struct gate_rendezvous *rendezvous, struct gate_rendezvous_job *job,
                    uint64_t timeout_ns)
{
    int32_t size = job->waiting->said.engine.size;
    bool *has = calloc((size_t)size, sizeof(*has));
    struct gate_sentence sentence = {.own_address = rendezvous->own_address};
    const struct member *member;
    const char *separator = "";

    gate_say(&sentence, "job '%s' is not complete after the start timeout of %llu s: ", job->id,
             (unsigned long long)(timeout_ns / HVI_NS_SEC));
    if (has != NULL) {
        int32_t missing = size;
        DL_FOREACH(job->waiting, member)
        gate_mark_ranks(has, size, &member->said);
        for (int32_t rank = 0; rank < size; rank++)
            missing -= has[rank];
        gate_say(&sentence, missing == 1 ? "rank " : "ranks ");
        gate_say_ranks(&sentence, has, size, false);
        gate_say(&sentence, " of %d %s missing; ", size, missing == 1 ? "is" : "are");
    }
    gate_say(&sentence, "these nodes have come: ");
    DL_FOREACH(job->waiting, member)
    {
        gate_say(&sentence, "%s", separator);
        gate_say_node(&sentence, &member->said);
        if (has != NULL) {
            memset(has, 0, (size_t)size * sizeof(*has));
            gate_mark_ranks(has, size, &member->said);
            gate_say(&sentence, " with ranks ");
            gate_say_ranks(&sentence, has, size, true);
        }
        separator = ", ";
    }
    free(has);
    refuse_all(rendezvous, job, HVI_ERR_ATTACH_TIMEOUT, sentence.text);
}

void gate_rendezvous_tick(struct gate_rendezvous *rendezvous, uint64_t now_ns)
{
    struct gate_rendezvous_job *job, *spare;

    DL_FOREACH_SAFE(rendezvous->jobs, job, spare)
    {
        if (job->ended != NULL && !is_waiting(job, job->ended->rank))
            refuse_all(rendezvous, job, HVI_ERR_RANK_LOST, job->ended->text);
        if (job->loss != NULL && now_ns >= job->loss->until_ns)
            forget_loss(job);
        lose_missing(rendezvous, job, now_ns);
        const struct member *late = late_member(rendezvous, job, now_ns);
        if (late != NULL)
            give_up(rendezvous, job, timeout_of(rendezvous, late));
        free_unused(rendezvous, job);
    }
}

/* ---- life ---- */

void gate_rendezvous_init(struct gate_rendezvous *rendezvous,
                          const struct gate_rendezvous_calls *calls, void *user,
                          uint64_t timeout_ns, uint64_t missing_ns)
{
    *rendezvous = (struct gate_rendezvous){
        .calls = calls, .user = user, .timeout_ns = timeout_ns, .missing_ns = missing_ns};
    calls->random(user, &rendezvous->last_epoch, sizeof(rendezvous->last_epoch));
    rendezvous->last_epoch &= (UINT64_C(1) << EPOCH_BITS) - 1;
}

void gate_rendezvous_fini(struct gate_rendezvous *rendezvous)
{
    while (rendezvous->jobs != NULL)
        job_free(rendezvous, rendezvous->jobs);
}

void gate_rendezvous_jobs_of(const struct gate_rendezvous *rendezvous, uint64_t node, char *text_p,
                             size_t text_size)
{
    const struct gate_rendezvous_job *job;
    size_t used = 0;

    text_p[0] = '\0';
    DL_FOREACH(rendezvous->jobs, job)
    {
        const struct member *met = member_of(job->met, node);
        bool in = member_of(job->waiting, node) != NULL ||
                  (met != NULL && met->said.registration != UINT64_MAX);
        int length =
            !in ? 0
                : snprintf(text_p + used, text_size - used, "%s%s", used > 0 ? ", " : "", job->id);
        used += length > 0 ? (size_t)length : 0;
        if (used >= text_size)
            return;
    }
}
