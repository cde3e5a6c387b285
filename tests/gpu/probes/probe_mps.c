/* SPDX-License-Identifier: Apache-2.0
 * A private MPS control daemon. Its directories are this process's own, so that a control daemon somebody else runs is
 * neither used nor disturbed; a client finds its daemon by CUDA_MPS_PIPE_DIRECTORY alone, read when CUDA is initialised.
 * Nothing about the device is changed (no compute mode, no nvidia-smi). */
#include "probe.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define CONTROL "nvidia-cuda-mps-control"

enum { SERVERS = 8 };
static char base[64]; /* "" while nothing was started */

void probe_mps_avoid(void)
{
    setenv("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent/mps", 1);
}

/* Runs a shell line with the right environment; its exit status, -1 after seconds. The lines are constants. */
static int run_line(const char *line, double seconds)
{
    pid_t pid = fork();
    if (pid < 0)
        return -1;
    if (pid == 0) {
        int null = open("/dev/null", O_RDWR);
        dup2(null, 0);
        dup2(null, 1);
        dup2(null, 2);
        execl("/bin/sh", "sh", "-c", line, (char *)NULL);
        _exit(127);
    }
    double end = probe_now_us() + seconds * 1e6;
    int status;
    while (waitpid(pid, &status, WNOHANG) == 0) {
        if (probe_now_us() > end) {
            kill(pid, SIGKILL);
            waitpid(pid, &status, 0);
            return -1;
        }
        probe_sleep_us(5e3);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

const char *probe_mps_start(void)
{
    char logs[96];
    if (run_line("command -v " CONTROL, 5) != 0)
        return CONTROL " is not installed";
    snprintf(base, sizeof base, "/tmp/hvd-mps-%d", (int)getpid());
    snprintf(logs, sizeof logs, "%s/log", base);
    if (mkdir(base, 0700) < 0 || mkdir(logs, 0700) < 0) {
        base[0] = 0;
        return "no directory for MPS could be made in /tmp";
    }
    setenv("CUDA_MPS_PIPE_DIRECTORY", base, 1);
    setenv("CUDA_MPS_LOG_DIRECTORY", logs, 1);
    if (run_line(CONTROL " -d", 10) != 0) {
        probe_mps_stop();
        return CONTROL " -d failed";
    }
    return NULL;
}

static pid_t control_pid(void)
{
    char path[128];
    int pid = 0;
    snprintf(path, sizeof path, "%s/" CONTROL ".pid", base);
    FILE *f = fopen(path, "r");
    if (f) {
        if (fscanf(f, "%d", &pid) != 1)
            pid = 0;
        fclose(f);
    }
    return pid;
}

static pid_t parent_of(int pid)
{
    char path[64], line[256] = "";
    int parent = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *f = fopen(path, "r");
    if (!f)
        return 0;
    const char *end = fgets(line, sizeof line, f) ? strrchr(line, ')') : NULL;
    if (!end || sscanf(end, ") %*c %d", &parent) != 1)
        parent = 0;
    fclose(f);
    return parent;
}

/* The daemon's servers, while it lives; how many. */
static int find_servers(pid_t control, pid_t servers[SERVERS])
{
    DIR *processes = control > 1 ? opendir("/proc") : NULL;
    struct dirent *entry;
    int count = 0;
    while (processes && count < SERVERS && (entry = readdir(processes))) {
        int pid = atoi(entry->d_name);
        if (pid > 1 && parent_of(pid) == control)
            servers[count++] = pid;
    }
    if (processes)
        closedir(processes);
    return count;
}

static void end_by_force(pid_t pid, double end_us)
{
    while (pid > 1 && kill(pid, 0) == 0 && probe_now_us() < end_us)
        probe_sleep_us(10e3);
    if (pid > 1 && kill(pid, 0) == 0)
        kill(pid, SIGKILL);
}

void probe_mps_stop(void)
{
    if (!base[0])
        return;
    pid_t pid = control_pid(), servers[SERVERS];
    int count = find_servers(pid, servers);
    run_line("echo quit -t 3 | " CONTROL, 8);
    double end = probe_now_us() + 6e6;
    end_by_force(pid, end);
    /* A server ends with its last client, and those are dead; but a kernel of theirs may hang in it. */
    for (int i = 0; i < count; i++)
        end_by_force(servers[i], end);
    char line[160];
    snprintf(line, sizeof line, "rm -rf '%s'", base);
    run_line(line, 5);
    base[0] = 0;
    probe_mps_avoid();
}
