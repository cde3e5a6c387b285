/* SPDX-License-Identifier: Apache-2.0
 * The room device/ alone, in an event loop of the test. The test plays hvdd, the workers, the room above and the engines of other
 * nodes. Worker N has the UUID 0N0N.... Every wait ends after HVT_ROOM_WAIT_NS. */
#ifndef HVT_ROOM_H
#define HVT_ROOM_H

#include "daemon/engine/device/room.h"

#define HVT_ROOM_WORKERS 2u
#define HVT_ROOM_RANKS   8u
#define HVT_ROOM_SAID    64u
#define HVT_ROOM_WAIT_NS (20 * HVI_NS_SEC)
#define HVT_ROOM_UUID0   "GPU-00000000-0000-0000-0000-000000000000"
#define HVT_ROOM_UUID1   "GPU-01010101-0101-0101-0101-010101010101"

/* What the room has told another node. */
struct hvt_room_letter {
    uint32_t node;
    struct hvi_mesh_gpu gpu; /* .instances: the next field */
    uint64_t instances[HVT_ROOM_RANKS];
};
struct hvt_room_joined {
    uint32_t comm;
    int status;
    char text[HVI_TEXT_MAX + 1];
};

struct hvt_room {
    sd_event *event;
    struct engine_device device;
    struct {
        int fd; /* -1: closed */
        struct hvi_device_channel channel;
        struct hvi_packet packet;
    } workers[HVT_ROOM_WORKERS];
    uint64_t wanted;
    bool may_end;                 /* a worker may be ended: else that fails the test */
    char ended[HVI_TEXT_MAX + 1]; /* why it is to be */
    uint32_t lost;                /* times */
    void (*at_joined)(void);      /* NULL, or called once by the next `joined` */
    uint32_t letter_count, heard; /* letters; those that the test has taken */
    struct hvt_room_letter letters[HVT_ROOM_SAID];
    uint32_t joined_count, known; /* likewise */
    struct hvt_room_joined joined[HVT_ROOM_SAID];
};
extern struct hvt_room hvt_room;

void hvt_room_open(void);
/* Fails if the room has said anything that the test has not taken. */
void hvt_room_close(void);
/* Until the event loop has nothing more to do. */
void hvt_room_turn(void);

/* Linked, with `version` of NCCL (0: not opened) and `comm_ns` for the longest join. */
void hvt_room_start(uint32_t worker, uint64_t instance, uint32_t version, uint64_t comm_ns);
void hvt_room_say(uint32_t worker, const struct hvi_gpu_msg *msg, const int *fds,
                  uint32_t fd_count);
/* The next message to the worker, which is of this kind. */
struct hvi_gpu_msg hvt_room_hear(uint32_t worker, enum hvi_gpu_kind kind);
/* The end of its socket. hvdd has not said yet that the worker is gone. */
void hvt_room_hang_up(uint32_t worker);
/* hvdd says that it is gone. */
void hvt_room_lose(uint32_t worker, const char *text);

/* The next letter, which is for this node. */
const struct hvt_room_letter *hvt_room_letter(uint32_t node, enum hvi_mesh_gpu_what what);
/* The next `joined`. Returns the sentence. */
const char *hvt_room_joined(uint32_t comm, int status);
/* Nothing is said to a worker, to another node and of a communicator that the test has not taken. */
void hvt_room_expect_nothing(void);

#endif
