/* SPDX-License-Identifier: Apache-2.0
 * `hvdctl doctor gpu`: a trainer and its worker are two processes on one GPU. Without MPS they take turns on it. What is
 * measured has a part in the MPS that hvdd runs, if it runs one. */
#include "tools/hvdctl/doctor.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/mps.h"
#include "tools/common/ask.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MPS_FOLDER "/tmp/nvidia-mps" /* CUDA's own default */
#define TURNS_NS   (45 * HVI_NS_SEC)
#define FREE_NS    (HVI_NS_MS / 5) /* a wait up to it is no turn */

/* Where programs with this environment look for the control daemon; whether it is there. */
static bool find_mps(char *folder_p, size_t size)
{
    const char *named = getenv(HVI_MPS_PIPE_VAR);
    char control[PATH_MAX];
    snprintf(folder_p, size, "%s", named != NULL && named[0] != '\0' ? named : MPS_FOLDER);
    snprintf(control, sizeof control, "%s/control", folder_p);
    return access(control, F_OK) == 0;
}

/* What hvdd says of an MPS of its own; "": nothing, or there is no hvdd. The checks that follow have a part in it. */
static void ask_hvdd(const struct ctl *ctl, char *mps_p, size_t size)
{
    struct hvd_admin_answer *reply;
    char why[512], folder[PATH_MAX];
    mps_p[0] = '\0';
    if (!ctl_ask_daemon(ctl, &reply, why, sizeof why))
        return;
    if (reply != NULL && reply->daemon != NULL) {
        snprintf(mps_p, size, "%s", reply->daemon->gpu_mps);
        snprintf(folder, sizeof folder, "%s/" HVI_MPS_PIPES, reply->daemon->runtime_dir);
    }
    if (strncmp(mps_p, "pid", 3) == 0)
        setenv(HVI_MPS_PIPE_VAR, folder, 1);
    hvd_admin_answer_free(reply);
}

/* One that hvdd has not started: whose it is, and its pid as it has written it. */
static void tell_of_another(const char *folder, struct ctl_finding *finding)
{
    char path[PATH_MAX], pid[16];
    struct stat info = {.st_uid = geteuid()};
    snprintf(path, sizeof path, "%s/" HVI_MPS_PROGRAM ".pid", folder);
    if (hvi_file_read(path, pid, sizeof pid) < 0)
        snprintf(pid, sizeof pid, "?");
    pid[strcspn(pid, "\n")] = '\0';
    stat(folder, &info);
    ctl_found(finding, CTL_CHECK_OK, "a control daemon is in %s, pid %s, of uid %u", folder, pid,
              (unsigned)info.st_uid);
}

static void check_mps(const struct ctl *ctl, struct ctl_finding *finding)
{
    char folder[200], of_hvdd[200];
    ask_hvdd(ctl, of_hvdd, sizeof of_hvdd);
    const bool is_there = find_mps(folder, sizeof folder);
    if (of_hvdd[0] != '\0')
        ctl_found(finding, strncmp(of_hvdd, "pid", 3) == 0 ? CTL_CHECK_OK : CTL_CHECK_NOTE,
                  "hvdd's own: %s", of_hvdd);
    else if (is_there)
        tell_of_another(folder, finding);
    else
        ctl_found(finding, CTL_CHECK_OK, "no control daemon in %s: processes take turns on a GPU",
                  folder);
}

static void advise(struct ctl_finding *finding)
{
    char folder[200];
    if (find_mps(folder, sizeof folder))
        ctl_next(finding, "MPS does not take this process: see control.log and server.log of its "
                          "control daemon");
    else
        ctl_next(finding, "optional: hvdd's option gpu-mps, or hvdrun --gpu-mps, for a hvdd of one "
                          "user; a fault of one process then ends all of them on that GPU");
}

static void check_turns(const struct ctl *ctl, struct ctl_finding *finding)
{
    char answer[2048];
    const char *rest = "";
    (void)ctl;
    const char *why = ask_worker("--turns", TURNS_NS, answer, sizeof answer);
    const uint64_t idle_ns = why == NULL ? ask_number(answer, "idle_ns", &rest) : 0;
    const uint64_t busy_ns = why == NULL ? ask_number(answer, "busy_ns", &rest) : 0;
    if (busy_ns == 0) {
        ctl_found(finding, CTL_CHECK_NOTE, "not measured: %.*s",
                  (int)(why == NULL ? strcspn(rest, "\n") : strlen(why)), why == NULL ? rest : why);
        return;
    }
    finding->figures[0] = (struct ctl_figure){"idle_ns", idle_ns};
    finding->figures[1] = (struct ctl_figure){"busy_ns", busy_ns};
    const bool is_turn = busy_ns > idle_ns + FREE_NS;
    ctl_found(finding, is_turn ? CTL_CHECK_NOTE : CTL_CHECK_OK,
              "a worker's kernel takes %.1f us, and %.1f us beside a process that computes",
              (double)idle_ns / 1e3, (double)busy_ns / 1e3);
    if (is_turn)
        advise(finding);
}

const struct ctl_check ctl_gpu_checks[] = {
    {"MPS", check_mps},
    {"turns on the GPU", check_turns},
    {NULL, NULL},
};
