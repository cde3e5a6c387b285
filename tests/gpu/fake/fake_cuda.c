/* SPDX-License-Identifier: Apache-2.0
 * A libcuda.so.1 without a GPU: devices, contexts, streams and events. With FAKE_BARE it has only what is asked first, for the
 * tests of refusals; FAKE_CUDA_VERSION (13000), FAKE_CUDA_DEVICES (0) and FAKE_CUDA_FREE_MIB (600) say what it shows.
 *
 * It enforces what the probes' authors believe of the driver: a call needs a current context; an error of a kernel stays; a
 * wait captures an event's latest record; a value that is never written is waited for for ever; and streams share
 * CUDA_DEVICE_MAX_CONNECTIONS queues, each of which works strictly in order. It knows nothing of time slicing or cost.
 *
 * So that the probes can be seen to give the other answer: FAKE_CUDA_CLOSE_WAITS (cuIpcCloseMemHandle waits for all streams),
 * FAKE_CUDA_DEAF_TO_HOST (no store into host memory releases a wait), FAKE_CUDA_NEW_HANDLES (handles never repeat),
 * FAKE_CUDA_WRONG_REDUCE. */
#include "fake_cuda.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

int fake_variable(const char *name, int otherwise)
{
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
}

CUresult cuDriverGetVersion(int *version)
{
    *version = fake_variable("FAKE_CUDA_VERSION", 13000);
    return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char **name_p)
{
    switch (error) {
    case CUDA_SUCCESS:
        *name_p = "CUDA_SUCCESS";
        return CUDA_SUCCESS;
    case CUDA_ERROR_NO_DEVICE:
        *name_p = "CUDA_ERROR_NO_DEVICE";
        return CUDA_SUCCESS;
    case CUDA_ERROR_INVALID_CONTEXT:
        *name_p = "CUDA_ERROR_INVALID_CONTEXT";
        return CUDA_SUCCESS;
    case CUDA_ERROR_ILLEGAL_ADDRESS:
        *name_p = "CUDA_ERROR_ILLEGAL_ADDRESS";
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

static int is_initialised;

CUresult cuInit(unsigned int flags)
{
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    is_initialised = fake_variable("FAKE_CUDA_DEVICES", 0) > 0;
    return is_initialised ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

#ifndef FAKE_BARE
static _Thread_local CUcontext current;
static _Atomic int sticky;

CUresult fake_error(void)
{
    return (CUresult)atomic_load(&sticky);
}

void fake_break(CUresult error)
{
    atomic_store(&sticky, (int)error);
}

CUresult fake_ready(void)
{
    if (!is_initialised)
        return CUDA_ERROR_NOT_INITIALIZED;
    return current ? fake_error() : CUDA_ERROR_INVALID_CONTEXT;
}

void fake_nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
}

/* --- the device --- */
CUresult cuDeviceGetCount(int *count)
{
    *count = fake_variable("FAKE_CUDA_DEVICES", 0);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    *device = ordinal;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int len, CUdevice device)
{
    snprintf(name, (size_t)len, "No GPU %d", device);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
    memset(uuid, device, sizeof *uuid);
    return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(size_t *bytes, CUdevice device)
{
    (void)device;
    *bytes = (size_t)fake_variable("FAKE_CUDA_FREE_MIB", 600) << 20;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    char path[512];
    (void)device;
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_MODE:
        *value = CU_COMPUTEMODE_DEFAULT;
        break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        *value = 2;
        break;
    case CU_DEVICE_ATTRIBUTE_MPS_ENABLED:
        snprintf(path, sizeof path, "%s/nvidia-cuda-mps-control.pid",
                 getenv("CUDA_MPS_PIPE_DIRECTORY"));
        *value = access(path, R_OK) == 0;
        break;
    default:
        *value = 1;
    }
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    (void)device;
    *context = (CUcontext)(uintptr_t)1;
    return is_initialised ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult cuCtxSetCurrent(CUcontext context)
{
    current = context;
    return CUDA_SUCCESS;
}

/* --- streams --- */
struct work {
    struct work *next;
    CUstream stream;
    void (*run)(void *);
    char data[640];
};

struct queue {
    pthread_mutex_t lock;
    pthread_cond_t more;
    struct work *first, **end;
    int has_thread;
};

struct CUstream_st {
    struct queue *queue;
    _Atomic int pending;
};

static struct queue queues[32];
static _Atomic int streams_made, pending_in_all;

int fake_pending(void)
{
    return atomic_load(&pending_in_all);
}

static void *serve(void *argument)
{
    struct queue *q = argument;
    for (;;) {
        pthread_mutex_lock(&q->lock);
        while (!q->first)
            pthread_cond_wait(&q->more, &q->lock);
        struct work *w = q->first;
        q->first = w->next;
        if (!q->first)
            q->end = &q->first;
        pthread_mutex_unlock(&q->lock);
        if (!fake_error())
            w->run(w->data);
        atomic_fetch_sub(&pending_in_all, 1);
        atomic_fetch_sub(&w->stream->pending, 1);
        free(w);
    }
    return NULL;
}

void fake_cuda_enqueue(CUstream s, void (*run)(void *), const void *data, size_t bytes)
{
    struct work *w = calloc(1, sizeof *w);
    if (!w || bytes > sizeof w->data)
        abort();
    w->stream = s;
    w->run = run;
    if (bytes)
        memcpy(w->data, data, bytes);
    atomic_fetch_add(&s->pending, 1);
    atomic_fetch_add(&pending_in_all, 1);
    pthread_mutex_lock(&s->queue->lock);
    *s->queue->end = w;
    s->queue->end = &w->next;
    pthread_cond_signal(&s->queue->more);
    pthread_mutex_unlock(&s->queue->lock);
}

CUresult cuStreamCreate(CUstream *stream, unsigned int flags)
{
    pthread_t thread;
    int connections = fake_variable("CUDA_DEVICE_MAX_CONNECTIONS", 8);
    if (fake_ready() || flags != CU_STREAM_NON_BLOCKING)
        return fake_ready() ? fake_ready() : CUDA_ERROR_INVALID_VALUE;
    struct queue *q = &queues[atomic_fetch_add(&streams_made, 1) % connections];
    if (!q->has_thread) {
        q->has_thread = 1;
        q->end = &q->first;
        pthread_mutex_init(&q->lock, NULL);
        pthread_cond_init(&q->more, NULL);
        if (pthread_create(&thread, NULL, serve, q) != 0)
            return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *stream = calloc(1, sizeof **stream);
    (*stream)->queue = q;
    return CUDA_SUCCESS;
}

CUresult cuStreamDestroy(CUstream s)
{
    if (atomic_load(&s->pending))
        return CUDA_ERROR_UNKNOWN; /* legal for the driver, but no probe means to do it */
    free(s);
    return fake_ready();
}

CUresult cuStreamQuery(CUstream s)
{
    CUresult error = fake_ready();
    return error ? error : atomic_load(&s->pending) ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

CUresult cuCtxSynchronize(void)
{
    return fake_ready();
}

struct value {
    _Atomic uint64_t *at;
    uint64_t value;
};

static void run_wait(void *data)
{
    struct value *v = data;
    int is_deaf = fake_variable("FAKE_CUDA_DEAF_TO_HOST", 0) && fake_is_host((uintptr_t)v->at);
    while (is_deaf || (int64_t)(atomic_load(v->at) - v->value) < 0)
        fake_nap();
}

static void run_write(void *data)
{
    struct value *v = data;
    atomic_store(v->at, v->value);
}

CUresult cuStreamWaitValue64(CUstream s, CUdeviceptr p, cuuint64_t value, unsigned int flags)
{
    struct value v = {(_Atomic uint64_t *)(uintptr_t)p, value};
    if (fake_ready() || flags != CU_STREAM_WAIT_VALUE_GEQ || p % 8)
        return fake_ready() ? fake_ready() : CUDA_ERROR_INVALID_VALUE;
    fake_cuda_enqueue(s, run_wait, &v, sizeof v);
    return CUDA_SUCCESS;
}

CUresult cuStreamWriteValue64(CUstream s, CUdeviceptr p, cuuint64_t value, unsigned int flags)
{
    struct value v = {(_Atomic uint64_t *)(uintptr_t)p, value};
    if (fake_ready() || flags != CU_STREAM_WRITE_VALUE_DEFAULT || p % 8)
        return fake_ready() ? fake_ready() : CUDA_ERROR_INVALID_VALUE;
    fake_cuda_enqueue(s, run_write, &v, sizeof v);
    return CUDA_SUCCESS;
}

/* --- events: a page that another process may map --- */
struct record {
    _Atomic uint64_t asked, done;
    double us;
};

struct CUevent_st {
    struct record *record;
    int fd;
    unsigned flags;
};

struct event_handle {
    int pid, fd;
};

static CUresult make_event(CUevent *event, int fd, unsigned flags)
{
    struct CUevent_st *e = calloc(1, sizeof *e);
    e->fd = fd;
    e->flags = flags;
    e->record = mmap(NULL, sizeof *e->record, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    *event = e;
    return e->record == MAP_FAILED ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent *event, unsigned int flags)
{
    int fd = memfd_create("event", MFD_CLOEXEC);
    if (fake_ready() || ftruncate(fd, sizeof(struct record)) < 0)
        return fake_ready() ? fake_ready() : CUDA_ERROR_OUT_OF_MEMORY;
    return make_event(event, fd, flags);
}

CUresult cuEventDestroy(CUevent e)
{
    munmap(e->record, sizeof *e->record);
    close(e->fd);
    free(e);
    return fake_ready();
}

struct event_work {
    struct record *record;
    uint64_t number;
};

static void run_record(void *data)
{
    struct event_work *w = data;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    w->record->us = (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
    atomic_store(&w->record->done, w->number);
}

static void run_event_wait(void *data)
{
    struct event_work *w = data;
    while (atomic_load(&w->record->done) < w->number)
        fake_nap();
}

CUresult cuEventRecord(CUevent e, CUstream s)
{
    struct event_work w = {e->record, atomic_fetch_add(&e->record->asked, 1) + 1};
    fake_cuda_enqueue(s, run_record, &w, sizeof w);
    return fake_ready();
}

CUresult cuStreamWaitEvent(CUstream s, CUevent e, unsigned int flags)
{
    struct event_work w = {e->record, atomic_load(&e->record->asked)};
    if (fake_ready() || flags != CU_EVENT_WAIT_DEFAULT)
        return fake_ready() ? fake_ready() : CUDA_ERROR_INVALID_VALUE;
    fake_cuda_enqueue(s, run_event_wait, &w, sizeof w);
    return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime(float *ms, CUevent begin, CUevent end)
{
    if ((begin->flags | end->flags) & CU_EVENT_DISABLE_TIMING)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!atomic_load(&begin->record->done) || !atomic_load(&end->record->done))
        return CUDA_ERROR_NOT_READY;
    *ms = (float)((end->record->us - begin->record->us) / 1e3);
    return fake_ready();
}

CUresult cuIpcGetEventHandle(CUipcEventHandle *handle, CUevent e)
{
    struct event_handle h = {getpid(), e->fd};
    if (e->flags != (CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING))
        return CUDA_ERROR_INVALID_HANDLE;
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &h, sizeof h);
    return fake_ready();
}

CUresult cuIpcOpenEventHandle(CUevent *event, CUipcEventHandle handle)
{
    struct event_handle h;
    char path[64];
    memcpy(&h, &handle, sizeof h);
    snprintf(path, sizeof path, "/proc/%d/fd/%d", h.pid, h.fd);
    int fd = h.pid == getpid() ? -1 : open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    return make_event(event, fd, CU_EVENT_DISABLE_TIMING);
}

/* --- kernels --- */
struct launch {
    const struct fake_kernel *kernel;
    char name[64];
    union fake_arg a[6];
};

struct CUfunc_st {
    const struct fake_kernel *kernel;
    char name[64];
};

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    *module = (CUmodule)(uintptr_t)1;
    return fake_ready()                              ? fake_ready()
           : *(const uint32_t *)image == 0xba55ed50u ? CUDA_SUCCESS
                                                     : CUDA_ERROR_INVALID_IMAGE;
}

CUresult cuModuleGetFunction(CUfunction *f, CUmodule module, const char *name)
{
    const struct fake_kernel *kernel = fake_kernel_find(name);
    (void)module;
    if (!kernel)
        return CUDA_ERROR_NOT_FOUND;
    *f = calloc(1, sizeof **f);
    (*f)->kernel = kernel;
    snprintf((*f)->name, sizeof(*f)->name, "%s", name);
    return fake_ready();
}

static void run_launch(void *data)
{
    struct launch *l = data;
    l->kernel->run(l->name, l->a);
}

CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                        unsigned by, unsigned bz, unsigned shared, CUstream s, void **parameters,
                        void **extra)
{
    struct launch l = {.kernel = f->kernel};
    if (fake_ready() || !gx || gy * gz * by * bz != 1 || !bx || bx > 1024 || shared || extra)
        return fake_ready() ? fake_ready() : CUDA_ERROR_INVALID_VALUE;
    memcpy(l.name, f->name, sizeof l.name);
    for (int i = 0; f->kernel->arguments[i]; i++) {
        char kind = f->kernel->arguments[i];
        memcpy(&l.a[i], parameters[i], kind == '8' ? 8 : kind == '4' ? 4 : sizeof l.a[i].buffers);
    }
    fake_cuda_enqueue(s, run_launch, &l, sizeof l);
    return CUDA_SUCCESS;
}
#endif
