/* SPDX-License-Identifier: Apache-2.0
 * `hvdctl doctor --peer-server`: the other end of what `doctor --peer` measures. It prints a key that counts
 * once, listens at a port of HVD_PORT_RANGE, and ends when one with the key has been served, or after five
 * minutes. No hvdd takes part. Connections come one after the other: each has 2 s to prove that it has the
 * key, and one that has it 60 s. */
#include "base/clock.h"
#include "base/status.h"
#include "tools/hvdctl/doctor.h"
#include "tools/hvdctl/peer_link.h"
#include "tools/hvdctl/resolve.h"

#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define WAIT_S    300
#define MEET_NS   (2 * (int64_t)HVI_NS_SEC)
#define SERVE_NS  (60 * (int64_t)HVI_NS_SEC)
#define BYTES_MAX (UINT64_C(4) << 30) /* in one direction and the other */

struct server {
    const struct ctl *ctl;
    unsigned char key[CTL_PEER_KEY_BYTES];
    char versions[CTL_PEER_VERSIONS]; /* ours */
};

/* From the last one down, as engines do. -1 with errno. */
static int listen_in(uint16_t first, uint16_t last, uint16_t *port_p)
{
    for (uint32_t port = last; port >= first; port--) {
        const int fd = ctl_bind((uint16_t)port);
        *port_p = (uint16_t)port;
        if (fd >= 0 && listen(fd, 8) == 0)
            return fd;
        if (fd >= 0)
            close(fd);
    }
    return -1;
}

static void print_invitation(const struct ctl *ctl, const char *key, uint16_t port)
{
    char host[256] = "THIS_HOST";
    gethostname(host, sizeof host - 1);
    if (ctl->json)
        fprintf(ctl->out, "{\"port\": %u, \"key\": \"%s\", \"seconds\": %d}\n", port, key, WAIT_S);
    else
        fprintf(ctl->out,
                "On the other machine, within %d minutes:\n\n  %s=%s hvdctl doctor --peer "
                "%s:%u\n\n",
                WAIT_S / 60, CTL_PEER_KEY_NAME, key, host, port);
    fflush(ctl->out);
}

static int answer(const struct ctl_peer_link *link, const struct ctl_peer_ask *ask)
{
    int status = HVI_OK;
    if (ask->what == CTL_PEER_TAKE)
        status = ctl_peer_drain(link, ask->bytes);
    if (ask->what == CTL_PEER_GIVE)
        return ctl_peer_pour(link, ask->bytes);
    return status == HVI_OK ? ctl_peer_send_ask(link, ask) : status;
}

/* Until the other side closes. */
static void serve(struct ctl_peer_link *link)
{
    struct ctl_peer_ask ask;
    uint64_t bytes = 0;
    link->deadline_ns = hvi_deadline_after(SERVE_NS);
    while (ctl_peer_receive_ask(link, &ask) == HVI_OK) {
        bytes += ask.bytes;
        if (bytes > BYTES_MAX || answer(link, &ask) != HVI_OK)
            return;
    }
}

/* True: it has the key, and was served. */
static bool take(const struct server *server, int fd)
{
    struct ctl_peer_link link = {.fd = fd, .deadline_ns = hvi_deadline_after(MEET_NS)};
    const struct ctl *ctl = server->ctl;
    char versions[CTL_PEER_VERSIONS], address[64];
    struct sockaddr_storage from = {0};
    socklen_t length = sizeof from;
    const int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    getpeername(fd, (struct sockaddr *)&from, &length);
    ctl_address_text((const struct sockaddr *)&from, length, address, sizeof address);
    const int status = ctl_peer_meet(&link, server->key, true, server->versions, versions);
    if (status != HVI_OK) {
        if (status != HVI_ERR_CLOSED) /* one that only tried the port */
            ctl_complain(ctl, status, "%s has not the key", address);
        return false;
    }
    serve(&link);
    if (!ctl->json)
        fprintf(ctl->out, "measured with %s (%s)\n", address, versions);
    return true;
}

static int wait_for_one(const struct server *server, int listening)
{
    const uint64_t deadline_ns = hvi_deadline_after(WAIT_S * (int64_t)HVI_NS_SEC);
    struct pollfd pollfd = {.fd = listening, .events = POLLIN};
    bool served = false;
    while (!served && !hvi_deadline_passed(deadline_ns)) {
        poll(&pollfd, 1, hvi_deadline_poll_ms(deadline_ns));
        const int fd = accept4(listening, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0)
            continue;
        served = take(server, fd);
        close(fd);
    }
    if (served)
        return CTL_OK;
    ctl_complain(server->ctl, HVI_ERR_TIMEOUT,
                 "no doctor --peer with the key has come within %d minutes; if it could not, a "
                 "firewall of this machine or between may be the reason",
                 WAIT_S / 60);
    return CTL_REFUSED;
}

int ctl_peer_serve(const struct ctl *ctl)
{
    struct server server = {.ctl = ctl};
    char text[CTL_PEER_KEY_TEXT];
    uint16_t first, last, port;
    if (!ctl_port_range(&first, &last)) {
        ctl_complain(ctl, HVI_ERR_INVALID, "HVD_PORT_RANGE is no range of ports as 9600-9631");
        return CTL_USAGE;
    }
    if (!ctl_peer_key_new(text) || !ctl_peer_key_parse(text, server.key)) {
        ctl_complain(ctl, HVI_ERR_DAEMON, "the system has no random numbers");
        return CTL_REFUSED;
    }
    const int fd = listen_in(first, last, &port);
    if (fd < 0) {
        ctl_complain(ctl, HVI_ERR_LIMIT,
                     "none of the ports %u to %u can be listened at (%s): give HVD_PORT_RANGE "
                     "another range",
                     first, last, strerror(errno));
        return CTL_REFUSED;
    }
    ctl_peer_versions(ctl, server.versions, sizeof server.versions);
    print_invitation(ctl, text, port);
    const int code = wait_for_one(&server, fd);
    close(fd);
    return code;
}
