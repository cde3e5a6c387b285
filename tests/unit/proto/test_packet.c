/* SPDX-License-Identifier: Apache-2.0
 * Packets with descriptors over real socket pairs. Every test ends with as many open descriptors
 * as it began with. */
#include "proto/packet.h"

#include "base/clock.h"
#include "base/status.h"

#include "tests/unit/hvt_main.h"
#include "tests/unit/hvt_process.h"

#include <check.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

static int pair[2];
static int open_before;
static struct hvi_packet packet;
static unsigned char payload[HVI_PACKET_BYTES_MAX + 1];

static void setup(void)
{
    open_before = hvt_count_fds();
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    for (size_t i = 0; i < sizeof payload; i++)
        payload[i] = (unsigned char)(i * 31);
}

static void teardown(void)
{
    for (int i = 0; i < 2; i++) {
        if (pair[i] >= 0)
            close(pair[i]);
    }
    ck_assert_int_eq(hvt_count_fds(), open_before);
}

static void close_end(int end)
{
    close(pair[end]);
    pair[end] = -1;
}

static uint64_t soon(void)
{
    return hvi_deadline_after(5 * (int64_t)HVI_NS_SEC);
}

START_TEST(bytes_arrive)
{
    static const size_t lengths[] = {1, 2, 4096, 65536, HVI_PACKET_BYTES_MAX};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        ck_assert_int_eq(hvi_packet_send(pair[0], payload, lengths[i], NULL, 0, soon()), HVI_OK);
        ck_assert_int_eq(hvi_packet_receive(pair[1], &packet, soon()), HVI_OK);
        ck_assert_uint_eq(packet.length, lengths[i]);
        ck_assert_uint_eq(packet.fd_count, 0);
        ck_assert_int_eq(memcmp(packet.bytes, payload, lengths[i]), 0);
    }
}
END_TEST

START_TEST(borders_are_kept)
{
    ck_assert_int_eq(hvi_packet_send(pair[0], "ab", 2, NULL, 0, soon()), HVI_OK);
    ck_assert_int_eq(hvi_packet_send(pair[0], "c", 1, NULL, 0, soon()), HVI_OK);
    ck_assert_int_eq(hvi_packet_receive(pair[1], &packet, soon()), HVI_OK);
    ck_assert_uint_eq(packet.length, 2);
    ck_assert_int_eq(hvi_packet_receive(pair[1], &packet, soon()), HVI_OK);
    ck_assert_uint_eq(packet.length, 1);
}
END_TEST

/* One pipe per descriptor: what is written into the sent end comes out of the original. */
START_TEST(descriptors_arrive)
{
    int reads[HVI_PACKET_FDS_MAX], writes[HVI_PACKET_FDS_MAX];
    for (uint32_t i = 0; i < HVI_PACKET_FDS_MAX; i++) {
        int ends[2];
        ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
        reads[i] = ends[0];
        writes[i] = ends[1];
    }
    ck_assert_int_eq(hvi_packet_send(pair[0], payload, 5, writes, HVI_PACKET_FDS_MAX, soon()),
                     HVI_OK);
    ck_assert_int_eq(hvi_packet_receive(pair[1], &packet, soon()), HVI_OK);
    ck_assert_uint_eq(packet.fd_count, HVI_PACKET_FDS_MAX);
    for (uint32_t i = 0; i < HVI_PACKET_FDS_MAX; i++) {
        char seen = 0, sent = (char)('a' + (int)i);
        ck_assert_int_ne(packet.fds[i], writes[i]);
        ck_assert_int_eq(fcntl(packet.fds[i], F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
        ck_assert_int_eq(write(packet.fds[i], &sent, 1), 1);
        ck_assert_int_eq(read(reads[i], &seen, 1), 1);
        ck_assert_int_eq(seen, sent);
        close(reads[i]);
        close(writes[i]); /* still ours after the send */
    }
    hvi_packet_close_fds(&packet);
    ck_assert_uint_eq(packet.fd_count, 0);
}
END_TEST

START_TEST(taken_descriptors_stay_open)
{
    const int fds[] = {pair[0], pair[1]};
    ck_assert_int_eq(hvi_packet_send(pair[0], "x", 1, fds, 2, soon()), HVI_OK);
    ck_assert_int_eq(hvi_packet_receive(pair[1], &packet, soon()), HVI_OK);
    int taken = hvi_packet_take_fd(&packet, 1);
    ck_assert_int_ge(taken, 0);
    ck_assert_int_eq(hvi_packet_take_fd(&packet, 1), -1);
    ck_assert_int_eq(hvi_packet_take_fd(&packet, 2), -1);
    hvi_packet_close_fds(&packet);
    hvi_packet_close_fds(&packet);
    ck_assert_int_ge(fcntl(taken, F_GETFD), 0);
    close(taken);
}
END_TEST

START_TEST(bad_sends_are_refused)
{
    const int fds[HVI_PACKET_FDS_MAX + 1] = {0};
    const int closed[] = {9999};
    ck_assert_int_eq(hvi_packet_send(pair[0], payload, HVI_PACKET_BYTES_MAX + 1, NULL, 0, soon()),
                     HVI_ERR_INVALID);
    ck_assert_int_eq(hvi_packet_send(pair[0], payload, 0, NULL, 0, soon()), HVI_ERR_INVALID);
    ck_assert_int_eq(hvi_packet_send(pair[0], "x", 1, fds, HVI_PACKET_FDS_MAX + 1, soon()),
                     HVI_ERR_INVALID);
    ck_assert_int_eq(hvi_packet_send(pair[0], "x", 1, closed, 1, soon()), HVI_ERR_INVALID);
    ck_assert_int_eq(hvi_packet_receive(pair[1], &packet, 0), HVI_ERR_TIMEOUT);
}
END_TEST

START_TEST(small_socket_buffer_refuses_large_packet)
{
    int bytes = 4096;
    ck_assert_int_eq(setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes), 0);
    ck_assert_int_eq(hvi_packet_send(pair[0], payload, 65536, NULL, 0, soon()), HVI_ERR_INVALID);
}
END_TEST

START_TEST(closed_peer_is_seen)
{
    close_end(1);
    ck_assert_int_eq(hvi_packet_receive(pair[0], &packet, soon()), HVI_ERR_CLOSED);
    ck_assert_int_eq(hvi_packet_send(pair[0], "x", 1, NULL, 0, soon()), HVI_ERR_CLOSED);
}
END_TEST

/* What the peer sent before it closed is still read. */
START_TEST(last_words_are_read)
{
    ck_assert_int_eq(hvi_packet_send(pair[1], "bye", 3, NULL, 0, soon()), HVI_OK);
    close_end(1);
    ck_assert_int_eq(hvi_packet_receive(pair[0], &packet, soon()), HVI_OK);
    ck_assert_uint_eq(packet.length, 3);
    ck_assert_int_eq(hvi_packet_receive(pair[0], &packet, soon()), HVI_ERR_CLOSED);
}
END_TEST

/* The same of a peer that has not read everything: the kernel says first that the connection was reset. */
START_TEST(last_words_of_a_peer_that_has_not_read_ours_are_read)
{
    ck_assert_int_eq(hvi_packet_send(pair[0], "unread", 6, NULL, 0, soon()), HVI_OK);
    ck_assert_int_eq(hvi_packet_send(pair[1], "good", 4, NULL, 0, soon()), HVI_OK);
    ck_assert_int_eq(hvi_packet_send(pair[1], "bye", 3, NULL, 0, soon()), HVI_OK);
    close_end(1);
    ck_assert_int_eq(hvi_packet_receive(pair[0], &packet, soon()), HVI_OK);
    ck_assert_uint_eq(packet.length, 4);
    ck_assert_int_eq(hvi_packet_receive(pair[0], &packet, soon()), HVI_OK);
    ck_assert_uint_eq(packet.length, 3);
    ck_assert_int_eq(hvi_packet_receive(pair[0], &packet, soon()), HVI_ERR_CLOSED);
}
END_TEST

START_TEST(descriptors_come_only_where_they_are_let_in)
{
    const int passrights = 83, off = 0;
    bool refuses = setsockopt(pair[1], SOL_SOCKET, passrights, &off, sizeof off) == 0;
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC), all = refuses ? HVI_ERR_REFUSED : HVI_OK;

    hvi_packet_let_fds(pair[1], false);
    ck_assert_int_eq(hvi_packet_send(pair[0], payload, 1, &fd, 1, soon()), all);
    ck_assert_int_eq(hvi_packet_send(pair[0], payload, 2, NULL, 0, soon()), HVI_OK);
    hvi_packet_let_fds(pair[1], true);
    ck_assert_int_eq(hvi_packet_send(pair[0], payload, 3, &fd, 1, soon()), HVI_OK);
    for (size_t length = refuses ? 2 : 1; length <= 3; length++) {
        ck_assert_int_eq(hvi_packet_receive(pair[1], &packet, soon()), HVI_OK);
        ck_assert_uint_eq(packet.length, length);
        ck_assert_uint_eq(packet.fd_count, length != 2);
        hvi_packet_close_fds(&packet);
    }
    close(fd);
}
END_TEST

START_TEST(not_a_socket)
{
    int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    ck_assert_int_eq(hvi_packet_receive(fd, &packet, soon()), HVI_ERR_INVALID);
    ck_assert_int_eq(hvi_packet_send(fd, "x", 1, NULL, 0, soon()), HVI_ERR_INVALID);
    close(fd);
}
END_TEST

START_TEST(receive_has_a_deadline)
{
    uint64_t began = hvi_clock_ns();
    ck_assert_int_eq(hvi_packet_receive(pair[0], &packet, 0), HVI_ERR_TIMEOUT);
    ck_assert_uint_lt(hvi_clock_ns() - began, hvt_patience(HVI_NS_SEC));
    began = hvi_clock_ns();
    uint64_t deadline = began + 50 * HVI_NS_MS;
    ck_assert_int_eq(hvi_packet_receive(pair[0], &packet, deadline), HVI_ERR_TIMEOUT);
    ck_assert_uint_ge(hvi_clock_ns(), deadline);
    ck_assert_uint_lt(hvi_clock_ns() - began, hvt_patience(5 * HVI_NS_SEC));
}
END_TEST

static int fill(int fd)
{
    int sent = 0;
    while (hvi_packet_send(fd, payload, 4096, NULL, 0, 0) == HVI_OK)
        sent++;
    return sent;
}

START_TEST(full_socket_times_out)
{
    int sent = fill(pair[0]);
    ck_assert_int_gt(sent, 1);
    ck_assert_int_eq(hvi_packet_send(pair[0], payload, 4096, NULL, 0, 0), HVI_ERR_TIMEOUT);
    uint64_t deadline = hvi_clock_ns() + 50 * HVI_NS_MS;
    ck_assert_int_eq(hvi_packet_send(pair[0], payload, 4096, NULL, 0, deadline), HVI_ERR_TIMEOUT);
    ck_assert_uint_ge(hvi_clock_ns(), deadline);
    for (int i = 0; i < sent; i++)
        ck_assert_int_eq(hvi_packet_receive(pair[1], &packet, soon()), HVI_OK);
    ck_assert_int_eq(hvi_packet_receive(pair[1], &packet, 0), HVI_ERR_TIMEOUT);
}
END_TEST

static void *drain_all(void *argument)
{
    int *wanted = argument;
    static struct hvi_packet drained;
    while (*wanted > 0 && hvi_packet_receive(pair[1], &drained, soon()) == HVI_OK)
        (*wanted)--;
    return NULL;
}

START_TEST(full_socket_waits_for_room)
{
    pthread_t thread;
    int wanted = fill(pair[0]) + 1;
    ck_assert_int_eq(pthread_create(&thread, NULL, drain_all, &wanted), 0);
    ck_assert_int_eq(hvi_packet_send(pair[0], payload, 4096, NULL, 0, soon()), HVI_OK);
    pthread_join(thread, NULL);
    ck_assert_int_eq(wanted, 0);
}
END_TEST

static void on_signal(int number)
{
    (void)number;
}

struct interrupter {
    pthread_t target;
    _Atomic bool stop;
};

static void *interrupt_often(void *argument)
{
    struct interrupter *interrupter = argument;
    while (!interrupter->stop) {
        pthread_kill(interrupter->target, SIGUSR1);
        usleep(1000);
    }
    return NULL;
}

/* A signal that interrupts the wait neither ends nor prolongs it. */
START_TEST(signals_do_not_end_the_wait)
{
    struct sigaction action = {.sa_handler = on_signal}, old;
    struct interrupter interrupter = {.target = pthread_self()};
    pthread_t thread;
    sigaction(SIGUSR1, &action, &old);
    ck_assert_int_eq(pthread_create(&thread, NULL, interrupt_often, &interrupter), 0);
    uint64_t deadline = hvi_clock_ns() + 100 * HVI_NS_MS;
    int status = hvi_packet_receive(pair[0], &packet, deadline);
    uint64_t ended = hvi_clock_ns();
    interrupter.stop = true;
    pthread_join(thread, NULL);
    sigaction(SIGUSR1, &old, NULL);
    ck_assert_int_eq(status, HVI_ERR_TIMEOUT);
    ck_assert_uint_ge(ended, deadline);
    ck_assert_uint_lt(ended - deadline, 5 * HVI_NS_SEC);
}
END_TEST

/* ---- hostile peers: written with plain sendmsg ----------------------------------------------- */

static ssize_t raw_send(int fd, const void *bytes, size_t length, const int *fds, size_t fd_count)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(64 * sizeof(int))];
    } control;
    struct iovec iov = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = length};
    struct msghdr header = {.msg_iov = &iov, .msg_iovlen = 1};
    if (fd_count) {
        memset(&control, 0, sizeof control);
        header.msg_control = control.bytes;
        header.msg_controllen = CMSG_SPACE(fd_count * sizeof(int));
        struct cmsghdr *cmsg = CMSG_FIRSTHDR(&header);
        cmsg->cmsg_level = SOL_SOCKET;
        cmsg->cmsg_type = SCM_RIGHTS;
        cmsg->cmsg_len = CMSG_LEN(fd_count * sizeof(int));
        memcpy(CMSG_DATA(cmsg), fds, fd_count * sizeof(int));
    }
    return sendmsg(fd, &header, MSG_NOSIGNAL);
}

/* Whatever was refused: nothing in the packet, and (teardown) nothing open. */
static void assert_not_received(int status)
{
    ck_assert_int_eq(hvi_packet_receive(pair[1], &packet, soon()), status);
    ck_assert_uint_eq(packet.length, 0);
    ck_assert_uint_eq(packet.fd_count, 0);
}

START_TEST(too_long_is_refused)
{
    const int fds[] = {pair[0]};
    ck_assert_int_gt(raw_send(pair[0], payload, HVI_PACKET_BYTES_MAX + 1, fds, 1), 0);
    assert_not_received(HVI_ERR_PROTOCOL);
    ck_assert_int_eq(hvi_packet_send(pair[0], "x", 1, NULL, 0, soon()), HVI_OK);
    ck_assert_int_eq(hvi_packet_receive(pair[1], &packet, soon()), HVI_OK);
}
END_TEST

START_TEST(too_many_descriptors_are_refused)
{
    int fds[64];
    for (int i = 0; i < 64; i++)
        fds[i] = pair[0];
    ck_assert_int_gt(raw_send(pair[0], "x", 1, fds, HVI_PACKET_FDS_MAX + 1), 0);
    assert_not_received(HVI_ERR_PROTOCOL);
    ck_assert_int_gt(raw_send(pair[0], "x", 1, fds, 64), 0);
    assert_not_received(HVI_ERR_PROTOCOL);
}
END_TEST

/* An empty message looks like an end of file; its descriptors are closed all the same. */
START_TEST(empty_message_with_descriptors)
{
    const int fds[] = {pair[0], pair[0]};
    ck_assert_int_eq(raw_send(pair[0], "", 0, fds, 2), 0);
    assert_not_received(HVI_ERR_CLOSED);
}
END_TEST

/* Room for one more descriptor, three arrive: the kernel cuts them, and the one that came is
 * closed. */
START_TEST(descriptors_cut_by_the_kernel)
{
    const int fds[] = {pair[0], pair[0], pair[0]};
    struct rlimit old, tight;
    getrlimit(RLIMIT_NOFILE, &old);
    tight = old;
    int probe = dup(pair[0]);
    close(probe);
    tight.rlim_cur = (rlim_t)probe + 1;
    ck_assert_int_gt(raw_send(pair[0], "x", 1, fds, 3), 0);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &tight), 0);
    int status = hvi_packet_receive(pair[1], &packet, soon());
    setrlimit(RLIMIT_NOFILE, &old);
    ck_assert_int_eq(status, HVI_ERR_LIMIT);
    ck_assert_uint_eq(packet.fd_count, 0);
}
END_TEST

/* A look takes nothing out, installs nothing, and tells an empty message with descriptors from the end. */
START_TEST(a_look_leaves_the_message_and_its_descriptors)
{
    struct msghdr empty = {.msg_iovlen = 0};
    bool has_fds;

    ck_assert_int_eq(hvi_packet_peek(pair[1], &packet, &has_fds), HVI_ERR_TIMEOUT);
    ck_assert_int_eq(hvi_packet_send(pair[0], "ab", 2, NULL, 0, soon()), HVI_OK);
    ck_assert_int_eq(hvi_packet_send(pair[0], "c", 1, &pair[0], 1, soon()), HVI_OK);
    ck_assert_int_eq(hvi_packet_peek(pair[1], &packet, &has_fds), HVI_OK);
    ck_assert_uint_eq(packet.length, 2);
    ck_assert(!has_fds);
    ck_assert_int_eq(hvi_packet_peek(pair[1], &packet, &has_fds), HVI_OK);
    ck_assert_uint_eq(packet.length, 2);
    hvi_packet_drop(pair[1]);
    ck_assert_int_eq(hvi_packet_peek(pair[1], &packet, &has_fds), HVI_OK);
    ck_assert_uint_eq(packet.length, 1);
    ck_assert_uint_eq(packet.fd_count, 0);
    ck_assert(has_fds);
    ck_assert_int_eq(hvi_packet_receive(pair[1], &packet, soon()), HVI_OK);
    ck_assert_uint_eq(packet.fd_count, 1);
    hvi_packet_close_fds(&packet);
    ck_assert_int_eq(sendmsg(pair[0], &empty, 0), 0);
    ck_assert_int_eq(hvi_packet_peek(pair[1], &packet, &has_fds), HVI_ERR_CLOSED);
    ck_assert(!has_fds);
    hvi_packet_drop(pair[1]);
    ck_assert_int_eq(hvi_packet_peek(pair[1], &packet, &has_fds), HVI_ERR_TIMEOUT);
}
END_TEST

static void add_plain(TCase *tcase)
{
    tcase_add_test(tcase, bytes_arrive);
    tcase_add_test(tcase, borders_are_kept);
    tcase_add_test(tcase, descriptors_arrive);
    tcase_add_test(tcase, taken_descriptors_stay_open);
    tcase_add_test(tcase, bad_sends_are_refused);
    tcase_add_test(tcase, small_socket_buffer_refuses_large_packet);
    tcase_add_test(tcase, closed_peer_is_seen);
    tcase_add_test(tcase, last_words_are_read);
    tcase_add_test(tcase, last_words_of_a_peer_that_has_not_read_ours_are_read);
    tcase_add_test(tcase, a_look_leaves_the_message_and_its_descriptors);
    tcase_add_test(tcase, descriptors_come_only_where_they_are_let_in);
    tcase_add_test(tcase, not_a_socket);
    tcase_add_test(tcase, receive_has_a_deadline);
    tcase_add_test(tcase, full_socket_times_out);
    tcase_add_test(tcase, full_socket_waits_for_room);
    tcase_add_test(tcase, signals_do_not_end_the_wait);
}

static void add_hostile(TCase *tcase)
{
    tcase_add_test(tcase, too_long_is_refused);
    tcase_add_test(tcase, too_many_descriptors_are_refused);
    tcase_add_test(tcase, empty_message_with_descriptors);
    tcase_add_test(tcase, descriptors_cut_by_the_kernel);
}

int main(void)
{
    Suite *suite = suite_create("packet");
    TCase *tcase = tcase_create("packet");
    tcase_add_checked_fixture(tcase, setup, teardown);
    add_plain(tcase);
    add_hostile(tcase);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
