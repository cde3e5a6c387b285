/* SPDX-License-Identifier: Apache-2.0
 * Replies as JSON: {"daemon": {...}}, {"jobs": [...]}, {"job": ..., "ranks": [...]},
 * {"gpus": [...]}, {"limits": [...]}, {"stalls": [...]}, {"job": ..., "trace": [...]}, {"interval_ns": ..., "ranks": [...]},
 * a line for each event: {"event": ...}, {"error": {...}}. Numbers are raw: ns and bytes. They are written as text,
 * because cJSON keeps numbers as double and a 64-bit counter does not fit there. */
#include "base/status.h"
#include "base/utf8.h"
#include "proto/wire.h"
#include "tools/hvdctl/ctl.h"
#include "tools/hvdctl/table.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static void add_u64(cJSON *object, const char *name, uint64_t number)
{
    char text[24];
    snprintf(text, sizeof text, "%" PRIu64, number);
    cJSON_AddRawToObject(object, name, text);
}

static void add_i64(cJSON *object, const char *name, int64_t number)
{
    char text[24];
    snprintf(text, sizeof text, "%" PRId64, number);
    cJSON_AddRawToObject(object, name, text);
}

static cJSON *add_object(cJSON *array)
{
    cJSON *object = cJSON_CreateObject();
    cJSON_AddItemToArray(array, object);
    return object;
}

/* What keeps the rows from being all there is: a full message, a silent engine. */
static void add_rest(cJSON *document, uint64_t rows_left_out, const char *note)
{
    add_u64(document, "rows_left_out", rows_left_out);
    if (note[0] != '\0')
        cJSON_AddStringToObject(document, "note", note);
}

static void add_note(cJSON *document, const struct hvd_admin_answer *reply)
{
    add_rest(document, reply->rows_left_out, reply->text);
}

/* cJSON escapes what JSON demands (below U+0020). What else a terminal could be fooled by stands in strings alone, so
 * it may be written as \uNNNN wherever it is. */
static void put_plain(const char *text, FILE *out)
{
    size_t left = strlen(text);
    while (left > 0) {
        uint32_t code;
        size_t bytes = hvi_utf8_character(text, left, &code);
        if (bytes == 0 || code < 0x20 || hvi_utf8_is_plain(code))
            fwrite(text, 1, bytes > 0 ? bytes : 1, out);
        else
            fprintf(out, "\\u%04x", code);
        text += bytes > 0 ? bytes : 1;
        left -= bytes > 0 ? bytes : 1;
    }
}

static void print(const struct ctl *ctl, cJSON *document)
{
    char *text = ctl_must(cJSON_Print(document));
    cJSON_Delete(document);
    put_plain(text, ctl->out);
    fputc('\n', ctl->out);
    free(text);
}

void ctl_json_status(const struct ctl *ctl, const struct hvd_admin_answer *reply)
{
    const struct hvd_admin_daemon *daemon = reply->daemon;
    cJSON *document = cJSON_CreateObject();
    cJSON *object = cJSON_AddObjectToObject(document, "daemon");
    cJSON_AddStringToObject(object, "version", daemon->version);
    add_i64(object, "pid", daemon->pid);
    add_u64(object, "uid", daemon->uid);
    cJSON_AddStringToObject(object, "state", daemon->state);
    add_u64(object, "uptime_ns", daemon->uptime_ns);
    cJSON_AddStringToObject(object, "runtime_dir", daemon->runtime_dir);
    add_u64(object, "jobs", daemon->jobs);
    add_u64(object, "sessions", daemon->sessions);
    add_u64(object, "attaches", daemon->attaches);
    add_u64(object, "refused", daemon->refused);
    add_u64(object, "ranks_lost", daemon->ranks_lost);
    add_u64(object, "log_lost", daemon->log_lost);
    add_u64(object, "mesh_port", daemon->mesh_port);
    cJSON_AddStringToObject(object, "gpu_program", daemon->gpu_program);
    cJSON_AddStringToObject(object, "gpu_kernels", daemon->gpu_kernels);
    cJSON_AddStringToObject(object, "gpu_library_path", daemon->gpu_library_path);
    cJSON_AddStringToObject(object, "gpu_mps", daemon->gpu_mps);
    print(ctl, document);
}

static void add_link(cJSON *array, const struct hvd_admin_link *row)
{
    cJSON *object = add_object(array);
    add_u64(object, "to", row->to);
    cJSON_AddStringToObject(object, "kind",
                            row->purpose == HVD_ADMIN_LINK_CONTROL ? "control" : "data");
    add_u64(object, "lane", row->lane);
    add_u64(object, "bytes_sent", row->bytes_sent);
    add_u64(object, "bytes_received", row->bytes_received);
    add_u64(object, "messages_sent", row->messages_sent);
    add_u64(object, "messages_received", row->messages_received);
    add_u64(object, "retransmits", row->retransmits);
    add_u64(object, "rtt_ns", row->rtt_ns);
    cJSON_AddStringToObject(object, "transport", row->transport);
}

/* The nodes of jobs that span nodes; nothing where there are none. */
static void add_spans(cJSON *document, const struct hvd_admin_span *const *spans, size_t count)
{
    cJSON *array = count > 0 ? cJSON_AddArrayToObject(document, "job_nodes") : NULL;
    for (size_t i = 0; i < count; i++) {
        const struct hvd_admin_span *span = spans[i];
        cJSON *object = add_object(array);
        cJSON_AddStringToObject(object, "job", span->job);
        add_u64(object, "uid", span->uid);
        add_u64(object, "node", span->node);
        cJSON_AddStringToObject(object, "name", span->name);
        cJSON_AddStringToObject(object, "address", span->address);
        add_u64(object, "port", span->port);
        cJSON_AddBoolToObject(object, "here", span->here);
        cJSON_AddBoolToObject(object, "answered", span->text[0] == '\0');
        cJSON_AddStringToObject(object, "text", span->text);
        cJSON *ranks = cJSON_AddArrayToObject(object, "ranks");
        for (size_t k = 0; k < span->rank_count; k++)
            cJSON_AddItemToArray(ranks, cJSON_CreateNumber(span->ranks[k]));
        add_i64(object, "clock_ahead_ns", span->clock_ahead_ns);
        add_u64(object, "clock_error_ns", span->clock_error_ns);
        cJSON *links = cJSON_AddArrayToObject(object, "links");
        for (size_t k = 0; k < span->link_count; k++)
            add_link(links, span->links[k]);
    }
}

/* NULL: of one node, or not known. */
static void add_place(cJSON *object, const struct hvd_admin_span *span)
{
    if (span == NULL)
        return;
    add_u64(object, "node", span->node);
    cJSON_AddStringToObject(object, "node_name", span->name);
    cJSON_AddStringToObject(object, "node_address", span->address);
}

void ctl_json_nodes(const struct ctl *ctl, const struct hvd_admin_answer *reply,
                    const struct hvd_admin_answer *jobs)
{
    char note[2 * HVI_TEXT_MAX + 3];
    cJSON *document = cJSON_CreateObject();
    cJSON *array = cJSON_AddArrayToObject(document, "nodes");
    for (size_t i = 0; i < reply->node_count; i++) {
        const struct hvd_admin_node *row = reply->nodes[i];
        cJSON *object = add_object(array);
        cJSON_AddStringToObject(object, "node", row->node);
        cJSON_AddStringToObject(object, "name", row->name);
        cJSON_AddStringToObject(object, "address", row->address);
        add_u64(object, "port", row->port);
        cJSON_AddStringToObject(object, "state", row->state);
        add_u64(object, "heard_ns", row->heard_ns);
        cJSON_AddStringToObject(object, "jobs", row->jobs);
        cJSON_AddStringToObject(object, "version", row->version);
        add_u64(object, "joined_ns", row->joined_ns);
    }
    add_spans(document, jobs->spans, jobs->span_count);
    snprintf(note, sizeof note, "%s%s%s", reply->text,
             reply->text[0] != '\0' && jobs->text[0] != '\0' ? "; " : "", jobs->text);
    add_rest(document, reply->rows_left_out + jobs->rows_left_out, note);
    print(ctl, document);
}

void ctl_json_gpus(const struct ctl *ctl, const struct hvd_admin_answer *reply,
                   const struct hvd_admin_gpu *gpus)
{
    cJSON *document = cJSON_CreateObject();
    cJSON *array = cJSON_AddArrayToObject(document, "gpus");
    for (size_t i = 0; i < reply->gpu_count; i++) {
        const struct hvd_admin_gpu *row = &gpus[i];
        cJSON *object = add_object(array);
        cJSON_AddStringToObject(object, "gpu", row->uuid);
        cJSON_AddStringToObject(object, "name", row->name);
        cJSON_AddStringToObject(object, "job", row->job);
        add_u64(object, "uid", row->uid);
        add_i64(object, "pid", row->pid);
        cJSON_AddStringToObject(object, "state", row->state);
        add_u64(object, "imports", row->imports);
        add_u64(object, "import_bytes", row->import_bytes);
        add_u64(object, "staging_bytes", row->staging_bytes);
        add_u64(object, "own_bytes", row->own_bytes);
        add_u64(object, "free_bytes", row->free_bytes);
        add_u64(object, "communicators", row->communicators);
        add_u64(object, "driver_version", row->driver_version);
        add_u64(object, "nccl_version", row->nccl_version);
        cJSON_AddStringToObject(object, "nvlink", row->links);
    }
    if (reply->daemon != NULL)
        cJSON_AddStringToObject(document, "mps", reply->daemon->gpu_mps);
    add_note(document, reply);
    print(ctl, document);
}

void ctl_json_limits(const struct ctl *ctl, const struct hvd_admin_answer *reply)
{
    cJSON *document = cJSON_CreateObject();
    cJSON *array = cJSON_AddArrayToObject(document, "limits");
    for (size_t i = 0; i < reply->limit_count; i++) {
        const struct hvd_admin_limit *row = reply->limits[i];
        cJSON *object = add_object(array);
        cJSON_AddStringToObject(object, "limit", row->limit);
        cJSON_AddStringToObject(object, "of", row->of);
        if (strcmp(row->of, "all") != 0)
            add_u64(object, "uid", row->uid);
        if (row->job[0] != '\0')
            cJSON_AddStringToObject(object, "job", row->job);
        if (row->counted)
            add_u64(object, "used", row->used);
        add_u64(object, "most", row->most);
    }
    add_note(document, reply);
    print(ctl, document);
}

void ctl_json_jobs(const struct ctl *ctl, const struct hvd_admin_answer *reply)
{
    cJSON *document = cJSON_CreateObject();
    cJSON *array = cJSON_AddArrayToObject(document, "jobs");
    for (size_t i = 0; i < reply->job_count; i++) {
        const struct hvd_admin_job *row = reply->jobs[i];
        cJSON *object = add_object(array);
        if (ctl->of_mesh)
            cJSON_AddStringToObject(object, "node", row->node);
        cJSON_AddStringToObject(object, "job", row->job);
        add_u64(object, "generation", row->generation);
        add_u64(object, "uid", row->uid);
        cJSON_AddStringToObject(object, "state", row->state);
        add_i64(object, "size", row->size);
        add_i64(object, "attached", row->attached);
        if (!row->withheld)
            add_u64(object, "nodes", row->nodes > 0 ? row->nodes : 1);
        add_i64(object, "engine_pid", row->engine_pid);
        add_u64(object, "age_ns", row->age_ns);
        cJSON_AddBoolToObject(object, "withheld", row->withheld);
        if (row->withheld)
            continue;
        add_u64(object, "ops", row->ops);
        add_u64(object, "bytes", row->bytes);
    }
    add_spans(document, reply->spans, reply->span_count);
    add_note(document, reply);
    print(ctl, document);
}

void ctl_json_ranks(const struct ctl *ctl, const char *job, const struct hvd_admin_answer *reply)
{
    cJSON *document = cJSON_CreateObject();
    cJSON_AddStringToObject(document, "job", job);
    cJSON *array = cJSON_AddArrayToObject(document, "ranks");
    for (size_t i = 0; i < reply->rank_count; i++) {
        const struct hvd_admin_rank *row = reply->ranks[i];
        cJSON *object = add_object(array);
        add_i64(object, "rank", row->rank);
        add_i64(object, "pid", row->pid);
        add_u64(object, "uid", row->uid);
        cJSON_AddStringToObject(object, "state", row->state);
        cJSON_AddStringToObject(object, "process", row->process);
        add_u64(object, "ops", row->ops);
        add_u64(object, "bytes", row->bytes);
        add_u64(object, "in_flight", row->in_flight);
        add_u64(object, "lag_mean_ns", row->lag_mean_ns);
        add_u64(object, "lag_p50_ns", row->lag_p50_ns);
        add_u64(object, "lag_p99_ns", row->lag_p99_ns);
        add_u64(object, "lag_max_ns", row->lag_max_ns);
        add_u64(object, "lag_ops", row->lag_ops);
        add_u64(object, "last_ops", row->last_ops);
        add_u64(object, "negotiated", row->negotiated);
        add_u64(object, "replayed", row->replayed);
        add_u64(object, "express", row->express);
        add_u64(object, "region_bytes", row->region_bytes);
        cJSON_AddStringToObject(object, "origin", row->origin);
        cJSON_AddStringToObject(object, "text", row->text);
        add_i64(object, "own_pid", row->own_pid);
        cJSON_AddStringToObject(object, "memory", row->memory);
        add_place(object, ctl_span_of(reply, row->node));
    }
    add_spans(document, reply->spans, reply->span_count);
    add_note(document, reply);
    print(ctl, document);
}

static void add_stall(cJSON *array, const struct hvd_admin_answer *reply,
                      const struct hvd_admin_stall *row)
{
    cJSON *object = add_object(array);
    cJSON_AddStringToObject(object, "job", row->job);
    add_u64(object, "uid", row->uid);
    cJSON_AddStringToObject(object, "tensor", row->tensor);
    cJSON_AddStringToObject(object, "op", row->op);
    add_u64(object, "process_set", row->process_set);
    add_u64(object, "age_ns", row->age_ns);
    cJSON *ready = cJSON_AddArrayToObject(object, "ready");
    for (size_t i = 0; i < row->ready_count; i++)
        cJSON_AddItemToArray(ready, cJSON_CreateNumber(row->ready[i]));
    cJSON *missing = cJSON_AddArrayToObject(object, "missing");
    for (size_t i = 0; i < row->missing_count; i++) {
        cJSON *rank = add_object(missing);
        add_i64(rank, "rank", row->missing[i]->rank);
        add_i64(rank, "pid", row->missing[i]->pid);
        cJSON_AddStringToObject(rank, "process", row->missing[i]->process);
        cJSON_AddStringToObject(rank, "waits_in", row->missing[i]->waits_in);
        add_place(rank, ctl_missing_node(reply, row, row->missing[i]->rank));
    }
}

void ctl_json_stalls(const struct ctl *ctl, const struct hvd_admin_answer *reply)
{
    cJSON *document = cJSON_CreateObject();
    cJSON *array = cJSON_AddArrayToObject(document, "stalls");
    for (size_t i = 0; i < reply->stall_count; i++)
        add_stall(array, reply, reply->stalls[i]);
    add_spans(document, reply->spans, reply->span_count);
    add_note(document, reply);
    print(ctl, document);
}

void ctl_json_trace(const struct ctl *ctl, const char *job, const struct ctl_trace *trace)
{
    cJSON *document = cJSON_CreateObject();
    cJSON_AddStringToObject(document, "job", job);
    cJSON *array = cJSON_AddArrayToObject(document, "trace");
    for (size_t i = 0; i < trace->count; i++) {
        const struct hvd_admin_trace *row = trace->rows[i];
        cJSON *object = add_object(array);
        add_i64(object, "rank", row->rank);
        add_u64(object, "number", row->number);
        cJSON_AddStringToObject(object, "tensor", row->tensor);
        cJSON_AddStringToObject(object, "op", row->op);
        cJSON_AddStringToObject(object, "dtype", row->dtype);
        add_u64(object, "bytes", row->bytes);
        add_u64(object, "process_set", row->process_set);
        add_u64(object, "submit_ns", row->submit_ns);
        add_u64(object, "ready_ns", row->ready_ns);
        add_u64(object, "done_ns", row->done_ns);
        add_u64(object, "device_ns", row->device_ns);
        add_i64(object, "status", row->status);
        cJSON_AddStringToObject(object, "status_name", hvi_status_name(row->status));
    }
    add_spans(document, trace->spans, trace->span_count);
    add_rest(document, trace->rows_left_out, trace->note);
    print(ctl, document);
}

void ctl_json_top(const struct ctl *ctl, const struct ctl_top_row *rows, size_t count,
                  uint64_t interval_ns, const char *note)
{
    cJSON *document = cJSON_CreateObject();
    add_u64(document, "interval_ns", interval_ns);
    if (note[0] != '\0')
        cJSON_AddStringToObject(document, "note", note);
    cJSON *array = cJSON_AddArrayToObject(document, "ranks");
    for (size_t i = 0; i < count; i++) {
        const struct ctl_top_row *row = &rows[i];
        cJSON *object = add_object(array);
        cJSON_AddStringToObject(object, "job", row->job);
        add_i64(object, "rank", row->now.rank);
        add_i64(object, "pid", row->now.pid);
        cJSON_AddStringToObject(object, "state", row->now.state);
        cJSON_AddStringToObject(object, "process", row->now.process);
        add_u64(object, "ops_per_s", row->ops_per_s);
        add_u64(object, "bytes_per_s", row->bytes_per_s);
        add_u64(object, "in_flight", row->now.in_flight);
        add_u64(object, "lag_mean_ns", row->lag_ns);
        add_u64(object, "lag_p99_ns", row->now.lag_p99_ns);
        add_u64(object, "lag_ops", row->met);
        add_u64(object, "last_ops", row->last);
    }
    print(ctl, document);
}

static void print_line(const struct ctl *ctl, cJSON *document)
{
    char *text = ctl_must(cJSON_PrintUnformatted(document));
    cJSON_Delete(document);
    put_plain(text, ctl->out);
    fputc('\n', ctl->out);
    free(text);
}

void ctl_json_subscribed(const struct ctl *ctl)
{
    cJSON *document = cJSON_CreateObject();
    cJSON_AddStringToObject(document, "event", "subscribed");
    print_line(ctl, document);
}

static void add_names(cJSON *document, const char *what, const char *const *names, size_t count)
{
    cJSON *array = cJSON_AddArrayToObject(document, what);
    for (size_t i = 0; i < count; i++)
        cJSON_AddItemToArray(array, cJSON_CreateString(names[i]));
}

void ctl_json_event(const struct ctl *ctl, const struct hvd_admin_event *event, const char *kind)
{
    cJSON *document = cJSON_CreateObject();
    cJSON_AddStringToObject(document, "event", kind);
    add_u64(document, "kind", event->kind);
    add_u64(document, "at_ns", event->at_ns);
    cJSON_AddStringToObject(document, "job", event->job);
    add_u64(document, "uid", event->uid);
    add_u64(document, "generation", event->generation);
    add_i64(document, "rank", event->rank);
    add_i64(document, "pid", event->pid);
    cJSON_AddStringToObject(document, "node", event->node);
    cJSON_AddStringToObject(document, "text", event->text);
    add_u64(document, "count", event->count);
    add_names(document, "added", event->added, event->added_count);
    add_names(document, "removed", event->removed, event->removed_count);
    print_line(ctl, document);
}

void ctl_json_done(const struct ctl *ctl, const char *text)
{
    cJSON *document = cJSON_CreateObject();
    cJSON_AddStringToObject(document, "done", text);
    print(ctl, document);
}

void ctl_json_key(const struct ctl *ctl, const char *key)
{
    cJSON *document = cJSON_CreateObject();
    cJSON_AddStringToObject(document, "key", key);
    print(ctl, document);
}

/* In one line: of events each line is a document. */
void ctl_json_error(const struct ctl *ctl, int status, const char *text)
{
    cJSON *document = cJSON_CreateObject();
    cJSON *object = cJSON_AddObjectToObject(document, "error");
    add_i64(object, "status", status);
    cJSON_AddStringToObject(object, "name", hvi_status_name(status));
    cJSON_AddStringToObject(object, "text", text);
    print_line(ctl, document);
}

void ctl_json_version(const struct ctl *ctl, const char *daemon_version)
{
    cJSON *document = cJSON_CreateObject();
    cJSON_AddStringToObject(document, "hvdctl", HVD_VERSION_TEXT);
    add_u64(document, "protocol", HVI_PROTOCOL_VERSION);
    if (daemon_version != NULL)
        cJSON_AddStringToObject(document, "hvdd", daemon_version);
    else
        cJSON_AddNullToObject(document, "hvdd");
    print(ctl, document);
}
