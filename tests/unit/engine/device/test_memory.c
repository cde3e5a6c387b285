/* SPDX-License-Identifier: Apache-2.0
 * Workers, fence pages and memory of GPUs: how they come, are refused and go. */
#include "base/status.h"
#include "daemon/engine/device/room.h"
#include "tests/unit/engine/device/hvt_gpus.h"
#include "tests/unit/hvt_main.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

static struct hvt_gpus gpus;

#define GPU0 "GPU-00000000-0000-0000-0000-000000000000"

static struct engine_device_worker *worker_at(uint32_t number)
{
    return &gpus.bench.engine->device.workers[number];
}

START_TEST(where_hvdd_starts_no_worker_memory_is_refused_with_its_sentence)
{
    const char *sentence = "this node has no libcuda.so.1: install NVIDIA's driver";

    hvt_gpus_init(&gpus, 2);
    for (int32_t rank = 0; rank < 2; rank++) {
        hvt_rank_send_memory(&gpus, rank, 0, HVT_GPU_REGION);
        if (rank == 0) /* the second is not asked for at once */
            hvt_gpu_answer(&gpus, 0, HVI_ERR_UNSUPPORTED, sentence);
        struct hvi_ack ack = hvt_rank_ack(&gpus, rank);
        ck_assert_int_eq(ack.status, HVI_ERR_UNSUPPORTED);
        ck_assert_str_eq(ack.text, sentence);
    }
    ck_assert(engine_session_is_open(gpus.bench.engine->sessions.ranks[0].session));
    worker_at(0)->deadline_ns = 0; /* a second later it is asked for again */
    hvt_rank_send_memory(&gpus, 0, 0, HVT_GPU_REGION);
    hvt_gpu_answer(&gpus, 0, HVI_ERR_LIMIT, "too many workers (gpu-workers)");
    ck_assert_int_eq(hvt_rank_ack(&gpus, 0).status, HVI_ERR_LIMIT);
    hvt_gpus_fini(&gpus);
}
END_TEST

/* An import that its worker never had goes with it, once. */
START_TEST(a_worker_that_hvdd_has_no_memory_for_is_refused)
{
    const char *sentence = "hvdd is out of memory";

    hvt_gpus_init(&gpus, 2);
    for (int32_t rank = 0; rank < 2; rank++)
        hvt_rank_send_memory(&gpus, rank, 0, HVT_GPU_REGION);
    hvt_gpu_answer(&gpus, 0, HVI_ERR_NO_MEMORY, sentence);
    for (int32_t rank = 0; rank < 2; rank++) {
        struct hvi_ack ack = hvt_rank_ack(&gpus, rank);
        ck_assert_int_eq(ack.status, HVI_ERR_NO_MEMORY);
        ck_assert_str_eq(ack.text, sentence);
    }
    worker_at(0)->deadline_ns = 0; /* a second later it is asked for again */
    ck_assert_uint_gt(hvt_rank_use(&gpus, 0, 0), 2);
    hvt_gpus_fini(&gpus);
}
END_TEST

START_TEST(a_node_without_workers_says_so_and_offers_nothing)
{
    struct hvi_ack ack;

    hvt_gpus_init(&gpus, 1);
    ck_assert_uint_ne(gpus.bench.peers[0].channel.features & HVI_FEATURE_DEVICE, 0);
    ck_assert(gpus.bench.peers[0].reply.fabric);
    gpus.bench.engine->device.enabled = false;
    hvt_rank_send_memory(&gpus, 0, 0, HVT_GPU_REGION);
    ack = hvt_rank_ack(&gpus, 0);
    ck_assert_int_eq(ack.status, HVI_ERR_UNSUPPORTED);
    ck_assert_str_eq(ack.text, "hvdd starts no GPU workers on this node");
    hvt_rank_send_fences(&gpus, 0);
    ck_assert_int_eq(hvt_rank_ack(&gpus, 0).status, HVI_ERR_UNSUPPORTED);
    hvt_gpus_fini(&gpus);
    hvt_bench_init(&gpus.bench, 1);
    ck_assert_uint_eq(gpus.bench.peers[0].channel.features & HVI_FEATURE_DEVICE, 0);
    ck_assert(!gpus.bench.peers[0].reply.fabric);
    hvt_bench_fini(&gpus.bench);
}
END_TEST

/* hvdd has died meanwhile, and with it the question. */
START_TEST(the_next_hvdd_is_asked_for_a_worker_that_has_not_come)
{
    struct hvi_packet_msg asked;

    hvt_gpus_init(&gpus, 1);
    hvt_rank_send_memory(&gpus, 0, 0, HVT_GPU_REGION);
    ck_assert(hvt_node_expect(&gpus.node, HVI_PACKET_GPU_WANTED, &asked));
    hvi_packet_msg_free(&asked);
    engine_device_ask_again(&gpus.bench.engine->device);
    hvt_gpu_answer(&gpus, 0, HVI_ERR_LIMIT, "too many workers (gpu-workers)");
    ck_assert_int_eq(hvt_rank_ack(&gpus, 0).status, HVI_ERR_LIMIT);
    hvt_gpus_fini(&gpus);
}
END_TEST

START_TEST(a_worker_that_does_not_come_in_time_is_refused_and_so_is_what_waits_for_it)
{
    struct hvi_ack ack;

    hvt_gpus_init(&gpus, 1);
    hvt_rank_send_memory(&gpus, 0, 0, HVT_GPU_REGION);
    worker_at(0)->deadline_ns = 0;
    for (int i = 0; i < 50 && worker_at(0)->state == ENGINE_DEVICE_WANTED; i++) {
        usleep(2000);
        hvt_gpus_turn(&gpus);
    }
    ack = hvt_rank_ack(&gpus, 0);
    ck_assert_int_eq(ack.status, HVI_ERR_TIMEOUT);
    ck_assert_ptr_nonnull(strstr(ack.text, "hvdd has not answered"));
    hvt_gpus_fini(&gpus);
}
END_TEST

START_TEST(a_worker_that_cannot_be_told_of_memory_fails_the_registration_and_not_the_job)
{
    struct hvi_ack ack;

    hvt_gpus_init(&gpus, 1);
    hvt_rank_send_memory(&gpus, 0, 0, HVT_GPU_REGION);
    worker_at(0)->state = ENGINE_DEVICE_LINKED; /* without a socket */
    engine_device_import_linked(worker_at(0));
    worker_at(0)->state = ENGINE_DEVICE_WANTED;
    ack = hvt_rank_ack(&gpus, 0);
    ck_assert_int_eq(ack.status, HVI_ERR_CLOSED);
    ck_assert_str_eq(ack.text, "the worker cannot be told of the memory");
    ck_assert_int_eq(gpus.bench.engine->order.broken_status, HVI_OK);
    hvt_gpus_fini(&gpus);
}
END_TEST

START_TEST(a_worker_that_dies_before_its_hello_fails_the_registration_and_not_the_job)
{
    struct hvi_ack ack;

    hvt_gpus_init(&gpus, 1);
    hvt_rank_send_memory(&gpus, 0, 0, HVT_GPU_REGION);
    hvt_gpu_answer(&gpus, 0, HVI_OK, "");
    hvt_gpu_die(&gpus, 0);
    hvt_gpu_is_gone(&gpus, 0, "it was killed by signal 9 (SIGKILL)");
    ack = hvt_rank_ack(&gpus, 0);
    ck_assert_int_eq(ack.status, HVI_ERR_UNSUPPORTED);
    ck_assert_str_eq(ack.text,
                     "the worker of " GPU0 " is lost: it was killed by signal 9 (SIGKILL)");
    ck_assert_int_eq(gpus.bench.engine->order.broken_status, HVI_OK);
    hvt_gpus_fini(&gpus);
}
END_TEST

static void lie_at_hello(struct hvi_gpu_msg *msg, int kind)
{
    if (kind == 0)
        msg->hello.abi_version++;
    else if (kind == 1)
        msg->hello.instance++;
    else if (kind == 2)
        memset(msg->hello.uuid, 'x', 3);
}

/* 3: no descriptors. 4: another message. */
START_TEST(a_hello_that_is_not_credible_ends_the_worker)
{
    struct hvi_gpu_msg msg = {.kind = HVI_GPU_HELLO};
    struct hvi_packet_msg end;
    unsigned char bytes[HVI_UUID_BYTES];
    struct hvt_worker *worker = &gpus.workers[0];

    hvt_gpus_init(&gpus, 1);
    hvt_rank_send_memory(&gpus, 0, 0, HVT_GPU_REGION);
    hvt_gpu_answer(&gpus, 0, HVI_OK, "");
    ck_assert_int_eq(hvi_device_create(worker->instance, 1, &worker->channel), HVI_OK);
    const int fds[2] = {worker->channel.map.fd, worker->channel.map.fd};
    msg.hello.abi_version = HVI_ABI_VERSION;
    msg.hello.instance = worker->instance;
    snprintf(msg.hello.name, sizeof msg.hello.name, "Test GPU");
    hvt_gpu_uuid(0, bytes, msg.hello.uuid);
    lie_at_hello(&msg, _i);
    if (_i == 4) {
        msg = (struct hvi_gpu_msg){.kind = HVI_GPU_ACK};
        msg.ack.request = 1;
    }
    hvt_gpu_say(&gpus, 0, &msg, fds, _i >= 3 ? 0 : 2);
    ck_assert(hvt_node_expect(&gpus.node, HVI_PACKET_GPU_END, &end));
    ck_assert_uint_eq(end.gpu_end.instance, 100);
    ck_assert_ptr_nonnull(strstr(end.gpu_end.reason, "it broke the protocol"));
    ck_assert_int_eq(hvt_rank_ack(&gpus, 0).status, HVI_ERR_UNSUPPORTED);
    hvt_gpus_fini(&gpus);
}
END_TEST

START_TEST(memory_is_registered_when_the_worker_has_it_and_gone_when_the_worker_let_go)
{
    struct hvt_peer *peer = &gpus.bench.peers[0];
    struct hvi_packet_msg remove = {.kind = HVI_PACKET_REGION_REMOVE};
    struct hvi_gpu_msg msg;

    hvt_gpus_init(&gpus, 1);
    uint32_t import = hvt_rank_use(&gpus, 0, 0);
    const struct engine_regions *regions = &gpus.bench.engine->sessions.ranks[0].session->regions;
    ck_assert_uint_eq(regions->device_bytes, HVT_GPU_BYTES);
    ck_assert_uint_eq(regions->bytes, 0);
    remove.region_remove.request = ++peer->request;
    remove.region_remove.region = HVT_GPU_REGION;
    hvt_peer_send(peer, &remove, -1);
    hvt_gpus_turn(&gpus);
    ck_assert_uint_eq(regions->count, 0);
    ck_assert(hvt_gpu_hear(&gpus, 0, HVI_GPU_RELEASE, &msg));
    ck_assert_uint_eq(msg.release.import, import);
    hvt_gpu_ack(&gpus, 0, msg.release.request, HVI_OK, "");
    ck_assert_int_eq(hvt_rank_ack(&gpus, 0).status, HVI_OK);
    hvt_gpus_fini(&gpus);
}
END_TEST

START_TEST(an_import_that_the_worker_refuses_is_refused_with_its_sentence)
{
    struct hvi_gpu_msg msg;
    struct hvi_ack ack;

    hvt_gpus_init(&gpus, 1);
    hvt_rank_use(&gpus, 0, 0);
    hvt_rank_send_memory(&gpus, 0, 0, 9);
    ck_assert(hvt_gpu_hear(&gpus, 0, HVI_GPU_IMPORT, &msg));
    hvt_gpu_ack(&gpus, 0, msg.import.request, HVI_ERR_UNSUPPORTED,
                "CUDA_ERROR_INVALID_CONTEXT (201) in cuIpcOpenMemHandle");
    ack = hvt_rank_ack(&gpus, 0);
    ck_assert_int_eq(ack.status, HVI_ERR_UNSUPPORTED);
    ck_assert_str_eq(ack.text, "CUDA_ERROR_INVALID_CONTEXT (201) in cuIpcOpenMemHandle");
    hvt_rank_send_memory(&gpus, 0, 0, HVT_GPU_REGION);
    ack = hvt_rank_ack(&gpus, 0);
    ck_assert_int_eq(ack.status, HVI_ERR_INVALID);
    ck_assert_str_eq(ack.text, "region id 7 is taken");
    hvt_gpus_fini(&gpus);
}
END_TEST

START_TEST(an_import_without_an_answer_is_given_up_and_released_when_it_comes_after_all)
{
    struct hvi_gpu_msg msg, release;
    struct hvi_ack ack;

    hvt_gpus_init(&gpus, 1);
    hvt_rank_use(&gpus, 0, 0);
    hvt_rank_send_memory(&gpus, 0, 0, 9);
    ck_assert(hvt_gpu_hear(&gpus, 0, HVI_GPU_IMPORT, &msg));
    for (int i = 0; i < 2; i++) { /* whatever is due */
        worker_at(0)->pending->deadline_ns = 0;
        usleep(30000);
        hvt_gpus_turn(&gpus);
        if (i == 0) {
            ack = hvt_rank_ack(&gpus, 0);
            ck_assert_int_eq(ack.status, HVI_ERR_TIMEOUT);
            ck_assert_ptr_nonnull(strstr(ack.text, "has not answered in time: an import"));
            ck_assert(hvt_gpu_hear(&gpus, 0, HVI_GPU_RELEASE, &release));
            ck_assert_uint_eq(release.release.import, msg.import.import);
        }
    }
    hvt_gpu_ack(&gpus, 0, msg.import.request, HVI_OK, ""); /* no lie */
    ck_assert_int_eq(worker_at(0)->state, ENGINE_DEVICE_LINKED);
    hvt_gpus_fini(&gpus);
}
END_TEST

static void send_memory(uint32_t region, uint64_t bytes)
{
    struct hvt_peer *peer = &gpus.bench.peers[0];
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_DEVICE_ADD};
    char uuid[HVI_WIRE_GPU_UUID];

    msg.device_add.request = ++peer->request;
    msg.device_add.region = region;
    msg.device_add.memory.address = 0x7f0000000000;
    msg.device_add.memory.bytes = bytes;
    msg.device_add.memory.buffer_id = 2;
    msg.device_add.memory.kind = HVI_DEVICE_LEGACY;
    hvt_gpu_uuid(0, msg.device_add.memory.uuid, uuid);
    hvt_peer_send(peer, &msg, -1);
    hvt_gpus_turn(&gpus);
}

START_TEST(memory_that_cannot_be_and_memory_beyond_the_limit_are_refused)
{
    struct hvi_ack ack;

    hvt_gpus_init(&gpus, 1);
    hvt_rank_use(&gpus, 0, 0);
    send_memory(8, (UINT64_C(1) << 62) + 1);
    ack = hvt_rank_ack(&gpus, 0);
    ck_assert_int_eq(ack.status, HVI_ERR_INVALID);
    ck_assert_str_eq(ack.text, "there is no memory of that size");
    send_memory(HVT_GPU_REGION, HVT_GPU_BYTES);
    ck_assert_str_eq(hvt_rank_ack(&gpus, 0).text, "region id 7 is taken");
    gpus.bench.engine->start.regions_max = 1;
    send_memory(8, HVT_GPU_BYTES);
    ack = hvt_rank_ack(&gpus, 0);
    ck_assert_int_eq(ack.status, HVI_ERR_LIMIT);
    ck_assert_str_eq(ack.text, "this session has 1 regions, the limit is 1 (regions-per-session)");
    hvt_gpu_expect_nothing(&gpus, 0);
    ck_assert(engine_session_is_open(gpus.bench.engine->sessions.ranks[0].session));
    hvt_gpus_fini(&gpus);
}
END_TEST

START_TEST(a_region_that_is_announced_again_before_its_answer_ends_the_session)
{
    hvt_gpus_init(&gpus, 1);
    hvt_rank_use(&gpus, 0, 0);
    send_memory(8, HVT_GPU_BYTES);
    ck_assert_int_eq(gpus.bench.engine->sessions.ranks[0].state, ENGINE_RANK_ATTACHED);
    send_memory(8, HVT_GPU_BYTES);
    ck_assert_int_eq(gpus.bench.engine->sessions.ranks[0].state, ENGINE_RANK_ENDED);
    hvt_gpus_fini(&gpus);
}
END_TEST

START_TEST(a_worker_that_cannot_register_a_page_takes_no_memory)
{
    struct hvi_gpu_msg msg;
    struct hvi_ack ack;

    hvt_gpus_init(&gpus, 2);
    hvt_rank_use(&gpus, 0, 0);
    hvt_rank_send_fences(&gpus, 1);
    ck_assert(hvt_gpu_hear(&gpus, 0, HVI_GPU_PAGE, &msg));
    hvt_gpu_ack(&gpus, 0, msg.page.request, HVI_ERR_NO_MEMORY, "cuMemHostRegister: out of memory");
    ack = hvt_rank_ack(&gpus, 1);
    ck_assert_int_eq(ack.status, HVI_ERR_NO_MEMORY);
    hvt_rank_send_memory(&gpus, 1, 0, HVT_GPU_REGION);
    ck_assert(hvt_gpu_hear(&gpus, 0, HVI_GPU_IMPORT, &msg));
    hvt_gpu_ack(&gpus, 0, msg.import.request, HVI_OK, "");
    ck_assert(hvt_gpu_hear(&gpus, 0, HVI_GPU_RELEASE, &msg));
    ack = hvt_rank_ack(&gpus, 1);
    ck_assert_int_eq(ack.status, HVI_ERR_NO_MEMORY);
    ck_assert_str_eq(ack.text, "the worker of " GPU0 " cannot take part in streams: "
                               "cuMemHostRegister: out of memory");
    hvt_gpus_fini(&gpus);
}
END_TEST

START_TEST(a_worker_that_registers_a_page_late_takes_memory_then)
{
    struct hvi_gpu_msg page, msg;

    hvt_gpus_init(&gpus, 2);
    hvt_rank_use(&gpus, 0, 0);
    hvt_rank_send_fences(&gpus, 1);
    ck_assert(hvt_gpu_hear(&gpus, 0, HVI_GPU_PAGE, &page));
    worker_at(0)->pending->deadline_ns = 0;
    usleep(30000);
    hvt_gpus_turn(&gpus);
    ck_assert_int_eq(hvt_rank_ack(&gpus, 1).status, HVI_OK); /* of the session's page alone */
    for (int late = 1; late >= 0; late--) {
        hvt_rank_send_memory(&gpus, 1, 0, HVT_GPU_REGION);
        ck_assert(hvt_gpu_hear(&gpus, 0, HVI_GPU_IMPORT, &msg));
        hvt_gpu_ack(&gpus, 0, msg.import.request, HVI_OK, "");
        ck_assert_int_eq(hvt_rank_ack(&gpus, 1).status, late ? HVI_ERR_TIMEOUT : HVI_OK);
        if (late) {
            ck_assert(hvt_gpu_hear(&gpus, 0, HVI_GPU_RELEASE, &msg));
            hvt_gpu_ack(&gpus, 0, msg.release.request, HVI_OK, "");
            hvt_gpu_ack(&gpus, 0, page.page.request, HVI_OK, "");
        }
    }
    hvt_gpus_fini(&gpus);
}
END_TEST

/* The rank has given the first FenceAdd up, and sends the page again: before the worker has answered, and after that. */
START_TEST(a_page_that_is_sent_again_is_acknowledged_once_it_is_registered)
{
    struct hvi_gpu_msg page;

    hvt_gpus_init(&gpus, 2);
    hvt_rank_use(&gpus, 0, 0);
    hvt_rank_send_fences(&gpus, 1);
    ck_assert(hvt_gpu_hear(&gpus, 0, HVI_GPU_PAGE, &page));
    hvt_rank_send_fences(&gpus, 1);
    hvt_gpu_expect_nothing(&gpus, 0);
    hvt_gpu_ack(&gpus, 0, page.page.request, HVI_OK, "");
    ck_assert_int_eq(hvt_rank_ack(&gpus, 1).status, HVI_OK); /* of the second */
    hvt_rank_send_fences(&gpus, 1);
    ck_assert_int_eq(hvt_rank_ack(&gpus, 1).status, HVI_OK);
    hvt_gpu_expect_nothing(&gpus, 0);
    hvt_gpus_fini(&gpus);
}
END_TEST

/* It is hvdd that opens the fences if the engine and the worker die. */
START_TEST(a_hvdd_that_does_not_read_gets_the_page_when_it_does)
{
    static unsigned char bytes[1024];
    struct hvi_packet_msg msg;

    hvt_gpus_init(&gpus, 2);
    while (send(gpus.bench.engine->link_fd, bytes, sizeof bytes, MSG_DONTWAIT) > 0)
        continue;
    hvt_rank_send_fences(&gpus, 1);
    ck_assert_int_eq(hvt_rank_ack(&gpus, 1).status, HVI_OK);
    ck_assert(gpus.bench.engine->sessions.ranks[1].fences_untold);
    while (recv(gpus.bench.link, bytes, sizeof bytes, MSG_DONTWAIT) > 0)
        continue;
    hvt_gpus_turn(&gpus);
    ck_assert(!gpus.bench.engine->sessions.ranks[1].fences_untold);
    ck_assert(hvt_node_expect(&gpus.node, HVI_PACKET_ENGINE_FENCES, &msg));
    ck_assert_int_eq(msg.engine_fences.rank, 1);
    hvt_gpus_fini(&gpus);
}
END_TEST

START_TEST(a_second_page_and_one_that_is_none_are_refused)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_FENCE_ADD};
    struct hvt_peer *peer = &gpus.bench.peers[1];
    struct hvi_region other = HVI_REGION_INIT;

    hvt_gpus_init(&gpus, 2);
    hvt_rank_send_fences(&gpus, 0);
    ck_assert_int_eq(hvt_rank_ack(&gpus, 0).status, HVI_OK);
    ck_assert_int_eq(hvi_region_create("hvt", HVI_FENCE_BYTES, &other), HVI_OK);
    msg.fence_add.request = ++gpus.bench.peers[0].request;
    hvt_peer_send(&gpus.bench.peers[0], &msg, other.fd);
    hvt_gpus_turn(&gpus);
    ck_assert_int_eq(hvt_rank_ack(&gpus, 0).status, HVI_ERR_EXISTS);
    msg.fence_add.request = ++peer->request;
    hvt_peer_send(peer, &msg, other.fd);
    hvt_gpus_turn(&gpus);
    ck_assert_int_eq(hvt_rank_ack(&gpus, 1).status, HVI_ERR_PROTOCOL);
    hvi_region_fini(&other);
    msg.fence_add.request = ++peer->request;
    hvt_peer_send(peer, &msg, -1); /* without a descriptor: a lie */
    hvt_gpus_turn(&gpus);
    ck_assert_int_eq(gpus.bench.engine->sessions.ranks[1].state, ENGINE_RANK_ENDED);
    hvt_gpus_fini(&gpus);
}
END_TEST

START_TEST(a_session_that_ends_opens_its_ready_words_and_is_poisoned_when_nothing_uses_it)
{
    struct hvi_packet_msg detach = {.kind = HVI_PACKET_DETACH};
    struct hvt_peer *peer = &gpus.bench.peers[0];
    struct hvi_gpu_msg msg;

    hvt_gpus_init(&gpus, 1);
    uint32_t import = hvt_rank_use(&gpus, 0, 0);
    detach.detach.request = ++peer->request;
    hvt_peer_send(peer, &detach, -1);
    hvt_gpus_turn(&gpus);
    ck_assert(hvt_gpu_hear(&gpus, 0, HVI_GPU_SESSION_END, &msg));
    ck_assert_uint_eq(msg.session_end.page, gpus.page_numbers[0]);
    ck_assert(!msg.session_end.process_over);
    ck_assert(hvt_gpu_hear(&gpus, 0, HVI_GPU_RELEASE, &msg));
    ck_assert_uint_eq(msg.release.import, import);
    ck_assert_uint_eq(hvt_gpu_word(&gpus, 0, 1, true), HVI_FENCE_POISON);
    ck_assert_uint_eq(hvt_gpu_word(&gpus, 0, 8191, false), HVI_FENCE_POISON);
    hvt_gpus_fini(&gpus);
}
END_TEST

/* Of no use to anybody, and on the GPU until a worker closes it. The other rank stays. */
START_TEST(the_memory_of_a_rank_that_is_lost_is_released)
{
    struct hvt_peer *peer = &gpus.bench.peers[1];
    struct hvi_gpu_msg msg;

    hvt_gpus_init(&gpus, 2);
    hvt_rank_use(&gpus, 0, 0);
    uint32_t import = hvt_rank_use(&gpus, 1, 0);
    ck_assert_int_eq(shutdown(peer->socket, SHUT_RDWR), 0);
    while (gpus.bench.engine->sessions.ranks[1].state != ENGINE_RANK_LOST)
        hvt_gpus_turn(&gpus);
    hvt_gpus_turn(&gpus);
    ck_assert(hvt_gpu_hear(&gpus, 0, HVI_GPU_SESSION_END, &msg));
    ck_assert_uint_eq(msg.session_end.page, gpus.page_numbers[1]);
    ck_assert(msg.session_end.process_over);
    ck_assert(hvt_gpu_hear(&gpus, 0, HVI_GPU_RELEASE, &msg));
    ck_assert_uint_eq(msg.release.import, import);
    hvt_gpu_expect_nothing(&gpus, 0);
    hvt_gpus_fini(&gpus);
}
END_TEST

START_TEST(a_rank_that_leaves_while_its_memory_is_under_way_leaves_nothing_behind)
{
    struct hvi_packet_msg detach = {.kind = HVI_PACKET_DETACH};
    struct hvt_peer *peer = &gpus.bench.peers[0];
    struct hvi_gpu_msg msg;

    hvt_gpus_init(&gpus, 1);
    hvt_rank_use(&gpus, 0, 0);
    hvt_rank_send_memory(&gpus, 0, 0, 9);
    ck_assert(hvt_gpu_hear(&gpus, 0, HVI_GPU_IMPORT, &msg));
    uint64_t request = msg.import.request;
    uint32_t import = msg.import.import;
    detach.detach.request = ++peer->request;
    hvt_peer_send(peer, &detach, -1);
    hvt_gpus_turn(&gpus);
    ck_assert(hvt_gpu_hear(&gpus, 0, HVI_GPU_SESSION_END, &msg));
    ck_assert(hvt_gpu_hear(&gpus, 0, HVI_GPU_RELEASE, &msg)); /* the other one */
    hvt_gpu_ack(&gpus, 0, request, HVI_OK, "");
    ck_assert(hvt_gpu_hear(&gpus, 0, HVI_GPU_RELEASE, &msg));
    ck_assert_uint_eq(msg.release.import, import);
    hvt_gpus_fini(&gpus);
}
END_TEST

/* A DeviceAdd of rank 0 with one chunk and its descriptor. `bytes` are all of the region's. */
static void send_chunk(uint32_t region, uint64_t bytes, uint64_t chunk, bool more)
{
    struct hvt_peer *peer = &gpus.bench.peers[0];
    struct hvi_packet_msg add = {.kind = HVI_PACKET_DEVICE_ADD};
    char uuid[HVI_WIRE_GPU_UUID];

    add.device_add.region = region;
    add.device_add.request = more ? peer->request + 1 : ++peer->request;
    hvt_gpu_uuid(0, add.device_add.memory.uuid, uuid);
    add.device_add.memory.address = 0x7f0000000000;
    add.device_add.memory.bytes = bytes;
    add.device_add.memory.kind = HVI_DEVICE_VMM;
    add.device_add.memory.chunks = &chunk;
    add.device_add.memory.chunk_count = 1;
    add.device_add.more = more;
    hvt_peer_send(peer, &add, gpus.pages[0].map.fd);
    hvt_gpus_turn(&gpus);
}

/* The worker hears of one chunk; the request, 0: more follow. */
static uint64_t hear_chunk(uint64_t chunk)
{
    struct hvi_gpu_msg msg;

    ck_assert(hvt_gpu_hear(&gpus, 0, HVI_GPU_IMPORT, &msg));
    ck_assert_uint_eq(gpus.packet.fd_count, 1);
    ck_assert_uint_eq(msg.import.memory.kind, HVI_DEVICE_VMM);
    ck_assert_uint_eq(msg.import.memory.chunk_count, 1);
    ck_assert_uint_eq(msg.import.memory.chunks[0], chunk);
    uint64_t request = msg.import.more ? 0 : msg.import.request;
    hvi_gpu_msg_free(&msg);
    return request;
}

START_TEST(memory_of_many_chunks_goes_on_in_pieces_and_the_last_is_answered)
{
    const uint64_t half = HVT_GPU_BYTES / 2;

    hvt_gpus_init(&gpus, 1);
    hvt_rank_use(&gpus, 0, 0);
    send_chunk(9, HVT_GPU_BYTES, half, true);
    ck_assert_uint_eq(hear_chunk(half), 0);
    send_chunk(9, HVT_GPU_BYTES, half, false);
    hvt_gpu_ack(&gpus, 0, hear_chunk(half), HVI_OK, "");
    ck_assert_int_eq(hvt_rank_ack(&gpus, 0).status, HVI_OK);
    hvt_gpus_fini(&gpus);
}
END_TEST

/* A DeviceAdd of rank 0 with one chunk and its fabric handle, all bytes of which are `mark`. */
static void send_fabric(uint32_t region, unsigned char mark, bool more)
{
    struct hvt_peer *peer = &gpus.bench.peers[0];
    struct hvi_packet_msg add = {.kind = HVI_PACKET_DEVICE_ADD};
    unsigned char handle[HVI_WIRE_GPU_HANDLE];
    uint64_t chunk = HVT_GPU_BYTES / 2;
    char uuid[HVI_WIRE_GPU_UUID];

    memset(handle, mark, sizeof handle);
    add.device_add.region = region;
    add.device_add.request = more ? peer->request + 1 : ++peer->request;
    hvt_gpu_uuid(0, add.device_add.memory.uuid, uuid);
    add.device_add.memory.bytes = HVT_GPU_BYTES;
    add.device_add.memory.kind = HVI_DEVICE_FABRIC;
    add.device_add.memory.chunks = &chunk;
    add.device_add.memory.chunk_count = 1;
    add.device_add.memory.fabric = handle;
    add.device_add.memory.fabric_bytes = sizeof handle;
    add.device_add.more = more;
    hvt_peer_send(peer, &add, -1);
    hvt_gpus_turn(&gpus);
}

static uint64_t hear_fabric(unsigned char mark)
{
    struct hvi_gpu_msg msg;

    ck_assert(hvt_gpu_hear(&gpus, 0, HVI_GPU_IMPORT, &msg));
    ck_assert_uint_eq(gpus.packet.fd_count, 0);
    ck_assert_uint_eq(msg.import.memory.kind, HVI_DEVICE_FABRIC);
    ck_assert_uint_eq(msg.import.memory.fabric_bytes, HVI_WIRE_GPU_HANDLE);
    for (size_t i = 0; i < HVI_WIRE_GPU_HANDLE; i++)
        ck_assert_uint_eq(msg.import.memory.fabric[i], mark);
    uint64_t request = msg.import.more ? 0 : msg.import.request;
    hvi_gpu_msg_free(&msg);
    return request;
}

START_TEST(fabric_handles_go_on_with_their_chunks)
{
    hvt_gpus_init(&gpus, 1);
    hvt_rank_use(&gpus, 0, 0);
    send_fabric(9, 3, true);
    ck_assert_uint_eq(hear_fabric(3), 0);
    send_fabric(9, 4, false);
    hvt_gpu_ack(&gpus, 0, hear_fabric(4), HVI_OK, "");
    ck_assert_int_eq(hvt_rank_ack(&gpus, 0).status, HVI_OK);
    send_fabric(10, 5, false); /* half of it */
    ck_assert_int_eq(hvt_rank_ack(&gpus, 0).status, HVI_ERR_INVALID);
    hvt_gpu_expect_nothing(&gpus, 0);
    hvt_gpus_fini(&gpus);
}
END_TEST

/* A worker that has come through the upgrade of hvdd. */
START_TEST(a_worker_of_before_gets_no_fabric_handle_and_the_rank_a_sentence)
{
    hvt_gpus_init(&gpus, 1);
    gpus.is_old = true;
    hvt_rank_use(&gpus, 0, 0);
    send_fabric(9, 3, true);
    send_fabric(9, 4, false);
    struct hvi_ack ack = hvt_rank_ack(&gpus, 0);
    ck_assert_int_eq(ack.status, HVI_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(ack.text, "older than this engine"));
    hvt_gpu_expect_nothing(&gpus, 0);
    ck_assert(engine_session_is_open(gpus.bench.engine->sessions.ranks[0].session));
    hvt_gpus_fini(&gpus);
}
END_TEST

START_TEST(chunks_that_are_not_the_memory_are_refused_once_and_the_region_stays_free)
{
    const uint64_t half = HVT_GPU_BYTES / 2;
    struct hvi_gpu_msg msg;

    hvt_gpus_init(&gpus, 1);
    hvt_rank_use(&gpus, 0, 0);
    send_chunk(9, HVT_GPU_BYTES, half, true);
    ck_assert_uint_eq(hear_chunk(half), 0);
    send_chunk(9, HVT_GPU_BYTES, half + 1, true); /* too much: the worker hears so at once */
    ck_assert(hvt_gpu_hear(&gpus, 0, HVI_GPU_RELEASE, &msg));
    hvt_gpu_ack(&gpus, 0, msg.release.request, HVI_OK, "");
    send_chunk(9, HVT_GPU_BYTES, half, true); /* what comes then goes nowhere */
    hvt_gpu_expect_nothing(&gpus, 0);
    send_chunk(9, HVT_GPU_BYTES, half, false);
    struct hvi_ack ack = hvt_rank_ack(&gpus, 0);
    ck_assert_int_eq(ack.status, HVI_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(ack.text, "not the memory that was said"));
    send_chunk(9, HVT_GPU_BYTES, half, false); /* too little */
    ck_assert_int_eq(hvt_rank_ack(&gpus, 0).status, HVI_ERR_INVALID);
    hvt_gpu_expect_nothing(&gpus, 0);
    hvt_rank_send_memory(&gpus, 0, 0, 9);
    ck_assert(hvt_gpu_hear(&gpus, 0, HVI_GPU_IMPORT, &msg));
    hvt_gpu_ack(&gpus, 0, msg.import.request, HVI_OK, "");
    ck_assert_int_eq(hvt_rank_ack(&gpus, 0).status, HVI_OK);
    hvi_gpu_msg_free(&msg);
    hvt_gpus_fini(&gpus);
}
END_TEST

/* The worker would take the second one for as many handles as the first has. */
START_TEST(pieces_that_are_not_of_one_memory_are_a_lie)
{
    const uint64_t half = HVT_GPU_BYTES / 2;

    hvt_gpus_init(&gpus, 1);
    hvt_rank_use(&gpus, 0, 0);
    send_chunk(9, HVT_GPU_BYTES, half, true);
    ck_assert_uint_eq(hear_chunk(half), 0);
    ck_assert_int_eq(gpus.bench.engine->sessions.ranks[0].state, ENGINE_RANK_ATTACHED);
    if (_i == 0)
        send_fabric(9, 3, false);
    else
        send_chunk(9, HVT_GPU_BYTES + half, half, false);
    ck_assert_int_eq(gpus.bench.engine->sessions.ranks[0].state, ENGINE_RANK_ENDED);
    ck_assert_ptr_null(gpus.bench.engine->sessions.wishes);
    hvt_gpus_fini(&gpus);
}
END_TEST

START_TEST(a_rank_may_give_memory_up_between_its_pieces)
{
    struct hvt_peer *peer = &gpus.bench.peers[0];
    struct hvi_packet_msg remove = {.kind = HVI_PACKET_REGION_REMOVE};
    struct hvi_gpu_msg msg;

    hvt_gpus_init(&gpus, 1);
    hvt_rank_use(&gpus, 0, 0);
    send_chunk(9, HVT_GPU_BYTES, 4096, true);
    ck_assert_uint_eq(hear_chunk(4096), 0);
    peer->request += 2;
    remove.region_remove.request = peer->request;
    remove.region_remove.region = 9;
    hvt_peer_send(peer, &remove, -1);
    hvt_gpus_turn(&gpus);
    ck_assert_int_eq(hvt_rank_ack(&gpus, 0).status, HVI_OK);
    ck_assert(hvt_gpu_hear(&gpus, 0, HVI_GPU_RELEASE, &msg));
    hvt_gpu_ack(&gpus, 0, msg.release.request, HVI_OK, "");
    hvt_gpus_turn(&gpus);
    ck_assert_ptr_null(gpus.bench.engine->sessions.wishes);
    hvt_gpus_fini(&gpus);
}
END_TEST

START_TEST(more_chunks_than_one_import_may_have_are_refused)
{
    hvt_gpus_init(&gpus, 1);
    hvt_rank_use(&gpus, 0, 0);
    for (uint32_t i = 0; i < HVI_DEVICE_CHUNKS_MAX; i++) {
        send_chunk(9, HVT_GPU_BYTES, 1, true);
        hear_chunk(1);
    }
    send_chunk(9, HVT_GPU_BYTES, 1, true);
    send_chunk(9, HVT_GPU_BYTES, 1, false);
    struct hvi_ack ack = hvt_rank_ack(&gpus, 0);
    ck_assert_int_eq(ack.status, HVI_ERR_LIMIT);
    ck_assert_ptr_nonnull(strstr(ack.text, "more than the 4096 chunks"));
    hvt_gpus_fini(&gpus);
}
END_TEST

START_TEST(a_chunk_without_its_handle_is_a_lie)
{
    struct hvt_peer *peer = &gpus.bench.peers[0];
    struct hvi_packet_msg add = {.kind = HVI_PACKET_DEVICE_ADD};
    static const uint32_t kinds[] = {HVI_DEVICE_VMM, HVI_DEVICE_LEGACY, HVI_DEVICE_FABRIC,
                                     HVI_DEVICE_VMM, HVI_DEVICE_FABRIC};
    uint64_t chunk = HVT_GPU_BYTES;
    char uuid[HVI_WIRE_GPU_UUID];

    hvt_gpus_init(&gpus, 1);
    hvt_rank_use(&gpus, 0, 0);
    add.device_add.region = 10;
    add.device_add.request = ++peer->request;
    hvt_gpu_uuid(0, add.device_add.memory.uuid, uuid);
    add.device_add.memory.bytes = chunk;
    add.device_add.memory.kind = kinds[_i];
    add.device_add.memory.chunks = &chunk;
    add.device_add.memory.chunk_count = _i == 0 || _i == 2;
    add.device_add.more = _i == 1 || _i > 2; /* what cannot have pieces, and a piece of nothing */
    hvt_peer_send(peer, &add, -1);
    hvt_gpus_turn(&gpus);
    ck_assert_int_eq(gpus.bench.engine->sessions.ranks[0].state, ENGINE_RANK_ENDED);
    hvt_gpus_fini(&gpus);
}
END_TEST

START_TEST(nccl_s_variables_of_the_lowest_rank_go_along_and_no_others)
{
    static const struct hvi_setting settings[] = {
        {"NCCL_DEBUG", "INFO"}, {"NCCL_NET_PLUGIN", "/tmp/evil.so"}, {"HVD_EXPRESS", "1"}};
    struct hvi_packet_msg msg;

    hvt_gpus_init(&gpus, 1);
    gpus.bench.engine->settings_rank = INT32_MAX;
    engine_settings_take(gpus.bench.engine, 0, settings, 3);
    hvt_rank_send_memory(&gpus, 0, 0, HVT_GPU_REGION);
    ck_assert(hvt_node_expect(&gpus.node, HVI_PACKET_GPU_WANTED, &msg));
    ck_assert_uint_eq(msg.gpu_wanted.setting_count, 1);
    ck_assert_str_eq(msg.gpu_wanted.settings[0].name, "NCCL_DEBUG");
    ck_assert_str_eq(msg.gpu_wanted.settings[0].value, "INFO");
    hvi_packet_msg_free(&msg);
    hvt_gpus_fini(&gpus);
}
END_TEST

/* In what they have set, or in that they have. Other libraries' variables are not looked at. Told once a GPU is used, and without
 * what would command a terminal. */
START_TEST(ranks_whose_variables_of_nccl_differ_are_named)
{
    static const struct hvi_setting settings[] = {{"NCCL_DEBUG", "INFO"}, {"HVD_EXPRESS", "1"}},
                                    others[] = {{"NCCL_DEBUG", "WARN"}},
                                    odd[] = {
                                        {"NCCL_DEBUG", "a\x1b\xc2\x9b b\xe2\x80\xae\x7f\xc3\xa4"}};
    static const char *const said[] = {"NCCL_DEBUG is \"INFO\" for rank 1 and not set for rank 3",
                                       "NCCL_DEBUG is \"INFO\" for rank 1 and \"WARN\" for rank 3",
                                       "NCCL_DEBUG is \"WARN\" for rank 0 and \"INFO\" for rank 1",
                                       "for rank 1 and \"a?? b??\xc3\xa4\" for rank 3"};
    struct hvi_packet_msg msg;
    struct engine *engine;
    char byte;

    hvt_gpus_init(&gpus, 1);
    engine = gpus.bench.engine;
    engine->settings_rank = INT32_MAX;
    engine_settings_take(engine, 1, settings, 2);
    engine_settings_take(engine, 2, settings, 1);
    ck_assert(!engine->nccl.ranks_differ);
    engine_settings_take(engine, _i == 2 ? 0 : 3, _i == 3 ? odd : others, _i == 0 ? 0 : 1);
    ck_assert(engine->nccl.ranks_differ);
    ck_assert_int_lt(recv(gpus.bench.peers[0].socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT), 0);
    hvt_rank_send_memory(&gpus, 0, 0, HVT_GPU_REGION);
    ck_assert(hvt_peer_expect(&gpus.bench.peers[0], HVI_PACKET_NOTICE, &msg));
    ck_assert_msg(strstr(msg.notice.text, said[_i]) != NULL, "%s", msg.notice.text);
    ck_assert_uint_eq(engine->nccl.differences, 0);
    hvt_gpus_fini(&gpus);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine_device_memory");
    TCase *tcase = tcase_create("memory");

    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, where_hvdd_starts_no_worker_memory_is_refused_with_its_sentence);
    tcase_add_test(tcase, a_worker_that_hvdd_has_no_memory_for_is_refused);
    tcase_add_test(tcase, a_node_without_workers_says_so_and_offers_nothing);
    tcase_add_test(tcase, the_next_hvdd_is_asked_for_a_worker_that_has_not_come);
    tcase_add_test(tcase,
                   a_worker_that_does_not_come_in_time_is_refused_and_so_is_what_waits_for_it);
    tcase_add_test(tcase,
                   a_worker_that_dies_before_its_hello_fails_the_registration_and_not_the_job);
    tcase_add_test(tcase,
                   a_worker_that_cannot_be_told_of_memory_fails_the_registration_and_not_the_job);
    tcase_add_loop_test(tcase, a_hello_that_is_not_credible_ends_the_worker, 0, 5);
    tcase_add_test(tcase,
                   memory_is_registered_when_the_worker_has_it_and_gone_when_the_worker_let_go);
    tcase_add_test(tcase, an_import_that_the_worker_refuses_is_refused_with_its_sentence);
    tcase_add_test(tcase,
                   an_import_without_an_answer_is_given_up_and_released_when_it_comes_after_all);
    tcase_add_test(tcase, memory_that_cannot_be_and_memory_beyond_the_limit_are_refused);
    tcase_add_test(tcase, a_region_that_is_announced_again_before_its_answer_ends_the_session);
    tcase_add_test(tcase, a_worker_that_cannot_register_a_page_takes_no_memory);
    tcase_add_test(tcase, a_page_that_is_sent_again_is_acknowledged_once_it_is_registered);
    tcase_add_test(tcase, a_hvdd_that_does_not_read_gets_the_page_when_it_does);
    tcase_add_test(tcase, a_second_page_and_one_that_is_none_are_refused);
    tcase_add_test(tcase,
                   a_session_that_ends_opens_its_ready_words_and_is_poisoned_when_nothing_uses_it);
    tcase_add_test(tcase, the_memory_of_a_rank_that_is_lost_is_released);
    tcase_add_test(tcase, a_rank_that_leaves_while_its_memory_is_under_way_leaves_nothing_behind);
    tcase_add_test(tcase, memory_of_many_chunks_goes_on_in_pieces_and_the_last_is_answered);
    tcase_add_test(tcase, fabric_handles_go_on_with_their_chunks);
    tcase_add_test(tcase, a_worker_of_before_gets_no_fabric_handle_and_the_rank_a_sentence);
    tcase_add_test(tcase,
                   chunks_that_are_not_the_memory_are_refused_once_and_the_region_stays_free);
    tcase_add_test(tcase, a_rank_may_give_memory_up_between_its_pieces);
    tcase_add_test(tcase, more_chunks_than_one_import_may_have_are_refused);
    tcase_add_loop_test(tcase, a_chunk_without_its_handle_is_a_lie, 0, 5);
    tcase_add_loop_test(tcase, pieces_that_are_not_of_one_memory_are_a_lie, 0, 2);
    tcase_add_test(tcase, a_worker_that_registers_a_page_late_takes_memory_then);
    tcase_add_test(tcase, nccl_s_variables_of_the_lowest_rank_go_along_and_no_others);
    tcase_add_loop_test(tcase, ranks_whose_variables_of_nccl_differ_are_named, 0, 4);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
