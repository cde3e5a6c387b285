/* SPDX-License-Identifier: Apache-2.0
 * Replies as tables. Everything a daemon sends passes through ctl_table_add or text_safe, so a
 * tensor name cannot move the cursor. */
#include "base/clock.h"
#include "base/limits.h"
#include "base/status.h"
#include "tools/common/text.h"
#include "tools/hvdctl/ctl.h"
#include "tools/hvdctl/table.h"

#include <inttypes.h>
#include <pwd.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static void user_name(uint32_t uid, char *text_p, size_t size)
{
    const struct passwd *entry = getpwuid((uid_t)uid);
    if (entry != NULL)
        snprintf(text_p, size, "%s", entry->pw_name);
    else
        snprintf(text_p, size, "%" PRIu32, uid);
}

static void add_bytes(struct ctl_table *table, uint64_t bytes)
{
    char text[32];
    text_bytes(bytes, text, sizeof text);
    ctl_table_add(table, CTL_PLAIN, "%s", text);
}

static void add_duration(struct ctl_table *table, uint64_t ns)
{
    char text[32];
    text_duration(ns, text, sizeof text);
    ctl_table_add(table, CTL_PLAIN, "%s", ns == 0 ? "-" : text);
}

static void add_count(struct ctl_table *table, uint64_t count)
{
    char text[32];
    text_count(count, text, sizeof text);
    ctl_table_add(table, CTL_PLAIN, "%s", text);
}

/* How often the rank came last: one number that says whom the others wait for. */
static void add_share(struct ctl_table *table, uint64_t part, uint64_t whole)
{
    if (whole == 0)
        ctl_table_add(table, CTL_PLAIN, "-");
    else
        ctl_table_add(table, CTL_PLAIN, "%.0f %%", 100.0 * (double)part / (double)whole);
}

static void add_user(struct ctl_table *table, uint32_t uid)
{
    char text[64];
    user_name(uid, text, sizeof text);
    ctl_table_add(table, CTL_PLAIN, "%s", text);
}

/* 0 is not known. */
static void add_number(struct ctl_table *table, int32_t number)
{
    if (number > 0)
        ctl_table_add(table, CTL_PLAIN, "%" PRId32, number);
    else
        ctl_table_add(table, CTL_PLAIN, "-");
}

static void finish(const struct ctl *ctl, struct ctl_table *table, uint64_t left_out)
{
    ctl_table_print(table, ctl->out, ctl->colours);
    ctl_table_free(table);
    if (left_out > 0)
        fprintf(ctl->out, "(%" PRIu64 " more not shown)\n", left_out);
}

static void line(const struct ctl *ctl, const char *label, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void line(const struct ctl *ctl, const char *label, const char *format, ...)
{
    char raw[1024];
    char safe[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(raw, sizeof raw, format, args);
    va_end(args);
    text_safe(raw, safe, sizeof safe);
    fprintf(ctl->out, "%s%-12s%s %s\n", ctl_style_on(CTL_BOLD, ctl->colours), label,
            ctl_style_off(CTL_BOLD, ctl->colours), safe);
}

void ctl_show_status(const struct ctl *ctl, const struct hvd_admin_answer *reply)
{
    const struct hvd_admin_daemon *daemon = reply->daemon;
    char user[64];
    char uptime[32];
    user_name(daemon->uid, user, sizeof user);
    text_duration(daemon->uptime_ns, uptime, sizeof uptime);
    line(ctl, "hvdd", "%s, pid %" PRId32 ", user %s, %s for %s", daemon->version, daemon->pid, user,
         daemon->state, uptime);
    line(ctl, "directory", "%s", daemon->runtime_dir);
    line(ctl, "jobs", "%" PRIu32, daemon->jobs);
    line(ctl, "sessions", "%" PRIu32 " now, %" PRIu64 " since start", daemon->sessions,
         daemon->attaches);
    line(ctl, "refused", "%" PRIu64, daemon->refused);
    line(ctl, "ranks lost", "%" PRIu64, daemon->ranks_lost);
    if (daemon->mesh_port != 0)
        line(ctl, "mesh port", "%" PRIu32, daemon->mesh_port);
    if (daemon->log_lost > 0)
        line(ctl, "log", "%" PRIu64 " lines could not be written", daemon->log_lost);
}

void ctl_show_nodes(const struct ctl *ctl, const struct hvd_admin_answer *reply)
{
    static const struct ctl_column columns[] = {
        {"NODE", false},    {"ADDRESS", false}, {"PORT", true},  {"STATE", false},
        {"VERSION", false}, {"SINCE", true},    {"HEARD", true}, {"JOBS", false}};
    if (reply->node_count == 0) {
        line(ctl, "nodes", "%s", reply->text[0] != '\0' ? reply->text : "none");
        return;
    }
    struct ctl_table *table = ctl_table_new(columns, COUNT(columns));
    for (size_t i = 0; i < reply->node_count; i++) {
        const struct hvd_admin_node *row = reply->nodes[i];
        const bool bad = strcmp(row->state, "apart") == 0 || strcmp(row->state, "refused") == 0 ||
                         strcmp(row->state, "unreached") == 0 || strcmp(row->state, "absent") == 0;
        ctl_table_add(table, CTL_PLAIN, "%s", row->name);
        ctl_table_add(table, CTL_PLAIN, "%s", row->address[0] != '\0' ? row->address : "-");
        add_number(table, (int32_t)row->port);
        ctl_table_add(table, bad ? CTL_BAD : CTL_PLAIN, "%s", row->state);
        ctl_table_add(table, CTL_PLAIN, "%s", row->version[0] != '\0' ? row->version : "-");
        add_duration(table, row->joined_ns);
        add_duration(table, row->heard_ns);
        ctl_table_add(table, CTL_PLAIN, "%s", row->jobs);
    }
    finish(ctl, table, reply->rows_left_out);
    if (reply->text[0] != '\0')
        line(ctl, "mesh", "%s", reply->text);
}

static void add_job(struct ctl_table *table, const struct hvd_admin_job *row)
{
    const bool failed = strcmp(row->state, "failed") == 0;
    ctl_table_add(table, CTL_PLAIN, "%s", row->job);
    ctl_table_add(table, CTL_PLAIN, "%" PRIu64, row->generation);
    add_user(table, row->uid);
    ctl_table_add(table, failed ? CTL_BAD : CTL_PLAIN, "%s", row->state);
    ctl_table_add(table, CTL_PLAIN, "%" PRId32 "/%" PRId32, row->attached, row->size);
}

/* Of all nodes: what is known without asking engines. */
static void show_mesh_jobs(const struct ctl *ctl, const struct hvd_admin_answer *reply)
{
    static const struct ctl_column columns[] = {{"NODE", false}, {"JOB", false},   {"GEN", true},
                                                {"USER", false}, {"STATE", false}, {"RANKS", true},
                                                {"AGE", true},   {"ENGINE", true}};
    struct ctl_table *table = ctl_table_new(columns, COUNT(columns));
    for (size_t i = 0; i < reply->job_count; i++) {
        const struct hvd_admin_job *row = reply->jobs[i];
        ctl_table_add(table, CTL_PLAIN, "%s", row->node);
        add_job(table, row);
        add_duration(table, row->age_ns);
        add_number(table, row->engine_pid);
    }
    finish(ctl, table, reply->rows_left_out);
}

void ctl_show_jobs(const struct ctl *ctl, const struct hvd_admin_answer *reply)
{
    static const struct ctl_column columns[] = {
        {"JOB", false},  {"GEN", true}, {"USER", false},  {"STATE", false}, {"RANKS", true},
        {"NODES", true}, {"AGE", true}, {"ENGINE", true}, {"OPS", true},    {"BYTES", true},
    };
    if (reply->job_count == 0) {
        fputs("no jobs\n", ctl->out);
        return;
    }
    if (ctl->of_mesh) {
        show_mesh_jobs(ctl, reply);
        return;
    }
    struct ctl_table *table = ctl_table_new(columns, COUNT(columns));
    for (size_t i = 0; i < reply->job_count; i++) {
        const struct hvd_admin_job *row = reply->jobs[i];
        const int32_t nodes = row->nodes > 0 ? (int32_t)row->nodes : 1;
        add_job(table, row);
        add_number(table, row->withheld ? 0 : nodes);
        add_duration(table, row->age_ns);
        add_number(table, row->engine_pid);
        if (row->withheld) {
            ctl_table_add(table, CTL_PLAIN, "-");
            ctl_table_add(table, CTL_PLAIN, "-");
            continue;
        }
        add_count(table, row->ops);
        add_bytes(table, row->bytes);
    }
    finish(ctl, table, reply->rows_left_out);
}

const struct hvd_admin_span *ctl_span_of(const struct hvd_admin_answer *reply, uint32_t node)
{
    for (size_t i = 0; i < reply->span_count; i++) {
        if (reply->spans[i]->node == node)
            return reply->spans[i];
    }
    return NULL;
}

/* 0 is not known. */
static void add_known_bytes(struct ctl_table *table, uint64_t bytes)
{
    if (bytes > 0)
        add_bytes(table, bytes);
    else
        ctl_table_add(table, CTL_PLAIN, "-");
}

static void add_versions(struct ctl_table *table, const struct hvd_admin_gpu *row)
{
    char cuda[32], nccl[32];
    text_cuda_version(row->driver_version, cuda, sizeof cuda);
    text_nccl_version(row->nccl_version, nccl, sizeof nccl);
    ctl_table_add(table, CTL_PLAIN, "%s", cuda);
    ctl_table_add(table, CTL_PLAIN, "%s", nccl);
}

static void add_gpu_memory(struct ctl_table *table, const struct hvd_admin_gpu *row)
{
    if (row->staging_bytes > 0) /* it is up, or was */
        add_bytes(table, row->import_bytes);
    else
        ctl_table_add(table, CTL_PLAIN, "-");
    add_known_bytes(table, row->staging_bytes);
    add_known_bytes(table, row->own_bytes);
    add_known_bytes(table, row->free_bytes);
    ctl_table_add(table, CTL_PLAIN, "%" PRIu32, row->communicators);
    ctl_table_add(table, CTL_PLAIN, "%s", row->links[0] != '\0' ? row->links : "-");
}

void ctl_show_gpus(const struct ctl *ctl, const struct hvd_admin_answer *reply,
                   const struct hvd_admin_gpu *gpus)
{
    static const struct ctl_column columns[] = {
        {"GPU", false},   {"NAME", false},    {"JOB", false},    {"USER", false}, {"PID", true},
        {"STATE", false}, {"IMPORTED", true}, {"STAGING", true}, {"OWN", true},   {"FREE", true},
        {"COMMS", true},  {"NVLINK", false},  {"CUDA", false},   {"NCCL", false}};
    if (reply->daemon != NULL && reply->daemon->gpu_mps[0] != '\0')
        line(ctl, "MPS", "%s", reply->daemon->gpu_mps);
    if (reply->gpu_count == 0) {
        line(ctl, "gpus", "no worker runs; one is started for each GPU of a job that uses it");
        return;
    }
    struct ctl_table *table = ctl_table_new(columns, COUNT(columns));
    for (size_t i = 0; i < reply->gpu_count; i++) {
        const struct hvd_admin_gpu *row = &gpus[i];
        ctl_table_add(table, CTL_PLAIN, "%s", row->uuid);
        ctl_table_add(table, CTL_PLAIN, "%s", row->name[0] != '\0' ? row->name : "-");
        ctl_table_add(table, CTL_PLAIN, "%s", row->job);
        add_user(table, row->uid);
        add_number(table, row->pid);
        ctl_table_add(table, CTL_PLAIN, "%s", row->state);
        add_gpu_memory(table, row);
        add_versions(table, row);
    }
    finish(ctl, table, reply->rows_left_out);
}

static void add_limit(struct ctl_table *table, const struct hvd_admin_limit *row)
{
    const struct hvi_limit_fact *fact = hvi_limit_find(row->limit);
    void (*add)(struct ctl_table *, uint64_t) = fact != NULL && fact->bytes ? add_bytes : add_count;

    ctl_table_add(table, CTL_PLAIN, "%s", row->limit);
    ctl_table_add(table, CTL_PLAIN, "%s", row->of);
    if (strcmp(row->of, "all") == 0)
        ctl_table_add(table, CTL_PLAIN, "-");
    else
        add_user(table, row->uid);
    ctl_table_add(table, CTL_PLAIN, "%s", row->job[0] != '\0' ? row->job : "-");
    if (row->counted)
        add(table, row->used);
    else
        ctl_table_add(table, CTL_PLAIN, "-");
    add(table, row->most);
}

void ctl_show_limits(const struct ctl *ctl, const struct hvd_admin_answer *reply)
{
    static const struct ctl_column columns[] = {{"LIMIT", false}, {"OF", false},  {"USER", false},
                                                {"JOB", false},   {"USED", true}, {"MOST", true}};
    struct ctl_table *table = ctl_table_new(columns, COUNT(columns));
    for (size_t i = 0; i < reply->limit_count; i++)
        add_limit(table, reply->limits[i]);
    finish(ctl, table, reply->rows_left_out);
}

/* "1 b": two nodes may have one name. */
static void add_node(struct ctl_table *table, const struct hvd_admin_span *span)
{
    if (span != NULL)
        ctl_table_add(table, CTL_PLAIN, "%" PRIu32 " %s", span->node, span->name);
    else
        ctl_table_add(table, CTL_PLAIN, "-");
}

/* "1 b" and "10.0.0.2:9601" or "[2001:db8::2]:9601", where the job is on several nodes. */
static void add_place(struct ctl_table *table, const struct hvd_admin_span *span)
{
    add_node(table, span);
    if (span != NULL)
        ctl_table_add(table, CTL_PLAIN,
                      strchr(span->address, ':') != NULL ? "[%s]:%" PRIu32 : "%s:%" PRIu32,
                      span->address, span->port);
    else
        ctl_table_add(table, CTL_PLAIN, "-");
}

/* Why the rank is gone. Of one that is there: what it is called in its own pid namespace, and why its
 * ordinary memory is staged. */
static void add_note(struct ctl_table *table, const struct hvd_admin_rank *row)
{
    char own[64] = "";
    const bool staged = strncmp(row->memory, "staged", strlen("staged")) == 0;
    if (row->text[0] != '\0') {
        ctl_table_add(table, CTL_PLAIN, "%s", row->text);
        return;
    }
    if (row->own_pid != 0 && row->own_pid != row->pid)
        snprintf(own, sizeof own, "pid %" PRId32 " in its own pid namespace%s", row->own_pid,
                 staged ? "; " : "");
    ctl_table_add(table, CTL_PLAIN, "%s%s%s", own, staged ? "ordinary memory " : "",
                  staged ? row->memory : "");
}

static void add_rank(struct ctl_table *table, const struct hvd_admin_rank *row)
{
    char process[64];
    const bool gone = strcmp(row->state, "lost") == 0 || strcmp(row->state, "ended") == 0;
    const bool stopped = row->process[0] == 'T' || row->process[0] == 't';
    text_process(row->process[0] != '\0' ? row->process : "-", process, sizeof process);
    ctl_table_add(table, CTL_PLAIN, "%" PRId32, row->rank);
    add_number(table, row->pid);
    if (row->pid > 0 || row->own_pid > 0)
        add_user(table, row->uid);
    else
        ctl_table_add(table, CTL_PLAIN, "-");
    ctl_table_add(table, gone ? CTL_BAD : CTL_PLAIN, "%s", row->state);
    ctl_table_add(table, stopped ? CTL_NOTE : CTL_PLAIN, "%s", process);
    add_count(table, row->ops);
    add_bytes(table, row->bytes);
    add_count(table, row->in_flight);
    add_duration(table, row->lag_mean_ns);
    add_duration(table, row->lag_p50_ns);
    add_duration(table, row->lag_p99_ns);
    add_duration(table, row->lag_max_ns);
    add_share(table, row->last_ops, row->lag_ops);
    add_bytes(table, row->region_bytes);
    ctl_table_add(table, CTL_PLAIN, "%s", row->origin[0] != '\0' ? row->origin : "-");
    add_note(table, row);
}

void ctl_show_ranks(const struct ctl *ctl, const char *job, const struct hvd_admin_answer *reply)
{
    static const struct ctl_column columns[] = {
        {"NODE", false}, {"ADDRESS", false},  {"RANK", true},     {"PID", true},
        {"USER", false}, {"STATE", false},    {"PROCESS", false}, {"OPS", true},
        {"BYTES", true}, {"IN FLIGHT", true}, {"LAG MEAN", true}, {"P50", true},
        {"P99", true},   {"MAX", true},       {"LAST", true},     {"MEMORY", true},
        {"FROM", false}, {"NOTE", false},
    };
    const size_t skipped = reply->span_count > 0 ? 0 : 2;
    if (reply->rank_count == 0) {
        char safe[256];
        text_safe(job, safe, sizeof safe);
        fprintf(ctl->out, "no ranks known of job %s\n", safe);
        return;
    }
    struct ctl_table *table = ctl_table_new(columns + skipped, COUNT(columns) - skipped);
    for (size_t i = 0; i < reply->rank_count; i++) {
        if (skipped == 0)
            add_place(table, ctl_span_of(reply, reply->ranks[i]->node));
        add_rank(table, reply->ranks[i]);
    }
    finish(ctl, table, reply->rows_left_out);
    ctl_show_links(ctl, reply);
}

static void add_link(struct ctl_table *table, const struct hvd_admin_answer *reply,
                     const struct hvd_admin_span *span, const struct hvd_admin_link *row)
{
    const bool control = row->purpose == HVD_ADMIN_LINK_CONTROL;
    const bool tcp = strcmp(row->transport, "tcp") == 0;
    const struct hvd_admin_span *other = NULL;
    for (size_t i = 0; i < reply->span_count; i++) {
        if (reply->spans[i]->node == row->to && strcmp(reply->spans[i]->job, span->job) == 0)
            other = reply->spans[i];
    }
    ctl_table_add(table, CTL_PLAIN, "%s", span->job);
    add_node(table, span);
    add_node(table, other);
    if (control)
        ctl_table_add(table, CTL_PLAIN, "control");
    else
        ctl_table_add(table, CTL_PLAIN, "data %" PRIu32 "%s%s", row->lane, tcp ? "" : ", ",
                      tcp ? "" : row->transport);
    add_bytes(table, row->bytes_sent);
    add_bytes(table, row->bytes_received);
    if (control) {
        add_count(table, row->messages_sent);
        add_count(table, row->messages_received);
    } else {
        ctl_table_add(table, CTL_PLAIN, "-");
        ctl_table_add(table, CTL_PLAIN, "-");
    }
    ctl_table_add(table, row->retransmits > 0 ? CTL_NOTE : CTL_PLAIN, "%" PRIu64, row->retransmits);
    add_duration(table, row->rtt_ns);
}

void ctl_show_links(const struct ctl *ctl, const struct hvd_admin_answer *reply)
{
    static const struct ctl_column columns[] = {
        {"JOB", false},        {"LINK OF", false}, {"TO", false},          {"KIND", false},
        {"SENT", true},        {"RECEIVED", true}, {"MESSAGES OUT", true}, {"IN", true},
        {"RETRANSMITS", true}, {"RTT", true},
    };
    struct ctl_table *table = ctl_table_new(columns, COUNT(columns));
    for (size_t i = 0; i < reply->span_count; i++) {
        for (size_t k = 0; k < reply->spans[i]->link_count; k++)
            add_link(table, reply, reply->spans[i], reply->spans[i]->links[k]);
    }
    if (ctl_table_rows(table) > 0) {
        fputs("\n", ctl->out);
        ctl_table_print(table, ctl->out, ctl->colours);
    }
    ctl_table_free(table);
}

/* "0-3,5": ranks as ranges, in the order given. */
static void rank_ranges(const int32_t *ranks, size_t count, char *text_p, size_t size)
{
    size_t used = 0;
    text_p[0] = '\0';
    for (size_t i = 0; i < count && used + 16 < size;) {
        size_t last = i;
        while (last + 1 < count && ranks[last + 1] == ranks[last] + 1)
            last++;
        used +=
            (size_t)snprintf(text_p + used, size - used, "%s%" PRId32, i > 0 ? "," : "", ranks[i]);
        if (last > i && used + 16 < size)
            used += (size_t)snprintf(text_p + used, size - used, "%s%" PRId32,
                                     last == i + 1 ? "," : "-", ranks[last]);
        i = last + 1;
    }
}

static const char *without_pid(const struct hvd_admin_missing *rank)
{
    if (strcmp(rank->process, "elsewhere") == 0)
        return rank->waits_in;
    return strcmp(rank->process, "absent") == 0 ? "not attached" : "in another pid namespace";
}

static bool has_rank(const struct hvd_admin_span *span, int32_t rank)
{
    for (size_t i = 0; i < span->rank_count; i++) {
        if (span->ranks[i] == rank)
            return true;
    }
    return false;
}

const struct hvd_admin_span *ctl_missing_node(const struct hvd_admin_answer *reply,
                                              const struct hvd_admin_stall *row, int32_t rank)
{
    for (size_t i = 0; i < reply->span_count; i++) {
        const struct hvd_admin_span *span = reply->spans[i];
        if (span->uid == row->uid && strcmp(span->job, row->job) == 0 && has_rank(span, rank))
            return span;
    }
    return NULL;
}

/* "node 1 b, ", where the job is on several nodes. Of a rank of which its node has said nothing, that is said instead. */
static void missing_place(const struct hvd_admin_answer *reply, const struct hvd_admin_stall *row,
                          const struct hvd_admin_missing *rank, char *text_p, size_t size)
{
    const struct hvd_admin_span *span = ctl_missing_node(reply, row, rank->rank);

    text_p[0] = '\0';
    if (span != NULL && strcmp(rank->process, "elsewhere") != 0)
        snprintf(text_p, size, "node %" PRIu32 " %s, ", span->node, span->name);
}

/* "2 (pid 4711, stopped (T)), 3 (pid 4712, sleeping (S) in allreduce 'b'), 4 (not attached)", or
 * "2 (node 1 b, pid 4711, stopped (T))"; the first few. */
static void missing_ranks(const struct hvd_admin_answer *reply, const struct hvd_admin_stall *row,
                          char *text_p, size_t size)
{
    const size_t shown_max = 6;
    size_t used = 0;
    text_p[0] = '\0';
    for (size_t i = 0; i < row->missing_count && i < shown_max && used + 320 < size; i++) {
        const struct hvd_admin_missing *rank = row->missing[i];
        char process[64], node[96];
        text_process(rank->process, process, sizeof process);
        missing_place(reply, row, rank, node, sizeof node);
        const char *comma = i > 0 ? ", " : "";
        if (rank->pid > 0)
            used += (size_t)snprintf(text_p + used, size - used,
                                     "%s%" PRId32 " (%spid %" PRId32 ", %s%s%s)", comma, rank->rank,
                                     node, rank->pid, process,
                                     rank->waits_in[0] != '\0' ? " in " : "", rank->waits_in);
        else
            used += (size_t)snprintf(text_p + used, size - used, "%s%" PRId32 " (%s%s)", comma,
                                     rank->rank, node, without_pid(rank));
    }
    if (row->missing_count > shown_max)
        snprintf(text_p + used, size - used, " and %zu more", row->missing_count - shown_max);
}

void ctl_show_stalls(const struct ctl *ctl, const struct hvd_admin_answer *reply)
{
    static const struct ctl_column columns[] = {
        {"JOB", false}, {"TENSOR", false}, {"OP", false},      {"SET", true},
        {"AGE", true},  {"READY", false},  {"MISSING", false},
    };
    if (reply->stall_count == 0) {
        fputs("nothing waits\n", ctl->out);
        return;
    }
    struct ctl_table *table = ctl_table_new(columns, COUNT(columns));
    for (size_t i = 0; i < reply->stall_count; i++) {
        const struct hvd_admin_stall *row = reply->stalls[i];
        char text[2048];
        ctl_table_add(table, CTL_PLAIN, "%s", row->job[0] != '\0' ? row->job : "-");
        ctl_table_add(table, CTL_PLAIN, "%s", row->tensor);
        ctl_table_add(table, CTL_PLAIN, "%s", row->op);
        ctl_table_add(table, CTL_PLAIN, "%" PRIu32, row->process_set);
        add_duration(table, row->age_ns);
        rank_ranges(row->ready, row->ready_count, text, sizeof text);
        ctl_table_add(table, CTL_PLAIN, "%s", text);
        missing_ranks(reply, row, text, sizeof text);
        ctl_table_add(table, CTL_NOTE, "%s", text);
    }
    finish(ctl, table, reply->rows_left_out);
}

static int by_rank_and_time(const void *a, const void *b)
{
    const struct hvd_admin_trace *left = *(const struct hvd_admin_trace *const *)a;
    const struct hvd_admin_trace *right = *(const struct hvd_admin_trace *const *)b;
    if (left->rank != right->rank)
        return left->rank < right->rank ? -1 : 1;
    /* What is in flight has no number yet and comes after everything that has. */
    if (left->number != right->number)
        return left->number - 1 < right->number - 1 ? -1 : 1;
    return left->submit_ns < right->submit_ns ? -1 : left->submit_ns > right->submit_ns;
}

void ctl_sort_trace(const struct hvd_admin_trace **rows, size_t count)
{
    if (count > 0)
        qsort(rows, count, sizeof *rows, by_rank_and_time);
}

static void add_trace(struct ctl_table *table, const struct hvd_admin_trace *row, uint64_t now_ns)
{
    const bool open = row->status == HVI_INPROGRESS;
    const uint64_t end_ns = open ? now_ns : row->done_ns;
    const uint64_t met_ns = row->ready_ns > 0 ? row->ready_ns : end_ns;
    ctl_table_add(table, CTL_PLAIN, "%" PRId32, row->rank);
    if (open)
        ctl_table_add(table, CTL_PLAIN, "-");
    else
        ctl_table_add(table, CTL_PLAIN, "%" PRIu64, row->number);
    add_duration(table, now_ns > row->submit_ns ? now_ns - row->submit_ns : 0);
    ctl_table_add(table, CTL_PLAIN, "%s", row->tensor);
    ctl_table_add(table, CTL_PLAIN, "%s", row->op);
    ctl_table_add(table, CTL_PLAIN, "%s", row->dtype[0] != '\0' ? row->dtype : "-");
    add_bytes(table, row->bytes);
    ctl_table_add(table, CTL_PLAIN, "%" PRIu32, row->process_set);
    add_duration(table, met_ns > row->submit_ns ? met_ns - row->submit_ns : 0);
    add_duration(table, row->ready_ns > 0 && end_ns > row->ready_ns ? end_ns - row->ready_ns : 0);
    if (row->device_ns > 0)
        add_duration(table, row->device_ns);
    else
        ctl_table_add(table, CTL_PLAIN, "-");
    if (open)
        ctl_table_add(table, CTL_NOTE, row->ready_ns > 0 ? "executing" : "waiting");
    else
        ctl_table_add(table, row->status == HVI_OK ? CTL_PLAIN : CTL_BAD, "%s",
                      hvi_status_name(row->status));
}

/* How far the times of other nodes can be trusted. */
static void show_clocks(const struct ctl *ctl, const struct hvd_admin_span *const *spans,
                        size_t count)
{
    for (size_t i = 0; i < count; i++) {
        char error[32], safe[256];
        if (spans[i]->clock_error_ns == 0)
            continue;
        text_duration(spans[i]->clock_error_ns, error, sizeof error);
        text_safe(spans[i]->name, safe, sizeof safe);
        fprintf(ctl->out, "(the times of node %" PRIu32 ", %s, are right to within %s)\n",
                spans[i]->node, safe, error);
    }
}

void ctl_show_trace(const struct ctl *ctl, const struct ctl_trace *trace)
{
    static const struct ctl_column columns[] = {
        {"RANK", true},   {"OP NO", true},  {"AGO", true},   {"TENSOR", false},
        {"OP", false},    {"DTYPE", false}, {"BYTES", true}, {"SET", true},
        {"WAITED", true}, {"RAN", true},    {"GPU", true},   {"STATUS", false},
    };
    const uint64_t now_ns = hvi_clock_ns();
    if (trace->count == 0) {
        fputs("no ops yet\n", ctl->out);
        return;
    }
    struct ctl_table *table = ctl_table_new(columns, COUNT(columns));
    for (size_t i = 0; i < trace->count; i++)
        add_trace(table, trace->rows[i], now_ns);
    finish(ctl, table, trace->rows_left_out);
    show_clocks(ctl, trace->spans, trace->span_count);
}

void ctl_top_compare(struct ctl_top_row *row, const struct hvd_admin_rank *before,
                     uint64_t interval_ns)
{
    const struct hvd_admin_rank nothing = {0};
    const struct hvd_admin_rank *now = &row->now;
    const double seconds = (double)interval_ns / (double)HVI_NS_SEC;
    if (before == NULL || before->ops > now->ops || before->lag_ops > now->lag_ops)
        before = &nothing;
    const uint64_t met = now->lag_ops - before->lag_ops;
    row->ops_per_s = seconds > 0 ? (uint64_t)((double)(now->ops - before->ops) / seconds) : 0;
    row->bytes_per_s = seconds > 0 ? (uint64_t)((double)(now->bytes - before->bytes) / seconds) : 0;
    row->lag_ns = met > 0 ? (now->lag_sum_ns - before->lag_sum_ns) / met : 0;
    row->met = met;
    row->last = now->last_ops - before->last_ops;
}

void ctl_show_top(const struct ctl *ctl, const struct ctl_top_row *rows, size_t count)
{
    static const struct ctl_column columns[] = {
        {"JOB", false},    {"RANK", true},      {"PID", true}, {"PROCESS", false}, {"OPS/S", true},
        {"BYTES/S", true}, {"IN FLIGHT", true}, {"LAG", true}, {"LAG P99", true},  {"LAST", true},
    };
    if (count == 0) {
        fputs("no jobs\n", ctl->out);
        return;
    }
    struct ctl_table *table = ctl_table_new(columns, COUNT(columns));
    for (size_t i = 0; i < count; i++) {
        const struct ctl_top_row *row = &rows[i];
        char process[64];
        text_process(row->now.process[0] != '\0' ? row->now.process : row->now.state, process,
                     sizeof process);
        ctl_table_add(table, CTL_PLAIN, "%s", row->job);
        ctl_table_add(table, CTL_PLAIN, "%" PRId32, row->now.rank);
        add_number(table, row->now.pid);
        ctl_table_add(table, CTL_PLAIN, "%s", process);
        add_count(table, row->ops_per_s);
        add_bytes(table, row->bytes_per_s);
        add_count(table, row->now.in_flight);
        add_duration(table, row->lag_ns);
        add_duration(table, row->now.lag_p99_ns);
        add_share(table, row->last, row->met);
    }
    finish(ctl, table, 0);
}

/* ---- events ---- */

static void show_text(const struct ctl *ctl, const char *before, const char *text)
{
    char safe[4 * 1024];
    if (text[0] == '\0')
        return;
    text_safe(text, safe, sizeof safe);
    fprintf(ctl->out, "%s%s", before, safe);
}

static void show_names(const struct ctl *ctl, const char *what, const char *const *names,
                       size_t count)
{
    for (size_t i = 0; i < count; i++)
        show_text(ctl, i == 0 ? what : ", ", names[i]);
}

static void show_time(const struct ctl *ctl)
{
    char text[32] = "";
    const time_t now = time(NULL);
    struct tm parts;
    if (localtime_r(&now, &parts) != NULL)
        strftime(text, sizeof text, "%H:%M:%S", &parts);
    fputs(text, ctl->out);
}

void ctl_show_subscribed(const struct ctl *ctl)
{
    show_time(ctl);
    fputs("  subscribed\n", ctl->out);
}

void ctl_show_event(const struct ctl *ctl, const struct hvd_admin_event *event, const char *kind)
{
    show_time(ctl);
    fprintf(ctl->out, "  %-16s", kind);
    show_text(ctl, "  ", event->node);
    show_text(ctl, "  job ", event->job);
    if (event->rank != HVD_ADMIN_ANY)
        fprintf(ctl->out, "  rank %d", (int)event->rank);
    if (event->kind == HVD_ADMIN_EVENT_LOST && event->count > 0)
        fprintf(ctl->out, "  %llu", (unsigned long long)event->count);
    show_text(ctl, "  ", event->text);
    show_names(ctl, "  added ", event->added, event->added_count);
    show_names(ctl, "  removed ", event->removed, event->removed_count);
    if (event->kind == HVD_ADMIN_EVENT_HOSTS_CHANGED)
        fprintf(ctl->out, "  now %llu", (unsigned long long)event->count);
    fputc('\n', ctl->out);
}
