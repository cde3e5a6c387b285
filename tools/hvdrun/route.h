/* SPDX-License-Identifier: Apache-2.0
 * The address by which other hosts reach this one: the one towards them, or one of an interface or
 * network that the user names. Main thread. */
#ifndef HVI_TOOLS_HVDRUN_ROUTE_H
#define HVI_TOOLS_HVDRUN_ROUTE_H

#include <stdbool.h>
#include <stddef.h>

#define RUN_ROUTE_ANYWHERE "*:0" /* where a hvdd listens: at all addresses of its host */

/* "ADDRESS:PORT", with an address of IPv6 in brackets. */
void run_route_place(char *text_p, size_t size, const char *address, unsigned port);
/* The wish that hvdd has, too, from the environment (daemon/node/mesh.c); NULL: none. */
const char *run_route_wish(void);
/* Of a numeric address: means another machine elsewhere. */
bool run_route_is_loopback(const char *address);

/* `peer` is a numeric address. `interfaces` is a wish as in base/interface.h, for an address of the same
 * family where it has one; NULL or "": the address towards the peer. 0 and the address as text, or -1 with
 * a sentence. */
int run_route_own(const char *peer, const char *interfaces, char *address_p, size_t address_size,
                  char *text_p, size_t text_size);

#endif
