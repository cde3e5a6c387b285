/* SPDX-License-Identifier: Apache-2.0
 * Every field of a submission, and every lie about it. Each row of lies.def changes one honest
 * submission in one place and says what the engine must make of it. */
#include "daemon/engine/sessions/intake.h"

#include "base/status.h"
#include "base/types.h"
#include "tests/unit/hvt_main.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define SIZE 4
#define RANK 1

static struct engine_regions regions;
static struct engine_region big = {.id = 7, .map = {.bytes = 1 << 20, .fd = -1}};
static struct engine_intake_view view;

/* Nothing is ever read through these addresses. */
static void setup(void)
{
    engine_regions_init(&regions, (void *)0x100000);
    big.map.base = (void *)0x200000;
    regions.buckets[7] = &big;
    view = (struct engine_intake_view){.regions = &regions,
                                       .next_seq = 5,
                                       .in_flight = 3,
                                       .rank = RANK,
                                       .size = SIZE,
                                       .set_size = SIZE,
                                       .tensor_known = true};
}

static struct hvi_submission honest(uint16_t kind)
{
    struct hvi_submission op = {
        .seq = 5,
        .cookie = 99,
        .kind = kind,
        .reduce_op = HVI_REDUCE_SUM,
        .dtype = HVI_DTYPE_FLOAT32,
        .ndim = 2,
        .root = -1,
        .in_region = 7,
        .out_region = 7,
        .in_offset = 4096,
        .out_offset = 8192,
        .count = 12,
        .out_capacity = 48,
        .aux_region = HVI_REGION_NONE,
        .prescale = 1.0,
        .postscale = 1.0,
        .dims = {3, 4},
    };
    if (kind == HVI_KIND_BROADCAST || kind == HVI_KIND_SEND || kind == HVI_KIND_RECV)
        op.root = 2;
    if (kind == HVI_KIND_SEND || kind == HVI_KIND_RECV || kind == HVI_KIND_SET_OPEN) {
        op.flags = HVI_SUBMIT_ANON;
        op.anon_seq = INT32_MAX;
    }
    if (kind == HVI_KIND_SEND) {
        op.out_region = HVI_REGION_NONE;
        op.out_capacity = 0;
    }
    if (kind == HVI_KIND_RECV)
        op.in_region = HVI_REGION_NONE;
    return op;
}

static int validate(const struct hvi_submission *op, char *text_p)
{
    struct engine_operands operands;
    char text[256];

    memset(&operands, 0xee, sizeof operands);
    snprintf(text, sizeof text, "untouched");
    int status = engine_intake_validate(op, &view, &operands, text, sizeof text);
    if (status == HVI_OK)
        ck_assert_str_eq(text, "untouched");
    else
        ck_assert_str_ne(text, "untouched");
    if (status == HVI_ERR_PROTOCOL) /* outputs are set on success only */
        ck_assert_int_eq(*(unsigned char *)&operands.in, 0xee);
    if (text_p)
        strcpy(text_p, text);
    return status;
}

START_TEST(honest_submissions_pass)
{
    static const uint16_t kinds[] = {
        HVI_KIND_ALLREDUCE,  HVI_KIND_ALLGATHER, HVI_KIND_BROADCAST, HVI_KIND_JOIN,
        HVI_KIND_ALLTOALL,   HVI_KIND_BARRIER,   HVI_KIND_SET_ADD,   HVI_KIND_REDUCESCATTER,
        HVI_KIND_SET_REMOVE, HVI_KIND_SET_CLOSE};

    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        struct hvi_submission op = honest(kinds[i]);
        ck_assert_int_eq(validate(&op, NULL), HVI_OK);
        op.flags = HVI_SUBMIT_ANON;
        op.tensor_id = 0xffffffff;
        ck_assert_int_eq(validate(&op, NULL), HVI_OK);
        op.flags = HVI_SUBMIT_NAMED;
        op.tensor_id = HVI_TENSOR_IDS - 1;
        op.name_bytes = HVI_NAME_MAX;
        op.name_offset = HVI_NAMES_BYTES - 1;
        ck_assert_int_eq(validate(&op, NULL), HVI_OK);
    }
}
END_TEST

START_TEST(ops_of_some_members_have_a_tag_and_one_operand)
{
    struct hvi_submission send = honest(HVI_KIND_SEND), recv = honest(HVI_KIND_RECV);
    struct hvi_submission open = honest(HVI_KIND_SET_OPEN);

    ck_assert_int_eq(validate(&send, NULL), HVI_OK);
    ck_assert_int_eq(validate(&recv, NULL), HVI_OK);
    recv.root = -1;
    ck_assert_int_eq(validate(&recv, NULL), HVI_OK);
    ck_assert_int_eq(validate(&open, NULL), HVI_OK);
}
END_TEST

START_TEST(operands_come_back_resolved)
{
    struct hvi_submission op = honest(HVI_KIND_ALLREDUCE);
    struct engine_operands operands;
    char text[64];

    op.in_region = HVI_REGION_INLINE;
    ck_assert_int_eq(engine_intake_validate(&op, &view, &operands, text, sizeof text), HVI_OK);
    ck_assert_ptr_eq(operands.in, &regions.inline_area);
    ck_assert_ptr_eq(operands.out, &big);
    ck_assert_uint_eq(operands.in_bytes, 48);
}
END_TEST

/* One change to an honest submission. */
#define LIE(name, kind_, change, sentence)                                                         \
    static void lie_##name(struct hvi_submission *op)                                              \
    {                                                                                              \
        change;                                                                                    \
    }
#include "tests/unit/engine/lies.def"
#undef LIE

static const struct lie {
    const char *name;
    uint16_t kind;
    void (*change)(struct hvi_submission *op);
    const char *text;
} lies[] = {
#define LIE(name, kind_, change, sentence) {#name, HVI_KIND_##kind_, lie_##name, sentence},
#include "tests/unit/engine/lies.def"
#undef LIE
};
#define LIES (int)(sizeof lies / sizeof lies[0])

START_TEST(a_lie_ends_the_session_with_its_reason)
{
    struct hvi_submission op = honest(lies[_i].kind);
    char text[256];

    ck_assert_int_eq(validate(&op, NULL), HVI_OK);
    lies[_i].change(&op);
    int status = validate(&op, text);
    ck_assert_msg(status == HVI_ERR_PROTOCOL, "%s: %d", lies[_i].name, status);
    ck_assert_msg(strstr(text, lies[_i].text), "%s: '%s' does not say '%s'", lies[_i].name, text,
                  lies[_i].text);
}
END_TEST

START_TEST(the_view_decides_about_cookies_tensors_and_room)
{
    struct hvi_submission op = honest(HVI_KIND_ALLREDUCE);

    view.cookie_known = true;
    ck_assert_int_eq(validate(&op, NULL), HVI_ERR_PROTOCOL);
    setup();
    view.tensor_known = false;
    ck_assert_int_eq(validate(&op, NULL), HVI_ERR_PROTOCOL);
    op.flags = HVI_SUBMIT_NAMED;
    op.name_bytes = 1;
    ck_assert_int_eq(validate(&op, NULL), HVI_OK);
    setup();
    view.in_flight = HVI_CQ_SLOTS - 1;
    ck_assert_int_eq(validate(&op, NULL), HVI_OK);
    view.in_flight = HVI_CQ_SLOTS;
    ck_assert_int_eq(validate(&op, NULL), HVI_ERR_PROTOCOL);
}
END_TEST

START_TEST(an_empty_tensor_needs_no_memory)
{
    struct hvi_submission op = honest(HVI_KIND_ALLREDUCE);

    op.dims[0] = 0;
    op.dims[1] = INT64_MAX;
    op.count = 0;
    op.out_capacity = 0;
    ck_assert_int_eq(validate(&op, NULL), HVI_OK);
    op.in_region = op.out_region = HVI_REGION_NONE;
    ck_assert_int_eq(validate(&op, NULL), HVI_OK);
}
END_TEST

START_TEST(a_scalar_is_one_element)
{
    struct hvi_submission op = honest(HVI_KIND_ALLREDUCE);

    op.ndim = 0;
    op.dims[0] = op.dims[1] = 0;
    op.count = 1;
    ck_assert_int_eq(validate(&op, NULL), HVI_OK);
}
END_TEST

START_TEST(in_place_and_side_by_side_are_fine)
{
    struct hvi_submission op = honest(HVI_KIND_ALLREDUCE);

    op.out_offset = op.in_offset;
    ck_assert_int_eq(validate(&op, NULL), HVI_OK);
    op.out_offset = op.in_offset + 48;
    ck_assert_int_eq(validate(&op, NULL), HVI_OK);
    op.out_offset = op.in_offset - 48;
    ck_assert_int_eq(validate(&op, NULL), HVI_OK);
}
END_TEST

START_TEST(the_last_byte_of_a_region_is_usable)
{
    struct hvi_submission op = honest(HVI_KIND_ALLREDUCE);

    op.in_offset = op.out_offset = (1 << 20) - 48;
    ck_assert_int_eq(validate(&op, NULL), HVI_OK);
}
END_TEST

START_TEST(only_the_root_of_a_broadcast_needs_an_input)
{
    struct hvi_submission op = honest(HVI_KIND_BROADCAST);

    op.in_region = HVI_REGION_NONE;
    ck_assert_int_eq(validate(&op, NULL), HVI_OK);
    op.root = view.rank;
    ck_assert_int_eq(validate(&op, NULL), HVI_ERR_PROTOCOL);
}
END_TEST

START_TEST(an_allgather_may_leave_its_output_open)
{
    struct hvi_submission op = honest(HVI_KIND_ALLGATHER);

    op.out_region = HVI_REGION_NONE;
    op.out_capacity = 0;
    ck_assert_int_eq(validate(&op, NULL), HVI_OK);
    op.out_capacity = 1;
    ck_assert_int_eq(validate(&op, NULL), HVI_ERR_PROTOCOL);
}
END_TEST

START_TEST(an_output_is_taken_only_when_it_was_asked_for)
{
    struct hvi_submission op = {.seq = 5, .kind = HVI_SUBMIT_OUTPUT, .cookie = 3};
    struct engine_operands operands;
    char text[128];

    op.out_region = 7;
    op.out_capacity = 100;
    ck_assert_int_eq(validate(&op, text), HVI_ERR_PROTOCOL);
    ck_assert_ptr_nonnull(strstr(text, "cookie 0x3, which was not asked for"));
    view.cookie_known = view.wants_output = true;
    ck_assert_int_eq(engine_intake_validate(&op, &view, &operands, text, sizeof text), HVI_OK);
    ck_assert_ptr_eq(operands.out, &big);
    op.out_offset = (1 << 20) - 99;
    ck_assert_int_eq(validate(&op, NULL), HVI_ERR_PROTOCOL);
    op.out_region = HVI_REGION_NONE; /* the client had no memory */
    op.out_capacity = 0;
    ck_assert_int_eq(validate(&op, NULL), HVI_OK);
}
END_TEST

START_TEST(what_a_user_can_cause_is_not_the_sessions_end)
{
    struct hvi_submission op = honest(HVI_KIND_ALLREDUCE);

    op.process_set = 3; /* said with the tensor's name, later */
    ck_assert_int_eq(validate(&op, NULL), HVI_OK);
    op = honest(HVI_KIND_ALLREDUCE); /* whether it exists for the dtype is for all ranks together */
    op.reduce_op = HVI_REDUCE_ADASUM;
    ck_assert_int_eq(validate(&op, NULL), HVI_OK);
    op.prescale = NAN;
    ck_assert_int_eq(validate(&op, NULL), HVI_OK);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine/intake");
    TCase *tcase = tcase_create("validate");

    tcase_add_checked_fixture(tcase, setup, NULL);
    tcase_add_test(tcase, honest_submissions_pass);
    tcase_add_test(tcase, ops_of_some_members_have_a_tag_and_one_operand);
    tcase_add_test(tcase, operands_come_back_resolved);
    tcase_add_loop_test(tcase, a_lie_ends_the_session_with_its_reason, 0, LIES);
    tcase_add_test(tcase, the_view_decides_about_cookies_tensors_and_room);
    tcase_add_test(tcase, an_empty_tensor_needs_no_memory);
    tcase_add_test(tcase, a_scalar_is_one_element);
    tcase_add_test(tcase, in_place_and_side_by_side_are_fine);
    tcase_add_test(tcase, the_last_byte_of_a_region_is_usable);
    tcase_add_test(tcase, only_the_root_of_a_broadcast_needs_an_input);
    tcase_add_test(tcase, an_allgather_may_leave_its_output_open);
    tcase_add_test(tcase, an_output_is_taken_only_when_it_was_asked_for);
    tcase_add_test(tcase, what_a_user_can_cause_is_not_the_sessions_end);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
