/* SPDX-License-Identifier: Apache-2.0
 * Streams. A stream's work goes, in the order of the calls, into one of CUDA_DEVICE_MAX_CONNECTIONS queues of its device; each
 * queue has a thread and works strictly in order.
 *
 * A GPU has no thread to be woken, and cuStreamSynchronize polls. So the queues' threads and those that wait for a stream look for
 * LOOK_NS, with yields, before they sleep: else each call would bear the price of a futex that no driver has.
 *
 * Rules. A gated stream blocks those that share its connection (CUDA guide; P8). Stream i has connection i modulo their number,
 * which is read when the first context is made (P8: an H100 gives it another one as long as any is free; the fake is harsher).
 * The default stream waits for all that are not "non-blocking", and they for it (CUDA guide). After a sticky error nothing runs any more (P9). A stream of another context is no stream (cuda.h). A capturing
 * stream takes no work, and a memory operation in it is the test's fault: it would run when the graph does (section 2.5). A capture
 * in global mode forbids registrations to all threads of that mode (cuda.h).
 * cuIpcCloseMemHandle, cuMemFree and cuMemHostUnregister wait for all streams of the process, gated ones as well. While one
 * waits, launches, copies, allocations and registrations of other threads wait for it (P2, P11: an H100, driver 580). */
#include "tests/fakegpu/stream.h"

#include "base/yield.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define QUEUES    32
#define PINS_MORE 16
#define LOOK_NS   100000u /* as long as the engine and the ranks look */

struct work {
    struct work *next;
    struct hvi_cu_stream *stream;
    void (*run)(void *);
    struct range **pins;
    size_t pin_count;
    bool is_wrong; /* a kernel with memory that its device has not */
    _Alignas(16) char data[];
};

/* A thread that waits for a stream. It is woken once, when that is done, as by a driver. */
struct waiter {
    struct waiter *next;
    const struct hvi_cu_stream *stream;
    uint64_t number;
    pthread_cond_t is_done;
};

struct queue {
    pthread_cond_t more;
    struct work *first, **end;
    _Atomic uint64_t appended; /* works, ever; also looked at without the lock */
    bool has_thread;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* all of the following */
static struct waiter *waiters;
static pthread_cond_t closed = PTHREAD_COND_INITIALIZER;
static struct queue queues[FAKE_DEVICES][QUEUES];
static unsigned made[FAKE_DEVICES];
static struct hvi_cu_stream *streams;
static unsigned connections;
static unsigned waiting_closes; /* calls of fake_close_waits that wait */
static _Thread_local struct hvi_cu_stream *of_thread[FAKE_DEVICES];

uint64_t fake_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* A GPU sees a word at once: a nap, which is 70 us and more with the kernel's slack, comes after a look. */
void fake_nap(uint64_t since_ns)
{
    uint64_t ns = fake_now_ns() - since_ns;

    if (ns < LOOK_NS && hvi_yield())
        return;
    ns /= 8;
    ns = ns < 20000 ? 20000 : ns > 1000000 ? 1000000 : ns;
    nanosleep(&(struct timespec){.tv_nsec = (long)ns}, NULL);
}

void fake_stream_connect(void)
{
    const char *text = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    const int wish = text == NULL ? 8 : atoi(text), wanted = fake_fault("connections");

    if (wanted > 0 && wish != wanted)
        fake_blame("CUDA_DEVICE_MAX_CONNECTIONS is %d, and not %d", wish, wanted);
    pthread_mutex_lock(&lock);
    if (connections == 0)
        connections = wish < 1 ? 1 : wish > QUEUES ? QUEUES : (unsigned)wish;
    pthread_mutex_unlock(&lock);
}

/* --- what the threads of the queues do --- */

/* Needs the lock. */
static void put_stream(struct hvi_cu_stream *stream)
{
    if (--stream->references > 0)
        return;
    for (struct hvi_cu_stream **at = &streams; *at != NULL; at = &(*at)->next) {
        if (*at == stream) {
            *at = stream->next;
            break;
        }
    }
    free(stream);
}

static void run_work(struct work *work)
{
    const int delay_us = fake_fault("delay");

    if (delay_us > 0)
        nanosleep(&(struct timespec){delay_us / 1000000, delay_us % 1000000 * 1000L}, NULL);
    if (fake_broken() != HVI_CU_OK)
        return;
    if (work->is_wrong)
        fake_break(HVI_CU_ILLEGAL_ADDRESS);
    else
        work->run(work->data);
}

static void free_work(struct work *work)
{
    for (size_t i = 0; i < work->pin_count; i++)
        fake_unpin(work->pins[i]);
    free(work->pins);
    free(work);
}

/* Needs the lock. */
static void wake_waiters(const struct hvi_cu_stream *stream)
{
    for (struct waiter *waiter = waiters; waiter != NULL; waiter = waiter->next) {
        if (waiter->stream == stream && stream->finished >= waiter->number)
            pthread_cond_signal(&waiter->is_done);
    }
}

/* Whether to look again, after a yield: for LOOK_NS, unless yields do not pay. */
static bool looks_on(uint64_t since_ns)
{
    return fake_now_ns() - since_ns < LOOK_NS && hvi_yield();
}

/* Needs the lock, which it gives up meanwhile, and a reference to the stream. */
static void await(const struct hvi_cu_stream *stream, uint64_t number)
{
    struct waiter waiter = {
        .stream = stream, .number = number, .is_done = PTHREAD_COND_INITIALIZER};
    const uint64_t since_ns = fake_now_ns();

    pthread_mutex_unlock(&lock);
    while (stream->finished < number && looks_on(since_ns))
        ;
    pthread_mutex_lock(&lock);
    waiter.next = waiters;
    waiters = &waiter;
    while (stream->finished < number)
        pthread_cond_wait(&waiter.is_done, &lock);
    for (struct waiter **at = &waiters; *at != NULL; at = &(*at)->next) {
        if (*at == &waiter) {
            *at = waiter.next;
            break;
        }
    }
    pthread_cond_destroy(&waiter.is_done);
}

/* Needs the lock, which it gives up meanwhile. Of the queue's works the thread has taken `taken`. */
static void await_work(struct queue *queue, uint64_t taken)
{
    const uint64_t since_ns = fake_now_ns();

    pthread_mutex_unlock(&lock);
    while (queue->appended == taken && looks_on(since_ns))
        ;
    pthread_mutex_lock(&lock);
    while (queue->first == NULL)
        pthread_cond_wait(&queue->more, &lock);
}

static void *serve(void *argument)
{
    struct queue *queue = argument;

    pthread_setname_np(pthread_self(), "fakegpu"); /* so that its CPU time is told apart */
    pthread_mutex_lock(&lock);
    for (uint64_t taken = 0;; taken++) {
        if (queue->first == NULL)
            await_work(queue, taken);
        struct work *work = queue->first;
        struct hvi_cu_stream *stream = work->stream;
        queue->first = work->next;
        if (queue->first == NULL)
            queue->end = &queue->first;
        pthread_mutex_unlock(&lock);
        run_work(work);
        free_work(work);
        pthread_mutex_lock(&lock);
        stream->finished++;
        wake_waiters(stream);
        put_stream(stream);
    }
    return NULL;
}

/* --- streams --- */

/* Needs the lock. */
static struct queue *next_queue(int physical)
{
    struct queue *queue = &queues[physical][made[physical]++ % connections];
    pthread_attr_t detached;
    pthread_t thread;

    if (!queue->has_thread) {
        queue->end = &queue->first;
        pthread_cond_init(&queue->more, NULL);
        pthread_attr_init(&detached);
        pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
        if (pthread_create(&thread, &detached, serve, queue) != 0)
            fake_blame("no thread for a queue");
        pthread_attr_destroy(&detached);
        queue->has_thread = true;
    }
    return queue;
}

/* Needs the lock. */
static struct hvi_cu_stream *make_stream(struct hvi_cu_context *context, bool is_blocking)
{
    struct hvi_cu_stream *stream = calloc(1, sizeof(*stream));

    if (stream == NULL)
        fake_blame("no memory for a stream");
    *stream = (struct hvi_cu_stream){.next = streams,
                                     .context = context,
                                     .queue = next_queue(context->physical),
                                     .references = 1,
                                     .is_blocking = is_blocking};
    streams = stream;
    return stream;
}

/* Needs the lock. */
static struct hvi_cu_stream *default_stream(hvi_cu_stream handle)
{
    struct hvi_cu_context *context = fake_context();
    struct hvi_cu_stream **stream =
        (uintptr_t)handle == 2 ? &of_thread[context->ordinal] : &context->legacy;

    if (*stream == NULL)
        *stream = make_stream(context, (uintptr_t)handle == 2);
    return *stream;
}

/* Needs the lock, and a context. */
static struct hvi_cu_stream *find_stream(hvi_cu_stream handle)
{
    if ((uintptr_t)handle <= 2)
        return default_stream(handle);
    for (struct hvi_cu_stream *stream = streams; stream != NULL; stream = stream->next) {
        if (stream == handle && !stream->is_destroyed)
            return stream->context == fake_context() ? stream : NULL;
    }
    return NULL;
}

int fake_stream_find(hvi_cu_stream handle, struct hvi_cu_stream **stream_p)
{
    const int error = fake_ready();

    if (error != HVI_CU_OK)
        return error;
    pthread_mutex_lock(&lock);
    *stream_p = find_stream(handle);
    pthread_mutex_unlock(&lock);
    return *stream_p == NULL ? FAKE_INVALID_HANDLE : HVI_CU_OK;
}

int cu_stream_create(hvi_cu_stream *stream_p, unsigned flags)
{
    const int error = fake_ready();

    if (error != HVI_CU_OK || flags > HVI_CU_STREAM_NON_BLOCKING)
        return error != HVI_CU_OK ? error : HVI_CU_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    *stream_p = make_stream(fake_context(), flags == 0);
    pthread_mutex_unlock(&lock);
    return HVI_CU_OK;
}

/* What it has is done all the same (cuda.h). */
int cu_stream_destroy(hvi_cu_stream handle)
{
    struct hvi_cu_stream *stream;
    const int error = fake_stream_find(handle, &stream);

    if (error != HVI_CU_OK || (uintptr_t)handle <= 2)
        return error != HVI_CU_OK ? error : FAKE_INVALID_HANDLE;
    pthread_mutex_lock(&lock);
    stream->is_destroyed = true;
    put_stream(stream);
    pthread_mutex_unlock(&lock);
    return HVI_CU_OK;
}

int cu_stream_query(hvi_cu_stream handle)
{
    struct hvi_cu_stream *stream;
    const int error = fake_stream_find(handle, &stream);

    if (error != HVI_CU_OK)
        return error;
    pthread_mutex_lock(&lock);
    const bool is_done = stream->finished == stream->queued;
    pthread_mutex_unlock(&lock);
    return fake_broken() != HVI_CU_OK ? fake_broken() : is_done ? HVI_CU_OK : HVI_CU_NOT_READY;
}

/* Needs the lock. */
static void wait_for(struct hvi_cu_stream *stream, uint64_t number)
{
    stream->references++;
    await(stream, number);
    put_stream(stream);
}

int cu_stream_synchronize(hvi_cu_stream handle)
{
    struct hvi_cu_stream *stream;
    const int error = fake_stream_find(handle, &stream);

    if (error != HVI_CU_OK)
        return error;
    pthread_mutex_lock(&lock);
    wait_for(stream, stream->queued);
    pthread_mutex_unlock(&lock);
    return fake_broken();
}

/* Of this context, or of all. The list may change while a stream is waited for, so it is begun again. */
static void wait_for_all(const struct hvi_cu_context *context)
{
    pthread_mutex_lock(&lock);
    for (struct hvi_cu_stream *stream = streams; stream != NULL;) {
        if ((context == NULL || stream->context == context) && stream->finished < stream->queued) {
            wait_for(stream, stream->queued);
            stream = streams;
        } else {
            stream = stream->next;
        }
    }
    pthread_mutex_unlock(&lock);
}

int cu_context_synchronize(void)
{
    const int error = fake_ready();

    if (error == HVI_CU_OK)
        wait_for_all(fake_context());
    return error != HVI_CU_OK ? error : fake_broken();
}

void fake_may_synchronize(const char *call)
{
    if (fake_says("sync", "strict") || fake_says("sync", call))
        wait_for_all(NULL);
}

void fake_close_waits(void)
{
    if (fake_says("sync", "none"))
        return;
    pthread_mutex_lock(&lock);
    waiting_closes++;
    pthread_mutex_unlock(&lock);
    wait_for_all(NULL);
    pthread_mutex_lock(&lock);
    if (--waiting_closes == 0)
        pthread_cond_broadcast(&closed);
    pthread_mutex_unlock(&lock);
}

void fake_await_closes(void)
{
    pthread_mutex_lock(&lock);
    while (waiting_closes > 0)
        pthread_cond_wait(&closed, &lock);
    pthread_mutex_unlock(&lock);
}

int cu_stream_context(hvi_cu_stream handle, hvi_cu_context *context_p)
{
    struct hvi_cu_stream *stream;
    const int error = fake_ready();

    if (error != HVI_CU_OK)
        return error;
    if ((uintptr_t)handle <= 2) {
        *context_p = fake_context();
        return HVI_CU_OK;
    }
    pthread_mutex_lock(&lock); /* also of another context: this is how a caller learns that */
    for (stream = streams; stream != NULL && (stream != handle || stream->is_destroyed);)
        stream = stream->next;
    if (stream != NULL)
        *context_p = stream->context;
    pthread_mutex_unlock(&lock);
    return stream == NULL ? FAKE_INVALID_HANDLE : HVI_CU_OK;
}

/* --- capture: nothing is recorded --- */

static _Atomic unsigned global_captures;
static _Thread_local int capture_mode = FAKE_CAPTURE_GLOBAL;

static int set_capturing(hvi_cu_stream handle, bool is_capturing, bool is_global)
{
    struct hvi_cu_stream *stream;
    const int error = fake_stream_find(handle, &stream);

    if (error != HVI_CU_OK)
        return error;
    global_captures += (unsigned)is_global - (unsigned)stream->is_global;
    stream->is_global = is_global;
    stream->is_capturing = is_capturing;
    return error;
}

int cu_capture_begin(hvi_cu_stream stream, int mode)
{
    return set_capturing(stream, true, mode == FAKE_CAPTURE_GLOBAL);
}

int cu_capture_end(hvi_cu_stream stream, void **graph_p)
{
    *graph_p = NULL;
    return set_capturing(stream, false, false);
}

int cu_capture_mode(int *mode)
{
    const int before = capture_mode;

    if (*mode < 0 || *mode > HVI_CU_CAPTURE_RELAXED)
        return HVI_CU_INVALID_VALUE;
    capture_mode = *mode;
    *mode = before;
    return HVI_CU_OK;
}

bool fake_is_captured(void)
{
    return capture_mode == FAKE_CAPTURE_GLOBAL && global_captures > 0;
}

int cu_stream_capturing(hvi_cu_stream handle, int *status_p)
{
    struct hvi_cu_stream *stream;
    const int error = fake_stream_find(handle, &stream);

    if (error == HVI_CU_OK)
        *status_p = stream->is_capturing;
    return error;
}

/* --- work --- */

/* Needs the lock. Its queue's thread is to be woken. */
static void append(struct hvi_cu_stream *stream, struct work *work)
{
    struct queue *queue = stream->queue;

    work->stream = stream;
    stream->queued++;
    stream->references++;
    *queue->end = work;
    queue->end = &work->next;
    queue->appended++;
}

static struct work *make_work(void (*run)(void *), const void *data, size_t bytes)
{
    struct work *work = calloc(1, sizeof(*work) + bytes);

    if (work == NULL)
        fake_blame("no memory for work");
    work->run = run;
    if (bytes > 0)
        memcpy(work->data, data, bytes);
    return work;
}

struct after {
    struct hvi_cu_stream
        *stream; /* which is never freed before this has run: the work before it holds it */
    uint64_t number;
};

static void run_after(void *data)
{
    struct after *after = data;

    pthread_mutex_lock(&lock);
    await(after->stream, after->number);
    put_stream(after->stream);
    pthread_mutex_unlock(&lock);
}

/* Needs the lock. `stream` goes on when `other` has done what it has now. */
static void follow(struct hvi_cu_stream *stream, struct hvi_cu_stream *other)
{
    if (other == NULL || other == stream || other->finished == other->queued)
        return;
    other->references++;
    append(stream,
           make_work(run_after, &(struct after){other, other->queued}, sizeof(struct after)));
}

/* Needs the lock. */
static void follow_default(struct hvi_cu_stream *stream)
{
    struct hvi_cu_context *context = stream->context;

    if (stream == context->legacy) {
        for (struct hvi_cu_stream *other = streams; other != NULL; other = other->next) {
            if (other->is_blocking && other->context == context)
                follow(stream, other);
        }
    } else if (stream->is_blocking) {
        follow(stream, context->legacy);
    }
}

static void pin(struct work *work, struct range *range)
{
    if (work->pin_count % PINS_MORE == 0) {
        work->pins = realloc(work->pins, (work->pin_count + PINS_MORE) * sizeof(struct range *));
        if (work->pins == NULL)
            fake_blame("no memory for pins");
    }
    work->pins[work->pin_count++] = range;
}

/* Whether the device may use that memory. */
static bool has_range(const struct hvi_cu_stream *stream, const struct range *range,
                      bool is_peer_fine)
{
    const int device = fake_range_device(range), own = stream->context->physical;

    return device < 0 || device == own || (is_peer_fine && fake_linked(own, device));
}

/* A span may lie in several mappings, one behind the other. */
static bool pin_span(struct work *work, const struct hvi_cu_stream *stream,
                     const struct fakegpu_span *span, bool is_peer_fine)
{
    for (size_t at = 0; at < span->bytes;) {
        struct range *range = fake_pin(span->address + at, "work");
        if (range == NULL)
            return false;
        pin(work, range);
        if (!has_range(stream, range, is_peer_fine))
            return false;
        at += fake_range_left(range, span->address + at);
    }
    return true;
}

static bool pin_spans(struct work *work, const struct hvi_cu_stream *stream,
                      const struct fakegpu_span *spans, size_t count, bool is_peer_fine)
{
    for (size_t i = 0; i < count; i++) {
        if (!pin_span(work, stream, &spans[i], is_peer_fine))
            return false;
    }
    return true;
}

static int enqueue(struct hvi_cu_stream *stream, struct work *work)
{
    struct queue *queue = stream->queue; /* which stays; the stream may be gone when this is done */

    pthread_mutex_lock(&lock);
    follow_default(stream);
    append(stream, work);
    pthread_mutex_unlock(&lock);
    pthread_cond_signal(&queue->more);
    return HVI_CU_OK;
}

static int enqueue_spans(hvi_cu_stream handle, struct work *work, const struct fakegpu_span *spans,
                         size_t count, bool is_peer_fine)
{
    struct hvi_cu_stream *stream;
    int error = fake_stream_find(handle, &stream);

    if (error == HVI_CU_OK && stream->is_capturing)
        error = FAKE_CAPTURE_UNSUPPORTED;
    if (error == HVI_CU_OK && !pin_spans(work, stream, spans, count, is_peer_fine))
        error = HVI_CU_INVALID_VALUE;
    if (error == HVI_CU_OK)
        return enqueue(stream, work);
    free_work(work);
    return error;
}

int fake_enqueue(hvi_cu_stream stream, void (*run)(void *), const void *data, size_t bytes,
                 const struct fakegpu_span *spans, size_t count)
{
    return enqueue_spans(stream, make_work(run, data, bytes), spans, count, false);
}

int fake_enqueue_copy(hvi_cu_stream stream, void (*run)(void *), const void *data, size_t bytes,
                      const struct fakegpu_span *spans, size_t count)
{
    fake_await_closes();
    return enqueue_spans(stream, make_work(run, data, bytes), spans, count, true);
}

int fake_enqueue_kernel(hvi_cu_stream handle, void (*run)(void *), const void *data, size_t bytes,
                        const struct fakegpu_span *spans, size_t count)
{
    struct hvi_cu_stream *stream;
    int error = fake_stream_find(handle, &stream);

    if (error != HVI_CU_OK || stream->is_capturing)
        return error != HVI_CU_OK ? error : FAKE_CAPTURE_UNSUPPORTED;
    fake_await_closes();
    struct work *work = make_work(run, data, bytes);
    work->is_wrong = !pin_spans(work, stream, spans, count, false);
    return enqueue(stream, work);
}
