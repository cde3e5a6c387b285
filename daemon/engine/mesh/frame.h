/* SPDX-License-Identifier: Apache-2.0
 * Frames on a control connection: 4 bytes length, 1 byte kind, 3 zeros, then the body; integers
 * little-endian. Bytes in, frames out, in whatever pieces they come. Main thread. */
#ifndef ENGINE_MESH_FRAME_H
#define ENGINE_MESH_FRAME_H

#include <stddef.h>
#include <stdint.h>

#define ENGINE_MESH_BODY_MAX   (UINT32_C(1) << 20)
#define ENGINE_MESH_HEAD_BYTES 8u

/* On the wire. */
enum engine_mesh_kind {
    ENGINE_MESH_MESSAGE = 1,
    ENGINE_MESH_BEAT = 2, /* the sender's time: 8 bytes, opaque */
    ENGINE_MESH_ECHO = 3, /* a beat's body, sent back; not of each beat */
    ENGINE_MESH_CALL =
        4, /* node a asks node b to connect to it: 4 bytes each; goes along the tree */
    ENGINE_MESH_BYE = 5, /* the engine ends in order; nothing follows */
};
#define ENGINE_MESH_KIND_END (ENGINE_MESH_BYE + 1)

struct engine_mesh_frame {
    enum engine_mesh_kind kind;
    const unsigned char *body; /* valid until the next engine_mesh_frames_room */
    uint32_t length;
};

/* All 0 at first. */
struct engine_mesh_frames {
    unsigned char *bytes;
    size_t room, have, taken;
};

void engine_mesh_frame_head(unsigned char head_p[ENGINE_MESH_HEAD_BYTES],
                            enum engine_mesh_kind kind, uint32_t length);
/* Where the next bytes go, *room_p of them; NULL: out of memory. All frames must have been taken. */
unsigned char *engine_mesh_frames_room(struct engine_mesh_frames *frames, size_t *room_p);
void engine_mesh_frames_filled(struct engine_mesh_frames *frames, size_t bytes);
/* HVI_OK; HVI_INPROGRESS: no whole frame is there; HVI_ERR_PROTOCOL: nor will there be one. */
int engine_mesh_frames_next(struct engine_mesh_frames *frames, struct engine_mesh_frame *frame_p);
/* Most connections are between two frames. They have no memory then, and the next one that reads takes the spare.
 * Takes *spare_p, unless there is memory already. */
void engine_mesh_frames_borrow(struct engine_mesh_frames *frames, unsigned char **spare_p);
/* The memory becomes *spare_p, or is freed if that is there; not while a part of a frame is in it. free(3) the spare. */
void engine_mesh_frames_lend(struct engine_mesh_frames *frames, unsigned char **spare_p);
void engine_mesh_frames_fini(struct engine_mesh_frames *frames);

uint32_t engine_mesh_get_u32(const unsigned char *at);
uint64_t engine_mesh_get_u64(const unsigned char *at);
void engine_mesh_put_u32(unsigned char *at, uint32_t value);
void engine_mesh_put_u64(unsigned char *at, uint64_t value);

#endif
