/* SPDX-License-Identifier: Apache-2.0
 * The messages between hvdrun and its agents: what was sent arrives, and what makes no sense is
 * refused on both sides with the field's name. */
#include "base/status.h"
#include "tests/unit/hvt_main.h"
#include "tests/unit/proto/launch_samples.h"

#include <stdlib.h>
#include <string.h>

static struct hvi_launch_msg msg;
static char text[512];

static unsigned char *encode(const struct hvi_launch_msg *from, size_t *bytes_p)
{
    unsigned char *frame = NULL;
    ck_assert_int_eq(hvi_launch_encode(from, &frame, bytes_p), HVI_OK);
    ck_assert_uint_eq(hvi_launch_frame_bytes(frame), *bytes_p - HVI_LAUNCH_FRAME_HEAD);
    return frame;
}

START_TEST(every_message_arrives_as_it_was_sent)
{
    struct hvi_launch_msg sent;
    size_t bytes;
    size_t again_bytes;
    hvt_launch_sample((unsigned)_i, &sent);
    unsigned char *frame = encode(&sent, &bytes);
    ck_assert_msg(hvi_launch_decode(frame + HVI_LAUNCH_FRAME_HEAD, bytes - HVI_LAUNCH_FRAME_HEAD,
                                    &msg, text, sizeof text) == HVI_OK,
                  "%s", text);
    ck_assert_int_eq((int)msg.kind, (int)sent.kind);
    unsigned char *again = encode(&msg, &again_bytes);
    ck_assert_uint_eq(again_bytes, bytes);
    ck_assert_mem_eq(again, frame, bytes);
    hvi_launch_msg_free(&msg);
    free(frame);
    free(again);
}
END_TEST

START_TEST(a_message_that_is_cut_is_refused)
{
    size_t bytes;
    hvt_launch_sample(11, &msg);
    unsigned char *frame = encode(&msg, &bytes);
    for (size_t length = 0; length < bytes - HVI_LAUNCH_FRAME_HEAD; length++) {
        text[0] = '\0';
        ck_assert_int_eq(
            hvi_launch_decode(frame + HVI_LAUNCH_FRAME_HEAD, length, &msg, text, sizeof text),
            HVI_ERR_PROTOCOL);
        ck_assert_msg(text[0] != '\0', "%zu bytes are refused without a word", length);
    }
    free(frame);
}
END_TEST

START_TEST(a_start_has_what_was_said)
{
    size_t bytes;
    hvt_launch_sample(11, &msg);
    unsigned char *frame = encode(&msg, &bytes);
    memset(&msg, 0, sizeof msg);
    ck_assert_int_eq(hvi_launch_decode(frame + HVI_LAUNCH_FRAME_HEAD, bytes - HVI_LAUNCH_FRAME_HEAD,
                                       &msg, text, sizeof text),
                     HVI_OK);
    ck_assert_str_eq(msg.start.job, "hvdrun-0123456789abcdef");
    ck_assert_str_eq((char *)msg.start.command, "python3");
    ck_assert_str_eq((char *)msg.start.command + 8, "train.py");
    ck_assert_uint_eq(msg.start.rank_count, 2);
    ck_assert_int_eq(msg.start.ranks[1].rank, 3);
    ck_assert(msg.start.bind_to_core && msg.start.gpu_mps &&
              msg.start.start_timeout_ns == UINT64_MAX);
    ck_assert(msg.start.ranks_before == 1 && msg.start.ranks_there == 3);
    ck_assert(msg.start.compat && strcmp(msg.start.host, "h1") == 0);
    hvi_launch_msg_free(&msg);
    free(frame);
}
END_TEST

/* What a change to the full start message makes of it. */
static void expect_refused(const char *what)
{
    unsigned char *frame = NULL;
    size_t bytes;
    const int status = hvi_launch_encode(&msg, &frame, &bytes);
    free(frame);
    ck_assert_msg(status == HVI_ERR_INVALID, "%s is sent", what);
}

#define EXPECT_REFUSED(change)                                                                     \
    do {                                                                                           \
        hvt_launch_sample(11, &msg);                                                               \
        change;                                                                                    \
        expect_refused(#change);                                                                   \
    } while (0)

START_TEST(what_makes_no_sense_is_not_sent)
{
    struct hvi_launch_rank ranks[] = {{2, 0, 1}, {4, 0, 1}};
    struct hvi_launch_rank cross[] = {{2, 2, 2}};
    EXPECT_REFUSED(msg.start.rank_count = 0);
    EXPECT_REFUSED(msg.start.size = 3);
    EXPECT_REFUSED(msg.start.size = 0);
    EXPECT_REFUSED(msg.start.ranks = ranks);
    EXPECT_REFUSED((msg.start.ranks = cross, msg.start.rank_count = 1));
    EXPECT_REFUSED(msg.start.command_bytes = 0);
    EXPECT_REFUSED(msg.start.command_bytes -= 1);
    EXPECT_REFUSED((msg.start.command = (unsigned char *)"\0a", msg.start.command_bytes = 3));
    EXPECT_REFUSED(msg.start.environment_bytes -= 1);
    EXPECT_REFUSED(
        (msg.start.environment = (unsigned char *)"=x", msg.start.environment_bytes = 3));
    EXPECT_REFUSED((msg.start.environment = (unsigned char *)"x", msg.start.environment_bytes = 2));
    EXPECT_REFUSED(msg.start.exports = 2);
    EXPECT_REFUSED(msg.start.exports = 3);
    EXPECT_REFUSED(msg.start.ranks_there = 2);
    EXPECT_REFUSED(msg.start.ranks_before = 2);
    EXPECT_REFUSED(msg.start.settings_bytes = 0);
    EXPECT_REFUSED(msg.start.directory[0] = '\0');
    EXPECT_REFUSED(strcpy(msg.start.directory, "/\xe9"));
    EXPECT_REFUSED(strcpy(msg.start.job, "a b"));
    EXPECT_REFUSED(msg.start.job_key[0] = '\0');
    EXPECT_REFUSED(msg.kind = HVI_LAUNCH_KIND_END);
    EXPECT_REFUSED(msg.kind = (enum hvi_launch_kind)19);
    hvt_launch_sample(7, &msg);
    msg.exited.exit_count = 0;
    expect_refused("no exits");
    hvt_launch_sample(4, &msg);
    msg.data.stream = 4;
    expect_refused("a fourth stream");
    msg.data.stream = 1;
    msg.data.bytes = 0;
    expect_refused("no bytes");
    hvt_launch_sample(8, &msg);
    msg.text.code = 0;
    expect_refused("a failure with code 0");
    hvt_launch_sample(26, &msg);
    msg.pass.stream = 3;
    expect_refused("a third stream of a process");
    hvt_launch_sample(29, &msg);
    msg.open.command_bytes--;
    expect_refused("a command whose last word has no end");
}
END_TEST

START_TEST(a_bad_field_is_named)
{
    size_t bytes;
    hvt_launch_sample(11, &msg);
    unsigned char *frame = encode(&msg, &bytes);
    unsigned char *word = memmem(frame, bytes, "EMPTY=", 6);
    ck_assert_ptr_nonnull(word);
    word[5] = 'X';
    ck_assert_int_eq(hvi_launch_decode(frame + HVI_LAUNCH_FRAME_HEAD, bytes - HVI_LAUNCH_FRAME_HEAD,
                                       &msg, text, sizeof text),
                     HVI_ERR_PROTOCOL);
    ck_assert_str_eq(text, "start.environment: a string without NAME=");
    free(frame);
}
END_TEST

START_TEST(a_greeting_of_another_version_is_understood)
{
    /* launch_version 9, version "9", machine "m", and a field that is not known here */
    static const unsigned char later[] = {0x0a, 0x0b, 0x08, 9,    0x12, 1,   '9',
                                          0x1a, 1,    'm',  0x98, 0x06, 0x01};
    ck_assert_msg(hvi_launch_decode(later, sizeof later, &msg, text, sizeof text) == HVI_OK, "%s",
                  text);
    ck_assert_int_eq((int)msg.kind, HVI_LAUNCH_HELLO);
    ck_assert_uint_eq(msg.hello.launch_version, 9);
    ck_assert_str_eq(msg.hello.version, "9");
    hvi_launch_msg_free(&msg);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("proto/launch");
    TCase *tests = tcase_create("launch");
    tcase_add_loop_test(tests, every_message_arrives_as_it_was_sent, 0, HVT_LAUNCH_SAMPLES);
    tcase_add_test(tests, a_message_that_is_cut_is_refused);
    tcase_add_test(tests, a_start_has_what_was_said);
    tcase_add_test(tests, what_makes_no_sense_is_not_sent);
    tcase_add_test(tests, a_bad_field_is_named);
    tcase_add_test(tests, a_greeting_of_another_version_is_understood);
    suite_add_tcase(suite, tests);
    return hvt_run_suite(suite);
}
