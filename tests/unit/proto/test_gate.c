/* SPDX-License-Identifier: Apache-2.0
 * The messages of gates, to hvdd and to each other: what was sent arrives, and what a peer must not say is refused on
 * both sides, with the field's name. */
#include "proto/gate.h"

#include "base/log.h"
#include "base/status.h"
#include "tests/unit/hvt_main.h"

#include <string.h>

static unsigned char bytes[HVI_MESH_BYTES_MAX + 1024], again[HVI_MESH_BYTES_MAX + 1024];
static unsigned char data[HVI_PACKET_BYTES_MAX];
static size_t length, again_length;
static struct hvi_gate_msg gate, gate_copy;
static struct hvi_mesh_msg mesh, mesh_copy;
static char text[256];

static const struct hvi_node_register registration = {.job = "job-1",
                                                      .uid = 1000,
                                                      .registration = UINT64_MAX,
                                                      .key_digest = "0123abcd",
                                                      .node = data,
                                                      .node_bytes = 300};
static const struct hvi_node_withdraw withdrawal = {
    .job = "job-1", .uid = UINT32_MAX, .registration = 7, .rank = INT32_MAX};
static const struct hvi_node_roster roster = {
    .job = "job-1", .uid = 1000, .registration = 7, .roster = data, .roster_bytes = 1};

static void setup(void)
{
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(i * 31);
    text[0] = '\0';
}

/* A full message of each kind. */
static void sample_gate(enum hvi_gate_kind kind)
{
    gate = (struct hvi_gate_msg){.kind = kind};
    switch (kind) {
    case HVI_GATE_START:
        gate.start = (struct hvi_gate_start){.private_mode = true,
                                             .uid = 1000,
                                             .log_level = HVI_LOG_TRACE,
                                             .node = UINT64_MAX,
                                             .name = "n1",
                                             .mesh_listen = "[::]:0",
                                             .mesh_join = "n2:9600",
                                             .mesh_key = "/etc/key",
                                             .interface = "eth0",
                                             .port_first = 1,
                                             .port_last = UINT16_MAX,
                                             .start_timeout_ns = UINT64_MAX,
                                             .max_admin = UINT32_MAX,
                                             .max_admin_per_user = UINT32_MAX,
                                             .one_job = true,
                                             .admin_rate_per_user = UINT32_MAX,
                                             .mesh_seeds = "n1:9600,n2:9600"};
        break;
    case HVI_GATE_ASK:
        gate.ask = (struct hvi_gate_ask){
            .ticket = 5, .uid = 1000, .request = data, .request_bytes = HVI_GATE_REQUEST_MAX};
        break;
    case HVI_GATE_REPLY:
        gate.reply = (struct hvi_gate_reply){
            .ticket = 5, .part = data, .part_bytes = HVI_GATE_PART_MAX, .more = true};
        break;
    case HVI_GATE_BEAT:
        gate.beat.number = UINT64_MAX;
        break;
    case HVI_GATE_STATE:
        gate.state = (struct hvi_gate_state){
            .status = HVI_ERR_REFUSED, .text = "why", .port = UINT16_MAX, .joined = true};
        break;
    case HVI_GATE_NODE_REGISTER:
        gate.node_register = registration;
        break;
    case HVI_GATE_NODE_WITHDRAW:
        gate.node_withdraw = withdrawal;
        break;
    case HVI_GATE_NODE_ROSTER:
        gate.node_roster = roster;
        break;
    case HVI_GATE_EVENT:
        gate.event = (struct hvi_gate_event){
            .uid = UINT32_MAX, .reply = data, .reply_bytes = HVI_GATE_PART_MAX};
        break;
    }
}

/* As many as there may be, and as long. */
static struct hvi_mesh_host *full_hosts(void)
{
    static struct hvi_mesh_host hosts[HVI_MESH_HOSTS_MAX];

    for (size_t i = 0; i < HVI_MESH_HOSTS_MAX; i++) {
        hosts[i].node = UINT64_MAX - i;
        hosts[i].gone = i % 2 == 0;
        memset(hosts[i].name, 'n', sizeof(hosts[i].name) - 1);
        memset(hosts[i].text, 't', sizeof(hosts[i].text) - 1);
    }
    return hosts;
}

static void sample_mesh(enum hvi_mesh_kind kind)
{
    mesh = (struct hvi_mesh_msg){.oldest = 1,
                                 .newest = UINT32_MAX,
                                 .node = 1,
                                 .talk = UINT64_MAX,
                                 .peer_talk = 2,
                                 .number = 3,
                                 .heard = 4,
                                 .status = HVI_ERR_REFUSED,
                                 .text = "why",
                                 .hvdd_silent_ns = UINT64_MAX - 1,
                                 .others_wait = true,
                                 .company = UINT64_MAX - 2,
                                 .kind = kind};
    if (kind == HVI_MESH_HELLO)
        mesh.hello = (struct hvi_mesh_hello){
            .name = "n1", .announced = "10.0.0.1", .dialed = "n2:9600", .version = "0.1"};
    if (kind == HVI_MESH_NODE_REGISTER)
        mesh.node_register = registration;
    if (kind == HVI_MESH_NODE_WITHDRAW)
        mesh.node_withdraw = withdrawal;
    if (kind == HVI_MESH_NODE_ROSTER)
        mesh.node_roster = roster;
    if (kind == HVI_MESH_QUESTION)
        mesh.question = (struct hvi_mesh_question){
            .ticket = UINT64_MAX, .request = UINT64_MAX, .what = UINT32_MAX};
    if (kind == HVI_MESH_REPLY)
        mesh.reply = (struct hvi_mesh_reply){
            .ticket = 5, .part = data, .part_bytes = HVI_GATE_PART_MAX, .more = true};
    if (kind == HVI_MESH_HOSTS)
        mesh.hosts = (struct hvi_mesh_hosts){
            .hosts = full_hosts(), .host_count = HVI_MESH_HOSTS_MAX, .anew = true};
}

static int encode_gate(void)
{
    return hvi_gate_msg_encode(&gate, bytes, sizeof bytes, &length);
}

static int decode_gate(void)
{
    return hvi_gate_msg_decode(bytes, length, &gate_copy, text, sizeof text);
}

static int encode_mesh(void)
{
    return hvi_mesh_msg_encode(&mesh, bytes, sizeof bytes, &length);
}

static int decode_mesh(void)
{
    return hvi_mesh_msg_decode(bytes, length, &mesh_copy, text, sizeof text);
}

START_TEST(each_message_of_a_gate_arrives_as_it_was_sent)
{
    sample_gate((enum hvi_gate_kind)_i);
    ck_assert_int_eq(encode_gate(), HVI_OK);
    ck_assert_msg(decode_gate() == HVI_OK, "%s", text);
    ck_assert_int_eq((int)gate_copy.kind, _i);
    ck_assert_int_eq(hvi_gate_msg_encode(&gate_copy, again, sizeof again, &again_length), HVI_OK);
    ck_assert_uint_eq(again_length, length);
    ck_assert_mem_eq(again, bytes, length);
    hvi_gate_msg_free(&gate_copy);
}
END_TEST

START_TEST(each_message_of_the_mesh_arrives_as_it_was_sent)
{
    static const enum hvi_mesh_kind kinds[] = {
        HVI_MESH_NONE,        HVI_MESH_HELLO,    HVI_MESH_NODE_REGISTER, HVI_MESH_NODE_WITHDRAW,
        HVI_MESH_NODE_ROSTER, HVI_MESH_QUESTION, HVI_MESH_REPLY,         HVI_MESH_HOSTS};
    sample_mesh(kinds[_i]);
    ck_assert_int_eq(encode_mesh(), HVI_OK);
    ck_assert_msg(decode_mesh() == HVI_OK, "%s", text);
    ck_assert_int_eq((int)mesh_copy.kind, (int)kinds[_i]);
    ck_assert_uint_eq(mesh_copy.talk, UINT64_MAX);
    ck_assert_uint_eq(mesh_copy.heard, 4);
    ck_assert_int_eq(mesh_copy.status, HVI_ERR_REFUSED);
    ck_assert_str_eq(mesh_copy.text, "why");
    ck_assert_uint_eq(mesh_copy.hvdd_silent_ns, UINT64_MAX - 1);
    ck_assert(mesh_copy.others_wait);
    ck_assert_uint_eq(mesh_copy.company, UINT64_MAX - 2);
    ck_assert_int_eq(hvi_mesh_msg_encode(&mesh_copy, again, sizeof again, &again_length), HVI_OK);
    ck_assert_uint_eq(again_length, length);
    ck_assert_mem_eq(again, bytes, length);
    hvi_mesh_msg_free(&mesh_copy);
}
END_TEST

START_TEST(what_a_message_carries_is_a_copy)
{
    sample_mesh(HVI_MESH_NODE_REGISTER);
    ck_assert_int_eq(encode_mesh(), HVI_OK);
    ck_assert_int_eq(decode_mesh(), HVI_OK);
    memset(bytes, 0, length);
    ck_assert_str_eq(mesh_copy.node_register.job, "job-1");
    ck_assert_str_eq(mesh_copy.node_register.key_digest, "0123abcd");
    ck_assert_uint_eq(mesh_copy.node_register.registration, UINT64_MAX);
    ck_assert_uint_eq(mesh_copy.node_register.node_bytes, 300);
    ck_assert_mem_eq(mesh_copy.node_register.node, data, 300);
    hvi_mesh_msg_free(&mesh_copy);
}
END_TEST

START_TEST(a_message_that_is_cut_is_refused_with_a_word)
{
    sample_gate(HVI_GATE_NODE_REGISTER);
    ck_assert_int_eq(encode_gate(), HVI_OK);
    for (const size_t whole = length; length-- > 0;) {
        text[0] = '\0';
        ck_assert_msg(decode_gate() == HVI_ERR_PROTOCOL, "%zu of %zu bytes are taken", length,
                      whole);
        ck_assert_msg(text[0] != '\0', "%zu bytes are refused without a word", length);
    }
    sample_mesh(HVI_MESH_HELLO);
    ck_assert_int_eq(encode_mesh(), HVI_OK);
    const size_t whole = length;
    for (length = 0; length < whole; length++) {
        text[0] = '\0';
        const int status = decode_mesh();
        if (status == HVI_OK) /* without its body, which is the last part, it is a sign of life */
            ck_assert_int_eq((int)mesh_copy.kind, HVI_MESH_NONE);
        else
            ck_assert(status == HVI_ERR_PROTOCOL && text[0] != '\0');
    }
}
END_TEST

/* Whatever is accepted is in bounds: it can be sent. */
START_TEST(a_message_with_a_wrong_byte_is_refused_or_in_bounds)
{
    static const unsigned char flips[] = {0x01, 0x08, 0x80, 0xff};
    sample_gate(HVI_GATE_START);
    ck_assert_int_eq(encode_gate(), HVI_OK);
    for (size_t i = 0; i < length * sizeof flips; i++) {
        unsigned char *const byte = &bytes[i / sizeof flips];
        *byte ^= flips[i % sizeof flips];
        text[0] = '\0';
        const int status = decode_gate();
        *byte ^= flips[i % sizeof flips];
        if (status != HVI_OK) {
            ck_assert_msg(status == HVI_ERR_PROTOCOL && text[0] != '\0', "byte %zu", i);
            continue;
        }
        ck_assert_int_eq(hvi_gate_msg_encode(&gate_copy, again, sizeof again, &again_length),
                         HVI_OK);
        hvi_gate_msg_free(&gate_copy);
    }
}
END_TEST

#define EXPECT_GATE_REFUSED(kind, change)                                                          \
    do {                                                                                           \
        sample_gate(kind);                                                                         \
        change;                                                                                    \
        ck_assert_msg(encode_gate() == HVI_ERR_INVALID, "%s is sent", #change);                    \
    } while (0)

START_TEST(what_makes_no_sense_is_not_sent_to_hvdd_or_gate)
{
    EXPECT_GATE_REFUSED(HVI_GATE_START, gate.start.log_level = HVI_LOG_TRACE + 1);
    EXPECT_GATE_REFUSED(HVI_GATE_START, gate.start.log_level = -1);
    EXPECT_GATE_REFUSED(HVI_GATE_START, gate.start.port_last = UINT16_MAX + 1);
    EXPECT_GATE_REFUSED(HVI_GATE_START, gate.start.name[0] = '\xff');
    EXPECT_GATE_REFUSED(HVI_GATE_ASK, gate.ask.request_bytes = 0);
    EXPECT_GATE_REFUSED(HVI_GATE_ASK, gate.ask.request_bytes++);
    EXPECT_GATE_REFUSED(HVI_GATE_REPLY, gate.reply.part_bytes++);
    EXPECT_GATE_REFUSED(HVI_GATE_STATE, gate.state.port = UINT16_MAX + 1);
    EXPECT_GATE_REFUSED(HVI_GATE_NODE_REGISTER, gate.node_register.job[0] = '/');
    EXPECT_GATE_REFUSED(HVI_GATE_NODE_REGISTER, gate.node_register.node_bytes = 0);
    EXPECT_GATE_REFUSED(HVI_GATE_NODE_WITHDRAW, gate.node_withdraw.job[0] = '\0');
    EXPECT_GATE_REFUSED(HVI_GATE_NODE_ROSTER,
                        gate.node_roster.roster_bytes = HVI_MESH_PACKET_MAX + 1);
    EXPECT_GATE_REFUSED(HVI_GATE_EVENT, gate.event.reply_bytes = 0);
    EXPECT_GATE_REFUSED(HVI_GATE_BEAT, gate.kind = HVI_GATE_KIND_END);
    EXPECT_GATE_REFUSED(HVI_GATE_BEAT, gate.kind = 0);
}
END_TEST

#define EXPECT_MESH_REFUSED(kind, change)                                                          \
    do {                                                                                           \
        sample_mesh(kind);                                                                         \
        change;                                                                                    \
        ck_assert_msg(encode_mesh() == HVI_ERR_INVALID, "%s is sent", #change);                    \
    } while (0)

START_TEST(what_makes_no_sense_is_not_sent_to_another_node)
{
    EXPECT_MESH_REFUSED(HVI_MESH_HELLO, mesh.hello.name[0] = '\0');
    EXPECT_MESH_REFUSED(HVI_MESH_HELLO, mesh.hello.dialed[0] = '\x80');
    EXPECT_MESH_REFUSED(HVI_MESH_NONE, mesh.status = 2);
    EXPECT_MESH_REFUSED(HVI_MESH_NONE, mesh.status = -1000);
    EXPECT_MESH_REFUSED(HVI_MESH_NONE, mesh.kind = HVI_MESH_KIND_END);
    EXPECT_MESH_REFUSED(HVI_MESH_NONE, mesh.kind = 1);
    EXPECT_MESH_REFUSED(HVI_MESH_NODE_ROSTER, mesh.node_roster.roster_bytes = 0);
    EXPECT_MESH_REFUSED(HVI_MESH_NODE_WITHDRAW, strcpy(mesh.node_withdraw.job, ".."));
}
END_TEST

#define EXPECT_REFUSED(decode, sentence, ...)                                                      \
    do {                                                                                           \
        const unsigned char made[] = {__VA_ARGS__};                                                \
        memcpy(bytes, made, length = sizeof made);                                                 \
        text[0] = '\0';                                                                            \
        ck_assert_int_eq(decode(), HVI_ERR_PROTOCOL);                                              \
        ck_assert_str_eq(text, sentence);                                                          \
    } while (0)

START_TEST(what_a_peer_must_not_say_is_named)
{
    EXPECT_REFUSED(decode_gate, "start.log_level: 99, must be 0..4", 0x0a, 6, 0x08, 1, 0x10, 0,
                   0x18, 99);
    EXPECT_REFUSED(decode_gate, "ask.request: 0 bytes, at least 1", 0x12, 6, 0x08, 1, 0x10, 0, 0x1a,
                   0);
    EXPECT_REFUSED(decode_gate,
                   "node_withdraw.job: a job id is 1..127 letters, digits and . _ : @ "
                   "-, and not . or ..",
                   0x3a, 7, 0x0a, 1, '/', 0x10, 0, 0x18, 0);
    EXPECT_REFUSED(decode_gate, "GateMessage: malformed, cut short, or a required field is missing",
                   0x22, 0);
    EXPECT_REFUSED(decode_gate, "gate_message: no body, or one that is not known here", 0x7a, 0);
    EXPECT_REFUSED(decode_mesh, "hello.name: empty", 0x08, 1, 0x10, 1, 0x18, 1, 0x20, 1, 0xa2, 1, 2,
                   0x0a, 0);
    EXPECT_REFUSED(decode_mesh, "text: not UTF-8 without NUL bytes", 0x08, 1, 0x10, 1, 0x18, 1,
                   0x20, 1, 0x4a, 1, 0xff);
    EXPECT_REFUSED(decode_mesh, "MeshMessage: malformed, cut short, or a required field is missing",
                   0x08, 1);
}
END_TEST

START_TEST(of_a_newer_body_a_node_reads_the_rest)
{
    static const unsigned char newer[] = {0x08, 1, 0x10, 9, 0x18, 1, 0x20, 8, 0x30, 5, 0xfa, 1, 0};
    memcpy(bytes, newer, length = sizeof newer);
    ck_assert_int_eq(decode_mesh(), HVI_OK);
    ck_assert_int_eq((int)mesh_copy.kind, HVI_MESH_NONE);
    ck_assert_uint_eq(mesh_copy.newest, 9);
    ck_assert_uint_eq(mesh_copy.talk, 8);
    ck_assert_uint_eq(mesh_copy.number, 5);
}
END_TEST

START_TEST(too_much_is_refused_before_it_is_read)
{
    length = HVI_PACKET_BYTES_MAX + 1;
    ck_assert_int_eq(decode_gate(), HVI_ERR_PROTOCOL);
    ck_assert_str_eq(text, "gate_message: 131073 bytes, at most 131072");
    length = HVI_MESH_BYTES_MAX + 1;
    ck_assert_int_eq(decode_mesh(), HVI_ERR_PROTOCOL);
    ck_assert_str_eq(text, "mesh_message: 135169 bytes, at most 135168");
}
END_TEST

START_TEST(a_buffer_that_is_too_small_is_left_alone)
{
    sample_gate(HVI_GATE_BEAT);
    ck_assert_int_eq(encode_gate(), HVI_OK);
    memset(again, 0xaa, sizeof again);
    ck_assert_int_eq(hvi_gate_msg_encode(&gate, again, length - 1, &again_length), HVI_ERR_LIMIT);
    ck_assert_uint_eq(again[0], 0xaa);
    sample_mesh(HVI_MESH_HELLO);
    ck_assert_int_eq(encode_mesh(), HVI_OK);
    ck_assert_int_eq(hvi_mesh_msg_encode(&mesh, again, length - 1, &again_length), HVI_ERR_LIMIT);
    ck_assert_uint_eq(again[0], 0xaa);
    ck_assert_int_eq(hvi_mesh_msg_encode(&mesh, again, length, &again_length), HVI_OK);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("proto/gate");
    TCase *tests = tcase_create("gate");
    tcase_add_checked_fixture(tests, setup, NULL);
    tcase_add_loop_test(tests, each_message_of_a_gate_arrives_as_it_was_sent, HVI_GATE_START,
                        HVI_GATE_KIND_END);
    tcase_add_loop_test(tests, each_message_of_the_mesh_arrives_as_it_was_sent, 0, 8);
    tcase_add_test(tests, what_a_message_carries_is_a_copy);
    tcase_add_test(tests, a_message_that_is_cut_is_refused_with_a_word);
    tcase_add_test(tests, a_message_with_a_wrong_byte_is_refused_or_in_bounds);
    tcase_add_test(tests, what_makes_no_sense_is_not_sent_to_hvdd_or_gate);
    tcase_add_test(tests, what_makes_no_sense_is_not_sent_to_another_node);
    tcase_add_test(tests, what_a_peer_must_not_say_is_named);
    tcase_add_test(tests, of_a_newer_body_a_node_reads_the_rest);
    tcase_add_test(tests, too_much_is_refused_before_it_is_read);
    tcase_add_test(tests, a_buffer_that_is_too_small_is_left_alone);
    suite_add_tcase(suite, tests);
    return hvt_run_suite(suite);
}
