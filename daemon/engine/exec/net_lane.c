/* SPDX-License-Identifier: Apache-2.0
 * One connection to a node, and what goes over it: messages, each with a head.
 *
 *      0  magic              24  where in the op's vector
 *      4  lanes, this lane   32  bytes that follow
 *      6  tentative: 0 or 1
 *      8  sequence           40  the node to blame for status, else 0
 *     16  step               44  0
 *     20  status: 0, or how the work has failed; then no bytes follow
 *
 * Small messages that may go at the same time are packed, and go together: one call, and as few segments as TCP
 * needs. A packed message counts as sent. Nothing waits for it to be joined by others.
 *
 * All are little-endian. Nothing of a head is used but to compare it with the one that is expected,
 * which has come from this node's own plan; only a status and its node are news. */
#include "daemon/engine/exec/net_thread.h"

#include "base/log.h"
#include "base/pages.h"
#include "base/status.h"

#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#define MAGIC UINT32_C(0x31646876) /* "vhd1" */

struct head {
    uint32_t magic;
    uint8_t lanes, lane;
    uint16_t tentative;
    uint64_t sequence;
    uint32_t step;
    uint32_t status; /* -status */
    uint64_t at, bytes;
    uint32_t culprit, zero2;
};
_Static_assert(sizeof(struct head) == ENGINE_WIRE_HEAD_BYTES, "on the wire");

/* ---- runs ---- */

void engine_wire_lane_join(struct engine_wire_lane *lane, struct engine_wire_run *run)
{
    struct engine_wire_run **first = run->sends ? &lane->out_first : &lane->in_first;
    struct engine_wire_run **last = run->sends ? &lane->out_last : &lane->in_last;

    run->next = NULL;
    if (*first)
        (*last)->next = run;
    else
        *first = run;
    *last = run;
}

static struct engine_wire_messages *messages_of(const struct engine_wire_run *run)
{
    return run->sends ? &run->work->out : &run->work->in;
}

static struct engine_wire_message *message_of(const struct engine_wire_run *run)
{
    return &messages_of(run)->list[run->at];
}

/* The first run's message is over. */
static void go_on(struct engine_wire_run **first)
{
    struct engine_wire_run *run = *first;
    struct engine_wire_work *work = run->work;
    struct engine_wire_message *message = message_of(run);

    message->over = true;
    messages_of(run)->over++;
    run->at = message->next;
    if (run->at == ENGINE_WIRE_NONE)
        *first = run->next;
    while (!run->sends && work->in_prefix < work->in.count && work->in.list[work->in_prefix].over)
        work->in_prefix++;
    if (work->tentative && engine_wire_is_committed(work))
        atomic_store_explicit(&work->waits, false, memory_order_relaxed);
}

/* ---- the lane itself ---- */

static void expect_head(struct engine_wire_lane *lane)
{
    lane->has_head = lane->throws = false;
    lane->receiving = NULL;
    lane->receiver = NULL;
    lane->transport->post_receive(lane->port, lane->head_in, sizeof lane->head_in);
}

static void watch_port(struct engine_wire *net, struct engine_wire_lane *lane)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET,
                                .data.ptr = lane};
    struct epoll_event other = {.events = EPOLLIN, .data.ptr = lane};

    if (epoll_ctl(net->epoll_fd, EPOLL_CTL_ADD, lane->transport->fd(lane->port), &event) != 0 ||
        (lane->transport->event &&
         epoll_ctl(net->epoll_fd, EPOLL_CTL_ADD, lane->transport->event(lane->port), &other) != 0))
        engine_wire_node_end(net, lane->node, "the connection cannot be watched");
}

void engine_wire_lane_open(struct engine_wire *net, struct engine_wire_lane *lane, int fd,
                           const struct hvi_seal_keys *keys)
{
    if (!lane->scratch)
        lane->scratch = aligned_alloc(4096, ENGINE_WIRE_CHUNK_BYTES);
    lane->transport = net->transport;
    lane->port = lane->transport->open(net->shared, fd, keys);
    if (!lane->port || !lane->scratch) {
        engine_wire_node_end(net, lane->node, "no memory for a connection");
        return;
    }
    lane->moved = true;
    expect_head(lane);
    engine_wire_figures_open(net, lane);
    watch_port(net, lane);
}

/* The message that was being received is over, or never will be. */
static void let_go(struct engine_wire_lane *lane)
{
    if (lane->holds)
        lane->receiver->holding--;
    lane->holds = false;
}

void engine_wire_lane_close(struct engine_wire *net, struct engine_wire_lane *lane)
{
    if (lane->port) {
        engine_wire_figures_close(net, lane);
        if (lane->transport->event) /* it may stay open */
            epoll_ctl(net->epoll_fd, EPOLL_CTL_DEL, lane->transport->event(lane->port), NULL);
        lane->transport->close(lane->port);
    }
    lane->port = NULL;
    if (lane->sending)
        lane->sender->sending--;
    let_go(lane);
    lane->sending = lane->receiving = NULL;
    lane->sender = lane->receiver = NULL;
}

void engine_wire_lane_divert(struct engine_wire_lane *lane, const struct engine_wire_work *work)
{
    if (!lane->receiving || lane->receiver != work || lane->holds ||
        lane->transport->divert(lane->port, lane->scratch))
        return;
    lane->holds = true;
    lane->receiver->holding++;
}

static void unlink_run(struct engine_wire_lane *lane, struct engine_wire_run *run)
{
    struct engine_wire_run **link = run->sends ? &lane->out_first : &lane->in_first;
    struct engine_wire_run **last = run->sends ? &lane->out_last : &lane->in_last, *before = NULL;

    while (*link != run) {
        before = *link;
        link = &before->next;
    }
    *link = run->next;
    if (*last == run)
        *last = before;
}

void engine_wire_lane_leave(struct engine_wire_lane *lane, struct engine_wire_run *run)
{
    struct engine_wire_messages *messages = messages_of(run);
    bool moving = run->sends ? lane->sender == run->work : lane->receiver == run->work;

    if (run->at == ENGINE_WIRE_NONE)
        return;
    uint32_t left = moving ? message_of(run)->next : run->at;
    for (; left != ENGINE_WIRE_NONE; left = messages->list[left].next)
        messages->over++;
    if (moving) {
        message_of(run)->next = ENGINE_WIRE_NONE;
        if (!run->sends)
            engine_wire_lane_divert(lane, run->work);
        return;
    }
    unlink_run(lane, run);
    run->at = ENGINE_WIRE_NONE;
}

/* The work has no message left on the lanes of a node that is gone. */
static void give_up(struct engine_wire *net, struct engine_wire_run **first,
                    const struct engine_wire_node *node)
{
    while (*first) {
        engine_wire_fail(net, (*first)->work, HVI_ERR_NODE_LOST, node->number, node->text);
        go_on(first);
    }
}

static bool is_needed(const struct engine_wire_node *node)
{
    bool needed = false;

    for (uint32_t i = 0; i < ENGINE_WIRE_LANES_MAX; i++)
        needed = needed || node->lanes[i].out_first || node->lanes[i].in_first;
    return needed;
}

void engine_wire_node_cease(struct engine_wire_node *node)
{
    for (uint32_t i = 0; i < ENGINE_WIRE_LANES_MAX; i++) {
        struct engine_wire_lane *lane = &node->lanes[i];
        if (lane->port && lane->transport->cease)
            lane->transport->cease(lane->port);
    }
}

void engine_wire_node_end(struct engine_wire *net, struct engine_wire_node *node, const char *text)
{
    if (!node->lost) {
        snprintf(node->text, sizeof node->text, "%s", text);
        node->lost = true;
        if (is_needed(node))
            HVI_LOG(HVI_LOG_WARN, "net", "node-given-up", text, "node=%" PRIu32, node->number);
    }
    engine_wire_node_cease(node);
    for (uint32_t i = 0; i < ENGINE_WIRE_LANES_MAX; i++) {
        struct engine_wire_lane *lane = &node->lanes[i];
        engine_wire_lane_close(net, lane);
        give_up(net, &lane->out_first, node);
        give_up(net, &lane->in_first, node);
    }
}

static void end_lane(struct engine_wire *net, struct engine_wire_lane *lane, int error)
{
    char text[ENGINE_TEXT_BYTES];

    if (error == ECONNRESET)
        snprintf(text, sizeof text, "%s has closed its connection", lane->node->name);
    else if (error == EBADMSG)
        snprintf(text, sizeof text,
                 "what came over the connection to %s is not what it has sent: its encrypted bytes "
                 "were changed on the way",
                 lane->node->name);
    else
        snprintf(text, sizeof text, "the connection to %s has failed: %s", lane->node->name,
                 strerror(error));
    engine_wire_node_end(net, lane->node, text);
}

/* ---- sending ---- */

static void write_head(const struct engine_wire *net, struct engine_wire_lane *lane,
                       const struct engine_wire_work *work,
                       const struct engine_wire_message *message)
{
    bool fails = work->status != HVI_OK;
    const struct head head = {
        .magic = htole32(MAGIC),
        .lanes = (uint8_t)net->lanes,
        .lane = (uint8_t)lane->number,
        .tentative = htole16(work->tentative),
        .sequence = htole64(work->sequence),
        .step = htole32(message->step),
        .status = htole32((uint32_t)-work->status),
        .at = htole64(message->at),
        .bytes = htole64(fails ? 0 : message->bytes),
        .culprit = htole32(fails ? work->culprit : 0),
    };

    memcpy(lane->head_out, &head, sizeof head);
}

/* Before all nodes have started it only what says so is sent, in its order even if the work has failed: it is
 * what others believe. */
static bool may_meet(const struct engine_wire_work *work, const struct engine_wire_message *message)
{
    if ((message->step & ENGINE_WIRE_MEETING) == 0 && work->finish != ENGINE_WIRE_FINISH_SLOTS)
        return false;
    return (work->begun || work->status != HVI_OK) &&
           (message->after == ENGINE_WIRE_NONE || work->in_prefix > message->after);
}

static bool may_send(const struct engine_wire_work *work, const struct engine_wire_message *message)
{
    if (!engine_wire_is_committed(work))
        return may_meet(work, message);
    if (work->status != HVI_OK)
        return true;
    if (!work->begun)
        return false;
    if (message->after == ENGINE_WIRE_NONE)
        return true;
    return work->in_order ? work->in_prefix > message->after : work->in.list[message->after].over;
}

static void begin_sending(struct engine_wire *net, struct engine_wire_lane *lane)
{
    struct engine_wire_run *run = lane->out_first;
    struct engine_wire_work *work = run->work;
    const unsigned char *data = NULL;
    struct engine_fault fault = {.rank = -1};

    lane->sending = message_of(run);
    if (work->status == HVI_OK && lane->sending->bytes > 0) {
        int status = engine_wire_prepare(&net->tools, work, lane->sending, &data, &fault);
        if (status != HVI_OK) {
            work->fault = fault;
            engine_wire_fail(net, work, status, work->node[work->here], "");
        }
    }
    lane->sender = work;
    work->sending++;
    write_head(net, lane, work, lane->sending);
    lane->transport->post_send(lane->port, lane->head_out, sizeof lane->head_out, data,
                               work->status == HVI_OK ? lane->sending->bytes : 0);
}

/* The engine's own memory, of which a copy costs less than a call. */
static bool may_pack(const struct engine_wire_work *work, const struct engine_wire_message *message)
{
    return work->status != HVI_OK || message->bytes == 0 ||
           (work->finish == ENGINE_WIRE_FINISH_SLOTS && message->bytes <= ENGINE_WIRE_PACKED_BYTES);
}

/* The first run's message. False: the port has no room for it now. */
static bool pack(const struct engine_wire *net, struct engine_wire_lane *lane)
{
    const struct engine_wire_work *work = lane->out_first->work;
    const struct engine_wire_message *message = message_of(lane->out_first);

    write_head(net, lane, work, message);
    if (!lane->transport->pack(lane->port, lane->head_out, sizeof lane->head_out, message->data,
                               work->status == HVI_OK ? message->bytes : 0))
        return false;
    go_on(&lane->out_first);
    return true;
}

/* What goes next is posted. False: there is nothing to send. */
static bool post_next(struct engine_wire *net, struct engine_wire_lane *lane)
{
    struct engine_wire_run *run;

    if (lane->sending)
        return true;
    while ((run = lane->out_first) && may_send(run->work, message_of(run))) {
        if (!may_pack(run->work, message_of(run))) {
            begin_sending(net, lane);
            return true;
        }
        if (!pack(net, lane))
            break;
    }
    return lane->transport->packed(lane->port);
}

bool engine_wire_lane_unsent(const struct engine_wire_lane *lane)
{
    return lane->port && lane->transport->packed(lane->port);
}

bool engine_wire_lane_send(struct engine_wire *net, struct engine_wire_lane *lane)
{
    if (!lane->port || !post_next(net, lane))
        return false;
    int progress = lane->transport->send(lane->port);
    if (progress < 0) { /* EFAULT, too: a page that was there a moment ago is not */
        end_lane(net, lane, -progress);
        return true;
    }
    lane->moved = lane->moved || progress != ENGINE_WIRE_WAITS;
    if (progress == ENGINE_WIRE_OVER && lane->sending) {
        lane->sender->sending--;
        lane->sending = NULL;
        lane->sender = NULL;
        go_on(&lane->out_first);
    }
    return progress != ENGINE_WIRE_WAITS;
}

/* ---- receiving ---- */

static void refuse(struct engine_wire *net, struct engine_wire_lane *lane, const char *why)
{
    char text[ENGINE_TEXT_BYTES];

    snprintf(text, sizeof text, "%s has sent what does not belong here: %s", lane->node->name, why);
    engine_wire_node_end(net, lane->node, text);
}

/* A success, or a failure that is known. */
static bool is_status(uint32_t number)
{
    return number <= INT32_MAX && (number == 0 || hvi_status_is_known(-(int)number));
}

/* NULL: it is the expected one. */
static const char *compare(const struct engine_wire *net, const struct engine_wire_lane *lane,
                           const struct engine_wire_message *message, const struct head *head,
                           const struct engine_wire_work *work)
{
    bool fails = head->status != 0;

    if (le32toh(head->magic) != MAGIC)
        return "it is no message";
    if (head->lanes != net->lanes)
        return "HVD_NET_LANES is not the same on both nodes";
    if (head->lane != lane->number || head->zero2 != 0 ||
        le16toh(head->tentative) != work->tentative)
        return "a message of another connection";
    if (!fails && head->culprit != 0)
        return "blame without a failure";
    if (le64toh(head->sequence) != work->sequence)
        return "a message of another op";
    if (le32toh(head->step) != message->step || le64toh(head->at) != message->at)
        return "a message of another step";
    if (le64toh(head->bytes) != (fails ? 0 : message->bytes))
        return "a message of another size";
    if (!is_status(le32toh(head->status)))
        return "an unknown failure";
    return NULL;
}

/* The other end's part of the work has failed. */
static void take_failure(struct engine_wire *net, struct engine_wire_lane *lane,
                         const struct head *head, struct engine_wire_work *work)
{
    int status = -(int)le32toh(head->status);
    uint32_t culprit = le32toh(head->culprit);
    char text[ENGINE_TEXT_BYTES];

    if (status == HVI_ERR_CANCELLED) { /* that means this node's own cancel() */
        snprintf(text, sizeof text, "node %" PRIu32 " has given up its part", culprit);
        status = HVI_ERR_NODE_LOST;
    } else if (status == HVI_ERR_NODE_LOST || status == HVI_ERR_STALLED) {
        snprintf(text, sizeof text, "node %" PRIu32 " does not answer, says %s", culprit,
                 lane->node->name);
    } else {
        snprintf(text, sizeof text, "node %" PRIu32 " could not do its part: %s", culprit,
                 hvi_status_text(status));
    }
    engine_wire_fail(net, work, status, culprit, text);
}

/* Where the message's bytes go. Where the transport needs pages, the work fails if there are none. */
static unsigned char *target_of(struct engine_wire *net, const struct engine_wire_lane *lane,
                                const struct engine_wire_message *message,
                                struct engine_wire_work *work)
{
    struct engine_fault fault = {.rank = -1};

    if (work->status != HVI_OK)
        return lane->scratch;
    unsigned char *to = engine_wire_target(message, lane->scratch);
    if (to == lane->scratch || !lane->transport->needs_pages ||
        engine_wire_touch(to, message->bytes, &fault) == HVI_OK)
        return to;
    work->fault = fault;
    engine_wire_fail(net, work, HVI_ERR_NO_MEMORY, work->node[work->here], "");
    return lane->scratch;
}

/* A head is there, and so is the work that it should be of. */
static void take_head(struct engine_wire *net, struct engine_wire_lane *lane)
{
    struct engine_wire_run *run = lane->in_first;
    struct engine_wire_work *work = run->work;
    struct engine_wire_message *message = message_of(run);
    struct head head;

    memcpy(&head, lane->head_in, sizeof head);
    const char *why = compare(net, lane, message, &head, work);
    if (why) {
        refuse(net, lane, why);
        return;
    }
    if (head.status != 0) {
        take_failure(net, lane, &head, work);
        go_on(&lane->in_first);
        expect_head(lane);
        return;
    }
    if (message->bytes == 0) {
        go_on(&lane->in_first);
        expect_head(lane);
        return;
    }
    lane->has_head = false;
    unsigned char *to = target_of(net, lane, message, work);
    lane->receiving = message;
    lane->receiver = work;
    lane->transport->post_receive(lane->port, to, message->bytes);
}

struct receive {
    const struct engine_wire_lane *lane;
    int progress;
};

static void touch_target(void *user)
{
    struct receive *receive = user;

    receive->progress = receive->lane->transport->receive(receive->lane->port);
}

/* As the transport's receive(); -EFAULT with *address_p if it is known which page is missing. */
static int receive_some(struct engine_wire_lane *lane, uintptr_t *address_p)
{
    struct receive receive = {.lane = lane};

    if (!lane->receiving || lane->transport->needs_pages) /* a library is not left by a jump */
        return lane->transport->receive(lane->port);
    if (hvi_pages_run(touch_target, NULL, &receive, address_p))
        return receive.progress;
    return -EFAULT;
}

/* What is left of the message is thrown away. */
static void lack_page(struct engine_wire *net, struct engine_wire_lane *lane, uint64_t address)
{
    struct engine_wire_work *work = lane->receiver;
    uint64_t left = lane->transport->missing(lane->port);
    const unsigned char *at = lane->receiving->data + (lane->receiving->bytes - left);

    work->fault = (struct engine_fault){.rank = -1, .missing = address};
    if (address == 0 && engine_wire_touch(at, left, &work->fault) == HVI_OK)
        work->fault = (struct engine_fault){.rank = -1, .missing = (uint64_t)(uintptr_t)at};
    engine_wire_fail(net, work, HVI_ERR_NO_MEMORY, work->node[work->here], "");
}

static void take_message(struct engine_wire *net, struct engine_wire_lane *lane)
{
    struct engine_wire_work *work = lane->receiver;
    struct engine_fault fault = {.rank = -1};

    let_go(lane);
    if (work->status == HVI_OK) {
        int status = engine_wire_accept(&net->tools, work, lane->receiving, lane->scratch, &fault);
        if (status != HVI_OK) {
            work->fault = fault;
            lane->receiving = NULL; /* all of it is here */
            engine_wire_fail(net, work, status, work->node[work->here], "");
        }
    }
    go_on(&lane->in_first);
    expect_head(lane);
}

enum turn { TURN_WAITS, TURN_COMES, TURN_IS_OVER };

/* A message of a tentative work before those that are expected is of one that was withdrawn. One after them says
 * that what is expected will be withdrawn here, too, if it is tentative. */
static enum turn turn_of(const struct engine_wire_lane *lane)
{
    const struct engine_wire_work *work = lane->in_first ? lane->in_first->work : NULL;
    struct head head;

    if (!work)
        return TURN_WAITS;
    memcpy(&head, lane->head_in, sizeof head);
    uint64_t sequence = le64toh(head.sequence);
    if (le32toh(head.magic) == MAGIC && le16toh(head.tentative) == 1 && sequence < work->sequence)
        return TURN_IS_OVER;
    if (le32toh(head.magic) == MAGIC && work->tentative && sequence > work->sequence)
        return TURN_WAITS;
    return work->begun || work->status != HVI_OK ? TURN_COMES : TURN_WAITS;
}

static void throw_away(struct engine_wire *net, struct engine_wire_lane *lane)
{
    struct head head;

    memcpy(&head, lane->head_in, sizeof head);
    uint64_t bytes = le64toh(head.bytes);
    if (bytes > ENGINE_WIRE_CHUNK_BYTES) {
        refuse(net, lane, "a message that is too large");
        return;
    }
    expect_head(lane);
    if (bytes == 0)
        return;
    lane->throws = true;
    lane->transport->post_receive(lane->port, lane->scratch, bytes);
}

bool engine_wire_lane_receive(struct engine_wire *net, struct engine_wire_lane *lane)
{
    enum turn turn = lane->has_head ? turn_of(lane) : TURN_COMES;
    uintptr_t address = 0;

    if (!lane->port || turn == TURN_WAITS)
        return false;
    if (lane->has_head && turn == TURN_IS_OVER) {
        throw_away(net, lane);
        return true;
    }
    if (lane->has_head) {
        take_head(net, lane);
        return true;
    }
    int progress = receive_some(lane, &address);
    if (progress == -EFAULT && lane->receiving && lane->receiver->status == HVI_OK) {
        lack_page(net, lane, address);
        return true;
    }
    if (progress < 0) {
        end_lane(net, lane, -progress);
        return true;
    }
    lane->moved = lane->moved || progress != ENGINE_WIRE_WAITS;
    if (progress == ENGINE_WIRE_OVER && lane->receiving)
        take_message(net, lane);
    else if (progress == ENGINE_WIRE_OVER && lane->throws)
        expect_head(lane);
    else if (progress == ENGINE_WIRE_OVER)
        lane->has_head = true;
    return progress != ENGINE_WIRE_WAITS;
}
