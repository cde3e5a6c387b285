/* SPDX-License-Identifier: Apache-2.0
 * Workers of GPUs (docs/design/gpu.md). A worker belongs to a job of a user on one GPU, through all generations: its key is
 * (uid, job, UUID). An engine that wants one gets its end of a socket pair, whose other end goes to the worker, once the worker
 * is up; from then on hvdd is not between them.
 *
 * A worker's process tells first why it cannot serve (GpuState{failed}) and then ends; hvdd answers engines when the process
 * has ended, with what it has said, with hvdd's reason if hvdd has killed it, or with how it ended. So every engine hears of
 * each worker's end once, and a worker that is in the table has a process (or its unit is about to start one).
 *
 * There is no outbox: what hvdd tells a worker is short, and a worker whose socket is full is as stuck as one that is silent.
 *
 * A session's fence page is mapped here for the time of its engine: when engine and worker die together, nobody else
 * can release the streams that wait. Of an engine that has gone all words are poisoned when the workers that it had have gone. One
 * that lives opens its gates itself, after it has told its kernels to write nothing, and says itself when nothing is written. */
#include "daemon/node/gpu.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/fate.h"
#include "base/log.h"
#include "base/status.h"
#include "base/utf8.h"
#include "base/uuid.h"
#include "daemon/node/unit.h"
#include "proto/gpu.h"
#include "shm/fence.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/pidfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utlist.h>

#define BEAT_NS  HVI_NS_SEC
#define GRACE_NS (5 * HVI_NS_SEC) /* a worker that was told to end is killed after it */
#define REST_NS                                                                                    \
    (10 * HVI_NS_SEC) /* by then a worker has let an engine's batches run through, or has ended */
#define MESSAGES_AT_ONCE 64
#define UNMET            "did not start (`journalctl -u hvdd-gpu.socket -u 'hvdd-gpu@*'` says why)"

/* An engine that has a worker, or waits for it. */
struct node_want {
    struct node_want *prev, *next;
    struct node_engine *engine;
    uint64_t request, generation;
    pid_t pid; /* of the engine */
    bool linked;
};

struct node_worker {
    struct node_worker *prev, *next;
    struct node_gpu *gpu;
    char job[HVI_JOB_ID_MAX + 1];
    uid_t uid;
    unsigned char uuid[HVI_UUID_BYTES];
    char name[HVI_UUID_TEXT]; /* "GPU-..." */
    uint64_t instance;
    enum node_worker_state state;
    pid_t pid;          /* 0: started by its unit, and has not said who it is */
    int pidfd, link_fd; /* pidfd -1: likewise */
    bool child;
    sd_event_source *exit, *io, *timer; /* timer: gpu-start, gpu-idle, or the grace */
    uint64_t beat;
    bool asked; /* the last beat has no answer yet */
    uint64_t silent_ns;
    char step[HVI_WIRE_TRACE_NAME]; /* of its start */
    char why[512];                  /* it ends: "" if it has not been said */
    bool failed;                    /* it has said .why itself */
    bool had_gpu;                   /* it was up */
    struct hvi_gpu_row row;
    struct node_want *wants;
};

struct node_fences {
    struct node_fences *prev, *next;
    struct node_engine *engine;
    int32_t rank;
    struct hvi_fence_page page;
};

/* What an engine that has gone leaves behind, while workers that it had have not. */
struct node_rest {
    struct node_rest *prev, *next;
    struct node_gpu *gpu;
    sd_event_source *timer;
    struct node_fences *fences;
    uint32_t count;
    uint64_t instances[]; /* of those workers; 0: it has gone */
};

/* Cut at a character: a message with half of one could not be sent. */
static void copy_text(char *text_p, size_t size, const char *text)
{
    size_t bytes = hvi_utf8_cut(text, strlen(text), size - 1);

    memcpy(text_p, text, bytes);
    text_p[bytes] = '\0';
}

static void read_link(struct node_worker *worker);
static void on_gone(struct node_worker *worker, const char *fate);
static void rests_without(struct node_gpu *gpu, uint64_t instance);

/* ---- states ---- */

bool node_worker_edge(enum node_worker_state from, enum node_worker_state to)
{
    static const unsigned next[NODE_WORKER_STATES] = {
        [NODE_WORKER_STARTING] =
            1u << NODE_WORKER_UP | 1u << NODE_WORKER_ENDING | 1u << NODE_WORKER_GONE,
        [NODE_WORKER_UP] =
            1u << NODE_WORKER_IDLE | 1u << NODE_WORKER_ENDING | 1u << NODE_WORKER_GONE,
        [NODE_WORKER_IDLE] =
            1u << NODE_WORKER_UP | 1u << NODE_WORKER_ENDING | 1u << NODE_WORKER_GONE,
        [NODE_WORKER_ENDING] = 1u << NODE_WORKER_GONE,
    };
    return (next[from] >> to & 1u) != 0;
}

const char *node_worker_state_text(enum node_worker_state state)
{
    static const char *const texts[] = {"starting", "up", "idle", "ending", "gone"};
    return texts[state];
}

static void set_state(struct node_worker *worker, enum node_worker_state state, const char *cause)
{
    HVI_ASSERT(node_worker_edge(worker->state, state));
    HVI_LOG(HVI_LOG_DEBUG, "gpu", "worker-state", cause, "gpu=%s job=%s pid=%d %s -> %s",
            worker->name, worker->job, (int)worker->pid, node_worker_state_text(worker->state),
            node_worker_state_text(state));
    worker->state = state;
}

/* ---- what engines are told ---- */

static void tell(const struct node_gpu *gpu, struct node_engine *engine,
                 const struct hvi_gpu_worker *answer, int fd)
{
    gpu->calls->tell(engine, answer, fd);
}

/* For one that has no worker to be named. */
static void refuse(const struct node_gpu *gpu, const struct node_gpu_asker *asker,
                   const struct hvi_gpu_wanted *wanted, int status, const char *text)
{
    struct hvi_gpu_worker answer = {.request = wanted->request, .status = status};
    char name[HVI_UUID_TEXT];

    hvi_uuid_format(wanted->uuid, name);
    memcpy(answer.uuid, wanted->uuid, sizeof(answer.uuid));
    snprintf(answer.text, sizeof(answer.text), "%s: %s", name, text);
    HVI_LOG(HVI_LOG_WARN, "gpu", "worker-refused", text, "gpu=%s job=%s uid=%u status=%s", name,
            asker->job, (unsigned)asker->uid, hvi_status_name(status));
    tell(gpu, asker->engine, &answer, -1);
}

static void fill_answer(const struct node_worker *worker, struct hvi_gpu_worker *answer_p)
{
    memcpy(answer_p->uuid, worker->uuid, sizeof(answer_p->uuid));
    answer_p->instance = worker->instance;
    answer_p->pid = (int32_t)worker->pid;
}

static void drop_want(struct node_worker *worker, struct node_want *want)
{
    DL_DELETE(worker->wants, want);
    free(want);
}

/* ---- sending ---- */

/* HVI_OK or why not: it has gone, or its socket is full. */
static int send_msg(struct node_worker *worker, const struct hvi_gpu_msg *msg, const int *fds,
                    uint32_t fd_count)
{
    struct node_gpu *gpu = worker->gpu;
    size_t length;
    int status = hvi_gpu_msg_encode(msg, gpu->encoded, sizeof(gpu->encoded), &length);

    if (status == HVI_OK)
        status = hvi_packet_send(worker->link_fd, gpu->encoded, length, fds, fd_count, 0);
    return status;
}

/* `why`: the text for its engines. */
static void kill_worker(struct node_worker *worker, const char *why)
{
    if (worker->why[0] == '\0')
        copy_text(worker->why, sizeof(worker->why), why);
    if (worker->state != NODE_WORKER_ENDING)
        set_state(worker, NODE_WORKER_ENDING, why);
    HVI_LOG(HVI_LOG_ERROR, "gpu", "worker-killed", why, "gpu=%s job=%s pid=%d", worker->name,
            worker->job, (int)worker->pid);
    worker->timer = sd_event_source_disable_unref(worker->timer);
    if (worker->pidfd >= 0)
        pidfd_send_signal(worker->pidfd, SIGKILL, NULL, 0);
    else
        shutdown(worker->link_fd, SHUT_RDWR); /* on_link sees it end, and its program too */
}

static bool arm(struct node_worker *worker, uint64_t delay_ns, sd_event_time_handler_t handler)
{
    worker->timer = sd_event_source_disable_unref(worker->timer);
    return sd_event_add_time_relative(worker->gpu->event, &worker->timer, CLOCK_MONOTONIC,
                                      delay_ns / 1000, 1000, handler, worker) >= 0;
}

static int on_grace(sd_event_source *source, uint64_t usec, void *user)
{
    (void)source, (void)usec;
    kill_worker(user, "it should have ended 5 s ago");
    return 0;
}

/* It has closed its link: its process ends, and how that ends is worth waiting for. */
static void expect_end(struct node_worker *worker)
{
    if (worker->state == NODE_WORKER_ENDING)
        return;
    set_state(worker, NODE_WORKER_ENDING, "its link has ended");
    if (!arm(worker, GRACE_NS, on_grace))
        kill_worker(worker, "no memory for a timer");
}

/* In order: it closes what it has open, and ends. */
static void stop_worker(struct node_worker *worker, const char *reason)
{
    struct hvi_gpu_msg msg = {.kind = HVI_GPU_STOP};

    set_state(worker, NODE_WORKER_ENDING, reason);
    copy_text(worker->why, sizeof(worker->why), reason);
    snprintf(msg.stop.reason, sizeof(msg.stop.reason), "%s", reason);
    if (send_msg(worker, &msg, NULL, 0) != HVI_OK || !arm(worker, GRACE_NS, on_grace))
        kill_worker(worker, "it cannot be told to end");
}

/* ---- engines ---- */

/* The job's workers that live: NCCL's communicators that another one is in are of no use any more. NULL: no memory. */
static uint64_t *living(const struct node_worker *worker, size_t *count_p)
{
    const struct node_worker *each;
    uint64_t *instances = calloc(worker->gpu->worker_count, sizeof(*instances));

    *count_p = 0;
    DL_FOREACH(worker->gpu->workers, each)
    {
        if (instances != NULL && each->state < NODE_WORKER_ENDING && each->uid == worker->uid &&
            strcmp(each->job, worker->job) == 0)
            instances[(*count_p)++] = each->instance;
    }
    return instances;
}

/* GpuEngine with its descriptor. */
static int send_engine(struct node_worker *worker, const struct node_want *want, int fd)
{
    struct hvi_gpu_msg msg = {
        .kind = HVI_GPU_ENGINE,
        .engine = {.generation = want->generation, .engine_pid = (int32_t)want->pid}};

    msg.engine.instances = living(worker, &msg.engine.instance_count);
    int status = send_msg(worker, &msg, &fd, 1);
    free(msg.engine.instances);
    return status;
}

/* A socket of its own between an engine and the worker. */
static void link_engine(struct node_worker *worker, struct node_want *want)
{
    struct hvi_gpu_worker answer = {.request = want->request};
    int ends[2] = {-1, -1}, status;

    fill_answer(worker, &answer);
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
        answer.status = HVI_ERR_LIMIT;
        snprintf(answer.text, sizeof(answer.text), "%s: no socket to its worker: %s", worker->name,
                 strerror(errno));
    } else if ((status = send_engine(worker, want, ends[0])) != HVI_OK) {
        answer.status = HVI_ERR_WORKER_LOST;
        snprintf(answer.text, sizeof(answer.text), "%s: its worker (pid %d) %s", worker->name,
                 (int)worker->pid, status == HVI_ERR_CLOSED ? "has ended" : "does not read");
    }
    tell(worker->gpu, want->engine, &answer, answer.status == HVI_OK ? ends[1] : -1);
    for (int i = 0; i < 2; i++) {
        if (ends[i] >= 0)
            close(ends[i]);
    }
    want->linked = answer.status == HVI_OK;
    if (!want->linked)
        drop_want(worker, want);
}

static void link_waiting(struct node_worker *worker)
{
    struct node_want *want, *after;

    DL_FOREACH_SAFE(worker->wants, want, after)
    {
        if (!want->linked)
            link_engine(worker, want);
    }
}

static int on_idle(sd_event_source *source, uint64_t usec, void *user)
{
    (void)source, (void)usec;
    stop_worker(user, "no engine of its job has used it for gpu-idle");
    return 0;
}

/* Whether an engine has it has changed. */
static void check_idle(struct node_worker *worker)
{
    if (worker->state == NODE_WORKER_UP && worker->wants == NULL) {
        set_state(worker, NODE_WORKER_IDLE, "no engine has it any more");
        if (!arm(worker, (uint64_t)worker->gpu->config->gpu_idle, on_idle))
            stop_worker(worker, "no memory for a timer");
    } else if (worker->state == NODE_WORKER_IDLE && worker->wants != NULL) {
        worker->timer = sd_event_source_disable_unref(worker->timer);
        set_state(worker, NODE_WORKER_UP, "an engine wants it");
    }
}

/* ---- receiving ---- */

static void handle_state(struct node_worker *worker, const struct hvi_gpu_state *state)
{
    if (state->has_row)
        worker->row = state->row;
    if (state->state == HVI_GPU_STARTING) {
        copy_text(worker->step, sizeof(worker->step), state->text);
        return;
    }
    if (state->state == HVI_GPU_FAILED) {
        worker->failed = worker->why[0] == '\0';
        if (worker->failed)
            copy_text(worker->why, sizeof(worker->why), state->text);
        return;
    }
    if (worker->state != NODE_WORKER_STARTING)
        return;
    HVI_LOG(HVI_LOG_INFO, "gpu", "worker-up", "a worker has its GPU", "gpu=%s job=%s pid=%d",
            worker->name, worker->job, (int)worker->pid);
    worker->timer = sd_event_source_disable_unref(worker->timer);
    worker->had_gpu = true;
    set_state(worker, NODE_WORKER_UP, "it has its GPU");
    link_waiting(worker);
    check_idle(worker);
}

/* False: the worker says what cannot be. */
static bool handle(struct node_worker *worker, const struct hvi_packet *packet)
{
    struct hvi_gpu_msg msg;
    bool good = true;

    if (packet->fd_count != 0 ||
        hvi_gpu_msg_decode(packet->bytes, packet->length, &msg, NULL, 0) != HVI_OK)
        return false;
    worker->silent_ns = 0;
    if (msg.kind == HVI_GPU_BEAT)
        worker->asked = worker->asked && msg.beat.number != worker->beat;
    else if (msg.kind == HVI_GPU_STATE)
        handle_state(worker, &msg.state);
    else
        good = false;
    hvi_gpu_msg_free(&msg);
    return good;
}

static int on_exit_of_stranger(sd_event_source *source, int fd, uint32_t events, void *user)
{
    struct node_worker *worker = user;
    struct hvi_fate fate = hvi_fate_look(worker->pid, fd);
    char text[128];

    (void)source, (void)events;
    if (fate.kind == HVI_FATE_ALIVE) /* gone, whatever /proc says about that pid now */
        fate.kind = HVI_FATE_UNKNOWN;
    hvi_fate_describe(fate, text, sizeof(text));
    on_gone(worker, text);
    return 0;
}

static int on_exit_of_child(sd_event_source *source, const siginfo_t *info, void *user)
{
    struct hvi_fate fate = {.kind =
                                info->si_code == CLD_EXITED ? HVI_FATE_EXITED : HVI_FATE_SIGNALED,
                            .code = info->si_status};
    char text[128];

    (void)source;
    hvi_fate_describe(fate, text, sizeof(text));
    on_gone(user, text);
    return 0;
}

static void log_started(const struct node_worker *worker)
{
    HVI_LOG(HVI_LOG_INFO, "gpu", "worker-started", "a worker was started",
            "gpu=%s job=%s uid=%u pid=%d", worker->name, worker->job, (unsigned)worker->uid,
            (int)worker->pid);
}

/* The first message of a worker of a unit. False: it is not what the unit should start. */
static bool meet(struct node_worker *worker, const struct hvi_packet *packet)
{
    char text[160];

    worker->pidfd = node_unit_meet(packet, worker->link_fd, "hvdd-gpu", text, sizeof(text));
    worker->pid = worker->pidfd < 0 ? 0 : packet->sender_pid;
    if (worker->pidfd >= 0 && sd_event_add_io(worker->gpu->event, &worker->exit, worker->pidfd,
                                              EPOLLIN, on_exit_of_stranger, worker) < 0) {
        snprintf(text, sizeof(text), "no memory to watch it");
        close(worker->pidfd);
        worker->pidfd = -1;
    }
    if (worker->pidfd < 0) {
        HVI_LOG(HVI_LOG_ERROR, "gpu", "bad-gpu-unit", text, "gpu=%s job=%s socket=%s", worker->name,
                worker->job, worker->gpu->config->gpu_socket);
        return false;
    }
    log_started(worker);
    return true;
}

static void read_link(struct node_worker *worker)
{
    static struct hvi_packet packet;

    for (int i = 0; i < MESSAGES_AT_ONCE && worker->io != NULL; i++) {
        int status = hvi_packet_receive(worker->link_fd, &packet, 0);
        if (status == HVI_ERR_TIMEOUT)
            return;
        bool good = status == HVI_OK &&
                    (worker->pidfd < 0 ? meet(worker, &packet) : handle(worker, &packet));
        if (status == HVI_OK)
            hvi_packet_close_fds(&packet);
        if (good)
            continue;
        worker->io = sd_event_source_disable_unref(worker->io);
        if (worker->pidfd < 0)
            return;
        if (status == HVI_OK)
            kill_worker(worker, "the worker broke the protocol");
        else
            expect_end(worker);
    }
}

static int on_link(sd_event_source *source, int fd, uint32_t events, void *user)
{
    struct node_worker *worker = user;

    (void)source, (void)fd, (void)events;
    read_link(worker);
    if (worker->io == NULL && worker->pidfd < 0)
        on_gone(worker, UNMET);
    return 0;
}

/* ---- whether they live ---- */

/* Ticks are counted, not time: where hvdd or the machine stood still, that is one tick. What the worker has said already is
 * read before it is judged. */
static void look_at(struct node_worker *worker)
{
    struct hvi_gpu_msg msg = {.kind = HVI_GPU_BEAT};

    if (worker->pidfd < 0 || worker->io == NULL)
        return;
    if (worker->asked)
        read_link(worker);
    if (worker->io == NULL)
        return;
    if (worker->asked) {
        worker->silent_ns += BEAT_NS;
        if (worker->silent_ns >= (uint64_t)worker->gpu->config->gpu_silence &&
            worker->state != NODE_WORKER_ENDING)
            kill_worker(worker,
                        "the worker has not answered for gpu-silence: it was stopped, or is stuck");
        return;
    }
    msg.beat.number = ++worker->beat;
    worker->asked = true;
    (void)send_msg(worker, &msg, NULL, 0); /* one that does not read will be silent */
}

static int on_beat(sd_event_source *source, uint64_t usec, void *user)
{
    struct node_gpu *gpu = user;
    struct node_worker *worker, *after;

    (void)usec;
    DL_FOREACH_SAFE(gpu->workers, worker, after)
    look_at(worker);
    if (gpu->workers == NULL)
        return sd_event_source_set_enabled(source, SD_EVENT_OFF);
    sd_event_source_set_time_relative(source, BEAT_NS / 1000);
    return sd_event_source_set_enabled(source, SD_EVENT_ONESHOT);
}

/* Returns a negative errno. */
static int start_beats(struct node_gpu *gpu)
{
    int enabled = SD_EVENT_OFF;

    if (gpu->beat == NULL)
        return sd_event_add_time_relative(gpu->event, &gpu->beat, CLOCK_MONOTONIC, BEAT_NS / 1000,
                                          1000, on_beat, gpu);
    sd_event_source_get_enabled(gpu->beat, &enabled);
    if (enabled != SD_EVENT_OFF)
        return 0;
    sd_event_source_set_time_relative(gpu->beat, BEAT_NS / 1000);
    return sd_event_source_set_enabled(gpu->beat, SD_EVENT_ONESHOT);
}

/* ---- their end ---- */

static void worker_free(struct node_worker *worker)
{
    while (worker->wants != NULL)
        drop_want(worker, worker->wants);
    sd_event_source_disable_unref(worker->exit);
    sd_event_source_disable_unref(worker->io);
    sd_event_source_disable_unref(worker->timer);
    if (worker->link_fd >= 0)
        close(worker->link_fd);
    if (worker->pidfd >= 0)
        close(worker->pidfd);
    DL_DELETE(worker->gpu->workers, worker);
    worker->gpu->worker_count--;
    free(worker);
}

/* "GPU-...: its worker (pid 7) was killed by signal 9 (SIGKILL)" */
static void describe_end(const struct node_worker *worker, const char *fate, char *text_p,
                         size_t text_size)
{
    if (worker->failed)
        snprintf(text_p, text_size, "%s: %s", worker->name, worker->why);
    else if (worker->why[0] != '\0')
        snprintf(text_p, text_size, "%s: its worker (pid %d) was ended by hvdd: %s", worker->name,
                 (int)worker->pid, worker->why);
    else
        snprintf(text_p, text_size, "%s: its worker (pid %d) %s", worker->name, (int)worker->pid,
                 fate);
}

/* Each engine hears once: as the answer to its question, or unasked. */
static void tell_end(struct node_worker *worker, const char *text)
{
    bool cannot = worker->failed && !worker->had_gpu;
    struct node_want *want, *after;

    DL_FOREACH_SAFE(worker->wants, want, after)
    {
        struct hvi_gpu_worker answer = {.request = want->linked ? 0 : want->request,
                                        .status =
                                            cannot ? HVI_ERR_UNSUPPORTED : HVI_ERR_WORKER_LOST};
        fill_answer(worker, &answer);
        snprintf(answer.text, sizeof(answer.text), "%s", text);
        tell(worker->gpu, want->engine, &answer, -1);
    }
}

static void on_gone(struct node_worker *worker, const char *fate)
{
    struct node_gpu *gpu = worker->gpu;
    char text[HVI_TEXT_MAX + 1];
    enum hvi_log_level level;

    if (worker->io != NULL)
        read_link(worker); /* why, perhaps */
    describe_end(worker, fate, text, sizeof(text));
    level = worker->wants == NULL ? HVI_LOG_INFO : worker->had_gpu ? HVI_LOG_ERROR : HVI_LOG_WARN;
    HVI_LOG(level, "gpu", "worker-ended", text, "gpu=%s job=%s pid=%d fate=\"%s\"", worker->name,
            worker->job, (int)worker->pid, fate);
    tell_end(worker, text);
    set_state(worker, NODE_WORKER_GONE, fate);
    rests_without(gpu, worker->instance);
    worker_free(worker);
    if (gpu->workers == NULL)
        gpu->calls->empty(gpu->user);
}

/* ---- their start ---- */

static int on_late(sd_event_source *source, uint64_t usec, void *user)
{
    struct node_worker *worker = user;
    char why[HVI_WIRE_TRACE_NAME + 100];

    (void)source, (void)usec;
    read_link(worker); /* what it has said already counts */
    if (worker->state != NODE_WORKER_STARTING)
        return 0;
    snprintf(why, sizeof(why), "it has not started in gpu-start; last step: %s",
             worker->step[0] != '\0' ? worker->step : "none");
    kill_worker(worker, why);
    return 0;
}

static int send_start(struct node_worker *worker, const struct hvi_gpu_wanted *wanted)
{
    struct hvi_gpu_msg msg = {.kind = HVI_GPU_START};
    struct hvi_gpu_start *start = &msg.start;
    const struct node_config *config = worker->gpu->config;

    start->protocol_version = HVI_PROTOCOL_VERSION;
    snprintf(start->job, sizeof(start->job), "%s", worker->job);
    start->uid = worker->uid;
    memcpy(start->uuid, worker->uuid, sizeof(start->uuid));
    start->instance = worker->instance;
    snprintf(start->attach_path, sizeof(start->attach_path), "%s", worker->gpu->attach_path);
    start->log_level = (int32_t)hvi_log_level();
    snprintf(start->kernels, sizeof(start->kernels), "%s", config->gpu_kernels);
    snprintf(start->library_path, sizeof(start->library_path), "%s", config->gpu_library_path);
    start->comm_ns = (uint64_t)config->gpu_comm_timeout;
    start->import_bytes_max = (uint64_t)config->gpu_import_limit;
    start->settings = wanted->settings; /* only read */
    start->setting_count = wanted->setting_count;
    return send_msg(worker, &msg, NULL, 0);
}

/* These return 0 or a negative errno. */
static int start_child(struct node_worker *worker)
{
    struct node_gpu *gpu = worker->gpu;
    int link[2], error;

    if (gpu->program_fd < 0)
        return -ENOENT;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, link) != 0)
        return -errno;
    worker->link_fd = link[0];
    error = gpu->calls->spawn(gpu->path, gpu->program_fd, "hvdd-gpu", link[1], &worker->pid);
    close(link[1]);
    if (error != 0)
        return -error;
    worker->pidfd = hvi_pidfd_open(worker->pid);
    error = worker->pidfd < 0 ? -errno
                              : sd_event_add_child_pidfd(gpu->event, &worker->exit, worker->pidfd,
                                                         WEXITED, on_exit_of_child, worker);
    if (error >= 0) {
        log_started(worker);
        return 0;
    }
    kill(worker->pid, SIGKILL);
    waitpid(worker->pid, NULL, 0);
    return error;
}

static int start_process(struct node_worker *worker)
{
    const char *socket_path = worker->gpu->config->gpu_socket;

    if (socket_path[0] == '\0')
        return start_child(worker);
    worker->link_fd = node_unit_connect(socket_path);
    return worker->link_fd < 0 ? -errno : 0;
}

/* Starts it; 0 or a negative errno, and then it has no process. */
static int start_worker(struct node_worker *worker, const struct hvi_gpu_wanted *wanted)
{
    struct node_gpu *gpu = worker->gpu;
    int r = getrandom(&worker->instance, sizeof(worker->instance), 0) ==
                    (ssize_t)sizeof(worker->instance)
                ? 0
                : -EIO;

    if (r == 0)
        r = start_beats(gpu);
    if (r >= 0)
        r = start_process(worker);
    if (r < 0)
        return r;
    r = sd_event_add_io(gpu->event, &worker->io, worker->link_fd, EPOLLIN, on_link, worker);
    if (r < 0 && worker->pidfd < 0)
        return r; /* its unit's program sees the link end */
    if (r < 0 || !arm(worker, (uint64_t)gpu->config->gpu_start, on_late) ||
        send_start(worker, wanted) != HVI_OK)
        kill_worker(worker, "it could not be told what to do");
    return 0;
}

static struct node_worker *worker_new(struct node_gpu *gpu, const struct node_gpu_asker *asker,
                                      const struct hvi_gpu_wanted *wanted)
{
    struct node_worker *worker = calloc(1, sizeof(*worker));

    if (worker == NULL)
        return NULL;
    worker->gpu = gpu;
    worker->pidfd = worker->link_fd = -1;
    worker->uid = asker->uid;
    snprintf(worker->job, sizeof(worker->job), "%s", asker->job);
    memcpy(worker->uuid, wanted->uuid, sizeof(worker->uuid));
    hvi_uuid_format(worker->uuid, worker->name);
    DL_APPEND(gpu->workers, worker);
    gpu->worker_count++;
    return worker;
}

static struct node_worker *find(const struct node_gpu *gpu, const struct node_gpu_asker *asker,
                                const unsigned char uuid[HVI_UUID_BYTES])
{
    struct node_worker *worker;

    DL_FOREACH(gpu->workers, worker)
    {
        if (worker->state < NODE_WORKER_ENDING && worker->uid == asker->uid &&
            strcmp(worker->job, asker->job) == 0 && memcmp(worker->uuid, uuid, HVI_UUID_BYTES) == 0)
            return worker;
    }
    return NULL;
}

/* Those that end give their place up. */
uint32_t node_gpu_count(const struct node_gpu *gpu, const uid_t *uid)
{
    const struct node_worker *worker;
    uint32_t count = 0;

    DL_FOREACH(gpu->workers, worker)
    count += worker->state < NODE_WORKER_ENDING && (uid == NULL || worker->uid == *uid);
    return count;
}

/* Whether there is a place within a limit: a worker that no engine has ends before another one is refused. `uid` NULL: of any
 * user. */
static bool find_place(const struct node_gpu *gpu, const uid_t *uid, int64_t limit)
{
    struct node_worker *worker;

    if (node_gpu_count(gpu, uid) < (uint64_t)limit)
        return true;
    DL_FOREACH(gpu->workers, worker)
    {
        if (worker->state != NODE_WORKER_IDLE || (uid != NULL && worker->uid != *uid))
            continue;
        stop_worker(worker, "another job's worker needs its place");
        return limit > 0;
    }
    return false;
}

/* Why no further worker may be started; HVI_OK: nothing stands against it. */
static int check_start(const struct node_gpu *gpu, const struct node_gpu_asker *asker, char *text_p,
                       size_t text_size)
{
    const struct node_config *config = gpu->config;

    if (config->gpu == 0) {
        snprintf(text_p, text_size, "hvdd starts no workers for GPUs (gpu = no)");
        return HVI_ERR_UNSUPPORTED;
    }
    if (gpu->stopping) {
        snprintf(text_p, text_size, "hvdd is shutting down and starts no workers");
        return HVI_ERR_DRAINING;
    }
    if (!find_place(gpu, &asker->uid, config->gpu_workers_per_user)) {
        snprintf(text_p, text_size,
                 "user %u has %u workers for GPUs already (gpu-workers-per-user)",
                 (unsigned)asker->uid, node_gpu_count(gpu, &asker->uid));
        return HVI_ERR_DAEMON_LIMIT;
    }
    if (!find_place(gpu, NULL, config->gpu_workers)) {
        snprintf(text_p, text_size, "hvdd has %u workers for GPUs already (gpu-workers)",
                 node_gpu_count(gpu, NULL));
        return HVI_ERR_DAEMON_LIMIT;
    }
    return HVI_OK;
}

/* A new worker; NULL: the asker has its answer. */
static struct node_worker *make(struct node_gpu *gpu, const struct node_gpu_asker *asker,
                                const struct hvi_gpu_wanted *wanted)
{
    const char *path = gpu->config->gpu_socket[0] != '\0' ? gpu->config->gpu_socket : gpu->path;
    struct node_worker *worker;
    char text[HVI_WIRE_PATH * 2 + 200];
    int status = check_start(gpu, asker, text, sizeof(text));

    if (status != HVI_OK) {
        refuse(gpu, asker, wanted, status, text);
        return NULL;
    }
    worker = worker_new(gpu, asker, wanted);
    int error = worker == NULL ? -ENOMEM : start_worker(worker, wanted);
    if (error >= 0)
        return worker;
    if (worker != NULL)
        worker_free(worker);
    snprintf(text, sizeof(text), "hvdd could not start its worker (%s: %s)", path,
             strerror(-error));
    refuse(gpu, asker, wanted, HVI_ERR_UNSUPPORTED, text);
    return NULL;
}

void node_gpu_want(struct node_gpu *gpu, const struct node_gpu_asker *asker,
                   const struct hvi_gpu_wanted *wanted)
{
    struct node_worker *worker = find(gpu, asker, wanted->uuid);
    struct node_want *want;

    if (worker == NULL)
        worker = make(gpu, asker, wanted);
    if (worker == NULL)
        return;
    want = calloc(1, sizeof(*want));
    if (want == NULL) {
        refuse(gpu, asker, wanted, HVI_ERR_NO_MEMORY, "hvdd is out of memory");
        check_idle(worker);
        return;
    }
    *want = (struct node_want){.engine = asker->engine,
                               .request = wanted->request,
                               .generation = asker->generation,
                               .pid = asker->pid};
    DL_APPEND(worker->wants, want);
    check_idle(worker);
    if (worker->state == NODE_WORKER_UP)
        link_engine(worker, want);
    check_idle(worker);
}

void node_gpu_end(struct node_gpu *gpu, const struct node_gpu_asker *asker,
                  const struct hvi_gpu_end *end)
{
    struct node_worker *worker;

    DL_FOREACH(gpu->workers, worker)
    {
        if (worker->instance == end->instance && worker->uid == asker->uid &&
            strcmp(worker->job, asker->job) == 0) {
            kill_worker(worker, end->reason);
            return;
        }
    }
}

/* ---- fences ---- */

static void fences_free(struct node_fences **list, struct node_fences *fences)
{
    hvi_fence_fini(&fences->page);
    DL_DELETE(*list, fences);
    free(fences);
}

bool node_gpu_fences(struct node_gpu *gpu, struct node_engine *engine, int32_t rank, int fd)
{
    struct node_fences *fences = calloc(1, sizeof(*fences)), *old, *after;

    if (fences == NULL || hvi_fence_map(fd, &fences->page) != HVI_OK) {
        free(fences);
        return false;
    }
    hvi_region_close_fd(&fences->page.map);
    DL_FOREACH_SAFE(gpu->fences, old, after)
    {
        if (old->engine == engine && old->rank == rank)
            fences_free(&gpu->fences, old); /* of an earlier session */
    }
    fences->engine = engine;
    fences->rank = rank;
    DL_APPEND(gpu->fences, fences);
    return true;
}

static void rest_free(struct node_rest *rest)
{
    while (rest->fences != NULL)
        fences_free(&rest->fences, rest->fences);
    sd_event_source_disable_unref(rest->timer);
    DL_DELETE(rest->gpu->rests, rest);
    free(rest);
}

static void rest_end(struct node_rest *rest)
{
    struct node_fences *fences;

    DL_FOREACH(rest->fences, fences)
    hvi_fence_poison(&fences->page, false);
    rest_free(rest);
}

static int on_rest(sd_event_source *source, uint64_t usec, void *user)
{
    (void)source, (void)usec;
    rest_end(user);
    return 0;
}

/* That worker has gone. */
static void rests_without(struct node_gpu *gpu, uint64_t instance)
{
    struct node_rest *rest, *after;

    DL_FOREACH_SAFE(gpu->rests, rest, after)
    {
        uint32_t left = 0;
        for (uint32_t i = 0; i < rest->count; i++) {
            if (rest->instances[i] == instance)
                rest->instances[i] = 0;
            left += rest->instances[i] != 0;
        }
        if (left == 0)
            rest_end(rest);
    }
}

/* Of the workers that the engine has; NULL: it has none, or there is no memory. */
static struct node_rest *rest_new(struct node_gpu *gpu, const struct node_engine *engine)
{
    struct node_rest *rest = calloc(1, sizeof(*rest) + gpu->worker_count * sizeof(uint64_t));
    const struct node_worker *worker;
    const struct node_want *want;

    if (rest == NULL)
        return NULL;
    DL_FOREACH(gpu->workers, worker)
    {
        DL_SEARCH_SCALAR(worker->wants, want, engine, engine);
        if (want != NULL && want->linked)
            rest->instances[rest->count++] = worker->instance;
    }
    if (rest->count == 0 || sd_event_add_time_relative(gpu->event, &rest->timer, CLOCK_MONOTONIC,
                                                       REST_NS / 1000, 1000, on_rest, rest) < 0) {
        free(rest);
        return NULL;
    }
    rest->gpu = gpu;
    DL_APPEND(gpu->rests, rest);
    return rest;
}

static void poison(struct node_gpu *gpu, const struct node_engine *engine)
{
    struct node_rest *rest = rest_new(gpu, engine);
    struct node_fences *fences, *after;

    DL_FOREACH_SAFE(gpu->fences, fences, after)
    {
        if (fences->engine != engine)
            continue;
        if (rest == NULL) {
            hvi_fence_poison(&fences->page, false);
            fences_free(&gpu->fences, fences);
            continue;
        }
        DL_DELETE(gpu->fences, fences);
        DL_APPEND(rest->fences, fences);
    }
}

void node_gpu_engine_gone(struct node_gpu *gpu, struct node_engine *engine)
{
    struct node_worker *worker, *next;
    struct node_want *want, *after;

    poison(gpu, engine);
    DL_FOREACH_SAFE(gpu->workers, worker, next)
    {
        DL_FOREACH_SAFE(worker->wants, want, after)
        {
            if (want->engine == engine)
                drop_want(worker, want);
        }
        check_idle(worker);
    }
}

/* ---- life ---- */

void node_gpu_open(struct node_gpu *gpu, sd_event *event, const struct node_config *config,
                   const struct node_gpu_calls *calls, void *user, const char *path,
                   const char *attach_path)
{
    *gpu = (struct node_gpu){
        .event = event, .config = config, .calls = calls, .user = user, .attach_path = attach_path};
    snprintf(gpu->path, sizeof(gpu->path), "%s", path);
    gpu->program_fd = open(path, O_PATH | O_CLOEXEC);
}

void node_gpu_stop_all(struct node_gpu *gpu, const char *reason)
{
    struct node_worker *worker, *after;

    gpu->stopping = true;
    DL_FOREACH_SAFE(gpu->workers, worker, after)
    {
        if (worker->state == NODE_WORKER_STARTING)
            kill_worker(worker, reason);
        else if (worker->state != NODE_WORKER_ENDING)
            stop_worker(worker, reason);
    }
}

int node_gpu_rows(const struct node_gpu *gpu, struct hvi_admin_reply *reply)
{
    const struct node_worker *worker;

    reply->gpus = calloc(gpu->worker_count + 1u, sizeof(*reply->gpus));
    if (reply->gpus == NULL)
        return HVI_ERR_NO_MEMORY;
    DL_FOREACH(gpu->workers, worker)
    {
        struct hvi_gpu_row *row = &reply->gpus[reply->gpu_count];
        if (reply->gpu_count == HVI_WIRE_ROWS_MAX)
            break;
        *row = worker->row; /* what it has said of its memory */
        memcpy(row->uuid, worker->name, sizeof(row->uuid));
        memcpy(row->job, worker->job, sizeof(row->job));
        snprintf(row->state, sizeof(row->state), "%s", node_worker_state_text(worker->state));
        row->uid = worker->uid;
        row->pid = (int32_t)worker->pid;
        reply->gpu_count++;
    }
    return HVI_OK;
}

void node_gpu_close(struct node_gpu *gpu)
{
    while (gpu->workers != NULL)
        worker_free(gpu->workers);
    while (gpu->fences != NULL)
        fences_free(&gpu->fences, gpu->fences);
    while (gpu->rests != NULL)
        rest_free(gpu->rests);
    gpu->beat = sd_event_source_disable_unref(gpu->beat);
    if (gpu->event != NULL && gpu->program_fd >= 0)
        close(gpu->program_fd);
    gpu->event = NULL;
    gpu->program_fd = -1;
}
