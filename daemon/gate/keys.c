/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/gate/keys.h"

#include "base/status.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_BYTES_MAX (64u * 1024u)
#define HOW_TO_MAKE                                                                                \
    "make a pair with `hvdctl key new PREFIX`: PREFIX.server is for the node that listens, "       \
    "PREFIX.client for those that join"

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
    keys->clients = NULL;
    keys->client_count = 0;
}

/* ---- the file ---- */

/* The file itself, or the one of the pair; its name in `name_p`. */
static int open_one(const char *path, bool listens, char *name_p, size_t name_size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);

    snprintf(name_p, name_size, "%s", path);
    if (fd >= 0 || errno != ENOENT)
        return fd;
    snprintf(name_p, name_size, "%s.%s", path, listens ? "server" : "client");
    fd = open(name_p, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0 && errno == ENOENT) {
        snprintf(name_p, name_size, "%s", path);
        errno = ENOENT;
    }
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
