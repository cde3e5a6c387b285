/* SPDX-License-Identifier: Apache-2.0
 * What the ranks of an op have to say alike, but for its name and its group. If none of it has changed
 * since they last agreed, they agree: so a slot grant holds (client/slots, daemon/engine/slots), and so
 * the engine compares no part that repeats the last one (daemon/engine/order/agree.c). */
#ifndef HVI_SHM_AGREEMENT_H
#define HVI_SHM_AGREEMENT_H

#include "base/types.h"
#include "shm/abi.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct hvi_agreement {
    uint32_t kind, process_set;
    uint64_t bytes; /* of the input; follows from the rest */
    /* These two runs of fields are the submission's. */
    uint8_t reduce_op, dtype, ndim, reserved0;
    int32_t root;
    double prescale, postscale;
    int64_t dims[8];
};

#define HVI_AGREEMENT_TYPE  8u  /* bytes, from .reduce_op on */
#define HVI_AGREEMENT_SHAPE 80u /* from .prescale on */
_Static_assert(sizeof(struct hvi_agreement) == 16 + HVI_AGREEMENT_TYPE + HVI_AGREEMENT_SHAPE,
               "no padding: it is compared as bytes");
_Static_assert(offsetof(struct hvi_submission, process_set) -
                           offsetof(struct hvi_submission, reduce_op) ==
                       HVI_AGREEMENT_TYPE &&
                   offsetof(struct hvi_agreement, prescale) -
                           offsetof(struct hvi_agreement, reduce_op) ==
                       HVI_AGREEMENT_TYPE,
               "reduce op, dtype, ndim, a reserved byte, root");
_Static_assert(offsetof(struct hvi_submission, submit_ns) -
                       offsetof(struct hvi_submission, prescale) ==
                   HVI_AGREEMENT_SHAPE,
               "scales and dims");

#define HVI_AGREEMENT_AT(said, field)                                                              \
    ((unsigned char *)(uintptr_t)(said) + offsetof(__typeof__(*(said)), field))

/* What a submission with an input of `bytes` says. */
static inline void hvi_agreement_of(const struct hvi_submission *copy, uint64_t bytes,
                                    struct hvi_agreement *said_p)
{
    said_p->kind = copy->kind;
    said_p->process_set = copy->process_set;
    said_p->bytes = bytes;
    memcpy(HVI_AGREEMENT_AT(said_p, reduce_op), HVI_AGREEMENT_AT(copy, reduce_op),
           HVI_AGREEMENT_TYPE);
    memcpy(HVI_AGREEMENT_AT(said_p, prescale), HVI_AGREEMENT_AT(copy, prescale),
           HVI_AGREEMENT_SHAPE);
}

/* The other way round: a submission that says this, has no operands yet and is nobody's. */
static inline void hvi_agreement_submit(const struct hvi_agreement *said,
                                        struct hvi_submission *copy_p)
{
    uint32_t element = hvi_dtype_bytes(said->dtype);

    *copy_p = (struct hvi_submission){
        .kind = (uint16_t)said->kind,
        .process_set = said->process_set,
        .in_region = HVI_REGION_NONE,
        .out_region = HVI_REGION_NONE,
        .aux_region = HVI_REGION_NONE,
        .count = element == 0 ? 0 : said->bytes / element,
        .out_capacity = said->bytes,
    };
    memcpy(HVI_AGREEMENT_AT(copy_p, reduce_op), HVI_AGREEMENT_AT(said, reduce_op),
           HVI_AGREEMENT_TYPE);
    memcpy(HVI_AGREEMENT_AT(copy_p, prescale), HVI_AGREEMENT_AT(said, prescale),
           HVI_AGREEMENT_SHAPE);
}

/* Whether a submission says it. */
static inline bool hvi_agreement_repeats(const struct hvi_agreement *said,
                                         const struct hvi_submission *copy)
{
    return said->kind == copy->kind &&
           memcmp(HVI_AGREEMENT_AT(said, reduce_op), HVI_AGREEMENT_AT(copy, reduce_op),
                  HVI_AGREEMENT_TYPE) == 0 &&
           memcmp(HVI_AGREEMENT_AT(said, prescale), HVI_AGREEMENT_AT(copy, prescale),
                  HVI_AGREEMENT_SHAPE) == 0;
}

#endif
