/* SPDX-License-Identifier: Apache-2.0
 * The messages of gpu.proto as plain structs; proto/wire.h says what decoding guarantees. Any thread; nothing blocks or
 * logs. */
#ifndef HVI_PROTO_GPU_H
#define HVI_PROTO_GPU_H

#include "proto/wire.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HVI_GPU_COMM_RANKS_MAX                                                                     \
    8192u /* workers of one communicator: its GpuCommJoin fits a packet */

struct hvi_gpu_start {
    uint32_t protocol_version;
    char job[HVI_JOB_ID_MAX + 1];
    uint32_t uid;
    unsigned char uuid[HVI_UUID_BYTES];
    uint64_t instance;
    char attach_path[HVI_WIRE_PATH];
    int32_t log_level;
    struct hvi_setting *settings; /* allocated by decode; NCCL_* */
    size_t setting_count;
    char kernels[HVI_WIRE_PATH]; /* "": the image that is built in */
    uint64_t call_ns, comm_ns;   /* 0: the defaults */
    uint64_t import_bytes_max;   /* 0: no limit */
    char library_path[HVI_WIRE_SETTING_VALUE];
};
struct hvi_gpu_beat {
    uint64_t number;
};
struct hvi_gpu_engine {
    uint64_t generation;
    int32_t engine_pid;
    uint64_t *instances; /* of the job's workers that live; none: not said */
    size_t instance_count;
};
struct hvi_gpu_stop {
    char reason[HVI_TEXT_MAX + 1];
};
struct hvi_gpu_job {
    char job[HVI_JOB_ID_MAX + 1];
    uint64_t instance;
};
enum hvi_gpu_state_number { HVI_GPU_UP = 1, HVI_GPU_FAILED = 2, HVI_GPU_STARTING = 3 };
struct hvi_gpu_state {
    uint32_t state; /* enum hvi_gpu_state_number */
    char text[HVI_TEXT_MAX + 1];
    bool has_row;
    struct hvi_gpu_row row;
};
struct hvi_gpu_hello {
    uint32_t abi_version;
    uint64_t instance;
    char name[HVI_WIRE_NODE_NAME];
    char uuid[HVI_WIRE_GPU_UUID];
    uint32_t nccl_version;
    char nccl_text[HVI_TEXT_MAX + 1];
    uint64_t comm_ns; /* the longest join */
    bool registers;
    bool fabric; /* it knows HVI_DEVICE_FABRIC */
};
struct hvi_gpu_welcome {
    uint64_t generation;
};
struct hvi_gpu_import {
    uint64_t request;
    uint32_t import;
    struct hvi_device_memory memory;
    int32_t pid;
    uint64_t process_start;
    bool more;
};
struct hvi_gpu_release {
    uint64_t request;
    uint32_t import;
};
struct hvi_gpu_page {
    uint64_t request;
    uint32_t page;
};
struct hvi_gpu_session_end {
    uint32_t page;
    bool process_over;
};
struct hvi_gpu_ack {
    uint64_t request;
    int32_t status;
    char text[HVI_TEXT_MAX + 1];
};
struct hvi_gpu_comm_id {
    uint64_t request;
    unsigned char id[HVI_NCCL_ID_BYTES]; /* zeros: the question, or there is none */
    char text[HVI_TEXT_MAX + 1];
    bool check;
    uint64_t *instances; /* allocated by decode; by rank */
    size_t instance_count;
    bool fresh;
    int32_t status;
    bool registered;
};
struct hvi_gpu_comm_join {
    uint64_t request;
    uint32_t comm;
    unsigned char id[HVI_NCCL_ID_BYTES];
    uint32_t rank;
    uint64_t *instances; /* allocated by decode; by rank */
    size_t instance_count;
    bool fresh;
};
struct hvi_gpu_comm_drop {
    uint32_t comm;
    bool abort;
};
struct hvi_gpu_register {
    uint64_t request;
    uint32_t comm, import;
};

/* Numbers equal the field numbers of GpuPacket.body. */
enum hvi_gpu_kind {
    HVI_GPU_START = 1,
    HVI_GPU_BEAT,
    HVI_GPU_ENGINE,
    HVI_GPU_STOP,
    HVI_GPU_STATE,
    HVI_GPU_HELLO,
    HVI_GPU_WELCOME,
    HVI_GPU_IMPORT,
    HVI_GPU_RELEASE,
    HVI_GPU_PAGE,
    HVI_GPU_SESSION_END,
    HVI_GPU_ACK,
    HVI_GPU_COMM_ID,
    HVI_GPU_COMM_JOIN,
    HVI_GPU_COMM_DROP,
    HVI_GPU_JOB,
    HVI_GPU_REGISTER,
};
#define HVI_GPU_KIND_END (HVI_GPU_REGISTER + 1)

struct hvi_gpu_msg {
    enum hvi_gpu_kind kind;
    union {
        struct hvi_gpu_start start;
        struct hvi_gpu_beat beat;
        struct hvi_gpu_engine engine;
        struct hvi_gpu_stop stop;
        struct hvi_gpu_state state;
        struct hvi_gpu_hello hello;
        struct hvi_gpu_welcome welcome;
        struct hvi_gpu_import import;
        struct hvi_gpu_release release;
        struct hvi_gpu_page page;
        struct hvi_gpu_session_end session_end;
        struct hvi_gpu_ack ack;
        struct hvi_gpu_comm_id comm_id;
        struct hvi_gpu_comm_join comm_join;
        struct hvi_gpu_comm_drop comm_drop;
        struct hvi_gpu_job job;
        struct hvi_gpu_register registering;
    };
};

/* As hvi_packet_msg_encode, hvi_packet_msg_decode and hvi_packet_msg_free. Of a GpuStart of a foreign version only that
 * version is read. */
int hvi_gpu_msg_encode(const struct hvi_gpu_msg *msg, unsigned char *buffer, size_t size,
                       size_t *length_p);
int hvi_gpu_msg_decode(const unsigned char *bytes, size_t length, struct hvi_gpu_msg *msg_p,
                       char *text_p, size_t text_size);
void hvi_gpu_msg_free(struct hvi_gpu_msg *msg);

#endif
