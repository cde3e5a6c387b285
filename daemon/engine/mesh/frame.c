/* SPDX-License-Identifier: Apache-2.0
 * Untrusted bytes: a length is believed only up to the limit of its kind, and memory for a large body comes
 * with the frame that needs it and goes with it. */
#include "daemon/engine/mesh/frame.h"

#include "base/assert.h"
#include "base/status.h"

#include <endian.h>
#include <stdlib.h>
#include <string.h>

#define ROOM_USUAL ((size_t)16384)

uint32_t engine_mesh_get_u32(const unsigned char *at)
{
    uint32_t value;

    memcpy(&value, at, sizeof value);
    return le32toh(value);
}

uint64_t engine_mesh_get_u64(const unsigned char *at)
{
    uint64_t value;

    memcpy(&value, at, sizeof value);
    return le64toh(value);
}

void engine_mesh_put_u32(unsigned char *at, uint32_t value)
{
    value = htole32(value);
    memcpy(at, &value, sizeof value);
}

void engine_mesh_put_u64(unsigned char *at, uint64_t value)
{
    value = htole64(value);
    memcpy(at, &value, sizeof value);
}

void engine_mesh_frame_head(unsigned char head_p[ENGINE_MESH_HEAD_BYTES],
                            enum engine_mesh_kind kind, uint32_t length)
{
    memset(head_p, 0, ENGINE_MESH_HEAD_BYTES);
    engine_mesh_put_u32(head_p, length);
    head_p[4] = (unsigned char)kind;
}

static int check_head(const unsigned char *head)
{
    const uint32_t length = engine_mesh_get_u32(head);

    if (head[5] != 0 || head[6] != 0 || head[7] != 0)
        return HVI_ERR_PROTOCOL;
    switch (head[4]) {
    case ENGINE_MESH_MESSAGE:
        return length <= ENGINE_MESH_BODY_MAX ? HVI_OK : HVI_ERR_PROTOCOL;
    case ENGINE_MESH_BEAT:
    case ENGINE_MESH_ECHO:
    case ENGINE_MESH_CALL:
        return length == 8 ? HVI_OK : HVI_ERR_PROTOCOL;
    case ENGINE_MESH_BYE:
        return length == 0 ? HVI_OK : HVI_ERR_PROTOCOL;
    default:
        return HVI_ERR_PROTOCOL;
    }
}

int engine_mesh_frames_next(struct engine_mesh_frames *frames, struct engine_mesh_frame *frame_p)
{
    const unsigned char *at = frames->bytes + frames->taken;
    const size_t left = frames->have - frames->taken;

    if (left < ENGINE_MESH_HEAD_BYTES)
        return HVI_INPROGRESS;
    if (check_head(at) != HVI_OK)
        return HVI_ERR_PROTOCOL;
    const uint32_t length = engine_mesh_get_u32(at);
    if (left - ENGINE_MESH_HEAD_BYTES < length)
        return HVI_INPROGRESS;
    frames->taken += ENGINE_MESH_HEAD_BYTES + length;
    *frame_p = (struct engine_mesh_frame){.kind = (enum engine_mesh_kind)at[4],
                                          .body = at + ENGINE_MESH_HEAD_BYTES,
                                          .length = length};
    return HVI_OK;
}

/* Room that the frame of which a part is there needs. */
static size_t room_needed(const struct engine_mesh_frames *frames)
{
    if (frames->have < ENGINE_MESH_HEAD_BYTES)
        return ROOM_USUAL;
    const size_t whole = ENGINE_MESH_HEAD_BYTES + engine_mesh_get_u32(frames->bytes);
    return whole > ROOM_USUAL ? whole : ROOM_USUAL;
}

unsigned char *engine_mesh_frames_room(struct engine_mesh_frames *frames, size_t *room_p)
{
    if (frames->taken > 0) {
        frames->have -= frames->taken;
        memmove(frames->bytes, frames->bytes + frames->taken, frames->have);
        frames->taken = 0;
    }
    const size_t needed = room_needed(frames);
    if (needed != frames->room) {
        HVI_ASSERT(needed >= frames->have);
        unsigned char *bytes = realloc(frames->bytes, needed);
        if (!bytes)
            return NULL;
        frames->bytes = bytes;
        frames->room = needed;
    }
    HVI_ASSERT(frames->room > frames->have);
    *room_p = frames->room - frames->have;
    return frames->bytes + frames->have;
}

void engine_mesh_frames_filled(struct engine_mesh_frames *frames, size_t bytes)
{
    HVI_ASSERT(bytes <= frames->room - frames->have);
    frames->have += bytes;
}

void engine_mesh_frames_borrow(struct engine_mesh_frames *frames, unsigned char **spare_p)
{
    if (frames->bytes || !*spare_p)
        return;
    *frames = (struct engine_mesh_frames){.bytes = *spare_p, .room = ROOM_USUAL};
    *spare_p = NULL;
}

void engine_mesh_frames_lend(struct engine_mesh_frames *frames, unsigned char **spare_p)
{
    if (frames->taken < frames->have)
        return;
    if (!*spare_p && frames->room == ROOM_USUAL) {
        *spare_p = frames->bytes;
        frames->bytes = NULL;
    }
    engine_mesh_frames_fini(frames);
}

void engine_mesh_frames_fini(struct engine_mesh_frames *frames)
{
    free(frames->bytes);
    *frames = (struct engine_mesh_frames){.bytes = NULL};
}
