/* SPDX-License-Identifier: Apache-2.0
 * hvt_old_kernel: for LD_PRELOAD. The kernel has no SO_PASSRIGHTS, as before Linux 6.16: it lets
 * descriptors through to every socket. */
#include <dlfcn.h>
#include <errno.h>
#include <sys/socket.h>

#define PASSRIGHTS 83

int setsockopt(int fd, int level, int name, const void *value, socklen_t size)
{
    int (*next)(int fd, int level, int name, const void *value, socklen_t size) =
        (int (*)(int, int, int, const void *, socklen_t))dlsym(RTLD_NEXT, "setsockopt");

    if (level == SOL_SOCKET && name == PASSRIGHTS) {
        errno = ENOPROTOOPT;
        return -1;
    }
    return next(fd, level, name, value, size);
}
