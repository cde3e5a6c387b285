/* SPDX-License-Identifier: Apache-2.0
 * Memory of a device that the library makes, as ncclMemAlloc does (NCCL 2.28.9, allocator.cc): one physical allocation with a
 * descriptor, which GPUDirect RDMA may use where the device can do that, mapped as a whole into a reservation of its own. So a
 * worker opens it by one descriptor, and NCCL can register it.
 *
 * Sizes are multiples of what the driver recommends for an allocation, and of the least that a multicast object can be bound to.
 * NCCL before 2.26 wanted multiples of what is recommended for a multicast object, which may be a multiple of what was asked
 * for; such an NCCL is not asked to register anything (docs/adr/0030). */
#include "client/device/device.h"

#include "client/error.h"
#include "hvd/hvd.h"

#include <inttypes.h>
#include <stdio.h>

static bool can_make(const struct hvi_cuda *cuda)
{
    return cuda->create && cuda->granularity && cuda->allocation_release && cuda->reserve &&
           cuda->unreserve && cuda->map && cuda->unmap && cuda->set_access;
}

static bool has(const struct hvi_cuda *cuda, int attribute, hvi_cu_device number)
{
    int value = 0;
    return cuda->device_attribute(&value, attribute, number) == HVI_CU_OK && value != 0;
}

/* Of which the memory's size and addresses are multiples. */
static int find_unit(const struct hvi_cuda *cuda, hvi_cu_device number, uint64_t bytes,
                     const struct hvi_cu_allocation_properties *properties, uint64_t *unit_p)
{
    const struct hvi_cu_multicast_properties multicast = {
        .devices = 2, .bytes = bytes, .handle_types = HVI_CU_HANDLE_FD};
    size_t unit = 0, least = 0;
    int error = cuda->granularity(&unit, properties, HVI_CU_GRANULARITY_RECOMMENDED);
    if (error != HVI_CU_OK)
        return error;
    if (cuda->multicast_granularity && has(cuda, HVI_CU_DEVICE_MULTICAST, number) &&
        cuda->multicast_granularity(&least, &multicast, HVI_CU_GRANULARITY_MINIMUM) == HVI_CU_OK &&
        least > unit)
        unit = least; /* both are powers of two */
    *unit_p = unit;
    return unit > 0 ? HVI_CU_OK : HVI_CU_NOT_SUPPORTED;
}

/* Reserved addresses, mapped and accessible. */
static int map(const struct hvi_cuda *cuda, int device, hvi_cu_allocation allocation, uint64_t unit,
               struct client_device_own *own)
{
    const struct hvi_cu_access access = {{1, device}, 3};
    int error = cuda->reserve(&own->base, own->bytes, unit, 0, 0);
    if (error != HVI_CU_OK)
        return error;
    error = cuda->map(own->base, own->bytes, 0, allocation, 0);
    if (error == HVI_CU_OK) {
        error = cuda->set_access(own->base, own->bytes, &access, 1);
        if (error == HVI_CU_OK)
            return error;
        cuda->unmap(own->base, own->bytes);
    }
    cuda->unreserve(own->base, own->bytes);
    return error;
}

/* Within the scope. The mapping keeps the memory. */
static int make(const struct hvi_cuda *cuda, int device, uint64_t bytes,
                struct client_device_own *own)
{
    struct hvi_cu_allocation_properties properties = {
        .type = 1, .handle_types = HVI_CU_HANDLE_FD, .location = {1, device}};
    hvi_cu_device number;
    hvi_cu_allocation allocation;
    uint64_t unit = 0;
    int error = cuda->device_get(&number, device);
    if (error != HVI_CU_OK)
        return error;
    properties.rdma = has(cuda, HVI_CU_DEVICE_RDMA_VMM, number);
    error = find_unit(cuda, number, bytes, &properties, &unit);
    if (error != HVI_CU_OK)
        return error;
    own->device = device;
    own->bytes = (bytes + unit - 1) / unit * unit;
    if (own->bytes < bytes)
        return HVI_CU_OUT_OF_MEMORY;
    error = cuda->create(&allocation, own->bytes, &properties, 0);
    if (error != HVI_CU_OK)
        return error;
    error = map(cuda, device, allocation, unit, own);
    cuda->allocation_release(allocation);
    return error;
}

static int refuse(const struct hvi_cuda *cuda, int error, int device, uint64_t bytes)
{
    const bool is_full = error == HVI_CU_OUT_OF_MEMORY;
    const bool is_none = error == HVI_CU_INVALID_DEVICE || error == HVI_CU_INVALID_VALUE;
    char text[64];
    hvi_cuda_describe(cuda, error, text, sizeof(text));
    return client_error(is_full   ? HVD_ERR_NO_MEMORY
                        : is_none ? HVD_ERR_INVALID
                                  : HVD_ERR_UNSUPPORTED,
                        "hvd_device_alloc: %" PRIu64 " bytes on device %d: %s%s", bytes, device,
                        text, is_none ? "; is there such a device in this process?" : "");
}

int client_device_make(int device, uint64_t bytes, struct client_device_own *own_p)
{
    struct client_driver_scope scope;
    struct client_device_own own = {0};
    const char *why;
    const struct hvi_cuda *cuda = client_driver_get(&why);
    if (!cuda || !can_make(cuda))
        return client_error(HVD_ERR_UNSUPPORTED, "hvd_device_alloc: %s",
                            cuda     ? "the driver has no memory by descriptor (cuMemCreate)"
                            : why[0] ? why
                                     : "this process has no libcuda; initialise CUDA first "
                                       "(cudaSetDevice, torch.cuda.init)");
    int error = client_driver_enter(device, &scope);
    if (error == HVI_CU_OK) {
        error = make(cuda, device, bytes, &own);
        client_driver_leave(&scope);
    }
    if (error != HVI_CU_OK)
        return refuse(cuda, error, device, bytes);
    client_driver_note(device);
    *own_p = own;
    return HVD_OK;
}

int client_device_unmake(const struct client_device_own *own)
{
    struct client_driver_scope scope;
    char text[64] = "libcuda is not there";
    int error = client_driver_enter(own->device, &scope);
    if (error == HVI_CU_OK) {
        error = scope.cuda->unmap(own->base, own->bytes);
        if (error == HVI_CU_OK)
            error = scope.cuda->unreserve(own->base, own->bytes);
        client_driver_leave(&scope);
    }
    if (error == HVI_CU_OK)
        return HVD_OK;
    if (scope.cuda)
        hvi_cuda_describe(scope.cuda, error, text, sizeof(text));
    return client_error(HVD_ERR_UNSUPPORTED,
                        "hvd_device_free: %#" PRIx64 " is forgotten, and the driver has not given "
                        "its memory back: %s",
                        own->base, text);
}
