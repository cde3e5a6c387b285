/* SPDX-License-Identifier: Apache-2.0 */
#include "client/slots/combine.h"

#include "base/bits.h"
#include "base/types.h"
#include "client/ops/sets.h"
#include "client/slots/slots.h"
#include "reduce/reduce.h"

#include <string.h>

static void reduce(const struct client_slots *slots, const struct client_set *set,
                   const struct client_said *said, uint32_t slot)
{
    const struct hvi_express *express = &slots->map;
    const void *in[HVI_EXPRESS_RANKS];
    void *out = hvi_express_result(express, slot, said->bytes);
    for (int i = 0; i < set->size; i++)
        in[i] = hvi_express_payload(express, slot, (uint32_t)set->ranks[i], said->bytes);
    const struct hvi_reduction work = {
        .dtype = said->dtype,
        .reduce_op = said->reduce_op,
        .ranks = (uint32_t)set->size,
        .ins = (uint32_t)set->size,
        .outs = 1,
        .in = in,
        .out = &out,
        .prescale = said->prescale,
        .postscale = said->postscale,
    };
    slots->kernels->reduce(&work, 0, said->bytes / hvi_dtype_bytes(said->dtype));
}

void client_combine(const struct client_slots *slots, const struct client_set *set,
                    const struct client_said *said, uint32_t slot)
{
    const struct hvi_express *express = &slots->map;
    if (said->bytes == 0)
        return;
    if (said->kind == HVI_KIND_BROADCAST)
        memcpy(hvi_express_result(express, slot, said->bytes),
               hvi_express_payload(express, slot, (uint32_t)said->root, said->bytes), said->bytes);
    else
        reduce(slots, set, said, slot);
}

static void add_lag(struct hvi_express_lag *lag, uint64_t lag_ns, bool last)
{
    lag->sum_ns += lag_ns;
    lag->last += last;
    if (lag_ns > lag->max_ns)
        lag->max_ns = lag_ns;
    lag->histogram[hvi_log2_bucket(lag_ns, HVI_EXPRESS_BUCKETS)]++;
}

void client_combine_note_lags(const struct client_slots *slots, const struct client_set *set,
                              uint32_t slot)
{
    const struct hvi_express *express = &slots->map;
    struct hvi_express_rank *mine = &express->rank[slots->rank];
    uint64_t first_ns = UINT64_MAX, last_ns = 0;
    for (int i = 0; i < set->size; i++) {
        uint64_t ns = hvi_express_part(express, slot, (uint32_t)set->ranks[i])->submit_ns;
        first_ns = ns < first_ns ? ns : first_ns;
        last_ns = ns > last_ns ? ns : last_ns;
    }
    for (int i = 0; i < set->size; i++) {
        uint64_t ns = hvi_express_part(express, slot, (uint32_t)set->ranks[i])->submit_ns;
        add_lag(&mine->lag[set->ranks[i]], ns - first_ns, ns == last_ns);
    }
}
