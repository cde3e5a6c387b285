/* SPDX-License-Identifier: Apache-2.0
 * Sends and recvs as one rank sees them: what it submits, what it refuses, and from whom its data came. */
#include "base/types.h"
#include "tests/unit/client/fake.h"
#include "tests/unit/hvt_main.h"

#include <string.h>

#define RANK      1
#define SIZE      4
#define SECOND_NS 1000000000

static struct hvt_fake *fake;
static struct hvd_session *session; /* rank 1 of 4 */
static struct hvt_fake_session *engine;
static float data[4];
static struct hvd_tensor tensor;

static void set_up(void)
{
    struct hvt_fake_script script = {.manual = true};
    fake = hvt_fake_start(&script);
    session = hvt_fake_open_as(fake, RANK, SIZE);
    engine = hvt_fake_session(fake, 0);
    tensor = hvd_tensor_1d(data, HVD_FLOAT32, 4);
}

static void tear_down(void)
{
    hvd_close(session);
    hvt_fake_stop(fake);
}

static struct hvd_op *send_to(int to, int tag)
{
    struct hvd_op *op = NULL;
    ck_assert_msg(hvd_send_async(session, &tensor, to, tag, NULL, &op) == HVD_OK, "%s",
                  hvd_last_error());
    return op;
}

static struct hvd_op *recv_from(int from, int tag)
{
    struct hvd_op *op = NULL;
    ck_assert_msg(hvd_recv_async(session, &tensor, from, tag, NULL, &op) == HVD_OK, "%s",
                  hvd_last_error());
    return op;
}

static void expect(int rc, const char *words)
{
    ck_assert_msg(rc == HVD_ERR_INVALID, "%s: %s", hvd_status_name(rc), hvd_last_error());
    ck_assert_msg(strstr(hvd_last_error(), words) != NULL, "'%s' is not in '%s'", words,
                  hvd_last_error());
}

START_TEST(a_send_brings_its_data_its_receiver_and_its_tag)
{
    data[3] = 7;
    struct hvd_op *op = send_to(3, 5);
    data[3] = 0; /* it was copied */
    struct hvi_submission slot = hvt_fake_take(engine);
    ck_assert_uint_eq(slot.kind, HVI_KIND_SEND);
    ck_assert_int_eq(slot.root, 3);
    ck_assert_uint_eq(slot.anon_seq, 5);
    ck_assert_uint_eq(slot.count, 4);
    ck_assert_uint_eq(slot.out_region, HVI_REGION_NONE);
    const float *sent = hvt_fake_memory(engine, slot.in_region, slot.in_offset);
    ck_assert_float_eq(sent[3], 7);
    ck_assert_str_eq(hvd_op_name(op), "send to rank 3 with tag 5");
    hvt_fake_done(engine, slot.cookie, HVD_OK, NULL, -1);
    ck_assert_int_eq(hvd_wait(op, SECOND_NS), HVD_OK);
    ck_assert_int_eq(hvd_op_source(op), -1); /* that is a recv's */
    hvd_op_free(op);
}
END_TEST

START_TEST(a_recv_fills_its_memory_and_says_from_whom)
{
    const float sent[4] = {1, 2, 3, 4};
    struct hvd_op *op = _i == 0 ? recv_from(HVD_ANY_RANK, 5) : recv_from(3, 5);
    struct hvi_submission slot = hvt_fake_take(engine);
    ck_assert_uint_eq(slot.kind, HVI_KIND_RECV);
    ck_assert_int_eq(slot.root, _i == 0 ? -1 : 3);
    ck_assert_uint_eq(slot.anon_seq, 5);
    ck_assert_uint_eq(slot.in_region, HVI_REGION_NONE);
    ck_assert_str_eq(hvd_op_name(op),
                     _i == 0 ? "recv from any rank with tag 5" : "recv from rank 3 with tag 5");
    ck_assert_int_eq(hvd_op_source(op), -1); /* not yet */
    memcpy(hvt_fake_memory(engine, slot.out_region, slot.out_offset), sent, sizeof sent);
    hvt_fake_done_rows(engine, slot.cookie, 3, sizeof sent);
    ck_assert_int_eq(hvd_wait(op, SECOND_NS), HVD_OK);
    ck_assert_int_eq(hvd_op_source(op), 3);
    ck_assert_mem_eq(data, sent, sizeof sent);
    hvd_op_free(op);
}
END_TEST

START_TEST(a_recv_that_fails_has_no_source_and_leaves_its_memory_alone)
{
    const char *why = "recv '3-to-1.tag-5': ranks disagree on dtype";
    struct hvd_op *op = recv_from(3, 5);
    struct hvi_submission slot = hvt_fake_take(engine);
    *(float *)hvt_fake_memory(engine, slot.out_region, slot.out_offset) = 9;
    hvt_fake_done(engine, slot.cookie, HVD_ERR_MISMATCH, why, -1);
    ck_assert_int_eq(hvd_wait(op, SECOND_NS), HVD_ERR_MISMATCH);
    ck_assert_str_eq(hvd_op_error(op), why);
    ck_assert_int_eq(hvd_op_source(op), -1);
    ck_assert_float_eq(data[0], 0);
    hvd_op_free(op);
}
END_TEST

START_TEST(any_number_may_be_in_flight_with_one_tag)
{
    struct hvd_op *first = send_to(3, 5), *second = send_to(3, 5);
    uint64_t cookies[2];
    for (int i = 0; i < 2; i++) {
        struct hvi_submission slot = hvt_fake_take(engine);
        ck_assert_uint_eq(slot.anon_seq, 5);
        cookies[i] = slot.cookie;
    }
    hvt_fake_done(engine, cookies[1], HVD_OK, NULL, -1); /* in any order */
    ck_assert_int_eq(hvd_wait(second, SECOND_NS), HVD_OK);
    ck_assert_int_eq(hvd_test(first), HVD_INPROGRESS);
    hvt_fake_done(engine, cookies[0], HVD_OK, NULL, -1);
    ck_assert_int_eq(hvd_wait(first, SECOND_NS), HVD_OK);
    hvd_op_free(first);
    hvd_op_free(second);
}
END_TEST

START_TEST(what_cannot_be_sent_or_received_is_refused_at_once)
{
    const struct hvd_tensor nothing = hvd_tensor_1d(NULL, HVD_FLOAT32, 4);
    struct hvd_op *op = NULL;
    expect(hvd_send_async(session, NULL, 3, 5, NULL, &op), "hvd_send_async(unnamed): in is NULL");
    expect(hvd_recv_async(session, NULL, 3, 5, NULL, &op), "hvd_recv_async(unnamed): out is NULL");
    expect(hvd_send_async(session, &nothing, 3, 5, NULL, &op),
           "in has 16 bytes and its data is NULL");
    expect(hvd_send_async(session, &tensor, 3, -1, NULL, &op), "tag -1 is negative");
    expect(hvd_send_async(session, &tensor, RANK, 5, NULL, &op), "rank 1 is this one");
    expect(hvd_recv_async(session, &tensor, SIZE, 5, NULL, &op),
           "rank 4 is not a member of process set 0 (ranks 0,1,2,3)");
    expect(hvd_send_async(session, &tensor, HVD_ANY_RANK, 5, NULL, &op), "rank -1 is not a member");
    ck_assert_ptr_null(op);
    ck_assert(hvt_fake_is_idle(engine));
}
END_TEST

/* By what the engine says of a recv from rank 3. */
START_TEST(an_engine_that_has_data_of_another_rank_ends_the_session)
{
    static const int64_t sources[] = {2, SIZE, -1};
    struct hvd_op *op = recv_from(3, 5);
    hvt_fake_done_rows(engine, hvt_fake_take(engine).cookie, sources[_i], sizeof data);
    ck_assert_int_eq(hvd_wait(op, SECOND_NS), HVD_ERR_PROTOCOL);
    ck_assert_int_eq(hvd_op_source(op), -1);
    ck_assert_int_eq(hvd_session_status(session), HVD_ERR_PROTOCOL);
    hvd_op_free(op);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client pairs");
    TCase *tcase = tcase_create("pairs");
    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_test(tcase, a_send_brings_its_data_its_receiver_and_its_tag);
    tcase_add_loop_test(tcase, a_recv_fills_its_memory_and_says_from_whom, 0, 2);
    tcase_add_test(tcase, a_recv_that_fails_has_no_source_and_leaves_its_memory_alone);
    tcase_add_test(tcase, any_number_may_be_in_flight_with_one_tag);
    tcase_add_test(tcase, what_cannot_be_sent_or_received_is_refused_at_once);
    tcase_add_loop_test(tcase, an_engine_that_has_data_of_another_rank_ends_the_session, 0, 3);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
