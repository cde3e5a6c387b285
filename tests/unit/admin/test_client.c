/* SPDX-License-Identifier: Apache-2.0
 * A client of the admin socket, beside a hvdd that a thread plays: silent, late, wrong, gone. */
#include "admin/client.h"

#include "base/clock.h"
#include "base/status.h"
#include "tests/unit/hvt_listen.h"
#include "tests/unit/hvt_main.h"
#include "tests/unit/hvt_process.h"

#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/resource.h>
#include <zmq.h>

#define SOON_NS (20 * (int64_t)HVI_NS_SEC)

static char root[64];
static int listener = -1;
static struct admin_client *client;
static struct hvi_admin_request request;
static struct hvi_admin_reply reply;
static char text[256];

static void stop_listening(void)
{
    if (listener >= 0)
        close(listener);
    listener = -1;
}

static void setup(void)
{
    snprintf(root, sizeof root, "/tmp/hvt-admin-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(root));
    listener = hvt_listen(root, "admin.sock", SOCK_STREAM);
    request = (struct hvi_admin_request){.kind = HVI_ADMIN_STATUS};
    memset(&reply, 0, sizeof reply);
    text[0] = '\0';
}

static void teardown(void)
{
    char path[96];
    admin_client_close(client);
    client = NULL;
    stop_listening();
    snprintf(path, sizeof path, "%s/admin.sock", root);
    unlink(path);
    rmdir(root);
}

/* ---- hvdd ---- */

struct player {
    void *context, *socket;
    pthread_t thread;
    void (*play)(struct player *player);
};

static void *run_player(void *context)
{
    struct player *player = context;
    player->play(player);
    return NULL;
}

/* As hvdd's gate, which is given the listening socket. */
static void bind_player(struct player *player)
{
    char endpoint[128];
    const int linger_ms = 0;
    const int patience_ms = 20000;
    const int fd = dup(listener);
    player->socket = zmq_socket(player->context, ZMQ_ROUTER);
    ck_assert_int_eq(zmq_setsockopt(player->socket, ZMQ_USE_FD, &fd, sizeof fd), 0);
    ck_assert_int_eq(zmq_setsockopt(player->socket, ZMQ_LINGER, &linger_ms, sizeof linger_ms), 0);
    ck_assert_int_eq(zmq_setsockopt(player->socket, ZMQ_RCVTIMEO, &patience_ms, sizeof patience_ms),
                     0);
    snprintf(endpoint, sizeof endpoint, "ipc://%s/admin.sock", root);
    ck_assert_int_eq(zmq_bind(player->socket, endpoint), 0);
}

static void start_player(struct player *player, void (*play)(struct player *player))
{
    *player = (struct player){.context = zmq_ctx_new(), .play = play};
    bind_player(player);
    ck_assert_int_eq(admin_client_open(root, &client), HVI_OK);
    ck_assert_int_eq(pthread_create(&player->thread, NULL, run_player, player), 0);
}

static void stop_player(struct player *player)
{
    ck_assert_int_eq(pthread_join(player->thread, NULL), 0);
    if (player->socket != NULL)
        zmq_close(player->socket);
    zmq_ctx_term(player->context);
}

/* The next question, and who asks. */
static uint64_t take_question(struct player *player, unsigned char *identity_p, int *bytes_p)
{
    unsigned char body[4096];
    struct hvi_admin_request asked;
    char complaint[256] = "";
    *bytes_p = zmq_recv(player->socket, identity_p, 64, 0);
    ck_assert_int_gt(*bytes_p, 0);
    ck_assert_int_eq(zmq_recv(player->socket, body, sizeof body, 0), 0); /* as of a REQ socket */
    const int length = zmq_recv(player->socket, body, sizeof body, 0);
    ck_assert_int_gt(length, 0);
    ck_assert_msg(hvi_admin_request_decode(body, (size_t)length, &asked, complaint,
                                           sizeof complaint) == HVI_OK,
                  "%s", complaint);
    ck_assert_uint_eq(asked.protocol_version, HVI_PROTOCOL_VERSION);
    return asked.request;
}

static void send_bytes(struct player *player, const unsigned char *identity, int identity_bytes,
                       const void *bytes, size_t length)
{
    ck_assert_int_eq(zmq_send(player->socket, identity, (size_t)identity_bytes, ZMQ_SNDMORE),
                     identity_bytes);
    ck_assert_int_eq(zmq_send(player->socket, "", 0, ZMQ_SNDMORE), 0);
    ck_assert_int_eq(zmq_send(player->socket, bytes, length, 0), (int)length);
}

static void answer(struct player *player, const unsigned char *identity, int identity_bytes,
                   uint64_t number, const char *message)
{
    unsigned char *bytes;
    size_t length;
    struct hvi_admin_reply said = {
        .protocol_version = HVI_PROTOCOL_VERSION, .request = number, .status = HVI_ERR_REFUSED};
    snprintf(said.text, sizeof said.text, "%s", message);
    ck_assert_int_eq(hvi_admin_reply_encode(&said, &bytes, &length), HVI_OK);
    send_bytes(player, identity, identity_bytes, bytes, length);
    free(bytes);
}

static int call(int64_t patience_ns)
{
    return admin_client_call(client, &request, hvi_deadline_after(patience_ns), &reply, text,
                             sizeof text);
}

/* ---- conversations ---- */

static void answer_with_noise_before(struct player *player)
{
    unsigned char identity[64];
    int bytes;
    const uint64_t number = take_question(player, identity, &bytes);
    answer(player, identity, bytes, number + 7, "of a question that was given up");
    answer(player, identity, bytes, number, "the answer");
}

START_TEST(an_answer_to_another_question_is_passed_over)
{
    struct player player;
    start_player(&player, answer_with_noise_before);
    ck_assert_int_eq(call(SOON_NS), HVI_OK);
    ck_assert_str_eq(reply.text, "the answer");
    ck_assert_int_eq(reply.status, HVI_ERR_REFUSED);
    hvi_admin_reply_free(&reply);
    stop_player(&player);
}
END_TEST

static void answer_without_number(struct player *player)
{
    unsigned char identity[64];
    int bytes;
    take_question(player, identity, &bytes);
    answer(player, identity, bytes, 0, "the question was not understood");
}

START_TEST(an_answer_without_a_number_is_for_the_one_that_waits)
{
    struct player player;
    start_player(&player, answer_without_number);
    ck_assert_int_eq(call(SOON_NS), HVI_OK);
    ck_assert_str_eq(reply.text, "the question was not understood");
    hvi_admin_reply_free(&reply);
    stop_player(&player);
}
END_TEST

static void answer_with_junk(struct player *player)
{
    unsigned char identity[64];
    int bytes;
    take_question(player, identity, &bytes);
    send_bytes(player, identity, bytes, "\xff\xff\xff", 3);
}

START_TEST(an_answer_that_makes_no_sense_is_told_with_a_sentence)
{
    struct player player;
    start_player(&player, answer_with_junk);
    ck_assert_int_eq(call(SOON_NS), HVI_ERR_PROTOCOL);
    ck_assert_str_eq(text, "AdminReply: malformed, cut short, or a required field is missing");
    stop_player(&player);
}
END_TEST

static void answer_the_second(struct player *player)
{
    unsigned char identity[64];
    int bytes;
    const uint64_t first = take_question(player, identity, &bytes);
    const uint64_t second = take_question(player, identity, &bytes);
    ck_assert_uint_ne(first, second);
    answer(player, identity, bytes, first, "late");
    answer(player, identity, bytes, second, "in time");
}

START_TEST(silence_ends_at_the_deadline_and_the_next_question_is_answered)
{
    struct player player;
    start_player(&player, answer_the_second);
    const uint64_t before_ns = hvi_clock_ns();
    ck_assert_int_eq(call(30 * (int64_t)HVI_NS_MS), HVI_ERR_TIMEOUT);
    ck_assert_uint_ge(hvi_clock_ns() - before_ns, 30 * HVI_NS_MS);
    ck_assert_int_eq(call(SOON_NS), HVI_OK);
    ck_assert_str_eq(reply.text, "in time");
    hvi_admin_reply_free(&reply);
    stop_player(&player);
}
END_TEST

static void go_after_the_question(struct player *player)
{
    unsigned char identity[64];
    int bytes;
    take_question(player, identity, &bytes);
    stop_listening();
    zmq_close(player->socket);
    player->socket = NULL;
}

START_TEST(a_hvdd_that_goes_is_told_long_before_the_deadline)
{
    struct player player;
    start_player(&player, go_after_the_question);
    ck_assert_int_eq(call(SOON_NS), HVI_ERR_NO_DAEMON);
    stop_player(&player);
}
END_TEST

/* As hvdd does for its gate: the listening socket stays, its connections end. */
static void be_restarted(struct player *player)
{
    unsigned char identity[64];
    int bytes;
    const uint64_t number = take_question(player, identity, &bytes);
    zmq_close(player->socket);
    bind_player(player);
    ck_assert_uint_eq(take_question(player, identity, &bytes), number);
    answer(player, identity, bytes, number, "after the restart");
}

/* As hvdd while its gate is down: nobody accepts, and everybody comes again. */
static void fill_queue(int *fds_p, int count)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    snprintf(name.sun_path, sizeof name.sun_path, "%s/admin.sock", root);
    for (int i = 0; i < count; i++) {
        fds_p[i] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        (void)connect(fds_p[i], (const struct sockaddr *)&name, sizeof name);
    }
}

START_TEST(a_queue_that_is_full_is_a_hvdd_that_is_there)
{
    int fds[80];
    fill_queue(fds, 80);
    ck_assert_int_eq(admin_client_open(root, &client), HVI_OK);
    const uint64_t before_ns = hvi_clock_ns();
    ck_assert_int_eq(call(200 * (int64_t)HVI_NS_MS), HVI_ERR_TIMEOUT);
    ck_assert_uint_lt(hvi_clock_ns() - before_ns, hvt_patience(HVI_NS_SEC));
    stop_listening();
    ck_assert_int_eq(call(SOON_NS), HVI_ERR_NO_DAEMON);
    for (int i = 0; i < 80; i++)
        close(fds[i]);
}
END_TEST

/* Connections that wait in the queue; ends them. */
static int count_queue(void)
{
    int count = 0, fd;
    for (; (fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0; count++)
        close(fd);
    return count;
}

START_TEST(a_handle_that_was_idle_while_hvdd_was_down_looks_for_it_once)
{
    char path[96];
    ck_assert_int_eq(admin_client_open(root, &client), HVI_OK);
    usleep(50000); /* it has connected */
    snprintf(path, sizeof path, "%s/admin.sock", root);
    unlink(path);
    stop_listening(); /* and what was in its queue */
    usleep(300000);
    listener = hvt_listen(root, "admin.sock", SOCK_STREAM);
    ck_assert_int_eq(fcntl(listener, F_SETFL, O_NONBLOCK), 0);
    ck_assert_int_eq(call(50 * (int64_t)HVI_NS_MS), HVI_ERR_TIMEOUT);
    ck_assert_int_le(count_queue(), 3); /* a look or two, and its own */
}
END_TEST

START_TEST(a_question_that_does_not_encode_is_not_sent)
{
    ck_assert_int_eq(admin_client_open(root, &client), HVI_OK);
    request.kind = HVI_ADMIN_PROCESS_EXITED;
    strcpy(request.job, "../x");
    ck_assert_int_eq(call(SOON_NS), HVI_ERR_INVALID);
}
END_TEST

START_TEST(nothing_that_listens_is_no_daemon_and_a_long_path_invalid)
{
    char far[200];
    stop_listening();
    ck_assert_int_eq(admin_client_open(root, &client), HVI_ERR_NO_DAEMON);
    ck_assert_int_eq(admin_client_open("/nonexistent/hvdd", &client), HVI_ERR_NO_DAEMON);
    memset(far, 'x', sizeof far - 1);
    far[sizeof far - 1] = '\0';
    ck_assert_int_eq(admin_client_open(far, &client), HVI_ERR_INVALID);
    ck_assert_ptr_null(client);
}
END_TEST

START_TEST(a_lack_of_descriptors_is_not_taken_for_a_lack_of_hvdd)
{
    const struct rlimit old = hvt_forbid_fds();
    ck_assert_int_eq(admin_client_open(root, &client), HVI_ERR_LIMIT);
    ck_assert_ptr_null(client);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &old), 0);
    ck_assert_int_eq(admin_client_open(root, &client), HVI_OK);
}
END_TEST

/* libzmq would end the process. */
START_TEST(with_a_few_descriptors_there_is_no_client_but_still_a_process)
{
    const struct rlimit old = hvt_forbid_fds();
    struct rlimit limit = old;
    int status = HVI_ERR_LIMIT, room = 0;

    getrlimit(RLIMIT_NOFILE, &limit);
    for (; status == HVI_ERR_LIMIT; room++) {
        limit.rlim_cur++;
        ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
        status = admin_client_open(root, &client);
    }
    ck_assert_int_eq(status, HVI_OK);
    ck_assert_int_gt(room, 1);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &old), 0);
}
END_TEST

START_TEST(a_question_is_asked_again_when_the_gate_is_restarted)
{
    struct player player;
    start_player(&player, be_restarted);
    ck_assert_int_eq(call(SOON_NS), HVI_OK);
    ck_assert_str_eq(reply.text, "after the restart");
    hvi_admin_reply_free(&reply);
    stop_player(&player);
}
END_TEST

#ifdef __SANITIZE_ADDRESS__
/* libzmq loses messages that are on their way while a socket closes without linger, now and then. */
__attribute__((visibility("default"))) const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libzmq.so";
}
#endif

int main(void)
{
    Suite *suite = suite_create("admin/client");
    TCase *tests = tcase_create("client");
    tcase_set_timeout(tests, 60);
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, an_answer_to_another_question_is_passed_over);
    tcase_add_test(tests, an_answer_without_a_number_is_for_the_one_that_waits);
    tcase_add_test(tests, an_answer_that_makes_no_sense_is_told_with_a_sentence);
    tcase_add_test(tests, silence_ends_at_the_deadline_and_the_next_question_is_answered);
    tcase_add_test(tests, a_hvdd_that_goes_is_told_long_before_the_deadline);
    tcase_add_test(tests, with_a_few_descriptors_there_is_no_client_but_still_a_process);
    tcase_add_test(tests, a_question_is_asked_again_when_the_gate_is_restarted);
    tcase_add_test(tests, a_queue_that_is_full_is_a_hvdd_that_is_there);
    tcase_add_test(tests, a_handle_that_was_idle_while_hvdd_was_down_looks_for_it_once);
    tcase_add_test(tests, a_question_that_does_not_encode_is_not_sent);
    tcase_add_test(tests, nothing_that_listens_is_no_daemon_and_a_long_path_invalid);
    tcase_add_test(tests, a_lack_of_descriptors_is_not_taken_for_a_lack_of_hvdd);
    suite_add_tcase(suite, tests);
    return hvt_run_suite(suite);
}
