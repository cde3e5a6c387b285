/* SPDX-License-Identifier: Apache-2.0
 * See slab.h. A slab that a session could not be told of is ordinary memory to it: slower, not wrong.
 *
 * The lock is held for a few instructions only, never over a call of the library: that may run Python (a line of
 * log), which may wait for a lock of TensorFlow's, under which slab_new is called. */
#include "python/native/slab.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

#define SLABS_MAX 512

/* Bytes and kind are written while base is NULL; who reads them without the lock looks at base before and after. */
struct slab {
    _Atomic(uintptr_t) base; /* 0: a free row */
    atomic_size_t bytes;
    _Atomic(enum slab_kind) kind;
    atomic_bool shared; /* with the present session */
    bool told;          /* it was asked to; these three with the lock */
    bool dead;          /* given back while a session knew it */
    pid_t pid;          /* that can share it */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct slab slabs[SLABS_MAX];
static atomic_int used;               /* rows that ever were */
static atomic_bool news;              /* slabs were made since slab_share looked */
static _Atomic(uintptr_t) heap_begin; /* around all slabs of the heap that ever were */
static _Atomic(uintptr_t) heap_end;

/* With the lock. */
static struct slab *free_row(void)
{
    int count = atomic_load(&used);
    for (int i = 0; i < count; i++) {
        if (!atomic_load(&slabs[i].base))
            return &slabs[i];
    }
    if (count == SLABS_MAX)
        return NULL;
    atomic_store(&used, count + 1);
    return &slabs[count];
}

/* With the lock. */
static void widen(uintptr_t begin, uintptr_t end)
{
    uintptr_t known = atomic_load(&heap_begin);
    if (!known || begin < known)
        atomic_store(&heap_begin, begin);
    if (end > atomic_load(&heap_end))
        atomic_store(&heap_end, end);
}

static bool enter(uintptr_t base, size_t bytes, enum slab_kind kind)
{
    pthread_mutex_lock(&lock);
    struct slab *slab = free_row();
    if (slab) {
        atomic_store(&slab->bytes, bytes);
        atomic_store(&slab->kind, kind);
        atomic_store(&slab->shared, false);
        slab->told = slab->dead = false;
        slab->pid = getpid();
        if (kind == SLAB_HEAP)
            widen(base, base + bytes);
        atomic_store(&slab->base, base);
        atomic_store(&news, true);
    }
    pthread_mutex_unlock(&lock);
    return slab != NULL;
}

/* The engine is the first to touch a result; its pages shall be this process's all the same. */
static bool bring(void *base, size_t bytes)
{
    return madvise(base, bytes, MADV_POPULATE_WRITE) == 0 || errno == EINVAL; /* an older kernel */
}

void *slab_new(size_t bytes, enum slab_kind kind)
{
    void *base;
    if (hvd_mem_alloc(bytes, &base) != HVD_OK)
        return NULL;
    if ((kind == SLAB_HEAP || bring(base, bytes)) && enter((uintptr_t)base, bytes, kind))
        return base;
    hvd_mem_free(base);
    return NULL;
}

/* ---- which slab ---- */

/* The heap's that holds the address. */
static struct slab *heap_at(uintptr_t address)
{
    if (address < atomic_load(&heap_begin) || address >= atomic_load(&heap_end))
        return NULL;
    for (int i = atomic_load(&used) - 1; i >= 0; i--) {
        struct slab *slab = &slabs[i];
        uintptr_t base = atomic_load(&slab->base);
        bool here = base && address >= base && address - base < atomic_load(&slab->bytes) &&
                    atomic_load(&slab->kind) == SLAB_HEAP;
        if (here && atomic_load(&slab->base) == base)
            return slab;
    }
    return NULL;
}

bool slab_is_heap(const void *data)
{
    return heap_at((uintptr_t)data) != NULL;
}

bool slab_is_shared_heap(const void *data)
{
    struct slab *slab = heap_at((uintptr_t)data);
    return slab && atomic_load(&slab->shared);
}

/* ---- giving back ---- */

bool slab_free(void *data)
{
    if (!heap_at((uintptr_t)data)) /* nearly always */
        return false;
    pthread_mutex_lock(&lock);
    struct slab *slab = heap_at((uintptr_t)data);
    bool ours = slab && atomic_load(&slab->base) == (uintptr_t)data;
    bool now = ours && !slab->told;
    if (now)
        atomic_store(&slab->base, 0);
    else if (ours)
        slab->dead = true;
    pthread_mutex_unlock(&lock);
    if (now)
        hvd_mem_free(data);
    return ours;
}

/* The base of a slab that is dead and known to nobody any more; its row is free. NULL: there is none. */
static void *take_dead(void)
{
    void *base = NULL;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < atomic_load(&used) && !base; i++) {
        struct slab *slab = &slabs[i];
        if (!slab->dead || slab->told || !atomic_load(&slab->base))
            continue;
        base = (void *)atomic_exchange(&slab->base, 0);
        slab->dead = false;
    }
    pthread_mutex_unlock(&lock);
    return base;
}

/* ---- sessions ---- */

/* A slab that the session is to be told of, from now on ours to tell. */
static struct slab *take_untold(void)
{
    struct slab *found = NULL;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < atomic_load(&used) && !found; i++) {
        struct slab *slab = &slabs[i];
        if (atomic_load(&slab->base) && !slab->told && !slab->dead && slab->pid == getpid())
            found = slab;
    }
    if (found)
        found->told = true;
    pthread_mutex_unlock(&lock);
    return found;
}

bool slab_is_news(void)
{
    return atomic_load_explicit(&news, memory_order_relaxed);
}

void slab_share(struct hvd_session *session)
{
    struct slab *slab;
    atomic_store(&news, false);
    while ((slab = take_untold())) { /* told: nobody frees it meanwhile */
        void *base = (void *)atomic_load(&slab->base);
        atomic_store(&slab->shared,
                     hvd_register(session, base, atomic_load(&slab->bytes)) == HVD_OK);
    }
}

void slab_unshare(void)
{
    void *dead;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < atomic_load(&used); i++) {
        atomic_store(&slabs[i].shared, false);
        slabs[i].told = false;
    }
    pthread_mutex_unlock(&lock);
    atomic_store(&news, true);
    while ((dead = take_dead()))
        hvd_mem_free(dead);
}

void slab_forked(void)
{
    pthread_mutex_init(&lock, NULL);
    slab_unshare();
}
