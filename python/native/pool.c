/* SPDX-License-Identifier: Apache-2.0
 * See pool.h. Chunks are cut from slabs and never joined again; each goes to the list of its size class
 * when it is free. Nothing of the lists lies in the chunks, for others write there. Classes are an eighth
 * of a power of two apart, so at most an eighth is lost, and tensors whose size changes a little from step
 * to step find a chunk. */
#include "python/native/pool.h"

#include "python/native/slab.h"

#include <pthread.h>
#include <stdlib.h>

#define PAGE       ((size_t)4096)
#define SLAB_BYTES ((size_t)32 << 20)
#define POOL_MAX   ((size_t)8 << 30) /* beyond that results lie in TensorFlow's memory */
#define STEPS      8                 /* classes per doubling */
#define CLASSES    (64 * STEPS)

struct chunk {
    struct chunk *next;
    void *data;
};

static struct {
    pthread_mutex_t lock;
    size_t bytes; /* of all slabs */
    char *rest;   /* of the newest slab of SLAB_BYTES */
    size_t rest_bytes;
    struct chunk *free[CLASSES];
    struct chunk *spare; /* of nothing */
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* The class that holds `bytes`, and what its chunks have. */
static int class_of(size_t bytes, size_t *chunk_bytes_p)
{
    size_t pages = (bytes + PAGE - 1) / PAGE;
    int doublings = 63 - __builtin_clzll((unsigned long long)(pages | STEPS));
    int shift = doublings - 3; /* of the step between classes: pages is 8 .. 15 of them */
    size_t steps = (pages + ((size_t)1 << shift) - 1) >> shift;
    *chunk_bytes_p = (steps << shift) * PAGE;
    return shift * STEPS + (int)steps;
}

static void *new_slab(size_t bytes)
{
    void *slab = pool.bytes + bytes <= POOL_MAX ? slab_new(bytes, SLAB_POOL) : NULL;
    if (slab)
        pool.bytes += bytes;
    return slab;
}

static void *cut(size_t bytes)
{
    if (bytes > SLAB_BYTES / 2)
        return new_slab(bytes);
    if (pool.rest_bytes < bytes) {
        char *slab = new_slab(SLAB_BYTES);
        if (!slab)
            return NULL;
        pool.rest = slab; /* what was left of the last one is lost: less than half a slab */
        pool.rest_bytes = SLAB_BYTES;
    }
    char *chunk = pool.rest;
    pool.rest += bytes;
    pool.rest_bytes -= bytes;
    return chunk;
}

/* With the lock. */
static void *pop(int class)
{
    struct chunk *chunk = pool.free[class];
    if (!chunk)
        return NULL;
    pool.free[class] = chunk->next;
    chunk->next = pool.spare;
    pool.spare = chunk;
    return chunk->data;
}

void *pool_take(size_t bytes)
{
    size_t chunk_bytes;
    int class = class_of(bytes, &chunk_bytes);
    pthread_mutex_lock(&pool.lock);
    void *data = pop(class);
    if (!data)
        data = cut(chunk_bytes);
    pthread_mutex_unlock(&pool.lock);
    return data;
}

void pool_give(void *data, size_t bytes)
{
    size_t chunk_bytes;
    int class = class_of(bytes, &chunk_bytes);
    pthread_mutex_lock(&pool.lock);
    struct chunk *chunk = pool.spare;
    if (chunk)
        pool.spare = chunk->next;
    else
        chunk = malloc(sizeof(*chunk));
    if (chunk) { /* else it is lost */
        *chunk = (struct chunk){pool.free[class], data};
        pool.free[class] = chunk;
    }
    pthread_mutex_unlock(&pool.lock);
}

void pool_forked(void)
{
    pthread_mutex_init(&pool.lock, NULL);
}
