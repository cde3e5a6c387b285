/* SPDX-License-Identifier: Apache-2.0
 * The event loop in which rooms wait for descriptors and times: sd-event, whose header is included here
 * alone. */
#ifndef ENGINE_EVENT_EVENT_H
#define ENGINE_EVENT_EVENT_H

#include <stdint.h>
#include <systemd/sd-event.h>

/* Calls `handler` once, `usec` from now; *source_p is made at the first call, and set again later. Negative: an errno. */
static inline int engine_event_after(sd_event *event, sd_event_source **source_p, uint64_t usec,
                                     uint64_t accuracy_us, sd_event_time_handler_t handler,
                                     void *user)
{
    if (!*source_p)
        return sd_event_add_time_relative(event, source_p, CLOCK_MONOTONIC, usec, accuracy_us,
                                          handler, user);
    int error = sd_event_source_set_time_relative(*source_p, usec);
    return error < 0 ? error : sd_event_source_set_enabled(*source_p, SD_EVENT_ONESHOT);
}

#endif
