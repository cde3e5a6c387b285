/* SPDX-License-Identifier: Apache-2.0
 * Inside net/: a connection until it is handed over. Main thread. */
#ifndef ENGINE_NET_CONN_H
#define ENGINE_NET_CONN_H

#include "daemon/engine/net/net.h"

struct engine_net_node {
    struct sockaddr_storage address;
    char host[ENGINE_NET_ADDRESS_TEXT], place[ENGINE_NET_ADDRESS_TEXT]; /* place: with the port */
    char name[ENGINE_NET_NAME];
    uint16_t handed; /* a bit for each connection that its receiver has */
    uint16_t gone;   /* and for each that a receiver has closed */
};

/* A connection in its handshake. */
struct engine_net_conn {
    int fd;
    sd_event_source *io;
    struct engine_net_handshake handshake;
};

/* ---- conn.c ---- */

/* Moves bytes until the socket has no more. identity: NULL before the start. HVI_INPROGRESS; HVI_OK: the
 * handshake is over; HVI_ERR_PROTOCOL or HVI_ERR_CLOSED: *why_p is valid until the next call. */
int engine_net_conn_work(struct engine_net_conn *conn, const struct engine_net_identity *identity,
                         const char **why_p);
void engine_net_conn_close(struct engine_net_conn *conn);
/* Hands the connection, whose handshake is over, to its receiver. What it belonged to has to be gone. */
void engine_net_conn_hand_over(struct engine_net *net, int fd,
                               const struct engine_net_handshake *handshake);
/* Logs at most once a second, and counts the others. */
void engine_net_conn_log_refusal(struct engine_net *net, const struct sockaddr_storage *peer,
                                 const char *why);
uint16_t engine_net_conn_bit(enum engine_net_purpose purpose, uint32_t lane);

/* ---- pace.c ---- */

/* Before connect(), or before the first connection to a listening socket, whose connections have it too. */
void engine_net_pace_begin(struct engine_net *net, int fd);
/* The connection is there. */
void engine_net_pace_settle(const struct engine_net *net, int fd, uint32_t round_trip_us);
uint32_t engine_net_pace_round_trip(int fd);

/* ---- address.c ---- */

/* HVI_OK, or HVI_ERR_INVALID: this is no numeric address. */
int engine_net_address_parse(const char *text, uint16_t port, struct sockaddr_storage *address_p);
socklen_t engine_net_address_length(const struct sockaddr_storage *address);
uint16_t engine_net_address_port(const struct sockaddr_storage *address);
/* An IPv4 address is one also where it came through an IPv6 socket. */
void engine_net_address_plain(struct sockaddr_storage *address);
void engine_net_address_host(const struct sockaddr_storage *address,
                             char text_p[ENGINE_NET_ADDRESS_TEXT]);
/* "10.0.0.2:9601", "[::1]:9601" */
void engine_net_address_place(const struct sockaddr_storage *address,
                              char text_p[ENGINE_NET_ADDRESS_TEXT]);
/* Whether limits count them as one; both are plain. */
bool engine_net_address_near(const struct sockaddr_storage *a, const struct sockaddr_storage *b);

/* ---- listen.c ---- */

/* Takes up the handshakes of those that have come before the start. */
void engine_net_listen_resume(struct engine_net *net);
void engine_net_listen_close(struct engine_net *net);

/* ---- connect.c ---- */

/* Such a connection has come: it is no longer wanted. */
void engine_net_wish_fulfil(struct engine_net *net, uint32_t node, enum engine_net_purpose purpose,
                            uint32_t lane);
void engine_net_wish_close_all(struct engine_net *net);

#endif
