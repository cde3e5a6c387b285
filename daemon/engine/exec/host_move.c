/* SPDX-License-Identifier: Apache-2.0
 * What a byte range of an op needs. All kinds come down to two steps:
 *
 *   reduce  one range of the inputs of all members, to the same range of some outputs
 *   spread  one range of one member's input to a range of some outputs
 *
 * and both reach a remote operand through the thread's buffer: they go in pieces that stay in the
 * thread's own cache, so that main memory sees each byte of an operand once each way. A transfer
 * may have to be given up and may still come back, which must hurt no other rank: so the buffer is the only
 * local end of a transfer but for one. A remote-process input of an allreduce whose
 * rank's output is mapped needs no buffer: it is read to where the result will be.
 *
 *      in[0] --read--> slot 0 \
 *      in[1] (mapped) -------- reduce --> slot 0 --write--> out[0]
 *      in[2] --read--> out[2] /      \-> out[1] (mapped), out[2] (mapped)
 *
 * A transfer costs about 4 us (what the kernel needs for it has left the caches since the last one)
 * and, unless the owner's memory has huge pages, 0.6 us per page: the larger the piece the better,
 * as long as the thread's share of the last-level cache holds the pieces, the lines they came from,
 * which are soon written, and as much again that is others'. */
#include "daemon/engine/exec/host.h"

#include "base/assert.h"
#include "base/copy.h"
#include "base/status.h"
#include "base/types.h"

/* Slots do not begin at the same place of a page: their lines would compete for the same ways. */
#define SLOT_SKEW  192u
#define START_MOST 4096u /* where the first begins: hvi_copy_skew */
/* Mapped sources are spread in blocks that stay in the first cache; in the second, when the copies go
 * past the caches, because each such copy ends by waiting until all of it is in memory. */
#define SPREAD_BYTES        (16u * 1024u)
#define SPREAD_STREAM_BYTES (128u * 1024u)

_Static_assert(HVI_RANKS_MAX *(4096ull + SLOT_SKEW) + START_MOST <= ENGINE_HOST_BUFFER_BYTES,
               "every rank has a page in the buffer");

/* Copies whose result does not stay in the caches anyway. A reduction gains nothing by it. */
static bool streams(const struct engine_host_thread *thread, const struct engine_work *work)
{
    return work->bytes > thread->stream_bytes / work->ranks;
}

/* ---- reduce ---- */

/* One piece: pointers to the beginning of it, for whoever takes part. */
struct piece {
    const void *in[HVI_RANKS_MAX];
    void *out[HVI_RANKS_MAX + 1];
    uint32_t ins, outs;
};

/* Outputs of members [to, to_end). */
struct targets {
    uint32_t to, to_end;
    uint64_t at; /* in those outputs */
};

static bool is_remote(const struct engine_work *work)
{
    return engine_work_has(work, ENGINE_OPERAND_PROCESS);
}

static uint32_t count_remote(const struct engine_work *work)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < work->ranks; i++)
        count += work->in[i].kind == ENGINE_OPERAND_PROCESS;
    return count;
}

/* How much of each of `remote` operands goes at a time, if it is `bytes` altogether. */
static uint64_t piece_bytes(const struct engine_host_thread *thread, uint32_t remote,
                            uint64_t bytes)
{
    uint64_t slots = remote > 0 ? remote : 1;
    uint64_t most = (ENGINE_HOST_BUFFER_BYTES - START_MOST) / slots - SLOT_SKEW;
    uint64_t share = thread->share_bytes / 4 / slots;

    if (share < most)
        most = share > 4096 ? share : 4096;
    most = most / 64 * 64;
    uint64_t pieces = (bytes + most - 1) / most;
    return pieces > 1 ? (bytes / pieces + 63) / 64 * 64 : bytes;
}

/* Where a remote input of an allreduce goes without a slot: to its rank's own output, which is about
 * to be written anyway. NULL when that is not mapped. */
static void *place_in_output(const struct engine_work *work, uint32_t rank, uint64_t at)
{
    if (work->kind != HVI_KIND_ALLREDUCE || work->out[rank].kind != ENGINE_OPERAND_MAPPED)
        return NULL;
    return (char *)work->out[rank].address + at;
}

/* Where in the buffer a piece begins that goes to these outputs. */
static unsigned char *start_for(const struct engine_host_thread *thread,
                                const struct engine_work *work, const struct targets *targets)
{
    for (uint32_t i = targets->to; i < targets->to_end; i++) {
        if (work->out[i].kind == ENGINE_OPERAND_PROCESS)
            return thread->buffer +
                   hvi_copy_skew((uint64_t)(uintptr_t)work->out[i].address + targets->at);
    }
    return thread->buffer;
}

/* Those that have to be fetched come to `slot` and behind it. */
static int collect_inputs(const struct engine_host_thread *thread, const struct engine_work *work,
                          uint64_t at, uint64_t bytes, unsigned char *slot, uint64_t slot_bytes,
                          struct piece *piece, struct engine_fault *fault_p)
{
    for (uint32_t i = 0; i < work->ranks; i++) {
        const struct engine_operand *operand = &work->in[i];
        if (operand->kind == ENGINE_OPERAND_MAPPED)
            piece->in[piece->ins++] = (const char *)operand->address + at;
        if (operand->kind != ENGINE_OPERAND_PROCESS)
            continue;
        void *place = place_in_output(work, i, at);
        if (!place) {
            place = slot;
            slot += slot_bytes + SLOT_SKEW;
        }
        int status = engine_host_read(thread, work, i, at, place, bytes, fault_p);
        if (status != HVI_OK)
            return status;
        piece->in[piece->ins++] = place;
    }
    return HVI_OK;
}

/* True if some are remote. */
static bool collect_outputs(const struct engine_work *work, const struct targets *targets,
                            struct piece *piece)
{
    bool remote = false;

    for (uint32_t i = targets->to; i < targets->to_end; i++) {
        const struct engine_operand *operand = &work->out[i];
        if (operand->kind == ENGINE_OPERAND_MAPPED)
            piece->out[piece->outs++] = (char *)operand->address + targets->at;
        remote = remote || operand->kind == ENGINE_OPERAND_PROCESS;
    }
    return remote;
}

static int write_remote(const struct engine_host_thread *thread, const struct engine_work *work,
                        const struct targets *targets, const void *from, uint64_t bytes,
                        struct engine_fault *fault_p)
{
    int status = HVI_OK;

    for (uint32_t i = targets->to; i < targets->to_end && status == HVI_OK; i++) {
        if (work->out[i].kind == ENGINE_OPERAND_PROCESS)
            status = engine_host_write(thread, work, i, targets->at, from, bytes, fault_p);
    }
    return status;
}

static int reduce_piece(const struct engine_host_thread *thread, const struct engine_work *work,
                        uint64_t at, uint64_t bytes, const struct targets *targets,
                        uint64_t slot_bytes, struct engine_fault *fault_p)
{
    struct piece piece;
    unsigned char *result = start_for(thread, work, targets); /* which may be the first input */

    piece.ins = piece.outs = 0;
    int status = collect_inputs(thread, work, at, bytes, result, slot_bytes, &piece, fault_p);
    if (status != HVI_OK)
        return status;
    bool remote = collect_outputs(work, targets, &piece);
    if (remote)
        piece.out[piece.outs++] = result;
    if (piece.outs == 0)
        return HVI_OK;
    const struct hvi_reduction reduce = {
        .dtype = work->dtype,
        .reduce_op = work->reduce_op == HVI_REDUCE_ADASUM ? HVI_REDUCE_SUM : work->reduce_op,
        .ranks = work->ranks,
        .ins = piece.ins,
        .outs = piece.outs,
        .in = piece.in,
        .out = piece.out,
        .prescale = work->prescale,
        .postscale = work->postscale,
    };
    HVI_ASSERT(piece.ins > 0);
    thread->kernels->reduce(&reduce, 0, bytes / hvi_dtype_bytes(work->dtype));
    return remote ? write_remote(thread, work, targets, result, bytes, fault_p) : HVI_OK;
}

/* Bytes [at, at + bytes) of the inputs. */
static int reduce_range(const struct engine_host_thread *thread, const struct engine_work *work,
                        uint64_t at, uint64_t bytes, struct targets targets,
                        struct engine_fault *fault_p)
{
    uint64_t most = is_remote(work) ? piece_bytes(thread, count_remote(work), bytes) : bytes;
    int status = HVI_OK;

    while (bytes > 0 && status == HVI_OK) {
        uint64_t now = bytes < most ? bytes : most;
        status = reduce_piece(thread, work, at, now, &targets, most, fault_p);
        at += now;
        targets.at += now;
        bytes -= now;
    }
    return status;
}

/* ---- spread ---- */

struct source {
    uint32_t from;
    uint64_t at; /* in in[from] */
};

/* Source and target are the same bytes. */
static bool in_place(const struct engine_work *work, const struct source *source,
                     const struct targets *targets, uint32_t to)
{
    const struct engine_operand *in = &work->in[source->from], *out = &work->out[to];

    return (const char *)in->address + source->at == (const char *)out->address + targets->at &&
           in->kind == out->kind &&
           (in->kind == ENGINE_OPERAND_MAPPED || in->process == out->process);
}

/* The source's bytes lie at `data`. */
static int spread_mapped(const struct engine_host_thread *thread, const struct engine_work *work,
                         const struct source *source, const void *data, uint64_t bytes,
                         const struct targets *targets, struct engine_fault *fault_p)
{
    bool stream = streams(thread, work);
    int status = HVI_OK;

    for (uint32_t to = targets->to; to < targets->to_end && status == HVI_OK; to++) {
        const struct engine_operand *operand = &work->out[to];
        if (operand->kind == ENGINE_OPERAND_NONE || in_place(work, source, targets, to))
            continue;
        if (operand->kind == ENGINE_OPERAND_PROCESS)
            status = engine_host_write(thread, work, to, targets->at, data, bytes, fault_p);
        else
            thread->kernels->copy((char *)operand->address + targets->at, data, bytes, stream);
    }
    return status;
}

static bool writes_remote(const struct engine_work *work, const struct source *source,
                          const struct targets *targets)
{
    for (uint32_t to = targets->to; to < targets->to_end; to++) {
        if (work->out[to].kind == ENGINE_OPERAND_PROCESS && !in_place(work, source, targets, to))
            return true;
    }
    return false;
}

static int spread_piece(const struct engine_host_thread *thread, const struct engine_work *work,
                        const struct source *source, uint64_t bytes, const struct targets *targets,
                        struct engine_fault *fault_p)
{
    const struct engine_operand *in = &work->in[source->from];
    const void *data = (const char *)in->address + source->at;
    unsigned char *place = start_for(thread, work, targets);
    int status = HVI_OK;

    if (in->kind == ENGINE_OPERAND_PROCESS) {
        if (targets->to_end == targets->to + 1 &&
            work->out[targets->to].kind == ENGINE_OPERAND_NONE)
            return HVI_OK;
        status = engine_host_read(thread, work, source->from, source->at, place, bytes, fault_p);
        data = place;
    } else if (writes_remote(work, source, targets)) {
        thread->kernels->copy(place, data, bytes, false);
        data = place;
    }
    return status == HVI_OK ? spread_mapped(thread, work, source, data, bytes, targets, fault_p)
                            : status;
}

/* How much goes at a time: all, if it goes to one place only. */
static uint64_t spread_bytes(const struct engine_host_thread *thread,
                             const struct engine_work *work, const struct source *source,
                             uint64_t bytes, const struct targets *targets)
{
    uint32_t places = 0;

    if (is_remote(work))
        return piece_bytes(thread, 1, bytes);
    for (uint32_t to = targets->to; to < targets->to_end; to++)
        places += work->out[to].kind != ENGINE_OPERAND_NONE && !in_place(work, source, targets, to);
    if (places <= 1)
        return bytes;
    return streams(thread, work) ? SPREAD_STREAM_BYTES : SPREAD_BYTES;
}

static int spread_range(const struct engine_host_thread *thread, const struct engine_work *work,
                        struct source source, uint64_t bytes, struct targets targets,
                        struct engine_fault *fault_p)
{
    uint64_t most = spread_bytes(thread, work, &source, bytes, &targets);
    int status = HVI_OK;

    while (bytes > 0 && status == HVI_OK) {
        uint64_t now = bytes < most ? bytes : most;
        status = spread_piece(thread, work, &source, now, &targets, fault_p);
        source.at += now;
        targets.at += now;
        bytes -= now;
    }
    return status;
}

/* ---- kinds ---- */

struct range {
    uint64_t first, end;
};

/* The part of `range` that lies in [at, at + bytes); false if there is none. */
static bool overlap(const struct range *range, uint64_t at, uint64_t bytes, struct range *part_p)
{
    part_p->first = range->first > at ? range->first : at;
    part_p->end = range->end < at + bytes ? range->end : at + bytes;
    return part_p->first < part_p->end;
}

static int move_gather(const struct engine_host_thread *thread, const struct engine_work *work,
                       const struct range *range, struct engine_fault *fault_p)
{
    int status = HVI_OK;
    uint64_t at = 0;
    struct range part;

    for (uint32_t from = 0; from < work->ranks && status == HVI_OK; from++) {
        if (overlap(range, at, work->sizes[from], &part))
            status = spread_range(thread, work, (struct source){from, part.first - at},
                                  part.end - part.first,
                                  (struct targets){0, work->ranks, part.first}, fault_p);
        at += work->sizes[from];
    }
    return status;
}

static int move_scatter(const struct engine_host_thread *thread, const struct engine_work *work,
                        const struct range *range, struct engine_fault *fault_p)
{
    int status = HVI_OK;
    uint64_t at = 0;
    struct range part;

    for (uint32_t to = 0; to < work->ranks && status == HVI_OK; to++) {
        if (work->out[to].kind != ENGINE_OPERAND_NONE && overlap(range, at, work->sizes[to], &part))
            status = reduce_range(thread, work, part.first, part.end - part.first,
                                  (struct targets){to, to + 1, part.first - at}, fault_p);
        at += work->sizes[to];
    }
    return status;
}

/* The same range of every output. */
static int move_alltoall(const struct engine_host_thread *thread, const struct engine_work *work,
                         const struct range *range, struct engine_fault *fault_p)
{
    uint64_t in_at[HVI_RANKS_MAX] = {0};
    int status = HVI_OK;
    struct range part;

    for (uint32_t to = 0; to < work->ranks; to++) {
        uint64_t out_at = 0;
        for (uint32_t from = 0; from < work->ranks && status == HVI_OK; from++) {
            uint64_t bytes = work->sizes[(size_t)from * work->ranks + to];
            if (overlap(range, out_at, bytes, &part))
                status = spread_range(
                    thread, work, (struct source){from, in_at[from] + part.first - out_at},
                    part.end - part.first, (struct targets){to, to + 1, part.first}, fault_p);
            in_at[from] += bytes;
            out_at += bytes;
        }
    }
    return status;
}

/* To the one output there is. */
static int move_send(const struct engine_host_thread *thread, const struct engine_work *work,
                     uint64_t first, uint64_t bytes, struct engine_fault *fault_p)
{
    uint32_t to = 0;

    while (work->out[to].kind == ENGINE_OPERAND_NONE)
        to++;
    return spread_range(thread, work, (struct source){(uint32_t)work->root, first}, bytes,
                        (struct targets){to, to + 1, first}, fault_p);
}

int engine_host_move(const struct engine_host_thread *thread, const struct engine_work *work,
                     uint64_t first, uint64_t bytes, struct engine_fault *fault_p)
{
    const struct range range = {first, first + bytes};
    const struct targets all = {0, work->ranks, first};

    if (bytes == 0)
        return HVI_OK;
    switch (work->kind) {
    case HVI_KIND_ALLREDUCE:
        return reduce_range(thread, work, first, bytes, all, fault_p);
    case HVI_KIND_BROADCAST:
        return spread_range(thread, work, (struct source){(uint32_t)work->root, first}, bytes, all,
                            fault_p);
    case HVI_KIND_ALLGATHER:
        return move_gather(thread, work, &range, fault_p);
    case HVI_KIND_REDUCESCATTER:
        return move_scatter(thread, work, &range, fault_p);
    case HVI_KIND_SEND:
        return move_send(thread, work, first, bytes, fault_p);
    default:
        return move_alltoall(thread, work, &range, fault_p);
    }
}

/* ---- a result that is there already ---- */

static int emit_to(const struct engine_host_thread *thread, const struct engine_work *work,
                   const struct targets *targets, uint64_t bytes, const void *result,
                   struct engine_fault *fault_p)
{
    for (uint32_t i = targets->to; i < targets->to_end; i++) {
        if (work->out[i].kind == ENGINE_OPERAND_MAPPED)
            thread->kernels->copy((char *)work->out[i].address + targets->at, result, bytes, false);
    }
    return write_remote(thread, work, targets, result, bytes, fault_p);
}

int engine_host_emit(const struct engine_host_thread *thread, const struct engine_work *work,
                     uint64_t first, uint64_t bytes, const void *result,
                     struct engine_fault *fault_p)
{
    const struct range range = {first, first + bytes};
    struct range part;
    int status = HVI_OK;
    uint64_t at = 0;

    if (work->kind == HVI_KIND_ALLREDUCE)
        return emit_to(thread, work, &(struct targets){0, work->ranks, first}, bytes, result,
                       fault_p);
    for (uint32_t to = 0; to < work->ranks && status == HVI_OK; to++) {
        if (overlap(&range, at, work->sizes[to], &part))
            status = emit_to(thread, work, &(struct targets){to, to + 1, part.first - at},
                             part.end - part.first, (const char *)result + (part.first - first),
                             fault_p);
        at += work->sizes[to];
    }
    return status;
}
