/* SPDX-License-Identifier: Apache-2.0
 * The process sets this session knows. A set enters the table when the completion of its addition
 * is read and leaves it when that of its removal is; set 0, all ranks, is always there. The numbers
 * of unnamed ops are counted per set, because the members of a set need not agree on what happens
 * in another. Needs the session's lock. */
#ifndef HVD_CLIENT_SETS_H
#define HVD_CLIENT_SETS_H

#include "client/ops/grant.h"
#include "shm/slots.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CLIENT_KINDS 16u /* room for every HVI_KIND_* as an index */

struct client_set {
    int id;
    int rank;      /* this rank's place in it, -1: not a member */
    bool joined;   /* this rank's join is in flight */
    bool removing; /* the removal or closing is in flight */
    bool opened;   /* by its members alone */
    uint64_t anon_seq[CLIENT_KINDS];
    struct client_unnamed_slot unnamed[HVI_SLOT_UNNAMED];
    bool seated;                   /* every member has a seat at this engine: .seats are known */
    uint8_t seats[HVI_SLOT_RANKS]; /* by place */
    struct client_set *next;       /* with a higher id */
    int size;
    int ranks[]; /* global, ascending */
};

struct client_sets {
    struct client_set *first; /* set 0 */
    struct client_set *last;  /* of the previous look-up */
};

/* HVD_OK or HVD_ERR_NO_MEMORY. */
int client_sets_init(struct client_sets *sets, int rank, int size);
void client_sets_fini(struct client_sets *sets);

/* A set that is in no table yet, to be released with free(3); `ranks` in any order, or NULL
 * for 0 to size - 1. NULL: no memory. */
struct client_set *client_set_new(const int *ranks, int size, int rank);
/* NULL when there is none. */
struct client_set *client_sets_find(struct client_sets *sets, int id);
/* The place of a global rank, or -1. */
int client_set_place(const struct client_set *set, int rank);
/* "process set 2 (ranks 0,1)", for sentences. */
void client_set_describe(const struct client_set *set, char *text_p, size_t text_size);

/* May be used by this rank. */
bool client_set_is_usable(const struct client_set *set);
/* Why it may not, NULL being a set that `id` does not name: HVD_ERR_NOT_FOUND or HVD_ERR_INVALID, with
 * the last error set. */
int client_set_refuse(const struct client_set *set, int id, int rank, const char *label);
/* The unnamed ops of the set are numbered from 1 again: grants are void. */
void client_set_restart(struct client_set *set);

/* Takes over `set`, whose id is in no other. */
void client_sets_insert(struct client_sets *sets, struct client_set *set);
/* Frees it. */
void client_sets_remove(struct client_sets *sets, struct client_set *set);

#endif
