/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/hvdrun/route.h"

#include "base/interface.h"
#include "base/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

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
        return hvi_interface_towards(peer, address_p, address_size, text_p, text_size) == HVI_OK
                   ? 0
                   : -1;
    if (chosen(family, interfaces, address_p, address_size, text_p, text_size) == 0)
        return 0;
    return chosen(AF_UNSPEC, interfaces, address_p, address_size, text_p, text_size);
}
