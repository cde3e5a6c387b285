/* SPDX-License-Identifier: Apache-2.0
 * Where the programs lie that users do not start themselves. Any thread. */
#ifndef HVI_BASE_BESIDE_H
#define HVI_BASE_BESIDE_H

#include <stddef.h>

/* The path of hvdd's helper program `name`, found from this program's own folder: in the folder that the installation has
 * for such programs, else in that of a build tree. Where it is in neither, its place in the installation. 0, or
 * HVI_ERR_NOT_FOUND with an empty path: this program's folder is not known. */
int hvi_beside_find(const char *name, char *path_p, size_t path_size);

#endif
