/* SPDX-License-Identifier: Apache-2.0
 * hvi_status: what went wrong, in ranges by what the error destroys (status.def). Pure functions,
 * any thread. */
#ifndef HVI_BASE_STATUS_H
#define HVI_BASE_STATUS_H

#include <stdbool.h>

enum hvi_status {
#define HVI_ROW(name, number, text) HVI_##name = (number),
#include "base/status.def"
#undef HVI_ROW
};

/* The row's name without prefix ("ERR_RANK_LOST") and its sentence. Constant strings; "unknown
 * status" for a number that is in no row (it may come from a newer peer). */
const char *hvi_status_name(int status);
const char *hvi_status_text(int status);

/* True for every number that stands in status.def. */
bool hvi_status_is_known(int status);
/* True for the rows whose error is of one call or op (-1xx). */
bool hvi_status_is_of_op(int status);

#endif
