/* SPDX-License-Identifier: Apache-2.0
 * The cache of imports.
 *
 * Calls of the driver wait in two queues: what opens or registers, and what closes or ends a registration. They overtake each other.
 *
 * Where an address has got another allocation (BUFFER_ID differs), the new handle may have the bytes of the old one. An open
 * mapping of equal bytes would be given out again, so the new one waits (is parked) until the old one is closed. A handle of other
 * bytes is opened beside it. (P2: driver 580 maps the new allocation elsewhere while the old one is open.)
 *
 * That is so of handles. Chunks of VMM come by descriptors or fabric handles, whose imports are never given out again, so ranges that share chunks may be
 * open side by side: a trainer whose segment has grown says the larger range, and lets the smaller one go.
 *
 * Where the limit leaves no room, memory that no owner has makes some: it is closed, and the new one is parked until then.
 *
 * A close may wait for long: until a moment in which no stream has anything. Memory that is asked for meanwhile is taken out of
 * the queue again. */
#include "daemon/gpu/import.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/fate.h"
#include "base/log.h"
#include "base/status.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <utlist.h>

#define LATE_NS  (200 * HVI_NS_MS) /* an answer to a release is not held back longer */
#define CLAIM_NS (10 * HVI_NS_SEC) /* a survivor comes to its first op within it, mostly */

enum import_state { OPENING, OPEN, CLOSING };

struct holder {
    struct holder *prev, *next;
    void *owner;
    uint32_t number;
    uint64_t request;
};

struct gpu_import {
    struct gpu_import *prev, *next;
    struct gpu_exporter *exporter;
    uint64_t address, bytes, buffer_id;
    uint32_t kind;
    enum import_state state;
    bool is_refused;              /* it could not be opened, and what there is of it is closed */
    struct gpu_exported exported; /* the thread's while it is OPENING or CLOSING */
    struct holder *holders;
    void *releaser; /* hears when it is closed; NULL: nobody */
    uint64_t release;
};

/* An import in whose way lies what a batch may still use, or what is not given back yet. */
struct gpu_parked {
    struct gpu_parked *prev, *next;
    void *owner;
    struct hvi_gpu_import said; /* without chunks */
    struct gpu_exported exported;
};

/* A process that has memory open here. */
struct gpu_exporter {
    struct gpu_exporter *prev, *next;
    struct gpu_imports *imports;
    pid_t pid;
    uint64_t start;
    int pidfd;
    bool over; /* it has ended */
    uint32_t users;
    sd_event_source *exit;
};

/* One call for the thread, which touches nothing of the import but .exported. */
struct gpu_call {
    struct gpu_call *prev, *next;
    struct gpu_import *import;
    struct gpu_pin *pin; /* it is of a pin, and of no import */
    bool closes;         /* or takes the registration back */
    hvi_cu_ptr address;  /* of a pin */
    struct gpu_outcome outcome;
};

/* ---- the thread ---- */

static void register_pin(struct gpu_imports *imports, struct gpu_call *call)
{
    struct gpu_calls *calls = &imports->calls;
    const struct gpu_pin *pin = call->pin;

    if (GPU_TRY(calls, &call->outcome, "cuMemHostRegister",
                calls->cuda->host_register(pin->base, pin->bytes,
                                           HVI_CU_HOST_PORTABLE | HVI_CU_HOST_DEVICEMAP)) &&
        !GPU_TRY(calls, &call->outcome, "cuMemHostGetDevicePointer",
                 calls->cuda->host_pointer(&call->address, pin->base, 0)))
        GPU_UNDO(calls, "cuMemHostUnregister", calls->cuda->host_unregister(pin->base));
}

/* Needs the lock. NULL: there is nothing to do. */
static struct gpu_call *take_next(struct gpu_imports *imports, bool opens, bool closes)
{
    struct gpu_call *call = opens ? imports->waiting : NULL;

    if (call != NULL) {
        DL_DELETE(imports->waiting, call);
        return call;
    }
    call = closes ? imports->closes : NULL;
    if (call != NULL)
        DL_DELETE(imports->closes, call);
    return call;
}

static struct gpu_call *take_call(struct gpu_imports *imports)
{
    struct gpu_call *call;

    pthread_mutex_lock(&imports->lock);
    while ((call = take_next(imports, true, imports->closes_here)) == NULL && !imports->stop)
        pthread_cond_wait(&imports->more, &imports->lock);
    pthread_mutex_unlock(&imports->lock); /* what waits is done before the end */
    return call;
}

static void give_call(struct gpu_imports *imports, struct gpu_call *call)
{
    pthread_mutex_lock(&imports->lock);
    DL_APPEND(imports->done, call);
    pthread_mutex_unlock(&imports->lock);
    (void)eventfd_write(imports->event_fd, 1);
}

static void make_close(struct gpu_calls *calls, struct gpu_call *call)
{
    if (call->pin != NULL)
        (void)GPU_TRY(calls, &call->outcome, "cuMemHostUnregister",
                      calls->cuda->host_unregister(call->pin->base));
    else
        gpu_exported_close(calls, &call->import->exported, &call->outcome);
}

static void make_call(struct gpu_imports *imports, int ordinal, struct gpu_call *call)
{
    if (call->closes)
        make_close(&imports->calls, call);
    else if (call->pin != NULL)
        register_pin(imports, call);
    else
        gpu_exported_open(&imports->calls, ordinal, &call->import->exported, &call->outcome);
}

/* Until it is told to stop and nothing waits. */
static void work(struct gpu_imports *imports)
{
    struct gpu_call *call;
    hvi_cu_device ordinal = -1;

    imports->cuda->context_set(imports->context);
    imports->cuda->context_device(&ordinal);
    while ((call = take_call(imports)) != NULL) {
        make_call(imports, ordinal, call);
        give_call(imports, call);
    }
}

static void *run(void *user)
{
    pthread_setname_np(pthread_self(), "hvd-import");
    work(user);
    return NULL;
}

/* ---- closes in another thread ---- */

bool gpu_imports_close_some(struct gpu_imports *imports, struct gpu_calls *calls, uint64_t end_ns)
{
    struct gpu_call *call;

    do {
        pthread_mutex_lock(&imports->lock);
        call = take_next(imports, false, true);
        pthread_mutex_unlock(&imports->lock);
        if (call == NULL)
            return false;
        if (call->pin == NULL && imports->before_close != NULL)
            imports->before_close(imports->user, call->import->exported.base);
        make_close(calls, call);
        give_call(imports, call);
    } while (!calls->failed && hvi_clock_ns() < end_ns);
    return true;
}

void gpu_imports_close_freely(struct gpu_imports *imports)
{
    pthread_mutex_lock(&imports->lock);
    imports->closes_here = true;
    pthread_cond_signal(&imports->more);
    pthread_mutex_unlock(&imports->lock);
}

/* ---- exporters ---- */

static void exporter_put(struct gpu_exporter *exporter)
{
    if (--exporter->users > 0)
        return;
    DL_DELETE(exporter->imports->exporters, exporter);
    sd_event_source_disable_unref(exporter->exit);
    if (exporter->pidfd >= 0)
        close(exporter->pidfd);
    free(exporter);
}

/* ---- imports ---- */

static void drop_holder(struct gpu_import *import, struct holder *holder)
{
    DL_DELETE(import->holders, holder);
    free(holder);
}

static void import_free(struct gpu_imports *imports, struct gpu_import *import)
{
    while (import->holders != NULL)
        drop_holder(import, import->holders);
    DL_DELETE(imports->imports, import);
    imports->bytes -= import->bytes;
    imports->count--;
    gpu_exported_fini(&import->exported);
    exporter_put(import->exporter);
    free(import);
}

static void queue(struct gpu_imports *imports, struct gpu_call *call)
{
    pthread_mutex_lock(&imports->lock);
    if (call->closes)
        DL_APPEND(imports->closes, call);
    else
        DL_APPEND(imports->waiting, call);
    pthread_cond_signal(&imports->more);
    pthread_mutex_unlock(&imports->lock);
    if (call->closes && imports->closing != NULL)
        imports->closing(imports->user);
}

/* HVI_OK or HVI_ERR_NO_MEMORY. */
static int push(struct gpu_imports *imports, struct gpu_import *import, bool closes)
{
    struct gpu_call *call = calloc(1, sizeof(*call));

    if (call == NULL)
        return HVI_ERR_NO_MEMORY;
    call->import = import;
    call->closes = closes;
    queue(imports, call);
    return HVI_OK;
}

/* It has no holder. Without memory for the call it stays open, and is found again. */
static void begin_close(struct gpu_imports *imports, struct gpu_import *import)
{
    HVI_ASSERT(import->state == OPEN && import->holders == NULL);
    if (push(imports, import, true) == HVI_OK)
        import->state = CLOSING;
}

static void answer_releaser(struct gpu_imports *imports, struct gpu_import *import, int status,
                            const char *text)
{
    void *releaser = import->releaser;

    import->releaser = NULL;
    if (releaser != NULL)
        imports->answer(releaser, import->release, status, text);
}

/* Its close is taken out of the queue again. False: it is being closed. */
static bool keep_open(struct gpu_imports *imports, struct gpu_import *import)
{
    struct gpu_call *call;

    pthread_mutex_lock(&imports->lock);
    DL_SEARCH_SCALAR(imports->closes, call, import, import);
    if (call != NULL)
        DL_DELETE(imports->closes, call);
    pthread_mutex_unlock(&imports->lock);
    if (call == NULL)
        return false;
    free(call);
    import->state = OPEN;
    answer_releaser(imports, import, HVI_OK, "");
    return true;
}

static int on_exporter_end(sd_event_source *source, int fd, uint32_t events, void *user)
{
    struct gpu_exporter *exporter = user;
    struct gpu_import *import, *after;

    (void)fd, (void)events;
    sd_event_source_set_enabled(source, SD_EVENT_OFF);
    exporter->over = true;
    DL_FOREACH_SAFE(exporter->imports->imports, import, after)
    {
        if (import->exporter == exporter && import->state == OPEN && import->holders == NULL)
            begin_close(exporter->imports, import);
    }
    return 0;
}

/* Holds it; NULL with errno: it has gone, or there is no memory. */
static struct gpu_exporter *exporter_get(struct gpu_imports *imports, pid_t pid, uint64_t start)
{
    struct gpu_exporter *exporter;

    DL_FOREACH(imports->exporters, exporter)
    {
        if (exporter->pid == pid && exporter->start == start) {
            exporter->users++;
            return exporter;
        }
    }
    exporter = calloc(1, sizeof(*exporter));
    if (exporter == NULL)
        return NULL;
    *exporter = (struct gpu_exporter){
        .imports = imports, .pid = pid, .start = start, .pidfd = hvi_pidfd_open(pid), .users = 1};
    DL_APPEND(imports->exporters, exporter);
    if (exporter->pidfd >= 0 && sd_event_add_io(imports->event, &exporter->exit, exporter->pidfd,
                                                EPOLLIN, on_exporter_end, exporter) >= 0)
        return exporter;
    int error = exporter->pidfd < 0 ? errno : ENOMEM;
    exporter_put(exporter);
    errno = error;
    return NULL;
}

/* ---- what the thread has done ---- */

static void unpark(struct gpu_imports *imports);

/* The call is given back, or becomes that of the close. */
static void refused(struct gpu_imports *imports, struct gpu_call *call)
{
    struct gpu_import *import = call->import;

    answer_releaser(imports, import, HVI_OK, "");
    if (!gpu_exported_is_open(&import->exported)) {
        import_free(imports, import);
        free(call);
        return;
    }
    while (import->holders != NULL)
        drop_holder(import, import->holders);
    import->is_refused = true;
    import->state = CLOSING;
    call->closes = true;
    queue(imports, call);
}

static void opened(struct gpu_imports *imports, struct gpu_call *call)
{
    struct gpu_import *import = call->import;
    struct holder *holder;

    if (call->outcome.status == HVI_OK)
        import->state = OPEN;
    DL_FOREACH(import->holders, holder)
    imports->answer(holder->owner, holder->request, call->outcome.status, call->outcome.text);
    if (call->outcome.status != HVI_OK) {
        refused(imports, call);
        return;
    }
    free(call);
    if (import->holders == NULL) /* nobody waits for it any more */
        begin_close(imports, import);
    if (import->state == OPEN) /* somebody has come meanwhile */
        answer_releaser(imports, import, HVI_OK, "");
}

static void closed(struct gpu_imports *imports, struct gpu_call *call)
{
    const struct gpu_outcome *outcome = &call->outcome;

    if (outcome->status != HVI_OK)
        HVI_LOG(HVI_LOG_ERROR, "import", "not-closed", outcome->text, "bytes=%" PRIu64,
                call->import->bytes);
    answer_releaser(imports, call->import, outcome->status, outcome->text);
    import_free(imports, call->import);
    free(call);
}

/* A close has not come to its turn: streams have been busy all the time. */
static int on_late(sd_event_source *source, uint64_t usec, void *user)
{
    struct gpu_imports *imports = user;
    struct gpu_import *import;

    (void)source, (void)usec;
    DL_FOREACH(imports->imports, import)
    {
        if (import->releaser == NULL || import->kind == HVI_DEVICE_POOL)
            continue;
        imports->is_late = true;
        answer_releaser(imports, import, HVI_OK, "");
    }
    return 0;
}

/* The answer to a release comes with the close, if that is soon. */
static void await_close(struct gpu_imports *imports, struct gpu_import *import, void *owner,
                        uint64_t request)
{
    int enabled = SD_EVENT_OFF;

    import->releaser = owner;
    import->release = request;
    if (imports->is_late && import->kind != HVI_DEVICE_POOL) {
        answer_releaser(imports, import, HVI_OK, "");
        return;
    }
    (void)sd_event_source_get_enabled(imports->late, &enabled);
    if (enabled != SD_EVENT_OFF)
        return;
    sd_event_source_set_time_relative(imports->late, LATE_NS / 1000);
    sd_event_source_set_enabled(imports->late, SD_EVENT_ONESHOT);
}

/* The call is kept for the end of the pin. */
static void pinned(struct gpu_call *call)
{
    struct gpu_pin *pin = call->pin;
    const struct gpu_outcome *outcome = &call->outcome;
    const bool is_over = call->closes || outcome->status != HVI_OK;

    if (call->closes && outcome->status != HVI_OK)
        HVI_LOG(HVI_LOG_ERROR, "import", "not-unregistered", outcome->text, "bytes=%zu",
                pin->bytes);
    pin->address = call->address;
    pin->status = outcome->status;
    snprintf(pin->text, sizeof(pin->text), "%s", outcome->text);
    if (is_over) {
        free(call);
        pin->call = NULL;
    }
    pin->done(pin);
}

static void reap(struct gpu_imports *imports)
{
    struct gpu_call *done, *call;

    pthread_mutex_lock(&imports->lock);
    done = imports->done;
    imports->done = NULL;
    pthread_mutex_unlock(&imports->lock);
    while ((call = done) != NULL) {
        DL_DELETE(done, call);
        imports->is_late = imports->is_late && !call->closes;
        if (call->pin != NULL) {
            pinned(call);
            continue;
        }
        if (call->closes)
            closed(imports, call);
        else
            opened(imports, call);
    }
    unpark(imports);
    if (imports->calls.failed && imports->failed != NULL)
        imports->failed(imports->user, imports->calls.why);
}

static int on_finished(sd_event_source *source, int fd, uint32_t events, void *user)
{
    uint64_t count;

    (void)source, (void)events;
    if (read(fd, &count, sizeof(count)) > 0)
        reap(user);
    return 0;
}

/* ---- what engines ask ---- */

static struct holder *find_holder(const struct gpu_imports *imports, const void *owner,
                                  uint32_t number, struct gpu_import **import_p)
{
    struct gpu_import *import;
    struct holder *holder;

    DL_FOREACH(imports->imports, import)
    {
        DL_FOREACH(import->holders, holder)
        {
            if (holder->owner == owner && holder->number == number) {
                *import_p = import;
                return holder;
            }
        }
    }
    return NULL;
}

static bool overlaps(const struct gpu_import *import, const struct hvi_device_memory *memory)
{
    return import->address - memory->address < memory->bytes ||
           memory->address - import->address < import->bytes;
}

/* Whether opening the one could give the mapping of the other out again. The bytes of a pool's memory say nothing beyond its pool. */
static bool may_be_mistaken(const struct gpu_import *import, const struct gpu_exporter *exporter,
                            const struct hvi_device_memory *memory)
{
    if (hvi_device_has_chunks(import->kind) || import->kind != memory->kind ||
        memcmp(import->exported.handle, memory->handle, sizeof(memory->handle)) != 0)
        return false;
    return import->kind != HVI_DEVICE_POOL ||
           (import->exporter == exporter && overlaps(import, memory));
}

static bool is_same(const struct gpu_import *import, const struct gpu_exporter *exporter,
                    const struct hvi_device_memory *memory)
{
    return !import->is_refused && import->exporter == exporter &&
           import->address == memory->address && import->bytes == memory->bytes &&
           import->buffer_id == memory->buffer_id && import->kind == memory->kind;
}

/* The open or opening import of this memory. What lies at its addresses, of an allocation that was freed, is closed if no one
 * holds it. *busy_p: what it could be mistaken for is not closed yet. */
static struct gpu_import *find_memory(struct gpu_imports *imports,
                                      const struct gpu_exporter *exporter,
                                      const struct hvi_device_memory *memory, bool *busy_p)
{
    struct gpu_import *import, *after;

    *busy_p = false;
    DL_FOREACH_SAFE(imports->imports, import, after)
    {
        if (is_same(import, exporter, memory) &&
            (import->state != CLOSING || keep_open(imports, import)))
            return import;
        const bool is_mistaken = may_be_mistaken(import, exporter, memory);
        if ((is_mistaken || (import->exporter == exporter && overlaps(import, memory))) &&
            import->state == OPEN && import->holders == NULL)
            begin_close(imports, import);
        *busy_p = *busy_p || is_mistaken;
    }
    return NULL;
}

/* Why it cannot be imported; HVI_OK: nothing stands against it. */
static int check(const struct gpu_imports *imports, const struct hvi_device_memory *memory,
                 char *text_p, size_t text_size)
{
    text_p[0] = '\0';
    if (memcmp(memory->uuid, imports->uuid, sizeof(memory->uuid)) != 0) {
        snprintf(text_p, text_size, "the memory lies on another GPU");
        return HVI_ERR_INVALID;
    }
    if (imports->bytes_max > 0 && (imports->bytes > imports->bytes_max ||
                                   memory->bytes > imports->bytes_max - imports->bytes)) {
        snprintf(text_p, text_size,
                 "%" PRIu64 " bytes more than the %" PRIu64
                 " that are imported exceed the limit of %" PRIu64,
                 memory->bytes, imports->bytes, imports->bytes_max);
        return HVI_ERR_LIMIT;
    }
    return HVI_OK;
}

/* Whether the limit leaves room for it once all is closed that no owner has. */
static bool has_room_later(const struct gpu_imports *imports,
                           const struct hvi_device_memory *memory)
{
    const struct gpu_import *import;
    uint64_t kept = 0;

    DL_FOREACH(imports->imports, import)
    {
        if (import->state == OPENING || import->holders != NULL)
            kept += import->bytes;
    }
    return kept < imports->bytes && kept <= imports->bytes_max &&
           memory->bytes <= imports->bytes_max - kept;
}

/* HVI_OK, with an import that is being opened, and that has taken `exported`. `exporter` is held by it then. */
static int begin_open(struct gpu_imports *imports, struct gpu_exporter *exporter,
                      const struct hvi_device_memory *memory, struct gpu_exported *exported,
                      struct gpu_import **import_p)
{
    struct gpu_import *import = calloc(1, sizeof(*import));

    if (import == NULL)
        return HVI_ERR_NO_MEMORY;
    import->exporter = exporter;
    import->address = memory->address;
    import->bytes = memory->bytes;
    import->buffer_id = memory->buffer_id;
    import->kind = memory->kind;
    import->exported = *exported;
    *exported = (struct gpu_exported){0};
    exporter->users++;
    DL_APPEND(imports->imports, import);
    imports->bytes += import->bytes;
    imports->count++;
    if (push(imports, import, false) != HVI_OK) {
        import_free(imports, import);
        return HVI_ERR_NO_MEMORY;
    }
    *import_p = import;
    return HVI_OK;
}

/* The import of this memory, which may be opening. */
static int get_import(struct gpu_imports *imports, const struct hvi_gpu_import *said,
                      struct gpu_exported *exported, struct gpu_import **import_p, char *text_p,
                      size_t text_size)
{
    struct gpu_exporter *exporter = exporter_get(imports, (pid_t)said->pid, said->process_start);
    int status = HVI_OK;
    bool busy;

    if (exporter == NULL) {
        snprintf(text_p, text_size, "process %d: %s", (int)said->pid, strerror(errno));
        return HVI_ERR_NOT_FOUND;
    }
    *import_p = find_memory(imports, exporter, &said->memory, &busy);
    if (*import_p == NULL && busy) {
        status = HVI_ERR_BUSY;
    } else if (*import_p == NULL) {
        status = check(imports, &said->memory, text_p, text_size);
        if (status == HVI_ERR_LIMIT && has_room_later(imports, &said->memory)) {
            gpu_imports_drop(imports);
            status = HVI_ERR_BUSY;
        }
        if (status == HVI_OK)
            status = begin_open(imports, exporter, &said->memory, exported, import_p);
    }
    exporter_put(exporter);
    return status;
}

/* HVI_OK, and it has taken `exported`; or HVI_ERR_NO_MEMORY. */
static int park(struct gpu_imports *imports, void *owner, const struct hvi_gpu_import *said,
                struct gpu_exported *exported)
{
    struct gpu_parked *parked = calloc(1, sizeof(*parked));

    if (parked == NULL)
        return HVI_ERR_NO_MEMORY;
    parked->owner = owner;
    parked->said = *said;
    parked->said.memory.chunks = NULL;
    parked->said.memory.chunk_count = 0;
    parked->said.memory.fabric = NULL;
    parked->said.memory.fabric_bytes = 0;
    parked->exported = *exported;
    *exported = (struct gpu_exported){0};
    DL_APPEND(imports->parked, parked);
    return HVI_OK;
}

/* Takes `exported`. */
static void add(struct gpu_imports *imports, void *owner, const struct hvi_gpu_import *said,
                struct gpu_exported *exported)
{
    struct gpu_import *import = NULL;
    struct holder *holder = calloc(1, sizeof(*holder));
    char text[300] = "";
    int status = holder == NULL ? HVI_ERR_NO_MEMORY
                                : get_import(imports, said, exported, &import, text, sizeof(text));

    if (status == HVI_OK) {
        *holder = (struct holder){.owner = owner, .number = said->import, .request = said->request};
        DL_APPEND(import->holders, holder);
        if (import->state == OPEN)
            imports->answer(owner, said->request, HVI_OK, "");
    } else {
        free(holder);
        if (status == HVI_ERR_BUSY)
            status = park(imports, owner, said, exported);
        if (status != HVI_OK)
            imports->answer(owner, said->request, status, text);
    }
    gpu_exported_fini(exported); /* what it has found open needs none */
}

/* Something was given back. Those that still wait are parked again, in their order. */
static void unpark(struct gpu_imports *imports)
{
    struct gpu_parked *waiting = imports->parked, *parked;

    imports->parked = NULL;
    while ((parked = waiting) != NULL) {
        DL_DELETE(waiting, parked);
        add(imports, parked->owner, &parked->said, &parked->exported);
        free(parked);
    }
}

static bool is_parked(const struct gpu_imports *imports, const void *owner, uint32_t number)
{
    const struct gpu_parked *parked;

    DL_FOREACH(imports->parked, parked)
    {
        if (parked->owner == owner && (number == 0 || parked->said.import == number))
            return true;
    }
    return false;
}

/* `number` 0: all of the owner. */
static void forget_parked(struct gpu_imports *imports, const void *owner, uint32_t number)
{
    struct gpu_parked *parked, *after;

    DL_FOREACH_SAFE(imports->parked, parked, after)
    {
        if (parked->owner != owner || (number != 0 && parked->said.import != number))
            continue;
        DL_DELETE(imports->parked, parked);
        gpu_exported_fini(&parked->exported);
        free(parked);
    }
}

bool gpu_import_add(struct gpu_imports *imports, void *owner, const struct hvi_gpu_import *said,
                    struct gpu_exported *exported)
{
    struct gpu_import *import = NULL;

    if (is_parked(imports, owner, said->import) ||
        find_holder(imports, owner, said->import, &import) != NULL) {
        gpu_exported_fini(exported);
        return false;
    }
    add(imports, owner, said, exported);
    unpark(imports); /* it may have taken what one of them was to have the room of */
    return true;
}

void gpu_import_release(struct gpu_imports *imports, void *owner,
                        const struct hvi_gpu_release *said)
{
    struct gpu_import *import;
    struct holder *holder = find_holder(imports, owner, said->import, &import);

    if (holder == NULL) {
        if (said->import != 0)
            forget_parked(imports, owner, said->import);
        imports->answer(owner, said->request, HVI_ERR_NOT_FOUND, "there is no such import");
        return;
    }
    drop_holder(import, holder);
    if (import->state == OPEN && import->holders == NULL)
        begin_close(imports, import);
    unpark(imports);
    if (import->holders != NULL || import->state == OPEN || import->releaser != NULL) {
        imports->answer(owner, said->request, HVI_OK,
                        ""); /* it stays open for others, or for now */
        return;
    }
    await_close(imports, import, owner, said->request);
}

void gpu_import_owner_gone(struct gpu_imports *imports, const void *owner)
{
    struct gpu_import *import, *next;
    struct holder *holder, *after;

    forget_parked(imports, owner, 0);
    DL_FOREACH_SAFE(imports->imports, import, next)
    {
        DL_FOREACH_SAFE(import->holders, holder, after)
        {
            if (holder->owner == owner)
                drop_holder(import, holder);
        }
        if (import->releaser == owner)
            import->releaser = NULL;
        if (import->state == OPEN && import->holders == NULL && import->exporter->over)
            begin_close(imports, import);
    }
    unpark(imports);
}

void gpu_import_where(const struct gpu_imports *imports, const void *owner, uint32_t number,
                      hvi_cu_ptr *base_p, uint64_t *bytes_p)
{
    struct gpu_import *import = NULL;
    const struct holder *holder = find_holder(imports, owner, number, &import);

    HVI_ASSERT(holder != NULL && import->state == OPEN);
    *base_p = import->exported.base;
    *bytes_p = import->bytes;
}

void gpu_imports_drop(struct gpu_imports *imports)
{
    struct gpu_import *import, *after;

    DL_FOREACH_SAFE(imports->imports, import, after)
    {
        if (import->state == OPEN && import->holders == NULL)
            begin_close(imports, import);
    }
}

static int on_unclaimed(sd_event_source *source, uint64_t usec, void *user)
{
    (void)source, (void)usec;
    gpu_imports_drop(user);
    return 0;
}

void gpu_imports_await_claims(struct gpu_imports *imports)
{
    sd_event_source_set_time_relative(imports->unclaimed, imports->claim_ns / 1000);
    sd_event_source_set_enabled(imports->unclaimed, SD_EVENT_ONESHOT);
}

/* ---- pins ---- */

int gpu_import_pin(struct gpu_imports *imports, struct gpu_pin *pin)
{
    pin->call = calloc(1, sizeof(*pin->call));
    if (pin->call == NULL)
        return HVI_ERR_NO_MEMORY;
    pin->call->pin = pin;
    queue(imports, pin->call);
    return HVI_OK;
}

void gpu_import_unpin(struct gpu_imports *imports, struct gpu_pin *pin)
{
    pin->call->closes = true;
    queue(imports, pin->call);
}

/* ---- life ---- */

int gpu_imports_open(struct gpu_imports *imports, sd_event *event, const struct hvi_cuda *cuda,
                     hvi_cu_context context, const unsigned char uuid[HVI_UUID_BYTES],
                     uint64_t bytes_max)
{
    imports->event = event;
    imports->context = context;
    imports->bytes_max = bytes_max;
    imports->claim_ns = CLAIM_NS;
    memcpy(imports->uuid, uuid, sizeof(imports->uuid));
    pthread_mutex_init(&imports->lock, NULL);
    pthread_cond_init(&imports->more, NULL);
    imports->calls.cuda = cuda;
    imports->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    imports->cuda = cuda;
    imports->closes_here = imports->closing == NULL;
    if (imports->event_fd >= 0 &&
        sd_event_add_io(event, &imports->finished, imports->event_fd, EPOLLIN, on_finished,
                        imports) >= 0 &&
        sd_event_add_time(event, &imports->late, CLOCK_MONOTONIC, 0, 1000, on_late, imports) >= 0 &&
        sd_event_source_set_enabled(imports->late, SD_EVENT_OFF) >= 0 &&
        sd_event_add_time(event, &imports->unclaimed, CLOCK_MONOTONIC, 0, 1000, on_unclaimed,
                          imports) >= 0 &&
        sd_event_source_set_enabled(imports->unclaimed, SD_EVENT_OFF) >= 0 &&
        pthread_create(&imports->thread, NULL, run, imports) == 0)
        return HVI_OK;
    imports->unclaimed = sd_event_source_disable_unref(imports->unclaimed);
    imports->late = sd_event_source_disable_unref(imports->late);
    imports->finished = sd_event_source_disable_unref(imports->finished);
    if (imports->event_fd >= 0)
        close(imports->event_fd);
    imports->cuda = NULL;
    return HVI_ERR_NO_MEMORY;
}

void gpu_imports_close(struct gpu_imports *imports)
{
    if (imports->cuda == NULL)
        return;
    gpu_imports_drop(imports);
    pthread_mutex_lock(&imports->lock);
    imports->stop = imports->closes_here = true; /* no stream has anything any more */
    pthread_cond_signal(&imports->more);
    pthread_mutex_unlock(&imports->lock);
    pthread_join(imports->thread, NULL);
    reap(imports); /* what was opened last is closed here */
    work(imports);
    reap(imports);
    HVI_ASSERT(imports->imports == NULL && imports->waiting == NULL && imports->closes == NULL);
    imports->unclaimed = sd_event_source_disable_unref(imports->unclaimed);
    imports->late = sd_event_source_disable_unref(imports->late);
    imports->finished = sd_event_source_disable_unref(imports->finished);
    close(imports->event_fd);
    imports->cuda = NULL;
}
