/* SPDX-License-Identifier: Apache-2.0
 * The rows of status.def as look-ups. */
#include "base/status.h"

#include <stddef.h>

struct status_row {
    int number;
    const char *name;
    const char *text;
};

static const struct status_row rows[] = {
#define HVI_ROW(name, number, text) {(number), #name, (text)},
#include "base/status.def"
#undef HVI_ROW
};

static const struct status_row *find_row(int status)
{
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (rows[i].number == status)
            return &rows[i];
    }
    return NULL;
}

const char *hvi_status_name(int status)
{
    const struct status_row *row = find_row(status);
    return row ? row->name : "unknown status";
}

const char *hvi_status_text(int status)
{
    const struct status_row *row = find_row(status);
    return row ? row->text : "unknown status";
}

bool hvi_status_is_known(int status)
{
    return find_row(status) != NULL;
}

bool hvi_status_is_of_op(int status)
{
    return status <= HVI_ERR_INVALID && status > HVI_ERR_CLOSED && hvi_status_is_known(status);
}
