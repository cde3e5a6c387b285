/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/library.h"

#include <dlfcn.h>
#include <link.h>
#include <string.h>

const char *hvi_gpu_library_fill(void *library, const struct hvi_gpu_symbol *symbols, size_t count,
                                 void *table_p)
{
    const char *missing = NULL;

    for (size_t i = 0; i < count; i++) {
        void *function = dlsym(library, symbols[i].name);
        memcpy((char *)table_p + symbols[i].at, &function, sizeof(function));
        if (function == NULL && symbols[i].needed && missing == NULL)
            missing = symbols[i].name;
    }
    return missing;
}

const char *hvi_gpu_library_path(void *library)
{
    struct link_map *map = NULL;

    if (dlinfo(library, RTLD_DI_LINKMAP, &map) != 0 || map == NULL || map->l_name[0] == '\0')
        return "?";
    return map->l_name;
}

const char *hvi_gpu_library_error(const char *name)
{
    const char *error = dlerror();
    const size_t length = strlen(name);

    if (error == NULL)
        return "it is not loaded";
    if (strncmp(error, name, length) == 0 && strncmp(error + length, ": ", 2) == 0)
        return error + length + 2;
    return error;
}
