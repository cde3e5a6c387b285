/* SPDX-License-Identifier: Apache-2.0
 * The room slots/ of the client: four ranks of one process meet in slots, and the test is their engine. It
 * gives grants, revokes slots, and shows ranks each other's memory. */
#include "client/slots/slots.h"

#include "base/clock.h"
#include "base/status.h"
#include "client/link/link.h"
#include "client/memory/memory.h"
#include "client/ops/ops.h"
#include "client/ops/request.h"
#include "client/slots/arrive.h"
#include "client/slots/grants.h"
#include "client/slots/medium.h"
#include "client/slots/watch.h"
#include "client/step.h"
#include "tests/unit/hvt_main.h"

#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define RANKS     4
#define EVERYBODY 0xfu
#define SLOT      5u
#define MEDIUM    (UINT64_C(16384) * 4)
#define FLOATS    (MEDIUM / sizeof(float))

struct rank {
    struct client_link link;
    struct client_memory memory;
    struct client_ops ops;
    struct client_slots slots;
    int engine_fd; /* the other end of the link's socket */
    float in[1025], out[1025];
    struct hvi_region region; /* 1 */
};

static struct hvi_slots job; /* as the engine sees it */
static struct hvi_bell_page page;
static struct rank ranks[RANKS];
static const uint8_t *seats; /* of the ranks */

static void start(struct rank *rank, int number)
{
    int fds[2];

    memset(rank, 0, sizeof *rank);
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, fds), 0);
    rank->link.socket_fd = fds[0];
    rank->engine_fd = fds[1];
    rank->link.engine_event_fd = eventfd(0, EFD_NONBLOCK);
    rank->link.identity.size = RANKS;
    rank->link.identity.rank = number;
    rank->link.bell = &page;
    rank->link.channel.channel_index = seats[number];
    pthread_mutex_init(&rank->link.mutex, NULL);
    client_memory_init(&rank->memory, &rank->link);
    ck_assert_int_eq(client_ops_init(&rank->ops, &rank->memory, number, RANKS), HVD_OK);
    client_slots_init(&rank->slots, &rank->link, &rank->ops);
    ck_assert_int_eq(client_slots_map(&rank->slots, dup(job.region.fd)), HVD_OK);
    rank->slots.policy = (struct hvi_wait_policy){.slice_ns = HVI_NS_MS, .rounds = 1};
    ck_assert_int_eq(hvi_region_create("hvt", MEDIUM, &rank->region), HVI_OK);
}

static void set_up(void)
{
    memset(&page, 0, sizeof page);
    unsetenv("HVD_EXPRESS");
    ck_assert_int_eq(hvi_slots_create(RANKS, &job), HVI_OK);
    for (int i = 0; i < RANKS; i++) {
        hvi_slots_seat(&job, seats[i], i);
        start(&ranks[i], i);
    }
}

static void set_up_in_order(void)
{
    static const uint8_t in_order[RANKS] = {0, 1, 2, 3};

    seats = in_order;
    set_up();
}

static void set_up_out_of_order(void)
{
    static const uint8_t out_of_order[RANKS] = {2, 0, 3, 1};

    seats = out_of_order;
    set_up();
}

static void tear_down(void)
{
    for (int i = 0; i < RANKS; i++) {
        client_slots_fini(&ranks[i].slots);
        client_ops_fini(&ranks[i].ops);
        client_memory_fini(&ranks[i].memory);
        hvi_region_fini(&ranks[i].region);
        pthread_mutex_destroy(&ranks[i].link.mutex);
        close(ranks[i].link.socket_fd);
        close(ranks[i].link.engine_event_fd);
        close(ranks[i].engine_fd);
    }
    hvi_slots_fini(&job);
}

/* ---- what a trainer does ---- */

static struct hvd_tensor tensor_of(float *data, uint64_t bytes)
{
    return (struct hvd_tensor){.data = data,
                               .dtype = HVD_FLOAT32,
                               .ndim = bytes == 0 ? 0 : 1,
                               .dims = {(int64_t)(bytes / sizeof(float))}};
}

static struct client_request request_of(const struct hvd_tensor *in, const struct hvd_tensor *out,
                                        uint64_t bytes)
{
    return (struct client_request){.what = "hvd_allreduce",
                                   .kind = HVI_KIND_ALLREDUCE,
                                   .in = in,
                                   .out = out,
                                   .reduce_op = HVI_REDUCE_SUM,
                                   .root = -1,
                                   .prescale = 1,
                                   .postscale = 1,
                                   .element = sizeof(float),
                                   .count = bytes / sizeof(float),
                                   .in_bytes = bytes,
                                   .out_bytes = bytes,
                                   .members = RANKS};
}

static struct client_set *world(struct rank *rank)
{
    return client_sets_find(&rank->ops.sets, 0);
}

static void prepare(struct rank *rank, struct client_request *request)
{
    if (request->name)
        ck_assert_int_eq(client_names_claim(&rank->ops.names, 0, request->name, &request->claimed),
                         HVD_OK);
    request->op = client_ops_new(&rank->ops, NULL);
    ck_assert_ptr_nonnull(request->op);
    request->op->kind = request->kind;
}

/* As submit.c's launch, without a ring. */
static void launch(struct rank *rank, struct client_request *request)
{
    client_request_remember(request);
    client_grant_note(request, world(rank));
    if (!request->op->name)
        request->op->anon_seq = ++world(rank)->anon_seq[request->kind];
    client_op_set_state(&rank->ops, request->op, CLIENT_OP_IN_FLIGHT);
}

/* In a slot, or with the engine. */
static struct hvd_op *submit_request(struct rank *rank, struct client_request *request)
{
    prepare(rank, request);
    if (!client_arrive(&rank->slots, world(rank), request))
        launch(rank, request);
    return request->op;
}

static struct hvd_op *submit(struct rank *rank, const char *name, uint64_t bytes)
{
    struct hvd_tensor in = tensor_of(rank->in, bytes), out = tensor_of(rank->out, bytes);
    struct client_request request = request_of(&in, &out, bytes);

    request.name = name;
    return submit_request(rank, &request);
}

/* ---- what the engine does ---- */

/* As complete.c's complete_done. */
static void complete(struct rank *rank, struct hvd_op *op, uint32_t turn)
{
    const struct hvi_completion completion = {.grant = turn == 0 ? 0 : SLOT + 1, .text_turn = turn};

    op->status = HVD_OK;
    client_slots_take_back(op);
    client_grant_take(&rank->slots, op, &completion);
    if (op->slot.brought)
        client_slots_landed(&rank->slots, op);
    client_op_land(&rank->ops, op);
    client_op_release(&rank->ops, op);
}

/* Every rank has had an op like this and a grant for the next. */
static uint32_t grant(const char *name, uint64_t bytes, bool medium)
{
    uint32_t turn = hvi_slot_open(&job, SLOT, medium);

    for (int i = 0; i < RANKS; i++) {
        struct hvd_op *op = submit(&ranks[i], name, bytes);
        ck_assert(!op->slot.active);
        complete(&ranks[i], op, turn);
    }
    return turn;
}

static uint32_t revoke_slot(void)
{
    uint32_t arrived = 0;

    hvi_slot_revoke(&job, SLOT, &arrived);
    return arrived;
}

static const char *revoke_at; /* the step at which a slot is revoked next; NULL: at none */
static uint32_t revoked;      /* ranks that had arrived there */

/* client/step.h */
void hvt_step(const char *name)
{
    if (!revoke_at || strcmp(name, revoke_at) != 0)
        return;
    revoke_at = NULL;
    revoked = revoke_slot();
}

static bool was_called(void)
{
    return atomic_exchange(&job.head->watch, 0) != 0;
}

/* ---- small ops ---- */

static void set_inputs(void)
{
    for (int i = 0; i < RANKS; i++) {
        for (int j = 0; j < 1025; j++)
            ranks[i].in[j] = (float)((i + 1) * j);
    }
}

static const uint64_t sizes[] = {8, 100, 4096};

START_TEST(ranks_with_a_grant_do_a_small_op_and_have_the_next_grant)
{
    struct hvd_op *ops[RANKS];
    uint64_t bytes = sizes[_i];

    set_inputs();
    grant("w", bytes, false);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < RANKS; i++)
            ops[i] = submit(&ranks[i], "w", bytes);
        ck_assert_int_eq(ops[RANKS - 1]->state, CLIENT_OP_DONE);
        for (int i = 0; i < RANKS - 1; i++) {
            ck_assert(ops[i]->slot.active);
            client_slots_look(&ranks[i].slots, ops[i]);
        }
        for (int i = 0; i < RANKS; i++) {
            ck_assert_int_eq(ops[i]->status, HVD_OK);
            ck_assert_float_eq(ranks[i].out[bytes / sizeof(float) - 1],
                               10 * (float)(bytes / sizeof(float) - 1));
            client_op_release(&ranks[i].ops, ops[i]);
        }
    }
    ck_assert_uint_eq(atomic_load(&job.rank[seats[0]].ops), 3);
    ck_assert_uint_eq(atomic_load(&job.rank[seats[0]].bytes), 3 * bytes);
    ck_assert_uint_eq(job.rank[seats[2]].trace[1].slot, SLOT);
    ck_assert_uint_eq(job.rank[seats[RANKS - 1]].lag[seats[RANKS - 1]].last, 3);
}
END_TEST

/* Any rank may write what the engine has written there. */
START_TEST(a_grant_of_a_set_whose_seats_are_not_known_is_of_no_use)
{
    atomic_store(&job.head->seated[seats[2]], 77);
    grant("w", 8, false);
    ck_assert(!submit(&ranks[0], "w", 8)->slot.active);
    hvi_slots_seat(&job, seats[2], 2);
    grant("v", 8, false);
    ck_assert(submit(&ranks[0], "v", 8)->slot.active);
}
END_TEST

START_TEST(a_rank_that_arrives_unseen_asks_for_a_patrol)
{
    grant("w", 8, false);
    submit(&ranks[0], "w", 8);
    ck_assert(was_called());
    atomic_store(&job.rank[seats[1]].patrolled, 1);
    submit(&ranks[1], "w", 8);
    ck_assert(!was_called());
}
END_TEST

static void differ(int how, struct client_request *request)
{
    static struct hvd_tensor other;

    other = *request->in;
    other.dtype = how == 0 ? HVD_INT32 : other.dtype;
    other.dims[0] = how == 1 ? 1 : other.dims[0];
    other.ndim = how == 1 ? 2 : other.ndim;
    other.dims[1] = how == 1 ? 2 : 0;
    request->in = &other;
    request->reduce_op = how == 2 ? HVI_REDUCE_MAX : request->reduce_op;
    request->prescale = how == 3 ? 2 : request->prescale;
    request->postscale = how == 4 ? 2 : request->postscale;
    request->group_size = how == 5 ? 2 : 0;
    request->root = how == 6 ? 1 : request->root;
    request->kind = how == 7 ? HVI_KIND_ALLGATHER : request->kind;
}

START_TEST(an_op_that_says_something_else_has_no_use_for_the_grant)
{
    struct hvd_tensor in = tensor_of(ranks[0].in, 8), out = tensor_of(ranks[0].out, 8);
    struct client_request request = request_of(&in, &out, 8);

    grant("w", 8, false);
    request.name = "w";
    differ(_i, &request);
    ck_assert(!submit_request(&ranks[0], &request)->slot.active);
    ck_assert_uint_eq(hvi_slot_view(&job, SLOT).arrived, 0);
}
END_TEST

START_TEST(a_rank_without_slots_has_none)
{
    grant("w", 8, false);
    ranks[0].slots.on = false;
    ck_assert(!submit(&ranks[0], "w", 8)->slot.active);
}
END_TEST

START_TEST(a_grant_that_is_void_leaves_the_op_as_it_was)
{
    grant("w", 8, false);
    revoke_slot();
    struct hvd_op *op = submit(&ranks[0], "w", 8);
    ck_assert(!op->slot.active && !op->slot.brought);
    ck_assert_ptr_null(op->out.shared);
    ck_assert_uint_eq(atomic_load(&hvi_slot_part(&job, SLOT, seats[0])->cookie), 0);
    ck_assert_str_eq(op->name->text, "w");
}
END_TEST

START_TEST(an_op_whose_slot_is_revoked_is_the_engines_and_its_result_comes_from_there)
{
    grant("w", 8, false);
    struct hvd_op *op = submit(&ranks[0], "w", 8);
    ck_assert_uint_eq(revoke_slot(), 1u);
    was_called();
    client_slots_look(&ranks[0].slots, op);
    ck_assert(!op->slot.active && op->slot.brought);
    ck_assert_msg(was_called(), "it may have been a peer that wrote nonsense");
    ((float *)(void *)hvi_slot_payload(&job, SLOT, seats[0], 8))[1] = 77;
    complete(&ranks[0], op, 0);
    ck_assert_float_eq(ranks[0].out[1], 77);
    ck_assert_uint_eq(atomic_load(&hvi_slot_part(&job, SLOT, seats[0])->cookie), 0);
    ck_assert(!submit(&ranks[0], "w", 8)->slot.active);
}
END_TEST

START_TEST(a_last_rank_that_is_too_late_leaves_the_op_to_the_engine)
{
    grant("w", 8, false);
    for (int i = 0; i < RANKS - 1; i++)
        submit(&ranks[i], "w", 8);
    ck_assert_uint_eq(revoke_slot(), 7u);
    ck_assert(!submit(&ranks[RANKS - 1], "w", 8)->slot.active);
}
END_TEST

START_TEST(a_broadcast_and_a_barrier_are_done_in_slots_too)
{
    struct hvd_op *ops[RANKS];
    uint64_t bytes = _i == 0 ? 8 : 0;
    uint32_t turn = hvi_slot_open(&job, SLOT, false);

    set_inputs();
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < RANKS; i++) {
            struct hvd_tensor in = tensor_of(ranks[i].in, bytes);
            struct hvd_tensor out = tensor_of(ranks[i].out, bytes);
            struct client_request request = request_of(&in, &out, bytes);
            request.kind = _i == 0 ? HVI_KIND_BROADCAST : HVI_KIND_BARRIER;
            request.root = _i == 0 ? 2 : -1;
            request.in = _i == 0 ? &in : NULL;
            request.out = _i == 0 ? &out : NULL;
            ops[i] = submit_request(&ranks[i], &request);
            if (round == 0)
                complete(&ranks[i], ops[i], turn);
        }
    }
    ck_assert(!client_slots_look_all(&ranks[0].slots));
    ck_assert_int_eq(ops[0]->state, CLIENT_OP_DONE);
    if (_i == 0)
        ck_assert_float_eq(ranks[0].out[1], 3);
}
END_TEST

START_TEST(a_grant_for_no_slot_is_none)
{
    struct hvd_op *op = submit(&ranks[0], "w", 8);
    const struct hvi_completion completion = {.grant = HVI_SLOTS + 1};

    client_grant_take(&ranks[0].slots, op, &completion);
    ck_assert(!op->name->grant.valid);
}
END_TEST

/* ---- unnamed ops ---- */

START_TEST(an_unnamed_op_uses_the_grant_of_the_one_before_it)
{
    struct hvd_op *ops[RANKS];

    grant(NULL, 8, false);
    for (int i = 0; i < RANKS; i++)
        ops[i] = submit(&ranks[i], NULL, 8);
    ck_assert_uint_eq(ops[0]->anon_seq, 2);
    ck_assert_uint_eq(hvi_slot_part(&job, SLOT, seats[1])->number, 2);
    ck_assert_ptr_nonnull(client_grant_unnamed(world(&ranks[0]), HVI_KIND_ALLREDUCE)->standing);
    /* The next one looks whether the one that stands there is over. */
    ck_assert(submit(&ranks[0], NULL, 8)->slot.active);
    ck_assert_int_eq(ops[0]->state, CLIENT_OP_DONE);
}
END_TEST

START_TEST(an_unnamed_op_goes_to_the_engine_while_one_stands_in_the_slot)
{
    grant(NULL, 8, false);
    ck_assert(submit(&ranks[0], NULL, 8)->slot.active);
    ck_assert(!submit(&ranks[0], NULL, 8)->slot.active);
    ck_assert_uint_eq(world(&ranks[0])->anon_seq[HVI_KIND_ALLREDUCE], 3);
}
END_TEST

START_TEST(the_grant_of_an_unnamed_op_that_another_has_overtaken_is_of_no_use)
{
    struct hvd_op *first = submit(&ranks[0], NULL, 8), *second = submit(&ranks[0], NULL, 8);

    ck_assert_ptr_null(client_grant_of(&ranks[0].ops, first));
    ck_assert_ptr_nonnull(client_grant_of(&ranks[0].ops, second));
    complete(&ranks[0], first, 2);
    ck_assert(!client_grant_unnamed(world(&ranks[0]), HVI_KIND_ALLREDUCE)->grant.valid);
}
END_TEST

/* ---- ops that nobody waits for ---- */

START_TEST(an_op_that_its_owner_releases_in_a_slot_is_given_to_the_engine)
{
    grant("w", 8, false);
    struct hvd_op *op = submit(&ranks[0], "w", 8);
    was_called();
    op->abandoned = true;
    client_slots_abandoned(&ranks[0].slots, op);
    ck_assert(op->slot.orphan && was_called());
    ck_assert_uint_eq(ranks[0].ops.orphans, 1);
    ck_assert_uint_eq(atomic_load(&job.slots[SLOT].called), op->slot.turn + 1);
    for (int i = 1; i < RANKS; i++)
        submit(&ranks[i], "w", 8);
    ck_assert(!client_slots_look_all(&ranks[0].slots));
    ck_assert_uint_eq(ranks[0].ops.orphans, 0);
    ck_assert_int_eq(op->state, CLIENT_OP_FREE);
}
END_TEST

START_TEST(an_op_that_is_done_when_it_is_released_needs_no_engine)
{
    grant("w", 8, false);
    struct hvd_op *op = submit(&ranks[0], "w", 8);
    for (int i = 1; i < RANKS; i++)
        submit(&ranks[i], "w", 8);
    was_called();
    client_slots_abandoned(&ranks[0].slots, op);
    ck_assert_int_eq(op->state, CLIENT_OP_DONE);
    ck_assert(!was_called());
}
END_TEST

START_TEST(a_poll_calls_the_engine_for_an_op_that_stands_for_long_and_not_at_each_call)
{
    grant("w", 8, false);
    struct hvd_op *op = submit(&ranks[0], "w", 8);
    was_called();
    client_slots_polled(&ranks[0].slots, op);
    ck_assert(!was_called());
    op->slot.submit_ns -= 2 * CLIENT_LOOK_NS;
    client_slots_polled(&ranks[0].slots, op);
    ck_assert(was_called());
    client_slots_polled(&ranks[0].slots, op);
    ck_assert(!was_called());
    op->slot.active = false;
    ranks[0].slots.called_ns = 0;
    client_slots_polled(&ranks[0].slots, op);
    ck_assert(!was_called());
}
END_TEST

/* ---- waiting ---- */

static void *come_last(void *user)
{
    const bool *to_sleeper = user;

    while (*to_sleeper && atomic_load(&job.slots[SLOT].sleepers) == 0)
        usleep(100);
    usleep(3000);
    submit(&ranks[RANKS - 1], "w", 8);
    return NULL;
}

START_TEST(a_rank_that_waits_sees_the_last_one_come)
{
    const struct hvi_wait_policy policies[] = {
        {.slice_ns = HVI_NEVER, .rounds = 1},           /* asleep, until it is woken */
        {.yield_ns = HVI_NEVER, .slice_ns = HVI_NEVER}, /* awake */
        {.spins = 100, .yield_ns = HVI_NEVER, .rounds = 8}};
    const uint64_t deadline_ns = hvi_deadline_after(20 * (int64_t)HVI_NS_SEC);
    bool sleeps = _i == 0;
    struct hvd_op *ops[RANKS];
    pthread_t last;

    grant("w", 8, false);
    for (int i = 0; i < RANKS - 1; i++)
        ops[i] = submit(&ranks[i], "w", 8);
    ranks[0].slots.policy = policies[_i];
    struct client_watch watch = client_watch_of(ops[0]);
    ck_assert_int_eq(pthread_create(&last, NULL, come_last, &sleeps), 0);
    while (ops[0]->slot.active) {
        client_watch_wait(&ranks[0].slots, &watch, deadline_ns);
        ck_assert_msg(!hvi_deadline_passed(deadline_ns), "it has not seen the last one come");
        client_slots_look(&ranks[0].slots, ops[0]);
    }
    pthread_join(last, NULL);
    ck_assert_int_eq(ops[0]->state, CLIENT_OP_DONE);
    ck_assert_msg(!client_watch_wait(&ranks[0].slots, &watch, HVI_NEVER), "it has moved already");
}
END_TEST

START_TEST(a_rank_that_goes_to_sleep_calls_the_engine_and_looks_at_its_socket_afterwards)
{
    grant("w", 8, false);
    struct client_watch watch = client_watch_of(submit(&ranks[0], "w", 8));
    was_called();
    ck_assert(client_watch_wait(&ranks[0].slots, &watch, HVI_NEVER));
    ck_assert(was_called());
    ranks[0].slots.policy.yield_ns = HVI_NS_SEC;
    ck_assert_msg(!client_watch_wait(&ranks[0].slots, &watch, hvi_clock_ns()), "too late");
}
END_TEST

/* ---- medium ops ---- */

static void show(struct rank *rank, int32_t peer, int fd, uint64_t bytes)
{
    const struct hvi_peer_region told = {.rank = peer, .region = 1, .bytes = bytes};

    client_peers_told(&rank->memory.peers, &told, fd);
}

/* As the operands' placing would have left it: in place, in region 1. */
static struct client_request medium_request(struct rank *rank, struct hvd_tensor *tensor)
{
    *tensor = tensor_of(rank->region.base, MEDIUM);
    struct client_request request = request_of(tensor, tensor, MEDIUM);
    request.name = "m";
    prepare(rank, &request);
    request.op->in = request.op->out =
        (struct client_operand){.region = 1, .shared = rank->region.base};
    return request;
}

static struct hvd_op *submit_medium(struct rank *rank)
{
    struct hvd_tensor tensor;
    struct client_request request = medium_request(rank, &tensor);

    if (!client_arrive_medium(&rank->slots, world(rank), &request))
        launch(rank, &request);
    return request.op;
}

/* The engine has shown every rank all regions. */
static void show_all(void)
{
    for (int i = 0; i < RANKS; i++) {
        for (int32_t peer = 0; peer < RANKS; peer++) {
            if (peer == i || client_peers_find(&ranks[i].memory.peers, peer, 1))
                continue;
            show(&ranks[i], peer, dup(ranks[peer].region.fd), MEDIUM);
        }
    }
}

static void start_medium(struct hvd_op *ops[RANKS])
{
    grant("m", MEDIUM, true);
    for (int i = 0; i < RANKS; i++) {
        for (uint64_t j = 0; j < FLOATS; j++)
            ((float *)ranks[i].region.base)[j] = (float)(i + 1);
    }
    for (int i = 0; i < RANKS; i++) {
        ops[i] = submit_medium(&ranks[i]);
        ck_assert(ops[i]->slot.active && ops[i]->slot.medium);
    }
}

static uint32_t help(int rank, struct hvd_op *op, uint32_t most)
{
    struct client_watch watch = client_watch_of(op);

    return client_medium_help(&ranks[rank].slots, op, &watch, most);
}

START_TEST(ranks_that_wait_do_a_medium_op_chunk_by_chunk)
{
    struct hvd_op *ops[RANKS];

    show_all();
    start_medium(ops);
    ck_assert(was_called()); /* by the last rank, which was never seen to wait at once */
    struct client_watch watch = client_watch_of(ops[0]);
    ck_assert(client_watch_runs(&ranks[0].slots, &watch));
    ck_assert_uint_eq(help(0, ops[0], 1), 1);
    ck_assert_uint_eq(help(1, ops[1], UINT32_MAX), 3);
    ck_assert_uint_eq(help(2, ops[2], UINT32_MAX), 0);
    for (int i = 0; i < RANKS; i++) {
        client_slots_look(&ranks[i].slots, ops[i]);
        ck_assert_int_eq(ops[i]->state, CLIENT_OP_DONE);
        ck_assert_float_eq(((float *)ranks[i].region.base)[FLOATS - 1], 10);
        client_op_release(&ranks[i].ops, ops[i]);
    }
    ck_assert_msg(submit_medium(&ranks[0])->slot.active, "the next grant");
}
END_TEST

START_TEST(a_rank_that_waited_at_once_does_not_call_the_engine_the_next_time)
{
    struct hvd_op *ops[RANKS];

    show_all();
    ranks[RANKS - 1].slots.prompt = true;
    for (int i = 0; i < RANKS; i++)
        atomic_store(&job.rank[seats[i]].patrolled, 1);
    start_medium(ops);
    ck_assert(!was_called());
    ops[0]->slot.submit_ns = hvi_clock_ns();
    client_watch_note_promptness(&ranks[0].slots, ops[0]);
    ck_assert(ranks[0].slots.prompt);
    ops[0]->slot.submit_ns -= HVI_NS_SEC;
    client_watch_note_promptness(&ranks[0].slots, ops[0]);
    ck_assert(!ranks[0].slots.prompt);
}
END_TEST

START_TEST(a_rank_that_has_not_mapped_its_peers_asks_for_them_and_calls_the_engine_once)
{
    struct hvd_op *ops[RANKS];
    char message[256];

    start_medium(ops);
    was_called();
    ck_assert_uint_eq(help(0, ops[0], UINT32_MAX), 0);
    ck_assert(was_called());
    for (int i = 0; i < RANKS - 1; i++)
        ck_assert_int_gt(recv(ranks[0].engine_fd, message, sizeof message, 0), 0);
    ck_assert_uint_eq(help(0, ops[0], UINT32_MAX), 0);
    ck_assert(!was_called());
    for (int32_t peer = 1; peer < RANKS; peer++)
        show(&ranks[0], peer, dup(ranks[peer].region.fd), MEDIUM);
    ck_assert_uint_eq(help(0, ops[0], UINT32_MAX), 4);
}
END_TEST

START_TEST(a_peer_that_says_an_impossible_place_is_left_to_the_engine)
{
    const struct hvi_slot_operands at = {.in_region = 1, .out_region = 1, .in_offset = 4096};
    struct hvd_op *ops[RANKS];

    show_all();
    start_medium(ops);
    memcpy(hvi_slot_part(&job, SLOT, seats[2])->payload, &at, sizeof at);
    ck_assert_uint_eq(help(0, ops[0], UINT32_MAX), 0);
    ck_assert_int_eq(hvi_slot_holders(&job, SLOT, ops[0]->slot.turn, NULL), 0);
}
END_TEST

/* The last holder was killed between its last chunk and the publishing. */
START_TEST(an_op_of_which_all_chunks_are_done_is_published_by_who_waits)
{
    struct hvd_op *ops[RANKS];
    uint32_t chunk;

    show_all();
    start_medium(ops);
    while ((chunk = hvi_slot_claim(&job, SLOT, ops[0]->slot.turn, 4, 2)) != HVI_SLOT_NOTHING)
        hvi_slot_finish(&job, SLOT, ops[0]->slot.turn, chunk);
    ck_assert_uint_eq(help(0, ops[0], UINT32_MAX), 0);
    client_slots_look(&ranks[0].slots, ops[0]);
    ck_assert_int_eq(ops[0]->state, CLIENT_OP_DONE);
}
END_TEST

START_TEST(a_page_that_is_missing_is_the_engines_affair)
{
    struct hvd_op *ops[RANKS];
    int32_t lacking = -1;
    int fd = memfd_create("hvt-hole", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    ck_assert_int_eq(ftruncate(fd, (off_t)MEDIUM), 0);
    show_all();
    start_medium(ops);
    was_called();
    void *hole = mmap(NULL, MEDIUM, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ck_assert_int_eq(ftruncate(fd, 4096), 0);
    ops[0]->in.shared = hole; /* of all operands only the own one is not behind seals */
    ck_assert_uint_eq(help(0, ops[0], UINT32_MAX), 0);
    ck_assert(was_called());
    ck_assert_uint_eq(hvi_slot_holders(&job, SLOT, ops[0]->slot.turn, &lacking), 0);
    ck_assert_int_eq(lacking, seats[0]);
    ck_assert_uint_eq(atomic_load(&ranks[0].memory.peers.working), 0);
    munmap(hole, MEDIUM);
    close(fd);
}
END_TEST

START_TEST(what_peers_cannot_reach_is_no_medium_op)
{
    static const uint32_t regions[][2] = {{HVI_REGION_INLINE, 1},
                                          {1, HVI_REGION_INLINE},
                                          {HVI_REGION_PROCESS, 1},
                                          {1, HVI_REGION_NONE}};
    struct hvd_tensor tensor;

    grant("m", MEDIUM, true);
    struct client_request request = medium_request(&ranks[0], &tensor);
    request.op->in.region = regions[_i][0];
    request.op->out.region = regions[_i][1];
    ck_assert(!client_arrive_medium(&ranks[0].slots, world(&ranks[0]), &request));
}
END_TEST

START_TEST(a_medium_op_is_the_only_one_in_flight)
{
    grant("m", MEDIUM, true);
    submit(&ranks[0], "other", 8);
    ck_assert(!submit_medium(&ranks[0])->slot.active);
}
END_TEST

START_TEST(a_medium_op_whose_grant_is_void_stays_where_it_was_placed)
{
    grant("m", MEDIUM, true);
    revoke_slot();
    struct hvd_op *op = submit_medium(&ranks[0]);
    ck_assert(!op->slot.active && !op->slot.medium);
    ck_assert_ptr_eq(op->out.shared, ranks[0].region.base);
}
END_TEST

START_TEST(a_slot_that_is_revoked_before_the_last_rank_starts_is_the_engines)
{
    struct hvd_op *ops[RANKS];

    show_all();
    grant("m", MEDIUM, true);
    for (int i = 0; i < RANKS; i++) {
        revoke_at = i == RANKS - 1 ? "medium-before-start" : NULL;
        ops[i] = submit_medium(&ranks[i]);
        ck_assert(ops[i]->slot.active == (i < RANKS - 1));
    }
    ck_assert_uint_eq(revoked, EVERYBODY);
    for (int i = 0; i < RANKS; i++) {
        ck_assert_uint_eq(help(i, ops[i], UINT32_MAX), 0);
        client_slots_look(&ranks[i].slots, ops[i]);
        ck_assert(!ops[i]->slot.active);
        ck_assert_int_eq(ops[i]->state, CLIENT_OP_IN_FLIGHT);
    }
}
END_TEST

START_TEST(a_small_op_has_no_chunks)
{
    grant("w", 8, false);
    ck_assert_uint_eq(help(0, submit(&ranks[0], "w", 8), UINT32_MAX), 0);
}
END_TEST

/* ---- the engine is lost ---- */

START_TEST(an_op_that_a_lost_engine_leaves_is_closed_or_done)
{
    struct hvd_op *ops[RANKS];

    show_all();
    start_medium(ops);
    if (_i == 1)
        help(1, ops[1], UINT32_MAX);
    client_medium_close(&ranks[0].slots, ops[0]);
    ck_assert_int_eq(ops[0]->state, _i == 1 ? CLIENT_OP_DONE : CLIENT_OP_IN_FLIGHT);
    ck_assert(!ops[0]->slot.active);
    client_medium_close(&ranks[0].slots, ops[0]);
    ck_assert_uint_eq(help(1, ops[1], UINT32_MAX), 0);
}
END_TEST

/* ---- mapping ---- */

START_TEST(slots_that_are_none_are_refused)
{
    struct client_slots slots = {0};

    client_slots_init(&slots, &ranks[0].link, &ranks[0].ops);
    ck_assert_int_eq(client_slots_map(&slots, memfd_create("hvt", 0)), HVD_ERR_PROTOCOL);
    ranks[0].link.identity.size = HVI_SLOT_RANKS + 1;
    ck_assert_int_eq(client_slots_map(&slots, dup(job.region.fd)), HVD_ERR_PROTOCOL);
    ranks[0].link.identity.size = RANKS;
    setenv("HVD_EXPRESS", "0", 1);
    ck_assert_int_eq(client_slots_map(&slots, dup(job.region.fd)), HVD_OK);
    ck_assert(!slots.on);
    client_slots_fini(&slots);
}
END_TEST

static TCase *tests(const char *name, void (*begin)(void))
{
    TCase *tcase = tcase_create(name);

    tcase_add_checked_fixture(tcase, begin, tear_down);
    tcase_add_test(tcase, a_grant_of_a_set_whose_seats_are_not_known_is_of_no_use);
    tcase_add_loop_test(tcase, ranks_with_a_grant_do_a_small_op_and_have_the_next_grant, 0, 3);
    tcase_add_test(tcase, a_rank_that_arrives_unseen_asks_for_a_patrol);
    tcase_add_loop_test(tcase, an_op_that_says_something_else_has_no_use_for_the_grant, 0, 8);
    tcase_add_test(tcase, a_rank_without_slots_has_none);
    tcase_add_test(tcase, a_grant_that_is_void_leaves_the_op_as_it_was);
    tcase_add_test(tcase,
                   an_op_whose_slot_is_revoked_is_the_engines_and_its_result_comes_from_there);
    tcase_add_test(tcase, a_last_rank_that_is_too_late_leaves_the_op_to_the_engine);
    tcase_add_loop_test(tcase, a_broadcast_and_a_barrier_are_done_in_slots_too, 0, 2);
    tcase_add_test(tcase, a_grant_for_no_slot_is_none);
    tcase_add_test(tcase, an_unnamed_op_uses_the_grant_of_the_one_before_it);
    tcase_add_test(tcase, an_unnamed_op_goes_to_the_engine_while_one_stands_in_the_slot);
    tcase_add_test(tcase, the_grant_of_an_unnamed_op_that_another_has_overtaken_is_of_no_use);
    tcase_add_test(tcase, an_op_that_its_owner_releases_in_a_slot_is_given_to_the_engine);
    tcase_add_test(tcase, an_op_that_is_done_when_it_is_released_needs_no_engine);
    tcase_add_test(tcase,
                   a_poll_calls_the_engine_for_an_op_that_stands_for_long_and_not_at_each_call);
    tcase_add_loop_test(tcase, a_rank_that_waits_sees_the_last_one_come, 0, 3);
    tcase_add_test(tcase,
                   a_rank_that_goes_to_sleep_calls_the_engine_and_looks_at_its_socket_afterwards);
    tcase_add_test(tcase, ranks_that_wait_do_a_medium_op_chunk_by_chunk);
    tcase_add_test(tcase, a_rank_that_waited_at_once_does_not_call_the_engine_the_next_time);
    tcase_add_test(tcase,
                   a_rank_that_has_not_mapped_its_peers_asks_for_them_and_calls_the_engine_once);
    tcase_add_test(tcase, a_peer_that_says_an_impossible_place_is_left_to_the_engine);
    tcase_add_test(tcase, an_op_of_which_all_chunks_are_done_is_published_by_who_waits);
    tcase_add_test(tcase, a_page_that_is_missing_is_the_engines_affair);
    tcase_add_loop_test(tcase, what_peers_cannot_reach_is_no_medium_op, 0, 4);
    tcase_add_test(tcase, a_medium_op_is_the_only_one_in_flight);
    tcase_add_test(tcase, a_medium_op_whose_grant_is_void_stays_where_it_was_placed);
    tcase_add_test(tcase, a_slot_that_is_revoked_before_the_last_rank_starts_is_the_engines);
    tcase_add_test(tcase, a_small_op_has_no_chunks);
    tcase_add_loop_test(tcase, an_op_that_a_lost_engine_leaves_is_closed_or_done, 0, 2);
    tcase_add_test(tcase, slots_that_are_none_are_refused);
    return tcase;
}

int main(void)
{
    Suite *suite = suite_create("client/slots");

    suite_add_tcase(suite, tests("seats in order", set_up_in_order));
    suite_add_tcase(suite, tests("seats out of order", set_up_out_of_order));
    return hvt_run_suite(suite);
}
