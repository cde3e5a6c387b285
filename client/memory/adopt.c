/* SPDX-License-Identifier: Apache-2.0
 * Adoption.
 *
 *   before   [ private anonymous pages, the caller's data ]
 *   prepare  a sealed memfd of that size, mapped elsewhere, the data copied into it
 *   replace  mremap(MREMAP_FIXED) moves that mapping, page tables included, over the pages: other
 *            threads see the one or the other, with the same contents
 *   end      the same the other way round, with fresh private pages
 *
 * The memfd has huge pages where it can (shm/region.c). They stay mapped as such when the pages to
 * replace begin at a multiple of 2 MiB, as the memfd does; otherwise, and for the last one, the
 * kernel forgets where they are mapped, and client_adopt_touch has it look again, in small pages.
 * The engine's mapping is a huge one in any case.
 *
 * mremap and not a second mmap, because it makes sure beforehand that it will not fail between
 * unmapping and mapping.
 *
 * Shared memory behaves as private memory does, with four differences that matter:
 *
 * fork. A child would share the pages and could write into the parent's tensors. A handler in the
 *   child maps them again, MAP_PRIVATE: what the child writes is its own; what it has not written
 *   shows what the parent has there now. That needs the descriptor, so each adoption keeps one.
 *
 * Going back to the allocator. free() of memory that malloc has mapped for this allocation alone
 *   unmaps it, and all is well: nobody but that allocation lived in these pages. Pages of a heap
 *   would live on with others' data in them, then be shared in the sense above, and MADV_DONTNEED,
 *   by which allocators get zeroes, does not zero shared memory. So the heaps of malloc are
 *   refused. Of other allocators nothing is known; hvd.h asks for hvd_deregister before the memory
 *   goes back.
 *
 * Vanishing. Whatever was unmapped without hvd_deregister may by now be somebody else's memory at
 *   the same address. So who wants to use an adoption asks the kernel first (is_intact). The answer
 *   "no" may be wrong (mlock or mprotect of a part split the mapping), and then costs speed only.
 *
 * realloc. mremap would let the mapping grow beyond the memfd's end, into SIGBUS. The kernel never
 *   grows across two mappings, so the last page is made one of its own by an advice that means
 *   nothing to shared memory; realloc then copies as if it had run out of addresses.
 *
 * malloc's own pages. With 16 bytes of header in front, a malloc'ed buffer never begins at a page,
 *   and no tensor that fills it would be inside. When the header says that the allocation was
 *   mapped by itself, in whole pages, all of these are adopted. */
#include "client/memory/adopt.h"

#include "base/huge.h"
#include "client/error.h"
#include "client/memory/forked.h"
#include "hvd/hvd.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE_BYTES UINT64_C(4096)
#define PARTS_MAX  64u /* mappings that are changed at once */
#define HEAP_TEXT                                                                                  \
    "lies in a heap of malloc's, whose pages other data will use after free; use hvd_alloc, "      \
    "mmap, "                                                                                       \
    "or a malloc large enough for a mapping of its own (mallopt M_MMAP_THRESHOLD)"

/* ---- what may be adopted ---- */

struct look {
    struct client_range touched; /* pages that the buffer touches */
    struct client_range around;  /* the good mappings that hold it */
    char why[512];               /* it is refused */
};

static bool is_anonymous(const struct client_mapping *mapping)
{
    return mapping->inode == 0 &&
           (mapping->name[0] == '\0' || strncmp(mapping->name, "[anon:", 6) == 0);
}

/* Whether the mapping can be adopted; otherwise `why_p` is the sentence's end. */
static bool judge(const struct client_mapping *mapping, char *why_p, size_t size)
{
    if (strcmp(mapping->name, "[heap]") == 0)
        snprintf(why_p, size, "%s", HEAP_TEXT);
    else if (strcmp(mapping->name, "[stack]") == 0)
        snprintf(why_p, size, "is a stack");
    else if (strstr(mapping->name, "anon_hugepage"))
        snprintf(why_p, size, "consists of hugetlb pages");
    else if (mapping->flags[3] == 's')
        snprintf(why_p, size, "is shared memory already");
    else if (!is_anonymous(mapping))
        snprintf(why_p, size, "is mapped from %.200s", mapping->name);
    else if (strncmp(mapping->flags, "rw", 2) != 0)
        snprintf(why_p, size, "cannot be both read and written (%s)", mapping->flags);
    else
        return true;
    return false;
}

static bool visit(void *user, const struct client_mapping *mapping)
{
    struct look *look = user;
    struct client_range *around = &look->around;
    if (mapping->range.end <= look->touched.start)
        return true;
    if (mapping->range.start >= look->touched.end || !judge(mapping, look->why, sizeof(look->why)))
        return false;
    if (around->start == around->end)
        *around = mapping->range;
    else if (around->end == mapping->range.start)
        around->end = mapping->range.end;
    else
        return false;
    return around->end < look->touched.end;
}

static bool is_inside(struct client_range inner, struct client_range outer)
{
    return inner.start >= outer.start && inner.end <= outer.end;
}

static bool is_own_stack(struct client_range range)
{
    pthread_attr_t attributes;
    void *base = NULL;
    size_t bytes = 0;
    if (pthread_getattr_np(pthread_self(), &attributes) != 0)
        return false;
    pthread_attr_getstack(&attributes, &base, &bytes);
    pthread_attr_destroy(&attributes);
    return range.start < (uintptr_t)base + bytes && range.end > (uintptr_t)base;
}

/* A word of memory that was never ours: AddressSanitizer may have poisoned it, another thread may
 * be writing there. */
__attribute__((no_sanitize_address, no_sanitize_thread)) static uintptr_t word_at(uintptr_t address)
{
    return *(const volatile uintptr_t *)address;
}

/* glibc's heaps of threads begin at multiples of their greatest size with {arena, previous, size,
 * accessible size}. */
static bool is_in_thread_heap(uintptr_t address, struct client_range around)
{
    const uintptr_t most = UINT64_C(64) << 20;
    uintptr_t heap = address & ~(most - 1);
    if (heap < around.start)
        return false;
    uintptr_t size = word_at(heap + 16);
    uintptr_t accessible = word_at(heap + 24);
    return word_at(heap) != 0 && size % PAGE_BYTES == 0 && accessible % PAGE_BYTES == 0 &&
           size <= accessible && accessible <= most && address - heap < size;
}

/* The pages that glibc mapped for the allocation at `address` alone: in front of it are {bytes of
 * the mapping before this header, bytes from it on | 2}. False when that is not what lies there. */
static bool find_own_pages(uintptr_t address, uint64_t bytes, struct client_range around,
                           struct client_range *range_p)
{
    if (address % 16 != 0 || address - 16 < around.start)
        return false;
    uintptr_t before = word_at(address - 16);
    uintptr_t size = word_at(address - 8);
    struct client_range range = {address - 16 - before, address - 16 + (size & ~(uintptr_t)7)};
    if ((size & 7) != 2 || before > address - 16 || range.start % PAGE_BYTES != 0 ||
        range.end % PAGE_BYTES != 0 || range.end < address + bytes || !is_inside(range, around))
        return false;
    *range_p = range;
    return true;
}

static int refuse(uintptr_t address, uint64_t bytes, const char *why)
{
    return client_error(HVD_ERR_INVALID,
                        "hvd_adopt: [%#" PRIxPTR ", +%" PRIu64
                        ") %s; whole pages of private anonymous memory can be adopted",
                        address, bytes, why);
}

static int look_at(uintptr_t address, uint64_t bytes, struct look *look)
{
    *look =
        (struct look){.touched = {address / PAGE_BYTES * PAGE_BYTES,
                                  (address + bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES}};
    if (!client_mapping_each(visit, look))
        return refuse(address, bytes, "cannot be judged: /proc/self/maps cannot be read");
    if (look->why[0])
        return refuse(address, bytes, look->why);
    if (!is_inside(look->touched, look->around))
        return refuse(address, bytes, "is not all mapped");
    if (is_own_stack(look->touched))
        return refuse(address, bytes, "is a stack");
    if (client_mapping_is_locked(look->touched))
        return refuse(address, bytes, "is locked (mlock)");
    return HVD_OK;
}

int client_adopt_choose(const void *ptr, uint64_t bytes, struct client_range *range_p)
{
    uintptr_t address = (uintptr_t)ptr;
    struct client_range inside = {(address + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES,
                                  (address + bytes) / PAGE_BYTES * PAGE_BYTES};
    struct look look;
    int rc = look_at(address, bytes, &look);
    if (rc != HVD_OK || find_own_pages(address, bytes, look.around, range_p))
        return rc;
    if (is_in_thread_heap(address, look.around))
        return refuse(address, bytes, HEAP_TEXT);
    if (inside.start >= inside.end)
        return refuse(address, bytes, "holds no whole page; use hvd_register");
    *range_p = inside;
    return HVD_OK;
}

/* ---- the change ---- */

static uint64_t bytes_of(struct client_range range)
{
    return range.end - range.start;
}

int client_adopt_prepare(struct client_range range, struct hvi_region *region_p,
                         struct client_forked **adoption_p)
{
    struct client_forked *adoption = calloc(1, sizeof(*adoption));
    if (!adoption)
        return client_error(HVD_ERR_NO_MEMORY, "hvd_adopt: out of memory");
    adoption->range = range;
    /* See realloc. */
    adoption->last = range.end - (bytes_of(range) > PAGE_BYTES ? PAGE_BYTES : 0);
    int rc =
        client_forked_create("hvd_adopt", "hvd-adopt", bytes_of(range), false, adoption, region_p);
    if (rc != HVD_OK) {
        free(adoption);
        return rc;
    }
    memcpy(region_p->base, (const void *)range.start, bytes_of(range));
    *adoption_p = adoption;
    return HVD_OK;
}

void client_adopt_cancel(struct client_forked *adoption, struct hvi_region *region)
{
    hvi_region_fini(region);
    free(adoption);
}

/* Moves `pages` over `range`; the last page becomes a mapping of its own. */
static bool move_over(void *pages, struct client_range range)
{
    return mremap(pages, bytes_of(range), bytes_of(range), MREMAP_MAYMOVE | MREMAP_FIXED,
                  (void *)range.start) != MAP_FAILED;
}

int client_adopt_replace(struct client_forked *adoption, struct hvi_region *region)
{
    struct client_range range = adoption->range;
    client_forked_lock();
    bool moved = move_over(region->base, range);
    if (moved) {
        (void)madvise((void *)adoption->last, range.end - adoption->last, MADV_RANDOM);
        region->base = (void *)range.start;
        region->fd = -1; /* the adoption's from now on */
        client_forked_add(adoption);
    }
    client_forked_unlock();
    if (moved)
        return HVD_OK;
    return client_error(HVD_ERR_NO_MEMORY,
                        "hvd_adopt: the kernel has no room for one more mapping (mremap: %s); "
                        "see vm.max_map_count",
                        strerror(errno));
}

void client_adopt_touch(struct client_range range)
{
    (void)madvise((void *)range.start, bytes_of(range), MADV_POPULATE_READ);
}

/* ---- the end ---- */

/* A mapping of an adoption, which may have been split since, and mapped otherwise (mprotect). */
struct part {
    struct client_range range;
    int protection;
};

struct search {
    const struct client_forked *adoption;
    struct part parts[PARTS_MAX];
    uint32_t count;
};

static int protection_of(const char *flags)
{
    return (flags[0] == 'r' ? PROT_READ : 0) | (flags[1] == 'w' ? PROT_WRITE : 0) |
           (flags[2] == 'x' ? PROT_EXEC : 0);
}

static bool collect(void *user, const struct client_mapping *mapping)
{
    struct search *search = user;
    const struct client_memfd *memfd = &search->adoption->memfd;
    if (is_inside(mapping->range, search->adoption->range) && mapping->inode == memfd->inode &&
        mapping->dev_major == memfd->dev_major && mapping->dev_minor == memfd->dev_minor &&
        mapping->flags[3] == 's')
        search->parts[search->count++] =
            (struct part){mapping->range, protection_of(mapping->flags)};
    return search->count < PARTS_MAX;
}

static bool protect(void *pages, struct client_range range, int protection)
{
    return mprotect(pages, bytes_of(range), protection) == 0;
}

/* Private pages with the contents of the part. A part that cannot be read can for a moment. */
static bool copy_part(void *pages, const struct part *part)
{
    void *shared = (void *)part->range.start;
    bool readable = (part->protection & PROT_READ) != 0;
    if (!readable && !protect(shared, part->range, PROT_READ))
        return false;
    memcpy(pages, shared, bytes_of(part->range));
    if (!readable)
        (void)protect(shared, part->range, part->protection);
    return part->protection == (PROT_READ | PROT_WRITE) ||
           protect(pages, part->range, part->protection);
}

static bool make_private(const struct part *part)
{
    size_t bytes = bytes_of(part->range);
    void *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED)
        return false;
    if (copy_part(pages, part) && move_over(pages, part->range))
        return true;
    munmap(pages, bytes);
    return false;
}

/* Until no shared mapping is left there. */
static bool make_all_private(const struct client_forked *adoption)
{
    struct search search = {.adoption = adoption};
    bool done;
    do {
        search.count = 0;
        done = client_mapping_each(collect, &search);
        for (uint32_t i = 0; i < search.count; i++)
            done = make_private(&search.parts[i]) && done;
    } while (done && search.count == PARTS_MAX);
    return done;
}

bool client_adopt_end(struct client_forked *adoption)
{
    client_forked_lock();
    bool done = make_all_private(adoption);
    if (done)
        client_forked_remove(adoption); /* else a forked child still needs its own view */
    client_forked_unlock();
    if (!done)
        return false;
    close(adoption->fd);
    free(adoption);
    return true;
}
