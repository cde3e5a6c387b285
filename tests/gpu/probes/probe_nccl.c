/* SPDX-License-Identifier: Apache-2.0
 * libnccl.so.2 by dlopen. Without nccl.h at build time there is no NCCL. */
#include "probe_nccl.h"

#include "probe.h"

#if __has_include(<nccl.h>)
#include <dlfcn.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(ncclUniqueId) == NCCL_ID_BYTES, "NCCL's id");

#define NCCL_ROWS(X)                                                                               \
    X(ncclGetVersion)                                                                              \
    X(ncclGetErrorString)                                                                          \
    X(ncclGetUniqueId)                                                                             \
    X(ncclCommInitRank)                                                                            \
    X(ncclCommDestroy) X(ncclAllReduce) X(ncclCommRegister) X(ncclCommDeregister)

static struct {
#define X(f) __typeof__(f) *f;
    NCCL_ROWS(X)
#undef X
} nccl;

static void must(ncclResult_t result, const char *what)
{
    if (result != ncclSuccess)
        probe_fail("%s: %s", what, nccl.ncclGetErrorString(result));
}

static int set(void *slot, void *p)
{
    memcpy(slot, &p, sizeof p);
    return p != NULL;
}

const char *nccl_load(void)
{
    static char why[256];
    const char *missing = NULL;
    const char *name = getenv("HVD_NCCL_LIB");
    int version = 0;
    probe_step("loading NCCL");
    void *library = dlopen(name && *name ? name : "libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        snprintf(why, sizeof why, "no NCCL: %s", dlerror());
        return why;
    }
#define X(f) missing = set(&nccl.f, dlsym(library, #f)) ? missing : #f;
    NCCL_ROWS(X)
#undef X
    if (missing) {
        snprintf(why, sizeof why, "NCCL too old: it has no %s", missing);
        return why;
    }
    must(nccl.ncclGetVersion(&version), "ncclGetVersion");
    snprintf(why, sizeof why, "%d.%d.%d", version / 10000, version % 10000 / 100, version % 100);
    probe_fact("nccl", why);
    return NULL;
}

void nccl_id(unsigned char id[NCCL_ID_BYTES])
{
    ncclUniqueId made;
    must(nccl.ncclGetUniqueId(&made), "ncclGetUniqueId");
    memcpy(id, &made, sizeof made);
}

void *nccl_comm(int size, const unsigned char id[NCCL_ID_BYTES], int rank)
{
    ncclUniqueId made;
    ncclComm_t comm;
    memcpy(&made, id, sizeof made);
    must(nccl.ncclCommInitRank(&comm, size, made, rank), "ncclCommInitRank");
    return comm;
}

void *nccl_comm_alone(void)
{
    unsigned char id[NCCL_ID_BYTES];
    nccl_id(id);
    return nccl_comm(1, id, 0);
}

void nccl_sum_fp32(void *comm, uint64_t device_ptr, size_t count, void *stream)
{
    void *p = (void *)(uintptr_t)device_ptr;
    must(nccl.ncclAllReduce(p, p, count, ncclFloat32, ncclSum, comm, stream), "ncclAllReduce");
}

void nccl_free(void *comm)
{
    must(nccl.ncclCommDestroy(comm), "ncclCommDestroy");
}

const char *nccl_try_register(void *comm, uint64_t device_ptr, size_t bytes)
{
    void *handle = NULL;
    ncclResult_t result =
        nccl.ncclCommRegister(comm, (void *)(uintptr_t)device_ptr, bytes, &handle);
    if (result == ncclSuccess && handle)
        result = nccl.ncclCommDeregister(comm, handle);
    else if (result == ncclSuccess)
        return "accepted, without a handle";
    return result == ncclSuccess ? NULL : nccl.ncclGetErrorString(result);
}
#else
static _Noreturn void none(void)
{
    probe_fail("built without nccl.h");
}

const char *nccl_load(void)
{
    return "built without nccl.h";
}

void nccl_id(unsigned char id[NCCL_ID_BYTES])
{
    (void)id;
    none();
}

void *nccl_comm(int size, const unsigned char id[NCCL_ID_BYTES], int rank)
{
    (void)size, (void)id, (void)rank;
    none();
}

void *nccl_comm_alone(void)
{
    none();
}

void nccl_sum_fp32(void *comm, uint64_t device_ptr, size_t count, void *stream)
{
    (void)comm, (void)device_ptr, (void)count, (void)stream;
    none();
}

void nccl_free(void *comm)
{
    (void)comm;
    none();
}

const char *nccl_try_register(void *comm, uint64_t device_ptr, size_t bytes)
{
    (void)comm, (void)device_ptr, (void)bytes;
    none();
}
#endif
