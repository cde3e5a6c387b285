/* SPDX-License-Identifier: Apache-2.0
 * The two neighbours of an engine, played by a test: hvdd (struct hvt_node, which starts the real
 * hvdd-engine) and trainers (struct hvt_peer, which may also lie). Failures are check(3) failures.
 * Every wait ends after HVT_DEADLINE_NS. */
#ifndef HVT_PEER_H
#define HVT_PEER_H

#include "base/clock.h"
#include "proto/packet.h"
#include "proto/wire.h"
#include "shm/bell.h"
#include "shm/channel.h"

#include <check.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define HVT_DEADLINE_NS (10ll * 1000 * 1000 * 1000)
#define HVT_JOB         "test-job"

struct hvt_peer {
    int32_t rank, size;
    int32_t local_rank, local_size; /* rank and size, where a test says nothing else */
    int socket;                     /* -1: closed */
    int far_socket;                 /* the engine's end, until it is given away */
    pid_t pid;                      /* what the engine is told */
    int pid_fd;                     /* -1: none */
    struct hvi_channel channel;
    struct hvi_region bell_region;
    struct hvi_bell_page *bell;
    int engine_fd, event_fd;
    uint64_t seq, cookie, completions, request;
    uint32_t name_at;
    struct hvi_region regions[4]; /* region id - 1 */
    struct hvi_attach_reply reply;
};

/* ---- a trainer ---- */

/* A socketpair and an AttachRequest to come. `pid` 0: this process. */
void hvt_peer_init(struct hvt_peer *peer, int32_t rank, int32_t size, pid_t pid);
void hvt_peer_fini(struct hvt_peer *peer);
/* The AttachRequest, encoded. */
size_t hvt_peer_request(const struct hvt_peer *peer, const struct hvi_setting *settings,
                        size_t setting_count, unsigned char *bytes_p, size_t size);
/* Receives the AttachReply and maps what came with it if it says HVI_OK; returns its status. */
int hvt_peer_meet(struct hvt_peer *peer);

/* A submission of this kind over `count` elements at the start of region `region` (in place),
 * filled in as an honest library would, not yet sent. */
struct hvi_submission hvt_peer_op(struct hvt_peer *peer, uint16_t kind, uint32_t dtype,
                                  uint64_t count, uint32_t region);
/* Names the tensor; its id is `id`. */
void hvt_peer_name(struct hvt_peer *peer, struct hvi_submission *op, uint32_t id, const char *name);
/* Publishes it as it is, with the next seq unless it has one, and rings. Returns its cookie. */
uint64_t hvt_peer_submit(struct hvt_peer *peer, struct hvi_submission *op);
/* The next completion; fails when none comes in time. */
struct hvi_completion hvt_peer_complete(struct hvt_peer *peer, char *text_p, size_t text_size);
bool hvt_peer_has_completion(struct hvt_peer *peer);
bool hvt_peer_has_message(const struct hvt_peer *peer);

/* Sends a message with an optional descriptor. */
void hvt_peer_send(struct hvt_peer *peer, const struct hvi_packet_msg *msg, int fd);
/* The next message of this kind; messages of other kinds are skipped. False at end of file. */
bool hvt_peer_expect(struct hvt_peer *peer, enum hvi_packet_kind kind,
                     struct hvi_packet_msg *msg_p);
/* Registers a new region; returns the status of the Ack. */
int hvt_peer_add_region(struct hvt_peer *peer, uint32_t id, uint64_t bytes);
int hvt_peer_remove_region(struct hvt_peer *peer, uint32_t id);
void *hvt_peer_memory(struct hvt_peer *peer, uint32_t region);

/* ---- hvdd ---- */

struct hvt_node {
    pid_t pid;
    int link;
    uint64_t session;
};

struct hvi_engine_start hvt_node_defaults(int32_t size);
/* Starts the real engine. */
void hvt_node_start(struct hvt_node *node, const struct hvi_engine_start *start);
/* Hands a trainer over, waits for its reply and for EngineSession; returns the reply's status. */
int hvt_node_adopt(struct hvt_node *node, struct hvt_peer *peer, const struct hvi_setting *settings,
                   size_t setting_count);
void hvt_node_send(struct hvt_node *node, const struct hvi_packet_msg *msg, const int *fds,
                   uint32_t fd_count);
bool hvt_node_expect(struct hvt_node *node, enum hvi_packet_kind kind,
                     struct hvi_packet_msg *msg_p);
/* Waits for the engine to end; returns its wait status. */
int hvt_node_wait(struct hvt_node *node);
/* Stops the job of an engine that has not ended. It ends in good order: fails if it does not. */
void hvt_node_fini(struct hvt_node *node);

#endif
