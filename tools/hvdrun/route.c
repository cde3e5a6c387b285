/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/hvdrun/route.h"

#include "base/interface.h"
#include "base/status.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define DISCARD "9" /* any port: a datagram socket that is connected sends nothing */

const char *run_route_wish(void)
{
    const char *own = getenv("HVD_INTERFACE");
    const char *wish = own != NULL && own[0] != '\0' ? own : getenv("HOROVOD_GLOO_IFACE");
    return wish != NULL && hvi_interface_is_wish(wish) ? wish : NULL;
}

bool run_route_is_loopback(const char *address)
{
    return strncmp(address, "127.", 4) == 0 || strcmp(address, "::1") == 0;
}

void run_route_place(char *text_p, size_t size, const char *address, unsigned port)
{
    const bool six = strchr(address, ':') != NULL;
    snprintf(text_p, size, "%s%s%s:%u", six ? "[" : "", address, six ? "]" : "", port);
}

static socklen_t size_of(const struct sockaddr *address)
{
    return address->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6)
                                          : sizeof(struct sockaddr_in);
}

static bool to_text(const struct sockaddr *address, char *text_p, size_t size)
{
    return getnameinfo(address, size_of(address), text_p, (socklen_t)size, NULL, 0,
                       NI_NUMERICHOST) == 0;
}

static int towards(const char *peer, char *address_p, size_t address_size, char *text_p,
                   size_t text_size)
{
    const struct addrinfo wish = {.ai_socktype = SOCK_DGRAM, .ai_flags = AI_NUMERICHOST};
    struct addrinfo *found = NULL;
    struct sockaddr_storage own = {.ss_family = AF_UNSPEC};
    socklen_t bytes = sizeof own;
    if (getaddrinfo(peer, DISCARD, &wish, &found) != 0) {
        snprintf(text_p, text_size, "%s is no address", peer);
        return -1;
    }
    const int fd = socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    const bool connected = fd >= 0 && connect(fd, found->ai_addr, found->ai_addrlen) == 0 &&
                           getsockname(fd, (struct sockaddr *)&own, &bytes) == 0 &&
                           to_text((const struct sockaddr *)&own, address_p, address_size);
    if (!connected)
        snprintf(text_p, text_size, "no address of this host leads to %s: %s", peer,
                 strerror(errno));
    if (fd >= 0)
        close(fd);
    freeaddrinfo(found);
    return connected ? 0 : -1;
}

static int chosen(int family, const char *interfaces, char *address_p, size_t address_size,
                  char *text_p, size_t text_size)
{
    struct hvi_interface interface;
    if (hvi_interface_find(interfaces, family, &interface, text_p, text_size) != HVI_OK)
        return -1;
    snprintf(address_p, address_size, "%s", interface.address);
    return 0;
}

int run_route_own(const char *peer, const char *interfaces, char *address_p, size_t address_size,
                  char *text_p, size_t text_size)
{
    const int family = strchr(peer, ':') != NULL ? AF_INET6 : AF_INET;
    if (interfaces == NULL || !hvi_interface_is_wish(interfaces))
        return towards(peer, address_p, address_size, text_p, text_size);
    if (chosen(family, interfaces, address_p, address_size, text_p, text_size) == 0)
        return 0;
    return chosen(AF_UNSPEC, interfaces, address_p, address_size, text_p, text_size);
}
