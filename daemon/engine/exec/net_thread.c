/* SPDX-License-Identifier: Apache-2.0
 * The net thread ("hvd-net"). It takes works in the order of start(), moves what the lanes have room for, and
 * sleeps in its epoll when nothing moves, after a few looks.
 *
 *   started --inputs are there--> begun --messages, copies, the finish are over--> finished
 *      |                            |          --outputs are written--> posted, freed
 *      +----------------------------+--fails--> posted when no byte of an operand is being sent; its messages
 *                                               go on void, then it is freed
 *
 * While nobody has works, the main thread moves one of a moderate size itself: two threads need not be woken
 * then. A small one it begins right where it is started, as waking them takes longer than the work (4 B between two
 * nodes); else it does a piece whenever it has nothing better to do, and leaves the rest to the net thread when
 * nothing moves or another work comes. Meanwhile it yields: who sends what it waits for may need its core.
 *
 * Time without a byte is counted from tick to tick, at most ENGINE_SILENT_NS for each: an engine that stood
 * still itself blames no node. A work that has waited for twice its batch's .answer_ns fails; twice, so that
 * the node whose own rank's memory is silent says so first. */
#include "daemon/engine/exec/net_thread.h"

#include "base/pages.h"
#include "base/status.h"
#include "base/yield.h"

#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define EVENTS_AT_ONCE 32
/* How often the sockets are asked about while there is enough to do. */
#define PASSES_PER_LOOK 4u
/* A work that does not move while the row is being closed has so long. */
#define CLOSE_NS HVI_NS_SEC

/* ---- from other threads ---- */

void engine_wire_call(struct engine_wire *net)
{
    atomic_store_explicit(&net->called, true, memory_order_relaxed);
    if (net->driver == ENGINE_WIRE_NOBODY)
        net->driver = ENGINE_WIRE_THREAD;
    else if (!net->asleep)
        return;
    net->asleep = false;
    (void)eventfd_write(net->event_fd, 1);
}

struct engine_wire_node *engine_wire_node_at(struct engine_wire *net, uint32_t number)
{
    if (number >= net->node_count) {
        size_t count = (size_t)number + 16;
        void *nodes = realloc(net->nodes, count * sizeof(struct engine_wire_node *));
        if (!nodes)
            return NULL;
        net->nodes = nodes;
        memset(net->nodes + net->node_count, 0,
               (count - net->node_count) * sizeof(struct engine_wire_node *));
        net->node_count = (uint32_t)count;
    }
    if (net->nodes[number])
        return net->nodes[number];
    struct engine_wire_node *node = calloc(1, sizeof *node);
    if (!node)
        return NULL;
    node->number = number;
    snprintf(node->name, sizeof node->name, "node %" PRIu32, number);
    for (uint32_t i = 0; i < ENGINE_WIRE_LANES_MAX; i++) {
        node->lanes[i].node = node;
        node->lanes[i].number = i;
    }
    net->nodes[number] = node;
    return node;
}

/* NULL: it has neither been lost nor had a message. */
static struct engine_wire_node *known_node(const struct engine_wire *net, uint32_t number)
{
    return number < net->node_count ? net->nodes[number] : NULL;
}

static struct engine_wire_lane *lane_of(struct engine_wire *net, const struct engine_wire_run *run)
{
    return &net->nodes[run->work->node[run->peer]]->lanes[run->lane];
}

static void end_everything(struct engine_wire *net, const char *text)
{
    for (uint32_t i = 0; i < net->node_count; i++) {
        if (net->nodes[i])
            engine_wire_node_end(net, net->nodes[i], text);
    }
}

/* ---- a work ---- */

static bool is_over(const struct engine_wire_work *work)
{
    return work->out.over == work->out.count && work->in.over == work->in.count;
}

void engine_wire_fail(struct engine_wire *net, struct engine_wire_work *work, int status,
                      uint32_t culprit, const char *text)
{
    if (work->status != HVI_OK || !work->batch)
        return;
    work->status = status;
    work->final =
        status == HVI_ERR_NODE_LOST || status == HVI_ERR_STALLED || status == HVI_ERR_CANCELLED;
    work->culprit = culprit;
    work->idle_ns = 0;
    snprintf(work->text, sizeof work->text, "%s", text);
    for (uint32_t i = 0; i < work->run_count; i++) {
        struct engine_wire_run *run = &work->runs[i];
        if (!run->sends && run->at != ENGINE_WIRE_NONE)
            engine_wire_lane_divert(lane_of(net, run), work);
    }
    if (work->stage)
        engine_wire_stage_cancel(work->stage);
}

static void post(struct engine_wire *net, struct engine_wire_work *work)
{
    struct engine_batch *batch = work->batch;

    batch->status = work->status;
    batch->fault = work->fault;
    snprintf(batch->text, sizeof batch->text, "%s", work->text);
    work->batch = NULL;
    pthread_mutex_lock(&net->lock);
    batch->over = true;
    pthread_mutex_unlock(&net->lock);
    net->config.post(net->config.user, batch);
}

/* Of many nodes a work may have messages with few. */
static bool know_peers(struct engine_wire *net, const struct engine_wire_work *work)
{
    for (uint32_t i = 0; i < work->run_count; i++) {
        if (!engine_wire_node_at(net, work->node[work->runs[i].peer]))
            return false;
    }
    return true;
}

/* Nothing of it goes over a lane: those that it needed are out of step. */
static void take_alone(struct engine_wire *net, struct engine_wire_work *work)
{
    end_everything(net, "this node's engine is out of memory");
    work->status = HVI_ERR_NO_MEMORY;
    work->final = true;
    work->run_count = 0;
    work->out.over = work->out.count;
    work->in.over = work->in.count;
}

static void take_work(struct engine_wire *net, struct engine_wire_work *work)
{
    if (!know_peers(net, work)) {
        take_alone(net, work);
        return;
    }
    for (uint32_t i = 0; i < work->run_count; i++)
        engine_wire_lane_join(lane_of(net, &work->runs[i]), &work->runs[i]);
    for (uint32_t i = 0; i < work->nodes; i++) {
        struct engine_wire_node *node = known_node(net, work->node[i]);
        if (node && node->lost) {
            engine_wire_fail(net, work, HVI_ERR_NODE_LOST, node->number, node->text);
            engine_wire_node_end(net, node, node->text);
        }
    }
    if (work->status == HVI_OK && work->stage)
        engine_wire_stage_read(work->stage);
}

static void begin(struct engine_wire *net, struct engine_wire_work *work)
{
    struct engine_fault fault = {.rank = -1};
    int status = HVI_OK;

    if (work->stage && !engine_wire_stage_is_over(work->stage, &status, &fault))
        return;
    if (status == HVI_OK)
        status = engine_wire_begin(&net->tools, work, &fault);
    work->begun = true;
    if (status == HVI_OK)
        return;
    work->fault = fault;
    engine_wire_fail(net, work, status, work->node[work->here], "");
}

/* Adasum writes outputs where inputs may lie that are still being sent. */
static bool may_finish(const struct engine_wire_work *work)
{
    return !work->finished && work->in.over == work->in.count &&
           (work->finish != ENGINE_WIRE_FINISH_ADASUM || work->out.over == work->out.count);
}

/* True when only its outputs may be left to be written. */
static bool step(struct engine_wire *net, struct engine_wire_work *work, bool *moved_p)
{
    struct engine_fault fault = {.rank = -1};
    bool moved = true;
    int status = HVI_OK;

    if (work->copy_at < work->copy_count && engine_wire_is_committed(work))
        status = engine_wire_copy(&net->tools, work, &work->copies[work->copy_at++], &fault);
    else if (may_finish(work))
        status = engine_wire_finish(&net->tools, work, &work->finished, &fault);
    else
        moved = false;
    *moved_p = *moved_p || moved;
    if (status != HVI_OK) {
        work->fault = fault;
        engine_wire_fail(net, work, status, work->node[work->here], "");
    }
    return work->finished && work->out.over == work->out.count;
}

/* True when its outputs are written. */
static bool write_outputs(struct engine_wire *net, struct engine_wire_work *work)
{
    int status = HVI_OK;

    if (!work->stage)
        return true;
    if (!work->writing) {
        work->writing = true;
        engine_wire_stage_write(work->stage);
    }
    if (!engine_wire_stage_is_over(work->stage, &status, &work->fault))
        return false;
    if (status != HVI_OK)
        engine_wire_fail(net, work, status, work->node[work->here], "");
    return true;
}

/* A work that has failed waits for threads and sockets that look at its operands, and a tentative one for the
 * other nodes: without them it has not even failed. What a withdrawn one sends is no operand. */
static bool is_let_go(const struct engine_wire_work *work)
{
    return (work->sending == 0 || work->withdrawn) && work->holding == 0 &&
           (work->final || engine_wire_is_committed(work)) &&
           (!work->stage || engine_wire_stage_is_over(work->stage, NULL, NULL));
}

static bool advance(struct engine_wire *net, struct engine_wire_work *work)
{
    bool moved = false;

    if (work->status == HVI_OK && !work->begun) {
        begin(net, work);
        moved = work->begun;
    }
    if (work->status == HVI_OK && work->begun && step(net, work, &moved) &&
        work->status == HVI_OK && write_outputs(net, work)) {
        post(net, work);
        return true;
    }
    if (work->status == HVI_OK || !work->batch || !is_let_go(work))
        return moved;
    post(net, work);
    return true;
}

static void drop(struct engine_wire *net, struct engine_wire_work *work)
{
    pthread_mutex_lock(&net->host_lock); /* net.c may look at its stage */
    engine_wire_stage_free(work->stage);
    pthread_mutex_unlock(&net->host_lock);
    engine_wire_work_free(work);
}

static bool advance_all(struct engine_wire *net)
{
    struct engine_wire_work **link = &net->works;
    bool moved = false;

    while (*link) {
        struct engine_wire_work *work = *link;
        if (work->batch)
            moved = advance(net, work) || moved;
        if (!work->batch && is_over(work)) {
            *link = work->next;
            drop(net, work);
        } else {
            link = &work->next;
        }
    }
    return moved;
}

/* ---- what the main thread says ---- */

static bool concerns(const struct engine_wire_work *work, uint32_t node)
{
    bool found = false;

    for (uint32_t i = 0; i < work->nodes; i++)
        found = found || work->node[i] == node;
    return found && work->batch && !is_over(work);
}

static void lose(struct engine_wire *net, struct engine_wire_node *node, const char *text)
{
    engine_wire_node_end(net, node, text);
    for (struct engine_wire_work *work = net->works; work; work = work->next) {
        if (concerns(work, node->number))
            engine_wire_fail(net, work, HVI_ERR_NODE_LOST, node->number, node->text);
    }
}

static void hear(struct engine_wire *net, struct engine_wire_news *news)
{
    struct engine_wire_node *node = engine_wire_node_at(net, news->node);
    struct engine_wire_lane *lane = node ? &node->lanes[news->lane] : NULL;

    if (!node)
        end_everything(net, "this node's engine is out of memory");
    if (node && news->fd < 0)
        lose(net, node, news->text);
    else if (node && !node->lost && !lane->port) {
        snprintf(node->name, sizeof node->name, "%.*s", ENGINE_WIRE_NAME - 1, news->text);
        engine_wire_lane_open(net, lane, news->fd, news->sealed ? &news->keys : NULL);
    } else if (news->fd >= 0)
        close(news->fd);
    explicit_bzero(&news->keys, sizeof news->keys);
    free(news);
}

static void cancel(struct engine_wire *net)
{
    for (struct engine_wire_work *work = net->works; work; work = work->next) {
        pthread_mutex_lock(&net->lock);
        bool cancelled = work->cancelled;
        pthread_mutex_unlock(&net->lock);
        if (!cancelled)
            continue;
        engine_wire_fail(net, work, HVI_ERR_CANCELLED, work->node[work->here], "");
        work->final = true;
    }
}

/* Some node has not started it, and never will. */
static void withdraw_work(struct engine_wire *net, struct engine_wire_work *work)
{
    for (uint32_t i = 0; i < work->run_count; i++)
        engine_wire_lane_leave(lane_of(net, &work->runs[i]), &work->runs[i]);
    work->status = ENGINE_BATCH_WITHDRAWN;
    work->withdrawn = work->final = true;
    work->fault = (struct engine_fault){.rank = -1};
    work->text[0] = '\0';
    if (work->stage)
        engine_wire_stage_cancel(work->stage);
}

static void withdraw(struct engine_wire *net, uint64_t least, uint64_t top)
{
    for (struct engine_wire_work *work = net->works; work; work = work->next) {
        if (work->batch && work->tentative && !work->final && !engine_wire_is_committed(work) &&
            work->sequence >= least && work->sequence < top)
            withdraw_work(net, work);
    }
}

struct calls {
    struct engine_wire_work *works;
    struct engine_wire_news *news;
    uint64_t least, top;
    bool cancels, no_memory, stopping;
};

static struct calls take_calls(struct engine_wire *net)
{
    pthread_mutex_lock(&net->lock);
    const struct calls calls = {.works = net->started_first,
                                .news = net->news_first,
                                .least = net->withdraw_least,
                                .top = net->withdraw_top,
                                .cancels = net->cancels,
                                .no_memory = net->no_memory,
                                .stopping = net->stopping};
    net->started_first = net->started_last = NULL;
    net->news_first = net->news_last = NULL;
    net->cancels = net->no_memory = false;
    net->withdraw_least = net->withdraw_top = 0;
    atomic_store_explicit(&net->called, false, memory_order_relaxed);
    pthread_mutex_unlock(&net->lock);
    return calls;
}

/* Works come behind those that are there. True when the thread is to end as soon as it can. */
static bool take_in(struct engine_wire *net)
{
    struct calls calls = take_calls(net);
    struct engine_wire_work **end = &net->works;

    while (calls.news) {
        struct engine_wire_news *news = calls.news;
        calls.news = news->next;
        hear(net, news);
    }
    if (!net->works)
        net->ticked_ns = hvi_clock_ns();
    while (*end)
        end = &(*end)->next;
    while (calls.works) {
        struct engine_wire_work *work = calls.works;
        calls.works = work->next;
        work->next = NULL;
        *end = work;
        end = &work->next;
        take_work(net, work);
    }
    if (calls.no_memory)
        end_everything(net, "this node's engine is out of memory");
    if (calls.top > 0)
        withdraw(net, calls.least, calls.top);
    if (calls.cancels)
        cancel(net);
    return calls.stopping;
}

/* ---- deadlines ---- */

static bool moves(struct engine_wire *net, const struct engine_wire_work *work)
{
    for (uint32_t i = 0; i < work->run_count; i++) {
        if (work->runs[i].at != ENGINE_WIRE_NONE && lane_of(net, &work->runs[i])->moved)
            return true;
    }
    return false;
}

/* What it has waited for: something to receive, if there is. */
static const struct engine_wire_run *waited_for(const struct engine_wire_work *work)
{
    const struct engine_wire_run *found = NULL;

    for (uint32_t i = 0; i < work->run_count; i++) {
        const struct engine_wire_run *run = &work->runs[i];
        if (run->at != ENGINE_WIRE_NONE && (!found || (found->sends && !run->sends)))
            found = run;
    }
    return found;
}

static void give_up_waiting(struct engine_wire *net, struct engine_wire_work *work)
{
    const struct engine_wire_run *run = waited_for(work);
    char text[ENGINE_TEXT_BYTES];

    if (!run)
        return;
    const struct engine_wire_lane *lane = lane_of(net, run);
    const char *what = run->sends ? "has taken nothing" : "has sent nothing";
    snprintf(text, sizeof text, "%s %s for %.1f s", lane->node->name,
             lane->port ? what : "could not be connected to",
             (double)work->idle_ns / (double)HVI_NS_SEC);
    if (work->batch)
        engine_wire_fail(net, work, HVI_ERR_STALLED, lane->node->number, text);
    else
        engine_wire_node_end(net, lane->node, text);
    work->final = true;
    work->idle_ns = 0;
}

/* NULL: no message of the work is under way there. */
static const char *what_is_stuck(const struct engine_wire_lane *lane,
                                 const struct engine_wire_work *work)
{
    if (lane->sender == work && !work->withdrawn)
        return "a message could not be sent to its end";
    return lane->holds && lane->receiver == work ? "a message has not come to its end" : NULL;
}

/* It has failed, and the rest of a message does not go away. Lanes to several nodes take no longer than to one. */
static void give_up_sending(struct engine_wire *net, struct engine_wire_work *work)
{
    for (uint32_t i = 0; i < work->run_count; i++) {
        struct engine_wire_lane *lane = lane_of(net, &work->runs[i]);
        if (what_is_stuck(lane, work))
            engine_wire_node_cease(lane->node);
    }
    for (uint32_t i = 0; i < work->run_count; i++) {
        struct engine_wire_lane *lane = lane_of(net, &work->runs[i]);
        const char *text = what_is_stuck(lane, work);
        if (text)
            engine_wire_node_end(net, lane->node, text);
    }
}

static void tick_work(struct engine_wire *net, struct engine_wire_work *work, uint64_t step_ns,
                      uint64_t most_ns)
{
    uint64_t limit_ns = work->idle_limit_ns < most_ns ? work->idle_limit_ns : most_ns;

    if (work->withdrawn && work->holding == 0)
        return; /* what is left of a message goes when the other node reads it */
    if (work->status != HVI_OK && work->batch) {
        work->failed_ns += step_ns;
        if (work->failed_ns >= net->transport->patience_ns)
            give_up_sending(net, work);
    }
    bool closes = most_ns != UINT64_MAX;
    bool staged = work->stage && !engine_wire_stage_is_over(work->stage, NULL, NULL);
    if (work->status == HVI_OK && (!work->begun || is_over(work)) && !(closes && staged))
        return; /* it waits for a rank's memory, or for this thread */
    work->idle_ns = moves(net, work) ? 0 : work->idle_ns + step_ns;
    if (staged && work->idle_ns >= limit_ns)
        engine_wire_fail(net, work, HVI_ERR_STALLED, work->node[work->here],
                         "a rank's memory does not answer, and the engine ends");
    if (work->idle_ns >= limit_ns)
        give_up_waiting(net, work);
}

static void tick(struct engine_wire *net, uint64_t most_ns)
{
    uint64_t now_ns = hvi_clock_ns(), step_ns = now_ns - net->ticked_ns;

    if (step_ns < ENGINE_WIRE_TICK_NS)
        return;
    net->ticked_ns = now_ns;
    if (step_ns > ENGINE_SILENT_NS)
        step_ns = ENGINE_SILENT_NS;
    for (struct engine_wire_work *work = net->works; work; work = work->next)
        tick_work(net, work, step_ns, most_ns);
    for (uint32_t i = 0; i < net->node_count; i++) {
        for (uint32_t lane = 0; net->nodes[i] && lane < net->lanes; lane++)
            net->nodes[i]->lanes[lane].moved = false;
    }
}

/* ---- the loop ---- */

static bool is_unsent(const struct engine_wire *net)
{
    bool unsent = false;

    for (uint32_t i = 0; i < net->node_count; i++) {
        for (uint32_t lane = 0; net->nodes[i] && lane < net->lanes; lane++)
            unsent = unsent || engine_wire_lane_unsent(&net->nodes[i]->lanes[lane]);
    }
    return unsent;
}

static bool move(struct engine_wire *net)
{
    bool moved = false;

    for (uint32_t i = 0; i < net->node_count; i++) {
        for (uint32_t lane = 0; net->nodes[i] && lane < net->lanes; lane++) {
            moved = engine_wire_lane_receive(net, &net->nodes[i]->lanes[lane]) || moved;
            moved = engine_wire_lane_send(net, &net->nodes[i]->lanes[lane]) || moved;
        }
    }
    return moved;
}

static void look(struct engine_wire *net, int timeout_ms)
{
    struct epoll_event events[EVENTS_AT_ONCE];
    uint64_t count = 0;

    int found = epoll_wait(net->epoll_fd, events, EVENTS_AT_ONCE, timeout_ms);
    for (int i = 0; i < found; i++) {
        struct engine_wire_lane *lane = events[i].data.ptr;
        if (!lane)
            (void)!read(net->event_fd, &count, sizeof count);
        else if (lane->port)
            lane->transport->ready(lane->port, events[i].events);
    }
}

static void sleep_now(struct engine_wire *net)
{
    pthread_mutex_lock(&net->lock);
    net->asleep = !atomic_load_explicit(&net->called, memory_order_relaxed);
    bool asleep = net->asleep;
    pthread_mutex_unlock(&net->lock);
    if (!asleep)
        return;
    look(net, net->works ? (int)(ENGINE_WIRE_TICK_NS / HVI_NS_MS) : -1);
    pthread_mutex_lock(&net->lock);
    net->asleep = false;
    pthread_mutex_unlock(&net->lock);
}

/* Until there is something to do, and nobody else does it. Lanes are not looked at meanwhile. */
static void sleep_until_called(struct engine_wire *net)
{
    struct pollfd event = {.fd = net->event_fd, .events = POLLIN};
    uint64_t count = 0;

    pthread_mutex_lock(&net->lock);
    if (!atomic_load_explicit(&net->called, memory_order_relaxed))
        net->driver = ENGINE_WIRE_NOBODY;
    while (net->driver != ENGINE_WIRE_THREAD) {
        pthread_mutex_unlock(&net->lock);
        if (poll(&event, 1, -1) > 0)
            (void)!read(net->event_fd, &count, sizeof count);
        pthread_mutex_lock(&net->lock);
    }
    pthread_mutex_unlock(&net->lock);
}

/* ---- the main thread as the driver ---- */

void engine_wire_leave(struct engine_wire *net)
{
    net->drives = false;
    pthread_mutex_lock(&net->lock);
    bool over =
        !net->works && !is_unsent(net) && !atomic_load_explicit(&net->called, memory_order_relaxed);
    net->driver = over ? ENGINE_WIRE_NOBODY : ENGINE_WIRE_THREAD;
    pthread_mutex_unlock(&net->lock);
    if (!over)
        (void)eventfd_write(net->event_fd, 1);
}

void engine_wire_drive(struct engine_wire *net)
{
    uint32_t idle = 0;

    take_in(net);
    for (uint32_t looks = 0;
         net->works && idle < ENGINE_WIRE_DRIVE_SPINS && looks < ENGINE_WIRE_DRIVES; looks++) {
        look(net, 0);
        bool moved = move(net);
        moved = advance_all(net) || moved;
        idle = moved ? 0 : idle + 1;
    }
    engine_wire_leave(net);
}

bool engine_wire_help(struct engine_wire *net)
{
    if (!net->drives)
        return false;
    if (atomic_load_explicit(&net->called, memory_order_relaxed))
        take_in(net);
    look(net, 0);
    bool moved = move(net);
    moved = advance_all(net) || moved;
    tick(net, UINT64_MAX);
    net->drive_idle = moved ? 0 : net->drive_idle + 1;
    if (!net->works || net->drive_idle >= ENGINE_WIRE_SPINS)
        engine_wire_leave(net);
    else if (!moved && net->drive_idle % ENGINE_WIRE_YIELD_LOOKS == 0)
        (void)hvi_yield();
    return true;
}

static bool has_batches(const struct engine_wire *net)
{
    bool found = false;

    for (const struct engine_wire_work *work = net->works; work; work = work->next)
        found = found || work->batch;
    return found;
}

/* Packed messages of works that are over here, which another node may wait for. */
static void send_rest(struct engine_wire *net)
{
    uint64_t began_ns = hvi_clock_ns();

    while (is_unsent(net) && hvi_clock_ns() - began_ns < CLOSE_NS) {
        look(net, (int)(ENGINE_WIRE_TICK_NS / HVI_NS_MS));
        for (uint32_t i = 0; i < net->node_count; i++) {
            for (uint32_t lane = 0; net->nodes[i] && lane < net->lanes; lane++)
                engine_wire_lane_send(net, &net->nodes[i]->lanes[lane]);
        }
    }
}

static void drop_all(struct engine_wire *net)
{
    while (net->works) {
        struct engine_wire_work *work = net->works;
        net->works = work->next;
        drop(net, work);
    }
    for (uint32_t i = 0; i < net->node_count; i++) {
        if (net->nodes[i])
            engine_wire_node_cease(net->nodes[i]);
    }
    for (uint32_t i = 0; i < net->node_count; i++) {
        for (uint32_t lane = 0; net->nodes[i] && lane < ENGINE_WIRE_LANES_MAX; lane++) {
            net->nodes[i]->lanes[lane].sending = NULL;
            engine_wire_lane_close(net, &net->nodes[i]->lanes[lane]);
            free(net->nodes[i]->lanes[lane].scratch);
        }
        free(net->nodes[i]);
    }
    free(net->nodes);
}

void *engine_wire_thread(void *user)
{
    struct engine_wire *net = user;
    uint32_t idle = 0, busy = 0;
    bool stopping = false;

    net->ticked_ns = hvi_clock_ns();
    while (!stopping || has_batches(net)) {
        if (atomic_load_explicit(&net->called, memory_order_relaxed))
            stopping = take_in(net) || stopping;
        bool moved = move(net);
        moved = advance_all(net) || moved;
        if (net->works)
            tick(net, stopping ? CLOSE_NS : UINT64_MAX);
        idle = moved ? 0 : idle + 1;
        if (moved && ++busy % PASSES_PER_LOOK == 0)
            look(net, 0);
        else if (!moved && net->works && idle < ENGINE_WIRE_SPINS)
            look(net, 0);
        else if (!moved && !stopping && !net->works && !is_unsent(net))
            sleep_until_called(net);
        else if (!moved && !(stopping && !has_batches(net)))
            sleep_now(net);
    }
    send_rest(net);
    drop_all(net);
    /* Release, pairs with the acquire in net.c's close. */
    atomic_store_explicit(&net->ended, true, memory_order_release);
    return NULL;
}
