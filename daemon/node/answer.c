/* SPDX-License-Identifier: Apache-2.0
 * What an admin request gets. hvdd itself knows jobs and slots; ops, lags and stalls are known by
 * the engines alone, so such a request becomes an `answer`: the reply as far as it is known, one
 * question per engine, and a second's time. An engine that stays silent leaves no rows but a
 * sentence that says so. The engine of a job that spans nodes asks the others, and sends a report for each
 * node (daemon/engine/gather.h).
 *
 * What is used of limits (base/limits.def): hvdd counts jobs, sessions, connections and workers itself, and every engine
 * says with its answer to a beat (beat.c) what its job uses. So no engine is asked, and its figures are a second old at
 * most. The gate answers for its own. */
#include "daemon/node/node.h"

#include "base/limits.h"
#include "base/status.h"
#include "base/utf8.h"
#include "daemon/node/merge.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <utlist.h>

#define REASON_MAX     700 /* bytes of a stop reason that are passed on */
#define ANSWERS_MAX    256
#define ANSWER_WAIT_NS HVI_NS_SEC
#define SPANS_WAIT_NS  (2 * HVI_NS_SEC) /* where an engine gives other nodes 0.8 s */

/* One engine that was asked. */
struct question {
    uint64_t number;                  /* EngineQuery.request */
    const struct node_engine *engine; /* NULL: answered, or gone */
    size_t row;                       /* reply.jobs[row], for a jobs request */
    int32_t attached;                 /* the same: on the nodes whose parts have come */
    uint32_t nodes;
};

struct node_answer {
    struct node *node;
    struct node_answer *prev, *next;
    struct node_asker asker;
    enum hvi_admin_kind kind;
    uint64_t min_age_ns; /* stalls */
    sd_event_source *timer;
    struct hvi_admin_reply reply;
    struct question *questions;
    size_t question_count, open_count;
    bool spans; /* an engine asks other nodes: it has more time */
};

void node_answer_text(struct node *node, const struct node_asker *asker, int status,
                      const char *text)
{
    struct hvi_admin_reply reply = {.status = status};

    snprintf(reply.text, sizeof(reply.text), "%s", text);
    node_gate_reply(node, asker, &reply);
}

/* ---- the answer's life
 * -------------------------------------------------------------------------------------------- */

static void answer_free(struct node_answer *answer)
{
    DL_DELETE(answer->node->answers, answer);
    answer->node->answer_count--;
    sd_event_source_disable_unref(answer->timer);
    hvi_admin_reply_free(&answer->reply);
    free(answer->questions);
    free(answer);
}

static void answer_finish(struct node_answer *answer)
{
    node_merge_finish(&answer->reply, answer->min_age_ns);
    node_gate_reply(answer->node, &answer->asker, &answer->reply);
    answer_free(answer);
}

/* Somebody stayed silent: names the first, counts the others. */
static void tell_silent(struct node_answer *answer)
{
    const struct node_engine *first = NULL;
    size_t others = 0;

    for (size_t i = 0; i < answer->question_count; i++) {
        if (answer->questions[i].engine == NULL)
            continue;
        if (first == NULL)
            first = answer->questions[i].engine;
        else
            others++;
    }
    if (first == NULL)
        return;
    snprintf(answer->reply.text, sizeof(answer->reply.text),
             "the engine of job '%s' (pid %d) did not answer within %s",
             first->generation->job->name.id, (int)first->pid, answer->spans ? "2 s" : "a second");
    if (others > 0) {
        size_t used = strlen(answer->reply.text);
        snprintf(answer->reply.text + used, sizeof(answer->reply.text) - used,
                 ", and neither did %zu more", others);
    }
}

static int on_deadline(sd_event_source *source, uint64_t usec, void *user)
{
    struct node_answer *answer = user;

    (void)source, (void)usec;
    tell_silent(answer);
    answer_finish(answer);
    return 0;
}

/* NULL after having refused. */
static struct node_answer *answer_new(struct node *node, const struct node_asker *asker,
                                      enum hvi_admin_kind kind)
{
    struct node_answer *answer = NULL;

    if (node->answer_count >= ANSWERS_MAX) {
        node_answer_text(node, asker, HVI_ERR_DAEMON_LIMIT,
                         "too many admin requests wait for engines");
        return NULL;
    }
    answer = calloc(1, sizeof(*answer));
    if (answer == NULL)
        goto no_memory;
    answer->questions = calloc(node->jobs.generation_count + 1u, sizeof(*answer->questions));
    if (answer->questions == NULL ||
        sd_event_add_time_relative(node->event, &answer->timer, CLOCK_MONOTONIC,
                                   ANSWER_WAIT_NS / 1000, 1000, on_deadline, answer) < 0)
        goto no_memory;
    answer->node = node;
    answer->asker = *asker;
    answer->kind = kind;
    DL_APPEND(node->answers, answer);
    node->answer_count++;
    return answer;
no_memory:
    if (answer != NULL)
        free(answer->questions);
    free(answer);
    node_answer_text(node, asker, HVI_ERR_DAEMON, "hvdd is out of memory");
    return NULL;
}

static void ask_query(struct node_answer *answer, struct node_engine *engine,
                      const struct hvi_engine_query *query, size_t row)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_ENGINE_QUERY, .engine_query = *query};
    struct question *question = &answer->questions[answer->question_count];

    msg.engine_query.request = answer->node->next_query++;
    *question = (struct question){.number = msg.engine_query.request, .engine = engine, .row = row};
    answer->question_count++;
    answer->open_count++;
    if (node_generation_spans(engine->generation) && !answer->spans) {
        answer->spans = true;
        sd_event_source_set_time_relative(answer->timer, SPANS_WAIT_NS / 1000);
    }
    node_link_send(engine, &msg, NULL,
                   0); /* if this fails, the engine is about to end, which closes the question */
}

static void ask(struct node_answer *answer, struct node_engine *engine, uint32_t what,
                uint64_t min_age_ns, size_t row)
{
    const struct hvi_engine_query query = {.what = what, .min_age_ns = min_age_ns, .rank = -1};

    ask_query(answer, engine, &query, row);
}

/* ---- reports come in
 * ---------------------------------------------------------------------------------------------- */

static void fill_job_row(const struct node_generation *generation, struct hvi_job_row *row)
{
    snprintf(row->job, sizeof(row->job), "%s", generation->job->name.id);
    snprintf(row->state, sizeof(row->state), "%s",
             generation->engine->silent_ns >= NODE_SILENT_NS
                 ? "silent"
                 : node_job_state_text(generation->state));
    row->generation = generation->number;
    row->uid = generation->job->name.uid;
    row->size = generation->size;
    row->attached = generation->counts[NODE_SLOT_ATTACHED];
    row->engine_pid = (int32_t)generation->engine->pid;
    row->age_ns = hvi_clock_ns() - generation->started_ns;
}

/* A job has done what its busiest rank has done. */
static void sum_ranks(struct hvi_job_row *row, const struct hvi_engine_report *report)
{
    for (size_t i = 0; i < report->rank_count; i++) {
        if (report->ranks[i].ops > row->ops)
            row->ops = report->ranks[i].ops;
        if (report->ranks[i].bytes > row->bytes)
            row->bytes = report->ranks[i].bytes;
    }
}

/* Of a job that spans nodes each node brings its part. */
static void take_job(struct question *question, const struct hvi_engine_report *report,
                     struct hvi_job_row *row)
{
    /* Once more: what the engine told before its report has been heard by now. */
    fill_job_row(question->engine->generation, row);
    sum_ranks(row, report);
    if (!report->has_span)
        return;
    for (size_t i = 0; i < report->rank_count; i++)
        question->attached += strcmp(report->ranks[i].state, "attached") == 0;
    row->attached = question->attached;
    row->nodes = ++question->nodes;
}

static void take_report(struct node_answer *answer, struct question *question,
                        struct hvi_engine_report *report)
{
    const struct node_job_name *job = &question->engine->generation->job->name;
    struct hvi_admin_reply *reply = &answer->reply;

    reply->rows_left_out += report->rows_left_out;
    if (answer->kind == HVI_ADMIN_JOBS)
        take_job(question, report, &reply->jobs[question->row]);
    else if (answer->kind == HVI_ADMIN_RANKS)
        node_merge_ranks(reply, report);
    else if (answer->kind == HVI_ADMIN_TRACE)
        node_merge_traces(reply, report);
    else
        node_merge_stalls(reply, report, job->id, job->uid);
    if (report->has_span)
        node_merge_span(reply, report, job->id, job->uid);
}

static void close_question(struct node_answer *answer, struct question *question)
{
    question->engine = NULL;
    if (--answer->open_count == 0)
        answer_finish(answer);
}

void node_answer_report(struct node *node, const struct node_engine *engine,
                        struct hvi_engine_report *report)
{
    struct node_answer *answer;

    DL_FOREACH(node->answers, answer)
    {
        for (size_t i = 0; i < answer->question_count; i++) {
            struct question *question = &answer->questions[i];
            if (question->engine != engine || question->number != report->request)
                continue;
            take_report(answer, question, report);
            if (!report->more)
                close_question(answer, question);
            return;
        }
    }
}

static bool has_open_question(const struct node_answer *answer, const struct node_engine *engine,
                              size_t *index_p)
{
    for (size_t i = 0; i < answer->question_count; i++) {
        if (answer->questions[i].engine == engine) {
            *index_p = i;
            return true;
        }
    }
    return false;
}

void node_answer_engine_gone(struct node *node, const struct node_engine *engine)
{
    struct node_answer *answer, *spare;
    size_t index;

    DL_FOREACH_SAFE(node->answers, answer, spare)
    {
        if (!has_open_question(answer, engine, &index)) /* an answer asks an engine once */
            continue;
        if (answer->kind == HVI_ADMIN_RANKS || answer->kind == HVI_ADMIN_TRACE) {
            answer->reply.status = HVI_ERR_NOT_FOUND;
            snprintf(answer->reply.text, sizeof(answer->reply.text), "job '%s' has just ended",
                     engine->generation->job->name.id);
        }
        close_question(answer, &answer->questions[index]);
    }
}

void node_answer_close(struct node *node)
{
    while (node->answers != NULL)
        answer_free(node->answers);
}

/* ---- the requests
 * -------------------------------------------------------------------------------------------------
 */

/* What a worker would be started with. A path that is too long for the message is as if it were not there. */
static void tell_of_workers(const struct node *node, struct hvi_daemon_status *daemon)
{
    const struct node_config *config = &node->config;

    if (config->gpu != 0 && strlen(node->gpu_path) < sizeof(daemon->gpu_program) &&
        access(node->gpu_path, X_OK) == 0)
        memcpy(daemon->gpu_program, node->gpu_path, strlen(node->gpu_path));
    snprintf(daemon->gpu_kernels, sizeof(daemon->gpu_kernels), "%s", config->gpu_kernels);
    snprintf(daemon->gpu_library_path, sizeof(daemon->gpu_library_path), "%s",
             config->gpu_library_path);
    node_mps_describe(&node->mps, daemon->gpu_mps, sizeof(daemon->gpu_mps));
}

static void tell_of_daemon(const struct node *node, struct hvi_daemon_status *daemon)
{
    snprintf(daemon->version, sizeof(daemon->version), "%s", HVD_VERSION_TEXT);
    snprintf(daemon->runtime_dir, sizeof(daemon->runtime_dir), "%s", node->rundir.path);
    snprintf(daemon->state, sizeof(daemon->state), "%s",
             node->phase == NODE_PHASE_RUNNING ? "running" : "draining");
    daemon->pid = (int32_t)getpid();
    daemon->uid = node->uid;
    daemon->uptime_ns = hvi_clock_ns() - node->started_ns;
    daemon->jobs = node->jobs.generation_count;
    daemon->sessions = node->jobs.session_count;
    daemon->attaches = node->counters.attaches;
    daemon->refused = node->counters.refused;
    daemon->ranks_lost = node->counters.ranks_lost;
    daemon->log_lost = hvi_log_lost();
    daemon->mesh_port = node->mesh.port;
    tell_of_workers(node, daemon);
}

static void answer_status(struct node *node, const struct node_asker *asker)
{
    struct hvi_admin_reply reply = {.has_daemon = true};

    tell_of_daemon(node, &reply.daemon);
    node_gate_reply(node, asker, &reply);
}

/* Workers; hvdd does not know the GPUs that have none. */
static void answer_gpus(struct node *node, const struct node_asker *asker)
{
    struct hvi_admin_reply reply = {.status = HVI_OK, .has_daemon = true};

    tell_of_daemon(node, &reply.daemon);
    if (node_gpu_rows(&node->gpu, &reply) != HVI_OK) {
        node_answer_text(node, asker, HVI_ERR_DAEMON, "hvdd is out of memory");
        return;
    }
    node_gate_reply(node, asker, &reply);
    hvi_admin_reply_free(&reply);
}

static void answer_jobs(struct node *node, const struct node_asker *asker)
{
    struct node_answer *answer = answer_new(node, asker, HVI_ADMIN_JOBS);
    struct node_engine *engine;
    struct hvi_job_row *row;

    if (answer == NULL)
        return;
    answer->reply.jobs = calloc(node->jobs.generation_count + 1u, sizeof(*answer->reply.jobs));
    DL_FOREACH(node->engines, engine)
    {
        if (answer->reply.jobs == NULL || answer->reply.job_count == HVI_WIRE_ROWS_MAX) {
            answer->reply.rows_left_out++;
            continue;
        }
        row = &answer->reply.jobs[answer->reply.job_count++];
        fill_job_row(engine->generation, row);
        row->withheld = !node_decide_may_ask(node, asker->uid, row->uid);
        if (!row->withheld)
            ask(answer, engine, HVI_QUERY_RANKS, 0, answer->reply.job_count - 1);
    }
    if (answer->open_count == 0)
        answer_finish(answer);
}

/* NULL after having refused. */
static struct node_job *find_job(struct node *node, const struct node_asker *asker,
                                 const struct hvi_admin_request *request)
{
    const uint32_t *owner = request->of_owner ? &request->owner : NULL;
    struct node_job *job = NULL;
    char text[HVI_JOB_ID_MAX + 128];
    int status = node_decide_job(node, asker->uid, owner, request->job, &job, text, sizeof(text));

    if (status == HVI_OK)
        return job;
    if (status == HVI_ERR_REFUSED)
        HVI_LOG_OF(asker->uid, HVI_LOG_WARN, "admin", "admin-refused",
                   "a user asked about a job of another user, or asked to change it",
                   "job=%s uid=%u", request->job, (unsigned)asker->uid);
    node_answer_text(node, asker, status, text);
    return NULL;
}

static void answer_ranks(struct node *node, const struct node_asker *asker,
                         const struct hvi_admin_request *request)
{
    struct node_job *job = find_job(node, asker, request);
    struct node_answer *answer = job == NULL ? NULL : answer_new(node, asker, HVI_ADMIN_RANKS);

    if (answer != NULL)
        ask(answer, node_job_newest(job)->engine, HVI_QUERY_RANKS, 0, 0);
}

static void answer_trace(struct node *node, const struct node_asker *asker,
                         const struct hvi_admin_request *request)
{
    const struct hvi_engine_query query = {
        .what = HVI_QUERY_TRACE,
        .rank = request->rank,
        .limit = request->limit,
        .before = request->before,
    };
    struct node_job *job = find_job(node, asker, request);
    struct node_answer *answer = job == NULL ? NULL : answer_new(node, asker, HVI_ADMIN_TRACE);

    if (answer != NULL)
        ask_query(answer, node_job_newest(job)->engine, &query, 0);
}

static void answer_stalls(struct node *node, const struct node_asker *asker,
                          const struct hvi_admin_request *request)
{
    const struct node_job *job = NULL;
    struct node_answer *answer;
    struct node_engine *engine;

    if (request->job[0] != '\0' && (job = find_job(node, asker, request)) == NULL)
        return;
    answer = answer_new(node, asker, HVI_ADMIN_STALLS);
    if (answer == NULL)
        return;
    answer->min_age_ns = request->min_age_ns;
    DL_FOREACH(node->engines, engine)
    {
        const struct node_job *its = engine->generation->job;
        if (job == NULL ? node_decide_may_ask(node, asker->uid, its->name.uid) : job == its)
            ask(answer, engine, HVI_QUERY_STALLS, request->min_age_ns, 0);
    }
    if (answer->open_count == 0)
        answer_finish(answer);
}

static void answer_job_stop(struct node *node, const struct node_asker *asker,
                            const struct hvi_admin_request *request)
{
    struct node_job *job = find_job(node, asker, request);
    struct node_generation *generation;
    char text[HVI_TEXT_MAX + 1];
    bool spans = false;
    int stopped = 0;
    int kept = (int)hvi_utf8_cut(request->reason, strlen(request->reason), REASON_MAX);

    if (job == NULL)
        return;
    snprintf(text, sizeof(text), "job '%s' was stopped by uid %u%s%.*s", job->name.id,
             (unsigned)asker->uid, kept > 0 ? ": " : "", kept, request->reason);
    HVI_LOG_OF(asker->uid, HVI_LOG_INFO, "admin", "job-stop", text, "job=%s uid=%u", job->name.id,
               (unsigned)asker->uid);
    DL_FOREACH(job->generations, generation)
    {
        node_link_stop(generation->engine, text);
        spans = spans || node_generation_spans(generation);
        stopped++;
    }
    snprintf(text, sizeof(text), "job '%s' is being stopped (%d engine%s%s)", job->name.id, stopped,
             stopped == 1 ? "" : "s", spans ? ", which tells those of the other nodes" : "");
    node_answer_text(node, asker, HVI_OK, text);
}

static void answer_process_exited(struct node *node, const struct node_asker *asker,
                                  const struct hvi_admin_request *request)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_ENGINE_FATE};
    struct node_job *job = find_job(node, asker, request);
    struct node_generation *generation;
    bool is_missed = false;

    node_mesh_process_exited(node, request, asker->uid);
    if (job == NULL)
        return;
    msg.engine_fate.rank = request->rank;
    msg.engine_fate.pid = request->pid;
    msg.engine_fate.signaled = request->signaled;
    msg.engine_fate.code = request->code;
    DL_FOREACH(job->generations, generation)
    {
        const struct node_slot *slot = node_generation_slot(generation, request->rank);
        const bool is_absent = slot == NULL || slot->state == NODE_SLOT_ABSENT;
        if (is_absent || slot->pid == (pid_t)request->pid || slot->own_pid == (pid_t)request->pid)
            node_link_send(generation->engine, &msg, NULL, 0);
        is_missed = is_missed || is_absent;
    }
    node_answer_text(node, asker, is_missed ? HVI_ERR_RANK_LOST : HVI_OK, "");
}

/* ---- limits ---- */

/* The reply as it grows. */
struct rows {
    struct node *node;
    const struct node_asker *asker;
    struct hvi_admin_reply reply;
};

/* `uid` 0: also of what all share. */
static void add_used(struct rows *rows, enum hvi_limit limit, uid_t uid, int64_t most,
                     uint64_t used)
{
    struct hvi_limit_row *row = hvi_limit_row_add(&rows->reply, limit, (uint64_t)most);

    if (row == NULL)
        return;
    row->uid = uid;
    row->used = used;
    row->counted = true;
}

/* So much in a second: nothing is in use. */
static void add_rate(struct rows *rows, enum hvi_limit limit, uid_t uid, int64_t most)
{
    struct hvi_limit_row *row = hvi_limit_row_add(&rows->reply, limit, (uint64_t)most);

    if (row != NULL)
        row->uid = uid;
}

static void add_job(struct rows *rows, enum hvi_limit limit, const struct node_engine *engine,
                    uint64_t most, uint64_t used)
{
    const struct node_job_name *name = &engine->generation->job->name;
    struct hvi_limit_row *row = hvi_limit_row_add(&rows->reply, limit, most);

    if (row == NULL)
        return;
    row->uid = name->uid;
    snprintf(row->job, sizeof(row->job), "%s", name->id);
    row->used = used;
    row->counted = engine->process_sets != 0;
}

static void fill_all(struct rows *rows)
{
    const struct node *node = rows->node;

    add_used(rows, HVI_LIMIT_max_jobs, 0, node->config.max_jobs,
             node_jobs_under_way(&node->jobs, NULL));
    add_used(rows, HVI_LIMIT_max_sessions, 0, node->config.max_sessions, node->jobs.session_count);
    add_used(rows, HVI_LIMIT_max_pending, 0, node_attach_pending_most(node, false),
             node->pending_count);
    add_used(rows, HVI_LIMIT_gpu_workers, 0, node->config.gpu_workers,
             node_gpu_count(&node->gpu, NULL));
    if (!node->private_mode)
        add_used(rows, HVI_LIMIT_region_bytes, 0, (int64_t)node_regions_most(node, false),
                 node_regions_granted(node, NULL));
}

static void fill_user(struct rows *rows, uid_t uid)
{
    const struct node *node = rows->node;

    if (!node->private_mode) {
        add_used(rows, HVI_LIMIT_max_jobs_per_user, uid, node->config.max_jobs_per_user,
                 node_jobs_under_way(&node->jobs, &uid));
        add_rate(rows, HVI_LIMIT_start_rate_per_user, uid, node->config.start_rate_per_user);
        add_used(rows, HVI_LIMIT_region_bytes_per_user, uid, (int64_t)node_regions_most(node, true),
                 node_regions_granted(node, &uid));
    }
    add_used(rows, HVI_LIMIT_max_sessions_per_user, uid, node->config.max_sessions_per_user,
             node_jobs_sessions_of(&node->jobs, uid));
    add_used(rows, HVI_LIMIT_max_pending_per_user, uid, node_attach_pending_most(node, true),
             node_attach_pending_of(node, uid));
    add_used(rows, HVI_LIMIT_gpu_workers_per_user, uid, node->config.gpu_workers_per_user,
             node_gpu_count(&node->gpu, &uid));
    add_rate(rows, HVI_LIMIT_log_rate, uid, HVI_LIMIT_VALUE_log_rate);
}

static void fill_jobs(struct rows *rows, uid_t uid)
{
    const struct node *node = rows->node;
    struct node_engine *engine;

    DL_FOREACH(node->engines, engine)
    {
        if (engine->generation->job->name.uid != uid)
            continue;
        add_job(rows, HVI_LIMIT_region_limit, engine, node_spawn_region_limit(node),
                engine->region_bytes);
        add_job(rows, HVI_LIMIT_regions_per_session, engine,
                (uint64_t)node->config.regions_per_session, engine->regions);
        add_job(rows, HVI_LIMIT_process_sets, engine, HVI_LIMIT_VALUE_process_sets,
                engine->process_sets);
    }
}

static bool is_there(const struct rows *rows, uid_t uid)
{
    for (size_t i = 0; i < rows->reply.limit_count; i++)
        if (rows->reply.limits[i].uid == uid && strcmp(rows->reply.limits[i].of, "all") != 0)
            return true;
    return false;
}

/* Once for each user that may be told of. */
static void fill_once(struct rows *rows, uid_t uid)
{
    if (!node_decide_may_ask(rows->node, rows->asker->uid, uid) || is_there(rows, uid))
        return;
    fill_user(rows, uid);
    fill_jobs(rows, uid);
}

static void fill_users(struct rows *rows)
{
    const struct node *node = rows->node;
    const struct node_job *job;
    struct node_pending *pending;

    fill_once(rows, rows->asker->uid);
    for (job = node->jobs.by_name; job != NULL; job = job->hh.next)
        fill_once(rows, job->name.uid);
    DL_FOREACH(node->pendings, pending)
    {
        fill_once(rows, pending->peer.uid);
    }
}

static void answer_limits(struct node *node, const struct node_asker *asker,
                          const struct hvi_admin_request *request)
{
    struct rows rows = {.node = node, .asker = asker};

    if (request->of_owner && !node_decide_may_ask(node, asker->uid, request->owner)) {
        node_answer_text(node, asker, HVI_ERR_REFUSED,
                         "the shares of another user are for that user and root to see");
        return;
    }
    rows.reply.limits = calloc(HVI_WIRE_ROWS_MAX, sizeof(*rows.reply.limits));
    if (rows.reply.limits == NULL) {
        node_answer_text(node, asker, HVI_ERR_DAEMON, "hvdd is out of memory");
        return;
    }
    fill_all(&rows);
    if (request->of_owner)
        fill_once(&rows, request->owner);
    else
        fill_users(&rows);
    node_gate_reply(node, asker, &rows.reply);
    hvi_admin_reply_free(&rows.reply);
}

void node_answer_request(struct node *node, const struct node_asker *asker,
                         const struct hvi_admin_request *request)
{
    switch (request->kind) {
    case HVI_ADMIN_STATUS:
        answer_status(node, asker);
        break;
    case HVI_ADMIN_JOBS:
        answer_jobs(node, asker);
        break;
    case HVI_ADMIN_RANKS:
        answer_ranks(node, asker, request);
        break;
    case HVI_ADMIN_STALLS:
        answer_stalls(node, asker, request);
        break;
    case HVI_ADMIN_JOB_STOP:
        answer_job_stop(node, asker, request);
        break;
    case HVI_ADMIN_TRACE:
        answer_trace(node, asker, request);
        break;
    case HVI_ADMIN_PROCESS_EXITED:
        answer_process_exited(node, asker, request);
        break;
    case HVI_ADMIN_NODES:
    case HVI_ADMIN_EVENTS:
        node_answer_text(node, asker, HVI_ERR_UNSUPPORTED, "the gate answers this");
        break;
    case HVI_ADMIN_GPUS:
        answer_gpus(node, asker);
        break;
    case HVI_ADMIN_LIMITS:
        answer_limits(node, asker, request);
        break;
    }
}
