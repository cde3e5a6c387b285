/* SPDX-License-Identifier: Apache-2.0
 * hvt-liar: a trainer that attaches properly and then lies, to prove that an engine believes
 * nothing.
 *
 *     hvt-liar --list                                           one JSON object per lie: name,
 * expect hvt-liar --address DIR --job J --rank R --size N --lie NAME [--seed S] [--wait-ms MS]
 *
 * Every lie says what an engine that does its duty makes of it:
 *   ended     the session is ended (a Notice with session_ended, or end of file)
 *   refused   the session stays and the request is answered with an error
 *   op        the session stays and the op comes back with an error
 *   harmless  nothing happens: the engine still answers this session's control messages
 *   any       the engine may end the session or not, but it must stay alive (random scribbling)
 *
 * The program does the lie, watches the socket and the completion ring until it can tell, and
 * prints one JSON object:
 *   {"lie": "...", "expect": "...", "outcome": "ended" | "refused" | "op" | "alive" | "nothing", "status": N,
 * "lied_ns": N (CLOCK_MONOTONIC), "text": "..."} Exit status: 0 when the outcome is the expected one, 1 when it is not, 2 on bad
 * usage or a failed attach.
 *
 * It uses the real shared-memory and wire code, so that what reaches the engine is wrong in one
 * place only. */
#include "base/clock.h"
#include "base/status.h"
#include "base/types.h"
#include "proto/packet.h"
#include "proto/wire.h"
#include "shm/abi.h"
#include "shm/bell.h"
#include "shm/channel.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define REGION       1u
#define REGION_BYTES 65536u

struct hvt_liar {
    int socket;
    struct hvi_channel channel;
    struct hvi_region bell_region;
    struct hvi_bell_page *bell;
    int engine_event, client_event;
    struct hvi_region region; /* an honest region, registered as REGION */
    uint64_t seq, cookie, request;
    uint32_t random;
    uint32_t name_at; /* next free byte of the name area */
    struct hvi_packet packet;
};

struct hvt_verdict {
    const char *outcome;
    int status;
    char text[HVI_TEXT_MAX + 1];
};

/* ---- speaking ---- */

static void die(const char *what, int status)
{
    fprintf(stderr, "hvt-liar: %s: %d, %s\n", what, status, strerror(errno));
    exit(2);
}

static int send_msg(struct hvt_liar *liar, const struct hvi_packet_msg *msg, const int *fds,
                    uint32_t fd_count)
{
    unsigned char bytes[4096];
    size_t length;
    int status = hvi_packet_msg_encode(msg, bytes, sizeof bytes, &length);
    if (status != HVI_OK)
        die("encode", status);
    return hvi_packet_send(liar->socket, bytes, length, fds, fd_count,
                           hvi_clock_ns() + 5000000000ull);
}

static void send_region_add(struct hvt_liar *liar, uint32_t id, uint64_t bytes, const int *fds,
                            uint32_t fd_count)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_REGION_ADD};
    msg.region_add = (struct hvi_region_add){++liar->request, id, bytes, 0};
    send_msg(liar, &msg, fds, fd_count);
}

static uint32_t next_random(struct hvt_liar *liar)
{
    liar->random ^= liar->random << 13;
    liar->random ^= liar->random >> 17;
    liar->random ^= liar->random << 5;
    return liar->random;
}

/* Names a tensor in the name area. */
static void give_name(struct hvt_liar *liar, struct hvi_submission *sub, const char *name,
                      uint32_t bytes)
{
    sub->flags = HVI_SUBMIT_NAMED;
    sub->name_offset = liar->name_at % HVI_NAMES_BYTES;
    sub->name_bytes = bytes;
    hvi_channel_write_name(&liar->channel, sub->name_offset, name, bytes);
    liar->name_at += bytes;
}

/* An allreduce as an honest library would send it. */
static struct hvi_submission honest(struct hvt_liar *liar, uint32_t tensor_id)
{
    struct hvi_submission sub = {
        .cookie = ++liar->cookie,
        .tensor_id = tensor_id,
        .kind = HVI_KIND_ALLREDUCE,
        .reduce_op = HVI_REDUCE_SUM,
        .dtype = HVI_DTYPE_FLOAT32,
        .ndim = 1,
        .root = -1,
        .in_region = REGION,
        .out_region = REGION,
        .in_offset = 0,
        .out_offset = 4096,
        .count = 4,
        .out_capacity = 16,
        .prescale = 1.0,
        .postscale = 1.0,
        .dims = {4},
        .submit_ns = hvi_clock_ns(),
    };
    char name[32];
    int bytes = snprintf(name, sizeof name, "lie.%u", tensor_id);
    give_name(liar, &sub, name, (uint32_t)bytes);
    return sub;
}

static void ring(struct hvt_liar *liar)
{
    hvi_bell_ring_engine(liar->bell, liar->channel.channel_index, liar->engine_event);
}

/* False when the ring stays full for five seconds or the engine has ended the session. */
static bool submit(struct hvt_liar *liar, struct hvi_submission *sub)
{
    uint64_t deadline = hvi_clock_ns() + 5000000000ull;
    uint32_t space = 0;
    while (hvi_ring_space(&liar->channel.sq, &space) == HVI_OK && space == 0) {
        if (hvi_clock_ns() > deadline ||
            atomic_load(&liar->channel.header->session_state) == HVI_SESSION_ENDED)
            return false;
        usleep(100);
    }
    if (sub->seq == 0)
        sub->seq = ++liar->seq;
    memcpy(hvi_ring_slot(&liar->channel.sq, 0), sub, sizeof *sub);
    hvi_ring_publish(&liar->channel.sq, 1);
    ring(liar);
    return true;
}

/* ---- lies in one submission ---- */

typedef void hvt_tweak(struct hvt_liar *liar, struct hvi_submission *sub);

#define TWEAK(name, statement)                                                                     \
    static void tweak_##name(struct hvt_liar *liar, struct hvi_submission *sub)                    \
    {                                                                                              \
        (void)liar;                                                                                \
        statement;                                                                                 \
    }

TWEAK(seq_gap, sub->seq = 7)
TWEAK(seq_huge, sub->seq = UINT64_MAX)
TWEAK(kind_unknown, sub->kind = 200)
TWEAK(kind_hole, sub->kind = 4)
TWEAK(group_of_none, sub->group = 5)
TWEAK(group_huge, (sub->group = 5, sub->group_size = UINT32_MAX))
TWEAK(group_middle, (sub->group = 5, sub->group_size = 3, sub->group_index = 2))
TWEAK(splits_unbacked, (sub->kind = HVI_KIND_ALLTOALL, sub->aux_region = 99, sub->aux_count = 2))
TWEAK(splits_too_many, (sub->kind = HVI_KIND_ALLTOALL, sub->aux_count = UINT32_MAX))
TWEAK(set_too_large, (sub->kind = HVI_KIND_SET_ADD, sub->aux_count = UINT32_MAX))
TWEAK(set_outside, (sub->kind = HVI_KIND_SET_ADD, sub->aux_offset = UINT64_MAX, sub->aux_count = 1))
TWEAK(output_unknown_cookie, sub->kind = HVI_SUBMIT_OUTPUT)
TWEAK(dtype_unknown, sub->dtype = HVI_DTYPE_COUNT)
TWEAK(dtype_255, sub->dtype = 255)
TWEAK(reduce_unknown, sub->reduce_op = 77)
TWEAK(ndim_9, sub->ndim = 9)
TWEAK(ndim_255, sub->ndim = 255)
TWEAK(dim_negative, sub->dims[0] = -4)
TWEAK(dim_min, sub->dims[0] = INT64_MIN)
TWEAK(count_high, sub->count = 5)
TWEAK(count_low, sub->count = 3)
TWEAK(count_huge, sub->count = UINT64_MAX)
TWEAK(dims_overflow,
      (sub->ndim = 3, sub->dims[0] = sub->dims[1] = sub->dims[2] = INT64_MAX / 2, sub->count = 4))
TWEAK(dims_wrap_to_count,
      (sub->ndim = 2, sub->dims[0] = (1ll << 62) + 1, sub->dims[1] = 4, sub->count = 4))
TWEAK(bytes_overflow, (sub->dims[0] = 1ll << 62, sub->count = 1ull << 62))
TWEAK(bytes_past_region,
      (sub->dims[0] = 1 << 20, sub->count = 1u << 20, sub->out_capacity = 4u << 20))
TWEAK(in_region_unknown, sub->in_region = 99)
TWEAK(in_region_none, sub->in_region = HVI_REGION_NONE)
TWEAK(out_region_unknown, sub->out_region = 99)
TWEAK(in_offset_past, sub->in_offset = REGION_BYTES)
TWEAK(in_offset_edge, sub->in_offset = REGION_BYTES - 8)
TWEAK(in_offset_wraps, sub->in_offset = UINT64_MAX - 7)
TWEAK(out_offset_past, sub->out_offset = REGION_BYTES)
TWEAK(out_offset_wraps, sub->out_offset = UINT64_MAX - 7)
TWEAK(in_unaligned, sub->in_offset = 2)
TWEAK(out_unaligned, sub->out_offset = 4098)
TWEAK(out_capacity_small, sub->out_capacity = 12)
TWEAK(out_capacity_past, sub->out_capacity = UINT64_MAX)
TWEAK(overlap, sub->out_offset = 8)
TWEAK(inline_past, (sub->in_region = HVI_REGION_INLINE, sub->in_offset = HVI_INLINE_BYTES - 8))
TWEAK(tensor_id_high, sub->tensor_id = HVI_TENSOR_IDS)
TWEAK(tensor_id_huge, sub->tensor_id = UINT32_MAX)
TWEAK(tensor_undefined, (sub->flags = 0, sub->tensor_id = 5))
TWEAK(name_empty, sub->name_bytes = 0)
TWEAK(name_long, sub->name_bytes = HVI_NAME_MAX + 1)
TWEAK(name_huge, sub->name_bytes = UINT32_MAX)
TWEAK(name_offset_past, sub->name_offset = HVI_NAMES_BYTES)
TWEAK(name_offset_huge, sub->name_offset = UINT32_MAX)
TWEAK(name_not_utf8, give_name(liar, sub, "a\xff\xc0z", 4))
TWEAK(name_nul, give_name(liar, sub, "a\0z", 3))
TWEAK(flags_both, sub->flags = HVI_SUBMIT_NAMED | HVI_SUBMIT_ANON)
TWEAK(flags_unknown, sub->flags |= 0x8000)
TWEAK(root_high, (sub->kind = HVI_KIND_BROADCAST, sub->root = 1000))
TWEAK(root_negative, (sub->kind = HVI_KIND_BROADCAST, sub->root = -2))
TWEAK(process_set, sub->process_set = 7)
TWEAK(reserved_byte, sub->reserved0 = 1)
TWEAK(reserved_word, sub->reserved[1] = 1ull << 63)
TWEAK(fence_not_offered, sub->fence_turn = 1; sub->fence_cell = 1)
TWEAK(adasum, (sub->reduce_op = HVI_REDUCE_ADASUM, sub->dtype = HVI_DTYPE_INT32))
TWEAK(scale_nan, sub->prescale = NAN)
TWEAK(submit_ns, sub->submit_ns = UINT64_MAX)
TWEAK(honest, (void)sub)

/* ---- lies in several steps ---- */

typedef void hvt_act(struct hvt_liar *liar);

static void set_tail(struct hvt_liar *liar, uint32_t by)
{
    atomic_store(&liar->channel.header->sq_tail, atomic_load(&liar->channel.header->sq_tail) + by);
    ring(liar);
}

static void act_tail_far(struct hvt_liar *liar)
{
    set_tail(liar, HVI_SQ_SLOTS + 1);
}

static void act_tail_half(struct hvt_liar *liar)
{
    set_tail(liar, 0x80000000u);
}

static void act_tail_back(struct hvt_liar *liar)
{
    set_tail(liar, UINT32_MAX);
}

static void act_tail_empty_slots(struct hvt_liar *liar)
{
    set_tail(liar, 3);
}

/* The engine meets a wrong cq_head when it has a completion to write: unnamed process sets fail at
 * once. */
static void act_head_far(struct hvt_liar *liar)
{
    struct hvi_submission sub = honest(liar, 0);
    sub.process_set = 7;
    atomic_store(&liar->channel.header->cq_head, 5000);
    submit(liar, &sub);
}

static void act_twice_in_flight(struct hvt_liar *liar)
{
    struct hvi_submission first = honest(liar, 0), second = honest(liar, 0);
    submit(liar, &first);
    submit(liar, &second);
}

static void act_cookie_twice(struct hvt_liar *liar)
{
    struct hvi_submission first = honest(liar, 0), second = honest(liar, 1);
    second.cookie = first.cookie;
    submit(liar, &first);
    submit(liar, &second);
}

static void act_seq_twice(struct hvt_liar *liar)
{
    struct hvi_submission first = honest(liar, 0), second = honest(liar, 1);
    submit(liar, &first);
    second.seq = first.seq;
    submit(liar, &second);
}

static void act_too_many(struct hvt_liar *liar)
{
    for (uint32_t i = 0; i <= HVI_CQ_SLOTS; i++) {
        struct hvi_submission sub = honest(liar, i);
        if (!submit(liar, &sub))
            return;
    }
}

static void act_output_for_allreduce(struct hvt_liar *liar)
{
    struct hvi_submission first = honest(liar, 0), second = honest(liar, 1);
    second.kind = HVI_SUBMIT_OUTPUT;
    second.cookie = first.cookie;
    submit(liar, &first);
    submit(liar, &second);
}

static void act_output_too_early(struct hvt_liar *liar)
{
    struct hvi_submission first = honest(liar, 0), second = honest(liar, 0);
    first.kind = HVI_KIND_ALLGATHER;
    first.out_region = HVI_REGION_NONE;
    first.out_offset = first.out_capacity = 0;
    second.kind = HVI_SUBMIT_OUTPUT;
    second.cookie = first.cookie;
    submit(liar, &first);
    submit(liar, &second);
}

static void act_bell_noise(struct hvt_liar *liar)
{
    for (int round = 0; round < 1000; round++) {
        for (int word = 0; word < 16; word++)
            atomic_store(&liar->bell->active[word], UINT64_MAX);
        atomic_store(&liar->bell->engine_sleeping, next_random(liar));
        ring(liar);
    }
}

static void act_waiter_words(struct hvt_liar *liar)
{
    struct hvi_submission sub = honest(liar, 0);
    sub.process_set = 7;
    atomic_store(&liar->channel.header->cq_sleepers, UINT32_MAX);
    atomic_store(&liar->channel.header->client_event_armed, UINT32_MAX);
    atomic_store(&liar->channel.header->cq_bell, UINT32_MAX);
    submit(liar, &sub);
}

/* Sizes and offsets are the engine's own private copies: what stands here does not matter to it. */
static void act_header_numbers(struct hvt_liar *liar)
{
    struct hvi_channel_header *header = liar->channel.header;
    header->magic = 0;
    header->abi_version = UINT32_MAX;
    header->total_bytes = UINT64_MAX;
    header->sq_offset = header->cq_offset = header->names_offset = header->texts_offset =
        UINT32_MAX;
    header->inline_offset = header->inline_bytes = header->names_bytes = header->text_cells =
        UINT32_MAX;
    header->channel_index = UINT32_MAX;
    struct hvi_submission sub = honest(liar, 0);
    submit(liar, &sub);
}

static void act_event_full(struct hvt_liar *liar)
{
    uint64_t most = UINT64_MAX - 1;
    for (int i = 0; i < 2; i++) {
        ssize_t n = write(liar->client_event, &most, sizeof most);
        n += write(liar->engine_event, &most, sizeof most);
        (void)n;
    }
    act_waiter_words(liar);
}

static void act_scribble_slots(struct hvt_liar *liar)
{
    for (int round = 0; round < 64; round++) {
        struct hvi_submission sub = honest(liar, 0);
        unsigned char *bytes = (unsigned char *)&sub;
        uint32_t flips = 1 + next_random(liar) % 4;
        for (uint32_t i = 0; i < flips; i++)
            bytes[8 + next_random(liar) % 248] = (unsigned char)next_random(liar);
        if (!submit(liar, &sub))
            return;
    }
}

static void act_scribble_channel(struct hvt_liar *liar)
{
    uint32_t *words = liar->channel.region.base;
    uint64_t count = liar->channel.region.bytes / 4;
    for (int round = 0; round < 200000; round++)
        words[next_random(liar) % (round & 1 ? count : 1024)] = next_random(liar);
    ring(liar);
}

/* Changes a slot and the name area after they were published, as fast as it can. */
static void act_change_after(struct hvt_liar *liar)
{
    for (int round = 0; round < 500; round++) {
        struct hvi_submission sub = honest(liar, 0);
        sub.process_set = 7;
        if (!submit(liar, &sub))
            return;
        struct hvi_submission *slot =
            (struct hvi_submission *)liar->channel.sq.slots + (sub.seq - 1) % HVI_SQ_SLOTS;
        for (int i = 0; i < 20; i++) {
            slot->count = next_random(liar);
            slot->in_offset = next_random(liar);
            slot->name_bytes = next_random(liar);
        }
    }
}

/* ---- lies on the socket ---- */

static void act_socket_garbage(struct hvt_liar *liar)
{
    unsigned char bytes[700];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (unsigned char)next_random(liar);
    hvi_packet_send(liar->socket, bytes, sizeof bytes, NULL, 0, 0);
}

static void act_socket_oversized(struct hvt_liar *liar)
{
    static unsigned char bytes[HVI_PACKET_BYTES_MAX + 4096];
    int room = 2 * (int)sizeof bytes;
    setsockopt(liar->socket, SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof room);
    if (send(liar->socket, bytes, sizeof bytes, MSG_NOSIGNAL) < 0)
        die("send oversized", -errno);
}

static void act_socket_empty_with_fd(struct hvt_liar *liar)
{
    struct iovec part = {.iov_base = "", .iov_len = 0};
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {.bytes = {0}};
    struct msghdr msg = {.msg_iov = &part,
                         .msg_iovlen = 1,
                         .msg_control = &control,
                         .msg_controllen = sizeof control};
    struct cmsghdr *head = CMSG_FIRSTHDR(&msg);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(head), &liar->engine_event, sizeof(int));
    if (sendmsg(liar->socket, &msg, MSG_NOSIGNAL) < 0)
        die("send descriptors", -errno);
}

static void act_socket_wrong_direction(struct hvt_liar *liar)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_ENGINE_STOP};
    snprintf(msg.engine_stop.reason, sizeof msg.engine_stop.reason, "because I say so");
    send_msg(liar, &msg, NULL, 0);
}

static void act_region_no_fd(struct hvt_liar *liar)
{
    send_region_add(liar, 2, 4096, NULL, 0);
}

static void act_region_two_fds(struct hvt_liar *liar)
{
    int fds[2] = {liar->region.fd, liar->region.fd};
    send_region_add(liar, 2, REGION_BYTES, fds, 2);
}

static void act_region_unsealed(struct hvt_liar *liar)
{
    int fd = memfd_create("hvt-unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || ftruncate(fd, 4096) != 0)
        die("memfd", -errno);
    send_region_add(liar, 2, 4096, &fd, 1);
    close(fd);
}

static void act_region_no_memfd(struct hvt_liar *liar)
{
    send_region_add(liar, 2, 4096, &liar->engine_event, 1);
}

static void act_region_wrong_size(struct hvt_liar *liar)
{
    send_region_add(liar, 2, REGION_BYTES * 4, &liar->region.fd, 1);
}

/* By hand: our own encoder refuses to say it. */
static void act_region_id_zero(struct hvt_liar *liar)
{
    static const unsigned char bytes[] = {0x1a, 8, 0x08, 99, 0x10, 0, 0x18, 0x80, 0x80, 0x04};
    hvi_packet_send(liar->socket, bytes, sizeof bytes, &liar->region.fd, 1, 0);
}

static void act_region_id_taken(struct hvt_liar *liar)
{
    send_region_add(liar, REGION, REGION_BYTES, &liar->region.fd, 1);
}

static void act_region_remove_unknown(struct hvt_liar *liar)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_REGION_REMOVE};
    msg.region_remove = (struct hvi_region_remove){++liar->request, 99};
    send_msg(liar, &msg, NULL, 0);
}

static void act_region_removed_in_flight(struct hvt_liar *liar)
{
    struct hvi_submission sub = honest(liar, 0);
    submit(liar, &sub);
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_REGION_REMOVE};
    msg.region_remove = (struct hvi_region_remove){++liar->request, REGION};
    send_msg(liar, &msg, NULL, 0);
}

static void act_fd_flood(struct hvt_liar *liar)
{
    int fds[HVI_PACKET_FDS_MAX];
    for (uint32_t i = 0; i < HVI_PACKET_FDS_MAX; i++)
        fds[i] = liar->region.fd;
    for (int i = 0; i < 200; i++) {
        struct hvi_packet_msg msg = {.kind = HVI_PACKET_REGION_REMOVE};
        msg.region_remove = (struct hvi_region_remove){++liar->request, 99};
        if (send_msg(liar, &msg, fds, HVI_PACKET_FDS_MAX) != HVI_OK)
            return;
    }
}

/* ---- the table ---- */

struct hvt_lie {
    const char *name, *expect;
    hvt_tweak *tweak; /* one of the two */
    hvt_act *act;
};

#define T(expect, name)                                                                            \
    {                                                                                              \
#name, expect, tweak_##name, NULL                                                          \
    }
#define A(expect, name)                                                                            \
    {                                                                                              \
#name, expect, NULL, act_##name                                                            \
    }

static const struct hvt_lie lies[] = {
    T("ended", seq_gap),
    T("ended", seq_huge),
    T("ended", kind_unknown),
    T("ended", kind_hole),
    T("ended", group_of_none),
    T("ended", group_huge),
    T("ended", group_middle),
    T("ended", splits_unbacked),
    T("ended", splits_too_many),
    T("ended", set_too_large),
    T("ended", set_outside),
    T("ended", output_unknown_cookie),
    T("ended", dtype_unknown),
    T("ended", dtype_255),
    T("ended", reduce_unknown),
    T("ended", ndim_9),
    T("ended", ndim_255),
    T("ended", dim_negative),
    T("ended", dim_min),
    T("ended", count_high),
    T("ended", count_low),
    T("ended", count_huge),
    T("ended", dims_overflow),
    T("ended", dims_wrap_to_count),
    T("ended", bytes_overflow),
    T("ended", bytes_past_region),
    T("ended", in_region_unknown),
    T("ended", in_region_none),
    T("ended", out_region_unknown),
    T("ended", in_offset_past),
    T("ended", in_offset_edge),
    T("ended", in_offset_wraps),
    T("ended", out_offset_past),
    T("ended", out_offset_wraps),
    T("ended", in_unaligned),
    T("ended", out_unaligned),
    T("ended", out_capacity_small),
    T("ended", out_capacity_past),
    T("ended", overlap),
    T("ended", inline_past),
    T("ended", tensor_id_high),
    T("ended", tensor_id_huge),
    T("ended", tensor_undefined),
    T("ended", name_empty),
    T("ended", name_long),
    T("ended", name_huge),
    T("ended", name_offset_past),
    T("ended", name_offset_huge),
    T("ended", name_not_utf8),
    T("ended", name_nul),
    T("ended", flags_both),
    T("ended", flags_unknown),
    T("ended", root_high),
    T("ended", root_negative),
    T("ended", reserved_byte),
    T("ended", reserved_word),
    T("ended", fence_not_offered),
    A("ended", tail_far),
    A("ended", tail_half),
    A("ended", tail_back),
    A("ended", tail_empty_slots),
    A("ended", head_far),
    A("ended", twice_in_flight),
    A("ended", cookie_twice),
    A("ended", seq_twice),
    A("ended", too_many),
    A("ended", output_for_allreduce),
    A("ended", output_too_early),
    A("ended", socket_garbage),
    A("ended", socket_oversized),
    A("ended", socket_empty_with_fd),
    A("ended", socket_wrong_direction),
    A("ended", region_no_fd),
    A("ended", region_two_fds),
    A("refused", region_unsealed),
    A("refused", region_no_memfd),
    A("refused", region_wrong_size),
    A("ended", region_id_zero),
    A("refused", region_id_taken),
    A("refused", region_remove_unknown),
    A("ended", fd_flood),
    T("op", process_set),
    T("op", adasum),
    T("harmless", honest),
    T("harmless", scale_nan),
    T("harmless", submit_ns),
    A("harmless", bell_noise),
    A("harmless", waiter_words),
    A("harmless", header_numbers),
    A("harmless", event_full),
    A("any", change_after),
    A("any", region_removed_in_flight),
    A("any", scribble_slots),
    A("any", scribble_channel),
};

/* ---- telling what became of it ---- */

/* One message of the socket, if there is one. True when the verdict is known. */
static bool look_socket(struct hvt_liar *liar, uint64_t probe, struct hvt_verdict *verdict)
{
    struct hvi_packet_msg msg;
    int status = hvi_packet_receive(liar->socket, &liar->packet, 0);
    if (status == HVI_ERR_TIMEOUT)
        return false;
    if (status != HVI_OK) {
        verdict->outcome = "ended";
        return true;
    }
    if (hvi_packet_msg_decode(liar->packet.bytes, liar->packet.length, &msg, NULL, 0) != HVI_OK)
        die("the engine sent something unreadable", 0);
    hvi_packet_close_fds(&liar->packet);
    bool known = false;
    if (msg.kind == HVI_PACKET_NOTICE && msg.notice.session_ended) {
        verdict->outcome = "ended";
        verdict->status = msg.notice.status;
        snprintf(verdict->text, sizeof verdict->text, "%s", msg.notice.text);
        known = true;
    } else if (msg.kind == HVI_PACKET_ACK && probe != 0 && msg.ack.request == probe) {
        verdict->outcome = msg.ack.status < 0 ? "refused" : "alive";
        verdict->status = msg.ack.status;
        snprintf(verdict->text, sizeof verdict->text, "%s", msg.ack.text);
        known = true;
    }
    hvi_packet_msg_free(&msg);
    return known;
}

static bool look_ring(struct hvt_liar *liar, struct hvt_verdict *verdict)
{
    uint32_t available = 0;
    struct hvi_completion completion;
    if (hvi_ring_available(&liar->channel.cq, &available) != HVI_OK || available == 0)
        return false;
    hvi_ring_copy(&liar->channel.cq, 0, &completion);
    hvi_ring_release(&liar->channel.cq, 1);
    verdict->outcome = "op";
    verdict->status = completion.status;
    hvi_channel_read_text(&liar->channel, completion.text_cell, completion.text_turn, verdict->text,
                          sizeof verdict->text);
    return true;
}

static void judge(struct hvt_liar *liar, const struct hvt_lie *lie, uint64_t wait_ns,
                  struct hvt_verdict *verdict)
{
    uint64_t deadline = hvi_clock_ns() + wait_ns;
    uint64_t probe = strcmp(lie->expect, "refused") == 0 ? liar->request : 0;
    if (strcmp(lie->expect, "harmless") == 0 || strcmp(lie->expect, "any") == 0) {
        send_region_add(liar, 77, REGION_BYTES, &liar->region.fd, 1);
        probe = liar->request;
    }
    bool rings = strcmp(lie->expect, "op") == 0;
    while (hvi_clock_ns() < deadline) {
        if (look_socket(liar, probe, verdict) || (rings && look_ring(liar, verdict)))
            return;
        struct pollfd poll_fd = {.fd = liar->socket, .events = POLLIN};
        poll(&poll_fd, 1, rings ? 1 : 50);
    }
}

static bool as_expected(const struct hvt_lie *lie, const struct hvt_verdict *verdict)
{
    if (strcmp(lie->expect, "any") == 0)
        return strcmp(verdict->outcome, "ended") == 0 || strcmp(verdict->outcome, "alive") == 0;
    if (strcmp(lie->expect, "harmless") == 0)
        return strcmp(verdict->outcome, "alive") == 0;
    if (strcmp(lie->expect, "op") == 0)
        return strcmp(verdict->outcome, "op") == 0 && verdict->status < 0;
    return strcmp(verdict->outcome, lie->expect) == 0;
}

/* ---- attaching, honestly ---- */

struct hvt_arguments {
    const char *address, *job, *lie;
    int rank, size;
    uint32_t seed;
    uint64_t wait_ns;
};

static int connect_to(const char *address)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    snprintf(name.sun_path, sizeof name.sun_path, "%s/attach.sock", address);
    if (fd < 0 || connect(fd, (struct sockaddr *)&name, sizeof name) != 0)
        die(name.sun_path, -errno);
    return fd;
}

static void send_attach(struct hvt_liar *liar, const struct hvt_arguments *arguments)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_ATTACH_REQUEST};
    struct hvi_attach_request *attach = &msg.attach_request;
    attach->protocol_version = HVI_PROTOCOL_VERSION;
    attach->abi_version = HVI_ABI_VERSION;
    snprintf(attach->job, sizeof attach->job, "%s", arguments->job);
    attach->rank = attach->local_rank = arguments->rank;
    attach->size = attach->local_size = arguments->size;
    attach->cross_size = 1;
    snprintf(attach->origin, sizeof attach->origin, "arguments");
    snprintf(attach->client_version, sizeof attach->client_version, "liar");
    if (send_msg(liar, &msg, NULL, 0) != HVI_OK)
        die("send attach", -errno);
}

static void attach(struct hvt_liar *liar, const struct hvt_arguments *arguments)
{
    liar->socket = connect_to(arguments->address);
    send_attach(liar, arguments);
    struct hvi_packet_msg msg;
    int status =
        hvi_packet_receive(liar->socket, &liar->packet, hvi_clock_ns() + arguments->wait_ns);
    if (status == HVI_OK)
        status = hvi_packet_msg_decode(liar->packet.bytes, liar->packet.length, &msg, NULL, 0);
    if (status != HVI_OK || msg.kind != HVI_PACKET_ATTACH_REPLY)
        die("attach reply", status);
    if (msg.attach_reply.status != HVI_OK)
        die(msg.attach_reply.text, msg.attach_reply.status);
    status = hvi_channel_map(hvi_packet_take_fd(&liar->packet, 0), &liar->channel);
    if (status == HVI_OK)
        status =
            hvi_bell_map(hvi_packet_take_fd(&liar->packet, 1), &liar->bell_region, &liar->bell);
    if (status != HVI_OK)
        die("map", status);
    liar->engine_event = hvi_packet_take_fd(&liar->packet, 2);
    liar->client_event = hvi_packet_take_fd(&liar->packet, 3);
    hvi_packet_msg_free(&msg);
}

/* Registers the honest region and waits for its Ack. */
static void add_region(struct hvt_liar *liar, uint64_t wait_ns)
{
    static const struct hvt_lie truth = {"truth", "harmless", NULL, NULL};
    struct hvt_verdict verdict = {.outcome = "nothing"};
    uint64_t deadline = hvi_clock_ns() + wait_ns;
    int status = hvi_region_create("hvt-liar", REGION_BYTES, &liar->region);
    if (status != HVI_OK)
        die("region", status);
    send_region_add(liar, REGION, REGION_BYTES, &liar->region.fd, 1);
    uint64_t request = liar->request;
    while (hvi_clock_ns() < deadline && !look_socket(liar, request, &verdict)) {
        struct pollfd poll_fd = {.fd = liar->socket, .events = POLLIN};
        poll(&poll_fd, 1, 50);
    }
    if (!as_expected(&truth, &verdict))
        die("the honest region was not accepted", 0);
}

/* A clean goodbye of a session that was not ended. */
static void detach(struct hvt_liar *liar)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_DETACH};
    msg.detach.request = ++liar->request;
    struct hvt_verdict verdict = {.outcome = "nothing"};
    uint64_t deadline = hvi_clock_ns() + 1000000000ull;
    if (send_msg(liar, &msg, NULL, 0) != HVI_OK)
        return;
    while (hvi_clock_ns() < deadline && !look_socket(liar, liar->request, &verdict)) {
        struct pollfd poll_fd = {.fd = liar->socket, .events = POLLIN};
        poll(&poll_fd, 1, 50);
    }
}

static void release(struct hvt_liar *liar)
{
    close(liar->socket);
    close(liar->engine_event);
    close(liar->client_event);
    hvi_region_fini(&liar->region);
    hvi_region_fini(&liar->bell_region);
    hvi_channel_fini(&liar->channel);
}

/* ---- main ---- */

static void print_quoted(const char *text)
{
    putchar('"');
    for (const unsigned char *at = (const unsigned char *)text; *at; at++) {
        if (*at == '"' || *at == '\\')
            printf("\\%c", *at);
        else if (*at < 0x20)
            printf("\\u%04x", (unsigned int)*at);
        else
            putchar(*at);
    }
    putchar('"');
}

static int print_list(void)
{
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++)
        printf("{\"lie\": \"%s\", \"expect\": \"%s\"}\n", lies[i].name, lies[i].expect);
    return 0;
}

static const struct hvt_lie *find_lie(const char *name)
{
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        if (name && strcmp(lies[i].name, name) == 0)
            return &lies[i];
    }
    return NULL;
}

static int tell(const struct hvt_arguments *arguments, const struct hvt_lie *lie)
{
    static struct hvt_liar liar = {.region = HVI_REGION_INIT};
    struct hvt_verdict verdict = {.outcome = "nothing"};
    liar.random = arguments->seed | 1u;
    attach(&liar, arguments);
    add_region(&liar, arguments->wait_ns);
    uint64_t lied_ns = hvi_clock_ns();
    if (lie->tweak) {
        struct hvi_submission sub = honest(&liar, 0);
        lie->tweak(&liar, &sub);
        submit(&liar, &sub);
    } else {
        lie->act(&liar);
    }
    judge(&liar, lie, arguments->wait_ns, &verdict);
    if (strcmp(verdict.outcome, "ended") != 0)
        detach(&liar);
    release(&liar);
    printf("{\"lie\": \"%s\", \"expect\": \"%s\", \"outcome\": \"%s\", \"status\": %d, "
           "\"lied_ns\": %llu, \"text\": ",
           lie->name, lie->expect, verdict.outcome, verdict.status, (unsigned long long)lied_ns);
    print_quoted(verdict.text);
    puts("}");
    return as_expected(lie, &verdict) ? 0 : 1;
}

static const struct option long_options[] = {
    {"address", required_argument, NULL, 'a'},
    {"job", required_argument, NULL, 'j'},
    {"rank", required_argument, NULL, 'r'},
    {"size", required_argument, NULL, 's'},
    {"lie", required_argument, NULL, 'l'},
    {"seed", required_argument, NULL, 'S'},
    {"wait-ms", required_argument, NULL, 'w'},
    {"list", no_argument, NULL, 'L'},
    {NULL, 0, NULL, 0},
};

int main(int argc, char **argv)
{
    struct hvt_arguments arguments = {
        .job = "lies", .rank = 1, .size = 2, .seed = 1, .wait_ns = 5000000000ull};
    int option;
    while ((option = getopt_long(argc, argv, "", long_options, NULL)) != -1) {
        switch (option) {
        case 'a':
            arguments.address = optarg;
            break;
        case 'j':
            arguments.job = optarg;
            break;
        case 'r':
            arguments.rank = atoi(optarg);
            break;
        case 's':
            arguments.size = atoi(optarg);
            break;
        case 'l':
            arguments.lie = optarg;
            break;
        case 'S':
            arguments.seed = (uint32_t)strtoul(optarg, NULL, 10);
            break;
        case 'w':
            arguments.wait_ns = strtoull(optarg, NULL, 10) * 1000000ull;
            break;
        case 'L':
            return print_list();
        default:
            return 2;
        }
    }
    const struct hvt_lie *lie = find_lie(arguments.lie);
    if (!lie || !arguments.address) {
        fprintf(
            stderr,
            "usage: hvt-liar --address DIR --job J --rank R --size N --lie NAME (see --list)\n");
        return 2;
    }
    return tell(&arguments, lie);
}
