/* SPDX-License-Identifier: Apache-2.0
 * Bodies are numbered from 1. The receiver takes the next number and no other, and tells in each of
 * its own messages how far it has come; what it has not confirmed is said again. ZeroMQ loses whatever
 * was on the way when a connection is cut, and tells nobody.
 *
 * Both sides give the conversation a random number, and each message carries both. A message for
 * another number than ours is for a process before us. When the listening side has begun anew, the
 * joining side takes a new number too, so that none of its old messages counts, and says everything
 * again; the listening side sees the new number and forgets what was said under the old one. */
#include "daemon/gate/talk.h"

#include "base/clock.h"
#include "base/status.h"

#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#define REPEAT_NS (500 * HVI_NS_MS)
#define BEAT_NS   (500 * HVI_NS_MS)

struct gate_talk_item {
    struct gate_talk_item *prev, *next;
    size_t bytes;
    struct hvi_mesh_msg msg;
};

static void drop_first(struct gate_talk *talk)
{
    struct gate_talk_item *first = talk->queue;

    DL_DELETE(talk->queue, first);
    talk->items--;
    talk->bytes -= first->bytes;
    hvi_mesh_msg_free(&first->msg);
    free(first);
}

void gate_talk_init(struct gate_talk *talk, uint64_t own, bool joins)
{
    *talk = (struct gate_talk){.own = own, .joins = joins};
}

void gate_talk_fini(struct gate_talk *talk)
{
    while (talk->queue != NULL)
        drop_first(talk);
}

static size_t body_bytes(const struct hvi_mesh_msg *msg)
{
    if (msg->kind == HVI_MESH_NODE_REGISTER)
        return msg->node_register.node_bytes;
    if (msg->kind == HVI_MESH_REPLY)
        return msg->reply.part_bytes;
    if (msg->kind == HVI_MESH_HOSTS)
        return msg->hosts.host_count * sizeof(*msg->hosts.hosts);
    return msg->kind == HVI_MESH_NODE_ROSTER ? msg->node_roster.roster_bytes : 0;
}

int gate_talk_say(struct gate_talk *talk, struct hvi_mesh_msg *msg)
{
    size_t bytes = sizeof(struct gate_talk_item) + body_bytes(msg);
    bool full = talk->items >= GATE_TALK_ITEMS_MAX || talk->bytes + bytes > GATE_TALK_BYTES_MAX;
    struct gate_talk_item *item = full ? NULL : malloc(sizeof(*item));

    if (item == NULL) {
        hvi_mesh_msg_free(msg);
        return full ? HVI_ERR_LIMIT : HVI_ERR_NO_MEMORY;
    }
    item->msg = *msg;
    item->msg.number = ++talk->said;
    item->bytes = bytes;
    DL_APPEND(talk->queue, item);
    talk->items++;
    talk->bytes += bytes;
    return HVI_OK;
}

bool gate_talk_has_heard(const struct gate_talk *talk, uint64_t number)
{
    return talk->queue == NULL || talk->queue->msg.number > number;
}

/* The peer knows nothing of what was said. */
static void begin_anew(struct gate_talk *talk, uint64_t fresh)
{
    gate_talk_fini(talk);
    talk->said = talk->sent = 0;
    if (talk->joins)
        talk->own = fresh;
}

unsigned gate_talk_take(struct gate_talk *talk, const struct hvi_mesh_msg *msg, uint64_t fresh)
{
    unsigned news = GATE_TALK_NOTHING;

    if (msg->peer_talk != 0 && msg->peer_talk != talk->own) {
        /* The joining side may still get what was meant for its last number. */
        if (talk->joins)
            return GATE_TALK_NOTHING;
        talk->owes = true;
        if (msg->talk == talk->peer)
            return GATE_TALK_NOTHING;
        return GATE_TALK_STRANGE;
    }
    if (msg->talk != talk->peer) {
        bool first = talk->peer == 0;
        talk->peer = msg->talk;
        talk->heard = 0;
        talk->owes = true;
        if (!first) {
            begin_anew(talk, fresh);
            if (talk->joins)
                return GATE_TALK_ANEW;
            news = GATE_TALK_ANEW;
        }
    }
    while (msg->peer_talk == talk->own && talk->queue != NULL &&
           talk->queue->msg.number <= msg->heard)
        drop_first(talk);
    if (msg->number == 0)
        return news;
    talk->owes = true;
    if (msg->number != talk->heard + 1)
        return news;
    talk->heard++;
    return news | GATE_TALK_BODY;
}

static void fill(const struct gate_talk *talk, struct hvi_mesh_msg *msg)
{
    msg->talk = talk->own;
    msg->peer_talk = talk->peer;
    msg->heard = talk->heard;
}

void gate_talk_flush(struct gate_talk *talk, uint64_t now_ns,
                     void (*send)(void *user, struct hvi_mesh_msg *msg), void *user)
{
    bool again = now_ns >= talk->repeat_ns, any = false;
    struct gate_talk_item *item;

    DL_FOREACH(talk->queue, item)
    {
        if (!again && item->msg.number <= talk->sent)
            continue;
        fill(talk, &item->msg);
        send(user, &item->msg);
        any = true;
    }
    talk->sent = talk->said;
    if (!any && (talk->owes || now_ns >= talk->beat_ns)) {
        struct hvi_mesh_msg beat = {.kind = HVI_MESH_NONE};
        fill(talk, &beat);
        send(user, &beat);
        any = true;
    }
    if (any) {
        talk->owes = false;
        talk->beat_ns = now_ns + BEAT_NS;
    }
    if (again)
        talk->repeat_ns = now_ns + REPEAT_NS;
}

void gate_talk_hurry(struct gate_talk *talk)
{
    talk->repeat_ns = talk->beat_ns = 0;
}
