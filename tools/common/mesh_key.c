/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/mesh_key.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <zmq.h>

struct pair {
    char public[MESH_KEY_ROOM], secret[MESH_KEY_ROOM];
};

static void format(const struct pair *server, const struct pair *client, const char *secret,
                   char text_p[MESH_KEY_TEXT])
{
    snprintf(text_p, MESH_KEY_TEXT, "server %s\nclient %s\nsecret %s\n", server->public,
             client->public, secret);
}

int mesh_key_make(char server_p[MESH_KEY_TEXT], char client_p[MESH_KEY_TEXT], const char **why_p)
{
    struct pair server, client;

    if (zmq_curve_keypair(server.public, server.secret) != 0 ||
        zmq_curve_keypair(client.public, client.secret) != 0) {
        *why_p = zmq_strerror(errno);
        return -1;
    }
    format(&server, &client, server.secret, server_p);
    format(&server, &client, client.secret, client_p);
    explicit_bzero(&server, sizeof server);
    explicit_bzero(&client, sizeof client);
    return 0;
}

int mesh_key_pair(char public_p[MESH_KEY_ROOM], char secret_p[MESH_KEY_ROOM], const char **why_p)
{
    do {
        if (zmq_curve_keypair(public_p, secret_p) != 0) {
            *why_p = zmq_strerror(errno);
            return -1;
        }
    } while (!isalnum((unsigned char)public_p[0]));
    return 0;
}

int mesh_key_public(const char *secret, char public_p[MESH_KEY_ROOM])
{
    return zmq_curve_public(public_p, secret) == 0 ? 0 : -1;
}

bool mesh_key_is(const char *text)
{
    unsigned char bytes[32];

    return strlen(text) == MESH_KEY_ROOM - 1 && zmq_z85_decode(bytes, text) != NULL;
}

int mesh_key_write(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);

    if (fd < 0)
        return -1;
    const bool written =
        fchmod(fd, 0600) == 0 && dprintf(fd, "%s", text) == (int)strlen(text) && fsync(fd) == 0;
    int error = errno;
    if (close(fd) == 0 && written)
        return 0;
    if (written)
        error = errno;
    unlink(path);
    errno = error;
    return -1;
}
