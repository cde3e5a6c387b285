/* SPDX-License-Identifier: Apache-2.0
 * What one rank can see of a bad call without asking another. The last error is set. */
#ifndef HVD_CLIENT_CHECK_H
#define HVD_CLIENT_CHECK_H

struct client_request;
struct client_set;

/* Fills process_set and the scales. */
int client_check_options(struct client_request *request);
/* Checks everything that needs no session but its rank and the op's set; fills the rest. */
int client_check(struct client_request *request, int rank, const struct client_set *set);

#endif
