/* SPDX-License-Identifier: Apache-2.0
 * The gate's socket to hvdd, with the test as hvdd: what it does not read at once, what it may not say, its end. */
#include "daemon/gate/gate.h"

#include "base/status.h"
#include "tests/unit/hvt_log.h"
#include "tests/unit/hvt_main.h"

#include <sys/socket.h>

#define MESSAGES 3000u
#define PART     16384u

static struct gate gate;
static int hvdd;
static struct hvi_packet packet;

static void setup(void)
{
    int ends[2];

    hvt_log_open();
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    hvdd = ends[0];
    gate.link_fd = ends[1];
    ck_assert_int_ge(sd_event_new(&gate.event), 0);
}

static void teardown(void)
{
    gate_link_close(&gate);
    sd_event_unref(gate.event);
    close(hvdd);
}

static void open_link(void)
{
    ck_assert_int_eq(gate_link_open(&gate), HVI_OK);
}

static void say(const struct hvi_gate_msg *msg)
{
    static unsigned char bytes[HVI_PACKET_BYTES_MAX];
    size_t length;

    ck_assert_int_eq(hvi_gate_msg_encode(msg, bytes, sizeof(bytes), &length), HVI_OK);
    ck_assert_int_eq(hvi_packet_send(hvdd, bytes, length, NULL, 0, 0), HVI_OK);
}

static void turn(void)
{
    ck_assert_int_ge(sd_event_run(gate.event, 5000), 0);
}

/* The gate's loop has ended with that status. */
static void check_ended(int status)
{
    int code;

    for (int i = 0; i < 100 && sd_event_get_state(gate.event) != SD_EVENT_FINISHED; i++)
        turn();
    ck_assert_int_eq(sd_event_get_state(gate.event), SD_EVENT_FINISHED);
    ck_assert_int_eq(sd_event_get_exit_code(gate.event, &code), 0);
    ck_assert_int_eq(code, status);
}

/* A question whose ticket is `number`. */
static void ask(uint64_t number)
{
    static unsigned char body[PART];
    const struct hvi_gate_msg msg = {
        .kind = HVI_GATE_ASK,
        .ask = {.ticket = number, .request = body, .request_bytes = sizeof(body)}};

    gate_link_send(&gate, &msg);
}

static uint64_t hear_ticket(void)
{
    uint64_t end = hvi_deadline_after(10 * (int64_t)HVI_NS_SEC), ticket;
    struct hvi_gate_msg msg;
    int status;

    while ((status = hvi_packet_receive(hvdd, &packet, 0)) == HVI_ERR_TIMEOUT) {
        ck_assert(!hvi_deadline_passed(end));
        turn();
    }
    ck_assert_int_eq(status, HVI_OK);
    ck_assert_int_eq(hvi_gate_msg_decode(packet.bytes, packet.length, &msg, NULL, 0), HVI_OK);
    ck_assert_int_eq(msg.kind, HVI_GATE_ASK);
    ck_assert_uint_eq(msg.ask.request_bytes, PART);
    ticket = msg.ask.ticket;
    hvi_gate_msg_free(&msg);
    return ticket;
}

START_TEST(what_hvdd_does_not_read_waits_and_comes_in_order)
{
    open_link();
    for (uint64_t i = 0; i < MESSAGES / 2; i++)
        ask(i);
    ck_assert_uint_gt(gate.outbox_bytes, 0); /* the kernel takes less */
    for (uint64_t i = 0; i < MESSAGES / 2; i++)
        ck_assert_uint_eq(hear_ticket(), i);
    turn();
    ck_assert_uint_eq(gate.outbox_bytes, 0);
    ask(MESSAGES);
    ck_assert_uint_eq(hear_ticket(), MESSAGES);
}
END_TEST

START_TEST(a_gate_whose_hvdd_never_reads_ends_before_it_has_used_up_the_memory)
{
    open_link();
    for (uint64_t i = 0; i < MESSAGES; i++)
        ask(i);
    ck_assert_int_ge(hvt_log_count("the gate has no room to queue what hvdd has to be told"), 1);
    ck_assert_uint_le(gate.outbox_bytes, 32u << 20);
    check_ended(1);
}
END_TEST

START_TEST(hvdd_may_not_say_what_a_gate_says)
{
    const struct hvi_gate_msg msg = {.kind = HVI_GATE_STATE};

    open_link();
    say(&msg);
    check_ended(1);
    ck_assert_int_eq(hvt_log_count("hvdd sent what it may not send"), 1);
}
END_TEST

START_TEST(bytes_that_are_no_message_and_descriptors_that_nobody_asked_for_end_it)
{
    const struct hvi_gate_msg beat = {.kind = HVI_GATE_BEAT};
    unsigned char bytes[64];
    size_t length;

    open_link();
    if (_i == 0) {
        ck_assert_int_eq(hvi_packet_send(hvdd, (const unsigned char *)"\x0f\x7f", 2, NULL, 0, 0),
                         HVI_OK);
    } else {
        ck_assert_int_eq(hvi_gate_msg_encode(&beat, bytes, sizeof(bytes), &length), HVI_OK);
        ck_assert_int_eq(hvi_packet_send(hvdd, bytes, length, &hvdd, 1, 0), HVI_OK);
    }
    check_ended(1);
    ck_assert_int_eq(hvt_log_count("hvdd sent what cannot be read"), 1);
}
END_TEST

START_TEST(a_beat_is_answered_and_with_hvdd_the_gate_ends)
{
    const struct hvi_gate_msg beat = {.kind = HVI_GATE_BEAT};
    struct hvi_gate_msg msg;

    open_link();
    say(&beat);
    while (hvi_packet_receive(hvdd, &packet, 0) == HVI_ERR_TIMEOUT)
        turn();
    ck_assert_int_eq(hvi_gate_msg_decode(packet.bytes, packet.length, &msg, NULL, 0), HVI_OK);
    ck_assert_int_eq(msg.kind, HVI_GATE_BEAT);
    shutdown(hvdd, SHUT_RDWR);
    check_ended(0);
}
END_TEST

START_TEST(a_first_message_that_is_no_start_is_said)
{
    const struct hvi_gate_msg beat = {.kind = HVI_GATE_BEAT};
    int listen_fds[2] = {-1, -1};

    say(&beat);
    ck_assert_int_eq(gate_link_start(&gate, gate.link_fd, listen_fds), HVI_ERR_PROTOCOL);
    ck_assert_int_eq(hvt_log_count("hvdd's first message is no GateStart"), 1);
    shutdown(hvdd, SHUT_RDWR);
    ck_assert_int_eq(gate_link_start(&gate, gate.link_fd, listen_fds), HVI_ERR_CLOSED);
    ck_assert_int_eq(listen_fds[0], -1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("gate link");
    TCase *tcase = tcase_create("link");

    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, what_hvdd_does_not_read_waits_and_comes_in_order);
    tcase_add_test(tcase, a_gate_whose_hvdd_never_reads_ends_before_it_has_used_up_the_memory);
    tcase_add_test(tcase, hvdd_may_not_say_what_a_gate_says);
    tcase_add_loop_test(
        tcase, bytes_that_are_no_message_and_descriptors_that_nobody_asked_for_end_it, 0, 2);
    tcase_add_test(tcase, a_beat_is_answered_and_with_hvdd_the_gate_ends);
    tcase_add_test(tcase, a_first_message_that_is_no_start_is_said);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
