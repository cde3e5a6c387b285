/* SPDX-License-Identifier: Apache-2.0
 * `hvdctl key new PREFIX`: a pair of key files for the mesh between nodes. PREFIX.server has the server's
 * secret and lets the client in; PREFIX.client has the client's and knows the server. A file that is
 * there already stays as it is. */
#include "base/status.h"
#include "tools/hvdctl/ctl.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <zmq.h>

#define KEY_TEXT 41

struct pair {
    char public[KEY_TEXT], secret[KEY_TEXT];
};

static int fail(const struct ctl *ctl, const char *path, const char *why)
{
    ctl_complain(ctl, HVI_ERR_INVALID, "cannot make the key file %s: %s", path, why);
    return CTL_REFUSED;
}

/* -1 with errno; nothing is left then. */
static int write_file(const char *path, const struct pair *server, const struct pair *client,
                      const char *secret)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    int error;

    if (fd < 0)
        return -1;
    if (fchmod(fd, 0600) == 0 &&
        dprintf(fd, "server %s\nclient %s\nsecret %s\n", server->public, client->public, secret) >
            0 &&
        fsync(fd) == 0 && close(fd) == 0)
        return 0;
    error = errno;
    unlink(path);
    errno = error;
    return -1;
}

int ctl_key_new(const struct ctl *ctl, char **args, int count)
{
    char server_path[PATH_MAX], client_path[PATH_MAX], text[2 * PATH_MAX + 64];
    struct pair server, client;
    int code = CTL_OK;

    (void)count;
    if (strlen(args[0]) + sizeof(".server") > PATH_MAX)
        return fail(ctl, args[0], strerror(ENAMETOOLONG));
    snprintf(server_path, sizeof(server_path), "%s.server", args[0]);
    snprintf(client_path, sizeof(client_path), "%s.client", args[0]);
    if (zmq_curve_keypair(server.public, server.secret) != 0 ||
        zmq_curve_keypair(client.public, client.secret) != 0)
        return fail(ctl, args[0], zmq_strerror(errno));
    if (write_file(server_path, &server, &client, server.secret) != 0) {
        code = fail(ctl, server_path, strerror(errno));
    } else if (write_file(client_path, &server, &client, client.secret) != 0) {
        code = fail(ctl, client_path, strerror(errno));
        unlink(server_path);
    }
    explicit_bzero(&server, sizeof(server));
    explicit_bzero(&client, sizeof(client));
    if (code != CTL_OK)
        return code;
    snprintf(text, sizeof(text), "made %s for the node that listens and %s for those that join",
             server_path, client_path);
    if (ctl->json)
        ctl_json_done(ctl, text);
    else
        fprintf(ctl->out, "%s\n", text);
    return CTL_OK;
}
