/* SPDX-License-Identifier: Apache-2.0
 * The root of a job: what it knows of a node, and the failed ops that this node may still report. Within order/; one
 * thread. */
#ifndef ENGINE_ORDER_ROOT_STALE_H
#define ENGINE_ORDER_ROOT_STALE_H

#include "daemon/engine/order/meeting.h"

/* A node may still report an op that has failed. */
struct engine_root_stale {
    struct engine_root_stale *next;
    struct engine_tensor *tensor;
    uint64_t number; /* of the verdict that says so */
    int status;
    int32_t culprit;
    char *text;
};

struct engine_root_node {
    uint64_t number;    /* of its last verdict */
    uint64_t announced; /* of the last one that says that works repeat */
    bool halted;
    struct engine_root_stale *first, **last; /* oldest first */
    /* The group that is being reported; and why it fails, when it is all here. */
    struct engine_tensor *open;
    struct engine_root_stale *dropped;
};

/* Of an op that fails by the verdict of this number. NULL: out of memory. */
struct engine_root_stale *engine_root_stale_new(const struct engine_op *op, uint64_t number,
                                                int status, const char *text, int32_t culprit);
void engine_root_stale_free(struct engine_root *root, struct engine_root_stale *stale);
/* The node's from now on; `stale` may be NULL. */
void engine_root_stale_remember(struct engine_root_node *node, struct engine_root_stale *stale);
/* The node has seen the verdicts up to `seen`: what it says from now on is of later ops. */
void engine_root_stale_forget(struct engine_root *root, struct engine_root_node *node,
                              uint64_t seen);
/* Out of the list, the oldest of this tensor; NULL: there is none. */
struct engine_root_stale *engine_root_stale_take(struct engine_root_node *node,
                                                 const struct engine_tensor *tensor);
/* The node's group that is being reported, if there is one: its other members are not heard any more. */
void engine_root_stale_drop_group(struct engine_root *root, struct engine_root_node *node);

#endif
