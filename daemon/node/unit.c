/* SPDX-License-Identifier: Apache-2.0
 * Engines and the gate in units of their own. hvdd.service has no network and no devices, and its
 * children would have none either. So hvdd connects to a socket unit, which starts a program with that
 * connection as descriptor 3. What hvdd sends waits in it meanwhile; the first message back says what
 * was started, and the kernel says who that is (proto/started.h). Until then it has no pid, and what
 * can be done to it is to end the connection. */
#include "daemon/node/unit.h"

#include "base/fate.h"
#include "base/listener.h"
#include "proto/started.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* The one that listens gets trainers' sockets: root's service manager, or this user's. */
static bool listener_is_trusted(int fd)
{
    uid_t uid;

    if (hvi_listener_is_ours(fd, &uid))
        return true;
    errno = EPERM;
    return false;
}

int node_unit_connect(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const int on = 1;
    int fd, error;

    if (strlen(path) >= sizeof(address.sun_path)) {
        errno = ENAMETOOLONG;
        return -1;
    }
    strcpy(address.sun_path, path);
    fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    if (setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) == 0 &&
        connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0 && listener_is_trusted(fd))
        return fd;
    error = errno;
    close(fd);
    errno = error;
    return -1;
}

/* A number could be another process' by now; not while the connection stands, which only it has. */
static bool has_hung_up(int fd)
{
    struct pollfd poll_fd = {.fd = fd};

    return poll(&poll_fd, 1, 0) != 0 && (poll_fd.revents & (POLLHUP | POLLERR)) != 0;
}

int node_unit_meet(const struct hvi_packet *packet, int fd, const char *program, char *text_p,
                   size_t text_size)
{
    int pidfd;

    if (!hvi_started_check(packet, program, text_p, text_size))
        return -1;
    pidfd = hvi_pidfd_open(packet->sender_pid);
    if (pidfd >= 0 && !has_hung_up(fd))
        return pidfd;
    snprintf(text_p, text_size, "%s", pidfd >= 0 ? "it has ended" : strerror(errno));
    if (pidfd >= 0)
        close(pidfd);
    return -1;
}
