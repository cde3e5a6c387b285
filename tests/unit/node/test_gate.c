/* SPDX-License-Identifier: Apache-2.0
 * What hvdd's gate is told of events. The test is the gate. */
#include "base/status.h"
#include "daemon/node/node.h"
#include "proto/gate.h"
#include "tests/unit/hvt_main.h"

#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

static struct node node;
static struct node_generation *generation;
static int link_fd;

static int on_link(sd_event_source *source, int fd, uint32_t events, void *user)
{
    (void)source, (void)fd, (void)events, (void)user;
    return 0;
}

static void set_up(void)
{
    int link[2];

    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, link),
                     0);
    node.gate.link_fd = link[0];
    link_fd = link[1];
    ck_assert_int_ge(sd_event_new(&node.event), 0);
    ck_assert_int_ge(
        sd_event_add_io(node.event, &node.gate.io, node.gate.link_fd, EPOLLIN, on_link, NULL), 0);
    ck_assert_int_eq(node_generation_new(&node.jobs, "a", 1000, "", 1, 1, 0, &generation), HVI_OK);
}

static void tear_down(void)
{
    node_generation_end(&node.jobs, generation, "test");
    sd_event_source_disable_unref(node.gate.io);
    sd_event_unref(node.event);
    close(node.gate.link_fd);
    close(link_fd);
}

static void stall(int times)
{
    for (int i = 0; i < times; i++)
        node_gate_event(&node, HVI_EVENT_STALL, generation, -1, 0, "w waits");
}

/* The next event. False: none is there. */
static bool next_event(struct hvi_event_row *row_p)
{
    static struct hvi_packet packet;
    struct hvi_gate_msg msg;
    struct hvi_admin_reply reply;

    if (hvi_packet_receive(link_fd, &packet, 0) != HVI_OK)
        return false;
    ck_assert_int_eq(hvi_gate_msg_decode(packet.bytes, packet.length, &msg, NULL, 0), HVI_OK);
    ck_assert_int_eq(msg.kind, HVI_GATE_EVENT);
    ck_assert_uint_eq(msg.event.uid, 1000);
    ck_assert_int_eq(
        hvi_admin_reply_decode(msg.event.reply, msg.event.reply_bytes, &reply, NULL, 0), HVI_OK);
    ck_assert_uint_eq(reply.event_count, 1);
    *row_p = reply.events[0];
    hvi_admin_reply_free(&reply);
    hvi_gate_msg_free(&msg);
    return true;
}

static int read_all(uint32_t kind)
{
    struct hvi_event_row row;
    int count = 0;

    while (next_event(&row))
        count += row.kind == kind;
    return count;
}

START_TEST(a_job_that_stalls_all_the_time_has_a_share_of_events_and_the_rest_is_counted)
{
    struct hvi_event_row row;
    int told = 0;

    for (int i = 0; i < 100; i++) {
        stall(10);
        told += read_all(HVI_EVENT_STALL);
    }
    ck_assert_int_ge(told, 128);
    ck_assert_int_lt(told, 500);
    node_gate_event(&node, HVI_EVENT_GENERATION_ENDED, generation, -1, 0, "over");
    ck_assert(next_event(&row));
    ck_assert_uint_eq(row.kind, HVI_EVENT_LOST);
    ck_assert_uint_gt(row.count, 0);
    ck_assert_str_eq(row.job, "a");
    ck_assert(next_event(&row));
    ck_assert_uint_eq(row.kind, HVI_EVENT_GENERATION_ENDED);
    ck_assert(!next_event(&row));
}
END_TEST

START_TEST(no_stall_waits_for_a_gate_that_does_not_read)
{
    const int small = 1;

    ck_assert_int_eq(setsockopt(node.gate.link_fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof(small)),
                     0);
    while (node.gate.outbox == NULL)
        node_gate_event(&node, HVI_EVENT_RANK_LOST, generation, 0, 1, "rank 0 was killed");
    size_t before = node.gate.outbox_bytes;
    stall(100);
    ck_assert_uint_eq(node.gate.outbox_bytes, before);
    ck_assert_uint_eq(generation->stalls_lost, 100);
    ck_assert(!node.gate.killed);
    for (struct node_outgoing *next; node.gate.outbox != NULL; node.gate.outbox = next) {
        next = node.gate.outbox->next;
        free(node.gate.outbox);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("node_gate");
    TCase *tcase = tcase_create("gate");

    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_test(tcase,
                   a_job_that_stalls_all_the_time_has_a_share_of_events_and_the_rest_is_counted);
    tcase_add_test(tcase, no_stall_waits_for_a_gate_that_does_not_read);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
