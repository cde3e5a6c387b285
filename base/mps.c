/* SPDX-License-Identifier: Apache-2.0
 * A pid in a file may be another process' by now. So a process counts only if its command line names the program and its
 * environment names our directory. */
#include "base/mps.h"

#include "base/file.h"

#include <ftw.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ENVIRONMENT_BYTES (256 * 1024) /* what is behind it is not looked at */
#define FOLDERS_OPEN      8

/* Whether /proc/PID/<name> has these bytes. */
static bool has(pid_t pid, const char *name, const char *bytes, size_t length)
{
    char path[64], *text = malloc(ENVIRONMENT_BYTES);
    int found = -1;

    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
    if (text != NULL)
        found = hvi_file_read(path, text, ENVIRONMENT_BYTES);
    const bool is_there = found > 0 && memmem(text, (size_t)found, bytes, length) != NULL;
    free(text);
    return is_there;
}

pid_t hvi_mps_find(const char *dir)
{
    char path[PATH_MAX], setting[PATH_MAX], text[32];

    snprintf(path, sizeof path, "%s/" HVI_MPS_PID, dir);
    snprintf(setting, sizeof setting, HVI_MPS_PIPE_VAR "=%s/" HVI_MPS_PIPES, dir);
    const pid_t pid = hvi_file_read(path, text, sizeof text) > 0 ? (pid_t)atoi(text) : 0;
    const bool is_ours = pid > 1 && has(pid, "cmdline", HVI_MPS_PROGRAM, strlen(HVI_MPS_PROGRAM)) &&
                         has(pid, "environ", setting, strlen(setting) + 1);
    return is_ours ? pid : 0;
}

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *at)
{
    (void)info, (void)type, (void)at;
    remove(path);
    return 0;
}

void hvi_mps_remove(const char *dir)
{
    static const char *const names[] = {HVI_MPS_PIPES, HVI_MPS_LOGS, HVI_MPS_PID};
    const pid_t pid = hvi_mps_find(dir);
    char path[PATH_MAX];

    snprintf(path, sizeof path, "%s/" HVI_MPS_PID, dir);
    if (access(path, F_OK) != 0)
        return;
    if (pid > 0) {
        kill(-pid, SIGKILL); /* hvdd has made it the leader of a session */
        kill(pid, SIGKILL);
    }
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        nftw(path, remove_one, FOLDERS_OPEN, FTW_DEPTH | FTW_PHYS);
    }
}
