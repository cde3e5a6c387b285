/* SPDX-License-Identifier: Apache-2.0
 * What hvd_open needs of this process once the engine has taken the rank: descriptors and address space. An
 * hvd_open that fails after the engine's answer costs the other ranks their generation, so both are held
 * before the engine is asked. */
#ifndef HVD_CLIENT_RESERVE_H
#define HVD_CLIENT_RESERVE_H

#include <stddef.h>
#include <stdint.h>

#define CLIENT_RESERVE_FDS      5u /* CLIENT_ATTACH_FDS and the slots' */
#define CLIENT_RESERVE_MAPPINGS 2u

struct client_reserve {
    int fds[CLIENT_RESERVE_FDS];
    uint32_t fd_count;
    void *spaces[CLIENT_RESERVE_MAPPINGS];
    size_t bytes[CLIENT_RESERVE_MAPPINGS];
    uint32_t space_count;
};

/* Holds the descriptors of a good reply, by copies of `fd`, and the address space of a channel and a bell page.
 * HVD_OK, HVD_ERR_LIMIT or HVD_ERR_NO_MEMORY; then the last error is set and nothing is held. */
int client_reserve_take(struct client_reserve *reserve, int fd);
/* Right before they are needed: another thread may take them from now on. */
void client_reserve_drop(struct client_reserve *reserve);

#endif
