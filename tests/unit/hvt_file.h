/* SPDX-License-Identifier: Apache-2.0
 * Files and folders of a test. */
#ifndef HVT_FILE_H
#define HVT_FILE_H

#include <check.h>
#include <ftw.h>
#include <stdio.h>
#include <sys/stat.h>

/* The file has this text and mode then, whatever it had before. */
static inline void hvt_write_file(const char *path, mode_t mode, const char *text)
{
    FILE *file = fopen(path, "we");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(text, file), 0);
    ck_assert_int_eq(fclose(file), 0);
    ck_assert_int_eq(chmod(path, mode), 0);
}

static inline int hvt_remove_one(const char *path, const struct stat *info, int type,
                                 struct FTW *place)
{
    (void)info, (void)type, (void)place;
    return remove(path);
}

/* The folder and all that is in it. */
static inline void hvt_remove_tree(const char *path)
{
    ck_assert_int_eq(nftw(path, hvt_remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
}

#endif
