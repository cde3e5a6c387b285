/* SPDX-License-Identifier: Apache-2.0
 * The check that every submission passes: pure, so that a fuzzer can own all of its input. */
#ifndef ENGINE_INTAKE_H
#define ENGINE_INTAKE_H

#include "daemon/engine/region.h"
#include "shm/abi.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What is known about the session when the submission arrives. */
struct engine_intake_view {
    const struct engine_regions *regions;
    uint64_t next_seq;
    uint32_t in_flight; /* ops of this session that have no completion yet */
    int32_t rank, size;
    bool cookie_known; /* an op in flight has this cookie ... */
    bool wants_output; /* ... and waits for HVI_SUBMIT_OUTPUT */
    bool tensor_known; /* tensor_id is in range and has been defined */
};

/* Where the operands are. NULL without an operand. */
struct engine_operands {
    struct engine_region *in, *out;
    uint64_t in_bytes; /* payload of the input */
};

/* Validates a private copy of a submission (names are checked by the caller). HVI_OK; an op error
 * (the op fails, the session goes on); or HVI_ERR_PROTOCOL for what no honest library sends.
 * `text_p` gets the reason, without subject: "seq 7 where 3 was due". */
int engine_intake_validate(const struct hvi_submission *copy, const struct engine_intake_view *view,
                           struct engine_operands *operands_p, char *text_p, size_t text_size);

#endif
