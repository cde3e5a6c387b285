/* SPDX-License-Identifier: Apache-2.0 */
#include "fake.h"

#include "base/assert.h"
#include "base/clock.h"
#include "proto/packet.h"
#include "proto/wire.h"
#include "shm/bell.h"
#include "shm/channel.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define SESSIONS 8u
#define REGIONS  512u
#define SIZING   64u

struct fake_region {
    uint32_t id;
    struct hvi_region map;
};

/* An allgather whose output has been asked for. */
struct fake_sizing {
    uint64_t cookie; /* 0: free */
    struct hvi_submission submission;
};

struct hvt_fake_session {
    struct hvt_fake *fake;
    int socket_fd; /* -1 when hung up */
    int engine_event, client_event;
    struct hvi_channel channel;
    struct fake_region regions[REGIONS];
    struct fake_sizing sizing[SIZING];
    uint64_t completion_seq;
    bool detached;
    struct hvi_fence_page fences;
    struct hvi_device_memory device; /* the last that was announced; without .chunks and .fabric */
    uint32_t devices, chunks;        /* announced; .chunks of the last one */
    struct hvt_fake_timeline timeline;
};

struct hvt_fake {
    struct hvt_fake_script script;
    char dir[64];
    char path[96];
    bool own_dir;
    int listen_fd, stop_fd;
    pthread_t thread;
    atomic_bool
        runs; /* a test that forks finds no lock of a thread's beginning taken, which a sanitizer has */
    pthread_mutex_t mutex; /* guards everything below and in the sessions, but for manual rings */
    struct hvi_region bell_region;
    struct hvi_bell_page *bell;
    struct hvt_fake_session sessions[SESSIONS];
    uint32_t session_count;
    struct hvi_attach_request request; /* the last one; settings owned */
    char identity[256];
    uint32_t connections;
    struct hvi_packet packet; /* to receive into */
};

/* ---- sending ---- */

static void send_msg(int fd, const struct hvi_packet_msg *msg, const int *fds, uint32_t fd_count)
{
    unsigned char bytes[8192];
    size_t length;
    HVI_ASSERT(hvi_packet_msg_encode(msg, bytes, sizeof bytes, &length) == HVD_OK);
    hvi_packet_send(fd, bytes, length, fds, fd_count, hvi_deadline_after(1000000000));
}

static void set_text(char *text_p, const char *text)
{
    snprintf(text_p, HVI_TEXT_MAX + 1, "%s", text ? text : "");
}

static bool takes_fabric; /* all fakes of this process */

static void send_reply(int fd, int status, const char *text, uint32_t protocol, const int *fds,
                       uint32_t fd_count)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_ATTACH_REPLY};
    msg.attach_reply.status = status;
    set_text(msg.attach_reply.text, text);
    msg.attach_reply.protocol_version = protocol;
    msg.attach_reply.abi_version = HVI_ABI_VERSION;
    msg.attach_reply.session = 1;
    msg.attach_reply.generation = 1;
    msg.attach_reply.engine_pid = (int32_t)getpid();
    msg.attach_reply.fabric = takes_fabric;
    send_msg(fd, &msg, fds, fd_count);
}

static void send_ack(struct hvt_fake_session *session, uint64_t request, int status,
                     const char *text)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_ACK};
    if (session->fake->script.mute)
        return;
    msg.ack.request = request;
    msg.ack.status = status;
    set_text(msg.ack.text, text);
    send_msg(session->socket_fd, &msg, NULL, 0);
}

/* ---- attach ---- */

static int unsealed_copy(const struct hvi_channel *channel)
{
    int fd = memfd_create("unsealed", MFD_CLOEXEC);
    HVI_ASSERT(fd >= 0);
    HVI_ASSERT(ftruncate(fd, (off_t)channel->region.bytes) == 0);
    HVI_ASSERT(pwrite(fd, channel->region.base, HVI_PAGE, 0) == HVI_PAGE);
    return fd;
}

/* What goes out as descriptor 0; to be closed unless it is the channel's own. */
static int channel_fd(struct hvt_fake *fake, struct hvi_channel *channel)
{
    struct hvi_channel_header *header = channel->header;
    switch (fake->script.attach) {
    case HVT_BAD_CHANNEL:
        header->magic = 0;
        break;
    case HVT_FOREIGN_ABI:
        header->abi_version = HVI_ABI_VERSION + 1;
        break;
    case HVT_UNSEALED:
        return unsealed_copy(channel);
    case HVT_NOT_MEMORY:
        return open("/dev/null", O_RDWR | O_CLOEXEC);
    default:
        break;
    }
    return channel->region.fd;
}

static void serve_attach(struct hvt_fake *fake, int fd)
{
    HVI_ASSERT(fake->session_count < SESSIONS);
    struct hvt_fake_session *session = &fake->sessions[fake->session_count];
    memset(session, 0, sizeof *session);
    session->fake = fake;
    session->socket_fd = fd;
    session->timeline.fd = -1;
    session->engine_event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    session->client_event = eventfd(0, EFD_CLOEXEC);
    HVI_ASSERT(hvi_channel_create(fake->session_count, 7, &session->channel) == HVD_OK);
    hvi_channel_offer(&session->channel, fake->script.features);
    takes_fabric = fake->script.fabric;
    int fds[5] = {channel_fd(fake, &session->channel), fake->bell_region.fd, session->engine_event,
                  session->client_event, fake->script.slots_fd};
    fake->session_count++;
    send_reply(fd, HVD_OK, NULL,
               fake->script.attach == HVT_FOREIGN ? HVI_PROTOCOL_VERSION + 41
                                                  : HVI_PROTOCOL_VERSION,
               fds, fake->script.attach == HVT_FEW_FDS ? 2 : 4 + (fake->script.slots_fd > 0));
    if (fds[0] != session->channel.region.fd)
        close(fds[0]);
}

static void answer_attach(struct hvt_fake *fake, int fd)
{
    struct hvi_packet_msg notice = {.kind = HVI_PACKET_NOTICE};
    switch (fake->script.attach) {
    case HVT_REFUSE:
        send_reply(fd, fake->script.status, fake->script.text, HVI_PROTOCOL_VERSION, NULL, 0);
        break;
    case HVT_HANG_UP:
        break;
    case HVT_HANG_UP_ONCE:
        if (fake->connections > 1) {
            serve_attach(fake, fd);
            return;
        }
        break;
    case HVT_GARBAGE:
        hvi_packet_send(fd, "\xff\xff\xff", 3, NULL, 0, 0);
        break;
    case HVT_WRONG_KIND:
        notice.notice.status = HVD_ERR_RANK_LOST;
        set_text(notice.notice.text, "what?");
        send_msg(fd, &notice, NULL, 0);
        break;
    default:
        serve_attach(fake, fd);
        return;
    }
    close(fd);
}

static void remember_request(struct hvt_fake *fake, struct hvi_packet_msg *msg)
{
    const struct hvi_attach_request *request = &msg->attach_request;
    free(fake->request.settings);
    fake->request = *request;
    snprintf(fake->identity, sizeof fake->identity, "%s %d/%d %d/%d %d/%d %s", request->job,
             request->rank, request->size, request->local_rank, request->local_size,
             request->cross_rank, request->cross_size, request->origin);
}

static void accept_one(struct hvt_fake *fake)
{
    struct hvi_packet *packet = &fake->packet;
    struct hvi_packet_msg msg;
    int fd = accept4(fake->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0)
        return;
    if (hvi_packet_receive(fd, packet, hvi_deadline_after(1000000000)) != HVD_OK) {
        close(fd); /* somebody who only looked whether we listen */
        return;
    }
    char why[256];
    HVI_ASSERT(hvi_packet_msg_decode(packet->bytes, packet->length, &msg, why, sizeof why) ==
               HVD_OK);
    HVI_ASSERT(msg.kind == HVI_PACKET_ATTACH_REQUEST);
    fake->connections++;
    remember_request(fake, &msg);
    if (fake->script.attach == HVT_SILENT)
        fake->sessions[fake->session_count++].socket_fd = fd;
    else
        answer_attach(fake, fd);
}

/* ---- control ---- */

static struct fake_region *find_region(struct hvt_fake_session *session, uint32_t id)
{
    for (uint32_t i = 0; i < REGIONS; i++)
        if (session->regions[i].id == id)
            return &session->regions[i];
    return NULL;
}

static void add_region(struct hvt_fake_session *session, const struct hvi_region_add *add, int fd)
{
    const struct hvt_fake_script *script = &session->fake->script;
    struct fake_region *region = find_region(session, 0);
    HVI_ASSERT(fd >= 0);
    HVI_ASSERT(add->region != 0);
    if (script->region_status != HVD_OK) {
        close(fd);
        send_ack(session, add->request, script->region_status, script->region_text);
        return;
    }
    HVI_ASSERT(region != NULL);
    HVI_ASSERT(find_region(session, add->region) == NULL);
    HVI_ASSERT(hvi_region_map(fd, add->bytes, &region->map) == HVD_OK);
    region->id = add->region;
    send_ack(session, add->request, HVD_OK, NULL);
}

static void add_device(struct hvt_fake_session *session, const struct hvi_device_add *add,
                       const struct hvi_packet *packet)
{
    const struct hvt_fake_script *script = &session->fake->script;
    struct fake_region *region = find_region(session, 0);
    HVI_ASSERT(hvi_device_memory_has_handles(&add->memory, packet->fd_count, add->more));
    HVI_ASSERT(find_region(session, add->region) == NULL);
    session->chunks += (uint32_t)add->memory.chunk_count;
    if (add->more)
        return;
    session->device = add->memory;
    session->device.chunks = NULL;
    session->device.fabric = NULL;
    session->devices++;
    if (script->device_status == HVD_OK) {
        HVI_ASSERT(session->fences.cells != NULL);
        region->id = add->region;
        region->map = (struct hvi_region)HVI_REGION_INIT;
    }
    send_ack(session, add->request, script->device_status, script->device_text);
}

static void add_fences(struct hvt_fake_session *session, const struct hvi_fence_add *add, int fd)
{
    HVI_ASSERT(session->fences.cells == NULL);
    HVI_ASSERT(hvi_fence_map(fd, &session->fences) == HVD_OK);
    send_ack(session, add->request, HVD_OK, NULL);
}

static void remove_region(struct hvt_fake_session *session, const struct hvi_region_remove *remove)
{
    struct fake_region *region = find_region(session, remove->region);
    if (session->fake->script.keeps)
        return;
    if (session->fake->script.busy > 0) {
        session->fake->script.busy--;
        send_ack(session, remove->request, HVD_ERR_BUSY, "in use");
        return;
    }
    if (region) {
        hvi_region_fini(&region->map);
        region->id = 0;
    }
    send_ack(session, remove->request, region ? HVD_OK : HVD_ERR_NOT_FOUND, NULL);
}

static void close_timeline(struct hvt_fake_session *session)
{
    if (session->timeline.fd >= 0)
        close(session->timeline.fd);
    session->timeline.fd = -1;
}

static void start_timeline(struct hvt_fake_session *session, const struct hvi_timeline_start *start,
                           int fd)
{
    const struct hvt_fake_script *script = &session->fake->script;
    HVI_ASSERT(fd >= 0);
    close_timeline(session);
    session->timeline.fd = fd;
    session->timeline.starts++;
    session->timeline.mark_cycles = start->mark_cycles;
    memcpy(session->timeline.path, start->path, sizeof start->path);
    send_ack(session, start->request, script->timeline_status, script->timeline_text);
}

static void hang_up(struct hvt_fake_session *session)
{
    if (session->socket_fd < 0)
        return;
    shutdown(session->socket_fd, SHUT_RDWR); /* close alone waits for the poll of our thread */
    close(session->socket_fd);
    session->socket_fd = -1;
}

static void control(struct hvt_fake_session *session)
{
    struct hvi_packet *packet = &session->fake->packet;
    struct hvi_packet_msg msg;
    int rc = hvi_packet_receive(session->socket_fd, packet, 0);
    if (rc == HVD_ERR_CLOSED)
        hang_up(session);
    if (rc != HVD_OK)
        return;
    HVI_ASSERT(hvi_packet_msg_decode(packet->bytes, packet->length, &msg, NULL, 0) == HVD_OK);
    if (msg.kind == HVI_PACKET_REGION_ADD) {
        add_region(session, &msg.region_add, hvi_packet_take_fd(packet, 0));
    } else if (msg.kind == HVI_PACKET_REGION_REMOVE) {
        remove_region(session, &msg.region_remove);
    } else if (msg.kind == HVI_PACKET_DEVICE_ADD) {
        add_device(session, &msg.device_add, packet);
    } else if (msg.kind == HVI_PACKET_FENCE_ADD) {
        add_fences(session, &msg.fence_add, hvi_packet_take_fd(packet, 0));
    } else if (msg.kind == HVI_PACKET_TIMELINE_START) {
        start_timeline(session, &msg.timeline_start, hvi_packet_take_fd(packet, 0));
    } else if (msg.kind == HVI_PACKET_TIMELINE_STOP) {
        session->timeline.stops++;
        send_ack(session, msg.timeline_stop.request, HVD_OK, NULL);
    } else {
        HVI_ASSERT(msg.kind == HVI_PACKET_DETACH);
        session->detached = true;
        send_ack(session, msg.detach.request, HVD_OK, NULL);
    }
    hvi_packet_close_fds(packet);
    hvi_packet_msg_free(&msg);
}

/* ---- the rings ---- */

void *hvt_fake_memory(struct hvt_fake_session *session, uint32_t region, uint64_t offset)
{
    if (region == HVI_REGION_INLINE) {
        HVI_ASSERT(offset < HVI_INLINE_BYTES);
        return session->channel.inline_base + offset;
    }
    pthread_mutex_lock(&session->fake->mutex);
    struct fake_region *found = find_region(session, region);
    pthread_mutex_unlock(&session->fake->mutex);
    HVI_ASSERT(found != NULL);
    HVI_ASSERT(offset < found->map.bytes);
    return (char *)found->map.base + offset;
}

void hvt_fake_completion(struct hvt_fake_session *session, struct hvi_completion completion)
{
    uint32_t space;
    const uint64_t one = 1;
    session->completion_seq++;
    if (completion.seq == 0)
        completion.seq = session->completion_seq;
    HVI_ASSERT(hvi_ring_space(&session->channel.cq, &space) == HVD_OK);
    HVI_ASSERT(space > 0);
    memcpy(hvi_ring_slot(&session->channel.cq, 0), &completion, sizeof completion);
    hvi_ring_publish(&session->channel.cq, 1);
    hvi_bell_ring_client(session->channel.header);
    if (atomic_load(&session->channel.header->client_event_armed))
        HVI_ASSERT(write(session->client_event, &one, sizeof one) == sizeof one);
}

void hvt_fake_done(struct hvt_fake_session *session, uint64_t cookie, int status, const char *text,
                   int culprit)
{
    struct hvi_completion completion = {.cookie = cookie,
                                        .status = status,
                                        .kind = HVI_COMPLETE_DONE,
                                        .text_cell = HVI_TEXT_NONE,
                                        .culprit = culprit};
    if (text)
        hvi_channel_write_text(&session->channel, text, &completion.text_cell,
                               &completion.text_turn);
    hvt_fake_completion(session, completion);
}

void hvt_fake_done_rows(struct hvt_fake_session *session, uint64_t cookie, int64_t rows,
                        uint64_t bytes)
{
    hvt_fake_completion(session, (struct hvi_completion){.cookie = cookie,
                                                         .kind = HVI_COMPLETE_DONE,
                                                         .text_cell = HVI_TEXT_NONE,
                                                         .bytes = bytes,
                                                         .rows = rows,
                                                         .culprit = -1});
}

void hvt_fake_sized(struct hvt_fake_session *session, uint64_t cookie, int64_t rows, uint64_t bytes)
{
    hvt_fake_completion(session, (struct hvi_completion){.cookie = cookie,
                                                         .kind = HVI_COMPLETE_SIZED,
                                                         .text_cell = HVI_TEXT_NONE,
                                                         .bytes = bytes,
                                                         .rows = rows,
                                                         .culprit = -1});
}

void hvt_fake_reuse_texts(struct hvt_fake_session *session)
{
    uint32_t cell, turn;
    for (uint32_t i = 0; i < HVI_TEXT_CELLS; i++)
        hvi_channel_write_text(&session->channel, "another sentence", &cell, &turn);
}

static uint64_t bytes_of(const struct hvi_submission *submission)
{
    return submission->count * hvi_dtype_bytes(submission->dtype);
}

static void finish(struct hvt_fake_session *session, const struct hvi_submission *submission,
                   uint32_t out_region, uint64_t out_offset)
{
    struct hvi_completion completion = {.cookie = submission->cookie,
                                        .kind = HVI_COMPLETE_DONE,
                                        .text_cell = HVI_TEXT_NONE,
                                        .culprit = -1};
    if (submission->ndim > 0 || submission->count > 0) {
        completion.bytes = bytes_of(submission);
        completion.rows = submission->dims[0];
    }
    if (submission->kind == HVI_KIND_ALLTOALL) {
        int64_t *splits = hvt_fake_memory(session, submission->aux_region, submission->aux_offset);
        splits[1] = splits[0];
    }
    if (completion.bytes > 0)
        memmove(hvt_fake_memory(session, out_region, out_offset),
                hvt_fake_memory(session, submission->in_region, submission->in_offset),
                completion.bytes);
    hvt_fake_completion(session, completion);
}

static struct fake_sizing *find_sizing(struct hvt_fake_session *session, uint64_t cookie)
{
    for (uint32_t i = 0; i < SIZING; i++)
        if (session->sizing[i].cookie == cookie)
            return &session->sizing[i];
    hvi_assert_failed("an output that nothing waits for", __FILE__, __LINE__);
}

static bool sizes_late(uint32_t kind)
{
    return kind == HVI_KIND_ALLGATHER || kind == HVI_KIND_ALLTOALL ||
           kind == HVI_KIND_REDUCESCATTER;
}

static void serve(struct hvt_fake_session *session, const struct hvi_submission *submission)
{
    if (submission->kind == HVI_SUBMIT_OUTPUT) {
        struct fake_sizing *sizing = find_sizing(session, submission->cookie);
        finish(session, &sizing->submission, submission->out_region, submission->out_offset);
        sizing->cookie = 0;
    } else if (submission->kind == HVI_SUBMIT_CANCEL) {
        return; /* too late: everything is served at once */
    } else if (sizes_late(submission->kind) && submission->out_region == HVI_REGION_NONE) {
        struct fake_sizing *sizing = find_sizing(session, 0);
        sizing->cookie = submission->cookie;
        sizing->submission = *submission;
        hvt_fake_completion(session, (struct hvi_completion){.cookie = submission->cookie,
                                                             .kind = HVI_COMPLETE_SIZED,
                                                             .text_cell = HVI_TEXT_NONE,
                                                             .bytes = bytes_of(submission),
                                                             .rows = submission->dims[0]});
    } else {
        finish(session, submission, submission->out_region, submission->out_offset);
    }
}

static void serve_ring(struct hvt_fake_session *session)
{
    struct hvi_submission submission;
    uint32_t available;
    HVI_ASSERT(hvi_ring_available(&session->channel.sq, &available) == HVD_OK);
    for (uint32_t i = 0; i < available; i++) {
        hvi_ring_copy(&session->channel.sq, 0, &submission);
        hvi_ring_release(&session->channel.sq, 1);
        serve(session, &submission);
    }
}

bool hvt_fake_is_idle(struct hvt_fake_session *session)
{
    uint32_t available;
    HVI_ASSERT(hvi_ring_available(&session->channel.sq, &available) == HVD_OK);
    return available == 0;
}

struct hvi_submission hvt_fake_take(struct hvt_fake_session *session)
{
    struct hvi_submission submission;
    uint64_t deadline_ns = hvi_deadline_after(1000000000);
    while (hvt_fake_is_idle(session)) {
        HVI_ASSERT(!hvi_deadline_passed(deadline_ns));
        usleep(100);
    }
    hvi_ring_copy(&session->channel.sq, 0, &submission);
    hvi_ring_release(&session->channel.sq, 1);
    return submission;
}

void hvt_fake_name(struct hvt_fake_session *session, const struct hvi_submission *submission,
                   char *name_p)
{
    HVI_ASSERT(hvi_channel_read_name(&session->channel, submission->name_offset,
                                     submission->name_bytes, name_p));
}

/* ---- the thread ---- */

static void look_at_sessions(struct hvt_fake *fake)
{
    for (uint32_t i = 0; i < fake->session_count; i++) {
        struct hvt_fake_session *session = &fake->sessions[i];
        if (!session->fake)
            continue;
        if (session->socket_fd >= 0)
            control(session);
        if (session->socket_fd >= 0 && !fake->script.manual)
            serve_ring(session);
    }
}

static uint32_t poll_set(struct hvt_fake *fake, struct pollfd *set)
{
    uint32_t count = 0;
    set[count++] = (struct pollfd){.fd = fake->stop_fd, .events = POLLIN};
    set[count++] = (struct pollfd){.fd = fake->listen_fd, .events = POLLIN};
    for (uint32_t i = 0; i < fake->session_count; i++) {
        if (!fake->sessions[i].fake)
            continue;
        set[count++] = (struct pollfd){.fd = fake->sessions[i].socket_fd, .events = POLLIN};
        if (!fake->script.manual)
            set[count++] = (struct pollfd){.fd = fake->sessions[i].engine_event, .events = POLLIN};
    }
    return count;
}

static void clear_events(struct hvt_fake *fake)
{
    uint64_t value;
    for (uint32_t i = 0; i < fake->session_count; i++)
        if (fake->sessions[i].fake && !fake->script.manual &&
            read(fake->sessions[i].engine_event, &value, sizeof value) < 0)
            HVI_ASSERT(errno == EAGAIN);
}

static void *run(void *argument)
{
    struct hvt_fake *fake = argument;
    struct pollfd set[2 + 2 * SESSIONS];
    atomic_store(&fake->runs, true);
    for (;;) {
        pthread_mutex_lock(&fake->mutex);
        uint32_t count = poll_set(fake, set);
        pthread_mutex_unlock(&fake->mutex);
        poll(set, count, 100);
        if (set[0].revents)
            return NULL;
        pthread_mutex_lock(&fake->mutex);
        if (set[1].revents)
            accept_one(fake);
        clear_events(fake);
        look_at_sessions(fake);
        pthread_mutex_unlock(&fake->mutex);
    }
}

/* Recursive: hvt_fake_memory is called by the thread and by tests. */
static void init_mutex(pthread_mutex_t *mutex)
{
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(mutex, &attributes);
    pthread_mutexattr_destroy(&attributes);
}

struct hvt_fake *hvt_fake_start_at(const struct hvt_fake_script *script, const char *directory)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    struct hvt_fake *fake = calloc(1, sizeof *fake);
    HVI_ASSERT(fake != NULL);
    fake->script = *script;
    snprintf(fake->dir, sizeof fake->dir, "%s", directory);
    snprintf(fake->path, sizeof fake->path, "%s/attach.sock", fake->dir);
    memcpy(name.sun_path, fake->path, sizeof fake->path);
    fake->listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    HVI_ASSERT(bind(fake->listen_fd, (struct sockaddr *)&name, sizeof name) == 0);
    HVI_ASSERT(listen(fake->listen_fd, 64) == 0);
    fake->stop_fd = eventfd(0, EFD_CLOEXEC);
    HVI_ASSERT(hvi_bell_create(&fake->bell_region, &fake->bell) == HVD_OK);
    if (script->attach == HVT_BAD_BELL)
        fake->bell->magic = 1;
    atomic_init(&fake->bell->silence_ns, script->silence_ns);
    atomic_store(&fake->bell->engine_sleeping, 1); /* we always sleep in poll */
    init_mutex(&fake->mutex);
    HVI_ASSERT(pthread_create(&fake->thread, NULL, run, fake) == 0);
    while (!atomic_load(&fake->runs))
        usleep(100);
    return fake;
}

struct hvt_fake *hvt_fake_start(const struct hvt_fake_script *script)
{
    char dir[] = "/tmp/hvt-client-XXXXXX";
    HVI_ASSERT(mkdtemp(dir) != NULL);
    struct hvt_fake *fake = hvt_fake_start_at(script, dir);
    fake->own_dir = true;
    return fake;
}

static void free_session(struct hvt_fake_session *session)
{
    hang_up(session);
    if (!session->fake)
        return;
    for (uint32_t i = 0; i < REGIONS; i++)
        if (session->regions[i].id)
            hvi_region_fini(&session->regions[i].map);
    hvi_channel_fini(&session->channel);
    if (session->fences.cells)
        hvi_fence_fini(&session->fences);
    close(session->engine_event);
    close(session->client_event);
    close_timeline(session);
}

void hvt_fake_stop(struct hvt_fake *fake)
{
    const uint64_t one = 1;
    HVI_ASSERT(write(fake->stop_fd, &one, sizeof one) == sizeof one);
    pthread_join(fake->thread, NULL);
    for (uint32_t i = 0; i < fake->session_count; i++)
        free_session(&fake->sessions[i]);
    hvi_region_fini(&fake->bell_region);
    close(fake->listen_fd);
    close(fake->stop_fd);
    unlink(fake->path);
    if (fake->own_dir)
        rmdir(fake->dir);
    free(fake->request.settings);
    pthread_mutex_destroy(&fake->mutex);
    free(fake);
}

/* ---- questions ---- */

struct hvi_bell_page *hvt_fake_bell(const struct hvt_fake *fake)
{
    return fake->bell;
}

const char *hvt_fake_dir(const struct hvt_fake *fake)
{
    return fake->dir;
}

const char *hvt_fake_setting(struct hvt_fake *fake, const char *name)
{
    const char *value = NULL;
    pthread_mutex_lock(&fake->mutex);
    for (size_t i = 0; i < fake->request.setting_count; i++)
        if (strcmp(fake->request.settings[i].name, name) == 0)
            value = fake->request.settings[i].value;
    pthread_mutex_unlock(&fake->mutex);
    return value;
}

const char *hvt_fake_identity(struct hvt_fake *fake)
{
    return fake->identity;
}

uint32_t hvt_fake_requests(struct hvt_fake *fake)
{
    pthread_mutex_lock(&fake->mutex);
    uint32_t requests = fake->connections;
    pthread_mutex_unlock(&fake->mutex);
    return requests;
}

struct hvt_fake_session *hvt_fake_session(struct hvt_fake *fake, uint32_t n)
{
    uint64_t deadline_ns = hvi_deadline_after(1000000000);
    for (;;) {
        pthread_mutex_lock(&fake->mutex);
        bool there = fake->session_count > n;
        pthread_mutex_unlock(&fake->mutex);
        if (there)
            return &fake->sessions[n];
        HVI_ASSERT(!hvi_deadline_passed(deadline_ns));
        usleep(100);
    }
}

struct hvd_session *hvt_fake_open(struct hvt_fake *fake)
{
    return hvt_fake_open_as(fake, 0, 1);
}

struct hvd_session *hvt_fake_open_as(struct hvt_fake *fake, int rank, int size)
{
    struct hvd_options options;
    struct hvd_session *session = NULL;
    hvd_options_init(&options);
    options.address = fake->dir;
    options.rank = rank;
    options.size = size;
    options.job = "fake";
    HVI_ASSERT(hvd_open(&options, &session) == HVD_OK);
    return session;
}

void hvt_fake_notice(struct hvt_fake_session *session, int status, const char *text, bool ended)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_NOTICE};
    msg.notice.status = status;
    set_text(msg.notice.text, text);
    msg.notice.rank = -1;
    msg.notice.session_ended = ended;
    pthread_mutex_lock(&session->fake->mutex);
    send_msg(session->socket_fd, &msg, NULL, 0);
    pthread_mutex_unlock(&session->fake->mutex);
}

void hvt_fake_reply_again(struct hvt_fake_session *session, int status, const char *text)
{
    pthread_mutex_lock(&session->fake->mutex);
    send_reply(session->socket_fd, status, text, HVI_PROTOCOL_VERSION, NULL, 0);
    pthread_mutex_unlock(&session->fake->mutex);
}

void hvt_fake_die(struct hvt_fake_session *session)
{
    pthread_mutex_lock(&session->fake->mutex);
    hang_up(session);
    pthread_mutex_unlock(&session->fake->mutex);
}

struct hvi_channel_header *hvt_fake_header(struct hvt_fake_session *session)
{
    return session->channel.header;
}

uint32_t hvt_fake_regions(struct hvt_fake_session *session)
{
    uint32_t count = 0;
    pthread_mutex_lock(&session->fake->mutex);
    for (uint32_t i = 0; i < REGIONS; i++)
        count += session->regions[i].id != 0;
    pthread_mutex_unlock(&session->fake->mutex);
    return count;
}

struct hvi_fence_page *hvt_fake_fences(struct hvt_fake_session *session)
{
    return session->fences.cells ? &session->fences : NULL;
}

struct hvi_device_memory hvt_fake_device(struct hvt_fake_session *session, uint32_t *count_p,
                                         uint32_t *chunks_p)
{
    pthread_mutex_lock(&session->fake->mutex);
    struct hvi_device_memory device = session->device;
    *count_p = session->devices;
    *chunks_p = session->chunks;
    pthread_mutex_unlock(&session->fake->mutex);
    return device;
}

struct hvt_fake_timeline hvt_fake_timeline(struct hvt_fake_session *session)
{
    pthread_mutex_lock(&session->fake->mutex);
    struct hvt_fake_timeline timeline = session->timeline;
    pthread_mutex_unlock(&session->fake->mutex);
    return timeline;
}

bool hvt_fake_detached(struct hvt_fake_session *session)
{
    pthread_mutex_lock(&session->fake->mutex);
    bool detached = session->detached;
    pthread_mutex_unlock(&session->fake->mutex);
    return detached;
}

void hvt_fake_refuse_devices(struct hvt_fake *fake, int status, const char *text)
{
    pthread_mutex_lock(&fake->mutex);
    fake->script.device_status = status;
    fake->script.device_text = text;
    pthread_mutex_unlock(&fake->mutex);
}

void hvt_fake_mute(struct hvt_fake *fake)
{
    pthread_mutex_lock(&fake->mutex);
    fake->script.mute = true;
    pthread_mutex_unlock(&fake->mutex);
}

void hvt_fake_refuse_regions(struct hvt_fake *fake, int status, const char *text)
{
    pthread_mutex_lock(&fake->mutex);
    fake->script.region_status = status;
    fake->script.region_text = text;
    pthread_mutex_unlock(&fake->mutex);
}

void *hvt_space(size_t bytes)
{
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        hvi_assert_failed("address space", __FILE__, __LINE__);
    return base;
}
