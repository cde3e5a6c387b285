/* SPDX-License-Identifier: Apache-2.0
 * The folder for this user's sockets, by one rule for the library, hvdd and the tools: they meet there. */
#ifndef HVI_BASE_RUNTIME_H
#define HVI_BASE_RUNTIME_H

#include <sys/types.h>

/* $XDG_RUNTIME_DIR where it is an absolute path of a directory that belongs to `uid`, that no other user may write to, and that this
 * process may write to. Else NULL, as where it is not set: su and batch systems pass on the variable of a login to places
 * without that directory. Any thread that may call getenv(3); valid until the environment changes. */
const char *hvi_runtime_dir(uid_t uid);

#endif
