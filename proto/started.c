/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/started.h"

#include "base/clock.h"
#include "base/status.h"
#include "proto/wire.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define TELL_NS   HVI_NS_SEC
#define TEXT_SIZE 64

/* As sd_listen_fds(3) finds it out. */
static bool is_started_by_systemd(void)
{
    const char *pid = getenv("LISTEN_PID");

    return pid != NULL && strtol(pid, NULL, 10) == getpid();
}

static int write_text(const char *program, char text_p[TEXT_SIZE])
{
    return snprintf(text_p, TEXT_SIZE, "%.30s, protocol %u", program, HVI_PROTOCOL_VERSION);
}

/* Whoever connects can give a program memory to work on. */
static bool is_own_user(int socket_fd)
{
    struct ucred peer;
    socklen_t size = sizeof(peer);

    return getsockopt(socket_fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
           peer.uid == geteuid();
}

int hvi_started_tell(int socket_fd, const char *program)
{
    char text[TEXT_SIZE];
    int length = write_text(program, text);

    if (!is_started_by_systemd())
        return HVI_OK;
    if (!is_own_user(socket_fd))
        return HVI_ERR_REFUSED;
    return hvi_packet_send(socket_fd, text, (size_t)length, NULL, 0, hvi_deadline_after(TELL_NS));
}

bool hvi_started_check(const struct hvi_packet *packet, const char *program, char *text_p,
                       size_t text_size)
{
    char text[TEXT_SIZE];
    size_t length = (size_t)write_text(program, text);

    if (packet->fd_count != 0 || packet->length != length ||
        memcmp(packet->bytes, text, length) != 0)
        snprintf(text_p, text_size, "what its unit has started is no %s of this version", program);
    else if (packet->sender_pid <= 0)
        snprintf(text_p, text_size, "its unit has started it in another pid namespace");
    else if (packet->sender_uid != geteuid())
        snprintf(text_p, text_size,
                 "its unit has started it as the user %u, and hvdd is the user %u",
                 (unsigned)packet->sender_uid, (unsigned)geteuid());
    else
        return true;
    return false;
}
