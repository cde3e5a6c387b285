/* SPDX-License-Identifier: Apache-2.0
 * The messages of gate.proto as plain structs; proto/wire.h says what decoding guarantees. Any thread; nothing blocks or
 * logs. */
#ifndef HVI_PROTO_GATE_H
#define HVI_PROTO_GATE_H

#include "proto/packet.h"
#include "proto/wire.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- between hvdd and its gate: packets of at most HVI_PACKET_BYTES_MAX bytes ---- */

#define HVI_GATE_REQUEST_MAX (64u * 1024u) /* bytes of an AdminRequest */
#define HVI_GATE_PART_MAX    (96u * 1024u) /* bytes of an AdminReply in one message */

struct hvi_gate_start {
    bool private_mode;
    uint32_t uid;
    int32_t log_level;
    uint64_t node; /* of this hvdd's start */
    char name[HVI_WIRE_NODE_NAME];
    char mesh_listen[HVI_WIRE_PATH]; /* ADDRESS:PORT, or "" */
    char mesh_join[HVI_WIRE_PATH];   /* HOST:PORT, or "" */
    char mesh_key[HVI_WIRE_PATH];    /* file; with mesh_seeds a folder */
    char interface[HVI_WIRE_PATH];
    uint32_t port_first, port_last;
    uint64_t start_timeout_ns;
    uint32_t max_admin, max_admin_per_user, admin_rate_per_user; /* base/limits.def */
    char mesh_seeds[HVI_WIRE_PATH];                              /* HOST:PORT,..., or "" */
    bool one_job; /* hvdrun has started hvdd, and starts no other one */
};
struct hvi_gate_ask {
    uint64_t ticket;
    uint32_t uid;
    unsigned char *request; /* allocated by decode */
    size_t request_bytes;
};
struct hvi_gate_reply {
    uint64_t ticket;
    unsigned char *part; /* allocated by decode */
    size_t part_bytes;
    bool more;
};
struct hvi_gate_beat {
    uint64_t number;
};

struct hvi_gate_state {
    int32_t status;
    char text[HVI_TEXT_MAX + 1];
    uint32_t port; /* 0: none */
    bool joined;   /* it listens, or has spoken with the one that it joins */
};
struct hvi_node_register {
    char job[HVI_JOB_ID_MAX + 1];
    uint32_t uid;
    uint64_t registration;
    char key_digest[HVI_WIRE_SHORT_TEXT];
    unsigned char *node; /* allocated by decode: a Packet with an EngineNode */
    size_t node_bytes;
};
struct hvi_node_withdraw {
    char job[HVI_JOB_ID_MAX + 1];
    uint32_t uid;
    uint64_t registration;
    int32_t status; /* HVI_OK: it ended in order */
    char text[HVI_TEXT_MAX + 1];
    int32_t rank; /* whose process has ended, without a registration; -1: it is about an engine */
};
struct hvi_node_roster {
    char job[HVI_JOB_ID_MAX + 1];
    uint32_t uid;
    uint64_t registration;
    unsigned char *roster; /* allocated by decode: a Packet with an EngineRoster */
    size_t roster_bytes;
};

struct hvi_gate_event {
    uint32_t uid;         /* whose job it is about */
    unsigned char *reply; /* allocated by decode: an AdminReply with the event */
    size_t reply_bytes;
};

/* Numbers equal the field numbers of GateMessage.body. */
enum hvi_gate_kind {
    HVI_GATE_START = 1,
    HVI_GATE_ASK,
    HVI_GATE_REPLY,
    HVI_GATE_BEAT,
    HVI_GATE_STATE,
    HVI_GATE_NODE_REGISTER,
    HVI_GATE_NODE_WITHDRAW,
    HVI_GATE_NODE_ROSTER,
    HVI_GATE_EVENT,
};
#define HVI_GATE_KIND_END (HVI_GATE_EVENT + 1)

struct hvi_gate_msg {
    enum hvi_gate_kind kind;
    union {
        struct hvi_gate_start start;
        struct hvi_gate_ask ask;
        struct hvi_gate_reply reply;
        struct hvi_gate_beat beat;
        struct hvi_gate_state state;
        struct hvi_node_register node_register;
        struct hvi_node_withdraw node_withdraw;
        struct hvi_node_roster node_roster;
        struct hvi_gate_event event;
    };
};

/* As hvi_packet_msg_encode, hvi_packet_msg_decode and hvi_packet_msg_free. */
int hvi_gate_msg_encode(const struct hvi_gate_msg *msg, unsigned char *buffer, size_t size,
                        size_t *length_p);
int hvi_gate_msg_decode(const unsigned char *bytes, size_t length, struct hvi_gate_msg *msg_p,
                        char *text_p, size_t text_size);
void hvi_gate_msg_free(struct hvi_gate_msg *msg);

/* ---- between the gates of two nodes ---- */

#define HVI_MESH_VERSION    1u
#define HVI_MESH_BYTES_MAX  (HVI_PACKET_BYTES_MAX + 4096u)
#define HVI_MESH_PACKET_MAX (HVI_PACKET_BYTES_MAX - 1024u) /* bytes of a Packet inside */

struct hvi_mesh_hello {
    char name[HVI_WIRE_NODE_NAME];
    char announced[HVI_WIRE_NODE_ADDRESS]; /* "": the address it connects from */
    char dialed[HVI_WIRE_NODE_ADDRESS];
    char version[HVI_WIRE_SHORT_TEXT]; /* "": not told */
};
struct hvi_mesh_question {
    uint64_t ticket, request;
    uint32_t what; /* enum hvi_admin_kind */
};
struct hvi_mesh_reply {
    uint64_t ticket;
    unsigned char *part; /* allocated by decode */
    size_t part_bytes;
    bool more;
};

#define HVI_MESH_HOSTS_MAX 512u /* in one message: they always fit */
struct hvi_mesh_host {
    uint64_t node;
    char name[HVI_WIRE_NODE_NAME];
    char text[HVI_WIRE_NODE_ADDRESS]; /* its address; or why it has gone */
    bool gone;
};
struct hvi_mesh_hosts {
    struct hvi_mesh_host *hosts; /* allocated by decode */
    size_t host_count;
    bool anew; /* what was told before counts no more */
};

/* Numbers equal the field numbers of MeshMessage.body. */
enum hvi_mesh_kind {
    HVI_MESH_NONE = 0, /* a sign of life */
    HVI_MESH_HELLO = 20,
    HVI_MESH_NODE_REGISTER,
    HVI_MESH_NODE_WITHDRAW,
    HVI_MESH_NODE_ROSTER,
    HVI_MESH_QUESTION,
    HVI_MESH_REPLY,
    HVI_MESH_HOSTS,
};
#define HVI_MESH_KIND_END (HVI_MESH_HOSTS + 1)

struct hvi_mesh_msg {
    uint32_t oldest, newest;
    uint64_t node, talk, peer_talk, number, heard;
    int32_t status;
    char text[HVI_TEXT_MAX + 1];
    uint64_t hvdd_silent_ns; /* 0: for less than a second */
    bool others_wait;        /* from the rendezvous: with the receiver */
    uint64_t company;        /* bits of its registrations with which they do; 0: all */
    enum hvi_mesh_kind kind;
    union {
        struct hvi_mesh_hello hello;
        struct hvi_node_register node_register;
        struct hvi_node_withdraw node_withdraw;
        struct hvi_node_roster node_roster;
        struct hvi_mesh_question question;
        struct hvi_mesh_reply reply;
        struct hvi_mesh_hosts hosts;
    };
};

/* As above. */
int hvi_mesh_msg_encode(const struct hvi_mesh_msg *msg, unsigned char *buffer, size_t size,
                        size_t *length_p);
int hvi_mesh_msg_decode(const unsigned char *bytes, size_t length, struct hvi_mesh_msg *msg_p,
                        char *text_p, size_t text_size);
void hvi_mesh_msg_free(struct hvi_mesh_msg *msg);

#endif
