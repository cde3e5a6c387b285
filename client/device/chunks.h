/* SPDX-License-Identifier: Apache-2.0
 * The chunks of a reservation in which a tensor lies. Within the room device/; without the session's lock. */
#ifndef HVD_CLIENT_DEVICE_CHUNKS_H
#define HVD_CLIENT_DEVICE_CHUNKS_H

#include "client/device/device.h"

/* Whether the driver has what it takes. */
bool client_chunks_can(const struct hvi_cuda *cuda);
/* Finds the chunks of [first, first + bytes): .chunks, .base, .bytes and .buffer_id, and the kind of handle that all of them have, a
 * descriptor if they do. Chunks without one, or on another device, make the memory CLIENT_DEVICE_UNSHARED, without chunks. The
 * driver's error: not all of it is mapped. */
int client_chunks_find(struct client_device_memory *memory, uint64_t first, uint64_t bytes);
/* The chunk's handle: HVI_CU_HANDLE_FD, an int, or HVI_CU_HANDLE_FABRIC, a struct hvi_cu_fabric, which is good as long as the chunk.
 * Or the driver's error. */
int client_chunks_export(const struct hvi_cuda *cuda, const struct client_device_chunk *chunk,
                         int type, void *handle_p);

#endif
