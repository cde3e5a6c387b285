/* SPDX-License-Identifier: Apache-2.0
 * `hvdctl top`: the counters of every rank, looked at twice and subtracted. Two looks share nothing
 * but the rank's number and pid, so a rank that has come anew starts from nothing. */
#include "base/clock.h"
#include "base/status.h"
#include "tools/hvdctl/ctl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct look {
    uint64_t at_ns;
    struct ctl_top_row *rows; /* .job and .now are set */
    size_t count;
};

static void take_rows(struct look *look, const char *job, const struct hvi_admin_reply *reply)
{
    struct ctl_top_row *rows =
        realloc(look->rows, (look->count + reply->rank_count + 1) * sizeof *rows);
    if (rows == NULL) {
        fputs("hvdctl: out of memory\n", stderr);
        exit(CTL_REFUSED);
    }
    look->rows = rows;
    for (size_t i = 0; i < reply->rank_count; i++) {
        struct ctl_top_row *row = &rows[look->count++];
        memset(row, 0, sizeof *row);
        snprintf(row->job, sizeof row->job, "%s", job);
        row->now = reply->ranks[i];
    }
}

/* `uid` NULL: of the user whom --user names, if any. */
static int look_at_job(const struct ctl *ctl, const char *job, const uint32_t *uid,
                       struct look *look)
{
    struct hvi_admin_request request = {.kind = HVI_ADMIN_RANKS,
                                        .of_owner = uid != NULL || ctl->of_owner,
                                        .owner = uid != NULL ? *uid : ctl->owner};
    struct hvi_admin_reply reply;
    snprintf(request.job, sizeof request.job, "%s", job);
    const int code = ctl_ask(ctl, &request, &reply);
    if (code != CTL_OK)
        return code;
    take_rows(look, job, &reply);
    hvi_admin_reply_free(&reply);
    return CTL_OK;
}

/* Every job that may be looked at; one that ends meanwhile is not worth more than its sentence on stderr. */
static int look_at_all(const struct ctl *ctl, struct look *look)
{
    struct hvi_admin_request request = {.kind = HVI_ADMIN_JOBS};
    struct hvi_admin_reply reply;
    const int code = ctl_ask(ctl, &request, &reply);
    if (code != CTL_OK)
        return code;
    for (size_t i = 0; i < reply.job_count; i++) {
        bool seen = reply.jobs[i].withheld;
        for (size_t j = 0; j < i; j++)
            seen = seen || (reply.jobs[i].uid == reply.jobs[j].uid &&
                            strcmp(reply.jobs[i].job, reply.jobs[j].job) == 0);
        if (!seen)
            look_at_job(ctl, reply.jobs[i].job, &reply.jobs[i].uid, look);
    }
    hvi_admin_reply_free(&reply);
    return CTL_OK;
}

static int take_look(const struct ctl *ctl, const char *job, struct look *look)
{
    free(look->rows);
    *look = (struct look){.at_ns = hvi_clock_ns()};
    return job != NULL ? look_at_job(ctl, job, NULL, look) : look_at_all(ctl, look);
}

static const struct hvi_rank_row *find(const struct look *look, const struct ctl_top_row *wanted)
{
    for (size_t i = 0; i < look->count; i++) {
        const struct ctl_top_row *row = &look->rows[i];
        if (row->now.rank == wanted->now.rank && row->now.pid == wanted->now.pid &&
            strcmp(row->job, wanted->job) == 0)
            return &row->now;
    }
    return NULL;
}

static void print(const struct ctl *ctl, const struct look *before, struct look *after)
{
    const uint64_t interval_ns = after->at_ns - before->at_ns;
    for (size_t i = 0; i < after->count; i++)
        ctl_top_compare(&after->rows[i], find(before, &after->rows[i]), interval_ns);
    if (ctl->json) {
        ctl_json_top(ctl, after->rows, after->count, interval_ns);
        return;
    }
    if (!ctl->once && isatty(fileno(ctl->out)))
        fputs("\033[H\033[2J", ctl->out);
    ctl_show_top(ctl, after->rows, after->count);
    if (!ctl->once)
        fputc('\n', ctl->out);
    fflush(ctl->out);
}

static void pause_for(uint64_t ns)
{
    struct timespec left = {.tv_sec = (time_t)(ns / HVI_NS_SEC),
                            .tv_nsec = (long)(ns % HVI_NS_SEC)};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
}

int ctl_top(const struct ctl *ctl, char **args, int count)
{
    struct hvi_admin_request checked;
    struct look before = {0}, after = {0};
    const char *job = count > 0 ? args[0] : NULL;
    int code = job != NULL ? ctl_copy_job(ctl, job, &checked) : CTL_OK;
    if (code == CTL_OK)
        code = take_look(ctl, job, &before);
    while (code == CTL_OK) {
        pause_for(ctl->interval_ns);
        code = take_look(ctl, job, &after);
        if (code != CTL_OK)
            break;
        print(ctl, &before, &after);
        if (ctl->once || ctl->json || ferror(ctl->out))
            break;
        free(before.rows);
        before = after;
        after = (struct look){0};
    }
    free(before.rows);
    free(after.rows);
    return code;
}
