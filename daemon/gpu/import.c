/* SPDX-License-Identifier: Apache-2.0
 * The cache of imports.
 *
 * Calls of the driver go through one queue to one thread, in order. So where an address has got another allocation (BUFFER_ID
 * differs), the old mapping is closed before the new handle is opened, which may have the same bytes: an open mapping
 * of equal bytes would be given out again.
 *
 * Untrusted: an engine passes on what a trainer says of its memory. The driver says how large the allocation is that a handle
 * opens, and less than what was said is refused. */
#include "daemon/gpu/import.h"

#include "base/assert.h"
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
    struct hvi_cu_ipc handle;
    enum import_state state;
    hvi_cu_ptr base; /* OPEN, CLOSING */
    struct holder *holders;
    void *releaser; /* hears when it is closed; NULL: nobody */
    uint64_t release;
};

/* An import in whose way lies what a batch may still use, or what is not given back yet. */
struct gpu_parked {
    struct gpu_parked *prev, *next;
    void *owner;
    struct hvi_gpu_import said; /* without chunks */
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

/* One call for the thread; the import is not touched by it. */
struct gpu_call {
    struct gpu_call *prev, *next;
    struct gpu_import *import;
    struct gpu_pin *pin; /* it is of a pin, and of no import */
    bool closes;         /* or takes the registration back */
    struct hvi_cu_ipc handle;
    uint64_t bytes;
    hvi_cu_ptr base; /* in, to close; out */
    int status;
    char text[160];
};

/* ---- the thread ---- */

/* Every later call of this process gives the same (driver API: "the process must be terminated"). */
static bool is_sticky(int error)
{
    static const int errors[] = {214, 220, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719};

    for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
        if (errors[i] == error)
            return true;
    }
    return false;
}

static int status_of(int error)
{
    return error == HVI_CU_OUT_OF_MEMORY ? HVI_ERR_NO_MEMORY : HVI_ERR_UNSUPPORTED;
}

static bool is_good(struct gpu_imports *imports, struct gpu_call *call, const char *what, int error)
{
    char name[80];

    gpu_calls_end(&imports->calls);
    if (error == HVI_CU_OK)
        return true;
    hvi_cuda_describe(imports->cuda, error, name, sizeof(name));
    call->status = status_of(error);
    snprintf(call->text, sizeof(call->text), "%s: %s", what, name);
    if (is_sticky(error))
        gpu_calls_fail(&imports->calls, what, name);
    return false;
}

#define CALL(imports, call, name, expression)                                                      \
    (gpu_calls_begin(&(imports)->calls, (name), (imports)->calls.usual_ns),                        \
     is_good((imports), (call), (name), (expression)))

/* After a failure, which is what is told. */
#define UNDO(imports, name, expression)                                                            \
    do {                                                                                           \
        gpu_calls_begin(&(imports)->calls, (name), (imports)->calls.usual_ns);                     \
        (void)(expression);                                                                        \
        gpu_calls_end(&(imports)->calls);                                                          \
    } while (0)

static void register_pin(struct gpu_imports *imports, struct gpu_call *call)
{
    const struct gpu_pin *pin = call->pin;

    if (CALL(imports, call, "cuMemHostRegister",
             imports->cuda->host_register(pin->base, pin->bytes,
                                          HVI_CU_HOST_PORTABLE | HVI_CU_HOST_DEVICEMAP)) &&
        !CALL(imports, call, "cuMemHostGetDevicePointer",
              imports->cuda->host_pointer(&call->base, pin->base, 0)))
        UNDO(imports, "cuMemHostUnregister", imports->cuda->host_unregister(pin->base));
}

/* A small allocation may lie within a block, of which the driver speaks then (P2). */
static bool is_within(const struct gpu_call *call, hvi_cu_ptr base, size_t bytes)
{
    return base <= call->base && call->base - base <= bytes &&
           call->bytes <= bytes - (call->base - base);
}

static void open_handle(struct gpu_imports *imports, struct gpu_call *call)
{
    const struct hvi_cuda *cuda = imports->cuda;
    hvi_cu_ptr base = 0;
    size_t bytes = 0;

    if (!CALL(imports, call, "cuIpcOpenMemHandle",
              cuda->ipc_open(&call->base, call->handle, HVI_CU_IPC_LAZY_PEER)))
        return;
    if (CALL(imports, call, "cuMemGetAddressRange",
             cuda->address_range(&base, &bytes, call->base)) &&
        is_within(call, base, bytes))
        return;
    if (call->status == HVI_OK) {
        call->status = HVI_ERR_INVALID;
        snprintf(call->text, sizeof(call->text),
                 "the allocation has %zu bytes, and %" PRIu64 " were said", bytes, call->bytes);
    }
    UNDO(imports, "cuIpcCloseMemHandle", cuda->ipc_close(call->base));
}

static struct gpu_call *take_call(struct gpu_imports *imports)
{
    struct gpu_call *call;

    pthread_mutex_lock(&imports->lock);
    while (imports->waiting == NULL && !imports->stop)
        pthread_cond_wait(&imports->more, &imports->lock);
    call = imports->waiting; /* what waits is done before the end */
    if (call != NULL)
        DL_DELETE(imports->waiting, call);
    pthread_mutex_unlock(&imports->lock);
    return call;
}

static void give_call(struct gpu_imports *imports, struct gpu_call *call)
{
    const uint64_t one = 1;
    ssize_t written;

    pthread_mutex_lock(&imports->lock);
    DL_APPEND(imports->done, call);
    pthread_mutex_unlock(&imports->lock);
    do
        written = write(imports->event_fd, &one, sizeof(one));
    while (written < 0 && errno == EINTR);
}

/* Until it is told to stop and nothing waits. */
static void work(struct gpu_imports *imports)
{
    struct gpu_call *call;

    imports->cuda->context_set(imports->context);
    while ((call = take_call(imports)) != NULL) {
        if (call->pin != NULL && call->closes)
            CALL(imports, call, "cuMemHostUnregister",
                 imports->cuda->host_unregister(call->pin->base));
        else if (call->pin != NULL)
            register_pin(imports, call);
        else if (call->closes)
            CALL(imports, call, "cuIpcCloseMemHandle", imports->cuda->ipc_close(call->base));
        else
            open_handle(imports, call);
        give_call(imports, call);
    }
}

static void *run(void *user)
{
    pthread_setname_np(pthread_self(), "hvd-import");
    work(user);
    return NULL;
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
    exporter_put(import->exporter);
    free(import);
}

static void queue(struct gpu_imports *imports, struct gpu_call *call)
{
    pthread_mutex_lock(&imports->lock);
    DL_APPEND(imports->waiting, call);
    pthread_cond_signal(&imports->more);
    pthread_mutex_unlock(&imports->lock);
}

/* HVI_OK or HVI_ERR_NO_MEMORY. */
static int push(struct gpu_imports *imports, struct gpu_import *import, bool closes)
{
    struct gpu_call *call = calloc(1, sizeof(*call));

    if (call == NULL)
        return HVI_ERR_NO_MEMORY;
    call->import = import;
    call->closes = closes;
    call->handle = import->handle;
    call->bytes = import->bytes;
    call->base = import->base;
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

static void opened(struct gpu_imports *imports, const struct gpu_call *call)
{
    struct gpu_import *import = call->import;
    struct holder *holder;

    if (call->status == HVI_OK) {
        import->state = OPEN;
        import->base = call->base;
    }
    DL_FOREACH(import->holders, holder)
    imports->answer(holder->owner, holder->request, call->status, call->text);
    if (call->status != HVI_OK) {
        if (import->releaser != NULL)
            imports->answer(import->releaser, import->release, HVI_OK, "");
        import_free(imports, import);
        return;
    }
    if (import->holders == NULL) /* nobody waits for it any more */
        begin_close(imports, import);
    if (import->state == OPEN && import->releaser != NULL) { /* somebody has come meanwhile */
        imports->answer(import->releaser, import->release, HVI_OK, "");
        import->releaser = NULL;
    }
}

static void closed(struct gpu_imports *imports, const struct gpu_call *call)
{
    if (call->status != HVI_OK)
        HVI_LOG(HVI_LOG_ERROR, "import", "not-closed", call->text, "bytes=%" PRIu64,
                call->import->bytes);
    if (call->import->releaser != NULL)
        imports->answer(call->import->releaser, call->import->release, call->status, call->text);
    import_free(imports, call->import);
}

/* The call is kept for the end of the pin. */
static void pinned(struct gpu_call *call)
{
    struct gpu_pin *pin = call->pin;
    const bool is_over = call->closes || call->status != HVI_OK;

    if (call->closes && call->status != HVI_OK)
        HVI_LOG(HVI_LOG_ERROR, "import", "not-unregistered", call->text, "bytes=%zu", pin->bytes);
    pin->address = call->base;
    pin->status = call->status;
    snprintf(pin->text, sizeof(pin->text), "%s", call->text);
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
        if (call->pin != NULL) {
            pinned(call);
            continue;
        }
        if (call->closes)
            closed(imports, call);
        else
            opened(imports, call);
        free(call);
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

/* The open or opening import of this memory. What lies in its way, of an allocation that was freed, is closed if no one holds
 * it; else *busy_p. */
static struct gpu_import *find_memory(struct gpu_imports *imports,
                                      const struct gpu_exporter *exporter,
                                      const struct hvi_device_memory *memory, bool *busy_p)
{
    struct gpu_import *import, *after;

    *busy_p = false;
    DL_FOREACH_SAFE(imports->imports, import, after)
    {
        if (import->exporter != exporter || import->state == CLOSING || !overlaps(import, memory))
            continue;
        if (import->address == memory->address && import->bytes == memory->bytes &&
            import->buffer_id == memory->buffer_id)
            return import;
        if (import->state == OPEN && import->holders == NULL)
            begin_close(imports, import);
        *busy_p = *busy_p || import->state != CLOSING;
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
    if (memory->kind != HVI_DEVICE_LEGACY) {
        snprintf(text_p, text_size,
                 "memory of kind %u cannot be imported yet, but that of cudaMalloc", memory->kind);
        return HVI_ERR_UNSUPPORTED;
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

/* HVI_OK, with an import that is being opened. `exporter` is held by it then. */
static int begin_open(struct gpu_imports *imports, struct gpu_exporter *exporter,
                      const struct hvi_device_memory *memory, struct gpu_import **import_p)
{
    struct gpu_import *import = calloc(1, sizeof(*import));

    if (import == NULL)
        return HVI_ERR_NO_MEMORY;
    import->exporter = exporter;
    import->address = memory->address;
    import->bytes = memory->bytes;
    import->buffer_id = memory->buffer_id;
    memcpy(import->handle.bytes, memory->handle, sizeof(import->handle.bytes));
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
                      struct gpu_import **import_p, char *text_p, size_t text_size)
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
        if (status == HVI_OK)
            status = begin_open(imports, exporter, &said->memory, import_p);
    }
    exporter_put(exporter);
    return status;
}

/* HVI_OK or HVI_ERR_NO_MEMORY. */
static int park(struct gpu_imports *imports, void *owner, const struct hvi_gpu_import *said)
{
    struct gpu_parked *parked = calloc(1, sizeof(*parked));

    if (parked == NULL)
        return HVI_ERR_NO_MEMORY;
    parked->owner = owner;
    parked->said = *said;
    parked->said.memory.chunks = NULL;
    parked->said.memory.chunk_count = 0;
    DL_APPEND(imports->parked, parked);
    return HVI_OK;
}

static void add(struct gpu_imports *imports, void *owner, const struct hvi_gpu_import *said)
{
    struct gpu_import *import = NULL;
    struct holder *holder = calloc(1, sizeof(*holder));
    char text[300] = "";
    int status =
        holder == NULL ? HVI_ERR_NO_MEMORY : get_import(imports, said, &import, text, sizeof(text));

    if (status == HVI_OK) {
        *holder = (struct holder){.owner = owner, .number = said->import, .request = said->request};
        DL_APPEND(import->holders, holder);
        if (import->state == OPEN)
            imports->answer(owner, said->request, HVI_OK, "");
        return;
    }
    free(holder);
    if (status == HVI_ERR_BUSY)
        status = park(imports, owner, said);
    if (status != HVI_OK)
        imports->answer(owner, said->request, status, text);
}

/* Something was given back. Those that still wait are parked again, in their order. */
static void unpark(struct gpu_imports *imports)
{
    struct gpu_parked *waiting = imports->parked, *parked;

    imports->parked = NULL;
    while ((parked = waiting) != NULL) {
        DL_DELETE(waiting, parked);
        add(imports, parked->owner, &parked->said);
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
        free(parked);
    }
}

bool gpu_import_add(struct gpu_imports *imports, void *owner, const struct hvi_gpu_import *said)
{
    struct gpu_import *import = NULL;

    if (said->more)
        return said->memory.kind != HVI_DEVICE_LEGACY; /* the last piece is answered: UNSUPPORTED */
    if (is_parked(imports, owner, said->import) ||
        find_holder(imports, owner, said->import, &import) != NULL)
        return false;
    add(imports, owner, said);
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
    import->releaser = owner;
    import->release = said->request;
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
    *base_p = import->base;
    *bytes_p = import->bytes;
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
    memcpy(imports->uuid, uuid, sizeof(imports->uuid));
    pthread_mutex_init(&imports->lock, NULL);
    pthread_cond_init(&imports->more, NULL);
    imports->calls.cuda = cuda;
    imports->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    imports->cuda = cuda;
    if (imports->event_fd >= 0 &&
        sd_event_add_io(event, &imports->finished, imports->event_fd, EPOLLIN, on_finished,
                        imports) >= 0 &&
        pthread_create(&imports->thread, NULL, run, imports) == 0)
        return HVI_OK;
    imports->finished = sd_event_source_disable_unref(imports->finished);
    if (imports->event_fd >= 0)
        close(imports->event_fd);
    imports->cuda = NULL;
    return HVI_ERR_NO_MEMORY;
}

void gpu_imports_close(struct gpu_imports *imports)
{
    struct gpu_import *import, *after;

    if (imports->cuda == NULL)
        return;
    DL_FOREACH_SAFE(imports->imports, import, after)
    {
        if (import->state == OPEN && import->holders == NULL)
            begin_close(imports, import);
    }
    pthread_mutex_lock(&imports->lock);
    imports->stop = true;
    pthread_cond_signal(&imports->more);
    pthread_mutex_unlock(&imports->lock);
    pthread_join(imports->thread, NULL);
    reap(imports); /* what was opened last is closed here */
    work(imports);
    reap(imports);
    HVI_ASSERT(imports->imports == NULL && imports->waiting == NULL);
    imports->finished = sd_event_source_disable_unref(imports->finished);
    close(imports->event_fd);
    imports->cuda = NULL;
}
