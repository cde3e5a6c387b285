/* SPDX-License-Identifier: Apache-2.0
 * What the gate may do: it reads what strangers send, so it has no capability, gets no new
 * privilege, and has bounds on memory and descriptors that are its own and not hvdd's. */
#include "daemon/gate/gate.h"

#include "base/status.h"

#include <errno.h>
#include <linux/capability.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MEMORY_MAX (256u * 1024u * 1024u) /* bytes of heap and other private memory */

static void log_failed(const char *what)
{
    HVI_LOG(HVI_LOG_ERROR, "limits", "no-limits", "the gate cannot limit itself",
            "step=%s error=\"%s\"", what, strerror(errno));
}

/* Where there are none to give up, a service may not even ask: capset is not in its system calls. */
static bool drop_capabilities(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct has[_LINUX_CAPABILITY_U32S_3] = {{0}};
    const struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {{0}};

    if (syscall(SYS_capget, &header, has) == 0 && memcmp(has, none, sizeof(none)) == 0)
        return true;
    return syscall(SYS_capset, &header, none) == 0;
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
    else if (!drop_capabilities())
        log_failed("capset");
    else if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0)
        log_failed("pdeathsig");
    else
        return HVI_OK;
    return HVI_ERR_DAEMON;
}
