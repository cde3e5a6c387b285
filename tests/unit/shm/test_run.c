/* SPDX-License-Identifier: Apache-2.0
 * One executor for small and medium ops: the same bits for every holder, and what is missing is said. */
#include "shm/run.h"

#include "base/pages.h"
#include "base/status.h"
#include "tests/unit/hvt_main.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define RANKS     4u
#define EVERYBODY 0xfu
#define SLOT      7u
#define CHUNK     UINT64_C(16384)
#define BYTES     (5 * CHUNK + 8)
#define FLOATS    (BYTES / sizeof(float))

static struct hvi_slots map;
static struct hvi_region regions[RANKS];
static const uint8_t all[RANKS] = {0, 1, 2, 3};
static uint32_t asked;

static void set_up(void)
{
    ck_assert_int_eq(hvi_slots_create(RANKS, &map), HVI_OK);
    for (uint32_t i = 0; i < RANKS; i++)
        ck_assert_int_eq(hvi_region_create("hvt", 2 * BYTES + 8192, &regions[i]), HVI_OK);
    asked = 0;
    hvi_pages_open();
}

static void tear_down(void)
{
    hvi_pages_close();
    for (uint32_t i = 0; i < RANKS; i++)
        hvi_region_fini(&regions[i]);
    hvi_slots_fini(&map);
}

static struct hvi_agreement says(uint32_t kind, uint64_t bytes)
{
    return (struct hvi_agreement){.kind = kind,
                                  .dtype = HVI_DTYPE_FLOAT32,
                                  .reduce_op = HVI_REDUCE_SUM,
                                  .bytes = bytes,
                                  .prescale = 2,
                                  .postscale = 0.5};
}

/* ---- small ---- */

static const uint64_t small_sizes[] = {sizeof(float), HVI_SLOT_SHORT, HVI_SLOT_SHORT + 4,
                                       HVI_SLOT_PAYLOAD};

static void bring(uint64_t bytes)
{
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        float *at = (float *)(void *)hvi_slot_payload(&map, SLOT, rank, bytes);
        for (uint64_t i = 0; i < bytes / sizeof(float); i++)
            at[i] = (float)(rank + 1) * (float)i;
    }
}

START_TEST(a_small_op_is_one_chunk_of_the_payloads)
{
    const uint64_t bytes = small_sizes[_i];
    const struct hvi_agreement said = says(HVI_KIND_ALLREDUCE, bytes);
    const float *result = (float *)(void *)hvi_slot_result(&map, SLOT, bytes);

    bring(bytes);
    hvi_run_small(&map, hvi_kernels_best(), &said, SLOT, all, RANKS, 0);
    for (uint64_t i = 0; i < bytes / sizeof(float); i++)
        ck_assert_float_eq(result[i], 10 * (float)i);
}
END_TEST

START_TEST(a_small_op_of_some_ranks_is_of_those_alone)
{
    static const uint8_t some[] = {3, 1};
    const struct hvi_agreement said = says(HVI_KIND_ALLREDUCE, 8);
    const float *result = (float *)(void *)hvi_slot_result(&map, SLOT, 8);

    bring(8);
    hvi_run_small(&map, hvi_kernels_best(), &said, SLOT, some, 2, 0);
    ck_assert_float_eq(result[1], 6);
}
END_TEST

START_TEST(a_broadcast_is_the_roots_payload_bit_by_bit)
{
    struct hvi_agreement said = says(HVI_KIND_BROADCAST, 100);

    said.root = 70; /* a rank; what counts is its seat */
    said.dtype = HVI_DTYPE_BOOL;
    memset(hvi_slot_payload(&map, SLOT, 2, 100), 0xa5, 100);
    hvi_run_small(&map, hvi_kernels_best(), &said, SLOT, all, RANKS, 2);
    ck_assert_mem_eq(hvi_slot_result(&map, SLOT, 100), hvi_slot_payload(&map, SLOT, 2, 100), 100);
}
END_TEST

START_TEST(a_barrier_moves_nothing)
{
    const struct hvi_agreement said = says(HVI_KIND_BARRIER, 0);

    hvi_run_small(&map, hvi_kernels_best(), &said, SLOT, all, RANKS, 0);
    ck_assert_uint_eq(hvi_slot_result(&map, SLOT, 0)[0], 0);
}
END_TEST

/* ---- medium ---- */

static const struct hvi_region *find(void *user, uint32_t member, uint32_t region)
{
    (void)user;
    asked++;
    return region == 1 ? &regions[member] : NULL;
}

/* Where rank `rank` says that its operands are. */
static void tell(uint32_t rank, const struct hvi_slot_operands *at)
{
    memcpy(hvi_slot_part(&map, SLOT, rank)->payload, at, sizeof *at);
}

static float *input(uint32_t rank)
{
    return (float *)regions[rank].base;
}

static const float *output(uint32_t rank)
{
    return (float *)(void *)((char *)regions[rank].base + BYTES);
}

static struct hvi_agreement said;

/* Every rank has come, and the op runs. */
static void start(struct hvi_run *run)
{
    const struct hvi_slot_operands at = {.in_region = 1, .out_region = 1, .out_offset = BYTES};
    uint32_t turn = hvi_slot_open(&map, SLOT, true);

    said = says(HVI_KIND_ALLREDUCE, BYTES);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        tell(rank, &at);
        for (uint64_t i = 0; i < FLOATS; i++)
            input(rank)[i] = (float)(rank + 1);
        hvi_slot_arrive(&map, SLOT, turn, rank, EVERYBODY);
    }
    ck_assert(hvi_slot_start(&map, SLOT, turn, BYTES, EVERYBODY));
    hvi_run_init(run, &map, &said, SLOT, turn, all, RANKS);
}

START_TEST(chunks_are_done_by_whom_they_are_left_for_and_the_last_one_publishes)
{
    struct hvi_run run;
    bool lacking = true;

    start(&run);
    ck_assert_int_eq(hvi_run_locate(&run, &said, find, NULL), -1);
    ck_assert_uint_eq(hvi_run_chunks(&run, hvi_kernels_best(), 1, 2, &lacking), 2);
    ck_assert_int_eq(hvi_slot_look(&map, SLOT, run.turn), HVI_SLOT_RUNS);
    ck_assert_uint_eq(
        hvi_run_chunks(&run, hvi_kernels_best(), HVI_SLOT_ENGINE, UINT32_MAX, &lacking), 4);
    ck_assert(!lacking);
    ck_assert_int_eq(hvi_slot_look(&map, SLOT, run.turn), HVI_SLOT_DONE);
    ck_assert_uint_eq(hvi_run_chunks(&run, hvi_kernels_best(), 2, UINT32_MAX, &lacking), 0);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        for (uint64_t i = 0; i < FLOATS; i++)
            ck_assert_float_eq(output(rank)[i], 10);
    }
}
END_TEST

START_TEST(operands_that_are_known_are_not_asked_for)
{
    struct hvi_run run;

    start(&run);
    run.in[2] = run.out[2] = regions[2].base;
    ck_assert_int_eq(hvi_run_locate(&run, &said, find, NULL), -1);
    ck_assert_uint_eq(asked, 2 * (RANKS - 1));
    ck_assert_ptr_eq(run.out[2], regions[2].base);
}
END_TEST

static const struct hvi_slot_operands nonsense[] = {
    {.in_region = 2, .out_region = 1},
    {.in_region = 1, .out_region = 2},
    {.in_region = 1, .out_region = 1, .in_offset = 1},
    {.in_region = 1, .out_region = 1, .out_offset = BYTES + 16384},
    {.in_region = 1, .out_region = 1, .out_offset = UINT64_MAX - 3},
};

START_TEST(an_operand_that_lies_nowhere_is_its_members)
{
    struct hvi_run run;

    start(&run);
    tell(1, &nonsense[_i]);
    ck_assert_int_eq(hvi_run_locate(&run, &said, find, NULL), 1);
    ck_assert_ptr_null(run.in[1]);
    ck_assert_msg(run.in[3], "those behind it are found all the same");
}
END_TEST

START_TEST(a_chunk_whose_page_is_missing_is_given_up_in_its_ranks_name)
{
    struct hvi_run run;
    bool lacking = false;
    int32_t rank;
    int fd = memfd_create("hvt-hole", MFD_CLOEXEC);

    start(&run);
    ck_assert_int_eq(hvi_run_locate(&run, &said, find, NULL), -1);
    ck_assert_int_eq(ftruncate(fd, (off_t)CHUNK), 0);
    void *hole = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ck_assert_ptr_ne(hole, MAP_FAILED);
    run.in[2] = hole;
    ck_assert_uint_eq(hvi_run_chunks(&run, hvi_kernels_best(), 1, UINT32_MAX, &lacking), 1);
    ck_assert(lacking);
    ck_assert_uint_eq(hvi_slot_holders(&map, SLOT, run.turn, &rank), 0);
    ck_assert_int_eq(rank, 2);
    ck_assert_int_eq(hvi_slot_look(&map, SLOT, run.turn), HVI_SLOT_RUNS);
    munmap(hole, BYTES);
    close(fd);
}
END_TEST

static char steps[128];

static void note_step(const char *name)
{
    strncat(steps, name, sizeof steps - strlen(steps) - 2);
    strcat(steps, " ");
}

START_TEST(a_test_is_called_between_the_steps_of_a_chunk)
{
    struct hvi_run run;
    bool lacking;

    start(&run);
    run.step = note_step;
    ck_assert_int_eq(hvi_run_locate(&run, &said, find, NULL), -1);
    hvi_run_chunks(&run, hvi_kernels_best(), 1, 1, &lacking);
    ck_assert_str_eq(steps, "medium-claimed medium-reduced medium-finished ");
}
END_TEST

/* ---- what was agreed on ---- */

START_TEST(an_agreement_is_a_submission_and_back)
{
    struct hvi_submission copy = {.kind = HVI_KIND_ALLREDUCE,
                                  .process_set = 3,
                                  .reduce_op = HVI_REDUCE_AVERAGE,
                                  .dtype = HVI_DTYPE_FLOAT32,
                                  .ndim = 2,
                                  .root = -1,
                                  .prescale = 0.25,
                                  .postscale = 3,
                                  .dims = {4, 5},
                                  .cookie = 99};
    struct hvi_agreement agreed;
    struct hvi_submission again;

    hvi_agreement_of(&copy, 80, &agreed);
    hvi_agreement_submit(&agreed, &again);
    ck_assert(hvi_agreement_repeats(&agreed, &again));
    ck_assert_uint_eq(again.count, 20);
    ck_assert_uint_eq(again.out_capacity, 80);
    ck_assert_uint_eq(again.process_set, 3);
    ck_assert_uint_eq(again.cookie, 0);
    copy.cookie = 100;
    ck_assert(hvi_agreement_repeats(&agreed, &copy));
}
END_TEST

static void change(int what, struct hvi_submission *copy)
{
    copy->kind = what == 0 ? HVI_KIND_BROADCAST : copy->kind;
    copy->dtype = what == 1 ? HVI_DTYPE_INT32 : copy->dtype;
    copy->reduce_op = what == 2 ? HVI_REDUCE_MAX : copy->reduce_op;
    copy->root = what == 3 ? 1 : copy->root;
    copy->prescale = what == 4 ? 7 : copy->prescale;
    copy->postscale = what == 5 ? 7 : copy->postscale;
    copy->dims[0] = what == 6 ? 7 : copy->dims[0];
    copy->dims[7] = what == 7 ? 7 : copy->dims[7];
    copy->ndim = what == 8 ? 7 : copy->ndim;
    copy->reserved0 = what == 9 ? 7 : copy->reserved0;
}

START_TEST(whatever_changes_is_another_agreement)
{
    struct hvi_submission copy = {.kind = HVI_KIND_ALLREDUCE, .dtype = HVI_DTYPE_FLOAT32};
    struct hvi_agreement agreed;

    hvi_agreement_of(&copy, 4, &agreed);
    ck_assert(hvi_agreement_repeats(&agreed, &copy));
    change(_i, &copy);
    ck_assert(!hvi_agreement_repeats(&agreed, &copy));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("shm/run");
    TCase *tcase = tcase_create("run");

    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_loop_test(tcase, a_small_op_is_one_chunk_of_the_payloads, 0, 4);
    tcase_add_test(tcase, a_small_op_of_some_ranks_is_of_those_alone);
    tcase_add_test(tcase, a_broadcast_is_the_roots_payload_bit_by_bit);
    tcase_add_test(tcase, a_barrier_moves_nothing);
    tcase_add_test(tcase, chunks_are_done_by_whom_they_are_left_for_and_the_last_one_publishes);
    tcase_add_test(tcase, operands_that_are_known_are_not_asked_for);
    tcase_add_loop_test(tcase, an_operand_that_lies_nowhere_is_its_members, 0,
                        sizeof nonsense / sizeof nonsense[0]);
    tcase_add_test(tcase, a_chunk_whose_page_is_missing_is_given_up_in_its_ranks_name);
    tcase_add_test(tcase, a_test_is_called_between_the_steps_of_a_chunk);
    tcase_add_test(tcase, an_agreement_is_a_submission_and_back);
    tcase_add_loop_test(tcase, whatever_changes_is_another_agreement, 0, 10);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
