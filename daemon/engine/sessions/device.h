/* SPDX-License-Identifier: Apache-2.0
 * Memory of GPUs that ranks register: DeviceAdd and RegionRemove. They are acknowledged when the worker has answered.
 * Engine thread. */
#ifndef ENGINE_SESSIONS_DEVICE_H
#define ENGINE_SESSIONS_DEVICE_H

#include "daemon/engine/sessions/sessions.h"

/* Offers HVI_FEATURE_DEVICE, where the node starts workers. */
void engine_device_offer(struct engine_session *session);
/* DeviceAdd, with its descriptors in the packet. */
void engine_device_take(struct engine_session *session, const struct hvi_device_add *add);
/* FenceAdd, with its descriptor in the packet. */
void engine_device_take_page(struct engine_session *session, uint64_t request);
/* True: the region is one of memory of a GPU, and the Ack was sent or follows. */
bool engine_device_remove(struct engine_session *session, const struct hvi_region_remove *remove);
/* What the session waits for is not answered any more. */
void engine_device_close_session(struct engine_session *session);
/* No op uses its memory any more. */
void engine_device_let_go(struct engine_session *session);

/* As the functions of struct engine_device_calls. */
void engine_device_imported(struct engine_sessions *sessions, uint64_t ticket, int status,
                            const char *text);
/* .released and .paged. */
void engine_device_answered(struct engine_sessions *sessions, uint64_t ticket, int status,
                            const char *text);

#endif
