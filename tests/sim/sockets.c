/* SPDX-License-Identifier: Apache-2.0
 * What sendmsg, recv and the event loop cost on this machine: over the loopback, where the sender's call does the
 * receiver's half of the kernel's work as well. */
#include "tests/sim/sim.h"

#include "base/assert.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define TIMES   20000
#define MESSAGE 110u   /* bytes, as reports have */
#define LARGE   16384u /* for the cost of a byte */

uint64_t __real_hvi_clock_ns(void);

static void connect_pair(int fds_p[2])
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof address;
    int one = 1, listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    fds_p[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool done = bind(listening, (struct sockaddr *)&address, length) == 0 &&
                listen(listening, 1) == 0 &&
                getsockname(listening, (struct sockaddr *)&address, &length) == 0 &&
                connect(fds_p[0], (struct sockaddr *)&address, length) == 0;
    fds_p[1] = accept4(listening, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    HVI_ASSERT(done && fds_p[1] >= 0);
    setsockopt(fds_p[0], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    close(listening);
}

/* Nanoseconds of each call. */
struct took {
    double send, receive, look;
};

static struct took measure(const int fds[2], int epoll, size_t bytes)
{
    static unsigned char buffer[LARGE];
    struct iovec part = {buffer, bytes};
    const struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    uint64_t times[4], sums[3] = {0};
    struct epoll_event event;

    for (int i = 0; i < TIMES; i++) {
        times[0] = __real_hvi_clock_ns();
        ssize_t sent = sendmsg(fds[0], &message, MSG_NOSIGNAL);
        times[1] = __real_hvi_clock_ns();
        HVI_ASSERT(sent == (ssize_t)bytes && epoll_wait(epoll, &event, 1, 1000) == 1);
        times[2] = __real_hvi_clock_ns();
        for (size_t got = 0; got < bytes;) {
            ssize_t more = recv(fds[1], buffer, bytes, 0);
            HVI_ASSERT(more > 0 || epoll_wait(epoll, &event, 1, 1000) == 1);
            got += more > 0 ? (size_t)more : 0;
        }
        times[3] = __real_hvi_clock_ns();
        for (int k = 0; k < 3; k++)
            sums[k] += times[k + 1] - times[k];
    }
    return (struct took){(double)sums[0] / TIMES, (double)sums[2] / TIMES, (double)sums[1] / TIMES};
}

void hvt_sockets_measure(void)
{
    struct epoll_event event = {.events = EPOLLIN};
    int fds[2], epoll = epoll_create1(EPOLL_CLOEXEC);

    connect_pair(fds);
    bool added = epoll_ctl(epoll, EPOLL_CTL_ADD, fds[1], &event) == 0;
    HVI_ASSERT(added);
    struct took small = measure(fds, epoll, MESSAGE), large = measure(fds, epoll, LARGE);
    fprintf(stderr, "send     %8.0f ns, receive %.0f ns, epoll_wait %.0f ns: %u bytes\n",
            small.send, small.receive, small.look, MESSAGE);
    fprintf(stderr, "copy     %8.0f ps a byte in sendmsg, %.0f in recv\n",
            (large.send - small.send) * 1000 / (LARGE - MESSAGE),
            (large.receive - small.receive) * 1000 / (LARGE - MESSAGE));
    close(fds[0]);
    close(fds[1]);
    close(epoll);
}
