/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ops/sets.h"

#include "base/types.h"
#include "client/error.h"
#include "hvd/hvd.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

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
    for (int i = 0; i < size; i++)
        set->ranks[i] = ranks ? ranks[i] : i;
    qsort(set->ranks, (size_t)size, sizeof(set->ranks[0]), compare_ranks);
    set->size = size;
    set->rank = client_set_place(set, rank);
    return set;
}

int client_sets_init(struct client_sets *sets, int rank, int size)
{
    sets->first = sets->last = client_set_new(NULL, size, rank);
    return sets->first ? HVD_OK : HVD_ERR_NO_MEMORY;
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

bool client_set_is_usable(const struct client_set *set)
{
    return set && set->rank >= 0 && !set->joined && !set->removing;
}

int client_set_refuse(const struct client_set *set, int id, int rank, const char *label)
{
    char text[256];
    if (!set)
        return client_error(
            HVD_ERR_NOT_FOUND,
            "%s: there is no process set %d that rank %d knows; hvd_process_set_add "
            "makes one, and a set that some ranks have opened is theirs alone",
            label, id, rank);
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

void client_sets_insert(struct client_sets *sets, struct client_set *set)
{
    struct client_set **link = &sets->first;
    while (*link && (*link)->id < set->id)
        link = &(*link)->next;
    set->next = *link;
    *link = set;
}

void client_sets_remove(struct client_sets *sets, struct client_set *set)
{
    LL_DELETE(sets->first, set);
    sets->last = sets->first;
    free(set);
}

void client_set_restart(struct client_set *set)
{
    memset(set->anon_seq, 0, sizeof(set->anon_seq));
    for (int kind = 0; kind < HVI_SLOT_UNNAMED; kind++) {
        set->unnamed[kind].last = NULL;
        set->unnamed[kind].grant.valid = false;
    }
}
