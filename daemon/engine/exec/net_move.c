/* SPDX-License-Identifier: Apache-2.0
 * What is done with the bytes of messages. The local side of a hierarchical reduction costs no pass of
 * its own: a block's inputs are added when the block is first sent, or in the pass that adds what has been
 * received, and that pass also writes all local outputs when it makes the result.
 *
 *     block sent first     in[0] + in[1]              -> out[0] -> lane        (one input: straight from it)
 *     block on its way     in[0] + in[1] + received   -> out[0] -> lane
 *     the last addition    in[0] + in[1] + received   -> out[0], out[1] -> lane
 *     result on its way    lane -> out[0] -> out[1], lane
 *
 * Mapped operands may lack pages: everything that touches them runs below hvi_pages_run. */
#include "daemon/engine/exec/net.h"

#include "base/assert.h"
#include "base/pages.h"
#include "base/status.h"
#include "base/types.h"

#define PAGE_BYTES 4096u

struct touch {
    const struct engine_wire_tools *tools;
    const struct engine_wire_work *work;
    const struct engine_wire_message *message;
    const struct engine_wire_copy *copy;
    const unsigned char *memory;
    uint64_t bytes;
};

static int run(void (*function)(void *user), struct touch *touch, struct engine_fault *fault_p)
{
    uintptr_t missing = 0;

    if (hvi_pages_run(function, NULL, touch, &missing))
        return HVI_OK;
    *fault_p = (struct engine_fault){.rank = -1, .missing = missing};
    return HVI_ERR_NO_MEMORY;
}

/* ---- sums ---- */

struct addition {
    const void *in[HVI_RANKS_MAX + 1];
    void *out[HVI_RANKS_MAX];
    struct hvi_reduction reduction;
};

/* What inputs of ours give, before another node's are added. */
static void start(struct addition *addition, const struct engine_wire_work *net)
{
    const struct engine_work *work = net->work;
    uint32_t op = work->reduce_op;

    if (op == HVI_REDUCE_AVERAGE || op == HVI_REDUCE_ADASUM)
        op = HVI_REDUCE_SUM;
    addition->reduction = (struct hvi_reduction){.dtype = work->dtype,
                                                 .reduce_op = op,
                                                 .ranks = work->span->members,
                                                 .in = addition->in,
                                                 .out = addition->out,
                                                 .prescale = 1,
                                                 .postscale = 1};
}

static void add_inputs(struct addition *addition, const struct engine_wire_work *net, uint64_t at)
{
    addition->reduction.prescale = net->prescale;
    for (uint32_t i = 0; i < net->in_count; i++)
        addition->in[addition->reduction.ins++] = (const char *)net->ins[i] + at;
}

static void add_vector(struct addition *addition, const void *vector)
{
    addition->in[addition->reduction.ins++] = vector;
}

/* The result of the op: at `to`, or, if that is NULL, in all outputs at `at`. */
static void make_last(struct addition *addition, const struct engine_wire_work *net, void *to,
                      uint64_t at)
{
    addition->reduction.reduce_op =
        net->work->reduce_op == HVI_REDUCE_ADASUM ? HVI_REDUCE_SUM : net->work->reduce_op;
    addition->reduction.postscale = net->work->postscale;
    if (to) {
        addition->out[addition->reduction.outs++] = to;
        return;
    }
    for (uint32_t i = 0; i < net->out_count; i++)
        addition->out[addition->reduction.outs++] = (char *)net->outs[i] + at;
}

static void reduce(const struct engine_wire_tools *tools, struct addition *addition, uint64_t bytes)
{
    tools->kernels->reduce(&addition->reduction, 0,
                           bytes / hvi_dtype_bytes(addition->reduction.dtype));
}

static void sum_inputs(const struct engine_wire_tools *tools, const struct engine_wire_work *net,
                       uint64_t at, uint64_t bytes, void *to)
{
    struct addition addition;

    start(&addition, net);
    add_inputs(&addition, net, at);
    addition.out[addition.reduction.outs++] = to;
    reduce(tools, &addition, bytes);
}

/* What the ring has added so far comes to the sum of our inputs. */
static void add_received(const struct engine_wire_tools *tools, const struct engine_wire_work *net,
                         const struct engine_wire_message *message, uint64_t at, uint64_t bytes,
                         const unsigned char *received)
{
    unsigned char *to = message->data ? message->data + (at - message->at) : NULL;
    struct addition addition;

    start(&addition, net);
    if (net->one_pass) {
        add_inputs(&addition, net, at);
    } else {
        sum_inputs(tools, net, at, bytes, tools->strip);
        add_vector(&addition, tools->strip);
    }
    add_vector(&addition, received);
    if (message->what == ENGINE_WIRE_LAST)
        make_last(&addition, net, to, at);
    else
        addition.out[addition.reduction.outs++] = to;
    reduce(tools, &addition, bytes);
}

static void touch_received(void *user)
{
    const struct touch *touch = user;
    const struct engine_wire_message *message = touch->message;
    uint64_t most = touch->work->one_pass ? message->bytes : ENGINE_WIRE_STRIP_BYTES;

    for (uint64_t done = 0; done < message->bytes; done += most) {
        uint64_t bytes = message->bytes - done;
        add_received(touch->tools, touch->work, message, message->at + done,
                     bytes < most ? bytes : most, touch->memory + done);
    }
}

static void touch_others(void *user)
{
    const struct touch *touch = user;
    const struct engine_wire_message *message = touch->message;

    for (uint32_t i = 1; i < touch->work->out_count; i++)
        touch->tools->kernels->copy((char *)touch->work->outs[i] + message->at, message->data,
                                    message->bytes, touch->work->spread_streams);
}

unsigned char *engine_wire_target(const struct engine_wire_message *message, unsigned char *scratch)
{
    bool adds = message->what == ENGINE_WIRE_ADD || message->what == ENGINE_WIRE_LAST;

    return adds ? scratch : message->data;
}

int engine_wire_accept(const struct engine_wire_tools *tools, const struct engine_wire_work *work,
                       const struct engine_wire_message *message, const unsigned char *received,
                       struct engine_fault *fault_p)
{
    struct touch touch = {.tools = tools, .work = work, .message = message, .memory = received};

    if (message->what == ENGINE_WIRE_PLACE)
        return HVI_OK;
    return run(message->what == ENGINE_WIRE_SPREAD ? touch_others : touch_received, &touch,
               fault_p);
}

/* ---- sending ---- */

static void touch_pages(void *user)
{
    const struct touch *touch = user;
    const volatile unsigned char *memory = touch->memory;

    for (uint64_t at = 0; at < touch->bytes; at += PAGE_BYTES)
        (void)memory[at];
    (void)memory[touch->bytes - 1];
}

int engine_wire_touch(const void *memory, uint64_t bytes, struct engine_fault *fault_p)
{
    struct touch touch = {.memory = memory, .bytes = bytes};

    return run(touch_pages, &touch, fault_p);
}

static void touch_inputs(void *user)
{
    const struct touch *touch = user;

    sum_inputs(touch->tools, touch->work, touch->message->at, touch->message->bytes,
               touch->message->data);
}

int engine_wire_prepare(const struct engine_wire_tools *tools, const struct engine_wire_work *work,
                        const struct engine_wire_message *message, const unsigned char **data_p,
                        struct engine_fault *fault_p)
{
    struct touch touch = {.tools = tools, .work = work, .message = message};

    *data_p = message->data;
    if (message->what == ENGINE_WIRE_PASS)
        return HVI_OK;
    if (message->what == ENGINE_WIRE_SUM && (work->in_count > 1 || work->prescale != 1))
        return run(touch_inputs, &touch, fault_p);
    if (message->what == ENGINE_WIRE_SUM)
        *data_p = (const unsigned char *)work->ins[0] + message->at;
    return engine_wire_touch(*data_p, message->bytes, fault_p);
}

/* ---- without messages ---- */

static void touch_copy(void *user)
{
    const struct touch *touch = user;
    const struct engine_wire_copy *copy = touch->copy;
    struct addition addition;

    if (copy->from) {
        touch->tools->kernels->copy(copy->to, copy->from, copy->bytes, touch->work->streams);
        return;
    }
    start(&addition, touch->work);
    add_inputs(&addition, touch->work, copy->at);
    make_last(&addition, touch->work, copy->to, copy->at);
    reduce(touch->tools, &addition, copy->bytes);
}

int engine_wire_copy(const struct engine_wire_tools *tools, const struct engine_wire_work *work,
                     const struct engine_wire_copy *copy, struct engine_fault *fault_p)
{
    struct touch touch = {.tools = tools, .work = work, .copy = copy};

    return run(touch_copy, &touch, fault_p);
}

static unsigned char *slot(const struct engine_wire_work *work, uint32_t node)
{
    return work->slots + node * work->slot_bytes;
}

static void touch_own_slot(void *user)
{
    const struct touch *touch = user;

    sum_inputs(touch->tools, touch->work, 0, touch->work->slot_bytes,
               slot(touch->work, touch->work->here));
}

int engine_wire_begin(const struct engine_wire_tools *tools, const struct engine_wire_work *work,
                      struct engine_fault *fault_p)
{
    struct touch touch = {.tools = tools, .work = work};

    if (work->finish != ENGINE_WIRE_FINISH_SLOTS)
        return HVI_OK;
    return run(touch_own_slot, &touch, fault_p);
}

static void touch_slots(void *user)
{
    const struct touch *touch = user;
    const struct engine_wire_work *work = touch->work;
    struct addition addition;

    HVI_ASSERT(work->nodes <= HVI_RANKS_MAX);
    start(&addition, work);
    for (uint32_t i = 0; i < work->nodes; i++)
        add_vector(&addition, slot(work, i));
    make_last(&addition, work, NULL, 0);
    reduce(touch->tools, &addition, work->slot_bytes);
}

static void touch_chunk(void *user)
{
    struct touch *touch = user;

    engine_wire_adasum_run(touch->work->adasum);
}

static int run_adasum(struct engine_wire_work *work, struct touch *touch, bool *over_p,
                      struct engine_fault *fault_p)
{
    if (!work->adasum)
        work->adasum = engine_wire_adasum_new(work, touch->tools->kernels);
    if (!work->adasum)
        return HVI_ERR_NO_MEMORY;
    int status = run(touch_chunk, touch, fault_p);
    *over_p = engine_wire_adasum_next(work->adasum);
    return status;
}

int engine_wire_finish(const struct engine_wire_tools *tools, struct engine_wire_work *work,
                       bool *over_p, struct engine_fault *fault_p)
{
    struct touch touch = {.tools = tools, .work = work};

    *over_p = true;
    if (work->finish == ENGINE_WIRE_FINISH_SLOTS)
        return run(touch_slots, &touch, fault_p);
    if (work->finish == ENGINE_WIRE_FINISH_ADASUM)
        return run_adasum(work, &touch, over_p, fault_p);
    return HVI_OK;
}
