/* SPDX-License-Identifier: Apache-2.0
 * One op of one rank: where its operands lie, how it is submitted, and whether everything that can be
 * seen of it afterwards is as it must be. */
#include "tests/property/prop.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GUARD       32
#define GUARD_BYTE  0xa6
#define FRESH_BYTE  0xc3
#define ARENA_BYTES (2u << 20)
#define LABEL_BYTES 128

/* ---- memory ---- */

static uint64_t choice_of(const struct hvt_work *work, int member, int what)
{
    return hvt_mix((uint64_t)work->op->seed + (uint64_t)work->rank->turn * 977,
                   (uint64_t)(work->rank->rank * 64 + member * 8 + what));
}

/* From an arena if it has room, else from malloc; off alignment now and then. */
static unsigned char *take_block(struct hvt_work *work, int member, int what, size_t bytes,
                                 bool *owned_p, unsigned char **data_p)
{
    struct hvt_rank *rank = work->rank;
    uint64_t choice = choice_of(work, member, what);
    int memory =
        work->op->memory == HVT_ANY_MEMORY ? (int)(choice % HVT_ANY_MEMORY) : work->op->memory;
    size_t shift = choice / 8 % 4 == 0 ? choice / 32 % 17 : 0;
    size_t whole = GUARD + shift + bytes + GUARD, step = (whole + 127) / 64 * 64;
    unsigned char *block;

    *owned_p = memory == HVT_MALLOC || rank->used[memory] + step > ARENA_BYTES;
    if (*owned_p) {
        block = malloc(whole);
    } else {
        block = (unsigned char *)rank->arena[memory] + rank->used[memory];
        rank->used[memory] += step;
    }
    memset(block, GUARD_BYTE, GUARD + shift);
    memset(block + GUARD + shift + bytes, GUARD_BYTE, GUARD);
    *data_p = block + GUARD + shift;
    return block;
}

static bool guards_hold(const unsigned char *block, const unsigned char *data, size_t bytes)
{
    for (const unsigned char *at = block; at < data; at++) {
        if (*at != GUARD_BYTE)
            return false;
    }
    for (int i = 0; i < GUARD; i++) {
        if (data[bytes + (size_t)i] != GUARD_BYTE)
            return false;
    }
    return true;
}

static uint64_t hash_of(const void *data, size_t bytes)
{
    const unsigned char *at = data;
    uint64_t hash = bytes;

    for (; bytes >= 8; bytes -= 8, at += 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        hash = (hash ^ word) * 0x9e3779b97f4a7c15ull;
        hash ^= hash >> 29;
    }
    for (; bytes > 0; bytes--, at++)
        hash = (hash ^ *at) * 0x100000001b3ull;
    return hash;
}

static size_t bytes_of(const struct hvt_request *request)
{
    return (size_t)hvt_elements(request) * hvt_bytes_of(request->dtype);
}

static bool has_tensor(const struct hvt_request *request)
{
    return request->kind <= HVT_REDUCESCATTER;
}

static bool has_rows(const struct hvt_request *request)
{
    return request->kind == HVT_ALLGATHER || request->kind == HVT_ALLTOALL ||
           request->kind == HVT_REDUCESCATTER;
}

/* What a rank brings to a member of an op: the same wherever it is asked. */
static void fill(const struct hvt_rank *rank, const struct hvt_op *op, int from,
                 const struct hvt_request *request, void *data_p)
{
    uint64_t seed =
        hvt_mix((uint64_t)op->seed * 31 + (uint64_t)rank->phase->seed,
                (uint64_t)(rank->turn * HVT_RANKS + from) * HVT_GROUP + (uint64_t)request->member);

    hvt_numbers_fill(request->dtype, request->reduce == HVD_ADASUM, seed, hvt_elements(request),
                     data_p);
}

static struct hvd_tensor tensor_of(const struct hvt_request *request, void *data)
{
    struct hvd_tensor tensor = hvd_tensor_1d(data, (enum hvd_dtype)request->dtype, 0);

    tensor.ndim = request->ndim;
    for (int i = 0; i < request->ndim; i++)
        tensor.dims[i] = request->dims[i];
    return tensor;
}

static int out_mode(const struct hvt_work *work, const struct hvt_request *request)
{
    int mode = work->op->out;

    if (mode == HVT_ANY_OUT)
        mode = (int)(choice_of(work, 0, 5) % HVT_ANY_OUT);
    if (request->small)
        return HVT_OUT_EXACT;
    if (has_rows(request))
        return mode == HVT_OUT_IN_PLACE ? HVT_OUT_EXACT : mode;
    return mode == HVT_OUT_IN_PLACE ? mode : HVT_OUT_EXACT;
}

static void prepare_output(struct hvt_work *work, struct hvt_piece *piece, int member)
{
    const struct hvt_request *request = &piece->request;
    int mode = out_mode(work, request);
    struct hvt_request shape = *request;
    struct hvt_outcome own;
    unsigned char *data;

    if (mode == HVT_OUT_LIBRARY)
        return;
    piece->in_place = mode == HVT_OUT_IN_PLACE;
    if (piece->in_place) {
        piece->out = piece->in;
        return;
    }
    hvt_model_outcome(&work->rank->world, work->rank->phase, work->index, member, &own);
    if (has_rows(request))
        shape.dims[0] =
            own.status != HVD_OK && !own.room ? request->dims[0] + 1 : own.rows[work->rank->rank];
    if (mode == HVT_OUT_LARGE)
        shape.dims[0] += 1 + (int64_t)(choice_of(work, member, 6) % 3);
    if (request->small && has_rows(request) && shape.dims[0] > 0)
        shape.dims[0]--;
    piece->out_bytes = bytes_of(&shape);
    piece->out_block = take_block(work, member, 1, piece->out_bytes, &piece->out_owned, &data);
    memset(data, FRESH_BYTE, piece->out_bytes);
    piece->out = tensor_of(&shape, data);
}

static void prepare_piece(struct hvt_work *work, int member)
{
    struct hvt_rank *rank = work->rank;
    struct hvt_piece *piece = &work->piece[member];
    unsigned char *data;

    hvt_model_request(&rank->world, rank->phase, work->index, member, rank->rank, &piece->request);
    if (!has_tensor(&piece->request))
        return;
    piece->in_bytes = bytes_of(&piece->request);
    piece->in_block = take_block(work, member, 0, piece->in_bytes, &piece->in_owned, &data);
    fill(rank, work->op, rank->rank, &piece->request, data);
    piece->in_hash = hash_of(data, piece->in_bytes);
    piece->in = tensor_of(&piece->request, data);
    prepare_output(work, piece, member);
}

void hvt_op_prepare(struct hvt_rank *rank, int index, struct hvt_work *work_p)
{
    memset(work_p, 0, sizeof *work_p);
    work_p->rank = rank;
    work_p->index = index;
    work_p->op = &rank->phase->op[index];
    work_p->members = hvt_model_members(work_p->op);
    work_p->failed_member =
        hvt_model_group_outcome(&rank->world, rank->phase, index, &work_p->outcome);
    for (int member = 0; member < work_p->members; member++)
        prepare_piece(work_p, member);
}

/* ---- submission ---- */

static const char *label_of(const struct hvt_work *work, int member, char *text)
{
    return hvt_model_name(work->op, member, text, LABEL_BYTES);
}

static int submit_group(struct hvt_work *work, const struct hvd_op_options *options)
{
    struct hvt_piece *piece = work->piece;
    struct hvd_tensor in[HVT_GROUP], out[HVT_GROUP];
    struct hvd_op *ops[HVT_GROUP] = {NULL};
    struct hvd_session *session = work->rank->session;
    bool library = has_rows(&piece->request) && out_mode(work, &piece->request) == HVT_OUT_LIBRARY;
    enum hvd_reduce_op reduce = (enum hvd_reduce_op)piece->request.reduce;
    char name[32], *given = work->op->name < 0 ? NULL : name;
    int rc;

    snprintf(name, sizeof name, "w%d", work->op->name);
    for (int i = 0; i < work->members; i++) {
        in[i] = piece[i].in;
        out[i] = piece[i].out;
    }
    if (piece->request.kind == HVT_ALLREDUCE)
        rc = hvd_grouped_allreduce_async(session, given, in, out, work->members, reduce, options,
                                         ops);
    else if (piece->request.kind == HVT_ALLGATHER)
        rc = hvd_grouped_allgather_async(session, given, in, library ? NULL : out, work->members,
                                         options, ops);
    else
        rc = hvd_grouped_reducescatter_async(session, given, in, library ? NULL : out,
                                             work->members, reduce, options, ops);
    for (int i = 0; i < work->members; i++)
        piece[i].op = ops[i];
    return rc;
}

static int ranks_of(unsigned members, int *ranks_p)
{
    int count = 0;

    for (int rank = HVT_RANKS - 1; rank >= 0; rank--) { /* in any order, says hvd.h */
        if (members >> rank & 1)
            ranks_p[count++] = rank;
    }
    return count;
}

static int submit_one(struct hvt_work *work, int member, const struct hvd_op_options *options)
{
    struct hvt_piece *piece = &work->piece[member];
    const struct hvt_request *r = &piece->request;
    struct hvd_session *session = work->rank->session;
    bool library = has_rows(r) && out_mode(work, r) == HVT_OUT_LIBRARY;
    const struct hvd_tensor *out = library ? NULL : &piece->out;
    enum hvd_reduce_op reduce = (enum hvd_reduce_op)r->reduce;
    char text[LABEL_BYTES];
    const char *name = label_of(work, member, text);
    int ranks[HVT_RANKS];

    switch (r->kind) {
    case HVT_ALLREDUCE:
        return hvd_allreduce_async(session, name, &piece->in, out, reduce, options, &piece->op);
    case HVT_ALLGATHER:
        return hvd_allgather_async(session, name, &piece->in, out, options, &piece->op);
    case HVT_BROADCAST:
        return hvd_broadcast_async(session, name, &piece->in, out, r->root, options, &piece->op);
    case HVT_ALLTOALL:
        return hvd_alltoall_async(session, name, &piece->in, r->equal_splits ? NULL : r->splits,
                                  out, options, &piece->op);
    case HVT_REDUCESCATTER:
        return hvd_reducescatter_async(session, name, &piece->in, out, reduce, options, &piece->op);
    case HVT_BARRIER:
        return hvd_barrier_async(session, name, options, &piece->op);
    case HVT_SET_ADD:
        return hvd_process_set_add_async(session, ranks, ranks_of(r->ranks, ranks), &piece->op);
    default:
        return hvd_process_set_remove_async(session, work->rank->set_ids[r->root], &piece->op);
    }
}

static int submit_pieces(struct hvt_work *work, const struct hvd_op_options *options)
{
    int rc = HVD_OK;

    if (work->piece->request.group > 0)
        return submit_group(work, options);
    for (int member = 0; member < work->members && rc == HVD_OK; member++)
        rc = submit_one(work, member, options);
    return rc;
}

static void fill_options(const struct hvt_work *work, struct hvd_op_options *options_p)
{
    const struct hvt_request *request = &work->piece->request;

    hvd_op_options_init(options_p);
    options_p->prescale_factor = request->pre;
    options_p->postscale_factor = request->post;
    if (work->op->kind < HVT_SET_ADD)
        options_p->process_set = work->rank->set_ids[work->op->set];
}

/* Calls that must be refused at once and leave no trace, not even in the count of unnamed ops. */
static void misuse(struct hvt_work *work, const struct hvd_op_options *options)
{
    static const int expected[] = {HVD_ERR_INVALID, HVD_ERR_NOT_FOUND, HVD_ERR_INVALID,
                                   HVD_ERR_INVALID};
    struct hvd_session *session = work->rank->session;
    struct hvd_op_options other = *options;
    struct hvd_op *op = NULL;
    char data[64] = {0};
    char text[LABEL_BYTES];
    const char *name = hvt_model_name(work->op, 0, text, sizeof text);
    struct hvd_tensor tensor = hvd_tensor_1d(data, HVD_FLOAT32, 4), wrong = tensor;
    int what = work->op->seed % 4, rc;

    wrong.dims[0] = -1;
    other.process_set = 7777;
    if (what == 0)
        rc = hvd_allreduce_async(session, name, &wrong, &wrong, HVD_SUM, options, &op);
    else if (what == 1)
        rc = hvd_allreduce_async(session, name, &tensor, &tensor, HVD_SUM, &other, &op);
    else if (what == 2)
        rc = hvd_broadcast_async(session, name, &tensor, &tensor, work->rank->ranks, options, &op);
    else {
        wrong = hvd_tensor_1d(data + 8, HVD_FLOAT32, 4);
        rc = hvd_allreduce_async(session, name, &tensor, &wrong, HVD_SUM, options, &op);
    }
    if (rc != expected[what] || op)
        hvt_rank_fail(work->rank, "op %d: misuse %d is answered by %s, not %s", work->index, what,
                      hvd_status_name(rc), hvd_status_name(expected[what]));
    if (!strstr(hvd_last_error(), name ? name : "unnamed"))
        hvt_rank_fail(work->rank, "op %d: the error does not name the tensor: %s", work->index,
                      hvd_last_error());
}

void hvt_op_duplicate(const struct hvt_work *work)
{
    struct hvd_op_options options;
    struct hvd_op *op = NULL;
    char text[LABEL_BYTES];
    const char *name;

    if (!work->op || work->op->name < 0 || work->done || work->cancelled)
        return;
    if (hvt_set_size(hvt_model_who(&work->rank->world, work->rank->phase, work->index)) < 2)
        return;
    fill_options(work, &options);
    name = hvt_model_name(work->op, work->members - 1, text, sizeof text);
    int rc = hvd_barrier_async(work->rank->session, name, &options, &op);
    if (rc != HVD_ERR_DUPLICATE_NAME || op || !strstr(hvd_last_error(), name))
        hvt_rank_fail(work->rank, "op %d: its name a second time gives %s: %s", work->index,
                      hvd_status_name(rc), hvd_last_error());
}

static void expect_refusal(struct hvt_work *work, int rc)
{
    if (rc != work->outcome.status)
        hvt_rank_fail(work->rank, "op %d: refused with %s (%s), not %s", work->index,
                      hvd_status_name(rc), hvd_last_error(), hvd_status_name(work->outcome.status));
    work->done = true;
}

int hvt_op_wait(const struct hvt_rank *rank, struct hvd_op *op, int64_t wait_ns)
{
    int rc = hvd_wait(op, wait_ns);

    if (rc == HVD_ERR_TIMEOUT && wait_ns == rank->setup->deadline_ns)
        hvt_rank_fail(rank, "'%s' is not finished after %lld s", hvd_op_name(op),
                      (long long)(wait_ns / 1000000000));
    return rc;
}

/* Takes the op back. True: it is taken back, and the pieces are free. */
static bool cancel(struct hvt_work *work)
{
    int cancelled = 0;

    for (int i = 0; i < work->members; i++) {
        int rc = hvd_cancel(work->piece[i].op);
        if (rc != HVD_OK)
            hvt_rank_fail(work->rank, "op %d: hvd_cancel gives %s: %s", work->index,
                          hvd_status_name(rc), hvd_last_error());
    }
    for (int i = 0; i < work->members; i++) {
        int rc = hvt_op_wait(work->rank, work->piece[i].op, work->rank->setup->deadline_ns);
        if (rc != HVD_OK && rc != HVD_ERR_CANCELLED)
            hvt_rank_fail(work->rank, "op %d: cancelled, it ends with %s: %s", work->index,
                          hvd_status_name(rc), hvd_op_error(work->piece[i].op));
        cancelled += rc == HVD_ERR_CANCELLED;
    }
    if (cancelled > 0 && cancelled < work->members && work->piece->request.group > 0)
        hvt_rank_fail(work->rank, "op %d: %d of the group's %d members are cancelled", work->index,
                      cancelled, work->members);
    return cancelled > 0;
}

static void release(struct hvt_work *work)
{
    for (int i = 0; i < work->members; i++) {
        hvd_op_free(work->piece[i].op);
        work->piece[i].op = NULL;
    }
}

static void expect_untouched(const struct hvt_work *work)
{
    for (int i = 0; i < work->members; i++) {
        const struct hvt_piece *piece = &work->piece[i];
        const unsigned char *out = piece->out_block ? piece->out.data : NULL;
        if (piece->in_block && hash_of(piece->in.data, piece->in_bytes) != piece->in_hash)
            hvt_rank_fail(work->rank, "op %d, member %d: it did not run, and its input has changed",
                          work->index, i);
        for (size_t at = 0; out && at < piece->out_bytes; at++) {
            if (out[at] != FRESH_BYTE)
                hvt_rank_fail(work->rank,
                              "op %d, member %d: it did not run, and its output has changed",
                              work->index, i);
        }
    }
}

static void try_cancel(struct hvt_work *work, const struct hvd_op_options *options)
{
    struct hvt_rank *rank = work->rank;
    enum hvt_cancel how = hvt_model_cancel(&rank->world, rank->phase, work->index, rank->rank);
    unsigned who = hvt_model_who(&rank->world, rank->phase, work->index);
    bool alone = rank->phase->first == rank->rank && hvt_set_size(who) > 1;

    if (how == HVT_NO_CANCEL)
        return;
    work->cancelled = cancel(work);
    if (alone && !work->cancelled)
        hvt_rank_fail(rank, "op %d: done although only this rank has come", work->index);
    if (how == HVT_CANCEL_ALL &&
        hvt_shared_note(rank->setup->shared, rank->notes + (uint32_t)work->index,
                        work->cancelled) != work->cancelled)
        hvt_rank_fail(rank, "op %d: cancelled by all, it is taken back on some ranks only",
                      work->index);
    if (!work->cancelled)
        return;
    expect_untouched(work);
    if (how == HVT_CANCEL_ALL)
        return;
    release(work);
    work->cancelled = false;
    int rc = submit_pieces(work, options);
    if (rc != HVD_OK)
        hvt_rank_fail(rank, "op %d: cannot be submitted again after its cancel: %s", work->index,
                      hvd_last_error());
}

/* ---- the blocking forms ---- */

static bool has_blocking_form(const struct hvt_work *work)
{
    const struct hvt_request *r = &work->piece->request;

    return r->group == 0 && work->members == 1 && work->op->set == 0 && r->pre == 1.0 &&
           r->post == 1.0 && work->op->cancel == HVT_NO_CANCEL &&
           (r->kind == HVT_ALLREDUCE || r->kind == HVT_BROADCAST || r->kind == HVT_BARRIER);
}

static void run_blocking(struct hvt_work *work)
{
    struct hvt_piece *piece = work->piece;
    struct hvd_session *session = work->rank->session;
    char text[LABEL_BYTES];
    const char *name = label_of(work, 0, text);

    if (piece->request.kind == HVT_ALLREDUCE)
        piece->status = hvd_allreduce(session, name, &piece->in, &piece->out,
                                      (enum hvd_reduce_op)piece->request.reduce);
    else if (piece->request.kind == HVT_BROADCAST)
        piece->status = hvd_broadcast(session, name, &piece->in, &piece->out, piece->request.root);
    else
        piece->status = hvd_barrier(session, name);
    if (piece->status != HVD_OK)
        snprintf(piece->error, sizeof piece->error, "%s", hvd_last_error());
}

void hvt_op_submit(struct hvt_work *work, bool blocking)
{
    struct hvd_op_options options;

    fill_options(work, &options);
    if (work->op->misuse && work->op->kind < HVT_SET_ADD)
        misuse(work, &options);
    if (blocking && has_blocking_form(work)) {
        run_blocking(work);
        return;
    }
    int rc = submit_pieces(work, &options);
    if (work->outcome.local) {
        expect_refusal(work, rc);
        return;
    }
    if (rc != HVD_OK)
        hvt_rank_fail(work->rank, "op %d cannot be submitted: %s: %s", work->index,
                      hvd_status_name(rc), hvd_last_error());
    try_cancel(work, &options);
}

/* ---- afterwards ---- */

/* HVT_DIGITS in the pattern stands for a number. */
static bool is_alike(const char *text, const char *pattern)
{
    while (*pattern) {
        if (*pattern == HVT_DIGITS && *text >= '0' && *text <= '9') {
            text += strspn(text, "0123456789");
            pattern++;
        } else if (*text++ != *pattern++) {
            return false;
        }
    }
    return *text == '\0';
}

static void expect_error(const struct hvt_work *work, int member, const struct hvt_outcome *outcome,
                         int failed_member)
{
    const struct hvt_piece *piece = &work->piece[member];
    const char *text = piece->op ? hvd_op_error(piece->op) : piece->error;
    char expected[HVT_TEXT + LABEL_BYTES], label[LABEL_BYTES] = "";
    const char *name = hvt_model_name(work->op, failed_member, label, sizeof label);

    if (!name && work->piece[failed_member].op)
        name = hvd_op_name(work->piece[failed_member].op);
    snprintf(expected, sizeof expected, "%s '%s': %s", outcome->label_kind, name ? name : "",
             outcome->text);
    if (name && !is_alike(text, expected))
        hvt_rank_fail(work->rank, "op %d, member %d: the error is\n  %s\nand should be\n  %s",
                      work->index, member, text, expected);
    if (piece->op && hvd_op_culprit(piece->op) != outcome->culprit)
        hvt_rank_fail(work->rank, "op %d, member %d: the culprit is %d, not %d", work->index,
                      member, hvd_op_culprit(piece->op), outcome->culprit);
}

/* The inputs of all that take part; free [0]. */
static int all_inputs(const struct hvt_work *work, int member, unsigned who,
                      struct hvt_request *requests_p, void **ins_p)
{
    const struct hvt_rank *rank = work->rank;
    size_t bytes = 0, at = 0;
    int count = 0;

    for (int from = 0; from < rank->ranks; from++) {
        hvt_model_request(&rank->world, rank->phase, work->index, member, from, &requests_p[from]);
        bytes += who >> from & 1 ? bytes_of(&requests_p[from]) + 8 : 0;
    }
    char *block = malloc(bytes + 8);
    for (int from = 0; from < rank->ranks; from++) {
        if (!(who >> from & 1))
            continue;
        ins_p[count++] = block + at;
        fill(rank, work->op, from, &requests_p[from], block + at);
        at += (bytes_of(&requests_p[from]) + 7) / 8 * 8;
    }
    return count;
}

static int64_t rows_before(const struct hvt_outcome *own, unsigned who, int rank)
{
    int64_t rows = 0;

    for (int before = 0; before < rank; before++)
        rows += who >> before & 1 ? own->rows[before] : 0;
    return rows;
}

/* What this rank must have; from malloc. */
static void *expected_bytes(const struct hvt_work *work, int member, const struct hvt_outcome *own,
                            size_t *bytes_p)
{
    const struct hvt_rank *rank = work->rank;
    const struct hvt_request *mine = &work->piece[member].request;
    struct hvt_request requests[HVT_RANKS];
    unsigned who = hvt_model_who(&rank->world, rank->phase, work->index);
    unsigned members = rank->world.members[work->op->set];
    size_t row = (size_t)hvt_row_elements(mine) * hvt_bytes_of(mine->dtype), at = 0;
    void *ins[HVT_RANKS];
    int count = all_inputs(work, member, who, requests, ins);
    size_t whole = bytes_of(mine) + 8;

    *bytes_p = has_rows(mine) ? (size_t)own->rows[rank->rank] * row : bytes_of(mine);
    char *result = malloc((whole > *bytes_p ? whole : *bytes_p) + 8);
    if (mine->kind == HVT_ALLREDUCE || mine->kind == HVT_REDUCESCATTER)
        hvt_numbers_reduce(mine, (const void *const *)ins, count, hvt_set_size(members),
                           hvt_elements(mine), result);
    if (mine->kind == HVT_REDUCESCATTER)
        memmove(result, result + (size_t)rows_before(own, who, rank->rank) * row, *bytes_p);
    if (mine->kind == HVT_BROADCAST)
        memcpy(result, ins[hvt_set_place(who, mine->root)], *bytes_p);
    for (int from = 0, i = 0; from < rank->ranks; from++) {
        const struct hvt_request *theirs = &requests[from];
        const char *data = who >> from & 1 ? ins[i++] : NULL;
        int64_t rows = theirs->dims[0];
        if (!data || (mine->kind != HVT_ALLGATHER && mine->kind != HVT_ALLTOALL))
            continue;
        if (mine->kind == HVT_ALLTOALL) {
            int place = hvt_set_place(members, rank->rank);
            for (int before = 0; before < place; before++)
                data += (size_t)theirs->splits[before] * row;
            rows = theirs->splits[place];
        }
        memcpy(result + at, data, (size_t)rows * row);
        at += (size_t)rows * row;
    }
    free(ins[0]);
    return result;
}

static void expect_shape(const struct hvt_work *work, int member, const struct hvt_outcome *own,
                         struct hvd_tensor *result_p)
{
    const struct hvt_piece *piece = &work->piece[member];
    const struct hvt_request *mine = &piece->request;
    struct hvd_tensor expected = tensor_of(mine, NULL);

    if (!piece->op) {
        *result_p = piece->out;
        return;
    }
    int rc = hvd_op_result(piece->op, result_p);
    if (rc != HVD_OK)
        hvt_rank_fail(work->rank, "op %d, member %d: no result: %s: %s", work->index, member,
                      hvd_status_name(rc), hvd_last_error());
    if (has_rows(mine))
        expected.dims[0] = own->rows[work->rank->rank];
    bool same = result_p->dtype == expected.dtype && result_p->ndim == expected.ndim;
    for (int i = 0; i < expected.ndim; i++)
        same = same && result_p->dims[i] == expected.dims[i];
    if (!same)
        hvt_rank_fail(work->rank,
                      "op %d, member %d: the result has %d dimensions and %lld rows, not %lld",
                      work->index, member, result_p->ndim, (long long)result_p->dims[0],
                      (long long)expected.dims[0]);
    if (piece->out.data && result_p->data != piece->out.data && own->rows[work->rank->rank] > 0)
        hvt_rank_fail(work->rank, "op %d, member %d: the result is not where it was asked for",
                      work->index, member);
}

/* The lie that --selftest must find: sums of three elements and more are off by a bit. */
static void tell_lie(const struct hvt_work *work, int member, unsigned char *expected, size_t bytes)
{
    const struct hvt_request *mine = &work->piece[member].request;

    if (work->rank->setup->selftest == HVT_LIES && mine->kind == HVT_ALLREDUCE &&
        mine->reduce == HVD_SUM && work->rank->ranks >= 2 && bytes >= 3 * hvt_bytes_of(mine->dtype))
        expected[2 * hvt_bytes_of(mine->dtype)] ^= 1;
}

static void expect_result(const struct hvt_work *work, int member)
{
    const struct hvt_piece *piece = &work->piece[member];
    const struct hvt_rank *rank = work->rank;
    struct hvt_outcome own;
    struct hvd_tensor result;
    size_t bytes;

    hvt_model_outcome(&rank->world, rank->phase, work->index, member, &own);
    expect_shape(work, member, &own, &result);
    unsigned char *expected = expected_bytes(work, member, &own, &bytes);
    tell_lie(work, member, expected, bytes);
    const unsigned char *got = result.data;
    for (size_t at = 0; at < bytes; at++) {
        if (got[at] == expected[at])
            continue;
        size_t element = hvt_bytes_of(piece->request.dtype);
        at -= at % element;
        char have[64] = "", want[64] = "";
        for (size_t i = 0; i < element; i++) {
            snprintf(have + 2 * i, 4, "%02x", got[at + element - 1 - i]);
            snprintf(want + 2 * i, 4, "%02x", expected[at + element - 1 - i]);
        }
        hvt_rank_fail(rank, "op %d, member %d: element %zu of %zu is 0x%s, not 0x%s", work->index,
                      member, at / element, bytes / element, have, want);
    }
    free(expected);
    if (!piece->in_place && hash_of(piece->in.data, piece->in_bytes) != piece->in_hash)
        hvt_rank_fail(rank, "op %d, member %d: the input has changed", work->index, member);
}

static void expect_splits(const struct hvt_work *work)
{
    const struct hvt_rank *rank = work->rank;
    int64_t splits[HVT_RANKS] = {0};
    int size = hvt_set_size(rank->world.members[work->op->set]);
    int rc = hvd_op_received_splits(work->piece->op, splits, size);

    if (rc != HVD_OK)
        hvt_rank_fail(rank, "op %d: no received splits: %s: %s", work->index, hvd_status_name(rc),
                      hvd_last_error());
    for (int from = 0; from < size; from++) {
        if (splits[from] != work->outcome.received[rank->rank][from])
            hvt_rank_fail(rank, "op %d: %lld rows received from member %d, not %lld", work->index,
                          (long long)splits[from], from,
                          (long long)work->outcome.received[rank->rank][from]);
    }
}

static void expect_set(const struct hvt_work *work)
{
    struct hvt_rank *rank = work->rank;
    unsigned ranks = work->piece->request.ranks;
    int expected[HVT_RANKS], got[HVT_RANKS], count = ranks_of(ranks, expected);
    int id = hvd_op_process_set(work->piece->op);
    uint32_t note = rank->notes + (uint32_t)work->index;

    if (id < 1 || (int)hvt_shared_note(rank->setup->shared, note, (uint64_t)id) != id)
        hvt_rank_fail(rank, "op %d: the new set is %d here and not everywhere", work->index, id);
    if (hvd_process_set_size(rank->session, id) != count ||
        hvd_process_set_rank(rank->session, id) != hvt_set_place(ranks, rank->rank) ||
        hvd_process_set_ranks(rank->session, id, got, HVT_RANKS) != count)
        hvt_rank_fail(rank, "op %d: set %d has another size, or another place of this rank",
                      work->index, id);
    for (int i = 0; i < count; i++) {
        if (got[i] != expected[count - 1 - i])
            hvt_rank_fail(rank, "op %d: member %d of set %d is rank %d, not %d", work->index, i, id,
                          got[i], expected[count - 1 - i]);
    }
    rank->set_ids[work->op->set] = id;
}

static void check_piece(struct hvt_work *work, int member)
{
    struct hvt_piece *piece = &work->piece[member];
    struct hvt_outcome own, *outcome = &work->outcome;
    struct hvt_rank *rank = work->rank;
    int failed_member = work->failed_member;

    if (!hvt_model_is_whole(&rank->world, rank->phase, work->index)) {
        hvt_model_outcome(&rank->world, rank->phase, work->index, member, &own);
        outcome = &own;
        failed_member = member;
    }
    if (piece->op && hvd_test(piece->op) != piece->status)
        hvt_rank_fail(rank, "op %d, member %d: %s when waited for, %s when looked at", work->index,
                      member, hvd_status_name(piece->status), hvd_status_name(hvd_test(piece->op)));
    if (piece->status != outcome->status)
        hvt_rank_fail(rank, "op %d, member %d: %s (%s), not %s (%s)", work->index, member,
                      hvd_status_name(piece->status),
                      piece->op ? hvd_op_error(piece->op) : piece->error,
                      hvd_status_name(outcome->status), outcome->text);
    if (outcome->status != HVD_OK) {
        expect_error(work, member, outcome, failed_member);
        atomic_fetch_add(&rank->setup->shared->errors, 1);
        return;
    }
    if (has_tensor(&piece->request))
        expect_result(work, member);
    if (piece->request.kind == HVT_ALLTOALL)
        expect_splits(work);
    if (piece->request.kind == HVT_SET_ADD)
        expect_set(work);
}

static void check_guards(const struct hvt_work *work)
{
    for (int i = 0; i < work->members; i++) {
        const struct hvt_piece *piece = &work->piece[i];
        if (piece->in_block && !guards_hold(piece->in_block, piece->in.data, piece->in_bytes))
            hvt_rank_fail(work->rank, "op %d, member %d: written beside its input", work->index, i);
        if (piece->out_block && !guards_hold(piece->out_block, piece->out.data, piece->out_bytes))
            hvt_rank_fail(work->rank, "op %d, member %d: written beside its output", work->index,
                          i);
    }
}

void hvt_op_check(struct hvt_work *work)
{
    bool runs = !work->done && !work->cancelled;

    for (int i = 0; i < work->members && runs; i++)
        check_piece(work, i);
    if (!runs || (work->outcome.status != HVD_OK &&
                  hvt_model_is_whole(&work->rank->world, work->rank->phase, work->index)))
        expect_untouched(work);
    check_guards(work);
    release(work);
    for (int i = 0; i < work->members; i++) {
        if (work->piece[i].in_owned)
            free(work->piece[i].in_block);
        if (work->piece[i].out_owned)
            free(work->piece[i].out_block);
    }
    atomic_fetch_add_explicit(&work->rank->setup->shared->ops, 1, memory_order_relaxed);
}
