/* SPDX-License-Identifier: Apache-2.0
 * An engine of a hvdd for all users becomes the job's user, if hvdd or its unit has given it the capabilities for that
 * (ADR 0023):
 *
 *   hvdd's user, CAP_SETUID, CAP_SETGID  --the trainer's socket, from the kernel-->  the job's user, no capability
 *   hvdd's user, none of them            ----------------------------------------->  hvdd's user, no capability
 *
 * Whose job it is, the trainer's socket says and not hvdd: a hvdd that somebody has taken over gets engines of those users
 * alone who have connected to it, where a unit starts them. One that forks them has CAP_SETUID, CAP_SETGID and CAP_KILL
 * itself, so who has taken it over can become anybody. No engine becomes root.
 *
 * The kernel then lets the engine at ordinary memory of that user's processes as it lets the user himself: never at that
 * of a program with other rights (setuid, file capabilities) that a trainer executes while its op is in flight. For that the
 * engine must hold no CAP_SYS_PTRACE, so it holds no capability.
 *
 * The user can kill or stop his engine, as his trainers. He cannot look into it or speak for it: it is not dumpable. Its
 * only supplementary group is hvdd's, which no process of the user has: by that a hvdd that starts anew knows it
 * (SO_PEERGROUPS). */
#include "daemon/engine/user.h"

#include "base/log.h"
#include "base/rights.h"
#include "base/status.h"

#include <errno.h>
#include <grp.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define MAY_CHANGE (HVI_RIGHT(CAP_SETUID) | HVI_RIGHT(CAP_SETGID))

/* LeakSanitizer looks at the process from outside. */
#ifdef HVD_SANITIZE
#define DUMPABLE 1
#else
#define DUMPABLE 0
#endif

static int fail(const char *step)
{
    HVI_LOG(HVI_LOG_ERROR, "user", "no-user", "the engine cannot become its job's user",
            "step=%s error=\"%s\"", step, strerror(errno));
    return HVI_ERR_REFUSED;
}

/* Group 0 is no proof of anything and worth a lot. */
static int change(const struct ucred *user)
{
    const struct rlimit no_core = {0, 0};
    const gid_t service = getegid();

    if (setgroups(service != 0 ? 1 : 0, &service) != 0)
        return fail("setgroups");
    if (setresgid(user->gid, user->gid, user->gid) != 0)
        return fail("setresgid");
    if (setresuid(user->uid, user->uid, user->uid) != 0)
        return fail("setresuid");
    /* While it has rights still, so that the user's processes can look into it at no moment. */
    if (prctl(PR_SET_DUMPABLE, DUMPABLE, 0, 0, 0) != 0 || setrlimit(RLIMIT_CORE, &no_core) != 0)
        return fail("dumpable");
    if (!hvi_rights_keep(0))
        return fail("capset");
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        return fail("no_new_privs");
    return HVI_OK;
}

static int stay(void)
{
    return geteuid() == 0 || hvi_rights_keep(0) ? HVI_OK : fail("capset");
}

int engine_user_become(int trainer_fd)
{
    struct ucred user = {.uid = geteuid()};
    socklen_t size = sizeof user;

    if (trainer_fd >= 0 && getsockopt(trainer_fd, SOL_SOCKET, SO_PEERCRED, &user, &size) != 0)
        return fail("peercred");
    if (user.uid == geteuid())
        return stay();
    if (user.uid != 0 && hvi_rights_has(MAY_CHANGE))
        return change(&user);
    if (geteuid() != 0)
        return stay();
    errno = EPERM;
    return fail("root");
}
