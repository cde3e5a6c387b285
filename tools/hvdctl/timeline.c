/* SPDX-License-Identifier: Apache-2.0
 * `hvdctl timeline`. */
#include "base/status.h"
#include "tools/hvdctl/ctl.h"

#include <stdio.h>
#include <string.h>

static int done(const struct ctl *ctl, const char *job, const char *what, const char *path)
{
    char text[1024];
    snprintf(text, sizeof text, "the timeline of job %s %s%s%.600s", job, what,
             path[0] != '\0' ? " in " : "", path);
    ctl_done(ctl, text);
    return CTL_OK;
}

/* To write into `path`; NULL: to complete it. */
static int ask(const struct ctl *ctl, const char *job, const char *path)
{
    const int64_t owner = ctl->of_owner ? (int64_t)ctl->owner : HVD_ADMIN_ANY;
    const int64_t timeout_ns = (int64_t)ctl->timeout_ns;
    const int status = path != NULL ? hvd_admin_timeline_start(ctl->address, job, owner, path,
                                                               ctl->mark_cycles, timeout_ns)
                                    : hvd_admin_timeline_stop(ctl->address, job, owner, timeout_ns);
    if (status == HVI_OK)
        return CTL_OK;
    const bool is_late = status == HVI_ERR_TIMEOUT;
    struct hvd_admin_place place;
    ctl_complain(ctl, status, "%s%s", hvd_admin_last_error(), is_late ? " (--timeout)" : "");
    if (status == HVI_ERR_INVALID && hvd_admin_find(ctl->address, &place) == HVI_ERR_INVALID)
        return CTL_USAGE;
    return is_late || status == HVI_ERR_NO_DAEMON ? CTL_NO_DAEMON : CTL_REFUSED;
}

int ctl_timeline(const struct ctl *ctl, char **args, int count)
{
    struct hvd_admin_request checked;
    const bool starts = count == 3 && strcmp(args[1], "start") == 0;
    const bool stops = count == 2 && strcmp(args[1], "stop") == 0;
    if (!starts && !stops) {
        ctl_complain(ctl, HVI_ERR_INVALID, "usage: hvdctl timeline JOB start FILE, or JOB stop");
        return CTL_USAGE;
    }
    int code = ctl_copy_job(ctl, args[0], &checked);
    if (code == CTL_OK)
        code = ask(ctl, args[0], starts ? args[2] : NULL);
    if (code != CTL_OK)
        return code;
    return done(ctl, args[0], starts ? "is being written" : "is complete", starts ? args[2] : "");
}
