/* SPDX-License-Identifier: Apache-2.0
 * A library that is opened while a program runs, as a table of its functions. Any thread. */
#ifndef HVI_GPU_LIBRARY_H
#define HVI_GPU_LIBRARY_H

#include <stdbool.h>
#include <stddef.h>

struct hvi_gpu_symbol {
    const char *name;
    size_t at; /* of the function pointer in the table */
    bool needed;
};

/* Fills the pointers in; those that the library has not become NULL. Returns the first needed symbol that is not there, or
 * NULL. */
const char *hvi_gpu_library_fill(void *library, const struct hvi_gpu_symbol *symbols, size_t count,
                                 void *table_p);
/* The file that `library` was loaded from. Lives as long as the library. */
const char *hvi_gpu_library_path(void *library);
/* What dlopen has just said, without the name of the library at its beginning. */
const char *hvi_gpu_library_error(const char *name);

#endif
