/* SPDX-License-Identifier: Apache-2.0
 * The timeline's file is opened here, with the rights of the trainer, and written by the engine:
 * hvdd never opens a path that a user has named. The engine empties the file when it takes it, so
 * a refused start leaves an earlier timeline as it was. */
#include "client/api/timeline.h"

#include "client/error.h"
#include "client/link/control.h"
#include "client/session/enter.h"
#include "client/session/session.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Not blocking: a FIFO without a reader is refused at once, and the engine refuses the others. */
static int open_file(const char *path, int *fd_p)
{
    *fd_p = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0666);
    if (*fd_p >= 0)
        return HVD_OK;
    return client_error(HVD_ERR_INVALID, "hvd_timeline_start: cannot open '%s': %s", path,
                        strerror(errno));
}

int hvd_timeline_start(struct hvd_session *session, const char *path, int mark_cycles)
{
    int fd = -1;
    if (!path || !path[0])
        return client_error(HVD_ERR_INVALID, "hvd_timeline_start: path is %s",
                            path ? "empty" : "NULL");
    int rc = client_session_check_fork(session, "hvd_timeline_start");
    if (rc == HVD_OK)
        rc = open_file(path, &fd); /* may block: not under the lock */
    if (rc != HVD_OK)
        return rc;
    rc = client_session_enter(session, "hvd_timeline_start");
    if (rc == HVD_OK) {
        rc = client_control_timeline_start(&session->link, fd, path, mark_cycles != 0);
        client_session_leave(session);
    }
    close(fd);
    return rc;
}

int hvd_timeline_stop(struct hvd_session *session)
{
    int rc = client_session_enter(session, "hvd_timeline_stop");
    if (rc != HVD_OK)
        return rc;
    rc = client_control_timeline_stop(&session->link);
    client_session_leave(session);
    return rc;
}

/* HVD_ wins over HOROVOD_; "" is as good as unset. */
static const char *setting(const char *own, const char *horovods)
{
    const char *value = getenv(own);
    if (!value)
        value = getenv(horovods);
    return value && value[0] ? value : NULL;
}

void client_timeline_from_environment(struct hvd_session *session)
{
    const char *path = setting("HVD_TIMELINE", "HOROVOD_TIMELINE");
    const char *mark = setting("HVD_TIMELINE_MARK_CYCLES", "HOROVOD_TIMELINE_MARK_CYCLES");
    char text[HVI_TEXT_MAX + 1];
    if (session->link.identity.rank != 0 || !path || strcmp(path, "DYNAMIC") == 0)
        return;
    if (hvd_timeline_start(session, path, mark && strtol(mark, NULL, 10) > 0) == HVD_OK)
        return;
    snprintf(text, sizeof(text), "no timeline will be written: %.900s", hvd_last_error());
    if (client_session_enter(session, "hvd_open") != HVD_OK)
        return;
    client_link_log(&session->link, HVD_LOG_WARN, text);
    client_session_leave(session);
}
