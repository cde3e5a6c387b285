/* SPDX-License-Identifier: Apache-2.0
 * Which values are legal. Decoding and encoding both pass through here, so what can be sent and
 * what is accepted are the same by construction. */
#include "proto/wire_internal.h"

#include "base/status.h"
#include "base/utf8.h"

#include <inttypes.h>
#include <string.h>

static bool is_job_char(char c)
{
    if ((c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'))
        return true;
    return c != '\0' && strchr("._:@-", c) != NULL;
}

int32_t hvi_job_nodes(int32_t size, int32_t local_size, int32_t cross_size)
{
    int32_t nodes = cross_size > 1 ? cross_size : 1;
    if (size <= 1)
        return 1;
    if (local_size >= 1 && (size - 1) / local_size + 1 > nodes)
        nodes = (size - 1) / local_size + 1;
    return nodes;
}

bool hvi_job_id_valid(const char *job)
{
    size_t bytes = strnlen(job, HVI_JOB_ID_MAX + 1);
    if (bytes == 0 || bytes > HVI_JOB_ID_MAX)
        return false;
    if (strcmp(job, ".") == 0 || strcmp(job, "..") == 0)
        return false;
    for (size_t i = 0; i < bytes; i++) {
        if (!is_job_char(job[i]))
            return false;
    }
    return true;
}

static bool has_prefix(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

static int refuse_signed(struct wire_context *context, const char *name,
                         const struct wire_field *field, int64_t value)
{
    if (field->high == INT32_MAX)
        return hvi_wire_refuse(context, name, "%" PRId64 ", must be at least %" PRId64, value,
                               field->low);
    return hvi_wire_refuse(context, name, "%" PRId64 ", must be %" PRId64 "..%" PRIu64, value,
                           field->low, field->high);
}

int hvi_wire_check_number(struct wire_context *context, const char *name,
                          const struct wire_field *field, uint64_t value)
{
    if (field->kind == WIRE_I32) {
        int64_t signed_value = (int64_t)value;
        if (signed_value < field->low || signed_value > (int64_t)field->high)
            return refuse_signed(context, name, field, signed_value);
        return HVI_OK;
    }
    if (value < (uint64_t)field->low || value > field->high)
        return hvi_wire_refuse(context, name, "%" PRIu64 ", must be %" PRId64 "..%" PRIu64, value,
                               field->low, field->high);
    return HVI_OK;
}

static int check_rule(struct wire_context *context, const char *name, enum wire_rule rule,
                      const char *text, size_t bytes)
{
    switch (rule) {
    case WIRE_RULE_ANY:
        return HVI_OK;
    case WIRE_RULE_FILLED:
        if (bytes == 0)
            return hvi_wire_refuse(context, name, "empty");
        return HVI_OK;
    case WIRE_RULE_JOB_OR_EMPTY:
        if (bytes == 0)
            return HVI_OK;
        /* fall through */
    case WIRE_RULE_JOB:
        if (!hvi_job_id_valid(text))
            return hvi_wire_refuse(
                context, name, "a job id is 1..%d letters, digits and . _ : @ -, and not . or ..",
                HVI_JOB_ID_MAX);
        return HVI_OK;
    case WIRE_RULE_SETTING_NAME:
        if (!has_prefix(text, "HVD_") && !has_prefix(text, "HOROVOD_") &&
            !hvi_nccl_is_allowed(text))
            return hvi_wire_refuse(context, name,
                                   "must begin with HVD_ or HOROVOD_, or be a variable of NCCL "
                                   "that a worker takes");
        return HVI_OK;
    case WIRE_RULE_NCCL_NAME:
        if (!hvi_nccl_is_allowed(text))
            return hvi_wire_refuse(context, name, "no variable of NCCL that a worker takes");
        return HVI_OK;
    }
    return HVI_OK;
}

int hvi_wire_check_text(struct wire_context *context, const char *name,
                        const struct wire_field *field, const char *text, size_t bytes)
{
    if (bytes >= field->room)
        return hvi_wire_refuse(context, name, "%zu bytes, at most %u", bytes, field->room - 1);
    if (!hvi_utf8_valid(text, bytes))
        return hvi_wire_refuse(context, name, "not UTF-8 without NUL bytes");
    return check_rule(context, name, field->rule, text, bytes);
}

int hvi_wire_check_count(struct wire_context *context, const char *name,
                         const struct wire_field *field, size_t count)
{
    const char *unit = field->kind == WIRE_BYTES ? "bytes" : "rows";
    if (count > field->high)
        return hvi_wire_refuse(context, name, "%zu %s, at most %" PRIu64, count, unit, field->high);
    if (field->kind == WIRE_BYTES && count < (uint64_t)field->low)
        return hvi_wire_refuse(context, name, "%zu %s, at least %" PRId64, count, unit, field->low);
    return HVI_OK;
}
