/* SPDX-License-Identifier: Apache-2.0
 * Tensor names, interned for the whole job, each in its process set: a session's ids point here, and
 * ranks meet here. The same name in another set is another tensor. A
 * named tensor lives while some session's table or some op refers to it. Unnamed ones live as long
 * as one op and are kept for the next, so that they cost no allocation; they have no string either,
 * only (kind, n). */
#include "daemon/engine/order/tensor.h"

#include "base/assert.h"
#include "base/types.h"
#include "base/utf8.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t hash_name(uint64_t set, const char *name, uint32_t name_bytes)
{
    uint64_t hash = 14695981039346656037ull ^ set * 0x9e3779b97f4a7c15ull;

    for (uint32_t i = 0; i < name_bytes; i++)
        hash = (hash ^ (unsigned char)name[i]) * 1099511628211ull;
    return hash ^ hash >> 29;
}

static uint64_t hash_anon(uint64_t set, uint16_t kind, struct engine_pair pair, uint64_t anon_seq)
{
    return anon_seq * 16 + kind + set * 131 + (uint32_t)pair.from * 257u +
           (uint32_t)pair.to * 65537u;
}

static struct engine_tensor **bucket_of(struct engine_tensors *tensors, uint64_t hash)
{
    return &tensors->buckets[hash % ENGINE_TENSOR_BUCKETS];
}

static void insert(struct engine_tensors *tensors, struct engine_tensor *tensor, uint64_t hash)
{
    struct engine_tensor **bucket = bucket_of(tensors, hash);

    tensor->hash = hash;
    tensor->refs = 1;
    tensor->next = *bucket;
    *bucket = tensor;
    tensors->count++;
}

struct engine_tensor *engine_tensor_get_named(struct engine_tensors *tensors, uint64_t set,
                                              const char *name, uint32_t name_bytes)
{
    uint64_t hash = hash_name(set, name, name_bytes);
    struct engine_tensor *tensor;

    for (tensor = *bucket_of(tensors, hash); tensor; tensor = tensor->next) {
        if (!tensor->anon && tensor->hash == hash && tensor->set == set &&
            tensor->name_bytes == name_bytes && memcmp(tensor->name, name, name_bytes) == 0) {
            tensor->refs++;
            return tensor;
        }
    }
    tensor = calloc(1, sizeof *tensor + name_bytes + 1);
    if (!tensor)
        return NULL;
    tensor->name = (char *)(tensor + 1);
    memcpy(tensor->name, name, name_bytes);
    tensor->name_bytes = name_bytes;
    tensor->set = set;
    insert(tensors, tensor, hash);
    return tensor;
}

static struct engine_tensor *get_unnamed(struct engine_tensors *tensors, uint64_t set,
                                         uint16_t kind, struct engine_pair pair, uint64_t anon_seq)
{
    uint64_t hash = hash_anon(set, kind, pair, anon_seq);
    struct engine_tensor *tensor;

    for (tensor = *bucket_of(tensors, hash); tensor; tensor = tensor->next) {
        if (tensor->anon && tensor->anon_seq == anon_seq && tensor->anon_kind == kind &&
            tensor->pair.from == pair.from && tensor->pair.to == pair.to && tensor->set == set) {
            tensor->refs++;
            return tensor;
        }
    }
    tensor = tensors->free;
    if (tensor)
        tensors->free = tensor->next;
    else
        tensor = calloc(1, sizeof *tensor);
    if (!tensor)
        return NULL;
    tensor->anon = true;
    tensor->anon_kind = kind;
    tensor->anon_seq = anon_seq;
    tensor->pair = pair;
    tensor->set = set;
    tensor->agreed.valid = false;
    tensor->failing = 0;
    tensor->entry = 0;
    tensor->last = tensor->work = tensor->sizes = 0;
    insert(tensors, tensor, hash);
    return tensor;
}

struct engine_tensor *engine_tensor_get_anon(struct engine_tensors *tensors, uint64_t set,
                                             uint16_t kind, uint64_t anon_seq)
{
    return get_unnamed(tensors, set, kind, (struct engine_pair){0, 0}, anon_seq);
}

struct engine_tensor *engine_tensor_get_unnamed(struct engine_tensors *tensors, uint64_t set,
                                                uint16_t kind)
{
    return engine_tensor_get_anon(tensors, set, kind, UINT64_MAX);
}

struct engine_tensor *engine_tensor_get_saying(struct engine_tensors *tensors, uint64_t set,
                                               const struct hvi_agreement *said)
{
    const unsigned char *bytes = (const unsigned char *)said;
    uint64_t hash = 14695981039346656037ull;

    for (size_t i = 0; i < sizeof *said; i++)
        hash = (hash ^ bytes[i]) * 1099511628211ull;
    return engine_tensor_get_anon(tensors, set, (uint16_t)said->kind, hash);
}

struct engine_tensor *engine_tensor_get_pair(struct engine_tensors *tensors, uint64_t set,
                                             struct engine_pair pair, uint64_t tag)
{
    return get_unnamed(tensors, set, HVI_KIND_SEND, pair, tag);
}

void engine_tensor_put(struct engine_tensors *tensors, struct engine_tensor *tensor)
{
    struct engine_tensor **link;

    HVI_ASSERT(tensor->refs > 0);
    if (--tensor->refs > 0)
        return;
    HVI_ASSERT(!tensor->waiting && !tensor->failed);
    if (tensor->slot && tensors->gone)
        tensors->gone(tensors->gone_user, tensor);
    link = bucket_of(tensors, tensor->hash);
    while (*link != tensor)
        link = &(*link)->next;
    *link = tensor->next;
    tensors->count--;
    free(tensor->kept);
    tensor->kept = NULL;
    free(tensor->gpus);
    tensor->gpus = NULL;
    if (tensor->anon) {
        tensor->timeline_epoch = 0;
        tensor->next = tensors->free;
        tensors->free = tensor;
    } else {
        free(tensor);
    }
}

void engine_tensors_fini(struct engine_tensors *tensors)
{
    struct engine_tensor *next;

    for (struct engine_tensor *tensor = tensors->free; tensor; tensor = next) {
        next = tensor->next;
        free(tensor);
    }
    tensors->free = NULL;
    HVI_ASSERT(tensors->count == 0);
}

void engine_tensor_name(const struct engine_tensor *tensor, char *name_p)
{
    if (tensor->anon && engine_partial_is(tensor->anon_kind))
        engine_partial_name(tensor->anon_kind, tensor->pair, tensor->anon_seq, name_p,
                            HVI_NAME_MAX + 1);
    else if (tensor->anon)
        snprintf(name_p, HVI_NAME_MAX + 1, "%s.noname.%" PRIu64, hvi_kind_text(tensor->anon_kind),
                 tensor->anon_seq);
    else
        memcpy(name_p, tensor->name, tensor->name_bytes + 1);
}

void engine_tensor_label(const struct engine_tensor *tensor, char *label_p)
{
    char name[HVI_NAME_MAX + 1];

    engine_tensor_name(tensor, name);
    size_t bytes = strlen(name);
    size_t kept = hvi_utf8_cut(name, bytes, ENGINE_LABEL - sizeof "...");
    snprintf(label_p, ENGINE_LABEL, "%.*s%s", (int)kept, name, kept < bytes ? "..." : "");
}
