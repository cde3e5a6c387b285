/* SPDX-License-Identifier: Apache-2.0
 * What the gate may do: it reads what strangers send, so it has no capability, gets no new
 * privilege, and has bounds on memory and descriptors that are its own and not hvdd's. */
#include "daemon/gate/gate.h"

#include "base/rights.h"
#include "base/status.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

/* Bytes of heap and other private memory: 2,048 nodes may each have a list of the job's nodes under way, of up to 127 KiB,
 * once here and once in libzmq. */
#define MEMORY_MAX (640u * 1024u * 1024u)
#define ORPHAN_S   3u

static pid_t parent; /* of gate_limits_outlive */

static void log_failed(const char *what)
{
    HVI_LOG(HVI_LOG_ERROR, "limits", "no-limits", "the gate cannot limit itself",
            "step=%s error=\"%s\"", what, strerror(errno));
}

static uint64_t limit_descriptors(void)
{
    struct rlimit limit = {GATE_DESCRIPTORS_MAX, GATE_DESCRIPTORS_MAX};

    getrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_max > GATE_DESCRIPTORS_MAX)
        limit.rlim_max = GATE_DESCRIPTORS_MAX;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    return limit.rlim_cur;
}

/* Where a sanitizer keeps its own memory, which is terabytes, there is no bound. */
static bool limit_memory(void)
{
#ifdef HVD_SANITIZE
    return true;
#else
    const struct rlimit memory = {MEMORY_MAX, MEMORY_MAX}, core = {0, 0};

    return setrlimit(RLIMIT_DATA, &memory) == 0 && setrlimit(RLIMIT_CORE, &core) == 0;
#endif
}

int gate_limits_apply(struct gate *gate)
{
    gate->descriptors = limit_descriptors();
    if (!limit_memory())
        log_failed("setrlimit");
    else if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        log_failed("no_new_privs");
    else if (!hvi_rights_keep(0))
        log_failed("capset");
    else if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0)
        log_failed("pdeathsig");
    else
        return HVI_OK;
    return HVI_ERR_DAEMON;
}

/* SIGALRM ends the process, also where its loop hangs. */
static void on_parent_death(int signal_number)
{
    (void)signal_number;
    if (getppid() != parent)
        alarm(ORPHAN_S);
}

/* SIGCONT, as a process that was stopped would be left for good. */
bool gate_limits_outlive(struct gate *gate)
{
    parent = getppid();
    signal(SIGCONT, on_parent_death);
    if (prctl(PR_SET_PDEATHSIG, SIGCONT) != 0) {
        log_failed("pdeathsig");
        return false;
    }
    gate->hvdd = parent;
    return getppid() == parent;
}
