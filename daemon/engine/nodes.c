/* SPDX-License-Identifier: Apache-2.0
 * Nobody may connect before both sides have the epoch's key: a connection that comes is closed. */
#include "daemon/engine/nodes.h"

#include "base/status.h"
#include "daemon/engine/event/event.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define BACKLOG 128

/* All addresses of both families, or of IPv4 where there is no other. */
static int bind_any(int fd, int family)
{
    const struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_ANY_INIT};
    const struct sockaddr_in four = {.sin_family = AF_INET};
    int off = 0;

    if (family == AF_INET)
        return bind(fd, (const struct sockaddr *)&four, sizeof four);
    if (setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) != 0)
        return -1;
    return bind(fd, (const struct sockaddr *)&six, sizeof six);
}

static int listen_on(int family, uint16_t *port_p)
{
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    union {
        struct sockaddr any;
        struct sockaddr_in four;
        struct sockaddr_in6 six;
    } bound;
    socklen_t length = sizeof bound;

    if (fd < 0)
        return -1;
    if (bind_any(fd, family) != 0 || listen(fd, BACKLOG) != 0 ||
        getsockname(fd, &bound.any, &length) != 0) {
        int error = errno;
        close(fd);
        errno = error;
        return -1;
    }
    *port_p = ntohs(family == AF_INET6 ? bound.six.sin6_port : bound.four.sin_port);
    return fd;
}

static int on_connection(sd_event_source *source, int fd, uint32_t events, void *user)
{
    (void)source, (void)events, (void)user;
    int connection = accept4(fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (connection >= 0)
        close(connection);
    return 0;
}

int engine_nodes_open(struct engine_nodes *nodes, struct sd_event *event, uint16_t *port_p)
{
    nodes->listen_fd = listen_on(AF_INET6, port_p);
    if (nodes->listen_fd < 0)
        nodes->listen_fd = listen_on(AF_INET, port_p);
    if (nodes->listen_fd < 0)
        return HVI_ERR_LIMIT;
    int added =
        sd_event_add_io(event, &nodes->source, nodes->listen_fd, EPOLLIN, on_connection, nodes);
    if (added >= 0)
        return HVI_OK;
    engine_nodes_close(nodes);
    errno = -added;
    return HVI_ERR_LIMIT;
}

void engine_nodes_start(struct engine_nodes *nodes, const struct hvi_engine_roster *roster)
{
    snprintf(nodes->name, sizeof nodes->name, "%s", roster->nodes[roster->node].name);
}

void engine_nodes_close(struct engine_nodes *nodes)
{
    nodes->source = sd_event_source_disable_unref(nodes->source);
    if (nodes->listen_fd >= 0)
        close(nodes->listen_fd);
    nodes->listen_fd = -1;
}
