/* SPDX-License-Identifier: Apache-2.0 */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

int hvi_file_read(const char *path, char *text_p, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t bytes = fd >= 0 ? read(fd, text_p, size - 1) : -1;
    int result = bytes >= 0 ? (int)bytes : -errno;

    if (fd >= 0)
        close(fd);
    text_p[bytes > 0 ? bytes : 0] = '\0';
    return result;
}
