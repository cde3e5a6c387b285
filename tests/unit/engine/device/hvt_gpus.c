/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/engine/device/hvt_gpus.h"

#include "base/status.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

void hvt_gpus_init_start(struct hvt_gpus *gpus, const struct hvi_engine_start *start)
{
    struct hvi_engine_start with_gpus = *start;

    memset(gpus, 0, sizeof *gpus);
    for (uint32_t i = 0; i < HVT_GPUS; i++)
        gpus->workers[i] = (struct hvt_worker){.socket = -1, .event_fd = -1, .engine_fd = -1};
    with_gpus.gpu = true;
    hvt_bench_init_start(&gpus->bench, &with_gpus);
    gpus->node.link = gpus->bench.link;
}

void hvt_gpus_init(struct hvt_gpus *gpus, int32_t size)
{
    const struct hvi_engine_start start = hvt_node_defaults(size);

    hvt_gpus_init_start(gpus, &start);
    for (int32_t rank = 0; rank < size; rank++)
        ck_assert_int_eq(hvt_bench_attach(&gpus->bench, rank), HVI_OK);
}

void hvt_gpus_fini(struct hvt_gpus *gpus)
{
    hvt_bench_fini(&gpus->bench);
    for (uint32_t i = 0; i < HVT_GPUS; i++) {
        struct hvt_worker *worker = &gpus->workers[i];
        if (worker->socket >= 0)
            close(worker->socket);
        if (worker->event_fd >= 0)
            close(worker->event_fd);
        if (worker->engine_fd >= 0)
            close(worker->engine_fd);
        if (worker->channel.header)
            hvi_device_fini(&worker->channel);
    }
    for (int32_t rank = 0; rank < gpus->bench.size; rank++) {
        if (gpus->pages[rank].cells)
            hvi_fence_fini(&gpus->pages[rank]);
    }
}

void hvt_gpus_turn(struct hvt_gpus *gpus)
{
    hvt_bench_turn(&gpus->bench);
}

/* ---- workers ---- */

void hvt_gpu_uuid(uint32_t gpu, unsigned char uuid_p[HVI_UUID_BYTES],
                  char text_p[HVI_WIRE_GPU_UUID])
{
    const unsigned char n = (unsigned char)gpu;

    memset(uuid_p, n, HVI_UUID_BYTES);
    snprintf(text_p, HVI_WIRE_GPU_UUID, HVT_GPU_TEXT, n, n, n, n, n, n, n, n, n, n, n, n, n, n, n,
             n);
}

void hvt_gpu_answer(struct hvt_gpus *gpus, uint32_t gpu, int status, const char *text)
{
    struct hvt_worker *worker = &gpus->workers[gpu];
    struct hvi_packet_msg msg;
    char uuid[HVI_WIRE_GPU_UUID];
    unsigned char bytes[HVI_UUID_BYTES];
    int pair[2] = {-1, -1};

    hvt_gpu_uuid(gpu, bytes, uuid);
    ck_assert(hvt_node_expect(&gpus->node, HVI_PACKET_GPU_WANTED, &msg));
    ck_assert_mem_eq(msg.gpu_wanted.uuid, bytes, sizeof bytes);
    uint64_t request = msg.gpu_wanted.request;
    hvi_packet_msg_free(&msg);
    if (status == HVI_OK)
        ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    msg = (struct hvi_packet_msg){.kind = HVI_PACKET_GPU_WORKER};
    msg.gpu_worker.request = request;
    msg.gpu_worker.status = status;
    snprintf(msg.gpu_worker.text, sizeof msg.gpu_worker.text, "%s", text);
    memcpy(msg.gpu_worker.uuid, bytes, sizeof bytes);
    worker->instance = msg.gpu_worker.instance = 100 + gpu;
    msg.gpu_worker.pid = 4711;
    hvt_node_send(&gpus->node, &msg, &pair[1], status == HVI_OK ? 1 : 0);
    if (pair[1] >= 0)
        close(pair[1]);
    worker->socket = pair[0];
    hvt_gpus_turn(gpus);
}

void hvt_gpu_say(struct hvt_gpus *gpus, uint32_t gpu, const struct hvi_gpu_msg *msg, const int *fds,
                 uint32_t fd_count)
{
    static unsigned char bytes[HVI_PACKET_BYTES_MAX];
    size_t length = 0;

    ck_assert_int_eq(hvi_gpu_msg_encode(msg, bytes, sizeof bytes, &length), HVI_OK);
    ck_assert_int_eq(hvi_packet_send(gpus->workers[gpu].socket, bytes, length, fds, fd_count, 0),
                     HVI_OK);
    hvt_gpus_turn(gpus);
}

bool hvt_gpu_hear(struct hvt_gpus *gpus, uint32_t gpu, enum hvi_gpu_kind kind,
                  struct hvi_gpu_msg *msg_p)
{
    uint64_t deadline_ns = hvi_deadline_after(HVT_DEADLINE_NS);
    char why[256];

    hvi_packet_close_fds(&gpus->packet);
    int status = hvi_packet_receive(gpus->workers[gpu].socket, &gpus->packet, deadline_ns);
    if (status == HVI_ERR_CLOSED)
        return false;
    ck_assert_int_eq(status, HVI_OK);
    ck_assert_int_eq(
        hvi_gpu_msg_decode(gpus->packet.bytes, gpus->packet.length, msg_p, why, sizeof why),
        HVI_OK);
    ck_assert_int_eq(msg_p->kind, kind);
    return true;
}

void hvt_gpu_expect_nothing(struct hvt_gpus *gpus, uint32_t gpu)
{
    struct pollfd entry = {.fd = gpus->workers[gpu].socket, .events = POLLIN};

    ck_assert_int_eq(poll(&entry, 1, 0), 0);
}

void hvt_gpu_greet(struct hvt_gpus *gpus, uint32_t gpu)
{
    struct hvt_worker *worker = &gpus->workers[gpu];
    struct hvi_gpu_msg msg = {.kind = HVI_GPU_HELLO};
    unsigned char bytes[HVI_UUID_BYTES];

    ck_assert_int_eq(hvi_device_create(worker->instance, 1, &worker->channel), HVI_OK);
    worker->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    const int fds[2] = {worker->channel.map.fd, worker->event_fd};
    msg.hello.abi_version = HVI_ABI_VERSION;
    msg.hello.instance = worker->instance;
    snprintf(msg.hello.name, sizeof msg.hello.name, "Test GPU");
    hvt_gpu_uuid(gpu, bytes, msg.hello.uuid);
    msg.hello.comm_ns = gpus->comm_ns;
    msg.hello.registers = gpus->registers;
    msg.hello.fabric = !gpus->is_old;
    hvt_gpu_say(gpus, gpu, &msg, fds, 2);
    ck_assert(hvt_gpu_hear(gpus, gpu, HVI_GPU_WELCOME, &msg));
    ck_assert_uint_eq(msg.welcome.generation, 1);
    worker->engine_fd = hvi_packet_take_fd(&gpus->packet, 0);
    ck_assert_int_ge(worker->engine_fd, 0);
}

void hvt_gpu_ack(struct hvt_gpus *gpus, uint32_t gpu, uint64_t request, int status,
                 const char *text)
{
    struct hvi_gpu_msg msg = {.kind = HVI_GPU_ACK};

    msg.ack.request = request;
    msg.ack.status = status;
    snprintf(msg.ack.text, sizeof msg.ack.text, "%s", text);
    hvt_gpu_say(gpus, gpu, &msg, NULL, 0);
}

bool hvt_gpu_has_batch(struct hvt_gpus *gpus, uint32_t gpu)
{
    uint32_t slots = 0;

    ck_assert_int_eq(hvi_ring_available(&gpus->workers[gpu].channel.commands, &slots), HVI_OK);
    return slots > 0;
}

struct hvt_batch hvt_gpu_take(struct hvt_gpus *gpus, uint32_t gpu)
{
    struct hvi_ring *ring = &gpus->workers[gpu].channel.commands;
    struct hvt_batch batch;
    uint32_t at = 1;

    memset(&batch, 0, sizeof batch);
    ck_assert(hvt_gpu_has_batch(gpus, gpu));
    hvi_ring_copy(ring, 0, &batch.head);
    ck_assert_uint_eq(batch.head.command, HVI_DEVICE_BATCH);
    ck_assert_uint_le(batch.head.works, 8);
    for (uint32_t w = 0; w < batch.head.works; w++) {
        hvi_ring_copy(ring, at++, &batch.works[w]);
        ck_assert_uint_eq(batch.works[w].command, HVI_DEVICE_WORK);
        ck_assert_uint_le(batch.works[w].members, 8);
        for (uint32_t m = 0; m < batch.works[w].members; m++) {
            hvi_ring_copy(ring, at++, &batch.members[w][m]);
            ck_assert_uint_eq(batch.members[w][m].command, HVI_DEVICE_MEMBER);
        }
        for (uint32_t s = 0; s < batch.works[w].sizes; s++)
            hvi_ring_copy(ring, at++, &batch.sizes[w][s % 2]);
    }
    ck_assert_uint_eq(at, batch.head.slots);
    hvi_ring_release(ring, at);
    return batch;
}

void hvt_gpu_done(struct hvt_gpus *gpus, uint32_t gpu, uint64_t number, int status,
                  const char *text)
{
    struct hvt_worker *worker = &gpus->workers[gpu];
    struct hvi_device_done done = {.number = number, .status = status, .member = -1};
    uint32_t space = 0;

    ck_assert_int_eq(hvi_ring_space(&worker->channel.dones, &space), HVI_OK);
    ck_assert_uint_gt(space, 0);
    done.seq = ++worker->answers;
    done.device_ns = worker->device_ns;
    snprintf(done.text, sizeof done.text, "%s", text);
    memcpy(hvi_ring_slot(&worker->channel.dones, 0), &done, sizeof done);
    hvi_device_answer(&worker->channel, 1, worker->engine_fd);
    hvt_gpus_turn(gpus);
}

void hvt_gpu_finish(struct hvt_gpus *gpus, uint32_t gpu, const struct hvt_batch *batch)
{
    for (uint32_t w = 0; w < batch->head.works; w++) {
        for (uint32_t m = 0; m < batch->works[w].members; m++) {
            const struct hvi_device_member *member = &batch->members[w][m];
            for (int32_t rank = 0; rank < gpus->bench.size; rank++) {
                if (gpus->page_numbers[rank] == member->page && member->cell != 0)
                    hvi_fence_store_done(&gpus->pages[rank], member->cell, member->turn);
            }
        }
    }
    hvt_gpu_done(gpus, gpu, batch->head.number, HVI_OK, "");
}

void hvt_gpu_die(struct hvt_gpus *gpus, uint32_t gpu)
{
    close(gpus->workers[gpu].socket);
    gpus->workers[gpu].socket = -1;
    hvt_gpus_turn(gpus);
}

void hvt_gpu_is_gone(struct hvt_gpus *gpus, uint32_t gpu, const char *text)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_GPU_WORKER};
    char uuid[HVI_WIRE_GPU_UUID];

    msg.gpu_worker.status = HVI_ERR_WORKER_LOST;
    snprintf(msg.gpu_worker.text, sizeof msg.gpu_worker.text, "%s", text);
    hvt_gpu_uuid(gpu, msg.gpu_worker.uuid, uuid);
    msg.gpu_worker.instance = gpus->workers[gpu].instance;
    hvt_node_send(&gpus->node, &msg, NULL, 0);
    hvt_gpus_turn(gpus);
}

/* ---- ranks ---- */

struct hvi_ack hvt_rank_ack(struct hvt_gpus *gpus, int32_t rank)
{
    struct hvi_packet_msg msg;

    ck_assert(hvt_peer_expect(&gpus->bench.peers[rank], HVI_PACKET_ACK, &msg));
    ck_assert_uint_eq(msg.ack.request, gpus->bench.peers[rank].request);
    return msg.ack;
}

void hvt_rank_send_fences(struct hvt_gpus *gpus, int32_t rank)
{
    struct hvt_peer *peer = &gpus->bench.peers[rank];
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_FENCE_ADD};

    if (!gpus->pages[rank].cells)
        ck_assert_int_eq(hvi_fence_create(&gpus->pages[rank]), HVI_OK);
    msg.fence_add.request = ++peer->request;
    hvt_peer_send(peer, &msg, gpus->pages[rank].map.fd);
    hvt_gpus_turn(gpus);
}

void hvt_rank_send_memory(struct hvt_gpus *gpus, int32_t rank, uint32_t gpu, uint32_t region)
{
    struct hvt_peer *peer = &gpus->bench.peers[rank];
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_DEVICE_ADD};
    char uuid[HVI_WIRE_GPU_UUID];
    uint64_t chunk = HVT_GPU_BYTES;

    msg.device_add.request = ++peer->request;
    msg.device_add.region = region;
    hvt_gpu_uuid(gpu, msg.device_add.memory.uuid, uuid);
    msg.device_add.memory.address = 0x7f0000000000;
    msg.device_add.memory.bytes = HVT_GPU_BYTES;
    msg.device_add.memory.buffer_id = 1;
    msg.device_add.memory.kind = gpus->registers ? HVI_DEVICE_VMM : HVI_DEVICE_LEGACY;
    msg.device_add.memory.registers = gpus->registers;
    msg.device_add.memory.chunks = &chunk;
    msg.device_add.memory.chunk_count = gpus->registers;
    const int fd = gpus->registers ? eventfd(0, EFD_CLOEXEC) : -1;
    hvt_peer_send(peer, &msg, fd);
    if (fd >= 0)
        close(fd);
    hvt_gpus_turn(gpus);
}

static void take_pages(struct hvt_gpus *gpus, uint32_t gpu, int32_t rank)
{
    struct hvi_gpu_msg msg;

    ck_assert(hvt_gpu_hear(gpus, gpu, HVI_GPU_PAGE, &msg));
    ck_assert_uint_eq(gpus->packet.fd_count, 1);
    gpus->page_numbers[rank] = msg.page.page;
    hvt_gpu_ack(gpus, gpu, msg.page.request, HVI_OK, "");
}

uint32_t hvt_rank_use(struct hvt_gpus *gpus, int32_t rank, uint32_t gpu)
{
    struct hvi_gpu_msg msg;
    struct hvi_packet_msg fences;

    hvt_rank_send_fences(gpus, rank);
    ck_assert(hvt_node_expect(&gpus->node, HVI_PACKET_ENGINE_FENCES, &fences));
    ck_assert_int_eq(fences.engine_fences.rank, gpus->bench.peers[rank].rank);
    for (uint32_t i = 0; i < HVT_GPUS; i++) {
        if (gpus->workers[i].socket >= 0)
            take_pages(gpus, i, rank);
    }
    ck_assert_int_eq(hvt_rank_ack(gpus, rank).status, HVI_OK);
    hvt_rank_send_memory(gpus, rank, gpu, HVT_GPU_REGION);
    if (gpus->workers[gpu].socket < 0) {
        hvt_gpu_answer(gpus, gpu, HVI_OK, "");
        hvt_gpu_greet(gpus, gpu);
        for (int32_t each = rank; each >= 0; each--) { /* the newest first */
            if (gpus->pages[each].cells)
                take_pages(gpus, gpu, each);
        }
    }
    ck_assert(hvt_gpu_hear(gpus, gpu, HVI_GPU_IMPORT, &msg));
    ck_assert_uint_eq(msg.import.memory.bytes, HVT_GPU_BYTES);
    ck_assert_int_eq(msg.import.pid, getpid());
    ck_assert_uint_gt(msg.import.process_start, 0);
    hvt_gpu_ack(gpus, gpu, msg.import.request, HVI_OK, "");
    ck_assert_int_eq(hvt_rank_ack(gpus, rank).status, HVI_OK);
    uint32_t import = msg.import.import;
    hvi_gpu_msg_free(&msg);
    return import;
}

struct hvi_submission hvt_gpu_op(struct hvt_gpus *gpus, int32_t rank, uint16_t kind, uint64_t count,
                                 const char *name, uint32_t cell, uint64_t turn)
{
    struct hvi_submission op = hvt_op(&gpus->bench, rank, kind, count, name, 0);

    op.in_region = op.out_region = HVT_GPU_REGION;
    op.fence_cell = cell;
    op.fence_turn = turn;
    return op;
}

uint64_t hvt_gpu_run(struct hvt_gpus *gpus, int32_t rank, uint16_t kind, uint64_t count,
                     const char *name, uint32_t cell, uint64_t turn)
{
    hvi_fence_store_ready(&gpus->pages[rank], cell, turn);
    return hvt_op_submit(&gpus->bench, rank, hvt_gpu_op(gpus, rank, kind, count, name, cell, turn));
}

uint64_t hvt_gpu_word(const struct hvt_gpus *gpus, int32_t rank, uint32_t cell, bool ready)
{
    const struct hvi_fence *fence = &gpus->pages[rank].cells[cell];

    return atomic_load(ready ? &fence->ready : &fence->done);
}
