/* SPDX-License-Identifier: Apache-2.0
 * Question 7, continued (P10 of docs/design/gpu.md): may a process of one user open what a process of another has exported? It
 * decides whether a worker may have a user of its own.
 *
 * Method. Both processes give up root before they load the driver: the owner becomes user 65534, this one 65533. The owner
 * exports by legacy handle, or by descriptor, which comes over a socket as ever. What the driver answers is the answer.
 *
 * Predicted. Descriptors: yes, who has one may use it. Legacy handles: no source says; the driver may compare users. */
#include "probe7.h"

#include <errno.h>
#include <grp.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#define OWNER    65534u
#define IMPORTER 65533u

static void become(unsigned user)
{
    if (setgroups(0, NULL) != 0 || setresgid(user, user, user) != 0 ||
        setresuid(user, user, user) != 0)
        probe_fail("cannot become user %u: %s", user, strerror(errno));
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* another user has none */
}

int probe7_is_of_users(const struct probe_options *o)
{
    return strncmp(o->variant, "other_user_", 11) == 0;
}

void probe7_become_owner(const struct probe_options *o)
{
    if (probe7_is_of_users(o))
        become(OWNER);
}

static CUresult take_vmm(int fd)
{
    CUmemGenericAllocationHandle handle;

    return cu.cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd, PROBE7_BY_FD);
}

static CUresult take_legacy(const unsigned char *bytes)
{
    CUipcMemHandle handle;
    CUdeviceptr p;

    memcpy(&handle, bytes, sizeof handle);
    return cu.cuIpcOpenMemHandle(&p, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
}

void probe7_take_of_users(const struct probe_options *o)
{
    const int is_vmm = strcmp(o->variant, "other_user_vmm") == 0;
    struct probe_msg m;
    int fd = -1;

    if (geteuid() != 0)
        probe_refuse("only root can start processes of two users");
    struct probe_peer peer = probe_start("owner");
    become(IMPORTER);
    cu_attach(o, CU_NEEDS_IPC | CU_NEEDS_VMM | CU_NEEDS_TWO_PROCESSES);
    probe_step("opening another user's memory");
    probe_expect(peer.fd, is_vmm ? "vmm" : "legacy", &m, &fd);
    const CUresult result = is_vmm ? take_vmm(fd) : take_legacy(m.bytes);
    probe_answer(result == CUDA_SUCCESS ? "yes" : cu_error(result), "opens");
    probe_say_verb(peer.fd, "released");
    probe_end(&peer, PROBE_WAIT_S);
}
