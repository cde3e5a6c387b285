/* SPDX-License-Identifier: Apache-2.0
 * The connection of doctor --peer: who has the key is met, who has not learns nothing, and every wait ends. A thread is the
 * other side; where that lies, it says the bytes that the header promises, with proofs made here. */
#include "tools/hvdctl/peer_link.h"

#include "base/clock.h"
#include "base/status.h"
#include "tests/unit/hvt_main.h"

#include <pthread.h>
#include <sodium.h>
#include <sys/socket.h>

#define HELLO_BYTES 40u
#define NONCE_AT    8u
#define PROOF_BYTES 32u
#define PATIENCE_NS (20 * (int64_t)HVI_NS_SEC)

static unsigned char key[CTL_PEER_KEY_BYTES], other_key[CTL_PEER_KEY_BYTES];
static struct ctl_peer_link here, there;
static char versions[CTL_PEER_VERSIONS];

static void set_up(void)
{
    char text[CTL_PEER_KEY_TEXT];
    int pair[2];

    ck_assert(ctl_peer_key_new(text) && ctl_peer_key_parse(text, key));
    ck_assert(ctl_peer_key_new(text) && ctl_peer_key_parse(text, other_key));
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    here = (struct ctl_peer_link){pair[0], hvi_deadline_after(PATIENCE_NS)};
    there = (struct ctl_peer_link){pair[1], hvi_deadline_after(PATIENCE_NS)};
    memset(versions, 0, sizeof versions);
}

static void tear_down(void)
{
    close(here.fd);
    if (there.fd >= 0)
        close(there.fd);
}

static void hang_up(void)
{
    close(there.fd);
    there.fd = -1;
}

START_TEST(a_key_is_fresh_and_32_digits)
{
    static const char *const wrong[] = {"",
                                        "00",
                                        "000102030405060708090a0b0c0d0e0f10",
                                        "000102030405060708090a0b0c0d0e0",
                                        "000102030405060708090a0b0c0d0e0x",
                                        "000102030405060708090a0b0c0d0e0f "};
    unsigned char parsed[CTL_PEER_KEY_BYTES];

    ck_assert_int_ne(memcmp(key, other_key, sizeof key), 0);
    ck_assert(ctl_peer_key_parse("000102030405060708090a0b0c0d0e0f", parsed));
    for (unsigned i = 0; i < CTL_PEER_KEY_BYTES; i++)
        ck_assert_uint_eq(parsed[i], i);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        ck_assert_msg(!ctl_peer_key_parse(wrong[i], parsed), "'%s'", wrong[i]);
}
END_TEST

/* ---- meeting ---- */

struct meeting {
    const unsigned char *key;
    bool serves;
    int status;
    char versions[CTL_PEER_VERSIONS];
};

static void *meet(void *user)
{
    struct meeting *meeting = user;

    meeting->status =
        ctl_peer_meet(&there, meeting->key, meeting->serves, "there 2", meeting->versions);
    if (meeting->status != HVI_OK)
        hang_up();
    return NULL;
}

START_TEST(both_sides_have_the_key_and_learn_the_others_versions)
{
    struct meeting meeting = {.key = key, .serves = _i == 0};
    pthread_t thread;

    ck_assert_int_eq(pthread_create(&thread, NULL, meet, &meeting), 0);
    ck_assert_int_eq(ctl_peer_meet(&here, key, _i != 0, "here 1", versions), HVI_OK);
    pthread_join(thread, NULL);
    ck_assert_str_eq(versions, "there 2");
    ck_assert_int_eq(meeting.status, HVI_OK);
    ck_assert_str_eq(meeting.versions, "here 1");
}
END_TEST

START_TEST(with_another_key_both_are_told_and_the_one_that_serves_proves_nothing)
{
    struct meeting meeting = {.key = other_key, .serves = true};
    pthread_t thread;
    char byte;

    ck_assert_int_eq(pthread_create(&thread, NULL, meet, &meeting), 0);
    ck_assert_int_eq(ctl_peer_meet(&here, key, false, "here 1", versions), HVI_ERR_REFUSED);
    pthread_join(thread, NULL);
    ck_assert_int_eq(meeting.status, HVI_ERR_REFUSED);
    ck_assert_str_eq(meeting.versions, "");
    ck_assert_int_eq(recv(here.fd, &byte, 1, 0), 0);
}
END_TEST

/* As the header says: a letter for the side, both nonces, the versions. */
static void make_proof(char side, const unsigned char *asks, const unsigned char *serves,
                       const char text[CTL_PEER_VERSIONS], unsigned char proof_p[PROOF_BYTES])
{
    crypto_generichash_state state;

    crypto_generichash_init(&state, key, sizeof key, PROOF_BYTES);
    crypto_generichash_update(&state, (const unsigned char *)&side, 1);
    crypto_generichash_update(&state, asks + NONCE_AT, HELLO_BYTES - NONCE_AT);
    crypto_generichash_update(&state, serves + NONCE_AT, HELLO_BYTES - NONCE_AT);
    crypto_generichash_update(&state, (const unsigned char *)text, CTL_PEER_VERSIONS);
    crypto_generichash_final(&state, proof_p, PROOF_BYTES);
}

/* What a side that serves says, byte by byte. */
struct script {
    const char *magic;
    char side; /* of its proof */
    char text[CTL_PEER_VERSIONS];
    int status; /* of the one that asks */
};

static void *serve_by_hand(void *user)
{
    const struct script *script = user;
    unsigned char asks[HELLO_BYTES], serves[HELLO_BYTES], proof[PROOF_BYTES + CTL_PEER_VERSIONS];

    ck_assert_int_eq(recv(there.fd, asks, sizeof asks, MSG_WAITALL), (ssize_t)sizeof asks);
    memcpy(serves, script->magic, NONCE_AT);
    memset(serves + NONCE_AT, 7, HELLO_BYTES - NONCE_AT);
    send(there.fd, serves, sizeof serves, MSG_NOSIGNAL);
    if (recv(there.fd, proof, sizeof proof, MSG_WAITALL) == (ssize_t)sizeof proof) {
        make_proof(script->side, asks, serves, script->text, proof);
        memcpy(proof + PROOF_BYTES, script->text, CTL_PEER_VERSIONS);
        send(there.fd, proof, sizeof proof, MSG_NOSIGNAL);
    }
    return NULL;
}

static struct script scripts[] = {
    {"hvdpeer1", 's', "as promised", HVI_OK},
    {"hvdpeer2", 's', "another protocol", HVI_ERR_PROTOCOL},
    {"hvdpeer1", 'a', "a proof sent back", HVI_ERR_REFUSED},
    {"hvdpeer1", 's', "\033[2J", HVI_ERR_PROTOCOL},
    {"hvdpeer1", 's', "", HVI_ERR_PROTOCOL}, /* filled below: it has no end */
};

START_TEST(a_peer_that_lies_is_found_out)
{
    pthread_t thread;

    if (scripts[_i].text[0] == '\0')
        memset(scripts[_i].text, 'x', CTL_PEER_VERSIONS);
    ck_assert_int_eq(pthread_create(&thread, NULL, serve_by_hand, &scripts[_i]), 0);
    ck_assert_int_eq(ctl_peer_meet(&here, key, false, "here 1", versions), scripts[_i].status);
    shutdown(here.fd, SHUT_WR);
    pthread_join(thread, NULL);
    ck_assert_str_eq(versions, scripts[_i].status == HVI_OK ? scripts[_i].text : "");
}
END_TEST

START_TEST(a_stranger_is_no_peer_and_is_told_nothing)
{
    static const char noise[HELLO_BYTES] = "GET / HTTP/1.1\r\n";
    char byte;

    ck_assert_int_eq(send(there.fd, noise, sizeof noise, 0), (ssize_t)sizeof noise);
    ck_assert_int_eq(ctl_peer_meet(&here, key, true, "here 1", versions), HVI_ERR_PROTOCOL);
    ck_assert_int_eq(recv(there.fd, &byte, 1, MSG_DONTWAIT), -1);
}
END_TEST

START_TEST(one_that_hangs_up_before_its_hello_has_not_said_that_the_key_is_wrong)
{
    hang_up();
    ck_assert_int_eq(ctl_peer_meet(&here, key, _i != 0, "here 1", versions), HVI_ERR_CLOSED);
}
END_TEST

START_TEST(a_silent_peer_is_waited_for_until_the_deadline)
{
    here.deadline_ns = hvi_deadline_after(5 * HVI_NS_MS);
    ck_assert_int_eq(ctl_peer_meet(&here, key, _i != 0, "here 1", versions), HVI_ERR_TIMEOUT);
    ck_assert(hvi_deadline_passed(here.deadline_ns));
    ck_assert_int_eq(ctl_peer_pour(&here, CTL_PEER_BYTES_MAX), HVI_ERR_TIMEOUT);
}
END_TEST

/* ---- questions and bytes ---- */

START_TEST(questions_arrive_as_they_were_asked)
{
    static const struct ctl_peer_ask asks[] = {
        {CTL_PEER_ECHO, 0}, {CTL_PEER_TAKE, 1}, {CTL_PEER_GIVE, CTL_PEER_BYTES_MAX}};
    struct ctl_peer_ask ask;

    for (size_t i = 0; i < sizeof asks / sizeof asks[0]; i++) {
        ck_assert_int_eq(ctl_peer_send_ask(&there, &asks[i]), HVI_OK);
        ck_assert_int_eq(ctl_peer_receive_ask(&here, &ask), HVI_OK);
        ck_assert_uint_eq(ask.what, asks[i].what);
        ck_assert_uint_eq(ask.bytes, asks[i].bytes);
    }
    hang_up();
    ck_assert_int_eq(ctl_peer_receive_ask(&here, &ask), HVI_ERR_CLOSED);
    ck_assert_int_eq(ctl_peer_send_ask(&here, &ask), HVI_ERR_CLOSED);
}
END_TEST

START_TEST(what_is_no_question_is_refused)
{
    static const struct ctl_peer_ask asks[] = {
        {0, 0}, {CTL_PEER_GIVE + 1, 0}, {CTL_PEER_TAKE, CTL_PEER_BYTES_MAX + 1}};
    struct ctl_peer_ask ask;

    ck_assert_int_eq(ctl_peer_send_ask(&there, &asks[_i]), HVI_OK);
    ck_assert_int_eq(ctl_peer_receive_ask(&here, &ask), HVI_ERR_PROTOCOL);
}
END_TEST

#define MANY (3u * CTL_PEER_PIECE + 5u)

static void *pour(void *user)
{
    *(int *)user = ctl_peer_pour(&there, MANY);
    return NULL;
}

START_TEST(as_many_bytes_come_out_as_were_poured_in)
{
    int status = HVI_ERR_CLOSED;
    pthread_t thread;
    char byte;

    ck_assert_int_eq(pthread_create(&thread, NULL, pour, &status), 0);
    ck_assert_int_eq(ctl_peer_drain(&here, MANY), HVI_OK);
    pthread_join(thread, NULL);
    ck_assert_int_eq(status, HVI_OK);
    ck_assert_int_eq(recv(here.fd, &byte, 1, MSG_DONTWAIT), -1);
    ck_assert_int_eq(ctl_peer_pour(&there, 10), HVI_OK);
    hang_up();
    ck_assert_int_eq(ctl_peer_drain(&here, 11), HVI_ERR_CLOSED);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tools/hvdctl/peer_link");
    TCase *tests = tcase_create("peer_link");
    tcase_add_checked_fixture(tests, set_up, tear_down);
    tcase_add_test(tests, a_key_is_fresh_and_32_digits);
    tcase_add_loop_test(tests, both_sides_have_the_key_and_learn_the_others_versions, 0, 2);
    tcase_add_test(tests, with_another_key_both_are_told_and_the_one_that_serves_proves_nothing);
    tcase_add_loop_test(tests, a_peer_that_lies_is_found_out, 0,
                        sizeof scripts / sizeof scripts[0]);
    tcase_add_test(tests, a_stranger_is_no_peer_and_is_told_nothing);
    tcase_add_loop_test(
        tests, one_that_hangs_up_before_its_hello_has_not_said_that_the_key_is_wrong, 0, 2);
    tcase_add_loop_test(tests, a_silent_peer_is_waited_for_until_the_deadline, 0, 2);
    tcase_add_test(tests, questions_arrive_as_they_were_asked);
    tcase_add_loop_test(tests, what_is_no_question_is_refused, 0, 3);
    tcase_add_test(tests, as_many_bytes_come_out_as_were_poured_in);
    suite_add_tcase(suite, tests);
    return hvt_run_suite(suite);
}
