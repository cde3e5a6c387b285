/* SPDX-License-Identifier: Apache-2.0
 * What a rank pays once, alone in its job (np 1).
 *
 * open: hvd_open when the job's worker runs already, after an hvd_close: a new engine comes meanwhile. open_first_op: the first op
 * behind it, of memory that the worker still has open.
 * import: the first op on a new allocation of --bytes, less the median of the next ones: the handle goes to the worker, which
 * opens it.
 * call: hvd_allreduce_async alone, of 4 bytes whose allocation is known: all that the client does, from the look at what memory it is
 * to the submission. call_stream: with a stream. attributes: cuPointerGetAttributes of the same pointer, by itself. */
#include "bench/device/side.h"

#include <stdio.h>
#include <stdlib.h>

#define OPENS   12
#define IMPORTS 8
#define NEXT    7 /* ops on an allocation that is known */

/* Microseconds until the op is over, and of the call that submits it. */
static double time_op(struct side *side, hvi_cu_ptr memory, void *stream, double *call_us_p)
{
    const struct hvd_tensor tensor = hvd_tensor_1d((void *)(uintptr_t)memory, HVD_FLOAT32, 1);
    struct hvd_op_options options;

    hvd_op_options_init(&options);
    options.stream = stream;
    const uint64_t since_ns = side_now_ns();
    side_fine(hvd_allreduce_async(side->session, "op", &tensor, &tensor, HVD_SUM, &options,
                                  &side->ops[0]),
              "hvd_allreduce_async");
    *call_us_p = (double)(side_now_ns() - since_ns) / 1e3;
    side_wait_ops(side, 1);
    return (double)(side_now_ns() - since_ns) / 1e3;
}

static void measure_opens(struct side *side, hvi_cu_ptr memory)
{
    double open_us[OPENS], op_us[OPENS], unused;

    side_step("opening again");
    for (int i = 0; i < OPENS; i++) {
        hvd_close(side->session);
        const uint64_t since_ns = side_now_ns();
        side_fine(hvd_open(NULL, &side->session), "hvd_open");
        open_us[i] = (double)(side_now_ns() - since_ns) / 1e3;
        op_us[i] = time_op(side, memory, NULL, &unused);
    }
    side_check(side, memory, 1, HVD_FLOAT32, 1, 1, "ops after hvd_open");
    side_figure(side, side_median(open_us, OPENS), "us", "open");
    side_figure(side, open_us[OPENS - 1], "us", "open_most");
    side_figure(side, side_median(op_us, OPENS), "us", "open_first_op");
}

static void measure_imports(struct side *side)
{
    double import_us[IMPORTS], next_us[NEXT], unused;

    side_step("imports");
    for (int i = 0; i < IMPORTS; i++) {
        const hvi_cu_ptr memory = side_alloc(side, side->options->bytes);
        side_fill(side, memory, 1, HVD_FLOAT32, 0);
        const double first_us = time_op(side, memory, NULL, &unused);
        for (int k = 0; k < NEXT; k++)
            next_us[k] = time_op(side, memory, NULL, &unused);
        import_us[i] = first_us - side_median(next_us, NEXT);
        side_check(side, memory, 1, HVD_FLOAT32, 1, 1, "an op on new memory");
        side_fine(hvd_device_forget(side->session, (void *)(uintptr_t)memory), "hvd_device_forget");
        side_free(side, memory);
    }
    side_figure(side, side_median(import_us, IMPORTS), "us", "import");
    side_figure(side, import_us[IMPORTS - 1], "us", "import_most");
}

static void measure_calls(struct side *side, hvi_cu_ptr memory)
{
    const int calls = side->options->calls;
    double *us = calloc((size_t)calls, sizeof(*us));
    int kinds[3] = {HVI_CU_POINTER_MEMORY_TYPE, HVI_CU_POINTER_BUFFER_ID, HVI_CU_POINTER_DEVICE};
    uint64_t values[3] = {0};
    void *places[3] = {&values[0], &values[1], &values[2]};

    side_step("calls");
    for (int with_stream = 0; with_stream < 2; with_stream++) {
        void *stream = with_stream ? side->stream->handle : NULL;
        for (int i = -10; i < calls; i++)
            time_op(side, memory, stream, &us[i < 0 ? 0 : i]);
        side_check(side, memory, 1, HVD_FLOAT32, 1, 1, "calls");
        side_figure(side, side_median(us, calls), "us", "%s", with_stream ? "call_stream" : "call");
    }
    for (int i = 0; i < calls; i++) {
        const uint64_t since_ns = side_now_ns();
        side_good(side, side->cuda.pointer_attributes(3, kinds, places, memory),
                  "cuPointerGetAttributes");
        us[i] = (double)(side_now_ns() - since_ns) / 1e3;
    }
    side_figure(side, side_median(us, calls), "us", "attributes");
    free(us);
}

void bench_attach(const struct side_options *options)
{
    static struct side side;
    double unused;

    side_open(&side, options, true);
    const hvi_cu_ptr memory = side_alloc(&side, 256);
    side_fill(&side, memory, 1, HVD_FLOAT32, 0);
    side_step("the first op");
    side_figure(&side, time_op(&side, memory, NULL, &unused), "us", "first_op");
    measure_calls(&side, memory);
    measure_imports(&side);
    measure_opens(&side, memory);
    hvd_close(side.session);
}
