/* SPDX-License-Identifier: Apache-2.0
 * A job with ranks on other nodes, until all of them have met. Its ranks attach and submit, but what they
 * submit stays in their rings (sessions.held), because there is no order yet.
 *
 *   ranks of this node come --all are here--> EngineNode --> the rendezvous, by hvdd
 *   the rendezvous --> EngineRoster --> order opens, what was submitted is taken in
 *
 * A rank that leaves in order stays until they have met: ranks that open and close their sessions are in the
 * same generation on every node then, whether they had an op or not.
 * What goes wrong before that ends every session of the node, and with them the engine: a rank that is lost,
 * a job that is stopped, a roster that says why there is none, or none in time.
 * Engine thread; nothing blocks. */
#ifndef ENGINE_RENDEZVOUS_H
#define ENGINE_RENDEZVOUS_H

#include "proto/wire.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct engine;
struct sd_event_source;

#define ENGINE_START_NS (600ull * 1000 * 1000 * 1000) /* HVD_START_TIMEOUT */

struct engine_rendezvous {
    uint64_t timeout_ns;
    uint64_t said_ns;   /* the same, if the ranks have said it; else 0 */
    uint64_t told_ns;   /* when hvdd was first told that all are here; 0: not yet */
    uint64_t warned_ns; /* when the log last said what is waited for */
    uint16_t port;      /* 0: not listening yet */
    uint64_t alone_ns;  /* since when hvdd is gone, while sessions.alone */
    uint64_t heard_ns;  /* when hvdd last said something */
    bool asked;         /* this hvdd asks each second whether the engine lives */
    uint64_t due_ns;    /* the timer's time */
    bool untold;        /* EngineNode is due: the link was full, or the kernel out of memory */
    bool met;           /* the roster is there; engines connect */
    struct sd_event_source *timer;
};

/* Begins to wait; the engine's sessions are held. HVI_OK or HVI_ERR_NO_MEMORY. */
int engine_rendezvous_open(struct engine *engine);
/* Harmless on one that was never open. */
void engine_rendezvous_close(struct engine *engine);
/* HVD_START_TIMEOUT, as text; NULL: not set. */
void engine_rendezvous_configure(struct engine *engine, const char *text);
/* Says EngineNode, if every rank of this node has come and the others are still waited for. Repeated when a
 * rank comes, when hvdd reads again, and to an hvdd that was restarted. */
void engine_rendezvous_tell(struct engine *engine);
/* hvdd is gone, by which the nodes would meet: if none comes back, the job ends. */
void engine_rendezvous_alone(struct engine *engine, uint64_t since_ns);
/* hvdd has said something. */
void engine_rendezvous_heard(struct engine *engine);
/* Whether it goes on asking if the engine lives: one that does not may be silent. */
void engine_rendezvous_asked(struct engine *engine, bool asked);
/* The rendezvous' answer. */
void engine_rendezvous_roster(struct engine *engine, const struct hvi_engine_roster *roster);
/* The job's engines are connected: what was submitted is taken in, and ranks that want to leave do. */
void engine_rendezvous_met(struct engine *engine);
/* They will not be. */
void engine_rendezvous_failed(struct engine *engine, int status, const char *text);
/* What is waited for, as the row of a stalled op. The caller frees it with engine_stall_rows_free. HVI_OK or
 * HVI_ERR_NO_MEMORY. */
int engine_rendezvous_row(const struct engine *engine, struct hvi_stall_row *row_p);

/* Whether a roster can be: every rank of `size` is on one node, once, nodes are numbered by their lowest rank,
 * and the receiver's ranks are `ranks`, by seat. Else text_p says why not. HVI_OK, HVI_ERR_PROTOCOL or
 * HVI_ERR_NO_MEMORY. Pure. */
int engine_rendezvous_check(const struct hvi_engine_roster *roster, int32_t size,
                            const int32_t *ranks, uint32_t seats, char *text_p, size_t text_size);

#endif
