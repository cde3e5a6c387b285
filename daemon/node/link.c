/* SPDX-License-Identifier: Apache-2.0
 * The connection to one engine. A send never blocks: what does not fit the socket waits in an
 * outbox, and an engine that takes nothing for 5 s is killed, because a client behind it would wait
 * in vain.
 *
 * An engine ends in one place, node_link_end, called when its *process* is gone: whatever it said
 * last is still on the link then and is read first, so a clean exit after "rank 0 left" is not
 * taken for a loss. A link that breaks while the process lives takes no new ranks, and the process
 * gets 5 s to go. One that hvdd may not kill (another user's, without CAP_KILL) gets 5 s more and is forgotten. An engine
 * that its unit starts has no process before its first message; until then
 * the end of its link is its end. */
#include "daemon/node/node.h"
#include "daemon/node/unit.h"

#include "base/status.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <utlist.h>

#define MESSAGES_AT_ONCE 64
#define OUTBOX_COUNT     4096u
#define OUTBOX_BYTES     (16u * 1024u * 1024u)
#define UNMET            "did not start (`journalctl -u hvdd-engine.socket -u 'hvdd-engine@*'` says why)"

static int on_link(sd_event_source *source, int fd, uint32_t events, void *user);

/* ---- sending
 * ------------------------------------------------------------------------------------------------------
 */

static void outgoing_free(struct node_engine *engine, struct node_outgoing *outgoing)
{
    DL_DELETE(engine->outbox, outgoing);
    engine->outbox_count--;
    engine->outbox_bytes -= outgoing->length;
    for (uint32_t i = 0; i < outgoing->fd_count; i++)
        close(outgoing->fds[i]);
    free(outgoing);
}

static int on_stuck(sd_event_source *source, uint64_t usec, void *user)
{
    (void)source, (void)usec;
    node_spawn_kill(user, "the engine has not read its link for 5 s");
    return 0;
}

/* One-shot, restarted whenever it makes sense to give more time. */
static bool arm(struct node_engine *engine, sd_event_source **source_p, uint64_t delay_ns,
                sd_event_time_handler_t handler)
{
    uint64_t delay_us = delay_ns / 1000;

    if (*source_p != NULL)
        return sd_event_source_set_time_relative(*source_p, delay_us) >= 0 &&
               sd_event_source_set_enabled(*source_p, SD_EVENT_ONESHOT) >= 0;
    return sd_event_add_time_relative(engine->node->event, source_p, CLOCK_MONOTONIC, delay_us, 1,
                                      handler, engine) >= 0;
}

static struct node_outgoing *outgoing_new(const unsigned char *bytes, size_t length, const int *fds,
                                          uint32_t fd_count)
{
    struct node_outgoing *outgoing = malloc(sizeof(*outgoing) + length);

    if (outgoing == NULL)
        return NULL;
    memcpy(outgoing->bytes, bytes, length);
    outgoing->length = length;
    for (outgoing->fd_count = 0; outgoing->fd_count < fd_count; outgoing->fd_count++) {
        int copy = fcntl(fds[outgoing->fd_count], F_DUPFD_CLOEXEC, 0);
        if (copy < 0)
            goto failed;
        outgoing->fds[outgoing->fd_count] = copy;
    }
    return outgoing;
failed:
    while (outgoing->fd_count > 0)
        close(outgoing->fds[--outgoing->fd_count]);
    free(outgoing);
    return NULL;
}

static int queue(struct node_engine *engine, const unsigned char *bytes, size_t length,
                 const int *fds, uint32_t fd_count)
{
    struct node_outgoing *outgoing = NULL;

    if (engine->outbox_count < OUTBOX_COUNT && engine->outbox_bytes + length <= OUTBOX_BYTES)
        outgoing = outgoing_new(bytes, length, fds, fd_count);
    if (outgoing == NULL) {
        node_spawn_kill(engine, "no room to queue what the engine has to be told");
        return HVI_ERR_ENGINE_LOST;
    }
    if (engine->outbox == NULL) {
        sd_event_source_set_io_events(engine->io, EPOLLIN | EPOLLOUT);
        arm(engine, &engine->stuck, NODE_ENGINE_GRACE_NS, on_stuck);
    }
    DL_APPEND(engine->outbox, outgoing);
    engine->outbox_count++;
    engine->outbox_bytes += length;
    return HVI_OK;
}

static void flush(struct node_engine *engine)
{
    while (engine->outbox != NULL) {
        struct node_outgoing *first = engine->outbox;
        int status = hvi_packet_send(engine->link_fd, first->bytes, first->length, first->fds,
                                     first->fd_count, 0);
        if (status == HVI_ERR_TIMEOUT || status == HVI_ERR_LIMIT)
            return;
        outgoing_free(engine, first); /* sent, or the link is broken, which reading will tell */
        arm(engine, &engine->stuck, NODE_ENGINE_GRACE_NS, on_stuck);
    }
    sd_event_source_set_io_events(engine->io, EPOLLIN);
    engine->stuck = sd_event_source_disable_unref(engine->stuck);
}

int node_link_send(struct node_engine *engine, const struct hvi_packet_msg *msg, const int *fds,
                   uint32_t fd_count)
{
    struct node *node = engine->node;
    size_t length;
    int status;

    if (hvi_packet_msg_encode(msg, node->encoded, sizeof(node->encoded), &length) != HVI_OK)
        return HVI_ERR_INVALID;
    if (engine->link_fd < 0)
        return HVI_ERR_ENGINE_LOST;
    if (engine->outbox != NULL)
        return queue(engine, node->encoded, length, fds, fd_count);
    status = hvi_packet_send(engine->link_fd, node->encoded, length, fds, fd_count, 0);
    if (status == HVI_OK || status == HVI_ERR_INVALID)
        return status;
    if (status == HVI_ERR_CLOSED)
        return HVI_ERR_ENGINE_LOST;
    return queue(engine, node->encoded, length, fds,
                 fd_count); /* full, or out of kernel memory for now */
}

/* ---- stopping
 * -----------------------------------------------------------------------------------------------------
 */

static int on_kill(sd_event_source *source, uint64_t usec, void *user)
{
    (void)source, (void)usec;
    node_spawn_kill(user, "the engine should have ended 5 s ago");
    return 0;
}

void node_link_stop(struct node_engine *engine, const char *reason)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_ENGINE_STOP};

    engine->generation->stopping = true;
    if (engine->kill != NULL)
        return; /* it knows */
    if (node_generation_present(engine->generation) > 0 && engine->stopped == NULL)
        engine->stopped = strdup(reason);
    snprintf(msg.engine_stop.reason, sizeof(msg.engine_stop.reason), "%s", reason);
    node_link_send(engine, &msg, NULL, 0);
    if (!arm(engine, &engine->kill, NODE_ENGINE_GRACE_NS, on_kill))
        node_spawn_kill(engine, "no memory for a timer");
}

static int on_linger(sd_event_source *source, uint64_t usec, void *user)
{
    struct node_engine *engine = user;
    const struct node *node = engine->node;

    (void)source, (void)usec;
    if (node->phase == NODE_PHASE_RUNNING && node->config.engine_linger > 0 &&
        node_generation_awaited(engine->generation))
        node_link_presence(engine); /* once more */
    else
        node_link_stop(engine, "nobody is attached to the job");
    return 0;
}

void node_link_presence(struct node_engine *engine)
{
    if (node_generation_present(engine->generation) == 0 && !engine->generation->stopping)
        arm(engine, &engine->linger, (uint64_t)engine->node->config.engine_linger, on_linger);
    else
        engine->linger = sd_event_source_disable_unref(engine->linger);
    node_notify_changed(engine->node);
    node_stop_check(engine->node);
}

static int on_unmet(sd_event_source *source, uint64_t usec, void *user)
{
    struct node_engine *engine = user;

    (void)source, (void)usec;
    node_link_poll(engine);
    if (engine->pidfd < 0)
        node_link_end(engine, false, UNMET);
    return 0;
}

/* The engine speaks nonsense or not at all: no more ranks for it. */
static void break_link(struct node_engine *engine)
{
    engine->io = sd_event_source_disable_unref(engine->io);
    engine->stuck = sd_event_source_disable_unref(engine->stuck);
    while (engine->outbox != NULL)
        outgoing_free(engine, engine->outbox);
    close(engine->link_fd);
    engine->link_fd = -1;
    engine->generation->stopping = true;
    if (engine->pidfd < 0)
        arm(engine, &engine->unmet, 0, on_unmet);
    else if (engine->kill == NULL)
        arm(engine, &engine->kill, NODE_ENGINE_GRACE_NS, on_kill);
}

static int on_forget(sd_event_source *source, uint64_t usec, void *user)
{
    struct node_engine *engine = user;

    (void)source, (void)usec;
    if (engine->link_fd >= 0)
        break_link(engine); /* it lives, and could talk for ever */
    node_link_end(engine, false, "did not end, and hvdd may not kill it (it lacks CAP_KILL)");
    return 0;
}

void node_link_give_up(struct node_engine *engine)
{
    if (engine->forget == NULL)
        arm(engine, &engine->forget, NODE_ENGINE_GRACE_NS, on_forget);
}

/* ---- receiving
 * ----------------------------------------------------------------------------------------------------
 */

static bool slot_state_of(uint32_t wire_state, enum node_slot_state *state_p)
{
    static const enum node_slot_state states[] = {
        [HVI_SESSION_STATE_ATTACHED] = NODE_SLOT_ATTACHED,
        [HVI_SESSION_STATE_LEFT] = NODE_SLOT_LEFT,
        [HVI_SESSION_STATE_LOST] = NODE_SLOT_LOST,
        [HVI_SESSION_STATE_ENDED] = NODE_SLOT_ENDED,
    };
    if (wire_state < HVI_SESSION_STATE_ATTACHED || wire_state > HVI_SESSION_STATE_ENDED)
        return false;
    *state_p = states[wire_state];
    return true;
}

static void count_session(struct node *node, enum node_slot_state state)
{
    if (state == NODE_SLOT_ATTACHED)
        node->counters.attaches++;
    if (state == NODE_SLOT_LOST || state == NODE_SLOT_ENDED)
        node->counters.ranks_lost++;
}

/* False: the engine says what cannot be. */
static bool handle_session(struct node_engine *engine, const struct hvi_engine_session *session)
{
    struct node_generation *generation = engine->generation;
    struct node *node = engine->node;
    const struct node_slot *slot = node_generation_slot(generation, session->rank);
    enum node_slot_state state;
    char cause[160];

    if (slot == NULL || !slot_state_of(session->state, &state))
        return false;
    snprintf(cause, sizeof(cause), "rank %d (pid %d) %s%s%.80s", session->rank, (int)session->pid,
             state == NODE_SLOT_ATTACHED ? "has attached" : "has gone",
             session->text[0] != '\0' ? ": " : "", session->text);
    if (!node_slot_set(&node->jobs, generation, session->rank, state, (pid_t)session->pid,
                       slot->session, cause)) {
        HVI_LOG(HVI_LOG_DEBUG, "link", "late-session",
                "the engine told what is over already, or of a rank that never comes",
                "job=%s rank=%d", generation->job->name.id, session->rank);
        return true;
    }
    count_session(node, state);
    if (state == NODE_SLOT_ATTACHED)
        HVI_LOG(HVI_LOG_DEBUG, "link", "rank-attached", "a rank was attached",
                "job=%s generation=%llu rank=%d pid=%d uid=%u", generation->job->name.id,
                (unsigned long long)generation->number, session->rank, (int)session->pid,
                (unsigned)generation->job->name.uid);
    else
        node_attach_wake_held(node);
    if ((state == NODE_SLOT_LOST || state == NODE_SLOT_ENDED) && engine->lost == NULL) {
        engine->lost = strdup(session->text);
        node_mesh_rank_lost(engine);
    }
    if (state == NODE_SLOT_LOST || state == NODE_SLOT_ENDED)
        node_gate_event(node, HVI_EVENT_RANK_LOST, generation, session->rank, session->pid,
                        session->text);
    node_attach_adopted(node, generation, session->rank);
    node_link_presence(engine);
    return true;
}

/* The job is broken by what is no rank of this node. The first reason counts, and a lost rank of this node has been told. */
static void handle_broken(struct node_engine *engine, const struct hvi_notice *notice)
{
    const bool is_rank = notice->status == HVI_ERR_RANK_LOST && notice->rank >= 0;

    if (engine->broken || engine->lost != NULL)
        return;
    engine->broken = true;
    engine->failed_status = notice->status;
    engine->failed = notice->session_ended ? strdup(notice->text) : NULL;
    node_gate_event(engine->node, is_rank ? HVI_EVENT_RANK_LOST : HVI_EVENT_JOB_BROKEN,
                    engine->generation, is_rank ? notice->rank : -1, 0, notice->text);
}

/* An op has stalled, or the job is broken. False: there is nothing else that an engine has to note here. */
static bool handle_notice(struct node_engine *engine, const struct hvi_notice *notice)
{
    if (notice->status < HVI_OK)
        handle_broken(engine, notice);
    else if (notice->status == HVI_INPROGRESS)
        node_gate_event(engine->node, HVI_EVENT_STALL, engine->generation, -1, 0, notice->text);
    else
        return false;
    return true;
}

/* An engine that lies has no more of it than its user's share. */
static void keep_granted(struct node_engine *engine, uint64_t bytes)
{
    uint64_t most = node_regions_most(engine->node, true);

    engine->regions_granted = bytes < most ? bytes : most;
}

static void handle_regions(struct node_engine *engine, const struct hvi_engine_regions *wanted)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_ENGINE_REGIONS};
    struct hvi_engine_regions *told = &msg.engine_regions;

    told->request = wanted->request;
    if (node_decide_regions(engine, wanted->bytes, told->text, sizeof(told->text)))
        engine->regions_granted = wanted->bytes;
    told->bytes = engine->regions_granted;
    node_link_send(engine, &msg, NULL, 0);
}

/* The answer to a beat says what the job uses of its limits; any other report leaves that out. */
static void keep_limits(struct node_engine *engine, const struct hvi_engine_report *report)
{
    if (report->process_sets == 0)
        return;
    engine->region_bytes = report->region_bytes;
    engine->regions = report->regions;
    engine->process_sets = report->process_sets;
    keep_granted(engine, report->regions_granted);
}

/* False: the engine of a job that is here wholly, or of one with other sizes. */
static bool handle_node(struct node_engine *engine, const struct hvi_packet *packet,
                        const struct hvi_engine_node *said)
{
    const struct node_generation *generation = engine->generation;

    if (!node_generation_spans(generation) || said->size != generation->size ||
        said->rank_count != (size_t)generation->seats)
        return false;
    node_mesh_engine_node(engine, packet->bytes, packet->length);
    return true;
}

/* ---- workers of GPUs ---- */

static void tell_gpu(struct node_engine *engine, const struct hvi_gpu_worker *worker, int fd)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_GPU_WORKER, .gpu_worker = *worker};

    node_link_send(engine, &msg, &fd, fd < 0 ? 0 : 1);
}

static void gpus_empty(void *user)
{
    node_stop_check(user);
}

const struct node_gpu_calls node_link_gpu_calls = {
    .tell = tell_gpu, .spawn = node_spawn_program, .empty = gpus_empty};

static struct node_gpu_asker asker_of(struct node_engine *engine)
{
    const struct node_generation *generation = engine->generation;

    return (struct node_gpu_asker){.engine = engine,
                                   .job = generation->job->name.id,
                                   .uid = generation->job->name.uid,
                                   .generation = generation->number,
                                   .pid = engine->pid};
}

/* False: it is none of these, or has not the descriptor that belongs to it. */
static bool handle_gpu(struct node_engine *engine, struct hvi_packet *packet,
                       const struct hvi_packet_msg *msg)
{
    const struct node_gpu_asker asker = asker_of(engine);
    struct node_gpu *gpu = &engine->node->gpu;

    if (msg->kind == HVI_PACKET_GPU_WANTED)
        node_gpu_want(gpu, &asker, &msg->gpu_wanted);
    else if (msg->kind == HVI_PACKET_GPU_END)
        node_gpu_end(gpu, &asker, &msg->gpu_end);
    else if (msg->kind != HVI_PACKET_ENGINE_FENCES || packet->fd_count != 1 ||
             !node_gpu_fences(gpu, engine, msg->engine_fences.rank, engine->generation->seats,
                              packet->fds[0]))
        return false;
    else
        hvi_packet_take_fd(packet, 0); /* the page's, and closed by now */
    return true;
}

static bool handle_packet(struct node_engine *engine, struct hvi_packet *packet)
{
    struct hvi_packet_msg msg;
    char text[200] = "";
    bool good = true;

    if (hvi_packet_msg_decode(packet->bytes, packet->length, &msg, text, sizeof(text)) != HVI_OK) {
        HVI_LOG(HVI_LOG_ERROR, "link", "bad-engine", "an engine sent what cannot be read",
                "job=%s pid=%d error=\"%s\"", engine->generation->job->name.id, (int)engine->pid,
                text);
        return false;
    }
    node_beat_heard(engine);
    if (packet->fd_count != 0 && msg.kind != HVI_PACKET_ENGINE_FENCES)
        good = false;
    else if (msg.kind == HVI_PACKET_ENGINE_SESSION)
        good = handle_session(engine, &msg.engine_session);
    else if (msg.kind == HVI_PACKET_ENGINE_REPORT) {
        keep_limits(engine, &msg.engine_report);
        node_answer_report(engine->node, engine, &msg.engine_report);
    } else if (msg.kind == HVI_PACKET_ENGINE_REGIONS)
        handle_regions(engine, &msg.engine_regions);
    else if (msg.kind == HVI_PACKET_NOTICE)
        good = handle_notice(engine, &msg.notice);
    else if (msg.kind == HVI_PACKET_ACK)
        node_attach_timeline_done(engine->node, engine, &msg.ack);
    else if (msg.kind == HVI_PACKET_ENGINE_NODE)
        good = handle_node(engine, packet, &msg.engine_node);
    else
        good = handle_gpu(engine, packet, &msg);
    if (!good)
        HVI_LOG(HVI_LOG_ERROR, "link", "bad-engine", "an engine sent what it may not send",
                "job=%s pid=%d kind=%d", engine->generation->job->name.id, (int)engine->pid,
                (int)msg.kind);
    hvi_packet_msg_free(&msg);
    return good;
}

/* Its first message. False: it is not what the unit should start. */
static bool meet(struct node_engine *engine, const struct hvi_packet *packet)
{
    char text[160];

    engine->pidfd = node_unit_meet(packet, engine->link_fd, "hvdd-engine", text, sizeof(text));
    engine->pid = engine->pidfd < 0 ? 0 : packet->sender_pid;
    if (engine->pidfd >= 0 && node_spawn_watch(engine) < 0) {
        snprintf(text, sizeof(text), "no memory to watch it");
        close(engine->pidfd);
        engine->pidfd = -1;
    }
    if (engine->pidfd < 0) {
        HVI_LOG(HVI_LOG_ERROR, "link", "bad-engine-unit", text, "job=%s socket=%s",
                engine->generation->job->name.id, engine->node->config.engine_socket);
        return false;
    }
    engine->beats = true;
    engine->unmet = sd_event_source_disable_unref(engine->unmet);
    node_spawn_log_started(engine);
    return true;
}

/* At most `limit` messages. False: the link is broken. */
static bool read_link(struct node_engine *engine, int limit)
{
    struct hvi_packet *packet = &engine->node->packet;

    for (int i = 0; i < limit; i++) {
        int status = hvi_packet_receive(engine->link_fd, packet, 0);
        if (status == HVI_ERR_TIMEOUT)
            return true;
        if (status != HVI_OK)
            return false;
        bool good = engine->pidfd < 0 ? meet(engine, packet) : handle_packet(engine, packet);
        hvi_packet_close_fds(packet);
        if (!good) {
            node_spawn_kill(engine, "the engine broke the protocol");
            return false;
        }
    }
    return true;
}

void node_link_poll(struct node_engine *engine)
{
    if (engine->link_fd >= 0 && !read_link(engine, MESSAGES_AT_ONCE))
        break_link(engine);
}

static int on_link(sd_event_source *source, int fd, uint32_t events, void *user)
{
    struct node_engine *engine = user;

    (void)source, (void)fd;
    if ((events & EPOLLOUT) != 0)
        flush(engine);
    if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0)
        node_link_poll(engine);
    return 0;
}

/* ---- life
 * ---------------------------------------------------------------------------------------------------------
 */

static void engine_free(struct node_engine *engine)
{
    DL_DELETE(engine->node->engines, engine);
    while (engine->outbox != NULL)
        outgoing_free(engine, engine->outbox);
    sd_event_source_disable_unref(engine->exit);
    sd_event_source_disable_unref(engine->io);
    sd_event_source_disable_unref(engine->linger);
    sd_event_source_disable_unref(engine->kill);
    sd_event_source_disable_unref(engine->stuck);
    sd_event_source_disable_unref(engine->unmet);
    sd_event_source_disable_unref(engine->forget);
    if (engine->link_fd >= 0)
        close(engine->link_fd);
    if (engine->pidfd >= 0)
        close(engine->pidfd);
    free(engine->node_packet);
    free(engine->lost);
    free(engine->failed);
    free(engine->stopped);
    free(engine);
}

/* Where its unit starts it there is none yet. It has a little less time than an adoption may take: so
 * ranks are told of the unit. */
static int watch_process(struct node_engine *engine)
{
    uint64_t unmet_ns = (uint64_t)engine->node->config.attach_timeout / 8 * 7;

    if (engine->pidfd >= 0)
        return node_spawn_watch(engine);
    return arm(engine, &engine->unmet, unmet_ns, on_unmet) ? 0 : -ENOMEM;
}

struct node_engine *node_link_new(struct node *node, struct node_generation *generation,
                                  int link_fd, pid_t pid, int pidfd, bool child)
{
    struct node_engine *engine = calloc(1, sizeof(*engine));
    int r;

    if (engine == NULL)
        return NULL;
    engine->node = node;
    engine->generation = generation;
    engine->pid = pid;
    engine->pidfd = pidfd;
    engine->link_fd = link_fd;
    engine->child = child;
    DL_APPEND(node->engines, engine);
    r = sd_event_add_io(node->event, &engine->io, link_fd, EPOLLIN, on_link, engine);
    if (r >= 0)
        r = watch_process(engine);
    if (r >= 0 && node_beat_start(engine) != HVI_OK)
        r = -ENOMEM;
    if (r < 0) {
        engine->link_fd = engine->pidfd = -1; /* the caller's again */
        engine_free(engine);
        errno = -r;
        return NULL;
    }
    generation->engine = engine;
    return engine;
}

static void log_end(const struct node_generation *generation, const struct node_engine *engine,
                    bool clean, const char *fate)
{
    char sentence[160];
    int32_t present = node_generation_present(generation);

    snprintf(sentence, sizeof(sentence), "the engine %s", fate);
    HVI_LOG_OF(generation->job->name.uid, clean ? HVI_LOG_INFO : HVI_LOG_ERROR, "link",
               "engine-ended", sentence, "job=%s generation=%llu pid=%d attached=%d",
               generation->job->name.id, (unsigned long long)generation->number, (int)engine->pid,
               present);
}

void node_link_end(struct node_engine *engine, bool clean, const char *fate)
{
    struct node *node = engine->node;
    struct node_generation *generation = engine->generation;

    if (engine->link_fd >= 0)
        read_link(engine, INT32_MAX);
    generation->stopping = true;
    log_end(generation, engine, clean, fate);
    if (!clean)
        node->counters.ranks_lost += (uint64_t)node_generation_present(generation);
    if (!clean)
        node_gate_event(node, HVI_EVENT_ENGINE_LOST, generation, -1, engine->pid, fate);
    node_gate_event(node, HVI_EVENT_GENERATION_ENDED, generation, -1, engine->pid, fate);
    node_answer_engine_gone(node, engine);
    node_mesh_engine_gone(engine, clean, fate);
    node_gpu_engine_gone(&node->gpu, engine);
    node_attach_engine_gone(node, generation, clean, fate);
    engine_free(engine);
    node_generation_end(&node->jobs, generation,
                        clean ? "its engine has ended" : "its engine has died");
    node_notify_changed(node);
    node_stop_check(node);
}

void node_link_forget_all(struct node *node)
{
    while (node->engines != NULL)
        engine_free(node->engines);
    node_beat_close(node);
}

/* ---- after our own restart
 * ----------------------------------------------------------------------------------------- */

static int32_t seats_of(const struct hvi_engine_hello *hello)
{
    return hello->seats > 0 ? hello->seats : hello->size;
}

static bool hello_matches(const struct node *node, const struct node_peer *peer,
                          const struct hvi_engine_hello *hello, const char **why_p)
{
    *why_p = NULL;
    if (hello->protocol_version != HVI_PROTOCOL_VERSION)
        *why_p = "it speaks another protocol version";
    else if (hello->pid != peer->pid)
        *why_p = "it is not the process it says it is";
    else if (node->phase == NODE_PHASE_STOPPING)
        *why_p = "hvdd is stopping";
    else if (hello->size < 1 || seats_of(hello) > HVI_RANKS_MAX || seats_of(hello) > hello->size)
        *why_p = "the size of its job is impossible";
    return *why_p == NULL;
}

static void restore_slots(struct node *node, struct node_generation *generation,
                          const struct hvi_engine_hello *hello)
{
    for (size_t i = 0; i < hello->rank_count; i++) {
        const struct hvi_rank_row *row = &hello->ranks[i];
        int32_t seat = node_generation_spans(generation) ? row->seat : row->rank;
        int state = node_slot_state_parse(row->state);
        if (row->rank < 0 || row->rank >= generation->size || seat >= generation->seats ||
            state <= NODE_SLOT_ATTACHING)
            continue;
        if (generation->slots[seat].state == NODE_SLOT_ABSENT)
            node_slot_claim(generation, seat, row->rank, (pid_t)row->own_pid);
        /* A rank that stands there twice keeps its first state: the second edge does not exist. */
        if (node_slot_set(&node->jobs, generation, row->rank, NODE_SLOT_ATTACHING, (pid_t)row->pid,
                          node->next_session++, "told by its engine"))
            node_slot_set(&node->jobs, generation, row->rank, (enum node_slot_state)state,
                          (pid_t)row->pid, 0, "told by its engine");
    }
}

static int refuse_hello(struct node *node, const struct node_peer *peer,
                        const struct hvi_engine_hello *hello, const char *why)
{
    if (node->hello_refused_pid != peer->pid)
        HVI_LOG(HVI_LOG_WARN, "link", "hello-refused", why, "pid=%d job=%s", (int)peer->pid,
                hello->job);
    node->hello_refused_pid = peer->pid;
    return HVI_ERR_REFUSED;
}

/* Some of its ranks are there, and wait for the others. */
static bool waits_for_ranks(const struct hvi_engine_hello *hello)
{
    int32_t attached = 0;

    for (size_t i = 0; i < hello->rank_count; i++) {
        int state = node_slot_state_parse(hello->ranks[i].state);
        if (state > NODE_SLOT_ATTACHED)
            return false;
        attached += state == NODE_SLOT_ATTACHED;
    }
    return attached < seats_of(hello);
}

/* Its ranks and those of `generation` wait for each other: a fresh hvdd counts a job's generations from 1. */
static bool splits(const struct node_generation *generation, const struct hvi_engine_hello *hello)
{
    return generation->state == NODE_JOB_FORMING && !generation->stopping &&
           !generation->engine->back && waits_for_ranks(hello);
}

static struct node_engine *twin_of(const struct node *node, const struct hvi_engine_hello *hello)
{
    struct node_engine *engine;

    DL_FOREACH(node->engines, engine)
    {
        const struct node_generation *generation = engine->generation;
        const struct node_job_name *job = &generation->job->name;
        if (job->uid == hello->uid && strcmp(job->id, hello->job) == 0 &&
            (generation->number == hello->generation || splits(generation, hello)))
            return engine;
    }
    return NULL;
}

/* Two engines for the same ranks: this one was held up and came when ranks had got another. Its ranks are told and may
 * come again, the other one's wait for them. Not where it is the same engine, whose broken link is not read yet. */
static int refuse_twin(struct node *node, const struct node_peer *peer,
                       const struct hvi_engine_hello *hello, int fd,
                       const struct node_engine *other)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_ENGINE_STOP};
    size_t length;

    if (other->pid != peer->pid) {
        snprintf(msg.engine_stop.reason, sizeof(msg.engine_stop.reason),
                 "hvdd was killed, and its successor has started another engine (pid %d) for other "
                 "ranks of the job; open the session again",
                 (int)other->pid);
        if (hvi_packet_msg_encode(&msg, node->encoded, sizeof(node->encoded), &length) == HVI_OK)
            hvi_packet_send(fd, node->encoded, length, NULL, 0, 0);
    }
    return refuse_hello(node, peer, hello, "its job has another engine already");
}

int node_link_hello(struct node *node, const struct node_peer *peer,
                    const struct hvi_engine_hello *hello, int fd, int pidfd)
{
    struct node_generation *generation;
    struct node_engine *engine;
    const char *why;
    int status;

    if (!hello_matches(node, peer, hello, &why))
        return refuse_hello(node, peer, hello, why);
    engine = twin_of(node, hello);
    if (engine != NULL)
        return refuse_twin(node, peer, hello, fd, engine);
    status = node_generation_new(&node->jobs, hello->job, hello->uid, hello->job_key_digest,
                                 hello->size, seats_of(hello), hello->generation, &generation);
    if (status != HVI_OK)
        return refuse_hello(node, peer, hello, "hvdd is out of memory or descriptors");
    engine = node_link_new(node, generation, fd, peer->pid, pidfd, false);
    if (engine == NULL) {
        node_generation_end(&node->jobs, generation, "hvdd cannot watch its engine");
        return refuse_hello(node, peer, hello, "hvdd is out of memory or descriptors");
    }
    engine->back = true;
    engine->beats = hello->beats; /* an older one does not know the question */
    keep_granted(engine, hello->regions_granted);
    if (hello->started_ns != 0 && hello->started_ns < generation->started_ns)
        generation->started_ns = hello->started_ns;
    HVI_LOG(HVI_LOG_INFO, "link", "engine-back", "an engine of an earlier hvdd has connected again",
            "job=%s generation=%llu pid=%d", hello->job, (unsigned long long)hello->generation,
            (int)peer->pid);
    restore_slots(node, generation, hello);
    const struct node_gpu_asker asker = asker_of(engine);
    node_gpu_engine_back(&node->gpu, &asker);
    node_link_presence(engine);
    node_attach_wake_held(node);
    return HVI_OK;
}

int node_link_return(struct node *node, const struct node_peer *peer,
                     const struct hvi_gpu_return *said, int fd, int pidfd, const char **why_p)
{
    struct node_engine *engine;
    int status = node_gpu_return(&node->gpu, said, peer->pid, fd, pidfd, why_p);

    if (status != HVI_OK)
        return status;
    DL_FOREACH(node->engines, engine)
    {
        const struct node_gpu_asker asker = asker_of(engine);
        node_gpu_engine_back(&node->gpu, &asker);
    }
    return HVI_OK;
}
