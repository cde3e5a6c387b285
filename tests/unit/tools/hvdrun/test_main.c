/* SPDX-License-Identifier: Apache-2.0
 * The program as a user starts it: a copy in a folder of its own, beside which tests put a hvdd or a worker. */
#include "base/status.h"
#include "tests/unit/hvt_file.h"
#include "tests/unit/hvt_listen.h"
#include "tests/unit/hvt_main.h"
#include "tests/unit/tools/hvt_play.h"

#include <sched.h>
#include <sys/stat.h>
#include <sys/wait.h>

static char root[64], out[32768], err[8192];
static int code;

static const char *path_of(const char *name)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", root, name);
    return path;
}

static void write_file(const char *name, mode_t mode, const char *content)
{
    hvt_write_file(path_of(name), mode, content);
}

static void make_folder(const char *name)
{
    ck_assert_int_eq(mkdir(path_of(name), 0700), 0);
}

static void shell(const char *line)
{
    const int status = system(line);
    ck_assert_msg(WIFEXITED(status), "%s: wait status %d", line, status);
    code = WEXITSTATUS(status);
}

static void setup(void)
{
    char line[1024];
    snprintf(root, sizeof root, "/tmp/hvt-run-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(root));
    make_folder("bin");
    snprintf(line, sizeof line, "cp %s/bin/hvdrun %s/bin && ln -s hvdrun %s/bin/horovodrun",
             getenv("HVD_BUILD_DIR"), root, root);
    shell(line);
    ck_assert_int_eq(code, 0);
    setenv("HVD_ADDRESS", root, 1);
    setenv("XDG_RUNTIME_DIR", root, 1);
    setenv("HVDRUN_PYTHON", "true", 1);
    setenv("LC_ALL", "C", 1);
    unsetenv("HVDRUN_VERSION");
    unsetenv("HVD_SSH");
    unsetenv("HVD_INTERFACE");
    hvt_forgive_libzmq(root);
}

static void teardown(void)
{
    hvt_remove_tree(root);
}

static void read_file(const char *name, char *text_p, size_t size)
{
    FILE *file = fopen(path_of(name), "re");
    ck_assert_ptr_nonnull(file);
    const size_t length = fread(text_p, 1, size, file);
    fclose(file);
    ck_assert_uint_lt(length, size);
    text_p[length] = '\0';
}

/* The name of the program and words for a shell, to which $R is the folder. */
static void run(const char *words)
{
    char line[2048];
    snprintf(line, sizeof line, "R=%s; exec >$R/out 2>$R/err; $R/bin/%s", root, words);
    shell(line);
    read_file("out", out, sizeof out);
    read_file("err", err, sizeof err);
}

static void expect_end(int wanted, const char *complaint)
{
    ck_assert_msg(code == wanted, "exit code %d after: %s%s", code, out, err);
    ck_assert_str_eq(err, complaint);
}

static void expect_part(const char *printed, const char *part)
{
    ck_assert_msg(strstr(printed, part) != NULL, "'%s' is not in: %.2000s", part, printed);
}

/* ---- instead of a job ---- */

START_TEST(the_version_is_that_of_hvd_or_of_the_horovod_it_stands_for)
{
    setenv("HVDRUN_VERSION", "0.28.1", 1);
    run("hvdrun --version");
    expect_end(0, "");
    ck_assert_str_eq(out, "hvdrun " HVD_VERSION_TEXT "\n");
    run("horovodrun --version");
    expect_end(0, "");
    ck_assert_str_eq(out, "0.28.1\n");
    setenv("HVDRUN_VERSION", "", 1);
    run("horovodrun --version");
    ck_assert_str_eq(out, HVD_VERSION_TEXT "\n");
}
END_TEST

START_TEST(help_is_for_the_name_that_was_called)
{
    run("hvdrun --help");
    expect_end(0, "");
    expect_part(out, "Usage: hvdrun ");
    run("horovodrun --help");
    expect_end(0, "");
    expect_part(out, "Usage: horovodrun ");
    run("hvdrun --help-man");
    expect_end(0, "");
    expect_part(out, "*-np*, *--num-proc* _N_\n\tHow many processes");
    run("hvdrun --help >/dev/full");
    expect_end(1, "");
}
END_TEST

START_TEST(wrong_words_are_told_and_end_with_2)
{
    run("hvdrun -np none true");
    expect_end(2, "hvdrun: -np takes a number of processes from 1 to 1048576, not 'none'\n"
                  "Try hvdrun --help.\n");
    run("hvdrun -np 1 --bind-to socket true");
    expect_end(2, "hvdrun: --bind-to takes core, host or none, not 'socket'\nTry hvdrun --help.\n");
    run("hvdrun -np 1 --log-level loud true");
    expect_end(2, "hvdrun: --log-level takes trace, debug, info, warning, error or fatal, not "
                  "'loud'\nTry hvdrun --help.\n");
    ck_assert_str_eq(out, "");
}
END_TEST

START_TEST(frameworks_are_those_of_a_python_that_is_named)
{
    setenv("HVDRUN_PYTHON", "", 1);
    write_file("python3", 0700, "#!/bin/sh\necho /x/python; echo torch\n");
    run("hvdrun --version"); /* asks no Python */
    expect_end(0, "");
    unsetenv("HVDRUN_PYTHON");
    setenv("PATH", root, 1);
    run("hvdrun --check-build");
    expect_end(0, "hvdrun: the frameworks are those of /x/python (HVDRUN_PYTHON names another)\n");
    expect_part(out, "hvd v" HVD_VERSION_TEXT ":\n\nAvailable Frameworks:\n    [ ] TensorFlow\n"
                     "    [X] PyTorch\n");
    setenv("HVDRUN_PYTHON", path_of("python3"), 1);
    setenv("HVDRUN_VERSION", "0.28.1", 1);
    run("horovodrun --check-build");
    expect_end(0, "");
    expect_part(out, "Horovod v0.28.1:\n");
    setenv("HVDRUN_PYTHON", "/nonexistent/python", 1);
    run("hvdrun --check-build");
    expect_end(0, "hvdrun: cannot ask /nonexistent/python which frameworks there are: No such file "
                  "or directory; name a Python in HVDRUN_PYTHON\n");
    expect_part(out, "    [ ] PyTorch\n");
}
END_TEST

/* ---- NCCL ---- */

#define FOUND "kernels 1\ndriver 13000\nnccl 22809\n"

/* A worker that says what it has been asked, and the answer. */
static void write_worker(const char *name, const char *answer)
{
    char script[512];
    snprintf(script, sizeof script, "#!/bin/sh\necho \"$0 $*\" >%s/asked\nprintf '%s'\n", root,
             answer);
    write_file(name, 0700, script);
}

static void make_workers(const char *answer)
{
    make_folder("libexec");
    make_folder("libexec/hvdd");
    write_worker("libexec/hvdd/hvdd-gpu", FOUND);
    make_folder("named");
    write_worker("named/worker", answer);
    make_folder("named/lib");
    write_file("named/kernels", 0600, "");
}

static void run_words(const void *words)
{
    run(words);
}

/* Asks beside a hvdd that names these, each from the folder unless it begins with a slash or is empty. */
static void check_build(const char *program, const char *kernels, const char *library_path)
{
    struct hvt_line line = {.kind = HVI_ADMIN_STATUS,
                            .reply = {.has_daemon = true, .daemon = HVT_DAEMON("1.2.3")}};
    struct hvi_daemon_status *daemon = &line.reply.daemon;
    unlink(path_of("asked"));
    if (program[0] != '\0')
        snprintf(daemon->gpu_program, sizeof daemon->gpu_program, "%s", path_of(program));
    if (kernels[0] != '\0')
        snprintf(daemon->gpu_kernels, sizeof daemon->gpu_kernels, "%s", path_of(kernels));
    snprintf(daemon->gpu_library_path, sizeof daemon->gpu_library_path, "%s", library_path);
    hvt_play(root, &line, 1, run_words, "hvdrun --check-build");
    expect_end(0, "");
}

#define EXPECT_NCCL(mark) expect_part(out, "Operations:\n    [" mark "] NCCL\n")

/* "" if none was. */
static void expect_asked(const char *worker, const char *words)
{
    char asked[512], wanted[1024] = "";
    snprintf(wanted, sizeof wanted, "%s %s\n", path_of(worker), words);
    read_file("asked", asked, sizeof asked);
    ck_assert_str_eq(asked, wanted);
}

static void expect_beside_asked(void)
{
    char asked[512];
    read_file("asked", asked, sizeof asked);
    expect_part(asked, "/bin/../libexec/hvdd/hvdd-gpu --can\n");
    EXPECT_NCCL("X");
}

START_TEST(the_worker_that_hvdd_starts_is_asked_with_its_options)
{
    char words[512], library_path[256];
    make_workers(FOUND);
    snprintf(library_path, sizeof library_path, ":%s/named/lib:/usr", root);
    snprintf(words, sizeof words, "--can %s/named/kernels %s", root, library_path);
    check_build("named/worker", "named/kernels", library_path);
    EXPECT_NCCL("X");
    expect_asked("named/worker", words);
    check_build("named/worker", "", "");
    EXPECT_NCCL("X");
    expect_asked("named/worker", "--can  ");
}
END_TEST

static const char *const lacking[] = {
    "kernels 0\ndriver 13000\nnccl 22809\n", "kernels 1\ndriver 0\nnccl 22809\n",
    "kernels 1\ndriver 13000\nnccl 0\n", "kernels 1\nnccl 22809\n", ""};

START_TEST(a_worker_that_lacks_something_has_no_nccl)
{
    make_workers(lacking[_i]);
    check_build("named/worker", "", "");
    EXPECT_NCCL(" ");
    expect_asked("named/worker", "--can  ");
}
END_TEST

START_TEST(a_hvdd_that_starts_no_workers_or_has_no_kernels_has_no_nccl)
{
    make_workers(FOUND);
    check_build("", "named/kernels", "");
    EXPECT_NCCL(" ");
    check_build("named/worker", "named/none", "");
    EXPECT_NCCL(" ");
    ck_assert_int_ne(access(path_of("asked"), F_OK), 0);
}
END_TEST

START_TEST(a_worker_that_fails_has_no_nccl)
{
    make_workers("");
    write_file("named/worker", 0700, "#!/bin/sh\nprintf '" FOUND "'\nexit 1\n");
    check_build("named/worker", "", "");
    EXPECT_NCCL(" ");
}
END_TEST

START_TEST(a_worker_that_is_not_there_is_asked_beside_hvdrun)
{
    make_workers("");
    check_build("named/none", "", "");
    expect_beside_asked();
    write_file("named/worker", 0600, "");
    check_build("named/worker", "", "");
    expect_beside_asked();
}
END_TEST

START_TEST(what_another_user_can_have_written_is_not_started)
{
    static const char *const names[] = {"named/worker", "named/kernels", "named/lib", "named"};
    static const mode_t modes[] = {0700, 0600, 0700, 0700};
    char library_path[256];
    make_workers("");
    snprintf(library_path, sizeof library_path, "/usr:%s/named/lib", root);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        ck_assert_int_eq(chmod(path_of(names[i]), modes[i] | 022), 0);
        check_build("named/worker", "named/kernels", library_path);
        expect_beside_asked();
        ck_assert_int_eq(chmod(path_of(names[i]), modes[i]), 0);
    }
    check_build("named/worker", "named/kernels", library_path);
    EXPECT_NCCL(" ");
}
END_TEST

START_TEST(a_library_path_that_is_not_all_of_folders_from_the_root_is_not_followed)
{
    make_workers("");
    check_build("named/worker", "", "usr/lib");
    expect_beside_asked();
    check_build("named/worker", "", "/usr:/nonexistent");
    expect_beside_asked();
}
END_TEST

START_TEST(a_hvdd_that_refuses_is_as_none)
{
    const struct hvt_line line = {.kind = HVI_ADMIN_STATUS, .reply = {.status = HVI_ERR_REFUSED}};
    make_workers("");
    hvt_play(root, &line, 1, run_words, "hvdrun --check-build");
    expect_end(0, "");
    expect_beside_asked();
}
END_TEST

/* ---- jobs ---- */

START_TEST(a_job_has_the_exit_code_of_the_rank_that_failed)
{
    const int listener = hvt_listen(root, "admin.sock", SOCK_STREAM);
    run("hvdrun -np 2 --report-time 0.1 sh -c 'echo on; test $HVD_RANK = 0 || exit 5'");
    ck_assert_int_eq(code, 5);
    expect_part(out, "[0]<stdout>:on\n");
    expect_part(err, "hvdrun:   rank 1: exited with code 5, the first to fail\n");
    run("hvdrun -np 1 --torus-allreduce true");
    ck_assert_int_eq(code, 0);
    expect_part(err, "hvdrun: --torus-allreduce: accepted without effect: ");
    close(listener);
}
END_TEST

START_TEST(the_program_is_its_own_agent_and_relay)
{
    const int listener = hvt_listen(root, "admin.sock", SOCK_STREAM);
    write_file("shell", 0700, "#!/bin/sh\nexec sh -c \"$2\"\n");
    run("hvdrun -np 3 -H h1:1,h2:1,h3:1 --ssh-command $R/shell --fan-out 2 --verbose sh -c 'echo "
        "on'");
    ck_assert_msg(code == 0, "exit code %d after: %s%s", code, out, err);
    expect_part(err, "h2: through h1\n");
    for (int rank = 0; rank < 3; rank++) {
        char line[32];
        snprintf(line, sizeof line, "[%d]<stdout>:on\n", rank);
        expect_part(out, line);
    }
    close(listener);
}
END_TEST

START_TEST(a_stream_that_is_closed_is_no_place_for_another_file)
{
    const int listener = hvt_listen(root, "admin.sock", SOCK_STREAM);
    run("hvdrun -np 1 --report-time 0.1 sh -c 'cat; echo end; exit 3' <&- 2>&-");
    expect_end(3, "");
    ck_assert_str_eq(out, "[0]<stdout>:end\n");
    close(listener);
}
END_TEST

START_TEST(ranks_have_the_limit_of_files_that_hvdrun_was_started_with)
{
    const int listener = hvt_listen(root, "admin.sock", SOCK_STREAM);
    write_file("bin/limited", 0700,
               "#!/bin/sh\nulimit -Sn 40\nexec ${0%/*}/hvdrun -np 8 sh -c 'ulimit -n'\n");
    run("limited");
    expect_end(0, "");
    expect_part(out, "[0]<stdout>:40\n");
    expect_part(out, "[7]<stdout>:40\n");
    close(listener);
}
END_TEST

/* The number of the core that is `skip` after the first that we may use. */
static int core_after(const cpu_set_t *usable, int skip)
{
    int core = 0;
    skip %= CPU_COUNT(usable);
    while (!CPU_ISSET((size_t)core, usable) || skip-- > 0)
        core++;
    return core;
}

START_TEST(each_rank_may_be_bound_to_a_core_in_turn)
{
    const int listener = hvt_listen(root, "admin.sock", SOCK_STREAM);
    cpu_set_t usable;
    char line[64];
    ck_assert_int_eq(sched_getaffinity(0, sizeof usable, &usable), 0);
    run("hvdrun -np 3 --bind-to core sh -c 'grep Cpus_allowed_list /proc/self/status'");
    expect_end(0, "");
    for (int rank = 0; rank < 3; rank++) {
        snprintf(line, sizeof line, "[%d]<stdout>:Cpus_allowed_list:\t%d\n", rank,
                 core_after(&usable, rank));
        expect_part(out, line);
    }
    close(listener);
}
END_TEST

START_TEST(a_full_disk_is_told_and_ends_with_1)
{
    const int listener = hvt_listen(root, "admin.sock", SOCK_STREAM);
    run("hvdrun -np 1 sh -c 'echo lost' >/dev/full");
    expect_end(1, "hvdrun: cannot write to stdout: No space left on device; its output is dropped "
                  "from here on\n");
    make_folder("kept");
    make_folder("kept/rank.0");
    ck_assert_int_eq(symlink("/dev/full", path_of("kept/rank.0/stdout")), 0);
    run("hvdrun -np 1 --output-filename $R/kept sh -c 'echo shown'");
    expect_end(1, "hvdrun: the file with stdout of rank 0 is not complete: No space left on "
                  "device\n");
    ck_assert_str_eq(out, "[0]<stdout>:shown\n");
    close(listener);
}
END_TEST

START_TEST(a_file_for_both_streams_has_whole_lines)
{
    const int listener = hvt_listen(root, "admin.sock", SOCK_STREAM);
    static const char first[] = "[0]<stdout>:unfinished\n", second[] = "[0]<stderr>:e\n";
    run("hvdrun -np 1 sh -c 'printf unfinished; sleep 0.3; echo e >&2' 2>&1");
    ck_assert_int_eq(code, 0);
    expect_part(out, first); /* in this order, if hvdrun has read the one before the other came */
    expect_part(out, second);
    ck_assert_uint_eq(strlen(out), strlen(first) + strlen(second));
    close(listener);
}
END_TEST

/* ---- its hvdd ---- */

/* One that gets ready, and whose first word is shown. */
static void write_hvdd(const char *name, const char *word)
{
    char script[512];
    snprintf(script, sizeof script,
             "#!/bin/sh\nfor word; do case $last in --ready-fd) ready=$word;; "
             "--parent-fd) parent=$word;; esac; last=$word; done\n"
             "echo %s >&2\necho >/proc/self/fd/$ready\nexec cat /proc/self/fd/$parent\n",
             word);
    write_file(name, 0700, script);
}

START_TEST(a_private_hvdd_is_that_beside_hvdrun_or_that_in_path)
{
    char path[512];
    unsetenv("HVD_ADDRESS");
    make_folder("path");
    snprintf(path, sizeof path, "%s/path:%s", root, getenv("PATH"));
    setenv("PATH", path, 1);
    write_hvdd("path/hvdd", "in-path");
    run("hvdrun -np 1 sh -c 'echo $HVD_ADDRESS'");
    ck_assert_int_eq(code, 0);
    expect_part(err, "in-path\n");
    expect_part(out, path_of("hvdrun-"));
    write_hvdd("bin/hvdd", "beside");
    run("hvdrun -np 1 true");
    ck_assert_int_eq(code, 0);
    expect_part(err, "beside\n");
}
END_TEST

START_TEST(a_private_hvdd_is_in_tmp_where_the_runtime_directory_is_not_ours_alone)
{
    unsetenv("HVD_ADDRESS");
    write_hvdd("bin/hvdd", "beside");
    ck_assert_int_eq(chmod(root, 0777), 0);
    run("hvdrun -np 1 sh -c 'echo $HVD_ADDRESS'");
    expect_part(out, ":/tmp/hvdrun-");
    setenv("XDG_RUNTIME_DIR", "/nonexistent", 1);
    run("hvdrun -np 1 sh -c 'echo $HVD_ADDRESS'");
    expect_part(out, ":/tmp/hvdrun-");
}
END_TEST

/* hvdd with --gpu-mps leaves that file. */
START_TEST(ranks_are_in_the_mps_of_their_hvdd)
{
    const int listener = hvt_listen(root, "admin.sock", SOCK_STREAM);
    static const char words[] =
        "hvdrun -np 1 --no-prefix sh -c 'echo ${CUDA_MPS_PIPE_DIRECTORY-none} "
        "${CUDA_DEVICE_MAX_CONNECTIONS-none}'";
    char wanted[256];
    unsetenv("CUDA_MPS_PIPE_DIRECTORY");
    unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
    run(words);
    ck_assert_str_eq(out, "none none\n");
    write_file("mps.pid", 0600, "0\n");
    run(words);
    snprintf(wanted, sizeof wanted, "%s/mps 8\n", root);
    ck_assert_str_eq(out, wanted);
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "3", 1);
    run(words);
    snprintf(wanted, sizeof wanted, "%s/mps 3\n", root);
    ck_assert_str_eq(out, wanted);
    close(listener);
}
END_TEST

static TCase *make_case(const char *name)
{
    TCase *tests = tcase_create(name);
    tcase_set_timeout(tests, 60);
    tcase_add_checked_fixture(tests, setup, teardown);
    return tests;
}

int main(void)
{
    Suite *suite = suite_create("tools/hvdrun/main");
    TCase *instead = make_case("instead");
    tcase_add_test(instead, the_version_is_that_of_hvd_or_of_the_horovod_it_stands_for);
    tcase_add_test(instead, help_is_for_the_name_that_was_called);
    tcase_add_test(instead, wrong_words_are_told_and_end_with_2);
    tcase_add_test(instead, frameworks_are_those_of_a_python_that_is_named);
    suite_add_tcase(suite, instead);
    TCase *nccl = make_case("nccl");
    tcase_add_test(nccl, the_worker_that_hvdd_starts_is_asked_with_its_options);
    tcase_add_loop_test(nccl, a_worker_that_lacks_something_has_no_nccl, 0,
                        sizeof lacking / sizeof lacking[0]);
    tcase_add_test(nccl, a_hvdd_that_starts_no_workers_or_has_no_kernels_has_no_nccl);
    tcase_add_test(nccl, a_worker_that_fails_has_no_nccl);
    tcase_add_test(nccl, a_worker_that_is_not_there_is_asked_beside_hvdrun);
    tcase_add_test(nccl, what_another_user_can_have_written_is_not_started);
    tcase_add_test(nccl, a_library_path_that_is_not_all_of_folders_from_the_root_is_not_followed);
    tcase_add_test(nccl, a_hvdd_that_refuses_is_as_none);
    suite_add_tcase(suite, nccl);
    TCase *jobs = make_case("jobs");
    tcase_add_test(jobs, a_job_has_the_exit_code_of_the_rank_that_failed);
    tcase_add_test(jobs, the_program_is_its_own_agent_and_relay);
    tcase_add_test(jobs, a_stream_that_is_closed_is_no_place_for_another_file);
    tcase_add_test(jobs, ranks_have_the_limit_of_files_that_hvdrun_was_started_with);
    tcase_add_test(jobs, each_rank_may_be_bound_to_a_core_in_turn);
    tcase_add_test(jobs, a_full_disk_is_told_and_ends_with_1);
    tcase_add_test(jobs, a_file_for_both_streams_has_whole_lines);
    tcase_add_test(jobs, a_private_hvdd_is_that_beside_hvdrun_or_that_in_path);
    tcase_add_test(jobs, a_private_hvdd_is_in_tmp_where_the_runtime_directory_is_not_ours_alone);
    tcase_add_test(jobs, ranks_are_in_the_mps_of_their_hvdd);
    suite_add_tcase(suite, jobs);
    return hvt_run_suite(suite);
}
