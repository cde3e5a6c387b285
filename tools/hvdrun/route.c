/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/hvdrun/route.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define ENTRY_MAX 128
#define DISCARD   "9" /* any port: a datagram socket that is connected sends nothing */

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

/* ---- towards the peer ---- */

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

/* ---- by the user's words ---- */

static bool bytes_of(const struct sockaddr *address, unsigned char bytes_p[16], size_t *count_p)
{
    struct sockaddr_in four;
    struct sockaddr_in6 six;
    if (address->sa_family == AF_INET) {
        memcpy(&four, address, sizeof four);
        memcpy(bytes_p, &four.sin_addr, *count_p = 4);
        return true;
    }
    if (address->sa_family != AF_INET6)
        return false;
    memcpy(&six, address, sizeof six);
    memcpy(bytes_p, &six.sin6_addr, *count_p = 16);
    return true;
}

/* "192.0.2.0/24": same family, and the first bits are the same. */
static bool in_network(const char *network, const struct sockaddr *address)
{
    char base[ENTRY_MAX];
    char *rest;
    unsigned char wanted[16];
    unsigned char bytes[16];
    size_t count;
    const size_t length = strcspn(network, "/");
    snprintf(base, sizeof base, "%.*s", (int)length, network);
    const unsigned long bits = strtoul(network + length + 1, &rest, 10);
    const int family = strchr(base, ':') != NULL ? AF_INET6 : AF_INET;
    if (*rest != '\0' || inet_pton(family, base, wanted) != 1 || address->sa_family != family ||
        !bytes_of(address, bytes, &count) || bits > 8 * count)
        return false;
    for (unsigned long bit = 0; bit < bits; bit++)
        if (((wanted[bit / 8] ^ bytes[bit / 8]) >> (7 - bit % 8) & 1) != 0)
            return false;
    return true;
}

static bool entry_fits(const char *entry, const struct ifaddrs *at)
{
    if (strchr(entry, '/') != NULL)
        return in_network(entry, at->ifa_addr);
    return strcmp(entry, at->ifa_name) == 0;
}

/* The next entry of the list, without blanks; false at its end. */
static bool next_entry(const char **list, char entry_p[ENTRY_MAX])
{
    *list += strspn(*list, ", ");
    const size_t length = strcspn(*list, ", ");
    snprintf(entry_p, ENTRY_MAX, "%.*s", (int)length, *list);
    *list += length;
    return length > 0;
}

/* How soon an address is wanted: 0 is first; -1: not at all. */
static int place_of(const char *interfaces, const struct ifaddrs *at)
{
    char entry[ENTRY_MAX];
    bool exceptions = false;
    bool wishes = false;
    int place = -1;
    for (int number = 0; next_entry(&interfaces, entry); number++) {
        const bool exception = entry[0] == '^';
        exceptions |= exception;
        wishes |= !exception;
        if (!entry_fits(entry + (exception ? 1 : 0), at))
            continue;
        if (exception)
            return -1;
        if (place < 0)
            place = number;
    }
    if (exceptions && !wishes)
        return (at->ifa_flags & IFF_LOOPBACK) != 0 ? -1 : 0;
    return place;
}

static bool is_usable(const struct ifaddrs *at, int family)
{
    return at->ifa_addr != NULL && at->ifa_addr->sa_family == family &&
           (at->ifa_flags & IFF_UP) != 0;
}

static int chosen(int family, const char *interfaces, char *address_p, size_t address_size,
                  char *text_p, size_t text_size)
{
    struct ifaddrs *list = NULL;
    const struct ifaddrs *best = NULL;
    int best_place = -1;
    if (getifaddrs(&list) != 0) {
        snprintf(text_p, text_size, "cannot look at the interfaces: %s", strerror(errno));
        return -1;
    }
    for (const struct ifaddrs *at = list; at != NULL; at = at->ifa_next) {
        const int place = is_usable(at, family) ? place_of(interfaces, at) : -1;
        if (place >= 0 && (best == NULL || place < best_place)) {
            best = at;
            best_place = place;
        }
    }
    const bool found = best != NULL && to_text(best->ifa_addr, address_p, address_size);
    if (!found)
        snprintf(text_p, text_size, "no address of this host is one of '%s'", interfaces);
    freeifaddrs(list);
    return found ? 0 : -1;
}

int run_route_own(const char *peer, const char *interfaces, char *address_p, size_t address_size,
                  char *text_p, size_t text_size)
{
    const int family = strchr(peer, ':') != NULL ? AF_INET6 : AF_INET;
    if (interfaces == NULL || interfaces[strspn(interfaces, ", ")] == '\0')
        return towards(peer, address_p, address_size, text_p, text_size);
    return chosen(family, interfaces, address_p, address_size, text_p, text_size);
}
