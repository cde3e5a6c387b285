/* SPDX-License-Identifier: Apache-2.0
 * What is where: every range of addresses that the fake libcuda.so.1 has given out or knows. Any thread. */
#ifndef FAKEGPU_TABLE_H
#define FAKEGPU_TABLE_H

#include "tests/fakegpu/stream.h"

enum range_kind {
    RANGE_ALLOCATED = 1,
    RANGE_MANAGED = 2,
    RANGE_IMPORTED = 4, /* by legacy handle */
    RANGE_POOLED = 8,
    RANGE_POOL_IMPORTED = 16,
    RANGE_HOST = 32,      /* registered, the caller's */
    RANGE_HOST_OWN = 64,  /* cuMemHostAlloc */
    RANGE_RESERVED = 128, /* addresses without memory */
    RANGE_MAPPED = 256,   /* VMM memory in a reservation */
    RANGE_GONE = 512,     /* freed, closed or unmapped, and nothing has come there since */
};
#define RANGE_DEVICE                                                                               \
    (RANGE_ALLOCATED | RANGE_MANAGED | RANGE_IMPORTED | RANGE_POOLED | RANGE_POOL_IMPORTED |       \
     RANGE_MAPPED)
#define RANGE_USABLE (RANGE_DEVICE | RANGE_HOST | RANGE_HOST_OWN)

struct range {
    struct range *next;
    unsigned kind;
    char *base;
    size_t bytes;
    int fd;     /* of its memory, or -1 */
    int device; /* physical; -1: the host's */
    uint64_t id;
    int users;                /* work in streams */
    int references;           /* IMPORTED: opens */
    int registered;           /* by communicators of NCCL */
    bool is_accessible;       /* MAPPED: cuMemSetAccess was called */
    bool is_shared;           /* others may open it: freeing it while they do is a fault */
    int handle_types;         /* RANGE_MAPPED: for which it was made */
    struct hvi_cu_ipc handle; /* IMPORTED: as it was opened */
    void *owner;              /* MAPPED: its physical memory; POOLED: its pool */
    const char *gone;         /* GONE: the call that ended it */
};

/* The caller fills the rest in before it gives the address away. */
struct range *fake_range_add(unsigned kind, void *base, size_t bytes, int fd, int device);
/* One of these kinds that holds the address, or NULL. */
struct range *fake_range_find(uint64_t address, unsigned kinds);
/* One of these kinds that shares an address with these, or NULL. */
struct range *fake_range_overlap(uint64_t address, size_t bytes, unsigned kinds);
/* The next of these kinds behind `range`; NULL: the first; NULL at the end. */
struct range *fake_range_next(struct range *range, unsigned kinds);
/* Work in streams uses it: with `is_waiting` waits for that, else blames the caller. Then it is no more; its memory is not
 * touched. Returned: what it was, since `range` itself is freed as soon as something else has its addresses. */
struct range fake_range_drop(struct range *range, const char *call, bool is_waiting);
/* Blames the caller if work in streams uses it. */
void fake_check_unused(struct range *range, const char *call);
/* Blames the caller if another process has it open: importers hold a shared lock on its memfd. */
void fake_check_importers(const struct range *range, const char *call);
/* The exporter's memory, with such a lock; -1: it is gone, or not for this user. */
int fake_open_exported(int pid, int fd);
/* Allocates, as cuMemAlloc. */
int fake_allocate(hvi_cu_ptr *address_p, size_t bytes, unsigned kind);
/* Maps memory of the device; NULL: it cannot be had. */
void *fake_map(int fd, size_t bytes);
/* Bytes that this process has of the device's memory. False: there are not so many. */
bool fake_take(int device, size_t bytes);
void fake_give_back(int device, size_t bytes);
size_t fake_free_bytes(int device);
/* A memfd with "fakegpu WHAT DEVICE" for a name, and back: the device; -1: it is none of those. */
int fake_memfd(const char *what, int device, size_t bytes);
int fake_memfd_device(int fd, const char *what);

#endif
