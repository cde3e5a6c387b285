/* SPDX-License-Identifier: Apache-2.0
 * An engine that only speaks the link: it answers attaches, queries and stops, moves no tensor, and
 * misbehaves on request (FAKE_ENGINE in the environment):
 *
 *   silent     does not answer EngineAdopt         die       exits with 3 when asked to adopt
 *   once       exits with 0 when asked to adopt, if the file $FAKE_ENGINE_ONCE does not exist yet
 * (and makes it) mute       does not answer EngineQuery         nonsense  sends garbage after
 * EngineStart deaf       reads nothing after EngineStart     stubborn  ignores EngineStop
 *
 * When hvdd goes away it comes back with EngineHello every 50 ms, as the real one does. */
#include "base/clock.h"
#include "base/digest.h"
#include "base/log.h"
#include "base/status.h"
#include "proto/packet.h"
#include "proto/wire.h"
#include "shm/abi.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define LINK_FD 3

static struct hvi_engine_start start;
static struct hvi_rank_row rows[HVI_RANKS_MAX];
static int clients[HVI_RANKS_MAX];
static int32_t seats[HVI_RANKS_MAX]; /* ranks by local rank */
static char digest[HVI_DIGEST_TEXT];
static int link_fd = LINK_FD;
static int present, came;
static struct hvi_packet packet;
static unsigned char encoded[HVI_PACKET_BYTES_MAX];

static int is(const char *mode)
{
    const char *wanted = getenv("FAKE_ENGINE");
    return wanted != NULL && strcmp(wanted, mode) == 0;
}

static void send_to(int fd, const struct hvi_packet_msg *msg)
{
    size_t length;
    if (fd >= 0 && hvi_packet_msg_encode(msg, encoded, sizeof(encoded), &length) == HVI_OK)
        hvi_packet_send(fd, encoded, length, NULL, 0, hvi_deadline_after((int64_t)HVI_NS_SEC));
}

static void tell(int rank, enum hvi_session_state state, const char *name)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_ENGINE_SESSION};

    strcpy(rows[rank].state, name);
    msg.engine_session.rank = rank;
    msg.engine_session.pid = rows[rank].pid;
    msg.engine_session.state = state;
    send_to(link_fd, &msg);
}

/* With the last trainer of a job that spans nodes. */
static void tell_node(void)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_ENGINE_NODE};
    const char *port = getenv("FAKE_ENGINE_PORT"), *wire = getenv("FAKE_ENGINE_WIRE");

    if (start.seats == 0 || present != start.seats)
        return;
    msg.engine_node.size = start.size;
    msg.engine_node.ranks = seats;
    msg.engine_node.rank_count = (size_t)start.seats;
    msg.engine_node.port = port != NULL ? (uint32_t)atoi(port) : 9999;
    msg.engine_node.wire_oldest = msg.engine_node.wire_newest =
        wire != NULL ? (uint32_t)atoi(wire) : 1;
    send_to(link_fd, &msg);
}

static void misbehave_at_adopt(void)
{
    const char *once = getenv("FAKE_ENGINE_ONCE");

    if (is("die"))
        exit(3);
    if (is("once") && once != NULL && access(once, F_OK) != 0) {
        close(open(once, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
        exit(0);
    }
}

static void adopt(const struct hvi_engine_adopt *adopted)
{
    struct hvi_packet_msg attach, reply = {.kind = HVI_PACKET_ATTACH_REPLY};
    int rank;

    misbehave_at_adopt();
    if (is("silent") ||
        hvi_packet_msg_decode(adopted->attach, adopted->attach_bytes, &attach, NULL, 0) != HVI_OK)
        return;
    rank = attach.attach_request.rank;
    hvi_digest_text(attach.attach_request.job_key, digest);
    clients[rank] = hvi_packet_take_fd(&packet, 0);
    rows[rank].pid = adopted->pid;
    rows[rank].uid = adopted->uid;
    rows[rank].ops = 7;
    reply.attach_reply.protocol_version = HVI_PROTOCOL_VERSION;
    reply.attach_reply.abi_version = HVI_ABI_VERSION;
    reply.attach_reply.session = adopted->session;
    reply.attach_reply.generation = start.generation;
    reply.attach_reply.engine_pid = (int32_t)getpid();
    send_to(clients[rank], &reply);
    present++;
    came++;
    if (attach.attach_request.local_rank < HVI_RANKS_MAX)
        seats[attach.attach_request.local_rank] = rank;
    hvi_packet_msg_free(&attach);
    tell(rank, HVI_SESSION_STATE_ATTACHED, "attached");
    tell_node();
}

/* What the rendezvous said, as a line of the log. */
static void note_roster(const struct hvi_engine_roster *roster)
{
    char nodes[1024] = "", key[HVI_WIRE_EPOCH_KEY * 2 + 1] = "";
    size_t used = 0;

    for (size_t i = 0; i < roster->node_count; i++) {
        used += (size_t)snprintf(nodes + used, sizeof(nodes) - used, "%s%s:%u/", i > 0 ? ";" : "",
                                 roster->nodes[i].address, roster->nodes[i].port);
        for (size_t k = 0; k < roster->nodes[i].rank_count; k++)
            used += (size_t)snprintf(nodes + used, sizeof(nodes) - used, "%s%d", k > 0 ? "," : "",
                                     roster->nodes[i].ranks[k]);
    }
    for (size_t i = 0; i < roster->key_bytes; i++)
        snprintf(key + 2 * i, 3, "%02x", roster->key[i]);
    HVI_LOG(HVI_LOG_INFO, "fake", "roster", roster->status == HVI_OK ? "met" : roster->text,
            "job=%s status=%d epoch=%llu node=%u wire=%u nodes=%s key=%s", start.job,
            roster->status, (unsigned long long)roster->epoch, roster->node, roster->wire, nodes,
            key);
}

static void report(const struct hvi_engine_query *query)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_ENGINE_REPORT};
    int32_t ready[1] = {0};
    struct hvi_missing_rank missing[1] = {{.rank = 1, .pid = 0, .process = "absent"}};
    struct hvi_stall_row stall = {.tensor = "w1", .op = "allreduce", .age_ns = 5 * HVI_NS_SEC};

    if (is("mute"))
        return;
    msg.engine_report.request = query->request;
    stall.ready = ready;
    stall.ready_count = stall.missing_count = 1;
    stall.missing = missing;
    if (query->what == HVI_QUERY_RANKS) {
        msg.engine_report.ranks = rows;
        msg.engine_report.rank_count = (size_t)start.size;
    } else {
        msg.engine_report.stalls = &stall;
        msg.engine_report.stall_count = 1;
    }
    send_to(link_fd, &msg);
}

static void fate(const struct hvi_engine_fate *told)
{
    snprintf(rows[told->rank].text, sizeof(rows[told->rank].text), "fate %d %d", told->signaled,
             told->code);
}

static void read_link(void)
{
    struct hvi_packet_msg msg;
    int status = hvi_packet_receive(link_fd, &packet, hvi_deadline_after((int64_t)HVI_NS_SEC));

    if (status == HVI_ERR_CLOSED) {
        close(link_fd);
        link_fd = -1;
        if (present == 0)
            exit(0);
        return;
    }
    if (status != HVI_OK ||
        hvi_packet_msg_decode(packet.bytes, packet.length, &msg, NULL, 0) != HVI_OK)
        exit(4);
    if (msg.kind == HVI_PACKET_ENGINE_ADOPT)
        adopt(&msg.engine_adopt);
    else if (msg.kind == HVI_PACKET_ENGINE_QUERY)
        report(&msg.engine_query);
    else if (msg.kind == HVI_PACKET_ENGINE_FATE)
        fate(&msg.engine_fate);
    else if (msg.kind == HVI_PACKET_ENGINE_ROSTER)
        note_roster(&msg.engine_roster);
    else if (msg.kind == HVI_PACKET_ENGINE_STOP && !is("stubborn"))
        exit(0);
    hvi_packet_msg_free(&msg);
    hvi_packet_close_fds(&packet);
}

static void read_client(int rank)
{
    int status = hvi_packet_receive(clients[rank], &packet, 0);

    if (status == HVI_ERR_TIMEOUT)
        return;
    /* Any message is a Detach here. */
    close(clients[rank]);
    clients[rank] = -1;
    present--;
    if (status == HVI_OK)
        tell(rank, HVI_SESSION_STATE_LEFT, "left");
    else
        tell(rank, HVI_SESSION_STATE_LOST, "lost");
    if (present == 0 && came == (start.seats != 0 ? start.seats : start.size))
        exit(0);
}

static void say_hello(void)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_ENGINE_HELLO};
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    snprintf(address.sun_path, sizeof(address.sun_path), "%.107s", start.attach_path);
    if (connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0) {
        close(fd);
        return;
    }
    msg.engine_hello.protocol_version = HVI_PROTOCOL_VERSION;
    strcpy(msg.engine_hello.job, start.job);
    msg.engine_hello.generation = start.generation;
    msg.engine_hello.size = start.size;
    msg.engine_hello.uid = start.uid;
    msg.engine_hello.pid = (int32_t)getpid();
    msg.engine_hello.ranks = rows;
    msg.engine_hello.rank_count = (size_t)start.size;
    strcpy(msg.engine_hello.job_key_digest, digest);
    send_to(fd, &msg);
    link_fd = fd;
}

static void loop(void)
{
    struct pollfd poll_fds[HVI_RANKS_MAX + 1];
    int count = start.size;

    for (int i = 0; i < count; i++)
        poll_fds[i] = (struct pollfd){.fd = clients[i], .events = POLLIN};
    poll_fds[count] = (struct pollfd){.fd = is("deaf") ? -1 : link_fd, .events = POLLIN};
    poll(poll_fds, (nfds_t)count + 1, link_fd < 0 ? 50 : 30000);
    for (int i = 0; i < count; i++)
        if (poll_fds[i].revents != 0)
            read_client(i);
    if (poll_fds[count].revents != 0)
        read_link();
    if (link_fd < 0 && present == 0)
        exit(0);
    if (link_fd < 0)
        say_hello();
}

int main(void)
{
    struct hvi_packet_msg msg;

    hvi_log_init("hvt_fake_engine", HVI_LOG_INFO);
    if (hvi_packet_receive(LINK_FD, &packet, hvi_deadline_after(5 * (int64_t)HVI_NS_SEC)) !=
            HVI_OK ||
        hvi_packet_msg_decode(packet.bytes, packet.length, &msg, NULL, 0) != HVI_OK ||
        msg.kind != HVI_PACKET_ENGINE_START)
        return 4;
    start = msg.engine_start;
    hvi_packet_close_fds(&packet);
    for (int i = 0; i < start.size; i++) {
        clients[i] = -1;
        rows[i].rank = i;
        strcpy(rows[i].state, "absent");
    }
    if (is("nonsense"))
        hvi_packet_send(LINK_FD, "nonsense", 8, NULL, 0, 0);
    for (;;)
        loop();
}
