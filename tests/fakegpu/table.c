/* SPDX-License-Identifier: Apache-2.0
 * Rules. The use of memory that was freed or closed is the end of the process, with a sentence (cuda.h: undefined). So is closing
 * what work in a stream still uses; cuMemFree waits for that work, as the driver does. BUFFER_ID is never the same again in a process (UCX
 * 21b4c78; P2). */
#include "tests/fakegpu/table.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t unused = PTHREAD_COND_INITIALIZER;
static struct range *ranges;
static uint64_t last_id;
static size_t taken[FAKE_DEVICES];

static bool holds(const struct range *range, uint64_t address)
{
    return address - (uint64_t)(uintptr_t)range->base < range->bytes;
}

static bool overlaps(const struct range *range, uint64_t address, size_t bytes)
{
    return holds(range, address) || (uint64_t)(uintptr_t)range->base - address < bytes;
}

/* Needs the lock. */
static struct range *find(uint64_t address, unsigned kinds)
{
    for (struct range *range = ranges; range != NULL; range = range->next) {
        if ((range->kind & kinds) != 0 && holds(range, address))
            return range;
    }
    return NULL;
}

/* Needs the lock. What was there is forgotten, since something else is there now. */
static void forget_gone(uint64_t address, size_t bytes)
{
    for (struct range **at = &ranges; *at != NULL;) {
        struct range *range = *at;
        if (range->kind == RANGE_GONE && overlaps(range, address, bytes)) {
            *at = range->next;
            free(range);
        } else {
            at = &range->next;
        }
    }
}

struct range *fake_range_add(unsigned kind, void *base, size_t bytes, int fd, int device)
{
    struct range *range = calloc(1, sizeof(*range));

    if (range == NULL)
        fake_blame("no memory for a range");
    *range = (struct range){
        .kind = kind, .base = base, .bytes = bytes, .fd = fd, .device = device, .references = 1};
    pthread_mutex_lock(&lock);
    forget_gone((uintptr_t)base, bytes);
    range->id = ++last_id;
    range->next = ranges;
    ranges = range;
    pthread_mutex_unlock(&lock);
    return range;
}

struct range *fake_range_find(uint64_t address, unsigned kinds)
{
    pthread_mutex_lock(&lock);
    struct range *range = find(address, kinds);
    pthread_mutex_unlock(&lock);
    return range;
}

struct range *fake_range_overlap(uint64_t address, size_t bytes, unsigned kinds)
{
    struct range *range;

    pthread_mutex_lock(&lock);
    for (range = ranges; range != NULL; range = range->next) {
        if ((range->kind & kinds) != 0 && overlaps(range, address, bytes))
            break;
    }
    pthread_mutex_unlock(&lock);
    return range;
}

struct range *fake_range_next(struct range *range, unsigned kinds)
{
    pthread_mutex_lock(&lock);
    for (range = range == NULL ? ranges : range->next; range != NULL; range = range->next) {
        if ((range->kind & kinds) != 0)
            break;
    }
    pthread_mutex_unlock(&lock);
    return range;
}

void fake_check_unused(struct range *range, const char *call)
{
    pthread_mutex_lock(&lock);
    if (range->users > 0)
        fake_blame("%s of %p while work in a stream uses it", call, (void *)range->base);
    pthread_mutex_unlock(&lock);
}

struct range fake_range_drop(struct range *range, const char *call, bool is_waiting)
{
    pthread_mutex_lock(&lock);
    if (range->users > 0 && !is_waiting)
        fake_blame("%s of %p while work in a stream uses it", call, (void *)range->base);
    while (range->users > 0)
        pthread_cond_wait(&unused, &lock);
    if (range->registered > 0)
        fake_blame("%s of %p while NCCL has it registered", call, (void *)range->base);
    const struct range was = *range;
    range->kind = RANGE_GONE;
    range->gone = call;
    pthread_mutex_unlock(&lock);
    return was;
}

bool fake_note_registered(uint64_t address, size_t bytes, int change)
{
    bool found = false;

    pthread_mutex_lock(&lock);
    for (struct range *range = ranges; range != NULL; range = range->next) {
        if ((range->kind & RANGE_DEVICE) == 0 || !overlaps(range, address, bytes))
            continue;
        range->registered += change;
        found = true;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

struct range *fake_pin(uint64_t address, const char *what)
{
    pthread_mutex_lock(&lock);
    struct range *range = find(address, RANGE_USABLE), *gone = NULL;
    if (range != NULL && range->kind == RANGE_MAPPED && !range->is_accessible)
        range = NULL;
    if (range != NULL)
        range->users++;
    else
        gone = find(address, RANGE_GONE);
    if (gone != NULL)
        fake_blame("%s uses 0x%llx, which %s has ended", what, (unsigned long long)address,
                   gone->gone);
    pthread_mutex_unlock(&lock);
    return range;
}

void fake_unpin(struct range *range)
{
    pthread_mutex_lock(&lock);
    if (--range->users == 0)
        pthread_cond_broadcast(&unused);
    pthread_mutex_unlock(&lock);
}

size_t fake_range_left(const struct range *range, uint64_t address)
{
    return range->bytes - (address - (uint64_t)(uintptr_t)range->base);
}

int fake_range_device(const struct range *range)
{
    return range->device;
}

void *fake_map(int fd, size_t bytes)
{
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return base == MAP_FAILED ? NULL : base;
}

/* Needs the lock. */
static size_t left(int device)
{
    return fake_device_memory() - fake_device_taken(device) - taken[device];
}

bool fake_take(int device, size_t bytes)
{
    if (fake_fault_from_now("no-memory"))
        return false;
    pthread_mutex_lock(&lock);
    const bool is_there = bytes <= left(device);
    taken[device] += is_there ? bytes : 0;
    pthread_mutex_unlock(&lock);
    return is_there;
}

void fake_give_back(int device, size_t bytes)
{
    pthread_mutex_lock(&lock);
    taken[device] -= bytes;
    pthread_mutex_unlock(&lock);
}

size_t fake_free_bytes(int device)
{
    pthread_mutex_lock(&lock);
    const size_t bytes = left(device);
    pthread_mutex_unlock(&lock);
    return bytes;
}

int fake_memfd(const char *what, int device, size_t bytes)
{
    char name[64];

    snprintf(name, sizeof(name), "fakegpu %s %d", what, device);
    int fd = memfd_create(name, MFD_CLOEXEC);
    if (fd >= 0 && ftruncate(fd, (off_t)bytes) < 0) {
        close(fd);
        return -1;
    }
    return fd;
}

int fake_memfd_device(int fd, const char *what)
{
    char path[64], link[128], head[64];
    int device = -1;

    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    snprintf(head, sizeof(head), "/memfd:fakegpu %s ", what);
    ssize_t length = readlink(path, link, sizeof(link) - 1);
    if (length > 0) {
        link[length] = '\0';
        if (strncmp(link, head, strlen(head)) == 0)
            device = atoi(link + strlen(head));
    }
    return device;
}
