/* SPDX-License-Identifier: Apache-2.0
 * What the files of hvdd-gate share. One thread, one sd-event loop; nothing here blocks. A function
 * that returns `int` returns an enum hvi_status unless it is an sd-event handler. The function that
 * decides an error logs it. */
#ifndef HVD_GATE_GATE_H
#define HVD_GATE_GATE_H

#include "base/clock.h"
#include "base/log.h"
#include "proto/gate.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <systemd/sd-event.h>

#define GATE_DESCRIPTORS_MAX 4096u /* a node is one, and strangers have room beside a whole job's */

struct gate_outgoing; /* link.c */
struct gate_admin;    /* admin.c */
struct gate_mesh;     /* mesh.c */

struct gate {
    sd_event *event;
    struct hvi_gate_start start;
    uint64_t descriptors; /* that the gate may have open */
    pid_t hvdd;           /* whose death the gate outlives for a moment; 0: it does not */

    int link_fd;       /* to hvdd */
    uint64_t heard_ns; /* when hvdd last said something, which it does four times a second */
    sd_event_source *link, *term;
    struct gate_outgoing *outbox;
    size_t outbox_bytes;

    struct gate_admin *admin;
    struct gate_mesh *mesh;

    unsigned char encoded[HVI_PACKET_BYTES_MAX]; /* scratch for one message out, one in */
    struct hvi_packet packet;
};

/* ---- limits.c: what the process may do ---- */

/* Gives up capabilities and new privileges, bounds memory and descriptors, and lets the kernel end
 * the process with its parent. Before the first byte of a stranger. Logs. */
int gate_limits_apply(struct gate *gate);
/* The kernel does not end it with its parent any more, but ends it soon after, whatever it does then. False after logging. */
bool gate_limits_outlive(struct gate *gate);

/* ---- link.c: the socket to hvdd ---- */

/* Waits for hvdd's GateStart; the listening descriptors are the caller's: admin.sock, and root.sock or -1. Logs. */
int gate_link_start(struct gate *gate, int link_fd, int listen_fds_p[2]);
/* Serves the link from the loop. Its end ends the loop. Logs. */
int gate_link_open(struct gate *gate);
/* Sends now or queues. */
void gate_link_send(struct gate *gate, const struct hvi_gate_msg *msg);
void gate_link_close(struct gate *gate);

/* ---- admin.c: admin.sock and root.sock ---- */

/* Serves both listening sockets; owns them in any case. `root_fd` may be -1. Logs. */
int gate_admin_open(struct gate *gate, int listen_fd, int root_fd);
/* The next part of hvdd's answer; takes the bytes out of `reply`. */
void gate_admin_answer(struct gate *gate, struct hvi_gate_reply *reply);
/* The answer for that connection begins anew: the parts that have come are of one that will not be whole. */
void gate_admin_anew(struct gate *gate, uint64_t number);
/* An event of hvdd's, for the subscribers that may know of it. */
void gate_admin_event(struct gate *gate, const struct hvi_gate_event *event);
/* An event of the mesh, for every subscriber; fills in its time. */
void gate_admin_mesh_event(struct gate *gate, struct hvi_event_row *row);
/* Closes every connection. */
void gate_admin_close(struct gate *gate);

/* ---- mesh.c: the gates of other nodes ---- */

/* Listens or joins, as GateStart says, and tells hvdd what became of it. Logs. */
int gate_mesh_open(struct gate *gate);
/* An engine's registration: answered by a NodeRoster for hvdd, sooner or later. While the mesh is not open it waits. May take
 * the packet out of it. */
void gate_mesh_register(struct gate *gate, struct hvi_node_register *registered);
/* It has gone. Without a number it had never registered: where the status is HVI_OK, the job begins anew here, and what its last
 * engine has said and no rendezvous has heard is over. */
void gate_mesh_withdraw(struct gate *gate, const struct hvi_node_withdraw *withdrawn);
/* hvdd has died, and none takes its place: nodes that wait for this one are told. False: nobody has to be told; else the loop
 * ends when all have heard it, or after a second. */
bool gate_mesh_orphaned(struct gate *gate);
/* hvdd ends in order. False: what it has said of a job that cannot go on is not heard yet; the loop ends when it is. */
bool gate_mesh_is_heard(struct gate *gate);
/* Asks all nodes for the connection of that number, whose request it is: which there are (`what` is HVI_ADMIN_NODES) or which
 * jobs they have (HVI_ADMIN_JOBS). The answer comes by gate_admin_answer, soon or at once, where the status is HVI_OK;
 * HVI_ERR_UNSUPPORTED: there is no mesh; HVI_ERR_LIMIT: too many ask. */
int gate_mesh_ask(struct gate *gate, uint64_t connection, uint64_t request, uint32_t what);
/* hvdd's answer to a question of the mesh. False: it is none of its. */
bool gate_mesh_answer(struct gate *gate, struct hvi_gate_reply *reply);
/* Fills in the nodes that this gate knows. */
void gate_mesh_rows(struct gate *gate, struct hvi_admin_reply *reply);
void gate_mesh_close(struct gate *gate);

#endif
