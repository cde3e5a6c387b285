/* SPDX-License-Identifier: Apache-2.0
 * A rank of hvt-kills: windows of ops, until one fails. Every result of an op that has succeeded is
 * compared with what the plan says, to the bit: the numbers are small integers, so all sums are exact.
 *
 * Element i of an operand is (i + offset) mod PERIOD, and the offset tells rank, step and place in the window
 * apart. So what every op yields has a period too. */
#include "client/session/session.h"
#include "hvd/hvd.h"
#include "tests/fault/kills/kills.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define PERIOD  61
#define POLL_US 50

enum kind { ALLREDUCE, ALLGATHER, BROADCAST, REDUCESCATTER, ALLTOALL, BARRIER, KINDS };
static const char *const names[] = {"allreduce",     "allgather", "broadcast",
                                    "reducescatter", "alltoall",  "barrier"};

enum patience { WAITS, POLLS, WAITS_FOR_ALL, WAITS_FOR_ANY, PATIENCES };

struct op {
    struct hvd_op *handle;
    enum kind kind;
    uint32_t place;
    bool in_place;
    float *in, *out;
};

struct rank {
    const struct kills_plan *plan;
    struct kills_seat *seat;
    struct hvd_session *session;
    int number;
    uint64_t step;
    enum patience patience;
    int64_t room; /* floats of one operand */
    float *memory;
    size_t bytes;
    struct op ops[4];
};

uint64_t kills_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* splitmix64 */
uint64_t kills_random(uint64_t *dice)
{
    uint64_t z = *dice += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

uint32_t kills_below(uint64_t *dice, uint32_t n)
{
    return (uint32_t)(kills_random(dice) % n);
}

/* ---- numbers ---- */

static uint32_t offset_of(const struct rank *rank, const struct op *op, int number)
{
    return (uint32_t)((rank->step * 5 + (uint64_t)number * 7 + op->place * 3) % PERIOD);
}

static void fill(float *data, int64_t count, uint32_t offset)
{
    for (int64_t i = 0; i < count; i++) {
        data[i] = (float)offset;
        offset = offset + 1 == PERIOD ? 0 : offset + 1;
    }
}

static void check(const struct rank *rank, const struct op *op, int64_t first, int64_t count,
                  const float *expected, int64_t start)
{
    uint32_t at = (uint32_t)(start % PERIOD);
    for (int64_t i = first; i < first + count; i++) {
        if (op->out[i] != expected[at]) {
            fprintf(stderr,
                    "hvt-kills: kill %llu: rank %d, step %llu, %s in place %u: element %lld is %g "
                    "and not %g\n",
                    (unsigned long long)rank->plan->number, rank->number,
                    (unsigned long long)rank->step, names[op->kind], op->place, (long long)i,
                    (double)op->out[i], (double)expected[at]);
            _exit(KILLS_WRONG);
        }
        at = at + 1 == PERIOD ? 0 : at + 1;
    }
}

/* What rank `number` gave, over one period; added to what is there. */
static void add_given(const struct rank *rank, const struct op *op, int number, float *period)
{
    uint32_t offset = offset_of(rank, op, number);
    for (uint32_t i = 0; i < PERIOD; i++)
        period[i] += (float)((i + offset) % PERIOD);
}

static int64_t rows_before(const struct kills_plan *plan, int number)
{
    int64_t more = plan->elements % plan->size;
    return plan->elements / plan->size * number + (number < more ? number : more);
}

/* Rows that each rank sends to each. */
static int64_t part_of(const struct kills_plan *plan)
{
    return (plan->elements + plan->size - 1) / plan->size;
}

static int root_of(const struct rank *rank)
{
    return (int)(rank->step % (uint64_t)rank->plan->size);
}

static void check_parts(const struct rank *rank, const struct op *op, int64_t part, int64_t start)
{
    for (int peer = 0; peer < rank->plan->size; peer++) {
        float given[PERIOD] = {0};
        add_given(rank, op, peer, given);
        check(rank, op, peer * part, part, given, start);
    }
}

static void judge(const struct rank *rank, const struct op *op)
{
    const struct kills_plan *plan = rank->plan;
    int64_t before = rows_before(plan, rank->number), after = rows_before(plan, rank->number + 1);
    float expected[PERIOD] = {0};
    for (int peer = 0; peer < plan->size; peer++)
        if (op->kind != BROADCAST || peer == root_of(rank))
            add_given(rank, op, peer, expected);
    if (op->kind == ALLREDUCE || op->kind == BROADCAST)
        check(rank, op, 0, plan->elements, expected, 0);
    else if (op->kind == REDUCESCATTER)
        check(rank, op, 0, after - before, expected, before);
    else if (op->kind == ALLGATHER)
        check_parts(rank, op, plan->elements, 0);
    else if (op->kind == ALLTOALL)
        check_parts(rank, op, part_of(plan), rank->number * part_of(plan));
}

/* ---- ops ---- */

static int submit(struct rank *rank, struct op *op)
{
    const struct kills_plan *plan = rank->plan;
    uint64_t dice = plan->dice ^ (rank->step << 8 | op->place);
    char text[32];
    const char *name = plan->named ? text : NULL;
    op->kind = plan->mixed ? (enum kind)kills_below(&dice, KINDS) : ALLREDUCE;
    snprintf(text, sizeof text, "%s.%u", names[op->kind], op->place);
    op->in = rank->memory + 2 * op->place * rank->room;
    op->out = op->in_place && op->kind <= BROADCAST && op->kind != ALLGATHER ? op->in
                                                                             : op->in + rank->room;
    int64_t given = op->kind == ALLTOALL ? part_of(plan) * plan->size : plan->elements;
    struct hvd_tensor in = hvd_tensor_1d(op->in, HVD_FLOAT32, given);
    struct hvd_tensor out = hvd_tensor_1d(op->out, HVD_FLOAT32, plan->elements);
    fill(op->in, given, offset_of(rank, op, rank->number));
    switch (op->kind) {
    case ALLREDUCE:
        return hvd_allreduce_async(rank->session, name, &in, &out, HVD_SUM, NULL, &op->handle);
    case ALLGATHER:
        out.dims[0] = plan->elements * plan->size;
        return hvd_allgather_async(rank->session, name, &in, &out, NULL, &op->handle);
    case BROADCAST:
        return hvd_broadcast_async(rank->session, name, &in, &out, root_of(rank), NULL,
                                   &op->handle);
    case REDUCESCATTER:
        return hvd_reducescatter_async(rank->session, name, &in, &out, HVD_SUM, NULL, &op->handle);
    case ALLTOALL:
        out.dims[0] = given;
        return hvd_alltoall_async(rank->session, name, &in, NULL, &out, NULL, &op->handle);
    default:
        return hvd_barrier_async(rank->session, name, NULL, &op->handle);
    }
}

/* Until nothing of the window is in progress, in one of the ways that there are. */
static void wait_for(const struct rank *rank, uint32_t count)
{
    struct hvd_op *handles[4];
    int index;
    for (uint32_t i = 0; i < count; i++)
        handles[i] = rank->ops[i].handle;
    if (rank->patience == WAITS_FOR_ALL)
        hvd_wait_all(handles, (int)count, -1);
    else if (rank->patience == WAITS_FOR_ANY)
        hvd_wait_any(handles, (int)count, -1, &index);
    for (uint32_t i = 0; i < count && rank->patience == POLLS; i++)
        while (hvd_test(handles[i]) == HVD_INPROGRESS)
            usleep(POLL_US);
}

static void keep_first(struct rank *rank, int *status_p, int status)
{
    if (status == HVD_OK || *status_p != HVD_OK)
        return;
    *status_p = status;
    rank->seat->at_ns = kills_now_ns();
    snprintf(rank->seat->text, sizeof rank->seat->text, "%s", hvd_last_error());
}

/* A step: HVD_OK, or how its first op failed. */
static int work(struct rank *rank)
{
    uint32_t count = 0;
    int status = HVD_OK;
    while (count < rank->plan->window && status == HVD_OK) {
        rank->ops[count].handle = NULL;
        keep_first(rank, &status, submit(rank, &rank->ops[count]));
        if (status == HVD_OK)
            count++;
    }
    wait_for(rank, count);
    for (uint32_t i = 0; i < count; i++) {
        int came = hvd_wait(rank->ops[i].handle, -1);
        if (came == HVD_OK)
            judge(rank, &rank->ops[i]);
        keep_first(rank, &status, came);
        hvd_op_free(rank->ops[i].handle);
    }
    return status;
}

/* ---- the life ---- */

static int get_memory(struct rank *rank)
{
    const struct kills_plan *plan = rank->plan;
    void *memory = NULL;
    rank->room = (plan->elements * plan->size + 15) / 16 * 16;
    rank->bytes = ((size_t)rank->room * 2 * plan->window * sizeof(float) + 4095) & ~(size_t)4095;
    int status = HVD_OK;
    if (plan->memory == KILLS_MALLOC)
        memory = malloc(rank->bytes);
    else if (plan->memory == KILLS_SHARED)
        status = hvd_alloc(rank->session, rank->bytes, &memory);
    else
        memory =
            mmap(NULL, rank->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (plan->memory == KILLS_ADOPTED && memory != MAP_FAILED)
        status = hvd_adopt(rank->session, memory, rank->bytes);
    if (status == HVD_OK && (!memory || memory == MAP_FAILED))
        status = HVD_ERR_NO_MEMORY;
    rank->memory = memory;
    return status;
}

static _Noreturn void finish(struct rank *rank, enum kills_state state, int status)
{
    struct kills_seat *seat = rank->seat;
    seat->status = status;
    if (state == KILLS_REFUSED)
        snprintf(seat->text, sizeof seat->text, "%s", hvd_last_error());
    atomic_store_explicit(&seat->state, (int)state, memory_order_release);
    hvd_close(rank->session);
    _exit(0);
}

_Noreturn void kills_be_rank(const char *address, const struct kills_plan *plan, int number,
                             struct kills_seat *seat)
{
    struct rank rank = {.plan = plan, .seat = seat, .number = number};
    uint64_t dice = plan->dice + (uint64_t)number;
    struct hvd_options options;
    int status;
    hvd_options_init(&options);
    options.address = address;
    options.job = plan->job;
    options.rank = number;
    options.size = plan->size;
    rank.patience = (enum patience)kills_below(&dice, PATIENCES);
    for (uint32_t i = 0; i < plan->window; i++)
        rank.ops[i] = (struct op){.place = i, .in_place = kills_below(&dice, 2) == 0};
    if ((status = hvd_open(&options, &rank.session)) != HVD_OK)
        finish(&rank, KILLS_REFUSED, status);
    seat->engine_pid = rank.session->link.engine_pid;
    if ((status = get_memory(&rank)) != HVD_OK)
        finish(&rank, KILLS_REFUSED, status);
    atomic_store_explicit(&seat->state, KILLS_WORKS, memory_order_release);
    while ((status = work(&rank)) == HVD_OK) {
        rank.step++;
        atomic_fetch_add_explicit(&seat->done, 1, memory_order_relaxed);
    }
    finish(&rank, KILLS_ENDED, status);
}
