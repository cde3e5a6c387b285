/* SPDX-License-Identifier: Apache-2.0
 * Communicators of workers on several nodes: what this node asks its workers and tells the other nodes, and what each letter of
 * theirs does at each moment. Ranks 0 to 3 are on the nodes 5, 7, 7 and 9, so node 5 is the first. */
#include "base/clock.h"
#include "base/status.h"
#include "tests/unit/engine/device/hvt_room.h"
#include "tests/unit/hvt_main.h"

#define COMM_NS (100 * HVI_NS_SEC)
#define VERSION 22803u
#define ID_BYTE 0xa1

struct group {
    uint32_t ranks;
    const uint64_t *instances;
    const uint32_t *nodes; /* NULL: all are here */
};

static const uint64_t instances[] = {100, 200, 201, 300};
static const uint32_t nodes[] = {5, 7, 7, 9};
static const struct group all = {4, instances, nodes}, pair = {2, instances, nodes},
                          alone = {1, instances + 1, NULL}, both = {2, instances + 1, NULL};
static uint32_t here;

/* ---- no memory ---- */

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);

static uint32_t countdown; /* the allocation that is refused; 0: none */

static bool refuse(void)
{
    return countdown > 0 && --countdown == 0;
}

void *__wrap_malloc(size_t bytes)
{
    return refuse() ? NULL : __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    return refuse() ? NULL : __real_calloc(count, bytes);
}

/* ---- this node ---- */

/* The workers of a node have come. */
static void begin_with(uint32_t node, uint32_t version, uint64_t comm_ns)
{
    uint32_t worker = 0;

    here = node;
    for (uint32_t rank = 0; rank < all.ranks; rank++) {
        if (nodes[rank] == node)
            hvt_room_start(worker++, instances[rank], version, comm_ns);
    }
}

static void begin(uint32_t node)
{
    begin_with(node, VERSION, COMM_NS);
}

static int want(uint32_t number, const struct group *group)
{
    static const char whose[HVT_ROOM_WORKERS][ENGINE_DEVICE_WHOSE] = {"rank 1", "ranks 0,2"};
    uint16_t workers[HVT_ROOM_WORKERS], ranks[HVT_ROOM_WORKERS];
    struct engine_device_join join = {.comm = number,
                                      .workers = workers,
                                      .rank = ranks,
                                      .ranks = group->ranks,
                                      .instances = group->nodes ? group->instances : NULL,
                                      .nodes = group->nodes,
                                      .here = here,
                                      .set = 5,
                                      .whose = whose};

    for (uint16_t rank = 0; rank < group->ranks; rank++) {
        if (group->nodes && group->nodes[rank] != here)
            continue;
        workers[join.count] = (uint16_t)join.count;
        ranks[join.count++] = rank;
    }
    return engine_device_join(&hvt_room.device, &join);
}

static void start(uint32_t number, const struct group *group)
{
    ck_assert_int_eq(want(number, group), HVI_OK);
    hvt_room_turn();
}

/* ---- its workers ---- */

/* The worker is asked for an id, or whether it can join. */
static uint64_t asked(uint32_t worker, bool check)
{
    struct hvi_gpu_msg msg = hvt_room_hear(worker, HVI_GPU_COMM_ID);
    const uint64_t request = msg.comm_id.request;

    ck_assert_int_eq(msg.comm_id.check, check);
    ck_assert_uint_gt(msg.comm_id.instance_count, 0);
    hvi_gpu_msg_free(&msg);
    return request;
}

/* `text`: why it has no NCCL; "": it has. */
static void answer(uint32_t worker, uint64_t request, bool check, const char *text)
{
    struct hvi_gpu_msg msg = {.kind = HVI_GPU_COMM_ID};

    msg.comm_id.request = request;
    msg.comm_id.check = check;
    snprintf(msg.comm_id.text, sizeof msg.comm_id.text, "%s", text);
    if (!check && text[0] == '\0')
        memset(msg.comm_id.id, ID_BYTE, sizeof msg.comm_id.id);
    hvt_room_say(worker, &msg, NULL, 0);
}

/* All workers here are asked, and can. */
static void workers_can(void)
{
    const uint32_t count = here == 7 ? 2 : 1;

    for (uint32_t worker = 0; worker < count; worker++)
        answer(worker, asked(worker, here != 5), here != 5, "");
}

static uint64_t told_to_join(uint32_t worker, uint32_t number, uint32_t rank,
                             const struct group *group)
{
    struct hvi_gpu_msg msg = hvt_room_hear(worker, HVI_GPU_COMM_JOIN);

    ck_assert_uint_eq(msg.comm_join.comm, number);
    ck_assert_uint_eq(msg.comm_join.rank, rank);
    ck_assert_uint_eq(msg.comm_join.fresh, group->nodes != NULL);
    ck_assert_uint_eq(msg.comm_join.instance_count, group->ranks);
    ck_assert_mem_eq(msg.comm_join.instances, group->instances,
                     group->ranks * sizeof group->instances[0]);
    for (uint32_t i = 0; group->nodes && i < HVI_NCCL_ID_BYTES; i++)
        ck_assert_uint_eq(msg.comm_join.id[i], ID_BYTE);
    const uint64_t request = msg.comm_join.request;
    hvi_gpu_msg_free(&msg);
    return request;
}

static void joins(uint32_t worker, uint64_t request, int status, const char *text)
{
    struct hvi_gpu_msg msg = {.kind = HVI_GPU_ACK};

    msg.ack.request = request;
    msg.ack.status = status;
    snprintf(msg.ack.text, sizeof msg.ack.text, "%s", text);
    hvt_room_say(worker, &msg, NULL, 0);
}

static void told_to_drop(uint32_t worker, uint32_t number)
{
    struct hvi_gpu_msg msg = hvt_room_hear(worker, HVI_GPU_COMM_DROP);

    ck_assert_uint_eq(msg.comm_drop.comm, number);
    ck_assert(msg.comm_drop.abort);
}

/* ---- the other nodes ---- */

static struct hvi_mesh_gpu letter(const struct group *group, enum hvi_mesh_gpu_what what)
{
    struct hvi_mesh_gpu gpu = {.what = what, .instance_count = group->ranks};

    gpu.instances = (uint64_t *)group->instances;
    if (what == HVI_MESH_GPU_READY)
        gpu.nccl_version = VERSION;
    if (what == HVI_MESH_GPU_JOIN)
        memset(gpu.id, ID_BYTE, sizeof gpu.id);
    return gpu;
}

static void hear(uint32_t from, const struct group *group, enum hvi_mesh_gpu_what what)
{
    const struct hvi_mesh_gpu gpu = letter(group, what);

    engine_device_heard(&hvt_room.device, from, &gpu);
}

static void hear_ready(uint32_t from, uint32_t version)
{
    struct hvi_mesh_gpu gpu = letter(&all, HVI_MESH_GPU_READY);

    gpu.nccl_version = version;
    engine_device_heard(&hvt_room.device, from, &gpu);
}

static void hear_failed(uint32_t from, const struct group *group, int status, const char *text)
{
    struct hvi_mesh_gpu gpu = letter(group, HVI_MESH_GPU_FAILED);

    gpu.status = status;
    snprintf(gpu.text, sizeof gpu.text, "%s", text);
    engine_device_heard(&hvt_room.device, from, &gpu);
}

static const struct hvi_mesh_gpu *told(uint32_t node, enum hvi_mesh_gpu_what what,
                                       const struct group *group)
{
    const struct hvi_mesh_gpu *gpu = &hvt_room_letter(node, what)->gpu;

    ck_assert_uint_eq(gpu->instance_count, group->ranks);
    ck_assert_mem_eq(gpu->instances, group->instances, group->ranks * sizeof group->instances[0]);
    return gpu;
}

static void told_id(uint32_t node, const struct group *group)
{
    const struct hvi_mesh_gpu *gpu = told(node, HVI_MESH_GPU_JOIN, group);

    for (uint32_t i = 0; i < HVI_NCCL_ID_BYTES; i++)
        ck_assert_uint_eq(gpu->id[i], ID_BYTE);
}

static void told_failure(uint32_t node, const struct group *group, int status, const char *text)
{
    const struct hvi_mesh_gpu *gpu = told(node, HVI_MESH_GPU_FAILED, group);

    ck_assert_int_eq(gpu->status, status);
    ck_assert_str_eq(gpu->text, text);
}

/* The first node tells the others of it, another node tells the first. */
static void told_others_failure(int status, const char *text)
{
    if (here == 5) {
        told_failure(7, &all, status, text);
        told_failure(9, &all, status, text);
    } else {
        told_failure(5, &all, status, text);
    }
}

/* It is being made, and all nodes can. The first node's worker is to join. */
static uint64_t first_joins(uint32_t number)
{
    start(number, &all);
    workers_can();
    hear(7, &all, HVI_MESH_GPU_READY);
    hear(9, &all, HVI_MESH_GPU_READY);
    told_id(7, &all);
    told_id(9, &all);
    return told_to_join(0, number, 0, &all);
}

static void first_has(uint32_t number)
{
    joins(0, first_joins(number), HVI_OK, "");
    hvt_room_joined(number, HVI_OK);
}

/* Node 9's: its worker is to join. */
static uint64_t last_joins(uint32_t number)
{
    start(number, &all);
    workers_can();
    ck_assert_uint_eq(told(5, HVI_MESH_GPU_READY, &all)->nccl_version, VERSION);
    hear(5, &all, HVI_MESH_GPU_JOIN);
    return told_to_join(0, number, 3, &all);
}

static void last_has(uint32_t number)
{
    joins(0, last_joins(number), HVI_OK, "");
    hvt_room_joined(number, HVI_OK);
}

/* ---- all can, all join ---- */

START_TEST(the_first_node_gives_its_workers_id_to_all_nodes_when_all_can)
{
    begin(5);
    start(1, &all);
    const uint64_t request = asked(0, false);
    hear(7, &all, HVI_MESH_GPU_READY);
    hear(9, &all, HVI_MESH_GPU_READY);
    hvt_room_expect_nothing();
    answer(0, request, false, "");
    told_id(7, &all); /* once, for two workers */
    told_id(9, &all);
    const uint64_t join = told_to_join(0, 1, 0, &all);
    hvt_room_expect_nothing();
    joins(0, join, HVI_OK, "");
    ck_assert_str_eq(hvt_room_joined(1, HVI_OK), "");
}
END_TEST

START_TEST(the_first_node_waits_for_each_node_in_any_order)
{
    const uint32_t others[] = {7, 9};

    begin(5);
    start(1, &all);
    workers_can();
    hear(others[_i], &all, HVI_MESH_GPU_READY);
    hear(others[_i], &all, HVI_MESH_GPU_READY); /* twice is not two nodes */
    hear(8, &all, HVI_MESH_GPU_READY);          /* which has no worker of it */
    hvt_room_expect_nothing();
    hear(others[1 - _i], &all, HVI_MESH_GPU_READY);
    told_id(7, &all);
    told_id(9, &all);
    const uint64_t join = told_to_join(0, 1, 0, &all);
    hear(7, &all, HVI_MESH_GPU_READY); /* it joins already */
    hvt_room_expect_nothing();
    joins(0, join, HVI_OK, "");
    hvt_room_joined(1, HVI_OK);
}
END_TEST

START_TEST(another_node_is_ready_when_all_its_workers_can_and_joins_when_it_is_told)
{
    begin(7);
    start(1, &all);
    const uint64_t first = asked(0, true), second = asked(1, true);
    answer(1, second, true, "");
    hvt_room_expect_nothing();
    answer(0, first, true, "");
    ck_assert_uint_eq(told(5, HVI_MESH_GPU_READY, &all)->nccl_version, VERSION);
    hvt_room_expect_nothing();
    hear(5, &all, HVI_MESH_GPU_JOIN);
    const uint64_t join0 = told_to_join(0, 1, 1, &all), join1 = told_to_join(1, 1, 2, &all);
    hear(5, &all, HVI_MESH_GPU_JOIN); /* twice */
    joins(0, join0, HVI_OK, "");
    hvt_room_expect_nothing();
    joins(1, join1, HVI_OK, "");
    hvt_room_joined(1, HVI_OK);
}
END_TEST

START_TEST(letters_that_come_before_it_is_wanted_are_heard_when_it_is)
{
    begin(5);
    hear(9, &all, HVI_MESH_GPU_READY);
    hear(7, &pair, HVI_MESH_GPU_READY); /* of another one */
    hear(7, &all, HVI_MESH_GPU_READY);
    start(1, &all);
    workers_can();
    told_id(7, &all);
    told_id(9, &all);
    joins(0, told_to_join(0, 1, 0, &all), HVI_OK, "");
    hvt_room_joined(1, HVI_OK);
    ck_assert_uint_eq(hvt_room.device.letter_count, 1);
    start(2, &pair);
    workers_can();
    told_id(7, &pair);
    joins(0, told_to_join(0, 2, 0, &pair), HVI_OK, "");
    hvt_room_joined(2, HVI_OK);
    ck_assert_uint_eq(hvt_room.device.letter_count, 0);
}
END_TEST

START_TEST(several_are_made_one_by_one_in_the_order_in_which_they_are_wanted)
{
    begin(7);
    ck_assert_int_eq(want(1, &alone), HVI_OK);
    ck_assert_int_eq(want(2, &all), HVI_OK);
    ck_assert_int_eq(want(3, &pair), HVI_OK);
    hvt_room_turn();
    answer(0, asked(0, false), false, "");
    uint64_t join = told_to_join(0, 1, 0, &alone);
    hear_failed(5, &pair, HVI_ERR_LIMIT, "too many"); /* kept for its turn */
    hvt_room_expect_nothing();
    joins(0, join, HVI_OK, "");
    hvt_room_joined(1, HVI_OK);
    workers_can();
    told(5, HVI_MESH_GPU_READY, &all);
    hear(5, &all, HVI_MESH_GPU_JOIN);
    join = told_to_join(0, 2, 1, &all);
    joins(1, told_to_join(1, 2, 2, &all), HVI_OK, "");
    hvt_room_expect_nothing();
    joins(0, join, HVI_OK, "");
    hvt_room_joined(2, HVI_OK);
    asked(0, true);
    ck_assert_str_eq(hvt_room_joined(3, HVI_ERR_LIMIT), "too many");
    told_to_drop(0, 3);
}
END_TEST

static void want_pair(void)
{
    ck_assert_int_eq(want(2, &pair), HVI_OK);
}

START_TEST(one_may_be_wanted_when_another_is_told_to_have_failed)
{
    begin(5);
    hear(7, &pair, HVI_MESH_GPU_READY);
    hear_failed(9, &all, HVI_ERR_LIMIT, "too many");
    hvt_room.at_joined = want_pair;
    start(1, &all);
    hvt_room_joined(1, HVI_ERR_LIMIT);
    told_failure(7, &all, HVI_ERR_LIMIT, "too many");
    asked(0, false);
    told_to_drop(0, 1);
    workers_can();
    told_id(7, &pair);
    joins(0, told_to_join(0, 2, 0, &pair), HVI_OK, "");
    hvt_room_joined(2, HVI_OK);
}
END_TEST

/* ---- letters out of place ---- */

START_TEST(a_letter_of_no_communicator_changes_nothing)
{
    struct hvi_mesh_gpu none = letter(&all, HVI_MESH_GPU_FAILED);
    const uint64_t others[] = {100, 200, 201, 301};
    const struct group other = {4, others, nodes};

    begin(5);
    start(1, &all);
    none.instance_count = 0;
    engine_device_heard(&hvt_room.device, 7, &none);
    ck_assert_uint_eq(hvt_room.device.letter_count, 0);
    hear_failed(7, &other, HVI_ERR_LIMIT, "of another worker");
    ck_assert_uint_eq(hvt_room.device.letter_count, 1);
    workers_can();
    hear(7, &all, HVI_MESH_GPU_READY);
    hear(9, &all, HVI_MESH_GPU_READY);
    told_id(7, &all);
    told_id(9, &all);
    joins(0, told_to_join(0, 1, 0, &all), HVI_OK, "");
    hvt_room_joined(1, HVI_OK);
}
END_TEST

START_TEST(no_node_but_the_first_says_join_and_not_before_all_workers_here_can)
{
    begin(9);
    hear(5, &all, HVI_MESH_GPU_JOIN); /* too early, and it is not kept for later */
    start(1, &all);
    const uint64_t request = asked(0, true);
    hear(5, &all, HVI_MESH_GPU_JOIN);
    hvt_room_expect_nothing();
    answer(0, request, true, "");
    told(5, HVI_MESH_GPU_READY, &all);
    hear(7, &all, HVI_MESH_GPU_JOIN);
    hear(7, &all, HVI_MESH_GPU_READY); /* which is the first node's to hear */
    hvt_room_expect_nothing();
    hear(5, &all, HVI_MESH_GPU_JOIN);
    joins(0, told_to_join(0, 1, 3, &all), HVI_OK, "");
    hvt_room_joined(1, HVI_OK);
}
END_TEST

START_TEST(what_is_said_of_one_that_is_there_or_over_is_too_late)
{
    begin(5);
    first_has(1);
    hear(7, &all, HVI_MESH_GPU_READY);
    ck_assert_uint_eq(hvt_room.device.letter_count, 0);
    hear_failed(7, &all, HVI_ERR_LIMIT, "too many");
    told_failure(9, &all, HVI_ERR_LIMIT, "too many");
    told_to_drop(0, 1);
    hvt_room_joined(1, HVI_ERR_LIMIT);
    hear_failed(9, &all, HVI_ERR_LIMIT, "too many");
    hear(9, &all, HVI_MESH_GPU_READY);
    hvt_room_turn();
    ck_assert_uint_eq(hvt_room.device.letter_count, 2);
}
END_TEST

START_TEST(letters_are_kept_up_to_a_limit)
{
    begin(5);
    hear(7, &all, HVI_MESH_GPU_READY);
    for (uint32_t i = 0; i < 2000; i++)
        hear(7, &pair, HVI_MESH_GPU_JOIN);
    ck_assert_uint_eq(hvt_room.device.letter_count, 1024);
    hear(9, &all, HVI_MESH_GPU_READY); /* is lost */
    start(1, &all);
    workers_can();
    hvt_room_expect_nothing();
    hear(9, &all, HVI_MESH_GPU_READY);
    told_id(7, &all);
    told_id(9, &all);
    told_to_join(0, 1, 0, &all);
}
END_TEST

START_TEST(closing_says_nothing_of_letters_and_communicators_that_are_there)
{
    begin(5);
    first_has(1);
    start(2, &pair);
    asked(0, false);
    ck_assert_int_eq(want(3, &all), HVI_OK);
    hear(7, &pair, HVI_MESH_GPU_READY);
    hear_failed(8, &alone, HVI_ERR_LIMIT, "too many");
    ck_assert_uint_eq(hvt_room.device.letter_count, 1);
    engine_device_close(&hvt_room.device);
    ck_assert_ptr_null(hvt_room.device.letters);
    ck_assert_ptr_null(hvt_room.device.comms);
    ck_assert_ptr_null(hvt_room.device.ready_comms);
}
END_TEST

/* ---- versions ---- */

START_TEST(versions_that_differ_are_a_sentence_with_both_nodes_on_all_nodes)
{
    const char *text = "the GPUs of node 5 have NCCL 22803, and those of node 9 have NCCL 22105: "
                       "install one version on both";

    begin(5);
    start(1, &all);
    workers_can();
    hear(7, &all, HVI_MESH_GPU_READY);
    hear_ready(9, 22105);
    ck_assert_str_eq(hvt_room_joined(1, HVI_ERR_UNSUPPORTED), text);
    told_others_failure(HVI_ERR_UNSUPPORTED, text);
    told_to_drop(0, 1);
}
END_TEST

/* Where NCCL is not opened yet. */
START_TEST(a_version_that_is_not_known_agrees_with_each)
{
    begin_with(5, _i == 0 ? 0 : VERSION, COMM_NS);
    start(1, &all);
    workers_can();
    hear_ready(7, _i == 1 ? 0 : VERSION);
    hear_ready(9, VERSION);
    told_id(7, &all);
    told_id(9, &all);
    told_to_join(0, 1, 0, &all);
}
END_TEST

START_TEST(a_node_that_does_not_know_its_version_says_so)
{
    begin_with(9, 0, COMM_NS);
    start(1, &all);
    workers_can();
    ck_assert_uint_eq(told(5, HVI_MESH_GPU_READY, &all)->nccl_version, 0);
}
END_TEST

START_TEST(versions_that_differ_on_this_node_are_told_before_a_worker_is_asked)
{
    const char *text = HVT_ROOM_UUID0 " has NCCL 22803, and " HVT_ROOM_UUID1 " has NCCL 22105";

    here = 7;
    hvt_room_start(0, 200, VERSION, COMM_NS);
    hvt_room_start(1, 201, 22105, COMM_NS);
    start(1, &all);
    ck_assert_str_eq(hvt_room_joined(1, HVI_ERR_UNSUPPORTED), text);
    told_failure(5, &all, HVI_ERR_UNSUPPORTED, text);
    told_to_drop(0, 1);
    told_to_drop(1, 1);
}
END_TEST

/* ---- failures ---- */

START_TEST(a_worker_without_nccl_fails_it_on_all_nodes_before_any_joins)
{
    const char *text = HVT_ROOM_UUID0
        " could not join a communicator of 4 GPUs: libnccl.so.2 is not there: install NCCL";

    begin(_i == 0 ? 5 : 7);
    start(1, &all);
    answer(0, asked(0, here != 5), here != 5, "libnccl.so.2 is not there: install NCCL");
    ck_assert_str_eq(hvt_room_joined(1, HVI_ERR_UNSUPPORTED), text);
    if (here == 5) {
        told_failure(7, &all, HVI_ERR_UNSUPPORTED, text);
        told_failure(9, &all, HVI_ERR_UNSUPPORTED, text);
    } else {
        told_failure(5, &all, HVI_ERR_UNSUPPORTED, text);
        const uint64_t late = asked(1, true);
        told_to_drop(1, 1);
        answer(1, late, true, ""); /* of one that is over */
    }
    told_to_drop(0, 1);
}
END_TEST

START_TEST(a_worker_that_cannot_join_fails_it_on_all_nodes)
{
    const char *text =
        HVT_ROOM_UUID0 " could not join a communicator of 4 GPUs: ncclCommInitRank: system error";

    begin(5);
    joins(0, first_joins(1), HVI_ERR_LIMIT, "ncclCommInitRank: system error");
    ck_assert_str_eq(hvt_room_joined(1, HVI_ERR_LIMIT), text);
    told_others_failure(HVI_ERR_LIMIT, text);
    told_to_drop(0, 1);
}
END_TEST

/* 0: workers are asked, 1: all here can, 2: they join, 3: it is there. */
static void reach(uint32_t stage)
{
    if (stage >= 2) {
        const uint64_t join = here == 5 ? first_joins(1) : last_joins(1);
        if (stage == 3) {
            joins(0, join, HVI_OK, "");
            hvt_room_joined(1, HVI_OK);
        }
        return;
    }
    start(1, &all);
    if (stage == 0) {
        asked(0, here != 5);
        return;
    }
    workers_can();
    if (here != 5)
        told(5, HVI_MESH_GPU_READY, &all);
}

START_TEST(the_first_node_passes_a_failure_on_to_the_nodes_that_have_not_said_it)
{
    begin(5);
    reach((uint32_t)_i);
    hear_failed(7, &all, HVI_ERR_LIMIT, "node 7 has no room");
    ck_assert_str_eq(hvt_room_joined(1, HVI_ERR_LIMIT), "node 7 has no room");
    told_failure(9, &all, HVI_ERR_LIMIT, "node 7 has no room");
    told_to_drop(0, 1);
}
END_TEST

START_TEST(another_node_fails_with_what_the_first_says_and_tells_no_other)
{
    begin(9);
    reach((uint32_t)_i);
    hear_failed(5, &all, HVI_ERR_LIMIT, "node 7 has no room");
    ck_assert_str_eq(hvt_room_joined(1, HVI_ERR_LIMIT), "node 7 has no room");
    told_to_drop(0, 1);
}
END_TEST

/* Of another node: that the job or the session is over is its own affair, and an unknown status is a lie. */
START_TEST(a_failure_elsewhere_ends_an_op_and_never_the_job_here)
{
    static const int statuses[][2] = {{HVI_ERR_UNSUPPORTED, HVI_ERR_UNSUPPORTED},
                                      {HVI_ERR_TIMEOUT, HVI_ERR_TIMEOUT},
                                      {HVI_ERR_CANCELLED, HVI_ERR_NODE_LOST},
                                      {HVI_ERR_CLOSED, HVI_ERR_NODE_LOST},
                                      {HVI_ERR_WORKER_LOST, HVI_ERR_NODE_LOST},
                                      {HVI_OK, HVI_ERR_NODE_LOST},
                                      {HVI_INPROGRESS, HVI_ERR_NODE_LOST},
                                      {-99, HVI_ERR_NODE_LOST},
                                      {INT32_MIN, HVI_ERR_NODE_LOST}};

    begin(9);
    for (uint32_t i = 0; i < sizeof statuses / sizeof statuses[0]; i++) {
        start(1 + i, &all);
        asked(0, true);
        hear_failed(5, &all, statuses[i][0], "it is over");
        ck_assert_str_eq(hvt_room_joined(1 + i, statuses[i][1]), "it is over");
        told_to_drop(0, 1 + i);
    }
}
END_TEST

START_TEST(a_worker_that_is_lost_fails_what_it_is_asked_for)
{
    begin(_i < 3 ? 5 : 9);
    reach((uint32_t)_i % 3);
    hvt_room_lose(0, "it was killed by signal 9 (SIGKILL)");
    const char *text = hvt_room_joined(1, HVI_ERR_WORKER_LOST);
    const char *lost = "the worker of " HVT_ROOM_UUID0
                       " (Test GPU, pid 4711) is lost: it was killed by signal 9 (SIGKILL)";
    ck_assert_mem_eq(text, lost, strlen(lost));
    ck_assert_str_eq(text + strlen(lost), _i % 3 < 2
                                              ? ""
                                              : "; process set 5 waits for a communicator that the "
                                                "GPUs of other nodes have not joined");
    told_others_failure(HVI_ERR_WORKER_LOST, text);
}
END_TEST

/* Both workers of this node, for generation 7; the ticket of the first one. */
static uint64_t both_are_to_join(void)
{
    uint64_t first;

    begin(7);
    start(1, &both);
    answer(0, asked(0, false), false, "");
    answer(1, asked(1, true), true, "");
    first = told_to_join(0, 1, 0, &both);
    told_to_join(1, 1, 1, &both);
    return first;
}

/* It has answered: what it is lost of later has nothing to do with that. */
START_TEST(a_worker_that_has_answered_is_not_said_to_join)
{
    const uint64_t first = both_are_to_join();

    joins(0, first, HVI_ERR_LIMIT, "ncclCommInitRank: system error");
    ck_assert_ptr_nonnull(strstr(hvt_room_joined(1, HVI_ERR_LIMIT), "could not join"));
    told_to_drop(0, 1);
    told_to_drop(1, 1);
    hvt_room_lose(0, "it was killed");
    ck_assert_ptr_nonnull(strstr(hvt_room.device.workers[0].text, "is lost: it was killed"));
    ck_assert_ptr_null(strstr(hvt_room.device.workers[0].text, "process set"));
}
END_TEST

/* Also when what it is to join has failed with another worker: it cannot leave. */
START_TEST(a_worker_that_is_lost_in_a_join_names_the_set_and_those_that_have_not_come)
{
    both_are_to_join();
    hvt_room_lose(1, "it joins for too long");
    ck_assert_ptr_nonnull(
        strstr(hvt_room_joined(1, HVI_ERR_WORKER_LOST),
               "is lost: it joins for too long; process set 5 waits for a communicator that the "
               "GPUs of rank 1 have not joined"));
    told_to_drop(0, 1);
    hvt_room_lose(0, "it joins for too long");
    ck_assert_ptr_nonnull(
        strstr(hvt_room.device.workers[0].text, "the GPUs of ranks 0,2 have not joined"));
}
END_TEST

/* It cannot leave, and ends by that. */
START_TEST(a_worker_that_is_lost_in_a_join_that_has_failed_elsewhere_has_the_cause)
{
    const uint64_t first = both_are_to_join();

    joins(0, first, HVI_ERR_NO_MEMORY, "unhandled cuda error");
    ck_assert_ptr_nonnull(strstr(hvt_room_joined(1, HVI_ERR_NO_MEMORY), "could not join"));
    told_to_drop(0, 1);
    told_to_drop(1, 1);
    hvt_room_lose(1, "it is still joined after 2 s");
    ck_assert_ptr_nonnull(strstr(hvt_room.device.workers[1].text,
                                 "is lost: it is still joined after 2 s; the communicator of "
                                 "process set 5 has failed: " HVT_ROOM_UUID0
                                 " could not join a communicator of 2 GPUs: unhandled cuda error"));
}
END_TEST

START_TEST(a_worker_that_is_lost_fails_those_that_wait_and_aborts_those_that_are_there)
{
    begin(7);
    start(1, &all);
    workers_can();
    told(5, HVI_MESH_GPU_READY, &all);
    hear(5, &all, HVI_MESH_GPU_JOIN);
    joins(0, told_to_join(0, 1, 1, &all), HVI_OK, "");
    joins(1, told_to_join(1, 1, 2, &all), HVI_OK, "");
    hvt_room_joined(1, HVI_OK);
    start(2, &alone);
    const uint64_t id = asked(0, false);
    ck_assert_int_eq(want(3, &all), HVI_OK);
    hvt_room_lose(1, "");
    told_to_drop(0, 1); /* the job breaks for it: no more is told of that one */
    hvt_room_joined(3, HVI_ERR_WORKER_LOST);
    ck_assert_int_eq(told(5, HVI_MESH_GPU_FAILED, &all)->status, HVI_ERR_WORKER_LOST);
    told_to_drop(0, 3);
    answer(0, id, false, ""); /* one without it goes on */
    joins(0, told_to_join(0, 2, 0, &alone), HVI_OK, "");
    hvt_room_joined(2, HVI_OK);
}
END_TEST

START_TEST(a_worker_whose_connection_has_ended_cannot_be_asked)
{
    const char *text = "a worker cannot be asked for a communicator's id";

    begin(9);
    hvt_room_hang_up(0);
    start(1, &all);
    ck_assert_str_eq(hvt_room_joined(1, HVI_ERR_CLOSED), text);
    told_failure(5, &all, HVI_ERR_CLOSED, text);
}
END_TEST

START_TEST(a_worker_whose_connection_has_ended_cannot_be_told_to_join)
{
    const char *text = "a worker cannot be told to join a communicator";

    begin(9);
    reach(1);
    hvt_room_hang_up(0);
    hear(5, &all, HVI_MESH_GPU_JOIN);
    ck_assert_str_eq(hvt_room_joined(1, HVI_ERR_CLOSED), text);
    told_failure(5, &all, HVI_ERR_CLOSED, text);
}
END_TEST

/* ---- lies ---- */

/* 0: the question for an id is acknowledged; 1: a join is answered with an id; 2, 3: with what is no op's failure. */
START_TEST(an_answer_that_cannot_be_ends_the_worker)
{
    static const char *const due[] = {"it broke the protocol: an answer to another question",
                                      "it broke the protocol: an answer to another question",
                                      ("it broke the protocol: an answer with a status that no "
                                       "request has")};

    begin(5);
    hvt_room.may_end = true;
    if (_i == 0) {
        start(1, &all);
        joins(0, asked(0, false), HVI_OK, "");
    } else if (_i == 1) {
        answer(0, first_joins(1), false, "");
    } else {
        joins(0, first_joins(1), _i == 2 ? HVI_INPROGRESS : HVI_ERR_JOB_STOPPED, "");
    }
    ck_assert_str_eq(hvt_room.ended, due[_i < 2 ? _i : 2]);
    hvt_room_expect_nothing();
    hvt_room_lose(0, "it was killed");
    hvt_room_joined(1, HVI_ERR_WORKER_LOST);
    hvt_room_letter(7, HVI_MESH_GPU_FAILED);
    hvt_room_letter(9, HVI_MESH_GPU_FAILED);
}
END_TEST

START_TEST(a_worker_that_says_it_has_an_id_and_sends_none_fails_the_communicator)
{
    const char *text = HVT_ROOM_UUID0 " has made no id for a communicator of 4 GPUs";

    begin(5);
    start(1, &all);
    answer(0, asked(0, false), true, "");
    ck_assert_str_eq(hvt_room_joined(1, HVI_ERR_UNSUPPORTED), text);
    told_others_failure(HVI_ERR_UNSUPPORTED, text);
    told_to_drop(0, 1);
}
END_TEST

/* Node 8 has no worker of it. */
START_TEST(a_node_ends_no_communicator_of_others)
{
    begin(_i < 4 ? 5 : 9);
    if (_i % 4 == 0)
        hear_failed(8, &all, HVI_ERR_LIMIT, "no room"); /* before it is wanted */
    reach((uint32_t)_i % 4);
    hear_failed(8, &all, HVI_ERR_LIMIT, "no room");
    hvt_room_expect_nothing();
}
END_TEST

/* ---- time ---- */

START_TEST(the_first_node_names_the_node_that_has_not_answered_in_time)
{
    static const char *const texts[] = {
        "node 5 has not answered in time: a communicator of 4 GPUs",
        "node 7 has not answered in time: a communicator of 4 GPUs",
        "node 9 has not answered in time: a communicator of 4 GPUs"};

    begin(5);
    reach(_i > 0);
    if (_i == 2)
        hear(7, &all, HVI_MESH_GPU_READY);
    ck_assert(engine_device_comm_look(&hvt_room.device, hvi_clock_ns() + COMM_NS));
    hvt_room_expect_nothing();
    ck_assert(!engine_device_comm_look(&hvt_room.device, hvi_clock_ns() + 2 * COMM_NS));
    ck_assert_str_eq(hvt_room_joined(1, HVI_ERR_TIMEOUT), texts[_i]);
    told_others_failure(HVI_ERR_TIMEOUT, texts[_i]);
    told_to_drop(0, 1);
}
END_TEST

START_TEST(another_node_waits_for_the_first_as_long_as_a_join_may_take)
{
    const char *text = "node 5 has not answered in time: a communicator of 4 GPUs";

    begin(9);
    reach(1);
    ck_assert(engine_device_comm_look(&hvt_room.device, hvi_clock_ns() + COMM_NS));
    hvt_room_expect_nothing();
    ck_assert(!engine_device_comm_look(&hvt_room.device, hvi_clock_ns() + 2 * COMM_NS));
    ck_assert_str_eq(hvt_room_joined(1, HVI_ERR_TIMEOUT), text);
    told_failure(5, &all, HVI_ERR_TIMEOUT, text);
    told_to_drop(0, 1);
}
END_TEST

START_TEST(a_node_that_joins_waits_for_its_workers_alone)
{
    begin(9);
    reach(2);
    ck_assert(!engine_device_comm_look(&hvt_room.device, hvi_clock_ns() + 2 * COMM_NS));
}
END_TEST

/* Its worker allows no time. That worker's answer is let off, so only the other nodes are late. */
START_TEST(the_event_loop_sees_that_the_time_is_over)
{
    const uint64_t deadline_ns = hvi_deadline_after(HVT_ROOM_WAIT_NS);

    begin_with(9, VERSION, 0);
    ck_assert_int_eq(want(1, &all), HVI_OK);
    ck_assert_int_gt(sd_event_run(hvt_room.event, 0), 0);
    hvt_room.device.workers[0].pending->deadline_ns = UINT64_MAX - 1;
    asked(0, true);
    while (hvt_room.joined_count == 0) {
        ck_assert_uint_lt(hvi_clock_ns(), deadline_ns);
        ck_assert_int_ge(sd_event_run(hvt_room.event, 1000000), 0);
    }
    const char *text = hvt_room_joined(1, HVI_ERR_TIMEOUT);
    ck_assert_str_eq(text, "node 5 has not answered in time: a communicator of 4 GPUs");
    told_failure(5, &all, HVI_ERR_TIMEOUT, text);
    told_to_drop(0, 1);
}
END_TEST

/* ---- leaving ---- */

START_TEST(one_that_is_left_is_over_on_all_nodes)
{
    begin(_i < 4 ? 5 : 9);
    reach((uint32_t)_i % 4);
    engine_device_leave(&hvt_room.device, 2, HVI_ERR_CANCELLED, "of no communicator");
    hvt_room_expect_nothing();
    engine_device_leave(&hvt_room.device, 1, HVI_ERR_CANCELLED, "cancelled by rank 0");
    ck_assert_str_eq(hvt_room_joined(1, HVI_ERR_CANCELLED), "cancelled by rank 0");
    told_others_failure(HVI_ERR_CANCELLED, "cancelled by rank 0");
    told_to_drop(0, 1);
}
END_TEST

START_TEST(one_that_waits_can_be_left_and_the_others_go_on)
{
    begin(5);
    start(1, &pair);
    const uint64_t id = asked(0, false);
    ck_assert_int_eq(want(2, &all), HVI_OK);
    engine_device_leave(&hvt_room.device, 2, HVI_ERR_CANCELLED, "cancelled by rank 0");
    hvt_room_joined(2, HVI_ERR_CANCELLED);
    told_others_failure(HVI_ERR_CANCELLED, "cancelled by rank 0");
    told_to_drop(0, 2);
    answer(0, id, false, "");
    hear(7, &pair, HVI_MESH_GPU_READY);
    told_id(7, &pair);
    joins(0, told_to_join(0, 1, 0, &pair), HVI_OK, "");
    hvt_room_joined(1, HVI_OK);
}
END_TEST

START_TEST(a_broken_job_has_no_communicators_with_other_nodes_but_its_own)
{
    begin(7);
    start(1, &alone);
    answer(0, asked(0, false), false, "");
    joins(0, told_to_join(0, 1, 0, &alone), HVI_OK, "");
    hvt_room_joined(1, HVI_OK);
    start(2, &all);
    workers_can();
    told(5, HVI_MESH_GPU_READY, &all);
    hear(5, &all, HVI_MESH_GPU_JOIN);
    joins(0, told_to_join(0, 2, 1, &all), HVI_OK, "");
    joins(1, told_to_join(1, 2, 2, &all), HVI_OK, "");
    hvt_room_joined(2, HVI_OK);
    start(3, &alone);
    const uint64_t id = asked(0, false);
    ck_assert_int_eq(want(4, &pair), HVI_OK);
    engine_device_leave_nodes(&hvt_room.device, "rank 3 is lost");
    told_to_drop(0, 2);
    told_to_drop(1, 2);
    ck_assert_str_eq(hvt_room_joined(4, HVI_ERR_CANCELLED), "rank 3 is lost");
    told_failure(5, &pair, HVI_ERR_CANCELLED, "rank 3 is lost");
    told_to_drop(0, 4);
    answer(0, id, false, "");
    joins(0, told_to_join(0, 3, 0, &alone), HVI_OK, "");
    hvt_room_joined(3, HVI_OK);
    engine_device_leave(&hvt_room.device, 1, HVI_ERR_CANCELLED, "still there");
    hvt_room_joined(1, HVI_ERR_CANCELLED);
    told_to_drop(0, 1);
}
END_TEST

/* ---- no memory ---- */

START_TEST(without_memory_none_is_wanted)
{
    uint32_t refused = 0, left;
    int status;

    begin(9);
    do {
        countdown = ++refused;
        status = want(1, &all);
        left = countdown;
        countdown = 0; /* assertions allocate as well */
        ck_assert_int_eq(status, left == 0 ? HVI_ERR_NO_MEMORY : HVI_OK);
        ck_assert_int_eq(hvt_room.device.comms != NULL, status == HVI_OK);
    } while (status != HVI_OK);
    ck_assert_uint_gt(refused, 1);
    hvt_room_turn();
    workers_can();
    told(5, HVI_MESH_GPU_READY, &all);
}
END_TEST

START_TEST(an_event_loop_that_has_ended_takes_none)
{
    begin(9);
    ck_assert_int_ge(sd_event_exit(hvt_room.event, 0), 0);
    while (sd_event_get_state(hvt_room.event) != SD_EVENT_FINISHED)
        ck_assert_int_ge(sd_event_run(hvt_room.event, 0), 0);
    ck_assert_int_eq(want(1, &all), HVI_ERR_NO_MEMORY);
    ck_assert_ptr_null(hvt_room.device.comms);
}
END_TEST

START_TEST(without_memory_for_a_question_it_fails_on_all_nodes)
{
    const char *text = _i == 0 ? "a worker cannot be asked for a communicator's id"
                               : "a worker cannot be told to join a communicator";

    begin(9);
    if (_i == 0) {
        ck_assert_int_eq(want(1, &all), HVI_OK);
        countdown = 1;
        hvt_room_turn();
    } else {
        reach(1);
        countdown = 1;
        hear(5, &all, HVI_MESH_GPU_JOIN);
    }
    ck_assert_uint_eq(countdown, 0);
    ck_assert_str_eq(hvt_room_joined(1, HVI_ERR_NO_MEMORY), text);
    told_failure(5, &all, HVI_ERR_NO_MEMORY, text);
    told_to_drop(0, 1);
}
END_TEST

START_TEST(without_memory_a_letter_is_not_kept)
{
    begin(9);
    countdown = (uint32_t)_i;
    hear_failed(5, &all, HVI_ERR_LIMIT, "too many");
    ck_assert_uint_eq(countdown, 0);
    ck_assert_uint_eq(hvt_room.device.letter_count, 0);
    last_has(1);
}
END_TEST

static void add_meetings(TCase *tcase)
{
    tcase_add_test(tcase, the_first_node_gives_its_workers_id_to_all_nodes_when_all_can);
    tcase_add_loop_test(tcase, the_first_node_waits_for_each_node_in_any_order, 0, 2);
    tcase_add_test(tcase, another_node_is_ready_when_all_its_workers_can_and_joins_when_it_is_told);
    tcase_add_test(tcase, letters_that_come_before_it_is_wanted_are_heard_when_it_is);
    tcase_add_test(tcase, several_are_made_one_by_one_in_the_order_in_which_they_are_wanted);
    tcase_add_test(tcase, one_may_be_wanted_when_another_is_told_to_have_failed);
    tcase_add_test(tcase, a_letter_of_no_communicator_changes_nothing);
    tcase_add_test(tcase, no_node_but_the_first_says_join_and_not_before_all_workers_here_can);
    tcase_add_test(tcase, what_is_said_of_one_that_is_there_or_over_is_too_late);
    tcase_add_test(tcase, letters_are_kept_up_to_a_limit);
    tcase_add_test(tcase, closing_says_nothing_of_letters_and_communicators_that_are_there);
    tcase_add_test(tcase, versions_that_differ_are_a_sentence_with_both_nodes_on_all_nodes);
    tcase_add_loop_test(tcase, a_version_that_is_not_known_agrees_with_each, 0, 2);
    tcase_add_test(tcase, a_node_that_does_not_know_its_version_says_so);
    tcase_add_test(tcase, versions_that_differ_on_this_node_are_told_before_a_worker_is_asked);
}

static void add_ends(TCase *tcase)
{
    tcase_add_loop_test(tcase, a_worker_without_nccl_fails_it_on_all_nodes_before_any_joins, 0, 2);
    tcase_add_test(tcase, a_worker_that_cannot_join_fails_it_on_all_nodes);
    tcase_add_loop_test(
        tcase, the_first_node_passes_a_failure_on_to_the_nodes_that_have_not_said_it, 0, 4);
    tcase_add_loop_test(tcase, another_node_fails_with_what_the_first_says_and_tells_no_other, 0,
                        4);
    tcase_add_test(tcase, a_failure_elsewhere_ends_an_op_and_never_the_job_here);
    tcase_add_loop_test(tcase, a_worker_that_is_lost_fails_what_it_is_asked_for, 0, 6);
    tcase_add_test(tcase, a_worker_that_has_answered_is_not_said_to_join);
    tcase_add_test(tcase,
                   a_worker_that_is_lost_in_a_join_names_the_set_and_those_that_have_not_come);
    tcase_add_test(tcase, a_worker_that_is_lost_in_a_join_that_has_failed_elsewhere_has_the_cause);
    tcase_add_test(tcase,
                   a_worker_that_is_lost_fails_those_that_wait_and_aborts_those_that_are_there);
    tcase_add_test(tcase, a_worker_whose_connection_has_ended_cannot_be_asked);
    tcase_add_test(tcase, a_worker_whose_connection_has_ended_cannot_be_told_to_join);
    tcase_add_loop_test(tcase, the_first_node_names_the_node_that_has_not_answered_in_time, 0, 3);
    tcase_add_test(tcase, another_node_waits_for_the_first_as_long_as_a_join_may_take);
    tcase_add_test(tcase, a_node_that_joins_waits_for_its_workers_alone);
    tcase_add_test(tcase, the_event_loop_sees_that_the_time_is_over);
    tcase_add_loop_test(tcase, one_that_is_left_is_over_on_all_nodes, 0, 8);
    tcase_add_test(tcase, one_that_waits_can_be_left_and_the_others_go_on);
    tcase_add_test(tcase, a_broken_job_has_no_communicators_with_other_nodes_but_its_own);
    tcase_add_loop_test(tcase, an_answer_that_cannot_be_ends_the_worker, 0, 4);
    tcase_add_test(tcase, a_worker_that_says_it_has_an_id_and_sends_none_fails_the_communicator);
    tcase_add_loop_test(tcase, a_node_ends_no_communicator_of_others, 0, 8);
    tcase_add_test(tcase, without_memory_none_is_wanted);
    tcase_add_test(tcase, an_event_loop_that_has_ended_takes_none);
    tcase_add_loop_test(tcase, without_memory_for_a_question_it_fails_on_all_nodes, 0, 2);
    tcase_add_loop_test(tcase, without_memory_a_letter_is_not_kept, 1, 3);
}

int main(void)
{
    Suite *suite = suite_create("engine/device/comm");
    TCase *tcase = tcase_create("comm");

    tcase_add_checked_fixture(tcase, hvt_room_open, hvt_room_close);
    add_meetings(tcase);
    add_ends(tcase);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
