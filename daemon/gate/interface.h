/* SPDX-License-Identifier: Apache-2.0
 * Which address a node announces: HVD_INTERFACE is a list of names, of networks (CIDR), or, with a
 * leading ^, of what is left out. Pure but for gate_interface_find. */
#ifndef HVD_GATE_INTERFACE_H
#define HVD_GATE_INTERFACE_H

#include "proto/wire.h"

#include <stdbool.h>
#include <stddef.h>

struct gate_interface {
    char name[32];
    char address[HVI_WIRE_NODE_ADDRESS]; /* numeric */
    bool loopback;
};

/* The address of the first interface that `wanted` names, in the list's order; with ^ the first one
 * that it does not name and that is no loopback. HVI_OK; HVI_ERR_NOT_FOUND or HVI_ERR_INVALID with a
 * sentence. */
int gate_interface_choose(const char *wanted, const struct gate_interface *interfaces, size_t count,
                          const struct gate_interface **chosen_p, char *text_p, size_t text_size);
/* The same over this machine's interfaces that are up. */
int gate_interface_find(const char *wanted, struct gate_interface *chosen_p, char *text_p,
                        size_t text_size);

#endif
