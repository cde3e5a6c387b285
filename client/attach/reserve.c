/* SPDX-License-Identifier: Apache-2.0 */
#include "client/attach/reserve.h"

#include "client/attach/attach.h"
#include "client/error.h"
#include "hvd/hvd.h"
#include "shm/abi.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

_Static_assert(CLIENT_RESERVE_FDS == CLIENT_ATTACH_FDS + 1, "those of a good reply");

static int take_fds(struct client_reserve *reserve, int fd)
{
    while (reserve->fd_count < CLIENT_RESERVE_FDS) {
        int held = fcntl(fd, F_DUPFD_CLOEXEC, 0);
        if (held < 0)
            return client_error(HVD_ERR_LIMIT,
                                "hvd_open: a session needs %u descriptors more than this process "
                                "may open (ulimit -n): %s",
                                CLIENT_RESERVE_FDS - reserve->fd_count, strerror(errno));
        reserve->fds[reserve->fd_count++] = held;
    }
    return HVD_OK;
}

/* Each is a mapping of its own: the kernel does not join shared memory of different files. */
static int take_space(struct client_reserve *reserve, size_t bytes)
{
    void *space = mmap(NULL, bytes, PROT_NONE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (space == MAP_FAILED)
        return client_error(HVD_ERR_NO_MEMORY,
                            "hvd_open: no address space for the %zu bytes of a channel (ulimit -v, "
                            "vm.max_map_count): %s",
                            bytes, strerror(errno));
    reserve->spaces[reserve->space_count] = space;
    reserve->bytes[reserve->space_count++] = bytes;
    return HVD_OK;
}

int client_reserve_take(struct client_reserve *reserve, int fd)
{
    *reserve = (struct client_reserve){.fd_count = 0};
    int rc = take_fds(reserve, fd);
    if (rc == HVD_OK)
        rc = take_space(reserve, HVI_CHANNEL_BYTES);
    if (rc == HVD_OK)
        rc = take_space(reserve, sizeof(struct hvi_bell_page));
    if (rc != HVD_OK)
        client_reserve_drop(reserve);
    return rc;
}

void client_reserve_drop(struct client_reserve *reserve)
{
    for (uint32_t i = 0; i < reserve->fd_count; i++)
        close(reserve->fds[i]);
    for (uint32_t i = 0; i < reserve->space_count; i++)
        munmap(reserve->spaces[i], reserve->bytes[i]);
    reserve->fd_count = reserve->space_count = 0;
}
