/* SPDX-License-Identifier: Apache-2.0
 * Imports: memory of a trainer that a worker has opened.
 *
 *   asked --linked--> sent --GpuAck--> ready --release--> closing --GpuAck--> gone
 *     |  |             |  |                                  ^
 *     |  |             |  +--released, or late: abandoned----+
 *     |  +--released between its pieces----------------------+
 *     +--worker lost or refused, error--> gone
 *
 * registered, of one that is ready: no --asked for--> asked --GpuAck--> yes, or refused, which is the end
 *
 * One setter: set_state. An import that nobody wants any more while its GpuImport is under way is abandoned: it is
 * released as soon as the worker has it. The exporter is named by its pid and the time at which the
 * process was started, because the worker keeps what a live process exported over generations. */
#include "base/file.h"
#include "base/log.h"
#include "base/status.h"
#include "daemon/engine/device/room.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TOO_OLD "its worker is older than this engine, and opens no memory by fabric handles"

enum state { ASKED, SENT, READY, CLOSING };
enum registered { NOT_REGISTERED, REGISTERING, REGISTERED, NEVER_REGISTERED };

/* A GpuImport to come. */
struct piece {
    struct piece *next;
    struct hvi_device_memory memory;
    bool more;
    uint32_t fd_count;
    int fds[HVI_PACKET_FDS_MAX];
};

struct engine_device_import {
    struct engine_device_import *next; /* in the bucket */
    struct engine_device_worker *worker;
    uint32_t number;
    enum state state;
    bool abandoned;
    bool begun;     /* the worker has heard of it */
    bool registers; /* it was made for NCCL to register */
    enum registered registered;
    uint32_t comm;                   /* with which it is registered */
    uint64_t ticket, release_ticket; /* 0: nobody waits */
    pid_t pid;
    uint64_t process_start;
    struct piece *pieces; /* not sent yet */
};

static void set_state(struct engine_device_import *import, enum state state, const char *cause)
{
    static const char *const texts[] = {"asked", "sent", "ready", "closing"};

    HVI_LOG(HVI_LOG_DEBUG, "device", "import-state", cause, "gpu=%s import=%u %s -> %s",
            import->worker->uuid_text, import->number, texts[import->state], texts[state]);
    import->state = state;
}

static void piece_free(struct piece *piece)
{
    for (uint32_t i = 0; i < piece->fd_count; i++)
        close(piece->fds[i]);
    free(piece->memory.chunks);
    free(piece->memory.fabric);
    free(piece);
}

static void import_free(struct engine_device_import *import)
{
    while (import->pieces) {
        struct piece *piece = import->pieces;
        import->pieces = piece->next;
        piece_free(piece);
    }
    free(import);
}

static struct engine_device_import **find(struct engine_device *device, uint32_t number)
{
    struct engine_device_import **link = &device->imports[number % ENGINE_DEVICE_BUCKETS];

    while (*link && (*link)->number != number)
        link = &(*link)->next;
    return link;
}

static void forget(struct engine_device_import *import)
{
    if (import->comm != 0)
        import->worker->registered--;
    struct engine_device_import **link = find(import->worker->device, import->number);

    *link = import->next;
    import_free(import);
}

/* False: no memory. */
static bool copy(void **copy_p, const void *from, size_t bytes)
{
    if (bytes == 0)
        return true;
    *copy_p = malloc(bytes);
    if (*copy_p)
        memcpy(*copy_p, from, bytes);
    return *copy_p != NULL;
}

static bool copy_lists(struct hvi_device_memory *memory, const struct hvi_device_memory *from)
{
    void *chunks = NULL, *fabric = NULL;
    bool good = copy(&chunks, from->chunks, from->chunk_count * sizeof *from->chunks) &&
                copy(&fabric, from->fabric, from->fabric_bytes);

    memory->chunks = chunks;
    memory->fabric = fabric;
    return good;
}

static struct piece *piece_new(const struct engine_device_add *add, int *status_p)
{
    struct piece *piece = calloc(1, sizeof *piece);

    *status_p = HVI_ERR_NO_MEMORY;
    if (!piece)
        return NULL;
    piece->memory = *add->memory;
    piece->more = add->more;
    if (!copy_lists(&piece->memory, add->memory)) {
        piece_free(piece);
        return NULL;
    }
    *status_p = HVI_ERR_LIMIT;
    while (piece->fd_count < add->fd_count) {
        int fd = fcntl(add->fds[piece->fd_count], F_DUPFD_CLOEXEC, 3);
        if (fd < 0) {
            piece_free(piece);
            return NULL;
        }
        piece->fds[piece->fd_count++] = fd;
    }
    *status_p = HVI_OK;
    return piece;
}

/* ---- sending ---- */

static const char *why(int status, const char *otherwise)
{
    return status == HVI_ERR_UNSUPPORTED ? TOO_OLD : otherwise;
}

static int send_piece(struct engine_device_import *import, const struct piece *piece)
{
    struct hvi_gpu_msg msg = {.kind = HVI_GPU_IMPORT};
    struct hvi_gpu_import *said = &msg.import;

    said->import = import->number;
    said->memory = piece->memory;
    said->pid = import->pid;
    said->process_start = import->process_start;
    said->more = piece->more;
    if (piece->memory.kind == HVI_DEVICE_FABRIC && !import->worker->fabric)
        return HVI_ERR_UNSUPPORTED; /* of before there were such */
    if (!piece->more) {
        int status = engine_device_expect(import->worker, ENGINE_DEVICE_IMPORT, import->number,
                                          ENGINE_DEVICE_ANSWER_NS, &said->request);
        if (status != HVI_OK)
            return status;
    }
    int status = engine_device_send(import->worker, &msg, piece->fds, piece->fd_count);
    if (status != HVI_OK && !piece->more)
        engine_device_unexpect(import->worker, said->request);
    return status;
}

static int send_pieces(struct engine_device_import *import)
{
    int status = HVI_OK;

    while (import->pieces && status == HVI_OK) {
        struct piece *piece = import->pieces;
        import->pieces = piece->next;
        status = send_piece(import, piece);
        import->begun = true;
        if (status == HVI_OK && !piece->more)
            set_state(import, SENT, "GpuImport");
        piece_free(piece);
    }
    return status;
}

/* False: the worker cannot be told. */
static bool send_release(struct engine_device_import *import)
{
    struct hvi_gpu_msg msg = {.kind = HVI_GPU_RELEASE};

    msg.release.import = import->number;
    if (engine_device_expect(import->worker, ENGINE_DEVICE_RELEASE, import->number,
                             ENGINE_DEVICE_ANSWER_NS, &msg.release.request) != HVI_OK)
        return false;
    if (engine_device_send(import->worker, &msg, NULL, 0) == HVI_OK) {
        set_state(import, CLOSING, "GpuRelease");
        return true;
    }
    engine_device_unexpect(import->worker, msg.release.request);
    return false;
}

/* ---- asking ---- */

/* Field 22 of /proc/PID/stat, behind the name, which may hold anything. 0: it cannot be read. */
static uint64_t start_of(pid_t pid)
{
    char path[64], text[1024];
    unsigned long long start = 0;

    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    if (hvi_file_read(path, text, sizeof text) < 0)
        return 0;
    const char *at = strrchr(text, ')');
    for (int field = 2; at && field < 22; field++)
        at = strchr(at + 1, ' ');
    return at && sscanf(at, "%llu", &start) == 1 ? start : 0;
}

static struct engine_device_import *import_new(struct engine_device_worker *worker, uint64_t ticket,
                                               const struct engine_device_add *add, int *status_p)
{
    struct engine_device *device = worker->device;
    struct engine_device_import *import = calloc(1, sizeof *import);

    *status_p = HVI_ERR_NO_MEMORY;
    if (!import)
        return NULL;
    import->worker = worker;
    import->ticket = ticket;
    import->pid = add->pid;
    import->process_start = start_of(add->pid);
    import->registers = add->memory->registers && add->memory->kind == HVI_DEVICE_VMM &&
                        add->memory->chunk_count == 1 && !add->more;
    import->pieces = piece_new(add, status_p);
    if (!import->pieces) {
        free(import);
        return NULL;
    }
    import->number = ++device->last_import;
    import->next = device->imports[import->number % ENGINE_DEVICE_BUCKETS];
    device->imports[import->number % ENGINE_DEVICE_BUCKETS] = import;
    return import;
}

int engine_device_import(struct engine_device *device, uint64_t ticket,
                         const struct engine_device_add *add, uint32_t *worker_p,
                         uint32_t *import_p, char *text_p, size_t text_size)
{
    struct engine_device_worker *worker = NULL;
    int status = engine_device_worker_for(device, add->memory->uuid, &worker, text_p, text_size);

    if (status != HVI_OK)
        return status;
    struct engine_device_import *import = import_new(worker, ticket, add, &status);
    if (import && worker->state == ENGINE_DEVICE_LINKED)
        status = send_pieces(import);
    if (status != HVI_OK) {
        snprintf(text_p, text_size, "the import of %" PRIu64 " bytes cannot be asked for: %s",
                 add->memory->bytes, why(status, hvi_status_text(status)));
        if (import)
            forget(import);
        return status;
    }
    *worker_p = worker->number;
    *import_p = import->number;
    return HVI_OK;
}

int engine_device_import_more(struct engine_device *device, uint32_t number,
                              const struct engine_device_add *add)
{
    struct engine_device_import *import = *find(device, number);
    int status = HVI_OK;

    if (!import || import->state != ASKED)
        return HVI_ERR_NOT_FOUND;
    struct piece *piece = piece_new(add, &status), **link = &import->pieces;
    if (!piece)
        return status;
    while (*link)
        link = &(*link)->next;
    *link = piece;
    return import->worker->state == ENGINE_DEVICE_LINKED ? send_pieces(import) : HVI_OK;
}

int engine_device_release(struct engine_device *device, uint64_t ticket, uint32_t number)
{
    struct engine_device_import *import = *find(device, number);

    if (!import)
        return HVI_ERR_NOT_FOUND;
    import->ticket = 0;
    import->release_ticket = ticket;
    import->abandoned = true;
    if (import->state == SENT)
        return HVI_OK;
    if (import->begun && send_release(import))
        return HVI_OK;
    forget(import);
    return HVI_ERR_NOT_FOUND;
}

/* ---- what becomes of them ---- */

static void give_imported(struct engine_device_import *import, int status, const char *text)
{
    struct engine_device *device = import->worker->device;
    uint64_t ticket = import->ticket;

    import->ticket = 0;
    if (ticket != 0)
        device->calls->imported(device->user, ticket, status, text);
}

/* Its memory is not held any more, or nobody can say. */
static void end(struct engine_device_import *import, int status, const char *text)
{
    struct engine_device *device = import->worker->device;
    uint64_t ticket = import->release_ticket;

    forget(import);
    if (ticket != 0)
        device->calls->released(device->user, ticket, status, text);
}

static void opened(struct engine_device_import *import, const struct engine_device_answer *answer)
{
    const struct engine_device_worker *worker = import->worker;
    int status = answer->status;
    const char *text = answer->text;

    if (status == HVI_OK && worker->page_status != HVI_OK) {
        status = worker->page_status;
        text = worker->text;
    }
    if (status == HVI_OK && !import->abandoned) {
        set_state(import, READY, "GpuAck");
        give_imported(import, HVI_OK, "");
        return;
    }
    give_imported(import, status, text);
    import->abandoned = true;
    /* Where the worker has it, or may have it in the end. */
    bool held = answer->status == HVI_OK || answer->status == HVI_ERR_TIMEOUT;
    if (!held || !send_release(import))
        end(import, HVI_OK, "");
}

/* ---- registration ---- */

bool engine_device_registers(struct engine_device *device, uint32_t number)
{
    const struct engine_device_import *import = *find(device, number);

    return import && import->registers && import->state == READY && import->worker->registers &&
           import->registered != NEVER_REGISTERED;
}

/* Without an answer it would never be registered: so too where it cannot be sent. */
static void ask_to_register(struct engine_device_import *import, uint32_t comm)
{
    struct engine_device_worker *worker = import->worker;
    struct hvi_gpu_msg msg = {.kind = HVI_GPU_REGISTER,
                              .registering = {.comm = comm, .import = import->number}};

    import->registered = NEVER_REGISTERED;
    if (worker->registered >= ENGINE_DEVICE_REGISTERED_MAX ||
        engine_device_expect(worker, ENGINE_DEVICE_REGISTER, import->number,
                             ENGINE_DEVICE_ANSWER_NS, &msg.registering.request) != HVI_OK)
        return;
    if (engine_device_send(worker, &msg, NULL, 0) != HVI_OK) {
        engine_device_unexpect(worker, msg.registering.request);
        return;
    }
    import->registered = REGISTERING;
    import->comm = comm;
    worker->registered++;
}

bool engine_device_is_registered(struct engine_device *device, uint32_t comm, uint32_t number)
{
    struct engine_device_import *import = *find(device, number);

    if (!engine_device_registers(device, number))
        return false;
    if (import->registered == NOT_REGISTERED)
        ask_to_register(import, comm);
    return import->registered == REGISTERED && import->comm == comm;
}

static void registered(struct engine_device_import *import,
                       const struct engine_device_answer *answer)
{
    const bool good = answer->status == HVI_OK;

    HVI_LOG(good ? HVI_LOG_INFO : HVI_LOG_WARN, "device", good ? "registered" : "not-registered",
            good ? "NCCL has memory registered" : answer->text, "gpu=%s import=%u comm=%u",
            import->worker->uuid_text, import->number, import->comm);
    import->registered = good ? REGISTERED : NEVER_REGISTERED;
}

/* ---- answers, and the end ---- */

void engine_device_import_answered(struct engine_device *device, enum engine_device_wait wait,
                                   uint32_t number, const struct engine_device_answer *answer)
{
    struct engine_device_import *import = *find(device, number);

    if (!import)
        return;
    if (wait == ENGINE_DEVICE_IMPORT && import->state == SENT)
        opened(import, answer);
    else if (wait == ENGINE_DEVICE_RELEASE && import->state == CLOSING)
        end(import, answer->status, answer->text);
    else if (wait == ENGINE_DEVICE_REGISTER && import->registered == REGISTERING)
        registered(import, answer);
}

/* The next import of the worker; the list changes by what is called. */
static struct engine_device_import *any_of(const struct engine_device_worker *worker,
                                           bool asked_only)
{
    for (uint32_t i = 0; i < ENGINE_DEVICE_BUCKETS; i++) {
        struct engine_device_import *import = worker->device->imports[i];
        for (; import; import = import->next) {
            bool due = import->state == ASKED && import->pieces && !import->abandoned;
            if (import->worker == worker && (due || !asked_only))
                return import;
        }
    }
    return NULL;
}

void engine_device_import_linked(struct engine_device_worker *worker)
{
    struct engine_device_import *import;

    while (worker->state == ENGINE_DEVICE_LINKED && (import = any_of(worker, true)) != NULL) {
        int status = send_pieces(import);
        if (status == HVI_OK)
            continue;
        give_imported(import, status, why(status, "the worker cannot be told of the memory"));
        end(import, HVI_OK, "");
    }
}

void engine_device_import_lost(struct engine_device_worker *worker, int status, const char *text)
{
    struct engine_device_import *import;

    while ((import = any_of(worker, false)) != NULL) {
        if (import->state == ASKED || import->state == SENT)
            give_imported(import, status, text);
        end(import, HVI_OK, "");
    }
}

void engine_device_import_close(struct engine_device *device)
{
    for (uint32_t i = 0; i < ENGINE_DEVICE_BUCKETS; i++) {
        while (device->imports[i]) {
            struct engine_device_import *import = device->imports[i];
            device->imports[i] = import->next;
            import_free(import);
        }
    }
}
