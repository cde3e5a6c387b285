/* SPDX-License-Identifier: Apache-2.0
 * `hvdctl doctor --peer` and `--peer-server` over the loopback: with each other, and each with the test on the other side, which
 * hangs up, lies, is a mesh or a stranger. */
#include "base/clock.h"
#include "base/status.h"
#include "tests/unit/hvt_main.h"
#include "tests/unit/hvt_process.h"
#include "tests/unit/tools/hvdctl/hvt_program.h"
#include "tools/hvdctl/peer_link.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>

#define PATIENCE_S  20
#define SERVER_WAYS "61000-61099" /* none of them is handed out by the kernel */
#define NO_KEY      "000102030405060708090a0b0c0d0e0f"

static uint64_t deadline(void)
{
    return hvi_deadline_after(PATIENCE_S * (int64_t)HVI_NS_SEC);
}

/* At a port of the loopback that the kernel has chosen, *port_p; nothing listens there yet. */
static int bind_one(uint16_t *port_p)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const struct timeval patience = {.tv_sec = PATIENCE_S};
    socklen_t length = sizeof address;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    ck_assert_int_eq(bind(fd, (const struct sockaddr *)&address, sizeof address), 0);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&address, &length), 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience); /* of accept */
    *port_p = ntohs(address.sin_port);
    return fd;
}

static int connect_to(uint16_t port)
{
    const struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    ck_assert_int_eq(connect(fd, (const struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

/* ---- the one that asks ---- */

enum play {
    SERVES,
    STOPS_AT_TAKE,
    STOPS_AT_GIVE,
    HANGS_UP,
    SAYS_NOTHING_OF_USE,
    HAS_ANOTHER_KEY,
    IS_A_MESH,
};

struct player {
    int listening;
    enum play play;
    const char *versions;
    unsigned char key[CTL_PEER_KEY_BYTES];
    int status; /* of the meeting */
};

static void answer(const struct ctl_peer_link *link, enum play play)
{
    struct ctl_peer_ask ask;

    while (ctl_peer_receive_ask(link, &ask) == HVI_OK) {
        if ((play == STOPS_AT_TAKE && ask.what == CTL_PEER_TAKE) ||
            (play == STOPS_AT_GIVE && ask.what == CTL_PEER_GIVE))
            return;
        if (ask.what == CTL_PEER_GIVE) {
            ctl_peer_pour(link, ask.bytes);
            continue;
        }
        if (ask.what == CTL_PEER_TAKE)
            ctl_peer_drain(link, ask.bytes);
        ctl_peer_send_ask(link, &ask);
    }
}

/* One connection; others may wait in the queue. */
static void *serve_one(void *user)
{
    struct player *player = user;
    const int fd = accept(player->listening, NULL, NULL);
    const struct ctl_peer_link link = {fd, deadline()};
    char greeting[64], versions[CTL_PEER_VERSIONS];

    if (player->play == IS_A_MESH || player->play == SAYS_NOTHING_OF_USE) {
        ctl_peer_receive(&link, greeting, player->play == IS_A_MESH ? sizeof greeting : 40);
        if (player->play == SAYS_NOTHING_OF_USE) /* else it is greeted as it greets */
            memset(greeting, 'x', sizeof greeting);
        ctl_peer_send(&link, greeting, sizeof greeting);
    } else if (player->play != HANGS_UP) {
        player->status = ctl_peer_meet(&link, player->key, true, player->versions, versions);
        if (player->status == HVI_OK)
            answer(&link, player->play);
    }
    close(fd);
    return NULL;
}

static struct player player;

/* doctor --peer with such a peer; with the key, unless that is NULL. */
static cJSON *ask(enum play play, const char *key, const char *versions)
{
    uint16_t port;
    pthread_t thread;
    char words[64];

    player = (struct player){.play = play, .versions = versions};
    player.listening = bind_one(&port);
    ck_assert_int_eq(listen(player.listening, 64), 0);
    ck_assert(ctl_peer_key_parse(NO_KEY, player.key));
    if (key != NULL)
        setenv(CTL_PEER_KEY_NAME, key, 1);
    else
        unsetenv(CTL_PEER_KEY_NAME);
    ck_assert_int_eq(pthread_create(&thread, NULL, serve_one, &player), 0);
    snprintf(words, sizeof words, "doctor --json --peer 127.0.0.1:%u", port);
    hvt_run(words);
    pthread_join(thread, NULL);
    close(player.listening);
    cJSON *document = hvt_findings();
    hvt_expect_finding(document, "peer's name", "ok", "127.0.0.1 is 127.0.0.1", "");
    snprintf(words, sizeof words, "127.0.0.1, port %u: connected", port);
    hvt_expect_finding(document, "peer's port", "ok", words, "");
    hvt_expect_finding(document, "way to the peer", "ok", "from 127.0.0.1, lo, MTU ", "");
    return document;
}

START_TEST(a_mesh_of_hvdds_is_known_without_a_key)
{
    cJSON *document = ask(IS_A_MESH, NULL, NULL);
    hvt_expect_finding(document, "peer's hvdd", "ok", "a mesh that hvdd could join answers",
                       "`hvdctl nodes` here says");
    hvt_expect_finding(document, "round trip", "ok", "the median of 5 connections", "");
    hvt_expect_finding(document, "bandwidth", "ok", "not measured",
                       "run hvdctl doctor --peer-server on 127.0.0.1");
    hvt_expect_finding(document, "path MTU", "ok", "", "");
    cJSON_Delete(document);
}
END_TEST

START_TEST(what_else_listens_is_no_mesh)
{
    static const enum play plays[] = {SAYS_NOTHING_OF_USE, HANGS_UP};
    cJSON *document = ask(plays[_i], NULL, NULL);
    hvt_expect_finding(document, "peer's hvdd", "note", "no mesh of a hvdd's", "HVD_PEER_KEY");
    cJSON_Delete(document);
}
END_TEST

static const struct {
    enum play play;
    const char *key, *value, *next;
} unmet[] = {
    {SAYS_NOTHING_OF_USE, NO_KEY, "is no hvdctl doctor --peer-server", "unset HVD_PEER_KEY"},
    {HANGS_UP, NO_KEY, "is no hvdctl doctor --peer-server", "use the port of the line"},
    {HAS_ANOTHER_KEY, "ff0102030405060708090a0b0c0d0e0f", "the hvdctl there has another key",
     "copy the line"},
    {HANGS_UP, "ff01", "HVD_PEER_KEY is no key", "copy the whole line"},
};

START_TEST(a_peer_that_is_not_met_ends_the_checks)
{
    cJSON *document = ask(unmet[_i].play, unmet[_i].key, "hvdctl 0");
    hvt_expect_finding(document, "peer's hvdd", "problem", unmet[_i].value, unmet[_i].next);
    ck_assert_ptr_null(hvt_finding(document, "round trip"));
    cJSON_Delete(document);
}
END_TEST

START_TEST(a_link_that_takes_small_messages_alone_is_a_problem)
{
    cJSON *document = ask(_i == 0 ? STOPS_AT_TAKE : STOPS_AT_GIVE, NO_KEY, "hvdctl 0, no hvdd");
    hvt_expect_finding(document, "peer's hvdd", "note", "hvdctl 0, no hvdd",
                       "here it is hvdctl " HVD_VERSION_TEXT ", no hvdd: install the same");
    hvt_expect_finding(document, "round trip", "ok", "the median of 101 messages", "");
    hvt_expect_finding(document, "bandwidth", "problem",
                       _i == 0 ? "a megabyte to it does not" : "a megabyte from it does not",
                       "ip link set lo mtu 1400");
    ck_assert_ptr_null(hvt_finding(document, "path MTU"));
    cJSON_Delete(document);
}
END_TEST

START_TEST(where_nothing_listens_depends_on_who_has_named_the_port)
{
    uint16_t port;
    char words[64], range[16];
    const int fd = bind_one(&port);

    snprintf(words, sizeof words, "doctor --json --peer 127.0.0.1:%u", port);
    hvt_run(words);
    cJSON *document = hvt_findings();
    hvt_expect_finding(document, "peer's port", "problem", "refused, nothing listens there",
                       "start it on 127.0.0.1");
    ck_assert_ptr_null(hvt_finding(document, "way to the peer"));
    cJSON_Delete(document);
    snprintf(range, sizeof range, "%u-%u", port, port);
    setenv("HVD_PORT_RANGE", range, 1);
    hvt_run("doctor --json --peer 127.0.0.1");
    document = hvt_findings();
    hvt_expect_finding(document, "peer's port", "note", "refused, so what is sent there is not",
                       "nothing listens there between jobs");
    hvt_expect_finding(document, "peer's hvdd", "ok", "none at the moment", "");
    hvt_expect_finding(document, "round trip", "ok", "the median of 5 connections", "");
    hvt_expect_finding(document, "path MTU", "ok", "not known without a connection", "");
    cJSON_Delete(document);
    close(fd);
}
END_TEST

static const struct {
    const char *peer, *check, *value, *next;
} ways[] = {
    {"[::1:9600", "peer's name", "\"[::1:9600\" is no HOST or HOST:PORT", "[fd00::2]:9600"},
    {"127.0.0.1:0", "peer's name", "is no HOST or HOST:PORT", "server2:9600"},
    /* No server is asked for a label that is longer than 63. */
    {"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", "peer's name",
     "xxxx: ", "give /etc/hosts or DNS this name"},
    {"255.255.255.255:9", "peer's port", "255.255.255.255, port 9: ", "`ip route get`"},
};

START_TEST(a_name_that_is_none_and_a_way_that_is_none_end_the_checks)
{
    char words[128];

    snprintf(words, sizeof words, "doctor --json --peer %s", ways[_i].peer);
    hvt_run(words);
    cJSON *document = hvt_findings();
    hvt_expect_finding(document, ways[_i].check, "problem", ways[_i].value, ways[_i].next);
    ck_assert_ptr_null(hvt_finding(document, "way to the peer"));
    cJSON_Delete(document);
}
END_TEST

/* ---- the one that serves ---- */

struct server {
    pid_t pid;
    uint16_t port;
    char key[CTL_PEER_KEY_TEXT];
};

/* As soon as it has said where it listens. */
static struct server start_server(bool json)
{
    const struct timespec pause = {0, 1000000};
    const uint64_t deadline_ns = deadline();
    struct server server;
    char path[128], text[1024] = "";
    unsigned port = 0;

    setenv("HVD_PORT_RANGE", SERVER_WAYS, 1);
    server.pid = hvt_start(json ? "doctor --peer-server --json" : "doctor --peer-server", "server");
    snprintf(path, sizeof path, "%s/server.out", hvt_root);
    while (strchr(text, ':') == NULL || text[strlen(text) - 1] != '\n') {
        ck_assert(!hvi_deadline_passed(deadline_ns));
        nanosleep(&pause, NULL);
        hvt_read(path, text, sizeof text);
    }
    const int found =
        json ? sscanf(text, "{\"port\": %u, \"key\": \"%32[0-9a-f]\", \"seconds\": 300}", &port,
                      server.key)
             : sscanf(text, "%*[^=]=%32[0-9a-f] hvdctl doctor --peer %*[^:]:%u", server.key, &port);
    ck_assert_int_eq(found, 2);
    server.port = (uint16_t)port;
    unsetenv("HVD_PORT_RANGE");
    return server;
}

static void expect_server_end(const struct server *server, const char *said, const char *complaint)
{
    char path[128], text[1024];

    ck_assert_int_eq(hvt_wait_child(server->pid), 0);
    snprintf(path, sizeof path, "%s/server.out", hvt_root);
    hvt_read(path, text, sizeof text);
    ck_assert_msg(strstr(text, said) != NULL, "%s", text);
    snprintf(path, sizeof path, "%s/server.err", hvt_root);
    hvt_read(path, text, sizeof text);
    ck_assert_str_eq(text, complaint);
}

static double figure(const cJSON *document, const char *check, const char *name)
{
    return cJSON_GetNumberValue(cJSON_GetObjectItem(hvt_finding(document, check), name));
}

START_TEST(two_of_them_measure_what_is_between_them)
{
    char words[64];
    const struct server server = start_server(true);

    setenv(CTL_PEER_KEY_NAME, server.key, 1);
    snprintf(words, sizeof words, "doctor --json --peer 127.0.0.1:%u", server.port);
    hvt_run(words);
    expect_server_end(&server, "{", "");
    cJSON *document = hvt_findings();
    hvt_expect_finding(document, "peer's hvdd", "ok", "hvdctl " HVD_VERSION_TEXT ", no hvdd", "");
    hvt_expect_finding(document, "round trip", "ok", "the median of 101 messages", "");
    hvt_expect_finding(document, "bandwidth", "ok", "/s to it, ", "");
    hvt_expect_finding(document, "path MTU", "ok", "", "");
    ck_assert(figure(document, "round trip", "round_trip_ns") > 0);
    ck_assert(figure(document, "bandwidth", "send_bytes_per_s") > 0);
    ck_assert(figure(document, "bandwidth", "receive_bytes_per_s") > 0);
    ck_assert(figure(document, "path MTU", "path_mtu") >= 1280);
    cJSON_Delete(document);
}
END_TEST

/* A connection that ends as it should with such a key: its meeting. */
static int meet(const struct server *server, const char *key_text, struct ctl_peer_link *link_p)
{
    unsigned char key[CTL_PEER_KEY_BYTES];
    char versions[CTL_PEER_VERSIONS];

    ck_assert(ctl_peer_key_parse(key_text, key));
    *link_p = (struct ctl_peer_link){connect_to(server->port), deadline()};
    return ctl_peer_meet(link_p, key, false, "the test 1", versions);
}

static void expect_answers(const struct ctl_peer_link *link)
{
    struct ctl_peer_ask question = {CTL_PEER_ECHO, 0};

    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(ctl_peer_send_ask(link, &question), HVI_OK);
        ck_assert_int_eq(ctl_peer_receive_ask(link, &question), HVI_OK);
    }
    question = (struct ctl_peer_ask){CTL_PEER_TAKE, 70001};
    ck_assert_int_eq(ctl_peer_send_ask(link, &question), HVI_OK);
    ck_assert_int_eq(ctl_peer_pour(link, 70001), HVI_OK);
    ck_assert_int_eq(ctl_peer_receive_ask(link, &question), HVI_OK);
    ck_assert_uint_eq(question.bytes, 70001);
    question = (struct ctl_peer_ask){CTL_PEER_GIVE, 70002};
    ck_assert_int_eq(ctl_peer_send_ask(link, &question), HVI_OK);
    ck_assert_int_eq(ctl_peer_drain(link, 70002), HVI_OK);
}

START_TEST(the_first_one_with_the_key_is_served_and_nobody_before_it)
{
    static const char noise[64] = "GET / HTTP/1.1\r\n";
    struct ctl_peer_ask question = {CTL_PEER_GIVE + 1, 0};
    struct ctl_peer_link link;
    char byte;
    const struct server server = start_server(false);

    close(connect_to(server.port)); /* one that only tries the port */
    const int stranger = connect_to(server.port);
    ck_assert_int_eq(send(stranger, noise, 40, 0), 40);
    ck_assert_int_eq(recv(stranger, &byte, 1, 0), 0);
    close(stranger);
    ck_assert_int_eq(meet(&server, NO_KEY, &link), HVI_ERR_REFUSED);
    close(link.fd);
    ck_assert_int_eq(meet(&server, server.key, &link), HVI_OK);
    expect_answers(&link);
    ck_assert_int_eq(ctl_peer_send_ask(&link, &question), HVI_OK); /* which is none */
    ck_assert_int_eq(ctl_peer_receive_ask(&link, &question), HVI_ERR_CLOSED);
    close(link.fd);
    expect_server_end(&server, "\nmeasured with 127.0.0.1 (the test 1)\n",
                      "hvdctl: 127.0.0.1 has not the key\nhvdctl: 127.0.0.1 has not the key\n");
}
END_TEST

START_TEST(a_server_without_a_port_says_so)
{
    uint16_t port;
    char range[16];
    const int fd = bind_one(&port);

    ck_assert_int_eq(listen(fd, 1), 0);
    setenv("HVD_PORT_RANGE", "9631-9600", 1);
    hvt_run("doctor --peer-server");
    hvt_expect_end(2, "HVD_PORT_RANGE is no range of ports as 9600-9631");
    snprintf(range, sizeof range, "%u-%u", port, port);
    setenv("HVD_PORT_RANGE", range, 1);
    hvt_run("doctor --peer-server --json");
    hvt_expect_end(1, "can be listened at (Address already in use): give HVD_PORT_RANGE another");
    hvt_expect_error(HVI_ERR_LIMIT);
    close(fd);
}
END_TEST

static void set_up(void)
{
    hvt_program_setup();
    unsetenv(CTL_PEER_KEY_NAME);
    unsetenv("HVD_PORT_RANGE");
    unsetenv("HVD_INTERFACE");
}

int main(void)
{
    Suite *suite = suite_create("tools/hvdctl/peer");
    TCase *tests = tcase_create("peer");
    tcase_add_checked_fixture(tests, set_up, hvt_program_teardown);
    tcase_add_test(tests, a_mesh_of_hvdds_is_known_without_a_key);
    tcase_add_loop_test(tests, what_else_listens_is_no_mesh, 0, 2);
    tcase_add_loop_test(tests, a_peer_that_is_not_met_ends_the_checks, 0,
                        sizeof unmet / sizeof unmet[0]);
    tcase_add_loop_test(tests, a_link_that_takes_small_messages_alone_is_a_problem, 0, 2);
    tcase_add_test(tests, where_nothing_listens_depends_on_who_has_named_the_port);
    tcase_add_loop_test(tests, a_name_that_is_none_and_a_way_that_is_none_end_the_checks, 0,
                        sizeof ways / sizeof ways[0]);
    tcase_add_test(tests, two_of_them_measure_what_is_between_them);
    tcase_add_test(tests, the_first_one_with_the_key_is_served_and_nobody_before_it);
    tcase_add_test(tests, a_server_without_a_port_says_so);
    suite_add_tcase(suite, tests);
    return hvt_run_suite(suite);
}
