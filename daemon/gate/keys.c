/* SPDX-License-Identifier: Apache-2.0
 * A folder is read whole, each time: a file may have been replaced, renamed or written in place, and is small. */
#include "daemon/gate/keys.h"

#include "base/place.h"
#include "base/status.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_BYTES_MAX (64u * 1024u)
_Static_assert(HVI_NODE_NAME_MAX < HVI_WIRE_NODE_NAME, "a node's name fits into messages");
#define HOW_TO_MAKE                                                                                \
    "make a pair with `hvdctl key new PREFIX`: PREFIX.server is for the node that listens, "       \
    "PREFIX.client for those that join"

#define HOW_TO_MAKE_NODES "make this node's key with `hvdctl key new --node`"

static int refuse(char *text_p, size_t text_size, const char *path, const char *why)
{
    snprintf(text_p, text_size, "the mesh key %s cannot be used: %s; " HOW_TO_MAKE, path, why);
    return HVI_ERR_REFUSED;
}

/* ---- the contents ---- */

static bool is_key(const char *text, size_t length)
{
    static const char letters[] =
        "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#";

    if (length != GATE_KEY_TEXT - 1)
        return false;
    for (size_t i = 0; i < length; i++)
        if (text[i] == '\0' || strchr(letters, text[i]) == NULL)
            return false;
    return true;
}

static bool add_client(struct gate_keys *keys, const char *key)
{
    char(*clients)[GATE_KEY_TEXT] = NULL;

    if (keys->client_count < GATE_CLIENTS_MAX)
        clients = realloc(keys->clients, (keys->client_count + 1) * sizeof(*clients));
    if (clients == NULL)
        return false;
    memcpy(clients[keys->client_count], key, GATE_KEY_TEXT - 1);
    clients[keys->client_count++][GATE_KEY_TEXT - 1] = '\0';
    keys->clients = clients;
    return true;
}

/* False: the line is none of the three, or one too many. */
static bool take_line(struct gate_keys *keys, const char *line, size_t length)
{
    const char *key = line + 7; /* "server ", "client ", "secret " */
    char *into = keys->server;

    if (length < 7 || !is_key(key, length - 7))
        return false;
    if (strncmp(line, "client ", 7) == 0)
        return add_client(keys, key);
    if (strncmp(line, "secret ", 7) == 0)
        into = keys->secret;
    else if (strncmp(line, "server ", 7) != 0)
        return false;
    if (into[0] != '\0')
        return false;
    memcpy(into, key, GATE_KEY_TEXT - 1);
    return true;
}

int gate_keys_parse(const char *contents, size_t length, struct gate_keys *keys_p, char *text_p,
                    size_t text_size)
{
    struct gate_keys keys = {.clients = NULL};
    const char *at = contents, *end = contents + length;
    unsigned number = 0;

    while (at < end) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        size_t bytes = (size_t)((newline == NULL ? end : newline) - at);
        number++;
        if (bytes > 0 && at[0] != '#' && !take_line(&keys, at, bytes)) {
            snprintf(text_p, text_size,
                     "line %u is none of \"server KEY\", \"client KEY\" and \"secret KEY\", or one "
                     "too many",
                     number);
            goto failed;
        }
        at = newline == NULL ? end : newline + 1;
    }
    if (keys.server[0] != '\0' && keys.secret[0] != '\0' && keys.client_count > 0) {
        *keys_p = keys;
        return HVI_OK;
    }
    snprintf(text_p, text_size, "it needs a \"server KEY\", a \"client KEY\" and a \"secret KEY\"");
failed:
    gate_keys_fini(&keys);
    return HVI_ERR_INVALID;
}

void gate_keys_fini(struct gate_keys *keys)
{
    explicit_bzero(keys->secret, sizeof(keys->secret));
    free(keys->clients);
    free(keys->names);
    keys->clients = NULL;
    keys->names = NULL;
    keys->client_count = 0;
}

/* ---- the file ---- */

/* The file itself, or the one of the pair; the name of the one that was looked at last in `name_p`. */
static int open_one(const char *path, bool listens, char *name_p, size_t name_size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);

    snprintf(name_p, name_size, "%s", path);
    if (fd >= 0 || errno != ENOENT)
        return fd;
    snprintf(name_p, name_size, "%s.%s", path, listens ? "server" : "client");
    fd = open(name_p, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    return fd;
}

static const char *look_at(int fd)
{
    struct stat info;

    if (fstat(fd, &info) != 0)
        return strerror(errno);
    if (!S_ISREG(info.st_mode))
        return "it is no regular file";
    if (info.st_uid != geteuid())
        return "it belongs to another user";
    if ((info.st_mode & 077) != 0)
        return "others may read it; chmod 600 it if nobody has";
    return NULL;
}

int gate_keys_read(const char *path, bool listens, struct gate_keys *keys_p, char *text_p,
                   size_t text_size)
{
    char name[512], why[200], contents[FILE_BYTES_MAX];
    int fd = open_one(path, listens, name, sizeof(name));
    const char *wrong = fd < 0 ? strerror(errno) : look_at(fd);
    ssize_t length = -1;

    if (wrong == NULL) {
        length = read(fd, contents, sizeof(contents));
        wrong = length < 0 ? strerror(errno) : NULL;
        if (length == (ssize_t)sizeof(contents))
            wrong = "it is longer than 64 KiB";
    }
    if (fd >= 0)
        close(fd);
    if (wrong == NULL &&
        gate_keys_parse(contents, (size_t)length, keys_p, why, sizeof(why)) != HVI_OK)
        wrong = why;
    explicit_bzero(contents, sizeof(contents));
    return wrong == NULL ? HVI_OK : refuse(text_p, text_size, name, wrong);
}

/* ---- a folder ---- */

bool gate_keys_parse_one(const char *contents, size_t length, const char *word,
                         char key_p[GATE_KEY_TEXT])
{
    const char *at = contents, *end = contents + length;
    const size_t skip = strlen(word);
    bool found = false;

    while (at < end) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        size_t bytes = (size_t)((newline == NULL ? end : newline) - at);
        if (bytes > 0 && at[0] != '#') {
            if (found || bytes < skip || memcmp(at, word, skip) != 0 ||
                !is_key(at + skip, bytes - skip))
                return false;
            memcpy(key_p, at + skip, GATE_KEY_TEXT - 1);
            key_p[GATE_KEY_TEXT - 1] = '\0';
            found = true;
        }
        at = newline == NULL ? end : newline + 1;
    }
    return found;
}

/* Why the list may not be believed; NULL: it may. */
static const char *look_at_list(int fd, mode_t type)
{
    struct stat info;

    if (fstat(fd, &info) != 0)
        return strerror(errno);
    if ((info.st_mode & S_IFMT) != type)
        return type == S_IFDIR ? "it is no folder" : "it is no regular file";
    if (info.st_uid != 0 && info.st_uid != geteuid())
        return "it belongs to another user";
    if ((info.st_mode & 022) != 0)
        return "others may write it; chmod go-w it if nobody has";
    return NULL;
}

/* One file of a key. NULL, or why it has none. */
static const char *read_one(int folder, const char *name, const char *word, bool is_secret,
                            char key_p[GATE_KEY_TEXT])
{
    char contents[4096];
    int fd = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    const char *wrong =
        fd < 0 ? strerror(errno) : (is_secret ? look_at(fd) : look_at_list(fd, S_IFREG));
    ssize_t length = wrong == NULL ? read(fd, contents, sizeof(contents)) : -1;

    if (wrong == NULL && length < 0)
        wrong = strerror(errno);
    if (fd >= 0)
        close(fd);
    if (wrong == NULL && !gate_keys_parse_one(contents, (size_t)length, word, key_p))
        wrong = is_secret ? "it is not one line \"secret KEY\""
                          : "it is not one line with the KEY that `hvdctl key show` prints there";
    explicit_bzero(contents, sizeof(contents));
    return wrong;
}

static int is_visible(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

/* Room for a node more; False: there is none. */
static bool add_named(struct gate_keys *keys, const char *name, const char *key)
{
    char(*names)[HVI_WIRE_NODE_NAME] =
        realloc(keys->names, (keys->client_count + 1) * sizeof(*names));

    if (names == NULL)
        return false;
    keys->names = names;
    snprintf(names[keys->client_count], sizeof(*names), "%.63s", name);
    return add_client(keys, key);
}

static void read_all(const char *dir, int folder, struct dirent **entries, int count,
                     struct gate_keys *fresh_p, char *text_p, size_t text_size)
{
    for (int i = 0; i < count; i++) {
        const char *name = entries[i]->d_name, *wrong;
        char key[GATE_KEY_TEXT];
        if (!hvi_place_is_node_name(name))
            wrong = "a name has at most 63 letters, digits or any of . - _ :";
        else
            wrong = read_one(folder, name, "", false, key);
        if (wrong == NULL && !add_named(fresh_p, name, key))
            wrong = "there are too many, or no memory";
        if (wrong != NULL && text_p[0] == '\0')
            snprintf(text_p, text_size, "the key of node %s (%s/allow) is left out: %s", name, dir,
                     wrong);
    }
}

static bool is_same(const struct gate_keys *a, const struct gate_keys *b)
{
    if (a->client_count != b->client_count)
        return false;
    for (size_t i = 0; i < a->client_count; i++)
        if (strcmp(a->clients[i], b->clients[i]) != 0 || strcmp(a->names[i], b->names[i]) != 0)
            return false;
    return true;
}

int gate_keys_read_allowed(const char *dir, struct gate_keys *keys, bool *changed_p, char *text_p,
                           size_t text_size)
{
    struct gate_keys fresh = {.clients = NULL};
    struct dirent **entries = NULL;
    char path[PATH_MAX];

    snprintf(path, sizeof(path), "%.256s/allow", dir);
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const char *wrong = folder < 0 ? strerror(errno) : look_at_list(folder, S_IFDIR);
    int count = wrong == NULL ? scandirat(folder, ".", &entries, is_visible, alphasort) : -1;

    if (wrong == NULL && count < 0)
        wrong = strerror(errno);
    text_p[0] = '\0';
    if (wrong == NULL)
        read_all(dir, folder, entries, count, &fresh, text_p, text_size);
    else
        snprintf(text_p, text_size,
                 "the allow-list of the mesh, %s, cannot be used: %s; " HOW_TO_MAKE_NODES, path,
                 wrong);
    for (int i = 0; i < count; i++)
        free(entries[i]);
    free(entries);
    if (folder >= 0)
        close(folder);
    if (wrong != NULL)
        return HVI_ERR_REFUSED;
    *changed_p = !is_same(keys, &fresh);
    free(keys->clients);
    free(keys->names);
    keys->clients = fresh.clients;
    keys->names = fresh.names;
    keys->client_count = fresh.client_count;
    return HVI_OK;
}

int gate_keys_read_node(const char *dir, struct gate_keys *keys_p, char *text_p, size_t text_size)
{
    struct gate_keys keys = {.of_node = true};
    int folder = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC), status = HVI_ERR_REFUSED;
    const char *wrong =
        folder < 0 ? strerror(errno) : read_one(folder, "node.key", "secret ", true, keys.secret);
    bool changed;

    if (folder >= 0)
        close(folder);
    if (wrong != NULL)
        snprintf(text_p, text_size,
                 "the key of this node, %s/node.key, cannot be used: %s; " HOW_TO_MAKE_NODES, dir,
                 wrong);
    else
        status = gate_keys_read_allowed(dir, &keys, &changed, text_p, text_size);
    if (status == HVI_OK)
        *keys_p = keys;
    else
        gate_keys_fini(&keys);
    return status;
}

const char *gate_keys_name(const struct gate_keys *keys, const char *key)
{
    for (size_t i = 0; keys->names != NULL && i < keys->client_count; i++)
        if (strcmp(keys->clients[i], key) == 0)
            return keys->names[i];
    return NULL;
}

const char *gate_keys_of(const struct gate_keys *keys, const char *name)
{
    for (size_t i = 0; keys->names != NULL && i < keys->client_count; i++)
        if (strcmp(keys->names[i], name) == 0)
            return keys->clients[i];
    return NULL;
}
