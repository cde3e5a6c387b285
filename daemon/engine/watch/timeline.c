/* SPDX-License-Identifier: Apache-2.0
 * The main thread's side of the timeline.
 *
 *   (none) --start--> opening --the file is ready: Ack--> running --stop--> closing --Ack--> (none)
 *                        \--it is not: Ack with the reason--> (none)
 *
 * An op belongs to the timeline in which its last rank came: op->timeline_epoch says so. What all
 * ranks had submitted before the start, or was not over at the stop, is left out as a whole; but what waits
 * for ranks on other nodes then is in it, as if its ranks had just come. The times
 * of one op never go back, because the viewer's rows are stacks. */
#include "daemon/engine/watch/timeline_nodes.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/utf8.h"
#include "daemon/engine/event/event.h"
#include "daemon/engine/exec/task.h"
#include "daemon/engine/order/order.h"
#include "daemon/engine/sessions/control.h"
#include "daemon/engine/slots/slots.h"
#include "daemon/engine/watch/watch.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define CLOSE_NS HVI_NS_SEC /* what a slow disk may take from the engine's end */

/* ---- answers ---- */

void engine_timeline_answer(struct engine_watch *watch, const struct engine_asker *asker,
                            int status, const char *text)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_ACK};

    if (asker->rank >= 0) {
        engine_control_answer(watch->sessions, asker, status, text);
        return;
    }
    msg.ack.request = asker->request;
    msg.ack.status = status;
    snprintf(msg.ack.text, sizeof msg.ack.text, "%s", text);
    int sent = watch->calls->send(watch->user, &msg);
    if (sent != HVI_OK && sent != HVI_ERR_CLOSED)
        HVI_LOG(HVI_LOG_DEBUG, "timeline", "ack-lost", hvi_status_text(sent), "job=%s",
                watch->start->job);
}

/* ---- records ---- */

static void publish(struct engine_timeline *timeline, uint64_t head)
{
    /* Sequentially consistent: see sleep_until_woken in timeline_writer.c. */
    atomic_store(&timeline->writer.ring->head, head);
    if (atomic_load(&timeline->writer.sleeping) &&
        atomic_exchange(&timeline->writer.sleeping, false))
        (void)eventfd_write(timeline->writer.wake_fd, 1);
}

bool engine_timeline_push(struct engine_timeline *timeline, struct timeline_record *record,
                          const void *payload, size_t payload_bytes)
{
    struct timeline_ring *ring = timeline->writer.ring;
    uint64_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);
    uint64_t tail = atomic_load_explicit(&ring->tail, memory_order_acquire);
    uint64_t at = head & (TIMELINE_RING_BYTES - 1);
    uint64_t bytes = (sizeof *record + payload_bytes + 7) & ~7ull;
    /* A skip is a record, too: there is always room for one behind the last record of a lap. */
    uint64_t skipped =
        TIMELINE_RING_BYTES - at < bytes + sizeof *record ? TIMELINE_RING_BYTES - at : 0;

    if (head + skipped + bytes - tail > TIMELINE_RING_BYTES)
        return false;
    if (skipped > 0) {
        struct timeline_record skip = {.what = TIMELINE_SKIP, .bytes = (uint32_t)skipped};
        memcpy(ring->bytes + at, &skip, sizeof skip);
        head += skipped;
        at = 0;
    }
    record->bytes = (uint32_t)bytes;
    record->payload = (uint16_t)payload_bytes;
    memcpy(ring->bytes + at, record, sizeof *record);
    if (payload_bytes > 0)
        memcpy(ring->bytes + at + sizeof *record, payload, payload_bytes);
    publish(timeline, head + bytes);
    return true;
}

void engine_timeline_tell_dropped(struct engine_timeline *timeline, uint64_t ts_ns)
{
    struct timeline_record dropped = {
        .what = TIMELINE_DROPPED, .ts_ns = ts_ns, .number = timeline->dropped};

    if (timeline->dropped > 0 && engine_timeline_push(timeline, &dropped, NULL, 0))
        timeline->dropped = 0;
}

static bool record(struct engine_timeline *timeline, struct timeline_record event,
                   const void *payload, size_t payload_bytes)
{
    engine_timeline_tell_dropped(timeline, event.ts_ns);
    if (timeline->dropped == 0 && engine_timeline_push(timeline, &event, payload, payload_bytes))
        return true;
    timeline->dropped++;
    return false;
}

/* A new row; 0: it could not be introduced. */
static uint32_t add_row(struct engine_timeline *timeline, const char *name, uint64_t ts_ns)
{
    const struct timeline_record event = {
        .what = TIMELINE_NAME, .ts_ns = ts_ns, .row = timeline->rows + 1};

    if (timeline->rows + 1 >= TIMELINE_ROWS ||
        !record(timeline, event, name, hvi_utf8_cut(name, strlen(name), TIMELINE_NAME_MAX)))
        return 0;
    return ++timeline->rows;
}

/* The tensor's row; 0: it could not be introduced. */
static uint32_t row_of(struct engine_timeline *timeline, struct engine_tensor *tensor,
                       uint64_t ts_ns)
{
    char name[TIMELINE_PREFIX + HVI_NAME_MAX + 1];
    size_t used = strlen(timeline->prefix);

    if (tensor->timeline_epoch == timeline->epoch)
        return tensor->timeline_row;
    memcpy(name, timeline->prefix, used);
    engine_tensor_name(tensor, name + used);
    const uint32_t row = add_row(timeline, name, ts_ns);
    if (row == 0)
        return 0;
    tensor->timeline_epoch = timeline->epoch;
    tensor->timeline_row = row;
    return row;
}

/* The op's own time goes on. */
static uint64_t step(struct engine_op *op, uint64_t now_ns)
{
    if (now_ns > op->timeline_ns)
        op->timeline_ns = now_ns;
    return op->timeline_ns;
}

static void begin(struct engine_timeline *timeline, struct engine_op *op, uint64_t now_ns,
                  enum timeline_label label)
{
    const struct timeline_record event = {
        .what = TIMELINE_BEGIN,
        .ts_ns = step(op, now_ns),
        .row = op->timeline_row,
        .label = (uint16_t)label,
        .kind = op->timeline_kind,
    };

    record(timeline, event, NULL, 0);
}

static void end(struct engine_timeline *timeline, struct engine_op *op, uint64_t now_ns,
                const struct timeline_shape *shape)
{
    const struct timeline_record event = {
        .what = TIMELINE_END, .ts_ns = step(op, now_ns), .row = op->timeline_row};

    record(timeline, event, shape, shape ? sizeof *shape : 0);
}

/* ---- what happens to ops ---- */

static bool is_ours(const struct engine_watch *watch, const struct engine_op *op)
{
    return watch->timeline && op->timeline_epoch == watch->timeline->epoch;
}

static void arrived(struct engine_timeline *timeline, struct engine_op *op,
                    const struct engine_part *part, uint64_t now_ns)
{
    const struct timeline_record event = {
        .what = TIMELINE_ARRIVED,
        .ts_ns = step(op, now_ns),
        .row = op->timeline_row,
        .number = (uint64_t)part->rank,
    };

    record(timeline, event, NULL, 0);
}

/* What the trainer copied before it submitted, on a line of its own: ranks copy at the same time. */
static void copied(struct engine_timeline *timeline, const struct engine_part *part)
{
    uint64_t ns = part->copy.copied_ns;

    if (ns == 0 || ns > part->arrived_ns - engine_request_of(part)->session->attached_ns)
        return;
    const struct timeline_record event = {
        .what = TIMELINE_COPIED,
        .ts_ns = part->arrived_ns - ns,
        .row = part->op->timeline_row,
        .number = (uint64_t)part->rank,
    };

    record(timeline, event, &ns, sizeof ns);
}

/* With the first rank that comes while the timeline runs; who came before comes at that moment. */
static bool begin_op(struct engine_timeline *timeline, const struct engine_part *part,
                     uint64_t now_ns)
{
    struct engine_op *op = part->op;

    op->timeline_row = row_of(timeline, part->tensor, now_ns);
    if (op->timeline_row == 0)
        return false;
    op->timeline_epoch = timeline->epoch;
    op->timeline_ns = 0;
    op->timeline_kind = part->copy.kind;
    begin(timeline, op, now_ns, TIMELINE_NEGOTIATE);
    for (uint32_t i = 0; op->parts_present > 1 && i < op->set->places; i++) {
        if (op->parts[i] && op->parts[i] != part)
            arrived(timeline, op, op->parts[i], now_ns);
    }
    return true;
}

void engine_timeline_part(struct engine_watch *watch, const struct engine_part *part)
{
    struct engine_op *op = part->op;

    if ((op->parts_present == 1 || !is_ours(watch, op)) &&
        !begin_op(watch->timeline, part, part->arrived_ns))
        return;
    arrived(watch->timeline, op, part, part->arrived_ns);
    copied(watch->timeline, part);
}

void engine_timeline_take_waiting(struct engine_watch *watch)
{
    const uint64_t now_ns = hvi_clock_ns();

    for (struct engine_op *op = watch->order->waiting_first; op; op = op->next) {
        const struct engine_part *part = engine_op_first_part(op);
        if ((op->state == ENGINE_OP_REPORTED || op->state == ENGINE_OP_SCHEDULED) && part &&
            begin_op(watch->timeline, part, now_ns))
            arrived(watch->timeline, op, part, now_ns);
    }
}

void engine_timeline_ready(struct engine_watch *watch, struct engine_op *op)
{
    if (!is_ours(watch, op))
        return;
    end(watch->timeline, op, watch->order->now_ns, NULL);
    begin(watch->timeline, op, watch->order->now_ns, TIMELINE_OP);
    begin(watch->timeline, op, watch->order->now_ns, TIMELINE_QUEUE);
}

void engine_timeline_started(struct engine_watch *watch, struct engine_op *op)
{
    if (!is_ours(watch, op))
        return;
    uint64_t now_ns = hvi_clock_ns();
    const bool is_of_gpus = watch->timeline->takes_gpus &&
                            engine_work_has(&engine_task_of(op)->work, ENGINE_OPERAND_DEVICE);
    end(watch->timeline, op, now_ns, NULL);
    begin(watch->timeline, op, now_ns, is_of_gpus ? TIMELINE_WORKER : TIMELINE_EXECUTE);
}

/* What it has begun as an op that executes ends: it is negotiated. */
void engine_timeline_returns(struct engine_watch *watch, struct engine_op *op)
{
    if (!is_ours(watch, op))
        return;
    end(watch->timeline, op, watch->order->now_ns, NULL);
    end(watch->timeline, op, watch->order->now_ns, NULL);
    begin(watch->timeline, op, watch->order->now_ns, TIMELINE_NEGOTIATE);
}

void engine_timeline_over(struct engine_watch *watch, struct engine_op *op, int status)
{
    const struct engine_part *part = engine_op_first_part(op);
    struct timeline_shape shape = {.status = status};

    if (!is_ours(watch, op))
        return;
    op->timeline_epoch = 0;
    if (part) {
        shape.dtype = part->copy.dtype;
        shape.ndim = part->copy.ndim;
        memcpy(shape.dims, part->copy.dims, sizeof shape.dims);
    }
    if (op->state == ENGINE_OP_READY || op->state == ENGINE_OP_EXECUTING)
        end(watch->timeline, op, watch->order->now_ns, NULL);
    end(watch->timeline, op, watch->order->now_ns, &shape);
}

/* The duration is the GPU's. Its end is taken for the moment at which the answer came, and is later where the entry before it in
 * that stream reaches further: a stream does one thing after the other. So an entry is late by no more than an answer was. */
void engine_timeline_took(struct engine_watch *watch, const struct engine_op *op,
                          const struct engine_gpu_time *time, const char *gpu)
{
    struct engine_timeline *timeline = watch->timeline;
    struct timeline_gpu *row = &timeline->gpus[time->worker];
    const struct timeline_took took = {.ns = time->took_ns, .stream = time->stream};
    const uint64_t now_ns = hvi_clock_ns(), start_ns = now_ns - took.ns;
    char name[TIMELINE_PREFIX + 128];

    if (!timeline->takes_gpus)
        return;
    snprintf(name, sizeof name, "%s%s", timeline->prefix, gpu);
    if (row->row == 0)
        row->row = add_row(timeline, name, now_ns);
    if (row->row == 0)
        return;
    const uint64_t free_ns = row->end_ns[took.stream];
    const struct timeline_record event = {
        .what = TIMELINE_TOOK,
        .ts_ns = start_ns > free_ns ? start_ns : free_ns,
        .row = row->row,
        .number = time->works,
        .label = took.stream == 0 ? TIMELINE_NCCL : TIMELINE_KERNELS,
        .kind = op->kind,
    };
    row->end_ns[took.stream] = event.ts_ns + took.ns;
    record(timeline, event, &took, sizeof took);
}

void engine_timeline_cycle(struct engine_watch *watch)
{
    const struct timeline_record event = {.what = TIMELINE_CYCLE, .ts_ns = watch->order->now_ns};

    if (watch->timeline->mark_cycles)
        record(watch->timeline, event, NULL, 0);
}

/* ---- start and stop ---- */

void engine_timeline_free(struct engine_timeline *timeline)
{
    sd_event_source_disable_unref(timeline->source);
    engine_timeline_nodes_free(timeline);
    if (timeline->writer.wake_fd >= 0)
        close(timeline->writer.wake_fd);
    if (timeline->writer.done_fd >= 0)
        close(timeline->writer.done_fd);
    free(timeline->writer.ring);
    free(timeline);
}

static void over(struct engine_watch *watch)
{
    struct engine_timeline *timeline = watch->timeline_alive;

    pthread_join(timeline->thread, NULL);
    engine_slots_withhold(watch->slots, false);
    watch->timeline = NULL;
    watch->timeline_alive = NULL;
    if (timeline->stop_pending)
        engine_timeline_answer(watch, &timeline->stopper, HVI_OK, "");
    engine_timeline_nodes_over(watch, timeline);
    HVI_LOG(HVI_LOG_INFO, "timeline", "timeline-stopped", "the file is complete", "job=%s path=%s",
            watch->start->job, timeline->path);
    engine_timeline_free(timeline);
}

static void tell_opened(struct engine_watch *watch, int status)
{
    struct engine_timeline *timeline = watch->timeline_alive;

    timeline->opened = true;
    if (status == HVI_OK && !timeline->stopping && engine_timeline_nodes_start(watch, timeline))
        return; /* they answer first */
    engine_timeline_begun(watch, status);
}

void engine_timeline_begun(struct engine_watch *watch, int status)
{
    struct engine_timeline *timeline = watch->timeline_alive;
    char text[HVI_TEXT_MAX + 1] = "";

    timeline->start_pending = false;
    if (status == HVI_OK) {
        HVI_LOG(HVI_LOG_INFO, "timeline", "timeline-started", "writing", "job=%s path=%s",
                watch->start->job, timeline->path);
    } else {
        snprintf(text, sizeof text, "'%s' cannot take a timeline: %s", timeline->path,
                 timeline->writer.why);
        HVI_LOG(HVI_LOG_WARN, "timeline", "timeline-refused", text, "job=%s", watch->start->job);
    }
    engine_timeline_answer(watch, &timeline->starter, status, text);
}

static int on_done(sd_event_source *source, int fd, uint32_t events, void *user)
{
    struct engine_watch *watch = user;
    struct engine_timeline *timeline = watch->timeline_alive;
    eventfd_t value;

    (void)source, (void)events;
    (void)eventfd_read(fd, &value);
    bool closed = atomic_load_explicit(&timeline->writer.closed, memory_order_acquire);
    int status = atomic_load_explicit(&timeline->writer.opened, memory_order_acquire);
    /* Who is refused may try another file at once: not before the writer has ended. */
    if (timeline->start_pending && !timeline->opened &&
        (status == HVI_OK || (closed && status != HVI_INPROGRESS)))
        tell_opened(watch, status);
    if (closed)
        over(watch);
    return 0;
}

static int start_thread(struct engine_timeline *timeline)
{
    sigset_t all, before;

    sigfillset(&all); /* SIGXFSZ too: a file size limit is an error of that write */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&timeline->thread, NULL, engine_timeline_write, &timeline->writer);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0)
        return HVI_ERR_LIMIT;
    pthread_setname_np(timeline->thread, "hvd-timeline");
    return HVI_OK;
}

static int timeline_new(struct engine_watch *watch, int fd, const char *path,
                        struct engine_timeline **timeline_p)
{
    struct engine_timeline *timeline = calloc(1, sizeof *timeline);
    int status = HVI_ERR_LIMIT;

    if (!timeline)
        return HVI_ERR_NO_MEMORY;
    snprintf(timeline->path, sizeof timeline->path, "%s", path);
    timeline->watch = watch;
    timeline->epoch = ++watch->timeline_epochs;
    timeline->takes_gpus = true;
    engine_timeline_nodes_name(watch, timeline);
    timeline->writer = (struct timeline_writer){
        .ring = aligned_alloc(64, sizeof *timeline->writer.ring),
        .file_fd = fd,
        .wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
        .done_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
        .start_ns = hvi_clock_ns(),
        .path = timeline->path,
        .opened = HVI_INPROGRESS,
    };
    if (!timeline->writer.ring || timeline->writer.wake_fd < 0 || timeline->writer.done_fd < 0)
        goto failed;
    atomic_init(&timeline->writer.ring->head, 0);
    atomic_init(&timeline->writer.ring->tail, 0);
    if (sd_event_add_io(watch->event, &timeline->source, timeline->writer.done_fd, EPOLLIN, on_done,
                        watch) < 0)
        goto failed;
    status = start_thread(timeline);
    if (status != HVI_OK)
        goto failed;
    *timeline_p = timeline;
    return HVI_OK;

failed:
    engine_timeline_free(timeline);
    return status;
}

void engine_timeline_start(struct engine_watch *watch, const struct engine_asker *asker, int fd,
                           const char *path, bool mark_cycles)
{
    char text[HVI_TEXT_MAX + 1];

    if (watch->timeline_alive) {
        snprintf(text, sizeof text, "job '%s' writes a timeline already, to '%s': stop it first",
                 watch->start->job, watch->timeline_alive->path);
        engine_timeline_answer(watch, asker, HVI_ERR_EXISTS, text);
        close(fd);
        return;
    }
    int status = timeline_new(watch, fd, path, &watch->timeline_alive);
    if (status != HVI_OK) {
        engine_timeline_answer(watch, asker, status,
                               "the engine is out of memory, threads or descriptors");
        close(fd);
        return;
    }
    watch->timeline = watch->timeline_alive;
    watch->timeline->mark_cycles = mark_cycles;
    watch->timeline->starter = *asker;
    watch->timeline->start_pending = true;
    engine_slots_withhold(watch->slots, true); /* what ranks do by themselves is not seen */
    engine_timeline_take_waiting(watch);
}

void engine_timeline_begin_stop(struct engine_watch *watch)
{
    struct engine_timeline *timeline = watch->timeline_alive;
    engine_timeline_tell_dropped(timeline, hvi_clock_ns());
    atomic_store(&timeline->writer.dropped, timeline->dropped);
    watch->timeline = NULL;
    engine_slots_withhold(watch->slots, false);
    timeline->stopping = true;
    atomic_store(&timeline->writer.stop, true);
    (void)eventfd_write(timeline->writer.wake_fd, 1);
}

void engine_timeline_stop(struct engine_watch *watch, const struct engine_asker *asker)
{
    struct engine_timeline *timeline = watch->timeline_alive;

    if (!timeline) {
        engine_timeline_answer(watch, asker, HVI_OK, "");
        return;
    }
    if (timeline->stopping) {
        engine_timeline_answer(watch, asker, HVI_ERR_BUSY, "the timeline is being stopped already");
        return;
    }
    timeline->stop_pending = true;
    timeline->stopper = *asker;
    timeline->stopping = true;
    if (!engine_timeline_nodes_stop(watch, timeline))
        engine_timeline_begin_stop(watch);
}

void engine_timeline_close(struct engine_watch *watch)
{
    struct engine_timeline *timeline = watch->timeline_alive;
    struct timespec until;

    if (!timeline)
        return;
    if (timeline->nodes.guest) {
        watch->timeline = watch->timeline_alive = NULL;
        engine_timeline_free(timeline);
        return;
    }
    if (!atomic_load(&timeline->writer.stop))
        engine_timeline_begin_stop(watch);
    watch->timeline = watch->timeline_alive = NULL;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += (time_t)(CLOSE_NS / HVI_NS_SEC);
    if (pthread_timedjoin_np(timeline->thread, NULL, &until) == 0) {
        engine_timeline_free(timeline);
        return;
    }
    /* Its disk does not answer: the thread keeps what it uses, and ends with the process. */
    HVI_LOG(HVI_LOG_WARN, "timeline", "timeline-stuck", "the file could not be completed in time",
            "job=%s path=%s", watch->start->job, timeline->path);
    timeline->source = sd_event_source_disable_unref(timeline->source);
    engine_timeline_nodes_free(timeline);
    pthread_detach(timeline->thread);
}
