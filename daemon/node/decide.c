/* SPDX-License-Identifier: Apache-2.0
 * Which generation an attach goes to, or why it is refused: the rules of docs/design/spine.md, as a
 * pure function over the job table. Cheap and general checks come first. Jobs of other users are not
 * looked at: two users may each have a job of the same id. How much memory jobs may register: an engine asks before its
 * ranks hold more than it was granted (EngineRegions). And which job an admin request is about. */
#include "daemon/node/node.h"

#include "base/fate.h"
#include "base/status.h"
#include "shm/abi.h"

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include <utlist.h>

static bool refuse(struct node_decision *decision, int status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Always false, so that a check can end with it. */
static bool refuse(struct node_decision *decision, int status, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(decision->text, sizeof(decision->text), format, arguments);
    va_end(arguments);
    decision->status = status;
    decision->generation = NULL;
    return false;
}

static bool check_peer(const struct node *node, const struct node_peer *peer,
                       struct node_decision *decision)
{
    if (node->private_mode && peer->uid != node->uid)
        return refuse(
            decision, HVI_ERR_REFUSED,
            "this hvdd (%s) is private to uid %u and refuses uid %u; start one of your own or set "
            "HVD_ADDRESS",
            node->rundir.path, (unsigned)node->uid, (unsigned)peer->uid);
    if (node->phase != NODE_PHASE_RUNNING)
        return refuse(decision, HVI_ERR_DRAINING,
                      "hvdd (pid %d) is shutting down and takes no new sessions", (int)getpid());
    return true;
}

static int32_t nodes_of(const struct hvi_attach_request *request)
{
    return hvi_job_nodes(request->size, request->local_size, request->cross_size);
}

int32_t node_attach_seats(const struct hvi_attach_request *request)
{
    return nodes_of(request) > 1 ? request->local_size : request->size;
}

int32_t node_attach_seat(const struct hvi_attach_request *request)
{
    return nodes_of(request) > 1 ? request->local_rank : request->rank;
}

/* A job on several nodes. */
static bool check_nodes(const struct node *node, const struct hvi_attach_request *request,
                        struct node_decision *decision)
{
    if (!node_mesh_wanted(node))
        return refuse(
            decision, HVI_ERR_UNSUPPORTED,
            "rank %d of job '%s' is one of %d ranks on %d nodes (%s%s%slocal_size %d, cross_size "
            "%d), and this hvdd has no mesh to other nodes; start the job with hvdrun -H, or set "
            "HVD_RENDEZVOUS to the name of one of its machines and HVD_KEY_FILE to keys that "
            "`hvdctl key new` has made, or start hvdd with --mesh-seeds, --mesh-listen or "
            "--mesh-join",
            request->rank, request->job, request->size, nodes_of(request),
            request->origin[0] != '\0' ? "from " : "", request->origin,
            request->origin[0] != '\0' ? ": " : "", request->local_size, request->cross_size);
    if (request->local_size >= request->size)
        return refuse(decision, HVI_ERR_BAD_SIZE,
                      "rank %d says that job '%s' is on %d nodes (cross_size), and that all of its "
                      "%d ranks are on this one (local_size %d)",
                      request->rank, request->job, request->cross_size, request->size,
                      request->local_size);
    if (request->local_rank < 0 || request->local_rank >= request->local_size)
        return refuse(
            decision, HVI_ERR_BAD_RANK,
            "local rank %d of rank %d is outside 0..%d, the ranks of job '%s' on this node",
            request->local_rank, request->rank, request->local_size - 1, request->job);
    return true;
}

static bool check_request(const struct node *node, const struct hvi_attach_request *request,
                          struct node_decision *decision)
{
    if (request->protocol_version != HVI_PROTOCOL_VERSION ||
        request->abi_version != HVI_ABI_VERSION)
        return refuse(decision, HVI_ERR_VERSION,
                      "this client speaks protocol %u with ABI %u, hvdd %s speaks protocol %u with "
                      "ABI %u; use the "
                      "libhvdclient of hvdd's release",
                      request->protocol_version, request->abi_version, HVD_VERSION_TEXT,
                      HVI_PROTOCOL_VERSION, HVI_ABI_VERSION);
    if (request->size < 1 || node_attach_seats(request) > HVI_RANKS_MAX)
        return refuse(decision, HVI_ERR_BAD_SIZE, "size %d of job '%s' is not between 1 and %d",
                      request->size, request->job, HVI_RANKS_MAX);
    if (request->rank < 0 || request->rank >= request->size)
        return refuse(decision, HVI_ERR_BAD_RANK, "rank %d is outside 0..%d of job '%s'",
                      request->rank, request->size - 1, request->job);
    return nodes_of(request) == 1 || check_nodes(node, request, decision);
}

/* The job is the peer's own. Its key, if it has one, keeps this user's other processes out. */
static bool check_key(const struct node_job *job, const struct hvi_attach_request *request,
                      struct node_decision *decision)
{
    char digest[HVI_DIGEST_TEXT];

    hvi_digest_text(request->job_key, digest);
    if (strcmp(digest, job->key_digest) != 0)
        return refuse(decision, HVI_ERR_REFUSED,
                      "the job key (HVD_JOB_KEY) is not the one that job '%s' was started with",
                      job->name.id);
    return true;
}

static bool check_sessions(const struct node *node, const struct node_peer *peer,
                           struct node_decision *decision)
{
    if (node->jobs.session_count >= node->config.max_sessions)
        return refuse(decision, HVI_ERR_DAEMON_LIMIT,
                      "%u ranks are attached to hvdd already (max-sessions = %lld)",
                      node->jobs.session_count, (long long)node->config.max_sessions);
    if (node_jobs_sessions_of(&node->jobs, peer->uid) >= node->config.max_sessions_per_user)
        return refuse(
            decision, HVI_ERR_DAEMON_LIMIT,
            "uid %u has as many ranks attached as one user may (max-sessions-per-user = %lld)",
            (unsigned)peer->uid, (long long)node->config.max_sessions_per_user);
    return true;
}

/* A further generation. */
static bool check_jobs(const struct node *node, const struct node_peer *peer,
                       struct node_decision *decision)
{
    uint32_t all = node_jobs_under_way(&node->jobs, NULL);

    if (all >= node->config.max_jobs)
        return refuse(decision, HVI_ERR_DAEMON_LIMIT, "%u jobs run already (max-jobs = %lld)", all,
                      (long long)node->config.max_jobs);
    if (!node->private_mode &&
        node_jobs_under_way(&node->jobs, &peer->uid) >= node->config.max_jobs_per_user)
        return refuse(decision, HVI_ERR_DAEMON_LIMIT,
                      "uid %u has as many jobs as one user may (max-jobs-per-user = %lld)",
                      (unsigned)peer->uid, (long long)node->config.max_jobs_per_user);
    return true;
}

static bool is_present(const struct node_slot *slot)
{
    return slot->state == NODE_SLOT_ATTACHING || slot->state == NODE_SLOT_ATTACHED;
}

/* The rank says something else of the job than those before it. */
static bool refuse_sizes(const struct node_generation *generation,
                         const struct hvi_attach_request *request, struct node_decision *decision)
{
    const char *job = generation->job->name.id;

    if (generation->size != request->size)
        return refuse(decision, HVI_ERR_BAD_SIZE,
                      "this rank says that job '%s' has size %d, but it runs with %d", job,
                      request->size, generation->size);
    return refuse(decision, HVI_ERR_BAD_SIZE,
                  "this rank says that %d ranks of job '%s' are on this node, but those before "
                  "it said %d",
                  node_attach_seats(request), job, generation->seats);
}

/* Its seat is free, and the rank has no other. */
static bool has_place(const struct node_generation *generation,
                      const struct hvi_attach_request *request)
{
    const struct node_slot *slot = &generation->slots[node_attach_seat(request)];
    const struct node_slot *other = node_generation_slot(generation, request->rank);

    return slot->state == NODE_SLOT_ABSENT && (other == NULL || other == slot);
}

/* The oldest generation that still waits for this rank. False when the attach is refused. */
static bool find_place(const struct node_job *job, const struct hvi_attach_request *request,
                       struct node_decision *decision)
{
    struct node_generation *generation;

    DL_FOREACH(job->generations, generation)
    {
        bool fits =
            generation->size == request->size && generation->seats == node_attach_seats(request);
        if (generation->stopping || node_generation_lost(generation))
            continue;
        if (!fits && !node_generation_left(generation))
            return refuse_sizes(generation, request, decision);
        if (fits && has_place(generation, request)) {
            decision->generation = generation;
            return true;
        }
    }
    return true;
}

/* Whether a further generation may be made for this rank. */
static bool check_duplicate(const struct node_job *job, const struct hvi_attach_request *request,
                            struct node_decision *decision)
{
    const struct node_generation *newest = node_job_newest(job);
    const struct node_slot *mine = node_generation_slot(newest, request->rank), *seat;
    char process[HVI_PROCESS_TEXT];

    if (newest->stopping || node_generation_lost(newest) || node_generation_left(newest))
        return true;
    if (mine != NULL && is_present(mine)) {
        hvi_process_describe(mine->pid, mine->own_pid, process);
        return refuse(decision, HVI_ERR_DUPLICATE_RANK,
                      "rank %d of job '%s' is already attached: %s holds it", request->rank,
                      job->name.id, process);
    }
    seat = &newest->slots[node_attach_seat(request)];
    if (!is_present(seat))
        return true;
    hvi_process_describe(seat->pid, seat->own_pid, process);
    return refuse(decision, HVI_ERR_DUPLICATE_RANK,
                  "local rank %d of job '%s' is already attached: %s holds it as rank %d, and this "
                  "process says that it is rank %d",
                  node_attach_seat(request), job->name.id, process, seat->rank, request->rank);
}

void node_attach_decide(const struct node *node, const struct node_peer *peer,
                        const struct hvi_attach_request *request, struct node_decision *decision_p)
{
    const struct node_job *job;

    decision_p->status = HVI_OK;
    decision_p->text[0] = '\0';
    decision_p->generation = NULL;
    if (!check_peer(node, peer, decision_p) || !check_request(node, request, decision_p))
        return;
    job = node_job_find(&node->jobs, peer->uid, request->job);
    if (job != NULL && !check_key(job, request, decision_p))
        return;
    if (job != NULL && !find_place(job, request, decision_p))
        return;
    if (job != NULL && decision_p->generation == NULL && !check_duplicate(job, request, decision_p))
        return;
    if (!check_sessions(node, peer, decision_p))
        return;
    if (decision_p->generation != NULL)
        return;
    check_jobs(node, peer, decision_p);
}

/* ---- how much memory jobs may register ---- */

static uint64_t twice(uint64_t bytes)
{
    return bytes > INT64_MAX / 2 ? INT64_MAX : 2 * bytes;
}

uint64_t node_regions_most(const struct node *node, bool of_user)
{
    int64_t all = node->config.region_bytes, user = node->config.region_bytes_per_user;

    if (of_user)
        return user != 0 ? (uint64_t)user : twice(node_spawn_region_limit(node));
    return all != 0 ? (uint64_t)all : twice(node_regions_most(node, true));
}

/* Not those of `but`, which may be NULL. */
static uint64_t granted(const struct node *node, const uid_t *uid, const struct node_engine *but)
{
    const struct node_engine *engine;
    uint64_t bytes = 0;

    DL_FOREACH(node->engines, engine)
    {
        if (engine == but || (uid != NULL && engine->generation->job->name.uid != *uid))
            continue;
        if (engine->regions_granted > (uint64_t)INT64_MAX - bytes)
            return INT64_MAX;
        bytes += engine->regions_granted;
    }
    return bytes;
}

uint64_t node_regions_granted(const struct node *node, const uid_t *uid)
{
    return granted(node, uid, NULL);
}

bool node_decide_regions(const struct node_engine *engine, uint64_t bytes, char *text_p,
                         size_t size)
{
    const struct node *node = engine->node;
    const struct node_job_name *name = &engine->generation->job->name;
    uint64_t of_user = granted(node, &name->uid, engine), of_all = granted(node, NULL, engine);
    uint64_t user_most = node_regions_most(node, true), all_most = node_regions_most(node, false);

    if (bytes > user_most || of_user > user_most - bytes) {
        snprintf(text_p, size,
                 "%" PRIu64 " bytes of shared memory in job '%s' and %" PRIu64
                 " in other jobs of uid %u are more than one user may register "
                 "(region-bytes-per-user = %" PRIu64 ")",
                 bytes, name->id, of_user, (unsigned)name->uid, user_most);
        return false;
    }
    if (bytes > all_most || of_all > all_most - bytes) {
        snprintf(text_p, size,
                 "%" PRIu64 " bytes of shared memory in job '%s' and %" PRIu64
                 " in all other jobs are more than may be registered (region-bytes = %" PRIu64 ")",
                 bytes, name->id, of_all, all_most);
        return false;
    }
    return true;
}

/* ---- which job is asked about ---- */

static int refuse_job(int status, char *text_p, size_t size, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

static int refuse_job(int status, char *text_p, size_t size, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text_p, size, format, arguments);
    va_end(arguments);
    return status;
}

bool node_decide_may_ask(const struct node *node, uid_t uid, uid_t owner)
{
    return uid == 0 || uid == node->uid || uid == owner;
}

int node_decide_job(const struct node *node, uid_t uid, const uint32_t *owner, const char *id,
                    struct node_job **job_p, char *text_p, size_t size)
{
    struct node_job *job = node_job_find(&node->jobs, owner != NULL ? *owner : uid, id);
    uint32_t users = 0;

    if (job == NULL && owner == NULL)
        job = node_job_find_only(&node->jobs, id, &users);
    if (job != NULL && node_decide_may_ask(node, uid, job->name.uid)) {
        *job_p = job;
        return HVI_OK;
    }
    if (job != NULL || (users > 1 && !node_decide_may_ask(node, uid, (uid_t)-1)))
        return refuse_job(HVI_ERR_REFUSED, text_p, size,
                          "job '%s' belongs to another user; its owner and root may ask about it",
                          id);
    if (users > 1)
        return refuse_job(HVI_ERR_INVALID, text_p, size,
                          "%u users have a job '%s'; say whose is meant (hvdctl --user)", users,
                          id);
    if (owner != NULL)
        return refuse_job(HVI_ERR_NOT_FOUND, text_p, size, "no job '%s' of uid %u runs here", id,
                          *owner);
    return refuse_job(HVI_ERR_NOT_FOUND, text_p, size, "no job '%s' runs here", id);
}
