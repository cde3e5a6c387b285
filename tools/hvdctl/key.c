/* SPDX-License-Identifier: Apache-2.0
 * `hvdctl key new PREFIX`: a pair of key files for the mesh between nodes. PREFIX.server has the server's
 * secret and lets the client in; PREFIX.client has the client's and knows the server. A file that is
 * there already stays as it is. */
#include "base/status.h"
#include "tools/common/mesh_key.h"
#include "tools/hvdctl/ctl.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

static int fail(const struct ctl *ctl, const char *path, const char *why)
{
    ctl_complain(ctl, HVI_ERR_INVALID, "cannot make the key file %s: %s", path, why);
    return CTL_REFUSED;
}

int ctl_key_new(const struct ctl *ctl, char **args, int count)
{
    char server_path[PATH_MAX], client_path[PATH_MAX], text[2 * PATH_MAX + 64];
    char server[MESH_KEY_TEXT], client[MESH_KEY_TEXT];
    const char *why;
    int code = CTL_OK;

    (void)count;
    if (strlen(args[0]) + sizeof(".server") > PATH_MAX)
        return fail(ctl, args[0], strerror(ENAMETOOLONG));
    snprintf(server_path, sizeof(server_path), "%s.server", args[0]);
    snprintf(client_path, sizeof(client_path), "%s.client", args[0]);
    if (mesh_key_make(server, client, &why) != 0)
        return fail(ctl, args[0], why);
    if (mesh_key_write(server_path, server) != 0) {
        code = fail(ctl, server_path, strerror(errno));
    } else if (mesh_key_write(client_path, client) != 0) {
        code = fail(ctl, client_path, strerror(errno));
        unlink(server_path);
    }
    explicit_bzero(server, sizeof(server));
    explicit_bzero(client, sizeof(client));
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
