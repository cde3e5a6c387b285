/* SPDX-License-Identifier: Apache-2.0
 * Puts the parts of a job's nodes together: each engine report has one. Pure; what does not fit is counted in
 * .rows_left_out. */
#ifndef HVD_NODE_MERGE_H
#define HVD_NODE_MERGE_H

#include "proto/wire.h"

#include <stdint.h>

/* hvi_missing_rank.process of a rank of another node, of which its node may say more. */
#define NODE_MERGE_ELSEWHERE "elsewhere"

void node_merge_ranks(struct hvi_admin_reply *reply, const struct hvi_engine_report *report);
void node_merge_traces(struct hvi_admin_reply *reply, const struct hvi_engine_report *report);
/* These take lists out of the report, of that user's job. Stalls before the span. */
void node_merge_stalls(struct hvi_admin_reply *reply, struct hvi_engine_report *report,
                       const char *job, uint32_t uid);
void node_merge_span(struct hvi_admin_reply *reply, struct hvi_engine_report *report,
                     const char *job, uint32_t uid);
/* Every part has come, or will not: sorts, and says which ranks of other nodes an op waits for. Stalls younger
 * than `min_age_ns` go: a node may have had an op later than others. */
void node_merge_finish(struct hvi_admin_reply *reply, uint64_t min_age_ns);

#endif
