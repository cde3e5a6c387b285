/* SPDX-License-Identifier: Apache-2.0 */
#include "base/interface.h"

#include "base/place.h"
#include "base/status.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <limits.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define ENTRY_ROOM 80
#define BETWEEN    ", \t"
#define DISCARD    "9"           /* any port: a datagram socket that is connected sends nothing */
#define GROUP      (INT_MAX / 4) /* more than a list has entries */

/* ---- entries ---- */

struct entry {
    char text[ENTRY_ROOM];
    bool exception;
};

/* The entry at *at_p, which moves on; `all`: each is an exception. False: none is left. */
static bool next_entry(const char **at_p, bool all, struct entry *entry_p)
{
    const char *at = *at_p + strspn(*at_p, BETWEEN);
    const char *end = at + strcspn(at, BETWEEN);

    *at_p = end;
    if (at == end)
        return false;
    entry_p->exception = all || *at == '^';
    at += *at == '^';
    snprintf(entry_p->text, sizeof(entry_p->text), "%.*s", (int)(end - at), at);
    return true;
}

static bool all_exceptions(const char *wanted)
{
    return wanted[strspn(wanted, BETWEEN)] == '^';
}

bool hvi_interface_is_wish(const char *wanted)
{
    return wanted[strspn(wanted, BETWEEN)] != '\0';
}

/* ---- networks ---- */

/* 4, 16, or 0: no numeric address. */
static size_t parse(const char *text, unsigned char bytes_p[16])
{
    if (inet_pton(AF_INET, text, bytes_p) == 1)
        return 4;
    return inet_pton(AF_INET6, text, bytes_p) == 1 ? 16 : 0;
}

/* The bytes of the address of "192.0.2.0/24", and its bits; 0: it is no network. */
static size_t parse_network(const char *text, unsigned char bytes_p[16], unsigned *bits_p)
{
    const char *slash = strchr(text, '/');
    char base[ENTRY_ROOM], *end;

    snprintf(base, sizeof(base), "%.*s", (int)(slash - text), text);
    size_t length = parse(base, bytes_p);
    unsigned long bits = strtoul(slash + 1, &end, 10);
    if (slash[1] < '0' || slash[1] > '9' || *end != '\0' || bits > length * 8)
        return 0;
    *bits_p = (unsigned)bits;
    return length;
}

static bool same_bits(const unsigned char *a, const unsigned char *b, unsigned bits)
{
    unsigned rest = bits % 8, mask = 0xffu << (8 - rest) & 0xffu;

    return memcmp(a, b, bits / 8) == 0 && (rest == 0 || ((a[bits / 8] ^ b[bits / 8]) & mask) == 0);
}

static bool is_in_network(const char *network, const char *address)
{
    unsigned char wanted[16], bytes[16];
    unsigned bits = 0;
    size_t length = parse_network(network, wanted, &bits);

    return length != 0 && parse(address, bytes) == length && same_bits(wanted, bytes, bits);
}

static bool is_same_address(const char *wanted, const char *address)
{
    unsigned char a[16], b[16];
    size_t length = parse(wanted, a);

    return length != 0 && parse(address, b) == length && memcmp(a, b, length) == 0;
}

/* ---- choosing ---- */

static bool fits(const char *entry, const struct hvi_interface *interface)
{
    if (strchr(entry, '/') != NULL)
        return is_in_network(entry, interface->address);
    return strcmp(entry, interface->name) == 0 || is_same_address(entry, interface->address);
}

/* Each entry with a slash is a network; *wishes_p: one of them is no exception. */
static int check(const char *wanted, bool *wishes_p, char *text_p, size_t text_size)
{
    const bool all = all_exceptions(wanted);
    unsigned char bytes[16];
    struct entry entry;
    unsigned bits;

    *wishes_p = false;
    while (next_entry(&wanted, all, &entry)) {
        *wishes_p = *wishes_p || !entry.exception;
        if (strchr(entry.text, '/') == NULL || parse_network(entry.text, bytes, &bits) != 0)
            continue;
        snprintf(text_p, text_size,
                 "HVD_INTERFACE: \"%s\" is no network; write a name, an address, or a network as "
                 "10.0.0.0/8",
                 entry.text);
        return HVI_ERR_INVALID;
    }
    return HVI_OK;
}

/* Bridges and cables of containers and virtual machines. Often each machine has one, with the same address everywhere. */
static bool is_of_guests(const char *name)
{
    static const char *const begins[] = {"docker", "podman", "cni",   "lxcbr",
                                         "lxdbr",  "veth",   "virbr", "vnet"};
    /* Docker's networks have 12 hexadecimal digits; br-ex is a host's own. */
    static const char network[] = "br-";
    const char *digits = name + sizeof(network) - 1;

    if (strncmp(name, network, sizeof(network) - 1) == 0 && strlen(digits) == 12 &&
        strspn(digits, "0123456789abcdef") == 12)
        return true;
    for (size_t i = 0; i < sizeof(begins) / sizeof(begins[0]); i++) {
        if (strncmp(name, begins[i], strlen(begins[i])) == 0)
            return true;
    }
    return false;
}

/* Of those that the list does not name: 0 for interfaces to other machines, which come first. */
static int group_of(const struct hvi_interface *interface)
{
    if (interface->loopback)
        return 2;
    return is_of_guests(interface->name) ? 1 : 0;
}

/* How soon an address is wanted: 0 is first; -1: not at all. */
static int place_of(const char *wanted, bool wishes, const struct hvi_interface *interface)
{
    const bool all = all_exceptions(wanted);
    const int group = group_of(interface);
    struct entry entry;
    int place = -1;

    for (int number = 0; next_entry(&wanted, all, &entry); number++) {
        if (!fits(entry.text, interface))
            continue;
        if (entry.exception)
            return -1;
        int fit = number + (strchr(entry.text, '/') != NULL ? group * GROUP : 0);
        if (place < 0 || fit < place)
            place = fit;
    }
    if (wishes)
        return place;
    return interface->loopback ? -1 : group;
}

static int not_found(const char *wanted, bool wishes, char *text_p, size_t text_size)
{
    if (wishes)
        snprintf(text_p, text_size,
                 "HVD_INTERFACE=%s names no interface of this machine that is up; see `ip address`",
                 wanted);
    else
        snprintf(text_p, text_size, "HVD_INTERFACE=%s leaves no interface; see `ip address`",
                 wanted);
    return HVI_ERR_NOT_FOUND;
}

int hvi_interface_choose(const char *wanted, const struct hvi_interface *interfaces, size_t count,
                         struct hvi_interface *chosen_p, char *text_p, size_t text_size)
{
    const struct hvi_interface *best = NULL;
    bool wishes;
    int best_place = -1, status = check(wanted, &wishes, text_p, text_size);

    if (status != HVI_OK)
        return status;
    for (size_t i = 0; i < count; i++) {
        int place = place_of(wanted, wishes, &interfaces[i]);
        if (place >= 0 && (best == NULL || place < best_place)) {
            best = &interfaces[i];
            best_place = place;
        }
    }
    if (best == NULL)
        return not_found(wanted, wishes, text_p, text_size);
    *chosen_p = *best;
    return HVI_OK;
}

/* ---- this machine ---- */

static bool take(const struct ifaddrs *one, int family, struct hvi_interface *interface_p)
{
    int own = one->ifa_addr == NULL ? AF_UNSPEC : one->ifa_addr->sa_family;
    socklen_t size = own == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);

    if ((own != AF_INET && own != AF_INET6) || (family != AF_UNSPEC && own != family) ||
        (one->ifa_flags & IFF_UP) == 0)
        return false;
    if (own == AF_INET6 &&
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

static int choose_of(const struct ifaddrs *all, const char *wanted, int family,
                     struct hvi_interface *chosen_p, char *text_p, size_t text_size)
{
    struct hvi_interface *interfaces;
    size_t count = 0;

    for (const struct ifaddrs *one = all; one != NULL; one = one->ifa_next)
        count++;
    interfaces = calloc(count + 1, sizeof(*interfaces));
    if (interfaces == NULL) {
        snprintf(text_p, text_size, "out of memory");
        return HVI_ERR_NO_MEMORY;
    }
    count = 0;
    for (const struct ifaddrs *one = all; one != NULL; one = one->ifa_next)
        count += take(one, family, &interfaces[count]);
    int status = hvi_interface_choose(wanted, interfaces, count, chosen_p, text_p, text_size);
    free(interfaces);
    return status;
}

static int no_interfaces(char *text_p, size_t text_size)
{
    snprintf(text_p, text_size, "the interfaces of this machine cannot be read: %s",
             strerror(errno));
    return HVI_ERR_DAEMON;
}

int hvi_interface_find(const char *wanted, int family, struct hvi_interface *chosen_p, char *text_p,
                       size_t text_size)
{
    struct ifaddrs *all = NULL;

    if (getifaddrs(&all) != 0)
        return no_interfaces(text_p, text_size);
    int status = choose_of(all, wanted, family, chosen_p, text_p, text_size);
    freeifaddrs(all);
    return status;
}

/* ---- the way to another machine ---- */

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

int hvi_interface_towards(const char *peer, char *address_p, size_t address_size, char *text_p,
                          size_t text_size)
{
    const struct addrinfo wish = {.ai_socktype = SOCK_DGRAM, .ai_flags = AI_NUMERICHOST};
    struct sockaddr_storage own = {.ss_family = AF_UNSPEC};
    struct addrinfo *found = NULL;
    socklen_t bytes = sizeof(own);

    if (getaddrinfo(peer, DISCARD, &wish, &found) != 0) {
        snprintf(text_p, text_size, "%s is no address", peer);
        return HVI_ERR_INVALID;
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
    return connected ? HVI_OK : HVI_ERR_NOT_FOUND;
}

void hvi_interface_from(const char *place, char *address_p, size_t address_size)
{
    char host[256], text[128];
    struct hvi_interface chosen;
    uint32_t port;

    address_p[0] = '\0';
    if (hvi_place_split(place, host, sizeof(host), &port) &&
        hvi_interface_towards(host, address_p, address_size, text, sizeof(text)) == HVI_OK)
        return;
    if (hvi_interface_find("", AF_UNSPEC, &chosen, text, sizeof(text)) == HVI_OK)
        snprintf(address_p, address_size, "%s", chosen.address);
}

bool hvi_interface_is_same(const struct sockaddr *a, const struct sockaddr *b)
{
    if (a == NULL || b == NULL || a->sa_family != b->sa_family)
        return false;
    if (a->sa_family == AF_INET)
        return ((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr ==
               ((const struct sockaddr_in *)(const void *)b)->sin_addr.s_addr;
    return a->sa_family == AF_INET6 &&
           memcmp(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr,
                  &((const struct sockaddr_in6 *)(const void *)b)->sin6_addr,
                  sizeof(struct in6_addr)) == 0;
}

/* Of 127.0.0.0/8 the kernel has all, although an interface has one only. Whether a socket can be bound would not tell: with
 * net.ipv4.ip_nonlocal_bind it can be bound to other machines' addresses. */
static bool is_own(const struct ifaddrs *all, const struct sockaddr *address)
{
    if (address->sa_family == AF_INET &&
        (ntohl(((const struct sockaddr_in *)(const void *)address)->sin_addr.s_addr) >> 24) ==
            IN_LOOPBACKNET)
        return true;
    for (; all != NULL; all = all->ifa_next)
        if (hvi_interface_is_same(all->ifa_addr, address))
            return true;
    return false;
}

static int look_here(const struct addrinfo *addresses, bool *here_p, char *text_p, size_t text_size)
{
    struct ifaddrs *all = NULL;

    if (getifaddrs(&all) != 0)
        return no_interfaces(text_p, text_size);
    *here_p = false;
    for (; addresses != NULL && !*here_p; addresses = addresses->ai_next)
        *here_p = is_own(all, addresses->ai_addr);
    freeifaddrs(all);
    return HVI_OK;
}

int hvi_interface_is_here(const char *host, bool *here_p, char *text_p, size_t text_size)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *addresses = NULL;
    int error = getaddrinfo(host, NULL, &hints, &addresses);

    if (error != 0) {
        snprintf(text_p, text_size, "the host %.255s is not known here: %s", host,
                 gai_strerror(error));
        return HVI_ERR_NOT_FOUND;
    }
    int status = look_here(addresses, here_p, text_p, text_size);
    freeaddrinfo(addresses);
    return status;
}

/* ---- networks that are trusted ---- */

int hvi_networks_check(const char *networks, char *text_p, size_t text_size)
{
    unsigned char bytes[16];
    struct entry entry;
    unsigned bits;

    while (next_entry(&networks, false, &entry)) {
        bool network = strchr(entry.text, '/') != NULL;
        if (!entry.exception &&
            (network ? parse_network(entry.text, bytes, &bits) : parse(entry.text, bytes)) != 0)
            continue;
        snprintf(text_p, text_size,
                 "\"%s%s\" is no network; write networks as 10.0.0.0/8, or addresses, with commas "
                 "between them",
                 entry.exception ? "^" : "", entry.text);
        return HVI_ERR_INVALID;
    }
    return HVI_OK;
}

bool hvi_networks_have(const char *networks, const char *address)
{
    struct entry entry;

    while (next_entry(&networks, false, &entry)) {
        if (strchr(entry.text, '/') != NULL ? is_in_network(entry.text, address)
                                            : is_same_address(entry.text, address))
            return true;
    }
    return false;
}

/* An IPv4 address may have a label of its own (eth0:1), which getifaddrs gives for a name. */
static bool is_of(const char *one, const char *name)
{
    const size_t length = strcspn(name, ":");

    return strcspn(one, ":") == length && memcmp(one, name, length) == 0;
}

static int cover(const struct ifaddrs *all, const char *networks, const char *name, char *text_p,
                 size_t text_size)
{
    struct hvi_interface each;

    for (const struct ifaddrs *one = all; one != NULL; one = one->ifa_next) {
        if (!take(one, AF_UNSPEC, &each) || !is_of(each.name, name) ||
            hvi_networks_have(networks, each.address))
            continue;
        snprintf(text_p, text_size, "the interface %s has the address %s, which is in none of them",
                 name, each.address);
        return HVI_ERR_REFUSED;
    }
    return HVI_OK;
}

int hvi_networks_cover(const char *networks, const char *address, char *text_p, size_t text_size)
{
    struct hvi_interface interface;
    struct ifaddrs *all = NULL;

    if (getifaddrs(&all) != 0)
        return no_interfaces(text_p, text_size);
    int status = choose_of(all, address, AF_UNSPEC, &interface, text_p, text_size);
    if (status == HVI_OK) {
        status = cover(all, networks, interface.name, text_p, text_size);
    } else {
        snprintf(text_p, text_size, "no interface of this machine has the address %s", address);
        status = HVI_ERR_NOT_FOUND;
    }
    freeifaddrs(all);
    return status;
}
