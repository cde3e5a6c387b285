/* SPDX-License-Identifier: Apache-2.0
 * libcuda.so.1 by dlopen, the primary context, and the few calls that several probes share.
 *
 * The order in cu_attach is the order of the refusals: no library; a library too old, which it can say without being
 * initialised (cuDriverGetVersion is the one call allowed before cuInit); no device; a function missing; a device that lacks
 * what the probe needs. The primary context is the one NCCL's and PyTorch's runtimes use too. */
#include "probe_cuda.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The driver API promises that a driver of the same major version runs what this toolkit made. */
#define NEEDED_VERSION (CUDA_VERSION / 1000 * 1000)
#define TEXT(x)        TEXT_OF(x)
#define TEXT_OF(x)     #x

__asm__(".section .rodata\n"
        ".balign 16\n"
        ".globl probe_fatbin\n"
        "probe_fatbin:\n"
        ".incbin \"" PROBE_FATBIN "\"\n"
        ".byte 0\n"
        ".previous\n");
extern const unsigned char probe_fatbin[];

struct cu_api cu;
CUdevice cu_device;
static CUcontext context;
static CUmodule module;

const char *cu_error(CUresult result)
{
    const char *name = NULL;
    if (cu.cuGetErrorName && cu.cuGetErrorName(result, &name) == CUDA_SUCCESS && name)
        return name;
    static char number[32];
    snprintf(number, sizeof number, "CUresult %d", (int)result);
    return number;
}

void cu_must(CUresult result, const char *what)
{
    if (result != CUDA_SUCCESS)
        probe_fail("%s: %s", what, cu_error(result));
}

static void *symbol(void *library, const char *name, const char *have)
{
    void *p = dlsym(library, name);
    if (!p)
        probe_refuse("driver too old: have %s without %s, need CUDA %d.%d", have, name,
                     NEEDED_VERSION / 1000, NEEDED_VERSION % 1000 / 10);
    return p;
}

/* A pointer to data as a pointer to a function: POSIX allows it, ISO C does not. */
static void set(void *slot, void *p)
{
    memcpy(slot, &p, sizeof p);
}

static void load_driver(void)
{
    char have[64] = "an unknown one";
    int version = 0;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (!library)
        probe_refuse("no NVIDIA driver: %s", dlerror());
    set(&cu.cuDriverGetVersion, symbol(library, "cuDriverGetVersion", have));
    set(&cu.cuGetErrorName, symbol(library, "cuGetErrorName", have));
    CUresult result = cu.cuDriverGetVersion(&version);
    if (result == CUDA_ERROR_STUB_LIBRARY)
        probe_refuse("no NVIDIA driver: libcuda.so.1 is the toolkit's stub");
    CUresult none = CUDA_ERROR_NO_DEVICE;
    if (result != CUDA_SUCCESS && result != none)
        probe_refuse("no NVIDIA driver: cuDriverGetVersion: %s", cu_error(result));
    snprintf(have, sizeof have, "CUDA %d.%d", version / 1000, version % 1000 / 10);
    if (version < NEEDED_VERSION)
        probe_refuse("driver too old: have %s, need CUDA %d.%d", have, NEEDED_VERSION / 1000,
                     NEEDED_VERSION % 1000 / 10);
    set(&cu.cuInit, symbol(library, "cuInit", have));
    result = cu.cuInit(0);
    if (result == CUDA_ERROR_NO_DEVICE)
        probe_refuse("no NVIDIA device: the driver (%s) sees none", have);
    if (result == CUDA_ERROR_STUB_LIBRARY)
        probe_refuse("no NVIDIA driver: libcuda.so.1 is the toolkit's stub");
    if (result != CUDA_SUCCESS)
        probe_refuse("no NVIDIA driver that works: cuInit: %s", cu_error(result));
#define HVI_ROW(f) set(&cu.f, symbol(library, TEXT(f), have));
#include "probe_cuda.def"
#undef HVI_ROW
    probe_fact("cuda_driver", have + strlen("CUDA "));
}

int cu_attribute(CUdevice_attribute a)
{
    int value = 0;
    return cu.cuDeviceGetAttribute(&value, a, cu_device) == CUDA_SUCCESS ? value : 0;
}

static void tell_facts(void)
{
    char text[128];
    CUuuid uuid;
    size_t bytes;
    CU(cuDeviceGetName, text, sizeof text, cu_device);
    probe_fact("device", text);
    CU(cuDeviceGetUuid, &uuid, cu_device);
    for (int i = 0; i < 16; i++)
        snprintf(text + 2 * i, 3, "%02x", (unsigned char)uuid.bytes[i]);
    probe_fact("uuid", text);
    CU(cuDeviceTotalMem, &bytes, cu_device);
    snprintf(text, sizeof text, "%zu MiB", bytes >> 20);
    probe_fact("memory", text);
    snprintf(text, sizeof text, "%d.%d, %d SMs",
             cu_attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
             cu_attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
             cu_attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT));
    probe_fact("compute_capability", text);
    snprintf(text, sizeof text, "%d.%d", CUDA_VERSION / 1000, CUDA_VERSION % 1000 / 10);
    probe_fact("cuda_toolkit", text);
    probe_fact("memops_64_bit",
               cu_attribute(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS) ? "yes" : "no");
    FILE *f = fopen("/sys/module/nvidia/version", "r");
    if (f && fgets(text, sizeof text, f)) {
        text[strcspn(text, "\n")] = 0;
        probe_fact("driver", text);
    }
    if (f)
        fclose(f);
}

static void want(unsigned needs, unsigned bit, CUdevice_attribute a, const char *what)
{
    if ((needs & bit) && !cu_attribute(a))
        probe_refuse("the device has no %s", what);
}

void cu_attach(const struct probe_options *o, unsigned needs)
{
    int count = 0;
    probe_step("loading the driver");
    load_driver();
    CU(cuDeviceGetCount, &count);
    if (o->device >= count)
        probe_refuse("no device %d: the driver shows %d", o->device, count);
    CU(cuDeviceGet, &cu_device, o->device);
    tell_facts();
    want(needs, CU_NEEDS_IPC, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING,
         "unified addressing, which CUDA IPC needs");
    want(needs, CU_NEEDS_IPC, CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, "CUDA IPC");
    want(needs, CU_NEEDS_VMM, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
         "virtual memory management");
    want(needs, CU_NEEDS_VMM, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
         "memory handles by descriptor");
    want(needs, CU_NEEDS_POOLS, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, "memory pools");
    int mode = cu_attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_MODE);
    if (mode == CU_COMPUTEMODE_PROHIBITED ||
        ((needs & CU_NEEDS_TWO_PROCESSES) && mode != CU_COMPUTEMODE_DEFAULT))
        probe_refuse("the device is in compute mode %d: two processes cannot use it", mode);
    probe_step("making the context");
    CU(cuDevicePrimaryCtxRetain, &context, cu_device);
    CU(cuCtxSetCurrent, context);
    CU(cuModuleLoadData, &module, probe_fatbin);
    if (o->is_check)
        _exit(PROBE_OK);
}

void cu_enter(void)
{
    CU(cuCtxSetCurrent, context);
}

int cu_wait(CUstream s, double wait_s)
{
    double end = probe_now_us() + wait_s * 1e6;
    for (;;) {
        CUresult result = cu.cuStreamQuery(s);
        if (result == CUDA_SUCCESS)
            return 1;
        if (result != CUDA_ERROR_NOT_READY)
            cu_must(result, "cuStreamQuery");
        if (probe_now_us() > end)
            return 0;
    }
}

void cu_settle(CUstream s, const char *what)
{
    if (!cu_wait(s, PROBE_WAIT_S))
        probe_fail("not done after %g s: %s", PROBE_WAIT_S, what);
}

CUstream cu_stream(void)
{
    CUstream s;
    CU(cuStreamCreate, &s, CU_STREAM_NON_BLOCKING);
    return s;
}

CUdeviceptr cu_alloc(size_t bytes)
{
    CUdeviceptr p;
    CU(cuMemAlloc, &p, bytes);
    return p;
}

double cu_free_mib(void)
{
    size_t free_bytes, total;
    CU(cuMemGetInfo, &free_bytes, &total);
    return (double)free_bytes / 1048576;
}

CUdeviceptr cu_ipc_open(const void *handle_bytes)
{
    CUipcMemHandle handle;
    CUdeviceptr p;
    memcpy(&handle, handle_bytes, sizeof handle);
    CU(cuIpcOpenMemHandle, &p, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    return p;
}

CUfunction cu_kernel(const char *name)
{
    CUfunction f;
    cu_must(cu.cuModuleGetFunction(&f, module, name), name);
    return f;
}

void cu_launch(CUfunction f, unsigned grid, unsigned block, CUstream s, void **arguments)
{
    CU(cuLaunchKernel, f, grid, 1, 1, block, 1, 1, 0, s, arguments, NULL);
}

void cu_touch(CUstream s, CUdeviceptr word)
{
    static CUfunction f;
    if (!f)
        f = cu_kernel("probe_touch");
    cu_launch(f, 1, 1, s, (void *[]){&word});
}

void cu_work(CUstream s, unsigned iterations, CUdeviceptr sink)
{
    static CUfunction f;
    static unsigned grid;
    if (!f) {
        f = cu_kernel("probe_work");
        grid = 2 * (unsigned)cu_attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    }
    cu_launch(f, grid, 1024, s, (void *[]){&iterations, &sink});
}

unsigned cu_work_for(double us, CUdeviceptr sink)
{
    CUstream s = cu_stream();
    unsigned iterations = 20000;
    double took = 0;
    for (int i = 0; i < 3; i++) {
        double began = probe_now_us();
        cu_work(s, iterations, sink);
        cu_settle(s, "a kernel of arithmetic");
        took = probe_now_us() - began;
    }
    CU(cuStreamDestroy, s);
    double wanted = iterations * us / took;
    return wanted < 1 ? 1 : wanted > 4e9 ? 4000000000u : (unsigned)wanted;
}

void cu_fill(CUstream s, CUdeviceptr p, size_t words, uint32_t seed)
{
    unsigned long long n = words;
    cu_launch(cu_kernel("probe_fill"), 512, 256, s, (void *[]){&p, &n, &seed});
}

void cu_check(CUstream s, CUdeviceptr p, size_t words, uint32_t seed, CUdeviceptr bad)
{
    unsigned long long n = words;
    cu_launch(cu_kernel("probe_check"), 512, 256, s, (void *[]){&p, &n, &seed, &bad});
}

uint64_t cu_mismatches(CUdeviceptr p, size_t words, uint32_t seed)
{
    uint64_t bad = ~0ull;
    CUdeviceptr counter = cu_alloc(sizeof bad);
    CUstream s = cu_stream();
    CU(cuMemsetD8Async, counter, 0, sizeof bad, s);
    cu_check(s, p, words, seed, counter);
    CU(cuMemcpyDtoHAsync, &bad, counter, sizeof bad, s);
    cu_settle(s, "a check of memory");
    CU(cuStreamDestroy, s);
    CU(cuMemFree, counter);
    return bad;
}
