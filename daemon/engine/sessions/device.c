/* SPDX-License-Identifier: Apache-2.0
 * Memory of GPUs.
 *
 * A worker answers later, so what a rank waits for is kept as a wish with a ticket. Memory of many chunks comes in several
 * messages, of which the last one is answered: a wish that fails before stays until then. A region is in the
 * session's table from the worker's word on; the rank may use it when it has the Ack. It is out of the
 * table when the rank asks for that, and the Ack follows when the worker has let go: the rank may free its memory then. */
#include "daemon/engine/sessions/device.h"

#include "base/log.h"
#include "base/status.h"
#include "daemon/engine/device/device.h"
#include "daemon/engine/sessions/control.h"
#include "daemon/engine/sessions/fence.h"
#include "daemon/engine/sessions/intake.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

struct engine_wish {
    struct engine_wish *next;
    uint64_t ticket, request;
    struct engine_session *session;
    uint32_t region, worker, import; /* 0: of no import */
    uint32_t kind;                   /* enum hvi_device_kind */
    uint64_t bytes;                  /* in all, as the first message says */
    uint64_t chunk_bytes;            /* of the chunks that have come */
    uint32_t chunks;
    bool whole;     /* its DeviceAdd has come to the end */
    int status;     /* it has failed before that; else HVI_OK */
    char text[160]; /* why */
};

/* ---- wishes ---- */

static struct engine_wish *wish_new(struct engine_session *session, uint64_t request,
                                    uint32_t region)
{
    struct engine_sessions *sessions = session->sessions;
    struct engine_wish *wish = calloc(1, sizeof *wish);

    if (!wish)
        return NULL;
    wish->session = session;
    wish->request = request;
    wish->region = region;
    wish->ticket = ++sessions->tickets;
    wish->next = sessions->wishes;
    sessions->wishes = wish;
    return wish;
}

static struct engine_wish **find(struct engine_sessions *sessions, uint64_t ticket)
{
    struct engine_wish **link = &sessions->wishes;

    while (*link && (*link)->ticket != ticket)
        link = &(*link)->next;
    return link;
}

/* A ticket for a request that adds no region; 0: no memory. */
static uint64_t wish_ticket(struct engine_session *session, uint64_t request)
{
    const struct engine_wish *wish = wish_new(session, request, 0);

    return wish ? wish->ticket : 0;
}

static void wish_drop(struct engine_sessions *sessions, uint64_t ticket)
{
    struct engine_wish **link = find(sessions, ticket), *wish = *link;

    if (!wish)
        return;
    *link = wish->next;
    free(wish);
}

/* The wish is over. */
static void answer(struct engine_sessions *sessions, struct engine_wish *wish, int status,
                   const char *text)
{
    if (status != HVI_OK)
        HVI_LOG(HVI_LOG_WARN, "device", "memory-refused", text, "job=%s rank=%d bytes=%llu",
                sessions->start->job, wish->session->rank, (unsigned long long)wish->bytes);
    engine_control_ack(wish->session, wish->request, status, text);
    wish_drop(sessions, wish->ticket);
}

/* ---- DeviceAdd ---- */

void engine_device_offer(struct engine_session *session)
{
    const struct engine_sessions *sessions = session->sessions;

    /* A worker watches the process whose memory it opens, by its pid. */
    if (sessions->device->enabled && session->process.pid > 0)
        hvi_channel_offer(&session->channel, session->channel.features | HVI_FEATURE_DEVICE);
}

static struct engine_wish *find_unfinished(const struct engine_session *session, uint32_t region)
{
    struct engine_wish *wish = session->sessions->wishes;

    while (wish && (wish->session != session || wish->region != region))
        wish = wish->next;
    return wish;
}

static uint32_t count_wishes(const struct engine_session *session)
{
    uint32_t count = 0;

    for (const struct engine_wish *wish = session->sessions->wishes; wish; wish = wish->next)
        count += wish->session == session;
    return count;
}

static int check(const struct engine_session *session, const struct hvi_device_add *add,
                 char *text_p, size_t text_size)
{
    const uint32_t others = count_wishes(session) - 1; /* but for this wish */

    if (add->memory.bytes > 0 && add->memory.bytes <= UINT64_C(1) << 62)
        return engine_control_check_id(session, add->region, others, text_p, text_size);
    snprintf(text_p, text_size, "there is no memory of that size");
    return HVI_ERR_INVALID;
}

static void refuse(struct engine_session *session, uint64_t request, int status, const char *text)
{
    HVI_LOG(HVI_LOG_WARN, "device", "memory-refused", text, "job=%s rank=%d",
            session->sessions->start->job, session->rank);
    engine_control_ack(session, request, status, text);
}

/* It has failed. The rank hears so at its last message, and the worker now. */
static void fail(struct engine_wish *wish, int status, const char *text)
{
    struct engine_sessions *sessions = wish->session->sessions;

    if (wish->import != 0)
        engine_device_release(sessions->device, 0, wish->import);
    wish->import = 0;
    wish->status = status;
    snprintf(wish->text, sizeof wish->text, "%.*s", (int)sizeof wish->text - 1, text);
}

/* What all its messages say together. HVI_OK, or an error with a sentence. */
static int check_chunks(struct engine_wish *wish, const struct hvi_device_memory *memory,
                        char *text_p, size_t text_size)
{
    bool fits = true;

    wish->chunks += (uint32_t)memory->chunk_count;
    for (size_t i = 0; i < memory->chunk_count; i++) {
        fits =
            fits && memory->chunks[i] > 0 && memory->chunks[i] <= wish->bytes - wish->chunk_bytes;
        wish->chunk_bytes += fits ? memory->chunks[i] : 0;
    }
    if (wish->chunks > HVI_DEVICE_CHUNKS_MAX) {
        snprintf(text_p, text_size,
                 "it has more than the %u chunks that one import may have; HVD_GPU=staged copies "
                 "it through the host, for ops without a stream",
                 HVI_DEVICE_CHUNKS_MAX);
        return HVI_ERR_LIMIT;
    }
    if (fits && (!wish->whole || wish->chunk_bytes == wish->bytes))
        return HVI_OK;
    snprintf(text_p, text_size, "its chunks are not the memory that was said");
    return HVI_ERR_INVALID;
}

static int begin(struct engine_wish *wish, const struct hvi_device_add *add,
                 const struct engine_device_add *said, char *text_p, size_t text_size)
{
    struct engine_session *session = wish->session;

    if (wish->import != 0) {
        int status = engine_device_import_more(session->sessions->device, wish->import, said);
        if (status != HVI_OK)
            snprintf(text_p, text_size, "%s", hvi_status_text(status));
        return status;
    }
    int status = check(session, add, text_p, text_size);
    if (status != HVI_OK)
        return status;
    return engine_device_import(session->sessions->device, wish->ticket, said, &wish->worker,
                                &wish->import, text_p, text_size);
}

static void take(struct engine_wish *wish, const struct hvi_device_add *add,
                 const struct engine_device_add *said)
{
    char text[HVI_TEXT_MAX + 1];
    int status = HVI_OK;

    wish->request = add->request;
    wish->whole = !add->more;
    if (wish->status == HVI_OK && hvi_device_has_chunks(add->memory.kind))
        status = check_chunks(wish, &add->memory, text, sizeof text);
    if (wish->status == HVI_OK && status == HVI_OK)
        status = begin(wish, add, said, text, sizeof text);
    if (status != HVI_OK)
        fail(wish, status, text);
    if (wish->whole && wish->status != HVI_OK)
        answer(wish->session->sessions, wish, wish->status, wish->text);
}

void engine_device_take(struct engine_session *session, const struct hvi_device_add *add)
{
    struct engine_sessions *sessions = session->sessions;
    struct engine_wish *wish = find_unfinished(session, add->region);
    const struct engine_device_add said = {.memory = &add->memory,
                                           .pid = session->process.pid,
                                           .fds = sessions->packet.fds,
                                           .fd_count = sessions->packet.fd_count,
                                           .more = add->more};

    if (!hvi_device_memory_has_handles(&add->memory, sessions->packet.fd_count, add->more)) {
        engine_session_violation(session, "a DeviceAdd without its descriptors or handles");
        return;
    }
    if (wish && wish->whole) {
        engine_session_violation(session, "a DeviceAdd of a region that is being added");
        return;
    }
    if (wish && (wish->kind != add->memory.kind || wish->bytes != add->memory.bytes)) {
        engine_session_violation(session, "DeviceAdds of one region that are not of one memory");
        return;
    }
    if (!wish && (wish = wish_new(session, add->request, add->region))) {
        wish->kind = add->memory.kind;
        wish->bytes = add->memory.bytes;
    }
    if (wish)
        take(wish, add, &said);
    else
        refuse(session, add->request, HVI_ERR_NO_MEMORY, "the engine is out of memory");
}

void engine_device_imported(struct engine_sessions *sessions, uint64_t ticket, int status,
                            const char *text)
{
    struct engine_wish *wish = *find(sessions, ticket);

    if (!wish)
        return;
    if (!wish->whole) { /* its worker has gone meanwhile */
        wish->import = 0;
        fail(wish, status, text);
        return;
    }
    if (status == HVI_OK) {
        status = engine_regions_add_device(
            &wish->session->regions, wish->region, wish->bytes, (uint16_t)wish->worker,
            sessions->device->workers[wish->worker].instance, wish->import);
        if (status != HVI_OK) { /* an import that has failed is device/'s to end */
            engine_device_release(sessions->device, 0, wish->import);
            text = "the engine is out of memory";
        }
    }
    answer(sessions, wish, status, text);
}

void engine_device_answered(struct engine_sessions *sessions, uint64_t ticket, int status,
                            const char *text)
{
    struct engine_wish *wish = *find(sessions, ticket);

    if (wish)
        answer(sessions, wish, status, text);
}

/* ---- the end of a region ---- */

/* The rank has given up a region before it was told that it has it. */
static bool remove_unfinished(struct engine_session *session,
                              const struct hvi_region_remove *remove)
{
    struct engine_wish *wish =
        remove->region != 0 ? find_unfinished(session, remove->region) : NULL;

    if (!wish)
        return false;
    if (wish->import != 0)
        engine_device_release(session->sessions->device, 0, wish->import);
    wish_drop(session->sessions, wish->ticket);
    engine_control_ack(session, remove->request, HVI_OK, "");
    return true;
}

bool engine_device_remove(struct engine_session *session, const struct hvi_region_remove *remove)
{
    struct engine_sessions *sessions = session->sessions;
    const struct engine_region *region = engine_regions_find(&session->regions, remove->region);
    char text[96];

    if (!region)
        return remove_unfinished(session, remove);
    if (region->kind != ENGINE_REGION_DEVICE)
        return false;
    uint32_t import = region->import;
    int status = engine_intake_holds(session, remove->region)
                     ? HVI_ERR_BUSY
                     : engine_regions_remove(&session->regions, remove->region);
    if (status != HVI_OK) {
        snprintf(text, sizeof text, "region %u is in use by an op in flight", remove->region);
        engine_control_ack(session, remove->request, status, text);
        return true;
    }
    uint64_t ticket = wish_ticket(session, remove->request);
    status = engine_device_release(sessions->device, ticket, import);
    if (ticket != 0 && status == HVI_OK)
        return true;
    wish_drop(sessions, ticket);
    engine_control_ack(session, remove->request, HVI_OK, "");
    return true;
}

/* ---- the end of a session ---- */

void engine_device_close_session(struct engine_session *session)
{
    struct engine_sessions *sessions = session->sessions;
    struct engine_wish **link = &sessions->wishes;

    while (*link) {
        struct engine_wish *wish = *link;
        if (wish->session != session) {
            link = &wish->next;
            continue;
        }
        *link = wish->next;
        if (wish->import != 0)
            engine_device_release(sessions->device, 0, wish->import);
        free(wish);
    }
}

void engine_device_let_go(struct engine_session *session)
{
    const struct engine_region *region = NULL;

    if (session->regions.device_bytes == 0)
        return;
    while ((region = engine_regions_next_device(&session->regions, region)) != NULL)
        engine_device_release(session->sessions->device, 0, region->import);
}

/* ---- a fence page ---- */

static int open_page(struct engine_session *session, uint64_t request, const char **text_p)
{
    struct engine_sessions *sessions = session->sessions;
    struct engine_fences *fences = calloc(1, sizeof *fences);
    int status = HVI_ERR_NO_MEMORY;

    if (fences)
        status = hvi_fence_map(sessions->packet.fds[0], &fences->page);
    *text_p = status == HVI_ERR_PROTOCOL ? "the descriptor is no fence page of this version"
                                         : hvi_status_text(status);
    if (status != HVI_OK) {
        free(fences);
        return status;
    }
    hvi_packet_take_fd(&sessions->packet, 0);
    uint64_t ticket = wish_ticket(session, request);
    status = ticket != 0 ? engine_device_page(sessions->device, ticket, fences->page.map.fd,
                                              &fences->number)
                         : HVI_ERR_NO_MEMORY;
    if (status != HVI_INPROGRESS && ticket != 0)
        wish_drop(sessions, ticket);
    *text_p = status == HVI_OK ? "" : hvi_status_text(status);
    if (status < 0) {
        hvi_fence_fini(&fences->page);
        free(fences);
        return status;
    }
    fences->ticket = ticket;
    session->fences = fences;
    sessions->fenced++;
    sessions->calls->fences(sessions->user, session->seat);
    return status;
}

static bool is_same_file(int one, int other)
{
    struct stat a, b;

    return fstat(one, &a) == 0 && fstat(other, &b) == 0 && a.st_dev == b.st_dev &&
           a.st_ino == b.st_ino;
}

/* The rank has given up the FenceAdd of this page before its Ack, which is now that of the new one. */
static int take_again(struct engine_session *session, uint64_t request, const char **text_p)
{
    struct engine_sessions *sessions = session->sessions;
    const struct engine_fences *fences = session->fences;
    struct engine_wish *wish = *find(sessions, fences->ticket);

    if (!is_same_file(fences->page.map.fd, sessions->packet.fds[0])) {
        *text_p = "the session has another fence page already";
        return HVI_ERR_EXISTS;
    }
    *text_p = "";
    if (!wish)
        return HVI_OK;
    wish->request = request;
    return HVI_INPROGRESS;
}

void engine_device_take_page(struct engine_session *session, uint64_t request)
{
    const char *text;
    int status;

    if (session->sessions->packet.fd_count != 1) {
        engine_session_violation(session, "a FenceAdd without its descriptor");
        return;
    }
    if (!session->sessions->device->enabled) {
        status = HVI_ERR_UNSUPPORTED;
        text = "hvdd starts no GPU workers on this node";
    } else if (!session->fences) {
        status = open_page(session, request, &text);
    } else {
        status = take_again(session, request, &text);
    }
    if (status != HVI_INPROGRESS)
        engine_control_ack(session, request, status, text);
}
