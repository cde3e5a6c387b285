/* SPDX-License-Identifier: Apache-2.0
 * What the ranks of an op have to say alike. Engine thread. */
#ifndef ENGINE_ORDER_AGREE_H
#define ENGINE_ORDER_AGREE_H

#include "daemon/engine/order/op.h"

/* The parts of a complete op: HVI_OK if all agree and what they ask for can be done, else
 * HVI_ERR_MISMATCH, HVI_ERR_UNSUPPORTED or HVI_ERR_INVALID and one sentence for every rank. Pure. */
int engine_agree_check(const struct engine_op *op, char *text_p, size_t text_size);
/* The first half: HVI_OK or HVI_ERR_MISMATCH. */
int engine_agree_compare(const struct engine_op *op, char *text_p, size_t text_size);
/* The same of an op whose parts got their outputs late, for where these lie. */
int engine_agree_memory(const struct engine_op *op, char *text_p, size_t text_size);
/* The same for a send and a recv on different nodes. HVI_OK or HVI_ERR_MISMATCH. */
int engine_agree_pair(const struct engine_tensor *tensor, const struct engine_part *send,
                      const struct engine_part *recv, char *text_p, size_t text_size);
/* A group whose first op is complete and agreed, but not all that should follow it: which rank says
 * what. */
void engine_agree_describe_group(const struct engine_op *leader, char *text_p, size_t text_size);
/* Whether all who have brought the first op of a group have brought the same others. */
bool engine_agree_on_group(const struct engine_op *leader);
/* Whether the part repeats what its tensor's ranks agreed on last. */
bool engine_agree_repeats(const struct engine_part *part);
/* The same of another tensor, which stands for the part's. */
bool engine_agree_repeats_as(const struct engine_part *part, const struct engine_tensor *tensor);
/* The same but for the number of rows. */
bool engine_agree_repeats_but_rows(const struct engine_part *part,
                                   const struct engine_tensor *tensor);
/* Remembers what a complete op agreed on, if it may be repeated without a check. */
void engine_agree_remember(const struct engine_op *op);
/* The same under another tensor. */
void engine_agree_remember_as(const struct engine_op *op, struct engine_tensor *tensor);

#endif
