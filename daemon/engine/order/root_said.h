/* SPDX-License-Identifier: Apache-2.0
 * The root of a job: what a node says of an op becomes parts. Within order/; one thread. */
#ifndef ENGINE_ORDER_ROOT_SAID_H
#define ENGINE_ORDER_ROOT_SAID_H

#include "daemon/engine/order/meeting.h"
#include "daemon/engine/order/sentence.h"

/* A report that is being judged. */
struct engine_root_hearing {
    struct engine_root *root;
    uint32_t node, index; /* in the job, in the set */
    const struct hvi_mesh_report *report;
    struct engine_set *set;
    struct engine_tensor *tensor;
    char *text;
    size_t text_size;
};

/* HVI_ERR_PROTOCOL, with a sentence about what the node has reported; then what printf takes. */
#define engine_root_disbelieve(hearing, ...)                                                       \
    engine_sentence_bad_report((hearing)->text, (hearing)->text_size, (hearing)->node, __VA_ARGS__)

/* The part of what is said: one that says the same, or a new one. NULL with *status_p. */
struct engine_part *engine_root_said_listen(const struct engine_root_hearing *hearing,
                                            struct engine_meeting *meeting,
                                            const struct hvi_mesh_said *said, int *status_p);
/* What the node's ranks say is its share of the op. HVI_OK; HVI_ERR_PROTOCOL with a sentence; HVI_ERR_NO_MEMORY. */
int engine_root_said_take(const struct engine_root_hearing *hearing,
                          struct engine_meeting *meeting);

#endif
