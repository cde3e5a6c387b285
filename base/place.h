/* SPDX-License-Identifier: Apache-2.0
 * Places in a network, as people write them. Pure functions, any thread; outputs are set only on success. */
#ifndef HVI_BASE_PLACE_H
#define HVI_BASE_PLACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HVI_PORT_FIRST    9600u /* of a job's ports, unless others are given */
#define HVI_PORT_LAST     9631u
#define HVI_NODE_NAME_MAX 63

/* "server1", "server1:9600", "10.0.0.1:9600", "*:0", "[2001:db8::1]:9600", "2001:db8::1": the host without brackets, and the port, 0 to
 * 65535. Without a port *port_p stays. False: it is something else, or the host does not fit. */
bool hvi_place_split(const char *text, char *host_p, size_t size, uint32_t *port_p);
/* The other way, with brackets around an address of IPv6; what does not fit is cut off. */
void hvi_place_join(const char *host, uint32_t port, char *text_p, size_t size);
/* "9600-9631", two ports other than 0. False: it is something else. */
bool hvi_place_ports(const char *text, uint32_t *first_p, uint32_t *last_p);
/* Whether a node may be called so: 1 to HVI_NODE_NAME_MAX letters, digits or any of . - _ :, and no . first. A name is a file's. */
bool hvi_place_is_node_name(const char *text);

#endif
