/* SPDX-License-Identifier: Apache-2.0 */
#include "base/runtime.h"

#include <stdbool.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

const char *hvi_runtime_dir(uid_t uid)
{
    const char *path = getenv("XDG_RUNTIME_DIR");
    struct stat st;
    if (path == NULL || path[0] != '/' || stat(path, &st) != 0)
        return NULL;
    const bool is_ours = S_ISDIR(st.st_mode) && st.st_uid == uid &&
                         (st.st_mode & (S_IWGRP | S_IWOTH)) == 0 && access(path, W_OK | X_OK) == 0;
    return is_ours ? path : NULL;
}
