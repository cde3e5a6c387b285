/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/engine/sessions/missing.h"

#include "base/log.h"
#include "base/status.h"
#include "base/types.h"
#include "daemon/engine/exec/task.h"
#include "daemon/engine/memory/region.h"
#include "daemon/engine/sessions/request.h"
#include "daemon/engine/sessions/sessions.h"

#include <inttypes.h>
#include <stdio.h>

#define NOWHERE 1u /* an address that no region holds */

static bool is_in(const struct engine_region *region, uint64_t address)
{
    return address - (uint64_t)(uintptr_t)region->map.base < region->map.bytes;
}

static bool holds(const struct engine_operand *operand, uint64_t address)
{
    return operand->kind == ENGINE_OPERAND_MAPPED && is_in(operand->region, address);
}

/* The request whose memory this is; NULL: none of the op's. */
static const struct engine_request *owner_of(const struct engine_op *op, uint64_t address,
                                             const struct engine_region **region_p)
{
    for (uint32_t i = 0; i < op->set->places; i++) {
        const struct engine_share *share = op->parts[i] ? engine_share_of(op->parts[i]) : NULL;
        if (!share || (!holds(&share->in, address) && !holds(&share->out, address)))
            continue;
        *region_p = holds(&share->in, address) ? share->in.region : share->out.region;
        return engine_request_of(op->parts[i]);
    }
    return NULL;
}

void engine_missing_failed(struct engine_sessions *sessions, struct engine_op *op, uint64_t address)
{
    const struct engine_region *region = NULL;
    /* The slots are the engine's memory, also where they are an operand of every rank. */
    const struct engine_request *owner =
        is_in(&sessions->slots->region, address) ? NULL : owner_of(op, address, &region);
    int32_t rank = owner ? owner->session->rank : -1;
    char text[HVI_TEXT_MAX + 1], label[ENGINE_LABEL], whose[ENGINE_RANK_LABEL] = "the engine";

    if (owner)
        engine_rank_label(owner->session, whose, sizeof whose);
    engine_tensor_label(op->tensor, label);
    snprintf(text, sizeof text,
             "%s '%s': a page of the memory of %s could not be had; look at the limits of memory "
             "there ('hvdctl doctor') and at what has changed that memory since it was allocated",
             hvi_kind_text(op->kind), label, whose);
    HVI_LOG(HVI_LOG_WARN, "memory", "page-missing", text,
            "job=%s rank=%d region=%" PRIu32 " offset=%" PRIu64, sessions->start->job, rank,
            region ? region->id : 0, region ? address - (uint64_t)(uintptr_t)region->map.base : 0);
    engine_op_done(sessions->order, op, HVI_ERR_NO_MEMORY, text, rank);
}

/* Marked in any case: a rank may have named a seat of no member. */
void engine_missing_mark(struct engine_op *op, engine_seat seat)
{
    engine_task_of(op)->work.missing = NOWHERE;
    for (uint32_t i = 0; i < op->set->places; i++) {
        if (op->parts[i] && op->set->seats[i].n == seat.n)
            engine_task_of(op)->work.missing =
                (uint64_t)(uintptr_t)engine_share_of(op->parts[i])->in.address;
    }
}
