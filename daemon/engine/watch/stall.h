/* SPDX-License-Identifier: Apache-2.0
 * The stall inspector: ops that wait. Engine thread. */
#ifndef ENGINE_WATCH_STALL_H
#define ENGINE_WATCH_STALL_H

#include "daemon/engine/order/op.h"
#include "proto/wire.h"

#define ENGINE_STALL_RANKS 64u /* of other nodes, in one line or row */

struct engine_watch;

/* STALL_* and MEMORY_TIMEOUT_SECONDS of a job, as text; NULL: not set. */
struct engine_stall_settings {
    const char *check_disable, *check_time, *shutdown_time, *policy, *memory_timeout;
};

/* ---- stall.c ---- */

/* Sees to it that the table of waiting ops is looked at while it is not empty. Cheap. */
void engine_stall_arm(struct engine_watch *watch);
/* Warns of ops that are old enough, and does what the policy says. The timer's work; `now_ns` is
 * the time. The engine may be stopping afterwards. */
void engine_stall_look(struct engine_watch *watch, uint64_t now_ns);
/* The same for medium ops in slots, of which ranks hold chunks; slots.c's timer's work. */
void engine_stall_look_at_held(struct engine_watch *watch, uint64_t now_ns);
/* Takes what is set; .stall_warn_ns is the default. */
void engine_stall_configure(struct engine_watch *watch,
                            const struct engine_stall_settings *settings);

/* ---- stall_rows.c ---- */

/* Rows for ops that have waited for at least `min_age_ns`, oldest first, at most `limit`;
 * *left_out_p counts the rest. Free with engine_stall_rows_free. HVI_OK or HVI_ERR_NO_MEMORY. */
int engine_stall_rows(struct engine_watch *watch, uint64_t min_age_ns, size_t limit,
                      struct hvi_stall_row **rows_p, size_t *count_p, uint64_t *left_out_p);
/* What every rank of this node does, whatever it has submitted: its process and what it waits in; "joined" for
 * one that has joined. Nothing without memory. The caller frees the rows. */
void engine_stall_standing(const struct engine_watch *watch, struct hvi_missing_rank **rows_p,
                           size_t *count_p);
void engine_stall_rows_free(struct hvi_stall_row *rows, size_t count);
/* Whether the op waits for this member: for its submission, or for its output. */
bool engine_stall_misses(const struct engine_op *op, uint32_t member);
const char *engine_stall_kind(const struct engine_op *op);
/* Whether it waits for ranks on other nodes, as far as this node knows. */
bool engine_stall_waits_elsewhere(const struct engine_op *op);
/* "rank 2 (pid 4711, stopped), rank 3 (not attached)"; a long list is cut and the rest counted. */
void engine_stall_describe(const struct engine_watch *watch, const struct engine_op *op,
                           char *text_p, size_t size);
/* The same of ranks on other nodes: "ranks 1,3 on node 1 (h2)". Only the root of the job knows which. */
void engine_stall_describe_elsewhere(const struct engine_watch *watch, const struct engine_op *op,
                                     char *text_p, size_t size);
/* The ranks by node: "ranks 1,3 on node 1 (h2), rank 4 on node 2 (h3) and 7 more"; of `count` ranks the
 * first `shown`, at most ENGINE_STALL_RANKS, are in `ranks`. */
void engine_stall_describe_ranks(const struct engine_watch *watch, const int32_t *ranks,
                                 uint32_t shown, uint32_t count, char *text_p, size_t size);

#endif
