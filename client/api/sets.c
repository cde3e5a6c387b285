/* SPDX-License-Identifier: Apache-2.0
 * hvd_process_set_*. */
#include "base/types.h"
#include "client/api/blocking.h"
#include "client/error.h"
#include "client/ops/request.h"
#include "client/session/enter.h"
#include "client/session/session.h"
#include "client/submit/submit.h"

#include <stdlib.h>

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

static int submit(struct hvd_session *session, struct client_request *request, bool patient,
                  struct hvd_op **op_p)
{
    return patient ? client_api_submit(session, request, op_p)
                   : client_submit(session, request, 1, op_p);
}

static int make_set(struct hvd_session *session, struct client_request *request, bool patient,
                    const int *ranks, int count, struct hvd_op **op_p)
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
        rc = submit(session, request, patient, op_p);
    if (rc != HVD_OK)
        free(request->new_set);
    return rc;
}

int hvd_process_set_add_async(struct hvd_session *session, const int *ranks, int count,
                              struct hvd_op **op_p)
{
    struct client_request request = {
        .what = "hvd_process_set_add_async", .kind = HVI_KIND_SET_ADD, .root = -1};
    return make_set(session, &request, false, ranks, count, op_p);
}

int hvd_process_set_add(struct hvd_session *session, const int *ranks, int count, int *id_p)
{
    struct client_request request = {
        .what = "hvd_process_set_add", .kind = HVI_KIND_SET_ADD, .root = -1};
    struct hvd_op *op;
    int rc = client_session_check_fork(session, request.what);
    if (rc != HVD_OK)
        return rc;
    if (!id_p)
        return client_error(HVD_ERR_INVALID, "%s: id_p is NULL", request.what);
    rc = make_set(session, &request, true, ranks, count, &op);
    if (rc != HVD_OK)
        return rc;
    rc = hvd_wait(op, -1);
    if (rc == HVD_OK)
        *id_p = hvd_op_process_set(op);
    hvd_op_free(op);
    return rc;
}

int hvd_process_set_open_async(struct hvd_session *session, const int *ranks, int count, int tag,
                               struct hvd_op **op_p)
{
    struct client_request request = {
        .what = "hvd_process_set_open_async", .kind = HVI_KIND_SET_OPEN, .root = -1, .tag = tag};
    if (tag < 0)
        return client_error(HVD_ERR_INVALID, "%s: tag %d is negative", request.what, tag);
    return make_set(session, &request, false, ranks, count, op_p);
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

static int remove_set(struct hvd_session *session, const char *what, int id, bool patient,
                      struct hvd_op **op_p)
{
    struct client_request request = {.what = what, .kind = HVI_KIND_SET_REMOVE, .root = id};
    if (id == 0)
        return client_error(HVD_ERR_INVALID, "%s: process set 0, all ranks, cannot be removed",
                            what);
    return submit(session, &request, patient, op_p);
}

int hvd_process_set_remove_async(struct hvd_session *session, int id, struct hvd_op **op_p)
{
    return remove_set(session, "hvd_process_set_remove_async", id, false, op_p);
}

int hvd_process_set_remove(struct hvd_session *session, int id)
{
    struct hvd_op *op;
    int rc = remove_set(session, "hvd_process_set_remove", id, true, &op);
    return rc == HVD_OK ? client_api_wait(op) : rc;
}

/* Locks the session and finds a set. */
static int enter(struct hvd_session *session, const char *what, int id, struct client_set **set_p)
{
    int rc = client_session_enter(session, what);
    if (rc != HVD_OK)
        return rc;
    struct client_set *set = client_sets_find(&session->ops.sets, id);
    if (!set) {
        client_session_leave(session);
        return client_set_refuse(NULL, id, session->link.identity.rank, what);
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

static int tell_ranks(struct hvd_session *session, const char *what, int id, int *ranks_p,
                      int capacity)
{
    struct client_set *set = NULL;
    int rc = enter(session, what, id, &set);
    if (rc != HVD_OK)
        return rc;
    int size = set->size;
    for (int i = 0; i < size && i < capacity; i++)
        ranks_p[i] = set->ranks[i];
    client_session_leave(session);
    return size;
}

int hvd_process_set_size(struct hvd_session *session, int id)
{
    return tell_ranks(session, "hvd_process_set_size", id, NULL, 0);
}

int hvd_process_set_ranks(struct hvd_session *session, int id, int *ranks_p, int capacity)
{
    return tell_ranks(session, "hvd_process_set_ranks", id, ranks_p, capacity);
}

int hvd_process_set_ids(struct hvd_session *session, int *ids_p, int capacity)
{
    int count = 0;
    int rc = client_session_enter(session, "hvd_process_set_ids");
    if (rc != HVD_OK)
        return rc;
    for (struct client_set *set = session->ops.sets.first; set; set = set->next, count++) {
        if (count < capacity)
            ids_p[count] = set->id;
    }
    client_session_leave(session);
    return count;
}
