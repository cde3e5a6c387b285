/* SPDX-License-Identifier: Apache-2.0 */
#include "client/sets.h"

#include "base/types.h"
#include "client/error.h"
#include "client/express.h"
#include "client/session/enter.h"
#include "client/session/session.h"
#include "client/submit.h"
#include "client/wait.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(HVI_KIND_SET_CLOSE < CLIENT_KINDS, "every kind is an index");

static int compare_ranks(const void *left, const void *right)
{
    int a = *(const int *)left;
    int b = *(const int *)right;
    return (a > b) - (a < b);
}

struct client_set *client_set_new(const int *ranks, int size, int rank)
{
    struct client_set *set = calloc(1, sizeof(*set) + (size_t)size * sizeof(set->ranks[0]));
    if (!set)
        return NULL;
    memcpy(set->ranks, ranks, (size_t)size * sizeof(set->ranks[0]));
    qsort(set->ranks, (size_t)size, sizeof(set->ranks[0]), compare_ranks);
    set->size = size;
    set->rank = client_set_place(set, rank);
    return set;
}

int client_sets_init(struct client_sets *sets, int rank, int size)
{
    struct client_set *all = calloc(1, sizeof(*all) + (size_t)size * sizeof(all->ranks[0]));
    if (!all)
        return HVD_ERR_NO_MEMORY;
    for (int i = 0; i < size; i++)
        all->ranks[i] = i;
    all->size = size;
    all->rank = rank;
    sets->first = all;
    sets->last = all;
    return HVD_OK;
}

void client_sets_fini(struct client_sets *sets)
{
    while (sets->first) {
        struct client_set *set = sets->first;
        sets->first = set->next;
        free(set);
    }
    sets->last = NULL;
}

struct client_set *client_sets_find(struct client_sets *sets, int id)
{
    if (sets->last->id == id)
        return sets->last;
    for (struct client_set *set = sets->first; set && set->id <= id; set = set->next) {
        if (set->id != id)
            continue;
        sets->last = set;
        return set;
    }
    return NULL;
}

int client_set_place(const struct client_set *set, int rank)
{
    const int *found =
        bsearch(&rank, set->ranks, (size_t)set->size, sizeof(set->ranks[0]), compare_ranks);
    return found ? (int)(found - set->ranks) : -1;
}

void client_set_describe(const struct client_set *set, char *text_p, size_t text_size)
{
    int length = snprintf(text_p, text_size, "process set %d (ranks ", set->id);
    for (int i = 0; i < set->size; i++) {
        if (length < 0 || (size_t)length + 40 > text_size) { /* a rank and the end below */
            snprintf(text_p + length, text_size - (size_t)length, " and %d more)", set->size - i);
            return;
        }
        length += snprintf(text_p + length, text_size - (size_t)length, "%s%d", i ? "," : "",
                           set->ranks[i]);
    }
    snprintf(text_p + length, text_size - (size_t)length, ")");
}

/* May be used by this rank. */
static bool usable(const struct client_set *set)
{
    return set && set->rank >= 0 && !set->joined && !set->removing;
}

static int refuse(const struct hvd_session *session, const struct client_set *set, int id,
                  const char *label)
{
    char text[256];
    int rank = session->link.identity.rank;
    if (!set)
        return client_error(HVD_ERR_NOT_FOUND,
                            "%s: there is no process set %d; hvd_process_set_add makes one", label,
                            id);
    client_set_describe(set, text, sizeof(text));
    if (set->removing)
        return client_error(HVD_ERR_NOT_FOUND, "%s: %s is being removed", label, text);
    if (set->rank < 0)
        return client_error(HVD_ERR_INVALID, "%s: rank %d is not a member of %s", label, rank,
                            text);
    return client_error(HVD_ERR_INVALID,
                        "%s: rank %d has joined %s and submits nothing on it until all members "
                        "have; wait for the join first",
                        label, rank, text);
}

int client_sets_use(struct hvd_session *session, const struct client_request *request,
                    struct client_set **set_p)
{
    char label[CLIENT_LABEL_MAX];
    struct client_set *set = client_sets_find(&session->sets, request->process_set);
    if (!usable(set)) { /* a join may be over, a set added */
        client_wait_drain(session);
        set = client_sets_find(&session->sets, request->process_set);
    }
    if (usable(set)) {
        *set_p = set;
        return HVD_OK;
    }
    client_request_label(request, label, sizeof(label));
    return refuse(session, set, request->process_set, label);
}

/* ---- joins, additions, removals ---- */

static void insert(struct client_sets *sets, struct client_set *set)
{
    struct client_set **link = &sets->first;
    while (*link && (*link)->id < set->id)
        link = &(*link)->next;
    set->next = *link;
    *link = set;
}

static void take_out(struct client_sets *sets, struct client_set *set)
{
    struct client_set **link = &sets->first;
    while (*link != set)
        link = &(*link)->next;
    *link = set->next;
    sets->last = sets->first;
    free(set);
}

void client_sets_launched(struct hvd_session *session, const struct hvd_op *op)
{
    bool removal = client_kind_ends_set(op->kind);
    if (!removal && op->kind != HVI_KIND_JOIN)
        return;
    struct client_set *set =
        client_sets_find(&session->sets, removal ? op->removed_set : op->process_set);
    if (removal)
        set->removing = true;
    else
        set->joined = true;
}

static void removal_landed(struct hvd_session *session, const struct hvd_op *op)
{
    struct client_set *set = client_sets_find(&session->sets, op->removed_set);
    if (!set)
        return;
    set->removing = false;
    if (op->status != HVD_OK)
        return;
    take_out(&session->sets, set);
    client_names_forget_set(&session->names, op->removed_set); /* the id comes again */
}

static void join_landed(struct hvd_session *session, const struct hvd_op *op)
{
    struct client_set *set = client_sets_find(&session->sets, op->process_set);
    if (!set) /* removed meanwhile */
        return;
    set->joined = false;
    /* Members have brought different numbers of unnamed ops, and none of them waits any more. */
    if (op->status != HVD_OK)
        return;
    memset(set->anon_seq, 0, sizeof(set->anon_seq));
    client_express_restart(set);
}

void client_sets_landed(struct hvd_session *session, struct hvd_op *op)
{
    if (op->kind == HVI_KIND_JOIN)
        join_landed(session, op);
    if (client_kind_ends_set(op->kind))
        removal_landed(session, op);
    if (!client_kind_makes_set(op->kind) || op->status != HVD_OK)
        return;
    op->new_set->id = (int)op->number;
    insert(&session->sets, op->new_set);
    op->new_set = NULL;
}

/* ---- the public side ---- */

static int check_ranks(const struct hvd_session *session, const char *what, const int *ranks,
                       int count)
{
    int size = session->link.identity.size;
    if (!ranks || count < 1)
        return client_error(HVD_ERR_INVALID, "%s: a process set has at least one rank", what);
    if (count > size)
        return client_error(HVD_ERR_INVALID, "%s: %d ranks were given, and the job has %d", what,
                            count, size);
    for (int i = 0; i < count; i++) {
        if (ranks[i] < 0 || ranks[i] >= size)
            return client_error(HVD_ERR_INVALID, "%s: there is no rank %d; the ranks are 0 to %d",
                                what, ranks[i], size - 1);
    }
    return HVD_OK;
}

static int check_new_set(const struct hvd_session *session, const char *what,
                         const struct client_set *set)
{
    if (set->opened && set->rank < 0)
        return client_error(HVD_ERR_INVALID, "%s: rank %d, this one, is not among the ranks", what,
                            session->link.identity.rank);
    for (int i = 1; i < set->size; i++) {
        if (set->ranks[i] == set->ranks[i - 1])
            return client_error(HVD_ERR_INVALID, "%s: rank %d is given twice", what, set->ranks[i]);
    }
    if (!set->opened && set->size == session->link.identity.size)
        return client_error(HVD_ERR_EXISTS, "%s: all ranks are process set 0 already", what);
    return HVD_OK;
}

static int make_set(struct hvd_session *session, struct client_request *request, const int *ranks,
                    int count, struct hvd_op **op_p)
{
    int rc = client_session_check_fork(session, request->what);
    if (rc == HVD_OK)
        rc = check_ranks(session, request->what, ranks, count);
    if (rc != HVD_OK)
        return rc;
    request->new_set = client_set_new(ranks, count, session->link.identity.rank);
    if (!request->new_set)
        return client_error(HVD_ERR_NO_MEMORY, "%s: out of memory", request->what);
    request->new_set->opened = request->kind == HVI_KIND_SET_OPEN;
    rc = check_new_set(session, request->what, request->new_set);
    if (rc == HVD_OK)
        rc = client_submit(session, request, 1, op_p);
    if (rc != HVD_OK)
        free(request->new_set);
    return rc;
}

int client_sets_add(struct hvd_session *session, const char *what, const int *ranks, int count,
                    struct hvd_op **op_p)
{
    struct client_request request = {.what = what, .kind = HVI_KIND_SET_ADD, .root = -1};
    return make_set(session, &request, ranks, count, op_p);
}

int hvd_process_set_open_async(struct hvd_session *session, const int *ranks, int count, int tag,
                               struct hvd_op **op_p)
{
    struct client_request request = {
        .what = "hvd_process_set_open_async", .kind = HVI_KIND_SET_OPEN, .root = -1, .tag = tag};
    if (tag < 0)
        return client_error(HVD_ERR_INVALID, "%s: tag %d is negative", request.what, tag);
    return make_set(session, &request, ranks, count, op_p);
}

int client_sets_check_closing(const struct client_set *set, const char *what)
{
    if (set->opened)
        return HVD_OK;
    return client_error(HVD_ERR_INVALID,
                        "%s: process set %d was not opened by its members alone; all ranks of the "
                        "job remove it by hvd_process_set_remove",
                        what, set->id);
}

int hvd_process_set_close_async(struct hvd_session *session, int id, struct hvd_op **op_p)
{
    struct hvd_op_options options;
    struct client_request request = {.what = "hvd_process_set_close_async",
                                     .kind = HVI_KIND_SET_CLOSE,
                                     .root = -1,
                                     .options = &options};
    hvd_op_options_init(&options);
    options.process_set = id;
    return client_submit(session, &request, 1, op_p);
}

int client_sets_remove(struct hvd_session *session, const char *what, int id, struct hvd_op **op_p)
{
    struct client_request request = {.what = what, .kind = HVI_KIND_SET_REMOVE, .root = id};
    if (id == 0)
        return client_error(HVD_ERR_INVALID, "%s: process set 0, all ranks, cannot be removed",
                            what);
    return client_submit(session, &request, 1, op_p);
}

int client_sets_check_removal(struct hvd_session *session, const char *what, int id)
{
    struct client_set *set = client_sets_find(&session->sets, id);
    if (!set) {
        client_wait_drain(session);
        set = client_sets_find(&session->sets, id);
    }
    if (set && !set->removing && !set->opened)
        return HVD_OK;
    if (set && !set->removing)
        return client_error(HVD_ERR_INVALID,
                            "%s: process set %d was opened by its members, who close it by "
                            "hvd_process_set_close_async",
                            what, id);
    return refuse(session, set, id, what);
}

int hvd_process_set_add_async(struct hvd_session *session, const int *ranks, int count,
                              struct hvd_op **op_p)
{
    return client_sets_add(session, "hvd_process_set_add_async", ranks, count, op_p);
}

int hvd_process_set_remove_async(struct hvd_session *session, int id, struct hvd_op **op_p)
{
    return client_sets_remove(session, "hvd_process_set_remove_async", id, op_p);
}

/* Locks the session and finds a set. */
static int enter(struct hvd_session *session, const char *what, int id, struct client_set **set_p)
{
    int rc = client_session_enter(session, what);
    if (rc != HVD_OK)
        return rc;
    struct client_set *set = client_sets_find(&session->sets, id);
    if (!set) {
        client_session_leave(session);
        return refuse(session, NULL, id, what);
    }
    *set_p = set;
    return HVD_OK;
}

int hvd_process_set_rank(struct hvd_session *session, int id)
{
    struct client_set *set = NULL;
    int rc = enter(session, "hvd_process_set_rank", id, &set);
    if (rc != HVD_OK)
        return rc;
    int rank = set->rank;
    client_session_leave(session);
    return rank;
}

int hvd_process_set_size(struct hvd_session *session, int id)
{
    struct client_set *set = NULL;
    int rc = enter(session, "hvd_process_set_size", id, &set);
    if (rc != HVD_OK)
        return rc;
    int size = set->size;
    client_session_leave(session);
    return size;
}

int hvd_process_set_ranks(struct hvd_session *session, int id, int *ranks_p, int capacity)
{
    struct client_set *set = NULL;
    int rc = enter(session, "hvd_process_set_ranks", id, &set);
    if (rc != HVD_OK)
        return rc;
    int size = set->size;
    for (int i = 0; i < size && i < capacity; i++)
        ranks_p[i] = set->ranks[i];
    client_session_leave(session);
    return size;
}

int hvd_process_set_ids(struct hvd_session *session, int *ids_p, int capacity)
{
    int count = 0;
    int rc = client_session_enter(session, "hvd_process_set_ids");
    if (rc != HVD_OK)
        return rc;
    for (struct client_set *set = session->sets.first; set; set = set->next, count++) {
        if (count < capacity)
            ids_p[count] = set->id;
    }
    client_session_leave(session);
    return count;
}
