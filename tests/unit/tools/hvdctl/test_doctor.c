/* SPDX-License-Identifier: Apache-2.0
 * `hvdctl doctor`: what it finds of a hvdd, of limits and of directories that the test has made; of the rest of the
 * machine only that each check says something, and that the exit status follows. */
#include "base/status.h"
#include "tests/unit/hvt_main.h"
#include "tests/unit/hvt_process.h"
#include "tests/unit/tools/hvdctl/hvt_program.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const checks[] = {
    "kernel",         "cores",       "memory",
    "sealed memfd",   "pidfd",       "open files",
    "locked memory",  "/dev/shm",    "huge pages (shmem)",
    "ptrace scope",   "/proc",       "runtime directory",
    "systemd",        "CUDA driver", "NCCL",
    "GPU kernels",    "hvdd",        "host name",
    "interface",      "MTU",         "ports",
    "socket buffers",
};
#define CHECKS (sizeof checks / sizeof checks[0])

static const char *string(const cJSON *object, const char *name)
{
    return cJSON_GetStringValue(cJSON_GetObjectItem(object, name));
}

START_TEST(every_check_says_something)
{
    hvt_run("doctor --json");
    cJSON *document = hvt_findings();
    const cJSON *array = cJSON_GetObjectItem(document, "checks");
    ck_assert_int_eq(cJSON_GetArraySize(array), (int)CHECKS);
    for (int i = 0; i < (int)CHECKS; i++) {
        const cJSON *object = cJSON_GetArrayItem(array, i);
        ck_assert_str_eq(string(object, "check"), checks[i]);
        ck_assert_str_ne(string(object, "value"), "");
        if (strcmp(string(object, "result"), "problem") == 0)
            ck_assert_str_ne(string(object, "next"), "");
    }
    hvt_expect_finding(document, "kernel", "ok", "Linux ", "");
    hvt_expect_finding(document, "sealed memfd", "ok", "works", "");
    hvt_expect_finding(document, "pidfd", "ok", "works", "");
    cJSON_Delete(document);
}
END_TEST

START_TEST(the_table_ends_with_a_sum)
{
    ck_assert_int_eq(chmod(hvt_root, 0750), 0);
    hvt_run("doctor");
    hvt_expect_end(1, "");
    for (size_t i = 0; i < CHECKS; i++)
        ck_assert_msg(strstr(hvt_out, checks[i]) != NULL, "%s: %s", checks[i], hvt_out);
    ck_assert_ptr_nonnull(strstr(hvt_out, "\nproblem  runtime directory   /tmp/hvt-ctl-"));
    ck_assert_ptr_nonnull(strstr(hvt_out, "-> chmod 0700 /tmp/hvt-ctl-"));
    const char *last = strstr(hvt_out, "\n\n");
    ck_assert_ptr_nonnull(last);
    ck_assert_ptr_nonnull(strstr(last, " problem"));
    ck_assert_ptr_null(strchr(hvt_out, '\033'));
}
END_TEST

START_TEST(a_runtime_directory_is_closed_to_others_or_not_used)
{
    hvt_run("doctor --json");
    cJSON *document = hvt_findings();
    hvt_expect_finding(document, "runtime directory", "ok", hvt_root, "");
    cJSON_Delete(document);
    ck_assert_int_eq(chmod(hvt_root, 0711), 0);
    hvt_run("doctor --json");
    document = hvt_findings();
    hvt_expect_finding(document, "runtime directory", "problem", "mode 0711; must be owner ",
                       "chmod 0700 ");
    cJSON_Delete(document);
    ck_assert_int_eq(chmod(hvt_root, 0777), 0);
    hvt_run("doctor --json");
    document = hvt_findings();
    hvt_expect_finding(document, "runtime directory", "note", "mode 0777: not used, ", "mode 0700");
    cJSON_Delete(document);
    setenv("XDG_RUNTIME_DIR", "/nonexistent", 1);
    hvt_run("doctor --json");
    document = hvt_findings();
    hvt_expect_finding(document, "runtime directory", "note",
                       "/nonexistent: No such file or directory; /tmp will do",
                       "unset XDG_RUNTIME_DIR");
    cJSON_Delete(document);
    unsetenv("XDG_RUNTIME_DIR");
    hvt_run("doctor --json");
    document = hvt_findings();
    hvt_expect_finding(document, "runtime directory", "ok", "no XDG_RUNTIME_DIR; /tmp will do", "");
    cJSON_Delete(document);
}
END_TEST

static const struct {
    rlim_t files;
    const char *result, *next;
} limits[] = {
    {200, "problem", "LimitNOFILE="},
    {1000, "note", "LimitNOFILE="},
    {1024, "ok", ""},
};

START_TEST(few_open_files_are_a_note_or_a_problem)
{
    struct rlimit limit;
    char value[64];
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = limits[_i].files;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    hvt_run("doctor --json");
    cJSON *document = hvt_findings();
    snprintf(value, sizeof value, "%d open files (", (int)limits[_i].files);
    hvt_expect_finding(document, "open files", limits[_i].result, value, limits[_i].next);
    cJSON_Delete(document);
}
END_TEST

START_TEST(locked_memory_is_told_and_never_a_problem)
{
    struct rlimit limit;
    ck_assert_int_eq(getrlimit(RLIMIT_MEMLOCK, &limit), 0);
    limit.rlim_cur = 65536;
    ck_assert_int_eq(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
    hvt_run("doctor --json");
    cJSON *document = hvt_findings();
    hvt_expect_finding(document, "locked memory", "ok", "64.0 KiB; enough", "");
    cJSON_Delete(document);
}
END_TEST

static const struct {
    const char *range, *result, *value, *next;
} ranges[] = {
    {"31731-31734", "ok", "4 of 4 from 31731 to 31734 are free", ""},
    {"31731-31731", "note", "1 of 1 from 31731 to 31731 are free", "one more on the first"},
    {"31735-31735", "problem", "0 of 1 from 31735 to 31735 are free: Address already in use",
     "HVD_PORT_RANGE=20000-20063"},
    {"9600", "problem", "HVD_PORT_RANGE=9600 is no range of ports", "write it as 9600-9631"},
    {"9631-9600", "problem", "is no range of ports", "write it as 9600-9631"},
};

START_TEST(the_ports_of_jobs_have_to_be_free)
{
    const struct sockaddr_in6 taken = {
        .sin6_family = AF_INET6, .sin6_port = htons(31735), .sin6_addr = IN6ADDR_ANY_INIT};
    const int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0), yes = 1;
    /* Connections of an earlier test may linger there. */
    ck_assert_int_eq(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes), 0);
    ck_assert_int_eq(bind(fd, (const struct sockaddr *)&taken, sizeof taken), 0);
    ck_assert_int_eq(listen(fd, 1), 0);
    setenv("HVD_PORT_RANGE", ranges[_i].range, 1);
    hvt_run("doctor --json");
    cJSON *document = hvt_findings();
    hvt_expect_finding(document, "ports", ranges[_i].result, ranges[_i].value, ranges[_i].next);
    cJSON_Delete(document);
    close(fd);
}
END_TEST

START_TEST(an_interface_that_is_not_there_is_a_problem)
{
    setenv("HVD_INTERFACE", "hvt-none", 1);
    hvt_run("doctor --json");
    cJSON *document = hvt_findings();
    hvt_expect_finding(document, "interface", "problem",
                       "HVD_INTERFACE=hvt-none names no interface", "`ip address` lists");
    cJSON_Delete(document);
    setenv("HVD_INTERFACE", "lo", 1);
    hvt_run("doctor --json");
    document = hvt_findings();
    hvt_expect_finding(document, "interface", "ok", "lo, 127.0.0.1: by HVD_INTERFACE=lo", "");
    cJSON_Delete(document);
}
END_TEST

START_TEST(a_hvdd_of_this_version_is_fine_and_another_version_a_note)
{
    const struct hvt_line same[] = {{
        .kind = HVI_ADMIN_STATUS,
        .reply = {.has_daemon = true, .daemon = HVT_DAEMON(HVD_VERSION_TEXT)},
    }};
    const struct hvt_line other[] = {{
        .kind = HVI_ADMIN_STATUS,
        .reply = {.has_daemon = true, .daemon = HVT_DAEMON("9.8.7")},
    }};
    HVT_RUN(same, "doctor --json");
    cJSON *document = hvt_findings();
    hvt_expect_finding(document, "hvdd", "ok", HVD_VERSION_TEXT ", pid 17, in /run/there", "");
    cJSON_Delete(document);
    HVT_RUN(other, "doctor --json");
    document = hvt_findings();
    hvt_expect_finding(document, "hvdd", "note", "9.8.7, pid 17; hvdctl is " HVD_VERSION_TEXT,
                       "a private hvdd is of the installed version when it is started the next");
    cJSON_Delete(document);
}
END_TEST

/* A restart drains, and ends the jobs that still run: tests/booted/test_upgrade.py. */
START_TEST(a_service_of_another_version_is_killed_alone_and_not_restarted)
{
    struct hvt_line lines[] = {{
        .kind = HVI_ADMIN_STATUS,
        .reply = {.has_daemon = true, .daemon = HVT_DAEMON("9.8.7")},
    }};
    strcpy(lines[0].reply.daemon.runtime_dir, "/run/hvdd");
    HVT_RUN(lines, "doctor --json");
    cJSON *document = hvt_findings();
    hvt_expect_finding(document, "hvdd", "note", "9.8.7, pid 17; hvdctl is " HVD_VERSION_TEXT,
                       "systemctl kill --kill-whom=main --signal=KILL hvdd starts the installed "
                       "version, and running jobs go on; systemctl restart hvdd would end them");
    cJSON_Delete(document);
}
END_TEST

START_TEST(a_hvdd_that_answers_with_an_error_is_a_problem)
{
    const struct hvt_line lines[] = {{
        .kind = HVI_ADMIN_STATUS,
        .reply = {.status = HVI_ERR_VERSION, .text = "version 9 is spoken here"},
    }};
    HVT_RUN(lines, "doctor --json");
    cJSON *document = hvt_findings();
    hvt_expect_finding(document, "hvdd", "problem",
                       "answers with an error: version 9 is spoken here",
                       "install the same version of hvdd and hvdctl");
    cJSON_Delete(document);
}
END_TEST

START_TEST(a_hvdd_that_is_not_there_or_says_nothing_of_use_is_a_note)
{
    const struct hvt_line silent[] = {{.kind = HVI_ADMIN_STATUS, .silent = true}};
    const struct hvt_line cut[] = {{
        .kind = HVI_ADMIN_STATUS,
        .reply = {.has_daemon = true, .daemon = HVT_DAEMON("9.8.7")},
        .cut = 1,
    }};
    hvt_run("doctor --json");
    cJSON *document = hvt_findings();
    hvt_expect_finding(document, "hvdd", "note", "(nothing there)", "start one (hvdd, or ");
    cJSON_Delete(document);
    HVT_RUN(silent, "doctor --json --timeout 0.02");
    document = hvt_findings();
    hvt_expect_finding(document, "hvdd", "note", "(it does not answer)", "start one (hvdd, or ");
    cJSON_Delete(document);
    HVT_RUN(cut, "doctor --json");
    document = hvt_findings();
    hvt_expect_finding(document, "hvdd", "note", hvi_status_text(HVI_ERR_PROTOCOL),
                       "start one (hvdd, or ");
    cJSON_Delete(document);
}
END_TEST

static const struct {
    const char *mps, *result, *value;
} own_mps[] = {
    {"pid 7, in /run/there/mps", "ok", "hvdd's own: pid 7, in /run/there/mps"},
    {"none: there is no program", "note", "hvdd's own: none: there is no program"},
};

START_TEST(a_hvdd_says_whether_it_has_an_mps_of_its_own)
{
    struct hvt_line lines[] = {{
        .kind = HVI_ADMIN_STATUS,
        .reply = {.has_daemon = true, .daemon = HVT_DAEMON(HVD_VERSION_TEXT)},
    }};
    snprintf(lines[0].reply.daemon.gpu_mps, sizeof lines[0].reply.daemon.gpu_mps, "%s",
             own_mps[_i].mps);
    setenv("FAKEGPU", "devices=1", 1);
    setenv("FAKEGPU_FAULT", "hvdd-gpu/no-memory@1", 1);
    HVT_RUN(lines, "doctor gpu --json");
    cJSON *document = hvt_findings();
    hvt_expect_finding(document, "MPS", own_mps[_i].result, own_mps[_i].value, "");
    cJSON_Delete(document);
}
END_TEST

/* The real hvdd-gpu on the fake driver, whose kernels take no turns. */
START_TEST(what_turns_on_a_gpu_cost_is_measured_or_said_why_not)
{
    setenv("FAKEGPU", "devices=1", 1);
    setenv("CUDA_MPS_PIPE_DIRECTORY", hvt_root, 1);
    hvt_run("doctor gpu --json");
    cJSON *document = hvt_findings();
    const cJSON *turns = cJSON_GetArrayItem(cJSON_GetObjectItem(document, "checks"), 1);
    hvt_expect_finding(document, "MPS", "ok", "no control daemon in ", "");
    ck_assert_ptr_nonnull(strstr(string(turns, "value"), "a worker's kernel takes "));
    for (int i = 0; i < 2; i++)
        ck_assert(cJSON_GetNumberValue(cJSON_GetObjectItem(turns, i == 0 ? "idle_ns" : "busy_ns")) >
                  0);
    cJSON_Delete(document);

    ck_assert_int_eq(mknod(hvt_path("control"), S_IFREG | 0600, 0), 0);
    setenv("FAKEGPU_FAULT", "hvdd-gpu/no-memory@1", 1);
    hvt_run("doctor gpu --json");
    document = hvt_findings();
    hvt_expect_finding(document, "MPS", "ok", "a control daemon is in ", "");
    hvt_expect_finding(document, "turns on the GPU", "note",
                       "not measured: cuMemAlloc of the staging memory: ", "");
    cJSON_Delete(document);
}
END_TEST

/* An installation of hvdctl alone, whose hvdd-gpu is a script that says that. */
static void install(const char *script)
{
    char command[1024];

    snprintf(command, sizeof command,
             "mkdir -p %s/i/bin %s/i/libexec/hvdd && cp %s/bin/hvdctl %s/i/bin && "
             "printf '#!/bin/sh\\n%s\\n' >%s/i/libexec/hvdd/hvdd-gpu && "
             "chmod 0700 %s/i/libexec/hvdd/hvdd-gpu",
             hvt_root, hvt_root, getenv("HVD_BUILD_DIR"), hvt_root, script, hvt_root, hvt_root);
    ck_assert_int_eq(system(command), 0);
    snprintf(command, sizeof command, "%s/i", hvt_root);
    setenv("HVD_BUILD_DIR", command, 1);
}

static void remove_installation(void)
{
    char command[256];

    snprintf(command, sizeof command, "rm -r %s/i", hvt_root);
    ck_assert_int_eq(system(command), 0);
}

static const struct {
    bool has_mps;
    const char *script, *result, *value, *next;
} workers[] = {
    {false, "echo idle_ns 10000; echo busy_ns 2000000", "note",
     "a worker's kernel takes 10.0 us, and 2000.0 us beside a process that computes",
     "optional: hvdd's option gpu-mps"},
    {true, "echo idle_ns 10000; echo busy_ns 2000000", "note", "a worker's kernel takes 10.0 us",
     "MPS does not take this process: see control.log"},
    {true, "echo idle_ns 10000; echo busy_ns 20000", "ok", "and 20.0 us beside", ""},
    {false, "exit 1", "note", "not measured: it failed", ""},
};

START_TEST(turns_on_a_gpu_are_a_note_with_what_to_do)
{
    install(workers[_i].script);
    setenv("CUDA_MPS_PIPE_DIRECTORY", hvt_root, 1);
    if (workers[_i].has_mps)
        ck_assert_int_eq(mknod(hvt_path("control"), S_IFREG | 0600, 0), 0);
    hvt_run("doctor gpu --json");
    cJSON *document = hvt_findings();
    hvt_expect_finding(document, "turns on the GPU", workers[_i].result, workers[_i].value,
                       workers[_i].next);
    cJSON_Delete(document);
    remove_installation();
}
END_TEST

/* ---- what workers would find ---- */

/* This test's machine has no device but /dev/null and, if `has_gpu`, a GPU's. False: that cannot be here. */
static bool have_devices(bool has_gpu)
{
    char path[64];

    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
        return false;
    const int null = open("/dev/null", O_PATH | O_CLOEXEC); /* of this namespace */
    snprintf(path, sizeof path, "/proc/self/fd/%d", null);
    const bool good = mount("hvt", "/dev", "tmpfs", 0, NULL) == 0 &&
                      mknod("/dev/null", S_IFREG | 0600, 0) == 0 &&
                      mount(path, "/dev/null", NULL, MS_BIND, NULL) == 0 &&
                      (!has_gpu || mknod("/dev/nvidia0", S_IFREG | 0600, 0) == 0);
    close(null);
    return good;
}

#define NO_GPU "none; needed for tensors on GPUs alone"

/* The rows of a worker that has all but one. */
static const struct {
    const char *check, *script, *why, *next;
} lacking[] = {
    {"CUDA driver", "echo kernels 1; echo driver 0 no driver here; echo nccl 22809",
     "no driver here", "install NVIDIA's driver"},
    {"NCCL", "echo kernels 1; echo driver 12040; echo nccl 0 no NCCL here", "no NCCL here",
     "gpu-library-path"},
    {"GPU kernels", "echo kernels 0 no kernels here; echo driver 13000; echo nccl 22809",
     "no kernels here", "gpu-kernels"},
    {"NCCL", "echo kernels 1; echo driver 13000", "none", "gpu-library-path"},
    {"CUDA driver", "exit 1", "not known: it failed", "install hvdd-gpu with hvdctl"},
};

/* 0: where there is a GPU; 1: where there is none. */
START_TEST(what_a_worker_lacks_is_a_note_where_there_is_a_gpu)
{
    if (hvt_skip_if(geteuid() != 0, "only root can make a mount namespace"))
        return;
    if (hvt_skip_if(!have_devices(_i == 0), "/dev cannot be mounted over"))
        return;
    char *build = strdup(getenv("HVD_BUILD_DIR"));
    for (size_t i = 0; i < sizeof lacking / sizeof lacking[0]; i++) {
        setenv("HVD_BUILD_DIR", build, 1);
        install(lacking[i].script);
        hvt_run("doctor --json");
        cJSON *document = hvt_findings();
        hvt_expect_finding(document, lacking[i].check, _i == 0 ? "note" : "ok",
                           _i == 0 ? lacking[i].why : NO_GPU, _i == 0 ? lacking[i].next : "");
        if (i == 0) {
            hvt_expect_finding(document, "NCCL", "ok", "2.28.9", "");
            hvt_expect_finding(document, "GPU kernels", "ok", "there", "");
        }
        if (i == 1)
            hvt_expect_finding(document, "CUDA driver", "ok", "driver for CUDA 12.4", "");
        cJSON_Delete(document);
        remove_installation();
    }
    free(build);
}
END_TEST

/* The real hvdd-gpu as a hvdd's, on a machine whose loader finds a driver and no NCCL, and NVIDIA's wheel in a folder. */
static void make_machine(struct hvi_daemon_status *daemon)
{
    const char *build = getenv("HVD_BUILD_DIR");
    char command[2048];

    snprintf(
        command, sizeof command,
        "umask 077 && cd %s && mkdir -p i/lib i/site/nvidia/nccl/lib && : >i/lib/libnccl.so.2 && "
        "ln -s %s/fakegpu/libcuda.so.1 i/lib && "
        "ln -s %s/fakegpu/libnccl.so.2 i/site/nvidia/nccl/lib && "
        "printf '#!/bin/sh\nexec %s/libexec/hvdd/hvdd-gpu \"$@\"\n' >i/worker && "
        "chmod 0700 i/worker",
        hvt_root, build, build, build);
    ck_assert_int_eq(system(command), 0);
    setenv("LD_LIBRARY_PATH", hvt_path("i/lib"), 1);
    snprintf(daemon->gpu_program, sizeof daemon->gpu_program, "%s", hvt_path("i/worker"));
    snprintf(daemon->gpu_library_path, sizeof daemon->gpu_library_path, "%s", hvt_path("i/site"));
}

START_TEST(what_the_workers_of_the_running_hvdd_find_is_told)
{
    struct hvt_line lines[] = {{
        .kind = HVI_ADMIN_STATUS,
        .reply = {.has_daemon = true, .daemon = HVT_DAEMON(HVD_VERSION_TEXT)},
    }};
    if (hvt_skip_if(geteuid() != 0, "only root can make a mount namespace"))
        return;
    if (hvt_skip_if(!have_devices(true), "/dev cannot be mounted over"))
        return;
    make_machine(&lines[0].reply.daemon);
    HVT_RUN(lines, "doctor --json");
    cJSON *document = hvt_findings();
    hvt_expect_finding(document, "CUDA driver", "ok", "driver for CUDA 13.0", "");
    hvt_expect_finding(document, "NCCL", "ok", "2.28.9", "");
    cJSON_Delete(document);

    setenv("HVD_NCCL_LIB", "/none\xff", 1);
    ck_assert_int_eq(unlink(hvt_path("i/lib/libcuda.so.1")), 0);
    ck_assert_int_eq(mknod(hvt_path("i/lib/libcuda.so.1"), S_IFREG | 0600, 0), 0);
    HVT_RUN(lines, "doctor --json");
    document = hvt_findings();
    hvt_expect_finding(document, "CUDA driver", "note", "no NVIDIA driver: libcuda.so.1",
                       "525 or newer");
    hvt_expect_finding(document, "NCCL", "note", "; /none\\xff: ", "gpu-library-path");
    cJSON_Delete(document);
    remove_installation();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tools/hvdctl/doctor");
    TCase *tests = tcase_create("doctor");
    tcase_add_checked_fixture(tests, hvt_program_setup, hvt_program_teardown);
    tcase_add_test(tests, every_check_says_something);
    tcase_add_test(tests, the_table_ends_with_a_sum);
    tcase_add_test(tests, a_runtime_directory_is_closed_to_others_or_not_used);
    tcase_add_loop_test(tests, few_open_files_are_a_note_or_a_problem, 0, 3);
    tcase_add_test(tests, locked_memory_is_told_and_never_a_problem);
    tcase_add_loop_test(tests, the_ports_of_jobs_have_to_be_free, 0,
                        sizeof ranges / sizeof ranges[0]);
    tcase_add_test(tests, an_interface_that_is_not_there_is_a_problem);
    tcase_add_test(tests, a_hvdd_of_this_version_is_fine_and_another_version_a_note);
    tcase_add_test(tests, a_service_of_another_version_is_killed_alone_and_not_restarted);
    tcase_add_test(tests, a_hvdd_that_answers_with_an_error_is_a_problem);
    tcase_add_test(tests, a_hvdd_that_is_not_there_or_says_nothing_of_use_is_a_note);
    tcase_add_loop_test(tests, a_hvdd_says_whether_it_has_an_mps_of_its_own, 0, 2);
    tcase_add_test(tests, what_turns_on_a_gpu_cost_is_measured_or_said_why_not);
    tcase_add_loop_test(tests, turns_on_a_gpu_are_a_note_with_what_to_do, 0,
                        sizeof workers / sizeof workers[0]);
    tcase_add_loop_test(tests, what_a_worker_lacks_is_a_note_where_there_is_a_gpu, 0, 2);
    tcase_add_test(tests, what_the_workers_of_the_running_hvdd_find_is_told);
    suite_add_tcase(suite, tests);
    return hvt_run_suite(suite);
}
