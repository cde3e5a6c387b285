/* SPDX-License-Identifier: Apache-2.0
 * Agree: what the ranks of a complete op have to say alike, and the one sentence they all get when
 * they do not. Pure: nothing is changed, so the caller decides what becomes of the op. */
#include "base/status.h"
#include "daemon/engine/engine.h"
#include "reduce/reduce.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static bool same_kind(const struct hvi_submission *a, const struct hvi_submission *b)
{
    return a->kind == b->kind;
}

static bool same_dtype(const struct hvi_submission *a, const struct hvi_submission *b)
{
    return a->dtype == b->dtype;
}

/* An allgather's first dimension is each rank's own. */
static bool same_shape(const struct hvi_submission *a, const struct hvi_submission *b)
{
    uint32_t from = a->kind == HVI_KIND_ALLGATHER ? 1 : 0;

    if (a->ndim != b->ndim)
        return false;
    for (uint32_t i = from; i < a->ndim; i++) {
        if (a->dims[i] != b->dims[i])
            return false;
    }
    return true;
}

static bool same_reduce(const struct hvi_submission *a, const struct hvi_submission *b)
{
    return a->kind != HVI_KIND_ALLREDUCE || a->reduce_op == b->reduce_op;
}

static bool same_root(const struct hvi_submission *a, const struct hvi_submission *b)
{
    return a->kind != HVI_KIND_BROADCAST || a->root == b->root;
}

static bool same_scales(const struct hvi_submission *a, const struct hvi_submission *b)
{
    return a->kind != HVI_KIND_ALLREDUCE ||
           (memcmp(&a->prescale, &b->prescale, sizeof a->prescale) == 0 &&
            memcmp(&a->postscale, &b->postscale, sizeof a->postscale) == 0);
}

static bool same_memory(const struct hvi_submission *a, const struct hvi_submission *b)
{
    return a->memory_kind == b->memory_kind;
}

static void say_kind(const struct hvi_submission *copy, char *text_p, size_t size)
{
    snprintf(text_p, size, "%s", hvi_kind_text(copy->kind));
}

static void say_dtype(const struct hvi_submission *copy, char *text_p, size_t size)
{
    snprintf(text_p, size, "%s", hvi_dtype_text(copy->dtype));
}

static void say_shape(const struct hvi_submission *copy, char *text_p, size_t size)
{
    size_t used = 1;

    snprintf(text_p, size, "[");
    for (uint32_t i = 0; i < copy->ndim && used < size; i++)
        used += (size_t)snprintf(text_p + used, size - used, "%s%" PRId64, i > 0 ? ", " : "",
                                 copy->dims[i]);
    if (used < size)
        snprintf(text_p + used, size - used, "]");
}

static void say_reduce(const struct hvi_submission *copy, char *text_p, size_t size)
{
    snprintf(text_p, size, "%s", hvi_reduce_text(copy->reduce_op));
}

static void say_root(const struct hvi_submission *copy, char *text_p, size_t size)
{
    snprintf(text_p, size, "%d", copy->root);
}

static void say_scales(const struct hvi_submission *copy, char *text_p, size_t size)
{
    snprintf(text_p, size, "prescale %.17g postscale %.17g", copy->prescale, copy->postscale);
}

static void say_memory(const struct hvi_submission *copy, char *text_p, size_t size)
{
    if (copy->memory_kind == ENGINE_MEMORY_HOST)
        snprintf(text_p, size, "host");
    else
        snprintf(text_p, size, "kind %u", copy->memory_kind);
}

/* In the order of precedence: what stands further up makes what stands below meaningless. Shapes of
 * a barrier and dtypes of a barrier are not compared because its parts have none. */
static const struct aspect {
    const char *name;
    bool barrier_too;
    bool (*same)(const struct hvi_submission *a, const struct hvi_submission *b);
    void (*say)(const struct hvi_submission *copy, char *text_p, size_t size);
} aspects[] = {
    {"kind", true, same_kind, say_kind},
    {"dtype", false, same_dtype, say_dtype},
    {"shape", false, same_shape, say_shape},
    {"reduce op", false, same_reduce, say_reduce},
    {"root", false, same_root, say_root},
    {"scale factors", false, same_scales, say_scales},
    {"memory kind", false, same_memory, say_memory},
};
#define ASPECTS (sizeof aspects / sizeof aspects[0])

static const struct aspect *first_difference(const struct hvi_submission *a,
                                             const struct hvi_submission *b)
{
    for (size_t i = 0; i < ASPECTS; i++) {
        if (!aspects[i].barrier_too && a->kind == HVI_KIND_BARRIER)
            continue;
        if (!aspects[i].same(a, b))
            return &aspects[i];
    }
    return NULL;
}

struct sentence {
    char *text;
    size_t size, used;
};

static void __attribute__((format(printf, 2, 3)))
append(struct sentence *sentence, const char *format, ...)
{
    va_list arguments;

    if (sentence->used >= sentence->size)
        return;
    va_start(arguments, format);
    int length = vsnprintf(sentence->text + sentence->used, sentence->size - sentence->used, format,
                           arguments);
    va_end(arguments);
    sentence->used += length > 0 ? (size_t)length : 0;
}

/* "ranks 0,1,3", and from 17 ranks on "ranks 0-15,18". */
static void append_group(struct sentence *sentence, struct engine_part *const *parts,
                         uint32_t ranks, const struct aspect *aspect, uint32_t leader)
{
    uint32_t members = 0, said = 0;

    for (uint32_t rank = leader; rank < ranks; rank++)
        members += aspect->same(&parts[leader]->copy, &parts[rank]->copy);
    append(sentence, members == 1 ? "rank " : "ranks ");
    for (uint32_t rank = leader; rank < ranks; rank++) {
        uint32_t last = rank;
        if (!aspect->same(&parts[leader]->copy, &parts[rank]->copy))
            continue;
        append(sentence, "%s%u", said++ > 0 ? "," : "", rank);
        while (members > 16 && last + 1 < ranks &&
               aspect->same(&parts[leader]->copy, &parts[last + 1]->copy))
            last++;
        if (last > rank)
            append(sentence, "-%u", last);
        rank = last;
    }
}

static bool leads_group(struct engine_part *const *parts, uint32_t rank,
                        const struct aspect *aspect)
{
    for (uint32_t before = 0; before < rank; before++) {
        if (aspect->same(&parts[before]->copy, &parts[rank]->copy))
            return false;
    }
    return true;
}

static void describe_difference(struct engine_part *const *parts, uint32_t ranks,
                                const struct engine_tensor *tensor, const struct aspect *aspect,
                                char *text_p, size_t text_size)
{
    struct sentence sentence = {.text = text_p, .size = text_size};
    char said[256], label[ENGINE_LABEL];
    uint32_t groups = 0;

    engine_tensor_label(tensor, label);
    append(&sentence, "%s '%s': ranks disagree on %s: ",
           aspect == aspects ? "op" : hvi_kind_text(parts[0]->copy.kind), label, aspect->name);
    for (uint32_t rank = 0; rank < ranks; rank++) {
        if (!leads_group(parts, rank, aspect))
            continue;
        aspect->say(&parts[rank]->copy, said, sizeof said);
        append(&sentence, "%s", groups++ > 0 ? "; " : "");
        append_group(&sentence, parts, ranks, aspect, rank);
        append(&sentence, " said %s", said);
    }
}

static bool gather_overlaps(const struct engine_part *part, uint32_t ranks)
{
    const struct hvi_submission *copy = &part->copy;

    if (copy->kind != HVI_KIND_ALLGATHER || !part->in || part->in != part->out)
        return false;
    if (ranks == 1 && copy->in_offset == copy->out_offset)
        return false;
    return copy->in_offset < copy->out_offset + copy->out_capacity &&
           copy->out_offset < copy->in_offset + part->in_bytes;
}

int engine_agree_check(struct engine_part *const *parts, uint32_t ranks,
                       const struct engine_tensor *tensor, char *text_p, size_t text_size)
{
    const struct hvi_submission *first = &parts[0]->copy;
    const struct aspect *worst = NULL;
    char why[128], label[ENGINE_LABEL];

    for (uint32_t rank = 1; rank < ranks; rank++) {
        const struct aspect *aspect = first_difference(first, &parts[rank]->copy);
        if (aspect && (!worst || aspect < worst))
            worst = aspect;
    }
    if (worst) {
        describe_difference(parts, ranks, tensor, worst, text_p, text_size);
        return HVI_ERR_MISMATCH;
    }
    if (first->kind == HVI_KIND_ALLREDUCE &&
        hvi_reduction_check(first->dtype, first->reduce_op, first->prescale, first->postscale, why,
                            sizeof why) != HVI_OK) {
        engine_tensor_label(tensor, label);
        snprintf(text_p, text_size, "allreduce '%s': %s", label, why);
        return HVI_ERR_UNSUPPORTED;
    }
    for (uint32_t rank = 0; rank < ranks; rank++) {
        if (!gather_overlaps(parts[rank], ranks))
            continue;
        engine_tensor_label(tensor, label);
        snprintf(text_p, text_size, "allgather '%s': rank %u's input lies inside its output", label,
                 rank);
        return HVI_ERR_INVALID;
    }
    return HVI_OK;
}
