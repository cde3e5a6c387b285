/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/gpu/hvt_worker.h"

#include "base/clock.h"
#include "base/fate.h"
#include "base/status.h"
#include "base/uuid.h"
#include "shm/abi.h"
#include "tests/unit/hvt_main.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static unsigned char bytes[HVI_PACKET_BYTES_MAX];

/* ---- hvdd ---- */

void hvt_worker_send(int fd, const struct hvi_gpu_msg *msg, const int *fds, uint32_t fd_count)
{
    size_t length;

    ck_assert_int_eq(hvi_gpu_msg_encode(msg, bytes, sizeof(bytes), &length), HVI_OK);
    ck_assert_int_eq(
        hvi_packet_send(fd, bytes, length, fds, fd_count, hvi_deadline_after(HVT_PATIENCE_NS)),
        HVI_OK);
}

void hvt_worker_hear(struct hvt_worker *worker, int fd)
{
    char text[200] = "";
    int status = hvi_packet_receive(fd, &worker->packet, hvi_deadline_after(HVT_PATIENCE_NS));

    ck_assert_msg(status == HVI_OK, "%s", hvi_status_text(status));
    ck_assert_msg(hvi_gpu_msg_decode(worker->packet.bytes, worker->packet.length, &worker->msg,
                                     text, sizeof(text)) == HVI_OK,
                  "%s", text);
}

void hvt_worker_expect_closed(struct hvt_worker *worker, int fd)
{
    int status;

    do {
        status = hvi_packet_receive(fd, &worker->packet, hvi_deadline_after(HVT_PATIENCE_NS));
        if (status == HVI_OK)
            hvi_packet_close_fds(&worker->packet);
    } while (status == HVI_OK);
    ck_assert_int_eq(status, HVI_ERR_CLOSED);
}

static void run(int fd)
{
    char path[400];

    snprintf(path, sizeof(path), "%s/libexec/hvdd/hvdd-gpu", getenv("HVD_BUILD_DIR"));
    if (dup2(fd, 3) != 3)
        _exit(97);
    execl(path, "hvdd-gpu", (char *)NULL);
    _exit(98);
}

void hvt_worker_start(struct hvt_worker *worker, int gpu, const struct hvt_worker_wish *wish)
{
    struct hvi_gpu_msg start = {.kind = HVI_GPU_START,
                                .start = {.protocol_version = HVI_PROTOCOL_VERSION,
                                          .job = "train",
                                          .uid = 1000,
                                          .instance = 70 + (uint64_t)gpu,
                                          .call_ns = wish->call_ns,
                                          .comm_ns = wish->comm_ns}};
    char uuid[HVI_WIRE_GPU_UUID];
    int ends[2];

    signal(SIGPIPE, SIG_IGN);
    snprintf(start.start.attach_path, sizeof(start.start.attach_path), "%s",
             wish->attach_path == NULL ? "/run/hvdd/nothing.sock" : wish->attach_path);
    snprintf(uuid, sizeof(uuid), "GPU-66616b65-2067-7075-206f-66206e6f00%02x", gpu);
    ck_assert(hvi_uuid_parse(wish->uuid == NULL ? uuid : wish->uuid, start.start.uuid));
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    *worker = (struct hvt_worker){.gpu = gpu,
                                  .instance = start.start.instance,
                                  .link_fd = ends[0],
                                  .engine_fd = -1,
                                  .wake_fd = -1,
                                  .event_fd = -1};
    worker->pid = fork();
    ck_assert_int_ge(worker->pid, 0);
    if (worker->pid == 0)
        run(ends[1]);
    close(ends[1]);
    hvt_worker_send(worker->link_fd, &start, NULL, 0);
}

void hvt_worker_expect_state(struct hvt_worker *worker, enum hvi_gpu_state_number state)
{
    do {
        hvt_worker_hear(worker, worker->link_fd);
        ck_assert_int_eq(worker->msg.kind, HVI_GPU_STATE);
    } while (worker->msg.state.state == HVI_GPU_STARTING);
    ck_assert_msg(worker->msg.state.state == state, "%s", worker->msg.state.text);
}

void hvt_worker_pass(struct hvt_worker *worker, const char *job, uint64_t instance)
{
    struct hvi_gpu_msg told = {.kind = HVI_GPU_JOB, .job = {.instance = instance}};

    snprintf(told.job.job, sizeof(told.job.job), "%s", job);
    hvt_worker_send(worker->link_fd, &told, NULL, 0);
    hvt_worker_expect_state(worker, HVI_GPU_UP);
    ck_assert_uint_eq(worker->msg.state.row.imports, 0);
    ck_assert_uint_eq(worker->msg.state.row.import_bytes, 0);
    hvt_worker_hear(worker, worker->link_fd);
    ck_assert_int_eq(worker->msg.kind, HVI_GPU_JOB);
    ck_assert_str_eq(worker->msg.job.job, job);
    ck_assert_uint_eq(worker->msg.job.instance, instance);
    worker->instance = instance;
}

int hvt_worker_end(struct hvt_worker *worker)
{
    int status;

    ck_assert_int_eq(waitpid(worker->pid, &status, 0), worker->pid);
    worker->pid = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void hvt_worker_stop(struct hvt_worker *worker)
{
    struct hvi_gpu_msg stop = {.kind = HVI_GPU_STOP, .stop = {"the test is over"}};

    if (worker->pid > 0) {
        hvt_worker_send(worker->link_fd, &stop, NULL, 0);
        ck_assert_int_eq(hvt_worker_end(worker), 0);
    }
    hvt_engine_close(worker);
    close(worker->link_fd);
}

/* ---- the engine ---- */

void hvt_engine_tell(struct hvt_worker *worker)
{
    struct hvi_gpu_msg told = {
        .kind = HVI_GPU_ENGINE,
        .engine = {.generation = HVT_GENERATION, .engine_pid = (int32_t)getpid()}};
    int ends[2];

    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    hvt_worker_send(worker->link_fd, &told, &ends[1], 1);
    close(ends[1]);
    worker->engine_fd = ends[0];
}

void hvt_engine_greet(struct hvt_worker *worker)
{
    struct hvi_gpu_msg welcome = {.kind = HVI_GPU_WELCOME, .welcome = {HVT_GENERATION}};

    hvt_worker_hear(worker, worker->engine_fd);
    ck_assert_int_eq(worker->msg.kind, HVI_GPU_HELLO);
    ck_assert_uint_eq(worker->packet.fd_count, 2);
    ck_assert_int_eq(hvi_device_map(hvi_packet_take_fd(&worker->packet, 0), &worker->channel),
                     HVI_OK);
    worker->wake_fd = hvi_packet_take_fd(&worker->packet, 1);
    worker->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    hvt_worker_send(worker->engine_fd, &welcome, &worker->event_fd, 1);
    worker->batches = worker->answers = 0;
}

void hvt_engine_open(struct hvt_worker *worker)
{
    hvt_engine_tell(worker);
    hvt_engine_greet(worker);
}

void hvt_engine_close(struct hvt_worker *worker)
{
    int *const fds[] = {&worker->engine_fd, &worker->wake_fd, &worker->event_fd};

    for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++) {
        if (*fds[i] >= 0)
            close(*fds[i]);
        *fds[i] = -1;
    }
    if (worker->channel.header != NULL)
        hvi_device_fini(&worker->channel);
}

void hvt_engine_expect_ack(struct hvt_worker *worker, uint64_t request, int status)
{
    hvt_worker_hear(worker, worker->engine_fd);
    ck_assert_int_eq(worker->msg.kind, HVI_GPU_ACK);
    ck_assert_uint_eq(worker->msg.ack.request, request);
    ck_assert_msg(worker->msg.ack.status == status, "%s: %s",
                  hvi_status_name(worker->msg.ack.status), worker->msg.ack.text);
}

void hvt_engine_page(struct hvt_worker *worker, uint32_t number, const struct hvi_fence_page *page)
{
    struct hvi_gpu_msg told = {.kind = HVI_GPU_PAGE, .page = {++worker->requests, number}};

    hvt_worker_send(worker->engine_fd, &told, &page->map.fd, 1);
    hvt_engine_expect_ack(worker, worker->requests, HVI_OK);
}

/* Before its first import is answered. Where hvdd is there. */
static void expect_used(struct hvt_worker *worker)
{
    if (worker->link_fd < 0 || worker->imports > 1)
        return;
    ck_assert_int_eq(hvi_packet_receive(worker->link_fd, &worker->packet, 0), HVI_OK);
    ck_assert_int_eq(
        hvi_gpu_msg_decode(worker->packet.bytes, worker->packet.length, &worker->msg, NULL, 0),
        HVI_OK);
    ck_assert_int_eq(worker->msg.kind, HVI_GPU_STATE);
    ck_assert_uint_eq(worker->msg.state.row.imports, 1);
}

uint32_t hvt_engine_import(struct hvt_worker *worker, const struct hvi_cuda *cuda,
                           hvi_cu_ptr address, uint64_t size)
{
    struct hvi_gpu_msg told = {.kind = HVI_GPU_IMPORT};
    struct hvi_gpu_import *import = &told.import;
    int attribute = HVI_CU_POINTER_BUFFER_ID;
    void *value = &import->memory.buffer_id;
    struct hvi_cu_ipc handle;
    char uuid[HVI_WIRE_GPU_UUID];

    ck_assert_int_eq(cuda->pointer_attributes(1, &attribute, &value, address), HVI_CU_OK);
    ck_assert_int_eq(cuda->ipc_get(&handle, address), HVI_CU_OK);
    memcpy(import->memory.handle, handle.bytes, sizeof(handle.bytes));
    snprintf(uuid, sizeof(uuid), "GPU-66616b65-2067-7075-206f-66206e6f00%02x", worker->gpu);
    ck_assert(hvi_uuid_parse(uuid, import->memory.uuid));
    import->request = ++worker->requests;
    import->import = ++worker->imports;
    import->memory.kind = HVI_DEVICE_LEGACY;
    import->memory.address = address;
    import->memory.bytes = size;
    import->pid = getpid();
    import->process_start = 1;
    hvt_worker_send(worker->engine_fd, &told, NULL, 0);
    hvt_engine_expect_ack(worker, worker->requests, HVI_OK);
    expect_used(worker);
    return worker->imports;
}

uint64_t hvt_engine_release(struct hvt_worker *worker, uint32_t import)
{
    struct hvi_gpu_msg told = {.kind = HVI_GPU_RELEASE, .release = {++worker->requests, import}};

    hvt_worker_send(worker->engine_fd, &told, NULL, 0);
    return worker->requests;
}

static void send_join(struct hvt_worker *worker, uint32_t comm, uint32_t rank,
                      const unsigned char *id, uint64_t *instances, uint32_t count)
{
    struct hvi_gpu_msg join = {.kind = HVI_GPU_COMM_JOIN,
                               .comm_join = {.request = 901,
                                             .comm = comm,
                                             .rank = rank,
                                             .instances = instances,
                                             .instance_count = count}};

    memcpy(join.comm_join.id, id, HVI_NCCL_ID_BYTES);
    hvt_worker_send(worker->engine_fd, &join, NULL, 0);
}

/* The id from a worker. */
static void ask_id(struct hvt_worker *worker, unsigned char id_p[HVI_NCCL_ID_BYTES])
{
    struct hvi_gpu_msg ask = {
        .kind = HVI_GPU_COMM_ID,
        .comm_id = {.request = 900, .instances = &worker->instance, .instance_count = 1}};

    hvt_worker_send(worker->engine_fd, &ask, NULL, 0);
    hvt_worker_hear(worker, worker->engine_fd);
    ck_assert_int_eq(worker->msg.kind, HVI_GPU_COMM_ID);
    ck_assert_str_eq(worker->msg.comm_id.text, "");
    memcpy(id_p, worker->msg.comm_id.id, HVI_NCCL_ID_BYTES);
}

void hvt_engine_ask_join(struct hvt_worker *worker, uint32_t count)
{
    unsigned char id[HVI_NCCL_ID_BYTES];
    uint64_t instances[8] = {worker->instance};

    ask_id(worker, id);
    for (uint32_t i = 1; i < count; i++)
        instances[i] = 1000 + i;
    send_join(worker, 1, 0, id, instances, count);
}

void hvt_engines_name(struct hvt_worker *const *workers, uint32_t count, uint32_t comm,
                      const unsigned char *id)
{
    uint64_t instances[8];

    for (uint32_t i = 0; i < count; i++)
        instances[i] = workers[i]->instance;
    for (uint32_t i = 0; i < count; i++)
        send_join(workers[i], comm, i, id, instances, count);
    for (uint32_t i = 0; i < count; i++)
        hvt_engine_expect_ack(workers[i], 901, HVI_OK);
}

void hvt_engines_join(struct hvt_worker *const *workers, uint32_t count, uint32_t comm)
{
    unsigned char id[HVI_NCCL_ID_BYTES];

    ask_id(workers[0], id);
    hvt_engines_name(workers, count, comm, id);
}

/* ---- batches ---- */

void hvt_batch_begin(struct hvt_worker *worker, uint32_t works, uint32_t comm, uint32_t ranks,
                     uint32_t rank)
{
    const struct hvi_device_batch head = {.command = HVI_DEVICE_BATCH,
                                          .number = ++worker->batches,
                                          .works = (uint16_t)works,
                                          .comm = comm,
                                          .comm_ranks = ranks,
                                          .comm_rank = rank,
                                          .flags = worker->flags};

    worker->filled = 0;
    hvt_batch_add(worker, &head);
}

void hvt_batch_add(struct hvt_worker *worker, const void *slot)
{
    memcpy(hvi_ring_slot(&worker->channel.commands, worker->filled++), slot,
           sizeof(struct hvi_device_batch));
}

void hvt_batch_numbers(struct hvt_worker *worker, const uint64_t *numbers, uint32_t count)
{
    struct hvi_device_sizes sizes;

    for (uint32_t at = 0; at < count; at += 8) {
        memset(&sizes, 0, sizeof(sizes));
        for (uint32_t i = 0; i < 8 && at + i < count; i++)
            sizes.values[i] = numbers[at + i];
        hvt_batch_add(worker, &sizes);
    }
}

uint64_t hvt_batch_publish(struct hvt_worker *worker)
{
    struct hvi_device_batch *head = hvi_ring_slot(&worker->channel.commands, 0);

    head->slots = worker->filled;
    hvi_device_publish(&worker->channel, worker->filled, worker->wake_fd);
    return worker->batches;
}

bool hvt_batch_is_answered(struct hvt_worker *worker)
{
    uint32_t count = 0;

    ck_assert_int_eq(hvi_ring_available(&worker->channel.dones, &count), HVI_OK);
    return count > 0;
}

struct hvi_device_done hvt_batch_answer(struct hvt_worker *worker)
{
    const uint64_t end = hvi_deadline_after(HVT_PATIENCE_NS);
    struct hvi_device_done done;
    uint64_t value;

    while (!hvt_batch_is_answered(worker)) {
        struct pollfd poll_fd = {.fd = worker->event_fd, .events = POLLIN};
        ck_assert(!hvi_deadline_passed(end));
        if (poll(&poll_fd, 1, 100) > 0)
            ck_assert_int_eq(read(worker->event_fd, &value, sizeof(value)), sizeof(value));
    }
    hvi_ring_copy(&worker->channel.dones, 0, &done);
    hvi_ring_release(&worker->channel.dones, 1);
    ck_assert_uint_eq(done.seq, ++worker->answers);
    return done;
}

void hvt_batch_expect(struct hvt_worker *worker, uint64_t number)
{
    struct hvi_device_done done;

    do
        done = hvt_batch_answer(worker);
    while (done.status == HVI_INPROGRESS);
    ck_assert_uint_eq(done.number, number);
    ck_assert_msg(done.status == HVI_OK, "%s: %s", hvi_status_name(done.status), done.text);
}
