/* SPDX-License-Identifier: Apache-2.0
 * A socket that listens, with more connections than a test of whole gates has. The peers are in a process of their own:
 * its descriptors are not ours. And sockets that join, also where no gate listens. */
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
#define REPEAT_MS 500
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

static void say_hello(void *node)
{
    zmq_send(node, "hello", 5, ZMQ_DONTWAIT);
}

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
    say_hello(node);
    return node;
}

/* Meanwhile each of the `count` nodes says hello twice a second, as gates do. libzmq cuts connections on a machine that stood still
 * for a second: what was on its way is lost, and a node that comes again and is silent counts as a stranger. */
static bool is_answered(void *const nodes[], int count, int which)
{
    const int repeat_ms = REPEAT_MS;
    char answer[8];

    zmq_setsockopt(nodes[which], ZMQ_RCVTIMEO, &repeat_ms, sizeof repeat_ms);
    for (int waited_ms = 0; waited_ms < ANSWER_MS; waited_ms += REPEAT_MS) {
        if (zmq_recv(nodes[which], answer, sizeof answer, 0) == 5)
            return true;
        for (int i = 0; i < count; i++)
            say_hello(nodes[i]);
    }
    return false;
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
        if (!is_answered(nodes, NODES, i))
            return 1;
    return 0;
}

/* The exit status: which step has failed, 0: none. */
static int be_peers(void)
{
    void *context = zmq_ctx_new(), *nodes[NODES + 1];
    int strangers[STRANGERS];

    for (int i = 0; i < NODES; i += AT_ONCE) {
        for (int k = i; k < i + AT_ONCE; k++)
            nodes[k] = connect_node(context, k);
        for (int k = i; k < i + AT_ONCE; k++)
            if (!is_answered(nodes, i + AT_ONCE, k))
                return 1;
    }
    for (int i = 0; i < STRANGERS; i++)
        if ((strangers[i] = connect_stranger()) < 0)
            return 2;
    usleep(200 * 1000); /* not a wait for something: long enough for libzmq to accept them */
    for (int i = 0; i < STRANGERS; i++)
        close(strangers[i]);
    nodes[NODES] = connect_node(context, NODES);
    return is_answered(nodes, NODES + 1, NODES) ? 0 : 3;
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

/* 0: at any port. */
static void listen_at(uint32_t wanted)
{
    static const struct gate_socket_calls calls = {.received = answer, .disconnected = forget};
    const uint32_t first = 20000 + (uint32_t)getpid() % 20000;
    char endpoint[64], text[256] = "";

    snprintf(endpoint, sizeof endpoint, "127.0.0.1:%u", wanted);
    ck_assert_msg(gate_socket_listen(event, &keys, endpoint, first, first + 500, &calls, NULL,
                                     &listening, &port, text, sizeof text) == HVI_OK,
                  "%s", text);
}

static void setup(void)
{
    static char clients[1][GATE_KEY_TEXT];

    ck_assert_int_eq(zmq_curve_keypair(keys.server, keys.secret), 0);
    ck_assert_int_eq(zmq_curve_keypair(client_public, client_secret), 0);
    memcpy(clients[0], client_public, GATE_KEY_TEXT);
    keys.clients = clients;
    keys.client_count = 1;
    ck_assert_int_ge(sd_event_new(&event), 0);
    listen_at(0);
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
    ck_assert_msg(status == 0, "wait status %#x; an exit status is the step that failed",
                  (unsigned)status);
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
#define CUTS  5 /* by libzmq, on a machine that stood still for a second: no hello is missed */

static struct gate_socket *joining;
static int answers, uses;
static bool has_failed;
static char why[256];
static bool why_known;

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

/* The first failure. */
static void note_failure(void *user, const char *text, bool known)
{
    (void)user;
    if (has_failed)
        return;
    has_failed = true;
    why_known = known;
    snprintf(why, sizeof why, "%s", text);
}

static void join(int number)
{
    static const struct gate_socket_calls calls = {
        .received = count_answer, .connected = say_once, .failed = note_failure};
    static struct gate_keys mine;
    char endpoint[64], route[GATE_ROUTE_TEXT], text[256] = "";

    mine = (struct gate_keys){.clients = keys.clients, .client_count = 1};
    memcpy(mine.server, keys.server, GATE_KEY_TEXT);
    memcpy(mine.secret, client_secret, GATE_KEY_TEXT);
    snprintf(endpoint, sizeof endpoint, "127.0.0.1:%u", port);
    snprintf(route, sizeof route, "%016x", number);
    answers = uses = 0;
    has_failed = false;
    ck_assert_msg(gate_socket_join(event, &mine, endpoint, route, &calls, NULL, &joining, text,
                                   sizeof text) == HVI_OK,
                  "%s", text);
}

START_TEST(what_is_said_as_soon_as_a_connection_can_be_used_is_heard)
{
    int cuts = 0;

    for (int i = 0; i < JOINS + cuts; i++) { /* of an unlucky socket, two of five were lost */
        const uint64_t end_ns = hvi_deadline_after(10 * HVI_NS_SEC);
        join(i);
        while (answers == 0 && !has_failed) {
            ck_assert_msg(!hvi_deadline_passed(end_ns), "hello %d of %d was lost", i, JOINS);
            ck_assert_int_ge(sd_event_run(event, 50000), 0);
        }
        gate_socket_close(joining);
        cuts += answers == 0;
        ck_assert_msg(cuts <= CUTS, "%d of %d connections have failed: %s", cuts, i + 1, why);
    }
}
END_TEST

/* ---- a socket that joins where no gate listens ---- */

/* Listens at the port instead of the gate, and accepts nothing by itself. */
static int take_port(void)
{
    const struct sockaddr_in address = {.sin_family = AF_INET,
                                        .sin_port = htons((uint16_t)port),
                                        .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;

    gate_socket_close(listening);
    listening = NULL;
    ck_assert_int_eq(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on), 0);
    ck_assert_int_eq(bind(fd, (const struct sockaddr *)&address, sizeof address), 0);
    ck_assert_int_eq(listen(fd, 8), 0);
    return fd;
}

static void run_until_failed(void)
{
    const uint64_t end_ns = hvi_deadline_after(10 * HVI_NS_SEC);

    while (!has_failed) {
        ck_assert_msg(!hvi_deadline_passed(end_ns), "no failure is told");
        ck_assert_int_ge(sd_event_run(event, 50000), 0);
        gate_socket_tick(joining, hvi_clock_ns());
    }
}

/* As if two seconds were over each time. */
static void run_until_answered(void)
{
    const uint64_t end_ns = hvi_deadline_after(10 * HVI_NS_SEC);

    while (answers == 0) {
        ck_assert_msg(!hvi_deadline_passed(end_ns), "it does not connect again: %s", why);
        ck_assert_int_ge(sd_event_run(event, 50000), 0);
        gate_socket_tick(joining, hvi_clock_ns() + 2 * HVI_NS_SEC);
    }
}

START_TEST(a_socket_that_has_met_another_program_joins_a_gate_that_comes_later)
{
    static const char banner[] = "SSH-2.0-x\r\n";
    const int fd = take_port();

    join(0);
    const int met = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
    ck_assert_int_eq(send(met, banner, strlen(banner), MSG_NOSIGNAL), (int)strlen(banner));
    run_until_failed();
    ck_assert_str_eq(why, "the connection was lost");
    close(met);
    close(fd);
    listen_at(port);
    run_until_answered();
    gate_socket_close(joining);
}
END_TEST

START_TEST(a_peer_that_is_silent_is_not_said_to_have_another_key)
{
    const int fd = take_port(); /* the kernel accepts */
    const uint64_t began_ns = hvi_clock_ns();

    join(0);
    run_until_failed();
    ck_assert_uint_ge(hvi_clock_ns() - began_ns, 1900 * HVI_NS_MS);
    ck_assert_str_eq(why, "it does not answer: it stands still, or is no hvdd");
    ck_assert(!why_known); /* it may go on */
    gate_socket_close(joining);
    close(fd);
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
    tcase_add_test(tests, a_socket_that_has_met_another_program_joins_a_gate_that_comes_later);
    tcase_add_test(tests, a_peer_that_is_silent_is_not_said_to_have_another_key);
    suite_add_tcase(suite, tests);
    return hvt_run_suite(suite);
}
