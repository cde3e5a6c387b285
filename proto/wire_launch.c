/* SPDX-License-Identifier: Apache-2.0
 * The messages of launch.proto: their tables, and what a table cannot say. */
#include "proto/launch.h"

#include "base/status.h"
#include "proto/wire_rows.h"

#include <stdlib.h>
#include <string.h>

#include "launch.pb-c.h"

#define PIDS_MOST HVI_RANKS_MAX

/* `least` bytes, 0 for a list that may be empty. */
#define WORDS(n, m, c, least)                                                                      \
    {                                                                                              \
        .number = (n), .kind = WIRE_BYTES, .offset = offsetof(struct hvi_launch_start, m),         \
        .count_offset = offsetof(struct hvi_launch_start, c), .room = 1, .low = (least),           \
        .high = HVI_LAUNCH_WORDS_MAX                                                               \
    }
#define DATA(n) LIST(n, hvi_launch_data, data, bytes, WIRE_BYTES, HVI_LAUNCH_DATA_MAX, NULL)

/* ---- agent -> launcher ----------------------------------------------------------------------- */

static const struct wire_field hello_fields[] = {
    U32(1, hvi_launch_hello, launch_version),   TEXT(2, hvi_launch_hello, version, FILLED),
    TEXT(3, hvi_launch_hello, machine, FILLED), TEXT(4, hvi_launch_hello, address, ANY),
    TEXT(5, hvi_launch_hello, kernel, ANY),     TEXT(6, hvi_launch_hello, cores, ANY),
};
static const struct wire_table hello = TABLE(launch_hello, hello_fields, 0);

static const struct wire_field ready_fields[] = {
    NUMBER(1, hvi_launch_ready, torch_port, 0, 65535),
    NUMBER(2, hvi_launch_ready, mesh_port, 0, 65535),
    TEXT(3, hvi_launch_ready, address, ANY),
};
static const struct wire_table ready = TABLE(launch_ready, ready_fields, 0);

static const struct wire_field started_fields[] = {
    LIST(1, hvi_launch_started, pids, pid_count, WIRE_INTS, PIDS_MOST, NULL),
};
static const struct wire_table started = TABLE(launch_started, started_fields, 0);

static const struct wire_field output_fields[] = {
    NUMBER(1, hvi_launch_data, rank, 0, HVI_LAUNCH_SIZE_MAX - 1),
    NUMBER(2, hvi_launch_data, stream, 1, HVI_LAUNCH_RESULT),
    DATA(3),
};
static const struct wire_table output = TABLE(launch_output, output_fields, 0);

static const struct wire_field data_fields[] = {DATA(1)};
static const struct wire_table log_bytes = TABLE(launch_log, data_fields, 0);
static const struct wire_table input = TABLE(launch_input, data_fields, 0);
static const struct wire_table call = TABLE(launch_call, data_fields, 0);

static const struct wire_field text_fields[] = {
    TEXT(1, hvi_launch_text, text, FILLED),
    NUMBER(2, hvi_launch_text, code, 1, 255),
};
/* These sentences have no code. */
static const struct wire_table say = {
    .descriptor = &hvd__launch_say__descriptor, .fields = text_fields, .field_count = 1};
static const struct wire_table lost = {
    .descriptor = &hvd__launch_lost__descriptor, .fields = text_fields, .field_count = 1};
static const struct wire_table failed = TABLE(launch_failed, text_fields, 0);

static const struct wire_field exit_fields[] = {
    NUMBER(1, hvi_launch_exit, rank, 0, HVI_LAUNCH_SIZE_MAX - 1),
    PID(2, hvi_launch_exit, pid),
    FLAG(3, hvi_launch_exit, signaled),
    NUMBER(4, hvi_launch_exit, code, 0, 255),
    FLAG(5, hvi_launch_exit, dying),
};
static const struct wire_table exit_row = TABLE(launch_exit, exit_fields, 0);

static const struct wire_field exited_fields[] = {
    /* One may be dying beside those that have ended. */
    LIST(1, hvi_launch_exited, exits, exit_count, WIRE_ROWS, HVI_RANKS_MAX + 1, &exit_row),
};
static const struct wire_table exited = TABLE(launch_exited, exited_fields, 0);

/* ---- launcher -> agent ----------------------------------------------------------------------- */

static const struct wire_field rank_fields[] = {
    NUMBER(1, hvi_launch_rank, rank, 0, HVI_LAUNCH_SIZE_MAX - 1),
    NUMBER(2, hvi_launch_rank, cross_rank, 0, HVI_LAUNCH_SIZE_MAX - 1),
    NUMBER(3, hvi_launch_rank, cross_size, 1, HVI_LAUNCH_SIZE_MAX),
};
static const struct wire_table rank_row = TABLE(launch_rank, rank_fields, 0);

static const struct wire_field start_fields[] = {
    U32(1, hvi_launch_start, launch_version),
    TEXT(2, hvi_launch_start, job, JOB),
    TEXT(3, hvi_launch_start, job_key, FILLED),
    NUMBER(4, hvi_launch_start, size, 1, HVI_LAUNCH_SIZE_MAX),
    LIST(5, hvi_launch_start, ranks, rank_count, WIRE_ROWS, HVI_RANKS_MAX, &rank_row),
    WORDS(6, command, command_bytes, 2),
    WORDS(7, environment, environment_bytes, 0),
    WORDS(8, settings, settings_bytes, 0),
    TEXT(9, hvi_launch_start, directory, FILLED),
    TEXT(10, hvi_launch_start, address, ANY),
    TEXT(11, hvi_launch_start, hvdd, ANY),
    TEXT(12, hvi_launch_start, log_level, ANY),
    U64(13, hvi_launch_start, start_timeout_ns),
    U64(14, hvi_launch_start, grace_ns),
    FLAG(15, hvi_launch_start, verbose),
    FLAG(16, hvi_launch_start, bind_to_core),
    U32(17, hvi_launch_start, exports),
    U64(18, hvi_launch_start, call_bytes),
    U64(19, hvi_launch_start, silence_ns),
    TEXT(20, hvi_launch_start, mesh_listen, ANY),
    TEXT(21, hvi_launch_start, mesh_join, ANY),
    TEXT(22, hvi_launch_start, mesh_key, ANY),
    FLAG(23, hvi_launch_start, gpu_mps),
    NUMBER(24, hvi_launch_start, ranks_before, 0, HVI_LAUNCH_SIZE_MAX),
    NUMBER(25, hvi_launch_start, ranks_there, 0, HVI_LAUNCH_SIZE_MAX),
    FLAG(26, hvi_launch_start, compat),
    TEXT(27, hvi_launch_start, host, ANY),
};
static const struct wire_table start = TABLE(launch_start, start_fields, 0);

static const struct wire_field go_fields[] = {
    TEXT(1, hvi_launch_go, master_address, ANY),
    NUMBER(2, hvi_launch_go, master_port, 0, 65535),
};
static const struct wire_table go = TABLE(launch_go, go_fields, 0);

static const struct wire_table looked = {.descriptor = &hvd__launch_looked__descriptor};
static const struct wire_table look = {.descriptor = &hvd__launch_look__descriptor};
static const struct wire_table beat = {.descriptor = &hvd__launch_beat__descriptor};
static const struct wire_table input_end = {.descriptor = &hvd__launch_input_end__descriptor};

static const struct wire_field taken_fields[] = {
    NUMBER(1, hvi_launch_number, number, 1, HVI_LAUNCH_DATA_MAX),
};
static const struct wire_table input_taken = TABLE(launch_input_taken, taken_fields, 0);

static const struct wire_field signal_fields[] = {
    NUMBER(1, hvi_launch_number, number, 1, HVI_LAUNCH_SIGNAL_MAX),
};
static const struct wire_table signal_number = TABLE(launch_signal, signal_fields, 0);

static const struct wire_field close_fields[] = {
    NUMBER(1, hvi_launch_number, number, 1, HVI_LAUNCH_STREAMS),
};
static const struct wire_table close_stream = TABLE(launch_close, close_fields, 0);

static const struct wire_field end_fields[] = {
    FLAG(1, hvi_launch_end, linger),
};
static const struct wire_table end = TABLE(launch_end, end_fields, 0);

/* ---- relay ----------------------------------------------------------------------------------- */

#define PASSED(n) LIST(n, hvi_launch_pass, data, bytes, WIRE_BYTES, HVI_LAUNCH_DATA_MAX, NULL)

static const struct wire_field up_fields[] = {
    U32(1, hvi_launch_pass, number),
    NUMBER(2, hvi_launch_pass, stream, 1, HVI_LAUNCH_STREAMS),
    PASSED(3),
};
static const struct wire_table up = TABLE(launch_up, up_fields, 0);

static const struct wire_field relay_taken_fields[] = {
    U32(1, hvi_launch_taken, number),
    NUMBER(2, hvi_launch_taken, bytes, 1, UINT32_MAX),
};
static const struct wire_table taken = TABLE(launch_taken, relay_taken_fields, 0);

static const struct wire_field gone_fields[] = {
    U32(1, hvi_launch_gone, number),
    FLAG(2, hvi_launch_gone, signaled),
    NUMBER(3, hvi_launch_gone, code, 0, 255),
};
static const struct wire_table gone = TABLE(launch_gone, gone_fields, 0);

static const struct wire_field open_fields[] = {
    U32(1, hvi_launch_open, number),
    BYTES(2, hvi_launch_open, command, command_bytes, 2, HVI_LAUNCH_WORDS_MAX),
    U64(3, hvi_launch_open, patience_ns),
    U64(4, hvi_launch_open, silence_ns),
};
static const struct wire_table open_process = TABLE(launch_open, open_fields, 0);

static const struct wire_field down_fields[] = {
    U32(1, hvi_launch_pass, number),
    PASSED(2),
};
static const struct wire_table down = TABLE(launch_down, down_fields, 0);

static const struct wire_field hang_up_fields[] = {
    U32(1, hvi_launch_hang_up, number),
    FLAG(2, hvi_launch_hang_up, kill),
};
static const struct wire_table hang_up = TABLE(launch_hang_up, hang_up_fields, 0);

static const struct wire_body bodies[HVI_LAUNCH_KIND_END] = {
    [HVI_LAUNCH_HELLO] = {"hello", &hello},
    [HVI_LAUNCH_READY] = {"ready", &ready},
    [HVI_LAUNCH_STARTED] = {"started", &started},
    [HVI_LAUNCH_OUTPUT] = {"output", &output},
    [HVI_LAUNCH_LOG] = {"log", &log_bytes},
    [HVI_LAUNCH_SAY] = {"say", &say},
    [HVI_LAUNCH_EXITED] = {"exited", &exited},
    [HVI_LAUNCH_FAILED] = {"failed", &failed},
    [HVI_LAUNCH_INPUT_TAKEN] = {"input_taken", &input_taken},
    [HVI_LAUNCH_START] = {"start", &start},
    [HVI_LAUNCH_GO] = {"go", &go},
    [HVI_LAUNCH_INPUT] = {"input", &input},
    [HVI_LAUNCH_INPUT_END] = {"input_end", &input_end},
    [HVI_LAUNCH_SIGNAL] = {"signal", &signal_number},
    [HVI_LAUNCH_CLOSE] = {"close", &close_stream},
    [HVI_LAUNCH_END] = {"end", &end},
    [HVI_LAUNCH_CALL] = {"call", &call},
    [HVI_LAUNCH_LOOKED] = {"looked", &looked},
    [HVI_LAUNCH_LOOK] = {"look", &look},
    [HVI_LAUNCH_BEAT] = {"beat", &beat},
    [HVI_LAUNCH_UP] = {"up", &up},
    [HVI_LAUNCH_TAKEN] = {"taken", &taken},
    [HVI_LAUNCH_GONE] = {"gone", &gone},
    [HVI_LAUNCH_LOST] = {"lost", &lost},
    [HVI_LAUNCH_OPEN] = {"open", &open_process},
    [HVI_LAUNCH_DOWN] = {"down", &down},
    [HVI_LAUNCH_HANG_UP] = {"hang_up", &hang_up},
};

static const struct wire_body *body_of(unsigned kind)
{
    return kind < HVI_LAUNCH_KIND_END && bodies[kind].table != NULL ? &bodies[kind] : NULL;
}

/* ---- what a table cannot say ----------------------------------------------------------------- */

static int check_words(struct wire_context *context, const char *name, const unsigned char *bytes,
                       size_t length, bool named)
{
    const char *const strings = (const char *)bytes;
    if (length > 0 && strings[length - 1] != '\0')
        return hvi_wire_refuse(context, name, "the last string has no end");
    for (size_t at = 0; at < length; at += strlen(strings + at) + 1)
        if (named && (strings[at] == '=' || strchr(strings + at, '=') == NULL))
            return hvi_wire_refuse(context, name, "a string without NAME=");
    return HVI_OK;
}

static int check_ranks(struct wire_context *context, const struct hvi_launch_start *message)
{
    if (message->rank_count == 0)
        return hvi_wire_refuse(context, "ranks", "none");
    for (size_t i = 0; i < message->rank_count; i++) {
        const struct hvi_launch_rank *rank = &message->ranks[i];
        const int32_t expected = message->ranks[0].rank + (int32_t)i;
        if (rank->rank != expected || rank->rank >= message->size)
            return hvi_wire_refuse(context, "ranks", "%d after %d in a job of %d ranks", rank->rank,
                                   expected - 1, message->size);
        if (rank->cross_rank >= rank->cross_size)
            return hvi_wire_refuse(context, "ranks", "cross rank %d of %d", rank->cross_rank,
                                   rank->cross_size);
    }
    return HVI_OK;
}

static int check_exports(struct wire_context *context, const struct hvi_launch_start *message)
{
    const char *const settings = (const char *)message->settings;
    size_t at = 0;
    for (uint32_t i = 0; i < message->exports; i++) {
        if (at >= message->settings_bytes || strncmp(settings + at, "HOROVOD_", 8) != 0)
            return hvi_wire_refuse(context, "exports", "%u, and setting %u does not fit",
                                   message->exports, i);
        at += strlen(settings + at) + 1;
    }
    return HVI_OK;
}

static int check_command(struct wire_context *context, const unsigned char *command, size_t length)
{
    const int status = check_words(context, "command", command, length, false);
    if (status == HVI_OK && command[0] == '\0')
        return hvi_wire_refuse(context, "command", "the first word is empty");
    return status;
}

static int check_start(struct wire_context *context, const struct hvi_launch_start *message)
{
    int status = check_ranks(context, message);
    if (status == HVI_OK)
        status = check_command(context, message->command, message->command_bytes);
    if (status == HVI_OK)
        status = check_words(context, "environment", message->environment,
                             message->environment_bytes, true);
    if (status == HVI_OK)
        status = check_words(context, "settings", message->settings, message->settings_bytes, true);
    if (status == HVI_OK)
        status = check_exports(context, message);
    if (status == HVI_OK && message->ranks_there > 0 &&
        message->ranks_before + message->rank_count > message->ranks_there)
        return hvi_wire_refuse(context, "ranks_there", "%u, with %u before and %zu here",
                               message->ranks_there, message->ranks_before, message->rank_count);
    return status;
}

static int check_whole(struct wire_context *context, const struct hvi_launch_msg *msg)
{
    if (msg->kind == HVI_LAUNCH_START)
        return check_start(context, &msg->start);
    if (msg->kind == HVI_LAUNCH_OPEN)
        return check_command(context, msg->open.command, msg->open.command_bytes);
    if (msg->kind == HVI_LAUNCH_EXITED && msg->exited.exit_count == 0)
        return hvi_wire_refuse(context, "exits", "none");
    return HVI_OK;
}

/* ---- frames ---------------------------------------------------------------------------------- */

static int pack(const struct hvi_launch_msg *msg, ProtobufCMessage *body, unsigned char **frame_p,
                size_t *bytes_p)
{
    Hvd__LaunchMessage message = HVD__LAUNCH_MESSAGE__INIT;
    message.body_case = (Hvd__LaunchMessage__BodyCase)msg->kind;
    message.hello = (void *)body; /* every alternative of the union is a message pointer */
    const size_t length = protobuf_c_message_get_packed_size(&message.base);
    if (length > HVI_LAUNCH_FRAME_MAX)
        return HVI_ERR_LIMIT;
    unsigned char *frame = malloc(HVI_LAUNCH_FRAME_HEAD + length);
    if (frame == NULL)
        return HVI_ERR_NO_MEMORY;
    for (unsigned i = 0; i < HVI_LAUNCH_FRAME_HEAD; i++)
        frame[i] = (unsigned char)(length >> (8 * (HVI_LAUNCH_FRAME_HEAD - 1 - i)));
    protobuf_c_message_pack(&message.base, frame + HVI_LAUNCH_FRAME_HEAD);
    *frame_p = frame;
    *bytes_p = HVI_LAUNCH_FRAME_HEAD + length;
    return HVI_OK;
}

int hvi_launch_encode(const struct hvi_launch_msg *msg, unsigned char **frame_p, size_t *bytes_p)
{
    const struct wire_body *body = body_of(msg->kind);
    if (body == NULL)
        return HVI_ERR_INVALID;
    struct wire_context context;
    ProtobufCMessage *message;
    hvi_wire_context_init(&context, NULL, 0);
    int status = hvi_wire_put(&context, body->table, &msg->hello, &message);
    if (status == HVI_OK)
        status = check_whole(&context, msg);
    if (status == HVI_OK)
        status = pack(msg, message, frame_p, bytes_p);
    hvi_wire_context_fini(&context);
    return status == HVI_ERR_PROTOCOL ? HVI_ERR_INVALID : status;
}

size_t hvi_launch_frame_bytes(const unsigned char head[HVI_LAUNCH_FRAME_HEAD])
{
    size_t length = 0;
    for (unsigned i = 0; i < HVI_LAUNCH_FRAME_HEAD; i++)
        length = length << 8 | head[i];
    return length;
}

static int decode(struct wire_context *context, const unsigned char *bytes, size_t length,
                  struct hvi_launch_msg *msg)
{
    if (length > HVI_LAUNCH_FRAME_MAX)
        return hvi_wire_refuse(context, "launch_message", "%zu bytes, at most %u", length,
                               HVI_LAUNCH_FRAME_MAX);
    int error = HVI_OK;
    const Hvd__LaunchMessage *message =
        (void *)hvi_wire_unpack(context, &hvd__launch_message__descriptor, bytes, length, &error);
    if (message == NULL)
        return error;
    const struct wire_body *body = body_of(message->body_case);
    if (body == NULL)
        return hvi_wire_refuse(context, "launch_message", "no body, or one that is not known here");
    msg->kind = (enum hvi_launch_kind)message->body_case;
    hvi_wire_enter(context, body->name, -1);
    error = hvi_wire_get(context, body->table, &message->hello->base, &msg->hello);
    if (error == HVI_OK)
        error = check_whole(context, msg);
    if (error != HVI_OK)
        hvi_wire_release(body->table, &msg->hello);
    return error;
}

int hvi_launch_decode(const unsigned char *bytes, size_t length, struct hvi_launch_msg *msg_p,
                      char *text_p, size_t text_size)
{
    struct wire_context context;
    struct hvi_launch_msg msg;
    memset(&msg, 0, sizeof msg);
    hvi_wire_context_init(&context, text_p, text_size);
    const int status = decode(&context, bytes, length, &msg);
    if (status == HVI_OK)
        *msg_p = msg;
    hvi_wire_context_fini(&context);
    return status;
}

void hvi_launch_msg_free(struct hvi_launch_msg *msg)
{
    const struct wire_body *body = body_of(msg->kind);
    if (body != NULL)
        hvi_wire_release(body->table, &msg->hello);
}
