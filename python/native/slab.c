/* SPDX-License-Identifier: Apache-2.0
 * See slab.h. A slab that a session could not be told of is ordinary memory to it: slower, not wrong. */
#include "python/native/slab.h"

#include "python/native/crew.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#define SLABS_MAX 512

struct slab {
    _Atomic(char *) base; /* NULL: free */
    size_t bytes;         /* written before .base */
    bool shared;          /* with the present session; with the lock */
    pid_t pid;            /* that can share it: a forked child has a view of its own */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct slab slabs[SLABS_MAX];
static atomic_int used; /* rows that ever were */

/* With the lock. */
static void share(struct slab *slab, struct hvd_session *session)
{
    char *base = atomic_load(&slab->base);
    if (base && !slab->shared && slab->pid == getpid())
        slab->shared = hvd_register(session, base, slab->bytes) == HVD_OK;
}

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

void *slab_new(size_t bytes)
{
    void *base = NULL;
    pthread_mutex_lock(&lock);
    struct slab *slab = free_row();
    if (slab && hvd_mem_alloc(bytes, &base) == HVD_OK) {
        slab->bytes = bytes;
        slab->shared = false;
        slab->pid = getpid();
        atomic_store(&slab->base, base);
        struct hvd_session *session = crew_enter();
        if (session) {
            share(slab, session);
            crew_leave();
        }
    }
    pthread_mutex_unlock(&lock);
    return base;
}

static struct slab *slab_at(const void *data)
{
    int count = atomic_load(&used);
    for (int i = 0; i < count; i++) {
        const char *base = atomic_load(&slabs[i].base);
        if (base && (const char *)data >= base && (const char *)data < base + slabs[i].bytes)
            return &slabs[i];
    }
    return NULL;
}

/* What an op still uses is not given back, and stays as it is. */
void slab_free(void *base)
{
    pthread_mutex_lock(&lock);
    struct slab *slab = slab_at(base);
    struct hvd_session *session = slab && slab->shared ? crew_enter() : NULL;
    if (session) {
        slab->shared = hvd_deregister(session, base) != HVD_OK;
        crew_leave();
    }
    if (slab && hvd_mem_free(base) == HVD_OK)
        atomic_store(&slab->base, NULL);
    pthread_mutex_unlock(&lock);
}

bool slab_holds(const void *data)
{
    return slab_at(data) != NULL;
}

void slab_share_all(struct hvd_session *session)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < atomic_load(&used); i++)
        share(&slabs[i], session);
    pthread_mutex_unlock(&lock);
}

void slab_unshare_all(void)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < atomic_load(&used); i++)
        slabs[i].shared = false;
    pthread_mutex_unlock(&lock);
}
