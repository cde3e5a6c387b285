/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/engine/hvt_peer.h"

#include "base/fate.h"
#include "base/status.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static void send_msg(int socket, const struct hvi_packet_msg *msg, const int *fds,
                     uint32_t fd_count)
{
    static unsigned char bytes[HVI_PACKET_BYTES_MAX];
    size_t length = 0;

    ck_assert_int_eq(hvi_packet_msg_encode(msg, bytes, sizeof bytes, &length), HVI_OK);
    ck_assert_int_eq(
        hvi_packet_send(socket, bytes, length, fds, fd_count, hvi_deadline_after(HVT_DEADLINE_NS)),
        HVI_OK);
}

/* The fds of the last message. */
static struct hvi_packet packet;

static bool expect_msg(int socket, enum hvi_packet_kind kind, struct hvi_packet_msg *msg_p)
{
    uint64_t deadline_ns = hvi_deadline_after(HVT_DEADLINE_NS);
    char why[256] = "";

    for (;;) {
        int status = hvi_packet_receive(socket, &packet, deadline_ns);
        if (status == HVI_ERR_CLOSED)
            return false;
        ck_assert_msg(status == HVI_OK, "no message of kind %d: %s", (int)kind,
                      hvi_status_text(status));
        status = hvi_packet_msg_decode(packet.bytes, packet.length, msg_p, why, sizeof why);
        ck_assert_msg(status == HVI_OK, "undecodable: %s", why);
        if (msg_p->kind == kind)
            return true;
        hvi_packet_msg_free(msg_p);
        hvi_packet_close_fds(&packet);
    }
}

/* ---- a trainer ---- */

void hvt_peer_init(struct hvt_peer *peer, int32_t rank, int32_t size, pid_t pid)
{
    int pair[2];

    memset(peer, 0, sizeof *peer);
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    peer->rank = peer->local_rank = rank;
    peer->size = peer->local_size = size;
    peer->socket = pair[0];
    peer->far_socket = pair[1];
    peer->pid = pid ? pid : getpid();
    peer->pid_fd = pid ? hvi_pidfd_open(pid) : -1;
    peer->engine_fd = peer->event_fd = -1;
    peer->cookie = 1000;
    for (int i = 0; i < 4; i++)
        peer->regions[i].fd = -1;
}

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

void hvt_peer_fini(struct hvt_peer *peer)
{
    close_fd(&peer->socket);
    close_fd(&peer->far_socket);
    close_fd(&peer->pid_fd);
    close_fd(&peer->engine_fd);
    close_fd(&peer->event_fd);
    for (int i = 0; i < 4; i++)
        hvi_region_fini(&peer->regions[i]);
    if (peer->channel.header)
        hvi_channel_fini(&peer->channel);
    if (peer->bell)
        hvi_region_fini(&peer->bell_region);
    memset(peer, 0, sizeof *peer);
    peer->socket = peer->far_socket = peer->pid_fd = peer->engine_fd = peer->event_fd = -1;
}

size_t hvt_peer_request(const struct hvt_peer *peer, const struct hvi_setting *settings,
                        size_t setting_count, unsigned char *bytes_p, size_t size)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_ATTACH_REQUEST};
    struct hvi_attach_request *request = &msg.attach_request;
    size_t length = 0;

    request->protocol_version = HVI_PROTOCOL_VERSION;
    request->abi_version = HVI_ABI_VERSION;
    snprintf(request->job, sizeof request->job, HVT_JOB);
    request->rank = peer->rank;
    request->size = peer->size;
    request->local_rank = peer->local_rank;
    request->local_size = peer->local_size;
    request->cross_size = hvi_job_nodes(peer->size, peer->local_size, 1);
    snprintf(request->origin, sizeof request->origin, "test");
    request->settings = (struct hvi_setting *)(uintptr_t)settings;
    request->setting_count = setting_count;
    ck_assert_int_eq(hvi_packet_msg_encode(&msg, bytes_p, size, &length), HVI_OK);
    return length;
}

int hvt_peer_meet(struct hvt_peer *peer)
{
    struct hvi_packet_msg msg;

    ck_assert(expect_msg(peer->socket, HVI_PACKET_ATTACH_REPLY, &msg));
    peer->reply = msg.attach_reply;
    if (peer->reply.status != HVI_OK) {
        ck_assert_uint_eq(packet.fd_count, 0);
        return peer->reply.status;
    }
    ck_assert(packet.fd_count == 4 || packet.fd_count == 5); /* the fifth: slots */
    if (packet.fd_count == 5)
        close(packet.fds[4]);
    ck_assert_int_eq(hvi_channel_map(packet.fds[0], &peer->channel), HVI_OK);
    ck_assert_int_eq(hvi_bell_map(packet.fds[1], &peer->bell_region, &peer->bell), HVI_OK);
    peer->engine_fd = packet.fds[2];
    peer->event_fd = packet.fds[3];
    packet.fd_count = 0;
    return HVI_OK;
}

struct hvi_submission hvt_peer_op(struct hvt_peer *peer, uint16_t kind, uint32_t dtype,
                                  uint64_t count, uint32_t region)
{
    struct hvi_submission op = {
        .cookie = ++peer->cookie,
        .kind = kind,
        .reduce_op = HVI_REDUCE_SUM,
        .dtype = (uint8_t)dtype,
        .ndim = 1,
        .root = kind == HVI_KIND_BROADCAST ? 0 : -1,
        .in_region = region,
        .out_region = region,
        .count = count,
        .out_capacity = count * hvi_dtype_bytes(dtype),
        .prescale = 1.0,
        .postscale = 1.0,
        .submit_ns = hvi_clock_ns(),
    };
    op.dims[0] = (int64_t)count;
    if (kind == HVI_KIND_BARRIER)
        op.ndim = 0;
    if (kind == HVI_KIND_BARRIER || region == HVI_REGION_NONE) {
        op.in_region = op.out_region = HVI_REGION_NONE;
        op.out_capacity = 0;
    }
    return op;
}

void hvt_peer_name(struct hvt_peer *peer, struct hvi_submission *op, uint32_t id, const char *name)
{
    uint32_t bytes = (uint32_t)strlen(name);

    op->tensor_id = id;
    op->flags |= HVI_SUBMIT_NAMED;
    op->name_offset = peer->name_at & (HVI_NAMES_BYTES - 1);
    op->name_bytes = bytes;
    hvi_channel_write_name(&peer->channel, peer->name_at, name, bytes);
    peer->name_at += bytes;
}

uint64_t hvt_peer_submit(struct hvt_peer *peer, struct hvi_submission *op)
{
    uint64_t deadline_ns = hvi_deadline_after(HVT_DEADLINE_NS);
    uint32_t space = 0;

    while (hvi_ring_space(&peer->channel.sq, &space) == HVI_OK && space == 0) {
        ck_assert(!hvi_deadline_passed(deadline_ns));
        sched_yield();
    }
    ck_assert_uint_gt(space, 0);
    peer->seq++;
    if (op->seq == 0)
        op->seq = peer->seq;
    memcpy(hvi_ring_slot(&peer->channel.sq, 0), op, sizeof *op);
    hvi_ring_publish(&peer->channel.sq, 1);
    hvi_bell_ring_engine(peer->bell, peer->channel.channel_index, peer->engine_fd);
    return op->cookie;
}

bool hvt_peer_has_completion(struct hvt_peer *peer)
{
    uint32_t count = 0;

    ck_assert_int_eq(hvi_ring_available(&peer->channel.cq, &count), HVI_OK);
    return count > 0;
}

struct hvi_completion hvt_peer_complete(struct hvt_peer *peer, char *text_p, size_t text_size)
{
    uint64_t deadline_ns = hvi_deadline_after(HVT_DEADLINE_NS);
    struct hvi_completion completion;

    while (!hvt_peer_has_completion(peer)) {
        ck_assert_msg(!hvi_deadline_passed(deadline_ns), "rank %d: no completion", peer->rank);
        sched_yield();
    }
    hvi_ring_copy(&peer->channel.cq, 0, &completion);
    ck_assert_uint_eq(completion.seq, ++peer->completions);
    if (text_p) {
        text_p[0] = '\0';
        if (completion.text_cell != HVI_TEXT_NONE)
            ck_assert(hvi_channel_read_text(&peer->channel, completion.text_cell,
                                            completion.text_turn, text_p, text_size));
    }
    hvi_ring_release(&peer->channel.cq, 1);
    return completion;
}

void hvt_peer_send(struct hvt_peer *peer, const struct hvi_packet_msg *msg, int fd)
{
    send_msg(peer->socket, msg, &fd, fd >= 0 ? 1 : 0);
}

bool hvt_peer_has_message(const struct hvt_peer *peer)
{
    struct pollfd pollfd = {.fd = peer->socket, .events = POLLIN};

    return poll(&pollfd, 1, 0) > 0;
}

bool hvt_peer_expect(struct hvt_peer *peer, enum hvi_packet_kind kind, struct hvi_packet_msg *msg_p)
{
    bool came = expect_msg(peer->socket, kind, msg_p);

    hvi_packet_close_fds(&packet);
    return came;
}

static int expect_ack(struct hvt_peer *peer)
{
    struct hvi_packet_msg msg;

    ck_assert(hvt_peer_expect(peer, HVI_PACKET_ACK, &msg));
    ck_assert_uint_eq(msg.ack.request, peer->request);
    ck_assert_int_eq(msg.ack.status == HVI_OK, msg.ack.text[0] == '\0');
    return msg.ack.status;
}

int hvt_peer_add_region(struct hvt_peer *peer, uint32_t id, uint64_t bytes)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_REGION_ADD};
    struct hvi_region *region = &peer->regions[id - 1];

    ck_assert_int_eq(hvi_region_create("hvt", bytes, region), HVI_OK);
    msg.region_add.request = ++peer->request;
    msg.region_add.region = id;
    msg.region_add.bytes = region->bytes;
    hvt_peer_send(peer, &msg, region->fd);
    hvi_region_close_fd(region);
    return expect_ack(peer);
}

int hvt_peer_remove_region(struct hvt_peer *peer, uint32_t id)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_REGION_REMOVE};

    msg.region_remove.request = ++peer->request;
    msg.region_remove.region = id;
    hvt_peer_send(peer, &msg, -1);
    return expect_ack(peer);
}

void *hvt_peer_memory(struct hvt_peer *peer, uint32_t region)
{
    return region == HVI_REGION_INLINE ? peer->channel.inline_base : peer->regions[region - 1].base;
}

/* ---- hvdd ---- */

struct hvi_engine_start hvt_node_defaults(int32_t size)
{
    struct hvi_engine_start start = {
        .generation = 1,
        .size = size,
        .uid = (uint32_t)getuid(),
        .threads = 2,
        .regions_max = 3,
        .region_bytes_max = 1ull << 30,
        .stall_warn_ns = 60 * HVI_NS_SEC,
        .log_level = 1,
    };
    snprintf(start.job, sizeof start.job, HVT_JOB);
    snprintf(start.attach_path, sizeof start.attach_path, "/nonexistent/attach.sock");
    return start;
}

static void exec_engine(int link)
{
    char path[4096];
    const char *build = getenv("HVD_BUILD_DIR");

    snprintf(path, sizeof path, "%s/libexec/hvdd/hvdd-engine", build ? build : ".");
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (link != 3)
        dup2(link, 3);
    else
        fcntl(3, F_SETFD, 0);
    execl(path, "hvdd-engine", (char *)NULL);
    _exit(127);
}

void hvt_node_start(struct hvt_node *node, const struct hvi_engine_start *start)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_ENGINE_START};
    int pair[2];

    memset(node, 0, sizeof *node);
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    node->link = pair[0];
    node->pid = fork();
    ck_assert_int_ge(node->pid, 0);
    if (node->pid == 0)
        exec_engine(pair[1]);
    close(pair[1]);
    msg.engine_start = *start;
    hvt_node_send(node, &msg, NULL, 0);
}

void hvt_node_send(struct hvt_node *node, const struct hvi_packet_msg *msg, const int *fds,
                   uint32_t fd_count)
{
    send_msg(node->link, msg, fds, fd_count);
}

bool hvt_node_expect(struct hvt_node *node, enum hvi_packet_kind kind, struct hvi_packet_msg *msg_p)
{
    return expect_msg(node->link, kind, msg_p);
}

int hvt_node_adopt(struct hvt_node *node, struct hvt_peer *peer, const struct hvi_setting *settings,
                   size_t setting_count)
{
    static unsigned char request[HVI_PACKET_BYTES_MAX];
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_ENGINE_ADOPT};
    int fds[2] = {peer->far_socket, peer->pid_fd};

    msg.engine_adopt.session = ++node->session;
    msg.engine_adopt.attach = request;
    msg.engine_adopt.attach_bytes =
        hvt_peer_request(peer, settings, setting_count, request, sizeof request);
    msg.engine_adopt.pid = peer->pid;
    msg.engine_adopt.uid = (uint32_t)getuid();
    msg.engine_adopt.gid = (uint32_t)getgid();
    hvt_node_send(node, &msg, fds, peer->pid_fd >= 0 ? 2 : 1);
    close_fd(&peer->far_socket);
    int status = hvt_peer_meet(peer);
    if (status == HVI_OK) {
        ck_assert(hvt_node_expect(node, HVI_PACKET_ENGINE_SESSION, &msg));
        ck_assert_int_eq(msg.engine_session.rank, peer->rank);
        ck_assert_uint_eq(msg.engine_session.state, HVI_SESSION_STATE_ATTACHED);
    }
    return status;
}

int hvt_node_wait(struct hvt_node *node)
{
    uint64_t deadline_ns = hvi_deadline_after(HVT_DEADLINE_NS);
    int wait_status = 0;

    while (waitpid(node->pid, &wait_status, WNOHANG) == 0) {
        ck_assert_msg(!hvi_deadline_passed(deadline_ns), "the engine does not end");
        usleep(1000);
    }
    node->pid = 0;
    return wait_status;
}

void hvt_node_fini(struct hvt_node *node)
{
    if (node->pid > 0) {
        kill(node->pid, SIGTERM);
        ck_assert_int_eq(hvt_node_wait(node), 0);
    }
    close_fd(&node->link);
}
