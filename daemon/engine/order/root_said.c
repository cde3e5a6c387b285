/* SPDX-License-Identifier: Apache-2.0
 * Root: what the ranks of a node say of an op. It is checked as intake.c checks a submission: the node is another
 * process. */
#include "daemon/engine/order/root_said.h"

#include "base/bits.h"
#include "base/status.h"
#include "daemon/engine/order/span_name.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define GROUP_MAX 65536u /* members, whatever a node says */

static bool moves(uint32_t kind)
{
    return kind == HVI_KIND_ALLREDUCE || kind == HVI_KIND_ALLGATHER || kind == HVI_KIND_BROADCAST ||
           kind == HVI_KIND_ALLTOALL || kind == HVI_KIND_REDUCESCATTER;
}

static double number_of(uint64_t bits)
{
    double number;

    memcpy(&number, &bits, sizeof number);
    return number;
}

/* What intake.c checks of a submission. */
static int take_shape(const struct engine_root_hearing *hearing, const struct hvi_mesh_said *said,
                      struct engine_part *part)
{
    uint32_t element = said->dtype <= UINT8_MAX ? hvi_dtype_bytes((uint8_t)said->dtype) : 0;
    uint64_t count = 1;
    bool empty = false, fits = true;

    if (element == 0 || said->reduce_op > UINT8_MAX || said->ndim > HVI_DIMS_MAX)
        return engine_root_disbelieve(hearing, "dtype %u, reduce op %u, %zu dimensions",
                                      said->dtype, said->reduce_op, said->ndim);
    for (size_t i = 0; i < said->ndim; i++) {
        if (said->dims[i] < 0)
            return engine_root_disbelieve(hearing, "a dimension is %" PRId64, said->dims[i]);
        part->copy.dims[i] = said->dims[i];
        empty = empty || said->dims[i] == 0;
    }
    for (size_t i = 0; i < said->ndim && !empty; i++)
        fits = fits && hvi_mul_checked(count, (uint64_t)said->dims[i], &count);
    count = empty ? 0 : count;
    if (!fits || !hvi_mul_checked(count, element, &part->in_bytes))
        return engine_root_disbelieve(hearing, "the shape's size overflows");
    part->copy.dtype = (uint8_t)said->dtype;
    part->copy.reduce_op = (uint8_t)said->reduce_op;
    part->copy.ndim = (uint8_t)said->ndim;
    part->copy.count = count;
    part->copy.prescale = number_of(said->prescale);
    part->copy.postscale = number_of(said->postscale);
    return HVI_OK;
}

static int take_group(const struct engine_root_hearing *hearing, const struct hvi_mesh_said *said,
                      struct engine_part *part)
{
    if (!said->has_leader)
        return HVI_OK;
    if (said->group_index >= said->group_size || said->group_size > GROUP_MAX || !moves(said->kind))
        return engine_root_disbelieve(hearing, "member %u of a group of %u", said->group_index,
                                      said->group_size);
    part->leader = engine_span_tensor(&hearing->root->tensors, hearing->set->serial, &said->leader);
    if (!part->leader)
        return engine_root_disbelieve(hearing, "a group without a name");
    part->copy.group_size = said->group_size;
    part->copy.group_index = said->group_index;
    return HVI_OK;
}

static int take_integers(const struct engine_root_hearing *hearing,
                         const struct hvi_mesh_said *said, struct engine_part *part)
{
    if (said->integer_count == 0)
        return HVI_OK;
    if (said->kind != HVI_KIND_SET_ADD &&
        (said->kind != HVI_KIND_ALLTOALL || said->integer_count != hearing->set->size))
        return engine_root_disbelieve(hearing, "%zu integers", said->integer_count);
    part->integers = malloc(said->integer_count * sizeof *part->integers);
    if (!part->integers)
        return HVI_ERR_NO_MEMORY;
    memcpy(part->integers, said->integers, said->integer_count * sizeof *part->integers);
    part->integer_count = (uint32_t)said->integer_count;
    return HVI_OK;
}

static int take_part(const struct engine_root_hearing *hearing, const struct hvi_mesh_said *said,
                     struct engine_part *part)
{
    int status = HVI_OK;

    if (said->kind > UINT16_MAX || !hvi_kind_is_known((uint16_t)said->kind) ||
        engine_partial_is((uint16_t)said->kind) || said->kind == HVI_KIND_JOIN)
        return engine_root_disbelieve(hearing, "an op of kind %u", said->kind);
    if (said->memory > HVI_MEMORY_DEVICE && said->memory != ENGINE_MEMORY_ANY)
        return engine_root_disbelieve(hearing, "memory %u", said->memory);
    part->memory = (uint8_t)said->memory;
    part->copy.kind = (uint16_t)said->kind;
    part->copy.root = said->root;
    part->copy.process_set = hearing->set->id;
    if (moves(said->kind))
        status = take_shape(hearing, said, part);
    if (status == HVI_OK &&
        (said->kind == HVI_KIND_ALLREDUCE || said->kind == HVI_KIND_REDUCESCATTER) &&
        !hvi_reduce_is_known(part->copy.reduce_op))
        status = engine_root_disbelieve(hearing, "reduce op %u", said->reduce_op);
    if (status == HVI_OK)
        status = take_group(hearing, said, part);
    return status == HVI_OK ? take_integers(hearing, said, part) : status;
}

static bool says_same(const struct engine_part *a, const struct engine_part *b)
{
    return memcmp(&a->copy, &b->copy, sizeof a->copy) == 0 && a->leader == b->leader &&
           a->memory == b->memory && a->integer_count == b->integer_count &&
           (a->integer_count == 0 ||
            memcmp(a->integers, b->integers, a->integer_count * sizeof *a->integers) == 0);
}

#define VOICES_COMPARED 4u /* newer ones: as a rule all nodes say the same, or each rank its own */

struct engine_part *engine_root_said_listen(const struct engine_root_hearing *hearing,
                                            struct engine_meeting *meeting,
                                            const struct hvi_mesh_said *said, int *status_p)
{
    struct engine_voice *voice = calloc(1, sizeof *voice), *other = meeting->voices;

    *status_p = voice ? HVI_OK : HVI_ERR_NO_MEMORY;
    if (!voice)
        return NULL;
    *status_p = take_part(hearing, said, &voice->part);
    for (uint32_t i = 0; i < VOICES_COMPARED && other && !says_same(&other->part, &voice->part);
         i++)
        other = i + 1 < VOICES_COMPARED ? other->next : NULL;
    if (*status_p == HVI_OK && !other) {
        voice->next = meeting->voices;
        meeting->voices = voice;
        return &voice->part;
    }
    if (voice->part.leader)
        engine_tensor_put(&hearing->root->tensors, voice->part.leader);
    free(voice->part.integers);
    free(voice);
    return *status_p == HVI_OK ? &other->part : NULL;
}

static int spread(const struct engine_root_hearing *hearing, struct engine_share *share,
                  const struct hvi_mesh_said *said, struct engine_part *part)
{
    uint32_t places = hearing->set->span->places[hearing->index];

    for (size_t i = 0; i < said->place_count; i++) {
        int32_t place = said->places[i];
        if (place < 0 || (uint32_t)place >= places || share->each[place])
            return engine_root_disbelieve(hearing, "it has no member %d to speak for", place);
        share->each[place] = part;
    }
    return said->place_count > 0 ? HVI_OK
                                 : engine_root_disbelieve(hearing, "something that no rank said");
}

/* Of members with memory of GPUs; no places: of all there. That a worker is of one node, each looks at for its own
 * (verdict.c): here it would be all against all. */
static int take_instances(const struct engine_root_hearing *hearing, struct engine_share *share,
                          const struct hvi_mesh_said *said)
{
    const uint32_t places = hearing->set->span->places[hearing->index];
    const size_t speakers = said->place_count > 0 ? said->place_count : places;
    const size_t due = said->memory == HVI_MEMORY_DEVICE && moves(said->kind) ? speakers : 0;

    if (said->instance_count != due)
        return engine_root_disbelieve(hearing, "%zu GPU workers of %zu ranks", said->instance_count,
                                      due);
    if (due > 0 && !share->instances)
        share->instances = calloc(places, sizeof *share->instances);
    if (due > 0 && !share->instances)
        return HVI_ERR_NO_MEMORY;
    for (size_t i = 0; i < due; i++) {
        if (said->instances[i] == 0)
            return engine_root_disbelieve(hearing, "memory of a GPU that no worker has");
        share->instances[said->place_count > 0 ? (size_t)said->places[i] : i] = said->instances[i];
    }
    return HVI_OK;
}

int engine_root_said_take(const struct engine_root_hearing *hearing, struct engine_meeting *meeting)
{
    const struct hvi_mesh_report *report = hearing->report;
    struct engine_share *share = &meeting->shares[hearing->index];
    uint32_t places = hearing->set->span->places[hearing->index];
    int status = HVI_OK;

    if (report->said_count == 0 || report->said_count > places)
        return engine_root_disbelieve(hearing, "%zu opinions of %u ranks", report->said_count,
                                      places);
    if (report->said_count == 1 && report->said[0].place_count == 0) {
        share->one = engine_root_said_listen(hearing, meeting, &report->said[0], &status);
        return status == HVI_OK ? take_instances(hearing, share, &report->said[0]) : status;
    }
    share->each = calloc(places, sizeof *share->each);
    if (!share->each)
        return HVI_ERR_NO_MEMORY;
    for (size_t i = 0; i < report->said_count && status == HVI_OK; i++) {
        struct engine_part *part =
            engine_root_said_listen(hearing, meeting, &report->said[i], &status);
        if (part)
            status = spread(hearing, share, &report->said[i], part);
        if (status == HVI_OK)
            status = take_instances(hearing, share, &report->said[i]);
    }
    return status;
}
