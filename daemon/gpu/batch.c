/* SPDX-License-Identifier: Apache-2.0
 * Reading a batch. A number is compared before it is used; a range is compared by subtraction, so that no sum can wrap. */
#include "daemon/gpu/batch.h"

#include "base/types.h"
#include "shm/fence.h"

#include <string.h>

#define NUMBERS_PER_SLOT (sizeof(struct hvi_device_sizes) / sizeof(uint64_t))

struct reader {
    const union gpu_slot *slots;
    uint32_t count, at;
    const struct gpu_batch_names *names;
    struct gpu_batch *batch;
    const char *lie; /* the first one */
};

/* Always false. */
static bool lie(struct reader *reader, const char *what)
{
    if (reader->lie == NULL)
        reader->lie = what;
    return false;
}

static const union gpu_slot *next_slot(struct reader *reader)
{
    return reader->at < reader->count ? &reader->slots[reader->at++] : NULL;
}

/* ---- sizes ---- */

static bool add(uint64_t *sum, uint64_t value)
{
    return !__builtin_add_overflow(*sum, value, sum);
}

/* Sums `count` sizes that are `step` apart. False: they are no sizes. */
static bool sum_sizes(const struct gpu_work *work, uint64_t first, uint64_t step, uint64_t *sum_p)
{
    const uint32_t element = hvi_dtype_bytes(work->said.dtype);

    *sum_p = 0;
    for (uint32_t i = 0; i < work->said.ranks; i++) {
        const uint64_t size = work->sizes[first + i * step];
        if (size % element != 0 || !add(sum_p, size))
            return false;
    }
    return true;
}

static bool check_sizes(struct reader *reader, const struct gpu_work *work)
{
    uint64_t sum;

    if (work->said.kind != HVI_KIND_ALLGATHER && work->said.kind != HVI_KIND_REDUCESCATTER)
        return true;
    if (!sum_sizes(work, 0, 1, &sum) || sum != work->said.bytes)
        return lie(reader, "sizes that are not those of the whole");
    return true;
}

static bool is_member(const struct gpu_work *work, uint32_t place)
{
    for (uint32_t i = 0; i < work->said.members; i++) {
        if (work->members[i].place == place)
            return true;
    }
    return false;
}

static bool check_homes(struct reader *reader, const struct gpu_work *work)
{
    const struct gpu_batch *batch = reader->batch;

    for (uint32_t place = 0; work->homes != NULL && place < work->said.ranks; place++) {
        const uint64_t home = work->homes[place];
        if ((home >= batch->comm_ranks && home != HVI_DEVICE_NOWHERE) ||
            (home == batch->comm_rank) != is_member(work, place))
            return lie(reader, "a member's home that cannot be");
    }
    return true;
}

/* Takes the slots of sizes and homes. */
static bool take_numbers(struct reader *reader, struct gpu_work *work)
{
    const struct hvi_device_work *said = &work->said;
    const uint64_t sizes = hvi_device_count_sizes(said->kind, said->ranks);
    const bool has_homes =
        reader->batch->comm != 0 && hvi_device_has_homes(said->kind, said->reduce_op);
    const uint64_t numbers = sizes + (has_homes ? said->ranks : 0);
    const uint64_t slots = (numbers + NUMBERS_PER_SLOT - 1) / NUMBERS_PER_SLOT;

    if (said->sizes != slots || slots > reader->count - reader->at)
        return lie(reader, "a work with sizes too few or too many");
    work->sizes = reader->slots[reader->at].sizes.values;
    work->homes = has_homes ? work->sizes + sizes : NULL;
    reader->at += (uint32_t)slots;
    return true;
}

/* ---- members ---- */

/* The bytes that a work reads of a member's input and writes of its output. False: its sizes are none. */
static bool bytes_of(const struct gpu_work *work, uint32_t index, uint64_t *in_p, uint64_t *out_p)
{
    const struct hvi_device_work *said = &work->said;
    const uint32_t place = work->members[index].place;
    const bool is_root = said->root_member == (int32_t)index;

    *in_p = *out_p = said->bytes;
    switch (said->kind) {
    case HVI_KIND_ALLREDUCE:
        return true;
    case HVI_KIND_BROADCAST:
    case HVI_KIND_SEND:
        *in_p = is_root ? said->bytes : 0;
        return true;
    case HVI_KIND_ALLGATHER:
        *in_p = work->sizes[place];
        return true;
    case HVI_KIND_REDUCESCATTER:
        *out_p = work->sizes[place];
        return true;
    default:
        return sum_sizes(work, (uint64_t)place * said->ranks, 1, in_p) &&
               sum_sizes(work, place, said->ranks, out_p);
    }
}

/* *address_p: where an operand lies, or 0. */
static bool find_operand(struct reader *reader, uint32_t import, uint64_t offset, uint64_t bytes,
                         uint32_t element, uint64_t *address_p)
{
    uint64_t base, size;

    *address_p = 0;
    if (import == HVI_DEVICE_NONE || bytes == 0)
        return true;
    if (!reader->names->import(reader->names->user, import, &base, &size))
        return lie(reader, "an import that is not there");
    if (offset > size || bytes > size - offset)
        return lie(reader, "an operand beyond its import");
    if ((base + offset) % element != 0)
        return lie(reader, "an operand that is not aligned");
    *address_p = base + offset;
    return true;
}

static bool find_fence(struct reader *reader, const struct hvi_device_member *said,
                       struct gpu_member *member)
{
    uint64_t page;

    if (said->cell == 0)
        return true;
    if (said->cell >= HVI_FENCE_CELLS || said->turn == 0 || said->turn >= HVI_FENCE_TURNS)
        return lie(reader, "a fence that cannot be");
    if (!reader->names->page(reader->names->user, said->page, &page, &member->page))
        return lie(reader, "a fence page that is not there");
    member->fence = page + said->cell * sizeof(struct hvi_fence);
    member->cell = said->cell;
    member->turn = said->turn;
    return true;
}

/* Whether a member lacks an operand that the steps of its kind rely on. */
static bool lacks(const struct gpu_batch *batch, const struct gpu_work *work, uint32_t index,
                  uint64_t in_bytes, uint64_t out_bytes)
{
    const struct gpu_member *member = &work->members[index];
    const bool needs_in = in_bytes > 0;
    const bool needs_out =
        out_bytes > 0 &&
        (work->said.kind == HVI_KIND_ALLTOALL ||
         (work->said.kind == HVI_KIND_ALLGATHER && batch->comm != 0) ||
         (work->said.kind == HVI_KIND_BROADCAST && work->said.root_member != (int32_t)index));

    return (needs_in && member->in == 0) || (needs_out && member->out == 0);
}

/* Its place is known already. */
static bool read_operands(struct reader *reader, const struct gpu_work *work, uint32_t index,
                          const struct hvi_device_member *said, struct gpu_member *member)
{
    const uint32_t element = hvi_dtype_bytes(work->said.dtype);
    uint64_t in, out;

    if (!bytes_of(work, index, &in, &out))
        return lie(reader, "sizes that cannot be");
    if (!find_operand(reader, said->in_import, said->in_offset, in, element, &member->in) ||
        !find_operand(reader, said->out_import, said->out_offset, out, element, &member->out) ||
        !find_fence(reader, said, member))
        return false;
    if (lacks(reader->batch, work, index, in, out))
        return lie(reader, "a member without an operand");
    return true;
}

/* Slots of the work's members, whose sizes come behind them: places first, operands later. */
static bool take_places(struct reader *reader, struct gpu_work *work)
{
    struct gpu_member *members = &reader->batch->members[reader->batch->member_count];

    work->members = members;
    for (uint32_t i = 0; i < work->said.members; i++) {
        const union gpu_slot *slot = next_slot(reader);
        if (slot == NULL || slot->member.command != HVI_DEVICE_MEMBER)
            return lie(reader, "a member that is none");
        members[i] = (struct gpu_member){.place = slot->member.place};
        if (members[i].place >= work->said.ranks ||
            (i > 0 && members[i].place <= members[i - 1].place))
            return lie(reader, "a member at a place that cannot be");
    }
    reader->batch->member_count += work->said.members;
    return true;
}

/* A send has one output, of a member of the worker that has not the root, if there are two. */
static bool check_send(struct reader *reader, const struct gpu_work *work)
{
    const uint32_t due = reader->batch->comm == 0 || work->said.root_member < 0;
    uint32_t outs = 0;

    for (uint32_t i = 0; i < work->said.members; i++)
        outs += work->members[i].out != 0;
    if (work->said.kind == HVI_KIND_SEND && work->said.bytes > 0 && outs != due)
        return lie(reader, "a send with outputs too few or too many");
    return true;
}

static bool read_members(struct reader *reader, const struct gpu_work *work,
                         const union gpu_slot *slots)
{
    struct gpu_member *members =
        &reader->batch->members[reader->batch->member_count - work->said.members];

    for (uint32_t i = 0; i < work->said.members; i++) {
        if (!read_operands(reader, work, i, &slots[i].member, &members[i]))
            return false;
    }
    return check_send(reader, work);
}

/* ---- works ---- */

static bool is_reduction(uint32_t kind)
{
    return kind == HVI_KIND_ALLREDUCE || kind == HVI_KIND_REDUCESCATTER;
}

static bool has_root(uint32_t kind)
{
    return kind == HVI_KIND_BROADCAST || kind == HVI_KIND_SEND;
}

static bool check_root(struct reader *reader, const struct hvi_device_work *said)
{
    const struct gpu_batch *batch = reader->batch;

    if (!has_root(said->kind))
        return true;
    if (said->root_member < -1 || said->root_member >= said->members)
        return lie(reader, "a root that is no member");
    if (batch->comm == 0 && said->root_member < 0)
        return lie(reader, "a root that is nowhere");
    if (batch->comm != 0 &&
        (said->root < 0 || (uint32_t)said->root >= batch->comm_ranks ||
         ((uint32_t)said->root == batch->comm_rank) != (said->root_member >= 0)))
        return lie(reader, "a root of no rank of the communicator");
    if (said->kind == HVI_KIND_SEND && batch->comm != 0 && batch->comm_ranks != 2)
        return lie(reader, "a send between more than two");
    return true;
}

static bool check_work(struct reader *reader, const struct hvi_device_work *said)
{
    const uint32_t element = hvi_dtype_bytes(said->dtype);

    if (said->kind != HVI_KIND_ALLTOALL && said->kind != HVI_KIND_ALLGATHER &&
        !is_reduction(said->kind) && !has_root(said->kind))
        return lie(reader, "a kind of work that no worker does");
    if (element == 0 || said->bytes % element != 0)
        return lie(reader, "a type that does not fit its bytes");
    if (is_reduction(said->kind) && !hvi_reduce_is_known(said->reduce_op))
        return lie(reader, "a reduction that is none");
    if (said->kind == HVI_KIND_ALLREDUCE && said->count != said->bytes / element)
        return lie(reader, "a count that is not that of its bytes");
    if (said->members == 0 || said->members > HVI_DEVICE_MEMBERS || said->ranks == 0 ||
        said->ranks > HVI_JOB_RANKS_MAX)
        return lie(reader, "a work with members too few or too many");
    return check_root(reader, said);
}

/* Works of a batch are planned as one. */
static bool fits(const struct gpu_work *first, const struct gpu_work *work)
{
    const struct hvi_device_work *a = &first->said, *b = &work->said;

    if (a->kind != b->kind || a->dtype != b->dtype || a->reduce_op != b->reduce_op ||
        a->members != b->members || a->ranks != b->ranks || a->divisor != b->divisor ||
        memcmp(&a->prescale, &b->prescale, sizeof(a->prescale)) != 0 ||
        memcmp(&a->postscale, &b->postscale, sizeof(a->postscale)) != 0)
        return false;
    for (uint32_t i = 0; i < a->members; i++) {
        if (first->members[i].place != work->members[i].place)
            return false;
    }
    return true;
}

static bool read_work(struct reader *reader)
{
    struct gpu_work *work = &reader->batch->works[reader->batch->work_count];
    const union gpu_slot *slot = next_slot(reader), *members;

    if (slot == NULL || slot->work.command != HVI_DEVICE_WORK)
        return lie(reader, "a work that is none");
    *work = (struct gpu_work){.said = slot->work};
    members = slot + 1;
    if (!check_work(reader, &work->said) || !take_places(reader, work) ||
        !take_numbers(reader, work) || !check_sizes(reader, work) || !check_homes(reader, work))
        return false;
    if (!fits(&reader->batch->works[0], work))
        return lie(reader, "works of two kinds");
    reader->batch->work_count++;
    return read_members(reader, work, members);
}

static bool read_head(struct reader *reader)
{
    const struct hvi_device_batch *said = &reader->slots[0].batch;
    struct gpu_batch *batch = reader->batch;
    uint32_t ranks = 0, rank = 0;

    reader->at = 1;
    batch->number = said->number;
    batch->is_timed = (said->flags & HVI_DEVICE_TIMED) != 0;
    batch->comm = said->comm;
    batch->comm_ranks = said->comm_ranks;
    batch->comm_rank = said->comm_rank;
    batch->stream = said->stream;
    batch->work_count = batch->member_count = 0;
    if (said->command != HVI_DEVICE_BATCH || said->slots != reader->count || said->works == 0 ||
        said->works > HVI_DEVICE_WORKS)
        return lie(reader, "a batch that is none");
    if (said->comm != 0 && !reader->names->comm(reader->names->user, said->comm, &ranks, &rank))
        return lie(reader, "a communicator that is not there");
    if (said->comm_ranks != ranks || said->comm_rank != rank)
        return lie(reader, "another communicator than the one it names");
    return true;
}

const char *gpu_batch_read(const union gpu_slot *slots, uint32_t count,
                           const struct gpu_batch_names *names, struct gpu_batch *batch_p)
{
    struct reader reader = {.slots = slots, .count = count, .names = names, .batch = batch_p};

    if (!read_head(&reader))
        return reader.lie;
    for (uint32_t i = 0; i < slots[0].batch.works; i++) {
        if (!read_work(&reader))
            return reader.lie;
    }
    return reader.at == count ? NULL : "slots behind its last work";
}
