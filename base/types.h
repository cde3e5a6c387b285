/* SPDX-License-Identifier: Apache-2.0
 * dtype, reduce op and op kind: the vocabulary of an op, from types.def. Pure functions, any
 * thread. */
#ifndef HVI_BASE_TYPES_H
#define HVI_BASE_TYPES_H

#include <stdbool.h>
#include <stdint.h>

enum hvi_dtype {
#define HVI_DTYPE(name, number, bytes, text) HVI_DTYPE_##name = (number),
#include "base/types.def"
#undef HVI_DTYPE
};
#define HVI_DTYPE_COUNT 13

enum hvi_reduce {
#define HVI_REDUCE(name, number, text) HVI_REDUCE_##name = (number),
#include "base/types.def"
#undef HVI_REDUCE
};
#define HVI_REDUCE_COUNT 6

enum hvi_kind {
#define HVI_KIND(name, number, text) HVI_KIND_##name = (number),
#include "base/types.def"
#undef HVI_KIND
};

enum hvi_memory {
#define HVI_MEMORY(name, number, text) HVI_MEMORY_##name = (number),
#include "base/types.def"
#undef HVI_MEMORY
};

#define HVI_DIMS_MAX      8         /* dimensions of a tensor */
#define HVI_NAME_MAX      1023      /* bytes of a tensor name, without the NUL */
#define HVI_JOB_ID_MAX    127       /* bytes of a job id */
#define HVI_JOB_KEY_MAX   127       /* bytes of a job key */
#define HVI_RANKS_MAX     1024      /* ranks of one job on one node */
#define HVI_JOB_RANKS_MAX (1 << 20) /* on all nodes */
#define HVI_TEXT_MAX      1023      /* bytes of an error sentence, without the NUL */
#define HVI_UUID_BYTES    16        /* of a GPU */
#define HVI_NCCL_ID_BYTES 128       /* ncclUniqueId */

/* Bytes of one element; 0 for a number that is no dtype. */
uint32_t hvi_dtype_bytes(uint32_t dtype);
/* "float32", "sum", "allreduce"; "?" for an unknown number. Constant strings. */
const char *hvi_dtype_text(uint32_t dtype);
const char *hvi_reduce_text(uint32_t reduce_op);
const char *hvi_kind_text(uint32_t kind);
bool hvi_reduce_is_known(uint32_t reduce_op);
bool hvi_kind_is_known(uint32_t kind);
/* "host", "GPU"; "?". */
const char *hvi_memory_text(uint32_t memory);
/* A variable of NCCL that a worker takes from a trainer: "NCCL_" and a name of the list. */
bool hvi_nccl_is_allowed(const char *variable);

#endif
