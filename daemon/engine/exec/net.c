/* SPDX-License-Identifier: Apache-2.0
 * The row "net": works with members on several nodes. One thread of its own does them, started by the first
 * lane or work. What the main thread calls here makes a plan, and leaves it to the thread, unless the work is
 * small and the thread asleep.
 *
 * Kinds that move nothing are over at once: the verdict that started them has brought the nodes together. Where
 * there was none, their messages say that all nodes have started them. */
#include "daemon/engine/exec/net_thread.h"

#include "base/assert.h"
#include "base/pages.h"
#include "base/status.h"
#include "base/types.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define CACHES              "/sys/devices/system/cpu/cpu0/cache"
#define CACHE_BYTES_UNKNOWN (16ull * 1024 * 1024)
#define CLOSE_LOOK_NS       (1000 * 1000) /* while close() waits for the thread */

/* ---- opening ---- */

static bool open_files(struct engine_wire *net)
{
    struct epoll_event event = {.events = EPOLLIN};

    net->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    net->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return net->epoll_fd >= 0 && net->event_fd >= 0 &&
           epoll_ctl(net->epoll_fd, EPOLL_CTL_ADD, net->event_fd, &event) == 0;
}

static void close_files(struct engine_wire *net)
{
    if (net->epoll_fd >= 0)
        close(net->epoll_fd);
    if (net->event_fd >= 0)
        close(net->event_fd);
    net->epoll_fd = net->event_fd = -1;
}

void engine_wire_backend_set_lanes(void *context, uint32_t lanes)
{
    struct engine_wire *net = context;

    net->lanes = lanes > 0 ? lanes : ENGINE_WIRE_LANES;
    if (net->lanes > ENGINE_WIRE_LANES_MAX)
        net->lanes = ENGINE_WIRE_LANES_MAX;
}

static const struct engine_wire_transport *const transports[] = {
    &engine_wire_tcp,
#ifdef HVD_UCX
    &engine_wire_ucx,
#endif
};

int engine_wire_backend_set_transport(void *context, const char *name, const char *address,
                                      char text_p[ENGINE_TEXT_BYTES])
{
    struct engine_wire *net = context;
    const struct engine_wire_transport *found = NULL;

    HVI_ASSERT(!net->runs && !net->shared);
    for (size_t i = 0; i < sizeof transports / sizeof transports[0]; i++) {
        if (strcmp(transports[i]->name, name) == 0)
            found = transports[i];
    }
    if (!found) {
        snprintf(text_p, ENGINE_TEXT_BYTES,
                 "this hvdd-engine was built without \"%s\" for net-transport: build it where "
                 "libucx-dev is installed, or set net-transport to tcp",
                 name);
        return HVI_ERR_UNSUPPORTED;
    }
    int status = found->begin ? found->begin(address, &net->shared, text_p) : HVI_OK;
    if (status == HVI_OK)
        net->transport = found;
    return status;
}

static int net_open(const struct engine_backend_config *config, void **context_p)
{
    struct engine_host_cache cache = engine_host_cache_find(CACHES);
    struct engine_wire *net = calloc(1, sizeof *net);

    if (!net)
        return HVI_ERR_NO_MEMORY;
    net->config = *config;
    engine_wire_backend_set_lanes(net, config->lanes);
    net->transport = &engine_wire_tcp;
    net->tools.kernels = hvi_kernels_best();
    net->tools.stream_bytes = cache.bytes > 0 ? cache.bytes : CACHE_BYTES_UNKNOWN;
    net->epoll_fd = net->event_fd = -1;
    pthread_mutex_init(&net->lock, NULL);
    pthread_mutex_init(&net->host_lock, NULL);
    hvi_pages_open();
    *context_p = net;
    return HVI_OK;
}

/* Signals are the main thread's business, but for a page that this one misses. */
static bool start_thread(struct engine_wire *net)
{
    sigset_t all, before;

    sigfillset(&all);
    sigdelset(&all, SIGBUS);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&net->thread, NULL, engine_wire_thread, net);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error == 0)
        pthread_setname_np(net->thread, "hvd-net");
    return error == 0;
}

static bool run_thread(struct engine_wire *net)
{
    if (net->runs)
        return true;
    if (!net->tools.strip)
        net->tools.strip = aligned_alloc(4096, ENGINE_WIRE_STRIP_BYTES);
    net->runs = net->tools.strip && open_files(net) && start_thread(net);
    if (!net->runs)
        close_files(net);
    return net->runs;
}

/* ---- closing ---- */

static void watch_host(struct engine_wire *net)
{
    pthread_mutex_lock(&net->host_lock);
    if (net->host)
        engine_backend_host.watch(net->host);
    pthread_mutex_unlock(&net->host_lock);
}

static void join_thread(struct engine_wire *net)
{
    const struct timespec pause = {.tv_nsec = CLOSE_LOOK_NS};

    engine_wire_backend_busy(net);
    pthread_mutex_lock(&net->lock);
    net->stopping = true;
    engine_wire_call(net);
    pthread_mutex_unlock(&net->lock);
    /* Acquire, pairs with the release at the thread's end. */
    while (!atomic_load_explicit(&net->ended, memory_order_acquire)) {
        watch_host(net);
        nanosleep(&pause, NULL);
    }
    pthread_join(net->thread, NULL);
}

static bool net_close(void *context)
{
    struct engine_wire *net = context;
    bool ended = true;

    if (!net)
        return true;
    if (net->runs)
        join_thread(net);
    if (net->host)
        ended = engine_backend_host.close(net->host);
    hvi_pages_close();
    if (!ended) /* workers that wait look at what they were given */
        return false;
    close_files(net);
    if (net->transport->end)
        net->transport->end(net->shared);
    pthread_mutex_destroy(&net->lock);
    pthread_mutex_destroy(&net->host_lock);
    free(net->tools.strip);
    free(net->asked);
    free(net->figures);
    free(net);
    return true;
}

/* ---- works ---- */

static bool moves(const struct engine_work *work)
{
    return work->kind == HVI_KIND_ALLREDUCE || work->kind == HVI_KIND_ALLGATHER ||
           work->kind == HVI_KIND_BROADCAST || work->kind == HVI_KIND_REDUCESCATTER ||
           work->kind == HVI_KIND_ALLTOALL || work->kind == HVI_KIND_SEND;
}

#define KINDS                                                                                      \
    (1u << ENGINE_OPERAND_NONE | 1u << ENGINE_OPERAND_MAPPED | 1u << ENGINE_OPERAND_PROCESS)

static bool net_accepts(const struct engine_batch *batch)
{
    const struct engine_work *work = batch->works[0];

    if (batch->count != 1 || !work->span || (work->kinds & ~KINDS) != 0)
        return false;
    if (work->bytes == 0)
        return true;
    return moves(work) && work->ranks < HVI_RANKS_MAX && /* the staged memory is a member, too */
           (work->kind != HVI_KIND_SEND || work->span->nodes <= 2);
}

/* Makes sure that there is a bit for each lane of the node. */
static bool know(struct engine_wire *net, uint32_t node)
{
    if (node < net->asked_count)
        return true;
    size_t count = (size_t)node + 16;
    void *asked = realloc(net->asked, count);
    if (!asked)
        return false;
    net->asked = asked;
    memset(net->asked + net->asked_count, 0, count - net->asked_count);
    net->asked_count = (uint32_t)count;
    return true;
}

static bool ask_for_lanes(struct engine_wire *net, const struct engine_wire_work *work)
{
    for (uint32_t i = 0; i < work->run_count; i++) {
        uint32_t node = work->node[work->runs[i].peer], lane = work->runs[i].lane;
        if (!know(net, node))
            return false;
        if ((net->asked[node] >> lane & 1) != 0)
            continue;
        net->asked[node] |= (uint8_t)(1u << lane);
        if (net->config.lane_wanted)
            net->config.lane_wanted(net->config.owner, node, lane);
    }
    return true;
}

static int open_host(struct engine_wire *net)
{
    const struct engine_backend_config config = {
        .threads = 1, .post = engine_wire_stage_post, .user = net};
    int status = HVI_OK;

    pthread_mutex_lock(&net->host_lock);
    if (!net->host)
        status = engine_backend_host.open(&config, &net->host);
    pthread_mutex_unlock(&net->host_lock);
    return status;
}

/* NULL: it cannot even be followed. A work that only fails here still has its messages. */
static struct engine_wire_work *make_work(struct engine_wire *net, struct engine_batch *batch)
{
    struct engine_wire_work *work =
        engine_wire_work_new(batch, net->lanes, net->tools.stream_bytes);

    if (!work || !ask_for_lanes(net, work)) {
        if (work)
            engine_wire_work_free(work);
        return NULL;
    }
    work->idle_limit_ns = batch->answer_ns < UINT64_MAX / 2 ? 2 * batch->answer_ns : UINT64_MAX;
    work->culprit = work->node[work->here];
    if (!engine_wire_is_staged(batch->works[0]))
        return work;
    work->status = open_host(net);
    if (work->status == HVI_OK)
        work->stage = engine_wire_stage_new(net, work);
    if (work->status == HVI_OK && !work->stage)
        work->status = HVI_ERR_NO_MEMORY;
    return work;
}

/* An alltoall's bytes are one rank's. A staged work waits for others. */
static uint64_t bytes_of(const struct engine_wire_work *work)
{
    const uint32_t times = work->work->kind == HVI_KIND_ALLTOALL ? work->work->ranks : 1;

    return work->stage ? UINT64_MAX / 2 / ENGINE_WIRE_GATHER : work->work->bytes * times;
}

/* Those that were gathered. */
static void go(struct engine_wire *net)
{
    /* A few microseconds of work, and bytes that one look at the lanes may bring. */
    bool small = net->gathered <= ENGINE_WIRE_SMALL_BYTES;
    /* So much is over before another thread has been woken, and goes in pieces. */
    bool moderate = net->gathered <= ENGINE_WIRE_DRIVE_BYTES;

    net->gathered = 0;
    net->gathered_count = 0;
    pthread_mutex_lock(&net->lock);
    bool drives = net->driver == ENGINE_WIRE_NOBODY && moderate;
    if (drives)
        net->driver = ENGINE_WIRE_MAIN;
    engine_wire_call(net);
    pthread_mutex_unlock(&net->lock);
    if (net->drives) {
        engine_wire_leave(net);
    } else if (drives && small) {
        engine_wire_drive(net);
    } else if (drives) {
        net->drives = true;
        net->drive_idle = 0;
    }
}

static void hand_over(struct engine_wire *net, struct engine_wire_work *work)
{
    net->gathered += bytes_of(work);
    net->gathered_count++;
    pthread_mutex_lock(&net->lock);
    if (net->started_last)
        net->started_last->next = work;
    else
        net->started_first = work;
    net->started_last = work;
    pthread_mutex_unlock(&net->lock);
    if (!net->gathers || net->gathered_count == ENGINE_WIRE_GATHER)
        go(net);
}

void engine_wire_backend_gather(void *context)
{
    ((struct engine_wire *)context)->gathers = true;
}

void engine_wire_backend_go(void *context)
{
    struct engine_wire *net = context;

    net->gathers = false;
    if (net->gathered_count > 0)
        go(net);
}

/* The lanes are out of step from here on. */
static void lose_step(struct engine_wire *net)
{
    pthread_mutex_lock(&net->lock);
    net->no_memory = true;
    engine_wire_call(net);
    pthread_mutex_unlock(&net->lock);
}

static void end_at_once(struct engine_wire *net, struct engine_batch *batch, int status)
{
    batch->over = true;
    batch->status = status;
    net->config.post(net->config.user, batch);
}

static void net_start(void *context, struct engine_batch *batch)
{
    struct engine_wire *net = context;
    struct engine_wire_work *work = NULL;

    batch->fault = (struct engine_fault){.rank = -1};
    batch->over = false;
    if (!batch->works[0]->span->tentative &&
        (batch->works[0]->bytes == 0 || !moves(batch->works[0]))) {
        end_at_once(net, batch, HVI_OK);
        return;
    }
    if (run_thread(net))
        work = make_work(net, batch);
    if (!work) {
        bool runs = net->runs;
        if (!runs)
            snprintf(batch->text, sizeof batch->text,
                     "this node's engine could not start its thread for connections: out of "
                     "memory, threads or descriptors");
        end_at_once(net, batch, runs ? HVI_ERR_NO_MEMORY : HVI_ERR_LIMIT);
        if (runs)
            lose_step(net);
        return;
    }
    batch->state = work;
    hand_over(net, work);
}

void engine_wire_backend_busy(void *context)
{
    struct engine_wire *net = context;

    if (net->drives)
        engine_wire_leave(net);
}

static bool net_help(void *context)
{
    return engine_wire_help(context);
}

static void net_cancel(void *context, struct engine_batch *batch)
{
    struct engine_wire *net = context;

    pthread_mutex_lock(&net->lock);
    if (!batch->over) {
        ((struct engine_wire_work *)batch->state)->cancelled = true;
        net->cancels = true;
        engine_wire_call(net);
    }
    pthread_mutex_unlock(&net->lock);
}

static void net_watch(void *context)
{
    watch_host(context);
}

static bool net_silent(void *context, const struct engine_batch *batch,
                       struct engine_fault *fault_p)
{
    struct engine_wire *net = context;
    const struct engine_wire_work *work = NULL;
    bool silent = false;

    pthread_mutex_lock(&net->host_lock); /* keeps the stage */
    pthread_mutex_lock(&net->lock);
    if (!batch->over)
        work = batch->state;
    pthread_mutex_unlock(&net->lock);
    if (work && work->stage)
        silent =
            engine_backend_host.silent(net->host, engine_wire_stage_batch(work->stage), fault_p);
    pthread_mutex_unlock(&net->host_lock);
    return silent;
}

/* ---- news of nodes ---- */

static void tell(struct engine_wire *net, uint32_t node, uint32_t lane, int fd,
                 const struct hvi_seal_keys *keys, const char *text)
{
    struct engine_wire_news *news = malloc(sizeof *news);

    if (!news || !run_thread(net) || !know(net, node)) {
        free(news);
        if (fd >= 0)
            close(fd);
        if (net->runs)
            lose_step(net);
        return;
    }
    *news = (struct engine_wire_news){.node = node, .lane = lane, .fd = fd, .sealed = keys != NULL};
    if (keys)
        news->keys = *keys;
    snprintf(news->text, sizeof news->text, "%s", text);
    pthread_mutex_lock(&net->lock);
    if (net->news_last)
        net->news_last->next = news;
    else
        net->news_first = news;
    net->news_last = news;
    engine_wire_call(net);
    pthread_mutex_unlock(&net->lock);
}

void engine_wire_backend_lane(void *context, uint32_t node, uint32_t lane, int fd,
                              const struct hvi_seal_keys *keys, const char *name)
{
    struct engine_wire *net = context;

    if (lane >= net->lanes) {
        close(fd);
        return;
    }
    tell(net, node, lane, fd, keys, name);
    if (node < net->asked_count)
        net->asked[node] |= (uint8_t)(1u << lane);
}

void engine_wire_backend_lost(void *context, uint32_t node, const char *text)
{
    tell(context, node, 0, -1, NULL, text);
}

/* ---- tentative works ---- */

void engine_wire_backend_withdraw(void *context, uint64_t least, uint64_t top)
{
    struct engine_wire *net = context;

    pthread_mutex_lock(&net->lock);
    if (net->withdraw_top == 0 || net->withdraw_least > least)
        net->withdraw_least = least;
    net->withdraw_top = top;
    engine_wire_call(net);
    pthread_mutex_unlock(&net->lock);
}

bool engine_wire_backend_is_tentative(void *context, const struct engine_batch *batch)
{
    struct engine_wire *net = context;

    pthread_mutex_lock(&net->lock);
    const struct engine_wire_work *work = batch->over ? NULL : batch->state;
    bool waits = work && atomic_load_explicit(&work->waits, memory_order_relaxed);
    pthread_mutex_unlock(&net->lock);
    return waits;
}

const struct engine_backend engine_backend_net = {
    .name = "net",
    .open = net_open,
    .close = net_close,
    .accepts = net_accepts,
    .start = net_start,
    .help = net_help,
    .cancel = net_cancel,
    .watch = net_watch,
    .silent = net_silent,
};
