/* SPDX-License-Identifier: Apache-2.0
 * What each rank asks for, and what must come of it, as hvd.h and docs/design say it.
 *
 * Whatever a program's numbers are, they mean something here: a kind that cannot be scaled, a set
 * that is not there, a root that is too large are bent to what exists. So shrinking can change any
 * number and always has a program whose outcome is known. */
#include "tests/property/prop.h"

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

/* ---- sets ---- */

void hvt_world_init(struct hvt_world *world, int ranks)
{
    memset(world, 0, sizeof *world);
    world->ranks = ranks;
    world->members[0] = (1u << ranks) - 1;
}

int hvt_set_size(unsigned members)
{
    return __builtin_popcount(members);
}

int hvt_set_place(unsigned members, int rank)
{
    return members >> rank & 1 ? __builtin_popcount(members & ((1u << rank) - 1)) : -1;
}

static int member_at(unsigned members, int place)
{
    for (int rank = 0; rank < HVT_RANKS; rank++) {
        if (hvt_set_place(members, rank) == place)
            return rank;
    }
    return -1;
}

static unsigned new_set(const struct hvt_world *world, const struct hvt_op *op)
{
    return (unsigned)op->ranks & world->members[0];
}

static unsigned wrong_of(const struct hvt_world *world, const struct hvt_op *op)
{
    return (unsigned)op->wrong_ranks & world->members[0];
}

static bool is_split(unsigned all, unsigned part)
{
    return (all & part) != 0 && (all & ~part) != 0;
}

static bool is_set_op(const struct hvt_op *op)
{
    return op->kind == HVT_SET_ADD || op->kind == HVT_SET_REMOVE;
}

static unsigned existing_ranks(const struct hvt_world *world, unsigned ranks)
{
    for (int set = 0; set < HVT_SETS; set++) {
        if (world->members[set] == ranks)
            return true;
    }
    return false;
}

/* Another set that wrong ranks remove instead. */
static int other_set(const struct hvt_world *start, const struct hvt_op *op)
{
    for (int set = 1; set < HVT_SETS; set++) {
        if (set != op->set && start->members[set])
            return set;
    }
    return op->set;
}

/* `world` is as the ops before this one leave it, `start` as it was before the phase. */
static bool set_op_succeeds(const struct hvt_world *world, const struct hvt_world *start,
                            const struct hvt_op *op)
{
    unsigned all = world->members[0], ranks = new_set(world, op);
    bool split = is_split(all, wrong_of(world, op));

    if (op->kind == HVT_SET_ADD)
        return ranks != all && !(op->wrong == HVT_WRONG_RANKS && split) &&
               !existing_ranks(world, ranks);
    return !(op->wrong == HVT_WRONG_ROOT && split && other_set(start, op) != op->set);
}

/* As the first `ops` ops of the phase leave it. */
static void change(struct hvt_world *world, const struct hvt_phase *phase, int ops)
{
    struct hvt_world start = *world;

    for (int i = 0; i < ops; i++) {
        const struct hvt_op *op = &phase->op[i];
        if (!is_set_op(op) || !hvt_model_is_op(&start, phase, i) ||
            !set_op_succeeds(world, &start, op))
            continue;
        world->members[op->set] = op->kind == HVT_SET_ADD ? new_set(world, op) : 0;
    }
}

void hvt_world_change(struct hvt_world *world, const struct hvt_phase *phase)
{
    change(world, phase, phase->ops);
}

static int join_of(const struct hvt_world *world, const struct hvt_phase *phase)
{
    return phase->join >= 0 && phase->join < HVT_SETS && world->members[phase->join] ? phase->join
                                                                                     : -1;
}

/* ---- which ops, by whom ---- */

static bool set_is_used(const struct hvt_phase *phase, int set, int but)
{
    for (int i = 0; i < phase->ops; i++) {
        const struct hvt_op *op = &phase->op[i];
        if (i != but && op->set == set)
            return true;
        /* A removal that ranks disagree on names another set. */
        if (i != but && op->kind == HVT_SET_REMOVE && op->wrong == HVT_WRONG_ROOT)
            return true;
    }
    return phase->join == set;
}

bool hvt_model_is_op(const struct hvt_world *world, const struct hvt_phase *phase, int index)
{
    const struct hvt_op *op = &phase->op[index];
    bool there = op->set >= 0 && op->set < HVT_SETS && world->members[op->set] != 0;

    if (!is_set_op(op))
        return there;
    if (op->set < 1 || op->set >= HVT_SETS || join_of(world, phase) == 0 ||
        set_is_used(phase, op->set, index))
        return false;
    if (op->kind == HVT_SET_REMOVE)
        return there &&
               !(op->wrong == HVT_WRONG_ROOT && set_is_used(phase, other_set(world, op), index));
    return !there && new_set(world, op) != 0;
}

/* Ops of the joined set before phase->op[index]. */
static int joined_before(const struct hvt_phase *phase, int index)
{
    int count = 0;

    for (int i = 0; i < index; i++)
        count += phase->op[i].set == phase->join && !is_set_op(&phase->op[i]);
    return count;
}

int hvt_model_join_at(const struct hvt_world *world, const struct hvt_phase *phase, int rank)
{
    unsigned members = world->members[phase->join];
    int all = joined_before(phase, phase->ops);
    int last = member_at(members, (int)((unsigned)phase->seed % (unsigned)hvt_set_size(members)));

    if (rank == last)
        return all;
    return (int)(hvt_mix((uint64_t)phase->seed, (uint64_t)rank) % (uint64_t)(all + 1));
}

unsigned hvt_model_who(const struct hvt_world *world, const struct hvt_phase *phase, int index)
{
    const struct hvt_op *op = &phase->op[index];
    unsigned members = is_set_op(op) ? world->members[0] : world->members[op->set];

    if (is_set_op(op) || join_of(world, phase) != op->set)
        return members;
    for (int rank = 0; rank < world->ranks; rank++) {
        if (members >> rank & 1 &&
            hvt_model_join_at(world, phase, rank) <= joined_before(phase, index))
            members &= ~(1u << rank);
    }
    return members;
}

bool hvt_model_is_whole(const struct hvt_world *world, const struct hvt_phase *phase, int index)
{
    const struct hvt_op *op = &phase->op[index];

    return op->wrong != HVT_WRONG_GROUP || op->name < 0 ||
           (hvt_model_who(world, phase, index) & ~wrong_of(world, op)) != 0;
}

bool hvt_model_meets(const struct hvt_phase *phase)
{
    for (int i = 0; i < phase->ops; i++) {
        if (phase->op[i].wrong == HVT_WRONG_GROUP || phase->op[i].cancel == HVT_CANCEL_ALL)
            return true;
    }
    return false;
}

int hvt_model_members(const struct hvt_op *op)
{
    bool grouped =
        op->kind == HVT_ALLREDUCE || op->kind == HVT_ALLGATHER || op->kind == HVT_REDUCESCATTER;

    return grouped && op->group > 0 ? (op->group <= HVT_GROUP ? op->group : HVT_GROUP) : 1;
}

static bool is_grouped(const struct hvt_op *op)
{
    return op->group > 0 && (op->kind == HVT_ALLREDUCE || op->kind == HVT_ALLGATHER ||
                             op->kind == HVT_REDUCESCATTER);
}

const char *hvt_model_name(const struct hvt_op *op, int member, char *text_p, size_t size)
{
    if (op->name < 0)
        return NULL;
    if (is_grouped(op))
        snprintf(text_p, size, "w%d_%dof%d", op->name, member + 1, hvt_model_members(op));
    else
        snprintf(text_p, size, "w%d", op->name);
    return text_p;
}

enum hvt_cancel hvt_model_cancel(const struct hvt_world *world, const struct hvt_phase *phase,
                                 int index, int rank)
{
    const struct hvt_op *op = &phase->op[index];
    unsigned who = hvt_model_who(world, phase, index);
    struct hvt_outcome outcome;

    if (op->cancel == HVT_NO_CANCEL || op->wrong != HVT_RIGHT || is_set_op(op))
        return HVT_NO_CANCEL;
    hvt_model_group_outcome(world, phase, index, &outcome);
    if (outcome.status != HVD_OK)
        return HVT_NO_CANCEL;
    if (op->cancel == HVT_CANCEL_ALL) /* who cancels and joins leaves the op to the others */
        return join_of(world, phase) == op->set ? HVT_NO_CANCEL : HVT_CANCEL_ALL;
    if (op->name < 0 || who == 0 ||
        member_at(who, (int)((unsigned)op->seed % (unsigned)hvt_set_size(who))) != rank)
        return HVT_NO_CANCEL;
    return HVT_CANCEL_AND_REPEAT;
}

/* ---- requests ---- */

static bool has_rows(int kind)
{
    return kind == HVT_ALLGATHER || kind == HVT_ALLTOALL || kind == HVT_REDUCESCATTER;
}

static bool reduces(int kind)
{
    return kind == HVT_ALLREDUCE || kind == HVT_REDUCESCATTER;
}

static int fitting_reduce(int kind, int dtype, int reduce)
{
    if (dtype == HVD_BOOL)
        return reduce == HVD_MIN ? HVD_MIN : HVD_MAX;
    return kind == HVT_REDUCESCATTER && reduce == HVD_ADASUM ? HVD_SUM : reduce;
}

static int other_dtype(int dtype)
{
    if (dtype == HVD_BOOL)
        return HVD_UINT8;
    if (dtype == HVD_UINT8)
        return HVD_INT8;
    return dtype == HVD_FLOAT32 ? HVD_FLOAT16 : HVD_FLOAT32;
}

static int other_reduce(int dtype, int reduce)
{
    if (dtype == HVD_BOOL)
        return reduce == HVD_MIN ? HVD_MAX : HVD_MIN;
    return reduce == HVD_SUM ? HVD_MAX : HVD_SUM;
}

static double factor(int index)
{
    static const double factors[] = {1.0, 0.5, 2.0, 1.0 / 3, -1.5, 1e6};

    return factors[(unsigned)index % 6];
}

static void make_wrong_shape(struct hvt_request *r)
{
    int at = r->kind == HVT_ALLGATHER || r->kind == HVT_ALLTOALL ? 1 : 0;

    if (r->ndim > at) {
        r->dims[at]++;
    } else {
        r->ndim = at + 1;
        r->dims[at] = 2;
    }
}

static void make_wrong(const struct hvt_world *world, const struct hvt_op *op,
                       struct hvt_request *r)
{
    int wrong = op->wrong;
    bool cannot = op->name < 0 || r->group > 0 || op->kind >= HVT_SET_ADD;

    if (wrong == HVT_WRONG_KIND && cannot)
        wrong = HVT_WRONG_DTYPE;
    if (wrong == HVT_WRONG_KIND) {
        r->kind = op->kind == HVT_ALLREDUCE ? HVT_BARRIER : HVT_ALLREDUCE;
        r->reduce = fitting_reduce(r->kind, r->dtype, HVD_SUM);
    }
    if (wrong == HVT_WRONG_DTYPE) {
        r->dtype = other_dtype(r->dtype);
        r->reduce = fitting_reduce(r->kind, r->dtype, r->reduce);
    }
    if (wrong == HVT_WRONG_SHAPE)
        make_wrong_shape(r);
    if (wrong == HVT_WRONG_REDUCE)
        r->reduce = other_reduce(r->dtype, r->reduce);
    if (wrong == HVT_WRONG_ROOT && r->kind == HVT_BROADCAST) {
        unsigned members = world->members[op->set];
        int place = (hvt_set_place(members, r->root) + 1) % hvt_set_size(members);
        r->root = member_at(members, place);
    }
    if (wrong == HVT_WRONG_ROOT && r->kind == HVT_SET_REMOVE)
        r->root = other_set(world, op);
    if (wrong == HVT_WRONG_SCALE)
        r->post = factor(op->post + 1);
    if (wrong == HVT_WRONG_GROUP && op->name >= 0)
        r->group = 0;
    if (wrong == HVT_WRONG_RANKS && r->kind == HVT_SET_ADD && r->ranks != world->members[0])
        r->ranks = world->members[0] & ~r->ranks;
    r->small = wrong == HVT_WRONG_ROOM && (r->kind == HVT_ALLGATHER || r->kind == HVT_ALLTOALL);
}

static void set_rows(const struct hvt_world *world, const struct hvt_op *op, int member, int rank,
                     struct hvt_request *r)
{
    int size = hvt_set_size(world->members[op->set]);
    uint64_t random = hvt_mix(hvt_mix((uint64_t)op->seed, (uint64_t)rank), (uint64_t)member);

    if (r->kind == HVT_ALLGATHER && op->vary)
        r->dims[0] = (int64_t)hvt_below(&random, (uint32_t)r->dims[0] + 1);
    if (r->kind != HVT_ALLTOALL)
        return;
    r->equal_splits = !op->vary;
    int64_t each = r->dims[0] / size;
    r->dims[0] = each * size;
    for (int to = 0; to < size; to++)
        r->splits[to] = each;
    if (!op->vary)
        return;
    r->dims[0] = hvt_below(&random, 3) == 0;
    for (int to = 0; to < size; to++) {
        r->splits[to] = hvt_below(&random, (uint32_t)each + 2);
        r->dims[0] += r->splits[to];
    }
}

static int at_least(int value, int least)
{
    return value < least ? least : value;
}

void hvt_model_request(const struct hvt_world *world, const struct hvt_phase *phase, int index,
                       int member, int rank, struct hvt_request *request_p)
{
    const struct hvt_op *op = &phase->op[index];
    struct hvt_request r = {.kind = op->kind, .dtype = op->dtype, .member = member};

    r.reduce = fitting_reduce(op->kind, op->dtype, op->reduce);
    r.ndim = at_least(op->ndim > 3 ? 3 : op->ndim, has_rows(op->kind) ? 1 : 0);
    r.dims[0] = at_least(op->dim0, 0) + member;
    r.dims[1] = at_least(op->dim1, 0);
    r.dims[2] = at_least(op->dim2, 0);
    r.pre = factor(op->pre);
    r.post = factor(op->post);
    r.group = is_grouped(op) ? hvt_model_members(op) : 0;
    if (op->kind == HVT_SET_ADD)
        r.ranks = new_set(world, op);
    else if (op->kind == HVT_SET_REMOVE)
        r.root = op->set;
    else
        r.root =
            member_at(world->members[op->set],
                      (int)((unsigned)op->root % (unsigned)hvt_set_size(world->members[op->set])));
    if (!is_set_op(op))
        set_rows(world, op, member, rank, &r);
    bool split = is_split(world->members[0], wrong_of(world, op));
    if (op->wrong != HVT_RIGHT && wrong_of(world, op) >> rank & 1 && (split || !is_set_op(op)))
        make_wrong(world, op, &r);
    *request_p = r;
}

/* ---- sentences ---- */

static void add(char *text, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void add(char *text, const char *format, ...)
{
    size_t used = strlen(text);
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text + used, HVT_TEXT - used, format, arguments);
    va_end(arguments);
}

static void add_ranks(char *text, unsigned ranks)
{
    const char *before = hvt_set_size(ranks) == 1 ? "rank " : "ranks ";

    for (int rank = 0; rank < HVT_RANKS; rank++) {
        if (!(ranks >> rank & 1))
            continue;
        add(text, "%s%d", before, rank);
        before = ",";
    }
}

struct view {
    const struct hvt_world *world;
    const struct hvt_op *op;
    struct hvt_request requests[HVT_RANKS];
    unsigned who;
    int member;
};

static void say_shape(const struct hvt_request *r, char *text)
{
    add(text, "[");
    for (int i = 0; i < r->ndim; i++)
        add(text, "%s%" PRId64, i ? ", " : "", r->dims[i]);
    add(text, "]");
}

static void say_group(const struct view *view, const struct hvt_request *r, char *text)
{
    char leader[64] = "";

    if (r->group == 0) {
        add(text, "not grouped");
        return;
    }
    hvt_model_name(view->op, 0, leader, sizeof leader);
    add(text, "member %d of %d of the group of '%s'", r->member + 1, r->group, leader);
}

static void say_new_set(const struct hvt_request *r, char *text)
{
    bool first = true;

    add(text, "[");
    for (int rank = 0; rank < HVT_RANKS; rank++) {
        if (!(r->ranks >> rank & 1))
            continue;
        add(text, "%s%d", first ? "" : ", ", rank);
        first = false;
    }
    add(text, "]");
}

enum aspect { KIND, DTYPE, SHAPE, REDUCE, ROOT, SET, SCALE, GROUP, RANKS, ASPECTS };
static const char *const aspect_names[] = {"kind",          "dtype", "shape",
                                           "reduce op",     "root",  "process set",
                                           "scale factors", "group", "ranks"};

static void say(const struct view *view, enum aspect aspect, const struct hvt_request *r,
                char *text)
{
    if (aspect == KIND)
        add(text, "%s", hvt_kind_name(r->kind));
    else if (aspect == DTYPE)
        add(text, "%s", hvt_dtype_name(r->dtype));
    else if (aspect == SHAPE)
        say_shape(r, text);
    else if (aspect == REDUCE)
        add(text, "%s", hvt_reduce_name(r->reduce));
    else if (aspect == ROOT)
        add(text, "%d", r->root);
    else if (aspect == SET)
        add(text, "%c", HVT_DIGITS);
    else if (aspect == SCALE)
        add(text, "prescale %.17g postscale %.17g", r->pre, r->post);
    else if (aspect == GROUP)
        say_group(view, r, text);
    else
        say_new_set(r, text);
}

static bool same_shape(const struct hvt_request *a, const struct hvt_request *b)
{
    int from = a->kind == HVT_ALLGATHER || a->kind == HVT_ALLTOALL ? 1 : 0;

    if (a->ndim != b->ndim)
        return false;
    for (int i = from; i < a->ndim; i++) {
        if (a->dims[i] != b->dims[i])
            return false;
    }
    return true;
}

static bool same(enum aspect aspect, const struct hvt_request *a, const struct hvt_request *b)
{
    bool tensors = a->kind <= HVT_REDUCESCATTER;

    switch (aspect) {
    case KIND:
        return a->kind == b->kind;
    case DTYPE:
        return !tensors || a->dtype == b->dtype;
    case SHAPE:
        return !tensors || same_shape(a, b);
    case REDUCE:
        return !reduces(a->kind) || a->reduce == b->reduce;
    case ROOT:
        return a->kind != HVT_BROADCAST || a->root == b->root;
    case SET:
        return a->kind != HVT_SET_REMOVE || a->root == b->root;
    case SCALE:
        return !reduces(a->kind) || (a->pre == b->pre && a->post == b->post);
    case GROUP:
        return !tensors || a->group == b->group;
    default:
        return a->kind != HVT_SET_ADD || a->ranks == b->ranks;
    }
}

static int first_of(unsigned ranks)
{
    return ranks ? __builtin_ctz(ranks) : 0;
}

static void say_difference(const struct view *view, enum aspect aspect, struct hvt_outcome *o)
{
    unsigned left = view->who;

    snprintf(o->label_kind, sizeof o->label_kind, "%s",
             aspect == KIND ? "op" : hvt_kind_name(view->requests[first_of(left)].kind));
    add(o->text, "ranks disagree on %s: ", aspect_names[aspect]);
    while (left) {
        const struct hvt_request *speaker = &view->requests[first_of(left)];
        unsigned alike = 0;
        for (int rank = 0; rank < HVT_RANKS; rank++) {
            if (left >> rank & 1 && same(aspect, speaker, &view->requests[rank]))
                alike |= 1u << rank;
        }
        add_ranks(o->text, alike);
        add(o->text, " said ");
        say(view, aspect, speaker, o->text);
        left &= ~alike;
        add(o->text, "%s", left ? "; " : "");
    }
    o->status = HVD_ERR_MISMATCH;
}

/* ---- outcomes ---- */

static bool disagree(const struct view *view, struct hvt_outcome *o)
{
    const struct hvt_request *first = &view->requests[first_of(view->who)];
    enum aspect worst = ASPECTS;

    for (int rank = 0; rank < HVT_RANKS; rank++) {
        enum aspect aspect = KIND;
        if (!(view->who >> rank & 1))
            continue;
        while (aspect < worst && same(aspect, first, &view->requests[rank]))
            aspect++;
        worst = aspect;
    }
    if (worst < ASPECTS)
        say_difference(view, worst, o);
    return worst < ASPECTS;
}

static bool is_float(int dtype)
{
    return dtype >= HVD_FLOAT16 && dtype != HVD_BOOL;
}

static void refuse_reduction(const struct hvt_request *r, struct hvt_outcome *o)
{
    bool scaled = r->pre != 1.0 || r->post != 1.0;

    if (r->dtype == HVD_BOOL ? !scaled : r->reduce != HVD_ADASUM || is_float(r->dtype))
        return;
    o->status = HVD_ERR_UNSUPPORTED;
    add(o->text, "%s%s is not supported for %s", scaled ? "scaled " : "",
        hvt_reduce_name(r->reduce), hvt_dtype_name(r->dtype));
}

static void say_exists(const struct hvt_world *world, const struct hvt_request *r,
                       struct hvt_outcome *o)
{
    if (!existing_ranks(world, r->ranks))
        return;
    o->status = HVD_ERR_EXISTS;
    o->local = r->ranks == world->members[0];
    add(o->text, "process set %c has exactly these ranks already (", HVT_DIGITS);
    add_ranks(o->text, r->ranks);
    add(o->text, ")");
}

static void count_rows(const struct view *view, struct hvt_outcome *o)
{
    const struct hvt_request *first = &view->requests[first_of(view->who)];
    unsigned members = view->world->members[view->op->set];
    int present = hvt_set_size(view->who);
    int64_t gathered = 0;

    for (int rank = 0; rank < HVT_RANKS; rank++)
        gathered += view->who >> rank & 1 ? view->requests[rank].dims[0] : 0;
    for (int rank = 0; rank < HVT_RANKS; rank++) {
        int place = hvt_set_place(view->who, rank);
        o->rows[rank] = first->kind == HVT_ALLGATHER ? gathered : first->dims[0];
        if (place >= 0 && first->kind == HVT_REDUCESCATTER)
            o->rows[rank] = first->dims[0] / present + (place < first->dims[0] % present);
        if (place < 0 || first->kind != HVT_ALLTOALL)
            continue;
        o->rows[rank] = 0;
        for (int from = 0; from < HVT_RANKS; from++) {
            if (!(view->who >> from & 1))
                continue;
            int64_t rows = view->requests[from].splits[hvt_set_place(members, rank)];
            o->received[rank][hvt_set_place(members, from)] = rows;
            o->rows[rank] += rows;
        }
    }
}

static void find_small(const struct view *view, struct hvt_outcome *o)
{
    const struct hvt_request *first = &view->requests[first_of(view->who)];
    int64_t row = hvt_row_elements(first) * (int64_t)hvt_bytes_of(first->dtype);

    if (first->kind != HVT_ALLGATHER && first->kind != HVT_ALLTOALL)
        return;
    for (int rank = 0; rank < HVT_RANKS; rank++) {
        if (!(view->who >> rank & 1) || !view->requests[rank].small || o->rows[rank] * row == 0)
            continue;
        o->status = HVD_ERR_TOO_SMALL;
        o->room = true;
        o->culprit = rank;
        add(o->text,
            "the output of rank %d has room for %" PRId64 " bytes, the result has %" PRId64, rank,
            (o->rows[rank] - 1) * row, o->rows[rank] * row);
        return;
    }
}

void hvt_model_outcome(const struct hvt_world *world, const struct hvt_phase *phase, int index,
                       int member, struct hvt_outcome *outcome_p)
{
    struct view view = {.world = world, .op = &phase->op[index], .member = member};
    struct hvt_world now = *world;
    const struct hvt_request *first;

    view.who = hvt_model_who(world, phase, index);
    memset(outcome_p, 0, sizeof *outcome_p);
    outcome_p->culprit = -1;
    for (int rank = 0; rank < world->ranks; rank++)
        hvt_model_request(world, phase, index, member, rank, &view.requests[rank]);
    first = &view.requests[first_of(view.who)];
    snprintf(outcome_p->label_kind, sizeof outcome_p->label_kind, "%s", hvt_kind_name(first->kind));
    change(&now, phase, index);
    if (first->kind == HVT_SET_ADD && new_set(world, view.op) == world->members[0])
        say_exists(&now, &(struct hvt_request){.ranks = world->members[0]}, outcome_p);
    if (outcome_p->status != HVD_OK || disagree(&view, outcome_p))
        return;
    if (first->kind == HVT_SET_ADD)
        say_exists(&now, first, outcome_p);
    if (reduces(first->kind))
        refuse_reduction(first, outcome_p);
    if (first->kind == HVT_BROADCAST && !(view.who >> first->root & 1)) {
        outcome_p->status = HVD_ERR_INVALID;
        add(outcome_p->text, "root rank %d has joined and has nothing to send", first->root);
    }
    if (outcome_p->status != HVD_OK || is_set_op(view.op))
        return;
    count_rows(&view, outcome_p);
    find_small(&view, outcome_p);
}

int hvt_model_group_outcome(const struct hvt_world *world, const struct hvt_phase *phase, int index,
                            struct hvt_outcome *outcome_p)
{
    int members = hvt_model_members(&phase->op[index]), failed = -1;
    struct hvt_outcome one;

    for (int member = members - 1; member >= 0; member--) {
        hvt_model_outcome(world, phase, index, member, &one);
        if (one.status == HVD_OK && failed >= 0)
            continue;
        if (failed >= 0 && one.room && !outcome_p->room)
            continue;
        failed = one.status == HVD_OK ? -1 : member;
        *outcome_p = one;
    }
    return failed < 0 ? 0 : failed;
}
