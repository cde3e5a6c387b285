/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/gate/interface.h"

#include "base/status.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define INTERFACES_MAX 256
#define ITEM_ROOM      80

/* 4, 16, or 0: no numeric address. */
static size_t parse(const char *text, unsigned char bytes_p[16])
{
    if (inet_pton(AF_INET, text, bytes_p) == 1)
        return 4;
    return inet_pton(AF_INET6, text, bytes_p) == 1 ? 16 : 0;
}

static bool same_bits(const unsigned char *a, const unsigned char *b, unsigned bits)
{
    unsigned rest = bits % 8, mask = 0xffu << (8 - rest) & 0xffu;

    return memcmp(a, b, bits / 8) == 0 && (rest == 0 || ((a[bits / 8] ^ b[bits / 8]) & mask) == 0);
}

/* HVI_ERR_INVALID: it has a slash and is no network. */
static int is_in_network(const char *item, const char *address, bool *is_p)
{
    unsigned char network[16], bytes[16];
    const char *slash = strchr(item, '/');
    char base[ITEM_ROOM], *end;
    size_t length;

    snprintf(base, sizeof(base), "%.*s", (int)(slash - item), item);
    length = parse(base, network);
    unsigned long bits = strtoul(slash + 1, &end, 10);
    if (length == 0 || slash[1] < '0' || slash[1] > '9' || *end != '\0' || bits > length * 8)
        return HVI_ERR_INVALID;
    *is_p = parse(address, bytes) == length && same_bits(network, bytes, (unsigned)bits);
    return HVI_OK;
}

static int matches(const char *item, const struct gate_interface *interface, bool *is_p)
{
    if (strchr(item, '/') != NULL)
        return is_in_network(item, interface->address, is_p);
    *is_p = strcmp(item, interface->name) == 0 || strcmp(item, interface->address) == 0;
    return HVI_OK;
}

/* The item at *at_p, which moves on; false: none is left. */
static bool next_item(const char **at_p, char item_p[ITEM_ROOM])
{
    size_t length = strcspn(*at_p, ",");

    if (**at_p == '\0')
        return false;
    snprintf(item_p, ITEM_ROOM, "%.*s", (int)length, *at_p);
    *at_p += length + ((*at_p)[length] == ',');
    return true;
}

static int fail_invalid(const char *item, char *text_p, size_t text_size)
{
    snprintf(text_p, text_size,
             "HVD_INTERFACE: \"%s\" is no network; write a name, or a network as 10.0.0.0/8", item);
    return HVI_ERR_INVALID;
}

static int choose_but(const char *unwanted, const struct gate_interface *interfaces, size_t count,
                      const struct gate_interface **chosen_p, char *text_p, size_t text_size)
{
    for (size_t i = 0; i < count; i++) {
        const char *at = unwanted;
        char item[ITEM_ROOM];
        bool is = interfaces[i].loopback, one = false;
        while (next_item(&at, item)) {
            if (matches(item, &interfaces[i], &one) != HVI_OK)
                return fail_invalid(item, text_p, text_size);
            is = is || one;
        }
        if (!is) {
            *chosen_p = &interfaces[i];
            return HVI_OK;
        }
    }
    snprintf(text_p, text_size, "HVD_INTERFACE=^%s leaves no interface", unwanted);
    return HVI_ERR_NOT_FOUND;
}

int gate_interface_choose(const char *wanted, const struct gate_interface *interfaces, size_t count,
                          const struct gate_interface **chosen_p, char *text_p, size_t text_size)
{
    const char *at = wanted;
    char item[ITEM_ROOM];
    bool is = false;

    if (wanted[0] == '^')
        return choose_but(wanted + 1, interfaces, count, chosen_p, text_p, text_size);
    while (next_item(&at, item)) {
        for (size_t i = 0; i < count; i++) {
            if (matches(item, &interfaces[i], &is) != HVI_OK)
                return fail_invalid(item, text_p, text_size);
            if (is) {
                *chosen_p = &interfaces[i];
                return HVI_OK;
            }
        }
    }
    snprintf(text_p, text_size,
             "HVD_INTERFACE=%s names no interface of this machine that is up; see `ip address`",
             wanted);
    return HVI_ERR_NOT_FOUND;
}

static bool take(const struct ifaddrs *one, struct gate_interface *interface_p)
{
    int family = one->ifa_addr == NULL ? AF_UNSPEC : one->ifa_addr->sa_family;
    socklen_t size = family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);

    if ((family != AF_INET && family != AF_INET6) || (one->ifa_flags & IFF_UP) == 0)
        return false;
    /* A link-local address means nothing on another machine. */
    if (family == AF_INET6 &&
        IN6_IS_ADDR_LINKLOCAL(
            &((const struct sockaddr_in6 *)(const void *)one->ifa_addr)->sin6_addr))
        return false;
    if (getnameinfo(one->ifa_addr, size, interface_p->address, sizeof(interface_p->address), NULL,
                    0, NI_NUMERICHOST) != 0)
        return false;
    snprintf(interface_p->name, sizeof(interface_p->name), "%.31s", one->ifa_name);
    interface_p->loopback = (one->ifa_flags & IFF_LOOPBACK) != 0;
    return true;
}

int gate_interface_find(const char *wanted, struct gate_interface *chosen_p, char *text_p,
                        size_t text_size)
{
    static struct gate_interface interfaces[INTERFACES_MAX];
    const struct gate_interface *chosen;
    struct ifaddrs *all = NULL;
    size_t count = 0;
    int status;

    if (getifaddrs(&all) != 0) {
        snprintf(text_p, text_size, "the interfaces of this machine cannot be read");
        return HVI_ERR_DAEMON;
    }
    for (const struct ifaddrs *one = all; one != NULL && count < INTERFACES_MAX;
         one = one->ifa_next)
        count += take(one, &interfaces[count]);
    freeifaddrs(all);
    status = gate_interface_choose(wanted, interfaces, count, &chosen, text_p, text_size);
    if (status == HVI_OK)
        *chosen_p = *chosen;
    return status;
}
