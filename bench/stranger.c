/* SPDX-License-Identifier: Apache-2.0
 * The stranger of strangers.py: one kind of flood, until it is killed.
 *
 *   stranger DIR connect|garbage|silent|admin|ask|jobs|spin
 *
 * connect   attach.sock: connections that end at once        admin  the same at admin.sock
 * garbage   attach.sock: a message that is none, and its answer, which hvdd logs
 * silent    attach.sock: as many connections as there may be, kept
 * ask       admin.sock: as many connections as there may be, each of which asks for jobs again and again
 * jobs      jobs of one rank that end at once: a new engine each time
 * spin      nothing at all, for comparison: it takes its core, and leaves hvdd alone */
#include <hvd/hvd.h>

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define KEPT 600 /* more than hvdd or its gate leave one user */

/* ZMTP 3.0: greeting, READY of a DEALER, and an AdminRequest for jobs in one frame. */
static const unsigned char greeting[64] = {[0] = 0xff, [9] = 0x7f, [10] = 3, [12] = 'N',
                                           'U',        'L',        'L'};
static const unsigned char ready[] = "\4\x29\5READY\x0bSocket-Type\0\0\0\6DEALER\x08Identity\0\0\0";
static const unsigned char request[] = {0, 6, 8, 1, 16, 1, 34, 0};

static int connected(const char *dir, const char *name, int type)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);

    snprintf(address.sun_path, sizeof address.sun_path, "%s/%s", dir, name);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

static void come_and_go(const char *dir, const char *name, int type)
{
    for (;;)
        close(connected(dir, name, type));
}

static void shout(const char *dir)
{
    char answer[4096];

    for (;;) {
        int fd = connected(dir, "attach.sock", SOCK_SEQPACKET);
        if (fd < 0 || send(fd, "garbage", 7, MSG_NOSIGNAL) < 0 ||
            recv(fd, answer, sizeof answer, 0) < 0) {
        }
        close(fd);
    }
}

static int say_hello(const char *dir)
{
    int fd = connected(dir, "admin.sock", SOCK_STREAM);

    if (fd < 0)
        return -1;
    if (send(fd, greeting, sizeof greeting, MSG_NOSIGNAL) > 0 &&
        send(fd, ready, sizeof ready, MSG_NOSIGNAL) > 0 &&
        send(fd, request, sizeof request, MSG_NOSIGNAL) > 0)
        return fd;
    close(fd);
    return -1;
}

/* What has come is thrown away, and means that the next request may follow. False: the connection has ended. */
static bool go_on(int fd, bool asks)
{
    char bytes[65536];
    ssize_t length = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);

    if (length == 0 || (length < 0 && errno != EAGAIN))
        return false;
    return !asks || length < 0 || send(fd, request, sizeof request, MSG_NOSIGNAL) > 0;
}

static void crowd(const char *dir, bool asks)
{
    static struct pollfd kept[KEPT];

    for (int i = 0; i < KEPT; i++)
        kept[i] = (struct pollfd){.fd = -1, .events = POLLIN};
    for (;;) {
        for (int i = 0; i < KEPT; i++)
            if (kept[i].fd < 0)
                kept[i].fd = asks ? say_hello(dir) : connected(dir, "attach.sock", SOCK_SEQPACKET);
        poll(kept, KEPT, 100);
        for (int i = 0; i < KEPT; i++) {
            if (kept[i].revents == 0 || go_on(kept[i].fd, asks))
                continue;
            close(kept[i].fd);
            kept[i].fd = -1;
        }
    }
}

static void start_jobs(const char *dir)
{
    struct hvd_options options;
    char job[32];

    hvd_options_init(&options);
    options.address = dir;
    options.job = job;
    options.rank = 0;
    options.size = 1;
    for (unsigned number = 0;; number++) {
        struct hvd_session *session = NULL;
        snprintf(job, sizeof job, "s%d.%u", (int)getpid(), number);
        if (hvd_open(&options, &session) == HVD_OK)
            hvd_close(session);
    }
}

int main(int argc, char **argv)
{
    const char *kind = argc == 3 ? argv[2] : "";

    if (strcmp(kind, "connect") == 0)
        come_and_go(argv[1], "attach.sock", SOCK_SEQPACKET);
    else if (strcmp(kind, "admin") == 0)
        come_and_go(argv[1], "admin.sock", SOCK_STREAM);
    else if (strcmp(kind, "garbage") == 0)
        shout(argv[1]);
    else if (strcmp(kind, "silent") == 0)
        crowd(argv[1], false);
    else if (strcmp(kind, "ask") == 0)
        crowd(argv[1], true);
    else if (strcmp(kind, "jobs") == 0)
        start_jobs(argv[1]);
    else if (strcmp(kind, "spin") == 0)
        for (volatile unsigned turns = 0;; turns++) {
        }
    fprintf(stderr, "usage: stranger DIR connect|garbage|silent|admin|ask|jobs|spin\n");
    return 2;
}
