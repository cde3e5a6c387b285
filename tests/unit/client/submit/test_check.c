/* SPDX-License-Identifier: Apache-2.0
 * What a rank refuses by itself: every bad tensor of hvd.h's contract, and the sentence for it. */
#include "base/types.h"
#include "client/ops/request.h"
#include "client/ops/sets.h"
#include "client/submit/check.h"
#include "tests/unit/hvt_main.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

static float memory[64];
static struct hvd_tensor in, out;
static struct client_request request;
static struct client_set *set; /* all of four ranks, as rank 1 */

static void free_set(void)
{
    free(set);
    set = NULL;
}

static void set_up(void)
{
    static const int all[] = {0, 1, 2, 3};
    free_set();
    set = client_set_new(all, 4, 1);
    ck_assert_ptr_nonnull(set);
    in = hvd_tensor_1d(memory, HVD_FLOAT32, 8);
    out = hvd_tensor_1d(memory + 32, HVD_FLOAT32, 8);
    request = (struct client_request){.what = "hvd_allreduce",
                                      .kind = HVI_KIND_ALLREDUCE,
                                      .name = "w",
                                      .in = &in,
                                      .out = &out,
                                      .reduce_op = HVD_SUM};
}

static void expect(int status, const char *words)
{
    int rc = client_check_options(&request);
    if (rc == HVD_OK)
        rc = client_check(&request, set->rank >= 0 ? set->ranks[set->rank] : 0, set);
    ck_assert_msg(rc == status, "%s: %s", hvd_status_name(rc), hvd_last_error());
    if (words)
        ck_assert_msg(strstr(hvd_last_error(), words) != NULL, "'%s' is not in '%s'", words,
                      hvd_last_error());
}

START_TEST(a_good_call_is_measured)
{
    expect(HVD_OK, NULL);
    ck_assert_uint_eq(request.count, 8);
    ck_assert_uint_eq(request.in_bytes, 32);
    ck_assert_uint_eq(request.out_bytes, 32);
    ck_assert_uint_eq(request.element, 4);
    ck_assert_double_eq(request.prescale, 1.0);
    ck_assert_double_eq(request.postscale, 1.0);
}
END_TEST

START_TEST(the_sentence_names_function_and_tensor)
{
    request.in = NULL;
    expect(HVD_ERR_INVALID, "hvd_allreduce('w'): in is NULL");
    request.name = NULL;
    expect(HVD_ERR_INVALID, "hvd_allreduce(unnamed)");
}
END_TEST

START_TEST(missing_tensors_are_refused)
{
    request.out = NULL;
    expect(HVD_ERR_INVALID, "out is NULL");
    set_up();
    in.data = NULL;
    expect(HVD_ERR_INVALID, "data is NULL");
    set_up();
    out.data = NULL;
    expect(HVD_ERR_INVALID, "data is NULL");
}
END_TEST

START_TEST(impossible_shapes_are_refused)
{
    in.ndim = -1;
    expect(HVD_ERR_INVALID, "-1 dimensions");
    in.ndim = HVD_DIMS_MAX + 1;
    expect(HVD_ERR_INVALID, "9 dimensions");
    set_up();
    in.dims[0] = -8;
    expect(HVD_ERR_INVALID, "dimension 0 of in is -8");
    set_up();
    in.dtype = (enum hvd_dtype)55;
    expect(HVD_ERR_INVALID, "dtype 55");
}
END_TEST

START_TEST(sizes_that_overflow_are_refused)
{
    in.ndim = out.ndim = 3;
    in.dims[0] = in.dims[1] = in.dims[2] = INT64_C(1) << 31;
    expect(HVD_ERR_INVALID, "2^63");
    in.dims[0] =
        0; /* a row that does not fit any address space is no better for there being none */
    in.dims[1] = in.dims[2] = INT64_MAX;
    expect(HVD_ERR_INVALID, "2^63");
    in.ndim = 1;
    in.dims[0] = INT64_MAX / 4 + 1;
    expect(HVD_ERR_INVALID, "2^63");
}
END_TEST

START_TEST(in_and_out_must_look_the_same)
{
    out.dtype = HVD_INT32;
    expect(HVD_ERR_INVALID, "in is float32 and out is int32");
    set_up();
    out.dims[0] = 7;
    expect(HVD_ERR_INVALID, "dimension 0 of in is 8 and of out 7");
    set_up();
    out.ndim = 2;
    out.dims[1] = 1;
    expect(HVD_ERR_INVALID, "1 dimensions and out has 2");
}
END_TEST

START_TEST(overlap_is_refused_and_in_place_is_not)
{
    out.data = memory + 4;
    expect(HVD_ERR_INVALID, "overlap");
    out.data = memory + 7;
    expect(HVD_ERR_INVALID, "overlap");
    in.data = memory + 8;
    out.data = memory + 1;
    expect(HVD_ERR_INVALID, "overlap");
    out.data = memory; /* touches, does not overlap */
    expect(HVD_OK, NULL);
    out.data = in.data;
    expect(HVD_OK, NULL);
}
END_TEST

START_TEST(empty_tensors_need_no_memory)
{
    in.dims[0] = out.dims[0] = 0;
    in.data = out.data = NULL;
    expect(HVD_OK, NULL);
    ck_assert_uint_eq(request.count, 0);
    in.ndim = out.ndim = 2;
    in.dims[0] = out.dims[0] = 5;
    in.dims[1] = out.dims[1] = 0;
    expect(HVD_OK, NULL);
}
END_TEST

START_TEST(a_scalar_is_one_element)
{
    in.ndim = out.ndim = 0;
    expect(HVD_OK, NULL);
    ck_assert_uint_eq(request.count, 1);
    request.kind = HVI_KIND_ALLGATHER;
    expect(HVD_ERR_INVALID, "scalar");
}
END_TEST

START_TEST(reduce_ops_are_checked)
{
    request.reduce_op = 6;
    expect(HVD_ERR_INVALID, "reduce op 6");
    request.reduce_op = -1;
    expect(HVD_ERR_INVALID, "reduce op -1");
}
END_TEST

START_TEST(a_broadcast_reads_its_input_on_the_root_alone)
{
    request.kind = HVI_KIND_BROADCAST;
    request.root = 2;
    in.data = NULL;
    expect(HVD_OK, NULL);
    request.root = 1;
    expect(HVD_ERR_INVALID, "data is NULL");
    request.root = 4;
    expect(HVD_ERR_INVALID, "root is 4; the ranks are 0 to 3");
    request.root = -1;
    expect(HVD_ERR_INVALID, "root is -1");
}
END_TEST

START_TEST(an_allgather_may_differ_in_the_first_dimension_alone)
{
    request.kind = HVI_KIND_ALLGATHER;
    in.ndim = out.ndim = 2;
    in.dims[0] = 2;
    in.dims[1] = out.dims[1] = 3;
    out.dims[0] = 7;
    expect(HVD_OK, NULL);
    ck_assert_uint_eq(request.out_bytes, 7 * 3 * 4);
    out.dims[1] = 4;
    expect(HVD_ERR_INVALID, "dimension 1");
    request.out = NULL;
    expect(HVD_OK, NULL);
}
END_TEST

START_TEST(options_of_another_size_are_taken_as_far_as_they_go)
{
    struct hvd_op_options options;
    hvd_op_options_init(&options);
    options.prescale_factor = 2.0;
    options.postscale_factor = 3.0;
    request.options = &options;
    expect(HVD_OK, NULL);
    ck_assert_double_eq(request.prescale, 2.0);
    ck_assert_double_eq(request.postscale, 3.0);
    options.struct_size = offsetof(struct hvd_op_options, postscale_factor);
    expect(HVD_OK, NULL);
    ck_assert_double_eq(request.prescale, 2.0);
    ck_assert_double_eq(request.postscale, 1.0);
    options.struct_size = 0;
    expect(HVD_ERR_INVALID, "hvd_op_options_init");
}
END_TEST

START_TEST(bool_has_and_and_or)
{
    in.dtype = out.dtype = HVD_BOOL;
    expect(HVD_ERR_UNSUPPORTED, "sum of bool is not supported; bool has min (and) and max (or)");
    request.reduce_op = HVD_AVERAGE;
    expect(HVD_ERR_UNSUPPORTED, "average of bool");
    request.reduce_op = HVD_MAX;
    expect(HVD_OK, NULL);
    request.kind = HVI_KIND_REDUCESCATTER;
    request.reduce_op = HVD_PRODUCT;
    expect(HVD_ERR_UNSUPPORTED, "product of bool");
}
END_TEST

START_TEST(a_reducescatter_deals_out_rows_by_set_rank)
{
    static const int64_t wanted[][4] = {{0, 0, 0, 0}, {1, 0, 0, 0}, {1, 1, 1, 1}, {2, 2, 1, 1}};
    static const int64_t rows[] = {0, 1, 4, 6};
    request.kind = HVI_KIND_REDUCESCATTER;
    for (int i = 0; i < 4; i++) {
        for (set->rank = 0; set->rank < 4; set->rank++) {
            in.dims[0] = rows[i];
            out.dims[0] = wanted[i][set->rank];
            expect(HVD_OK, NULL);
            out.dims[0]--;
            expect(HVD_ERR_INVALID, wanted[i][set->rank] ? "this one gets" : "is -1");
        }
    }
}
END_TEST

START_TEST(a_reducescatter_refuses_what_it_cannot_do)
{
    request.kind = HVI_KIND_REDUCESCATTER;
    out.dims[0] = 2;
    expect(HVD_OK, NULL);
    out.dims[0] = 1;
    expect(HVD_ERR_INVALID, "out has 1 rows; of 8 rows among 4 members this one gets 2");
    request.out = NULL;
    request.reduce_op = HVD_ADASUM;
    expect(HVD_ERR_UNSUPPORTED, "reducescatter does not know adasum");
    request.reduce_op = HVD_SUM;
    in.ndim = 0;
    expect(HVD_ERR_INVALID, "in is a scalar; reducescatter deals out the first dimension");
    set_up();
    request.kind = HVI_KIND_REDUCESCATTER;
    out.dims[0] = 2;
    out.data = memory + 2; /* inside: the engine knows whether these are its rows */
    expect(HVD_OK, NULL);
    in.data = memory + 3;
    expect(HVD_ERR_INVALID, "in and out overlap; reducescatter needs memory of its own");
    set_up();
    request.kind = HVI_KIND_ALLGATHER;
    in.dims[0] = 2;
    in.data = memory + 8;
    out.data = memory + 4;
    expect(HVD_OK, NULL);
    out.data = memory + 9;
    expect(HVD_ERR_INVALID, "overlap");
}
END_TEST

START_TEST(splits_must_add_up)
{
    int64_t splits[4] = {1, 2, 3, 2};
    request.kind = HVI_KIND_ALLTOALL;
    request.splits = splits;
    expect(HVD_OK, NULL);
    ck_assert_int_eq(request.members, 4);
    splits[3] = 0;
    expect(HVD_OK, NULL);
    splits[3] = 3;
    expect(HVD_ERR_INVALID, "splits[3] is 3 and 2 are left");
    splits[1] = -1;
    expect(HVD_ERR_INVALID, "splits[1] is -1");
    splits[0] = INT64_MAX;
    splits[1] = INT64_MAX;
    expect(HVD_ERR_INVALID, "more than the 8 rows of in");
    request.splits = NULL;
    expect(HVD_OK, NULL);
    in.dims[0] = 7;
    expect(HVD_ERR_INVALID, "7 rows, which is no multiple of the 4 members; give splits");
    in.dims[0] = 0;
    expect(HVD_OK, NULL);
    in.ndim = 0;
    expect(HVD_ERR_INVALID, "in is a scalar; alltoall");
}
END_TEST

START_TEST(an_alltoall_does_not_work_in_place)
{
    request.kind = HVI_KIND_ALLTOALL;
    out.data = in.data;
    expect(HVD_ERR_INVALID, "alltoall needs memory of its own");
    set->size = 1;
    set->rank = 0;
    expect(HVD_OK, NULL);
}
END_TEST

START_TEST(old_options_without_a_process_set_mean_all_ranks)
{
    struct hvd_op_options options;
    hvd_op_options_init(&options);
    options.process_set = 3;
    request.options = &options;
    expect(HVD_OK, NULL);
    ck_assert_int_eq(request.process_set, 3);
    options.struct_size = offsetof(struct hvd_op_options, process_set);
    expect(HVD_OK, NULL);
    ck_assert_int_eq(request.process_set, 0);
}
END_TEST

/* What memory the tensors are is not this room's question (submit/on_device.c). */
START_TEST(the_stream_is_taken_from_options_that_have_one)
{
    struct hvd_op_options options;
    hvd_op_options_init(&options);
    ck_assert_ptr_null(options.stream);
    options.stream = &options;
    request.options = &options;
    expect(HVD_OK, NULL);
    ck_assert_ptr_eq(request.stream, &options);
    options.struct_size = offsetof(struct hvd_op_options, stream); /* of an older hvd.h */
    expect(HVD_OK, NULL);
    ck_assert_ptr_null(request.stream);
}
END_TEST

START_TEST(many_ranks_are_described_by_some)
{
    int ranks[500];
    char text[256];
    for (int i = 0; i < 500; i++)
        ranks[i] = 1000 + i;
    struct client_set *many = client_set_new(ranks, 500, 3);
    ck_assert_ptr_nonnull(many);
    ck_assert_int_eq(many->rank, -1);
    client_set_describe(many, text, sizeof text);
    ck_assert_ptr_nonnull(strstr(text, "process set 0 (ranks 1000,1001,"));
    ck_assert_ptr_nonnull(strstr(text, " more)"));
    free(many);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client check");
    TCase *tcase = tcase_create("check");
    tcase_add_checked_fixture(tcase, set_up, free_set);
    tcase_add_test(tcase, a_good_call_is_measured);
    tcase_add_test(tcase, the_sentence_names_function_and_tensor);
    tcase_add_test(tcase, missing_tensors_are_refused);
    tcase_add_test(tcase, impossible_shapes_are_refused);
    tcase_add_test(tcase, sizes_that_overflow_are_refused);
    tcase_add_test(tcase, in_and_out_must_look_the_same);
    tcase_add_test(tcase, overlap_is_refused_and_in_place_is_not);
    tcase_add_test(tcase, empty_tensors_need_no_memory);
    tcase_add_test(tcase, a_scalar_is_one_element);
    tcase_add_test(tcase, reduce_ops_are_checked);
    tcase_add_test(tcase, a_broadcast_reads_its_input_on_the_root_alone);
    tcase_add_test(tcase, an_allgather_may_differ_in_the_first_dimension_alone);
    tcase_add_test(tcase, options_of_another_size_are_taken_as_far_as_they_go);
    tcase_add_test(tcase, bool_has_and_and_or);
    tcase_add_test(tcase, a_reducescatter_deals_out_rows_by_set_rank);
    tcase_add_test(tcase, a_reducescatter_refuses_what_it_cannot_do);
    tcase_add_test(tcase, splits_must_add_up);
    tcase_add_test(tcase, an_alltoall_does_not_work_in_place);
    tcase_add_test(tcase, old_options_without_a_process_set_mean_all_ranks);
    tcase_add_test(tcase, the_stream_is_taken_from_options_that_have_one);
    tcase_add_test(tcase, many_ranks_are_described_by_some);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
