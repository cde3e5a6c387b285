/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/can.h"

#include "base/clock.h"
#include "tools/common/ask.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define ANSWER_NS (20 * HVI_NS_SEC) /* libraries on a slow file system, not one that hangs */

/* Whether only root or this user can have written what is there. A folder on the way may be one as /tmp, whose entries are safe. */
static bool is_own(const char *path, bool is_on_the_way)
{
    struct stat st;
    return lstat(path, &st) == 0 && (st.st_uid == 0 || st.st_uid == geteuid()) &&
           (S_ISLNK(st.st_mode) || (st.st_mode & 022) == 0 ||
            (is_on_the_way && (st.st_mode & S_ISVTX) != 0));
}

/* The same of each folder on the way: a user that can write one of them can put another file there. Cuts `path`. */
static bool is_way_own(char *path)
{
    bool own = path[0] == '/' && is_own("/", true) && is_own(path, false);
    for (char *slash = strrchr(path, '/'); own && slash != path; slash = strrchr(path, '/')) {
        *slash = '\0';
        own = is_own(path, true);
    }
    return own;
}

/* Whether only root or this user can have written each path of a list, or put it there. What hvdd says comes through its gate,
 * which strangers talk to. */
static bool is_nobody_elses(const char *list)
{
    char path[256], real[PATH_MAX];
    size_t length;
    for (const char *at = list; *at != '\0'; at += length + (at[length] != '\0')) {
        length = strcspn(at, ":");
        if (length == 0)
            continue;
        if ((size_t)snprintf(path, sizeof path, "%.*s", (int)length, at) >= sizeof path ||
            realpath(path, real) == NULL || !is_way_own(path) || !is_way_own(real))
            return false;
    }
    return true;
}

const char *can_ask(const struct can_of *of, char *answer_p, size_t size)
{
    char *const argv[] = {(char *)(uintptr_t)of->program, (char[]){"--can"},
                          (char *)(uintptr_t)of->kernels, (char *)(uintptr_t)of->library_path,
                          NULL};
    if (of->program != NULL && of->program[0] == '\0')
        return "hvdd starts no workers";
    if (of->program == NULL || access(of->program, X_OK) != 0)
        return ask_worker("--can", ANSWER_NS, answer_p, size);
    if (of->kernels[0] != '\0' && access(of->kernels, F_OK) != 0)
        return "hvdd's kernels are not there";
    if (!is_nobody_elses(of->program) || !is_nobody_elses(of->kernels) ||
        !is_nobody_elses(of->library_path))
        return ask_worker("--can", ANSWER_NS, answer_p, size);
    return ask_program(argv, ANSWER_NS, answer_p, size);
}
