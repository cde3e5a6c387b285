/* SPDX-License-Identifier: Apache-2.0
 * See crew.h.
 *
 * The thread sleeps on a descriptor of its own and, while kernels are in flight, in the library, so it
 * takes no core from the model. A flight belongs to the thread that has submitted it until it is put into
 * the inbox; from then on to the hub's thread.
 *
 * The lock is never held across a call to TensorFlow or into the library. */
#include "python/native/crew.h"

#include "python/native/pool.h"
#include "python/native/slab.h"
#include "python/native/step.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define AT_ONCE_NS                                                                                 \
    (50 * 1000)          /* an op that is alone is waited for so long before the thread gets it */
#define SLICE_MS     100 /* how often the thread looks although nothing was announced */
#define SLICE_MIN_NS (200 * 1000) /* the shortest and the longest wait in the library */
#define SLICE_MAX_NS (2 * 1000 * 1000)
#define ROOM_MS      1   /* as above, while a flight waits for room */
#define HELD_MS      300 /* how long an interrupt is held when no error reaches Python */
#define CLOSED_TEXT  "Horovod has been shut down while this op was in flight; call hvd.init() again."

struct queue {
    struct flight *first, *last;
};

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* users or aloft, while the session closes */
    struct hvd_session *session;
    pid_t pid;    /* that attached it */
    int users;    /* threads inside the session */
    bool thread;  /* there is one */
    bool closed;  /* the session: what is in flight fails */
    bool loud;    /* somebody may still be at work on what was */
    int aloft;    /* flights that the thread has, the inbox included */
    int roomless; /* of these, not submitted yet */
    int wake_fd;  /* the thread sleeps on it */
    struct queue inbox;
} hub = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, .wake_fd = -1};

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

/* Async-signal-safe. */
static void wake(int fd)
{
    uint64_t one = 1;
    ssize_t rc = write(fd, &one, sizeof(one));
    (void)rc; /* EAGAIN: it is awake */
}

/* ---- session ---- */

void hvd_tf_attach(struct hvd_session *session)
{
    /* Also in a forked child, where thread, flights and the lock's holder are its parent's. */
    if (hub.pid != getpid()) {
        pthread_mutex_init(&hub.lock, NULL);
        pthread_cond_init(&hub.changed, NULL);
        hub.thread = false;
        hub.users = hub.aloft = hub.roomless = 0;
        hub.inbox.first = NULL;
        if (hub.wake_fd >= 0) /* the parent's thread sleeps on it too */
            close(hub.wake_fd);
        hub.wake_fd = -1;
        slab_forked();
        pool_forked();
    }
    pthread_mutex_lock(&hub.lock);
    hub.session = session;
    hub.closed = false;
    hub.loud = false;
    hub.pid = getpid();
    if (hub.thread)
        step_set_waker(wake, hub.wake_fd);
    pthread_mutex_unlock(&hub.lock);
    slab_share(session);
}

void hvd_tf_park(void)
{
    if (hub.pid != getpid())
        return;
    pthread_mutex_lock(&hub.lock);
    hub.session = NULL;
    step_set_waker(NULL, -1);
    while (hub.users > 0)
        pthread_cond_wait(&hub.changed, &hub.lock);
    pthread_mutex_unlock(&hub.lock);
}

void hvd_tf_detach(bool quiet)
{
    if (hub.pid != getpid())
        return;
    pthread_mutex_lock(&hub.lock);
    hub.closed = true;
    hub.loud = !quiet;
    if (hub.thread)
        wake(hub.wake_fd);
    while (hub.aloft > 0)
        pthread_cond_wait(&hub.changed, &hub.lock);
    pthread_mutex_unlock(&hub.lock);
    slab_unshare();
}

struct hvd_session *crew_enter(void)
{
    if (hub.pid != getpid())
        return NULL;
    pthread_mutex_lock(&hub.lock);
    struct hvd_session *session = hub.session;
    hub.users += session != NULL;
    pthread_mutex_unlock(&hub.lock);
    return session;
}

void crew_leave(void)
{
    pthread_mutex_lock(&hub.lock);
    hub.users--;
    if (!hub.session)
        pthread_cond_broadcast(&hub.changed);
    pthread_mutex_unlock(&hub.lock);
}

void crew_share(void)
{
    struct hvd_session *session = slab_is_news() ? crew_enter() : NULL;
    if (!session)
        return;
    slab_share(session);
    crew_leave();
}

/* ---- many flights ---- */

static void *attend(void *unused);

/* With the lock. False: there is no thread, and none can be made. */
static bool have_thread(void)
{
    pthread_t thread;
    sigset_t all, before;
    if (hub.thread)
        return true;
    if (hub.wake_fd < 0)
        hub.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (hub.wake_fd < 0)
        return false;
    sigfillset(&all);        /* signals are for the program's threads */
    sigdelset(&all, SIGBUS); /* but hvd_wait may miss a page of a peer's memory (hvd.h) */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(&thread, NULL, attend, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0)
        return false;
    pthread_setname_np(thread, "hvd-tensorflow");
    pthread_detach(thread);
    step_set_waker(wake, hub.wake_fd);
    hub.thread = true;
    return true;
}

/* Gives a flight to the thread. False: it cannot have it. */
static bool hand_over(struct flight *flight)
{
    pthread_mutex_lock(&hub.lock);
    bool given = !flight->stays && have_thread();
    if (given) {
        if (!hub.inbox.first) /* else it has not yet come for what woke it */
            wake(hub.wake_fd);
        push(&hub.inbox, flight);
        hub.aloft++;
        hub.roomless += !flight_is_submitted(flight);
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
    int64_t slice_ns;  /* of the next wait: longer as nothing happens */
    int interrupts;    /* that were answered */
    int64_t held_ms;   /* since when an interrupt is seen to be held; 0: none */
    int64_t looked_ms; /* when somebody was last asked whether the flights are still wanted */
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

/* A finished flight to its end. In the session, which it leaves. */
static void land(struct flight *flight, struct hvd_session *session, int status)
{
    TF_Status *failure = flight_settle(flight, session, status);
    crew_leave();
    flight_land(flight, failure);
}

/* A submitted flight: over at once, or the thread's. In the session, which it leaves. */
static void launch(struct flight *flight, struct hvd_session *session)
{
    int rc = hvd_wait(flight->parts[0].op, look_at(&hub.aloft) ? 0 : AT_ONCE_NS);
    if (rc == HVD_ERR_TIMEOUT && hand_over(flight)) {
        crew_leave();
        return;
    }
    if (rc == HVD_ERR_TIMEOUT)
        rc = hvd_wait(flight->parts[0].op, -1);
    land(flight, session, rc);
}

/* Submission was refused. In the session, which it leaves. */
static void refuse(struct flight *flight, int rc)
{
    char text[FLIGHT_TEXT_MAX];
    snprintf(text, sizeof(text), "%s", hvd_last_error());
    crew_leave();
    flight_fail(flight, flight_code_of(rc), text);
}

void crew_start(struct flight *flight)
{
    struct hvd_session *session = crew_enter();
    if (!session) {
        flight_fail(flight, TF_FAILED_PRECONDITION, CREW_NOT_OPEN);
        return;
    }
    if (step_interrupt_held()) { /* it ends this step */
        crew_leave();
        flight_fail(flight, TF_CANCELLED, STEP_INTERRUPTED);
        return;
    }
    int rc = look_at(&hub.roomless) ? HVD_ERR_RING_FULL : flight_submit(flight, session);
    while (no_room(rc)) {
        if (hand_over(flight)) {
            crew_leave();
            return;
        }
        poll(NULL, 0, ROOM_MS);
        rc = flight_submit(flight, session);
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

static struct queue receive(void)
{
    pthread_mutex_lock(&hub.lock);
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
    struct hvd_session *session = crew_enter();
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

/* The session is closed: its ops are gone, and their memory is nobody else's, or stays away from TensorFlow. */
static void drop_all(struct crew *crew)
{
    struct flight *flight;
    pthread_mutex_lock(&hub.lock);
    bool loud = hub.loud;
    pthread_mutex_unlock(&hub.lock);
    while (crew->count > 0) {
        flight = take_out(crew, crew->count - 1);
        flight->keeps = loud;
        flight_fail(flight, TF_UNKNOWN, CLOSED_TEXT);
        gone(0);
    }
    while ((flight = pop(&crew->waiting))) {
        flight_fail(flight, TF_UNKNOWN, CLOSED_TEXT);
        gone(1);
    }
}

/* Submits what waits for room, as far as there is some. */
static void start_waiting(struct crew *crew)
{
    while (crew->waiting.first) {
        struct hvd_session *session = crew_enter();
        if (!session)
            return;
        struct flight *flight = crew->waiting.first;
        int rc = flight_submit(flight, session);
        if (no_room(rc)) {
            crew_leave();
            return;
        }
        pop(&crew->waiting);
        if (rc == HVD_OK) {
            crew_leave();
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

/* Ends the flights that are over; waits for one in the library, but not long: other threads may hand over
 * more meanwhile. */
static void land_finished(struct crew *crew)
{
    int64_t slice_ns = crew->slice_ns;
    while (crew->count > 0) {
        int i = -1;
        struct hvd_session *session = crew_enter();
        if (!session)
            return;
        int rc = hvd_wait_any(crew->ops, crew->count, slice_ns, &i);
        if (i < 0) {
            crew_leave();
            crew->slice_ns = crew->slice_ns * 2 < SLICE_MAX_NS ? crew->slice_ns * 2 : SLICE_MAX_NS;
            return;
        }
        land(take_out(crew, i), session, rc);
        gone(0);
        crew->slice_ns = SLICE_MIN_NS;
        slice_ns = 0;
    }
}

/* Sleeps while nothing is in flight. */
static void sleep_awhile(const struct crew *crew)
{
    struct pollfd event = {.fd = hub.wake_fd, .events = POLLIN};
    uint64_t wakes;
    int timeout_ms = crew->waiting.first ? ROOM_MS : step_interrupt_held() ? SLICE_MS : -1;
    poll(&event, 1, timeout_ms);
    ssize_t rc = read(hub.wake_fd, &wakes, sizeof(wakes));
    (void)rc;
}

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void take_back(struct flight *flight, bool interrupted)
{
    flight->interrupted |= interrupted;
    if (flight->cancelled)
        return;
    for (int i = 0; i < flight_op_count(flight); i++)
        hvd_cancel(flight->parts[i].op);
    flight->cancelled = true;
}

/* Takes back what nobody wants any more. */
static void take_back_unwanted(struct crew *crew)
{
    bool interrupted = step_interrupts() != crew->interrupts || step_interrupt_held();
    crew->looked_ms = now_ms();
    struct hvd_session *session = crew_enter();
    if (!session)
        return;
    for (int i = 0; i < crew->count; i++) {
        if (interrupted || step_is_cancelled(crew->flying[i]->context))
            take_back(crew->flying[i], interrupted);
    }
    crew_leave();
    struct queue waiting = crew->waiting;
    crew->waiting.first = NULL;
    for (struct flight *flight; (flight = pop(&waiting));) {
        if (interrupted || step_is_cancelled(flight->context)) {
            flight_fail(flight, TF_CANCELLED,
                        interrupted ? STEP_INTERRUPTED : "cancelled before it was submitted");
            gone(1);
        } else {
            push(&crew->waiting, flight);
        }
    }
    crew->interrupts = step_interrupts();
}

/* An interrupt that no error brings to Python is passed on after a while. */
static void pass_on_interrupt(struct crew *crew)
{
    if (!step_interrupt_held())
        crew->held_ms = 0;
    else if (crew->held_ms == 0)
        crew->held_ms = now_ms();
    else if (now_ms() - crew->held_ms >= HELD_MS)
        hvd_tf_deliver_interrupt();
}

static bool is_open(void)
{
    struct hvd_session *session = crew_enter();
    if (session)
        crew_leave();
    return session != NULL;
}

static void *attend(void *unused)
{
    struct crew crew = {.slice_ns = SLICE_MIN_NS, .interrupts = step_interrupts()};
    (void)unused;
    for (;;) {
        struct queue inbox = receive();
        for (struct flight *flight; (flight = pop(&inbox));) {
            crew.slice_ns = SLICE_MIN_NS;
            if (flight_is_submitted(flight))
                add(&crew, flight);
            else
                push(&crew.waiting, flight);
        }
        pthread_mutex_lock(&hub.lock);
        bool closed = hub.closed;
        pthread_mutex_unlock(&hub.lock);
        if (closed)
            drop_all(&crew);
        if (step_interrupt_held() || now_ms() - crew.looked_ms >= SLICE_MS)
            take_back_unwanted(&crew);
        start_waiting(&crew);
        land_finished(&crew);
        pass_on_interrupt(&crew);
        if (crew.count == 0 || !is_open())
            sleep_awhile(&crew);
    }
    return NULL;
}
