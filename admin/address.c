/* SPDX-License-Identifier: Apache-2.0
 * A directory of the list is believed only if nobody else could have put it there:
 * $XDG_RUNTIME_DIR/hvdd and /tmp/hvdd-<uid> must be owned by us and closed to others, and the
 * listener must be ours, root's or the service's (base/listener.h). Liveness is a
 * plain connect(2), because a ZeroMQ socket would silently retry for ever on a stale
 * file. */
#include "admin/address.h"

#include "base/clock.h"
#include "base/listener.h"
#include "base/runtime.h"
#include "base/status.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define FULL_NS ((int64_t)HVI_NS_SEC) /* how long a queue of connections may be full */

static int probe(const char *dir, const char *socket_name, uint64_t deadline_ns)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    const int length = snprintf(name.sun_path, sizeof name.sun_path, "%s/%s", dir, socket_name);
    if (length < 0 || (size_t)length >= sizeof name.sun_path)
        return ENAMETOOLONG;
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return errno;
    int error = hvi_listener_connect(fd, &name, deadline_ns);
    uid_t uid;
    if (error == 0 && !hvi_listener_may_serve(fd, dir, &uid))
        error = EPERM;
    close(fd);
    return error;
}

bool address_is_of_root(const char *dir)
{
    return probe(dir, "root.sock", 0) == 0;
}

int address_probe(const char *dir, uint64_t deadline_ns)
{
    return address_is_of_root(dir) ? 0 : probe(dir, "admin.sock", deadline_ns);
}

static bool is_private(const char *dir, int *error_p)
{
    struct stat st;
    if (lstat(dir, &st) != 0) {
        *error_p = errno;
        return false;
    }
    *error_p = EPERM;
    return S_ISDIR(st.st_mode) && st.st_uid == geteuid() && (st.st_mode & 022) == 0;
}

static const char *explain(int error)
{
    switch (error) {
    case ENOENT:
        return "nothing there";
    case ECONNREFUSED:
        return "nobody listens on the socket any more";
    case EPERM:
        return "another user's, so not trusted";
    case EAGAIN:
        return "its queue of connections stays full";
    default:
        return strerror(error);
    }
}

static void note(struct address *address, const char *dir, int error)
{
    const size_t used = strlen(address->why);
    snprintf(address->why + used, sizeof address->why - used, "%s%s (%s)", used > 0 ? ", " : "",
             dir, explain(error));
}

static int take(struct address *address, const char *dir)
{
    if (strlen(dir) > ADDRESS_DIR_MAX) {
        snprintf(address->why, sizeof address->why, "the path is longer than %d bytes",
                 ADDRESS_DIR_MAX);
        return HVI_ERR_INVALID;
    }
    snprintf(address->dir, sizeof address->dir, "%s", dir);
    const int error = address_probe(dir, hvi_deadline_after(FULL_NS));
    if (error == 0)
        return HVI_OK;
    note(address, dir, error);
    return HVI_ERR_NO_DAEMON;
}

/* One place of the list; `personal` ones must be ours. */
static int try_place(struct address *address, const char *dir, bool personal)
{
    int error;
    if (personal && !is_private(dir, &error)) {
        note(address, dir, error);
        return HVI_ERR_NO_DAEMON;
    }
    return take(address, dir);
}

static const char *configured(const char *chosen)
{
    if (chosen != NULL)
        return chosen;
    const char *from_env = getenv("HVD_ADDRESS");
    return from_env != NULL && from_env[0] != '\0' ? from_env : NULL;
}

/* $XDG_RUNTIME_DIR/hvdd; false when the variable is of no use. */
static bool runtime_place(char *place_p, size_t size)
{
    const char *runtime = hvi_runtime_dir(geteuid());
    if (runtime == NULL)
        return false;
    const int length = snprintf(place_p, size, "%s/hvdd", runtime);
    return length > 0 && length <= ADDRESS_DIR_MAX;
}

int address_find(const char *chosen, struct address *address_p)
{
    memset(address_p, 0, sizeof *address_p);
    const char *given = configured(chosen);
    if (given != NULL)
        return take(address_p, given);
    char personal[64];
    char runtime[ADDRESS_DIR_MAX + 8];
    snprintf(personal, sizeof personal, "/tmp/hvdd-%u", (unsigned)geteuid());
    const bool has_runtime = runtime_place(runtime, sizeof runtime);
    if (try_place(address_p, has_runtime ? runtime : personal, true) == HVI_OK ||
        try_place(address_p, HVI_SERVICE_DIR, false) == HVI_OK)
        return HVI_OK;
    if (!has_runtime)
        return HVI_ERR_NO_DAEMON;
    return try_place(address_p, personal, true);
}
