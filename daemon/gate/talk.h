/* SPDX-License-Identifier: Apache-2.0
 * A conversation between two gates over a connection that may lose what was sent. Pure: no socket, no
 * clock but `now_ns`. What one side says, the other hears once and in order, or one of them notices
 * that the other has begun anew. One thread. */
#ifndef HVD_GATE_TALK_H
#define HVD_GATE_TALK_H

#include "proto/gate.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GATE_TALK_ITEMS_MAX 4096u
#define GATE_TALK_BYTES_MAX (32u * 1024u * 1024u)

struct gate_talk_item;

struct gate_talk {
    uint64_t own, peer; /* each side's number of the conversation; peer 0: not heard yet */
    bool joins;         /* this side begins anew when the other one has */
    uint64_t heard;     /* bodies of the peer's that have come */
    uint64_t said;      /* number of the last body of ours */
    uint64_t sent;      /* of the last one that was sent at least once */
    struct gate_talk_item *queue; /* what the peer has not confirmed, oldest first */
    size_t items, bytes;
    uint64_t repeat_ns, beat_ns; /* when it is said again; when a sign of life is due */
    bool owes;                   /* the peer does not know yet what has come */
};

enum gate_talk_news {
    GATE_TALK_NOTHING = 0,
    GATE_TALK_BODY = 1,   /* the message's body is new */
    GATE_TALK_ANEW = 2,   /* the peer has begun anew: forget what it said, say everything again */
    GATE_TALK_STRANGE = 4 /* it speaks to somebody before us: a sign of life tells it */
};

/* `own` is random and not 0. */
void gate_talk_init(struct gate_talk *talk, uint64_t own, bool joins);
void gate_talk_fini(struct gate_talk *talk);
/* Owns the body's memory in any case. HVI_OK, HVI_ERR_NO_MEMORY, HVI_ERR_LIMIT (the peer confirms
 * nothing). */
int gate_talk_say(struct gate_talk *talk, struct hvi_mesh_msg *msg);
/* The peer has confirmed the body of this number. */
bool gate_talk_has_heard(const struct gate_talk *talk, uint64_t number);
/* What a message means: a set of enum gate_talk_news. `fresh` is a random number for a side that begins
 * anew. */
unsigned gate_talk_take(struct gate_talk *talk, const struct hvi_mesh_msg *msg, uint64_t fresh);
/* Calls `send` for what is due: new bodies, those that have not been confirmed for 500 ms, or a sign of
 * life each 500 ms or when something has come. */
void gate_talk_flush(struct gate_talk *talk, uint64_t now_ns,
                     void (*send)(void *user, struct hvi_mesh_msg *msg), void *user);
/* The connection is a new one: whatever was sent may be lost. */
void gate_talk_hurry(struct gate_talk *talk);

#endif
