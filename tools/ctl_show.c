/* SPDX-License-Identifier: Apache-2.0
 * Replies as tables. Everything a daemon sends passes through ctl_table_add or text_safe, so a
 * tensor name cannot move the cursor. */
#include "tools/ctl.h"
#include "tools/ctl_table.h"
#include "tools/text.h"

#include <inttypes.h>
#include <pwd.h>
#include <stdarg.h>
#include <string.h>

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

static void add_user(struct ctl_table *table, uint32_t uid)
{
    char text[64];
    user_name(uid, text, sizeof text);
    ctl_table_add(table, CTL_PLAIN, "%s", text);
}

static void add_pid(struct ctl_table *table, int32_t pid)
{
    if (pid > 0)
        ctl_table_add(table, CTL_PLAIN, "%" PRId32, pid);
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

void ctl_show_status(const struct ctl *ctl, const struct hvi_admin_reply *reply)
{
    const struct hvi_daemon_status *daemon = &reply->daemon;
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
    if (daemon->log_lost > 0)
        line(ctl, "log", "%" PRIu64 " lines could not be written", daemon->log_lost);
}

void ctl_show_jobs(const struct ctl *ctl, const struct hvi_admin_reply *reply)
{
    static const struct ctl_column columns[] = {
        {"JOB", false}, {"GEN", true},    {"USER", false}, {"STATE", false}, {"RANKS", true},
        {"AGE", true},  {"ENGINE", true}, {"OPS", true},   {"BYTES", true},
    };
    if (reply->job_count == 0) {
        fputs("no jobs\n", ctl->out);
        return;
    }
    struct ctl_table *table = ctl_table_new(columns, COUNT(columns));
    for (size_t i = 0; i < reply->job_count; i++) {
        const struct hvi_job_row *row = &reply->jobs[i];
        const bool failed = strcmp(row->state, "failed") == 0;
        ctl_table_add(table, CTL_PLAIN, "%s", row->job);
        ctl_table_add(table, CTL_PLAIN, "%" PRIu64, row->generation);
        add_user(table, row->uid);
        ctl_table_add(table, failed ? CTL_BAD : CTL_PLAIN, "%s", row->state);
        ctl_table_add(table, CTL_PLAIN, "%" PRId32 "/%" PRId32, row->attached, row->size);
        add_duration(table, row->age_ns);
        add_pid(table, row->engine_pid);
        add_count(table, row->ops);
        add_bytes(table, row->bytes);
    }
    finish(ctl, table, reply->rows_left_out);
}

static void add_rank(struct ctl_table *table, const struct hvi_rank_row *row)
{
    char process[64];
    const bool gone = strcmp(row->state, "lost") == 0 || strcmp(row->state, "ended") == 0;
    const bool stopped = row->process[0] == 'T' || row->process[0] == 't';
    text_process(row->process[0] != '\0' ? row->process : "-", process, sizeof process);
    ctl_table_add(table, CTL_PLAIN, "%" PRId32, row->rank);
    add_pid(table, row->pid);
    if (row->pid > 0)
        add_user(table, row->uid);
    else
        ctl_table_add(table, CTL_PLAIN, "-");
    ctl_table_add(table, gone ? CTL_BAD : CTL_PLAIN, "%s", row->state);
    ctl_table_add(table, stopped ? CTL_NOTE : CTL_PLAIN, "%s", process);
    add_count(table, row->ops);
    add_bytes(table, row->bytes);
    add_count(table, row->in_flight);
    add_duration(table, row->lag_mean_ns);
    add_duration(table, row->lag_max_ns);
    add_bytes(table, row->region_bytes);
    ctl_table_add(table, CTL_PLAIN, "%s", row->origin[0] != '\0' ? row->origin : "-");
    ctl_table_add(table, CTL_PLAIN, "%s", row->text);
}

void ctl_show_ranks(const struct ctl *ctl, const char *job, const struct hvi_admin_reply *reply)
{
    static const struct ctl_column columns[] = {
        {"RANK", true},     {"PID", true},     {"USER", false},  {"STATE", false},
        {"PROCESS", false}, {"OPS", true},     {"BYTES", true},  {"IN FLIGHT", true},
        {"LAG MEAN", true}, {"LAG MAX", true}, {"MEMORY", true}, {"FROM", false},
        {"NOTE", false},
    };
    if (reply->rank_count == 0) {
        char safe[256];
        text_safe(job, safe, sizeof safe);
        fprintf(ctl->out, "no ranks known of job %s\n", safe);
        return;
    }
    struct ctl_table *table = ctl_table_new(columns, COUNT(columns));
    for (size_t i = 0; i < reply->rank_count; i++)
        add_rank(table, &reply->ranks[i]);
    finish(ctl, table, reply->rows_left_out);
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

/* "2 (pid 4711, stopped (T)), 3 (not attached)"; the first few. */
static void missing_ranks(const struct hvi_stall_row *row, char *text_p, size_t size)
{
    const size_t shown_max = 8;
    size_t used = 0;
    text_p[0] = '\0';
    for (size_t i = 0; i < row->missing_count && i < shown_max && used + 128 < size; i++) {
        const struct hvi_missing_rank *rank = &row->missing[i];
        char process[64];
        text_process(rank->process, process, sizeof process);
        const char *comma = i > 0 ? ", " : "";
        if (rank->pid > 0)
            used +=
                (size_t)snprintf(text_p + used, size - used, "%s%" PRId32 " (pid %" PRId32 ", %s)",
                                 comma, rank->rank, rank->pid, process);
        else
            used += (size_t)snprintf(text_p + used, size - used, "%s%" PRId32 " (not attached)",
                                     comma, rank->rank);
    }
    if (row->missing_count > shown_max)
        snprintf(text_p + used, size - used, " and %zu more", row->missing_count - shown_max);
}

void ctl_show_stalls(const struct ctl *ctl, const struct hvi_admin_reply *reply)
{
    static const struct ctl_column columns[] = {
        {"JOB", false}, {"TENSOR", false}, {"OP", false},
        {"AGE", true},  {"READY", false},  {"MISSING", false},
    };
    if (reply->stall_count == 0) {
        fputs("nothing waits\n", ctl->out);
        return;
    }
    struct ctl_table *table = ctl_table_new(columns, COUNT(columns));
    for (size_t i = 0; i < reply->stall_count; i++) {
        const struct hvi_stall_row *row = &reply->stalls[i];
        char text[1024];
        ctl_table_add(table, CTL_PLAIN, "%s", row->job[0] != '\0' ? row->job : "-");
        ctl_table_add(table, CTL_PLAIN, "%s", row->tensor);
        ctl_table_add(table, CTL_PLAIN, "%s", row->op);
        add_duration(table, row->age_ns);
        rank_ranges(row->ready, row->ready_count, text, sizeof text);
        ctl_table_add(table, CTL_PLAIN, "%s", text);
        missing_ranks(row, text, sizeof text);
        ctl_table_add(table, CTL_NOTE, "%s", text);
    }
    finish(ctl, table, reply->rows_left_out);
}
