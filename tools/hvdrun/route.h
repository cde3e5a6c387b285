/* SPDX-License-Identifier: Apache-2.0
 * The address by which other hosts reach this one: the one towards them, or one of an interface or
 * network that the user names. Main thread. */
#ifndef HVI_TOOLS_HVDRUN_ROUTE_H
#define HVI_TOOLS_HVDRUN_ROUTE_H

#include <stddef.h>

/* `peer` is a numeric address. `interfaces` is a list with commas of names ("eth0"), exceptions
 * ("^docker0") and networks ("192.0.2.0/24", "2001:db8::/32"); the first entry that an address of
 * this machine meets counts, and exceptions alone leave every other one; NULL or "": no wish. 0 and
 * the address as text, or -1 with a sentence. */
int run_route_own(const char *peer, const char *interfaces, char *address_p, size_t address_size,
                  char *text_p, size_t text_size);

#endif
