/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/engine/device/hvt_room.h"

#include "base/status.h"
#include "shm/abi.h"

#include <check.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

struct hvt_room hvt_room;

/* ---- the room above ---- */

static int want(void *user, uint64_t request, const unsigned char uuid[HVI_UUID_BYTES])
{
    (void)user, (void)uuid;
    hvt_room.wanted = request;
    return HVI_OK;
}

static void end(void *user, uint64_t instance, const char *reason)
{
    (void)user;
    ck_assert_msg(hvt_room.may_end, "worker %llu is to be ended: %s", (unsigned long long)instance,
                  reason);
    snprintf(hvt_room.ended, sizeof hvt_room.ended, "%s", reason);
}

static void linked(void *user, uint32_t worker)
{
    (void)user, (void)worker;
}

static void lost(void *user, uint32_t worker, const char *text)
{
    (void)user, (void)worker, (void)text;
    hvt_room.lost++;
}

static void joined(void *user, uint32_t comm, int status, const char *text)
{
    struct hvt_room_joined *told = &hvt_room.joined[hvt_room.joined_count++];
    void (*at_joined)(void) = hvt_room.at_joined;

    (void)user;
    ck_assert_uint_le(hvt_room.joined_count, HVT_ROOM_SAID);
    *told = (struct hvt_room_joined){.comm = comm, .status = status};
    snprintf(told->text, sizeof told->text, "%s", text);
    hvt_room.at_joined = NULL;
    if (at_joined)
        at_joined();
}

static void tell(void *user, uint32_t node, const struct hvi_mesh_gpu *gpu)
{
    struct hvt_room_letter *letter = &hvt_room.letters[hvt_room.letter_count++];

    (void)user;
    ck_assert_uint_le(hvt_room.letter_count, HVT_ROOM_SAID);
    ck_assert_uint_le(gpu->instance_count, HVT_ROOM_RANKS);
    *letter = (struct hvt_room_letter){.node = node, .gpu = *gpu};
    memcpy(letter->instances, gpu->instances, gpu->instance_count * sizeof letter->instances[0]);
    letter->gpu.instances = letter->instances;
}

static void name(void *user, uint32_t node, char text_p[ENGINE_DEVICE_NODE])
{
    (void)user;
    snprintf(text_p, ENGINE_DEVICE_NODE, "node %u", node);
}

static const struct engine_device_calls calls = {.want = want,
                                                 .end = end,
                                                 .linked = linked,
                                                 .lost = lost,
                                                 .joined = joined,
                                                 .tell = tell,
                                                 .name = name};

/* ---- the loop ---- */

void hvt_room_open(void)
{
    memset(&hvt_room, 0, sizeof hvt_room);
    for (uint32_t i = 0; i < HVT_ROOM_WORKERS; i++)
        hvt_room.workers[i].fd = -1;
    ck_assert_int_ge(sd_event_new(&hvt_room.event), 0);
    hvt_room.device.event = hvt_room.event;
    hvt_room.device.calls = &calls;
    hvt_room.device.generation = 1;
    hvt_room.device.enabled = true;
    ck_assert_int_eq(engine_device_open(&hvt_room.device), HVI_OK);
}

void hvt_room_close(void)
{
    hvt_room_expect_nothing();
    engine_device_close(&hvt_room.device);
    hvt_room_expect_nothing();
    for (uint32_t i = 0; i < HVT_ROOM_WORKERS; i++) {
        if (hvt_room.workers[i].fd >= 0)
            close(hvt_room.workers[i].fd);
        if (hvt_room.workers[i].channel.header)
            hvi_device_fini(&hvt_room.workers[i].channel);
    }
    sd_event_unref(hvt_room.event);
}

void hvt_room_turn(void)
{
    int more;

    while ((more = sd_event_run(hvt_room.event, 0)) > 0) {
    }
    ck_assert_int_eq(more, 0);
}

/* ---- workers, and hvdd ---- */

static void connect_worker(uint32_t worker, uint64_t instance)
{
    struct hvi_gpu_worker told = {.status = HVI_OK, .instance = instance, .pid = 4711};
    struct engine_device_worker *found = NULL;
    unsigned char uuid[HVI_UUID_BYTES];
    char text[256];
    int pair[2];

    memset(uuid, (int)worker, sizeof uuid);
    ck_assert_int_eq(engine_device_worker_for(&hvt_room.device, uuid, &found, text, sizeof text),
                     HVI_OK);
    ck_assert_uint_eq(found->number, worker);
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    hvt_room.workers[worker].fd = pair[0];
    told.request = hvt_room.wanted;
    engine_device_told(&hvt_room.device, &told, pair[1]);
}

void hvt_room_start(uint32_t worker, uint64_t instance, uint32_t version, uint64_t comm_ns)
{
    struct hvi_gpu_msg msg = {.kind = HVI_GPU_HELLO};
    int event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);

    connect_worker(worker, instance);
    ck_assert_int_eq(hvi_device_create(instance, 1, &hvt_room.workers[worker].channel), HVI_OK);
    const int fds[2] = {hvt_room.workers[worker].channel.map.fd, event_fd};
    msg.hello.abi_version = HVI_ABI_VERSION;
    msg.hello.instance = instance;
    snprintf(msg.hello.name, sizeof msg.hello.name, "Test GPU");
    snprintf(msg.hello.uuid, sizeof msg.hello.uuid, "%s",
             worker == 0 ? HVT_ROOM_UUID0 : HVT_ROOM_UUID1);
    msg.hello.nccl_version = version;
    msg.hello.comm_ns = comm_ns;
    hvt_room_say(worker, &msg, fds, 2);
    close(event_fd);
    hvt_room_hear(worker, HVI_GPU_WELCOME);
    hvi_packet_close_fds(&hvt_room.workers[worker].packet);
}

void hvt_room_say(uint32_t worker, const struct hvi_gpu_msg *msg, const int *fds, uint32_t fd_count)
{
    static unsigned char bytes[HVI_PACKET_BYTES_MAX];
    size_t length = 0;

    ck_assert_int_eq(hvi_gpu_msg_encode(msg, bytes, sizeof bytes, &length), HVI_OK);
    ck_assert_int_eq(hvi_packet_send(hvt_room.workers[worker].fd, bytes, length, fds, fd_count, 0),
                     HVI_OK);
    hvt_room_turn();
}

struct hvi_gpu_msg hvt_room_hear(uint32_t worker, enum hvi_gpu_kind kind)
{
    struct hvi_packet *packet = &hvt_room.workers[worker].packet;
    struct hvi_gpu_msg msg;
    char why[256];

    ck_assert_int_eq(hvi_packet_receive(hvt_room.workers[worker].fd, packet,
                                        hvi_deadline_after(HVT_ROOM_WAIT_NS)),
                     HVI_OK);
    ck_assert_int_eq(hvi_gpu_msg_decode(packet->bytes, packet->length, &msg, why, sizeof why),
                     HVI_OK);
    ck_assert_int_eq(msg.kind, kind);
    return msg;
}

void hvt_room_hang_up(uint32_t worker)
{
    close(hvt_room.workers[worker].fd);
    hvt_room.workers[worker].fd = -1;
    hvt_room_turn();
}

void hvt_room_lose(uint32_t worker, const char *text)
{
    struct hvi_gpu_worker told = {.status = HVI_ERR_WORKER_LOST};
    const uint32_t before = hvt_room.lost;

    told.instance = hvt_room.device.workers[worker].instance;
    snprintf(told.text, sizeof told.text, "%s", text);
    engine_device_told(&hvt_room.device, &told, -1);
    ck_assert_uint_eq(hvt_room.lost, before + 1);
    hvt_room_hang_up(worker);
}

/* ---- what the room has said ---- */

const struct hvt_room_letter *hvt_room_letter(uint32_t node, enum hvi_mesh_gpu_what what)
{
    const struct hvt_room_letter *letter = &hvt_room.letters[hvt_room.heard++];

    ck_assert_uint_le(hvt_room.heard, hvt_room.letter_count);
    ck_assert_uint_eq(letter->node, node);
    ck_assert_uint_eq(letter->gpu.what, what);
    return letter;
}

const char *hvt_room_joined(uint32_t comm, int status)
{
    const struct hvt_room_joined *told = &hvt_room.joined[hvt_room.known++];

    ck_assert_uint_le(hvt_room.known, hvt_room.joined_count);
    ck_assert_uint_eq(told->comm, comm);
    ck_assert_msg(told->status == status, "%d: %s", told->status, told->text);
    return told->text;
}

void hvt_room_expect_nothing(void)
{
    ck_assert_uint_eq(hvt_room.letter_count, hvt_room.heard);
    ck_assert_uint_eq(hvt_room.joined_count, hvt_room.known);
    for (uint32_t i = 0; i < HVT_ROOM_WORKERS; i++) {
        struct pollfd entry = {.fd = hvt_room.workers[i].fd, .events = POLLIN};
        ck_assert_msg(poll(&entry, 1, 0) == 0 || !(entry.revents & POLLIN) ||
                          recv(entry.fd, &(char){0}, 1, MSG_PEEK) == 0,
                      "worker %u is told something", i);
    }
}
