/* SPDX-License-Identifier: Apache-2.0
 * (process set, tensor name) -> tensor id. The first submission of a name carries it to the engine, later ones
 * only its id.
 *
 * At most HVI_TENSOR_IDS names are known at a time; after that the least recently used one that no
 * op holds gives its id away, so a trainer that invents a name per step uses constant memory. There
 * are more ids than ops, so one is always free. Needs the session's lock. */
#ifndef HVD_CLIENT_NAMES_H
#define HVD_CLIENT_NAMES_H

#include "client/ops/grant.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct client_name {
    uint32_t id;
    bool defined; /* the engine knows what the id means */
    const char *text;
    size_t bytes;
    struct client_grant grant;
};

struct client_name_entry; /* names.c */

struct client_names {
    struct client_name_entry *by_name; /* uthash */
    struct client_name_entry *oldest;  /* utlist, by last use */
    struct client_name_entry *last;    /* of the previous lookup: most programs repeat themselves */
    uint32_t count;                    /* ids given out so far */
};

/* Finds or makes the entry for `name` in a process set and claims it for one op: it is in flight until
 * client_names_landed and is not given away until client_names_put. HVD_OK, HVD_ERR_DUPLICATE_NAME
 * (in flight), HVD_ERR_INVALID (not UTF-8, empty or too long), HVD_ERR_NO_MEMORY; the last error is
 * not set. */
int client_names_claim(struct client_names *names, int process_set, const char *name,
                       struct client_name **name_p);
/* The op is complete (or was never submitted): the name may be claimed again. */
void client_names_landed(struct client_name *name);
/* The op is released. */
void client_names_put(struct client_name *name);
/* The engine has forgotten the set's names. */
void client_names_forget_set(struct client_names *names, int process_set);

void client_names_fini(struct client_names *names);

#endif
