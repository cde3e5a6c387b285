/* SPDX-License-Identifier: Apache-2.0
 * The address by which other hosts reach this one: the one towards them, or one of an interface or
 * network that the user names. Main thread. */
#ifndef HVI_TOOLS_HVDRUN_ROUTE_H
#define HVI_TOOLS_HVDRUN_ROUTE_H

#include <stddef.h>

/* `peer` is a numeric address. `interfaces` is a wish as in base/interface.h, for an address of the same
 * family where it has one; NULL or "": the address towards the peer. 0 and the address as text, or -1 with
 * a sentence. */
int run_route_own(const char *peer, const char *interfaces, char *address_p, size_t address_size,
                  char *text_p, size_t text_size);

#endif
