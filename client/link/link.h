/* SPDX-License-Identifier: Apache-2.0
 * A session's link to its engine: the socket, the channel, the lock, and how the session ends.
 *
 * Everything below the mutex is guarded by it, here and in the other members of a session. Lock order:
 * there is only this one lock. It is never held while sleeping: a thread that must wait for the engine,
 * the kernel's page allocator or a large copy gives it up first and looks again at what may have
 * changed afterwards. */
#ifndef HVD_CLIENT_LINK_H
#define HVD_CLIENT_LINK_H

#include "base/types.h"
#include "client/attach/attach.h"
#include "client/attach/identity.h"
#include "client/link/patience.h"
#include "hvd/hvd.h"
#include "proto/packet.h"
#include "proto/wire.h"
#include "shm/bell.h"
#include "shm/channel.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#define CLIENT_LOG_LINES 4u                  /* log lines that wait until the lock is free */
#define CLIENT_LOOK_NS   (20ull * HVI_NS_MS) /* how often a busy waiter looks at the socket */

struct client_log_line {
    enum hvd_log_level level;
    char text[HVI_TEXT_MAX + 1];
};

struct client_complete;
struct client_peers;
struct client_pending;

/* What the link has to tell the rooms above it; all with the lock, none for a single op. */
struct client_link_calls {
    /* The completions that the engine has written are to be read. */
    void (*drain)(struct client_complete *complete);
    /* .end_status has been set: every op in flight fails with it. */
    void (*ended)(struct client_complete *complete);
    /* The engine's word on a peer's region. `fd`, -1 for none, is the callee's. */
    void (*peer_region)(struct client_peers *peers, const struct hvi_peer_region *told, int fd);
    /* A message of the engine may have been lost. */
    void (*message_lost)(struct client_peers *peers);
};

/* The Detach, which is waited for in pieces. */
struct client_farewell {
    uint64_t request; /* its number; 0: the session is not being closed */
    bool said, done;  /* sent; acknowledged */
    struct client_patience patience;
};

struct client_link {
    /* Fixed at open. */
    volatile unsigned char *alive_page; /* 1 in the process that opened, 0 in a forked child */
    struct client_identity identity;
    char address[HVI_WIRE_PATH];
    hvd_log_fn log;
    void *log_user;
    int socket_fd, engine_event_fd, client_event_fd;
    int engine_pid;    /* as the engine says, for messages */
    bool takes_fabric; /* memory of devices by fabric handles */
    pid_t engine_here; /* as the kernel says; 0: it has no pid in our pid namespace */
    struct hvi_region bell_region;
    struct hvi_bell_page *bell;
    const struct client_link_calls *calls;
    struct client_complete *complete; /* for the calls, as .peers */
    struct client_peers *peers;

    pthread_mutex_t mutex;
    struct hvi_channel channel;
    int epoll_fd; /* -1 until hvd_event_fd */

    /* The socket. */
    uint64_t last_request;
    uint32_t last_region;
    struct client_pending *pending;
    struct client_farewell farewell;
    uint64_t looked_ns;             /* at the socket */
    bool look_due;                  /* ops keep ending, and that is long ago */
    uint64_t engine_looked_ns;      /* at the engine's process */
    uint64_t beat;                  /* the engine's, when we looked last */
    struct client_patience silence; /* since .beat moved; no limit: silence is no failure */
    bool engine_killed;             /* by us, and not gone yet */
    bool told_over; /* by the engine: the session is over, and no op uses its memory any more */
    bool engine_remains; /* the session has ended, and the engine may still write to our memory */
    int job_status; /* HVD_OK or what happened to the job; ops go on to the engine, which fails them
                     */
    char job_text[HVI_TEXT_MAX + 1];
    int end_status; /* HVD_OK or why this session takes no more calls */
    char end_text[HVI_TEXT_MAX + 1];

    char unsent[CLIENT_UNSENT_BYTES]; /* as client_attached's, until the log has it */
    struct client_log_line log_lines[CLIENT_LOG_LINES];
    uint32_t log_count;
    struct hvi_packet packet; /* to receive into */
};

/* All need the lock. */

/* HVD_OK while ops can be submitted, else the end status and the last error. */
int client_link_usable(struct client_link *link, const char *what);
/* Ends the session for the first reason given: every op in flight fails with it. The socket is shut
 * down, so that pollers wake up and the engine learns of it. */
void client_link_end(struct client_link *link, int status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Queues a line for the user's callback; dropped when there is none or CLIENT_LOG_LINES wait
 * already. */
void client_link_log(struct client_link *link, enum hvd_log_level level, const char *text);

#endif
