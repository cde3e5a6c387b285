/* SPDX-License-Identifier: Apache-2.0
 * A full message of each kind. */
#include "gpu_samples.h"

#include "base/log.h"
#include "base/status.h"

#include <string.h>

static struct hvi_setting settings[2] = {{.name = "NCCL_DEBUG", .value = "INFO"},
                                         {.name = "NCCL_SOCKET_IFNAME", .value = ""}};
static uint64_t longs[HVI_GPU_COMM_RANKS_MAX];
static unsigned char fabric[HVI_WIRE_CHUNKS_MAX * HVI_WIRE_GPU_HANDLE] = {1};

static struct hvi_gpu_row row(void)
{
    return (struct hvi_gpu_row){.uuid = "GPU-12345678-1234-1234-1234-123456789012",
                                .name = "NVIDIA H200",
                                .job = "train",
                                .uid = 1000,
                                .pid = INT32_MAX,
                                .state = "up",
                                .batches = UINT64_MAX,
                                .links = "NV18 GPU-0"};
}

static struct hvi_device_memory memory(void)
{
    struct hvi_device_memory value = {.address = UINT64_MAX,
                                      .bytes = 1,
                                      .buffer_id = 5,
                                      .kind = HVI_DEVICE_FABRIC,
                                      .chunks = longs,
                                      .chunk_count = HVI_WIRE_CHUNKS_MAX,
                                      .registers = true,
                                      .fabric = fabric,
                                      .fabric_bytes = sizeof(fabric)};
    memset(value.uuid, 0x5a, sizeof(value.uuid));
    return value;
}

static void sample_of_hvdd(struct hvi_gpu_msg *msg, enum hvi_gpu_kind kind)
{
    if (kind == HVI_GPU_START)
        msg->start = (struct hvi_gpu_start){.protocol_version = HVI_PROTOCOL_VERSION,
                                            .job = "train",
                                            .uid = UINT32_MAX,
                                            .uuid = {1, 2, 3},
                                            .instance = UINT64_MAX,
                                            .attach_path = "/run/hvdd/attach.sock",
                                            .log_level = HVI_LOG_TRACE,
                                            .settings = settings,
                                            .setting_count = 2,
                                            .kernels = "/k.fatbin",
                                            .call_ns = UINT64_MAX,
                                            .comm_ns = 1,
                                            .import_bytes_max = 7,
                                            .library_path = "/usr/lib/python3/dist-packages"};
    else if (kind == HVI_GPU_BEAT)
        msg->beat.number = UINT64_MAX;
    else if (kind == HVI_GPU_ENGINE)
        msg->engine = (struct hvi_gpu_engine){UINT64_MAX, INT32_MAX, longs, HVI_GPU_COMM_RANKS_MAX};
    else if (kind == HVI_GPU_STOP)
        msg->stop = (struct hvi_gpu_stop){"idle for 60 s"};
    else
        msg->state = (struct hvi_gpu_state){HVI_GPU_FAILED, "cuInit: 999", true, row()};
}

static void sample_of_engine(struct hvi_gpu_msg *msg, enum hvi_gpu_kind kind)
{
    if (kind == HVI_GPU_HELLO)
        msg->hello = (struct hvi_gpu_hello){8,  UINT64_MAX, "NVIDIA H200", "GPU-0", 22809,
                                            "", 60,         true,          true};
    else if (kind == HVI_GPU_WELCOME)
        msg->welcome.generation = UINT64_MAX;
    else if (kind == HVI_GPU_IMPORT)
        msg->import = (struct hvi_gpu_import){5, UINT32_MAX, memory(), INT32_MAX, UINT64_MAX, true};
    else if (kind == HVI_GPU_RELEASE)
        msg->release = (struct hvi_gpu_release){5, 1};
    else if (kind == HVI_GPU_PAGE)
        msg->page = (struct hvi_gpu_page){5, UINT32_MAX};
    else if (kind == HVI_GPU_SESSION_END)
        msg->session_end = (struct hvi_gpu_session_end){1, true};
    else if (kind == HVI_GPU_ACK)
        msg->ack = (struct hvi_gpu_ack){UINT64_MAX, HVI_ERR_NO_MEMORY, "no"};
    else if (kind == HVI_GPU_COMM_ID)
        msg->comm_id = (struct hvi_gpu_comm_id){.request = 1,
                                                .id = {0, 0, 9},
                                                .check = true,
                                                .instances = longs,
                                                .instance_count = HVI_GPU_COMM_RANKS_MAX,
                                                .fresh = true,
                                                .status = HVI_ERR_LIMIT,
                                                .registered = true};
    else if (kind == HVI_GPU_COMM_JOIN)
        msg->comm_join = (struct hvi_gpu_comm_join){.request = 1,
                                                    .comm = 1,
                                                    .id = {7},
                                                    .rank = HVI_GPU_COMM_RANKS_MAX - 1,
                                                    .instances = longs,
                                                    .instance_count = HVI_GPU_COMM_RANKS_MAX};
    else if (kind == HVI_GPU_JOB)
        msg->job = (struct hvi_gpu_job){"next", UINT64_MAX};
    else if (kind == HVI_GPU_REGISTER)
        msg->registering = (struct hvi_gpu_register){UINT64_MAX, 1, UINT32_MAX};
    else
        msg->comm_drop = (struct hvi_gpu_comm_drop){UINT32_MAX, true};
}

void hvt_gpu_sample(enum hvi_gpu_kind kind, struct hvi_gpu_msg *msg_p)
{
    for (size_t i = 0; i < HVI_GPU_COMM_RANKS_MAX; i++)
        longs[i] = UINT64_MAX - i;
    memset(msg_p, 0, sizeof(*msg_p));
    msg_p->kind = kind;
    if (kind <= HVI_GPU_STATE)
        sample_of_hvdd(msg_p, kind);
    else
        sample_of_engine(msg_p, kind);
}
