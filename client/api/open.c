/* SPDX-License-Identifier: Apache-2.0
 * hvd_open and hvd_close: everything a session owns.
 *
 *   options -> identity -> attach (client/attach) -> map -> session
 *
 * Each step that fails undoes the ones before it.
 *
 * A forked child must not touch what it inherits: the page behind alive_page reads 0 in it
 * (MADV_WIPEONFORK), and the channel is not even mapped there (MADV_DONTFORK). All calls look at
 * that page first, before any lock, which another thread of the parent may have held when it
 * forked. */
#include "base/available.h"
#include "base/clock.h"
#include "base/status.h"
#include "client/api/timeline.h"
#include "client/attach/address.h"
#include "client/attach/attach.h"
#include "client/error.h"
#include "client/link/control.h"
#include "client/link/liveness.h"
#include "client/session/enter.h"
#include "client/session/session.h"
#include "client/wait/wait.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define DEFAULT_TIMEOUT_NS (30ll * 1000 * 1000 * 1000)

/* ---- options ---- */

void hvd_options_init(struct hvd_options *options)
{
    if (!options)
        return;
    *options = (struct hvd_options){
        .struct_size = sizeof(*options),
        .rank = HVD_FROM_ENV,
        .size = HVD_FROM_ENV,
        .local_rank = HVD_FROM_ENV,
        .local_size = HVD_FROM_ENV,
        .cross_rank = HVD_FROM_ENV,
        .cross_size = HVD_FROM_ENV,
        .timeout_ns = DEFAULT_TIMEOUT_NS,
    };
}

/* The caller's options in today's layout, whatever version it was compiled with. */
static int load_options(const struct hvd_options *given, struct hvd_options *options_p)
{
    struct hvd_options options;
    hvd_options_init(&options);
    if (given) {
        size_t bytes = given->struct_size;
        if (bytes < sizeof(options.struct_size) || bytes > 4096)
            return client_error(HVD_ERR_INVALID,
                                "hvd_open: options->struct_size is %zu; call hvd_options_init "
                                "first",
                                bytes);
        memcpy(&options, given, bytes < sizeof(options) ? bytes : sizeof(options));
    }
    *options_p = options;
    return HVD_OK;
}

/* ---- the session ---- */

static int map_channel(struct hvd_session *session)
{
    int fd = hvi_packet_take_fd(&session->link.packet, 0);
    int rc = hvi_channel_map(fd, &session->link.channel);
    if (rc != HVD_OK) {
        close(fd);
        return client_error(rc, "hvd_open: the channel that the engine (pid %d) sent: %s",
                            session->link.engine_pid, hvi_status_text(rc));
    }
    hvi_region_close_fd(&session->link.channel.region);
    madvise(session->link.channel.region.base, session->link.channel.region.bytes, MADV_DONTFORK);
    return HVD_OK;
}

static int map_bell(struct hvd_session *session)
{
    int fd = hvi_packet_take_fd(&session->link.packet, 1);
    int rc = hvi_bell_map(fd, &session->link.bell_region, &session->link.bell);
    if (rc != HVD_OK) {
        close(fd);
        return client_error(rc, "hvd_open: the bell page that the engine (pid %d) sent: %s",
                            session->link.engine_pid, hvi_status_text(rc));
    }
    session->link.engine_here = hvi_bell_maker(&session->link.bell_region);
    session->link.silence = client_liveness_patience(session->link.bell);
    hvi_region_close_fd(&session->link.bell_region);
    madvise(session->link.bell_region.base, session->link.bell_region.bytes, MADV_DONTFORK);
    return HVD_OK;
}

/* Not every job has slots. A rank that has no room for them gives its ops to the engine, and so do the ranks that
 * meet it. */
static int map_slots(struct hvd_session *session)
{
    if (session->link.packet.fd_count <= CLIENT_ATTACH_FDS)
        return HVD_OK;
    int rc = client_slots_map(&session->slots,
                              hvi_packet_take_fd(&session->link.packet, CLIENT_ATTACH_FDS));
    if (rc != HVD_ERR_NO_MEMORY)
        return rc;
    client_link_log(&session->link, HVD_LOG_WARN, hvd_last_error());
    return HVD_OK;
}

/* The session never waits in an eventfd, whatever flags it came with. */
static void take_events(struct hvd_session *session)
{
    session->link.engine_event_fd = hvi_packet_take_fd(&session->link.packet, 2);
    session->link.client_event_fd = hvi_packet_take_fd(&session->link.packet, 3);
    fcntl(session->link.engine_event_fd, F_SETFL, O_NONBLOCK);
    fcntl(session->link.client_event_fd, F_SETFL, O_NONBLOCK);
}

static int make_alive_page(struct hvd_session *session)
{
    void *page = mmap(NULL, HVI_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        return client_error(HVD_ERR_NO_MEMORY, "hvd_open: mmap: %s", strerror(errno));
    session->link.alive_page = page;
    *session->link.alive_page = 1;
    if (madvise(page, HVI_PAGE, MADV_WIPEONFORK) != 0)
        return client_error(HVD_ERR_UNSUPPORTED,
                            "hvd_open: MADV_WIPEONFORK: %s; hvdd needs Linux "
                            "4.14 or newer",
                            strerror(errno));
    return HVD_OK;
}

static void close_fds(struct client_link *link)
{
    int *const fds[] = {&link->epoll_fd, &link->client_event_fd, &link->engine_event_fd,
                        &link->socket_fd};
    for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++) {
        if (*fds[i] >= 0)
            close(*fds[i]);
        *fds[i] = -1;
    }
}

/* Everything but the goodbye. Harmless on a half-made session. */
static void destroy(struct hvd_session *session)
{
    close_fds(&session->link);
    client_ops_fini(&session->ops);
    client_memory_fini(&session->memory);
    hvi_region_fini(&session->link.bell_region);
    client_slots_fini(&session->slots);
    if (session->link.channel.header)
        hvi_channel_fini(&session->link.channel);
    hvi_packet_close_fds(&session->link.packet);
    if (session->link.alive_page)
        munmap((void *)session->link.alive_page, HVI_PAGE);
    pthread_mutex_destroy(&session->link.mutex);
    free(session);
}

/* Streams that wait for this session's ops go on, at once or when no worker writes there any more. */
static void release_streams(const struct client_link *link, struct client_device *device)
{
    if (link->told_over)
        client_fence_poison(device);
    else
        client_fence_lost(device,
                          link->end_status == HVD_ERR_ENGINE_LOST ? 0 : link->silence.limit_ns);
}

static void end_session(struct client_complete *complete)
{
    release_streams(complete->link, complete->ops->memory->device);
    client_complete_fail_all(complete);
}

static const struct client_link_calls link_calls = {
    .drain = client_complete_drain,
    .ended = end_session,
    .peer_region = client_peers_told,
    .message_lost = client_peers_ask_again,
};

static struct hvd_session *new_session(void)
{
    struct hvd_session *session = calloc(1, sizeof(*session));
    if (!session)
        return NULL;
    session->link.calls = &link_calls;
    session->link.complete = &session->complete;
    session->link.peers = &session->memory.peers;
    session->ring.link = &session->link;
    client_memory_init(&session->memory, &session->link);
    session->link.socket_fd = -1;
    session->link.engine_event_fd = -1;
    session->link.client_event_fd = -1;
    session->link.epoll_fd = -1;
    session->link.bell_region = (struct hvi_region)HVI_REGION_INIT;
    client_slots_init(&session->slots, &session->link, &session->ops);
    session->complete.link = &session->link;
    session->complete.ops = &session->ops;
    session->complete.slots = &session->slots;
    pthread_mutex_init(&session->link.mutex, NULL);
    return session;
}

static void say_started(const struct hvd_options *options, const struct client_address *address)
{
    char text[HVI_WIRE_PATH + 64];
    if (!address->started || !options->log)
        return;
    snprintf(text, sizeof(text), "started a private hvdd in %s", address->directory);
    options->log(options->log_user, HVD_LOG_INFO, text);
}

/* Fills a new session; what it has got when this fails is destroyed by the caller. */
static int establish(struct hvd_session *session, const struct hvd_options *options)
{
    struct client_address address = {.socket_fd = -1};
    struct client_attached attached;
    int rc = client_identity_resolve(options, &session->link.identity);
    if (rc != HVD_OK)
        return rc;
    rc = make_alive_page(session);
    if (rc != HVD_OK)
        return rc;
    if (client_ops_init(&session->ops, &session->memory, session->link.identity.rank,
                        session->link.identity.size) != HVD_OK)
        return client_error(HVD_ERR_NO_MEMORY, "hvd_open: no memory for %d ops and %d ranks",
                            HVD_OPS_MAX, session->link.identity.size);
    rc =
        client_attach(options, &session->link.identity, &session->link.packet, &address, &attached);
    if (rc != HVD_OK)
        return rc;
    session->link.engine_pid = attached.engine_pid;
    session->link.takes_fabric = attached.takes_fabric;
    memcpy(session->link.unsent, attached.unsent, sizeof(attached.unsent));
    session->link.socket_fd = address.socket_fd;
    snprintf(session->link.address, sizeof(session->link.address), "%s", address.directory);
    take_events(session);
    session->link.log = options->log;
    session->link.log_user = options->log_user;
    if ((rc = map_channel(session)) != HVD_OK || (rc = map_bell(session)) != HVD_OK ||
        (rc = map_slots(session)) != HVD_OK)
        return rc;
    session->policy = hvi_wait_policy_for_engine();
    session->slots.policy =
        hvi_wait_policy_among((uint32_t)session->link.identity.local_size, hvi_cores_available());
    session->link.looked_ns = hvi_clock_ns();
    say_started(options, &address);
    return HVD_OK;
}

int hvd_open(const struct hvd_options *given, struct hvd_session **session_p)
{
    struct hvd_options options;
    if (!session_p)
        return client_error(HVD_ERR_INVALID, "hvd_open: session_p is NULL");
    int rc = load_options(given, &options);
    if (rc != HVD_OK)
        return rc;
    struct hvd_session *session = new_session();
    if (!session)
        return client_error(HVD_ERR_NO_MEMORY, "hvd_open: out of memory");
    rc = establish(session, &options);
    if (rc != HVD_OK) {
        destroy(session);
        return rc;
    }
    client_timeline_from_environment(session);
    *session_p = session;
    return HVD_OK;
}

/* ---- closing, now or at exit ---- */

static struct hvd_session *_Atomic at_exit;
static pthread_once_t exit_once = PTHREAD_ONCE_INIT;
static int exit_error;

/* Ops in flight, when all that has ended has been seen. With the lock, which it may give up. */
static uint32_t look_in_flight(struct hvd_session *session)
{
    if (session->ops.in_flight > 0) {
        client_wait_progress(session, true);
        client_slots_look_all(&session->slots);
    }
    return session->ops.in_flight;
}

/* Says goodbye. What the session owns stays: threads may still be inside, and what runs at exit later may close it. */
static void on_process_exit(int status, void *unused)
{
    (void)unused;
    struct hvd_session *session = status == 0 ? atomic_load(&at_exit) : NULL;
    if (!session || client_session_enter(session, "exit") != HVD_OK)
        return;
    session->link.log = NULL; /* what it calls may be gone */
    if (look_in_flight(session) == 0 && !session->link.pending &&
        session->link.farewell.request == 0) {
        (void)client_control_detach(&session->link, INT64_MAX);
        release_streams(&session->link, session->memory.device);
    } /* else another thread is inside; the end of the process tells the others */
    client_session_leave(session);
}

static void install_exit(void)
{
    exit_error = on_exit(on_process_exit, NULL);
}

/* From now on the exit closes it. */
static int leave_to_exit(struct hvd_session *session)
{
    struct hvd_session *none = NULL;

    pthread_once(&exit_once, install_exit);
    if (exit_error != 0)
        return client_error(HVD_ERR_NO_MEMORY, "hvd_close_at_exit: out of memory");
    if (!atomic_compare_exchange_strong(&at_exit, &none, session) && none != session)
        return client_error(HVD_ERR_LIMIT, "hvd_close_at_exit: another session is closed then");
    return HVD_OK;
}

int hvd_close_at_exit(struct hvd_session *session)
{
    if (!session)
        return client_error(HVD_ERR_INVALID, "hvd_close_at_exit: the session is NULL");
    int rc = client_session_enter(session, "hvd_close_at_exit");
    if (rc != HVD_OK)
        return rc;
    if (look_in_flight(session) > 0)
        rc = client_error(HVD_ERR_BUSY, "hvd_close_at_exit: %u ops are in flight",
                          session->ops.in_flight);
    else
        rc = leave_to_exit(session);
    if (rc == HVD_OK)
        session->link.log = NULL; /* whoever listens may be gone by then */
    client_session_leave(session);
    return rc;
}

static int unquiet(const char *what)
{
    return client_error(HVD_ERR_TIMEOUT,
                        "%s: the session is over, but the engine has not said in "
                        "time that nobody works on its ops any more; leave their memory alone "
                        "for the moment",
                        what);
}

int hvd_close_wait(struct hvd_session *session, int64_t timeout_ns)
{
    if (!session)
        return HVD_OK;
    int rc = client_session_enter(session, "hvd_close_wait");
    if (rc != HVD_OK)
        return rc;
    session->link.log = NULL; /* the engine may end right behind us, and that is no news */
    rc = client_control_detach(&session->link, timeout_ns < 0 ? INT64_MAX : (uint64_t)timeout_ns);
    client_session_leave(session);
    return rc == HVD_ERR_TIMEOUT ? unquiet("hvd_close_wait") : rc;
}

int hvd_close(struct hvd_session *session)
{
    if (!session)
        return HVD_OK;
    int rc = client_session_enter(session, "hvd_close");
    if (rc != HVD_OK) {
        /* A forked child: without its descriptors the parent's connection ends with the parent. The
         * memory is a copy that another thread may have been changing at the fork; it is left alone. */
        close_fds(&session->link);
        return rc;
    }
    struct hvd_session *chosen = session;
    atomic_compare_exchange_strong(&at_exit, &chosen, NULL);
    session->link.log = NULL; /* the engine may end right behind us, and that is no news */
    bool waited = session->link.farewell.request != 0;
    rc = client_control_detach(&session->link, waited ? 0 : INT64_MAX);
    release_streams(&session->link, session->memory.device);
    client_session_leave(session);
    destroy(session);
    return rc == HVD_OK ? HVD_OK : unquiet("hvd_close");
}

/* ---- what is fixed at open ---- */

#define CLIENT_FIXED(function, field)                                                              \
    int function(const struct hvd_session *session)                                                \
    {                                                                                              \
        if (!session)                                                                              \
            return -1;                                                                             \
        int rc = client_session_check_fork(session, #function);                                    \
        return rc == HVD_OK ? session->link.identity.field : rc;                                   \
    }

CLIENT_FIXED(hvd_rank, rank)
CLIENT_FIXED(hvd_size, size)
CLIENT_FIXED(hvd_local_rank, local_rank)
CLIENT_FIXED(hvd_local_size, local_size)
CLIENT_FIXED(hvd_cross_rank, cross_rank)
CLIENT_FIXED(hvd_cross_size, cross_size)

const char *hvd_job(const struct hvd_session *session)
{
    return session ? session->link.identity.job : "";
}

const char *hvd_address(const struct hvd_session *session)
{
    return session ? session->link.address : "";
}
