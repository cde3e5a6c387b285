/* SPDX-License-Identifier: Apache-2.0
 * Memory of devices that outlives sessions: hvd_device_alloc and hvd_device_free. Any thread. */
#ifndef HVD_CLIENT_DEVICE_OWN_H
#define HVD_CLIENT_DEVICE_OWN_H

#include <stdint.h>

struct client_device_block;

/* The allocation that holds the address, which hvd_device_free refuses until it is put; NULL: none does. Costs a load where
 * there are none. */
struct client_device_block *client_device_block_hold(const void *address);
/* NULL is fine. */
void client_device_block_put(struct client_device_block *block);

#endif
