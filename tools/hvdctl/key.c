/* SPDX-License-Identifier: Apache-2.0
 * `hvdctl key`. `new PREFIX` makes a pair of key files for a mesh of one listener: PREFIX.server has the server's
 * secret and lets the client in; PREFIX.client has the client's and knows the server.
 *
 * `new --node` makes a folder for a mesh in which each node has its own key: node.key with the secret, and allow/, the
 * allow-list, with a file for each node, its own first. `show` prints the public key, `allow` puts one into the list. A file that
 * is there already stays as it is. Files of the list are made under another name and renamed: hvdd never reads half of one. */
#include "base/place.h"
#include "base/status.h"
#include "tools/common/mesh_key.h"
#include "tools/hvdctl/ctl.h"

#include <errno.h>
#include <limits.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define KEY_PARENT   "/etc/hvdd"
#define KEY_DIR      KEY_PARENT "/keys"
#define SERVICE_USER "hvdd"

static int fail(const struct ctl *ctl, const char *path, const char *why)
{
    ctl_complain(ctl, HVI_ERR_INVALID, "cannot make the key file %s: %s", path, why);
    return CTL_REFUSED;
}

/* ---- a pair ---- */

static int new_pair(const struct ctl *ctl, const char *prefix)
{
    char server_path[PATH_MAX], client_path[PATH_MAX], text[2 * PATH_MAX + 64];
    char server[MESH_KEY_TEXT], client[MESH_KEY_TEXT];
    const char *why;
    int code = CTL_OK;

    if (strlen(prefix) + sizeof(".server") > PATH_MAX)
        return fail(ctl, prefix, strerror(ENAMETOOLONG));
    snprintf(server_path, sizeof(server_path), "%s.server", prefix);
    snprintf(client_path, sizeof(client_path), "%s.client", prefix);
    if (mesh_key_make(server, client, &why) != 0)
        return fail(ctl, prefix, why);
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
    ctl_done(ctl, text);
    return CTL_OK;
}

/* ---- a node's folder ---- */

struct folder {
    char path[PATH_MAX - 128]; /* --dir, or KEY_DIR */
    char key[PATH_MAX], allow[PATH_MAX];
};

static bool find_folder(const struct ctl *ctl, struct folder *folder_p)
{
    const char *path = ctl->dir != NULL ? ctl->dir : KEY_DIR;

    if (path[0] == '\0' || strlen(path) >= sizeof(folder_p->path)) {
        ctl_complain(ctl, HVI_ERR_INVALID, "--dir takes the path of a folder");
        return false;
    }
    snprintf(folder_p->path, sizeof(folder_p->path), "%s", path);
    snprintf(folder_p->key, sizeof(folder_p->key), "%s/node.key", path);
    snprintf(folder_p->allow, sizeof(folder_p->allow), "%s/allow", path);
    return true;
}

static int check_name(const struct ctl *ctl, const char *name)
{
    if (hvi_place_is_node_name(name))
        return CTL_OK;
    ctl_complain(ctl, HVI_ERR_INVALID,
                 "'%s' is no name of a node: 1 to %d letters, digits or any of . - _ :, and no . "
                 "first",
                 name, HVI_NODE_NAME_MAX);
    return CTL_USAGE;
}

/* The key of a file; false: there is none, and *why_p says why. */
static bool read_key(const char *path, const char *word, char key_p[MESH_KEY_ROOM],
                     const char **why_p)
{
    char line[128];
    FILE *in = fopen(path, "re");

    if (in == NULL) {
        *why_p = strerror(errno);
        return false;
    }
    do {
        if (fgets(line, sizeof(line), in) == NULL)
            line[0] = '\0';
    } while (line[0] == '#' || line[0] == '\n');
    fclose(in);
    line[strcspn(line, "\n")] = '\0';
    const bool good = strncmp(line, word, strlen(word)) == 0 && mesh_key_is(line + strlen(word));
    if (good)
        snprintf(key_p, MESH_KEY_ROOM, "%s", line + strlen(word));
    else
        *why_p = "it has no key in its first line";
    explicit_bzero(line, sizeof(line));
    return good;
}

/* NULL: done. Else a sentence, or why the file cannot be made. */
static const char *allow(const struct folder *folder, const char *name, const char *key)
{
    char path[PATH_MAX + 128], fresh[PATH_MAX + 128], line[MESH_KEY_ROOM + 1], old[MESH_KEY_ROOM];
    const char *why;

    snprintf(path, sizeof(path), "%s/%s", folder->allow, name);
    snprintf(fresh, sizeof(fresh), "%s/.%s.%d", folder->allow, name, (int)getpid());
    snprintf(line, sizeof(line), "%s\n", key);
    if (read_key(path, "", old, &why) && strcmp(old, key) == 0)
        return NULL;
    if (access(path, F_OK) == 0)
        return "it is there with another key; remove it first if that is no longer the node's";
    if (mesh_key_write(fresh, line) != 0)
        return strerror(errno);
    if (chmod(fresh, 0644) == 0 && rename(fresh, path) == 0)
        return NULL;
    why = strerror(errno);
    unlink(fresh);
    return why;
}

/* The folder is root's where root makes it, so that hvdd cannot change whom it allows; its secret has to be hvdd's. */
static bool give_to_service(const char *path)
{
    const struct passwd *user = geteuid() == 0 ? getpwnam(SERVICE_USER) : NULL;

    return user == NULL || lchown(path, user->pw_uid, user->pw_gid) == 0;
}

/* Without --dir the key is the service's, so root makes it only where that user is. */
static bool has_service(const struct ctl *ctl)
{
    if (ctl->dir != NULL || geteuid() != 0 || getpwnam(SERVICE_USER) != NULL)
        return true;
    ctl_complain(ctl, HVI_ERR_NOT_FOUND,
                 "there is no user " SERVICE_USER ", to whom the key has to belong: run "
                 "systemd-sysusers first");
    return false;
}

static bool make_folder(const char *path)
{
    return (mkdir(path, 0755) == 0 && chmod(path, 0755) == 0) || errno == EEXIST;
}

static int new_node(const struct ctl *ctl, const char *given)
{
    char name[HOST_NAME_MAX + 1] = "", public[MESH_KEY_ROOM], secret[MESH_KEY_ROOM];
    char line[MESH_KEY_TEXT], text[2 * PATH_MAX + 256];
    struct folder folder;
    const char *why = NULL;

    if (given == NULL && gethostname(name, sizeof(name)) == 0)
        given = name;
    if (!find_folder(ctl, &folder) || check_name(ctl, given != NULL ? given : "") != CTL_OK)
        return CTL_USAGE;
    if (!has_service(ctl))
        return CTL_REFUSED;
    if (ctl->dir == NULL && !make_folder(KEY_PARENT))
        return fail(ctl, KEY_PARENT, strerror(errno));
    if (!make_folder(folder.path))
        return fail(ctl, folder.path, strerror(errno));
    if (!make_folder(folder.allow))
        return fail(ctl, folder.allow, strerror(errno));
    if (mesh_key_pair(public, secret, &why) != 0)
        return fail(ctl, folder.key, why);
    snprintf(line, sizeof(line), "secret %s\n", secret);
    explicit_bzero(secret, sizeof(secret));
    if (mesh_key_write(folder.key, line) != 0)
        why = strerror(errno);
    explicit_bzero(line, sizeof(line));
    if (why != NULL)
        return fail(ctl, folder.key, why);
    why = give_to_service(folder.key) ? allow(&folder, given, public) : strerror(errno);
    if (why != NULL) {
        unlink(folder.key);
        snprintf(text, sizeof(text), "%s/%s", folder.allow, given);
        return fail(ctl, text, why);
    }
    snprintf(text, sizeof(text),
             "made %s, and %s/%s for the other nodes: copy that file to the folder of each",
             folder.key, folder.allow, given);
    ctl_done(ctl, text);
    return CTL_OK;
}

/* ---- the commands ---- */

int ctl_key_new(const struct ctl *ctl, char **args, int count)
{
    if (ctl->of_node)
        return new_node(ctl, count > 0 ? args[0] : NULL);
    if (count == 1)
        return new_pair(ctl, args[0]);
    ctl_complain(ctl, HVI_ERR_INVALID, "usage: hvdctl key new PREFIX, or key new --node [NAME]");
    return CTL_USAGE;
}

int ctl_key_show(const struct ctl *ctl, char **args, int count)
{
    char secret[MESH_KEY_ROOM], public[MESH_KEY_ROOM];
    struct folder folder;
    const char *why = "its key is none of CURVE";

    (void)args, (void)count;
    if (!find_folder(ctl, &folder))
        return CTL_USAGE;
    bool good = read_key(folder.key, "secret ", secret, &why);
    if (good)
        good = mesh_key_public(secret, public) == 0;
    explicit_bzero(secret, sizeof(secret));
    if (!good) {
        ctl_complain(
            ctl, HVI_ERR_NOT_FOUND,
            "cannot read this node's key %s: %s; hvdctl key new --node makes one, and root "
            "may read it",
            folder.key, why);
        return CTL_REFUSED;
    }
    if (ctl->json)
        ctl_json_key(ctl, public);
    else
        fprintf(ctl->out, "%s\n", public);
    return CTL_OK;
}

/* "-": the first line of standard input, as key show on another machine has printed it. */
static const char *take_key(char *given, char line_p[128])
{
    if (strcmp(given, "-") != 0)
        return given;
    if (fgets(line_p, 128, stdin) == NULL)
        line_p[0] = '\0';
    line_p[strcspn(line_p, "\r\n")] = '\0';
    return line_p;
}

int ctl_key_allow(const struct ctl *ctl, char **args, int count)
{
    char line[128], text[PATH_MAX + 256];
    struct folder folder;

    (void)count;
    if (!find_folder(ctl, &folder) || check_name(ctl, args[0]) != CTL_OK)
        return CTL_USAGE;
    const char *key = take_key(args[1], line);
    if (!mesh_key_is(key)) {
        ctl_complain(ctl, HVI_ERR_INVALID,
                     "'%s' is no key: it has the 40 characters that `hvdctl key show` prints on "
                     "that node; put them in '' for the shell, or give - and pipe them",
                     key);
        return CTL_USAGE;
    }
    const char *why = allow(&folder, args[0], key);
    snprintf(text, sizeof(text), "%s/%s", folder.allow, args[0]);
    if (why != NULL)
        return fail(ctl, text, why);
    snprintf(text, sizeof(text), "allowed: %s/%s", folder.allow, args[0]);
    ctl_done(ctl, text);
    return CTL_OK;
}
