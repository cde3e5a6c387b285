/* SPDX-License-Identifier: Apache-2.0
 * Where a daemon would listen. */
#ifndef HVT_LISTEN_H
#define HVT_LISTEN_H

#include <check.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>

/* A socket of this type at `name` in the folder, whose queue has 64 places. */
static inline int hvt_listen(const char *folder, const char *name, int type)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
    const int bytes = snprintf(address.sun_path, sizeof address.sun_path, "%s/%s", folder, name);

    ck_assert_int_lt(bytes, (int)sizeof address.sun_path);
    ck_assert_int_eq(bind(fd, (const struct sockaddr *)&address, sizeof address), 0);
    ck_assert_int_eq(listen(fd, 64), 0);
    return fd;
}

#endif
