/* SPDX-License-Identifier: Apache-2.0
 * Where the nodes of a job meet. Pure: no socket, no event loop, no clock but `now_ns`. One thread.
 * Answers go to a function that is called from inside register and tick; it may not call back. */
#ifndef HVD_GATE_RENDEZVOUS_H
#define HVD_GATE_RENDEZVOUS_H

#include "proto/wire.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GATE_RENDEZVOUS_JOBS_MAX 1024u

/* What a node brings. */
struct gate_registration {
    uint64_t node; /* which hvdd */
    char name[HVI_WIRE_NODE_NAME];
    char address[HVI_WIRE_NODE_ADDRESS]; /* of its engines, as others reach it; "": unknown */
    char job[HVI_JOB_ID_MAX + 1];
    uint32_t uid;
    uint64_t registration; /* counts that node's engines */
    char key_digest[HVI_WIRE_SHORT_TEXT];
    const char *missing; /* why; NULL: it is there */
    uint64_t missing_since_ns;
    struct hvi_engine_node engine; /* its ranks are copied */
};

/* Whom an answer concerns. */
struct gate_registrant {
    uint64_t node;
    const char *job;
    uint32_t uid;
    uint64_t registration;
    bool met; /* it has its roster already */
};

struct gate_rendezvous_calls {
    void (*answer)(void *user, const struct gate_registrant *to,
                   const struct hvi_engine_roster *roster);
    void (*random)(void *user, void *bytes_p, size_t length);
    void (*company)(void *user, uint64_t node); /* it does not wait alone any more */
};

struct gate_rendezvous_job;

struct gate_rendezvous {
    const struct gate_rendezvous_calls *calls;
    void *user;
    uint64_t timeout_ns; /* of nodes whose ranks say none; 0: none */
    uint64_t missing_ns;
    uint64_t awake_ns; /* this process stood still until then: no node is blamed for that */
    uint64_t last_epoch;
    char own_address[HVI_WIRE_NODE_ADDRESS]; /* of the rendezvous' node; "": unknown */
    struct gate_rendezvous_job *jobs;
    uint32_t job_count;
};

void gate_rendezvous_init(struct gate_rendezvous *rendezvous,
                          const struct gate_rendezvous_calls *calls, void *user,
                          uint64_t timeout_ns, uint64_t missing_ns);
void gate_rendezvous_fini(struct gate_rendezvous *rendezvous);

/* A node has all its ranks. It is answered now, when the others have come, or when they have not come
 * in time. The same registration again changes nothing; after its answer it gets that answer again. */
void gate_rendezvous_register(struct gate_rendezvous *rendezvous,
                              const struct gate_registration *registration, uint64_t now_ns);
/* That engine has gone. With a status other than HVI_OK those that wait with it get that answer and wait no longer, and so do
 * nodes that register for the first time in the next 2 s. Those that it has met get it as well: they may be looking for it.
 * Registration 0: the engine had none, for a rank was lost before the node was complete. */
void gate_rendezvous_withdraw(struct gate_rendezvous *rendezvous,
                              const struct gate_registrant *registrant, int status,
                              const char *text, uint64_t now_ns);
/* The process of that rank has ended, and none takes its place: from the next tick on those that wait for the rank get this
 * text, now and later. `registrant->registration` means nothing. */
void gate_rendezvous_ended(struct gate_rendezvous *rendezvous,
                           const struct gate_registrant *registrant, int32_t rank,
                           const char *text);
/* There will be no rendezvous any more: everybody that waits, for whatever job, is told. False: nobody does. */
bool gate_rendezvous_end(struct gate_rendezvous *rendezvous, int status, const char *text);
/* That node begins anew, and is about to say what it waits for: what it does not register again is missing, see below. */
void gate_rendezvous_anew(struct gate_rendezvous *rendezvous, uint64_t node, uint64_t now_ns);
/* That node is missing since then: `why`, which is not copied. No job meets with it; what it waits for is kept, for it may come
 * back. After missing_ns beside others that wait it is lost, and they get a sentence. Where it waits alone, what it waits for is
 * withdrawn then. It stays if `is_there`: the node has a connection, and something else stands still. */
void gate_rendezvous_missing(struct gate_rendezvous *rendezvous, uint64_t node, const char *why,
                             uint64_t since_ns, bool is_there);
/* It is back without having registered anew. */
void gate_rendezvous_back(struct gate_rendezvous *rendezvous, uint64_t node);
/* Where others wait with it: bit N % 64 for its registration N. */
uint64_t gate_rendezvous_company(const struct gate_rendezvous *rendezvous, uint64_t node);
/* Answers those that have waited too long, or wait with a node that is lost. */
void gate_rendezvous_tick(struct gate_rendezvous *rendezvous, uint64_t now_ns);

/* Jobs that a node waits in or has met in, "a, b, ...", as far as they fit. */
void gate_rendezvous_jobs_of(const struct gate_rendezvous *rendezvous, uint64_t node, char *text_p,
                             size_t text_size);

/* A numeric address that only this machine reaches. */
bool gate_rendezvous_is_loopback(const char *address);

#endif
