/* SPDX-License-Identifier: Apache-2.0
 * Every malloc of the program comes through here (-Wl,--wrap), so that the bytes are known that each engine holds. What
 * libraries allocate for themselves is not seen: messages while protobuf-c reads them. */
#include "tests/sim/sim.h"

#include "base/assert.h"

#include <malloc.h>
#include <stdlib.h>
#include <string.h>

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *memory, size_t size);
void __real_free(void *memory);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *memory, size_t size);
char *__wrap_strdup(const char *text);
void __wrap_free(void *memory);

static int64_t *counter; /* NULL: the simulator's */

int64_t *hvt_memory_of(int64_t *bytes)
{
    int64_t *before = counter;

    counter = bytes;
    return before;
}

void *hvt_memory_new(size_t bytes)
{
    void *memory = __real_calloc(1, bytes);

    HVI_ASSERT(memory);
    return memory;
}

void hvt_memory_free(void *memory)
{
    __real_free(memory);
}

static void *count(void *memory)
{
    if (counter && memory)
        *counter += (int64_t)malloc_usable_size(memory);
    return memory;
}

static void uncount(void *memory)
{
    if (counter && memory)
        *counter -= (int64_t)malloc_usable_size(memory);
}

void *__wrap_malloc(size_t size)
{
    return count(__real_malloc(size));
}

void *__wrap_calloc(size_t count_of, size_t size)
{
    return count(__real_calloc(count_of, size));
}

void *__wrap_realloc(void *memory, size_t size)
{
    uncount(memory);
    return count(__real_realloc(memory, size));
}

char *__wrap_strdup(const char *text)
{
    size_t size = strlen(text) + 1;
    char *copy = __wrap_malloc(size);

    return copy ? memcpy(copy, text, size) : NULL;
}

void __wrap_free(void *memory)
{
    uncount(memory);
    __real_free(memory);
}
