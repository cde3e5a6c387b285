/* SPDX-License-Identifier: Apache-2.0
 * hvd.h repeats numbers that are defined once in base/: this file has no code, only the proof that
 * they agree. A row added to a table without its line in hvd.h does not compile. */
#include "base/status.h"
#include "base/types.h"
#include "hvd/hvd.h"
#include "shm/abi.h"

#define HVI_ROW(name, number, text)                                                                \
    _Static_assert((int)HVD_##name == (number), "hvd_status " #name);
#include "base/status.def"
#undef HVI_ROW

#define HVI_DTYPE(name, number, bytes, text)                                                       \
    _Static_assert((int)HVD_##name == (number), "hvd_dtype " #name);
#include "base/types.def"
#undef HVI_DTYPE

#define HVI_REDUCE(name, number, text)                                                             \
    _Static_assert((int)HVD_##name == (number), "hvd_reduce_op " #name);
#include "base/types.def"
#undef HVI_REDUCE

_Static_assert(HVD_DIMS_MAX == HVI_DIMS_MAX, "dimensions");
_Static_assert(HVD_NAME_MAX == HVI_NAME_MAX, "tensor names");
_Static_assert(HVD_OPS_MAX == HVI_CQ_SLOTS, "a completion slot for every op in flight");
