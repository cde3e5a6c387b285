/* SPDX-License-Identifier: Apache-2.0
 * hvi_wire: the messages of hvd.proto as plain structs. Decoding validates everything (sizes,
 * enums, UTF-8, limits), so a decoded message can be used as it is. Encoding never fails for a
 * message that would decode; HVI_ERR_INVALID otherwise. Strings are NUL-terminated and owned by the
 * message; hvi_packet_msg_free / hvi_admin_*_free release everything a decode allocated (rows,
 * attach bytes). Any thread; nothing blocks or logs. */
#ifndef HVI_PROTO_WIRE_H
#define HVI_PROTO_WIRE_H

#include "base/limits.h"
#include "base/types.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HVI_PROTOCOL_VERSION 1u

/* Of one packet (proto/packet.h). */
#define HVI_PACKET_BYTES_MAX (128u * 1024u)
#define HVI_PACKET_FDS_MAX   8u

#define HVI_WIRE_SETTINGS_MAX  64
#define HVI_WIRE_SETTING_NAME  64
#define HVI_WIRE_SETTING_VALUE 1024
#define HVI_WIRE_SHORT_TEXT    32 /* states, op names, origins, versions */
#define HVI_WIRE_PATH          256
#define HVI_WIRE_ROWS_MAX      1024 /* rows of one kind in one message */
#define HVI_WIRE_STALLS_MAX    128  /* stall rows in one message: each may list every rank */
#define HVI_WIRE_TRACES_MAX    256  /* trace rows in one message: always fit a packet */
#define HVI_WIRE_TRACE_NAME    128
#define HVI_WIRE_NODES_MAX     2048 /* nodes of a job */
#define HVI_WIRE_NODE_NAME     64
#define HVI_WIRE_NODE_ADDRESS  64
#define HVI_WIRE_LANES_MAX     8 /* connections for data between two engines */
#define HVI_WIRE_EPOCH_KEY     32
#define HVI_WIRE_CHUNKS_MAX    HVI_PACKET_FDS_MAX
#define HVI_DEVICE_CHUNKS_MAX  4096u /* of one DeviceMemory, in all its pieces */
#define HVI_WIRE_GPU_UUID      41    /* "GPU-…" with NUL */
#define HVI_WIRE_GPU_HANDLE    64

struct hvi_setting {
    char name[HVI_WIRE_SETTING_NAME];
    char value[HVI_WIRE_SETTING_VALUE];
};

struct hvi_attach_request {
    uint32_t protocol_version, abi_version;
    char job[HVI_JOB_ID_MAX + 1]; /* hvi_job_id_valid */
    char job_key[HVI_JOB_KEY_MAX + 1];
    int32_t rank, size, local_rank, local_size, cross_rank, cross_size;
    char origin[HVI_WIRE_SHORT_TEXT];
    char client_version[HVI_WIRE_SHORT_TEXT];
    struct hvi_setting *settings; /* allocated by decode */
    size_t setting_count;
    int32_t own_pid; /* 0: not told */
};

struct hvi_attach_reply {
    int32_t status;
    char text[HVI_TEXT_MAX + 1];
    uint32_t protocol_version, abi_version;
    uint64_t session, generation;
    int32_t engine_pid;
    bool fabric; /* the engine takes HVI_DEVICE_FABRIC */
};

struct hvi_region_add {
    uint64_t request;
    uint32_t region;
    uint64_t bytes;
    uint32_t process_memory;
};
struct hvi_region_remove {
    uint64_t request;
    uint32_t region;
};
enum hvi_device_kind {
    HVI_DEVICE_LEGACY = 1,
    HVI_DEVICE_VMM = 2, /* a descriptor for each chunk */
    HVI_DEVICE_POOL = 3,
    HVI_DEVICE_FABRIC = 4 /* VMM, with a fabric handle for each chunk */
};
struct hvi_device_memory {
    unsigned char uuid[HVI_UUID_BYTES];
    uint64_t address, bytes, buffer_id;        /* .address: its first byte, in the trainer */
    uint32_t kind;                             /* enum hvi_device_kind */
    unsigned char handle[HVI_WIRE_GPU_HANDLE]; /* LEGACY, POOL */
    uint64_t *chunks;                          /* VMM, FABRIC; allocated */
    size_t chunk_count;
    bool registers;        /* made for NCCL to register */
    unsigned char *fabric; /* FABRIC: HVI_WIRE_GPU_HANDLE for each chunk; allocated */
    size_t fabric_bytes;
};
struct hvi_device_add {
    uint64_t request;
    uint32_t region;
    struct hvi_device_memory memory;
    bool more;
};
struct hvi_fence_add {
    uint64_t request;
};
struct hvi_ack {
    uint64_t request;
    int32_t status;
    char text[HVI_TEXT_MAX + 1];
};
struct hvi_detach {
    uint64_t request;
};
struct hvi_timeline_start {
    uint64_t request;
    bool mark_cycles;
    char path[HVI_WIRE_PATH];
};
struct hvi_timeline_stop {
    uint64_t request;
};
struct hvi_peer_ask {
    int32_t rank;
    uint32_t region;
};
struct hvi_peer_region {
    int32_t rank;
    uint32_t region;
    uint64_t bytes; /* 0: there is none (any more) */
};
struct hvi_notice {
    int32_t status;
    char text[HVI_TEXT_MAX + 1];
    int32_t rank, pid; /* -1, 0: not about a rank */
    bool session_ended;
};

#define HVI_START_TIMEOUT_MAX (UINT64_C(1000000000) * 1000 * 1000 * 1000) /* ns: 30 years */

/* How the engine reaches ordinary memory of a rank. */
enum hvi_memory_way {
    HVI_MEMORY_NOT_TOLD,
    HVI_MEMORY_BY_ADDRESS,
    HVI_MEMORY_HIDDEN,     /* staged: the engine does not see the rank's pid namespace */
    HVI_MEMORY_OTHER_USER, /* staged: the kernel refuses, and the rank is in another user namespace */
    HVI_MEMORY_REFUSED,    /* staged: the kernel refuses */
};

struct hvi_rank_row {
    int32_t rank, pid;
    uint32_t uid;
    char state[HVI_WIRE_SHORT_TEXT];
    char process[HVI_WIRE_SHORT_TEXT];
    uint64_t ops, bytes, in_flight, lag_mean_ns, lag_max_ns, region_bytes;
    uint64_t lag_p50_ns, lag_p99_ns, lag_sum_ns, lag_ops, last_ops;
    uint64_t negotiated, replayed, express;
    int32_t seat;
    uint32_t node; /* of the job */
    int32_t own_pid;
    uint32_t memory; /* enum hvi_memory_way */
    char origin[HVI_WIRE_SHORT_TEXT];
    char text[256];
};
struct hvi_missing_rank {
    int32_t rank, pid;
    char process[HVI_WIRE_SHORT_TEXT];
    char waits_in[HVI_WIRE_TRACE_NAME];
};
struct hvi_stall_row {
    char tensor[HVI_NAME_MAX + 1];
    char op[HVI_WIRE_SHORT_TEXT];
    char job[HVI_JOB_ID_MAX + 1];
    uint64_t age_ns;
    int32_t *ready; /* allocated */
    size_t ready_count;
    struct hvi_missing_rank *missing; /* allocated */
    size_t missing_count;
    uint32_t process_set;
    uint32_t uid; /* of the job, from hvdd */
};
struct hvi_trace_row {
    int32_t rank, status;
    uint64_t number;
    char tensor[HVI_WIRE_TRACE_NAME];
    char op[HVI_WIRE_SHORT_TEXT];
    char dtype[HVI_WIRE_SHORT_TEXT];
    uint32_t process_set;
    uint64_t bytes, submit_ns, ready_ns, done_ns;
    uint64_t device_ns; /* 0: not known */
};
struct hvi_job_row {
    char job[HVI_JOB_ID_MAX + 1];
    uint64_t generation;
    uint32_t uid;
    int32_t size, attached;
    char state[HVI_WIRE_SHORT_TEXT];
    int32_t engine_pid;
    uint64_t age_ns, ops, bytes;
    uint32_t nodes; /* 0: one */
    bool withheld;  /* nodes, ops and bytes are not told */
    char node[HVI_WIRE_NODE_NAME];
};

enum hvi_link_purpose { HVI_LINK_CONTROL = 1, HVI_LINK_DATA = 2 };
struct hvi_link_row {
    uint32_t to, purpose, lane;
    uint64_t bytes_sent, bytes_received, messages_sent, messages_received, retransmits, rtt_ns;
    char transport[HVI_WIRE_SHORT_TEXT]; /* "": "tcp" */
};
struct hvi_span_row {
    char job[HVI_JOB_ID_MAX + 1];
    uint32_t uid; /* of the job, from hvdd */
    uint32_t node;
    char name[HVI_WIRE_NODE_NAME];
    char address[HVI_WIRE_NODE_ADDRESS];
    uint32_t port;
    bool here;      /* the node that was asked */
    char text[256]; /* why its part is missing; "": it is there */
    int32_t *ranks; /* allocated, as the lists that follow */
    size_t rank_count;
    struct hvi_link_row *links;
    size_t link_count;
    struct hvi_missing_rank *standing;
    size_t standing_count;
    uint64_t ahead_ns, ahead_error_ns; /* ahead: modulo 2^64 */
};

struct hvi_mesh_row {
    char node[HVI_WIRE_SHORT_TEXT];
    char name[HVI_WIRE_NODE_NAME];
    char address[HVI_WIRE_NODE_ADDRESS];
    uint32_t port;
    char state[HVI_WIRE_SHORT_TEXT];
    uint64_t heard_ns;
    char jobs[256];
    char version[HVI_WIRE_SHORT_TEXT];
    uint64_t joined_ns;
};

struct hvi_gpu_row {
    char uuid[HVI_WIRE_GPU_UUID];
    char name[HVI_WIRE_NODE_NAME];
    char job[HVI_JOB_ID_MAX + 1]; /* "": no worker */
    uint32_t uid;
    int32_t pid;
    char state[HVI_WIRE_SHORT_TEXT];
    uint64_t import_bytes, staging_bytes, own_bytes, free_bytes;
    uint32_t imports, comms;
    uint64_t batches;
    uint32_t driver_version, nccl_version;
    char links[256];
};

enum hvi_event_kind {
    HVI_EVENT_LOST = 1, /* events, for want of room */
    HVI_EVENT_RANK_LOST,
    HVI_EVENT_GENERATION_BEGAN,
    HVI_EVENT_GENERATION_ENDED,
    HVI_EVENT_ENGINE_LOST,
    HVI_EVENT_NODE_JOINED,
    HVI_EVENT_NODE_LOST,
    HVI_EVENT_STALL,
    HVI_EVENT_HOSTS_CHANGED,
    HVI_EVENT_JOB_BROKEN,
};
#define HVI_EVENT_HOSTS_MAX 64 /* names of each kind in one event */
struct hvi_event_host {
    char name[HVI_WIRE_NODE_NAME];
};
struct hvi_event_row {
    uint32_t kind; /* enum hvi_event_kind, or one of a later version */
    uint64_t at_ns;
    char job[HVI_JOB_ID_MAX + 1]; /* "": it is not about a job */
    uint32_t uid;
    uint64_t generation;
    int32_t rank, pid; /* rank -1: it is not about one */
    char node[HVI_WIRE_NODE_NAME];
    char text[HVI_TEXT_MAX + 1];
    uint64_t count;
    struct hvi_event_host *added, *removed; /* allocated by decode */
    size_t added_count, removed_count;
};

struct hvi_limit_row {
    char limit[HVI_WIRE_SHORT_TEXT]; /* its name */
    char of[HVI_WIRE_SHORT_TEXT];
    uint32_t uid;                 /* of "user", "job" and "session" */
    char job[HVI_JOB_ID_MAX + 1]; /* of "job" and "session" */
    bool counted;                 /* used is known */
    uint64_t used, most;
};

struct hvi_engine_start {
    char job[HVI_JOB_ID_MAX + 1];
    uint64_t generation;
    int32_t size;
    uint32_t uid, threads, regions_max;
    uint64_t region_bytes_max, stall_warn_ns;
    char attach_path[HVI_WIRE_PATH];
    int32_t log_level;
    uint64_t linger_ns, silence_ns;
    int32_t seats; /* 0: size */
    uint32_t port_first, port_last, net_lanes;
    bool gpu, encrypt, region_asks, one_job;
    char net_transport[HVI_WIRE_SHORT_TEXT]; /* "": "tcp" */
    char trusted_networks[HVI_WIRE_PATH];
};
struct hvi_engine_adopt {
    uint64_t session;
    /* Allocated: an encoded Packet with an attach_request, as the client sent it. At most
     * HVI_PACKET_BYTES_MAX - 128, so that this message fits a packet itself. */
    unsigned char *attach;
    size_t attach_bytes;
    int32_t pid;
    uint32_t uid, gid;
};
enum hvi_session_state {
    HVI_SESSION_STATE_ATTACHED = 1,
    HVI_SESSION_STATE_LEFT = 2,
    HVI_SESSION_STATE_LOST = 3,
    HVI_SESSION_STATE_ENDED = 4,
};
struct hvi_engine_session {
    int32_t rank, pid;
    uint32_t state; /* enum hvi_session_state */
    char text[HVI_TEXT_MAX + 1];
};
enum hvi_query_what {
    HVI_QUERY_RANKS = 1,
    HVI_QUERY_STALLS = 2,
    HVI_QUERY_TRACE = 3,
    HVI_QUERY_ALIVE = 4, /* a report of limits alone */
};
struct hvi_engine_query {
    uint64_t request;
    uint32_t what;
    uint64_t min_age_ns;
    int32_t rank; /* -1: every rank */
    uint32_t limit;
    uint64_t before;
    uint64_t silence_ns; /* ALIVE: how long the engine may stand still from now on; 0: for ever */
};
struct hvi_engine_report {
    uint64_t request;
    struct hvi_rank_row *ranks;
    size_t rank_count;
    struct hvi_stall_row *stalls;
    size_t stall_count;
    uint64_t rows_left_out;
    struct hvi_trace_row *traces;
    size_t trace_count;
    bool has_span;
    struct hvi_span_row span;
    bool more;             /* parts of other nodes follow */
    uint64_t region_bytes; /* ALIVE, with the next three: what is used of limits */
    uint32_t regions, process_sets;
    uint64_t regions_granted;
};
struct hvi_engine_stop {
    char reason[HVI_TEXT_MAX + 1];
};
struct hvi_engine_fate {
    int32_t rank, pid;
    bool signaled;
    int32_t code;
};
struct hvi_engine_node {
    int32_t size;
    int32_t *ranks; /* allocated; by seat */
    size_t rank_count;
    uint32_t port, wire_oldest, wire_newest, lanes;
    bool encrypt;
    char transport[HVI_WIRE_SHORT_TEXT]; /* "": "tcp" */
    uint64_t start_timeout_ns;           /* 0: its ranks say none */
};
struct hvi_node_row {
    char name[HVI_WIRE_NODE_NAME];
    char address[HVI_WIRE_NODE_ADDRESS];
    uint32_t port;
    int32_t *ranks; /* allocated; by seat */
    size_t rank_count;
};
struct hvi_engine_roster {
    int32_t status;
    char text[HVI_TEXT_MAX + 1];
    uint64_t epoch;
    unsigned char *key; /* allocated; HVI_WIRE_EPOCH_KEY bytes, or none with a status */
    size_t key_bytes;
    uint32_t node;              /* the receiver */
    struct hvi_node_row *nodes; /* allocated; by their lowest rank */
    size_t node_count;
    uint32_t wire, lanes;
};
struct hvi_timeline_request {
    uint32_t protocol_version;
    char job[HVI_JOB_ID_MAX + 1];
    bool of_owner; /* as in hvi_admin_request */
    uint32_t owner;
    bool start, mark_cycles;
    char path[HVI_WIRE_PATH];
};
struct hvi_engine_timeline {
    uint64_t request;
    bool start, mark_cycles;
    char path[HVI_WIRE_PATH];
    bool gpus; /* another node's, which writes the file: it takes records of GPUs */
};
struct hvi_engine_hello {
    uint32_t protocol_version;
    char job[HVI_JOB_ID_MAX + 1];
    uint64_t generation;
    int32_t size;
    uint32_t uid;
    int32_t pid;
    struct hvi_rank_row *ranks;
    size_t rank_count;
    char job_key_digest[HVI_WIRE_SHORT_TEXT];
    uint64_t started_ns;
    bool beats;    /* answers HVI_QUERY_ALIVE */
    int32_t seats; /* 0: size */
    uint64_t regions_granted;
};

struct hvi_gpu_wanted {
    uint64_t request;
    unsigned char uuid[HVI_UUID_BYTES];
    struct hvi_setting *settings; /* allocated; NCCL_* */
    size_t setting_count;
};
struct hvi_gpu_worker {
    uint64_t request; /* 0: unasked, the worker is gone */
    int32_t status;
    char text[HVI_TEXT_MAX + 1];
    unsigned char uuid[HVI_UUID_BYTES];
    uint64_t instance;
    int32_t pid;
};
struct hvi_gpu_end {
    uint64_t instance;
    char reason[HVI_TEXT_MAX + 1];
};
struct hvi_engine_fences {
    int32_t rank;
};
struct hvi_engine_regions {
    uint64_t request, bytes;
    char text[HVI_TEXT_MAX + 1];
};
struct hvi_gpu_return {
    uint32_t protocol_version;
    char job[HVI_JOB_ID_MAX + 1];
    uint32_t uid;
    unsigned char uuid[HVI_UUID_BYTES];
    uint64_t instance;
    bool has_row;
    struct hvi_gpu_row row;
    int32_t *engines; /* allocated by decode; pids */
    size_t engine_count;
};

/* Numbers equal the field numbers of Packet.body. */
enum hvi_packet_kind {
    HVI_PACKET_ATTACH_REQUEST = 1,
    HVI_PACKET_ATTACH_REPLY,
    HVI_PACKET_REGION_ADD,
    HVI_PACKET_REGION_REMOVE,
    HVI_PACKET_ACK,
    HVI_PACKET_DETACH,
    HVI_PACKET_NOTICE,
    HVI_PACKET_ENGINE_START,
    HVI_PACKET_ENGINE_ADOPT,
    HVI_PACKET_ENGINE_SESSION,
    HVI_PACKET_ENGINE_QUERY,
    HVI_PACKET_ENGINE_REPORT,
    HVI_PACKET_ENGINE_STOP,
    HVI_PACKET_ENGINE_FATE,
    HVI_PACKET_ENGINE_HELLO,
    HVI_PACKET_TIMELINE_START,
    HVI_PACKET_TIMELINE_STOP,
    HVI_PACKET_TIMELINE_REQUEST,
    HVI_PACKET_ENGINE_TIMELINE,
    HVI_PACKET_PEER_ASK,
    HVI_PACKET_PEER_REGION,
    HVI_PACKET_ENGINE_NODE,
    HVI_PACKET_ENGINE_ROSTER,
    HVI_PACKET_DEVICE_ADD,
    HVI_PACKET_FENCE_ADD,
    HVI_PACKET_GPU_WANTED,
    HVI_PACKET_GPU_WORKER,
    HVI_PACKET_GPU_END,
    HVI_PACKET_ENGINE_FENCES,
    HVI_PACKET_GPU_RETURN,
    HVI_PACKET_ENGINE_REGIONS,
};
#define HVI_PACKET_KIND_END (HVI_PACKET_ENGINE_REGIONS + 1)

struct hvi_packet_msg {
    enum hvi_packet_kind kind;
    union {
        struct hvi_attach_request attach_request;
        struct hvi_attach_reply attach_reply;
        struct hvi_region_add region_add;
        struct hvi_region_remove region_remove;
        struct hvi_ack ack;
        struct hvi_detach detach;
        struct hvi_notice notice;
        struct hvi_engine_start engine_start;
        struct hvi_engine_adopt engine_adopt;
        struct hvi_engine_session engine_session;
        struct hvi_engine_query engine_query;
        struct hvi_engine_report engine_report;
        struct hvi_engine_stop engine_stop;
        struct hvi_engine_fate engine_fate;
        struct hvi_engine_hello engine_hello;
        struct hvi_timeline_start timeline_start;
        struct hvi_timeline_stop timeline_stop;
        struct hvi_timeline_request timeline_request;
        struct hvi_engine_timeline engine_timeline;
        struct hvi_peer_ask peer_ask;
        struct hvi_peer_region peer_region;
        struct hvi_engine_node engine_node;
        struct hvi_engine_roster engine_roster;
        struct hvi_device_add device_add;
        struct hvi_fence_add fence_add;
        struct hvi_gpu_wanted gpu_wanted;
        struct hvi_gpu_worker gpu_worker;
        struct hvi_gpu_end gpu_end;
        struct hvi_engine_fences engine_fences;
        struct hvi_gpu_return gpu_return;
        struct hvi_engine_regions engine_regions;
    };
};

/* Encodes into `buffer`; *length_p becomes the bytes used. HVI_OK, HVI_ERR_INVALID (would not
 * decode), HVI_ERR_LIMIT (does not fit `size`), HVI_ERR_NO_MEMORY. */
int hvi_packet_msg_encode(const struct hvi_packet_msg *msg, unsigned char *buffer, size_t size,
                          size_t *length_p);
/* HVI_OK, HVI_ERR_PROTOCOL (with a sentence in `text_p`, which may be NULL), HVI_ERR_NO_MEMORY. On
 * error nothing needs freeing. An AttachRequest or EngineHello of a foreign version decodes (only
 * version fields are then sure to be set) so that the caller can answer HVI_ERR_VERSION with both
 * numbers. */
int hvi_packet_msg_decode(const unsigned char *bytes, size_t length, struct hvi_packet_msg *msg_p,
                          char *text_p, size_t text_size);
void hvi_packet_msg_free(struct hvi_packet_msg *msg);

/* Memory of this kind is told by its chunks, in as many messages as it takes. */
static inline bool hvi_device_has_chunks(uint32_t kind)
{
    return kind == HVI_DEVICE_VMM || kind == HVI_DEVICE_FABRIC;
}
/* Whether one message has the handles of its kind: with so many descriptors, and `more` messages to come; of what has chunks, one at
 * least. Decoding does not look at that. */
bool hvi_device_memory_has_handles(const struct hvi_device_memory *memory, uint32_t fd_count,
                                   bool more);

enum hvi_admin_kind {
    HVI_ADMIN_STATUS = 3,
    HVI_ADMIN_JOBS,
    HVI_ADMIN_RANKS,
    HVI_ADMIN_STALLS,
    HVI_ADMIN_JOB_STOP,
    HVI_ADMIN_PROCESS_EXITED,
    HVI_ADMIN_TRACE,
    HVI_ADMIN_NODES,
    HVI_ADMIN_GPUS,
    HVI_ADMIN_EVENTS,
    HVI_ADMIN_LIMITS,
};
#define HVI_ADMIN_KIND_END (HVI_ADMIN_LIMITS + 1)

struct hvi_admin_request {
    uint32_t protocol_version;
    uint64_t request;
    enum hvi_admin_kind kind;
    char job[HVI_JOB_ID_MAX + 1]; /* "" when absent (stalls of every job) */
    bool
        of_owner; /* the job of this user: several may have one of that id; limits: those of this user */
    uint32_t owner;
    uint64_t min_age_ns;
    char reason[HVI_TEXT_MAX + 1];
    int32_t rank, pid, code; /* process_exited; trace: rank, -1 for every rank */
    bool signaled;
    uint32_t limit; /* trace */
    uint64_t before;
    bool of_gate; /* limits */
    bool of_mesh; /* jobs */
};

struct hvi_daemon_status {
    char version[HVI_WIRE_SHORT_TEXT];
    int32_t pid;
    uint32_t uid;
    uint64_t uptime_ns;
    char runtime_dir[HVI_WIRE_PATH];
    char state[HVI_WIRE_SHORT_TEXT];
    uint32_t jobs, sessions;
    uint64_t attaches, refused, ranks_lost, log_lost;
    uint32_t mesh_port; /* 0: it listens for no other nodes */
    /* Of its workers of GPUs; the program "": it starts none. */
    char gpu_program[HVI_WIRE_PATH], gpu_kernels[HVI_WIRE_PATH], gpu_library_path[HVI_WIRE_PATH];
    /* Of the MPS server that it runs, or why it runs none; "": none is wanted. */
    char gpu_mps[HVI_WIRE_PATH * 4];
};

struct hvi_admin_reply {
    uint32_t protocol_version;
    uint64_t request;
    int32_t status;
    char text[HVI_TEXT_MAX + 1];
    bool has_daemon;
    struct hvi_daemon_status daemon;
    struct hvi_job_row *jobs;
    size_t job_count;
    struct hvi_rank_row *ranks;
    size_t rank_count;
    struct hvi_stall_row *stalls;
    size_t stall_count;
    uint64_t rows_left_out;
    struct hvi_trace_row *traces;
    size_t trace_count;
    struct hvi_mesh_row *nodes;
    size_t node_count;
    struct hvi_span_row *spans;
    size_t span_count;
    struct hvi_gpu_row *gpus;
    size_t gpu_count;
    struct hvi_event_row *events;
    size_t event_count;
    struct hvi_limit_row *limits;
    size_t limit_count;
};

/* As above. The encoders allocate: *bytes_p is the caller's to free(3). */
int hvi_admin_request_encode(const struct hvi_admin_request *request, unsigned char **bytes_p,
                             size_t *length_p);
int hvi_admin_request_decode(const unsigned char *bytes, size_t length,
                             struct hvi_admin_request *request_p, char *text_p, size_t text_size);
int hvi_admin_reply_encode(const struct hvi_admin_reply *reply, unsigned char **bytes_p,
                           size_t *length_p);
int hvi_admin_reply_decode(const unsigned char *bytes, size_t length,
                           struct hvi_admin_reply *reply_p, char *text_p, size_t text_size);
void hvi_admin_reply_free(struct hvi_admin_reply *reply);
/* A reply that is this one event. */
int hvi_event_encode(struct hvi_event_row *row, unsigned char **bytes_p, size_t *length_p);
/* One row more of the limit, with all else 0; reply->limits has room for HVI_WIRE_ROWS_MAX. NULL: it is full, and the row is
 * counted as left out. */
struct hvi_limit_row *hvi_limit_row_add(struct hvi_admin_reply *reply, enum hvi_limit limit,
                                        uint64_t most);

/* True for a job id that may appear in paths, logs and tables: 1..127 bytes of [A-Za-z0-9._:@-],
 * and neither "." nor "..". */
bool hvi_job_id_valid(const char *job);
/* On how many nodes a job's ranks are, by what its launcher said: at least one. A number below 1 means that nothing
 * was said. */
int32_t hvi_job_nodes(int32_t size, int32_t local_size, int32_t cross_size);

#endif
