/* SPDX-License-Identifier: Apache-2.0
 * The inside of a session and of an op: what the files of client/ share. Everything below the mutex
 * is guarded by it. Lock order: there is only this one lock. It is never held while sleeping: who
 * must wait for the engine, the kernel's page allocator or a large copy leaves the session first
 * and looks again at what may have changed afterwards. */
#ifndef HVD_CLIENT_SESSION_H
#define HVD_CLIENT_SESSION_H

#include "base/types.h"
#include "client/attach/identity.h"
#include "client/foreign.h"
#include "client/habits.h"
#include "client/inline.h"
#include "client/memory.h"
#include "client/names.h"
#include "client/ops.h"
#include "client/peer.h"
#include "client/sets.h"
#include "client/staging.h"
#include "hvd/hvd.h"
#include "proto/packet.h"
#include "proto/wire.h"
#include "reduce/reduce.h"
#include "shm/bell.h"
#include "shm/channel.h"
#include "shm/express.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#define CLIENT_LOG_LINES 4u                  /* log lines that wait until the lock is free */
#define CLIENT_LOOK_NS   (20ull * HVI_NS_MS) /* how often a busy waiter looks at the socket */
#define CLIENT_ACK_NS    (5ll * 1000 * 1000 * 1000) /* the engine's time to acknowledge */
#define CLIENT_DETACH_NS (1ll * 1000 * 1000 * 1000)

struct client_log_line {
    enum hvd_log_level level;
    char text[HVI_TEXT_MAX + 1];
};

/* A request that waits for its Ack; lives on the waiter's stack (control.c). */
struct client_pending {
    uint64_t request;
    bool done;
    int status;
    char text[HVI_TEXT_MAX + 1];
    struct client_pending *next;
};

struct hvd_session {
    /* Fixed at open. */
    volatile unsigned char *alive_page; /* 1 in the process that opened, 0 in a forked child */
    struct client_identity identity;
    char address[HVI_WIRE_PATH];
    hvd_log_fn log;
    void *log_user;
    int socket_fd, engine_event_fd, client_event_fd;
    int engine_pid;
    struct hvi_region bell_region;
    struct hvi_bell_page *bell;
    struct hvi_wait_policy policy;
    bool express_on;
    struct hvi_express express;
    struct hvi_wait_policy express_policy; /* between ranks: the engine needs no core */
    const struct hvi_kernels *kernels;

    pthread_mutex_t mutex;
    struct hvi_channel channel;
    enum client_foreign_policy foreign_policy;
    struct client_habits habits;
    bool said_staged; /* that the engine does not offer HVI_FEATURE_FOREIGN */

    /* Submission. */
    uint64_t submit_seq; /* of the last one */
    struct client_sets sets;
    uint32_t last_group;
    uint32_t names_tail; /* free-running byte index into the name area */
    uint32_t
        slot_names_end[HVI_SQ_SLOTS]; /* names_tail after each slot: frees the area with the ring */
    struct client_names names;
    struct client_inline inline_area;
    struct client_memory_table memory;
    struct client_staging staging;
    uint32_t last_region;
    struct client_peers peers;
    bool express_prompt; /* the last large op was waited for at once: so will the next be */

    /* Completion. */
    uint64_t complete_seq;
    struct client_ops ops;
    struct hvd_op *sized_first, *sized_last; /* ops that wait for memory, oldest first */
    uint64_t express_called_ns;              /* when the engine was told last that somebody polls */
    uint32_t express_orphans;                /* abandoned ops that may be in a slot */
    uint32_t unseen;                         /* finished ops that no call has looked at */
    int epoll_fd;                            /* -1 until hvd_event_fd */
    bool slots_left;                         /* then, ops stood in slots, and may still */

    /* The socket. */
    struct hvi_packet *packet; /* to receive into */
    uint64_t last_request;
    struct client_pending *pending;
    uint64_t looked_ns;        /* at the socket */
    bool look_due;             /* ops keep ending, and that is long ago */
    uint64_t engine_looked_ns; /* at the engine's process */
    int job_status; /* HVD_OK or what happened to the job; ops go on to the engine, which fails them
                     */
    char job_text[HVI_TEXT_MAX + 1];
    int end_status; /* HVD_OK or why this session takes no more calls */
    char end_text[HVI_TEXT_MAX + 1];

    struct client_log_line log_lines[CLIENT_LOG_LINES];
    uint32_t log_count;
};

/* Checks `session` and that this is not a forked child, and locks. `what` names the public
 * function. On an error nothing is locked and the last error is set. */
int client_session_enter(struct hvd_session *session, const char *what);
/* Unlocks, then hands waiting log lines to the user's callback. */
void client_session_leave(struct hvd_session *session);
/* HVD_OK, or sets the last error to HVD_ERR_FORKED's. No lock needed. */
int client_session_check_fork(const struct hvd_session *session, const char *what);

/* The functions below need the lock. */

/* HVD_OK while ops can be submitted, else the end status and the last error. */
int client_session_usable(struct hvd_session *session, const char *what);
/* Ends the session for the first reason given: every op in flight fails with it. The socket is shut
 * down, so that pollers wake up and the engine learns of it. */
void client_session_end(struct hvd_session *session, int status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Queues a line for the user's callback; dropped when there is none or CLIENT_LOG_LINES wait
 * already. */
void client_session_log(struct hvd_session *session, enum hvd_log_level level, const char *text);

#endif
