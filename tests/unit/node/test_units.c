/* SPDX-License-Identifier: Apache-2.0
 * A real hvdd whose gate and engines are started by units: the test has their sockets, says what they say, and what
 * they may not say. A child of the test is their process. */
#include "base/clock.h"
#include "base/status.h"
#include "proto/gate.h"
#include "proto/started.h"
#include "tests/unit/hvt_main.h"
#include "tests/unit/hvt_process.h"
#include "tests/unit/node/rig.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#define PORT 4711u

/* A program that a unit has started. */
struct program {
    pid_t pid;
    int link; /* to hvdd */
};

static struct rig rig;
static struct hvi_packet packet;
static struct hvi_gate_msg heard;
static struct hvi_packet_msg engine_heard;
static struct program gate, engine;
static int gate_listen, engine_listen;
static char gate_option[140], engine_option[140];
static const char *arguments[8];

static uint64_t soon(void)
{
    return hvi_deadline_after(RIG_MS * (int64_t)HVI_NS_MS);
}

static int listen_at(const char *name, const char *option, char option_p[140])
{
    const struct timeval longest = {.tv_sec = RIG_MS / 1000}; /* for accept */
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    snprintf(address.sun_path, sizeof(address.sun_path), "%s/%s", rig.base, name);
    snprintf(option_p, 140, "--%s=%s", option, address.sun_path);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    ck_assert_int_eq(listen(fd, 8), 0);
    ck_assert_int_eq(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &longest, sizeof(longest)), 0);
    return fd;
}

static void setup(void)
{
    rig_init(&rig);
    gate_listen = listen_at("gate", "gate-socket", gate_option);
    engine_listen = listen_at("engine", "engine-socket", engine_option);
    arguments[0] = "--private";
    arguments[1] = gate_option;
    arguments[2] = engine_option;
    gate.link = engine.link = -1;
}

static void end_program(struct program *program)
{
    if (program->pid > 0) {
        kill(program->pid, SIGKILL);
        hvt_wait_child(program->pid);
    }
    if (program->link >= 0)
        close(program->link);
    *program = (struct program){.link = -1};
}

static void teardown(void)
{
    end_program(&gate);
    end_program(&engine);
    close(gate_listen);
    close(engine_listen);
    hvi_gate_msg_free(&heard);
    hvi_packet_msg_free(&engine_heard);
    rig_fini(&rig);
}

static void stop(void)
{
    rig_kill(&rig, SIGTERM);
    rig_kill(&rig, SIGINT);
    ck_assert_int_eq(rig_wait(&rig), 0);
}

/* ---- programs ---- */

static void tell(int link, const struct hvi_gate_msg *msg)
{
    static unsigned char bytes[HVI_PACKET_BYTES_MAX];
    size_t length;

    ck_assert_int_eq(hvi_gate_msg_encode(msg, bytes, sizeof(bytes), &length), HVI_OK);
    ck_assert_int_eq(hvi_packet_send(link, bytes, length, NULL, 0, soon()), HVI_OK);
}

/* In the process of a unit: says `hello`, or what `name` says if that is NULL. */
static void be_program(int link, const char *name, const char *hello, int said_fd)
{
    char pid[16];
    int status;

    snprintf(pid, sizeof(pid), "%d", (int)getpid());
    setenv("LISTEN_PID", pid, 1);
    if (hello != NULL)
        status = hvi_packet_send(link, hello, strlen(hello), NULL, 0, soon());
    else
        status = hvi_started_tell(link, name);
    close(link);
    if (status != HVI_OK || write(said_fd, "", 1) != 1)
        _exit(1);
    for (;;)
        pause();
}

/* The next connection of hvdd's: its program has said what it is. */
static void start_program(struct program *program, int listen_fd, const char *name,
                          const char *hello)
{
    int said[2];
    char byte;

    end_program(program);
    program->link = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC);
    ck_assert_int_ge(program->link, 0);
    ck_assert_int_eq(pipe(said), 0);
    program->pid = fork();
    ck_assert_int_ge(program->pid, 0);
    if (program->pid == 0)
        be_program(program->link, name, hello, said[1]);
    close(said[1]);
    ck_assert_int_eq(read(said[0], &byte, 1), 1);
    close(said[0]);
}

static void start_gate(void)
{
    start_program(&gate, gate_listen, "hvdd-gate", NULL);
}

/* What hvdd tells the gate next, without its signs of life and what subscribers are to be told. */
static struct hvi_gate_msg *hear(enum hvi_gate_kind kind)
{
    do {
        hvi_gate_msg_free(&heard);
        ck_assert_int_eq(hvi_packet_receive(gate.link, &packet, soon()), HVI_OK);
        ck_assert_int_eq(hvi_gate_msg_decode(packet.bytes, packet.length, &heard, NULL, 0), HVI_OK);
        ck_assert_uint_eq(packet.fd_count, heard.kind == HVI_GATE_START ? 1 : 0); /* admin.sock */
        hvi_packet_close_fds(&packet);
    } while (heard.kind == HVI_GATE_BEAT || heard.kind == HVI_GATE_EVENT);
    ck_assert_int_eq(heard.kind, kind);
    return &heard;
}

/* The program was killed, and hvdd has ended the connection. */
static void expect_killed(struct program *program)
{
    const int status = hvt_wait_child(program->pid);

    program->pid = 0;
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    while (hvi_packet_receive(program->link, &packet, soon()) == HVI_OK)
        hvi_packet_close_fds(&packet);
}

static void tell_state(int status, const char *text, uint32_t port)
{
    struct hvi_gate_msg msg = {.kind = HVI_GATE_STATE};

    msg.state.status = status;
    msg.state.port = port;
    msg.state.joined = status == HVI_OK; /* which one that listens always is */
    snprintf(msg.state.text, sizeof(msg.state.text), "%s", text);
    tell(gate.link, &msg);
}

/* ---- the gate ---- */

/* With a mesh hvdd is ready when its gate has said so: a second process starts and waits for it. */
static void start_with_mesh(void)
{
    arguments[3] = "--mesh-listen=127.0.0.1:0";
    arguments[4] = "--mesh-key=/no/key";
    const pid_t early = fork();
    ck_assert_int_ge(early, 0);
    if (early == 0) { /* the gate before the first one that the tests see: ready, and gone */
        start_gate();
        tell_state(HVI_OK, "", PORT);
        while (!rig_exists(&rig, "mesh.port"))
            poll(NULL, 0, 2);
        end_program(&gate);
        _exit(0);
    }
    rig_start(&rig, arguments);
    ck_assert_int_eq(hvt_wait_child(early), 0);
}

START_TEST(a_gate_that_died_is_asked_for_again_and_listens_where_it_did)
{
    start_with_mesh();
    start_gate();
    hear(HVI_GATE_START);
    ck_assert(heard.start.private_mode);
    ck_assert_uint_eq(heard.start.uid, getuid());
    ck_assert_str_eq(heard.start.mesh_listen, "127.0.0.1:4711");
    ck_assert_str_eq(heard.start.mesh_key, "/no/key");
    rig_wait_log(&rig, "the gate was killed by signal 9", 1);
    rig_wait_log(&rig, "the gate was started", 2);
    tell_state(HVI_ERR_DAEMON, "the mesh cannot listen", 0);
    rig_wait_log(&rig, "the mesh cannot listen", 1); /* hvdd was ready: it goes on */
    stop();
    ck_assert(!rig_exists(&rig, "mesh.port"));
}
END_TEST

START_TEST(what_its_unit_starts_that_is_no_gate_gets_nothing)
{
    rig_start(&rig, arguments);
    start_program(&gate, gate_listen, NULL, "hvdd-gate, protocol 0");
    rig_wait_log(&rig, "what its unit has started is no hvdd-gate of this version", 1);
    rig_wait_log(&rig, "the gate did not start (`journalctl -u hvdd-gate.socket", 1);
    start_gate();
    rig_wait_log(&rig, "the gate was started", 1);
    stop();
}
END_TEST

START_TEST(a_gate_that_lies_is_killed)
{
    struct hvi_gate_msg ask = {.kind = HVI_GATE_ASK}, roster = {.kind = HVI_GATE_NODE_ROSTER};
    unsigned char nonsense[] = "nonsense";

    rig_start(&rig, arguments);
    start_gate();
    hvi_packet_send(gate.link, nonsense, sizeof(nonsense), NULL, 0, soon());
    expect_killed(&gate);
    rig_wait_log(&rig, "the gate broke the protocol", 1);
    start_gate();
    tell(gate.link, hear(HVI_GATE_START)); /* which hvdd alone may say */
    expect_killed(&gate);
    start_gate();
    ask.ask.request = nonsense;
    ask.ask.request_bytes = sizeof(nonsense);
    tell(gate.link, &ask);
    expect_killed(&gate);
    start_gate();
    snprintf(roster.node_roster.job, sizeof(roster.node_roster.job), "a");
    roster.node_roster.roster = nonsense;
    roster.node_roster.roster_bytes = sizeof(nonsense);
    tell(gate.link, &roster);
    expect_killed(&gate);
    rig_wait_log(&rig, "the gate broke the protocol", 4);
    rig_wait_log(&rig, "the gate was killed by signal 9", 4);
    stop();
}
END_TEST

/* ---- engines ---- */

static const struct hvi_packet_msg *hear_engine(enum hvi_packet_kind kind)
{
    do {
        hvi_packet_msg_free(&engine_heard);
        ck_assert_int_eq(hvi_packet_receive(engine.link, &packet, soon()), HVI_OK);
        hvi_packet_close_fds(&packet);
        ck_assert_int_eq(hvi_packet_msg_decode(packet.bytes, packet.length, &engine_heard, NULL, 0),
                         HVI_OK);
    } while (engine_heard.kind != kind);
    return &engine_heard;
}

/* The engine has all ranks of this node; the number of the registration is what the gate is told. */
static uint64_t register_engine(void)
{
    int32_t rank = 1;
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_ENGINE_NODE,
                                 .engine_node = {.size = 2,
                                                 .ranks = &rank,
                                                 .rank_count = 1,
                                                 .port = 9000,
                                                 .wire_oldest = 1,
                                                 .wire_newest = 1,
                                                 .lanes = 1}};

    rig_send(engine.link, &msg);
    hear(HVI_GATE_NODE_REGISTER);
    ck_assert_str_eq(heard.node_register.job, "a");
    ck_assert_uint_eq(heard.node_register.uid, getuid());
    ck_assert_uint_gt(heard.node_register.node_bytes, 0);
    return heard.node_register.registration;
}

/* A trainer of job "a", whose engine is the test. */
static int start_engine(void)
{
    struct hvi_attach_request *request = rig_request("a", 1, 2);
    int trainer = rig_connect(&rig);

    request->local_rank = 0;
    request->local_size = 1;
    request->cross_size = 2;
    rig_send_attach(trainer, request);
    start_program(&engine, engine_listen, "hvdd-engine", NULL);
    hear_engine(HVI_PACKET_ENGINE_START);
    ck_assert_str_eq(engine_heard.engine_start.job, "a");
    rig_wait_log(&rig, "an engine was started", 1);
    return trainer;
}

static void tell_roster(const char *job, uint64_t number, const char *text)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_ENGINE_ROSTER};
    struct hvi_gate_msg roster = {.kind = HVI_GATE_NODE_ROSTER};
    unsigned char bytes[2048];

    msg.engine_roster.status = HVI_ERR_ATTACH_TIMEOUT;
    snprintf(msg.engine_roster.text, sizeof(msg.engine_roster.text), "%s", text);
    roster.node_roster.registration = number;
    roster.node_roster.roster = bytes;
    snprintf(roster.node_roster.job, sizeof(roster.node_roster.job), "%s", job);
    ck_assert_int_eq(
        hvi_packet_msg_encode(&msg, bytes, sizeof(bytes), &roster.node_roster.roster_bytes),
        HVI_OK);
    tell(gate.link, &roster);
}

START_TEST(an_engine_meets_through_the_gate_and_every_new_gate_hears_of_it)
{
    int trainer;
    uint64_t number;

    start_with_mesh();
    start_gate();
    hear(HVI_GATE_START);
    trainer = start_engine();
    hear(HVI_GATE_NODE_WITHDRAW); /* the job begins anew here */
    ck_assert_uint_eq(heard.node_withdraw.registration, 0);
    ck_assert_int_eq(heard.node_withdraw.status, HVI_OK);
    number = register_engine();
    start_gate(); /* that one is killed */
    hear(HVI_GATE_START);
    ck_assert_uint_eq(hear(HVI_GATE_NODE_REGISTER)->node_register.registration, number);
    tell_roster("another", number, "wrong job");
    tell_roster("a", number + 1, "wrong number");
    tell_roster("a", number, "node beta is late");
    ck_assert_str_eq(hear_engine(HVI_PACKET_ENGINE_ROSTER)->engine_roster.text,
                     "node beta is late");
    rig_wait_log(&rig, "node beta is late", 1);
    end_program(&engine);
    hear(HVI_GATE_NODE_WITHDRAW);
    ck_assert_str_eq(heard.node_withdraw.job, "a");
    ck_assert_uint_eq(heard.node_withdraw.registration, number);
    close(trainer);
    stop();
}
END_TEST

START_TEST(what_its_unit_starts_that_is_no_engine_fails_the_job_with_a_sentence)
{
    struct hvi_attach_reply reply;
    int trainer;

    rig_start(&rig, arguments);
    trainer = rig_connect(&rig);
    rig_send_attach(trainer, rig_request("a", 0, 2));
    start_program(&engine, engine_listen, NULL, "nonsense");
    rig_wait_log(&rig, "what its unit has started is no hvdd-engine of this version", 1);
    ck_assert(rig_read_reply(trainer, &reply));
    ck_assert_int_ne(reply.status, HVI_OK);
    ck_assert_str_ne(reply.text, "");
    close(trainer);
    stop();
}
END_TEST

START_TEST(a_unit_that_does_not_listen_is_named)
{
    struct hvi_attach_reply reply;
    char wrong[160];

    snprintf(wrong, sizeof(wrong), "%s-none", engine_option);
    arguments[2] = wrong;
    rig_start(&rig, arguments);
    close(rig_attach(&rig, rig_request("a", 0, 1), HVI_ERR_DAEMON, &reply));
    ck_assert_msg(strstr(reply.text, "engine-none") != NULL, "%s", reply.text);
    ck_assert_ptr_nonnull(strstr(reply.text, "No such file or directory"));
    stop();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("hvdd units");
    TCase *tcase = tcase_create("units");

    tcase_set_timeout(tcase, 60);
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, a_gate_that_died_is_asked_for_again_and_listens_where_it_did);
    tcase_add_test(tcase, what_its_unit_starts_that_is_no_gate_gets_nothing);
    tcase_add_test(tcase, a_gate_that_lies_is_killed);
    tcase_add_test(tcase, an_engine_meets_through_the_gate_and_every_new_gate_hears_of_it);
    tcase_add_test(tcase, what_its_unit_starts_that_is_no_engine_fails_the_job_with_a_sentence);
    tcase_add_test(tcase, a_unit_that_does_not_listen_is_named);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
