/* SPDX-License-Identifier: Apache-2.0
 * The event loop in which rooms wait for descriptors and times: sd-event, whose header is included here
 * alone. */
#ifndef ENGINE_EVENT_EVENT_H
#define ENGINE_EVENT_EVENT_H

#include <systemd/sd-event.h>

#endif
