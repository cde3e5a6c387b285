/* SPDX-License-Identifier: Apache-2.0
 * Groups: ops that run together or not at all. Engine thread. */
#ifndef ENGINE_ORDER_GROUP_H
#define ENGINE_ORDER_GROUP_H

#include "daemon/engine/order/order.h"

/* A rank's group of which some members are still to come; they are negotiated together. */
struct engine_group {
    struct engine_part *first, *last;
    int refused; /* not HVI_OK: no member of it is taken any more */
};

/* Takes the next member of the rank's group in, which belongs to order/ from now on; with the last
 * one, all are negotiated. HVI_OK; HVI_ERR_PROTOCOL: a tensor is in flight twice on this rank, and
 * the group has been dropped. */
int engine_group_take(struct engine_order *order, struct engine_group *group,
                      struct engine_part *part);
/* A member could not be taken: neither are the others. */
void engine_group_refuse(struct engine_order *order, struct engine_group *group, int status,
                         const char *text, int32_t culprit);
/* The rank goes: drops a group that is not complete. */
void engine_group_drop(struct engine_order *order, struct engine_group *group);

/* ---- within order/ ---- */

/* A complete, agreed member: held until its group is. False: as engine_op_complete. */
bool engine_group_hold(struct engine_order *order, struct engine_op *op);
/* A part is being taken back from a held member. */
void engine_group_unhold(struct engine_op *op);
/* A held leader whose ranks have all submitted their groups: fails if they are not the same.
 * False if so. */
bool engine_group_check(struct engine_order *order, struct engine_op *leader);
/* One more member has its outputs; with the last one, all become ready. */
void engine_group_sized(struct engine_order *order, struct engine_op *op);
/* One more member is done; with the last one, all are over. */
void engine_group_done(struct engine_order *order, struct engine_op *op, int status,
                       const char *text, int32_t culprit);
/* The work of one more member has been withdrawn; with the last one, all come back. */
void engine_group_returned(struct engine_order *order, struct engine_op *op);

#endif
