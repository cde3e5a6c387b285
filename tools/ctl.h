/* SPDX-License-Identifier: Apache-2.0
 * hvdctl inside: what its commands share. Main thread only. */
#ifndef HVI_TOOLS_CTL_H
#define HVI_TOOLS_CTL_H

#include "proto/wire.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum ctl_exit { CTL_OK = 0, CTL_REFUSED = 1, CTL_USAGE = 2, CTL_NO_DAEMON = 3 };

struct ctl {
    const char *address; /* --address or NULL */
    bool json, colours;
    uint64_t timeout_ns;
    uint64_t min_age_ns;
    const char *reason;
    FILE *out; /* where tables and JSON go */
};

/* Prints "hvdctl: <sentence>" to stderr, with --json also {"error": {...}} to ctl->out. `status` is
 * an enum hvi_status. */
void ctl_complain(const struct ctl *ctl, int status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* ctl_show_*: one reply as tables for people. `now` values and names come from the reply alone,
 * except user names. */
void ctl_show_status(const struct ctl *ctl, const struct hvi_admin_reply *reply);
void ctl_show_jobs(const struct ctl *ctl, const struct hvi_admin_reply *reply);
void ctl_show_ranks(const struct ctl *ctl, const char *job, const struct hvi_admin_reply *reply);
void ctl_show_stalls(const struct ctl *ctl, const struct hvi_admin_reply *reply);

/* ctl_json_*: the same as one JSON document with raw numbers (ns, bytes). */
void ctl_json_status(const struct ctl *ctl, const struct hvi_admin_reply *reply);
void ctl_json_jobs(const struct ctl *ctl, const struct hvi_admin_reply *reply);
void ctl_json_ranks(const struct ctl *ctl, const char *job, const struct hvi_admin_reply *reply);
void ctl_json_stalls(const struct ctl *ctl, const struct hvi_admin_reply *reply);
void ctl_json_done(const struct ctl *ctl, const char *text);
void ctl_json_error(const struct ctl *ctl, int status, const char *text);
void ctl_json_version(const struct ctl *ctl, const char *daemon_version);

/* Looks at this machine. CTL_OK, or CTL_REFUSED when something would keep hvdd from working. */
int ctl_doctor(const struct ctl *ctl);

/* Asks the daemon for its status for doctor and version: false when there is none (why_p says it).
 */
bool ctl_ask_daemon(const struct ctl *ctl, struct hvi_admin_reply *reply_p, char *why_p,
                    size_t why_size);

#endif
