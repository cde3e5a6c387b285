/* SPDX-License-Identifier: Apache-2.0
 * See flight.h.
 *
 * The thread sleeps on the session's event descriptor while kernels are in flight, so it takes no core
 * from the model, and on a condition while none are. A flight belongs to the thread that has submitted
 * it until it is put into the inbox; from then on to the hub's thread.
 *
 * The lock is never held across a call to TensorFlow or into the library. */
#include "python/native/flight.h"

#include "python/native/done.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define AT_ONCE_NS                                                                                 \
    (50 * 1000)           /* an op that is alone is waited for so long before the thread gets it */
#define SLICE_MS      100 /* how often the thread looks although nothing was announced */
#define ROOM_MS       1   /* as above, while a flight waits for room */
#define TEXT_MAX      4096
#define NOT_OPEN_TEXT "Horovod has not been initialized; use hvd.init()."
#define CLOSED_TEXT   "Horovod has been shut down while this op was in flight; call hvd.init() again."

struct flight {
    const struct flight_plan *plan;
    TF_OpKernelContext *context;
    struct done done;
    int64_t *splits;
    bool stays; /* done cannot be kept: the submitting thread waits */
    bool submitted;
    struct flight *next; /* in the inbox, or waiting for room */
    int count;
    struct flight_part parts[];
};

struct queue {
    struct flight *first, *last;
};

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct hvd_session *session;
    pid_t pid;    /* that attached it */
    int users;    /* threads inside the session */
    bool thread;  /* there is one */
    bool closed;  /* the session: what is in flight fails */
    int aloft;    /* flights that the thread has, the inbox included */
    int roomless; /* of these, not submitted yet */
    struct queue inbox;
} hub = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void push(struct queue *queue, struct flight *flight)
{
    flight->next = NULL;
    if (queue->first)
        queue->last->next = flight;
    else
        queue->first = flight;
    queue->last = flight;
}

static struct flight *pop(struct queue *queue)
{
    struct flight *flight = queue->first;
    if (flight)
        queue->first = flight->next;
    return flight;
}

/* ---- session ---- */

void hvd_tf_attach(struct hvd_session *session)
{
    if (hub.pid !=
        getpid()) { /* also a forked child: thread, flights and the lock's holder are its parent's */
        pthread_mutex_init(&hub.lock, NULL);
        pthread_cond_init(&hub.changed, NULL);
        hub.thread = false;
        hub.users = hub.aloft = hub.roomless = 0;
        hub.inbox.first = NULL;
    }
    pthread_mutex_lock(&hub.lock);
    hub.session = session;
    hub.closed = false;
    hub.pid = getpid();
    pthread_mutex_unlock(&hub.lock);
}

void hvd_tf_park(void)
{
    if (hub.pid != getpid())
        return;
    pthread_mutex_lock(&hub.lock);
    hub.session = NULL;
    while (hub.users > 0)
        pthread_cond_wait(&hub.changed, &hub.lock);
    pthread_mutex_unlock(&hub.lock);
}

void hvd_tf_detach(void)
{
    if (hub.pid != getpid())
        return;
    pthread_mutex_lock(&hub.lock);
    hub.closed = true;
    pthread_cond_broadcast(&hub.changed);
    while (hub.aloft > 0)
        pthread_cond_wait(&hub.changed, &hub.lock);
    pthread_mutex_unlock(&hub.lock);
}

struct hvd_session *flight_enter(void)
{
    if (hub.pid != getpid())
        return NULL;
    pthread_mutex_lock(&hub.lock);
    struct hvd_session *session = hub.session;
    hub.users += session != NULL;
    pthread_mutex_unlock(&hub.lock);
    return session;
}

void flight_leave(void)
{
    pthread_mutex_lock(&hub.lock);
    hub.users--;
    if (!hub.session)
        pthread_cond_broadcast(&hub.changed);
    pthread_mutex_unlock(&hub.lock);
}

/* ---- one flight ---- */

struct flight *flight_new(const struct flight_plan *plan, TF_OpKernelContext *context,
                          TF_AsyncOpKernelDoneCallback *done, int count)
{
    struct flight *flight =
        calloc(1, sizeof(*flight) + (size_t)(count ? count : 1) * sizeof(flight->parts[0]));
    if (!flight)
        return NULL;
    flight->plan = plan;
    flight->context = context;
    flight->count = count;
    flight->stays = !done_take(&flight->done, done);
    return flight;
}

struct flight_part *flight_parts(struct flight *flight)
{
    return flight->parts;
}

bool flight_set_splits(struct flight *flight, const int64_t *splits, int count)
{
    flight->splits = malloc((size_t)(count ? count : 1) * sizeof(*splits));
    if (flight->splits)
        memcpy(flight->splits, splits, (size_t)count * sizeof(*splits));
    return flight->splits != NULL;
}

/* Tells TensorFlow that the kernel is over. */
static void end(struct flight *flight)
{
    struct done done = flight->done;
    for (int i = 0; i < flight->count; i++) {
        if (flight->parts[i].in)
            TF_DeleteTensor(flight->parts[i].in);
        if (flight->parts[i].out)
            TF_DeleteTensor(flight->parts[i].out);
    }
    free(flight->splits);
    free(flight);
    done_run(&done);
}

static void report(struct flight *flight, TF_Code code, const char *text)
{
    char sentence[TEXT_MAX];
    TF_Status *status = TF_NewStatus();
    snprintf(sentence, sizeof(sentence), "%s: %s", flight->plan->title, text);
    TF_SetStatus(status, code, sentence);
    TF_OpKernelContext_Failure(flight->context, status);
    TF_DeleteStatus(status);
}

void flight_fail(struct flight *flight, TF_Code code, const char *text)
{
    report(flight, code, text);
    end(flight);
}

/* TensorFlow's class of an error. What the ranks cannot recover from is UNKNOWN, as with Horovod, whose
 * elastic mode looks for that; ABORTED or UNAVAILABLE would make a MonitoredSession try again for ever. */
static TF_Code code_of(int status)
{
    switch (status) {
    case HVD_ERR_INVALID:
    case HVD_ERR_NOT_FOUND:
    case HVD_ERR_TOO_SMALL:
        return TF_INVALID_ARGUMENT;
    case HVD_ERR_MISMATCH:
    case HVD_ERR_DUPLICATE_NAME:
    case HVD_ERR_FORKED:
    case HVD_ERR_BUSY:
        return TF_FAILED_PRECONDITION;
    case HVD_ERR_UNSUPPORTED:
        return TF_UNIMPLEMENTED;
    case HVD_ERR_CANCELLED:
        return TF_CANCELLED;
    case HVD_ERR_STALLED:
        return TF_DEADLINE_EXCEEDED;
    case HVD_ERR_NO_MEMORY:
    case HVD_ERR_LIMIT:
        return TF_RESOURCE_EXHAUSTED;
    default:
        return TF_UNKNOWN;
    }
}

bool flight_dtype(TF_DataType dtype, enum hvd_dtype *dtype_p)
{
    static const struct {
        TF_DataType tensorflow;
        enum hvd_dtype hvd;
    } table[] = {
        {TF_FLOAT, HVD_FLOAT32},     {TF_DOUBLE, HVD_FLOAT64}, {TF_HALF, HVD_FLOAT16},
        {TF_BFLOAT16, HVD_BFLOAT16}, {TF_INT32, HVD_INT32},    {TF_INT64, HVD_INT64},
        {TF_UINT8, HVD_UINT8},       {TF_INT8, HVD_INT8},      {TF_UINT16, HVD_UINT16},
        {TF_INT16, HVD_INT16},       {TF_BOOL, HVD_BOOL},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        if (table[i].tensorflow == dtype) {
            *dtype_p = table[i].hvd;
            return true;
        }
    }
    return false;
}

/* The same memory for the library. Dimensions beyond HVD_DIMS_MAX become one. */
static struct hvd_tensor describe(const TF_Tensor *tensor)
{
    struct hvd_tensor described = {.data = TF_TensorData(tensor)};
    int ndim = TF_NumDims(tensor);
    flight_dtype(TF_TensorType(tensor), &described.dtype);
    described.ndim = ndim < HVD_DIMS_MAX ? ndim : HVD_DIMS_MAX;
    for (int i = 0; i < ndim; i++) {
        int64_t dim = TF_Dim(tensor, i);
        if (i < HVD_DIMS_MAX)
            described.dims[i] = dim;
        else
            described.dims[HVD_DIMS_MAX - 1] *= dim;
    }
    return described;
}

/* ---- submission ---- */

static int submit_one(struct flight *flight, struct hvd_session *session)
{
    const struct flight_plan *plan = flight->plan;
    struct flight_part *part = &flight->parts[0];
    struct hvd_tensor in = {0}, out = {0};
    if (part->in)
        in = describe(part->in);
    if (part->out)
        out = describe(part->out);
    switch (plan->kind) {
    case FLIGHT_ALLREDUCE:
        return hvd_allreduce_async(session, plan->name, &in, &out, plan->reduce_op, &plan->options,
                                   &part->op);
    case FLIGHT_BROADCAST:
        return hvd_broadcast_async(session, plan->name, &in, &out, plan->root, &plan->options,
                                   &part->op);
    case FLIGHT_ALLGATHER:
        return hvd_allgather_async(session, plan->name, &in, NULL, &plan->options, &part->op);
    case FLIGHT_REDUCESCATTER:
        return hvd_reducescatter_async(session, plan->name, &in, NULL, plan->reduce_op,
                                       &plan->options, &part->op);
    case FLIGHT_ALLTOALL:
        return hvd_alltoall_async(session, plan->name, &in, flight->splits, NULL, &plan->options,
                                  &part->op);
    case FLIGHT_JOIN:
        return hvd_join_async(session, &plan->options, &part->op);
    }
    return HVD_ERR_UNSUPPORTED;
}

static int submit_group(struct flight *flight, struct hvd_session *session)
{
    const struct flight_plan *plan = flight->plan;
    size_t count = (size_t)flight->count;
    struct hvd_tensor *in = calloc(count * 2, sizeof(*in)), *out = in + count;
    struct hvd_op **ops = calloc(count, sizeof(struct hvd_op *));
    int rc = in && ops ? HVD_OK : HVD_ERR_NO_MEMORY;
    for (int i = 0; rc == HVD_OK && i < flight->count; i++) {
        in[i] = describe(flight->parts[i].in);
        if (flight->parts[i].out)
            out[i] = describe(flight->parts[i].out);
    }
    if (rc == HVD_OK && plan->kind == FLIGHT_ALLREDUCE)
        rc = hvd_grouped_allreduce_async(session, plan->name, in, out, flight->count,
                                         plan->reduce_op, &plan->options, ops);
    else if (rc == HVD_OK && plan->kind == FLIGHT_ALLGATHER)
        rc = hvd_grouped_allgather_async(session, plan->name, in, NULL, flight->count,
                                         &plan->options, ops);
    else if (rc == HVD_OK)
        rc = hvd_grouped_reducescatter_async(session, plan->name, in, NULL, flight->count,
                                             plan->reduce_op, &plan->options, ops);
    for (int i = 0; rc == HVD_OK && i < flight->count; i++)
        flight->parts[i].op = ops[i];
    free(in);
    free(ops);
    return rc;
}

static int submit(struct flight *flight, struct hvd_session *session)
{
    return flight->plan->grouped ? submit_group(flight, session) : submit_one(flight, session);
}

/* ---- the end of a flight ---- */

/* The result of a finished op whose size the engine has told: into memory of TensorFlow's. */
static bool fetch(struct flight *flight, int i, TF_Status *status)
{
    struct flight_part *part = &flight->parts[i];
    struct hvd_tensor result;
    int64_t dims[HVD_DIMS_MAX * 32];
    int ndim = TF_NumDims(part->in);
    if (hvd_op_result(part->op, &result) != HVD_OK ||
        ndim > (int)(sizeof(dims) / sizeof(dims[0]))) {
        TF_SetStatus(status, TF_UNKNOWN, hvd_last_error());
        return false;
    }
    for (int k = 0; k < ndim; k++)
        dims[k] = TF_Dim(part->in, k);
    dims[0] = result.dims[0];
    size_t bytes = hvd_dtype_size(result.dtype);
    for (int k = 0; k < ndim; k++)
        bytes *= (size_t)dims[k];
    part->out = TF_AllocateOutput(flight->context, i, part->dtype, dims, ndim, bytes, status);
    if (TF_GetCode(status) != TF_OK)
        return false;
    if (bytes)
        memcpy(TF_TensorData(part->out), result.data, bytes);
    return true;
}

static bool put_numbers(struct flight *flight, int output, const int64_t *numbers, int count,
                        int ndim, TF_Status *status)
{
    int64_t dim = count;
    TF_Tensor *tensor = TF_AllocateOutput(flight->context, output, TF_INT32, &dim, ndim,
                                          (size_t)count * sizeof(int32_t), status);
    if (TF_GetCode(status) != TF_OK)
        return false;
    int32_t *values = TF_TensorData(tensor);
    for (int i = 0; i < count; i++)
        values[i] = (int32_t)numbers[i];
    TF_DeleteTensor(tensor);
    return true;
}

static bool put_received_splits(struct flight *flight, struct hvd_session *session,
                                TF_Status *status)
{
    int count = hvd_process_set_size(session, flight->plan->options.process_set);
    int64_t *splits = calloc(count > 0 ? (size_t)count : 1, sizeof(*splits));
    bool good = splits && hvd_op_received_splits(flight->parts[0].op, splits, count) == HVD_OK;
    if (good)
        good = put_numbers(flight, 1, splits, count, 1, status);
    else
        TF_SetStatus(status, TF_UNKNOWN, hvd_last_error());
    free(splits);
    return good;
}

static void put_results(struct flight *flight, struct hvd_session *session, TF_Status *status)
{
    int64_t rank;
    switch (flight->plan->kind) {
    case FLIGHT_ALLREDUCE:
    case FLIGHT_BROADCAST:
        return;
    case FLIGHT_JOIN:
        rank = hvd_op_joined_rank(flight->parts[0].op);
        put_numbers(flight, 0, &rank, 1, 0, status);
        return;
    case FLIGHT_ALLTOALL:
        if (fetch(flight, 0, status))
            put_received_splits(flight, session, status);
        return;
    case FLIGHT_ALLGATHER:
    case FLIGHT_REDUCESCATTER:
        for (int i = 0; i < flight->count && fetch(flight, i, status); i++)
            continue;
        return;
    }
}

/* Takes a finished flight to its end. Inside the session; leaves it, because TensorFlow may go on in
 * this thread. `status`: of its first op. */
static void land(struct flight *flight, struct hvd_session *session, int status)
{
    char text[TEXT_MAX];
    TF_Status *failure = TF_NewStatus();
    int count = flight->plan->kind == FLIGHT_JOIN ? 1 : flight->count;
    for (int i = 1; i < count && status == HVD_OK; i++) /* a group finishes together */
        status = hvd_wait(flight->parts[i].op, -1);
    if (status == HVD_OK) {
        put_results(flight, session, failure);
    } else {
        snprintf(text, sizeof(text), "%s", hvd_last_error());
        TF_SetStatus(failure, code_of(status), text);
    }
    for (int i = 0; i < count; i++)
        hvd_op_free(flight->parts[i].op);
    flight_leave();
    if (TF_GetCode(failure) != TF_OK)
        report(flight, TF_GetCode(failure), TF_Message(failure));
    TF_DeleteStatus(failure);
    end(flight);
}

/* ---- many flights ---- */

static void *attend(void *unused);

/* With the lock. False: there is no thread, and none can be made. */
static bool have_thread(void)
{
    pthread_t thread;
    if (hub.thread)
        return true;
    if (pthread_create(&thread, NULL, attend, NULL) != 0)
        return false;
    pthread_setname_np(thread, "hvd-tensorflow");
    pthread_detach(thread);
    hub.thread = true;
    return true;
}

/* Gives a flight to the thread. False: it cannot have it. */
static bool hand_over(struct flight *flight)
{
    pthread_mutex_lock(&hub.lock);
    bool given = !flight->stays && have_thread();
    if (given) {
        push(&hub.inbox, flight);
        hub.aloft++;
        hub.roomless += !flight->submitted;
        pthread_cond_broadcast(&hub.changed);
    }
    pthread_mutex_unlock(&hub.lock);
    return given;
}

/* What the thread has. `waiting`: for room, in order. */
struct crew {
    struct flight **flying;
    struct hvd_op **ops; /* the first of each */
    int count, capacity;
    struct queue waiting;
    int event_fd; /* of our own; -1: not made */
};

static bool no_room(int rc)
{
    return rc == HVD_ERR_RING_FULL || rc == HVD_ERR_LIMIT;
}

static int look_at(const int *counter)
{
    pthread_mutex_lock(&hub.lock);
    int value = *counter;
    pthread_mutex_unlock(&hub.lock);
    return value;
}

/* A submitted flight: over at once, or the thread's. In the session, which it leaves. */
static void launch(struct flight *flight, struct hvd_session *session)
{
    flight->submitted = true;
    int rc = hvd_wait(flight->parts[0].op, look_at(&hub.aloft) ? 0 : AT_ONCE_NS);
    if (rc == HVD_ERR_TIMEOUT && hand_over(flight)) {
        flight_leave();
        return;
    }
    if (rc == HVD_ERR_TIMEOUT)
        rc = hvd_wait(flight->parts[0].op, -1);
    land(flight, session, rc);
}

/* Submission was refused. In the session, which it leaves. */
static void refuse(struct flight *flight, int rc)
{
    char text[TEXT_MAX];
    snprintf(text, sizeof(text), "%s", hvd_last_error());
    flight_leave();
    flight_fail(flight, code_of(rc), text);
}

void flight_start(struct flight *flight)
{
    struct hvd_session *session = flight_enter();
    if (!session) {
        flight_fail(flight, TF_FAILED_PRECONDITION, NOT_OPEN_TEXT);
        return;
    }
    int rc = look_at(&hub.roomless) ? HVD_ERR_RING_FULL : submit(flight, session);
    while (no_room(rc)) {
        if (hand_over(flight)) {
            flight_leave();
            return;
        }
        poll(NULL, 0, ROOM_MS);
        rc = submit(flight, session);
    }
    if (rc == HVD_OK)
        launch(flight, session);
    else
        refuse(flight, rc);
}

/* ---- the thread ---- */

static bool grow(struct crew *crew)
{
    if (crew->count < crew->capacity)
        return true;
    int capacity = crew->capacity ? crew->capacity * 2 : 64;
    struct flight **flying = realloc(crew->flying, (size_t)capacity * sizeof(*flying));
    if (flying)
        crew->flying = flying;
    struct hvd_op **ops = realloc(crew->ops, (size_t)capacity * sizeof(struct hvd_op *));
    if (ops)
        crew->ops = ops;
    if (flying && ops)
        crew->capacity = capacity;
    return flying && ops;
}

/* Sleeps while there is nothing to do; takes what is in the inbox. */
static struct queue receive(const struct crew *crew)
{
    pthread_mutex_lock(&hub.lock);
    while (!hub.inbox.first &&
           ((crew->count == 0 && !crew->waiting.first) || (!hub.session && !hub.closed)))
        pthread_cond_wait(&hub.changed, &hub.lock);
    struct queue inbox = hub.inbox;
    hub.inbox.first = NULL;
    pthread_mutex_unlock(&hub.lock);
    return inbox;
}

static void gone(int roomless)
{
    pthread_mutex_lock(&hub.lock);
    hub.aloft--;
    hub.roomless -= roomless;
    if (hub.closed)
        pthread_cond_broadcast(&hub.changed);
    pthread_mutex_unlock(&hub.lock);
}

/* A submitted flight joins the others. Where there is no memory for that it is waited for here. */
static void add(struct crew *crew, struct flight *flight)
{
    if (grow(crew)) {
        crew->flying[crew->count] = flight;
        crew->ops[crew->count++] = flight->parts[0].op;
        return;
    }
    struct hvd_session *session = flight_enter();
    if (session)
        land(flight, session, hvd_wait(flight->parts[0].op, -1));
    else
        flight_fail(flight, TF_UNKNOWN, CLOSED_TEXT);
    gone(0);
}

static struct flight *take_out(struct crew *crew, int i)
{
    struct flight *flight = crew->flying[i];
    size_t behind = (size_t)(--crew->count - i);
    memmove(&crew->flying[i], &crew->flying[i + 1], behind * sizeof(crew->flying[0]));
    memmove(&crew->ops[i], &crew->ops[i + 1], behind * sizeof(crew->ops[0]));
    return flight;
}

/* The session is closed: its ops are gone, their memory is nobody else's. */
static void drop_all(struct crew *crew)
{
    struct flight *flight;
    while (crew->count > 0) {
        flight_fail(take_out(crew, crew->count - 1), TF_UNKNOWN, CLOSED_TEXT);
        gone(0);
    }
    while ((flight = pop(&crew->waiting))) {
        flight_fail(flight, TF_UNKNOWN, CLOSED_TEXT);
        gone(1);
    }
    if (crew->event_fd >= 0)
        close(crew->event_fd);
    crew->event_fd = -1;
}

/* Submits what waits for room, as far as there is some. */
static void start_waiting(struct crew *crew)
{
    while (crew->waiting.first) {
        struct hvd_session *session = flight_enter();
        if (!session)
            return;
        struct flight *flight = crew->waiting.first;
        int rc = submit(flight, session);
        if (no_room(rc)) {
            flight_leave();
            return;
        }
        pop(&crew->waiting);
        if (rc == HVD_OK) {
            flight->submitted = true;
            flight_leave();
            pthread_mutex_lock(&hub.lock);
            hub.roomless--;
            pthread_mutex_unlock(&hub.lock);
            add(crew, flight);
        } else {
            refuse(flight, rc);
            gone(1);
        }
    }
}

/* Ends the flights that are over. */
static void land_finished(struct crew *crew)
{
    while (crew->count > 0) {
        int i = -1;
        struct hvd_session *session = flight_enter();
        if (!session)
            return;
        int rc = hvd_wait_any(crew->ops, crew->count, 0, &i);
        if (i < 0) {
            flight_leave();
            return;
        }
        land(take_out(crew, i), session, rc);
        gone(0);
    }
}

/* Sleeps until something may be over. The descriptor is a copy of the library's, so that a session that is
 * closed meanwhile takes nothing from under our feet. */
static void sleep_awhile(struct crew *crew)
{
    struct hvd_session *session = crew->event_fd < 0 ? flight_enter() : NULL;
    if (session) {
        int fd;
        if (hvd_event_fd(session, &fd) == HVD_OK)
            crew->event_fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
        flight_leave();
    }
    struct pollfd event = {.fd = crew->event_fd, .events = POLLIN};
    bool hurry = crew->waiting.first || crew->event_fd < 0;
    poll(&event, 1, hurry ? ROOM_MS : SLICE_MS);
}

static void *attend(void *unused)
{
    struct crew crew = {.event_fd = -1};
    (void)unused;
    for (;;) {
        struct queue inbox = receive(&crew);
        for (struct flight *flight; (flight = pop(&inbox));) {
            if (flight->submitted)
                add(&crew, flight);
            else
                push(&crew.waiting, flight);
        }
        pthread_mutex_lock(&hub.lock);
        bool closed = hub.closed;
        pthread_mutex_unlock(&hub.lock);
        if (closed) {
            drop_all(&crew);
            continue;
        }
        start_waiting(&crew);
        land_finished(&crew);
        if (crew.count > 0 || crew.waiting.first)
            sleep_awhile(&crew);
    }
    return NULL;
}
