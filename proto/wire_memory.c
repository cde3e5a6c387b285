/* SPDX-License-Identifier: Apache-2.0
 * The memory of one encode or decode, and the place of the walker for sentences.
 *
 * protobuf-c allocates a block per string, row and list. Giving it our own allocator buys three
 * things: a hostile message of two-byte rows cannot make us allocate without bound, everything is
 * released at once on every path, and the size of each block tells a string's true length, so a
 * NUL byte inside a string is seen (protobuf-c keeps C strings and would cut it silently). */
#include "proto/wire_internal.h"

#include "base/assert.h"
#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The largest legal reply (128 stalls that each list 1024 missing ranks) needs about 20 MiB. */
#define MEMORY_BOUND (64u * 1024u * 1024u)

struct wire_block {
    struct wire_block *next;
    size_t bytes;
    _Alignas(16) unsigned char data[];
};

void hvi_wire_memory_init(struct wire_memory *memory)
{
    *memory = (struct wire_memory){.left = MEMORY_BOUND};
}

void hvi_wire_memory_fini(struct wire_memory *memory)
{
    struct wire_block *block = memory->blocks;
    while (block) {
        struct wire_block *next = block->next;
        free(block);
        block = next;
    }
    memory->blocks = NULL;
}

void *hvi_wire_memory_get(struct wire_memory *memory, size_t bytes)
{
    if (bytes > MEMORY_BOUND || bytes + sizeof(struct wire_block) > memory->left) {
        memory->refused = true;
        return NULL;
    }
    struct wire_block *block = calloc(1, sizeof *block + bytes);
    if (!block) {
        memory->failed = true;
        return NULL;
    }
    memory->left -= bytes + sizeof *block;
    block->bytes = bytes;
    block->next = memory->blocks;
    memory->blocks = block;
    return block->data;
}

size_t hvi_wire_memory_size(const void *block)
{
    const unsigned char *data = block;
    size_t bytes;
    memcpy(&bytes, data - offsetof(struct wire_block, data) + offsetof(struct wire_block, bytes),
           sizeof bytes);
    return bytes;
}

void hvi_wire_context_init(struct wire_context *context, char *text, size_t text_size)
{
    memset(context, 0, sizeof *context);
    hvi_wire_memory_init(&context->memory);
    context->text = text;
    context->text_size = text ? text_size : 0;
}

void hvi_wire_context_fini(struct wire_context *context)
{
    hvi_wire_memory_fini(&context->memory);
}

void hvi_wire_enter(struct wire_context *context, const char *name, int64_t index)
{
    HVI_ASSERT(context->depth < WIRE_DEPTH);
    context->path[context->depth].name = name;
    context->path[context->depth].index = index;
    context->depth++;
}

void hvi_wire_leave(struct wire_context *context)
{
    HVI_ASSERT(context->depth > 0);
    context->depth--;
}

/* "engine_report.stalls[3]" */
static size_t place_text(const struct wire_context *context, char *place_p, size_t size)
{
    size_t used = 0;
    place_p[0] = '\0';
    for (uint32_t i = 0; i < context->depth && used < size; i++) {
        int64_t index = context->path[i].index;
        used += (size_t)snprintf(place_p + used, size - used, "%s%s", i ? "." : "",
                                 context->path[i].name);
        if (index >= 0 && used < size)
            used += (size_t)snprintf(place_p + used, size - used, "[%lld]", (long long)index);
    }
    return used;
}

int hvi_wire_refuse(struct wire_context *context, const char *name, const char *format, ...)
{
    if (!context->text_size)
        return HVI_ERR_PROTOCOL;
    char place[160], sentence[160];
    place_text(context, place, sizeof place);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(sentence, sizeof sentence, format, arguments);
    va_end(arguments);
    const char *dot = name && place[0] ? "." : "";
    snprintf(context->text, context->text_size, "%s%s%s: %s", place, dot, name ? name : "",
             sentence);
    return HVI_ERR_PROTOCOL;
}
