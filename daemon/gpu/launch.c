/* SPDX-License-Identifier: Apache-2.0
 * The launch thread.
 *
 *   orders ──► take_orders ─┐
 *   rings  ──► drain ───────┼─► launch_batch: read, checked (batch.c), planned (plan.c), put into a stream (streams.c, comm.c)
 *   words  ──► land ────────┘
 *              no stream has anything: close_memory
 *              nothing of these: look for 50 us with yields, nap while batches are under way, else sleep
 *
 * An order that was given before an engine was answered is done before the batch that relies on it: orders are taken after the
 * ring's index was read. So memory, pages and communicators need no lock.
 *
 * A batch is never taken back, and never skipped: one that cannot be done waits for its members and writes their .done like
 * any other, and its answer says why.
 *
 * Closes wait for all streams, in the driver, and a launch would wait for them (P2, P11). So this thread makes them, between two
 * batches, when no stream has anything. It holds no batch back for that: see "Closes" in docs/design/gpu.md.
 *
 * Naps are an eighth of the time since something has happened, from 20 us to 1 ms: no interrupt, no host function. A published
 * batch ends a nap. */
#include "daemon/gpu/launch.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/types.h"
#include "base/yield.h"

#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <utlist.h>

#define CALL_NS     (5 * HVI_NS_SEC)
#define COMM_NS     (60 * HVI_NS_SEC)
#define LOOK_NS     UINT64_C(50000)
#define WAKE_NS     UINT64_C(20000) /* about what a sleep and a wake-up cost */
#define GLANCE_NS   UINT64_C(2000)  /* the same where looking did not pay the last time */
#define NAP_MIN_NS  UINT64_C(20000)
#define NAP_MAX_NS  HVI_NS_MS
#define OLD_NS      (100 * HVI_NS_MS) /* of a batch: the engine is told that it has begun */
#define CLOSES_NS   HVI_NS_MS         /* of closing, before batches have a turn */
#define SOUND_NS    (10 * HVI_NS_MS)  /* between questions whether the context is sound */
#define SOURCES_MAX 64u               /* that end a sleep; others are looked at after a nap */
#define AT_ONCE     16u               /* batches of one source, before others have a turn */

static void ring(int event_fd)
{
    (void)eventfd_write(event_fd, 1);
}

/* ---- orders, both ways ---- */

void gpu_launch_order(struct gpu_launch *launch, struct gpu_order *order)
{
    pthread_mutex_lock(&launch->lock);
    DL_APPEND(launch->orders, order);
    pthread_mutex_unlock(&launch->lock);
    /* Release, pairs with the acquire in take_orders. */
    atomic_store_explicit(&launch->has_orders, true, memory_order_release);
    ring(launch->wake_fd);
}

void gpu_launch_closing(struct gpu_launch *launch)
{
    /* Release, pairs with the acquire in close_memory. */
    atomic_store_explicit(&launch->has_closes, true, memory_order_release);
    ring(launch->wake_fd);
}

static void give_back(struct gpu_launch *launch, struct gpu_order *order)
{
    pthread_mutex_lock(&launch->lock);
    DL_APPEND(launch->back, order);
    pthread_mutex_unlock(&launch->lock);
    ring(launch->back_fd);
}

void gpu_launch_back(struct gpu_launch *launch)
{
    struct gpu_order *back, *order;
    uint64_t count;

    if (read(launch->back_fd, &count, sizeof(count)) < 0)
        return;
    pthread_mutex_lock(&launch->lock);
    back = launch->back;
    launch->back = NULL;
    pthread_mutex_unlock(&launch->lock);
    while ((order = back) != NULL) {
        DL_DELETE(back, order);
        if (order == &launch->stop)
            launch->is_stopped = true;
        else if (order == &launch->failure)
            launch->failed(launch->user, order->text);
        else if (order->done != NULL)
            order->done(order); /* which may free it */
    }
}

/* ---- what batches may name ---- */

static struct gpu_thing **thing_link(struct gpu_source *source, uint32_t number, bool is_page)
{
    struct gpu_thing **link = &source->things[number % GPU_SOURCE_THINGS];

    while (*link != NULL && ((*link)->number != number || (*link)->is_page != is_page))
        link = &(*link)->next;
    return link;
}

/* The batch that is being read. */
struct reading {
    struct gpu_launch *launch;
    struct gpu_source *source;
    uint32_t stream;
};

static struct gpu_thing *use_thing(const struct reading *reading, uint32_t number, bool is_page)
{
    struct gpu_thing *thing = *thing_link(reading->source, number, is_page);

    if (thing != NULL)
        thing->used[reading->stream] = reading->launch->streams.streams[reading->stream].queued;
    return thing;
}

static bool name_import(void *user, uint32_t number, uint64_t *address_p, uint64_t *bytes_p)
{
    const struct gpu_thing *thing = use_thing(user, number, false);

    if (thing == NULL)
        return false;
    *address_p = thing->address;
    *bytes_p = thing->bytes;
    return true;
}

static bool name_page(void *user, uint32_t number, uint64_t *address_p,
                      const struct hvi_fence_page **page_p)
{
    const struct gpu_thing *thing = use_thing(user, number, true);

    if (thing == NULL)
        return false;
    *address_p = thing->address;
    *page_p = thing->fences;
    return true;
}

static bool name_comm(void *user, uint32_t number, uint32_t *ranks_p, uint32_t *rank_p)
{
    const struct reading *reading = user;
    const struct gpu_comm_name *name =
        gpu_comms_find(&reading->launch->comms, reading->source, number);

    if (name == NULL)
        return false;
    *ranks_p = name->count;
    *rank_p = name->rank;
    return true;
}

/* Whether no batch that was published before it was forgotten uses it. */
static bool is_unused(const struct gpu_launch *launch, const struct gpu_thing *thing)
{
    if (thing->source->is_closed)
        return thing->source->under_way == 0;
    if ((int32_t)(thing->source->channel->commands.own - thing->read) < 0)
        return false;
    for (uint32_t i = 0; i < GPU_STREAMS; i++) {
        if (gpu_stream_finished(&launch->streams.streams[i]) < thing->used[i])
            return false;
    }
    return true;
}

/* ---- answers ---- */

/* The engine breaks its border: nothing more is read from it, and main ends its socket. */
static void lied(struct gpu_launch *launch, struct gpu_source *source, const char *what)
{
    if (source->is_closed)
        return;
    source->is_closed = true;
    source->lie.kind = GPU_ORDER_LIE;
    snprintf(source->lie.text, sizeof(source->lie.text), "%s", what);
    give_back(launch, &source->lie);
}

/* An engine that is over gets none. `room`: answers that there has to be room for, with this one. */
static bool answer(struct gpu_launch *launch, struct gpu_source *source,
                   const struct gpu_flight *flight, int status, uint32_t room)
{
    struct hvi_device_done done = {.number = flight->number, .status = status, .member = -1};
    const uint64_t now_ns = hvi_clock_ns();
    uint32_t space = 0;

    if (source->is_closed)
        return false;
    if (hvi_ring_space(&source->channel->dones, &space) != HVI_OK) {
        lied(launch, source, "an impossible index in its ring of answers");
        return false;
    }
    if (space < room)
        return false;
    done.seq = ++source->answers;
    done.waited_ns = flight->begun_ns - flight->since_ns;
    done.ran_ns = now_ns - flight->begun_ns;
    done.device_ns = flight->device_ns;
    snprintf(done.text, sizeof(done.text), "%s", flight->text);
    memcpy(hvi_ring_slot(&source->channel->dones, 0), &done, sizeof(done));
    hvi_device_answer(source->channel, 1, source->event_fd);
    return true;
}

/* ---- landing: what has begun, and what has finished ---- */

/* False: its engine has left no room for the answer, which waits. That it has begun may have taken the place. */
static bool land(struct gpu_launch *launch, uint32_t stream, struct gpu_flight *flight)
{
    struct gpu_source *source = flight->source;

    if (flight->begun_ns == 0)
        flight->begun_ns = hvi_clock_ns();
    if (flight->is_timed)
        flight->device_ns = gpu_streams_took(&launch->streams, &launch->streams.streams[stream]);
    flight->is_timed = false;
    if (!answer(launch, source, flight, flight->status, 1) && !source->is_closed)
        return false;
    launch->first[stream] = flight->next;
    if (flight->next == NULL)
        launch->last[stream] = &launch->first[stream];
    launch->streams.streams[stream].works -= flight->works;
    launch->streams.streams[stream].works_before -= flight->works;
    flight->number = 0;
    source->under_way--;
    launch->flying--;
    return true;
}

/* A batch that waits for nothing begins when the one before it is over, and then it is the first. */
static void look_at_begun(struct gpu_launch *launch, uint32_t stream, uint64_t now_ns)
{
    const struct gpu_flight *first = launch->first[stream];
    const uint64_t begun = gpu_stream_begun(&launch->streams.streams[stream]);

    for (struct gpu_flight *flight = launch->first[stream];
         flight != NULL && (flight->place <= begun || (flight == first && !flight->waits));
         flight = flight->next) {
        if (flight->begun_ns == 0)
            flight->begun_ns = now_ns;
        if (!flight->is_told && now_ns - flight->since_ns > OLD_NS)
            flight->is_told = answer(launch, flight->source, flight, HVI_INPROGRESS,
                                     flight->source->under_way + 1);
    }
}

/* For main: what a call of another thread may wait for. */
static void note_oldest(struct gpu_launch *launch)
{
    uint64_t oldest_ns = UINT64_MAX;

    for (uint32_t i = 0; i < GPU_STREAMS; i++) {
        if (launch->first[i] != NULL && launch->first[i]->since_ns < oldest_ns)
            oldest_ns = launch->first[i]->since_ns;
    }
    atomic_store_explicit(&launch->oldest_ns, oldest_ns, memory_order_relaxed);
}

/* True: something has finished. */
static bool look_at_streams(struct gpu_launch *launch)
{
    const uint64_t now_ns = hvi_clock_ns();
    bool found = false;

    for (uint32_t i = 0; i < GPU_STREAMS; i++) {
        if (launch->first[i] == NULL)
            continue;
        look_at_begun(launch, i, now_ns);
        const uint64_t finished = gpu_stream_finished(&launch->streams.streams[i]);
        while (launch->first[i] != NULL && launch->first[i]->place <= finished &&
               land(launch, i, launch->first[i]))
            found = true;
    }
    note_oldest(launch);
    return found;
}

static void take_out(const struct gpu_thing *thing)
{
    struct gpu_thing **link = thing_link(thing->source, thing->number, thing->is_page);

    HVI_ASSERT(*link == thing);
    *link = thing->next;
}

/* Orders that wait for batches. */
static bool settle(struct gpu_launch *launch)
{
    struct gpu_source *source, *after;
    struct gpu_order *order, *next;
    bool found = false;

    DL_FOREACH_SAFE(launch->forgets, order, next)
    {
        if (!is_unused(launch, order->thing))
            continue;
        take_out(order->thing);
        DL_DELETE(launch->forgets, order);
        give_back(launch, order);
        found = true;
    }
    DL_FOREACH_SAFE(launch->sources, source, after)
    {
        if (source->closing == NULL || source->under_way > 0)
            continue;
        DL_DELETE(launch->sources, source);
        gpu_comms_owner_gone(&launch->comms, source);
        give_back(launch, source->closing);
        found = true;
    }
    return found;
}

/* ---- launching ---- */

struct stepping {
    struct gpu_launch *launch;
    struct gpu_stream *stream;
    struct gpu_comm *comm;
    uint32_t steps;
};

static void ask_whether_sound(struct gpu_launch *launch, uint64_t now_ns);

/* A long batch is put into its stream in portions: a full queue would keep this thread in a call of the driver, where it is
 * taken for stuck. What has finished meanwhile is answered; orders wait. False: the driver or NCCL has failed. */
static bool await_room(struct stepping *stepping)
{
    struct gpu_launch *launch = stepping->launch;
    const uint64_t batch = atomic_load_explicit(&launch->calls.batch, memory_order_relaxed);

    if (!gpu_streams_mark(&launch->streams, stepping->stream))
        return false;
    while (!launch->calls.failed && !gpu_stream_has_room(stepping->stream)) {
        const struct timespec nap = {.tv_nsec = (long)NAP_MIN_NS};
        (void)look_at_streams(launch);
        ask_whether_sound(launch, hvi_clock_ns());
        (void)nanosleep(&nap, NULL);
    }
    atomic_store_explicit(&launch->calls.batch, batch, memory_order_relaxed);
    gpu_stream_look_again(stepping->stream);
    return !launch->calls.failed;
}

static bool step(void *user, const struct gpu_step *one)
{
    struct stepping *stepping = user;

    if (++stepping->steps % GPU_STREAM_PORTION == 0 && !await_room(stepping))
        return false;
    if (one->kind < (int)GPU_STREAM_KERNELS)
        return gpu_streams_launch(&stepping->launch->streams, stepping->stream, one);
    stepping->stream->works++;
    gpu_stream_look_again(stepping->stream);
    return gpu_comms_call(&stepping->launch->comms, stepping->comm, stepping->stream->handle, one);
}

/* False: the driver or NCCL has failed. */
static bool put_into_stream(struct gpu_launch *launch, struct gpu_source *source, uint32_t number,
                            struct gpu_flight *flight)
{
    struct gpu_stream *stream = &launch->streams.streams[number];
    struct stepping stepping = {launch, stream, NULL, 0};
    const bool is_local = launch->batch.comm == 0;
    bool is_timed = false;
    const struct gpu_plan_means means = {
        launch->streams.staging + (is_local ? GPU_STREAM_STAGING : 0),
        is_local ? GPU_STREAM_SCRATCH : GPU_STREAM_STAGING, &stepping, step};

    if (launch->batch.comm != 0)
        stepping.comm = gpu_comms_find(&launch->comms, source, launch->batch.comm)->comm;
    if (stepping.comm != NULL)
        stepping.comm->used = stream->queued;
    if (!gpu_streams_wait(&launch->streams, stream, &launch->batch, &flight->waits) ||
        (launch->batch.is_timed && !gpu_streams_time(&launch->streams, stream, &is_timed)))
        return false;
    if (launch->batch.comm != 0 && stepping.comm == NULL) {
        flight->status = HVI_ERR_CANCELLED;
        flight->text = "its communicator was dropped before it was launched";
    } else {
        flight->status = gpu_plan_make(&launch->batch, &means, &flight->text);
    }
    if (is_timed && !launch->calls.failed)
        (void)gpu_streams_time_end(&launch->streams, stream);
    flight->is_timed = is_timed;
    return !launch->calls.failed && gpu_streams_finish(&launch->streams, stream, &launch->batch);
}

static void take_off(struct gpu_launch *launch, struct gpu_source *source, uint32_t stream,
                     struct gpu_flight *flight)
{
    *flight = (struct gpu_flight){.source = source,
                                  .number = launch->batch.number,
                                  .place = launch->streams.streams[stream].queued,
                                  .since_ns = hvi_clock_ns(),
                                  .text = ""};
    *launch->last[stream] = flight;
    launch->last[stream] = &flight->next;
    source->under_way++;
    launch->flying++;
    note_oldest(launch);
}

/* Of the head and the first work. */
static uint32_t stream_of(const union gpu_slot *slots)
{
    const struct hvi_device_batch *head = &slots[0].batch;

    return hvi_device_stream(head->comm != 0, head->stream,
                             head->slots > 1 ? slots[1].work.reduce_op : HVI_REDUCE_SUM);
}

/* Its slots are copied. */
static void launch_batch(struct gpu_launch *launch, struct gpu_source *source)
{
    const struct hvi_device_batch *head = &launch->slots[0].batch;
    struct reading reading = {launch, source, stream_of(launch->slots)};
    const struct gpu_batch_names names = {&reading, name_import, name_page, name_comm};
    struct gpu_stream *stream = &launch->streams.streams[reading.stream];
    struct gpu_flight *flight = &source->flights[head->number % HVI_DEVICE_DONES];

    if (head->number != source->number + 1 || flight->number != 0 || source->event_fd < 0) {
        lied(launch, source, "a batch that is not the next one");
        return;
    }
    source->number++;
    stream->queued++;
    const char *lie = gpu_batch_read(launch->slots, head->slots, &names, &launch->batch);
    if (lie != NULL) {
        stream->queued--;
        lied(launch, source, lie);
        return;
    }
    atomic_store_explicit(&launch->calls.batch, head->number, memory_order_relaxed);
    take_off(launch, source, reading.stream, flight);
    if (put_into_stream(launch, source, reading.stream, flight)) {
        flight->works = stream->works - stream->works_before;
        /* Release, pairs with an acquire of the engine's. */
        atomic_store_explicit(&source->channel->header->launched, head->number,
                              memory_order_release);
    }
    atomic_store_explicit(&launch->calls.batch, 0, memory_order_relaxed);
}

/* Copies the next batch. False: it goes to a stream that is full, or it is a lie. */
static bool copy_batch(struct gpu_launch *launch, struct gpu_source *source, uint32_t available)
{
    const struct hvi_device_batch *head = &launch->slots[0].batch;

    hvi_ring_copy(&source->channel->commands, 0, &launch->slots[0]);
    if (head->command != HVI_DEVICE_BATCH || head->slots == 0 || head->slots > available) {
        lied(launch, source, "a batch that is none");
        return false;
    }
    if (head->slots > 1)
        hvi_ring_copy(&source->channel->commands, 1, &launch->slots[1]);
    source->is_held =
        launch->streams.streams[stream_of(launch->slots)].works >= GPU_STREAM_WORKS_MAX;
    if (source->is_held)
        return false;
    for (uint32_t i = 2; i < head->slots; i++)
        hvi_ring_copy(&source->channel->commands, i, &launch->slots[i]);
    hvi_ring_release(&source->channel->commands, head->slots);
    return true;
}

static bool take_orders(struct gpu_launch *launch);

/* True: there was something. */
static bool drain(struct gpu_launch *launch, struct gpu_source *source)
{
    uint32_t available = 0, count = 0;

    source->is_held = false;
    while (!source->is_closed && !launch->calls.failed && count < AT_ONCE) {
        if (hvi_ring_available(&source->channel->commands, &available) != HVI_OK) {
            lied(launch, source, "an impossible index in its ring of commands");
            break;
        }
        if (available == 0)
            break;
        take_orders(launch); /* those that these batches rely on */
        if (source->is_closed || !copy_batch(launch, source, available))
            break;
        launch_batch(launch, source);
        count++;
    }
    return count > 0;
}

static bool drain_all(struct gpu_launch *launch)
{
    struct gpu_source *source;
    bool found = false;

    DL_FOREACH(launch->sources, source)
    found = drain(launch, source) || found;
    return found;
}

/* ---- orders ---- */

/* Batches that name it may lie in the ring. */
static void forget(struct gpu_launch *launch, struct gpu_order *order)
{
    struct gpu_source *source = order->source;
    uint32_t available = 0;

    if (hvi_ring_available(&source->channel->commands, &available) != HVI_OK)
        lied(launch, source, "an impossible index in its ring of commands");
    order->thing->read = source->channel->commands.own + available;
    DL_APPEND(launch->forgets, order);
}

static void add_thing(struct gpu_thing *thing)
{
    struct gpu_thing **link = thing_link(thing->source, thing->number, thing->is_page);

    HVI_ASSERT(*link == NULL);
    thing->next = NULL;
    *link = thing;
}

/* True: it is done. */
static bool follow(struct gpu_launch *launch, struct gpu_order *order)
{
    switch (order->kind) {
    case GPU_ORDER_OPEN:
        order->source->event_fd = -1;
        DL_APPEND(launch->sources, order->source);
        gpu_comms_alive(&launch->comms, order->join.instances, order->join.count);
        return true;
    case GPU_ORDER_WELCOME:
        order->source->event_fd = order->fd;
        return true;
    case GPU_ORDER_CLOSE:
        order->source->is_closed = true;
        order->source->closing = order;
        return false;
    case GPU_ORDER_ADD:
        add_thing(order->thing);
        return true;
    case GPU_ORDER_FORGET:
        forget(launch, order);
        return false;
    case GPU_ORDER_ID:
        order->status =
            gpu_comms_can(&launch->comms, &order->join, order->text, sizeof(order->text));
        if (order->status == HVI_OK && !order->check)
            order->status = gpu_comms_id(&launch->comms, &order->join, order->join.id, order->text,
                                         sizeof(order->text));
        return true;
    case GPU_ORDER_JOIN:
        order->status =
            gpu_comms_join(&launch->comms, &order->join, order->text, sizeof(order->text));
        return true;
    case GPU_ORDER_REGISTER:
        order->status =
            gpu_comms_register(&launch->comms, order->source, order->join.number, order->address,
                               order->bytes, order->text, sizeof(order->text));
        return true;
    case GPU_ORDER_DROP:
        (void)gpu_comms_drop(&launch->comms, order->source, order->join.number, order->abort);
        return true;
    case GPU_ORDER_CLEAR:
        HVI_ASSERT(launch->sources == NULL && launch->flying == 0);
        order->status = gpu_streams_clear(&launch->streams) ? HVI_OK : HVI_ERR_UNSUPPORTED;
        return true;
    default:
        HVI_ASSERT(order->kind == GPU_ORDER_STOP);
        launch->stopping = order;
        return false;
    }
}

static bool take_orders(struct gpu_launch *launch)
{
    struct gpu_order *orders, *order;

    /* Acquire, pairs with the release in gpu_launch_order. */
    if (!atomic_load_explicit(&launch->has_orders, memory_order_acquire))
        return false;
    atomic_store_explicit(&launch->has_orders, false, memory_order_relaxed);
    pthread_mutex_lock(&launch->lock);
    orders = launch->orders;
    launch->orders = NULL;
    pthread_mutex_unlock(&launch->lock);
    while ((order = orders) != NULL) {
        DL_DELETE(orders, order);
        if (follow(launch, order))
            give_back(launch, order);
    }
    return true;
}

/* ---- rest ---- */

static bool is_flying(const struct gpu_launch *launch)
{
    return launch->flying > 0;
}

/* True: something was closed. */
static bool close_memory(struct gpu_launch *launch)
{
    if (is_flying(launch) ||
        !atomic_exchange_explicit(&launch->has_closes, false, memory_order_acquire))
        return false;
    if (launch->close(launch->user, &launch->calls, hvi_deadline_after(CLOSES_NS)))
        atomic_store_explicit(&launch->has_closes, true, memory_order_relaxed);
    return true;
}

/* One after the other is asked whether it is sound: a broken context finishes nothing. */
static void ask_whether_sound(struct gpu_launch *launch, uint64_t now_ns)
{
    if (now_ns - launch->sound_ns < SOUND_NS)
        return;
    launch->sound_ns = now_ns;
    for (uint32_t i = 0; i < GPU_STREAMS; i++) {
        if (launch->first[i] == NULL)
            continue;
        atomic_store_explicit(&launch->calls.batch, launch->first[i]->number, memory_order_relaxed);
        if (!gpu_streams_sound(&launch->streams, &launch->streams.streams[i]))
            return;
        if (i == GPU_STREAM_NCCL &&
            !gpu_comms_look(&launch->comms, gpu_stream_finished(&launch->streams.streams[i]),
                            now_ns))
            return;
        atomic_store_explicit(&launch->calls.batch, 0, memory_order_relaxed);
    }
}

static void disarm(struct gpu_launch *launch)
{
    struct gpu_source *source;

    DL_FOREACH(launch->sources, source)
    {
        if (!source->is_closed)
            hvi_device_disarm(source->channel);
    }
}

/* How many descriptors to poll; -1: there are commands. *nap_ns_p is made shorter for a source that cannot end a sleep. */
static int arm(struct gpu_launch *launch, struct pollfd *polls, uint64_t *nap_ns_p)
{
    struct gpu_source *source;
    int count = 1;

    polls[0] = (struct pollfd){.fd = launch->wake_fd, .events = POLLIN};
    DL_FOREACH(launch->sources, source)
    {
        if (source->is_closed || source->is_held)
            continue;
        if (count > (int)SOURCES_MAX) {
            *nap_ns_p = NAP_MAX_NS;
            continue;
        }
        if (!hvi_device_arm(source->channel))
            return -1;
        polls[count++] = (struct pollfd){.fd = source->wake_fd, .events = POLLIN};
    }
    return count;
}

static void sleep_for(struct gpu_launch *launch, uint64_t nap_ns)
{
    struct pollfd polls[SOURCES_MAX + 1];
    int count = arm(launch, polls, &nap_ns);
    uint64_t value;

    if (count > 0 && !atomic_load_explicit(&launch->has_orders, memory_order_acquire)) {
        const struct timespec time = {(time_t)(nap_ns / HVI_NS_SEC), (long)(nap_ns % HVI_NS_SEC)};
        launch->is_woken =
            ppoll(polls, (nfds_t)count, nap_ns == HVI_NEVER ? NULL : &time, NULL) > 0;
        for (int i = 0; i < count; i++) {
            if ((polls[i].revents & POLLIN) != 0)
                (void)!read(polls[i].fd, &value, sizeof(value));
        }
    }
    disarm(launch);
}

/* There was something to do. The next rest begins: of a stream's work, or of the engines'. */
static void end_rest(struct gpu_launch *launch)
{
    const uint64_t now_ns = hvi_clock_ns(), rested_ns = now_ns - launch->busy_ns;
    const uint64_t wake_ns = launch->is_woken ? WAKE_NS : 0;

    if (launch->rests)
        launch->rested_ns[launch->rests_flying] = rested_ns > wake_ns ? rested_ns - wake_ns : 0;
    launch->rests = launch->is_woken = false;
    launch->busy_ns = now_ns;
}

/* There was nothing to do. Looking pays where the rest is a short one; it is taken to be as long as the last one of its kind, of
 * which a nap may be a part, without the wake-up that has ended it: looking would have had none. Each look is followed by a yield: what the thread waits for (the engine, a rank, the driver's
 * threads) may need its core. */
static void rest(struct gpu_launch *launch)
{
    const uint64_t now_ns = hvi_clock_ns(), idle_ns = now_ns - launch->busy_ns;
    const bool flying = is_flying(launch);
    uint64_t nap_ns = idle_ns / 8;

    launch->rests = true;
    launch->rests_flying = flying;
    if (idle_ns < (launch->rested_ns[flying] < 2 * LOOK_NS ? LOOK_NS : GLANCE_NS) && hvi_yield())
        return;
    if (!is_flying(launch)) {
        sleep_for(launch, HVI_NEVER);
        return;
    }
    ask_whether_sound(launch, now_ns);
    nap_ns = nap_ns < NAP_MIN_NS ? NAP_MIN_NS : nap_ns > NAP_MAX_NS ? NAP_MAX_NS : nap_ns;
    sleep_for(launch, nap_ns);
}

/* ---- life ---- */

bool gpu_launch_prepare(struct gpu_launch *launch, const struct hvi_cuda *cuda, char *text_p,
                        size_t text_size)
{
    const uint64_t comm_ns = launch->comm_ns > 0 ? launch->comm_ns : COMM_NS;

    launch->calls.cuda = cuda;
    launch->streams.calls = &launch->calls;
    launch->comms.calls = &launch->calls;
    launch->comms.path = launch->library_path;
    launch->comms.join_ns = comm_ns;
    for (uint32_t i = 0; i < GPU_STREAMS; i++)
        launch->last[i] = &launch->first[i];
    if (!gpu_streams_open(&launch->streams, launch->kernels)) {
        snprintf(text_p, text_size, "%s", launch->calls.why);
        return false;
    }
    gpu_comms_open(&launch->comms);
    return true;
}

void gpu_launch_run(struct gpu_launch *launch)
{
    (void)prctl(PR_SET_TIMERSLACK, 1000); /* naps are short */
    while (!launch->calls.failed && (launch->stopping == NULL || is_flying(launch))) {
        bool found = look_at_streams(launch);
        found = take_orders(launch) || found;
        found = settle(launch) || found;
        found = close_memory(launch) || found;
        found = drain_all(launch) || found;
        if (found)
            end_rest(launch);
        else
            rest(launch);
    }
    if (launch->calls.failed) {
        snprintf(launch->failure.text, sizeof(launch->failure.text), "%s", launch->calls.why);
        give_back(launch, &launch->failure);
        return;
    }
    settle(launch);
    gpu_comms_close(&launch->comms);
    gpu_streams_close(&launch->streams);
    give_back(launch, launch->stopping);
}

int gpu_launch_open(struct gpu_launch *launch)
{
    launch->calls.usual_ns = launch->call_ns > 0 ? launch->call_ns : CALL_NS;
    launch->stop.kind = GPU_ORDER_STOP;
    launch->failure.kind = GPU_ORDER_FAILED;
    pthread_mutex_init(&launch->lock, NULL);
    launch->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    launch->back_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (launch->wake_fd >= 0 && launch->back_fd >= 0)
        return HVI_OK;
    gpu_launch_close(launch);
    return HVI_ERR_NO_MEMORY;
}

void gpu_launch_close(struct gpu_launch *launch)
{
    if (launch->wake_fd >= 0)
        close(launch->wake_fd);
    if (launch->back_fd >= 0)
        close(launch->back_fd);
    launch->wake_fd = launch->back_fd = -1;
}
