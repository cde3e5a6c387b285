/* SPDX-License-Identifier: Apache-2.0
 * Steps: whether the works of a job repeat. Rounds have their lists; what has no rounds is found by its period: the
 * least number of works after which the last ones, read backwards, come again (the Z function). As that costs as much
 * as there are works, it is looked for each time there are a quarter more. */
#include "daemon/engine/order/steps.h"

#include "base/status.h"

#include <stdlib.h>

#define NEEDED_LEAST 2u
#define NEEDED_MOST  512u
#define WORTH        4u /* a replay that lasts for so many times what it was watched for has paid */

int engine_steps_init(struct engine_steps *steps)
{
    steps->round = 2; /* no tensor is of it, nor of the one before */
    steps->needed = NEEDED_LEAST;
    steps->list[0] = calloc(ENGINE_STEP_MAX, sizeof(struct engine_tensor *));
    steps->list[1] = calloc(ENGINE_STEP_MAX, sizeof(struct engine_tensor *));
    steps->works = calloc(ENGINE_STEPS_KEPT, sizeof(struct engine_tensor *));
    steps->reach = calloc(ENGINE_STEPS_KEPT, sizeof *steps->reach);
    return steps->list[0] && steps->list[1] && steps->works && steps->reach ? HVI_OK
                                                                            : HVI_ERR_NO_MEMORY;
}

static void clear(struct engine_steps *steps, struct engine_tensors *tensors, uint32_t which)
{
    while (steps->count[which] > 0)
        engine_tensor_put(tensors, steps->list[which][--steps->count[which]]);
}

static struct engine_tensor **work(const struct engine_steps *steps, uint64_t number)
{
    return &steps->works[number % ENGINE_STEPS_KEPT];
}

static void forget_works(struct engine_steps *steps, struct engine_tensors *tensors)
{
    for (; steps->first < steps->next; steps->first++)
        engine_tensor_put(tensors, *work(steps, steps->first));
    steps->period = 0;
    steps->look_at = steps->next;
}

void engine_steps_fini(struct engine_steps *steps, struct engine_tensors *tensors)
{
    for (uint32_t i = 0; i < 2; i++) {
        clear(steps, tensors, i);
        free(steps->list[i]);
        steps->list[i] = NULL;
    }
    forget_works(steps, tensors);
    free(steps->works);
    free(steps->reach);
    steps->works = NULL;
    steps->reach = NULL;
}

void engine_steps_forget(struct engine_steps *steps, struct engine_tensors *tensors)
{
    clear(steps, tensors, 0);
    clear(steps, tensors, 1);
    forget_works(steps, tensors);
    steps->known = steps->alike = 0;
    steps->round += 2;
}

bool engine_steps_have(const struct engine_steps *steps, const struct engine_tensor *tensor)
{
    return tensor->last + 1 >= steps->round ||
           (steps->period > 0 && tensor->work + steps->period >= steps->next);
}

/* ---- rounds ---- */

static bool is_alike(const struct engine_steps *steps)
{
    uint32_t count = steps->count[steps->now];

    return count == steps->known && count == steps->count[1 - steps->now];
}

static void next_round(struct engine_steps *steps, struct engine_tensors *tensors)
{
    if (!is_alike(steps))
        steps->alike = 0;
    steps->now = 1 - steps->now;
    clear(steps, tensors, steps->now);
    steps->known = 0;
    steps->round++;
}

static uint32_t note_in_round(struct engine_steps *steps, struct engine_tensors *tensors,
                              struct engine_tensor *tensor)
{
    if (tensor->last == steps->round)
        next_round(steps, tensors);
    if (steps->count[steps->now] == ENGINE_STEP_MAX) {
        engine_steps_forget(steps, tensors);
        return 0;
    }
    steps->known += tensor->last + 1 == steps->round;
    tensor->last = steps->round;
    tensor->refs++;
    steps->list[steps->now][steps->count[steps->now]++] = tensor;
    if (!is_alike(steps))
        return 0;
    return ++steps->alike >= steps->needed ? steps->count[steps->now] : 0;
}

/* ---- periods ---- */

/* .reach[p]: how many of the last works are what they were p works before. The least p that this holds for p of them; 0:
 * none. */
static uint32_t find_period(struct engine_steps *steps)
{
    const uint32_t count = (uint32_t)(steps->next - steps->first);
    const uint64_t last = steps->next - 1;
    uint32_t *reach = steps->reach, from = 0, end = 0;

    for (uint32_t p = 1; p <= count / 2; p++) {
        uint32_t same = 0;
        if (p < end)
            same = reach[p - from] < end - p ? reach[p - from] : end - p;
        while (p + same < count && *work(steps, last - same) == *work(steps, last - same - p))
            same++;
        reach[p] = same;
        if (p + same > end) {
            from = p;
            end = p + same;
        }
        if (same >= p)
            return p;
    }
    return 0;
}

static void keep(struct engine_steps *steps, struct engine_tensors *tensors,
                 struct engine_tensor *tensor)
{
    if (steps->next - steps->first == ENGINE_STEPS_KEPT)
        engine_tensor_put(tensors, *work(steps, steps->first++));
    *work(steps, steps->next) = tensor;
    tensor->refs++;
    tensor->work = steps->next++;
}

/* Only unnamed ops come more than once in it, and without them rounds will do. */
static bool is_step(const struct engine_steps *steps, uint32_t count)
{
    bool unnamed = false;

    for (uint64_t number = steps->next - count; number < steps->next; number++) {
        const struct engine_tensor *tensor = *work(steps, number);
        if (!tensor->anon && tensor->work != number)
            return false;
        unnamed = unnamed || tensor->anon;
    }
    return unnamed;
}

static uint32_t note_in_order(struct engine_steps *steps, struct engine_tensors *tensors,
                              struct engine_tensor *tensor)
{
    keep(steps, tensors, tensor);
    if (steps->period > 0 && *work(steps, steps->next - 1 - steps->period) == tensor)
        steps->followed++;
    else
        steps->period = 0;
    if (steps->period == 0 && steps->next >= steps->look_at) {
        steps->period = find_period(steps);
        steps->followed = steps->period;
        steps->look_at = steps->next + (steps->next - steps->first) / 4;
    }
    const bool enough =
        steps->period > 0 && steps->followed >= (uint64_t)steps->needed * steps->period;
    return enough && is_step(steps, steps->period) ? steps->period : 0;
}

uint32_t engine_steps_note(struct engine_steps *steps, struct engine_tensors *tensors,
                           struct engine_tensor *tensor)
{
    const uint32_t round = note_in_round(steps, tensors, tensor);
    const uint32_t period = note_in_order(steps, tensors, tensor);

    return round > 0 ? round : period;
}

void engine_steps_learn(struct engine_steps *steps, uint64_t rounds)
{
    if (rounds >= (uint64_t)WORTH * steps->needed)
        steps->needed = steps->needed / 2 > NEEDED_LEAST ? steps->needed / 2 : NEEDED_LEAST;
    else
        steps->needed = 2 * steps->needed < NEEDED_MOST ? 2 * steps->needed : NEEDED_MOST;
}
