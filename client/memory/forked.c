/* SPDX-License-Identifier: Apache-2.0
 * See forked.h. In the child only system calls: other threads of the parent may have held any lock. */
#include "client/memory/forked.h"

#include "base/status.h"
#include "client/error.h"

#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>
#include <utlist.h>

#define EXIT_UNMAPPABLE 70 /* EX_SOFTWARE: neither a copy nor a guard can be had */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct client_forked *rows;
static atomic_int maps_fd = -1; /* /proc/self/maps; relaxed: the descriptor says it all */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static bool is_there(const struct client_forked *row)
{
    struct client_range body = {row->range.start, row->last};
    struct client_range last = {row->last, row->range.end};
    if (row->ours)
        return true;
    return client_mapping_is_memfd(-1, body, &row->memfd) &&
           (last.start == last.end || client_mapping_is_memfd(-1, last, &row->memfd));
}

/* Memory that cannot be copied is no memory: better a child that crashes when it touches it than one
 * that writes into its parent's tensors. */
static void make_private(const struct client_forked *row)
{
    void *start = (void *)row->range.start;
    size_t bytes = row->range.end - row->range.start;
    if (mmap(start, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, row->fd, 0) !=
        MAP_FAILED)
        return;
    if (mmap(start, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
             0) == MAP_FAILED)
        _exit(EXIT_UNMAPPABLE);
}

static void after_fork_in_child(void)
{
    for (struct client_forked *at = rows; at; at = at->next) {
        if (is_there(at))
            make_private(at);
        close(at->fd);
        at->fd = -1;
    }
    rows = NULL; /* they are the parent's, whom the other descriptor shows too */
    int fd = atomic_exchange_explicit(&maps_fd, -1, memory_order_relaxed);
    if (fd >= 0)
        close(fd);
    pthread_mutex_unlock(&lock);
}

static void set_up(void)
{
    pthread_atfork(client_forked_lock, client_forked_unlock, after_fork_in_child);
}

void client_forked_lock(void)
{
    pthread_once(&once, set_up);
    pthread_mutex_lock(&lock);
}

void client_forked_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

void client_forked_add(struct client_forked *row)
{
    LL_PREPEND(rows, row);
    if (!row->ours && atomic_load_explicit(&maps_fd, memory_order_relaxed) < 0)
        atomic_store_explicit(&maps_fd, open("/proc/self/maps", O_RDONLY | O_CLOEXEC),
                              memory_order_relaxed);
}

void client_forked_remove(struct client_forked *row)
{
    if (row->fd >= 0)
        LL_DELETE(rows, row);
}

bool client_forked_is_intact(const struct client_forked *row)
{
    struct client_range body = {row->range.start, row->last};
    return client_mapping_is_memfd(atomic_load_explicit(&maps_fd, memory_order_relaxed), body,
                                   &row->memfd);
}

/* What the kernel calls the file behind a descriptor. */
static bool identify(int fd, struct client_memfd *memfd)
{
    struct stat info;
    if (fstat(fd, &info) != 0)
        return false;
    memfd->dev_major = major(info.st_dev);
    memfd->dev_minor = minor(info.st_dev);
    memfd->inode = info.st_ino;
    return true;
}

int client_forked_create(const char *what, const char *label, uint64_t bytes, bool lazy,
                         struct client_forked *row, struct hvi_region *region_p)
{
    static atomic_uint count;
    char *name = row->memfd.name;
    snprintf(name, sizeof(row->memfd.name), "%s-%d-%u", label, (int)getpid(),
             atomic_fetch_add(&count, 1));
    int rc = lazy ? hvi_region_create_lazy(name, bytes, region_p)
                  : hvi_region_create(name, bytes, region_p);
    if (rc == HVI_OK && !identify(region_p->fd, &row->memfd)) {
        hvi_region_fini(region_p);
        rc = HVI_ERR_NO_MEMORY;
    }
    if (rc != HVI_OK)
        return client_error(rc,
                            "%s: %" PRIu64 " bytes of shared memory: %s; 'hvdctl doctor' shows the "
                            "limits of this machine",
                            what, bytes, hvi_status_text(rc));
    row->fd = region_p->fd;
    return HVI_OK;
}
