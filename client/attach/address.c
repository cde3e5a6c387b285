/* SPDX-License-Identifier: Apache-2.0
 * A directory that is named is used as it is, and nothing is started in it. Otherwise this
 * user's own directory is tried, then the system's, then a private hvdd is started in the user's
 * own. For a job of several nodes HVD_RENDEZVOUS comes before these: its hvdds have a mesh, which the others
 * lack as a rule, and a directory beside this user's own, named after the place where they meet. So jobs that
 * meet at the same place share them. A directory under /tmp is believed only when it belongs to this user and nobody else can
 * write to it, because anybody can make names there. Wherever a socket lies, nothing is said to a
 * listener of another user that is not the service's: the first message has the job's key. */
#include "client/attach/address.h"

#include "base/listener.h"
#include "base/runtime.h"
#include "base/uid.h"
#include "client/attach/autostart.h"
#include "client/error.h"
#include "hvd/hvd.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define SOCKET_NAME "attach.sock"

static int path_of(const char *directory, struct sockaddr_un *path_p)
{
    memset(path_p, 0, sizeof(*path_p));
    path_p->sun_family = AF_UNIX;
    int length = snprintf(path_p->sun_path, sizeof(path_p->sun_path), "%s/" SOCKET_NAME, directory);
    if (length > 0 && (size_t)length < sizeof(path_p->sun_path))
        return HVD_OK;
    return client_error(HVD_ERR_INVALID,
                        "hvd_open: the address '%s' is too long for a socket path (at most %zu "
                        "bytes)",
                        directory, sizeof(path_p->sun_path) - sizeof("/" SOCKET_NAME));
}

static int connect_error(const char *path, int error)
{
    switch (error) {
    case EACCES:
    case EPERM:
        return client_error(HVD_ERR_REFUSED, "hvd_open: no permission to connect to hvdd at %s",
                            path);
    case EAGAIN:
        return client_error(HVD_ERR_ATTACH_TIMEOUT,
                            "hvd_open: hvdd at %s has too many connections waiting", path);
    default:
        if (strstr(path, "/hvdrun-") != NULL)
            return client_error(HVD_ERR_NO_DAEMON,
                                "hvd_open: no hvdd answers at %s (%s): the private one that hvdrun "
                                "started for this job is gone, and hvdrun says how it ended",
                                path, strerror(error));
        return client_error(HVD_ERR_NO_DAEMON,
                            "hvd_open: no hvdd answers at %s (%s); start one with 'systemctl start "
                            "hvdd' or run under hvdrun",
                            path, strerror(error));
    }
}

static int listener_error(const char *path, uid_t uid)
{
    return client_error(HVD_ERR_REFUSED,
                        "hvd_open: the process that listens at %s has uid %u, which is %s, so it "
                        "was told nothing; if it is your site's hvdd, set HVD_SERVICE_UID=%u",
                        path, (unsigned)uid,
                        hvi_uid_is_known(uid)
                            ? "neither yours nor root's nor the service's nor the directory's "
                              "owner's"
                            : "any user that this user namespace has no number for",
                        (unsigned)uid);
}

/* Connects to the daemon in `directory`, which the user has `named`, or which is only where one may be. */
static int try_directory(const char *directory, bool named, uint64_t deadline_ns,
                         struct client_address *address)
{
    struct sockaddr_un path;
    uid_t uid;
    int rc = path_of(directory, &path);
    if (rc != HVD_OK)
        return rc;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return client_error(HVD_ERR_LIMIT, "hvd_open: no socket for hvdd: %s", strerror(errno));
    int error = hvi_listener_connect(fd, &path, deadline_ns);
    if (error)
        rc = connect_error(path.sun_path, error);
    else if (!hvi_listener_may_serve(fd, named ? directory : NULL, &uid))
        rc = listener_error(path.sun_path, uid);
    if (rc != HVD_OK) {
        close(fd);
        return rc;
    }
    snprintf(address->directory, sizeof(address->directory), "%s", directory);
    address->socket_fd = fd;
    return HVD_OK;
}

/* This user's directory. False when the path is too long. */
static bool own_directory(char *directory_p, size_t size, bool *in_tmp_p)
{
    const char *runtime = hvi_runtime_dir(geteuid());
    *in_tmp_p = runtime == NULL;
    int length = *in_tmp_p ? snprintf(directory_p, size, "/tmp/hvdd-%lu", (unsigned long)geteuid())
                           : snprintf(directory_p, size, "%s/hvdd", runtime);
    return length > 0 && (size_t)length < size;
}

static bool is_ours(const char *directory)
{
    struct stat st;
    return lstat(directory, &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == geteuid() &&
           (st.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

static int start_private(const char *directory, const struct client_mesh *mesh,
                         uint64_t deadline_ns, struct client_address *address)
{
    struct stat st;
    if (mkdir(directory, 0700) != 0 && errno != EEXIST)
        return client_error(HVD_ERR_NO_DAEMON,
                            "hvd_open: no hvdd runs, and no private one can be started: mkdir %s: "
                            "%s; set XDG_RUNTIME_DIR to a directory of yours, or HVD_ADDRESS",
                            directory, strerror(errno));
    if (!is_ours(directory))
        return client_error(HVD_ERR_REFUSED,
                            "hvd_open: no hvdd runs, and no private one is started in %s, because "
                            "%s; set XDG_RUNTIME_DIR or HVD_ADDRESS",
                            directory,
                            lstat(directory, &st) == 0 && st.st_uid != geteuid()
                                ? "it belongs to another user"
                                : "it is no directory or others may write to it");
    int rc = client_autostart(directory, mesh, deadline_ns, &address->started);
    if (rc == HVD_OK)
        return try_directory(directory, false, deadline_ns, address);
    rmdir(directory); /* unless somebody uses it */
    return rc;
}

static int connect_default(uint64_t deadline_ns, struct client_address *address)
{
    char directory[HVI_WIRE_PATH];
    bool in_tmp;
    if (!own_directory(directory, sizeof(directory), &in_tmp))
        return client_error(HVD_ERR_INVALID, "hvd_open: XDG_RUNTIME_DIR is too long");
    if ((!in_tmp || is_ours(directory)) &&
        try_directory(directory, false, deadline_ns, address) == HVD_OK)
        return HVD_OK;
    address->is_service = try_directory(HVI_SERVICE_DIR, false, deadline_ns, address) == HVD_OK;
    if (address->is_service)
        return HVD_OK;
    return start_private(directory, NULL, deadline_ns, address);
}

/* ---- jobs of several nodes ---- */

#define HOW_TO_KEY                                                                                 \
    "make a pair with `hvdctl key new PREFIX`, copy PREFIX.server to the machine that "            \
    "HVD_RENDEZVOUS names and PREFIX.client to the others, and set HVD_KEY_FILE=PREFIX on all"

static bool key_exists(const char *path)
{
    static const char *const ends[] = {"", ".server", ".client"};
    char name[PATH_MAX + 8];
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        snprintf(name, sizeof(name), "%s%s", path, ends[i]);
        if (access(name, F_OK) == 0)
            return true;
    }
    return false;
}

/* The path in HVD_KEY_FILE, absolute: hvdd has another working directory. */
static int find_key(const char *place, char path_p[PATH_MAX])
{
    const char *file = getenv("HVD_KEY_FILE");
    char here[PATH_MAX] = "";
    if (!file || !file[0])
        return client_error(
            HVD_ERR_INVALID,
            "hvd_open: HVD_RENDEZVOUS is '%s' but HVD_KEY_FILE is not set; " HOW_TO_KEY, place);
    if (file[0] != '/' && !getcwd(here, sizeof(here)))
        return client_error(
            HVD_ERR_INVALID,
            "hvd_open: HVD_KEY_FILE is '%s', and the working directory has no name: "
            "%s; give the whole path",
            file, strerror(errno));
    int length = snprintf(path_p, PATH_MAX, "%s%s%s", here, here[0] ? "/" : "", file);
    if (length < PATH_MAX && key_exists(path_p))
        return HVD_OK;
    return client_error(HVD_ERR_INVALID,
                        "hvd_open: HVD_KEY_FILE is '%s', and there is neither such a file nor one "
                        "that goes on with .server or .client; " HOW_TO_KEY,
                        file);
}

/* Beside this user's own, and named after the place. False: too long. */
static bool mesh_directory(const char *place, char *directory_p, size_t size, bool *in_tmp_p)
{
    size_t used;
    if (!own_directory(directory_p, size, in_tmp_p))
        return false;
    used = strlen(directory_p);
    int length = snprintf(directory_p + used, size - used, "-%s", place);
    for (char *c = directory_p + used; *c; c++)
        if (strchr("/:[]%", *c))
            *c = '-';
    return length > 0 && (size_t)length < size - used;
}

static int connect_rendezvous(char *place, uint64_t deadline_ns, struct client_address *address)
{
    char directory[HVI_WIRE_PATH], key[PATH_MAX];
    const struct client_mesh mesh = {.place = place, .key = key};
    bool in_tmp;
    int rc = find_key(place, key);
    if (rc != HVD_OK)
        return rc;
    if (!mesh_directory(place, directory, sizeof(directory), &in_tmp))
        return client_error(HVD_ERR_INVALID,
                            "hvd_open: HVD_RENDEZVOUS or XDG_RUNTIME_DIR is too long");
    if ((!in_tmp || is_ours(directory)) &&
        try_directory(directory, false, deadline_ns, address) == HVD_OK)
        return HVD_OK;
    return start_private(directory, &mesh, deadline_ns, address);
}

int client_address_connect(const char *wanted, bool spans, uint64_t deadline_ns,
                           struct client_address *address_p)
{
    struct client_address address = {.socket_fd = -1};
    const char *variable = getenv("HVD_ADDRESS");
    char *place = spans ? getenv("HVD_RENDEZVOUS") : NULL;
    int rc;
    if (!wanted && variable && variable[0])
        wanted = variable;
    address.is_default = !wanted;
    if (wanted)
        rc = try_directory(wanted, true, deadline_ns, &address);
    else if (place && place[0])
        rc = connect_rendezvous(place, deadline_ns, &address);
    else
        rc = connect_default(deadline_ns, &address);
    if (rc == HVD_OK)
        *address_p = address;
    return rc;
}
