/* SPDX-License-Identifier: Apache-2.0
 * The rows of engine_backends that take works of one node. */
#ifndef HVT_ROWS_H
#define HVT_ROWS_H

#include "base/types.h"
#include "daemon/engine/exec/backend.h"

/* Row `number` of them; NULL: there are no more. */
static inline const struct engine_backend *hvt_row_at(int number)
{
    struct engine_work work = {.kind = HVI_KIND_BARRIER, .ranks = 2};
    static struct engine_batch batch;

    batch = (struct engine_batch){.works = {&work}, .count = 1};
    for (int i = 0; engine_backends[i]; i++) {
        if (engine_backends[i]->accepts(&batch) && number-- == 0)
            return engine_backends[i];
    }
    return NULL;
}

static inline int hvt_rows(void)
{
    int count = 0;

    while (hvt_row_at(count))
        count++;
    return count;
}

#endif
