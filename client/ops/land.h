/* SPDX-License-Identifier: Apache-2.0
 * What an op's beginning and its end change in the things that it holds: its operands, its name, its
 * process set. Needs the session's lock. */
#ifndef HVD_CLIENT_LAND_H
#define HVD_CLIENT_LAND_H

struct client_ops;
struct hvd_op;

/* The op has been submitted: a join, a removal or a closing changes its set from now on. */
void client_op_launched(struct client_ops *ops, const struct hvd_op *op);
/* The op has its status, however it ended, and is in no slot: to DONE; everything but the result is
 * given back. An abandoned one is released. */
void client_op_land(struct client_ops *ops, struct hvd_op *op);
/* Gives back everything the op holds, and the op. */
void client_op_release(struct client_ops *ops, struct hvd_op *op);

#endif
