/* SPDX-License-Identifier: Apache-2.0
 * hvd_session_status and hvd_event_fd. */
#include "base/clock.h"
#include "client/error.h"
#include "client/session/enter.h"
#include "client/session/session.h"
#include "client/wait/wait.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

int hvd_session_status(struct hvd_session *session)
{
    int rc = client_session_enter(session, "hvd_session_status");
    if (rc != HVD_OK)
        return rc;
    client_wait_progress(session, true);
    rc = client_link_usable(&session->link, "hvd_session_status");
    if (rc == HVD_OK && session->link.job_status != HVD_OK)
        rc = client_error_copy(session->link.job_status, session->link.job_text);
    client_wait_sync_event(session);
    client_session_leave(session);
    return rc;
}

static int make_epoll(struct hvd_session *session)
{
    struct epoll_event event = {.events = EPOLLIN};
    int fd = epoll_create1(EPOLL_CLOEXEC);
    if (fd >= 0 && epoll_ctl(fd, EPOLL_CTL_ADD, session->link.client_event_fd, &event) == 0 &&
        epoll_ctl(fd, EPOLL_CTL_ADD, session->link.socket_fd, &event) == 0) {
        session->link.epoll_fd = fd;
        atomic_store(&session->link.channel.header->client_event_armed, 1);
        client_wait_sync_event(session);
        return HVD_OK;
    }
    int status = errno == EMFILE || errno == ENFILE ? HVD_ERR_LIMIT : HVD_ERR_NO_MEMORY;
    client_error(status, "hvd_event_fd: epoll: %s", strerror(errno));
    if (fd >= 0)
        close(fd);
    return status;
}

int hvd_event_fd(struct hvd_session *session, int *fd_p)
{
    int rc = client_session_enter(session, "hvd_event_fd");
    if (rc != HVD_OK)
        return rc;
    if (!fd_p)
        rc = client_error(HVD_ERR_INVALID, "hvd_event_fd: fd_p is NULL");
    else if (session->link.epoll_fd < 0)
        rc = make_epoll(session);
    if (rc == HVD_OK) {
        /* From now on the engine ends every op, or rings, if ranks still are at one. Other threads submit while
         * this one hands over without the lock: no op of theirs may go into a slot. */
        session->slots.on = false;
        client_wait_hand_over(session, NULL, HVI_NEVER);
        session->slots_left = true;
        client_wait_sync_event(session); /* some may have ended just now */
        *fd_p = session->link.epoll_fd;
    }
    client_session_leave(session);
    return rc;
}
