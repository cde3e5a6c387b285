/* SPDX-License-Identifier: Apache-2.0
 * How a process that is not our child ended.
 *
 * Four places are asked, the ones that cannot lie first:
 *   1. PIDFD_GET_INFO with PIDFD_INFO_EXIT: tied to the process and not to its number; answers once
 * it was reaped.
 *   2. the pidfd itself: not readable means that some thread still runs, whatever /proc says of the
 * leader.
 *   3. waitid(WNOWAIT): only for our own children; leaves the zombie to whoever reaps it.
 *   4. /proc/PID/stat while it is a zombie. A number may have been reused since, so with a pidfd
 * the process must still be there *after* the read. To a reader without ptrace rights the kernel
 * shows exit code 0, which looks like success, so a 0 counts only when the rights are there. What
 * nobody answers is HVI_FATE_UNKNOWN; a guess is worse, because it ends up in a sentence that
 * somebody acts on. */
#include "base/fate.h"

#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* linux/pidfd.h of Linux 6.15; older headers have neither the struct nor the numbers. */
struct pidfd_info_v0 {
    uint64_t mask;
    uint64_t cgroup_id;
    uint32_t ids[11]; /* pid, tgid, ppid, ruid, rgid, euid, egid, suid, sgid, fsuid, fsgid */
    int32_t exit_code;
};
_Static_assert(sizeof(struct pidfd_info_v0) == 64, "kernel ABI");
#define GET_INFO  _IOWR(0xff, 11, struct pidfd_info_v0)
#define INFO_EXIT (UINT64_C(1) << 3)

#define FLAG_EXITING 0x4u /* PF_EXITING, include/linux/sched.h */

struct stat_fields {
    char state;          /* field 3 */
    unsigned long flags; /* field 9 */
    long threads;        /* field 20 */
    int wait_status;     /* field 52 */
};

int hvi_pidfd_open(pid_t pid)
{
    return (int)syscall(SYS_pidfd_open, pid, 0u); /* always close-on-exec */
}

struct hvi_fate hvi_fate_from_wait(int wait_status)
{
    if (WIFSIGNALED(wait_status))
        return (struct hvi_fate){HVI_FATE_SIGNALED, WTERMSIG(wait_status)};
    if (WIFEXITED(wait_status))
        return (struct hvi_fate){HVI_FATE_EXITED, WEXITSTATUS(wait_status)};
    return (struct hvi_fate){HVI_FATE_UNKNOWN, 0};
}

struct hvi_fate hvi_fate_from_child(const siginfo_t *info)
{
    return (struct hvi_fate){.kind =
                                 info->si_code == CLD_EXITED ? HVI_FATE_EXITED : HVI_FATE_SIGNALED,
                             .code = info->si_status};
}

static bool ask_pidfd_info(int pidfd, struct hvi_fate *fate_p)
{
    struct pidfd_info_v0 info = {.mask = INFO_EXIT};
    if (ioctl(pidfd, GET_INFO, &info) != 0 || (info.mask & INFO_EXIT) == 0)
        return false;
    *fate_p = hvi_fate_from_wait(info.exit_code);
    return true;
}

static bool pidfd_is_readable(int pidfd)
{
    struct pollfd entry = {.fd = pidfd, .events = POLLIN};
    return poll(&entry, 1, 0) > 0 && (entry.revents & (POLLIN | POLLHUP)) != 0;
}

static bool ask_wait(pid_t pid, struct hvi_fate *fate_p)
{
    siginfo_t info = {.si_pid = 0};
    if (waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid != pid)
        return false;
    *fate_p = hvi_fate_from_child(&info);
    return true;
}

/* The command name (field 2) may hold anything, also ") Z 1", so fields are counted after the last
 * ')'. */
static bool parse_stat(const char *text, struct stat_fields *fields_p)
{
    const char *at = strrchr(text, ')');
    if (at == NULL || at[1] != ' ' || at[2] == '\0')
        return false;
    struct stat_fields fields = {.state = at[2]};
    at += 2;
    for (int field = 4; field <= 52; field++) {
        at = strchr(at, ' ');
        if (at == NULL)
            return false;
        at++;
        if (field == 9)
            fields.flags = strtoul(at, NULL, 10);
        if (field == 20)
            fields.threads = strtol(at, NULL, 10);
        if (field == 52)
            fields.wait_status = (int)strtol(at, NULL, 10);
    }
    *fields_p = fields;
    return true;
}

/* Looks at /proc/PID/stat, or a file like it. Returns 0, an errno, or EBADMSG when the file is not what
 * it should be. */
static int look_in(const char *path, struct stat_fields *fields_p)
{
    char text[2048];
    int bytes = hvi_file_read(path, text, sizeof(text));
    if (bytes < 0)
        return -bytes;
    return parse_stat(text, fields_p) ? 0 : EBADMSG;
}

static int look_in_proc(pid_t pid, struct stat_fields *fields_p)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    return look_in(path, fields_p);
}

/* /proc/PID/exe asks for the same rights as the exit code does, and says so. */
static bool may_see_exit_code(pid_t pid)
{
    char path[64];
    char target[8];
    snprintf(path, sizeof(path), "/proc/%d/exe", (int)pid);
    return readlink(path, target, sizeof(target)) >= 0 || errno != EACCES;
}

/* False once the process of this pidfd has been reaped, and its number with it. */
static bool pid_is_still_its_own(int pidfd)
{
    return pidfd < 0 || syscall(SYS_pidfd_send_signal, pidfd, 0, NULL, 0u) == 0 || errno != ESRCH;
}

/* Whether the process exists, whatever /proc shows of it. */
static bool is_there(pid_t pid, int pidfd)
{
    if (pidfd >= 0)
        return pid_is_still_its_own(pidfd);
    return pid > 0 && (kill(pid, 0) == 0 || errno != ESRCH);
}

static struct hvi_fate ask_proc(pid_t pid, int pidfd)
{
    const struct hvi_fate unknown = {HVI_FATE_UNKNOWN, 0};
    struct stat_fields fields;
    if (look_in_proc(pid, &fields) != 0)
        return unknown;
    bool seen = fields.wait_status != 0 || may_see_exit_code(pid);
    if (!pid_is_still_its_own(pidfd))
        return unknown;
    if (fields.state == 'X')
        return unknown;
    if (fields.state != 'Z')
        return pidfd < 0 ? (struct hvi_fate){HVI_FATE_ALIVE, 0} : unknown;
    if (pidfd < 0 && fields.threads > 1)
        return (struct hvi_fate){HVI_FATE_ALIVE, 0}; /* only the first thread has ended */
    return seen ? hvi_fate_from_wait(fields.wait_status) : unknown;
}

struct hvi_fate hvi_fate_look(pid_t pid, int pidfd)
{
    struct hvi_fate fate = {HVI_FATE_ALIVE, 0};
    if (pidfd >= 0 && ask_pidfd_info(pidfd, &fate))
        return fate;
    if (pidfd >= 0 && !pidfd_is_readable(pidfd))
        return fate;
    if (ask_wait(pid, &fate))
        return fate;
    fate = ask_proc(pid, pidfd);
    /* It may have been reaped between the questions; then the first place knows now. */
    if (fate.kind == HVI_FATE_UNKNOWN && pidfd >= 0)
        (void)ask_pidfd_info(pidfd, &fate);
    return fate;
}

struct hvi_fate hvi_fate_of_gone(pid_t pid, int pidfd)
{
    struct hvi_fate fate = hvi_fate_look(pid, pidfd);
    if (fate.kind == HVI_FATE_ALIVE)
        fate.kind = HVI_FATE_UNKNOWN;
    return fate;
}

/* The flag is the first thread's alone; with a status other than 0 it did not end by pthread_exit
 * and takes the whole process with it. */
bool hvi_fate_is_ending(pid_t pid, int pidfd, struct hvi_fate *fate_p)
{
    struct stat_fields fields;
    if (look_in_proc(pid, &fields) != 0 || !pid_is_still_its_own(pidfd))
        return false;
    if ((fields.flags & FLAG_EXITING) == 0 || fields.wait_status == 0)
        return false;
    *fate_p = hvi_fate_from_wait(fields.wait_status);
    return fate_p->kind != HVI_FATE_UNKNOWN;
}

static bool thread_is_quiet(pid_t pid, const char *thread)
{
    char path[64];
    struct stat_fields fields;
    snprintf(path, sizeof(path), "/proc/%d/task/%.16s/stat", (int)pid, thread);
    int error = look_in(path, &fields);
    return error == ENOENT || error == ESRCH ||
           (error == 0 && ((fields.flags & FLAG_EXITING) != 0 || fields.state == 'Z'));
}

bool hvi_process_is_quiet(pid_t pid, int pidfd)
{
    char path[64];
    struct dirent *entry;
    bool quiet = true;
    if (pidfd >= 0 && pidfd_is_readable(pidfd))
        return true;
    snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
    DIR *threads = opendir(path);
    if (!threads) /* gone; or hidden from us, by hidepid, and as alive as ever */
        return !is_there(pid, pidfd);
    while (quiet && (entry = readdir(threads)))
        quiet = entry->d_name[0] == '.' || thread_is_quiet(pid, entry->d_name);
    closedir(threads);
    return quiet || !pid_is_still_its_own(pidfd);
}

void hvi_fate_describe(struct hvi_fate fate, char *text_p, size_t text_size)
{
    const char *name = fate.kind == HVI_FATE_SIGNALED ? sigabbrev_np(fate.code) : NULL;
    switch (fate.kind) {
    case HVI_FATE_SIGNALED:
        snprintf(text_p, text_size, "was killed by signal %d%s%s%s", fate.code, name ? " (SIG" : "",
                 name ? name : "", name ? ")" : "");
        return;
    case HVI_FATE_EXITED:
        snprintf(text_p, text_size, "exited with code %d", fate.code);
        return;
    case HVI_FATE_ALIVE:
        snprintf(text_p, text_size, "is alive but dropped its connection");
        return;
    case HVI_FATE_UNKNOWN:
        break;
    }
    snprintf(text_p, text_size, "is gone (how is not known)");
}

void hvi_process_describe(pid_t pid, pid_t own, char text_p[HVI_PROCESS_TEXT])
{
    if (pid == 0 && own == 0)
        snprintf(text_p, HVI_PROCESS_TEXT, "in another pid namespace");
    else if (pid == 0)
        snprintf(text_p, HVI_PROCESS_TEXT, "pid %d in its own pid namespace", (int)own);
    else if (own != 0 && own != pid)
        snprintf(text_p, HVI_PROCESS_TEXT, "pid %d, %d in its own pid namespace", (int)pid,
                 (int)own);
    else
        snprintf(text_p, HVI_PROCESS_TEXT, "pid %d", (int)pid);
}

char hvi_process_state(pid_t pid)
{
    struct stat_fields fields;
    if (pid == 0)
        return '?';
    int error = look_in_proc(pid, &fields);
    if ((error == ENOENT || error == ESRCH) && !is_there(pid, -1))
        return 'X';
    return error == 0 ? fields.state : '?';
}

bool hvi_process_lives(pid_t pid)
{
    return strchr("ZX?", hvi_process_state(pid)) == NULL;
}

const char *hvi_process_state_text(char state)
{
    static const char *const texts[UCHAR_MAX + 1] = {
        ['R'] = "running", ['S'] = "sleeping", ['D'] = "in kernel", ['T'] = "stopped",
        ['t'] = "traced",  ['Z'] = "zombie",   ['X'] = "gone",      ['I'] = "idle",
    };
    const char *text = texts[(unsigned char)state];
    return text ? text : "in an unknown state";
}

void hvi_process_waits_in(pid_t pid, char *text_p, size_t size)
{
    char path[64];

    snprintf(path, sizeof path, "/proc/%d/wchan", (int)pid);
    (void)hvi_file_read(path, text_p, size);
    if (strcmp(text_p, "0") == 0)
        text_p[0] = '\0';
}
