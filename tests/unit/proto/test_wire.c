/* SPDX-License-Identifier: Apache-2.0
 * Round trips: what goes in comes out, and bytes that are not quite a message never hurt. */
#include "wire_samples.h"

#include "base/status.h"
#include "proto/packet.h"

#include "tests/unit/hvt_main.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

static unsigned char first[HVI_PACKET_BYTES_MAX];
static unsigned char second[HVI_PACKET_BYTES_MAX];

static void assert_same_bytes(const unsigned char *a, size_t a_bytes, const unsigned char *b,
                              size_t b_bytes)
{
    ck_assert_uint_eq(a_bytes, b_bytes);
    ck_assert_int_eq(memcmp(a, b, a_bytes), 0);
}

/* Everything but pointers is in the struct itself: compared with pointers zeroed, then the lists
 * are compared through the second encoding. */
static void blank_lists(struct hvi_packet_msg *msg)
{
    if (msg->kind == HVI_PACKET_ATTACH_REQUEST)
        msg->attach_request.settings = NULL;
    if (msg->kind == HVI_PACKET_ENGINE_ADOPT)
        msg->engine_adopt.attach = NULL;
    if (msg->kind == HVI_PACKET_ENGINE_REPORT)
        msg->engine_report.ranks = NULL, msg->engine_report.stalls = NULL,
        msg->engine_report.traces = NULL, msg->engine_report.span.ranks = NULL,
        msg->engine_report.span.links = NULL, msg->engine_report.span.standing = NULL;
    if (msg->kind == HVI_PACKET_ENGINE_HELLO)
        msg->engine_hello.ranks = NULL;
    if (msg->kind == HVI_PACKET_ENGINE_NODE)
        msg->engine_node.ranks = NULL;
    if (msg->kind == HVI_PACKET_ENGINE_ROSTER)
        msg->engine_roster.key = NULL, msg->engine_roster.nodes = NULL;
    if (msg->kind == HVI_PACKET_DEVICE_ADD)
        msg->device_add.memory.chunks = NULL, msg->device_add.memory.fabric = NULL;
    if (msg->kind == HVI_PACKET_GPU_WANTED)
        msg->gpu_wanted.settings = NULL;
    if (msg->kind == HVI_PACKET_GPU_RETURN)
        msg->gpu_return.engines = NULL;
}

START_TEST(packet_round_trip)
{
    struct hvi_packet_msg sent, received;
    size_t length = 0, again = 0;
    char text[256] = "";
    hvt_packet_sample((unsigned)_i, &sent);
    ck_assert_int_eq(hvi_packet_msg_encode(&sent, first, sizeof first, &length), HVI_OK);
    int status = hvi_packet_msg_decode(first, length, &received, text, sizeof text);
    ck_assert_msg(status == HVI_OK, "%s", text);
    ck_assert_int_eq(hvi_packet_msg_encode(&received, second, sizeof second, &again), HVI_OK);
    assert_same_bytes(first, length, second, again);

    struct hvi_packet_msg sent_flat = sent, received_flat = received;
    blank_lists(&sent_flat);
    blank_lists(&received_flat);
    ck_assert_int_eq(memcmp(&sent_flat, &received_flat, sizeof sent_flat), 0);
    hvi_packet_msg_free(&sent);
    hvi_packet_msg_free(&received);
}
END_TEST

START_TEST(request_round_trip)
{
    struct hvi_admin_request sent, received;
    unsigned char *bytes = NULL;
    size_t length = 0;
    char text[256] = "";
    hvt_request_sample((unsigned)_i, &sent);
    ck_assert_int_eq(hvi_admin_request_encode(&sent, &bytes, &length), HVI_OK);
    int status = hvi_admin_request_decode(bytes, length, &received, text, sizeof text);
    ck_assert_msg(status == HVI_OK, "%s", text);
    ck_assert_int_eq(memcmp(&sent, &received, sizeof sent), 0);
    free(bytes);
}
END_TEST

START_TEST(reply_round_trip)
{
    struct hvi_admin_reply sent, received;
    unsigned char *bytes = NULL, *again = NULL;
    size_t length = 0, again_length = 0;
    char text[256] = "";
    hvt_reply_sample((unsigned)_i, &sent);
    ck_assert_int_eq(hvi_admin_reply_encode(&sent, &bytes, &length), HVI_OK);
    int status = hvi_admin_reply_decode(bytes, length, &received, text, sizeof text);
    ck_assert_msg(status == HVI_OK, "%s", text);
    ck_assert_int_eq(memcmp(&sent.daemon, &received.daemon, sizeof sent.daemon), 0);
    ck_assert_str_eq(sent.text, received.text);
    ck_assert_uint_eq(sent.rank_count, received.rank_count);
    if (sent.rank_count)
        ck_assert_int_eq(memcmp(sent.ranks, received.ranks, sent.rank_count * sizeof *sent.ranks),
                         0);
    if (sent.job_count)
        ck_assert_int_eq(memcmp(sent.jobs, received.jobs, sent.job_count * sizeof *sent.jobs), 0);
    ck_assert_int_eq(hvi_admin_reply_encode(&received, &again, &again_length), HVI_OK);
    assert_same_bytes(bytes, length, again, again_length);
    free(bytes);
    free(again);
    hvi_admin_reply_free(&sent);
    hvi_admin_reply_free(&received);
}
END_TEST

/* Stall rows hold two lists each: looked at one by one, not only through the second encoding. */
START_TEST(stall_lists_survive)
{
    struct hvi_admin_reply sent, received;
    unsigned char *bytes = NULL;
    size_t length = 0;
    hvt_reply_sample(1, &sent);
    sent.stalls[1].ready_count = 2;
    ck_assert_int_eq(hvi_admin_reply_encode(&sent, &bytes, &length), HVI_OK);
    ck_assert_int_eq(hvi_admin_reply_decode(bytes, length, &received, NULL, 0), HVI_OK);
    ck_assert_uint_eq(received.stall_count, 2);
    ck_assert_uint_eq(received.stalls[0].ready_count, 3);
    ck_assert_uint_eq(received.stalls[1].ready_count, 2);
    ck_assert_int_eq(received.stalls[0].ready[0], INT32_MAX);
    ck_assert_int_eq(received.stalls[0].ready[2], 2);
    ck_assert_int_eq(received.stalls[1].missing[2].rank, 2);
    ck_assert_str_eq(received.stalls[1].missing[2].process, "absent");
    ck_assert_str_eq(received.stalls[1].job, "");
    free(bytes);
    hvi_admin_reply_free(&sent);
    hvi_admin_reply_free(&received);
}
END_TEST

/* Each prefix is decoded from a block of exactly its size, so that a sanitizer or valgrind sees
 * one byte too far. Long messages: the first and last 600 bytes, and steps between. */
static size_t next_cut(size_t cut, size_t length)
{
    return cut < 600 || cut + 600 > length ? cut + 1 : cut + 97;
}

static unsigned char *exact_copy(const unsigned char *bytes, size_t length)
{
    unsigned char *copy = malloc(length ? length : 1);
    ck_assert_ptr_nonnull(copy);
    memcpy(copy, bytes, length);
    return copy;
}

START_TEST(packet_cut_short)
{
    struct hvi_packet_msg sent;
    size_t length = 0;
    hvt_packet_sample((unsigned)_i, &sent);
    ck_assert_int_eq(hvi_packet_msg_encode(&sent, first, sizeof first, &length), HVI_OK);
    for (size_t cut = 0; cut < length; cut = next_cut(cut, length)) {
        struct hvi_packet_msg received;
        char text[256] = "";
        unsigned char *copy = exact_copy(first, cut);
        int status = hvi_packet_msg_decode(copy, cut, &received, text, sizeof text);
        ck_assert_int_eq(status, HVI_ERR_PROTOCOL);
        ck_assert_str_ne(text, "");
        free(copy);
    }
    hvi_packet_msg_free(&sent);
}
END_TEST

START_TEST(request_cut_short)
{
    struct hvi_admin_request sent, received;
    unsigned char *bytes = NULL;
    size_t length = 0;
    hvt_request_sample((unsigned)_i, &sent);
    ck_assert_int_eq(hvi_admin_request_encode(&sent, &bytes, &length), HVI_OK);
    for (size_t cut = 0; cut < length; cut++) {
        char text[256] = "";
        unsigned char *copy = exact_copy(bytes, cut);
        int status = hvi_admin_request_decode(copy, cut, &received, text, sizeof text);
        ck_assert_int_eq(status, HVI_ERR_PROTOCOL);
        ck_assert_str_ne(text, "");
        free(copy);
    }
    free(bytes);
}
END_TEST

START_TEST(reply_cut_short)
{
    struct hvi_admin_reply sent;
    unsigned char *bytes = NULL;
    size_t length = 0;
    hvt_reply_sample(1, &sent);
    ck_assert_int_eq(hvi_admin_reply_encode(&sent, &bytes, &length), HVI_OK);
    for (size_t cut = 0; cut < length; cut++) {
        struct hvi_admin_reply received;
        char text[256] = "";
        unsigned char *copy = exact_copy(bytes, cut);
        /* A cut between fields is a shorter legal reply. */
        int status = hvi_admin_reply_decode(copy, cut, &received, text, sizeof text);
        if (status == HVI_OK)
            hvi_admin_reply_free(&received);
        else
            ck_assert_int_eq(status, HVI_ERR_PROTOCOL);
        free(copy);
    }
    free(bytes);
    hvi_admin_reply_free(&sent);
}
END_TEST

/* Field 1000, a varint: what a newer peer might add. */
static const unsigned char unknown_field[] = {0xc0, 0x3e, 0x2a};

START_TEST(unknown_fields_are_accepted)
{
    struct hvi_packet_msg sent, received;
    size_t length = 0;
    hvt_packet_sample((unsigned)_i, &sent);
    ck_assert_int_eq(hvi_packet_msg_encode(&sent, first, sizeof first, &length), HVI_OK);
    if (length + sizeof unknown_field <= sizeof first) {
        memcpy(first + length, unknown_field, sizeof unknown_field);
        ck_assert_int_eq(
            hvi_packet_msg_decode(first, length + sizeof unknown_field, &received, NULL, 0),
            HVI_OK);
        ck_assert_int_eq(received.kind, sent.kind);
        hvi_packet_msg_free(&received);
    }
    hvi_packet_msg_free(&sent);
}
END_TEST

/* detach { request: 5, 1000: 42 } */
START_TEST(unknown_field_inside_a_body)
{
    const unsigned char bytes[] = {0x32, 5, 0x08, 5, 0xc0, 0x3e, 0x2a};
    struct hvi_packet_msg msg;
    ck_assert_int_eq(hvi_packet_msg_decode(bytes, sizeof bytes, &msg, NULL, 0), HVI_OK);
    ck_assert_int_eq(msg.kind, HVI_PACKET_DETACH);
    ck_assert_uint_eq(msg.detach.request, 5);
}
END_TEST

/* An attach with a field we do not know reaches the engine byte by byte. */
START_TEST(adopted_attach_keeps_its_bytes)
{
    struct hvi_packet_msg attach, adopt = {.kind = HVI_PACKET_ENGINE_ADOPT}, received;
    size_t length = 0, adopt_length = 0;
    hvt_packet_sample(0, &attach);
    ck_assert_int_eq(hvi_packet_msg_encode(&attach, first, sizeof first, &length), HVI_OK);
    memcpy(first + length, unknown_field, sizeof unknown_field);
    length += sizeof unknown_field;
    adopt.engine_adopt.attach = first;
    adopt.engine_adopt.attach_bytes = length;
    ck_assert_int_eq(hvi_packet_msg_encode(&adopt, second, sizeof second, &adopt_length), HVI_OK);
    ck_assert_int_eq(hvi_packet_msg_decode(second, adopt_length, &received, NULL, 0), HVI_OK);
    assert_same_bytes(received.engine_adopt.attach, received.engine_adopt.attach_bytes, first,
                      length);
    hvi_packet_msg_free(&attach);
    hvi_packet_msg_free(&received);
}
END_TEST

START_TEST(unknown_body_is_refused)
{
    const unsigned char future[] = {0xa2, 0x06, 0};                  /* field 100, empty */
    const unsigned char admin[] = {0x08, 1, 0x10, 7, 0xa2, 0x06, 0}; /* then field 100 */
    struct hvi_packet_msg msg;
    struct hvi_admin_request request;
    char text[256];
    ck_assert_int_eq(hvi_packet_msg_decode(future, sizeof future, &msg, text, sizeof text),
                     HVI_ERR_PROTOCOL);
    ck_assert_str_eq(text, "packet: no body, or one that is not known here");
    ck_assert_int_eq(hvi_packet_msg_decode(NULL, 0, &msg, text, sizeof text), HVI_ERR_PROTOCOL);
    ck_assert_str_eq(text, "packet: no body, or one that is not known here");
    ck_assert_int_eq(hvi_admin_request_decode(admin, sizeof admin, &request, text, sizeof text),
                     HVI_ERR_PROTOCOL);
    ck_assert_str_eq(text, "admin_request: no body, or one that is not known here");
}
END_TEST

START_TEST(foreign_versions_decode)
{
    struct hvi_packet_msg sent, received;
    size_t length = 0;
    hvt_packet_sample(1, &sent);
    sent.attach_request.protocol_version = 77;
    sent.attach_request.abi_version = 78;
    ck_assert_int_eq(hvi_packet_msg_encode(&sent, first, sizeof first, &length), HVI_OK);
    ck_assert_int_eq(hvi_packet_msg_decode(first, length, &received, NULL, 0), HVI_OK);
    ck_assert_int_eq(received.kind, HVI_PACKET_ATTACH_REQUEST);
    ck_assert_uint_eq(received.attach_request.protocol_version, 77);
    ck_assert_uint_eq(received.attach_request.abi_version, 78);
    hvi_packet_msg_free(&sent);
    hvi_packet_msg_free(&received);
}
END_TEST

/* What a later schema may look like: the versions, no other field we require, and a job id (3)
 * that has become a number. */
START_TEST(foreign_versions_of_another_shape)
{
    const unsigned char attach[] = {0x0a, 6, 0x08, 9, 0x10, 8, 0x18, 7};
    const unsigned char hello[] = {0x7a, 4, 0x08, 9, 0x10, 8};
    const unsigned char admin[] = {0x08, 9, 0x10, 8, 0x18, 7};
    struct hvi_packet_msg msg;
    struct hvi_admin_request request;
    ck_assert_int_eq(hvi_packet_msg_decode(attach, sizeof attach, &msg, NULL, 0), HVI_OK);
    ck_assert_int_eq(msg.kind, HVI_PACKET_ATTACH_REQUEST);
    ck_assert_uint_eq(msg.attach_request.protocol_version, 9);
    ck_assert_uint_eq(msg.attach_request.abi_version, 8);
    ck_assert_int_eq(hvi_packet_msg_decode(hello, sizeof hello, &msg, NULL, 0), HVI_OK);
    ck_assert_int_eq(msg.kind, HVI_PACKET_ENGINE_HELLO);
    ck_assert_uint_eq(msg.engine_hello.protocol_version, 9);
    ck_assert_int_eq(hvi_admin_request_decode(admin, sizeof admin, &request, NULL, 0), HVI_OK);
    ck_assert_uint_eq(request.protocol_version, 9);
    ck_assert_uint_eq(request.request, 8);
}
END_TEST

/* The same shapes with our own version are broken messages, not foreign ones. */
START_TEST(own_version_of_another_shape)
{
    const unsigned char attach[] = {0x0a, 6, 0x08, 1, 0x10, 8, 0x18, 7};
    const unsigned char unversioned[] = {0x0a, 2, 0x10, 8};
    struct hvi_packet_msg msg;
    char text[256] = "";
    ck_assert_int_eq(hvi_packet_msg_decode(attach, sizeof attach, &msg, text, sizeof text),
                     HVI_ERR_PROTOCOL);
    ck_assert_str_eq(text, "Packet: malformed, cut short, or a required field is missing");
    ck_assert_int_eq(hvi_packet_msg_decode(unversioned, sizeof unversioned, &msg, NULL, 0),
                     HVI_ERR_PROTOCOL);
}
END_TEST

START_TEST(encode_needs_room)
{
    struct hvi_packet_msg sent;
    size_t length = 0, untouched = 4711;
    hvt_packet_sample((unsigned)_i, &sent);
    ck_assert_int_eq(hvi_packet_msg_encode(&sent, first, sizeof first, &length), HVI_OK);
    ck_assert_int_eq(hvi_packet_msg_encode(&sent, second, length, &untouched), HVI_OK);
    untouched = 4711;
    second[length - 1] = 0x5a;
    ck_assert_int_eq(hvi_packet_msg_encode(&sent, second, length - 1, &untouched), HVI_ERR_LIMIT);
    ck_assert_uint_eq(untouched, 4711);
    ck_assert_uint_eq(second[length - 1], 0x5a);
    hvi_packet_msg_free(&sent);
}
END_TEST

/* Two-byte rows: little to send, much to hold. Refused before it becomes much. */
START_TEST(tiny_rows_are_bounded)
{
    enum { ROWS = 60000 };
    static unsigned char bytes[2 * ROWS + 16] = {0x62, 0x81 | 0x80}; /* engine_report, length */
    size_t used = 0, body = 2 + 2 * (size_t)ROWS;
    bytes[used++] = 0x62;
    for (size_t rest = body; rest; rest >>= 7)
        bytes[used++] = (unsigned char)((rest & 127) | (rest > 127 ? 128 : 0));
    bytes[used++] = 0x08;
    bytes[used++] = 1;
    for (size_t i = 0; i < ROWS; i++) {
        bytes[used++] = 0x12; /* ranks, an empty row: its required fields are missing */
        bytes[used++] = 0;
    }
    struct hvi_packet_msg msg;
    ck_assert_int_eq(hvi_packet_msg_decode(bytes, used, &msg, NULL, 0), HVI_ERR_PROTOCOL);
}
END_TEST

static void add_round_trips(TCase *tcase)
{
    tcase_add_loop_test(tcase, packet_round_trip, 0, (int)HVT_PACKET_SAMPLES);
    tcase_add_loop_test(tcase, request_round_trip, 0, (int)HVT_REQUEST_SAMPLES);
    tcase_add_loop_test(tcase, reply_round_trip, 0, (int)HVT_REPLY_SAMPLES);
    tcase_add_loop_test(tcase, encode_needs_room, 0, (int)HVT_PACKET_SAMPLES);
    tcase_add_test(tcase, stall_lists_survive);
}

static void add_strangers(TCase *tcase)
{
    tcase_add_loop_test(tcase, packet_cut_short, 0, (int)HVT_PACKET_SAMPLES);
    tcase_add_loop_test(tcase, request_cut_short, 0, (int)HVT_REQUEST_SAMPLES);
    tcase_add_test(tcase, reply_cut_short);
    tcase_add_loop_test(tcase, unknown_fields_are_accepted, 0, (int)HVT_PACKET_SAMPLES);
    tcase_add_test(tcase, unknown_field_inside_a_body);
    tcase_add_test(tcase, adopted_attach_keeps_its_bytes);
    tcase_add_test(tcase, unknown_body_is_refused);
    tcase_add_test(tcase, foreign_versions_decode);
    tcase_add_test(tcase, foreign_versions_of_another_shape);
    tcase_add_test(tcase, own_version_of_another_shape);
    tcase_add_test(tcase, tiny_rows_are_bounded);
}

int main(void)
{
    Suite *suite = suite_create("wire");
    TCase *tcase = tcase_create("wire");
    add_round_trips(tcase);
    add_strangers(tcase);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
