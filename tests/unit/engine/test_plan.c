/* SPDX-License-Identifier: Apache-2.0
 * What a plan is made of: each message is in the run of its peer and lane, and there are no runs, and no room for some, but
 * those that messages are in. */
#include "base/status.h"
#include "base/types.h"
#include "daemon/engine/exec/net.h"
#include "tests/unit/hvt_main.h"

#include <malloc.h>

#define NODES 1000u
#define LANES 8u

/* One rank on each node. Nothing here is read or written. */
static uint32_t number[NODES], ones[NODES], none[NODES];
static uint64_t sizes[2 * NODES];
static unsigned char memory;

static struct engine_wire_work *plan(uint32_t kind, uint32_t nodes, uint64_t bytes, bool tentative)
{
    static struct engine_operand in, out;
    static struct engine_span span;
    static struct engine_work work;
    static struct engine_batch batch;

    for (uint32_t i = 0; i < nodes; i++) {
        number[i] = i;
        ones[i] = 1;
        sizes[i] = sizes[nodes + i] = bytes;
    }
    in = out = (struct engine_operand){.kind = ENGINE_OPERAND_MAPPED, .address = &memory};
    span = (struct engine_span){.sequence = 1,
                                .nodes = nodes,
                                .here = nodes / 3,
                                .node = number,
                                .places = ones,
                                .members = nodes,
                                .home = number,
                                .place = none,
                                .tentative = tentative};
    work = (struct engine_work){.kind = kind,
                                .dtype = HVI_DTYPE_FLOAT32,
                                .reduce_op = HVI_REDUCE_SUM,
                                .ranks = 1,
                                .prescale = 1,
                                .postscale = 1,
                                .count = bytes / sizeof(float),
                                .bytes = bytes,
                                .span = &span,
                                .in = &in,
                                .out = &out,
                                .kinds = 1u << ENGINE_OPERAND_MAPPED,
                                .sizes = sizes};
    batch = (struct engine_batch){.works = {&work}, .count = 1, .bytes = bytes};
    return engine_wire_work_new(&batch, LANES, UINT64_MAX);
}

/* How many messages are in the run. */
static uint32_t check_run(const struct engine_wire_work *net, const struct engine_wire_run *run)
{
    const struct engine_wire_messages *messages = run->sends ? &net->out : &net->in;
    uint32_t count = 0, last = run->first;

    ck_assert_ptr_eq(run->work, net);
    ck_assert_uint_eq(run->at, run->first);
    for (uint32_t i = run->first; i != ENGINE_WIRE_NONE; i = messages->list[i].next) {
        ck_assert_uint_lt(i, messages->count);
        ck_assert(count == 0 || i > last);
        ck_assert_uint_eq(messages->list[i].peer, run->peer);
        ck_assert_uint_eq(messages->list[i].lane, run->lane);
        last = i;
        count++;
    }
    ck_assert_uint_eq(run->last, last);
    return count;
}

static void check_runs(const struct engine_wire_work *net)
{
    static bool seen[2][NODES][LANES];
    uint32_t found[2] = {0, 0};

    memset(seen, 0, sizeof seen);
    for (uint32_t i = 0; i < net->run_count; i++) {
        const struct engine_wire_run *run = &net->runs[i];
        ck_assert(!seen[run->sends][run->peer][run->lane]);
        seen[run->sends][run->peer][run->lane] = true;
        found[run->sends] += check_run(net, run);
    }
    ck_assert_uint_eq(found[0], net->in.count);
    ck_assert_uint_eq(found[1], net->out.count);
}

static const struct {
    uint32_t kind, nodes;
    uint64_t bytes;
    bool tentative;
    uint32_t runs; /* 0: any number */
} plans[] = {
    {HVI_KIND_ALLREDUCE, NODES, 64, false, 21}, /* ten steps of a doubling, one in two stretches */
    {HVI_KIND_ALLREDUCE, NODES, 64, true, 21},
    {HVI_KIND_BARRIER, NODES, 0, true, 20},
    {HVI_KIND_BROADCAST, NODES, 64, false, 0},
    {HVI_KIND_BROADCAST, NODES, 1 << 24, true, 0},
    {HVI_KIND_ALLREDUCE, NODES, 1 << 25, false, 2},     /* one chunk a block */
    {HVI_KIND_ALLREDUCE, 3, 1 << 26, false, 2 * LANES}, /* many */
    {HVI_KIND_ALLGATHER, 40, 1 << 22, true, 0},
    {HVI_KIND_ALLTOALL, NODES, 64, false, 2 * (NODES - 1)},
    {HVI_KIND_ALLTOALL, 40, 600000, false, 2 * 39 * 3},
    {HVI_KIND_ALLREDUCE, 1, 64, false, 0},
};

START_TEST(every_message_is_in_the_run_of_its_peer_and_lane)
{
    struct engine_wire_work *net =
        plan(plans[_i].kind, plans[_i].nodes, plans[_i].bytes, plans[_i].tentative);

    ck_assert_ptr_nonnull(net);
    check_runs(net);
    if (plans[_i].runs > 0)
        ck_assert_uint_eq(net->run_count, plans[_i].runs);
    engine_wire_work_free(net);
}
END_TEST

/* Of 8,000 lanes, of which it uses 20 each way at most. */
START_TEST(a_plan_of_few_messages_is_small_however_many_nodes_there_are)
{
    struct engine_wire_work *net =
        plan(plans[_i].kind, plans[_i].nodes, plans[_i].bytes, plans[_i].tentative);
    uint32_t messages = net->out.count + net->in.count;

    ck_assert_uint_le(messages, 40);
    ck_assert_uint_le(malloc_usable_size(net->runs), (messages + 2) * sizeof *net->runs);
    engine_wire_work_free(net);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine/plan");
    TCase *tcase = tcase_create("plan");

    tcase_add_loop_test(tcase, every_message_is_in_the_run_of_its_peer_and_lane, 0,
                        (int)(sizeof plans / sizeof plans[0]));
    tcase_add_loop_test(tcase, a_plan_of_few_messages_is_small_however_many_nodes_there_are, 0, 4);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
