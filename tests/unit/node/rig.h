/* SPDX-License-Identifier: Apache-2.0
 * A real hvdd with the fake engine in a directory of its own, and clients that speak the wire to it. Every function
 * fails the test when it cannot do its work within its deadline. One rig per test; rig_fini checks that hvdd and its
 * engines have left nothing behind. */
#ifndef HVT_NODE_RIG_H
#define HVT_NODE_RIG_H

#include "proto/packet.h"
#include "proto/wire.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define SERVICE 64738 /* nobody's user id, for a hvdd that serves several users */
#define RIG_MS  10000 /* longest wait for anything */

struct rig {
    char base[64], dir[96], log[96], conf[96];
    pid_t pid;
    int parent_fd; /* write end of --parent-fd, -1 */
    int notify_fd; /* NOTIFY_SOCKET, -1 */
    uid_t uid;     /* hvdd runs as; 0: as we do */
    int listen_fd; /* passed as LISTEN_FDS, -1 */
    long nofile;   /* limit of descriptors, 0: ours */
};

void rig_init(struct rig *rig);
/* SIGKILLs what is left and removes everything; fails when an engine is still there after hvdd has ended. */
void rig_fini(struct rig *rig);
/* hvdd will run as `uid`, if we are root and can choose: before rig_start. */
void rig_become(struct rig *rig, uid_t uid);
/* Starts hvdd with `arguments` (NULL-terminated, may be NULL) and waits until it is ready. */
void rig_start(struct rig *rig, const char *const *arguments);
/* The same for a hvdd that is expected not to become ready: returns its exit code. */
int rig_start_failing(struct rig *rig, const char *const *arguments);
/* Waits for the exit code (or 128 + signal). */
int rig_wait(struct rig *rig);
void rig_kill(struct rig *rig, int signal);
/* How often a string stands in hvdd's log. */
int rig_log_count(const struct rig *rig, const char *needle);
void rig_wait_log(const struct rig *rig, const char *needle, int times);
/* Processes whose command line is that of an engine and whose link or hello belongs to us: children of ours or init. */
int rig_engines(const struct rig *rig);
void rig_wait_engines(const struct rig *rig, int count);
bool rig_exists(const struct rig *rig, const char *name);

struct hvi_attach_request *rig_request(const char *job, int32_t rank, int32_t size);
int rig_connect(const struct rig *rig);
void rig_send(int fd, const struct hvi_packet_msg *msg);
void rig_send_attach(int fd, const struct hvi_attach_request *request);
/* The next message, which must be an AttachReply; false: end of file. */
bool rig_read_reply(int fd, struct hvi_attach_reply *reply_p);
/* Connects and attaches; the reply must be `status`. Returns the open socket when hvdd knows as well. */
int rig_attach(const struct rig *rig, const struct hvi_attach_request *request, int status,
               struct hvi_attach_reply *reply_p);
/* attach with status OK */
int rig_join(const struct rig *rig, const char *job, int32_t rank, int32_t size);
void rig_detach(int fd);

/* An admin request; free the reply with hvi_admin_reply_free. */
void rig_ask(const struct rig *rig, const struct hvi_admin_request *request,
             struct hvi_admin_reply *reply_p);

#endif
