/* SPDX-License-Identifier: Apache-2.0
 * Every rule of the decoder, each broken once: the message is refused with its sentence, and the
 * encoder refuses the same message. The bytes come from a small writer of protobuf fields below,
 * since our own encoder cannot produce them. */
#include "wire_samples.h"

#include "base/status.h"
#include "proto/packet.h"
#include "proto/wire_internal.h"

#include "tests/unit/hvt_main.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- a writer of protobuf fields ------------------------------------------------------------- */

struct writer {
    unsigned char bytes[HVI_PACKET_BYTES_MAX];
    size_t used;
};

static struct writer message, part, row;

static void put_varint(struct writer *writer, uint64_t value)
{
    for (; value > 127; value >>= 7)
        writer->bytes[writer->used++] = (unsigned char)(value | 128);
    writer->bytes[writer->used++] = (unsigned char)value;
}

static void put_number(struct writer *writer, unsigned number, uint64_t value)
{
    put_varint(writer, (uint64_t)number << 3);
    put_varint(writer, value);
}

static void put_block(struct writer *writer, unsigned number, const void *bytes, size_t length)
{
    put_varint(writer, (uint64_t)number << 3 | 2);
    put_varint(writer, length);
    memcpy(writer->bytes + writer->used, bytes, length);
    writer->used += length;
}

static void put_string(struct writer *writer, unsigned number, const char *text)
{
    put_block(writer, number, text, strlen(text));
}

static const char *letters(size_t count)
{
    static char text[4096];
    memset(text, 'x', count);
    text[count] = '\0';
    return text;
}

/* One field of a message under test. `text` NULL: a number. */
struct value {
    unsigned number;
    int64_t integer;
    const char *text;
    size_t text_bytes; /* 0: strlen(text) */
};

/* A legal message, field by field, in which `change` replaces the field of its number. */
static void write_part(struct writer *writer, const struct value *legal, const struct value *change)
{
    writer->used = 0;
    for (; legal->number; legal++) {
        const struct value *use = legal->number == change->number ? change : legal;
        if (use->text)
            put_block(writer, use->number, use->text,
                      use->text_bytes ? use->text_bytes : strlen(use->text));
        else
            put_number(writer, use->number, (uint64_t)use->integer);
    }
}

static void assert_refused(unsigned kind, const char *sentence)
{
    struct hvi_packet_msg msg;
    char text[256] = "";
    message.used = 0;
    put_block(&message, kind, part.bytes, part.used);
    int status = hvi_packet_msg_decode(message.bytes, message.used, &msg, text, sizeof text);
    ck_assert_int_eq(status, HVI_ERR_PROTOCOL);
    ck_assert_str_eq(text, sentence);
}

static void assert_accepted(unsigned kind)
{
    struct hvi_packet_msg msg;
    char text[256] = "";
    message.used = 0;
    put_block(&message, kind, part.bytes, part.used);
    int status = hvi_packet_msg_decode(message.bytes, message.used, &msg, text, sizeof text);
    ck_assert_msg(status == HVI_OK, "%s", text);
    hvi_packet_msg_free(&msg);
}

/* ---- legal messages and one broken value each ------------------------------------------------ */

static const struct value legal_attach[] = {
    {1, 1, NULL, 0},  {2, 1, NULL, 0}, {3, 0, "job", 0}, {4, 0, "key", 0}, {5, 0, NULL, 0},
    {6, 2, NULL, 0},  {7, 0, NULL, 0}, {8, 2, NULL, 0},  {9, 0, NULL, 0},  {10, 1, NULL, 0},
    {11, 0, "me", 0}, {12, 0, "1", 0}, {14, 1, NULL, 0}, {0, 0, NULL, 0},
};
static const struct value legal_reply[] = {
    {1, 0, NULL, 0}, {2, 0, "t", 0},  {3, 1, NULL, 0}, {4, 1, NULL, 0},
    {5, 1, NULL, 0}, {6, 1, NULL, 0}, {7, 1, NULL, 0}, {0, 0, NULL, 0},
};
static const struct value legal_region_add[] = {
    {1, 1, NULL, 0}, {2, 1, NULL, 0}, {3, 4096, NULL, 0}, {0, 0, NULL, 0}};
static const struct value legal_region_remove[] = {
    {1, 1, NULL, 0}, {2, 1, NULL, 0}, {0, 0, NULL, 0}};
static const struct value legal_ack[] = {
    {1, 1, NULL, 0}, {2, 0, NULL, 0}, {3, 0, "t", 0}, {0, 0, NULL, 0}};
static const struct value legal_notice[] = {{1, -300, NULL, 0}, {2, 0, "t", 0},  {3, 1, NULL, 0},
                                            {4, 1, NULL, 0},    {5, 1, NULL, 0}, {0, 0, NULL, 0}};
static const struct value legal_start[] = {
    {1, 0, "job", 0},  {2, 1, NULL, 0},  {3, 2, NULL, 0}, {4, 1, NULL, 0},
    {5, 1, NULL, 0},   {6, 1, NULL, 0},  {7, 1, NULL, 0}, {8, 1, NULL, 0},
    {9, 0, "/run", 0}, {10, 1, NULL, 0}, {0, 0, NULL, 0},
};
static const struct value legal_adopt[] = {{1, 1, NULL, 0}, {2, 0, "a", 0},  {3, 1, NULL, 0},
                                           {4, 1, NULL, 0}, {5, 1, NULL, 0}, {0, 0, NULL, 0}};
static const struct value legal_session[] = {
    {1, 1, NULL, 0}, {2, 1, NULL, 0}, {3, 1, NULL, 0}, {4, 0, "t", 0}, {0, 0, NULL, 0}};
static const struct value legal_query[] = {
    {1, 1, NULL, 0}, {2, 1, NULL, 0}, {3, 1, NULL, 0}, {0, 0, NULL, 0}};
static const struct value legal_stop[] = {{1, 0, "t", 0}, {0, 0, NULL, 0}};
static const struct value legal_fate[] = {
    {1, 1, NULL, 0}, {2, 1, NULL, 0}, {3, 1, NULL, 0}, {4, 9, NULL, 0}, {0, 0, NULL, 0}};
static const struct value legal_hello[] = {{1, 1, NULL, 0}, {2, 0, "job", 0}, {3, 1, NULL, 0},
                                           {4, 2, NULL, 0}, {5, 1, NULL, 0},  {6, 1, NULL, 0},
                                           {8, 0, "d", 0},  {9, 1, NULL, 0},  {0, 0, NULL, 0}};

#define JOB_RULE "a job id is 1..127 letters, digits and . _ : @ -, and not . or .."
#define NOT_UTF8 "not UTF-8 without NUL bytes"

struct broken {
    unsigned kind;
    const struct value *legal;
    struct value change;
    const char *sentence;
};

static const struct broken broken[] = {
    {1, legal_attach, {3, 0, "", 0}, "attach_request.job: " JOB_RULE},
    {1, legal_attach, {3, 0, "a b", 0}, "attach_request.job: " JOB_RULE},
    {1, legal_attach, {3, 0, "a/b", 0}, "attach_request.job: " JOB_RULE},
    {1, legal_attach, {3, 0, ".", 0}, "attach_request.job: " JOB_RULE},
    {1, legal_attach, {3, 0, "..", 0}, "attach_request.job: " JOB_RULE},
    {1, legal_attach, {3, 0, "\xc3\xa4", 0}, "attach_request.job: " JOB_RULE},
    {1, legal_attach, {3, 0, "a\0b", 3}, "attach_request.job: " NOT_UTF8},
    {1, legal_attach, {4, 0, "\xff", 0}, "attach_request.job_key: " NOT_UTF8},
    {1, legal_attach, {4, 0, "key\0more", 8}, "attach_request.job_key: " NOT_UTF8},
    {1, legal_attach, {5, -2, NULL, 0}, "attach_request.rank: -2, must be at least -1"},
    {1, legal_attach, {6, 0, NULL, 0}, "attach_request.size: 0, must be 1..1048576"},
    {1, legal_attach, {6, -1, NULL, 0}, "attach_request.size: -1, must be 1..1048576"},
    {1, legal_attach, {6, 1048577, NULL, 0}, "attach_request.size: 1048577, must be 1..1048576"},
    {1, legal_attach, {7, -2, NULL, 0}, "attach_request.local_rank: -2, must be at least -1"},
    {1, legal_attach, {8, 0, NULL, 0}, "attach_request.local_size: 0, must be 1..1024"},
    {1, legal_attach, {8, 1025, NULL, 0}, "attach_request.local_size: 1025, must be 1..1024"},
    {1, legal_attach, {9, -2, NULL, 0}, "attach_request.cross_rank: -2, must be at least -1"},
    {1, legal_attach, {10, 0, NULL, 0}, "attach_request.cross_size: 0, must be 1..1048576"},
    {1, legal_attach, {11, 0, "\x80", 0}, "attach_request.origin: " NOT_UTF8},
    {1, legal_attach, {14, -1, NULL, 0}, "attach_request.own_pid: -1, must be at least 0"},
    {1, legal_attach, {12, 0, "\xed\xa0\x80", 0}, "attach_request.client_version: " NOT_UTF8},
    {2, legal_reply, {1, 2, NULL, 0}, "attach_reply.status: 2, must be -999..1"},
    {2, legal_reply, {1, -1000, NULL, 0}, "attach_reply.status: -1000, must be -999..1"},
    {2, legal_reply, {2, 0, "\xc0\x80", 0}, "attach_reply.text: " NOT_UTF8},
    {2, legal_reply, {7, -1, NULL, 0}, "attach_reply.engine_pid: -1, must be at least 0"},
    {3, legal_region_add, {2, 0, NULL, 0}, "region_add.region: 0, must be 1..4294967294"},
    {3,
     legal_region_add,
     {2, 0xffffffff, NULL, 0},
     "region_add.region: 4294967295, must be 1..4294967294"},
    {3, legal_region_add, {3, 0, NULL, 0}, "region_add.bytes: 0, must be 1..18446744073709551615"},
    {4, legal_region_remove, {2, 0, NULL, 0}, "region_remove.region: 0, must be 1..4294967294"},
    {5, legal_ack, {2, 2, NULL, 0}, "ack.status: 2, must be -999..1"},
    {5, legal_ack, {3, 0, "\xff", 0}, "ack.text: " NOT_UTF8},
    {7, legal_notice, {1, -1000, NULL, 0}, "notice.status: -1000, must be -999..1"},
    {7, legal_notice, {2, 0, "\xff", 0}, "notice.text: " NOT_UTF8},
    {7, legal_notice, {3, -2, NULL, 0}, "notice.rank: -2, must be at least -1"},
    {7, legal_notice, {4, -1, NULL, 0}, "notice.pid: -1, must be at least 0"},
    {8, legal_start, {1, 0, "", 0}, "engine_start.job: " JOB_RULE},
    {8, legal_start, {3, 0, NULL, 0}, "engine_start.size: 0, must be 1..1048576"},
    {8, legal_start, {5, 4097, NULL, 0}, "engine_start.threads: 4097, must be 0..4096"},
    {8, legal_start, {9, 0, "", 0}, "engine_start.attach_path: empty"},
    {8, legal_start, {10, 5, NULL, 0}, "engine_start.log_level: 5, must be 0..4"},
    {8, legal_start, {10, -1, NULL, 0}, "engine_start.log_level: -1, must be 0..4"},
    {9, legal_adopt, {2, 0, "", 0}, "engine_adopt.attach: 0 bytes, at least 1"},
    {9, legal_adopt, {3, -1, NULL, 0}, "engine_adopt.pid: -1, must be at least 0"},
    {10, legal_session, {1, -2, NULL, 0}, "engine_session.rank: -2, must be at least -1"},
    {10, legal_session, {2, -1, NULL, 0}, "engine_session.pid: -1, must be at least 0"},
    {10, legal_session, {3, 0, NULL, 0}, "engine_session.state: 0, must be 1..4"},
    {10, legal_session, {3, 5, NULL, 0}, "engine_session.state: 5, must be 1..4"},
    {10, legal_session, {4, 0, "\xff", 0}, "engine_session.text: " NOT_UTF8},
    {11, legal_query, {2, 0, NULL, 0}, "engine_query.what: 0, must be 1..4"},
    {11, legal_query, {2, 5, NULL, 0}, "engine_query.what: 5, must be 1..4"},
    {13, legal_stop, {1, 0, "\xff", 0}, "engine_stop.reason: " NOT_UTF8},
    {14, legal_fate, {1, -1, NULL, 0}, "engine_fate.rank: -1, must be at least 0"},
    {14, legal_fate, {2, -1, NULL, 0}, "engine_fate.pid: -1, must be at least 0"},
    {14, legal_fate, {4, 256, NULL, 0}, "engine_fate.code: 256, must be 0..255"},
    {14, legal_fate, {4, -1, NULL, 0}, "engine_fate.code: -1, must be 0..255"},
    {15, legal_hello, {2, 0, "a b", 0}, "engine_hello.job: " JOB_RULE},
    {15, legal_hello, {4, 0, NULL, 0}, "engine_hello.size: 0, must be 1..1048576"},
    {15, legal_hello, {6, -1, NULL, 0}, "engine_hello.pid: -1, must be at least 0"},
    {15, legal_hello, {8, 0, "\xff", 0}, "engine_hello.job_key_digest: " NOT_UTF8},
};
enum { BROKEN_COUNT = sizeof broken / sizeof broken[0] };

START_TEST(broken_values_are_refused)
{
    const struct broken *row_under_test = &broken[_i];
    write_part(&part, row_under_test->legal, &(struct value){0, 0, NULL, 0});
    assert_accepted(row_under_test->kind);
    write_part(&part, row_under_test->legal, &row_under_test->change);
    assert_refused(row_under_test->kind, row_under_test->sentence);
}
END_TEST

/* Each text at its limit is accepted, one byte more is refused and never cut. */
struct limit {
    unsigned kind;
    const struct value *legal;
    unsigned number;
    size_t most;
    const char *name;
};
static const struct limit limits[] = {
    {1, legal_attach, 3, 127, "attach_request.job"},
    {1, legal_attach, 4, 127, "attach_request.job_key"},
    {1, legal_attach, 11, 31, "attach_request.origin"},
    {1, legal_attach, 12, 31, "attach_request.client_version"},
    {2, legal_reply, 2, 1023, "attach_reply.text"},
    {5, legal_ack, 3, 1023, "ack.text"},
    {7, legal_notice, 2, 1023, "notice.text"},
    {8, legal_start, 1, 127, "engine_start.job"},
    {8, legal_start, 9, 255, "engine_start.attach_path"},
    {10, legal_session, 4, 1023, "engine_session.text"},
    {13, legal_stop, 1, 1023, "engine_stop.reason"},
    {15, legal_hello, 2, 127, "engine_hello.job"},
    {15, legal_hello, 8, 31, "engine_hello.job_key_digest"},
};
enum { LIMIT_COUNT = sizeof limits / sizeof limits[0] };

START_TEST(long_texts_are_refused)
{
    const struct limit *limit = &limits[_i];
    char sentence[128];
    snprintf(sentence, sizeof sentence, "%s: %zu bytes, at most %zu", limit->name, limit->most + 1,
             limit->most);
    write_part(&part, limit->legal, &(struct value){limit->number, 0, letters(limit->most), 0});
    assert_accepted(limit->kind);
    write_part(&part, limit->legal, &(struct value){limit->number, 0, letters(limit->most + 1), 0});
    assert_refused(limit->kind, sentence);
}
END_TEST

/* A message without one of its required fields is refused whole. */
START_TEST(missing_fields_are_refused)
{
    static const struct value *const all[] = {legal_region_add, legal_region_remove, legal_query,
                                              legal_fate};
    static const unsigned kinds[] = {3, 4, 11, 14};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        part.used = 0;
        put_number(&part, all[i][0].number, 1);
        assert_refused(kinds[i], "Packet: malformed, cut short, or a required field is missing");
    }
}
END_TEST

/* ---- rows ------------------------------------------------------------------------------------ */

static void put_setting(const char *name, const char *value)
{
    row.used = 0;
    put_string(&row, 1, name);
    put_string(&row, 2, value);
    put_block(&part, 13, row.bytes, row.used);
}

#define NO_SETTING                                                                                 \
    "attach_request.settings[1].name: must begin with HVD_ or HOROVOD_, or be a variable of NCCL " \
    "that a worker takes"

START_TEST(settings_have_rules)
{
    static const struct {
        const char *name, *sentence;
    } names[] = {
        {"PATH", NO_SETTING},
        {"", NO_SETTING},
        {"HVD", NO_SETTING},
        {"hvd_x", NO_SETTING},
        {"HVD_\xff", "attach_request.settings[1].name: " NOT_UTF8},
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        write_part(&part, legal_attach, &(struct value){0, 0, NULL, 0});
        put_setting("HVD_A", "");
        assert_accepted(1);
        put_setting(names[i].name, "v");
        assert_refused(1, names[i].sentence);
    }
    write_part(&part, legal_attach, &(struct value){0, 0, NULL, 0});
    put_setting("HOROVOD_A", letters(1024));
    assert_refused(1, "attach_request.settings[0].value: 1024 bytes, at most 1023");
}
END_TEST

START_TEST(settings_are_bounded)
{
    write_part(&part, legal_attach, &(struct value){0, 0, NULL, 0});
    for (int i = 0; i < HVI_WIRE_SETTINGS_MAX; i++)
        put_setting("HVD_A", "v");
    assert_accepted(1);
    put_setting("HVD_A", "v");
    assert_refused(1, "attach_request.settings: 65 rows, at most 64");
}
END_TEST

static void put_rank_row(unsigned number, int64_t rank, const char *state)
{
    row.used = 0;
    put_number(&row, 1, (uint64_t)rank);
    put_number(&row, 2, 0);
    put_number(&row, 3, 0);
    put_string(&row, 4, state);
    put_block(&part, number, row.bytes, row.used);
}

START_TEST(rank_rows_have_rules)
{
    write_part(&part, legal_hello, &(struct value){0, 0, NULL, 0});
    put_rank_row(7, 0, "absent");
    put_rank_row(7, 1, "");
    assert_refused(15, "engine_hello.ranks[1].state: empty");
    part.used = 0;
    put_number(&part, 1, 1);
    put_rank_row(2, -1, "absent");
    assert_refused(12, "engine_report.ranks[0].rank: -1, must be at least 0");
}
END_TEST

START_TEST(rank_rows_are_bounded)
{
    part.used = 0;
    put_number(&part, 1, 1);
    for (int i = 0; i < HVI_WIRE_ROWS_MAX; i++)
        put_rank_row(2, i, "absent");
    assert_accepted(12);
    put_rank_row(2, 0, "absent");
    assert_refused(12, "engine_report.ranks: 1025 rows, at most 1024");
}
END_TEST

/* A stall row; `ready` and `missing` times a rank. */
static void put_stall_row(const char *tensor, const char *job, int ready, int missing, int64_t rank)
{
    static struct writer inner;
    row.used = 0;
    put_string(&row, 1, tensor);
    put_string(&row, 2, "allreduce");
    put_number(&row, 3, 1);
    put_string(&row, 6, job);
    for (int i = 0; i < ready; i++)
        put_number(&row, 4, (uint64_t)rank);
    for (int i = 0; i < missing; i++) {
        inner.used = 0;
        put_number(&inner, 1, (uint64_t)rank);
        put_number(&inner, 2, 0);
        put_string(&inner, 3, i == 2 ? "" : "S");
        put_block(&row, 5, inner.bytes, inner.used);
    }
    put_block(&part, 3, row.bytes, row.used);
}

START_TEST(stall_rows_have_rules)
{
    static const struct {
        const char *tensor, *job;
        int ready, missing;
        int64_t rank;
        const char *sentence;
    } rows[] = {
        {"", "", 0, 0, 0, "engine_report.stalls[0].tensor: empty"},
        {"t", "a/b", 0, 0, 0, "engine_report.stalls[0].job: " JOB_RULE},
        {"t", "", 1, 0, -1, "engine_report.stalls[0].ready: -1, must be at least 0"},
        {"t", "", 1025, 0, 0, "engine_report.stalls[0].ready: 1025 rows, at most 1024"},
        {"t", "", 0, 1, -1, "engine_report.stalls[0].missing[0].rank: -1, must be at least 0"},
        {"t", "", 0, 3, 1, "engine_report.stalls[0].missing[2].process: empty"},
        {"t", "", 0, 1025, 1, "engine_report.stalls[0].missing: 1025 rows, at most 1024"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        part.used = 0;
        put_number(&part, 1, 1);
        put_stall_row(rows[i].tensor, rows[i].job, rows[i].ready, rows[i].missing, rows[i].rank);
        assert_refused(12, rows[i].sentence);
    }
}
END_TEST

START_TEST(stall_rows_are_bounded)
{
    part.used = 0;
    put_number(&part, 1, 1);
    for (int i = 0; i < HVI_WIRE_STALLS_MAX; i++)
        put_stall_row("t", "", 1, 2, 1);
    assert_accepted(12);
    put_stall_row("t", "", 1, 2, 1);
    assert_refused(12, "engine_report.stalls: 129 rows, at most 128");
}
END_TEST

START_TEST(packets_are_bounded)
{
    static unsigned char bytes[HVI_PACKET_BYTES_MAX + 1];
    struct hvi_packet_msg msg;
    char text[128];
    ck_assert_int_eq(hvi_packet_msg_decode(bytes, sizeof bytes, &msg, text, sizeof text),
                     HVI_ERR_PROTOCOL);
    ck_assert_str_eq(text, "packet: 131073 bytes, at most 131072");
}
END_TEST

/* A sentence that does not fit is cut, and nothing is written past the end. */
START_TEST(sentences_fit_their_room)
{
    struct hvi_packet_msg msg;
    char text[12];
    memset(text, '#', sizeof text);
    ck_assert_int_eq(hvi_packet_msg_decode(NULL, 0, &msg, text, 8), HVI_ERR_PROTOCOL);
    ck_assert_str_eq(text, "packet:");
    ck_assert_int_eq(text[8], '#');
}
END_TEST

/* ---- admin ----------------------------------------------------------------------------------- */

static void assert_request_refused(unsigned kind, const char *sentence)
{
    struct hvi_admin_request request;
    char text[256] = "";
    message.used = 0;
    put_number(&message, 1, 1);
    put_number(&message, 2, 1);
    put_block(&message, kind, part.bytes, part.used);
    int status = hvi_admin_request_decode(message.bytes, message.used, &request, text, sizeof text);
    ck_assert_int_eq(status, HVI_ERR_PROTOCOL);
    ck_assert_str_eq(text, sentence);
}

START_TEST(admin_requests_have_rules)
{
    static const struct value legal_stop_job[] = {{1, 0, "j", 0}, {2, 0, "r", 0}, {0, 0, NULL, 0}};
    static const struct value legal_exited[] = {{1, 0, "j", 0},  {2, 0, NULL, 0}, {3, 1, NULL, 0},
                                                {4, 1, NULL, 0}, {5, 9, NULL, 0}, {0, 0, NULL, 0}};
    static const struct broken rows[] = {
        {5, legal_stop_job, {1, 0, "", 0}, "ranks.job: " JOB_RULE},
        {6, legal_stop_job, {1, 0, "a b", 0}, "stalls.job: " JOB_RULE},
        {7, legal_stop_job, {1, 0, "../x", 0}, "job_stop.job: " JOB_RULE},
        {7, legal_stop_job, {2, 0, "\xff", 0}, "job_stop.reason: " NOT_UTF8},
        {8, legal_exited, {1, 0, "", 0}, "process_exited.job: " JOB_RULE},
        {8, legal_exited, {2, -1, NULL, 0}, "process_exited.rank: -1, must be at least 0"},
        {8, legal_exited, {3, -1, NULL, 0}, "process_exited.pid: -1, must be at least 0"},
        {8, legal_exited, {5, 256, NULL, 0}, "process_exited.code: 256, must be 0..255"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        write_part(&part, rows[i].legal, &rows[i].change);
        if (rows[i].kind == 6)
            part.used = 0, put_string(&part, 1, rows[i].change.text);
        assert_request_refused(rows[i].kind, rows[i].sentence);
    }
}
END_TEST

static void assert_reply_refused(unsigned number, const struct value *legal,
                                 const struct value *change, const char *sentence)
{
    struct hvi_admin_reply received;
    char text[256] = "";
    write_part(&part, legal, change);
    message.used = 0;
    put_number(&message, 1, 1);
    put_number(&message, 2, 1);
    put_number(&message, 3, 0);
    put_block(&message, number, part.bytes, part.used);
    int status = hvi_admin_reply_decode(message.bytes, message.used, &received, text, sizeof text);
    ck_assert_int_eq(status, HVI_ERR_PROTOCOL);
    ck_assert_str_eq(text, sentence);
}

START_TEST(admin_replies_have_rules)
{
    static const struct value daemon[] = {
        {1, 0, "1", 0},   {2, 1, NULL, 0},  {3, 1, NULL, 0}, {4, 1, NULL, 0}, {5, 0, "/r", 0},
        {6, 0, "up", 0},  {7, 1, NULL, 0},  {8, 1, NULL, 0}, {9, 1, NULL, 0}, {10, 1, NULL, 0},
        {11, 1, NULL, 0}, {12, 1, NULL, 0}, {0, 0, NULL, 0}};
    static const struct value job[] = {{1, 0, "j", 0},  {2, 1, NULL, 0}, {3, 1, NULL, 0},
                                       {4, 1, NULL, 0}, {5, 1, NULL, 0}, {6, 0, "running", 0},
                                       {7, 1, NULL, 0}, {8, 1, NULL, 0}, {0, 0, NULL, 0}};
    static const struct broken rows[] = {
        {5, daemon, {1, 0, "", 0}, "admin_reply.daemon.version: empty"},
        {5, daemon, {2, -1, NULL, 0}, "admin_reply.daemon.pid: -1, must be at least 0"},
        {5, daemon, {5, 0, "\xff", 0}, "admin_reply.daemon.runtime_dir: " NOT_UTF8},
        {6, job, {1, 0, "", 0}, "admin_reply.jobs[0].job: " JOB_RULE},
        {6, job, {4, 0, NULL, 0}, "admin_reply.jobs[0].size: 0, must be 1..1048576"},
        {6, job, {5, -1, NULL, 0}, "admin_reply.jobs[0].attached: -1, must be 0..1048576"},
        {6, job, {6, 0, "", 0}, "admin_reply.jobs[0].state: empty"},
        {6, job, {7, -1, NULL, 0}, "admin_reply.jobs[0].engine_pid: -1, must be at least 0"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        assert_reply_refused(rows[i].kind, rows[i].legal, &rows[i].change, rows[i].sentence);
}
END_TEST

/* Rows that are cheap to send and dear to hold: refused long before memory is short. */
START_TEST(parts_are_bounded)
{
    enum { ROWS = 400000 };
    static const unsigned char rank_row[] = {0x3a, 9, 8, 1, 16, 1, 24, 1, 34, 1, 'S'};
    static const unsigned char head[] = {8, 1, 16, 1, 24, 0};
    struct hvi_admin_reply reply;
    char text[128] = "";
    size_t length = sizeof head + ROWS * sizeof rank_row;
    unsigned char *bytes = malloc(length);
    ck_assert_ptr_nonnull(bytes);
    memcpy(bytes, head, sizeof head);
    for (size_t i = 0; i < ROWS; i++)
        memcpy(bytes + sizeof head + i * sizeof rank_row, rank_row, sizeof rank_row);
    ck_assert_int_eq(hvi_admin_reply_decode(bytes, length, &reply, text, sizeof text),
                     HVI_ERR_PROTOCOL);
    ck_assert_str_eq(text, "AdminReply: too many parts");
    free(bytes);
}
END_TEST

/* ---- encoding has the same rules ------------------------------------------------------------- */

static void assert_not_encodable(const struct hvi_packet_msg *msg)
{
    size_t length = 4711;
    int status = hvi_packet_msg_encode(msg, message.bytes, sizeof message.bytes, &length);
    ck_assert_int_eq(status, HVI_ERR_INVALID);
    ck_assert_uint_eq(length, 4711);
}

START_TEST(encoder_refuses_what_would_not_decode)
{
    struct hvi_packet_msg msg;
    hvt_packet_sample(0, &msg);
    msg.attach_request.size = 0;
    assert_not_encodable(&msg);
    hvt_packet_sample(0, &msg);
    strcpy(msg.attach_request.job, "a b");
    assert_not_encodable(&msg);
    hvt_packet_sample(0, &msg);
    memset(msg.attach_request.origin, 'x', sizeof msg.attach_request.origin); /* no NUL */
    assert_not_encodable(&msg);
    hvt_packet_sample(0, &msg);
    msg.attach_request.setting_count = 1; /* no rows */
    assert_not_encodable(&msg);
    struct hvi_setting setting = {"PATH", "/"};
    msg.attach_request.settings = &setting;
    assert_not_encodable(&msg);
    msg.attach_request.setting_count = HVI_WIRE_SETTINGS_MAX + 1;
    assert_not_encodable(&msg);
    memset(&msg, 0, sizeof msg);
    assert_not_encodable(&msg);
    msg.kind = (enum hvi_packet_kind)HVI_PACKET_KIND_END;
    assert_not_encodable(&msg);
    hvt_packet_sample(2 * (HVI_PACKET_NOTICE - 1), &msg);
    strcpy(msg.notice.text, "\xff");
    assert_not_encodable(&msg);
}
END_TEST

START_TEST(admin_encoders_refuse_too)
{
    struct hvi_admin_request request;
    struct hvi_admin_reply reply;
    unsigned char *bytes = NULL;
    size_t length = 0;
    hvt_request_sample(2 * (HVI_ADMIN_RANKS - HVI_ADMIN_STATUS), &request);
    request.job[0] = '\0';
    ck_assert_int_eq(hvi_admin_request_encode(&request, &bytes, &length), HVI_ERR_INVALID);
    request.kind = (enum hvi_admin_kind)0;
    ck_assert_int_eq(hvi_admin_request_encode(&request, &bytes, &length), HVI_ERR_INVALID);
    hvt_reply_sample(0, &reply);
    reply.status = 2;
    ck_assert_int_eq(hvi_admin_reply_encode(&reply, &bytes, &length), HVI_ERR_INVALID);
    ck_assert_ptr_null(bytes);
}
END_TEST

START_TEST(nodes_are_counted_by_what_is_known)
{
    ck_assert_int_eq(hvi_job_nodes(4, 4, 1), 1);
    ck_assert_int_eq(hvi_job_nodes(4, 2, 2), 2);
    ck_assert_int_eq(hvi_job_nodes(5, 2, 0), 3);
    ck_assert_int_eq(hvi_job_nodes(4, 0, 3), 3);
    ck_assert_int_eq(hvi_job_nodes(4, -1, -1), 1);
    ck_assert_int_eq(hvi_job_nodes(4, 9, 1), 1);
    ck_assert_int_eq(hvi_job_nodes(1, 1, 2), 1);
    ck_assert_int_eq(hvi_job_nodes(INT32_MAX, 1, 1), INT32_MAX);
    ck_assert_int_eq(hvi_job_nodes(0, 0, 0), 1);
}
END_TEST

START_TEST(job_ids)
{
    ck_assert(hvi_job_id_valid("a"));
    ck_assert(hvi_job_id_valid("AZaz09._:@-"));
    ck_assert(hvi_job_id_valid("..."));
    ck_assert(hvi_job_id_valid(letters(127)));
    ck_assert(!hvi_job_id_valid(letters(128)));
    ck_assert(!hvi_job_id_valid(""));
    ck_assert(!hvi_job_id_valid("."));
    ck_assert(!hvi_job_id_valid(".."));
    for (int c = 1; c < 256; c++) {
        char id[3] = {'a', (char)c, '\0'};
        bool legal = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                     c == '.' || c == '_' || c == ':' || c == '@' || c == '-';
        ck_assert_int_eq(hvi_job_id_valid(id), legal);
    }
}
END_TEST

/* ---- the tables themselves ------------------------------------------------------------------- */

static void assert_complete(const struct wire_table *table)
{
    ck_assert_uint_eq(table->field_count, table->descriptor->n_fields);
    for (unsigned i = 0; i < table->field_count; i++) {
        const struct wire_field *field = &table->fields[i];
        ck_assert_uint_eq(field->number, table->descriptor->fields[i].id);
        if (field->rows)
            assert_complete(field->rows);
    }
}

/* A field added to the schema and forgotten in the tables would be lost silently. */
START_TEST(every_schema_field_has_a_row)
{
    for (unsigned kind = HVI_PACKET_ATTACH_REQUEST; kind < HVI_PACKET_KIND_END; kind++)
        assert_complete(hvi_wire_packet_bodies[kind].table);
    for (unsigned kind = HVI_ADMIN_STATUS; kind < HVI_ADMIN_KIND_END; kind++)
        assert_complete(hvi_wire_admin_bodies[kind].table);
    assert_complete(&hvi_wire_admin_reply);
}
END_TEST

static void add_rules(TCase *tcase)
{
    tcase_add_loop_test(tcase, broken_values_are_refused, 0, BROKEN_COUNT);
    tcase_add_loop_test(tcase, long_texts_are_refused, 0, LIMIT_COUNT);
    tcase_add_test(tcase, missing_fields_are_refused);
    tcase_add_test(tcase, settings_have_rules);
    tcase_add_test(tcase, settings_are_bounded);
    tcase_add_test(tcase, rank_rows_have_rules);
    tcase_add_test(tcase, rank_rows_are_bounded);
    tcase_add_test(tcase, stall_rows_have_rules);
    tcase_add_test(tcase, stall_rows_are_bounded);
    tcase_add_test(tcase, packets_are_bounded);
    tcase_add_test(tcase, sentences_fit_their_room);
    tcase_add_test(tcase, admin_requests_have_rules);
    tcase_add_test(tcase, admin_replies_have_rules);
    tcase_add_test(tcase, parts_are_bounded);
    tcase_add_test(tcase, encoder_refuses_what_would_not_decode);
    tcase_add_test(tcase, admin_encoders_refuse_too);
    tcase_add_test(tcase, job_ids);
    tcase_add_test(tcase, nodes_are_counted_by_what_is_known);
    tcase_add_test(tcase, every_schema_field_has_a_row);
}

int main(void)
{
    Suite *suite = suite_create("wire_rules");
    TCase *tcase = tcase_create("rules");
    add_rules(tcase);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
