/* SPDX-License-Identifier: Apache-2.0
 * `hvdctl top`: the counters of every rank, looked at twice and subtracted. Two looks share nothing
 * but the rank's number and pid, so a rank that has come anew starts from nothing. */
#include "base/clock.h"
#include "base/status.h"
#include "tools/hvdctl/ctl.h"
#include "tools/hvdctl/table.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct look {
    uint64_t at_ns;
    struct ctl_top_row *rows; /* .job and .now are set */
    size_t count;
    struct hvd_admin_answer **replies; /* to which the rows' texts belong */
    size_t reply_count;
    const char *note; /* what keeps it from being all there is; "": nothing */
};

static void look_free(struct look *look)
{
    for (size_t i = 0; i < look->reply_count; i++)
        hvd_admin_answer_free(look->replies[i]);
    free(look->replies);
    free(look->rows);
}

static void keep(struct look *look, struct hvd_admin_answer *reply)
{
    look->replies =
        ctl_must(realloc(look->replies, (look->reply_count + 1) * sizeof *look->replies));
    look->replies[look->reply_count++] = reply;
}

/* `job` lives as long as the look. */
static void take_rows(struct look *look, const char *job, struct hvd_admin_answer *reply)
{
    look->rows =
        ctl_must(realloc(look->rows, (look->count + reply->rank_count + 1) * sizeof *look->rows));
    for (size_t i = 0; i < reply->rank_count; i++)
        look->rows[look->count++] = (struct ctl_top_row){.job = job, .now = *reply->ranks[i]};
    keep(look, reply);
}

/* `uid` NULL: of the user whom --user names, if any. */
static int look_at_job(const struct ctl *ctl, const char *job, const uint32_t *uid,
                       struct look *look)
{
    struct hvd_admin_request request = ctl_request(HVD_ADMIN_RANKS);
    struct hvd_admin_answer *reply;
    request.job = job;
    if (uid != NULL || ctl->of_owner)
        request.owner = uid != NULL ? *uid : ctl->owner;
    const int code = ctl_ask(ctl, &request, &reply);
    if (code != CTL_OK)
        return code;
    ctl_say_silent(ctl, reply);
    if (reply->text[0] != '\0')
        look->note = reply->text;
    take_rows(look, job, reply);
    return CTL_OK;
}

/* Every job that may be looked at; one that ends meanwhile is not worth more than its sentence on stderr, also where the rest
 * is JSON. */
static int look_at_all(const struct ctl *ctl, struct look *look)
{
    struct ctl aside = *ctl;
    struct hvd_admin_request request = ctl_request(HVD_ADMIN_JOBS);
    struct hvd_admin_answer *reply;
    const int code = ctl_ask(ctl, &request, &reply);
    if (code != CTL_OK)
        return code;
    aside.json = false;
    for (size_t i = 0; i < reply->job_count; i++) {
        const struct hvd_admin_job *job = reply->jobs[i];
        bool seen = job->withheld != 0;
        for (size_t j = 0; j < i; j++)
            seen = seen ||
                   (job->uid == reply->jobs[j]->uid && strcmp(job->job, reply->jobs[j]->job) == 0);
        if (!seen)
            look_at_job(&aside, job->job, &job->uid, look);
    }
    keep(look, reply);
    return CTL_OK;
}

static int take_look(const struct ctl *ctl, const char *job, struct look *look)
{
    look_free(look);
    *look = (struct look){.at_ns = hvi_clock_ns(), .note = ""};
    return job != NULL ? look_at_job(ctl, job, NULL, look) : look_at_all(ctl, look);
}

static const struct hvd_admin_rank *find(const struct look *look, const struct ctl_top_row *wanted)
{
    for (size_t i = 0; i < look->count; i++) {
        const struct ctl_top_row *row = &look->rows[i];
        if (row->now.rank == wanted->now.rank && row->now.pid == wanted->now.pid &&
            strcmp(row->job, wanted->job) == 0)
            return &row->now;
    }
    return NULL;
}

static void print(const struct ctl *ctl, const char *job, const struct look *before,
                  struct look *after)
{
    const uint64_t interval_ns = after->at_ns - before->at_ns;
    for (size_t i = 0; i < after->count; i++)
        ctl_top_compare(&after->rows[i], find(before, &after->rows[i]), interval_ns);
    if (ctl->json) {
        ctl_json_top(ctl, after->rows, after->count, interval_ns, after->note);
        return;
    }
    if (!ctl->once && isatty(fileno(ctl->out)))
        fputs("\033[H\033[2J", ctl->out);
    if (job != NULL && after->count == 0)
        fputs("no ranks\n", ctl->out);
    else
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
    struct hvd_admin_request checked;
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
        print(ctl, job, &before, &after);
        if (ctl->once || ctl->json || ferror(ctl->out))
            break;
        look_free(&before);
        before = after;
        after = (struct look){0};
    }
    look_free(&before);
    look_free(&after);
    return code;
}
