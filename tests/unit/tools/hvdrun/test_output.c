/* SPDX-License-Identifier: Apache-2.0
 * Lines of many streams on one sink: nothing lost, nothing torn. Sinks write into a pipe or a memory file. */
#include "tools/hvdrun/output.h"

#include "base/clock.h"
#include "base/status.h"
#include "tests/unit/hvt_main.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- the prefixer alone ---- */

static struct run_prefix prefix;
static struct run_buffer out;

static void start(const char *stream, bool enabled)
{
    run_buffer_fini(&out);
    run_prefix_init(&prefix, 3, stream, enabled, false);
}

static void feed(const char *bytes)
{
    ck_assert_int_eq(run_prefix_feed(&prefix, bytes, strlen(bytes), &out), HVI_OK);
}

static void expect(const char *golden)
{
    ck_assert_uint_eq(out.used, strlen(golden));
    ck_assert_int_eq(memcmp(out.data + out.start, golden, out.used), 0);
}

START_TEST(each_line_gets_the_prefix_once)
{
    start("stdout", true);
    feed("one\ntwo\n");
    feed("thr");
    feed("ee\n\nfive");
    expect("[3]<stdout>:one\n[3]<stdout>:two\n[3]<stdout>:three\n[3]<stdout>:\n[3]<stdout>:five");
}
END_TEST

START_TEST(nothing_in_nothing_out)
{
    start("stdout", true);
    feed("");
    ck_assert_uint_eq(out.used, 0);
}
END_TEST

START_TEST(a_progress_bar_is_prefixed_at_each_return)
{
    start("stderr", true);
    feed("10%\r20%\r");
    feed("30%\r\nend\n");
    expect("[3]<stderr>:10%\r[3]<stderr>:20%\r[3]<stderr>:30%\r\n[3]<stderr>:end\n");
}
END_TEST

START_TEST(a_line_end_cut_in_two_is_one_line_end)
{
    start("stdout", true);
    feed("a\r");
    feed("\nb\n");
    expect("[3]<stdout>:a\r\n[3]<stdout>:b\n");
}
END_TEST

START_TEST(without_prefix_bytes_pass_as_they_are)
{
    start("stdout", false);
    feed("a\r\n\rb\n\nc");
    expect("a\r\n\rb\n\nc");
}
END_TEST

START_TEST(timestamps_stand_before_the_prefix)
{
    run_buffer_fini(&out);
    run_prefix_init(&prefix, 0, "stdout", true, true);
    feed("x\n");
    const char *end = memmem(out.data, out.used, "[0]<stdout>:x\n", 14);
    ck_assert_ptr_nonnull(end);
    ck_assert_int_eq(end - out.data, 24); /* "Sat Nov 21 10:00:00 2026" */
}
END_TEST

/* Any bytes, cut anywhere: taking the prefixes away gives them back. */
START_TEST(removing_prefixes_gives_the_input_back)
{
    static char input[20000];
    unsigned seed = (unsigned)_i + 1;
    for (size_t i = 0; i < sizeof input; i++) {
        const int die = rand_r(&seed) % 20;
        input[i] = die == 0 ? '\n' : die == 1 ? '\r' : die == 2 ? '\0' : (char)rand_r(&seed);
        if (input[i] == '[') /* so that the prefix is unmistakable */
            input[i] = '(';
    }
    start("stdout", true);
    for (size_t at = 0; at < sizeof input;) {
        size_t part = (size_t)rand_r(&seed) % 300;
        part = part < sizeof input - at ? part : sizeof input - at;
        ck_assert_int_eq(run_prefix_feed(&prefix, input + at, part, &out), HVI_OK);
        at += part;
    }
    size_t used = 0;
    size_t wrong = 0;
    for (size_t i = 0; i < out.used && used < sizeof input;) {
        if (out.data[i] == '[') {
            wrong += memcmp(out.data + i, "[3]<stdout>:", 12) != 0;
            i += 12;
        } else {
            wrong += out.data[i++] != input[used++];
        }
    }
    ck_assert_uint_eq(wrong, 0);
    ck_assert_uint_eq(used, sizeof input);
}
END_TEST

START_TEST(many_returns_without_a_newline_take_no_square_time)
{
    static char input[1 << 20];
    memset(input, '\r', sizeof input);
    start("stdout", true);
    const uint64_t start_ns = hvi_clock_ns();
    ck_assert_int_eq(run_prefix_feed(&prefix, input, sizeof input, &out), HVI_OK);
    ck_assert(hvi_clock_ns() - start_ns < 5 * HVI_NS_SEC);
    ck_assert_uint_eq(out.used, sizeof input * 13);
}
END_TEST

/* ---- the buffer ---- */

START_TEST(a_buffer_is_a_queue)
{
    struct run_buffer buffer = {0};
    char next_in = 0;
    char next_out = 0;
    unsigned seed = 1;
    for (int i = 0; i < 20000; i++) {
        char bytes[700];
        const size_t in = (size_t)rand_r(&seed) % sizeof bytes;
        for (size_t k = 0; k < in; k++)
            bytes[k] = next_in++;
        ck_assert_int_eq(run_buffer_append(&buffer, bytes, in), HVI_OK);
        size_t take = (size_t)rand_r(&seed) % 701;
        take = take < buffer.used ? take : buffer.used;
        size_t wrong = 0; /* an assertion per byte would take seconds */
        for (size_t k = 0; k < take; k++)
            wrong += buffer.data[buffer.start + k] != next_out++;
        ck_assert_uint_eq(wrong, 0);
        run_buffer_consume(&buffer, take);
    }
    run_buffer_fini(&buffer);
}
END_TEST

/* ---- streams and sinks ---- */

static struct run_sink sink;
static struct run_stream streams[2];
static int writers[2];
static int sink_fd;

static void setup(void)
{
    sink_fd = memfd_create("hvt-sink", MFD_CLOEXEC);
    run_sink_init(&sink, sink_fd);
    for (int i = 0; i < 2; i++) {
        int fds[2];
        ck_assert_int_eq(pipe2(fds, O_CLOEXEC), 0);
        run_stream_init(&streams[i], fds[0], &sink);
        run_prefix_init(&streams[i].prefix, i, "stdout", true, false);
        writers[i] = fds[1];
    }
}

static void teardown(void)
{
    for (int i = 0; i < 2; i++) {
        run_stream_fini(&streams[i]);
        if (writers[i] >= 0)
            close(writers[i]);
    }
    run_sink_fini(&sink);
    close(sink_fd);
}

static void print(int stream, const char *bytes)
{
    ck_assert_int_eq(write(writers[stream], bytes, strlen(bytes)), (ssize_t)strlen(bytes));
    run_stream_read(&streams[stream]);
}

static void end(int stream)
{
    close(writers[stream]);
    writers[stream] = -1;
    run_stream_read(&streams[stream]);
    ck_assert_int_eq(streams[stream].fd, -1);
}

static void expect_sink(const char *golden)
{
    static char bytes[65536];
    run_sink_flush(&sink);
    const ssize_t length = pread(sink_fd, bytes, sizeof bytes - 1, 0);
    ck_assert(length >= 0);
    bytes[length] = '\0';
    ck_assert_str_eq(bytes, golden);
}

START_TEST(lines_of_two_ranks_stay_whole)
{
    print(0, "zero ");
    print(1, "one ");
    print(0, "goes on\n");
    print(1, "too\n");
    expect_sink("[0]<stdout>:zero goes on\n[1]<stdout>:one too\n");
}
END_TEST

START_TEST(an_unfinished_line_is_shown_at_the_end)
{
    print(0, "no newline");
    expect_sink("");
    end(0);
    expect_sink("[0]<stdout>:no newline");
}
END_TEST

START_TEST(an_unfinished_line_is_shown_after_a_while)
{
    print(0, "prompt> ");
    ck_assert(streams[0].held_until_ns != 0);
    run_stream_tick(&streams[0], streams[0].held_until_ns - 1);
    expect_sink("");
    run_stream_tick(&streams[0], streams[0].held_until_ns);
    expect_sink("[0]<stdout>:prompt> ");
    ck_assert(streams[0].held_until_ns == 0);
    print(0, "answer\n");
    expect_sink("[0]<stdout>:prompt> answer\n");
}
END_TEST

START_TEST(a_line_whose_rest_waits_unread_is_not_torn)
{
    print(0, "first half, ");
    ck_assert_int_eq(write(writers[0], "second half\n", 12), 12); /* the sink was full: not read */
    run_stream_tick(&streams[0], UINT64_MAX);
    print(1, "other\n");
    run_stream_read(&streams[0]);
    expect_sink("[1]<stdout>:other\n[0]<stdout>:first half, second half\n");
}
END_TEST

/* What is fed, as from another host, has no pipe that could be looked into. */
START_TEST(a_fed_line_is_not_torn_while_nothing_is_read_and_a_second_after)
{
    end(0);
    const uint64_t start_ns = hvi_clock_ns();
    run_stream_feed(&streams[0], "first half, ", 12);
    for (int i = 0; i < 9; i++) {
        sink.unread_ns = start_ns + (uint64_t)i * HVI_NS_SEC;
        run_stream_tick(&streams[0], sink.unread_ns + HVI_NS_SEC - 1);
    }
    print(1, "other\n");
    run_stream_feed(&streams[0], "second half\n", 12);
    run_stream_feed(&streams[0], "slow", 4);
    run_stream_tick(&streams[0], sink.unread_ns + HVI_NS_SEC);
    expect_sink("[1]<stdout>:other\n[0]<stdout>:first half, second half\n[0]<stdout>:slow");
}
END_TEST

START_TEST(an_open_line_is_closed_before_another_stream_speaks)
{
    print(0, "dots ...");
    run_stream_tick(&streams[0], UINT64_MAX);
    print(1, "other\n");
    print(0, "... more\n");
    expect_sink("[0]<stdout>:dots ...\n[1]<stdout>:other\n[0]<stdout>:... more\n");
}
END_TEST

START_TEST(hvdruns_own_words_get_a_line_of_their_own)
{
    print(0, "dots ...");
    run_stream_tick(&streams[0], UINT64_MAX);
    run_sink_say(&sink, "hvdrun: something");
    print(0, "\n");
    expect_sink("[0]<stdout>:dots ...\nhvdrun: something\n[0]<stdout>:\n");
}
END_TEST

START_TEST(an_open_line_of_a_stream_that_is_gone_is_closed_and_the_stream_left_alone)
{
    print(0, "dots ...");
    run_stream_fini(&streams[0]);
    streams[0].prefix.at_start =
        false; /* what is written there from now on is written to freed memory */
    run_sink_say(&sink, "hvdrun: something");
    expect_sink("[0]<stdout>:dots ...\nhvdrun: something\n");
    ck_assert(!streams[0].prefix.at_start);
}
END_TEST

START_TEST(hvdds_words_get_a_line_of_their_own)
{
    run_prefix_init(&streams[1].prefix, 1, "stderr", false, false);
    streams[1].apart = true;
    print(0, "dots ...");
    run_stream_tick(&streams[0], UINT64_MAX);
    print(1, "hvdd warns\n");
    print(0, "\n");
    expect_sink("[0]<stdout>:dots ...\nhvdd warns\n[0]<stdout>:\n");
}
END_TEST

START_TEST(a_file_gets_the_bytes_without_prefixes)
{
    char bytes[64] = "";
    const int file = memfd_create("hvt-file", MFD_CLOEXEC);
    streams[0].file_fd = dup(file);
    print(0, "a\nb");
    end(0);
    ck_assert_int_eq(pread(file, bytes, sizeof bytes, 0), 3);
    ck_assert_str_eq(bytes, "a\nb");
    close(file);
}
END_TEST

START_TEST(a_muted_stream_is_read_and_not_shown)
{
    streams[0].muted = true;
    print(0, "hidden\n");
    print(1, "shown\n");
    end(0);
    expect_sink("[1]<stdout>:shown\n");
}
END_TEST

START_TEST(a_full_disk_ends_the_copy_and_not_the_show)
{
    streams[0].file_fd = open("/dev/full", O_WRONLY | O_CLOEXEC);
    ck_assert_int_ge(streams[0].file_fd, 0);
    print(0, "a\n");
    print(0, "b\n");
    ck_assert_int_eq(streams[0].file_error, ENOSPC);
    ck_assert_int_eq(streams[0].file_fd, -1);
    expect_sink("[0]<stdout>:a\n[0]<stdout>:b\n");
}
END_TEST

START_TEST(a_very_long_line_is_shown_in_pieces_and_whole)
{
    static char piece[32768];
    static char back[4 << 20];
    const int pieces = 64; /* 2 MiB without a newline */
    memset(piece, 'x', sizeof piece);
    for (int i = 0; i < pieces; i++) {
        ck_assert_int_eq(write(writers[0], piece, sizeof piece), sizeof piece);
        run_stream_read(&streams[0]);
    }
    run_sink_flush(&sink);
    ck_assert_int_gt(pread(sink_fd, back, sizeof back, 0), 1 << 20); /* not held for ever */
    end(0);
    run_sink_flush(&sink);
    const ssize_t length = pread(sink_fd, back, sizeof back, 0);
    ck_assert_int_eq(length, 12 + pieces * (ssize_t)sizeof piece);
    ck_assert_int_eq(memcmp(back, "[0]<stdout>:xxx", 15), 0);
    ck_assert_ptr_null(memchr(back, '\n', (size_t)length));
}
END_TEST

/* ---- sinks that do not take everything at once ---- */

START_TEST(a_slow_reader_blocks_nobody_and_loses_nothing)
{
    static char bytes[65536];
    int fds[2];
    struct run_sink slow;
    size_t put = 0;
    size_t got = 0;
    ck_assert_int_eq(_i == 0 ? pipe2(fds, O_CLOEXEC)
                             : socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds),
                     0);
    run_sink_init(&slow, fds[1]);
    memset(bytes, 'a', sizeof bytes - 1);
    while (!run_sink_is_full(&slow)) {
        run_sink_say(&slow, bytes); /* its length and a newline */
        put += sizeof bytes;
    }
    ck_assert_int_eq(fcntl(fds[1], F_GETFL) & O_NONBLOCK, 0); /* shared with whoever started us */
    while (got < put) {
        const ssize_t length = read(fds[0], bytes, sizeof bytes);
        ck_assert_int_gt(length, 0);
        got += (size_t)length;
        run_sink_flush(&slow);
    }
    ck_assert_uint_eq(slow.pending.used, 0);
    run_sink_fini(&slow);
    close(fds[0]);
    close(fds[1]);
}
END_TEST

START_TEST(a_reader_that_is_gone_is_noticed)
{
    int fds[2];
    struct run_sink broken;
    signal(SIGPIPE, SIG_IGN);
    ck_assert_int_eq(pipe2(fds, O_CLOEXEC), 0);
    run_sink_init(&broken, fds[1]);
    close(fds[0]);
    run_sink_say(&broken, "x");
    ck_assert(broken.gone);
    ck_assert_int_eq(broken.error, EPIPE);
    run_sink_say(&broken, "y");
    ck_assert_uint_eq(broken.pending.used, 0);
    run_sink_fini(&broken);
    close(fds[1]);
}
END_TEST

START_TEST(a_full_disk_drops_output_and_counts_it)
{
    struct run_sink full;
    const int fd = open("/dev/full", O_WRONLY | O_CLOEXEC);
    run_sink_init(&full, fd);
    run_sink_say(&full, "x");
    ck_assert_int_eq(full.error, ENOSPC);
    ck_assert(!full.gone);
    ck_assert_uint_eq(full.dropped, 2);
    run_sink_fini(&full);
    close(fd);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tools/hvdrun/output");
    TCase *pure = tcase_create("prefix");
    tcase_add_test(pure, each_line_gets_the_prefix_once);
    tcase_add_test(pure, nothing_in_nothing_out);
    tcase_add_test(pure, a_progress_bar_is_prefixed_at_each_return);
    tcase_add_test(pure, a_line_end_cut_in_two_is_one_line_end);
    tcase_add_test(pure, without_prefix_bytes_pass_as_they_are);
    tcase_add_test(pure, timestamps_stand_before_the_prefix);
    tcase_add_loop_test(pure, removing_prefixes_gives_the_input_back, 0, 20);
    tcase_add_test(pure, many_returns_without_a_newline_take_no_square_time);
    tcase_add_test(pure, a_buffer_is_a_queue);
    suite_add_tcase(suite, pure);
    TCase *tests = tcase_create("streams");
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, lines_of_two_ranks_stay_whole);
    tcase_add_test(tests, an_unfinished_line_is_shown_at_the_end);
    tcase_add_test(tests, an_unfinished_line_is_shown_after_a_while);
    tcase_add_test(tests, a_line_whose_rest_waits_unread_is_not_torn);
    tcase_add_test(tests, a_fed_line_is_not_torn_while_nothing_is_read_and_a_second_after);
    tcase_add_test(tests, an_open_line_is_closed_before_another_stream_speaks);
    tcase_add_test(tests, hvdruns_own_words_get_a_line_of_their_own);
    tcase_add_test(tests,
                   an_open_line_of_a_stream_that_is_gone_is_closed_and_the_stream_left_alone);
    tcase_add_test(tests, hvdds_words_get_a_line_of_their_own);
    tcase_add_test(tests, a_file_gets_the_bytes_without_prefixes);
    tcase_add_test(tests, a_muted_stream_is_read_and_not_shown);
    tcase_add_test(tests, a_full_disk_ends_the_copy_and_not_the_show);
    tcase_add_test(tests, a_very_long_line_is_shown_in_pieces_and_whole);
    suite_add_tcase(suite, tests);
    TCase *sinks = tcase_create("sinks");
    tcase_add_loop_test(sinks, a_slow_reader_blocks_nobody_and_loses_nothing, 0, 2);
    tcase_add_test(sinks, a_reader_that_is_gone_is_noticed);
    tcase_add_test(sinks, a_full_disk_drops_output_and_counts_it);
    suite_add_tcase(suite, sinks);
    return hvt_run_suite(suite);
}
