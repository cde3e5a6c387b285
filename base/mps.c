/* SPDX-License-Identifier: Apache-2.0
 * A pid in a file may be another process' by now. So a process counts only if its command line names the program and its
 * environment names our directory. Servers are in the session of the control daemon, whose number may be another session's once
 * all have ended: they have our directory in their environment, too. A process that is becoming another program has no environment
 * for some microseconds: it is looked at again. */
#include "base/mps.h"

#include "base/fate.h"
#include "base/file.h"

#include <dirent.h>
#include <ftw.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <time.h>
#include <unistd.h>

#define ENVIRONMENT_BYTES (256 * 1024) /* what is behind it is not looked at */
#define FOLDERS_OPEN      8
#define LOOKS             20 /* at a process without an environment, 1 ms apart */

enum finding { ABSENT, PRESENT, EMPTY };

/* Whether /proc/PID/<name> has these bytes; EMPTY: the file has none at all. */
static enum finding find(pid_t pid, const char *name, const char *bytes, size_t length)
{
    char path[64], *text = malloc(ENVIRONMENT_BYTES);
    int found = -1;

    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
    if (text != NULL)
        found = hvi_file_read(path, text, ENVIRONMENT_BYTES);
    const bool is_there = found > 0 && memmem(text, (size_t)found, bytes, length) != NULL;
    free(text);
    return found == 0 ? EMPTY : is_there ? PRESENT : ABSENT;
}

static bool has_program(pid_t pid)
{
    return find(pid, "cmdline", HVI_MPS_PROGRAM, strlen(HVI_MPS_PROGRAM)) == PRESENT;
}

static enum finding find_dir(pid_t pid, const char *dir)
{
    char setting[PATH_MAX];

    snprintf(setting, sizeof setting, HVI_MPS_PIPE_VAR "=%s/" HVI_MPS_PIPES, dir);
    return find(pid, "environ", setting, strlen(setting) + 1);
}

static bool has_ended(pid_t pid)
{
    return strchr("ZX", hvi_process_state(pid)) != NULL;
}

/* Whether the environment of a process names our directory. One that has ended has none for good. */
static bool is_told(pid_t pid, const char *dir)
{
    enum finding found = find_dir(pid, dir);

    for (int i = 1; i < LOOKS && found == EMPTY && !has_ended(pid); i++) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        found = find_dir(pid, dir);
    }
    return found == PRESENT;
}

static pid_t read_pid(const char *dir)
{
    char path[PATH_MAX], text[32];

    snprintf(path, sizeof path, "%s/" HVI_MPS_PID, dir);
    return hvi_file_read(path, text, sizeof text) > 0 ? (pid_t)atoi(text) : 0;
}

pid_t hvi_mps_find(const char *dir)
{
    const pid_t pid = read_pid(dir);

    return pid > 1 && has_program(pid) && is_told(pid, dir) ? pid : 0;
}

/* Whether the number is another process' by now: one that has just ended has no command line. */
static bool is_other(pid_t pid)
{
    char path[64], text[16];

    snprintf(path, sizeof path, "/proc/%d/cmdline", (int)pid);
    return hvi_file_read(path, text, sizeof text) > 0 && !has_program(pid);
}

/* The descriptor comes first: then the process that was looked at is the one that is killed. */
static void kill_if_ours(pid_t pid, pid_t session, const char *dir)
{
    const int fd = getsid(pid) == session ? hvi_pidfd_open(pid) : -1;

    if (fd < 0)
        return;
    if (getsid(pid) == session && is_told(pid, dir))
        pidfd_send_signal(fd, SIGKILL, NULL, 0);
    close(fd);
}

void hvi_mps_kill(const char *dir, pid_t pid)
{
    DIR *stream = pid > 1 && !is_other(pid) ? opendir("/proc") : NULL;
    const struct dirent *entry;

    if (stream == NULL)
        return;
    kill_if_ours(pid, pid, dir); /* it starts no server any more */
    while ((entry = readdir(stream)) != NULL)
        if (atoi(entry->d_name) > 1)
            kill_if_ours((pid_t)atoi(entry->d_name), pid, dir);
    closedir(stream);
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
    char path[PATH_MAX];

    snprintf(path, sizeof path, "%s/" HVI_MPS_PID, dir);
    if (access(path, F_OK) != 0)
        return;
    hvi_mps_kill(dir, read_pid(dir));
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        nftw(path, remove_one, FOLDERS_OPEN, FTW_DEPTH | FTW_PHYS);
    }
}
