/* SPDX-License-Identifier: Apache-2.0
 * What another engine sends over a control connection, arbitrary bytes in pieces: the frames that come of it
 * do not depend on where the pieces are cut, each is of a size that its kind has, and what is held stays
 * within one frame. */
#include "fuzz.h"

#include "base/status.h"
#include "daemon/engine/mesh/frame.h"

#include <stdlib.h>
#include <string.h>

struct outcome {
    unsigned frames;
    uint64_t digest;
    int status;
};

static void note(struct outcome *outcome, const struct engine_mesh_frame *frame)
{
    HVT_FUZZ_REQUIRE(frame->kind >= ENGINE_MESH_MESSAGE && frame->kind < ENGINE_MESH_KIND_END);
    HVT_FUZZ_REQUIRE(frame->length <= ENGINE_MESH_BODY_MAX);
    HVT_FUZZ_REQUIRE(frame->kind == ENGINE_MESH_MESSAGE ||
                     frame->length == (frame->kind == ENGINE_MESH_BYE ? 0 : 8));
    outcome->frames++;
    outcome->digest = outcome->digest * 31 + frame->kind;
    for (uint32_t i = 0; i < frame->length; i++)
        outcome->digest = outcome->digest * 31 + frame->body[i];
}

static struct outcome talk(const uint8_t *data, size_t size, size_t piece)
{
    struct engine_mesh_frames frames = {0};
    struct engine_mesh_frame frame;
    unsigned char *spare = NULL;
    struct outcome outcome = {.status = HVI_INPROGRESS};

    while (size > 0 && outcome.status == HVI_INPROGRESS) {
        size_t room, now = size < piece ? size : piece;
        engine_mesh_frames_borrow(&frames, &spare);
        unsigned char *into = engine_mesh_frames_room(&frames, &room);
        HVT_FUZZ_REQUIRE(into != NULL && room > 0 &&
                         frames.room <= ENGINE_MESH_HEAD_BYTES + ENGINE_MESH_BODY_MAX);
        if (now > room)
            now = room;
        memcpy(into, data, now);
        engine_mesh_frames_filled(&frames, now);
        data += now;
        size -= now;
        while ((outcome.status = engine_mesh_frames_next(&frames, &frame)) == HVI_OK)
            note(&outcome, &frame);
        engine_mesh_frames_lend(&frames, &spare);
    }
    HVT_FUZZ_REQUIRE(outcome.status == HVI_INPROGRESS || outcome.status == HVI_ERR_PROTOCOL);
    engine_mesh_frames_fini(&frames);
    free(spare);
    return outcome;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct outcome whole = talk(data, size, size);
    struct outcome pieces = talk(data, size, size % 97 + 1);

    HVT_FUZZ_REQUIRE(whole.frames == pieces.frames && whole.digest == pieces.digest &&
                     whole.status == pieces.status);
    return 0;
}

static size_t put(uint8_t *at, enum engine_mesh_kind kind, uint32_t length)
{
    engine_mesh_frame_head(at, kind, length);
    memset(at + ENGINE_MESH_HEAD_BYTES, (int)length, length);
    return ENGINE_MESH_HEAD_BYTES + length;
}

size_t hvt_fuzz_seed(unsigned index, uint8_t *bytes_p, size_t room)
{
    size_t used = 0;

    HVT_FUZZ_REQUIRE(room > 60000);
    if (index == 0) {
        used += put(bytes_p + used, ENGINE_MESH_BEAT, 8);
        used += put(bytes_p + used, ENGINE_MESH_ECHO, 8);
        used += put(bytes_p + used, ENGINE_MESH_CALL, 8);
        used += put(bytes_p + used, ENGINE_MESH_MESSAGE, 0);
        used += put(bytes_p + used, ENGINE_MESH_MESSAGE, 5);
        used += put(bytes_p + used, ENGINE_MESH_BYE, 0);
    } else if (index == 1) {
        used += put(bytes_p + used, ENGINE_MESH_MESSAGE, 300);
        used += put(bytes_p + used, ENGINE_MESH_MESSAGE, 40000);
        used += put(bytes_p + used, ENGINE_MESH_BEAT, 8);
    } else if (index == 2) {
        engine_mesh_frame_head(bytes_p, ENGINE_MESH_MESSAGE, ENGINE_MESH_BODY_MAX);
        used = ENGINE_MESH_HEAD_BYTES;
    }
    return used;
}
