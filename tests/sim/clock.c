/* SPDX-License-Identifier: Apache-2.0
 * The clock and the events: a heap by time. An engine has one thread. What comes while it is busy waits in its
 * queue, so an engine that gets more than it can do falls behind, as a real one does. */
#include "tests/sim/sim.h"

#include "base/assert.h"
#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

struct hvt_event {
    uint64_t at_ns, number; /* events of one time happen in the order in which they were posted */
    struct hvt_node *node;
    hvt_event_fn fn; /* NULL: the node's thread is free */
    void *user;
    uint64_t value;
};

static struct {
    uint64_t now_ns, number, random, events;
    struct hvt_event *heap;
    size_t count, room;
} clock_of_all;

uint64_t __wrap_hvi_clock_ns(void);
uint64_t __wrap_hvi_deadline_after(int64_t delay_ns);

uint64_t hvt_clock_now(void)
{
    return clock_of_all.now_ns;
}

/* What the engines ask. */
uint64_t __wrap_hvi_clock_ns(void)
{
    return clock_of_all.now_ns;
}

uint64_t __wrap_hvi_deadline_after(int64_t delay_ns)
{
    return delay_ns < 0 ? HVI_NEVER : clock_of_all.now_ns + (uint64_t)delay_ns;
}

void hvt_clock_pay(uint64_t ns)
{
    clock_of_all.now_ns += ns;
}

uint64_t hvt_clock_random(uint64_t below)
{
    clock_of_all.random ^= clock_of_all.random << 13;
    clock_of_all.random ^= clock_of_all.random >> 7;
    clock_of_all.random ^= clock_of_all.random << 17;
    return below > 0 ? (clock_of_all.random >> 8) % below : 0;
}

uint64_t hvt_clock_events(void)
{
    return clock_of_all.events;
}

void hvt_clock_reset(uint64_t seed)
{
    clock_of_all.now_ns = HVI_NS_SEC; /* 0 means never to some */
    clock_of_all.number = clock_of_all.events = clock_of_all.count = 0;
    clock_of_all.random = seed * 2654435761u + 88172645463325252u;
}

/* ---- the heap ---- */

static bool is_before(const struct hvt_event *a, const struct hvt_event *b)
{
    return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->number < b->number;
}

static void push(const struct hvt_event *event)
{
    struct hvt_event *heap = clock_of_all.heap;

    if (clock_of_all.count == clock_of_all.room) {
        size_t room = clock_of_all.room ? 2 * clock_of_all.room : 1024;
        heap = hvt_memory_new(room * sizeof *heap);
        if (clock_of_all.count > 0)
            memcpy(heap, clock_of_all.heap, clock_of_all.count * sizeof *heap);
        hvt_memory_free(clock_of_all.heap);
        clock_of_all.heap = heap;
        clock_of_all.room = room;
    }
    size_t at = clock_of_all.count++;
    for (; at > 0 && is_before(event, &heap[(at - 1) / 2]); at = (at - 1) / 2)
        heap[at] = heap[(at - 1) / 2];
    heap[at] = *event;
}

static struct hvt_event pop(void)
{
    struct hvt_event *heap = clock_of_all.heap, first = heap[0];
    const struct hvt_event last = heap[--clock_of_all.count];
    size_t count = clock_of_all.count, at = 0;

    for (size_t next = 1; next < count; next = 2 * at + 1) {
        if (next + 1 < count && is_before(&heap[next + 1], &heap[next]))
            next++;
        if (!is_before(&heap[next], &last))
            break;
        heap[at] = heap[next];
        at = next;
    }
    heap[at] = last;
    return first;
}

void hvt_clock_post(struct hvt_node *node, uint64_t at_ns, hvt_event_fn fn, void *user,
                    uint64_t value)
{
    const struct hvt_event event = {at_ns, clock_of_all.number++, node, fn, user, value};

    push(&event);
}

/* ---- threads ---- */

void hvt_thread_fini(struct hvt_thread *thread)
{
    hvt_memory_free(thread->queue);
    *thread = (struct hvt_thread){0};
}

static void enqueue(struct hvt_thread *thread, const struct hvt_event *event)
{
    if (thread->count == thread->room) {
        uint32_t room = thread->room ? 2 * thread->room : 16;
        struct hvt_event *queue = hvt_memory_new(room * sizeof *queue);
        for (uint32_t i = 0; i < thread->count; i++)
            queue[i] = thread->queue[(thread->first + i) % thread->room];
        hvt_memory_free(thread->queue);
        thread->queue = queue;
        thread->room = room;
        thread->first = 0;
    }
    thread->queue[(thread->first + thread->count++) % thread->room] = *event;
}

static struct hvt_event dequeue(struct hvt_thread *thread)
{
    struct hvt_event event = thread->queue[thread->first];

    thread->first = (thread->first + 1) % thread->room;
    thread->count--;
    return event;
}

static void wake_later(struct hvt_node *node, uint64_t at_ns)
{
    node->thread.waking = true;
    hvt_clock_post(node, at_ns, NULL, NULL, 0);
}

static void turn(const struct hvt_event *event)
{
    struct hvt_node *node = event->node;
    int64_t *before = hvt_memory_of(&node->bytes);

    hvt_clock_pay(hvt_costs.turn_ns);
    event->fn(node, event->user, event->value);
    if (!node->dead)
        hvt_node_after(node);
    hvt_memory_of(before);
    node->thread.busy_ns = clock_of_all.now_ns;
}

static void happen(const struct hvt_event *event)
{
    struct hvt_node *node = event->node;

    if (!node) {
        event->fn(NULL, event->user, event->value);
        return;
    }
    struct hvt_thread *thread = &node->thread;
    if (node->dead)
        return;
    if (event->fn && !thread->waking && thread->busy_ns <= event->at_ns) {
        turn(event);
        return;
    }
    if (event->fn) {
        enqueue(thread, event);
        if (!thread->waking)
            wake_later(node, thread->busy_ns);
        return;
    }
    const struct hvt_event next = dequeue(thread);
    thread->waking = false;
    turn(&next);
    if (thread->count > 0)
        wake_later(node, thread->busy_ns);
}

bool hvt_clock_run(const bool *goal, uint64_t until_ns)
{
    while (!(goal && *goal) && clock_of_all.count > 0 && clock_of_all.heap[0].at_ns <= until_ns) {
        struct hvt_event event = pop();
        clock_of_all.now_ns = event.at_ns;
        clock_of_all.events++;
        happen(&event);
    }
    return goal && *goal;
}
