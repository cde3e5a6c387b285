/* SPDX-License-Identifier: Apache-2.0
 * Two sealed ports with the test between them, which sees what goes over the wire, and changes it. */
#include "base/pages.h"
#include "base/seal.h"
#include "daemon/engine/exec/net_port.h"
#include "tests/unit/hvt_main.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define HEAD_BYTES 48u
#define BODY_BYTES 100000u
#define WIRE_BYTES (256u * 1024u)

static const struct engine_wire_transport *const transport = &engine_wire_tcp;
static void *sender, *receiver;
static int from_sender, to_receiver; /* the test's ends */
static unsigned char head[HEAD_BYTES], body[BODY_BYTES], got[HEAD_BYTES + BODY_BYTES];
static unsigned char wire[WIRE_BYTES];

/* Its other end is the test's. */
static void *open_port(const struct hvi_seal_keys *keys, int *end_p)
{
    const int room = 1 << 20;
    int ends[2];

    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    for (int i = 0; i < 2; i++)
        setsockopt(ends[i], SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
    *end_p = ends[1];
    void *port = transport->open(NULL, ends[0], keys);
    ck_assert_ptr_nonnull(port);
    return port;
}

static void set_up(void)
{
    struct hvi_seal_keys keys = {.send = "there", .receive = "back"};
    struct hvi_seal_keys others = {.send = "back", .receive = "there"};

    hvi_pages_open();
    sender = open_port(&keys, &from_sender);
    receiver = open_port(&others, &to_receiver);
    memset(head, 0x48, sizeof head);
    for (uint32_t i = 0; i < BODY_BYTES; i++)
        body[i] = (unsigned char)(i % 251);
    memset(got, 0, sizeof got);
}

static void tear_down(void)
{
    transport->close(sender);
    transport->close(receiver);
    close(from_sender);
    close(to_receiver);
    hvi_pages_close();
}

/* What has come from the sender's side. */
static size_t take_wire(void)
{
    ssize_t bytes = read(from_sender, wire, sizeof wire);

    return bytes > 0 ? (size_t)bytes : 0;
}

static void put_wire(const void *bytes, size_t length)
{
    ck_assert_int_eq(write(to_receiver, bytes, length), (ssize_t)length);
    transport->ready(receiver, EPOLLIN);
}

/* A message with its head, to the wire: so many bytes. */
static size_t send_message(uint32_t body_bytes)
{
    size_t length = 0;
    int progress;

    transport->post_send(sender, head, sizeof head, body, body_bytes);
    while ((progress = transport->send(sender)) == ENGINE_WIRE_MOVED)
        ;
    ck_assert_int_eq(progress, ENGINE_WIRE_OVER);
    length = take_wire();
    ck_assert_uint_gt(length, body_bytes);
    return length;
}

/* OVER, WAITS, or an error. */
static int receive(void *to, uint64_t bytes)
{
    int progress;

    transport->post_receive(receiver, to, bytes);
    while ((progress = transport->receive(receiver)) == ENGINE_WIRE_MOVED)
        ;
    return progress;
}

START_TEST(what_is_sent_comes_and_cannot_be_read_on_the_way)
{
    static const uint32_t sizes[] = {0, 1, 100, 8192, 16384, 16385, BODY_BYTES};

    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        size_t length = send_message(sizes[i]);
        ck_assert_ptr_null(memmem(wire, length, head, 16));
        if (sizes[i] >= 100)
            ck_assert_ptr_null(memmem(wire, length, body + 1, 32));
        put_wire(wire, length);
        ck_assert_int_eq(receive(got, sizeof head), ENGINE_WIRE_OVER);
        ck_assert_mem_eq(got, head, sizeof head);
        if (sizes[i] == 0)
            continue;
        ck_assert_int_eq(receive(got, sizes[i]), ENGINE_WIRE_OVER);
        ck_assert_mem_eq(got, body, sizes[i]);
        ck_assert_uint_eq(transport->missing(receiver), 0);
    }
}
END_TEST

START_TEST(what_comes_in_pieces_and_is_wanted_in_other_pieces_is_the_same)
{
    size_t length = send_message(20000);
    uint32_t have = 0;

    for (size_t at = 0; at < length; at += 777) {
        put_wire(wire + at, length - at < 777 ? length - at : 777);
        while (have < HEAD_BYTES + 20000 && receive(got + have, 1) == ENGINE_WIRE_OVER)
            have++;
    }
    ck_assert_uint_eq(have, HEAD_BYTES + 20000);
    ck_assert_mem_eq(got, head, HEAD_BYTES);
    ck_assert_mem_eq(got + HEAD_BYTES, body, 20000);
}
END_TEST

START_TEST(packed_messages_go_before_what_is_posted)
{
    ck_assert(transport->pack(sender, head, sizeof head, body, 10));
    ck_assert(transport->pack(sender, head, sizeof head, NULL, 0));
    ck_assert(transport->packed(sender));
    size_t length = send_message(5);
    ck_assert(!transport->packed(sender));
    put_wire(wire, length);
    ck_assert_int_eq(receive(got, HEAD_BYTES + 10), ENGINE_WIRE_OVER);
    ck_assert_mem_eq(got + HEAD_BYTES, body, 10);
    ck_assert_int_eq(receive(got, HEAD_BYTES), ENGINE_WIRE_OVER);
    ck_assert_int_eq(receive(got, HEAD_BYTES + 5), ENGINE_WIRE_OVER);
    ck_assert_mem_eq(got + HEAD_BYTES, body, 5);
}
END_TEST

/* While the wire takes nothing, what is packed waits and is not lost. */
START_TEST(a_full_socket_waits)
{
    int progress = ENGINE_WIRE_MOVED;

    transport->post_send(sender, head, sizeof head, body, BODY_BYTES);
    for (int i = 0; i < 100 && (progress = transport->send(sender)) != ENGINE_WIRE_WAITS; i++) {
        if (progress == ENGINE_WIRE_OVER)
            transport->post_send(sender, head, sizeof head, body, BODY_BYTES);
    }
    ck_assert_int_eq(progress, ENGINE_WIRE_WAITS);
    uint64_t bytes = 0;
    while (progress != ENGINE_WIRE_OVER) {
        bytes += take_wire();
        transport->ready(sender, EPOLLOUT);
        progress = transport->send(sender);
        ck_assert_int_ge(progress, 0);
    }
    ck_assert_uint_gt(bytes, 0);
}
END_TEST

/* One bit in each of the first records' heads, texts and tags, and of the last. */
START_TEST(a_changed_bit_is_an_error_and_never_a_wrong_number)
{
    size_t length = send_message(1000);
    const size_t at = _i < 200 ? (size_t)_i : length - 1 - (size_t)(_i - 200);
    int status;

    wire[at] ^= (unsigned char)(1u << _i % 8);
    put_wire(wire, length);
    status = receive(got, HEAD_BYTES);
    if (status == ENGINE_WIRE_OVER) {
        ck_assert_mem_eq(got, head, HEAD_BYTES);
        status = receive(got, 1000);
    }
    if (status == ENGINE_WIRE_WAITS) { /* the length is another one: more is awaited */
        put_wire(body, 20000);
        status = receive(got, 1000);
    }
    ck_assert_int_eq(status, -EBADMSG);
}
END_TEST

enum damage { TWICE, SWAPPED, LEFT_OUT, SENT_BACK, CUT, PLAIN, DAMAGES };

/* Two messages without a body: a record each. */
static void damage(enum damage how)
{
    const size_t one = send_message(0);
    unsigned char both[2 * (HEAD_BYTES + HVI_SEAL_EXTRA_BYTES)];

    ck_assert_uint_eq(2 * one, sizeof both);
    memcpy(both, wire, one);
    ck_assert_uint_eq(send_message(0), one);
    memcpy(both + one, wire, one);
    if (how == TWICE || how == CUT)
        put_wire(both, one);
    if (how == TWICE)
        put_wire(both, one);
    if (how == SWAPPED || how == LEFT_OUT)
        put_wire(both + one, one);
    if (how == SWAPPED)
        put_wire(both, one);
    if (how == CUT)
        put_wire(both + one, one - 1);
    if (how == PLAIN)
        put_wire(head, sizeof head);
}

START_TEST(records_that_are_repeated_moved_left_out_or_cut_are_an_error)
{
    damage((enum damage)_i);
    if (_i == SENT_BACK) { /* to the one that has sealed it */
        size_t length = send_message(0);
        ck_assert_int_eq(write(from_sender, wire, length), (ssize_t)length);
        transport->ready(sender, EPOLLIN);
        transport->post_receive(sender, got, HEAD_BYTES);
        ck_assert_int_eq(transport->receive(sender), -EBADMSG);
        return;
    }
    if (_i == TWICE || _i == CUT)
        ck_assert_int_eq(receive(got, HEAD_BYTES), ENGINE_WIRE_OVER);
    if (_i == CUT) {
        ck_assert_int_eq(receive(got, HEAD_BYTES), ENGINE_WIRE_WAITS);
        shutdown(to_receiver, SHUT_WR);
        transport->ready(receiver, EPOLLIN | EPOLLRDHUP);
    }
    ck_assert_int_eq(receive(got, HEAD_BYTES), _i == CUT ? -ECONNRESET : -EBADMSG);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine/net_seal");
    TCase *tcase = tcase_create("net_seal");

    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_test(tcase, what_is_sent_comes_and_cannot_be_read_on_the_way);
    tcase_add_test(tcase, what_comes_in_pieces_and_is_wanted_in_other_pieces_is_the_same);
    tcase_add_test(tcase, packed_messages_go_before_what_is_posted);
    tcase_add_test(tcase, a_full_socket_waits);
    tcase_add_loop_test(tcase, a_changed_bit_is_an_error_and_never_a_wrong_number, 0, 240);
    tcase_add_loop_test(tcase, records_that_are_repeated_moved_left_out_or_cut_are_an_error, 0,
                        DAMAGES);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
