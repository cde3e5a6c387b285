/* SPDX-License-Identifier: Apache-2.0
 * The real hvdd-gpu on a fake driver. The test is hvdd and an engine. */
#include "base/clock.h"
#include "base/status.h"
#include "base/uuid.h"
#include "proto/gpu.h"
#include "proto/packet.h"
#include "shm/abi.h"
#include "shm/device.h"
#include "shm/fence.h"
#include "tests/unit/hvt_main.h"
#include "tests/unit/hvt_process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define PATIENCE_NS (20 * (int64_t)HVI_NS_SEC)
#define INSTANCE    77
#define GENERATION  3

static pid_t worker;
static int link_fd, engine_fd;
static struct hvi_packet packet;
static struct hvi_gpu_msg msg;
static unsigned char bytes[HVI_PACKET_BYTES_MAX];
static struct hvi_fence_page page;

/* The first fake device: FAKEGPU's node 0. */
static const char *const first = "GPU-66616b65-2067-7075-206f-66206e6f0000";

static void send_to(int fd, const struct hvi_gpu_msg *said, const int *fds, uint32_t fd_count)
{
    size_t length;

    ck_assert_int_eq(hvi_gpu_msg_encode(said, bytes, sizeof(bytes), &length), HVI_OK);
    ck_assert_int_eq(
        hvi_packet_send(fd, bytes, length, fds, fd_count, hvi_deadline_after(PATIENCE_NS)), HVI_OK);
}

static void hear_from(int fd)
{
    char text[200] = "";

    int status = hvi_packet_receive(fd, &packet, hvi_deadline_after(PATIENCE_NS));
    ck_assert_msg(status == HVI_OK, "%s", hvi_status_text(status));
    ck_assert_msg(hvi_gpu_msg_decode(packet.bytes, packet.length, &msg, text, sizeof(text)) ==
                      HVI_OK,
                  "%s", text);
}

static void expect_closed(int fd)
{
    while (hvi_packet_receive(fd, &packet, hvi_deadline_after(PATIENCE_NS)) == HVI_OK)
        hvi_packet_close_fds(&packet);
    ck_assert_int_eq(hvi_packet_receive(fd, &packet, hvi_deadline_after(PATIENCE_NS)),
                     HVI_ERR_CLOSED);
}

static void run_worker(int fd)
{
    char path[400];

    snprintf(path, sizeof(path), "%s/libexec/hvdd/hvdd-gpu", getenv("HVD_BUILD_DIR"));
    if (dup2(fd, 3) != 3)
        _exit(97);
    execl(path, "hvdd-gpu", (char *)NULL);
    _exit(98);
}

static void start_worker(const char *uuid)
{
    struct hvi_gpu_msg start = {.kind = HVI_GPU_START,
                                .start = {.protocol_version = HVI_PROTOCOL_VERSION,
                                          .job = "train",
                                          .uid = 1000,
                                          .instance = INSTANCE,
                                          .attach_path = "/run/hvdd/attach.sock"}};
    int ends[2];

    ck_assert(hvi_uuid_parse(uuid, start.start.uuid));
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    worker = fork();
    ck_assert_int_ge(worker, 0);
    if (worker == 0)
        run_worker(ends[1]);
    close(ends[1]);
    link_fd = ends[0];
    engine_fd = -1;
    send_to(link_fd, &start, NULL, 0);
}

/* GpuState, over the steps of the start. */
static void expect_state(enum hvi_gpu_state_number state)
{
    do {
        hear_from(link_fd);
        ck_assert_int_eq(msg.kind, HVI_GPU_STATE);
    } while (msg.state.state == HVI_GPU_STARTING);
    ck_assert_msg(msg.state.state == state, "%s", msg.state.text);
}

static int end_of_worker(void)
{
    int status;

    ck_assert_int_eq(waitpid(worker, &status, 0), worker);
    worker = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void setup(void)
{
    signal(SIGPIPE, SIG_IGN);
    start_worker(first);
}

static void teardown(void)
{
    if (worker > 0) {
        struct hvi_gpu_msg stop = {.kind = HVI_GPU_STOP, .stop = {"the test is over"}};
        send_to(link_fd, &stop, NULL, 0);
        ck_assert_int_eq(end_of_worker(), 0);
    }
    hvi_fence_fini(&page);
    close(link_fd);
    if (engine_fd >= 0)
        close(engine_fd);
}

/* An engine whose session has a fence page. */
static void link_engine(void)
{
    struct hvi_gpu_msg told = {.kind = HVI_GPU_ENGINE, .engine = {GENERATION, (int32_t)getpid()}};
    struct hvi_gpu_msg welcome = {.kind = HVI_GPU_WELCOME, .welcome = {GENERATION}};
    int ends[2], event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);

    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    send_to(link_fd, &told, &ends[1], 1);
    close(ends[1]);
    engine_fd = ends[0];
    hear_from(engine_fd);
    ck_assert_int_eq(msg.kind, HVI_GPU_HELLO);
    ck_assert_uint_eq(packet.fd_count, 2);
    send_to(engine_fd, &welcome, &event_fd, 1);
    close(event_fd);
}

static void expect_ack(uint64_t request, int status)
{
    hear_from(engine_fd);
    ck_assert_int_eq(msg.kind, HVI_GPU_ACK);
    ck_assert_uint_eq(msg.ack.request, request);
    ck_assert_msg(msg.ack.status == status, "%s: %s", hvi_status_name(msg.ack.status),
                  msg.ack.text);
}

static void give_page(void)
{
    struct hvi_gpu_msg told = {.kind = HVI_GPU_PAGE, .page = {.request = 9, .page = 1}};

    ck_assert_int_eq(hvi_fence_create(&page), HVI_OK);
    send_to(engine_fd, &told, &page.map.fd, 1);
    expect_ack(9, HVI_OK);
}

static uint64_t done_word(void)
{
    return atomic_load(&page.cells[HVI_FENCE_CELLS - 1].done);
}

START_TEST(it_finds_its_gpu_and_says_what_it_is)
{
    expect_state(HVI_GPU_UP);
    ck_assert(msg.state.has_row);
    ck_assert_str_eq(msg.state.row.uuid, first);
    ck_assert_uint_eq(msg.state.row.driver_version, 13000);
    ck_assert_uint_gt(strlen(msg.state.row.name), 0);
}
END_TEST

START_TEST(it_answers_beats)
{
    struct hvi_gpu_msg beat = {.kind = HVI_GPU_BEAT, .beat = {5}};

    expect_state(HVI_GPU_UP);
    send_to(link_fd, &beat, NULL, 0);
    hear_from(link_fd);
    ck_assert_int_eq(msg.kind, HVI_GPU_BEAT);
    ck_assert_uint_eq(msg.beat.number, 5);
}
END_TEST

START_TEST(an_engine_gets_a_device_channel)
{
    struct hvi_device_channel channel;

    expect_state(HVI_GPU_UP);
    link_engine();
    ck_assert_uint_eq(msg.hello.abi_version, HVI_ABI_VERSION);
    ck_assert_uint_eq(msg.hello.instance, INSTANCE);
    ck_assert_str_eq(msg.hello.uuid, first);
    ck_assert_int_eq(hvi_device_map(hvi_packet_take_fd(&packet, 0), &channel), HVI_OK);
    ck_assert_uint_eq(channel.instance, INSTANCE);
    ck_assert_uint_eq(channel.epoch, GENERATION);
    hvi_device_fini(&channel);
    hvi_packet_close_fds(&packet);
}
END_TEST

START_TEST(the_end_of_an_engine_poisons_its_pages)
{
    expect_state(HVI_GPU_UP);
    link_engine();
    hvi_packet_close_fds(&packet);
    give_page();
    ck_assert_uint_eq(done_word(), 0);
    close(engine_fd);
    engine_fd = -1;
    uint64_t end = hvi_deadline_after(PATIENCE_NS);
    while (done_word() != HVI_FENCE_POISON)
        ck_assert(!hvi_deadline_passed(end));
}
END_TEST

START_TEST(the_end_of_a_session_releases_the_workers_streams_alone)
{
    struct hvi_gpu_msg over = {.kind = HVI_GPU_SESSION_END, .session_end = {.page = 1}};

    expect_state(HVI_GPU_UP);
    link_engine();
    hvi_packet_close_fds(&packet);
    give_page();
    send_to(engine_fd, &over, NULL, 0);
    uint64_t end = hvi_deadline_after(PATIENCE_NS);
    while (!hvi_fence_is_ready(&page, HVI_FENCE_CELLS - 1, HVI_FENCE_TURNS - 1))
        ck_assert(!hvi_deadline_passed(end));
    ck_assert_uint_eq(done_word(), 0);
}
END_TEST

START_TEST(what_no_engine_says_ends_its_socket_and_poisons_its_pages)
{
    struct hvi_gpu_msg stop = {.kind = HVI_GPU_STOP};

    expect_state(HVI_GPU_UP);
    link_engine();
    hvi_packet_close_fds(&packet);
    give_page();
    send_to(engine_fd, &stop, NULL, 0);
    expect_closed(engine_fd);
    ck_assert_uint_eq(done_word(), HVI_FENCE_POISON);
    ck_assert_int_eq(waitpid(worker, NULL, WNOHANG), 0); /* the worker lives */
}
END_TEST

START_TEST(it_serves_engines_on_when_hvdd_has_gone_and_ends_with_the_last)
{
    expect_state(HVI_GPU_UP);
    link_engine();
    hvi_packet_close_fds(&packet);
    ck_assert_int_eq(shutdown(link_fd, SHUT_RDWR), 0);
    give_page();
    close(engine_fd);
    engine_fd = -1;
    ck_assert_int_eq(end_of_worker(), 0);
    ck_assert_uint_eq(done_word(), HVI_FENCE_POISON);
}
END_TEST

START_TEST(it_ends_with_hvdd_when_no_engine_has_it)
{
    expect_state(HVI_GPU_UP);
    ck_assert_int_eq(shutdown(link_fd, SHUT_RDWR), 0);
    ck_assert_int_eq(end_of_worker(), 0);
}
END_TEST

static void restart(const char *uuid)
{
    expect_state(HVI_GPU_UP);
    teardown();
    start_worker(uuid);
}

static void expect_failure(const char *part)
{
    expect_state(HVI_GPU_FAILED);
    ck_assert_msg(strstr(msg.state.text, part) != NULL, "%s", msg.state.text);
    ck_assert_int_eq(end_of_worker(), 1);
}

START_TEST(a_gpu_that_is_not_there_is_said)
{
    restart("GPU-00000000-0000-0000-0000-000000000000");
    expect_failure("this is none of them");
}
END_TEST

START_TEST(a_gpu_without_memory_operations_is_said)
{
    setenv("FAKEGPU_FAULT", "hvdd-gpu/no-memops", 1);
    restart(first);
    expect_failure("64-bit memory operations");
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
    tcase_add_test(tcase, the_end_of_an_engine_poisons_its_pages);
    tcase_add_test(tcase, the_end_of_a_session_releases_the_workers_streams_alone);
    tcase_add_test(tcase, what_no_engine_says_ends_its_socket_and_poisons_its_pages);
    tcase_add_test(tcase, it_serves_engines_on_when_hvdd_has_gone_and_ends_with_the_last);
    tcase_add_test(tcase, it_ends_with_hvdd_when_no_engine_has_it);
    tcase_add_test(tcase, a_gpu_that_is_not_there_is_said);
    tcase_add_test(tcase, a_gpu_without_memory_operations_is_said);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
