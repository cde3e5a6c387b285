/* SPDX-License-Identifier: Apache-2.0 */
#include "base/beside.h"

#include "base/status.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int hvi_beside_find(const char *name, char *path_p, size_t path_size)
{
    /* HVI_LIBEXEC: relative, because an installation may be moved as a whole. */
    static const char *const folders[] = {HVI_LIBEXEC, "../libexec/hvdd"};
    char self[PATH_MAX];
    const ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    self[length > 0 ? length : 0] = '\0';
    char *slash = strrchr(self, '/');
    path_p[0] = '\0';
    if (slash == NULL)
        return HVI_ERR_NOT_FOUND;
    *slash = '\0';
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) {
        snprintf(path_p, path_size, "%s/%s/%s", self, folders[i], name);
        if (access(path_p, X_OK) == 0)
            return HVI_OK;
    }
    snprintf(path_p, path_size, "%s/%s/%s", self, folders[0], name);
    return HVI_OK;
}
