/* SPDX-License-Identifier: Apache-2.0
 * What hvdd needs from a machine, and what it could use. "problem": hvdd would not work. "note": it
 * works, but something is missing, slow or off. */
#include "base/available.h"
#include "base/fate.h"
#include "base/huge.h"
#include "base/listener.h"
#include "base/runtime.h"
#include "tools/common/ask.h"
#include "tools/common/can.h"
#include "tools/common/text.h"
#include "tools/hvdctl/doctor.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <hwloc.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#define NOFILE_NEEDED    256u
#define NOFILE_GOOD      1024u
#define MEMORY_LOW_BYTES (1ull << 30)

/* The first line of a small file, without the newline; false if it cannot be read. */
static bool read_line(const char *path, char *text_p, size_t size)
{
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return false;
    const bool ok = fgets(text_p, (int)size, file) != NULL;
    fclose(file);
    if (ok)
        text_p[strcspn(text_p, "\n")] = '\0';
    return ok;
}

static void check_kernel(const struct ctl *ctl, struct ctl_finding *finding)
{
    struct utsname name;
    (void)ctl;
    if (uname(&name) == 0)
        ctl_found(finding, CTL_CHECK_OK, "%s %s %s", name.sysname, name.release, name.machine);
}

static void check_memfd(const struct ctl *ctl, struct ctl_finding *finding)
{
    (void)ctl;
    const int fd = memfd_create("hvdctl-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    if (fd >= 0 && fallocate(fd, 0, 0, 4096) == 0 && fcntl(fd, F_ADD_SEALS, seals) == 0 &&
        fcntl(fd, F_GET_SEALS) == seals && ftruncate(fd, 0) != 0) {
        ctl_found(finding, CTL_CHECK_OK, "works");
    } else {
        ctl_found(finding, CTL_CHECK_PROBLEM, "fails: %s", strerror(errno));
        ctl_next(finding,
                 "hvdd needs memfd_create with sealing: Linux 3.17 or newer, and a container "
                 "profile (seccomp) that allows it");
    }
    if (fd >= 0)
        close(fd);
}

static void check_pidfd(const struct ctl *ctl, struct ctl_finding *finding)
{
    (void)ctl;
    const int fd = hvi_pidfd_open(getpid());
    if (fd >= 0) {
        ctl_found(finding, CTL_CHECK_OK, "works");
        close(fd);
        return;
    }
    ctl_found(finding, CTL_CHECK_PROBLEM, "pidfd_open fails: %s", strerror(errno));
    ctl_next(finding, "hvdd watches trainers by pidfd: Linux 5.3 or newer, and a container profile "
                      "(seccomp) that allows pidfd_open");
}

static void check_nofile(const struct ctl *ctl, struct ctl_finding *finding)
{
    struct rlimit limit = {0};
    (void)ctl;
    getrlimit(RLIMIT_NOFILE, &limit);
    const uint64_t soft = limit.rlim_cur;
    const enum ctl_verdict verdict = soft < NOFILE_NEEDED ? CTL_CHECK_PROBLEM
                                     : soft < NOFILE_GOOD ? CTL_CHECK_NOTE
                                                          : CTL_CHECK_OK;
    if (limit.rlim_max == RLIM_INFINITY)
        ctl_found(finding, verdict, "%" PRIu64 " open files (no hard limit)", soft);
    else
        ctl_found(finding, verdict, "%" PRIu64 " open files (hard limit %" PRIu64 ")", soft,
                  (uint64_t)limit.rlim_max);
    if (verdict != CTL_CHECK_OK)
        ctl_next(finding, "ulimit -n 4096, or LimitNOFILE= in the unit: each rank takes a few "
                          "descriptors, and one for each piece of shared memory");
}

static void check_memlock(const struct ctl *ctl, struct ctl_finding *finding)
{
    struct rlimit limit = {0};
    char text[32];
    (void)ctl;
    getrlimit(RLIMIT_MEMLOCK, &limit);
    if (limit.rlim_cur == RLIM_INFINITY) {
        ctl_found(finding, CTL_CHECK_OK, "unlimited");
        return;
    }
    text_bytes(limit.rlim_cur, text, sizeof text);
    ctl_found(finding, CTL_CHECK_OK, "%s; enough, host memory is not locked", text);
}

static void check_dev_shm(const struct ctl *ctl, struct ctl_finding *finding)
{
    struct statvfs fs;
    char text[32];
    (void)ctl;
    if (statvfs("/dev/shm", &fs) != 0) {
        ctl_found(finding, CTL_CHECK_OK, "absent; not used, hvdd's shared memory is memfd");
        return;
    }
    text_bytes((uint64_t)fs.f_blocks * fs.f_frsize, text, sizeof text);
    ctl_found(finding, CTL_CHECK_OK, "%s; its size does not matter, hvdd's shared memory is memfd",
              text);
}

/* What a process of this user that is not our ancestor gets when it reads our memory, as an engine
 * will: 0 or an errno. A child is such a process. */
static int try_foreign_read(void)
{
    long word = 1;
    int status = 0;
    const pid_t parent = getpid();
    const pid_t child = fork();
    if (child < 0)
        return errno;
    if (child == 0) {
        long copy = 0;
        const struct iovec here = {&copy, sizeof copy};
        const struct iovec there = {&word, sizeof word};
        _exit(process_vm_readv(parent, &here, 1, &there, 1, 0) == sizeof copy ? 0 : errno);
    }
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    return WIFEXITED(status) ? WEXITSTATUS(status) : EPERM; /* seccomp may kill */
}

static void check_ptrace(const struct ctl *ctl, struct ctl_finding *finding)
{
    char scope[32];
    (void)ctl;
    const int error = try_foreign_read();
    const bool yama = read_line("/proc/sys/kernel/yama/ptrace_scope", scope, sizeof scope);
    if (error == 0) {
        ctl_found(finding, CTL_CHECK_OK,
                  "allowed: large ordinary memory can be reduced where it is");
        return;
    }
    ctl_found(finding, CTL_CHECK_NOTE, "%s%s%s: ordinary memory is always staged", strerror(error),
              yama ? ", kernel.yama.ptrace_scope is " : "", yama ? scope : "");
    ctl_next(finding,
             "sysctl kernel.yama.ptrace_scope=0, and a container profile (seccomp) that allows "
             "process_vm_readv; or hvd_alloc and hvd_adopt, which need neither");
}

/* The options of /proc as it is mounted here. */
static bool find_proc_options(char *text_p, size_t size)
{
    char line[512];
    FILE *file = fopen("/proc/self/mounts", "re");
    bool there = false;
    if (file == NULL)
        return false;
    while (fgets(line, sizeof line, file) != NULL) {
        if (strstr(line, " /proc proc ") == NULL)
            continue;
        snprintf(text_p, size, "%s", strstr(line, " /proc proc ") + strlen(" /proc proc "));
        there = true; /* the last one lies on top */
    }
    fclose(file);
    return there;
}

static void check_proc(const struct ctl *ctl, struct ctl_finding *finding)
{
    char options[512];
    (void)ctl;
    const char *hidden =
        find_proc_options(options, sizeof options) ? strstr(options, "hidepid=") : NULL;
    if (hidden == NULL || strncmp(hidden, "hidepid=0", 9) == 0 ||
        strncmp(hidden, "hidepid=off", 11) == 0) {
        ctl_found(finding, CTL_CHECK_OK, "processes of others can be looked at");
        return;
    }
    ctl_found(finding, CTL_CHECK_NOTE, "%.*s hides processes of other users",
              (int)strcspn(hidden, ", \n"), hidden);
    ctl_next(finding,
             "nothing breaks: an hvdd for several users cannot say what a rank that others "
             "wait for is doing, nor how it ended");
}

static int count_objects(hwloc_topology_t topology, hwloc_obj_type_t type)
{
    const int count = hwloc_get_nbobjs_by_type(topology, type);
    return count > 0 ? count : 0;
}

static void check_cores(const struct ctl *ctl, struct ctl_finding *finding)
{
    hwloc_topology_t topology;
    const int usable = (int)hvi_cores_available();
    (void)ctl;
    if (hwloc_topology_init(&topology) != 0) {
        ctl_found(finding, CTL_CHECK_NOTE, "%d usable (hwloc fails)", usable);
        return;
    }
    if (hwloc_topology_load(topology) == 0)
        ctl_found(finding, usable > 1 ? CTL_CHECK_OK : CTL_CHECK_NOTE,
                  "%d usable; %d hardware threads, %d cores, %d packages, %d NUMA nodes", usable,
                  count_objects(topology, HWLOC_OBJ_PU), count_objects(topology, HWLOC_OBJ_CORE),
                  count_objects(topology, HWLOC_OBJ_PACKAGE),
                  count_objects(topology, HWLOC_OBJ_NUMANODE));
    else
        ctl_found(finding, CTL_CHECK_NOTE, "%d usable (hwloc cannot read the topology)", usable);
    hwloc_topology_destroy(topology);
    if (usable == 1)
        ctl_next(finding, "with one core every rank waits for its turn: latencies will be long");
}

/* A line of /proc/meminfo in bytes, 0 if there is none. */
static uint64_t meminfo(const char *key)
{
    char line[128];
    uint64_t kib = 0;
    FILE *file = fopen("/proc/meminfo", "re");
    if (file == NULL)
        return 0;
    while (fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, key, strlen(key)) == 0 && line[strlen(key)] == ':') {
            kib = strtoull(line + strlen(key) + 1, NULL, 10);
            break;
        }
    }
    fclose(file);
    return kib * 1024;
}

static void check_memory(const struct ctl *ctl, struct ctl_finding *finding)
{
    char total[32];
    char available[32];
    char limit[64];
    (void)ctl;
    const uint64_t left = hvi_memory_available("");
    text_bytes(meminfo("MemTotal"), total, sizeof total);
    text_bytes(left, available, sizeof available);
    ctl_found(finding, left < MEMORY_LOW_BYTES ? CTL_CHECK_NOTE : CTL_CHECK_OK, "%s, %s available",
              total, available);
    if (left < MEMORY_LOW_BYTES)
        ctl_next(finding, "little is left for shared memory; tensors will fail with NO_MEMORY");
    if (read_line("/sys/fs/cgroup/memory.max", limit, sizeof limit) && strcmp(limit, "max") != 0) {
        text_bytes(strtoull(limit, NULL, 10), total, sizeof total);
        ctl_next(finding, "this container is limited to %s; shared memory counts toward it", total);
    }
    if (read_line("/proc/sys/vm/overcommit_memory", limit, sizeof limit) && limit[0] == '2')
        ctl_next(finding,
                 "vm.overcommit_memory is 2: pages of shared memory that are not there yet may be "
                 "refused later; tensors then fail with NO_MEMORY");
}

/* Whether the kernel makes a huge page of a memfd that has one page, as hvd_alloc has it do. */
static bool memfds_get_huge_pages(void)
{
    const int fd = memfd_create("hvd-doctor", MFD_CLOEXEC);
    char *space = mmap(NULL, 2 * HVI_HUGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    bool huge = false;
    if (space != MAP_FAILED) {
        char *start = space + (HVI_HUGE_BYTES - (uintptr_t)space % HVI_HUGE_BYTES);
        huge = fd >= 0 && pwrite(fd, "", 1, HVI_HUGE_BYTES - 1) == 1 &&
               mmap(start, HVI_HUGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) !=
                   MAP_FAILED &&
               madvise(start, HVI_HUGE_BYTES, MADV_COLLAPSE) == 0;
        munmap(space, 2 * HVI_HUGE_BYTES);
    }
    if (fd >= 0)
        close(fd);
    return huge;
}

static void check_huge_pages(const struct ctl *ctl, struct ctl_finding *finding)
{
    static const char path[] = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
    char text[128];
    char chosen[32] = "?";
    (void)ctl;
    if (!read_line(path, text, sizeof text)) {
        ctl_found(finding, CTL_CHECK_NOTE, "not in this kernel");
        return;
    }
    const char *open = strchr(text, '[');
    if (open != NULL)
        snprintf(chosen, sizeof chosen, "%.*s", (int)strcspn(open + 1, "]"), open + 1);
    if (memfds_get_huge_pages()) {
        ctl_found(finding, CTL_CHECK_OK, "in use for tensors from 2 MiB on (shmem_enabled: %s)",
                  chosen);
        return;
    }
    const bool off = strcmp(chosen, "never") == 0 || strcmp(chosen, "deny") == 0;
    ctl_found(finding, off ? CTL_CHECK_NOTE : CTL_CHECK_OK, "%s", chosen);
    if (off)
        ctl_next(
            finding,
            "optional: echo within_size > %s (as root) makes large tensors faster; Linux 6.1 or "
            "later needs no setting",
            path);
}

/* ---- hvdd, and what its workers of GPUs would find ---- */

/* Asked once: several checks want to know. */
struct daemon_word {
    bool is_asked, is_there;
    struct hvd_admin_answer *reply;
    char why[512];
};

static const struct daemon_word *ask_daemon(const struct ctl *ctl)
{
    static struct daemon_word word;
    if (!word.is_asked)
        word.is_there = ctl_ask_daemon(ctl, &word.reply, word.why, sizeof word.why);
    word.is_asked = true;
    return &word;
}

/* The answer of hvdd-gpu --can, and why there is none. */
struct worker_word {
    bool is_asked, is_there;
    char answer[8192], why[256];
};

static const struct worker_word *ask_workers(const struct ctl *ctl)
{
    static struct worker_word word;
    const struct hvd_admin_answer *reply = ask_daemon(ctl)->reply;
    struct can_of of = {.program = NULL};
    if (word.is_asked)
        return &word;
    if (reply != NULL && reply->daemon != NULL)
        of = (struct can_of){reply->daemon->gpu_program, reply->daemon->gpu_kernels,
                             reply->daemon->gpu_library_path};
    const char *why = can_ask(&of, word.answer, sizeof word.answer);
    word.is_asked = true;
    word.is_there = why == NULL;
    snprintf(word.why, sizeof word.why, "%s", why == NULL ? "" : why);
    return &word;
}

static bool is_gpu_there(void)
{
    glob_t found;
    const bool there = glob("/dev/nvidia[0-9]*", GLOB_NOSORT, NULL, &found) == 0;
    globfree(&found);
    return there;
}

/* Up to the end of its line. */
static void copy_line(const char *line, char *text_p, size_t size)
{
    char raw[4096];
    snprintf(raw, sizeof raw, "%.*s", (int)strcspn(line, "\n"), line);
    text_safe(raw[0] != '\0' ? raw : "none", text_p, size);
}

/* Something that workers need: its number, or 0, and the finding says that it is missing. That matters where there is a GPU. */
static uint32_t look_for(const struct ctl *ctl, const char *word, const char *next,
                         struct ctl_finding *finding)
{
    const struct worker_word *said = ask_workers(ctl);
    const bool matters = is_gpu_there();
    const char *rest = "";
    char text[sizeof finding->value];
    const uint64_t number = said->is_there ? ask_number(said->answer, word, &rest) : 0;
    if (number > 0)
        return (uint32_t)number;
    copy_line(rest, text, sizeof text);
    if (!matters)
        ctl_found(finding, CTL_CHECK_OK, "none; needed for tensors on GPUs alone");
    else if (said->is_there)
        ctl_found(finding, CTL_CHECK_NOTE, "%s", text);
    else
        ctl_found(finding, CTL_CHECK_NOTE, "not known: %s", said->why);
    if (matters)
        ctl_next(finding, "%s",
                 said->is_there ? next
                                : "install hvdd-gpu with hvdctl; hvdd's options gpu and "
                                  "gpu-kernels say what it starts (hvdd.conf(5))");
    return 0;
}

static void check_cuda(const struct ctl *ctl, struct ctl_finding *finding)
{
    char text[32];
    const uint32_t number = look_for(
        ctl, "driver",
        "install NVIDIA's driver, 525 or newer; a container needs its libraries, too: with the "
        "NVIDIA container runtime NVIDIA_DRIVER_CAPABILITIES has to name compute",
        finding);
    text_cuda_version(number, text, sizeof text);
    if (number > 0)
        ctl_found(finding, CTL_CHECK_OK, "driver for CUDA %s", text);
}

static void check_nccl(const struct ctl *ctl, struct ctl_finding *finding)
{
    char text[32];
    const uint32_t number = look_for(
        ctl, "nccl",
        "for ranks on several GPUs: pip install nvidia-nccl-cu13, and name its site-packages in "
        "hvdd's gpu-library-path, or libnccl.so.2 itself in HVD_NCCL_LIB",
        finding);
    text_nccl_version(number, text, sizeof text);
    if (number > 0)
        ctl_found(finding, CTL_CHECK_OK, "%s", text);
}

static void check_gpu_kernels(const struct ctl *ctl, struct ctl_finding *finding)
{
    const uint32_t number =
        look_for(ctl, "kernels",
                 "build hvdd where nvcc is, or name a file of kernels in hvdd's gpu-kernels; "
                 "HVD_GPU=staged does without",
                 finding);
    if (number > 0)
        ctl_found(finding, CTL_CHECK_OK, "there");
}

static void check_systemd(const struct ctl *ctl, struct ctl_finding *finding)
{
    (void)ctl;
    if (access("/run/systemd/system", F_OK) == 0) {
        ctl_found(finding, CTL_CHECK_OK, "present");
        return;
    }
    ctl_found(finding, CTL_CHECK_NOTE, "not running here");
    ctl_next(finding, "nothing restarts hvdd if it dies; hvdrun starts a private one by itself");
}

/* A directory that must be ours and closed to others, if it exists. False after a problem was
 * noted. */
static bool check_own_dir(const char *path, struct ctl_finding *finding)
{
    struct stat st;
    if (lstat(path, &st) != 0) {
        if (errno == ENOENT)
            return true;
        ctl_found(finding, CTL_CHECK_PROBLEM, "%s: %s", path, strerror(errno));
        ctl_next(finding, "create it (mode 0700)");
        return false;
    }
    if (S_ISDIR(st.st_mode) && st.st_uid == geteuid() && (st.st_mode & 077) == 0)
        return true;
    ctl_found(finding, CTL_CHECK_PROBLEM, "%s: owner %u, mode %04o; must be owner %u, mode 0700",
              path, (unsigned)st.st_uid, (unsigned)(st.st_mode & 07777), (unsigned)geteuid());
    ctl_next(finding, "chmod 0700 %s; if it is not yours, unset XDG_RUNTIME_DIR or remove it",
             path);
    return false;
}

/* The variable is set, and hvi_runtime_dir has not taken it. */
static void note_unusable(const char *path, struct ctl_finding *finding)
{
    struct stat st;
    if (stat(path, &st) != 0)
        ctl_found(finding, CTL_CHECK_NOTE, "XDG_RUNTIME_DIR: %s: %s; /tmp will do", path,
                  strerror(errno));
    else
        ctl_found(finding, CTL_CHECK_NOTE,
                  "XDG_RUNTIME_DIR: %s: owner %u, mode %04o: not used, /tmp will do", path,
                  (unsigned)st.st_uid, (unsigned)(st.st_mode & 07777));
    ctl_next(finding, "make it a directory of yours (mode 0700), or unset XDG_RUNTIME_DIR");
}

static void check_runtime_dir(const struct ctl *ctl, struct ctl_finding *finding)
{
    char fallback[64];
    (void)ctl;
    const char *named = getenv("XDG_RUNTIME_DIR");
    const char *runtime = hvi_runtime_dir(geteuid());
    if (runtime != NULL && !check_own_dir(runtime, finding))
        return;
    snprintf(fallback, sizeof fallback, "/tmp/hvdd-%u", (unsigned)geteuid());
    if (!check_own_dir(fallback, finding))
        return;
    if (access("/tmp", W_OK) != 0) {
        ctl_found(finding, CTL_CHECK_PROBLEM, "/tmp is not writable: %s", strerror(errno));
        ctl_next(finding,
                 "private daemons live in $XDG_RUNTIME_DIR or /tmp: make one of them usable");
        return;
    }
    if (runtime == NULL && named != NULL && named[0] != '\0')
        note_unusable(named, finding);
    else
        ctl_found(finding, CTL_CHECK_OK, "%s",
                  runtime != NULL ? runtime : "no XDG_RUNTIME_DIR; /tmp will do");
}

/* A restart or a stop drains, and then ends the jobs that still run (hvdd(8), SYSTEMD). */
static void next_upgraded(struct ctl_finding *finding, const char *runtime_dir)
{
    if (strcmp(runtime_dir, HVI_SERVICE_DIR) == 0)
        ctl_next(finding,
                 "systemctl kill --kill-whom=main --signal=KILL hvdd starts the installed version, "
                 "and running jobs go on; systemctl restart hvdd would end them");
    else
        ctl_next(finding,
                 "a private hvdd is of the installed version when it is started the next time; "
                 "SIGTERM would end its running jobs");
}

static void check_daemon(const struct ctl *ctl, struct ctl_finding *finding)
{
    const struct daemon_word *word = ask_daemon(ctl);
    const struct hvd_admin_daemon *daemon = word->reply != NULL ? word->reply->daemon : NULL;
    if (!word->is_there) {
        ctl_found(finding, CTL_CHECK_NOTE, "none: %.200s", word->why);
        ctl_next(finding,
                 "start one (hvdd, or systemctl start hvdd), or let hvdrun start a private one");
    } else if (daemon == NULL) {
        ctl_found(finding, CTL_CHECK_PROBLEM, "answers with an error: %.200s", word->why);
        ctl_next(finding, "install the same version of hvdd and hvdctl (%s)", HVD_VERSION_TEXT);
    } else if (strcmp(daemon->version, HVD_VERSION_TEXT) != 0) {
        ctl_found(finding, CTL_CHECK_NOTE, "%s, pid %d; hvdctl is %s", daemon->version,
                  (int)daemon->pid, HVD_VERSION_TEXT);
        next_upgraded(finding, daemon->runtime_dir);
    } else {
        ctl_found(finding, CTL_CHECK_OK, "%s, pid %d, in %s", daemon->version, (int)daemon->pid,
                  daemon->runtime_dir);
    }
}

const struct ctl_check ctl_checks[] = {
    {"kernel", check_kernel},
    {"cores", check_cores},
    {"memory", check_memory},
    {"sealed memfd", check_memfd},
    {"pidfd", check_pidfd},
    {"open files", check_nofile},
    {"locked memory", check_memlock},
    {"/dev/shm", check_dev_shm},
    {"huge pages (shmem)", check_huge_pages},
    {"ptrace scope", check_ptrace},
    {"/proc", check_proc},
    {"runtime directory", check_runtime_dir},
    {"systemd", check_systemd},
    {"CUDA driver", check_cuda},
    {"NCCL", check_nccl},
    {"GPU kernels", check_gpu_kernels},
    {"hvdd", check_daemon},
    {NULL, NULL},
};
