/* SPDX-License-Identifier: Apache-2.0
 * Batches as engines say them: what is a lie, and which steps they become. Addresses are numbers; nothing is there. */
#include "base/status.h"
#include "base/types.h"
#include "daemon/gpu/nccl.h"
#include "daemon/gpu/plan.h"
#include "shm/fence.h"
#include "tests/unit/engine/hvt_reference.h"
#include "tests/unit/hvt_main.h"

#include <math.h>

#define BASE    UINT64_C(0x100000)   /* of import n: n * BASE, so many bytes */
#define PAGE    UINT64_C(0x77000000) /* of fence page 1 */
#define STAGING UINT64_C(0x99000000)
#define IMPORTS 9u
#define COMM    5u
#define SLOTS   512u
#define STEPS   512u

static union gpu_slot slots[SLOTS];
static uint32_t filled;
static struct gpu_batch batch;
static uint32_t comm_ranks, comm_rank;
static uint64_t staging_bytes;
static struct gpu_step steps[STEPS];
static uint32_t step_count;

/* ---- what slots may name ---- */

static bool find_import(void *user, uint32_t number, uint64_t *address_p, uint64_t *bytes_p)
{
    (void)user;
    *address_p = number * BASE;
    *bytes_p = BASE;
    return number <= IMPORTS;
}

static bool find_page(void *user, uint32_t number, uint64_t *address_p,
                      const struct hvi_fence_page **page_p)
{
    (void)user;
    *address_p = PAGE;
    *page_p = NULL;
    return number == 1;
}

static bool find_comm(void *user, uint32_t number, uint32_t *ranks_p, uint32_t *rank_p)
{
    (void)user;
    *ranks_p = comm_ranks;
    *rank_p = comm_rank;
    return number == COMM;
}

static const struct gpu_batch_names names = {NULL, find_import, find_page, find_comm};

static bool take_step(void *user, const struct gpu_step *step)
{
    (void)user;
    ck_assert_uint_lt(step_count, STEPS);
    steps[step_count++] = *step;
    return true;
}

/* ---- writing a batch ---- */

static void setup(void)
{
    comm_ranks = 2;
    comm_rank = 0;
    staging_bytes = UINT64_C(1) << 20;
}

static void begin(uint32_t works, bool with_comm)
{
    memset(slots, 0, sizeof(slots));
    slots[0].batch = (struct hvi_device_batch){.command = HVI_DEVICE_BATCH,
                                               .number = 1,
                                               .works = (uint16_t)works,
                                               .comm = with_comm ? COMM : 0,
                                               .comm_ranks = with_comm ? comm_ranks : 0,
                                               .comm_rank = with_comm ? comm_rank : 0};
    filled = 1;
}

static struct hvi_device_work *add_work(uint16_t kind, uint16_t members, uint64_t count)
{
    struct hvi_device_work *work = &slots[filled++].work;

    *work = (struct hvi_device_work){.command = HVI_DEVICE_WORK,
                                     .kind = kind,
                                     .members = members,
                                     .dtype = HVI_DTYPE_FLOAT32,
                                     .reduce_op = HVI_REDUCE_SUM,
                                     .root = -1,
                                     .root_member = -1,
                                     .ranks = members,
                                     .count = count,
                                     .bytes = count * sizeof(float),
                                     .prescale = 1,
                                     .postscale = 1};
    return work;
}

/* Its input lies at the beginning of an import, its output in the middle. */
static struct hvi_device_member *add_member(uint32_t place, uint32_t import)
{
    struct hvi_device_member *member = &slots[filled++].member;

    *member = (struct hvi_device_member){.command = HVI_DEVICE_MEMBER,
                                         .place = place,
                                         .in_import = import,
                                         .out_import = import,
                                         .out_offset = BASE / 2,
                                         .page = 1,
                                         .cell = place + 1,
                                         .turn = 7};
    return member;
}

static void add_numbers(struct hvi_device_work *work, const uint64_t *numbers, uint32_t count)
{
    work->sizes = (count + 7) / 8;
    for (uint32_t i = 0; i < count; i++)
        slots[filled + i / 8].sizes.values[i % 8] = numbers[i];
    filled += work->sizes;
}

static const char *read_batch(void)
{
    slots[0].batch.slots = filled;
    return gpu_batch_read(slots, filled, &names, &batch);
}

static void plan(void)
{
    const struct gpu_plan_means means = {STAGING, staging_bytes, NULL, take_step};
    const char *text, *lie = read_batch();

    ck_assert_msg(lie == NULL, "%s", lie);
    step_count = 0;
    ck_assert_int_eq(gpu_plan_make(&batch, &means, &text), HVI_OK);
}

static void expect_steps(uint32_t count, const enum gpu_step_kind *kinds)
{
    ck_assert_uint_eq(step_count, count);
    for (uint32_t i = 0; i < count; i++)
        ck_assert_int_eq(steps[i].kind, kinds[i]);
}

#define EXPECT_STEPS(...)                                                                          \
    expect_steps(sizeof((enum gpu_step_kind[]){__VA_ARGS__}) / sizeof(enum gpu_step_kind),         \
                 (enum gpu_step_kind[]){__VA_ARGS__})

/* ---- lies ---- */

static struct hvi_device_work *the_work;
static struct hvi_device_member *the_member;

/* A batch of one work that is fine: an allreduce of two members, with a communicator or without. */
static void write_fine(bool with_comm)
{
    begin(1, with_comm);
    the_work = add_work(HVI_KIND_ALLREDUCE, 2, 100);
    add_member(0, 1);
    the_member = add_member(1, 2);
}

static void write_rooted(uint16_t kind, bool with_comm)
{
    write_fine(with_comm);
    the_work->kind = kind;
    the_work->root_member = 0;
    the_work->root = with_comm ? 0 : -1;
    if (kind == HVI_KIND_SEND)
        slots[2].member.out_import = with_comm ? HVI_DEVICE_NONE : 1;
    if (kind == HVI_KIND_SEND)
        the_member->out_import = HVI_DEVICE_NONE;
}

static void write_sized(uint16_t kind, bool with_comm, uint64_t first)
{
    const uint64_t numbers[] = {first, 400 - first, 400 - first, first, 0, 0};
    const uint64_t parts[] = {first, 400 - first, 0, 0};
    const bool is_matrix = kind == HVI_KIND_ALLTOALL;
    const uint32_t homes = with_comm && hvi_device_has_homes(kind, 0) ? 2 : 0;

    write_fine(with_comm);
    the_work->kind = kind;
    add_numbers(the_work, is_matrix ? numbers : parts, (is_matrix ? 4 : 2) + homes);
}

#define EXPECT_LIE(text)                                                                           \
    do {                                                                                           \
        const char *lie = read_batch();                                                            \
        ck_assert_msg(lie != NULL && strcmp(lie, text) == 0, "%s", lie != NULL ? lie : "no lie");  \
    } while (0)

/* One statement makes a lie of a fine batch. */
#define LIE(text, write, ...)                                                                      \
    write;                                                                                         \
    ck_assert_ptr_null(read_batch());                                                              \
    __VA_ARGS__;                                                                                   \
    EXPECT_LIE(text)

START_TEST(lies_about_the_batch)
{
    LIE("a batch that is none", write_fine(false), slots[0].batch.command = HVI_DEVICE_WORK);
    LIE("a batch that is none", write_fine(false), slots[0].batch.works = 0);
    LIE("a batch that is none", write_fine(false), slots[0].batch.works = 65);
    LIE("a work that is none", write_fine(false), slots[0].batch.works = 2);
    LIE("slots behind its last work", write_fine(false), filled++);
    LIE("a member that is none", write_fine(false), filled--);
    LIE("a communicator that is not there", write_fine(true), slots[0].batch.comm = COMM + 1);
    LIE("another communicator than the one it names", write_fine(true),
        slots[0].batch.comm_ranks = 3);
    LIE("another communicator than the one it names", write_fine(true),
        slots[0].batch.comm_rank = 1);
    LIE("another communicator than the one it names", write_fine(false),
        slots[0].batch.comm_rank = 1);
    write_fine(false);
    slots[0].batch.slots = 99;
    ck_assert_str_eq(gpu_batch_read(slots, filled, &names, &batch), "a batch that is none");
}
END_TEST

START_TEST(lies_about_works)
{
    LIE("a work that is none", write_fine(false), the_work->command = 9);
    LIE("a kind of work that no worker does", write_fine(false), the_work->kind = HVI_KIND_BARRIER);
    LIE("a type that does not fit its bytes", write_fine(false), the_work->dtype = 200);
    LIE("a type that does not fit its bytes", write_fine(false), the_work->bytes += 2);
    LIE("a reduction that is none", write_fine(false), the_work->reduce_op = 77);
    LIE("a count that is not that of its bytes", write_fine(false), the_work->count++);
    LIE("a work with members too few or too many", write_fine(false), the_work->members = 0);
    LIE("a work with members too few or too many", write_fine(false), the_work->members = 65);
    LIE("a work with members too few or too many", write_fine(false), the_work->ranks = 0);
    LIE("a work with members too few or too many", write_fine(false), the_work->ranks = UINT32_MAX);
    begin(2, false);
    for (int i = 0; i < 2; i++) {
        the_work = add_work(HVI_KIND_ALLREDUCE, 1, 4);
        add_member(0, 1);
    }
    ck_assert_ptr_null(read_batch());
    the_work->prescale = 2;
    EXPECT_LIE("works of two kinds");
}
END_TEST

START_TEST(lies_about_members)
{
    LIE("a member that is none", write_fine(false), the_member->command = HVI_DEVICE_WORK);
    LIE("a member at a place that cannot be", write_fine(false), the_member->place = 0);
    LIE("a member at a place that cannot be", write_fine(false), the_member->place = 2);
    LIE("an import that is not there", write_fine(false), the_member->in_import = IMPORTS + 1);
    LIE("an import that is not there", write_fine(false), the_member->out_import = UINT32_MAX);
    LIE("an operand beyond its import", write_fine(false), the_member->in_offset = BASE - 396);
    LIE("an operand beyond its import", write_fine(false), the_member->in_offset = UINT64_MAX - 3);
    LIE("an operand beyond its import", write_fine(false), the_member->out_offset = BASE + 4);
    LIE("an operand beyond its import", write_fine(false), the_work->count = UINT64_C(1) << 61,
        the_work->bytes = UINT64_C(1) << 63);
    LIE("an operand that is not aligned", write_fine(false), the_member->in_offset = 2);
    LIE("a member without an operand", write_fine(false), the_member->in_import = 0);
    LIE("a fence that cannot be", write_fine(false), the_member->cell = HVI_FENCE_CELLS);
    LIE("a fence that cannot be", write_fine(false), the_member->turn = 0);
    LIE("a fence that cannot be", write_fine(false), the_member->turn = HVI_FENCE_TURNS);
    LIE("a fence page that is not there", write_fine(false), the_member->page = 2);
}
END_TEST

START_TEST(lies_about_roots)
{
    LIE("a root that is nowhere", write_rooted(HVI_KIND_BROADCAST, false),
        the_work->root_member = -1);
    LIE("a root that is no member", write_rooted(HVI_KIND_BROADCAST, false),
        the_work->root_member = 2);
    LIE("a root that is no member", write_rooted(HVI_KIND_BROADCAST, false),
        the_work->root_member = -2);
    LIE("a root of no rank of the communicator", write_rooted(HVI_KIND_BROADCAST, true),
        the_work->root = 1);
    LIE("a root of no rank of the communicator", write_rooted(HVI_KIND_BROADCAST, true),
        the_work->root_member = -1);
    LIE("a root of no rank of the communicator", write_rooted(HVI_KIND_BROADCAST, true),
        the_work->root = 2);
    LIE("a member without an operand", write_rooted(HVI_KIND_BROADCAST, true),
        the_member->out_import = 0);
    LIE("a send with outputs too few or too many", write_rooted(HVI_KIND_SEND, false),
        the_member->out_import = 2);
    LIE("a send with outputs too few or too many", write_rooted(HVI_KIND_SEND, true),
        the_member->out_import = 2);
}
END_TEST

START_TEST(lies_about_sizes)
{
    LIE("sizes that are not those of the whole", write_sized(HVI_KIND_ALLGATHER, false, 40),
        slots[4].sizes.values[0] = 44);
    LIE("sizes that are not those of the whole", write_sized(HVI_KIND_REDUCESCATTER, false, 40),
        slots[4].sizes.values[1] = 364);
    LIE("sizes that are not those of the whole", write_sized(HVI_KIND_ALLGATHER, false, 40),
        slots[4].sizes.values[0] = 42, slots[4].sizes.values[1] = 358);
    LIE("sizes that are not those of the whole", write_sized(HVI_KIND_ALLGATHER, false, 40),
        slots[4].sizes.values[0] = UINT64_MAX - 3, slots[4].sizes.values[1] = 404);
    LIE("a work with sizes too few or too many", write_sized(HVI_KIND_ALLTOALL, false, 40),
        the_work->sizes = 2);
    LIE("a work with sizes too few or too many", write_sized(HVI_KIND_ALLTOALL, false, 40),
        the_work->ranks = 1 << 16);
    LIE("a work with sizes too few or too many", write_fine(false), the_work->sizes = 1);
    LIE("an operand beyond its import", write_sized(HVI_KIND_ALLTOALL, false, 40),
        slots[4].sizes.values[3] = BASE);
    LIE("sizes that cannot be", write_sized(HVI_KIND_ALLTOALL, false, 40),
        slots[4].sizes.values[0] = slots[4].sizes.values[1] = UINT64_C(1) << 63);
}
END_TEST

START_TEST(lies_about_homes)
{
    LIE("a member's home that cannot be", write_sized(HVI_KIND_ALLGATHER, true, 40),
        slots[4].sizes.values[2] = 1);
    LIE("a member's home that cannot be", write_sized(HVI_KIND_ALLGATHER, true, 40),
        slots[4].sizes.values[3] = 2);
    LIE("a member's home that cannot be", write_sized(HVI_KIND_ALLTOALL, true, 40),
        slots[4].sizes.values[5] = HVI_DEVICE_NOWHERE);
}
END_TEST

START_TEST(what_is_not_touched_needs_no_memory)
{
    write_fine(false);
    the_work->bytes = the_work->count = 0;
    the_member->in_import = 99;
    plan();
    ck_assert_uint_eq(step_count, 0);
    ck_assert_uint_eq(batch.members[1].fence, PAGE + 2 * sizeof(struct hvi_fence));
    ck_assert_uint_eq(batch.members[1].turn, 7);
}
END_TEST

/* ---- one GPU ---- */

START_TEST(an_allreduce_is_one_kernel)
{
    write_fine(false);
    the_work->reduce_op = HVI_REDUCE_AVERAGE;
    the_work->divisor = 2;
    the_work->prescale = 3;
    the_work->postscale = 4;
    plan();
    EXPECT_STEPS(GPU_STEP_REDUCE);
    const struct hvd_reduce_args *args = &steps[0].reduce;
    ck_assert_uint_eq(args->count, 100);
    ck_assert_uint_eq(args->ins, 2);
    ck_assert_uint_eq(args->in[1], 2 * BASE);
    ck_assert_uint_eq(args->outs, 2);
    ck_assert_uint_eq(args->out[0], BASE + BASE / 2);
    ck_assert_uint_eq(args->divisor, 2);
    ck_assert_double_eq(args->prescale, 3);
    ck_assert_double_eq(args->postscale, 4);
    ck_assert_uint_eq(args->guard.skip, PAGE + sizeof(struct hvi_fence) + 16); /* of cell 1 */
    ck_assert_uint_eq(args->guard.turn, 7);
}
END_TEST

START_TEST(a_broadcast_goes_to_all_outputs_but_its_own)
{
    write_rooted(HVI_KIND_BROADCAST, false);
    slots[2].member.out_offset = 0; /* in place */
    plan();
    EXPECT_STEPS(GPU_STEP_SPREAD);
    ck_assert_uint_eq(steps[0].reduce.in[0], BASE);
    ck_assert_uint_eq(steps[0].reduce.outs, 1);
    ck_assert_uint_eq(steps[0].reduce.out[0], 2 * BASE + BASE / 2);
}
END_TEST

START_TEST(more_pieces_than_a_kernel_moves_are_several)
{
    uint64_t sizes[12 * 12];

    begin(1, false);
    the_work = add_work(HVI_KIND_ALLTOALL, 12, 1);
    for (uint32_t i = 0; i < 12; i++)
        add_member(i, i % IMPORTS + 1);
    for (uint32_t i = 0; i < 12 * 12; i++)
        sizes[i] = 4;
    add_numbers(the_work, sizes, 12 * 12);
    plan();
    EXPECT_STEPS(GPU_STEP_MOVE, GPU_STEP_MOVE);
    ck_assert_uint_eq(steps[0].move.pieces, HVD_KERNEL_MOVES);
    ck_assert_uint_eq(steps[1].move.pieces, 144 - HVD_KERNEL_MOVES);
}
END_TEST

/* ---- several ---- */

/* One member on this GPU of three of the set, and a work of so many elements. */
static void write_one(uint64_t count)
{
    begin(1, true);
    the_work = add_work(HVI_KIND_ALLREDUCE, 1, count);
    the_work->ranks = 3;
    add_member(0, 1);
}

START_TEST(one_rank_with_one_work_needs_no_kernel)
{
    write_one(100);
    plan();
    EXPECT_STEPS(GPU_STEP_ALL_REDUCE);
    ck_assert_uint_eq(steps[0].nccl.in, BASE);
    ck_assert_uint_eq(steps[0].nccl.out, BASE + BASE / 2);
    ck_assert_uint_eq(steps[0].nccl.count, 100);
    ck_assert_int_eq(steps[0].nccl.type, GPU_NCCL_FLOAT32);
}
END_TEST

START_TEST(an_average_is_divided_in_its_output)
{
    write_one(100);
    the_work->reduce_op = HVI_REDUCE_AVERAGE;
    the_work->divisor = 3;
    plan();
    EXPECT_STEPS(GPU_STEP_ALL_REDUCE, GPU_STEP_REDUCE);
    ck_assert_int_eq(steps[0].nccl.op, GPU_NCCL_SUM);
    ck_assert_uint_eq(steps[1].reduce.in[0], steps[1].reduce.out[0]);
    ck_assert_uint_eq(steps[1].reduce.divisor, 3);
}
END_TEST

START_TEST(small_works_are_packed_and_large_ones_are_not)
{
    begin(3, true);
    for (int i = 0; i < 3; i++) {
        add_work(HVI_KIND_ALLREDUCE, 1, i == 1 ? GPU_PLAN_SMALL / 4 : 5)->ranks = 3;
        add_member(0, (uint32_t)i + 1);
    }
    plan();
    EXPECT_STEPS(GPU_STEP_PACK, GPU_STEP_ALL_REDUCE, GPU_STEP_UNPACK, GPU_STEP_ALL_REDUCE);
    ck_assert_uint_eq(steps[0].pack.pieces, 2);
    ck_assert_uint_eq(steps[0].pack.base, STAGING);
    ck_assert_uint_eq(steps[0].pack.piece[1].piece, 3 * BASE);
    ck_assert_uint_eq(steps[0].pack.piece[1].at, 32); /* 20 bytes, aligned to 16 */
    ck_assert_uint_eq(steps[1].nccl.count, (32 + 20) / 4);
    ck_assert_uint_eq(steps[2].pack.piece[1].piece, 3 * BASE + BASE / 2);
    ck_assert_uint_eq(steps[3].nccl.in, 2 * BASE);
    ck_assert_uint_eq(steps[0].pack.guard.skip, 0); /* it writes no output */
    ck_assert_uint_eq(steps[2].pack.guard.turn, 7);
}
END_TEST

START_TEST(a_large_work_goes_in_chunks_of_the_staging_memory)
{
    staging_bytes = 128 << 10;
    write_fine(true);
    the_work->ranks = 3;
    the_work->bytes = BASE / 2;
    the_work->count = BASE / 8;
    plan();
    ck_assert_uint_eq(step_count, 4 * 3);
    for (uint32_t i = 0; i < 4; i++) {
        ck_assert_int_eq(steps[3 * i].kind, GPU_STEP_REDUCE);
        ck_assert_uint_eq(steps[3 * i].reduce.in[1], 2 * BASE + i * staging_bytes);
        ck_assert_uint_eq(steps[3 * i].reduce.out[0], STAGING);
        ck_assert_int_eq(steps[3 * i + 1].kind, GPU_STEP_ALL_REDUCE);
        ck_assert_uint_eq(steps[3 * i + 1].nccl.count, staging_bytes / 4);
        ck_assert_int_eq(steps[3 * i + 2].kind, GPU_STEP_REDUCE);
        ck_assert_uint_eq(steps[3 * i + 2].reduce.out[1], 2 * BASE + BASE / 2 + i * staging_bytes);
    }
}
END_TEST

START_TEST(what_nccl_lacks_is_gathered_and_reduced_in_the_order_of_ranks)
{
    comm_ranks = 130; /* more than a kernel has inputs */
    write_one(100);
    the_work->dtype = HVI_DTYPE_INT16;
    the_work->bytes = 200;
    the_work->reduce_op = HVI_REDUCE_AVERAGE;
    the_work->divisor = 3;
    plan();
    EXPECT_STEPS(GPU_STEP_ALL_GATHER, GPU_STEP_REDUCE, GPU_STEP_REDUCE, GPU_STEP_REDUCE);
    ck_assert_uint_eq(steps[0].nccl.in, BASE);
    ck_assert_uint_eq(steps[0].nccl.out, STAGING + 256);
    ck_assert_uint_eq(steps[0].nccl.count, 200);
    ck_assert_uint_eq(steps[1].reduce.ins, 64);
    ck_assert_uint_eq(steps[1].reduce.divisor, 0);
    ck_assert_uint_eq(steps[1].reduce.out[0], STAGING + 256);
    ck_assert_uint_eq(steps[2].reduce.in[0], STAGING + 256);
    ck_assert_uint_eq(steps[2].reduce.in[1], STAGING + 256 + UINT64_C(64) * 200);
    ck_assert_uint_eq(steps[3].reduce.ins, 1 + 130 - 127);
    ck_assert_uint_eq(steps[3].reduce.divisor, 3);
    ck_assert_uint_eq(steps[3].reduce.out[0], BASE + BASE / 2);
}
END_TEST

/* ---- adasum, done by the host build of the kernels in real memory ---- */

#define ADASUM_COUNT (HVD_ADASUM_CHUNK + 77u)

static double memory[IMPORTS + 1][2][ADASUM_COUNT]; /* inputs and outputs */
static double staging[16 * ADASUM_COUNT];

/* Kernels look at them. */
static bool find_cells(void *user, uint32_t number, uint64_t *address_p,
                       const struct hvi_fence_page **page_p)
{
    static struct hvi_fence cells[IMPORTS + 1];

    (void)user;
    *page_p = NULL;
    *address_p = (uintptr_t)cells;
    return number == 1;
}

static bool find_memory(void *user, uint32_t number, uint64_t *address_p, uint64_t *bytes_p)
{
    (void)user;
    *address_p = (uintptr_t)memory[number];
    *bytes_p = sizeof(memory[number]);
    return number <= IMPORTS;
}

static bool run_step(void *user, const struct gpu_step *step)
{
    static const char *const kernels[] = {
        "hvd_reduce", "hvd_spread",      "hvd_pack",           "hvd_unpack",
        "hvd_move",   "hvd_adasum_dots", "hvd_adasum_factors", "hvd_adasum_blend"};
    const struct hvd_kernel_row *row = hvd_kernel_rows;

    (void)user;
    step_count++;
    while (strcmp(row->name, kernels[step->kind]) != 0)
        row++;
    row->run(&step->reduce, 3, 64);
    return true;
}

/* The operands of so many members lie in `memory`, in place or not. Returns what the plan says. */
static int run_adasum(uint16_t kind, uint16_t members, uint32_t dtype, bool in_place)
{
    const struct gpu_batch_names real = {NULL, find_memory, find_cells, find_comm};
    const struct gpu_plan_means means = {(uintptr_t)staging, staging_bytes, NULL, run_step};
    const uint32_t element = hvi_dtype_bytes(dtype);
    const char *text;

    begin(1, false);
    the_work = add_work(kind, members, ADASUM_COUNT);
    the_work->dtype = (uint8_t)dtype;
    the_work->bytes = ADASUM_COUNT * (uint64_t)element;
    the_work->reduce_op = HVI_REDUCE_ADASUM;
    the_work->postscale = 2;
    for (uint32_t i = 0; i < members; i++)
        add_member(i, i + 1)->out_offset = in_place ? 0 : sizeof(memory[0][0]);
    if (kind == HVI_KIND_REDUCESCATTER) {
        const uint64_t sizes[] = {8 * (uint64_t)element, the_work->bytes - 8 * (uint64_t)element,
                                  0};
        add_numbers(the_work, sizes, 3);
    }
    slots[0].batch.slots = filled;
    const char *lie = gpu_batch_read(slots, filled, &real, &batch);
    ck_assert_msg(lie == NULL, "%s", lie);
    step_count = 0;
    return gpu_plan_make(&batch, &means, &text);
}

/* Fills the inputs in; `expected_p` becomes what an adasum of them is, twice. */
static void fill_adasum(uint16_t members, uint32_t dtype, double *expected_p)
{
    static double vectors[8 * ADASUM_COUNT];
    uint64_t random = members + dtype;

    memset(memory, 0, sizeof(memory));
    for (uint32_t i = 0; i < members; i++) {
        for (uint32_t k = 0; k < ADASUM_COUNT; k++) {
            hvt_reference_put(dtype, memory[i + 1][0], k,
                              (double)(int64_t)hvt_random(&random) / 9223372036854775808.0);
            vectors[i * ADASUM_COUNT + k] = hvt_reference_get(dtype, memory[i + 1][0], k);
        }
    }
    hvt_reference_adasum(vectors, members, ADASUM_COUNT);
    for (uint32_t k = 0; k < ADASUM_COUNT; k++)
        expected_p[k] = 2 * vectors[k];
}

static void expect_adasum(uint32_t dtype, const void *out, const double *expected, uint32_t count)
{
    const double error = dtype == HVI_DTYPE_FLOAT32   ? 1e-5
                         : dtype == HVI_DTYPE_FLOAT64 ? 1e-12
                                                      : 0.01;

    for (uint32_t k = 0; k < count; k++) {
        const double got = hvt_reference_get(dtype, out, k);
        if (fabs(got - expected[k]) > error * (1 + fabs(expected[k])))
            ck_abort_msg("element %u: %g instead of %g", k, got, expected[k]);
    }
}

static void check_adasum(uint16_t members, uint32_t dtype, bool in_place)
{
    static double expected[ADASUM_COUNT];

    staging_bytes = sizeof(staging);
    fill_adasum(members, dtype, expected);
    ck_assert_int_eq(run_adasum(HVI_KIND_ALLREDUCE, members, dtype, in_place), HVI_OK);
    for (uint32_t i = 0; i < members; i++)
        expect_adasum(dtype, memory[i + 1][in_place ? 0 : 1], expected, ADASUM_COUNT);
}

START_TEST(an_adasum_follows_its_tree)
{
    for (uint16_t members = 2; members <= 7; members++) {
        check_adasum(members, HVI_DTYPE_FLOAT32, members % 2 == 0);
        check_adasum(members, HVI_DTYPE_FLOAT16, members % 2 == 1);
    }
    check_adasum(5, HVI_DTYPE_FLOAT64, true);
    check_adasum(1, HVI_DTYPE_FLOAT32, false);
}
END_TEST

START_TEST(an_adasum_is_scattered)
{
    static double expected[ADASUM_COUNT];

    staging_bytes = sizeof(staging);
    for (uint32_t dtype = HVI_DTYPE_FLOAT16; dtype <= HVI_DTYPE_FLOAT32; dtype++) {
        fill_adasum(3, dtype, expected);
        ck_assert_int_eq(run_adasum(HVI_KIND_REDUCESCATTER, 3, dtype, false), HVI_OK);
        expect_adasum(dtype, memory[1][1], expected, 8);
        expect_adasum(dtype, memory[2][1], expected + 8, ADASUM_COUNT - 8);
    }
}
END_TEST

START_TEST(an_adasum_without_room_is_refused_before_a_step)
{
    staging_bytes = 2048;
    ck_assert_int_eq(run_adasum(HVI_KIND_ALLREDUCE, 4, HVI_DTYPE_FLOAT16, false), HVI_ERR_LIMIT);
    ck_assert_uint_eq(step_count, 0);
    ck_assert_int_eq(run_adasum(HVI_KIND_ALLREDUCE, 4, HVI_DTYPE_FLOAT32, false), HVI_OK);
}
END_TEST

/* ---- workers agree ---- */

static bool is_nccl(const struct gpu_step *step)
{
    return step->kind >= GPU_STEP_ALL_REDUCE;
}

/* The collectives of a plan, without addresses. */
static uint32_t collectives(struct gpu_step *list)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < step_count; i++) {
        if (!is_nccl(&steps[i]))
            continue;
        list[count] = steps[i];
        list[count].nccl.in = list[count].nccl.out = 0;
        count++;
    }
    return count;
}

START_TEST(workers_call_nccl_alike_whatever_members_they_have)
{
    static struct gpu_step first[STEPS], second[STEPS];

    staging_bytes = 96 << 10;
    for (unsigned round = 0; round < 200; round++) {
        const uint16_t kind = round % 3 == 0 ? HVI_KIND_REDUCESCATTER : HVI_KIND_ALLREDUCE;
        const uint8_t dtype = round % 5 == 0 ? HVI_DTYPE_UINT16 : HVI_DTYPE_FLOAT16;
        uint32_t counts[2];
        for (uint32_t rank = 0; rank < 2; rank++) {
            comm_rank = rank;
            srand(round);
            begin(1 + round % 7, true);
            for (uint32_t i = 0; i < 1 + round % 7; i++) {
                const uint16_t members = rank == 0 ? 1 : 3;
                const uint64_t half = (uint64_t)(rand() % (rand() % 4 == 0 ? 60000 : 300)) * 2;
                const uint64_t sizes[] = {half, 0, half, 2 * half};
                struct hvi_device_work *work = add_work(kind, members, 0);
                work->dtype = dtype;
                work->bytes = 4 * half;
                work->count = 2 * half;
                work->ranks = 4;
                for (uint16_t m = 0; m < members; m++)
                    add_member(rank == 0 ? 2 : (uint32_t)m + (m == 2), m + 1u);
                if (kind == HVI_KIND_REDUCESCATTER)
                    add_numbers(work, sizes, 4);
            }
            plan();
            counts[rank] = collectives(rank == 0 ? first : second);
        }
        ck_assert_uint_eq(counts[0], counts[1]);
        for (uint32_t i = 0; i < counts[0]; i++)
            ck_assert(
                first[i].kind == second[i].kind && first[i].nccl.count == second[i].nccl.count &&
                first[i].nccl.type == second[i].nccl.type && first[i].nccl.op == second[i].nccl.op);
    }
}
END_TEST

/* Letters between two workers, in their order: what one sends to the other, the other receives. */
static uint32_t letters(enum gpu_step_kind kind, uint32_t peer, uint64_t *bytes_p)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < step_count; i++) {
        if (steps[i].kind == kind && steps[i].nccl.peer == (int)peer)
            bytes_p[count++] = steps[i].nccl.count;
    }
    return count;
}

/* Six places on three workers; place 4 has joined. */
static void write_exchange(uint16_t kind, const uint64_t *sizes)
{
    static const uint64_t homes[] = {2, 0, 1, 0, HVI_DEVICE_NOWHERE, 2};
    const uint32_t count = kind == HVI_KIND_ALLTOALL ? 36 : 6;
    uint64_t numbers[42];
    uint16_t members = 0;

    for (uint32_t place = 0; place < 6; place++)
        members = (uint16_t)(members + (homes[place] == comm_rank));
    begin(1, true);
    the_work = add_work(kind, members, 0);
    the_work->ranks = 6;
    the_work->bytes = 0;
    for (uint32_t i = 0; i < count; i++)
        the_work->bytes += sizes[i];
    for (uint32_t place = 0; place < 6; place++) {
        if (homes[place] == comm_rank)
            add_member(place, place + 1);
    }
    memcpy(numbers, sizes, count * sizeof(uint64_t));
    memcpy(numbers + count, homes, sizeof(homes));
    add_numbers(the_work, numbers, count + 6);
    plan();
}

START_TEST(what_a_worker_sends_the_other_receives)
{
    uint64_t sent[3][3][36], received[3][3][36], sizes[36];
    uint32_t sent_count[3][3], received_count[3][3];

    comm_ranks = 3;
    for (int round = 0; round < 2; round++) {
        for (uint32_t i = 0; i < 36; i++)
            sizes[i] = i / 6 == 4 || i % 6 == 4 ? 0 : (i * 7 % 5) * 4;
        for (uint32_t self = 0; self < 3; self++) {
            comm_rank = self;
            write_exchange(round == 0 ? HVI_KIND_ALLTOALL : HVI_KIND_ALLGATHER, sizes);
            for (uint32_t peer = 0; peer < 3; peer++) {
                sent_count[self][peer] = letters(GPU_STEP_SEND, peer, sent[self][peer]);
                received_count[self][peer] = letters(GPU_STEP_RECEIVE, peer, received[self][peer]);
            }
        }
        for (uint32_t from = 0; from < 3; from++) {
            for (uint32_t to = 0; to < 3; to++) {
                ck_assert_uint_eq(sent_count[from][to], received_count[to][from]);
                ck_assert(from != to || sent_count[from][to] == 0);
                ck_assert_mem_eq(sent[from][to], received[to][from],
                                 sent_count[from][to] * sizeof(uint64_t));
            }
        }
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("gpu_plan");
    TCase *tcase = tcase_create("plan");

    tcase_add_checked_fixture(tcase, setup, NULL);
    tcase_add_test(tcase, lies_about_the_batch);
    tcase_add_test(tcase, lies_about_works);
    tcase_add_test(tcase, lies_about_members);
    tcase_add_test(tcase, lies_about_roots);
    tcase_add_test(tcase, lies_about_sizes);
    tcase_add_test(tcase, lies_about_homes);
    tcase_add_test(tcase, what_is_not_touched_needs_no_memory);
    tcase_add_test(tcase, an_allreduce_is_one_kernel);
    tcase_add_test(tcase, a_broadcast_goes_to_all_outputs_but_its_own);
    tcase_add_test(tcase, more_pieces_than_a_kernel_moves_are_several);
    tcase_add_test(tcase, one_rank_with_one_work_needs_no_kernel);
    tcase_add_test(tcase, an_average_is_divided_in_its_output);
    tcase_add_test(tcase, small_works_are_packed_and_large_ones_are_not);
    tcase_add_test(tcase, a_large_work_goes_in_chunks_of_the_staging_memory);
    tcase_add_test(tcase, what_nccl_lacks_is_gathered_and_reduced_in_the_order_of_ranks);
    tcase_add_test(tcase, an_adasum_follows_its_tree);
    tcase_add_test(tcase, an_adasum_is_scattered);
    tcase_add_test(tcase, an_adasum_without_room_is_refused_before_a_step);
    tcase_add_test(tcase, workers_call_nccl_alike_whatever_members_they_have);
    tcase_add_test(tcase, what_a_worker_sends_the_other_receives);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
