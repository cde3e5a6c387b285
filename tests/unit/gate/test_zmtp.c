/* SPDX-License-Identifier: Apache-2.0
 * What libzmq's peers send, in pieces of every size, and what they never send. */
#include "base/status.h"
#include "daemon/gate/zmtp.h"
#include "tests/unit/hvt_main.h"

#include <stdio.h>
#include <string.h>

#define ZEROS    "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"
#define GREETING "\xff\0\0\0\0\0\0\0\1\x7f\x03\x01NULL" ZEROS ZEROS ZEROS
#define READY                                                                                      \
    "\x04\x1c\x05READY\x0bSocket-Type\0\0\0\x06"                                                   \
    "DEALER"
#define LENGTH(text) (sizeof(text) - 1)

_Static_assert(LENGTH(GREETING) == 64, "a greeting has 64 bytes");

static struct gate_zmtp zmtp;
static struct gate_zmtp_message message;
/* What came of the last feed: each message as "D" if it has a delimiter, "!" if it is not whole, its body and ";". */
static char seen[4096];

static void setup(void)
{
    memset(&zmtp, 0, sizeof(zmtp));
    seen[0] = '\0';
}

static void teardown(void)
{
    gate_zmtp_fini(&zmtp);
}

static void note(void)
{
    size_t used = strlen(seen);

    snprintf(seen + used, sizeof(seen) - used, "%s%s%.*s;", message.delimiter ? "D" : "",
             message.whole ? "" : "!", (int)message.length, (const char *)message.body);
}

/* Feeds `bytes` in pieces of at most `piece`; the last status. */
static int feed(const void *bytes, size_t length, size_t piece)
{
    const unsigned char *at = bytes;
    int status = HVI_INPROGRESS;

    while (length > 0 && status == HVI_INPROGRESS) {
        size_t room, now = length < piece ? length : piece;
        unsigned char *into = gate_zmtp_room(&zmtp, &room);
        ck_assert_ptr_nonnull(into);
        ck_assert_uint_gt(room, 0);
        if (now > room)
            now = room;
        memcpy(into, at, now);
        gate_zmtp_filled(&zmtp, now);
        at += now;
        length -= now;
        while ((status = gate_zmtp_next(&zmtp, &message)) == HVI_OK)
            note();
    }
    return status;
}

static void shake_hands(void)
{
    ck_assert_int_eq(feed(GREETING READY, LENGTH(GREETING) + LENGTH(READY), 4096), HVI_INPROGRESS);
    ck_assert_int_eq(zmtp.stage, GATE_ZMTP_MESSAGES);
}

#define FEED(text) feed(text, LENGTH(text), 4096)

START_TEST(messages_come_whole_in_pieces_of_any_size)
{
    static const char talk[] = GREETING READY "\x01\x00\x00\x03one"  /* REQ */
                                              "\x00\x03two"          /* DEALER */
                                              "\x04\x09\x04PINGabcd" /* a command between */
                                              "\x03\0\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x05three"
                                              "\x00\x00" /* an empty body */
                                              "\x01\x00\x00\x00"
                                              "\x01\x00\x01\x01x\x00\x01y" /* two bodies */
                                              "\x01\x01p\x01\x00\x00\x00"
                                              "\x00\x04"
                                              "last";
    for (size_t piece = 1; piece <= sizeof(talk); piece++) {
        gate_zmtp_fini(&zmtp);
        seen[0] = '\0';
        ck_assert_int_eq(feed(talk, LENGTH(talk), piece), HVI_INPROGRESS);
        ck_assert_str_eq(seen, "Done;two;Dthree;;D;D!;!;last;");
    }
}
END_TEST

START_TEST(a_connection_that_waits_holds_no_memory)
{
    size_t room;

    shake_hands();
    ck_assert_int_eq(FEED("\x00\x03"
                          "one"),
                     HVI_INPROGRESS);
    gate_zmtp_room(&zmtp, &room);
    ck_assert_uint_le(room, 1024);
}
END_TEST

START_TEST(the_largest_frame_fits_and_a_larger_one_is_an_error)
{
    static unsigned char frame[9 + GATE_ZMTP_BODY_MAX] = {2, 0, 0, 0, 0, 0, 1, 0, 0};
    static const char larger[] = "\x02\0\0\0\0\0\x01\0\x01";
    static const char huge[] = "\x02\xff\xff\xff\xff\xff\xff\xff\xff";

    shake_hands();
    for (size_t piece = 1000; piece < sizeof(frame); piece *= 3)
        ck_assert_int_eq(feed(frame, sizeof(frame), piece), HVI_INPROGRESS);
    ck_assert_str_eq(seen, ";;;;"); /* zeros */
    ck_assert_uint_eq(message.length, GATE_ZMTP_BODY_MAX);
    ck_assert_uint_le(zmtp.room, sizeof(frame));
    ck_assert_int_eq(FEED(larger), HVI_ERR_PROTOCOL);
    gate_zmtp_fini(&zmtp);
    shake_hands();
    ck_assert_int_eq(FEED(huge), HVI_ERR_PROTOCOL);
}
END_TEST

static const struct {
    const char *title, *bytes;
    size_t length;
} wrong[] = {
#define WRONG(title, bytes)                                                                        \
    {                                                                                              \
        title, bytes, LENGTH(bytes)                                                                \
    }
    WRONG("HTTP", "GET / HTTP/1.1\r\n"),
    WRONG("ZMTP 1", "\x01\x00"),
    WRONG("a signature without its end",
          "\xff\0\0\0\0\0\0\0\1\x7e\x03"
          "123456789012345678901234567890123456789012345678901234567890"),
    WRONG("ZMTP 2", "\xff\0\0\0\0\0\0\0\1\x7f\x01"
                    "123456789012345678901234567890123456789012345678901234567890"),
    WRONG("CURVE", "\xff\0\0\0\0\0\0\0\1\x7f\x03\x01"
                   "CURVE78901234567890123456789012345678901234567890123456789"),
    WRONG("a message before READY", GREETING "\x00\x03one"),
    WRONG("another command", GREETING "\x04\x06\x05HELLO"),
    WRONG("a short command", GREETING "\x04\x01\x05"),
    WRONG("flags that do not exist", GREETING READY "\x08\x00"),
};

START_TEST(what_is_no_zmtp_3_is_an_error)
{
    for (size_t piece = 1; piece < 100; piece++) {
        gate_zmtp_fini(&zmtp);
        ck_assert_msg(feed(wrong[_i].bytes, wrong[_i].length, piece) == HVI_ERR_PROTOCOL, "%s",
                      wrong[_i].title);
    }
    ck_assert_str_eq(seen, "");
}
END_TEST

START_TEST(hvdd_says_what_its_own_rules_accept)
{
    unsigned char head[GATE_ZMTP_HEAD_MAX];

    ck_assert_int_eq(feed(gate_zmtp_hello, gate_zmtp_hello_bytes, 7), HVI_INPROGRESS);
    ck_assert_int_eq(zmtp.stage, GATE_ZMTP_MESSAGES);
    ck_assert_int_eq(feed(head, gate_zmtp_head(true, 5, head), 3), HVI_INPROGRESS);
    ck_assert_int_eq(FEED("reply"), HVI_INPROGRESS);
    ck_assert_int_eq(feed(head, gate_zmtp_head(false, 0, head), 3), HVI_INPROGRESS);
    ck_assert_str_eq(seen, "Dreply;;");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("node zmtp");
    TCase *tcase = tcase_create("zmtp");

    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, messages_come_whole_in_pieces_of_any_size);
    tcase_add_test(tcase, a_connection_that_waits_holds_no_memory);
    tcase_add_test(tcase, the_largest_frame_fits_and_a_larger_one_is_an_error);
    tcase_add_loop_test(tcase, what_is_no_zmtp_3_is_an_error, 0,
                        (int)(sizeof(wrong) / sizeof(wrong[0])));
    tcase_add_test(tcase, hvdd_says_what_its_own_rules_accept);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
