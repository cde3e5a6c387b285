/* SPDX-License-Identifier: Apache-2.0
 * The real hvdd-gpu on a fake driver: its start, its engines and its end. The test is hvdd and an engine. */
#include "base/clock.h"
#include "base/status.h"
#include "base/uuid.h"
#include "daemon/gpu/kernels/image.h"
#include "shm/abi.h"
#include "tests/unit/gpu/hvt_worker.h"
#include "tests/unit/hvt_listen.h"
#include "tests/unit/hvt_main.h"

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHUNK (UINT64_C(2) << 20)

static struct hvt_worker worker;
static struct hvi_fence_page page;

static void setup(void)
{
    const struct hvt_worker_wish wish = {0};

    hvt_worker_start(&worker, 0, &wish);
}

static void teardown(void)
{
    hvt_worker_stop(&worker);
    hvi_fence_fini(&page);
}

/* An engine whose session has a fence page. */
static void link_engine(void)
{
    hvt_worker_expect_state(&worker, HVI_GPU_UP);
    hvt_engine_open(&worker);
    ck_assert_int_eq(hvi_fence_create(&page), HVI_OK);
    hvt_engine_page(&worker, 1, &page);
}

static uint64_t done_word(void)
{
    return atomic_load(&page.cells[HVI_FENCE_CELLS - 1].done);
}

START_TEST(it_finds_its_gpu_and_says_what_it_is)
{
    hvt_worker_expect_state(&worker, HVI_GPU_UP);
    ck_assert(worker.msg.state.has_row);
    ck_assert_str_eq(worker.msg.state.row.uuid, HVT_GPU_0);
    ck_assert_uint_eq(worker.msg.state.row.driver_version, 13000);
    ck_assert_uint_gt(strlen(worker.msg.state.row.name), 0);
}
END_TEST

START_TEST(it_answers_beats)
{
    struct hvi_gpu_msg beat = {.kind = HVI_GPU_BEAT, .beat = {5}};

    hvt_worker_expect_state(&worker, HVI_GPU_UP);
    hvt_worker_send(worker.link_fd, &beat, NULL, 0);
    hvt_worker_hear(&worker, worker.link_fd);
    ck_assert_int_eq(worker.msg.kind, HVI_GPU_BEAT);
    ck_assert_uint_eq(worker.msg.beat.number, 5);
}
END_TEST

/* GpuImport 7 of so many bytes in two chunks, of which this message has one; with a descriptor that is no memory of the driver's, or
 * none. */
static uint64_t send_chunk_of(uint64_t whole, uint64_t bytes, bool more, bool has_fd)
{
    struct hvi_gpu_msg told = {.kind = HVI_GPU_IMPORT};
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

    told.import.request = ++worker.requests;
    told.import.import = 7;
    told.import.memory.kind = HVI_DEVICE_VMM;
    told.import.memory.address = 4096;
    told.import.memory.bytes = whole;
    told.import.memory.chunks = &bytes;
    told.import.memory.chunk_count = 1;
    told.import.more = more;
    told.import.pid = getpid();
    ck_assert(hvi_uuid_parse(HVT_GPU_0, told.import.memory.uuid));
    hvt_worker_send(worker.engine_fd, &told, &fd, has_fd);
    close(fd);
    return worker.requests;
}

static uint64_t send_chunk(uint64_t bytes, bool more, bool has_fd)
{
    return send_chunk_of(2 * CHUNK, bytes, more, has_fd);
}

START_TEST(memory_in_pieces_is_answered_at_the_last_one)
{
    link_engine();
    send_chunk(CHUNK, true, true);
    hvt_engine_expect_ack(&worker, send_chunk(CHUNK, false, true), HVI_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(worker.msg.ack.text, "cuMemImportFromShareableHandle"));
    send_chunk(CHUNK, true, true);
    hvt_engine_expect_ack(&worker, send_chunk(CHUNK - 1, false, true), HVI_ERR_INVALID);
    send_chunk(CHUNK, true, true); /* of another memory than the last one, with as many bytes */
    hvt_engine_expect_ack(&worker, send_chunk_of(3 * CHUNK, 2 * CHUNK, false, true),
                          HVI_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(worker.msg.ack.text, "not the memory that was said"));
    send_chunk(CHUNK, true, true);
    hvt_engine_expect_ack(&worker, hvt_engine_release(&worker, 7), HVI_OK); /* it is given up */
    hvt_engine_expect_ack(&worker, hvt_engine_release(&worker, 7), HVI_ERR_NOT_FOUND);
    send_chunk(CHUNK, true, false);
    hvt_worker_expect_closed(&worker, worker.engine_fd);
}
END_TEST

/* The answer comes while the message is read: what was gathered goes with it. */
START_TEST(memory_of_another_gpu_is_refused_at_once)
{
    struct hvi_gpu_msg told = {.kind = HVI_GPU_IMPORT};
    uint64_t bytes = CHUNK;
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

    link_engine();
    told.import.import = 7;
    told.import.memory.kind = HVI_DEVICE_VMM;
    told.import.memory.address = 4096;
    told.import.memory.bytes = bytes;
    told.import.memory.chunks = &bytes;
    told.import.memory.chunk_count = 1;
    told.import.pid = getpid();
    ck_assert(hvi_uuid_parse("GPU-01010101-0101-0101-0101-010101010101", told.import.memory.uuid));
    for (int i = 0; i < 3; i++) { /* its number is free again */
        told.import.request = ++worker.requests;
        hvt_worker_send(worker.engine_fd, &told, &fd, 1);
        hvt_engine_expect_ack(&worker, told.import.request, HVI_ERR_INVALID);
        ck_assert_ptr_nonnull(strstr(worker.msg.ack.text, "another GPU"));
    }
    close(fd);
}
END_TEST

/* GpuImport of one chunk by a fabric handle, of so many bytes, which is none of the driver's. */
static uint64_t send_fabric(uint32_t import, size_t handle_bytes)
{
    struct hvi_gpu_msg told = {.kind = HVI_GPU_IMPORT};
    unsigned char handle[2 * HVI_WIRE_GPU_HANDLE] = {0};
    uint64_t bytes = CHUNK;

    told.import.request = ++worker.requests;
    told.import.import = import;
    told.import.memory.kind = HVI_DEVICE_FABRIC;
    told.import.memory.address = 4096;
    told.import.memory.bytes = bytes;
    told.import.memory.chunks = &bytes;
    told.import.memory.chunk_count = 1;
    told.import.memory.fabric = handle;
    told.import.memory.fabric_bytes = handle_bytes;
    told.import.pid = getpid();
    ck_assert(hvi_uuid_parse(HVT_GPU_0, told.import.memory.uuid));
    hvt_worker_send(worker.engine_fd, &told, NULL, 0);
    return worker.requests;
}

START_TEST(a_fabric_handle_that_opens_nothing_is_an_answer_and_one_too_short_a_lie)
{
    link_engine();
    hvt_engine_expect_ack(&worker, send_fabric(8, HVI_WIRE_GPU_HANDLE), HVI_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(worker.msg.ack.text, "IMEX channel"));
    send_fabric(8, _i == 0 ? HVI_WIRE_GPU_HANDLE - 1 : 2 * HVI_WIRE_GPU_HANDLE);
    hvt_worker_expect_closed(&worker, worker.engine_fd);
}
END_TEST

START_TEST(a_fabric_handle_behind_descriptors_is_refused)
{
    link_engine();
    send_chunk_of(CHUNK, CHUNK, true, true);
    hvt_engine_expect_ack(&worker, send_fabric(7, HVI_WIRE_GPU_HANDLE), HVI_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(worker.msg.ack.text, "not the memory that was said"));
}
END_TEST

START_TEST(an_engine_gets_a_device_channel)
{
    hvt_worker_expect_state(&worker, HVI_GPU_UP);
    hvt_engine_open(&worker);
    ck_assert_uint_eq(worker.msg.hello.abi_version, HVI_ABI_VERSION);
    ck_assert(worker.msg.hello.fabric);
    ck_assert_uint_eq(worker.msg.hello.instance, worker.instance);
    ck_assert_uint_eq(worker.msg.hello.nccl_version, 22809); /* before anything has needed it */
    ck_assert_uint_eq(worker.channel.instance, worker.instance);
    ck_assert_uint_eq(worker.channel.epoch, HVT_GENERATION);
}
END_TEST

/* It is, when the launch thread has said that no batch is under way. */
static void await_poison(void)
{
    const uint64_t end = hvi_deadline_after(HVT_PATIENCE_NS);

    while (done_word() != HVI_FENCE_POISON)
        ck_assert(!hvi_deadline_passed(end));
}

START_TEST(the_end_of_an_engine_poisons_its_pages)
{
    link_engine();
    ck_assert_uint_eq(done_word(), 0);
    hvt_engine_close(&worker);
    await_poison();
}
END_TEST

START_TEST(the_end_of_a_session_releases_the_workers_streams_alone)
{
    struct hvi_gpu_msg over = {.kind = HVI_GPU_SESSION_END, .session_end = {.page = 1}};

    link_engine();
    hvt_worker_send(worker.engine_fd, &over, NULL, 0);
    uint64_t end = hvi_deadline_after(HVT_PATIENCE_NS);
    while (!hvi_fence_is_ready(&page, HVI_FENCE_CELLS - 1, HVI_FENCE_TURNS - 1))
        ck_assert(!hvi_deadline_passed(end));
    ck_assert_uint_eq(done_word(), 0);
}
END_TEST

START_TEST(what_no_engine_says_ends_its_socket_and_poisons_its_pages)
{
    struct hvi_gpu_msg stop = {.kind = HVI_GPU_STOP};

    link_engine();
    hvt_worker_send(worker.engine_fd, &stop, NULL, 0);
    hvt_worker_expect_closed(&worker, worker.engine_fd);
    await_poison();
    ck_assert_int_eq(waitpid(worker.pid, NULL, WNOHANG), 0); /* the worker lives */
}
END_TEST

START_TEST(it_serves_engines_on_when_hvdd_has_gone_and_ends_with_the_last)
{
    hvt_worker_expect_state(&worker, HVI_GPU_UP);
    hvt_engine_open(&worker);
    ck_assert_int_eq(shutdown(worker.link_fd, SHUT_RDWR), 0);
    ck_assert_int_eq(hvi_fence_create(&page), HVI_OK);
    hvt_engine_page(&worker, 1, &page);
    hvt_engine_close(&worker);
    ck_assert_int_eq(hvt_worker_end(&worker), 0);
    ck_assert_uint_eq(done_word(), HVI_FENCE_POISON);
}
END_TEST

/* ---- another hvdd ---- */

static char folder[32], attach_path[64];
static int listener;

/* A worker with an engine, which will look for the next hvdd at attach_path. */
static void start_anew(uint64_t comm_ns)
{
    const struct hvt_worker_wish wish = {.attach_path = attach_path, .comm_ns = comm_ns};

    hvt_worker_expect_state(&worker, HVI_GPU_UP);
    hvt_worker_stop(&worker);
    snprintf(folder, sizeof(folder), "/tmp/hvt-return-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(attach_path, sizeof(attach_path), "%s/attach.sock", folder);
    hvt_worker_start(&worker, 0, &wish);
    link_engine();
}

static void hang_up(void)
{
    ck_assert_int_eq(shutdown(worker.link_fd, SHUT_RDWR), 0);
    close(worker.link_fd);
    worker.link_fd = -1;
}

/* The worker's hvdd goes, and there is the socket of the next one. */
static void lose_hvdd(void)
{
    start_anew(0);
    hang_up();
    listener = hvt_listen(folder, "attach.sock", SOCK_SEQPACKET);
}

/* It knocks, and says who it is, and which engines it has: the test alone, or none. */
static void expect_return_with(uint32_t engines)
{
    struct hvi_packet_msg msg;

    worker.link_fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    ck_assert_int_ge(worker.link_fd, 0);
    ck_assert_int_eq(
        hvi_packet_receive(worker.link_fd, &worker.packet, hvi_deadline_after(HVT_PATIENCE_NS)),
        HVI_OK);
    ck_assert_int_eq(
        hvi_packet_msg_decode(worker.packet.bytes, worker.packet.length, &msg, NULL, 0), HVI_OK);
    ck_assert_int_eq(msg.kind, HVI_PACKET_GPU_RETURN);
    ck_assert_str_eq(msg.gpu_return.job, "train");
    ck_assert_uint_eq(msg.gpu_return.uid, 1000);
    ck_assert_uint_eq(msg.gpu_return.instance, worker.instance);
    ck_assert_str_eq(msg.gpu_return.row.uuid, HVT_GPU_0);
    ck_assert_uint_eq(msg.gpu_return.engine_count, engines);
    if (engines > 0)
        ck_assert_int_eq(msg.gpu_return.engines[0], getpid());
    hvi_packet_msg_free(&msg);
}

static void expect_return(void)
{
    expect_return_with(1);
}

static void end_listener(void)
{
    close(listener);
    unlink(attach_path);
    rmdir(folder);
}

START_TEST(it_comes_back_to_the_next_hvdd_and_obeys_it)
{
    struct hvi_gpu_msg beat = {.kind = HVI_GPU_BEAT, .beat = {7}};

    lose_hvdd();
    expect_return();
    hvt_worker_send(worker.link_fd, &beat, NULL, 0);
    hvt_worker_hear(&worker, worker.link_fd);
    ck_assert_uint_eq(worker.msg.beat.number, 7);
    close(worker.link_fd); /* and to the one after that */
    expect_return();
    hvt_engine_close(&worker); /* now it waits for a next engine */
    hvt_worker_send(worker.link_fd, &beat, NULL, 0);
    hvt_worker_hear(&worker, worker.link_fd);
    ck_assert_int_eq(worker.msg.kind, HVI_GPU_BEAT);
    end_listener();
}
END_TEST

static void send_refusal(int status)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_ATTACH_REPLY,
                                 .attach_reply = {.status = status,
                                                  .text = "the test does not want it",
                                                  .protocol_version = HVI_PROTOCOL_VERSION,
                                                  .abi_version = HVI_ABI_VERSION}};
    static unsigned char bytes[HVI_PACKET_BYTES_MAX];
    size_t length;

    ck_assert_int_eq(hvi_packet_msg_encode(&msg, bytes, sizeof(bytes), &length), HVI_OK);
    ck_assert_int_eq(hvi_packet_send(worker.link_fd, bytes, length, NULL, 0, 0), HVI_OK);
}

static const int for_good[] = {HVI_ERR_REFUSED, HVI_ERR_PROTOCOL, HVI_ERR_VERSION, 0, 0};

/* 0 to 3: while an engine is there, and 3 says what is no message; 4: when none is left. */
START_TEST(a_hvdd_that_does_not_want_it_is_left_alone)
{
    lose_hvdd();
    struct pollfd next = {.fd = listener, .events = POLLIN};
    expect_return();
    if (_i == 4) {
        hvt_engine_close(&worker);
        usleep(50000);
    }
    if (for_good[_i] != 0)
        send_refusal(for_good[_i]);
    else
        ck_assert_int_eq(send(worker.link_fd, "no", 2, MSG_NOSIGNAL), 2);
    hvt_worker_expect_closed(&worker, worker.link_fd);
    if (_i < 4) {
        ck_assert_int_eq(poll(&next, 1, 400), 0); /* it would have looked again after 250 ms */
        ck_assert_int_eq(waitpid(worker.pid, NULL, WNOHANG), 0);
        hvt_engine_close(&worker);
    }
    ck_assert_int_eq(hvt_worker_end(&worker), 0);
    end_listener();
}
END_TEST

START_TEST(a_hvdd_that_cannot_take_it_now_is_asked_again)
{
    static const int now[] = {HVI_ERR_DAEMON_LIMIT, HVI_ERR_DAEMON, HVI_ERR_DRAINING};
    struct hvi_gpu_msg beat = {.kind = HVI_GPU_BEAT, .beat = {7}};

    lose_hvdd();
    expect_return();
    send_refusal(now[_i]);
    hvt_worker_expect_closed(&worker, worker.link_fd);
    close(worker.link_fd);
    expect_return();
    hvt_worker_send(worker.link_fd, &beat, NULL, 0);
    hvt_worker_hear(&worker, worker.link_fd);
    ck_assert_uint_eq(worker.msg.beat.number, 7);
    end_listener();
}
END_TEST

/* Its batches may write until it has ended. 0: the engine lives. 1: hvdd does, and has the page. 2: none of them does. 3: hvdd has
 * come after the engine's end, and has no page. */
START_TEST(one_that_fails_leaves_done_words_to_a_process_that_sees_its_end)
{
    const bool is_alone = _i >= 2;

    setenv("FAKEGPU_FAULT", "hvdd-gpu/nccl-join-hang", 1);
    start_anew(HVI_NS_SEC);
    hvt_engine_ask_join(&worker, 2);
    if (_i >= 1)
        hvt_engine_close(&worker);
    if (is_alone)
        hang_up();
    if (_i == 3) {
        listener = hvt_listen(folder, "attach.sock", SOCK_SEQPACKET);
        expect_return_with(0);
    }
    ck_assert_int_eq(hvt_worker_end(&worker), 1);
    ck_assert(hvi_fence_is_ready(&page, HVI_FENCE_CELLS - 1, HVI_FENCE_TURNS - 1));
    ck_assert_uint_eq(atomic_load(&page.cells[1].skip), HVI_FENCE_POISON);
    ck_assert_uint_eq(done_word(), is_alone ? HVI_FENCE_POISON : 0);
    unlink(attach_path);
    rmdir(folder);
}
END_TEST

START_TEST(it_ends_with_hvdd_when_no_engine_has_it)
{
    hvt_worker_expect_state(&worker, HVI_GPU_UP);
    ck_assert_int_eq(shutdown(worker.link_fd, SHUT_RDWR), 0);
    ck_assert_int_eq(hvt_worker_end(&worker), 0);
}
END_TEST

static void expect_refusal(const char *uuid, const char *part)
{
    const struct hvt_worker_wish wish = {.uuid = uuid};

    hvt_worker_expect_state(&worker, HVI_GPU_UP);
    hvt_worker_stop(&worker);
    hvt_worker_start(&worker, 0, &wish);
    hvt_worker_expect_state(&worker, HVI_GPU_FAILED);
    ck_assert_msg(strstr(worker.msg.state.text, part) != NULL, "%s", worker.msg.state.text);
    ck_assert_int_eq(hvt_worker_end(&worker), 1);
}

START_TEST(a_gpu_that_is_not_there_is_said)
{
    expect_refusal("GPU-00000000-0000-0000-0000-000000000000",
                   "1 GPUs, and this is none of them; NVML does not know it either");
}
END_TEST

START_TEST(a_gpu_that_cannot_be_opened_is_said)
{
    setenv("FAKEGPU_FAULT", "hvdd-gpu/denied", 1);
    if (_i == 1)
        setenv("FAKEGPU", "devices=2", 1);
    expect_refusal(NULL, _i == 0 ? "CUDA_ERROR_NO_DEVICE (100); NVML knows it, so this process may "
                                   "not open it"
                                 : "1 GPUs, and this is none of them; NVML knows it, so this "
                                   "process may not open it");
}
END_TEST

/* CUDA shows one instance, and no GPU beside it. */
START_TEST(instances_in_mig_mode_and_a_gpu_beside_them_are_found)
{
    static const struct {
        const char *uuid, *name;
    } devices[] = {{HVT_GPU_0, "No GPU 0"},
                   {"MIG-66616b65-2067-7075-206f-66206e6f0002", "No GPU 2"},
                   {"MIG-66616b65-2067-7075-206f-66206e6f0003", "No GPU 3"}};
    const struct hvt_worker_wish wish = {.uuid = devices[_i].uuid};

    hvt_worker_expect_state(&worker, HVI_GPU_UP);
    hvt_worker_stop(&worker);
    setenv("FAKEGPU", "devices=2;mig=1", 1);
    hvt_worker_start(&worker, 0, &wish);
    hvt_worker_expect_state(&worker, HVI_GPU_UP);
    ck_assert_str_eq(worker.msg.state.row.name, devices[_i].name);
}
END_TEST

START_TEST(a_driver_that_cannot_read_the_kernels_is_said_with_its_version)
{
    setenv("FAKEGPU_FAULT", "hvdd-gpu/old-driver", 1);
    expect_refusal(NULL, gpu_kernels_image_bytes > 0 ? "(200); the driver is of CUDA 1"
                                                     : "built without nvcc and has no kernels");
}
END_TEST

START_TEST(a_gpu_without_memory_operations_is_said)
{
    setenv("FAKEGPU_FAULT", "hvdd-gpu/no-memops", 1);
    expect_refusal(NULL, "64-bit memory operations");
}
END_TEST

START_TEST(a_gpu_without_room_for_the_staging_memory_is_said)
{
    setenv("FAKEGPU", "memory=32", 1);
    expect_refusal(NULL, "83887360 bytes are needed, and 33554432 of 33554432 are free");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("gpu_worker");
    TCase *tcase = tcase_create("worker");

    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, it_finds_its_gpu_and_says_what_it_is);
    tcase_add_test(tcase, it_answers_beats);
    tcase_add_test(tcase, an_engine_gets_a_device_channel);
    tcase_add_test(tcase, memory_in_pieces_is_answered_at_the_last_one);
    tcase_add_loop_test(
        tcase, a_fabric_handle_that_opens_nothing_is_an_answer_and_one_too_short_a_lie, 0, 2);
    tcase_add_test(tcase, memory_of_another_gpu_is_refused_at_once);
    tcase_add_test(tcase, a_fabric_handle_behind_descriptors_is_refused);
    tcase_add_test(tcase, the_end_of_an_engine_poisons_its_pages);
    tcase_add_test(tcase, the_end_of_a_session_releases_the_workers_streams_alone);
    tcase_add_test(tcase, what_no_engine_says_ends_its_socket_and_poisons_its_pages);
    tcase_add_test(tcase, it_serves_engines_on_when_hvdd_has_gone_and_ends_with_the_last);
    tcase_add_test(tcase, it_comes_back_to_the_next_hvdd_and_obeys_it);
    tcase_add_loop_test(tcase, a_hvdd_that_does_not_want_it_is_left_alone, 0, 5);
    tcase_add_loop_test(tcase, a_hvdd_that_cannot_take_it_now_is_asked_again, 0, 3);
    tcase_add_loop_test(tcase, one_that_fails_leaves_done_words_to_a_process_that_sees_its_end, 0,
                        4);
    tcase_add_test(tcase, it_ends_with_hvdd_when_no_engine_has_it);
    tcase_add_test(tcase, a_gpu_that_is_not_there_is_said);
    tcase_add_loop_test(tcase, a_gpu_that_cannot_be_opened_is_said, 0, 2);
    tcase_add_loop_test(tcase, instances_in_mig_mode_and_a_gpu_beside_them_are_found, 0, 3);
    tcase_add_test(tcase, a_gpu_without_memory_operations_is_said);
    tcase_add_test(tcase, a_driver_that_cannot_read_the_kernels_is_said_with_its_version);
    tcase_add_test(tcase, a_gpu_without_room_for_the_staging_memory_is_said);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
