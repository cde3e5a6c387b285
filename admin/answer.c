/* SPDX-License-Identifier: Apache-2.0
 * The rows of an answer stand in blocks that the answer owns, and point at texts of the reply, which it
 * owns too. A list is one block: the pointers to its rows, then the rows. */
#include "admin/answer.h"

#include "base/status.h"

#include <stdlib.h>
#include <string.h>

struct block {
    struct block *next;
    max_align_t bytes[];
};

struct answer {
    struct hvd_admin_answer shown; /* first */
    struct hvd_admin_daemon daemon;
    struct hvi_admin_reply reply;
    struct block *blocks;
    bool short_of_memory;
};

/* Pointers to `count` rows of zeros. NULL: none, or out of memory, which the answer remembers. */
static void *rows_new(struct answer *answer, size_t count, size_t row_bytes)
{
    if (count == 0)
        return NULL;
    const size_t room = (row_bytes + sizeof(max_align_t) - 1) & ~(sizeof(max_align_t) - 1);
    const size_t head =
        (count * sizeof(void *) + sizeof(max_align_t) - 1) & ~(sizeof(max_align_t) - 1);
    struct block *block = calloc(1, sizeof *block + head + count * room);
    if (block == NULL) {
        answer->short_of_memory = true;
        return NULL;
    }
    block->next = answer->blocks;
    answer->blocks = block;
    void **pointers = (void **)block->bytes;
    for (size_t i = 0; i < count; i++)
        pointers[i] = (char *)block->bytes + head + i * room;
    return pointers;
}

static void show_daemon(struct answer *answer)
{
    const struct hvi_daemon_status *daemon = &answer->reply.daemon;
    if (!answer->reply.has_daemon)
        return;
    answer->daemon = (struct hvd_admin_daemon){
        .version = daemon->version,
        .pid = daemon->pid,
        .uid = daemon->uid,
        .uptime_ns = daemon->uptime_ns,
        .runtime_dir = daemon->runtime_dir,
        .state = daemon->state,
        .jobs = daemon->jobs,
        .sessions = daemon->sessions,
        .attaches = daemon->attaches,
        .refused = daemon->refused,
        .ranks_lost = daemon->ranks_lost,
        .log_lost = daemon->log_lost,
        .mesh_port = daemon->mesh_port,
        .gpu_program = daemon->gpu_program,
        .gpu_kernels = daemon->gpu_kernels,
        .gpu_library_path = daemon->gpu_library_path,
        .gpu_mps = daemon->gpu_mps,
    };
    answer->shown.daemon = &answer->daemon;
}

static void show_jobs(struct answer *answer)
{
    const struct hvi_admin_reply *reply = &answer->reply;
    struct hvd_admin_job **rows = rows_new(answer, reply->job_count, sizeof **rows);
    for (size_t i = 0; rows != NULL && i < reply->job_count; i++) {
        const struct hvi_job_row *row = &reply->jobs[i];
        *rows[i] = (struct hvd_admin_job){
            .job = row->job,
            .generation = row->generation,
            .uid = row->uid,
            .size = row->size,
            .attached = row->attached,
            .state = row->state,
            .engine_pid = row->engine_pid,
            .age_ns = row->age_ns,
            .withheld = row->withheld,
            .node = row->node,
            .nodes = row->nodes > 0 ? row->nodes : 1,
            .ops = row->ops,
            .bytes = row->bytes,
        };
    }
    answer->shown.jobs = (const struct hvd_admin_job *const *)rows;
    answer->shown.job_count = reply->job_count;
}

static const char *memory_text(uint32_t way)
{
    static const char *const texts[] = {
        [HVI_MEMORY_NOT_TOLD] = "",
        [HVI_MEMORY_BY_ADDRESS] = "by address",
        [HVI_MEMORY_HIDDEN] = "staged: hvdd does not see the rank's pid namespace",
        [HVI_MEMORY_OTHER_USER] = "staged: the rank is in another user namespace than hvdd",
        [HVI_MEMORY_REFUSED] = "staged: the kernel refuses hvdd's engine",
    };
    return way < sizeof texts / sizeof *texts ? texts[way] : "";
}

static struct hvd_admin_rank rank_of(const struct hvi_rank_row *row)
{
    return (struct hvd_admin_rank){
        .rank = row->rank,
        .pid = row->pid,
        .uid = row->uid,
        .state = row->state,
        .process = row->process,
        .ops = row->ops,
        .bytes = row->bytes,
        .in_flight = row->in_flight,
        .lag_mean_ns = row->lag_mean_ns,
        .lag_p50_ns = row->lag_p50_ns,
        .lag_p99_ns = row->lag_p99_ns,
        .lag_max_ns = row->lag_max_ns,
        .lag_sum_ns = row->lag_sum_ns,
        .lag_ops = row->lag_ops,
        .last_ops = row->last_ops,
        .negotiated = row->negotiated,
        .replayed = row->replayed,
        .express = row->express,
        .region_bytes = row->region_bytes,
        .node = row->node,
        .origin = row->origin,
        .text = row->text,
        .own_pid = row->own_pid,
        .memory = memory_text(row->memory),
    };
}

static void show_ranks(struct answer *answer)
{
    const struct hvi_admin_reply *reply = &answer->reply;
    struct hvd_admin_rank **rows = rows_new(answer, reply->rank_count, sizeof **rows);
    for (size_t i = 0; rows != NULL && i < reply->rank_count; i++)
        *rows[i] = rank_of(&reply->ranks[i]);
    answer->shown.ranks = (const struct hvd_admin_rank *const *)rows;
    answer->shown.rank_count = reply->rank_count;
}

static const struct hvd_admin_missing *const *missing_of(struct answer *answer,
                                                         const struct hvi_stall_row *row)
{
    struct hvd_admin_missing **missing = rows_new(answer, row->missing_count, sizeof **missing);
    for (size_t i = 0; missing != NULL && i < row->missing_count; i++)
        *missing[i] = (struct hvd_admin_missing){
            .rank = row->missing[i].rank,
            .pid = row->missing[i].pid,
            .process = row->missing[i].process,
            .waits_in = row->missing[i].waits_in,
        };
    return (const struct hvd_admin_missing *const *)missing;
}

static void show_stalls(struct answer *answer)
{
    const struct hvi_admin_reply *reply = &answer->reply;
    struct hvd_admin_stall **rows = rows_new(answer, reply->stall_count, sizeof **rows);
    for (size_t i = 0; rows != NULL && i < reply->stall_count; i++) {
        const struct hvi_stall_row *row = &reply->stalls[i];
        *rows[i] = (struct hvd_admin_stall){
            .job = row->job,
            .uid = row->uid,
            .tensor = row->tensor,
            .op = row->op,
            .process_set = row->process_set,
            .age_ns = row->age_ns,
            .ready = row->ready,
            .ready_count = row->ready_count,
            .missing = missing_of(answer, row),
            .missing_count = row->missing_count,
        };
    }
    answer->shown.stalls = (const struct hvd_admin_stall *const *)rows;
    answer->shown.stall_count = reply->stall_count;
}

static void show_traces(struct answer *answer)
{
    const struct hvi_admin_reply *reply = &answer->reply;
    struct hvd_admin_trace **rows = rows_new(answer, reply->trace_count, sizeof **rows);
    for (size_t i = 0; rows != NULL && i < reply->trace_count; i++) {
        const struct hvi_trace_row *row = &reply->traces[i];
        *rows[i] = (struct hvd_admin_trace){
            .rank = row->rank,
            .number = row->number,
            .tensor = row->tensor,
            .op = row->op,
            .dtype = row->dtype,
            .bytes = row->bytes,
            .process_set = row->process_set,
            .submit_ns = row->submit_ns,
            .ready_ns = row->ready_ns,
            .done_ns = row->done_ns,
            .status = row->status,
            .device_ns = row->device_ns,
        };
    }
    answer->shown.traces = (const struct hvd_admin_trace *const *)rows;
    answer->shown.trace_count = reply->trace_count;
}

static void show_nodes(struct answer *answer)
{
    const struct hvi_admin_reply *reply = &answer->reply;
    struct hvd_admin_node **rows = rows_new(answer, reply->node_count, sizeof **rows);
    for (size_t i = 0; rows != NULL && i < reply->node_count; i++) {
        const struct hvi_mesh_row *row = &reply->nodes[i];
        *rows[i] = (struct hvd_admin_node){
            .node = row->node,
            .name = row->name,
            .address = row->address,
            .port = row->port,
            .state = row->state,
            .heard_ns = row->heard_ns,
            .jobs = row->jobs,
            .version = row->version,
            .joined_ns = row->joined_ns,
        };
    }
    answer->shown.nodes = (const struct hvd_admin_node *const *)rows;
    answer->shown.node_count = reply->node_count;
}

static const struct hvd_admin_link *const *links_of(struct answer *answer,
                                                    const struct hvi_span_row *row)
{
    struct hvd_admin_link **links = rows_new(answer, row->link_count, sizeof **links);
    for (size_t i = 0; links != NULL && i < row->link_count; i++) {
        const struct hvi_link_row *link = &row->links[i];
        *links[i] = (struct hvd_admin_link){
            .to = link->to,
            .purpose = (enum hvd_admin_link_purpose)link->purpose,
            .lane = link->lane,
            .bytes_sent = link->bytes_sent,
            .bytes_received = link->bytes_received,
            .messages_sent = link->messages_sent,
            .messages_received = link->messages_received,
            .retransmits = link->retransmits,
            .rtt_ns = link->rtt_ns,
            .transport = link->transport[0] != '\0' ? link->transport : "tcp",
        };
    }
    return (const struct hvd_admin_link *const *)links;
}

static void show_spans(struct answer *answer)
{
    const struct hvi_admin_reply *reply = &answer->reply;
    struct hvd_admin_span **rows = rows_new(answer, reply->span_count, sizeof **rows);
    for (size_t i = 0; rows != NULL && i < reply->span_count; i++) {
        const struct hvi_span_row *row = &reply->spans[i];
        *rows[i] = (struct hvd_admin_span){
            .job = row->job,
            .uid = row->uid,
            .node = row->node,
            .name = row->name,
            .address = row->address,
            .port = row->port,
            .here = row->here,
            .text = row->text,
            .ranks = row->ranks,
            .rank_count = row->rank_count,
            .clock_ahead_ns = (int64_t)row->ahead_ns,
            .clock_error_ns = row->ahead_error_ns,
            .links = links_of(answer, row),
            .link_count = row->link_count,
        };
    }
    answer->shown.spans = (const struct hvd_admin_span *const *)rows;
    answer->shown.span_count = reply->span_count;
}

static void show_gpus(struct answer *answer)
{
    const struct hvi_admin_reply *reply = &answer->reply;
    struct hvd_admin_gpu **rows = rows_new(answer, reply->gpu_count, sizeof **rows);
    for (size_t i = 0; rows != NULL && i < reply->gpu_count; i++) {
        const struct hvi_gpu_row *row = &reply->gpus[i];
        *rows[i] = (struct hvd_admin_gpu){
            .uuid = row->uuid,
            .name = row->name,
            .job = row->job,
            .uid = row->uid,
            .pid = row->pid,
            .state = row->state,
            .imports = row->imports,
            .communicators = row->comms,
            .import_bytes = row->import_bytes,
            .staging_bytes = row->staging_bytes,
            .own_bytes = row->own_bytes,
            .free_bytes = row->free_bytes,
            .driver_version = row->driver_version,
            .nccl_version = row->nccl_version,
            .links = row->links,
        };
    }
    answer->shown.gpus = (const struct hvd_admin_gpu *const *)rows;
    answer->shown.gpu_count = reply->gpu_count;
}

static void show_limits(struct answer *answer)
{
    const struct hvi_admin_reply *reply = &answer->reply;
    struct hvd_admin_limit **rows = rows_new(answer, reply->limit_count, sizeof **rows);
    for (size_t i = 0; rows != NULL && i < reply->limit_count; i++) {
        const struct hvi_limit_row *row = &reply->limits[i];
        *rows[i] = (struct hvd_admin_limit){
            .limit = row->limit,
            .of = row->of,
            .uid = row->uid,
            .job = row->job,
            .counted = row->counted,
            .used = row->used,
            .most = row->most,
        };
    }
    answer->shown.limits = (const struct hvd_admin_limit *const *)rows;
    answer->shown.limit_count = reply->limit_count;
}

static void blocks_free(struct answer *answer)
{
    while (answer->blocks != NULL) {
        struct block *block = answer->blocks;
        answer->blocks = block->next;
        free(block);
    }
}

int admin_answer_new(struct hvi_admin_reply *reply, struct hvd_admin_answer **answer_p)
{
    struct answer *answer = calloc(1, sizeof *answer);
    if (answer == NULL)
        return HVI_ERR_NO_MEMORY;
    answer->reply = *reply;
    answer->shown.text = answer->reply.text;
    answer->shown.rows_left_out = reply->rows_left_out;
    show_daemon(answer);
    show_jobs(answer);
    show_ranks(answer);
    show_stalls(answer);
    show_traces(answer);
    show_nodes(answer);
    show_spans(answer);
    show_gpus(answer);
    show_limits(answer);
    if (answer->short_of_memory) {
        blocks_free(answer);
        free(answer);
        return HVI_ERR_NO_MEMORY;
    }
    *answer_p = &answer->shown;
    return HVI_OK;
}

void hvd_admin_answer_free(struct hvd_admin_answer *shown)
{
    struct answer *answer = (struct answer *)shown; /* .shown is its first member */
    if (answer == NULL)
        return;
    blocks_free(answer);
    hvi_admin_reply_free(&answer->reply);
    free(answer);
}
