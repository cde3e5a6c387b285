/* SPDX-License-Identifier: Apache-2.0
 * The stall inspector. Its table is negotiate.c's list of waiting ops, oldest first; nothing is
 * kept beside it. A timer looks at it once a second while it is not empty (the same timer has
 * liveness.c watch the ranks every 20 ms): an op older than the limit is logged with the ranks that
 * are missing and what their processes are doing, and again whenever its age has doubled. hvdctl
 * asks for the same rows live. */
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "daemon/engine/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What keeps the op waiting: ranks that have not submitted, or that have not given their output. */
static bool is_missing(const struct engine_op *op, int32_t rank)
{
    const struct engine_part *part = op->parts[rank];

    return !part || (op->state == ENGINE_OP_SIZING && part->output_asked);
}

static enum hvi_kind kind_of(const struct engine *engine, const struct engine_op *op)
{
    for (int32_t rank = 0; rank < engine->start.size; rank++) {
        if (op->parts[rank])
            return (enum hvi_kind)op->parts[rank]->copy.kind;
    }
    return HVI_KIND_BARRIER;
}

static void fill_missing(const struct engine *engine, int32_t rank,
                         struct hvi_missing_rank *missing)
{
    const struct engine_rank *slot = &engine->ranks[rank];

    missing->rank = rank;
    missing->pid = slot->session ? slot->pid : 0;
    if (slot->session)
        snprintf(missing->process, sizeof missing->process, "%c", hvi_process_state(slot->pid));
    else
        snprintf(missing->process, sizeof missing->process, "absent");
}

static int fill_row(const struct engine *engine, const struct engine_op *op, uint64_t now_ns,
                    struct hvi_stall_row *row)
{
    size_t size = (size_t)engine->start.size;

    row->ready = calloc(size, sizeof *row->ready);
    row->missing = calloc(size, sizeof *row->missing);
    if (!row->ready || !row->missing)
        return HVI_ERR_NO_MEMORY;
    engine_tensor_name(op->tensor, row->tensor);
    snprintf(row->op, sizeof row->op, "%s", hvi_kind_text(kind_of(engine, op)));
    snprintf(row->job, sizeof row->job, "%s", engine->start.job);
    row->age_ns = now_ns - op->first_ns;
    for (int32_t rank = 0; rank < engine->start.size; rank++) {
        if (is_missing(op, rank))
            fill_missing(engine, rank, &row->missing[row->missing_count++]);
        else
            row->ready[row->ready_count++] = rank;
    }
    return HVI_OK;
}

void engine_stall_rows_free(struct hvi_stall_row *rows, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        free(rows[i].ready);
        free(rows[i].missing);
    }
    free(rows);
}

int engine_stall_rows(struct engine *engine, uint64_t min_age_ns, size_t limit,
                      struct hvi_stall_row **rows_p, size_t *count_p, uint64_t *left_out_p)
{
    uint64_t now_ns = hvi_clock_ns();
    uint64_t left_out = 0;
    size_t count = 0;
    struct hvi_stall_row *rows = calloc(limit, sizeof *rows);

    if (!rows)
        return HVI_ERR_NO_MEMORY;
    for (const struct engine_op *op = engine->waiting_first; op; op = op->next) {
        if (now_ns - op->first_ns < min_age_ns)
            break;
        if (count == limit) {
            left_out++;
        } else if (fill_row(engine, op, now_ns, &rows[count++]) != HVI_OK) {
            engine_stall_rows_free(rows, count);
            return HVI_ERR_NO_MEMORY;
        }
    }
    *rows_p = rows;
    *count_p = count;
    *left_out_p = left_out;
    return HVI_OK;
}

/* "2 (pid 4711, T), 3 (absent)"; a long list is cut. */
static void describe_missing(const struct hvi_stall_row *row, char *text_p, size_t size)
{
    size_t used = 0;

    text_p[0] = '\0';
    for (size_t i = 0; i < row->missing_count && used < size; i++) {
        const struct hvi_missing_rank *missing = &row->missing[i];
        const char *comma = i > 0 ? ", " : "";
        if (missing->pid != 0)
            used += (size_t)snprintf(text_p + used, size - used, "%s%d (pid %d, %s)", comma,
                                     missing->rank, missing->pid, missing->process);
        else
            used += (size_t)snprintf(text_p + used, size - used, "%s%d (%s)", comma, missing->rank,
                                     missing->process);
    }
}

static void warn(struct engine *engine, struct engine_op *op, uint64_t now_ns)
{
    struct hvi_stall_row row = {0};
    char missing[512], sentence[640];

    if (fill_row(engine, op, now_ns, &row) == HVI_OK) {
        describe_missing(&row, missing, sizeof missing);
        snprintf(sentence, sizeof sentence, "%s waits for rank%s %s", row.op,
                 row.missing_count == 1 ? "" : "s", missing);
        HVI_LOG(HVI_LOG_WARN, "stall", "op-stalled", sentence, "job=%s tensor=%s age_ms=%llu",
                engine->start.job, row.tensor, (unsigned long long)(row.age_ns / HVI_NS_MS));
    }
    free(row.ready);
    free(row.missing);
    op->warn_ns = now_ns + (now_ns - op->first_ns);
}

static void look(struct engine *engine)
{
    uint64_t now_ns = hvi_clock_ns();

    if (engine->stall_warn_ns == 0)
        return;
    for (struct engine_op *op = engine->waiting_first; op; op = op->next) {
        if (now_ns - op->first_ns < engine->stall_warn_ns)
            return;
        if (now_ns >= op->warn_ns)
            warn(engine, op, now_ns);
    }
}

static int on_timer(sd_event_source *source, uint64_t usec, void *user)
{
    struct engine *engine = user;
    uint64_t now_ns = hvi_clock_ns();

    (void)usec;
    engine_liveness_watch(engine);
    if (now_ns - engine->stall_looked_ns >= ENGINE_STALL_NS) {
        engine->stall_looked_ns = now_ns;
        /* A client that scribbles over the bell must not keep its peers' submissions from being
         * seen. */
        engine_intake_drain_all(engine);
        look(engine);
    }
    if (!engine->waiting_first)
        return sd_event_source_set_enabled(source, SD_EVENT_OFF);
    sd_event_source_set_time_relative(source, ENGINE_WATCH_NS / 1000);
    return sd_event_source_set_enabled(source, SD_EVENT_ONESHOT);
}

void engine_stall_arm(struct engine *engine)
{
    int enabled = SD_EVENT_OFF;

    if (!engine->stall_source) {
        engine->stall_looked_ns = hvi_clock_ns();
        sd_event_add_time_relative(engine->event, &engine->stall_source, CLOCK_MONOTONIC,
                                   ENGINE_WATCH_NS / 1000, 1000, on_timer, engine);
        return;
    }
    sd_event_source_get_enabled(engine->stall_source, &enabled);
    if (enabled != SD_EVENT_OFF)
        return;
    sd_event_source_set_time_relative(engine->stall_source, ENGINE_WATCH_NS / 1000);
    sd_event_source_set_enabled(engine->stall_source, SD_EVENT_ONESHOT);
}

/* ---- settings ---- */

/* HVD_* wins over HOROVOD_*. */
static const char *find_setting(const struct hvi_setting *settings, size_t count, const char *name)
{
    static const char *const prefixes[] = {"HVD_", "HOROVOD_"};
    char full[HVI_WIRE_SETTING_NAME];

    for (size_t p = 0; p < 2; p++) {
        snprintf(full, sizeof full, "%s%s", prefixes[p], name);
        for (size_t i = 0; i < count; i++) {
            if (strcmp(settings[i].name, full) == 0)
                return settings[i].value;
        }
    }
    return NULL;
}

void engine_stall_configure(struct engine *engine, const struct hvi_setting *settings, size_t count)
{
    const char *disable = find_setting(settings, count, "STALL_CHECK_DISABLE");
    const char *seconds = find_setting(settings, count, "STALL_CHECK_TIME_SECONDS");
    char *end = NULL;

    if (seconds) {
        double value = strtod(seconds, &end);
        if (end != seconds && *end == '\0' && value >= 0 && value <= 1e9)
            engine->stall_warn_ns = (uint64_t)(value * (double)HVI_NS_SEC);
        else
            HVI_LOG(HVI_LOG_WARN, "stall", "bad-setting",
                    "STALL_CHECK_TIME_SECONDS is no number of seconds", "value=%s", seconds);
    }
    if (disable && disable[0] != '\0' && strcmp(disable, "0") != 0)
        engine->stall_warn_ns = 0;
}
