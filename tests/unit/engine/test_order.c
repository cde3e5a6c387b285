/* SPDX-License-Identifier: Apache-2.0
 * The room order/ by itself: no session, no shared memory, no clock. The test makes the parts of
 * hundreds of ranks and is the sink and the observer. */
#include "base/status.h"
#include "base/types.h"
#include "daemon/engine/order/group.h"
#include "daemon/engine/order/join.h"
#include "daemon/engine/order/negotiate.h"
#include "daemon/engine/order/partial.h"
#include "daemon/engine/order/set_ops.h"
#include "daemon/engine/order/sizes.h"
#include "tests/unit/hvt_main.h"

#include <malloc.h>
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

static struct engine_roster roster;
static struct engine_order order;
static struct engine_set *meeting;         /* the set of the parts that are made */
static struct answered parts[RANKS][EACH]; /* by seat */
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
    int32_t seats = (int32_t)roster.seats;
    struct engine_op *op = calloc(1, sizeof *op + engine_op_room(seats));

    (void)user;
    ck_assert_ptr_nonnull(op);
    engine_op_init(op, seats, op + 1);
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
static const struct engine_order_observer observer = {op_waits,    part_came,   op_complete,
                                                      op_ready,    op_succeeds, op_over,
                                                      set_changes, set_changes, op_ready};

/* ---- ranks ---- */

/* `ranks` as engine_roster_init has them. */
static void begin_node(int32_t size, const int32_t *ranks, uint32_t seats)
{
    memset(&order, 0, sizeof order);
    memset(parts, 0, sizeof parts);
    answers = waits = came = complete = ready = succeeded = over = 0;
    ck_assert_int_eq(engine_roster_init(&roster, size, ranks, seats), HVI_OK);
    ck_assert_int_eq(engine_order_init(&order, "job", &roster, &sink, &observer, NULL), HVI_OK);
    meeting = order.sets.by_id[0];
}

/* One node has the whole job: seats are ranks. */
static void begin(int32_t size)
{
    begin_node(size, NULL, (uint32_t)size);
}

/* An allreduce of `count` floats. */
static struct engine_part *make(int32_t seat, uint32_t which, const char *name, int64_t count)
{
    struct engine_part *part = &parts[seat][which].part;

    memset(&parts[seat][which], 0, sizeof parts[seat][which]);
    part->seat = (engine_seat){(uint16_t)seat};
    part->rank = engine_roster_rank(&roster, part->seat);
    part->set = engine_set_get(meeting);
    part->place = (uint16_t)engine_set_place(meeting, part->seat);
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

static void submit(int32_t seat, uint32_t which, const char *name, int64_t count)
{
    ck_assert_int_eq(engine_negotiate_submit(&order, make(seat, which, name, count)), HVI_OK);
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
    engine_roster_fini(&roster);
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

static int take(int32_t seat, uint32_t which, const char *name, uint32_t index, uint32_t size,
                struct engine_group *group)
{
    struct engine_part *part = make(seat, which, name, 1);

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

/* ---- seats that are not ranks ---- */

#define FAR     900000
#define MILLION 1000000
#define SEATS   4

static const int32_t far_ranks[SEATS] = {5, 2, FAR, 7};

/* One node of a job of a million ranks; its four meet in a set of their own. */
static void begin_far(void)
{
    begin_node(MILLION, far_ranks, SEATS);
    ck_assert_int_eq(engine_sets_add(&order.sets, (int64_t[]){2, 5, 7, FAR}, SEATS, &meeting),
                     HVI_OK);
}

/* Of another kind, with an output that takes everything. */
static struct engine_part *make_kind(int32_t seat, uint16_t kind, int64_t count, int32_t root)
{
    struct engine_part *part = make(seat, 0, "w1", count);

    part->copy.kind = kind;
    part->copy.root = root;
    part->copy.in_region = 1;
    part->copy.out_region = 2;
    part->copy.out_capacity = 1000;
    return part;
}

START_TEST(seats_and_ranks_find_each_other)
{
    static const int32_t elsewhere[] = {-1, 0, 6, FAR - 1, MILLION - 1};
    engine_seat seat;

    begin_far();
    for (uint16_t i = 0; i < SEATS; i++) {
        ck_assert_int_eq(engine_roster_rank(&roster, (engine_seat){i}), far_ranks[i]);
        ck_assert(engine_roster_seat(&roster, far_ranks[i], &seat));
        ck_assert_uint_eq(seat.n, i);
    }
    for (size_t i = 0; i < sizeof elsewhere / sizeof elsewhere[0]; i++)
        ck_assert(!engine_roster_seat(&roster, elsewhere[i], &seat));
    end();
}
END_TEST

START_TEST(members_have_places_in_the_order_of_their_ranks)
{
    static const uint16_t seats[SEATS] = {1, 0, 3, 2};
    const struct engine_set *all;

    begin_far();
    all = order.sets.by_id[0];
    for (uint32_t place = 0; place < SEATS; place++) {
        ck_assert_uint_eq(meeting->seats[place].n, seats[place]);
        ck_assert_int_eq(engine_set_place(meeting, meeting->seats[place]), (int32_t)place);
        ck_assert_int_eq(engine_set_rank(meeting, meeting->ranks[place]), (int32_t)place);
        ck_assert_int_eq(engine_set_find(all, meeting->ranks[place]), (int32_t)place);
        ck_assert_int_eq(engine_set_rank(all, meeting->ranks[place]), meeting->ranks[place]);
    }
    ck_assert_int_eq(engine_set_rank(meeting, 6), -1);
    ck_assert_int_eq(engine_set_rank(all, 6), 6);
    ck_assert_int_eq(engine_set_find(all, 6), -1);
    ck_assert_int_eq(engine_set_rank(all, MILLION), -1);
    end();
}
END_TEST

START_TEST(nothing_is_sized_by_the_job)
{
    struct engine_sets one_node = {0};
    struct engine_roster four = {0};

    begin_far();
    ck_assert_int_eq(engine_roster_init(&four, SEATS, NULL, SEATS), HVI_OK);
    ck_assert_int_eq(engine_sets_init(&one_node, &four), HVI_OK);
    ck_assert_uint_eq(order.sets.by_id[0]->size, MILLION);
    ck_assert_uint_eq(malloc_usable_size(order.sets.by_id[0]),
                      malloc_usable_size(one_node.by_id[0]));
    engine_sets_fini(&one_node);
    engine_roster_fini(&four);
    end();
}
END_TEST

START_TEST(an_allreduce_meets_by_seat_and_tells_of_ranks)
{
    begin_far();
    for (int32_t seat = 0; seat < SEATS; seat++)
        submit(seat, 0, "w1", 10);
    ck_assert_int_eq(engine_op_first_part(order.ready_first)->rank, 2);
    ck_assert_int_eq(order.ready_first->parts[3]->rank, FAR);
    execute(HVI_OK);
    expect_all(SEATS, 0, HVI_OK);
    for (int32_t seat = 0; seat < SEATS; seat++)
        submit(seat, 1, "w1", seat == 0 ? 11 : 10);
    expect_all(SEATS, 1, HVI_ERR_MISMATCH);
    ck_assert_str_eq(parts[0][1].text, "allreduce 'w1': ranks disagree on shape: ranks "
                                       "2,7,900000 said [10]; rank 5 said [11]");
    end();
}
END_TEST

START_TEST(an_op_that_fails_early_waits_for_the_seats_that_have_not_come)
{
    begin_far();
    submit(2, 0, "w1", 1);
    submit(0, 0, "w1", 1);
    engine_op_fail(&order, order.waiting_first, HVI_ERR_STALLED, "rank 7 is missing", 7);
    ck_assert_int_eq(parts[2][0].culprit, 7);
    ck_assert_uint_eq(order.failed_count, 1);
    submit(3, 0, "w1", 1);
    ck_assert_str_eq(parts[3][0].text, "rank 7 is missing");
    submit(1, 0, "w1", 1);
    ck_assert_uint_eq(order.failed_count, 0);
    expect_all(SEATS, 0, HVI_ERR_STALLED);
    end();
}
END_TEST

START_TEST(an_allgather_is_laid_out_by_rank)
{
    static const uint64_t bytes[SEATS] = {8, 4, 16, 12};

    begin_far();
    for (int32_t seat = 0; seat < SEATS; seat++)
        ck_assert_int_eq(
            engine_negotiate_submit(&order, make_kind(seat, HVI_KIND_ALLGATHER, seat + 1, 0)),
            HVI_OK);
    for (uint32_t place = 0; place < SEATS; place++)
        ck_assert_uint_eq(order.ready_first->sizes[place], bytes[place]);
    ck_assert_uint_eq(order.ready_first->bytes, 40);
    ck_assert_int_eq(parts[2][0].part.rows, 10);
    execute(HVI_OK);
    end();
}
END_TEST

static void broadcast(int32_t root)
{
    for (int32_t seat = 0; seat < SEATS; seat++)
        ck_assert_int_eq(
            engine_negotiate_submit(&order, make_kind(seat, HVI_KIND_BROADCAST, 3, root)), HVI_OK);
}

START_TEST(the_root_of_a_broadcast_is_a_rank)
{
    begin_far();
    broadcast(FAR);
    ck_assert_uint_eq(order.ready_count, 1);
    execute(HVI_OK);
    expect_all(SEATS, 0, HVI_OK);
    broadcast(3);
    expect_all(SEATS, 0, HVI_ERR_INVALID);
    ck_assert_str_eq(parts[0][0].text, "broadcast 'w1': root rank 3 is not a member of process set "
                                       "1 (ranks 2,5,7,900000)");
    end();
}
END_TEST

START_TEST(groups_meet_by_seat_and_tell_of_ranks)
{
    struct engine_group groups[SEATS] = {{0}};

    begin_far();
    for (int32_t seat = 0; seat < SEATS; seat++) {
        ck_assert_int_eq(take(seat, 0, "a", 0, 2, &groups[seat]), HVI_OK);
        ck_assert_int_eq(take(seat, 1, "b", 1, 2, &groups[seat]), HVI_OK);
    }
    execute(HVI_OK);
    expect_all(SEATS, 1, HVI_OK);
    for (int32_t seat = 0; seat < SEATS; seat++) {
        take(seat, 2, "a", 0, 2, &groups[seat]);
        take(seat, 3, seat == 2 ? "c" : "b", 1, 2, &groups[seat]);
    }
    expect_all(SEATS, 2, HVI_ERR_MISMATCH);
    ck_assert_str_eq(parts[1][2].text, "allreduce 'a': ranks disagree on member 2 of 2 of its "
                                       "group: rank 2 said 'b'; rank 900000 said 'c'");
    engine_negotiate_fail_all(&order, HVI_ERR_JOB_STOPPED, "over", -1);
    end();
}
END_TEST

static void join(int32_t seat)
{
    struct engine_part *part = make(seat, 1, "join", 0);

    part->copy.kind = HVI_KIND_JOIN;
    part->arrived_ns = ++order.now_ns;
    ck_assert_int_eq(engine_join_submit(&order, part), HVI_OK);
}

START_TEST(a_seat_joins_and_the_last_rank_is_the_answer)
{
    begin_far();
    for (int32_t seat = 1; seat < SEATS; seat++)
        submit(seat, 0, "w1", 1);
    ck_assert_uint_eq(ready, 0);
    join(0);
    ck_assert_uint_eq(order.ready_count, 1);
    execute(HVI_OK);
    join(3);
    join(1);
    join(2);
    expect_all(SEATS, 1, HVI_OK);
    ck_assert_int_eq(parts[0][1].part.rows, FAR);
    end();
}
END_TEST

static void send_or_recv(int32_t seat, uint16_t kind, int32_t peer)
{
    struct engine_part *part = make_kind(seat, kind, 1, peer);

    part->copy.anon_seq = INT32_MAX;
    engine_tensor_put(&order.tensors, part->tensor);
    part->tensor = engine_partial_tensor(&order.tensors, part);
    ck_assert_int_eq(engine_partial_submit(&order, part), HVI_OK);
}

START_TEST(a_send_meets_its_recv_by_rank)
{
    char name[HVI_NAME_MAX + 1];

    begin_far();
    send_or_recv(1, HVI_KIND_RECV, -1);
    engine_tensor_name(order.waiting_first->tensor, name);
    ck_assert_str_eq(name, "any-to-2.tag-2147483647");
    send_or_recv(2, HVI_KIND_SEND, 2);
    ck_assert_uint_eq(order.ready_count, 1);
    engine_tensor_name(order.ready_first->tensor, name);
    ck_assert_str_eq(name, "900000-to-2.tag-2147483647");
    ck_assert_int_eq(parts[1][0].part.rows, FAR);
    execute(HVI_OK);
    send_or_recv(0, HVI_KIND_SEND, FAR);
    ck_assert(!engine_partial_awaits(order.waiting_first, 0));
    ck_assert(engine_partial_awaits(order.waiting_first, 3));
    send_or_recv(2, HVI_KIND_RECV, 5);
    execute(HVI_OK);
    end();
}
END_TEST

START_TEST(a_set_with_members_on_other_nodes_takes_no_ops_yet)
{
    char text[HVI_TEXT_MAX + 1];

    begin_far();
    ck_assert_int_eq(engine_sets_add(&order.sets, (int64_t[]){2, 3, 5}, 3, &meeting), HVI_OK);
    struct engine_part *part = make(0, 0, "w1", 1);
    ck_assert_int_eq(engine_set_check(meeting, part, text, sizeof text), HVI_ERR_UNSUPPORTED);
    ck_assert_str_eq(text, "allreduce 'w1': process set 2 has members on other nodes");
    let_go(part);
    part = make(3, 0, "w1", 1);
    ck_assert_int_eq(engine_set_check(meeting, part, text, sizeof text), HVI_ERR_INVALID);
    ck_assert_str_eq(text, "allreduce 'w1': rank 7 is not a member of process set 2 (ranks 2,3,5)");
    let_go(part);
    end();
}
END_TEST

/* Ranks 2 and 5 are here, on node 1. */
static void begin_nodes(struct engine_roster *six)
{
    static const int32_t ranks[3][3] = {{4, 0}, {5, 2}, {1, 3}};
    const struct engine_node nodes[] = {{ranks[0], 2}, {ranks[1], 2}, {ranks[2], 2}};

    ck_assert_int_eq(engine_roster_init(six, 6, ranks[1], 2), HVI_OK);
    ck_assert_int_eq(engine_roster_set_nodes(six, nodes, 3, 1), HVI_OK);
}

START_TEST(a_roster_knows_each_rank_of_the_job_once)
{
    static const int32_t ranks[] = {0, 1, 2, 3, 6};
    const struct engine_node missing[] = {{ranks, 2}, {ranks + 2, 1}};
    const struct engine_node twice[] = {{ranks, 2}, {ranks + 1, 3}};
    const struct engine_node beyond[] = {{ranks, 2}, {ranks + 3, 2}};
    const struct engine_node whole[] = {{ranks + 2, 2}, {ranks, 2}};
    struct engine_roster four = {0};

    ck_assert_int_eq(engine_roster_init(&four, 4, ranks, 2), HVI_OK);
    ck_assert_int_eq(engine_roster_set_nodes(&four, missing, 2, 0), HVI_ERR_INVALID);
    ck_assert_int_eq(engine_roster_set_nodes(&four, twice, 2, 0), HVI_ERR_INVALID);
    ck_assert_int_eq(engine_roster_set_nodes(&four, beyond, 2, 0), HVI_ERR_INVALID);
    ck_assert_int_eq(engine_roster_set_nodes(&four, whole, 2, 0), HVI_ERR_INVALID); /* not ours */
    ck_assert_int_eq(engine_roster_set_nodes(&four, whole, 2, 2), HVI_ERR_INVALID);
    ck_assert_uint_eq(four.nodes, 0);
    ck_assert_int_eq(engine_roster_set_nodes(&four, whole, 2, 1), HVI_OK);
    ck_assert_int_eq(four.of_nodes[four.first[1]], 0);
    engine_roster_fini(&four);
}
END_TEST

START_TEST(a_set_knows_where_its_members_are)
{
    struct engine_roster six = {0};
    struct engine_sets sets = {0};
    struct engine_set *set;

    begin_nodes(&six);
    ck_assert_int_eq(engine_sets_init(&sets, &six), HVI_OK);
    ck_assert_uint_eq(sets.by_id[0]->span->nodes, 3);
    ck_assert_uint_eq(sets.by_id[0]->span->here, 1);
    ck_assert_uint_eq(sets.by_id[0]->span->home[4], 0);
    ck_assert_uint_eq(sets.by_id[0]->span->place[4], 1);
    ck_assert_int_eq(engine_sets_add(&sets, (int64_t[]){1, 3, 4}, 3, &set), HVI_OK);
    ck_assert_uint_eq(set->span->nodes, 2);
    ck_assert_uint_eq(set->span->here, UINT32_MAX);
    ck_assert_uint_eq(set->span->node[1], 2);
    ck_assert_uint_eq(set->span->places[1], 2);
    ck_assert_uint_eq(set->span->home[0], 1);
    ck_assert_uint_eq(set->span->place[1], 1);
    ck_assert_uint_eq(engine_places_find(set->span, 2), 1);
    ck_assert_uint_eq(engine_places_find(set->span, 1), UINT32_MAX);
    ck_assert_int_eq(engine_sets_add(&sets, (int64_t[]){2, 5}, 2, &set), HVI_OK);
    ck_assert_ptr_null(set->span); /* as on one node */
    ck_assert_int_eq(engine_sets_add(&sets, (int64_t[]){1, 3}, 2, &set), HVI_OK);
    ck_assert_ptr_null(set->span);
    engine_sets_fini(&sets);
    engine_roster_fini(&six);
}
END_TEST

START_TEST(splits_are_by_set_rank_and_parts_by_place)
{
    int64_t splits[3] = {1, 9, 4};

    begin_far();
    ck_assert_int_eq(engine_sets_add(&order.sets, (int64_t[]){2, 3, 5}, 3, &meeting), HVI_OK);
    struct engine_part *part = make(1, 0, "w1", 14);
    struct engine_part *both[2] = {part, NULL};
    const struct engine_op op = {.set = meeting, .parts = both};
    part->integers = splits;
    part->integer_count = 3;
    ck_assert_int_eq(engine_sizes_split(&op, 0, 0), 1);
    ck_assert_int_eq(engine_sizes_split(&op, 0, 1), 4);
    let_go(part);
    end();
}
END_TEST

static TCase *roster_tests(void)
{
    TCase *tcase = tcase_create("roster");

    tcase_add_test(tcase, seats_and_ranks_find_each_other);
    tcase_add_test(tcase, members_have_places_in_the_order_of_their_ranks);
    tcase_add_test(tcase, nothing_is_sized_by_the_job);
    tcase_add_test(tcase, an_allreduce_meets_by_seat_and_tells_of_ranks);
    tcase_add_test(tcase, an_op_that_fails_early_waits_for_the_seats_that_have_not_come);
    tcase_add_test(tcase, an_allgather_is_laid_out_by_rank);
    tcase_add_test(tcase, the_root_of_a_broadcast_is_a_rank);
    tcase_add_test(tcase, groups_meet_by_seat_and_tell_of_ranks);
    tcase_add_test(tcase, a_seat_joins_and_the_last_rank_is_the_answer);
    tcase_add_test(tcase, a_send_meets_its_recv_by_rank);
    tcase_add_test(tcase, a_set_with_members_on_other_nodes_takes_no_ops_yet);
    tcase_add_test(tcase, a_roster_knows_each_rank_of_the_job_once);
    tcase_add_test(tcase, a_set_knows_where_its_members_are);
    tcase_add_test(tcase, splits_are_by_set_rank_and_parts_by_place);
    return tcase;
}

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
    suite_add_tcase(suite, roster_tests());
    return hvt_run_suite(suite);
}
