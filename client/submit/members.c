/* SPDX-License-Identifier: Apache-2.0 */
#include "client/submit/members.h"

#include "client/complete/complete.h"
#include "client/error.h"
#include "client/ops/ops.h"
#include "client/ops/request.h"

int client_members_use(struct client_complete *complete, const struct client_request *request,
                       struct client_set **set_p)
{
    char label[CLIENT_LABEL_MAX];
    struct client_set *set = client_sets_find(&complete->ops->sets, request->process_set);
    if (!client_set_is_usable(set)) { /* a join may be over, a set added */
        client_complete_drain(complete);
        set = client_sets_find(&complete->ops->sets, request->process_set);
    }
    if (client_set_is_usable(set)) {
        *set_p = set;
        return HVD_OK;
    }
    client_request_label(request, label, sizeof(label));
    return client_set_refuse(set, request->process_set, complete->ops->rank, label);
}

int client_members_check_removal(struct client_complete *complete, const char *what, int id)
{
    struct client_set *set = client_sets_find(&complete->ops->sets, id);
    if (!set) {
        client_complete_drain(complete);
        set = client_sets_find(&complete->ops->sets, id);
    }
    if (set && !set->removing && !set->opened)
        return HVD_OK;
    if (set && !set->removing)
        return client_error(HVD_ERR_INVALID,
                            "%s: process set %d was opened by its members, who close it by "
                            "hvd_process_set_close_async",
                            what, id);
    return client_set_refuse(set, id, complete->ops->rank, what);
}

int client_members_check_closing(const struct client_set *set, const char *what)
{
    if (set->opened)
        return HVD_OK;
    return client_error(HVD_ERR_INVALID,
                        "%s: process set %d was not opened by its members alone; all ranks of the "
                        "job remove it by hvd_process_set_remove",
                        what, set->id);
}
