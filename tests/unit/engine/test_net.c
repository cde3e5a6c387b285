/* SPDX-License-Identifier: Apache-2.0
 * Connections between engines over real sockets: several engines' net/ in one process and one event loop,
 * and strangers of every kind at their ports. */
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "daemon/engine/net/net.h"
#include "tests/unit/hvt_main.h"
#include "tests/unit/hvt_process.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/mman.h>
#include <sys/socket.h>

#define SIDES 3
#define SEC   HVI_NS_SEC
#define LONG  hvi_deadline_after(8 * (int64_t)HVI_NS_SEC)
#define SOON  (hvi_deadline_after((int64_t)hvt_patience(4 * HVI_NS_SEC)))
#define CTL   ENGINE_NET_CONTROL, 0

static const unsigned char epoch_key[ENGINE_NET_KEY_BYTES] = "the key of epoch seven";

/* An engine's net, and what it has called. */
struct side {
    struct engine_net net;
    uint16_t port;
    const char *address;
    int fds[SIDES][1 + ENGINE_NET_LANES]; /* by node; CONTROL, then the lanes */
    int connected, failed;
    char text[ENGINE_NET_TEXT];
};

static struct side sides[SIDES];
static sd_event *event;
static int log_fd;

/* Runs the loop until the condition holds; fails after `deadline_ns`. */
#define until(condition, deadline)                                                                 \
    do {                                                                                           \
        const uint64_t until_ns = (deadline);                                                      \
        while (!(condition)) {                                                                     \
            ck_assert_msg(!hvi_deadline_passed(until_ns), "not in time: %s", #condition);          \
            sd_event_run(event, 5000);                                                             \
        }                                                                                          \
    } while (0)

static void run_for(uint64_t ns)
{
    const uint64_t deadline_ns = hvi_deadline_after((int64_t)ns);
    while (!hvi_deadline_passed(deadline_ns))
        sd_event_run(event, 5000);
}

static void on_connected(void *user, uint32_t node, enum engine_net_purpose purpose, uint32_t lane,
                         int fd, const struct hvi_seal_keys *keys)
{
    struct side *side = user;
    int *slot = &side->fds[node][purpose == ENGINE_NET_CONTROL ? 0 : 1 + lane];

    ck_assert_ptr_null(keys); /* what is not encrypted has none */
    if (*slot >= 0)
        close(*slot);
    *slot = fd;
    side->connected++;
}

static void on_failed(void *user, uint32_t node, enum engine_net_purpose purpose, uint32_t lane,
                      const char *text)
{
    struct side *side = user;

    (void)node, (void)purpose, (void)lane;
    side->failed++;
    snprintf(side->text, sizeof side->text, "%s", text);
}

static const struct engine_net_calls calls = {on_connected, on_failed};

static void listen_side(int i, const char *address, uint16_t port)
{
    struct side *side = &sides[i];
    char text[ENGINE_NET_TEXT] = "";

    *side = (struct side){.address = address};
    memset(side->fds, -1, sizeof side->fds);
    ck_assert_msg(engine_net_listen(&side->net, event, address, port, port, &side->port, text) ==
                      HVI_OK,
                  "%s", text);
}

static void start_side_as(int i, const char *job, uint64_t epoch)
{
    struct engine_net_peer peers[SIDES];
    static const char *const names[SIDES] = {"h0", "h1", "h2"};
    char text[ENGINE_NET_TEXT] = "";

    for (int j = 0; j < SIDES; j++)
        peers[j] =
            (struct engine_net_peer){.address = sides[j].address ? sides[j].address : "127.0.0.1",
                                     .port = sides[j].port ? sides[j].port : 1,
                                     .name = names[j]};
    struct engine_net_config config = {.job = job,
                                       .epoch = epoch,
                                       .key = epoch_key,
                                       .node = (uint32_t)i,
                                       .nodes = SIDES,
                                       .peers = peers,
                                       .calls = &calls,
                                       .user = &sides[i]};
    ck_assert_msg(engine_net_start(&sides[i].net, &config, text) == HVI_OK, "%s", text);
}

static void start_side(int i)
{
    start_side_as(i, "job", 7);
}

static void close_side(int i)
{
    engine_net_close(&sides[i].net);
    for (int node = 0; node < SIDES; node++) {
        for (uint32_t lane = 0; lane < 1 + ENGINE_NET_LANES; lane++) {
            if (sides[i].fds[node][lane] >= 0)
                close(sides[i].fds[node][lane]);
        }
    }
}

static void open_all(const char *address)
{
    for (int i = 0; i < SIDES; i++)
        listen_side(i, address, 0);
    for (int i = 0; i < SIDES; i++)
        start_side(i);
}

static void close_all(void)
{
    for (int i = 0; i < SIDES; i++)
        close_side(i);
}

static bool logged(const char *words)
{
    static char text[65536];
    ssize_t got = pread(log_fd, text, sizeof text - 1, 0);

    text[got > 0 ? got : 0] = '\0';
    return strstr(text, words) != NULL;
}

static int on_first_time(sd_event_source *source, uint64_t usec, void *user)
{
    (void)source, (void)usec, (void)user;
    return 0;
}

/* The loop's own descriptors are there before a test counts. */
static void setup(void)
{
    ck_assert_int_ge(sd_event_new(&event), 0);
    sd_event_add_time_relative(event, NULL, CLOCK_MONOTONIC, 0, 1, on_first_time, NULL);
    run_for(HVI_NS_MS);
    log_fd = memfd_create("log", 0);
    ck_assert_int_ge(log_fd, 0);
    dup2(log_fd, STDERR_FILENO);
    hvi_log_init("net", HVI_LOG_INFO);
    for (int i = 0; i < SIDES; i++)
        sides[i] = (struct side){.port = 0};
}

static void teardown(void)
{
    sd_event_unref(event);
    close(log_fd);
}

/* A plain connection to node 1, from this loopback address. */
static int knock(const char *from)
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    ck_assert_int_ge(fd, 0);
    inet_pton(AF_INET, from, &at.sin_addr);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    at.sin_port = htons(sides[1].port);
    inet_pton(AF_INET, "127.0.0.1", &at.sin_addr);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
    return fd;
}

/* ---- connections that are made ---- */

static void expect_same_connection(int a, int b)
{
    char byte = 'x';
    int got = 0;

    ck_assert_int_eq(send(a, &byte, 1, 0), 1);
    byte = 0;
    until((got = (int)recv(b, &byte, 1, MSG_DONTWAIT)) > 0, SOON);
    ck_assert_int_eq(got, 1);
    ck_assert_int_eq(byte, 'x');
}

static int option(int fd, int level, int name)
{
    int value = -1;
    socklen_t length = sizeof value;

    ck_assert_int_eq(getsockopt(fd, level, name, &value, &length), 0);
    return value;
}

/* CONTROL is missed within seconds; a lane is kept known on the way, and its receiver may pause for as long as it likes. */
static void expect_options(int fd, bool control)
{
    ck_assert_int_eq(option(fd, IPPROTO_TCP, TCP_NODELAY), 1);
    ck_assert_int_eq(option(fd, SOL_SOCKET, SO_KEEPALIVE), 1);
    ck_assert_int_eq(option(fd, IPPROTO_TCP, TCP_KEEPIDLE), control ? 1 : 30);
    ck_assert_int_eq(option(fd, IPPROTO_TCP, TCP_KEEPINTVL), control ? 1 : 10);
    ck_assert_int_eq(option(fd, IPPROTO_TCP, TCP_KEEPCNT), control ? 1 : 6);
    ck_assert_int_eq(option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT), control ? 1500 : 0);
}

static void connect_everything(const char *address)
{
    int before = hvt_count_fds();

    open_all(address);
    ck_assert_int_eq(engine_net_connect(&sides[0].net, 1, CTL, LONG), HVI_OK);
    ck_assert_int_eq(engine_net_connect(&sides[1].net, 0, CTL, LONG), HVI_OK);
    for (uint32_t lane = 0; lane < ENGINE_NET_LANES; lane++) {
        engine_net_connect(&sides[0].net, 1, ENGINE_NET_DATA, lane, LONG);
        engine_net_connect(&sides[1].net, 2, ENGINE_NET_DATA, lane, LONG);
    }
    until(sides[0].connected == 9 && sides[1].connected == 17 && sides[2].connected == 8, SOON);
    ck_assert_uint_le(sides[1].net.accepts.paid_ns, hvi_clock_ns()); /* they cost nothing */
    for (uint32_t lane = 0; lane < 1 + ENGINE_NET_LANES; lane++) {
        expect_same_connection(sides[0].fds[1][lane], sides[1].fds[0][lane]);
        expect_same_connection(sides[1].fds[0][lane], sides[0].fds[1][lane]);
        for (int i = 0; i < 2; i++)
            expect_options(sides[i].fds[1 - i][lane], lane == 0);
    }
    run_for(SEC / 5);
    ck_assert_int_eq(sides[0].failed + sides[1].failed + sides[2].failed, 0);
    close_all();
    ck_assert_int_eq(hvt_count_fds(), before);
}

START_TEST(engines_connect_with_eight_lanes_and_control)
{
    connect_everything("127.0.0.1");
}
END_TEST

START_TEST(engines_connect_over_ipv6)
{
    const struct sockaddr_in6 at = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    int fd = socket(AF_INET6, SOCK_STREAM, 0);
    bool cannot = fd < 0 || bind(fd, (const struct sockaddr *)&at, sizeof at) != 0;

    if (fd >= 0)
        close(fd);
    if (hvt_skip_if(cannot, "there is no IPv6"))
        return;
    connect_everything("::1");
}
END_TEST

START_TEST(without_an_address_every_one_of_the_node_is_listened_on)
{
    listen_side(1, NULL, 0);
    start_side(1);
    listen_side(0, "127.0.0.1", 0);
    sides[2].address = "127.0.0.1";
    start_side(0);
    engine_net_connect(&sides[0].net, 1, CTL, LONG);
    until(sides[1].connected == 1, SOON);
    close_side(0);
    close_side(1);
}
END_TEST

START_TEST(a_connect_waits_for_a_peer_that_does_not_listen_yet)
{
    listen_side(1, "127.0.0.1", 0);
    uint16_t port = sides[1].port;
    listen_side(0, "127.0.0.1", 0);
    start_side(0);
    close_side(1);
    engine_net_connect(&sides[0].net, 1, CTL, LONG);
    run_for(SEC / 5);
    ck_assert_int_eq(sides[0].connected + sides[0].failed, 0);
    listen_side(1, "127.0.0.1", port);
    start_side(1);
    until(sides[0].connected == 1 && sides[1].connected == 1, SOON);
    close_side(0);
    close_side(1);
}
END_TEST

START_TEST(connections_wait_until_the_peer_has_its_roster)
{
    listen_side(0, "127.0.0.1", 0);
    listen_side(1, "127.0.0.1", 0);
    start_side(0);
    engine_net_connect(&sides[0].net, 1, CTL, LONG);
    run_for(SEC / 5);
    ck_assert_int_eq(sides[0].connected + sides[1].connected, 0);
    ck_assert_uint_eq(sides[1].net.waiting, 1);
    start_side(1);
    until(sides[0].connected == 1 && sides[1].connected == 1, SOON);
    expect_same_connection(sides[0].fds[1][0], sides[1].fds[0][0]);
    ck_assert(!logged("connection-refused"));
    close_side(0);
    close_side(1);
}
END_TEST

START_TEST(a_newer_connection_replaces_the_older_and_only_when_it_is_asked_for)
{
    open_all("127.0.0.1");
    engine_net_connect(&sides[0].net, 1, CTL, LONG);
    until(sides[0].connected == 1 && sides[1].connected == 1, SOON);
    engine_net_connect(&sides[0].net, 1, CTL, LONG);
    engine_net_connect(&sides[1].net, 0, CTL, LONG);
    run_for(SEC / 5);
    ck_assert_int_eq(sides[0].connected + sides[1].connected, 2);
    engine_net_gone(&sides[0].net, 1, CTL);
    engine_net_connect(&sides[0].net, 1, CTL, LONG);
    until(sides[0].connected == 2 && sides[1].connected == 2, SOON);
    expect_same_connection(sides[0].fds[1][0], sides[1].fds[0][0]);
    close_all();
}
END_TEST

START_TEST(without_descriptors_connections_wait)
{
    open_all("127.0.0.1");
    engine_net_connect(&sides[0].net, 1, CTL, LONG);
    struct rlimit old = hvt_forbid_fds();
    run_for(SEC / 10);
    ck_assert_int_eq(sides[0].connected + sides[0].failed, 0);
    setrlimit(RLIMIT_NOFILE, &old);
    until(sides[0].connected == 1 && sides[1].connected == 1, SOON);
    close_all();
}
END_TEST

START_TEST(what_cannot_be_accepted_waits_and_is_logged)
{
    open_all("127.0.0.1");
    int fds[2] = {knock("127.0.0.1"), knock("127.0.0.1")};
    struct rlimit old = hvt_forbid_fds();
    uint64_t before_ns = hvi_clock_ns();
    int turns = 0;
    for (; hvi_clock_ns() - before_ns < SEC / 2; turns++)
        sd_event_run(event, SEC / 10 / 1000);
    ck_assert_int_lt(turns, 50); /* it does not spin */
    ck_assert_uint_eq(sides[1].net.waiting, 0);
    ck_assert(logged("cannot-accept: an engine's connection waits"));
    setrlimit(RLIMIT_NOFILE, &old);
    until(sides[1].net.waiting == 2, SOON);
    close(fds[0]);
    close(fds[1]);
    close_all();
}
END_TEST

START_TEST(what_is_closed_before_the_roster_is_forgotten)
{
    struct engine_net_identity identity;
    struct engine_net_handshake hand;
    unsigned char nonce[ENGINE_NET_NONCE_BYTES];

    listen_side(1, "127.0.0.1", 0);
    engine_net_nonce(nonce);
    engine_net_identity_init(&identity, "job", 7, epoch_key, 0, SIDES);
    engine_net_handshake_connect(&hand, &identity, 1, CTL, nonce);
    for (int i = 0; i < 2; i++) { /* with a hello that waits, and without */
        const struct linger reset = {.l_onoff = 1};
        int fd = knock("127.0.0.1");
        until(sides[1].net.waiting == 1, SOON);
        if (i == 0) {
            ck_assert_int_eq(send(fd, hand.out, hand.out_length, 0), (ssize_t)hand.out_length);
            run_for(SEC / 20);
            setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        }
        close(fd);
        until(sides[1].net.waiting == 0, SOON);
    }
    close_side(1);
}
END_TEST

/* ---- connections that cannot be made ---- */

START_TEST(a_peer_that_refuses_is_named_with_both_addresses_at_the_deadline)
{
    char expected[256];
    open_all("127.0.0.1");
    snprintf(expected, sizeof expected,
             "node 1 (h1) at 127.0.0.1:%u cannot be reached from 127.0.0.1: Connection refused",
             (unsigned)sides[1].port);
    close_side(1);
    uint64_t start_ns = hvi_clock_ns();
    engine_net_connect(&sides[0].net, 1, CTL, hvi_deadline_after((int64_t)SEC / 2));
    until(sides[0].failed == 1, SOON);
    ck_assert_uint_ge(hvi_clock_ns() - start_ns, SEC / 2);
    ck_assert_uint_le(hvi_clock_ns() - start_ns, SEC / 2 + hvt_patience(SEC / 5));
    ck_assert_str_eq(sides[0].text, expected);
    close_side(0);
    close_side(2);
}
END_TEST

/* A socket whose queue is full answers no SYN, as an address behind a dead link. */
START_TEST(a_peer_that_does_not_answer_is_given_up_at_the_deadline)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof at;
    int full = socket(AF_INET, SOCK_STREAM, 0), fillers[4];

    ck_assert_int_eq(bind(full, (struct sockaddr *)&at, sizeof at), 0);
    ck_assert_int_eq(listen(full, 0), 0);
    getsockname(full, (struct sockaddr *)&at, &length);
    for (int i = 0; i < 4; i++) {
        fillers[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        (void)!connect(fillers[i], (struct sockaddr *)&at, sizeof at);
    }
    listen_side(0, "127.0.0.1", 0);
    sides[1].port = ntohs(at.sin_port);
    start_side(0);
    uint64_t start_ns = hvi_clock_ns();
    engine_net_connect(&sides[0].net, 1, CTL, hvi_deadline_after((int64_t)SEC / 2));
    until(sides[0].failed == 1, SOON);
    ck_assert_uint_le(hvi_clock_ns() - start_ns, SEC / 2 + hvt_patience(SEC / 5));
    ck_assert_msg(strstr(sides[0].text, "cannot be reached from 127.0.0.1: no answer") != NULL,
                  "%s", sides[0].text);
    close_side(0);
    for (int i = 0; i < 4; i++)
        close(fillers[i]);
    close(full);
}
END_TEST

/* The kernel says so at once, each time that it is tried. */
START_TEST(a_peer_at_an_address_of_nobody_is_given_up_at_the_deadline)
{
    listen_side(0, "127.0.0.1", 0);
    sides[1].address = "255.255.255.255";
    sides[1].port = 9;
    start_side(0);
    engine_net_connect(&sides[0].net, 1, CTL, hvi_deadline_after((int64_t)SEC / 10));
    until(sides[0].failed == 1, SOON);
    ck_assert_msg(strstr(sides[0].text, "node 1 (h1) at 255.255.255.255:9 cannot be reached") !=
                      NULL,
                  "%s", sides[0].text);
    ck_assert_ptr_null(strstr(sides[0].text, "no answer"));
    close_side(0);
}
END_TEST

START_TEST(a_peer_that_does_not_connect_is_named_with_both_addresses)
{
    char expected[256];

    open_all("127.0.0.1");
    snprintf(expected, sizeof expected,
             "node 0 (h0) at 127.0.0.1 has not connected to 127.0.0.1:%u in time",
             (unsigned)sides[1].port);
    engine_net_connect(&sides[1].net, 0, CTL, hvi_deadline_after((int64_t)SEC / 5));
    until(sides[1].failed == 1, SOON);
    ck_assert_str_eq(sides[1].text, expected);
    close_all();
}
END_TEST

START_TEST(an_address_that_is_not_this_nodes_is_said)
{
    struct engine_net net;
    char text[ENGINE_NET_TEXT] = "";
    uint16_t port = 0;

    ck_assert_int_eq(engine_net_listen(&net, event, "192.0.2.1", 0, 0, &port, text), HVI_ERR_LIMIT);
    ck_assert_str_eq(text, "cannot listen for other engines at 192.0.2.1, port 0: Cannot assign "
                           "requested address");
    engine_net_close(&net);
}
END_TEST

START_TEST(a_full_range_of_ports_is_said_and_a_free_port_in_it_is_found)
{
    struct engine_net net;
    char text[ENGINE_NET_TEXT] = "", expected[256];
    uint16_t first = 0, port = 0;

    int status = HVI_ERR_LIMIT;
    for (int tries = 0; tries < 20 && status == HVI_ERR_LIMIT; tries++) {
        if (tries > 0) /* somebody else has the other port */
            close_side(0);
        listen_side(0, "127.0.0.1", 0);
        first = sides[0].port;
        if (first == UINT16_MAX)
            first--;
        status =
            engine_net_listen(&net, event, "127.0.0.1", first, (uint16_t)(first + 1), &port, text);
    }
    ck_assert_int_eq(status, HVI_OK);
    ck_assert_uint_ne(port, sides[0].port);
    struct engine_net third;
    status =
        engine_net_listen(&third, event, "127.0.0.1", first, (uint16_t)(first + 1), &port, text);
    ck_assert_int_eq(status, HVI_ERR_LIMIT);
    snprintf(expected, sizeof expected,
             "none of the ports %u to %u is free at 127.0.0.1: give HVD_PORT_RANGE (port-range of "
             "hvdd.conf) a wider range",
             (unsigned)first, (unsigned)first + 1);
    ck_assert_str_eq(text, expected);
    status = engine_net_listen(&third, event, "127.0.0.1", first, first, &port, text); /* of one */
    ck_assert_int_eq(status, HVI_ERR_LIMIT);
    ck_assert_msg(strstr(text, "give HVD_PORT_RANGE") != NULL, "%s", text);
    engine_net_close(&third);
    engine_net_close(&net);
    close_side(0);
}
END_TEST

/* A gate takes the first port: after its death it is to be free for the next one. */
START_TEST(the_last_port_of_a_range_is_taken)
{
    struct engine_net net;
    char text[ENGINE_NET_TEXT] = "";
    uint16_t first = 0, port = 0;

    listen_side(0, "127.0.0.1", 0);
    first = sides[0].port < UINT16_MAX - 2 ? sides[0].port : UINT16_MAX - 2;
    int status =
        engine_net_listen(&net, event, "127.0.0.1", first, (uint16_t)(first + 2), &port, text);
    ck_assert_int_eq(status, HVI_OK);
    ck_assert_uint_eq(port, first + 2);
    engine_net_close(&net);
    close_side(0);
}
END_TEST

START_TEST(what_is_no_numeric_address_is_refused)
{
    struct engine_net net;
    char text[ENGINE_NET_TEXT] = "";
    uint16_t port;
    struct engine_net_peer peers[2] = {{"127.0.0.1", 9600, "h0"}, {"a.example", 9601, "h1"}};
    struct engine_net_config config = {
        .job = "job", .key = epoch_key, .nodes = 2, .peers = peers, .calls = &calls};

    ck_assert_int_eq(engine_net_listen(&net, event, "localhost", 0, 0, &port, text),
                     HVI_ERR_INVALID);
    ck_assert_str_eq(text, "'localhost' is no numeric address");
    ck_assert_int_eq(engine_net_listen(&net, event, "127.0.0.1", 0, 0, &port, text), HVI_OK);
    ck_assert_int_eq(engine_net_start(&net, &config, text), HVI_ERR_INVALID);
    ck_assert_str_eq(text, "the roster has no usable address of h1: 'a.example', port 9601");
    peers[1] = (struct engine_net_peer){"127.0.0.1", 0, "h1"};
    ck_assert_int_eq(engine_net_start(&net, &config, text), HVI_ERR_INVALID);
    engine_net_close(&net);
}
END_TEST

/* ---- strangers ---- */

static bool is_closed(int fd)
{
    char bytes[256];
    ssize_t got;

    while ((got = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT)) > 0)
        ;
    return got == 0 || (errno != EAGAIN && errno != EINTR);
}

/* A node that belongs here gets through whatever strangers do: each time with another lane. */
static void expect_open_house(void)
{
    const int here = sides[0].connected, there = sides[1].connected;

    engine_net_connect(&sides[0].net, 1, ENGINE_NET_DATA, (uint32_t)there, LONG);
    until(sides[0].connected == here + 1 && sides[1].connected == there + 1, SOON);
}

START_TEST(engines_of_another_job_or_epoch_are_refused_and_tell_why_they_failed)
{
    static const struct {
        const char *job;
        uint64_t epoch;
        const char *why;
    } strangers[] = {{"jab", 7, "it belongs to another job"},
                     {"job", 6, "it belongs to another epoch of the job"}};

    for (size_t i = 0; i < 2; i++) {
        listen_side(0, "127.0.0.1", 0);
        listen_side(1, "127.0.0.1", 0);
        start_side_as(0, strangers[i].job, strangers[i].epoch);
        start_side(1);
        engine_net_connect(&sides[0].net, 1, CTL, hvi_deadline_after((int64_t)SEC));
        until(sides[0].failed == 1, SOON);
        ck_assert(logged(strangers[i].why));
        ck_assert(logged("peer=127.0.0.1:"));
        ck_assert_msg(strstr(sides[0].text, "it closed the connection during the handshake"), "%s",
                      sides[0].text);
        ck_assert_int_eq(sides[0].connected + sides[1].connected, 0);
        close_side(0);
        close_side(1);
    }
}
END_TEST

START_TEST(garbage_is_refused_at_once_and_logged_once_a_second)
{
    char garbage[ENGINE_NET_HELLO_BYTES];
    int fds[20];

    memset(garbage, 0x5a, sizeof garbage);
    open_all("127.0.0.1");
    for (int i = 0; i < 20; i++) {
        fds[i] = knock("127.0.0.7");
        ck_assert_int_eq(send(fds[i], garbage, sizeof garbage, 0), sizeof garbage);
    }
    for (int i = 0; i < 20; i++) {
        until(is_closed(fds[i]), SOON);
        close(fds[i]);
    }
    ck_assert(logged("what came is no handshake of an engine"));
    ck_assert(logged("peer=127.0.0.7:"));
    expect_open_house();
    run_for(SEC + SEC / 10);
    int last = knock("127.0.0.7");
    send(last, garbage, sizeof garbage, 0);
    until(is_closed(last), SOON);
    ck_assert(logged("more=19"));
    close(last);
    ck_assert_int_eq(sides[1].connected, 1);
    close_all();
}
END_TEST

START_TEST(silent_half_and_slow_strangers_have_five_seconds)
{
    struct engine_net_identity identity;
    struct engine_net_handshake slow;
    unsigned char nonce[ENGINE_NET_NONCE_BYTES];
    size_t told = 0;
    int fds[3];

    open_all("127.0.0.1");
    uint64_t start_ns = hvi_clock_ns();
    for (int i = 0; i < 3; i++)
        fds[i] = knock("127.0.0.7");
    engine_net_nonce(nonce);
    engine_net_identity_init(&identity, "job", 7, epoch_key, 0, SIDES);
    engine_net_handshake_connect(&slow, &identity, 1, CTL, nonce);
    send(fds[1], slow.out, ENGINE_NET_HELLO_BYTES / 2, 0);
    while (!is_closed(fds[2])) {
        ck_assert_uint_le(hvi_clock_ns() - start_ns, hvt_patience(6 * SEC));
        if (told < ENGINE_NET_HELLO_BYTES - 1)
            (void)!send(fds[2], slow.out + told++, 1, MSG_NOSIGNAL);
        run_for(SEC / 20);
    }
    ck_assert_uint_ge(hvi_clock_ns() - start_ns, 5 * SEC - SEC / 10);
    until(is_closed(fds[0]) && is_closed(fds[1]), SOON);
    ck_assert(logged("it has not proved itself within 5 s"));
    ck_assert_uint_eq(sides[1].net.waiting, 0);
    expect_open_house();
    for (int i = 0; i < 3; i++)
        close(fds[i]);
    close_all();
}
END_TEST

/* Byte by byte is as good as at once. */
START_TEST(a_slow_member_is_let_in)
{
    struct engine_net_identity identity;
    struct engine_net_handshake hand;
    unsigned char nonce[ENGINE_NET_NONCE_BYTES];
    const char *why = NULL;
    int status = HVI_INPROGRESS;

    open_all("127.0.0.1");
    int fd = knock("127.0.0.1");
    engine_net_nonce(nonce);
    engine_net_identity_init(&identity, "job", 7, epoch_key, 0, SIDES);
    engine_net_handshake_connect(&hand, &identity, 1, ENGINE_NET_DATA, 7, nonce);
    while (status == HVI_INPROGRESS) {
        for (; hand.out_sent < hand.out_length; hand.out_sent++) {
            ck_assert_int_eq(send(fd, hand.out + hand.out_sent, 1, 0), 1);
            run_for(SEC / 1000);
        }
        for (; hand.in_have < hand.in_need; hand.in_have++)
            until(recv(fd, hand.in + hand.in_have, 1, MSG_DONTWAIT) == 1, SOON);
        status = engine_net_handshake_step(&hand, &identity, &why);
    }
    ck_assert_int_eq(status, HVI_OK);
    ck_assert_int_eq(sides[1].connected, 1);
    ck_assert_int_ge(sides[1].fds[0][8], 0);
    close(fd);
    close_all();
}
END_TEST

/* So many from this address. */
static void knock_often(const char *from, int count, int *fds_p)
{
    for (int i = 0; i < count; i++)
        fds_p[i] = knock(from);
}

static int count_closed(const int *fds, int count)
{
    int closed = 0;

    for (int i = 0; i < count; i++)
        closed += is_closed(fds[i]);
    return closed;
}

static void close_often(const int *fds, int count)
{
    for (int i = 0; i < count; i++)
        close(fds[i]);
}

START_TEST(strangers_are_few_from_one_address_and_in_all)
{
    enum { FEW = ENGINE_NET_PER_ADDRESS, MANY = ENGINE_NET_WAITING_MAX };
    static int fds[MANY];
    char from[] = "127.0.0.7";

    open_all("127.0.0.1");
    knock_often(from, FEW, fds);
    until(sides[1].net.waiting == FEW, SOON);
    int more = knock(from);
    until(is_closed(fds[0]), SOON);
    ck_assert(logged("too many connections of this address have not proved themselves"));
    ck_assert_int_eq(count_closed(fds + 1, FEW - 1) + is_closed(more), 0);
    close(fds[0]);
    fds[0] = more; /* the youngest now; the next one is the oldest */
    expect_open_house();
    for (int i = FEW; i < MANY; i += FEW) {
        from[8] = (char)('1' + i / FEW);
        knock_often(from, FEW, fds + i);
    }
    until(sides[1].net.waiting == MANY, SOON);
    more = knock("127.0.0.9");
    until(is_closed(fds[1]), SOON);
    run_for(SEC / 50);
    ck_assert_uint_eq(sides[1].net.waiting, MANY);
    ck_assert_int_eq(count_closed(fds, MANY) + is_closed(more), 1);
    expect_open_house();
    close_often(fds, MANY);
    close(more);
    close_all();
}
END_TEST

/* A hello as node 0 sends it; strangers may have seen it on the way. */
static void make_hello(struct engine_net_handshake *hand_p)
{
    struct engine_net_identity identity;
    unsigned char nonce[ENGINE_NET_NONCE_BYTES];

    engine_net_nonce(nonce);
    engine_net_identity_init(&identity, "job", 7, epoch_key, 0, SIDES);
    engine_net_handshake_connect(hand_p, &identity, 1, CTL, nonce);
}

/* Each stranger says so many bytes of a hello, and has an answer where that is all of it. */
static void say_hello(const int *fds, int count, size_t bytes)
{
    struct engine_net_handshake hand;

    make_hello(&hand);
    for (int i = 0; i < count; i++)
        ck_assert_int_eq(send(fds[i], hand.out, bytes, 0), (ssize_t)bytes);
    for (int i = 0; i < count && bytes == ENGINE_NET_HELLO_BYTES; i++)
        until(recv(fds[i], hand.in, ENGINE_NET_HELLO_BYTES, MSG_DONTWAIT) > 0, SOON);
}

/* It has the engine's own address, and has all places of it. */
START_TEST(a_crowd_keeps_no_engine_out)
{
    static const size_t said[] = {0, ENGINE_NET_HELLO_BYTES - 1, ENGINE_NET_HELLO_BYTES};
    int fds[ENGINE_NET_PER_ADDRESS];

    open_all("127.0.0.1");
    for (size_t i = 0; i < sizeof said / sizeof said[0]; i++) {
        knock_often("127.0.0.1", ENGINE_NET_PER_ADDRESS, fds);
        until(sides[1].net.waiting == ENGINE_NET_PER_ADDRESS, SOON);
        say_hello(fds, ENGINE_NET_PER_ADDRESS, said[i]);
        expect_open_house();
        ck_assert_int_eq(count_closed(fds, ENGINE_NET_PER_ADDRESS), 1);
        close_often(fds, ENGINE_NET_PER_ADDRESS);
        until(sides[1].net.waiting == 0, SOON);
    }
    close_all();
}
END_TEST

START_TEST(strangers_with_a_hello_and_those_without_leave_room_for_each_other)
{
    enum { HALF = ENGINE_NET_PER_ADDRESS / 2 };
    int with[2 * HALF], without[3 * HALF];

    open_all("127.0.0.1");
    knock_often("127.0.0.7", 2 * HALF, with);
    say_hello(with, 2 * HALF, ENGINE_NET_HELLO_BYTES);
    knock_often("127.0.0.7", HALF, without);
    until(count_closed(with, 2 * HALF) == HALF, SOON);
    run_for(SEC / 50);
    ck_assert_int_eq(count_closed(with, HALF), HALF); /* the oldest */
    ck_assert_int_eq(count_closed(without, HALF), 0);
    knock_often("127.0.0.7", 2 * HALF, without + HALF);
    until(count_closed(without, 3 * HALF) == 2 * HALF, SOON);
    run_for(SEC / 50);
    ck_assert_int_eq(count_closed(without, 2 * HALF), 2 * HALF);
    ck_assert_int_eq(count_closed(with + HALF, HALF), 0);
    close_often(with, 2 * HALF);
    close_often(without, 3 * HALF);
    close_all();
}
END_TEST

/* Connections that nobody has accepted yet. */
static uint32_t count_queued(void)
{
    struct tcp_info info = {0};
    socklen_t length = sizeof info;

    ck_assert_int_eq(getsockopt(sides[1].net.fd, IPPROTO_TCP, TCP_INFO, &info, &length), 0);
    return info.tcpi_unacked;
}

/* A connection that is over before it is accepted. */
static void knock_in_vain(void)
{
    const struct linger reset = {.l_onoff = 1};
    int fd = knock("127.0.0.7");

    setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    close(fd);
}

/* How often the loop rests from so many of them. */
static int count_rests(int connections)
{
    const uint64_t deadline_ns = SOON;
    int rests = 0;

    for (int i = 0; i < connections; i++) {
        knock_in_vain();
        while (i % 64 == 0 && count_queued() + sides[1].net.waiting > 0) {
            const bool rested = sides[1].net.pause != NULL;
            ck_assert(!hvi_deadline_passed(deadline_ns));
            sd_event_run(event, 5000);
            rests += !rested && sides[1].net.pause;
        }
    }
    return rests;
}

START_TEST(accepting_rests_in_a_flood_of_strangers)
{
    open_all("127.0.0.1");
    ck_assert_int_eq(count_rests(HVI_PACE_BURST), 0);
    ck_assert_int_ge(count_rests(HVI_PACE_BURST), HVI_PACE_BURST / HVI_PACE_BACKLOG / 2);
    expect_open_house();
    close_all();
}
END_TEST

/* The port of a node answers, but it is no engine of the job that has it. */
START_TEST(what_answers_at_a_peers_port_must_prove_itself_too)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof at;
    int mirror = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), fd = -1;
    unsigned char hello[ENGINE_NET_HELLO_BYTES];

    ck_assert_int_eq(bind(mirror, (struct sockaddr *)&at, sizeof at), 0);
    ck_assert_int_eq(listen(mirror, 5), 0);
    getsockname(mirror, (struct sockaddr *)&at, &length);
    listen_side(0, "127.0.0.1", 0);
    sides[1].port = ntohs(at.sin_port);
    start_side(0);
    engine_net_connect(&sides[0].net, 1, CTL, hvi_deadline_after((int64_t)SEC / 5));
    until((fd = accept(mirror, NULL, NULL)) >= 0, SOON);
    until(recv(fd, hello, sizeof hello, MSG_DONTWAIT | MSG_PEEK) == sizeof hello, SOON);
    ck_assert_int_eq(send(fd, hello, sizeof hello, 0), sizeof hello);
    until(is_closed(fd), SOON);
    close(mirror);
    until(sides[0].failed == 1, SOON);
    ck_assert_int_eq(sides[0].connected, 0);
    ck_assert(logged("it wants another node"));
    close(fd);
    close_side(0);
}
END_TEST

START_TEST(a_close_in_the_middle_leaves_nothing_open)
{
    int before = hvt_count_fds();

    open_all("127.0.0.1");
    int fds[2] = {knock("127.0.0.7"), knock("127.0.0.7")};
    for (uint32_t lane = 0; lane < ENGINE_NET_LANES; lane++)
        engine_net_connect(&sides[0].net, 1, ENGINE_NET_DATA, lane, LONG);
    for (int i = 0; i < 12; i++)
        sd_event_run(event, 0);
    close_all();
    close(fds[0]);
    close(fds[1]);
    ck_assert_int_eq(hvt_count_fds(), before);
}
END_TEST

static TCase *stranger_tests(void)
{
    TCase *tcase = tcase_create("strangers");

    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, engines_of_another_job_or_epoch_are_refused_and_tell_why_they_failed);
    tcase_add_test(tcase, garbage_is_refused_at_once_and_logged_once_a_second);
    tcase_add_test(tcase, silent_half_and_slow_strangers_have_five_seconds);
    tcase_add_test(tcase, a_slow_member_is_let_in);
    tcase_add_test(tcase, strangers_are_few_from_one_address_and_in_all);
    tcase_add_test(tcase, a_crowd_keeps_no_engine_out);
    tcase_add_test(tcase, strangers_with_a_hello_and_those_without_leave_room_for_each_other);
    tcase_add_test(tcase, accepting_rests_in_a_flood_of_strangers);
    tcase_add_test(tcase, what_answers_at_a_peers_port_must_prove_itself_too);
    tcase_add_test(tcase, a_close_in_the_middle_leaves_nothing_open);
    return tcase;
}

int main(void)
{
    Suite *suite = suite_create("engine/net");
    TCase *tcase = tcase_create("net");

    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, engines_connect_with_eight_lanes_and_control);
    tcase_add_test(tcase, engines_connect_over_ipv6);
    tcase_add_test(tcase, without_an_address_every_one_of_the_node_is_listened_on);
    tcase_add_test(tcase, a_connect_waits_for_a_peer_that_does_not_listen_yet);
    tcase_add_test(tcase, connections_wait_until_the_peer_has_its_roster);
    tcase_add_test(tcase, a_newer_connection_replaces_the_older_and_only_when_it_is_asked_for);
    tcase_add_test(tcase, without_descriptors_connections_wait);
    tcase_add_test(tcase, what_cannot_be_accepted_waits_and_is_logged);
    tcase_add_test(tcase, what_is_closed_before_the_roster_is_forgotten);
    tcase_add_test(tcase, a_peer_that_refuses_is_named_with_both_addresses_at_the_deadline);
    tcase_add_test(tcase, a_peer_that_does_not_answer_is_given_up_at_the_deadline);
    tcase_add_test(tcase, a_peer_at_an_address_of_nobody_is_given_up_at_the_deadline);
    tcase_add_test(tcase, a_peer_that_does_not_connect_is_named_with_both_addresses);
    tcase_add_test(tcase, an_address_that_is_not_this_nodes_is_said);
    tcase_add_test(tcase, a_full_range_of_ports_is_said_and_a_free_port_in_it_is_found);
    tcase_add_test(tcase, the_last_port_of_a_range_is_taken);
    tcase_add_test(tcase, what_is_no_numeric_address_is_refused);
    suite_add_tcase(suite, tcase);
    suite_add_tcase(suite, stranger_tests());
    return hvt_run_suite(suite);
}
