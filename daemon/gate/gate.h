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

struct gate_outgoing; /* link.c */
struct gate_admin;    /* admin.c */

struct gate {
    sd_event *event;
    struct hvi_gate_start start;
    uint64_t descriptors; /* that the gate may have open */

    int link_fd; /* to hvdd */
    sd_event_source *link, *term;
    struct gate_outgoing *outbox;
    size_t outbox_bytes;

    struct gate_admin *admin;

    unsigned char encoded[HVI_PACKET_BYTES_MAX]; /* scratch for one message out, one in */
    struct hvi_packet packet;
};

/* ---- limits.c: what the process may do ---- */

/* Gives up capabilities and new privileges, bounds memory and descriptors, and lets the kernel end
 * the process with its parent. Before the first byte of a stranger. Logs. */
int gate_limits_apply(struct gate *gate);

/* ---- link.c: the socket to hvdd ---- */

/* Waits for hvdd's GateStart; the listening descriptor is the caller's. Logs. */
int gate_link_start(struct gate *gate, int link_fd, int *listen_fd_p);
/* Serves the link from the loop. Its end ends the loop. Logs. */
int gate_link_open(struct gate *gate);
/* Sends now or queues. */
void gate_link_send(struct gate *gate, const struct hvi_gate_msg *msg);
void gate_link_close(struct gate *gate);

/* ---- admin.c: admin.sock ---- */

/* Serves the listening socket; owns it in any case. Logs. */
int gate_admin_open(struct gate *gate, int listen_fd);
/* The next part of hvdd's answer; takes the bytes out of `reply`. */
void gate_admin_answer(struct gate *gate, struct hvi_gate_reply *reply);
/* Closes every connection. */
void gate_admin_close(struct gate *gate);

#endif
