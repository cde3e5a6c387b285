/* SPDX-License-Identifier: Apache-2.0
 * What one subscriber has still to be told: encoded replies, oldest first, bounded. One thread. */
#ifndef HVD_GATE_EVENTS_H
#define HVD_GATE_EVENTS_H

#include <stddef.h>
#include <stdint.h>

#define GATE_EVENTS_MAX 64u /* and one that says how many were lost */

struct gate_event;

/* All zero: nothing waits. */
struct gate_events {
    struct gate_event *waiting;
    uint32_t count;
    uint64_t lost; /* since the last one that waits */
};

/* Copies the reply. Where there is no room for it, it is counted. */
void gate_events_add(struct gate_events *events, const unsigned char *reply, size_t length);
/* The next one, for free(3); NULL: nothing waits. Of lost ones it tells where they were lost, by an event
 * with their number. */
unsigned char *gate_events_take(struct gate_events *events, size_t *length_p);
void gate_events_fini(struct gate_events *events);

#endif
