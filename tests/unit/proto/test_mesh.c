/* SPDX-License-Identifier: Apache-2.0
 * The messages of mesh.proto: what goes in comes out, and what cannot be is refused. */
#include "base/status.h"
#include "proto/mesh.h"
#include "proto/wire.h"
#include "tests/unit/hvt_main.h"

static int64_t longs[] = {0, 1, -1, INT64_MAX, INT64_MIN};
static int32_t ints[] = {0, 7, INT32_MAX};
static unsigned char name[] = "layer.0/w";

static struct hvi_mesh_packet packet, again;
static unsigned char *bytes;
static size_t length;
static char text[256];

static void setup(void)
{
    memset(&packet, 0, sizeof packet);
    packet.from = 3;
    packet.to = 0;
}

static void fill_name(struct hvi_mesh_name *name_p)
{
    name_p->name = name;
    name_p->name_bytes = sizeof name - 1;
}

static int travel(void)
{
    ck_assert_int_eq(hvi_mesh_encode(&packet, &bytes, &length), HVI_OK);
    int status = hvi_mesh_decode(bytes, length, &again, text, sizeof text);
    free(bytes);
    return status;
}

START_TEST(a_report_arrives_as_it_was)
{
    struct hvi_mesh_said said[2] = {{.kind = 2,
                                     .dtype = 7,
                                     .root = -1,
                                     .prescale = UINT64_MAX,
                                     .dims = longs,
                                     .ndim = 4,
                                     .group_size = 3,
                                     .group_index = 1,
                                     .has_leader = true,
                                     .integers = longs,
                                     .integer_count = 5,
                                     .places = ints,
                                     .place_count = 2},
                                    {.kind = 6}};

    setup();
    fill_name(&said[0].leader);
    packet.has_report = true;
    packet.report = (struct hvi_mesh_report){.what = HVI_MESH_BROUGHT,
                                             .seen = 9,
                                             .set = 4,
                                             .serial = 77,
                                             .kind = 2,
                                             .has_tensor = true,
                                             .said = said,
                                             .said_count = 2,
                                             .room = UINT64_MAX,
                                             .more = true,
                                             .last = -1,
                                             .culprit = -1};
    fill_name(&packet.report.tensor);
    ck_assert_int_eq(travel(), HVI_OK);
    ck_assert(again.has_report && !again.has_verdict && !again.has_broken);
    ck_assert_uint_eq(again.from, 3);
    ck_assert_uint_eq(again.report.serial, 77);
    ck_assert_uint_eq(again.report.room, UINT64_MAX);
    ck_assert(again.report.more);
    ck_assert_int_eq(again.report.last, -1);
    ck_assert_uint_eq(again.report.said_count, 2);
    ck_assert_mem_eq(again.report.said[0].integers, longs, sizeof longs);
    ck_assert_uint_eq(again.report.said[0].ndim, 4);
    ck_assert_mem_eq(again.report.said[0].leader.name, name, sizeof name - 1);
    ck_assert_int_eq(again.report.said[0].places[1], 7);
    ck_assert(!again.report.said[1].has_leader);
    ck_assert(!again.report.has_pair);
    hvi_mesh_free(&again);
}
END_TEST

START_TEST(a_verdict_arrives_as_it_was)
{
    setup();
    packet.has_verdict = true;
    packet.verdict = (struct hvi_mesh_verdict){.what = HVI_MESH_FAILED,
                                               .number = 5,
                                               .sequence = 12,
                                               .has_tensor = true,
                                               .joined = ints,
                                               .joined_count = 2,
                                               .rows = longs,
                                               .row_count = 5,
                                               .last = 4,
                                               .status = HVI_ERR_MISMATCH,
                                               .culprit = -1,
                                               .text = "ranks disagree"};
    packet.verdict.tensor.kind = 6;
    packet.verdict.tensor.number = 1000;
    ck_assert_int_eq(travel(), HVI_OK);
    ck_assert_uint_eq(again.verdict.number, 5);
    ck_assert_uint_eq(again.verdict.tensor.name_bytes, 0);
    ck_assert_uint_eq(again.verdict.tensor.number, 1000);
    ck_assert_mem_eq(again.verdict.rows, longs, sizeof longs);
    ck_assert_int_eq(again.verdict.status, HVI_ERR_MISMATCH);
    ck_assert_str_eq(again.verdict.text, "ranks disagree");
    hvi_mesh_free(&again);
}
END_TEST

START_TEST(what_is_said_of_a_send_arrives_as_it_was)
{
    setup();
    packet.has_report = true;
    packet.report = (struct hvi_mesh_report){.what = HVI_MESH_BROUGHT,
                                             .kind = 10,
                                             .has_tensor = true,
                                             .tensor = {.kind = 10, .number = 5},
                                             .pair = {3, 7, UINT64_MAX},
                                             .has_pair = true,
                                             .id = 12,
                                             .culprit = -1};
    ck_assert_int_eq(travel(), HVI_OK);
    ck_assert(again.report.has_pair);
    ck_assert_int_eq(again.report.pair.from, 3);
    ck_assert_int_eq(again.report.pair.to, 7);
    ck_assert_uint_eq(again.report.pair.id, UINT64_MAX);
    ck_assert_uint_eq(again.report.id, 12);
    hvi_mesh_free(&again);
    packet.report.pair.from = -1;
    ck_assert_int_eq(hvi_mesh_encode(&packet, &bytes, &length), HVI_ERR_INVALID);

    setup();
    packet.has_report = false;
    packet.has_verdict = true;
    packet.verdict = (struct hvi_mesh_verdict){.what = HVI_MESH_BROUGHT,
                                               .kind = 10,
                                               .has_tensor = true,
                                               .pair = {3, 7, 1},
                                               .has_pair = true,
                                               .said = {.kind = 10, .dims = longs, .ndim = 2},
                                               .has_said = true,
                                               .new_set = 9,
                                               .new_serial = 1000,
                                               .id = 4};
    ck_assert_int_eq(travel(), HVI_OK);
    ck_assert(again.verdict.has_pair && again.verdict.has_said);
    ck_assert_uint_eq(again.verdict.said.ndim, 2);
    ck_assert_int_eq(again.verdict.said.dims[1], 1);
    ck_assert_uint_eq(again.verdict.new_set, 9);
    ck_assert_uint_eq(again.verdict.new_serial, 1000);
    ck_assert_uint_eq(again.verdict.id, 4);
    hvi_mesh_free(&again);
}
END_TEST

START_TEST(a_question_and_its_answer_arrive_as_they_were)
{
    unsigned char query[] = "query", part[HVI_MESH_PART_MAX] = {1, 2, 3};
    setup();
    packet.has_ask = true;
    packet.ask = (struct hvi_mesh_ask){.number = UINT64_MAX, .query = query, .query_bytes = 5};
    ck_assert_int_eq(travel(), HVI_OK);
    ck_assert(again.has_ask && !again.has_answer);
    ck_assert_uint_eq(again.ask.number, UINT64_MAX);
    ck_assert_mem_eq(again.ask.query, query, 5);
    hvi_mesh_free(&again);
    packet.has_ask = false;
    packet.has_answer = true;
    packet.answer = (struct hvi_mesh_answer){.number = 3,
                                             .heard_ns = UINT64_MAX - 1,
                                             .said_ns = UINT64_MAX,
                                             .report = part,
                                             .report_bytes = sizeof part};
    ck_assert_int_eq(travel(), HVI_OK);
    ck_assert_uint_eq(again.answer.heard_ns, UINT64_MAX - 1);
    ck_assert_uint_eq(again.answer.said_ns, UINT64_MAX);
    ck_assert_uint_eq(again.answer.report_bytes, sizeof part);
    ck_assert_mem_eq(again.answer.report, part, sizeof part);
    hvi_mesh_free(&again);
    packet.answer.report_bytes = 0; /* of the clock alone */
    ck_assert_int_eq(travel(), HVI_OK);
    ck_assert_uint_eq(again.answer.report_bytes, 0);
    hvi_mesh_free(&again);
    packet.answer.report_bytes = HVI_MESH_PART_MAX + 1;
    ck_assert_int_eq(hvi_mesh_encode(&packet, &bytes, &length), HVI_ERR_INVALID);
}
END_TEST

START_TEST(what_is_said_of_gpus_arrives_as_it_was)
{
    uint64_t instances[3] = {1, 0, UINT64_MAX};
    struct hvi_mesh_said said = {.kind = HVI_KIND_ALLREDUCE,
                                 .memory = HVI_MESH_MEMORY_ANY,
                                 .instances = instances,
                                 .instance_count = 3};

    /* The second one is of a list that this version has not. */
    struct hvi_setting settings[2] = {{"NCCL_ALGO", "Tree"}, {"NCCL_OF_THE_FUTURE", ""}};

    setup();
    packet.has_gpu = true;
    packet.gpu = (struct hvi_mesh_gpu){.what = HVI_MESH_GPU_OVER,
                                       .instances = instances,
                                       .instance_count = 3,
                                       .id = {7},
                                       .nccl_version = 22809,
                                       .status = HVI_ERR_LIMIT,
                                       .text = "too many",
                                       .sequence = UINT64_MAX,
                                       .says_settings = true,
                                       .settings = settings,
                                       .setting_count = 2};
    ck_assert_int_eq(travel(), HVI_OK);
    ck_assert(again.has_gpu);
    ck_assert(again.gpu.says_settings);
    ck_assert_uint_eq(again.gpu.setting_count, 2);
    ck_assert_str_eq(again.gpu.settings[0].value, "Tree");
    ck_assert_str_eq(again.gpu.settings[1].name, "NCCL_OF_THE_FUTURE");
    ck_assert_uint_eq(again.gpu.what, HVI_MESH_GPU_OVER);
    ck_assert_mem_eq(again.gpu.instances, instances, sizeof instances);
    ck_assert_mem_eq(again.gpu.id, packet.gpu.id, sizeof packet.gpu.id);
    ck_assert_uint_eq(again.gpu.nccl_version, 22809);
    ck_assert_int_eq(again.gpu.status, HVI_ERR_LIMIT);
    ck_assert_str_eq(again.gpu.text, "too many");
    ck_assert_uint_eq(again.gpu.sequence, UINT64_MAX);
    hvi_mesh_free(&again);
    packet.gpu.what = HVI_MESH_GPU_STARTED + 1;
    ck_assert_int_eq(hvi_mesh_encode(&packet, &bytes, &length), HVI_ERR_INVALID);
    packet.has_gpu = false;
    packet.has_verdict = true;
    packet.verdict = (struct hvi_mesh_verdict){.what = HVI_MESH_STARTS,
                                               .has_tensor = true,
                                               .last = -1,
                                               .culprit = -1,
                                               .said = said,
                                               .has_said = true,
                                               .instances = instances,
                                               .instance_count = 3};
    ck_assert_int_eq(travel(), HVI_OK);
    ck_assert_mem_eq(again.verdict.instances, instances, sizeof instances);
    ck_assert_uint_eq(again.verdict.said.memory, HVI_MESH_MEMORY_ANY);
    ck_assert_mem_eq(again.verdict.said.instances, instances, sizeof instances);
    hvi_mesh_free(&again);
}
END_TEST

START_TEST(a_packet_has_one_body)
{
    setup();
    ck_assert_int_eq(hvi_mesh_encode(&packet, &bytes, &length), HVI_ERR_INVALID);
    packet.has_broken = true;
    packet.broken.status = HVI_ERR_RANK_LOST;
    ck_assert_int_eq(travel(), HVI_OK);
    packet.has_report = true;
    ck_assert_int_eq(hvi_mesh_encode(&packet, &bytes, &length), HVI_ERR_INVALID);
    packet.has_report = false;
    packet.broken.status = 5;
    ck_assert_int_eq(hvi_mesh_encode(&packet, &bytes, &length), HVI_ERR_INVALID);
    ck_assert_int_eq(
        hvi_mesh_decode((const unsigned char *)"\x08\x03\x10\x00", 4, &again, text, sizeof text),
        HVI_ERR_PROTOCOL);
    ck_assert_str_eq(text, "mesh_packet: 0 bodies instead of one");
}
END_TEST

START_TEST(a_message_that_is_cut_short_is_refused)
{
    setup();
    packet.has_broken = true;
    packet.broken.status = HVI_ERR_RANK_LOST;
    snprintf(packet.broken.text, sizeof packet.broken.text, "rank 3 is gone");
    ck_assert_int_eq(hvi_mesh_encode(&packet, &bytes, &length), HVI_OK);
    for (size_t kept = 0; kept < length; kept++)
        ck_assert_int_eq(hvi_mesh_decode(bytes, kept, &again, text, sizeof text), HVI_ERR_PROTOCOL);
    free(bytes);
}
END_TEST

START_TEST(a_message_has_a_bound)
{
    size_t count = HVI_MESH_BYTES_MAX / 8;
    int64_t *many = malloc(count * sizeof *many);

    ck_assert_ptr_nonnull(many);
    setup();
    for (size_t i = 0; i < count; i++)
        many[i] = -1; /* ten bytes each */
    packet.has_verdict = true;
    packet.verdict = (struct hvi_mesh_verdict){.what = HVI_MESH_STARTS,
                                               .has_tensor = true,
                                               .rows = many,
                                               .row_count = count,
                                               .last = -1,
                                               .culprit = -1};
    ck_assert_int_eq(hvi_mesh_encode(&packet, &bytes, &length), HVI_ERR_LIMIT);
    free(many);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("proto/mesh");
    TCase *tcase = tcase_create("mesh");

    tcase_add_test(tcase, a_report_arrives_as_it_was);
    tcase_add_test(tcase, a_verdict_arrives_as_it_was);
    tcase_add_test(tcase, what_is_said_of_a_send_arrives_as_it_was);
    tcase_add_test(tcase, a_question_and_its_answer_arrive_as_they_were);
    tcase_add_test(tcase, what_is_said_of_gpus_arrives_as_it_was);
    tcase_add_test(tcase, a_packet_has_one_body);
    tcase_add_test(tcase, a_message_that_is_cut_short_is_refused);
    tcase_add_test(tcase, a_message_has_a_bound);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
