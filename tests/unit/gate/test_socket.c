/* SPDX-License-Identifier: Apache-2.0
 * A socket that listens, with more connections than a test of whole gates has. The peers are in a process of their own:
 * its descriptors are not ours. */
#include "daemon/gate/socket.h"

#include "base/status.h"
#include "daemon/gate/gate.h"
#include "tests/unit/hvt_main.h"
#include "tests/unit/hvt_process.h"

#include <arpa/inet.h>
#include <zmq.h>

#define NODES     300 /* more than half of what strangers may have */
#define STRANGERS 250 /* together with the nodes more than that */
#define AT_ONCE   10
#define ANSWER_MS 15000
#define PATIENCE  (60 * (int64_t)HVI_NS_SEC)

#ifdef HVD_SANITIZE
#define FOR_THREADS (strstr(HVD_SANITIZE, "thread") != NULL)
#else
#define FOR_THREADS false
#endif

static sd_event *event;
static struct gate_socket *listening;
static struct gate_keys keys;
static char client_public[GATE_KEY_TEXT], client_secret[GATE_KEY_TEXT];
static uint32_t port;

/* ---- the peers ---- */

static void *connect_node(void *context, int number)
{
    const int no_linger = 0;
    char endpoint[64], route[GATE_ROUTE_TEXT];
    void *node = zmq_socket(context, ZMQ_DEALER);

    snprintf(endpoint, sizeof endpoint, "tcp://127.0.0.1:%u", port);
    snprintf(route, sizeof route, "%016d", number);
    zmq_setsockopt(node, ZMQ_LINGER, &no_linger, sizeof no_linger);
    zmq_setsockopt(node, ZMQ_ROUTING_ID, route, sizeof route - 1);
    zmq_setsockopt(node, ZMQ_CURVE_SERVERKEY, keys.server, strlen(keys.server));
    zmq_setsockopt(node, ZMQ_CURVE_PUBLICKEY, client_public, strlen(client_public));
    zmq_setsockopt(node, ZMQ_CURVE_SECRETKEY, client_secret, strlen(client_secret));
    zmq_connect(node, endpoint);
    zmq_send(node, "hello", 5, 0);
    return node;
}

static bool is_answered(void *node)
{
    const int patience_ms = ANSWER_MS;
    char answer[8];

    zmq_setsockopt(node, ZMQ_RCVTIMEO, &patience_ms, sizeof patience_ms);
    return zmq_recv(node, answer, sizeof answer, 0) == 5;
}

static int connect_stranger(void)
{
    const struct sockaddr_in to = {.sin_family = AF_INET,
                                   .sin_port = htons((uint16_t)port),
                                   .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    return connect(fd, (const struct sockaddr *)&to, sizeof to) == 0 ? fd : -1;
}

/* All at once, of one address, and the other side is slow: some are cut off, and try again. */
static int be_crowd(void)
{
    void *context = zmq_ctx_new(), *nodes[NODES];

    for (int i = 0; i < NODES; i++)
        nodes[i] = connect_node(context, i);
    for (int i = 0; i < NODES; i++)
        if (!is_answered(nodes[i]))
            return 1;
    return 0;
}

/* The exit status: which step has failed, 0: none. */
static int be_peers(void)
{
    void *context = zmq_ctx_new(), *nodes[NODES];
    int strangers[STRANGERS];

    for (int i = 0; i < NODES; i += AT_ONCE) {
        for (int k = i; k < i + AT_ONCE; k++)
            nodes[k] = connect_node(context, k);
        for (int k = i; k < i + AT_ONCE; k++)
            if (!is_answered(nodes[k]))
                return 1;
    }
    for (int i = 0; i < STRANGERS; i++)
        if ((strangers[i] = connect_stranger()) < 0)
            return 2;
    usleep(200 * 1000); /* not a wait for something: long enough for libzmq to accept them */
    for (int i = 0; i < STRANGERS; i++)
        close(strangers[i]);
    return is_answered(connect_node(context, NODES)) ? 0 : 3;
}

/* ---- the socket ---- */

static void answer(void *user, const struct gate_sender *from, const unsigned char *bytes,
                   size_t length)
{
    (void)user;
    gate_socket_send(listening, from->route, bytes, length);
}

static void forget(void *user, int connection)
{
    (void)user, (void)connection;
}

static void setup(void)
{
    static const struct gate_socket_calls calls = {.received = answer, .disconnected = forget};
    static char clients[1][GATE_KEY_TEXT];
    const uint32_t first = 20000 + (uint32_t)getpid() % 20000;
    char text[256] = "";

    ck_assert_int_eq(zmq_curve_keypair(keys.server, keys.secret), 0);
    ck_assert_int_eq(zmq_curve_keypair(client_public, client_secret), 0);
    memcpy(clients[0], client_public, GATE_KEY_TEXT);
    keys.clients = clients;
    keys.client_count = 1;
    ck_assert_int_ge(sd_event_new(&event), 0);
    ck_assert_msg(gate_socket_listen(event, &keys, "127.0.0.1:0", first, first + 500, &calls, NULL,
                                     &listening, &port, text, sizeof text) == HVI_OK,
                  "%s", text);
}

static void teardown(void)
{
    gate_socket_close(listening);
    sd_event_unref(event);
}

static void serve(int (*be)(void), unsigned pause_us)
{
    const uint64_t end_ns = hvi_deadline_after(PATIENCE);
    int status = 0;
    pid_t peers;

    peers = fork();
    if (peers == 0)
        _exit(be());
    usleep(pause_us);
    while (waitpid(peers, &status, WNOHANG) == 0) {
        ck_assert_msg(!hvi_deadline_passed(end_ns), "the peers do not come to their end");
        ck_assert_int_ge(sd_event_run(event, 5000), 0);
        gate_socket_tick(listening, hvi_clock_ns());
    }
    ck_assert_int_eq(status, 0);
}

START_TEST(strangers_that_come_and_go_beside_many_nodes_keep_none_out)
{
    if (!hvt_skip_if(FOR_THREADS, "ThreadSanitizer has no program that forks beside threads"))
        serve(be_peers, 0);
}
END_TEST

START_TEST(a_crowd_of_nodes_of_one_address_gets_in)
{
    if (!hvt_skip_if(FOR_THREADS, "ThreadSanitizer has no program that forks beside threads"))
        serve(be_crowd, 200 * 1000);
}
END_TEST

#define JOINS 25

static struct gate_socket *joining;
static int answers, uses;

static void count_answer(void *user, const struct gate_sender *from, const unsigned char *bytes,
                         size_t length)
{
    (void)user, (void)from;
    answers += length == 5 && memcmp(bytes, "hello", 5) == 0;
}

/* Too early, which the socket does not take; and as soon as it can be used, once and never again. */
static void say_once(void *user, const char *address)
{
    (void)user;
    if (address[0] != '\0')
        gate_socket_send(joining, "", (const unsigned char *)"early", 5);
    else if (uses++ == 0)
        gate_socket_send(joining, "", (const unsigned char *)"hello", 5);
}

static void complain(void *user, const char *text, bool known)
{
    (void)user, (void)known;
    ck_abort_msg("%s", text);
}

START_TEST(what_is_said_as_soon_as_a_connection_can_be_used_is_heard)
{
    static const struct gate_socket_calls calls = {
        .received = count_answer, .connected = say_once, .failed = complain};
    struct gate_keys mine = {.clients = keys.clients, .client_count = 1};
    char endpoint[64], text[256] = "";

    memcpy(mine.server, keys.server, GATE_KEY_TEXT);
    memcpy(mine.secret, client_secret, GATE_KEY_TEXT);
    snprintf(endpoint, sizeof endpoint, "127.0.0.1:%u", port);
    for (int i = 0; i < JOINS; i++) { /* of an unlucky socket, two of five were lost */
        const uint64_t end_ns = hvi_deadline_after(10 * HVI_NS_SEC);
        char route[GATE_ROUTE_TEXT];
        snprintf(route, sizeof route, "%016x", i);
        answers = uses = 0;
        ck_assert_msg(gate_socket_join(event, &mine, endpoint, route, &calls, NULL, &joining, text,
                                       sizeof text) == HVI_OK,
                      "%s", text);
        while (answers == 0) {
            ck_assert_msg(!hvi_deadline_passed(end_ns), "hello %d of %d was lost", i, JOINS);
            ck_assert_int_ge(sd_event_run(event, 50000), 0);
        }
        gate_socket_close(joining);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("gate/socket");
    TCase *tests = tcase_create("socket");
    tcase_set_timeout(tests, 90);
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, what_is_said_as_soon_as_a_connection_can_be_used_is_heard);
    tcase_add_test(tests, strangers_that_come_and_go_beside_many_nodes_keep_none_out);
    tcase_add_test(tests, a_crowd_of_nodes_of_one_address_gets_in);
    suite_add_tcase(suite, tests);
    return hvt_run_suite(suite);
}
