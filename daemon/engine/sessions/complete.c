/* SPDX-License-Identifier: Apache-2.0
 * Complete: the only writer of completion rings, text cells and client doorbells. It never waits
 * for a reader: the ring has a slot for every op a session may have in flight, and in the one case
 * where more is due (an unread SIZED and DONE of the same op) the completion is owed and follows
 * when the reader has made room.
 *
 * Completions are published one by one but the bell is rung once per session and pass of the loop.
 */
#include "daemon/engine/sessions/complete.h"

#include "base/assert.h"
#include "base/status.h"
#include "daemon/engine/order/sizes.h"
#include "daemon/engine/sessions/fence.h"
#include "daemon/engine/stats/stats.h"
#include "shm/bell.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

static void part_fini(struct engine_tensors *tensors, struct engine_part *part)
{
    if (part->tensor)
        engine_tensor_put(tensors, part->tensor);
    if (part->leader)
        engine_tensor_put(tensors, part->leader);
    if (part->set)
        engine_set_put(part->set);
    free(part->integers);
    part->integers = NULL;
}

static void let_go(const struct engine_operand *operand)
{
    if (operand->kind != ENGINE_OPERAND_MAPPED && operand->kind != ENGINE_OPERAND_DEVICE)
        return;
    operand->region->users--;
    if (operand->late)
        operand->region->kept = true;
}

void engine_request_free(struct engine_request *request)
{
    struct engine_session *session = request->session;
    struct engine_part *part = &request->slots.share.part;
    struct engine_request **link = &session->cookies[part->copy.cookie % HVI_CQ_SLOTS];

    while (*link != request)
        link = &(*link)->cookie_next;
    *link = request->cookie_next;
    let_go(&request->slots.share.in);
    let_go(&request->slots.share.out);
    if (session->fences)
        engine_fence_over(request);
    if (request->aux)
        request->aux->users--;
    part_fini(&session->order->tensors, part);
    free(request->owed_text);
    request->owed_text = NULL;
    request->next = session->free_requests;
    session->free_requests = request;
    session->in_flight--;
}

void engine_complete_drop(struct engine_part *part)
{
    engine_request_free(engine_request_of(part));
}

/* Completions with the same sentence, one after the other, share its cell. */
static void write_text(struct engine_session *session, const char *text,
                       struct hvi_completion *completion)
{
    if (!text || text[0] == '\0')
        return;
    if (strncmp(session->text, text, HVI_TEXT_MAX) != 0) {
        snprintf(session->text, sizeof session->text, "%s", text);
        hvi_channel_write_text(&session->channel, text, &session->text_cell, &session->text_turn);
    }
    completion->text_cell = session->text_cell;
    completion->text_turn = session->text_turn;
}

/* False when there is no room. */
static bool push(struct engine_session *session, struct hvi_completion *completion,
                 const char *text)
{
    struct engine_sessions *sessions = session->sessions;
    struct hvi_ring *ring = &session->channel.cq;

    if (session->cq_free == 0 && hvi_ring_space(ring, &session->cq_free) != HVI_OK) {
        session->doom = "an impossible index in its completion ring";
        sessions->doomed = true;
        return false;
    }
    if (session->cq_free == 0)
        return false;
    write_text(session, text, completion);
    completion->seq = ++session->completion_seq;
    memcpy(hvi_ring_slot(ring, 0), completion, sizeof *completion);
    hvi_ring_publish(ring, 1);
    session->cq_free--;
    if (!session->bell_due) {
        session->bell_due = true;
        session->bell_next = sessions->bells;
        sessions->bells = session;
    }
    return true;
}

static void owe(struct engine_request *request, const struct hvi_completion *completion,
                const char *text)
{
    struct engine_session *session = request->session;

    request->completion = *completion;
    free(request->owed_text);
    request->owed_text = text ? strdup(text) : NULL;
    if (request->owed)
        return;
    request->owed = true;
    request->next = NULL;
    if (session->owed_last)
        session->owed_last->next = request;
    else
        session->owed_first = request;
    session->owed_last = request;
    session->sessions->owed++;
}

/* What is owed already goes first, so that completions keep their order. */
static bool give(struct engine_request *request, struct hvi_completion *completion,
                 const char *text)
{
    if (!request->session->owed_first && push(request->session, completion, text))
        return true;
    owe(request, completion, text);
    return false;
}

void engine_complete_part(struct engine_part *part, int status, const char *text, int32_t culprit)
{
    struct engine_request *request = engine_request_of(part);
    struct engine_session *session = request->session;
    bool good = status == HVI_OK;
    struct hvi_completion completion = {
        .cookie = part->copy.cookie,
        .status = status,
        .kind = HVI_COMPLETE_DONE,
        .text_cell = HVI_TEXT_NONE,
        .bytes = good ? part->out_bytes : 0,
        .rows = good ? part->rows : 0,
        .done_ns = session->order->now_ns,
        .culprit = culprit,
        .grant = good ? request->slots.grant : 0,
    };

    HVI_ASSERT(status <= 0);
    if (session->fences) /* a stream goes on before its rank can know why */
        engine_fence_over(request);
    engine_slots_fold_trace(session->sessions->slots, part->seat);
    engine_trace_part(session->sessions->stats, part, status, completion.done_ns);
    if (completion.grant != 0)
        completion.text_turn = request->slots.grant_turn;
    part->op = NULL;
    if (part->output_asked)
        session->outputs_excused++;
    part->output_asked = false;
    if (!engine_session_is_open(session) || give(request, &completion, good ? NULL : text))
        engine_request_free(request);
}

void engine_complete_sized(struct engine_part *part)
{
    struct engine_request *request = engine_request_of(part);
    struct hvi_completion completion = {
        .cookie = part->copy.cookie,
        .status = HVI_OK,
        .kind = HVI_COMPLETE_SIZED,
        .text_cell = HVI_TEXT_NONE,
        .bytes = part->out_bytes,
        .rows = part->rows,
        .done_ns = request->session->order->now_ns,
        .culprit = -1,
    };

    if (engine_session_is_open(request->session))
        give(request, &completion, NULL);
}

void engine_complete_splits(const struct engine_op *op)
{
    for (uint32_t to = 0; to < op->set->places; to++) {
        const struct engine_part *part = op->parts[to];
        const struct engine_request *request = part ? engine_request_of(part) : NULL;
        if (!request || !request->aux)
            continue;
        char *at = (char *)request->aux->map.base + part->copy.aux_offset +
                   (uint64_t)part->copy.aux_count * sizeof(int64_t);
        for (uint32_t from = 0; from < op->set->size; from++) {
            int64_t rows = op->set->span ? engine_sizes_received(op, to, from)
                                         : engine_sizes_split(op, from, to);
            memcpy(at + from * sizeof rows, &rows, sizeof rows);
        }
    }
}

static void pay(struct engine_session *session)
{
    struct engine_request *request = session->owed_first;

    while (request && push(session, &request->completion, request->owed_text)) {
        session->owed_first = request->next;
        if (!session->owed_first)
            session->owed_last = NULL;
        session->sessions->owed--;
        request->owed = false;
        if (request->completion.kind == HVI_COMPLETE_DONE)
            engine_request_free(request);
        request = session->owed_first;
    }
}

void engine_complete_owed(struct engine_sessions *sessions)
{
    for (uint32_t seat = 0; seat < sessions->seats && sessions->owed > 0; seat++) {
        struct engine_session *session = sessions->ranks[seat].session;
        if (session)
            pay(session);
    }
}

void engine_complete_ring_event(struct engine_session *session)
{
    /* Acquire, pairs with the client's store before it polls; it drains once more after arming. */
    if (atomic_load_explicit(&session->channel.header->client_event_armed, memory_order_acquire) !=
        0)
        /* The counter is full or broken by the client: then it is readable already. */
        (void)eventfd_write(session->event_fd, 1);
}

static void ring_client(struct engine_session *session)
{
    hvi_bell_ring_client(session->channel.header);
    engine_complete_ring_event(session);
}

void engine_complete_ring(struct engine_sessions *sessions)
{
    while (sessions->bells) {
        struct engine_session *session = sessions->bells;
        sessions->bells = session->bell_next;
        session->bell_due = false;
        if (engine_session_is_open(session))
            ring_client(session);
    }
}
