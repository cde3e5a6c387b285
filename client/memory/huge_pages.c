/* SPDX-License-Identifier: Apache-2.0 */
#include "client/memory/huge_pages.h"

#include "base/file.h"
#include "base/huge.h"
#include "shm/abi.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define TRY_AGAIN 64u /* uses: memory that was freed and came back has small pages again */
#define SETTING   "/sys/kernel/mm/transparent_hugepage/enabled"

static bool possible;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void find_out(void)
{
    char text[64];
    const char *wish = getenv("HVD_HUGE_PAGES");
    possible = hvi_file_read(SETTING, text, sizeof(text)) > 0 && !strstr(text, "[never]") &&
               !(wish && strcmp(wish, "0") == 0);
}

bool client_huge_pages_possible(void)
{
    pthread_once(&once, find_out);
    return possible;
}

static bool collapse(uint64_t first, uint64_t end)
{
    return end > first && madvise((void *)(uintptr_t)first, end - first, MADV_COLLAPSE) == 0;
}

/* With what lies around it up to the next borders, as long as that is the same mapping: tensors of a
 * model lie side by side, and few begin at a border. */
bool client_huge_pages_collapse(const void *data, uint64_t bytes)
{
    uint64_t base = (uint64_t)(uintptr_t)data;
    uint64_t low = base / HVI_HUGE_BYTES * HVI_HUGE_BYTES;
    uint64_t high = (base + bytes + HVI_HUGE_BYTES - 1) / HVI_HUGE_BYTES * HVI_HUGE_BYTES;
    if (collapse(low, high))
        return true;
    uint64_t first = (base + HVI_HUGE_BYTES - 1) / HVI_HUGE_BYTES * HVI_HUGE_BYTES;
    uint64_t end = (base + bytes) / HVI_HUGE_BYTES * HVI_HUGE_BYTES;
    return collapse(first, end) && (end - first) * 2 >= bytes;
}

static struct client_huge_range *row_of(struct client_huge_pages *pages, uintptr_t base)
{
    uint64_t hash = (uint64_t)base * UINT64_C(0x9e3779b97f4a7c15);
    return &pages->rows[hash >> 32 & (CLIENT_HUGE_RANGES - 1)];
}

/* A kernel that cannot, or lacks the memory, leaves it to the first touch. */
static void bring(uintptr_t base, uint64_t bytes)
{
    uintptr_t first = base / HVI_PAGE * HVI_PAGE;
    (void)madvise((void *)first, base + bytes - first, MADV_POPULATE_WRITE);
}

bool client_huge_pages_note(struct client_huge_pages *pages, pthread_mutex_t *mutex,
                            const void *data, uint64_t bytes, bool lazy)
{
    uintptr_t base = (uintptr_t)data;
    bool possible_here = client_huge_pages_possible();
    bool is_large = bytes >= CLIENT_HUGE_MIN_BYTES;
    if (!lazy && (!is_large || !possible_here))
        return false;
    if (!pages->rows)
        pages->rows = calloc(CLIENT_HUGE_RANGES, sizeof(pages->rows[0]));
    if (!pages->rows)
        return false;
    struct client_huge_range *row = row_of(pages, base);
    if (row->base != base || row->bytes != bytes)
        *row = (struct client_huge_range){.base = base, .bytes = bytes};
    row->times++;
    if (lazy && row->times == 1) {
        pthread_mutex_unlock(mutex);
        bring(base, bytes);
        pthread_mutex_lock(mutex);
    }
    if (row->base != base || row->bytes != bytes) /* another thread has its place now */
        return false;
    if (!is_large || row->times % TRY_AGAIN != 2 || !possible_here)
        return row->huge;
    pthread_mutex_unlock(mutex);
    bool huge = client_huge_pages_collapse(data, bytes);
    pthread_mutex_lock(mutex);
    if (row->base == base && row->bytes == bytes)
        row->huge = huge;
    return huge;
}

void client_huge_pages_fini(struct client_huge_pages *pages)
{
    free(pages->rows);
    pages->rows = NULL;
}
