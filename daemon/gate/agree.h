/* SPDX-License-Identifier: Apache-2.0
 * Whether what nodes have registered goes together, and sentences about them. Pure. */
#ifndef HVD_GATE_AGREE_H
#define HVD_GATE_AGREE_H

#include "daemon/gate/rendezvous.h"

struct gate_sentence {
    char text[HVI_TEXT_MAX + 1];
    size_t used;
    const char *
        own_address; /* of the rendezvous' node, which need not have registered one; "" or NULL: not known */
};

/* Appends, as far as there is room. */
void gate_say(struct gate_sentence *sentence, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* "0-3,8": the ranks of which `has` is `wanted`. */
void gate_say_ranks(struct gate_sentence *sentence, const bool *has, int32_t size, bool wanted);
/* "NAME (ADDRESS)". */
void gate_say_node(struct gate_sentence *sentence, const struct gate_registration *said);
/* That the node is lost, and why; "": its address is not known, or it is the job of this hvdd. */
void gate_say_lost(struct gate_sentence *sentence, const char *name, const char *address,
                   const char *job, uint64_t silent_ns, const char *why);
/* Sets `has` of the node's ranks. */
void gate_mark_ranks(bool *has, int32_t size, const struct gate_registration *said);

/* HVI_OK, or why this registration makes no sense by itself. */
int gate_agree_check(const struct gate_registration *said, struct gate_sentence *sentence);
/* True: the two cannot be in one job, and the sentence says why. */
bool gate_agree_contradict(const struct gate_registration *a, const struct gate_registration *b,
                           struct gate_sentence *sentence, int *status_p);

#endif
