/* SPDX-License-Identifier: Apache-2.0
 * Whether this rank may submit an op on a process set, or remove it. Reads completions before it says
 * no: a join may be over, a set added. Needs the session's lock. */
#ifndef HVD_CLIENT_MEMBERS_H
#define HVD_CLIENT_MEMBERS_H

struct client_complete;
struct client_request;
struct client_set;

/* Finds the request's set. HVD_OK, HVD_ERR_NOT_FOUND, HVD_ERR_INVALID, with the last error set. */
int client_members_use(struct client_complete *complete, const struct client_request *request,
                       struct client_set **set_p);
/* The set can be removed. Errors as above. */
int client_members_check_removal(struct client_complete *complete, const char *what, int id);
/* The set can be closed: HVD_OK or HVD_ERR_INVALID. */
int client_members_check_closing(const struct client_set *set, const char *what);

#endif
