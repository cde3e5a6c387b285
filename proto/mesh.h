/* SPDX-License-Identifier: Apache-2.0
 * hvi_mesh: the messages of mesh.proto as plain structs, as in proto/wire.h. Lists that a decode has
 * made go with hvi_mesh_free; an encode only reads them. Any thread; nothing blocks or logs. */
#ifndef HVI_PROTO_MESH_H
#define HVI_PROTO_MESH_H

#include "base/types.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HVI_MESH_NODES_MAX  1048576u
#define HVI_MESH_RANKS_MAX  1048576u
#define HVI_MESH_BYTES_MAX  (1024u * 1024u) /* one message of a control connection */
#define HVI_MESH_PART_MAX   (128u * 1024u)  /* a Packet in it */
#define HVI_MESH_GPUS_MAX   8192u           /* workers of one communicator */
#define HVI_MESH_MEMORY_ANY 255u            /* no bytes: host or GPU */

enum hvi_mesh_what {
    HVI_MESH_BROUGHT = 1, /* report: every rank of the node has come, or has joined */
    HVI_MESH_SIZED = 2,   /* report: every output here takes its result. Verdict: ask for them */
    HVI_MESH_STARTS = 3,  /* verdict: it is carried out now */
    HVI_MESH_FAILED =
        4, /* report: it has failed before all came. Verdict: it is over on every rank */
    HVI_MESH_GIVE_UP = 5, /* report: what was brought should fail, if it has not started */
    HVI_MESH_RETRACT = 6, /* report: a rank takes its part back. Verdict: it was in time */
    /* Of a SEND the receiver's node decides. BROUGHT, RETRACT and GIVE_UP of the sender's node become
     * verdicts for it. Its reports are SIZED (a recv has met the send: it starts on both nodes), RETRACT
     * and FAILED, which become verdicts for the sender's node. */

    /* Of no op: .set is 0 and .tensor empty. See order/schedule.h. */
    HVI_MESH_REPEATS = 32, /* verdict: the last works repeat without verdicts */
    HVI_MESH_HALT = 33,    /* report: they should not. Verdict: they do not */
    HVI_MESH_HALTED = 34,  /* report: so far this node has come */
    HVI_MESH_RESUMES = 35, /* verdict: so far all have come, and ops are reported again */
};

struct hvi_mesh_name {
    unsigned char *name; /* UTF-8 without NUL */
    size_t name_bytes;   /* 0: unnamed */
    uint32_t kind;
    uint64_t number;
};
struct hvi_mesh_said {
    uint32_t kind, dtype, reduce_op;
    int32_t root;
    uint64_t prescale, postscale; /* bits of the double */
    int64_t *dims;
    size_t ndim;
    uint32_t group_size, group_index;
    struct hvi_mesh_name leader;
    bool has_leader;
    int64_t *integers;
    size_t integer_count;
    int32_t *places;
    size_t place_count;  /* 0: all members of the node */
    uint64_t *instances; /* memory of GPUs: the workers, one for each of these members */
    size_t instance_count;
    uint32_t memory; /* enum hvi_memory, or HVI_MESH_MEMORY_ANY */
};
/* A send between nodes. The tensor's name has its tag. */
struct hvi_mesh_pair {
    int32_t from, to;
    uint64_t id; /* the sender's node's */
};
struct hvi_mesh_report {
    uint32_t what;
    uint64_t seen;
    uint32_t set;
    uint64_t serial;
    uint32_t kind;
    struct hvi_mesh_name tensor;
    bool has_tensor;
    struct hvi_mesh_said *said;
    size_t said_count;
    uint64_t room;
    bool more;
    int32_t last;
    int32_t status, culprit;
    char text[HVI_TEXT_MAX + 1];
    struct hvi_mesh_pair pair; /* SEND */
    bool has_pair;
    uint64_t id; /* SET_OPEN: the node's */
    uint64_t sequence;
};
struct hvi_mesh_verdict {
    uint32_t what;
    uint64_t number, sequence;
    uint32_t set;
    uint64_t serial;
    uint32_t kind;
    struct hvi_mesh_name tensor;
    bool has_tensor;
    int32_t *joined;
    size_t joined_count;
    int64_t *rows;
    size_t row_count;
    int32_t last;
    int32_t status, culprit;
    char text[HVI_TEXT_MAX + 1];
    struct hvi_mesh_pair pair;
    bool has_pair;
    uint64_t id;
    struct hvi_mesh_said said;
    bool has_said;
    uint32_t new_set;
    uint64_t new_serial;
    uint64_t *instances; /* memory of GPUs: the workers, by set rank; 0: it has none there */
    size_t instance_count;
    uint64_t least;
    uint32_t count;
};
struct hvi_mesh_broken {
    int32_t status, culprit;
    char text[HVI_TEXT_MAX + 1];
};
struct hvi_mesh_ask {
    uint64_t number;
    unsigned char *query; /* a Packet; none: the clock alone */
    size_t query_bytes;
};
struct hvi_mesh_answer {
    uint64_t number;
    uint64_t heard_ns, said_ns; /* the sender's clock */
    unsigned char *report;      /* a Packet, or records */
    size_t report_bytes;
};
/* Of a communicator with workers on several nodes. The first node is the one with its rank 0. */
enum hvi_mesh_gpu_what {
    HVI_MESH_GPU_READY = 1, /* to the first node: the workers here can join */
    HVI_MESH_GPU_JOIN = 2,  /* from the first node: all can, and this is the id */
    HVI_MESH_GPU_FAILED =
        3, /* to the first node, and from it to all: there is no such communicator */
    /* To the first node: works up to this one have begun on all workers here, or are over. From the first node: on all nodes
     * but the receiver. An OVER with a status: this one has failed. */
    HVI_MESH_GPU_BEGUN = 4,
    HVI_MESH_GPU_OVER = 5,
    /* To the first node: tentative works up to this one have been started here. From the first node: on all nodes. */
    HVI_MESH_GPU_STARTED = 6,
};
struct hvi_setting;
struct hvi_mesh_gpu {
    uint32_t what;
    uint64_t *instances; /* by rank of the communicator */
    size_t instance_count;
    unsigned char id[HVI_NCCL_ID_BYTES];
    uint32_t nccl_version;
    int32_t status;
    char text[HVI_TEXT_MAX + 1];
    uint64_t sequence;
    bool says_settings;           /* READY of a node that knows .settings */
    struct hvi_setting *settings; /* NCCL_* of its lowest rank; their names are not checked */
    size_t setting_count;
};
struct hvi_mesh_packet {
    uint32_t from, to;
    bool all;   /* a verdict for every node: .to is 0, its number counts such ones */
    bool below; /* a report that each node from .from on down says alike */
    bool has_report, has_verdict, has_broken, has_ask, has_answer, has_gpu;
    struct hvi_mesh_report report;
    struct hvi_mesh_verdict verdict;
    struct hvi_mesh_broken broken;
    struct hvi_mesh_ask ask;
    struct hvi_mesh_answer answer;
    struct hvi_mesh_gpu gpu;
};

/* *bytes_p is the caller's to free(3). HVI_OK, HVI_ERR_INVALID (would not decode), HVI_ERR_LIMIT,
 * HVI_ERR_NO_MEMORY. */
int hvi_mesh_encode(const struct hvi_mesh_packet *packet, unsigned char **bytes_p,
                    size_t *length_p);
/* HVI_OK, HVI_ERR_PROTOCOL with a sentence, HVI_ERR_NO_MEMORY. On error nothing needs freeing. */
int hvi_mesh_decode(const unsigned char *bytes, size_t length, struct hvi_mesh_packet *packet_p,
                    char *text_p, size_t text_size);
void hvi_mesh_free(struct hvi_mesh_packet *packet);

#endif
