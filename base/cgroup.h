/* SPDX-License-Identifier: Apache-2.0
 * Where a process is in the hierarchies of control groups, by the text of /proc/PID/cgroup:
 *
 *     4:memory:/jobs/a     version 1, whose hierarchies have controllers
 *     0::/jobs/a           version 2 */
#ifndef HVI_BASE_CGROUP_H
#define HVI_BASE_CGROUP_H

#include <stdbool.h>

#define HVI_CGROUP_PATH 1024 /* a longer path is not followed */
#define HVI_CGROUP_TEXT 8192 /* room for such a file, and for one of a control group's */

/* The path in the line with these controllers, "" for version 2, up to the line's end. It lies in `text`. NULL: there is none. */
char *hvi_cgroup_find(char *text, const char *controllers);
/* Makes a path of what hvi_cgroup_find has found; after that nothing behind it is found in the text. False: it is too long. */
bool hvi_cgroup_cut(char *path);
/* The control group above; "" is the top. False: there is none. */
bool hvi_cgroup_up(char *path);

#endif
