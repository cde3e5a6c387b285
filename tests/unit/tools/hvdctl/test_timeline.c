/* SPDX-License-Identifier: Apache-2.0
 * `hvdctl timeline` asks at hvdd's attach socket, which a thread plays, and hands over the file. */
#include "base/clock.h"
#include "base/status.h"
#include "proto/packet.h"
#include "tests/unit/hvt_listen.h"
#include "tests/unit/hvt_main.h"
#include "tests/unit/tools/hvdctl/hvt_program.h"

#include <pthread.h>
#include <sys/stat.h>

static struct hvi_timeline_request asked;
static bool has_file;
static int listener = -1;

/* ---- hvdd ---- */

struct scene {
    const struct hvi_packet_msg *answer;
    size_t cut; /* so many bytes are missing at its end */
    bool silent;
    bool unasked; /* it wants no file */
    bool old;     /* it wants the file with the first message */
};

/* The request into `asked`; into its file a word. */
static void take_request(int fd)
{
    static struct hvi_packet packet;
    struct hvi_packet_msg msg;
    const uint64_t deadline_ns = hvi_deadline_after(20 * (int64_t)HVI_NS_SEC);
    ck_assert_int_eq(hvi_packet_receive(fd, &packet, deadline_ns), HVI_OK);
    ck_assert_int_eq(hvi_packet_msg_decode(packet.bytes, packet.length, &msg, NULL, 0), HVI_OK);
    ck_assert_int_eq(msg.kind, HVI_PACKET_TIMELINE_REQUEST);
    asked = msg.timeline_request;
    has_file = packet.fd_count == 1;
    if (has_file)
        ck_assert_int_eq(write(packet.fds[0], "trace", 5), 5);
    hvi_packet_close_fds(&packet);
    hvi_packet_msg_free(&msg);
}

static void tell(int fd, const struct hvi_packet_msg *answer, size_t cut)
{
    unsigned char bytes[4096];
    size_t length = 0;
    ck_assert_int_eq(hvi_packet_msg_encode(answer, bytes, sizeof bytes, &length), HVI_OK);
    ck_assert_int_eq(hvi_packet_send(fd, bytes, length - cut, NULL, 0, 0), HVI_OK);
}

static void *play(void *context)
{
    const struct hvi_packet_msg go_on = {.kind = HVI_PACKET_ACK, .ack = {.status = HVI_INPROGRESS}};
    const struct hvi_packet_msg wrong = {.kind = HVI_PACKET_ACK,
                                         .ack = {.status = HVI_ERR_PROTOCOL}};
    const struct scene *scene = context;
    unsigned char bytes[16];
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    take_request(fd);
    ck_assert(!has_file);
    if (scene->old) {
        tell(fd, &wrong, 0);
        close(fd);
        fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        ck_assert_int_ge(fd, 0);
        take_request(fd);
    } else if (asked.start && !scene->unasked) {
        tell(fd, &go_on, 0);
        take_request(fd);
    }
    if (scene->answer != NULL)
        tell(fd, scene->answer, scene->cut);
    if (scene->silent)
        (void)!read(fd, bytes, sizeof bytes); /* until hvdctl has gone */
    close(fd);
    return NULL;
}

static void run_scene(struct scene scene, const char *words)
{
    pthread_t thread;
    listener = hvt_listen(hvt_root, "attach.sock", SOCK_SEQPACKET);
    ck_assert_int_eq(pthread_create(&thread, NULL, play, &scene), 0);
    hvt_run(words);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    close(listener);
    unlink(hvt_path("attach.sock"));
}

static struct hvi_packet_msg ack(int status, const char *text)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_ACK, .ack = {.status = status}};
    snprintf(msg.ack.text, sizeof msg.ack.text, "%s", text);
    return msg;
}

/* ---- requests ---- */

START_TEST(start_hands_over_the_file_that_hvdctl_has_made)
{
    const struct hvi_packet_msg answer = ack(HVI_OK, "");
    char text[256];
    struct stat st;
    run_scene((struct scene){.answer = &answer}, "timeline digits start @/t.json --mark-cycles");
    hvt_expect_end(0, "");
    snprintf(text, sizeof text, "the timeline of job digits is being written in %s\n",
             hvt_path("t.json"));
    ck_assert_str_eq(hvt_out, text);
    ck_assert_str_eq(asked.job, "digits");
    ck_assert_str_eq(asked.path, hvt_path("t.json"));
    ck_assert(asked.start && asked.mark_cycles && has_file);
    ck_assert_uint_eq(asked.protocol_version, HVI_PROTOCOL_VERSION);
    ck_assert_int_eq(stat(hvt_path("t.json"), &st), 0);
    ck_assert_int_eq(st.st_size, 5); /* what was written to the descriptor */
}
END_TEST

START_TEST(stop_hands_over_nothing)
{
    const struct hvi_packet_msg answer = ack(HVI_OK, "");
    run_scene((struct scene){.answer = &answer}, "timeline digits stop --json");
    hvt_expect_end(0, "");
    ck_assert(!asked.start && !asked.mark_cycles && !has_file);
    ck_assert_str_eq(asked.path, "");
    cJSON *document = hvt_document();
    ck_assert_str_eq(cJSON_GetStringValue(cJSON_GetObjectItem(document, "done")),
                     "the timeline of job digits is complete");
    cJSON_Delete(document);
}
END_TEST

/* The file's name is for the log alone; its descriptor is what counts. */
START_TEST(a_path_that_is_no_text_is_not_sent_and_is_shown_safely)
{
    const struct hvi_packet_msg answer = ack(HVI_OK, "");
    run_scene((struct scene){.answer = &answer}, "timeline digits start @/t\xff\033[2J");
    hvt_expect_end(0, "");
    ck_assert(asked.start && has_file);
    ck_assert_str_eq(asked.path, "");
    ck_assert_ptr_nonnull(strstr(hvt_out, "\\x1b[2J\n"));
}
END_TEST

/* ---- answers ---- */

START_TEST(a_refusal_is_told_in_hvdds_words_or_in_the_words_of_its_status)
{
    struct hvi_packet_msg answer = ack(HVI_ERR_NOT_FOUND, "no job 'x\033'");
    run_scene((struct scene){.answer = &answer}, "timeline digits stop --json");
    hvt_expect_end(1, "hvdctl: no job 'x\\x1b'\n");
    ck_assert_ptr_nonnull(strstr(hvt_out, "\"text\""));
    answer = ack(HVI_ERR_REFUSED, "");
    run_scene((struct scene){.answer = &answer}, "timeline digits start @/t.json");
    hvt_expect_end(1, hvi_status_text(HVI_ERR_REFUSED));
    ck_assert_str_eq(hvt_out, "");
}
END_TEST

START_TEST(a_hvdd_that_takes_no_more_connections_answers_as_to_an_attach)
{
    struct hvi_packet_msg answer = {
        .kind = HVI_PACKET_ATTACH_REPLY,
        .attach_reply = {.protocol_version = HVI_PROTOCOL_VERSION, .status = HVI_ERR_LIMIT}};
    snprintf(answer.attach_reply.text, sizeof answer.attach_reply.text, "hvdd is full");
    run_scene((struct scene){.answer = &answer}, "timeline digits stop");
    hvt_expect_end(1, "hvdctl: hvdd is full\n");
}
END_TEST

START_TEST(an_answer_that_is_none_or_is_cut_off_is_an_error)
{
    struct hvi_packet_msg notice = {.kind = HVI_PACKET_NOTICE,
                                    .notice = {.status = HVI_INPROGRESS, .rank = -1}};
    snprintf(notice.notice.text, sizeof notice.notice.text, "by the way");
    run_scene((struct scene){.answer = &notice}, "timeline digits stop --json");
    hvt_expect_end(1, "did not answer: ");
    hvt_expect_error(HVI_ERR_PROTOCOL);
    const struct hvi_packet_msg answer = ack(HVI_ERR_REFUSED, "not you");
    run_scene((struct scene){.answer = &answer, .cut = 2}, "timeline digits stop --json");
    hvt_expect_end(1, "did not answer: ");
    hvt_expect_error(HVI_ERR_PROTOCOL);
}
END_TEST

START_TEST(an_answer_that_never_says_how_it_went_is_none)
{
    const struct hvi_packet_msg answer = ack(HVI_INPROGRESS, "");
    run_scene((struct scene){.answer = &answer}, "timeline digits start @/t.json --json");
    hvt_expect_end(1, "did not answer: ");
    hvt_expect_error(HVI_ERR_PROTOCOL);
    run_scene((struct scene){.answer = &answer}, "timeline digits stop --json");
    hvt_expect_end(1, "did not answer: ");
    hvt_expect_error(HVI_ERR_PROTOCOL);
}
END_TEST

START_TEST(another_nodes_timeout_is_hvdds_answer)
{
    const struct hvi_packet_msg answer = ack(HVI_ERR_TIMEOUT, "the node that writes is silent");
    run_scene((struct scene){.answer = &answer}, "timeline digits stop --json");
    hvt_expect_end(1, "hvdctl: the node that writes is silent\n");
    hvt_expect_error(HVI_ERR_DAEMON);
}
END_TEST

START_TEST(a_hvdd_that_wants_no_file_writes_no_timeline)
{
    struct hvi_packet_msg answer = ack(HVI_OK, "");
    run_scene((struct scene){.answer = &answer, .unasked = true},
              "timeline digits start @/t.json --json");
    hvt_expect_end(1, "did not answer: ");
    hvt_expect_error(HVI_ERR_PROTOCOL);
    answer = ack(HVI_ERR_REFUSED, "job 'digits' belongs to another user");
    run_scene((struct scene){.answer = &answer, .unasked = true}, "timeline digits start @/t.json");
    hvt_expect_end(1, "hvdctl: job 'digits' belongs to another user\n");
    ck_assert(!has_file);
}
END_TEST

START_TEST(an_older_hvdd_gets_the_file_with_the_first_message)
{
    const struct hvi_packet_msg answer = ack(HVI_OK, "");
    run_scene((struct scene){.answer = &answer, .old = true}, "timeline digits start @/t.json");
    hvt_expect_end(0, "");
    ck_assert(asked.start && has_file);
}
END_TEST

START_TEST(a_hvdd_that_is_silent_or_goes_is_no_daemon)
{
    run_scene((struct scene){.silent = true}, "timeline digits stop --timeout 0.02 --json");
    hvt_expect_end(3, "did not answer: ");
    hvt_expect_error(HVI_ERR_TIMEOUT);
    run_scene((struct scene){0}, "timeline digits stop --json");
    hvt_expect_end(3, "did not answer: ");
    hvt_expect_error(HVI_ERR_NO_DAEMON);
}
END_TEST

/* ---- nothing is asked ---- */

START_TEST(without_a_hvdd_the_directory_is_named)
{
    hvt_run("timeline digits stop --json");
    hvt_expect_end(3, "hvdctl: no hvdd answers in /tmp/hvt-ctl-");
    hvt_expect_error(HVI_ERR_NO_DAEMON);
}
END_TEST

static const struct {
    const char *words;
    int code;
    const char *complaint;
} wrong[] = {
    {"timeline digits begin", 2, "usage: hvdctl timeline JOB start FILE, or JOB stop"},
    {"timeline digits start", 2, "usage: hvdctl timeline JOB start FILE, or JOB stop"},
    {"timeline digits stop @/x", 2, "usage: hvdctl timeline JOB start FILE, or JOB stop"},
    {"timeline dig/its stop", 2, "'dig/its' is no job id"},
    {"timeline digits start @/none/t", 1, "none/t: No such file or directory"},
    {"timeline digits start @", 1, ": Is a directory"},
    {"timeline digits start @/fifo", 1, "/fifo: No such device or address"}, /* read by nobody */
};

START_TEST(wrong_words_and_files_are_told)
{
    ck_assert_int_eq(mkfifo(hvt_path("fifo"), 0600), 0);
    hvt_run(wrong[_i].words);
    hvt_expect_end(wrong[_i].code, wrong[_i].complaint);
    ck_assert_str_eq(hvt_out, "");
}
END_TEST

START_TEST(a_directory_whose_path_is_too_long_is_a_wrong_argument)
{
    char words[400] = "timeline digits stop --address /";
    memset(words + strlen(words), 'x', 300);
    hvt_run(words);
    hvt_expect_end(2, "bad address: the path is longer than ");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tools/hvdctl/timeline");
    TCase *tests = tcase_create("timeline");
    tcase_add_checked_fixture(tests, hvt_program_setup, hvt_program_teardown);
    tcase_add_test(tests, start_hands_over_the_file_that_hvdctl_has_made);
    tcase_add_test(tests, stop_hands_over_nothing);
    tcase_add_test(tests, a_path_that_is_no_text_is_not_sent_and_is_shown_safely);
    tcase_add_test(tests, a_refusal_is_told_in_hvdds_words_or_in_the_words_of_its_status);
    tcase_add_test(tests, a_hvdd_that_takes_no_more_connections_answers_as_to_an_attach);
    tcase_add_test(tests, an_answer_that_is_none_or_is_cut_off_is_an_error);
    tcase_add_test(tests, an_answer_that_never_says_how_it_went_is_none);
    tcase_add_test(tests, another_nodes_timeout_is_hvdds_answer);
    tcase_add_test(tests, a_hvdd_that_wants_no_file_writes_no_timeline);
    tcase_add_test(tests, an_older_hvdd_gets_the_file_with_the_first_message);
    tcase_add_test(tests, a_hvdd_that_is_silent_or_goes_is_no_daemon);
    tcase_add_test(tests, without_a_hvdd_the_directory_is_named);
    tcase_add_loop_test(tests, wrong_words_and_files_are_told, 0, sizeof wrong / sizeof wrong[0]);
    tcase_add_test(tests, a_directory_whose_path_is_too_long_is_a_wrong_argument);
    suite_add_tcase(suite, tests);
    return hvt_run_suite(suite);
}
