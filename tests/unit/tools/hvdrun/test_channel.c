/* SPDX-License-Identifier: Apache-2.0
 * The conversation with an agent: whole messages in their order however the bytes come, noise before
 * the mark, and bytes that make no sense. */
#include "tools/hvdrun/link.h"

#include "base/status.h"
#include "tests/unit/hvt_main.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

static struct run_channel channel;
static int peer; /* the other end */
static char text[256];
static char seen[256];
static bool refuse;

static void open_channel(bool marked)
{
    int fds[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    memset(&channel, 0, sizeof channel);
    channel.fd = dup(fds[0]);
    channel.marked = marked;
    run_sink_init_own(&channel.out, fds[0]);
    peer = fds[1];
    seen[0] = text[0] = '\0';
    refuse = false;
}

static void close_channel(void)
{
    run_channel_fini(&channel);
    close(peer);
}

static bool take(void *context, struct hvi_launch_msg *msg, char *text_p, size_t text_size)
{
    ck_assert_ptr_eq(context, &channel);
    snprintf(seen + strlen(seen), sizeof seen - strlen(seen), "%d ", (int)msg->kind);
    if (refuse)
        snprintf(text_p, text_size, "no");
    return !refuse;
}

static enum run_channel_state read_once(void)
{
    return run_channel_read(&channel, take, &channel, text, sizeof text);
}

/* A say and an end, as bytes. */
static size_t make_bytes(unsigned char *bytes_p)
{
    struct hvi_launch_msg msgs[] = {{.kind = HVI_LAUNCH_SAY}, {.kind = HVI_LAUNCH_END}};
    size_t used = 0;
    strcpy(msgs[0].text.text, "a sentence");
    for (size_t i = 0; i < 2; i++) {
        unsigned char *frame;
        size_t bytes;
        ck_assert_int_eq(hvi_launch_encode(&msgs[i], &frame, &bytes), HVI_OK);
        memcpy(bytes_p + used, frame, bytes);
        used += bytes;
        free(frame);
    }
    return used;
}

START_TEST(messages_come_whole_however_they_are_cut)
{
    unsigned char bytes[256];
    const size_t length = make_bytes(bytes);
    open_channel(true);
    ck_assert_int_eq((int)send(peer, bytes, length, 0), (int)length);
    ck_assert_int_eq((int)read_once(), RUN_CHANNEL_OPEN);
    ck_assert_str_eq(seen, "6 26 ");
    seen[0] = '\0';
    for (size_t i = 0; i < length; i++) {
        ck_assert_int_eq((int)send(peer, bytes + i, 1, 0), 1);
        ck_assert_int_eq((int)read_once(), RUN_CHANNEL_OPEN);
    }
    ck_assert_str_eq(seen, "6 26 ");
    close_channel();
}
END_TEST

START_TEST(noise_before_the_mark_is_dropped)
{
    static const char noise[] = "Welcome!\nhvdrun --node\n\nhvdrun --node speaks";
    unsigned char bytes[256];
    const size_t length = make_bytes(bytes);
    open_channel(false);
    send(peer, noise, sizeof noise - 1, 0);
    ck_assert_int_eq((int)read_once(), RUN_CHANNEL_OPEN);
    send(peer, HVI_LAUNCH_MARK, strlen(HVI_LAUNCH_MARK), 0);
    send(peer, bytes, length, 0);
    ck_assert_int_eq((int)read_once(), RUN_CHANNEL_OPEN);
    ck_assert_str_eq(seen, "6 26 ");
    close_channel();
}
END_TEST

START_TEST(noise_without_end_is_given_up)
{
    static char noise[16 * 1024];
    enum run_channel_state state = RUN_CHANNEL_OPEN;
    memset(noise, 'x', sizeof noise);
    open_channel(false);
    for (int i = 0; i < 64 && state == RUN_CHANNEL_OPEN; i++) {
        ck_assert_int_gt((int)send(peer, noise, sizeof noise, 0), 0);
        state = read_once();
    }
    ck_assert_int_eq((int)state, RUN_CHANNEL_BROKEN);
    ck_assert_str_eq(text, "what the login shell prints has no end");
    close_channel();
}
END_TEST

START_TEST(a_length_without_bounds_is_refused_at_once)
{
    static const unsigned char head[] = {0xff, 0xff, 0xff, 0xff};
    open_channel(true);
    send(peer, head, sizeof head, 0);
    ck_assert_int_eq((int)read_once(), RUN_CHANNEL_BROKEN);
    ck_assert_msg(strstr(text, "4294967295 bytes, at most") != NULL, "%s", text);
    close_channel();
}
END_TEST

START_TEST(bytes_that_are_no_message_are_refused)
{
    static const unsigned char junk[] = {0, 0, 0, 3, 0xff, 0xff, 0xff};
    open_channel(true);
    send(peer, junk, sizeof junk, 0);
    ck_assert_int_eq((int)read_once(), RUN_CHANNEL_BROKEN);
    ck_assert_str_ne(text, "");
    ck_assert_str_eq(seen, "");
    close_channel();
}
END_TEST

START_TEST(what_is_not_taken_ends_the_reading)
{
    unsigned char bytes[256];
    const size_t length = make_bytes(bytes);
    open_channel(true);
    refuse = true;
    send(peer, bytes, length, 0);
    ck_assert_int_eq((int)read_once(), RUN_CHANNEL_BROKEN);
    ck_assert_str_eq(seen, "6 ");
    ck_assert_str_eq(text, "no");
    close_channel();
}
END_TEST

START_TEST(the_end_is_seen_and_sending_afterwards_is_harmless)
{
    const struct hvi_launch_msg msg = {.kind = HVI_LAUNCH_END};
    open_channel(true);
    shutdown(peer, SHUT_WR);
    ck_assert_int_eq((int)read_once(), RUN_CHANNEL_END);
    close(peer);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(run_channel_send(&channel, &msg), HVI_OK);
    ck_assert(channel.out.error != 0);
    run_channel_fini(&channel);
    ck_assert_int_eq(run_channel_send(&channel, &msg), HVI_OK);
}
END_TEST

static void never_mind(void *context, uint32_t number, bool kill)
{
    (void)context, (void)number, (void)kill;
}

/* Nothing of a host behind a relay is read here: what the relay passes on counts. */
START_TEST(a_host_behind_a_relay_is_heard_until_the_link_is_closed)
{
    const struct run_host host = {.name = "h2"};
    const struct run_link_way way = {.hang_up = never_mind};
    struct run_sink sink;
    struct run_link link;
    run_sink_init(&sink, STDERR_FILENO);
    run_link_init(&link, NULL, NULL, &host, &sink);
    ck_assert(!run_link_is_heard(&link));
    link.state = RUN_LINK_OPEN;
    ck_assert(!run_link_is_heard(&link));
    link.way = &way;
    ck_assert(run_link_is_heard(&link));
    run_link_feed(&link, 2, "a warning", 9);
    ck_assert_uint_eq(link.heard_ns, 0);
    run_link_feed(&link, 1, "noise", 5);
    ck_assert_uint_ne(link.heard_ns, 0);
    run_link_close(&link, 0);
    ck_assert(!run_link_is_heard(&link));
    run_link_fini(&link);
    run_sink_fini(&sink);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tools/hvdrun/channel");
    TCase *tests = tcase_create("channel");
    signal(SIGPIPE, SIG_IGN);
    tcase_add_test(tests, messages_come_whole_however_they_are_cut);
    tcase_add_test(tests, noise_before_the_mark_is_dropped);
    tcase_add_test(tests, noise_without_end_is_given_up);
    tcase_add_test(tests, a_length_without_bounds_is_refused_at_once);
    tcase_add_test(tests, bytes_that_are_no_message_are_refused);
    tcase_add_test(tests, what_is_not_taken_ends_the_reading);
    tcase_add_test(tests, the_end_is_seen_and_sending_afterwards_is_harmless);
    tcase_add_test(tests, a_host_behind_a_relay_is_heard_until_the_link_is_closed);
    suite_add_tcase(suite, tests);
    return hvt_run_suite(suite);
}
