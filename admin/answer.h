/* SPDX-License-Identifier: Apache-2.0
 * A decoded reply as the answer that hvd_admin.h shows. Any thread; nothing blocks. */
#ifndef HVI_ADMIN_ANSWER_H
#define HVI_ADMIN_ANSWER_H

#include "hvd/hvd_admin.h"
#include "proto/wire.h"

/* Takes the reply's memory on success; the answer is for hvd_admin_answer_free. HVI_OK,
 * HVI_ERR_NO_MEMORY: the reply stays the caller's. */
int admin_answer_new(struct hvi_admin_reply *reply, struct hvd_admin_answer **answer_p);

#endif
