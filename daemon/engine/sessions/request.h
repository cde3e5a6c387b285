/* SPDX-License-Identifier: Apache-2.0
 * A request: what a rank has submitted, from intake until its completion is in the ring. order/ sees its
 * part, exec/ its share, slots/ its grant. Engine thread. */
#ifndef ENGINE_SESSIONS_REQUEST_H
#define ENGINE_SESSIONS_REQUEST_H

#include "daemon/engine/memory/region.h"
#include "daemon/engine/order/group.h"
#include "daemon/engine/slots/slots.h"
#include "shm/abi.h"

struct engine_session;

struct engine_request {
    struct engine_slots_share slots;    /* regions of operands have one user each, as .aux has */
    struct engine_request *next;        /* free list, then list of owed completions */
    struct engine_request *cookie_next; /* in the session's table */
    struct engine_session *session;
    struct engine_region *aux;
    /* With a fence page: in its lists (fence.h). */
    struct engine_request *unstarted_next, *unstarted_prev;
    bool unstarted, held;
    struct engine_group waiting; /* held, with the group that it completes */
    bool owed;                   /* .completion waits for a free slot */
    char *owed_text;
    struct hvi_completion completion;
};

static inline struct engine_request *engine_request_of(const struct engine_part *part)
{
    return (struct engine_request *)(uintptr_t)part;
}

/* In complete.c: lets go of its regions, tensor and set, and puts it back. */
void engine_request_free(struct engine_request *request);

#endif
