/* SPDX-License-Identifier: Apache-2.0
 * The newest events are lost, not the oldest: a reader that comes back learns what happened first, then
 * how many events are missing, then what follows. The event that says so takes their place in the order. */
#include "daemon/gate/events.h"

#include "base/clock.h"
#include "base/status.h"
#include "proto/wire.h"

#include <stdlib.h>
#include <string.h>

#include <utlist.h>

struct gate_event {
    struct gate_event *prev, *next;
    unsigned char *reply;
    size_t length;
};

/* Takes `reply`. False: no memory. */
static bool append(struct gate_events *events, unsigned char *reply, size_t length)
{
    struct gate_event *event = reply == NULL ? NULL : malloc(sizeof(*event));

    if (event == NULL) {
        free(reply);
        return false;
    }
    event->reply = reply;
    event->length = length;
    DL_APPEND(events->waiting, event);
    events->count++;
    return true;
}

/* False: it cannot be said now. */
static bool say_lost(struct gate_events *events)
{
    struct hvi_event_row row = {
        .kind = HVI_EVENT_LOST, .at_ns = hvi_clock_ns(), .rank = -1, .count = events->lost};
    unsigned char *bytes = NULL;
    size_t length = 0;

    if (hvi_event_encode(&row, &bytes, &length) != HVI_OK || !append(events, bytes, length))
        return false;
    events->lost = 0;
    return true;
}

void gate_events_add(struct gate_events *events, const unsigned char *reply, size_t length)
{
    unsigned char *copy = NULL;

    if (events->count < GATE_EVENTS_MAX && (events->lost == 0 || say_lost(events)))
        copy = malloc(length);
    if (copy != NULL)
        memcpy(copy, reply, length);
    if (!append(events, copy, length))
        events->lost++;
}

unsigned char *gate_events_take(struct gate_events *events, size_t *length_p)
{
    struct gate_event *first;
    unsigned char *reply;

    if (events->waiting == NULL && (events->lost == 0 || !say_lost(events)))
        return NULL;
    first = events->waiting;
    DL_DELETE(events->waiting, first);
    events->count--;
    reply = first->reply;
    *length_p = first->length;
    free(first);
    return reply;
}

void gate_events_fini(struct gate_events *events)
{
    unsigned char *reply;
    size_t length;

    events->lost = 0;
    while ((reply = gate_events_take(events, &length)) != NULL)
        free(reply);
}
