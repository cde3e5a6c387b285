/* SPDX-License-Identifier: Apache-2.0
 * What the calls of hvd_admin.h look at first. Any thread; nothing blocks. */
#ifndef HVI_ADMIN_API_H
#define HVI_ADMIN_API_H

struct hvd_admin;

/* HVI_OK; HVI_ERR_FORKED with a sentence: another process has opened it. */
int admin_check_handle(const struct hvd_admin *admin);
/* HVI_OK; HVI_ERR_INVALID with a sentence: it is no job id, or NULL. */
int admin_check_job(const char *job);

#endif
