/* SPDX-License-Identifier: Apache-2.0
 * Fence pages of sessions, and ops that are held until others have started. The engine stores a .done word for every
 * op that is over: a worker has stored it before for one that it did, and then nothing changes. So a stream never
 * waits for an op that failed before a worker had it. */
#include "daemon/engine/sessions/fence.h"

#include "base/log.h"
#include "base/status.h"
#include "daemon/engine/device/device.h"
#include "daemon/engine/exec/exec.h"
#include "daemon/engine/order/negotiate.h"
#include "daemon/engine/sessions/complete.h"
#include "daemon/engine/sessions/intake.h"

#include <stdlib.h>

void engine_fence_fini(struct engine_session *session)
{
    if (!session->fences)
        return;
    hvi_fence_fini(&session->fences->page);
    free(session->fences);
    session->fences = NULL;
}

const char *engine_fences_refuse(const struct engine_fences *fences, uint32_t cell, uint64_t turn)
{
    if (!fences)
        return "the session has no fence page";
    if (cell >= HVI_FENCE_CELLS)
        return "there is no such cell";
    if (turn >= HVI_FENCE_TURNS)
        return "there is no such turn";
    if (fences->busy[cell])
        return "the cell is in flight";
    return turn > fences->turns[cell] ? NULL : "the cell had that turn already";
}

/* ---- ops that have not started ---- */

static void list_unstarted(struct engine_fences *fences, struct engine_request *request)
{
    request->unstarted = true;
    request->unstarted_next = NULL;
    request->unstarted_prev = fences->unstarted_last;
    if (fences->unstarted_last)
        fences->unstarted_last->unstarted_next = request;
    else
        fences->unstarted = request;
    fences->unstarted_last = request;
}

static void has_started(struct engine_request *request)
{
    struct engine_fences *fences = request->session->fences;

    if (!fences || !request->unstarted)
        return;
    request->unstarted = false;
    if (request->unstarted_prev)
        request->unstarted_prev->unstarted_next = request->unstarted_next;
    else
        fences->unstarted = request->unstarted_next;
    if (request->unstarted_next)
        request->unstarted_next->unstarted_prev = request->unstarted_prev;
    else
        fences->unstarted_last = request->unstarted_prev;
    if (fences->held)
        request->session->sessions->releasable = true;
}

void engine_fence_take(struct engine_request *request)
{
    struct engine_fences *fences = request->session->fences;
    struct engine_share *share = &request->slots.share;
    const struct hvi_submission *copy = &share->part.copy;

    request->held = request->unstarted = false;
    request->waiting = (struct engine_group){0};
    if (copy->seq != request->session->next_seq) /* it has come through a slot */
        return;
    list_unstarted(fences, request);
    if (copy->fence_cell == 0)
        return;
    fences->busy[copy->fence_cell] = true;
    fences->turns[copy->fence_cell] = copy->fence_turn;
    share->fence = (struct engine_fence){.page = &fences->page,
                                         .id = fences->number,
                                         .cell = copy->fence_cell,
                                         .turn = copy->fence_turn};
}

void engine_fence_over(struct engine_request *request)
{
    struct engine_fences *fences = request->session->fences;
    struct engine_fence *fence = &request->slots.share.fence;

    has_started(request);
    if (!fence->page)
        return;
    hvi_fence_store_done(fence->page, fence->cell, fence->turn);
    fences->busy[fence->cell] = false;
    fence->page = NULL;
}

void engine_fence_started(struct engine_op *op)
{
    for (uint32_t i = 0; i < op->set->places; i++) {
        if (op->parts[i])
            has_started(engine_request_of(op->parts[i]));
    }
}

/* ---- ops that are held ---- */

static bool must_wait(const struct engine_fences *fences, uint64_t after)
{
    return fences->unstarted && fences->unstarted->slots.share.part.copy.seq <= after;
}

/* A join comes after what its rank has brought in the set before, also what is held. */
static void come_behind_held(const struct engine_fences *fences, struct hvi_submission *join)
{
    for (const struct engine_request *held = fences->held; held; held = held->next) {
        const struct hvi_submission *copy = &held->slots.share.part.copy;
        if (copy->process_set == join->process_set && copy->after > join->after)
            join->after = copy->after;
    }
}

bool engine_fence_hold(struct engine_request *request)
{
    struct engine_session *session = request->session;
    struct engine_fences *fences = session->fences;
    struct hvi_submission *copy = &request->slots.share.part.copy;

    if (copy->group != 0) {
        if (copy->group_index == 0 || copy->after > fences->group_after)
            fences->group_after = copy->after;
        if (copy->group_index + 1 < copy->group_size)
            return false;
        copy->after = fences->group_after;
    }
    if (copy->kind == HVI_KIND_JOIN)
        come_behind_held(fences, copy);
    if (!must_wait(fences, copy->after))
        return false;
    request->waiting = session->grouped;
    session->grouped = (struct engine_group){.refused = session->grouped.refused};
    request->held = true;
    request->next = NULL;
    if (fences->held_last)
        fences->held_last->next = request;
    else
        fences->held = request;
    fences->held_last = request;
    return true;
}

static void unlist_held(struct engine_fences *fences, struct engine_request *request)
{
    struct engine_request **link = &fences->held, *before = NULL;

    while (*link != request) {
        before = *link;
        link = &before->next;
    }
    *link = request->next;
    if (fences->held_last == request)
        fences->held_last = before;
    request->held = false;
}

/* With its group. */
static void fail_held(struct engine_request *request, int status, const char *text, int32_t culprit)
{
    struct engine_session *session = request->session;
    struct engine_group group = request->waiting;

    unlist_held(session->fences, request);
    engine_group_refuse(session->order, &group, status, text, culprit);
    engine_complete_part(&request->slots.share.part, status, text, culprit);
}

void engine_fence_fail_held(struct engine_sessions *sessions, int status, const char *text,
                            int32_t culprit)
{
    for (uint32_t seat = 0; sessions->fenced > 0 && seat < sessions->seats; seat++) {
        struct engine_session *session = sessions->ranks[seat].session;
        while (session && session->fences && session->fences->held)
            fail_held(session->fences->held, status, text, culprit);
    }
}

/* The one that is held with this one, which may be itself. */
static struct engine_request *held_with(const struct engine_request *request)
{
    const struct hvi_submission *copy = &request->slots.share.part.copy;
    struct engine_request *held = request->session->fences->held;

    if (request->slots.share.part.op)
        return NULL;
    for (; held; held = held->next) {
        if (held == request)
            return held;
        if (copy->group == 0 || held->slots.share.part.copy.group != copy->group)
            continue;
        for (const struct engine_part *part = held->waiting.first; part; part = part->sibling) {
            if (part == &request->slots.share.part)
                return held;
        }
    }
    return NULL;
}

bool engine_fence_cancel(struct engine_request *request)
{
    struct engine_request *held = held_with(request);
    char text[ENGINE_LABEL + 64];

    if (!held)
        return false;
    engine_negotiate_cancel_text(&request->slots.share.part, text, sizeof text);
    fail_held(held, HVI_ERR_CANCELLED, text, request->session->rank);
    return true;
}

/* The next one of the session that need not wait any more. */
static struct engine_request *free_to_go(const struct engine_session *session)
{
    struct engine_request *request =
        engine_session_is_open(session) && session->fences ? session->fences->held : NULL;

    while (request && must_wait(session->fences, request->slots.share.part.copy.after))
        request = request->next;
    return request;
}

void engine_fence_release(struct engine_sessions *sessions)
{
    struct engine_request *request;

    sessions->releasable = false;
    for (uint32_t seat = 0; seat < sessions->seats; seat++) {
        while (sessions->ranks[seat].session &&
               (request = free_to_go(sessions->ranks[seat].session)) != NULL) {
            unlist_held(request->session->fences, request);
            engine_intake_go_on(request);
        }
    }
}

/* ---- the end ---- */

/* What is opened here, and is not over, is cancelled before: it may not succeed with memory that nobody wrote. */
void engine_fence_close(struct engine_session *session, bool process_over)
{
    struct engine_sessions *sessions = session->sessions;
    struct engine_fences *fences = session->fences;

    if (!fences)
        return;
    while (fences->held)
        fail_held(fences->held, HVI_ERR_CLOSED, NULL, session->rank);
    engine_dispatch_fences_over(sessions->exec, fences->number);
    hvi_fence_poison(&fences->page, true);
    engine_device_session_over(sessions->device, fences->number, process_over);
    sessions->fenced--;
}

void engine_fence_poison(struct engine_session *session)
{
    if (session->fences)
        hvi_fence_poison(&session->fences->page, false);
}
