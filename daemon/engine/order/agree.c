/* SPDX-License-Identifier: Apache-2.0
 * Agree: what the ranks of a complete op have to say alike, and the one sentence they all get when
 * they do not. Pure but for what a tensor remembers.
 *
 * Where a set has members on several nodes, meeting.c makes such an op of what the nodes report: all
 * members have places there. Those that say the same share a part, so a part's .place means nothing.
 *
 * Steady state: a tensor remembers what its ranks agreed on last (struct engine_agreed). A part that
 * repeats it is only counted, and when all did, they agree with each other, and what they ask for
 * was found possible before: nothing is checked. Ops whose parts differ by right (splits) are always
 * checked. */
#include "daemon/engine/order/agree.h"

#include "base/status.h"
#include "daemon/engine/order/sentence.h"
#include "daemon/engine/order/sizes.h"
#include "reduce/reduce.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KIND(name) (1u << HVI_KIND_##name)
#define TENSORS                                                                                    \
    (KIND(ALLREDUCE) | KIND(ALLGATHER) | KIND(BROADCAST) | KIND(ALLTOALL) | KIND(REDUCESCATTER))
#define PAIRS      (KIND(SEND) | KIND(RECV))
#define REDUCTIONS (KIND(ALLREDUCE) | KIND(REDUCESCATTER))
#define OWN_ROWS   (KIND(ALLGATHER) | KIND(ALLTOALL)) /* the first dimension is each rank's own */

static bool is_kind(uint32_t kind, uint32_t kinds)
{
    return (kinds >> kind & 1u) != 0;
}

/* ---- what is compared ---- */

static bool same_kind(const struct engine_part *a, const struct engine_part *b)
{
    return a->copy.kind == b->copy.kind;
}

static bool same_dtype(const struct engine_part *a, const struct engine_part *b)
{
    return a->copy.dtype == b->copy.dtype;
}

static bool same_shape(const struct engine_part *a, const struct engine_part *b)
{
    uint32_t from = is_kind(a->copy.kind, OWN_ROWS) ? 1 : 0;

    if (a->copy.ndim != b->copy.ndim)
        return false;
    for (uint32_t i = from; i < a->copy.ndim; i++) {
        if (a->copy.dims[i] != b->copy.dims[i])
            return false;
    }
    return true;
}

static bool same_count(const struct engine_part *a, const struct engine_part *b)
{
    return a->copy.count == b->copy.count;
}

static bool same_reduce(const struct engine_part *a, const struct engine_part *b)
{
    return a->copy.reduce_op == b->copy.reduce_op;
}

static bool same_root(const struct engine_part *a, const struct engine_part *b)
{
    return a->copy.root == b->copy.root;
}

static bool same_scales(const struct engine_part *a, const struct engine_part *b)
{
    return memcmp(&a->copy.prescale, &b->copy.prescale, sizeof a->copy.prescale) == 0 &&
           memcmp(&a->copy.postscale, &b->copy.postscale, sizeof a->copy.postscale) == 0;
}

static bool same_group(const struct engine_part *a, const struct engine_part *b)
{
    return a->leader == b->leader && (!a->leader || (a->copy.group_size == b->copy.group_size &&
                                                     a->copy.group_index == b->copy.group_index));
}

static bool same_memory(const struct engine_part *a, const struct engine_part *b)
{
    return a->memory == b->memory || a->memory == ENGINE_MEMORY_ANY ||
           b->memory == ENGINE_MEMORY_ANY;
}

static bool same_integers(const struct engine_part *a, const struct engine_part *b)
{
    return a->integer_count == b->integer_count &&
           (a->integer_count == 0 ||
            memcmp(a->integers, b->integers, a->integer_count * sizeof *a->integers) == 0);
}

static void say_kind(const struct engine_part *part, char *text_p, size_t size)
{
    snprintf(text_p, size, "%s", hvi_kind_text(part->copy.kind));
}

static void say_dtype(const struct engine_part *part, char *text_p, size_t size)
{
    snprintf(text_p, size, "%s", hvi_dtype_text(part->copy.dtype));
}

static void say_numbers(const int64_t *numbers, uint32_t count, char *text_p, size_t size)
{
    size_t used = 1;

    snprintf(text_p, size, "[");
    for (uint32_t i = 0; i < count && used < size; i++)
        used += (size_t)snprintf(text_p + used, size - used, "%s%" PRId64, i > 0 ? ", " : "",
                                 numbers[i]);
    if (used < size)
        snprintf(text_p + used, size - used, "]");
}

static void say_shape(const struct engine_part *part, char *text_p, size_t size)
{
    say_numbers(part->copy.dims, part->copy.ndim, text_p, size);
}

static void say_count(const struct engine_part *part, char *text_p, size_t size)
{
    snprintf(text_p, size, "%" PRIu64, part->copy.count);
}

static void say_reduce(const struct engine_part *part, char *text_p, size_t size)
{
    snprintf(text_p, size, "%s", hvi_reduce_text(part->copy.reduce_op));
}

static void say_root(const struct engine_part *part, char *text_p, size_t size)
{
    snprintf(text_p, size, "%d", part->copy.root);
}

static void say_scales(const struct engine_part *part, char *text_p, size_t size)
{
    snprintf(text_p, size, "prescale %.17g postscale %.17g", part->copy.prescale,
             part->copy.postscale);
}

static void say_group(const struct engine_part *part, char *text_p, size_t size)
{
    char label[ENGINE_LABEL];

    if (!part->leader) {
        snprintf(text_p, size, "not grouped");
        return;
    }
    engine_tensor_label(part->leader, label);
    snprintf(text_p, size, "member %u of %u of the group of '%s'", part->copy.group_index + 1,
             part->copy.group_size, label);
}

static void say_memory(const struct engine_part *part, char *text_p, size_t size)
{
    snprintf(text_p, size, "%s", hvi_memory_text(part->memory));
}

static void say_integers(const struct engine_part *part, char *text_p, size_t size)
{
    say_numbers(part->integers, part->integer_count, text_p, size);
}

/* In the order of precedence: what stands further up makes what stands below meaningless. */
static const struct aspect {
    const char *name;
    uint32_t kinds; /* for which it means something */
    bool (*same)(const struct engine_part *a, const struct engine_part *b);
    void (*say)(const struct engine_part *part, char *text_p, size_t size);
} aspects[] = {
    {"kind", ~PAIRS, same_kind, say_kind},
    {"dtype", TENSORS | PAIRS, same_dtype, say_dtype},
    {"number of elements", PAIRS, same_count, say_count},
    {"shape", TENSORS, same_shape, say_shape},
    {"reduce op", REDUCTIONS, same_reduce, say_reduce},
    {"root", KIND(BROADCAST), same_root, say_root},
    {"process set", KIND(SET_REMOVE), same_root, say_root},
    {"scale factors", REDUCTIONS, same_scales, say_scales},
    {"group", TENSORS, same_group, say_group},
    {"memory", TENSORS | PAIRS, same_memory, say_memory},
    {"ranks", KIND(SET_ADD), same_integers, say_integers},
};
#define ASPECTS (sizeof aspects / sizeof aspects[0])
#define MEMORY  (ASPECTS - 2)

static const struct aspect *first_difference(const struct engine_part *a,
                                             const struct engine_part *b)
{
    for (size_t i = 0; i < ASPECTS; i++) {
        if (is_kind(a->copy.kind, aspects[i].kinds) && !aspects[i].same(a, b))
            return &aspects[i];
    }
    return NULL;
}

/* ---- who said what ---- */

/* A part without bytes says nothing of memory. */
static bool says_alike(const struct aspect *aspect, const struct engine_part *a,
                       const struct engine_part *b)
{
    return aspect == &aspects[MEMORY] ? a->memory == b->memory : aspect->same(a, b);
}

/* The ranks that say what the member at place `speaker` says. */
static void append_speakers(struct engine_sentence *sentence, const struct engine_op *op,
                            const struct aspect *aspect, uint32_t speaker)
{
    int32_t *ranks = malloc(op->set->places * sizeof *ranks);
    char text[512];
    uint32_t count = 0;

    for (uint32_t i = speaker; ranks && i < op->set->places; i++) {
        if (op->parts[i] && says_alike(aspect, op->parts[speaker], op->parts[i]))
            ranks[count++] = engine_set_rank_at(op->set, i);
    }
    if (ranks)
        engine_ranks_text(ranks, count, text, sizeof text);
    else
        snprintf(text, sizeof text, "rank %d", engine_set_rank_at(op->set, speaker));
    engine_sentence_append(sentence, "%s", text);
    free(ranks);
}

static bool is_first_to_say(const struct engine_op *op, const struct aspect *aspect, uint32_t i)
{
    if (!op->parts[i] || (aspect == &aspects[MEMORY] && op->parts[i]->memory == ENGINE_MEMORY_ANY))
        return false;
    for (uint32_t before = 0; before < i; before++) {
        if (op->parts[before] && says_alike(aspect, op->parts[before], op->parts[i]))
            return false;
    }
    return true;
}

static void describe_difference(const struct engine_op *op, const struct aspect *aspect,
                                char *text_p, size_t text_size)
{
    struct engine_sentence sentence = {.text = text_p, .size = text_size};
    char said[256], label[ENGINE_LABEL];
    uint32_t opinions = 0;

    engine_tensor_label(op->tensor, label);
    engine_sentence_append(&sentence, "%s '%s': ranks disagree on %s: ",
                           aspect == aspects ? "op"
                                             : hvi_kind_text(engine_op_first_part(op)->copy.kind),
                           label, aspect->name);
    for (uint32_t i = 0; i < op->set->places; i++) {
        if (!is_first_to_say(op, aspect, i))
            continue;
        aspect->say(op->parts[i], said, sizeof said);
        engine_sentence_append(&sentence, "%s", opinions++ > 0 ? "; " : "");
        append_speakers(&sentence, op, aspect, i);
        engine_sentence_append(&sentence, " said %s", said);
    }
}

/* The first place at which two ranks' groups have different tensors. The members with a seat here. */
/* Where two ranks' groups differ, which have the same first member; false: nowhere. */
static bool find_stranger(const struct engine_op *leader, const struct engine_part **mine_p,
                          const struct engine_part **theirs_p, uint32_t *at_p)
{
    const struct engine_part *first = engine_op_first_part(leader);

    for (uint32_t i = first->place + 1; i < leader->set->places; i++) {
        *mine_p = first;
        *theirs_p = leader->parts[i];
        for (*at_p = 0; *theirs_p && *at_p < first->copy.group_size; ++*at_p) {
            if ((*mine_p)->tensor != (*theirs_p)->tensor)
                return true;
            *mine_p = (*mine_p)->sibling;
            *theirs_p = (*theirs_p)->sibling;
        }
    }
    return false;
}

bool engine_agree_on_group(const struct engine_op *leader)
{
    const struct engine_part *mine, *theirs;
    uint32_t at;

    return !find_stranger(leader, &mine, &theirs, &at);
}

void engine_agree_describe_group(const struct engine_op *leader, char *text_p, size_t text_size)
{
    const struct engine_part *first = engine_op_first_part(leader), *mine, *theirs;
    char label[ENGINE_LABEL], my_name[ENGINE_LABEL], their_name[ENGINE_LABEL];
    uint32_t at;

    engine_tensor_label(leader->tensor, label);
    if (!find_stranger(leader, &mine, &theirs, &at)) {
        snprintf(text_p, text_size, "%s '%s': ranks disagree on the members of its group",
                 hvi_kind_text(first->copy.kind), label);
        return;
    }
    engine_tensor_label(mine->tensor, my_name);
    engine_tensor_label(theirs->tensor, their_name);
    snprintf(text_p, text_size,
             "%s '%s': ranks disagree on member %u of %u of its group: rank %d said '%s'; rank %d "
             "said '%s'",
             hvi_kind_text(first->copy.kind), label, at + 1, first->copy.group_size,
             leader->set->ranks[mine->place], my_name, leader->set->ranks[theirs->place],
             their_name);
}

/* ---- can it be done? ---- */

static int __attribute__((format(printf, 4, 5)))
refuse(const struct engine_op *op, char *text_p, size_t text_size, const char *format, ...)
{
    struct engine_sentence sentence = {.text = text_p, .size = text_size};
    char label[ENGINE_LABEL], why[640];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(why, sizeof why, format, arguments);
    va_end(arguments);
    engine_tensor_label(op->tensor, label);
    engine_sentence_append(&sentence, "%s '%s': %s",
                           hvi_kind_text(engine_op_first_part(op)->copy.kind), label, why);
    return HVI_ERR_INVALID;
}

static int check_root(const struct engine_op *op, char *text_p, size_t text_size)
{
    int32_t root = engine_op_first_part(op)->copy.root;
    int32_t set_rank = engine_set_rank(op->set, root);
    char members[400];

    if (set_rank < 0) {
        engine_ranks_text(op->set->members, op->set->size, members, sizeof members);
        return refuse(op, text_p, text_size, "root rank %d is not a member of process set %u (%s)",
                      root, op->set->id, members);
    }
    if (!op->parts[set_rank])
        return refuse(op, text_p, text_size, "root rank %d has joined and has nothing to send",
                      root);
    return HVI_OK;
}

static int check_splits_of(const struct engine_op *op, uint32_t from, char *text_p,
                           size_t text_size)
{
    const struct engine_part *part = op->parts[from];
    int32_t rank = engine_set_rank_at(op->set, from);
    int64_t sum = 0;

    if (!part->integers) {
        if (part->copy.dims[0] % op->set->size == 0)
            return HVI_OK;
        return refuse(op, text_p, text_size,
                      "rank %d gave no splits, and its %" PRId64
                      " rows cannot be cut into %u equal parts",
                      rank, part->copy.dims[0], op->set->size);
    }
    for (uint32_t to = 0; to < op->set->size; to++) {
        if (part->integers[to] < 0)
            return refuse(op, text_p, text_size,
                          "rank %d wants to send %" PRId64 " rows to rank %d", rank,
                          part->integers[to], engine_set_member(op->set, to));
        if (__builtin_add_overflow(sum, part->integers[to], &sum) || sum > part->copy.dims[0])
            return refuse(op, text_p, text_size,
                          "the splits of rank %d add up to more than its %" PRId64 " rows", rank,
                          part->copy.dims[0]);
    }
    return HVI_OK;
}

static int check_splits(const struct engine_op *op, char *text_p, size_t text_size)
{
    int status = HVI_OK;

    for (uint32_t i = 0; i < op->set->places && status == HVI_OK; i++) {
        if (op->parts[i])
            status = check_splits_of(op, i, text_p, text_size);
    }
    return status;
}

static int check_reduction(const struct engine_op *op, char *text_p, size_t text_size)
{
    const struct hvi_submission *copy = &engine_op_first_part(op)->copy;
    char why[128];
    int status = hvi_reduction_check(copy->dtype, copy->reduce_op, copy->prescale, copy->postscale,
                                     why, sizeof why);

    if (status != HVI_OK)
        refuse(op, text_p, text_size, "%s", why);
    return status;
}

static int check_ranks(const struct engine_op *op, char *text_p, size_t text_size)
{
    const struct engine_part *first = engine_op_first_part(op);
    int32_t size = (int32_t)op->set->size; /* set 0: all ranks */

    if (first->integer_count == 0)
        return refuse(op, text_p, text_size, "a process set needs at least one rank");
    for (uint32_t i = 0; i < first->integer_count; i++) {
        int64_t rank = first->integers[i];
        if (rank < 0 || rank >= size)
            return refuse(op, text_p, text_size, "there is no rank %" PRId64 " in a job of %d",
                          rank, size);
        if (i > 0 && rank == first->integers[i - 1])
            return refuse(op, text_p, text_size, "rank %" PRId64 " stands there twice", rank);
    }
    return HVI_OK;
}

static int check_possible(const struct engine_op *op, char *text_p, size_t text_size)
{
    const struct engine_part *first = engine_op_first_part(op);
    uint32_t kind = first->copy.kind;
    int status = HVI_OK;

    if (is_kind(kind, KIND(SET_ADD) | KIND(SET_REMOVE) | KIND(SET_CLOSE)) &&
        op->parts_present < op->set->places)
        return refuse(op, text_p, text_size,
                      "a rank has joined and cannot take part: process sets change before or after "
                      "a join");
    if (engine_sizes_asks((uint16_t)kind) && first->copy.ndim == 0)
        return refuse(op, text_p, text_size, "a tensor without dimensions has no rows");
    if (is_kind(kind, REDUCTIONS))
        status = check_reduction(op, text_p, text_size);
    else if (kind == HVI_KIND_BROADCAST)
        status = check_root(op, text_p, text_size);
    else if (kind == HVI_KIND_ALLTOALL)
        status = check_splits(op, text_p, text_size);
    else if (kind == HVI_KIND_SET_ADD)
        status = check_ranks(op, text_p, text_size);
    else if (kind == HVI_KIND_SET_CLOSE && !op->set->opened)
        status = refuse(op, text_p, text_size,
                        "process set %u was not opened by its members alone: all ranks remove it",
                        op->set->id);
    return status;
}

/* A part without bytes agrees with both kinds of memory, so the others are compared with each other. */
static const struct aspect *memory_difference(const struct engine_op *op)
{
    const struct engine_part *said = NULL;

    for (uint32_t i = 0; i < op->set->places; i++) {
        const struct engine_part *part = op->parts[i];
        if (!part || part->memory == ENGINE_MEMORY_ANY)
            continue;
        if (said && said->memory != part->memory)
            return &aspects[MEMORY];
        said = part;
    }
    return NULL;
}

int engine_agree_memory(const struct engine_op *op, char *text_p, size_t text_size)
{
    const struct aspect *aspect = memory_difference(op);

    if (!aspect)
        return HVI_OK;
    describe_difference(op, aspect, text_p, text_size);
    return HVI_ERR_MISMATCH;
}

int engine_agree_compare(const struct engine_op *op, char *text_p, size_t text_size)
{
    const struct engine_part *first = engine_op_first_part(op);
    const struct aspect *worst = NULL;

    for (uint32_t i = 0; i < op->set->places; i++) {
        const struct engine_part *part = op->parts[i];
        const struct aspect *aspect = part && part != first ? first_difference(first, part) : NULL;
        if (aspect && (!worst || aspect < worst))
            worst = aspect;
    }
    if (!worst && first->memory == ENGINE_MEMORY_ANY)
        worst = memory_difference(op);
    if (!worst)
        return HVI_OK;
    describe_difference(op, worst, text_p, text_size);
    return HVI_ERR_MISMATCH;
}

int engine_agree_pair(const struct engine_tensor *tensor, const struct engine_part *send,
                      const struct engine_part *recv, char *text_p, size_t text_size)
{
    const struct engine_part *low = send->rank < recv->rank ? send : recv;
    const struct engine_part *high = low == send ? recv : send;
    const struct aspect *aspect = first_difference(low, high);
    char low_said[256], high_said[256], label[ENGINE_LABEL];

    if (!aspect)
        return HVI_OK;
    engine_tensor_label(tensor, label);
    aspect->say(low, low_said, sizeof low_said);
    aspect->say(high, high_said, sizeof high_said);
    snprintf(text_p, text_size, "%s '%s': ranks disagree on %s: rank %d said %s; rank %d said %s",
             hvi_kind_text(low->copy.kind), label, aspect->name, low->rank, low_said, high->rank,
             high_said);
    return HVI_ERR_MISMATCH;
}

int engine_agree_check(const struct engine_op *op, char *text_p, size_t text_size)
{
    int status = engine_agree_compare(op, text_p, text_size);

    return status == HVI_OK ? check_possible(op, text_p, text_size) : status;
}

/* ---- what was agreed on last ---- */

bool engine_agree_repeats(const struct engine_part *part)
{
    return engine_agree_repeats_as(part, part->tensor);
}

static bool repeats(const struct engine_part *part, const struct engine_agreed *agreed,
                    const struct hvi_submission *copy)
{
    return agreed->valid && agreed->leader == part->leader &&
           agreed->group_size == copy->group_size && agreed->group_index == copy->group_index &&
           hvi_agreement_repeats(&agreed->said, copy);
}

bool engine_agree_repeats_as(const struct engine_part *part, const struct engine_tensor *tensor)
{
    return tensor->agreed.memory == part->memory && repeats(part, &tensor->agreed, &part->copy);
}

bool engine_agree_repeats_but_rows(const struct engine_part *part,
                                   const struct engine_tensor *tensor)
{
    struct hvi_submission copy = part->copy;

    copy.dims[0] = tensor->agreed.said.dims[0];
    return (part->memory == ENGINE_MEMORY_ANY || part->memory == tensor->agreed.memory) &&
           repeats(part, &tensor->agreed, &copy);
}

void engine_agree_remember(const struct engine_op *op)
{
    engine_agree_remember_as(op, op->tensor);
}

/* That of the first part that has bytes. */
static uint8_t memory_of(const struct engine_op *op)
{
    for (uint32_t i = 0; i < op->set->places; i++) {
        if (op->parts[i] && op->parts[i]->memory != ENGINE_MEMORY_ANY)
            return op->parts[i]->memory;
    }
    return ENGINE_MEMORY_ANY;
}

void engine_agree_remember_as(const struct engine_op *op, struct engine_tensor *tensor)
{
    const struct engine_part *first = engine_op_first_part(op);
    struct engine_agreed *agreed = &tensor->agreed;
    /* What an alltoall says is not all that has to be checked; on several nodes sizes.c keeps the rest. */
    uint32_t kinds = (TENSORS | KIND(BARRIER)) & ~(op->set->span ? 0 : KIND(ALLTOALL));

    if (!is_kind(first->copy.kind, kinds) || op->parts_present < op->set->places)
        return;
    agreed->valid = true;
    agreed->memory = memory_of(op);
    agreed->leader = first->leader;
    agreed->group_size = first->copy.group_size;
    agreed->group_index = first->copy.group_index;
    hvi_agreement_of(&first->copy, first->in_bytes, &agreed->said);
}
