/* SPDX-License-Identifier: Apache-2.0
 * Each GPU has an arena, so that most tensors lie in one allocation, at odd offsets, as with a framework's allocator. It starts
 * again from its beginning when nothing in it is used any more. A second arena is made by the library, so that NCCL can register it. */
#include "tests/harness/hvt_gpu.h"

#include "gpu/cuda.h"
#include "hvd/hvd.h"
#include "tests/fakegpu/cuda_abi.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define GPUS        16
#define ARENA_BYTES (48u << 20)
#define CHUNK       (2u << 20)
#define CHUNKS      64u /* of a segment, at most */
#define ALIGNMENT   256u
#define OWN_MAX     256

static struct hvi_cuda cuda;

static struct gpu {
    hvi_cu_context context;
    hvi_cu_stream copies;
    struct arena {
        hvi_cu_ptr base;
        size_t used, users;
    } arenas[2]; /* the driver's, the library's */
    struct segment {
        hvi_cu_ptr base;
        size_t chunks, used, users;
    } segments[2]; /* with descriptors, with fabric handles */
    void *pool;
} gpus[GPUS];

static struct {
    hvi_cu_stream stream;
    int gpu;
    _Atomic uint64_t *gate; /* in memory that the driver knows; NULL: none */
    hvi_cu_ptr gate_address;
    uint64_t gates; /* so many have been closed */
} streams[HVT_GPU_STREAMS];

static int stream_count;
static struct {
    hvi_cu_ptr address;
    bool is_pooled;
} own[OWN_MAX];

static void check(int error, const char *what)
{
    char text[64] = "";

    if (error == HVI_CU_OK)
        return;
    hvi_cuda_describe(&cuda, error, text, sizeof text);
    fprintf(stderr, "hvt-rank: %s: %s\n", what, text);
    exit(3);
}

static void open_driver(void)
{
    char text[512];

    if (hvi_cuda_open(false, &cuda, text, sizeof text) != 0) {
        fprintf(stderr, "hvt-rank: %s\n", text);
        exit(3);
    }
    check(cuda.init(0), "cuInit");
}

static struct gpu *enter(int number)
{
    struct gpu *gpu = &gpus[number];
    hvi_cu_device device;

    if (!cuda.library)
        open_driver();
    if (!gpu->context) {
        check(cuda.device_get(&device, number), "cuDeviceGet");
        check(cuda.context_retain(&gpu->context, device), "cuDevicePrimaryCtxRetain");
        check(cuda.context_set(gpu->context), "cuCtxSetCurrent");
        check(cuda.stream_create(&gpu->copies, HVI_CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    }
    check(cuda.context_set(gpu->context), "cuCtxSetCurrent");
    return gpu;
}

/* ---- memory ---- */

/* A function that gpu/cuda.def has not. */
static void *symbol(const char *name)
{
    void *found = dlsym(cuda.library, name);

    if (found)
        return found;
    fprintf(stderr, "hvt-rank: there is no %s\n", name);
    exit(3);
}

static hvi_cu_ptr alloc_pooled(struct gpu *gpu, int number, size_t bytes)
{
    int (*create)(void **, const struct fake_pool_properties *);
    int (*take)(hvi_cu_ptr *, size_t, void *, hvi_cu_stream);
    const struct fake_pool_properties properties = {
        .type = 1, .handle_types = HVI_CU_HANDLE_FD, .location = {1, number}};
    void *found = symbol("cuMemPoolCreate");
    hvi_cu_ptr address = 0;

    memcpy(&create, &found, sizeof create);
    found = symbol("cuMemAllocFromPoolAsync");
    memcpy(&take, &found, sizeof take);
    if (!gpu->pool)
        check(create(&gpu->pool, &properties), "cuMemPoolCreate");
    check(take(&address, bytes, gpu->pool, gpu->copies), "cuMemAllocFromPoolAsync");
    check(cuda.stream_synchronize(gpu->copies), "cuStreamSynchronize");
    return address;
}

static void free_pooled(hvi_cu_ptr address)
{
    int (*give)(hvi_cu_ptr, hvi_cu_stream);
    void *found = symbol("cuMemFreeAsync");

    memcpy(&give, &found, sizeof give);
    check(give(address, NULL), "cuMemFreeAsync");
}

static void *alloc_own(struct gpu *gpu, int number, size_t bytes, bool is_pooled)
{
    for (int i = 0; i < OWN_MAX; i++) {
        if (own[i].address)
            continue;
        own[i].is_pooled = is_pooled;
        if (is_pooled)
            own[i].address = alloc_pooled(gpu, number, bytes);
        else
            check(cuda.alloc(&own[i].address, bytes), "cuMemAlloc");
        return (void *)(uintptr_t)own[i].address;
    }
    fputs("hvt-rank: too many allocations\n", stderr);
    exit(3);
}

/* ---- a segment that grows ---- */

static void map_chunk(int number, hvi_cu_ptr at, int handle_types)
{
    int (*create)(hvi_cu_allocation *, size_t, const struct hvi_cu_allocation_properties *,
                  uint64_t);
    const struct hvi_cu_allocation_properties properties = {
        .type = 1, .handle_types = handle_types, .location = {1, number}};
    const struct hvi_cu_access access = {{1, number}, 3};
    void *found = symbol("cuMemCreate");
    hvi_cu_allocation chunk;

    memcpy(&create, &found, sizeof create);
    check(create(&chunk, CHUNK, &properties, 0), "cuMemCreate");
    check(cuda.map(at, CHUNK, 0, chunk, 0), "cuMemMap");
    check(cuda.allocation_release(chunk), "cuMemRelease");
    check(cuda.set_access(at, CHUNK, &access, 1), "cuMemSetAccess");
}

/* Nothing in it is used. */
static void shrink(struct segment *segment)
{
    for (size_t i = 0; i < segment->chunks; i++)
        check(cuda.unmap(segment->base + i * CHUNK, CHUNK), "cuMemUnmap");
    segment->chunks = segment->used = 0;
}

static void *alloc_in_segment(struct segment *segment, int number, size_t bytes, int handle_types)
{
    if (!segment->base)
        check(cuda.reserve(&segment->base, CHUNKS * (size_t)CHUNK, 0, 0, 0), "cuMemAddressReserve");
    if (bytes > CHUNKS * (size_t)CHUNK - segment->used) {
        fputs("hvt-rank: the segment is full\n", stderr);
        exit(3);
    }
    segment->users++;
    segment->used += bytes;
    while (segment->chunks * CHUNK < segment->used)
        map_chunk(number, segment->base + segment->chunks++ * CHUNK, handle_types);
    return (void *)(uintptr_t)(segment->base + segment->used - bytes);
}

static bool free_in_segment(const void *data)
{
    for (int i = 0; i < 2 * GPUS; i++) {
        struct segment *segment = &gpus[i / 2].segments[i % 2];
        if (!segment->base || (uintptr_t)data - segment->base >= CHUNKS * (size_t)CHUNK)
            continue;
        enter(i / 2);
        if (--segment->users == 0)
            shrink(segment);
        return true;
    }
    return false;
}

static void *alloc_in_arena(int number, struct arena *arena, size_t bytes, bool is_made)
{
    void *made = NULL;

    if (!arena->base && is_made && hvd_device_alloc(ARENA_BYTES, number, &made) != HVD_OK) {
        fprintf(stderr, "hvt-rank: %s\n", hvd_last_error());
        exit(3);
    }
    if (!arena->base && is_made)
        arena->base = (uintptr_t)made;
    if (!arena->base)
        check(cuda.alloc(&arena->base, ARENA_BYTES), "cuMemAlloc");
    if (arena->users++ == 0)
        arena->used = 0;
    if (bytes > ARENA_BYTES - arena->used) {
        fputs("hvt-rank: the arena is full\n", stderr);
        exit(3);
    }
    arena->used += bytes;
    return (void *)(uintptr_t)(arena->base + arena->used - bytes);
}

void *hvt_gpu_alloc(int number, size_t bytes, enum hvt_gpu_kind kind)
{
    struct gpu *gpu = enter(number);

    bytes = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT + ALIGNMENT;
    if (kind == HVT_GPU_SEGMENT)
        return alloc_in_segment(&gpu->segments[0], number, bytes, HVI_CU_HANDLE_FD);
    if (kind == HVT_GPU_FABRIC)
        return alloc_in_segment(&gpu->segments[1], number, bytes, HVI_CU_HANDLE_FABRIC);
    if ((kind != HVT_GPU_ARENA && kind != HVT_GPU_MADE) || bytes > ARENA_BYTES)
        return alloc_own(gpu, number, bytes, kind == HVT_GPU_POOL);
    return alloc_in_arena(number, &gpu->arenas[kind == HVT_GPU_MADE], bytes, kind == HVT_GPU_MADE);
}

static struct arena *arena_of(const void *data)
{
    for (int i = 0; i < 2 * GPUS; i++) {
        struct arena *arena = &gpus[i / 2].arenas[i % 2];
        if (arena->base && (uintptr_t)data - arena->base < ARENA_BYTES)
            return arena;
    }
    return NULL;
}

void hvt_gpu_free(void *data, void (*forget)(void *user, void *data), void *user)
{
    struct arena *arena = arena_of(data);

    if (arena) {
        arena->users--;
        return;
    }
    if (free_in_segment(data))
        return;
    for (int i = 0; i < OWN_MAX; i++) {
        if (own[i].address != (uintptr_t)data)
            continue;
        if (forget)
            forget(user, data);
        if (own[i].is_pooled)
            free_pooled(own[i].address);
        else
            check(cuda.free(own[i].address), "cuMemFree");
        own[i].address = 0;
    }
}

/* ---- streams ---- */

int hvt_gpu_stream(int number)
{
    enter(number);
    if (stream_count == HVT_GPU_STREAMS) {
        fputs("hvt-rank: too many streams\n", stderr);
        exit(3);
    }
    check(cuda.stream_create(&streams[stream_count].stream, HVI_CU_STREAM_NON_BLOCKING),
          "cuStreamCreate");
    streams[stream_count].gpu = number;
    return stream_count++;
}

void *hvt_gpu_handle(int stream)
{
    return stream < 0 ? NULL : streams[stream].stream;
}

static void make_gate(int stream)
{
    void *page = aligned_alloc(4096, 4096);

    if (!page)
        abort();
    streams[stream].gate = page;
    atomic_init(streams[stream].gate, 0);
    check(cuda.host_register(page, 4096, HVI_CU_HOST_PORTABLE | HVI_CU_HOST_DEVICEMAP),
          "cuMemHostRegister");
    check(cuda.host_pointer(&streams[stream].gate_address, page, 0), "cuMemHostGetDevicePointer");
}

void hvt_gpu_gate(int stream)
{
    enter(streams[stream].gpu);
    if (!streams[stream].gate)
        make_gate(stream);
    check(cuda.wait64(streams[stream].stream, streams[stream].gate_address, ++streams[stream].gates,
                      0),
          "cuStreamWaitValue64");
}

void hvt_gpu_open(int stream)
{
    atomic_store(streams[stream].gate, streams[stream].gates);
}

static int64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

bool hvt_gpu_drain(int stream, int64_t timeout_ms)
{
    const struct timespec nap = {.tv_nsec = 100000};
    const int64_t end_ms = now_ms() + timeout_ms;

    enter(streams[stream].gpu);
    for (;;) {
        int error = cuda.stream_query(streams[stream].stream);
        if (error == HVI_CU_OK)
            return true;
        if (error != HVI_CU_NOT_READY)
            check(error, "cuStreamQuery");
        if (now_ms() >= end_ms)
            return false;
        nanosleep(&nap, NULL);
    }
}

/* ---- copies ---- */

static int device_of(const void *data)
{
    int attribute = HVI_CU_POINTER_DEVICE, device = -1;
    void *place = &device;

    check(cuda.pointer_attributes(1, &attribute, &place, (uintptr_t)data),
          "cuPointerGetAttributes");
    return device;
}

void hvt_gpu_copy_in(int stream, void *to, const void *from, size_t bytes)
{
    struct gpu *gpu = enter(stream < 0 ? device_of(to) : streams[stream].gpu);
    hvi_cu_stream by = stream < 0 ? gpu->copies : streams[stream].stream;

    check(cuda.copy_in((uintptr_t)to, from, bytes, by), "cuMemcpyHtoDAsync");
    if (stream < 0)
        check(cuda.stream_synchronize(by), "cuStreamSynchronize");
}

void hvt_gpu_copy_out(int stream, void *to, const void *from, size_t bytes)
{
    struct gpu *gpu = enter(stream < 0 ? device_of(from) : streams[stream].gpu);
    hvi_cu_stream by = stream < 0 ? gpu->copies : streams[stream].stream;

    check(cuda.copy_out(to, (uintptr_t)from, bytes, by), "cuMemcpyDtoHAsync");
    if (stream < 0)
        check(cuda.stream_synchronize(by), "cuStreamSynchronize");
}
