/* SPDX-License-Identifier: Apache-2.0 */
#include "base/cgroup.h"

#include <stddef.h>
#include <string.h>

char *hvi_cgroup_find(char *text, const char *controllers)
{
    const size_t length = strlen(controllers);

    for (char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        char *names = strchr(line, ':');
        if (names && strncmp(names + 1, controllers, length) == 0 && names[1 + length] == ':')
            return names + 1 + length + 1;
    }
    return NULL;
}

bool hvi_cgroup_cut(char *path)
{
    path[strcspn(path, "\n")] = '\0';
    return strlen(path) < HVI_CGROUP_PATH;
}

bool hvi_cgroup_up(char *path)
{
    char *slash = strrchr(path, '/');

    if (slash)
        *slash = '\0';
    return slash != NULL;
}
