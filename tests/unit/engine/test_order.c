/* SPDX-License-Identifier: Apache-2.0
 * The room order/ by itself: no session, no shared memory, no clock. The test makes the parts of
 * hundreds of ranks and is the sink and the observer. */
#include "base/status.h"
#include "base/types.h"
#include "daemon/engine/order/group.h"
#include "daemon/engine/order/join.h"
#include "daemon/engine/order/negotiate.h"
#include "tests/unit/hvt_main.h"

#include <stdlib.h>
#include <string.h>

#define RANKS 1000
#define EACH  6 /* parts of each rank */

struct answered {
    struct engine_part part;
    bool over, dropped;
    int status;
    int32_t culprit;
    char text[HVI_TEXT_MAX + 1];
};

static struct engine_order order;
static struct answered parts[RANKS][EACH];
static uint32_t answers, waits, came, complete, ready, succeeded, over;

/* ---- the tables ---- */

static void let_go(struct engine_part *part)
{
    engine_tensor_put(&order.tensors, part->tensor);
    if (part->leader)
        engine_tensor_put(&order.tensors, part->leader);
    engine_set_put(part->set);
}

static void answer(struct engine_part *part, int status, const char *text, int32_t culprit)
{
    struct answered *mine = (struct answered *)(void *)part;

    ck_assert(!mine->over && !mine->dropped);
    mine->over = true;
    mine->status = status;
    mine->culprit = culprit;
    snprintf(mine->text, sizeof mine->text, "%s", text ? text : "");
    part->op = NULL;
    answers++;
    let_go(part);
}

static void ask_output(struct engine_part *part)
{
    ck_abort_msg("rank %d is asked for an output", part->rank);
}

static void drop(struct engine_part *part)
{
    struct answered *mine = (struct answered *)(void *)part;

    ck_assert(!mine->over && !mine->dropped);
    mine->dropped = true;
    let_go(part);
}

static struct engine_op *new_op(void *user)
{
    struct engine_op *op = calloc(1, sizeof *op + engine_op_room(*(int32_t *)user));

    ck_assert_ptr_nonnull(op);
    engine_op_init(op, *(int32_t *)user, op + 1);
    return op;
}

static void free_op(struct engine_op *op)
{
    free(op);
}

static void op_waits(void *user)
{
    (void)user;
    waits++;
}

static void part_came(void *user, struct engine_part *part)
{
    (void)user, (void)part;
    came++;
}

static void op_complete(void *user, struct engine_op *op)
{
    (void)user, (void)op;
    complete++;
}

static void op_ready(void *user, struct engine_op *op)
{
    (void)user, (void)op;
    ready++;
}

static void op_succeeds(void *user, struct engine_op *op)
{
    (void)user, (void)op;
    succeeded++;
}

static void op_over(void *user, struct engine_op *op, int status)
{
    (void)user, (void)op, (void)status;
    over++;
}

static void set_changes(void *user, struct engine_set *set)
{
    (void)user, (void)set;
}

static const struct engine_order_sink sink = {answer, ask_output, drop, new_op, free_op};
static const struct engine_order_observer observer = {
    op_waits, part_came, op_complete, op_ready, op_succeeds, op_over, set_changes, set_changes};

/* ---- ranks ---- */

static void begin(int32_t size)
{
    static int32_t job_size;

    job_size = size;
    memset(&order, 0, sizeof order);
    memset(parts, 0, sizeof parts);
    answers = waits = came = complete = ready = succeeded = over = 0;
    ck_assert_int_eq(engine_order_init(&order, "job", size, &sink, &observer, &job_size), HVI_OK);
}

/* An allreduce of `count` floats in set 0. */
static struct engine_part *make(int32_t rank, uint32_t which, const char *name, int64_t count)
{
    struct engine_part *part = &parts[rank][which].part;

    memset(&parts[rank][which], 0, sizeof parts[rank][which]);
    part->rank = rank;
    part->set = engine_set_get(order.sets.by_id[0]);
    part->set_rank = (uint32_t)rank;
    part->tensor =
        engine_tensor_get_named(&order.tensors, part->set->serial, name, (uint32_t)strlen(name));
    ck_assert_ptr_nonnull(part->tensor);
    part->in_bytes = (uint64_t)count * 4;
    part->arrived_ns = order.now_ns;
    part->copy = (struct hvi_submission){.kind = HVI_KIND_ALLREDUCE,
                                         .dtype = HVI_DTYPE_FLOAT32,
                                         .reduce_op = HVI_REDUCE_SUM,
                                         .ndim = 1,
                                         .dims = {count},
                                         .count = (uint64_t)count,
                                         .prescale = 1,
                                         .postscale = 1};
    return part;
}

static void submit(int32_t rank, uint32_t which, const char *name, int64_t count)
{
    ck_assert_int_eq(engine_negotiate_submit(&order, make(rank, which, name, count)), HVI_OK);
}

/* Ends everything that is ready, oldest first, as exec/ would. */
static void execute(int status)
{
    while (order.ready_first) {
        struct engine_op *op = order.ready_first;
        order.ready_first = op->next;
        order.ready_last = op->next ? order.ready_last : NULL;
        order.ready_count--;
        engine_op_set_state(op, ENGINE_OP_EXECUTING, "the test");
        engine_op_done(&order, op, status, status == HVI_OK ? NULL : "it failed", -1);
    }
}

static void expect_all(int32_t size, uint32_t which, int status)
{
    for (int32_t rank = 0; rank < size; rank++) {
        ck_assert(parts[rank][which].over);
        ck_assert_int_eq(parts[rank][which].status, status);
    }
}

static void end(void)
{
    ck_assert_ptr_null(order.waiting_first);
    engine_order_fini(&order);
}

/* ---- what it does ---- */

START_TEST(the_last_of_a_thousand_ranks_makes_the_op_ready_in_whatever_order_they_come)
{
    begin(RANKS);
    for (int32_t i = 0; i < RANKS; i++) {
        ck_assert_uint_eq(ready, 0);
        submit(i * 7 % RANKS, 0, "w1", 10);
    }
    ck_assert_uint_eq(order.ready_count, 1);
    ck_assert_uint_eq(order.ready_first->bytes, 40);
    ck_assert_uint_eq(answers, 0);
    execute(HVI_OK);
    expect_all(RANKS, 0, HVI_OK);
    end();
}
END_TEST

START_TEST(ops_are_ready_in_the_order_in_which_they_became_complete)
{
    begin(2);
    submit(0, 0, "a", 1);
    submit(0, 1, "b", 1);
    submit(1, 1, "b", 1);
    submit(1, 0, "a", 1);
    ck_assert_str_eq(order.ready_first->tensor->name, "b");
    ck_assert_str_eq(order.ready_last->tensor->name, "a");
    execute(HVI_OK);
    end();
}
END_TEST

START_TEST(a_rank_that_says_something_else_fails_the_op_everywhere_with_one_sentence)
{
    begin(300);
    for (int32_t rank = 0; rank < 300; rank++)
        submit(rank, 0, "w1", rank == 200 ? 11 : 10);
    expect_all(300, 0, HVI_ERR_MISMATCH);
    ck_assert_str_eq(parts[7][0].text, "allreduce 'w1': ranks disagree on shape: ranks "
                                       "0-199,201-299 said [10]; rank 200 said [11]");
    ck_assert_uint_eq(ready, 0);
    end();
}
END_TEST

START_TEST(observers_hear_of_every_step_once)
{
    begin(3);
    for (int32_t rank = 0; rank < 3; rank++)
        submit(rank, 0, "w1", 1);
    execute(HVI_OK);
    ck_assert_uint_eq(waits, 1);
    ck_assert_uint_eq(came, 3);
    ck_assert_uint_eq(complete, 1);
    ck_assert_uint_eq(ready, 1);
    ck_assert_uint_eq(succeeded, 1);
    ck_assert_uint_eq(over, 1);
    end();
}
END_TEST

START_TEST(an_op_that_could_not_be_executed_does_not_succeed)
{
    begin(2);
    submit(0, 0, "w1", 1);
    submit(1, 0, "w1", 1);
    execute(HVI_ERR_NO_MEMORY);
    expect_all(2, 0, HVI_ERR_NO_MEMORY);
    ck_assert_str_eq(parts[1][0].text, "it failed");
    ck_assert_uint_eq(succeeded, 0);
    ck_assert_uint_eq(over, 1);
    end();
}
END_TEST

START_TEST(the_only_clock_is_the_callers)
{
    begin(2);
    order.now_ns = 1000;
    submit(0, 0, "w1", 1);
    ck_assert_uint_eq(order.waiting_first->first_ns, 1000);
    order.now_ns = 5000;
    submit(1, 0, "w1", 1);
    ck_assert_uint_eq(order.ready_first->first_ns, 1000);
    ck_assert_uint_eq(order.ready_first->ready_ns, 5000);
    execute(HVI_OK);
    end();
}
END_TEST

START_TEST(what_repeats_is_not_checked_again)
{
    begin(4);
    /* As a session's table does. */
    struct engine_tensor *kept = engine_tensor_get_named(&order.tensors, 0, "w1", 2);
    for (uint32_t step = 0; step < 3; step++) {
        for (int32_t rank = 0; rank < 4; rank++)
            submit(rank, step, "w1", 1);
        ck_assert(order.ready_first->replayed == (step > 0));
        execute(HVI_OK);
    }
    engine_tensor_put(&order.tensors, kept);
    end();
}
END_TEST

static int take(int32_t rank, uint32_t which, const char *name, uint32_t index, uint32_t size,
                struct engine_group *group)
{
    struct engine_part *part = make(rank, which, name, 1);

    part->copy.group = 1;
    part->copy.group_index = index;
    part->copy.group_size = size;
    return engine_group_take(&order, group, part);
}

START_TEST(a_group_is_ready_when_its_last_member_is)
{
    struct engine_group groups[2] = {{0}};

    begin(2);
    for (int32_t rank = 0; rank < 2; rank++) {
        ck_assert_int_eq(take(rank, 0, "a", 0, 2, &groups[rank]), HVI_OK);
        ck_assert_uint_eq(ready, 0);
        ck_assert_int_eq(take(rank, 1, "b", 1, 2, &groups[rank]), HVI_OK);
    }
    ck_assert_uint_eq(order.ready_count, 2);
    execute(HVI_OK);
    expect_all(2, 0, HVI_OK);
    expect_all(2, 1, HVI_OK);
    end();
}
END_TEST

START_TEST(a_name_in_flight_twice_drops_the_group_and_tells_the_caller)
{
    struct engine_group group = {0};

    begin(2);
    submit(0, 0, "b", 1);
    ck_assert_int_eq(take(0, 1, "a", 0, 2, &group), HVI_OK);
    ck_assert_int_eq(take(0, 2, "b", 1, 2, &group), HVI_ERR_PROTOCOL);
    ck_assert(parts[0][2].dropped);
    ck_assert(!parts[0][0].over && !parts[0][0].dropped);
    engine_negotiate_fail_all(&order, HVI_ERR_RANK_LOST, "rank 0 broke the protocol", 0);
    ck_assert(parts[0][0].over && parts[0][1].over);
    ck_assert_int_eq(parts[0][1].culprit, 0);
    end();
}
END_TEST

START_TEST(a_group_that_is_not_whole_can_be_dropped_or_refused)
{
    struct engine_group group = {0};

    begin(2);
    ck_assert_int_eq(take(0, 0, "a", 0, 3, &group), HVI_OK);
    ck_assert_int_eq(take(0, 1, "b", 1, 3, &group), HVI_OK);
    engine_group_drop(&order, &group);
    ck_assert(parts[0][0].dropped && parts[0][1].dropped);
    ck_assert_int_eq(take(0, 2, "a", 0, 3, &group), HVI_OK);
    engine_group_refuse(&order, &group, HVI_ERR_NOT_FOUND, "no such set", 0);
    ck_assert_int_eq(parts[0][2].status, HVI_ERR_NOT_FOUND);
    ck_assert_int_eq(group.refused, HVI_ERR_NOT_FOUND);
    end();
}
END_TEST

START_TEST(the_first_reason_why_nothing_finishes_stays_until_the_job_is_stopped)
{
    begin(2);
    engine_order_break(&order, HVI_ERR_RANK_LOST, 1, "rank 1 is gone");
    engine_order_break(&order, HVI_ERR_RANK_LEFT, 0, "rank 0 has left");
    ck_assert_int_eq(order.broken_culprit, 1);
    ck_assert_str_eq(order.broken_text, "rank 1 is gone");
    engine_order_break(&order, HVI_ERR_JOB_STOPPED, -1, "stopped");
    ck_assert_int_eq(order.broken_status, HVI_ERR_JOB_STOPPED);
    ck_assert_str_eq(order.broken_text, "stopped");
    end();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine/order");
    TCase *tcase = tcase_create("order");

    tcase_add_test(tcase,
                   the_last_of_a_thousand_ranks_makes_the_op_ready_in_whatever_order_they_come);
    tcase_add_test(tcase, ops_are_ready_in_the_order_in_which_they_became_complete);
    tcase_add_test(tcase,
                   a_rank_that_says_something_else_fails_the_op_everywhere_with_one_sentence);
    tcase_add_test(tcase, observers_hear_of_every_step_once);
    tcase_add_test(tcase, an_op_that_could_not_be_executed_does_not_succeed);
    tcase_add_test(tcase, the_only_clock_is_the_callers);
    tcase_add_test(tcase, what_repeats_is_not_checked_again);
    tcase_add_test(tcase, a_group_is_ready_when_its_last_member_is);
    tcase_add_test(tcase, a_name_in_flight_twice_drops_the_group_and_tells_the_caller);
    tcase_add_test(tcase, a_group_that_is_not_whole_can_be_dropped_or_refused);
    tcase_add_test(tcase, the_first_reason_why_nothing_finishes_stays_until_the_job_is_stopped);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
