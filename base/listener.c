/* SPDX-License-Identifier: Apache-2.0
 * A way to a listener, and its credentials. A socket's file may lie where another user can make names, so its path proves
 * nothing; SO_PEERCRED does. */
#include "base/listener.h"

#include "base/clock.h"
#include "base/uid.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#define TURN_NS HVI_NS_SEC /* of a wait for a place in the queue */

bool hvi_listener_uid(int socket_fd, uid_t *uid_p)
{
    struct ucred listener;
    socklen_t size = sizeof(listener);

    *uid_p = (uid_t)-1;
    if (getsockopt(socket_fd, SOL_SOCKET, SO_PEERCRED, &listener, &size) != 0)
        return false;
    *uid_p = listener.uid;
    return true;
}

bool hvi_listener_is_ours(int socket_fd, uid_t *uid_p)
{
    return hvi_listener_uid(socket_fd, uid_p) && (*uid_p == 0 || *uid_p == geteuid()) &&
           hvi_uid_is_known(*uid_p);
}

static bool is_named(uid_t uid)
{
    const char *text = getenv("HVD_SERVICE_UID");
    char *end;

    if (text == NULL || text[0] < '0' || text[0] > '9')
        return false;
    errno = 0;
    unsigned long number = strtoul(text, &end, 10);
    return errno == 0 && *end == '\0' && number == uid;
}

static bool owns(uid_t uid, const char *directory)
{
    struct stat place;

    return lstat(directory, &place) == 0 && place.st_uid == uid;
}

bool hvi_listener_may_serve(int socket_fd, const char *directory, uid_t *uid_p)
{
    if (hvi_listener_is_ours(socket_fd, uid_p))
        return true;
    if (*uid_p == (uid_t)-1)
        return false;
    if (is_named(*uid_p))
        return true;
    /* A number that another user may read as, too, owns nothing. */
    return hvi_uid_is_known(*uid_p) &&
           (owns(*uid_p, HVI_SERVICE_DIR) || (directory != NULL && owns(*uid_p, directory)));
}

int hvi_listener_connect(int socket_fd, const struct sockaddr_un *address, uint64_t deadline_ns)
{
    int error;

    do {
        uint64_t left_ns = hvi_deadline_left(deadline_ns);
        uint64_t turn_us = (left_ns < TURN_NS ? left_ns : TURN_NS) / 1000;
        struct timeval turn = {.tv_sec = (time_t)(turn_us / 1000000),
                               .tv_usec = (suseconds_t)(turn_us % 1000000)};
        /* A turn of 0 would be for ever. */
        if ((turn_us == 0
                 ? fcntl(socket_fd, F_SETFL, O_NONBLOCK)
                 : setsockopt(socket_fd, SOL_SOCKET, SO_SNDTIMEO, &turn, sizeof(turn))) != 0)
            return errno;
        if (connect(socket_fd, (const struct sockaddr *)address, sizeof(*address)) == 0)
            return fcntl(socket_fd, F_SETFL, O_NONBLOCK) == 0 ? 0 : errno;
        error = errno;
    } while (error == EINTR || (error == EAGAIN && !hvi_deadline_passed(deadline_ns)));
    return error;
}

int hvi_listener_try(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const size_t length = strlen(path);

    if (length == 0 || length >= sizeof(address.sun_path))
        return -EINVAL;
    memcpy(address.sun_path, path, length);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    if (connect(fd, (const struct sockaddr *)&address, sizeof(address)) == 0)
        return fd;
    int error = errno;
    close(fd);
    return -error;
}
