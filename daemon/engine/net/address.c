/* SPDX-License-Identifier: Apache-2.0
 * Numeric addresses, IPv4 and IPv6. Names are not resolved here: that blocks, and gives each host its own
 * answer. */
#include "daemon/engine/net/conn.h"

#include "base/status.h"

#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

int engine_net_address_parse(const char *text, uint16_t port, struct sockaddr_storage *address_p)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                                   .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    char service[8];

    snprintf(service, sizeof service, "%u", (unsigned)port);
    if (getaddrinfo(text, service, &hints, &found) != 0)
        return HVI_ERR_INVALID;
    memset(address_p, 0, sizeof *address_p);
    memcpy(address_p, found->ai_addr, found->ai_addrlen);
    freeaddrinfo(found);
    return HVI_OK;
}

socklen_t engine_net_address_length(const struct sockaddr_storage *address)
{
    return address->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6)
                                          : sizeof(struct sockaddr_in);
}

uint16_t engine_net_address_port(const struct sockaddr_storage *address)
{
    return ntohs(address->ss_family == AF_INET6 ? ((const struct sockaddr_in6 *)address)->sin6_port
                                                : ((const struct sockaddr_in *)address)->sin_port);
}

void engine_net_address_plain(struct sockaddr_storage *address)
{
    const struct sockaddr_in6 mapped = *(const struct sockaddr_in6 *)address;
    struct sockaddr_in plain = {.sin_family = AF_INET, .sin_port = mapped.sin6_port};

    if (address->ss_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&mapped.sin6_addr))
        return;
    memcpy(&plain.sin_addr, &mapped.sin6_addr.s6_addr[12], sizeof plain.sin_addr);
    memset(address, 0, sizeof *address);
    memcpy(address, &plain, sizeof plain);
}

void engine_net_address_host(const struct sockaddr_storage *address,
                             char text_p[ENGINE_NET_ADDRESS_TEXT])
{
    if (getnameinfo((const struct sockaddr *)address, engine_net_address_length(address), text_p,
                    ENGINE_NET_ADDRESS_TEXT, NULL, 0, NI_NUMERICHOST) != 0)
        snprintf(text_p, ENGINE_NET_ADDRESS_TEXT, "an unknown address");
}

void engine_net_address_place(const struct sockaddr_storage *address,
                              char text_p[ENGINE_NET_ADDRESS_TEXT])
{
    char host[ENGINE_NET_ADDRESS_TEXT];

    engine_net_address_host(address, host);
    snprintf(text_p, ENGINE_NET_ADDRESS_TEXT,
             address->ss_family == AF_INET6 ? "[%.70s]:%u" : "%.70s:%u", host,
             (unsigned)engine_net_address_port(address));
}

/* A host has a whole /64 of IPv6 to itself. */
bool engine_net_address_near(const struct sockaddr_storage *a, const struct sockaddr_storage *b)
{
    if (a->ss_family != b->ss_family)
        return false;
    if (a->ss_family == AF_INET6)
        return memcmp(&((const struct sockaddr_in6 *)a)->sin6_addr,
                      &((const struct sockaddr_in6 *)b)->sin6_addr, 8) == 0;
    return ((const struct sockaddr_in *)a)->sin_addr.s_addr ==
           ((const struct sockaddr_in *)b)->sin_addr.s_addr;
}
