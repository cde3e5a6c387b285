/* SPDX-License-Identifier: Apache-2.0
 * Which of its addresses a machine is reached at: HVD_INTERFACE, a list with commas between its entries.
 *
 *   eth0           every address of this interface
 *   192.0.2.3      this address
 *   192.0.2.0/24   every address of this network
 *   ^docker0       none of these; in front of the whole list it counts for every entry
 *
 * Where the list has wishes, the first wish that an address meets decides; where it has exceptions alone,
 * the first address that is none of them and no loopback. Addresses of bridges and cables of containers and virtual machines
 * (docker0, Docker's br-*, veth*, virbr*), and of the loopback, come after all others, unless the list names the interface or the address.
 * Any thread. */
#ifndef HVI_BASE_INTERFACE_H
#define HVI_BASE_INTERFACE_H

#include <stdbool.h>
#include <stddef.h>

struct sockaddr;

struct hvi_interface {
    char name[32];
    char address[64]; /* numeric */
    bool loopback;
};

/* It has an entry. */
bool hvi_interface_is_wish(const char *wanted);
/* HVI_OK, or with a sentence HVI_ERR_INVALID (an entry is no network) or HVI_ERR_NOT_FOUND. */
int hvi_interface_choose(const char *wanted, const struct hvi_interface *interfaces, size_t count,
                         struct hvi_interface *chosen_p, char *text_p, size_t text_size);
/* The same among the addresses of this machine that are up, link-local ones of IPv6 left out, for they mean
 * nothing elsewhere. `family` is AF_INET, AF_INET6 or, for both, AF_UNSPEC. */
int hvi_interface_find(const char *wanted, int family, struct hvi_interface *chosen_p, char *text_p,
                       size_t text_size);
/* This machine's address on the way to `peer`, a numeric address; nothing is sent. HVI_OK, or with a sentence HVI_ERR_INVALID (it is
 * none) or HVI_ERR_NOT_FOUND (no way leads there). */
int hvi_interface_towards(const char *peer, char *address_p, size_t address_size, char *text_p,
                          size_t text_size);
/* The same for sentences. `place` is HOST or HOST:PORT. Of a HOST that is a name, which is not looked up, and where no way leads
 * there: the first address that others may reach; "": there is none. */
void hvi_interface_from(const char *place, char *address_p, size_t address_size);
/* Whether both are the same address of IPv4, or of IPv6; their ports do not matter. NULL is none. */
bool hvi_interface_is_same(const struct sockaddr *a, const struct sockaddr *b);
/* Whether a host's name, or its numeric address, is this machine's. HVI_OK, or HVI_ERR_NOT_FOUND or HVI_ERR_DAEMON with a sentence. Blocks
 * while name servers are asked, for as long as resolv.conf lets it: with glibc's defaults 10 s for each. */
int hvi_interface_is_here(const char *host, bool *here_p, char *text_p, size_t text_size);

/* Lists of networks ("10.0.0.0/8, 2001:db8::/32") and numeric addresses, and nothing else. HVI_OK, or with a sentence
 * HVI_ERR_INVALID. */
int hvi_networks_check(const char *networks, char *text_p, size_t text_size);
/* One of them has the address, which is numeric. */
bool hvi_networks_have(const char *networks, const char *address);
/* They have every address of the interface of this machine that has `address`, but link-local ones of IPv6. HVI_OK, or
 * with a sentence HVI_ERR_REFUSED, HVI_ERR_NOT_FOUND (no interface has it) or HVI_ERR_DAEMON. */
int hvi_networks_cover(const char *networks, const char *address, char *text_p, size_t text_size);

#endif
