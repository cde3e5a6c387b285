/* SPDX-License-Identifier: Apache-2.0
 * The fake driver's memory. Each allocation is a memfd; a handle is {pid, descriptor}, opened through /proc. So handles repeat
 * after a free and an allocation, as reported of real drivers, and memory outlives its exporter while somebody maps it.
 * Enforced: handles open only in another process, and a second open of equal bytes gives the first mapping; a VMM mapping is
 * not accessible before cuMemSetAccess; what was not exportable at creation is not exported. */
#include "fake_cuda.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum kind { NONE, ALLOCATED, IMPORTED, POOLED, POOL_IMPORTED, HOST, RESERVED, MAPPED };

struct CUmemPoolHandle_st {
    int is_imported;
};

struct physical { /* what a CUmemGenericAllocationHandle points to */
    int fd, references, is_exportable;
    size_t bytes;
};

struct range {
    enum kind kind;
    char *base;
    size_t bytes;
    int fd, references;
    unsigned long long id;
    CUipcMemHandle handle; /* IMPORTED: as it was opened */
    struct physical *physical;
};

struct handle {
    int pid, fd;
    size_t bytes;
    unsigned long long number; /* with FAKE_CUDA_NEW_HANDLES */
};

static struct range ranges[256];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned long long last_id;
static size_t used;

static struct range *add(enum kind kind, char *base, size_t bytes, int fd)
{
    pthread_mutex_lock(&lock);
    struct range *r = ranges;
    while (r->kind != NONE)
        r++;
    *r = (struct range){
        .kind = kind, .base = base, .bytes = bytes, .fd = fd, .references = 1, .id = ++last_id};
    pthread_mutex_unlock(&lock);
    return r;
}

static struct range *find(uint64_t p, enum kind a, enum kind b)
{
    for (struct range *r = ranges; r < ranges + 256; r++) {
        if ((r->kind == a || r->kind == b) && p - (uint64_t)(uintptr_t)r->base < r->bytes)
            return r;
    }
    return NULL;
}

static void *map_fd(int fd, size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return p == MAP_FAILED ? NULL : p;
}

static CUresult allocate(CUdeviceptr *p, size_t bytes, enum kind kind)
{
    int fd = memfd_create("device memory", MFD_CLOEXEC);
    if (fake_ready())
        return fake_ready();
    if (used + bytes > (size_t)fake_variable("FAKE_CUDA_FREE_MIB", 600) << 20 ||
        ftruncate(fd, (off_t)bytes) < 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    char *base = map_fd(fd, bytes);
    if (!base)
        return CUDA_ERROR_OUT_OF_MEMORY;
    add(kind, base, bytes, fd);
    used += bytes;
    *p = (CUdeviceptr)(uintptr_t)base;
    return CUDA_SUCCESS;
}

static void drop(struct range *r)
{
    munmap(r->base, r->bytes);
    close(r->fd);
    if (r->kind == ALLOCATED || r->kind == POOLED)
        used -= r->bytes;
    r->kind = NONE;
}

CUresult cuMemAlloc(CUdeviceptr *p, size_t bytes)
{
    return allocate(p, bytes, ALLOCATED);
}

CUresult cuMemFree(CUdeviceptr p)
{
    struct range *r = find(p, ALLOCATED, POOL_IMPORTED);
    if (fake_ready() || !r || (uintptr_t)r->base != p)
        return fake_ready() ? fake_ready() : CUDA_ERROR_INVALID_VALUE;
    drop(r);
    return CUDA_SUCCESS;
}

CUresult cuMemGetInfo(size_t *free_bytes, size_t *total)
{
    *total = (size_t)fake_variable("FAKE_CUDA_FREE_MIB", 600) << 20;
    *free_bytes = *total - used;
    return fake_ready();
}

CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr p)
{
    struct range *r = find(p, ALLOCATED, POOLED);
    if (fake_ready() || !r || attribute != CU_POINTER_ATTRIBUTE_BUFFER_ID)
        return fake_ready() ? fake_ready() : CUDA_ERROR_INVALID_VALUE;
    *(unsigned long long *)data = r->id;
    return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange(CUdeviceptr *base, size_t *bytes, CUdeviceptr p)
{
    struct range *r = find(p, ALLOCATED, MAPPED);
    if (!r)
        return CUDA_ERROR_NOT_FOUND;
    *base = (CUdeviceptr)(uintptr_t)r->base;
    *bytes = r->bytes;
    return fake_ready();
}

/* --- host memory --- */
int fake_is_host(uint64_t p)
{
    return find(p, HOST, HOST) != NULL;
}

CUresult cuMemHostAlloc(void **p, size_t bytes, unsigned int flags)
{
    (void)flags;
    int fd = memfd_create("host memory", MFD_CLOEXEC);
    if (fake_ready() || ftruncate(fd, (off_t)bytes) < 0)
        return fake_ready() ? fake_ready() : CUDA_ERROR_OUT_OF_MEMORY;
    *p = map_fd(fd, bytes);
    add(HOST, *p, bytes, fd);
    return *p ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemFreeHost(void *p)
{
    struct range *r = find((uintptr_t)p, HOST, HOST);
    if (!r)
        return CUDA_ERROR_INVALID_VALUE;
    drop(r);
    return fake_ready();
}

CUresult cuMemHostRegister(void *p, size_t bytes, unsigned int flags)
{
    if (fake_ready() || !(flags & CU_MEMHOSTREGISTER_DEVICEMAP) || (uintptr_t)p % 4096)
        return fake_ready() ? fake_ready() : CUDA_ERROR_INVALID_VALUE;
    add(HOST, p, bytes, -1);
    return CUDA_SUCCESS;
}

CUresult cuMemHostUnregister(void *p)
{
    struct range *r = find((uintptr_t)p, HOST, HOST);
    if (!r)
        return CUDA_ERROR_INVALID_VALUE;
    r->kind = NONE;
    return fake_ready();
}

CUresult cuMemHostGetDevicePointer(CUdeviceptr *device, void *p, unsigned int flags)
{
    if (fake_ready() || flags || !find((uintptr_t)p, HOST, HOST))
        return fake_ready() ? fake_ready() : CUDA_ERROR_INVALID_VALUE;
    *device = (CUdeviceptr)(uintptr_t)p;
    return CUDA_SUCCESS;
}

/* --- copies --- */
struct copy {
    void *to;
    const void *from;
    size_t bytes;
    int value;
};

static void run_copy(void *data)
{
    struct copy *c = data;
    if (c->from)
        memcpy(c->to, c->from, c->bytes);
    else
        memset(c->to, c->value, c->bytes);
}

static CUresult copy(CUstream s, void *to, const void *from, size_t bytes, int value)
{
    struct copy c = {to, from, bytes, value};
    if (!fake_ready())
        fake_cuda_enqueue(s, run_copy, &c, sizeof c);
    return fake_ready();
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t bytes, CUstream s)
{
    return copy(s, (void *)(uintptr_t)to, from, bytes, 0);
}

CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t bytes, CUstream s)
{
    return copy(s, to, (void *)(uintptr_t)from, bytes, 0);
}

CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream s)
{
    return copy(s, (void *)(uintptr_t)to, (void *)(uintptr_t)from, bytes, 0);
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream s)
{
    return copy(s, (void *)(uintptr_t)to, NULL, count, value);
}

/* --- legacy IPC --- */
static int open_handle(const struct handle *h)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", h->pid, h->fd);
    return h->pid == getpid() ? -1 : open(path, O_RDWR | O_CLOEXEC);
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr p)
{
    struct range *r = find(p, ALLOCATED, ALLOCATED);
    if (fake_ready() || !r || (uintptr_t)r->base != p)
        return fake_ready() ? fake_ready() : CUDA_ERROR_INVALID_VALUE;
    struct handle h = {getpid(), r->fd, r->bytes,
                       fake_variable("FAKE_CUDA_NEW_HANDLES", 0) ? r->id : 0};
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &h, sizeof h);
    return CUDA_SUCCESS;
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *p, CUipcMemHandle handle, unsigned int flags)
{
    struct handle h;
    memcpy(&h, &handle, sizeof h);
    if (fake_ready() || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
        return fake_ready() ? fake_ready() : CUDA_ERROR_INVALID_VALUE;
    for (struct range *r = ranges; r < ranges + 256; r++) {
        if (r->kind == IMPORTED && memcmp(&r->handle, &handle, sizeof handle) == 0) {
            r->references++;
            *p = (CUdeviceptr)(uintptr_t)r->base;
            return CUDA_SUCCESS;
        }
    }
    int fd = open_handle(&h);
    if (fd < 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    struct range *r = add(IMPORTED, map_fd(fd, h.bytes), h.bytes, fd);
    r->handle = handle;
    *p = (CUdeviceptr)(uintptr_t)r->base;
    return CUDA_SUCCESS;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr p)
{
    struct range *r = find(p, IMPORTED, IMPORTED);
    if (fake_ready() || !r || (uintptr_t)r->base != p)
        return fake_ready() ? fake_ready() : CUDA_ERROR_INVALID_VALUE;
    while (fake_variable("FAKE_CUDA_CLOSE_WAITS", 0) && fake_pending())
        fake_nap();
    if (--r->references == 0)
        drop(r);
    return CUDA_SUCCESS;
}

/* --- virtual memory management --- */
CUresult cuMemGetAllocationGranularity(size_t *unit, const CUmemAllocationProp *prop,
                                       CUmemAllocationGranularity_flags option)
{
    (void)prop, (void)option;
    *unit = 2 << 20;
    return fake_ready();
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
                     const CUmemAllocationProp *prop, unsigned long long flags)
{
    if (fake_ready() || flags || bytes % (2 << 20) || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
        prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return fake_ready() ? fake_ready() : CUDA_ERROR_INVALID_VALUE;
    struct physical *p = calloc(1, sizeof *p);
    *p = (struct physical){memfd_create("physical", MFD_CLOEXEC), 1,
                           prop->requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                           bytes};
    *handle = (CUmemGenericAllocationHandle)(uintptr_t)p;
    return ftruncate(p->fd, (off_t)bytes) < 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

static void put(struct physical *p)
{
    if (--p->references > 0)
        return;
    close(p->fd);
    free(p);
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    put((struct physical *)(uintptr_t)handle);
    return fake_ready();
}

CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags)
{
    struct physical *p = (struct physical *)(uintptr_t)handle;
    if (fake_ready() || flags || !p->is_exportable ||
        type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return fake_ready() ? fake_ready() : CUDA_ERROR_INVALID_VALUE;
    *(int *)out = fcntl(p->fd, F_DUPFD_CLOEXEC, 0);
    return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *os_handle,
                                        CUmemAllocationHandleType type)
{
    struct stat st;
    int fd = fcntl((int)(intptr_t)os_handle, F_DUPFD_CLOEXEC, 0);
    if (fake_ready() || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || fstat(fd, &st) < 0)
        return fake_ready() ? fake_ready() : CUDA_ERROR_INVALID_VALUE;
    struct physical *p = calloc(1, sizeof *p);
    *p = (struct physical){fd, 1, 1, (size_t)st.st_size};
    *handle = (CUmemGenericAllocationHandle)(uintptr_t)p;
    return CUDA_SUCCESS;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *at)
{
    struct range *r = find((uintptr_t)at, MAPPED, MAPPED);
    if (!r)
        return CUDA_ERROR_INVALID_VALUE;
    r->physical->references++;
    *handle = (CUmemGenericAllocationHandle)(uintptr_t)r->physical;
    return fake_ready();
}

CUresult cuMemAddressReserve(CUdeviceptr *p, size_t bytes, size_t alignment, CUdeviceptr at,
                             unsigned long long flags)
{
    void *base = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (fake_ready() || alignment || at || flags || base == MAP_FAILED)
        return fake_ready() ? fake_ready() : CUDA_ERROR_INVALID_VALUE;
    add(RESERVED, base, bytes, -1);
    *p = (CUdeviceptr)(uintptr_t)base;
    return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr p, size_t bytes)
{
    struct range *r = find(p, RESERVED, RESERVED);
    if (!r || r->bytes != bytes || find(p, MAPPED, MAPPED))
        return CUDA_ERROR_INVALID_VALUE;
    drop(r);
    return fake_ready();
}

CUresult cuMemMap(CUdeviceptr p, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags)
{
    struct physical *physical = (struct physical *)(uintptr_t)handle;
    struct range *r = find(p, RESERVED, RESERVED);
    if (fake_ready() || offset || flags || bytes != physical->bytes || !r ||
        find(p, MAPPED, MAPPED) || p + bytes > (uintptr_t)r->base + r->bytes)
        return fake_ready() ? fake_ready() : CUDA_ERROR_INVALID_VALUE;
    char *base =
        mmap((void *)(uintptr_t)p, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, physical->fd, 0);
    if (base == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    physical->references++;
    add(MAPPED, base, bytes, -1)->physical = physical;
    return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr p, size_t bytes, const CUmemAccessDesc *access, size_t count)
{
    if (fake_ready() || count != 1 || access->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE ||
        !find(p, MAPPED, MAPPED))
        return fake_ready() ? fake_ready() : CUDA_ERROR_INVALID_VALUE;
    return mprotect((void *)(uintptr_t)p, bytes, PROT_READ | PROT_WRITE) < 0
               ? CUDA_ERROR_INVALID_VALUE
               : CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr p, size_t bytes)
{
    struct range *r = find(p, MAPPED, MAPPED);
    if (!r || (uintptr_t)r->base != p || r->bytes != bytes)
        return CUDA_ERROR_INVALID_VALUE;
    put(r->physical);
    r->kind = NONE;
    void *again = mmap((void *)(uintptr_t)p, bytes, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    return again == MAP_FAILED ? CUDA_ERROR_UNKNOWN : fake_ready();
}

/* --- pools --- */
CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props)
{
    if (fake_ready() || props->handleTypes != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
        props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
        props->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return fake_ready() ? fake_ready() : CUDA_ERROR_INVALID_VALUE;
    *pool = calloc(1, sizeof **pool);
    return CUDA_SUCCESS;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    free(pool);
    return fake_ready();
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *p, size_t bytes, CUmemoryPool pool, CUstream s)
{
    (void)s;
    return pool->is_imported ? CUDA_ERROR_INVALID_VALUE : allocate(p, bytes, POOLED);
}

CUresult cuMemFreeAsync(CUdeviceptr p, CUstream s)
{
    struct range *r = find(p, POOLED, POOL_IMPORTED);
    (void)s;
    if (fake_ready() || !r)
        return fake_ready() ? fake_ready() : CUDA_ERROR_INVALID_VALUE;
    drop(r);
    return CUDA_SUCCESS;
}

CUresult cuMemPoolExportToShareableHandle(void *out, CUmemoryPool pool,
                                          CUmemAllocationHandleType type, unsigned long long flags)
{
    if (flags || pool->is_imported || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_INVALID_VALUE;
    *(int *)out = memfd_create("pool", MFD_CLOEXEC);
    return fake_ready();
}

CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *os_handle,
                                            CUmemAllocationHandleType type,
                                            unsigned long long flags)
{
    struct stat st;
    if (flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
        fstat((int)(intptr_t)os_handle, &st) < 0)
        return CUDA_ERROR_INVALID_VALUE;
    *pool = calloc(1, sizeof **pool);
    (*pool)->is_imported = 1;
    return fake_ready();
}

CUresult cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool pool, CUmemLocation *location)
{
    (void)pool;
    *flags = CU_MEM_ACCESS_FLAGS_PROT_NONE; /* so that cuMemPoolSetAccess is called */
    return location->type == CU_MEM_LOCATION_TYPE_DEVICE ? fake_ready() : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *access, size_t count)
{
    (void)pool;
    return count == 1 && access->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE
               ? fake_ready()
               : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *data, CUdeviceptr p)
{
    struct range *r = find(p, POOLED, POOLED);
    if (!r)
        return CUDA_ERROR_INVALID_VALUE;
    struct handle h = {getpid(), r->fd, r->bytes, 0};
    memset(data, 0, sizeof *data);
    memcpy(data, &h, sizeof h);
    return fake_ready();
}

CUresult cuMemPoolImportPointer(CUdeviceptr *p, CUmemoryPool pool, CUmemPoolPtrExportData *data)
{
    struct handle h;
    memcpy(&h, data, sizeof h);
    int fd = open_handle(&h);
    if (!pool->is_imported || fd < 0)
        return CUDA_ERROR_INVALID_VALUE;
    char *base = map_fd(fd, h.bytes);
    add(POOL_IMPORTED, base, h.bytes, fd);
    *p = (CUdeviceptr)(uintptr_t)base;
    return fake_ready();
}
