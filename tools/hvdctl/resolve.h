/* SPDX-License-Identifier: Apache-2.0
 * Names and addresses of machines, for the checks of `hvdctl doctor`. Main thread. */
#ifndef HVI_TOOLS_HVDCTL_RESOLVE_H
#define HVI_TOOLS_HVDCTL_RESOLVE_H

#include <netdb.h>
#include <stddef.h>
#include <stdint.h>

/* The addresses of a host, for freeaddrinfo, within 3 s. NULL, or why there are none: a constant text. */
const char *ctl_resolve(const char *host, struct addrinfo **list_p);
/* "10.0.0.1, fd00::1"; what does not fit is left out. */
void ctl_addresses_text(const struct addrinfo *list, char *text_p, size_t size);
/* Both: the host's addresses as text. */
const char *ctl_resolve_text(const char *host, char *text_p, size_t size);
/* Numeric, without the port; an IPv4 address that is mapped to IPv6 as one of IPv4. */
void ctl_address_text(const struct sockaddr *address, socklen_t length, char *text_p, size_t size);

#endif
