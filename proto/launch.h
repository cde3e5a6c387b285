/* SPDX-License-Identifier: Apache-2.0
 * The messages of launch.proto as plain structs, and their frames. Decoding validates everything
 * (sizes, numbers, UTF-8, limits, the form of lists), so a decoded message can be used as it is.
 * Any thread; nothing blocks or logs. */
#ifndef HVI_PROTO_LAUNCH_H
#define HVI_PROTO_LAUNCH_H

#include "base/cpuset.h"
#include "base/types.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HVI_LAUNCH_VERSION 1u
/* The agent's first bytes, before its first frame: what a login shell prints stands before them. */
#define HVI_LAUNCH_MARK "\nhvdrun --node speaks:\n"

#define HVI_LAUNCH_FRAME_HEAD  4u
#define HVI_LAUNCH_FRAME_MAX   (12u * 1024u * 1024u) /* bytes of a message */
#define HVI_LAUNCH_DATA_MAX    (256u * 1024u)        /* of output or input in one message */
#define HVI_LAUNCH_WORDS_MAX   (4u * 1024u * 1024u)  /* a command, an environment */
#define HVI_LAUNCH_SIZE_MAX    1048576               /* ranks of a job */
#define HVI_LAUNCH_STREAMS     2u
#define HVI_LAUNCH_RESULT      3u /* the stream of what a rank of hvd.run returns */
#define HVI_LAUNCH_SIGNAL_MAX  64u
#define HVI_LAUNCH_KERNEL_TEXT 64u /* a UUID, as text */

enum hvi_launch_kind {
    HVI_LAUNCH_HELLO = 1,
    HVI_LAUNCH_READY = 2,
    HVI_LAUNCH_STARTED = 3,
    HVI_LAUNCH_OUTPUT = 4,
    HVI_LAUNCH_LOG = 5,
    HVI_LAUNCH_SAY = 6,
    HVI_LAUNCH_EXITED = 7,
    HVI_LAUNCH_FAILED = 8,
    HVI_LAUNCH_INPUT_TAKEN = 9,
    HVI_LAUNCH_LOOKED = 10,
    HVI_LAUNCH_UP = 11,
    HVI_LAUNCH_TAKEN = 12,
    HVI_LAUNCH_GONE = 13,
    HVI_LAUNCH_LOST = 14,
    HVI_LAUNCH_START = 20,
    HVI_LAUNCH_GO = 21,
    HVI_LAUNCH_INPUT = 22,
    HVI_LAUNCH_INPUT_END = 23,
    HVI_LAUNCH_SIGNAL = 24,
    HVI_LAUNCH_CLOSE = 25,
    HVI_LAUNCH_END = 26,
    HVI_LAUNCH_CALL = 27,
    HVI_LAUNCH_LOOK = 28,
    HVI_LAUNCH_BEAT = 29,
    HVI_LAUNCH_OPEN = 30,
    HVI_LAUNCH_DOWN = 31,
    HVI_LAUNCH_HANG_UP = 32,
    HVI_LAUNCH_KIND_END,
};

struct hvi_launch_hello {
    uint32_t launch_version;
    char version[64];
    char machine[64];
    char address[64];
    char kernel[HVI_LAUNCH_KERNEL_TEXT];
    char cores[HVI_CPUSET_TEXT]; /* "": not known */
};
struct hvi_launch_ready {
    uint32_t torch_port; /* 0: none was free, or rank 0 is not there */
    uint32_t mesh_port;  /* 0: hvdd does not listen */
    char address[64];    /* "": none was chosen, or rank 0 is not there */
};
struct hvi_launch_started {
    int32_t *pids; /* allocated by decode, like every pointer here */
    size_t pid_count;
};
/* Output, log, input and call alike. */
struct hvi_launch_data {
    int32_t rank;    /* of output */
    uint32_t stream; /* of output: 1 to 3 */
    unsigned char *data;
    size_t bytes;
};
struct hvi_launch_exit {
    int32_t rank, pid;
    bool signaled;
    int32_t code;
    bool dying;
};
struct hvi_launch_exited {
    struct hvi_launch_exit *exits;
    size_t exit_count;
};
/* Say and failed alike. */
struct hvi_launch_text {
    char text[2048];
    uint32_t code; /* of failed: 1..255 */
};
struct hvi_launch_rank {
    int32_t rank, cross_rank, cross_size;
};
struct hvi_launch_start {
    uint32_t launch_version;
    char job[HVI_JOB_ID_MAX + 1];
    char job_key[HVI_JOB_KEY_MAX + 1];
    int32_t size;
    struct hvi_launch_rank *ranks; /* at least one, at most HVI_RANKS_MAX; each below size */
    size_t rank_count;
    /* Strings with their zero bytes, one after the other; at least one of the command. */
    unsigned char *command;
    size_t command_bytes;
    unsigned char *environment; /* each with a name and = */
    size_t environment_bytes;
    unsigned char *settings; /* likewise */
    size_t settings_bytes;
    char directory[4096];
    char address[256];
    char hvdd[4096];
    char log_level[16];
    uint64_t start_timeout_ns, grace_ns;
    bool verbose, bind_to_core, gpu_mps, compat;
    uint64_t call_bytes, silence_ns;
    uint32_t exports; /* settings that begin with HOROVOD_; no more than there are */
    char mesh_listen[320], mesh_join[320], mesh_key[256];
    char host[256];
    uint32_t ranks_before,
        ranks_there; /* there 0: all cores; else at least those before and here */
};
struct hvi_launch_go {
    char master_address[256];
    uint32_t master_port;
};
/* Input taken, signal and close alike. */
struct hvi_launch_number {
    uint32_t number;
};
struct hvi_launch_end {
    bool linger;
};
/* Of processes that a relay has started: each has a number. Up and down alike. */
struct hvi_launch_pass {
    uint32_t number;
    uint32_t stream; /* of up: 1 or 2 */
    unsigned char *data;
    size_t bytes;
};
struct hvi_launch_taken {
    uint32_t number, bytes;
};
struct hvi_launch_gone {
    uint32_t number;
    bool signaled;
    int32_t code;
};
struct hvi_launch_open {
    uint32_t number;
    unsigned char *command; /* as that of a start */
    size_t command_bytes;
    uint64_t patience_ns, silence_ns;
};
struct hvi_launch_hang_up {
    uint32_t number;
    bool kill;
};

struct hvi_launch_msg {
    enum hvi_launch_kind kind;
    union {
        struct hvi_launch_hello hello;
        struct hvi_launch_ready ready;
        struct hvi_launch_started started;
        struct hvi_launch_data data; /* output, log, input, call */
        struct hvi_launch_text text; /* say, failed, lost */
        struct hvi_launch_exited exited;
        struct hvi_launch_start start;
        struct hvi_launch_go go;
        struct hvi_launch_number number; /* input taken, signal, close */
        struct hvi_launch_end end;
        struct hvi_launch_pass pass; /* up, down */
        struct hvi_launch_taken taken;
        struct hvi_launch_gone gone;
        struct hvi_launch_open open;
        struct hvi_launch_hang_up hang_up;
    };
};

/* A whole frame, head included, on the heap. HVI_OK; HVI_ERR_INVALID for what would not decode,
 * HVI_ERR_LIMIT, HVI_ERR_NO_MEMORY. */
int hvi_launch_encode(const struct hvi_launch_msg *msg, unsigned char **frame_p, size_t *bytes_p);
/* The bytes that follow a frame's head; more than HVI_LAUNCH_FRAME_MAX is nothing to wait for. */
size_t hvi_launch_frame_bytes(const unsigned char head[HVI_LAUNCH_FRAME_HEAD]);
/* What follows the head. HVI_OK and a message for hvi_launch_msg_free; HVI_ERR_PROTOCOL with a
 * sentence; HVI_ERR_NO_MEMORY. */
int hvi_launch_decode(const unsigned char *bytes, size_t length, struct hvi_launch_msg *msg_p,
                      char *text_p, size_t text_size);
void hvi_launch_msg_free(struct hvi_launch_msg *msg);

#endif
