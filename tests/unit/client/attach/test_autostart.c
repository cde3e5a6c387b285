/* SPDX-License-Identifier: Apache-2.0
 * The private hvdd that hvd_open starts where nobody named a daemon and none listens. */
#include "base/clock.h"
#include "hvd/hvd.h"
#include "tests/unit/client/count.h"
#include "tests/unit/hvt_file.h"
#include "tests/unit/hvt_main.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char runtime[] = "/tmp/hvt-client-XXXXXX";
static char dir[64];
static struct hvd_options options;

static void path_of(const char *name, char *path_p)
{
    snprintf(path_p, 128, "%s/%s", dir, name);
}

static void set_options(void)
{
    hvd_options_init(&options);
    options.rank = 0;
    options.size = 1;
    options.job = "auto";
    options.timeout_ns = 5000000000;
}

static void set_up(void)
{
    char program[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 32);
    ck_assert_int_gt(length, 0);
    program[length] = '\0';
    snprintf(strrchr(program, '/') + 1, 32, "hvt-fake-hvdd");
    ck_assert_ptr_nonnull(mkdtemp(runtime));
    snprintf(dir, sizeof dir, "%s/hvdd", runtime);
    ck_assert_int_eq(setenv("XDG_RUNTIME_DIR", runtime, 1), 0);
    ck_assert_int_eq(setenv("HVDD_PROGRAM", program, 1), 0);
    unsetenv("HVD_ADDRESS");
    unsetenv("HVD_RENDEZVOUS");
    set_options();
}

static void touch(const char *name)
{
    char path[128];
    path_of(name, path);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    ck_assert_int_ge(fd, 0);
    close(fd);
}

/* Tells the daemon to end and removes what it leaves. */
static void tear_down(void)
{
    static const char *const names[] = {"facts", "stop", "attach.sock"};
    char path[128];
    uint64_t deadline_ns = hvi_deadline_after(5000000000);
    touch("stop");
    path_of("stop", path);
    while (access(path, F_OK) == 0 && !hvi_deadline_passed(deadline_ns) && !getenv("HVT_FAKE_HVDD"))
        usleep(1000);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        path_of(names[i], path);
        unlink(path);
    }
    rmdir(dir);
    rmdir(runtime);
}

static bool fact(const char *wanted)
{
    char path[128], line[1024];
    bool found = false;
    path_of("facts", path);
    FILE *file = fopen(path, "r");
    ck_assert_ptr_nonnull(file);
    while (fgets(line, sizeof line, file))
        found = found || strstr(line, wanted) != NULL;
    fclose(file);
    return found;
}

static int started;

static void log_line(void *user, enum hvd_log_level level, const char *text)
{
    (void)user;
    started += level == HVD_LOG_INFO && strstr(text, "started a private hvdd in") != NULL;
}

START_TEST(a_private_daemon_is_started_once)
{
    struct hvd_session *first, *second;
    int fds = hvt_count_fds();
    options.log = log_line;
    ck_assert_msg(hvd_open(&options, &first) == HVD_OK, "%s", hvd_last_error());
    ck_assert_msg(hvd_open(&options, &second) == HVD_OK, "%s", hvd_last_error());
    ck_assert_int_eq(started, 1);
    ck_assert_str_eq(hvd_address(first), dir);
    ck_assert_int_eq(hvd_barrier(first, "b"), HVD_OK);
    ck_assert_int_eq(waitpid(-1, NULL, WNOHANG), -1); /* it is no child of ours */
    ck_assert_int_eq(errno, ECHILD);
    hvd_close(first);
    hvd_close(second);
    ck_assert_int_eq(hvt_count_fds(), fds);
}
END_TEST

START_TEST(it_inherits_nothing_of_ours)
{
    struct hvd_session *session;
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGTERM);
    sigprocmask(SIG_BLOCK, &mask, NULL);
    setenv("NOTIFY_SOCKET", "/run/nowhere", 1);
    ck_assert_int_ge(dup(0), 0); /* not close-on-exec */
    ck_assert_msg(hvd_open(&options, &session) == HVD_OK, "%s", hvd_last_error());
    ck_assert(fact("--private --runtime-dir "));
    ck_assert(fact(" --idle-exit 10s --ready-fd 3"));
    ck_assert(fact("notify dropped"));
    ck_assert(fact("mask empty"));
    ck_assert(!fact("descriptor"));
    hvd_close(session);
}
END_TEST

static void *open_one(void *unused)
{
    struct hvd_session *session;
    (void)unused;
    ck_assert_msg(hvd_open(&options, &session) == HVD_OK, "%s", hvd_last_error());
    hvd_close(session);
    return NULL;
}

START_TEST(many_that_open_at_once_start_one)
{
    pthread_t threads[6];
    options.log = NULL;
    for (int i = 0; i < 6; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, open_one, NULL), 0);
    for (int i = 0; i < 6; i++)
        pthread_join(threads[i], NULL);
}
END_TEST

START_TEST(a_daemon_that_fails_has_last_words_and_leaves_nothing)
{
    struct hvd_session *session;
    int fds = hvt_count_fds();
    setenv("HVT_FAKE_HVDD", "fail", 1);
    ck_assert_int_eq(hvd_open(&options, &session), HVD_ERR_NO_DAEMON);
    ck_assert_ptr_nonnull(strstr(hvd_last_error(), "ended before it was ready"));
    ck_assert_ptr_nonnull(strstr(hvd_last_error(), "its last words: no luck"));
    ck_assert_int_ne(access(dir, F_OK), 0);
    ck_assert_int_eq(hvt_count_fds(), fds);
    ck_assert_int_eq(mkdir(dir, 0700), 0); /* for tear_down */
}
END_TEST

/* A rank of a job on two nodes, and the directory in which it looks for its hvdd. */
static void span_to(const char *place, const char *directory)
{
    setenv("HVD_RENDEZVOUS", place, 1);
    options.size = 2;
    options.local_size = 1;
    options.cross_size = 2;
    snprintf(dir, sizeof dir, "%s/%s", runtime, directory);
}

START_TEST(a_job_of_several_nodes_has_a_daemon_that_meets_others)
{
    struct hvd_session *session;
    char key[64], path[128];
    snprintf(key, sizeof key, "%s/key", runtime);
    snprintf(path, sizeof path, "%s.server", key);
    close(open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    setenv("HVD_KEY_FILE", key, 1);
    span_to("n1:9700", "hvdd-n1-9700");
    ck_assert_msg(hvd_open(&options, &session) == HVD_OK, "%s", hvd_last_error());
    ck_assert_str_eq(hvd_address(session), dir);
    snprintf(path, sizeof path, " --rendezvous n1:9700 --mesh-key %s\n", key);
    ck_assert(fact(path));
    hvd_close(session);
    snprintf(path, sizeof path, "%s.server", key);
    unlink(path);
}
END_TEST

START_TEST(without_the_runtime_directory_that_the_environment_names_there_is_tmp)
{
    struct hvd_session *session;
    char place[32];
    setenv("XDG_RUNTIME_DIR", "/nonexistent", 1);
    setenv("HVD_KEY_FILE", "/dev/null", 1);
    snprintf(place, sizeof place, "n%d", (int)getpid());
    span_to(place, "");
    snprintf(dir, sizeof dir, "/tmp/hvdd-%u-%s", (unsigned)geteuid(), place);
    ck_assert_msg(hvd_open(&options, &session) == HVD_OK, "%s", hvd_last_error());
    ck_assert_str_eq(hvd_address(session), dir);
    hvd_close(session);
}
END_TEST

START_TEST(a_daemon_of_a_mesh_that_fails_is_told_with_the_variables_it_was_given)
{
    struct hvd_session *session;
    char expected[256];
    setenv("HVT_FAKE_HVDD", "fail", 1);
    setenv("HVD_KEY_FILE", "/dev/null", 1);
    span_to("n1:99999", "hvdd-n1-99999");
    ck_assert_int_eq(hvd_open(&options, &session), HVD_ERR_NO_DAEMON);
    snprintf(expected, sizeof expected,
             "hvd_open: HVD_RENDEZVOUS is 'n1:99999', HVD_KEY_FILE is '/dev/null': the private "
             "hvdd (%s",
             getenv("HVDD_PROGRAM"));
    ck_assert_msg(strncmp(hvd_last_error(), expected, strlen(expected)) == 0, "%s",
                  hvd_last_error());
    ck_assert_ptr_nonnull(strstr(hvd_last_error(), "its last words: no luck"));
    ck_assert_int_eq(mkdir(dir, 0700), 0); /* for tear_down */
}
END_TEST

START_TEST(a_rendezvous_without_a_key_file_is_a_sentence_that_says_how_to_make_one)
{
    struct hvd_session *session;
    unsetenv("HVD_KEY_FILE");
    span_to("n1", "hvdd");
    ck_assert_int_eq(hvd_open(&options, &session), HVD_ERR_INVALID);
    ck_assert_str_eq(hvd_last_error(),
                     "hvd_open: HVD_RENDEZVOUS is 'n1' but HVD_KEY_FILE is not set; make a pair "
                     "with `hvdctl key new PREFIX`, copy PREFIX.server to the machine that "
                     "HVD_RENDEZVOUS names and PREFIX.client to the others, and set "
                     "HVD_KEY_FILE=PREFIX on all");
    setenv("HVD_KEY_FILE", "no/such/key", 1);
    ck_assert_int_eq(hvd_open(&options, &session), HVD_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(hvd_last_error(), "HVD_KEY_FILE is 'no/such/key', and there is "
                                                   "neither such a file nor one that goes on with "
                                                   ".server or .client; make a pair with `hvdctl "
                                                   "key new PREFIX`"));
    ck_assert_int_ne(access(dir, F_OK), 0);
    ck_assert_int_eq(mkdir(dir, 0700), 0); /* for tear_down */
}
END_TEST

START_TEST(a_log_that_was_asked_for_is_kept)
{
    struct hvd_session *session;
    char path[128], line[64] = "";
    snprintf(path, sizeof path, "%s/log", runtime);
    setenv("HVDD_LOG", path, 1);
    setenv("HVT_FAKE_HVDD", "fail", 1);
    ck_assert_int_eq(hvd_open(&options, &session), HVD_ERR_NO_DAEMON);
    FILE *file = fopen(path, "r");
    ck_assert_ptr_nonnull(file);
    ck_assert_ptr_nonnull(fgets(line, sizeof line, file));
    ck_assert_str_eq(line, "about to fail\n");
    fclose(file);
    unlink(path);
    snprintf(path, sizeof path, "%s/none/log", runtime);
    setenv("HVDD_LOG", path, 1);
    ck_assert_int_eq(hvd_open(&options, &session), HVD_ERR_LIMIT);
    ck_assert_ptr_nonnull(strstr(hvd_last_error(), "HVDD_LOG"));
    ck_assert_int_eq(mkdir(dir, 0700), 0); /* for tear_down */
}
END_TEST

START_TEST(a_daemon_that_never_gets_ready_costs_the_timeout)
{
    struct hvd_session *session;
    options.timeout_ns = 300 * 1000 * 1000;
    setenv("HVT_FAKE_HVDD", "hang", 1);
    uint64_t start_ns = hvi_clock_ns();
    ck_assert_int_eq(hvd_open(&options, &session), HVD_ERR_ATTACH_TIMEOUT);
    ck_assert_uint_lt(hvi_clock_ns() - start_ns, hvt_patience(2 * HVI_NS_SEC));
    unsetenv("HVT_FAKE_HVDD"); /* tear_down waits for it */
    ck_assert_int_eq(mkdir(dir, 0700), 0);
}
END_TEST

START_TEST(a_program_that_is_none_is_named)
{
    struct hvd_session *session;
    setenv("HVDD_PROGRAM", "/etc/passwd", 1);
    ck_assert_int_eq(hvd_open(&options, &session), HVD_ERR_NO_DAEMON);
    ck_assert_ptr_nonnull(strstr(hvd_last_error(), "HVDD_PROGRAM is '/etc/passwd'"));
    ck_assert_int_eq(mkdir(dir, 0700), 0); /* for tear_down */
    setenv("HVT_FAKE_HVDD", "none", 1);
}
END_TEST

START_TEST(a_named_address_starts_nothing)
{
    struct hvd_session *session;
    options.address = dir;
    ck_assert_int_eq(hvd_open(&options, &session), HVD_ERR_NO_DAEMON);
    ck_assert_int_ne(access(dir, F_OK), 0);
    ck_assert_int_eq(mkdir(dir, 0700), 0);
    setenv("HVT_FAKE_HVDD", "none", 1);
}
END_TEST

START_TEST(a_directory_that_others_can_write_is_not_used)
{
    struct hvd_session *session;
    ck_assert_int_eq(mkdir(dir, 0700), 0);
    ck_assert_int_eq(chmod(dir, 0777), 0);
    ck_assert_int_eq(hvd_open(&options, &session), HVD_ERR_REFUSED);
    ck_assert_ptr_nonnull(strstr(hvd_last_error(), "others may"));
    setenv("HVT_FAKE_HVDD", "none", 1);
}
END_TEST

/* ---- which program ---- */

/* Another program with the library in it, away from the build's hvdd: this one, copied. */
static const char elsewhere[] = "usr/lib/triplet/trainer";

static int open_and_tell(void)
{
    struct hvd_session *session;
    set_options();
    printf("%d ", hvd_open(&options, &session));
    printf("%s\n", hvd_last_error());
    return EXIT_SUCCESS;
}

/* Creates a program in `runtime`, and the folders on the way. */
static int create(const char *name, mode_t mode)
{
    char path[128];
    int length = snprintf(path, sizeof path, "%s/", runtime);
    snprintf(path + length, sizeof path - (size_t)length, "%s", name);
    for (char *slash = strchr(path + length, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        ck_assert(mkdir(path, 0700) == 0 || errno == EEXIST);
        *slash = '/';
    }
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    ck_assert_int_ge(fd, 0);
    return fd;
}

/* One that ends at once: the sentence about that has its path. */
static void create_hvdd(const char *name, mode_t mode)
{
    static const char script[] = "#!/bin/sh\nexit 1\n";
    int fd = create(name, mode);
    ck_assert_int_eq((int)write(fd, script, sizeof script - 1), (int)sizeof script - 1);
    close(fd);
}

static void set_up_elsewhere(void)
{
    char bytes[65536];
    ssize_t length;
    set_up();
    unsetenv("HVDD_PROGRAM");
    int from = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    ck_assert_int_ge(from, 0);
    int to = create(elsewhere, 0700);
    while ((length = read(from, bytes, sizeof bytes)) > 0)
        ck_assert_int_eq((int)write(to, bytes, (size_t)length), (int)length);
    ck_assert_int_eq((int)length, 0);
    close(from);
    close(to);
}

static void tear_down_elsewhere(void)
{
    hvt_remove_tree(runtime);
}

/* Of an hvd_open there, without HVDD_PROGRAM. */
static void expect_said(int status, const char *words)
{
    char command[128], said[1024] = "", wanted[1024];
    snprintf(command, sizeof command, "%s/%s --open", runtime, elsewhere);
    FILE *stream = popen(command, "re");
    ck_assert_ptr_nonnull(stream);
    ck_assert_ptr_nonnull(fgets(said, sizeof said, stream));
    ck_assert_int_eq(pclose(stream), 0);
    snprintf(wanted, sizeof wanted, "%d hvd_open: %s\n", status, words);
    ck_assert_str_eq(said, wanted);
}

static void expect_started(const char *name)
{
    char words[256];
    snprintf(words, sizeof words, "the private hvdd (%s/%s) ended before it was ready", runtime,
             name);
    expect_said(HVD_ERR_NO_DAEMON, words);
}

static void expect_none_found(void)
{
    expect_said(HVD_ERR_NO_DAEMON,
                "no hvdd runs and no hvdd program was found to start a private one; start one with "
                "'systemctl start hvdd', run under hvdrun, or set HVD_ADDRESS or HVDD_PROGRAM");
}

START_TEST(without_a_program_a_sentence_says_what_to_do)
{
    static const char *const paths[] = {"", ":", "::/nonexistent:"};
    create_hvdd("here/hvdd", 0700);
    ck_assert_int_eq(chdir(runtime), 0);
    ck_assert_int_eq(chdir("here"), 0); /* an empty part of PATH does not name it */
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        setenv("PATH", paths[i], 1);
        expect_none_found();
    }
    unsetenv("PATH");
    expect_none_found();
    setenv("HVDD_PROGRAM", "", 1); /* as if it were not set */
    expect_none_found();
    ck_assert_int_eq(rmdir(dir), -1);
    ck_assert_int_eq(errno, ENOENT);
}
END_TEST

START_TEST(the_first_in_path_that_can_run_is_started)
{
    static char path[PATH_MAX + 512], name[PATH_MAX];
    memset(name, 'x', sizeof name - 1);
    close(create("folder/hvdd/file", 0600));
    create_hvdd("plain/hvdd", 0600);
    create_hvdd("second/hvdd", 0700);
    snprintf(path, sizeof path, ":/%s:%s/folder:%s/plain", name, runtime, runtime);
    setenv("PATH", path, 1);
    expect_none_found();
    snprintf(path + strlen(path), 256, ":%s/first:%s/second", runtime, runtime);
    setenv("PATH", path, 1);
    expect_started("second/hvdd");
    create_hvdd("first/hvdd", 0700);
    expect_started("first/hvdd");
}
END_TEST

START_TEST(a_program_beside_the_library_goes_before_path)
{
    char path[128];
    create_hvdd("path/hvdd", 0700);
    snprintf(path, sizeof path, "%s/path", runtime);
    setenv("PATH", path, 1);
    expect_started("path/hvdd");
    create_hvdd("usr/lib/triplet/hvdd", 0700);
    expect_started("usr/lib/triplet/hvdd");
    create_hvdd("usr/bin/hvdd", 0700);
    expect_started("usr/bin/hvdd");
    create_hvdd("usr/lib/bin/hvdd", 0700);
    expect_started("usr/lib/bin/hvdd");
    snprintf(path, sizeof path, "%s/path/hvdd", runtime);
    setenv("HVDD_PROGRAM", path, 1);
    expect_started("path/hvdd");
}
END_TEST

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--open") == 0)
        return open_and_tell();
    Suite *suite = suite_create("client autostart");
    TCase *tcase = tcase_create("autostart");
    tcase_set_timeout(tcase, 60);
    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_test(tcase, a_private_daemon_is_started_once);
    tcase_add_test(tcase, it_inherits_nothing_of_ours);
    tcase_add_test(tcase, many_that_open_at_once_start_one);
    tcase_add_test(tcase, a_daemon_that_fails_has_last_words_and_leaves_nothing);
    tcase_add_test(tcase, a_job_of_several_nodes_has_a_daemon_that_meets_others);
    tcase_add_test(tcase, without_the_runtime_directory_that_the_environment_names_there_is_tmp);
    tcase_add_test(tcase, a_daemon_of_a_mesh_that_fails_is_told_with_the_variables_it_was_given);
    tcase_add_test(tcase, a_rendezvous_without_a_key_file_is_a_sentence_that_says_how_to_make_one);
    tcase_add_test(tcase, a_log_that_was_asked_for_is_kept);
    tcase_add_test(tcase, a_daemon_that_never_gets_ready_costs_the_timeout);
    tcase_add_test(tcase, a_program_that_is_none_is_named);
    tcase_add_test(tcase, a_named_address_starts_nothing);
    tcase_add_test(tcase, a_directory_that_others_can_write_is_not_used);
    suite_add_tcase(suite, tcase);
    TCase *programs = tcase_create("programs");
    tcase_add_checked_fixture(programs, set_up_elsewhere, tear_down_elsewhere);
    tcase_add_test(programs, without_a_program_a_sentence_says_what_to_do);
    tcase_add_test(programs, the_first_in_path_that_can_run_is_started);
    tcase_add_test(programs, a_program_beside_the_library_goes_before_path);
    suite_add_tcase(suite, programs);
    return hvt_run_suite(suite);
}
