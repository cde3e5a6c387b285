/* SPDX-License-Identifier: Apache-2.0
 * Files of the kernel's, as /proc and /sys have them, below a folder of the test. */
#ifndef HVT_ROOT_H
#define HVT_ROOT_H

#include "tests/unit/hvt_file.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static char root[64];

/* A file below the root, with the folders that it needs. */
static inline void put(const char *path, const char *text)
{
    char full[512];

    snprintf(full, sizeof full, "%s%s", root, path);
    for (char *slash = strchr(full + strlen(root) + 1, '/'); slash;
         slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(full, 0700);
        *slash = '/';
    }
    FILE *file = fopen(full, "w");
    ck_assert_ptr_nonnull(file);
    fputs(text, file);
    fclose(file);
}

static inline void make_root(void)
{
    strcpy(root, "/tmp/hvt-root-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(root));
}

static inline void drop_root(void)
{
    hvt_remove_tree(root);
}

#endif
