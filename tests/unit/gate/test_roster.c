/* SPDX-License-Identifier: Apache-2.0
 * How large a job's roster may be, and what its nodes hear where it is larger. */
#include "base/status.h"
#include "daemon/gate/mesh.h"
#include "tests/unit/hvt_main.h"

static struct gate *gate;
static struct gate_mesh *mesh;
static struct hvi_engine_roster roster;
static struct hvi_node_roster answer;
static struct hvi_packet_msg heard;
static const struct gate_registrant to = {.job = "wide", .uid = 1000, .registration = 7};

static void prepare(void)
{
    gate = calloc(1, sizeof(*gate));
    mesh = calloc(1, sizeof(*mesh));
    ck_assert(gate && mesh);
    mesh->gate = gate;
}

static void clear(void)
{
    for (size_t i = 0; i < roster.node_count; i++)
        free(roster.nodes[i].ranks);
    free(roster.nodes);
    free(roster.key);
    free(answer.roster);
    hvi_packet_msg_free(&heard);
    memset(&roster, 0, sizeof(roster));
    memset(&answer, 0, sizeof(answer));
    memset(&heard, 0, sizeof(heard));
}

static void end(void)
{
    clear();
    free(mesh);
    free(gate);
}

/* Of as many ranks on each node, with names of so many bytes and the longest addresses. */
static void make(size_t nodes, size_t ranks, size_t name_bytes)
{
    clear();
    roster.epoch = UINT64_MAX;
    roster.key_bytes = HVI_WIRE_EPOCH_KEY;
    roster.key = calloc(1, HVI_WIRE_EPOCH_KEY);
    roster.nodes = calloc(nodes, sizeof(*roster.nodes));
    roster.node_count = nodes;
    roster.wire = 1;
    for (size_t i = 0; i < nodes; i++) {
        struct hvi_node_row *row = &roster.nodes[i];
        memset(row->name, 'h', name_bytes);
        snprintf(row->address, sizeof(row->address), "2001:db8:1111:2222:3333:4444:5555:%04zx", i);
        row->port = 65535;
        row->rank_count = ranks;
        row->ranks = calloc(ranks, sizeof(*row->ranks));
        for (size_t j = 0; j < ranks; j++)
            row->ranks[j] = (int32_t)(i * ranks + j);
    }
}

/* What hvdd reads. */
static int tell(void)
{
    int status = mesh_fill_roster(mesh, &to, &roster, &answer);

    ck_assert_ptr_nonnull(answer.roster);
    ck_assert_uint_le(answer.roster_bytes, HVI_MESH_PACKET_MAX);
    ck_assert_int_eq(hvi_packet_msg_decode(answer.roster, answer.roster_bytes, &heard, NULL, 0),
                     HVI_OK);
    ck_assert_int_eq(heard.kind, HVI_PACKET_ENGINE_ROSTER);
    ck_assert_str_eq(answer.job, "wide");
    ck_assert_uint_eq(answer.registration, 7);
    return status;
}

static void expect_whole(void)
{
    const struct hvi_engine_roster *got = &heard.engine_roster;

    ck_assert_int_eq(tell(), HVI_OK);
    ck_assert_int_eq(got->status, HVI_OK);
    ck_assert_uint_eq(got->node_count, roster.node_count);
    for (size_t i = 0; i < got->node_count; i++) {
        ck_assert_str_eq(got->nodes[i].name, roster.nodes[i].name);
        ck_assert_uint_eq(got->nodes[i].rank_count, roster.nodes[i].rank_count);
        ck_assert_mem_eq(got->nodes[i].ranks, roster.nodes[i].ranks,
                         got->nodes[i].rank_count * sizeof(int32_t));
    }
}

START_TEST(large_jobs_fit)
{
    static const struct {
        size_t nodes, ranks, name;
    } jobs[] = {{64, 63, 63},  {64, 512, 63}, {1024, 8, 40}, {1024, 16, 20},
                {1250, 8, 20}, {2048, 1, 8},  {39, 1024, 63}};

    prepare();
    for (size_t i = 0; i < sizeof(jobs) / sizeof(jobs[0]); i++) {
        make(jobs[i].nodes, jobs[i].ranks, jobs[i].name);
        expect_whole();
    }
    end();
}
END_TEST

/* Names become longer by so many bytes together. */
static void lengthen(size_t bytes)
{
    for (size_t i = 0; i < roster.node_count && bytes > 0; i++) {
        char *name = roster.nodes[i].name;
        for (size_t used = strlen(name); used < HVI_WIRE_NODE_NAME - 1 && bytes > 0; bytes--)
            name[used++] = 'h';
    }
    ck_assert_uint_eq(bytes, 0);
}

static void expect_again(void)
{
    free(answer.roster);
    hvi_packet_msg_free(&heard);
    expect_whole();
}

START_TEST(what_does_not_fit_to_the_byte_is_an_error_with_numbers)
{
    prepare();
    make(512, 64, 1);
    lengthen(200); /* ranks of the first rows have few bytes, and the length of the row one */
    expect_whole();
    lengthen(HVI_MESH_PACKET_MAX - answer.roster_bytes);
    expect_again();
    ck_assert_uint_eq(answer.roster_bytes, HVI_MESH_PACKET_MAX);
    lengthen(1);
    free(answer.roster);
    hvi_packet_msg_free(&heard);
    ck_assert_int_eq(tell(), HVI_ERR_LIMIT);
    ck_assert_int_eq(heard.engine_roster.status, HVI_ERR_LIMIT);
    ck_assert_uint_eq(heard.engine_roster.node_count, 0);
    ck_assert_str_eq(heard.engine_roster.text,
                     "the list of the job's 512 nodes with 32768 ranks does not fit into the 127 "
                     "KiB of a message: use fewer ranks or nodes, or shorter names of hosts");
    end();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("gate/roster");
    TCase *tcase = tcase_create("roster");

    tcase_add_test(tcase, large_jobs_fit);
    tcase_add_test(tcase, what_does_not_fit_to_the_byte_is_an_error_with_numbers);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
